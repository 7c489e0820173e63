//! `syscall(2)`: system calls that a program makes by their number.

use std::ffi::{c_int, c_long, c_uint};

use upoll::Errno;
use upoll::internal::own_fds;
use upoll_fds::internal::{self, plain_sets};

use crate::cancel::deferred;
use crate::kernel::by_number;
use crate::settings;
use crate::stats::Call;
use crate::{demoting_calls, files, handlers, polls, process, sets, sockets, stats, top};
use upoll_fds::internal::errno::{give_word, set_errno};

/// `syscall(2)`: selects the calls that act on user-level objects by their number.
///
/// It is variadic in C. An argument that was not passed has an arbitrary value, and the call does
/// not use it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    deferred!(interruptible syscall_body(number, a, b, c, d, e, f))
}

/// # Safety
/// As the call.
#[inline(never)]
unsafe fn syscall_body(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let arguments = [a, b, c, d, e, f];
    // SAFETY: the caller's contract is that of the call it names.
    unsafe {
        match number {
            libc::SYS_io_uring_setup if settings::is_any_kind_served() => {
                set_errno(Errno::NOSYS);
                -1
            }
            libc::SYS_exit_group => {
                stats::report();
                top::end();
                give_word(by_number(number, arguments))
            }
            libc::SYS_setrlimit | libc::SYS_prlimit64 => {
                let result = give_word(by_number(number, arguments));
                internal::open_limit_changed();
                result
            }
            _ if is_wait(number) => wait(number, arguments),
            _ if is_copy_to_fd(number) => {
                let in_kernel = || give_word(by_number(number, arguments));
                files::duplicate_to(a.int(), b.int(), in_kernel)
                    .or_else(|| on_objects(number, arguments))
                    .unwrap_or_else(in_kernel)
            }
            _ if !concerns_objects(number, arguments) => give_word(by_number(number, arguments)),
            _ => match on_objects(number, arguments) {
                Some(result) => result,
                None => give_word(by_number(number, arguments)),
            },
        }
    }
}

fn is_wait(number: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_epoll_wait {
        return true;
    }
    matches!(number, libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2)
}

fn is_copy_to_fd(number: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_dup2 {
        return true;
    }
    number == libc::SYS_dup3
}

/// A wait in a set, like the named functions in `cancel.rs`.
///
/// # Safety
/// That of the call.
unsafe fn wait(number: c_long, arguments: [usize; 6]) -> c_long {
    let epfd = arguments[0].int();
    let waits = plain_sets::begin_wait(epfd);
    // SAFETY: the caller's contract.
    unsafe {
        if waits.is_none()
            && stats::is_user_level_or_counted(Call::EpollWait, epfd)
            && let Some(result) = on_objects(number, arguments)
        {
            return result;
        }
        let result = give_word(by_number(number, arguments));
        if let Some(wait) = waits {
            stats::count_as(Call::EpollWait, false);
            wait.end();
        }
        result
    }
}

/// Arguments of a system call are machine words; the values are narrower.
trait Word {
    fn int(self) -> c_int;
    fn uint(self) -> c_uint;
    fn ptr<T>(self) -> *mut T;
}

impl Word for usize {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the kernel looks at 32 bits"
    )]
    fn int(self) -> c_int {
        self as c_int
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the kernel looks at 32 bits"
    )]
    fn uint(self) -> c_uint {
        self as c_uint
    }

    fn ptr<T>(self) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self)
    }
}

/// Returns whether a call names a user-level object, or may make one or share one. All others are passed on
/// unchanged.
///
/// # Safety
/// That of the call.
unsafe fn concerns_objects(number: c_long, [a, b, c, d, _, _]: [usize; 6]) -> bool {
    let is_user_level = |fd: usize| internal::is_user_level_or_own(fd.int());
    match number {
        libc::SYS_close => {
            plain_sets::close(a.int());
            is_user_level_or_counted(Call::Close, a)
        }
        libc::SYS_read | libc::SYS_readv => is_user_level_or_counted(Call::Read, a),
        libc::SYS_write | libc::SYS_writev => is_user_level_or_counted(Call::Write, a),
        libc::SYS_dup => {
            plain_sets::forget(a.int());
            is_user_level_or_counted(Call::Dup, a)
        }
        libc::SYS_ioctl if files::may_name_eventfds(b as _) || files::adds_an_fd(b as _) => true,
        libc::SYS_fcntl => {
            if matches!(b.int(), libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
                plain_sets::forget(a.int());
            }
            is_user_level_or_counted(Call::Control, a)
        }
        libc::SYS_ioctl => is_user_level_or_counted(Call::Control, a),
        libc::SYS_epoll_ctl => {
            let is_user_level = sets::changes_user_level(a.int(), b.int(), c.int());
            if !is_user_level {
                stats::count_as(Call::EpollCtl, false);
            }
            is_user_level
        }
        // SAFETY: the caller's contract.
        libc::SYS_ppoll => unsafe { polls::names_user_level(a.ptr(), b as _) },
        libc::SYS_pselect6 => {
            // SAFETY: as above.
            unsafe { polls::selects_user_level(a.int(), [b.ptr(), c.ptr(), d.ptr()]) }
        }
        libc::SYS_splice => is_user_level(a) || is_user_level(c),
        libc::SYS_tee | libc::SYS_sendfile => is_user_level(a) || is_user_level(b),
        // SAFETY: as above.
        libc::SYS_sendmsg => unsafe { sockets::sends_user_level(a.int(), b.ptr()) },
        libc::SYS_sendmmsg => {
            // SAFETY: as above.
            unsafe { sockets::sends_user_level_among(a.int(), b.ptr(), c.uint()) }
        }
        libc::SYS_vmsplice
        | libc::SYS_preadv2
        | libc::SYS_pwritev2
        | libc::SYS_shutdown
        | libc::SYS_bind
        | libc::SYS_sendto
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_recvmmsg
        | libc::SYS_getsockopt
        | libc::SYS_setsockopt => is_user_level(a),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        libc::SYS_poll => unsafe { polls::names_user_level(a.ptr(), b as _) },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_select => {
            // SAFETY: as above.
            unsafe { polls::selects_user_level(a.int(), [b.ptr(), c.ptr(), d.ptr()]) }
        }
        _ => true,
    }
}

fn is_user_level_or_counted(call: Call, fd: usize) -> bool {
    stats::is_user_level_or_counted(call, fd.int())
}

/// # Safety
/// That of the call.
unsafe fn on_objects(number: c_long, arguments: [usize; 6]) -> Option<c_long> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the caller's contract.
    Some(unsafe {
        match number {
            libc::SYS_close => c_long::from(files::close(a.int())),
            libc::SYS_close_range => c_long::from(files::close_range(a.uint(), b.uint(), c.int())),
            libc::SYS_unshare => c_long::from(files::unshare(a.int())),
            libc::SYS_read => files::read(a.int(), b.ptr(), c) as c_long,
            libc::SYS_write => files::write(a.int(), b.ptr(), c) as c_long,
            libc::SYS_readv => files::readv(a.int(), b.ptr(), c.int()) as c_long,
            libc::SYS_writev => files::writev(a.int(), b.ptr(), c.int()) as c_long,
            libc::SYS_dup => c_long::from(files::dup(a.int())),
            libc::SYS_dup3 => c_long::from(files::dup3(a.int(), b.int(), c.int())),
            libc::SYS_fcntl => c_long::from(files::fcntl(a.int(), b.int(), c)),
            libc::SYS_ioctl => c_long::from(files::ioctl(a.int(), b as _, c)),
            libc::SYS_eventfd2 => c_long::from(sets::eventfd(a.uint(), b.int())),
            libc::SYS_epoll_create1 => c_long::from(sets::epoll_create1(a.int())),
            libc::SYS_epoll_ctl => {
                c_long::from(sets::epoll_ctl(a.int(), b.int(), c.int(), d.ptr()))
            }
            libc::SYS_epoll_pwait => {
                c_long::from(sets::pwait(a.int(), b.ptr(), c.int(), d.int(), e.ptr(), f))
            }
            libc::SYS_epoll_pwait2 => {
                c_long::from(sets::pwait2(a.int(), b.ptr(), c.int(), d.ptr(), e.ptr(), f))
            }
            libc::SYS_ppoll => c_long::from(polls::raw_ppoll(a.ptr(), b, c.ptr(), d.ptr(), e)),
            libc::SYS_pselect6 => c_long::from(polls::raw_pselect(
                a.int(),
                [b.ptr(), c.ptr(), d.ptr()],
                e.ptr(),
                f.ptr(),
            )),
            libc::SYS_splice => {
                demoting_calls::splice(a.int(), b.ptr(), c.int(), d.ptr(), e, f.uint()) as c_long
            }
            libc::SYS_tee => demoting_calls::tee(a.int(), b.int(), c, d.uint()) as c_long,
            libc::SYS_vmsplice => demoting_calls::vmsplice(a.int(), b.ptr(), c, d.uint()) as c_long,
            libc::SYS_sendfile => demoting_calls::sendfile(a.int(), b.int(), c.ptr(), d) as c_long,
            libc::SYS_preadv2 | libc::SYS_pwritev2 if own_fds::is_own(a.int()) => {
                set_errno(Errno::BADF);
                -1
            }
            libc::SYS_preadv2 | libc::SYS_pwritev2 => {
                files::demote(a.int());
                return None;
            }
            libc::SYS_io_submit => {
                demoting_calls::before_submission(b.cast_signed() as c_long, c.ptr());
                return None;
            }
            libc::SYS_pidfd_getfd => {
                c_long::from(demoting_calls::pidfd_getfd(a.int(), b.int(), c.uint()))
            }
            libc::SYS_rt_sigaction => {
                c_long::from(handlers::raw_sigaction(a.int(), b.ptr(), c.ptr(), d))
            }
            libc::SYS_pipe2 => c_long::from(files::pipe2(a.ptr(), b.int())),
            libc::SYS_socketpair => {
                c_long::from(sockets::socketpair(a.int(), b.int(), c.int(), d.ptr()))
            }
            libc::SYS_shutdown => c_long::from(sockets::shutdown(a.int(), b.int())),
            libc::SYS_bind => c_long::from(sockets::bind(a.int(), b.ptr(), c.uint())),
            libc::SYS_sendto => {
                sockets::sendto(a.int(), b.ptr(), c, d.int(), e.ptr(), f.uint()) as c_long
            }
            libc::SYS_recvfrom => {
                sockets::recvfrom(a.int(), b.ptr(), c, d.int(), e.ptr(), f.ptr()) as c_long
            }
            libc::SYS_sendmsg => sockets::sendmsg(a.int(), b.ptr(), c.int()) as c_long,
            libc::SYS_recvmsg => sockets::recvmsg(a.int(), b.ptr(), c.int()) as c_long,
            libc::SYS_sendmmsg => {
                c_long::from(sockets::sendmmsg(a.int(), b.ptr(), c.uint(), d.int()))
            }
            libc::SYS_recvmmsg => c_long::from(sockets::recvmmsg(
                a.int(),
                b.ptr(),
                c.uint(),
                d.int(),
                e.ptr(),
            )),
            libc::SYS_getsockopt => c_long::from(sockets::getsockopt(
                a.int(),
                b.int(),
                c.int(),
                d.ptr(),
                e.ptr(),
            )),
            libc::SYS_setsockopt => c_long::from(sockets::setsockopt(
                a.int(),
                b.int(),
                c.int(),
                d.ptr(),
                e.uint(),
            )),
            libc::SYS_clone => give_word(process::raw_clone(a, || by_number(number, arguments))),
            libc::SYS_clone3 => {
                // The flags come first in the structure. The kernel refuses a structure that cannot
                // be read.
                let flags = internal::read_memory(a.ptr::<usize>()).unwrap_or(0);
                give_word(process::raw_clone(flags, || by_number(number, arguments)))
            }
            libc::SYS_execve | libc::SYS_execveat => {
                process::demote_inherited();
                return None;
            }
            _ => return older(number, arguments),
        }
    })
}

/// Calls that newer architectures do not have.
///
/// # Safety
/// That of the call.
#[cfg(target_arch = "x86_64")]
unsafe fn older(number: c_long, [a, b, c, d, e, _]: [usize; 6]) -> Option<c_long> {
    // SAFETY: the caller's contract.
    Some(unsafe {
        match number {
            libc::SYS_dup2 => c_long::from(files::dup2(a.int(), b.int())),
            libc::SYS_eventfd if settings::is_user_level(Call::EventFd) => {
                c_long::from(sets::eventfd(a.uint(), 0))
            }
            libc::SYS_epoll_create => c_long::from(sets::epoll_create(a.int())),
            libc::SYS_epoll_wait => {
                c_long::from(sets::epoll_wait(a.int(), b.ptr(), c.int(), d.int()))
            }
            libc::SYS_poll => c_long::from(polls::poll(a.ptr(), b as _, c.int())),
            libc::SYS_select => {
                let sets = [b.ptr(), c.ptr(), d.ptr()];
                c_long::from(polls::raw_select(a.int(), sets, e.ptr()))
            }
            libc::SYS_pipe if settings::is_user_level(Call::Pipe) => {
                c_long::from(files::pipe(a.ptr()))
            }
            // A child of `vfork` would return from here before its parent does, on the same stack.
            libc::SYS_fork | libc::SYS_vfork => {
                give_word(process::raw_clone(0, || by_number(libc::SYS_fork, [0; 6])))
            }
            _ => return None,
        }
    })
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn older(_: c_long, _: [usize; 6]) -> Option<c_long> {
    None
}
