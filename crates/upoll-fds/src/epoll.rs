//! `epoll_create(2)`, `epoll_ctl(2)`, `epoll_wait(2)` and their later forms, by number.

use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use upoll::{
    Clock, CreateFlags, Epoll, Errno, Event, Events, Op, Source, Target, Timeout,
};

use crate::kernel::{call, check_open, number};
use crate::object::Object;
use crate::{memory, table};

/// `epoll_create(2)`.
///
/// # Errors
/// `EINVAL`: `size` is not positive. Else as [`epoll_create1`].
pub fn epoll_create(size: i32) -> Result<RawFd, Errno> {
    if size <= 0 {
        return Err(Errno::INVAL);
    }
    epoll_create1(0)
}

/// `epoll_create1(2)`; `flags` may hold `EPOLL_ROTATE` (1).
///
/// # Errors
/// `EINVAL`: an unknown flag. `EMFILE`, `ENFILE`, `ENOMEM`: the kernel has no number to give.
pub fn epoll_create1(flags: i32) -> Result<RawFd, Errno> {
    let flags = CreateFlags::from_bits_retain(flags.cast_unsigned());
    let set = Epoll::create(flags)?;
    let of_the_kernel = flags - CreateFlags::ROTATE;
    // SAFETY: no pointers are involved.
    let fd = number(unsafe { call!(epoll_create1, of_the_kernel.bits()) })?;
    table::install(fd, Object::Epoll(set))
}

/// `epoll_ctl(2)`.
///
/// # Errors
/// In this order, as in Linux 6.18:
/// - `EFAULT`: `event` cannot be read; not looked at by `EPOLL_CTL_DEL`.
/// - `EBADF`: `epfd`, then `fd`, is not open.
/// - `EPERM`: `fd` cannot be polled. Also: it is user-level, and `epfd` a set of the kernel's.
/// - `EINVAL`: `epfd` is no set, or `fd` is the same one.
/// - Those of [`Epoll::ctl`], and `EINVAL` for an unknown `op`.
///
/// # Safety
/// What `event` leads to is not being written.
pub unsafe fn epoll_ctl(
    epfd: RawFd,
    op: i32,
    fd: RawFd,
    event: *const Event,
) -> Result<(), Errno> {
    let interest = if op == Op::Del as i32 {
        Event::default()
    } else {
        // SAFETY: the caller's contract; an event has no invalid values.
        unsafe { memory::read(event) }?
    };
    ctl(epfd, op, fd, interest)
}

/// `epoll_ctl` with the event in hand.
fn ctl(epfd: RawFd, op: i32, fd: RawFd, interest: Event) -> Result<(), Errno> {
    let known = match op {
        1 => Some(Op::Add),
        2 => Some(Op::Del),
        3 => Some(Op::Mod),
        _ => None,
    };
    let ours = table::with(epfd, |set| {
        table::with(fd, |object| match (set, known) {
            (Object::Epoll(set), Some(op)) => {
                set.ctl(op, Target::File(object.as_file_ref(fd)), interest)
            }
            // Not a set, or not an operation.
            _ => Err(Errno::INVAL),
        })
        .unwrap_or_else(|| match (set, known) {
            (Object::Epoll(set), Some(op)) => ctl_kernel(set, op, fd, interest),
            // The set's kernel object has nothing in it, and has the same to say.
            _ => pass_on_ctl(epfd, op, fd, interest),
        })
    });
    if let Some(result) = ours {
        return result;
    }
    if !table::is_user_level(fd) {
        return pass_on_ctl(epfd, op, fd, interest);
    }
    // The kernel would watch what stands behind the object, which never becomes ready.
    match pass_on_ctl(epfd, Op::Del as i32, fd, interest) {
        Ok(()) | Err(Errno::NOENT) if known == Some(Op::Add) => Err(Errno::PERM),
        Ok(()) => Err(Errno::NOENT),
        Err(errno) => Err(errno),
    }
}

/// A change of a kernel's descriptor in a set of ours.
fn ctl_kernel(set: &Epoll, op: Op, fd: RawFd, interest: Event) -> Result<(), Errno> {
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: a number that is not open gives an error of the kernel's; it is not closed here.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    set.ctl(op, Target::Kernel(fd), interest)
}

fn pass_on_ctl(epfd: RawFd, op: i32, fd: RawFd, interest: Event) -> Result<(), Errno> {
    // SAFETY: `interest` is live, and has the layout of an epoll_event.
    unsafe { call!(epoll_ctl, epfd, op, fd, &raw const interest) }.map(drop)
}

/// `struct epoll_ctl_cmd` of seed 4, in its natural layout.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EpollCtlCmd {
    /// Must be 0.
    pub flags: i32,
    /// As for `epoll_ctl`.
    pub op: i32,
    /// As for `epoll_ctl`.
    pub fd: i32,
    /// As in `struct epoll_event`.
    pub events: u32,
    /// As in `struct epoll_event`.
    pub data: u64,
    /// What came of it: 0, or a negative error number.
    pub result: i32,
}

/// `epoll_ctl_batch` of seed 4: executes `commands` in their order, until one fails, and says how
/// many succeeded.
///
/// Each executed command's `result` says what came of it; those after the first that failed are left
/// alone. Commands before it stay executed.
///
/// # Errors
/// Nothing was done:
/// - `EINVAL`: `flags` is not 0; `count` is not positive, or more than `INT_MAX` bytes hold;
///   `commands` is null.
/// - `EFAULT`: `commands` cannot be read.
///
/// `EFAULT`: the results cannot be written. What was done stays done.
///
/// A number that is no set is found out by the first command: the call gives 0, and its `result` is
/// `-EBADF` or `-EINVAL`.
///
/// # Safety
/// What `commands` leads to is the caller's, and nobody else uses it.
pub unsafe fn epoll_ctl_batch(
    epfd: RawFd,
    flags: i32,
    count: i32,
    commands: *mut EpollCtlCmd,
) -> Result<usize, Errno> {
    let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
    let most = i32::MAX.unsigned_abs() as usize / size_of::<EpollCtlCmd>();
    if flags != 0 || count == 0 || count > most || commands.is_null() {
        return Err(Errno::INVAL);
    }
    for at in 0..count {
        // SAFETY: the caller's contract; a command has no invalid values.
        unsafe { memory::read(commands.wrapping_add(at)) }?;
    }
    for at in 0..count {
        let place = commands.wrapping_add(at);
        // SAFETY: as above.
        let command = unsafe { memory::read(place) }?;
        let interest = Event::new(Events::from_bits_retain(command.events), command.data);
        let done = match command.flags {
            0 => ctl(epfd, command.op, command.fd, interest),
            _ => Err(Errno::INVAL),
        };
        let result = done.err().map_or(0, |errno| -errno.raw());
        let result_at = place.wrapping_byte_add(std::mem::offset_of!(EpollCtlCmd, result));
        // SAFETY: as above.
        unsafe { memory::write(result_at.cast::<i32>(), result) }?;
        if done.is_err() {
            return Ok(at);
        }
    }
    Ok(count)
}
