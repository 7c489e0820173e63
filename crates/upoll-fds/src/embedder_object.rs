//! Fds for an embedder's own objects.

use std::any::Any;
use std::os::fd::RawFd;

use upoll::{Errno, File, Pollable};

use crate::kernel::{call, to_fd};
use crate::object::Object;
use crate::slot::Entry;
use crate::{change, install, table};

/// Opens an fd for a file of the embedder. `epoll_ctl`, `poll` and `select` of this crate accept
/// the fd.
///
/// The fd is a kernel eventfd's, close-on-exec if `cloexec`. `read` and `write` on it fail with
/// `EINVAL`. The file closes with the last of its fds and references.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM`: the kernel cannot open an fd.
pub fn open(file: &File<impl Pollable>, cloexec: bool) -> Result<RawFd, Errno> {
    let flags = if cloexec { libc::EFD_CLOEXEC } else { 0 };
    let _change = change::Change::begin();
    let entry = Entry::new(Object::Own(file.erase()))?;
    // SAFETY: no pointers are involved.
    let fd = to_fd(unsafe { call!(SYS_eventfd2, 0, flags) })?;
    install::install(fd, entry)
}

/// Calls `call` with the object of type `T` that an fd stands for. `call` must not block.
///
/// # Errors
/// `EBADF`: the fd is not open. `EINVAL`: it stands for another kind of object.
pub fn with_own<T: Pollable, R>(fd: RawFd, call: impl FnOnce(&T) -> R) -> Result<R, Errno> {
    let found = table::with(fd, |object| {
        let Object::Own(file) = object else {
            return Err(Errno::INVAL);
        };
        let object: &dyn Any = &**file;
        object.downcast_ref().map(call).ok_or(Errno::INVAL)
    });
    match found {
        Some(result) => result,
        None => crate::kernel::check_open(fd).and(Err(Errno::INVAL)),
    }
}
