//! Wait queues: the waiters for a change of an object (`wait_queue_head_t`).
//!
//! An object owns one [`WaitQueue`] per kind of change. A waiter links an intrusive entry into it;
//! [`WaitQueue::wake`] calls the entries in Linux's order. A wakeup allocates nothing and runs
//! under the queue's lock, so an entry that has been unlinked is never called again.
//!
//! # What to know before a change
//! | Idea | File |
//! |---|---|
//! | *Entry*: a waiter's place, inside whatever waits. It is alive while it is linked | `entry.rs` |
//! | *Order*: non-exclusive entries, the newest first, then exclusive ones as they came. A wakeup calls all of the former, then exclusive ones until one has taken the event | `list.rs` |
//! | *Call*: a wakeup calls an entry in a [`Mode`]. The [`Reply`] is whether it took the event | `call.rs` |
//! | *Claim*: an exclusive entry took a wakeup and has not settled it | below |
//! | *Named pair*: publish then wake, register then poll | below |
//! | *Guard*: all that the lock guards is reached through `Held`, and an entry's links through the list there | `locked.rs` |
//! | *Missed wakeup*: a wakeup that finds the lock held leaves its key with the holder | `locked.rs` |
//! | *Deferred work*: what a wakeup does once its locks are free | `deferred.rs`, `tasks.rs` |
//!
//! How exclusive waiters take turns is a policy beside that, in `rotation.rs`. Its state is `Turns`, which the lock guards,
//! and `Rotation`. The queue notifies it of entries that are linked last and of claims that come and go.
//!
//! # Claims
//! A wakeup that an exclusive waiter took is that waiter's *claim* until it has polled the object
//! ([`WaitEntry::settle`]). A waiter that leaves before that forwards its claim to the next one,
//! because the wakeup would be lost otherwise.
//!
//! # The named pair: publish then wake, register then poll
//! An object publishes its new state, then [`wake`](WaitQueue::wake) reads `linked`. A waiter links
//! itself (which writes `linked`), then reads the state. There is a full fence between the two steps on
//! either side, so at least one of the two sees the other and no wakeup is lost.
//!
//! A wakeup that finds any entry needs no fence before that: the lock that it takes then orders it with each waiter.

mod call;
mod deferred;
mod entry;
mod list;
mod locked;
mod rotation;
mod tasks;
mod waker;

pub use self::call::{Mode, Reply, Wake};
#[cfg(any(feature = "std", upoll_loom))]
pub use self::deferred::Deferrable;
pub use self::deferred::Deferred;
pub use self::entry::{OnWake, WaitEntry};
use self::list::List;
use self::locked::{Held, Kind};
#[cfg(any(feature = "std", upoll_loom))]
pub use self::rotation::Arrival;
pub use self::rotation::{Ask, RecheckFlags};
use self::rotation::{Rotation, Turns};
#[cfg(upoll_loom)]
pub use self::tasks::share_scopes;
pub use self::tasks::{CallbackSlot, HeldTask, Pushed, Scope, TaskSlot};

use crate::errno::Errno;
use crate::events::Events;
use crate::sync::{AtomicU32, Mutex, Ordering, compiler_fence, fence, fence_after_rmw};
use crate::tally::{Counters, OptionalTally};

/// A list of waiters that an object wakes when it changes.
///
/// Make it a field of your object, register it in [`Pollable::poll`](crate::Pollable::poll), and
/// wake it after each change. Any thread may wake it; a wake never blocks for longer than it takes
/// to walk the list, and allocates nothing.
///
/// A wake runs wakers and callbacks at its end. If an object's `poll` makes it in a call on a set, they run at the end of
/// that call. Do not hold a lock of your own around a wake that these, or your `poll`,
/// take.
pub struct WaitQueue {
    /// The number of entries that are linked, or unlinked by a rotating wake and not yet settled: a wake that
    /// comes meanwhile finds nobody, and has to say so. Read by wakes without `inside`'s lock, and changed with it. Without it
    /// a wake writes a zero over a zero alone.
    linked: AtomicU32,
    /// The policy's state that is read without the lock.
    rotation: Rotation,
    /// Wakes that did not get `inside`'s lock.
    #[cfg(any(feature = "std", upoll_loom))]
    missed: AtomicU32,
    tally: OptionalTally,
    /// This lock nests inside a file's watcher list and a set's lock, and inside the
    /// lock of the queue of anything that this queue's owner watches.
    inside: Mutex<Inside>,
}

/// The contents of a queue, which its lock guards.
struct Inside {
    entries: List,
    /// The policy's state.
    turns: Turns,
}

/// The place of an entry in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At the head, called by every wakeup.
    Shared,
    /// At the tail, called until one took the wakeup: first come, first served.
    ExclusiveTail,
    /// Like `ExclusiveTail` but at the head: last come, first served, as threads in `epoll_wait`.
    ExclusiveHead,
}

impl Default for WaitQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl core::fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("WaitQueue")
            .field("linked", &self.linked.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

impl WaitQueue {
    /// An empty queue.
    #[must_use]
    pub fn new() -> Self {
        WaitQueue {
            linked: AtomicU32::new(0),
            rotation: Rotation::new(),
            #[cfg(any(feature = "std", upoll_loom))]
            missed: AtomicU32::new(0),
            tally: OptionalTally::new(),
            inside: Mutex::new(Inside {
                entries: List::new(),
                turns: Turns::new(),
            }),
        }
    }

    /// Notifies the waiters of the events in `key` (`wake_up_poll`), and returns how many took them.
    ///
    /// Call it after the new state is visible. It calls every non-exclusive waiter, then exclusive
    /// ones until one took it. An empty `key` means "poll yourself". A thread or task that was woken is no
    /// waiter until it waits again.
    ///
    /// With `std` it does not wait for the lock of the queue. If another call holds that, it delivers the wakeup at its
    /// end, and this one returns 0.
    pub fn wake(&self, key: Events) -> usize {
        // The exchange is in one order with the counts of waiters that come. The lock does the same where it is taken.
        let has_waiters = self.linked.load(Ordering::Relaxed) != 0
            || self
                .linked
                .compare_exchange(0, 0, Ordering::SeqCst, Ordering::SeqCst)
                .is_err();
        if has_waiters {
            // Published, now the entries look at what else their owners have published.
            self.wake_watched(key, fence_after_rmw)
        } else {
            // Callers rely on the fence for what they read next.
            fence_after_rmw();
            0
        }
    }

    /// [`wake`](Self::wake) for a caller that published its state with a `SeqCst` read-modify-write
    /// and so needs no fence.
    #[inline]
    #[doc(hidden)]
    pub fn wake_published(&self, key: Events) -> usize {
        if self.is_watched() {
            self.wake_watched(key, || {})
        } else {
            0
        }
    }

    /// Calls `order` behind the exchange that takes the lock. Apart from its callers, which need no stack without it.
    #[inline(never)]
    fn wake_watched(&self, key: Events, order: impl FnOnce()) -> usize {
        let mut deferred = Deferred::new();
        // The compiler leaves what was published before the lock.
        compiler_fence(Ordering::SeqCst);
        let took = self.with_lock(
            Kind::Plain,
            &mut Wake::new(key, &mut deferred),
            |held, wake| {
                order();
                held.wake(wake)
            },
        );
        took.unwrap_or(0)
    }

    /// Like [`wake`](Self::wake), but calls every exclusive waiter too (`wake_up_all`): for events
    /// that one of them cannot use up, such as a close.
    pub fn wake_all(&self, key: Events) -> usize {
        fence(Ordering::SeqCst);
        if !self.is_watched() {
            return 0;
        }
        let mut deferred = Deferred::new();
        let wake = &mut Wake::new(key, &mut deferred);
        self.with_lock(Kind::All, wake, Held::wake_all).unwrap_or(0)
    }

    /// A wake that is part of another one, whose state is already published.
    pub(crate) fn wake_within(&self, wake: &mut Wake<'_>) -> usize {
        if !self.is_watched() {
            return 0;
        }
        self.with_lock(Kind::Plain, wake, Held::wake).unwrap_or(0)
    }

    /// Returns whether anybody, through however many sets, waits right now for a wake of this queue.
    #[doc(hidden)]
    pub fn is_awaited(&self, deferred: &mut Deferred) -> bool {
        if !self.is_watched() {
            return false;
        }
        let mut wake = Wake {
            mode: Mode::Query,
            ..Wake::new(Events::IN, deferred)
        };
        // Without the lock: its holder may be about to wait.
        self.with_lock(Kind::Question, &mut wake, Held::is_awaited)
            .unwrap_or(true)
    }

    /// Runs `run` with the lock. Returns `None` if the wake was left to the holder of the lock, or may not enter the queue.
    #[inline]
    fn with_lock<'a, R>(
        &'a self,
        kind: Kind,
        wake: &mut Wake<'_>,
        run: impl FnOnce(&mut Held<'a>, &mut Wake<'_>) -> R,
    ) -> Option<R> {
        let mut locked = self.lock_to_wake(kind, wake)?;
        Some(run(&mut locked, wake))
    }

    /// Forwards the wake that a leaving waiter took to the next exclusive one.
    #[doc(hidden)]
    pub fn forward_in_order(&self, key: Events) {
        let mut deferred = Deferred::new();
        let wake = &mut Wake::new(key, &mut deferred);
        self.lock().walk(wake, true);
    }

    /// Begins to count what happens in the queue; without effect if it counts already.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for the counters.
    pub fn enable_counters(&self) -> Result<(), Errno> {
        self.tally.enable()
    }

    /// Returns the counters, or `None` if the queue does not [count](Self::enable_counters).
    #[must_use]
    pub fn counters(&self) -> Option<Counters> {
        self.tally.counters()
    }

    /// Counts a wakeup that `took` waiters took.
    #[inline]
    fn count_wake(&self, took: usize) {
        self.tally.count(|tally| {
            tally.woken(took);
            tally.events(took);
        });
    }

    /// An entry was linked; the queue is locked, so nobody else writes `linked`. A full fence, too: an object's poll may
    /// read in any order it likes.
    #[inline]
    fn count_linked(&self) {
        self.linked.fetch_add(1, Ordering::SeqCst);
        fence_after_rmw();
    }

    /// An entry was unlinked; the queue is locked, and `linked` is not zero, so nobody else writes it. In no order with
    /// anything: a wake that sees the old number looks for nothing.
    #[inline]
    fn count_unlinked(&self) {
        let linked = self.linked.load(Ordering::Relaxed);
        self.linked.store(linked - 1, Ordering::Relaxed);
    }

    /// Returns whether any entry is linked. Pairs with a waiter that registers, then polls.
    #[inline]
    #[doc(hidden)]
    pub fn is_watched(&self) -> bool {
        self.linked.load(Ordering::SeqCst) != 0
    }

    /// Returns whether more than one entry is linked.
    #[cfg(any(feature = "std", upoll_loom))]
    #[doc(hidden)]
    pub fn has_several(&self) -> bool {
        self.linked.load(Ordering::SeqCst) > 1
    }
}
