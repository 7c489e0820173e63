//! Sleeps in sets that hold a listening socket.
//!
//! A wait that finds an event at once is the kernel's own. A wait that is about to sleep goes to the end of the
//! line first, and sleeps in naps. The kernel wakes one worker only. That worker may be killed or stopped,
//! or may not accept. So a worker whose nap ends checks whether a connection waits.
//!
//! The program's signals are blocked from before the first nap until after the last one, except within the kernel's wait,
//! which has the program's mask. So a handler runs within a nap and ends the wait with `EINTR`, as
//! it does without the library; none can run between two naps, unseen. Signals that are ignored by default are not blocked while
//! the program ignores them.
//!
//! Times are in nanoseconds.

use std::ffi::{c_int, c_long, c_void};

use libc::{epoll_event, sigset_t, timespec, timeval};

use crate::lock::{self, Locked};
use crate::next::CLibrary;
use crate::raw::{self, SECOND, to_timespec};
use crate::sets::Set;
use crate::shared::Group;

/// The signal mask for a sleep. Null stands for the thread's own.
pub(crate) type Mask = *const sigset_t;

/// The limit of a wait that has none.
pub(crate) const NEVER: u64 = u64::MAX;
const MILLI: u64 = 1_000_000;

pub(crate) fn from_millis(timeout: c_int) -> u64 {
    u64::try_from(timeout).map_or(NEVER, |millis| millis * MILLI)
}

/// Returns a time to wait; `None` if the kernel refuses it.
pub(crate) fn from_timespec(time: Option<&timespec>) -> Option<u64> {
    from_parts(time.map(|time| (time.tv_sec, time.tv_nsec)))
}

/// Returns a time to wait; `None` if the kernel refuses it.
pub(crate) fn from_timeval(time: Option<&timeval>) -> Option<u64> {
    // Beyond the range of valid nanoseconds, too.
    from_parts(time.map(|time| (time.tv_sec, time.tv_usec.saturating_mul(1000))))
}

#[inline]
fn from_parts(parts: Option<(c_long, c_long)>) -> Option<u64> {
    let Some((seconds, nanos)) = parts else {
        return Some(NEVER);
    };
    let seconds = u64::try_from(seconds).ok()?;
    let nanos = u64::try_from(nanos).ok();
    let nanos = nanos.filter(|&nanos| nanos < SECOND)?;
    Some(seconds.saturating_mul(SECOND).saturating_add(nanos))
}

/// Memory for a `struct _pthread_cleanup_buffer`: three pointers and an `int`.
type Cleanup = [usize; 4];
type Routine = extern "C" fn(*mut c_void);

unsafe extern "C" {
    fn _pthread_cleanup_push(buffer: *mut Cleanup, routine: Routine, argument: *mut c_void);
    fn _pthread_cleanup_pop(buffer: *mut Cleanup, execute: c_int);
}

/// A thread that sleeps in a set. The program's signals are blocked until `end_sleep`.
pub(crate) struct Sleeper {
    pub(crate) set: &'static Set,
    epfd: c_int,
    /// That of the set when the sleep began. As long as it stays the same, the fd is that of the set.
    closes: u32,
    /// The mask to restore.
    signals: u64,
    /// The limit is no whole number of milliseconds. Only then may a nap take a new kernel: a filter may kill a program
    /// for a system call that its own calls do not make.
    is_fine: bool,
}

/// The place where a wait puts events.
pub(crate) type Events = *mut [epoll_event];

/// Returns whether a time to wait is no whole number of milliseconds.
fn is_fine(limit: u64) -> bool {
    limit != NEVER && !limit.is_multiple_of(MILLI)
}

impl Sleeper {
    /// Unlocks the table, and leaves signals blocked. The sleep will last for `limit` at most.
    pub(crate) fn new(set: &'static Set, locked: Locked, limit: u64) -> Self {
        let sleeper = Sleeper {
            set,
            epfd: set.epfd.load(),
            closes: set.closes.load(),
            signals: locked.signals,
            is_fine: is_fine(limit),
        };
        locked.unlock_for_nap(sleeper.signals);
        sleeper
    }

    /// Returns what `body` does, which may sleep. Ends the sleep also if the thread is cancelled, or leaves a signal handler by
    /// `longjmp`. So `body` may have no destructors to run.
    pub(crate) fn run(&self, body: &dyn Fn() -> c_int) -> c_int {
        let mut cleanup = Cleanup::default();
        let argument = (&raw const *self).cast_mut().cast();
        // SAFETY: the buffer and the argument live until the pop below, and the calls are a pair in one function.
        unsafe { _pthread_cleanup_push(&raw mut cleanup, end_sleep, argument) };
        let result = body();
        // SAFETY: this is the pair of the push above.
        unsafe { _pthread_cleanup_pop(&raw mut cleanup, 1) };
        result
    }

    /// Sleeps from `now` until an event, the time `end` or a signal. Looks after members after each nap. Returns what
    /// `epoll_pwait` does.
    ///
    /// # Safety
    /// `events` must have room, and `mask`, for the sleep, be null or a live signal mask. Within `run`.
    pub(crate) unsafe fn sleep(&self, events: Events, mut now: u64, end: u64, mask: Mask) -> c_int {
        let group = self.set.group();
        // SAFETY: the caller's contract.
        let nap_for =
            |time| unsafe { nap_in(self.epfd, events, time, self.is_fine, self.mask(mask)) };
        loop {
            let (nap, place) = Group::nap(group, now);
            let left = end.saturating_sub(now);
            let count = nap_for(left.min(nap));
            Group::leave(group, place);
            if count != 0 || left <= nap {
                return count;
            }
            now = raw::now();
            let is_left_alone = self.locked(|locked| {
                self.set.rescue(locked, now);
                self.set.is_left_alone()
            });
            match is_left_alone {
                Some(false) => {}
                // Nothing is to be looked after any more.
                Some(true) => return nap_for(end.saturating_sub(now)),
                // The next nap would be in what has the fd now.
                None => return raw::give(-libc::EBADF as isize),
            }
        }
    }

    /// Returns the mask to sleep with: null stands for the thread's own.
    pub(crate) fn mask(&self, given: Mask) -> Mask {
        let own = (&raw const self.signals).cast();
        if given.is_null() { own } else { given }
    }

    /// Returns what `change` does with the table locked; `None` if the set is closed.
    pub(crate) fn locked<T>(&self, change: impl FnOnce(&Locked) -> T) -> Option<T> {
        let locked = lock::lock()?;
        let is_open = self.set.closes.load() == self.closes;
        let result = is_open.then(|| change(&locked));
        locked.unlock_for_nap(self.signals);
        result
    }
}

/// Ends a sleep: closes a private set, and restores the signals.
extern "C" fn end_sleep(sleeper: *mut c_void) {
    // SAFETY: `run` registered its own live sleeper.
    let sleeper = unsafe { &*sleeper.cast::<Sleeper>() };
    // A signal handler may have forked in a nap, by a raw `clone`.
    if sleeper.set.is_private()
        && let Some(locked) = lock::lock()
        && sleeper.set.closes.load() == sleeper.closes
    {
        sleeper.set.close(&locked);
    }
    raw::set_mask(sleeper.signals);
}

/// Waits in the kernel, as `epoll_pwait` does. A time that is no whole number of milliseconds takes a new kernel, if it may be
/// `exact`, or is rounded up.
///
/// # Safety
/// That of `epoll_pwait`.
unsafe fn nap_in(epfd: c_int, events: Events, nanos: u64, exact: bool, mask: Mask) -> c_int {
    let (start, capacity) = (events.cast(), events.len() as c_int);
    if exact && is_fine(nanos) {
        let time = to_timespec(nanos);
        // SAFETY: the caller's contract.
        let count = unsafe { CLibrary::epoll_pwait2(epfd, start, capacity, &raw const time, mask) };
        // The kernel or the C library is old, or the filter of a container is.
        if count >= 0 || !matches!(raw::errno(), libc::ENOSYS | libc::EPERM) {
            return count;
        }
    }
    // More than fits has no limit.
    let millis = c_int::try_from(nanos.div_ceil(MILLI)).unwrap_or(-1);
    // SAFETY: the caller's contract.
    unsafe { CLibrary::epoll_pwait(epfd, start, capacity, millis, mask) }
}

/// `epoll_wait(2)` and its like, on a set with members to look after, for `limit` at most.
///
/// # Safety
/// That of `epoll_pwait`.
#[cold]
#[inline(never)]
pub(crate) unsafe fn wait(
    set: &'static Set,
    epfd: c_int,
    start: *mut epoll_event,
    capacity: c_int,
    limit: u64,
    mask: Mask,
) -> c_int {
    let events = std::ptr::slice_from_raw_parts_mut(start, capacity as usize);
    // SAFETY: the caller's contract.
    let take = || unsafe { CLibrary::epoll_wait(epfd, start, capacity, 0) };
    let look = |now| {
        set.lock_at(epfd)
            .is_some_and(|locked| set.rescue(&locked, now))
    };
    // Also if other events keep the thread from ever sleeping.
    if set.has_lost() {
        look(raw::now());
    }
    let mut count = take();
    if count == 0 {
        let now = raw::now();
        if set.has_to_look(now) && look(now) {
            count = take();
        }
        if count == 0 && limit != 0 {
            let end = now.saturating_add(limit);
            count = match fall_asleep(set, epfd, limit) {
                // SAFETY: the caller's contract.
                None => unsafe { nap_in(epfd, events, limit, true, mask) },
                // SAFETY: the caller's contract.
                Some(sleeper) => sleeper.run(&|| unsafe { sleeper.sleep(events, now, end, mask) }),
            };
        }
    }
    if let Ok(count @ 1..) = usize::try_from(count) {
        // SAFETY: the kernel has written as many.
        set.harvest(unsafe { std::slice::from_raw_parts_mut(start, count) });
    }
    count
}

/// Goes to the end of the line if it is time. Returns `None` if the sleep is the kernel's.
fn fall_asleep(set: &'static Set, epfd: c_int, limit: u64) -> Option<Sleeper> {
    let locked = set.lock_at(epfd)?;
    set.register(&locked, set.is_due());
    // Nothing is to be looked after if no member is exclusive.
    set.needs_naps().then(|| Sleeper::new(set, locked, limit))
}
