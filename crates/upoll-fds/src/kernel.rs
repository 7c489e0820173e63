//! System calls, passed on as they are: for fds that are the kernel's, and for the kernel
//! objects behind user-level objects.
//!
//! They are inline: a library that exports the C library's names must not meet itself here.

use std::ffi::CStr;
use std::os::fd::RawFd;

use upoll::Errno;

/// Makes a system call by the name of its number in `libc`. Fails with an [`Errno`].
macro_rules! call {
    ($number:ident $(, $argument:expr)* $(,)?) => {
        ::upoll_sys::syscall!($number $(, $argument)*).map_err(::upoll::Errno::from_raw)
    };
}

/// The same for a call that may sleep in the midst of one of this library's.
macro_rules! interruptible {
    ($number:ident $(, $argument:expr)* $(,)?) => {
        ::upoll_sys::interruptible!($number $(, $argument)*).map_err(::upoll::Errno::from_raw)
    };
}

pub(crate) use upoll::internal::check_open;
pub(crate) use {call, interruptible};

/// Converts the result of a call that opens an fd.
pub(crate) fn to_fd(result: Result<usize, Errno>) -> Result<RawFd, Errno> {
    result.map(|fd| RawFd::try_from(fd).expect("fds are ints"))
}

/// Converts the result of a call that returns an int, as the C library does.
#[expect(clippy::cast_possible_truncation, reason = "so does the C library")]
pub(crate) fn int(result: Result<usize, Errno>) -> Result<i32, Errno> {
    result.map(|value| value.cast_signed() as i32)
}

/// `close(2)`.
pub(crate) fn close(fd: RawFd) -> Result<(), Errno> {
    // SAFETY: the caller owns the fd, or passes on the call of somebody who does.
    unsafe { call!(SYS_close, fd) }.map(drop)
}

/// Makes `fd` refer to the file of `new`; `fd` stays close-on-exec if it was. Both are open.
pub(crate) fn replace(fd: RawFd, new: RawFd) {
    // SAFETY: no pointers are involved, and nobody uses the file that `fd` referred to.
    unsafe {
        let is_cloexec = call!(SYS_fcntl, fd, libc::F_GETFD)
            .is_ok_and(|flags| flags & libc::FD_CLOEXEC.cast_unsigned() as usize != 0);
        let flags = if is_cloexec { libc::O_CLOEXEC } else { 0 };
        // Both are open, so this does not fail.
        let _ = call!(SYS_dup3, new, fd, flags);
    }
}

/// The beginning of a file, as much as there is room for; nothing if it cannot be read.
pub(crate) fn read_file<'a>(path: &CStr, room: &'a mut [u8]) -> &'a [u8] {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the path is a live C string.
    let file = to_fd(unsafe { call!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) });
    let Ok(file) = file else {
        return &[];
    };
    // SAFETY: the buffer has as much room as is claimed.
    let read = unsafe { call!(SYS_read, file, room.as_mut_ptr(), room.len()) };
    // Nothing is lost if it cannot be closed.
    let _ = close(file);
    &room[..read.unwrap_or(0)]
}
