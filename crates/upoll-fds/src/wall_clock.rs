//! Waits by `CLOCK_REALTIME` in calls of the kernel's that measure by `CLOCK_MONOTONIC`.

use std::time::Duration;

use upoll::Errno;

use crate::kernel::call;

/// How long to sleep before the clock is looked at again: it may have been set.
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
/// arguments of `sleep` are the longest time to wait, and the signals to hold back.
///
/// A signal handler runs during a sleep and ends it. It never runs unnoticed between two sleeps.
pub(crate) fn wait(
    limit: Duration,
    mask: Option<u64>,
    sleep: impl Fn(Duration, u64) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let end = now().saturating_add(limit);
    let held = HeldSignals::new()?;
    loop {
        let rest = end.saturating_sub(now());
        let found = sleep(rest.min(GLANCE), mask.unwrap_or(held.before))?;
        if found > 0 || rest.is_zero() {
            return Ok(found);
        }
    }
}

/// All signals that others send are held back from the thread, until this goes.
struct HeldSignals {
    before: u64,
}

impl HeldSignals {
    fn new() -> Result<Self, Errno> {
        /// Signals that a fault of the thread raises, and two that the C library uses itself.
        const NOT_HELD: [i32; 8] = [
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGFPE,
            libc::SIGILL,
            libc::SIGTRAP,
            libc::SIGSYS,
            32,
            33,
        ];
        let mut all = u64::MAX;
        for signal in NOT_HELD {
            all &= !(1 << (signal - 1));
        }
        let mut before = 0;
        swap_mask(libc::SIG_BLOCK, &all, &raw mut before)?;
        Ok(HeldSignals { before })
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        let restored = swap_mask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut());
        debug_assert!(restored.is_ok(), "the thread has had that mask before");
    }
}

/// `rt_sigprocmask(2)`; `before` is null or live.
fn swap_mask(how: i32, mask: &u64, before: *mut u64) -> Result<(), Errno> {
    let (mask, size) = (&raw const *mask, size_of::<u64>());
    // SAFETY: the kernel reads the one and writes the other, if there is one.
    unsafe { call!(SYS_rt_sigprocmask, how, mask, before, size) }.map(drop)
}
