//! Timers by the clocks of the kernel, and the sleeps that they end.

use core::time::Duration;

use smallvec::SmallVec;

use super::poll::poll;
use super::timeout::{Clock, Deadline, now, since_zero};
use crate::Epoll;
use crate::epoll::time::TimeKeeper;
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::memory::SharedBox;
use crate::poll::PollFd;
use crate::schedule::{NEVER, Schedule};
use crate::target::Source;
use crate::timers::{Timer, Timers};

impl Timers {
    /// Makes timers that go by a clock of the kernel's.
    ///
    /// Threads that wait for them sleep until the next one fires. The kernel decides how late a sleep ends: see
    /// [`Timeout`](crate::Timeout). If the wall clock is set, a thread that sleeps for kernel fds, too, notices within
    /// a second, and one whose sleep ends by the other clock when that ends.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// use upoll::{Clock, Epoll, Event, Events, Timers};
    ///
    /// let timers = Timers::on(Clock::Monotonic)?;
    /// let timer = timers.timer()?;
    /// let set = Epoll::new()?;
    /// set.add(&timer, Event::new(Events::IN, 1))?;
    /// timer.arm(Duration::from_micros(50), Duration::ZERO);
    /// assert_eq!(set.wait(&mut [Event::default()], None)?, 1);
    /// assert_eq!(timer.try_read(), Ok(1));
    /// # Ok::<(), upoll::Errno>(())
    /// ```
    pub fn on(clock: Clock) -> Result<Self, Errno> {
        let read = |clock| since_zero(now(clock));
        Self::with_schedule(Schedule::new(Some((clock, read))))
    }

    /// Fires the timers as they become due, until `stop` is readable. The thread sleeps meanwhile.
    ///
    /// A program in which no thread waits for these timers has one that does this. Then callbacks, tasks of any runtime
    /// and the [readiness fds](Epoll::readiness_fd) of sets learn of the timers as of everything else.
    ///
    /// Callbacks and wakers of timers run on this thread. A panic of one ends the call and goes on there; the timer has fired.
    ///
    /// # Errors
    /// `EINVAL`: the clock is virtual. `ENOMEM`, `ENOSPC`: there is no memory or no watch for the wait. Further errors are
    /// those of [`Epoll::add`] for `stop`, and of [`Epoll::wait`] but for `EINTR`.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// use upoll::{Clock, Epoll, Event, EventFd, Events, PollFd, Timers, poll};
    ///
    /// let timers = Timers::on(Clock::Monotonic)?;
    /// let timer = timers.timer()?;
    /// let stop = EventFd::new(0)?;
    /// let set = Epoll::new()?;
    /// set.add(&timer, Event::new(Events::IN, 1))?;
    /// let fd = set.readiness_fd()?;
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| timers.keep_time(&stop));
    ///     timer.arm(Duration::from_micros(50), Duration::ZERO);
    ///     // The loop of a program that knows only kernel fds.
    ///     let readable = poll(&mut [PollFd::new(&fd, Events::IN)], None);
    ///     stop.signal();
    ///     assert_eq!(readable, Ok(1));
    /// });
    /// # Ok::<(), upoll::Errno>(())
    /// ```
    pub fn keep_time(&self, stop: &(impl Source + ?Sized)) -> Result<(), Errno> {
        if self.is_virtual() {
            return Err(Errno::INVAL);
        }
        let set = Epoll::new()?;
        // A set goes by the clocks of its members, also if no events are wanted of them.
        let any_timer = self.timer()?;
        set.add(&any_timer, Event::new(Events::empty(), 0))?;
        set.add(stop, Event::new(Events::IN, 1))?;
        loop {
            match set.wait(&mut [Event::default()], None) {
                Err(Errno::INTR) => {}
                done => return done.map(drop),
            }
        }
    }
}

impl Timer {
    /// Returns how often the timer has expired since it was last read or armed; waits while it has not.
    ///
    /// A thread that waits for a timer by a virtual clock sleeps until another one
    /// [advances](Timers::advance) that clock.
    ///
    /// # Errors
    /// `EINTR`: a signal handler ran, with or without `SA_RESTART`. `ENOMEM`: there is no memory for the wait. `EINVAL`: it has
    /// to wait, and `RLIMIT_NOFILE` is 0, as the wait is a [`poll`].
    pub fn read(&self) -> Result<u64, Errno> {
        loop {
            match self.try_read() {
                Err(Errno::AGAIN) => {}
                done => return done,
            }
            poll(&mut [PollFd::new(self, Events::IN)], None)?;
        }
    }
}

/// Begins a sleep until `limit` with `keeper`, whose thread has registered. Returns when the sleep ends at the latest.
pub(super) fn begin_sleep(keeper: &mut TimeKeeper<'_>, limit: Deadline) -> Deadline {
    let mut end = limit;
    keeper.begin_sleep(|schedule, next| end = end_at(end, schedule, next));
    end
}

/// Returns `end`, or the time `next` of `schedule` if that is sooner.
fn end_at(end: Deadline, schedule: &Schedule, next: u64) -> Deadline {
    match schedule.clock() {
        Some(clock) if next != NEVER => end.or_at(clock, Duration::from_nanos(next)),
        _ => end,
    }
}

/// The schedules of the timers that a thread waits for in `poll` or `select`.
#[derive(Default)]
pub(super) struct Awaited(SmallVec<[SharedBox<Schedule>; 1]>);

impl Awaited {
    /// Adds a schedule. Returns whether it is new.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    pub(super) fn add(&mut self, schedule: &SharedBox<Schedule>) -> Result<bool, Errno> {
        if self
            .0
            .iter()
            .any(|known| SharedBox::ptr_eq(known, schedule))
        {
            return Ok(false);
        }
        self.0.try_reserve(1).map_err(|_| Errno::NOMEM)?;
        self.0.push(schedule.clone());
        Ok(true)
    }

    /// Returns when a sleep until `limit` ends at the latest.
    pub(super) fn limit(&self, limit: Deadline) -> Deadline {
        self.0.iter().fold(limit, |end, schedule| {
            end_at(end, schedule, schedule.next())
        })
    }

    /// Fires the timers that are due.
    pub(super) fn fire_due(&self) {
        self.0.iter().for_each(|schedule| schedule.fire());
    }
}

#[cfg(all(test, feature = "std", not(upoll_loom)))]
mod tests {
    use super::{Clock, Duration, TimeKeeper, Timers};
    use crate::{Epoll, Event, Events};

    #[test]
    fn a_thread_that_a_panic_takes_out_of_its_sleep_keeps_the_time_no_more() {
        let timer = Timers::on(Clock::Monotonic).unwrap().timer().unwrap();
        let set = Epoll::new().unwrap();
        set.add(&timer, Event::new(Events::IN, 0)).unwrap();
        timer.arm(Duration::from_secs(3600), Duration::ZERO);
        let mut keeper = TimeKeeper::of(set.set());
        keeper.begin_sleep(|_, _| {});
        assert!(!set.set().has_unkept_time());
        drop(keeper);
        assert!(set.set().has_unkept_time());
    }
}
