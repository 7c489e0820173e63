//! A wakeup with a queue's lock held: the order in which it calls the entries, and what their replies do.

use core::ptr::NonNull;

use super::entry::{CLAIMED, EXCLUSIVE};
use super::list::Linked;
use super::locked::Held;
use super::rotation::Turns;
use super::{Deferred, WaitEntry, WaitQueue};
use crate::events::Events;
use crate::steps::{Step, step};

/// The mode in which a wakeup calls an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Record the event. The reply is whether a thread was waiting for it.
    Notify,
    /// Record the event only if a thread waits for it now.
    TryWake,
    /// Reply whether a thread waits for it now, and record nothing.
    Query,
}

/// The reply of an entry to a wakeup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// No thread waited for it.
    Declined,
    /// A thread waited for it.
    Woken,
    /// A thread waited for it, and the entry is done: unlink it.
    WokenAndUnlinked,
}

/// One wake on its way through the queues.
pub struct Wake<'a> {
    /// The events that happened; empty if they are not known.
    pub key: Events,
    pub mode: Mode,
    /// The work that is done once all locks are free.
    pub deferred: &'a mut Deferred,
}

/// The result of a call of an entry.
pub(super) enum Called<'l> {
    Declined,
    /// It took the wake, and is linked still.
    Woken(Linked<'l>),
    /// It took the wake, and was unlinked. It may have ended since, unless it is exclusive.
    Unlinked(NonNull<WaitEntry>),
}

impl<'a> Wake<'a> {
    /// A wake that notifies.
    #[inline]
    pub fn new(key: Events, deferred: &'a mut Deferred) -> Self {
        Wake {
            key,
            mode: Mode::Notify,
            deferred,
        }
    }

    /// The same wake with another key, for the queues above.
    pub(crate) fn with_key(&mut self, key: Events) -> Wake<'_> {
        Wake::new(key, self.deferred)
    }
}

impl WaitQueue {
    /// Calls a linked entry of this queue, and unlinks it if that is its reply. Until it has replied, the wakeup is in this
    /// queue.
    #[inline]
    pub(super) fn call<'l>(&self, linked: Linked<'l>, wake: &mut Wake<'_>) -> Called<'l> {
        step(Step::Call);
        let (entry, on_wake) = (linked.as_ptr(), linked.entry().on_wake);
        // SAFETY: the entry is linked into this queue, whose lock is held: `Held` returns the entries of its own list.
        let reply = Deferred::through(wake, self, |wake| unsafe { on_wake(entry, wake) });
        match reply {
            Reply::Declined => Called::Declined,
            Reply::Woken => Called::Woken(linked),
            Reply::WokenAndUnlinked => {
                linked.unlink();
                Called::Unlinked(entry)
            }
        }
    }

    /// Calls a linked entry as [`call`](Self::call) does, and subtracts it if it was unlinked. (An entry that took a wakeup
    /// of the policy stays counted.)
    #[inline]
    pub(super) fn call_and_count<'l>(&self, linked: Linked<'l>, wake: &mut Wake<'_>) -> Called<'l> {
        let called = self.call(linked, wake);
        if matches!(called, Called::Unlinked(_)) {
            self.count_unlinked();
        }
        called
    }
}

impl Called<'_> {
    /// Returns the entry if it took the wake.
    #[inline]
    pub(super) fn taker(self) -> Option<NonNull<WaitEntry>> {
        match self {
            Called::Declined => None,
            Called::Woken(linked) => Some(linked.as_ptr()),
            Called::Unlinked(entry) => Some(entry),
        }
    }
}

impl Held<'_> {
    /// [`WaitQueue::wake`] with the lock held.
    #[inline]
    pub(super) fn wake(&mut self, wake: &mut Wake<'_>) -> usize {
        let took = self.walk(wake, false);
        self.queue.count_wake(took);
        took
    }

    /// [`WaitQueue::wake_all`] with the lock held.
    pub(super) fn wake_all(&mut self, wake: &mut Wake<'_>) -> usize {
        let mut took = 0;
        let mut walk = self.inside.entries.walk();
        while let Some(linked) = walk.advance() {
            let called = self.queue.call_and_count(linked, wake);
            took += usize::from(!matches!(called, Called::Declined));
        }
        self.queue.count_wake(took);
        took
    }

    /// [`WaitQueue::is_awaited`] with the lock held.
    pub(super) fn is_awaited(&mut self, wake: &mut Wake<'_>) -> bool {
        let mut walk = self.inside.entries.walk();
        while let Some(linked) = walk.advance() {
            if !matches!(self.queue.call(linked, wake), Called::Declined) {
                return true;
            }
        }
        false
    }

    /// Calls entries from the head, exclusive ones until one took it.
    #[inline]
    pub(super) fn walk(&mut self, wake: &mut Wake<'_>, exclusive_only: bool) -> usize {
        let inside = &mut *self.inside;
        let mut took = 0;
        let mut walk = match exclusive_only {
            true => inside.entries.walk_exclusive(),
            false => inside.entries.walk(),
        };
        while let Some(linked) = walk.advance() {
            let exclusive = linked.entry().has_rank_bit(EXCLUSIVE);
            let called = self.queue.call_and_count(linked, wake);
            if matches!(called, Called::Declined) {
                continue;
            }
            took += 1;
            if exclusive {
                if let Called::Woken(linked) = called {
                    claim(linked.entry(), &mut inside.turns);
                }
                break;
            }
        }
        took
    }
}

/// An exclusive entry took a wake, and has it until it is settled.
#[inline]
pub(super) fn claim(entry: &WaitEntry, turns: &mut Turns) {
    if !entry.has_rank_bit(CLAIMED) {
        entry.set_rank_bit(CLAIMED, true);
        turns.claimed();
    }
}
