//! `epoll_create(2)`, `epoll_wait(2)` and their later forms, by fd.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::ptr;
use std::time::Duration;

use upoll::internal::SharedBox;
use upoll::internal::own_fds::AlwaysWritable;
use upoll::{Clock, CreateFlags, Epoll, Errno, Event, Events, Op, PollFd, Timeout};

use crate::kernel::{call, interruptible, to_fd};
use crate::object::Object;
use crate::passivity::StayAway;
use crate::set::{SetWithFd, Wakeable};
use crate::signals::Section;
use crate::slot::Entry;
use crate::table::programs;
use crate::wait_args::{limit, mask, milliseconds, signals_of, timespec};
use crate::{change, install, memory, table, wall_clock};

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
/// `EINVAL`: an unknown flag. `EMFILE`, `ENFILE`, `ENOMEM`: the kernel has no fd to give.
pub fn epoll_create1(flags: i32) -> Result<RawFd, Errno> {
    let _section = Section::begin();
    let flags = CreateFlags::from_bits_retain(flags.cast_unsigned());
    let of_the_kernel = flags - CreateFlags::ROTATE;
    let rotates = flags.contains(CreateFlags::ROTATE);
    let entry = Epoll::create(flags)
        .and_then(|set| SharedBox::new(SetWithFd::new(set, rotates)))
        .and_then(|set| Entry::new(Object::Epoll(set)));
    let entry = match entry {
        Ok(entry) => Some(entry),
        // Without memory the set is the kernel's. The kernel has none that rotates.
        Err(Errno::NOMEM) if !rotates => None,
        Err(errno) => return Err(errno),
    };
    let change = match rotates {
        true => Some(change::Change::begin()),
        false => change::Change::try_begin(),
    };
    // SAFETY: no pointers are involved.
    let fd = to_fd(unsafe { call!(SYS_epoll_create1, of_the_kernel.bits()) })?;
    match entry.filter(|_| change.is_some() && (rotates || install::has_room(fd))) {
        Some(entry) => install::install(fd, entry),
        // While a fork is under way the child is to have it, too.
        None => Ok(fd),
    }
}

/// Makes the set that `epfd` stands for active now. Otherwise it becomes active with its first
/// user-level member.
///
/// # Errors
/// `EBADF`: it stands for no user-level object. `EINVAL`: the object is no set. `EMFILE`, `ENFILE`,
/// `ENOMEM`: the kernel cannot open the fds for it.
pub fn activate(epfd: RawFd) -> Result<(), Errno> {
    let activated = table::with(epfd, |object| match object {
        // The set opens the fds that it needs while there are some. Without them the kernel still serves it.
        Object::Epoll(set) => set.adopt(epfd).and_then(|()| set.activate(epfd)),
        _ => Err(Errno::INVAL),
    });
    activated.unwrap_or(Err(Errno::BADF))
}

/// Opens an fd that is readable while the set that `epfd` stands for has something to report, for calls that know
/// only kernel fds. The caller closes it. It outlives the set, and goes on to show the kernel set if
/// the set is demoted.
///
/// # Errors
/// `EBADF`: `epfd` is not open. `EINVAL`: it is no set. `EMFILE`, `ENFILE`, `ENOMEM`, `ENOSPC`: the kernel has no fd
/// or memory for it.
pub fn epoll_fd(epfd: RawFd) -> Result<RawFd, Errno> {
    let _section = Section::begin();
    let shown = table::with(epfd, |object| match object {
        Object::Epoll(set) => {
            // The kernel members have to be where demotion leaves them.
            set.adopt(epfd)?;
            set.activate(epfd)?;
            let fd = set.as_epoll().readiness_fd()?;
            duplicate(fd.try_as_fd()?.as_raw_fd())
        }
        _ => Err(Errno::INVAL),
    });
    shown.unwrap_or_else(|| {
        let other = AlwaysWritable::new()?;
        let other = other.as_fd().as_raw_fd();
        let epfd = programs(epfd);
        // SAFETY: deleting takes no event. No set of the program's has the other fd.
        match unsafe { call!(SYS_epoll_ctl, epfd, Op::Del as i32, other, 0_usize) } {
            Err(Errno::NOENT) => duplicate(epfd),
            Err(errno) => Err(errno),
            Ok(_) => Err(Errno::INVAL),
        }
    })
}

/// Shows the [figures](crate::internal::figures) of the set that `epfd` stands for, if it is user-level. The calling thread has just
/// changed it, or waited in it and got as many events.
#[cold]
pub fn note_figures(epfd: RawFd, events: usize) {
    table::with(epfd, |object| {
        if let Object::Epoll(set) = object {
            set.note_figures(epfd, events);
        }
    });
}

fn duplicate(fd: RawFd) -> Result<RawFd, Errno> {
    // SAFETY: no pointers are involved.
    to_fd(unsafe { call!(SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, 0) })
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
    let asked = Asked::Milliseconds(timeout);
    // SAFETY: the caller's contract.
    unsafe {
        match harvest_at_once(epfd, (events, room), asked) {
            Some(found) => found,
            None => wait_further(epfd, (events, room), asked, NO_MASK),
        }
    }
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
    let asked = Asked::Milliseconds(timeout);
    // SAFETY: the caller's contract.
    unsafe { wait(epfd, (events, room), asked, (mask, size)) }
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
    let asked = Asked::By(Clock::Monotonic, timeout);
    // SAFETY: the caller's contract.
    unsafe { wait(epfd, (events, room), asked, (mask, size)) }
}

/// `struct epoll_wait_params` of the `epoll_pwait1` patch.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EpollWaitParams {
    /// The version of this structure that the caller uses: 0 for the first, or its size.
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

/// `epoll_pwait1` of the patch of that name: [`epoll_pwait2`] with a choice of clock.
///
/// # Clocks
/// `CLOCK_REALTIME`: the wait ends when that clock has advanced by `timeout`, and not before, even if
/// the clock is set meanwhile. The kernel limits waits in its sets by `CLOCK_MONOTONIC` only. Such a
/// wait therefore sleeps for a second at most, then reads the clock. If the clock was set forward past
/// the end, the wait ends up to a second later.
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
    let asked = Asked::By(clock, params.timeout);
    // SAFETY: the caller's contract.
    unsafe {
        wait(
            epfd,
            (events, room),
            asked,
            (params.sigmask, params.sigsetsize),
        )
    }
}

/// The limit of a wait, as the caller passes it.
#[derive(Clone, Copy)]
enum Asked {
    /// Negative: without limit.
    Milliseconds(i32),
    /// Null: without limit.
    By(Clock, *const libc::timespec),
    /// The rest of another limit.
    Rest(Timeout),
}

impl Asked {
    /// # Safety
    /// As [`memory::read`].
    unsafe fn limit(self) -> Result<Timeout, Errno> {
        match self {
            Asked::Milliseconds(timeout) => Ok(milliseconds(timeout)),
            // SAFETY: the caller's contract.
            Asked::By(clock, timeout) => unsafe { limit(clock, timeout) },
            Asked::Rest(limit) => Ok(limit),
        }
    }

    /// By which clock.
    fn clock(self) -> Clock {
        match self {
            Asked::Milliseconds(_) => Clock::Monotonic,
            Asked::By(clock, _) => clock,
            Asked::Rest(limit) => limit.clock(),
        }
    }

    /// Returns whether the clock has to be looked at.
    fn is_finite(self) -> bool {
        match self {
            Asked::Milliseconds(timeout) => timeout > 0,
            Asked::By(_, timeout) => !timeout.is_null(),
            Asked::Rest(limit) => limit.limit().is_some(),
        }
    }
}

type Mask = (*const libc::sigset_t, usize);
const NO_MASK: Mask = (ptr::null(), 0);
/// The place for events, and the number that it has room for.
type Room = (*mut Event, i32);

/// A wait by the kernel, in the kernel set that `epfd` stands for.
///
/// # Safety
/// As [`epoll_pwait2`].
unsafe fn wait_in_the_kernels(
    epfd: RawFd,
    (events, room): Room,
    asked: Asked,
    (mask, size): Mask,
) -> Result<usize, Errno> {
    let mut rest = None;
    let limit = match asked {
        Asked::Milliseconds(timeout) => {
            // SAFETY: the kernel checks the pointers; the rest is the caller's contract.
            return unsafe { pwait_of_the_kernel(epfd, (events, room), timeout, (mask, size)) };
        }
        Asked::By(Clock::Monotonic, limit) => limit,
        Asked::By(..) | Asked::Rest(_) => {
            // SAFETY: the caller's contract.
            let limit = unsafe { asked.limit() }?;
            if let (Clock::Realtime, Some(whole)) = (limit.clock(), limit.limit())
                && !whole.is_zero()
            {
                // SAFETY: the caller's contract.
                let signals = unsafe { signals_of(mask, size) }?;
                return wall_clock::wait(whole, signals, |sleep, signals| {
                    let limit = timespec(sleep.into());
                    let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
                    let (signals, size) = ((&raw const signals).cast(), size_of::<u64>());
                    // SAFETY: the kernel checks where the events go; time and mask are live.
                    unsafe { pwait2_of_the_kernel(epfd, (events, room), limit, (signals, size)) }
                });
            }
            match timespec(limit) {
                Some(limit) => &raw const *rest.insert(limit),
                None => ptr::null(),
            }
        }
    };
    // SAFETY: as above.
    unsafe { pwait2_of_the_kernel(epfd, (events, room), limit, (mask, size)) }
}

/// The kernel's `epoll_pwait2(2)`, or what comes nearest to it.
///
/// # Safety
/// As [`epoll_pwait2`].
unsafe fn pwait2_of_the_kernel(
    epfd: RawFd,
    (events, room): Room,
    limit: *const libc::timespec,
    (mask, size): Mask,
) -> Result<usize, Errno> {
    let epfd = programs(epfd);
    // SAFETY: the kernel checks the pointers; the rest is the caller's contract.
    let found = unsafe { interruptible!(SYS_epoll_pwait2, epfd, events, room, limit, mask, size) };
    // Filters of system calls may refuse with `EPERM` what they do not know; the call itself never does.
    if found != Err(Errno::NOSYS) && found != Err(Errno::PERM) {
        return found;
    }
    // Before Linux 5.11, and under valgrind. No wait may end early, so it is rounded up.
    let milliseconds = if limit.is_null() {
        -1
    } else {
        // SAFETY: as above.
        let limit = unsafe { memory::read(limit) }?;
        let nanoseconds = u32::try_from(limit.tv_nsec).ok();
        let nanoseconds = nanoseconds.filter(|&rest| rest < 1_000_000_000);
        let (Ok(seconds), Some(rest)) = (u64::try_from(limit.tv_sec), nanoseconds) else {
            return Err(Errno::INVAL);
        };
        let whole = seconds
            .saturating_mul(1000)
            .saturating_add(u64::from(rest.div_ceil(1_000_000)));
        i32::try_from(whole).unwrap_or(i32::MAX)
    };
    // SAFETY: as above.
    unsafe { pwait_of_the_kernel(epfd, (events, room), milliseconds, (mask, size)) }
}

/// The kernel's `epoll_pwait(2)`. Without a limit to wait for it gives no `EINTR`.
///
/// # Safety
/// As [`epoll_pwait`].
#[inline]
unsafe fn pwait_of_the_kernel(
    epfd: RawFd,
    (events, room): Room,
    timeout: i32,
    (mask, size): Mask,
) -> Result<usize, Errno> {
    let epfd = programs(epfd);
    // SAFETY: the kernel checks the pointers; the rest is the caller's contract.
    unsafe {
        match timeout {
            0 => call!(SYS_epoll_pwait, epfd, events, room, timeout, mask, size),
            _ => interruptible!(SYS_epoll_pwait, epfd, events, room, timeout, mask, size),
        }
    }
}

/// A wait, by whoever serves the set.
///
/// # Safety
/// As [`epoll_pwait2`].
#[inline]
unsafe fn wait(epfd: RawFd, room: Room, asked: Asked, mask: Mask) -> Result<usize, Errno> {
    // SAFETY: the caller's contract.
    unsafe {
        if mask.0.is_null()
            && let Some(found) = harvest_at_once(epfd, room, asked)
        {
            return found;
        }
        wait_further(epfd, room, asked, mask)
    }
}

/// A wait that was not over at once.
///
/// # Safety
/// As [`epoll_pwait2`].
#[inline(never)]
unsafe fn wait_further(epfd: RawFd, room: Room, asked: Asked, mask: Mask) -> Result<usize, Errno> {
    // SAFETY: the caller's contract.
    unsafe {
        match table::is_user_level(epfd) {
            true => wait_and_sleep(epfd, room, asked, mask),
            false => wait_in_the_kernels(epfd, room, asked, mask),
        }
    }
}

/// A wait that is over at once, in a user-level set: something is ready, or it is not to last.
/// None if it is another one.
///
/// # Safety
/// As [`epoll_pwait2`].
#[inline(always)]
unsafe fn harvest_at_once(
    epfd: RawFd,
    (events, room): Room,
    asked: Asked,
) -> Option<Result<usize, Errno>> {
    let lasts = match asked {
        Asked::Milliseconds(timeout) => timeout != 0,
        // SAFETY: the caller's contract. The slow path returns the error, if there is one.
        _ => unsafe { asked.limit() }.ok()? != Timeout::NOW,
    };
    let room = usize::try_from(room).ok()?;
    if room > MOST_EVENTS || memory::check_range(events, room * size_of::<Event>()).is_err() {
        return None;
    }
    let hazard = table::Hazard::begin(epfd)?;
    let Object::Epoll(set) = hazard.object() else {
        return None;
    };
    if lasts && (set.is_mixed() || set.as_epoll().takes_turns()) {
        // Its sleep begins with a check of the kernel's members, or with its turn.
        return None;
    }
    if set.is_passive() {
        return None;
    }
    // SAFETY: the caller's contract.
    let events = unsafe { memory::writable(events, fillable(set, room)) };
    if events.is_empty() {
        return None;
    }
    let wakeable = Wakeable::begin();
    let found = match set.as_epoll().try_wait(events) {
        Ok(found) => {
            // SAFETY: they were just written there.
            let kept = unsafe { wakeable.sift(events.as_mut_ptr(), found) };
            if kept == 0 && found == events.len() {
                // The event that interrupts waits has taken the only place.
                return None;
            }
            Ok(kept)
        }
        Err(errno) => Err(errno),
    };
    (found != Ok(0) || !lasts).then_some(found)
}

/// A wait that may sleep, in a user-level set.
///
/// # Safety
/// As [`epoll_pwait2`].
unsafe fn wait_and_sleep(
    epfd: RawFd,
    room: Room,
    asked: Asked,
    mask: Mask,
) -> Result<usize, Errno> {
    let _section = Section::begin();
    // SAFETY: the caller's contract.
    unsafe {
        let clock = asked.clock();
        let begun = asked.is_finite().then(|| coarse_now(clock));
        let (whole, mut asked) = (asked, asked);
        let (mut tries, mut stay_away) = (0, StayAway::default());
        loop {
            let wakeable = Wakeable::begin();
            let found = match wait_passively(epfd, room, asked, mask) {
                Some(found) => Some(found?),
                None => match wait_actively(epfd, room, asked, mask)? {
                    Waited::Found(found) => Some(found),
                    Waited::InTheKernels => return wait_in_the_kernels(epfd, room, asked, mask),
                    Waited::Passive(errno) => {
                        stay_away.or(errno)?;
                        None
                    }
                },
            };
            if let Some(found) = found {
                let kept = wakeable.sift(room.0, found);
                if found == 0 || kept > 0 {
                    return Ok(kept);
                }
                tries += 1;
            }
            // It was woken to wait anew, or could not begin.
            let mut limit = whole.limit()?;
            let had_room = found.zip(usize::try_from(room.1).ok());
            let had_room = had_room.is_some_and(|(found, room)| found < room);
            if limit.limit() == Some(Duration::ZERO) && (had_room || tries == TRIES) {
                return Ok(0);
            }
            if let (Some(begun), Some(whole)) = (begun, limit.limit()) {
                let rest = match rest_of(whole, begun, clock) {
                    Some(rest) => rest,
                    // The interrupting event stays until others have come.
                    None if found.is_some() => return Ok(0),
                    // A wait that could not begin tries once at least.
                    None => Duration::ZERO,
                };
                limit = Timeout::after(clock, rest);
            }
            asked = Asked::Rest(limit);
        }
    }
}

/// The number of times that a wait without a sleep tries again after the interrupting event has taken the only place.
/// The kernel reports that event again only behind other ready ones, but maybe to several threads by
/// turns.
const TRIES: usize = 64;

/// The most that the coarse clock is behind: a tick of the slowest kernels.
const COARSENESS: Duration = Duration::from_millis(10);

/// Returns the rest of a limit that has run since `begun`, and `None` if it has passed for certain.
fn rest_of(whole: Duration, begun: Duration, clock: Clock) -> Option<Duration> {
    let end = begun.saturating_add(whole);
    let now = coarse_now(clock);
    if now >= end.saturating_add(COARSENESS) {
        return None;
    }
    let rest = end.saturating_sub(now);
    Some(match clock {
        Clock::Monotonic => rest.saturating_add(COARSENESS).min(whole),
        _ => rest,
    })
}

/// The time by a clock; by `CLOCK_MONOTONIC`, which every wait with a limit looks at, in a way that
/// takes next to nothing.
fn coarse_now(clock: Clock) -> Duration {
    if clock == Clock::Realtime {
        return wall_clock::now();
    }
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call fills the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// A wait in a passive set. None if the set is not.
///
/// # Safety
/// As [`epoll_pwait2`].
#[inline]
unsafe fn wait_passively(
    epfd: RawFd,
    room: Room,
    asked: Asked,
    mask: Mask,
) -> Option<Result<usize, Errno>> {
    let passive = |object: &Object| match object {
        Object::Epoll(set) if set.stays_passive() => Some(set.blocked_on()),
        _ => None,
    };
    // SAFETY: the caller's contract.
    let by_the_kernel = || unsafe { wait_in_the_kernels(epfd, room, asked, mask) };
    table::while_blocked_on(epfd, passive, by_the_kernel)
}

/// The result of a wait without its sleep.
enum Attempt {
    Done(Result<usize, Errno>),
    Sleep(SharedBox<SetWithFd>),
    Passive(Errno),
}

/// The outcome of a wait in a user-level set.
enum Waited {
    Found(usize),
    /// The fd stands for no user-level object.
    InTheKernels,
    /// The set is passive: no thread could make it active, for this reason.
    Passive(Errno),
}

/// Waits in a user-level set.
///
/// # Safety
/// As [`epoll_pwait2`].
unsafe fn wait_actively(
    epfd: RawFd,
    (events, room): Room,
    asked: Asked,
    (mask, size): Mask,
) -> Result<Waited, Errno> {
    // SAFETY: the caller's contract.
    let limit = unsafe { asked.limit() }?;
    // SAFETY: as above.
    let mask = unsafe { self::mask(mask, size) }?;
    let room = usize::try_from(room).unwrap_or(0);
    let attempt = table::with(epfd, |object| {
        if room == 0 || room > MOST_EVENTS {
            return Attempt::Done(Err(Errno::INVAL));
        }
        if let Err(errno) = memory::check_range(events, room * size_of::<Event>()) {
            return Attempt::Done(Err(errno));
        }
        let Object::Epoll(set) = object else {
            return Attempt::Done(Err(Errno::INVAL));
        };
        if let Err(errno) = set.activate(epfd) {
            return Attempt::Passive(errno);
        }
        // Such a wait sleeps in the kernel.
        if mask.is_some()
            && let Err(errno) = set.adopt(epfd)
        {
            return Attempt::Done(Err(errno));
        }
        if limit.limit() == Some(Duration::ZERO) {
            // SAFETY: the caller's contract.
            let events = unsafe { memory::writable(events, fillable(set, room)) };
            if !events.is_empty() {
                return Attempt::Done(set.as_epoll().try_wait(events));
            }
        }
        Attempt::Sleep(SharedBox::clone(set))
    });
    let set = match attempt {
        None => return Ok(Waited::InTheKernels),
        Some(Attempt::Done(result)) => return result.map(Waited::Found),
        Some(Attempt::Passive(errno)) => return Ok(Waited::Passive(errno)),
        Some(Attempt::Sleep(set)) => set,
    };
    // SAFETY: the caller's contract.
    let events = unsafe { memory::writable(events, fillable(&set, room)) };
    let set = set.as_epoll();
    if events.is_empty() {
        // There is no place for a single event; that shows when there is one.
        let mut fds = [PollFd::new(set, Events::IN)];
        let ready = match mask {
            None => upoll::poll(&mut fds, limit),
            Some(mask) => upoll::ppoll(&mut fds, limit, &mask),
        };
        return match ready {
            Ok(0) => Ok(Waited::Found(0)),
            Ok(_) => Err(Errno::FAULT),
            Err(errno) => Err(errno),
        };
    }
    let found = match mask {
        None => set.wait(events, limit),
        Some(mask) => set.pwait(events, limit, &mask),
    };
    found.map(Waited::Found)
}

/// The most events that one wait takes (`EP_MAX_EVENTS`).
const MOST_EVENTS: usize = i32::MAX.unsigned_abs() as usize / size_of::<Event>();

/// Up to here all of the room for events is looked at, however many a set has.
const FEW_EVENTS: usize = (16 << 12) / size_of::<Event>();

/// Returns the part of the room for events that a wait can fill: looking at a page takes memory for it, and time.
#[inline]
fn fillable(set: &SetWithFd, room: usize) -> usize {
    match room > FEW_EVENTS {
        true => room.min(set.as_epoll().len_at_most().max(FEW_EVENTS)),
        false => room,
    }
}
