//! The lateness of waits with a time limit, in sets and lists of several sizes.

use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;
use serde::Serialize;
use upoll::{Clock, Epoll, Event, EventFd, Events, Timers};

use super::calls::idle;
use super::kernel::{self, Fd};
use super::measure::{Effort, Series, Spread};
use super::set::{Counter, Set, counters, watching};
use crate::interrupt;

pub(super) const NAME: &str = "timeout";

const LIMITS_MICROSECONDS: [u64; 5] = [10, 37, 50, 100, 1000];
/// The numbers of idle files.
const SIZES: [usize; 3] = [15, 85, 200];
/// The number of waits of each side in a round.
const WAITS: u64 = 2;

/// The limit whose lateness must not grow with the number of files, and must stay below `ppoll`'s.
const FLAT_LIMIT: u64 = 37;
/// The growth up to which a lateness counts as the same.
const FLAT: f64 = 1.1;
/// The limit at which upoll must be as punctual as `epoll_pwait2`.
const EQUAL_LIMIT: u64 = 50;
/// The ratio that counts as equally punctual.
const EQUAL: f64 = 0.99;

#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Ppoll,
    EpollWait,
    EpollPwait2,
    Objects,
    Descriptors,
    Timerfd,
    Timer,
}

const ALL: [By; 7] = [
    By::Ppoll,
    By::EpollPwait2,
    By::Objects,
    By::Descriptors,
    By::Timerfd,
    By::Timer,
    // The plots that leave it out have the same colours for the others.
    By::EpollWait,
];

impl By {
    fn name(self) -> &'static str {
        match self {
            By::Ppoll => "ppoll",
            By::EpollWait => "epoll_wait, whole ms",
            By::EpollPwait2 => "epoll_pwait2",
            By::Objects => "upoll pwait1, objects",
            By::Descriptors => "upoll pwait1, descriptors",
            By::Timerfd => "timerfd in epoll_wait",
            By::Timer => "upoll timer in wait",
        }
    }

    fn is_upoll(self) -> bool {
        matches!(self, By::Objects | By::Descriptors | By::Timer)
    }

    /// Returns a wait for `files` idle files that ends by its limit, or by a timer that is armed before it and read after
    /// it.
    fn waiter(self, files: usize, limit: Duration) -> Result<Wait> {
        let of_kernel = || watching::<Fd, Fd>(files, Events::IN, idle);
        let objects = || watching::<Epoll, EventFd>(files, Events::IN, idle);
        Ok(match self {
            By::Ppoll => {
                let descriptors: Vec<Fd> = counters(files)?;
                let mut list: Vec<_> = descriptors.iter().map(kernel::readable).collect();
                Box::new(move || {
                    let _open = &descriptors;
                    Ok(kernel::poll_for(&mut list, limit)?)
                })
            }
            By::EpollWait => {
                let milliseconds = i32::try_from(limit.as_micros().div_ceil(1000))?;
                in_set(of_kernel()?, move |set, reports| {
                    Ok(set.epoll_wait(reports, milliseconds)?)
                })
            }
            By::EpollPwait2 => in_set(of_kernel()?, move |set, reports| {
                Ok(set.epoll_pwait2(reports, limit)?)
            }),
            By::Timerfd => {
                let (files, timer) = (of_kernel()?, Fd::timer()?);
                files.0.add(&timer, Events::IN, 0)?;
                in_set(files, move |set, reports| {
                    timer.arm(limit)?;
                    let ready = set.wait(reports)?;
                    Ok(ready - usize::try_from(timer.read_count()?)?)
                })
            }
            By::Timer => {
                let (files, timer) = (objects()?, Timers::on(Clock::Monotonic)?.timer()?);
                files.0.add(&timer, Event::new(Events::IN, 0))?;
                in_set(files, move |set, reports| {
                    timer.arm(limit, Duration::ZERO);
                    let ready = set.wait(reports, None)?;
                    Ok(ready - usize::try_from(timer.try_read()?)?)
                })
            }
            By::Objects => in_set(objects()?, move |set, reports| {
                Ok(set.pwait1(reports, limit, None)?)
            }),
            By::Descriptors => in_set(
                watching::<Epoll, Fd>(files, Events::IN, idle)?,
                move |set, reports| Ok(set.pwait1(reports, limit, None)?),
            ),
        })
    }
}

/// A wait, which returns the number of reports.
type Wait = Box<dyn FnMut() -> Result<usize>>;

/// Returns a wait in a set. It keeps the files of the set open.
fn in_set<S: Set<C>, C: Counter>(
    (set, files): (S, Vec<C>),
    mut wait: impl FnMut(&S, &mut [S::Report]) -> Result<usize> + 'static,
) -> Wait {
    let mut reports = [S::ROOM; 8];
    Box::new(move || {
        let _open = &files;
        wait(&set, &mut reports)
    })
}

/// The lateness of the waits of one side.
#[derive(Serialize)]
pub(super) struct Late {
    pub(super) name: &'static str,
    pub(super) by: &'static str,
    pub(super) limit_microseconds: u64,
    pub(super) files: usize,
    pub(super) p50_nanoseconds: u64,
    pub(super) p99_nanoseconds: u64,
    pub(super) worst_nanoseconds: u64,
    /// Waits that ended early.
    pub(super) early: u64,
    /// The factor by which `ppoll` and `epoll_pwait2` end later, round by round.
    pub(super) ppoll_ratio: Spread,
    pub(super) pwait2_ratio: Spread,
    /// The lateness relative to that with the fewest files.
    pub(super) growth: Spread,
    pub(super) goal: Option<String>,
    pub(super) reached: Option<bool>,
    pub(super) trusted: bool,
    /// The lateness below which 0, 1, ... 100 % of the waits stayed.
    pub(super) percentiles_nanoseconds: Vec<u64>,
    /// The mean of each round.
    rounds: Series,
}

struct Side {
    by: By,
    limit: Duration,
    files: usize,
    wait: Wait,
    histogram: Histogram<u64>,
    early: u64,
    rounds: Series,
}

impl Side {
    fn new(by: By, limit: Duration, files: usize) -> Result<Self> {
        Ok(Side {
            by,
            limit,
            files,
            wait: by.waiter(files, limit)?,
            histogram: Histogram::new(3)?,
            early: 0,
            rounds: Series {
                operations_per_batch: WAITS,
                nanoseconds: Vec::new(),
            },
        })
    }

    fn round(&mut self) -> Result<()> {
        let mut sum = 0;
        for _ in 0..WAITS {
            let begun = Instant::now();
            let found = (self.wait)()?;
            let took = begun.elapsed();
            anyhow::ensure!(found == 0, "nothing is ready");
            match took.checked_sub(self.limit) {
                None => self.early += 1,
                Some(late) => {
                    let late = u64::try_from(late.as_nanos())?;
                    self.histogram.record(late)?;
                    sum += late;
                }
            }
        }
        let mean = sum as f64 / WAITS as f64;
        self.rounds.nanoseconds.push(mean);
        Ok(())
    }

    /// `sides` are all sides with the same limit.
    fn late(&self, sides: &[Side]) -> Option<Late> {
        let of = |by, files| {
            let side = sides
                .iter()
                .find(|side| (side.by, side.files) == (by, files));
            side.map(|side| &side.rounds)
        };
        let ppoll_ratio = of(By::Ppoll, self.files)?.ratio_to(&self.rounds);
        let pwait2_ratio = of(By::EpollPwait2, self.files)?.ratio_to(&self.rounds);
        let growth = self.rounds.ratio_to(of(self.by, SIZES[0])?);
        let limit_microseconds = u64::try_from(self.limit.as_micros()).ok()?;
        let (goal, reached) = match limit_microseconds {
            _ if !self.by.is_upoll() => (None, None),
            _ if self.by == By::Timer => (Some("none early".to_owned()), Some(self.early == 0)),
            FLAT_LIMIT => (
                Some(format!(
                    "at most {FLAT}x of {} files, below ppoll, none early",
                    SIZES[0]
                )),
                Some(growth.median <= FLAT && ppoll_ratio.median > 1.0 && self.early == 0),
            ),
            EQUAL_LIMIT => (
                Some(format!(
                    "epoll_pwait2 at least {EQUAL}x as late, none early"
                )),
                Some(pwait2_ratio.median >= EQUAL && self.early == 0),
            ),
            _ => (Some("none early".to_owned()), Some(self.early == 0)),
        };
        let percentiles = (0..=100).map(|part| f64::from(part) / 100.0);
        Some(Late {
            name: NAME,
            by: self.by.name(),
            limit_microseconds,
            files: self.files,
            p50_nanoseconds: self.histogram.value_at_quantile(0.5),
            p99_nanoseconds: self.histogram.value_at_quantile(0.99),
            worst_nanoseconds: self.histogram.max(),
            early: self.early,
            ppoll_ratio,
            pwait2_ratio,
            growth,
            goal,
            reached,
            trusted: [ppoll_ratio, pwait2_ratio, growth]
                .iter()
                .all(Spread::is_trusted),
            percentiles_nanoseconds: percentiles
                .map(|part| self.histogram.value_at_quantile(part))
                .collect(),
            rounds: self.rounds.clone(),
        })
    }
}

pub(super) fn measure(effort: Effort) -> Result<Vec<Late>> {
    let mut rows = Vec::new();
    for limit in LIMITS_MICROSECONDS.map(Duration::from_micros) {
        let mut sides = Vec::new();
        for files in SIZES {
            for by in ALL {
                sides.push(Side::new(by, limit, files)?);
            }
        }
        for _ in 0..effort.batches {
            for side in &mut sides {
                side.round()?;
            }
            if interrupt::is_pending() {
                break;
            }
        }
        rows.extend(sides.iter().filter_map(|side| side.late(&sides)));
    }
    Ok(rows)
}
