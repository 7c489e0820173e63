//! The results of a comparison, as a table for readers and as JSON for programs.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use libc::c_int;
use serde::Serialize;

use super::load::Outcome;
use super::ways::Way;
use super::worker::Counts;

/// All results of a comparison.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) workers: usize,
    pub(super) connections: usize,
    /// The number of requests to send, for each way.
    pub(super) requests: u64,
    /// The number of processors that the threads may run on.
    pub(super) processors: usize,
    /// True if a signal ended the comparison before all requests were sent.
    pub(super) interrupted: bool,
    /// The signal that ended the comparison.
    #[serde(skip)]
    pub(super) ended_by: Option<c_int>,
    pub(super) ways: Vec<Row>,
}

/// The results of one way. Quotients are missing if no request was answered.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    way: Way,
    answered: u64,
    failed: u64,
    first_failure: Option<String>,
    seconds: f64,
    requests_per_second: Option<f64>,
    latency_us: Option<Latency>,
    /// The time for which the client was ready to run, and others had its processor.
    client_preempted_ms: f64,
    wakeups_per_request: Option<f64>,
    /// The number of wakeups in which a worker found nothing to do.
    empty_wakeups: u64,
    context_switches_per_request: Switches,
    requests_per_worker: Vec<u64>,
    fairness: Option<f64>,
}

/// Percentiles of the latencies: medians of the rounds.
#[derive(Debug, Serialize)]
struct Latency {
    p50: f64,
    p99: f64,
    #[serde(rename = "p99.9")]
    p99_9: f64,
    /// The 99th percentile of the round in which it was the greatest.
    slowest_p99: f64,
}

impl Latency {
    /// Returns `None` if no request was answered.
    fn of(rounds: &[Outcome]) -> Option<Self> {
        let percentile = |quantile| {
            let answered = rounds.iter().filter(|round| !round.latency.is_empty());
            let us = answered.map(|round| round.latency.value_at_quantile(quantile) as f64 / 1e3);
            let mut us: Vec<f64> = us.collect();
            us.sort_by(f64::total_cmp);
            us
        };
        let p99 = percentile(0.99);
        Some(Latency {
            p50: median(&percentile(0.5))?,
            p99: median(&p99)?,
            p99_9: median(&percentile(0.999))?,
            slowest_p99: *p99.last()?,
        })
    }
}

/// Returns the median of sorted values.
fn median(of: &[f64]) -> Option<f64> {
    let upper = *of.get(of.len() / 2)?;
    Some(if of.len() % 2 == 1 {
        upper
    } else {
        f64::midpoint(of[of.len() / 2 - 1], upper)
    })
}

/// The context switches of the workers.
#[derive(Debug, Serialize)]
struct Switches {
    voluntary: Option<f64>,
    involuntary: Option<f64>,
}

impl Row {
    pub(super) fn new(way: Way, took: Duration, rounds: Vec<Outcome>, workers: &[Counts]) -> Self {
        let latency_us = Latency::of(&rounds);
        let mut outcome = Outcome::new();
        rounds.into_iter().for_each(|round| outcome.add(round));
        let shares: Vec<u64> = workers.iter().map(|worker| worker.requests).collect();
        let requests: u64 = shares.iter().sum();
        let per_request = |count: fn(&Counts) -> u64| {
            quotient(
                workers.iter().map(count).sum::<u64>() as f64,
                requests as f64,
            )
        };
        Row {
            way,
            answered: outcome.answered,
            failed: outcome.failed,
            seconds: took.as_secs_f64(),
            requests_per_second: quotient(outcome.answered as f64, took.as_secs_f64()),
            latency_us,
            client_preempted_ms: outcome.preempted.as_secs_f64() * 1e3,
            wakeups_per_request: per_request(|worker| worker.wakeups),
            empty_wakeups: workers.iter().map(|worker| worker.empty_wakeups).sum(),
            context_switches_per_request: Switches {
                voluntary: per_request(|worker| worker.voluntary_switches),
                involuntary: per_request(|worker| worker.involuntary_switches),
            },
            fairness: fairness(&shares),
            requests_per_worker: shares,
            first_failure: outcome.first_failure,
        }
    }
}

fn quotient(of: f64, by: f64) -> Option<f64> {
    (by > 0.0).then(|| of / by)
}

/// Jain's fairness index: 1 if all shares are equal, 1/n if one of n got all.
fn fairness(shares: &[u64]) -> Option<f64> {
    let sum: f64 = shares.iter().map(|&share| share as f64).sum();
    let squares: f64 = shares.iter().map(|&share| (share as f64).powi(2)).sum();
    quotient(sum * sum, shares.len() as f64 * squares)
}

/// Formats the smallest and the largest share.
pub(super) fn span(shares: impl Iterator<Item = u64> + Clone) -> String {
    let least = shares.clone().min().unwrap_or_default();
    format!("{least}..{}", shares.max().unwrap_or_default())
}

impl Report {
    /// Returns the failures of all ways, as messages.
    pub(super) fn failures(&self) -> impl Iterator<Item = String> + '_ {
        self.ways.iter().filter(|row| row.failed > 0).map(|row| {
            let first = row.first_failure.as_deref().unwrap_or_default();
            let (failed, title) = (row.failed, row.way.title());
            format!("{title}: {failed} requests failed; the first: {first}")
        })
    }

    /// Makes a table with a column for each way.
    pub(super) fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        let titles = self.ways.iter().map(|row| row.way.title());
        table.set_header(std::iter::once("").chain(titles));
        for (name, show) in LINES {
            let cells = self.ways.iter().map(|row| show(row).unwrap_or("-".into()));
            table.add_row(std::iter::once((*name).to_string()).chain(cells));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}

type Show = fn(&Row) -> Option<String>;

/// The lines of the table.
const LINES: &[(&str, Show)] = &[
    ("requests answered", |row| Some(row.answered.to_string())),
    ("requests failed", |row| Some(row.failed.to_string())),
    ("requests per second", |row| {
        row.requests_per_second.map(|rate| format!("{rate:.0}"))
    }),
    ("latency p50, us", |row| {
        row.latency_us.as_ref().map(|us| format!("{:.0}", us.p50))
    }),
    ("latency p99, us", |row| {
        row.latency_us.as_ref().map(|us| format!("{:.0}", us.p99))
    }),
    ("latency p99.9, us", |row| {
        row.latency_us.as_ref().map(|us| format!("{:.0}", us.p99_9))
    }),
    ("  p99 of the slowest round", |row| {
        let latency = row.latency_us.as_ref();
        latency.map(|us| format!("{:.0}", us.slowest_p99))
    }),
    ("client preempted, ms", |row| {
        Some(format!("{:.0}", row.client_preempted_ms))
    }),
    ("wakeups per request", |row| {
        hundredths(row.wakeups_per_request)
    }),
    ("wakeups that found nothing", |row| {
        Some(row.empty_wakeups.to_string())
    }),
    ("context switches per request", |row| {
        let switches = &row.context_switches_per_request;
        hundredths(Some(switches.voluntary? + switches.involuntary?))
    }),
    ("  voluntary", |row| {
        hundredths(row.context_switches_per_request.voluntary)
    }),
    ("  involuntary", |row| {
        hundredths(row.context_switches_per_request.involuntary)
    }),
    ("requests per worker", |row| {
        Some(span(row.requests_per_worker.iter().copied()))
    }),
    ("Jain's fairness index", |row| {
        row.fairness.map(|index| format!("{index:.4}"))
    }),
];

fn hundredths(quotient: Option<f64>) -> Option<String> {
    quotient.map(|value| format!("{value:.2}"))
}

#[cfg(test)]
mod tests {
    use super::{Latency, fairness};
    use crate::demo::load::Outcome;

    #[test]
    fn latencies_are_medians_of_the_rounds() {
        let round = |us: &[u64]| {
            let mut outcome = Outcome::new();
            for us in us {
                outcome.latency.record(us * 1000).expect("any value");
            }
            outcome
        };
        assert!(Latency::of(&[]).is_none() && Latency::of(&[round(&[])]).is_none());
        let near = |is: f64, expected: f64| (is - expected).abs() < expected / 500.0;
        let rounds = [
            round(&[5, 90]),
            round(&[7, 10]),
            round(&[]),
            round(&[6, 20]),
        ];
        let odd = Latency::of(&rounds).expect("requests were answered");
        assert!(near(odd.p50, 6.0) && near(odd.p99, 20.0) && near(odd.slowest_p99, 90.0));
        let even = Latency::of(&rounds[..2]).expect("requests were answered");
        assert!(near(even.p50, 6.0) && near(even.p99, 50.0) && near(even.p99_9, 50.0));
    }

    #[test]
    fn fairness_is_one_if_all_got_the_same_and_a_share_if_one_got_all() {
        assert_eq!(fairness(&[7, 7, 7, 7]), Some(1.0));
        assert_eq!(fairness(&[0, 9, 0, 0]), Some(0.25));
        assert_eq!(fairness(&[1, 2, 3]), Some(36.0 / 42.0));
        assert_eq!(fairness(&[0, 0]), None);
    }
}
