//! Limits of the running kernel.

use crate::syscall;

/// Returns how many interests the sets of a user may hold (`/proc/sys/fs/epoll/max_user_watches`), or `None` if the file
/// cannot be read.
///
/// It makes inline system calls: the C library's names may be the program's, or this library's own.
#[must_use]
pub fn max_user_watches() -> Option<usize> {
    let path = c"/proc/sys/fs/epoll/max_user_watches".as_ptr();
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let mut text = [0_u8; 32];
    // SAFETY: the path is a C string, the buffer has the length that is passed, and the descriptor
    // that is closed is the one just opened.
    let len = unsafe {
        let fd = syscall!(SYS_openat, libc::AT_FDCWD, path, flags).ok()?;
        let len = syscall!(SYS_read, fd, text.as_mut_ptr(), text.len());
        let _ = syscall!(SYS_close, fd);
        len.ok()?
    };
    core::str::from_utf8(&text[..len]).ok()?.trim().parse().ok()
}
