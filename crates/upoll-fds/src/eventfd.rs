//! `eventfd(2)` and what glibc adds to it.

use std::os::fd::RawFd;

use upoll::{Errno, EventFd, EventFdFlags};

use crate::kernel::{call, number};
use crate::object::Object;
use crate::{io, memory, table};

/// `_IOW('J', 0, __u64)`: what writes keep the count below.
pub const EFD_IOC_SET_MAXIMUM: u32 = 0x4008_4a00;
/// `_IOR('J', 1, __u64)`: what it is.
pub const EFD_IOC_GET_MAXIMUM: u32 = 0x8008_4a01;

/// `eventfd(2)`.
///
/// # Errors
/// `EINVAL`: an unknown flag. `EMFILE`, `ENFILE`, `ENOMEM`: the kernel has no number to give.
pub fn eventfd(initial: u32, flags: i32) -> Result<RawFd, Errno> {
    let object = EventFd::with_flags(
        initial,
        EventFdFlags::from_bits_retain(flags.cast_unsigned()),
    )?;
    // SAFETY: no pointers are involved.
    let fd = number(unsafe { call!(eventfd2, 0, flags) })?;
    table::install(fd, Object::EventFd(object))
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
        _ => Err(Errno::from_raw(libc::EIO)),
    }
}

/// `eventfd_write(3)`.
///
/// # Errors
/// As [`write`](crate::write).
pub fn eventfd_write(fd: RawFd, value: u64) -> Result<(), Errno> {
    let ours = table::with(fd, |object| match object {
        Object::EventFd(counter) => Some(try_write(counter, value)),
        _ => None,
    });
    match ours {
        Some(Some(Step::Done(written))) => written,
        Some(Some(Step::Block(counter))) => counter.write(value),
        _ => {
            // SAFETY: `value` is live.
            match unsafe { io::write(fd, (&raw const value).cast(), size_of::<u64>()) }? {
                8 => Ok(()),
                _ => Err(Errno::from_raw(libc::EIO)),
            }
        }
    }
}

/// How far a call gets without blocking.
pub(crate) enum Step<T, O> {
    Done(Result<T, Errno>),
    /// It has to block, and does so on a reference of its own.
    Block(O),
}

#[inline]
pub(crate) fn try_write(counter: &EventFd, value: u64) -> Step<(), EventFd> {
    match counter.try_write(value) {
        Err(Errno::AGAIN) if !is_nonblocking(counter) => Step::Block(counter.clone()),
        done => Step::Done(done),
    }
}

#[inline]
pub(crate) fn try_read(counter: &EventFd) -> Step<u64, EventFd> {
    match counter.try_read() {
        Err(Errno::AGAIN) if !is_nonblocking(counter) => Step::Block(counter.clone()),
        done => Step::Done(done),
    }
}

fn is_nonblocking(counter: &EventFd) -> bool {
    counter.flags().contains(EventFdFlags::NONBLOCK)
}

/// The eventfd's own `ioctl(2)` requests; None for all others.
pub(crate) unsafe fn ioctl(
    counter: &EventFd,
    request: u32,
    argument: usize,
) -> Option<Result<usize, Errno>> {
    let maximum: *mut u64 = std::ptr::with_exposed_provenance_mut(argument);
    match request {
        // SAFETY: the caller's argument is a counter to read.
        EFD_IOC_SET_MAXIMUM => Some(
            unsafe { memory::read(maximum) }
                .and_then(|maximum| counter.set_maximum(maximum))
                .map(|()| 0),
        ),
        // SAFETY: the caller's argument is a counter to write.
        EFD_IOC_GET_MAXIMUM => {
            Some(unsafe { memory::write(maximum, counter.maximum()) }.map(|()| 0))
        }
        _ => None,
    }
}
