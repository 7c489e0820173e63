//! The figures as tables for readers, and as JSON for programs.

use std::fmt::{self, Display, Formatter};
use std::ops::Range;

use comfy_table::{CellAlignment, ContentArrangement};
use serde::Serialize;

use super::backpressure::{Latency, Pressed};
use super::calls::Compared;
use super::fair::{Fair, Served};
use super::fds::ByFd;
use super::growth::Grown;
use super::machine::Machine;
use super::measure::{Effort, Spread};
use super::peers::{Figures, Peer};
use super::polling::Polled;
use super::threads::{Goal, LockUse, Threaded};
use super::timeouts::Late;
use super::workers::Shared;

/// Marks a spread that is too wide for its median to count.
pub(super) const TOO_WIDE: &str = "too wide to trust";

/// Said of a run that Ctrl-C has ended.
pub(super) const INTERRUPTED: &str = "interrupted: this is what there was until then";

/// Said of the figures of a program that `cargo run` has built without `--release`.
pub(super) const UNOPTIMIZED: Option<&str> = if cfg!(debug_assertions) {
    Some("built without optimization: the figures are not those of upoll as it is installed")
} else {
    None
};

/// The column of rows that have reached their target.
const REACHED: &str = "reached";

/// All figures of a run.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) machine: Machine,
    /// The CPU that all benchmarks with one thread were bound to.
    pub(super) pinned_to: usize,
    pub(super) quick: bool,
    /// True if Ctrl-C ended the run before everything was measured.
    pub(super) interrupted: bool,
    pub(super) effort: Effort,
    pub(super) comparisons: Vec<Compared>,
    pub(super) peers: Vec<Peer>,
    pub(super) fds: Vec<ByFd>,
    pub(super) polls: Vec<Polled>,
    pub(super) growth: Vec<Grown>,
    pub(super) timeouts: Vec<Late>,
    pub(super) workers: Vec<Shared>,
    pub(super) threads: Vec<Threaded>,
    pub(super) backpressure: Vec<Pressed>,
    pub(super) fair: Fair,
}

/// Rows of text and figures.
pub(super) struct Table {
    pub(super) header: Vec<&'static str>,
    /// The columns that hold figures.
    pub(super) figures: Range<usize>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns the name of each row that has a target, and whether the row has reached it.
    fn verdicts(&self) -> impl Iterator<Item = (&str, bool)> {
        let column = self.header.iter().position(|&name| name == REACHED);
        self.rows
            .iter()
            .filter_map(move |row| match &*row[column?] {
                YES => Some((&*row[0], true)),
                NO => Some((&*row[0], false)),
                _ => None,
            })
    }
}

/// The name of a column, and its text for a row.
type Column<R> = (&'static str, fn(&R) -> String);

/// Formats the table for a terminal.
impl Display for Table {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut table = comfy_table::Table::new();
        table
            .load_style(comfy_table::presets::ASCII_MARKDOWN)
            .set_content_arrangement(ContentArrangement::Disabled)
            .set_header(self.header.clone())
            .add_rows(self.rows.clone());
        for column in self.figures.clone() {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.fmt(f)
    }
}

/// A part of the report: a table and its plots.
#[derive(Clone, Copy)]
pub(super) enum Part {
    Comparisons,
    Peers,
    Fds,
    Polls,
    Growth,
    Timeouts,
    Workers,
    Threads,
    Backpressure,
    Fair,
}

impl Part {
    pub(super) fn heading(self) -> &'static str {
        match self {
            Part::Comparisons => "Calls and wakes",
            Part::Peers => "Other libraries and calls at the same work",
            Part::Fds => "Fds",
            Part::Polls => "poll and select",
            Part::Growth => "Sets that grow",
            Part::Timeouts => "Time limits",
            Part::Workers => "Workers that share a source",
            Part::Threads => "Threads with a set each, and with one for all",
            Part::Backpressure => "A fast writer and a slow reader",
            Part::Fair => "Servers whose workers take turns",
        }
    }
}

impl Report {
    /// Returns the parts that were measured.
    pub(super) fn parts(&self) -> impl Iterator<Item = Part> {
        [
            (Part::Comparisons, self.comparisons.is_empty()),
            (Part::Peers, self.peers.is_empty()),
            (Part::Fds, self.fds.is_empty()),
            (Part::Polls, self.polls.is_empty()),
            (Part::Growth, self.growth.is_empty()),
            (Part::Timeouts, self.timeouts.is_empty()),
            (Part::Workers, self.workers.is_empty()),
            (Part::Threads, self.threads.is_empty()),
            (Part::Backpressure, self.backpressure.is_empty()),
            (
                Part::Fair,
                self.fair.served.is_empty() && self.fair.left_out.is_empty(),
            ),
        ]
        .into_iter()
        .filter_map(|(part, is_empty)| (!is_empty).then_some(part))
    }

    /// Returns the caption of a part's table.
    pub(super) fn about(&self, part: Part) -> String {
        match part {
            Part::Comparisons => format!(
                "On CPU {}, {} batches of {} us on each side by turns: medians, and of the ratios \
                 of paired batches the 10th to 90th percentile",
                self.pinned_to, self.effort.batches, self.effort.batch_microseconds,
            ),
            Part::Peers => format!(
                "The same work by upoll, by other libraries and by the kernel's calls, on CPU {}, \
                 {} batches of {} us of all by turns: medians, ratios to the way of upoll that is \
                 named, and of the ratios of paired batches the 10th to 90th percentile",
                self.pinned_to, self.effort.batches, self.effort.batch_microseconds,
            ),
            Part::Fds => {
                "Operations on objects, and by fd through the C interface, batches by \
                              turns: medians, and what each call adds"
                    .to_owned()
            }
            Part::Polls => "poll and select over idle files, what they keep on the stack, against \
                            the same code with it on the heap, and against the kernel"
                .to_owned(),
            Part::Growth => "Cost as the set grows, against the smallest set".to_owned(),
            Part::Timeouts => "How late a wait ends that has a time limit and nothing to report: \
                               ratios of the mean lateness of rounds by turns, growth against the \
                               fewest files"
                .to_owned(),
            Part::Workers => self.workers.first().map_or_else(String::new, |first| {
                format!(
                    "{} workers on {} CPUs take {} events from one source, {} rounds of each way \
                     by turns: medians; events of the worker that took the fewest, the middle one \
                     and the one that took the most; empty wakes are waits that ended with no \
                     event left",
                    first.workers,
                    self.machine.cpus.len(),
                    first.load.events,
                    first.load.rounds,
                )
            }),
            Part::Threads => self.threads.first().map_or_else(String::new, |first| {
                format!(
                    "Threads that for a request open an eventfd, add it, write, wait and close it; that \
                     take one of 64 oneshot eventfds, read it, arm it again and write it; that write \
                     one of 8 edge-triggered eventfds each, wait and read what is reported. {} rounds \
                     of {} ms of each way by turns: medians; growth against one thread, and as a part \
                     of what the threads that had a core would give; locks from a build that counts \
                     them: shared ones were last held by another thread",
                    first.load.rounds, first.load.round_milliseconds,
                )
            }),
            Part::Backpressure => {
                "A fast writer and a slow reader, without a maximum and with one".to_owned()
            }
            Part::Fair => about_fair(&self.fair),
        }
    }

    pub(super) fn table(&self, part: Part) -> Table {
        match part {
            Part::Comparisons => table(&self.comparisons, 3..9, COMPARISONS),
            Part::Peers => table(&self.peers, 4..10, PEERS),
            Part::Fds => table(&self.fds, 2..8, FDS),
            Part::Polls => table(&self.polls, 3..15, POLLS),
            Part::Growth => table(&self.growth, 2..11, GROWTH),
            Part::Timeouts => table(&self.timeouts, 2..12, TIMEOUTS),
            Part::Workers => table(&self.workers, 2..12, WORKERS),
            Part::Threads => table(&self.threads, 4..17, THREADS),
            Part::Backpressure => table(&self.backpressure, 3..12, BACKPRESSURE),
            Part::Fair => table(&self.fair.served, 5..17, FAIR),
        }
    }

    /// Returns how many targets were reached, and the rows that missed theirs. `None` if nothing that was
    /// measured has a target.
    pub(super) fn verdict(&self) -> Option<String> {
        let (mut reached, mut missed) = (0, Vec::new());
        for table in self.parts().map(|part| self.table(part)) {
            for (name, is_reached) in table.verdicts() {
                match is_reached {
                    true => reached += 1,
                    false => missed.push(name.to_owned()),
                }
            }
        }
        let all = reached + missed.len();
        missed.dedup();
        match missed.join(", ") {
            _ if all == 0 => None,
            missed if missed.is_empty() => Some(format!("{reached} of {all} targets reached")),
            missed => Some(format!(
                "{reached} of {all} targets reached; missed: {missed}"
            )),
        }
    }

    /// Returns the tables of all measured parts, and the verdict.
    pub(super) fn tables(&self) -> String {
        let machine = &self.machine;
        let mut out = format!(
            "upoll {} against Linux {} on {}, {} CPUs, clock source {}, {}\n",
            machine.upoll_version,
            machine.kernel_release,
            machine.cpu_model,
            machine.cpus.len(),
            machine.clock_source,
            machine.date,
        );
        if let Some(unoptimized) = UNOPTIMIZED {
            out += &format!("{unoptimized}\n");
        }
        for part in self.parts() {
            out += &format!("\n{}\n{}\n", self.about(part), self.table(part));
        }
        if let Some(verdict) = self.verdict() {
            out += &format!("\n{verdict}\n");
        }
        if self.interrupted {
            out += &format!("{INTERRUPTED}\n");
        }
        out
    }
}

const COMPARISONS: &[Column<Compared>] = &[
    ("name", |row| row.row.name.to_owned()),
    ("operation", |row| row.row.what.clone().into_owned()),
    ("against", |row| row.row.against.to_owned()),
    ("other ns", |row| nanoseconds(row.other_nanoseconds.median)),
    ("upoll ns", |row| nanoseconds(row.upoll_nanoseconds.median)),
    ("ratio", |row| times(row.ratio.median)),
    ("10-90 %", |row| percentiles(row.ratio, row.trusted)),
    ("to reach", |row| or_blank(row.row.target, times)),
    (REACHED, |row| verdict(row.reached)),
];

const PEERS: &[Column<Peer>] = &[
    ("name", |row| row.name.to_owned()),
    ("operation", |row| row.what.to_owned()),
    ("by", |row| row.by.to_owned()),
    ("against", |row| row.against.unwrap_or_default().to_owned()),
    ("sources", |row| row.sources.to_string()),
    ("ns", |row| {
        of_figures(row, |figures| nanoseconds(figures.nanoseconds.median))
    }),
    ("ratio", |row| of_ratio(row, |ratio| times(ratio.median))),
    ("10-90 %", |row| {
        of_ratio(row, |ratio| percentiles(ratio, ratio.is_trusted()))
    }),
    ("to reach", |row| or_blank(row.target, times)),
    (REACHED, |row| verdict(row.reached)),
    ("note", |row| match &row.skipped {
        Some(why) => format!("skipped: {why}"),
        None if row.figures.as_ref().is_some_and(|figures| figures.fastest) => "fastest".to_owned(),
        None => String::new(),
    }),
];

fn of_figures(row: &Peer, text: fn(&Figures) -> String) -> String {
    or_blank(row.figures.as_ref(), text)
}

fn of_ratio(row: &Peer, text: fn(Spread) -> String) -> String {
    let ratio = row.figures.as_ref().and_then(|figures| figures.ratio);
    or_blank(ratio, text)
}

const FDS: &[Column<ByFd>] = &[
    ("name", |row| row.name.to_owned()),
    ("operation", |row| row.what.to_owned()),
    ("calls", |row| row.calls.to_string()),
    ("object ns", |row| {
        nanoseconds(row.object_nanoseconds.median)
    }),
    ("fd ns", |row| nanoseconds(row.fd_nanoseconds.median)),
    ("added ns per call", |row| {
        nanoseconds(row.added_nanoseconds.median)
    }),
    ("10-90 %", |row| {
        format!(
            "{:.1}-{:.1}",
            row.added_nanoseconds.p10, row.added_nanoseconds.p90
        )
    }),
    ("at most", |row| {
        or_blank(row.target_nanoseconds, nanoseconds)
    }),
    (REACHED, |row| verdict(row.reached)),
];

const POLLS: &[Column<Polled>] = &[
    ("name", |row| row.name.to_owned()),
    ("call", |row| row.call.to_owned()),
    ("over", |row| row.what.to_owned()),
    ("files", |row| row.files.to_string()),
    ("stack ns", |row| nanoseconds(row.upoll_nanoseconds.median)),
    ("heap ns", |row| nanoseconds(row.heap_nanoseconds.median)),
    ("context ns", |row| {
        median_nanoseconds(row.context_nanoseconds)
    }),
    ("kernel ns", |row| {
        median_nanoseconds(row.kernel_nanoseconds)
    }),
    ("heap / stack", |row| times(row.gain.median)),
    ("10-90 %", |row| {
        percentiles(row.gain, row.gain.is_trusted())
    }),
    ("to reach", |row| or_blank(row.gain_target, times)),
    (REACHED, |row| verdict(row.reached)),
    ("stack / context", |row| {
        or_blank(row.context_gain, |gain| times(gain.median))
    }),
    ("kernel / stack", |row| {
        or_blank(row.ratio, |ratio| times(ratio.median))
    }),
    ("10-90 %", |row| {
        or_blank(row.ratio, |ratio| percentiles(ratio, ratio.is_trusted()))
    }),
];

fn median_nanoseconds(figure: Option<Spread>) -> String {
    or_blank(figure, |figure| nanoseconds(figure.median))
}

const GROWTH: &[Column<Grown>] = &[
    ("name", |row| row.name.to_owned()),
    ("operation", |row| row.what.to_owned()),
    ("items", |row| row.items.to_string()),
    ("kernel items", |row| {
        if row.kernel_items == row.items {
            row.kernel_items.to_string()
        } else {
            format!("{}, all descriptors", row.kernel_items)
        }
    }),
    ("kernel ns", |row| {
        nanoseconds(row.kernel_nanoseconds.median)
    }),
    ("upoll ns", |row| nanoseconds(row.upoll_nanoseconds.median)),
    ("ratio", |row| times(row.ratio.median)),
    ("kernel growth", |row| times(row.kernel_growth.median)),
    ("upoll growth", |row| times(row.upoll_growth.median)),
    ("10-90 %", |row| percentiles(row.upoll_growth, row.trusted)),
    ("at most", |row| times(row.upoll_growth_tolerated)),
    (REACHED, |row| verdict(Some(row.reached))),
];

const TIMEOUTS: &[Column<Late>] = &[
    ("name", |row| row.name.to_owned()),
    ("by", |row| row.by.to_owned()),
    ("limit us", |row| row.limit_microseconds.to_string()),
    ("files", |row| row.files.to_string()),
    ("late p50 us", |row| microseconds(row.p50_nanoseconds)),
    ("late p99 us", |row| microseconds(row.p99_nanoseconds)),
    ("worst us", |row| microseconds(row.worst_nanoseconds)),
    ("early", |row| row.early.to_string()),
    ("ppoll's", |row| times(row.ppoll_ratio.median)),
    ("epoll_pwait2's", |row| times(row.pwait2_ratio.median)),
    ("growth", |row| times(row.growth.median)),
    ("10-90 %", |row| percentiles(row.growth, row.trusted)),
    ("to reach", |row| row.goal.clone().unwrap_or_default()),
    (REACHED, |row| verdict(row.reached)),
];

const WORKERS: &[Column<Shared>] = &[
    ("name", |row| row.name.to_owned()),
    ("way", |row| row.way.to_owned()),
    ("ms", |row| fixed(row.milliseconds.median, 1)),
    ("ratio", |row| times(row.ratio.median)),
    ("10-90 %", |row| {
        format!("{:.1}-{:.1}", row.ratio.p10, row.ratio.p90)
    }),
    ("events of a worker", |row| {
        row.shares.map(|events| fixed(events.median, 0)).join(" / ")
    }),
    ("fairness", |row| fixed(row.fairness.median, 4)),
    ("worst", |row| fixed(row.worst_fairness, 4)),
    ("switches per event", |row| {
        fixed(row.switches_per_event.median, 2)
    }),
    ("voluntary", |row| {
        fixed(row.voluntary_switches_per_event.median, 2)
    }),
    ("involuntary", |row| {
        fixed(row.involuntary_switches_per_event.median, 2)
    }),
    ("empty wakes per event", |row| {
        fixed(row.empty_wakes_per_event.median, 2)
    }),
    ("to reach", |row| {
        or_blank(row.goal, |goal| {
            format!(
                "{}, fairness {}, switches {}",
                times(goal.ratio),
                goal.fairness,
                goal.switches_per_event
            )
        })
    }),
    (REACHED, |row| verdict(row.reached)),
];

const THREADS: &[Column<Threaded>] = &[
    ("name", |row| row.name.to_owned()),
    ("work", |row| row.work.to_owned()),
    ("by", |row| row.by.to_owned()),
    ("sets", |row| row.sets.to_owned()),
    ("threads", |row| row.threads.to_string()),
    ("requests/s", |row| fixed(row.requests_per_second.median, 0)),
    ("against kernel", |row| times(row.ratio.median)),
    ("had a core", |row| fixed(row.threads_with_a_core.median, 2)),
    ("growth", |row| times(row.growth.median)),
    ("10-90 %", |row| {
        percentiles(row.growth, row.growth.is_trusted())
    }),
    ("per core", |row| times(row.growth_per_core.median)),
    ("10-90 %", |row| {
        percentiles(row.growth_per_core, row.growth_per_core.is_trusted())
    }),
    ("locks per request", |row| {
        locks(row, |locks| fixed(locks.taken_per_request, 1))
    }),
    ("shared", |row| {
        locks(row, |locks| match locks.shared_in_all {
            0 => "none".to_owned(),
            _ => percent(locks.shared),
        })
    }),
    ("contended", |row| {
        locks(row, |locks| percent(locks.contended))
    }),
    ("time waiting", |row| {
        locks(row, |locks| percent(locks.waiting))
    }),
    ("to reach", |row| or_blank(row.goal, to_reach)),
    (REACHED, |row| verdict(row.reached)),
    ("note", |row| row.note.clone().unwrap_or_default()),
];

fn locks(row: &Threaded, figure: fn(LockUse) -> String) -> String {
    or_blank(row.locks, figure)
}

fn to_reach(goal: Goal) -> String {
    let growth = times(goal.growth);
    match goal.ratio {
        _ if goal.per_core => format!("{growth} per core, none shared"),
        Some(ratio) => format!("growth {growth}, kernel {}", times(ratio)),
        None => format!("growth {growth}"),
    }
}

fn percent(part: f64) -> String {
    format!("{:.2} %", 100.0 * part)
}

const BACKPRESSURE: &[Column<Pressed>] = &[
    ("name", |row| row.name.to_owned()),
    ("what", |row| row.what.to_owned()),
    ("by", |row| row.by.to_owned()),
    ("maximum", |row| match row.maximum {
        u64::MAX => "none".to_owned(),
        maximum => maximum.to_string(),
    }),
    ("writer CPU ms", |row| fixed(row.writer_cpu_milliseconds, 0)),
    ("reader CPU ms", |row| fixed(row.reader_cpu_milliseconds, 0)),
    ("writes", |row| row.writes.to_string()),
    ("reads", |row| row.reads.to_string()),
    ("average batch", |row| fixed(row.average_batch, 1)),
    ("p99 us", |row| {
        latency(row, |latency| latency.p99_microseconds)
    }),
    ("p999 us", |row| {
        latency(row, |latency| latency.p999_microseconds)
    }),
    ("worst us", |row| {
        latency(row, |latency| latency.worst_microseconds)
    }),
    ("to reach", |row| {
        or_blank(row.goal.as_ref(), |goal| goal.what.to_owned())
    }),
    ("figure", |row| {
        or_blank(row.goal.as_ref(), |goal| match goal.rounds[..] {
            [least, .., most] => format!("{:.1} ({least:.1}-{most:.1})", goal.figure),
            _ => fixed(goal.figure, 1),
        })
    }),
    (REACHED, |row| {
        verdict(row.goal.as_ref().map(|goal| goal.reached))
    }),
];

fn latency(row: &Pressed, pick: fn(&Latency) -> f64) -> String {
    let figure = row.latency.as_ref().map(pick);
    or_blank(figure, |figure| format!("{figure:.0}"))
}

fn about_fair(fair: &Fair) -> String {
    let mut about = format!(
        "Servers, a connection for each request, as they are, with EPOLLEXCLUSIVE alone and under upoll run --fair with \
         the policies named, {} runs of each by turns: medians, and of the response time's 99th percentile and the CPU \
         time the 10th to 90th percentile of the runs; a light load is a tenth and a medium load half of what the server \
         answers at full load; CPU time, context switches (all, and the voluntary ones of them) and empty wakes (waits \
         that ended for a connection which another worker took) are for a request, and fairness is Jain's index of the \
         workers' shares; before the first load each worker of a new server has answered at least {} requests",
        fair.rounds, fair.warm_up
    );
    if fair.apart {
        about += "; the servers have one half of the processors and the clients the other";
    }
    let cold = |row: &&Served| row.load == "full" && row.warmed_by < fair.warm_up;
    for row in fair.served.iter().filter(cold) {
        about += &format!(
            ", but of {} with {} workers and {} one has answered {}",
            row.server, row.workers, row.way, row.warmed_by
        );
    }
    for left_out in &fair.left_out {
        about += &format!("; {} is left out: {}", left_out.server, left_out.why);
    }
    about
}

const FAIR: &[Column<Served>] = &[
    ("server", |row| row.server.to_owned()),
    ("waits by", |row| row.waits_by.to_owned()),
    ("workers", |row| row.workers.to_string()),
    ("load", |row| row.load.to_owned()),
    ("way", |row| row.way.to_owned()),
    ("requests/s", |row| fixed(row.requests_per_second.median, 0)),
    ("p50 us", |row| fixed(row.microseconds[0].median, 0)),
    ("p99 us", |row| fixed(row.microseconds[1].median, 0)),
    ("10-90 %", |row| range(row.microseconds[1])),
    ("p99.9 us", |row| fixed(row.microseconds[2].median, 0)),
    ("CPU us", |row| fixed(row.cpu_microseconds.median, 0)),
    ("10-90 %", |row| range(row.cpu_microseconds)),
    ("switches", |row| fixed(row.switches.median, 1)),
    ("voluntary", |row| fixed(row.voluntary_switches.median, 1)),
    ("empty wakes", |row| {
        row.empty_wakes
            .map_or_else(|| "?".to_owned(), |wakes| format!("{wakes:.2}"))
    }),
    ("fairness", |row| fixed(row.fairness.median, 3)),
    ("failures", |row| row.failures.to_string()),
    ("missed", |row| {
        or_blank(row.missed.as_ref(), |missed| missed.join(", "))
    }),
    (REACHED, |row| {
        verdict(row.missed.as_ref().map(Vec::is_empty))
    }),
];

fn range(spread: Spread) -> String {
    format!("{:.0}-{:.0}", spread.p10, spread.p90)
}

/// Returns the table that has a row for each of `rows`.
fn table<R>(rows: &[R], figures: Range<usize>, columns: &[Column<R>]) -> Table {
    let cells = |row| columns.iter().map(|(_, text)| text(row)).collect();
    Table {
        header: columns.iter().map(|&(name, _)| name).collect(),
        figures,
        rows: rows.iter().map(cells).collect(),
    }
}

fn nanoseconds(figure: f64) -> String {
    if figure < 1000.0 {
        format!("{figure:.1}")
    } else {
        format!("{figure:.0}")
    }
}

fn microseconds(nanoseconds: u64) -> String {
    fixed(nanoseconds as f64 / 1000.0, 1)
}

fn times(ratio: f64) -> String {
    format!("{ratio:.2}x")
}

fn percentiles(ratio: Spread, trusted: bool) -> String {
    let shown = format!("{:.2}-{:.2}", ratio.p10, ratio.p90);
    if trusted {
        shown
    } else {
        format!("{shown}, {TOO_WIDE}")
    }
}

const YES: &str = "yes";
const NO: &str = "no";

fn verdict(reached: Option<bool>) -> String {
    let text = reached.map(|reached| if reached { YES } else { NO });
    text.unwrap_or_default().to_owned()
}

/// Returns the text of a figure; none if there is no figure.
fn or_blank<T>(figure: Option<T>, text: impl FnOnce(T) -> String) -> String {
    figure.map_or_else(String::new, text)
}

fn fixed(figure: f64, digits: usize) -> String {
    format!("{figure:.digits$}")
}
