//! The targets of a call: user-level files and kernel fds.

#[cfg(any(feature = "std", upoll_loom))]
use std::os::fd::{AsFd, BorrowedFd};

#[cfg(any(feature = "std", upoll_loom))]
use crate::descriptor::DescriptorRef;
#[cfg(any(feature = "std", upoll_loom))]
use crate::events::Events;
use crate::file::{File, FileRef, Pollable};

/// The file that `epoll_ctl`, `poll` or `select` acts on.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Target<'a> {
    /// A user-level open file.
    File(FileRef<'a>),
    /// A kernel fd.
    #[cfg(any(feature = "std", upoll_loom))]
    Kernel(BorrowedFd<'a>),
    /// A kernel fd that is known to mean one open file.
    #[cfg(any(feature = "std", upoll_loom))]
    Descriptor(DescriptorRef<'a>),
}

impl Target<'_> {
    /// Whether it is a user-level file.
    #[inline]
    pub(crate) fn is_file(self) -> bool {
        match self {
            Target::File(_) => true,
            #[cfg(any(feature = "std", upoll_loom))]
            Target::Kernel(_) | Target::Descriptor(_) => false,
        }
    }
}

#[cfg(any(feature = "std", upoll_loom))]
impl<'a> Target<'a> {
    /// The descriptor, if it is the kernel's.
    #[inline]
    pub(crate) fn kernel(self) -> Option<BorrowedFd<'a>> {
        match self {
            Target::Kernel(fd) => Some(fd),
            Target::Descriptor(descriptor) => Some(descriptor.fd()),
            Target::File(_) => None,
        }
    }

    /// The counter that it is a handle to, if other processes may change it: a thread that waits
    /// for it has to listen to its notifiers.
    #[inline]
    pub(crate) fn shared_counter(self) -> Option<&'a crate::host::SharedCounter> {
        match self {
            Target::Kernel(_) | Target::Descriptor(_) => None,
            Target::File(file) => crate::host::SharedCounter::of(file.description()),
        }
    }

    /// Returns the kernel fd that a thread must await too while it waits for a user-level file:
    /// part of what makes the file ready happens in the kernel.
    ///
    /// It is readable when the file may have become ready for `wanted`, and not for longer; what
    /// the file then shows is up to its [`Pollable`]. A file that gets one wakes its wait queues,
    /// so that threads that sleep without it poll again. This is the one place where `poll` and
    /// `select` learn of it.
    #[inline]
    pub(crate) fn kernel_side(self, wanted: Events) -> Option<BorrowedFd<'a>> {
        match self {
            Target::Kernel(_) | Target::Descriptor(_) => None,
            #[cfg(all(test, not(upoll_loom)))]
            Target::File(file) => {
                crate::sleep::test_side(file).or_else(|| crate::host::kernel_side(file, wanted))
            }
            #[cfg(not(all(test, not(upoll_loom))))]
            Target::File(file) => crate::host::kernel_side(file, wanted),
        }
    }
}

/// Anything that a set can watch.
///
/// Implemented for every object of this crate, for [`File`] and [`FileRef`], and for types that own
/// or borrow a kernel fd ([`AsFd`](std::os::fd::AsFd)), also within a `Descriptor`.
pub trait Source {
    /// Returns the target.
    fn target(&self) -> Target<'_>;
}

impl<T: Pollable> Source for File<T> {
    #[inline]
    fn target(&self) -> Target<'_> {
        Target::File(self.by_ref())
    }
}

impl Source for File {
    #[inline]
    fn target(&self) -> Target<'_> {
        Target::File(self.as_file_ref())
    }
}

impl Source for FileRef<'_> {
    #[inline]
    fn target(&self) -> Target<'_> {
        Target::File(*self)
    }
}

impl Source for Target<'_> {
    #[inline]
    fn target(&self) -> Target<'_> {
        *self
    }
}

#[cfg(any(feature = "std", upoll_loom))]
impl<T: AsFd> Source for T {
    #[inline]
    fn target(&self) -> Target<'_> {
        Target::Kernel(self.as_fd())
    }
}
