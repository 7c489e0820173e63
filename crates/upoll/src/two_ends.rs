//! The part that pipes and channels have in common: contents behind a lock, an end that reads and one that writes, the
//! state that polls read, and the waiters at each end. A channel's receivers are its readers, and its senders its writers.

use crate::events::Events;
use crate::file::PollTable;
use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering};
use crate::wait::WaitQueue;

/// `state`: there is something to read.
pub(crate) const NOT_EMPTY: u32 = 1;
/// `state`: there is room.
pub(crate) const NOT_FULL: u32 = 2;
/// `state`: the reading end is closed.
pub(crate) const NO_READER: u32 = 4;
/// `state`: the writing end is closed.
pub(crate) const NO_WRITER: u32 = 8;

/// `users`: somebody has waited. A change before that needs no wakeup: a waiter that registers
/// takes the lock first, and so sees the change.
const AWAITED: u32 = 1;
/// `users`: somebody has polled an end. From then on every write wakes readers, even if there was
/// something to read before (`poll_usage`): edge-triggered interests rely on it.
const POLLED: u32 = 2;

/// The contents between the two ends.
pub(crate) trait Contents {
    /// Returns the bits that polls are to read.
    fn state(&self) -> u32;
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Reading,
    Writing,
}

/// [`AWAITED`] and [`POLLED`].
#[derive(Clone, Copy)]
pub(crate) struct Users(u32);

impl Users {
    /// Returns whether anybody may wait.
    #[inline]
    pub(crate) fn are_any(self) -> bool {
        self.0 != 0
    }

    /// Returns whether every write wakes readers.
    #[inline]
    pub(crate) fn have_polled(self) -> bool {
        self.0 & POLLED != 0
    }
}

/// The state that both ends share.
pub(crate) struct TwoEnds<T> {
    /// The innermost lock: nothing is locked while it is held, no message is dropped, and wakes come after it is
    /// free. Polls, which run under the locks of sets, take it once, the first of all.
    contents: Mutex<T>,
    /// The state that polls read; written under the lock.
    state: AtomicU32,
    /// [`AWAITED`] and [`POLLED`]: which kinds of users have ever registered. Written under the lock.
    users: AtomicU32,
    /// Waiters for something to read (`rd_wait`).
    readers: WaitQueue,
    /// Waiters for room (`wr_wait`).
    writers: WaitQueue,
}

impl<T: Contents> TwoEnds<T> {
    pub(crate) fn new(contents: T) -> Self {
        TwoEnds {
            state: AtomicU32::new(contents.state()),
            contents: Mutex::new(contents),
            users: AtomicU32::new(0),
            readers: WaitQueue::new(),
            writers: WaitQueue::new(),
        }
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.contents.lock()
    }

    #[inline]
    pub(crate) fn state(&self) -> u32 {
        self.state.load(Ordering::SeqCst)
    }

    /// Called before anybody registers.
    #[inline]
    fn announce(&self, users: u32) {
        if self.users.load(Ordering::Acquire) & users != users {
            let _contents = self.contents.lock();
            self.users.fetch_or(users, Ordering::Release);
        }
    }

    /// Returns who has ever registered. The caller holds the lock.
    #[inline]
    pub(crate) fn users(&self) -> Users {
        Users(self.users.load(Ordering::Relaxed))
    }

    /// Publishes the new state to polls. It is one half of the named pair: a waiter that registers later sees the state,
    /// and a wakeup that follows finds a waiter that registered before.
    #[inline]
    pub(crate) fn publish(&self, contents: &T) {
        let state = contents.state();
        if self.state.load(Ordering::Relaxed) != state {
            self.state.store(state, Ordering::Release);
        }
    }

    #[inline]
    pub(crate) fn wake_readers(&self) {
        self.readers.wake(Events::IN | Events::RDNORM);
    }

    #[inline]
    pub(crate) fn wake_writers(&self) {
        self.writers.wake(Events::OUT | Events::WRNORM);
    }

    /// Wakes all that wait at either end.
    pub(crate) fn wake_all(&self, events: Events) {
        self.readers.wake_all(events);
        self.writers.wake_all(events);
    }

    /// Wakes a waiter for room, for whichever events it waits.
    pub(crate) fn wake_any_writer(&self) {
        self.writers.wake(Events::empty());
    }

    /// Returns whether there is nothing to read.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.state() & NOT_EMPTY == 0
    }

    /// Returns whether there is nothing to read, and more may come.
    #[inline]
    pub(crate) fn is_drained(&self) -> bool {
        self.state() & (NOT_EMPTY | NO_WRITER) == 0
    }

    /// Returns the queue in which a reader waits.
    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) fn readers(&self) -> &WaitQueue {
        self.announce(AWAITED);
        &self.readers
    }

    /// Returns the queue in which a writer waits.
    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) fn writers(&self) -> &WaitQueue {
        self.announce(AWAITED);
        &self.writers
    }

    /// [`Pollable::poll`](crate::file::Pollable::poll) of an end.
    #[inline]
    pub(crate) fn poll<'q>(&'q self, end: End, table: &mut PollTable<'q>) -> Events {
        self.announce(AWAITED | POLLED);
        let mut events = Events::empty();
        match end {
            End::Reading => {
                table.register(&self.readers);
                let state = self.state();
                events.set(Events::IN | Events::RDNORM, state & NOT_EMPTY != 0);
                events.set(Events::HUP, state & NO_WRITER != 0);
            }
            End::Writing => {
                table.register(&self.writers);
                let state = self.state();
                events.set(Events::OUT | Events::WRNORM, state & NOT_FULL != 0);
                events.set(Events::ERR, state & NO_READER != 0);
            }
        }
        events
    }

    /// Publishes that an end is closed, and wakes all that wait if the other one is still open.
    pub(crate) fn close(&self, close: impl FnOnce(&mut T)) {
        let mut contents = self.lock();
        close(&mut contents);
        self.publish(&contents);
        let closed = contents.state() & (NO_READER | NO_WRITER);
        drop(contents);
        if closed == NO_READER || closed == NO_WRITER {
            self.wake_all(Events::empty());
        }
    }
}
