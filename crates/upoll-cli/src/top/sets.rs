//! The sets of an `upoll run --top`, and the threads that wait in them.

use std::collections::BTreeMap;
use std::fmt::{self, Formatter};
use std::fs;

use upoll_fair_state::fairness;
use upoll_fds::internal::figures::{SetFigures, WorkerFigures, in_file};

use super::frame::{self, Before, Figures, rate, share, sum};
use super::is_live;

/// The sets' figures at one moment.
pub(super) struct Sets(Vec<SetFigures>);

const SETS: [&str; 11] = [
    "process", "set", "members", "rotates", "sleeps", "wakes", "empty", "events", "wakes/s",
    "events/s", "fairness",
];

const WORKERS: [&str; 8] = [
    "process", "set", "thread", "waits", "events", "share", "waits/s", "events/s",
];

/// A thread of a process.
type Thread = (u32, u32);

impl Sets {
    /// Returns the same set as it was in this view.
    fn known(&self, set: &SetFigures) -> Option<&SetFigures> {
        let is_same = |known: &&SetFigures| (known.process, known.fd) == (set.process, set.fd);
        self.0.iter().find(is_same)
    }

    fn known_worker(&self, set: &SetFigures, worker: &WorkerFigures) -> Option<&WorkerFigures> {
        let mut known = self.known(set)?.workers.iter();
        known.find(|known| known.thread == worker.thread)
    }

    fn workers(&self) -> impl Iterator<Item = (&SetFigures, &WorkerFigures)> {
        let of = |set| move |worker| (set, worker);
        self.0
            .iter()
            .flat_map(move |set| set.workers.iter().map(of(set)))
    }

    /// Returns the events of each thread, of all sets that it waits in.
    fn events(&self) -> BTreeMap<Thread, u64> {
        let mut events = BTreeMap::<_, u64>::new();
        for (set, worker) in self.workers() {
            let of_thread = events.entry((set.process, worker.thread)).or_default();
            *of_thread = of_thread.saturating_add(worker.events);
        }
        events
    }
}

/// Returns how much a count has grown since the view before. A set or worker that is new there has grown from 0, and
/// one with fewer than before is new, too.
fn grown(now: u64, known: Option<u64>) -> u64 {
    now.checked_sub(known.unwrap_or(0)).unwrap_or(now)
}

/// Returns how many members the kernel set behind a set has, without the seal.
fn kernel_members(set: &SetFigures) -> u64 {
    let path = format!("/proc/{}/fdinfo/{}", set.process, set.fd);
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines().filter(|line| line.starts_with("tfd:"));
    (lines.count() as u64).saturating_sub(1)
}

/// Returns when a process has started, in nanoseconds since the machine has.
fn start_of(process: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The second field is a name in brackets, which may have any characters.
    let (_, fields) = text.rsplit_once(')')?;
    let ticks: u64 = fields.split_ascii_whitespace().nth(19)?.parse().ok()?;
    let in_a_second = rustix::param::clock_ticks_per_second();
    Some(ticks.saturating_mul(1_000_000_000 / in_a_second.max(1)))
}

/// Returns whether the process of a set has not ended. The main thread may have ended before it.
fn is_there(set: &SetFigures) -> bool {
    // The kernel rounds it down.
    is_live(set.process, set.process)
        && start_of(set.process).is_none_or(|start| start <= set.since)
}

impl Figures for Sets {
    fn in_file(bytes: &[u8]) -> Self {
        Sets(in_file(bytes))
    }

    fn complete(&mut self) {
        self.0.retain(is_there);
        for set in &mut self.0 {
            set.workers
                .retain(|worker| is_live(set.process, worker.thread));
            set.workers.sort_by_key(|worker| worker.thread);
            if set.has_adopted {
                set.members = set.members.saturating_add(kernel_members(set));
            }
        }
        self.0.sort_by_key(|set| (set.process, set.fd));
    }

    fn show(
        &self,
        process: u32,
        before: Option<&Before<Self>>,
        f: &mut Formatter<'_>,
    ) -> fmt::Result {
        let mut sets = frame::table(&SETS);
        for set in &self.0 {
            let rate = |count: fn(&SetFigures) -> u64| {
                let known = before.map(|before| before.figures.known(set).map(count));
                rate(before, known.map(|known| grown(count(set), known)))
            };
            sets.add_row([
                set.process.to_string(),
                set.fd.to_string(),
                set.members.to_string(),
                if set.rotates { "yes" } else { "no" }.into(),
                set.sleeps.to_string(),
                set.wakes.to_string(),
                set.empty_wakes.to_string(),
                set.events.to_string(),
                rate(|set| set.wakes),
                rate(|set| set.events),
                format!(
                    "{:.3}",
                    fairness(set.workers.iter().map(|worker| worker.events))
                ),
            ]);
        }
        let all = sum(self.workers().map(|(_, worker)| worker.events));
        let mut workers = frame::table(&WORKERS);
        for (set, worker) in self.workers() {
            let rate = |count: fn(&WorkerFigures) -> u64| {
                let known =
                    before.map(|before| before.figures.known_worker(set, worker).map(count));
                rate(before, known.map(|known| grown(count(worker), known)))
            };
            workers.add_row([
                set.process.to_string(),
                set.fd.to_string(),
                worker.thread.to_string(),
                worker.waits.to_string(),
                worker.events.to_string(),
                share(worker.events, all),
                rate(|worker| worker.waits),
                rate(|worker| worker.events),
            ]);
        }
        let events = self.events();
        let (number, threads) = (self.0.len(), events.len());
        writeln!(
            f,
            "upoll top: process {process}, {number} sets, {threads} workers, {all} events"
        )?;
        frame::write_table(sets, f)?;
        writeln!(f)?;
        frame::write_table(workers, f)?;
        let known = before.map(|before| before.figures.events());
        let lately = events
            .iter()
            .map(|(thread, &now)| Some(grown(now, known.as_ref()?.get(thread).copied())));
        frame::write_fairness(events.values().copied(), lately, f)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::super::frame::Frame;
    use super::*;

    /// The figures of a set of process 5, whose workers from thread 7 on have had so many events.
    fn set(fd: u32, events: &[u64]) -> SetFigures {
        let worker = |(thread, &events)| {
            let mut worker = WorkerFigures::default();
            (worker.thread, worker.waits, worker.events) = (thread, events / 2, events);
            worker
        };
        let mut set = SetFigures::default();
        (set.process, set.fd, set.members) = (5, fd, 3);
        set.workers = (7..).zip(events).map(worker).collect();
        set.events = events.iter().sum();
        (set.wakes, set.empty_wakes, set.sleeps) = (set.events / 2, 1, set.events);
        set
    }

    /// The rows that begin so.
    fn rows(frame: &Frame<Sets>, begin: &[&str]) -> Vec<Vec<String>> {
        let text = frame.to_string();
        let rows = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        let rows = rows.filter(|row| row.starts_with(begin));
        rows.map(|row| row.into_iter().map(str::to_owned).collect())
            .collect()
    }

    #[test]
    fn sets_and_their_workers_are_shown_with_shares_and_with_rates_since_the_view_before() {
        let at = Instant::now();
        let first = Frame::new(5, at, Sets(vec![set(3, &[10, 30]), set(4, &[0, 40])]));
        let text = first.to_string();
        assert!(
            text.starts_with("upoll top: process 5, 2 sets, 2 workers, 80 events\n"),
            "{text}"
        );
        assert_eq!(
            rows(&first, &["5", "3", "3"]),
            [[
                "5", "3", "3", "no", "40", "20", "1", "40", "-", "-", "0.800"
            ]]
        );
        assert_eq!(
            rows(&first, &["5", "3", "8"]),
            [["5", "3", "8", "15", "30", "37.5%", "-", "-"]]
        );
        // Of all sets: 10 and 70.
        assert!(text.ends_with("\nfairness 0.640\n"), "{text}");
        // The set that had fd 4 is another one now.
        let at = at + Duration::from_secs(2);
        let second = first.next(at, Sets(vec![set(3, &[10, 36]), set(4, &[8])]));
        assert_eq!(rows(&second, &["5", "3", "3"])[0][8..10], ["1.5", "3.0"]);
        assert_eq!(rows(&second, &["5", "4", "3"])[0][8..10], ["2.0", "4.0"]);
        assert_eq!(rows(&second, &["5", "3", "7"])[0][6..], ["0.0", "0.0"]);
        assert_eq!(rows(&second, &["5", "3", "8"])[0][6..], ["1.5", "3.0"]);
    }

    #[test]
    fn a_process_has_no_figures_of_an_earlier_one_with_its_id() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("it starts");
        let own = std::process::id();
        let start = start_of(own).expect("a line of /proc");
        let ticks = 1_000_000_000 / rustix::param::clock_ticks_per_second();
        let at = |process, since| {
            let mut set = set(3, &[10]);
            (set.process, set.since) = (process, since);
            set
        };
        let childs = start_of(child.id()).expect("a line of /proc");
        let mut sets = Sets(vec![
            at(own, start - 1),
            at(own, start),
            at(child.id(), childs - ticks),
            at(child.id(), childs + 1),
        ]);
        sets.complete();
        child.kill().expect("it is there");
        child.wait().expect("it is a child");
        let left = sets.0.iter().map(|set| (set.process, set.since));
        let mut left: Vec<_> = left.collect();
        left.sort_unstable();
        let mut expected = [(own, start), (child.id(), childs + 1)];
        expected.sort_unstable();
        assert_eq!(left, expected);
    }

    #[test]
    fn figures_may_be_any() {
        let bytes = vec![0xff; 1 << 20];
        assert!(Sets::in_file(&bytes).0.is_empty());
        // Each word is a process that there may be.
        let bytes = 1_u64.to_ne_bytes().repeat(1 << 17);
        let mut sets = Sets::in_file(&bytes);
        assert!(!sets.0.is_empty());
        for set in &mut sets.0 {
            (set.wakes, set.events, set.members) = (u64::MAX, u64::MAX, u64::MAX);
            set.since = u64::MAX;
            set.has_adopted = true;
            for worker in &mut set.workers {
                (worker.waits, worker.events) = (u64::MAX, u64::MAX);
            }
        }
        sets.complete();
        let frame = Frame::new(5, Instant::now(), sets);
        assert!(frame.to_string().contains("fairness"));
        assert!(Sets::in_file(&bytes[..7]).0.is_empty());
    }
}
