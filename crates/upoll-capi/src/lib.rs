//! libupoll: the functions of `include/upoll.h`, which documents them.
//!
//! Each function is that of [`upoll_fds`] with its name. Errors are returned as in C: -1 and
//! `errno`. Signal masks have no size argument, as in the C library.
//!
//! # Panics
//! A panic in an `extern "C"` function aborts the process, so it never reaches the caller. A panic
//! is a bug of this library in the middle of a change, after which it cannot continue.
//!
//! # Safety
//! All pointers must be valid for the access that the C function of the same name makes. A pointer
//! to memory that is not mapped fails with `EFAULT`.
#![expect(clippy::missing_safety_doc, reason = "one contract for all, above")]

mod object;

pub use crate::object::{ObjectOps, upoll_object_create, upoll_object_wake};

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};

use libc::{
    fd_set, iovec, mmsghdr, msghdr, nfds_t, pid_t, pollfd, rlimit64, sigset_t, size_t, sockaddr,
    socklen_t, ssize_t, timespec, timeval,
};
use upoll::Event;
use upoll_fds::internal::errno::{MASK_SIZE, give, give_size};
use upoll_fds::{EpollCtlCmd, EpollWaitParams};

/// Functions without pointers.
macro_rules! plain {
    ($($name:ident($($argument:ident: $kind:ty),*) = $function:ident;)*) => { $(
        #[doc = concat!("[`upoll_fds::", stringify!($function), "`]")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $kind),*) -> c_int {
            give(upoll_fds::$function($($argument),*))
        }
    )* };
}

/// Functions that take pointers: the call, and the function that converts its result.
macro_rules! with_pointers {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty = $give:ident($call:expr);)*) => { $(
        #[doc = concat!("See `include/upoll.h` and `", stringify!($call), "` in [`upoll_fds`].")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
            // SAFETY: the caller's contract.
            $give(unsafe { $call })
        }
    )* };
}

const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("a version has no zero byte"),
    };

/// Returns the version of this library. See `include/upoll.h`.
#[unsafe(no_mangle)]
pub extern "C" fn upoll_version() -> *const c_char {
    VERSION.as_ptr()
}

plain! {
    upoll_epoll_create(size: c_int) = epoll_create;
    upoll_epoll_create1(flags: c_int) = epoll_create1;
    upoll_epoll_fd(epfd: c_int) = epoll_fd;
    upoll_eventfd(initial: c_uint, flags: c_int) = eventfd;
    upoll_eventfd_write(fd: c_int, value: u64) = eventfd_write;
    upoll_close(fd: c_int) = close;
    upoll_close_range(first: c_uint, last: c_uint, flags: c_int) = close_range;
    upoll_demote(fd: c_int) = demote;
    upoll_dup(fd: c_int) = dup;
    upoll_dup2(fd: c_int, new: c_int) = dup2;
    upoll_dup3(fd: c_int, new: c_int, flags: c_int) = dup3;
    upoll_shutdown(fd: c_int, how: c_int) = shutdown;
}

with_pointers! {
    upoll_epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *const Event) -> c_int
        = give(upoll_fds::epoll_ctl(epfd, op, fd, event));
    upoll_epoll_wait(epfd: c_int, events: *mut Event, room: c_int, timeout: c_int) -> c_int
        = give(upoll_fds::epoll_wait(epfd, events, room, timeout));
    upoll_epoll_pwait(
        epfd: c_int, events: *mut Event, room: c_int, timeout: c_int, mask: *const sigset_t
    ) -> c_int
        = give(upoll_fds::epoll_pwait(epfd, events, room, timeout, mask, MASK_SIZE));
    upoll_epoll_pwait2(
        epfd: c_int, events: *mut Event, room: c_int, timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int
        = give(upoll_fds::epoll_pwait2(epfd, events, room, timeout, mask, MASK_SIZE));
    upoll_epoll_ctl_batch(
        epfd: c_int, flags: c_int, count: c_int, commands: *mut EpollCtlCmd
    ) -> c_int
        = give(upoll_fds::epoll_ctl_batch(epfd, flags, count, commands));
    upoll_epoll_pwait1(
        epfd: c_int, flags: c_int, events: *mut Event, room: c_int,
        params: *const EpollWaitParams
    ) -> c_int
        = give(upoll_fds::epoll_pwait1(epfd, flags, events, room, params));
    upoll_eventfd_read(fd: c_int, value: *mut u64) -> c_int
        = give(upoll_fds::eventfd_read(fd, value));
    upoll_pipe(fds: *mut [c_int; 2]) -> c_int
        = give(upoll_fds::pipe(fds));
    upoll_pipe2(fds: *mut [c_int; 2], flags: c_int) -> c_int
        = give(upoll_fds::pipe2(fds, flags));
    upoll_socketpair(domain: c_int, kind: c_int, protocol: c_int, fds: *mut [c_int; 2]) -> c_int
        = give(upoll_fds::socketpair(domain, kind, protocol, fds));
    upoll_read(fd: c_int, buffer: *mut u8, count: size_t) -> ssize_t
        = give_size(upoll_fds::read(fd, buffer, count));
    upoll_write(fd: c_int, buffer: *const u8, count: size_t) -> ssize_t
        = give_size(upoll_fds::write(fd, buffer, count));
    upoll_readv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t
        = give_size(upoll_fds::readv(fd, list, count));
    upoll_writev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t
        = give_size(upoll_fds::writev(fd, list, count));
    upoll_send(fd: c_int, bytes: *const u8, count: size_t, flags: c_int) -> ssize_t
        = give_size(upoll_fds::send(fd, bytes, count, flags));
    upoll_sendto(
        fd: c_int, bytes: *const u8, count: size_t, flags: c_int, to: *const sockaddr,
        size: socklen_t
    ) -> ssize_t
        = give_size(upoll_fds::sendto(fd, bytes, count, flags, to, size));
    upoll_sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t
        = give_size(upoll_fds::sendmsg(fd, message, flags));
    upoll_recv(fd: c_int, buffer: *mut u8, count: size_t, flags: c_int) -> ssize_t
        = give_size(upoll_fds::recv(fd, buffer, count, flags));
    upoll_recvfrom(
        fd: c_int, buffer: *mut u8, count: size_t, flags: c_int, from: *mut sockaddr,
        size: *mut socklen_t
    ) -> ssize_t
        = give_size(upoll_fds::recvfrom(fd, buffer, count, flags, from, size));
    upoll_recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t
        = give_size(upoll_fds::recvmsg(fd, message, flags));
    upoll_sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int
        = give(upoll_fds::sendmmsg(fd, messages, count, flags));
    upoll_recvmmsg(
        fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, limit: *mut timespec
    ) -> c_int
        = give(upoll_fds::recvmmsg(fd, messages, count, flags, limit));
    upoll_getsockopt(
        fd: c_int, level: c_int, option: c_int, value: *mut c_void, size: *mut socklen_t
    ) -> c_int
        = give(upoll_fds::getsockopt(fd, level, option, value, size));
    upoll_setsockopt(
        fd: c_int, level: c_int, option: c_int, value: *const c_void, size: socklen_t
    ) -> c_int
        = give(upoll_fds::setsockopt(fd, level, option, value, size));
    upoll_poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int
        = give(upoll_fds::poll(fds, length(count), timeout));
    upoll_ppoll(
        fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int
        = give(upoll_fds::ppoll(fds, length(count), timeout, mask, MASK_SIZE));
    upoll_setrlimit(resource: c_int, new: *const rlimit64) -> c_int
        = give(upoll_fds::prlimit(0, resource, new, std::ptr::null_mut()));
    upoll_prlimit(
        process: pid_t, resource: c_int, new: *const rlimit64, old: *mut rlimit64
    ) -> c_int
        = give(upoll_fds::prlimit(process, resource, new, old));
    upoll_select(
        n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *mut timeval
    ) -> c_int
        = give(upoll_fds::select(n, [read, write, except], timeout));
    upoll_pselect(
        n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t
    ) -> c_int
        = give(upoll_fds::pselect(n, [read, write, except], timeout, mask, MASK_SIZE));
    upoll_fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int
        = give(upoll_fds::fcntl(fd, command, word(argument)));
    upoll_ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int
        = give(upoll_fds::ioctl(fd, low(request), word(argument)));
}

fn length(count: nfds_t) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// Converts the variadic argument of `fcntl` and `ioctl`. On every ABI of Linux an integer or a
/// pointer is passed there like a named argument. Commands that take an int ignore the upper half
/// of the register.
fn word(argument: c_ulong) -> usize {
    usize::try_from(argument).unwrap_or(usize::MAX)
}

/// Takes the lower 32 bits of a request, which are all that the kernel uses.
#[expect(clippy::cast_possible_truncation, reason = "that is what it is for")]
fn low(request: c_ulong) -> u32 {
    request as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_the_version_of_the_package() {
        let header = include_str!("../../../include/upoll.h");
        let parts = [
            env!("CARGO_PKG_VERSION_MAJOR"),
            env!("CARGO_PKG_VERSION_MINOR"),
            env!("CARGO_PKG_VERSION_PATCH"),
        ];
        let number = parts
            .iter()
            .map(|part| format!("{:02x}", part.parse::<u8>().expect("at most 255")));
        for (name, value) in [
            ("_MAJOR", parts[0].to_owned()),
            ("_MINOR", parts[1].to_owned()),
            ("_PATCH", parts[2].to_owned()),
            ("_NUMBER", format!("0x{}", number.collect::<String>())),
            ("", format!("\"{}\"", env!("CARGO_PKG_VERSION"))),
        ] {
            let line = format!("#define UPOLL_VERSION{name} {value}\n");
            assert!(header.contains(&line), "{line}");
        }
        // SAFETY: the function returns a C string that is never freed.
        let version = unsafe { CStr::from_ptr(upoll_version()) };
        assert_eq!(version.to_str(), Ok(env!("CARGO_PKG_VERSION")));
    }
}
