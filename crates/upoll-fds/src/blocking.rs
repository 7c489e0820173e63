//! Calls by fd that may block: attempt, block, retry.
//!
//! A call that blocks holds a reference of its own to the object, so its fd may be closed meanwhile. It begins again by
//! the fd if the object was demoted, or if the signal handlers that ended the wait ask for a restart.

use std::os::fd::RawFd;

use upoll::Errno;

use crate::object::Object;
use crate::signals::Section;
use crate::table;

/// The object of a call that may block. No signal handler runs before the call has released it.
pub(crate) struct Blocking {
    object: Object,
    section: Section,
}

impl Blocking {
    pub(crate) fn new(object: &Object) -> Self {
        Blocking {
            section: Section::begin(),
            object: object.clone(),
        }
    }

    /// Makes the call. Returns `None` if it is to begin again: handlers that ask for a restart have run.
    fn call<T>(self, call: impl FnOnce(&Object) -> Result<T, Errno>) -> Option<Result<T, Errno>> {
        let result = call(&self.object);
        drop(self.object);
        let is_restarted = self.section.end();
        (result.as_ref().err() != Some(&Errno::INTR) || !is_restarted).then_some(result)
    }
}

/// Makes the call `attempt` on the user-level object that `find` returns, or `by_the_kernel` if it returns `None`.
///
/// `attempt` blocks if the open file does. It begins again, with another object or in the kernel, if it fails with
/// `STALE`: the object was demoted.
pub(crate) fn call_by_fd<T>(
    fd: RawFd,
    find: impl Fn() -> Option<Blocking>,
    mut attempt: impl FnMut(&Object) -> Result<T, Errno>,
    by_the_kernel: impl FnOnce() -> Result<T, Errno>,
) -> Result<T, Errno> {
    loop {
        let Some(blocking) = find() else {
            return by_the_kernel();
        };
        match blocking.call(&mut attempt) {
            Some(Err(Errno::STALE)) => table::leave_if_stale(fd),
            Some(result) => return result,
            None => {}
        }
    }
}

/// The progress of a call that moves bytes.
pub(crate) struct Moved<R> {
    pub(crate) bytes: usize,
    /// The part that is left for another call by the fd, as the object was demoted midway.
    pub(crate) rest: Option<R>,
}

impl<R> Moved<R> {
    /// Returns the result of a call that the kernel has made.
    pub(crate) fn whole(bytes: usize) -> Self {
        Moved { bytes, rest: None }
    }

    /// Moves what is left by `call`, whose failure does not change that a part was moved. Returns how many bytes were
    /// moved in all.
    pub(crate) fn finish(self, call: impl FnOnce(R) -> Result<usize, Errno>) -> usize {
        self.bytes + self.rest.map_or(0, |rest| call(rest).unwrap_or(0))
    }
}
