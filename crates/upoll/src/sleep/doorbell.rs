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
//! carries a mark, and before it is rung, read, closed or slept by, somebody looks for the mark.
//! The mark is the owner that `fcntl(2)`, `F_SETOWN_EX`, gives to an open file: the thread. Without
//! `O_ASYNC` that has no other effect.
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

use crate::errno::Errno;
use crate::host::generation;
use crate::host::kernel::{self, Descriptor};
use crate::wait::Deferred;

/// A kernel eventfd that wakes a thread from a sleep in the kernel.
#[derive(Debug)]
pub(super) struct Doorbell {
    /// Not closed by itself: the program may have closed it.
    fd: ManuallyDrop<Descriptor>,
    /// The thread that it was made for.
    owner: libc::pid_t,
    generation: u32,
}

/// `struct f_owner_ex`; the `libc` crate has neither it nor its constants for all C libraries.
#[repr(C)]
struct Owner {
    kind: libc::c_int,
    pid: libc::pid_t,
}

const F_SETSIG: libc::c_int = 10;
const F_GETSIG: libc::c_int = 11;
const F_SETOWN_EX: libc::c_int = 15;
const F_GETOWN_EX: libc::c_int = 16;
const F_OWNER_TID: libc::c_int = 0;

/// The second half of the mark, a signal that will not be sent: it stays when the owner has ended.
const MARK: libc::c_int = libc::SIGURG;

std::thread_local! {
    /// Taken out while it is in use: a call within the call makes its own.
    static OF_THIS_THREAD: Cell<Option<Arc<Doorbell>>> = const { Cell::new(None) };
}

impl Doorbell {
    /// The calling thread's, lent until the loan is dropped.
    ///
    /// # Errors
    /// `ENOMEM`: it has to be made, and there is no memory or no descriptor left for it.
    pub(super) fn of_this_thread() -> Result<Loan, Errno> {
        // A thread that is ending may have none any more.
        let kept = OF_THIS_THREAD.try_with(Cell::take).ok().flatten();
        let doorbell = match kept.filter(|doorbell| doorbell.is_intact()) {
            Some(doorbell) => doorbell,
            None => Arc::new(Self::make()?),
        };
        Ok(Loan(ManuallyDrop::new(doorbell)))
    }

    fn make() -> Result<Self, Errno> {
        generation::watch_forks()?;
        let generation = generation::current();
        // SAFETY: no arguments, no memory.
        let owner = unsafe { libc::gettid() };
        let fd = kernel::eventfd().map_err(|_| Errno::NOMEM)?;
        let mark = Owner {
            kind: F_OWNER_TID,
            pid: owner,
        };
        let number = fd.as_raw_fd();
        // SAFETY: the calls take a number and a live structure.
        unsafe {
            kernel::fcntl(number, F_SETSIG, MARK.cast_unsigned() as usize)
                .and_then(|_| {
                    kernel::fcntl(number, F_SETOWN_EX, (&raw const mark).expose_provenance())
                })
                .map_err(|_| Errno::NOMEM)?;
        }
        Ok(Doorbell {
            fd: ManuallyDrop::new(fd),
            owner,
            generation,
        })
    }

    /// Whether its number still leads to it, and it is this process's.
    pub(super) fn is_intact(&self) -> bool {
        self.generation == generation::current() && self.is_marked()
    }

    fn is_marked(&self) -> bool {
        let mut mark = Owner { kind: -1, pid: -1 };
        let owner = (&raw mut mark).expose_provenance();
        // SAFETY: the call fills the structure. A number that is not open gives an error.
        let found = unsafe { kernel::fcntl(self.fd(), F_GETOWN_EX, owner) }.is_ok();
        if !found || mark.kind != F_OWNER_TID {
            return false;
        }
        // An owner that has ended is shown as zero, and so is none.
        if mark.pid == self.owner {
            return true;
        }
        // SAFETY: no memory.
        let signal = unsafe { kernel::fcntl(self.fd(), F_GETSIG, 0) };
        mark.pid == 0 && signal == Ok(MARK.cast_unsigned() as usize)
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
            kernel::eventfd_write(&self.fd);
        }
    }

    /// Has it not readable any more.
    pub(super) fn quiet(&self) {
        kernel::eventfd_drain(&self.fd);
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        // A child of a fork closes its copy, if it still has it.
        if self.is_marked() {
            // SAFETY: done once, here. The number leads to the eventfd that this is the last
            // reference to.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
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
        // A thread that is ending cannot keep it: it closes here, or with the last that rings.
        let _ = OF_THIS_THREAD.try_with(|place| place.set(Some(doorbell)));
    }
}
