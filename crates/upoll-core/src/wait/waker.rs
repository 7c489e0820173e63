//! Wakers that wake a queue.

use alloc::sync::Arc;
use alloc::task::Wake;
use core::task::Waker;

use super::WaitQueue;
use crate::events::Events;

impl WaitQueue {
    /// Returns a waker that [wakes](Self::wake) this queue with `events`: for code that takes a [`Waker`] and is to
    /// wake whatever waits for an object of yours.
    ///
    /// The waker and its clones keep the queue alive. They do not keep an object alive, and do not keep a file open.
    /// The waker allocates once, its clones do not. Without memory the process ends, as with `Arc::new`.
    ///
    /// Code that takes a waker often calls it once. Then the object's [`poll`](crate::Pollable::poll) has to hand the
    /// waker over again each time, before it checks whether it is ready.
    ///
    /// # Example
    /// ```
    /// use std::sync::Arc;
    /// use upoll::{Epoll, Event, Events, File, Pollable, PollTable, WaitQueue};
    ///
    /// struct Door(Arc<WaitQueue>);
    ///
    /// impl Pollable for Door {
    ///     fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
    ///         table.register(&self.0);
    ///         Events::IN
    ///     }
    /// }
    ///
    /// let queue = Arc::new(WaitQueue::new());
    /// let set = Epoll::new()?;
    /// let door = File::new(Door(queue.clone()));
    /// set.add(&door, Event::new(Events::IN | Events::ET, 1))?;
    /// let mut events = [Event::default()];
    /// assert_eq!(set.try_wait(&mut events)?, 1);
    /// queue.waker(Events::IN).wake();
    /// assert_eq!(set.try_wait(&mut events)?, 1);
    /// # Ok::<(), upoll::Errno>(())
    /// ```
    #[must_use]
    pub fn waker(self: &Arc<Self>, events: Events) -> Waker {
        Waker::from(Arc::new(QueueWaker {
            queue: Arc::clone(self),
            events,
        }))
    }
}

struct QueueWaker {
    queue: Arc<WaitQueue>,
    events: Events,
}

impl Wake for QueueWaker {
    fn wake(self: Arc<Self>) {
        self.queue.wake(self.events);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.queue.wake(self.events);
    }
}
