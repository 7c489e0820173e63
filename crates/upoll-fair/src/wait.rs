//! Waits in sets that hold a listening socket.
//!
//! A wait that finds an event at once is the kernel's own. A wait that is about to sleep goes to the end of the
//! line first, and sleeps in naps. The kernel wakes one worker only. That worker may be killed or stopped,
//! or may not accept. So a worker whose nap ends checks whether a connection waits.
//!
//! The program's signals are blocked from before the first nap until after the last one, except within the kernel's wait,
//! which has the program's mask. So a handler runs within a nap and ends the wait with `EINTR`, as
//! it does without the library; none can run between two naps, unseen. Signals that are ignored by default are not blocked while
//! the program ignores them.

use std::ffi::c_int;

use libc::{epoll_event, sigset_t, timespec};

use crate::lock;
use crate::next::next;
use crate::raw;
use crate::sets::Set;
use crate::shared::{self, Group};

/// How long a call is to wait at most.
#[derive(Clone, Copy)]
pub(crate) enum Limit {
    Never,
    /// Until the deadline, in milliseconds from the start.
    Millis(c_int),
    /// Until the deadline, in nanoseconds from the start.
    Nanos(u64),
}

const MILLI: u64 = 1_000_000;

impl Limit {
    pub(crate) fn of_millis(timeout: c_int) -> Limit {
        if timeout < 0 {
            Limit::Never
        } else {
            Limit::Millis(timeout)
        }
    }

    /// Returns the limit of a valid time; `None` for one that the kernel refuses.
    pub(crate) fn of_timespec(time: &timespec) -> Option<Limit> {
        let seconds = u64::try_from(time.tv_sec).ok()?;
        let nanos = u64::try_from(time.tv_nsec)
            .ok()
            .filter(|&nanos| nanos < 1_000_000_000)?;
        Some(Limit::Nanos(
            seconds.saturating_mul(1_000_000_000).saturating_add(nanos),
        ))
    }

    pub(crate) fn is_zero(self) -> bool {
        matches!(self, Limit::Millis(0) | Limit::Nanos(0))
    }

    /// Returns the deadline of a wait that starts at the time `now`.
    pub(crate) fn end(self, now: u64) -> u64 {
        now.saturating_add(self.nanos())
    }

    /// Returns the time until the deadline; `None` without one.
    pub(crate) fn left(self, end: u64) -> Option<timespec> {
        if let Limit::Never = self {
            return None;
        }
        Some(to_timespec(end.saturating_sub(raw::now())))
    }

    fn nanos(self) -> u64 {
        match self {
            Limit::Never => u64::MAX,
            Limit::Millis(millis) => u64::try_from(millis).unwrap_or(0) * MILLI,
            Limit::Nanos(nanos) => nanos,
        }
    }
}

fn to_timespec(nanos: u64) -> timespec {
    timespec {
        tv_sec: (nanos / 1_000_000_000).cast_signed(),
        tv_nsec: (nanos % 1_000_000_000).cast_signed(),
    }
}

/// How a sleep goes on after a nap.
pub(crate) enum After {
    /// With another nap.
    Nap,
    /// Without naps: nothing is to be looked after any more.
    Sleep,
    /// Not at all: the fd of the set was closed.
    Closed,
}

/// A set in which the calling thread sleeps.
pub(crate) struct Sleep {
    pub(crate) epfd: c_int,
    pub(crate) events: *mut epoll_event,
    pub(crate) capacity: c_int,
    /// The unit in which to sleep.
    pub(crate) limit: Limit,
    /// The signal mask to sleep with; null for the thread's own.
    pub(crate) mask: *const sigset_t,
}

impl Sleep {
    /// Sleeps from `now` until an event, `end` or a signal, with `check` after each nap. Returns what `epoll_pwait` does. The
    /// program's signals must be blocked.
    ///
    /// A thread may be cancelled in here, so that no caller up to the exported function has a destructor to run.
    ///
    /// # Safety
    /// `events` must have room for `capacity` events, and `mask` be a live signal mask.
    pub(crate) unsafe fn sleep(
        &self,
        mut now: u64,
        end: u64,
        group: Option<&Group>,
        check: &dyn Fn() -> After,
    ) -> c_int {
        let process = lock::owner();
        if let Some(group) = group {
            group.fall_asleep();
        }
        let count = loop {
            let (nap, place) = Group::nap(group, now);
            let left = end.saturating_sub(now);
            // SAFETY: the caller's contract.
            let count = unsafe { self.nap(left.min(nap)) };
            Group::leave(group, place);
            if count != 0 || left <= nap {
                break count;
            }
            let after = check();
            now = raw::now();
            match after {
                After::Nap => {}
                // SAFETY: the caller's contract.
                After::Sleep => break unsafe { self.nap(end.saturating_sub(now)) },
                After::Closed => break raw::give(-libc::EBADF as isize),
            }
        };
        // A child that a signal handler has forked in there was not counted.
        if let Some(group) = group.filter(|_| shared::process() == process) {
            group.awake();
        }
        count
    }

    /// # Safety
    /// That of `sleep`; the mask may be null.
    unsafe fn nap(&self, nanos: u64) -> c_int {
        if let Limit::Nanos(_) = self.limit {
            let time = to_timespec(nanos);
            return next!(
                c"epoll_pwait2",
                fn(c_int, *mut epoll_event, c_int, *const timespec, *const sigset_t) -> c_int,
                (
                    self.epfd,
                    self.events,
                    self.capacity,
                    &raw const time,
                    self.mask
                )
            );
        }
        // More than fits has no limit.
        let millis = c_int::try_from(nanos.div_ceil(MILLI)).unwrap_or(-1);
        next!(
            c"epoll_pwait",
            fn(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int,
            (self.epfd, self.events, self.capacity, millis, self.mask)
        )
    }
}

/// `epoll_wait(2)` and its like, on a set with members to look after. `mask` is null for the thread's own mask.
///
/// # Safety
/// That of `epoll_pwait`.
#[cold]
pub(crate) unsafe fn wait(
    set: &Set,
    epfd: c_int,
    events: *mut epoll_event,
    capacity: c_int,
    limit: Limit,
    mask: *const sigset_t,
) -> c_int {
    let take = || {
        next!(
            c"epoll_wait",
            fn(c_int, *mut epoll_event, c_int, c_int) -> c_int,
            (epfd, events, capacity, 0)
        )
    };
    let mut count = take();
    if count == 0 {
        let now = raw::now();
        if set.has_to_look(now) && lock::is_owner() {
            let locked = lock::lock();
            let is_late = set.is_at(epfd, &locked) && set.rescue(&locked, now);
            drop(locked);
            if is_late {
                shared::count_rescue();
                count = take();
            }
        }
        if count == 0 && !limit.is_zero() {
            let sleep = Sleep {
                epfd,
                events,
                capacity,
                limit,
                mask,
            };
            // SAFETY: the caller's contract.
            count = unsafe { sleep_in(set, now, sleep) };
        }
    }
    if let Ok(count @ 1..) = usize::try_from(count) {
        // SAFETY: the kernel has written as many.
        set.harvest(unsafe { std::slice::from_raw_parts_mut(events, count) });
    }
    count
}

/// Goes to the end of the line if it is time, and sleeps in the set from `now`.
///
/// # Safety
/// That of `Sleep::sleep`; the mask may be null.
unsafe fn sleep_in(set: &Set, now: u64, mut sleep: Sleep) -> c_int {
    if !lock::is_owner() {
        // A child by a raw `clone`: the table is its parent's, of which a thread may have held the lock.
        // SAFETY: the caller's contract; a null mask is the thread's own.
        return unsafe { sleep.nap(sleep.limit.nanos()) };
    }
    let locked = lock::lock();
    // Another thread may just have closed it.
    let is_there = set.is_at(sleep.epfd, &locked);
    if is_there {
        set.prepare(&locked);
    }
    let (group, closes) = (set.group(), set.closes());
    let before = locked.unlock_blocked();
    if sleep.mask.is_null() {
        sleep.mask = (&raw const before).cast();
    }
    let check = || {
        let locked = lock::lock();
        // The next nap would be in what has the number now.
        let after = if set.closes() != closes {
            After::Closed
        } else if set.is_left_alone() {
            After::Sleep
        } else {
            if set.rescue(&locked, raw::now()) {
                shared::count_rescue();
            }
            After::Nap
        };
        locked.unlock_for_nap(before);
        after
    };
    // SAFETY: the caller's contract, and `before` is live.
    let count = unsafe {
        if is_there && set.needs_naps() {
            sleep.sleep(now, sleep.limit.end(now), group, &check)
        } else {
            sleep.nap(sleep.limit.nanos())
        }
    };
    raw::restore_signals(before);
    count
}
