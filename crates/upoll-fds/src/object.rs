//! The objects that an fd can stand for.

use std::os::fd::RawFd;

use upoll::internal::SharedBox;
use upoll::{
    Errno, EventFd, EventFdFlags, File, FileRef, PipeFlags, PipeReader, PipeWriter, SocketFlags,
    StreamSocket,
};

use crate::kernel::{call, int};
use crate::set::SetWithFd;

/// A user-level object with an fd. A clone is another reference to the same open file.
#[derive(Clone, Debug)]
pub(crate) enum Object {
    Epoll(SharedBox<SetWithFd>),
    EventFd(EventFd),
    PipeReader(PipeReader),
    PipeWriter(PipeWriter),
    Socket(StreamSocket),
    /// An embedder's own.
    Own(File),
}

impl Object {
    /// As an open file, by the fd that it goes by.
    #[inline]
    pub(crate) fn as_file_ref(&self, fd: RawFd) -> FileRef<'_> {
        match self {
            Object::Epoll(set) => set.as_epoll().as_file_ref(),
            Object::EventFd(counter) => counter.as_file_ref(),
            Object::PipeReader(end) => end.as_file_ref(),
            Object::PipeWriter(end) => end.as_file_ref(),
            Object::Socket(socket) => socket.as_file_ref(),
            Object::Own(file) => file.as_file_ref(),
        }
        .with_fd(fd)
    }

    /// Returns whether the kernel has the object now.
    pub(crate) fn is_stale(&self) -> bool {
        match self {
            Object::EventFd(counter) => counter.is_stale(),
            Object::Epoll(set) => set.is_stale(),
            Object::PipeReader(end) => end.is_stale(),
            Object::PipeWriter(end) => end.is_stale(),
            Object::Socket(socket) => socket.is_stale(),
            Object::Own(_) => false,
        }
    }

    /// Returns what is the same for two objects if they have to be demoted together: they are the same open
    /// file, or two ends of one pipe or pair. It is an address, so it differs for any others that exist at
    /// the same time.
    pub(crate) fn tie(&self) -> usize {
        match self {
            Object::PipeReader(end) => end.connection(),
            Object::PipeWriter(end) => end.connection(),
            Object::Socket(socket) => socket.connection(),
            _ => self.as_file_ref(0).address(),
        }
    }

    pub(crate) fn is_same_file(&self, other: &Object) -> bool {
        self.as_file_ref(0).is_same_file(other.as_file_ref(0))
    }

    pub(crate) fn is_set(&self) -> bool {
        matches!(self, Object::Epoll(_))
    }

    /// Returns how many fds and calls own it, if it is a set. The caller sees what former owners did.
    pub(crate) fn owners(&self) -> Option<usize> {
        match self {
            Object::Epoll(set) => Some(SharedBox::owners(set)),
            _ => None,
        }
    }

    /// Prepares the object to be watched by `poll`, `select` or a set. A passive set becomes
    /// active.
    pub(crate) fn prepare_to_be_watched(&self, fd: RawFd) -> Result<(), Errno> {
        match self {
            Object::Epoll(set) if set.is_passive() => set.activate(fd),
            _ => Ok(()),
        }
    }

    /// Returns whether calls fail with `EAGAIN` instead of blocking.
    pub(crate) fn is_nonblocking(&self, fd: RawFd) -> bool {
        self.renew_flags(fd);
        match self {
            Object::EventFd(counter) => counter.flags().contains(EventFdFlags::NONBLOCK),
            Object::PipeReader(end) => end.flags().contains(PipeFlags::NONBLOCK),
            Object::PipeWriter(end) => end.flags().contains(PipeFlags::NONBLOCK),
            Object::Socket(socket) => socket.flags().contains(SocketFlags::NONBLOCK),
            Object::Epoll(_) | Object::Own(_) => false,
        }
    }

    /// Another process may have changed the flags of an open file that it shares.
    #[inline]
    pub(crate) fn renew_flags(&self, fd: RawFd) {
        if let Object::EventFd(counter) = self
            && counter.is_shared()
        {
            // SAFETY: no pointers are involved.
            if let Ok(flags) = int(unsafe { call!(SYS_fcntl, fd, libc::F_GETFL) }) {
                self.follow_flags(flags);
            }
        }
    }

    /// Takes over the status flags of the kernel object behind it.
    pub(crate) fn follow_flags(&self, flags: i32) {
        let flags = flags.cast_unsigned();
        match self {
            Object::EventFd(counter) => counter.set_flags(EventFdFlags::from_bits_retain(flags)),
            Object::PipeReader(end) => end.set_flags(PipeFlags::from_bits_retain(flags)),
            Object::PipeWriter(end) => end.set_flags(PipeFlags::from_bits_retain(flags)),
            Object::Socket(socket) => socket.set_flags(SocketFlags::from_bits_retain(flags)),
            Object::Epoll(_) | Object::Own(_) => {}
        }
    }

    /// Checks that it can be read at all, which the kernel does before it looks at any buffer.
    #[inline]
    pub(crate) fn check_reads(&self) -> Result<(), Errno> {
        match self {
            Object::PipeWriter(_) => Err(Errno::BADF),
            Object::Epoll(_) | Object::Own(_) => Err(Errno::INVAL),
            Object::EventFd(_) | Object::PipeReader(_) | Object::Socket(_) => Ok(()),
        }
    }

    /// Checks that it can be written at all, as [`check_reads`](Self::check_reads).
    #[inline]
    pub(crate) fn check_writes(&self) -> Result<(), Errno> {
        match self {
            Object::PipeReader(_) => Err(Errno::BADF),
            Object::Epoll(_) | Object::Own(_) => Err(Errno::INVAL),
            Object::EventFd(_) | Object::PipeWriter(_) | Object::Socket(_) => Ok(()),
        }
    }

    /// Reads the number of an object whose reads return one, in 8 bytes. Waits for it if `waits` and the open
    /// file does. Returns `None` if the object has bytes instead.
    #[inline]
    pub(crate) fn read_number(&self, room: usize, waits: bool) -> Option<Result<u64, Errno>> {
        let Object::EventFd(counter) = self else {
            return None;
        };
        Some(match waits {
            _ if room < size_of::<u64>() => Err(Errno::INVAL),
            true => counter.read(),
            false => counter.try_read(),
        })
    }

    /// Returns the number of bytes to read (`FIONREAD`), if that can be asked.
    pub(crate) fn available(&self) -> Option<usize> {
        match self {
            Object::PipeReader(end) => Some(end.available()),
            Object::PipeWriter(end) => Some(end.available()),
            Object::Socket(socket) => Some(socket.available()),
            Object::EventFd(_) | Object::Epoll(_) | Object::Own(_) => None,
        }
    }

    /// `F_GETPIPE_SZ`, if it is a pipe.
    pub(crate) fn pipe_capacity(&self) -> Option<usize> {
        match self {
            Object::PipeReader(end) => Some(end.capacity()),
            Object::PipeWriter(end) => Some(end.capacity()),
            _ => None,
        }
    }

    /// `F_SETPIPE_SZ`, if it is a pipe.
    pub(crate) fn set_pipe_capacity(&self, bytes: usize) -> Option<Result<usize, Errno>> {
        match self {
            Object::PipeReader(end) => Some(end.set_capacity(bytes)),
            Object::PipeWriter(end) => Some(end.set_capacity(bytes)),
            _ => None,
        }
    }
}
