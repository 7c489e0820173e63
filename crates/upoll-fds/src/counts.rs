//! Finds out whether any fd may be user-level, in two loads: calls of a program without such fds ask nothing else.
//! Also finds out whether an fd was copied during a pass over the table, which can keep further copies from beginning.

use crate::signals::Blocked;
use crate::sync::{AtomicUsize, Backoff, Ordering, Rule, broken, global};

global! {
    /// The number of times that an fd has become user-level. Each is counted before the table has the fd, and once
    /// more when it does.
    static ADDED: AtomicUsize = AtomicUsize::new(0);
}

global! {
    /// The number of copies of user-level fds that were made.
    static COPIES: AtomicUsize = AtomicUsize::new(0);
}

global! {
    /// The number of threads that keep copies of user-level fds from beginning.
    static WITHOUT_COPIES: AtomicUsize = AtomicUsize::new(0);
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

/// Returns whether no fd is user-level, which `is_any` finds out by a pass over the table. If so, [`has_any`] is
/// false from now on.
///
/// An fd that the table gets meanwhile is either seen or counted after the count was read.
pub(crate) fn is_none_left(is_any: impl FnOnce() -> bool) -> bool {
    let added = ADDED.load(Ordering::SeqCst);
    let copies = Copies::now();
    if is_any() || !copies.are_all() {
        return false;
    }
    NONE_AT.store(added, Ordering::SeqCst);
    !has_any()
}

/// Counts the copy of a user-level fd, while its slot keeps it from being closed.
pub(crate) fn note_copy() {
    COPIES.fetch_add(1, Ordering::SeqCst);
}

/// The copies that were made before a pass over the slots of the table. If an fd was copied during the pass, the pass may
/// have missed an object: the copy is behind it, and the fd was closed before it came there.
struct Copies(usize);

impl Copies {
    fn now() -> Self {
        Copies(COPIES.load(Ordering::SeqCst))
    }

    fn are_all(&self) -> bool {
        COPIES.load(Ordering::SeqCst) == self.0 || broken(Rule::CheckForCopies)
    }
}

/// Keeps copies of user-level fds from beginning, until this is dropped. Copies that have begun go on. Signals are held
/// back: a handler that copies an fd would wait for the code under it.
struct WithoutCopies {
    _blocked: Blocked,
}

impl WithoutCopies {
    fn begin() -> Self {
        let without_copies = WithoutCopies {
            _blocked: Blocked::all(),
        };
        WITHOUT_COPIES.fetch_add(1, Ordering::SeqCst);
        without_copies
    }
}

impl Drop for WithoutCopies {
    fn drop(&mut self) {
        WITHOUT_COPIES.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns whether a copy of a user-level fd may begin now.
pub(crate) fn may_copy() -> bool {
    WITHOUT_COPIES.load(Ordering::SeqCst) == 0 || broken(Rule::PassWithoutCopies)
}

/// Waits until a copy may begin. The caller must neither keep nor change an fd: passes wait for that.
#[cold]
pub(crate) fn wait_to_copy() {
    let mut backoff = Backoff::new();
    while !may_copy() {
        backoff.wait();
    }
}

/// Runs `pass` over the slots of the table until it returns false and no fd was copied meanwhile. Once an fd was, no
/// further copy begins: each other thread causes one more pass at most.
pub(crate) fn repeat_passes<E>(mut pass: impl FnMut() -> Result<bool, E>) -> Result<(), E> {
    let mut without_copies = None;
    loop {
        let copies = Copies::now();
        let is_any = pass()?;
        if !copies.are_all() {
            without_copies.get_or_insert_with(WithoutCopies::begin);
        } else if !is_any {
            return Ok(());
        }
    }
}

/// Resets the state in the child of a fork: no pass is under way here.
#[cfg(not(upoll_loom))]
pub(crate) fn forget_other_threads() {
    if !may_copy() {
        WITHOUT_COPIES.store(0, Ordering::Relaxed);
    }
}
