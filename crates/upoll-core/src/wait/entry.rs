//! The entries of a queue, and their owners' side of it.

use core::marker::PhantomPinned;
use core::ptr::{self, NonNull};

use super::list::Node;
use super::locked::Locked;
use super::{Place, Reply, WaitQueue, Wake};
use crate::sync::{AtomicPtr, AtomicU32, Ordering};
use crate::tally::Tally;

/// The function that a wakeup calls, with the entry and the wakeup. It runs under the queue's lock
/// and takes only locks that nest inside it.
///
/// # Safety
/// Called only with an entry that is linked into the queue being woken.
pub type OnWake = unsafe fn(NonNull<WaitEntry>, &mut Wake<'_>) -> Reply;

/// One waiter's place in a queue: intrusive, embedded in whatever waits.
#[repr(C)]
pub struct WaitEntry {
    pub(super) node: Node,
    /// The queue hooked into, null when none. Written by the entry's owner alone.
    pub(super) queue: AtomicPtr<WaitQueue>,
    pub(super) on_wake: OnWake,
    /// The rank of the entry in its queue: the bits below, and above them those of the queue's policy. Written under the
    /// queue's lock, or by the owner while the entry is linked nowhere.
    pub(super) rank: AtomicU32,
    /// A word for the owner; it fills what would be padding.
    pub owner_word: AtomicU32,
    _pinned: PhantomPinned,
}

/// A wakeup unlinks a sleeper that it has woken.
pub(super) const LINKED: u32 = 1;
pub(super) const EXCLUSIVE: u32 = 2;
/// The entry took a wake and has not settled it.
pub(super) const CLAIMED: u32 = 4;

/// A hooked entry, while the lock of its queue is held. If the entry is linked, it is in the list of that queue.
pub(super) struct Hooked<'a> {
    pub(super) entry: &'a WaitEntry,
    pub(super) held: Locked<'a>,
}

impl WaitEntry {
    pub fn new(on_wake: OnWake) -> Self {
        WaitEntry {
            node: Node::new(),
            queue: AtomicPtr::new(ptr::null_mut()),
            on_wake,
            rank: AtomicU32::new(0),
            owner_word: AtomicU32::new(0),
            _pinned: PhantomPinned,
        }
    }

    /// Links this entry into `queue`. Poll the object afterwards.
    ///
    /// # Safety
    /// - The entry is hooked nowhere. It neither moves nor ends while it is linked: until
    ///   [`unhook`](WaitEntry::unhook) or [`unlink`](WaitEntry::unlink) has returned, or
    ///   [`is_done`](WaitEntry::is_done) returns true. It may be leaked.
    /// - The queue lives when its owner calls a method of a hooked entry. It ends with entries linked only if all of
    ///   these are leaked: then nobody follows their links.
    /// - Only the owner, one thread at a time, calls the methods that take the queue's lock: all that hook, link, unhook,
    ///   settle or ask for a turn.
    #[inline]
    pub unsafe fn hook(&self, queue: *const WaitQueue, place: Place) {
        // SAFETY: the contract of `hook_unlinked` is this one's.
        unsafe { self.hook_unlinked(queue, place) };
        self.link(place, || ());
    }

    /// Hooks this entry as [`hook`](Self::hook) does, but does not link it yet.
    ///
    /// # Safety
    /// As [`hook`](Self::hook).
    #[inline]
    pub unsafe fn hook_unlinked(&self, queue: *const WaitQueue, place: Place) {
        self.queue.store(queue.cast_mut(), Ordering::Relaxed);
        self.set_rank_bit(EXCLUSIVE, place != Place::Shared);
    }

    /// Locks the queue that this entry is hooked into.
    #[inline]
    pub(super) fn lock(&self) -> Option<Hooked<'_>> {
        // SAFETY: the queue lives when the owner of a hooked entry calls a method of it (`hook`'s contract).
        let queue = unsafe { self.queue.load(Ordering::Relaxed).as_ref() }?;
        Some(Hooked {
            entry: self,
            held: queue.lock(),
        })
    }

    /// Links this entry, which is hooked with that place, unless it is linked. Waits for the end of a wake that is about
    /// to unlink it. Runs `change` with the queue's lock held. Poll the object afterwards.
    #[inline]
    pub fn link<R>(&self, place: Place, change: impl FnOnce() -> R) -> Option<R> {
        let mut hooked = self.lock()?;
        let changed = change();
        if !self.has_rank_bit(LINKED) {
            hooked.link(place);
        }
        if place != Place::Shared {
            hooked.held.queue.clear_recheck();
        }
        Some(changed)
    }

    /// Takes this entry, which is not exclusive, out of the list of its queue, and keeps it hooked. Runs `change` with the
    /// queue's lock held.
    pub fn unlink<R>(&self, change: impl FnOnce() -> R) -> Option<R> {
        let mut hooked = self.lock()?;
        let changed = change();
        hooked.unlink();
        Some(changed)
    }

    /// Runs `change` while no wake calls an entry of the queue.
    pub fn without_wakes<R>(&self, change: impl FnOnce() -> R) -> Option<R> {
        let _hooked = self.lock()?;
        Some(change())
    }

    /// Takes this entry out of its queue, if it is in one. No wakeup calls the entry after that.
    ///
    /// Returns the queue if the entry held a claim. The owner must then forward the claim
    /// ([`WaitQueue::forward_in_order`]) or have polled the object since.
    pub fn unhook(&self) -> Option<NonNull<WaitQueue>> {
        if self.is_done() {
            self.queue.store(ptr::null_mut(), Ordering::Relaxed);
            return None;
        }
        let mut hooked = self.lock()?;
        let claimed = hooked.unclaim();
        hooked.unlink();
        self.queue.store(ptr::null_mut(), Ordering::Relaxed);
        claimed.then_some(NonNull::from(hooked.held.queue))
    }

    /// Removes the claim that this entry may hold. Returns the claim's queue; the owner forwards
    /// the claim.
    pub(crate) fn disclaim(&self) -> Option<NonNull<WaitQueue>> {
        let mut hooked = self.lock()?;
        let claimed = hooked.unclaim();
        claimed.then_some(NonNull::from(hooked.held.queue))
    }

    /// Returns whether this entry is not exclusive, and linked nowhere: it never was, its owner or a wake has unlinked
    /// it. The wake does not use it any more, as it unlinks an entry by its last access.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.rank.load(Ordering::Acquire) & (LINKED | EXCLUSIVE) == 0
    }

    /// Waits until a wake that is under way in this entry's queue is over.
    pub(crate) fn outlast_wake(&self) {
        self.without_wakes(|| ());
    }

    /// Returns whether the entry is hooked with an exclusive place.
    #[inline]
    pub fn is_exclusive(&self) -> bool {
        self.has_rank_bit(EXCLUSIVE)
    }

    /// Returns whether a wake was taken and not yet settled.
    #[inline]
    pub fn is_claimed(&self) -> bool {
        self.has_rank_bit(CLAIMED)
    }

    pub(super) fn has_rank_bit(&self, bit: u32) -> bool {
        self.rank.load(Ordering::Relaxed) & bit != 0
    }

    pub(super) fn set_rank_bit(&self, bit: u32, on: bool) {
        let others = self.rank.load(Ordering::Relaxed) & !bit;
        self.rank
            .store(if on { others | bit } else { others }, Ordering::Relaxed);
    }

    /// The queue hooked into.
    pub fn queue(&self) -> Option<NonNull<WaitQueue>> {
        NonNull::new(self.queue.load(Ordering::Relaxed))
    }
}

impl Drop for WaitEntry {
    /// An entry that ends while it is linked is a fault. In a model, so is a use by another thread at the same time.
    fn drop(&mut self) {
        debug_assert!(!self.has_rank_bit(LINKED), "a linked entry ends");
        #[cfg(upoll_loom)]
        self.node.assert_unused();
    }
}

impl Hooked<'_> {
    /// Links the entry, which is not linked, and counts it.
    #[inline]
    fn link(&mut self, place: Place) {
        self.push(place);
        self.held.queue.count_linked();
        self.held.queue.tally.count(Tally::sleeps);
    }

    /// Links the entry, which is not linked.
    #[inline]
    pub(super) fn push(&mut self, place: Place) {
        let (entry, inside) = (self.entry, &mut *self.held.inside);
        if place == Place::ExclusiveTail {
            inside.turns.begins_last(entry, &inside.entries);
        }
        // SAFETY: it is linked nowhere: a hooked entry is linked into this list, if into any. It stays while it is
        // linked (`hook`'s contract).
        unsafe {
            match place {
                Place::ExclusiveTail => inside.entries.push_back(entry),
                Place::Shared | Place::ExclusiveHead => inside.entries.push_front(entry),
            }
        }
    }

    /// Unlinks the entry, if it is linked.
    #[inline]
    pub(super) fn unlink(&mut self) {
        // SAFETY: a hooked entry is linked into this list, if into any.
        if let Some(linked) = unsafe { self.held.inside.entries.linked(self.entry) } {
            linked.unlink();
            self.held.queue.count_unlinked();
        }
    }

    /// The entry's claim, if it has one, is over.
    #[inline]
    pub(super) fn unclaim(&mut self) -> bool {
        let entry = self.entry;
        let claimed = entry.has_rank_bit(CLAIMED);
        if claimed {
            let bits = self.held.inside.turns.unclaimed(entry);
            entry.set_rank_bit(CLAIMED | bits, false);
            if !entry.has_rank_bit(LINKED) {
                self.held.queue.count_unlinked();
            }
        }
        claimed
    }
}
