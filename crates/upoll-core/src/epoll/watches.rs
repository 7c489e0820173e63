//! The items of a set that watch one file.

use core::ptr::{self, NonNull};

use arrayvec::ArrayVec;

use super::Set;
use super::ctl::item_of;
use super::interest::{Interests, Item};
use crate::file::{Description, WatcherLink};

/// Calls `each` with the items of `set`, whose `interests` are locked, that watch `file`. Takes no memory.
pub fn each_that_watches(
    set: &Set,
    _interests: &Interests,
    file: &Description,
    mut each: impl FnMut(NonNull<Item>),
) {
    let mut part = next_of(set, file.watchers().lock().iter());
    loop {
        // Without the lock of the list.
        part.iter().for_each(|&item| each(item));
        let Some(last) = part.last().filter(|_| part.is_full()) else {
            return;
        };
        let watchers = file.watchers().lock();
        // SAFETY: the set's items come to the list and leave it with the set's lock held, as it is here.
        let links = unsafe { watchers.iter_behind(&last.as_ref().link) };
        part = next_of(set, links);
    }
}

/// Returns the first items of `set` among those of `links`, which are in a watcher list that is locked. There are no more if
/// it is not full.
fn next_of(
    set: &Set,
    links: impl Iterator<Item = *const WatcherLink>,
) -> ArrayVec<NonNull<Item>, 4> {
    let is_own = |&item: &NonNull<Item>| {
        // SAFETY: items in a locked watcher list are registered, so their set is alive.
        let watches_for = unsafe { (*item.as_ref().set).object() };
        ptr::eq(watches_for, set)
    };
    let items = links.filter_map(|link| NonNull::new(item_of(link).cast_mut()));
    items.filter(is_own).take(4).collect()
}

/// Returns the slot of an item of `set` that watches `file`, if there is any, and whether the item in the slot `known` is
/// one of them. `interests` is the set's, locked.
pub fn first_that_watches(
    set: &Set,
    interests: &Interests,
    file: &Description,
    known: Option<u32>,
) -> (Option<u32>, bool) {
    let (mut first, mut is_known) = (None, false);
    each_that_watches(set, interests, file, |item| {
        let slot = interests.slot_of(item.as_ptr());
        first.get_or_insert(slot);
        is_known |= known == Some(slot);
    });
    (first, is_known)
}
