//! The figures as tables for people and as JSON for programs.

use std::fmt::Write;

use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde::Serialize;

use super::calls::Compared;
use super::machine::Machine;
use super::measure::{Effort, Spread};

/// All that was measured.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) machine: Machine,
    /// The CPU that everything with one thread was bound to.
    pub(super) pinned_to: usize,
    pub(super) quick: bool,
    pub(super) effort: Effort,
    pub(super) comparisons: Vec<Compared>,
}

impl Report {
    /// The tables of what was measured.
    pub(super) fn tables(&self) -> String {
        let mut out = String::new();
        let machine = &self.machine;
        let _ = writeln!(
            out,
            "upoll {} against Linux {} on {}, {} CPUs, clock source {}",
            machine.upoll_version,
            machine.kernel_release,
            machine.cpu_model,
            machine.cpus.len(),
            machine.clock_source,
        );
        if !self.comparisons.is_empty() {
            let _ = writeln!(
                out,
                "\nOn CPU {}, {} batches of {} us on each side by turns: medians, and of the \
                 ratios of paired batches the 10th to 90th percentile\n{}",
                self.pinned_to,
                self.effort.batches,
                self.effort.batch_microseconds,
                comparisons(&self.comparisons)
            );
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
            "reached",
        ],
        3..8,
    );
    for row in rows {
        table.add_row([
            row.name.to_owned(),
            row.what.to_owned(),
            row.against.to_owned(),
            nanoseconds(row.other_nanoseconds.median),
            nanoseconds(row.upoll_nanoseconds.median),
            times(row.ratio.median),
            percentiles(row.ratio, row.trusted),
            row.target.map_or_else(String::new, times),
            row.reached.map_or("", yes_no).to_owned(),
        ]);
    }
    table
}

fn table(header: &[&str], figures: std::ops::Range<usize>) -> Table {
    let mut table = Table::new();
    table
        .load_style(comfy_table::presets::ASCII_MARKDOWN)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header.to_vec());
    for column in figures {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn nanoseconds(figure: f64) -> String {
    if figure < 1000.0 {
        format!("{figure:.1}")
    } else {
        format!("{figure:.0}")
    }
}

fn times(ratio: f64) -> String {
    format!("{ratio:.2}x")
}

fn percentiles(ratio: Spread, trusted: bool) -> String {
    let shown = format!("{:.2}-{:.2}", ratio.p10, ratio.p90);
    if trusted {
        shown
    } else {
        format!("{shown}, too wide to trust")
    }
}

fn yes_no(reached: bool) -> &'static str {
    if reached { "yes" } else { "no" }
}
