//! The memory that the processes of one run share: who looks after sleeping workers, and statistics.
//!
//! A process that finds no shared file, or may not open it, has such memory of its own, which its children
//! share by `fork`.

use std::cell::Cell;
use std::ffi::CStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use upoll_fair_state::{Group, SHORT, State, Worker};
use upoll_sys::shared_file::{self, Identity};

use crate::raw::{self, kernel};

/// The memory, and the file that it is of.
static SHARED: OnceLock<(&State, Option<Identity>)> = OnceLock::new();

pub(crate) fn get() -> Option<&'static State> {
    SHARED.get().map(|(state, _)| *state)
}

/// Maps the shared file, or memory of this process if there is none. Called once, by the constructor.
pub(crate) fn map(path: Option<&CStr>) {
    let size = size_of::<State>();
    let file = path.and_then(|path| shared_file::map(path, size).ok());
    let memory = file.map_or_else(|| shared_file::anonymous(size), |file| Ok(file.memory));
    if let Ok(memory) = memory {
        // SAFETY: this is memory of that size, which stays mapped. A state consists of atomics, and zeros are one.
        let state = unsafe { memory.cast::<State>().as_ref() };
        let _ = SHARED.set((state, file.map(|file| file.identity)));
        let (root, order) = (&state.root, Ordering::Relaxed);
        let _ = root.compare_exchange(0, process(), order, order);
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
    /// The thread's counters, once it has looked for them; none beyond the last place.
    static WORKER: Cell<Option<Option<&'static Worker>>> = const { Cell::new(None) };
    /// The thread was woken and has not accepted since.
    static WOKEN: Cell<bool> = const { Cell::new(false) };
}

/// Makes the only thread of a new process a worker of its own.
pub(crate) fn after_fork() {
    WORKER.set(None);
    WOKEN.set(false);
}

fn worker() -> Option<&'static Worker> {
    WORKER.get().unwrap_or_else(|| {
        let thread = u32::try_from(kernel!(SYS_gettid)).unwrap_or(0);
        let worker = get().and_then(|shared| shared.worker(process(), thread));
        WORKER.set(Some(worker));
        worker
    })
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
    if let (Some(path), Some((_, Some(file)))) = (path, SHARED.get()) {
        file.unlink(path);
    }
}
