//! A queue's list of entries, and the entries: who stands where, and how many turns they had.

use core::marker::PhantomPinned;
use core::ptr::{self, NonNull};

use super::{Deferred, Notes, Place, Reply, WaitQueue, Wake};
use crate::sync::{AtomicPtr, AtomicU32, Ordering, UnsafeCell, fence_after_rmw};

pub(super) struct List {
    pub(super) head: *mut WaitEntry,
    pub(super) tail: *mut WaitEntry,
    /// Rotating wakes taken and not yet settled, without those whose waiters are late.
    pub(super) claims: u32,
    /// Turns: who had fewer than this counts as having had this many.
    pub(super) floor: u32,
}

// SAFETY: the pointers lead to entries that are linked, and an entry stays valid while it is
// linked (`WaitEntry::hook`'s contract); they are followed only under the lock.
unsafe impl Send for List {}

/// What a wake calls: the entry, and the wake. Runs under the queue's lock and takes only locks
/// that nest inside it.
///
/// # Safety
/// Called only with an entry that is linked into the queue being woken.
pub(crate) type OnWake = unsafe fn(NonNull<WaitEntry>, &mut Wake<'_>) -> Reply;

/// One waiter's place in a queue: intrusive, embedded in whatever waits.
#[repr(C)]
pub(crate) struct WaitEntry {
    /// Neighbours; guarded by the lock of the queue that the entry is linked into.
    node: UnsafeCell<Node>,
    /// The queue hooked into, null when none. Written by the entry's owner alone.
    pub(super) queue: AtomicPtr<WaitQueue>,
    pub(super) on_wake: OnWake,
    /// A word for the owner; it fills what would be padding.
    pub(crate) owner_word: AtomicU32,
    /// How the entry stands in its queue: the bits below, and above them how many rotating wakes
    /// were its own. Written under the queue's lock.
    pub(super) standing: AtomicU32,
    _pinned: PhantomPinned,
}

/// A wake unlinks a sleeper that it roused.
pub(super) const LINKED: u32 = 1;
pub(super) const EXCLUSIVE: u32 = 2;
/// The entry took a wake and has not settled it.
pub(super) const CLAIMED: u32 = 4;
/// The claim came from a rotating wake, which counted as a turn.
pub(super) const RETIRED: u32 = 8;
/// The entry has a claim and has not come in time: no other waiter waits for it, and no wake is offered
/// to it.
pub(super) const LATE: u32 = 16;
/// One turn. Their number wraps around.
pub(super) const TURN: u32 = 32;

/// By how many turns one entry may be ahead of another; what is more than that is forgotten.
const REMEMBERED: u32 = 1024 * TURN;

struct Node {
    next: *mut WaitEntry,
    prev: *mut WaitEntry,
}

// SAFETY: `node` is touched only under the lock of the queue that the entry is linked into, or by
// the owner while it is linked nowhere; the rest is atomic.
unsafe impl Send for WaitEntry {}
// SAFETY: as above.
unsafe impl Sync for WaitEntry {}

impl WaitEntry {
    pub(crate) fn new(on_wake: OnWake) -> Self {
        WaitEntry {
            node: UnsafeCell::new(Node {
                next: ptr::null_mut(),
                prev: ptr::null_mut(),
            }),
            queue: AtomicPtr::new(ptr::null_mut()),
            on_wake,
            owner_word: AtomicU32::new(0),
            standing: AtomicU32::new(0),
            _pinned: PhantomPinned,
        }
    }

    /// Links this entry into `queue`. Look at the object's state afterwards.
    ///
    /// # Safety
    /// The entry is hooked nowhere. Neither entry nor queue moves or ends before
    /// [`WaitEntry::unhook`] has returned; hook and unhook are called by one owner at a time.
    #[inline]
    pub(crate) unsafe fn hook(&self, queue: *const WaitQueue, place: Place) {
        self.queue.store(queue.cast_mut(), Ordering::Relaxed);
        // SAFETY: the caller keeps the queue alive.
        let queue = unsafe { &*queue };
        let mut list = queue.lock();
        self.set_standing(EXCLUSIVE, place != Place::Shared);
        // SAFETY: the entry is unlinked and the list locked.
        unsafe {
            match place {
                Place::ExclusiveTail => list.push_last(self),
                Place::Shared | Place::ExclusiveHead => list.push_front(self),
            }
        }
        queue.linked.fetch_add(1, Ordering::SeqCst);
        queue.use_up_notes();
        drop(list);
        // The waiter's half of the named pair: an object's poll may read in any order it likes.
        fence_after_rmw();
    }

    /// Takes this entry out of its queue, if it is in one. After it returned no wake calls it.
    ///
    /// Says whether the entry held a claim: its owner must pass that on
    /// ([`WaitQueue::pass_on`]) or have looked at the object since.
    pub(crate) fn unhook(&self) -> Option<NonNull<WaitQueue>> {
        let queue = NonNull::new(self.queue.load(Ordering::Relaxed))?;
        // SAFETY: the queue outlives the hook (`hook`'s contract).
        let mut list = unsafe { queue.as_ref() }.lock();
        // SAFETY: as above.
        let claimed = unsafe { queue.as_ref() }.unclaim(&mut list, self);
        if self.stands(LINKED) {
            // SAFETY: the entry is linked here and the list locked.
            unsafe { list.unlink(self) };
            // SAFETY: as above.
            unsafe { queue.as_ref() }.count_unlinked();
        }
        self.queue.store(ptr::null_mut(), Ordering::Relaxed);
        drop(list);
        claimed.then_some(queue)
    }

    /// Waits until a wake that is under way in this entry's queue is over.
    pub(crate) fn outlast_wake(&self) {
        if let Some(queue) = self.queue() {
            // SAFETY: the queue outlives the hook (`hook`'s contract).
            drop(unsafe { queue.as_ref() }.lock());
        }
    }

    /// The queue has an event more than the one that this entry's claim is for: settling that hands
    /// it on.
    pub(crate) fn owe_another(&self) {
        if let Some(queue) = self.queue() {
            // SAFETY: the queue outlives the hook (`hook`'s contract).
            unsafe { queue.as_ref() }
                .owed
                .store(true, Ordering::Relaxed);
        }
    }

    /// Whether a wake was taken and not yet settled.
    #[inline]
    pub(crate) fn is_claimed(&self) -> bool {
        self.stands(CLAIMED)
    }

    pub(super) fn stands(&self, bit: u32) -> bool {
        self.standing.load(Ordering::Relaxed) & bit != 0
    }

    pub(super) fn set_standing(&self, bit: u32, on: bool) {
        let others = self.standing.load(Ordering::Relaxed) & !bit;
        self.standing
            .store(if on { others | bit } else { others }, Ordering::Relaxed);
    }

    /// The queue hooked into.
    pub(crate) fn queue(&self) -> Option<NonNull<WaitQueue>> {
        NonNull::new(self.queue.load(Ordering::Relaxed))
    }

    /// Gives up the claim that this entry may hold; says whose it was. The owner passes it on.
    pub(crate) fn disclaim(&self) -> Option<NonNull<WaitQueue>> {
        let queue = self.queue()?;
        // SAFETY: the queue outlives the hook (`hook`'s contract).
        let queue_ref = unsafe { queue.as_ref() };
        let mut list = queue_ref.lock();
        let claimed = queue_ref.unclaim(&mut list, self);
        drop(list);
        claimed.then_some(queue)
    }

    /// The owner has looked at the object: its claim is used up. If the queue owes a wake that
    /// found nobody, the next waiter is offered one now; if none waits, whoever comes next will look.
    ///
    /// `still_ready` runs under the queue's lock: a wake that came after the owner's look counts,
    /// or what that wake left owing would be forgotten.
    ///
    /// # Safety
    /// The entry is hooked, or was hooked and unlinked by a wake, and its queue is alive.
    pub(crate) unsafe fn settle(
        &self,
        still_ready: impl FnOnce() -> bool,
        uses: Notes,
        deferred: &mut Deferred,
    ) {
        let Some(queue) = self.queue() else { return };
        // SAFETY: the caller vouches for the queue.
        let queue = unsafe { queue.as_ref() };
        let mut list = queue.lock();
        let retired = self.stands(RETIRED);
        let claimed = queue.unclaim(&mut list, self);
        if !still_ready() {
            queue.owed.store(false, Ordering::Relaxed);
            if claimed && retired && self.stands(LINKED) {
                // Chosen for nothing: that was no turn, so the next one is its again.
                // SAFETY: the entry is linked here and the list locked.
                unsafe {
                    list.unlink(self);
                    let lead = list.lead(self).saturating_sub(TURN);
                    list.push_in_turn(self, lead, true);
                }
            }
        } else if queue.owed.load(Ordering::Relaxed) {
            queue.hand_on(&mut list, self, uses, deferred);
        }
        drop(list);
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

    /// By how many turns the entry is ahead of those that count as having had the fewest. One that
    /// was away for long is not behind them.
    pub(super) fn lead(&self, entry: &WaitEntry) -> u32 {
        let turns = entry.standing.load(Ordering::Relaxed) & !(TURN - 1);
        let lead = turns.wrapping_sub(self.floor);
        if lead > REMEMBERED { 0 } else { lead }
    }

    /// Links an exclusive entry that is ahead by `lead` behind those ahead by as much or less, or
    /// before those ahead by as much or more.
    ///
    /// # Safety
    /// The entry is in no list, and this list is locked.
    pub(super) unsafe fn push_in_turn(
        &mut self,
        entry: &WaitEntry,
        lead: u32,
        before_equals: bool,
    ) {
        self.set_lead(entry, lead);
        let goes_before = |other: &WaitEntry| {
            let theirs = self.lead(other);
            other.stands(EXCLUSIVE) && (theirs > lead || before_equals && theirs == lead)
        };
        let (mut prev, mut next) = (self.tail, ptr::null_mut());
        while let Some(at) = NonNull::new(prev) {
            // SAFETY: a linked entry is alive, and the lock is held.
            let at = unsafe { at.as_ref() };
            if !goes_before(at) {
                break;
            }
            next = prev;
            // SAFETY: as above.
            prev = at.node.with(|node| unsafe { (*node).prev });
        }
        let this = ptr::from_ref(entry).cast_mut();
        // SAFETY: as above; the entry is unlinked.
        unsafe {
            entry.node.with_mut(|node| *node = Node { next, prev });
            match NonNull::new(prev) {
                None => self.head = this,
                Some(prev) => prev.as_ref().node.with_mut(|node| (*node).next = this),
            }
            match NonNull::new(next) {
                None => self.tail = this,
                Some(next) => next.as_ref().node.with_mut(|node| (*node).prev = this),
            }
        }
        entry.set_standing(LINKED, true);
    }

    /// Links an exclusive entry that is new here behind all others.
    ///
    /// # Safety
    /// As [`push_in_turn`](Self::push_in_turn).
    pub(super) unsafe fn push_last(&mut self, entry: &WaitEntry) {
        // SAFETY: a linked entry is alive, and the lock is held.
        let last = NonNull::new(self.tail).map(|last| unsafe { last.as_ref() });
        let lead = last.map_or(0, |last| self.lead(last));
        // SAFETY: passed on to the caller.
        unsafe { self.push_in_turn(entry, lead, false) };
    }

    /// Links an exclusive entry that is new here before all others.
    ///
    /// # Safety
    /// As [`push_in_turn`](Self::push_in_turn).
    pub(super) unsafe fn push_first(&mut self, entry: &WaitEntry) {
        // SAFETY: a linked entry is alive, and the lock is held.
        let first = self.first(true).map(|first| unsafe { first.as_ref() });
        let lead = first.map_or(0, |first| self.lead(first));
        // SAFETY: passed on to the caller.
        unsafe { self.push_in_turn(entry, lead, true) };
    }

    /// The entry has one turn more: it stands behind all that have had as many or fewer.
    ///
    /// # Safety
    /// The entry is alive, and this list is locked.
    pub(super) unsafe fn count_turn(&mut self, entry: &WaitEntry) {
        let mut lead = self.lead(entry) + TURN;
        if lead > REMEMBERED {
            self.floor = self.floor.wrapping_add(TURN);
            lead -= TURN;
        }
        self.set_lead(entry, lead);
        if entry.stands(LINKED) {
            // SAFETY: the entry is linked here and the list locked.
            unsafe {
                self.unlink(entry);
                self.push_in_turn(entry, lead, false);
            }
        }
    }

    pub(super) fn set_lead(&self, entry: &WaitEntry, lead: u32) {
        let bits = entry.standing.load(Ordering::Relaxed) & (TURN - 1);
        let turns = self.floor.wrapping_add(lead);
        entry.standing.store(turns | bits, Ordering::Relaxed);
    }

    /// # Safety
    /// The entry is in this list, and this list is locked.
    pub(super) unsafe fn unlink(&mut self, entry: &WaitEntry) {
        // SAFETY: the lock is held.
        let (next, prev) = entry
            .node
            .with(|node| unsafe { ((*node).next, (*node).prev) });
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
        entry.set_standing(LINKED, false);
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

    /// The entry has not come in time, if it has a claim.
    pub(super) fn call_late(&mut self, entry: &WaitEntry) {
        if entry.stands(CLAIMED) && !entry.stands(LATE) {
            entry.set_standing(LATE, true);
            self.claims -= 1;
        }
    }

    pub(super) fn claim(&mut self, entry: &WaitEntry) {
        if !entry.stands(CLAIMED) {
            entry.set_standing(CLAIMED, true);
            self.claims += 1;
        }
    }
}
