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

use core::cell::Cell;
use core::mem;
use core::ptr::{self, NonNull};

use super::Set;
use super::interest::{ExtraEntry, Item, ItemRef, LockedSet, Registered, state};
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

/// A doubly linked list of items of one set, guarded by that set's lock.
///
/// All functions that put an item there or take it off are unsafe, or in this file. So the items on the list are registered:
/// an item is [removed](super::interest::ItemMut::remove) only when it is on none.
pub(super) struct ReadyList {
    head: Cell<*mut Item>,
    tail: Cell<*mut Item>,
}

impl ReadyList {
    pub(super) const fn new() -> Self {
        ReadyList {
            head: Cell::new(ptr::null_mut()),
            tail: Cell::new(ptr::null_mut()),
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.head.get().is_null()
    }

    /// # Safety
    /// The item is registered in the set that this list is of, and on no list. The set's lock is held.
    #[inline]
    unsafe fn push_back(&self, item: NonNull<Item>) {
        let tail = self.tail.get();
        // SAFETY: registered items are alive, this one (the caller's contract) and those on the list. The set's lock guards
        // `prev`, and `next` of items on the list.
        unsafe {
            item.as_ref().next.store(ptr::null_mut(), Ordering::Relaxed);
            item.as_ref().prev.with_mut(|prev| *prev = tail);
            match NonNull::new(tail) {
                None => self.head.set(item.as_ptr()),
                Some(tail) => tail.as_ref().next.store(item.as_ptr(), Ordering::Relaxed),
            }
        }
        self.tail.set(item.as_ptr());
    }

    /// Puts an item before `next`; at the end if that is null.
    ///
    /// # Safety
    /// As [`push_back`](Self::push_back); `next` is null or on this list.
    pub(super) unsafe fn insert_before(&self, next: *mut Item, item: NonNull<Item>) {
        // SAFETY: registered items are alive, this one (the caller's contract) and those on the list. The set's lock guards
        // `prev`, and `next` of items on the list.
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
                None => self.head.set(item.as_ptr()),
                Some(prev) => prev.as_ref().next.store(item.as_ptr(), Ordering::Relaxed),
            }
        }
    }

    /// # Safety
    /// The item is on this list, and its set's lock is held.
    #[inline]
    unsafe fn unlink(&self, item: NonNull<Item>) {
        // SAFETY: items on the list are registered, hence alive, and the set's lock guards their links.
        unsafe {
            let next = item.as_ref().next.load(Ordering::Relaxed);
            let prev = item
                .as_ref()
                .prev
                .with_mut(|prev| mem::replace(&mut *prev, ptr::null_mut()));
            // Only an item on a list has a `prev`.
            let is_here = !prev.is_null() || self.head.get() == item.as_ptr();
            if cfg!(any(debug_assertions, upoll_loom)) {
                assert!(is_here, "an item is unlinked that is not on the ready list");
            }
            match NonNull::new(prev) {
                None => self.head.set(next),
                Some(prev) => prev.as_ref().next.store(next, Ordering::Relaxed),
            }
            match NonNull::new(next) {
                None => self.tail.set(prev),
                Some(next) => next.as_ref().prev.with_mut(|at| *at = prev),
            }
        }
    }

    /// Moves all of `other` behind this list.
    ///
    /// # Safety
    /// Both hold items of the set whose lock is held.
    unsafe fn append(&self, other: ReadyList) {
        let Some(head) = NonNull::new(other.head.get()) else {
            return;
        };
        match NonNull::new(self.tail.get()) {
            None => self.head.set(head.as_ptr()),
            Some(tail) => {
                // SAFETY: items on the lists are registered, hence alive, and the set's lock guards their links.
                unsafe {
                    tail.as_ref().next.store(head.as_ptr(), Ordering::Relaxed);
                    head.as_ref().prev.with_mut(|prev| *prev = tail.as_ptr());
                }
            }
        }
        self.tail.set(other.tail.get());
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

    /// The item that was taken from `first` has been looked at.
    #[inline]
    pub(super) fn end_scan_of_first(&self) {
        self.first.store(ptr::null_mut(), Ordering::Release);
    }
}

impl Registered<'_> {
    /// [`queue`](Self::queue) for a wakeup of an item that is not exclusive, and does not watch a rotating set.
    #[inline]
    fn queue_plain(self) {
        let is_in_list = self.state() & state::QUEUED != 0;
        if is_in_list {
            return;
        }
        let set = self.set();
        let item = self.as_ptr().as_ptr();
        let mut first = set.first.load(Ordering::SeqCst);
        if first.is_null() && set.pending.load(Ordering::Relaxed).is_null() {
            let put = set.first.compare_exchange(
                ptr::null_mut(),
                item,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
            match put {
                Ok(_) => return,
                Err(other) => first = other,
            }
        }
        if first != item {
            self.queue();
        }
    }

    /// Queues the item unless it is queued already. Returns whether it was not.
    #[inline]
    pub fn queue(self) -> bool {
        // The load spares the bus the write that is not needed. If it sees the bit, the scan that
        // will clear it also sees what this wake has published.
        if self.state() & state::QUEUED != 0
            || self
                .entry
                .owner_word
                .fetch_or(state::QUEUED, Ordering::SeqCst)
                & state::QUEUED
                != 0
        {
            return false;
        }
        let (set, item) = (self.set(), self.as_ptr().as_ptr());
        let mut pending = set.pending.load(Ordering::Relaxed);
        loop {
            self.next.store(untagged(pending), Ordering::Relaxed);
            let new = item.map_addr(|addr| addr | (pending.addr() & TAG));
            match set.pending.compare_exchange_weak(
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

    /// Clears `QUEUED`: from now on a wake queues the item anew. The item is on no list. Look at the file afterwards.
    #[inline]
    fn unqueue(self) {
        let before = self
            .entry
            .owner_word
            .fetch_and(!state::QUEUED, Ordering::SeqCst);
        fence_after_rmw();
        if before & state::ROTATING != 0 && !broken(Rule::ClearRecheck) {
            self.clear_recheck();
        }
    }
}

impl LockedSet<'_> {
    /// Starts a scan: moves the arrivals to the ready list, and marks it as in use in `pending`.
    /// Returns false if nothing is ready.
    #[inline]
    pub(super) fn begin_scan(&self) -> bool {
        let set = self.set();
        let first = set.first.load(Ordering::Acquire);
        let pending = set.pending.load(Ordering::Acquire);
        if untagged(pending).is_null() && first.is_null() {
            return !pending.is_null();
        }
        self.enlist();
        true
    }

    /// Moves the item in `first` to the ready list, and then the arrivals. `pending` shows before that a scan is under way.
    #[inline(never)]
    fn enlist(&self) {
        let set = self.set();
        let arrivals = untagged(set.pending.swap(just_tag(), Ordering::SeqCst));
        // After the swap: an arrival may have been pushed because of an item there. So that goes first.
        if let Some(first) = NonNull::new(set.first.load(Ordering::Acquire)) {
            // SAFETY: an item in `first` is registered, as a removal takes it out with the set's lock held (`take_off`). It is not
            // `SCANNED`, as no scan begins or ends between `take_first` and `end_scan_of_first`. An item whose `QUEUED` was clear
            // is on no list.
            unsafe {
                let word = &first.as_ref().entry.owner_word;
                if word.fetch_or(state::QUEUED, Ordering::SeqCst) & state::QUEUED == 0 {
                    self.ready().push_back(first);
                }
            }
            set.first.store(ptr::null_mut(), Ordering::SeqCst);
        }
        // SAFETY: taken above.
        unsafe { self.append_arrivals(arrivals) };
    }

    /// Moves the arrivals to the ready list. The stack has the newest first; the list wants the oldest first.
    ///
    /// # Safety
    /// The caller has taken the stack that `newest` is the top of.
    unsafe fn append_arrivals(&self, newest: *mut Item) {
        let oldest_first = ReadyList::new();
        let mut at = newest;
        while let Some(item) = NonNull::new(at) {
            // SAFETY: the caller has taken the stack, whose items are registered: a removal takes them off with the set's lock
            // held (`take_off`). So only this thread has their links, and they are on no list.
            unsafe {
                at = item.as_ref().next.load(Ordering::Relaxed);
                oldest_first.insert_before(oldest_first.head.get(), item);
            }
        }
        // SAFETY: both hold items of this set.
        unsafe { self.ready().append(oldest_first) };
    }

    /// Takes the item in `first`, if nothing else is queued and the item is as `wanted`. It is in no list, and a scan counts as
    /// under way until [`end_scan_of_first`](Set::end_scan_of_first). Look at its file afterwards.
    ///
    /// [`begin_scan`](Self::begin_scan) and [`end_scan`](Self::end_scan) need several operations for what this does with one.
    ///
    /// # Safety
    /// The caller begins no scan until `end_scan_of_first`, and calls that before it releases the lock.
    #[inline]
    pub(super) unsafe fn take_first(
        &self,
        wanted: impl FnOnce(ItemRef<'_>) -> bool,
    ) -> Option<ItemRef<'_>> {
        let set = self.set();
        let item = NonNull::new(set.first.load(Ordering::Acquire))?;
        // SAFETY: an item in `first` is registered, as a removal takes it out with the set's lock held (`take_off`). It is not
        // `SCANNED`, which is there only until the caller's `end_scan_of_first`.
        let item = unsafe { ItemRef::new(item, self) };
        if !wanted(item) || !set.pending.load(Ordering::Relaxed).is_null() {
            return None;
        }
        let scanned = match broken(Rule::LoneScanIsPending) {
            true => ptr::null_mut(),
            false => SCANNED,
        };
        // Wakeups only put items where there is none.
        set.first.swap(scanned, Ordering::SeqCst);
        fence_after_rmw();
        Some(item)
    }

    /// Ends a scan: new arrivals go behind what was not looked at, and `again`, what was reported
    /// and stays ready, behind both. True if anything arrived meanwhile.
    #[inline]
    pub(super) fn end_scan(&self, again: ReadyList) -> bool {
        let set = self.set();
        let mut arrived = false;
        let first = set.first.load(Ordering::Acquire);
        if !untagged(set.pending.load(Ordering::Acquire)).is_null() || !first.is_null() {
            arrived = true;
            self.enlist();
        }
        // SAFETY: `again` holds items of this set (the contract of `Listed::move_to`).
        unsafe { self.ready().append(again) };
        if self.ready().is_empty() {
            // If this fails something has just arrived, and its address keeps the word non-zero.
            let untag = set.pending.compare_exchange(
                just_tag(),
                ptr::null_mut(),
                Ordering::SeqCst,
                Ordering::Acquire,
            );
            if untag.is_err() {
                arrived = true;
                self.enlist();
            }
        }
        arrived
    }

    /// The first item on the ready list.
    #[inline]
    pub(super) fn front(&mut self) -> Option<Listed<'_>> {
        let item = NonNull::new(self.ready().head.get())?;
        // SAFETY: items on the ready list are registered in this set. `&mut self` excludes each other `Listed`.
        Some(unsafe { Listed::new(ItemRef::new(item, self)) })
    }
}

impl ItemRef<'_> {
    /// [`queue`](Registered::queue) for the holder of the set's lock.
    ///
    /// `pending` is non-zero before `QUEUED` is set. Otherwise a wake that finds the bit set would go
    /// away, and its thread, looking for what it has just made ready, find nothing; so it waits for
    /// the lock.
    pub(super) fn queue_locked(self) -> bool {
        let locked = self.locked();
        let _ = locked.set().pending.compare_exchange(
            ptr::null_mut(),
            just_tag(),
            Ordering::SeqCst,
            Ordering::Relaxed,
        );
        locked.begin_scan();
        let queued = self.queue();
        locked.end_scan(ReadyList::new());
        queued
    }

    /// Polls the item's file, and returns the requested events that are ready. A file that is being
    /// closed shows none.
    #[inline]
    pub fn poll(self) -> Events {
        let file = self.file();
        if !file.is_open() {
            return Events::empty();
        }
        let ready = file
            .object()
            .poll(&mut PollTable::without_waiter().for_item());
        ready & self.interest()
    }

    /// Polls the file of an item that a scan has just taken off its list. If that panics, the item is queued again: nobody
    /// knows whether it is ready.
    #[inline(always)]
    pub(super) fn poll_unqueued(self) -> Events {
        let unknown = Unknown(self);
        let events = self.poll();
        mem::forget(unknown);
        events
    }
}

/// An item on the ready list of its set, whose lock is held. No other `Listed` of the item exists meanwhile.
pub(super) struct Listed<'g>(ItemRef<'g>);

impl<'g> Listed<'g> {
    /// # Safety
    /// The item is on its set's ready list, and no other `Listed` of it exists.
    #[inline]
    pub(super) unsafe fn new(item: ItemRef<'g>) -> Self {
        Listed(item)
    }

    #[inline]
    pub(super) fn item(&self) -> ItemRef<'g> {
        self.0
    }

    /// Takes the item off the list. From now on a wake queues it anew. Look at the file afterwards.
    #[inline]
    pub(super) fn take_off(self) -> ItemRef<'g> {
        let item = self.0;
        // SAFETY: it is on the list, as this is a `Listed`.
        unsafe { item.locked().ready().unlink(item.as_ptr()) };
        item.unqueue();
        item
    }

    /// Takes the item, which is unhooked from all queues, off the list.
    pub(super) fn take_off_for_good(self) {
        let item = self.0;
        // SAFETY: it is on the list, as this is a `Listed`.
        unsafe { item.locked().ready().unlink(item.as_ptr()) };
        item.entry.owner_word.store(0, Ordering::Relaxed);
    }

    /// Moves the item, which stays queued, to the end of another list.
    ///
    /// # Safety
    /// Before the set's lock is released, [`end_scan`](LockedSet::end_scan) of the set puts that list behind the ready list.
    #[inline(always)]
    pub(super) unsafe fn move_to(self, again: &ReadyList) {
        let item = self.0;
        // SAFETY: it is on the ready list, as this is a `Listed`, and then on none.
        unsafe {
            item.locked().ready().unlink(item.as_ptr());
            again.push_back(item.as_ptr());
        }
    }

    /// Polls the item's file, and returns the requested events that are ready. Calls `if_ready` with an item that is ready. An
    /// item that is idle is off the list afterwards.
    #[inline]
    pub(super) fn poll_or_unqueue(self, if_ready: impl FnOnce(Self)) -> Events {
        let item = self.0;
        let mut events = item.poll();
        if events.is_empty() {
            events = self.unqueue_idle();
            if events.is_empty() {
                return events;
            }
        }
        // SAFETY: it was not taken off, or `unqueue_idle` has put it back.
        if_ready(unsafe { Listed::new(item) });
        events
    }

    /// Takes an item that was found idle off the ready list, and looks once more. An item that is ready now is back on the list.
    #[inline(never)]
    fn unqueue_idle(self) -> Events {
        let item = self.take_off();
        if broken(Rule::RepollAfterUnqueue) {
            return Events::empty();
        }
        let events = item.poll_unqueued();
        if events.is_empty() {
            return events;
        }
        // It became ready between the two polls. If its wakeup has queued it, a later scan sees
        // it with the arrivals. Else it goes back to its old place, and this poll counts: a
        // third one would be a loop for an object whose `poll` alternates.
        let before = item
            .entry
            .owner_word
            .fetch_or(state::QUEUED, Ordering::SeqCst);
        if before & state::QUEUED != 0 {
            return Events::empty();
        }
        let ready = item.locked().ready();
        // SAFETY: `take_off` took it off, and no wake has queued it since.
        unsafe { ready.insert_before(ready.head.get(), item.as_ptr()) };
        events
    }
}

/// An item that is in no list while its file is polled. Dropped only when the file's `poll` panics.
struct Unknown<'g>(ItemRef<'g>);

impl Drop for Unknown<'_> {
    #[cold]
    fn drop(&mut self) {
        self.0.queue();
        // The wake that queued the item before may have woken this thread alone.
        self.0.set().wake_one(&mut Wake {
            key: Events::IN,
            mode: Mode::Notify,
            deferred: &mut Deferred::new(),
        });
    }
}

/// A watched file woke (`ep_poll_callback`): queue the item, wake one sleeper and the sets above.
///
/// # Safety
/// As [`OnWake`](crate::wait::OnWake); the entry is an [`Item`]'s.
pub(super) unsafe fn on_wake_item(entry: NonNull<WaitEntry>, wake: &mut Wake<'_>) -> Reply {
    // SAFETY: the entry is the first field of an item. It is linked into a queue whose lock is held, so the item is
    // registered, and stays so for the call.
    let item = unsafe { Registered::new(entry.cast()) };
    wake_item(item, wake)
}

/// As [`on_wake_item`], for a file's second or further queue.
///
/// # Safety
/// As [`OnWake`](crate::wait::OnWake); the entry is an [`ExtraEntry`]'s.
pub(super) unsafe fn on_wake_extra(entry: NonNull<WaitEntry>, wake: &mut Wake<'_>) -> Reply {
    // SAFETY: the entry is the first field of an `ExtraEntry`. It is linked into a queue whose lock is held, so its item is
    // registered, and stays so for the call.
    let item = unsafe { Registered::new(entry.cast::<ExtraEntry>().as_ref().item) };
    wake_item(item, wake)
}

fn wake_item(item: Registered<'_>, wake: &mut Wake<'_>) -> Reply {
    let set = item.set();
    let interest = item.interest();
    if (interest - Events::CONTROL).is_empty() {
        // Disabled: a oneshot interest that fired.
        return Reply::Declined;
    }
    if !wake.key.is_empty() && !wake.key.intersects(interest) {
        return Reply::Declined;
    }
    let takes_turns = set.rotates || item.state() & state::ROTATING != 0;
    if wake.mode == Mode::Notify && !takes_turns && !interest.contains(Events::EXCLUSIVE) {
        item.queue_plain();
        set.tell(wake);
        return Reply::Woken;
    }
    wake_in_turn(item, interest, wake)
}

/// [`wake_item`] of an item that may decline, or whose waiters take turns.
#[inline(never)]
fn wake_in_turn(item: Registered<'_>, interest: Events, wake: &mut Wake<'_>) -> Reply {
    let set = item.set();
    if wake.mode != Mode::Notify && !set.is_awaited(wake.deferred) {
        return Reply::Declined;
    }
    if wake.mode == Mode::Query {
        return Reply::Woken;
    }
    let is_rotating = item.state() & state::ROTATING != 0;
    if set.rotates {
        set.note_hang_up(wake.key);
    }
    // Asked first: a waiter that was woken waits no more.
    let is_awaited = wake.mode == Mode::TryWake || is_rotating && set.is_awaited(wake.deferred);
    // Also asked first. A thread that sleeps in the kernel counts as asleep until it runs.
    let is_exclusive = interest.contains(Events::EXCLUSIVE);
    let was_unwoken = is_exclusive && set.has_unwoken_thread();
    item.queue();
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
