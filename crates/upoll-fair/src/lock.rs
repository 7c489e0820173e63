//! The lock of the table of sets, and the process that it is about.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use upoll_sys::backoff::Backoff;

use crate::raw;
use crate::shared;

static LOCK: AtomicBool = AtomicBool::new(false);
/// The process whose fds the table is about. A child of `vfork` has the same memory, and fds of its own.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// The right to change the table. The program's signals are blocked as long as it lives, so that no handler finds the lock
/// held by its own thread.
pub(crate) struct Locked {
    /// The mask that held before.
    pub(crate) signals: u64,
}

/// Blocks the program's signals and locks the table. Returns `None` in a child by `vfork` or a raw `clone`: the table is its
/// parent's, of which a thread may have held the lock.
pub(crate) fn lock() -> Option<Locked> {
    if !is_owner() {
        return None;
    }
    let signals = raw::set_mask(raw::PROGRAMS);
    let mut backoff = Backoff::new();
    while LOCK.swap(true, Ordering::Acquire) {
        backoff.wait();
    }
    Some(Locked { signals })
}

impl Locked {
    /// Unlocks the table for a nap, and leaves the signals blocked, but for those that are ignored or are in `before`, the
    /// mask that held before the sleep. The program may have begun or ceased to ignore a signal since the last nap.
    pub(crate) fn unlock_for_nap(self, before: u64) {
        std::mem::forget(self);
        LOCK.store(false, Ordering::Release);
        raw::let_ignored_signals_pass(before);
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        LOCK.store(false, Ordering::Release);
        raw::set_mask(self.signals);
    }
}

/// Takes the calling process for the one that the table is about: at its start, and in the child of a `fork`. A thread of the
/// parent may have had it locked.
pub(crate) fn start() {
    LOCK.store(false, Ordering::Relaxed);
    OWNER.store(shared::process(), Ordering::Relaxed);
}

/// Returns whether the calling process has the fds that the table is about.
pub(crate) fn is_owner() -> bool {
    OWNER.load(Ordering::Relaxed) == shared::process()
}
