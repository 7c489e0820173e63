//! The part of a [`PollContext`](super::PollContext)'s registrations that is with the kernel.
//!
//! Kernel fds that are known to mean one open file as long as they live stay registered in a kernel
//! set, and a call takes the ready ones from there. Each call passes the other fds to the kernel's
//! `poll` anew. Those are bare fds, which may stand for another file by then; kernel sets, where
//! one more set above would be visible; and fds that the set refuses.
//!
//! # The data of an event
//! It holds the entry's slot and a stamp. A stamp that is not the slot's marks an event of a file
//! whose fd was closed while the file lives on under another one. The kernel keeps such a
//! registration, and nobody can delete it. Then a new set is made.
//!
//! A set whose own fd the program has closed is replaced, too, once that is noticed. If the fd was
//! reused for something that is no set, that is at the next harvest.
//!
//! # What is not counted
//! A set reports more than `select` counts, for instance that an fd in the writable set has only
//! hung up. An entry that shows only events that do not count is made edge-triggered, so that it
//! ends no sleep until the next wakeup. (`poll` counts exactly the events that a set reports.) Both
//! rely on wakeups with the events that changed, which all files but sets send: a set that shows
//! `RDNORM` sends `IN`.

use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::{AsRawFd, RawFd};

use crate::epoll::Op;
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::host::generation;
use crate::host::kernel::{self, Descriptor};
use crate::registrations::{KernelEntries, Registration, Registrations};

/// The thread that may use a set. Threads see different signals through the same `signalfd`, so a
/// set belongs to the thread that made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Maker {
    generation: u32,
    thread: u64,
}

impl Maker {
    /// The calling thread.
    fn current() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        crate::sync::thread_locals! {
            static THREAD: Cell<u64> = const { Cell::new(0) };
        }
        let thread = THREAD.with(|thread| {
            if thread.get() == 0 {
                thread.set(NEXT.fetch_add(1, Ordering::Relaxed));
            }
            thread.get()
        });
        Maker {
            generation: generation::current(),
            thread,
        }
    }
}

/// A set of the kernel's, and what is in it.
#[derive(Debug)]
struct KernelSet {
    fd: Descriptor,
    maker: Maker,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct KernelPart {
    set: Option<KernelSet>,
    /// The set is another thread's or process's: leave it as it is, and make another one.
    is_foreign: bool,
    /// The number of entries in the set.
    registered: usize,
    /// The stamp that the events of each slot's entry carry; zero if it has none.
    stamps: Vec<u32>,
    last_stamp: u32,
    /// Slots of entries that are asked about with each call, in no order.
    asked: Vec<u32>,
    /// For each slot, its place in `asked`, if it is there.
    asked_at: Vec<usize>,
    /// The number of times that `asked` has got an entry, or may have lost some to a new set.
    times_asked_anew: usize,
    /// As many as are registered; the first `heard` are the last harvest.
    events: Vec<Event>,
    heard: usize,
}

impl KernelPart {
    /// A call begins. Call [`renew`](Self::renew) once the lists are compared.
    #[inline]
    pub(super) fn begin(&mut self) {
        if let Some(set) = &self.set {
            // A call that was cut short has left entries for a new set, which is still to be made.
            self.is_foreign |= set.maker != Maker::current();
        }
    }

    /// Makes the set anew if the program has closed its fd. To be called before each sleep.
    pub(super) fn replace_lost(&mut self, kept: &mut Registrations) {
        if self.set.as_ref().is_some_and(|set| !set.fd.is_in_place()) {
            self.renew(kept);
        }
    }

    /// Makes a set of the calling thread's own if what there is is another's.
    #[inline]
    pub(super) fn renew_foreign(&mut self, kept: &mut Registrations) {
        if self.is_foreign {
            self.renew(kept);
        }
    }

    #[inline(never)]
    fn renew(&mut self, kept: &mut Registrations) {
        self.times_asked_anew += 1;
        self.is_foreign = false;
        self.set = None;
        self.registered = 0;
        self.asked.clear();
        kept.renew_kernel_entries(self);
    }

    /// The slots of those that have to be asked about with each call.
    pub(super) fn asked(&self) -> &[u32] {
        &self.asked
    }

    /// Changes when something that was in the set is asked about from now on, or the other way round. A result
    /// with both before and after it would lack entries or count them twice.
    pub(super) fn times_asked_anew(&self) -> usize {
        self.times_asked_anew
    }

    /// The set, if there is anything in it: it is readable if something there may be ready.
    pub(super) fn set_fd(&self) -> Option<RawFd> {
        let set = self.set.as_ref().filter(|_| self.registered > 0)?;
        Some(set.fd.as_raw_fd())
    }

    /// Returns the result of the last harvest: slots, and the ready events of each entry's
    /// interest.
    pub(super) fn heard(&self) -> impl Iterator<Item = (u32, Events)> {
        self.events[..self.heard]
            .iter()
            .map(|event| (slot_of(*event), event.events()))
    }

    /// Forgets the last harvest.
    pub(super) fn forget(&mut self) {
        self.heard = 0;
    }

    /// Takes the ready events from the set. Returns whether there are any.
    pub(super) fn harvest(&mut self, kept: &mut Registrations) -> Result<bool, Errno> {
        self.heard = 0;
        while let Some(set) = self.set.as_ref().filter(|_| self.registered > 0) {
            let harvested = kernel::epoll_harvest(&set.fd, &mut self.events);
            let is_whole = match harvested {
                Ok(count) => self.sort(kept, count),
                // The program closed it.
                Err(_) if !set.fd.is_intact() => false,
                Err(errno) => return Err(errno),
            };
            if is_whole {
                break;
            }
            self.renew(kept);
        }
        Ok(self.heard > 0)
    }

    /// Keeps those of `count` events whose entries are ready. Returns false if an event has no
    /// entry.
    fn sort(&mut self, kept: &mut Registrations, count: usize) -> bool {
        self.heard = 0;
        for at in 0..count {
            let event = self.events[at];
            let slot = slot_of(event);
            let entry = kept
                .kernel_entry(slot)
                .filter(|_| self.stamps.get(slot as usize).copied() == Some(stamp_of(event)));
            let Some(entry) = entry else {
                self.heard = 0;
                return false;
            };
            let found = event.events() & entry.wanted;
            let fits = if found.is_empty() {
                Registration::Edge
            } else {
                Registration::Level
            };
            if entry.registration != fits {
                let fitted = self.modify(entry.fd, entry.wanted, slot, fits);
                kept.set_registration(slot, fitted);
            }
            if !found.is_empty() {
                self.events[self.heard] = Event::new(found, event.data());
                self.heard += 1;
            }
        }
        true
    }

    /// The set that this thread may change.
    fn set_or_make(&mut self) -> Result<&Descriptor, Errno> {
        let set = match self.set.take() {
            Some(set) => set,
            None => {
                generation::watch_forks()?;
                KernelSet {
                    fd: kernel::epoll_create()?,
                    maker: Maker::current(),
                }
            }
        };
        Ok(&self.set.insert(set).fd)
    }

    fn try_add(&mut self, fd: RawFd, wanted: Events, slot: u32) -> Result<Registration, Errno> {
        let place = slot as usize;
        if place >= self.stamps.len() {
            let more = place + 1 - self.stamps.len();
            self.stamps.try_reserve(more).map_err(|_| Errno::NOMEM)?;
            self.stamps.resize(place + 1, 0);
        }
        if self.registered >= self.events.len() {
            let room = self.registered + 1;
            let more = room - self.events.len();
            self.events.try_reserve(more).map_err(|_| Errno::NOMEM)?;
            self.events.resize(room, Event::default());
        }
        // Zero is no entry's.
        let stamp = self.last_stamp.wrapping_add(1).max(1);
        let set = self.set_or_make()?;
        if kernel::is_epoll(fd, set) {
            return Err(Errno::LOOP);
        }
        let interest = Event::new(wanted, data(slot, stamp));
        match kernel::epoll_ctl(set, Op::Add, fd, &interest) {
            Ok(()) => {
                self.last_stamp = stamp;
                self.stamps[place] = stamp;
                self.registered += 1;
                Ok(Registration::Level)
            }
            Err(Errno::PERM) => Ok(Registration::Always),
            Err(errno) => Err(errno),
        }
    }

    /// Changes how the set reports an entry, or for which events.
    fn modify(&mut self, fd: RawFd, wanted: Events, slot: u32, way: Registration) -> Registration {
        let events = match way {
            Registration::Edge => wanted | Events::ET,
            _ => wanted,
        };
        let interest = Event::new(events, data(slot, self.stamps[slot as usize]));
        let changed = match &self.set {
            Some(set) => kernel::epoll_ctl(&set.fd, Op::Mod, fd, &interest),
            None => Err(Errno::NOENT),
        };
        match changed {
            Ok(()) => way,
            // The fd does not mean any more what it meant.
            Err(_) => {
                self.unregister(slot);
                self.ask(slot)
            }
        }
    }

    fn unregister(&mut self, slot: u32) {
        self.stamps[slot as usize] = 0;
        self.registered -= 1;
    }
}

impl KernelEntries for KernelPart {
    fn reserve(&mut self, count: usize) -> Result<(), Errno> {
        let more = count.saturating_sub(self.asked_at.len());
        self.asked_at.try_reserve(more).map_err(|_| Errno::NOMEM)?;
        let more = count.saturating_sub(self.asked.len());
        self.asked.try_reserve(more).map_err(|_| Errno::NOMEM)
    }

    fn ask(&mut self, slot: u32) -> Registration {
        let place = slot as usize;
        if place >= self.asked_at.len() {
            self.asked_at.resize(place + 1, 0);
        }
        self.asked_at[place] = self.asked.len();
        self.asked.push(slot);
        self.times_asked_anew += 1;
        Registration::Asked
    }

    fn add(&mut self, fd: i32, wanted: Events, slot: u32) -> Registration {
        if self.is_foreign {
            // Comes with the new set.
            return Registration::Level;
        }
        match self.try_add(fd, wanted, slot) {
            Ok(registration) => registration,
            // Listed twice, without memory, beyond a limit, a set itself: `poll` serves them all.
            Err(_) => self.ask(slot),
        }
    }

    fn change(&mut self, fd: i32, wanted: Events, slot: u32, before: Registration) -> Registration {
        match before {
            Registration::Asked | Registration::Always => before,
            Registration::Level | Registration::Edge if self.is_foreign => before,
            Registration::Level | Registration::Edge => {
                self.modify(fd, wanted, slot, Registration::Level)
            }
        }
    }

    fn remove(&mut self, fd: i32, slot: u32, before: Registration) {
        match before {
            Registration::Always => {}
            Registration::Asked => {
                let place = self.asked_at[slot as usize];
                self.asked.swap_remove(place);
                if let Some(&moved) = self.asked.get(place) {
                    self.asked_at[moved as usize] = place;
                }
            }
            Registration::Level | Registration::Edge if self.is_foreign => {}
            Registration::Level | Registration::Edge => {
                if let Some(set) = &self.set {
                    // If it was closed the kernel has forgotten it already.
                    let _ = kernel::epoll_ctl(&set.fd, Op::Del, fd, &Event::default());
                }
                self.unregister(slot);
            }
        }
    }
}

fn data(slot: u32, stamp: u32) -> u64 {
    u64::from(stamp) << 32 | u64::from(slot)
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
fn slot_of(event: Event) -> u32 {
    event.data() as u32
}

fn stamp_of(event: Event) -> u32 {
    (event.data() >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::{KernelEntries, KernelPart, Registration};

    #[test]
    fn an_entry_that_is_asked_about_leaves_without_a_search() {
        let mut part = KernelPart::default();
        for slot in 0..8 {
            assert_eq!(part.ask(slot), Registration::Asked);
        }
        for slot in [0, 7, 3, 4] {
            part.remove(-1, slot, Registration::Asked);
        }
        assert_eq!(part.ask(3), Registration::Asked);
        let mut left = part.asked().to_vec();
        left.sort_unstable();
        assert_eq!(left, [1, 2, 3, 5, 6]);
        for (place, &slot) in part.asked().iter().enumerate() {
            assert_eq!(part.asked_at[slot as usize], place);
        }
    }
}
