//! `futex(2)`: a thread sleeps on a word until it changes.
//!
//! No calls of the C library, as in `host::kernel`, and for its reasons.

use core::ptr;
use core::sync::atomic::AtomicU32;

use syscalls::{Errno, Sysno, syscall};

use super::Outcome;
use super::timeout::{Clock, Deadline};
use crate::interruptible_call;

/// Who may rouse a sleeper.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// This process.
    Private,
    /// Any that has the word's memory.
    Shared,
}

/// Sleeps while `word` holds `expected`. May return early with [`Outcome::Woken`].
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
            // handler, whatever SA_RESTART says: as epoll_wait.
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
        interruptible_call!(
            futex,
            word.as_ptr(),
            operation,
            expected,
            limit_ptr,
            0,
            libc::FUTEX_BITSET_MATCH_ANY
        )
    };
    match result {
        Err(Errno::ETIMEDOUT) => Outcome::TimedOut,
        Err(Errno::EINTR) => Outcome::Interrupted,
        // Roused, or EAGAIN: the word has changed already.
        _ => Outcome::Woken,
    }
}

/// Rouses one thread that sleeps on the word at `address`, which need not exist any more.
pub(super) fn wake_one(address: usize) {
    // SAFETY: the kernel takes the address as a key and does not write to it; a stale one gives
    // an error or a spurious wake.
    let _ = unsafe {
        syscall!(
            Sysno::futex,
            address,
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            1
        )
    };
}
