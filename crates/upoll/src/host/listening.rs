//! Sets that watch shared counters.
//!
//! The notifiers of a counter are members of the nesting fd of each set that watches it. They are
//! edge-triggered, and registered once however many items of the set watch the counter. An event of
//! a notifier makes the core check, as an event of a set below does.

use std::os::fd::AsRawFd;
use std::ptr;

use smallvec::SmallVec;

use super::shared::{DIRECTIONS, SharedCounter};
use super::special::Special;
use super::{EDGE, EpollBackend, SleepSet, exists, generation};
use crate::epoll::interest::{LockedSet, state};
use crate::epoll::watches::{each_that_watches, first_that_watches};
use crate::epoll::{Op, Set};
use crate::errno::Errno;
use crate::eventfd::Direction;
use crate::events::Events;
use crate::file::Description;

/// The shared counters that a set watches.
pub(super) struct Listening(SmallVec<[Listened; 1]>);

struct Listened {
    /// The address of the counter's description, for as long as an item watches it.
    counter: usize,
    /// An item that watches it.
    slot: u32,
    /// The number of changes in each direction that the core has seen. An event with no more changes
    /// than that comes from a notifier that was registered anew, which the kernel reports as an event,
    /// or that two threads have taken.
    heard: [u64; 2],
}

impl Listening {
    pub(super) fn new() -> Self {
        Listening(SmallVec::new())
    }
}

impl Listening {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn address(counter: &Description) -> usize {
    ptr::from_ref(counter).cast::<()>().addr()
}

impl EpollBackend {
    /// Adds the notifiers of `counter` to the nesting fd, or removes them, after an item of this
    /// set that watches `counter` came or went. `locked` is this set.
    pub(super) fn listen_to(
        &self,
        locked: &LockedSet<'_>,
        counter: &Description,
    ) -> Result<(), Errno> {
        let (Some(shared), Some(nesting)) = (SharedCounter::of(counter), self.nesting()) else {
            return Err(Errno::NOMEM);
        };
        if self.generation != generation::current() {
            // The nesting fd is the parent's, which continues to listen.
            return Ok(());
        }
        let register = |op, slot| {
            let registered = DIRECTIONS.map(|direction| {
                let notifier = shared.notifier(direction);
                if op == Op::Add && !notifier.is_in_place() {
                    // Lost: the set checks the counter with its own fds.
                    return Ok(());
                }
                let special = Special::Changed(slot, direction);
                nesting.register(&self.specials, op, notifier.as_raw_fd(), EDGE, special)
            });
            // A lost notifier keeps the other one from neither change nor DEL.
            registered.into_iter().fold(Ok(()), Result::and)
        };
        let find = |listening: &Listening| {
            let mut all = listening.0.iter();
            all.position(|listened| listened.counter == address(counter))
        };
        // The set is locked, so that none comes or goes.
        let kept = {
            let listening = self.listening.lock();
            find(&listening).map(|at| listening.0[at].slot)
        };
        let (first, is_kept) = first_that_watches(locked, counter, kept);
        let mut listening = self.listening.lock();
        let known = find(&listening);
        match (known, first) {
            (None, None) => {}
            (Some(at), None) => {
                let gone = listening.0.swap_remove(at);
                return register(Op::Del, gone.slot);
            }
            (Some(at), Some(first)) => {
                if !is_kept {
                    listening.0[at].slot = first;
                    return register(Op::Mod, first);
                }
            }
            (None, Some(first)) => {
                listening.0.try_reserve(1).map_err(|_| Errno::NOMEM)?;
                if let Err(errno) = register(Op::Add, first) {
                    let _ = register(Op::Del, first);
                    return Err(errno);
                }
                listening.0.push(Listened {
                    counter: address(counter),
                    slot: first,
                    // Registered, now count; the caller looks after that.
                    heard: DIRECTIONS.map(|direction| shared.arm(direction)),
                });
            }
        }
        Ok(())
    }

    /// As [`listen_to`](Self::listen_to) for all counters, with a nesting fd that is new: it knows none.
    /// `locked` is this set.
    pub(super) fn listen_anew(
        &self,
        locked: &LockedSet<'_>,
        nesting: &SleepSet,
    ) -> Result<(), Errno> {
        for listened in &self.listening.lock().0 {
            let Some(item) = locked.at(listened.slot) else {
                continue;
            };
            let Some(shared) = SharedCounter::of(item.file()) else {
                continue;
            };
            for direction in DIRECTIONS {
                let notifier = shared.notifier(direction);
                if !notifier.is_in_place() {
                    continue;
                }
                let notifier = notifier.as_raw_fd();
                let special = Special::Changed(listened.slot, direction);
                exists(nesting.register(&self.specials, Op::Add, notifier, EDGE, special))?;
            }
        }
        Ok(())
    }

    /// Checks all counters that the set watches for changes without an event: a process that has
    /// closed a notifier's fd cannot trigger it. Returns whether any is new to the core.
    pub(super) fn hear_all(&self, set: &Set) -> bool {
        if self.generation != generation::current() {
            return false;
        }
        let locked = set.lock();
        // The set is locked, so that none comes or goes.
        let slot_at = |at: usize| Some(self.listening.lock().0.get(at)?.slot);
        let slots = (0..).map_while(slot_at);
        let mut queued = false;
        for slot in slots {
            for direction in DIRECTIONS {
                queued |= self.hear(&locked, slot, direction);
            }
        }
        queued
    }

    /// Queues the items of this set that wait for a change in `direction`, after a notifier of the
    /// counter that the item in `slot` watches was triggered. Returns whether the core has
    /// something new to check. `locked` is this set.
    pub(super) fn hear(&self, locked: &LockedSet<'_>, slot: u32, direction: Direction) -> bool {
        let Some(item) = locked.at(slot) else {
            return false;
        };
        if item.state() & state::SHARED == 0 {
            return false;
        }
        let counter: &Description = item.file();
        let Some(shared) = SharedCounter::of(counter) else {
            return false;
        };
        let changes = shared.arm(direction);
        {
            let mut listening = self.listening.lock();
            let mut all = listening.0.iter_mut();
            let Some(listened) = all.find(|listened| listened.counter == address(counter)) else {
                return false;
            };
            let heard = &mut listened.heard[direction as usize];
            if *heard == changes {
                return false;
            }
            *heard = changes;
        }
        let mut queued = false;
        each_that_watches(locked, counter, |item| {
            let interest = item.interest();
            let is_disabled = (interest - Events::CONTROL).is_empty();
            if !is_disabled && direction.key().intersects(interest) {
                queued |= item.queue();
            }
        });
        queued
    }
}
