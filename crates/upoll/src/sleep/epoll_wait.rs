//! `epoll_wait(2)`: harvest, or sleep until there is something to harvest.

use super::timeout::Deadline;
use super::{Outcome, Sleeper, Timeout};
use crate::epoll::{Epoll, Set};
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::sync::Ordering;
use crate::wait::{Deferred, Place};

impl Epoll {
    /// `epoll_wait(2)` with a timeout in nanoseconds: fills `events` with what is ready, oldest
    /// first, and says how many; waits for the first one if there is none.
    ///
    /// Returns 0 when the time limit has passed, never before. Several threads may wait in one set:
    /// an event wakes the one that came last (in a rotating set the one that has waited longest),
    /// and a level-triggered event that stays ready goes on to the next. What is ready when a limit
    /// passes or a signal comes is still reported.
    ///
    /// # Errors
    /// `EINVAL`: `events` is empty. `EINTR`: a signal handler ran and nothing was ready; the call
    /// is never restarted, whatever `SA_RESTART` says.
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
        let set = self.set();
        if timeout.is_now() {
            return Ok(set.harvest(events));
        }
        if set.rotates() {
            return wait_in_turn(set, events, timeout.deadline());
        }
        let ready = harvest_in_turn(set, events);
        if ready > 0 {
            return Ok(ready);
        }
        wait_asleep(set, events, timeout.deadline())
    }
}

/// How often a worker lets the others run before it takes an event out of turn.
const PATIENCE: usize = 16;

/// Harvests; leaves the event of a rotating set to workers that are runnable but not running, and
/// so are not in line yet.
fn harvest_in_turn(set: &Set, events: &mut [Event]) -> usize {
    for _ in 0..PATIENCE {
        let ready = set.harvest_patiently(events, false);
        if ready > 0 || !set.take_out_of_turn() {
            return ready;
        }
        std::thread::yield_now();
    }
    set.harvest(events)
}

fn wait_asleep(set: &Set, events: &mut [Event], deadline: Deadline) -> Result<usize, Errno> {
    loop {
        let sleeper = Sleeper::new();
        // SAFETY: the sleeper stays in this frame until it is unhooked below, and the set is
        // borrowed for longer.
        unsafe { sleeper.entry.hook(&set.sleepers, Place::ExclusiveHead) };
        // Registered, now look: whoever queued something before that did not see the sleeper.
        let outcome = if set.is_pending() {
            Outcome::Woken
        } else {
            sleeper.sleep(deadline)
        };
        sleeper.entry.unhook();
        // Harvest whatever ended the sleep: a wake may have come together with the limit or a
        // signal, and would be lost if nobody looked.
        let ready = harvest_in_turn(set, events);
        if ready > 0 {
            return Ok(ready);
        }
        match outcome {
            Outcome::Woken => {}
            Outcome::TimedOut => return Ok(0),
            Outcome::Interrupted => return Err(Errno::INTR),
        }
    }
}

/// In a rotating set threads take turns: one that comes while others wait stands last in line,
/// even if something is ready, and the first in line has it.
fn wait_in_turn(set: &Set, events: &mut [Event], deadline: Deadline) -> Result<usize, Errno> {
    let mut chosen_for_nothing = false;
    loop {
        if set.take_out_of_turn() {
            std::thread::yield_now();
        }
        // Take idle items off the list first: they must not look like something to hand on.
        set.has_ready();
        let sleeper = Sleeper::new();
        let mut deferred = Deferred::new();
        // SAFETY: the sleeper stays in this frame until it is unhooked below, and the set is
        // borrowed for longer.
        let my_turn = unsafe {
            set.sleepers.turn_or_hook(
                &sleeper.entry,
                chosen_for_nothing,
                || set.is_pending(),
                &mut deferred,
            )
        };
        drop(deferred);
        let outcome = if my_turn {
            set.out_of_turn.store(true, Ordering::Relaxed);
            Outcome::Woken
        } else {
            sleeper.sleep(deadline)
        };
        let mut ready = 0;
        if my_turn || sleeper.entry.is_claimed() {
            ready = set.harvest(events);
            let mut deferred = Deferred::new();
            // SAFETY: the queue is the set's, which is borrowed.
            unsafe {
                sleeper
                    .entry
                    .settle(|| ready > 0 || set.is_pending(), &mut deferred)
            };
        }
        if let Some(queue) = sleeper.entry.unhook() {
            // Chosen between the end of the sleep and now.
            // SAFETY: as above.
            unsafe { queue.as_ref() }.pass_on(Events::IN, true);
        }
        if ready > 0 {
            return Ok(ready);
        }
        match outcome {
            Outcome::Woken => chosen_for_nothing = !my_turn,
            Outcome::TimedOut => return Ok(0),
            Outcome::Interrupted => return Err(Errno::INTR),
        }
    }
}
