//! The host kernel's calls that upoll is measured against, as thin as C has them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

/// A file descriptor of the kernel: an eventfd, a pipe's end or an epoll set.
pub(super) struct Fd(OwnedFd);

/// Which events, and the word that comes back with them.
pub(super) type Event = libc::epoll_event;

pub(super) const IDLE: Event = Event { events: 0, u64: 0 };

fn check(result: i64) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Fd {
    fn new(result: i32) -> io::Result<Self> {
        check(result.into())?;
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(Fd(unsafe { OwnedFd::from_raw_fd(result) }))
    }

    /// `eventfd(2)`
    #[inline]
    pub(super) fn eventfd(initial: u32) -> io::Result<Self> {
        Self::eventfd_with(initial, 0)
    }

    /// `eventfd(2)` with flags
    #[inline]
    pub(super) fn eventfd_with(initial: u32, flags: i32) -> io::Result<Self> {
        // SAFETY: no memory is involved.
        Self::new(unsafe { libc::eventfd(initial, flags) })
    }

    /// `epoll_create1(2)`
    pub(super) fn epoll() -> io::Result<Self> {
        // SAFETY: no memory is involved.
        Self::new(unsafe { libc::epoll_create1(0) })
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

    #[inline]
    fn ctl(&self, op: i32, target: &Fd, events: i32, data: u64) -> io::Result<()> {
        let mut event = Event {
            events: events.cast_unsigned(),
            u64: data,
        };
        // SAFETY: the event outlives the call.
        let result = unsafe { libc::epoll_ctl(self.raw(), op, target.raw(), &raw mut event) };
        check(result.into()).map(drop)
    }

    /// `epoll_ctl(2)`, `EPOLL_CTL_ADD`
    #[inline]
    pub(super) fn add(&self, target: &Fd, events: i32, data: u64) -> io::Result<()> {
        self.ctl(libc::EPOLL_CTL_ADD, target, events, data)
    }

    /// `epoll_ctl(2)`, `EPOLL_CTL_MOD`
    #[inline]
    pub(super) fn modify(&self, target: &Fd, events: i32, data: u64) -> io::Result<()> {
        self.ctl(libc::EPOLL_CTL_MOD, target, events, data)
    }

    /// `epoll_ctl(2)`, `EPOLL_CTL_DEL`
    #[inline]
    pub(super) fn delete(&self, target: &Fd) -> io::Result<()> {
        self.ctl(libc::EPOLL_CTL_DEL, target, 0, 0)
    }

    /// `epoll_wait(2)`; a limit of -1 is none.
    #[inline]
    pub(super) fn wait(&self, events: &mut [Event], milliseconds: i32) -> io::Result<usize> {
        let room = i32::try_from(events.len()).unwrap_or(i32::MAX);
        // SAFETY: the kernel writes at most `room` events.
        let result =
            unsafe { libc::epoll_wait(self.raw(), events.as_mut_ptr(), room, milliseconds) };
        check(result.into())
    }

    /// `epoll_pwait2(2)`, without a signal mask.
    pub(super) fn wait_for(&self, events: &mut [Event], limit: Duration) -> io::Result<usize> {
        let limit = libc::timespec {
            tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
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
