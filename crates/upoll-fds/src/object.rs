//! What a number can stand for.

use std::os::fd::RawFd;

use upoll::{Epoll, EventFd, File, FileRef};

/// A user-level object with a number. A clone is another reference to the same open file.
#[derive(Clone, Debug)]
pub(crate) enum Object {
    Epoll(Epoll),
    EventFd(EventFd),
    /// An embedder's own.
    Own(File),
}

impl Object {
    /// As an open file, by the number that it goes by.
    #[inline]
    pub(crate) fn as_file_ref(&self, number: RawFd) -> FileRef<'_> {
        match self {
            Object::Epoll(set) => set.as_file_ref(),
            Object::EventFd(counter) => counter.as_file_ref(),
            Object::Own(file) => file.as_file_ref(),
        }
        .numbered(number)
    }
}
