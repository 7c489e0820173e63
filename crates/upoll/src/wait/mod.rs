//! Wait queues: who wants to know that an object changed (`wait_queue_head_t`).
//!
//! An object owns one [`WaitQueue`] per kind of news. Whoever wants the news links an intrusive
//! entry into it; [`WaitQueue::wake`] calls the entries in Linux's order. A wake allocates nothing
//! and runs under the queue's lock, so an entry that has been unlinked is never called again.
//!
//! # Order and exclusivity
//! Non-exclusive entries stand first, the newest of them foremost; exclusive ones follow in the
//! order they came. A wake calls every non-exclusive entry, then exclusive ones until one says
//! that it took the event. [`WaitQueue::wake_rotate`] does the same and counts a turn for the one
//! that took it: exclusive waiters stand in the order of the turns they had.
//!
//! # Claims
//! A wake that an exclusive waiter took is that waiter's *claim* until it has looked at the object
//! ([`WaitEntry::settle`]). A waiter that leaves before that hands its claim to the next one: it
//! would be lost otherwise. A rotating queue counts the claims under way, see [`WaitQueue::turn`].
//!
//! # The named pair: publish then wake, register then look
//! An object publishes its new state, then [`wake`](WaitQueue::wake) reads `linked`. A waiter
//! links itself (which writes `linked`), then reads the state. Both do so with sequentially
//! consistent order, so one of the two sees the other and no wake is lost.

mod deferred;
mod list;
mod locked;
mod tasks;

pub(crate) use self::deferred::Deferred;
use self::deferred::Level;
use self::list::{EXCLUSIVE, LATE, LINKED, List, RETIRED};
pub(crate) use self::list::{OnWake, WaitEntry};
use self::locked::Kind;
pub(crate) use self::tasks::{Scope, TaskSlot};

use core::ptr::{self, NonNull};

use crate::events::Events;
use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering, Rule, broken, fence, fence_after_rmw};

/// A list of waiters that an object wakes when it changes.
///
/// Make it a field of your object, register it in [`Pollable::poll`](crate::Pollable::poll), and
/// wake it after each change. Any thread may wake it; a wake never blocks for longer than it takes
/// to walk the list, and allocates nothing.
///
/// A wake runs wakers and callbacks at its end, or, if an object's `poll` makes it, at the end of the
/// call that polls the object. Do not hold a lock of your own around a wake that these, or your `poll`,
/// take.
pub struct WaitQueue {
    /// How many entries are linked, or unlinked by a rotating wake and not yet settled: a wake that
    /// comes meanwhile finds nobody, and has to say so. Written under `list`'s lock, read without
    /// it by wakes.
    linked: AtomicU32,
    /// A rotating wake found nobody who waits, and all exclusive entries have the note that tells
    /// them to look before they sleep. Until one of them uses it up, no further note is needed, and
    /// nobody is in line. Set under `list`'s lock.
    noted: AtomicBool,
    /// A rotating wake found nobody to take it: whoever settles a claim next hands on one more.
    /// Guarded by `list`'s lock.
    owed: AtomicBool,
    /// Wakes that did not get `list`'s lock.
    #[cfg(any(feature = "std", loom))]
    missed: AtomicU32,
    /// The entries. This lock nests inside a file's watcher list and a set's lock, and inside the
    /// lock of the queue of anything that this queue's owner watches.
    list: Mutex<List>,
}

/// How an entry stands in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At the head, told of every wake.
    Shared,
    /// At the tail, told until one took it: first come, first served.
    ExclusiveTail,
    /// Like `ExclusiveTail` but at the head: last come, first served, as threads in `epoll_wait`.
    #[cfg_attr(
        all(not(feature = "std"), not(loom)),
        expect(dead_code, reason = "only sleeping threads need it")
    )]
    ExclusiveHead,
}

/// What a wake asks of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Take note; say whether somebody was waiting for it.
    Tell,
    /// Take note only if somebody waits for it right now.
    Offer,
    /// Say whether somebody waits for it right now, and take no note.
    Ask,
}

/// What an entry answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Nobody waited for it.
    Passed,
    /// Somebody did.
    Took,
    /// Somebody did, and the entry is done: unlink it.
    TookAndLeft,
}

/// How a waiter without a claim asks for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Waiters that were chosen, and those in line, come first; the caller asks again before long.
    #[cfg_attr(
        all(not(feature = "std"), not(loom)),
        expect(dead_code, reason = "only a thread that sleeps can ask again")
    )]
    Yielding,
    /// Those in line come first, unless waiters that were chosen are on their way already.
    AtOnce,
    /// Nobody comes first.
    Unconditional,
    /// Something outside chose it, as the first in line by its own book: only those who wait and
    /// stand before it here come first.
    Chosen,
}

/// What a thread finds that is about to sleep in a rotating set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The object is ready, and it is the thread's turn. Its entry is not linked.
    InTurn,
    /// The object is ready, and others come first. The entry is linked.
    BehindOthers,
    /// The object is not ready. The entry is linked.
    Idle,
}

/// Whether those who wait in a queue say when they have [used up](WaitQueue::use_up_notes) their
/// notes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notes {
    /// As who watches a rotating set does.
    AreUsedUp,
    Stay,
}

/// Which exclusive waiters are offered a wake.
#[derive(Clone, Copy)]
enum Whom {
    All,
    Except(*const WaitEntry),
    /// Those before this one that have no claim yet.
    Before(*const WaitEntry),
}

/// One wake on its way through the queues.
pub(crate) struct Wake<'a> {
    /// Which events happened; empty means unknown.
    pub(crate) key: Events,
    pub(crate) mode: Mode,
    /// What is to be done once all locks are free.
    pub(crate) deferred: &'a mut Deferred,
}

impl Wake<'_> {
    /// Runs `walk` as the part of this wake that goes through `queue`. Returns None, and does not run
    /// it, if the wake is in that queue already: objects that hand on the queues of sets can close a
    /// circle that ADD does not see.
    fn through<R>(
        &mut self,
        queue: &WaitQueue,
        walk: impl FnOnce(&mut Self) -> Option<R>,
    ) -> Option<R> {
        let below = self.deferred.level;
        // SAFETY: the levels are those of callers of this function that have not returned.
        let level = unsafe { Level::above(below, queue) }?;
        self.deferred.level = &raw const level;
        let result = walk(self);
        self.deferred.level = below;
        result
    }

    /// The same wake with another key, for the queues above.
    pub(crate) fn with_key(&mut self, key: Events) -> Wake<'_> {
        Wake {
            key,
            mode: Mode::Tell,
            deferred: self.deferred,
        }
    }
}

impl Default for WaitQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl core::fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("WaitQueue")
            .field("linked", &self.linked.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

impl WaitQueue {
    /// An empty queue.
    #[must_use]
    pub fn new() -> Self {
        WaitQueue {
            linked: AtomicU32::new(0),
            noted: AtomicBool::new(false),
            owed: AtomicBool::new(false),
            #[cfg(any(feature = "std", loom))]
            missed: AtomicU32::new(0),
            list: Mutex::new(List {
                head: ptr::null_mut(),
                tail: ptr::null_mut(),
                claims: 0,
                floor: 0,
            }),
        }
    }

    /// Tells the waiters that `key` happened (`wake_up_poll`), and says how many took it.
    ///
    /// Call it after the new state is visible. Every non-exclusive waiter is told, then exclusive
    /// ones until one took it. An empty `key` means "look for yourself".
    pub fn wake(&self, key: Events) -> usize {
        fence(Ordering::SeqCst);
        self.wake_published(key)
    }

    /// [`wake`](Self::wake) for a caller that published its state with a `SeqCst` read-modify-write
    /// and so needs no fence.
    #[inline]
    pub(crate) fn wake_published(&self, key: Events) -> usize {
        if self.is_watched() {
            self.wake_watched(key)
        } else {
            0
        }
    }

    /// Apart from [`wake_published`](Self::wake_published), which needs no stack without it.
    #[inline(never)]
    fn wake_watched(&self, key: Events) -> usize {
        let mut deferred = Deferred::new();
        self.wake_within(&mut Wake {
            key,
            mode: Mode::Tell,
            deferred: &mut deferred,
        })
    }

    /// Like [`wake`](Self::wake), but every exclusive waiter is told too (`wake_up_all`): for news
    /// that one of them cannot use up, such as a close.
    pub fn wake_all(&self, key: Events) -> usize {
        fence(Ordering::SeqCst);
        if !self.is_watched() {
            return 0;
        }
        let mut deferred = Deferred::new();
        let mut wake = Wake {
            key,
            mode: Mode::Tell,
            deferred: &mut deferred,
        };
        let mut list = self.lock();
        let mut took = 0;
        let mut at = list.first(false);
        while let Some(entry) = at {
            // SAFETY: a linked entry is alive under the lock.
            at = unsafe { list.next(entry) };
            let reply = self.call(&mut list, entry, &mut wake);
            self.uncount(reply);
            took += usize::from(reply != Reply::Passed);
        }
        drop(list);
        took
    }

    /// Like [`wake`](Self::wake), but exclusive waiters take turns: the one that took the event
    /// has had a turn, and stands behind those that had as many or fewer; one that nobody waits on
    /// is passed over.
    ///
    /// If nobody takes it every exclusive waiter is left a note, so that the first to come looks.
    ///
    /// A wake that chooses a waiter while three others that were chosen have not come yet ends with a
    /// `sched_yield(2)`, as does the eighth, the sixteenth and so on: hold no lock that they need.
    pub fn wake_rotate(&self, key: Events) -> usize {
        fence(Ordering::SeqCst);
        let mut deferred = Deferred::new();
        let mut wake = Wake {
            key,
            mode: Mode::Tell,
            deferred: &mut deferred,
        };
        // Waiters here do not say when they have used up their notes.
        self.wake_in_turn(&mut wake, false)
    }

    /// An entry was unlinked; `list` is locked, so nobody else writes `linked`. In no order with
    /// anything: a wake that sees the old number looks for nothing.
    #[inline]
    fn count_unlinked(&self) {
        let linked = self.linked.load(Ordering::Relaxed);
        self.linked.store(linked - 1, Ordering::Relaxed);
    }

    /// Whether any entry is linked. Pairs with a waiter that registers, then looks.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.linked.load(Ordering::SeqCst) != 0
    }

    /// An exclusive entry of this queue has no note any more, or never had one: call this before
    /// the last look at the object. Pairs with a rotating wake that publishes, then reads `noted`.
    #[inline]
    pub(crate) fn use_up_notes(&self) {
        if self.noted.load(Ordering::Relaxed) {
            self.noted.swap(false, Ordering::SeqCst);
            fence_after_rmw();
        }
    }

    /// Whether more than one entry is linked.
    #[cfg(any(feature = "std", loom))]
    pub(crate) fn has_several(&self) -> bool {
        self.linked.load(Ordering::SeqCst) > 1
    }

    /// Whether anybody, through however many sets, waits right now for a wake of this queue.
    pub(crate) fn is_awaited(&self, deferred: &mut Deferred) -> bool {
        if !self.is_watched() {
            return false;
        }
        let mut wake = Wake {
            key: Events::IN,
            mode: Mode::Ask,
            deferred,
        };
        let is_awaited = wake.through(self, |wake| {
            let mut list = self.lock_to_wake(Kind::Question, wake)?;
            let mut is_awaited = false;
            let mut at = list.first(false);
            while let Some(entry) = at.filter(|_| !is_awaited) {
                // SAFETY: a linked entry is alive under the lock.
                at = unsafe { list.next(entry) };
                is_awaited = self.call(&mut list, entry, wake) != Reply::Passed;
            }
            drop(list);
            Some(is_awaited)
        });
        // The holder of the lock may be about to wait.
        is_awaited.unwrap_or(true)
    }

    /// A wake that is part of another one, whose state is already published.
    pub(crate) fn wake_within(&self, wake: &mut Wake<'_>) -> usize {
        if !self.is_watched() {
            return 0;
        }
        let took = wake.through(self, |wake| {
            let mut list = self.lock_to_wake(Kind::Plain, wake)?;
            let took = self.walk(&mut list, wake, false);
            drop(list);
            Some(took)
        });
        took.unwrap_or(0)
    }

    /// Rotating counterpart of [`wake_within`](Self::wake_within), for the queues of rotating sets:
    /// whoever waits there uses up notes, and all wakes there have the same key.
    pub(crate) fn wake_rotate_within(&self, wake: &mut Wake<'_>) -> usize {
        self.wake_in_turn(wake, true)
    }

    /// With `notes_last` a wake that finds nobody leaves notes only if the last ones have been used
    /// up.
    fn wake_in_turn(&self, wake: &mut Wake<'_>, notes_last: bool) -> usize {
        if !self.is_watched() {
            return 0;
        }
        let took = wake.through(self, |wake| {
            let mut list = self.lock_to_wake(Kind::Rotating { notes_last }, wake)?;
            let took = self.wake_in_turn_locked(&mut list, wake, notes_last);
            drop(list);
            Some(took)
        });
        took.unwrap_or(0)
    }

    /// [`wake_in_turn`](Self::wake_in_turn) with the lock held.
    fn wake_in_turn_locked(&self, list: &mut List, wake: &mut Wake<'_>, notes_last: bool) -> usize {
        let mut took = 0;
        let mut at = list.first(false);
        while let Some(entry) = at {
            // SAFETY: a linked entry is alive under the lock.
            if unsafe { entry.as_ref() }.stands(EXCLUSIVE) {
                break;
            }
            // SAFETY: as above, and `entry` is still linked.
            at = unsafe { list.next(entry) };
            let reply = self.call(list, entry, wake);
            self.uncount(reply);
            took += usize::from(reply != Reply::Passed);
        }
        wake.mode = Mode::Offer;
        if self.offer_in_turn(list, wake, Whom::All) {
            #[cfg(all(feature = "std", not(loom)))]
            wake.deferred.let_run(list.claims);
            took += 1;
        } else {
            self.owed.store(true, Ordering::Relaxed);
            took += usize::from(self.leave_notes(list, wake, notes_last));
        }
        took
    }

    /// Nobody waits: leaves a note with all exclusive entries, so that whoever comes first will look.
    /// Says whether one was waiting after all, and took it.
    fn leave_notes(&self, list: &mut List, wake: &mut Wake<'_>, notes_last: bool) -> bool {
        if self.noted.load(Ordering::SeqCst) {
            return false;
        }
        wake.mode = Mode::Tell;
        if notes_last {
            self.noted.store(true, Ordering::SeqCst);
        }
        let mut at = list.first(true);
        while let Some(entry) = at {
            // SAFETY: a linked entry is alive under the lock.
            at = unsafe { list.next(entry) };
            if self.call(list, entry, wake) != Reply::Passed {
                // The rest goes without a note.
                self.use_up_notes();
                self.retire(list, entry);
                return true;
            }
        }
        false
    }

    /// There is an event more than the one that `me` has: the next in line is offered it. If nobody
    /// waits, all are left notes where those are used up: some may be about to wait, as others have
    /// the event as far as they know.
    fn hand_on(&self, list: &mut List, me: &WaitEntry, uses: Notes, deferred: &mut Deferred) {
        let mut wake = Wake {
            key: Events::IN,
            mode: Mode::Offer,
            deferred,
        };
        if broken(Rule::HandOnSecondEvent) {
            return;
        }
        if !self.offer_in_turn(list, &mut wake, Whom::Except(me)) && uses == Notes::AreUsedUp {
            self.owed.store(true, Ordering::Relaxed);
            self.leave_notes(list, &mut wake, true);
        }
    }

    /// Hands the wake that a leaving waiter took to the next exclusive one.
    pub(crate) fn pass_on(&self, key: Events, rotating: bool) {
        let mut deferred = Deferred::new();
        let mut wake = Wake {
            key,
            mode: Mode::Tell,
            deferred: &mut deferred,
        };
        let mut list = self.lock();
        if rotating {
            wake.mode = Mode::Offer;
            if !self.offer_in_turn(&mut list, &mut wake, Whom::All) {
                self.owed.store(true, Ordering::Relaxed);
                wake.mode = Mode::Tell;
                self.walk(&mut list, &mut wake, true);
            }
        } else {
            self.walk(&mut list, &mut wake, true);
        }
        drop(list);
    }

    /// Asks whether `me`, an exclusive waiter without a claim that found the object still ready, may
    /// take it: the rule that makes workers take turns at a source that stays ready.
    ///
    /// The next waiter in line is offered it first, and so is each waiter that holds a claim. How
    /// far that goes depends on `ask`. If `me` may not take it, `refused` runs under the queue's
    /// lock, so that what it undoes does not race with a wake, and the result is false.
    ///
    /// # Safety
    /// `me` is hooked into this queue.
    pub(crate) unsafe fn turn(
        &self,
        me: &WaitEntry,
        ask: Ask,
        refused: impl FnOnce(),
        deferred: &mut Deferred,
    ) -> bool {
        let mut list = self.lock();
        // SAFETY: passed on to the caller.
        let is_mine = unsafe { self.turn_locked(&mut list, me, ask, deferred) };
        if !is_mine {
            refused();
        }
        drop(list);
        is_mine
    }

    /// # Safety
    /// As [`turn`](Self::turn), and `list` is this queue's.
    unsafe fn turn_locked(
        &self,
        list: &mut List,
        me: &WaitEntry,
        ask: Ask,
        deferred: &mut Deferred,
    ) -> bool {
        let chosen = ask == Ask::Chosen;
        if self.unclaim(list, me) {
            // A wake chose `me` just now.
            if chosen {
                self.hand_on(list, me, Notes::AreUsedUp, deferred);
            }
            return true;
        }
        if broken(Rule::HandOnTurn) {
            return false;
        }
        let others_are_chosen = list.claims > 0;
        let whom = match ask {
            Ask::Yielding if others_are_chosen => return false,
            Ask::AtOnce if others_are_chosen => None,
            Ask::Unconditional => None,
            Ask::Chosen => Some(Whom::Before(me)),
            Ask::Yielding | Ask::AtOnce => Some(Whom::Except(me)),
        };
        let mut wake = Wake {
            key: Events::IN,
            mode: Mode::Offer,
            deferred,
        };
        if let Some(whom) = whom
            && self.offer_in_turn(list, &mut wake, whom)
        {
            return false;
        }
        if ask == Ask::Unconditional {
            Self::call_all_late(list);
        }
        // SAFETY: `me` is borrowed, and the list is locked.
        unsafe { list.count_turn(me) };
        true
    }

    /// Links `me` at the tail, for a thread about to sleep, unless it is its turn to look first.
    ///
    /// It is its turn if nobody holds a claim and nobody else waits. With `first`, for one that was
    /// chosen for nothing, it is linked before all others.
    ///
    /// # Safety
    /// As [`WaitEntry::hook`].
    #[cfg_attr(
        all(not(feature = "std"), not(loom)),
        expect(dead_code, reason = "only sleeping threads need it")
    )]
    pub(crate) unsafe fn turn_or_hook(
        &self,
        me: &WaitEntry,
        first: bool,
        ready: impl FnOnce() -> bool,
        deferred: &mut Deferred,
    ) -> Arrival {
        let mut list = self.lock();
        // SAFETY: passed on to the caller.
        let arrival = unsafe { self.turn_or_link(&mut list, me, first, ready, deferred) };
        drop(list);
        arrival
    }

    /// # Safety
    /// As [`turn_or_hook`](Self::turn_or_hook), and `list` is this queue's.
    unsafe fn turn_or_link(
        &self,
        list: &mut List,
        me: &WaitEntry,
        first: bool,
        ready: impl FnOnce() -> bool,
        deferred: &mut Deferred,
    ) -> Arrival {
        me.queue
            .store(ptr::from_ref(self).cast_mut(), Ordering::Relaxed);
        me.set_standing(EXCLUSIVE, true);
        // SAFETY: `me` is unlinked and the list locked.
        unsafe {
            if first {
                list.push_first(me);
            } else {
                list.push_last(me);
            }
        }
        self.linked.fetch_add(1, Ordering::SeqCst);
        self.use_up_notes();
        fence_after_rmw();
        if !ready() {
            return Arrival::Idle;
        }
        let mut wake = Wake {
            key: Events::IN,
            mode: Mode::Offer,
            deferred,
        };
        if list.claims > 0 || self.offer_in_turn(list, &mut wake, Whom::Except(me)) {
            return Arrival::BehindOthers;
        }
        // SAFETY: `me` was linked above and the list is still locked.
        unsafe { list.unlink(me) };
        self.count_unlinked();
        me.queue.store(ptr::null_mut(), Ordering::Relaxed);
        Arrival::InTurn
    }

    /// The waiters that were chosen have not come in time. (A thread that was woken is not linked, and is
    /// sure to come.)
    fn call_all_late(list: &mut List) {
        let mut at = list.first(true);
        while let Some(entry) = at {
            // SAFETY: a linked entry is alive under the lock.
            unsafe {
                at = list.next(entry);
                list.call_late(entry.as_ref());
            }
        }
    }

    /// Offers the wake to the exclusive entries in their order until one takes it; that one has
    /// a claim then, and one turn more.
    fn offer_in_turn(&self, list: &mut List, wake: &mut Wake<'_>, whom: Whom) -> bool {
        if self.noted.load(Ordering::SeqCst) {
            return false;
        }
        let mut at = list.first(true);
        while let Some(entry) = at {
            // SAFETY: a linked entry is alive under the lock.
            at = unsafe { list.next(entry) };
            match whom {
                // SAFETY: a linked entry is alive under the lock.
                _ if unsafe { entry.as_ref() }.stands(LATE) => continue,
                Whom::Except(one) if ptr::eq(entry.as_ptr(), one) => continue,
                Whom::Before(one) if ptr::eq(entry.as_ptr(), one) => break,
                // SAFETY: as above. One with a claim has an event of its own to look for.
                Whom::Before(_) if unsafe { entry.as_ref() }.is_claimed() => continue,
                _ => {}
            }
            if self.call(list, entry, wake) != Reply::Passed {
                self.retire(list, entry);
                return true;
            }
        }
        false
    }

    /// The entry's claim, if it has one, is over.
    fn unclaim(&self, list: &mut List, entry: &WaitEntry) -> bool {
        let claimed = list.unclaim(entry);
        if claimed && !entry.stands(LINKED) {
            self.count_unlinked();
        }
        claimed
    }

    /// The entry took a rotating wake: it has a claim, and has had its turn.
    fn retire(&self, list: &mut List, entry: NonNull<WaitEntry>) {
        // SAFETY: an entry that a wake reached is alive under the lock, linked or just unlinked.
        let entry = unsafe { entry.as_ref() };
        list.claim(entry);
        entry.set_standing(RETIRED, true);
        // SAFETY: as above.
        unsafe { list.count_turn(entry) };
    }

    /// Calls entries from the head, exclusive ones until one took it.
    fn walk(&self, list: &mut List, wake: &mut Wake<'_>, exclusive_only: bool) -> usize {
        let mut took = 0;
        let mut at = list.first(exclusive_only);
        while let Some(entry) = at {
            // SAFETY: a linked entry is alive under the lock.
            at = unsafe { list.next(entry) };
            // SAFETY: as above.
            let exclusive = unsafe { entry.as_ref() }.stands(EXCLUSIVE);
            let reply = self.call(list, entry, wake);
            self.uncount(reply);
            if reply != Reply::Passed {
                took += 1;
                if exclusive {
                    if reply == Reply::Took {
                        // SAFETY: as above, and `Took` left it linked.
                        list.claim(unsafe { entry.as_ref() });
                    }
                    break;
                }
            }
        }
        took
    }

    /// What [`call`](Self::call) unlinked counts no more; what took a rotating wake still does.
    #[inline]
    fn uncount(&self, reply: Reply) {
        if reply == Reply::TookAndLeft {
            self.count_unlinked();
        }
    }

    #[inline]
    fn call(&self, list: &mut List, entry: NonNull<WaitEntry>, wake: &mut Wake<'_>) -> Reply {
        // SAFETY: a linked entry is alive under the lock.
        let on_wake = unsafe { entry.as_ref() }.on_wake;
        // SAFETY: the entry is linked into this queue, whose lock is held.
        let reply = unsafe { on_wake(entry, wake) };
        if reply == Reply::TookAndLeft {
            // SAFETY: it was linked and the list is locked. Its owner cannot free it before it
            // has taken this lock: a sleeper that was roused still unhooks under the lock.
            unsafe { list.unlink(entry.as_ref()) };
        }
        reply
    }
}

impl Drop for WaitQueue {
    fn drop(&mut self) {
        debug_assert_eq!(
            self.linked.load(Ordering::Relaxed),
            0,
            "a wait queue outlived by its waiters"
        );
    }
}
