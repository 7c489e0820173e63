//! The system calls that an event of a kernel fd costs a worker of a rotating set.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

#[path = "../../upoll-fds/tests/notified/mod.rs"]
mod notified;
mod rotating;
mod threads;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use upoll::{Epoll, Event};

use self::notified::reported;
use self::rotating::{LONG, Source, workers_set};

const WORKERS: usize = 2;
/// The events before the calls are counted, and those that are counted.
const FIRST: usize = 6;
const COUNTED: usize = 40;

/// A worker in a thread of which each system call is reported.
#[derive(Default)]
struct Worker {
    tid: AtomicI32,
    /// Waits that the kernel has begun.
    sleeps: AtomicUsize,
    /// System calls by number, while they are counted.
    calls: Mutex<BTreeMap<i64, usize>>,
}

impl Worker {
    fn run(&self, set: &Epoll, source: &Source, counts: &AtomicBool, ends: &AtomicBool) {
        reported(
            |call| {
                if counts.load(Ordering::SeqCst) {
                    let mut calls = self.calls.lock().unwrap();
                    *calls.entry(call.number().into()).or_default() += 1;
                }
            },
            |call| {
                if is_wait(call.number().into()) {
                    self.sleeps.fetch_add(1, Ordering::SeqCst);
                }
            },
            || {
                self.tid.store(threads::tid(), Ordering::SeqCst);
                while !ends.load(Ordering::SeqCst) {
                    set.wait(&mut [Event::default(); 2], LONG).unwrap();
                    source.take();
                }
            },
        );
    }

    /// Waits until the kernel has begun more than `sleeps` waits of this worker, and the worker sleeps in the last one.
    fn until_asleep(&self, sleeps: usize) {
        let begun = Instant::now();
        // A thread also sleeps until its next call is answered.
        while self.sleeps.load(Ordering::SeqCst) <= sleeps || !self.is_in_a_wait() {
            assert!(begun.elapsed() < LONG, "a worker does not sleep");
            thread::sleep(Duration::from_micros(100));
        }
    }

    /// Returns whether the worker sleeps in a wait, by the kernel function that it sleeps in.
    fn is_in_a_wait(&self) -> bool {
        let tid = self.tid.load(Ordering::SeqCst);
        let function = std::fs::read_to_string(format!("/proc/self/task/{tid}/wchan"));
        let waits = ["epoll", "ep_poll", "poll_schedule"];
        function.is_ok_and(|function| waits.iter().any(|wait| function.contains(wait)))
    }
}

fn is_wait(number: i64) -> bool {
    [
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_ppoll,
    ]
    .contains(&number)
        || cfg!(target_arch = "x86_64") && number == 232
}

#[test]
fn an_event_costs_a_worker_that_sleeps_four_system_calls() {
    // As under the preload: the checks of own fds would come on top.
    upoll::internal::own_fds::protect();
    let [_, source] = Source::both();
    let rotating = source.rotating();
    rotating.set_rotation_slack(0).unwrap();
    let sets = [(); WORKERS].map(|()| workers_set(&rotating, false));
    let workers = [(); WORKERS].map(|()| Worker::default());
    let [counts, ends] = [AtomicBool::new(false), AtomicBool::new(false)];
    thread::scope(|scope| {
        for (worker, set) in workers.iter().zip(&sets) {
            scope.spawn(|| worker.run(set, &source, &counts, &ends));
            worker.until_asleep(0);
        }
        for event in 0..FIRST + COUNTED {
            counts.store(event >= FIRST, Ordering::SeqCst);
            // They take turns, and each sleeps again before the next event.
            let next = &workers[event % WORKERS];
            let sleeps = next.sleeps.load(Ordering::SeqCst);
            source.put();
            next.until_asleep(sleeps);
        }
        counts.store(false, Ordering::SeqCst);
        ends.store(true, Ordering::SeqCst);
        for _ in 0..2 * WORKERS {
            source.put();
        }
    });
    for worker in &workers {
        let calls = worker.calls.lock().unwrap();
        let events = COUNTED / WORKERS;
        // The read is the program's.
        assert_eq!(calls.get(&libc::SYS_read), Some(&events), "{calls:?}");
        // DEL, ADD, the check, and the sleep.
        assert_eq!(calls.get(&libc::SYS_epoll_ctl), Some(&(3 * events)));
        assert_eq!(calls.values().sum::<usize>(), (1 + 4) * events, "{calls:?}");
    }
}
