//! The effect of a maximum on a fast writer and a slow reader: the three measurements of the
//! eventfd-maximum patch, with its parameters. The kernel's eventfd has no maximum, upoll's has
//! one.

use std::num::NonZeroU64;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde::Serialize;
use upoll::{EventFd, EventFdFlags};

use super::kernel::Fd;
use super::machine;
use super::set::Counter;
use crate::interrupt;

pub(super) const NAME: &str = "eventfd";

const MAXIMUM: u64 = 10;

/// The amount to measure.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Load {
    /// The length of the burst.
    pub(super) burst_milliseconds: u64,
    /// The number of events whose latency is measured.
    pub(super) paced_events: u64,
    /// The number of rounds, which alternate between the kernel's counter and upoll's.
    pub(super) paced_rounds: usize,
    /// The number of writes that a slow reader collects.
    pub(super) collected_writes: u64,
}

impl Load {
    pub(super) const FULL: Load = Load {
        burst_milliseconds: 5000,
        paced_events: 5000,
        paced_rounds: 9,
        collected_writes: 10_000,
    };
    pub(super) const QUICK: Load = Load {
        burst_milliseconds: 500,
        paced_events: 1000,
        paced_rounds: 3,
        collected_writes: 2000,
    };
}

/// One counter's row of one measurement.
#[derive(Serialize)]
pub(super) struct Pressed {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) by: &'static str,
    pub(super) maximum: u64,
    pub(super) writer_cpu_milliseconds: f64,
    pub(super) reader_cpu_milliseconds: f64,
    pub(super) writes: u64,
    pub(super) reads: u64,
    pub(super) average_batch: f64,
    /// The time from before the write to after the read, if each read takes one event.
    pub(super) latency: Option<Latency>,
    pub(super) goal: Option<Goal>,
}

#[derive(Clone, Serialize)]
pub(super) struct Latency {
    pub(super) p99_microseconds: f64,
    pub(super) p999_microseconds: f64,
    pub(super) worst_microseconds: f64,
    /// The latencies below which 0, 1, ... 100 % of the events stayed.
    pub(super) percentiles_microseconds: Vec<f64>,
}

/// The target of a row, relative to the row without a maximum.
#[derive(Serialize)]
pub(super) struct Goal {
    pub(super) what: &'static str,
    /// The median of the rounds.
    pub(super) figure: f64,
    /// The figures of all rounds, in ascending order.
    pub(super) rounds: Vec<f64>,
    pub(super) reached: bool,
}

/// The three measurements.
#[derive(Clone, Copy)]
enum Kind {
    Burst,
    Latency,
    Collecting,
}

impl Kind {
    fn what(self) -> &'static str {
        match self {
            Kind::Burst => "burst, reader sleeps 1 ms",
            Kind::Latency => "semaphore, 10 K/s written, 8 K/s read",
            Kind::Collecting => "collecting, 125 us per read",
        }
    }

    fn is_semaphore(self) -> bool {
        matches!(self, Kind::Latency)
    }

    fn figure(self, without: &Ran, with: &Ran) -> f64 {
        match self {
            Kind::Burst => {
                let left = with.writer_cpu.as_secs_f64() / without.writer_cpu.as_secs_f64();
                100.0 * (1.0 - left)
            }
            Kind::Latency => {
                let p999 = |ran: &Ran| ran.latencies.value_at_quantile(0.999) as f64;
                p999(without) / p999(with)
            }
            Kind::Collecting => with.average_batch(),
        }
    }

    fn goal(self, figure: f64, rounds: Vec<f64>) -> Goal {
        let (what, reached) = match self {
            Kind::Burst => ("97 % less writer CPU", figure >= 97.0),
            Kind::Latency => ("60x lower p999", figure >= 60.0),
            Kind::Collecting => ("average batch below 10", figure < 10.0),
        };
        Goal {
            what,
            figure,
            rounds,
            reached,
        }
    }
}

pub(super) fn measure(load: Load, cpus: &[usize]) -> Result<Vec<Pressed>> {
    let mut rows = Vec::new();
    for kind in [Kind::Burst, Kind::Latency, Kind::Collecting] {
        let flags = if kind.is_semaphore() {
            EventFdFlags::SEMAPHORE
        } else {
            EventFdFlags::empty()
        };
        let stock: Fd = Counter::new(0, flags)?;
        let limited: EventFd = Counter::new(0, flags)?;
        limited.set_maximum(MAXIMUM)?;
        let rounds = if kind.is_semaphore() {
            load.paced_rounds
        } else {
            1
        };
        let mut taken = Vec::new();
        for _ in 0..rounds {
            let both = || {
                let without = run(kind, &stock, load, cpus).context("kernel")?;
                let with = run(kind, &limited, load, cpus).context("upoll")?;
                Ok((kind.figure(&without, &with), without, with))
            };
            taken.push(if kind.is_semaphore() {
                machine::awake(cpus, both)?
            } else {
                both()?
            });
            if interrupt::is_pending() {
                break;
            }
        }
        taken.sort_by(|(one, ..), (other, ..)| one.total_cmp(other));
        let figures = taken.iter().map(|(figure, ..)| *figure).collect();
        // The printed row is that of the median round.
        let (figure, without, with) = taken.swap_remove(taken.len() / 2);
        let goal = kind.goal(figure, figures);
        rows.push(without.into_row(kind, "kernel", u64::MAX, None));
        rows.push(with.into_row(kind, "upoll", limited.maximum(), Some(goal)));
    }
    Ok(rows)
}

/// The result of a run.
struct Ran {
    writer_cpu: Duration,
    reader_cpu: Duration,
    writes: u64,
    reads: u64,
    /// In nanoseconds. Empty if a read takes several events.
    latencies: Histogram<u64>,
}

impl Ran {
    fn average_batch(&self) -> f64 {
        self.writes as f64 / self.reads as f64
    }

    fn into_row(self, kind: Kind, by: &'static str, maximum: u64, goal: Option<Goal>) -> Pressed {
        let microseconds = |quantile| self.latencies.value_at_quantile(quantile) as f64 / 1000.0;
        Pressed {
            name: NAME,
            what: kind.what(),
            by,
            maximum,
            writer_cpu_milliseconds: self.writer_cpu.as_secs_f64() * 1000.0,
            reader_cpu_milliseconds: self.reader_cpu.as_secs_f64() * 1000.0,
            writes: self.writes,
            reads: self.reads,
            average_batch: self.average_batch(),
            latency: kind.is_semaphore().then(|| Latency {
                p99_microseconds: microseconds(0.99),
                p999_microseconds: microseconds(0.999),
                worst_microseconds: microseconds(1.0),
                percentiles_microseconds: (0..=100)
                    .map(|part| microseconds(f64::from(part) / 100.0))
                    .collect(),
            }),
            goal,
        }
    }
}

/// Runs a writer and a reader, each on a CPU of its own if there are two.
fn run(kind: Kind, counter: &impl Counter, load: Load, cpus: &[usize]) -> Result<Ran> {
    let (first, last) = (cpus[0], cpus[cpus.len() - 1]);
    let begun = Instant::now();
    thread::scope(|scope| {
        // The reader learns the end from the number of events that the writer has written.
        let (say, hear) = std::sync::mpsc::channel();
        let writer = scope.spawn(move || {
            machine::pin(&[first]).context("binding the writer")?;
            let mut written_at = Vec::new();
            let mut pace = Pace::new()?;
            while match kind {
                Kind::Burst => begun.elapsed() < Duration::from_millis(load.burst_milliseconds),
                Kind::Latency => (written_at.len() as u64) < load.paced_events - 1,
                Kind::Collecting => (written_at.len() as u64) < load.collected_writes - 1,
            } {
                if matches!(kind, Kind::Latency) {
                    pace.step(Duration::from_micros(100));
                }
                // The burst is as fast as possible, so its times are not taken.
                written_at.push(match kind {
                    Kind::Latency => Instant::now(),
                    Kind::Burst | Kind::Collecting => begun,
                });
                counter.write();
            }
            // Sent before the last write, so that the reader knows the end before it has taken all
            // events.
            say.send(written_at.len() as u64 + 1)?;
            written_at.push(Instant::now());
            counter.write();
            Ok::<_, anyhow::Error>((thread_cpu_time(), written_at))
        });
        let reader = scope.spawn(move || {
            machine::pin(&[last]).context("binding the reader")?;
            let mut read_at = Vec::new();
            let mut taken = 0;
            let mut end = None;
            let mut pace = Pace::new()?;
            while end.is_none_or(|end| taken < end) {
                match kind {
                    Kind::Burst => thread::sleep(Duration::from_millis(1)),
                    Kind::Latency | Kind::Collecting => pace.step(Duration::from_micros(125)),
                }
                taken += counter.read();
                read_at.push(Instant::now());
                end = end.or_else(|| hear.try_recv().ok());
            }
            Ok::<_, anyhow::Error>((thread_cpu_time(), read_at))
        });
        let (writer_cpu, written_at) = writer.join().expect("the writer does not panic")?;
        let (reader_cpu, read_at) = reader.join().expect("the reader does not panic")?;
        let mut latencies = Histogram::new(3).context("three digits")?;
        if kind.is_semaphore() {
            for (written, read) in written_at.iter().zip(&read_at) {
                let latency = read.saturating_duration_since(*written);
                latencies.record(u64::try_from(latency.as_nanos())?.max(1))?;
            }
        }
        Ok(Ran {
            writer_cpu,
            reader_cpu,
            writes: written_at.len() as u64,
            reads: read_at.len() as u64,
            latencies,
        })
    })
}

/// Steps of equal length. A late step does not shorten the next one.
///
/// It sleeps through each step. A spinning thread uses up its share of the CPU, and the scheduler
/// then runs other threads first, for milliseconds.
struct Pace {
    next: Instant,
}

impl Pace {
    fn new() -> Result<Self> {
        // By default a sleep may be late by as much as half a step.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).context("timer slack")?;
        Ok(Pace {
            next: Instant::now(),
        })
    }

    fn step(&mut self, length: Duration) {
        self.next = (self.next + length).max(Instant::now());
        thread::sleep(self.next.saturating_duration_since(Instant::now()));
    }
}

fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
