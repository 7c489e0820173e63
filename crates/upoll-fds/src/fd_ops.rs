//! Calls on the fd rather than on the object: `close(2)`, `dup(2)`, `fcntl(2)`, `ioctl(2)` and
//! their kin.

use std::os::fd::RawFd;
use std::sync::atomic::{Ordering, fence};

use upoll::Errno;
use upoll::internal::own_fds;

use crate::kernel::{call, int, to_fd};
use crate::object::Object;
use crate::signals::Section;
use crate::table::programs;
use crate::{demote, eventfd, kernel, memory, table};

/// `close(2)`.
///
/// The open file goes with its last fd; calls under way in other threads keep it until they
/// are done.
///
/// # Errors
/// `EBADF`: the fd is not open.
pub fn close(fd: RawFd) -> Result<(), Errno> {
    let fd = programs(fd);
    // Even if the kernel reports an error, the fd is closed.
    table::close(fd, || Ok(kernel::close(fd)))?
}

/// `close_range(2)`.
///
/// The table here is the same for all threads. After `CLOSE_RANGE_UNSHARE` in a process with several
/// threads, the calling thread may have fds of its own in the kernel. The caller must
/// [demote](crate::demote_all) all user-level objects first, and the threads must not use them any more.
///
/// # Errors
/// `EINVAL`: an unknown flag, or `first` is beyond `last`. `EMFILE`, `ENOMEM`: see the man page.
pub fn close_range(first: u32, last: u32, flags: i32) -> Result<(), Errno> {
    let mut next = first;
    if flags & libc::CLOSE_RANGE_CLOEXEC.cast_signed() == 0 && first <= last {
        while let Some(own) = own_fds::next_own(next, last) {
            let own = own.cast_unsigned();
            if own > next {
                close_all(next, own - 1, flags)?;
            }
            if own == last {
                return Ok(());
            }
            next = own + 1;
        }
    }
    close_all(next, last, flags)
}

/// As [`close_range`], where no fd is the library's own.
fn close_all(first: u32, last: u32, flags: i32) -> Result<(), Errno> {
    let in_kernel =
        // SAFETY: no pointers are involved.
        |first: u32, last: u32| unsafe { call!(SYS_close_range, first, last, flags) }.map(drop);
    if flags & libc::CLOSE_RANGE_CLOEXEC.cast_signed() != 0 {
        return in_kernel(first, last);
    }
    let mut next = first;
    if first <= last {
        for fd in table::fds(first, last) {
            let at = fd.cast_unsigned();
            // Closes the kernel fds before it and the fd itself in one call.
            table::close(fd, || in_kernel(next, at))?;
            if at == last {
                return Ok(());
            }
            next = at + 1;
        }
    }
    in_kernel(next, last)
}

/// `dup(2)`.
///
/// # Errors
/// `EBADF`: the fd is not open. `EMFILE`: there is none left.
pub fn dup(fd: RawFd) -> Result<RawFd, Errno> {
    let fd = programs(fd);
    // SAFETY: no pointers are involved.
    table::copy(fd, || to_fd(unsafe { call!(SYS_dup, fd) }))
}

/// `dup2(2)`.
///
/// # Errors
/// `EBADF`: `fd` is not open, or `new` cannot be an fd.
pub fn dup2(fd: RawFd, new: RawFd) -> Result<RawFd, Errno> {
    if fd == new {
        return kernel::check_open(programs(fd)).map(|()| new);
    }
    duplicate_to(fd, new, 0)
}

/// `dup3(2)`.
///
/// # Errors
/// As [`dup2`]. `EINVAL`: both are the same, or there is an unknown flag.
pub fn dup3(fd: RawFd, new: RawFd, flags: i32) -> Result<RawFd, Errno> {
    if fd == new {
        return Err(Errno::INVAL);
    }
    duplicate_to(fd, new, flags)
}

fn duplicate_to(fd: RawFd, new: RawFd, flags: i32) -> Result<RawFd, Errno> {
    let fd = programs(fd);
    if new >= 0 && table::is_user_level(fd) && !table::has_slot(new) {
        // Only the kernel can open such an fd. An object that cannot be demoted fails like an fd
        // beyond the limit.
        demote::demote(fd).map_err(|_| Errno::BADF)?;
    }
    table::replace(fd, new, || {
        // SAFETY: no pointers are involved. The fd is the caller's to close.
        to_fd(unsafe { call!(SYS_dup3, fd, new, flags) })
    })
}

/// `fcntl(2)`: `F_DUPFD`, `F_DUPFD_CLOEXEC`, `F_GETFD`, `F_SETFD`, `F_GETFL`, `F_SETFL`,
/// `F_GETPIPE_SZ` and `F_SETPIPE_SZ` act on user-level objects. Other commands act on the kernel
/// object behind.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// `argument` is what `command` takes: a number, or the address of memory that may be used.
pub unsafe fn fcntl(fd: RawFd, command: i32, argument: usize) -> Result<i32, Errno> {
    let fd = programs(fd);
    // SAFETY: the caller's contract.
    let in_kernel = || int(unsafe { call!(SYS_fcntl, fd, command, argument) });
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => table::copy(fd, in_kernel),
        libc::F_GETPIPE_SZ => match table::with(fd, Object::pipe_capacity) {
            Some(Some(capacity)) => int(Ok(capacity)),
            _ => in_kernel(),
        },
        libc::F_SETPIPE_SZ => {
            // The kernel takes an int and refuses negative ones as too large.
            let bytes = argument & u32::MAX as usize;
            let user_level = table::with(fd, |object| {
                let before = object.pipe_capacity();
                let capacity = object.set_pipe_capacity(bytes)?;
                // The kernel's pipe behind, too: there are limits that only the kernel knows, and it
                // may have to take all that is in the pipe.
                Some(capacity.and_then(|capacity| {
                    in_kernel().map(|_| capacity).inspect_err(|_| {
                        // Somebody may have filled it meanwhile; then it stays so large.
                        let _ = before.and_then(|before| object.set_pipe_capacity(before));
                    })
                }))
            });
            match user_level {
                Some(Some(capacity)) => int(capacity),
                _ => in_kernel(),
            }
        }
        libc::F_GETOWN => owner(fd),
        libc::F_SETFL => {
            if argument & libc::O_ASYNC.cast_unsigned() as usize != 0 {
                leave_to_the_kernel(fd);
            }
            let result = in_kernel()?;
            follow_flags(fd)?;
            Ok(result)
        }
        _ => in_kernel(),
    }
}

/// `F_GETOWN`, which the C library does by `F_GETOWN_EX`: as the result of a system call the negative
/// number of a group may be an error's.
fn owner(fd: RawFd) -> Result<i32, Errno> {
    /// `struct f_owner_ex`.
    #[repr(C)]
    struct Owner {
        kind: i32,
        id: libc::pid_t,
    }
    const GET_OWNER: i32 = 16;
    const GROUP: i32 = 2;
    let mut owner = Owner { kind: 0, id: 0 };
    // SAFETY: the call fills the structure.
    unsafe { call!(SYS_fcntl, fd, GET_OWNER, &raw mut owner) }?;
    Ok(match owner.kind {
        GROUP => -owner.id,
        _ => owner.id,
    })
}

/// Demotes the object of `fd`: only the kernel sends signals for I/O (`O_ASYNC`), and only a kernel
/// socket knows which data its peer has not read. An object that cannot be demoted does without.
fn leave_to_the_kernel(fd: RawFd) {
    if table::is_user_level(fd) {
        let _ = demote::demote(fd);
    }
}

/// Copies the status flags of the kernel object behind the object, which the caller has just changed.
///
/// The flags are read again after they were stored. Another thread may have changed the flags in
/// between, and stored its own first.
fn follow_flags(fd: RawFd) -> Result<(), Errno> {
    if !table::is_user_level(fd) {
        return Ok(());
    }
    let _section = Section::begin();
    let Some(object) = table::get(fd) else {
        return Ok(());
    };
    // SAFETY: no pointers are involved.
    let in_kernel = || int(unsafe { call!(SYS_fcntl, fd, libc::F_GETFL) });
    let mut flags = in_kernel()?;
    loop {
        object.follow_flags(flags);
        // The kernel's flags are read after the store, for all threads.
        fence(Ordering::SeqCst);
        let now = in_kernel()?;
        if now == flags {
            return Ok(());
        }
        flags = now;
    }
}

/// `ioctl(2)`: `FIONBIO`, `FIONREAD` and an eventfd's maximum act on user-level objects; what other
/// requests do they do to the kernel object behind.
///
/// # Errors
/// `ENOTTY`: not a request of this object. `EFAULT`: a bad pointer. Else those of the kernel.
///
/// # Safety
/// `argument` is what `request` takes: a number, or the address of memory that may be used.
pub unsafe fn ioctl(fd: RawFd, request: u32, argument: usize) -> Result<i32, Errno> {
    let fd = programs(fd);
    let user_level = table::with(fd, |object| match object {
        // SAFETY: the caller's contract.
        Object::EventFd(counter) => unsafe { eventfd::ioctl(counter, request, argument) },
        _ if u64::from(request) == libc::FIONREAD => object.available().map(|available| {
            let to: *mut i32 = std::ptr::with_exposed_provenance_mut(argument);
            let available = i32::try_from(available).unwrap_or(i32::MAX);
            // SAFETY: the caller's argument is an int to write.
            unsafe { memory::write(to, available) }.map(|()| 0)
        }),
        _ => None,
    });
    if let Some(Some(result)) = user_level {
        return int(result);
    }
    if matches!(u64::from(request), libc::FIOASYNC | libc::TIOCOUTQ) {
        leave_to_the_kernel(fd);
    }
    // SAFETY: as above.
    let result = int(unsafe { call!(SYS_ioctl, fd, request, argument) })?;
    if u64::from(request) == libc::FIONBIO {
        follow_flags(fd)?;
    }
    Ok(result)
}
