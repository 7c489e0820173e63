//! Kernel sets of the program that a user-level object may still join.
//!
//! A *plain* set is a kernel set that the library knows of and otherwise leaves alone: calls on it are
//! passed on to the kernel as they are. With its first user-level member it is [taken over](take_over): a
//! user-level set adopts the kernel set as the place of its kernel members, so each of these keeps its
//! interest, its data and its state.
//!
//! # The rule
//! A set is taken over only if nothing but its numbers in this process leads to it, and no thread is waiting
//! in the kernel set: such a thread would not hear of user-level members. So a set is no longer plain, and
//! stays the kernel's for good, once
//! - another process has it, or it is a member of a kernel set;
//! - it was polled, or a second thread has waited in it.
//!
//! A user-level object that is added to such a set is demoted, as in any other kernel set.
//!
//! # The named pairs
//! - A thread that waits claims the set, and whoever takes it over does: one of the two claims fails
//!   (`Record::begin_wait`, `Record::take`).
//! - A thread that adds a kernel member says so, then looks whether the set is being taken over; a thread that
//!   takes it over says so, then looks for members (`Record::note_member`).
//! - A thread that copies the number counts itself, then looks whether the set is being taken over; a thread
//!   that takes it over says so, then looks at the count (`Record::begin_copy`).
//! - A call looks at the record first and for a user-level object after that. A thread that takes the set over
//!   puts the object into the table before it clears the record.

use crate::sync::{AtomicBool, AtomicUsize, Ordering, compiler_fence, wait_until};

/// States of a [`Record`]; any other is the thread that waits in the set now and then.
const NOT_PLAIN: usize = 0;
const UNUSED: usize = 1;
const TAKING: usize = 2;

/// What is known of a plain set.
pub(crate) struct Record {
    state: AtomicUsize,
    /// How many numbers the set has, of those that the library knows.
    numbers: AtomicUsize,
    /// How many threads are making another one.
    copies: AtomicUsize,
    /// The generation of the set, which ends when another process may come to have it.
    generation: AtomicUsize,
    /// The thread is in a wait, or has left one without its end.
    is_waiting: AtomicBool,
    /// Members may have been added.
    has_members: AtomicBool,
}

impl Record {
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
    pub(crate) fn forget(&self) {
        if self.state() != NOT_PLAIN {
            self.forget_plain();
        }
    }

    #[cold]
    fn forget_plain(&self) {
        wait_until(|| {
            let state = self.state();
            state == NOT_PLAIN || state != TAKING && self.exchange(state, NOT_PLAIN)
        });
    }

    /// Begins a wait of the thread `me`, to be ended with what this returns. None if the set is not plain: then
    /// it is the kernel's for good, or user-level.
    #[inline]
    pub(crate) fn begin_wait(&self, me: usize) -> Option<bool> {
        if self.state() == NOT_PLAIN {
            return None;
        }
        let before = self.is_waiting.load(Ordering::Relaxed);
        self.is_waiting.store(true, Ordering::Relaxed);
        // A signal handler that comes after this does not take the set over.
        compiler_fence(Ordering::SeqCst);
        if self.state() == me || self.exchange(UNUSED, me) {
            return Some(before);
        }
        // A second thread, or the set is being taken over.
        self.forget_plain();
        None
    }

    #[inline]
    pub(crate) fn end_wait(&self, me: usize, before: bool) {
        // The number may be another set's by now.
        if self.state.load(Ordering::Relaxed) == me {
            self.is_waiting.store(before, Ordering::Relaxed);
        }
    }

    /// Notes that a kernel member is about to be added. It is added by the kernel unless the set is
    /// user-level once this returns.
    #[inline]
    pub(crate) fn note_member(&self) {
        if self.state() == NOT_PLAIN || self.has_members.load(Ordering::Relaxed) {
            return;
        }
        self.has_members.store(true, Ordering::SeqCst);
        // `take` reads it after it has set the state.
        self.outlast_take();
    }

    /// Begins to make another number for the set, and returns whether that is to be [ended](Self::end_copy):
    /// it is not if the set is user-level once this returns, or the kernel's for good.
    pub(crate) fn begin_copy(&self) -> bool {
        self.copies.fetch_add(1, Ordering::SeqCst);
        // `take` reads it after it has set the state.
        self.outlast_take();
        if self.state() != NOT_PLAIN {
            return true;
        }
        self.end_copy();
        false
    }

    pub(crate) fn end_copy(&self) {
        self.copies.fetch_sub(1, Ordering::Release);
    }

    /// Waits for the end of a takeover that is under way.
    fn outlast_take(&self) {
        wait_until(|| self.state.load(Ordering::SeqCst) != TAKING);
    }

    /// Claims the set for the thread `me`, which takes it over. Returns whether it may have members; none if it
    /// cannot be taken over.
    pub(crate) fn take(&self, me: usize, generation: usize) -> Option<bool> {
        let state = self.state();
        let is_claimed = (state == UNUSED || state == me)
            && !self.is_waiting.load(Ordering::Relaxed)
            && self.exchange(state, TAKING);
        if !is_claimed {
            return None;
        }
        let is_copied = self.copies.load(Ordering::SeqCst) != 0;
        if is_copied || self.generation.load(Ordering::Relaxed) != generation {
            self.end_take();
            return None;
        }
        Some(self.has_members.load(Ordering::SeqCst))
    }

    /// Ends the claim: the set is user-level now, or the kernel's for good.
    pub(crate) fn end_take(&self) {
        self.state.store(NOT_PLAIN, Ordering::Release);
    }
}

#[cfg(not(loom))]
pub(crate) use self::numbers::forget_closed;
#[cfg(not(loom))]
pub use self::numbers::{
    begin_copy, begin_wait, close, close_between, end_copy, end_wait, forget, forget_all,
    forget_noted, generation, is_plain, note, note_member, take_over,
};

#[cfg(not(loom))]
mod numbers {
    use std::os::fd::RawFd;

    use upoll::{CreateFlags, Epoll, Errno, SharedBox};

    use super::{NOT_PLAIN, Record};
    use crate::change::Change;
    use crate::object::Object;
    use crate::set::NumberedSet;
    use crate::signals::Section;
    use crate::slot::Entry;
    use crate::sync::{AtomicBool, AtomicUsize, Ordering};
    use crate::{fork, table};

    /// A number from this on never stands for a plain set.
    const NUMBERS: usize = 1024;

    /// The records, each at the number that its set had first.
    static RECORDS: [Record; NUMBERS] = [const {
        Record {
            state: AtomicUsize::new(NOT_PLAIN),
            numbers: AtomicUsize::new(0),
            copies: AtomicUsize::new(0),
            generation: AtomicUsize::new(0),
            is_waiting: AtomicBool::new(false),
            has_members: AtomicBool::new(false),
        }
    }; NUMBERS];

    /// Which record a number has, and one more; 0 if it has none.
    static PLACES: [AtomicUsize; NUMBERS] = [const { AtomicUsize::new(0) }; NUMBERS];

    static GENERATION: AtomicUsize = AtomicUsize::new(0);
    /// The generation of the last set that was noted.
    static NOTED_IN: AtomicUsize = AtomicUsize::new(usize::MAX);

    #[inline]
    fn place(fd: RawFd) -> Option<&'static AtomicUsize> {
        PLACES.get(fd.cast_unsigned() as usize)
    }

    #[inline]
    fn record(fd: RawFd) -> Option<&'static Record> {
        RECORDS.get(place(fd)?.load(Ordering::Acquire).wrapping_sub(1))
    }

    /// Has a number have no record any more.
    fn clear(place: &AtomicUsize) {
        let record = RECORDS.get(place.swap(0, Ordering::SeqCst).wrapping_sub(1));
        let Some(record) = record else { return };
        record.outlast_take();
        if record.numbers.fetch_sub(1, Ordering::SeqCst) == 1 {
            record.forget();
        }
    }

    /// An address that no other live thread has.
    #[inline]
    fn this_thread() -> usize {
        // SAFETY: it needs nothing.
        unsafe { libc::pthread_self() as usize }
    }

    /// Returns whether the number stands for a plain set.
    #[inline]
    pub fn is_plain(fd: RawFd) -> bool {
        record(fd).is_some_and(|record| record.state() != NOT_PLAIN)
    }

    /// Returns the generation of sets, to be asked before a set is made.
    #[inline]
    pub fn generation() -> usize {
        GENERATION.load(Ordering::SeqCst)
    }

    /// Notes a plain set that the kernel has just made.
    pub fn note(epfd: RawFd, generation: usize) {
        let at = epfd.cast_unsigned() as usize;
        let Some((place, record)) = PLACES.get(at).zip(RECORDS.get(at)) else {
            return;
        };
        // Its number was closed unseen.
        clear(place);
        // A set that had this number first may live on under another one.
        let is_free = || {
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            let counted = record.numbers.compare_exchange(0, 1, success, failure);
            counted.is_ok()
        };
        if fork::watch().is_ok() && is_free() {
            NOTED_IN.store(generation, Ordering::SeqCst);
            record.begin(generation);
            place.store(at + 1, Ordering::Release);
        }
    }

    /// Leaves a plain set to the kernel for good: it is polled, or others come to have it. A set that is just
    /// being taken over is user-level when this returns.
    #[inline]
    pub fn forget(fd: RawFd) {
        if let Some(record) = record(fd) {
            record.forget();
        }
    }

    /// Forgets a set whose number was closed unseen: the number stands for a user-level object now.
    pub(crate) fn forget_closed(fd: RawFd) {
        if let Some(record) = record(fd)
            && record.state() != super::TAKING
            && let Some(place) = place(fd)
        {
            clear(place);
        }
    }

    /// As [`forget`], for all plain sets there are, those as well that are not noted yet.
    pub fn forget_all() {
        GENERATION.fetch_add(1, Ordering::SeqCst);
    }

    /// As [`forget`], for all plain sets that a call can name which nobody looks into.
    #[inline]
    pub fn forget_noted() {
        if NOTED_IN.load(Ordering::Relaxed) == GENERATION.load(Ordering::Relaxed) {
            forget_all();
        }
    }

    /// Before a number is closed. To be called before it is looked up in the table.
    #[inline]
    pub fn close(fd: RawFd) {
        if let Some(place) = place(fd)
            && place.load(Ordering::Acquire) != 0
        {
            clear(place);
        }
    }

    /// As [`close`], for all numbers from `first` to `last`.
    pub fn close_between(first: u32, last: u32) {
        let last = (last as usize).min(NUMBERS - 1);
        let places = PLACES
            .get(first as usize..=last)
            .filter(|_| NOTED_IN.load(Ordering::Relaxed) != usize::MAX);
        places.into_iter().flatten().for_each(clear);
    }

    /// Before the number of a set is copied: returns what the copy is to be [ended](end_copy) with, if it is a
    /// plain set. To be called before the number is looked up in the table.
    #[inline]
    pub fn begin_copy(fd: RawFd) -> Option<usize> {
        let at = place(fd)?.load(Ordering::Acquire).checked_sub(1)?;
        RECORDS[at].begin_copy().then_some(at)
    }

    /// The kernel has made the number `new`, or none if that is negative.
    pub fn end_copy(copy: usize, new: RawFd) {
        let record = &RECORDS[copy];
        match place(new) {
            Some(place) => {
                clear(place);
                record.numbers.fetch_add(1, Ordering::Relaxed);
                place.store(copy + 1, Ordering::Release);
            }
            // The library keeps no record of so high a number.
            None if new >= 0 => record.forget(),
            None => {}
        }
        record.end_copy();
    }

    /// As `Record::begin_wait`. To be called before the number is looked up in the table.
    #[inline]
    pub fn begin_wait(epfd: RawFd) -> Option<bool> {
        record(epfd)?.begin_wait(this_thread())
    }

    /// Ends a wait with what its [beginning](begin_wait) has returned.
    #[inline]
    pub fn end_wait(epfd: RawFd, before: bool) {
        if let Some(record) = record(epfd) {
            record.end_wait(this_thread(), before);
        }
    }

    /// As `Record::note_member`. To be called before the number is looked up in the table.
    #[inline]
    pub fn note_member(epfd: RawFd) {
        if let Some(record) = record(epfd) {
            record.note_member();
        }
    }

    /// Makes a plain set user-level, if that is possible. Otherwise it is the kernel's from now on.
    pub fn take_over(epfd: RawFd) {
        let Some(at) = place(epfd).and_then(|place| place.load(Ordering::Acquire).checked_sub(1))
        else {
            return;
        };
        let record = &RECORDS[at];
        let _section = Section::begin();
        // A child that another thread is just making is to have the kernel's set.
        let Some(_change) = Change::try_begin() else {
            return record.forget();
        };
        let Some(has_members) = record.take(this_thread(), generation()) else {
            return record.forget();
        };
        if let Ok(entries) = entries(epfd, at, has_members) {
            for (number, entry) in entries {
                // There is room for it.
                let _ = table::install(number, entry);
            }
        }
        record.end_take();
    }

    /// Makes the entries of all numbers of a set that is being taken over.
    fn entries(
        epfd: RawFd,
        at: usize,
        has_members: bool,
    ) -> Result<Vec<(RawFd, Box<Entry>)>, Errno> {
        let set = Epoll::create(CreateFlags::empty())?;
        let set = SharedBox::new(NumberedSet::around(set, epfd, has_members)?)?;
        let mut entries = Vec::new();
        for (number, place) in (0..).zip(&PLACES) {
            if place.load(Ordering::SeqCst) == at + 1 {
                if !table::has_room(number) || entries.try_reserve(1).is_err() {
                    return Err(Errno::NOMEM);
                }
                entries.push((number, Entry::new(Object::Epoll(set.clone()))?));
            }
        }
        Ok(entries)
    }
}
