//! `futex(2)`: a thread sleeps on a word until it changes.

use core::ptr;
use core::sync::atomic::AtomicU32;

use crate::{interruptible, syscall};

/// The processes that may wake a sleeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// This process.
    Private,
    /// Any that has the word's memory.
    Shared,
}

impl Scope {
    fn flag(self) -> i32 {
        match self {
            Scope::Private => libc::FUTEX_PRIVATE_FLAG,
            Scope::Shared => 0,
        }
    }
}

/// Sleeps while `word` holds `expected`, for `limit` at most. May return early.
pub fn wait(word: &AtomicU32, expected: u32, limit: Option<libc::timespec>, scope: Scope) {
    let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
    let operation = libc::FUTEX_WAIT | scope.flag();
    // SAFETY: the word is live and aligned, and the limit is null or live.
    let _ = unsafe { syscall!(SYS_futex, word.as_ptr(), operation, expected, limit) };
}

/// Sleeps while `word` holds `expected`, until `CLOCK_MONOTONIC`, or `CLOCK_REALTIME` if `by_wall_clock`, shows `limit`.
/// May return early. Signal handlers end the sleep: with a limit, however far, the kernel does not restart it even
/// with `SA_RESTART`. A delayed handler ends it, too (see [`interruptible`](mod@crate::interruptible)).
///
/// # Errors
/// `ETIMEDOUT`: the limit has passed. `EINTR`: a handler has run. `EAGAIN`: the word holds another value.
pub fn wait_until(
    word: &AtomicU32,
    expected: u32,
    limit: Option<libc::timespec>,
    by_wall_clock: bool,
    scope: Scope,
) -> Result<(), i32> {
    let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
    let clock = match by_wall_clock {
        true => libc::FUTEX_CLOCK_REALTIME,
        false => 0,
    };
    let operation = libc::FUTEX_WAIT_BITSET | scope.flag() | clock;
    let any = libc::FUTEX_BITSET_MATCH_ANY;
    let word = word.as_ptr();
    // SAFETY: the word is live and aligned, and the limit is null or live.
    unsafe { interruptible!(SYS_futex, word, operation, expected, limit, 0, any) }.map(drop)
}

/// Returns the id of this thread. Where a filter refuses `gettid(2)` the thread takes a lock by `FUTEX_LOCK_PI`: the kernel
/// writes the owner's id into the word, and keeps nothing of a lock for which nobody waits. None if the kernel refuses
/// that as well.
#[must_use]
pub fn thread_id() -> Option<u32> {
    // SAFETY: no pointers are involved.
    if let Ok(id) = unsafe { syscall!(SYS_gettid) } {
        return u32::try_from(id).ok();
    }
    let word = AtomicU32::new(0);
    let operation = libc::FUTEX_LOCK_PI | Scope::Private.flag();
    let forever = ptr::null::<libc::timespec>();
    // SAFETY: the word is live and aligned.
    unsafe { syscall!(SYS_futex, word.as_ptr(), operation, 0, forever) }.ok()?;
    Some(word.into_inner())
}

/// Wakes up to `count` threads that sleep on the word at `address`. The word need not exist any more.
pub fn wake(address: usize, count: i32, scope: Scope) {
    // SAFETY: the kernel takes the address as a key and does not write to it; a stale one causes an
    // error or a spurious wakeup.
    let _ = unsafe { syscall!(SYS_futex, address, libc::FUTEX_WAKE | scope.flag(), count) };
}
