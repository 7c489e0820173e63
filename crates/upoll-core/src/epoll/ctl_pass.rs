//! Several changes to user-level members of a set under one hold of the set's lock.

use arrayvec::ArrayVec;

use super::ctl::{Forgotten, is_added_alone};
use super::interest::Interests;
use super::{Op, Set};
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::file::{File, FileRef};
use crate::sync::MutexGuard;
use crate::wait::Deferred;

/// Changes under one hold of the set's lock. The fields end in their order: first the lock, then what is left of items, then
/// what was put off until the lock is free. Foreign code of both may panic, and only [`Deferred`] ends while another panic
/// goes on.
pub struct CtlPass<'a> {
    set: &'a File<Set>,
    inner: Option<MutexGuard<'a, Interests>>,
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
            inner: None,
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
        let inner = self.inner.get_or_insert_with(|| set.lock());
        let mut left = None;
        let deferred = &mut self.deferred;
        let result = set.ctl_locked(inner, op, file, *interest, &mut left, deferred);
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
        let inner = self.inner.get_or_insert_with(|| set.lock());
        let item = Set::change_interest(inner, key, events, data)?;
        // SAFETY: found in the table, with the lock held.
        if !unsafe { Set::is_idle_plain(&*item) } {
            let mut left = None;
            // SAFETY: as above.
            unsafe { set.poll_changed(inner, item, &mut left, &mut self.deferred) };
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
        if self.inner.is_some() {
            self.let_go();
        }
    }

    #[inline(never)]
    fn let_go(&mut self) {
        self.inner = None;
        self.left.clear();
        self.deferred.run();
    }
}
