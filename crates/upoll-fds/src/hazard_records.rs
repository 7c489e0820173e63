//! Hazard pointers: which entry of the table a thread is using right now.
//!
//! A call that finds an object by its fd stores the address of the entry in a record of its thread. A thread that
//! takes an entry out of the table waits until no record names it. [`hazard`](crate::slot::hazard) has the protocol;
//! this module knows addresses only.
//!
//! With epoch-based reclamation, a close could return while an unrelated thread keeps the open file alive by its
//! epoch: the reader of a pipe would see the end too late. A reference count per call costs two atomic operations
//! on a shared word.
//!
//! # The named pair
//! A call writes its record, then reads the slot. A close empties the slot, then reads the records. The close pays
//! for both: it issues `membarrier(2)`, which puts a barrier into every running thread, so the call needs none.
//! If the kernel does not support that, both use a fence.
//!
//! # Signal handlers
//! Taking a record allocates nothing from the heap and takes no lock, not even the first time. Records are in pages
//! of their own, and are returned by the destructor of a C library key.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::ptr::{self, NonNull};

use crate::sync::{
    AtomicBool, AtomicPtr, Backoff, Ordering, Rule, broken, compiler_fence, fence, global,
    of_each_thread,
};

/// The entries that one call of one thread uses. Records of different threads do not share a cache
/// line.
#[repr(align(64))]
pub(crate) struct Record {
    pub(crate) entry: AtomicPtr<()>,
    /// A second entry of the same call; null while `entry` is.
    pub(crate) another: AtomicPtr<()>,
    /// The thing that a call is blocked on; null if the call does not block.
    pub(crate) blocked_on: AtomicPtr<()>,
    /// The thread's record for a call inside this one: from a signal handler, or from the `poll`
    /// of an embedder's object.
    pub(crate) deeper: AtomicPtr<Record>,
    /// A thread owns the record. Records are never freed, but change owners.
    is_taken: AtomicBool,
    /// The call must release entries at its end that were left to it, because nobody waits for it any
    /// more, or must call delayed signal handlers.
    pub(crate) is_asked: AtomicBool,
    /// The next record in the list of all records; written before this one is in the list.
    next: AtomicPtr<Record>,
}

impl Record {
    fn taken() -> Self {
        Record {
            entry: AtomicPtr::new(ptr::null_mut()),
            another: AtomicPtr::new(ptr::null_mut()),
            blocked_on: AtomicPtr::new(ptr::null_mut()),
            deeper: AtomicPtr::new(ptr::null_mut()),
            is_taken: AtomicBool::new(true),
            is_asked: AtomicBool::new(false),
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Returns what the record names; null where it names nothing.
    fn named(&self) -> impl Iterator<Item = *mut ()> {
        let places = [&self.entry, &self.another];
        places
            .into_iter()
            .map(|place| place.load(Ordering::Acquire))
    }

    pub(crate) fn names<T>(&self, entry: *mut T) -> bool {
        self.named().any(|named| named == entry.cast())
    }
}

global! {
    /// The list of all records.
    static ALL: AtomicPtr<Record> = AtomicPtr::new(ptr::null_mut());
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
    use upoll_sys::membarrier;

    const UNKNOWN: u8 = 0;
    const FENCES: u8 = 1;
    const MEMBARRIER: u8 = 2;

    /// The way in which threads are ordered: `MEMBARRIER` if the kernel supports barriers in other threads.
    /// Known before the first entry is in the table, and constant from then on.
    static ORDERED_BY: AtomicU8 = AtomicU8::new(UNKNOWN);

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
    #[unsafe(link_section = "upoll_fork")]
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
        let ordered_by = match membarrier::register() {
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
    pub(crate) fn before_check() {
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
    pub(crate) fn see_others() {
        fence(Ordering::SeqCst);
        let is_others = |record: &'static Record| {
            record.is_taken.load(Ordering::SeqCst) && !super::is_mine(record)
        };
        if ORDERED_BY.load(Ordering::Relaxed) != MEMBARRIER || !records().any(is_others) {
            return;
        }
        let done = membarrier::barrier();
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
                    // SAFETY: there is room for whole records in the page; this one is the caller's alone.
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
    pub(crate) fn before_check() {
        if broken(Rule::KernelHasBarriers) {
            fence(Ordering::SeqCst);
        }
    }

    pub(crate) fn see_others() {
        fence(Ordering::SeqCst);
        if !broken(Rule::KernelHasBarriers) && !broken(Rule::BarrierBeforeReading) {
            barrier();
        }
    }

    pub(super) fn new_record() -> &'static Record {
        Box::leak(Box::new(Record::taken()))
    }
}

pub(crate) use self::kernel::{before_check, see_others};
use self::kernel::{new_record, return_at_the_end};

/// The thread's own records.
pub(crate) struct Mine {
    /// The one for the next call.
    pub(crate) current: Cell<*const Record>,
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
pub(crate) fn records() -> impl Iterator<Item = &'static Record> {
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

/// Clears the record: its entries are no longer in use.
#[inline]
pub(crate) fn wipe(record: &Record) {
    record.another.store(ptr::null_mut(), Ordering::Release);
    record.entry.store(ptr::null_mut(), Ordering::Release);
    before_check();
}

/// Stores an entry in a record. The caller then checks whether the slot still leads there.
#[inline(always)]
pub(crate) fn note<T>(place: &AtomicPtr<()>, entry: NonNull<T>) {
    place.store(entry.as_ptr().cast(), Ordering::Relaxed);
    before_check();
}

/// Returns the thread's record for a call that begins.
#[inline]
pub(crate) fn next_record() -> (&'static Record, *const Mine) {
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

/// Forgets the other threads' records, in the child of a fork.
#[cfg(not(upoll_loom))]
pub(crate) fn forget_other_threads() {
    for record in records().filter(|record| !is_mine(record)) {
        record.entry.store(ptr::null_mut(), Ordering::Relaxed);
        record.another.store(ptr::null_mut(), Ordering::Relaxed);
        record.blocked_on.store(ptr::null_mut(), Ordering::Relaxed);
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

/// The thing that a thread is blocked on: an address, which is only compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockedOn(pub(crate) *mut ());

impl BlockedOn {
    pub(crate) fn of<T>(thing: &T) -> Self {
        BlockedOn(ptr::from_ref(thing).cast_mut().cast())
    }
}

/// Returns whether no other thread is blocked on this. If `waits`, waits a while for that.
pub(crate) fn wait_until_none_blocked_on(blocked_on: BlockedOn, waits: bool) -> bool {
    see_others();
    let mut others = records().filter(|record| !is_mine(record));
    others.all(|record| {
        let is_blocked = || record.blocked_on.load(Ordering::Acquire) == blocked_on.0;
        let tries = if waits { MOST_TRIES } else { 0 };
        let mut waiting = Backoff::new();
        for _ in 0..tries {
            if !is_blocked() {
                return true;
            }
            waiting.wait();
        }
        !is_blocked()
    })
}

/// The number of waits for a call before it counts as a long one: about two milliseconds.
#[cfg(not(upoll_loom))]
pub(crate) const MOST_TRIES: usize = Backoff::SHORT + 5;
#[cfg(upoll_loom)]
pub(crate) const MOST_TRIES: usize = 0;

/// The same for a caller that cannot leave the entry to the call: five seconds, because the last
/// waits take a millisecond each.
pub(crate) const MORE_TRIES: usize = MOST_TRIES + 5000;

/// Waits until no call uses `entry`, which no slot leads to any more.
///
/// Returns false if a call still does: a call of this very thread that a signal handler has
/// interrupted, or a call of a thread that makes no progress.
pub(crate) fn wait_until_unused<T>(entry: *mut T, turns: usize) -> bool {
    let mut is_used = false;
    wait_until_all_unused(&[entry], turns, |_| {
        is_used = true;
        ControlFlow::Break(())
    });
    !is_used
}

/// Waits until no call uses any of `entries`, which are in ascending order and which no slot leads to.
/// Calls `still_used` with each entry for which [`wait_until_unused`] would return false, more than once
/// if several calls use it, until that breaks.
pub(crate) fn wait_until_all_unused<T>(
    entries: &[*mut T],
    turns: usize,
    mut still_used: impl FnMut(*mut T) -> ControlFlow<()>,
) {
    if broken(Rule::WaitUntilUnused) || entries.is_empty() {
        return;
    }
    see_others();
    for record in records() {
        let mut waiting = Backoff::new();
        let mut turn = 0;
        while record.named().any(|entry| is_among(entry, entries)) {
            if turn >= turns || is_mine(record) {
                let used = record.named().filter(|entry| is_among(*entry, entries));
                let mut used = used.map(<*mut ()>::cast);
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
pub(crate) fn each_used<T>(mut used: impl FnMut(*mut T)) {
    if broken(Rule::WaitUntilUnused) {
        return;
    }
    see_others();
    let named = records().flat_map(Record::named);
    named
        .filter(|entry| !entry.is_null())
        .for_each(|entry| used(entry.cast()));
}

fn is_among<T>(entry: *mut (), entries: &[*mut T]) -> bool {
    !entry.is_null() && entries.binary_search(&entry.cast()).is_ok()
}

pub(crate) fn is_used<T>(entry: *mut T) -> bool {
    records().any(|record| record.names(entry))
}

/// Returns whether a call of this thread uses an entry, or is blocked. Such a call then calls delayed
/// signal handlers at its end.
#[cfg(not(upoll_loom))]
pub(crate) fn ask_this_thread() -> bool {
    MINE.with(|mine| {
        let mut own = mine.first.get();
        // SAFETY: records are never freed.
        while let Some(record) = unsafe { own.as_ref() } {
            let is_used = !record.entry.load(Ordering::Relaxed).is_null()
                || !record.blocked_on.load(Ordering::Relaxed).is_null();
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

#[cfg(all(test, not(upoll_loom)))]
mod tests {
    use std::sync::RwLock;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::records;

    const THREADS: usize = 5000;

    /// Writes to an eventfd from many threads that exist at the same time. Returns the number of threads, and of records.
    fn with_threads(fd: i32) -> (usize, usize) {
        let (gate, written) = (RwLock::new(()), AtomicUsize::new(0));
        let closed = gate.write().expect("no thread has panicked");
        let begun = thread::scope(|scope| {
            let write = || {
                crate::eventfd_write(fd, 1).expect("it fits");
                written.fetch_add(1, Ordering::Relaxed);
                drop(gate.read());
            };
            let begin = |_| {
                let small = thread::Builder::new().stack_size(64 << 10);
                small.spawn_scoped(scope, write).ok()
            };
            // There may be a limit of threads.
            let threads: Vec<_> = (0..THREADS).map_while(begin).collect();
            let begun = threads.len();
            while written.load(Ordering::Relaxed) < begun {
                thread::yield_now();
            }
            drop(closed);
            // The end of a scope does not wait until they have left their records.
            for thread in threads {
                thread.join().expect("it has written");
            }
            begun
        });
        let mut count = 0;
        // SAFETY: the count has a place.
        unsafe { crate::eventfd_read(fd, &raw mut count) }.expect("a count");
        assert_eq!(count, begun as u64);
        (begun, records().count())
    }

    #[test]
    fn thousands_of_threads_are_served_and_leave_their_records_to_later_ones() {
        let fd = crate::eventfd(0, 0).expect("an eventfd");
        let (threads, first) = with_threads(fd);
        let (later_threads, second) = with_threads(fd);
        assert!(first >= threads, "{first} records of {threads} threads");
        // Other tests have records, too.
        let most = first.max(later_threads) + THREADS / 10;
        assert!(second < most, "{first} records, then {second}");
        crate::close(fd).expect("an fd");
    }
}
