//! The shared state of a counter, and the order in which a change reaches its waiters.
//!
//! The layer above has the lock that guards the state, the futexes and the notifiers ([`Wakers`]).
//! This module defines the order of their use, so that a process may die anywhere. A change is
//! announced *before* it is made, with the lock held. A waiter that was woken takes the lock, and
//! then finds the change, or that it was not made. The count and the maximum are a store each, and
//! a change is one of the two, so no change is ever half made.

use super::{Direction, Limited, Step};
use crate::errno::Errno;
use crate::sync::{AtomicU32, AtomicU64, Ordering, Rule, broken};

/// Written with the lock held, except where a field's comment allows more.
#[repr(C)]
pub(crate) struct Shared {
    count: AtomicU64,
    maximum: AtomicU64,
    inward: Listeners,
    outward: Listeners,
}

/// The listeners for changes in one direction.
#[repr(C)]
struct Listeners {
    /// The number of announced changes.
    changes: AtomicU64,
    /// [`ASLEEP`] and, above it, a number that differs after each change that found a sleeper.
    word: AtomicU32,
    /// Not zero if the next change triggers the notifier. The named pair: a change counts itself in
    /// `changes`, then checks this word; a listener, without the lock, arms the notifier, then checks
    /// `changes` or takes the lock.
    ///
    /// It is a word because other processes may write any byte here, and a `bool` has two values.
    armed: AtomicU32,
}

/// In [`Listeners::word`]: somebody sleeps on it, or is about to.
const ASLEEP: u32 = 1;

/// The ways to reach waiters.
pub(crate) trait Wakers {
    /// Wakes all threads, in every process, that sleep on `word`.
    fn wake(&self, word: &AtomicU32);

    /// Triggers the notifier of a direction.
    fn ring(&self, direction: Direction);
}

impl Shared {
    pub(crate) fn new(count: u64) -> Self {
        let listeners = || Listeners {
            changes: AtomicU64::new(0),
            word: AtomicU32::new(0),
            armed: AtomicU32::new(0),
        };
        Shared {
            count: AtomicU64::new(count),
            maximum: AtomicU64::new(u64::MAX),
            inward: listeners(),
            outward: listeners(),
        }
    }

    fn listeners(&self, direction: Direction) -> &Listeners {
        match direction {
            Direction::In => &self.inward,
            Direction::Out => &self.outward,
        }
    }

    /// Returns the word that waiters for a change in `direction` sleep on.
    pub(crate) fn word(&self, direction: Direction) -> &AtomicU32 {
        &self.listeners(direction).word
    }

    /// Returns the count and the maximum, with the lock held.
    ///
    /// A hostile process may have written what no change leaves behind: the maximum is at least 1, as
    /// nothing shared is ever stale, and the count at most the maximum.
    pub(crate) fn check(&self) -> Limited {
        let maximum = self.maximum.load(Ordering::SeqCst).max(1);
        Limited {
            count: self.count.load(Ordering::SeqCst).min(maximum),
            maximum,
        }
    }

    /// Applies `step` and wakes the waiters, with the lock held. Returns the state before.
    pub(crate) fn change(
        &self,
        direction: Direction,
        step: Step<'_>,
        wakers: &impl Wakers,
    ) -> Result<Limited, Errno> {
        let before = self.check();
        let after = step(before)?;
        let tells_first = !broken(Rule::TellBeforeChanging);
        if tells_first {
            self.tell(direction, wakers);
        }
        if after.count != before.count {
            self.count.store(after.count, Ordering::SeqCst);
        }
        if after.maximum != before.maximum {
            self.maximum.store(after.maximum, Ordering::SeqCst);
        }
        if !tells_first {
            self.tell(direction, wakers);
        }
        Ok(before)
    }

    /// Announces a change, which must be made by the time the lock is free.
    fn tell(&self, direction: Direction, wakers: &impl Wakers) {
        let listeners = self.listeners(direction);
        listeners.changes.fetch_add(1, Ordering::SeqCst);
        let word = listeners.word.load(Ordering::SeqCst);
        if word & ASLEEP != 0 {
            let next = (word & !ASLEEP).wrapping_add(ASLEEP << 1);
            listeners.word.store(next, Ordering::SeqCst);
            wakers.wake(&listeners.word);
        }
        if listeners.armed.swap(0, Ordering::SeqCst) != 0 {
            wakers.ring(direction);
        }
    }

    /// Restores the marks of waiters, with the lock held, whose last holder died. It may have
    /// cleared the marks by which waiters are found, and have died before it woke them or made its
    /// change.
    pub(crate) fn holder_died(&self) {
        if broken(Rule::MarkForTheDead) {
            return;
        }
        for listeners in [&self.inward, &self.outward] {
            listeners.armed.store(1, Ordering::SeqCst);
            listeners.word.fetch_or(ASLEEP, Ordering::SeqCst);
        }
    }

    /// Registers a sleeper on [`word`](Self::word), with the lock held. Returns the value of the
    /// word that the sleep expects, so that a later change is noticed. Check the count afterwards.
    pub(crate) fn enlist(&self, direction: Direction) -> u32 {
        self.word(direction).fetch_or(ASLEEP, Ordering::SeqCst) | ASLEEP
    }

    /// Arms the notifier for the next change. Returns how many changes there were before. A
    /// listener that has seen a change arms first, then checks what the change did.
    pub(crate) fn arm(&self, direction: Direction) -> u64 {
        let listeners = self.listeners(direction);
        if broken(Rule::ArmThenCount) {
            let changes = listeners.changes.load(Ordering::SeqCst);
            listeners.armed.swap(1, Ordering::SeqCst);
            return changes;
        }
        // A read-modify-write as the one that takes it away, so that loom knows their order, too.
        listeners.armed.swap(1, Ordering::SeqCst);
        listeners.changes.load(Ordering::SeqCst)
    }
}
