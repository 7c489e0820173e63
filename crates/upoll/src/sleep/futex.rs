//! `futex(2)`: a thread sleeps on a word until it changes.
//!
//! No calls of the C library, as in `host::kernel`, and for its reasons.

use core::ptr;

#[cfg(not(upoll_loom))]
use upoll_sys::{interruptible, syscall};

use super::Outcome;
#[cfg(not(upoll_loom))]
use super::timeout::Clock;
use super::timeout::Deadline;
#[cfg(upoll_loom)]
use crate::host::kernel;
use crate::sync::AtomicU32;

/// The processes that may wake a sleeper.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// This process.
    Private,
    /// Any that has the word's memory.
    Shared,
}

/// Where the kernel knows a word by.
pub(super) fn address(word: &AtomicU32) -> usize {
    ptr::from_ref(word).addr()
}

/// Sleeps while `word` holds `expected`. May return early with [`Outcome::Woken`].
#[cfg(not(upoll_loom))]
pub(super) fn wait(word: &AtomicU32, expected: u32, deadline: Deadline, scope: Scope) -> Outcome {
    let mut operation = libc::FUTEX_WAIT_BITSET;
    if scope == Scope::Private {
        operation |= libc::FUTEX_PRIVATE_FLAG;
    }
    let limit;
    let limit_ptr = match deadline {
        Deadline::NeverRestart => ptr::null(),
        Deadline::Never => {
            // With a time limit, however far, the kernel does not restart the call after a signal
            // handler, even with `SA_RESTART`: the same as in `epoll_wait`.
            limit = libc::timespec {
                tv_sec: libc::time_t::MAX,
                tv_nsec: 0,
            };
            &raw const limit
        }
        Deadline::At(clock, at) => {
            if clock == Clock::Realtime {
                operation |= libc::FUTEX_CLOCK_REALTIME;
            }
            limit = at;
            &raw const limit
        }
    };
    // SAFETY: `word` is a live, aligned 32-bit word, and the limit is null or a timespec that
    // outlives the call.
    let result = unsafe {
        interruptible!(
            SYS_futex,
            word.as_ptr(),
            operation,
            expected,
            limit_ptr,
            0,
            libc::FUTEX_BITSET_MATCH_ANY
        )
    };
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
    // SAFETY: the kernel takes the address as a key and does not write to it; a stale one causes an
    // error or a spurious wakeup.
    let _ = unsafe {
        syscall!(
            SYS_futex,
            address,
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            1
        )
    };
}
