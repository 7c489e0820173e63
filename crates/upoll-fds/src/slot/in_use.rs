//! Which entry of the table a thread is using right now.
//!
//! A call that finds an object by its fd stores the entry in a record of its thread, then checks
//! that the fd still leads to the entry. It clears the record when it is done. A thread that takes
//! an entry out of the table waits until no record names it. A close thus takes effect after the
//! calls that were under way, as in Linux, where each call holds the open file. Looking an fd up
//! writes nothing that other threads write. A call that is about to block takes a reference of its
//! own instead, so nobody waits for long.
//!
//! These are hazard pointers. With epoch-based reclamation, a close could return while an unrelated
//! thread keeps the open file alive by its epoch: the reader of a pipe would see the end too late. A
//! reference count per call costs two atomic operations on a shared word.
//!
//! # The named pairs
//! A call writes its record, then reads the slot. A close empties the slot, then reads the records.
//! The close pays for both: it issues `membarrier(2)`, which puts a barrier into every running
//! thread, so the call needs none. Where the kernel does not support that, both use a fence.
//!
//! A close leaves the entry to the call that uses it if it has waited for too long, or if the call is
//! one that its own signal handler has interrupted. The close pushes the entry to [`LEAVING`], sets
//! the record's `is_asked`, then checks once more whether the record is cleared. The call clears its
//! record, then checks `is_asked`.
//!
//! # Signal handlers
//! Looking an fd up allocates nothing and takes no lock, not even the first time. Records are in
//! pages of their own, and are returned by the destructor of a C library key.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::ptr::{self, NonNull};

use crate::slot::{Entry, Slot};
use crate::sync::{
    AtomicBool, AtomicPtr, Backoff, Ordering, Rule, Section, broken, compiler_fence, fence, global,
    of_each_thread,
};

/// The entries that one call of one thread uses. Records of different threads do not share a cache
/// line.
#[repr(align(64))]
struct Record {
    entry: AtomicPtr<Entry>,
    /// A second entry of the same call; null while `entry` is.
    another: AtomicPtr<Entry>,
    /// The mark of a call that may block.
    mark: AtomicPtr<()>,
    /// The thread's record for a call inside this one: from a signal handler, or from the `poll`
    /// of an embedder's object.
    deeper: AtomicPtr<Record>,
    /// A thread owns the record. Records are never freed, but change owners.
    is_taken: AtomicBool,
    /// The call must release the entries in [`LEAVING`] at its end, because nobody waits for it any
    /// more, or must call delayed signal handlers.
    is_asked: AtomicBool,
    /// The next record in the list of all records; written before this one is in the list.
    next: AtomicPtr<Record>,
}

impl Record {
    fn taken() -> Self {
        Record {
            entry: AtomicPtr::new(ptr::null_mut()),
            another: AtomicPtr::new(ptr::null_mut()),
            mark: AtomicPtr::new(ptr::null_mut()),
            deeper: AtomicPtr::new(ptr::null_mut()),
            is_taken: AtomicBool::new(true),
            is_asked: AtomicBool::new(false),
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Returns what the record names; null where it names nothing.
    fn named(&self) -> impl Iterator<Item = *mut Entry> {
        let places = [&self.entry, &self.another];
        places
            .into_iter()
            .map(|place| place.load(Ordering::Acquire))
    }

    fn names(&self, entry: *mut Entry) -> bool {
        self.named().any(|named| named == entry)
    }
}

global! {
    /// The list of all records.
    static ALL: AtomicPtr<Record> = AtomicPtr::new(ptr::null_mut());
}

global! {
    /// Entries that no slot leads to. A call was still using each when the close of its fd stopped
    /// waiting. A thread that takes an entry out owns it.
    static LEAVING: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());
}

#[cfg(not(upoll_loom))]
pub(crate) use self::kernel::prepare;

/// The parts of the protocol that need the kernel and the C library.
#[cfg(not(upoll_loom))]
mod kernel {
    use std::cell::UnsafeCell;
    use std::ffi::c_void;
    use std::mem::MaybeUninit;
    use std::ptr;
    use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize};

    use super::{AtomicPtr, MINE, Mine, Ordering, Record, compiler_fence, fence, records};
    use crate::kernel::call;
    use upoll_sys::backoff::nap;

    const UNKNOWN: u8 = 0;
    const FENCES: u8 = 1;
    const MEMBARRIER: u8 = 2;

    /// How threads are ordered: `MEMBARRIER` if the kernel supports barriers in other threads.
    /// Known before the first entry is in the table, and constant from then on.
    static ORDERED_BY: AtomicU8 = AtomicU8::new(UNKNOWN);

    const MEMBARRIER_PRIVATE_EXPEDITED: usize = 1 << 3;
    const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: usize = 1 << 4;

    fn membarrier(command: usize) -> bool {
        // SAFETY: no pointers are involved.
        unsafe { call!(SYS_membarrier, command, 0, 0) }.is_ok()
    }

    /// The key whose destructor returns a thread's records. Unlike a Rust thread-local with a
    /// destructor, it allocates nothing when a thread first sets it.
    static KEY: AtomicU32 = AtomicU32::new(NO_KEY);
    const NO_KEY: u32 = u32::MAX;

    /// Registers the key and the barriers. Must have returned before an entry is put into the
    /// table. Not a `Once`: the child of a fork would wait for a thread that it does not have.
    #[inline]
    pub(crate) fn prepare() {
        if ORDERED_BY.load(Ordering::Acquire) == UNKNOWN {
            prepare_once();
        }
    }

    #[cold]
    fn prepare_once() {
        let mut key = NO_KEY;
        // SAFETY: the key is live; the function is never unloaded, as this library is not.
        if unsafe { libc::pthread_key_create(&raw mut key, Some(return_records)) } == 0 {
            let first = KEY.compare_exchange(NO_KEY, key, Ordering::SeqCst, Ordering::SeqCst);
            if first.is_err() {
                // SAFETY: nobody has seen the key.
                unsafe { libc::pthread_key_delete(key) };
            }
        }
        let ordered_by = match membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED) {
            true => MEMBARRIER,
            false => FENCES,
        };
        // Another thread may have been quicker, and all threads must use the same.
        let _ =
            ORDERED_BY.compare_exchange(UNKNOWN, ordered_by, Ordering::SeqCst, Ordering::SeqCst);
    }

    unsafe extern "C" fn return_records(_: *mut c_void) {
        MINE.with(Mine::return_records);
    }

    /// Registers the thread's records to be returned when it ends.
    pub(super) fn return_at_the_end(record: &'static Record) {
        let key = KEY.load(Ordering::Relaxed);
        if key != NO_KEY {
            // SAFETY: the key is never deleted. If it fails, for want of memory, the records stay
            // the ended thread's.
            unsafe { libc::pthread_setspecific(key, ptr::from_ref(record).cast()) };
        }
    }

    /// Orders a thread's store to its record before its reads of words that other threads change.
    #[inline]
    pub(super) fn before_a_look() {
        if ORDERED_BY.load(Ordering::Relaxed) != MEMBARRIER {
            full_fence();
        }
        compiler_fence(Ordering::SeqCst);
    }

    #[cold]
    fn full_fence() {
        fence(Ordering::SeqCst);
    }

    /// Orders this thread with all others: it sees what they have written to their records, and
    /// they see what this thread has written.
    pub(super) fn see_others() {
        fence(Ordering::SeqCst);
        let is_others = |record: &'static Record| {
            record.is_taken.load(Ordering::SeqCst) && !super::is_mine(record)
        };
        if ORDERED_BY.load(Ordering::Relaxed) != MEMBARRIER || !records().any(is_others) {
            return;
        }
        // The child of a fork may have to register again.
        let done = membarrier(MEMBARRIER_PRIVATE_EXPEDITED)
            || membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED)
                && membarrier(MEMBARRIER_PRIVATE_EXPEDITED);
        if !done {
            // A seccomp filter that refuses the call has been installed. No processor delays a
            // store for so long.
            nap();
        }
    }

    const PAGE: usize = 4096;

    /// Allocates a record, which is never freed.
    pub(super) fn new_record() -> &'static Record {
        /// The next one of the current page; at the beginning of a page: there is none left.
        static NEXT: AtomicPtr<Record> = AtomicPtr::new(ptr::null_mut());
        let mut next = NEXT.load(Ordering::Relaxed);
        loop {
            let is_used_up = next.addr().is_multiple_of(PAGE);
            let place = match is_used_up {
                true => new_page(),
                false => Some(next),
            };
            let Some(place) = place else {
                let place = place_of_reserve();
                // SAFETY: the place is this call's alone, and never freed.
                return unsafe {
                    place.write(Record::taken());
                    &*place
                };
            };
            let after = place.wrapping_add(1);
            match NEXT.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    // SAFETY: there is room for whole records in the page; this one is ours.
                    return unsafe {
                        place.write(Record::taken());
                        &*place
                    };
                }
                Err(now) => next = now,
            }
            if is_used_up {
                // SAFETY: nobody has seen the page.
                let _ = unsafe { call!(SYS_munmap, place, PAGE) };
            }
        }
    }

    /// Places of records for threads that find no memory for a page.
    struct Reserve(UnsafeCell<[MaybeUninit<Record>; RESERVED]>);

    // SAFETY: each place is given to one thread, by the count of those that were given out.
    unsafe impl Sync for Reserve {}

    const RESERVED: usize = 64;
    static RESERVE: Reserve = Reserve(UnsafeCell::new([const { MaybeUninit::uninit() }; RESERVED]));

    /// # Panics
    /// The reserve is used up: there has been no memory for the records of as many threads.
    fn place_of_reserve() -> *mut Record {
        static GIVEN: AtomicUsize = AtomicUsize::new(0);
        let at = GIVEN.fetch_add(1, Ordering::Relaxed);
        assert!(at < RESERVED, "there is memory for a page of records");
        RESERVE.0.get().cast::<Record>().wrapping_add(at)
    }

    fn new_page() -> Option<*mut Record> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory, in nobody's way.
        let page = unsafe { call!(SYS_mmap, 0, PAGE, access, kind, usize::MAX, 0) };
        page.ok().map(ptr::with_exposed_provenance_mut)
    }
}

/// loom has no barrier that one thread has another one pass: both sides have a fence.
#[cfg(upoll_loom)]
mod kernel {
    use super::{Ordering, Record, Rule, broken, fence};
    use crate::sequenced::barrier;

    pub(super) fn return_at_the_end(_: &'static Record) {}

    /// A fence only without kernel barriers, as in the library.
    pub(super) fn before_a_look() {
        if broken(Rule::KernelHasBarriers) {
            fence(Ordering::SeqCst);
        }
    }

    pub(super) fn see_others() {
        fence(Ordering::SeqCst);
        if !broken(Rule::KernelHasBarriers) && !broken(Rule::BarrierBeforeReading) {
            barrier();
        }
    }

    pub(super) fn new_record() -> &'static Record {
        Box::leak(Box::new(Record::taken()))
    }
}

use self::kernel::{before_a_look, new_record, return_at_the_end, see_others};

/// The thread's own records.
struct Mine {
    /// The one for the next call.
    current: Cell<*const Record>,
    first: Cell<*const Record>,
    last: Cell<*const Record>,
}

impl Mine {
    const fn new() -> Self {
        Mine {
            current: Cell::new(ptr::null()),
            first: Cell::new(ptr::null()),
            last: Cell::new(ptr::null()),
        }
    }

    /// Returns the thread's records when it ends.
    fn return_records(&self) {
        let mut record = self.first.get();
        self.current.set(ptr::null());
        self.first.set(ptr::null());
        self.last.set(ptr::null());
        // SAFETY: records are never freed.
        while let Some(taken) = unsafe { record.as_ref() } {
            record = taken.deeper.swap(ptr::null_mut(), Ordering::Relaxed);
            taken.is_taken.store(false, Ordering::Release);
        }
    }
}

#[cfg(upoll_loom)]
impl Drop for Mine {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.return_records();
        }
    }
}

of_each_thread! {
    static MINE: Mine = Mine::new();
}

/// Returns an iterator over all records.
fn records() -> impl Iterator<Item = &'static Record> {
    let mut at = ALL.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: records are never freed.
        let record: &'static Record = unsafe { at.as_ref() }?;
        at = record.next.load(Ordering::Relaxed);
        Some(record)
    })
}

/// Takes a record that no thread owns. Returns whether that succeeded.
fn take(record: &Record) -> bool {
    if record.is_taken.load(Ordering::Relaxed) {
        return false;
    }
    if broken(Rule::TakeInOneStep) {
        record.is_taken.store(true, Ordering::SeqCst);
        return true;
    }
    !record.is_taken.swap(true, Ordering::SeqCst)
}

/// Finds or allocates a free record for this thread.
#[cold]
fn take_record(mine: &Mine) -> &'static Record {
    let record = records().find(|record| take(record)).unwrap_or_else(|| {
        let record = new_record();
        let this = ptr::from_ref(record).cast_mut();
        let mut head = ALL.load(Ordering::Relaxed);
        loop {
            record.next.store(head, Ordering::Relaxed);
            match ALL.compare_exchange_weak(head, this, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return record,
                Err(now) => head = now,
            }
        }
    });
    return_at_the_end(record);
    // SAFETY: records are never freed.
    match unsafe { mine.last.get().as_ref() } {
        Some(last) => last
            .deeper
            .store(ptr::from_ref(record).cast_mut(), Ordering::Relaxed),
        None => mine.first.set(record),
    }
    mine.last.set(record);
    // Named pair with the reading of the records: a record that was not seen as taken has not read
    // the slot.
    fence(Ordering::SeqCst);
    record
}

/// The slot of an fd is being changed.
#[derive(Debug)]
pub(crate) struct Changing;

/// Keeps an entry alive. Values of one thread are dropped in the reverse order of their creation.
pub(crate) struct InUse {
    entry: NonNull<Entry>,
    record: &'static Record,
    /// The thread's own, looked up once.
    mine: *const Mine,
}

impl Drop for InUse {
    #[inline]
    fn drop(&mut self) {
        // A model that has failed is over.
        #[cfg(upoll_loom)]
        if std::thread::panicking() {
            return;
        }
        wipe(self.record);
        // SAFETY: the thread's own, and this does not leave the thread; the model's ends after its
        // last call, the others have no destructor.
        unsafe { &*self.mine }.current.set(self.record);
        // After the record is the next call's: letting go of an object may make calls.
        if self.record.is_asked.load(Ordering::Relaxed) && !broken(Rule::LetGoWhenAsked) {
            let_go_as_asked(self.record);
        }
    }
}

/// Clears the record: its entries are no longer in use.
#[inline]
fn wipe(record: &Record) {
    record.another.store(ptr::null_mut(), Ordering::Release);
    record.entry.store(ptr::null_mut(), Ordering::Release);
    before_a_look();
}

/// Stores an entry in a record. The caller then checks whether the slot still leads there.
#[inline(always)]
fn note(place: &AtomicPtr<Entry>, entry: NonNull<Entry>) {
    place.store(entry.as_ptr(), Ordering::Relaxed);
    before_a_look();
}

#[inline(always)]
fn still_leads_to(slot: &Slot, entry: NonNull<Entry>) -> bool {
    slot.word() == entry.as_ptr() || broken(Rule::LookAgain)
}

impl InUse {
    /// Uses the entry of `slot`. Returns `None` if it is empty.
    #[inline(always)]
    pub(crate) fn begin(slot: &Slot) -> Option<InUse> {
        let entry = slot.settled()?;
        let (record, mine) = next_record();
        note(&record.entry, entry);
        // The result stays in registers unless the call begins again.
        let entry = match still_leads_to(slot, entry) {
            true => entry,
            false => InUse::begin_again(slot, record, mine)?,
        };
        Some(InUse {
            entry,
            record,
            mine,
        })
    }

    /// Like `begin`, but also returns `None` if the slot is being changed.
    #[inline]
    pub(crate) fn try_begin(slot: &Slot) -> Option<InUse> {
        let entry = slot.unless_changing()?;
        let (record, mine) = next_record();
        let in_use = InUse {
            entry,
            record,
            mine,
        };
        note(&record.entry, entry);
        still_leads_to(slot, entry).then_some(in_use)
    }

    /// Begins again after the slot has changed. Returns the entry that the record names in the end.
    #[cold]
    #[inline(never)]
    fn begin_again(
        slot: &Slot,
        record: &'static Record,
        mine: *const Mine,
    ) -> Option<NonNull<Entry>> {
        let in_use = InUse {
            entry: NonNull::dangling(),
            record,
            mine,
        };
        loop {
            // A thread that changes the slot may be waiting for this record.
            wipe(record);
            let entry = slot.settled()?;
            note(&record.entry, entry);
            if slot.leads_to(entry) || broken(Rule::LookAgain) {
                std::mem::forget(in_use);
                return Some(entry);
            }
        }
    }

    /// Also uses the entry of `slot`, until this value is dropped. Returns `None` if the slot is
    /// empty. Possible for one slot only: a record has room for two.
    ///
    /// It does not wait for a change: the changing thread may be waiting for the entries that are
    /// in use already.
    #[inline(always)]
    pub(crate) fn add(&self, slot: &Slot) -> Result<Option<&Entry>, Changing> {
        let Some(entry) = slot.at_once()? else {
            return Ok(None);
        };
        let another = &self.record.another;
        note(another, entry);
        if !still_leads_to(slot, entry) && !slot.leads_to(entry) {
            another.store(ptr::null_mut(), Ordering::Release);
            return Err(Changing);
        }
        // SAFETY: the record names it, and was written before the slot was seen to lead to it.
        Ok(Some(unsafe { entry.as_ref() }))
    }

    #[inline]
    pub(crate) fn entry(&self) -> &Entry {
        // SAFETY: the record names it, and was written before the slot was seen to lead to it.
        unsafe { self.entry.as_ref() }
    }

    /// Runs `call`, which may block, while the thread is marked instead of using the entry. Returns
    /// `None` if `is_still` returns false once the thread is marked.
    #[inline]
    pub(crate) fn while_marked<R>(
        self,
        mark: Mark,
        is_still: impl FnOnce(&Entry) -> bool,
        call: impl FnOnce() -> R,
    ) -> Option<R> {
        let record = self.record;
        record.mark.store(mark.0, Ordering::Relaxed);
        before_a_look();
        let is_still = is_still(self.entry());
        wipe(record);
        if record.is_asked.load(Ordering::Relaxed) {
            let_go_as_asked(record);
        }
        let result = is_still.then(call);
        record.mark.store(ptr::null_mut(), Ordering::Release);
        // Delayed signal handlers run when `self` is dropped, at the end.
        result
    }
}

/// Entries that a call uses at the same time, until this value is dropped.
///
/// It does not wait for a change: the changing thread may be waiting for the entries that are in
/// use already.
pub(crate) struct Several {
    /// The record of the first; the others' follow it.
    first: Cell<Option<&'static Record>>,
    /// The thread's own: so this stays with the thread.
    mine: Cell<*const Mine>,
}

impl Several {
    pub(crate) const fn new() -> Self {
        Several {
            first: Cell::new(None),
            mine: Cell::new(ptr::null()),
        }
    }

    /// Also uses the entry of `slot`. Returns `None` if the slot is empty or being changed.
    #[inline]
    pub(crate) fn add(&self, slot: &Slot) -> Option<&Entry> {
        let in_use = InUse::try_begin(slot)?;
        if self.first.get().is_none() {
            self.first.set(Some(in_use.record));
            self.mine.set(in_use.mine);
        }
        let entry = in_use.entry;
        std::mem::forget(in_use);
        // SAFETY: as in `InUse::entry`; the record names it until this goes.
        Some(unsafe { entry.as_ref() })
    }
}

impl Drop for Several {
    #[inline]
    fn drop(&mut self) {
        #[cfg(upoll_loom)]
        if std::thread::panicking() {
            return;
        }
        let Some(first) = self.first.get() else {
            return;
        };
        // SAFETY: as in `InUse`.
        let mine = unsafe { &*self.mine.get() };
        // Calls inside this one have ended, so the records before the current one belong to this
        // value.
        let end = mine.current.get();
        let each = |call: fn(&Record)| {
            let mut at = ptr::from_ref(first);
            while at != end {
                // SAFETY: records are never freed.
                let record = unsafe { &*at };
                call(record);
                at = record.deeper.load(Ordering::Relaxed);
            }
        };
        each(wipe);
        mine.current.set(first);
        each(|record| {
            if record.is_asked.load(Ordering::Relaxed) && !broken(Rule::LetGoWhenAsked) {
                let_go_as_asked(record);
            }
        });
    }
}

/// Returns the thread's record for a call that begins.
#[inline]
fn next_record() -> (&'static Record, *const Mine) {
    let found = MINE.with(|mine| {
        // SAFETY: records are never freed.
        let record = match unsafe { mine.current.get().as_ref() } {
            Some(record) => record,
            None => take_record(mine),
        };
        mine.current.set(record.deeper.load(Ordering::Relaxed));
        (record, ptr::from_ref(mine))
    });
    // A signal handler from here on uses the next record.
    compiler_fence(Ordering::SeqCst);
    found
}

/// Forgets the other threads, in the child of a fork. The entries that they used are not freed: the
/// threads may have been in the midst of changing them.
#[cfg(not(upoll_loom))]
pub(crate) fn forget_other_threads() {
    // Without a record there are no entries in `LEAVING`. The check avoids pages that the parent
    // never touched.
    if ALL.load(Ordering::Relaxed).is_null() {
        return;
    }
    if !LEAVING.load(Ordering::Relaxed).is_null() {
        LEAVING.store(ptr::null_mut(), Ordering::Relaxed);
    }
    for record in records().filter(|record| !is_mine(record)) {
        record.entry.store(ptr::null_mut(), Ordering::Relaxed);
        record.another.store(ptr::null_mut(), Ordering::Relaxed);
        record.mark.store(ptr::null_mut(), Ordering::Relaxed);
        record.deeper.store(ptr::null_mut(), Ordering::Relaxed);
        record.is_asked.store(false, Ordering::Relaxed);
        record.is_taken.store(false, Ordering::Release);
    }
}

/// Returns whether a record belongs to this thread.
fn is_mine(record: &Record) -> bool {
    MINE.with(|mine| {
        let mut own = mine.first.get();
        // SAFETY: records are never freed.
        while let Some(found) = unsafe { own.as_ref() } {
            if ptr::eq(found, record) {
                return true;
            }
            own = found.deeper.load(Ordering::Relaxed);
        }
        false
    })
}

/// A mark of a thread: an address, which is only compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark(*mut ());

#[cfg(not(upoll_loom))]
impl Mark {
    pub(crate) fn of<T>(thing: &T) -> Self {
        Mark(ptr::from_ref(thing).cast_mut().cast())
    }
}

/// Returns whether no other thread has this mark. If `patiently`, waits a while for that.
#[cfg(not(upoll_loom))]
pub(crate) fn wait_until_unmarked(mark: Mark, patiently: bool) -> bool {
    see_others();
    let mut others = records().filter(|record| !is_mine(record));
    others.all(|record| {
        let is_marked = || record.mark.load(Ordering::Acquire) == mark.0;
        let tries = if patiently { PATIENCE } else { 0 };
        let mut waiting = Backoff::new();
        for _ in 0..tries {
            if !is_marked() {
                return true;
            }
            waiting.wait();
        }
        !is_marked()
    })
}

/// How often to wait for a call before it counts as a long one: about two milliseconds.
#[cfg(not(upoll_loom))]
const PATIENCE: usize = Backoff::SHORT + 5;
#[cfg(upoll_loom)]
const PATIENCE: usize = 0;

/// The same for a caller that cannot leave the entry to the call: five seconds, because the last
/// waits take a millisecond each.
pub(crate) const MORE_PATIENCE: usize = PATIENCE + 5000;

/// Waits until no call uses `entry`, which no slot leads to any more.
///
/// Returns false if a call still does: a call of this very thread that a signal handler has
/// interrupted, or a call of a thread that makes no progress.
pub(crate) fn wait_until_unused(entry: *mut Entry, patience: usize) -> bool {
    let mut is_used = false;
    wait_until_all_unused(&[entry], patience, |_| {
        is_used = true;
        ControlFlow::Break(())
    });
    !is_used
}

/// Waits until no call uses any of `entries`, which are in ascending order and which no slot leads to.
/// Calls `still_used` with each entry for which [`wait_until_unused`] would return false, more than once
/// if several calls use it, until that breaks.
pub(crate) fn wait_until_all_unused(
    entries: &[*mut Entry],
    patience: usize,
    mut still_used: impl FnMut(*mut Entry) -> ControlFlow<()>,
) {
    if broken(Rule::WaitUntilUnused) || entries.is_empty() {
        return;
    }
    see_others();
    for record in records() {
        let mut waiting = Backoff::new();
        let mut turn = 0;
        while record.named().any(|entry| is_among(entry, entries)) {
            if turn >= patience || is_mine(record) {
                let mut used = record.named().filter(|entry| is_among(*entry, entries));
                if used.try_for_each(&mut still_used).is_break() {
                    return;
                }
                break;
            }
            turn += 1;
            waiting.wait();
        }
    }
}

/// Calls `used` with each entry that a call uses. An entry that no slot has led to since before is used by no other
/// call from then on.
pub(crate) fn each_used(used: impl FnMut(*mut Entry)) {
    if broken(Rule::WaitUntilUnused) {
        return;
    }
    see_others();
    let named = records().flat_map(Record::named);
    named.filter(|entry| !entry.is_null()).for_each(used);
}

fn is_among(entry: *mut Entry, entries: &[*mut Entry]) -> bool {
    !entry.is_null() && entries.binary_search(&entry).is_ok()
}

fn is_used(entry: *mut Entry) -> bool {
    records().any(|record| record.names(entry))
}

/// Releases an entry once no call uses it; null is ignored. No slot leads to the entry.
///
/// The entry is freed at once unless a signal handler closes an fd that the interrupted code is
/// using, or a call makes no progress. In these cases the entry is freed at the end of the call.
pub(crate) fn release(entry: *mut Entry) {
    if entry.is_null() {
        return;
    }
    if wait_until_unused(entry, PATIENCE) {
        // SAFETY: no slot leads to it, and no call uses it.
        unsafe { free(entry) };
    } else if !leave(entry) {
        let_go_of_unused();
    }
}

/// Frees an entry.
///
/// # Safety
/// The entry is the caller's alone: no slot leads to it, and no call uses it.
pub(crate) unsafe fn free(entry: *mut Entry) {
    #[cfg(not(upoll_loom))]
    // SAFETY: the caller's contract; it comes from `Box::into_raw`.
    drop(unsafe { Box::from_raw(entry) });
    // The model keeps the memory, so that a failure that it finds is one of its own.
    #[cfg(upoll_loom)]
    // SAFETY: the caller's contract.
    unsafe { &*entry }.object.close();
}

/// Leaves an entry to a call that uses it. Returns false if no call uses it any more.
fn leave(entry: *mut Entry) -> bool {
    // SAFETY: it is the caller's to free, and so nobody has freed it.
    let next = unsafe { &(*entry).next_leaving };
    let mut head = LEAVING.load(Ordering::Relaxed);
    loop {
        next.store(head, Ordering::Relaxed);
        match LEAVING.compare_exchange_weak(head, entry, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => head = now,
        }
    }
    // From here on another thread may free it; it is only compared.
    while let Some(record) = records().find(|record| record.names(entry)) {
        record.is_asked.store(true, Ordering::SeqCst);
        see_others();
        // A call that is seen to use the entry now finds `is_asked` set at its end.
        if broken(Rule::LookAgainAfterAsking) || record.names(entry) {
            return true;
        }
    }
    false
}

#[cold]
fn let_go_as_asked(record: &Record) {
    // A handler must not interrupt the release while it holds locks. At the end of the section
    // delayed handlers run.
    let _section = Section::begin();
    record.is_asked.store(false, Ordering::SeqCst);
    let_go_of_unused();
}

/// Returns whether a call of this thread uses an entry, or is marked. Such a call then calls delayed
/// signal handlers at its end.
#[cfg(not(upoll_loom))]
pub(crate) fn ask_this_thread() -> bool {
    MINE.with(|mine| {
        let mut own = mine.first.get();
        // SAFETY: records are never freed.
        while let Some(record) = unsafe { own.as_ref() } {
            let is_used = !record.entry.load(Ordering::Relaxed).is_null()
                || !record.mark.load(Ordering::Relaxed).is_null();
            if is_used {
                // The outermost call.
                record.is_asked.store(true, Ordering::Relaxed);
                return true;
            }
            own = record.deeper.load(Ordering::Relaxed);
        }
        false
    })
}

/// Frees the entries in [`LEAVING`] that no call uses any more.
fn let_go_of_unused() {
    let mut is_over = false;
    while !is_over {
        is_over = true;
        let mut entry = LEAVING.swap(ptr::null_mut(), Ordering::SeqCst);
        while !entry.is_null() {
            // SAFETY: it was in the list, so it is this thread's now.
            let next = unsafe { &(*entry).next_leaving }.load(Ordering::Relaxed);
            if is_used(entry) {
                is_over &= leave(entry);
            } else {
                // SAFETY: as above, and no call uses it.
                unsafe { free(entry) };
            }
            entry = next;
        }
    }
}

#[cfg(all(test, not(upoll_loom)))]
mod tests {
    use std::sync::RwLock;
    use std::thread;

    use super::records;

    const THREADS: usize = 5000;

    /// Writes to an eventfd from many threads that exist at the same time. Returns the number of records.
    fn with_threads(fd: i32) -> usize {
        let gate = RwLock::new(());
        let closed = gate.write().expect("no thread has panicked");
        let begun = thread::scope(|scope| {
            let write = || {
                crate::eventfd_write(fd, 1).expect("it fits");
                drop(gate.read());
            };
            let begin = |_: &usize| {
                let small = thread::Builder::new().stack_size(64 << 10);
                small.spawn_scoped(scope, write).is_ok()
            };
            // There may be a limit of threads.
            let begun = (0..THREADS).take_while(begin).count();
            drop(closed);
            begun
        });
        let mut count = 0;
        // SAFETY: the count has a place.
        unsafe { crate::eventfd_read(fd, &raw mut count) }.expect("a count");
        assert_eq!(count, begun as u64);
        records().count()
    }

    #[test]
    fn thousands_of_threads_are_served_and_leave_their_records_to_later_ones() {
        let fd = crate::eventfd(0, 0).expect("an eventfd");
        let first = with_threads(fd);
        let second = with_threads(fd);
        // Other tests have records, too, and threads of the first round may have ended before others began.
        assert!(second < first + THREADS / 10, "{first}, then {second}");
        crate::close(fd).expect("an fd");
    }
}
