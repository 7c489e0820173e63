//! Whether any fd may be user-level, in two loads: calls of a program without such fds ask nothing else. And whether an
//! fd was copied during a pass over the table.

use crate::sync::{AtomicUsize, Ordering, Rule, broken, global, wait_until};

global! {
    /// How often an fd has become user-level: counted before the table has it, and once more when it does.
    static ADDED: AtomicUsize = AtomicUsize::new(0);
}

global! {
    /// How many copies of user-level fds were made.
    static COPIES: AtomicUsize = AtomicUsize::new(0);
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
        COPIES.load(Ordering::SeqCst) == self.0 || broken(Rule::LookForCopies)
    }
}

/// Runs `pass` over the slots of the table until it returns false and no fd was copied meanwhile. Other threads can copy
/// fds all the time, so a pass that returns false is the last one after a second.
pub(crate) fn repeat_passes<E>(mut pass: impl FnMut() -> Result<bool, E>) -> Result<(), E> {
    let mut result = Ok(());
    wait_until(|| {
        loop {
            let copies = Copies::now();
            match pass() {
                Ok(true) => {}
                Ok(false) => return copies.are_all(),
                Err(error) => {
                    result = Err(error);
                    return true;
                }
            }
        }
    });
    result
}
