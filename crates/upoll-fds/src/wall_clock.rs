//! Waits by `CLOCK_REALTIME` in calls of the kernel's that measure by `CLOCK_MONOTONIC`.

use std::time::Duration;

use upoll::Errno;
use upoll_sys::signals::Blocked;

/// The longest sleep before the clock is read again: it may have been set.
const GLANCE: Duration = Duration::from_secs(1);

/// The time since 1970 by the wall clock.
pub(crate) fn now() -> Duration {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call fills the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now) };
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Calls `sleep` repeatedly until it finds something or the wall clock has advanced by `limit`. The
/// arguments of `sleep` are the longest time to wait, and the signals to block.
///
/// A signal handler runs during a sleep and ends it. It never runs unnoticed between two sleeps.
pub(crate) fn wait(
    limit: Duration,
    mask: Option<u64>,
    sleep: impl Fn(Duration, u64) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let end = now().saturating_add(limit);
    let blocked = Blocked::sent();
    loop {
        let rest = end.saturating_sub(now());
        let found = sleep(rest.min(GLANCE), mask.unwrap_or(blocked.before()))?;
        if found > 0 || rest.is_zero() {
            return Ok(found);
        }
    }
}
