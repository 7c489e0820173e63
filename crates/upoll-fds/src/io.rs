//! `read(2)`, `write(2)`, `readv(2)` and `writev(2)` by number.

use std::os::fd::RawFd;

use smallvec::SmallVec;
use upoll::{Errno, EventFd};

use crate::eventfd::{self, Step};
use crate::kernel::call;
use crate::object::Object;
use crate::{memory, table};

/// How much one call moves at most (`MAX_RW_COUNT`).
const MOST: usize = 0x7fff_f000;

/// What the kernel checks before it asks the object.
fn check_buffer(buffer: *const u8, count: usize) -> Result<usize, Errno> {
    if isize::try_from(count).is_err() {
        return Err(Errno::INVAL);
    }
    memory::check_range(buffer, count)?;
    Ok(count.min(MOST))
}

/// `read(2)`.
///
/// # Errors
/// For an eventfd: `EINVAL`: `count` is less than 8. `EAGAIN`: the count is 0 and the open file is
/// `O_NONBLOCK`. `EINTR`: a signal handler without `SA_RESTART` ran. `EFAULT`: `buffer` cannot be
/// written; what was read is gone, as in Linux.
/// `EINVAL`: the number stands for a set. `EBADF`: it is not open for reading.
/// For others, the kernel's.
///
/// # Safety
/// Memory that `buffer` leads to is the caller's, and nobody else uses it.
pub unsafe fn read(fd: RawFd, buffer: *mut u8, count: usize) -> Result<usize, Errno> {
    let ours = table::with(fd, |object| match object {
        Object::EventFd(counter) => {
            let count = match check_buffer(buffer, count) {
                Ok(count) => count,
                Err(errno) => return Step::Done(Err(errno)),
            };
            if count < size_of::<u64>() {
                return Step::Done(Err(Errno::INVAL));
            }
            match eventfd::try_read(counter) {
                // SAFETY: the caller's contract.
                Step::Done(Ok(value)) => Step::Done(unsafe { put(buffer, value) }),
                Step::Done(Err(errno)) => Step::Done(Err(errno)),
                Step::Block(_) => Step::Block(object.clone()),
            }
        }
        Object::Epoll(_) | Object::Own(_) => Step::Done(Err(Errno::INVAL)),
    });
    match ours {
        // SAFETY: the kernel checks the pointer; the rest is the caller's contract.
        None => unsafe { call!(read, fd, buffer, count) },
        Some(Step::Done(result)) => result,
        // SAFETY: the caller's contract.
        Some(Step::Block(object)) => unsafe { read_blocking(&object, buffer) },
    }
}

/// Gives an eventfd's value to the caller.
///
/// # Safety
/// As [`memory::write`].
#[inline]
unsafe fn put(buffer: *mut u8, value: u64) -> Result<usize, Errno> {
    // SAFETY: the caller's contract.
    unsafe { memory::write(buffer.cast::<u64>(), value) }?;
    Ok(size_of::<u64>())
}

unsafe fn read_blocking(object: &Object, buffer: *mut u8) -> Result<usize, Errno> {
    match object {
        // SAFETY: the caller's contract.
        Object::EventFd(counter) => unsafe { put(buffer, counter.read()?) },
        Object::Epoll(_) | Object::Own(_) => Err(Errno::INVAL),
    }
}

/// `write(2)`.
///
/// # Errors
/// For an eventfd: `EINVAL`: `count` is not 8, or the value is 2^64-1. `EFAULT`: `buffer` cannot be
/// read. `EAGAIN`: the value does not fit and the open file is `O_NONBLOCK`. `EINTR`: a signal
/// handler without `SA_RESTART` ran.
/// `EINVAL`: the number stands for a set. `EBADF`: it is not open for writing.
/// For others, the kernel's.
///
/// # Safety
/// Memory that `buffer` leads to is not being written.
pub unsafe fn write(fd: RawFd, buffer: *const u8, count: usize) -> Result<usize, Errno> {
    let ours = table::with(fd, |object| match object {
        // SAFETY: the caller's contract.
        Object::EventFd(counter) => match unsafe { value_of(buffer, count) } {
            Err(errno) => Step::Done(Err(errno)),
            Ok(value) => match eventfd::try_write(counter, value) {
                Step::Done(result) => Step::Done(result.map(|()| size_of::<u64>())),
                Step::Block(_) => Step::Block(object.clone()),
            },
        },
        Object::Epoll(_) | Object::Own(_) => Step::Done(Err(Errno::INVAL)),
    });
    match ours {
        // SAFETY: the kernel checks the pointer; the rest is the caller's contract.
        None => unsafe { call!(write, fd, buffer, count) },
        Some(Step::Done(result)) => result,
        // SAFETY: the caller's contract.
        Some(Step::Block(object)) => unsafe { write_blocking(&object, buffer, count) },
    }
}

/// What is to be written to an eventfd.
///
/// # Safety
/// As [`memory::read`].
#[inline]
unsafe fn value_of(buffer: *const u8, count: usize) -> Result<u64, Errno> {
    if check_buffer(buffer, count)? != size_of::<u64>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's contract.
    unsafe { memory::read(buffer.cast()) }
}

unsafe fn write_blocking(object: &Object, buffer: *const u8, count: usize) -> Result<usize, Errno> {
    match object {
        Object::EventFd(counter) => {
            // SAFETY: the caller's contract.
            let value = unsafe { value_of(buffer, count) }?;
            counter.write(value)?;
            Ok(size_of::<u64>())
        }
        Object::Epoll(_) | Object::Own(_) => Err(Errno::INVAL),
    }
}

/// One buffer of `readv` and `writev`.
#[derive(Clone, Copy)]
struct Buffer {
    base: *mut u8,
    len: usize,
}

type Buffers = SmallVec<[Buffer; 8]>;

/// The buffers that the caller lists (`import_iovec`).
///
/// # Safety
/// As [`memory::read`].
unsafe fn buffers(list: *const libc::iovec, count: i32) -> Result<Buffers, Errno> {
    let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
    if count > libc::UIO_MAXIOV as usize {
        return Err(Errno::INVAL);
    }
    let mut left = MOST;
    (0..count)
        .map(|at| {
            // SAFETY: the caller's contract.
            let one = unsafe { memory::read(list.wrapping_add(at)) }?;
            let base = one.iov_base.cast::<u8>();
            let len = check_buffer(base, one.iov_len)?.min(left);
            left -= len;
            Ok(Buffer { base, len })
        })
        .collect()
}

/// `readv(2)`.
///
/// # Errors
/// As [`read`]. `EINVAL`: more than 1024 buffers, or less than none. `EFAULT`: the list cannot be
/// read.
///
/// # Safety
/// As [`read`], for each buffer; and what `list` leads to is not being written.
pub unsafe fn readv(fd: RawFd, list: *const libc::iovec, count: i32) -> Result<usize, Errno> {
    let Some(object) = table::get(fd) else {
        // SAFETY: the kernel checks the pointers; the rest is the caller's contract.
        return unsafe { call!(readv, fd, list, count) };
    };
    // SAFETY: the caller's contract.
    let buffers = unsafe { buffers(list, count) }?;
    match &object {
        // SAFETY: as above.
        Object::EventFd(counter) => unsafe { eventfd_readv(counter, &buffers) },
        Object::Epoll(_) | Object::Own(_) => Err(Errno::INVAL),
    }
}

/// An eventfd's value may be spread over several buffers.
unsafe fn eventfd_readv(counter: &EventFd, buffers: &[Buffer]) -> Result<usize, Errno> {
    match buffers.iter().map(|buffer| buffer.len).sum() {
        0 => return Ok(0),
        1..8 => return Err(Errno::INVAL),
        _ => {}
    }
    let value = counter.read()?.to_ne_bytes();
    let mut rest = &value[..];
    for buffer in buffers {
        let (now, later) = rest.split_at(buffer.len.min(rest.len()));
        // SAFETY: the caller's contract.
        let place = unsafe { memory::writable(buffer.base, now.len()) };
        if place.len() < now.len() {
            return Err(Errno::FAULT);
        }
        place.copy_from_slice(now);
        rest = later;
    }
    Ok(value.len())
}

/// `writev(2)`.
///
/// # Errors
/// As [`write`]. `EINVAL`: more than 1024 buffers, or less than none. `EFAULT`: the list cannot be
/// read. For an eventfd each buffer is a write of its own, as in Linux.
///
/// # Safety
/// As [`write`], for each buffer; and what `list` leads to is not being written.
pub unsafe fn writev(fd: RawFd, list: *const libc::iovec, count: i32) -> Result<usize, Errno> {
    let Some(object) = table::get(fd) else {
        // SAFETY: the kernel checks the pointers; the rest is the caller's contract.
        return unsafe { call!(writev, fd, list, count) };
    };
    // SAFETY: the caller's contract.
    let buffers = unsafe { buffers(list, count) }?;
    match &object {
        Object::EventFd(_) => {
            let mut written = 0;
            for buffer in buffers.iter().filter(|buffer| buffer.len > 0) {
                // SAFETY: as above.
                match unsafe { write_blocking(&object, buffer.base, buffer.len) } {
                    Ok(more) => written += more,
                    Err(errno) if written == 0 => return Err(errno),
                    Err(_) => break,
                }
            }
            Ok(written)
        }
        Object::Epoll(_) | Object::Own(_) => Err(Errno::INVAL),
    }
}
