//! The memory that the processes of one run share: who looks after sleeping workers, and statistics.
//!
//! A process that finds no shared file, or may not open it, has such memory of its own, which its children
//! share by `fork`.

use std::cell::Cell;
use std::ffi::CStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

pub(crate) use upoll_fair_state::{Group, SHORT, State, Worker};
use upoll_sys::shared_file::{self, Identity};

use crate::raw::{self, kernel};

static SHARED: AtomicPtr<State> = AtomicPtr::new(std::ptr::null_mut());
/// The shared file, if it is mapped.
static FILE: OnceLock<Identity> = OnceLock::new();

pub(crate) fn get() -> Option<&'static State> {
    // SAFETY: `map` stored a mapping of this size, which is never unmapped, and of which atomics alone are used.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }
}

/// Maps the shared file, or memory of this process if there is none. Called once, by the constructor.
pub(crate) fn map(path: Option<&CStr>) {
    let size = size_of::<State>();
    let shared = path.and_then(|path| shared_file::map(path, size).ok());
    let place = match shared {
        Some(shared) => {
            let _ = FILE.set(shared.identity);
            shared.memory.as_ptr().cast()
        }
        None => {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
            let mapped = kernel!(SYS_mmap, 0, size, protection, flags, usize::MAX, 0);
            if mapped < 0 {
                return;
            }
            std::ptr::with_exposed_provenance_mut(mapped.cast_unsigned())
        }
    };
    SHARED.store(place, Ordering::Release);
    if let Some(shared) = get() {
        let _ = shared
            .root
            .compare_exchange(0, process(), Ordering::Relaxed, Ordering::Relaxed);
    }
}

pub(crate) fn process() -> u32 {
    u32::try_from(kernel!(SYS_getpid)).unwrap_or(0)
}

/// Returns the group of a key; `None` if there is no place for it.
pub(crate) fn group(key: u64) -> Option<&'static Group> {
    get()?.group(key, raw::now)
}

std::thread_local! {
    /// The thread's entry in the list of workers, plus one.
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
        return shared.worker(known - 1);
    }
    // Beyond the last place: not counted.
    let thread = u32::try_from(kernel!(SYS_gettid)).unwrap_or(0);
    ENTRY.set(shared.take_place(process(), thread) + 1);
    shared.worker(ENTRY.get() - 1)
}

/// Counts something that the calling thread did.
pub(crate) fn count(counter: impl Fn(&Worker) -> &AtomicU64) {
    if let Some(worker) = worker() {
        counter(worker).fetch_add(1, Ordering::Relaxed);
    }
}

pub(crate) fn count_wakeup() {
    WOKEN.set(true);
    count(|worker| &worker.wakeups);
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

/// Removes the name of the shared file, if it is mapped. Processes that have mapped it keep it.
pub(crate) fn unlink(path: Option<&CStr>) {
    if let (Some(path), Some(file)) = (path, FILE.get()) {
        file.unlink(path);
    }
}
