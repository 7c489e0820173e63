//! `eventfd(2)` and what glibc adds to it.

use std::os::fd::RawFd;

use upoll::{Errno, EventFd, EventFdFlags};

use crate::kernel::{self, call, to_fd};
use crate::object::Object;
use crate::signals::Section;
use crate::slot::Entry;
use crate::{change, install, io, memory, table};

/// `_IOW('J', 0, __u64)`: sets the maximum, which the count stays below.
pub const EFD_IOC_SET_MAXIMUM: u32 = 0x4008_4a00;
/// `_IOR('J', 1, __u64)`: returns the maximum.
pub const EFD_IOC_GET_MAXIMUM: u32 = 0x8008_4a01;

/// `eventfd(2)`.
///
/// # Errors
/// `EINVAL`: an unknown flag. `EMFILE`, `ENFILE`, `ENOMEM`: the kernel cannot open an fd.
pub fn eventfd(initial: u32, flags: i32) -> Result<RawFd, Errno> {
    let _section = Section::begin();
    let counter = EventFd::with_flags(
        initial,
        EventFdFlags::from_bits_retain(flags.cast_unsigned()),
    );
    let entry = counter.and_then(|counter| Entry::new(Object::EventFd(counter)));
    // SAFETY: no pointers are involved.
    let by_the_kernel = || to_fd(unsafe { call!(SYS_eventfd2, initial, flags) });
    let entry = match entry {
        // The kernel may have memory.
        Err(Errno::NOMEM) => return by_the_kernel(),
        entry => entry?,
    };
    let Some(_change) = change::Change::try_begin() else {
        // The child of a fork under way must have it, too.
        return by_the_kernel();
    };
    // SAFETY: no pointers are involved.
    let fd = to_fd(unsafe { call!(SYS_eventfd2, 0, flags) })?;
    if !install::has_room(fd) {
        kernel::close(fd)?;
        return by_the_kernel();
    }
    install::install(fd, entry)
}

/// `eventfd_read(3)`.
///
/// # Errors
/// As [`read`](crate::read).
///
/// # Safety
/// As [`read`](crate::read).
pub unsafe fn eventfd_read(fd: RawFd, value: *mut u64) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    match unsafe { io::read(fd, value.cast(), size_of::<u64>()) }? {
        8 => Ok(()),
        _ => Err(Errno::IO),
    }
}

/// `eventfd_write(3)`.
///
/// # Errors
/// As [`write`](crate::write).
pub fn eventfd_write(fd: RawFd, value: u64) -> Result<(), Errno> {
    let at_once = table::with(fd, |object| match object {
        Object::EventFd(counter) => match counter.try_write(value) {
            // The count would exceed the maximum, or the object has been demoted.
            Err(Errno::AGAIN | Errno::STALE) => None,
            done => Some(done),
        },
        _ => None,
    });
    match at_once {
        Some(Some(done)) => done,
        _ => write_at_length(fd, value),
    }
}

/// A write that may have to block, and one to another kind of object.
#[cold]
fn write_at_length(fd: RawFd, value: u64) -> Result<(), Errno> {
    // SAFETY: `value` is live.
    match unsafe { io::write(fd, (&raw const value).cast(), size_of::<u64>()) }? {
        8 => Ok(()),
        _ => Err(Errno::IO),
    }
}

/// Handles the eventfd's own `ioctl(2)` requests. Returns `None` for all others.
///
/// # Safety
/// As [`ioctl`](crate::ioctl).
pub(crate) unsafe fn ioctl(
    counter: &EventFd,
    request: u32,
    argument: usize,
) -> Option<Result<usize, Errno>> {
    let maximum: *mut u64 = std::ptr::with_exposed_provenance_mut(argument);
    match request {
        // SAFETY: the caller's argument is a counter to read.
        EFD_IOC_SET_MAXIMUM => Some(unsafe { memory::read(maximum) }.and_then(|maximum| {
            counter.set_maximum(maximum)?;
            Ok(0)
        })),
        EFD_IOC_GET_MAXIMUM => {
            // SAFETY: the caller's argument is a counter to write.
            let written = unsafe { memory::write(maximum, counter.maximum()) };
            Some(written.map(|()| 0))
        }
        _ => None,
    }
}
