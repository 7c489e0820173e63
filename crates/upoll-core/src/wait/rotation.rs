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
//! object ready asks for its turn ([`WaitEntry::turn`]): waiters with claims and those in line come first.
//!
//! # More events than waiters
//! A wakeup that finds no waiter sets a recheck flag in each entry, so that the first worker to
//! come polls the object (`recheck`). It also leaves a wakeup pending: the next claim that is settled
//! forwards one event more (`wakeup_pending`).

use core::ptr::{self, NonNull};

use super::call::{Called, claim};
use super::entry::{CLAIMED, EXCLUSIVE, Hooked, LINKED};
use super::list::List;
use super::locked::{Held, Kind};
use super::{Deferred, Inside, Mode, Place, WaitEntry, WaitQueue, Wake};
use crate::events::Events;
use crate::sync::{AtomicBool, AtomicU32, Ordering, Rule, broken, fence, fence_after_rmw};
use crate::tally::Tally;

/// The state of a queue for rotation that is read without the lock.
pub(super) struct Rotation {
    /// A rotating wakeup found no waiter, and all exclusive entries have the recheck flag. Until
    /// one of them clears it no further flag is needed, and no entry is in line. Set under the
    /// list's lock.
    recheck: AtomicBool,
    /// A rotating wakeup found no waiter: the next claim that is settled forwards one event more.
    /// Guarded by the list's lock.
    wakeup_pending: AtomicBool,
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

/// The state of a queue for rotation that its lock guards.
pub(super) struct Turns {
    /// Claims that are not yet settled, without those whose waiters are late.
    claims: u32,
    /// The baseline of turns: an entry with fewer turns counts as having had this many.
    baseline: u32,
}

/// The claim came from a rotating wake, which counted as a turn.
const COUNTED: u32 = 8;
/// The entry has a claim and has not come in time: no other waiter waits for it, and no wake is offered
/// to it.
const LATE: u32 = 16;
/// One turn. Their number wraps around.
const TURN: u32 = 32;
/// By how many turns one entry may be ahead of another; what is more than that is forgotten.
const REMEMBERED: u32 = 1024 * TURN;
/// As many workers that were chosen and have not come are more than chance.
#[cfg(all(feature = "std", not(upoll_loom)))]
const MANY: u32 = 4;
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

/// Whether the waiters in a queue report that they have cleared their recheck flags.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RecheckFlags {
    /// The watchers of a rotating set do.
    AreCleared,
    Stay,
}

/// The exclusive waiters that are offered a wake.
#[derive(Clone, Copy)]
enum Whom<'a> {
    All,
    Except(&'a WaitEntry),
    /// Those before this one that have no claim yet.
    Before(&'a WaitEntry),
}

/// How a rotating wake sets recheck flags, as [`Kind::Policy`] has it: several that were left go by the bits of all.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Flagging(u32);

impl Flagging {
    /// The waiters do not report that they have cleared their recheck flags.
    const EACH_TIME: Self = Flagging(0b10);
    /// A wakeup that finds no waiter sets recheck flags only if the last ones have been cleared.
    const ONCE: Self = Flagging(0b11);
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
        let wake = &mut Wake::new(key, &mut deferred);
        self.wake_in_turn(wake, Flagging::EACH_TIME)
    }

    /// Rotating counterpart of [`wake_within`](Self::wake_within), for the queues of rotating sets.
    /// The waiters there clear recheck flags, and all wakeups there have the same key.
    pub(crate) fn wake_rotate_within(&self, wake: &mut Wake<'_>) -> usize {
        self.wake_in_turn(wake, Flagging::ONCE)
    }

    fn wake_in_turn(&self, wake: &mut Wake<'_>, flagging: Flagging) -> usize {
        if !self.is_watched() {
            return 0;
        }
        let in_turn = |held: &mut Held<'_>, wake: &mut Wake<'_>| held.wake_in_turn(wake, flagging);
        self.with_lock(Kind::Policy(flagging.0), wake, in_turn)
            .unwrap_or(0)
    }

    /// An exclusive entry of this queue has no recheck flag any more, or never had one: call this
    /// before the last poll of the object. Pairs with a rotating wakeup that publishes, then reads
    /// `recheck`.
    #[inline]
    pub(crate) fn clear_recheck(&self) {
        if self.rotation.recheck.load(Ordering::Relaxed) {
            self.rotation.recheck.swap(false, Ordering::SeqCst);
            fence_after_rmw();
        }
    }

    /// Sets by how many turns a waiter may be ahead of all others, and still take the next event before them.
    #[doc(hidden)]
    pub fn set_slack(&self, turns: u32) {
        let slack = turns.min(MOST_SLACK) * TURN;
        self.rotation.slack.store(slack, Ordering::Relaxed);
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
        // SAFETY: the contract of `hook_unlinked` is this one's.
        unsafe { me.hook_unlinked(self, Place::ExclusiveTail) };
        let mut hooked = Hooked {
            entry: me,
            held: self.lock(),
        };
        if first {
            let lead = hooked.held.inside.lead_of_first();
            // SAFETY: it is hooked, and not linked yet. It stays while it is linked (`hook`'s contract).
            unsafe { hooked.held.inside.push_in_turn(me, lead, true) };
        } else {
            hooked.push(Place::ExclusiveTail);
        }
        self.count_linked();
        self.clear_recheck();
        self.tally.count(Tally::sleeps);
        if !ready() {
            return Arrival::Idle;
        }
        if hooked.held.inside.turns.claims > 0 || hooked.offers_to_others(deferred) {
            return Arrival::BehindOthers;
        }
        hooked.unlink();
        me.queue.store(ptr::null_mut(), Ordering::Relaxed);
        Arrival::InTurn
    }

    /// Forwards the wake that a leaving waiter took to the next one, in turn if the queue's wakes are.
    #[doc(hidden)]
    pub fn forward(&self, key: Events) {
        if self.rotation.is_used.load(Ordering::Relaxed) {
            self.forward_in_turn(key);
        } else {
            self.forward_in_order(key);
        }
    }

    /// Forwards the wake that a leaving waiter took to the next one in turn.
    #[doc(hidden)]
    pub fn forward_in_turn(&self, key: Events) {
        let mut deferred = Deferred::new();
        let wake = &mut Wake {
            mode: Mode::TryWake,
            ..Wake::new(key, &mut deferred)
        };
        let mut held = self.lock();
        if !held.offer_in_turn(wake, Whom::All) {
            self.rotation.wakeup_pending.store(true, Ordering::Relaxed);
            wake.mode = Mode::Notify;
            held.walk(wake, true);
        }
    }
}

impl Held<'_> {
    /// A wake that the queue's policy makes, with the number of its [`Kind::Policy`].
    #[cfg(any(feature = "std", upoll_loom))]
    pub(super) fn wake_by_policy(&mut self, wake: &mut Wake<'_>, number: u32) -> usize {
        self.wake_in_turn(wake, Flagging(number))
    }

    /// [`WaitQueue::wake_rotate`] with the lock held.
    fn wake_in_turn(&mut self, wake: &mut Wake<'_>, flagging: Flagging) -> usize {
        let queue = self.queue;
        queue.rotation.is_used.store(true, Ordering::Relaxed);
        let mut took = 0;
        let mut walk = self.inside.entries.walk();
        while let Some(linked) = walk.advance() {
            if linked.entry().has_rank_bit(EXCLUSIVE) {
                break;
            }
            let called = queue.call_and_count(linked, wake);
            took += usize::from(!matches!(called, Called::Declined));
        }
        wake.mode = Mode::TryWake;
        if self.offer_in_turn(wake, Whom::All) {
            #[cfg(all(feature = "std", not(upoll_loom)))]
            wake.deferred.yield_if(self.inside.turns.yields_to_chosen());
            took += 1;
        } else {
            queue.rotation.wakeup_pending.store(true, Ordering::Relaxed);
            took += usize::from(self.flag_all(wake, flagging));
        }
        queue.count_wake(took);
        took
    }

    /// Sets a recheck flag in all exclusive entries, because no thread waits. Returns whether a
    /// thread was waiting after all, and took the event.
    fn flag_all(&mut self, wake: &mut Wake<'_>, flagging: Flagging) -> bool {
        let queue = self.queue;
        if queue.rotation.recheck.load(Ordering::SeqCst) {
            return false;
        }
        wake.mode = Mode::Notify;
        if flagging == Flagging::ONCE {
            queue.rotation.recheck.store(true, Ordering::SeqCst);
        }
        let mut walk = self.inside.entries.walk_exclusive();
        while let Some(linked) = walk.advance() {
            if !linked.entry().has_rank_bit(EXCLUSIVE) {
                continue;
            }
            if let Some(taker) = queue.call(linked, wake).taker() {
                // The other entries get no recheck flag.
                queue.clear_recheck();
                self.claim_in_turn(taker);
                return true;
            }
        }
        false
    }

    /// Offers the wake to the exclusive entries in their order until one takes it; that one has
    /// a claim then, and one turn more.
    fn offer_in_turn(&mut self, wake: &mut Wake<'_>, whom: Whom<'_>) -> bool {
        let queue = self.queue;
        if queue.rotation.recheck.load(Ordering::SeqCst) {
            return false;
        }
        let mut walk = self.inside.entries.walk_exclusive();
        while let Some(linked) = walk.advance() {
            let entry = linked.entry();
            let rank = entry.rank.load(Ordering::Relaxed);
            match whom {
                // Shared entries stand behind an exclusive one that was linked first.
                _ if rank & (LATE | EXCLUSIVE) != EXCLUSIVE => continue,
                Whom::Except(one) if ptr::eq(entry, one) => continue,
                Whom::Before(one) if ptr::eq(entry, one) => break,
                // One with a claim has an event of its own to look for.
                Whom::Before(_) if entry.is_claimed() => continue,
                _ => {}
            }
            if let Some(taker) = queue.call(linked, wake).taker() {
                self.claim_in_turn(taker);
                return true;
            }
        }
        false
    }

    /// The exclusive entry took a rotating wake: it has a claim, and has had its turn.
    fn claim_in_turn(&mut self, entry: NonNull<WaitEntry>) {
        let inside = &mut *self.inside;
        // SAFETY: the wake was offered to exclusive entries alone. The owner of one waits for this lock before it ends the
        // entry, also if a wake has unlinked it (`is_done`).
        let entry = unsafe { entry.as_ref() };
        claim(entry, &mut inside.turns);
        entry.set_rank_bit(COUNTED, true);
        // SAFETY: it is linked here, or was until the wake that it took: its owner could not link it since, without this lock.
        unsafe { inside.count_turn(entry) };
    }

    /// Returns whether `me` is ahead of every other exclusive waiter by less than the slack, also of those that do not wait
    /// now.
    fn goes_on(&self, me: &WaitEntry) -> bool {
        let slack = self.queue.rotation.slack.load(Ordering::Relaxed);
        if slack == 0 {
            return false;
        }
        let Inside { entries, turns } = &*self.inside;
        let mut others = entries.exclusive().filter(|&entry| !ptr::eq(entry, me));
        let least = others.next().map(|least| turns.lead(least));
        least.is_none_or(|least| turns.lead(me) < least + slack)
    }
}

impl WaitEntry {
    /// Asks whether this entry, an exclusive waiter without a claim that found the object still ready, may
    /// take it: the rule that makes workers take turns at a source that stays ready.
    ///
    /// The next waiter in line is offered it first, and so is each waiter that holds a claim. How
    /// far that goes depends on `ask`. If the entry may not take it, `refused` runs under the queue's
    /// lock, so that what it undoes does not race with a wake, and the result is false.
    pub(crate) fn turn(&self, ask: Ask, refused: impl FnOnce(), deferred: &mut Deferred) -> bool {
        let Some(mut hooked) = self.lock() else {
            return true;
        };
        let is_mine = hooked.turn(ask, deferred);
        if !is_mine {
            refused();
        }
        is_mine
    }

    /// Returns whether the entry is ahead of every other exclusive waiter by less than the slack, also of those that do not
    /// wait now.
    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) fn has_slack(&self) -> bool {
        self.lock().is_some_and(|hooked| hooked.held.goes_on(self))
    }

    /// The owner has polled the object: its claim is used up. With `has_another` the object has an event more than the one that
    /// the claim is for. If so, or if a wakeup is pending in the queue, the next waiter is offered that now; if none waits,
    /// the next to come polls.
    ///
    /// `still_ready` runs under the queue's lock: a wakeup that came after the owner's poll counts,
    /// or its pending event would be forgotten.
    pub fn settle(
        &self,
        still_ready: impl FnOnce() -> bool,
        has_another: bool,
        flags: RecheckFlags,
        deferred: &mut Deferred,
    ) {
        let Some(mut hooked) = self.lock() else {
            return;
        };
        let pending = &hooked.held.queue.rotation.wakeup_pending;
        let counted = self.has_rank_bit(COUNTED);
        let claimed = hooked.unclaim();
        if !still_ready() {
            pending.store(false, Ordering::Relaxed);
            if claimed && counted {
                hooked.give_turn_back();
            }
        } else if has_another || pending.load(Ordering::Relaxed) {
            hooked.forward_another(flags, deferred);
        }
    }
}

impl Hooked<'_> {
    /// [`WaitEntry::turn`] with the lock held.
    fn turn(&mut self, ask: Ask, deferred: &mut Deferred) -> bool {
        let me = self.entry;
        let chosen = matches!(ask, Ask::Chosen | Ask::WithinSlack);
        if self.unclaim() {
            // A wake chose `me` just now.
            if chosen {
                self.forward_another(RecheckFlags::AreCleared, deferred);
            }
            return true;
        }
        if broken(Rule::ForwardTurn) {
            return false;
        }
        let others_are_chosen = self.held.inside.turns.claims > 0;
        let whom = match ask {
            Ask::Yielding if others_are_chosen => return false,
            Ask::AtOnce if others_are_chosen => None,
            Ask::Unconditional => None,
            Ask::WithinSlack if self.held.goes_on(me) => None,
            Ask::Chosen | Ask::WithinSlack => Some(Whom::Before(me)),
            Ask::Yielding | Ask::AtOnce => Some(Whom::Except(me)),
        };
        if let Some(whom) = whom
            && self.held.offer_in_turn(&mut offer(deferred), whom)
        {
            return false;
        }
        let inside = &mut *self.held.inside;
        if ask == Ask::Unconditional {
            inside.call_all_late();
        }
        // SAFETY: a hooked entry is linked into this list, if into any.
        unsafe { inside.count_turn(me) };
        true
    }

    /// Offers the others an event. Returns whether one took it.
    fn offers_to_others(&mut self, deferred: &mut Deferred) -> bool {
        let whom = Whom::Except(self.entry);
        self.held.offer_in_turn(&mut offer(deferred), whom)
    }

    /// Offers the next in line an event in addition to the one that the entry has. If no thread waits,
    /// all get recheck flags where those are cleared: some may be about to wait, as others have the
    /// event as far as they know.
    fn forward_another(&mut self, flags: RecheckFlags, deferred: &mut Deferred) {
        if broken(Rule::ForwardSecondEvent) {
            return;
        }
        if !self.offers_to_others(deferred) && flags == RecheckFlags::AreCleared {
            let rotation = &self.held.queue.rotation;
            rotation.wakeup_pending.store(true, Ordering::Relaxed);
            self.held.flag_all(&mut offer(deferred), Flagging::ONCE);
        }
    }

    /// The entry was chosen for nothing: that was no turn, so the next one is its again.
    fn give_turn_back(&mut self) {
        let inside = &mut *self.held.inside;
        if self.entry.has_rank_bit(LINKED) {
            let lead = inside.turns.lead(self.entry).saturating_sub(TURN);
            // SAFETY: a hooked entry is linked into this list, if into any.
            unsafe { inside.move_in_turn(self.entry, lead, true) };
        }
    }
}

/// A wake that tries for one waiter.
fn offer(deferred: &mut Deferred) -> Wake<'_> {
    Wake {
        mode: Mode::TryWake,
        ..Wake::new(Events::IN, deferred)
    }
}

impl Inside {
    /// The waiters that were chosen have not come in time. (A thread that was woken is not linked, and is
    /// sure to come.)
    fn call_all_late(&mut self) {
        for entry in self.entries.exclusive() {
            self.turns.call_late(entry);
        }
    }

    fn lead_of_first(&self) -> u32 {
        let first = self.entries.exclusive().next();
        first.map_or(0, |first| self.turns.lead(first))
    }

    /// Links an exclusive entry that is ahead by `lead` behind those ahead by as much or less, or
    /// before those ahead by as much or more.
    ///
    /// # Safety
    /// As [`List::push_behind`].
    unsafe fn push_in_turn(&mut self, entry: &WaitEntry, lead: u32, before_equals: bool) {
        let Inside { entries, turns } = self;
        turns.set_lead(entry, lead);
        let goes_before = |other: &WaitEntry| {
            let theirs = turns.lead(other);
            other.has_rank_bit(EXCLUSIVE) && (theirs > lead || before_equals && theirs == lead)
        };
        // SAFETY: the contract of `push_behind` is this one's.
        unsafe { entries.push_behind(entry, goes_before) };
    }

    /// Moves a linked entry to the place that goes with the `lead`, as [`push_in_turn`](Self::push_in_turn) finds it.
    ///
    /// # Safety
    /// The entry is linked nowhere else.
    unsafe fn move_in_turn(&mut self, entry: &WaitEntry, lead: u32, before_equals: bool) {
        // SAFETY: it is linked nowhere but here. Once it is unlinked it is linked nowhere, and it stays as it would have if
        // it had not been moved.
        unsafe {
            if let Some(linked) = self.entries.linked(entry) {
                linked.unlink();
                self.push_in_turn(entry, lead, before_equals);
            }
        }
    }

    /// The entry has one turn more: it stands behind all that have had as many or fewer.
    ///
    /// # Safety
    /// The entry is linked nowhere else.
    unsafe fn count_turn(&mut self, entry: &WaitEntry) {
        let lead = self.turns.count(entry);
        // SAFETY: the contract of `move_in_turn` is this one's.
        unsafe { self.move_in_turn(entry, lead, false) };
    }
}

/// The functions for the rest of `wait` are the policy's part in the links and claims of any queue.
impl Turns {
    pub(super) fn new() -> Self {
        Turns {
            claims: 0,
            baseline: 0,
        }
    }

    /// An exclusive entry that is new is to be linked behind all others.
    #[inline]
    pub(super) fn begins_last(&mut self, entry: &WaitEntry, entries: &List) {
        let lead = entries.last().map_or(0, |last| self.lead(last));
        self.set_lead(entry, lead);
    }

    /// An entry has a claim that it did not have.
    #[inline]
    pub(super) fn claimed(&mut self) {
        self.claims += 1;
    }

    /// An entry has a claim no more. Returns the policy's bits of its rank that go with the claim.
    #[inline]
    pub(super) fn unclaimed(&mut self, entry: &WaitEntry) -> u32 {
        if !entry.has_rank_bit(LATE) {
            self.claims -= 1;
        }
        COUNTED | LATE
    }

    /// Returns by how many turns the entry is ahead of those that count as having had the fewest.
    /// An entry that was away for long is not behind them.
    fn lead(&self, entry: &WaitEntry) -> u32 {
        let turns = entry.rank.load(Ordering::Relaxed) & !(TURN - 1);
        let lead = turns.wrapping_sub(self.baseline);
        if lead > REMEMBERED { 0 } else { lead }
    }

    fn set_lead(&self, entry: &WaitEntry, lead: u32) {
        let bits = entry.rank.load(Ordering::Relaxed) & (TURN - 1);
        let turns = self.baseline.wrapping_add(lead);
        entry.rank.store(turns | bits, Ordering::Relaxed);
    }

    /// Counts a turn of the entry. Returns its lead.
    fn count(&mut self, entry: &WaitEntry) -> u32 {
        let mut lead = self.lead(entry) + TURN;
        if lead > REMEMBERED {
            self.baseline = self.baseline.wrapping_add(TURN);
            lead -= TURN;
        }
        self.set_lead(entry, lead);
        lead
    }

    /// The entry has not come in time, if it has a claim.
    fn call_late(&mut self, entry: &WaitEntry) {
        if entry.has_rank_bit(CLAIMED) && !entry.has_rank_bit(LATE) {
            entry.set_rank_bit(LATE, true);
            self.claims -= 1;
        }
    }

    /// Returns whether a thread that has just chosen a worker yields its processor. If many that were chosen have not come
    /// yet, some of them wait for the processor of the thread that wakes them. So that thread yields it once.
    ///
    /// It might run on for milliseconds otherwise. Events do not wait for those behind it: workers on
    /// other processors take thousands meanwhile, more than can be made up for later. From one time
    /// to the next the number doubles, as it is of no use to yield to what does not run then.
    #[cfg(all(feature = "std", not(upoll_loom)))]
    #[inline]
    fn yields_to_chosen(&self) -> bool {
        self.claims >= MANY && self.claims.is_power_of_two()
    }
}

#[cfg(all(test, feature = "std", not(upoll_loom)))]
mod tests {
    use core::pin::Pin;
    use core::ptr::NonNull;
    use std::boxed::Box;

    use super::{Ask, RecheckFlags};
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
            let is_mine = entry.turn(ask, refused, &mut deferred);
            assert_ne!(is_mine, is_refused);
            is_mine
        }

        fn has_slack(&self, entry: usize) -> bool {
            self.entries[entry].has_slack()
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
            two.entries[1].settle(|| true, false, RecheckFlags::AreCleared, deferred);
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
                two.entries[1].settle(|| true, false, RecheckFlags::AreCleared, deferred);
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
