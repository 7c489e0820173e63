//! Descriptors of this library's own that a program may close by mistake.
//!
//! A program that closes all numbers it did not open closes ours, and may open something else under
//! them: to write to that, or to close it, would come as a surprise. So each carries a mark, and
//! before it is used in such a way somebody looks for the mark. The mark is the owner that
//! `fcntl(2)`, `F_SETOWN_EX`, gives to an open file. Without `O_ASYNC` that has no other effect.

use core::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};

use crate::errno::Errno;
use crate::host::kernel::{self, Descriptor};

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
    /// Not closed by itself: the program may have closed it.
    fd: ManuallyDrop<Descriptor>,
    belongs: Belongs,
    owner: libc::pid_t,
}

impl Marked {
    /// Marks a descriptor that was just made.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn new(fd: Descriptor, belongs: Belongs) -> Result<Self, Errno> {
        let owner = match belongs {
            Belongs::ToThread => kernel::thread_id(),
            Belongs::ToProcess => kernel::process_id(),
        };
        let mark = Owner {
            kind: belongs as libc::c_int,
            pid: owner,
        };
        let number = fd.as_raw_fd();
        // SAFETY: the calls take a number and a live structure.
        unsafe {
            kernel::fcntl(number, F_SETSIG, MARK.cast_unsigned() as usize)
                .and_then(|_| {
                    kernel::fcntl(number, F_SETOWN_EX, (&raw const mark).expose_provenance())
                })
                .map_err(|_| Errno::NOMEM)?;
        }
        Ok(Marked {
            fd: ManuallyDrop::new(fd),
            belongs,
            owner,
        })
    }

    /// Whether the number still leads to it.
    pub(super) fn is_marked(&self) -> bool {
        let mut mark = Owner { kind: -1, pid: -1 };
        let owner = (&raw mut mark).expose_provenance();
        // SAFETY: the call fills the structure. A number that is not open gives an error.
        let found = unsafe { kernel::fcntl(self.as_raw_fd(), F_GETOWN_EX, owner) }.is_ok();
        if !found || mark.kind != self.belongs as libc::c_int {
            return false;
        }
        // An owner that has ended is shown as zero, and so is none.
        if mark.pid == self.owner {
            return true;
        }
        // SAFETY: no memory.
        let signal = unsafe { kernel::fcntl(self.as_raw_fd(), F_GETSIG, 0) };
        mark.pid == 0 && signal == Ok(MARK.cast_unsigned() as usize)
    }

    /// The descriptor, if the number still leads to it.
    pub(super) fn descriptor(&self) -> &Descriptor {
        &self.fd
    }
}

impl AsRawFd for Marked {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for Marked {
    fn drop(&mut self) {
        // A child of a fork closes its copy, if it still has it.
        if self.is_marked() {
            // SAFETY: done once, here. The number leads to what was marked, and this is its owner.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}
