//! Which entry of the table a thread is using right now.
//!
//! A call that finds an object by its number writes down, in a record of its thread, which entry it
//! uses, looks again whether the number still leads there, and wipes the record when it is done.
//! Whoever takes an entry out of the table waits until no record names it. So a close takes effect
//! after the calls that were under way, as in Linux, where each holds the open file; and looking a
//! number up writes nothing that other threads write. A call that is about to block takes a
//! reference of its own instead, so nobody waits for long.
//!
//! These are hazard pointers. Reclamation by epochs would let a close return, and its number's open
//! file live on, while an unrelated thread has its epoch open: a pipe's reader would see the end
//! too late. A reference count per call costs two atomic operations on a shared word.
//!
//! # The named pairs
//! A call writes its record, then reads the slot. A close empties the slot, then reads the records.
//! The second pays for both: it has the kernel put a barrier into every running thread
//! (`membarrier(2)`), so the first needs none. Where the kernel cannot, both use a fence.
//!
//! A close that has waited for long enough, or would wait for the code that its signal handler has
//! interrupted, leaves the entry to the call that uses it: it puts it into [`LEAVING`], *asks* the
//! record, then looks once more whether it is wiped. The call wipes its record, then looks whether it
//! was asked.
//!
//! # Signal handlers
//! Looking a number up allocates nothing and takes no lock, the first time as well: records come from
//! pages of their own, and go back by a key of the C library's.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::ptr::{self, NonNull};

use crate::slot::{Entry, Slot};
use crate::sync::{
    AtomicBool, AtomicPtr, Ordering, Patience, Rule, Section, broken, compiler_fence, fence,
    global, of_each_thread,
};

/// What one call of one thread uses. Threads do not share a cache line.
#[repr(align(64))]
struct Record {
    entry: AtomicPtr<Entry>,
    /// What the same call uses besides; null while `entry` is.
    another: AtomicPtr<Entry>,
    /// What a call that may block is marked with.
    mark: AtomicPtr<()>,
    /// The thread's record for a call inside this one: from a signal handler, or from the `poll`
    /// of an embedder's object.
    deeper: AtomicPtr<Record>,
    /// A thread has it. Records are never freed, but change hands.
    is_taken: AtomicBool,
    /// Nobody waits for the call any more, and it is to let go of what it used; or a signal handler
    /// waits for its end.
    is_asked: AtomicBool,
    /// In the list of all records; written before it is there.
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
    /// All records.
    static ALL: AtomicPtr<Record> = AtomicPtr::new(ptr::null_mut());
}

global! {
    /// Entries that no slot leads to, and which a call was still using when whoever closed them
    /// ceased to wait. Whoever takes one out owns it.
    static LEAVING: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());
}

#[cfg(not(loom))]
pub(crate) use self::kernel::prepare;

/// What the protocol needs of the kernel and the C library.
#[cfg(not(loom))]
mod kernel {
    use std::cell::UnsafeCell;
    use std::ffi::c_void;
    use std::mem::MaybeUninit;
    use std::ptr;
    use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize};

    use super::{AtomicPtr, MINE, Mine, Ordering, Record, compiler_fence, fence, records};
    use crate::kernel::call;
    use crate::patience::nap;

    const UNKNOWN: u8 = 0;
    const FENCES: u8 = 1;
    const MEMBARRIER: u8 = 2;

    /// By what threads are ordered: `MEMBARRIER` if the kernel puts barriers into other threads for
    /// us. Known before the first entry is in the table, and the same from then on.
    static ORDERED_BY: AtomicU8 = AtomicU8::new(UNKNOWN);

    const MEMBARRIER_PRIVATE_EXPEDITED: usize = 1 << 3;
    const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: usize = 1 << 4;

    fn membarrier(command: usize) -> bool {
        // SAFETY: no pointers are involved.
        unsafe { call!(membarrier, command, 0, 0) }.is_ok()
    }

    /// Whose destructor gives a thread's records back. Unlike Rust's thread-locals with destructors
    /// it allocates nothing when a thread first sets it.
    static KEY: AtomicU32 = AtomicU32::new(NO_KEY);
    const NO_KEY: u32 = u32::MAX;

    /// Must have returned before an entry is put into the table. Not a `Once`: the child of a fork
    /// would wait for a thread that it does not have.
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
        // Another thread may have been quicker, and all have to agree.
        let _ =
            ORDERED_BY.compare_exchange(UNKNOWN, ordered_by, Ordering::SeqCst, Ordering::SeqCst);
    }

    unsafe extern "C" fn return_records(_: *mut c_void) {
        MINE.with(Mine::return_records);
    }

    /// Has the thread's records be given to others when it ends.
    pub(super) fn return_at_the_end(record: &'static Record) {
        let key = KEY.load(Ordering::Relaxed);
        if key != NO_KEY {
            // SAFETY: the key is never deleted. If it fails, for want of memory, the records stay
            // the ended thread's.
            unsafe { libc::pthread_setspecific(key, ptr::from_ref(record).cast()) };
        }
    }

    /// Between a thread's store to its record and its look at what others change.
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

    /// What other threads have written to their records can be seen from now on, and they see what
    /// this one has written.
    pub(super) fn see_others() {
        fence(Ordering::SeqCst);
        let is_others = |record: &'static Record| {
            record.is_taken.load(Ordering::SeqCst) && !super::is_mine(record)
        };
        if ORDERED_BY.load(Ordering::Relaxed) != MEMBARRIER || !records().any(is_others) {
            return;
        }
        // A child of a fork may have to register anew.
        let done = membarrier(MEMBARRIER_PRIVATE_EXPEDITED)
            || membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED)
                && membarrier(MEMBARRIER_PRIVATE_EXPEDITED);
        if !done {
            // A filter of system calls has come that refuses it. No processor keeps a store back
            // for so long.
            nap();
        }
    }

    const PAGE: usize = 4096;

    /// A new record, for ever.
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
                let _ = unsafe { call!(munmap, place, PAGE) };
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
        let page = unsafe { call!(mmap, 0, PAGE, access, kind, usize::MAX, 0) };
        page.ok().map(ptr::with_exposed_provenance_mut)
    }
}

/// loom has no barrier that one thread has another one pass: both sides have a fence.
#[cfg(loom)]
mod kernel {
    use super::{Ordering, Record, Rule, broken, fence};
    use crate::sequenced::barrier;

    pub(super) fn return_at_the_end(_: &'static Record) {}

    /// A fence only where the kernel has no barriers, as in the library.
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

    /// The thread ends.
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

#[cfg(loom)]
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

/// Every record there is.
fn records() -> impl Iterator<Item = &'static Record> {
    let mut at = ALL.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: records are never freed.
        let record: &'static Record = unsafe { at.as_ref() }?;
        at = record.next.load(Ordering::Relaxed);
        Some(record)
    })
}

/// Takes a record that is nobody's.
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

/// A record that is nobody's, for this thread.
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
    // Pairs with the reading of the records: one that was not seen as taken has not read the slot.
    fence(Ordering::SeqCst);
    record
}

/// What a number stands for is just being changed.
#[derive(Debug)]
pub(crate) struct Changing;

/// An entry that cannot go while this exists. They end in the reverse order of their beginning.
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
        #[cfg(loom)]
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

/// What the record named is no longer used.
#[inline]
fn wipe(record: &Record) {
    record.another.store(ptr::null_mut(), Ordering::Release);
    record.entry.store(ptr::null_mut(), Ordering::Release);
    before_a_look();
}

/// Writes down what is to be used; look afterwards whether the slot still leads there.
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
    /// Uses what `slot` leads to; None if that is nothing.
    #[inline(always)]
    pub(crate) fn begin(slot: &Slot) -> Option<InUse> {
        let entry = slot.settled()?;
        let (record, mine) = next_record();
        note(&record.entry, entry);
        // Only what begins anew goes through memory: this is passed on in registers.
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

    /// The same, but None as well if that is just being changed.
    #[inline]
    fn try_begin(slot: &Slot) -> Option<InUse> {
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

    /// The slot led elsewhere when it was looked at again: says what the record names in the end.
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
            // Whoever changes the slot may be waiting for this record.
            wipe(record);
            let entry = slot.settled()?;
            note(&record.entry, entry);
            if slot.leads_to(entry) || broken(Rule::LookAgain) {
                std::mem::forget(in_use);
                return Some(entry);
            }
        }
    }

    /// Uses what `slot` leads to besides, until this goes; None if that is nothing. For one slot at
    /// most: a record has room for two.
    ///
    /// It waits for no change: whoever changes a number may wait for those that are in use already.
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

    /// Has `call`, which may block, run while the thread is marked instead. None if it `is_still`
    /// not as it was once the thread is marked.
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
        // A signal handler that was put off is called when this goes, at the end.
        result
    }
}

/// Entries that a call uses all at once, until this goes.
///
/// It waits for no change: whoever changes a number may wait for those that are in use already.
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

    /// One more: what `slot` leads to. None if that is nothing, or just being changed.
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
        #[cfg(loom)]
        if std::thread::panicking() {
            return;
        }
        let Some(first) = self.first.get() else {
            return;
        };
        // SAFETY: as in `InUse`.
        let mine = unsafe { &*self.mine.get() };
        // Calls inside this one have ended, so what lies before the next call's record is this one's.
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

/// The thread's record for a call that begins.
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

/// In the child of a fork: the other threads are gone, and use nothing. What they left is not freed:
/// they may have been in the midst of using it.
#[cfg(not(loom))]
pub(crate) fn forget_other_threads() {
    // Nothing is left to calls without a record, and then no page is read that the parent never had.
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

/// Whether a record is this thread's.
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

/// What a thread can be marked with: the address of a thing, which is only compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark(*mut ());

#[cfg(not(loom))]
impl Mark {
    pub(crate) fn of<T>(thing: &T) -> Self {
        Mark(ptr::from_ref(thing).cast_mut().cast())
    }
}

/// Whether no other thread is marked so; waits a while for that if `patiently`.
#[cfg(not(loom))]
pub(crate) fn wait_until_unmarked(mark: Mark, patiently: bool) -> bool {
    see_others();
    let mut others = records().filter(|record| !is_mine(record));
    others.all(|record| {
        let is_marked = || record.mark.load(Ordering::Acquire) == mark.0;
        let tries = if patiently { PATIENCE } else { 0 };
        let mut waiting = Patience::new();
        for _ in 0..tries {
            if !is_marked() {
                return true;
            }
            waiting.wait();
        }
        !is_marked()
    })
}

/// How often the owner of a record is let run before its use counts as a long one: two milliseconds.
#[cfg(not(loom))]
const PATIENCE: usize = Patience::SHORT + 5;
#[cfg(loom)]
const PATIENCE: usize = 0;

/// The same for who cannot leave the rest to that owner: five seconds, as the last turns take a
/// millisecond each.
pub(crate) const MORE_PATIENCE: usize = PATIENCE + 5000;

/// Waits until no call uses `entry`, which no slot leads to any more.
///
/// False if one still does: a call of this very thread, which a signal handler has interrupted, or
/// one of a thread that does not get on.
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
        let mut waiting = Patience::new();
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

fn is_among(entry: *mut Entry, entries: &[*mut Entry]) -> bool {
    !entry.is_null() && entries.binary_search(&entry).is_ok()
}

fn is_used(entry: *mut Entry) -> bool {
    records().any(|record| record.names(entry))
}

/// Lets go of an entry, or of nothing if it is null, once no call uses it. No slot leads to it.
///
/// That is at once, unless a signal handler closes what the code under it was just using, or a call
/// does not get on; then it goes with the end of that call.
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

/// Lets go of an entry.
///
/// # Safety
/// The entry is the caller's alone: no slot leads to it, and no call uses it.
pub(crate) unsafe fn free(entry: *mut Entry) {
    #[cfg(not(loom))]
    // SAFETY: the caller's contract; it comes from `Box::into_raw`.
    drop(unsafe { Box::from_raw(entry) });
    // The memory stays, for what a model finds is to be a failure of its own.
    #[cfg(loom)]
    // SAFETY: the caller's contract.
    unsafe { &*entry }.object.close();
}

/// Leaves an entry to a call that uses it. False if there is none any more.
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
        // Whoever is seen to use it now has been asked before it is done.
        if broken(Rule::LookAgainAfterAsking) || record.names(entry) {
            return true;
        }
    }
    false
}

#[cold]
fn let_go_as_asked(record: &Record) {
    // A handler must not meet what letting go has locked, and at the end those run that were put off.
    let _section = Section::begin();
    record.is_asked.store(false, Ordering::SeqCst);
    let_go_of_unused();
}

/// Whether a call of this thread uses an entry, or is marked. If so it is asked: at its end it has those
/// signal handlers called that were put off.
#[cfg(not(loom))]
pub(crate) fn ask_this_thread() -> bool {
    MINE.with(|mine| {
        let mut own = mine.first.get();
        // SAFETY: records are never freed.
        while let Some(record) = unsafe { own.as_ref() } {
            let is_used = !record.entry.load(Ordering::Relaxed).is_null()
                || !record.mark.load(Ordering::Relaxed).is_null();
            if is_used {
                // The outermost one.
                record.is_asked.store(true, Ordering::Relaxed);
                return true;
            }
            own = record.deeper.load(Ordering::Relaxed);
        }
        false
    })
}

/// Lets go of what is used no longer of what was left.
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
