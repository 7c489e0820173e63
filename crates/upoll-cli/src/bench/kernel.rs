//! The host kernel's calls that upoll is compared with, in thin wrappers like C's.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
use upoll::Events;

/// A kernel fd: an eventfd, a timerfd, a pipe's end or an epoll set.
pub(super) struct Fd(OwnedFd);

/// The events, and the data that is reported with them.
pub(super) type Event = libc::epoll_event;

fn check(result: i64) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

impl From<OwnedFd> for Fd {
    fn from(fd: OwnedFd) -> Self {
        Fd(fd)
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Fd {
    /// `timerfd_create(2)`, by `CLOCK_MONOTONIC`
    pub(super) fn timer() -> io::Result<Self> {
        Ok(timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::empty())?.into())
    }

    /// `timerfd_settime(2)`: the timer fires once, after this time. Zero disarms it.
    #[inline]
    pub(super) fn arm(&self, after: Duration) -> io::Result<()> {
        let setting = libc::itimerspec {
            it_value: timespec(after),
            it_interval: timespec(Duration::ZERO),
        };
        // SAFETY: the setting outlives the call.
        let result =
            unsafe { libc::timerfd_settime(self.raw(), 0, &raw const setting, ptr::null_mut()) };
        check(result.into()).map(drop)
    }

    /// `pipe(2)`: the end to read from, the end to write to.
    pub(super) fn pipe() -> io::Result<[Self; 2]> {
        let (reader, writer) = rustix::pipe::pipe()?;
        Ok([reader.into(), writer.into()])
    }

    pub(super) fn raw(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// `write(2)` of a count to an eventfd.
    #[inline]
    pub(super) fn write_count(&self, count: u64) -> io::Result<()> {
        // SAFETY: the buffer is the count.
        let result = unsafe { libc::write(self.raw(), (&raw const count).cast(), 8) };
        check(result as i64).map(drop)
    }

    /// `read(2)` of the count of an eventfd.
    #[inline]
    pub(super) fn read_count(&self) -> io::Result<u64> {
        let mut count = 0_u64;
        // SAFETY: the buffer is the count.
        let result = unsafe { libc::read(self.raw(), (&raw mut count).cast(), 8) };
        check(result as i64).map(|_| count)
    }

    /// `write(2)`
    #[inline]
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: the bytes are live.
        check(unsafe { libc::write(self.raw(), bytes.as_ptr().cast(), bytes.len()) } as i64)
    }

    /// `read(2)`
    #[inline]
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let (into, room) = (buffer.as_mut_ptr().cast(), buffer.len());
        // SAFETY: the call fills the buffer.
        check(unsafe { libc::read(self.raw(), into, room) } as i64)
    }

    /// `epoll_ctl(2)`
    #[inline]
    pub(super) fn ctl(&self, op: i32, target: &Fd, events: Events, data: u64) -> io::Result<()> {
        let mut event = Event {
            events: events.bits(),
            u64: data,
        };
        // SAFETY: the event outlives the call.
        let result = unsafe { libc::epoll_ctl(self.raw(), op, target.raw(), &raw mut event) };
        check(result.into()).map(drop)
    }

    /// `epoll_wait(2)`; a timeout of -1 is infinite.
    #[inline]
    pub(super) fn epoll_wait(&self, events: &mut [Event], milliseconds: i32) -> io::Result<usize> {
        let room = i32::try_from(events.len()).unwrap_or(i32::MAX);
        // SAFETY: the kernel writes at most `room` events.
        let result =
            unsafe { libc::epoll_wait(self.raw(), events.as_mut_ptr(), room, milliseconds) };
        check(result.into())
    }

    /// `epoll_pwait2(2)`, without a signal mask.
    #[inline]
    pub(super) fn epoll_pwait2(&self, events: &mut [Event], limit: Duration) -> io::Result<usize> {
        let limit = timespec(limit);
        // SAFETY: the kernel writes at most as many events as there is room for; the mask is null.
        let result = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.raw(),
                events.as_mut_ptr(),
                events.len(),
                &raw const limit,
                ptr::null::<libc::sigset_t>(),
                0,
            )
        };
        check(result)
    }
}

fn timespec(limit: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    }
}

/// Returns an entry for [`poll`] that waits for `IN`.
pub(super) fn readable(fd: &Fd) -> libc::pollfd {
    libc::pollfd {
        fd: fd.raw(),
        events: libc::POLLIN,
        revents: 0,
    }
}

/// `poll(2)` with a zero timeout.
#[inline]
pub(super) fn poll(fds: &mut [libc::pollfd]) -> io::Result<usize> {
    // SAFETY: the list is as long as is claimed.
    check(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, 0) }.into())
}

/// `ppoll(2)`, without a signal mask.
pub(super) fn poll_for(fds: &mut [libc::pollfd], limit: Duration) -> io::Result<usize> {
    let (list, count, limit) = (fds.as_mut_ptr(), fds.len() as libc::nfds_t, timespec(limit));
    // SAFETY: the list is as long as is claimed; the mask is null.
    check(unsafe { libc::ppoll(list, count, &raw const limit, ptr::null()) }.into())
}

/// A set of fds for `select(2)`.
#[derive(Clone)]
pub(super) struct FdSet(libc::fd_set);

impl FdSet {
    pub(super) fn new() -> Self {
        // SAFETY: it is a plain bit mask, for which all zeros is a value.
        FdSet(unsafe { mem::zeroed() })
    }

    /// Returns whether `fd` fits: `fd_set` ends at 1024.
    pub(super) fn has_room_for(fd: &Fd) -> bool {
        usize::try_from(fd.raw()).is_ok_and(|fd| fd < libc::FD_SETSIZE)
    }

    /// # Panics
    /// If there is no room for `fd`.
    #[inline]
    pub(super) fn insert(&mut self, fd: &Fd) {
        assert!(Self::has_room_for(fd));
        // SAFETY: the fd is within the mask.
        unsafe { libc::FD_SET(fd.raw(), &raw mut self.0) };
    }

    /// Returns whether `fd`, which has been inserted, is still in the set.
    #[inline]
    pub(super) fn contains(&self, fd: &Fd) -> bool {
        assert!(Self::has_room_for(fd));
        // SAFETY: the fd is within the mask.
        unsafe { libc::FD_ISSET(fd.raw(), &raw const self.0) }
    }
}

/// `select(2)` for readable fds below `n`, with a zero timeout.
#[inline]
pub(super) fn select(n: i32, readable: &mut FdSet) -> io::Result<usize> {
    let mut limit = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let none = ptr::null_mut();
    // SAFETY: `insert` has checked that the set has room for the caller's fds, and so for all below
    // `n`. The limit outlives the call.
    check(unsafe { libc::select(n, &raw mut readable.0, none, none, &raw mut limit) }.into())
}
