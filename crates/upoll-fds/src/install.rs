//! Objects that are made get their fds: the handlers for forks are registered before the first one.

use std::os::fd::RawFd;

use upoll::Errno;

use crate::signals::Section;
use crate::slot::Entry;
use crate::{fork, hazard_records, kernel, table};

/// Allocates the kernel and C library resources for the first object. A signal handler that makes an
/// object finds them, and takes no memory from the program's heap for them.
///
/// # Errors
/// `ENOMEM`: there is no memory for them.
pub fn prepare() -> Result<(), Errno> {
    hazard_records::prepare();
    upoll::internal::prepare_thread_ends();
    fork::watch()
}

/// Returns whether the table can have an entry for an fd. If the fd is beyond the table, or there is
/// no memory, the new object must be the kernel's.
pub(crate) fn has_room(fd: RawFd) -> bool {
    table::has_slot(fd) && fork::watch().is_ok()
}

/// Makes the fd, which the kernel has just opened, stand for the object of `entry`.
///
/// # Errors
/// `EMFILE`: the table has no [room](has_room) for it. It is closed then.
pub(crate) fn install(fd: RawFd, entry: Box<Entry>) -> Result<RawFd, Errno> {
    let _section = Section::begin();
    hazard_records::prepare();
    if !has_room(fd) {
        kernel::close(fd)?;
        return Err(Errno::MFILE);
    }
    table::fill(fd, entry)
}

/// Makes both fds, which the kernel has just opened, stand for the ends of a pipe or of a pair of sockets. They stay the
/// kernel's if the table has no [room](has_room) for them.
///
/// A demotion finds both ends or none: it takes an end without an fd for closed.
pub(crate) fn install_both(fds: [RawFd; 2], entries: [Box<Entry>; 2]) {
    let _section = Section::begin();
    hazard_records::prepare();
    if fds.into_iter().all(has_room) {
        table::fill_both(fds, entries);
    }
}
