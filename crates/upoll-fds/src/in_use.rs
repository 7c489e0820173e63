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
//! # The named pair
//! A call writes its record, then reads the slot. A close empties the slot, then reads the records.
//! The second pays for both: it has the kernel put a barrier into every running thread
//! (`membarrier(2)`), so the first needs none. Where the kernel cannot, both use a fence.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, compiler_fence, fence,
};
use std::time::{Duration, Instant};

use crate::kernel::call;
use crate::patience::Patience;
use crate::table::Entry;

/// What one call of one thread uses.
struct Record {
    entry: AtomicPtr<Entry>,
    /// What a call that may block is marked with.
    mark: AtomicPtr<()>,
    /// The thread's record for a call inside this one: from a signal handler, or from the `poll`
    /// of an embedder's object.
    deeper: AtomicPtr<Record>,
    /// A thread has it. Records are never freed, but change hands.
    is_taken: AtomicBool,
    /// In the list of all records; written before it is there.
    next: AtomicPtr<Record>,
}

/// All records.
static ALL: AtomicPtr<Record> = AtomicPtr::new(ptr::null_mut());

/// The kernel puts barriers into other threads for us. Set before the first entry is in the table,
/// and never again.
static HAS_BARRIER: AtomicBool = AtomicBool::new(false);

const MEMBARRIER_PRIVATE_EXPEDITED: usize = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: usize = 1 << 4;

fn membarrier(command: usize) -> bool {
    // SAFETY: no pointers are involved.
    unsafe { call!(membarrier, command, 0, 0) }.is_ok()
}

/// Must have returned before an entry is put into the table.
pub(crate) fn prepare() {
    static IS_PREPARED: std::sync::Once = std::sync::Once::new();
    IS_PREPARED.call_once(|| {
        let registered = membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED);
        HAS_BARRIER.store(registered, Ordering::SeqCst);
        let mut key = 0;
        // SAFETY: the key is live, and the destructor never unloaded, as this library is not. Without a
        // key threads keep their records.
        if unsafe { libc::pthread_key_create(&raw mut key, Some(return_records)) } == 0 {
            KEY.store(key + 1, Ordering::Relaxed);
        }
    });
}

/// The thread's own records.
struct Mine {
    /// The one for the next call.
    current: Cell<*const Record>,
    first: Cell<*const Record>,
    last: Cell<*const Record>,
}

std::thread_local! {
    static MINE: Mine = const {
        Mine {
            current: Cell::new(ptr::null()),
            first: Cell::new(ptr::null()),
            last: Cell::new(ptr::null()),
        }
    };
}

/// The key whose destructor returns a thread's records, and one more; 0: there is none. Not a variable
/// with a destructor: that takes memory when it is first used, perhaps by a signal handler that has
/// interrupted an allocation.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Gives the thread's records to others when it ends.
extern "C" fn return_records(_: *mut c_void) {
    MINE.with(|mine| {
        let mut record = mine.first.get();
        mine.current.set(ptr::null());
        mine.first.set(ptr::null());
        mine.last.set(ptr::null());
        // SAFETY: records are never freed.
        while let Some(taken) = unsafe { record.as_ref() } {
            record = taken.deeper.swap(ptr::null_mut(), Ordering::Relaxed);
            taken.is_taken.store(false, Ordering::Release);
        }
    });
}

impl Record {
    const fn new() -> Self {
        Record {
            entry: AtomicPtr::new(ptr::null_mut()),
            mark: AtomicPtr::new(ptr::null_mut()),
            deeper: AtomicPtr::new(ptr::null_mut()),
            is_taken: AtomicBool::new(true),
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }
}

/// A record that nobody has had yet. Many need no memory from the heap, for the reason above.
fn new_record() -> &'static Record {
    const MANY: usize = 256;
    static FIRST: [Record; MANY] = [const { Record::new() }; MANY];
    static USED: AtomicUsize = AtomicUsize::new(0);
    let place = FIRST.get(USED.fetch_add(1, Ordering::Relaxed));
    place.unwrap_or_else(|| Box::leak(Box::new(Record::new())))
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

/// A record that is nobody's, for this thread.
#[cold]
fn take_record(mine: &Mine) -> &'static Record {
    let free = records().find(|record| {
        !record.is_taken.load(Ordering::Relaxed) && !record.is_taken.swap(true, Ordering::SeqCst)
    });
    let record = free.unwrap_or_else(|| {
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
    if let Some(key) = KEY.load(Ordering::Relaxed).checked_sub(1) {
        // SAFETY: the key is there; the value is only compared with null.
        unsafe { libc::pthread_setspecific(key, ptr::from_ref(record).cast()) };
    }
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

/// An entry that cannot go while this exists. They end in the reverse order of their beginning.
struct InUse {
    entry: NonNull<Entry>,
    record: &'static Record,
    /// The thread's own, looked up once.
    mine: *const Mine,
}

impl Drop for InUse {
    #[inline]
    fn drop(&mut self) {
        self.record.entry.store(ptr::null_mut(), Ordering::Release);
        compiler_fence(Ordering::SeqCst);
        // SAFETY: the thread's own, and this does not leave the thread; it has no destructor.
        unsafe { &*self.mine }.current.set(self.record);
    }
}

/// Has `call` use the entry that `slot` leads to. None if it leads to nothing, or to something that
/// `is_entry` refuses. `call` must not block.
#[inline]
pub(crate) fn with<R>(
    slot: &AtomicPtr<Entry>,
    is_entry: impl Fn(*mut Entry) -> bool,
    call: impl FnOnce(&Entry) -> R,
) -> Option<R> {
    let in_use = protect(slot, is_entry)?;
    // SAFETY: the record names it, and was written before the slot was read again.
    Some(call(unsafe { in_use.entry.as_ref() }))
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

/// Writes down what a call uses, before it looks again.
#[inline]
fn note(record: &Record, entry: *mut Entry) {
    record.entry.store(entry, Ordering::Relaxed);
    before_a_look();
}

/// Between a thread's store to its record and its look at what others change.
#[inline]
fn before_a_look() {
    if HAS_BARRIER.load(Ordering::Relaxed) {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

#[inline]
fn protect(slot: &AtomicPtr<Entry>, is_entry: impl Fn(*mut Entry) -> bool) -> Option<InUse> {
    let mut seen = slot.load(Ordering::Acquire);
    if !is_entry(seen) {
        return None;
    }
    let (record, mine) = next_record();
    loop {
        note(record, seen);
        let again = slot.load(Ordering::Acquire);
        let in_use = InUse {
            // Not used unless it is the entry that was seen.
            entry: NonNull::new(again).unwrap_or(NonNull::dangling()),
            record,
            mine,
        };
        if again == seen {
            return Some(in_use);
        }
        if !is_entry(again) {
            drop(in_use);
            return None;
        }
        std::mem::forget(in_use);
        seen = again;
    }
}

/// Entries that a call uses all at once, until this goes.
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

    /// One more: the entry that `slot` leads to. None as [`with`] has it.
    pub(crate) fn add(
        &self,
        slot: &AtomicPtr<Entry>,
        is_entry: impl Fn(*mut Entry) -> bool,
    ) -> Option<&Entry> {
        let in_use = protect(slot, is_entry)?;
        if self.first.get().is_none() {
            self.first.set(Some(in_use.record));
            self.mine.set(in_use.mine);
        }
        let entry = in_use.entry;
        std::mem::forget(in_use);
        // SAFETY: as in `with`; the record names it until this goes.
        Some(unsafe { entry.as_ref() })
    }
}

impl Drop for Several {
    fn drop(&mut self) {
        let Some(first) = self.first.get() else {
            return;
        };
        // SAFETY: the thread's own, and this does not leave the thread; it has no destructor.
        let mine = unsafe { &*self.mine.get() };
        // Calls inside this one have ended, so what lies before the next call's record is this one's.
        let end = mine.current.get();
        let mut record = ptr::from_ref(first);
        while record != end {
            // SAFETY: records are never freed.
            let used = unsafe { &*record };
            used.entry.store(ptr::null_mut(), Ordering::Release);
            record = used.deeper.load(Ordering::Relaxed);
        }
        compiler_fence(Ordering::SeqCst);
        mine.current.set(first);
    }
}

/// In the child of a fork: the other threads are gone, and use nothing.
pub(crate) fn forget_other_threads() {
    for record in records().filter(|record| !is_mine(record)) {
        record.entry.store(ptr::null_mut(), Ordering::Relaxed);
        record.mark.store(ptr::null_mut(), Ordering::Relaxed);
        record.deeper.store(ptr::null_mut(), Ordering::Relaxed);
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

impl Mark {
    pub(crate) fn of<T>(thing: &T) -> Self {
        Mark(ptr::from_ref(thing).cast_mut().cast())
    }
}

/// Has `call`, which may block, run while this thread is marked with what `mark_of` gives for the
/// entry that `slot` leads to, and still gives once the thread is marked. None if it gives nothing.
#[inline]
pub(crate) fn while_marked<R>(
    slot: &AtomicPtr<Entry>,
    is_entry: impl Fn(*mut Entry) -> bool,
    mark_of: impl Fn(&Entry) -> Option<Mark>,
    call: impl FnOnce() -> R,
) -> Option<R> {
    let in_use = protect(slot, is_entry)?;
    // SAFETY: as in `with`; it is not used once the record no longer names it.
    let entry = unsafe { in_use.entry.as_ref() };
    let mark = mark_of(entry)?;
    let record = in_use.record;
    record.mark.store(mark.0, Ordering::Relaxed);
    before_a_look();
    let is_still = mark_of(entry) == Some(mark);
    record.entry.store(ptr::null_mut(), Ordering::Release);
    let result = is_still.then(call);
    record.mark.store(ptr::null_mut(), Ordering::Release);
    result
}

/// Whether no other thread is marked so; waits a while for that if `patiently`.
pub(crate) fn wait_until_unmarked(mark: Mark, patiently: bool) -> bool {
    see_others();
    let mut others = records().filter(|record| !is_mine(record));
    others.all(|record| {
        let is_marked = || record.mark.load(Ordering::Acquire) == mark.0;
        let tries = if patiently { PATIENCE } else { 0 };
        for _ in 0..tries {
            if !is_marked() {
                return true;
            }
            std::thread::yield_now();
        }
        !is_marked()
    })
}

/// How often the owner of a record is let run before its use counts as a long one.
const PATIENCE: usize = 1000;

/// Waits until no call uses `entry`, which no slot leads to any more.
///
/// False if one still does: a call of this very thread, which a signal handler has interrupted, or
/// one of a thread that does not get on.
pub(crate) fn wait_until_unused(entry: *mut Entry) -> bool {
    see_others();
    records().all(|record| {
        let mut tries = 0;
        while record.entry.load(Ordering::Acquire) == entry {
            tries += 1;
            if tries > PATIENCE || is_mine(record) {
                return false;
            }
            if tries < 100 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        true
    })
}

/// The same for those who cannot go on without: only a call of this very thread is not waited for, and
/// a thread that does not get on for seconds.
pub(crate) fn wait_patiently_until_unused(entry: *mut Entry) -> bool {
    const LONGEST: Duration = Duration::from_secs(5);
    see_others();
    let begun = Instant::now();
    let mut patience = Patience::new();
    records().all(|record| {
        while record.entry.load(Ordering::Acquire) == entry {
            if is_mine(record) || begun.elapsed() > LONGEST {
                return false;
            }
            patience.wait();
        }
        true
    })
}

/// What other threads have written to their records can be seen from now on, and they see what
/// this one has written to the table.
fn see_others() {
    fence(Ordering::SeqCst);
    let others =
        |record: &&'static Record| record.is_taken.load(Ordering::SeqCst) && !is_mine(record);
    if HAS_BARRIER.load(Ordering::Relaxed)
        && records().any(|record| others(&record))
        && !membarrier(MEMBARRIER_PRIVATE_EXPEDITED)
    {
        // A child of a fork may have to register anew.
        membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED);
        membarrier(MEMBARRIER_PRIVATE_EXPEDITED);
    }
}
