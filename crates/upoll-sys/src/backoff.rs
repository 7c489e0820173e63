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

/// Sleeps for a millisecond. A signal may end it early.
pub fn nap() {
    sleep(FIRST_NAP << 4);
}

/// Sleeps for a millisecond, also if signal handlers run meanwhile. It ends at a time: the rest that an interrupted sleep
/// returns contains the thread's timer slack, and would grow with each handler.
pub fn nap_whatever_signals_come() {
    const SECOND: c_long = 1_000_000_000;
    let mut end = nanoseconds(0);
    // SAFETY: the time is live.
    let _ = unsafe { syscall!(SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut end) };
    end.tv_nsec += FIRST_NAP << 4;
    end.tv_sec += end.tv_nsec / SECOND;
    end.tv_nsec %= SECOND;
    let (clock, flags, end) = (libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &raw const end);
    // SAFETY: as above.
    while unsafe { syscall!(SYS_clock_nanosleep, clock, flags, end, 0) } == Err(libc::EINTR) {}
}

fn nanoseconds(count: c_long) -> libc::timespec {
    libc::timespec {
        tv_sec: 0,
        tv_nsec: count,
    }
}

fn sleep(time: c_long) {
    let time = nanoseconds(time);
    // SAFETY: the time is live. A signal may end the sleep early, which does no harm.
    let _ = unsafe { syscall!(SYS_nanosleep, &raw const time, 0) };
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

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

    #[test]
    fn a_nap_lasts_for_a_millisecond_though_handlers_run() {
        extern "C" fn handler(_: i32) {}
        let handler = handler as extern "C" fn(i32);
        // SAFETY: the handler does nothing.
        unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
        let is_over = AtomicBool::new(false);
        // SAFETY: no pointers are involved.
        let napping = unsafe { libc::pthread_self() };
        let time = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // SAFETY: the thread lives until the scope ends.
                    unsafe { libc::pthread_kill(napping, libc::SIGUSR1) };
                    thread::sleep(Duration::from_micros(50));
                }
            });
            let begun = Instant::now();
            for _ in 0..20 {
                nap_whatever_signals_come();
            }
            let time = begun.elapsed();
            is_over.store(true, Ordering::Relaxed);
            time
        });
        assert!(time >= 20 * Duration::from_millis(1), "{time:?}");
    }
}
