//! Time limits: how long, and by which clock.

use core::time::Duration;

pub(super) use crate::clock::Clock;

/// Returns the time by `clock`.
#[cfg(upoll_loom)]
pub(super) fn now(_: Clock) -> libc::timespec {
    crate::host::kernel::clock()
}

/// Returns the time by `clock`.
#[cfg(not(upoll_loom))]
pub(super) fn now(clock: Clock) -> libc::timespec {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a timespec to be filled, and each of these clocks always exists.
    unsafe { libc::clock_gettime(clock.id(), &raw mut now) };
    now
}

/// The longest time that a call may wait, in nanoseconds from the call on.
///
/// A wait never ends early for its limit; how late it ends is up to the kernel's timers and
/// scheduler (some 50 us by default, see `prctl(2)`, `PR_SET_TIMERSLACK`).
///
/// # Example
/// ```
/// use std::time::Duration;
/// use upoll::{Clock, Timeout};
/// let limit: Timeout = Duration::from_micros(50).into();
/// assert_eq!(limit, Timeout::after(Clock::Monotonic, Duration::from_micros(50)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout {
    clock: Clock,
    limit: Option<Duration>,
}

impl Timeout {
    /// No limit.
    pub const NEVER: Timeout = Timeout {
        clock: Clock::Monotonic,
        limit: None,
    };

    /// A limit of zero: the call does not wait.
    pub const NOW: Timeout = Timeout {
        clock: Clock::Monotonic,
        limit: Some(Duration::ZERO),
    };

    /// A limit that `clock` measures.
    #[must_use]
    pub const fn after(clock: Clock, limit: Duration) -> Self {
        Timeout {
            clock,
            limit: Some(limit),
        }
    }

    /// The clock that measures the limit.
    #[must_use]
    pub const fn clock(self) -> Clock {
        self.clock
    }

    /// The limit, if there is one.
    #[must_use]
    pub const fn limit(self) -> Option<Duration> {
        self.limit
    }

    /// The limit begins to run out now.
    pub(super) fn start(self) -> Running {
        // Neither zero nor no limit ever changes.
        let end = if self.is_now() {
            Deadline::Never
        } else {
            self.deadline()
        };
        Running { timeout: self, end }
    }

    /// The limit as the kernel's calls take it; none if there is none, or none that it can count.
    pub(super) fn as_timespec(self) -> Option<libc::timespec> {
        let limit = self.limit?;
        Some(libc::timespec {
            tv_sec: libc::time_t::try_from(limit.as_secs()).ok()?,
            tv_nsec: libc::c_long::from(limit.subsec_nanos().cast_signed()),
        })
    }

    pub(super) fn is_now(self) -> bool {
        self.limit == Some(Duration::ZERO)
    }

    /// Returns the time at which a wait that begins now must end.
    pub(super) fn deadline(self) -> Deadline {
        let Some(limit) = self.limit else {
            return Deadline::Never;
        };
        let now = now(self.clock);
        let nanoseconds = now.tv_nsec + libc::c_long::from(limit.subsec_nanos().cast_signed());
        let carry = nanoseconds / 1_000_000_000;
        let seconds = libc::time_t::try_from(limit.as_secs())
            .ok()
            .and_then(|seconds| seconds.checked_add(now.tv_sec))
            .and_then(|seconds| seconds.checked_add(carry));
        match seconds {
            Some(tv_sec) => Deadline::At(
                self.clock,
                libc::timespec {
                    tv_sec,
                    tv_nsec: nanoseconds % 1_000_000_000,
                },
            ),
            None => Deadline::Never,
        }
    }
}

impl From<Duration> for Timeout {
    fn from(limit: Duration) -> Self {
        Timeout::after(Clock::Monotonic, limit)
    }
}

/// None waits however long it takes.
impl From<Option<Duration>> for Timeout {
    fn from(limit: Option<Duration>) -> Self {
        limit.map_or(Timeout::NEVER, Timeout::from)
    }
}

/// The time at which a sleep ends by itself.
#[derive(Clone, Copy)]
pub(super) enum Deadline {
    /// Not at all, and a signal handler that asks for it (`SA_RESTART`) has it go on.
    NeverRestart,
    /// Not at all, but any signal handler ends it.
    Never,
    /// At this point of a clock.
    At(Clock, libc::timespec),
}

/// A time limit that is running out.
pub(super) struct Running {
    timeout: Timeout,
    end: Deadline,
}

impl Running {
    /// Returns the time that is left.
    pub(super) fn rest(&self) -> Timeout {
        match self.end {
            Deadline::At(clock, at) => Timeout::after(clock, until(clock, at)),
            Deadline::Never | Deadline::NeverRestart => self.timeout,
        }
    }
}

/// Returns the time until `at`; zero if that has passed.
fn until(clock: Clock, at: libc::timespec) -> Duration {
    since_zero(at).saturating_sub(since_zero(now(clock)))
}

/// Returns the time since the clock's zero.
pub(super) fn since_zero(time: libc::timespec) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanoseconds)
}

/// The longest time that a sleep measured by `CLOCK_MONOTONIC` lasts before the wall clock is read
/// again. The clock may have been set.
const GLANCE: Duration = Duration::from_secs(1);

impl Deadline {
    /// Returns the limit of the next sleep, for a call that takes a relative one; None is no limit.
    ///
    /// The sleep lasts until the end, or by the wall clock a second at most.
    pub(super) fn next_sleep(self) -> Option<libc::timespec> {
        let Deadline::At(clock, at) = self else {
            return None;
        };
        let mut rest = until(clock, at);
        if clock == Clock::Realtime {
            rest = rest.min(GLANCE);
        }
        Timeout::after(clock, rest).as_timespec()
    }

    /// Returns this deadline, or the end of `limit` from now if that is sooner.
    pub(super) fn within(self, limit: Option<Duration>) -> Deadline {
        let Some(limit) = limit else { return self };
        match self {
            Deadline::At(clock, at) if until(clock, at) <= limit => self,
            _ => Timeout::after(Clock::Monotonic, limit).deadline(),
        }
    }

    /// Returns this deadline, or the point `at` of `clock` if that is sooner.
    pub(super) fn or_at(self, clock: Clock, at: Duration) -> Deadline {
        let Some(point) = Timeout::after(clock, at).as_timespec() else {
            return self;
        };
        let is_sooner = match self {
            Deadline::Never | Deadline::NeverRestart => false,
            Deadline::At(own, end) if own == clock => since_zero(end) <= at,
            Deadline::At(own, end) => until(own, end) <= until(clock, point),
        };
        match is_sooner {
            true => self,
            false => Deadline::At(clock, point),
        }
    }

    /// Returns whether the end is reached.
    pub(super) fn has_passed(self) -> bool {
        match self {
            Deadline::At(clock, at) => {
                let now = now(clock);
                (now.tv_sec, now.tv_nsec) >= (at.tv_sec, at.tv_nsec)
            }
            Deadline::Never | Deadline::NeverRestart => false,
        }
    }
}
