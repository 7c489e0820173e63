//! Finds threads that nothing wakes.

use std::fs;
use std::hint;
use std::thread;
use std::time::{Duration, Instant};

/// How long one thing may take before that is a fault. Far above what a busy machine causes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The time between two looks at the threads.
const INTERVAL: Duration = Duration::from_millis(10);

/// How often all threads are found asleep, and not to have run meanwhile, before that is a fault.
/// A thread that was woken counts as running also while it waits for a processor.
const SAMPLES: usize = 25;

/// How to wait for a condition.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Eagerness {
    /// Notices it within nanoseconds, if it comes soon.
    Spinning,
    Sleeping,
}

/// Waits until `condition` holds. Returns false if all of `threads`, by their ids, sleep meanwhile
/// and none is woken, or if it takes [`PATIENCE`]. An id of 0 is that of a thread yet to begin.
///
/// No other thread may be about to make the condition true.
pub(super) fn comes(
    eagerness: Eagerness,
    condition: impl Fn() -> bool,
    threads: impl Fn() -> Vec<i32>,
) -> bool {
    let start = Instant::now();
    if eagerness == Eagerness::Spinning {
        while start.elapsed() < INTERVAL {
            for _ in 0..100 {
                if condition() {
                    return true;
                }
                hint::spin_loop();
            }
            thread::yield_now();
        }
    }
    let (mut sampled, mut before, mut samples) = (start, None, 0);
    loop {
        // After a look at the threads: the last one may have made it true, then fallen asleep.
        if condition() {
            return true;
        }
        if samples == SAMPLES || start.elapsed() > PATIENCE {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
        if sampled.elapsed() > INTERVAL {
            sampled = Instant::now();
            let now = sleeps(&threads());
            samples = match &now {
                Some(_) if now == before => samples + 1,
                _ => 0,
            };
            before = now;
        }
    }
}

/// How often each thread was taken off a processor, if none of them runs.
fn sleeps(threads: &[i32]) -> Option<Vec<String>> {
    threads.iter().map(|&thread| switches(thread)).collect()
}

fn switches(thread: i32) -> Option<String> {
    if thread == 0 {
        return None;
    }
    let Ok(status) = fs::read_to_string(format!("/proc/self/task/{thread}/status")) else {
        return Some("has ended".to_owned());
    };
    let line = |name: &str| status.lines().find(|line| line.starts_with(name));
    if !line("State:")?.contains('S') {
        return None;
    }
    Some(line("voluntary_ctxt_switches")?.to_owned() + line("nonvoluntary_ctxt_switches")?)
}
