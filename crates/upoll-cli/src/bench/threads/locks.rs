//! The locks that threads take: counted by `upoll_counted`, and by sets that share one lock.

use std::cell::Cell;
use std::io;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::Serialize;
use upoll::{Epoll, EventFd, EventFdFlags, Events};

use crate::bench::kernel::Fd;
use crate::bench::set::{Counter, Set};

/// The counts of locks that were taken, and of the waits for them.
#[derive(Clone, Copy, Default, Serialize)]
pub(in crate::bench) struct Locks {
    pub(super) taken: u64,
    pub(super) shared: u64,
    pub(super) contended: u64,
    pub(super) waited_nanoseconds: u64,
}

impl Locks {
    /// Combines each count with the same one of `other`.
    pub(super) fn with(self, other: Self, combine: fn(u64, u64) -> u64) -> Self {
        Locks {
            taken: combine(self.taken, other.taken),
            shared: combine(self.shared, other.shared),
            contended: combine(self.contended, other.contended),
            waited_nanoseconds: combine(self.waited_nanoseconds, other.waited_nanoseconds),
        }
    }
}

/// Sets whose locks may be counted.
pub(in crate::bench) trait Counted {
    /// Returns the counts of the calling thread so far, if its locks are counted.
    fn locks() -> Option<Locks> {
        None
    }
}

impl Counted for Fd {}
impl Counted for Epoll {}

impl Counted for upoll_counted::Epoll {
    fn locks() -> Option<Locks> {
        let counts = upoll_counted::LockCounts::of_this_thread();
        Some(Locks {
            taken: counts.taken,
            shared: counts.shared,
            contended: counts.contended,
            waited_nanoseconds: counts.waited_nanoseconds,
        })
    }
}

/// upoll with one lock for all sets: each call on a set, and on a file in it, takes it.
pub(in crate::bench) struct Global(Epoll);

/// A file of such a set; always `Some` until it is dropped.
pub(in crate::bench) struct GlobalFile(Option<EventFd>);

/// The last holder, by the address of its counts; 0 if none.
static GLOBAL: Mutex<usize> = Mutex::new(0);

thread_local! {
    /// The counts of the global lock on this thread.
    static GLOBAL_COUNTS: Cell<Locks> = Cell::default();
}

fn global() -> MutexGuard<'static, usize> {
    let mut counts = GLOBAL_COUNTS.get();
    let mut guard = match GLOBAL.try_lock() {
        Ok(guard) => guard,
        Err(_) => {
            let since = Instant::now();
            let guard = GLOBAL.lock().unwrap_or_else(PoisonError::into_inner);
            counts.contended += 1;
            counts.waited_nanoseconds += since.elapsed().as_nanos() as u64;
            guard
        }
    };
    let me = GLOBAL_COUNTS.with(|counts| ptr::from_ref(counts).addr());
    counts.taken += 1;
    counts.shared += u64::from(*guard != 0 && *guard != me);
    *guard = me;
    GLOBAL_COUNTS.set(counts);
    guard
}

impl Counted for Global {
    fn locks() -> Option<Locks> {
        Some(GLOBAL_COUNTS.get())
    }
}

impl GlobalFile {
    fn get(&self) -> &EventFd {
        self.0.as_ref().expect("the file is open")
    }
}

impl Drop for GlobalFile {
    fn drop(&mut self) {
        let _global = global();
        self.0 = None;
    }
}

impl Counter for GlobalFile {
    fn new(initial: u32, flags: EventFdFlags) -> io::Result<Self> {
        Ok(GlobalFile(Some(Counter::new(initial, flags)?)))
    }

    fn write(&self) {
        let _global = global();
        Counter::write(self.get());
    }

    fn read(&self) -> u64 {
        let _global = global();
        Counter::read(self.get())
    }

    fn try_read(&self) -> bool {
        let _global = global();
        Counter::try_read(self.get())
    }
}

impl Set<GlobalFile> for Global {
    type Report = upoll::Event;

    const ROOM: upoll::Event = <Epoll as Set<EventFd>>::ROOM;

    fn open() -> io::Result<Self> {
        Ok(Global(Set::<EventFd>::open()?))
    }

    fn add(&self, file: &GlobalFile, events: Events, data: u64) -> io::Result<()> {
        let _global = global();
        Set::add(&self.0, file.get(), events, data)
    }

    fn modify(&self, file: &GlobalFile, events: Events, data: u64) -> io::Result<()> {
        let _global = global();
        Set::modify(&self.0, file.get(), events, data)
    }

    fn delete(&self, file: &GlobalFile) -> io::Result<()> {
        let _global = global();
        Set::delete(&self.0, file.get())
    }

    fn add_set(&self, inner: &Self, events: Events, data: u64) -> io::Result<()> {
        let _global = global();
        Set::<EventFd>::add_set(&self.0, &inner.0, events, data)
    }

    fn delete_set(&self, inner: &Self) -> io::Result<()> {
        let _global = global();
        Set::<EventFd>::delete_set(&self.0, &inner.0)
    }

    fn wait(&self, reports: &mut [upoll::Event]) -> io::Result<usize> {
        Set::<EventFd>::wait(&self.0, reports)
    }

    fn harvest(&self, reports: &mut [upoll::Event]) -> io::Result<usize> {
        let _global = global();
        Set::<EventFd>::harvest(&self.0, reports)
    }

    fn data(report: &upoll::Event) -> u64 {
        report.data()
    }
}
