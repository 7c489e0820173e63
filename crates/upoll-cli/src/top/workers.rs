//! The workers of an `upoll run --fair`.

use std::fmt::{self, Formatter};

use upoll_fair_state::Counts;

use super::frame::{self, Before, Figures, rate, share, sum};
use super::is_live;

/// The workers' counts at one moment.
pub(super) struct Workers(Vec<Counts>);

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

/// Returns how much a count of a worker has grown since the view before. A worker that is new has grown from 0.
fn grown(
    before: Option<&Before<Workers>>,
    worker: &Counts,
    count: impl Fn(&Counts) -> u64,
) -> Option<u64> {
    let mut known = before?.figures.0.iter();
    let known =
        known.find(|known| (known.thread, known.process) == (worker.thread, worker.process));
    Some(count(worker).saturating_sub(known.map_or(0, count)))
}

impl Figures for Workers {
    fn in_file(bytes: &[u8]) -> Self {
        Workers(Counts::in_file(bytes))
    }

    fn complete(&mut self) {
        self.0
            .retain(|worker| is_live(worker.process, worker.thread));
    }

    fn show(
        &self,
        process: u32,
        before: Option<&Before<Self>>,
        f: &mut Formatter<'_>,
    ) -> fmt::Result {
        let accepts = |worker: &Counts| worker.accepts;
        let all = sum(self.0.iter().map(accepts));
        let mut table = frame::table(&HEADER);
        for worker in &self.0 {
            table.add_row([
                worker.process.to_string(),
                worker.thread.to_string(),
                worker.wakeups.to_string(),
                worker.empty.to_string(),
                worker.accepts.to_string(),
                share(worker.accepts, all),
                worker.rescues.to_string(),
                rate(before, grown(before, worker, |worker| worker.wakeups)),
                rate(before, grown(before, worker, accepts)),
            ]);
        }
        let number = self.0.len();
        writeln!(
            f,
            "upoll top: process {process}, {number} workers, {all} connections"
        )?;
        frame::write_table(table, f)?;
        let lately = self.0.iter().map(|worker| grown(before, worker, accepts));
        frame::write_fairness(self.0.iter().map(accepts), lately, f)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use upoll_fair_state::State;

    use super::super::frame::Frame;
    use super::*;

    /// The counts of workers of process 5, from one with `accepts.0` connections on.
    fn workers(accepts: &[u64]) -> Workers {
        const WORDS: usize = size_of::<State>() / size_of::<u64>();
        let memory: Box<[AtomicU64]> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        // SAFETY: a state consists of atomics in as many words; zeros are one, and it lives as long as the memory.
        let state = unsafe { &*memory.as_ptr().cast::<State>() };
        for (thread, &accepts) in (7..).zip(accepts) {
            let worker = state.worker(5, thread).expect("room");
            worker.wakeups.store(2 * accepts, Ordering::Relaxed);
            worker.accepts.store(accepts, Ordering::Relaxed);
        }
        Workers(state.counts().collect())
    }

    fn row(frame: &Frame<Workers>, thread: &str) -> Vec<String> {
        let text = frame.to_string();
        let mut rows = text.lines().map(|line| line.split_whitespace());
        let row = rows.find(|row| row.clone().nth(1) == Some(thread));
        row.expect("a row").map(str::to_owned).collect()
    }

    #[test]
    fn rates_are_those_since_the_view_before() {
        let at = Instant::now();
        let first = Frame::new(5, at, workers(&[10, 30]));
        assert_eq!(
            row(&first, "8"),
            ["5", "8", "60", "0", "30", "75.0%", "0", "-", "-"]
        );
        assert!(first.to_string().ends_with("fairness 0.800\n"));
        // The third one is new.
        let second = first.next(at + Duration::from_secs(2), workers(&[10, 34, 8]));
        assert_eq!(row(&second, "7")[7..], ["0.0", "0.0"]);
        assert_eq!(row(&second, "8")[7..], ["4.0", "2.0"]);
        assert_eq!(row(&second, "9")[7..], ["8.0", "4.0"]);
        assert!(second.to_string().ends_with("since the last view 0.600\n"));
    }
}
