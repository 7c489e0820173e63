//! Threads that sleep, time, signals and futexes.

use std::collections::HashMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex as Table};
use std::time::Duration;

use loom::sync::atomic::AtomicU64;
use loom::sync::{Condvar, Mutex};

use crate::sync::Ordering;

loom::lazy_static! {
    /// Nanoseconds of the only clock. Also written by whatever begins or ends sleeps, so that loom tries
    /// both orders; in no order with anything else.
    static ref NOW: AtomicU64 = AtomicU64::new(1_000_000_000);
    /// The last result of [`coarse_milliseconds`], once time passes.
    static ref OLD: AtomicU32 = AtomicU32::new(1000);
    static ref SLEEPS: Table<Vec<Arc<Sleep>>> = Table::new(Vec::new());
    static ref WORDS: Table<HashMap<usize, Arc<Bucket>>> = Table::new(HashMap::new());
}

/// A bit of [`NOW`]: every limit ends as soon as a thread sleeps by it.
const FLOWS: u64 = 1 << 63;

pub(super) fn now() -> u64 {
    // Always the newest.
    NOW.fetch_add(0, Ordering::Relaxed) & !FLOWS
}

pub(super) fn nanoseconds(time: libc::timespec) -> u64 {
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Returns the time that every clock shows.
pub(crate) fn clock() -> libc::timespec {
    let now = now().cast_signed();
    libc::timespec {
        tv_sec: now / 1_000_000_000,
        tv_nsec: now % 1_000_000_000,
    }
}

/// While time stands still every check is fresh, and none is once it passes.
pub(in crate::host) fn coarse_milliseconds() -> u32 {
    match NOW.load(Ordering::Relaxed) & FLOWS {
        0 => 0,
        _ => OLD.fetch_add(1000, Ordering::Relaxed),
    }
}

/// Starts the flow of time: all sleeps with a limit end, also those that begin later.
pub fn pass_time() {
    NOW.fetch_or(FLOWS, Ordering::Relaxed);
    for sleep in sleeps() {
        sleep.time_out();
    }
}

/// Sets the clock on by `time`, and ends no sleep.
pub fn set_on(time: Duration) {
    let nanoseconds = u64::try_from(time.as_nanos()).unwrap();
    NOW.fetch_add(nanoseconds, Ordering::Relaxed);
}

/// Runs a signal handler on every thread that sleeps just now.
pub fn interrupt() {
    now();
    for sleep in sleeps() {
        sleep.end(|ended| ended.interrupted = true);
    }
}

fn sleeps() -> Vec<Arc<Sleep>> {
    SLEEPS.lock().unwrap().clone()
}

/// The causes that have ended a sleep.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ended {
    pub(crate) woken: bool,
    pub(crate) timed_out: bool,
    pub(crate) interrupted: bool,
}

/// A thread that sleeps, or is about to.
pub(super) struct Sleep {
    until: Option<u64>,
    ended: Mutex<Ended>,
    changed: Condvar,
}

impl Sleep {
    pub(super) fn new(until: Option<u64>) -> Arc<Self> {
        Arc::new(Sleep {
            until,
            ended: Mutex::new(Ended::default()),
            changed: Condvar::new(),
        })
    }

    fn end(&self, how: impl FnOnce(&mut Ended)) {
        how(&mut self.ended.lock().unwrap());
        self.changed.notify_one();
    }

    /// Advances the time to the limit.
    fn time_out(&self) {
        if let Some(until) = self.until {
            NOW.fetch_max(until | FLOWS, Ordering::Relaxed);
            self.end(|ended| ended.timed_out = true);
        }
    }

    pub(super) fn wake(&self) {
        self.end(|ended| ended.woken = true);
    }

    /// Sleeps until it is ended.
    pub(super) fn sleep(self: &Arc<Self>) -> Ended {
        SLEEPS.lock().unwrap().push(self.clone());
        let now = NOW.fetch_add(0, Ordering::Relaxed);
        if now & FLOWS != 0 {
            self.time_out();
            // A thread that sleeps again and again lets others run.
            loom::thread::yield_now();
        } else if self.until.is_some_and(|until| until <= now) {
            self.end(|ended| ended.timed_out = true);
        }
        let mut ended = self.ended.lock().unwrap();
        while !(ended.woken || ended.timed_out || ended.interrupted) {
            ended = self.changed.wait(ended).unwrap();
        }
        let how = *ended;
        drop(ended);
        SLEEPS
            .lock()
            .unwrap()
            .retain(|sleep| !Arc::ptr_eq(sleep, self));
        how
    }
}

/// The threads that sleep on a word.
type Bucket = Mutex<Vec<Arc<Sleep>>>;

fn bucket(address: usize) -> Arc<Bucket> {
    let mut words = WORDS.lock().unwrap();
    words
        .entry(address)
        .or_insert_with(|| Arc::new(Mutex::new(Vec::new())))
        .clone()
}

/// `FUTEX_WAIT`: sleeps if `is_expected`, and until a wake of the same address.
pub(crate) fn futex_wait(
    address: usize,
    is_expected: impl FnOnce() -> bool,
    limit: Option<libc::timespec>,
) -> Ended {
    let bucket = bucket(address);
    let sleep = Sleep::new(limit.map(nanoseconds));
    {
        let mut sleepers = bucket.lock().unwrap();
        if !is_expected() {
            return Ended {
                woken: true,
                ..Ended::default()
            };
        }
        sleepers.push(sleep.clone());
    }
    let mut ended = sleep.sleep();
    let mut sleepers = bucket.lock().unwrap();
    // A wake counts also if the limit or a signal came as well.
    let place = sleepers
        .iter()
        .position(|sleeper| Arc::ptr_eq(sleeper, &sleep));
    match place {
        Some(place) => drop(sleepers.remove(place)),
        None => ended.woken = true,
    }
    ended
}

/// `FUTEX_WAKE` of one thread.
pub(crate) fn futex_wake(address: usize) {
    let bucket = bucket(address);
    let mut sleepers = bucket.lock().unwrap();
    if !sleepers.is_empty() {
        sleepers.remove(0).wake();
    }
}

/// `FUTEX_WAKE` of all threads.
pub(in crate::host) fn futex_wake_all(address: usize) {
    let bucket = bucket(address);
    let mut sleepers = bucket.lock().unwrap();
    for sleeper in sleepers.drain(..) {
        sleeper.wake();
    }
}

/// Returns how many threads sleep on a word.
pub(in crate::host) fn futex_sleepers(address: usize) -> usize {
    bucket(address).lock().unwrap().len()
}
