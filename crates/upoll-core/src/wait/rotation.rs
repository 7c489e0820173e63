//! Rotation: exclusive waiters of a queue take turns. A policy over the wait queue, which needs none of it
//! for other wakes.
//!
//! # The line
//! Exclusive entries stand in the order of the turns that they had, those with as many in the order in
//! which they came. A rotating wake chooses the first one that waits, which counts as a turn; a lead of up
//! to [`REMEMBERED`] is caught up with. An entry that was chosen for nothing gets its turn back
//! ([`WaitEntry::settle`]).
//!
//! # Claims
//! The chosen waiter has a claim until it has polled the object. A waiter without a claim that finds the
//! object ready asks for its turn ([`WaitQueue::turn`]): waiters with claims and those in line come first.
//!
//! # More events than waiters
//! A wakeup that finds no waiter sets a recheck flag in each entry, so that the first worker to
//! come polls the object (`recheck`). It also leaves a wakeup pending: the next claim that is settled
//! forwards one event more (`wakeup_pending`).

use core::ptr::{self, NonNull};

use super::list::{CLAIMED, EXCLUSIVE, LINKED, List, Node};
use super::locked::Kind;
use super::{Deferred, Mode, Reply, WaitEntry, WaitQueue, Wake};
use crate::events::Events;
use crate::sync::{AtomicBool, AtomicU32, Ordering, Rule, broken, fence, fence_after_rmw};
use crate::tally::Tally;

/// The state of a queue for rotation.
pub(super) struct Rotation {
    /// A rotating wakeup found no waiter, and all exclusive entries have the recheck flag. Until
    /// one of them uses it up no further flag is needed, and no entry is in line. Set under the
    /// list's lock.
    pub(super) recheck: AtomicBool,
    /// A rotating wakeup found no waiter: the next claim that is settled forwards one event more.
    /// Guarded by the list's lock.
    pub(super) wakeup_pending: AtomicBool,
    /// True if the wakes of the queue are rotating ones. Written under the list's lock.
    is_used: AtomicBool,
    /// The lead over all others with which a waiter still takes the next event before them. A turn that is taken
    /// as it changes goes by either value.
    slack: AtomicU32,
}

impl Rotation {
    pub(super) fn new() -> Self {
        Rotation {
            recheck: AtomicBool::new(false),
            wakeup_pending: AtomicBool::new(false),
            is_used: AtomicBool::new(false),
            slack: AtomicU32::new(0),
        }
    }
}

/// The claim came from a rotating wake, which counted as a turn.
pub(super) const RETIRED: u32 = 8;
/// The entry has a claim and has not come in time: no other waiter waits for it, and no wake is offered
/// to it.
pub(super) const LATE: u32 = 16;
/// One turn. Their number wraps around.
pub(super) const TURN: u32 = 32;
/// By how many turns one entry may be ahead of another; what is more than that is forgotten.
const REMEMBERED: u32 = 1024 * TURN;
/// The greatest slack, in turns: leads that are to be compared have to be remembered.
const MOST_SLACK: u32 = 512;

/// The ways in which a waiter without a claim asks for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Waiters that were chosen, and those in line, come first; the caller asks again before long.
    Yielding,
    /// Those in line come first, unless waiters that were chosen are on their way already.
    AtOnce,
    /// Nobody comes first.
    Unconditional,
    /// Something outside chose it, as the first in its own line: only waiters that stand before it
    /// here come first.
    Chosen,
    /// As `Chosen`, and nobody comes first while it is ahead of the others by less than the slack.
    WithinSlack,
}

/// The result of the last check before a thread sleeps in a rotating set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The object is ready, and it is the thread's turn. Its entry is not linked.
    InTurn,
    /// The object is ready, and others come first. The entry is linked.
    BehindOthers,
    /// The object is not ready. The entry is linked.
    Idle,
}

/// The report of the waiters in a queue that they have used up their
/// recheck flags.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Notes {
    /// The watchers of a rotating set do.
    AreUsedUp,
    Stay,
}

/// The exclusive waiters that are offered a wake.
#[derive(Clone, Copy)]
enum Whom {
    All,
    Except(*const WaitEntry),
    /// Those before this one that have no claim yet.
    Before(*const WaitEntry),
}

impl WaitQueue {
    /// Like [`wake`](Self::wake), but exclusive waiters take turns. The entry that took the event
    /// has had a turn, and moves behind those that had as many or fewer. An entry that no thread
    /// waits on is passed over.
    ///
    /// If no entry takes the event, every exclusive waiter gets a recheck flag, so that the first
    /// to come polls the object.
    ///
    /// A wakeup that chooses a waiter while three other chosen ones have not come yet ends with a
    /// `sched_yield(2)`, as does the eighth, the sixteenth and so on. The caller must hold no lock
    /// that they need.
    pub fn wake_rotate(&self, key: Events) -> usize {
        fence(Ordering::SeqCst);
        let mut deferred = Deferred::new();
        let mut wake = Wake {
            key,
            mode: Mode::Notify,
            deferred: &mut deferred,
        };
        // Waiters here do not report that they have used up their recheck flags.
        self.wake_in_turn(&mut wake, false)
    }

    /// Rotating counterpart of [`wake_within`](Self::wake_within), for the queues of rotating sets.
    /// The waiters there use up recheck flags, and all wakeups there have the same key.
    pub(crate) fn wake_rotate_within(&self, wake: &mut Wake<'_>) -> usize {
        self.wake_in_turn(wake, true)
    }

    /// With `notes_last` a wakeup that finds no waiter sets recheck flags only if the last ones
    /// have been used up.
    fn wake_in_turn(&self, wake: &mut Wake<'_>, notes_last: bool) -> usize {
        if !self.is_watched() {
            return 0;
        }
        let Some(mut list) = self.lock_to_wake(Kind::Rotating { notes_last }, wake) else {
            return 0;
        };
        let took = self.wake_in_turn_locked(&mut list, wake, notes_last);
        drop(list);
        took
    }

    /// [`wake_in_turn`](Self::wake_in_turn) with the lock held.
    pub(super) fn wake_in_turn_locked(
        &self,
        list: &mut List,
        wake: &mut Wake<'_>,
        notes_last: bool,
    ) -> usize {
        self.rotation.is_used.store(true, Ordering::Relaxed);
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
            took += usize::from(reply != Reply::Declined);
        }
        wake.mode = Mode::TryWake;
        if self.offer_in_turn(list, wake, Whom::All) {
            #[cfg(all(feature = "std", not(upoll_loom)))]
            wake.deferred.let_run(list.claims);
            took += 1;
        } else {
            self.rotation.wakeup_pending.store(true, Ordering::Relaxed);
            took += usize::from(self.leave_notes(list, wake, notes_last));
        }
        self.count_wake(took);
        took
    }

    /// Sets a recheck flag in all exclusive entries, because no thread waits. Returns whether a
    /// thread was waiting after all, and took the event.
    fn leave_notes(&self, list: &mut List, wake: &mut Wake<'_>, notes_last: bool) -> bool {
        if self.rotation.recheck.load(Ordering::SeqCst) {
            return false;
        }
        wake.mode = Mode::Notify;
        if notes_last {
            self.rotation.recheck.store(true, Ordering::SeqCst);
        }
        let mut at = list.first(true);
        while let Some(entry) = at {
            // SAFETY: a linked entry is alive under the lock.
            at = unsafe { list.next(entry) };
            if self.call(list, entry, wake) != Reply::Declined {
                // The other entries get no recheck flag.
                self.use_up_notes();
                self.retire(list, entry);
                return true;
            }
        }
        false
    }

    /// An exclusive entry of this queue has no recheck flag any more, or never had one: call this
    /// before the last poll of the object. Pairs with a rotating wakeup that publishes, then reads
    /// `recheck`.
    #[inline]
    pub(crate) fn use_up_notes(&self) {
        if self.rotation.recheck.load(Ordering::Relaxed) {
            self.rotation.recheck.swap(false, Ordering::SeqCst);
            fence_after_rmw();
        }
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
        let chosen = matches!(ask, Ask::Chosen | Ask::WithinSlack);
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
            Ask::WithinSlack if self.goes_on(list, me) => None,
            Ask::Chosen | Ask::WithinSlack => Some(Whom::Before(me)),
            Ask::Yielding | Ask::AtOnce => Some(Whom::Except(me)),
        };
        let mut wake = Wake {
            key: Events::IN,
            mode: Mode::TryWake,
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

    /// Sets by how many turns a waiter may be ahead of all others, and still take the next event before them.
    #[doc(hidden)]
    pub fn set_slack(&self, turns: u32) {
        let slack = turns.min(MOST_SLACK) * TURN;
        self.rotation.slack.store(slack, Ordering::Relaxed);
    }

    /// Returns whether `me` is ahead of every other exclusive waiter by less than the slack, also of those that do not wait now.
    #[cfg(any(feature = "std", upoll_loom))]
    #[doc(hidden)]
    pub(crate) fn has_slack(&self, me: &WaitEntry) -> bool {
        let list = self.lock();
        let has_slack = self.goes_on(&list, me);
        drop(list);
        has_slack
    }

    /// [`has_slack`](Self::has_slack) with the lock held.
    fn goes_on(&self, list: &List, me: &WaitEntry) -> bool {
        let slack = self.rotation.slack.load(Ordering::Relaxed);
        if slack == 0 {
            return false;
        }
        let mut least = list.first(true);
        if let Some(entry) = least
            && ptr::eq(entry.as_ptr(), me)
        {
            // SAFETY: a linked entry is alive under the lock.
            least = unsafe { list.next(entry) };
        }
        // SAFETY: as above.
        let least = least.map(|least| list.lead(unsafe { least.as_ref() }));
        least.is_none_or(|least| list.lead(me) < least + slack)
    }

    /// Links `me` at the tail, for a thread about to sleep, unless it is its turn to poll first.
    ///
    /// It is its turn if nobody holds a claim and nobody else waits. With `first`, for one that was
    /// chosen for nothing, it is linked before all others.
    ///
    /// # Safety
    /// As [`WaitEntry::hook`].
    #[doc(hidden)]
    pub unsafe fn turn_or_hook(
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
        self.count_linked();
        self.use_up_notes();
        self.tally.count(Tally::sleeps);
        if !ready() {
            return Arrival::Idle;
        }
        let mut wake = Wake {
            key: Events::IN,
            mode: Mode::TryWake,
            deferred,
        };
        if list.claims > 0 || self.offer_in_turn(list, &mut wake, Whom::Except(me)) {
            return Arrival::BehindOthers;
        }
        // SAFETY: `me` was linked above and the list is still locked.
        unsafe { list.unlink(NonNull::from(me)) };
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
        if self.rotation.recheck.load(Ordering::SeqCst) {
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
            if self.call(list, entry, wake) != Reply::Declined {
                self.retire(list, entry);
                return true;
            }
        }
        false
    }

    /// Hands the wake that a leaving waiter took to the next one, in turn if the queue's wakes are.
    #[doc(hidden)]
    pub fn forward(&self, key: Events) {
        if self.rotation.is_used.load(Ordering::Relaxed) {
            self.pass_on_in_turn(key);
        } else {
            self.pass_on(key);
        }
    }

    /// Hands the wake that a leaving waiter took to the next one.
    #[doc(hidden)]
    pub fn pass_on_in_turn(&self, key: Events) {
        let mut deferred = Deferred::new();
        let mut wake = Wake {
            key,
            mode: Mode::TryWake,
            deferred: &mut deferred,
        };
        let mut list = self.lock();
        if !self.offer_in_turn(&mut list, &mut wake, Whom::All) {
            self.rotation.wakeup_pending.store(true, Ordering::Relaxed);
            wake.mode = Mode::Notify;
            self.walk(&mut list, &mut wake, true);
        }
        drop(list);
    }

    /// Offers the next in line an event in addition to the one that `me` has. If no thread waits,
    /// all get recheck flags where those are used up: some may be about to wait, as others have the
    /// event as far as they know.
    fn hand_on(&self, list: &mut List, me: &WaitEntry, uses: Notes, deferred: &mut Deferred) {
        let mut wake = Wake {
            key: Events::IN,
            mode: Mode::TryWake,
            deferred,
        };
        if broken(Rule::HandOnSecondEvent) {
            return;
        }
        if !self.offer_in_turn(list, &mut wake, Whom::Except(me)) && uses == Notes::AreUsedUp {
            self.rotation.wakeup_pending.store(true, Ordering::Relaxed);
            self.leave_notes(list, &mut wake, true);
        }
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
}

impl WaitEntry {
    /// The owner has polled the object: its claim is used up. With `has_another` the object has an event more than the one that
    /// the claim is for. If so, or if a wakeup is pending in the queue, the next waiter is offered that now; if none waits,
    /// the next to come polls.
    ///
    /// `still_ready` runs under the queue's lock: a wakeup that came after the owner's poll counts,
    /// or its pending event would be forgotten.
    ///
    /// # Safety
    /// The entry is hooked, or was hooked and unlinked by a wake, and its queue is alive.
    pub unsafe fn settle(
        &self,
        still_ready: impl FnOnce() -> bool,
        has_another: bool,
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
            queue
                .rotation
                .wakeup_pending
                .store(false, Ordering::Relaxed);
            if claimed && retired && self.stands(LINKED) {
                // Chosen for nothing: that was no turn, so the next one is its again.
                // SAFETY: the entry is linked here and the list locked.
                unsafe {
                    list.unlink(NonNull::from(self));
                    let lead = list.lead(self).saturating_sub(TURN);
                    list.push_in_turn(self, lead, true);
                }
            }
        } else if has_another || queue.rotation.wakeup_pending.load(Ordering::Relaxed) {
            queue.hand_on(&mut list, self, uses, deferred);
        }
        drop(list);
    }
}

impl List {
    /// Returns by how many turns the entry is ahead of those that count as having had the fewest.
    /// An entry that was away for long is not behind them.
    pub(super) fn lead(&self, entry: &WaitEntry) -> u32 {
        let turns = entry.rank.load(Ordering::Relaxed) & !(TURN - 1);
        let lead = turns.wrapping_sub(self.baseline);
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
            self.baseline = self.baseline.wrapping_add(TURN);
            lead -= TURN;
        }
        self.set_lead(entry, lead);
        if entry.stands(LINKED) {
            // SAFETY: the entry is linked here and the list locked.
            unsafe {
                self.unlink(NonNull::from(entry));
                self.push_in_turn(entry, lead, false);
            }
        }
    }

    pub(super) fn set_lead(&self, entry: &WaitEntry, lead: u32) {
        let bits = entry.rank.load(Ordering::Relaxed) & (TURN - 1);
        let turns = self.baseline.wrapping_add(lead);
        entry.rank.store(turns | bits, Ordering::Relaxed);
    }

    /// The entry has not come in time, if it has a claim.
    pub(super) fn call_late(&mut self, entry: &WaitEntry) {
        if entry.stands(CLAIMED) && !entry.stands(LATE) {
            entry.set_standing(LATE, true);
            self.claims -= 1;
        }
    }
}

#[cfg(all(test, feature = "std", not(upoll_loom)))]
mod tests {
    use core::pin::Pin;
    use core::ptr::NonNull;
    use std::boxed::Box;

    use super::{Ask, Notes};
    use crate::sync::Ordering;
    use crate::wait::{Deferred, Mode, Place, Reply, WaitEntry, WaitQueue, Wake};

    /// Counts the wakes that an entry takes in its owner's word.
    fn take(entry: NonNull<WaitEntry>, wake: &mut Wake<'_>) -> Reply {
        if wake.mode != Mode::TryWake {
            return Reply::Declined;
        }
        // SAFETY: a linked entry is alive.
        let word = unsafe { &entry.as_ref().owner_word };
        word.fetch_add(1, Ordering::Relaxed);
        Reply::Woken
    }

    /// Two waiters of a queue that wait, one behind the other.
    struct Two {
        queue: WaitQueue,
        entries: [Pin<Box<WaitEntry>>; 2],
    }

    impl Two {
        fn with_slack(slack: u32) -> Box<Self> {
            let two = Box::new(Two {
                queue: WaitQueue::new(),
                entries: [(); 2].map(|()| Box::pin(WaitEntry::new(take))),
            });
            two.queue.set_slack(slack);
            for entry in &two.entries {
                // SAFETY: each is hooked once, and unhooked before it and the queue end.
                unsafe { entry.hook(&raw const two.queue, Place::ExclusiveTail) };
            }
            two
        }

        fn takes(&self, entry: usize, ask: Ask) -> bool {
            let mut deferred = Deferred::new();
            let mut is_refused = false;
            let refused = || is_refused = true;
            let entry = &self.entries[entry];
            // SAFETY: each entry is hooked into the queue.
            let is_mine = unsafe { self.queue.turn(entry, ask, refused, &mut deferred) };
            assert_ne!(is_mine, is_refused);
            is_mine
        }

        fn has_slack(&self, entry: usize) -> bool {
            self.queue.has_slack(&self.entries[entry])
        }

        fn wakes(&self, entry: usize) -> u32 {
            self.entries[entry].owner_word.load(Ordering::Relaxed)
        }
    }

    impl Drop for Two {
        fn drop(&mut self) {
            for entry in &self.entries {
                entry.unhook();
            }
        }
    }

    #[test]
    fn a_chosen_waiter_takes_as_many_turns_as_there_is_slack_before_the_next_one() {
        for slack in [1, 4] {
            let two = Two::with_slack(slack);
            for _ in 0..slack {
                assert!(two.has_slack(0));
                assert!(two.takes(0, Ask::WithinSlack));
                assert_eq!(two.wakes(1), 0);
            }
            assert!(!two.has_slack(0));
            assert!(!two.takes(0, Ask::WithinSlack));
            assert_eq!(two.wakes(1), 1);
            let deferred = &mut Deferred::new();
            // SAFETY: the queue is alive.
            unsafe { two.entries[1].settle(|| true, false, Notes::AreUsedUp, deferred) };
            // The other one has had a turn, so this one may have one more.
            assert!(two.has_slack(0));
            assert!(two.takes(0, Ask::WithinSlack));
            assert!(!two.takes(0, Ask::WithinSlack));
            assert_eq!(two.wakes(1), 2);
        }
    }

    #[test]
    fn a_waiter_that_was_ahead_leaves_as_many_events_to_one_that_was_woken_and_did_not_run() {
        for slack in [0, 4] {
            const AHEAD: u32 = 100;
            let two = Two::with_slack(slack);
            // The first one without slack is a turn like that of one that comes back.
            for _ in 0..slack.max(1) {
                assert!(two.takes(0, Ask::WithinSlack));
            }
            assert!(!two.takes(0, Ask::WithinSlack));
            // Woken, and it does not run: no event waits for it.
            for _ in 0..AHEAD {
                assert!(two.takes(0, Ask::WithinSlack));
            }
            assert_eq!(two.wakes(1), 1);
            let comes = || {
                let deferred = &mut Deferred::new();
                // SAFETY: the queue is alive.
                unsafe { two.entries[1].settle(|| true, false, Notes::AreUsedUp, deferred) };
            };
            comes();
            for _ in 0..AHEAD {
                assert!(!two.takes(0, Ask::WithinSlack));
                comes();
            }
            assert_eq!(two.wakes(1), 1 + AHEAD);
            assert!(two.takes(0, Ask::WithinSlack));
        }
    }

    #[test]
    fn without_slack_a_chosen_waiter_leaves_its_second_turn_to_the_next_one() {
        let two = Two::with_slack(0);
        assert!(!two.has_slack(0));
        assert!(two.takes(0, Ask::WithinSlack));
        assert!(!two.takes(0, Ask::WithinSlack));
        assert_eq!(two.wakes(1), 1);
    }

    #[test]
    fn a_waiter_that_was_not_chosen_goes_before_nobody_within_the_slack() {
        for ask in [Ask::Yielding, Ask::AtOnce, Ask::Chosen] {
            let two = Two::with_slack(4);
            assert!(!two.takes(1, ask));
            assert_eq!(two.wakes(0), 1);
        }
    }
}
