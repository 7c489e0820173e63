//! `futex(2)`: a thread sleeps on a word until it changes.
//!
//! In a model the kernel is one, too.

use core::ptr;

#[cfg(not(upoll_loom))]
use upoll_sys::futex;
pub(super) use upoll_sys::futex::Scope;

use super::Outcome;
#[cfg(not(upoll_loom))]
use super::timeout::Clock;
use super::timeout::Deadline;
#[cfg(upoll_loom)]
use crate::host::kernel;
use crate::sync::AtomicU32;

/// Returns the address by which the kernel knows a word.
pub(super) fn address(word: &AtomicU32) -> usize {
    ptr::from_ref(word).addr()
}

/// Sleeps while `word` holds `expected`. May return early with [`Outcome::Woken`].
#[cfg(not(upoll_loom))]
pub(super) fn wait(word: &AtomicU32, expected: u32, deadline: Deadline, scope: Scope) -> Outcome {
    let mut by_wall_clock = false;
    let limit = match deadline {
        Deadline::NeverRestart => None,
        // With a limit, however far, a handler ends the sleep even with `SA_RESTART`: the same as in
        // `epoll_wait`.
        Deadline::Never => Some(libc::timespec {
            tv_sec: libc::time_t::MAX,
            tv_nsec: 0,
        }),
        Deadline::At(clock, at) => {
            by_wall_clock = clock == Clock::Realtime;
            Some(at)
        }
    };
    let result = futex::wait_until(word, expected, limit, by_wall_clock, scope);
    match result {
        Err(libc::ETIMEDOUT) => Outcome::TimedOut,
        Err(libc::EINTR) => Outcome::Interrupted,
        // Woken, or EAGAIN: the word has changed already.
        _ => Outcome::Woken,
    }
}

/// As above, in a model.
#[cfg(upoll_loom)]
pub(super) fn wait(word: &AtomicU32, expected: u32, deadline: Deadline, _: Scope) -> Outcome {
    let limit = match deadline {
        Deadline::Never | Deadline::NeverRestart => None,
        Deadline::At(_, at) => Some(at),
    };
    let is_expected = || word.load(crate::sync::Ordering::Relaxed) == expected;
    match kernel::futex_wait(address(word), is_expected, limit) {
        kernel::Ended { woken: true, .. } => Outcome::Woken,
        kernel::Ended {
            timed_out: true, ..
        } => Outcome::TimedOut,
        _ => Outcome::Interrupted,
    }
}

/// As below, in a model.
#[cfg(upoll_loom)]
pub(super) fn wake_one(address: usize) {
    kernel::futex_wake(address);
}

/// Wakes one thread that sleeps on the word at `address`, which need not exist any more.
#[cfg(not(upoll_loom))]
pub(super) fn wake_one(address: usize) {
    futex::wake(address, 1, Scope::Private);
}
