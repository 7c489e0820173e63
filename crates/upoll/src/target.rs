//! What a call may be aimed at.

#[cfg(all(feature = "std", not(loom)))]
use std::os::fd::{AsFd, BorrowedFd};

use crate::file::{File, FileRef, Pollable};

/// What `epoll_ctl`, `poll` and `select` act on.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Target<'a> {
    /// A user-level open file.
    File(FileRef<'a>),
    /// A file descriptor of the kernel.
    #[cfg(all(feature = "std", not(loom)))]
    Kernel(BorrowedFd<'a>),
}

/// Anything that a set can watch.
///
/// Implemented for every object of this crate, for [`File`] and [`FileRef`], and for whatever owns
/// or borrows a file descriptor of the kernel ([`AsFd`](std::os::fd::AsFd)).
pub trait Source {
    /// What to act on.
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

#[cfg(all(feature = "std", not(loom)))]
impl<T: AsFd> Source for T {
    #[inline]
    fn target(&self) -> Target<'_> {
        Target::Kernel(self.as_fd())
    }
}
