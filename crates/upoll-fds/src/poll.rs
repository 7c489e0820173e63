//! `poll(2)` and `ppoll(2)` by fd.

use std::os::fd::{BorrowedFd, RawFd};
use std::time::Instant;

use smallvec::SmallVec;
use upoll::internal::own_fds;
use upoll::{Clock, Errno, Events, PollFd, SigSet, Target, Timeout};

use crate::kernel::{call, interruptible};
use crate::object::Object;
use crate::signals::Section;
use crate::wait_args::timespec;
use crate::{demote, memory, table, wait_args};

/// As many entries as the kernel keeps on its stack.
const INLINE: usize = 30;

/// The number of entries that are polled without a reference to each object.
const FEW: usize = 8;

/// `poll(2)`.
///
/// # Errors
/// As [`ppoll`].
///
/// # Safety
/// As [`ppoll`].
pub unsafe fn poll(fds: *mut libc::pollfd, count: usize, timeout: i32) -> Result<usize, Errno> {
    // SAFETY: the caller's contract.
    unsafe { poll_masked(fds, count, wait_args::milliseconds(timeout), None) }
}

/// `ppoll(2)`, with the size of the signal mask as the system call has it. `timeout` is not written.
///
/// # Errors
/// - `EFAULT`: `timeout`, `mask` or `fds` cannot be read, or what was found not written.
/// - `EINVAL`: an impossible time, `size` is not 8, or more entries than `RLIMIT_NOFILE`. Up to eight entries,
///   all user-level, are checked against the limit that a call has read last if this call does not
///   sleep; [`prlimit`] has it read again.
/// - `EINTR`: a signal handler ran and nothing was ready; never restarted.
/// - `ENOMEM`: no memory, or no fd to wake the thread by, for an object that cannot be
///   [demoted](crate::demote). Others are demoted then.
///
/// # Safety
/// Memory that `fds` leads to is the caller's, and nobody else uses it; what the other pointers lead
/// to is not being written.
pub unsafe fn ppoll(
    fds: *mut libc::pollfd,
    count: usize,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
    size: usize,
) -> Result<usize, Errno> {
    // SAFETY: the caller's contract.
    let limit = unsafe { wait_args::limit(Clock::Monotonic, timeout) }?;
    // SAFETY: as above.
    let mask = unsafe { wait_args::mask(mask, size) }?;
    // SAFETY: as above.
    unsafe { poll_masked(fds, count, limit, mask.as_ref()) }
}

/// # Safety
/// As [`ppoll`].
unsafe fn poll_masked(
    fds: *mut libc::pollfd,
    count: usize,
    limit: Timeout,
    mask: Option<&SigSet>,
) -> Result<usize, Errno> {
    let count = number_of_entries(count);
    if mask.is_none()
        // SAFETY: the caller's contract.
        && let Some(done) = unsafe { poll_at_once(fds, count, limit) }
    {
        return done;
    }
    if !table::has_any() {
        // SAFETY: as above.
        return unsafe { pass_on(fds, count, limit, mask) };
    }
    let _section = Section::begin();
    upoll::internal::check_number_of_entries(count)?;
    let mut limit = limit;
    // SAFETY: the caller's contract.
    let named = || unsafe { named(fds, count) };
    // SAFETY: as above.
    let once = |limit: &mut Timeout| unsafe { poll_once(fds, count, *limit, mask) };
    match wait_anew(&mut limit, named, once) {
        // The kernel takes no memory of the process.
        Err(Errno::NOMEM) if !named().any(table::is_user_level_or_own) => {
            // SAFETY: as above.
            unsafe { pass_on(fds, count, limit, mask) }
        }
        ended => ended,
    }
}

/// Calls `once` until it returns a number, with the rest of `limit`. It returns `None` if an object was demoted
/// meanwhile. If it fails for want of memory, or of an fd to wake the thread by, those of the objects that the call names
/// are demoted that can be.
pub(crate) fn wait_anew<I: Iterator<Item = RawFd>>(
    limit: &mut Timeout,
    named: impl Fn() -> I,
    mut once: impl FnMut(&mut Timeout) -> Result<Option<usize>, Errno>,
) -> Result<usize, Errno> {
    let running = Running::start(*limit);
    loop {
        match once(limit) {
            Ok(Some(ready)) => return Ok(ready),
            Ok(None) => {}
            Err(Errno::NOMEM) if demote::demote_any(named()) => {}
            Err(errno) => return Err(errno),
        }
        *limit = running.rest();
    }
}

/// `prlimit(2)`. The next [`poll`] reads `RLIMIT_NOFILE` again.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// The memory that the pointers lead to is the caller's.
pub unsafe fn prlimit(
    process: libc::pid_t,
    resource: i32,
    new: *const libc::rlimit64,
    old: *mut libc::rlimit64,
) -> Result<(), Errno> {
    // SAFETY: the kernel checks the pointers.
    let changed = unsafe { call!(SYS_prlimit64, process, resource, new, old) };
    upoll::internal::open_limit_changed();
    changed.map(drop)
}

/// Returns how many entries a call has: the kernel takes an `unsigned int`, so the upper half of an
/// `nfds_t` is ignored.
#[expect(clippy::cast_possible_truncation, reason = "as the kernel does")]
#[inline]
pub fn number_of_entries(count: usize) -> usize {
    count as u32 as usize
}

/// Returns the fds of a list, up to the first entry that cannot be read.
///
/// # Safety
/// As [`ppoll`], as long as the result lives.
unsafe fn named(fds: *mut libc::pollfd, count: usize) -> impl Iterator<Item = RawFd> {
    // SAFETY: the caller's contract; a pollfd has no invalid values.
    let entry = move |at: usize| unsafe { memory::read(fds.wrapping_add(at)) };
    (0..count).map_while(move |at| Some(entry(at).ok()?.fd))
}

/// Polls a few entries without a wait queue: returns what is ready, or that nothing is if the call has a limit
/// of zero. None if the call has to be served otherwise: nothing is ready and it is to wait, an object was
/// demoted meanwhile, or no entry is user-level.
///
/// The kernel is asked about its entries by one call, in which the user-level ones are left out. Nothing of
/// this library is in use meanwhile, so a signal handler runs as in any system call of the program.
///
/// # Safety
/// As [`ppoll`].
#[inline]
unsafe fn poll_at_once(
    fds: *mut libc::pollfd,
    count: usize,
    limit: Timeout,
) -> Option<Result<usize, Errno>> {
    if count == 0 || count > FEW || !upoll::internal::open_limit_allows_few() || !fds.is_aligned() {
        return None;
    }
    // SAFETY: the caller's contract; a pollfd has no invalid values.
    let fds = unsafe { memory::writable(fds, count) };
    if fds.len() < count {
        return None;
    }
    let mut found = [0_u16; FEW];
    let mut asked = [LEFT_OUT; FEW];
    let mut user_level = 0;
    let mut ready = 0;
    for ((entry, found), asked) in fds.iter().zip(&mut found).zip(&mut asked) {
        match table::with(entry.fd, |object| state_at_once(object, entry)) {
            Some(state) => {
                *found = state?;
                user_level += 1;
                ready += usize::from(*found != 0);
            }
            None if own_fds::is_own(entry.fd) => return None,
            None => (asked.fd, asked.events) = (entry.fd, entry.events),
        }
    }
    if user_level == 0 {
        return None;
    }
    let mut ended = Ok(());
    if user_level < count {
        match ask_at_once(&mut asked[..count]) {
            Ok(more) => ready += more,
            Err(Errno::INTR) if ready > 0 => {}
            Err(Errno::INTR) => ended = Err(Errno::INTR),
            Err(errno) => return Some(Err(errno)),
        }
    }
    if ready == 0 && ended.is_ok() && limit != Timeout::NOW {
        return None;
    }
    for ((entry, found), asked) in fds.iter_mut().zip(found).zip(asked) {
        entry.revents = found.cast_signed() | asked.revents;
    }
    Some(ended.map(|()| ready))
}

/// An entry that the kernel ignores, but counts.
const LEFT_OUT: libc::pollfd = libc::pollfd {
    fd: -1,
    events: 0,
    revents: 0,
};

/// Returns what is ready now of what an entry asks for. None if the object is the kernel's to serve.
#[inline]
fn state_at_once(object: &Object, entry: &libc::pollfd) -> Option<u16> {
    if matches!(object, Object::Epoll(set) if set.is_passive()) {
        return None;
    }
    let events = Events::from_bits_retain(u32::from(entry.events.cast_unsigned()));
    let ready = object.as_file_ref(entry.fd).ready();
    // A demoted object shows HUP; of a pipe's two ends the writing one shows ERR.
    if ready.intersects(Events::HUP | Events::ERR) && object.is_stale() {
        return None;
    }
    Some(low(ready & (events | Events::ERR | Events::HUP)))
}

/// `poll(2)` with a limit of zero.
#[inline]
fn ask_at_once(asked: &mut [libc::pollfd]) -> Result<usize, Errno> {
    // SAFETY: the list is as long as the kernel is told.
    #[cfg(target_arch = "x86_64")]
    return unsafe { call!(SYS_poll, asked.as_mut_ptr(), asked.len(), 0) };
    #[cfg(not(target_arch = "x86_64"))]
    {
        let mut limit = timespec(Timeout::NOW);
        let limit = limit
            .as_mut()
            .map_or(std::ptr::null_mut(), std::ptr::from_mut);
        // SAFETY: as above; the limit is live, and without a mask its size is ignored.
        unsafe {
            call!(
                SYS_ppoll,
                asked.as_mut_ptr(),
                asked.len(),
                limit,
                0,
                size_of::<u64>()
            )
        }
    }
}

/// Writes the returned events to the caller's entry.
///
/// # Safety
/// As [`memory::write`].
#[inline]
unsafe fn tell(place: *mut libc::pollfd, revents: u16) -> Result<(), Errno> {
    let place = place.wrapping_byte_add(std::mem::offset_of!(libc::pollfd, revents));
    // SAFETY: the caller's contract.
    unsafe { memory::write(place.cast(), revents) }
}

/// As a pollfd has them.
#[expect(clippy::cast_possible_truncation, reason = "it has sixteen bits")]
fn low(events: Events) -> u16 {
    events.bits() as u16
}

/// A limit that has begun.
struct Running {
    limit: Timeout,
    begun: Option<Instant>,
}

impl Running {
    fn start(limit: Timeout) -> Self {
        // Looking at the clock is not for those who do not wait, or wait however long it takes.
        let is_finite = limit.limit().is_some_and(|limit| !limit.is_zero());
        Running {
            limit,
            begun: is_finite.then(Instant::now),
        }
    }

    fn rest(&self) -> Timeout {
        match (self.limit.limit(), self.begun) {
            (Some(limit), Some(begun)) => limit.saturating_sub(begun.elapsed()).into(),
            _ => self.limit,
        }
    }
}

/// None if an object was demoted meanwhile: it must be polled anew.
///
/// # Safety
/// As [`ppoll`].
unsafe fn poll_once(
    fds: *mut libc::pollfd,
    count: usize,
    limit: Timeout,
    mask: Option<&SigSet>,
) -> Result<Option<usize>, Errno> {
    let entry = |at: usize| {
        // SAFETY: the caller's contract; a pollfd has no invalid values.
        unsafe { memory::read(fds.wrapping_add(at)) }
    };
    let mut objects = SmallVec::<[Option<Object>; INLINE]>::new();
    let mut is_the_kernels = true;
    objects.try_reserve(count).map_err(|_| Errno::NOMEM)?;
    for at in 0..count {
        let fd = entry(at)?.fd;
        let object = table::get_to_watch(fd)?;
        is_the_kernels &= object.is_none() && !own_fds::is_own(fd);
        objects.push(object);
    }
    if is_the_kernels {
        // SAFETY: as above.
        return unsafe { pass_on(fds, count, limit, mask) }.map(Some);
    }
    let mut entries = SmallVec::<[PollFd<'_>; INLINE]>::new();
    entries.try_reserve(count).map_err(|_| Errno::NOMEM)?;
    // Room for later results is allocated now: a report that cannot be stored would be lost.
    let mut found = SmallVec::<[Events; INLINE]>::new();
    found.try_reserve(count).map_err(|_| Errno::NOMEM)?;
    for (at, object) in objects.iter().enumerate() {
        let asked = entry(at)?;
        let events = Events::from_bits_retain(u32::from(asked.events.cast_unsigned()));
        entries.push(match object {
            Some(object) => PollFd::from_target(Target::File(object.as_file_ref(asked.fd)), events),
            None if asked.fd < 0 => PollFd::ignored(),
            None if own_fds::is_own(asked.fd) => PollFd::not_open(),
            None => {
                // SAFETY: an fd that is not open shows as such; it is not closed here.
                let fd = unsafe { BorrowedFd::borrow_raw(asked.fd) };
                PollFd::from_target(Target::Kernel(fd), events)
            }
        });
    }
    let ended = match mask {
        None => upoll::poll(&mut entries, limit),
        Some(mask) => upoll::ppoll(&mut entries, limit, mask),
    };
    if let Err(errno) = ended
        && errno != Errno::INTR
    {
        return Err(errno);
    }
    let is_stale = |object: &Option<Object>| object.as_ref().is_some_and(Object::is_stale);
    if ended.is_ok() && objects.iter().any(is_stale) {
        for at in (0..count).filter(|&at| is_stale(&objects[at])) {
            table::leave_if_stale(entry(at)?.fd);
        }
        return Ok(None);
    }
    let mut ready = 0;
    for (at, polled) in entries.iter().enumerate() {
        let asked = entry(at)?;
        let revents = match is_same(asked.fd, objects[at].as_ref()) {
            true => polled.revents(),
            false => state_now(asked.fd, polled.events())?,
        };
        ready += usize::from(!revents.is_empty());
        found.push(revents);
    }
    match ended {
        // The reported events belong to files that the fds no longer stand for.
        Ok(1..) if ready == 0 => return Ok(None),
        _ => {}
    }
    for (at, &revents) in found.iter().enumerate() {
        // SAFETY: as above.
        unsafe { tell(fds.wrapping_add(at), low(revents)) }?;
    }
    match ended {
        Err(errno) if ready == 0 => Err(errno),
        _ => Ok(Some(ready)),
    }
}

/// Returns whether `fd` still stands for `object`, or for no user-level object if that is `None`. Linux looks every fd up
/// again each time it checks the list, so one that was closed or replaced meanwhile is not the file that
/// the call began to wait for.
pub(crate) fn is_same(fd: RawFd, object: Option<&Object>) -> bool {
    let is_same = table::with(fd, |now| object.is_some_and(|then| now.is_same_file(then)));
    is_same.unwrap_or(object.is_none())
}

/// Returns which of `events` are ready now on the file that `fd` stands for, `NVAL` if it is not open.
pub(crate) fn state_now(fd: RawFd, events: Events) -> Result<Events, Errno> {
    if fd < 0 {
        return Ok(Events::empty());
    }
    if own_fds::is_own(fd) {
        return Ok(Events::NVAL);
    }
    loop {
        let object = table::get_to_watch(fd)?;
        let target = match &object {
            Some(object) => Target::File(object.as_file_ref(fd)),
            // SAFETY: an fd that is not open is reported as such; it is not closed here.
            None => Target::Kernel(unsafe { BorrowedFd::borrow_raw(fd) }),
        };
        let mut entries = [PollFd::from_target(target, events)];
        upoll::poll(&mut entries, Timeout::NOW)?;
        if !object.as_ref().is_some_and(Object::is_stale) {
            return Ok(entries[0].revents());
        }
        table::leave_if_stale(fd);
    }
}

/// # Safety
/// As [`ppoll`].
unsafe fn pass_on(
    fds: *mut libc::pollfd,
    count: usize,
    limit: Timeout,
    mask: Option<&SigSet>,
) -> Result<usize, Errno> {
    let mut limit = timespec(limit);
    let limit = limit
        .as_mut()
        .map_or(std::ptr::null_mut(), std::ptr::from_mut);
    let mask = mask.map(|&mask| libc::sigset_t::from(mask));
    let mask = mask.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the kernel checks the caller's pointer; limit and mask are null or live.
    unsafe { interruptible!(SYS_ppoll, fds, count, limit, mask, size_of::<u64>()) }
}
