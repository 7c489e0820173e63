//! The library's own fds in a model, where nobody closes them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use super::kernel;
use crate::events::Event;
use crate::sync::AtomicBool;

/// A kernel set with the seal in it.
#[derive(Debug)]
pub(crate) struct OwnFd {
    number: RawFd,
    is_rung: AtomicBool,
}

pub(crate) const fn may_be_lost() -> bool {
    false
}

pub(super) struct LastCheck;

impl LastCheck {
    pub(super) const fn new() -> Self {
        LastCheck
    }

    #[expect(clippy::unused_self, reason = "the interface is that of `own_fds.rs`")]
    pub(super) const fn is_due(&self) -> bool {
        false
    }
}

pub(crate) const fn losses() -> u32 {
    0
}

pub(crate) const fn limit_of_sleep(limit: Option<libc::timespec>) -> Option<libc::timespec> {
    limit
}

#[expect(clippy::unused_self, reason = "the interface is that of `own_fds.rs`")]
impl OwnFd {
    pub(super) fn new(number: RawFd) -> Self {
        OwnFd {
            number,
            is_rung: AtomicBool::new(false),
        }
    }

    pub(crate) const fn is_intact(&self) -> bool {
        true
    }

    pub(crate) const fn was_intact(&self) -> bool {
        true
    }

    pub(crate) const fn is_lost_after_failure(&self) -> bool {
        false
    }

    pub(super) const fn is_found_lost(&self) -> bool {
        false
    }

    pub(super) fn rung(&self) -> &AtomicBool {
        &self.is_rung
    }

    pub(super) fn change_seal(&self, interest: &Event) -> bool {
        kernel::change_seal(self.number, interest)
    }

    pub(super) fn replace_lost(&self, _: OwnFd) {
        unreachable!("none is lost");
    }
}

impl AsRawFd for OwnFd {
    fn as_raw_fd(&self) -> RawFd {
        self.number
    }
}

impl AsFd for OwnFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: models make no system call with it.
        unsafe { BorrowedFd::borrow_raw(self.number) }
    }
}

impl Drop for OwnFd {
    fn drop(&mut self) {
        kernel::close(self.number);
    }
}
