//! The clocks that time limits and timers are measured by.

/// The clock that a time limit or a timer is measured by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Clock {
    /// `CLOCK_MONOTONIC`: never set. The clock of `epoll_wait`, `poll` and `select`.
    #[default]
    Monotonic,
    /// `CLOCK_REALTIME`: the wall clock. If it is set while a thread waits, the limit moves along.
    Realtime,
}

impl Clock {
    /// Returns the clock's number, as in `time.h`.
    #[doc(hidden)]
    #[must_use]
    pub const fn id(self) -> i32 {
        match self {
            Clock::Realtime => 0,
            Clock::Monotonic => 1,
        }
    }
}
