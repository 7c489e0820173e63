//! Threads that serve one connection per request: each opens a file, adds it to a set, waits for an
//! event on it and closes it. In the kernel of 2017 all sets shared one lock.
//!
//! The speed is that of upoll itself. The lock counts come from `upoll_counted`, the same source
//! compiled again with counting locks. A lock counts as shared if another thread held it last, even
//! if the two threads did not contend. So the counts do not depend on the number of CPUs.
//!
//! Throughput grows with the number of threads that have a core. On a busy machine, or with more
//! threads than cores, some threads wait for a core: the time that a thread was runnable and did
//! not run is subtracted. Time stolen by a hypervisor is not measured.

use std::cell::Cell;
use std::fs;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use super::interrupt;
use super::kernel::{self, Fd};
use super::measure::{Series, Spread};

pub(super) const NAME: &str = "close";
pub(super) const NAMES: [&str; 1] = [NAME];

/// The part of proportional growth that a row must reach.
const TARGET: f64 = 0.9;

/// Threads that had less of a core each than this did not run in parallel.
const ENOUGH_CORES: f64 = 0.9;

/// The number of requests between two reads of the clock.
const STRETCH: u64 = 64;

/// How much to measure.
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

/// How often locks were taken, and shared.
#[derive(Clone, Copy, Default, Serialize)]
pub(super) struct Locks {
    taken: u64,
    shared: u64,
    contended: u64,
    waited_nanoseconds: u64,
}

/// A set, and the calls that one request makes on it.
trait Server: Send + Sync {
    /// Opens a file, adds it, waits for an event on it and closes it.
    fn serve(&self);
    /// Returns how the calling thread took locks so far, if they are counted.
    fn locks() -> Option<Locks> {
        None
    }
}

impl Server for Fd {
    fn serve(&self) {
        let connection = Fd::eventfd(0).expect("eventfd");
        self.add(&connection, libc::EPOLLIN, 1).expect("ADD");
        connection.write_count(1).expect("write");
        self.wait(&mut [kernel::IDLE; 8], 0).expect("wait");
    }
}

macro_rules! server_of {
    ($library:ident, $locks:expr) => {
        impl Server for $library::Epoll {
            fn serve(&self) {
                use $library::{Event, EventFd, Events, Timeout};
                let connection = EventFd::new(0).expect("eventfd");
                let interest = Event::new(Events::IN, 1);
                self.add(&connection, interest).expect("ADD");
                connection.write(1).expect("write");
                let mut reports = [Event::default(); 8];
                self.wait(&mut reports, Timeout::NOW).expect("wait");
            }

            fn locks() -> Option<Locks> {
                $locks
            }
        }
    };
}

server_of!(upoll, None);
server_of!(upoll_counted, {
    let counts = upoll_counted::LockCounts::of_this_thread();
    Some(Locks {
        taken: counts.taken,
        shared: counts.shared,
        contended: counts.contended,
        waited_nanoseconds: counts.waited_nanoseconds,
    })
});

/// upoll with one lock for all sets: each call on a set takes it.
struct Global(upoll::Epoll);

/// The last holder, by the address of its counts; 0 if none.
static GLOBAL: Mutex<usize> = Mutex::new(0);

thread_local! {
    /// How this thread took the global lock.
    static GLOBAL_COUNTS: Cell<Locks> = Cell::default();
}

fn global() -> MutexGuard<'static, usize> {
    let mut counts = GLOBAL_COUNTS.get();
    let mut guard = match GLOBAL.try_lock() {
        Ok(guard) => guard,
        Err(_) => {
            let since = Instant::now();
            let guard = GLOBAL.lock().unwrap_or_else(PoisonError::into_inner);
            counts.contended += 1;
            counts.waited_nanoseconds += since.elapsed().as_nanos() as u64;
            guard
        }
    };
    let me = GLOBAL_COUNTS.with(|counts| ptr::from_ref(counts).addr());
    counts.taken += 1;
    counts.shared += u64::from(*guard != 0 && *guard != me);
    *guard = me;
    GLOBAL_COUNTS.set(counts);
    guard
}

impl Server for Global {
    fn serve(&self) {
        use upoll::{Event, EventFd, Events, Timeout};
        let connection = EventFd::new(0).expect("eventfd");
        {
            let _global = global();
            let interest = Event::new(Events::IN, 1);
            self.0.add(&connection, interest).expect("ADD");
        }
        {
            let _global = global();
            connection.write(1).expect("write");
        }
        {
            let _global = global();
            let mut reports = [Event::default(); 8];
            self.0.wait(&mut reports, Timeout::NOW).expect("wait");
        }
        let _global = global();
        drop(connection);
    }

    fn locks() -> Option<Locks> {
        Some(GLOBAL_COUNTS.get())
    }
}

/// The result of a round.
#[derive(Clone, Serialize)]
pub(super) struct Round {
    requests: u64,
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
    elapsed: Duration,
    without_core: u64,
    locks: Option<Locks>,
}

fn work<S: Server>(set: &S, start: &Barrier, stop: &AtomicBool) -> Result<Served> {
    set.serve();
    start.wait();
    let (begun, waited, before) = (Instant::now(), waited_for_core()?, S::locks());
    let mut requests = 0;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..STRETCH {
            set.serve();
        }
        requests += STRETCH;
    }
    let locks = S::locks().zip(before).map(|(now, before)| Locks {
        taken: now.taken - before.taken,
        shared: now.shared - before.shared,
        contended: now.contended - before.contended,
        waited_nanoseconds: now.waited_nanoseconds - before.waited_nanoseconds,
    });
    // Within the time that is measured: the thread may wait for a core at any point here.
    let without_core = waited_for_core()? - waited;
    Ok(Served {
        requests,
        elapsed: begun.elapsed(),
        without_core,
        locks,
    })
}

fn round<S: Server>(
    make: impl Fn() -> Result<S> + Sync,
    sets: Sets,
    threads: usize,
    length: Duration,
) -> Result<Round> {
    let shared = match sets {
        Sets::Own => None,
        Sets::Shared => Some(Arc::new(make()?)),
    };
    let (start, stop) = (Barrier::new(threads + 1), AtomicBool::new(false));
    let served = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let set = match &shared {
                        Some(set) => set.clone(),
                        None => Arc::new(make().expect("a set")),
                    };
                    work(&*set, &start, &stop)
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
    let elapsed: Duration = served.iter().map(|one| one.elapsed).sum();
    let nanoseconds = elapsed.as_nanos() as f64 / threads as f64;
    let without_core: u64 = served.iter().map(|one| one.without_core).sum();
    let mut locks = None;
    for one in served.iter().filter_map(|one| one.locks) {
        let sum = locks.get_or_insert_with(Locks::default);
        sum.taken += one.taken;
        sum.shared += one.shared;
        sum.contended += one.contended;
        sum.waited_nanoseconds += one.waited_nanoseconds;
    }
    Ok(Round {
        requests: served.iter().map(|one| one.requests).sum(),
        nanoseconds: nanoseconds as u64,
        threads_with_a_core: threads as f64 - without_core as f64 / nanoseconds,
        locks,
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sets {
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
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Kernel,
    Upoll,
    Global,
}

impl By {
    fn name(self) -> &'static str {
        match self {
            By::Kernel => "kernel",
            By::Upoll => "upoll",
            By::Global => "upoll, one lock for all sets",
        }
    }

    fn round(self, sets: Sets, threads: usize, length: Duration) -> Result<Round> {
        match self {
            By::Kernel => round(|| Ok(Fd::epoll()?), sets, threads, length),
            By::Upoll => round(|| Ok(upoll::Epoll::new()?), sets, threads, length),
            By::Global => round(|| Ok(Global(upoll::Epoll::new()?)), sets, threads, length),
        }
    }
}

const WAYS: [(By, Sets); 5] = [
    (By::Kernel, Sets::Own),
    (By::Upoll, Sets::Own),
    (By::Global, Sets::Own),
    (By::Kernel, Sets::Shared),
    (By::Upoll, Sets::Shared),
];

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
pub(super) struct Closed {
    pub(super) name: &'static str,
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
    /// The target of `growth_per_core`. In addition, unrelated sets must share no lock.
    pub(super) target: Option<f64>,
    pub(super) reached: Option<bool>,
    pub(super) trusted: bool,
    /// The reason why this machine cannot measure the row.
    pub(super) note: Option<String>,
    rounds: Vec<Round>,
    counted_rounds: Vec<Round>,
}

/// 1, 2, 4, ... up to twice the CPUs.
fn thread_counts(cpus: usize) -> Vec<usize> {
    let counts = std::iter::successors(Some(1), |&count| Some(count * 2));
    counts
        .take_while(|&count| count <= 4.max(2 * cpus))
        .collect()
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
struct Run {
    by: By,
    sets: Sets,
    threads: usize,
    rounds: Vec<Round>,
    counted: Vec<Round>,
}

impl Run {
    fn closed(self, alone: &[Round], kernel: &Series, load: Load, cpus: usize) -> Closed {
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
        let locks =
            lock_use(&self.counted, self.threads).or_else(|| lock_use(&self.rounds, self.threads));
        let threads_with_a_core = spread(|round| round.threads_with_a_core);
        let note = if self.threads > cpus {
            let threads = self.threads;
            Some(format!(
                "{cpus} CPUs: growth to {threads} threads cannot show"
            ))
        } else if threads_with_a_core.median < ENOUGH_CORES * self.threads as f64 {
            Some("other programs had the CPUs: growth cannot show".to_owned())
        } else {
            None
        };
        let judged = self.by == By::Upoll && self.sets == Sets::Own && note.is_none();
        let target = judged.then_some(TARGET);
        let shares_none = locks.is_none_or(|locks| locks.shared_in_all == 0);
        let ratio = kernel.ratio_to(&mine);
        Closed {
            name: NAME,
            by: self.by.name(),
            sets: self.sets.what(),
            threads: self.threads,
            load,
            requests_per_second: spread(|round| {
                round.requests as f64 * 1e9 / round.nanoseconds as f64
            }),
            threads_with_a_core,
            growth,
            growth_per_core,
            ratio,
            locks,
            target,
            reached: target.map(|target| growth_per_core.median >= target && shares_none),
            trusted: growth_per_core.is_trusted() && ratio.is_trusted(),
            note,
            rounds: self.rounds,
            counted_rounds: self.counted,
        }
    }
}

/// Measures with the threads on any of the `cpus` CPUs that the caller may use.
pub(super) fn measure(load: Load, cpus: usize) -> Result<Vec<Closed>> {
    let length = Duration::from_millis(load.round_milliseconds);
    let mut runs = Vec::new();
    for (by, sets) in WAYS {
        for threads in thread_counts(cpus) {
            runs.push(Run {
                by,
                sets,
                threads,
                rounds: Vec::new(),
                counted: Vec::new(),
            });
        }
    }
    for _ in 0..load.rounds {
        for run in &mut runs {
            let (by, sets, threads) = (run.by, run.sets, run.threads);
            let ran = by.round(sets, threads, length).context(by.name())?;
            run.rounds.push(ran);
            if by == By::Upoll {
                let make = || Ok(upoll_counted::Epoll::new()?);
                run.counted.push(round(make, sets, threads, length)?);
            }
        }
        if interrupt::is_pending() {
            break;
        }
    }
    let rounds_of = |by, sets, threads| {
        let of = |run: &&Run| (run.by, run.sets, run.threads) == (by, sets, threads);
        let run = runs.iter().find(of);
        run.map_or_else(Vec::new, |run| run.rounds.clone())
    };
    let beside: Vec<_> = runs
        .iter()
        .map(|run| {
            let alone = rounds_of(run.by, run.sets, 1);
            let kernel = rounds_of(By::Kernel, run.sets, run.threads);
            (alone, series(&kernel))
        })
        .collect();
    let rows = runs.into_iter().zip(beside);
    Ok(rows
        .map(|(run, (alone, kernel))| run.closed(&alone, &kernel, load, cpus))
        .collect())
}
