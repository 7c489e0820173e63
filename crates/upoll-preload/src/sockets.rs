//! Sockets: pairs, calls on them that only the kernel implements, and fds that are sent to other
//! processes. Their objects are demoted first.

use std::ffi::{c_int, c_uint, c_void};

use libc::{mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use upoll::Errno;
use upoll::internal::own_fds;
use upoll_fds::internal::{self, plain_sets};

use crate::cancel::exported;
use crate::files::{chk_fail, demote, leave_to_streams};
use crate::next::pass_on;
use crate::settings;
use crate::stats::{self, Call};
use crate::{handlers, kernel};
use upoll_fds::internal::errno::{give, give_size};

exported! {
    "`socketpair(2)`" socketpair(
        domain: c_int, kind: c_int, protocol: c_int, fds: *mut [c_int; 2]
    ) -> c_int = socketpair_body;
    "`shutdown(2)`" shutdown(fd: c_int, how: c_int) -> c_int = shutdown_body;
    "`bind(2)`" bind(fd: c_int, address: *const sockaddr, size: socklen_t) -> c_int = bind_body;
    "`getsockopt(2)`" getsockopt(
        fd: c_int, level: c_int, option: c_int, value: *mut c_void, size: *mut socklen_t
    ) -> c_int = getsockopt_body;
    "`setsockopt(2)`" setsockopt(
        fd: c_int, level: c_int, option: c_int, value: *const c_void, size: socklen_t
    ) -> c_int = setsockopt_body;
}

/// # Safety
/// As the call.
#[inline(never)]
unsafe fn socketpair_body(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
    fds: *mut [c_int; 2],
) -> c_int {
    let made = handlers::make_user_level(
        || settings::is_user_level(Call::SocketPair),
        // SAFETY: the caller's contract.
        || unsafe { upoll_fds::socketpair(domain, kind, protocol, fds) },
    );
    stats::count_as(Call::SocketPair, matches!(made, Some(Ok(()))));
    let Some(made) = made else {
        pass_on!(
            "socketpair",
            fn(c_int, c_int, c_int, *mut [c_int; 2]) -> c_int,
            (domain, kind, protocol, fds)
        );
        return give(kernel::call!(SYS_socketpair, domain, kind, protocol, fds));
    };
    if made.is_ok() {
        // SAFETY: the call has just written them.
        for fd in unsafe { fds.read_unaligned() } {
            leave_to_streams(fd);
            settings::recheck(fd);
        }
    }
    give(made)
}

#[inline(never)]
fn shutdown_body(fd: c_int, how: c_int) -> c_int {
    if !internal::is_user_level_or_own(fd) {
        pass_on!("shutdown", fn(c_int, c_int) -> c_int, (fd, how));
    }
    give(upoll_fds::shutdown(fd, how))
}

/// Demotes a user-level socket: only a kernel socket has an address, which the other end receives with each message.
///
/// # Safety
/// As the call.
#[inline(never)]
unsafe fn bind_body(fd: c_int, address: *const sockaddr, size: socklen_t) -> c_int {
    if !internal::is_user_level_or_own(fd) {
        pass_on!(
            "bind",
            fn(c_int, *const sockaddr, socklen_t) -> c_int,
            (fd, address, size)
        );
    }
    if own_fds::is_own(fd) {
        return give(Err::<c_int, _>(Errno::BADF));
    }
    if internal::is_socket(fd) {
        demote(fd);
    }
    give(kernel::call!(SYS_bind, fd, address, size).map(drop))
}

#[doc = "`send(2)`"]
pub(crate) unsafe fn send(fd: c_int, bytes: *const u8, count: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's contract.
    unsafe { sendto(fd, bytes, count, flags, std::ptr::null(), 0) }
}

#[doc = "`sendto(2)`"]
pub(crate) unsafe fn sendto(
    fd: c_int,
    bytes: *const u8,
    count: size_t,
    flags: c_int,
    to: *const sockaddr,
    size: socklen_t,
) -> ssize_t {
    // SAFETY: the caller's contract.
    give_size(unsafe { upoll_fds::sendto(fd, bytes, count, flags, to, size) })
}

#[doc = "`recv(2)`"]
pub(crate) unsafe fn recv(fd: c_int, buffer: *mut u8, count: size_t, flags: c_int) -> ssize_t {
    let nobody = std::ptr::null_mut();
    // SAFETY: the caller's contract.
    unsafe { recvfrom(fd, buffer, count, flags, nobody, std::ptr::null_mut()) }
}

#[doc = "`recv(2)` of a fortified program."]
pub(crate) unsafe fn recv_chk(
    fd: c_int,
    buffer: *mut u8,
    count: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    if count > room {
        chk_fail();
    }
    // SAFETY: the caller's contract.
    unsafe { recv(fd, buffer, count, flags) }
}

#[doc = "`recvfrom(2)`"]
pub(crate) unsafe fn recvfrom(
    fd: c_int,
    buffer: *mut u8,
    count: size_t,
    flags: c_int,
    from: *mut sockaddr,
    size: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the caller's contract.
    give_size(unsafe { upoll_fds::recvfrom(fd, buffer, count, flags, from, size) })
}

#[doc = "`recvfrom(2)` of a fortified program."]
pub(crate) unsafe fn recvfrom_chk(
    fd: c_int,
    buffer: *mut u8,
    count: size_t,
    room: size_t,
    flags: c_int,
    from: *mut sockaddr,
    size: *mut socklen_t,
) -> ssize_t {
    if count > room {
        chk_fail();
    }
    // SAFETY: the caller's contract.
    unsafe { recvfrom(fd, buffer, count, flags, from, size) }
}

#[doc = "`recvmsg(2)`"]
pub(crate) unsafe fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's contract.
    give_size(unsafe { upoll_fds::recvmsg(fd, message, flags) })
}

#[doc = "`recvmmsg(2)`"]
pub(crate) unsafe fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    limit: *mut libc::timespec,
) -> c_int {
    // SAFETY: the caller's contract.
    give(unsafe { upoll_fds::recvmmsg(fd, messages, count, flags, limit) })
}

/// # Safety
/// As the call.
#[inline(always)]
unsafe fn getsockopt_body(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    size: *mut socklen_t,
) -> c_int {
    if !internal::is_user_level_or_own(fd) {
        pass_on!(
            "getsockopt",
            fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int,
            (fd, level, option, value, size)
        );
    }
    // SAFETY: the caller's contract.
    give(unsafe { upoll_fds::getsockopt(fd, level, option, value, size) })
}

/// # Safety
/// As the call.
#[inline(always)]
unsafe fn setsockopt_body(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    size: socklen_t,
) -> c_int {
    if !internal::is_user_level_or_own(fd) {
        pass_on!(
            "setsockopt",
            fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
            (fd, level, option, value, size)
        );
    }
    // SAFETY: the caller's contract.
    give(unsafe { upoll_fds::setsockopt(fd, level, option, value, size) })
}

/// Demotes the objects of the fds that a message carries. Returns whether the kernel may send the message: a call that
/// sends several ends at one that it refuses.
///
/// # Errors
/// `EBADF`: one of them is an own fd.
///
/// # Safety
/// Memory that `message` leads to is not being written.
unsafe fn demote_rights(message: *const msghdr) -> Result<bool, Errno> {
    /// The largest number of fds in a message (`SCM_MAX_FD`).
    const MOST_FDS: usize = 253;
    if !plain_sets::may_name_any() {
        // It may carry an own fd, but the check would cost a system call.
        return Ok(true);
    }
    // SAFETY: the caller's contract. The kernel's call fails for a message that cannot be read.
    let Ok(copy) = (unsafe { internal::read_memory(message) }) else {
        return Ok(false);
    };
    // The kernel's call fails with `ENOBUFS`, and sums of such lengths wrap.
    if copy.msg_controllen > i32::MAX as usize {
        return Ok(false);
    }
    // The C library's macros would read a header beyond the end of the memory. The walk ends at a
    // malformed message, for which the kernel's call fails.
    let head = size_of::<libc::cmsghdr>();
    let (mut at, mut carried) = (0, 0);
    while copy.msg_controllen.saturating_sub(at) >= head {
        let place = copy.msg_control.wrapping_byte_add(at);
        // SAFETY: as above.
        let Ok(header) = (unsafe { internal::read_memory(place.cast::<libc::cmsghdr>()) }) else {
            return Ok(false);
        };
        let size = header.cmsg_len;
        if size < head || size > copy.msg_controllen - at {
            return Ok(false);
        }
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            let fds = (size - head) / size_of::<c_int>();
            carried += fds;
            if carried > MOST_FDS {
                return Ok(false);
            }
            for index in 0..fds {
                let place = place.wrapping_byte_add(head).cast::<c_int>();
                // SAFETY: as above.
                let Ok(fd) = (unsafe { internal::read_memory(place.wrapping_add(index)) }) else {
                    return Ok(false);
                };
                if own_fds::is_own(fd) {
                    return Err(Errno::BADF);
                }
                demote(fd);
            }
        }
        at += size.next_multiple_of(align_of::<usize>());
    }
    Ok(true)
}

/// Returns whether a message is sent by a user-level socket, or carries an own fd. Otherwise the call is
/// passed on, after the objects that the message carries were demoted.
///
/// # Safety
/// Memory that `message` leads to is not being written.
pub(crate) unsafe fn sends_user_level(fd: c_int, message: *const msghdr) -> bool {
    // SAFETY: the caller's contract.
    internal::is_user_level_or_own(fd) || unsafe { demote_rights(message) }.is_err()
}

/// The same for several messages.
///
/// # Safety
/// As [`sends_user_level`].
pub(crate) unsafe fn sends_user_level_among(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
) -> bool {
    // SAFETY: the caller's contract.
    internal::is_user_level_or_own(fd) || unsafe { demote_rights_of(messages, count) } != Ok(count)
}

/// Demotes the objects of the fds that several messages carry. Returns how many of the messages to send: those
/// before one that carries an own fd.
///
/// # Errors
/// `EBADF`: the first message carries one.
///
/// # Safety
/// As [`sends_user_level`].
unsafe fn demote_rights_of(messages: *mut mmsghdr, count: c_uint) -> Result<c_uint, Errno> {
    if !plain_sets::may_name_any() {
        return Ok(count);
    }
    for at in 0..count.min(libc::UIO_MAXIOV.cast_unsigned()) {
        let message = messages.wrapping_add(at as usize);
        let header = message.wrapping_byte_add(std::mem::offset_of!(mmsghdr, msg_hdr));
        // SAFETY: the caller's contract.
        match unsafe { demote_rights(header.cast()) } {
            Err(errno) if at == 0 => return Err(errno),
            Err(_) => return Ok(at),
            Ok(true) => {}
            Ok(false) => break,
        }
    }
    Ok(count)
}

#[doc = "`sendmsg(2)`"]
pub(crate) unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's contract.
    let demoted = unsafe { demote_rights(message) };
    // SAFETY: as above.
    give_size(demoted.and_then(|_| unsafe { upoll_fds::sendmsg(fd, message, flags) }))
}

#[doc = "`sendmmsg(2)`"]
pub(crate) unsafe fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's contract.
    let count = unsafe { demote_rights_of(messages, count) };
    // SAFETY: as above.
    give(count.and_then(|count| unsafe { upoll_fds::sendmmsg(fd, messages, count, flags) }))
}
