//! The lock of the tables of sets and sleeping threads, and the process that they are about.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use upoll_sys::backoff::Backoff;

use crate::raw;
use crate::shared;

static LOCK: AtomicBool = AtomicBool::new(false);
/// The process whose fds the tables are about. A child of `vfork` has the same memory, and fds of its own.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// The right to change the tables. The program's signals are blocked as long as it lives, so that no handler finds the lock
/// held by its own thread.
pub(crate) struct Locked {
    signals: u64,
}

/// Blocks the program's signals and locks the tables.
pub(crate) fn lock() -> Locked {
    let signals = raw::block_signals();
    let mut backoff = Backoff::new();
    while LOCK.swap(true, Ordering::Acquire) {
        backoff.wait();
    }
    Locked { signals }
}

impl Locked {
    /// Unlocks the tables and leaves the signals blocked, but for ignored ones. Returns the mask to restore.
    pub(crate) fn unlock_blocked(self) -> u64 {
        let signals = self.signals;
        self.unlock_for_nap(signals);
        signals
    }

    /// Unlocks the tables for a further nap of a sleep that began with the mask `before`: the program may have begun or ceased
    /// to ignore a signal.
    pub(crate) fn unlock_for_nap(self, before: u64) {
        self.keep();
        LOCK.store(false, Ordering::Release);
        raw::let_ignored_signals_pass(before);
    }

    /// Leaves the tables locked, for `unlock`. Returns the mask to restore.
    pub(crate) fn keep(self) -> u64 {
        let signals = self.signals;
        std::mem::forget(self);
        signals
    }
}

/// Unlocks tables that `keep` left locked.
pub(crate) fn unlock(signals: u64) {
    drop(Locked { signals });
}

impl Drop for Locked {
    fn drop(&mut self) {
        LOCK.store(false, Ordering::Release);
        raw::restore_signals(self.signals);
    }
}

/// Takes the calling process for the one that the tables are about: at its start, and in the child of a `fork`. A thread of the
/// parent may have had them locked.
pub(crate) fn start() {
    LOCK.store(false, Ordering::Relaxed);
    OWNER.store(shared::process(), Ordering::Relaxed);
}

/// Returns the process that has the fds that the tables are about.
pub(crate) fn owner() -> u32 {
    OWNER.load(Ordering::Relaxed)
}

/// Returns whether the calling process has the fds that the tables are about.
pub(crate) fn is_owner() -> bool {
    owner() == shared::process()
}
