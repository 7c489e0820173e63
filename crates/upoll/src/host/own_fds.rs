//! The library's own fds.
//!
//! A program may close any fd, and open something else under its number. So the library must never
//! write to, read, close or sleep on a number without knowing that it still stands for the library's
//! own file.
//!
//! # The seal
//! A socket of the process, a *seal*, is a member of every kernel set that the library makes. It is
//! always writable, and asked for only while a wakeup is under way: `EPOLL_CTL_MOD` of a ready
//! member triggers it anew. So a wakeup is one call that names both fds. It fails without any
//! effect unless the first is a kernel set and the second one of its members. The seal is
//! identified by its cookie, which no other socket ever has, and a set with the seal in it is the
//! library's. `EPOLL_CTL_ADD` fails with `EEXIST` on such a set, which makes it a check that
//! changes nothing.
//!
//! Where sets nest, each set that a seal is in is the start of a path up, and the kernel allows 10 to
//! 500 of them from one file. So a seal is in few sets, and in those of one process.
//!
//! # Protected numbers
//! A library that sees each close (`upoll-preload`) calls [`protect`] and keeps the program from these
//! numbers ([`is_own`]). Then the checks are left out. Otherwise each use of a set's number begins with
//! one (`OwnFd::call`).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr;
#[cfg(not(upoll_loom))]
use std::{hint, sync::Mutex};

#[cfg(upoll_loom)]
use loom::{hint, sync::Mutex};

use super::{generation, kernel};
use crate::epoll::Op;
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::memory::{SharedBox, boxed};
use crate::sync::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering, statics};

/// An array of null pointers.
macro_rules! all_null {
    ($length:expr) => {{
        #[cfg(not(upoll_loom))]
        let array = [const { AtomicPtr::new(ptr::null_mut()) }; $length];
        #[cfg(upoll_loom)]
        let array: [_; $length] = std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut()));
        array
    }};
}

/// How long a check of a seal's number is good for, except where a file is closed or a wake sent. A use of
/// a set's number in between meets a file of the program's only if that is a set, and has what is under the
/// seal's number as a member.
const FRESH_MS: u32 = 10;

/// How long a thread sleeps in the kernel at most before it checks its own fds and looks at
/// user-level objects, unless the numbers are protected. A sleeping thread holds the files, so it
/// cannot notice that their numbers were closed, and wakes cannot reach it any more.
const LONGEST_SLEEP: libc::timespec = libc::timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

statics! {
    static IS_PROTECTED: AtomicBool = AtomicBool::new(false);
}

/// Declares that the program cannot reach the library's own numbers from now on. They are taken from
/// the top of the limit then.
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

statics! {
    /// How often a check or a use has met a lost own fd.
    static LOSSES: AtomicU32 = AtomicU32::new(0);
}

/// Returns how often a check or a use has met a lost own fd: if that has changed, what a look has found may
/// not be all.
#[inline]
pub(crate) fn losses() -> u32 {
    LOSSES.load(Ordering::Relaxed)
}

/// When a set has last checked the fds of the sets below it, which it does not use itself.
pub(super) struct LastCheck {
    milliseconds: AtomicU32,
    losses: AtomicU32,
}

impl LastCheck {
    const PERIOD_MS: u32 = 500;

    pub(super) fn new() -> Self {
        LastCheck {
            milliseconds: AtomicU32::new(kernel::coarse_milliseconds()),
            losses: AtomicU32::new(losses()),
        }
    }

    /// Returns whether another check is due, which the caller makes then: half as long after the last one as
    /// a thread sleeps at most, or if a lost fd was met since.
    pub(super) fn is_due(&self) -> bool {
        let (now, losses) = (kernel::coarse_milliseconds(), losses());
        let is_due = !is_protected()
            && (now.wrapping_sub(self.milliseconds.load(Ordering::Relaxed)) >= Self::PERIOD_MS
                || losses != self.losses.load(Ordering::Relaxed));
        if is_due {
            self.milliseconds.store(now, Ordering::Relaxed);
            self.losses.store(losses, Ordering::Relaxed);
        }
        is_due
    }

    /// Makes the next check due at once: the last one found something that could not be repaired.
    pub(super) fn repeat(&self) {
        let long_ago = kernel::coarse_milliseconds().wrapping_sub(Self::PERIOD_MS);
        self.milliseconds.store(long_ago, Ordering::Relaxed);
    }
}

/// The state of an own fd, found by its number. Entries are never freed: a thread that moves an fd
/// away may read an entry that was just given up.
struct Entry {
    /// The number in the lower half: [`NONE`] if it was closed, or another own fd has it. The upper half
    /// counts how often the entry was given out, so that a change that was begun for an earlier fd fails.
    state: AtomicU64,
    /// [`BRIEF`], [`SET`], [`SEAL`] or [`KEPT`].
    kind: AtomicU32,
    /// The seal that a set has in it; a seal's own. Null for other files.
    seal: AtomicPtr<Seal>,
    /// The number under which the seal is in the set.
    under: AtomicI32,
    /// The data of the event that wakes a thread in the set.
    data: AtomicU64,
    /// The events that the seal in the set is asked for.
    asked: AtomicU32,
}

/// No fd; not -1, which a `BorrowedFd` cannot hold.
const NONE: RawFd = RawFd::MIN;

/// A file that the call that opened it closes. It keeps its number.
const BRIEF: u32 = 0;
/// A kernel set with a seal in it.
const SET: u32 = 1;
/// The number of a seal.
const SEAL: u32 = 2;
/// An own fd that a child of a fork continues to use: a wake fd of shared eventfds, the set that
/// they are members of, or a file of an embedder.
const KEPT: u32 = 3;

impl Entry {
    fn new() -> Self {
        Entry {
            state: AtomicU64::new(NONE.cast_unsigned() as u64),
            kind: AtomicU32::new(BRIEF),
            seal: AtomicPtr::new(ptr::null_mut()),
            under: AtomicI32::new(NONE),
            data: AtomicU64::new(0),
            asked: AtomicU32::new(0),
        }
    }

    #[inline]
    fn number(&self) -> RawFd {
        number_in(self.state.load(Ordering::SeqCst))
    }

    /// Reuses the entry, which is in no use, for another fd.
    fn begin(&self, number: RawFd) {
        self.kind.store(BRIEF, Ordering::Relaxed);
        self.seal.store(ptr::null_mut(), Ordering::Relaxed);
        self.asked.store(0, Ordering::Relaxed);
        let before = self.state.load(Ordering::Relaxed);
        let next = (before >> 32).wrapping_add(1) << 32;
        let state = next | u64::from(number.cast_unsigned());
        self.state.store(state, Ordering::SeqCst);
    }

    /// Changes the number if the state is still `before`.
    fn change(&self, before: u64, number: RawFd) -> Result<(), u64> {
        let state = before >> 32 << 32 | u64::from(number.cast_unsigned());
        let changed =
            self.state
                .compare_exchange(before, state, Ordering::SeqCst, Ordering::SeqCst);
        changed.map(drop)
    }

    /// Takes the number away, if `is_taken` agrees, and returns it: nobody else closes the file then.
    fn take_if(&self, is_taken: impl Fn(RawFd) -> bool) -> Option<RawFd> {
        let mut state = self.state.load(Ordering::SeqCst);
        loop {
            let number = number_in(state);
            if number == NONE || !is_taken(number) {
                return None;
            }
            match self.change(state, NONE) {
                Ok(()) => return Some(number),
                Err(now) => state = now,
            }
        }
    }

    fn kind(&self) -> u32 {
        self.kind.load(Ordering::Acquire)
    }

    fn seal(&self) -> Option<&'static Seal> {
        // SAFETY: null or a seal, which is never freed.
        unsafe { self.seal.load(Ordering::SeqCst).as_ref() }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
fn number_in(state: u64) -> RawFd {
    (state as u32).cast_signed()
}

const CHUNK: usize = if cfg!(upoll_loom) { 32 } else { 256 };
const CHUNKS: usize = if cfg!(upoll_loom) { 1 } else { 4096 };
type Chunk = [AtomicPtr<Entry>; CHUNK];

statics! {
    /// The entry of each own number.
    static NUMBERS: [AtomicPtr<Chunk>; CHUNKS] = all_null!(CHUNKS);
    /// No own number was ever below this one.
    static LOWEST: AtomicI32 = AtomicI32::new(RawFd::MAX);
    /// Entries that are in no use.
    static UNUSED: Mutex<Vec<&'static Entry>> = Mutex::new(Vec::new());
}

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
    let made = boxed(all_null!(CHUNK)).ok()?;
    let made = Box::into_raw(made);
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
        lost.take_if(|known| known == number);
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
#[inline]
#[must_use]
pub fn is_own(number: RawFd) -> bool {
    may_be_own(number) && is_recorded(number)
}

/// Returns whether [`is_own`] may be true of a number. This is one comparison, without a call.
#[inline]
#[must_use]
pub fn may_be_own(number: RawFd) -> bool {
    number >= LOWEST.load(Ordering::Relaxed)
}

#[cold]
fn is_recorded(number: RawFd) -> bool {
    is_protected() && settled_entry(number).is_some()
}

/// Returns the entry whose number this is. A number whose entry has another one is just being
/// closed or replaced. Until that is done it cannot be distinguished from a number of the
/// program's.
fn settled_entry(number: RawFd) -> Option<&'static Entry> {
    let mut entry = entry_at(number)?;
    let mut turns = 0;
    while entry.number() != number && turns < MOST_TURNS {
        wait_a_turn(turns);
        turns += 1;
        entry = entry_at(number)?;
    }
    Some(entry)
}

/// About a second. The thread that is waited for may be the one that waits, if this is a signal handler.
const MOST_TURNS: u32 = 1100;

/// Waits for another thread that is in the midst of a few instructions and a system call.
#[cold]
fn wait_a_turn(turns: u32) {
    match turns < 100 {
        true => hint::spin_loop(),
        false => kernel::sleep_a_millisecond(),
    }
}

/// Keeps other threads from opening own fds, and from putting files of the program's under their numbers,
/// until it is dropped.
#[derive(Debug)]
pub struct NumbersHeld(());

statics! {
    static IS_HELD: AtomicBool = AtomicBool::new(false);
}

/// Holds the numbers for a call that puts a file of the program's under `number`, if that is among those
/// that the library may take.
#[inline]
#[must_use]
pub fn hold_numbers(number: RawFd) -> Option<NumbersHeld> {
    match may_take(number) {
        true => hold_protected_numbers(),
        false => None,
    }
}

/// Returns whether a number is among those that the library may take, if they are protected.
#[inline]
#[must_use]
pub fn may_take(number: RawFd) -> bool {
    // The first own fd of a process may be opened at this moment. With such a low number it is one of few.
    const LOWEST_OF_THE_FIRST: RawFd = 64;
    number >= LOWEST.load(Ordering::Relaxed).min(LOWEST_OF_THE_FIRST)
}

/// Holds the numbers while one is opened and recorded.
#[cold]
pub(super) fn hold_protected_numbers() -> Option<NumbersHeld> {
    if !is_protected() {
        return None;
    }
    for turns in 0..MOST_TURNS {
        let taken = IS_HELD.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_ok() {
            return Some(NumbersHeld(()));
        }
        wait_a_turn(turns);
    }
    // This is a signal handler, and the thread that it has interrupted holds them.
    None
}

impl Drop for NumbersHeld {
    fn drop(&mut self) {
        IS_HELD.store(false, Ordering::Release);
    }
}

/// The first own number from `first` to `last`, if they are protected.
#[must_use]
pub fn next_own(first: u32, last: u32) -> Option<RawFd> {
    match is_protected() {
        true => recorded(first, last).find(|&fd| is_recorded(fd)),
        false => None,
    }
}

/// The numbers from `first` to `last` that have an entry.
fn recorded(first: u32, last: u32) -> impl Iterator<Item = RawFd> {
    let lowest = LOWEST.load(Ordering::Relaxed).cast_unsigned();
    let last = last.min((CHUNK * CHUNKS) as u32 - 1);
    let mut next = first.max(lowest);
    std::iter::from_fn(move || {
        while next <= last {
            let number = next.cast_signed();
            if place(number).is_none() {
                // Nothing in the whole chunk.
                next = (next / CHUNK as u32 + 1) * CHUNK as u32;
                continue;
            }
            next += 1;
            if entry_at(number).is_some() {
                return Some(number);
            }
        }
        None
    })
}

/// Calls `replace`, which puts another file under `number`. An own fd under that number is moved to
/// another one before. The caller [holds](hold_numbers) the numbers.
///
/// # Errors
/// Those of `replace`. `EBUSY`: there is no other number for the own fd, or it is just being closed.
pub fn replace<R>(number: RawFd, replace: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
    for turns in 0..MOST_TURNS {
        let Some(entry) = entry_at(number) else {
            return replace();
        };
        let state = entry.state.load(Ordering::SeqCst);
        if number_in(state) == number && entry.kind() != BRIEF {
            match duplicate_for(entry, number) {
                Ok(moved) if entry.change(state, moved).is_ok() => {
                    return replace_moved(number, entry, replace);
                }
                // It was closed, or moved, meanwhile.
                Ok(moved) => {
                    kernel::close(moved);
                    forget(moved, entry);
                }
                Err(_) if entry.state.load(Ordering::SeqCst) == state => return Err(Errno::BUSY),
                Err(_) => {}
            }
        }
        // Another thread is in the midst of closing or replacing it.
        wait_a_turn(turns);
    }
    Err(Errno::BUSY)
}

/// Another number for the own fd `number`.
fn duplicate_for(entry: &'static Entry, number: RawFd) -> Result<RawFd, Errno> {
    let moved = kernel::duplicate_high(number)?;
    match record(moved, entry) {
        true => Ok(moved),
        false => {
            kernel::close(moved);
            Err(Errno::MFILE)
        }
    }
}

/// The own fd of `entry` has another number by now. Calls of the program on the old one wait until it is
/// forgotten here.
fn replace_moved<R>(
    number: RawFd,
    entry: &'static Entry,
    replace: impl FnOnce() -> Result<R, Errno>,
) -> Result<R, Errno> {
    if let Some(seal) = entry.seal().filter(|_| entry.kind() == SEAL) {
        seal.follow_from(number);
    }
    let replaced = replace();
    if replaced.is_err() {
        kernel::close(number);
    }
    forget(number, entry);
    replaced
}

/// Closes the own fds that this process, which was just forked, has from its parent, but for those
/// that it continues to use. The structures that used the closed fds are left without one.
///
/// To be called before anything else of the library is, and by the only thread. Async-signal-safe.
pub(super) fn close_inherited() {
    // A set is known by its seal, so the seals come last.
    for kind in [SET, SEAL] {
        for number in recorded(0, u32::MAX) {
            let Some(entry) = entry_at(number) else {
                continue;
            };
            if entry.number() != number {
                // A thread was in the midst of closing or moving it.
                forget(number, entry);
            } else if entry.kind() == kind && !entry.is_needed_in_children() {
                entry.close_in_child(number);
            }
        }
    }
    // A page is not to be copied for what is right already.
    if !SEALS.load(Ordering::Relaxed).is_null() {
        SEALS.store(ptr::null_mut(), Ordering::Release);
    }
    if IS_HELD.load(Ordering::Relaxed) {
        IS_HELD.store(false, Ordering::Release);
    }
}

impl Entry {
    /// Whether it is a seal of a set that a child goes on to use.
    fn is_needed_in_children(&self) -> bool {
        let seal = self.seal.load(Ordering::Relaxed);
        let needs_seal =
            |entry: &Entry| entry.kind() == KEPT && entry.seal.load(Ordering::Relaxed) == seal;
        self.kind() == SEAL && recorded(0, u32::MAX).filter_map(entry_at).any(needs_seal)
    }

    fn close_in_child(&'static self, number: RawFd) {
        let Some(seal) = self.seal() else { return };
        let is_own = || match self.kind() {
            SEAL => seal.socket.is(number),
            _ => seal.is_intact() && has_member(number, seal.number()),
        };
        if is_protected() || is_own() {
            kernel::close(number);
        }
        self.take_if(|known| known == number);
        forget(number, self);
    }
}

/// Whether the set `set` has the file `number` as a member. Changes nothing in a set of the library's.
fn has_member(set: RawFd, number: RawFd) -> bool {
    // Asks for no events: the seal and wake fds never have an error or hang up.
    match kernel::epoll_ctl_by_number(set, Op::Add, number, &Event::default()) {
        Err(errno) => errno == Errno::EXIST,
        Ok(()) => {
            let _ = kernel::epoll_ctl_by_number(set, Op::Del, number, &Event::default());
            false
        }
    }
}

/// The lowest number to ask the kernel for, and lower ones to try if all above it are taken.
///
/// Without protection the numbers are above those that most programs get, but low enough for a
/// `select` that a wake fd is part of to need no memory. With it they are at the top of the limit, or of
/// 1024: the kernel's table of fds grows with the highest number, and each fork copies it.
pub(super) fn first_numbers() -> impl Iterator<Item = libc::rlim_t> {
    let most = kernel::most_numbers();
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
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.number().fmt(f)
    }
}

/// The evidence that the number still stands for the file.
#[derive(Debug)]
enum Proof {
    /// It is closed by the very call that opened it.
    Brief,
    /// A kernel set that has the seal of its entry in it.
    Sealed,
    /// Another number of a seal.
    Seal(&'static Seal),
    /// A member of this sealed set.
    MemberOf(SharedBox<OwnFd>),
}

impl AsRawFd for OwnFd {
    #[inline]
    fn as_raw_fd(&self) -> RawFd {
        self.entry.number()
    }
}

impl AsFd for OwnFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the number was the library's own; each user checks that it still is.
        unsafe { BorrowedFd::borrow_raw(self.as_raw_fd()) }
    }
}

impl OwnFd {
    /// Takes over a number that was just opened.
    ///
    /// # Errors
    /// `EMFILE`: it is too high a number, or there is no memory to record it. `ENOMEM`.
    pub(super) fn brief(number: RawFd) -> Result<Self, Errno> {
        let unused = UNUSED.try_lock().ok().and_then(|mut unused| unused.pop());
        let new = || boxed(Entry::new()).map(|entry| &*Box::leak(entry));
        let entry = match unused.map_or_else(new, Ok) {
            Ok(entry) => entry,
            Err(errno) => {
                kernel::close(number);
                return Err(errno);
            }
        };
        entry.begin(number);
        if !record(number, entry) {
            kernel::close(number);
            return Err(Errno::MFILE);
        }
        Ok(OwnFd {
            entry,
            proof: Proof::Brief,
            is_lost: AtomicBool::new(false),
        })
    }

    /// A kernel set that was just opened, with the seal in it from now on.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`, `ENOSPC`: the kernel has no fd for the seal, or no memory.
    pub(super) fn sealed(set: OwnFd) -> Result<Self, Errno> {
        let mut set = set;
        set.proof = Proof::Sealed;
        let entry = set.entry;
        entry.kind.store(SET, Ordering::Release);
        // A program that closes the seal again and again meets an error at last.
        let mut error = Errno::MFILE;
        for _ in 0..3 {
            let seal = match Seal::take() {
                Ok(seal) => seal,
                Err(errno) => {
                    error = errno;
                    break;
                }
            };
            // Published, now look: a thread that moves the seal looks for sets after it has changed the number.
            entry
                .seal
                .store(ptr::from_ref(seal).cast_mut(), Ordering::SeqCst);
            let under = seal.number();
            entry.under.store(under, Ordering::SeqCst);
            let change = |op, under| {
                set.try_call(|set| kernel::epoll_ctl_by_number(set, op, under, &Event::default()))
            };
            let added = change(Op::Add, under);
            if is_protected() && seal.number() != under {
                // The seal was moved meanwhile, and `under` may mean a file of the program's.
                let _ = change(Op::Del, under);
                set.change_seal(&Event::default());
                return Ok(set);
            }
            match added {
                // An adopted set that was given up keeps the seal.
                Ok(()) | Err(Errno::EXIST) => return Ok(set),
                Err(errno) => {
                    entry.seal.store(ptr::null_mut(), Ordering::SeqCst);
                    seal.leave();
                    seal.give_up();
                    error = errno;
                }
            }
            if !matches!(error, Errno::BADF | Errno::PERM) {
                break;
            }
        }
        set.proof = Proof::Brief;
        Err(error)
    }

    /// A file that was just opened, known from now on as a member of `set`, which asks for no events
    /// of it. A child of a fork goes on to use both.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOSPC`: from the kernel.
    pub(super) fn member_of(set: &SharedBox<OwnFd>, file: OwnFd) -> Result<Self, Errno> {
        let mut file = file;
        kernel::epoll_ctl(set, Op::Add, file.as_raw_fd(), &Event::default())?;
        file.proof = Proof::MemberOf(SharedBox::clone(set));
        file.entry.kind.store(KEPT, Ordering::Release);
        set.entry.kind.store(KEPT, Ordering::Release);
        Ok(file)
    }

    /// Closes the set that the file is a member of, too.
    pub(super) fn close_with_set(&self) {
        self.close();
        if let Proof::MemberOf(set) = &self.proof {
            set.close();
        }
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
            let mut fd = kernel::duplicate(seal.number())?;
            if seal.socket.is(fd.as_raw_fd()) {
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
        let is_intact = self.is_intact_with(Seal::is_intact);
        if is_intact && self.is_found_lost() {
            // A check has met the number as the file was put in the place of the lost one.
            self.is_lost.store(false, Ordering::Relaxed);
        }
        is_intact
    }

    /// As [`is_intact`](Self::is_intact), by one system call for a set. To be asked before each use that is
    /// not made by [`call`](Self::call).
    #[inline]
    pub(crate) fn is_in_place(&self) -> bool {
        self.is_intact_with(Seal::was_intact)
    }

    #[inline]
    fn is_intact_with(&self, is_seal_intact: impl FnOnce(&Seal) -> bool) -> bool {
        let is_intact = match &self.proof {
            Proof::Brief => true,
            _ if !self.has_number() => false,
            _ if is_protected() => !self.is_lost.load(Ordering::Relaxed),
            Proof::Sealed => self.seal().is_some_and(is_seal_intact) && self.has_seal(),
            Proof::Seal(seal) => seal.socket.is(self.as_raw_fd()),
            Proof::MemberOf(set) => {
                set.is_intact() && has_member(set.as_raw_fd(), self.as_raw_fd())
            }
        };
        if !is_intact {
            self.meet_loss();
        }
        is_intact
    }

    /// Records that the fd was found lost.
    #[cold]
    fn meet_loss(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
        LOSSES.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether a use failed since the number was lost, and records that.
    #[cold]
    pub(crate) fn is_lost_after_failure(&self) -> bool {
        let is_lost = match is_protected() {
            true => !self.has_seal(),
            false => !self.is_intact(),
        };
        if is_lost {
            self.meet_loss();
        }
        is_lost
    }

    /// Returns whether a use or a check has failed since the file was last put there. Takes no system call.
    #[inline]
    pub(crate) fn is_found_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Makes a system call with the number, and once more if it fails and the fd has another number by
    /// then.
    ///
    /// # Errors
    /// Any error of the call. `EBADF`: the number was lost.
    #[inline]
    pub(super) fn call<R>(&self, call: impl FnMut(RawFd) -> Result<R, Errno>) -> Result<R, Errno> {
        match is_protected() || self.is_in_place() {
            true => self.try_call(call),
            false => Err(Errno::BADF),
        }
    }

    /// As [`call`](Self::call), of a number that is known to be in place.
    #[inline]
    fn try_call<R>(&self, mut call: impl FnMut(RawFd) -> Result<R, Errno>) -> Result<R, Errno> {
        loop {
            let number = self.as_raw_fd();
            let result = call(number);
            if !matches!(&result, Err(errno) if *errno != Errno::INTR)
                || !self.has_moved_from(number)
            {
                return result;
            }
        }
    }

    /// Returns whether the fd had the number `before` and has another one now.
    #[cold]
    fn has_moved_from(&self, before: RawFd) -> bool {
        let number = self.as_raw_fd();
        is_protected() && number != before && number != NONE
    }

    fn has_seal(&self) -> bool {
        self.seal()
            .is_some_and(|seal| has_member(self.as_raw_fd(), seal.number()))
    }

    /// Whether the number has not come to be that of another own fd, after the program closed it.
    #[inline]
    fn has_number(&self) -> bool {
        loop {
            let number = self.as_raw_fd();
            let has_it = entry_at(number).is_some_and(|entry| ptr::eq(entry, self.entry));
            // The fd may have been moved between the two looks.
            if has_it || self.as_raw_fd() == number {
                return has_it;
            }
        }
    }

    fn seal(&self) -> Option<&'static Seal> {
        match &self.proof {
            Proof::Sealed => self.entry.seal(),
            _ => None,
        }
    }

    /// The number under which the seal is a member, for callers that list members.
    pub(super) fn number_of_seal(&self) -> Option<RawFd> {
        self.seal()
            .map(|_| self.entry.under.load(Ordering::Relaxed))
    }

    /// The events that the seal in the set is asked for.
    pub(super) fn asked(&self) -> &AtomicU32 {
        &self.entry.asked
    }

    pub(super) fn change_seal(&self, interest: &Event) -> bool {
        let entry = self.entry;
        entry.data.store(interest.data(), Ordering::SeqCst);
        while let Some(seal) = self.seal() {
            let set = self.as_raw_fd();
            let under = entry.under.load(Ordering::SeqCst);
            let number = seal.number();
            if !(is_protected() || self.has_number() && seal.socket.is(number)) {
                break;
            }
            // Only protected numbers move. Under its old one the seal cannot be named any more. A number that
            // is not protected differs while the set is made anew: `set` may be a set of the program's then.
            let op = match number == under || !is_protected() {
                true => Op::Mod,
                false => Op::Add,
            };
            let changed = kernel::epoll_ctl_by_number(set, op, number, interest);
            if op == Op::Add && matches!(changed, Ok(()) | Err(Errno::EXIST)) {
                entry.under.store(number, Ordering::SeqCst);
            }
            if changed.is_ok() {
                return true;
            }
            let now = (self.as_raw_fd(), entry.under.load(Ordering::SeqCst));
            if now == (set, under) && seal.number() == number {
                break;
            }
        }
        self.meet_loss();
        false
    }

    /// Closes the file, if the number still stands for it. Uses that come later find it lost.
    pub(super) fn close(&self) {
        if self.as_raw_fd() == NONE && self.entry.seal().is_none() {
            // Closed before: that is no loss.
            return;
        }
        let is_intact = self.is_intact();
        if let Some(seal) = self.seal() {
            self.entry.seal.store(ptr::null_mut(), Ordering::SeqCst);
            seal.leave();
        }
        // A thread that moves the fd at this moment closes its own number, as the state has
        // changed. A thread that replaces the file waits until the number is forgotten.
        let number = self.entry.take_if(|_| true);
        if is_intact && let Some(number) = number {
            kernel::close(number);
        }
        if let Some(number) = number {
            forget(number, self.entry);
        }
    }
}

impl OwnFd {
    /// Puts the file of `anew` in the place of this one, which was lost. Both are sealed sets.
    pub(super) fn replace_lost(&self, anew: OwnFd) {
        let (Proof::Sealed, Proof::Sealed) = (&self.proof, &anew.proof) else {
            return;
        };
        let (old, new) = (self.entry, anew.entry);
        let lost = old.number();
        let number = new.number();
        let old_seal = old.seal();
        old.seal
            .store(new.seal.load(Ordering::SeqCst), Ordering::SeqCst);
        if let Some(old_seal) = old_seal {
            old_seal.leave();
        }
        old.under
            .store(new.under.load(Ordering::SeqCst), Ordering::SeqCst);
        record(number, old);
        let mut state = old.state.load(Ordering::SeqCst);
        while let Err(now) = old.change(state, number) {
            state = now;
        }
        forget(lost, old);
        self.is_lost.store(false, Ordering::Release);
        // The number is this one's now.
        new.take_if(|_| true);
        give_back(new);
        std::mem::forget(anew);
    }
}

fn give_back(entry: &'static Entry) {
    // Where the lock is taken the entry is lost: a fork may have left it so. So it is without memory.
    if let Ok(mut unused) = UNUSED.try_lock()
        && unused.try_reserve(1).is_ok()
    {
        unused.push(entry);
    }
}

impl Drop for OwnFd {
    fn drop(&mut self) {
        self.close();
        give_back(self.entry);
    }
}

/// The number of a file of an embedder's that the program cannot reach, as the library's own. It stays open
/// in children of forks.
#[derive(Clone, Copy, Debug)]
pub struct KeptFile(&'static Entry);

impl KeptFile {
    /// A number for the file that `number` stands for.
    ///
    /// # Errors
    /// `EBADF`: it is not open. `EMFILE`: there is no other number.
    pub fn of(number: RawFd) -> Result<Self, Errno> {
        let fd = kernel::duplicate(number)?;
        fd.entry.kind.store(KEPT, Ordering::Release);
        let kept = KeptFile(fd.entry);
        // It stays open.
        std::mem::forget(fd);
        Ok(kept)
    }

    /// The number that it has now.
    #[must_use]
    pub fn number(self) -> RawFd {
        self.0.number()
    }
}

/// A file that is always writable, under a number of the library's own.
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
    socket: kernel::Socket,
    /// How many sets it is in, at most [`SETS_OF_A_SEAL`].
    sets: AtomicU32,
    /// The process that made it: a child makes its own.
    generation: u32,
    /// The program has closed its number.
    is_lost: AtomicBool,
    /// When its number last stood for it, in milliseconds.
    checked: AtomicU32,
    /// The one made before.
    next: Option<&'static Seal>,
}

/// How many sets a seal is in at most. Below the 10 paths of four links up that the kernel allows from
/// one file.
const SETS_OF_A_SEAL: u32 = 8;

statics! {
    /// The seals, the newest first.
    static SEALS: AtomicPtr<Seal> = AtomicPtr::new(ptr::null_mut());
}

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
        // A child closes what it inherits.
        generation::watch_forks()?;
        let fd = kernel::idle_socket()?;
        let socket = kernel::Socket::of(fd.as_raw_fd()).ok_or(Errno::NOMEM)?;
        let made = boxed(Seal {
            entry: fd.entry,
            socket,
            sets: AtomicU32::new(1),
            generation: generation::current(),
            is_lost: AtomicBool::new(false),
            checked: AtomicU32::new(kernel::coarse_milliseconds()),
            next: None,
        })?;
        let made = Box::into_raw(made);
        fd.entry.seal.store(made, Ordering::SeqCst);
        fd.entry.kind.store(SEAL, Ordering::Release);
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
        self.entry.number()
    }

    fn is_intact(&self) -> bool {
        let number = self.number();
        number >= 0 && (is_protected() || self.socket.is(number))
    }

    /// As [`is_intact`](Self::is_intact), by a check that may be `FRESH_MS` old.
    #[inline]
    fn was_intact(&self) -> bool {
        let now = kernel::coarse_milliseconds();
        if now.wrapping_sub(self.checked.load(Ordering::Relaxed)) < FRESH_MS {
            return true;
        }
        let is_intact = self.is_intact();
        if is_intact {
            self.checked.store(now, Ordering::Relaxed);
        }
        is_intact
    }

    /// Registers the seal under its new number in the sets that it is in, and deletes the
    /// registration under `old`. That must be done while `old` is still open: a later wakeup would
    /// keep a set readable for ever.
    fn follow_from(&'static self, old: RawFd) {
        let number = self.number();
        let is_in = |entry: &&Entry| {
            entry.kind() != SEAL && ptr::eq(entry.seal.load(Ordering::SeqCst), self)
        };
        for entry in recorded(0, u32::MAX).filter_map(entry_at).filter(is_in) {
            let set = entry.number();
            let _ = kernel::epoll_ctl_by_number(set, Op::Del, old, &Event::default());
            // A wakeup that is among it may not have been taken.
            let events = Events::from_bits_retain(entry.asked.load(Ordering::SeqCst));
            let interest = Event::new(events, entry.data.load(Ordering::SeqCst));
            // Another thread that wakes or quiets the set may have been faster.
            let _ = kernel::epoll_ctl_by_number(set, Op::Add, number, &interest);
            entry.under.store(number, Ordering::SeqCst);
        }
    }

    /// No set is sealed by it any more, if it is lost.
    fn give_up(&self) {
        if !self.is_intact() || is_protected() {
            self.is_lost.store(true, Ordering::Relaxed);
        }
    }
}
