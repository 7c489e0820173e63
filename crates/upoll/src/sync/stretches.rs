//! Threads that share a lock work in stretches.

use core::cell::Cell;
use core::hint;
use std::time::{Duration, Instant};

/// How long a thread stays away from the lock before each try.
const AWAY: [Duration; 3] = [
    Duration::from_micros(20),
    Duration::from_micros(10),
    Duration::from_micros(5),
];

/// How long ago a thread must have found a lock held to stay away from the next one.
const RECENTLY: Duration = Duration::from_micros(50);

std::thread_local! {
    /// When this thread last found a lock held.
    static LAST_CONTENDED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Tries for a lock that was found held, if this thread has found one held recently. Threads that take turns at a
/// lock wait for each other's cache lines in each turn, which takes longer than their work. So this one stays away for
/// some microseconds before each try, in which the others work without it.
#[cold]
pub(crate) fn stay_away<G>(mut try_lock: impl FnMut() -> Option<G>) -> Option<G> {
    let found_held = Instant::now();
    #[cfg(upoll_count_locks)]
    super::counted::tries_since(found_held);
    let last = LAST_CONTENDED.get();
    let is_recent = last.is_some_and(|last| found_held.duration_since(last) < RECENTLY);
    let locked = is_recent.then(|| {
        AWAY.iter().find_map(|&away| {
            let gone = Instant::now();
            while gone.elapsed() < away {
                for _ in 0..16 {
                    hint::spin_loop();
                }
            }
            try_lock()
        })
    });
    let now = if is_recent {
        Instant::now()
    } else {
        found_held
    };
    LAST_CONTENDED.set(Some(now));
    locked.flatten()
}
