//! The figures as tables for readers, and as JSON for programs.

use std::fmt::{self, Display, Formatter};
use std::ops::Range;

use comfy_table::{CellAlignment, ContentArrangement};
use serde::Serialize;

use super::backpressure::Pressed;
use super::calls::Compared;
use super::fair::Fair;
use super::growth::Grown;
use super::machine::Machine;
use super::measure::{Effort, Spread};
use super::numbers::Numbered;
use super::peers::Peer;
use super::polling::Polled;
use super::threads::{Goal, LockUse, Threaded};
use super::timeouts::Late;
use super::workers::Shared;

/// Marks a spread that is too wide for its median to count.
pub(super) const TOO_WIDE: &str = "too wide to trust";

/// Said of a run that Ctrl-C has ended.
pub(super) const INTERRUPTED: &str = "interrupted: this is what there was until then";

/// The column of rows that have reached their target.
const REACHED: &str = "reached";

/// All figures of a run.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) machine: Machine,
    /// The CPU that all benchmarks with one thread were bound to.
    pub(super) pinned_to: usize,
    pub(super) quick: bool,
    /// Whether Ctrl-C ended the run before everything was measured.
    pub(super) interrupted: bool,
    pub(super) effort: Effort,
    pub(super) comparisons: Vec<Compared>,
    pub(super) peers: Vec<Peer>,
    pub(super) numbers: Vec<Numbered>,
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
    fn add_row(&mut self, row: impl Into<Vec<String>>) {
        self.rows.push(row.into());
    }

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
    Numbers,
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
            Part::Numbers => "Numbers",
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
            (Part::Numbers, self.numbers.is_empty()),
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
            Part::Numbers => {
                "Operations on objects, and by number through the C interface, batches by \
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
            Part::Comparisons => comparisons(&self.comparisons),
            Part::Peers => peers(&self.peers),
            Part::Numbers => numbers(&self.numbers),
            Part::Polls => polls(&self.polls),
            Part::Growth => growth(&self.growth),
            Part::Timeouts => timeouts(&self.timeouts),
            Part::Workers => workers(&self.workers),
            Part::Threads => threads(&self.threads),
            Part::Backpressure => backpressure(&self.backpressure),
            Part::Fair => fair(&self.fair),
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

fn comparisons(rows: &[Compared]) -> Table {
    let mut table = table(
        &[
            "name",
            "operation",
            "against",
            "other ns",
            "upoll ns",
            "ratio",
            "10-90 %",
            "to reach",
            REACHED,
        ],
        3..9,
    );
    for row in rows {
        table.add_row([
            row.row.name.to_owned(),
            row.row.what.clone().into_owned(),
            row.row.against.to_owned(),
            nanoseconds(row.other_nanoseconds.median),
            nanoseconds(row.upoll_nanoseconds.median),
            times(row.ratio.median),
            percentiles(row.ratio, row.trusted),
            row.row.target.map_or_else(String::new, times),
            row.reached.map_or("", yes_no).to_owned(),
        ]);
    }
    table
}

fn peers(rows: &[Peer]) -> Table {
    let mut table = table(
        &[
            "name",
            "operation",
            "by",
            "against",
            "sources",
            "ns",
            "ratio",
            "10-90 %",
            "to reach",
            REACHED,
            "note",
        ],
        4..10,
    );
    for row in rows {
        let figures = row.figures.as_ref();
        let ratio = figures.and_then(|figures| figures.ratio);
        let is_fastest = figures.is_some_and(|figures| figures.fastest);
        let note = match &row.skipped {
            Some(why) => format!("skipped: {why}"),
            None if is_fastest => "fastest".to_owned(),
            None => String::new(),
        };
        table.add_row([
            row.name.to_owned(),
            row.what.to_owned(),
            row.by.to_owned(),
            row.against.unwrap_or_default().to_owned(),
            row.sources.to_string(),
            figures.map_or_else(String::new, |figures| {
                nanoseconds(figures.nanoseconds.median)
            }),
            ratio.map_or_else(String::new, |ratio| times(ratio.median)),
            ratio.map_or_else(String::new, |ratio| percentiles(ratio, ratio.is_trusted())),
            row.target.map_or_else(String::new, times),
            row.reached.map_or("", yes_no).to_owned(),
            note,
        ]);
    }
    table
}

fn numbers(rows: &[Numbered]) -> Table {
    let mut table = table(
        &[
            "name",
            "operation",
            "calls",
            "object ns",
            "number ns",
            "added ns per call",
            "10-90 %",
            "at most",
            REACHED,
        ],
        2..8,
    );
    for row in rows {
        let added = row.added_nanoseconds;
        table.add_row([
            row.name.to_owned(),
            row.what.to_owned(),
            row.calls.to_string(),
            nanoseconds(row.object_nanoseconds.median),
            nanoseconds(row.number_nanoseconds.median),
            nanoseconds(added.median),
            format!("{:.1}-{:.1}", added.p10, added.p90),
            row.target_nanoseconds.map_or_else(String::new, nanoseconds),
            row.reached.map_or("", yes_no).to_owned(),
        ]);
    }
    table
}

fn polls(rows: &[Polled]) -> Table {
    let mut table = table(
        &[
            "name",
            "call",
            "over",
            "files",
            "stack ns",
            "heap ns",
            "context ns",
            "kernel ns",
            "heap / stack",
            "10-90 %",
            "to reach",
            REACHED,
            "stack / context",
            "kernel / stack",
            "10-90 %",
        ],
        3..15,
    );
    for row in rows {
        let median = |figure: Option<Spread>| {
            figure.map_or_else(String::new, |figure| nanoseconds(figure.median))
        };
        table.add_row([
            row.name.to_owned(),
            row.call.to_owned(),
            row.what.to_owned(),
            row.files.to_string(),
            nanoseconds(row.upoll_nanoseconds.median),
            nanoseconds(row.heap_nanoseconds.median),
            median(row.context_nanoseconds),
            median(row.kernel_nanoseconds),
            times(row.gain.median),
            percentiles(row.gain, row.gain.is_trusted()),
            row.gain_target.map_or_else(String::new, times),
            row.reached.map_or("", yes_no).to_owned(),
            row.context_gain
                .map_or_else(String::new, |gain| times(gain.median)),
            row.ratio
                .map_or_else(String::new, |ratio| times(ratio.median)),
            row.ratio
                .map_or_else(String::new, |ratio| percentiles(ratio, ratio.is_trusted())),
        ]);
    }
    table
}

fn growth(rows: &[Grown]) -> Table {
    let mut table = table(
        &[
            "name",
            "operation",
            "items",
            "kernel items",
            "kernel ns",
            "upoll ns",
            "ratio",
            "kernel growth",
            "upoll growth",
            "10-90 %",
            "at most",
            REACHED,
        ],
        2..11,
    );
    for row in rows {
        let kernel_items = if row.kernel_items == row.items {
            row.kernel_items.to_string()
        } else {
            format!("{}, all descriptors", row.kernel_items)
        };
        table.add_row([
            row.name.to_owned(),
            row.what.to_owned(),
            row.items.to_string(),
            kernel_items,
            nanoseconds(row.kernel_nanoseconds.median),
            nanoseconds(row.upoll_nanoseconds.median),
            times(row.ratio.median),
            times(row.kernel_growth.median),
            times(row.upoll_growth.median),
            percentiles(row.upoll_growth, row.trusted),
            times(row.upoll_growth_tolerated),
            yes_no(row.reached).to_owned(),
        ]);
    }
    table
}

fn timeouts(rows: &[Late]) -> Table {
    let mut table = table(
        &[
            "name",
            "by",
            "limit us",
            "files",
            "late p50 us",
            "late p99 us",
            "worst us",
            "early",
            "ppoll's",
            "epoll_pwait2's",
            "growth",
            "10-90 %",
            "to reach",
            REACHED,
        ],
        2..12,
    );
    for row in rows {
        table.add_row([
            row.name.to_owned(),
            row.by.to_owned(),
            row.limit_microseconds.to_string(),
            row.files.to_string(),
            microseconds(row.p50_nanoseconds),
            microseconds(row.p99_nanoseconds),
            microseconds(row.worst_nanoseconds),
            row.early.to_string(),
            times(row.ppoll_ratio.median),
            times(row.pwait2_ratio.median),
            times(row.growth.median),
            percentiles(row.growth, row.trusted),
            row.goal.clone().unwrap_or_default(),
            row.reached.map_or("", yes_no).to_owned(),
        ]);
    }
    table
}

fn workers(rows: &[Shared]) -> Table {
    let mut table = table(
        &[
            "name",
            "way",
            "ms",
            "ratio",
            "10-90 %",
            "events of a worker",
            "fairness",
            "worst",
            "switches per event",
            "voluntary",
            "involuntary",
            "empty wakes per event",
            "to reach",
            REACHED,
        ],
        2..12,
    );
    for row in rows {
        let [fewest, middle, most] = row.shares;
        table.add_row([
            row.name.to_owned(),
            row.way.to_owned(),
            format!("{:.1}", row.milliseconds.median),
            times(row.ratio.median),
            format!("{:.1}-{:.1}", row.ratio.p10, row.ratio.p90),
            format!(
                "{:.0} / {:.0} / {:.0}",
                fewest.median, middle.median, most.median
            ),
            format!("{:.4}", row.fairness.median),
            format!("{:.4}", row.worst_fairness),
            format!("{:.2}", row.switches_per_event.median),
            format!("{:.2}", row.voluntary_switches_per_event.median),
            format!("{:.2}", row.involuntary_switches_per_event.median),
            format!("{:.2}", row.empty_wakes_per_event.median),
            row.goal.map_or_else(String::new, |goal| {
                format!(
                    "{}, fairness {}, switches {}",
                    times(goal.ratio),
                    goal.fairness,
                    goal.switches_per_event
                )
            }),
            row.reached.map_or("", yes_no).to_owned(),
        ]);
    }
    table
}

fn threads(rows: &[Threaded]) -> Table {
    let mut table = table(
        &[
            "name",
            "work",
            "by",
            "sets",
            "threads",
            "requests/s",
            "against kernel",
            "had a core",
            "growth",
            "10-90 %",
            "per core",
            "10-90 %",
            "locks per request",
            "shared",
            "contended",
            "time waiting",
            "to reach",
            REACHED,
            "note",
        ],
        4..17,
    );
    for row in rows {
        let locks = |figure: fn(LockUse) -> String| row.locks.map_or_else(String::new, figure);
        table.add_row([
            row.name.to_owned(),
            row.work.to_owned(),
            row.by.to_owned(),
            row.sets.to_owned(),
            row.threads.to_string(),
            format!("{:.0}", row.requests_per_second.median),
            times(row.ratio.median),
            format!("{:.2}", row.threads_with_a_core.median),
            times(row.growth.median),
            percentiles(row.growth, row.growth.is_trusted()),
            times(row.growth_per_core.median),
            percentiles(row.growth_per_core, row.growth_per_core.is_trusted()),
            locks(|locks| format!("{:.1}", locks.taken_per_request)),
            locks(|locks| match locks.shared_in_all {
                0 => "none".to_owned(),
                _ => percent(locks.shared),
            }),
            locks(|locks| percent(locks.contended)),
            locks(|locks| percent(locks.waiting)),
            row.goal.map_or_else(String::new, to_reach),
            row.reached.map_or("", yes_no).to_owned(),
            row.note.clone().unwrap_or_default(),
        ]);
    }
    table
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

fn backpressure(rows: &[Pressed]) -> Table {
    let mut table = table(
        &[
            "name",
            "what",
            "by",
            "maximum",
            "writer CPU ms",
            "reader CPU ms",
            "writes",
            "reads",
            "average batch",
            "p99 us",
            "p999 us",
            "worst us",
            "to reach",
            "figure",
            REACHED,
        ],
        3..12,
    );
    for row in rows {
        let latency = |pick: fn(&super::backpressure::Latency) -> f64| {
            let figure = row.latency.as_ref().map(pick);
            figure.map_or_else(String::new, |figure| format!("{figure:.0}"))
        };
        let maximum = match row.maximum {
            u64::MAX => "none".to_owned(),
            maximum => maximum.to_string(),
        };
        let goal = row.goal.as_ref();
        table.add_row([
            row.name.to_owned(),
            row.what.to_owned(),
            row.by.to_owned(),
            maximum,
            format!("{:.0}", row.writer_cpu_milliseconds),
            format!("{:.0}", row.reader_cpu_milliseconds),
            row.writes.to_string(),
            row.reads.to_string(),
            format!("{:.1}", row.average_batch),
            latency(|latency| latency.p99_microseconds),
            latency(|latency| latency.p999_microseconds),
            latency(|latency| latency.worst_microseconds),
            goal.map_or_else(String::new, |goal| goal.what.to_owned()),
            goal.map_or_else(String::new, |goal| match goal.rounds[..] {
                [least, .., most] => format!("{:.1} ({least:.1}-{most:.1})", goal.figure),
                _ => format!("{:.1}", goal.figure),
            }),
            goal.map_or("", |goal| yes_no(goal.reached)).to_owned(),
        ]);
    }
    table
}

fn about_fair(fair: &Fair) -> String {
    let mut about = format!(
        "Servers, a connection for each request, as they are, with EPOLLEXCLUSIVE alone and under upoll run --fair with \
         the policies named, {} runs of each by turns: medians, and of the response time's 99th percentile and the CPU \
         time the 10th to 90th percentile of the runs; a light load is a tenth and a medium load half of what the server \
         answers at full load; CPU time, context switches (all, and the voluntary ones of them) and empty wakes (waits \
         that ended for a connection which another worker took) are for a request, and fairness is Jain's index of the \
         workers' shares",
        fair.rounds
    );
    for left_out in &fair.left_out {
        about += &format!("; {} is left out: {}", left_out.server, left_out.why);
    }
    about
}

fn fair(fair: &Fair) -> Table {
    let mut table = table(
        &[
            "server",
            "waits by",
            "workers",
            "load",
            "way",
            "requests/s",
            "p50 us",
            "p99 us",
            "10-90 %",
            "p99.9 us",
            "CPU us",
            "10-90 %",
            "switches",
            "voluntary",
            "empty wakes",
            "fairness",
            "failures",
            "missed",
            REACHED,
        ],
        5..17,
    );
    for row in &fair.served {
        let [p50, p99, p999] = row.microseconds;
        let range = |spread: Spread| format!("{:.0}-{:.0}", spread.p10, spread.p90);
        table.add_row([
            row.server.to_owned(),
            row.waits_by.to_owned(),
            row.workers.to_string(),
            row.load.to_owned(),
            row.way.to_owned(),
            format!("{:.0}", row.requests_per_second.median),
            format!("{:.0}", p50.median),
            format!("{:.0}", p99.median),
            range(p99),
            format!("{:.0}", p999.median),
            format!("{:.0}", row.cpu_microseconds.median),
            range(row.cpu_microseconds),
            format!("{:.1}", row.switches.median),
            format!("{:.1}", row.voluntary_switches.median),
            row.empty_wakes
                .map_or_else(|| "?".to_owned(), |wakes| format!("{wakes:.2}")),
            format!("{:.3}", row.fairness.median),
            row.failures.to_string(),
            row.missed
                .as_ref()
                .map_or_else(String::new, |missed| missed.join(", ")),
            row.missed
                .as_ref()
                .map_or("", |missed| yes_no(missed.is_empty()))
                .to_owned(),
        ]);
    }
    table
}

fn table<const COLUMNS: usize>(header: &[&'static str; COLUMNS], figures: Range<usize>) -> Table {
    Table {
        header: header.to_vec(),
        figures,
        rows: Vec::new(),
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
    format!("{:.1}", nanoseconds as f64 / 1000.0)
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

fn yes_no(reached: bool) -> &'static str {
    if reached { YES } else { NO }
}
