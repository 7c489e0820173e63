//! The fds that are open in this process.
#![allow(dead_code, reason = "each test file uses a part")]

use std::ops::Range;
use std::os::fd::RawFd;

/// More fds than a test opens.
pub const ALL: Range<RawFd> = 3..8192;

pub fn is_open(fd: RawFd) -> bool {
    // SAFETY: the call takes no pointers.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

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
