//! Workers that share one source of events, after the test program of the EPOLL_ROTATE patch: each
//! worker has a set of its own, takes one event at a time and waits again.
//!
//! The source is an eventfd in semaphore mode on both sides, where the test program has a pipe. One
//! worker takes an event, and a worker that comes too late finds none.

use std::fs;
use std::io;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::thread::gettid;
use serde::Serialize;
use upoll::{CreateFlags, Epoll, EventFd, EventFdFlags, Events};

use super::calls::idle;
use super::kernel::Fd;
use super::measure::{Series, Spread};
use super::set::{Counter, Set};
use crate::interrupt;

pub(super) const NAME: &str = "workers";

const WORKERS: usize = 100;

/// The amount to measure.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Load {
    /// The number of events that the workers take in a round.
    pub(super) events: u64,
    /// The number of rounds of each way, which alternate.
    pub(super) rounds: usize,
}

impl Load {
    pub(super) const FULL: Load = Load {
        events: 20_000,
        rounds: 11,
    };
    pub(super) const QUICK: Load = Load {
        events: 2000,
        rounds: 3,
    };
}

/// The targets of rotating workers.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Goal {
    /// The factor by which they are faster than the kernel.
    pub(super) ratio: f64,
    /// Jain's index in the median round. Rounds are so short that a worker may miss much of one
    /// while other programs keep it from running.
    pub(super) fairness: f64,
    pub(super) switches_per_event: f64,
}

const GOAL: Goal = Goal {
    ratio: 20.0,
    fairness: 0.999,
    switches_per_event: 2.5,
};

/// The data of the interest in the source, and of that in the bell that ends the work.
const EVENT: u64 = 0;
const STOP: u64 = 1;

/// A source of events, and the set between it and the sets in which workers wait.
struct Way<S, C> {
    source: C,
    /// Without it the workers' sets watch the source directly with `EPOLLEXCLUSIVE`, which Linux does not allow for a set.
    shared: Option<S>,
    /// Ends the work.
    bell: C,
}

impl<S: Set<C>, C: Counter> Way<S, C> {
    fn new(shared: Option<S>) -> Result<Self> {
        let source = C::new(0, EventFdFlags::SEMAPHORE | EventFdFlags::NONBLOCK)?;
        if let Some(shared) = &shared {
            shared.add(&source, Events::IN, EVENT)?;
        }
        Ok(Way {
            source,
            shared,
            bell: idle()?,
        })
    }

    /// Returns the set of a worker.
    fn set(&self) -> Result<S> {
        let set = S::open()?;
        match &self.shared {
            Some(shared) => set.add_set(shared, Events::IN, EVENT)?,
            None => set.add(&self.source, Events::IN | Events::EXCLUSIVE, EVENT)?,
        }
        set.add(&self.bell, Events::IN, STOP)?;
        Ok(set)
    }

    /// Waits for an event. Returns false when the work ends.
    fn wait(set: &S) -> bool {
        let mut reports = [S::ROOM; 2];
        let found = set.wait(&mut reports).expect("wait");
        reports[..found]
            .iter()
            .all(|report| S::data(report) != STOP)
    }
}

/// The result of one round of a way, up to the last event.
#[derive(Clone, Serialize)]
pub(super) struct Round {
    pub(super) nanoseconds: u64,
    /// The number of events that each worker took.
    pub(super) shares: Vec<u64>,
    /// Jain's index of the shares.
    pub(super) fairness: f64,
    /// Context switches of all threads, including the writer.
    pub(super) voluntary_switches: u64,
    pub(super) involuntary_switches: u64,
    /// Waits that ended after all events had been taken.
    pub(super) empty_wakes: u64,
}

/// Rounds of one way.
#[derive(Serialize)]
pub(super) struct Shared {
    pub(super) name: &'static str,
    pub(super) way: &'static str,
    pub(super) workers: usize,
    pub(super) load: Load,
    pub(super) milliseconds: Spread,
    /// The factor by which this way is faster than the first one, round by round. All ways take the same events.
    pub(super) ratio: Spread,
    /// The fewest events, the median, and the most events that a worker took in a round.
    pub(super) shares: [Spread; 3],
    pub(super) fairness: Spread,
    pub(super) worst_fairness: f64,
    pub(super) voluntary_switches_per_event: Spread,
    pub(super) involuntary_switches_per_event: Spread,
    pub(super) switches_per_event: Spread,
    pub(super) empty_wakes_per_event: Spread,
    pub(super) goal: Option<Goal>,
    /// True if the medians reach every target, and each worker took an event in each round.
    pub(super) reached: Option<bool>,
    rounds: Vec<Round>,
}

/// Returns the context switches of all threads of this process so far: voluntary, involuntary.
fn switches() -> io::Result<[u64; 2]> {
    // SAFETY: the structure is plain numbers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    // SAFETY: the call fills `usage`.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok([
        usage.ru_nvcsw.cast_unsigned(),
        usage.ru_nivcsw.cast_unsigned(),
    ])
}

/// Returns whether a thread of this process sleeps, from `/proc`.
fn is_asleep(thread: i32) -> io::Result<bool> {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat"))?;
    // The name before the state is in parentheses and may contain any character.
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes()[0]);
    Ok(state == Some(b'S'))
}

/// The time and the context switches when the last event was taken.
type Finish = (Instant, [u64; 2]);

struct Work<S, C> {
    way: Way<S, C>,
    events: u64,
    taken: AtomicU64,
    all_here: Barrier,
    finished: SyncSender<Finish>,
}

impl<S: Set<C>, C: Counter> Work<S, C> {
    /// Takes events until the bell rings. Returns the number of events, and of waits that found
    /// none.
    fn worker(&self, set: &S) -> Result<[u64; 2]> {
        let (mut taken, mut empty) = (0, 0);
        while Way::<S, C>::wait(set) {
            if !self.way.source.try_read() {
                empty += 1;
                continue;
            }
            taken += 1;
            if self.taken.fetch_add(1, Ordering::Relaxed) + 1 == self.events {
                self.finished.send((Instant::now(), switches()?))?;
            }
        }
        Ok([taken, empty])
    }
}

/// A round begins when all workers wait: a worker that has not waited yet has no place in line.
fn round<S: Set<C>, C: Counter>(shared: Option<S>, events: u64) -> Result<Round> {
    let (finished, finish) = mpsc::sync_channel(1);
    let work = Arc::new(Work {
        way: Way::<S, C>::new(shared)?,
        events,
        taken: AtomicU64::new(0),
        all_here: Barrier::new(WORKERS + 1),
        finished,
    });
    let (here, arrivals) = mpsc::channel();
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let set = work.way.set()?;
            let (work, here) = (work.clone(), here.clone());
            Ok(thread::spawn(move || {
                here.send(gettid().as_raw_pid())?;
                work.all_here.wait();
                work.worker(&set)
            }))
        })
        .collect::<Result<_>>()?;
    work.all_here.wait();
    for thread in arrivals.iter().take(WORKERS) {
        while !is_asleep(thread)? {
            thread::sleep(Duration::from_micros(100));
        }
    }

    let (begun, before) = (Instant::now(), switches()?);
    for _ in 0..events {
        work.way.source.write();
    }
    let (ended, after) = finish.recv()?;
    work.way.bell.write();

    let mut shares = Vec::with_capacity(WORKERS);
    let mut empty_wakes = 0;
    for worker in workers {
        let [taken, empty] = worker.join().expect("a worker does not panic")?;
        shares.push(taken);
        empty_wakes += empty;
    }
    Ok(Round {
        nanoseconds: u64::try_from((ended - begun).as_nanos())?,
        fairness: upoll_fair_state::fairness(shares.iter().copied()),
        shares,
        voluntary_switches: after[0] - before[0],
        involuntary_switches: after[1] - before[1],
        empty_wakes,
    })
}

/// A way, and a function that runs a round of it.
struct Runner {
    way: &'static str,
    goal: Option<Goal>,
    round: fn(u64) -> Result<Round>,
}

const RUNNERS: [Runner; 4] = [
    Runner {
        way: "kernel",
        goal: None,
        round: |events| round::<Fd, Fd>(Some(Fd::open()?), events),
    },
    Runner {
        way: "kernel, EPOLLEXCLUSIVE",
        goal: None,
        round: |events| round::<Fd, Fd>(None, events),
    },
    Runner {
        way: "upoll",
        goal: None,
        round: |events| round::<Epoll, EventFd>(Some(Epoll::new()?), events),
    },
    Runner {
        way: "upoll, EPOLL_ROTATE",
        goal: Some(GOAL),
        round: |events| {
            let rotating = Epoll::create(CreateFlags::ROTATE)?;
            round::<Epoll, EventFd>(Some(rotating), events)
        },
    },
];

/// Measures all ways alternately, with the threads on the CPUs that the caller may use.
pub(super) fn measure(load: Load) -> Result<Vec<Shared>> {
    let mut rounds = RUNNERS.map(|_| Vec::with_capacity(load.rounds));
    for _ in 0..load.rounds {
        for (runner, rounds) in RUNNERS.iter().zip(&mut rounds) {
            rounds.push((runner.round)(load.events).context(runner.way)?);
        }
        if interrupt::is_pending() {
            break;
        }
    }
    let stock = series(&rounds[0], load);
    Ok(RUNNERS
        .into_iter()
        .zip(rounds)
        .map(|(runner, rounds)| Shared::new(&runner, rounds, load, &stock))
        .collect())
}

fn series(rounds: &[Round], load: Load) -> Series {
    let per_event = |round: &Round| round.nanoseconds as f64 / load.events as f64;
    Series {
        operations_per_batch: load.events,
        nanoseconds: rounds.iter().map(per_event).collect(),
    }
}

impl Shared {
    /// Returns the events of each worker, ascending, in the round with the median fairness.
    pub(super) fn middle_round(&self) -> Vec<u64> {
        let mut rounds: Vec<_> = self.rounds.iter().collect();
        rounds.sort_by(|one, other| one.fairness.total_cmp(&other.fairness));
        let middle = rounds.get(rounds.len() / 2);
        let mut shares = middle.map_or_else(Vec::new, |round| round.shares.clone());
        shares.sort_unstable();
        shares
    }

    fn new(runner: &Runner, rounds: Vec<Round>, load: Load, stock: &Series) -> Self {
        let spread =
            |figure: &dyn Fn(&Round) -> f64| Spread::of(rounds.iter().map(figure).collect());
        let per_event = |count: &dyn Fn(&Round) -> u64| {
            spread(&|round| count(round) as f64 / load.events as f64)
        };
        let share = |rank: usize| {
            spread(&|round| {
                let mut shares = round.shares.clone();
                shares.sort_unstable();
                shares[rank] as f64
            })
        };
        let ratio = stock.ratio_to(&series(&rounds, load));
        let switches_per_event =
            per_event(&|round| round.voluntary_switches + round.involuntary_switches);
        let fairness = spread(&|round| round.fairness);
        let worst = rounds.iter().map(|round| round.fairness);
        let worst_fairness = worst.fold(f64::INFINITY, f64::min);
        let idle = rounds.iter().any(|round| round.shares.contains(&0));
        Shared {
            name: NAME,
            way: runner.way,
            workers: WORKERS,
            load,
            milliseconds: spread(&|round| round.nanoseconds as f64 / 1e6),
            ratio,
            shares: [share(0), share(WORKERS / 2), share(WORKERS - 1)],
            fairness,
            worst_fairness,
            voluntary_switches_per_event: per_event(&|round| round.voluntary_switches),
            involuntary_switches_per_event: per_event(&|round| round.involuntary_switches),
            switches_per_event,
            empty_wakes_per_event: per_event(&|round| round.empty_wakes),
            goal: runner.goal,
            reached: runner.goal.map(|goal| {
                !idle
                    && ratio.median >= goal.ratio
                    && fairness.median >= goal.fairness
                    && switches_per_event.median <= goal.switches_per_event
            }),
            rounds,
        }
    }
}
