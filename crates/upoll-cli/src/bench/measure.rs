//! Two or more sides of a comparison, measured in one run. Short batches of all sides alternate, so
//! that a slower phase of the machine affects all of them.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::interrupt;

/// Runs the operation the given number of times.
pub(super) type Side = Box<dyn FnMut(u64)>;

/// Returns a side that repeats `operation`.
pub(super) fn side(mut operation: impl FnMut() + 'static) -> Side {
    Box::new(move |times| {
        for _ in 0..times {
            operation();
        }
    })
}

/// The amount to measure.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Effort {
    /// The number of batches of each side.
    pub(super) batches: usize,
    /// The intended duration of a batch.
    pub(super) batch_microseconds: u64,
}

/// The batches of one side.
#[derive(Clone, Serialize)]
pub(super) struct Series {
    pub(super) operations_per_batch: u64,
    /// Nanoseconds per operation, one figure per batch.
    pub(super) nanoseconds: Vec<f64>,
}

impl Series {
    pub(super) fn spread(&self) -> Spread {
        Spread::of(self.nanoseconds.clone())
    }

    /// Returns how many times faster `other` is, batch by batch.
    pub(super) fn ratio_to(&self, other: &Series) -> Spread {
        let ratios = self.nanoseconds.iter().zip(&other.nanoseconds);
        Spread::of(ratios.map(|(mine, theirs)| mine / theirs).collect())
    }
}

/// Measures all sides, batch by batch. Every other round runs backwards, so that no side always
/// comes first. Ends after any round if Ctrl-C was pressed.
pub(super) fn interleave(sides: &mut [Side], effort: Effort) -> Vec<Series> {
    let mut series: Vec<Series> = sides
        .iter_mut()
        .map(|side| Series {
            operations_per_batch: calibrate(side, Duration::from_micros(effort.batch_microseconds)),
            nanoseconds: Vec::with_capacity(effort.batches),
        })
        .collect();
    for round in 0..effort.batches {
        for position in 0..sides.len() {
            let which = if round % 2 == 0 {
                position
            } else {
                sides.len() - 1 - position
            };
            let times = series[which].operations_per_batch;
            let took = clocked(&mut sides[which], times);
            series[which]
                .nanoseconds
                .push(took.as_nanos() as f64 / times as f64);
        }
        if interrupt::is_pending() {
            break;
        }
    }
    series
}

fn clocked(side: &mut Side, times: u64) -> Duration {
    let begun = Instant::now();
    side(times);
    begun.elapsed()
}

/// Returns the number of operations that fill a batch. Also warms up.
fn calibrate(side: &mut Side, batch: Duration) -> u64 {
    /// The fastest of several counts is taken: a count is too low if another program ran meanwhile.
    const TRIES: usize = 5;
    let mut times = 1;
    loop {
        let tries = (0..TRIES).map(|_| clocked(side, times));
        let took = tries.min().unwrap_or_default();
        if took >= batch / 4 {
            let fitting = u128::from(times) * batch.as_nanos() / took.as_nanos();
            return u64::try_from(fitting).unwrap_or(u64::MAX).max(1);
        }
        times *= 2;
    }
}

/// The spread of a figure that was measured many times.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Spread {
    pub(super) p10: f64,
    pub(super) median: f64,
    pub(super) p90: f64,
    /// The 95 % confidence interval of the median, from order statistics.
    pub(super) median_low: f64,
    pub(super) median_high: f64,
}

/// The median is not trusted if the spread from the 10th to the 90th percentile is more than this
/// part of it.
pub(super) const TRUSTED_SPREAD: f64 = 0.3;

impl Spread {
    /// # Panics
    /// If there are no figures.
    pub(super) fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        let last = figures.len() - 1;
        let at = |rank: f64| figures[(rank.max(0.0) as usize).min(last)];
        let quantile = |part: f64| at((part * last as f64).round());
        let half = figures.len() as f64 / 2.0;
        let reach = 0.98 * (figures.len() as f64).sqrt();
        Spread {
            p10: quantile(0.1),
            median: quantile(0.5),
            p90: quantile(0.9),
            median_low: at((half - reach).floor()),
            median_high: at((half + reach).ceil()),
        }
    }

    pub(super) fn is_trusted(&self) -> bool {
        self.p90 - self.p10 <= TRUSTED_SPREAD * self.median
    }
}
