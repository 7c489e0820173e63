//! The memory that the processes of one run share: who looks after sleeping workers, and statistics.
//!
//! A process that finds no shared file, or may not open it, has such memory of its own, which its children
//! share by `fork`.

use std::cell::Cell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::raw::kernel;

const WORKERS: usize = 1024;
const GROUPS: usize = 64;
/// How many workers of a group nap shortly. If one of them is the worker that does not accept, the other one
/// notices.
const GUARDS: usize = 2;
/// A group is active for this long after a wakeup.
const ACTIVE: u64 = 1_000_000_000;
/// How long a guard of an active group sleeps at a time.
const SHORT: u64 = 20_000_000;
/// How long a guard of an idle group sleeps at a time.
const IDLE: u64 = 100_000_000;
/// How long any other worker sleeps at a time. It then becomes a guard if there are too few.
const LONG: u64 = 1_000_000_000;

/// The layout of the shared file. All zeros is the initial state.
#[repr(C)]
pub(crate) struct Shared {
    /// The process that `upoll run` became: the one that prints statistics for all and removes the file.
    pub(crate) root: AtomicU32,
    groups: [Group; GROUPS],
    pub(crate) workers: [Worker; WORKERS],
}

/// Workers that wait for the same listening sockets.
#[repr(C)]
pub(crate) struct Group {
    /// The sum of the sockets' cookies; 0: free.
    key: AtomicU64,
    /// The time until which a guard sleeps at the longest; 0 if there is none.
    guards: [AtomicU64; GUARDS],
    /// When a worker was last woken for one of the sockets.
    last_wakeup: AtomicU64,
    /// How many workers sleep. A killed worker stays in the count.
    sleeping: AtomicU32,
}

/// Counts of one thread.
#[repr(C)]
pub(crate) struct Worker {
    /// The process ID above the thread ID; 0: free.
    pub(crate) id: AtomicU64,
    pub(crate) wakeups: AtomicU64,
    pub(crate) empty: AtomicU64,
    pub(crate) accepts: AtomicU64,
    pub(crate) rotations: AtomicU64,
    pub(crate) rescues: AtomicU64,
}

static SHARED: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());

pub(crate) fn get() -> Option<&'static Shared> {
    // SAFETY: `map` stored a mapping of this size, which is never unmapped, and of which atomics alone are used.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }
}

/// Maps the shared file, or memory of this process if there is none. Called once, by the constructor.
pub(crate) fn map(path: Option<&CStr>) {
    let size = size_of::<Shared>();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let mut mapped = -1;
    if let Some(path) = path {
        let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        let file = kernel!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags);
        if file >= 0 {
            // Beyond the end of a shorter file there is no memory.
            if kernel!(SYS_lseek, file, 0, libc::SEEK_END) >= size.cast_signed() {
                mapped = kernel!(SYS_mmap, 0, size, protection, libc::MAP_SHARED, file, 0);
            }
            kernel!(SYS_close, file);
        }
    }
    if mapped < 0 {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        mapped = kernel!(SYS_mmap, 0, size, protection, flags, usize::MAX, 0);
    }
    if mapped < 0 {
        return;
    }
    SHARED.store(
        std::ptr::with_exposed_provenance_mut(mapped.cast_unsigned()),
        Ordering::Release,
    );
    if let Some(shared) = get() {
        let _ = shared
            .root
            .compare_exchange(0, process(), Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "process IDs are positive ints"
)]
pub(crate) fn process() -> u32 {
    kernel!(SYS_getpid) as u32
}

impl Group {
    /// Returns the group of a key; `None` if there is no place for it.
    pub(crate) fn of(key: u64) -> Option<&'static Group> {
        let shared = get()?;
        let key = key.max(1);
        shared.groups.iter().find(|group| {
            let found = group.key.load(Ordering::Relaxed);
            found == key
                || found == 0
                    && match group.key.compare_exchange(
                        0,
                        key,
                        Ordering::Relaxed,
                        Ordering::Relaxed,
                    ) {
                        Ok(_) => true,
                        Err(other) => other == key,
                    }
        })
    }

    /// Returns how long the calling worker is to sleep at a time, and as which guard.
    pub(crate) fn nap(group: Option<&Group>, now: u64) -> (u64, Option<usize>) {
        let Some(group) = group else {
            return (SHORT, None);
        };
        let since = now.saturating_sub(group.last_wakeup.load(Ordering::Relaxed));
        let nap = if since > ACTIVE { IDLE } else { SHORT };
        let place = group.guards.iter().position(|guard| {
            let until = guard.load(Ordering::Relaxed);
            // A guard that is late by more than this was killed or stopped.
            until.saturating_add(SHORT) < now
                && guard
                    .compare_exchange(until, now + nap, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
        });
        (if place.is_some() { nap } else { LONG }, place)
    }

    pub(crate) fn leave(group: Option<&Group>, place: Option<usize>) {
        if let (Some(group), Some(place)) = (group, place) {
            group.guards[place].store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn sleeping(&self) -> u32 {
        self.sleeping.load(Ordering::Relaxed)
    }

    pub(crate) fn fall_asleep(&self) {
        self.sleeping.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn awake(&self) {
        self.sleeping.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn woken(&self, now: u64) {
        self.last_wakeup.store(now, Ordering::Relaxed);
    }
}

std::thread_local! {
    /// The thread's entry in `Shared::workers`, plus one.
    static ENTRY: Cell<usize> = const { Cell::new(0) };
    /// The thread was woken and has not accepted since.
    static WOKEN: Cell<bool> = const { Cell::new(false) };
}

/// Makes the only thread of a new process a worker of its own.
pub(crate) fn after_fork() {
    ENTRY.set(0);
    WOKEN.set(false);
}

fn worker() -> Option<&'static Worker> {
    let shared = get()?;
    let known = ENTRY.get();
    if known != 0 {
        return shared.workers.get(known - 1);
    }
    let id = u64::from(process()) << 32 | kernel!(SYS_gettid).cast_unsigned() as u64;
    let place = shared.workers.iter().position(|worker| {
        worker.id.load(Ordering::Relaxed) == 0
            && worker
                .id
                .compare_exchange(0, id, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    });
    // Beyond the last entry: not counted.
    ENTRY.set(place.unwrap_or(WORKERS) + 1);
    shared.workers.get(ENTRY.get() - 1)
}

fn count(counter: impl Fn(&Worker) -> &AtomicU64) {
    if let Some(worker) = worker() {
        counter(worker).fetch_add(1, Ordering::Relaxed);
    }
}

pub(crate) fn count_wakeup() {
    WOKEN.set(true);
    count(|worker| &worker.wakeups);
}

pub(crate) fn count_rotation() {
    count(|worker| &worker.rotations);
}

pub(crate) fn count_rescue() {
    count(|worker| &worker.rescues);
}

/// Counts a call of `accept` that returned a connection, or found none.
pub(crate) fn count_accept(found: bool) {
    if found {
        WOKEN.set(false);
        count(|worker| &worker.accepts);
    } else if WOKEN.replace(false) {
        count(|worker| &worker.empty);
    }
}

/// Returns whether this process is the root of the run.
pub(crate) fn is_root() -> bool {
    get().is_some_and(|shared| shared.root.load(Ordering::Relaxed) == process())
}

/// Removes the name of the shared file. Processes that have mapped it keep it.
pub(crate) fn remove(path: Option<&CStr>) {
    if let Some(path) = path {
        kernel!(SYS_unlinkat, libc::AT_FDCWD, path.as_ptr(), 0);
    }
}
