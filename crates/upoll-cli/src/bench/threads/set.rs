//! The calls of a set and its eventfds, by the host kernel and by builds of upoll.

use std::cell::Cell;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::Result;
use serde::Serialize;

use crate::bench::kernel::{self, Fd};

/// How often locks were taken, and shared.
#[derive(Clone, Copy, Default, Serialize)]
pub(in crate::bench) struct Locks {
    pub(super) taken: u64,
    pub(super) shared: u64,
    pub(super) contended: u64,
    pub(super) waited_nanoseconds: u64,
}

/// A set. Its calls panic where they fail.
pub(in crate::bench) trait Set: Sized + Send + Sync {
    /// An eventfd, whose calls do not block.
    type File: Send + Sync;

    fn open() -> Result<Self>;
    fn file() -> Result<Self::File>;
    fn add(&self, file: &Self::File, events: i32, data: u64);
    fn modify(&self, file: &Self::File, events: i32, data: u64);
    /// Passes on the data of up to `ROOM` events that are ready now. Returns their number.
    fn wait<const ROOM: usize>(&self, each: impl FnMut(u64)) -> usize;
    fn write(file: &Self::File);
    /// Returns whether there was something to read.
    fn read(file: &Self::File) -> bool;
    /// Returns how the calling thread took locks so far, if they are counted.
    fn locks() -> Option<Locks> {
        None
    }
}

impl Set for Fd {
    type File = Fd;

    fn open() -> Result<Self> {
        Ok(Fd::epoll()?)
    }

    fn file() -> Result<Fd> {
        Ok(Fd::eventfd_with(0, libc::EFD_NONBLOCK)?)
    }

    fn add(&self, file: &Fd, events: i32, data: u64) {
        Fd::add(self, file, events, data).expect("ADD");
    }

    fn modify(&self, file: &Fd, events: i32, data: u64) {
        Fd::modify(self, file, events, data).expect("MOD");
    }

    fn wait<const ROOM: usize>(&self, mut each: impl FnMut(u64)) -> usize {
        let mut reports = [kernel::IDLE; ROOM];
        let count = Fd::wait(self, &mut reports, 0).expect("wait");
        reports[..count].iter().for_each(|event| each(event.u64));
        count
    }

    fn write(file: &Fd) {
        file.write_count(1).expect("write");
    }

    fn read(file: &Fd) -> bool {
        file.read_count().is_ok()
    }
}

macro_rules! set_of {
    ($library:ident, $locks:expr) => {
        impl Set for $library::Epoll {
            type File = $library::EventFd;

            fn open() -> Result<Self> {
                Ok($library::Epoll::new()?)
            }

            fn file() -> Result<Self::File> {
                Ok($library::EventFd::new(0)?)
            }

            fn add(&self, file: &Self::File, events: i32, data: u64) {
                let events = $library::Events::from_bits_retain(events.cast_unsigned());
                $library::Epoll::add(self, file, $library::Event::new(events, data)).expect("ADD");
            }

            fn modify(&self, file: &Self::File, events: i32, data: u64) {
                let events = $library::Events::from_bits_retain(events.cast_unsigned());
                $library::Epoll::modify(self, file, $library::Event::new(events, data))
                    .expect("MOD");
            }

            fn wait<const ROOM: usize>(&self, mut each: impl FnMut(u64)) -> usize {
                let mut reports = [$library::Event::default(); ROOM];
                let count = $library::Epoll::wait(self, &mut reports, $library::Timeout::NOW)
                    .expect("wait");
                reports[..count].iter().for_each(|event| each(event.data()));
                count
            }

            fn write(file: &Self::File) {
                file.try_write(1).expect("write");
            }

            fn read(file: &Self::File) -> bool {
                file.try_read().is_ok()
            }

            fn locks() -> Option<Locks> {
                $locks
            }
        }
    };
}

set_of!(upoll, None);
set_of!(upoll_counted, {
    let counts = upoll_counted::LockCounts::of_this_thread();
    Some(Locks {
        taken: counts.taken,
        shared: counts.shared,
        contended: counts.contended,
        waited_nanoseconds: counts.waited_nanoseconds,
    })
});

/// upoll with one lock for all sets: each call on a set, and on a file in it, takes it.
pub(in crate::bench) struct Global(upoll::Epoll);

/// A file of such a set; always `Some` until it is dropped.
pub(in crate::bench) struct GlobalFile(Option<upoll::EventFd>);

/// The last holder, by the address of its counts; 0 if none.
static GLOBAL: Mutex<usize> = Mutex::new(0);

thread_local! {
    /// How this thread took the global lock.
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

impl GlobalFile {
    fn get(&self) -> &upoll::EventFd {
        self.0.as_ref().expect("the file is open")
    }
}

impl Drop for GlobalFile {
    fn drop(&mut self) {
        let _global = global();
        self.0 = None;
    }
}

impl Set for Global {
    type File = GlobalFile;

    fn open() -> Result<Self> {
        Ok(Global(Set::open()?))
    }

    fn file() -> Result<GlobalFile> {
        Ok(GlobalFile(Some(upoll::Epoll::file()?)))
    }

    fn add(&self, file: &GlobalFile, events: i32, data: u64) {
        let _global = global();
        Set::add(&self.0, file.get(), events, data);
    }

    fn modify(&self, file: &GlobalFile, events: i32, data: u64) {
        let _global = global();
        Set::modify(&self.0, file.get(), events, data);
    }

    fn wait<const ROOM: usize>(&self, each: impl FnMut(u64)) -> usize {
        let _global = global();
        Set::wait::<ROOM>(&self.0, each)
    }

    fn write(file: &GlobalFile) {
        let _global = global();
        upoll::Epoll::write(file.get());
    }

    fn read(file: &GlobalFile) -> bool {
        let _global = global();
        upoll::Epoll::read(file.get())
    }

    fn locks() -> Option<Locks> {
        Some(GLOBAL_COUNTS.get())
    }
}
