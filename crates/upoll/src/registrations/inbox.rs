//! Marks: the kept entries that woke since the last poll, and the sleeper to wake at once.

use alloc::vec::Vec;
use core::ptr::NonNull;

use crate::errno::Errno;
use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering, compiler_fence};
use crate::wait::Deferred;

/// The place where wakeups leave their marks.
pub(crate) struct Inbox {
    /// There are marks. A call that finds none takes no lock. A call that comes after a wakeup, in
    /// any order that can be observed, finds its mark. Written under the lock.
    pub(super) is_marked: AtomicBool,
    /// A wake in a signal handler has found the lock held by the code that it has interrupted. Any entry may have woken. The
    /// named pair: the wake sets this and `untold`, makes all threads pass a barrier, then tries the lock. A thread that has
    /// held the lock frees it, then checks: the one that polls checks this, and one that wakes checks `untold`.
    missed: AtomicBool,
    /// The sleeper does not know of such a wake.
    untold: AtomicBool,
    /// A sleeper is attached: for a signal handler that cannot lock `arrivals`. Written under the lock.
    has_sleeper: AtomicBool,
    pub(super) arrivals: Mutex<Arrivals>,
}

pub(super) struct Arrivals {
    /// Entries that woke since marks were last taken away, each once.
    pub(super) slots: Vec<u32>,
    /// A bit for each slot: it is in `slots`.
    marks: Vec<u64>,
    sleeper: Option<Sleeper>,
}

/// The sleeper that a mark wakes at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sleeper {
    /// Called with `whom` under the inbox's lock.
    pub(crate) wake_thread: unsafe fn(whom: NonNull<()>, &mut Deferred),
    pub(crate) whom: NonNull<()>,
}

impl Arrivals {
    fn wake_sleeper(&self, deferred: &mut Deferred) {
        if let Some(Sleeper { wake_thread, whom }) = self.sleeper {
            // SAFETY: attached, and the lock is held, which a detach takes.
            unsafe { wake_thread(whom, deferred) };
        }
    }
}

// SAFETY: any thread may wake the sleeper that `whom` leads to (`Inbox::attach`'s contract).
unsafe impl Send for Sleeper {}

impl Inbox {
    pub(super) fn new() -> Self {
        Inbox {
            is_marked: AtomicBool::new(false),
            missed: AtomicBool::new(false),
            untold: AtomicBool::new(false),
            has_sleeper: AtomicBool::new(false),
            arrivals: Mutex::new(Arrivals {
                slots: Vec::new(),
                marks: Vec::new(),
                sleeper: None,
            }),
        }
    }

    /// From now on a mark wakes `sleeper`. Poll afterwards.
    ///
    /// # Safety
    /// Any thread may wake `sleeper` until it is detached.
    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) unsafe fn attach(&self, sleeper: Sleeper) {
        self.set_sleeper(Some(sleeper));
    }

    /// From now on a mark wakes no sleeper.
    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) fn detach(&self) {
        self.set_sleeper(None);
    }

    #[cfg(any(feature = "std", upoll_loom))]
    fn set_sleeper(&self, sleeper: Option<Sleeper>) {
        let mut arrivals = self.arrivals.lock();
        arrivals.sleeper = sleeper;
        self.has_sleeper.store(sleeper.is_some(), Ordering::Relaxed);
    }

    /// Locks the marks for a wake. None in a signal handler that has interrupted a holder: that one learns of it.
    fn lock_to_wake(&self) -> Option<MutexGuard<'_, Arrivals>> {
        #[cfg(all(feature = "std", not(upoll_loom)))]
        if crate::sync::is_held_by_this_thread(&self.arrivals) {
            self.missed.store(true, Ordering::SeqCst);
            self.untold.store(true, Ordering::SeqCst);
            crate::sync::barrier();
            return self.arrivals.try_lock();
        }
        Some(self.arrivals.lock())
    }

    /// Takes away that a wake was missed while the lock was held, which the caller has just freed. All entries count as marked
    /// then.
    pub(super) fn take_missed(&self) -> bool {
        compiler_fence(Ordering::SeqCst);
        self.missed.load(Ordering::Relaxed) && self.missed.swap(false, Ordering::SeqCst)
    }

    /// Returns whether marks wake a thread at once.
    pub(super) fn is_awaited(&self) -> bool {
        match self.lock_to_wake() {
            Some(arrivals) => arrivals.sleeper.is_some(),
            None => self.has_sleeper.load(Ordering::Relaxed),
        }
    }

    pub(super) fn mark(&self, slot: u32, wakes: bool, deferred: &mut Deferred) {
        let Some(mut arrivals) = self.lock_to_wake() else {
            return;
        };
        let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
        if arrivals.marks[word] & bit == 0 {
            arrivals.marks[word] |= bit;
            // There is room for as many as there are slots.
            arrivals.slots.push(slot);
            self.is_marked.store(true, Ordering::Relaxed);
        }
        if wakes {
            arrivals.wake_sleeper(deferred);
        }
        drop(arrivals);
        compiler_fence(Ordering::SeqCst);
        while self.untold.load(Ordering::Relaxed) {
            self.untold.store(false, Ordering::SeqCst);
            self.arrivals.lock().wake_sleeper(deferred);
            compiler_fence(Ordering::SeqCst);
        }
    }

    pub(super) fn forget_marks(&self, arrivals: &mut Arrivals) {
        self.is_marked.store(false, Ordering::Relaxed);
        while let Some(slot) = arrivals.slots.pop() {
            arrivals.marks[slot as usize / 64] &= !(1 << (slot % 64));
        }
    }

    /// Makes room for the marks of `slots` slots.
    pub(super) fn reserve(&self, slots: usize) -> Result<(), Errno> {
        let mut arrivals = self.arrivals.lock();
        let words = slots.div_ceil(64);
        let more = words.saturating_sub(arrivals.marks.len());
        arrivals.marks.try_reserve(more).map_err(|_| Errno::NOMEM)?;
        let kept = arrivals.slots.len();
        arrivals
            .slots
            .try_reserve(slots - kept)
            .map_err(|_| Errno::NOMEM)?;
        let words = words.max(arrivals.marks.len());
        arrivals.marks.resize(words, 0);
        Ok(())
    }
}

#[cfg(all(test, feature = "std", not(upoll_loom)))]
mod tests {
    use super::*;

    /// As a wake in a signal handler that has interrupted a look.
    #[test]
    fn a_wake_that_has_interrupted_a_holder_leaves_word() {
        let inbox = Inbox::new();
        inbox.reserve(64).expect("there is memory");
        let mut deferred = Deferred::new();
        inbox.mark(1, true, &mut deferred);
        assert!(!inbox.take_missed());
        let held = inbox.arrivals.lock();
        assert!(!inbox.is_awaited());
        inbox.mark(2, true, &mut deferred);
        assert_eq!(held.slots, [1]);
        drop(held);
        assert!(inbox.take_missed());
        assert!(!inbox.take_missed());
    }

    #[test]
    fn a_wake_that_has_interrupted_a_holder_finds_out_whether_a_thread_sleeps() {
        let inbox = Inbox::new();
        let sleeper = Sleeper {
            wake_thread: |_, _| {},
            whom: NonNull::dangling(),
        };
        // SAFETY: the call wakes nobody.
        unsafe { inbox.attach(sleeper) };
        let held = inbox.arrivals.lock();
        assert!(inbox.is_awaited());
        drop(held);
        inbox.detach();
        let _held = inbox.arrivals.lock();
        assert!(!inbox.is_awaited());
    }
}
