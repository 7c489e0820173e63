//! The names of the C library that this library exports.
//!
//! Each function looks up its fds in the table of `fds`. Unless one of them is a listening socket, or a set that
//! holds one, the body ends, and `exports` calls the C library's function with the same arguments.

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::ptr::null;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, sockaddr, socklen_t, timespec, timeval};

use crate::fds::{self, LISTENER, ORDINARY, UNKNOWN};
use crate::next::{CLibrary, exports};
use crate::polls::{self, Select};
use crate::raw::{self, kernel};
use crate::sets;
use crate::settings;
use crate::shared;
use crate::wait::{self, from_millis, from_timespec, from_timeval};

exports! {
    fn epoll_create(size: c_int) -> c_int {} then sets::created;

    fn epoll_create1(flags: c_int) -> c_int {} then sets::created;

    fn epoll_ctl(epfd: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        if is_about_listener(operation, fd) {
            // SAFETY: the caller's contract.
            return unsafe { sets::control(epfd, operation, fd, event) };
        }
    }

    fn epoll_wait(epfd: c_int, events: *mut epoll_event, capacity: c_int, timeout: c_int) -> c_int {
        if let Some(set) = sets::find(epfd) {
            // SAFETY: the caller's contract.
            return unsafe { wait::wait(set, epfd, events, capacity, from_millis(timeout), null()) };
        }
    }

    fn epoll_pwait(
        epfd: c_int, events: *mut epoll_event, capacity: c_int, timeout: c_int, mask: *const sigset_t
    ) -> c_int {
        if let Some(set) = sets::find(epfd) {
            // SAFETY: the caller's contract.
            return unsafe { wait::wait(set, epfd, events, capacity, from_millis(timeout), mask) };
        }
    }

    fn epoll_pwait2(
        epfd: c_int, events: *mut epoll_event, capacity: c_int, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int {
        if let Some(set) = sets::find(epfd)
            // SAFETY: the caller's contract; the C library reads the time, too.
            && let Some(limit) = from_timespec(unsafe { timeout.as_ref() })
        {
            // SAFETY: the caller's contract.
            return unsafe { wait::wait(set, epfd, events, capacity, limit, mask) };
        }
    }

    fn poll(list: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        if timeout != 0 && fds::has_listener() {
            // SAFETY: the caller's contract.
            return unsafe { polls::poll(list, count, from_millis(timeout), null()) };
        }
    }

    fn ppoll(list: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        if fds::has_listener()
            // SAFETY: the caller's contract; the C library reads the time, too.
            && let Some(limit @ 1..) = from_timespec(unsafe { timeout.as_ref() })
        {
            // SAFETY: the caller's contract.
            return unsafe { polls::poll(list, count, limit, mask) };
        }
    }

    // `poll` of a program that was compiled with `_FORTIFY_SOURCE`.
    fn __poll_chk(list: *mut pollfd, count: nfds_t, timeout: c_int, size: usize) -> c_int {
        if size / size_of::<pollfd>() >= count as usize {
            // SAFETY: the caller's contract.
            return unsafe { poll(list, count, timeout) };
        }
    }

    fn __ppoll_chk(
        list: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, size: usize
    ) -> c_int {
        if size / size_of::<pollfd>() >= count as usize {
            // SAFETY: the caller's contract.
            return unsafe { ppoll(list, count, timeout, mask) };
        }
    }

    fn select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval
    ) -> c_int {
        if fds::has_listener() && Select::is_special(read)
            // SAFETY: the caller's contract; the C library reads the time, too.
            && let Some(limit @ 1..) = from_timeval(unsafe { timeout.as_ref() })
        {
            // SAFETY: the caller's contract; the C library stores the time that is left, too.
            return unsafe { polls::select(count, [read, write, except], limit, null(), timeout.as_mut()) };
        }
    }

    fn pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int {
        if fds::has_listener() && Select::is_special(read)
            // SAFETY: the caller's contract; the C library reads the time, too.
            && let Some(limit @ 1..) = from_timespec(unsafe { timeout.as_ref() })
        {
            // SAFETY: the caller's contract.
            return unsafe { polls::select(count, [read, write, except], limit, mask, None) };
        }
    }

    fn listen(fd: c_int, backlog: c_int) -> c_int {} then |result| if result == 0 {
        see_listener(fd);
    };

    fn bind(fd: c_int, address: *const sockaddr, size: socklen_t) -> c_int {} then |result| if result == 0
        && settings::with_datagrams()
        && fds::kind(fd) <= ORDINARY
    {
        fds::set_kind(fd, UNKNOWN);
        fds::is_listener(fd);
    };

    fn accept(fd: c_int, address: *mut sockaddr, size: *mut socklen_t) -> c_int {}
    then |connection| accepted(fd, connection);

    fn accept4(fd: c_int, address: *mut sockaddr, size: *mut socklen_t, flags: c_int) -> c_int {}
    then |connection| accepted(fd, connection);

    fn close(fd: c_int) -> c_int {
        forget(fd);
    }

    fn dup2(fd: c_int, new: c_int) -> c_int {
        if fds::kind(new) > ORDINARY {
            sets::replacing(fd, new);
        }
    }

    fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int {
        if fds::kind(new) > ORDINARY && flags & !libc::O_CLOEXEC == 0 {
            sets::replacing(fd, new);
        }
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        if fds::has_listener() {
            if flags == 0 {
                sets::closing_range(first, last);
            } else if flags & libc::CLOSE_RANGE_UNSHARE as c_int != 0 {
                sets::unsharing();
            }
        }
    }

    // libuv closes with it. It is variadic in C. An argument that is not given has an arbitrary value, which the kernel does
    // not look at.
    fn syscall(
        number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize
    ) -> c_long {
        #[expect(clippy::cast_possible_truncation, reason = "the kernel looks at 32 bits")]
        let [first, second, third] = [a, b, c].map(|argument| argument as c_int);
        match number {
            libc::SYS_close => forget(first),
            libc::SYS_epoll_ctl if is_about_listener(second, third) => {
                let event = std::ptr::with_exposed_provenance_mut(d);
                // SAFETY: the caller's contract.
                return unsafe { sets::control(first, second, third, event) }.into();
            }
            libc::SYS_io_uring_setup => {
                // SAFETY: the caller's contract.
                let result = unsafe { CLibrary::syscall(number, a, b, c, d, e, f) };
                if result >= 0 {
                    // SAFETY: the kernel has just written a `struct io_uring_params` there.
                    unsafe { hide_feature(std::ptr::with_exposed_provenance_mut(b)) };
                }
                return result;
            }
            _ => {}
        }
    }
}

#[inline]
fn is_about_listener(operation: c_int, fd: c_int) -> bool {
    match fds::kind(fd) {
        ORDINARY => false,
        UNKNOWN => operation == libc::EPOLL_CTL_ADD && fds::is_listener(fd),
        _ => true,
    }
}

/// Forgets an fd that is about to be closed, or has another file than the one that the library knows.
#[inline]
fn forget(fd: c_int) {
    if fds::kind(fd) > ORDINARY {
        sets::closing(fd);
    }
}

/// Takes note of a listening socket. Another thread may just be closing a file of the library that had the fd.
fn see_listener(fd: c_int) {
    if fds::kind(fd) != LISTENER {
        forget(fd);
        fds::set_listener(fd);
    }
}

/// Takes note of a connection, or of the lack of one.
fn accepted(fd: c_int, connection: c_int) {
    if connection >= 0 {
        forget(connection);
        fds::set_kind(connection, ORDINARY);
        see_listener(fd);
        shared::count_accept(true);
    } else if raw::errno() == libc::EAGAIN {
        see_listener(fd);
        shared::count_accept(false);
    }
    sets::answered(fd);
}

/// `closefrom` of the C library.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn closefrom(first: c_int) {
    if fds::has_listener() {
        sets::closing_range(u32::try_from(first).unwrap_or(0), u32::MAX);
    }
    type Function = unsafe extern "C-unwind" fn(c_int);
    // SAFETY: the name is a C string.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"closefrom".as_ptr()) };
    // SAFETY: this is null, or the C library's function of that name, which has this type.
    if let Some(function) = unsafe { std::mem::transmute::<*mut c_void, Option<Function>>(next) } {
        // SAFETY: the program asked for it.
        return unsafe { function(first) };
    }
    // A C library before 2.34 has none. A program that looks for it finds that of this library.
    let first = first.max(0);
    if kernel!(SYS_close_range, first, c_uint::MAX, 0) >= 0 {
        return;
    }
    // Before Linux 5.9. The limit may be so high that this takes minutes.
    // SAFETY: no pointers are involved.
    let end = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) };
    for fd in first..c_int::try_from(end).unwrap_or(c_int::MAX) {
        kernel!(SYS_close, fd);
    }
}

/// Clears `IORING_FEAT_RSRC_TAGS` in the answer of `io_uring_setup`.
///
/// libuv changes its sets through a ring, which the library cannot see. It does so only with this feature, which it
/// takes for the sign of a new kernel, and otherwise calls `epoll_ctl`. For other programs the ring is as it was.
///
/// # Safety
/// `parameters` must be a live `struct io_uring_params`.
unsafe fn hide_feature(parameters: *mut u32) {
    const FEATURES: usize = 5;
    const RESOURCE_TAGS: u32 = 1 << 10;
    // SAFETY: the features are the sixth number of the structure.
    unsafe {
        let features = parameters.add(FEATURES);
        features.write_unaligned(features.read_unaligned() & !RESOURCE_TAGS);
    }
}
