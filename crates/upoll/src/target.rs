//! The targets of a call: user-level files and kernel fds.

#[cfg(any(feature = "std", upoll_loom))]
use std::os::fd::{AsFd, BorrowedFd};

#[cfg(any(feature = "std", upoll_loom))]
use crate::descriptor::{Descriptor, DescriptorRef};
#[cfg(any(feature = "std", upoll_loom))]
use crate::events::Events;
use crate::file::Pollable;
use crate::open_file::{File, FileRef};

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

impl<'a> Target<'a> {
    /// Returns whether it is a user-level file.
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

    /// Returns the fd that a thread has to await in the kernel while it waits for `wanted` of a user-level
    /// file, if a part of the file lives there.
    #[inline]
    pub(crate) fn source_fd(self, wanted: Events) -> Option<BorrowedFd<'a>> {
        match self {
            Target::Kernel(_) | Target::Descriptor(_) => None,
            Target::File(file) => {
                let description = file.description();
                description.kernel_source()?.awaited_fd(description, wanted)
            }
        }
    }
}

/// Anything that a set can watch.
///
/// Implemented for every object of this crate, for [`File`] and [`FileRef`], and for types that own
/// or borrow a kernel fd ([`AsFd`](std::os::fd::AsFd)), also within a `Descriptor`.
#[diagnostic::on_unimplemented(
    message = "a set cannot watch `{Self}`",
    label = "neither a file of upoll nor an owner of a kernel fd",
    note = "a type that implements `Pollable` is watched within a `File`: `File::new(object)`",
    note = "`Epoll`, `EventFd`, `File` and both ends of a channel are references: clone them in place of an `Arc`"
)]
pub trait Source {
    /// Returns the target.
    fn target(&self) -> Target<'_>;
}

/// Makes an object, which is one open file in its field `file`, a [`Source`].
macro_rules! is_source {
    ($($object:ident $(<$message:ident>)?),*) => { $(
        impl $(<$message>)? $object $(<$message>)? {
            /// Returns a borrowed reference to the open file.
            #[must_use]
            #[inline]
            pub fn as_file_ref(&self) -> $crate::FileRef<'_> {
                $crate::FileRef(self.file.as_file_ref())
            }
        }

        impl $(<$message>)? $crate::Source for $object $(<$message>)? {
            #[inline]
            fn target(&self) -> $crate::Target<'_> {
                $crate::Target::File(self.as_file_ref())
            }
        }
    )* };
}
pub(crate) use is_source;

impl<T: Pollable> Source for File<T> {
    #[inline]
    fn target(&self) -> Target<'_> {
        Target::File(self.as_file_ref())
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

#[cfg(any(feature = "std", upoll_loom))]
impl<T: AsFd> Source for Descriptor<T> {
    #[inline]
    fn target(&self) -> Target<'_> {
        Target::Descriptor(self.by_ref())
    }
}
