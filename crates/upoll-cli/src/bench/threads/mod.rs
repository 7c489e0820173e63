//! Threads that make requests on a set each, or all on one set.
//!
//! The speed is that of upoll itself. The lock counts come from `upoll_counted`, the same source
//! compiled again with counting locks. A lock counts as shared if another thread held it last, even
//! if the two threads did not contend. So the counts do not depend on the number of CPUs.
//!
//! Throughput grows with the number of threads that have a core. On a busy machine, or with more
//! threads than cores, some threads wait for a core. The growth per core leaves out the time that a
//! thread was runnable and did not run. Time stolen by a hypervisor is not measured. Threads that
//! share a set are judged by their throughput together, also if they are more than the cores.

mod locks;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use self::locks::Locks;
pub(super) use self::locks::{Counted, Global, GlobalFile};
use super::measure::{Series, Spread};
use crate::interrupt;

pub(super) const KERNEL: &str = "kernel";
pub(super) const UPOLL: &str = "upoll";

/// Threads that had less of a core each than this did not run in parallel.
const ENOUGH_CORES: f64 = 0.9;

/// The number of requests between two reads of the clock.
const STRETCH: u64 = 64;

/// The numbers of threads that share a set.
const SHARING: [usize; 5] = [1, 2, 4, 8, 16];

/// The amount to measure.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Load {
    pub(super) round_milliseconds: u64,
    pub(super) rounds: usize,
}

impl Load {
    pub(super) const FULL: Load = Load {
        round_milliseconds: 20,
        rounds: 31,
    };
    pub(super) const QUICK: Load = Load {
        round_milliseconds: 4,
        rounds: 5,
    };
}

/// A set, its files, and the requests that threads make on it.
pub(super) trait Server: Sized + Send + Sync {
    type Set: Counted;

    /// Makes a set for this number of threads.
    fn new(threads: usize) -> Result<Self>;
    /// Makes the `turn`-th request of a thread. Returns whether an event was served.
    fn serve(&self, thread: usize, turn: usize) -> bool;
}

/// The result of a round.
#[derive(Clone, Serialize)]
pub(super) struct Round {
    requests: u64,
    /// The time from the first request of any thread to the last one of any.
    nanoseconds: u64,
    /// The number of threads, less the time that they waited for a core.
    threads_with_a_core: f64,
    /// The lock counts of all threads together, if counted.
    locks: Option<Locks>,
}

/// Returns how long the calling thread has waited for a core since it began.
fn waited_for_core() -> Result<u64> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").context("schedstat")?;
    let waited = text.split_whitespace().nth(1).context("two figures")?;
    Ok(waited.parse()?)
}

struct Served {
    requests: u64,
    begun: Instant,
    ended: Instant,
    without_core: u64,
    locks: Option<Locks>,
}

fn work<S: Server>(
    server: &S,
    thread: usize,
    start: &Barrier,
    stop: &AtomicBool,
) -> Result<Served> {
    server.serve(thread, 0);
    start.wait();
    let (begun, waited, before) = (Instant::now(), waited_for_core()?, S::Set::locks());
    let (mut requests, mut turn) = (0, 0);
    loop {
        for _ in 0..STRETCH {
            requests += u64::from(server.serve(thread, turn));
            turn += 1;
        }
        // At the end: a thread that begins late makes some requests, too, so no round has none.
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    let locks = S::Set::locks().zip(before);
    let locks = locks.map(|(now, before)| now.with(before, u64::wrapping_sub));
    // Within the time that is measured: the thread may wait for a core at any point here.
    let without_core = waited_for_core()? - waited;
    Ok(Served {
        requests,
        begun,
        ended: Instant::now(),
        without_core,
        locks,
    })
}

/// Runs `threads` threads that make requests for about `length`.
pub(super) fn round<S: Server>(sets: Sets, threads: usize, length: Duration) -> Result<Round> {
    let shared = match sets {
        Sets::Own => None,
        Sets::Shared => Some(Arc::new(S::new(threads)?)),
    };
    let (start, stop) = (Barrier::new(threads + 1), AtomicBool::new(false));
    let (shared, start, stop) = (&shared, &start, &stop);
    let served = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let server = match shared {
                        Some(server) => server.clone(),
                        None => Arc::new(S::new(threads).expect("a set")),
                    };
                    work(&*server, thread, start, stop)
                })
            })
            .collect();
        start.wait();
        thread::sleep(length);
        stop.store(true, Ordering::Relaxed);
        workers
            .into_iter()
            .map(|worker| worker.join().expect("a worker does not panic"))
            .collect::<Result<Vec<_>>>()
    })?;
    // With more threads than cores, some begin late or end early. The mean of their times would be
    // shorter than the time in which all requests were made.
    let begun = served.iter().map(|one| one.begun).min();
    let begun = begun.context("no threads")?;
    let elapsed = served.iter().map(|one| one.ended - begun).max();
    let nanoseconds = elapsed.unwrap_or_default().as_nanos() as u64;
    // A thread that begins late waited for a core until then.
    let late: Duration = served.iter().map(|one| one.begun - begun).sum();
    let without_core: u64 = served.iter().map(|one| one.without_core).sum();
    let without_core = without_core as f64 + late.as_nanos() as f64;
    let locks = served.iter().filter_map(|one| one.locks);
    let locks = locks.reduce(|sum, one| sum.with(one, u64::wrapping_add));
    Ok(Round {
        requests: served.iter().map(|one| one.requests).sum(),
        nanoseconds,
        threads_with_a_core: threads as f64 - without_core / nanoseconds as f64,
        locks,
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sets {
    Own,
    Shared,
}

impl Sets {
    fn what(self) -> &'static str {
        match self {
            Sets::Own => "one each",
            Sets::Shared => "one for all",
        }
    }

    /// Own sets: 1, 2, 4, ... up to twice the CPUs.
    fn thread_counts(self, cpus: usize) -> Vec<usize> {
        match self {
            Sets::Own => {
                let counts = std::iter::successors(Some(1), |&count| Some(count * 2));
                counts
                    .take_while(|&count| count <= 4.max(2 * cpus))
                    .collect()
            }
            Sets::Shared => SHARING.to_vec(),
        }
    }
}

/// The figures that a row must reach.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Goal {
    /// The least growth.
    pub(super) growth: f64,
    /// True if that is the growth per core. Then the threads must share no lock, either.
    pub(super) per_core: bool,
    /// The least throughput relative to the kernel's.
    pub(super) ratio: Option<f64>,
}

/// The part of one thread's throughput, or of proportional growth, that must be reached.
const GROWTH: f64 = 0.9;

impl Goal {
    pub(super) const UNRELATED: Goal = Goal {
        growth: GROWTH,
        per_core: true,
        ratio: None,
    };
    pub(super) const NO_COLLAPSE: Goal = Goal {
        growth: GROWTH,
        per_core: false,
        ratio: None,
    };
    pub(super) const NEVER_BELOW_THE_KERNEL: Goal = Goal {
        growth: GROWTH,
        per_core: false,
        ratio: Some(1.0),
    };
}

/// [`round`] of a server.
type RoundOf = fn(Sets, usize, Duration) -> Result<Round>;

/// One way to do a kind of work.
pub(super) struct Way {
    pub(super) work: &'static str,
    pub(super) by: &'static str,
    pub(super) sets: Sets,
    pub(super) round: RoundOf,
    /// The same by `upoll_counted`.
    pub(super) counted: Option<RoundOf>,
    pub(super) goal: Option<Goal>,
}

/// Shares of the counted locks.
#[derive(Clone, Copy, Serialize)]
pub(super) struct LockUse {
    pub(super) taken_per_request: f64,
    /// The share of acquisitions whose previous holder was another thread.
    pub(super) shared: f64,
    /// The share of acquisitions that found the lock held by another thread.
    pub(super) contended: f64,
    /// The share of the threads' time that they waited for locks.
    pub(super) waiting: f64,
    /// The number of shared acquisitions in all rounds.
    pub(super) shared_in_all: u64,
}

/// One way with a given number of threads.
#[derive(Serialize)]
pub(super) struct Threaded {
    pub(super) name: &'static str,
    pub(super) work: &'static str,
    pub(super) by: &'static str,
    pub(super) sets: &'static str,
    pub(super) threads: usize,
    pub(super) load: Load,
    pub(super) requests_per_second: Spread,
    pub(super) threads_with_a_core: Spread,
    /// The throughput relative to one thread, round by round.
    pub(super) growth: Spread,
    /// The growth relative to the number of threads that had a core.
    pub(super) growth_per_core: Spread,
    /// Requests per second relative to the kernel's, with as many threads and sets.
    pub(super) ratio: Spread,
    pub(super) locks: Option<LockUse>,
    pub(super) goal: Option<Goal>,
    pub(super) reached: Option<bool>,
    pub(super) trusted: bool,
    /// The reason why this machine cannot measure the row.
    pub(super) note: Option<String>,
    rounds: Vec<Round>,
    counted_rounds: Vec<Round>,
}

/// Returns the nanoseconds per request of all threads together.
fn series(rounds: &[Round]) -> Series {
    let per_request = |round: &Round| round.nanoseconds as f64 / round.requests as f64;
    Series {
        operations_per_batch: STRETCH,
        nanoseconds: rounds.iter().map(per_request).collect(),
    }
}

/// Returns `None` if locks are not counted.
fn lock_use(rounds: &[Round], threads: usize) -> Option<LockUse> {
    rounds.first()?;
    let sum = |of: fn(&Locks) -> u64| -> Option<u64> {
        rounds
            .iter()
            .map(|round| round.locks.as_ref().map(of))
            .sum()
    };
    let taken = sum(|locks| locks.taken)? as f64;
    let shared = sum(|locks| locks.shared)?;
    let requests: u64 = rounds.iter().map(|round| round.requests).sum();
    let nanoseconds: u64 = rounds.iter().map(|round| round.nanoseconds).sum();
    Some(LockUse {
        taken_per_request: taken / requests as f64,
        shared: shared as f64 / taken,
        contended: sum(|locks| locks.contended)? as f64 / taken,
        waiting: sum(|locks| locks.waited_nanoseconds)? as f64
            / (nanoseconds * threads as u64) as f64,
        shared_in_all: shared,
    })
}

/// One way with a given number of threads, and its rounds.
struct Run<'a> {
    way: &'a Way,
    threads: usize,
    rounds: Vec<Round>,
    counted: Vec<Round>,
}

impl Run<'_> {
    fn row(
        self,
        name: &'static str,
        alone: &[Round],
        kernel: &Series,
        load: Load,
        cpus: usize,
    ) -> Threaded {
        let (way, threads) = (self.way, self.threads);
        let (one, mine) = (series(alone), series(&self.rounds));
        let growth = one.ratio_to(&mine);
        let figures = self.rounds.iter().zip(alone);
        let per_core = figures.zip(one.nanoseconds.iter().zip(&mine.nanoseconds));
        let growth_per_core = per_core.map(|((many, one), (alone, together))| {
            alone / together / (many.threads_with_a_core / one.threads_with_a_core)
        });
        let growth_per_core = Spread::of(growth_per_core.collect());
        let spread =
            |figure: fn(&Round) -> f64| Spread::of(self.rounds.iter().map(figure).collect());
        let locks = lock_use(&self.counted, threads).or_else(|| lock_use(&self.rounds, threads));
        let threads_with_a_core = spread(|round| round.threads_with_a_core);
        let needs_cores = way.sets == Sets::Own;
        let note = if threads > cpus && needs_cores {
            Some(format!(
                "{cpus} CPUs: growth to {threads} threads cannot show"
            ))
        } else if threads_with_a_core.median < ENOUGH_CORES * threads.min(cpus) as f64 {
            Some("other programs had the CPUs: growth cannot show".to_owned())
        } else {
            None
        };
        let ratio = kernel.ratio_to(&mine);
        let shares_none = locks.is_none_or(|locks| locks.shared_in_all == 0);
        // One thread cannot fall behind itself.
        let judges = |goal: &Goal| goal.per_core || goal.ratio.is_some() || threads > 1;
        let goal = way.goal.filter(|goal| note.is_none() && judges(goal));
        let reached = goal.map(|goal| {
            let grown = match goal.per_core {
                true => growth_per_core.median >= goal.growth && shares_none,
                false => growth.median >= goal.growth,
            };
            grown && goal.ratio.is_none_or(|least| ratio.median >= least)
        });
        let judged = match needs_cores {
            true => growth_per_core,
            false => growth,
        };
        Threaded {
            name,
            work: way.work,
            by: way.by,
            sets: way.sets.what(),
            threads,
            load,
            requests_per_second: spread(|round| {
                round.requests as f64 * 1e9 / round.nanoseconds as f64
            }),
            threads_with_a_core,
            growth,
            growth_per_core,
            ratio,
            locks,
            goal,
            reached,
            trusted: judged.is_trusted() && ratio.is_trusted(),
            note,
            rounds: self.rounds,
            counted_rounds: self.counted,
        }
    }
}

/// Measures with the threads on any of the `cpus` CPUs that the caller may use. Each kind of work
/// has a way by the kernel.
pub(super) fn measure(
    name: &'static str,
    ways: &[Way],
    load: Load,
    cpus: usize,
) -> Result<Vec<Threaded>> {
    let length = Duration::from_millis(load.round_milliseconds);
    let mut runs = Vec::new();
    for way in ways {
        for threads in way.sets.thread_counts(cpus) {
            runs.push(Run {
                way,
                threads,
                rounds: Vec::new(),
                counted: Vec::new(),
            });
        }
    }
    for _ in 0..load.rounds {
        for run in &mut runs {
            let (sets, by) = (run.way.sets, run.way.by);
            let ran = (run.way.round)(sets, run.threads, length).context(by)?;
            run.rounds.push(ran);
            if let Some(counted) = run.way.counted {
                run.counted.push(counted(sets, run.threads, length)?);
            }
        }
        if interrupt::is_pending() {
            break;
        }
    }
    let rounds_of = |way: &Way, by, threads| {
        let of = |run: &&Run| {
            let key = |way: &Way| (way.work, way.sets);
            key(run.way) == key(way) && (run.way.by, run.threads) == (by, threads)
        };
        let run = runs.iter().find(of);
        run.map_or_else(Vec::new, |run| run.rounds.clone())
    };
    let beside: Vec<_> = runs
        .iter()
        .map(|run| {
            let alone = rounds_of(run.way, run.way.by, 1);
            let kernel = rounds_of(run.way, KERNEL, run.threads);
            (alone, series(&kernel))
        })
        .collect();
    let rows = runs.into_iter().zip(beside);
    Ok(rows
        .map(|(run, (alone, kernel))| run.row(name, &alone, &kernel, load, cpus))
        .collect())
}
