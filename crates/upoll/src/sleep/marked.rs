//! Descriptors of this library's own that a program may close by mistake.
//!
//! A program that closes all numbers it did not open closes ours, and may open something else under
//! them: to write to that, or to close it, would come as a surprise. So each carries a mark, and
//! before it is used in such a way somebody looks for the mark. The mark is the owner that
//! `fcntl(2)`, `F_SETOWN_EX`, gives to an open file. Without `O_ASYNC` that has no other effect.

use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};

use crate::errno::Errno;

/// `struct f_owner_ex`; the `libc` crate has neither it nor its constants for all C libraries.
#[repr(C)]
struct Owner {
    kind: libc::c_int,
    pid: libc::pid_t,
}

const F_SETSIG: libc::c_int = 10;
const F_GETSIG: libc::c_int = 11;
const F_SETOWN_EX: libc::c_int = 15;
const F_GETOWN_EX: libc::c_int = 16;

/// The second half of the mark, a signal that will not be sent: it stays when the owner has ended.
const MARK: libc::c_int = libc::SIGURG;

/// Whose it is. One kind of descriptor for each, so that none is taken for another.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(super) enum Belongs {
    /// `F_OWNER_TID`: a thread's doorbell.
    ToThread = 0,
    /// `F_OWNER_PID`: the set of a poll context.
    ToProcess = 1,
}

/// A descriptor with a mark. Closed when dropped, unless the number has become something else.
#[derive(Debug)]
pub(super) struct Marked {
    /// Not an `OwnedFd`: the program may have closed it.
    fd: RawFd,
    belongs: Belongs,
    owner: libc::pid_t,
}

impl Marked {
    /// Marks a descriptor that was just made.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn new(fd: OwnedFd, belongs: Belongs) -> Result<Self, Errno> {
        // SAFETY: no arguments, no memory.
        let owner = unsafe {
            match belongs {
                Belongs::ToThread => libc::gettid(),
                Belongs::ToProcess => libc::getpid(),
            }
        };
        let mark = Owner {
            kind: belongs as libc::c_int,
            pid: owner,
        };
        let number = fd.as_raw_fd();
        // SAFETY: the calls take a number and a structure.
        let is_marked = unsafe {
            libc::fcntl(number, F_SETSIG, MARK) == 0
                && libc::fcntl(number, F_SETOWN_EX, &raw const mark) == 0
        };
        if !is_marked {
            return Err(Errno::NOMEM);
        }
        Ok(Marked {
            fd: fd.into_raw_fd(),
            belongs,
            owner,
        })
    }

    /// Whether the number still leads to it.
    pub(super) fn is_marked(&self) -> bool {
        let mut mark = Owner { kind: -1, pid: -1 };
        // SAFETY: the call fills the structure. A number that is not open gives an error.
        let found = unsafe { libc::fcntl(self.fd, F_GETOWN_EX, &raw mut mark) } == 0;
        if !found || mark.kind != self.belongs as libc::c_int {
            return false;
        }
        // An owner that has ended is shown as zero, and so is none.
        // SAFETY: no memory.
        mark.pid == self.owner
            || (mark.pid == 0 && unsafe { libc::fcntl(self.fd, F_GETSIG) } == MARK)
    }
}

impl AsRawFd for Marked {
    fn as_raw_fd(&self) -> RawFd {
        self.fd
    }
}

impl Drop for Marked {
    fn drop(&mut self) {
        // A child of a fork closes its copy, if it still has it.
        if self.is_marked() {
            // SAFETY: the number leads to what was marked, and this is its owner.
            unsafe { libc::close(self.fd) };
        }
    }
}
