//! `upoll bench`: how fast upoll is, as ratios against the host kernel in the same run.

mod calls;
mod kernel;
mod machine;
mod measure;
mod report;

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;
use indicatif::{ProgressBar, ProgressStyle};

use self::calls::COMPARISONS;
use self::machine::Machine;
use self::measure::Effort;
use self::report::Report;

/// What to measure, and where to put it.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// What to measure; everything if nothing is named.
    #[arg(value_parser = PossibleValuesParser::new(names()))]
    names: Vec<String>,
    /// Measure less of everything: for a first look.
    #[arg(long)]
    quick: bool,
    /// Also write every figure to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// All benchmarks, in the order of the tables.
fn names() -> Vec<&'static str> {
    COMPARISONS.iter().map(|row| row.name).collect()
}

impl Options {
    fn wants(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|wanted| wanted == name)
    }
}

/// Measures, prints the tables, writes the JSON.
pub(crate) fn run(options: &Options) -> Result<()> {
    let machine = Machine::look().context("looking at the machine")?;
    let effort = Effort {
        batches: if options.quick { 31 } else { 201 },
        batch_microseconds: 1000,
    };
    let pinned_to = *machine.cpus.last().context("no CPU to run on")?;
    let progress = progress(names().iter().filter(|name| options.wants(name)).count());

    machine::pin(&[pinned_to]).context("binding to one CPU")?;
    let mut comparisons = Vec::new();
    for row in COMPARISONS.iter().filter(|row| options.wants(row.name)) {
        progress.set_message(row.name);
        comparisons.push(row.measure(effort).with_context(|| row.name)?);
        progress.inc(1);
    }
    machine::pin(&machine.cpus).context("binding to all CPUs")?;

    progress.finish_and_clear();
    let report = Report {
        machine,
        pinned_to,
        quick: options.quick,
        effort,
        comparisons,
    };
    print!("{}", report.tables());
    if let Some(path) = &options.json {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        serde_json::to_writer_pretty(BufWriter::new(file), &report)
            .with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Shown on a terminal only.
fn progress(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}")
        .expect("the template is a valid one");
    ProgressBar::new(steps as u64).with_style(style)
}
