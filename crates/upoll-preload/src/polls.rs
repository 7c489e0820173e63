//! `poll(2)` and `select(2)`.

use std::ffi::{c_int, c_long};

use libc::{fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use upoll_fds::UserSets;
use upoll_fds::internal::{self, plain_sets};

use crate::files::chk_fail;
use crate::stats::{self, Call};
use upoll_fds::internal::errno::{MASK_SIZE, give};

fn length(count: nfds_t) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// A call counts as served in user space if one of its fds is user-level.
unsafe fn count_poll(fds: *const pollfd, count: usize) {
    if !stats::is_on() {
        return;
    }
    let mut list = (0..count.min(1024)).map_while(|at| {
        // SAFETY: the caller's contract.
        unsafe { internal::read_memory(fds.wrapping_add(at)) }.ok()
    });
    let is_user_level = list.any(|entry| internal::is_active_user_level(entry.fd));
    stats::count_as(Call::Poll, is_user_level);
}

/// Returns whether one of the entries stands for a user-level object. If not, the call is passed on. So is a
/// call with entries that cannot be read: the kernel returns the error.
///
/// # Safety
/// As [`internal::read_memory`].
#[inline]
pub(crate) unsafe fn names_user_level(fds: *const pollfd, count: nfds_t) -> bool {
    // SAFETY: the caller's contract.
    let is_user_level = plain_sets::may_name_any() && unsafe { any_polled(fds, count) };
    if !is_user_level {
        stats::count_as(Call::Poll, false);
    }
    is_user_level
}

/// Returns whether the fd that is polled stands for a user-level object. A plain set is left to the kernel.
#[inline(never)]
fn is_polled_at_user_level(fd: c_int) -> bool {
    plain_sets::forget(fd);
    internal::is_user_level_or_own(fd)
}

/// Returns whether [`is_polled_at_user_level`] may be true, or has a set to leave.
#[inline]
fn may_be_polled_at_user_level(fd: c_int) -> bool {
    plain_sets::has_record(fd) || internal::may_be_user_level_or_own(fd)
}

/// # Safety
/// As [`internal::read_memory`].
#[inline]
unsafe fn any_polled(fds: *const pollfd, count: nfds_t) -> bool {
    let count = internal::number_of_entries(length(count));
    // SAFETY: the caller's contract, on a page that the kernel has confirmed.
    let is_candidate = |at| may_be_polled_at_user_level(unsafe { fd_at(fds, at) });
    if internal::is_known_readable(fds, count) && !(0..count).any(is_candidate) {
        return false;
    }
    // SAFETY: the caller's contract.
    unsafe { any_polled_on_pages(fds, count) }
}

/// # Safety
/// As [`internal::read_memory`].
#[cold]
#[inline(never)]
unsafe fn any_polled_on_pages(fds: *const pollfd, count: usize) -> bool {
    let mut is_any = false;
    for at in 0..internal::count_readable(fds, count) {
        // SAFETY: the kernel has confirmed the pages, and the rest is the caller's contract.
        let fd = unsafe { fd_at(fds, at) };
        if may_be_polled_at_user_level(fd) {
            is_any |= is_polled_at_user_level(fd);
        }
    }
    is_any
}

/// # Safety
/// The kernel has confirmed the page of the entry, and the rest is as for [`internal::read_memory`].
#[inline]
unsafe fn fd_at(fds: *const pollfd, at: usize) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { (&raw const (*fds.wrapping_add(at)).fd).read_unaligned() }
}

/// The same for the fds below `n` in three sets, each of which may be null.
///
/// # Safety
/// As [`internal::read_memory`].
pub(crate) unsafe fn selects_user_level(n: c_int, sets: UserSets) -> bool {
    // SAFETY: the caller's contract.
    let is_user_level = plain_sets::may_name_any() && unsafe { any_selected(n, sets) };
    if !is_user_level {
        stats::count_as(Call::Select, false);
    }
    is_user_level
}

/// # Safety
/// As [`internal::read_memory`].
unsafe fn any_selected(n: c_int, sets: UserSets) -> bool {
    let mut sets = sets.map(<*mut fd_set>::cast::<u64>);
    let end = internal::number_of_selected(usize::try_from(n).unwrap_or(0));
    let mut is_any = false;
    for first in (0..end).step_by(64) {
        let mut asked = 0;
        for set in sets.iter_mut().filter(|set| !set.is_null()) {
            // SAFETY: the caller's contract.
            match unsafe { internal::read_memory(set.wrapping_add(first / 64)) } {
                Ok(word) => asked |= word,
                // The call fails with `EFAULT`.
                Err(_) => *set = std::ptr::null_mut(),
            }
        }
        while asked != 0 {
            let fd = first + asked.trailing_zeros() as usize;
            asked &= asked - 1;
            is_any |= fd < end && c_int::try_from(fd).is_ok_and(is_polled_at_user_level);
        }
    }
    is_any
}

#[doc = "`poll(2)`"]
pub(crate) unsafe fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        count_poll(fds, length(count));
        give(upoll_fds::poll(fds, length(count), timeout))
    }
}

#[doc = "`poll(2)` of a fortified program."]
pub(crate) unsafe fn poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: size_t,
) -> c_int {
    if room / size_of::<pollfd>() < length(count) {
        chk_fail();
    }
    // SAFETY: the caller's contract.
    unsafe { poll(fds, count, timeout) }
}

#[doc = "`ppoll(2)`; `timeout` is not written."]
pub(crate) unsafe fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        count_poll(fds, length(count));
        give(upoll_fds::ppoll(
            fds,
            length(count),
            timeout,
            mask,
            MASK_SIZE,
        ))
    }
}

#[doc = "`ppoll(2)` of a fortified program."]
pub(crate) unsafe fn ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    if room / size_of::<pollfd>() < length(count) {
        chk_fail();
    }
    // SAFETY: the caller's contract.
    unsafe { ppoll(fds, count, timeout, mask) }
}

/// Now, by the clock that limits run by.
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

/// `ppoll(2)` as the system call is: what is left of `timeout` is written to it.
pub(crate) unsafe fn raw_ppoll(
    fds: *mut pollfd,
    count: usize,
    timeout: *mut timespec,
    mask: *const sigset_t,
    size: usize,
) -> c_int {
    let begun = now();
    // SAFETY: the caller's contract.
    unsafe {
        count_poll(fds, count);
        let ready = upoll_fds::ppoll(fds, count, timeout, mask, size);
        write_rest(timeout, begun, ready.err());
        give(ready)
    }
}

/// Writes what is left of a limit. Like the kernel, leaves a limit of zero alone, and one that cannot be
/// written.
unsafe fn write_rest(
    timeout: *mut timespec,
    begun: std::time::Instant,
    failed: Option<upoll::Errno>,
) {
    let is_read = failed.is_none_or(|errno| errno == upoll::Errno::INTR);
    if timeout.is_null() || !is_read {
        return;
    }
    // SAFETY: the caller's contract.
    let Ok(mut rest) = (unsafe { internal::read_memory(timeout) }) else {
        return;
    };
    if rest.tv_sec == 0 && rest.tv_nsec == 0 {
        return;
    }
    let seconds = u64::try_from(rest.tv_sec).unwrap_or(0);
    let nanoseconds = u32::try_from(rest.tv_nsec).unwrap_or(0);
    let limit = std::time::Duration::new(seconds, nanoseconds);
    let left = limit.saturating_sub(begun.elapsed());
    rest.tv_sec = libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX);
    rest.tv_nsec = c_long::from(left.subsec_nanos().cast_signed());
    // SAFETY: as above.
    unsafe { internal::write_memory_if_possible(timeout, rest) };
}

unsafe fn count_select(n: c_int, sets: UserSets) {
    if !stats::is_on() {
        return;
    }
    let is_user_level = sets.into_iter().any(|set| {
        // SAFETY: the caller's contract. A longer set than an fd_set is looked at in part.
        let Ok(set) = (unsafe { internal::read_memory(set) }) else {
            return false;
        };
        let fds = 0..n.clamp(0, 1024);
        // SAFETY: the fds are below the size of an fd_set.
        fds.filter(|&fd| unsafe { libc::FD_ISSET(fd, &raw const set) })
            .any(internal::is_active_user_level)
    });
    stats::count_as(Call::Select, is_user_level);
}

#[doc = "`select(2)`"]
pub(crate) unsafe fn select(
    n: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        count_select(n, [read, write, except]);
        give(upoll_fds::select(n, [read, write, except], timeout))
    }
}

#[doc = "`pselect(2)`; `timeout` is not written."]
pub(crate) unsafe fn pselect(
    n: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sets = [read, write, except];
    // SAFETY: the caller's contract.
    unsafe {
        count_select(n, sets);
        give(upoll_fds::pselect(n, sets, timeout, mask, MASK_SIZE))
    }
}

/// `select(2)` as the system call is: all bits of the microseconds count.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn raw_select(n: c_int, sets: UserSets, timeout: *mut timeval) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        count_select(n, sets);
        give(internal::raw_select(n, sets, timeout))
    }
}

/// `pselect(2)` as the system call is: the mask comes with its size, and what is left of `timeout` is
/// written to it.
pub(crate) unsafe fn raw_pselect(
    n: c_int,
    sets: UserSets,
    timeout: *mut timespec,
    mask_and_size: *const (*const sigset_t, usize),
) -> c_int {
    let begun = now();
    // SAFETY: the caller's contract.
    unsafe {
        let (mask, size) = match mask_and_size.is_null() {
            true => (std::ptr::null(), MASK_SIZE),
            false => match internal::read_memory(mask_and_size) {
                Ok(mask_and_size) => mask_and_size,
                Err(errno) => return give::<c_int>(Err(errno)),
            },
        };
        count_select(n, sets);
        let ready = upoll_fds::pselect(n, sets, timeout, mask, size);
        write_rest(timeout, begun, ready.err());
        give(ready)
    }
}
