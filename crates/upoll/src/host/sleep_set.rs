//! A kernel set that threads sleep in; a wake of one of them is an edge-triggered event of its own.

use std::os::fd::RawFd;

use super::kernel;
use super::own_fds::OwnFd;
use super::special::{Special, Specials};
use crate::epoll::Op;
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::memory::SharedBox;
use crate::sync::{AtomicUsize, Ordering};
use crate::wait::Deferrable;

pub(super) struct SleepSet {
    pub(super) fd: SharedBox<WakeableSet>,
    /// Threads that sleep in it, or are about to. Pairs with the core's `first` and `pending`: a thread
    /// counts itself, then reads these; a wake queues an item, then looks here.
    pub(super) asleep: AtomicUsize,
}

impl SleepSet {
    pub(super) fn new(specials: &Specials) -> Result<Self, Errno> {
        Self::around(kernel::epoll_create()?, specials)
    }

    /// Makes one that is readable for good, and that no thread sleeps in.
    pub(super) fn readable(specials: &Specials) -> Result<Self, Errno> {
        Self::resting(kernel::epoll_create()?, specials, true)
    }

    /// Makes one around a kernel set that exists, and may have members.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    pub(super) fn around(fd: OwnFd, specials: &Specials) -> Result<Self, Errno> {
        Self::resting(fd, specials, false)
    }

    fn resting(fd: OwnFd, specials: &Specials, is_readable: bool) -> Result<Self, Errno> {
        let set = WakeableSet {
            fd,
            data: specials.encode(Special::Wake),
            is_readable,
        };
        // From now on the event is known as one that is not for the user.
        set.rest();
        Ok(SleepSet {
            fd: SharedBox::new(set)?,
            asleep: AtomicUsize::new(0),
        })
    }

    /// Registers one of the library's own fds.
    pub(super) fn register(
        &self,
        specials: &Specials,
        op: Op,
        fd: RawFd,
        events: Events,
        special: Special,
    ) -> Result<(), Errno> {
        kernel::epoll_ctl(
            &self.fd,
            op,
            fd,
            &Event::new(events, specials.encode(special)),
        )
    }

    pub(super) fn is_awaited(&self) -> bool {
        self.asleep.load(Ordering::SeqCst) != 0
    }
}

/// A kernel set, and the data of the event that wakes a thread in it.
pub(super) struct WakeableSet {
    fd: OwnFd,
    data: u64,
    /// No thread sleeps in it, and it is readable for good.
    is_readable: bool,
}

impl std::ops::Deref for WakeableSet {
    type Target = OwnFd;

    fn deref(&self) -> &OwnFd {
        &self.fd
    }
}

impl WakeableSet {
    /// Wakes one thread that sleeps in the set.
    pub(super) fn wake(&self) {
        self.fd.ring(self.data);
    }

    /// Takes back a wakeup that no thread has taken. Returns whether there may have been one.
    pub(super) fn take_back_wake(&self) -> bool {
        self.fd.is_rung() && self.fd.quiet(self.data)
    }

    /// Clears the data of wakeups: the seal stays a member that is never asked for anything.
    pub(super) fn forget_wakes(&self) {
        self.fd.quiet(0);
    }

    /// Puts `anew` in the place of a set that was lost.
    pub(super) fn replace_lost(&self, anew: OwnFd) {
        self.fd.replace_lost(anew);
        self.rest();
    }

    fn rest(&self) {
        match self.is_readable {
            true => self.fd.keep_readable(self.data),
            false => self.fd.quiet(self.data),
        };
    }
}

/// The user's set may be gone by then. This one lives on, so its fd means nothing else.
impl Deferrable for WakeableSet {
    fn run(&self) {
        self.wake();
    }
}
