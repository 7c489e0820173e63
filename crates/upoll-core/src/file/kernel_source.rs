//! The part of an object that lives in the kernel.
//!
//! The readiness of some objects changes without a wakeup of their wait queues. Such an object names the part of itself
//! that the kernel reports. That is the kernel backend of a set, or the notifiers of a shared eventfd. Sets, `poll`,
//! `select` and callbacks learn of it by [`Pollable::kernel_source`] alone.
//!
//! [`Pollable::kernel_source`]: crate::Pollable::kernel_source

use core::any::Any;
use core::fmt;
#[cfg(any(feature = "std", upoll_loom))]
use std::os::fd::BorrowedFd;

use super::Description;
use crate::errno::Errno;
#[cfg(any(feature = "std", upoll_loom))]
use crate::events::Events;

/// The part of an object that lives in the kernel. Only objects of this crate have one so far.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct KernelSource<'a>(pub &'a dyn InKernel);

impl fmt::Debug for KernelSource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelSource").finish_non_exhaustive()
    }
}

/// The interface to the kernel part of an object.
pub trait InKernel: Any + Send + Sync {
    /// Returns the fd that a thread has to await besides the object's queues while it waits for `wanted`
    /// of `file`, the open file of the object.
    ///
    /// The fd is readable when the file may have become ready for `wanted`, and not for longer. The
    /// object's poll decides what the file shows. A file that gets such an fd wakes its wait queues, so
    /// that threads that sleep without it poll again.
    #[cfg(any(feature = "std", upoll_loom))]
    fn awaited_fd(&self, _file: &Description, _wanted: Events) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns whether other processes change the object: a thread that waits for it arms the notifiers of the
    /// object and listens to them.
    fn is_shared(&self) -> bool {
        false
    }

    /// Makes the object's wait queue, if there is none yet.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    fn prepare_queue(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// Makes `set` ready to watch the object, before its interest is added.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: the kernel has no fds or memory for it.
    fn prepare_set(&self, _set: &Description) -> Result<(), Errno> {
        Ok(())
    }

    /// Makes the threads that wait in `set` await the object, too, after its interest was added.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOSPC`: from the kernel. Then a thread that is not woken polls when its limit ends.
    fn tell_threads_of(&self, _set: &Description) -> Result<(), Errno> {
        Ok(())
    }
}

impl Description {
    /// Returns the part of the object that lives in the kernel, if there is one.
    #[inline]
    pub fn kernel_source(&self) -> Option<&dyn InKernel> {
        Some(self.object().kernel_source()?.0)
    }

    /// Returns the kernel part of an object that other processes change.
    #[inline]
    pub fn shared_source(&self) -> Option<&dyn InKernel> {
        self.kernel_source().filter(|source| source.is_shared())
    }
}
