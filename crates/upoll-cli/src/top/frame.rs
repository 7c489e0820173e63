//! One view of a run, as text.

use std::fmt::{self, Display, Formatter};
use std::time::Instant;

use comfy_table::{CellAlignment, Table, presets};
use upoll_fair_state::fairness;

/// The figures in the shared file of a run at one moment.
pub(super) trait Figures: Sized {
    /// Returns the figures in the bytes of the file.
    fn in_file(bytes: &[u8]) -> Self;

    /// Removes those of processes and threads that have ended, and adds what the kernel knows.
    fn complete(&mut self);

    /// Writes them, with their changes since the view before.
    fn show(
        &self,
        process: u32,
        before: Option<&Before<Self>>,
        f: &mut Formatter<'_>,
    ) -> fmt::Result;
}

/// The figures of the view before, and how many seconds ago that was.
pub(super) struct Before<F> {
    pub(super) figures: F,
    pub(super) seconds: f64,
}

/// One view: the figures now, and those of the view before.
pub(super) struct Frame<F> {
    process: u32,
    before: Option<Before<F>>,
    at: Instant,
    now: F,
}

impl<F: Figures> Frame<F> {
    /// The first view, without rates.
    pub(super) fn new(process: u32, at: Instant, now: F) -> Self {
        Frame {
            process,
            before: None,
            at,
            now,
        }
    }

    /// The view that follows this one.
    pub(super) fn next(self, at: Instant, now: F) -> Self {
        let seconds = (at - self.at).as_secs_f64();
        Frame {
            process: self.process,
            before: Some(Before {
                figures: self.now,
                seconds,
            }),
            at,
            now,
        }
    }
}

impl<F: Figures> Display for Frame<F> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.now.show(self.process, self.before.as_ref(), f)
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
fn float(count: u64) -> f64 {
    count as f64
}

/// Returns the sum of counts. Another user may have written the file, so they may be any.
pub(super) fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

/// Returns a count's part of all, as text.
pub(super) fn share(count: u64, all: u64) -> String {
    format!("{:.1}%", 100.0 * float(count) / float(all.max(1)))
}

/// Returns how much a count grows a second, as text: `-` in the first view.
pub(super) fn rate<F>(before: Option<&Before<F>>, grown: Option<u64>) -> String {
    match before.zip(grown) {
        Some((before, grown)) => format!("{:.1}", float(grown) / before.seconds),
        None => "-".into(),
    }
}

/// Returns a table without lines.
pub(super) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    table
}

/// Writes a table.
pub(super) fn write_table(mut table: Table, f: &mut Formatter<'_>) -> fmt::Result {
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    writeln!(f, "{}", table.trim_fmt())
}

/// Writes the last line: the index of fairness of all shares, and of what they have grown by.
pub(super) fn write_fairness(
    shares: impl Iterator<Item = u64>,
    grown: impl Iterator<Item = Option<u64>>,
    f: &mut Formatter<'_>,
) -> fmt::Result {
    write!(f, "fairness {:.3}", fairness(shares))?;
    // The first view has no growth.
    let mut grown = grown.flatten().peekable();
    if grown.peek().is_some() {
        write!(f, ", since the last view {:.3}", fairness(grown))?;
    }
    writeln!(f)
}
