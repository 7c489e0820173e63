//! The check of the number of entries against `RLIMIT_NOFILE`, as `poll(2)` makes it.
//!
//! The system call that reads the limit takes several times as long as a check of a few objects. So a call with few
//! entries that does not sleep relies on the limit that was read last: by the first call, a call that sleeps or
//! one with more entries. An embedder that sees the program change the limit calls [`open_limit_changed`].

use std::sync::atomic::{AtomicUsize, Ordering};

#[cfg(not(upoll_loom))]
use upoll_sys::syscall;

use crate::errno::Errno;

/// The number of entries up to which a call relies on the limit that was read last.
pub(super) const FEW: usize = 8;

/// Twice the number of changes of the limit. The lowest bit is set if the limit allowed [`FEW`]
/// entries when it was read last. The atomic is not from the `sync` module: loom's do not outlive
/// an execution.
static KNOWN: AtomicUsize = AtomicUsize::new(0);
const ALLOWS_FEW: usize = 1;
const ONE_CHANGE: usize = 2;

/// Returns whether the limit allows `FEW` entries, as far as is known.
#[inline]
pub fn open_limit_allows_few() -> bool {
    KNOWN.load(Ordering::Relaxed) & ALLOWS_FEW != 0
}

/// Checks the number of entries of a call.
///
/// # Errors
/// `EINVAL`: the limit is lower.
#[inline]
pub fn check_number_of_entries(count: usize) -> Result<(), Errno> {
    if count <= FEW && open_limit_allows_few() {
        return Ok(());
    }
    check_against_limit(count)
}

/// Checks the number of entries against the limit as it is now.
///
/// # Errors
/// `EINVAL`: the limit is lower.
pub(super) fn check_against_limit(count: usize) -> Result<(), Errno> {
    if count > open_limit() {
        return Err(Errno::INVAL);
    }
    Ok(())
}

/// Forgets the limit. The next call reads it.
pub fn open_limit_changed() {
    let forget = |known: usize| Some(known.wrapping_add(ONE_CHANGE) & !ALLOWS_FEW);
    let _ = KNOWN.fetch_update(Ordering::AcqRel, Ordering::Relaxed, forget);
}

/// Models have no limit.
#[cfg(upoll_loom)]
fn open_limit() -> usize {
    usize::MAX
}

/// Reads the limit.
#[cfg(not(upoll_loom))]
fn open_limit() -> usize {
    // Acquire: a change that is counted here is made before the limit is read.
    let known = KNOWN.load(Ordering::Acquire);
    let mut limit = libc::rlimit64 {
        rlim_cur: libc::RLIM64_INFINITY,
        rlim_max: libc::RLIM64_INFINITY,
    };
    let (resource, new) = (libc::RLIMIT_NOFILE, 0);
    // Not the C library's function, a name that a program may define. A kernel that refuses the call leaves no limit.
    // SAFETY: the call fills the structure.
    let _ = unsafe { syscall!(SYS_prlimit64, 0, resource, new, &raw mut limit) };
    let limit = usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX);
    let now = known & !ALLOWS_FEW | usize::from(limit >= FEW);
    if now != known {
        // If the limit was changed meanwhile, what was read is not kept.
        let _ = KNOWN.compare_exchange(known, now, Ordering::Relaxed, Ordering::Relaxed);
    }
    limit
}
