//! Third-party servers whose workers share a listening socket: unmodified, with `EPOLLEXCLUSIVE`
//! alone, and with rotating workers.
//!
//! Each request has a connection of its own. The servers and their clients share the machine, so a
//! figure is meaningful only relative to the same figure of the other ways.

mod load;
mod processes;
mod servers;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use upoll_fair_state::Counts;

use self::load::{Outcome, Pace};
use self::processes::Used;
use self::servers::{KINDS, Kind, Server, Shares, Way};
use super::machine;
use super::measure::Spread;
use crate::interrupt;

pub(super) const NAME: &str = "fair";

/// The amount to measure.
#[derive(Clone, Copy)]
pub(super) struct Effort {
    pub(super) rounds: usize,
    requests: u64,
    workers: &'static [usize],
}

impl Effort {
    pub(super) const FULL: Effort = Effort {
        rounds: 5,
        requests: 2000,
        workers: &[8, 32],
    };
    pub(super) const QUICK: Effort = Effort {
        rounds: 1,
        requests: 300,
        workers: &[8],
    };
}

/// The number of requests that each worker of a new server answers before the first load. Puma has collected all garbage
/// for the first time by then. Node has not compiled its functions, which takes 2 000 requests.
pub(super) const WARM_UP: u64 = 300;

/// The conditions of a run, which are the same for all servers.
pub(super) struct Conditions {
    /// The number of requests that each worker of a new server is to answer before the first load.
    pub(super) warm_up: u64,
    pub(super) processors: Processors,
}

/// The processors of the servers and of their clients. They are the same ones, unless the two are kept apart.
pub(super) struct Processors {
    servers: Vec<usize>,
    clients: Vec<usize>,
}

impl Processors {
    /// Makes processors of `cpus`: all for servers and clients alike, or with `apart` a half for each.
    ///
    /// # Errors
    /// The two are to be kept apart, and there is but one processor.
    pub(super) fn new(cpus: &[usize], apart: bool) -> Result<Self> {
        let (servers, clients) = match apart {
            false => (cpus, cpus),
            true => cpus.split_at(cpus.len() / 2),
        };
        ensure!(
            !servers.is_empty(),
            "--apart needs two processors, and this process may use one"
        );
        Ok(Processors {
            servers: servers.to_vec(),
            clients: clients.to_vec(),
        })
    }

    fn are_apart(&self) -> bool {
        self.servers != self.clients
    }
}

/// The load as a part of the server's capacity.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    Light,
    Medium,
    Full,
}

const LOADS: [Load; 3] = [Load::Light, Load::Medium, Load::Full];

impl Load {
    fn name(self) -> &'static str {
        match self {
            Load::Light => "light",
            Load::Medium => "medium",
            Load::Full => "full",
        }
    }

    /// Returns the pace for a server that handles at most `most` requests a second.
    fn pace(self, most: f64) -> Pace {
        match self {
            Load::Light => Pace::PerSecond(most / 10.0),
            Load::Medium => Pace::PerSecond(most / 2.0),
            Load::Full => Pace::Clients(32),
        }
    }
}

impl Way<'_> {
    fn name(self) -> String {
        match self {
            Way::Stock | Way::Observed => "stock".to_owned(),
            Way::Exclusive => "exclusive".to_owned(),
            Way::Fair(policy) => policy.to_owned(),
        }
    }
}

/// One run of a load.
#[derive(Clone, Serialize)]
struct Sample {
    requests_per_second: f64,
    /// The times within which 50 %, 99 % and 99.9 % of the requests were answered.
    microseconds: [u64; 3],
    cpu_microseconds: f64,
    switches: f64,
    voluntary_switches: f64,
    /// Jain's index of the workers' shares.
    fairness: f64,
    failures: u64,
}

/// The figures of one way, load and number of workers of a server.
#[derive(Serialize)]
pub(super) struct Served {
    pub(super) server: &'static str,
    pub(super) waits_by: &'static str,
    pub(super) workers: usize,
    pub(super) load: &'static str,
    pub(super) way: String,
    pub(super) requests: u64,
    /// The fewest requests that a worker had answered before the first load, among the workers of all rounds.
    pub(super) warmed_by: u64,
    pub(super) requests_per_second: Spread,
    /// Response time: 50th, 99th and 99.9th percentile.
    pub(super) microseconds: [Spread; 3],
    /// The processor time of all processes of the server, per request.
    pub(super) cpu_microseconds: Spread,
    pub(super) switches: Spread,
    /// The switches at which a thread began to wait. At the others another thread, mostly of the clients, took its
    /// processor.
    pub(super) voluntary_switches: Spread,
    pub(super) fairness: Spread,
    pub(super) failures: u64,
    /// Waits that ended for a connection that another worker took, per request. The library counts
    /// them in a separate run. `None` if the library has counted no wakeup.
    pub(super) empty_wakes: Option<f64>,
    /// The targets that this way missed.
    pub(super) missed: Option<Vec<&'static str>>,
    samples: Vec<Sample>,
}

/// A server that is left out.
#[derive(Serialize)]
pub(super) struct LeftOut {
    pub(super) server: &'static str,
    pub(super) why: String,
}

/// All results of the servers.
#[derive(Default, Serialize)]
pub(super) struct Fair {
    pub(super) rounds: usize,
    /// The number of requests that each worker was to answer before the first load.
    pub(super) warm_up: u64,
    /// The servers had other processors than the clients.
    pub(super) apart: bool,
    pub(super) served: Vec<Served>,
    pub(super) left_out: Vec<LeftOut>,
}

/// Measures the named servers, or all, with each of the policies.
pub(super) fn measure(
    effort: Effort,
    conditions: &Conditions,
    names: &[String],
    policies: &[String],
) -> Result<Fair> {
    let mut fair = Fair {
        rounds: effort.rounds,
        warm_up: conditions.warm_up,
        apart: conditions.processors.are_apart(),
        ..Fair::default()
    };
    for kind in &KINDS {
        if !names.is_empty() && !names.iter().any(|name| name == kind.name) {
            continue;
        }
        let measured = match kind.obstacle() {
            Some(why) => Err(why),
            None => effort
                .workers
                .iter()
                .try_fold(Vec::new(), |mut served, &workers| {
                    served.extend(of_server(kind, workers, effort, conditions, policies)?);
                    Ok(served)
                })
                .map_err(|error: anyhow::Error| format!("{error:#}")),
        };
        match measured {
            Ok(served) => fair.served.extend(served),
            Err(why) => fair.left_out.push(LeftOut {
                server: kind.name,
                why,
            }),
        }
    }
    Ok(fair)
}

/// Returns the names of the servers, for the command line.
pub(super) fn servers() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|kind| kind.name)
}

fn of_server(
    kind: &Kind,
    workers: usize,
    effort: Effort,
    conditions: &Conditions,
    policies: &[String],
) -> Result<Vec<Served>> {
    interrupt::check()?;
    let ways: Vec<Way<'_>> = [Way::Stock, Way::Exclusive]
        .into_iter()
        .chain(policies.iter().map(|policy| Way::Fair(policy)))
        .collect();
    let start = |way| {
        // A process has the processors of the thread that starts it, and so have a thread's own threads.
        let Processors { servers, clients } = &conditions.processors;
        machine::pin(servers).context("binding to the servers' processors")?;
        let server = kind.start(workers, way);
        machine::pin(clients).context("binding to the clients' processors")?;
        let server = server?;
        let warmed_by = warm(kind, &server, workers, conditions.warm_up);
        anyhow::Ok((server, warmed_by))
    };
    let most = {
        let (server, _) = start(Way::Stock)?;
        let pace = Load::Full.pace(0.0);
        load::send(server.address(), effort.requests, pace);
        let outcome = load::send(server.address(), effort.requests, pace);
        effort.requests as f64 / outcome.took.as_secs_f64()
    };
    let mut samples = vec![LOADS.map(|_| Vec::with_capacity(effort.rounds)); ways.len()];
    let mut warmed_by = vec![u64::MAX; ways.len()];
    for round in 0..effort.rounds {
        for turn in 0..ways.len() {
            // The order of the ways changes from round to round.
            interrupt::check()?;
            let way = (round + turn) % ways.len();
            let (server, answered) = start(ways[way])?;
            warmed_by[way] = warmed_by[way].min(answered);
            for (load, samples) in LOADS.iter().zip(&mut samples[way]) {
                let requests = effort.requests;
                samples.push(sample(kind, &server, requests, load.pace(most), workers));
            }
        }
    }
    let mut empty_wakes = vec![LOADS.map(|_| None); ways.len()];
    for (&way, empty_wakes) in ways.iter().zip(&mut empty_wakes) {
        interrupt::check()?;
        let counted = match way {
            Way::Stock => Way::Observed,
            other => other,
        };
        let (server, _) = start(counted)?;
        for (load, empty_wakes) in LOADS.iter().zip(empty_wakes) {
            *empty_wakes = count_empty_wakes(&server, effort.requests, load.pace(most));
        }
    }
    let mut served = Vec::new();
    for (load, name) in LOADS.iter().enumerate() {
        let stock = &samples[0][load];
        for (way, &which) in ways.iter().enumerate() {
            let mut row = Served::new(
                kind,
                workers,
                which,
                *name,
                effort.requests,
                &samples[way][load],
            );
            row.warmed_by = warmed_by[way];
            row.empty_wakes = empty_wakes[way][load];
            if matches!(which, Way::Fair(_)) && !kind.rotates {
                let stock = Served::new(kind, workers, Way::Stock, *name, effort.requests, stock);
                row.missed = Some(missed(&row, &stock, *name));
            }
            served.push(row);
        }
    }
    Ok(served)
}

fn sample(kind: &Kind, server: &Server, requests: u64, pace: Pace, workers: usize) -> Sample {
    let before = server.usage();
    let outcome = load::send(server.address(), requests, pace);
    let used = server.usage().since(&before);
    let per_request = |figure: u64| figure as f64 / requests as f64;
    Sample {
        requests_per_second: requests as f64 / outcome.took.as_secs_f64(),
        microseconds: [0.5, 0.99, 0.999].map(|part| outcome.latency.value_at_quantile(part)),
        cpu_microseconds: per_request(used.nanoseconds) / 1000.0,
        switches: per_request(used.voluntary_switches + used.involuntary_switches),
        voluntary_switches: per_request(used.voluntary_switches),
        fairness: upoll_fair_state::fairness(shares(kind, &outcome, &used, workers).into_iter()),
        failures: outcome.failures,
    }
}

/// Returns the shares of the workers: answers, or bytes if those are counted.
fn shares(kind: &Kind, outcome: &Outcome, used: &Used, workers: usize) -> Vec<u64> {
    match kind.shares {
        Shares::Answers => of_workers(outcome.answers.values(), workers),
        Shares::Written => of_workers(used.written.values(), workers),
    }
}

/// Returns the shares of `workers` workers. Shares of zero may be left out of `shares`.
fn of_workers<'a>(shares: impl Iterator<Item = &'a u64>, workers: usize) -> Vec<u64> {
    let mut shares: Vec<_> = shares.copied().filter(|&share| share > 0).collect();
    if shares.len() < workers {
        shares.resize(workers, 0);
    }
    shares
}

/// Sends requests at full load until each worker has answered `least`. Returns the fewest answers of a worker.
fn warm(kind: &Kind, server: &Server, workers: usize, least: u64) -> u64 {
    let before = server.usage();
    let mut outcome = Outcome::new();
    send_until(least, workers, |requests| {
        outcome.add(&load::send(
            server.address(),
            requests,
            Load::Full.pace(0.0),
        ));
        let used = server.usage().since(&before);
        shares(kind, &outcome, &used, workers)
    })
}

/// Calls `send` with a part of the requests until each worker has answered `least`, the limit is reached or none is answered.
/// `send` returns the shares of the workers since the first part. Returns the fewest answers of a worker.
fn send_until(least: u64, workers: usize, mut send: impl FnMut(u64) -> Vec<u64>) -> u64 {
    /// The most requests, as a multiple of those that equal shares take.
    const LIMIT: u64 = 8;
    const PARTS: u64 = 4;
    let part = (least * workers as u64).div_ceil(PARTS);
    let (mut sent, mut fewest) = (0, 0);
    while fewest < least && sent < LIMIT * PARTS * part && !interrupt::is_pending() {
        let shares = send(part);
        sent += part;
        let all: u64 = shares.iter().sum();
        if all == 0 {
            break;
        }
        fewest = shares.iter().min().copied().unwrap_or(0) * sent / all;
    }
    fewest
}

/// Returns `None` if the library has seen no wakeup.
fn count_empty_wakes(server: &Server, requests: u64, pace: Pace) -> Option<f64> {
    let sum = |counter: fn(&Counts) -> u64| server.counts().iter().map(counter).sum::<u64>();
    let (wakeups, empty) = (sum(|worker| worker.wakeups), sum(|worker| worker.empty));
    load::send(server.address(), requests, pace);
    (sum(|worker| worker.wakeups) > wakeups)
        .then(|| (sum(|worker| worker.empty) - empty) as f64 / requests as f64)
}

/// Returns the targets that a server with rotating workers missed.
fn missed(fair: &Served, stock: &Served, load: Load) -> Vec<&'static str> {
    let needed = if fair.workers > 8 { 0.97 } else { 0.99 };
    let is_above = |figure: Spread, other: Spread| {
        figure.median > other.median && figure.median > other.p90 && figure.p10 > other.median
    };
    let checks = [
        (
            "fairness",
            load != Load::Full && fair.fairness.median < needed,
        ),
        (
            "switches",
            load == Load::Light && fair.switches.median * 3.0 > stock.switches.median,
        ),
        (
            "CPU time",
            load != Load::Full && is_above(fair.cpu_microseconds, stock.cpu_microseconds),
        ),
        (
            "p99",
            load != Load::Full && is_above(fair.microseconds[1], stock.microseconds[1]),
        ),
        (
            "requests a second",
            load == Load::Full && is_above(stock.requests_per_second, fair.requests_per_second),
        ),
        ("failures", fair.failures > 0),
    ];
    checks
        .into_iter()
        .filter_map(|(what, is_missed)| is_missed.then_some(what))
        .collect()
}

impl Served {
    fn new(
        kind: &Kind,
        workers: usize,
        way: Way<'_>,
        load: Load,
        requests: u64,
        samples: &[Sample],
    ) -> Self {
        let spread =
            |figure: &dyn Fn(&Sample) -> f64| Spread::of(samples.iter().map(figure).collect());
        Served {
            server: kind.name,
            waits_by: kind.waits_by,
            workers,
            load: load.name(),
            way: way.name(),
            requests,
            warmed_by: 0,
            requests_per_second: spread(&|sample| sample.requests_per_second),
            microseconds: [0, 1, 2]
                .map(|which| spread(&|sample| sample.microseconds[which] as f64)),
            cpu_microseconds: spread(&|sample| sample.cpu_microseconds),
            switches: spread(&|sample| sample.switches),
            voluntary_switches: spread(&|sample| sample.voluntary_switches),
            fairness: spread(&|sample| sample.fairness),
            failures: samples.iter().map(|sample| sample.failures).sum(),
            empty_wakes: None,
            missed: None,
            samples: samples.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_clients_share_the_processors_unless_they_are_kept_apart() {
        let of = |cpus: &[usize], apart| {
            let found = Processors::new(cpus, apart).ok()?;
            Some((found.servers, found.clients))
        };
        assert_eq!(of(&[0, 2, 3], false), Some((vec![0, 2, 3], vec![0, 2, 3])));
        assert_eq!(of(&[0, 2, 3], true), Some((vec![0], vec![2, 3])));
        assert_eq!(of(&[1], false), Some((vec![1], vec![1])));
        assert_eq!(of(&[1], true), None);
    }

    #[test]
    fn workers_that_answer_nothing_count() {
        assert_eq!(of_workers([4, 4].iter(), 4), [4, 4, 0, 0]);
        assert_eq!(of_workers([4, 0, 4, 0, 0].iter(), 2), [4, 4]);
    }

    #[test]
    fn requests_are_sent_until_the_slowest_worker_is_warm() {
        // The second worker gets a sixth.
        let mut sent = 0;
        let warmed_by = send_until(100, 2, |requests| {
            sent += requests;
            vec![sent * 5 / 6, sent / 6]
        });
        assert!(warmed_by >= 100 && sent == 600, "{warmed_by} of {sent}");
    }

    #[test]
    fn a_warm_up_counts_requests_if_the_shares_are_bytes() {
        let mut sent = 0;
        let warmed_by = send_until(100, 2, |requests| {
            sent += requests;
            vec![sent / 2 * 140, sent / 2 * 140]
        });
        assert_eq!((warmed_by, sent), (100, 200));
    }

    #[test]
    fn a_warm_up_ends_though_a_worker_answers_nothing() {
        let mut sent = 0;
        let warmed_by = send_until(100, 2, |requests| {
            sent += requests;
            vec![sent, 0]
        });
        assert_eq!((warmed_by, sent), (0, 1600));
    }

    #[test]
    fn a_warm_up_of_a_server_that_hangs_has_one_part() {
        let mut parts = 0;
        let warmed_by = send_until(100, 2, |_| {
            parts += 1;
            vec![0, 0]
        });
        assert_eq!((warmed_by, parts), (0, 1));
    }

    #[test]
    fn a_warm_up_by_no_request_sends_none() {
        let send = |_| -> Vec<u64> { panic!("nothing is to be sent") };
        assert_eq!(send_until(0, 2, send), 0);
    }
}
