//! `poll` and `select` on a listening socket.
//!
//! A call that finds something at once is the kernel's own. A call that would sleep does so in an epoll set. The
//! set holds the listening sockets with `EPOLLEXCLUSIVE` and the other fds as they are. Afterwards the
//! kernel's `poll` or `select` returns what is ready. The set lives as long as the call, so that a worker that falls
//! asleep is always the last in line.
//!
//! The program does not know the fd of that set, and may close it or put a file of its own under the fd. The
//! functions of `hooks` find it in the table of `fds`, as a set of the program. The call then leaves the fd alone and
//! goes on in the kernel's `poll` or `select`. Not noticed are raw system calls,
//! and a call that has looked before the set was opened, but enters the kernel after that. A call that is made between the
//! last check and a nap has that nap go to what has the fd then.

use std::ffi::{c_int, c_short};
use std::ptr::{from_ref, null};

use libc::{epoll_event, fd_set, nfds_t, pollfd, timespec, timeval};

use crate::fds::{self, WORD};
use crate::lock;
use crate::next::CLibrary;
use crate::raw::{self, kernel, to_timespec};
use crate::sets::{self, Visitor};
use crate::settings;
use crate::shared;
use crate::wait::{Mask, NEVER, Sleeper};

/// A call with more fds is the kernel's.
const MOST: usize = 32;
/// A call of `poll` with more entries is not looked at.
const LONGEST_LIST: usize = 4096;
/// A call of `select` with more is the kernel's. It reads no bits beyond the process's fds, so that a larger number
/// does not mean that the sets are as long.
const LAST_SELECTED: usize = libc::FD_SETSIZE;
const EVENTS: usize = 16;

/// The program's call, which can be made again.
trait Call {
    /// Makes the call with a time to wait. Null stands for no limit.
    fn make(&self, time: *const timespec, mask: Mask) -> c_int;

    /// Makes the call, which waits for `limit` at most.
    fn make_for(&self, limit: u64, mask: Mask) -> c_int {
        let time = (limit != NEVER).then(|| to_timespec(limit));
        self.make(time.as_ref().map_or(null(), from_ref), mask)
    }

    /// Calls `visitor` with each fd, and whether the last `make` found it ready to read. To be called after `make`.
    fn each(&self, visitor: &mut Visitor<'_>);

    /// Returns whether the call holds a listening socket of which `events` has POLLIN, and takes note of all fds. To be called
    /// after `make`.
    fn has_listener(&self, events: fn(&pollfd) -> c_short) -> bool {
        let mut found = false;
        self.each(&mut |entry| {
            sets::polled(entry.fd);
            found |= fds::is_listener(entry.fd) && events(&entry) & libc::POLLIN != 0;
        });
        found
    }

    /// Undoes what the last `make` wrote, which returned 0.
    fn undo(&self) {}
}

/// A call of `poll` or `ppoll`.
struct Poll {
    list: *mut pollfd,
    count: nfds_t,
}

impl Call for Poll {
    fn make(&self, time: *const timespec, mask: Mask) -> c_int {
        // SAFETY: the contract of `poll`; the kernel checks the rest.
        unsafe { CLibrary::ppoll(self.list, self.count, time, mask) }
    }

    fn each(&self, visitor: &mut Visitor<'_>) {
        if let Ok(count @ 1..=LONGEST_LIST) = usize::try_from(self.count) {
            // SAFETY: the kernel has read as many entries.
            let entries = unsafe { std::slice::from_raw_parts(self.list, count) };
            let entries = entries.iter().copied();
            entries.filter(|entry| entry.fd >= 0).for_each(visitor);
        }
    }
}

/// A call of `select` or `pselect`.
pub(crate) struct Select {
    count: c_int,
    /// The sets to read, to write and of exceptions, in words.
    sets: [*mut u64; 3],
    saved: [[u64; LAST_SELECTED / WORD]; 3],
}

impl Select {
    /// Returns whether a `select` may read an fd of which something is remembered. It makes no call, and so leaves the
    /// registers of the exported function alone. It reads nothing but the page of the stack that the thread uses.
    #[inline]
    pub(crate) fn is_special(read: *const fd_set) -> bool {
        let is_ordinary = read.is_null()
            || fds::are_in_first_word()
                && raw::is_known_readable(read.addr(), size_of::<u64>())
                // SAFETY: the word can be read.
                && unsafe { read.cast::<u64>().read_unaligned() } & fds::remembered(0) == 0;
        !is_ordinary
    }

    /// Saves the sets. Returns whether the library has a part in the call. It has none if the sets are too long, one cannot be
    /// read or has bits beyond the process's table of fds, or none of the fds to read is a listening socket.
    ///
    /// # Safety
    /// The contract of `select`.
    unsafe fn save(&mut self) -> bool {
        let words = usize::try_from(self.count).map_or(0, |count| count.div_ceil(WORD));
        if !(1..=LAST_SELECTED / WORD).contains(&words) {
            return false;
        }
        let size = words * size_of::<u64>();
        // The kernel refuses other ones.
        let is_readable = |set: &*mut u64| set.is_null() || raw::is_readable(set.addr(), size);
        let [read, others @ ..] = &self.sets;
        let is_remembered = |index| {
            // SAFETY: it is called if the set can be read.
            let word = unsafe { read.add(index).read_unaligned() };
            word & fds::remembered(index) != 0
        };
        if !is_readable(read) || !(0..words).any(is_remembered) || !others.iter().all(is_readable) {
            return false;
        }
        let sets = self.sets.iter().zip(&mut self.saved);
        for (set, saved) in sets.filter(|(set, _)| !set.is_null()) {
            let (set, saved) = (set.cast::<u8>(), saved.as_mut_ptr().cast());
            // SAFETY: the set can be read, and there is room for as many words.
            unsafe { set.copy_to_nonoverlapping(saved, size) };
        }
        // The kernel looks at no bits beyond the process's table of fds, which has room for a word or more. They may be another
        // variable.
        let is_open = |fd: usize| kernel!(SYS_fcntl, fd, libc::F_GETFD) >= 0;
        let are_fds = |(index, &word): (usize, &u64)| {
            word == 0 || is_open(index * WORD + word.trailing_zeros() as usize)
        };
        let mut saved = self.saved.iter();
        saved.all(|saved| saved.iter().enumerate().skip(1).all(are_fds))
            // Now, so that all fds are known, also if one is always ready.
            && self.has_listener(|entry| entry.events)
    }
}

impl Call for Select {
    fn make(&self, time: *const timespec, mask: Mask) -> c_int {
        let [read, write, except] = self.sets.map(|set| set.cast());
        // SAFETY: the contract of `select`; the kernel checks the rest.
        unsafe { CLibrary::pselect(self.count, read, write, except, time, mask) }
    }

    fn each(&self, visitor: &mut Visitor<'_>) {
        for fd in 0..self.count {
            let (index, bit) = (fd as usize / WORD, fd as usize % WORD);
            let asked = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
            let asked = asked.into_iter().zip(&self.saved);
            let asked = asked.filter(|(_, saved)| saved[index] >> bit & 1 != 0);
            let events = asked.fold(0, |events, (event, _)| events | event);
            if events != 0 {
                // SAFETY: the contract of `select`; the set that is read is not null.
                let is_ready = unsafe { self.sets[0].add(index).read_unaligned() } >> bit & 1 != 0;
                visitor(pollfd {
                    fd,
                    events,
                    revents: if is_ready { libc::POLLIN } else { 0 },
                });
            }
        }
    }

    fn undo(&self) {
        for (set, saved) in self.sets.iter().zip(&self.saved) {
            let asked = saved.iter().enumerate().filter(|(_, word)| **word != 0);
            for (index, word) in asked {
                // SAFETY: `save` has read the word from the set, and the kernel has just written it.
                unsafe { set.add(index).write_unaligned(*word) };
            }
        }
    }
}

/// `poll(2)` and `ppoll(2)` for `limit` at most. A function of its own leaves the registers of the exported function alone.
///
/// # Safety
/// That of `ppoll`.
#[cold]
#[inline(never)]
pub(crate) unsafe fn poll(list: *mut pollfd, count: nfds_t, limit: u64, mask: Mask) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { wait(&Poll { list, count }, limit, mask) }
}

/// `select(2)` and `pselect(2)` with an fd of which something may be remembered: `Select::is_special` has returned true.
/// Stores in `left` the time that is left.
///
/// # Safety
/// That of `pselect`.
#[cold]
#[inline(never)]
pub(crate) unsafe fn select(
    count: c_int,
    sets: [*mut fd_set; 3],
    limit: u64,
    mask: Mask,
    left: Option<&mut timeval>,
) -> c_int {
    let [read, write, except] = sets;
    let (sets, saved) = (sets.map(|set| set.cast()), [[0; LAST_SELECTED / WORD]; 3]);
    let mut call = Select { count, sets, saved };
    // SAFETY: the caller's contract.
    if !unsafe { call.save() } {
        return match left {
            // SAFETY: the caller's contract.
            Some(time) => unsafe { CLibrary::select(count, read, write, except, time) },
            None => call.make_for(limit, mask),
        };
    }
    let end = raw::now().saturating_add(limit);
    // SAFETY: the caller's contract.
    let result = unsafe { wait(&call, limit, mask) };
    if let Some(time) = left {
        let left = to_timespec(end.saturating_sub(raw::now()));
        time.tv_sec = left.tv_sec;
        time.tv_usec = left.tv_nsec / 1000;
    }
    result
}

/// Makes a call that waits for `limit` at most.
///
/// # Safety
/// `mask` must be null or a live signal mask.
unsafe fn wait(call: &dyn Call, limit: u64, mask: Mask) -> c_int {
    // The kernel refuses memory that it cannot read or write. Without this look the library would crash there.
    let ready = call.make_for(0, null());
    if ready != 0 {
        return ready;
    }
    call.undo();
    if call.has_listener(|entry| entry.events)
        && !settings::is_observing()
        && let Some(sleeper) = open(call, limit)
    {
        // SAFETY: the caller's contract.
        return sleeper.run(&|| unsafe { sleep(&sleeper, call, limit, mask) });
    }
    let ready = call.make_for(limit, mask);
    if ready > 0 && settings::is_observing() && call.has_listener(|entry| entry.revents) {
        shared::count_wakeup();
    }
    ready
}

/// Opens a private set for a call; `None` if the call is the kernel's.
fn open(call: &dyn Call, limit: u64) -> Option<Sleeper> {
    let mut count = 0;
    call.each(&mut |_| count += 1);
    if count > MOST {
        return None;
    }
    // A signal that comes from here on is delivered within the sleep, and ends it.
    let locked = lock::lock()?;
    let set = sets::open(&locked, |add| call.each(add))?;
    Some(Sleeper::new(set, locked, limit))
}

/// Sleeps in the set of a call until something is ready, and returns what the call does. The program's signals are blocked.
///
/// # Safety
/// That of `wait`, within `Sleeper::run`.
unsafe fn sleep(sleeper: &Sleeper, call: &dyn Call, limit: u64, mask: Mask) -> c_int {
    let mut buffer = [epoll_event { events: 0, u64: 0 }; EVENTS];
    let mut now = raw::now();
    let end = now.saturating_add(limit);
    loop {
        // SAFETY: the caller's contract, and the buffer has room for as many.
        let count = unsafe { sleeper.sleep(&raw mut buffer, now, end, mask) };
        if count < 0 && raw::errno() == libc::EINTR {
            return -1;
        }
        let Ok(count) = usize::try_from(count) else {
            // The fd was taken from the set.
            break;
        };
        let are_listeners = sleeper.set.harvest(&mut buffer[..count]);
        let ready = call.make_for(0, null());
        if ready != 0 || count == 0 {
            return ready;
        }
        call.undo();
        if !are_listeners {
            // `select` does not ask for this event. The kernel's own wait knows which ones count.
            break;
        }
        // Another worker was quicker.
        shared::count_accept(false);
        let register = |locked: &_| sleeper.set.register(locked, settings::takes_turns());
        if sleeper.locked(register).is_none() {
            break;
        }
        now = raw::now();
    }
    call.make_for(end.saturating_sub(raw::now()), sleeper.mask(mask))
}
