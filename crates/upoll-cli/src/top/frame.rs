//! One view of a run, as text.

use std::fmt::{self, Display, Formatter};
use std::time::Instant;

use comfy_table::{CellAlignment, Table, presets};
use upoll_fair_state::{Counts, fairness};

/// The workers' figures at one moment.
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) workers: Vec<Counts>,
}

/// One view: the figures now, and their changes since the view before.
pub(super) struct Frame {
    process: u32,
    before: Option<Sample>,
    now: Sample,
}

const HEADER: [&str; 9] = [
    "process",
    "thread",
    "wakeups",
    "empty",
    "accepts",
    "share",
    "rescues",
    "wakeups/s",
    "accepts/s",
];

#[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
fn float(count: u64) -> f64 {
    count as f64
}

impl Frame {
    /// The first view, without rates.
    pub(super) fn new(process: u32, now: Sample) -> Self {
        Frame {
            process,
            before: None,
            now,
        }
    }

    /// The view that follows this one.
    pub(super) fn next(self, now: Sample) -> Self {
        Frame {
            process: self.process,
            before: Some(self.now),
            now,
        }
    }

    /// Returns how much a count of a worker has grown since the view before. A worker that is new has grown from 0.
    fn grown(&self, worker: &Counts, count: impl Fn(&Counts) -> u64) -> Option<u64> {
        let known = self.before.as_ref()?.workers.iter();
        let mut known = known.filter(|known| known.thread == worker.thread);
        let before = known.find(|known| known.process == worker.process);
        Some(count(worker).saturating_sub(before.map_or(0, count)))
    }

    fn rate(&self, worker: &Counts, count: impl Fn(&Counts) -> u64) -> String {
        let seconds = self.before.as_ref().map(|before| self.now.at - before.at);
        match (self.grown(worker, count), seconds) {
            (Some(grown), Some(seconds)) => format!("{:.1}", float(grown) / seconds.as_secs_f64()),
            _ => "-".into(),
        }
    }
}

impl Display for Frame {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let workers = &self.now.workers;
        let all: u64 = workers.iter().map(|worker| worker.accepts).sum();
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(HEADER);
        for worker in workers {
            let share = 100.0 * float(worker.accepts) / float(all.max(1));
            table.add_row([
                worker.process.to_string(),
                worker.thread.to_string(),
                worker.wakeups.to_string(),
                worker.empty.to_string(),
                worker.accepts.to_string(),
                format!("{share:.1}%"),
                worker.rescues.to_string(),
                self.rate(worker, |worker| worker.wakeups),
                self.rate(worker, |worker| worker.accepts),
            ]);
        }
        for column in table.column_iter_mut() {
            column.set_cell_alignment(CellAlignment::Right);
        }
        writeln!(
            f,
            "upoll top: process {}, {} workers, {all} connections",
            self.process,
            workers.len()
        )?;
        writeln!(f, "{}", table.trim_fmt())?;
        let total = fairness(workers.iter().map(|worker| worker.accepts));
        write!(f, "fairness {total:.3}")?;
        if self.before.is_some() {
            let grown = workers
                .iter()
                .map(|worker| self.grown(worker, |worker| worker.accepts));
            let lately = fairness(grown.flatten());
            write!(f, ", since the last view {lately:.3}")?;
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use upoll_fair_state::State;

    use super::*;

    /// The counts of workers of process 5, from one with `accepts.0` connections on.
    fn workers(accepts: &[u64]) -> Vec<Counts> {
        const WORDS: usize = size_of::<State>() / size_of::<u64>();
        let memory: Box<[AtomicU64]> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        // SAFETY: a state consists of atomics in as many words; zeros are one, and it lives as long as the memory.
        let state = unsafe { &*memory.as_ptr().cast::<State>() };
        for (thread, &accepts) in (7..).zip(accepts) {
            let worker = state.worker(state.take_place(5, thread)).expect("room");
            worker.wakeups.store(2 * accepts, Ordering::Relaxed);
            worker.accepts.store(accepts, Ordering::Relaxed);
        }
        state.counts().collect()
    }

    fn row(frame: &Frame, thread: &str) -> Vec<String> {
        let text = frame.to_string();
        let mut rows = text.lines().map(|line| line.split_whitespace());
        let row = rows.find(|row| row.clone().nth(1) == Some(thread));
        row.expect("a row").map(str::to_owned).collect()
    }

    #[test]
    fn rates_are_those_since_the_view_before() {
        let at = Instant::now();
        let sample = |seconds, accepts: &[u64]| Sample {
            at: at + Duration::from_secs(seconds),
            workers: workers(accepts),
        };
        let first = Frame::new(5, sample(0, &[10, 30]));
        assert_eq!(
            row(&first, "8"),
            ["5", "8", "60", "0", "30", "75.0%", "0", "-", "-"]
        );
        assert!(first.to_string().ends_with("fairness 0.800\n"));
        // The third one is new.
        let second = first.next(sample(2, &[10, 34, 8]));
        assert_eq!(row(&second, "7")[7..], ["0.0", "0.0"]);
        assert_eq!(row(&second, "8")[7..], ["4.0", "2.0"]);
        assert_eq!(row(&second, "9")[7..], ["8.0", "4.0"]);
        assert!(second.to_string().ends_with("since the last view 0.600\n"));
    }
}
