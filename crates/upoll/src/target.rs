//! What a call may be aimed at.

use crate::file::{File, FileRef, Pollable};

/// What `epoll_ctl`, `poll` and `select` act on.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Target<'a> {
    /// A user-level open file.
    File(FileRef<'a>),
}

/// Anything that a set can watch.
///
/// Implemented for every object of this crate, and for [`File`] and [`FileRef`].
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
