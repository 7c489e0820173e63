//! Kernel sets of the program that a user-level object may still join.
//!
//! A *plain* set is a kernel set that the library knows of and otherwise leaves alone: calls on it are
//! passed on to the kernel as they are. Its first user-level member has it taken over: a user-level set
//! adopts the kernel set as the place of its kernel members. Each of these keeps its interest, its data
//! and its state.
//!
//! # The rule
//! A set is taken over only if it is reachable by its fds in this process alone, and no thread is waiting in
//! the kernel set: such a thread would not be woken for user-level members. So a set is no longer plain, and
//! stays the kernel's for good, once
//! - another process has it, or it is a member of a kernel set;
//! - it was polled, or a second thread has waited in it.
//!
//! A user-level object that is added to such a set is demoted, as in any other kernel set.
//!
//! # The named pairs
//! - A thread that waits claims the set, and so does a thread that takes it over: one of the two
//!   claims fails (`Record::begin_wait`, `Record::take`).
//! - A thread that adds a kernel member publishes that, then checks whether the set is being taken over; a thread that
//!   takes it over publishes that, then checks for members (`Record::note_member`).
//! - A thread that copies the fd counts itself, then checks whether the set is being taken over; a thread
//!   that takes it over publishes that, then checks the count (`Record::begin_copy`).
//! - A thread that copies an fd counts itself, then checks whether the fd is still the set's; a thread that
//!   closes the fd takes it away, then checks the count (`Record::lose_fd`).
//! - A call checks the record first, and checks for a user-level object after that. A thread that takes the set over
//!   puts the object into the table before it clears the record.
//! - A thread that polls checks the generation, then for a takeover; a thread that takes a set over publishes that,
//!   then checks the generation. The poll checks for user-level objects last (`Generations::may_name_any`).
//! - A thread that makes a set notes the generation, then checks whether a fork is under way; a thread that forks
//!   counts the fork, then checks what was noted (`Generations::begin_to_make`).

use crate::sync::{
    AtomicBool, AtomicUsize, Backoff, Ordering, Rule, broken, compiler_fence, signal_point,
};
use crate::{change, counts};

/// States of a [`Record`]. Any other even one is the thread that waits in the set now and then, and any other
/// odd one the thread that takes the set over: threads are even numbers.
const NOT_PLAIN: usize = 0;
const UNUSED: usize = 1;

const fn taken_by(thread: usize) -> usize {
    thread | 1
}

const fn is_being_taken(state: usize) -> bool {
    state > UNUSED && state & 1 == 1
}

/// The state of a plain set.
#[cfg_attr(not(upoll_loom), derive(Debug))]
pub(crate) struct Record {
    state: AtomicUsize,
    /// The number of the set's fds that the library knows.
    #[cfg_attr(upoll_loom, expect(dead_code, reason = "models have no fds"))]
    fds: AtomicUsize,
    /// The number of threads that are making another fd.
    copies: AtomicUsize,
    /// The generation of the set, which ends when another process may come to have it.
    generation: AtomicUsize,
    /// The thread is in a wait, or has left one without its end.
    is_waiting: AtomicBool,
    /// Members may have been added.
    has_members: AtomicBool,
}

/// Atomics can be made in constants only outside of models.
macro_rules! new_record {
    () => {
        Record {
            state: AtomicUsize::new(NOT_PLAIN),
            fds: AtomicUsize::new(0),
            copies: AtomicUsize::new(0),
            generation: AtomicUsize::new(0),
            is_waiting: AtomicBool::new(false),
            has_members: AtomicBool::new(false),
        }
    };
}

impl Record {
    #[cfg(not(upoll_loom))]
    const fn new() -> Self {
        new_record!()
    }

    #[cfg(upoll_loom)]
    pub(crate) fn new() -> Self {
        new_record!()
    }

    fn state(&self) -> usize {
        self.state.load(Ordering::Acquire)
    }

    fn exchange(&self, from: usize, to: usize) -> bool {
        let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
        self.state
            .compare_exchange(from, to, success, failure)
            .is_ok()
    }

    /// Records a plain set, which only its maker knows of yet.
    pub(crate) fn begin(&self, generation: usize) {
        self.generation.store(generation, Ordering::Relaxed);
        self.is_waiting.store(false, Ordering::Relaxed);
        self.has_members.store(false, Ordering::Relaxed);
        self.state.store(UNUSED, Ordering::Release);
    }

    /// Leaves the set to the kernel for good, unless it is user-level once this returns.
    #[inline]
    pub(crate) fn forget(&self, me: usize) {
        if self.state() != NOT_PLAIN {
            self.forget_plain(me);
        }
    }

    #[cold]
    fn forget_plain(&self, me: usize) {
        loop {
            let is_over = match self.state.load(Ordering::SeqCst) {
                NOT_PLAIN => true,
                taken if is_being_taken(taken) => self.outlast_take(me),
                plain => self.exchange(plain, NOT_PLAIN),
            };
            if is_over {
                return;
            }
        }
    }

    /// Begins a wait of the thread `me`, to be ended with what this returns. None if the set is not plain: then
    /// it is the kernel's for good, or user-level.
    #[inline]
    pub(crate) fn begin_wait(&self, me: usize) -> Option<bool> {
        if self.state() == NOT_PLAIN {
            return None;
        }
        signal_point();
        let before = self.note_wait();
        if self.state() == me || self.exchange(UNUSED, me) {
            return Some(before);
        }
        // A second thread, or the set is being taken over.
        self.forget_plain(me);
        None
    }

    /// As [`begin_wait`](Self::begin_wait), for the thread that alone has waited in the set before. None otherwise:
    /// then the thread goes on with `begin_wait`.
    #[inline]
    pub(crate) fn begin_wait_again(&self, me: usize) -> Option<bool> {
        if self.state() != me {
            return None;
        }
        signal_point();
        let before = self.note_wait();
        (self.state() == me).then_some(before)
    }

    /// Notes that the thread is in a wait, and returns whether it was before.
    #[inline]
    fn note_wait(&self) -> bool {
        let before = self.is_waiting.load(Ordering::Relaxed);
        self.is_waiting.store(true, Ordering::Relaxed);
        // A signal handler that comes after this does not take the set over.
        compiler_fence(Ordering::SeqCst);
        signal_point();
        before
    }

    #[inline]
    pub(crate) fn end_wait(&self, me: usize, before: bool) {
        signal_point();
        // The record may be another set's by now.
        if self.state.load(Ordering::Relaxed) == me {
            self.is_waiting.store(before, Ordering::Relaxed);
        }
    }

    /// Records that the caller is about to add a kernel member. The kernel adds it unless the set
    /// is user-level once this returns.
    #[inline]
    pub(crate) fn note_member(&self, me: usize) {
        if self.state() == NOT_PLAIN || self.has_members.load(Ordering::Relaxed) {
            return;
        }
        self.has_members.store(true, Ordering::SeqCst);
        // `take` reads it after it has set the state.
        self.outlast_take(me);
    }

    /// Begins to make another fd for the set. Returns whether that is to be [ended](Self::end_copy). It is not if
    /// the copied fd is no longer the set's, or if the set is now user-level or the kernel's for good.
    pub(crate) fn begin_copy(&self, me: usize, is_fd: impl FnOnce() -> bool) -> bool {
        self.copies.fetch_add(1, Ordering::SeqCst);
        // `take` reads it after it has set the state.
        self.outlast_take(me);
        // A close of the fd takes it away before it reads the count.
        if is_fd() && self.state() != NOT_PLAIN {
            return true;
        }
        self.end_copy();
        false
    }

    pub(crate) fn end_copy(&self) {
        self.copies.fetch_sub(1, Ordering::Release);
    }

    /// Leaves the set to the kernel for good if an fd is being copied as the set loses one. Another file may have
    /// that fd before the kernel makes the copy, which would be taken for one of the set.
    pub(crate) fn lose_fd(&self, me: usize) {
        self.outlast_take(me);
        if self.copies.load(Ordering::SeqCst) != 0 {
            self.forget(me);
        }
    }

    /// Waits for the end of a takeover that is under way, however long it takes: a thread that did not wait
    /// would use the kernel set while user-level members join the set. The thread that takes it over waits
    /// for no other one meanwhile.
    ///
    /// Returns true without a wait if the calling thread itself takes the set over. This is a signal handler
    /// then that the library does not know of, and the takeover goes on once it has returned.
    fn outlast_take(&self, me: usize) -> bool {
        let mut backoff = Backoff::new();
        loop {
            let state = self.state.load(Ordering::SeqCst);
            if state == taken_by(me) || broken(Rule::OutlastTake) {
                return true;
            }
            if !is_being_taken(state) {
                return false;
            }
            backoff.wait();
        }
    }

    /// Claims the set for the thread `me`, which takes it over. Returns whether it may have members; none if it
    /// cannot be taken over, as its `generation` has ended, for one.
    pub(crate) fn take(&self, me: usize, generation: impl FnOnce() -> usize) -> Option<bool> {
        let check = || {
            let is_copied = self.copies.load(Ordering::SeqCst) != 0;
            (is_copied, self.has_members.load(Ordering::SeqCst))
        };
        let early = broken(Rule::ClaimThenCheck).then(check);
        let state = self.state();
        let is_claimed = (state == UNUSED || state == me)
            && !self.is_waiting.load(Ordering::Relaxed)
            && self.exchange(state, taken_by(me));
        if !is_claimed {
            return None;
        }
        let (is_copied, has_members) = early.unwrap_or_else(check);
        if is_copied || self.generation.load(Ordering::Relaxed) != generation() {
            self.end_take();
            return None;
        }
        Some(has_members)
    }

    /// Ends the claim: the set is user-level now, or the kernel's for good.
    pub(crate) fn end_take(&self) {
        self.state.store(NOT_PLAIN, Ordering::Release);
    }
}

/// Generations of plain sets. A generation ends when another process may get its sets, or the kernel polls
/// them. All of its sets are then the kernel's for good, except for one that is just being taken over.
pub(crate) struct Generations {
    now: AtomicUsize,
    /// The newest generation in which a set was made.
    made_in: AtomicUsize,
    /// The thread that takes a set over; 0 if none does.
    taker: AtomicUsize,
}

/// The generation of a set that is the kernel's from its start.
pub(crate) const NO_GENERATION: usize = 0;

/// Atomics can be made in constants only outside of models.
macro_rules! new_generations {
    () => {
        Generations {
            now: AtomicUsize::new(NO_GENERATION + 1),
            made_in: AtomicUsize::new(NO_GENERATION),
            taker: AtomicUsize::new(0),
        }
    };
}

impl Generations {
    #[cfg(not(upoll_loom))]
    const fn new() -> Self {
        new_generations!()
    }

    #[cfg(upoll_loom)]
    pub(crate) fn new() -> Self {
        new_generations!()
    }

    #[inline]
    pub(crate) fn now(&self) -> usize {
        self.now.load(Ordering::SeqCst)
    }

    /// Ends the generation, and waits for the end of a takeover by another thread than `me` that may not have seen
    /// that.
    pub(crate) fn end(&self, me: usize) {
        self.now.fetch_add(1, Ordering::SeqCst);
        // A thread that takes a set over publishes that, then checks the generation.
        self.outlast_taker(me);
    }

    /// Waits until no other thread than `me` takes a set over.
    fn outlast_taker(&self, me: usize) {
        let mut backoff = Backoff::new();
        while ![0, me].contains(&self.taker.load(Ordering::SeqCst)) {
            backoff.wait();
        }
    }

    /// Makes `me` the thread that takes a set over. Returns false if it already is.
    pub(crate) fn become_taker(&self, me: usize) -> bool {
        let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
        loop {
            match self.taker.compare_exchange(0, me, success, failure) {
                Ok(_) => return true,
                Err(taker) if taker == me => return false,
                Err(_) => self.outlast_taker(me),
            }
        }
    }

    /// The takeover has ended.
    pub(crate) fn end_takeover(&self) {
        self.taker.store(0, Ordering::SeqCst);
    }

    /// Returns the generation of a set that is about to be made, [`NO_GENERATION`] while a fork is under way: the
    /// child may have the set, too.
    #[inline]
    pub(crate) fn begin_to_make(&self) -> usize {
        let early = broken(Rule::NoteThenCheck).then(change::is_fork_under_way);
        let generation = self.now();
        match broken(Rule::NoteTheNewest) {
            true => self.made_in.store(generation, Ordering::SeqCst),
            // Another thread may have noted a newer one since.
            false => drop(self.made_in.fetch_max(generation, Ordering::SeqCst)),
        }
        match early.unwrap_or_else(change::is_fork_under_way) {
            true => NO_GENERATION,
            false => generation,
        }
    }

    /// Returns whether there may be a plain set, or one that is just being taken over, that the calling thread can
    /// know of.
    #[inline]
    pub(crate) fn may_have_sets(&self) -> bool {
        // In this order: a generation that has begun is not read before one in which a set was made.
        let made_in = self.made_in.load(Ordering::Acquire);
        // A thread that takes a set over publishes that, then checks the generation.
        made_in == self.now() || self.taker.load(Ordering::SeqCst) != 0
    }

    /// Returns whether a set was ever made.
    #[cfg(not(upoll_loom))]
    fn has_had_sets(&self) -> bool {
        self.made_in.load(Ordering::Relaxed) != NO_GENERATION
    }

    /// As `fds::may_name_any`, on the thread that `me` returns.
    #[inline]
    pub(crate) fn may_name_any(&self, me: impl FnOnce() -> usize) -> bool {
        if self.may_have_sets() && !counts::has_any() {
            self.end_rarely(me());
        }
        // Last: a set that was taken over meanwhile is in the table.
        counts::has_any()
    }

    #[cold]
    #[inline(never)]
    fn end_rarely(&self, me: usize) {
        self.end(me);
    }

    /// Ends the generation once a fork is [counted](change::begin_fork), unless no set was made in it: nothing is
    /// written then.
    pub(crate) fn end_before_fork(&self, me: usize) {
        if self.made_in.load(Ordering::SeqCst) == self.now() {
            self.end(me);
        }
    }
}

#[cfg(not(upoll_loom))]
pub use self::fds::{
    begin_copy, begin_to_make, begin_wait, begin_wait_again, close, close_between, end_copy,
    forget, forget_all, has_record, is_plain, may_name_any, note_member,
};
#[cfg(not(upoll_loom))]
pub(crate) use self::fds::{forget_before_fork, forget_closed, note, take_over};

#[cfg(not(upoll_loom))]
mod fds {
    use std::os::fd::RawFd;

    use super::{Generations, NO_GENERATION, NOT_PLAIN, Record, is_being_taken};
    use crate::change::Change;
    use crate::signals::Section;
    use crate::sync::{AtomicUsize, Ordering};

    /// No fd from this one on stands for a plain set.
    const FDS: usize = 1024;

    /// The records, each at the first fd of its set.
    static RECORDS: [Record; FDS] = [const { Record::new() }; FDS];

    /// The index of each fd's record, plus one; 0 if the fd has none.
    static PLACES: [AtomicUsize; FDS] = [const { AtomicUsize::new(0) }; FDS];

    static GENERATIONS: Generations = Generations::new();

    #[inline]
    fn place(fd: RawFd) -> Option<&'static AtomicUsize> {
        PLACES.get(fd.cast_unsigned() as usize)
    }

    #[inline]
    fn record(fd: RawFd) -> Option<&'static Record> {
        RECORDS.get(place(fd)?.load(Ordering::Acquire).wrapping_sub(1))
    }

    /// Removes the record of an fd.
    #[cold]
    fn clear(place: &AtomicUsize) {
        let record = RECORDS.get(place.swap(0, Ordering::SeqCst).wrapping_sub(1));
        let Some(record) = record else { return };
        record.lose_fd(this_thread());
        if record.fds.fetch_sub(1, Ordering::SeqCst) == 1 {
            record.forget(this_thread());
        }
    }

    /// The address of the thread's record in the C library, which no other live thread has. It is even.
    #[inline]
    fn this_thread() -> usize {
        #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
        {
            let record: usize;
            // SAFETY: on x86-64 glibc's `pthread_self` is this load from the record itself, which lasts as
            // long as the thread.
            unsafe {
                std::arch::asm!(
                    "mov {record}, qword ptr fs:[0x10]",
                    record = out(reg) record,
                    options(nostack, preserves_flags, readonly),
                );
            }
            record
        }
        #[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
        // SAFETY: it needs nothing.
        unsafe {
            libc::pthread_self() as usize
        }
    }

    /// Returns whether there is a record of the fd. If not, it stands for no plain set.
    #[inline]
    pub fn has_record(fd: RawFd) -> bool {
        place(fd).is_some_and(|place| place.load(Ordering::Acquire) != 0)
    }

    /// Returns whether the fd stands for a plain set.
    #[inline]
    pub fn is_plain(fd: RawFd) -> bool {
        record(fd).is_some_and(|record| record.state() != NOT_PLAIN)
    }

    /// Begins to make a set, and returns the generation to record it with.
    #[inline]
    pub fn begin_to_make() -> usize {
        GENERATIONS.begin_to_make()
    }

    /// Records a plain set that the kernel has just made. Forks are [watched](crate::fork::watch).
    pub(crate) fn note(epfd: RawFd, generation: usize) {
        let at = epfd.cast_unsigned() as usize;
        let Some((place, record)) = PLACES.get(at).zip(RECORDS.get(at)) else {
            return;
        };
        // The fd's old set was closed unseen.
        clear(place);
        // The set that had this fd first may still have another one, or may be about to get one.
        let is_free = || {
            if record.copies.load(Ordering::SeqCst) != 0 {
                return false;
            }
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            let counted = record.fds.compare_exchange(0, 1, success, failure);
            counted.is_ok()
        };
        if generation != NO_GENERATION && is_free() {
            record.begin(generation);
            place.store(at + 1, Ordering::Release);
        }
    }

    /// Leaves a plain set to the kernel for good, because it is polled or shared. A set that is just being
    /// taken over is user-level when this returns.
    #[inline]
    pub fn forget(fd: RawFd) {
        if let Some(record) = record(fd) {
            record.forget(this_thread());
        }
    }

    /// Forgets a set whose fd was closed unseen: the fd stands for a user-level object now.
    pub(crate) fn forget_closed(fd: RawFd) {
        if let Some(record) = record(fd)
            && !is_being_taken(record.state())
            && let Some(place) = place(fd)
        {
            clear(place);
        }
    }

    /// As [`forget`], for all plain sets, including those that are not recorded yet.
    pub fn forget_all() {
        GENERATIONS.end(this_thread());
    }

    /// Returns whether a call has to look for user-level objects in what it names. If not, all plain sets that
    /// the call can name are the kernel's from now on.
    #[inline]
    pub fn may_name_any() -> bool {
        GENERATIONS.may_name_any(this_thread)
    }

    /// As [`forget_all`], once the fork is counted. Nothing is written if there are none.
    pub(crate) fn forget_before_fork() {
        GENERATIONS.end_before_fork(this_thread());
    }

    /// Before an fd is closed. To be called before it is looked up in the table.
    #[inline]
    pub fn close(fd: RawFd) {
        if let Some(place) = place(fd)
            && place.load(Ordering::Acquire) != 0
        {
            clear(place);
        }
    }

    /// As [`close`], for all fds from `first` to `last`.
    pub fn close_between(first: u32, last: u32) {
        let last = (last as usize).min(FDS - 1);
        if GENERATIONS.has_had_sets() {
            let places = PLACES.get(first as usize..=last);
            places.into_iter().flatten().for_each(clear);
        }
    }

    /// Before the fd of a set is copied: returns what the copy is to be [ended](end_copy) with, if it is a
    /// plain set. To be called before the fd is looked up in the table.
    #[inline]
    pub fn begin_copy(fd: RawFd) -> Option<usize> {
        let place = place(fd)?;
        match place.load(Ordering::Acquire) {
            0 => None,
            _ => begin_copy_of(place),
        }
    }

    #[cold]
    fn begin_copy_of(place: &AtomicUsize) -> Option<usize> {
        loop {
            let at = place.load(Ordering::SeqCst).checked_sub(1)?;
            let is_fd = || place.load(Ordering::SeqCst) == at + 1;
            if RECORDS[at].begin_copy(this_thread(), is_fd) {
                return Some(at);
            }
            // Otherwise the fd has come to be that of another set.
            if is_fd() {
                return None;
            }
        }
    }

    /// The kernel has made the fd `new`, or none if that is negative.
    #[cold]
    pub fn end_copy(copy: usize, new: RawFd) {
        let record = &RECORDS[copy];
        match place(new) {
            Some(place) => {
                clear(place);
                record.fds.fetch_add(1, Ordering::Relaxed);
                place.store(copy + 1, Ordering::Release);
            }
            // The library keeps no record of so high an fd.
            None if new >= 0 => record.forget(this_thread()),
            None => {}
        }
        record.end_copy();
    }

    /// A wait in a plain set that is under way. It has no destructor, as the thread may be cancelled meanwhile.
    #[derive(Debug)]
    pub struct Wait {
        record: &'static Record,
        /// True if the thread was in a wait before.
        before: bool,
    }

    /// As `Record::begin_wait`. To be called before the fd is looked up in the table.
    #[inline]
    pub fn begin_wait(epfd: RawFd) -> Option<Wait> {
        let record = record(epfd)?;
        let before = record.begin_wait(this_thread())?;
        Some(Wait { record, before })
    }

    /// As `Record::begin_wait_again`. To be called before the fd is looked up in the table.
    #[inline]
    pub fn begin_wait_again(epfd: RawFd) -> Option<Wait> {
        let record = record(epfd)?;
        let before = record.begin_wait_again(this_thread())?;
        Some(Wait { record, before })
    }

    impl Wait {
        /// Ends the wait.
        #[inline]
        pub fn end(self) {
            self.record.end_wait(this_thread(), self.before);
        }
    }

    /// As `Record::note_member`. To be called before the fd is looked up in the table.
    #[inline]
    pub fn note_member(epfd: RawFd) {
        if let Some(record) = record(epfd) {
            record.note_member(this_thread());
        }
    }

    /// Calls `install` with the fds of a plain set, and with whether the set may have members, to make it
    /// user-level. If that is not possible the set is the kernel's from now on.
    pub(crate) fn take_over(
        epfd: RawFd,
        install: impl FnOnce(&mut dyn Iterator<Item = RawFd>, bool),
    ) {
        let Some(at) = place(epfd).and_then(|place| place.load(Ordering::Acquire).checked_sub(1))
        else {
            return;
        };
        let record = &RECORDS[at];
        let me = this_thread();
        let _section = Section::begin();
        // The child that another thread is making must have the kernel's set.
        let Some(_change) = Change::try_begin() else {
            return record.forget(me);
        };
        if !GENERATIONS.become_taker(me) {
            return record.forget(me);
        }
        match record.take(me, || GENERATIONS.now()) {
            Some(has_members) => {
                let fds = (0..).zip(&PLACES);
                let is_its = |place: &AtomicUsize| place.load(Ordering::SeqCst) == at + 1;
                let mut fds = fds.filter_map(|(fd, place)| is_its(place).then_some(fd));
                install(&mut fds, has_members);
                record.end_take();
            }
            None => record.forget(me),
        }
        GENERATIONS.end_takeover();
    }
}
