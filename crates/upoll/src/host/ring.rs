//! Waking a thread that sleeps in a kernel set, and taking that back.

use super::own_fds::OwnFd;
use crate::events::{Event, Events};
use crate::sync::Ordering;

/// The events that a wakeup asks for on the seal.
const WAKE: Events = Events::OUT.union(Events::ET);

impl OwnFd {
    /// Wakes one thread that sleeps in the set, with an event that carries `data`; an edge for those
    /// who poll the set. Returns false, and does nothing, if the set was lost.
    pub(crate) fn ring(&self, data: u64) -> bool {
        // Before, so that a thread that finds the set readable knows why; after, since such a thread
        // may have taken it back.
        self.asked().store(WAKE.bits(), Ordering::SeqCst);
        let is_done = self.change_seal(&Event::new(WAKE, data));
        self.asked().store(WAKE.bits(), Ordering::SeqCst);
        is_done
    }

    /// Takes back a wakeup that no thread has taken. Returns false, and does nothing, if the set
    /// was lost.
    pub(crate) fn quiet(&self, data: u64) -> bool {
        self.ask(Events::empty(), data)
    }

    /// Makes the set readable for good: each harvest has an event that carries `data`. Returns false, and
    /// does nothing, if the set was lost.
    pub(crate) fn keep_readable(&self, data: u64) -> bool {
        self.ask(Events::OUT, data)
    }

    fn ask(&self, events: Events, data: u64) -> bool {
        self.asked().store(events.bits(), Ordering::SeqCst);
        self.change_seal(&Event::new(events, data))
    }

    /// Returns whether a wakeup was sent since the last [`quiet`](Self::quiet).
    pub(crate) fn is_rung(&self) -> bool {
        self.asked().load(Ordering::SeqCst) == WAKE.bits()
    }
}
