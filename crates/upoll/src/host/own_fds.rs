//! The library's own fds.
//!
//! A program may close any fd, and open something else under its number. So the library must never
//! write to, read, close or sleep on a number without knowing that it still stands for the library's
//! own file.
//!
//! # The seal
//! A socket of the process, a *seal*, is a member of every kernel set that the library makes. It
//! is always writable, and asked for only while a wake is under way: `EPOLL_CTL_MOD` of a ready
//! member triggers it anew. So a wake is one call that names both numbers, and that fails without
//! any effect unless the first is a kernel set and the second one of its members. The socket's cookie
//! tells it from every other socket ever made, and a set with the seal in it is the library's.
//! `EPOLL_CTL_ADD` fails with `EEXIST` on such a set, which makes it a check that changes nothing.
//!
//! Where sets nest, each set that a seal is in is the start of a path up, and the kernel allows 10 to
//! 500 of them from one file. So a seal is in few sets, and in those of one process.
//!
//! # Protected numbers
//! A library that sees each close (`upoll-preload`) calls [`protect`] and keeps the program from these
//! numbers ([`is_own`]). Then the checks are left out. Otherwise a check that would cost too much on a
//! hot path is made when the last one is `FRESH_MS` old.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::{generation, kernel};
use crate::epoll::Op;
use crate::errno::Errno;
use crate::events::{Event, Events};

/// How long a check on a hot path is good for.
const FRESH_MS: u32 = 10;

/// How long a thread sleeps in the kernel at most before it checks its own fds and looks at
/// user-level objects, unless the numbers are protected. A sleeping thread holds the files, so it
/// cannot notice that their numbers were closed, and wakes cannot reach it any more.
const LONGEST_SLEEP: libc::timespec = libc::timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

static IS_PROTECTED: AtomicBool = AtomicBool::new(false);

/// Declares that the program cannot reach the library's own numbers from now on. They are taken from
/// the top of the limit then.
#[doc(hidden)]
pub fn protect() {
    IS_PROTECTED.store(true, Ordering::Relaxed);
}

#[inline]
fn is_protected() -> bool {
    IS_PROTECTED.load(Ordering::Relaxed)
}

/// Whether the program can close the library's own fds unseen.
#[inline]
pub(crate) fn may_be_lost() -> bool {
    !is_protected()
}

/// The limit of one sleep in the kernel of a thread that wakes must reach.
#[inline]
pub(crate) fn limit_of_sleep(limit: Option<libc::timespec>) -> Option<libc::timespec> {
    let is_longer = |limit: &libc::timespec| limit.tv_sec >= LONGEST_SLEEP.tv_sec;
    match limit {
        limit if is_protected() => limit,
        Some(limit) if !is_longer(&limit) => Some(limit),
        _ => Some(LONGEST_SLEEP),
    }
}

/// Where an own fd has its number. Entries are never freed: a program that has one moved away may look
/// at an entry that is just given up.
struct Entry {
    /// [`NONE`] if it was closed, or another own fd has it.
    number: AtomicI32,
}

/// No fd; not -1, which a `BorrowedFd` cannot hold.
const NONE: RawFd = RawFd::MIN;

const CHUNK: usize = 256;
const CHUNKS: usize = 4096;
type Chunk = [AtomicPtr<Entry>; CHUNK];

/// The entry of each own number.
static NUMBERS: [AtomicPtr<Chunk>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];
/// No own number was ever below this one.
static LOWEST: AtomicI32 = AtomicI32::new(RawFd::MAX);
/// Entries that are in no use.
static UNUSED: Mutex<Vec<&'static Entry>> = Mutex::new(Vec::new());

fn place(number: RawFd) -> Option<&'static AtomicPtr<Entry>> {
    let number = usize::try_from(number).ok()?;
    let chunk = NUMBERS.get(number / CHUNK)?.load(Ordering::Acquire);
    // SAFETY: null, or made in `make_place` and never freed.
    unsafe { chunk.as_ref() }.map(|chunk| &chunk[number % CHUNK])
}

fn make_place(number: RawFd) -> Option<&'static AtomicPtr<Entry>> {
    if let Some(place) = place(number) {
        return Some(place);
    }
    let chunk = NUMBERS.get(usize::try_from(number).ok()? / CHUNK)?;
    let made = Box::into_raw(Box::new([const { AtomicPtr::new(ptr::null_mut()) }; CHUNK]));
    let published =
        chunk.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
    if published.is_err() {
        // SAFETY: made above, and known to nobody else.
        drop(unsafe { Box::from_raw(made) });
    }
    place(number)
}

fn entry_at(number: RawFd) -> Option<&'static Entry> {
    // SAFETY: null or a leaked entry.
    unsafe { place(number)?.load(Ordering::Acquire).as_ref() }
}

/// Records that a number is the library's own. Returns false if it is too high for that.
///
/// An own fd that had the number until now was closed by the program. It would be taken for the new one,
/// which has the seal in it as well, so it loses its number here.
fn record(number: RawFd, entry: &'static Entry) -> bool {
    let Some(place) = make_place(number) else {
        return false;
    };
    let before = place.swap(ptr::from_ref(entry).cast_mut(), Ordering::AcqRel);
    // SAFETY: null or a leaked entry.
    if let Some(lost) = unsafe { before.as_ref() }.filter(|before| !ptr::eq(*before, entry)) {
        let _ = lost
            .number
            .compare_exchange(number, NONE, Ordering::AcqRel, Ordering::Relaxed);
    }
    LOWEST.fetch_min(number, Ordering::Release);
    true
}

/// Forgets a number, unless it has come to be another entry's.
fn forget(number: RawFd, entry: &'static Entry) {
    if let Some(place) = place(number) {
        let entry = ptr::from_ref(entry).cast_mut();
        let _ = place.compare_exchange(entry, ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Whether a number is the library's own and [protected](protect), so that calls of the program on it
/// are to fail with `EBADF`.
#[doc(hidden)]
#[inline]
#[must_use]
pub fn is_own(number: RawFd) -> bool {
    number >= LOWEST.load(Ordering::Relaxed) && is_recorded(number)
}

#[cold]
fn is_recorded(number: RawFd) -> bool {
    is_protected() && entry_at(number).is_some()
}

/// The first own number from `first` to `last`, if they are protected.
#[doc(hidden)]
#[must_use]
pub fn next_own(first: u32, last: u32) -> Option<RawFd> {
    let lowest = LOWEST.load(Ordering::Relaxed).cast_unsigned();
    let last = last.min((CHUNK * CHUNKS) as u32 - 1);
    let mut number = first.max(lowest);
    while number <= last {
        let fd = number.cast_signed();
        if place(fd).is_none() {
            // Nothing in the whole chunk.
            number = (number / CHUNK as u32 + 1) * CHUNK as u32;
            continue;
        }
        if is_recorded(fd) {
            return Some(fd);
        }
        number += 1;
    }
    None
}

/// Moves the own fd with this number to another one, so that the program may have the number. The file
/// stays open under it until it is replaced.
///
/// # Errors
/// `EBUSY`: there is no other number for it.
#[doc(hidden)]
pub fn move_away(number: RawFd) -> Result<(), Errno> {
    let Some(entry) = entry_at(number) else {
        return Ok(());
    };
    let moved = kernel::duplicate_high(number).map_err(|_| Errno::BUSY)?;
    if !record(moved, entry) {
        kernel::close(moved);
        return Err(Errno::BUSY);
    }
    let changed = entry
        .number
        .compare_exchange(number, moved, Ordering::AcqRel, Ordering::Relaxed);
    if changed.is_err() {
        // It was closed, or moved, meanwhile.
        kernel::close(moved);
        forget(moved, entry);
    }
    forget(number, entry);
    Ok(())
}

/// The lowest number to ask the kernel for, and lower ones to try if all above it are taken.
///
/// Without protection the numbers are above those that most programs get, but low enough for a
/// `select` that a wake fd is part of to need no memory. With it they are at the top of the limit, or of
/// 1024: the kernel's table of fds grows with the highest number, and each fork copies it.
pub(super) fn first_numbers() -> impl Iterator<Item = libc::rlim_t> {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the call fills the structure.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let most = limit.rlim_cur;
    let (first, others) = match is_protected() {
        true => {
            let top = most.min(1024);
            let first = top.saturating_sub(128).max(top / 4 * 3);
            (first, [top / 2, top / 4])
        }
        false => {
            let first = (most / 4 * 3).min(256);
            (first, [first / 2, first / 4])
        }
    };
    std::iter::once(first).chain(others)
}

/// An open file of the library's own, under a number that the program may close or replace.
#[derive(Debug)]
pub(crate) struct OwnFd {
    entry: &'static Entry,
    proof: Proof,
    /// A use has failed, or a check.
    is_lost: AtomicBool,
    /// When it was last found to be there, in milliseconds.
    checked: AtomicU32,
    /// A wake was sent since the last [`quiet`](OwnFd::quiet).
    is_rung: AtomicBool,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.number.load(Ordering::Relaxed).fmt(f)
    }
}

/// How to tell that the number still stands for the file.
#[derive(Debug)]
enum Proof {
    /// It is closed by the very call that opened it.
    Brief,
    /// A kernel set that has the seal in it, under this number of the seal's.
    Sealed {
        seal: AtomicPtr<Seal>,
        under: AtomicI32,
    },
    /// Another number of a seal.
    Seal(&'static Seal),
    /// A member of this sealed set.
    MemberOf(Arc<OwnFd>),
}

impl AsRawFd for OwnFd {
    #[inline]
    fn as_raw_fd(&self) -> RawFd {
        self.entry.number.load(Ordering::Acquire)
    }
}

impl AsFd for OwnFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the number was the library's own; whoever uses it checks that it still is.
        unsafe { BorrowedFd::borrow_raw(self.as_raw_fd()) }
    }
}

impl OwnFd {
    /// Takes over a number that was just opened.
    ///
    /// # Errors
    /// `EMFILE`: it is too high a number.
    pub(super) fn brief(number: RawFd) -> Result<Self, Errno> {
        let unused = UNUSED.try_lock().ok().and_then(|mut unused| unused.pop());
        let entry = unused.unwrap_or_else(|| {
            Box::leak(Box::new(Entry {
                number: AtomicI32::new(NONE),
            }))
        });
        entry.number.store(number, Ordering::Release);
        if !record(number, entry) {
            kernel::close(number);
            return Err(Errno::MFILE);
        }
        Ok(OwnFd {
            entry,
            proof: Proof::Brief,
            is_lost: AtomicBool::new(false),
            checked: AtomicU32::new(now()),
            is_rung: AtomicBool::new(false),
        })
    }

    /// A kernel set that was just opened, with the seal in it from now on.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`, `ENOSPC`: the kernel has no fd for the seal, or no memory.
    pub(super) fn sealed(set: OwnFd) -> Result<Self, Errno> {
        let mut set = set;
        // A program that closes the seal again and again meets an error at last.
        for _ in 0..3 {
            let seal = Seal::take()?;
            let under = seal.number();
            match kernel::epoll_ctl(&set, Op::Add, under, &Event::default()) {
                // An adopted set that was given up keeps the seal.
                Ok(()) | Err(Errno::EXIST) => {
                    set.proof = Proof::Sealed {
                        seal: AtomicPtr::new(ptr::from_ref(seal).cast_mut()),
                        under: AtomicI32::new(under),
                    };
                    return Ok(set);
                }
                Err(errno) => {
                    seal.leave();
                    if !matches!(errno, Errno::BADF | Errno::PERM) {
                        return Err(errno);
                    }
                    seal.give_up();
                }
            }
        }
        Err(Errno::MFILE)
    }

    /// A file that was just opened, known from now on as a member of `set`, which asks for no events
    /// of it.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOSPC`: from the kernel.
    pub(super) fn member_of(set: &Arc<OwnFd>, file: OwnFd) -> Result<Self, Errno> {
        let mut file = file;
        kernel::epoll_ctl(set, Op::Add, file.as_raw_fd(), &Event::default())?;
        file.proof = Proof::MemberOf(Arc::clone(set));
        Ok(file)
    }

    /// Another number of the seal: a file that is never readable.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: there is none.
    pub(crate) fn idle() -> Result<Self, Errno> {
        for _ in 0..3 {
            let seal = Seal::take()?;
            // The number is of no set.
            seal.leave();
            let mut fd = OwnFd::brief(kernel::duplicate_high(seal.number())?)?;
            if kernel::socket_cookie(fd.as_raw_fd()) == Some(seal.cookie) {
                fd.proof = Proof::Seal(seal);
                return Ok(fd);
            }
            seal.give_up();
        }
        Err(Errno::MFILE)
    }

    /// Whether the number still stands for the file. Takes system calls.
    #[cold]
    pub(crate) fn is_intact(&self) -> bool {
        let is_intact = match &self.proof {
            Proof::Brief => true,
            _ if !self.has_number() => false,
            _ if is_protected() => !self.is_lost.load(Ordering::Relaxed),
            Proof::Sealed { .. } => {
                let seal = self.seal();
                seal.is_some_and(Seal::is_intact) && self.has_seal()
            }
            Proof::Seal(seal) => kernel::socket_cookie(self.as_raw_fd()) == Some(seal.cookie),
            Proof::MemberOf(set) => set.is_intact() && set.has_member(self.as_raw_fd()),
        };
        match is_intact {
            true => self.checked.store(now(), Ordering::Relaxed),
            false => self.is_lost.store(true, Ordering::Relaxed),
        }
        is_intact
    }

    /// As [`is_intact`](Self::is_intact), by a check that may be `FRESH_MS` old.
    #[inline]
    pub(crate) fn was_intact(&self) -> bool {
        if self.is_lost.load(Ordering::Relaxed) || !self.has_number() {
            return false;
        }
        is_protected()
            || now().wrapping_sub(self.checked.load(Ordering::Relaxed)) < FRESH_MS
            || self.is_intact()
    }

    /// Returns whether a use failed since the number was lost, and records that.
    #[cold]
    pub(crate) fn is_lost_after_failure(&self) -> bool {
        let is_lost = match is_protected() {
            true => !self.has_seal(),
            false => !self.is_intact(),
        };
        self.is_lost.fetch_or(is_lost, Ordering::Relaxed);
        is_lost
    }

    fn has_seal(&self) -> bool {
        self.seal()
            .is_some_and(|seal| self.has_member(seal.number()))
    }

    /// Whether the number has not come to be that of another own fd, after the program closed it.
    #[inline]
    fn has_number(&self) -> bool {
        entry_at(self.as_raw_fd()).is_some_and(|entry| ptr::eq(entry, self.entry))
    }

    fn seal(&self) -> Option<&'static Seal> {
        match &self.proof {
            // SAFETY: seals are never freed.
            Proof::Sealed { seal, .. } => unsafe { seal.load(Ordering::Acquire).as_ref() },
            _ => None,
        }
    }

    /// The number under which the seal is a member, for whoever lists members.
    pub(super) fn number_of_seal(&self) -> Option<RawFd> {
        match &self.proof {
            Proof::Sealed { under, .. } => Some(under.load(Ordering::Relaxed)),
            _ => None,
        }
    }

    /// Whether the set has the file `number` as a member. Changes nothing in a set of the library's.
    fn has_member(&self, number: RawFd) -> bool {
        // Asks for no events: the seal and wake fds never have an error or hang up.
        match kernel::epoll_ctl(self, Op::Add, number, &Event::default()) {
            Err(errno) => errno == Errno::EXIST,
            Ok(()) => {
                let _ = kernel::epoll_ctl(self, Op::Del, number, &Event::default());
                false
            }
        }
    }

    /// Wakes one thread that sleeps in the set, with an event that carries `data`; an edge for those
    /// who poll the set. Returns false, and does nothing, if the set was lost.
    pub(crate) fn ring(&self, data: u64) -> bool {
        // Before, so that a thread that finds the set readable knows why; after, since such a thread
        // may have taken it back.
        self.is_rung.store(true, Ordering::SeqCst);
        let is_done = self.change_seal(&Event::new(Events::OUT | Events::ET, data));
        self.is_rung.store(true, Ordering::SeqCst);
        is_done
    }

    /// Takes back a wake that nobody has heard. Returns false, and does nothing, if the set was lost.
    pub(crate) fn quiet(&self, data: u64) -> bool {
        self.is_rung.store(false, Ordering::SeqCst);
        self.change_seal(&Event::new(Events::empty(), data))
    }

    /// Whether a wake was sent since the last [`quiet`](Self::quiet).
    pub(crate) fn is_rung(&self) -> bool {
        self.is_rung.load(Ordering::SeqCst)
    }

    fn change_seal(&self, interest: &Event) -> bool {
        let Proof::Sealed { under, .. } = &self.proof else {
            return false;
        };
        loop {
            let Some(seal) = self.seal() else {
                return false;
            };
            let (set, member) = (self.as_raw_fd(), under.load(Ordering::Acquire));
            if !(is_protected() || self.has_number() && seal.is_intact()) {
                break;
            }
            if kernel::epoll_ctl_by_number(set, Op::Mod, member, interest).is_ok() {
                if !is_protected() {
                    self.checked.store(now(), Ordering::Relaxed);
                }
                return true;
            }
            if self.as_raw_fd() != set {
                continue;
            }
            // Only protected numbers move.
            let moved = seal.number();
            if !is_protected() || moved == member {
                break;
            }
            match kernel::epoll_ctl_by_number(set, Op::Add, moved, interest) {
                Ok(()) | Err(Errno::EXIST) => under.store(moved, Ordering::Release),
                Err(_) if self.as_raw_fd() != set => {}
                Err(_) => break,
            }
        }
        self.is_lost.store(true, Ordering::Relaxed);
        false
    }
}

impl OwnFd {
    /// Puts the file of `anew` in the place of this one, which was lost. Both are sealed sets.
    pub(super) fn replace_lost(&self, anew: OwnFd) {
        let (
            Proof::Sealed { seal, under },
            Proof::Sealed {
                seal: new_seal,
                under: new_under,
            },
        ) = (&self.proof, &anew.proof)
        else {
            return;
        };
        let lost = self.as_raw_fd();
        let number = anew.as_raw_fd();
        let old_seal = seal.swap(new_seal.load(Ordering::Relaxed), Ordering::AcqRel);
        // SAFETY: seals are never freed.
        if let Some(old_seal) = unsafe { old_seal.as_ref() } {
            old_seal.leave();
        }
        under.store(new_under.load(Ordering::Relaxed), Ordering::Release);
        record(number, self.entry);
        self.entry.number.store(number, Ordering::Release);
        forget(lost, self.entry);
        self.checked.store(now(), Ordering::Relaxed);
        self.is_lost.store(false, Ordering::Release);
        // The number is this one's now.
        anew.entry.number.store(NONE, Ordering::Relaxed);
        give_back(anew.entry);
        std::mem::forget(anew);
    }
}

fn give_back(entry: &'static Entry) {
    // Where the lock is taken the entry is lost: a fork may have left it so.
    if let Ok(mut unused) = UNUSED.try_lock() {
        unused.push(entry);
    }
}

impl Drop for OwnFd {
    fn drop(&mut self) {
        let is_intact = self.is_intact();
        if let Some(seal) = self.seal() {
            seal.leave();
        }
        let number = self.as_raw_fd();
        if is_intact {
            kernel::close(number);
        }
        forget(number, self.entry);
        self.entry.number.store(NONE, Ordering::Relaxed);
        give_back(self.entry);
    }
}

/// A file that is always writable, under a number of the library's own.
#[doc(hidden)]
#[derive(Debug)]
pub struct AlwaysWritable(OwnFd);

impl AlwaysWritable {
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: the kernel has no fd for it.
    pub fn new() -> Result<Self, Errno> {
        OwnFd::idle().map(AlwaysWritable)
    }
}

impl AsFd for AlwaysWritable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A member of kernel sets of the library's: see the module. Never freed.
#[derive(Debug)]
struct Seal {
    entry: &'static Entry,
    cookie: u64,
    /// How many sets it is in, at most [`SETS_OF_A_SEAL`].
    sets: AtomicU32,
    /// The process that made it: a child makes its own.
    generation: u32,
    /// The program has closed its number.
    is_lost: AtomicBool,
    /// The one made before.
    next: Option<&'static Seal>,
}

/// How many sets a seal is in at most. Below the 10 paths of four links up that the kernel allows from
/// one file.
const SETS_OF_A_SEAL: u32 = 8;

/// The seals, the newest first.
static SEALS: AtomicPtr<Seal> = AtomicPtr::new(ptr::null_mut());

impl Seal {
    fn newest() -> Option<&'static Self> {
        // SAFETY: null, or leaked in `make`.
        unsafe { SEALS.load(Ordering::Acquire).as_ref() }
    }

    /// Returns one for another set, which is counted. It is made if there is none.
    fn take() -> Result<&'static Self, Errno> {
        let mut next = Self::newest();
        while let Some(seal) = next {
            if seal.join() {
                if seal.is_intact() {
                    return Ok(seal);
                }
                seal.leave();
                seal.give_up();
            }
            next = seal.next;
        }
        Self::make()
    }

    /// Makes one that is in one set.
    fn make() -> Result<&'static Self, Errno> {
        let fd = kernel::idle_socket()?;
        let cookie = kernel::socket_cookie(fd.as_raw_fd()).ok_or(Errno::NOMEM)?;
        let made = Box::into_raw(Box::new(Seal {
            entry: fd.entry,
            cookie,
            sets: AtomicU32::new(1),
            generation: generation::current(),
            is_lost: AtomicBool::new(false),
            next: None,
        }));
        // It stays open.
        std::mem::forget(fd);
        let mut newest = SEALS.load(Ordering::Acquire);
        loop {
            // SAFETY: `made` is known to nobody else before it is published; `newest` is null or was
            // published here, and nothing published is freed.
            unsafe { (*made).next = newest.as_ref() };
            match SEALS.compare_exchange(newest, made, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: never freed, and not changed any more but for its atomics.
                Ok(_) => return Ok(unsafe { &*made }),
                Err(other) => newest = other,
            }
        }
    }

    /// Counts another set, if there is room and it is this process's.
    fn join(&self) -> bool {
        if self.is_lost.load(Ordering::Relaxed) || self.generation != generation::current() {
            return false;
        }
        let more = |sets| (sets < SETS_OF_A_SEAL).then(|| sets + 1);
        self.sets
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    /// A set that it was in has closed.
    fn leave(&self) {
        self.sets.fetch_sub(1, Ordering::Relaxed);
    }

    fn number(&self) -> RawFd {
        self.entry.number.load(Ordering::Acquire)
    }

    fn is_intact(&self) -> bool {
        let number = self.number();
        number >= 0 && (is_protected() || kernel::socket_cookie(number) == Some(self.cookie))
    }

    /// No set is sealed by it any more, if it is lost.
    fn give_up(&self) {
        if !self.is_intact() || is_protected() {
            self.is_lost.store(true, Ordering::Relaxed);
        }
    }
}

/// Milliseconds of a clock that takes no system call and is not the finest.
fn now() -> u32 {
    static UNKNOWN: AtomicU64 = AtomicU64::new(0);
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call fills the structure.
    if unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) } != 0 {
        // Every check is old.
        return UNKNOWN.fetch_add(u64::from(FRESH_MS), Ordering::Relaxed) as u32;
    }
    (time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000) as u32
}
