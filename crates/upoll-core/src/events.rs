//! The event bits of `poll(2)` and `epoll(7)`, with Linux's values.

use bitflags::bitflags;

bitflags! {
    /// A set of readiness and control bits; `struct epoll_event`'s `events`.
    ///
    /// The low bits are events that are ready or wanted, the four highest ones the kind of interest.
    /// Bits that Linux does not name are kept, as Linux keeps them. The values are those of
    /// `<sys/epoll.h>`, and, where `poll(2)` has the bit, of `<poll.h>`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Events: u32 {
        /// `EPOLLIN`, `POLLIN`: there is something to read.
        const IN = 0x001;
        /// `EPOLLPRI`, `POLLPRI`: an exceptional condition.
        const PRI = 0x002;
        /// `EPOLLOUT`, `POLLOUT`: a write would not block.
        const OUT = 0x004;
        /// `EPOLLERR`, `POLLERR`: an error; always reported, asked for or not.
        const ERR = 0x008;
        /// `EPOLLHUP`, `POLLHUP`: the peer hung up; always reported, asked for or not.
        const HUP = 0x010;
        /// `POLLNVAL`: [`poll`](crate::poll()) was given something that is not open.
        const NVAL = 0x020;
        /// `EPOLLRDNORM`: normal data to read.
        const RDNORM = 0x040;
        /// `EPOLLRDBAND`: priority data to read.
        const RDBAND = 0x080;
        /// `EPOLLWRNORM`: normal data may be written.
        const WRNORM = 0x100;
        /// `EPOLLWRBAND`: priority data may be written.
        const WRBAND = 0x200;
        /// `EPOLLMSG`: unused by Linux.
        const MSG = 0x400;
        /// `EPOLLRDHUP`: a stream's peer closed, or shut down its writing half.
        const RDHUP = 0x2000;
        /// `EPOLLEXCLUSIVE`: of the sets that watch the file so, wake at least one, not all.
        const EXCLUSIVE = 1 << 28;
        /// `EPOLLWAKEUP`: accepted and dropped, as Linux does for one without the capability.
        const WAKEUP = 1 << 29;
        /// `EPOLLONESHOT`: after one report the interest is disabled until it is modified.
        const ONESHOT = 1 << 30;
        /// `EPOLLET`: edge-triggered, one report per wake of the file.
        const ET = 1 << 31;

        // Linux keeps bits it has no name for; so do we.
        const _ = !0;
    }
}

impl Events {
    /// The key of a wakeup of a set that concerns its callbacks and tasks alone. Linux has no event with this bit.
    #[cfg(any(feature = "std", upoll_loom))]
    #[doc(hidden)]
    pub const FOR_CALLBACKS: Events = Events::from_bits_retain(0x1000);
    /// The events that Linux adds to every interest.
    #[doc(hidden)]
    pub const ALWAYS: Events = Events::ERR.union(Events::HUP);
    /// The flags of an interest. A oneshot interest that has fired keeps only these.
    #[doc(hidden)]
    pub const CONTROL: Events = Events::EXCLUSIVE
        .union(Events::WAKEUP)
        .union(Events::ONESHOT)
        .union(Events::ET);
    /// All that may stand beside `EXCLUSIVE` in an interest.
    pub(crate) const BESIDE_EXCLUSIVE: Events = Events::IN
        .union(Events::OUT)
        .union(Events::ALWAYS)
        .union(Events::WAKEUP)
        .union(Events::ET)
        .union(Events::EXCLUSIVE);
    /// The events that a file without a poll operation always shows (`DEFAULT_POLLMASK`).
    pub const DEFAULT: Events = Events::IN
        .union(Events::OUT)
        .union(Events::RDNORM)
        .union(Events::WRNORM);
}

/// One event or interest: `struct epoll_event`, with its layout.
///
/// Passed to `Epoll::add` it has the wanted events, and the `data` to return with
/// them. Filled by a wait it has the events that happened.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
#[cfg_attr(target_arch = "x86_64", repr(packed))]
pub struct Event {
    events: u32,
    data: u64,
}

impl Event {
    /// An interest in `events`, or a report of them, that carries `data`.
    #[must_use]
    pub const fn new(events: Events, data: u64) -> Self {
        Event {
            events: events.bits(),
            data,
        }
    }

    /// Returns the events that are wanted, or happened.
    #[must_use]
    pub const fn events(&self) -> Events {
        Events::from_bits_retain(self.events)
    }

    /// Returns the caller's own word, unchanged.
    #[must_use]
    pub const fn data(&self) -> u64 {
        self.data
    }
}

impl core::fmt::Debug for Event {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Event")
            .field("events", &self.events())
            .field("data", &self.data())
            .finish()
    }
}
