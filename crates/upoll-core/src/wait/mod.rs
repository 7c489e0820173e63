//! Wait queues: the waiters for a change of an object (`wait_queue_head_t`).
//!
//! An object owns one [`WaitQueue`] per kind of change. A waiter links an intrusive entry into it;
//! [`WaitQueue::wake`] calls the entries in Linux's order. A wakeup allocates nothing and runs
//! under the queue's lock, so an entry that has been unlinked is never called again.
//!
//! # Order and exclusivity
//! Non-exclusive entries come first, the newest at the front; exclusive ones follow in the order of
//! their arrival. A wakeup calls every non-exclusive entry, then exclusive ones until one has taken
//! the event. `rotation.rs` describes how exclusive waiters take turns instead.
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

mod deferred;
mod list;
mod locked;
mod rotation;
mod tasks;
mod waker;

#[cfg(any(feature = "std", upoll_loom))]
pub use self::deferred::Deferrable;
pub use self::deferred::Deferred;
use self::deferred::Level;
use self::list::{EXCLUSIVE, LINKED, List};
pub use self::list::{OnWake, WaitEntry};
use self::locked::Kind;
#[cfg(any(feature = "std", upoll_loom))]
pub use self::rotation::Arrival;
use self::rotation::Rotation;
pub use self::rotation::{Ask, Notes};
#[cfg(upoll_loom)]
pub use self::tasks::share_scopes;
pub use self::tasks::{CallbackSlot, HeldTask, Pushed, Scope, TaskSlot};

use core::ptr::{self, NonNull};

use crate::errno::Errno;
use crate::events::Events;
use crate::steps::{Step, step};
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
    /// comes meanwhile finds nobody, and has to say so. Read by wakes without `list`'s lock, and changed with it. Without it
    /// a wake writes a zero over a zero alone.
    linked: AtomicU32,
    rotation: Rotation,
    /// Wakes that did not get `list`'s lock.
    #[cfg(any(feature = "std", upoll_loom))]
    missed: AtomicU32,
    tally: OptionalTally,
    /// The entries. This lock nests inside a file's watcher list and a set's lock, and inside the
    /// lock of the queue of anything that this queue's owner watches.
    list: Mutex<List>,
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

impl Wake<'_> {
    /// Returns whether the wakeup may go through `queue`. It may not if it is in that queue already: objects that
    /// forward the queues of sets can form a cycle that ADD does not see.
    fn may_enter(&self, queue: &WaitQueue) -> bool {
        // SAFETY: the levels are those of callers of `WaitQueue::call` that have not returned.
        unsafe { Level::admits(self.deferred.level, queue) }
    }

    /// The same wake with another key, for the queues above.
    pub(crate) fn with_key(&mut self, key: Events) -> Wake<'_> {
        Wake {
            key,
            mode: Mode::Notify,
            deferred: self.deferred,
        }
    }
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
            list: Mutex::new(List {
                head: ptr::null_mut(),
                tail: ptr::null_mut(),
                claims: 0,
                baseline: 0,
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
        let mut wake = Wake {
            key,
            mode: Mode::Notify,
            deferred: &mut deferred,
        };
        // The compiler leaves what was published before the lock.
        compiler_fence(Ordering::SeqCst);
        let Some(mut list) = self.lock_to_wake(Kind::Plain, &mut wake) else {
            return 0;
        };
        order();
        let took = self.wake_locked(&mut list, &mut wake);
        drop(list);
        took
    }

    /// Like [`wake`](Self::wake), but calls every exclusive waiter too (`wake_up_all`): for events
    /// that one of them cannot use up, such as a close.
    pub fn wake_all(&self, key: Events) -> usize {
        fence(Ordering::SeqCst);
        if !self.is_watched() {
            return 0;
        }
        let mut deferred = Deferred::new();
        let mut wake = Wake {
            key,
            mode: Mode::Notify,
            deferred: &mut deferred,
        };
        let Some(mut list) = self.lock_to_wake(Kind::All, &mut wake) else {
            return 0;
        };
        let took = self.wake_all_locked(&mut list, &mut wake);
        drop(list);
        took
    }

    /// [`wake_all`](Self::wake_all) with the lock held.
    fn wake_all_locked(&self, list: &mut List, wake: &mut Wake<'_>) -> usize {
        let mut took = 0;
        let mut at = list.first(false);
        while let Some(entry) = at {
            // SAFETY: a linked entry is alive under the lock.
            at = unsafe { list.next(entry) };
            let reply = self.call(list, entry, wake);
            self.uncount(reply);
            took += usize::from(reply != Reply::Declined);
        }
        self.count_wake(took);
        took
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

    /// An entry was linked; `list` is locked, so nobody else writes `linked`. A full fence, too: an object's poll may
    /// read in any order it likes.
    #[inline]
    fn count_linked(&self) {
        self.linked.fetch_add(1, Ordering::SeqCst);
        fence_after_rmw();
    }

    /// An entry was unlinked; `list` is locked, and `linked` is not zero, so nobody else writes it. In no order with
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

    /// Returns whether anybody, through however many sets, waits right now for a wake of this queue.
    #[doc(hidden)]
    pub fn is_awaited(&self, deferred: &mut Deferred) -> bool {
        if !self.is_watched() {
            return false;
        }
        let mut wake = Wake {
            key: Events::IN,
            mode: Mode::Query,
            deferred,
        };
        let Some(mut list) = self.lock_to_wake(Kind::Question, &mut wake) else {
            // The holder of the lock may be about to wait.
            return true;
        };
        let mut is_awaited = false;
        let mut at = list.first(false);
        while let Some(entry) = at.filter(|_| !is_awaited) {
            // SAFETY: a linked entry is alive under the lock.
            at = unsafe { list.next(entry) };
            is_awaited = self.call(&mut list, entry, &mut wake) != Reply::Declined;
        }
        drop(list);
        is_awaited
    }

    /// A wake that is part of another one, whose state is already published.
    pub(crate) fn wake_within(&self, wake: &mut Wake<'_>) -> usize {
        if !self.is_watched() {
            return 0;
        }
        let Some(mut list) = self.lock_to_wake(Kind::Plain, wake) else {
            return 0;
        };
        let took = self.wake_locked(&mut list, wake);
        drop(list);
        took
    }

    /// [`wake_within`](Self::wake_within) with the lock held.
    #[inline]
    fn wake_locked(&self, list: &mut List, wake: &mut Wake<'_>) -> usize {
        let took = self.walk(list, wake, false);
        self.count_wake(took);
        took
    }

    /// Hands the wake that a leaving waiter took to the next exclusive one.
    #[doc(hidden)]
    pub fn pass_on(&self, key: Events) {
        let mut deferred = Deferred::new();
        let mut wake = Wake {
            key,
            mode: Mode::Notify,
            deferred: &mut deferred,
        };
        let mut list = self.lock();
        self.walk(&mut list, &mut wake, true);
        drop(list);
    }

    /// The entry's claim, if it has one, is over.
    fn unclaim(&self, list: &mut List, entry: &WaitEntry) -> bool {
        let claimed = list.unclaim(entry);
        if claimed && !entry.stands(LINKED) {
            self.count_unlinked();
        }
        claimed
    }

    /// Calls entries from the head, exclusive ones until one took it.
    #[inline]
    fn walk(&self, list: &mut List, wake: &mut Wake<'_>, exclusive_only: bool) -> usize {
        let mut took = 0;
        let mut at = list.first(exclusive_only);
        while let Some(entry) = at {
            // SAFETY: a linked entry is alive under the lock.
            at = unsafe { list.next(entry) };
            // SAFETY: as above.
            let exclusive = unsafe { entry.as_ref() }.stands(EXCLUSIVE);
            let reply = self.call(list, entry, wake);
            self.uncount(reply);
            if reply != Reply::Declined {
                took += 1;
                if exclusive {
                    if reply == Reply::Woken {
                        // SAFETY: as above, and `Woken` left it linked.
                        list.claim(unsafe { entry.as_ref() });
                    }
                    break;
                }
            }
        }
        took
    }

    /// Subtracts an entry that [`call`](Self::call) has unlinked. An entry that took a rotating
    /// wakeup stays counted.
    #[inline]
    fn uncount(&self, reply: Reply) {
        if reply == Reply::WokenAndUnlinked {
            self.count_unlinked();
        }
    }

    /// Calls a linked entry, and unlinks it if that is its reply. Until it has replied, the wakeup is in this queue.
    #[inline]
    fn call(&self, list: &mut List, entry: NonNull<WaitEntry>, wake: &mut Wake<'_>) -> Reply {
        step(Step::Call);
        // SAFETY: a linked entry is alive under the lock.
        let on_wake = unsafe { entry.as_ref() }.on_wake;
        let below = wake.deferred.level;
        // SAFETY: the levels are those of callers of this function that have not returned.
        let level = unsafe { Level::above(below, self) };
        wake.deferred.level = &raw const level;
        // SAFETY: the entry is linked into this queue, whose lock is held.
        let reply = unsafe { on_wake(entry, wake) };
        wake.deferred.level = below;
        if reply == Reply::WokenAndUnlinked {
            // SAFETY: it was linked and the list is locked. Its owner frees it after it has taken this lock, or has
            // found that it is unlinked.
            unsafe { list.unlink(entry) };
        }
        reply
    }
}
