//! A kernel set that threads sleep in, and its bell: an eventfd that rouses one of them.
//!
//! The bell is registered edge-triggered and never read for its own sake: each write is an event,
//! and the kernel gives it to one of the threads that sleep in the set.

use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Arc;

use super::kernel::Descriptor;
use super::special::{Special, Specials};
use super::{EDGE, kernel};
use crate::epoll::Op;
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::sync::{AtomicUsize, Ordering};
use crate::wait::Deferred;

pub(super) struct SleepSet {
    pub(super) fd: Descriptor,
    pub(super) bell: Arc<Bell>,
    /// Threads that sleep in it, or are about to. Pairs with the core's `pending`: a thread counts
    /// itself, then looks at `pending`; a wake queues an item, then looks here.
    pub(super) asleep: AtomicUsize,
}

impl SleepSet {
    pub(super) fn new(specials: &Specials) -> Result<Self, Errno> {
        Self::around(kernel::epoll_create()?, specials)
    }

    /// One that exists, and may have members.
    pub(super) fn around(fd: Descriptor, specials: &Specials) -> Result<Self, Errno> {
        let set = SleepSet {
            fd,
            bell: Arc::new(Bell(kernel::eventfd()?)),
            asleep: AtomicUsize::new(0),
        };
        let bell = set.bell.0.as_raw_fd();
        set.register(specials, Op::Add, bell, EDGE, Special::Bell)?;
        Ok(set)
    }

    /// Registers one of our own descriptors.
    pub(super) fn register(
        &self,
        specials: &Specials,
        op: Op,
        fd: i32,
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

pub(super) struct Bell(pub(super) Descriptor);

impl Bell {
    pub(super) fn ring(&self) {
        kernel::eventfd_write(&self.0);
    }

    /// Takes back what was rung and not heard; says whether anything was.
    pub(super) fn hush(&self) -> bool {
        kernel::eventfd_drain(&self.0)
    }

    /// [`ring`](Self::ring) once the locks of a wake are free. The set may be gone by then: the
    /// action holds the bell itself, so it never writes to a number that means something else.
    pub(super) fn ring_later(self: &Arc<Self>, deferred: &mut Deferred) {
        let bell = Arc::into_raw(Arc::clone(self));
        deferred.push(ring_now, bell.expose_provenance());
    }
}

fn ring_now(bell: usize) {
    // SAFETY: the address is of `Arc::into_raw` in `ring_later`, whose count is taken over here,
    // once: a deferred action runs once.
    let bell = unsafe { Arc::from_raw(ptr::with_exposed_provenance::<Bell>(bell)) };
    bell.ring();
}
