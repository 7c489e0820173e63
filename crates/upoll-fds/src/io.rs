//! `read(2)`, `write(2)`, `readv(2)` and `writev(2)` by fd.
//!
//! A call that does not block uses the object in the table. A call that has to block begins again by [`call_by_fd`].

use std::os::fd::RawFd;

use smallvec::SmallVec;
use upoll::{Errno, Events, PIPE_BUF, ReceiveFlags};

use crate::blocking::{Blocking, Moved, call_by_fd};
use crate::kernel::call;
use crate::object::Object;
use crate::pipe::raise_sigpipe;
use crate::table::programs;
use crate::{memory, table};

/// The number of bytes that one call moves at most (`MAX_RW_COUNT`).
pub(crate) const MOST: usize = 0x7fff_f000;

/// Returns whether a call ends with the error of an attempt that did not block. Otherwise the call is made again by
/// [`call_by_fd`]: it has to block, or the object was demoted.
#[cold]
fn is_final(errno: Errno, object: &Object, fd: RawFd) -> bool {
    match errno {
        Errno::STALE => false,
        Errno::AGAIN => !object.is_stale() && object.is_nonblocking(fd),
        _ => true,
    }
}

/// Returns the user-level object behind `fd`, for a call that may block.
fn find(fd: RawFd) -> Option<Blocking> {
    table::with(fd, Blocking::new)
}

/// Checks a buffer as the kernel does before it calls the object: a length beyond the address space,
/// such as -1, fails with `EFAULT`. Returns how much of it one call moves at most.
#[inline]
fn check_buffer(buffer: *const u8, count: usize) -> Result<usize, Errno> {
    memory::check_range(buffer, count)?;
    Ok(count.min(MOST))
}

/// Up to here all of a buffer is looked at, whatever there is to read.
const SMALL: usize = 4 << 12;

/// Returns how much of a buffer a read can fill, because a check of a page takes memory for it. Returns at
/// most `nothing` if there is nothing to read yet. `available` returns how much is there, if the object knows.
///
/// It is never less than the longest packet. By the time of the read, another packet may be the first, and
/// the rest of a packet that does not fit is lost.
#[inline]
pub(crate) fn fillable(
    available: impl FnOnce() -> Option<usize>,
    count: usize,
    nothing: usize,
) -> usize {
    if count <= SMALL {
        return count;
    }
    match available() {
        Some(0) => count.min(nothing.max(PIPE_BUF)),
        Some(available) => count.min(available.max(PIPE_BUF)),
        None => count,
    }
}

/// The most that a socket holds: no send buffer is larger.
pub(crate) const LARGEST: usize = 8 << 20;

/// The most that a pipe or a socket holds in the end.
fn holds(object: &Object) -> usize {
    object.pipe_capacity().unwrap_or(LARGEST)
}

/// `read(2)`.
///
/// # Errors
/// - `EBADF`: the fd is not open for reading.
/// - `EINVAL`: it stands for a set, or an embedder's object; `count` is less than an eventfd's 8.
/// - `EFAULT`: `buffer` cannot be written, or `count` is more than the address space. An eventfd's
///   value is consumed in the first case, as in Linux.
/// - `EAGAIN`: there is nothing, and the open file is `O_NONBLOCK`.
/// - `EINTR`: a signal handler without `SA_RESTART` ran while it waited.
/// - `ECONNRESET`: see [`StreamSocket`](upoll::StreamSocket).
///
/// For others, the kernel's.
///
/// # Safety
/// Memory that `buffer` leads to is the caller's, and nobody else uses it.
#[inline]
pub unsafe fn read(fd: RawFd, buffer: *mut u8, count: usize) -> Result<usize, Errno> {
    let Some(hazard) = table::Hazard::begin(fd) else {
        // SAFETY: the kernel checks the pointer; the rest is the caller's contract.
        return unsafe { call!(SYS_read, programs(fd), buffer, count) };
    };
    // SAFETY: the caller's contract.
    match unsafe { try_read(hazard.object(), buffer, count) } {
        Err(errno) if !is_final(errno, hazard.object(), fd) => {
            drop(hazard);
            // SAFETY: the caller's contract.
            unsafe { read_again(fd, buffer, count) }
        }
        done => done,
    }
}

/// A read that could not be done at once.
///
/// # Safety
/// As [`read`].
#[cold]
#[inline(never)]
unsafe fn read_again(fd: RawFd, buffer: *mut u8, count: usize) -> Result<usize, Errno> {
    call_by_fd(
        fd,
        || find(fd),
        |object| {
            object.check_reads()?;
            object.renew_flags(fd);
            // SAFETY: the caller's contract.
            or_stale(object, unsafe { read_blocking(object, buffer, count) })
        },
        // SAFETY: the kernel checks the pointer; the rest is the caller's contract.
        || unsafe { call!(SYS_read, programs(fd), buffer, count) },
    )
}

#[inline]
unsafe fn try_read(object: &Object, buffer: *mut u8, count: usize) -> Result<usize, Errno> {
    object.check_reads()?;
    let count = check_buffer(buffer, count)?;
    if let Some(number) = object.read_number(count, false) {
        // SAFETY: the caller's contract.
        return unsafe { put(buffer, number?) };
    }
    let asked = fillable(|| object.available(), count, 1);
    // SAFETY: as above.
    let place = unsafe { memory::writable(buffer, asked) };
    if place.len() < asked {
        let missing = count - place.len();
        return match object {
            Object::PipeReader(end) => end.try_read_before_fault(&mut [place], missing),
            Object::Socket(socket) => {
                socket.receive_before_fault(&mut [place], missing, ReceiveFlags::DONTWAIT)
            }
            _ => Err(Errno::INVAL),
        };
    }
    match object {
        Object::PipeReader(end) => end.try_read(place),
        Object::Socket(socket) => socket.try_read(place),
        _ => Err(Errno::INVAL),
    }
}

#[cold]
unsafe fn read_blocking(object: &Object, buffer: *mut u8, count: usize) -> Result<usize, Errno> {
    if let Some(number) = object.read_number(count, true) {
        // SAFETY: the caller's contract.
        return unsafe { put(buffer, number?) };
    }
    let count = count.min(MOST);
    let asked = fillable(|| object.available(), count, holds(object));
    // SAFETY: as above.
    let place = unsafe { memory::writable(buffer, asked) };
    let missing = missing(place.len(), asked, count);
    read_places(object, &mut [place], missing)
}

/// Returns for how many bytes that a read asks for there is no place, if it has found `there` bytes of the
/// `looked_at` that it can fill of `count`.
fn missing(there: usize, looked_at: usize, count: usize) -> usize {
    match there < looked_at {
        true => count - there,
        false => 0,
    }
}

/// Reads into `places`, behind which `missing` bytes that are asked for cannot be written; waits if the open
/// file does.
fn read_places(object: &Object, places: &mut [&mut [u8]], missing: usize) -> Result<usize, Errno> {
    match object {
        Object::PipeReader(end) => end.read_before_fault(places, missing),
        Object::Socket(socket) => {
            socket.receive_before_fault(places, missing, ReceiveFlags::empty())
        }
        _ => Err(Errno::INVAL),
    }
}

/// Writes a number to the caller's buffer.
///
/// # Safety
/// As [`memory::write`].
#[inline]
unsafe fn put(buffer: *mut u8, value: u64) -> Result<usize, Errno> {
    // SAFETY: the caller's contract.
    unsafe { memory::write(buffer.cast::<u64>(), value) }?;
    Ok(size_of::<u64>())
}

/// `write(2)`.
///
/// # Errors
/// - `EBADF`: the fd is not open for writing.
/// - `EINVAL`: it stands for a set, or an embedder's object; for an eventfd, `count` is not 8 or the
///   value is 2^64-1.
/// - `EFAULT`: `buffer` cannot be read.
/// - `EAGAIN`: it does not fit, and the open file is `O_NONBLOCK`.
/// - `EINTR`: a signal handler without `SA_RESTART` ran while it waited.
/// - `EPIPE`: nobody can read it any more; `SIGPIPE` was raised before.
///
/// For others, the kernel's.
///
/// # Safety
/// Memory that `buffer` leads to is not being written.
#[inline]
pub unsafe fn write(fd: RawFd, buffer: *const u8, count: usize) -> Result<usize, Errno> {
    let Some(hazard) = table::Hazard::begin(fd) else {
        // SAFETY: the kernel checks the pointer; the rest is the caller's contract.
        return unsafe { call!(SYS_write, programs(fd), buffer, count) };
    };
    // SAFETY: the caller's contract.
    match unsafe { try_write(hazard.object(), fd, buffer, count) } {
        Err(errno) if !is_final(errno, hazard.object(), fd) => {
            drop(hazard);
            // SAFETY: the caller's contract.
            unsafe { write_again(fd, buffer, count) }
        }
        Err(errno) => {
            drop(hazard);
            if errno == Errno::PIPE {
                raise_sigpipe();
            }
            Err(errno)
        }
        done => done,
    }
}

/// A write that could not be done at once.
///
/// # Safety
/// As [`write()`].
#[cold]
#[inline(never)]
unsafe fn write_again(fd: RawFd, buffer: *const u8, count: usize) -> Result<usize, Errno> {
    let mut is_broken = false;
    let written = call_by_fd(
        fd,
        || find(fd),
        |object| {
            object.check_writes()?;
            object.renew_flags(fd);
            // SAFETY: the caller's contract.
            let mut written = or_stale(object, unsafe { write_blocking(object, buffer, count) });
            is_broken = breaks(object, fd, &mut written, count.min(MOST));
            Ok(after_write(object, written?, count.min(MOST), || ()))
        },
        // SAFETY: the kernel checks the pointer; the rest is the caller's contract.
        || unsafe { call!(SYS_write, programs(fd), buffer, count) }.map(Moved::whole),
    );
    if is_broken {
        raise_sigpipe();
    }
    let written = written?;
    let part = written.bytes;
    // SAFETY: as above.
    Ok(written.finish(|()| unsafe { write(fd, buffer.wrapping_add(part), count - part) }))
}

/// Returns how far a write of `count` bytes got on `object`, with `rest` if the object was demoted midway.
fn after_write<R>(
    object: &Object,
    bytes: usize,
    count: usize,
    rest: impl FnOnce() -> R,
) -> Moved<R> {
    let is_cut_short = bytes < count && object.is_stale();
    Moved {
        bytes,
        rest: is_cut_short.then(rest),
    }
}

/// Returns whether a write of `count` bytes raises `SIGPIPE`. The caller raises it once the call has released the
/// object: a handler may not return.
///
/// If the last reader of a pipe closes midway, the kernel raises the signal and returns the part that is written. A
/// socket raises none then, nor does a nonblocking write: it found no room before the reader closed. For the end of a
/// send that has waited see [`is_raised`].
fn breaks(object: &Object, fd: RawFd, written: &mut Result<usize, Errno>, count: usize) -> bool {
    match *written {
        Ok(bytes) => {
            bytes < count
                && !object.is_stale()
                && matches!(object, Object::PipeWriter(_))
                && object.as_file_ref(0).is_ready(Events::ERR)
                && !object.is_nonblocking(fd)
        }
        Err(_) => is_raised(written),
    }
}

/// Returns whether a failed write raises `SIGPIPE`. `ESHUTDOWN` becomes `EPIPE` without the signal: sending on a
/// socket was shut down while the call waited for room.
pub(crate) fn is_raised(written: &mut Result<usize, Errno>) -> bool {
    if *written == Err(Errno::SHUTDOWN) {
        *written = Err(Errno::PIPE);
        return false;
    }
    *written == Err(Errno::PIPE)
}

/// Fails with `EAGAIN` if it would have to block. A write that may block midway is left to
/// [`write_blocking`] as a whole.
#[inline]
unsafe fn try_write(
    object: &Object,
    fd: RawFd,
    buffer: *const u8,
    count: usize,
) -> Result<usize, Errno> {
    if let Object::EventFd(counter) = object {
        // SAFETY: the caller's contract.
        let value = unsafe { value_of(buffer, count) }?;
        counter.try_write(value)?;
        return Ok(size_of::<u64>());
    }
    object.check_writes()?;
    let count = check_buffer(buffer, count)?;
    // SAFETY: as above.
    let bytes = unsafe { memory::readable(buffer, count) };
    let missing = count - bytes.len();
    match object {
        // A short write is done at once or not at all; a long one in part, which is for the
        // blocking call.
        Object::PipeWriter(end) if count <= PIPE_BUF || object.is_nonblocking(fd) => {
            match missing {
                0 => end.try_write(bytes),
                _ => end.try_write_before_fault(&[bytes], missing),
            }
        }
        Object::Socket(socket) if object.is_nonblocking(fd) => match missing {
            0 => socket.try_write(bytes),
            _ => socket.try_write_before_fault(&[bytes], missing),
        },
        _ => Err(Errno::AGAIN),
    }
}

unsafe fn write_blocking(object: &Object, buffer: *const u8, count: usize) -> Result<usize, Errno> {
    if let Object::EventFd(counter) = object {
        // SAFETY: the caller's contract.
        let value = unsafe { value_of(buffer, count) }?;
        counter.write(value)?;
        return Ok(size_of::<u64>());
    }
    let count = count.min(MOST);
    // SAFETY: as above.
    let bytes = unsafe { memory::readable(buffer, count) };
    write_sources(object, &[bytes], count - bytes.len())
}

/// Writes what is in `sources`, behind which `missing` bytes that are asked for cannot be read; waits if the
/// open file does.
fn write_sources(object: &Object, sources: &[&[u8]], missing: usize) -> Result<usize, Errno> {
    match object {
        Object::PipeWriter(end) => end.write_before_fault(sources, missing),
        Object::Socket(socket) => socket.write_before_fault(sources, missing),
        _ => Err(Errno::INVAL),
    }
}

/// Reads the value to be written to an eventfd.
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

/// One buffer of `readv` and `writev`, with the layout of an `iovec`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Buffer {
    pub(crate) base: *mut u8,
    pub(crate) len: usize,
}

pub(crate) type Buffers = SmallVec<[Buffer; 8]>;

/// The buffers that the caller lists (`import_iovec`).
///
/// # Safety
/// As [`memory::read`].
pub(crate) unsafe fn buffers(list: *const libc::iovec, count: i32) -> Result<Buffers, Errno> {
    let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
    if count > libc::UIO_MAXIOV as usize {
        return Err(Errno::INVAL);
    }
    let mut buffers = Buffers::new();
    buffers.try_reserve(count).map_err(|_| Errno::NOMEM)?;
    for at in 0..count {
        // SAFETY: the caller's contract.
        let one = unsafe { memory::read(list.wrapping_add(at)) }?;
        if isize::try_from(one.iov_len).is_err() {
            return Err(Errno::INVAL);
        }
        buffers.push(Buffer {
            base: one.iov_base.cast(),
            len: one.iov_len,
        });
    }
    let mut left = MOST;
    for buffer in &mut buffers {
        buffer.len = check_buffer(buffer.base, buffer.len)?.min(left);
        left -= buffer.len;
    }
    Ok(buffers)
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
    call_by_fd(
        fd,
        || find(fd),
        |object| {
            object.check_reads()?;
            // SAFETY: the caller's contract.
            let buffers = unsafe { buffers(list, count) }?;
            if buffers.iter().all(|buffer| buffer.len == 0) {
                return Ok(0);
            }
            object.renew_flags(fd);
            // SAFETY: as above.
            or_stale(object, unsafe { readv_from(object, fd, &buffers) })
        },
        // SAFETY: the kernel checks the pointers; the rest is the caller's contract.
        || unsafe { call!(SYS_readv, programs(fd), list, count) },
    )
}

/// Returns the result of a call on an object that may have been demoted before the call: such an object has nothing.
fn or_stale(object: &Object, result: Result<usize, Errno>) -> Result<usize, Errno> {
    match result {
        Err(Errno::AGAIN) if object.is_stale() => Err(Errno::STALE),
        result => result,
    }
}

/// # Safety
/// As [`readv`].
unsafe fn readv_from(object: &Object, fd: RawFd, buffers: &[Buffer]) -> Result<usize, Errno> {
    if let Some(number) = object.read_number(length(buffers), true) {
        // SAFETY: the caller's contract.
        return unsafe { put_spread(buffers, number?) };
    }
    let nothing = match object.is_nonblocking(fd) {
        true => 1,
        false => holds(object),
    };
    let total = length(buffers);
    let asked = fillable(|| object.available(), total, nothing);
    let mut left = asked;
    let mut places = SmallVec::<[&mut [u8]; 8]>::new();
    places
        .try_reserve(buffers.len())
        .map_err(|_| Errno::NOMEM)?;
    for buffer in buffers.iter().filter(|buffer| buffer.len > 0) {
        // SAFETY: as above.
        let place = unsafe { memory::writable(buffer.base, buffer.len.min(left)) };
        let is_whole = place.len() == buffer.len;
        left -= place.len();
        places.push(place);
        if !is_whole {
            break;
        }
    }
    let missing = missing(asked - left, asked, total);
    read_places(object, &mut places, missing)
}

/// Writes a number to several buffers of the caller, over which it may be spread.
///
/// # Safety
/// As [`readv`].
unsafe fn put_spread(buffers: &[Buffer], number: u64) -> Result<usize, Errno> {
    let value = number.to_ne_bytes();
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
/// As [`write()`]. `EINVAL`: more than 1024 buffers, or less than none. `EFAULT`: the list cannot be
/// read. For an eventfd each buffer is a write of its own, as in Linux.
///
/// # Safety
/// As [`write()`], for each buffer; and what `list` leads to is not being written.
pub unsafe fn writev(fd: RawFd, list: *const libc::iovec, count: i32) -> Result<usize, Errno> {
    let mut is_broken = false;
    let written = call_by_fd(
        fd,
        || find(fd),
        |object| {
            object.check_writes()?;
            // SAFETY: the caller's contract.
            let buffers = unsafe { buffers(list, count) }?;
            if buffers.iter().all(|buffer| buffer.len == 0) {
                return Ok(Moved::whole(0));
            }
            object.renew_flags(fd);
            // SAFETY: as above.
            let mut written = or_stale(object, unsafe { writev_to(object, &buffers) });
            is_broken = breaks(object, fd, &mut written, length(&buffers));
            let count = length(&buffers);
            Ok(after_write(object, written?, count, || buffers))
        },
        // SAFETY: the kernel checks the pointers; the rest is the caller's contract.
        || unsafe { call!(SYS_writev, programs(fd), list, count) }.map(Moved::whole),
    );
    if is_broken {
        raise_sigpipe();
    }
    let written = written?;
    let part = written.bytes;
    Ok(written.finish(|buffers| {
        let rest = rest_of(buffers, part);
        let count = i32::try_from(rest.len()).unwrap_or(i32::MAX);
        // SAFETY: as above; the list is live, and a `Buffer` has the layout of an `iovec`.
        unsafe { writev(fd, rest.as_ptr().cast(), count) }
    }))
}

/// Returns how many bytes the buffers hold in all.
pub(crate) fn length(buffers: &[Buffer]) -> usize {
    buffers.iter().map(|buffer| buffer.len).sum()
}

/// Returns the rest of the buffers after `done` bytes, in the memory that the list has.
pub(crate) fn rest_of(mut buffers: Buffers, mut done: usize) -> Buffers {
    for buffer in &mut buffers {
        let skipped = done.min(buffer.len);
        done -= skipped;
        buffer.base = buffer.base.wrapping_add(skipped);
        buffer.len -= skipped;
    }
    buffers
}

/// # Safety
/// As [`writev`].
unsafe fn writev_to(object: &Object, buffers: &[Buffer]) -> Result<usize, Errno> {
    if let Object::EventFd(_) = object {
        // SAFETY: the caller's contract.
        return unsafe { eventfd_writev(object, buffers) };
    }
    let mut sources = SmallVec::<[&[u8]; 8]>::new();
    sources
        .try_reserve(buffers.len())
        .map_err(|_| Errno::NOMEM)?;
    for buffer in buffers.iter().filter(|buffer| buffer.len > 0) {
        // SAFETY: as above.
        let source = unsafe { memory::readable(buffer.base, buffer.len) };
        let is_whole = source.len() == buffer.len;
        sources.push(source);
        if !is_whole {
            break;
        }
    }
    let asked = length(buffers);
    let there: usize = sources.iter().map(|source| source.len()).sum();
    write_sources(object, &sources, asked - there)
}

/// # Safety
/// As [`writev`].
unsafe fn eventfd_writev(object: &Object, buffers: &[Buffer]) -> Result<usize, Errno> {
    // Linux skips empty buffers after a write, but not before the first.
    if buffers.first().is_some_and(|first| first.len == 0) {
        return Err(Errno::INVAL);
    }
    let mut written = 0;
    for buffer in buffers.iter().filter(|buffer| buffer.len > 0) {
        // SAFETY: the caller's contract.
        match unsafe { write_blocking(object, buffer.base, buffer.len) } {
            Ok(more) => written += more,
            Err(errno) if written == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(written)
}
