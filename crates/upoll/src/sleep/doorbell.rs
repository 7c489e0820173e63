//! The doorbell: what a user-level wake rings when a thread sleeps in the kernel for descriptors.
//!
//! A kernel eventfd per thread, made when it is first needed and kept until the thread ends.
//!
//! # What could go wrong with a number
//! A wake rings after it has let go of its locks, so the sleeper may be gone by then, and the
//! number of a closed descriptor may be the program's again. So a wake that is going to ring holds
//! a reference, and the last reference closes.
//!
//! A program may also close the number itself, as one does that closes all it did not open, and
//! open something else under it, to which eight bytes would come as a surprise. So each doorbell
//! carries a [mark](Marked), and before it is rung, read, closed or slept by, somebody looks for the
//! mark.
//!
//! # Fork
//! A child has the parent's doorbells open and must neither ring them nor hear them. Each doorbell
//! knows the generation it was made in; `fork` begins a new one in the child.

use alloc::sync::Arc;
use core::cell::Cell;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::ptr;
use std::os::fd::{AsRawFd, RawFd};

use super::marked::{Belongs, Marked};
use super::thread_end;
use crate::errno::Errno;
use crate::host::{generation, kernel};
use crate::wait::Deferred;

/// A kernel eventfd that wakes a thread from a sleep in the kernel.
#[derive(Debug)]
pub(super) struct Doorbell {
    /// Belongs to the thread that it was made for.
    fd: Marked,
    generation: u32,
}

std::thread_local! {
    /// Taken out while it is in use: a call within the call makes its own. Dropped at the thread's end.
    static OF_THIS_THREAD: Cell<Option<ManuallyDrop<Arc<Doorbell>>>> = const { Cell::new(None) };
}

/// Drops the ending thread's doorbell.
pub(super) fn drop_kept() {
    drop(OF_THIS_THREAD.take().map(ManuallyDrop::into_inner));
}

impl Doorbell {
    /// The calling thread's, lent until the loan is dropped.
    ///
    /// # Errors
    /// `ENOMEM`: it has to be made, and there is no memory or no descriptor left for it.
    pub(super) fn of_this_thread() -> Result<Loan, Errno> {
        let kept = OF_THIS_THREAD.take().map(ManuallyDrop::into_inner);
        let doorbell = match kept.filter(|doorbell| doorbell.is_intact()) {
            Some(doorbell) => doorbell,
            None => Arc::new(Self::make()?),
        };
        Ok(Loan(ManuallyDrop::new(doorbell)))
    }

    fn make() -> Result<Self, Errno> {
        generation::watch_forks()?;
        let generation = generation::current();
        let fd = kernel::eventfd().map_err(|_| Errno::NOMEM)?;
        Ok(Doorbell {
            fd: Marked::new(fd, Belongs::ToThread)?,
            generation,
        })
    }

    /// Whether its number still leads to it, and it is this process's.
    pub(super) fn is_intact(&self) -> bool {
        self.generation == generation::current() && self.fd.is_marked()
    }

    /// What to wait for: it is readable once it was rung.
    pub(super) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Has it rung once the wake has let go of its locks.
    pub(super) fn ring_later(self: &Arc<Self>, deferred: &mut Deferred) {
        let kept = Arc::into_raw(self.clone());
        deferred.push(ring_and_drop, kept.expose_provenance());
    }

    fn ring(&self) {
        if self.is_intact() {
            kernel::eventfd_write(self.fd.descriptor());
        }
    }

    /// Has it not readable any more.
    pub(super) fn quiet(&self) {
        kernel::eventfd_drain(self.fd.descriptor());
    }
}

fn ring_and_drop(kept: usize) {
    // SAFETY: from `ring_later`, which gave up one reference; an action runs once.
    let doorbell = unsafe { Arc::from_raw(ptr::with_exposed_provenance::<Doorbell>(kept)) };
    doorbell.ring();
}

/// A thread's doorbell while it is in use.
pub(super) struct Loan(ManuallyDrop<Arc<Doorbell>>);

impl Deref for Loan {
    type Target = Arc<Doorbell>;

    fn deref(&self) -> &Arc<Doorbell> {
        &self.0
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and not used after.
        let doorbell = unsafe { ManuallyDrop::take(&mut self.0) };
        // Where it is not kept it closes here, or with the last wake that rings it.
        if thread_end::may_keep() {
            drop(
                OF_THIS_THREAD
                    .replace(Some(ManuallyDrop::new(doorbell)))
                    .map(ManuallyDrop::into_inner),
            );
        }
    }
}
