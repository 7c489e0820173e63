//! The items of a set that watch one file.

use arrayvec::ArrayVec;

use super::interest::{ItemRef, LockedSet, Registered};
use crate::file::Description;

/// Calls `each` with the items of the set that watch `file`. Takes no memory.
pub fn each_that_watches<'g>(
    locked: &'g LockedSet<'_>,
    file: &Description,
    mut each: impl FnMut(ItemRef<'g>),
) {
    let mut part = next_of(locked, Registered::among(&file.watchers().lock()));
    loop {
        // Without the lock of the list.
        part.iter().for_each(|&item| each(item));
        let Some(last) = part.last().filter(|_| part.is_full()) else {
            return;
        };
        let watchers = file.watchers().lock();
        // SAFETY: `next_of` found the item in this list. The set's items leave it with the set's lock held, which `locked` has.
        let links = unsafe { watchers.iter_behind(&last.link) };
        // SAFETY: the list is locked.
        let items = links.map(|link| unsafe { Registered::of_link(link) });
        part = next_of(locked, items);
    }
}

/// Returns the first items of the set among `items`. There are no more if it is not full.
fn next_of<'g, 'a>(
    locked: &'g LockedSet<'_>,
    items: impl Iterator<Item = Registered<'a>>,
) -> ArrayVec<ItemRef<'g>, 4> {
    items.filter_map(|item| locked.own(item)).take(4).collect()
}

/// Returns the slot of an item of the set that watches `file`, if there is any, and whether the item in the slot `known` is
/// one of them.
pub fn first_that_watches(
    locked: &LockedSet<'_>,
    file: &Description,
    known: Option<u32>,
) -> (Option<u32>, bool) {
    let (mut first, mut is_known) = (None, false);
    each_that_watches(locked, file, |item| {
        let slot = item.slot();
        first.get_or_insert(slot);
        is_known |= known == Some(slot);
    });
    (first, is_known)
}
