//! `epoll_create(2)`, `epoll_ctl(2)`, `epoll_wait(2)` and their later forms, by number.

use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use upoll::{Clock, CreateFlags, Epoll, Errno, Event, Events, Op, PollFd, SigSet, Target, Timeout};

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
pub unsafe fn epoll_ctl(epfd: RawFd, op: i32, fd: RawFd, event: *const Event) -> Result<(), Errno> {
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

/// How long a wait may last by its timespec; none: without limit. The kernel's order: first the
/// pointer, then the value.
///
/// # Safety
/// As [`memory::read`].
pub(crate) unsafe fn limit(clock: Clock, timeout: *const libc::timespec) -> Result<Timeout, Errno> {
    if timeout.is_null() {
        return Ok(Timeout::NEVER);
    }
    // SAFETY: the caller's contract.
    let timeout = unsafe { memory::read(timeout) }?;
    let seconds = u64::try_from(timeout.tv_sec).map_err(|_| Errno::INVAL)?;
    let nanoseconds = u32::try_from(timeout.tv_nsec).map_err(|_| Errno::INVAL)?;
    if nanoseconds >= 1_000_000_000 {
        return Err(Errno::INVAL);
    }
    Ok(Timeout::after(clock, Duration::new(seconds, nanoseconds)))
}

/// A timeout in milliseconds; a negative one is none.
pub(crate) fn milliseconds(timeout: i32) -> Timeout {
    match u64::try_from(timeout) {
        Ok(timeout) => Duration::from_millis(timeout).into(),
        Err(_) => Timeout::NEVER,
    }
}

/// The caller's signal mask (`set_user_sigmask`).
///
/// # Safety
/// As [`memory::read`].
pub(crate) unsafe fn mask(
    mask: *const libc::sigset_t,
    size: usize,
) -> Result<Option<SigSet>, Errno> {
    if mask.is_null() {
        return Ok(None);
    }
    if size != size_of::<u64>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's contract.
    let signals: u64 = unsafe { memory::read(mask.cast()) }?;
    let mut set = libc::sigset_t::from(SigSet::empty());
    // SAFETY: a sigset_t begins with the kernel's 64 bits.
    unsafe { (&raw mut set).cast::<u64>().write(signals) };
    Ok(Some(set.into()))
}

/// `epoll_wait(2)`.
///
/// # Errors
/// As [`epoll_pwait`].
///
/// # Safety
/// As [`epoll_pwait`].
pub unsafe fn epoll_wait(
    epfd: RawFd,
    events: *mut Event,
    room: i32,
    timeout: i32,
) -> Result<usize, Errno> {
    let limit = milliseconds(timeout);
    // SAFETY: the caller's contract.
    let ours = unsafe { wait(epfd, events, room, limit, None) };
    ours.unwrap_or_else(|| {
        // SAFETY: the kernel checks the pointer; the rest is the caller's contract.
        unsafe { call!(epoll_pwait, epfd, events, room, timeout, 0, 0) }
    })
}

/// `epoll_pwait(2)`, with the size of the signal mask as the system call has it.
///
/// # Errors
/// In this order, as in Linux 6.18:
/// - `EINVAL`: `mask` is not null and `size` not 8. `EFAULT`: it cannot be read.
/// - `EBADF`: `epfd` is not open.
/// - `EINVAL`: `room` is not positive, or more events than `INT_MAX` bytes hold.
/// - `EFAULT`: `events` is not in a program's part of the address space.
/// - `EINVAL`: `epfd` is no set.
/// - `EFAULT`: something is ready, and `events` cannot be written.
/// - `EINTR`: a signal handler ran and nothing was ready; never restarted.
///
/// # Safety
/// Memory that `events` leads to is the caller's, and nobody else uses it; what `mask` leads to is
/// not being written.
pub unsafe fn epoll_pwait(
    epfd: RawFd,
    events: *mut Event,
    room: i32,
    timeout: i32,
    mask: *const libc::sigset_t,
    size: usize,
) -> Result<usize, Errno> {
    if !table::is_user_level(epfd) {
        // SAFETY: the kernel checks the pointers; the rest is the caller's contract.
        return unsafe { call!(epoll_pwait, epfd, events, room, timeout, mask, size) };
    }
    // SAFETY: the caller's contract.
    let signals = unsafe { self::mask(mask, size) }?;
    // SAFETY: as above.
    unsafe { wait(epfd, events, room, milliseconds(timeout), signals.as_ref()) }
        .unwrap_or(Err(Errno::BADF))
}

/// `epoll_pwait2(2)`, with the size of the signal mask as the system call has it.
///
/// # Errors
/// As [`epoll_pwait`], and before all others: `EFAULT`: `timeout` cannot be read. `EINVAL`: it has
/// negative seconds, or nanoseconds outside of a second.
///
/// # Safety
/// As [`epoll_pwait`]; what `timeout` leads to is not being written.
pub unsafe fn epoll_pwait2(
    epfd: RawFd,
    events: *mut Event,
    room: i32,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
    size: usize,
) -> Result<usize, Errno> {
    if !table::is_user_level(epfd) {
        // SAFETY: the kernel checks the pointers; the rest is the caller's contract.
        return unsafe { call!(epoll_pwait2, epfd, events, room, timeout, mask, size) };
    }
    // SAFETY: the caller's contract.
    unsafe {
        wait_by_clock(
            epfd,
            events,
            room,
            (Clock::Monotonic, timeout),
            (mask, size),
        )
    }
}

/// # Safety
/// As [`epoll_pwait2`].
unsafe fn wait_by_clock(
    epfd: RawFd,
    events: *mut Event,
    room: i32,
    (clock, timeout): (Clock, *const libc::timespec),
    (mask, size): (*const libc::sigset_t, usize),
) -> Result<usize, Errno> {
    // SAFETY: the caller's contract.
    let limit = unsafe { self::limit(clock, timeout) }?;
    // SAFETY: as above.
    let signals = unsafe { self::mask(mask, size) }?;
    // SAFETY: as above.
    let ours = unsafe { wait(epfd, events, room, limit, signals.as_ref()) };
    ours.unwrap_or(Err(Errno::BADF))
}

/// `struct epoll_wait_params` of seed 4.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EpollWaitParams {
    /// Which version of this structure the caller knows: 0 for the first, or its size.
    pub size: u32,
    /// `CLOCK_MONOTONIC` or `CLOCK_REALTIME`.
    pub clockid: libc::clockid_t,
    /// As for `epoll_pwait2`.
    pub timeout: *const libc::timespec,
    /// As for `epoll_pwait`.
    pub sigmask: *const libc::sigset_t,
    /// As for `epoll_pwait`.
    pub sigsetsize: usize,
}

/// `epoll_pwait1` of seed 4: [`epoll_pwait2`] by a clock of choice.
///
/// On a set of the kernel's `CLOCK_REALTIME` is refused: the kernel measures by `CLOCK_MONOTONIC`
/// only.
///
/// # Errors
/// As [`epoll_pwait2`], and before all others, in this order: `EINVAL`: `flags` is not 0. `EFAULT`:
/// `params` cannot be read. `EINVAL`: its `size` is another, or its clock neither of the two.
///
/// # Safety
/// As [`epoll_pwait2`]; what `params` leads to is not being written.
pub unsafe fn epoll_pwait1(
    epfd: RawFd,
    flags: i32,
    events: *mut Event,
    room: i32,
    params: *const EpollWaitParams,
) -> Result<usize, Errno> {
    if flags != 0 {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's contract; the structure has no invalid values.
    let params = unsafe { memory::read(params) }?;
    if params.size != 0 && params.size as usize != size_of::<EpollWaitParams>() {
        return Err(Errno::INVAL);
    }
    let clock = match params.clockid {
        libc::CLOCK_MONOTONIC => Clock::Monotonic,
        libc::CLOCK_REALTIME => Clock::Realtime,
        _ => return Err(Errno::INVAL),
    };
    let (timeout, mask, size) = (params.timeout, params.sigmask, params.sigsetsize);
    if !table::is_user_level(epfd) && clock == Clock::Monotonic {
        // SAFETY: the caller's contract.
        return unsafe { epoll_pwait2(epfd, events, room, timeout, mask, size) };
    }
    if !table::is_user_level(epfd) {
        return check_open(epfd).and(Err(Errno::INVAL));
    }
    // SAFETY: the caller's contract.
    unsafe { wait_by_clock(epfd, events, room, (clock, timeout), (mask, size)) }
}

/// The most events that one wait takes (`EP_MAX_EVENTS`).
const MOST_EVENTS: usize = i32::MAX.unsigned_abs() as usize / size_of::<Event>();

/// How far a wait gets without sleeping.
enum Look {
    Done(Result<usize, Errno>),
    Sleep(Epoll),
}

/// Waits in a set of ours. None if the number is the kernel's.
///
/// # Safety
/// As [`epoll_pwait`].
#[inline]
unsafe fn wait(
    epfd: RawFd,
    events: *mut Event,
    room: i32,
    limit: Timeout,
    mask: Option<&SigSet>,
) -> Option<Result<usize, Errno>> {
    let room = usize::try_from(room).unwrap_or(0);
    let look = table::with(epfd, |object| {
        if room == 0 || room > MOST_EVENTS {
            return Look::Done(Err(Errno::INVAL));
        }
        if let Err(errno) = memory::check_range(events, room * size_of::<Event>()) {
            return Look::Done(Err(errno));
        }
        match object {
            Object::Epoll(set) if limit.limit() == Some(Duration::ZERO) => {
                // SAFETY: the caller's contract.
                let events = unsafe { memory::writable(events, room) };
                if events.is_empty() {
                    return Look::Sleep(set.clone());
                }
                Look::Done(set.harvest(events))
            }
            Object::Epoll(set) => Look::Sleep(set.clone()),
            _ => Look::Done(Err(Errno::INVAL)),
        }
    });
    let set = match look? {
        Look::Done(result) => return Some(result),
        Look::Sleep(set) => set,
    };
    // SAFETY: the caller's contract.
    let events = unsafe { memory::writable(events, room) };
    if events.is_empty() {
        // There is no place for a single event; that shows when there is one.
        let mut fds = [PollFd::new(&set, Events::IN)];
        let ready = match mask {
            None => upoll::poll(&mut fds, limit),
            Some(mask) => upoll::ppoll(&mut fds, limit, mask),
        };
        return Some(match ready {
            Ok(0) => Ok(0),
            Ok(_) => Err(Errno::FAULT),
            Err(errno) => Err(errno),
        });
    }
    Some(match mask {
        None => set.wait(events, limit),
        Some(mask) => set.pwait(events, limit, mask),
    })
}
