//! Changes of fds, and forks, which take place while no change is under way.
//!
//! While an fd is being opened, closed or copied, its meaning in the kernel and in the table differs. So
//! a fork waits for the changes that have begun ([`Change`]), and no change begins until the fork is
//! done. An object that is made meanwhile is the kernel's from the start; other changes wait. All waits
//! are limited, because each side may hold a lock that the other side's fork handlers need.
//!
//! A thread that makes a change can begin further changes within it, and fork in a signal handler. A
//! thread that forks can make changes in the program's fork handlers. Objects that it makes there are
//! the kernel's, too.
//!
//! # Signal handlers
//! A handler may interrupt a thread between the count and the note that the thread makes of itself. So a count of
//! one change names its thread ([`own_part`]). A thread's note that it forks covers the time in which the thread
//! is counted among the forks.
//!
//! The named pair: a change counts itself, then checks whether a fork is under way; a fork announces itself,
//! then reads the count.

use std::cell::Cell;
use std::ptr;

#[cfg(upoll_loom)]
use crate::sync::global;
use crate::sync::{AtomicUsize, Ordering, Rule, broken, of_each_thread, signal_point, wait_until};

/// Forks that are under way.
#[cfg(not(upoll_loom))]
static FORKS: Word = Word(0);

/// Threads that are changing what fds mean.
#[cfg(not(upoll_loom))]
static CHANGES: Word = Word(1);

#[cfg(upoll_loom)]
global! {
    /// Forks that are under way.
    static FORKS: AtomicUsize = AtomicUsize::new(0);
}

#[cfg(upoll_loom)]
global! {
    /// Threads that are changing what fds mean.
    static CHANGES: AtomicUsize = AtomicUsize::new(0);
}

#[cfg(not(upoll_loom))]
use self::words::Word;

#[cfg(not(upoll_loom))]
mod words {
    use std::ops::Deref;
    use std::ptr;

    use crate::sync::{AtomicPtr, AtomicUsize, Ordering};

    type Words = [AtomicUsize; upoll::internal::WIPED_WORDS];

    /// The words, in memory that the child of a fork finds wiped. A fork writes them before and after, and each
    /// write to other memory would cost the parent a page fault, and the child a copy of the page. Null: nobody has
    /// asked yet.
    static WORDS: AtomicPtr<Words> = AtomicPtr::new(ptr::null_mut());

    /// If the kernel has no such memory.
    static COPIED: Words = [const { AtomicUsize::new(0) }; upoll::internal::WIPED_WORDS];

    /// A word, by its index.
    pub(super) struct Word(pub(super) usize);

    impl Deref for Word {
        type Target = AtomicUsize;

        #[inline]
        fn deref(&self) -> &AtomicUsize {
            // SAFETY: null, or set by `find` to words that are never unmapped.
            let words = unsafe { WORDS.load(Ordering::Acquire).as_ref() };
            &words.unwrap_or_else(find)[self.0]
        }
    }

    impl Word {
        /// Stores `value` in the child of a fork, which has no other thread. Writes nothing if the word is wiped
        /// and is to be zero.
        pub(super) fn set_in_the_child(&self, value: usize) {
            let is_copied = ptr::eq(WORDS.load(Ordering::Relaxed), &raw const COPIED);
            if value != 0 || is_copied {
                self.store(value, Ordering::SeqCst);
            }
        }
    }

    /// Finds the words once and for all: another thread may be counted in them already.
    #[cold]
    fn find() -> &'static Words {
        let found = ptr::from_ref(upoll::internal::wiped_words().unwrap_or(&COPIED)).cast_mut();
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let chosen = WORDS
            .compare_exchange(ptr::null_mut(), found, success, failure)
            .map_or_else(|there| there, |_| found);
        // SAFETY: a reference, or what another thread has stored here for one. The words are never unmapped.
        unsafe { &*chosen }
    }
}

of_each_thread! {
    /// Changes within one another that this thread is in the midst of.
    static DEPTH: Cell<usize> = Cell::new(0);
}

of_each_thread! {
    /// Forks within one another that this thread is in the midst of: a signal handler may fork, too.
    static FORKING: Cell<usize> = Cell::new(0);
}

/// While this exists no fork takes place, unless it is in a signal handler of this very thread.
pub(crate) struct Change;

impl Change {
    /// None while a fork is under way, of this very thread as well.
    pub(crate) fn try_begin() -> Option<Self> {
        match FORKING.with(Cell::get) {
            0 => Self::begin_unless_others_fork(),
            _ => None,
        }
    }

    fn begin_unless_others_fork() -> Option<Self> {
        let depth = DEPTH.with(Cell::get);
        if depth == 0 || broken(Rule::ChangeWithinAChange) {
            CHANGES.fetch_add(own_part(), order(Rule::CountThenCheck));
            signal_point();
            let is_forking = FORKING.with(Cell::get) > 0 && !broken(Rule::ChangeWithinAFork);
            if FORKS.load(Ordering::SeqCst) != 0 && !is_forking {
                if !broken(Rule::CountNoMoreWhenRefused) {
                    count_no_more(&CHANGES, own_part(), Ordering::SeqCst);
                }
                return None;
            }
        }
        DEPTH.with(|own| own.set(depth + 1));
        Some(Change)
    }

    pub(crate) fn begin() -> Self {
        Self::begin_unless_others_fork().unwrap_or_else(Self::begin_later)
    }

    #[cold]
    fn begin_later() -> Self {
        let mut begun = None;
        wait_until(|| {
            begun = Self::begin_unless_others_fork();
            begun.is_some()
        });
        begun.unwrap_or_else(|| {
            let depth = DEPTH.with(Cell::get);
            if depth == 0 {
                CHANGES.fetch_add(own_part(), Ordering::SeqCst);
            }
            DEPTH.with(|own| own.set(depth + 1));
            Change
        })
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        let depth = DEPTH.with(Cell::get) - 1;
        DEPTH.with(|own| own.set(depth));
        signal_point();
        if depth == 0 {
            count_no_more(&CHANGES, own_part(), order(Rule::ChangeBeforeFork));
        }
    }
}

/// The bits of [`CHANGES`] that have the number of threads.
const COUNT: usize = (1 << 19) - 1;

/// Takes `part`, which is one thread's, from a count, unless that is zero: a signal handler may have forked just
/// before, or before the thread had noted that it is counted, and the child does not know of it.
fn count_no_more(count: &AtomicUsize, part: usize, order: Ordering) {
    let less = |count: usize| (count & COUNT != 0).then(|| count.wrapping_sub(part));
    let _ = count.fetch_update(order, Ordering::Relaxed, less);
}

/// Returns the amount that a change of this thread adds to [`CHANGES`]: one, and in the higher bits an address that
/// no other live thread has. Addresses have 48 bits at most, and this one is a multiple of eight.
fn own_part() -> usize {
    DEPTH.with(|own| (ptr::from_ref(own).addr() << 16) + 1)
}

/// Waits, though not for ever, until no other thread is in the midst of a change. None begins until
/// [`end_fork`]. Changes within the one that this thread is in the midst of count as one with it.
pub(crate) fn begin_fork() {
    // First: a change in a handler that comes between these two would wait for this fork.
    FORKING.with(|own| own.set(own.get() + 1));
    signal_point();
    FORKS.fetch_add(1, order(Rule::PublishThenCheck));
    let own = match broken(Rule::ForkWithinAChange) {
        true => 0,
        false => own_part(),
    };
    let is_own = |changes| changes & COUNT == 0 || changes == own;
    wait_until(|| is_own(CHANGES.load(Ordering::SeqCst)) || broken(Rule::WaitForChanges));
}

/// In the parent.
pub(crate) fn end_fork() {
    match broken(Rule::CountForks) {
        true => FORKS.store(0, Ordering::SeqCst),
        false => count_no_more(&FORKS, 1, order(Rule::ForkBeforeChange)),
    }
    signal_point();
    FORKING.with(|own| own.set(own.get() - 1));
}

/// In the child: what other threads were doing is not under way here.
pub(crate) fn end_fork_in_the_child() {
    let forking = FORKING.with(Cell::get) - 1;
    set_in_the_child(&FORKS, forking);
    FORKING.with(|own| own.set(forking));
    let is_changing = DEPTH.with(Cell::get) > 0;
    set_in_the_child(&CHANGES, if is_changing { own_part() } else { 0 });
}

#[cfg(not(upoll_loom))]
fn set_in_the_child(count: &Word, value: usize) {
    count.set_in_the_child(value);
}

/// The model's child has its parent's memory.
#[cfg(upoll_loom)]
fn set_in_the_child(count: &AtomicUsize, value: usize) {
    count.store(value, Ordering::SeqCst);
}

/// Returns whether a fork is under way.
pub(crate) fn is_fork_under_way() -> bool {
    FORKS.load(Ordering::SeqCst) != 0
}

/// Returns the ordering of the step that `rule` is about.
fn order(rule: Rule) -> Ordering {
    match broken(rule) {
        true => Ordering::Relaxed,
        false => Ordering::SeqCst,
    }
}
