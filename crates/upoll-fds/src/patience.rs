//! Waiting for what other threads do in a moment, without a word of theirs to sleep on.

use std::hint;
use std::thread;
use std::time::{Duration, Instant};

use crate::kernel::call;

/// Lets others run, then sleeps: whoever is waited for may have to wait for a processor, and a thread of
/// a lower real-time priority would get none otherwise.
pub(crate) struct Patience {
    waits: u32,
}

impl Patience {
    const SPINS: u32 = 100;
    const YIELDS: u32 = 1000;

    pub(crate) fn new() -> Self {
        Patience { waits: 0 }
    }

    pub(crate) fn wait(&mut self) {
        if self.waits < Self::SPINS {
            hint::spin_loop();
        } else if self.waits < Self::YIELDS {
            thread::yield_now();
        } else {
            nap();
            return;
        }
        self.waits += 1;
    }
}

/// Waits for others until it `is_so`, though not for ever.
pub(crate) fn wait_until(mut is_so: impl FnMut() -> bool) {
    const LONGEST: Duration = Duration::from_secs(1);
    let begun = Instant::now();
    let mut patience = Patience::new();
    while !is_so() && begun.elapsed() < LONGEST {
        patience.wait();
    }
}

/// Sleeps for a millisecond.
pub(crate) fn nap() {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    };
    // SAFETY: the time is live. A signal may end it early, which does no harm.
    let _ = unsafe { call!(nanosleep, &raw const time, 0) };
}
