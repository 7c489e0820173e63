//! Entry points into a set that models need besides the public ones.

use super::Set;
use super::scan::Turns;
use crate::events::Event;
use crate::file::{File, FileId};
use crate::wait::Ask;

impl File<Set> {
    /// Returns whether a thread holds the set's lock.
    pub fn is_locked(&self) -> bool {
        self.set().inner.is_locked()
    }

    /// Harvests as a wait that may sleep does at its start: events of rotating sets are left to
    /// workers that were chosen. Such a wait asks again before long, which models leave out.
    pub fn harvest_in_turn(&self, events: &mut [Event]) -> usize {
        let ask = Ask::Yielding;
        self.set().harvest_as(events, ask, &mut Turns::default())
    }

    /// The source of `rotating`, which this set watches, chooses this set by a line of its own, as the
    /// kernel does.
    pub fn be_chosen(&self, rotating: &File<Set>) {
        for item in self.set().lock().iter() {
            if FileId::of(item.file()) == rotating.as_file_ref().identity() {
                item.choose();
                item.queue();
            }
        }
    }
}
