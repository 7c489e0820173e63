//! Whether any fd may be user-level, in two loads: calls of a program without such fds ask nothing else.

use crate::sync::{AtomicUsize, Ordering, global};

global! {
    /// How often an fd has become user-level: counted before the table has it, and once more when it does.
    static ADDED: AtomicUsize = AtomicUsize::new(0);
}

global! {
    /// The count at which no fd was user-level.
    static NONE_AT: AtomicUsize = AtomicUsize::new(0);
}

/// Returns whether an fd may be user-level. Where this is false, none is that the calling thread can know of.
#[inline]
pub fn has_any() -> bool {
    ADDED.load(Ordering::Relaxed) != NONE_AT.load(Ordering::Relaxed)
}

/// Runs `add`, which puts fds into the table.
pub(crate) fn while_adding<R>(add: impl FnOnce() -> R) -> R {
    // A fork in a signal handler from here on looks for the fd.
    ADDED.fetch_add(1, Ordering::SeqCst);
    let added = add();
    // A thread that looks for fds may have read the count after the first and the table before `add`.
    ADDED.fetch_add(1, Ordering::SeqCst);
    added
}

/// Returns whether no fd is user-level, which `is_any` finds out by a look at the table. If so, [`has_any`] is
/// false from now on.
///
/// An fd that the table gets meanwhile is either seen or counted after the count was read. So is the copy of one
/// that leaves the table meanwhile. But a `dup2` whose source a third thread closes may be missed until `dup2` has
/// counted the copy for the second time, before it returns.
pub(crate) fn is_none_left(is_any: impl FnOnce() -> bool) -> bool {
    let added = ADDED.load(Ordering::SeqCst);
    if is_any() {
        return false;
    }
    NONE_AT.store(added, Ordering::SeqCst);
    !has_any()
}
