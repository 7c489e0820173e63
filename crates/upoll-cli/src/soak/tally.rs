//! Counts of what a run did.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of what all threads of a run did.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) rounds: AtomicU64,
    pub(super) units: AtomicU64,
    pub(super) waits: AtomicU64,
    pub(super) changes: AtomicU64,
    pub(super) closes: AtomicU64,
    pub(super) polls: AtomicU64,
    pub(super) steps: AtomicU64,
    pub(super) races: AtomicU64,
    pub(super) signals: AtomicU64,
    pub(super) forks: AtomicU64,
}

impl Tally {
    pub(super) fn rows(&self) -> [(&'static str, u64); 10] {
        [
            ("rounds", &self.rounds),
            ("units sent and received", &self.units),
            ("waits", &self.waits),
            ("interests changed", &self.changes),
            ("objects closed while watched", &self.closes),
            ("polls without a wait", &self.polls),
            ("steps in lockstep", &self.steps),
            ("races of calls", &self.races),
            ("signal handlers that wrote", &self.signals),
            ("forks", &self.forks),
        ]
        .map(|(name, count)| (name, count.load(Ordering::Relaxed)))
    }

    /// Returns a number that differs after each thing that is counted.
    pub(super) fn sum(&self) -> u64 {
        self.rows().iter().map(|(_, count)| count).sum()
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
