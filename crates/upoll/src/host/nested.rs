//! Sets with a kernel side that are watched by other sets.
//!
//! The outer set gets a hub: a kernel set that has the kernel set of each inner one in it,
//! edge-triggered, and that of the outer set's own members. From then on threads sleep in the hub,
//! and learn there when something becomes ready below. What the core then makes of it is its
//! business: the inner set is queued in the outer one and looked at like any member. As nothing in
//! a hub is the user's, anyone may empty it at any time and hand on what it says.

use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};

use smallvec::SmallVec;

use super::special::Special;
use super::{EDGE, KernelSide};
use crate::epoll::ctl::{as_set, item_of};
use crate::epoll::interest::{Interests, Item, state};
use crate::epoll::{Op, Set};
use crate::errno::Errno;
use crate::events::Events;
use crate::file::Description;
use crate::sync::Ordering;

/// The kernel sides below a set: one for each watched set that has one.
pub(super) struct Links(Vec<Link>);

struct Link {
    /// Which set it is of: its description's address, for as long as an item watches it.
    inner: usize,
    /// An item that watches it.
    slot: u32,
    /// Its kernel set.
    fd: RawFd,
    /// Its source is watched from here, too.
    has_source: bool,
}

/// Whether a source's interest must be registered anew even if it is registered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Renew {
    No,
    Source,
}

impl Links {
    pub(super) fn new() -> Self {
        Links(Vec::new())
    }
}

impl KernelSide {
    /// Makes the hub know what the items of this set that watch `inner` need it to know: the
    /// kernel set that `inner`'s threads sleep in, and its source if it is a rotating set.
    /// `interests` is the set's, locked. Without a hub nothing has been linked yet.
    pub(super) fn link(
        &self,
        set: &Set,
        interests: &Interests,
        inner: &Description,
        renew: Renew,
    ) -> Result<(), Errno> {
        let Some(below) = as_set(inner).and_then(Set::companion) else {
            return Ok(());
        };
        let Some(hub) = self.hub() else {
            return Ok(());
        };
        let register = |op, fd, special| hub.register(&self.specials, op, fd, EDGE, special);
        let address = ptr::from_ref(inner).cast::<()>().addr();
        let slots = slots_that_watch(set, interests, inner);
        let mut links = self.links.lock();
        let known = links.0.iter().position(|link| link.inner == address);
        let Some(&first) = slots.first() else {
            if let Some(at) = known {
                let link = links.0.swap_remove(at);
                if let Some(rotation) = below.rotation.as_ref().filter(|_| link.has_source) {
                    rotation.unwatch(&hub.fd);
                }
                return register(Op::Del, link.fd, Special::Nested(link.slot));
            }
            return Ok(());
        };
        let fd = below.sleep_set().fd.as_raw_fd();
        let at = match known {
            Some(at) => at,
            None => {
                register(Op::Add, fd, Special::Nested(first))?;
                links.0.push(Link {
                    inner: address,
                    slot: first,
                    fd,
                    has_source: false,
                });
                links.0.len() - 1
            }
        };
        let link = &mut links.0[at];
        if link.fd != fd {
            // It has a hub by now.
            register(Op::Add, fd, Special::Nested(link.slot))?;
            let _ = register(Op::Del, link.fd, Special::Nested(link.slot));
            link.fd = fd;
        }
        let mut renew = renew;
        if !slots.contains(&link.slot) {
            link.slot = first;
            renew = Renew::Source;
            register(Op::Mod, link.fd, Special::Nested(first))?;
        }
        let Some(rotation) = &below.rotation else {
            return Ok(());
        };
        if link.has_source && renew == Renew::Source {
            link.has_source = false;
            rotation.unwatch(&hub.fd);
        }
        if !link.has_source {
            let data = self.specials.encode(Special::Chosen(link.slot));
            link.has_source = rotation.watch(&hub.fd, data)?;
        }
        Ok(())
    }

    /// Something happened below: has the core look there. Says whether it has anything new to
    /// look at.
    pub(super) fn kick(&self, set: &Set, below: &[(Special, Events)]) -> bool {
        let interests = set.inner.lock();
        let mut queued = false;
        for &(special, events) in below {
            let slot = match special {
                Special::Nested(slot) | Special::Chosen(slot) => slot,
                Special::Changed(slot, direction) => {
                    queued |= self.hear(set, &interests, slot, direction);
                    continue;
                }
                Special::Bell | Special::Members => continue,
            };
            // A slot that means another item by now has that one looked at for nothing.
            let Some(item) = interests.at(slot) else {
                continue;
            };
            // SAFETY: registered, and the set's lock is held.
            let node = unsafe { &*item };
            if node.state() & state::WATCHES_SET == 0 {
                continue;
            }
            if let Special::Chosen(_) = special {
                // SAFETY: registered, and the set's lock is held.
                if let Some(rotating) = as_set(unsafe { node.file() }) {
                    rotating.note_hang_up(events);
                }
                node.entry
                    .owner_word
                    .fetch_or(state::CHOSEN, Ordering::Relaxed);
                let mut chosen = self.chosen.lock();
                if !chosen.contains(&slot) {
                    chosen.push(slot);
                }
                self.has_chosen.store(true, Ordering::Release);
            }
            // SAFETY: as above.
            for slot in slots_that_watch(set, &interests, unsafe { node.file() }) {
                let Some(item) = interests.at(slot).and_then(as_item) else {
                    continue;
                };
                // SAFETY: as above.
                if unsafe { item.as_ref() }.interest().contains(Events::IN) {
                    // SAFETY: as above.
                    queued |= unsafe { set.queue(item) };
                }
            }
        }
        queued
    }

    /// A report has gone out: the sources that chose this set have it stand last in line, from the
    /// next sleep on. If there was nothing to report the set keeps its place.
    pub(crate) fn settle_choice(&self, reported: bool) {
        if !reported && self.has_chosen.load(Ordering::Relaxed) {
            self.chosen.lock().clear();
            self.has_chosen.store(false, Ordering::Relaxed);
        }
    }

    /// Before a sleep: stands last in the kernel's line for the sources that chose this set before.
    /// The core has counted its turn already.
    pub(crate) fn stand_last(&self, set: &Set) {
        if !self.has_chosen.load(Ordering::Relaxed) {
            return;
        }
        let interests = set.inner.lock();
        let chosen = std::mem::take(&mut *self.chosen.lock());
        self.has_chosen.store(false, Ordering::Relaxed);
        for slot in chosen {
            self.stand_last_for(&interests, slot);
        }
    }

    fn stand_last_for(&self, interests: &Interests, slot: u32) {
        let Some(hub) = self.hub() else { return };
        let mut links = self.links.lock();
        let Some(link) = links.0.iter_mut().find(|link| link.slot == slot) else {
            return;
        };
        let Some(item) = interests.at(slot) else {
            return;
        };
        // SAFETY: registered, and the set's lock is held.
        let below = as_set(unsafe { (*item).file() }).and_then(Set::companion);
        let Some(rotation) = below.and_then(|side| side.rotation.as_ref()) else {
            return;
        };
        let data = self.specials.encode(Special::Chosen(slot));
        // If the kernel is out of memory the next change of the source registers it again.
        link.has_source = rotation.renew(&hub.fd, data).unwrap_or(false);
    }
}

pub(super) fn as_item(item: *const Item) -> Option<NonNull<Item>> {
    NonNull::new(item.cast_mut())
}

/// The slots of the items of `set`, whose `interests` are locked, that watch `file`.
pub(super) fn slots_that_watch(
    set: &Set,
    interests: &Interests,
    file: &Description,
) -> SmallVec<[u32; 4]> {
    let watchers = file.watchers().lock();
    watchers
        .iter()
        .map(item_of)
        .filter(|&item| {
            // SAFETY: items in a locked watcher list are registered, so their set is alive.
            let watches_for = unsafe { (*(*item).set).object() };
            ptr::eq(watches_for, set)
        })
        .map(|item| interests.slot_of(item))
        .collect()
}
