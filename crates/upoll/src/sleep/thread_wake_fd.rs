//! The wake fd of a thread: what a user-level wake makes readable when the thread sleeps in the kernel
//! for fds.
//!
//! A kernel set of the thread's own with nothing but the seal in it ([`own_fds`](crate::host::own_fds)),
//! made when it is first needed and kept until the thread ends.
//!
//! # Fds
//! A wake is sent after the waker has released its locks, so the sleeping thread may have ended by
//! then, and the fd may be the program's again. So a waker holds a reference, and the last
//! reference closes. A program may also close the fd itself: then a wake changes nothing, and the
//! thread makes another wake fd when it next checks.
//!
//! # Fork
//! A child must neither use its parent's wake fds nor be woken by them, and after `fork(2)` it has closed
//! its copies. Each knows the generation it was made in; `fork` begins a new one in the child.

#[cfg(not(upoll_loom))]
use core::cell::Cell;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use std::os::fd::{AsRawFd, RawFd};

#[cfg(not(upoll_loom))]
use super::thread_end;
use crate::errno::Errno;
use crate::host::own_fds::OwnFd;
use crate::host::{generation, kernel};
use crate::memory::SharedBox;
use crate::wait::Deferrable;

/// A kernel set that wakes a thread from a sleep in the kernel.
#[derive(Debug)]
pub(super) struct ThreadWakeFd {
    set: OwnFd,
    generation: u32,
}

#[cfg(not(upoll_loom))]
std::thread_local! {
    /// Taken out while it is in use: a call within the call makes its own. Dropped at the thread's end.
    static OF_THIS_THREAD: Cell<Option<ManuallyDrop<SharedBox<ThreadWakeFd>>>> = const { Cell::new(None) };
}

/// Drops the ending thread's wake fd.
#[cfg(not(upoll_loom))]
pub(super) fn drop_kept() {
    drop(take_kept());
}

#[cfg(not(upoll_loom))]
fn take_kept() -> Option<SharedBox<ThreadWakeFd>> {
    OF_THIS_THREAD.take().map(ManuallyDrop::into_inner)
}

/// In a model each call makes its own.
#[cfg(upoll_loom)]
const fn take_kept() -> Option<SharedBox<ThreadWakeFd>> {
    None
}

impl ThreadWakeFd {
    /// Lends the calling thread's until the loan is dropped. It is not readable, unless a late wake of
    /// an earlier call comes.
    ///
    /// # Errors
    /// `ENOMEM`: it has to be made, and there is no memory or no fd left for it.
    pub(super) fn of_this_thread() -> Result<Loan, Errno> {
        let kept = take_kept();
        let wake_fd = match kept.filter(|wake_fd| wake_fd.is_quiet() || wake_fd.quiet()) {
            Some(wake_fd) => wake_fd,
            None => SharedBox::new(Self::make()?)?,
        };
        Ok(Loan(ManuallyDrop::new(wake_fd)))
    }

    fn make() -> Result<Self, Errno> {
        generation::watch_forks()?;
        Ok(ThreadWakeFd {
            set: kernel::epoll_create().map_err(|_| Errno::NOMEM)?,
            generation: generation::current(),
        })
    }

    /// Returns whether this process made it.
    pub(super) fn is_of_this_process(&self) -> bool {
        self.generation == generation::current()
    }

    /// Returns whether the fd still stands for the kernel set. To be called before each sleep.
    pub(super) fn is_in_place(&self) -> bool {
        self.set.is_in_place()
    }

    /// Returns the fd to wait for: it is readable once a wakeup was sent.
    pub(super) fn fd(&self) -> RawFd {
        self.set.as_raw_fd()
    }

    /// Returns whether it is usable and unreadable as it is, without a system call. A wakeup that is just
    /// being sent may still make it readable, and then ends a sleep early.
    fn is_quiet(&self) -> bool {
        self.is_of_this_process() && !self.set.is_rung() && !self.set.is_found_lost()
    }

    /// Makes it unreadable. Returns false if it was lost, or is another process's.
    pub(super) fn quiet(&self) -> bool {
        self.is_of_this_process() && self.set.quiet(0)
    }
}

impl Deferrable for ThreadWakeFd {
    fn run(&self) {
        if self.is_of_this_process() {
            self.set.ring(0);
        }
    }
}

/// A thread's wake fd while it is in use.
pub(super) struct Loan(ManuallyDrop<SharedBox<ThreadWakeFd>>);

impl Deref for Loan {
    type Target = SharedBox<ThreadWakeFd>;

    fn deref(&self) -> &SharedBox<ThreadWakeFd> {
        &self.0
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and not used after.
        let wake_fd = unsafe { ManuallyDrop::take(&mut self.0) };
        // If it is not kept it closes here, or with the last wakeup that uses it.
        #[cfg(upoll_loom)]
        drop(wake_fd);
        #[cfg(not(upoll_loom))]
        if thread_end::may_keep() {
            drop(
                OF_THIS_THREAD
                    .replace(Some(ManuallyDrop::new(wake_fd)))
                    .map(ManuallyDrop::into_inner),
            );
        }
    }
}
