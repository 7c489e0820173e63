//! Sets with a kernel backend that are watched by other sets.
//!
//! The outer set gets a nesting fd. It is a kernel set whose members are the kernel set
//! of each inner set, edge-triggered, and the kernel set of the outer set's own members. From then on
//! threads sleep in the nesting fd, which wakes them when something becomes ready below. The core
//! queues the inner set in the outer one and polls it like any member. Nothing in a nesting fd is the
//! user's, so any thread may drain it at any time and forward its events.

use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};

use smallvec::SmallVec;

use super::rotation::{Rotation, woken_for_both};
use super::sleep_set::SleepSet;
use super::special::Special;
use super::{EDGE, EpollBackend, exists};
use crate::epoll::ctl::{as_set, set_of};
use crate::epoll::interest::{ItemRef, LockedSet, state};
use crate::epoll::watches::{each_that_watches, first_that_watches};
use crate::epoll::{Op, Set};
use crate::errno::Errno;
use crate::events::Events;
use crate::file::{Description, Held};
use crate::sync::Ordering;
use crate::wait::Scope;

/// The kernel backends below a set: one for each watched set that has one.
pub(super) struct Links(Vec<Link>);

struct Link {
    /// The address of the description of the set below, for as long as an item watches it.
    inner: usize,
    /// An item that watches it.
    slot: u32,
    /// Its kernel set; none while a thread's hidden set needs no events from there.
    place: Option<LinkedSet>,
    /// The fd of its source, if that is watched from here, too. Several links may share one
    /// registration, under the same fd.
    source: Option<RawFd>,
}

/// A kernel set that is registered.
#[derive(Clone, Copy, PartialEq, Eq)]
struct LinkedSet {
    /// The identity of the kernel set ([`OwnFd::identity`](super::own_fds::OwnFd::identity)). Another one may come to
    /// have its fd.
    identity: u32,
    fd: RawFd,
}

impl LinkedSet {
    fn of(place: &SleepSet) -> Self {
        LinkedSet {
            identity: place.fd.identity(),
            fd: place.fd.as_raw_fd(),
        }
    }
}

/// An item whose source in the kernel has chosen its set.
#[derive(Clone, Copy)]
pub(super) struct ChosenSlot {
    slot: u32,
    /// The set has had a turn, and is to stand last for that.
    has_reported: bool,
}

/// The interest that is registered anew even if it is registered: that of a source, or none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Renew {
    No,
    Source,
}

impl Links {
    pub(super) fn new() -> Self {
        Links(Vec::new())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The slots that a look at sources goes through. The slots that are kept go back to the set, also when a foreign `poll`
/// panics.
struct Kept<'a> {
    backend: &'a EpollBackend,
    slots: SmallVec<[ChosenSlot; 2]>,
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        if !self.slots.is_empty() {
            // Nobody has added any meanwhile, as that takes the set's lock.
            *self.backend.chosen.lock() = std::mem::take(&mut self.slots);
            self.backend.has_chosen.store(true, Ordering::Release);
        }
    }
}

impl EpollBackend {
    /// Registers in the nesting fd what the items of this set that watch `inner` need: the kernel set that
    /// `inner`'s threads sleep in, and its source if it is a rotating set. `locked` is this set. Without a nesting fd nothing has
    /// been linked yet.
    pub(super) fn link(
        &self,
        locked: &LockedSet<'_>,
        inner: &Description,
        renew: Renew,
    ) -> Result<(), Errno> {
        let Some(below) = as_set(inner).and_then(EpollBackend::of) else {
            return Ok(());
        };
        let Some(nesting) = self.nesting() else {
            return Ok(());
        };
        let register = |op, fd, special| nesting.register(&self.specials, op, fd, EDGE, special);
        let address = ptr::from_ref(inner).cast::<()>().addr();
        // Each would be a path up from all that is below, and the kernel allows 500 of them.
        let is_needed = !locked.set().is_hidden.load(Ordering::Relaxed) || below.has_sets_below();
        let place = below.sleep_set();
        let current = is_needed.then(|| LinkedSet::of(place));
        let find = |links: &Links| links.0.iter().position(|link| link.inner == address);
        // The set is locked, so that no link comes or goes.
        let kept = {
            let links = self.links.lock();
            find(&links).map(|at| links.0[at].slot)
        };
        let (first, is_kept) = first_that_watches(locked, inner, kept);
        let mut links = self.links.lock();
        let known = find(&links);
        // If it was lost it is linked once it was made anew.
        let known_place = known.and_then(|at| links.0[at].place);
        let current = current.filter(|_| known_place == current || place.fd.is_in_place());
        // The kernel has dropped a set that was lost, and its fd may be that of another one here.
        let is_left = |linked: &LinkedSet| {
            let mut sets = [Some(&below.first), below.nesting()].into_iter().flatten();
            sets.any(|set| set.fd.identity() == linked.identity)
        };
        let Some(first) = first else {
            if let Some(at) = known {
                let link = links.0.swap_remove(at);
                if let (Some(rotation), Some(source)) = (&below.rotation, link.source) {
                    rotation.unwatch(&nesting.fd);
                    self.watch_again(nesting, locked, &mut links, source);
                }
                return match link.place.filter(is_left) {
                    Some(linked) => register(Op::Del, linked.fd, Special::Nested(link.slot)),
                    None => Ok(()),
                };
            }
            return Ok(());
        };
        let at = match known {
            Some(at) => at,
            None => {
                links.0.try_reserve(1).map_err(|_| Errno::NOMEM)?;
                if let Some(linked) = current {
                    exists(register(Op::Add, linked.fd, Special::Nested(first)))?;
                }
                links.0.push(Link {
                    inner: address,
                    slot: first,
                    place: current,
                    source: None,
                });
                links.0.len() - 1
            }
        };
        let link = &mut links.0[at];
        if link.place != current {
            // It has a nesting fd, or sets below, by now, or was made anew.
            if let Some(linked) = current {
                exists(register(Op::Add, linked.fd, Special::Nested(link.slot)))?;
            }
            let is_other = |linked: &LinkedSet| current.is_none_or(|now| now.fd != linked.fd);
            if let Some(linked) = link.place.filter(is_left).filter(is_other) {
                let _ = register(Op::Del, linked.fd, Special::Nested(link.slot));
            }
            link.place = current;
        }
        let mut renew = renew;
        if known.is_some() && !is_kept {
            link.slot = first;
            renew = Renew::Source;
            if let Some(linked) = link.place {
                register(Op::Mod, linked.fd, Special::Nested(first))?;
            }
        }
        match &below.rotation {
            Some(rotation) => self.watch_source(nesting, locked, &mut links, at, rotation, renew),
            None => Ok(()),
        }
    }

    /// Watches the source of a rotating set, whose link is at `at`.
    fn watch_source(
        &self,
        nesting: &SleepSet,
        locked: &LockedSet<'_>,
        links: &mut Links,
        at: usize,
        rotation: &Rotation,
        renew: Renew,
    ) -> Result<(), Errno> {
        let link = &mut links.0[at];
        let mut before = None;
        if link.source.is_some() && renew == Renew::Source {
            before = link.source.take();
            rotation.unwatch(&nesting.fd);
        }
        if link.source.is_none() {
            let data = self.specials.encode(Special::Chosen(link.slot));
            let fd = rotation.fd();
            let more = others_are_woken_for(locked, links, at, fd);
            let watched = rotation.watch(&nesting.fd, data, more.unwrap_or_default());
            if let (Err(_), Some(_), Some(fd)) = (&watched, more, fd) {
                // The registration of the others made room for this one.
                self.watch_again(nesting, locked, links, fd);
            }
            links.0[at].source = watched?;
        }
        let link = &links.0[at];
        if let Some(before) = before.filter(|_| link.source.is_none()) {
            self.watch_again(nesting, locked, links, before);
        }
        Ok(())
    }

    /// Watches the sources under the fd `source` again, whose registration went with another link.
    fn watch_again(
        &self,
        nesting: &SleepSet,
        locked: &LockedSet<'_>,
        links: &mut Links,
        source: RawFd,
    ) {
        for at in 0..links.0.len() {
            let slot = links.0[at].slot;
            if links.0[at].source == Some(source)
                && let Some(rotation) = rotation_at(locked, slot)
            {
                let data = self.specials.encode(Special::Chosen(slot));
                let more = others_are_woken_for(locked, links, at, Some(source));
                // If the kernel is out of memory the next change of the source registers it again.
                let watched = rotation.watch(&nesting.fd, data, more.unwrap_or_default());
                links.0[at].source = watched.unwrap_or(None);
            }
        }
    }

    /// Returns the slots whose sources have chosen this set, if that of `slot` has: those that share its
    /// registration. The set is locked, so that no link comes or goes.
    fn chosen_with(&self, slot: u32) -> impl Iterator<Item = u32> {
        let source = {
            let links = self.links.lock();
            let link = links.0.iter().find(|link| link.slot == slot);
            link.and_then(|link| link.source)
        };
        let link_at = move |at: usize| {
            let links = self.links.lock();
            let link = links.0.get(at)?;
            Some(
                link.source
                    .filter(|&own| Some(own) == source)
                    .map(|_| link.slot),
            )
        };
        let sharing = (0..).map_while(link_at).flatten();
        source.is_none().then_some(slot).into_iter().chain(sharing)
    }

    /// The sets below that have a kernel backend. `locked` is this set.
    pub(super) fn sets_below(&self, locked: &LockedSet<'_>) -> Result<Vec<Held<Set>>, Errno> {
        let mut below = Vec::new();
        let links = self.links.lock();
        below.try_reserve(links.0.len()).map_err(|_| Errno::NOMEM)?;
        let slots = links.0.iter().map(|link| link.slot);
        below.extend(slots.filter_map(|slot| held_at(locked, slot)));
        Ok(below)
    }

    /// Registers in a new nesting fd all that it needs of the sets below. Returns those whose kernel set
    /// was lost as well, or was not made anew completely: they inform this one when they have
    /// another. `locked` is this set.
    pub(super) fn link_anew(
        &self,
        locked: &LockedSet<'_>,
        nesting: &SleepSet,
    ) -> Result<Vec<Held<Set>>, Errno> {
        let mut lost = Vec::new();
        let mut links = self.links.lock();
        lost.try_reserve(links.0.len()).map_err(|_| Errno::NOMEM)?;
        for at in 0..links.0.len() {
            let link = &mut links.0[at];
            let Some(held) = held_at(locked, link.slot) else {
                continue;
            };
            let Some(below) = EpollBackend::of(held.object()) else {
                continue;
            };
            if !below.is_intact() {
                link.place = None;
                link.source = None;
                lost.push(held);
                continue;
            }
            if below.is_half_restored() {
                // Made anew but for what the kernel has refused, which may be its link here.
                lost.push(Held::clone(&held));
            }
            if link.place.is_some() {
                let linked = LinkedSet::of(below.sleep_set());
                link.place = Some(linked);
                let special = Special::Nested(link.slot);
                exists(nesting.register(&self.specials, Op::Add, linked.fd, EDGE, special))?;
            }
            if let Some(rotation) = &below.rotation {
                let data = self.specials.encode(Special::Chosen(link.slot));
                let more = others_are_woken_for(locked, &links, at, rotation.fd());
                let more = more.unwrap_or_default();
                links.0[at].source = rotation.watch(&nesting.fd, data, more)?;
            }
        }
        Ok(lost)
    }

    /// Queues the items above the sets below that had events. Returns whether the core has anything
    /// new to check.
    pub(super) fn kick(&self, set: &Set, below: &[(Special, Events)]) -> bool {
        // Events of a set below may wake a callback there.
        let _scope = Scope::enter();
        let locked = set.lock_from_above();
        let mut queued = false;
        for &(special, events) in below {
            let mut kick = |slot| queued |= self.kick_slot(&locked, slot, special, events);
            match special {
                Special::Nested(slot) => kick(slot),
                Special::Chosen(slot) => self.chosen_with(slot).for_each(kick),
                Special::Changed(slot, direction) => {
                    queued |= self.hear(&locked, slot, direction);
                }
                Special::Wake | Special::Members => {}
            }
        }
        queued
    }

    /// The part of [`kick`](Self::kick) for the item in one slot.
    fn kick_slot(
        &self,
        locked: &LockedSet<'_>,
        slot: u32,
        special: Special,
        events: Events,
    ) -> bool {
        // A slot that means another item by now has that one polled for nothing.
        let Some(item) = locked.at(slot) else {
            return false;
        };
        if item.state() & state::WATCHES_SET == 0 {
            return false;
        }
        let below = as_set(item.file());
        if let (Special::Nested(_), Some(below)) = (special, below)
            && let Some(backend) = EpollBackend::of(below)
        {
            backend.hear_from_above(below);
        }
        let is_chosen = matches!(special, Special::Chosen(_));
        if is_chosen {
            // Other rotating sets may share the source, and what workers are woken for there.
            if let Some(rotation) = rotation_at(locked, slot)
                && !events.intersects(Events::ALWAYS | rotation.woken_for())
            {
                return false;
            }
            // The fd of another set's source may be that of another file by now.
            if special != Special::Chosen(slot) && item.poll().is_empty() {
                return false;
            }
            if let Some(rotating) = below {
                rotating.note_hang_up(events);
            }
        }
        let (mut is_wanted, mut queued) = (false, false);
        let set = locked.set();
        each_that_watches(locked, item.file(), |item| {
            if item.interest().intersects(Set::SHOWN) {
                is_wanted = true;
                // One event more, for another worker of a rotating set.
                let is_new = item.queue();
                // A wait that rechecked this set may have queued it, and told no set above.
                queued |= is_new || set.rotates() || set.watched_by.has_several();
            }
        });
        if is_chosen && is_wanted {
            if item.interest().intersects(Set::SHOWN) {
                item.choose();
            }
            self.choose(slot, false);
        } else if let (true, Some(rotating)) = (is_chosen, below) {
            // The kernel does not know that the interest was used up, or is in nothing.
            rotating.watched_by.forward_in_turn(Events::IN);
        }
        queued
    }

    /// Moves the item in `slot` to the end of the kernel's line from the next sleep on. Without memory to note that,
    /// it keeps its place. `has_reported`: the set has had a turn by it.
    pub(super) fn choose(&self, slot: u32, has_reported: bool) {
        let mut chosen = self.chosen.lock();
        match chosen.iter_mut().find(|known| known.slot == slot) {
            Some(known) => known.has_reported |= has_reported,
            None => {
                if chosen.try_reserve(1).is_ok() {
                    chosen.push(ChosenSlot { slot, has_reported });
                }
            }
        }
        self.has_chosen.store(true, Ordering::Release);
    }

    /// Takes [`choose`](Self::choose) back for those slots for which `is_over`.
    fn unchoose(&self, is_over: impl Fn(&ChosenSlot) -> bool) {
        if self.has_chosen.load(Ordering::Relaxed) {
            let mut chosen = self.chosen.lock();
            chosen.retain(|known| !is_over(known));
            self.has_chosen.store(!chosen.is_empty(), Ordering::Relaxed);
        }
    }

    /// The item in `slot` has left the event for which the kernel chose it to another worker. It keeps its place, unless it
    /// has had a turn before.
    pub(super) fn left(&self, slot: u32) {
        self.unchoose(|known| known.slot == slot && !known.has_reported);
    }

    /// A report has gone out: the sources that chose this set have it stand last in line, from the
    /// next sleep on. If there was nothing to report the set keeps its place, except for what another thread has reported.
    pub(crate) fn settle_choice(&self, reported: bool) {
        if !reported {
            self.unchoose(|known| !known.has_reported);
        }
    }

    /// The only thread that waits in this set has found nothing at the sources that chose it: the set keeps its place.
    pub(crate) fn forget_choice(&self) {
        self.unchoose(|_| true);
    }

    /// Before a sleep: stands last in the kernel's line for the sources that chose this set before, except those for which
    /// the worker may go on. Returns whether there were any, and all were looked at: if one is ready,
    /// its item is queued, or the sleep ends at once.
    pub(crate) fn stand_last(&self, set: &Set) -> bool {
        if !self.has_chosen.load(Ordering::Relaxed) {
            return false;
        }
        let _scope = Scope::enter();
        let mut locked = set.lock();
        let mut kept = Kept {
            backend: self,
            slots: std::mem::take(&mut *self.chosen.lock()),
        };
        self.has_chosen.store(false, Ordering::Relaxed);
        // A rotating set that did not choose this one has to be looked at.
        let mut all_renewed = kept.slots.len() == locked.count_rotating();
        kept.slots.retain(|known| {
            let slot = known.slot;
            let item = rotation_at(&locked, slot).and_then(|_| locked.at(slot));
            // A report that had no room for it has left it there: it is this set's until a later one has.
            if item.is_some_and(ItemRef::is_chosen_and_ready) {
                all_renewed = false;
                return true;
            }
            // A worker that may go on with a source that is ready keeps its place.
            if item.is_some_and(|item| item.may_go_on() && item.goes_on()) {
                known.has_reported = false;
                return true;
            }
            // The kernel looks at the source when that is registered anew, and the nesting fd says so if it is ready by what
            // workers are woken for.
            let is_there = item.is_some();
            let renew = |locked: &LockedSet<'_>| self.stand_last_for(locked, slot);
            all_renewed &= is_there && locked.leave_to(slot, renew);
            false
        });
        all_renewed
    }

    /// Returns whether the source is registered anew.
    fn stand_last_for(&self, locked: &LockedSet<'_>, slot: u32) -> bool {
        let Some(nesting) = self.nesting() else {
            return false;
        };
        let Some(rotation) = rotation_at(locked, slot) else {
            return false;
        };
        let mut links = self.links.lock();
        let Some(at) = links.0.iter().position(|link| link.slot == slot) else {
            return false;
        };
        // By the fd that is deleted and added, also if that is not this set's source any more.
        let sharing = others_are_woken_for(locked, &links, at, rotation.fd());
        let data = self.specials.encode(Special::Chosen(slot));
        // If the kernel is out of memory the next change of the source registers it again.
        let renewed = rotation.renew(&nesting.fd, data, sharing);
        let before = links.0[at].source;
        links.0[at].source = match renewed {
            // The file may live on under another fd, and its registration with it.
            Err(Errno::BADF) => return false,
            renewed => renewed.unwrap_or(None),
        };
        if let (None, Some(before), Some(_)) = (links.0[at].source, before, sharing) {
            self.watch_again(nesting, locked, &mut links, before);
        }
        links.0[at].source.is_some()
    }
}

/// Returns the events that workers are woken for by the other rotating sets whose source has the fd `source` as well,
/// exclusively if all are. None if there are no others. `locked` is this set.
fn others_are_woken_for(
    locked: &LockedSet<'_>,
    links: &Links,
    at: usize,
    source: Option<RawFd>,
) -> Option<Events> {
    let others = links
        .0
        .iter()
        .enumerate()
        .filter(|&(other, link)| other != at && link.source.is_some() && link.source == source);
    let rotations = others.filter_map(|(_, link)| rotation_at(locked, link.slot));
    rotations.map(Rotation::woken_for).reduce(woken_for_both)
}

/// The set that the item in `slot` watches, if it watches one.
fn held_at(locked: &LockedSet<'_>, slot: u32) -> Option<Held<Set>> {
    let set = set_of(locked.file_at(slot)?)?;
    // SAFETY: the item keeps it.
    Some(unsafe { Held::new(NonNull::from(set)) })
}

/// Returns the rotation state of the rotating set with a kernel backend that the item in `slot`
/// watches.
fn rotation_at<'g>(locked: &'g LockedSet<'_>, slot: u32) -> Option<&'g Rotation> {
    let set = as_set(locked.file_at(slot)?)?;
    EpollBackend::of(set)?.rotation.as_ref()
}
