//! Taking reports off the ready list: `epoll_wait(2)` without the wait.

use super::Set;
#[cfg(any(feature = "std", upoll_loom))]
use super::backend::KernelBackend;
use super::ctl::as_set;
use super::interest::{ItemMut, ItemRef, LockedSet, state};
use super::ready::{Listed, ReadyList};
use crate::events::{Event, Events};
use crate::steps::{Step, step};
use crate::sync::{Ordering, Rule, broken};
use crate::wait::{Ask, Deferred, Mode, RecheckFlags, Scope, Wake};
use core::mem;
use core::ptr;

/// The report of an idle item.
const NOTHING: (Events, u64) = (Events::empty(), 0);

/// Interests that a report uses up.
const CONSUMING: Events = Events::ET.union(Events::ONESHOT);

/// The outcome of a harvest in rotating sets.
#[derive(Default)]
pub struct Turns {
    /// An event of a rotating set was left to another worker since the last sleep began.
    pub yielded: bool,
}

/// A scan under way. Ends in `drop`, also when a foreign `poll` panics.
struct Scan<'a> {
    /// First, so that the lock is free when the rest ends.
    locked: LockedSet<'a>,
    progress: Progress,
}

/// The findings of a scan so far.
struct Progress {
    /// Level-triggered items that were reported and stay ready.
    again: ReadyList,
    /// The way in which this scan asks for the event of a rotating set for which it was not chosen.
    ask: Ask,
    turns: Turns,
    deferred: Deferred,
}

impl<'a> Scan<'a> {
    /// None if nothing is ready.
    #[inline(always)]
    fn begin(locked: LockedSet<'a>, ask: Ask) -> Option<Self> {
        if !locked.begin_scan() {
            return None;
        }
        Some(Scan {
            locked,
            progress: Progress {
                again: ReadyList::new(),
                ask,
                turns: Turns::default(),
                deferred: Deferred::new(),
            },
        })
    }

    /// Records that the calling thread waits on all rotating sets that are queued here, whatever it
    /// finds, also on those that it does not reach.
    fn clear_recheck(&self) {
        for item in self.locked.rotating() {
            step(Step::Poll);
            if item.state() & state::QUEUED != 0 {
                item.clear_recheck();
            }
        }
    }
}

impl Progress {
    /// Takes the oldest ready item. Returns the events to report and the item's data; no events if
    /// it is not ready.
    #[inline(always)]
    fn take(&mut self, listed: Listed<'_>) -> (Events, u64) {
        let item = listed.item();
        let interest = item.interest();
        // Only such an item can hold a claim.
        if interest.contains(Events::EXCLUSIVE) || item.state() & !state::QUEUED != 0 {
            return self.take_in_turn(listed, interest);
        }
        let events = if interest.intersects(CONSUMING) {
            let events = listed.take_off().poll_unqueued();
            if !events.is_empty() {
                use_up(item, interest);
            }
            events
        } else {
            listed.poll_or_unqueue(|listed| self.report_again(listed))
        };
        (events, item.data())
    }

    /// [`take`](Self::take) of an item that may hold a claim, or must not be taken out of turn.
    #[inline(never)]
    fn take_in_turn(&mut self, listed: Listed<'_>, interest: Events) -> (Events, u64) {
        let item = listed.item();
        let set = item.set();
        let consumes = interest.intersects(CONSUMING);
        let chosen = item.state() & state::CHOSEN != 0;
        // The kernel has just found the source ready, and looks again when this set asks again.
        let is_level = |set: &Set| {
            set.backend()
                .is_some_and(|backend| backend.has_level_source())
        };
        let shown = match chosen && as_set(item.file()).is_some_and(is_level) {
            true => Set::SHOWN & interest,
            false => Events::empty(),
        };
        let mut still_listed = None;
        let events = match (shown.is_empty(), consumes) {
            (true, true) => listed.take_off().poll_unqueued(),
            (true, false) => listed.poll_or_unqueue(|listed| still_listed = Some(listed)),
            (false, true) => {
                listed.take_off();
                shown
            }
            (false, false) => {
                still_listed = Some(listed);
                shown
            }
        };
        unchoose(item);
        if events.is_empty() {
            settle_idle(item, &mut self.deferred);
            return NOTHING;
        }
        let claimed = item.entry.is_claimed();
        let rotating = match item.state() & state::ROTATING {
            0 => None,
            _ => as_set(item.file()),
        };
        let hung_up = rotating.is_some_and(Set::has_hung_up);
        if !claimed && rotating.is_some() {
            let ask = match self.ask {
                _ if hung_up => Ask::Unconditional,
                // A wait that does not sleep leaves the event to workers that do.
                Ask::AtOnce if chosen => Ask::Chosen,
                _ if chosen && item.may_have_slack() => Ask::WithinSlack,
                _ if chosen => Ask::Chosen,
                // An item that a report uses up is off the list, where no second poll would
                // find it.
                Ask::Yielding if consumes => Ask::AtOnce,
                ask => ask,
            };
            if !self.may_take(item, &mut still_listed, ask) {
                if chosen && let Some(here) = set.backend() {
                    here.left_turn(item.slot());
                }
                return NOTHING;
            }
        }
        // Two events were meant for this worker, which takes one, or it cannot use up the one.
        let leaves_one = claimed && chosen || hung_up;
        if claimed || leaves_one {
            settle(item, || true, leaves_one, &mut self.deferred);
        }
        if rotating.is_some() && set.watched_by.is_watched() {
            // The watchers of this set need not poll it again before they wait: they are in
            // line, although the item stays on the list.
            item.clear_recheck();
        }
        // Also if the kernel has chosen this worker: another thread of it may have settled that for its own report.
        if rotating.is_some_and(|rotating| rotating.backend().is_some())
            && let Some(here) = set.backend()
        {
            here.had_turn(item.slot());
        }
        match still_listed {
            Some(listed) => self.report_again(listed),
            None => use_up(item, interest),
        }
        (events, item.data())
    }

    /// An item that a report does not use up is looked at again next time.
    #[inline(always)]
    fn report_again(&mut self, listed: Listed<'_>) {
        // SAFETY: the list is that of a scan of the item's set, whose end puts it behind the ready list.
        unsafe { listed.move_to(&self.again) };
    }

    /// Asks whether this worker, which was not chosen, may take the event of a rotating set. If not,
    /// the item is off the list afterwards.
    fn may_take(&mut self, item: ItemRef<'_>, listed: &mut Option<Listed<'_>>, ask: Ask) -> bool {
        let refuse = || {
            if let Some(listed) = listed.take() {
                listed.take_off();
            }
        };
        let is_mine = item.entry.turn(ask, refuse, &mut self.deferred);
        self.turns.yielded |= !is_mine;
        is_mine
    }
}

/// An item that a report uses up is reported: a one-shot one is disabled.
#[inline]
fn use_up(item: ItemRef<'_>, interest: Events) {
    if interest.contains(Events::ONESHOT) {
        item.set_interest(interest & Events::CONTROL);
    }
}

/// Settles the claim of an item that was found idle, and taken off the ready list before it was polled. A claim that stayed would
/// keep other workers waiting.
fn settle_idle(item: ItemRef<'_>, deferred: &mut Deferred) {
    // A wakeup under way makes its claim after it has called the item. Only the queue's lock,
    // which the wakeup holds, shows whether there is a claim. Where nobody counts claims that
    // does not matter.
    let may_be_claimed = item.state() & state::ROTATING != 0 && !broken(Rule::SettleUnseenClaims);
    if may_be_claimed || item.entry.is_claimed() {
        let told_again =
            || item.state() & state::QUEUED != 0 && !broken(Rule::OweWhatCameAfterTheLook);
        settle(item, told_again, false, deferred);
    }
}

/// Settles the claim that an item may have, as [`WaitEntry::settle`](crate::wait::WaitEntry::settle) does.
#[inline]
fn settle(
    item: ItemRef<'_>,
    still_ready: impl FnOnce() -> bool,
    has_another: bool,
    deferred: &mut Deferred,
) {
    let uses = recheck_flags(item);
    item.entry.settle(still_ready, has_another, uses, deferred);
}

/// Returns how a claim treats the recheck flags of the queue that an item is in.
fn recheck_flags(item: ItemRef<'_>) -> RecheckFlags {
    match item.state() & state::ROTATING {
        0 => RecheckFlags::Stay,
        _ => RecheckFlags::AreCleared,
    }
}

/// A scan of one item under way. Ends in `drop`, also when a foreign `poll` panics.
struct LoneScan<'a>(&'a Set);

impl Drop for LoneScan<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.end_scan_of_first();
    }
}

impl Drop for Scan<'_> {
    fn drop(&mut self) {
        let set = self.locked.set();
        let again = mem::replace(&mut self.progress.again, ReadyList::new());
        let arrived = self.locked.end_scan(again);
        // A level-triggered event cascades through all threads that wait in the set. In a rotating
        // set only what has newly arrived is worth another thread.
        let cascade = if set.rotates {
            arrived
        } else {
            !self.locked.ready().is_empty()
        };
        if cascade {
            set.wake_one(&mut Wake {
                key: Events::IN,
                mode: Mode::Notify,
                deferred: &mut self.progress.deferred,
            });
        }
    }
}

/// A scan of nothing but one item that one report uses up: as nothing goes back to the list,
/// there is nothing that others must not miss meanwhile. None if it is not like that; an empty
/// report if the item was idle.
#[inline]
fn take_first_edge(locked: &LockedSet<'_>) -> Option<(Events, u64)> {
    let is_wanted = |item: ItemRef<'_>| item.interest().intersects(CONSUMING) && item.state() == 0;
    // SAFETY: `LoneScan` ends this scan at the end of the function, which begins no other one.
    let item = unsafe { locked.take_first(is_wanted) }?;
    let _ended = LoneScan(locked.set());
    let events = item.poll_unqueued();
    let interest = item.interest();
    if !events.is_empty() {
        use_up(item, interest);
    }
    Some((events, item.data()))
}

impl Set {
    /// Fills `out` with what is ready, oldest first, and returns how many events that are.
    #[inline]
    pub fn harvest(&self, out: &mut [Event]) -> usize {
        self.harvest_as(out, Ask::AtOnce, &mut Turns::default())
    }

    /// Like [`try_wait`](Self::try_wait), with a way to ask for the event of a rotating set. Stores
    /// the outcome in `turns`.
    #[inline]
    pub fn harvest_as(&self, out: &mut [Event], ask: Ask, turns: &mut Turns) -> usize {
        if !self.is_pending() {
            return 0;
        }
        self.harvest_pending(out, ask, turns)
    }

    #[inline(never)]
    fn harvest_pending(&self, out: &mut [Event], ask: Ask, turns: &mut Turns) -> usize {
        let _scope = Scope::enter();
        let locked = self.lock();
        let mut filled = 0;
        if let Some(first) = out.first_mut()
            && let Some(event) = take_first_edge(&locked)
        {
            let (events, data) = event;
            if events.is_empty() {
                return 0;
            }
            *first = Event::new(events, data);
            return 1;
        }
        let Some(mut scan) = Scan::begin(locked, ask) else {
            return 0;
        };
        while filled < out.len() {
            let Some(oldest) = scan.locked.front() else {
                break;
            };
            let (events, data) = scan.progress.take(oldest);
            if !events.is_empty() {
                out[filled] = Event::new(events, data);
                filled += 1;
            }
        }
        turns.yielded |= scan.progress.turns.yielded;
        filled
    }

    /// Returns whether anything is ready; items that are not are taken off the list
    /// (`ep_eventpoll_poll`).
    pub fn has_ready(&self) -> bool {
        if self.is_pending()
            && let Some(mut scan) = Scan::begin(self.lock_from_above(), Ask::AtOnce)
        {
            scan.clear_recheck();
            while let Some(listed) = scan.locked.front() {
                step(Step::Poll);
                let item = listed.item();
                if !listed.poll_or_unqueue(drop).is_empty() {
                    return true;
                }
                unchoose(item);
                settle_idle(item, &mut scan.progress.deferred);
            }
        }
        false
    }

    /// Queues items that watch a rotating set which is ready, or a set above such a one, whether or not
    /// this set was chosen.
    ///
    /// An event that the chosen worker has left in the source, or does not come for, wakes nobody
    /// else. So a thread that begins a wait, or ends one, polls the rotating sets themselves.
    /// Edge-triggered interests are left out: their edge was the chosen worker's.
    #[inline]
    pub fn recheck_rotating(&self) {
        if self.is_above_rotating() {
            self.recheck_all_rotating();
        }
    }

    #[inline(never)]
    fn recheck_all_rotating(&self) {
        let _scope = Scope::enter();
        for item in self.lock().rotating() {
            if item.state() & state::CHOSEN != 0 && item.poll().is_empty() {
                // The kernel found the source ready at an earlier harvest, whose report had no room for it.
                unchoose(item);
            }
            if item.interest().contains(Events::ET) {
                continue;
            }
            // Also if it is queued, perhaps for something that is gone.
            if let Some(below) = as_set(item.file()) {
                below.recheck_rotating();
            }
            if item.state() & state::QUEUED != 0 {
                // The wake that has marked it may not have put it on a list yet.
                item.entry.outlast_wake();
                continue;
            }
            if !item.poll().is_empty() {
                item.queue_locked();
            }
        }
    }
}

/// An item that was queued because the kernel chose its set counts as an ordinary one from now on.
fn unchoose(item: ItemRef<'_>) {
    if item.state() & state::CHOSEN != 0 {
        let word = &item.entry.owner_word;
        word.fetch_and(!state::CHOSEN, Ordering::Relaxed);
    }
}

impl ItemRef<'_> {
    /// The kernel has chosen the item's set: the item is queued for that, or is about to be.
    #[cfg(any(feature = "std", upoll_loom))]
    pub fn choose(self) {
        let word = &self.entry.owner_word;
        word.fetch_or(state::CHOSEN, Ordering::Relaxed);
    }

    /// Returns whether an item is queued because the kernel chose its set, and no report has had it yet, and it is still ready.
    #[cfg(any(feature = "std", upoll_loom))]
    pub fn is_chosen_and_ready(self) -> bool {
        const WAITS: u32 = state::QUEUED | state::CHOSEN;
        self.state() & WAITS == WAITS && !self.poll().is_empty()
    }

    /// Returns whether this worker may take another event of the rotating set that the item watches before it stands last in the
    /// line of the source that the kernel has.
    #[cfg(any(feature = "std", upoll_loom))]
    pub fn may_go_on(self) -> bool {
        self.may_have_slack() && self.entry.has_slack()
    }

    /// Returns whether the item's interest, and the rotating set that it watches, are such that its worker may be ahead of others.
    fn may_have_slack(self) -> bool {
        // The kernel goes on to choose an interest that was used up, and each time another worker has to be woken. An
        // edge-triggered one is to report an event once.
        if self.interest().intersects(CONSUMING) {
            return false;
        }
        // The look of a worker that stands last covers the sets below, too.
        as_set(self.file()).is_some_and(|rotating| !rotating.is_above_rotating())
    }

    /// Polls a rotating set for a worker that [may go on](Self::may_go_on). If the set is ready by the source that the kernel
    /// has, queues the item as one that the kernel has chosen, as it would be if its registration were new, and returns true.
    #[cfg(any(feature = "std", upoll_loom))]
    pub fn goes_on(self) -> bool {
        let is_from_kernel = as_set(self.file()).is_some_and(|rotating| {
            let has_level_source = |there: &dyn KernelBackend| there.has_level_source();
            rotating.backend().is_some_and(has_level_source)
                && !self.poll().is_empty()
                // An event of the core that comes before the look may be what that has found.
                && !rotating.is_pending()
        });
        if !is_from_kernel || self.entry.is_claimed() {
            return false;
        }
        self.choose();
        self.queue_locked();
        true
    }

    /// Returns whether a rotating set with a source in the kernel has no event but what the kernel tells of the source, nor has a
    /// rotating set below it. The item watches a rotating set.
    #[cfg(any(feature = "std", upoll_loom))]
    fn has_no_other_event(self) -> bool {
        let Some(rotating) = as_set(self.file()) else {
            return false;
        };
        let is_level = || {
            rotating
                .backend()
                .is_some_and(|there| there.has_level_source())
        };
        !rotating.is_above_rotating()
            && !rotating.is_pending()
            && (is_level() || self.poll().is_empty())
    }
}

impl LockedSet<'_> {
    /// Takes the item in `slot`, which watches a rotating set, off the ready list, then has `look` do the last look at the source
    /// that the kernel has. `look` returns whether an event of that comes to the item again if there is one. Returns whether an
    /// event of the rotating set does; if not, the item goes back to the list. An item with a claim stays on the list: a
    /// harvest has to settle that. Without such an item in `slot` this returns false.
    #[cfg(any(feature = "std", upoll_loom))]
    pub fn leave_to(&mut self, slot: u32, look: impl FnOnce(&LockedSet<'_>) -> bool) -> bool {
        let locked = &*self;
        // A rotating set registers one queue.
        let is_of_one_queue = |item: &ItemRef<'_>| {
            item.state() & (state::ROTATING | state::HAS_EXTRAS) == state::ROTATING
        };
        let Some(item) = locked.at(slot).filter(is_of_one_queue) else {
            return false;
        };
        let Some(queue) = item.hooked_into() else {
            return look(locked);
        };
        // A wake marks an item as queued before it puts it on a list, both under the lock of this queue, the only one.
        let mut behind = ptr::null_mut();
        let is_off = queue.without_wakes(|| {
            if item.state() & state::QUEUED == 0 || item.entry.is_claimed() {
                return false;
            }
            locked.begin_scan();
            behind = item.next.load(Ordering::Relaxed);
            // SAFETY: a queued item is on the ready list now that the arrivals are. `&mut self` excludes each other `Listed`.
            let listed = unsafe { Listed::new(item) };
            listed.take_off();
            true
        });
        unchoose(item);
        let will_come = look(locked) && item.has_no_other_event();
        if is_off {
            if !will_come {
                let word = &item.entry.owner_word;
                let before = word.fetch_or(state::QUEUED, Ordering::SeqCst);
                if before & state::QUEUED == 0 {
                    // SAFETY: the item is on no list, as no wake has queued it since it was taken off. The next item is still on
                    // the list: only a borrow like `self` takes items off.
                    unsafe { locked.ready().insert_before(behind, item.as_ptr()) };
                }
            }
            locked.end_scan(ReadyList::new());
        }
        will_come
    }
}

impl ItemMut<'_, '_> {
    /// Takes the item off whichever list it is on, or from `first`.
    ///
    /// # Safety
    /// The item is unhooked from all queues: a wake marks it as queued before it puts it on a list.
    pub(super) unsafe fn take_off(&mut self) {
        let item = self.get();
        let locked = item.locked();
        let first = &locked.set().first;
        if item.state() & state::QUEUED != 0 {
            locked.begin_scan();
            // SAFETY: a queued item is on the ready list now that the arrivals are, as no wake is under way (the caller's
            // contract). `&mut self` excludes each other `Listed`.
            let listed = unsafe { Listed::new(item) };
            listed.take_off_for_good();
            locked.end_scan(ReadyList::new());
        } else if first.load(Ordering::Relaxed) == item.as_ptr().as_ptr() {
            first.store(ptr::null_mut(), Ordering::SeqCst);
        }
    }
}
