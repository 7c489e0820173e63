//! `upoll bench`: the speed of upoll, as ratios to the host kernel in the same run.

mod backpressure;
mod batch;
mod calls;
mod channels;
mod closing;
mod descriptors;
mod fair;
mod fds;
mod growth;
mod html;
mod kernel;
mod machine;
mod measure;
mod peers;
mod polling;
mod report;
mod set;
mod sharing;
mod tasks;
mod threads;
mod timeouts;
mod wakes;
mod workers;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;
use clap::value_parser;
use indicatif::{ProgressBar, ProgressStyle};
use upoll_fair_state::DEFAULT_POLICY;

use self::calls::{Compared, Comparison};
use self::fair::Fair;
use self::machine::Machine;
use self::measure::Effort;
use self::report::Report;
use crate::interrupt;
use crate::output::{self, Output};

/// The benchmarks to run, and the files to write.
#[derive(clap::Args)]
pub(crate) struct Options {
    #[arg(
        value_name = "NAME",
        value_parser = PossibleValuesParser::new(names()),
        hide_possible_values = true,
        help = "What to measure; everything if nothing is named (--help lists the names)",
        long_help = names_help()
    )]
    names: Vec<String>,
    /// Measures only these servers in `fair`; `ci/fair-servers` installs them.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = PossibleValuesParser::new(fair::servers()))]
    servers: Vec<String>,
    /// Measures `fair` with these policies of `upoll run --fair`.
    #[arg(long, value_name = "POLICIES", value_delimiter = ',', value_parser = policy, default_value = DEFAULT_POLICY)]
    policies: Vec<String>,
    /// Warms each worker of a server in `fair` by this many requests before the first load; 0 measures cold workers.
    ///
    /// The requests come at full load. They are at most eight times those that this takes with equal shares.
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(..=100_000), default_value_t = fair::WARM_UP)]
    warm_up: u64,
    /// Runs the servers in `fair` on one half of the processors and their clients on the other.
    ///
    /// Clients on the processors of a server preempt its workers. Those switches have nothing to do with the way in which
    /// workers are woken.
    #[arg(long)]
    apart: bool,
    /// Measures less of everything, in seconds instead of minutes: for a first look. The figures
    /// are rough.
    #[arg(long)]
    quick: bool,
    /// Also writes every figure of every batch to this file, as JSON.
    ///
    /// The file is opened before the run: one that cannot be written is an error then.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also writes the tables, with plots, to this file, as one page for a browser.
    ///
    /// The file is opened before the run: one that cannot be written is an error then.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Returns the text of a policy, if it is one.
fn policy(text: &str) -> Result<String, &'static str> {
    crate::run::fair::policy(text).map(|_| text.to_owned())
}

/// Single calls on one thread, in the order of the table.
fn calls() -> impl Iterator<Item = &'static Comparison> {
    calls::COMPARISONS.iter().chain(descriptors::COMPARISONS)
}

/// All benchmarks, in groups by subject.
fn groups() -> [(&'static str, Vec<&'static str>); 13] {
    let calls = |comparisons: &[Comparison]| {
        let names = comparisons.iter().map(|comparison| comparison.row.name);
        names.collect()
    };
    [
        ("single calls on one thread", calls(calls::COMPARISONS)),
        ("the same over kernel fds", calls(descriptors::COMPARISONS)),
        (
            "a thread wakes another, on its CPU and on another",
            wakes::NAMES.to_vec(),
        ),
        ("two tasks wake each other", vec![tasks::NAME]),
        (
            "poll and select, on the stack and on the heap",
            vec![polling::NAME],
        ),
        ("calls in sets that grow", growth::NAMES.to_vec()),
        (
            "how late a wait with a time limit ends",
            vec![timeouts::NAME],
        ),
        ("many changes in one call", vec![batch::NAME]),
        (
            "channels, against crossbeam's and flume's",
            vec![channels::NAME],
        ),
        (
            "calls by fd in C, against the same on objects",
            vec![fds::NAME],
        ),
        (
            "several threads: that share a source, that close what they add, that share a set, a \
             fast one and a slow one",
            vec![
                workers::NAME,
                closing::NAME,
                sharing::NAME,
                backpressure::NAME,
            ],
        ),
        (
            "upoll against other libraries and the kernel's other calls, at the same work; is \
             measured only if it is named",
            vec![peers::NAME],
        ),
        (
            "servers under upoll run --fair; takes long, and is measured only if it is named",
            vec![fair::NAME],
        ),
    ]
}

/// All benchmarks, in the order of the groups.
fn names() -> impl Iterator<Item = &'static str> {
    groups().into_iter().flat_map(|(_, names)| names)
}

fn names_help() -> String {
    let mut help = "What to measure; everything if nothing is named:".to_owned();
    for (about, names) in groups() {
        help += &format!("\n- {about}:");
        for line in names.chunks(5) {
            help += &format!("\n    {}", line.join(" "));
        }
    }
    help
}

/// The numbers of items in the sets of the `growth` benchmarks.
const SIZES: [usize; 3] = [100, 10_000, 1_000_000];

/// Measures, prints the tables and writes the files.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let json = options.json.as_deref().map(Output::open).transpose()?;
    let html = options.html.as_deref().map(Output::open).transpose()?;
    interrupt::hold().context("holding Ctrl-C back")?;
    if json.is_none() && html.is_none() {
        interrupt::end_with_the_reader();
    }
    let machine = Machine::inspect().context("looking at the machine")?;
    let report = Run {
        effort: Effort {
            batches: if options.quick { 31 } else { 401 },
            batch_microseconds: 200,
        },
        options,
        pinned_to: *machine.cpus.last().context("no CPU to run on")?,
        progress: progress(names().filter(|name| options.wants(name)).count()),
        machine,
    }
    .measure()?;
    output::print(report.tables())?;
    if let Some(file) = json {
        file.write(&serde_json::to_vec_pretty(&report)?)?;
    }
    if let Some(file) = html {
        file.write(html::page(&report)?.as_bytes())?;
    }
    Ok(match report.interrupted && interrupt::is_pressed() {
        true => ExitCode::from(interrupt::STATUS),
        false => ExitCode::SUCCESS,
    })
}

impl Options {
    fn wants(&self, name: &str) -> bool {
        // Programs and libraries of others are measured only if named.
        self.names.is_empty() && ![peers::NAME, fair::NAME].contains(&name)
            || self.names.iter().any(|wanted| wanted == name)
    }
}

/// A run in progress.
struct Run<'a> {
    options: &'a Options,
    effort: Effort,
    machine: Machine,
    pinned_to: usize,
    progress: ProgressBar,
}

impl Run<'_> {
    fn measure(self) -> Result<Report> {
        machine::pin(&[self.pinned_to]).context("binding to one CPU")?;
        // The calls of one thread come first: the kernel's are faster while the process has no
        // other thread.
        let mut comparisons = self.one_thread()?;
        let peers = self.step(peers::NAME, || peers::measure(self.effort))?;
        let fds = self.step(fds::NAME, || fds::measure(self.effort))?;
        let polls = self.step(polling::NAME, || polling::measure(self.effort))?;
        let growth = self.growth()?;
        let timeouts = self.step(timeouts::NAME, || timeouts::measure(self.effort))?;
        let elsewhere = self.machine.cpus.iter().find(|&&cpu| cpu != self.pinned_to);
        for (name, cpu) in [
            (wakes::ONE_CPU, Some(&self.pinned_to)),
            (wakes::TWO_CPUS, elsewhere),
        ] {
            if let Some(&cpu) = cpu {
                comparisons.extend(self.step(name, || wakes::measure(name, cpu, self.effort))?);
            }
        }
        machine::pin(&self.machine.cpus).context("binding to all CPUs")?;
        let cpus = &self.machine.cpus;
        let load = self.either(workers::Load::QUICK, workers::Load::FULL);
        let workers = self.step(workers::NAME, || workers::measure(load))?;
        let load = self.either(threads::Load::QUICK, threads::Load::FULL);
        let mut threads = self.step(closing::NAME, || closing::measure(load, cpus.len()))?;
        threads.extend(self.step(sharing::NAME, || sharing::measure(load, cpus.len()))?);
        let load = self.either(backpressure::Load::QUICK, backpressure::Load::FULL);
        let backpressure = self.step(backpressure::NAME, || backpressure::measure(load, cpus))?;
        let effort = self.either(fair::Effort::QUICK, fair::Effort::FULL);
        // Of these the servers that were measured before Ctrl-C are complete.
        let mut fair = Fair::default();
        self.step(fair::NAME, || {
            let Options {
                servers,
                policies,
                warm_up,
                apart,
                ..
            } = self.options;
            let conditions = fair::Conditions {
                warm_up: *warm_up,
                processors: fair::Processors::new(cpus, *apart)?,
            };
            fair = fair::measure(effort, &conditions, servers, policies)?;
            Ok(())
        })?;
        self.progress.finish_and_clear();
        Ok(Report {
            interrupted: interrupt::is_pending(),
            machine: self.machine,
            pinned_to: self.pinned_to,
            quick: self.options.quick,
            effort: self.effort,
            comparisons,
            peers,
            fds,
            polls,
            growth,
            timeouts,
            workers,
            threads,
            backpressure,
            fair,
        })
    }

    /// Measures the calls of one thread against the kernel.
    fn one_thread(&self) -> Result<Vec<Compared>> {
        let mut comparisons = Vec::new();
        for comparison in calls() {
            let measure = || Ok(vec![comparison.measure(self.effort)?]);
            comparisons.extend(self.step(comparison.row.name, measure)?);
        }
        comparisons.extend(self.step(batch::NAME, || batch::measure(self.effort))?);
        comparisons.extend(self.step(channels::NAME, || channels::measure(self.effort))?);
        comparisons.extend(self.step(tasks::NAME, || tasks::measure(self.effort))?);
        Ok(comparisons)
    }

    fn growth(&self) -> Result<Vec<growth::Grown>> {
        let names = growth::NAMES.into_iter();
        let names: Vec<_> = names.filter(|name| self.options.wants(name)).collect();
        if names.is_empty() || interrupt::is_pending() {
            return Ok(Vec::new());
        }
        let sizes = self.either(&SIZES[..2], &SIZES);
        self.progress.set_message("growth");
        let rows = growth::measure(&names, sizes, self.machine.descriptor_limit, self.effort);
        if interrupt::is_pending() {
            return Ok(Vec::new());
        }
        self.progress.inc(names.len() as u64);
        rows
    }

    fn either<T>(&self, quick: T, full: T) -> T {
        if self.options.quick { quick } else { full }
    }

    /// Runs a step if it was selected. After Ctrl-C or without a reader there are no further steps, and the figures of the
    /// step that this came in are incomplete and left out.
    fn step<T: Default>(&self, name: &'static str, run: impl FnOnce() -> Result<T>) -> Result<T> {
        if !self.options.wants(name) || interrupt::is_pending() {
            return Ok(T::default());
        }
        self.progress.set_message(name);
        let done = run();
        if interrupt::is_pending() {
            return Ok(T::default());
        }
        self.progress.inc(1);
        done.context(name)
    }
}

/// Returns a progress bar, which is shown only on a terminal.
fn progress(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}")
        .expect("the template is a valid one");
    ProgressBar::new(steps as u64).with_style(style)
}
