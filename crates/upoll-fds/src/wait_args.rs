//! The time limits and signal masks of waits, as callers pass them.

use std::time::Duration;

use upoll::{Clock, Errno, SigSet, Timeout};

use crate::memory;

/// Returns the limit of a wait by its timespec; None is no limit. The kernel's order: first the
/// pointer, then the value.
///
/// # Safety
/// As [`memory::read`].
pub(crate) unsafe fn limit(clock: Clock, timeout: *const libc::timespec) -> Result<Timeout, Errno> {
    if timeout.is_null() {
        return Ok(Timeout::NEVER);
    }
    // SAFETY: the caller's contract.
    let timeout = unsafe { memory::read(timeout) }?;
    let seconds = u64::try_from(timeout.tv_sec).map_err(|_| Errno::INVAL)?;
    let nanoseconds = u32::try_from(timeout.tv_nsec).map_err(|_| Errno::INVAL)?;
    if nanoseconds >= 1_000_000_000 {
        return Err(Errno::INVAL);
    }
    Ok(Timeout::after(clock, Duration::new(seconds, nanoseconds)))
}

/// A timeout in milliseconds; a negative one is none.
pub(crate) fn milliseconds(timeout: i32) -> Timeout {
    match u64::try_from(timeout) {
        Ok(timeout) => Duration::from_millis(timeout).into(),
        Err(_) => Timeout::NEVER,
    }
}

/// The caller's signal mask (`set_user_sigmask`).
///
/// # Safety
/// As [`memory::read`].
pub(crate) unsafe fn mask(
    mask: *const libc::sigset_t,
    size: usize,
) -> Result<Option<SigSet>, Errno> {
    // SAFETY: the caller's contract.
    let signals = unsafe { signals_of(mask, size) }?;
    Ok(signals.map(|signals| {
        let mut set = libc::sigset_t::from(SigSet::empty());
        // SAFETY: a sigset_t begins with the kernel's 64 bits.
        unsafe { (&raw mut set).cast::<u64>().write(signals) };
        set.into()
    }))
}

/// The same, as the kernel has it.
///
/// # Safety
/// As [`memory::read`].
pub(crate) unsafe fn signals_of(
    mask: *const libc::sigset_t,
    size: usize,
) -> Result<Option<u64>, Errno> {
    if mask.is_null() {
        return Ok(None);
    }
    if size != size_of::<u64>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's contract.
    unsafe { memory::read(mask.cast()) }.map(Some)
}

/// Converts a limit for the kernel. Returns `None` for a wait without limit.
pub(crate) fn timespec(limit: Timeout) -> Option<libc::timespec> {
    let limit = limit.limit()?;
    Some(libc::timespec {
        tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(limit.subsec_nanos().cast_signed()),
    })
}
