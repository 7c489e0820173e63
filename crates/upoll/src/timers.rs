//! `timerfd(2)`: timers that sets can watch.

use core::fmt;
use core::time::Duration;

use crate::errno::Errno;
use crate::events::Events;
use crate::file::{File, InTime, PollTable, Pollable, TimeSource};
use crate::memory::SharedBox;
use crate::schedule::{Expirations, NEVER, Schedule, nanoseconds};
use crate::target::is_source;

/// Timers that go by one clock.
///
/// The clock is virtual, and its owner sets it by [`advance`](Self::advance). Or, with `std`, it is one of the
/// kernel's: see `Timers::on`. Then a thread that waits for a timer sleeps until the timer fires at the latest. It may wait
/// in a set that watches the timer, itself or in sets below, or in `poll` or `select`. To arm a timer takes no system call, unless
/// a thread that sleeps for longer has to be woken.
///
/// Cloning makes another reference to the same timers.
///
/// # Costs
/// To arm a timer costs time by the logarithm of the number of timers. If it becomes the next one to fire, that costs time
/// by the number of sets, too, in which threads sleep or have slept since the last time. Sets that have never watched one of
/// these timers do not count. A set goes through all `Timers` on a clock of the kernel's that it has ever watched a timer of,
/// at each wait and each sleep. So share one `Timers` among many timers: do not make one for each.
///
/// # Signal handlers and forks
/// A signal handler must not use timers, nor poll sets that watch them, as it may have interrupted a call that holds their
/// lock. For the same reason the child of a process with several threads must not use its parent's timers.
///
/// # Without a thread that waits
/// A timer fires in a call that looks at the time. That is a wait, a `poll` of the timer or of a set that watches it,
/// a read of any of these timers, `advance` or [`fire`](Self::fire). So a
/// [`Watch`](crate::Watch) or a [`Readiness`](crate::Readiness) needs such a call. A program without a thread that waits has
/// one in `keep_time`. Or its event loop calls `fire` when the time comes that the last call has returned.
///
/// # Example
/// ```
/// use std::time::Duration;
/// use upoll::{Epoll, Event, Events, Timers};
///
/// let timers = Timers::new()?;
/// let timer = timers.timer()?;
/// let set = Epoll::new()?;
/// set.add(&timer, Event::new(Events::IN, 1))?;
///
/// let second = Duration::from_secs(1);
/// timer.arm(second, second);
/// let mut events = [Event::default(); 4];
/// assert_eq!(set.try_wait(&mut events)?, 0);
/// timers.advance(3 * second)?;
/// assert_eq!(set.try_wait(&mut events)?, 1);
/// assert_eq!(timer.try_read(), Ok(3));
/// # Ok::<(), upoll::Errno>(())
/// ```
#[derive(Clone)]
pub struct Timers {
    schedule: SharedBox<Schedule>,
}

impl Timers {
    /// Makes timers that go by a virtual clock. Its time is zero.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    pub fn new() -> Result<Self, Errno> {
        Self::with_schedule(Schedule::new(None))
    }

    pub(crate) fn with_schedule(schedule: Schedule) -> Result<Self, Errno> {
        Ok(Timers {
            schedule: SharedBox::new(schedule)?,
        })
    }

    pub(crate) fn is_virtual(&self) -> bool {
        self.schedule.clock().is_none()
    }

    /// `timerfd_create(2)`: makes a timer that is not armed.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    #[doc(alias = "timerfd_create")]
    pub fn timer(&self) -> Result<Timer, Errno> {
        let (number, expirations) = self.schedule.add()?;
        let file = File::try_new(Member {
            number,
            expirations,
            schedule: self.schedule.clone(),
        })?;
        Ok(Timer { file })
    }

    /// Sets the virtual clock to `now`, and fires the timers that are due by then, in the order of their times. Timers with
    /// the same time fire in the order in which they were armed. Callbacks and wakers are called when all of them have
    /// fired.
    ///
    /// Returns the time at which the next timer fires, if one is armed. A periodic timer that has fired is armed again by a
    /// read. A `now` before the clock's time leaves it as it is.
    ///
    /// # Errors
    /// `EINVAL`: the timers go by a clock of the kernel's.
    pub fn advance(&self, now: Duration) -> Result<Option<Duration>, Errno> {
        if !self.is_virtual() {
            return Err(Errno::INVAL);
        }
        self.schedule.pass_until(nanoseconds(now));
        Ok(self.fire())
    }

    /// Fires the timers that are due. Returns the time at which the next one fires, if one is armed.
    pub fn fire(&self) -> Option<Duration> {
        self.schedule.fire();
        self.next_due()
    }

    /// Returns the time at which the next timer fires, if one is armed for a time that comes.
    #[must_use]
    pub fn next_due(&self) -> Option<Duration> {
        let next = self.schedule.next();
        (next != NEVER).then(|| Duration::from_nanos(next))
    }

    /// Returns the time of the clock.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.schedule.now())
    }
}

impl fmt::Debug for Timers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timers")
            .field("next_due", &self.next_due())
            .finish_non_exhaustive()
    }
}

/// The times at which a timer fires: `struct itimerspec`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TimerSetting {
    /// The time until the timer fires (`it_value`). Zero if it is not armed, or has fired and is not periodic.
    pub remaining: Duration,
    /// The time between two expirations (`it_interval`). Zero if the timer is not periodic.
    pub interval: Duration,
}

impl TimerSetting {
    fn new((remaining, interval): (u64, u64)) -> Self {
        TimerSetting {
            remaining: Duration::from_nanos(remaining),
            interval: Duration::from_nanos(interval),
        }
    }
}

/// A timer, which sets, `poll` and `select` can watch: a timerfd.
///
/// It is `IN` while it has expired since it was last read or armed. It wakes its waiters when it fires. A periodic timer
/// fires once until it is read; the read counts all expirations. So an edge-triggered interest reports it once for each
/// read, as in Linux.
///
/// Cloning makes another reference to the same timer, as `dup(2)` does. The last one to drop disarms it.
///
/// # Differences from Linux
/// A relative time of a timer on `Clock::Realtime` is measured by that clock, so it changes if the clock is set. Linux
/// measures it by `CLOCK_MONOTONIC`. There is no `TFD_TIMER_CANCEL_ON_SET`.
///
/// A read of Linux may return 0 bytes: the timer is periodic, and `CLOCK_REALTIME` was set back to before the time at which
/// it has fired. Here the read returns 1, and the timer fires next one interval after that time.
///
/// # Example
/// ```
/// use std::time::Duration;
/// use upoll::{Errno, Timers};
///
/// let timers = Timers::new()?;
/// let timer = timers.timer()?;
/// timer.arm(Duration::from_millis(5), Duration::ZERO);
/// assert_eq!(timer.try_read(), Err(Errno::AGAIN));
/// timers.advance(Duration::from_millis(5))?;
/// assert_eq!(timer.try_read(), Ok(1));
/// # Ok::<(), Errno>(())
/// ```
#[derive(Clone, Debug)]
#[doc(alias = "timerfd")]
pub struct Timer {
    file: File<Member>,
}

impl Timer {
    /// `timerfd_settime(2)`: the timer fires `after` from now, and then each `interval`, or once if that is zero.
    ///
    /// Returns the setting before. Expirations that were not read are dropped. If `after` is zero the timer is disarmed.
    /// Times are in nanoseconds; times beyond about 292 years never come.
    ///
    /// Timers that are due by now fire first. Their callbacks run after the change, at the end of the call: one that arms
    /// this timer again has the last word, also after [`disarm`](Timer::disarm).
    #[doc(alias = "timerfd_settime")]
    pub fn arm(&self, after: Duration, interval: Duration) -> TimerSetting {
        self.set(after, interval, false)
    }

    /// `timerfd_settime(2)` with `TFD_TIMER_ABSTIME`: as [`arm`](Self::arm), but the timer fires when its clock
    /// shows `at`. If that has passed, it fires at once, and the periods since then count. If `at` is zero it is disarmed.
    #[doc(alias = "TFD_TIMER_ABSTIME")]
    pub fn arm_at(&self, at: Duration, interval: Duration) -> TimerSetting {
        self.set(at, interval, true)
    }

    /// Disarms the timer, and drops its expirations. Returns the setting before.
    pub fn disarm(&self) -> TimerSetting {
        self.arm(Duration::ZERO, Duration::ZERO)
    }

    fn set(&self, value: Duration, interval: Duration, is_absolute: bool) -> TimerSetting {
        let (value, interval) = (nanoseconds(value), nanoseconds(interval));
        let Member {
            schedule, number, ..
        } = &*self.file;
        TimerSetting::new(schedule.set(*number, value, interval, is_absolute))
    }

    /// `timerfd_gettime(2)`: returns the time until the timer fires next, and its interval.
    #[must_use]
    #[doc(alias = "timerfd_gettime")]
    pub fn setting(&self) -> TimerSetting {
        TimerSetting::new(self.file.schedule.remaining(self.file.number))
    }

    /// Returns how often the timer has expired since it was last read or armed, without waiting.
    ///
    /// # Errors
    /// `EAGAIN`: it has not.
    pub fn try_read(&self) -> Result<u64, Errno> {
        self.file.schedule.take(self.file.number)
    }
}

is_source!(Timer);

/// The timer itself.
struct Member {
    number: u32,
    expirations: SharedBox<Expirations>,
    schedule: SharedBox<Schedule>,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl InTime for Member {
    fn for_each_schedule(&self, visit: &mut dyn FnMut(&SharedBox<Schedule>)) {
        visit(&self.schedule);
    }
}

impl Drop for Member {
    /// The number is free only now: whoever has the file may use the timer after its close.
    fn drop(&mut self) {
        self.schedule.remove(self.number);
    }
}

impl Pollable for Member {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.expirations.queue);
        if !self.expirations.is_any() && self.schedule.clock().is_some() {
            self.schedule.fire();
        }
        if self.expirations.is_any() {
            Events::IN
        } else {
            Events::empty()
        }
    }

    fn release(&self) {
        self.schedule.set(self.number, 0, 0, false);
        self.expirations.queue.wake_all(Events::HUP);
    }

    fn time_source(&self) -> Option<TimeSource<'_>> {
        self.schedule.clock().map(|_| TimeSource(self))
    }
}
