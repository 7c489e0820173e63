//! Waiting for what other threads do in a moment, without a word of theirs to sleep on.

use std::thread;
use std::time::Duration;

/// Lets others run a few times, then sleeps: whoever is waited for may have to wait for a processor.
pub(crate) struct Patience {
    waits: u32,
}

impl Patience {
    const QUICK: u32 = 50;
    const SLEEP: Duration = Duration::from_micros(100);

    pub(crate) fn new() -> Self {
        Patience { waits: 0 }
    }

    pub(crate) fn wait(&mut self) {
        if self.waits < Self::QUICK {
            self.waits += 1;
            thread::yield_now();
        } else {
            thread::sleep(Self::SLEEP);
        }
    }
}
