//! Threads that share a lock work in stretches.
//!
//! Threads that take turns at a lock wait for each other's cache lines in each turn, which takes longer than their
//! work. So a thread that spends much of its time waiting for held locks stays away for a while, in which the others
//! work without it. The more threads share a lock, the longer each has to stay away, so that each works alone for a
//! stretch of time in between.

use core::cell::Cell;
use core::hint;
use std::time::{Duration, Instant};

use upoll_sys::backoff::yield_now;

use super::{Mutex, MutexGuard};

/// A thread stays away if it has waited for more than [`TOO_LONG`] within this time. Threads that do much between two
/// calls wait less, and do not stay away.
const WINDOW: Duration = Duration::from_micros(20);
const TOO_LONG: Duration = Duration::from_micros(2);

/// The shortest and the longest time to stay away before the first try.
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_millis(1);

/// The length that a stretch should have. A thread whose last stretch was shorter stays away for twice as long as
/// before, and one whose last stretch was four times as long for half. After a hundred times as long it begins anew.
const STRETCH: Duration = Duration::from_micros(100);

/// A round takes a tenth of a microsecond or more, so that [`LONGEST`] passes before the rounds do.
const MOST_ROUNDS: u32 = 10_000;

/// Tries for the lock before a thread waits for it like any other. It stays away for half as long before each next one.
const TRIES: u32 = 3;

/// The contention that a thread has met.
#[derive(Clone, Copy)]
struct Contention {
    /// The first time in a [`WINDOW`] that a lock was held.
    found_held: Instant,
    /// The sum of the waits for locks since then.
    waited: Duration,
    /// The end of the last absence.
    back: Option<Instant>,
    /// The length of the last absence, up to its first try.
    away: Duration,
}

std::thread_local! {
    static CONTENTION: Cell<Option<Contention>> = const { Cell::new(None) };
}

/// Takes a lock that was found held.
#[cold]
pub fn lock_held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    let mut now = Instant::now();
    #[cfg(upoll_count_locks)]
    super::counted::tries_since(now);
    let mut seen = CONTENTION.get().unwrap_or(Contention {
        found_held: now,
        waited: Duration::ZERO,
        back: None,
        away: Duration::ZERO,
    });
    if now.duration_since(seen.found_held) > WINDOW {
        seen.found_held = now;
        seen.waited = Duration::ZERO;
    }
    let mut tried = None;
    if seen.waited > TOO_LONG {
        let stretch = seen.back.map(|back| now.duration_since(back));
        seen.away = match stretch {
            Some(stretch) if stretch >= 100 * STRETCH => SHORTEST,
            Some(stretch) if stretch >= 4 * STRETCH => seen.away / 2,
            Some(stretch) if stretch >= STRETCH => seen.away,
            _ => 2 * seen.away,
        };
        seen.away = seen.away.clamp(SHORTEST, LONGEST);
        tried = (0..TRIES).find_map(|shorter| {
            stay_away(seen.away / (1 << shorter));
            mutex.try_lock()
        });
        now = Instant::now();
        (seen.found_held, seen.waited, seen.back) = (now, Duration::ZERO, Some(now));
    }
    let locked = tried.unwrap_or_else(|| mutex.lock());
    seen.waited += now.elapsed();
    CONTENTION.set(Some(seen));
    locked
}

/// Spins for `time`. In long times other threads may have the processor.
fn stay_away(time: Duration) {
    let gone = Instant::now();
    spin_for(time, || gone.elapsed());
}

/// Spins until `elapsed` returns `time`. The clock may stand still, as a simulator's does that replaces the C library's
/// `clock_gettime`. So the number of rounds is limited, too.
fn spin_for(time: Duration, elapsed: impl Fn() -> Duration) {
    for _ in 0..MOST_ROUNDS {
        for _ in 0..16 {
            hint::spin_loop();
        }
        match elapsed() {
            elapsed if elapsed >= time => break,
            elapsed if elapsed > STRETCH => yield_now(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_comes_back_though_the_clock_stands_still() {
        spin_for(LONGEST, || Duration::ZERO);
        spin_for(LONGEST, || LONGEST / 2);
    }
}
