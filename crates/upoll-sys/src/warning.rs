//! One line on standard error, while a library starts.
//!
//! Only then is fd 2 known to be standard error: the program may close it later, and open a file of its own there.

use std::ffi::{CStr, c_char};
use std::fmt::Write;

use crate::syscall;
use crate::text::Text;

/// Writes "upoll: PROGRAM (PID) `what` `path`: ERROR" to standard error.
///
/// The line is left out where fd 2 takes no text, is full, or has no reader: a pipe would raise `SIGPIPE`, so `ppoll(2)`
/// comes before `write(2)`.
#[cold]
pub fn write(what: &str, path: &CStr, error: i32) {
    unsafe extern "C" {
        static program_invocation_short_name: *const c_char;
    }
    let mut reason = [0; 128];
    // SAFETY: the buffer has that size, and the call leaves a C string in it.
    let described =
        unsafe { libc::strerror_r(error, reason.as_mut_ptr().cast(), reason.len()) } == 0;
    // SAFETY: the C library's pointer to the name of the program, a C string.
    let program = unsafe { CStr::from_ptr(program_invocation_short_name) };
    // The library has just started, and leaves the program's allocator alone.
    let mut line = Text::<1024>::new();
    line.add(b"upoll: ");
    line.add(&program.to_bytes()[..program.count_bytes().min(256)]);
    // SAFETY: the call has no arguments.
    let process = unsafe { syscall!(SYS_getpid) }.unwrap_or(0);
    // Text beyond the room is dropped.
    let _ = write!(line, " ({process}) {what} ");
    line.add(&path.to_bytes()[..path.count_bytes().min(512)]);
    match CStr::from_bytes_until_nul(&reason) {
        Ok(reason) if described => {
            line.add(b": ");
            line.add(reason.to_bytes());
        }
        _ => {
            let _ = write!(line, ": error {error}");
        }
    }
    line.add(b"\n");
    let (fd, text, len) = (
        libc::STDERR_FILENO,
        line.as_bytes().as_ptr(),
        line.as_bytes().len(),
    );
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the kernel reads the bytes, which are live.
    let sent = unsafe { syscall!(SYS_sendto, fd, text, len, flags, 0, 0) };
    if sent == Err(libc::ENOTSOCK) && takes_a_line() {
        // SAFETY: as above. There is nowhere to report an error to.
        let _ = unsafe { syscall!(SYS_write, fd, text, len) };
    }
}

/// Returns whether standard error, which is no socket, takes a line at once.
fn takes_a_line() -> bool {
    // SAFETY: all zeros is a valid value.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes the structure, which is live.
    if unsafe { syscall!(SYS_fstat, libc::STDERR_FILENO, &raw mut found) }.is_err() {
        return false;
    }
    // Not an eventfd or the like, for which a text is a number.
    let kinds = [libc::S_IFCHR, libc::S_IFIFO, libc::S_IFREG];
    if !kinds.contains(&(found.st_mode & libc::S_IFMT)) {
        return false;
    }
    let mut entry = libc::pollfd {
        fd: libc::STDERR_FILENO,
        events: libc::POLLOUT,
        revents: 0,
    };
    let no_time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel reads and writes the two structures, which are live.
    let polled = unsafe { syscall!(SYS_ppoll, &raw mut entry, 1, &raw const no_time, 0, 0) };
    polled == Ok(1) && entry.revents == libc::POLLOUT
}
