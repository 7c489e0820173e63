//! Waking a thread that sleeps in a kernel set, and taking that back.

use super::own_fds::OwnFd;
use crate::events::{Event, Events};
use crate::sync::Ordering;

impl OwnFd {
    /// Wakes one thread that sleeps in the set, with an event that carries `data`; an edge for those
    /// who poll the set. Returns false, and does nothing, if the set was lost.
    pub(crate) fn ring(&self, data: u64) -> bool {
        // Before, so that a thread that finds the set readable knows why; after, since such a thread
        // may have taken it back.
        self.rung().store(true, Ordering::SeqCst);
        let is_done = self.change_seal(&Event::new(Events::OUT | Events::ET, data));
        self.rung().store(true, Ordering::SeqCst);
        is_done
    }

    /// Takes back a wakeup that no thread has taken. Returns false, and does nothing, if the set
    /// was lost.
    pub(crate) fn quiet(&self, data: u64) -> bool {
        self.rung().store(false, Ordering::SeqCst);
        self.change_seal(&Event::new(Events::empty(), data))
    }

    /// Whether a wake was sent since the last [`quiet`](Self::quiet).
    pub(crate) fn is_rung(&self) -> bool {
        self.rung().load(Ordering::SeqCst)
    }
}
