//! The C library's streams: they read and write within it, unseen.

use std::ffi::{c_int, c_void};

use crate::settings;

unsafe extern "C" {
    fn _IO_list_lock();
    fn _IO_list_unlock();
    fn _IO_iter_begin() -> *mut c_void;
    fn _IO_iter_end() -> *mut c_void;
    fn _IO_iter_next(at: *mut c_void) -> *mut c_void;
    fn _IO_iter_file(at: *mut c_void) -> *mut libc::FILE;
}

/// Returns whether a stream may be open over an fd, whether or not the fd itself is: a program may close
/// the fd of a stream and go on with the stream once another file has that number.
pub(crate) fn may_be_over(fd: c_int) -> bool {
    if (0..=libc::STDERR_FILENO).contains(&fd) {
        return true;
    }
    // In a child of a fork that the C library has not seen, the lock may be held by a thread of the parent.
    // Nothing new is user-level there.
    settings::is_nothing_new_served() || is_over(fd)
}

fn is_over(fd: c_int) -> bool {
    // SAFETY: the C library gives each thread a live errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let mut is_found = false;
    // SAFETY: the lock keeps streams on the list, and thereby live. Its owner may take it again, as a signal
    // handler does that interrupts `fopen`; the C library changes the list by single stores.
    unsafe {
        _IO_list_lock();
        let mut at = _IO_iter_begin();
        while at != _IO_iter_end() {
            // A stream without an fd returns -1.
            is_found |= libc::fileno(_IO_iter_file(at)) == fd;
            at = _IO_iter_next(at);
        }
        _IO_list_unlock();
        *errno = before;
    }
    is_found
}
