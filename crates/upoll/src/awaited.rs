//! The file that a callback or a task waits for.

use core::ops::Deref;

#[cfg(any(feature = "std", upoll_loom))]
use crate::epoll::Set;
use crate::epoll::callbacks;
use crate::errno::Errno;
use crate::events::Events;
#[cfg(any(feature = "std", upoll_loom))]
use crate::file::File;
use crate::file::{Description, Held};
#[cfg(any(feature = "std", upoll_loom))]
use crate::host::AttendedFd;
use crate::open_file::FileRef;
use crate::target::Target;
use crate::wait::Wake;

/// A file whose wakeups reach the callbacks and tasks in its queues.
pub(crate) struct Awaited<F: Deref<Target = Description> = Held> {
    /// Keeps the queues alive, unless this is leaked. A [`Held`] does not keep the file open; a borrow of what keeps it open
    /// needs no count.
    file: F,
    /// The file, if it stands for a kernel fd: nobody else has it open.
    #[cfg(any(feature = "std", upoll_loom))]
    kernel_fd: Option<File<AttendedFd>>,
    /// The file is a set, which counts the callback or task.
    is_counted: bool,
}

impl Awaited {
    /// # Errors
    /// As [`Watch::new`](crate::Watch::new).
    #[inline]
    pub(crate) fn begin(target: Target<'_>, interest: Events) -> Result<Self, Errno> {
        match target {
            Target::File(file) => Ok(Self::begun(
                begin_at(file.description(), interest)?,
                file.keep(),
            )),
            #[cfg(any(feature = "std", upoll_loom))]
            _ => Self::of_kernel_fd(target, interest),
        }
    }

    #[cfg(any(feature = "std", upoll_loom))]
    #[cold]
    fn of_kernel_fd(target: Target<'_>, interest: Events) -> Result<Self, Errno> {
        let file = AttendedFd::open(target.kernel().ok_or(Errno::PERM)?, interest)?;
        let is_counted = begin_at(file.as_file_ref().description(), interest)?;
        let mut awaited = Self::begun(is_counted, file.as_file_ref().keep());
        awaited.kernel_fd = Some(file);
        Ok(awaited)
    }
}

impl<'a> Awaited<&'a Description> {
    /// # Errors
    /// As [`Watch::new`](crate::Watch::new).
    #[inline]
    pub(crate) fn borrow(file: FileRef<'a>, interest: Events) -> Result<Self, Errno> {
        Ok(Self::begun(
            begin_at(file.description(), interest)?,
            file.description(),
        ))
    }
}

impl<F: Deref<Target = Description>> Awaited<F> {
    #[inline]
    fn begun(is_counted: bool, file: F) -> Self {
        Awaited {
            file,
            #[cfg(any(feature = "std", upoll_loom))]
            kernel_fd: None,
            is_counted,
        }
    }
}

/// Prepares a file for a callback or task that waits for it. Returns whether the file counts that.
#[inline]
fn begin_at(file: &Description, interest: Events) -> Result<bool, Errno> {
    if let Some(source) = file.kernel_source() {
        source.prepare_queue()?;
    }
    callbacks::begin(file, interest)
}

impl<F: Deref<Target = Description>> Drop for Awaited<F> {
    #[inline]
    fn drop(&mut self) {
        if self.is_counted {
            callbacks::end(&self.file);
        }
    }
}

/// Returns the events of a wakeup, for a callback or a task.
#[inline]
pub(crate) fn key_of(wake: &Wake<'_>) -> Events {
    #[cfg(any(feature = "std", upoll_loom))]
    if wake.key.contains(Events::FOR_CALLBACKS) {
        return Set::SHOWN;
    }
    wake.key
}

impl<F: Deref<Target = Description>> Deref for Awaited<F> {
    type Target = Description;

    #[inline]
    fn deref(&self) -> &Description {
        &self.file
    }
}
