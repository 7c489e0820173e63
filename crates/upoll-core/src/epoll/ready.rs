//! The ready list and the arrivals (Linux's overflow list, here always in use).
//!
//! A wakeup may come at any time, also while a scan holds the set's lock. So wakeups never touch
//! the ready list: they push the item onto a lock-free stack, the *arrivals*, or put it into a word of its own.
//! The next holder of the set's lock moves that item and the arrivals, oldest first, to the tail of the ready list,
//! which that lock guards.
//!
//! # `first` and `pending`
//! Two words are all that a waiter needs to check. `pending` holds the newest arrival's address, and in bit
//! 0 ([`TAG`]) whether the ready list is non-empty or a scan is under way. The bit stays set while a scan has the list
//! apart, so that another thread cannot mistake a list in flight for an empty one.
//!
//! `first` is for the item that is queued while nothing else is: it is in no list then, and `QUEUED` is not set. So a wakeup
//! queues it, and a scan takes it, with one exchange each. While such a scan is under way `first` is [`SCANNED`]. Other
//! scans move the item to the ready list first, before the arrivals. Nothing is ready if both words are null.
//!
//! A wakeup looks at `first` and `pending`, then puts its item there. Meanwhile another queue of the same object may have
//! woken the item, or ADD or MOD queued it, so that it is in a list as well. Then it is queued once: a scan that finds
//! `QUEUED` set only clears `first`.
//!
//! # `QUEUED`
//! An item is in at most one of the two lists; `QUEUED` is set while it is in one. A wakeup sets it
//! and pushes only if it was clear. A scan that takes an item off clears it *before* it polls the
//! file for the last time. This is the second named pair: the object publishes, then the wakeup
//! checks `QUEUED` and `first`; the scan clears `QUEUED`, or exchanges `first`, then polls the object. At least one of the
//! two sees the other. A level-triggered item that is still ready keeps its bit: it never left the list.

use core::mem;
use core::ptr::{self, NonNull};

use super::Set;
use super::interest::{ExtraEntry, Interests, Item, state};
use crate::events::Events;
use crate::file::PollTable;
use crate::sync::{Ordering, Rule, broken, fence_after_rmw};
use crate::wait::{Deferred, Mode, Reply, WaitEntry, Wake};

/// Bit 0 of `pending`: the ready list is non-empty, or a scan is under way.
const TAG: usize = 1;

fn untagged(pending: *mut Item) -> *mut Item {
    pending.map_addr(|addr| addr & !TAG)
}

fn just_tag() -> *mut Item {
    ptr::without_provenance_mut(TAG)
}

/// In `first`: a scan of the item that was there is under way. No item has this address.
const SCANNED: *mut Item = ptr::without_provenance_mut(TAG);

/// A doubly linked list of items, guarded by the set's lock.
pub(crate) struct ReadyList {
    head: *mut Item,
    tail: *mut Item,
}

impl ReadyList {
    pub const fn new() -> Self {
        ReadyList {
            head: ptr::null_mut(),
            tail: ptr::null_mut(),
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.head.is_null()
    }

    #[inline]
    pub(super) fn front(&self) -> Option<NonNull<Item>> {
        NonNull::new(self.head)
    }

    /// # Safety
    /// The item is registered in the set whose lock is held, and on no list.
    #[inline]
    pub(super) unsafe fn push_back(&mut self, item: NonNull<Item>) {
        // SAFETY: the set's lock guards `prev`, and `next` of items on the list.
        unsafe {
            item.as_ref().next.store(ptr::null_mut(), Ordering::Relaxed);
            let tail = self.tail;
            item.as_ref().prev.with_mut(|prev| *prev = tail);
            match NonNull::new(tail) {
                None => self.head = item.as_ptr(),
                Some(tail) => tail.as_ref().next.store(item.as_ptr(), Ordering::Relaxed),
            }
        }
        self.tail = item.as_ptr();
    }

    /// Puts an item before `next`, which is on this list; at the end if that is null.
    ///
    /// # Safety
    /// As [`push_back`](Self::push_back).
    pub(super) unsafe fn insert_before(&mut self, next: *mut Item, item: NonNull<Item>) {
        // SAFETY: the set's lock guards `prev`, and `next` of items on the list.
        unsafe {
            let Some(next) = NonNull::new(next) else {
                return self.push_back(item);
            };
            let prev = next
                .as_ref()
                .prev
                .with_mut(|prev| mem::replace(&mut *prev, item.as_ptr()));
            item.as_ref().next.store(next.as_ptr(), Ordering::Relaxed);
            item.as_ref().prev.with_mut(|at| *at = prev);
            match NonNull::new(prev) {
                None => self.head = item.as_ptr(),
                Some(prev) => prev.as_ref().next.store(item.as_ptr(), Ordering::Relaxed),
            }
        }
    }

    /// # Safety
    /// The item is on this list, and its set's lock is held.
    #[inline]
    pub(super) unsafe fn unlink(&mut self, item: NonNull<Item>) {
        // SAFETY: the set's lock guards the links of items on the list.
        unsafe {
            let next = item.as_ref().next.load(Ordering::Relaxed);
            let prev = item
                .as_ref()
                .prev
                .with_mut(|prev| mem::replace(&mut *prev, ptr::null_mut()));
            // Only an item on a list has a `prev`.
            let is_here = !prev.is_null() || self.head == item.as_ptr();
            if cfg!(any(debug_assertions, upoll_loom)) {
                assert!(is_here, "an item is unlinked that is not on the ready list");
            }
            match NonNull::new(prev) {
                None => self.head = next,
                Some(prev) => prev.as_ref().next.store(next, Ordering::Relaxed),
            }
            match NonNull::new(next) {
                None => self.tail = prev,
                Some(next) => next.as_ref().prev.with_mut(|at| *at = prev),
            }
        }
    }

    /// Moves all of `other` behind this list.
    ///
    /// # Safety
    /// Both hold items of the set whose lock is held.
    unsafe fn append(&mut self, other: &mut ReadyList) {
        let Some(head) = other.front() else { return };
        match NonNull::new(self.tail) {
            None => self.head = head.as_ptr(),
            Some(tail) => {
                // SAFETY: the set's lock guards the links of items on the lists.
                unsafe {
                    tail.as_ref().next.store(head.as_ptr(), Ordering::Relaxed);
                    head.as_ref().prev.with_mut(|prev| *prev = tail.as_ptr());
                }
            }
        }
        self.tail = other.tail;
        *other = ReadyList::new();
    }
}

impl Set {
    /// Returns whether anything may be ready, or a scan is under way. Pairs with a push. A scan sets `pending` before it moves an item
    /// from `first`, so that is read first.
    #[inline]
    pub fn is_pending(&self) -> bool {
        !self.first.load(Ordering::SeqCst).is_null()
            || !self.pending.load(Ordering::SeqCst).is_null()
    }

    /// [`queue`](Self::queue) for a wakeup of an item that is not exclusive, and does not watch a rotating set.
    ///
    /// # Safety
    /// As [`queue`](Self::queue).
    #[inline]
    pub(super) unsafe fn queue_plain(&self, item: NonNull<Item>) {
        // SAFETY: a registered item is alive.
        let is_in_list = unsafe { item.as_ref() }.state() & state::QUEUED != 0;
        if is_in_list {
            return;
        }
        let mut first = self.first.load(Ordering::SeqCst);
        if first.is_null() && self.pending.load(Ordering::Relaxed).is_null() {
            let put = self.first.compare_exchange(
                ptr::null_mut(),
                item.as_ptr(),
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
            match put {
                Ok(_) => return,
                Err(other) => first = other,
            }
        }
        if first != item.as_ptr() {
            // SAFETY: passed on to the caller.
            unsafe { self.queue(item) };
        }
    }

    /// Queues the item unless it is queued already. Returns whether it was not.
    ///
    /// # Safety
    /// The item is registered in this set, or is being registered by the holder of its lock.
    #[inline]
    pub unsafe fn queue(&self, item: NonNull<Item>) -> bool {
        // SAFETY: a registered item is alive.
        let node = unsafe { item.as_ref() };
        // The load spares the bus the write that is not needed. If it sees the bit, the scan that
        // will clear it also sees what this wake has published.
        if node.state() & state::QUEUED != 0
            || node
                .entry
                .owner_word
                .fetch_or(state::QUEUED, Ordering::SeqCst)
                & state::QUEUED
                != 0
        {
            return false;
        }
        let mut pending = self.pending.load(Ordering::Relaxed);
        loop {
            node.next.store(untagged(pending), Ordering::Relaxed);
            let new = item.as_ptr().map_addr(|addr| addr | (pending.addr() & TAG));
            match self.pending.compare_exchange_weak(
                pending,
                new,
                Ordering::SeqCst,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => pending = now,
            }
        }
    }

    /// [`queue`](Self::queue) for the holder of the set's lock.
    ///
    /// `pending` is non-zero before `QUEUED` is set. Otherwise a wake that finds the bit set would go
    /// away, and its thread, looking for what it has just made ready, find nothing; so it waits for
    /// the lock.
    ///
    /// # Safety
    /// The item is registered in this set, whose lock the caller holds; `ready` is its ready list.
    pub(super) unsafe fn queue_locked(&self, ready: &mut ReadyList, item: NonNull<Item>) -> bool {
        let _ = self.pending.compare_exchange(
            ptr::null_mut(),
            just_tag(),
            Ordering::SeqCst,
            Ordering::Relaxed,
        );
        // SAFETY: passed on to the caller.
        unsafe {
            self.begin_scan(ready);
            let queued = self.queue(item);
            self.end_scan(ready, &mut ReadyList::new());
            queued
        }
    }

    /// Starts a scan: moves the arrivals to the ready list, and marks it as in use in `pending`.
    /// Returns false if nothing is ready.
    ///
    /// # Safety
    /// The caller holds this set's lock, and `ready` is its ready list.
    #[inline]
    pub(super) unsafe fn begin_scan(&self, ready: &mut ReadyList) -> bool {
        let first = self.first.load(Ordering::Acquire);
        let pending = self.pending.load(Ordering::Acquire);
        if untagged(pending).is_null() && first.is_null() {
            return !pending.is_null();
        }
        // SAFETY: passed on to the caller.
        unsafe { self.enlist(ready, first) };
        true
    }

    /// Moves the item in `first` to the ready list, and then the arrivals. `pending` shows before that a scan is under way.
    ///
    /// # Safety
    /// As [`begin_scan`](Self::begin_scan); `first` was read with the lock held.
    #[inline(never)]
    unsafe fn enlist(&self, ready: &mut ReadyList, first: *mut Item) {
        let arrivals = untagged(self.pending.swap(just_tag(), Ordering::SeqCst));
        // An item there stays. If another one has come since, an arrival may have been pushed because of it. So it goes first.
        let first = NonNull::new(first);
        let first = first.or_else(|| NonNull::new(self.first.load(Ordering::Acquire)));
        if let Some(first) = first {
            // SAFETY: an item that is queued is registered, and one whose `QUEUED` was clear is in no list.
            unsafe {
                let word = &first.as_ref().entry.owner_word;
                if word.fetch_or(state::QUEUED, Ordering::SeqCst) & state::QUEUED == 0 {
                    ready.push_back(first);
                }
            }
            self.first.store(ptr::null_mut(), Ordering::SeqCst);
        }
        // SAFETY: the swap took the stack away from everyone else.
        unsafe { Self::append_arrivals(ready, arrivals) };
    }

    /// Takes the item in `first`, if nothing else is queued and the item is as `wanted`. It is in no list, and a scan counts as
    /// under way until [`end_scan_of_first`](Self::end_scan_of_first). Look at its file afterwards.
    ///
    /// [`begin_scan`](Self::begin_scan) and [`end_scan`](Self::end_scan) need several operations for what this does with one.
    ///
    /// # Safety
    /// The caller holds this set's lock, which guards `_inner`.
    #[inline]
    pub(super) unsafe fn take_first(
        &self,
        _inner: &Interests,
        wanted: impl FnOnce(&Item) -> bool,
    ) -> Option<NonNull<Item>> {
        let item = NonNull::new(self.first.load(Ordering::Acquire))?;
        // SAFETY: the item there is registered, and leaves its place under the set's lock.
        let is_wanted = wanted(unsafe { item.as_ref() });
        if !is_wanted || !self.pending.load(Ordering::Relaxed).is_null() {
            return None;
        }
        let scanned = match broken(Rule::LoneScanIsPending) {
            true => ptr::null_mut(),
            false => SCANNED,
        };
        // Wakeups only put items where there is none.
        self.first.swap(scanned, Ordering::SeqCst);
        fence_after_rmw();
        Some(item)
    }

    /// The item that was taken from `first` has been looked at.
    #[inline]
    pub(super) fn end_scan_of_first(&self) {
        self.first.store(ptr::null_mut(), Ordering::Release);
    }

    /// Ends a scan: new arrivals go behind what was not looked at, and `again`, what was reported
    /// and stays ready, behind both. True if anything arrived meanwhile.
    ///
    /// # Safety
    /// As [`begin_scan`](Self::begin_scan), which returned true.
    #[inline]
    pub(super) unsafe fn end_scan(&self, ready: &mut ReadyList, again: &mut ReadyList) -> bool {
        let mut arrived = false;
        let first = self.first.load(Ordering::Acquire);
        if !untagged(self.pending.load(Ordering::Acquire)).is_null() || !first.is_null() {
            arrived = true;
            // SAFETY: passed on to the caller.
            unsafe { self.enlist(ready, first) };
        }
        // SAFETY: both hold items of this set, whose lock the caller holds.
        unsafe { ready.append(again) };
        if ready.is_empty() {
            // If this fails something has just arrived, and its address keeps the word non-zero.
            let untag = self.pending.compare_exchange(
                just_tag(),
                ptr::null_mut(),
                Ordering::SeqCst,
                Ordering::Acquire,
            );
            if untag.is_err() {
                arrived = true;
                // SAFETY: as above.
                unsafe { self.enlist(ready, ptr::null_mut()) };
            }
        }
        arrived
    }

    /// # Safety
    /// The caller owns the detached stack and holds the lock of the items' set.
    unsafe fn append_arrivals(ready: &mut ReadyList, newest: *mut Item) {
        // The stack has the newest first; the list wants the oldest first.
        let mut oldest = ptr::null_mut::<Item>();
        let mut at = newest;
        while let Some(item) = NonNull::new(at) {
            // SAFETY: queued items are registered, hence alive.
            unsafe {
                at = item.as_ref().next.load(Ordering::Relaxed);
                item.as_ref().next.store(oldest, Ordering::Relaxed);
            }
            oldest = item.as_ptr();
        }
        let mut at = oldest;
        while let Some(item) = NonNull::new(at) {
            // SAFETY: as above; the items were on no list.
            unsafe {
                at = item.as_ref().next.load(Ordering::Relaxed);
                ready.push_back(item);
            }
        }
    }

    /// Clears `QUEUED`: from now on a wake queues the item anew. Look at the file afterwards.
    #[inline]
    pub(super) fn unqueue(item: &Item) {
        let before = item
            .entry
            .owner_word
            .fetch_and(!state::QUEUED, Ordering::SeqCst);
        fence_after_rmw();
        if before & state::ROTATING != 0 && !broken(Rule::ClearRecheck) {
            item.clear_recheck();
        }
    }

    /// Polls the item's file, and returns the requested events that are ready. A file that is being
    /// closed shows none.
    ///
    /// # Safety
    /// The caller holds this set's lock, and the item is registered in it.
    #[inline]
    pub unsafe fn poll_item(item: &Item) -> Events {
        // SAFETY: passed on to the caller.
        let file = unsafe { item.file() };
        if !file.is_open() {
            return Events::empty();
        }
        let ready = file
            .object()
            .poll(&mut PollTable::without_waiter().for_item());
        ready & item.interest()
    }

    /// Polls the file of an item that a scan has just taken off its list. If that panics, the item is queued again: nobody
    /// knows whether it is ready.
    ///
    /// # Safety
    /// As [`poll_item`](Self::poll_item), while a scan is under way.
    #[inline(always)]
    pub(super) unsafe fn poll_unqueued(item: NonNull<Item>) -> Events {
        let unknown = Unknown(item);
        // SAFETY: the caller's contract.
        let events = unsafe { Self::poll_item(item.as_ref()) };
        mem::forget(unknown);
        events
    }

    /// Looks at an item on the ready list, and takes it off if it is idle.
    ///
    /// # Safety
    /// The caller holds this set's lock, and the item is on its ready list.
    #[inline]
    pub(super) unsafe fn poll_or_unqueue(ready: &mut ReadyList, item: NonNull<Item>) -> Events {
        // SAFETY: the caller's contract.
        unsafe {
            let events = Self::poll_item(item.as_ref());
            if !events.is_empty() {
                return events;
            }
            Self::unqueue_idle(ready, item)
        }
    }

    /// Takes an item that was found idle off the ready list, and looks once more.
    ///
    /// # Safety
    /// As [`poll_or_unqueue`](Self::poll_or_unqueue).
    #[inline(never)]
    unsafe fn unqueue_idle(ready: &mut ReadyList, item: NonNull<Item>) -> Events {
        // SAFETY: the caller's contract.
        unsafe {
            let node = item.as_ref();
            ready.unlink(item);
            Self::unqueue(node);
            if broken(Rule::RepollAfterUnqueue) {
                return Events::empty();
            }
            let events = Self::poll_unqueued(item);
            if events.is_empty() {
                return events;
            }
            // It became ready between the two polls. If its wakeup has queued it, a later scan sees
            // it with the arrivals. Else it goes back to its old place, and this poll counts: a
            // third one would be a loop for an object whose `poll` alternates.
            let before = node
                .entry
                .owner_word
                .fetch_or(state::QUEUED, Ordering::SeqCst);
            if before & state::QUEUED != 0 {
                return Events::empty();
            }
            ready.insert_before(ready.head, item);
            events
        }
    }
}

/// An item that is in no list while its file is polled. Dropped only when the file's `poll` panics.
struct Unknown(NonNull<Item>);

impl Drop for Unknown {
    #[cold]
    fn drop(&mut self) {
        // SAFETY: `Set::poll_unqueued` has made this for a registered item, whose set's lock is held. Such an item keeps its
        // set alive.
        unsafe {
            let set = (*self.0.as_ref().set).object();
            set.queue(self.0);
            // The wake that queued the item before may have woken this thread alone.
            set.wake_one(&mut Wake {
                key: Events::IN,
                mode: Mode::Notify,
                deferred: &mut Deferred::new(),
            });
        }
    }
}

/// A watched file woke (`ep_poll_callback`): queue the item, wake one sleeper and the sets above.
///
/// # Safety
/// As [`OnWake`](crate::wait::OnWake); the entry is an [`Item`]'s.
pub(super) unsafe fn on_wake_item(entry: NonNull<WaitEntry>, wake: &mut Wake<'_>) -> Reply {
    // SAFETY: `entry` is the first field of an `Item`, and linked, so the item is registered.
    unsafe { wake_item(entry.cast(), wake) }
}

/// As [`on_wake_item`], for a file's second or further queue.
///
/// # Safety
/// As [`OnWake`](crate::wait::OnWake); the entry is an [`ExtraEntry`]'s.
pub(super) unsafe fn on_wake_extra(entry: NonNull<WaitEntry>, wake: &mut Wake<'_>) -> Reply {
    // SAFETY: `entry` is the first field of an `ExtraEntry`, whose item is registered.
    unsafe {
        let item = entry.cast::<ExtraEntry>().as_ref().item;
        wake_item(NonNull::new_unchecked(item.cast_mut()), wake)
    }
}

/// # Safety
/// The item is registered, and stays so for the call: a lock of a queue that it is hooked into is
/// held.
unsafe fn wake_item(item: NonNull<Item>, wake: &mut Wake<'_>) -> Reply {
    // SAFETY: a registered item is alive, and so is its set.
    let (node, set) = unsafe { (item.as_ref(), (*item.as_ref().set).object()) };
    let interest = node.interest();
    if (interest - Events::CONTROL).is_empty() {
        // Disabled: a oneshot interest that fired.
        return Reply::Declined;
    }
    if !wake.key.is_empty() && !wake.key.intersects(interest) {
        return Reply::Declined;
    }
    let takes_turns = set.rotates || node.state() & state::ROTATING != 0;
    if wake.mode == Mode::Notify && !takes_turns && !interest.contains(Events::EXCLUSIVE) {
        // SAFETY: the item is registered in `set`.
        unsafe { set.queue_plain(item) };
        set.tell(wake);
        return Reply::Woken;
    }
    // SAFETY: passed on to the caller.
    unsafe { wake_in_turn(item, interest, wake) }
}

/// [`wake_item`] of an item that may decline, or whose waiters take turns.
///
/// # Safety
/// As [`wake_item`].
#[inline(never)]
unsafe fn wake_in_turn(item: NonNull<Item>, interest: Events, wake: &mut Wake<'_>) -> Reply {
    // SAFETY: a registered item is alive, and so is its set.
    let (node, set) = unsafe { (item.as_ref(), (*item.as_ref().set).object()) };
    if wake.mode != Mode::Notify && !set.is_awaited(wake.deferred) {
        return Reply::Declined;
    }
    if wake.mode == Mode::Query {
        return Reply::Woken;
    }
    let is_rotating = node.state() & state::ROTATING != 0;
    if set.rotates {
        set.note_hang_up(wake.key);
    }
    // Asked first: a waiter that was woken waits no more.
    let is_awaited = wake.mode == Mode::TryWake || is_rotating && set.is_awaited(wake.deferred);
    // Also asked first. A thread that sleeps in the kernel counts as asleep until it runs.
    let is_exclusive = interest.contains(Events::EXCLUSIVE);
    let was_unwoken = is_exclusive && set.has_unwoken_thread();
    // SAFETY: the item is registered in `set`.
    unsafe { set.queue(item) };
    let (slept, watched) = set.tell(wake);
    let took = if is_exclusive {
        slept && was_unwoken && took_direction(wake.key, interest)
    } else if is_rotating {
        slept || watched && is_awaited
    } else {
        true
    };
    if took { Reply::Woken } else { Reply::Declined }
}

/// Returns whether an exclusive waiter's interest matches the direction that became ready; a wake for both
/// directions at once is left to the others too, as Linux does.
fn took_direction(key: Events, interest: Events) -> bool {
    match key & (Events::IN | Events::OUT) {
        Events::IN => interest.contains(Events::IN),
        Events::OUT => interest.contains(Events::OUT),
        both => both.is_empty(),
    }
}
