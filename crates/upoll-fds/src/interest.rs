//! The interest that a caller of `epoll_ctl(2)` passes.

use upoll::{Event, Events};

/// An interest as two words, which are handed on in registers. An [`Event`] is packed: a copy of one is
/// read in other pieces than it was written in, and the processor waits for it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Interest {
    pub(crate) events: Events,
    pub(crate) data: u64,
}

impl From<Event> for Interest {
    fn from(event: Event) -> Self {
        Interest {
            events: event.events(),
            data: event.data(),
        }
    }
}

impl Interest {
    pub(crate) fn event(self) -> Event {
        Event::new(self.events, self.data)
    }
}
