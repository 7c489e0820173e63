//! Taking reports off the ready list: `epoll_wait(2)` without the wait.

use super::Set;
#[cfg(any(feature = "std", upoll_loom))]
use super::backend::KernelBackend;
use super::ctl::as_set;
use super::interest::{Interests, Item, state};
use super::ready::ReadyList;
use crate::events::{Event, Events};
use crate::steps::{Step, step};
use crate::sync::{MutexGuard, Ordering, Rule, broken};
use crate::wait::{Ask, Deferred, Mode, RecheckFlags, Scope, Wake};
use core::ptr::{self, NonNull};

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
    set: &'a Set,
    inner: MutexGuard<'a, Interests>,
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
    fn begin(set: &'a Set, mut inner: MutexGuard<'a, Interests>, ask: Ask) -> Option<Self> {
        // SAFETY: the lock is held, and `ready` is this set's list.
        if !unsafe { set.begin_scan(&mut inner.ready) } {
            return None;
        }
        Some(Scan {
            set,
            inner,
            again: ReadyList::new(),
            ask,
            turns: Turns::default(),
            deferred: Deferred::new(),
        })
    }

    /// Records that the calling thread waits on all rotating sets that are queued here, whatever it
    /// finds, also on those that it does not reach.
    fn clear_recheck(&self) {
        for item in &self.inner.rotating {
            step(Step::Poll);
            // SAFETY: items in the list are registered, and the set's lock is held.
            let node = unsafe { item.as_ref() };
            if node.state() & state::QUEUED != 0 {
                node.clear_recheck();
            }
        }
    }

    /// Takes the oldest ready item. Returns the events to report and the item's data; no events if
    /// it is not ready.
    #[inline(always)]
    fn take(&mut self, item: NonNull<Item>) -> (Events, u64) {
        // SAFETY: items on the ready list are registered, and the set's lock is held throughout.
        unsafe {
            let node = item.as_ref();
            let interest = node.interest();
            // Only such an item can hold a claim.
            if interest.contains(Events::EXCLUSIVE) || node.state() & !state::QUEUED != 0 {
                return self.take_in_turn(item, interest);
            }
            let consumes = interest.intersects(CONSUMING);
            let events = self.poll(item, consumes);
            if !events.is_empty() {
                self.reported(item, interest, consumes);
            }
            (events, node.data())
        }
    }

    /// [`take`](Self::take) of an item that may hold a claim, or must not be taken out of turn.
    ///
    /// # Safety
    /// The item is on the ready list.
    #[inline(never)]
    unsafe fn take_in_turn(&mut self, item: NonNull<Item>, interest: Events) -> (Events, u64) {
        // SAFETY: items on the ready list are registered, and the set's lock is held throughout.
        unsafe {
            let node = item.as_ref();
            let consumes = interest.intersects(CONSUMING);
            let chosen = node.state() & state::CHOSEN != 0;
            // The kernel has just found the source ready, and looks again when this set asks again.
            let is_level = |set: &Set| {
                set.backend()
                    .is_some_and(|backend| backend.has_level_source())
            };
            let shown = match chosen && as_set(node.file()).is_some_and(is_level) {
                true => Set::SHOWN & interest,
                false => Events::empty(),
            };
            let events = if shown.is_empty() {
                self.poll(item, consumes)
            } else {
                if consumes {
                    self.inner.ready.unlink(item);
                    Set::unqueue(node);
                }
                shown
            };
            Set::unchoose(node);
            if events.is_empty() {
                Self::settle_idle(node, &mut self.deferred);
                return NOTHING;
            }
            let claimed = node.entry.is_claimed();
            let rotating = match node.state() & state::ROTATING {
                0 => None,
                _ => as_set(node.file()),
            };
            let hung_up = rotating.is_some_and(Set::has_hung_up);
            if !claimed && rotating.is_some() {
                let ask = match self.ask {
                    _ if hung_up => Ask::Unconditional,
                    // A wait that does not sleep leaves the event to workers that do.
                    Ask::AtOnce if chosen => Ask::Chosen,
                    _ if chosen && Set::may_have_slack(node) => Ask::WithinSlack,
                    _ if chosen => Ask::Chosen,
                    // An item that a report uses up is off the list, where no second poll would
                    // find it.
                    Ask::Yielding if consumes => Ask::AtOnce,
                    ask => ask,
                };
                if !self.may_take(item, consumes, ask) {
                    if chosen && let Some(here) = self.set.backend() {
                        here.left_turn(self.inner.slot_of(item.as_ptr()));
                    }
                    return NOTHING;
                }
            }
            // Two events were meant for this worker, which takes one, or it cannot use up the one.
            let leaves_one = claimed && chosen || hung_up;
            if claimed || leaves_one {
                let deferred = &mut self.deferred;
                node.entry
                    .settle(|| true, leaves_one, recheck_flags(node), deferred);
            }
            if rotating.is_some() && self.set.watched_by.is_watched() {
                // The watchers of this set need not poll it again before they wait: they are in
                // line, although the item stays on the list.
                node.clear_recheck();
            }
            // Also if the kernel has chosen this worker: another thread of it may have settled that for its own report.
            if rotating.is_some_and(|rotating| rotating.backend().is_some())
                && let Some(here) = self.set.backend()
            {
                here.had_turn(self.inner.slot_of(item.as_ptr()));
            }
            self.reported(item, interest, consumes);
            (events, node.data())
        }
    }

    /// Returns the ready events of an item. The item is off the list afterwards if a report uses it
    /// up, or if it is idle.
    ///
    /// # Safety
    /// The item is on the ready list.
    #[inline(always)]
    unsafe fn poll(&mut self, item: NonNull<Item>, consumes: bool) -> Events {
        // SAFETY: items on the ready list are registered, and the set's lock is held.
        unsafe {
            if consumes {
                self.inner.ready.unlink(item);
                Set::unqueue(item.as_ref());
                Set::poll_unqueued(item)
            } else {
                Set::poll_or_unqueue(&mut self.inner.ready, item)
            }
        }
    }

    /// An item is reported: it is disabled, or looked at again next time.
    ///
    /// # Safety
    /// The item is registered, and on the ready list unless a report uses it up.
    #[inline(always)]
    unsafe fn reported(&mut self, item: NonNull<Item>, interest: Events, consumes: bool) {
        // SAFETY: the caller's contract, with the set's lock held.
        unsafe {
            if interest.contains(Events::ONESHOT) {
                item.as_ref().set_interest(interest & Events::CONTROL);
            } else if !consumes {
                self.inner.ready.unlink(item);
                self.again.push_back(item);
            }
        }
    }

    /// Settles the claim of an item that was found idle. A claim that stayed would keep other
    /// workers waiting.
    ///
    /// # Safety
    /// The item is registered, and was taken off the ready list before it was polled.
    unsafe fn settle_idle(node: &Item, deferred: &mut Deferred) {
        // A wakeup under way makes its claim after it has called the item. Only the queue's lock,
        // which the wakeup holds, shows whether there is a claim. Where nobody counts claims that
        // does not matter.
        let may_be_claimed =
            node.state() & state::ROTATING != 0 && !broken(Rule::SettleUnseenClaims);
        if may_be_claimed || node.entry.is_claimed() {
            let told_again =
                || node.state() & state::QUEUED != 0 && !broken(Rule::OweWhatCameAfterTheLook);
            node.entry
                .settle(told_again, false, recheck_flags(node), deferred);
        }
    }

    /// Asks whether this worker, which was not chosen, may take the event of a rotating set. If not,
    /// the item is off the list afterwards.
    ///
    /// # Safety
    /// The item is registered, and on the ready list unless `unqueued`.
    unsafe fn may_take(&mut self, item: NonNull<Item>, unqueued: bool, ask: Ask) -> bool {
        // SAFETY: the caller's contract, with the set's lock held.
        unsafe {
            let node = item.as_ref();
            let ready = &mut self.inner.ready;
            let refuse = || {
                if !unqueued {
                    ready.unlink(item);
                    Set::unqueue(node);
                }
            };
            let is_mine = node.entry.turn(ask, refuse, &mut self.deferred);
            self.turns.yielded |= !is_mine;
            is_mine
        }
    }
}

/// Returns how a claim treats the recheck flags of the queue that an item is in.
fn recheck_flags(node: &Item) -> RecheckFlags {
    match node.state() & state::ROTATING {
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
        let set = self.set;
        // SAFETY: the lock is still held, and the lists are this set's.
        let arrived = unsafe { set.end_scan(&mut self.inner.ready, &mut self.again) };
        // A level-triggered event cascades through all threads that wait in the set. In a rotating
        // set only what has newly arrived is worth another thread.
        let cascade = if set.rotates {
            arrived
        } else {
            !self.inner.ready.is_empty()
        };
        if cascade {
            set.wake_one(&mut Wake {
                key: Events::IN,
                mode: Mode::Notify,
                deferred: &mut self.deferred,
            });
        }
    }
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
        let inner = self.lock();
        let mut filled = 0;
        if let Some(first) = out.first_mut()
            && let Some(event) = self.take_first_edge(&inner)
        {
            let (events, data) = event;
            if events.is_empty() {
                return 0;
            }
            *first = Event::new(events, data);
            return 1;
        }
        let Some(mut scan) = Scan::begin(self, inner, ask) else {
            return 0;
        };
        while filled < out.len() {
            let Some(item) = scan.inner.ready.front() else {
                break;
            };
            let (events, data) = scan.take(item);
            if !events.is_empty() {
                out[filled] = Event::new(events, data);
                filled += 1;
            }
        }
        turns.yielded |= scan.turns.yielded;
        filled
    }

    /// A scan of nothing but one item that one report uses up: as nothing goes back to the list,
    /// there is nothing that others must not miss meanwhile. None if it is not like that; an empty
    /// report if the item was idle.
    #[inline]
    fn take_first_edge(&self, inner: &MutexGuard<'_, Interests>) -> Option<(Events, u64)> {
        // SAFETY: the set's lock is held.
        let item = unsafe {
            self.take_first(inner, |item| {
                item.interest().intersects(CONSUMING) && item.state() == 0
            })
        }?;
        // SAFETY: queued items are registered, and the set's lock is held.
        unsafe {
            let node = item.as_ref();
            let _ended = LoneScan(self);
            let events = Set::poll_unqueued(item);
            let interest = node.interest();
            if !events.is_empty() && interest.contains(Events::ONESHOT) {
                node.set_interest(interest & Events::CONTROL);
            }
            Some((events, node.data()))
        }
    }

    /// Returns whether anything is ready; items that are not are taken off the list
    /// (`ep_eventpoll_poll`).
    pub fn has_ready(&self) -> bool {
        if self.is_pending()
            && let Some(mut scan) = Scan::begin(self, self.lock_from_above(), Ask::AtOnce)
        {
            scan.clear_recheck();
            while let Some(item) = scan.inner.ready.front() {
                step(Step::Poll);
                // SAFETY: the item is on this set's ready list, and the lock is held.
                unsafe {
                    if !Set::poll_or_unqueue(&mut scan.inner.ready, item).is_empty() {
                        return true;
                    }
                    Set::unchoose(item.as_ref());
                    Scan::settle_idle(item.as_ref(), &mut scan.deferred);
                }
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
        let mut inner = self.lock();
        let inner = &mut *inner;
        for &item in &inner.rotating {
            // SAFETY: registered items are alive, and the set's lock is held.
            unsafe {
                let node = item.as_ref();
                if node.state() & state::CHOSEN != 0 && Set::poll_item(node).is_empty() {
                    // The kernel found the source ready at an earlier harvest, whose report had no room for it.
                    Set::unchoose(node);
                }
                if node.interest().contains(Events::ET) {
                    continue;
                }
                // Also if it is queued, perhaps for something that is gone.
                if let Some(below) = as_set(node.file()) {
                    below.recheck_rotating();
                }
                if node.state() & state::QUEUED != 0 {
                    // The wake that has marked it may not have put it on a list yet.
                    node.entry.outlast_wake();
                    continue;
                }
                if !Set::poll_item(node).is_empty() {
                    self.queue_locked(&mut inner.ready, item);
                }
            }
        }
    }

    /// An item that was queued because the kernel chose its set counts as an ordinary one from now on.
    fn unchoose(item: &Item) {
        if item.state() & state::CHOSEN != 0 {
            let word = &item.entry.owner_word;
            word.fetch_and(!state::CHOSEN, Ordering::Relaxed);
        }
    }

    /// Returns whether an item is queued because the kernel chose its set, and no report has had it yet, and it is still ready.
    ///
    /// # Safety
    /// As [`poll_item`](Self::poll_item).
    #[cfg(any(feature = "std", upoll_loom))]
    pub unsafe fn is_chosen_and_ready(item: &Item) -> bool {
        const WAITS: u32 = state::QUEUED | state::CHOSEN;
        // SAFETY: the caller's contract.
        item.state() & WAITS == WAITS && !unsafe { Self::poll_item(item) }.is_empty()
    }

    /// Takes an item that watches a rotating set off the ready list, then has `look` do the last look at the source that the
    /// kernel has. `look` returns whether an event of that comes to the item again if there is one. Returns whether an
    /// event of the rotating set does; if not, the item goes back to the list. An item with a claim stays on the list: a
    /// harvest has to settle that.
    ///
    /// # Safety
    /// The item is registered in this set, whose lock is held; `inner` is the set's.
    #[cfg(any(feature = "std", upoll_loom))]
    pub unsafe fn leave_to(
        &self,
        inner: &mut Interests,
        item: NonNull<Item>,
        look: impl FnOnce(&Interests) -> bool,
    ) -> bool {
        // SAFETY: the caller's contract. The queue is that of a set that the item keeps.
        unsafe {
            let node = item.as_ref();
            let Some(queue) = node.entry.queue() else {
                return look(inner);
            };
            // A wake marks an item as queued before it puts it on a list, both under the queue's lock.
            let mut behind = ptr::null_mut();
            let is_off = queue.as_ref().without_wakes(|| {
                if node.state() & state::QUEUED == 0 || node.entry.is_claimed() {
                    return false;
                }
                self.begin_scan(&mut inner.ready);
                behind = node.next.load(Ordering::Relaxed);
                inner.ready.unlink(item);
                Set::unqueue(node);
                true
            });
            Set::unchoose(node);
            let will_come = look(inner) && Self::has_no_other_event(node);
            if is_off {
                if !will_come {
                    let before = node
                        .entry
                        .owner_word
                        .fetch_or(state::QUEUED, Ordering::SeqCst);
                    if before & state::QUEUED == 0 {
                        // The next item is still on the list, as the set is locked.
                        inner.ready.insert_before(behind, item);
                    }
                }
                self.end_scan(&mut inner.ready, &mut ReadyList::new());
            }
            will_come
        }
    }

    /// Returns whether this worker may take another event of the rotating set that the item watches before it stands last in the
    /// line of the source that the kernel has.
    ///
    /// # Safety
    /// As [`poll_item`](Self::poll_item).
    #[cfg(any(feature = "std", upoll_loom))]
    pub unsafe fn may_go_on(item: &Item) -> bool {
        // SAFETY: the caller's contract.
        if !unsafe { Self::may_have_slack(item) } {
            return false;
        }
        item.entry.has_slack()
    }

    /// Returns whether the item's interest, and the rotating set that it watches, are such that its worker may be ahead of others.
    ///
    /// # Safety
    /// As [`poll_item`](Self::poll_item).
    unsafe fn may_have_slack(item: &Item) -> bool {
        // The kernel goes on to choose an interest that was used up, and each time another worker has to be woken. An
        // edge-triggered one is to report an event once.
        if item.interest().intersects(CONSUMING) {
            return false;
        }
        // The look of a worker that stands last covers the sets below, too.
        // SAFETY: the caller's contract.
        as_set(unsafe { item.file() }).is_some_and(|rotating| !rotating.is_above_rotating())
    }

    /// Polls a rotating set for a worker that [may go on](Self::may_go_on). If the set is ready by the source that the kernel
    /// has, queues the item as one that the kernel has chosen, as it would be if its registration were new, and returns true.
    ///
    /// # Safety
    /// The item is registered in this set, whose lock is held; `inner` is the set's.
    #[cfg(any(feature = "std", upoll_loom))]
    pub unsafe fn goes_on_with(&self, inner: &mut Interests, item: NonNull<Item>) -> bool {
        // SAFETY: the caller's contract.
        unsafe {
            let node = item.as_ref();
            let is_from_kernel = as_set(node.file()).is_some_and(|rotating| {
                let has_level_source = |there: &dyn KernelBackend| there.has_level_source();
                rotating.backend().is_some_and(has_level_source)
                    && !Set::poll_item(node).is_empty()
                    // An event of the core that comes before the look may be what that has found.
                    && !rotating.is_pending()
            });
            if !is_from_kernel || node.entry.is_claimed() {
                return false;
            }
            let word = &node.entry.owner_word;
            word.fetch_or(state::CHOSEN, Ordering::Relaxed);
            self.queue_locked(&mut inner.ready, item);
            true
        }
    }

    /// Returns whether a rotating set with a source in the kernel has no event but what the kernel tells of the source, nor has a
    /// rotating set below it.
    ///
    /// # Safety
    /// As [`poll_item`](Self::poll_item); the item watches a rotating set.
    #[cfg(any(feature = "std", upoll_loom))]
    unsafe fn has_no_other_event(item: &Item) -> bool {
        // SAFETY: the caller's contract.
        let Some(rotating) = as_set(unsafe { item.file() }) else {
            return false;
        };
        let is_level = || {
            rotating
                .backend()
                .is_some_and(|there| there.has_level_source())
        };
        // SAFETY: as above.
        !rotating.is_above_rotating()
            && !rotating.is_pending()
            && (is_level() || unsafe { Self::poll_item(item) }.is_empty())
    }

    /// Takes a queued item off whichever list it is on, or from `first`.
    ///
    /// # Safety
    /// The item is registered in this set and unhooked from all queues; `inner` is the set's,
    /// locked.
    pub(super) unsafe fn take_off(&self, inner: &mut Interests, item: NonNull<Item>) {
        // SAFETY: the caller holds the lock.
        unsafe {
            if item.as_ref().state() & state::QUEUED != 0 {
                self.begin_scan(&mut inner.ready);
                inner.ready.unlink(item);
                item.as_ref().entry.owner_word.store(0, Ordering::Relaxed);
                self.end_scan(&mut inner.ready, &mut ReadyList::new());
            } else if self.first.load(Ordering::Relaxed) == item.as_ptr() {
                self.first.store(ptr::null_mut(), Ordering::SeqCst);
            }
        }
    }
}
