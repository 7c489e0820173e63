//! The bell of a kernel set: an eventfd that rouses a thread that sleeps in it.
//!
//! It is registered edge-triggered and never read for its own sake: each write is an event, and
//! the kernel gives it to one of the threads that sleep in the set.

use std::ptr;
use std::sync::Arc;

use super::kernel;
use crate::errno::Errno;
use crate::sync::{AtomicBool, Ordering};
use crate::wait::Deferred;

pub(super) struct Bell {
    pub(super) fd: kernel::Descriptor,
    /// An event of the bell's may be waiting in the kernel set.
    pub(super) rung: AtomicBool,
}

impl Bell {
    pub(super) fn new() -> Result<Arc<Self>, Errno> {
        Ok(Arc::new(Bell {
            fd: kernel::eventfd()?,
            rung: AtomicBool::new(false),
        }))
    }

    pub(super) fn ring(&self) {
        kernel::eventfd_write(&self.fd);
        self.rung.store(true, Ordering::SeqCst);
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
