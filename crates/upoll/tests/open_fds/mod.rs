//! The fds that are open in this process.
#![allow(dead_code, reason = "each test file uses a part")]

use std::io::Read;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

/// More fds than a test opens.
pub const ALL: Range<RawFd> = 3..8192;

pub fn is_open(fd: RawFd) -> bool {
    // SAFETY: the call takes no pointers.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

/// Returns the fds that are open now. A test that compares them with those of another time does so in a child process. The
/// attendant of this one may still close what an earlier test registered, and the report of an expected panic opens files.
pub fn open_in(range: Range<RawFd>) -> impl Iterator<Item = RawFd> {
    range.filter(|&fd| is_open(fd))
}

/// Returns the fds that `open` opens beside what it returns.
pub fn opened_by(open: impl FnOnce()) -> Vec<RawFd> {
    let before: Vec<_> = open_in(ALL).collect();
    open();
    open_in(ALL).filter(|fd| !before.contains(fd)).collect()
}

/// Closes fds that only the library uses.
pub fn close_all(fds: &[RawFd]) {
    for &fd in fds {
        // SAFETY: the caller owns the objects that use it.
        assert_eq!(unsafe { libc::close(fd) }, 0);
    }
}

/// Closes all fds but the standard ones and `kept`, like a program that closes fds which it did not
/// open.
pub fn close_all_but(kept: &[RawFd]) {
    for fd in 3..1024 {
        if !kept.contains(&fd) {
            // SAFETY: the fds that the test uses are kept.
            unsafe { libc::close(fd) };
        }
    }
}

/// Opens sockets at all fds of the library that the program has closed.
pub fn open_everywhere(kept: &[RawFd]) -> (Vec<RawFd>, UnixStream) {
    let (one, other) = UnixStream::pair().unwrap();
    let mut others = vec![one.as_raw_fd()];
    for fd in other.as_raw_fd() + 1..600 {
        if !kept.contains(&fd) {
            // SAFETY: the test does not have this fd.
            assert_eq!(unsafe { libc::dup2(one.as_raw_fd(), fd) }, fd);
            others.push(fd);
        }
    }
    std::mem::forget(one);
    (others, other)
}

pub fn check_untouched((others, mut other): (Vec<RawFd>, UnixStream)) {
    other.set_nonblocking(true).unwrap();
    let read = other.read(&mut [0; 8]).unwrap_err();
    assert_eq!(read.kind(), std::io::ErrorKind::WouldBlock);
    for fd in others {
        assert!(is_open(fd), "{fd} was closed");
    }
}

/// Opens a kernel set of the program's that watches `fd`, once for each event.
pub fn other_set(fd: RawFd) -> RawFd {
    let mut interest = libc::epoll_event {
        events: (libc::EPOLLIN | libc::EPOLLET).cast_unsigned(),
        u64: 7,
    };
    // SAFETY: the interest is live.
    unsafe {
        let set = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        assert!(set >= 0);
        let added = libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut interest);
        assert_eq!(added, 0);
        set
    }
}
