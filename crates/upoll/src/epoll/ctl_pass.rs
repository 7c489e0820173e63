//! Several changes to user-level members of a set under one hold of the set's lock.

use arrayvec::ArrayVec;

use super::ctl::{Forgotten, is_added_alone};
use super::interest::{Interests, Item};
use super::{Epoll, Op, Set};
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::file::{FileRef, Key};
use crate::sync::MutexGuard;
use crate::wait::Deferred;

/// Changes under one hold of the set's lock. The fields end in their order: first the
/// lock, then what was put off until it is free.
pub(crate) struct CtlPass<'a> {
    epoll: &'a Epoll,
    inner: Option<MutexGuard<'a, Interests>>,
    /// Items that MODs changed, in their order: neighbours share the fence between the change and
    /// the look. All are registered, and all before `looked_at` have been looked at.
    changed: ArrayVec<*const Item, { CtlPass::CHANGES }>,
    looked_at: usize,
    deferred: Deferred,
    /// The pass releases the lock before the next change if there are [`ROOM`](Self::ROOM) of them. Until then each item
    /// that was changed may add one.
    left: ArrayVec<Left, { CtlPass::ROOM + CtlPass::CHANGES }>,
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

impl Drop for CtlPass<'_> {
    fn drop(&mut self) {
        // Also if a foreign `poll` panics: the other items are looked at all the same.
        self.poll_all_changed();
    }
}

impl<'a> CtlPass<'a> {
    /// The number of items that may be changed before they are polled. Each change searches those before it.
    const CHANGES: usize = 16;
    /// The number of items that may be removed before the lock is released to finish them.
    const ROOM: usize = 16;

    pub(crate) fn new(epoll: &'a Epoll) -> Self {
        CtlPass {
            epoll,
            inner: None,
            changed: ArrayVec::new(),
            looked_at: 0,
            deferred: Deferred::new(),
            left: ArrayVec::new(),
        }
    }

    pub(crate) fn epoll(&self) -> &'a Epoll {
        self.epoll
    }

    /// Returns whether [`add_or_delete`](Self::add_or_delete) executes `op` on `file`. The caller executes all others
    /// after a [`pause`](Self::pause).
    pub(crate) fn takes(op: Op, file: FileRef<'_>) -> bool {
        op == Op::Del || !is_added_alone(file.description())
    }

    /// Executes an ADD or DEL that [`takes`](Self::takes) allows.
    pub(crate) fn add_or_delete(
        &mut self,
        op: Op,
        file: FileRef<'_>,
        interest: &Event,
    ) -> Result<(), Errno> {
        self.poll_all_changed();
        self.make_room();
        let epoll = self.epoll;
        let inner = self.inner.get_or_insert_with(|| epoll.set().lock());
        let mut left = None;
        let deferred = &mut self.deferred;
        let result = epoll.ctl_locked(inner, op, file, *interest, &mut left, deferred);
        self.leave(left);
        result
    }

    /// Executes a MOD.
    #[inline(always)]
    pub(crate) fn modify(
        &mut self,
        file: FileRef<'_>,
        events: Events,
        data: u64,
    ) -> Result<(), Errno> {
        let key = file.key();
        self.epoll.check_modify(key.0, events)?;
        let mut item = self.find(key)?;
        // A second MOD of an item comes after the look for the first: what was ready once keeps its place in the ready list.
        if self.changed.is_full() || self.changed.contains(&item) {
            self.poll_all_changed();
            self.make_room();
            item = self.find(key)?;
        }
        let publish = Item::set_interest_unfenced;
        // SAFETY: it was found in the table, and the lock has been held since.
        unsafe { Set::change_interest(item, events, data, publish) }?;
        self.changed.push(item);
        Ok(())
    }

    /// Returns the registered item, and takes the set's lock for the pass.
    #[inline(always)]
    fn find(&mut self, key: Key) -> Result<*const Item, Errno> {
        let set = self.epoll.set();
        let inner = self.inner.get_or_insert_with(|| set.lock());
        inner.find(key).ok_or(Errno::NOENT)
    }

    /// The second half of the MODs so far.
    fn poll_all_changed(&mut self) {
        let Some(inner) = &mut self.inner else { return };
        let changed = self.changed.as_slice();
        let [.., last] = changed else { return };
        if self.looked_at == 0 {
            // SAFETY: as below.
            unsafe { (**last).fence_interest() };
        }
        while let Some(&item) = changed.get(self.looked_at) {
            self.looked_at += 1;
            // SAFETY: it was found in the table, the lock has been held since, and nothing has been
            // removed since: whatever removes items looks at the changed ones first.
            unsafe {
                if Set::is_idle_plain(&*item) {
                    continue;
                }
                let mut left = None;
                (*item).interest_was_set();
                let set = self.epoll.set();
                set.poll_changed(inner, item, &mut left, &mut self.deferred);
                if left.is_some() {
                    self.left.push(Left(left));
                }
            }
        }
        self.changed.clear();
        self.looked_at = 0;
    }

    fn leave(&mut self, left: Option<Forgotten>) {
        if left.is_some() {
            self.left.push(Left(left));
        }
    }

    /// Releases the lock if too many removed items wait for that.
    fn make_room(&mut self) {
        if self.left.len() >= Self::ROOM {
            self.pause();
        }
    }

    /// Releases the lock, and does what had to wait for that.
    #[inline]
    pub(crate) fn pause(&mut self) {
        if self.inner.is_some() {
            self.let_go();
        }
    }

    #[inline(never)]
    fn let_go(&mut self) {
        self.poll_all_changed();
        self.inner = None;
        self.deferred.run();
        self.left.clear();
    }
}
