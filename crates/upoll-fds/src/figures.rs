//! Figures of sets, in memory that another process may read: what `upoll top` shows of a program under `upoll run`.
//!
//! The memory is a file that the processes of a run share, which the embedder maps ([`show`]). It holds plain numbers.
//! The thread that has just waited in a set, or changed it, copies the set's counters there
//! ([`note_figures`](crate::note_figures)). So no thread is
//! needed for that. The figures of a set are as old as the last such call that has returned.
//!
//! A figure orders nothing, and no decision depends on it. A reader may see a set half-way between two calls. A thread that
//! notes a set while another one closes it may leave its figures with the set that takes the place.
//!
//! Processes are told apart by their IDs, so those of several PID namespaces that share a file may take each other's places.
//! In one namespace an ID may come to be another process's. That process frees the places of the former one before it
//! takes one. Until then a reader compares when the place was taken with the start of the process.

use std::cell::Cell;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use upoll::{Counters, Errno};
use upoll_sys::futex;

use crate::kernel::call;

const SETS: usize = 256;
/// Threads that come later to a set are only in the set's own figures.
const WORKERS: usize = 64;

/// The layout of the shared file. All zeros is the initial state.
#[repr(C)]
#[derive(Debug)]
pub struct Page {
    /// The process that `upoll run` became: the one that removes the file. 0: none yet.
    pub root: AtomicU64,
    sets: [SetPlace; SETS],
}

/// The place of one set.
#[repr(C)]
#[derive(Debug)]
struct SetPlace {
    /// The process ID; 0: free.
    process: AtomicU64,
    /// The time at which the place was taken, in nanoseconds of `CLOCK_BOOTTIME`.
    taken: AtomicU64,
    fd: AtomicU64,
    members: AtomicU64,
    rotates: AtomicU64,
    has_adopted: AtomicU64,
    wakes: AtomicU64,
    empty_wakes: AtomicU64,
    events: AtomicU64,
    sleeps: AtomicU64,
    workers: [WorkerPlace; WORKERS],
}

/// The place of one thread that waits in a set.
#[repr(C)]
#[derive(Debug)]
struct WorkerPlace {
    /// The thread ID; 0: free.
    thread: AtomicU64,
    waits: AtomicU64,
    events: AtomicU64,
}

impl Page {
    /// Takes a place for a set of `process`: a free one, or else that of a process that has ended. Returns `None` if
    /// there is none.
    fn take(&self, process: u64) -> Option<usize> {
        let claim = |place: &SetPlace, from| {
            // After the end of the former set.
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            let claimed = place
                .process
                .compare_exchange(from, process, success, failure);
            claimed.is_ok()
        };
        let free = self.sets.iter().position(|place| claim(place, 0));
        let taken = free.or_else(|| {
            self.sets.iter().position(|place| {
                let other = place.process.load(Ordering::Relaxed);
                has_ended(other) && claim(place, other)
            })
        })?;
        self.sets[taken].clear();
        self.sets[taken].taken.store(now(), Ordering::Relaxed);
        Some(taken)
    }

    /// Frees the places of sets that an earlier program of `process` has left, or an earlier process of that ID.
    fn forget(&self, process: u64) {
        let left = |place: &&SetPlace| place.process.load(Ordering::Relaxed) == process;
        self.sets.iter().filter(left).for_each(SetPlace::free);
    }
}

impl SetPlace {
    fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        let workers = self.workers.iter();
        let own = [
            &self.taken,
            &self.fd,
            &self.members,
            &self.rotates,
            &self.has_adopted,
            &self.wakes,
            &self.empty_wakes,
            &self.events,
            &self.sleeps,
        ];
        own.into_iter()
            .chain(workers.flat_map(|worker| [&worker.thread, &worker.waits, &worker.events]))
    }

    fn clear(&self) {
        self.words()
            .for_each(|word| word.store(0, Ordering::Relaxed));
    }

    fn free(&self) {
        self.clear();
        // After that: another process may take it.
        self.process.store(0, Ordering::Release);
    }

    /// Copies the figures of a set. Threads may do so at the same time, so no counter goes back.
    fn copy(&self, now: &Now) {
        let store = |place: &AtomicU64, value| place.store(value, Ordering::Relaxed);
        store(&self.fd, u64::from(now.epfd.cast_unsigned()));
        store(&self.members, now.members as u64);
        store(&self.rotates, u64::from(now.rotates));
        store(&self.has_adopted, u64::from(now.has_adopted));
        for (place, count) in [
            (&self.wakes, now.counters.wakes),
            (&self.empty_wakes, now.counters.empty_wakes),
            (&self.events, now.counters.events),
            (&self.sleeps, now.counters.sleeps),
        ] {
            place.fetch_max(count, Ordering::Relaxed);
        }
    }

    /// Counts a wait of a thread that has returned events.
    fn count(&self, thread: u64, events: usize) {
        let is_its = |worker: &&WorkerPlace| {
            let found = worker.thread.load(Ordering::Relaxed);
            found == thread
                || found == 0 && {
                    let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
                    let claimed = worker.thread.compare_exchange(0, thread, success, failure);
                    claimed.is_ok()
                }
        };
        if let Some(worker) = self.workers.iter().find(is_its) {
            worker.waits.fetch_add(1, Ordering::Relaxed);
            worker.events.fetch_add(events as u64, Ordering::Relaxed);
        }
    }
}

/// Returns whether no process has this ID any more.
fn has_ended(process: u64) -> bool {
    let Ok(process) = i32::try_from(process) else {
        return false;
    };
    // SAFETY: no pointers are involved, and no signal is sent.
    let asked = unsafe { call!(SYS_tgkill, process, process, 0) };
    asked == Err(Errno::from_raw(libc::ESRCH))
}

/// Returns the time of `CLOCK_BOOTTIME` in nanoseconds. The kernel counts the starts of processes by this clock.
fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the time is live.
    let _ = unsafe { call!(SYS_clock_gettime, libc::CLOCK_BOOTTIME, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

static PAGE: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());
/// The ID of this process; 0: not asked for yet.
static PROCESS: AtomicU64 = AtomicU64::new(0);

std::thread_local! {
    /// The ID of this thread; 0: not asked for yet.
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

#[inline]
fn page() -> Option<&'static Page> {
    // SAFETY: null, or the address of what `show` was given.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

/// Returns whether figures are shown.
#[inline]
pub fn are_shown() -> bool {
    !PAGE.load(Ordering::Relaxed).is_null()
}

fn this_process() -> u64 {
    let known = PROCESS.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    // SAFETY: no pointers are involved.
    let asked = unsafe { call!(SYS_getpid) }.map_or(0, |id| id as u64);
    let relaxed = Ordering::Relaxed;
    if PROCESS.compare_exchange(0, asked, relaxed, relaxed).is_ok()
        && let Some(page) = page()
    {
        // In the child of a fork. A place that another thread has just taken for a set becomes free as well; the set takes
        // one again at its next call. If a third set has taken that place until then, both share it and show mixed figures.
        page.forget(asked);
    }
    asked
}

fn this_thread() -> u64 {
    if THREAD.get() == 0 {
        THREAD.set(futex::thread_id().map_or(0, u64::from));
    }
    THREAD.get()
}

/// Shows the figures of this process in `page` from now on. Its children continue in the same page.
pub fn show(page: &'static Page) {
    page.forget(this_process());
    PAGE.store(ptr::from_ref(page).cast_mut(), Ordering::Release);
}

/// Notes that the child of a fork is a process, and its only thread a thread, of its own. Their IDs are asked for later:
/// a child without sets makes no system call for them.
#[unsafe(link_section = "upoll_fork")]
pub(crate) fn begin_in_child() {
    if are_shown() {
        PROCESS.store(0, Ordering::Relaxed);
        THREAD.set(0);
    }
}

/// The figures of a set at one moment.
pub(crate) struct Now {
    pub(crate) epfd: RawFd,
    pub(crate) members: usize,
    pub(crate) rotates: bool,
    pub(crate) has_adopted: bool,
    pub(crate) counters: Counters,
}

/// The place that a set has: the process that took it above the index plus one; 0: none. Without a free place, the
/// index is one that does not exist.
#[derive(Debug)]
pub(crate) struct Place(AtomicU64);

const INDEX: u64 = u32::MAX as u64;

impl Place {
    pub(crate) const fn new() -> Self {
        Place(AtomicU64::new(0))
    }

    /// Returns the place that `known` stands for in this process. A place of the parent is none of the child's, and nor is
    /// one that another process has taken.
    fn of(page: &Page, known: u64) -> Option<&SetPlace> {
        let index = usize::try_from(known & INDEX).ok()?.checked_sub(1)?;
        let process = this_process();
        let is_own = |place: &&SetPlace| place.process.load(Ordering::Relaxed) == process;
        let place = page.sets.get(index).filter(|_| known >> 32 == process);
        place.filter(is_own)
    }

    /// Returns the place of the set. Takes one if it has none.
    fn get<'p>(&self, page: &'p Page) -> Option<&'p SetPlace> {
        let process = this_process();
        // After the thread that took the place has cleared it.
        let known = self.0.load(Ordering::Acquire);
        let place = Place::of(page, known);
        if place.is_some() || known == (process << 32 | INDEX) {
            return place;
        }
        let taken = page.take(process);
        let new = process << 32 | taken.map_or(INDEX, |index| index as u64 + 1);
        let (success, failure) = (Ordering::Release, Ordering::Acquire);
        match self.0.compare_exchange(known, new, success, failure) {
            Ok(_) => Place::of(page, new),
            Err(other) => {
                // Another thread was quicker.
                Place::of(page, new).inspect(|place| place.free());
                Place::of(page, other)
            }
        }
    }

    /// Copies what `figures` returns to the place. Counts a wait of the calling thread, if it got `events`.
    pub(crate) fn note(&self, events: usize, figures: impl FnOnce() -> Now) {
        if let Some(place) = page().and_then(|page| self.get(page)) {
            place.copy(&figures());
            if events != 0 {
                place.count(this_thread(), events);
            }
        }
    }

    /// Frees the place of a set that is no longer user-level.
    pub(crate) fn free(&self) {
        if self.0.load(Ordering::Relaxed) != 0
            && let known = self.0.swap(0, Ordering::Relaxed)
            && let Some(place) = page().and_then(|page| Place::of(page, known))
        {
            place.free();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.free();
    }
}

/// The figures of one set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetFigures {
    /// The process that the set is in.
    pub process: u32,
    /// The time since which the figures are shown, in nanoseconds of `CLOCK_BOOTTIME`. A process that has started
    /// later is another one with the same ID.
    pub since: u64,
    /// The fd by which the set was last used.
    pub fd: u32,
    /// The number of members. Those in an adopted kernel set are not counted.
    pub members: u64,
    /// True if the set rotates.
    pub rotates: bool,
    /// True if the kernel set behind the fd is adopted: it has the kernel members, and the seal.
    pub has_adopted: bool,
    /// As [`Counters::wakes`].
    pub wakes: u64,
    /// As [`Counters::empty_wakes`].
    pub empty_wakes: u64,
    /// As [`Counters::events`].
    pub events: u64,
    /// As [`Counters::sleeps`].
    pub sleeps: u64,
    /// The threads that have got events from it.
    pub workers: Vec<WorkerFigures>,
}

/// The figures of one thread in one set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerFigures {
    /// The thread.
    pub thread: u32,
    /// Waits that have returned events.
    pub waits: u64,
    /// Events that these have returned.
    pub events: u64,
}

/// Returns the figures in the bytes of a shared file. The bytes may be any: what is no figure is left out, and so is what
/// a short file lacks.
pub fn in_file(bytes: &[u8]) -> Vec<SetFigures> {
    const WORKER: usize = size_of::<WorkerPlace>() / size_of::<u64>();
    const SET: usize = size_of::<SetPlace>() / size_of::<u64>();
    let (words, _) = bytes.as_chunks();
    let words: Vec<_> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    let (sets, _) = words.get(1..).unwrap_or_default().as_chunks::<SET>();
    let id = |word: u64| u32::try_from(word).ok().filter(|&id| id != 0);
    let sets = sets.iter().take(SETS).filter_map(|set| {
        // In the order of the fields of a place.
        let [
            process,
            taken,
            fd,
            members,
            rotates,
            has_adopted,
            wakes,
            empty_wakes,
            events,
            sleeps,
            workers @ ..,
        ] = set;
        let (workers, _) = workers.as_chunks::<WORKER>();
        let workers = workers.iter().filter_map(|&[thread, waits, events]| {
            Some(WorkerFigures {
                thread: id(thread)?,
                waits,
                events,
            })
        });
        Some(SetFigures {
            process: id(*process)?,
            since: *taken,
            fd: u32::try_from(*fd).ok()?,
            members: *members,
            rotates: *rotates != 0,
            has_adopted: *has_adopted != 0,
            wakes: *wakes,
            empty_wakes: *empty_wakes,
            events: *events,
            sleeps: *sleeps,
            workers: workers.collect(),
        })
    });
    sets.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_page() -> &'static Page {
        // SAFETY: a page consists of atomics; all zeros is one.
        Box::leak(unsafe { Box::<Page>::new_zeroed().assume_init() })
    }

    fn bytes(page: &Page) -> Vec<u8> {
        let words = page.sets.iter().flat_map(|place| {
            let process = std::iter::once(&place.process);
            process.chain(place.words())
        });
        let words = std::iter::once(&page.root).chain(words);
        words
            .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
            .collect()
    }

    #[test]
    fn the_file_holds_what_was_copied() {
        let page = new_page();
        let place = &page.sets[page.take(5).expect("room")];
        let mut now = Now {
            epfd: 3,
            members: 2,
            rotates: true,
            has_adopted: false,
            counters: Counters::default(),
        };
        now.counters.wakes = 4;
        now.counters.empty_wakes = 1;
        now.counters.events = 6;
        now.counters.sleeps = 5;
        place.copy(&now);
        // Another thread has read the counters earlier.
        now.counters.events = 2;
        place.copy(&now);
        for (thread, events) in [(7, 3), (8, 1), (7, 2)] {
            place.count(thread, events);
        }
        let worker = |thread, waits, events| WorkerFigures {
            thread,
            waits,
            events,
        };
        let since = place.taken.load(Ordering::Relaxed);
        assert!(since > 0);
        let expected = SetFigures {
            process: 5,
            since,
            fd: 3,
            members: 2,
            rotates: true,
            has_adopted: false,
            wakes: 4,
            empty_wakes: 1,
            events: 6,
            sleeps: 5,
            workers: vec![worker(7, 2, 5), worker(8, 1, 1)],
        };
        let bytes = bytes(page);
        assert_eq!(bytes.len(), size_of::<Page>());
        assert_eq!(in_file(&bytes), [expected]);
        // The last set would be incomplete.
        assert!(in_file(&bytes[..size_of::<SetPlace>()]).is_empty());
        place.free();
        assert!(in_file(&self::bytes(page)).is_empty());
    }

    #[test]
    fn later_threads_are_in_the_figures_of_the_set_alone() {
        let page = new_page();
        let place = &page.sets[page.take(5).expect("room")];
        for thread in 1..=WORKERS as u64 + 1 {
            place.count(thread, 1);
        }
        let threads = place.workers.each_ref();
        let threads = threads.map(|worker| worker.thread.load(Ordering::Relaxed));
        assert!(threads.into_iter().eq(1..=WORKERS as u64));
    }

    #[test]
    fn a_set_gets_the_place_of_a_process_that_has_ended_if_none_is_free() {
        let page = new_page();
        // Above all process IDs. That of a child that has ended may be another process's by now.
        let ended = i32::MAX.cast_unsigned().into();
        let own = std::process::id().into();
        for index in 0..SETS {
            assert_eq!(page.take(own), Some(index));
        }
        assert_eq!(page.take(own), None);
        let left = &page.sets[9];
        left.process.store(ended, Ordering::Relaxed);
        left.count(7, 1);
        assert_eq!(page.take(own), Some(9));
        left.taken.store(0, Ordering::Relaxed);
        assert!(left.words().all(|word| word.load(Ordering::Relaxed) == 0));
        assert_eq!(page.take(own), None);
    }

    #[test]
    fn a_place_of_the_parent_is_none_of_the_child() {
        let page = new_page();
        let parent = this_process() + 1;
        assert_eq!(page.take(parent), Some(0));
        show(page);
        let set = Place(AtomicU64::new(parent << 32 | 1));
        set.free();
        let place = &page.sets[0];
        assert_eq!(place.process.load(Ordering::Relaxed), parent);
        let set = Place(AtomicU64::new(parent << 32 | 1));
        let own = set.get(page).expect("room");
        assert!(ptr::eq(own, &raw const page.sets[1]));
        drop(set);
        assert_eq!(own.process.load(Ordering::Relaxed), 0);
        assert_eq!(place.process.load(Ordering::Relaxed), parent);
        // An earlier program of this process has left a set.
        assert_eq!(page.take(this_process()), Some(1));
        show(page);
        assert_eq!(own.process.load(Ordering::Relaxed), 0);
        // So has an earlier process, whose ID a child of a fork has got, and with it a set that it showed.
        assert_eq!(page.take(this_process()), Some(1));
        let set = Place(AtomicU64::new(this_process() << 32 | 2));
        own.count(7, 1);
        begin_in_child();
        let own = set.get(page).expect("room");
        assert!(ptr::eq(own, &raw const page.sets[1]));
        assert_eq!(own.workers[0].thread.load(Ordering::Relaxed), 0);
        assert!(set.get(page).is_some_and(|place| ptr::eq(place, own)));
    }
}
