//! `epoll_wait(2)`: harvest, or sleep until there is something to harvest.

use std::cell::RefCell;
use std::mem;
use std::time::Duration;

use upoll_sys::signals::Blocked;

use super::spin::{harvest_repeatedly, spin};
use super::timeout::Deadline;
use super::timers::begin_sleep;
use super::{Outcome, SigSet, Sleeper, Timeout};
use crate::Epoll;
use crate::epoll::backend::KernelBackend;
use crate::epoll::handover;
use crate::epoll::scan::Turns;
use crate::epoll::time::TimeKeeper;
use crate::epoll::{Set, any_hangs_up};
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::host::{EpollBackend, SignalMask};
use crate::sync::Ordering;
use crate::tally::Tally;
use crate::trace;
use crate::wait::{Arrival, Ask, Deferred, Place, RecheckFlags};

impl Epoll {
    /// `epoll_wait(2)` with a timeout in nanoseconds: fills `events` with what is ready, oldest
    /// first, and returns their number. Waits for the first one if there is none.
    ///
    /// Returns 0 when the time limit has passed, never before. Several threads may wait in one set:
    /// an event wakes the one that came last (in a rotating set the one that has waited longest).
    /// A level-triggered event that stays ready goes on to the next. Events that are there when a limit
    /// passes or a signal comes are still reported.
    ///
    /// # Errors
    /// `EINVAL`: `events` is empty. `EINTR`: a signal handler ran and nothing was ready; the call
    /// is never restarted, with or without `SA_RESTART`. `EMFILE`, `ENFILE`, `ENOMEM`, `ENOSPC`: a thread
    /// that waits for the first time in a rotating set whose source is a kernel fd needs own fds,
    /// and there are none. Others only if the program has closed [own fds](Self#kernel-fds).
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// use upoll::{Epoll, Event, EventFd, Events};
    ///
    /// let set = Epoll::new()?;
    /// let bell = EventFd::new(0)?;
    /// set.add(&bell, Event::new(Events::IN | Events::ET, 1))?;
    /// let ringer = bell.clone();
    /// let thread = std::thread::spawn(move || ringer.try_write(1));
    /// let mut events = [Event::default(); 4];
    /// assert_eq!(set.wait(&mut events, Duration::from_secs(10))?, 1);
    /// # thread.join().unwrap()?;
    /// # Ok::<(), upoll::Errno>(())
    /// ```
    #[doc(alias = "epoll_wait")]
    #[doc(alias = "epoll_pwait2")]
    pub fn wait(&self, events: &mut [Event], timeout: impl Into<Timeout>) -> Result<usize, Errno> {
        if events.is_empty() {
            return Err(Errno::INVAL);
        }
        let timeout = timeout.into();
        if timeout.is_now() {
            return self.try_wait(events);
        }
        let ready = self.wait_unremembered(events, timeout);
        self.end_wait(ready)
    }

    /// Does what is left to do once a wait has its `result`.
    #[inline]
    fn end_wait(&self, result: Result<usize, Errno>) -> Result<usize, Errno> {
        trace::waited(self.as_file_ref().identity(), result);
        let ready = result?;
        if ready > 0 {
            self.count_events(ready);
            remember(self.set());
        }
        Ok(ready)
    }

    #[inline]
    fn wait_unremembered(&self, events: &mut [Event], timeout: Timeout) -> Result<usize, Errno> {
        let set = self.set();
        let turns = &mut Turns::default();
        if !set.rotates() {
            if let Some(backend) = EpollBackend::of(set) {
                backend.restore_found_lost(self.description())?;
            }
            // Before the clock is read, which takes longer than this.
            let ready = begin_wait(set, events, turns);
            if ready > 0 {
                return Ok(ready);
            }
        }
        self.wait_asleep(events, timeout, turns)
    }

    /// The rest of a wait that has found nothing ready, or takes turns. Apart from that, which needs fewer registers.
    #[inline(never)]
    fn wait_asleep(
        &self,
        events: &mut [Event],
        timeout: Timeout,
        turns: &mut Turns,
    ) -> Result<usize, Errno> {
        let set = self.set();
        let deadline = timeout.deadline();
        trace::sleeps(self.as_file_ref().identity());
        if EpollBackend::of(set).is_none() {
            let ended = if set.rotates() {
                wait_in_turn(set, events, deadline)
            } else {
                wait_in_core(set, events, deadline, turns)
            };
            if let Some(result) = ended {
                return result;
            }
        }
        self.wait_in_kernel(events, deadline, None, turns)
    }

    /// `epoll_pwait2(2)`: [`wait`](Self::wait) while exactly the signals in `mask` are held back.
    ///
    /// While the thread sleeps, `mask` is its signal mask, set and reset together with the sleep.
    /// So a signal that the thread blocks otherwise and `mask` does not is never missed, and ends
    /// the call. If something is ready at once, or the limit is zero, no signal is delivered.
    ///
    /// # Errors
    /// As [`wait`](Self::wait). `EINTR` if and only if a handler ran of a signal that `mask` let
    /// through. `EMFILE`, `ENFILE`, `ENOMEM`, `ENOSPC`: the kernel has no fd, memory or watch for the sleep.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// use upoll::{Epoll, Event, SigSet};
    /// let set = Epoll::new()?;
    /// let mut events = [Event::default(); 4];
    /// let ready = set.pwait(&mut events, Duration::from_millis(1), &SigSet::full())?;
    /// assert_eq!(ready, 0);
    /// # Ok::<(), upoll::Errno>(())
    /// ```
    #[doc(alias = "epoll_pwait")]
    #[doc(alias = "epoll_pwait2")]
    pub fn pwait(
        &self,
        events: &mut [Event],
        timeout: impl Into<Timeout>,
        mask: &SigSet,
    ) -> Result<usize, Errno> {
        if events.is_empty() {
            return Err(Errno::INVAL);
        }
        let timeout = timeout.into();
        if timeout.is_now() {
            return self.try_wait(events);
        }
        let mut turns = Turns::default();
        if !self.set().rotates() {
            let ready = begin_wait(self.set(), events, &mut turns);
            if ready > 0 {
                return self.end_wait(Ok(ready));
            }
        }
        let deadline = timeout.deadline();
        trace::sleeps(self.as_file_ref().identity());
        // Between two sleeps no handler may run unnoticed.
        let held = Blocked::sent();
        let mask = Some(mask.as_libc());
        let ready = self.wait_in_kernel(events, deadline, mask, &mut turns);
        // A handler may run now, and may end the thread.
        if ready.is_ok_and(|ready| ready > 0) {
            remember(self.set());
        }
        // A subscriber to traces runs with the mask of its thread.
        drop(held);
        self.end_wait(ready)
    }
}

/// Does what the end of a thread does: in a model thread-local variables end in any order.
#[cfg(upoll_loom)]
pub fn end_thread() {
    handover::end_thread();
    drop(WORKERS.with(|workers| workers.replace(Vec::new())));
}

/// Records that this thread has an event of a rotating set at or below `set`, to forward it if it
/// ends.
#[inline]
fn remember(set: &Set) {
    // A thread that waits in a rotating set with a kernel backend does so through a set of its own.
    // That set ends with the thread and forwards the event then.
    if !(set.rotates() && EpollBackend::of(set).is_some()) {
        handover::remember(set);
    }
}

/// The time for which a thread leaves an event of a rotating set to other workers. Then it polls once more,
/// and takes what is still there.
///
/// A worker that was chosen and gets to run takes a few microseconds. A worker that does not get to
/// run must not keep the event from a thread that waits.
const YIELD_FOR: Duration = Duration::from_millis(1);

/// Returns when the next sleep ends at the latest. A thread that left an event to other workers asks for it
/// at `yields_until`, whatever wakes it before.
fn next_sleep(
    deadline: Deadline,
    turns: &mut Turns,
    yields_until: &mut Option<Deadline>,
) -> Deadline {
    if std::mem::take(&mut turns.yielded) && yields_until.is_none() {
        *yields_until = Some(deadline.within(Some(YIELD_FOR)));
    }
    yields_until.unwrap_or(deadline)
}

/// Harvests a set that does not rotate, for a wait that begins.
#[inline]
fn begin_wait(set: &Set, events: &mut [Event], turns: &mut Turns) -> usize {
    set.fire_due();
    match EpollBackend::of(set) {
        None => {
            set.recheck_rotating();
            set.harvest_as(events, Ask::Yielding, turns)
        }
        Some(backend) => begin_wait_with_kernel(set, backend, events, turns),
    }
}

#[inline(never)]
fn begin_wait_with_kernel(
    set: &Set,
    backend: &EpollBackend,
    events: &mut [Event],
    turns: &mut Turns,
) -> usize {
    if set.is_above_rotating() {
        if !backend.stand_last(set) {
            set.recheck_rotating();
        }
        if !set.is_pending() {
            // The sleep begins with a check of the kernel.
            return 0;
        }
    } else {
        backend.stand_last(set);
    }
    harvest_both(set, backend, events, turns)
}

/// Harvests both sides of a set. The thread stands where it is to in the lines of sources.
fn harvest_both(
    set: &Set,
    backend: &EpollBackend,
    events: &mut [Event],
    turns: &mut Turns,
) -> usize {
    let ready = backend.harvest_with(set, events, |out| set.harvest_as(out, Ask::Yielding, turns));
    backend.settle_choice(ready > 0);
    ready
}

/// A sleep that could last until `limit` is over: fires the timers that are due. Returns how the wait goes on. A
/// thread that kept the time was woken by it.
fn end_sleep(keeper: &mut TimeKeeper<'_>, outcome: Outcome, limit: Deadline) -> Outcome {
    let kept_time = keeper.end_sleep();
    match outcome {
        Outcome::TimedOut if kept_time && !limit.has_passed() => Outcome::Woken,
        outcome => outcome,
    }
}

/// A sleep of this thread in `set`. With `spins` it may spin before: it leaves no event to another worker.
fn sleep_in(set: &Set, sleeper: &Sleeper, deadline: Deadline, spins: bool) -> Outcome {
    // A spin counts as its beginning.
    set.tally.count(Tally::sleeps);
    match spins && spin(set, sleeper, deadline) {
        true => Outcome::Woken,
        false => sleeper.sleep(deadline),
    }
}

/// A wait in a set whose members are all of the core, and where nothing was ready just now, or was
/// `yielded` to other workers. None if it is no longer so.
fn wait_in_core(
    set: &Set,
    events: &mut [Event],
    deadline: Deadline,
    turns: &mut Turns,
) -> Option<Result<usize, Errno>> {
    let mut yields_until = None;
    let mut keeper = TimeKeeper::of(set);
    loop {
        let sleeper = Sleeper::new();
        let mut slept = false;
        // SAFETY: the sleeper stays in this frame until it is unhooked below, and the set is
        // borrowed for longer.
        unsafe { sleeper.entry.hook(&set.sleepers, Place::ExclusiveHead) };
        // Registered, now check: a thread that queued something, or added a backend, before that
        // did not see the sleeper.
        let has_backend = EpollBackend::of(set).is_some();
        let sleep = next_sleep(deadline, turns, &mut yields_until);
        let outcome = if set.is_pending() || has_backend {
            Outcome::Woken
        } else {
            slept = true;
            sleep_in(
                set,
                &sleeper,
                begin_sleep(&mut keeper, sleep),
                !set.is_above_rotating(),
            )
        };
        sleeper.entry.unhook();
        let outcome = end_sleep(&mut keeper, outcome, sleep);
        // Harvest whatever ended the sleep: a wakeup may have come together with the limit or a
        // signal, and would be lost without a check.
        let mut ask = Ask::Yielding;
        if outcome != Outcome::Woken {
            // Nobody chose this set: it takes what others have left.
            set.recheck_rotating();
            ask = Ask::Unconditional;
            yields_until = None;
        }
        let ready = set.harvest_as(events, ask, turns);
        if slept && outcome == Outcome::Woken {
            set.tally.count(|tally| tally.woken(ready));
        }
        if ready > 0 {
            return Some(Ok(ready));
        }
        match outcome {
            Outcome::Woken if has_backend => return None,
            Outcome::TimedOut if deadline.has_passed() => return Some(Ok(0)),
            Outcome::Woken | Outcome::TimedOut => {}
            Outcome::Interrupted => return Some(Err(Errno::INTR)),
        }
    }
}

/// In a rotating set threads take turns: one that comes while others wait stands last in line,
/// even if something is ready, and the first in line has it. None as for [`wait_in_core`].
fn wait_in_turn(
    set: &Set,
    events: &mut [Event],
    deadline: Deadline,
) -> Option<Result<usize, Errno>> {
    let mut chosen_for_nothing = false;
    let mut keeper = TimeKeeper::of(set);
    loop {
        // An event that the chosen worker of a rotating set below has left there wakes nobody else.
        set.recheck_rotating();
        // Take idle items off the list first: they must not look like an event to forward.
        set.has_ready();
        let sleeper = Sleeper::new();
        let mut deferred = Deferred::new();
        // SAFETY: the sleeper stays in this frame until it is unhooked below, and the set is
        // borrowed for longer.
        let arrival = unsafe {
            set.sleepers.turn_or_hook(
                &sleeper.entry,
                chosen_for_nothing,
                || set.is_pending(),
                &mut deferred,
            )
        };
        drop(deferred);
        let has_backend = EpollBackend::of(set).is_some();
        let sleep = match arrival {
            Arrival::BehindOthers => deadline.within(Some(YIELD_FOR)),
            Arrival::Idle | Arrival::InTurn => deadline,
        };
        let outcome = match arrival {
            Arrival::InTurn => Outcome::Woken,
            _ if has_backend => Outcome::Woken,
            Arrival::BehindOthers | Arrival::Idle => {
                let spins = arrival == Arrival::Idle;
                sleep_in(set, &sleeper, begin_sleep(&mut keeper, sleep), spins)
            }
        };
        // In line still: a timer that fires now chooses a thread, which may be this one.
        let outcome = end_sleep(&mut keeper, outcome, sleep);
        let ready = harvest_and_leave(set, &sleeper, events, arrival, outcome);
        if outcome == Outcome::Woken && arrival != Arrival::InTurn && !has_backend {
            set.tally.count(|tally| tally.woken(ready));
        }
        if ready > 0 {
            return Some(Ok(ready));
        }
        match outcome {
            Outcome::Woken if has_backend => return None,
            Outcome::TimedOut if deadline.has_passed() => return Some(Ok(0)),
            Outcome::Woken => chosen_for_nothing = arrival != Arrival::InTurn,
            Outcome::TimedOut => {}
            Outcome::Interrupted => return Some(Err(Errno::INTR)),
        }
    }
}

/// Harvests for a thread that came into line by `arrival`, and whose sleep had this `outcome`. The thread is out of the
/// line afterwards.
fn harvest_and_leave(
    set: &Set,
    sleeper: &Sleeper,
    events: &mut [Event],
    arrival: Arrival,
    outcome: Outcome,
) -> usize {
    let mut ready = 0;
    if outcome != Outcome::Woken {
        // Out of the line before the look: the event of a wake that chooses this thread after it
        // would be lost.
        sleeper.entry.unhook();
        // A thread that was not woken takes what is there: the chosen worker may not come.
        set.recheck_rotating();
        ready = set.harvest(events);
        if any_hangs_up(&events[..ready]) {
            // No thread can use that up.
            set.sleepers.forward_in_turn(Events::IN);
        }
    } else if arrival == Arrival::InTurn || sleeper.entry.is_claimed() {
        ready = set.harvest(events);
        let has_another = any_hangs_up(&events[..ready]);
        let is_ready = || ready > 0 || set.is_pending();
        let mut deferred = Deferred::new();
        // The next thread polls before it sleeps.
        sleeper
            .entry
            .settle(is_ready, has_another, RecheckFlags::Stay, &mut deferred);
    }
    if let Some(queue) = sleeper.entry.unhook() {
        // Chosen between the end of the sleep and now.
        // SAFETY: the queue is the set's, which is borrowed.
        unsafe { queue.as_ref() }.forward_in_turn(Events::IN);
    }
    ready
}

impl Epoll {
    /// A wait in a set with a kernel backend, or with a signal mask: the thread sleeps in the
    /// kernel.
    fn wait_in_kernel(
        &self,
        events: &mut [Event],
        deadline: Deadline,
        mask: SignalMask<'_>,
        turns: &mut Turns,
    ) -> Result<usize, Errno> {
        if !self.set().rotates() {
            return wait_in_kernel_set(self, events, deadline, mask, turns);
        }
        if let Some(backend) = EpollBackend::of(self.set()) {
            backend.ensure_intact(self.description())?;
        }
        let worker = worker_of(self)?;
        loop {
            let chosen = &mut [Event::default()];
            let mut turns = Turns::default();
            let mut ended = Ok(begin_wait(worker.set(), chosen, &mut turns));
            let slept = ended == Ok(0);
            if slept {
                self.set().tally.count(Tally::sleeps);
                ended = wait_in_kernel_set(&worker, chosen, deadline, mask, &mut turns);
            }
            if ended.is_err() && worker.set().is_pending() {
                // Chosen together with the signal: the thread may not come back, so the next in line
                // has the event.
                dismiss(&worker);
            }
            if ended? == 0 {
                return Ok(0);
            }
            let ready = self.file.harvest_unremembered(events)?;
            if slept {
                self.set().tally.count(|tally| tally.woken(ready));
            }
            if ready > 0 {
                return Ok(ready);
            }
            // Another thread has taken the event, or the writer has not yet woken its waiters. The worker
            // keeps its place in the kernel's line. To register it anew would find a source that is ready
            // again and again, until the writer goes on.
            if let Some(backend) = EpollBackend::of(worker.set()) {
                backend.forget_choice();
            }
        }
    }
}

crate::sync::thread_locals! {
    /// The sets through which this thread waits in rotating sets with a kernel backend. That way it
    /// takes turns with workers, and keeps its place in line between two waits.
    static WORKERS: RefCell<Vec<(usize, Epoll)>> = const { RefCell::new(Vec::new()) };
}

/// The set through which this thread waits in `rotating`.
fn worker_of(rotating: &Epoll) -> Result<Epoll, Errno> {
    let identity = rotating.as_file_ref().identity().addr();
    // A rotating set that was closed has left its workers.
    drop_workers(|worker| worker.set().lock().nested() == 0);
    let found = WORKERS.try_with(|workers| {
        let workers = workers.borrow();
        let known = workers.iter().find(|(of, _)| *of == identity);
        known.map(|(_, worker)| worker.clone())
    });
    if let Ok(Some(worker)) = found {
        return Ok(worker);
    }
    let worker = Epoll::new()?;
    worker.set().is_hidden.store(true, Ordering::Relaxed);
    worker.add(rotating, Event::new(Events::IN, 0))?;
    EpollBackend::ensure(worker.description())?;
    // A thread about to end has no place to keep it.
    let kept = WORKERS.try_with(|workers| {
        let mut workers = workers.borrow_mut();
        workers.try_reserve(1).map_err(|_| Errno::NOMEM)?;
        workers.push((identity, worker.clone()));
        Ok::<_, Errno>(())
    });
    kept.unwrap_or(Ok(()))?;
    Ok(worker)
}

/// Ends the use of `worker` by this thread. Its claims are forwarded when it is dropped.
fn dismiss(worker: &Epoll) {
    let identity = worker.as_file_ref().identity();
    drop_workers(|kept| kept.as_file_ref().identity() == identity);
}

/// Drops the workers of this thread that `is_over` returns true for. The drop may call foreign code, which may wait
/// in a rotating set, so `WORKERS` is not borrowed meanwhile.
fn drop_workers(is_over: impl Fn(&Epoll) -> bool) {
    let next = || {
        WORKERS.try_with(|workers| {
            let mut workers = workers.borrow_mut();
            let over = workers.iter().position(|(_, worker)| is_over(worker))?;
            Some(workers.swap_remove(over))
        })
    };
    while let Ok(Some(_over)) = next() {}
}

/// Waits in the kernel set of `epoll`, which does not rotate.
fn wait_in_kernel_set(
    epoll: &Epoll,
    events: &mut [Event],
    deadline: Deadline,
    mask: SignalMask<'_>,
    turns: &mut Turns,
) -> Result<usize, Errno> {
    let set = epoll.set();
    // The ADD of a member informs the sets above.
    let backend = EpollBackend::ensure_own(set)?;
    let mut yields_until = None;
    let mut may_look_again = true;
    let mut keeper = TimeKeeper::of(set);
    if mask.is_none() {
        let ready = harvest_repeatedly(set, backend, deadline, || {
            set.fire_due();
            backend.stand_last(set);
            harvest_both(set, backend, events, turns)
        });
        if ready > 0 {
            return Ok(ready);
        }
    }
    loop {
        let losses = backend.losses();
        backend.restore_found_lost(epoll.description())?;
        let is_pending = set.is_pending();
        backend.stand_last(set);
        if is_pending {
            let ready = harvest_both(set, backend, events, turns);
            if ready > 0 {
                return Ok(ready);
            }
        }
        let sleep = next_sleep(deadline, turns, &mut yields_until);
        set.tally.count(Tally::sleeps);
        let limit = || begin_sleep(&mut keeper, sleep).next_sleep();
        let slept = backend.sleep(set, events, limit, mask);
        keeper.end_sleep();
        if mask.is_some()
            && let Err(errno) = slept
        {
            // The handler has run of a signal that only the mask let through. EINTR is how the
            // caller learns of it, and what is ready now stays for the next wait. Another thread is offered what this one
            // was chosen for: it may not come back. A hidden set does that when it is dismissed.
            backend.settle_choice(false);
            if !set.is_hidden.load(Ordering::Relaxed) {
                handover::forward_unseen(set);
            }
            return Err(errno);
        }
        let mut ready = *slept.as_ref().unwrap_or(&0);
        let mut ask = Ask::Yielding;
        let woken = ready > 0 || slept.is_ok() && !sleep.has_passed();
        if !woken {
            set.recheck_rotating();
            ask = Ask::Unconditional;
            yields_until = None;
        }
        // Harvest whatever ended the sleep, as above.
        backend.begin_harvest();
        if ready < events.len() && set.is_pending() {
            ready += set.harvest_as(&mut events[ready..], ask, turns);
        }
        backend.settle_choice(ready > 0);
        if woken {
            set.tally.count(|tally| tally.woken(ready));
        }
        backend.end_harvest(set, ready > 0);
        if ready > 0 {
            return Ok(ready);
        }
        slept?;
        // Also after a wake for nothing: many of them must not keep the limit from its due. A set that the
        // program has closed was not asked, though another thread may have made it anew by now. Then this looks once more.
        if deadline.has_passed()
            && !backend.is_found_lost()
            && (losses == backend.losses() || !mem::take(&mut may_look_again))
        {
            return Ok(0);
        }
    }
}
