//! A queue's list of entries, and the entries.

use core::marker::PhantomPinned;
use core::ptr::{self, NonNull};

use super::rotation::{LATE, RETIRED};
use super::{Place, Reply, WaitQueue, Wake};
use crate::sync::{AtomicPtr, AtomicU32, Ordering, UnsafeCell};
use crate::tally::Tally;

pub(super) struct List {
    pub(super) head: *mut WaitEntry,
    pub(super) tail: *mut WaitEntry,
    /// Rotating wakes taken and not yet settled, without those whose waiters are late.
    pub(super) claims: u32,
    /// The baseline of turns: an entry with fewer turns counts as having had this many.
    pub(super) baseline: u32,
}

// SAFETY: the pointers lead to entries that are linked, and an entry stays valid while it is
// linked (`WaitEntry::hook`'s contract); they are followed only under the lock.
unsafe impl Send for List {}

/// The function that a wakeup calls, with the entry and the wakeup. It runs under the queue's lock
/// and takes only locks that nest inside it.
///
/// # Safety
/// Called only with an entry that is linked into the queue being woken.
pub type OnWake = unsafe fn(NonNull<WaitEntry>, &mut Wake<'_>) -> Reply;

/// One waiter's place in a queue: intrusive, embedded in whatever waits.
#[repr(C)]
pub struct WaitEntry {
    /// Neighbours; guarded by the lock of the queue that the entry is linked into.
    pub(super) node: UnsafeCell<Node>,
    /// The queue hooked into, null when none. Written by the entry's owner alone.
    pub(super) queue: AtomicPtr<WaitQueue>,
    pub(super) on_wake: OnWake,
    /// The standing of the entry in its queue: the bits below and those of `rotation.rs`, and above them the
    /// number of rotating wakes that were its own. Written under the queue's lock.
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

pub(super) struct Node {
    pub(super) next: *mut WaitEntry,
    pub(super) prev: *mut WaitEntry,
}

// SAFETY: `node` is touched only under the lock of the queue that the entry is linked into, or by
// the owner while it is linked nowhere; the rest is atomic.
unsafe impl Send for WaitEntry {}
// SAFETY: as above.
unsafe impl Sync for WaitEntry {}

impl WaitEntry {
    pub fn new(on_wake: OnWake) -> Self {
        WaitEntry {
            node: UnsafeCell::new(Node {
                next: ptr::null_mut(),
                prev: ptr::null_mut(),
            }),
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
    /// - One owner at a time calls the methods that hook, link and unhook.
    #[inline]
    pub unsafe fn hook(&self, queue: *const WaitQueue, place: Place) {
        // SAFETY: passed on to the caller.
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
        self.set_standing(EXCLUSIVE, place != Place::Shared);
    }

    /// Links this entry, which is hooked with that place, unless it is linked. Waits for the end of a wake that is about
    /// to unlink it. Runs `change` with the queue's lock held. Poll the object afterwards.
    #[inline]
    pub fn link<R>(&self, place: Place, change: impl FnOnce() -> R) -> Option<R> {
        let queue = self.queue()?;
        // SAFETY: the queue lives (`hook`'s contract).
        let queue = unsafe { queue.as_ref() };
        let mut list = queue.lock();
        let changed = change();
        if !self.stands(LINKED) {
            // SAFETY: the entry is unlinked and the list locked, and stays while it is linked (`hook`'s contract).
            unsafe {
                match place {
                    Place::ExclusiveTail => list.push_last(self),
                    Place::Shared | Place::ExclusiveHead => list.push_front(self),
                }
            }
            queue.count_linked();
            queue.tally.count(Tally::sleeps);
        }
        if place != Place::Shared {
            queue.use_up_notes();
        }
        drop(list);
        Some(changed)
    }

    /// Takes this entry, which is not exclusive, out of the list of its queue, and keeps it hooked. Runs `change` with the
    /// queue's lock held.
    pub fn unlink<R>(&self, change: impl FnOnce() -> R) -> Option<R> {
        let queue = self.queue()?;
        // SAFETY: the queue outlives the hook (`hook`'s contract).
        let queue = unsafe { queue.as_ref() };
        let mut list = queue.lock();
        let changed = change();
        if self.stands(LINKED) {
            // SAFETY: the entry is linked here and the list locked.
            unsafe { list.unlink(NonNull::from(self)) };
            queue.count_unlinked();
        }
        drop(list);
        Some(changed)
    }

    /// Runs `change` while no wake calls an entry of the queue.
    pub fn without_wakes<R>(&self, change: impl FnOnce() -> R) -> Option<R> {
        // SAFETY: the queue outlives the hook (`hook`'s contract).
        let queue = unsafe { self.queue()?.as_ref() };
        Some(queue.without_wakes(change))
    }

    /// Takes this entry out of its queue, if it is in one. No wakeup calls the entry after that.
    ///
    /// Returns the queue if the entry held a claim. The owner must then forward the claim
    /// ([`WaitQueue::pass_on`]) or have polled the object since.
    pub fn unhook(&self) -> Option<NonNull<WaitQueue>> {
        let queue = NonNull::new(self.queue.load(Ordering::Relaxed))?;
        if self.is_done() {
            self.queue.store(ptr::null_mut(), Ordering::Relaxed);
            return None;
        }
        // SAFETY: the queue outlives the hook (`hook`'s contract).
        let mut list = unsafe { queue.as_ref() }.lock();
        // SAFETY: as above.
        let claimed = unsafe { queue.as_ref() }.unclaim(&mut list, self);
        if self.stands(LINKED) {
            // SAFETY: the entry is linked here and the list locked.
            unsafe { list.unlink(NonNull::from(self)) };
            // SAFETY: as above.
            unsafe { queue.as_ref() }.count_unlinked();
        }
        self.queue.store(ptr::null_mut(), Ordering::Relaxed);
        drop(list);
        claimed.then_some(queue)
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
        self.stands(EXCLUSIVE)
    }

    /// Returns whether a wake was taken and not yet settled.
    #[inline]
    pub fn is_claimed(&self) -> bool {
        self.stands(CLAIMED)
    }

    pub(super) fn stands(&self, bit: u32) -> bool {
        self.rank.load(Ordering::Relaxed) & bit != 0
    }

    pub(super) fn set_standing(&self, bit: u32, on: bool) {
        let others = self.rank.load(Ordering::Relaxed) & !bit;
        self.rank
            .store(if on { others | bit } else { others }, Ordering::Relaxed);
    }

    /// The queue hooked into.
    pub fn queue(&self) -> Option<NonNull<WaitQueue>> {
        NonNull::new(self.queue.load(Ordering::Relaxed))
    }

    /// Removes the claim that this entry may hold. Returns the claim's queue; the owner forwards
    /// the claim.
    pub(crate) fn disclaim(&self) -> Option<NonNull<WaitQueue>> {
        let queue = self.queue()?;
        // SAFETY: the queue outlives the hook (`hook`'s contract).
        let queue_ref = unsafe { queue.as_ref() };
        let mut list = queue_ref.lock();
        let claimed = queue_ref.unclaim(&mut list, self);
        drop(list);
        claimed.then_some(queue)
    }
}

impl Drop for WaitEntry {
    /// An entry that ends while it is linked is a fault. In a model, so is a use by another thread at the same time.
    fn drop(&mut self) {
        debug_assert!(!self.stands(LINKED), "a linked entry ends");
        #[cfg(upoll_loom)]
        self.node.with_mut(|_| {});
    }
}

impl List {
    /// # Safety
    /// The entry is in no list, and this list is locked.
    pub(super) unsafe fn push_front(&mut self, entry: &WaitEntry) {
        let this = ptr::from_ref(entry).cast_mut();
        let head = self.head;
        entry.node.with_mut(|node| {
            // SAFETY: the lock is held.
            unsafe {
                *node = Node {
                    next: head,
                    prev: ptr::null_mut(),
                }
            }
        });
        if head.is_null() {
            self.tail = this;
        } else {
            // SAFETY: a linked entry is alive, and the lock is held.
            unsafe { (*head).node.with_mut(|node| (*node).prev = this) };
        }
        self.head = this;
        entry.set_standing(LINKED, true);
    }

    /// # Safety
    /// The entry is in this list, and this list is locked. If it is not exclusive, its owner may end it at once.
    pub(super) unsafe fn unlink(&mut self, entry: NonNull<WaitEntry>) {
        // SAFETY: a linked entry is alive.
        let node = unsafe { &entry.as_ref().node };
        // SAFETY: the lock is held.
        let (next, prev) = node.with(|node| unsafe { ((*node).next, (*node).prev) });
        if prev.is_null() {
            self.head = next;
        } else {
            // SAFETY: a linked entry is alive, and the lock is held.
            unsafe { (*prev).node.with_mut(|node| (*node).next = next) };
        }
        if next.is_null() {
            self.tail = prev;
        } else {
            // SAFETY: a linked entry is alive, and the lock is held.
            unsafe { (*next).node.with_mut(|node| (*node).prev = prev) };
        }
        // The last use of the entry, which `is_done` finds. No reference to the whole of it is alive.
        // SAFETY: it is alive until then.
        let rank = unsafe { &(*entry.as_ptr()).rank };
        rank.store(rank.load(Ordering::Relaxed) & !LINKED, Ordering::Release);
    }

    /// The entry after `entry`.
    ///
    /// # Safety
    /// The entry is in this list, and this list is locked.
    pub(super) unsafe fn next(&self, entry: NonNull<WaitEntry>) -> Option<NonNull<WaitEntry>> {
        // SAFETY: a linked entry is alive, and the lock is held.
        NonNull::new(unsafe { entry.as_ref().node.with(|node| (*node).next) })
    }

    /// The first entry, or with `exclusive_only` the first exclusive one.
    pub(super) fn first(&self, exclusive_only: bool) -> Option<NonNull<WaitEntry>> {
        let mut entry = NonNull::new(self.head);
        while let Some(at) = entry {
            // SAFETY: a linked entry is alive, and the caller holds the lock.
            if !exclusive_only || unsafe { at.as_ref() }.stands(EXCLUSIVE) {
                break;
            }
            // SAFETY: as above.
            entry = unsafe { self.next(at) };
        }
        entry
    }

    pub(super) fn unclaim(&mut self, entry: &WaitEntry) -> bool {
        let claimed = entry.stands(CLAIMED);
        if claimed {
            if !entry.stands(LATE) {
                self.claims -= 1;
            }
            entry.set_standing(CLAIMED | RETIRED | LATE, false);
        }
        claimed
    }

    pub(super) fn claim(&mut self, entry: &WaitEntry) {
        if !entry.stands(CLAIMED) {
            entry.set_standing(CLAIMED, true);
            self.claims += 1;
        }
    }
}
