//! The clocks that time limits and timers are measured by.

/// The clock that a time limit or a timer is measured by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Clock {
    /// `CLOCK_MONOTONIC`: never set. The clock of `epoll_wait`, `poll` and `select`.
    #[default]
    Monotonic,
    /// `CLOCK_REALTIME`: the wall clock. If it is set while a thread waits, the limit moves along.
    Realtime,
}
