//! `select(2)` and `pselect(2)` by fd.

use core::ffi::c_ulong;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use smallvec::SmallVec;
use upoll::internal::own_fds;
use upoll::{Clock, Errno, Events, FdSet, SigSet, Target, Timeout};

use crate::kernel::{self, interruptible};
use crate::object::Object;
use crate::poll::{is_same, state_now, wait_anew};
use crate::signals::Section;
use crate::wait_args::{self, timespec};
use crate::{memory, table};

/// The three sets as the caller has them; each may be null.
pub type UserSets = [*mut libc::fd_set; 3];

const WORD: usize = c_ulong::BITS as usize;

/// `select(2)` as the C library's function is: `sets` are those for reading, writing and exceptional conditions. The
/// remaining time is written to `timeout`.
///
/// Like glibc from 2.34 on, reads 32 bits of the microseconds, and cuts a time that is too long.
/// The system call does neither.
///
/// # Errors
/// - `EFAULT`: `timeout` or a set cannot be read or written.
/// - `EINVAL`: a time that is negative, or `n` is negative.
/// - `EBADF`: an fd in the sets is not open.
/// - `EINTR`: a signal handler ran and nothing was ready; never restarted.
/// - `ENOMEM`: no memory, or no fd to wake the thread by, for an object that cannot be
///   [demoted](crate::demote). Others are demoted then.
///
/// # Safety
/// Memory that the pointers lead to is the caller's, and nobody else uses it.
pub unsafe fn select(n: i32, sets: UserSets, timeout: *mut libc::timeval) -> Result<usize, Errno> {
    if timeout.is_null() {
        // SAFETY: the caller's contract.
        return unsafe { select_for(n, sets, None, timeout) };
    }
    // SAFETY: the caller's contract.
    let libc::timeval { tv_sec, tv_usec } = unsafe { memory::read(timeout) }?;
    #[expect(clippy::cast_possible_truncation, reason = "as in the C library")]
    let microseconds = u32::try_from(tv_usec as i32).map_err(|_| Errno::INVAL)?;
    let seconds = u64::try_from(tv_sec).map_err(|_| Errno::INVAL)?;
    let time = Duration::from_secs(seconds) + Duration::from_micros(microseconds.into());
    let time = time.min(LONGEST);
    if time.is_zero() && tv_usec != 0 {
        // The C library writes the time that it has passed to the kernel, which leaves a limit of zero alone.
        // SAFETY: the caller's contract.
        unsafe { write_time(timeout, time) };
    }
    // SAFETY: as above.
    unsafe { select_for(n, sets, Some(time), timeout) }
}

/// `select(2)` as the system call is. All bits of the microseconds count.
///
/// # Errors
/// As [`select`]. `EINVAL` also: a time that is too large for its seconds.
///
/// # Safety
/// As [`select`].
pub unsafe fn raw_select(
    n: i32,
    sets: UserSets,
    timeout: *mut libc::timeval,
) -> Result<usize, Errno> {
    let mut limit = None;
    if !timeout.is_null() {
        // SAFETY: the caller's contract.
        let timeout = unsafe { memory::read(timeout) }?;
        // Microseconds may be more than a second, and make up for negative seconds. The sum wraps (`kern_select`).
        let seconds = timeout.tv_sec.wrapping_add(timeout.tv_usec / 1_000_000);
        let seconds = u64::try_from(seconds).map_err(|_| Errno::INVAL)?;
        let microseconds = u32::try_from(timeout.tv_usec % 1_000_000).map_err(|_| Errno::INVAL)?;
        limit = Some(Duration::new(seconds, microseconds * 1_000));
    }
    // SAFETY: the caller's contract.
    unsafe { select_for(n, sets, limit, timeout) }
}

/// The longest time that the C library passes to the kernel.
const LONGEST: Duration = Duration::new(libc::time_t::MAX as u64, 999_999_000);

/// Selects, and writes the remaining time to `timeout`, unless `given` is zero or no limit.
///
/// # Safety
/// As [`select`].
unsafe fn select_for(
    n: i32,
    sets: UserSets,
    given: Option<Duration>,
    timeout: *mut libc::timeval,
) -> Result<usize, Errno> {
    let mut limit = given.map_or(Timeout::NEVER, Timeout::from);
    // Like the kernel, leaves a limit of zero alone.
    let given = given.filter(|given| !given.is_zero());
    // SAFETY: the caller's contract.
    let ready = unsafe { select_masked(n, sets, &mut limit, None) };
    if let (Some(given), Some(left)) = (given, limit.limit()) {
        // A call that is over at once does not read the clock, but takes some time: a loop that goes by the rest ends.
        let left = left.min(given.saturating_sub(Duration::from_nanos(1)));
        // SAFETY: as above.
        unsafe { write_time(timeout, left) };
    }
    ready
}

/// # Safety
/// As [`select`].
unsafe fn write_time(timeout: *mut libc::timeval, time: Duration) {
    let time = libc::timeval {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_usec: time.subsec_micros().into(),
    };
    // SAFETY: the caller's contract.
    unsafe { memory::write_if_possible(timeout, time) };
}

/// `pselect(2)`, with the size of the signal mask as the system call has it. `timeout` is not
/// written.
///
/// # Errors
/// As [`select`]. `EINVAL`: an impossible time, or `size` is not 8. `EFAULT`: `mask` cannot be read.
///
/// # Safety
/// As [`select`].
pub unsafe fn pselect(
    n: i32,
    sets: UserSets,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
    size: usize,
) -> Result<usize, Errno> {
    // SAFETY: the caller's contract.
    let mut limit = unsafe { wait_args::limit(Clock::Monotonic, timeout) }?;
    // SAFETY: as above.
    let mask = unsafe { wait_args::mask(mask, size) }?;
    // SAFETY: as above.
    unsafe { select_masked(n, sets, &mut limit, mask.as_ref()) }
}

/// # Safety
/// As [`select`].
unsafe fn select_masked(
    n: i32,
    sets: UserSets,
    limit: &mut Timeout,
    mask: Option<&SigSet>,
) -> Result<usize, Errno> {
    let Ok(end) = usize::try_from(n) else {
        return Err(Errno::INVAL);
    };
    if mask.is_none()
        // SAFETY: the caller's contract.
        && let Some(ready) = unsafe { select_at_once(end, sets, *limit) }
    {
        return Ok(ready);
    }
    if !table::has_any() {
        // SAFETY: as above.
        return unsafe { pass_on(n, sets, limit, mask) };
    }
    let _section = Section::begin();
    let mut end = number_of_selected(end);
    let words = end.div_ceil(WORD);
    let mut copies = [const { None }; 3];
    for (set, copy) in sets.into_iter().zip(&mut copies) {
        if set.is_null() {
            continue;
        }
        let mut bits = SmallVec::<[c_ulong; 1024 / WORD]>::new();
        bits.try_reserve(words).map_err(|_| Errno::NOMEM)?;
        for at in 0..words {
            // SAFETY: the caller's contract.
            bits.push(unsafe { memory::read(set.cast::<c_ulong>().wrapping_add(at)) }?);
        }
        *copy = Some(FdSet::try_from_words(&bits)?);
    }
    let highest = copies
        .iter()
        .flatten()
        .filter_map(|copy| copy.iter().last());
    if let Some(highest) = highest
        .max()
        .and_then(|highest| usize::try_from(highest).ok())
    {
        end = end.min(size_of_the_kernels_table(end.min(highest + 1)));
    }
    let end = RawFd::try_from(end).unwrap_or(RawFd::MAX);
    let named = || copies.iter().flatten().flat_map(FdSet::iter);
    wait_anew(limit, named, |limit| {
        // SAFETY: the caller's contract.
        unsafe { select_once(end, &copies, sets, limit, mask) }
    })
}

/// Words of the sets for fds below 320, as many as the kernel keeps on its stack.
const FEW_WORDS: usize = 320 / WORD;

/// The number of objects that are polled without a reference to each.
const FEW: usize = 8;

/// Serves a select that does not wait, of a few user-level objects with low fds: one of them is ready,
/// or the limit is zero. Returns `None` if the call is another one, or an argument is invalid.
///
/// # Safety
/// As [`select`].
#[inline]
unsafe fn select_at_once(end: usize, sets: UserSets, limit: Timeout) -> Option<usize> {
    let words = end.div_ceil(WORD);
    if words > FEW_WORDS {
        return None;
    }
    let beyond = match end % WORD {
        0 => 0,
        bits => c_ulong::MAX << bits,
    };
    let mut asked = [[0; FEW_WORDS]; 3];
    let mut found = [[0; FEW_WORDS]; 3];
    let bytes = words * WORD / 8;
    for (set, asked) in sets.into_iter().zip(&mut asked) {
        let set = set.cast::<c_ulong>();
        if set.is_null() {
            continue;
        }
        // The slow path returns the error. It needs the sets unchanged.
        if !memory::is_writable(set, bytes) {
            return None;
        }
        let asked = &mut asked[..words];
        for (at, word) in asked.iter_mut().enumerate() {
            // SAFETY: the caller's contract; what can be written can be read.
            *word = unsafe { set.wrapping_add(at).read_unaligned() };
        }
        if let Some(last) = asked.last_mut() {
            *last &= !beyond;
        }
    }
    let [mut objects, mut ready] = [0; 2];
    for at in 0..words {
        let mut left = asked[0][at] | asked[1][at] | asked[2][at];
        while left != 0 {
            objects += 1;
            if objects > FEW {
                return None;
            }
            let bit = left & left.wrapping_neg();
            let events = ready_events(at * WORD + left.trailing_zeros() as usize)?;
            left &= !bit;
            let kinds = [FdSet::READABLE, FdSet::WRITABLE, FdSet::EXCEPTIONAL];
            for (which, kind) in kinds.into_iter().enumerate() {
                if asked[which][at] & bit != 0 && events.intersects(kind) {
                    found[which][at] |= bit;
                    ready += 1;
                }
            }
        }
    }
    if objects == 0 || ready == 0 && limit != Timeout::NOW {
        return None;
    }
    for (set, found) in sets.into_iter().zip(&found) {
        let set = set.cast::<c_ulong>();
        if set.is_null() {
            continue;
        }
        for (at, &word) in found[..words].iter().enumerate() {
            // SAFETY: the caller's contract, and all of the set was found to be writable.
            unsafe { set.wrapping_add(at).write_unaligned(word) };
        }
    }
    Some(ready)
}

/// Returns the current events of a user-level object. Returns `None` if the fd stands for none, or for
/// one that must be polled in another way.
#[inline]
fn ready_events(fd: usize) -> Option<Events> {
    let fd = RawFd::try_from(fd).ok()?;
    let hazard = table::Hazard::begin(fd)?;
    let object = hazard.object();
    if matches!(object, Object::Epoll(set) if set.is_passive()) {
        return None;
    }
    let ready = object.as_file_ref(fd).ready();
    // A demoted object shows HUP; of a pipe's two ends the writing one shows ERR.
    let may_be_stale = ready.intersects(Events::HUP | Events::ERR);
    (!may_be_stale || !object.is_stale()).then_some(ready)
}

/// Returns `None` if an object was demoted meanwhile: the call must begin again.
///
/// # Safety
/// As [`select`].
unsafe fn select_once(
    end: RawFd,
    asked: &[Option<FdSet>; 3],
    sets: UserSets,
    limit: &mut Timeout,
    mask: Option<&SigSet>,
) -> Result<Option<usize>, Errno> {
    let mut objects = SmallVec::<[(RawFd, Object); 8]>::new();
    for copy in asked.iter().flatten() {
        for fd in copy.iter().take_while(|&fd| fd < end) {
            let Err(at) = objects.binary_search_by_key(&fd, |(known, _)| *known) else {
                continue;
            };
            if let Some(object) = table::get_to_watch(fd)? {
                objects.try_reserve(1).map_err(|_| Errno::NOMEM)?;
                objects.insert(at, (fd, object));
            } else if own_fds::is_own(fd) {
                return Err(Errno::BADF);
            }
        }
    }
    if objects.is_empty() {
        // SAFETY: the caller's contract.
        return unsafe { pass_on(end, sets, limit, mask) }.map(Some);
    }
    let resolve = |fd: RawFd| {
        let known = objects.binary_search_by_key(&fd, |(known, _)| *known);
        Some(match known {
            Ok(at) => Target::File(objects[at].1.as_file_ref(fd)),
            // SAFETY: the kernel finds out if it is not open; it is not closed here.
            Err(_) => Target::Kernel(unsafe { BorrowedFd::borrow_raw(fd) }),
        })
    };
    let mut copies = [const { None }; 3];
    for (copy, asked) in copies.iter_mut().zip(asked) {
        let asked = asked.as_ref().map(FdSet::as_words);
        *copy = asked.map(FdSet::try_from_words).transpose()?;
    }
    let [read, write, except] = copies.each_mut().map(Option::as_mut);
    let ended = match mask {
        None => upoll::select(end, read, write, except, limit, resolve),
        Some(mask) => upoll::pselect(end, read, write, except, *limit, mask, resolve),
    };
    match ended {
        Ok(_) => {}
        // The sets are unchanged: nothing was ready.
        Err(Errno::INTR) => copies.iter_mut().flatten().for_each(FdSet::clear),
        Err(errno) => return Err(errno),
    }
    if ended.is_ok() && objects.iter().any(|(_, object)| object.is_stale()) {
        for (fd, _) in objects.iter().filter(|(_, object)| object.is_stale()) {
            table::leave_if_stale(*fd);
        }
        return Ok(None);
    }
    let mut ready = ended.unwrap_or(0);
    for (fd, object) in &objects {
        if !is_same(*fd, Some(object)) {
            ready = correct(*fd, asked, &mut copies, ready)?;
        }
    }
    match ended {
        Err(errno) if ready == 0 => return Err(errno),
        // The reported events belong to files that the fds no longer stand for.
        Ok(1..) if ready == 0 => return Ok(None),
        _ => {}
    }
    let words = end.cast_unsigned().div_ceil(c_ulong::BITS);
    for (set, copy) in sets.into_iter().zip(&copies) {
        let Some(copy) = copy else { continue };
        for at in 0..words as usize {
            let bits = copy.as_words().get(at).copied().unwrap_or(0);
            // SAFETY: as above.
            unsafe { memory::write(set.cast::<c_ulong>().wrapping_add(at), bits) }?;
        }
    }
    Ok(Some(ready))
}

/// Replaces the events `found` for an fd that was closed or replaced during the call by those that are
/// ready now. A closed fd is ready in every set, as in Linux. Returns how many bits are then set,
/// given that `ready` were set before.
fn correct(
    fd: RawFd,
    asked: &[Option<FdSet>; 3],
    found: &mut [Option<FdSet>; 3],
    mut ready: usize,
) -> Result<usize, Errno> {
    let kinds = [FdSet::READABLE, FdSet::WRITABLE, FdSet::EXCEPTIONAL];
    let state = state_now(fd, kinds.into_iter().fold(Events::empty(), Events::union))?;
    for ((asked, found), kind) in asked.iter().zip(found).zip(kinds) {
        let (Some(asked), Some(found)) = (asked, found) else {
            continue;
        };
        if !asked.contains(fd) {
            continue;
        }
        ready -= usize::from(found.contains(fd));
        if state.intersects(kind) {
            found.insert(fd);
            ready += 1;
        } else {
            found.remove(fd);
        }
    }
    Ok(ready)
}

/// # Safety
/// As [`select`].
unsafe fn pass_on(
    n: i32,
    [read, write, except]: UserSets,
    limit: &mut Timeout,
    mask: Option<&SigSet>,
) -> Result<usize, Errno> {
    let mut left = timespec(*limit);
    let mask = mask.map(|&mask| libc::sigset_t::from(mask));
    let mask = mask.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let mask = [mask.expose_provenance(), size_of::<u64>()];
    let place = left
        .as_mut()
        .map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: the kernel checks the caller's pointers; limit and mask are null or live.
    let ready =
        unsafe { interruptible!(SYS_pselect6, n, read, write, except, place, mask.as_ptr()) };
    if let Some(left) = left {
        let seconds = u64::try_from(left.tv_sec).unwrap_or(0);
        let nanoseconds = u32::try_from(left.tv_nsec).unwrap_or(0);
        *limit = Duration::new(seconds, nanoseconds).into();
    }
    ready
}

/// Returns how many fds of its sets a call looks at. The kernel lowers `n` to the size of its table of fds, and does not
/// look at a set beyond it. Up to `FD_SETSIZE` every `fd_set` has memory.
#[must_use]
pub fn number_of_selected(n: usize) -> usize {
    match n > libc::FD_SETSIZE {
        true => n.min(size_of_the_kernels_table(n)),
        false => n,
    }
}

/// The last size of the kernel's table of fds that was asked for.
static KNOWN: AtomicUsize = AtomicUsize::new(0);

/// Forgets the size of the parent's table, in the child of a fork, whose own may be smaller.
pub(crate) fn forget_the_kernels_table() {
    // A write would cost the child a page.
    if KNOWN.load(Ordering::Relaxed) != 0 {
        KNOWN.store(0, Ordering::Relaxed);
    }
}

/// Returns how many fds the kernel's table has room for, or at least `enough`. The table only
/// grows, but for a child's.
fn size_of_the_kernels_table(enough: usize) -> usize {
    let known = KNOWN.load(Ordering::Relaxed);
    if known >= enough {
        return known;
    }
    // On the stack: a signal handler may call this in the midst of an allocation. The line is one of
    // the first.
    let mut room = [0; 512];
    let status = kernel::read_file(c"/proc/self/status", &mut room);
    let mut lines = status.split(|&byte| byte == b'\n');
    let size = lines.find_map(|line| line.strip_prefix(b"FDSize:"));
    let size = size.and_then(|size| std::str::from_utf8(size).ok());
    match size.and_then(|size| size.trim().parse().ok()) {
        Some(size) => {
            KNOWN.store(size, Ordering::Relaxed);
            size
        }
        None => usize::MAX,
    }
}
