//! Time limits: how long, and by which clock.

use core::time::Duration;

/// The clock that a time limit is measured by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Clock {
    /// `CLOCK_MONOTONIC`: never set. What `epoll_wait`, `poll` and `select` use.
    #[default]
    Monotonic,
    /// `CLOCK_REALTIME`: the wall clock. If it is set while a thread waits, the limit moves along.
    Realtime,
}

impl Clock {
    fn now(self) -> libc::timespec {
        let mut now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let id = match self {
            Clock::Monotonic => libc::CLOCK_MONOTONIC,
            Clock::Realtime => libc::CLOCK_REALTIME,
        };
        // SAFETY: `now` is a timespec to be filled, and both clocks always exist.
        unsafe { libc::clock_gettime(id, &raw mut now) };
        now
    }
}

/// How long a call may wait, in nanoseconds, counted from the call.
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
    /// Wait however long it takes.
    pub const NEVER: Timeout = Timeout {
        clock: Clock::Monotonic,
        limit: None,
    };

    /// Do not wait.
    pub const NOW: Timeout = Timeout {
        clock: Clock::Monotonic,
        limit: Some(Duration::ZERO),
    };

    /// Wait for `limit` by `clock`.
    #[must_use]
    pub const fn after(clock: Clock, limit: Duration) -> Self {
        Timeout {
            clock,
            limit: Some(limit),
        }
    }

    pub(super) fn is_now(self) -> bool {
        self.limit == Some(Duration::ZERO)
    }

    /// When the wait that begins now must end.
    pub(super) fn deadline(self) -> Deadline {
        let Some(limit) = self.limit else {
            return Deadline::Never;
        };
        let now = self.clock.now();
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

/// When a sleep ends by itself.
#[derive(Clone, Copy)]
pub(super) enum Deadline {
    /// Not at all, and a signal handler that asks for it (`SA_RESTART`) has it go on.
    NeverRestart,
    /// Not at all, but any signal handler ends it.
    Never,
    /// At this point of a clock.
    At(Clock, libc::timespec),
}
