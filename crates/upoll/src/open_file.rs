//! Open files: the handles that programs have of objects.
//!
//! They are the core's, each within a type of this crate. Any owner of a kernel fd is a [`Source`](crate::Source), and so is
//! any `File`. Rust allows both only for a `File` of the crate that has `Source`.

use core::fmt;
use core::ops::Deref;

use crate::errno::Errno;
use crate::events::Events;
use crate::file::{self, Description, FileId, Held, PollTable, Pollable};

/// A reference to an open file description.
///
/// `File<T>` knows its object's type, [`File`] (that is `File<dyn Pollable>`) does not. All that
/// come from one [`File::new`] by [`Clone`] or [`File::erase`] are the same open file, as `dup`'ed
/// fds are. When the last of them drops, the file is closed: it disappears from every set
/// that watches it, without waiting for any set that does not.
///
/// # Example
/// ```
/// use upoll::{EventFd, Epoll, Event, Events};
/// let set = Epoll::new()?;
/// let counter = EventFd::new(1)?;
/// set.add(&counter, Event::new(Events::IN, 7))?;
/// drop(counter);
/// assert_eq!(set.try_wait(&mut [Event::default(); 4])?, 0);
/// # Ok::<(), upoll::Errno>(())
/// ```
pub struct File<T: Pollable + ?Sized = dyn Pollable>(file::File<T>);

impl<T: Pollable> File<T> {
    /// Opens `object`: a new open file description. Without memory for it the process ends, as with `Box::new`;
    /// see [`try_new`](Self::try_new).
    #[must_use]
    pub fn new(object: T) -> Self {
        File(file::File::new(object))
    }

    /// Opens `object` as [`new`](Self::new) does.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it. The object is dropped; its
    /// [`release`](Pollable::release) is not called.
    pub fn try_new(object: T) -> Result<Self, Errno> {
        file::File::try_new(object).map(File)
    }

    /// Another reference to the same open file, without its type.
    #[must_use]
    pub fn erase(&self) -> File {
        File(self.0.erase())
    }

    /// A borrowed reference without the type.
    #[must_use]
    #[inline]
    pub fn as_file_ref(&self) -> FileRef<'_> {
        FileRef(self.0.as_file_ref())
    }
}

impl File {
    /// A borrowed reference.
    #[must_use]
    #[inline]
    pub fn as_file_ref(&self) -> FileRef<'_> {
        FileRef(self.0.as_file_ref())
    }
}

impl<T: Pollable + ?Sized> Clone for File<T> {
    fn clone(&self) -> Self {
        File(self.0.clone())
    }
}

impl<T: Pollable + ?Sized> Deref for File<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Pollable + ?Sized> fmt::Debug for File<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A borrowed [`File`] and the fd that it goes by, which together are the key of an interest.
///
/// A set may watch one open file under several fds, as Linux watches `dup`'ed fds
/// separately. Without [`with_fd`](Self::with_fd) the fd is 0.
#[derive(Clone, Copy)]
pub struct FileRef<'a>(pub(crate) file::FileRef<'a>);

impl<'a> FileRef<'a> {
    /// The same open file under another fd.
    #[must_use]
    pub const fn with_fd(self, fd: i32) -> Self {
        FileRef(self.0.with_fd(fd))
    }

    /// Returns whether both refer to the same open file, under whatever fd.
    #[must_use]
    pub fn is_same_file(self, other: FileRef<'_>) -> bool {
        self.identity() == other.identity()
    }

    /// Returns an address that is the same for all references to one open file, and differs for any two
    /// that are open at the same time.
    #[doc(hidden)]
    #[must_use]
    pub fn address(self) -> usize {
        self.0.address()
    }

    /// Returns the events that are ready now, without waiting.
    #[must_use]
    #[inline]
    pub fn ready(self) -> Events {
        self.poll(&mut PollTable::without_waiter())
    }

    /// Registers the queues of the object with `table`, and returns the events that are ready now, as
    /// [`Pollable::poll`] does. For an object that passes on the state of another one, such as an end of a channel.
    ///
    /// Changes without a wakeup are not passed on, and end no wait for the object:
    /// - the expiration of a `Timer` by the kernel's clock,
    /// - an event of a kernel fd in an [`Epoll`](crate::Epoll),
    /// - a change of a shared eventfd by another process.
    ///
    /// # Example
    /// ```
    /// use upoll::channel::{Sender, bounded};
    /// use upoll::{Events, File, PollTable, Pollable};
    ///
    /// /// Takes log lines while there is room for them.
    /// struct Log { lines: Sender<String> }
    ///
    /// impl Pollable for Log {
    ///     fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
    ///         self.lines.as_file_ref().poll(table) & (Events::OUT | Events::ERR)
    ///     }
    /// }
    ///
    /// let (lines, _receiver) = bounded(1)?;
    /// let log = File::new(Log { lines });
    /// assert_eq!(log.as_file_ref().ready(), Events::OUT);
    /// # Ok::<(), upoll::Errno>(())
    /// ```
    #[inline]
    pub fn poll(self, table: &mut PollTable<'a>) -> Events {
        self.0.poll(table)
    }

    /// Returns whether any of `events` is ready now, without waiting for it.
    #[must_use]
    pub fn is_ready(self, events: Events) -> bool {
        self.ready().intersects(events)
    }

    /// Returns the identity of the open file.
    #[must_use]
    #[inline]
    pub fn identity(self) -> FileId {
        self.0.identity()
    }

    /// An owned reference to the same open file.
    #[must_use]
    pub fn to_file(self) -> File {
        File(self.0.to_file())
    }

    /// Of one whose memory is kept: the file may have been closed.
    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) fn of(description: &'a Held) -> Self {
        FileRef(file::FileRef::of(description))
    }

    #[inline]
    pub(crate) fn description(self) -> &'a Description {
        self.0.description()
    }

    #[inline]
    pub(crate) fn fd(self) -> i32 {
        self.0.fd()
    }

    /// Keeps the description's memory, but does not keep it open.
    #[inline]
    pub(crate) fn keep(self) -> Held {
        self.0.keep()
    }
}

impl fmt::Debug for FileRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
