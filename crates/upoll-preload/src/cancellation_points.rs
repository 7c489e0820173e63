//! The names that are cancellation points, over [`cancel`](crate::cancel).

use std::ffi::{c_int, c_long, c_uint};

use libc::{
    fd_set, iovec, mmsghdr, msghdr, nfds_t, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t,
    timespec, timeval,
};
use upoll::Event;
use upoll_fds::internal::errno::give;
use upoll_fds::internal::{self, plain_sets};

use crate::cancel::{
    cancellable_before, deferred, interruptible, is_any_asynchronous, with_deferred,
};
use crate::next::{Next, call_at, listed, name_of, pass_on};
use crate::stats::{self, Call, is_user_level_or_counted};
use crate::{demoting_calls, files, kernel, polls, sets, sockets};

macro_rules! cancellation_points {
    ($($symbol:literal $name:ident($($argument:ident: $kind:ty),*) -> $result:ty
        = $call:path, if $is_user_level:expr;)*) => { $(
        #[doc = concat!("`", $symbol, "`, a cancellation point")]
        #[unsafe(export_name = $symbol)]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> $result {
            // Apart from the exported function, which passes calls on with nothing on the stack.
            #[inline(never)]
            unsafe fn serve($($argument: $kind),*) -> $result {
                // SAFETY: the caller's contract.
                interruptible(|| unsafe { $call($($argument),*) })
            }
            #[inline(always)]
            unsafe fn body($($argument: $kind),*) -> $result {
                #[allow(unused_unsafe, reason = "some of them read what pointers lead to")]
                // SAFETY: the caller's contract.
                if !unsafe { $is_user_level } {
                    pass_on!($symbol, fn($($kind),*) -> $result, ($($argument),*));
                }
                // SAFETY: the caller's contract.
                unsafe { serve($($argument),*) }
            }
            #[cold]
            #[inline(never)]
            unsafe fn with_deferred_cancellation($($argument: $kind),*) -> $result {
                // SAFETY: the caller's contract.
                with_deferred(move || unsafe { body($($argument),*) })
            }
            if is_any_asynchronous() {
                // SAFETY: the caller's contract.
                return unsafe { with_deferred_cancellation($($argument),*) };
            }
            // SAFETY: the caller's contract.
            unsafe { body($($argument),*) }
        }
    )* };
}

/// Names of `close(2)`. However it ends the fd is closed, and may be another file's.
macro_rules! closes {
    ($($symbol:literal $name:ident;)*) => { $(
        #[doc = concat!("`", $symbol, "`, a cancellation point")]
        #[unsafe(export_name = $symbol)]
        pub extern "C-unwind" fn $name(fd: c_int) -> c_int {
            #[inline(always)]
            fn body(fd: c_int) -> c_int {
                plain_sets::close(fd);
                if !is_user_level_or_counted(Call::Close, fd) {
                    pass_on!($symbol, fn(c_int) -> c_int, (fd));
                }
                cancellable_before(|| files::close(fd))
            }
            deferred!(body(fd))
        }
    )* };
}

closes! {
    "close" close;
    "__close" __close;
}

/// Names of `fcntl(2)`, a cancellation point where it waits for a lock.
macro_rules! controls {
    ($($symbol:literal $name:ident;)*) => { $(
        #[doc = concat!("`", $symbol, "`")]
        #[unsafe(export_name = $symbol)]
        pub unsafe extern "C-unwind" fn $name(fd: c_int, command: c_int, argument: usize) -> c_int {
            #[inline(always)]
            unsafe fn body(fd: c_int, command: c_int, argument: usize) -> c_int {
                let copy = files::begin_copy_by(fd, command);
                if !is_user_level_or_counted(Call::Control, fd) {
                    return files::copied(copy, || {
                        pass_on!(
                            $symbol, fn(c_int, c_int, usize) -> c_int, (fd, command, argument)
                        );
                        give(kernel::call!(SYS_fcntl, fd, command, argument))
                    });
                }
                // SAFETY: the caller's contract.
                let call = || unsafe { files::fcntl(fd, command, argument) };
                match command {
                    libc::F_SETLKW | libc::F_OFD_SETLKW => interruptible(call),
                    _ => call(),
                }
            }
            deferred!(body(fd, command, argument))
        }
    )* };
}

controls! {
    "fcntl" fcntl;
    "fcntl64" fcntl64;
    "__fcntl" __fcntl;
}

/// Waits in sets. A wait in a plain set is passed on, too, and the set is not taken over meanwhile.
macro_rules! set_waits {
    ($($symbol:literal $name:ident(
        $epfd:ident: c_int, $($argument:ident: $kind:ty),*
    ) = $call:path;)*) => { $(
        #[doc = concat!("`", $symbol, "`, a cancellation point")]
        #[unsafe(export_name = $symbol)]
        pub unsafe extern "C-unwind" fn $name($epfd: c_int, $($argument: $kind),*) -> c_int {
            static NEXT: Next = Next::new(name_of(concat!($symbol, "\0")));
            listed!(NEXT);

            /// Any wait.
            #[inline(never)]
            unsafe fn wait($epfd: c_int, $($argument: $kind),*) -> c_int {
                let begun = plain_sets::begin_wait($epfd);
                if begun.is_none() && is_user_level_or_counted(Call::EpollWait, $epfd) {
                    // SAFETY: the caller's contract.
                    return interruptible(|| unsafe { $call($epfd, $($argument),*) });
                }
                let by_the_kernel = || {
                    pass_on!(by NEXT, fn(c_int, $($kind),*) -> c_int, ($epfd, $($argument),*));
                    // SAFETY: the caller's contract.
                    interruptible(|| unsafe { $call($epfd, $($argument),*) })
                };
                match begun {
                    Some(begun) => {
                        stats::count_as(Call::EpollWait, false);
                        let found = by_the_kernel();
                        begun.end();
                        found
                    }
                    None => by_the_kernel(),
                }
            }

            #[inline(always)]
            unsafe fn body($epfd: c_int, $($argument: $kind),*) -> c_int {
                // A thread that waits in its plain set once more: as above, but with little on the stack.
                let next = NEXT.known();
                if !next.is_null()
                    && !stats::is_on()
                    && let Some(begun) = plain_sets::begin_wait_again($epfd)
                {
                    let found = call_at!(
                        next, fn(c_int, $($kind),*) -> c_int, ($epfd, $($argument),*)
                    );
                    begun.end();
                    return found;
                }
                // SAFETY: the caller's contract.
                unsafe { wait($epfd, $($argument),*) }
            }
            deferred!(body($epfd, $($argument),*))
        }
    )* };
}

set_waits! {
    "epoll_wait" epoll_wait(epfd: c_int, events: *mut Event, room: c_int, timeout: c_int)
        = sets::epoll_wait;
    "epoll_pwait" epoll_pwait(
        epfd: c_int, events: *mut Event, room: c_int, timeout: c_int, mask: *const sigset_t
    ) = sets::epoll_pwait;
    "epoll_pwait2" epoll_pwait2(
        epfd: c_int, events: *mut Event, room: c_int, timeout: *const timespec,
        mask: *const sigset_t
    ) = sets::epoll_pwait2;
}

cancellation_points! {
    "send" send(fd: c_int, bytes: *const u8, count: size_t, flags: c_int) -> ssize_t
        = sockets::send,
        if internal::is_user_level_or_own(fd);
    "__send" __send(fd: c_int, bytes: *const u8, count: size_t, flags: c_int) -> ssize_t
        = sockets::send,
        if internal::is_user_level_or_own(fd);
    "sendto" sendto(
        fd: c_int, bytes: *const u8, count: size_t, flags: c_int, to: *const sockaddr,
        size: socklen_t
    ) -> ssize_t = sockets::sendto,
        if internal::is_user_level_or_own(fd);
    "sendmsg" sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t
        = sockets::sendmsg,
        if sockets::sends_user_level(fd, message);
    "sendmmsg" sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int
        = sockets::sendmmsg,
        if sockets::sends_user_level_among(fd, messages, count);
    "recv" recv(fd: c_int, buffer: *mut u8, count: size_t, flags: c_int) -> ssize_t
        = sockets::recv,
        if internal::is_user_level_or_own(fd);
    "__recv_chk" __recv_chk(
        fd: c_int, buffer: *mut u8, count: size_t, room: size_t, flags: c_int
    ) -> ssize_t = sockets::recv_chk,
        if internal::is_user_level_or_own(fd);
    "recvfrom" recvfrom(
        fd: c_int, buffer: *mut u8, count: size_t, flags: c_int, from: *mut sockaddr,
        size: *mut socklen_t
    ) -> ssize_t = sockets::recvfrom,
        if internal::is_user_level_or_own(fd);
    "__recvfrom_chk" __recvfrom_chk(
        fd: c_int, buffer: *mut u8, count: size_t, room: size_t, flags: c_int,
        from: *mut sockaddr, size: *mut socklen_t
    ) -> ssize_t = sockets::recvfrom_chk,
        if internal::is_user_level_or_own(fd);
    "recvmsg" recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t
        = sockets::recvmsg,
        if internal::is_user_level_or_own(fd);
    "recvmmsg" recvmmsg(
        fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, limit: *mut timespec
    ) -> c_int = sockets::recvmmsg,
        if internal::is_user_level_or_own(fd);
    "splice" splice(
        from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, count: size_t, flags: c_uint
    ) -> ssize_t = demoting_calls::splice,
        if internal::is_user_level_or_own(from) || internal::is_user_level_or_own(to);
    "tee" tee(from: c_int, to: c_int, count: size_t, flags: c_uint) -> ssize_t = demoting_calls::tee,
        if internal::is_user_level_or_own(from) || internal::is_user_level_or_own(to);
    "vmsplice" vmsplice(fd: c_int, list: *const iovec, count: size_t, flags: c_uint) -> ssize_t
        = demoting_calls::vmsplice,
        if internal::is_user_level_or_own(fd);
    "read" read(fd: c_int, buffer: *mut u8, count: size_t) -> ssize_t = files::read,
        if is_user_level_or_counted(Call::Read, fd);
    "__read" __read(fd: c_int, buffer: *mut u8, count: size_t) -> ssize_t = files::read,
        if is_user_level_or_counted(Call::Read, fd);
    "write" write(fd: c_int, buffer: *const u8, count: size_t) -> ssize_t = files::write,
        if is_user_level_or_counted(Call::Write, fd);
    "__write" __write(fd: c_int, buffer: *const u8, count: size_t) -> ssize_t = files::write,
        if is_user_level_or_counted(Call::Write, fd);
    "readv" readv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t = files::readv,
        if is_user_level_or_counted(Call::Read, fd);
    "writev" writev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t = files::writev,
        if is_user_level_or_counted(Call::Write, fd);
    "preadv2" preadv2(fd: c_int, list: *const iovec, count: c_int, offset: c_long, flags: c_int)
        -> ssize_t = demoting_calls::preadv2,
        if internal::is_user_level_or_own(fd);
    "preadv64v2" preadv64v2(
        fd: c_int, list: *const iovec, count: c_int, offset: c_long, flags: c_int
    ) -> ssize_t = demoting_calls::preadv2,
        if internal::is_user_level_or_own(fd);
    "pwritev2" pwritev2(fd: c_int, list: *const iovec, count: c_int, offset: c_long, flags: c_int)
        -> ssize_t = demoting_calls::pwritev2,
        if internal::is_user_level_or_own(fd);
    "pwritev64v2" pwritev64v2(
        fd: c_int, list: *const iovec, count: c_int, offset: c_long, flags: c_int
    ) -> ssize_t = demoting_calls::pwritev2,
        if internal::is_user_level_or_own(fd);
    "poll" poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int = polls::poll,
        if polls::names_user_level(fds, count);
    "__poll" __poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int = polls::poll,
        if polls::names_user_level(fds, count);
    "__poll_chk" __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int
        = polls::poll_chk,
        if polls::names_user_level(fds, count);
    "ppoll" ppoll(
        fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int = polls::ppoll,
        if polls::names_user_level(fds, count);
    "__ppoll_chk" __ppoll_chk(
        fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t,
        room: size_t
    ) -> c_int = polls::ppoll_chk,
        if polls::names_user_level(fds, count);
    "select" select(
        n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *mut timeval
    ) -> c_int = polls::select,
        if polls::selects_user_level(n, [read, write, except]);
    "__select" __select(
        n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *mut timeval
    ) -> c_int = polls::select,
        if polls::selects_user_level(n, [read, write, except]);
    "pselect" pselect(
        n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t
    ) -> c_int = polls::pselect,
        if polls::selects_user_level(n, [read, write, except]);
    "eventfd_read" eventfd_read(fd: c_int, value: *mut u64) -> c_int = sets::eventfd_read,
        if is_user_level_or_counted(Call::Read, fd);
    "eventfd_write" eventfd_write(fd: c_int, value: u64) -> c_int = sets::eventfd_write,
        if is_user_level_or_counted(Call::Write, fd);
    "__read_chk" __read_chk(fd: c_int, buffer: *mut u8, count: size_t, room: size_t) -> ssize_t
        = files::read_chk,
        if is_user_level_or_counted(Call::Read, fd);
}
