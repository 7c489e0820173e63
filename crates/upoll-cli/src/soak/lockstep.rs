//! Rounds in lockstep: few calls begin together, and the next ones when all is quiet again.
//!
//! In the long rounds the next unit repairs what a lost wake has left, before anyone can notice. Here
//! each step ends with no call under way but the waits of the consumers, and no unit left.

use std::hint;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fastrand::Rng;
use upoll::PollContext;

use super::asleep::{Eagerness, comes};
use super::disturb::World;
use super::tally::{Tally, count};

/// Steps of one round, unless [`ROUND`] ends before.
const STEPS: usize = 2_000;

/// The length of a round on a machine where steps take long.
const ROUND: Duration = Duration::from_millis(100);

/// Most producers that act at once.
pub(super) const PRODUCERS: usize = 2;

/// The place where some threads wait for one another, without sleep: they go on within nanoseconds of
/// each other.
pub(super) struct Barrier {
    threads: usize,
    arrived: AtomicUsize,
    passed: AtomicUsize,
}

impl Barrier {
    pub(super) fn new(threads: usize) -> Self {
        Barrier {
            threads,
            arrived: AtomicUsize::new(0),
            passed: AtomicUsize::new(0),
        }
    }

    pub(super) fn meet(&self) {
        let passed = self.passed.load(Ordering::SeqCst);
        if self.arrived.fetch_add(1, Ordering::SeqCst) + 1 == self.threads {
            self.arrived.store(0, Ordering::SeqCst);
            self.passed.store(passed + 1, Ordering::SeqCst);
            return;
        }
        let mut checks = 0;
        while self.passed.load(Ordering::SeqCst) == passed {
            checks += 1;
            if checks % 200 == 0 {
                thread::yield_now();
            }
            hint::spin_loop();
        }
    }
}

/// Spins for a random time, mostly less than a call takes.
pub(super) fn pause(rng: &mut Rng) {
    let most = [1, 10, 60, 400][rng.usize(..4)];
    for _ in 0..rng.usize(..most) {
        hint::spin_loop();
    }
}

/// The state that the producers of a round share.
pub(super) struct Lockstep {
    barrier: Barrier,
    is_over: AtomicBool,
}

impl Lockstep {
    pub(super) fn new(producers: usize) -> Self {
        Lockstep {
            barrier: Barrier::new(producers),
            is_over: AtomicBool::new(false),
        }
    }

    /// Runs one producer. The one that leads checks after each step whether all was received.
    pub(super) fn produce(
        &self,
        world: &World,
        leads: bool,
        rng: &mut Rng,
        tally: &Tally,
    ) -> Result<()> {
        let mut context = PollContext::new();
        let begun = Instant::now();
        for step in 1.. {
            self.barrier.meet();
            if self.is_over.load(Ordering::SeqCst) {
                break;
            }
            pause(rng);
            if rng.usize(..4) == 0 {
                world.act(rng, &mut context, tally)?;
            } else {
                world.any_group(rng).any_lane(rng).send(1);
            }
            self.barrier.meet();
            if leads {
                count(&tally.steps);
                ensure!(
                    comes(
                        Eagerness::Spinning,
                        || world.is_read(),
                        || world.consumers()
                    ),
                    "units are left, and all threads sleep"
                );
                let is_over = step == STEPS || begun.elapsed() > ROUND;
                self.is_over.store(is_over, Ordering::SeqCst);
            }
        }
        Ok(())
    }
}
