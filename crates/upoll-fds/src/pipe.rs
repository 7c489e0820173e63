//! `pipe(2)` and `socketpair(2)`: two fds at once.

use std::os::fd::RawFd;

use upoll::{Errno, PipeFlags, PipeReader, Shutdown, SocketFlags};
use upoll_sys::futex;

use crate::kernel::call;
use crate::object::Object;
use crate::signals::Section;
use crate::slot::Entry;
use crate::table::programs;
use crate::{change, install, memory, table};

/// `pipe(2)`.
///
/// # Errors
/// As [`pipe2`].
///
/// # Safety
/// As [`pipe2`].
pub unsafe fn pipe(fds: *mut [RawFd; 2]) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    unsafe { pipe2(fds, 0) }
}

/// `pipe2(2)`. A notification pipe is the kernel's.
///
/// # Errors
/// `EINVAL`: an unknown flag. `EMFILE`, `ENFILE`: the kernel has no fds to give. `EFAULT`: the
/// fds cannot be written.
///
/// # Safety
/// Memory that `fds` leads to is the caller's, and nobody else uses it.
pub unsafe fn pipe2(fds: *mut [RawFd; 2], flags: i32) -> Result<(), Errno> {
    let _section = Section::begin();
    let mut opened = [-1; 2];
    let change = change::Change::try_begin();
    // SAFETY: there is room for two fds.
    unsafe { call!(SYS_pipe2, opened.as_mut_ptr(), flags) }?;
    let ends = upoll::pipe2(PipeFlags::from_bits_retain(flags.cast_unsigned()));
    let ends = ends.and_then(|(reader, writer)| {
        adopt_capacity(&reader, opened[0])?;
        let reader = Entry::new(Object::PipeReader(reader))?;
        Ok([reader, Entry::new(Object::PipeWriter(writer))?])
    });
    // While a fork is under way it is the kernel's: the child is to have it, too. So it is without memory.
    let ends = ends.ok().filter(|_| change.is_some());
    // SAFETY: the caller's contract.
    unsafe { give(fds, opened, ends) }
}

/// Sets a pipe's capacity to that of the kernel's behind it: a demotion moves the whole content there. The kernel's pipe is small
/// if the pipes of its user have many pages (`pipe-user-pages-soft`).
fn adopt_capacity(reader: &PipeReader, fd: RawFd) -> Result<(), Errno> {
    // SAFETY: no pointers are involved.
    let capacity = unsafe { call!(SYS_fcntl, fd, libc::F_GETPIPE_SZ) }?;
    match capacity == reader.capacity() {
        true => Ok(()),
        false => reader.set_capacity(capacity).map(drop),
    }
}

/// `socketpair(2)`. Stream sockets of `AF_UNIX` are user-level; all others are the kernel's.
///
/// # Errors
/// The kernel's. `EFAULT`: the fds cannot be written.
///
/// # Safety
/// As [`pipe2`].
pub unsafe fn socketpair(
    domain: i32,
    kind: i32,
    protocol: i32,
    fds: *mut [RawFd; 2],
) -> Result<(), Errno> {
    let flags = kind & (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    let is_stream = kind & !flags == libc::SOCK_STREAM;
    if domain != libc::AF_UNIX || !is_stream || !matches!(protocol, 0 | libc::PF_UNIX) {
        // SAFETY: the kernel checks the pointer; the rest is the caller's contract.
        return unsafe { call!(SYS_socketpair, domain, kind, protocol, fds) }.map(drop);
    }
    let _section = Section::begin();
    let mut opened = [-1; 2];
    let change = change::Change::try_begin();
    // SAFETY: there is room for two fds.
    unsafe { call!(SYS_socketpair, domain, kind, protocol, opened.as_mut_ptr()) }?;
    let ends = upoll::socketpair(SocketFlags::from_bits_retain(flags.cast_unsigned()));
    let ends = ends.and_then(|(one, other)| {
        let one = Entry::new(Object::Socket(one))?;
        Ok([one, Entry::new(Object::Socket(other))?])
    });
    // As above.
    let ends = ends.ok().filter(|_| change.is_some());
    // SAFETY: the caller's contract.
    unsafe { give(fds, opened, ends) }
}

/// Installs both ends if they are user-level, and writes their fds to the caller's memory.
///
/// # Safety
/// As [`pipe2`].
unsafe fn give(
    fds: *mut [RawFd; 2],
    opened: [RawFd; 2],
    entries: Option<[Box<Entry>; 2]>,
) -> Result<(), Errno> {
    let close_both = |errno| {
        for fd in opened {
            // The kernel has just given it out; one that is gone again is as well.
            let _ = crate::close(fd);
        }
        errno
    };
    if let Some(entries) = entries {
        install::install_both(opened, entries);
    }
    // SAFETY: the caller's contract.
    unsafe { memory::write(fds, opened) }.map_err(close_both)
}

/// `shutdown(2)`.
///
/// # Errors
/// `ENOTSOCK`: the fd does not stand for a socket. `EINVAL`: no such half. Else those of the
/// kernel.
pub fn shutdown(fd: RawFd, how: i32) -> Result<(), Errno> {
    let user_level = table::with(fd, |object| match object {
        Object::Socket(socket) => {
            socket.shutdown(match how {
                libc::SHUT_RD => Shutdown::Read,
                libc::SHUT_WR => Shutdown::Write,
                libc::SHUT_RDWR => Shutdown::Both,
                _ => return Err(Errno::INVAL),
            });
            Ok(())
        }
        _ => Err(Errno::NOTSOCK),
    });
    match user_level {
        Some(result) => result,
        // SAFETY: no pointers are involved.
        None => unsafe { call!(SYS_shutdown, programs(fd), how) }.map(drop),
    }
}

/// `siginfo_t` of a signal that a process has sent, as the kernel has it on machines of 64 bits.
#[repr(C)]
struct Sent {
    signal: i32,
    errno: i32,
    code: i32,
    padding: i32,
    sender: i32,
    user: u32,
    rest: [u32; 26],
}

const _: () = assert!(size_of::<Sent>() == size_of::<libc::siginfo_t>());

/// Raises `SIGPIPE` for the calling thread with the same `siginfo_t` as the kernel. `tgkill` would set
/// another `si_code`.
pub(crate) fn raise_sigpipe() {
    // SAFETY: no pointers are involved, and these calls do not fail.
    let ids = unsafe { (call!(SYS_getpid), call!(SYS_getuid)) };
    let (Ok(process), Ok(user), Some(thread)) = (ids.0, ids.1, futex::thread_id()) else {
        return;
    };
    let signal = Sent {
        signal: libc::SIGPIPE,
        errno: 0,
        code: libc::SI_USER,
        padding: 0,
        sender: i32::try_from(process).unwrap_or(0),
        user: u32::try_from(user).unwrap_or(0),
        rest: [0; 26],
    };
    // SAFETY: the structure is live, and as large as the kernel's.
    let raised = unsafe {
        call!(
            SYS_rt_tgsigqueueinfo,
            process,
            thread,
            libc::SIGPIPE,
            &raw const signal
        )
    };
    debug_assert!(raised.is_ok(), "a thread may signal itself");
}
