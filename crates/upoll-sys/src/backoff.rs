//! Waits for what another thread does in a moment, without a word of its to sleep on.

use std::ffi::c_long;
use std::hint;

use crate::syscall;

/// Spins, yields a few times, then sleeps. The awaited thread may need a processor, and a
/// thread of a lower real-time priority would never get one from yields. On a busy machine each yield
/// costs the whole time slices of others, which a short sleep does not.
#[derive(Debug, Default)]
pub struct Backoff {
    waits: u32,
}

impl Backoff {
    const SPINS: u32 = 100;
    const YIELDS: u32 = 4;
    /// The number of waits that take almost no time. All later waits are sleeps, each twice as long as the
    /// one before, up to a millisecond from the fifth on.
    pub const SHORT: usize = (Self::SPINS + Self::YIELDS) as usize;

    /// Starts with the shortest wait.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of waits so far.
    #[must_use]
    pub fn waits(&self) -> u32 {
        self.waits
    }

    /// Waits, each time longer than the last.
    pub fn wait(&mut self) {
        let waits = self.waits;
        self.waits = waits.saturating_add(1);
        if waits < Self::SPINS {
            hint::spin_loop();
        } else if waits < Self::SPINS + Self::YIELDS {
            yield_now();
        } else {
            let doubled = (waits - Self::SPINS - Self::YIELDS).min(4);
            sleep(FIRST_NAP << doubled);
        }
    }
}

/// In nanoseconds: a sixteenth of a millisecond.
const FIRST_NAP: c_long = 62_500;

/// Waits until `is_so` returns true, but for about a second at most. The time is that of the sleeps, as the program may
/// have a clock of its own that stands still.
pub fn wait_until(mut is_so: impl FnMut() -> bool) {
    const MOST_WAITS: usize = Backoff::SHORT + 1000;
    let mut backoff = Backoff::new();
    while !is_so() && (backoff.waits() as usize) < MOST_WAITS {
        backoff.wait();
    }
}

/// Yields the processor to other threads: `sched_yield(2)`. The program may have taken over the C library's name for it.
pub fn yield_now() {
    // SAFETY: the call has no arguments and changes no memory.
    let _ = unsafe { syscall!(SYS_sched_yield) };
}

/// Sleeps for a millisecond.
pub fn nap() {
    sleep(FIRST_NAP << 4);
}

fn sleep(nanoseconds: c_long) {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: nanoseconds,
    };
    // SAFETY: the time is live. A signal may end it early, which does no harm.
    let _ = unsafe { syscall!(SYS_nanosleep, &raw const time, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_for_what_never_comes_ends() {
        let mut tries = 0;
        wait_until(|| {
            tries += 1;
            false
        });
        assert!(tries > Backoff::SHORT);
    }
}
