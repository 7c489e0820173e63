//! The file that a callback or a task waits for.

use core::ops::Deref;

#[cfg(all(feature = "std", not(upoll_loom)))]
use crate::epoll::Set;
use crate::epoll::callbacks::SetCallback;
use crate::errno::Errno;
use crate::events::Events;
#[cfg(all(feature = "std", not(upoll_loom)))]
use crate::file::File;
use crate::file::{FileRef, Held};
#[cfg(all(feature = "std", not(upoll_loom)))]
use crate::host::AttendedFd;
use crate::target::Target;
use crate::wait::Wake;

/// A file whose wakeups reach the callbacks and tasks in its queues.
pub(crate) struct Awaited {
    /// Keeps the queues alive, and does not keep the file open.
    file: Held,
    _set_callback: SetCallback,
    /// The file, if it stands for a kernel fd: nobody else has it open.
    #[cfg(all(feature = "std", not(upoll_loom)))]
    _kernel_fd: Option<File<AttendedFd>>,
}

impl Awaited {
    /// # Errors
    /// As [`Watch::new`](crate::Watch::new).
    #[inline]
    pub(crate) fn begin(target: Target<'_>, interest: Events) -> Result<Self, Errno> {
        match target {
            Target::File(file) => Self::of_file(file, interest),
            #[cfg(all(feature = "std", not(upoll_loom)))]
            _ => Self::of_kernel_fd(target, interest),
            #[cfg(upoll_loom)]
            _ => Err(Errno::PERM),
        }
    }

    fn of_file(file: FileRef<'_>, interest: Events) -> Result<Self, Errno> {
        let set_callback = SetCallback::begin(file, interest)?;
        if let Some(source) = file.description().kernel_source() {
            source.prepare_queue()?;
        }
        Ok(Awaited {
            file: file.keep(),
            _set_callback: set_callback,
            #[cfg(all(feature = "std", not(upoll_loom)))]
            _kernel_fd: None,
        })
    }

    #[cfg(all(feature = "std", not(upoll_loom)))]
    fn of_kernel_fd(target: Target<'_>, interest: Events) -> Result<Self, Errno> {
        let file = AttendedFd::open(target.kernel().ok_or(Errno::PERM)?, interest)?;
        let awaited = Self::of_file(file.as_file_ref(), interest)?;
        Ok(Awaited {
            _kernel_fd: Some(file),
            ..awaited
        })
    }
}

/// Returns the events of a wakeup, for a callback or a task.
#[inline]
pub(crate) fn key_of(wake: &Wake<'_>) -> Events {
    #[cfg(all(feature = "std", not(upoll_loom)))]
    if wake.key.contains(Events::FOR_CALLBACKS) {
        return Set::SHOWN;
    }
    wake.key
}

impl Deref for Awaited {
    type Target = Held;

    #[inline]
    fn deref(&self) -> &Held {
        &self.file
    }
}
