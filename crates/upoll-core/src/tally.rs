//! Counters of sets and queues.
//!
//! They are a switch of each set and queue, not a feature: features of all programs of a build add up, so that a
//! library that counts would make all others pay. Most is counted where a thread sleeps, or finds a lock held. For
//! the rest, a wakeup with waiters and a wait with events read one word beside those that they read anyway.
//!
//! A counter orders nothing, and no decision depends on it.

use core::fmt;

use crate::errno::Errno;
use crate::sync::{AtomicU64, Ordering};
#[cfg(not(upoll_loom))]
use crate::{memory::boxed, sync::OnceBox};

/// The counts of a set or a queue.
#[cfg_attr(not(upoll_loom), derive(Default))]
pub struct Tally {
    wakes: AtomicU64,
    empty_wakes: AtomicU64,
    events: AtomicU64,
    sleeps: AtomicU64,
    contention: AtomicU64,
}

/// The counters of a set or a queue, as they were at one moment.
///
/// Other threads may count meanwhile, so that sums need not agree. Its text has a line for each counter, in the
/// manner of `/proc/PID/fdinfo`.
///
/// # Example
/// ```
/// use upoll::{Epoll, Event, EventFd, Events};
/// let set = Epoll::new()?;
/// set.enable_counters()?;
/// let counter = EventFd::new(1)?;
/// set.add(&counter, Event::new(Events::IN, 0))?;
/// set.try_wait(&mut [Event::default()])?;
/// let counters = set.counters().unwrap();
/// assert_eq!((counters.events, counters.sleeps), (1, 0));
/// assert!(counters.to_string().contains("events:\t1\n"));
/// # Ok::<(), upoll::Errno>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Sleeps in a set that ended neither by their limit nor by a signal. For a queue, wakeups that came while it
    /// had waiters.
    pub wakes: u64,
    /// Sleeps among these after which the thread found no event. For a queue, wakeups among these that no waiter took.
    pub empty_wakes: u64,
    /// Events that waits in a set have returned. For a queue, the number of times that a waiter took a wakeup.
    pub events: u64,
    /// Sleeps that threads have begun in a set. For a queue, waiters that were added; a thread or task that was
    /// woken and waits again is added again.
    pub sleeps: u64,
    /// Calls that found the lock of the set or queue held.
    pub contention: u64,
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = [
            ("wakes", self.wakes),
            ("empty_wakes", self.empty_wakes),
            ("events", self.events),
            ("sleeps", self.sleeps),
            ("contention", self.contention),
        ];
        for (name, count) in lines {
            writeln!(f, "{name}:\t{count}")?;
        }
        Ok(())
    }
}

fn add(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Ordering::Relaxed);
}

#[cfg_attr(upoll_loom, allow(dead_code, reason = "models do not count"))]
impl Tally {
    /// Returns the counters.
    fn counters(&self) -> Counters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            wakes: get(&self.wakes),
            empty_wakes: get(&self.empty_wakes),
            events: get(&self.events),
            sleeps: get(&self.sleeps),
            contention: get(&self.contention),
        }
    }

    /// A thread begins to sleep in a set, or a waiter was added to a queue.
    pub fn sleeps(&self) {
        add(&self.sleeps, 1);
    }

    /// A thread that slept in a set has got `events`, or so many waiters of a queue took a wakeup.
    pub fn woken(&self, events: usize) {
        add(&self.wakes, 1);
        add(&self.empty_wakes, usize::from(events == 0));
    }

    pub fn events(&self, events: usize) {
        add(&self.events, events);
    }

    pub(crate) fn contended(&self) {
        add(&self.contention, 1);
    }
}

/// The tally of a set or queue, once it has one.
#[cfg(not(upoll_loom))]
#[derive(Default)]
pub struct OptionalTally(OnceBox<Tally>);

#[cfg(not(upoll_loom))]
impl OptionalTally {
    pub fn new() -> Self {
        OptionalTally(OnceBox::new())
    }

    #[inline]
    fn get(&self) -> Option<&Tally> {
        self.0.get()
    }

    /// Calls `count` if there is a tally.
    #[inline(always)]
    pub fn count(&self, count: impl FnOnce(&Tally)) {
        #[cold]
        #[inline(never)]
        fn apart(tally: &Tally, count: impl FnOnce(&Tally)) {
            count(tally);
        }
        if let Some(tally) = self.get() {
            apart(tally, count);
        }
    }

    pub fn counters(&self) -> Option<Counters> {
        self.get().map(Tally::counters)
    }

    /// Makes a tally, unless there is one.
    pub fn enable(&self) -> Result<(), Errno> {
        self.0.get_or_try_init(|| boxed(Tally::default()))?;
        Ok(())
    }
}

/// Models do not count: it would only make them longer.
#[cfg(upoll_loom)]
#[derive(Default)]
pub struct OptionalTally;

#[cfg(upoll_loom)]
impl OptionalTally {
    pub fn new() -> Self {
        OptionalTally
    }

    pub fn count(&self, _: impl FnOnce(&Tally)) {}

    pub fn counters(&self) -> Option<Counters> {
        None
    }

    pub fn enable(&self) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }
}
