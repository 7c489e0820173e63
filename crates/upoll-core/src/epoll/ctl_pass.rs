//! Several changes to user-level members of a set under one hold of the set's lock.

use arrayvec::ArrayVec;

use super::ctl::{Forgotten, is_added_alone};
use super::interest::LockedSet;
use super::{Op, Set};
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::file::{File, FileRef};
use crate::wait::Deferred;

/// Changes under one hold of the set's lock. The fields end in their order: first the lock, then what is left of items, then
/// what was put off until the lock is free. Foreign code of both may panic, and only [`Deferred`] ends while another panic
/// goes on.
pub struct CtlPass<'a> {
    set: &'a File<Set>,
    locked: Option<LockedSet<'a>>,
    /// The rest of items that were removed. If it is full, the pass releases the lock before the next change.
    left: ArrayVec<Left, { CtlPass::ROOM }>,
    deferred: Deferred,
}

/// [`Forgotten`] that is finished when it ends.
struct Left(Option<Forgotten>);

impl Drop for Left {
    fn drop(&mut self) {
        if let Some(forgotten) = self.0.take() {
            forgotten.finish();
        }
    }
}

impl<'a> CtlPass<'a> {
    /// The number of items that may be removed before the lock is released to finish them.
    const ROOM: usize = 16;

    pub fn new(set: &'a File<Set>) -> Self {
        CtlPass {
            set,
            locked: None,
            left: ArrayVec::new(),
            deferred: Deferred::new(),
        }
    }

    /// Returns whether [`add_or_delete`](Self::add_or_delete) executes `op` on `file`. The caller executes all others
    /// after a [`pause`](Self::pause).
    pub fn takes(op: Op, file: FileRef<'_>) -> bool {
        op == Op::Del || !is_added_alone(file.description())
    }

    /// Executes an ADD or DEL that [`takes`](Self::takes) allows.
    pub fn add_or_delete(
        &mut self,
        op: Op,
        file: FileRef<'_>,
        interest: &Event,
    ) -> Result<(), Errno> {
        self.make_room();
        let set = self.set;
        let locked = self.locked.get_or_insert_with(|| set.lock());
        let mut left = None;
        let deferred = &mut self.deferred;
        let result = set.ctl_locked(locked, op, file, *interest, &mut left, deferred);
        self.leave(left);
        result
    }

    /// Executes a MOD.
    #[inline(always)]
    pub fn modify(&mut self, file: FileRef<'_>, events: Events, data: u64) -> Result<(), Errno> {
        let set = self.set;
        let key = file.key();
        set.check_modify(key.0, events)?;
        self.make_room();
        let locked = self.locked.get_or_insert_with(|| set.lock());
        let item = locked.find(key).ok_or(Errno::NOENT)?;
        item.change_interest(events, data)?;
        if !item.is_idle_plain() {
            let mut left = None;
            item.poll_changed(&mut left, &mut self.deferred);
            self.leave(left);
        }
        Ok(())
    }

    /// Keeps what is left of an item until the lock is released. A claim is forwarded before the next change: that might
    /// take it back, and forwarding polls the file, which may panic.
    fn leave(&mut self, left: Option<Forgotten>) {
        let Some(left) = left else { return };
        let has_claim = left.has_claim();
        self.left.push(Left(Some(left)));
        if has_claim {
            self.let_go();
        }
    }

    /// Releases the lock if there is no room in `left`.
    #[inline]
    fn make_room(&mut self) {
        if self.left.is_full() {
            self.pause();
        }
    }

    /// Releases the lock, and does what had to wait for that.
    #[inline]
    pub fn pause(&mut self) {
        if self.locked.is_some() {
            self.let_go();
        }
    }

    #[inline(never)]
    fn let_go(&mut self) {
        self.locked = None;
        self.left.clear();
        self.deferred.run();
    }
}
