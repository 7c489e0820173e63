//! `epoll_ctl(2)` by fd.

use std::mem::offset_of;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr;

use upoll::{Errno, Event, Events, Op, Target};

use crate::demote::{demote, demote_unwatched, demote_with_members};
use crate::interest::Interest;
use crate::kernel::call;
use crate::object::Object;
use crate::passivity::StayAway;
use crate::set::SetWithFd;
use crate::table::programs;
use crate::{memory, table};

/// `epoll_ctl(2)`.
///
/// # Errors
/// In this order, as in Linux 6.18:
/// - `EFAULT`: `event` cannot be read; `EPOLL_CTL_DEL` does not read it.
/// - `EBADF`: `epfd`, then `fd`, is not open.
/// - `EPERM`: `fd` cannot be polled. Also: it is user-level and cannot be demoted, and `epfd` a set of the kernel's.
/// - `EINVAL`: `epfd` is no set, or `fd` is the same one.
/// - The errors of [`Epoll::ctl`](upoll::Epoll::ctl), and `EINVAL` for an unknown `op`.
///
/// # Safety
/// Nobody writes the memory that `event` points to during the call.
pub unsafe fn epoll_ctl(epfd: RawFd, op: i32, fd: RawFd, event: *const Event) -> Result<(), Errno> {
    let (epfd, fd) = (programs(epfd), programs(fd));
    let interest = if op == Op::Del as i32 {
        Interest::default()
    } else {
        memory::check_read(event)?;
        let data = event.wrapping_byte_add(offset_of!(libc::epoll_event, u64));
        // Two words, not a copy of both in one, which would be read in other pieces than it was written
        // in, and need not be aligned.
        // SAFETY: it can be read, by the caller's contract as well, and has epoll_event's layout.
        unsafe {
            Interest {
                events: Events::from_bits_retain(event.cast::<u32>().read_unaligned()),
                data: data.cast::<u64>().read_unaligned(),
            }
        }
    };
    ctl(epfd, op, fd, interest)
}

/// The operation that has a number.
pub(crate) fn operation(op: i32) -> Option<Op> {
    match op {
        1 => Some(Op::Add),
        2 => Some(Op::Del),
        3 => Some(Op::Mod),
        _ => None,
    }
}

/// `epoll_ctl` with the event in hand.
#[inline(always)]
pub(crate) fn ctl(epfd: RawFd, op: i32, fd: RawFd, interest: Interest) -> Result<(), Errno> {
    let done = loop {
        let Some(hazard) = table::Hazard::begin(epfd) else {
            return ctl_in_the_kernels(epfd, op, fd, interest);
        };
        let set = hazard.object();
        let Ok(object) = hazard.add(fd) else {
            drop(hazard);
            table::outlast_change(fd);
            continue;
        };
        break match (set, object, operation(op)) {
            (Object::Epoll(set), Some(object), Some(op))
                if !set.is_passive() && (op != Op::Add || is_added_as_it_is(object)) =>
            {
                ctl_object(set, op, object, fd, interest)
            }
            _ => ctl_otherwise(set, object, epfd, op, fd, interest),
        };
    };
    match done {
        Ok(()) => Ok(()),
        Err(errno) => ctl_without_descriptors(errno, epfd, op, fd, interest),
    }
}

/// Makes all changes but those of user-level members in an active set.
#[inline(never)]
fn ctl_otherwise(
    set: &Object,
    object: Option<&Object>,
    epfd: RawFd,
    op: i32,
    fd: RawFd,
    interest: Interest,
) -> Result<(), Errno> {
    let by_the_kernel = || pass_on_ctl(epfd, op, fd, interest);
    match (set, object, operation(op)) {
        (Object::Epoll(set), Some(object), Some(Op::Add)) => {
            add_object(set, epfd, object, [fd, fd], interest)
        }
        // The kernel set has no user-level member, and returns the same.
        (Object::Epoll(set), Some(object), Some(op)) => set
            .ctl_passive(Some(op), by_the_kernel)
            .unwrap_or_else(|| ctl_object(set, op, object, fd, interest)),
        // Not a set, or not an operation.
        (_, Some(_), _) => Err(Errno::INVAL),
        (Object::Epoll(set), None, Some(op)) => set
            .ctl_passive(Some(op), by_the_kernel)
            .unwrap_or_else(|| ctl_kernel(set, epfd, op, fd, interest)),
        // The kernel object behind has the same to say.
        (_, None, _) => by_the_kernel(),
    }
}

/// The end of a change that failed. If it was for want of memory, or of fds, which the set needs to have
/// user-level members beside the kernel's, it does without this one. Or the kernel serves the whole set from now on.
#[cold]
#[inline(never)]
fn ctl_without_descriptors(
    errno: Errno,
    epfd: RawFd,
    op: i32,
    fd: RawFd,
    interest: Interest,
) -> Result<(), Errno> {
    let is_first_of_the_kernels = op == Op::Add as i32 && !table::is_user_level(fd);
    let does_without = || {
        demote_unwatched(fd).is_ok() || is_first_of_the_kernels && demote_with_members(epfd).is_ok()
    };
    if lacks_something(errno) && does_without() {
        return ctl(epfd, op, fd, interest);
    }
    Err(errno)
}

/// Returns whether a call has failed for want of fds or of memory.
pub(crate) fn lacks_something(errno: Errno) -> bool {
    matches!(errno.raw(), libc::EMFILE | libc::ENFILE | libc::ENOMEM)
}

/// A change of a set that is the kernel's.
#[inline(never)]
fn ctl_in_the_kernels(epfd: RawFd, op: i32, fd: RawFd, interest: Interest) -> Result<(), Errno> {
    if op == Op::Add as i32 && table::is_user_level(fd) {
        // A kernel set would watch the kernel object behind, which never becomes ready. The kernel
        // first checks the fds, and whether the set watches the fd already.
        match pass_on_ctl(epfd, Op::Del as i32, fd, interest) {
            Ok(()) | Err(Errno::NOENT) => demote(fd).map_err(|errno| {
                // There may be watches, fds or memory later.
                let may_work_later = errno == Errno::NOSPC || lacks_something(errno);
                if may_work_later { errno } else { Errno::PERM }
            })?,
            Err(errno) => return Err(errno),
        }
    }
    pass_on_ctl(epfd, op, fd, interest)
}

fn ctl_object(
    set: &SetWithFd,
    op: Op,
    object: &Object,
    fd: RawFd,
    interest: Interest,
) -> Result<(), Errno> {
    let target = Target::File(object.as_file_ref(fd));
    set.as_epoll().ctl(op, target, interest.event())
}

/// Returns whether adding an object needs nothing of the set but that it is active.
#[inline]
pub(crate) fn is_added_as_it_is(object: &Object) -> bool {
    match object {
        Object::EventFd(counter) => !counter.is_shared(),
        Object::Epoll(_) => false,
        _ => true,
    }
}

/// Adds the object that `fd` stands for, under `key`, an fd that was closed.
///
/// # Errors
/// `EBADF`: `epfd` or `fd` stands for no user-level object, or is being changed. Else as [`epoll_ctl`].
pub(crate) fn add_under(
    epfd: RawFd,
    fd: RawFd,
    key: RawFd,
    interest: Interest,
) -> Result<(), Errno> {
    let hazard = table::Hazard::begin(epfd).ok_or(Errno::BADF)?;
    match (hazard.object(), hazard.add(fd)) {
        (Object::Epoll(set), Ok(Some(object))) => {
            add_object(set, epfd, object, [fd, key], interest)
        }
        _ => Err(Errno::BADF),
    }
}

/// Adds a user-level object under `key` to a user-level set, which becomes active for that.
#[inline(never)]
fn add_object(
    set: &SetWithFd,
    epfd: RawFd,
    object: &Object,
    [fd, key]: [RawFd; 2],
    interest: Interest,
) -> Result<(), Errno> {
    set.activate(epfd)?;
    if matches!(object, Object::EventFd(counter) if counter.is_shared()) {
        // It stirs in the kernel.
        set.adopt(epfd)?;
    }
    if let Object::Epoll(below) = object {
        if ptr::eq(&raw const **below, set) {
            return Err(Errno::INVAL);
        }
        // Either learns of the other by its kernel side.
        set.adopt(epfd)?;
        below.activate(fd)?;
        below.adopt(fd)?;
    }
    ctl_object(set, Op::Add, object, key, interest)
}

/// A change of a kernel fd in a user-level set.
#[inline(never)]
fn ctl_kernel(
    set: &SetWithFd,
    epfd: RawFd,
    op: Op,
    fd: RawFd,
    interest: Interest,
) -> Result<(), Errno> {
    if fd < 0 {
        return Err(Errno::BADF);
    }
    let mut stay_away = StayAway::default();
    // If another thread is about to.
    while op == Op::Add
        && let Err(errno) = set.activate(epfd)
    {
        // The kernel goes on to serve the set, unless the other thread has more success.
        let by_the_kernel = || pass_on_ctl(epfd, op as i32, fd, interest);
        if let Some(added) = set.ctl_passive(Some(op), by_the_kernel) {
            return added;
        }
        stay_away.or(errno)?;
    }
    match set.adopt(epfd) {
        // The set has no such member, or the kernel set behind it would have been adopted with it. That one
        // returns what is wrong.
        Err(errno) if op != Op::Add && (lacks_something(errno) || errno == Errno::NOSPC) => {
            return pass_on_ctl(epfd, op as i32, fd, interest);
        }
        adopted => adopted?,
    }
    // SAFETY: it is not closed here. For an fd that is not open, the kernel returns an error.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    set.as_epoll().ctl(op, Target::Kernel(fd), interest.event())
}

#[inline(never)]
fn pass_on_ctl(epfd: RawFd, op: i32, fd: RawFd, interest: Interest) -> Result<(), Errno> {
    let event = interest.event();
    // SAFETY: `event` is live, and has the layout of an epoll_event.
    unsafe { call!(SYS_epoll_ctl, epfd, op, fd, &raw const event) }.map(drop)
}
