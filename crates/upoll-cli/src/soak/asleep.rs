//! Finds threads that nothing wakes.

use std::fs;
use std::hint;
use std::thread;
use std::time::{Duration, Instant};

/// The processor time of this process that one thing may take before that is a fault.
const PATIENCE: Duration = Duration::from_secs(60);

/// The time between two looks at the threads.
const INTERVAL: Duration = Duration::from_millis(10);

/// The number of times in a row that all threads are found asleep, and not to have run meanwhile, before that
/// is a fault. A thread that was woken counts as running also while it waits for a processor. The checks take
/// less time than the lock of a shared eventfd sleeps without a wakeup.
const SAMPLES: usize = 10;

/// The way to wait for a condition.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Eagerness {
    /// Notices it within nanoseconds, if it comes soon.
    Spinning,
    Sleeping,
}

/// Waits until `condition` holds. Returns false if all of `threads`, by their ids, sleep meanwhile
/// and none is woken, or if threads run for [`PATIENCE`]. An id of 0 is that of a thread yet to begin.
/// The clock decides nothing: a process of low priority may not get to run for minutes.
///
/// No other thread may be about to make the condition true.
pub(super) fn comes(
    eagerness: Eagerness,
    condition: impl Fn() -> bool,
    threads: impl Fn() -> Vec<i32>,
) -> bool {
    let (start, used_before) = (Instant::now(), used());
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
        if samples == SAMPLES {
            eprintln!("all of these threads sleep: {:?}", threads());
            return false;
        }
        if used().saturating_sub(used_before) > PATIENCE {
            eprintln!("threads have run for {PATIENCE:?}");
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

/// The processor time that this process has used.
fn used() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Returns the number of times that each thread was taken off a processor, if none of them runs.
fn sleeps(threads: &[i32]) -> Option<Vec<String>> {
    threads.iter().map(|&thread| switches(thread)).collect()
}

fn switches(thread: i32) -> Option<String> {
    if thread == 0 {
        return None;
    }
    let Ok(status) = fs::read_to_string(format!("/proc/{thread}/status")) else {
        return Some("has ended".to_owned());
    };
    let line = |name: &str| status.lines().find(|line| line.starts_with(name));
    if !line("State:")?.contains("S (sleeping)") {
        return None;
    }
    Some(line("voluntary_ctxt_switches")?.to_owned() + line("nonvoluntary_ctxt_switches")?)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

    use rustix::thread::gettid;

    use super::*;

    /// Returns whether a thread that does `what` passes within `time` for one that nothing wakes.
    fn is_stuck(what: impl Fn() + Sync, time: Duration) -> bool {
        let (id, is_over) = (AtomicI32::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                id.store(gettid().as_raw_pid(), Ordering::SeqCst);
                while !is_over.load(Ordering::SeqCst) {
                    what();
                }
            });
            let start = Instant::now();
            let comes = comes(
                Eagerness::Sleeping,
                || start.elapsed() > time,
                || vec![id.load(Ordering::SeqCst)],
            );
            is_over.store(true, Ordering::SeqCst);
            thread.thread().unpark();
            !comes
        })
    }

    #[test]
    fn only_a_thread_that_nothing_wakes_is_stuck() {
        let time = 8 * INTERVAL * SAMPLES as u32;
        assert!(!is_stuck(hint::spin_loop, time));
        assert!(!is_stuck(|| thread::sleep(Duration::from_millis(1)), time));
        // On a busy machine the looks take longer.
        assert!(is_stuck(thread::park, 10 * PATIENCE));
    }
}
