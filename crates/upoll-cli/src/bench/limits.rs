//! How late a wait with a time limit ends.

use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;
use serde::Serialize;
use upoll::{Epoll, Event};

use super::kernel::{self, Fd};
use super::measure::{Effort, Series, Spread};

pub(super) const NAME: &str = "limit";
pub(super) const NAMES: [&str; 1] = [NAME];

const LIMIT: Duration = Duration::from_micros(50);
/// What the ratio of latenesses must reach: upoll may be later by what nobody notices.
const TARGET: f64 = 0.99;
/// Waits of each side in a round.
const WAITS: u64 = 10;

/// By how much one side missed the limit.
#[derive(Serialize)]
pub(super) struct Lateness {
    pub(super) p50_nanoseconds: u64,
    pub(super) p99_nanoseconds: u64,
    pub(super) worst_nanoseconds: u64,
    /// Waits that ended before their time.
    pub(super) early: u64,
    /// The mean of each round.
    rounds: Series,
}

/// Both sides' lateness.
#[derive(Serialize)]
pub(super) struct Limited {
    pub(super) name: &'static str,
    pub(super) limit_nanoseconds: u128,
    pub(super) epoll_pwait2: Lateness,
    pub(super) upoll: Lateness,
    /// How many times later epoll_pwait2 is, round by round.
    pub(super) ratio: Spread,
    pub(super) target: f64,
    /// Never early, and the ratio reaches its target.
    pub(super) reached: bool,
    pub(super) trusted: bool,
}

struct Recorder {
    histogram: Histogram<u64>,
    early: u64,
    rounds: Vec<f64>,
}

impl Recorder {
    fn new() -> Result<Self> {
        Ok(Recorder {
            histogram: Histogram::new(3)?,
            early: 0,
            rounds: Vec::new(),
        })
    }

    fn round(&mut self, mut wait: impl FnMut() -> Result<()>) -> Result<()> {
        let mut sum = 0;
        for _ in 0..WAITS {
            let begun = Instant::now();
            wait()?;
            match begun.elapsed().checked_sub(LIMIT) {
                None => self.early += 1,
                Some(late) => {
                    let late = u64::try_from(late.as_nanos())?;
                    self.histogram.record(late)?;
                    sum += late;
                }
            }
        }
        self.rounds.push(sum as f64 / WAITS as f64);
        Ok(())
    }

    fn finish(self) -> Lateness {
        Lateness {
            p50_nanoseconds: self.histogram.value_at_quantile(0.5),
            p99_nanoseconds: self.histogram.value_at_quantile(0.99),
            worst_nanoseconds: self.histogram.max(),
            early: self.early,
            rounds: Series {
                operations_per_batch: WAITS,
                nanoseconds: self.rounds,
            },
        }
    }
}

/// Measures waits in sets that stay empty.
pub(super) fn measure(effort: Effort) -> Result<Limited> {
    let (theirs, ours) = (Fd::epoll()?, Epoll::new()?);
    let (mut their_record, mut our_record) = (Recorder::new()?, Recorder::new()?);
    for _ in 0..effort.batches {
        their_record.round(|| {
            theirs.wait_for(&mut [kernel::IDLE; 8], LIMIT)?;
            Ok(())
        })?;
        our_record.round(|| {
            ours.wait(&mut [Event::default(); 8], LIMIT)?;
            Ok(())
        })?;
    }
    let (epoll_pwait2, upoll) = (their_record.finish(), our_record.finish());
    let ratio = epoll_pwait2.rounds.ratio_to(&upoll.rounds);
    Ok(Limited {
        name: NAME,
        limit_nanoseconds: LIMIT.as_nanos(),
        ratio,
        target: TARGET,
        reached: upoll.early == 0 && ratio.median >= TARGET,
        trusted: ratio.is_trusted(),
        epoll_pwait2,
        upoll,
    })
}
