//! The comparison: the same load to one server after the other.
//!
//! All servers run from the beginning; those without load sleep. The load comes in rounds. Each
//! round loads each way once, in another order each time, so that a machine that becomes slower or
//! faster during the run favours no way.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use libc::c_int;
use signal_hook::iterator::Signals;

use super::load::{Client, Load, Outcome};
use super::report::{Report, Row};
use super::server::Server;
use super::ways::Way;

/// A multiple of the number of ways, so that each has each place in the order equally often.
const ROUNDS: u64 = 6;
/// How often the progress is shown, and signals are checked.
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
    outcome: Outcome,
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
        for &way in &self.ways {
            let address = SocketAddr::from(([127, 0, 0, 1], 0));
            let server = Server::start(way, address, self.workers)?;
            contenders.push(Contender {
                way,
                server,
                took: Duration::ZERO,
                outcome: Outcome::new(),
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
                ended_by = self.send(&load, &mut contender.outcome, signals, &bar)?;
                contender.took += begun.elapsed();
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
                contender.outcome,
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

/// The bar goes to standard error, and only if that is a terminal.
fn progress_bar(requests: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:16} {wide_bar} {pos}/{len}, {eta} to go")
        .expect("the template is well-formed");
    ProgressBar::new(requests).with_style(style)
}
