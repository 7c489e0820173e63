//! Reading, writing, closing and duplicating by number.

use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};

use libc::{iovec, size_t, ssize_t};

use crate::errno::{give, give_size};
use crate::raw;
use crate::stats::{self, Call};

#[doc = "`close(2)`"]
#[unsafe(no_mangle)]
pub extern "C" fn close(fd: c_int) -> c_int {
    stats::count(Call::Close, fd);
    give(upoll_fds::close(fd))
}

#[doc = "`close_range(2)`"]
#[unsafe(no_mangle)]
pub extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    give(upoll_fds::close_range(first, last, flags))
}

#[doc = "`closefrom(3)`"]
#[unsafe(no_mangle)]
pub extern "C" fn closefrom(first: c_int) {
    let first = first.max(0).cast_unsigned();
    // As the C library's, it cannot say that it failed; the kernel has had the call since 5.9.
    let _ = upoll_fds::close_range(first, c_uint::MAX, 0);
}

#[doc = "`read(2)`"]
pub(crate) unsafe fn read(fd: c_int, buffer: *mut u8, count: size_t) -> ssize_t {
    stats::count(Call::Read, fd);
    // SAFETY: the caller's contract.
    give_size(unsafe { upoll_fds::read(fd, buffer, count) })
}

#[doc = "`read(2)` of a fortified program."]
pub(crate) unsafe fn read_chk(fd: c_int, buffer: *mut u8, count: size_t, room: size_t) -> ssize_t {
    if count > room {
        chk_fail();
    }
    // SAFETY: the caller's contract.
    unsafe { read(fd, buffer, count) }
}

/// What a fortified program calls for a buffer that is too small: it does not return.
pub(crate) fn chk_fail() -> ! {
    unsafe extern "C" {
        fn __chk_fail() -> !;
    }
    // SAFETY: it needs nothing.
    unsafe { __chk_fail() }
}

#[doc = "`write(2)`"]
pub(crate) unsafe fn write(fd: c_int, buffer: *const u8, count: size_t) -> ssize_t {
    stats::count(Call::Write, fd);
    // SAFETY: the caller's contract.
    give_size(unsafe { upoll_fds::write(fd, buffer, count) })
}

#[doc = "`readv(2)`"]
pub(crate) unsafe fn readv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
    stats::count(Call::Read, fd);
    // SAFETY: the caller's contract.
    give_size(unsafe { upoll_fds::readv(fd, list, count) })
}

#[doc = "`writev(2)`"]
pub(crate) unsafe fn writev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
    stats::count(Call::Write, fd);
    // SAFETY: the caller's contract.
    give_size(unsafe { upoll_fds::writev(fd, list, count) })
}

/// Names that the C library has for the same functions.
macro_rules! also_called {
    ($($symbol:literal $name:ident($($argument:ident: $kind:ty),*) = $call:ident;)*) => { $(
        #[doc = concat!("`", stringify!($call), "(2)`, by its other name.")]
        #[unsafe(export_name = $symbol)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            #[allow(unused_unsafe, reason = "some of them take pointers")]
            // SAFETY: the caller's contract.
            unsafe {
                $call($($argument),*)
            }
        }
    )* };
}

also_called! {
    "__close" close_otherwise(fd: c_int) = close;
    "__dup2" dup2_otherwise(fd: c_int, new: c_int) = dup2;
    "__fcntl" fcntl_otherwise(fd: c_int, command: c_int, argument: usize) = fcntl;
}

#[doc = "`dup(2)`"]
#[unsafe(no_mangle)]
pub extern "C" fn dup(fd: c_int) -> c_int {
    stats::count(Call::Dup, fd);
    give(upoll_fds::dup(fd))
}

#[doc = "`dup2(2)`"]
#[unsafe(no_mangle)]
pub extern "C" fn dup2(fd: c_int, new: c_int) -> c_int {
    stats::count(Call::Dup, fd);
    give(upoll_fds::dup2(fd, new))
}

#[doc = "`dup3(2)`"]
#[unsafe(no_mangle)]
pub extern "C" fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int {
    stats::count(Call::Dup, fd);
    give(upoll_fds::dup3(fd, new, flags))
}

/// `fcntl(2)`. It is variadic in C; on every ABI of 64 bits an integer or a pointer is passed there
/// as a named one is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    stats::count(Call::Control, fd);
    // SAFETY: the caller's contract.
    give(unsafe { upoll_fds::fcntl(fd, command, argument) })
}

#[doc = "`fcntl(2)` of a program with 64-bit offsets, which all have here."]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { fcntl(fd, command, argument) }
}

/// `ioctl(2)`, variadic as `fcntl`.
#[unsafe(no_mangle)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the kernel looks at 32 bits"
)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    stats::count(Call::Control, fd);
    // SAFETY: the caller's contract.
    give(unsafe { upoll_fds::ioctl(fd, request as u32, argument) })
}

/// Calls that the kernel serves, once it has the objects.
macro_rules! by_the_kernel {
    ($($number:ident: $name:ident($($fd:ident),+; $($argument:ident: $kind:ty),*);)*) => { $(
        #[doc = concat!("`", stringify!($name), "(2)`: the kernel's, and the objects as well from then on.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> ssize_t {
            $(hand_over($fd);)+
            give_size(raw::kernel!($number $(, $argument)*))
        }
    )* };
}

/// Has the kernel serve a number. What cannot be handed over the kernel's call does not find ready.
pub(crate) fn hand_over(fd: c_int) {
    if upoll_fds::is_user_level(fd) {
        let _ = upoll_fds::demote(fd);
    }
}

by_the_kernel! {
    SYS_splice: splice(from, to;
        from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, count: size_t, flags: c_uint);
    SYS_tee: tee(from, to; from: c_int, to: c_int, count: size_t, flags: c_uint);
    SYS_vmsplice: vmsplice(fd; fd: c_int, list: *const iovec, count: size_t, flags: c_uint);
    SYS_sendfile: sendfile(to, from; to: c_int, from: c_int, at: *mut i64, count: size_t);
    SYS_sendfile: sendfile64(to, from; to: c_int, from: c_int, at: *mut i64, count: size_t);
}

/// The offset's upper half is in the lower one on machines of 64 bits.
const NO_UPPER_HALF: usize = 0;

#[doc = "`preadv2(2)`, which reads as `readv` does if the offset is -1."]
pub(crate) unsafe fn preadv2(
    fd: c_int,
    list: *const iovec,
    count: c_int,
    offset: c_long,
    flags: c_int,
) -> ssize_t {
    hand_over(fd);
    give_size(raw::kernel!(
        SYS_preadv2,
        fd,
        list,
        count,
        offset,
        NO_UPPER_HALF,
        flags
    ))
}

#[doc = "`pwritev2(2)`, which writes as `writev` does if the offset is -1."]
pub(crate) unsafe fn pwritev2(
    fd: c_int,
    list: *const iovec,
    count: c_int,
    offset: c_long,
    flags: c_int,
) -> ssize_t {
    hand_over(fd);
    give_size(raw::kernel!(
        SYS_pwritev2,
        fd,
        list,
        count,
        offset,
        NO_UPPER_HALF,
        flags
    ))
}

#[doc = "`fdopen(3)`: streams read and write within the C library."]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const libc::c_char) -> *mut c_void {
    hand_over(fd);
    crate::next::next!(
        c"fdopen" as fn(c_int, *const libc::c_char) -> *mut c_void,
        (fd, mode)
    )
}
