//! The comparison: the same load to one server after the other.
//!
//! All servers run from the beginning; those without load sleep. The load comes in rounds. Each
//! round loads each way once, in another order each time, so that a machine that becomes slower or
//! faster during the run favours no way. Latencies are medians of the rounds. A program that takes the
//! client's processor for some milliseconds delays all requests in flight, and so decides the percentiles of its round.
//!
//! # Processors
//! The client has the first half of the processors, and the workers have the others. Without that a worker
//! that is woken may take the client's processor. A response is there some 40 us after its request
//! began, and then waits until the client has gone through the others that are in flight. So the latencies, and the
//! rate, would show how often the scheduler puts a worker beside the client.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use libc::c_int;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use signal_hook::iterator::Signals;

use super::load::{Client, Load, Outcome};
use super::report::{Report, Row};
use super::server::Server;
use super::ways::Way;

/// A multiple of the number of ways, so that each has each place in the order equally often.
const ROUNDS: u64 = 6;
/// The interval at which the progress is shown, and signals are checked.
const TICK: Duration = Duration::from_millis(50);

/// The ways to compare, and the amount of load.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) ways: Vec<Way>,
    pub(super) workers: usize,
    pub(super) connections: usize,
    pub(super) requests: u64,
}

/// A way, its server, and its results so far.
struct Contender {
    way: Way,
    server: Server,
    took: Duration,
    rounds: Vec<Outcome>,
}

impl Comparison {
    /// Returns the number of client threads: half of the processors. The other half is for the
    /// workers.
    fn clients(&self) -> usize {
        (processors() / 2).clamp(1, self.connections)
    }

    /// Returns the number of fds that the client needs.
    pub(super) fn client_descriptors(&self) -> usize {
        self.clients() + self.connections
    }

    /// Runs the comparison to its end, or until a signal comes.
    pub(super) fn run(&self, signals: &mut Signals) -> anyhow::Result<Report> {
        let mut contenders = Vec::new();
        let halves = Halves::of(&allowed_processors());
        for &way in &self.ways {
            let address = SocketAddr::from(([127, 0, 0, 1], 0));
            let server = Server::start(way, address, self.workers, &halves.of_workers)?;
            contenders.push(Contender {
                way,
                server,
                took: Duration::ZERO,
                rounds: Vec::new(),
            });
        }
        let over = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        let mut ended_by = None;
        let bar = progress_bar(self.requests * self.ways.len() as u64);
        'rounds: for round in 0..ROUNDS {
            for place in 0..contenders.len() {
                let next = (round as usize + place) % contenders.len();
                let contender = &mut contenders[next];
                bar.set_message(contender.way.title());
                let upto = |round| self.requests * round / ROUNDS;
                let load = Load {
                    server: contender.server.address(),
                    requests: upto(round + 1) - upto(round),
                    begun: AtomicU64::new(0),
                    over: &over,
                    stop: &stop,
                };
                let begun = Instant::now();
                let mut outcome = Outcome::new();
                ended_by = self.send(&load, &halves.of_client, &mut outcome, signals, &bar)?;
                contender.took += begun.elapsed();
                contender.rounds.push(outcome);
                if ended_by.is_some() {
                    break 'rounds;
                }
            }
        }
        bar.finish_and_clear();
        let mut ways = Vec::new();
        for contender in contenders {
            let counts = contender.server.stop()?;
            ways.push(Row::new(
                contender.way,
                contender.took,
                contender.rounds,
                &counts,
            ));
        }
        Ok(Report {
            workers: self.workers,
            connections: self.connections,
            requests: self.requests,
            processors: processors(),
            interrupted: ended_by.is_some(),
            ended_by,
            ways,
        })
    }

    /// Sends one load and adds its results to `outcome`. Returns the signal that ended the load, if
    /// any.
    fn send(
        &self,
        load: &Load<'_>,
        processors: &CpuSet,
        outcome: &mut Outcome,
        signals: &mut Signals,
        bar: &ProgressBar,
    ) -> anyhow::Result<Option<c_int>> {
        let clients = self.clients();
        let mut ended_by = None;
        let (ended, results) = mpsc::channel();
        thread::scope(|scope| {
            for number in 0..clients {
                let share = |number| self.connections * number / clients;
                let connections = share(number + 1) - share(number);
                let ended = ended.clone();
                scope.spawn(move || {
                    run_on(processors);
                    let result = Client::new(load, connections).and_then(Client::run);
                    // The receiver is gone if another client has failed.
                    let _ = ended.send(result);
                });
            }
            drop(ended);
            loop {
                match results.recv_timeout(TICK) {
                    Ok(Ok(ended)) => outcome.add(ended),
                    Ok(Err(error)) => {
                        load.stop.store(true, Ordering::Relaxed);
                        return Err(error).context("the client cannot go on");
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return Ok(ended_by),
                }
                bar.set_position(load.over.load(Ordering::Relaxed));
                if let Some(signal) = signals.pending().next() {
                    ended_by = Some(signal);
                    load.stop.store(true, Ordering::Relaxed);
                }
            }
        })
    }
}

/// Returns the number of processors that the threads may run on.
fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// The processors that the two sides of a comparison run on.
struct Halves {
    of_client: CpuSet,
    of_workers: CpuSet,
}

impl Halves {
    /// Both sides have all processors if there is only one.
    fn of(all: &CpuSet) -> Self {
        let (mut of_client, mut of_workers) = (*all, *all);
        let half = all.count() as usize / 2;
        if half > 0 {
            let numbers = (0..CpuSet::MAX_CPU).filter(|&number| all.is_set(number));
            for (place, number) in numbers.enumerate() {
                let side = if place < half {
                    &mut of_workers
                } else {
                    &mut of_client
                };
                side.unset(number);
            }
        }
        Halves {
            of_client,
            of_workers,
        }
    }
}

/// Returns the processors that the process may run on; none if there are more than the kernel tells of.
pub(super) fn allowed_processors() -> CpuSet {
    sched_getaffinity(None).unwrap_or_default()
}

/// Binds the calling thread to these processors. If the kernel refuses, it runs on all, and the comparison is less
/// exact.
pub(super) fn run_on(processors: &CpuSet) {
    let _ = sched_setaffinity(None, processors);
}

/// The bar goes to standard error, and only if that is a terminal.
fn progress_bar(requests: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:16} {wide_bar} {pos}/{len}, {eta} to go")
        .expect("the template is well-formed");
    ProgressBar::new(requests).with_style(style)
}

#[cfg(test)]
mod tests {
    use rustix::thread::CpuSet;

    use super::Halves;

    fn numbers(of: &CpuSet) -> Vec<usize> {
        (0..CpuSet::MAX_CPU).filter(|&cpu| of.is_set(cpu)).collect()
    }

    #[test]
    fn client_and_workers_share_no_processor_unless_there_is_only_one() {
        let halves = |all: &[usize]| {
            let mut set = CpuSet::new();
            all.iter().for_each(|&cpu| set.set(cpu));
            let halves = Halves::of(&set);
            (numbers(&halves.of_client), numbers(&halves.of_workers))
        };
        assert_eq!(halves(&[2, 5, 7]), (vec![2], vec![5, 7]));
        assert_eq!(halves(&[0, 1]), (vec![0], vec![1]));
        assert_eq!(halves(&[3]), (vec![3], vec![3]));
        assert_eq!(halves(&[]), (vec![], vec![]));
    }
}
