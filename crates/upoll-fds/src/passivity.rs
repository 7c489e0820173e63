//! The state of a set with an fd: passive while the kernel serves the set, and the way from there to active.
//!
//! # The named pairs
//! - A thread that waits in a passive set records that it is blocked on the set, then checks whether the set stays passive.
//!   A thread that makes the set active counts itself, then reads these records.
//! - A member of a passive set is counted, then the thread checks whether the set stays passive. A thread that makes
//!   the set active counts itself, then checks the count.
//!
//! So all that can fail comes before the change of the state. If it fails the set stays passive.

use crate::sync::{AtomicUsize, Ordering, Rule, broken};

const PASSIVE: usize = 0;
const ACTIVE: usize = 1;
/// The set has been demoted.
const STALE: usize = 2;

/// The sleeps of a wait, or of an ADD, that stays away from a passive set because another thread tries to make it active
/// without an fd for it.
#[cfg(not(upoll_loom))]
#[derive(Default)]
pub(crate) struct StayAway {
    milliseconds: usize,
}

#[cfg(not(upoll_loom))]
impl StayAway {
    /// A signal handler, or a fork, may have left the other thread's call for good.
    const MOST: usize = 1000;

    /// Sleeps for a millisecond.
    ///
    /// # Errors
    /// `error`: it was called too often.
    pub(crate) fn or<E>(&mut self, error: E) -> Result<(), E> {
        self.milliseconds += 1;
        if self.milliseconds == Self::MOST {
            return Err(error);
        }
        upoll_sys::backoff::nap();
        Ok(())
    }
}

/// The state of a set with an fd.
#[derive(Debug)]
pub(crate) struct Passivity {
    state: AtomicUsize,
    /// Threads that are about to make it active. Meanwhile no wait and no ADD begins in the kernel set.
    activating: AtomicUsize,
    /// An upper bound for the members of the kernel set while the set is passive. Members that
    /// were closed are not subtracted.
    members: AtomicUsize,
}

impl Passivity {
    pub(crate) fn passive() -> Self {
        Self::new(PASSIVE, 0)
    }

    pub(crate) fn active(members: usize) -> Self {
        Self::new(ACTIVE, members)
    }

    fn new(state: usize, members: usize) -> Self {
        Passivity {
            state: AtomicUsize::new(state),
            activating: AtomicUsize::new(0),
            members: AtomicUsize::new(members),
        }
    }

    #[inline]
    pub(crate) fn is_passive(&self) -> bool {
        self.state.load(Ordering::SeqCst) == PASSIVE
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.state.load(Ordering::SeqCst) == STALE
    }

    /// Returns whether the set is passive, and no thread is about to make it active.
    #[inline]
    pub(crate) fn stays_passive(&self) -> bool {
        // In this order: a thread that has made it active meanwhile is counted no more.
        self.activating.load(Ordering::SeqCst) == 0 && self.is_passive()
    }

    pub(crate) fn members(&self) -> usize {
        self.members.load(Ordering::SeqCst)
    }

    /// Makes the set active after `prepare`, and returns what that returns; None if it is not passive any more. From `prepare`
    /// on no thread begins a wait or adds a member in the kernel set.
    pub(crate) fn activate<T, E>(
        &self,
        prepare: impl FnOnce() -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        let _activating = Activating::begin(&self.activating);
        let prepared = prepare()?;
        let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
        let changed = self
            .state
            .compare_exchange(PASSIVE, ACTIVE, success, failure);
        Ok(changed.is_ok().then_some(prepared))
    }

    /// Adds a member to the kernel set by `add`. None if the set does not stay passive.
    pub(crate) fn add<E>(&self, add: impl FnOnce() -> Result<(), E>) -> Option<Result<(), E>> {
        self.members.fetch_add(1, Ordering::SeqCst);
        let added = self.stays_passive().then(add);
        if !matches!(added, Some(Ok(()))) {
            self.members.fetch_sub(1, Ordering::SeqCst);
        }
        added
    }

    pub(crate) fn deleted(&self) {
        self.members.fetch_sub(1, Ordering::SeqCst);
    }

    pub(crate) fn demoted(&self) {
        self.state.store(STALE, Ordering::SeqCst);
    }
}

/// A thread that is about to make a set active.
struct Activating<'a>(&'a AtomicUsize);

impl<'a> Activating<'a> {
    fn begin(threads: &'a AtomicUsize) -> Self {
        if !broken(Rule::CountActivations) {
            threads.fetch_add(1, Ordering::SeqCst);
        }
        Activating(threads)
    }
}

impl Drop for Activating<'_> {
    fn drop(&mut self) {
        if !broken(Rule::CountActivations) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
