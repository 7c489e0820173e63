//! The comparison: the same load to one server after the other.
//!
//! All servers stand from the beginning; those that are not loaded sleep. The load comes in rounds,
//! each way once per round and in another order each time, so that a machine that grows slower or
//! faster meanwhile favours none.

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
/// How often the progress is shown, and signals are looked for.
const TICK: Duration = Duration::from_millis(50);

/// What to compare, and with how much.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) ways: Vec<Way>,
    pub(super) workers: usize,
    pub(super) connections: usize,
    pub(super) requests: u64,
}

/// A way, its server, and what has come of it so far.
struct Contender {
    way: Way,
    server: Server,
    took: Duration,
    outcome: Outcome,
}

impl Comparison {
    /// How many client threads there are: half the processors, the other half is the workers'.
    fn clients(&self) -> usize {
        (processors() / 2).clamp(1, self.connections)
    }

    /// How many descriptors the client needs.
    pub(super) fn client_descriptors(&self) -> usize {
        self.clients() + self.connections
    }

    /// Runs it to its end, or until a signal comes.
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

    /// Sends one load and adds what came of it to `outcome`. Says which signal ended it, if any.
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
                    // Nobody listens any more if another client failed.
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

/// How many processors the threads may run on.
fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Shown on standard error, and only if that is a terminal.
fn progress_bar(requests: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:16} {wide_bar} {pos}/{len}, {eta} to go")
        .expect("the template is well-formed");
    ProgressBar::new(requests).with_style(style)
}
