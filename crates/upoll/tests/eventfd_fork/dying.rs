//! Processes that are killed in the midst of whatever they do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use upoll::{Epoll, Errno, Event, EventFd, EventFdFlags, Events, PollFd};

use crate::processes::{Child, shared_numbers, tests};

tests![
    a_process_that_is_killed_blocks_nobody_and_loses_nothing,
    what_a_killed_writer_wrote_wakes_a_sleeping_reader,
    a_process_that_is_killed_asleep_is_not_missed,
];

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(100);

/// Numbers without a pattern: xorshift.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

fn seed() -> Random {
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = since.subsec_nanos() | 1;
    println!("seed {seed}");
    Random(seed.into())
}

/// What a process has done to the count, in memory that outlives it.
#[derive(Clone, Copy)]
struct Tally(&'static [AtomicU64]);

const ADDED: usize = 0;
const TAKEN: usize = 1;
/// An operation has begun and was not noted yet.
const BEGUN: usize = 2;
const TALLY: usize = 3;

impl Tally {
    fn note(self, which: usize, operation: impl FnOnce() -> bool) {
        self.0[BEGUN].store(1, Ordering::SeqCst);
        if operation() {
            self.0[which].fetch_add(1, Ordering::SeqCst);
        }
        self.0[BEGUN].store(0, Ordering::SeqCst);
    }

    fn get(self, which: usize) -> u64 {
        self.0[which].load(Ordering::SeqCst)
    }
}

/// Waits until it is readable, or for a while.
type Wait = fn(&EventFd, &Epoll);

const WAYS: [Wait; 3] = [
    |_, set| {
        set.wait(&mut [Event::default()], SHORT).unwrap();
    },
    |counter, _| {
        upoll::poll(&mut [PollFd::new(counter, Events::IN)], SHORT).unwrap();
    },
    |_, _| (),
];

/// Adds and takes until it is killed.
fn toil(counter: &EventFd, tally: Tally, role: usize) {
    let set = Epoll::new().unwrap();
    set.add(counter, Event::new(Events::IN | Events::ET, 0))
        .unwrap();
    for round in 0_u64.. {
        tally.note(ADDED, || match round % 7 {
            // It always adds, as the maximum is out of reach for it.
            0 => {
                counter.signal();
                true
            }
            _ => counter.try_write(1).is_ok(),
        });
        if round % 5 == 0 {
            let _ = counter.set_maximum(1_000_000 + round % 3);
        }
        WAYS[role](counter, &set);
        tally.note(TAKEN, || counter.try_read().is_ok());
    }
}

fn a_process_that_is_killed_blocks_nobody_and_loses_nothing() {
    const ROUNDS: usize = 400;
    let mut random = seed();
    let counter = EventFd::shared(0, EventFdFlags::SEMAPHORE).unwrap();
    counter.set_maximum(1_000_000).unwrap();
    let numbers = shared_numbers((ROUNDS + 8) * TALLY);
    let mut tallies = numbers.chunks(TALLY).map(Tally);
    let mut used = Vec::new();
    let mut start = |role| {
        let tally = tallies.next().unwrap();
        used.push(tally);
        Child::new(|_| toil(&counter, tally, role))
    };
    let mut victims: Vec<_> = (0..4).map(|at| start(at % WAYS.len())).collect();
    for round in 0..ROUNDS {
        sleep(Duration::from_micros(random.next(2_000)));
        let at = usize::try_from(random.next(4)).unwrap();
        victims.swap_remove(at).kill();
        // Whoever is next finds the lock free.
        assert!(counter.maximum() >= 1_000_000);
        victims.push(start(round % WAYS.len()));
    }
    for victim in victims {
        victim.kill();
    }
    let sum = |which| used.iter().map(|tally| tally.get(which)).sum::<u64>();
    let (added, taken, begun) = (sum(ADDED), sum(TAKEN), sum(BEGUN));
    let mut left = 0;
    while counter.try_read().is_ok() {
        left += 1;
    }
    println!("added {added}, taken {taken}, left {left}, unknown {begun}");
    assert!(added > 10_000, "they hardly did anything");
    assert!(added.abs_diff(taken + left) <= begun);
}

/// Reads whenever it can, asleep in between.
fn read_always(counter: &EventFd, role: usize) {
    let set = Epoll::new().unwrap();
    let interest = Event::new(Events::IN | Events::ET, 0);
    set.add(counter, interest).unwrap();
    loop {
        match role {
            0 => drop(counter.read().unwrap()),
            1 => {
                set.wait(&mut [interest], None).unwrap();
                // It may have been told of what was not written after all.
                let _ = counter.try_read();
            }
            _ => {
                upoll::poll(&mut [PollFd::new(counter, Events::IN)], None).unwrap();
                let _ = counter.try_read();
            }
        }
    }
}

fn what_a_killed_writer_wrote_wakes_a_sleeping_reader() {
    let mut random = seed();
    for role in 0..3 {
        let counter = EventFd::shared(0, EventFdFlags::empty()).unwrap();
        let reader = Child::new(|_| read_always(&counter, role));
        for _ in 0..300 {
            let writer = Child::new(|_| {
                loop {
                    counter.try_write(1).unwrap();
                }
            });
            sleep(Duration::from_micros(300 + random.next(400)));
            writer.kill();
            let begun = Instant::now();
            reader.until_state_is_sleep();
            assert!(begun.elapsed() < LONG, "the reader never sleeps");
            assert_eq!(counter.try_read(), Err(Errno::AGAIN), "role {role}");
        }
        reader.kill();
    }
}

fn a_process_that_is_killed_asleep_is_not_missed() {
    let counter = EventFd::shared(0, EventFdFlags::empty()).unwrap();
    for role in 0..3 {
        let mut readers: Vec<_> = (0..4)
            .map(|_| Child::new(|_| read_always(&counter, role)))
            .collect();
        sleep(Duration::from_millis(30));
        readers.iter().for_each(Child::until_state_is_sleep);
        let last = readers.pop().unwrap();
        for reader in readers {
            reader.kill();
        }
        for _ in 0..100 {
            counter.try_write(1).unwrap();
            let begun = Instant::now();
            while counter.as_file_ref().is_ready(Events::IN) {
                assert!(begun.elapsed() < LONG, "nobody reads");
            }
        }
        last.kill();
    }
}
