//! `send(2)`, `recv(2)` and their longer forms by fd.
//!
//! User-level sockets implement the flags that `unix(7)` stream sockets use, and ignore those that
//! these sockets ignore. For everything else (urgent data, control messages, other flags) the socket
//! is demoted first. If it cannot be demoted, the call fails with `ENOBUFS`: the kernel socket behind it is connected
//! and empty, and would take bytes that overtake others.

use std::cell::Cell;
use std::os::fd::RawFd;

use smallvec::SmallVec;
use upoll::{Errno, ReceiveFlags, StreamSocket};

use crate::blocking::{Blocking, Moved, call_by_fd};
use crate::demote::demote;
use crate::io::{Buffer, Buffers, LARGEST, MOST, buffers, fillable, is_raised, length, rest_of};
use crate::kernel::call;
use crate::object::Object;
use crate::pipe::raise_sigpipe;
use crate::table::programs;
use crate::{memory, table};

/// `sizeof(struct sockaddr_storage)`
const LONGEST_ADDRESS: libc::socklen_t = 128;

/// Makes a call on the user-level socket behind `fd`, by `attempt`; see [`call_by_fd`]. A socket whose call has other
/// flags than `known` is demoted.
fn call_on_socket<T>(
    fd: RawFd,
    (flags, known): (i32, i32),
    mut attempt: impl FnMut(&StreamSocket) -> Result<T, Errno>,
    by_the_kernel: impl FnOnce() -> Result<T, Errno>,
) -> Result<T, Errno> {
    let is_known = flags & !known == 0;
    let demoted = Cell::new(Ok(()));
    let find = || {
        let found = table::with(fd, |object| match object {
            Object::Socket(_) => Some(is_known.then(|| Blocking::new(object))),
            _ => None,
        })??;
        if found.is_none() {
            demoted.set(demote_socket(fd));
        }
        found
    };
    let attempt = |object: &Object| match object {
        Object::Socket(socket) => attempt(socket),
        _ => Err(Errno::NOTSOCK),
    };
    call_by_fd(fd, find, attempt, || {
        demoted.get()?;
        by_the_kernel()
    })
}

const SEND: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE | libc::MSG_EOR;
const RECEIVE: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_PEEK | libc::MSG_WAITALL;

/// `send(2)`.
///
/// # Errors
/// As [`sendto`].
///
/// # Safety
/// As [`sendto`].
pub unsafe fn send(fd: RawFd, bytes: *const u8, count: usize, flags: i32) -> Result<usize, Errno> {
    // SAFETY: the caller's contract.
    unsafe { sendto(fd, bytes, count, flags, std::ptr::null(), 0) }
}

/// `sendto(2)`.
///
/// # Errors
/// In this order, as in Linux 6.18:
/// - `EFAULT`: `bytes` is not in a program's part of the address space.
/// - `ENOTSOCK`, `EBADF`: the fd is not a socket's.
/// - `EINVAL`: an impossible length of the address. `EFAULT`: it cannot be read. `EISCONN`: there is
///   one.
/// - `EPIPE`: sending is shut down, or the peer closed; `SIGPIPE` was raised before, unless `flags`
///   holds `MSG_NOSIGNAL` or sending was shut down while the call waited for room.
/// - `EFAULT`: the bytes cannot be read.
/// - `EAGAIN`: nothing fits, and the open file is `O_NONBLOCK` or `flags` holds `MSG_DONTWAIT`.
/// - `EINTR`: a signal handler without `SA_RESTART` ran while it waited.
/// - `ENOBUFS`: `flags` holds one that only the kernel implements, and the socket cannot be demoted.
///
/// # Safety
/// Memory that the pointers lead to is not being written.
pub unsafe fn sendto(
    fd: RawFd,
    bytes: *const u8,
    count: usize,
    flags: i32,
    to: *const libc::sockaddr,
    size: libc::socklen_t,
) -> Result<usize, Errno> {
    let mut is_broken = false;
    let sent = call_on_socket(
        fd,
        (flags, SEND),
        |socket| {
            let count = count.min(MOST);
            memory::check_range(bytes, count)?;
            // SAFETY: the caller's contract.
            unsafe { check_address(to, size) }?;
            let buffer = Buffer {
                base: bytes.cast_mut(),
                len: count,
            };
            // SAFETY: as above.
            let mut sent = unsafe { send_from(socket, &[buffer], flags) };
            is_broken = breaks(&mut sent, flags);
            let bytes = sent?;
            let rest = is_cut_short(socket, bytes, count).then_some(());
            Ok(Moved { bytes, rest })
        },
        || {
            // SAFETY: the kernel checks the pointers; the rest is the caller's contract.
            unsafe { call!(SYS_sendto, programs(fd), bytes, count, flags, to, size) }
                .map(Moved::whole)
        },
    );
    if is_broken {
        raise_sigpipe();
    }
    let sent = sent?;
    let part = sent.bytes;
    let flags = flags | libc::MSG_NOSIGNAL;
    // SAFETY: as above.
    Ok(sent.finish(|()| unsafe { send(fd, bytes.wrapping_add(part), count - part, flags) }))
}

/// Returns whether a call that blocks has moved a part only because the socket was demoted.
fn is_cut_short(socket: &StreamSocket, moved: usize, asked: usize) -> bool {
    moved < asked && socket.is_stale()
}

/// A message with what is left of `buffers` after `done` bytes, for `call`.
fn with_rest<R>(buffers: Buffers, done: usize, call: impl FnOnce(&mut libc::msghdr) -> R) -> R {
    let mut list = rest_of(buffers, done);
    // SAFETY: all of its fields are numbers or pointers.
    let mut rest: libc::msghdr = unsafe { std::mem::zeroed() };
    // A `Buffer` has the layout of an `iovec`.
    rest.msg_iov = list.as_mut_ptr().cast();
    rest.msg_iovlen = list.len();
    call(&mut rest)
}

/// Checks a destination address as Linux does for a connected socket.
///
/// # Safety
/// As [`memory::read`].
unsafe fn check_address(to: *const libc::sockaddr, size: libc::socklen_t) -> Result<(), Errno> {
    if to.is_null() {
        return Ok(());
    }
    if size > LONGEST_ADDRESS {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's contract.
    let readable = unsafe { memory::readable(to.cast(), size as usize) };
    match (readable.len() < size as usize, size) {
        (true, _) => Err(Errno::FAULT),
        (false, 0) => Ok(()),
        (false, _) => Err(Errno::ISCONN),
    }
}

/// # Safety
/// As [`sendto`], for each buffer.
unsafe fn send_from(socket: &StreamSocket, buffers: &[Buffer], flags: i32) -> Result<usize, Errno> {
    let asked = length(buffers);
    let mut sources = SmallVec::<[&[u8]; 8]>::new();
    sources
        .try_reserve(buffers.len())
        .map_err(|_| Errno::NOMEM)?;
    let mut there = 0;
    for buffer in buffers.iter().filter(|buffer| buffer.len > 0) {
        // SAFETY: the caller's contract.
        let source = unsafe { memory::readable(buffer.base, buffer.len) };
        there += source.len();
        sources.push(source);
        if source.len() < buffer.len {
            break;
        }
    }
    match flags & libc::MSG_DONTWAIT {
        0 => socket.write_before_fault(&sources, asked - there),
        _ => socket.try_write_before_fault(&sources, asked - there),
    }
}

/// Returns whether a send raises `SIGPIPE`, once the call has released the socket; see [`is_raised`].
fn breaks(sent: &mut Result<usize, Errno>, flags: i32) -> bool {
    is_raised(sent) && flags & libc::MSG_NOSIGNAL == 0
}

/// `recv(2)`.
///
/// # Errors
/// As [`recvfrom`].
///
/// # Safety
/// As [`recvfrom`].
pub unsafe fn recv(fd: RawFd, buffer: *mut u8, count: usize, flags: i32) -> Result<usize, Errno> {
    let nobody = std::ptr::null_mut();
    // SAFETY: the caller's contract.
    unsafe { recvfrom(fd, buffer, count, flags, nobody, std::ptr::null_mut()) }
}

/// `recvfrom(2)`. A socket of a pair has no address: its length is 0.
///
/// # Errors
/// In this order, as in Linux 6.18:
/// - `EFAULT`: `buffer` is not in a program's part of the address space.
/// - `ENOTSOCK`, `EBADF`: the fd is not a socket's.
/// - `EAGAIN`: there is nothing, and the open file is `O_NONBLOCK` or `flags` holds `MSG_DONTWAIT`.
/// - `EINTR`: a signal handler without `SA_RESTART` ran while it waited.
/// - `ENOBUFS`: `flags` holds one that only the kernel implements, and the socket cannot be demoted.
/// - `ECONNRESET`: see [`StreamSocket`].
/// - `EFAULT`: the bytes cannot be written; they stay there.
/// - `EFAULT`: the length of the address cannot be read or written. `EINVAL`: it is negative. The
///   bytes are received then.
///
/// # Safety
/// Memory that the pointers lead to is the caller's, and nobody else uses it.
pub unsafe fn recvfrom(
    fd: RawFd,
    buffer: *mut u8,
    count: usize,
    flags: i32,
    from: *mut libc::sockaddr,
    size: *mut libc::socklen_t,
) -> Result<usize, Errno> {
    let received = call_on_socket(
        fd,
        (flags, RECEIVE),
        |socket| {
            let count = count.min(MOST);
            memory::check_range(buffer, count)?;
            let place = Buffer {
                base: buffer,
                len: count,
            };
            // SAFETY: the caller's contract.
            let bytes = unsafe { receive_to(socket, &[place], flags) }?;
            let rest = wants_rest(socket, bytes, count, flags).then_some(());
            if !from.is_null() {
                // SAFETY: as above.
                unsafe {
                    if memory::read(size)?.cast_signed() < 0 {
                        return Err(Errno::INVAL);
                    }
                    memory::write(size, 0)?;
                }
            }
            Ok(Moved { bytes, rest })
        },
        || {
            // SAFETY: the kernel checks the pointers; the rest is the caller's contract.
            unsafe { call!(SYS_recvfrom, programs(fd), buffer, count, flags, from, size) }
                .map(Moved::whole)
        },
    )?;
    let part = received.bytes;
    // SAFETY: as above.
    Ok(received.finish(|()| unsafe { recv(fd, buffer.wrapping_add(part), count - part, flags) }))
}

/// Returns whether a call that waits for all bytes has received a part, and the kernel has the rest now.
fn wants_rest(socket: &StreamSocket, part: usize, asked: usize, flags: i32) -> bool {
    // No bytes are the end of the stream. A call does not wait for all bytes that it peeks at.
    part > 0
        && flags & (libc::MSG_WAITALL | libc::MSG_PEEK) == libc::MSG_WAITALL
        && is_cut_short(socket, part, asked)
}

/// # Safety
/// As [`recvfrom`], for each buffer.
unsafe fn receive_to(
    socket: &StreamSocket,
    buffers: &[Buffer],
    flags: i32,
) -> Result<usize, Errno> {
    let asked = length(buffers);
    let mut places = SmallVec::<[&mut [u8]; 8]>::new();
    places
        .try_reserve(buffers.len())
        .map_err(|_| Errno::NOMEM)?;
    let nothing = match flags & libc::MSG_DONTWAIT {
        0 => LARGEST,
        _ => 1,
    };
    let fillable = match flags & libc::MSG_WAITALL {
        0 => fillable(|| Some(socket.available()), asked, nothing),
        _ => asked,
    };
    let (mut left, mut missing) = (fillable, 0);
    for buffer in buffers.iter().filter(|buffer| buffer.len > 0) {
        let len = buffer.len.min(left);
        // SAFETY: the caller's contract.
        let place = unsafe { memory::writable(buffer.base, len) };
        left -= place.len();
        let is_whole = place.len() == len;
        places.push(place);
        if !is_whole {
            missing = asked - (fillable - left);
        }
        if !is_whole || left == 0 {
            break;
        }
    }
    let flags = ReceiveFlags::from_bits_truncate(flags.cast_unsigned());
    socket.receive_before_fault(&mut places, missing, flags)
}

/// `sendmsg(2)`. With control messages it is the kernel's.
///
/// # Errors
/// As [`sendto`]. `EFAULT`: the message cannot be read. `EMSGSIZE`: more than 1024 buffers. `ENOBUFS`: there are control
/// messages, and the socket cannot be demoted.
///
/// # Safety
/// Memory that the message leads to is not being written.
pub unsafe fn sendmsg(fd: RawFd, message: *const libc::msghdr, flags: i32) -> Result<usize, Errno> {
    // SAFETY: the kernel checks the pointers; the rest is the caller's contract.
    let by_the_kernel = || unsafe { call!(SYS_sendmsg, programs(fd), message, flags) };
    let mut is_broken = false;
    let sent = call_on_socket(
        fd,
        (flags, SEND),
        |socket| {
            // SAFETY: the caller's contract; all of its fields are numbers or pointers.
            let header = unsafe { memory::read(message) }?;
            // The kernel checks the pointer, too.
            if header.msg_controllen > 0 {
                return Ok(None);
            }
            check_name_length(&header)?;
            // Too long an address is cut off here.
            let size = header.msg_namelen.min(LONGEST_ADDRESS);
            // SAFETY: the caller's contract.
            let address = unsafe { check_address(header.msg_name.cast(), size) };
            if address == Err(Errno::FAULT) {
                return Err(Errno::FAULT);
            }
            // SAFETY: as above.
            let buffers = unsafe { buffers_of(&header) }?;
            address?;
            // SAFETY: as above.
            let mut sent = unsafe { send_from(socket, &buffers, flags) };
            is_broken = breaks(&mut sent, flags);
            let bytes = sent?;
            let rest = is_cut_short(socket, bytes, length(&buffers)).then_some(buffers);
            Ok(Some(Moved { bytes, rest }))
        },
        || by_the_kernel().map(|sent| Some(Moved::whole(sent))),
    );
    if is_broken {
        raise_sigpipe();
    }
    let Some(sent) = sent? else {
        // As for unknown flags.
        demote_socket(fd)?;
        return by_the_kernel();
    };
    let part = sent.bytes;
    let flags = flags | libc::MSG_NOSIGNAL;
    // SAFETY: as above.
    let send_rest = |rest: &mut _| unsafe { sendmsg(fd, rest, flags) };
    Ok(sent.finish(|buffers| with_rest(buffers, part, send_rest)))
}

/// `recvmsg(2)`. There are no control messages, and no address.
///
/// # Errors
/// As [`recvfrom`]. `EFAULT`: the message cannot be read or written. `EMSGSIZE`: more than 1024
/// buffers.
///
/// # Safety
/// Memory that the message leads to is the caller's, and nobody else uses it.
pub unsafe fn recvmsg(fd: RawFd, message: *mut libc::msghdr, flags: i32) -> Result<usize, Errno> {
    let known = RECEIVE | libc::MSG_CMSG_CLOEXEC;
    let received = call_on_socket(
        fd,
        (flags, known),
        |socket| {
            // SAFETY: the caller's contract; all of its fields are numbers or pointers.
            let header = unsafe { memory::read(message) }?;
            check_name_length(&header)?;
            // SAFETY: the caller's contract.
            unsafe {
                let buffers = buffers_of(&header)?;
                let bytes = receive_to(socket, &buffers, flags)?;
                let rest = wants_rest(socket, bytes, length(&buffers), flags);
                if !header.msg_name.is_null() {
                    put(
                        message,
                        std::mem::offset_of!(libc::msghdr, msg_namelen),
                        0_u32,
                    )?;
                }
                // Linux returns this flag with those that describe the received message.
                put_control(message, flags & libc::MSG_CMSG_CLOEXEC, 0)?;
                let rest = rest.then_some((buffers, header));
                Ok(Moved { bytes, rest })
            }
        },
        // SAFETY: the kernel checks the pointers; the rest is the caller's contract.
        || unsafe { call!(SYS_recvmsg, programs(fd), message, flags) }.map(Moved::whole),
    )?;
    let part = received.bytes;
    Ok(received.finish(|(buffers, header)| {
        with_rest(buffers, part, |rest| {
            // The kernel may have descriptors for it.
            rest.msg_control = header.msg_control;
            rest.msg_controllen = header.msg_controllen;
            // SAFETY: as above; the message was written to before.
            unsafe {
                let received = recvmsg(fd, rest, flags)?;
                put_control(message, rest.msg_flags, rest.msg_controllen)?;
                Ok::<_, Errno>(received)
            }
        })
    }))
}

/// Writes what a message says of its control messages.
///
/// # Safety
/// As [`memory::write`].
unsafe fn put_control(message: *mut libc::msghdr, flags: i32, length: usize) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    unsafe {
        put(
            message,
            std::mem::offset_of!(libc::msghdr, msg_flags),
            flags,
        )?;
        put(
            message,
            std::mem::offset_of!(libc::msghdr, msg_controllen),
            length,
        )
    }
}

/// Writes a field of a message.
///
/// # Safety
/// As [`memory::write`].
unsafe fn put<T: Copy>(message: *mut libc::msghdr, at: usize, value: T) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    unsafe { memory::write(message.wrapping_byte_add(at).cast(), value) }
}

/// Checks the length of the address, which Linux does first (`copy_msghdr_from_user`).
fn check_name_length(header: &libc::msghdr) -> Result<(), Errno> {
    if !header.msg_name.is_null() && header.msg_namelen.cast_signed() < 0 {
        return Err(Errno::INVAL);
    }
    Ok(())
}

/// The buffers that a message lists.
///
/// # Safety
/// As [`memory::read`].
unsafe fn buffers_of(header: &libc::msghdr) -> Result<Buffers, Errno> {
    if header.msg_iovlen > libc::UIO_MAXIOV as usize {
        return Err(Errno::MSGSIZE);
    }
    let count = i32::try_from(header.msg_iovlen).unwrap_or(i32::MAX);
    // SAFETY: the caller's contract.
    unsafe { buffers(header.msg_iov, count) }
}

/// `getsockopt(2)`.
///
/// A user-level socket is demoted for the options whose value the kernel socket behind it does not know:
/// `SO_ERROR`, `SO_SNDBUF` and `SO_MEMINFO`.
///
/// # Errors
/// The kernel's. `ENOBUFS`: the socket cannot be demoted.
///
/// # Safety
/// Memory that the pointers lead to is the caller's, and nobody else uses it.
pub unsafe fn getsockopt(
    fd: RawFd,
    level: i32,
    option: i32,
    value: *mut libc::c_void,
    size: *mut libc::socklen_t,
) -> Result<(), Errno> {
    let is_unknown_there = matches!(option, libc::SO_ERROR | libc::SO_SNDBUF | libc::SO_MEMINFO);
    if level == libc::SOL_SOCKET && is_unknown_there {
        demote_socket(fd)?;
    }
    // SAFETY: the kernel checks the pointers; the rest is the caller's contract.
    unsafe { call!(SYS_getsockopt, programs(fd), level, option, value, size) }.map(drop)
}

/// `setsockopt(2)`. A user-level socket is demoted: only the kernel implements options.
///
/// # Errors
/// The kernel's. `ENOBUFS`: the socket cannot be demoted.
///
/// # Safety
/// Memory that `value` leads to is not being written.
pub unsafe fn setsockopt(
    fd: RawFd,
    level: i32,
    option: i32,
    value: *const libc::c_void,
    size: libc::socklen_t,
) -> Result<(), Errno> {
    demote_socket(fd)?;
    // SAFETY: the kernel checks the pointer; the rest is the caller's contract.
    unsafe { call!(SYS_setsockopt, programs(fd), level, option, value, size) }.map(drop)
}

/// `sendmmsg(2)`. A user-level socket is demoted: only the kernel sends several messages by one call.
///
/// # Errors
/// The kernel's. `ENOBUFS`: the socket cannot be demoted.
///
/// # Safety
/// Memory that the messages lead to is not being written, and nobody else uses the messages.
pub unsafe fn sendmmsg(
    fd: RawFd,
    messages: *mut libc::mmsghdr,
    count: u32,
    flags: i32,
) -> Result<usize, Errno> {
    demote_socket(fd)?;
    // SAFETY: the kernel checks the pointers; the rest is the caller's contract.
    unsafe { call!(SYS_sendmmsg, programs(fd), messages, count, flags) }
}

/// `recvmmsg(2)`. A user-level socket is demoted: only the kernel receives several messages by one call.
///
/// # Errors
/// The kernel's. `ENOBUFS`: the socket cannot be demoted.
///
/// # Safety
/// Memory that the pointers lead to is the caller's, and nobody else uses it.
pub unsafe fn recvmmsg(
    fd: RawFd,
    messages: *mut libc::mmsghdr,
    count: u32,
    flags: i32,
    limit: *mut libc::timespec,
) -> Result<usize, Errno> {
    demote_socket(fd)?;
    // SAFETY: the kernel checks the pointers; the rest is the caller's contract.
    unsafe { call!(SYS_recvmmsg, programs(fd), messages, count, flags, limit) }
}

/// Demotes the object if it is a user-level socket.
///
/// # Errors
/// `ENOBUFS`: it cannot be demoted.
fn demote_socket(fd: RawFd) -> Result<(), Errno> {
    if table::is_socket(fd) && demote(fd).is_err() && table::is_socket(fd) {
        return Err(Errno::NOBUFS);
    }
    Ok(())
}
