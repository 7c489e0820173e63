//! `poll` and `select` on a listening socket.
//!
//! A call that finds something at once is the kernel's own. A call that would sleep does so in an epoll set. The
//! set holds the listening sockets with `EPOLLEXCLUSIVE` and the other fds as they are. Afterwards the
//! kernel's `poll` or `select` returns what is ready. The set lives as long as the call, so that a worker that falls
//! asleep is always the last in line.
//!
//! The program does not know the fd of that set, and may close it or put a file of its own under the number. The
//! functions of `hooks` look for it, as for other fds with something to remember, and mark its place in `sleeping`. The
//! call then leaves the number alone and goes on in the kernel's `poll` or `select`. Not noticed are raw system calls,
//! and a call that has looked before the set was opened, but enters the kernel after that. A call that is made between the
//! last check and a nap has that nap go to what has the number then.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering};

use libc::{epoll_event, fd_set, pollfd, sigset_t, timespec};

use crate::fds::{self, FIRST_SET, PRIVATE, UNKNOWN};
use crate::lock::{self, Locked};
use crate::raw::{self, kernel};
use crate::sets::{self, EXCLUSIVE, cookie};
use crate::settings;
use crate::shared;
use crate::sleeping::{self, NONE};
use crate::wait::{After, Limit, Sleep};

/// A call with more fds is the kernel's.
const MOST: usize = 32;
/// A call of `poll` with more entries is not looked at.
const LONGEST_LIST: usize = 4096;
/// A call of `select` with more is the kernel's. It reads no bits beyond the process's fds, so that a larger number
/// does not mean that the sets are as long.
const LAST_SELECTED: usize = libc::FD_SETSIZE;
const EVENTS: usize = 16;
const NOT_USED: pollfd = pollfd {
    fd: NONE,
    events: 0,
    revents: 0,
};

/// The sets have numbers from here on, if the process may have such: programs expect the lowest free numbers to be theirs.
/// Beyond 63 the kernel would have to enlarge the table of fds, whose size shows in what `select` reads.
const FIRST_NUMBER: c_int = 32;

/// The fds of a call, some of which are listening sockets.
struct Watched {
    entries: [pollfd; MOST],
    count: usize,
}

impl Watched {
    const fn new() -> Self {
        Watched {
            entries: [NOT_USED; MOST],
            count: 0,
        }
    }

    fn add(&mut self, entry: pollfd) {
        if let Some(place) = self.entries.get_mut(self.count) {
            *place = entry;
        }
        self.count += 1;
    }

    /// Returns the fds if they are not too many to wait for.
    fn few(&self) -> Option<&Self> {
        (self.count <= MOST).then_some(self)
    }

    fn entries(&self) -> &[pollfd] {
        &self.entries[..self.count]
    }
}

/// Takes note of an fd in a call, and returns whether it is a listening socket.
#[inline]
fn look_at(fd: c_int) -> bool {
    let kind = fds::kind(fd);
    if kind == fds::ORDINARY {
        return false;
    }
    if kind >= FIRST_SET {
        sets::polled(fd);
    }
    fds::may_be_listener(fd)
}

/// Returns the entries of a `poll`; none if the list is not valid or too long to look at.
///
/// # Safety
/// `list` must point to `count` entries, if it is not null.
#[inline]
unsafe fn entries<'a>(list: *const pollfd, count: libc::nfds_t) -> &'a [pollfd] {
    match usize::try_from(count) {
        // SAFETY: the caller's contract.
        Ok(count @ 1..=LONGEST_LIST) if !list.is_null() => unsafe {
            std::slice::from_raw_parts(list, count)
        },
        _ => &[],
    }
}

/// Returns whether a `poll` holds a listening socket.
///
/// # Safety
/// `list` must point to `count` entries, if it is not null.
#[inline]
pub(crate) unsafe fn has_listener(list: *const pollfd, count: libc::nfds_t) -> bool {
    let mut found = false;
    // SAFETY: the caller's contract.
    for entry in unsafe { entries(list, count) } {
        // Also without POLLIN: afterwards the fd is known.
        found |= look_at(entry.fd) && entry.events & libc::POLLIN != 0;
    }
    found
}

/// `ppoll(2)` with a listening socket, after a look that found nothing ready. Returns `None` if the call is the kernel's.
///
/// # Safety
/// That of `ppoll`.
#[cold]
pub(crate) unsafe fn poll(
    list: *const pollfd,
    count: libc::nfds_t,
    limit: Limit,
    mask: *const sigset_t,
    kernels: &Kernels,
) -> Option<c_int> {
    if settings::is_observing() {
        return Some(observe(limit, mask, kernels, || {
            // SAFETY: the caller's contract.
            let mut entries = unsafe { entries(list, count) }.iter();
            entries.any(|entry| {
                entry.revents & libc::POLLIN != 0 && fds::kind(entry.fd) == fds::LISTENER
            })
        }));
    }
    let mut watched = Watched::new();
    // SAFETY: the caller's contract.
    for entry in unsafe { entries(list, count) }
        .iter()
        .filter(|entry| entry.fd >= 0)
    {
        watched.add(*entry);
    }
    // SAFETY: the caller's contract.
    unsafe { wait(watched.few()?, limit, mask, kernels) }
}

/// The bits of `select`'s sets, `count` of them. A null set is empty.
#[derive(Clone, Copy)]
pub(crate) struct Sets {
    pub(crate) count: c_int,
    pub(crate) sets: [*mut fd_set; 3],
}

const WORD: usize = u64::BITS as usize;
type Words = [u64; LAST_SELECTED / WORD];

/// Returns the fds that a word of a set stands for.
#[inline]
fn fds_in(word: usize, mut bits: u64) -> impl Iterator<Item = c_int> {
    let first = c_int::try_from(word * WORD).unwrap_or(0);
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| bits.trailing_zeros())?;
        bits &= bits - 1;
        Some(first + bit.cast_signed())
    })
}

impl Sets {
    #[inline]
    fn words(self) -> usize {
        usize::try_from(self.count).unwrap_or(0).div_ceil(WORD)
    }

    /// Returns whether a set is null or can be read; the kernel refuses other ones.
    fn is_readable(self, which: usize) -> bool {
        let set = self.sets[which];
        set.is_null() || raw::is_readable(set.addr(), self.words() * size_of::<u64>())
    }

    /// # Safety
    /// Each set must be null or have `count` bits, rounded up to a word.
    #[inline]
    unsafe fn read(self, which: usize, word: usize) -> u64 {
        let set = self.sets[which].cast::<u64>();
        if set.is_null() {
            return 0;
        }
        // SAFETY: the caller's contract.
        unsafe { set.add(word).read_unaligned() }
    }

    /// Returns whether a `select` reads an fd that is not known to be an ordinary one. False if the set cannot be
    /// read: the kernel refuses the call.
    ///
    /// # Safety
    /// That of `read`.
    #[inline]
    pub(crate) unsafe fn is_any_special(self) -> bool {
        if self.sets[0].is_null()
            || !(1..=LAST_SELECTED as c_int).contains(&self.count)
            || !self.is_readable(0)
        {
            return false;
        }
        (0..self.words()).any(|word| {
            // SAFETY: the caller's contract, and `word` is below their number.
            fds_in(word, unsafe { self.read(0, word) })
                .any(|fd| fd < self.count && fds::kind(fd) != fds::ORDINARY)
        })
    }

    /// Returns whether a `select` holds a listening socket.
    ///
    /// # Safety
    /// That of `read`.
    #[inline]
    pub(crate) unsafe fn have_listener(self) -> bool {
        // SAFETY: the caller's contract.
        if !unsafe { self.is_any_special() } {
            return false;
        }
        let mut found = false;
        for word in 0..self.words() {
            // SAFETY: the caller's contract, and `word` is below their number.
            for fd in fds_in(word, unsafe { self.read(0, word) }) {
                found |= fd < self.count && look_at(fd);
            }
        }
        found
    }

    /// # Safety
    /// That of `read`.
    unsafe fn watched(self) -> Watched {
        let mut watched = Watched::new();
        for word in 0..self.words() {
            // SAFETY: the caller's contract, and `word` is below their number.
            let [read, write, except] = [0, 1, 2].map(|which| unsafe { self.read(which, word) });
            for fd in fds_in(word, read | write | except).filter(|&fd| fd < self.count) {
                let bit = fd.cast_unsigned() % u64::BITS;
                let mut events = 0;
                for (set, event) in [
                    (read, libc::POLLIN),
                    (write, libc::POLLOUT),
                    (except, libc::POLLPRI),
                ] {
                    if set >> bit & 1 != 0 {
                        events |= event;
                    }
                }
                watched.add(pollfd {
                    fd,
                    events,
                    revents: 0,
                });
            }
        }
        watched
    }

    /// # Safety
    /// That of `read`.
    unsafe fn save(self) -> [Words; 3] {
        let mut saved = [[0; LAST_SELECTED / WORD]; 3];
        for (which, words) in saved.iter_mut().enumerate() {
            for (word, saved) in words.iter_mut().enumerate().take(self.words()) {
                // SAFETY: the caller's contract.
                *saved = unsafe { self.read(which, word) };
            }
        }
        saved
    }

    /// # Safety
    /// That of `read`.
    unsafe fn restore(self, saved: &[Words; 3]) {
        for (set, words) in self.sets.iter().zip(saved) {
            if !set.is_null() {
                // SAFETY: the caller's contract; `save` read as many words.
                unsafe {
                    set.cast::<u8>().copy_from_nonoverlapping(
                        words.as_ptr().cast(),
                        self.words() * size_of::<u64>(),
                    )
                };
            }
        }
    }

    /// `pselect(2)` with a listening socket. Returns `None` if the call is the kernel's.
    ///
    /// # Safety
    /// That of `read`, and of `wait`.
    #[cold]
    pub(crate) unsafe fn select(
        self,
        limit: Limit,
        mask: *const sigset_t,
        kernels: &Kernels,
    ) -> Option<c_int> {
        if !self.is_readable(1) || !self.is_readable(2) {
            return None;
        }
        // SAFETY: the caller's contract.
        let (watched, saved) = unsafe { (self.watched(), self.save()) };
        // After a failure the sets are as they were, and perhaps cannot be written.
        let ready = kernels(&raw const NO_TIME, std::ptr::null());
        if ready != 0 {
            return Some(ready);
        }
        let again = |time: *const timespec, mask: *const sigset_t| {
            // SAFETY: the caller's contract.
            unsafe { self.restore(&saved) };
            kernels(time, mask)
        };
        if settings::is_observing() {
            // SAFETY: the caller's contract.
            return Some(observe(limit, mask, &again, || unsafe {
                self.have_listener()
            }));
        }
        // SAFETY: the caller's contract.
        let result = unsafe { wait(watched.few()?, limit, mask, &again) };
        if result.is_none_or(|result| result < 0) {
            // SAFETY: the caller's contract.
            unsafe { self.restore(&saved) };
        }
        result
    }
}

/// `struct _pthread_cleanup_buffer`
#[repr(C)]
struct Cleanup {
    routine: usize,
    argument: usize,
    cancel_type: c_int,
    previous: usize,
}

unsafe extern "C" {
    fn _pthread_cleanup_push(
        buffer: *mut Cleanup,
        routine: extern "C" fn(*mut c_void),
        argument: *mut c_void,
    );
    fn _pthread_cleanup_pop(buffer: *mut Cleanup, execute: c_int);
}

/// A set for the time of one call.
struct Private {
    epfd: c_int,
    /// The key of the group.
    key: u64,
    place: &'static AtomicI32,
    signals: u64,
    /// The process that has opened it.
    process: u32,
}

impl Private {
    /// Opens a set with the fds, and blocks the program's signals. Returns `None` if it cannot stand in for `poll`.
    fn open(watched: &Watched) -> Option<Private> {
        if !lock::is_owner() {
            // A child by a raw `clone`: a thread of its parent may have held the lock.
            return None;
        }
        let locked = lock::lock();
        let opened = Private::open_locked(&locked, watched);
        let signals = locked.unlock_blocked();
        if opened.is_none() {
            raw::restore_signals(signals);
        }
        let (epfd, key, place) = opened?;
        Some(Private {
            epfd,
            key,
            place,
            signals,
            process: shared::process(),
        })
    }

    fn open_locked(locked: &Locked, watched: &Watched) -> Option<(c_int, u64, &'static AtomicI32)> {
        let index = sleeping::find_free()?;
        let mut epfd = Private::take(locked, kernel!(SYS_epoll_create1, libc::EPOLL_CLOEXEC))?;
        if epfd < FIRST_NUMBER {
            let command = libc::F_DUPFD_CLOEXEC;
            let high = kernel!(SYS_fcntl, epfd, command, FIRST_NUMBER);
            if let Some(high) = Private::take(locked, high) {
                Private::close(epfd);
                epfd = high;
            }
        }
        // Beyond the table no call is noticed.
        let is_noticed = fds::kind(epfd) == PRIVATE;
        let Some(key) = is_noticed.then(|| key(watched, epfd)).flatten() else {
            Private::close(epfd);
            return None;
        };
        Some((epfd, key, sleeping::take(locked, index, epfd)))
    }

    /// Takes note of an fd that the kernel has just returned; `None` if it returned an error.
    fn take(locked: &Locked, fd: isize) -> Option<c_int> {
        let fd = c_int::try_from(fd).ok().filter(|&fd| fd >= 0)?;
        sets::forget_number(locked, fd);
        fds::set_kind(fd, PRIVATE);
        Some(fd)
    }

    /// Closes the fd. A call that finds it marked waits for the lock, and then finds it closed.
    fn close(fd: c_int) {
        kernel!(SYS_close, fd);
        fds::set_kind(fd, UNKNOWN);
    }

    /// Returns whether the number is still that of the set, as far as the library has noticed.
    fn is_open(&self) -> bool {
        self.place.load(Ordering::Relaxed) == self.epfd
    }
}

extern "C" fn close_private(private: *mut c_void) {
    // SAFETY: `wait` registered its own live `Private`.
    let private = unsafe { &*private.cast::<Private>() };
    // A signal handler may have forked within this call, by a raw `clone` while a thread held the lock.
    let is_owner = lock::is_owner();
    if is_owner {
        // A cancelled thread has the mask of its sleep.
        lock::lock().keep();
    }
    // A child of `fork` has closed its copy, and the place may be another thread's.
    let is_ours = !is_owner || shared::process() == private.process;
    if is_ours && private.place.swap(NONE, Ordering::Relaxed) == private.epfd {
        Private::close(private.epfd);
    }
    if is_owner {
        lock::unlock(private.signals);
    } else {
        raw::restore_signals(private.signals);
    }
}

/// The program's call, with a time to wait and a signal mask (null: the thread's own).
pub(crate) type Kernels<'a> = dyn Fn(*const timespec, *const sigset_t) -> c_int + 'a;

pub(crate) static NO_TIME: timespec = timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Waits by the kernel's call, and counts a wakeup for a listening socket.
fn observe(
    limit: Limit,
    mask: *const sigset_t,
    kernels: &Kernels,
    found_listener: impl Fn() -> bool,
) -> c_int {
    let left = limit.left(limit.end(raw::now()));
    let left = left.as_ref().map_or(std::ptr::null(), |left| left);
    let ready = kernels(left, mask);
    if ready > 0 && found_listener() {
        shared::count_wakeup();
    }
    ready
}

/// Waits for fds of which none is ready, and then calls `kernels` for what is. Returns what it does, or -1 after a signal; `None` if
/// the library cannot wait for them.
///
/// # Safety
/// `mask` must be null or a live signal mask.
unsafe fn wait(
    watched: &Watched,
    limit: Limit,
    mask: *const sigset_t,
    kernels: &Kernels,
) -> Option<c_int> {
    let end = limit.end(raw::now());
    // A signal that comes from here on is delivered within the sleep, and ends it.
    let private = Private::open(watched)?;
    let mut cleanup = Cleanup {
        routine: 0,
        argument: 0,
        cancel_type: 0,
        previous: 0,
    };
    // SAFETY: the buffer and the argument live until the pop below, and the calls are a pair in one function.
    unsafe {
        _pthread_cleanup_push(
            &raw mut cleanup,
            close_private,
            (&raw const private).cast_mut().cast(),
        )
    };
    let mask = if mask.is_null() {
        (&raw const private.signals).cast()
    } else {
        mask
    };
    // SAFETY: the caller's contract.
    let result = unsafe { wait_in(&private, watched, limit, end, mask, kernels) };
    // SAFETY: this is the pair of the push above.
    unsafe { _pthread_cleanup_pop(&raw mut cleanup, 1) };
    Some(result)
}

/// Adds the fds to the set. Returns the key of the group; `None` if the set cannot stand in for `poll`.
fn key(watched: &Watched, epfd: c_int) -> Option<u64> {
    let mut key = 0_u64;
    for (index, entry) in watched.entries().iter().enumerate() {
        let is_listener = is_exclusive(entry);
        if is_listener {
            key = key.wrapping_add(cookie(entry.fd));
        }
        if add(epfd, entry, index, is_listener) < 0 {
            return None;
        }
    }
    // Without a listening socket the number meant another file meanwhile.
    (key != 0).then_some(key)
}

fn is_exclusive(entry: &pollfd) -> bool {
    entry.events & libc::POLLOUT == 0
        && entry.events & libc::POLLIN != 0
        && fds::is_listener(entry.fd)
}

fn add(epfd: c_int, entry: &pollfd, index: usize, is_listener: bool) -> isize {
    let events = if is_listener {
        libc::EPOLLIN as u32 | EXCLUSIVE
    } else {
        // POLLNVAL is never asked for; the other bits mean the same in both.
        u32::from((entry.events & !libc::POLLNVAL).cast_unsigned())
    };
    let event = epoll_event {
        events,
        u64: index as u64,
    };
    kernel!(
        SYS_epoll_ctl,
        epfd,
        libc::EPOLL_CTL_ADD,
        entry.fd,
        &raw const event
    )
}

/// Goes to the end of the line. Returns whether it did; `None` if the program has closed the set.
fn rotate(private: &Private, watched: &Watched, only_ready: bool) -> Option<bool> {
    let locked = lock::lock();
    let rotated = private
        .is_open()
        .then(|| rotate_locked(private.epfd, watched, only_ready));
    locked.unlock_for_nap(private.signals);
    rotated
}

fn rotate_locked(epfd: c_int, watched: &Watched, only_ready: bool) -> bool {
    let mut rotated = false;
    for (index, entry) in watched.entries().iter().enumerate() {
        if is_exclusive(entry) && (!only_ready || raw::is_ready(entry.fd)) {
            kernel!(SYS_epoll_ctl, epfd, libc::EPOLL_CTL_DEL, entry.fd, 0);
            add(epfd, entry, index, true);
            rotated = true;
        }
    }
    rotated
}

/// # Safety
/// `mask` must be a live signal mask. The program's signals are blocked.
unsafe fn wait_in(
    private: &Private,
    watched: &Watched,
    limit: Limit,
    end: u64,
    mask: *const sigset_t,
    kernels: &Kernels,
) -> c_int {
    const NOTHING: epoll_event = epoll_event { events: 0, u64: 0 };
    let group = shared::group(private.key);
    let mut events = [NOTHING; EVENTS];
    while private.is_open() {
        let sleep = Sleep {
            epfd: private.epfd,
            events: events.as_mut_ptr(),
            capacity: EVENTS as c_int,
            limit,
            mask,
        };
        let check = || match rotate(private, watched, true) {
            None => After::Closed,
            Some(rotated) => {
                if rotated {
                    shared::count_rescue();
                }
                After::Nap
            }
        };
        // SAFETY: the caller's contract, and `events` has room for as many.
        let count = unsafe { sleep.sleep(raw::now(), end, group, &check) };
        let Ok(count) = usize::try_from(count) else {
            if raw::errno() == libc::EINTR {
                return -1;
            }
            // The number was taken from the set.
            break;
        };
        let mut woken = events[..count].iter().map(|event| {
            let index = usize::try_from(event.u64).unwrap_or(MOST);
            watched
                .entries()
                .get(index)
                .is_some_and(|entry| fds::kind(entry.fd) == fds::LISTENER)
        });
        let (by_listener, by_others) = (woken.clone().any(|is| is), woken.any(|is| !is));
        if by_listener {
            shared::count_wakeup();
            if let Some(group) = group {
                group.woken(raw::now());
            }
        }
        let ready = kernels(&raw const NO_TIME, std::ptr::null());
        if ready != 0 || count == 0 {
            return ready;
        }
        if by_others {
            // `select` does not ask for this event. The kernel's own wait knows which ones count.
            break;
        }
        // Another worker was quicker.
        shared::count_accept(false);
        if settings::takes_turns() && rotate(private, watched, false).is_some() {
            shared::count_rotation();
        }
    }
    let left = limit.left(end);
    let left = left.as_ref().map_or(std::ptr::null(), |left| left);
    kernels(left, mask)
}
