//! Atomics, fences and thread-local state for the protocols of [`slot`](crate::slot),
//! [`hazard_records`](crate::hazard_records) and [`change`](crate::change). Under the loom model checker (`--cfg upoll_loom`)
//! this module substitutes loom's.

#[cfg(all(not(upoll_loom), not(upoll_jitter)))]
use std::sync::atomic as atomics;
#[cfg(all(not(upoll_loom), upoll_jitter))]
use upoll_sys::jitter as atomics;

#[cfg(not(upoll_loom))]
pub(crate) use self::atomics::{
    AtomicBool, AtomicPtr, AtomicUsize, Ordering, compiler_fence, fence,
};

#[cfg(not(upoll_loom))]
pub(crate) use upoll_sys::backoff::{Backoff, wait_until};

#[cfg(upoll_loom)]
pub(crate) use crate::sequenced::{
    AtomicBool, AtomicPtr, AtomicUsize, Ordering, compiler_fence, fence,
};

#[cfg(upoll_loom)]
pub(crate) struct Backoff;

#[cfg(upoll_loom)]
impl Backoff {
    pub(crate) fn new() -> Self {
        Backoff
    }

    pub(crate) fn wait(&mut self) {
        loom::thread::yield_now();
    }
}

/// In a model for ever: it is to show that nobody relies on the end.
#[cfg(upoll_loom)]
pub(crate) fn wait_until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        loom::thread::yield_now();
    }
}

#[cfg(upoll_loom)]
type Handler = Box<dyn FnOnce()>;

#[cfg(upoll_loom)]
std::thread_local! {
    /// The number of points that the thread passes before its handler runs, and the handler.
    static HANDLER: std::cell::Cell<Option<(usize, Handler)>> = const { std::cell::Cell::new(None) };
}

/// Arranges for one run of `handler`, at the [`signal_point`] after `points` of them.
#[cfg(upoll_loom)]
pub(crate) fn handle_signal(points: usize, handler: impl FnOnce() + 'static) {
    HANDLER.set(Some((points, Box::new(handler))));
}

/// A moment at which a model may run a signal handler of the thread.
#[cfg(upoll_loom)]
pub(crate) fn signal_point() {
    match HANDLER.take() {
        Some((0, handler)) => handler(),
        Some((points, handler)) => HANDLER.set(Some((points - 1, handler))),
        None => {}
    }
}

#[cfg(not(upoll_loom))]
#[inline(always)]
pub(crate) const fn signal_point() {}

/// A static that each run of a model has anew.
macro_rules! global {
    ($(#[$doc:meta])* static $name:ident: $kind:ty = $value:expr;) => {
        $(#[$doc])*
        #[cfg(not(upoll_loom))]
        static $name: $kind = $value;
        #[cfg(upoll_loom)]
        loom::lazy_static! {
            $(#[$doc])*
            static ref $name: $kind = $value;
        }
    };
}
pub(crate) use global;

/// A static that each thread has of its own, and each thread of each run of a model anew.
macro_rules! of_each_thread {
    ($(#[$doc:meta])* static $name:ident: $kind:ty = $value:expr;) => {
        #[cfg(not(upoll_loom))]
        std::thread_local! {
            $(#[$doc])*
            static $name: $kind = const { $value };
        }
        #[cfg(upoll_loom)]
        loom::thread_local! {
            $(#[$doc])*
            static $name: $kind = $value;
        }
    };
}
pub(crate) use of_each_thread;

/// The rules of this crate's protocols: see [`breakable`](upoll::breakable).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A thread that reads the records has the others pass a barrier first.
    #[cfg(upoll_loom)]
    BarrierBeforeReading,
    /// The kernel has such barriers. Without them each look-up runs a fence, and no model may fail.
    #[cfg(upoll_loom)]
    KernelHasBarriers,
    /// A look-up that has written its record checks the slot once more.
    Recheck,
    /// A thread that empties a slot waits for the calls that use its entry.
    WaitUntilUnused,
    /// A look-up that finds an fd being changed waits for the end of the change.
    WaitWhileChanging,
    /// A call that ends lets go of what was closed meanwhile, if nobody waited for it.
    LetGoWhenAsked,
    /// A close that leaves an entry to a call that uses it checks once more whether the call still
    /// does.
    RecheckAfterAsking,
    /// A thread takes a record in one step.
    TakeInOneStep,
    /// The end of a change is told from the end of another one.
    OwnTag,
    /// A change is counted, then checks whether a fork is under way.
    CountThenCheck,
    /// A fork publishes that it is under way, then checks the count of changes.
    PublishThenCheck,
    /// A pass over the table that finds nothing is repeated if an fd was copied meanwhile.
    CheckForCopies,
    /// Passes that an fd was copied in are repeated without further copies.
    PassWithoutCopies,
    /// A demotion that holds one fd of a set holds all of them.
    HoldAllOfASet,
    /// A demotion asks once more whether a set is meant, when no call uses it any more.
    AskAgain,
    /// A demotion asks once for all fds of a set.
    AskOnce,
    /// A demotion of a set counts its owners.
    CountOwners,
    /// A fork waits for the changes that have begun.
    WaitForChanges,
    /// A fork that waited for a change sees its effects.
    ChangeBeforeFork,
    /// A change that waited for a fork comes after what the fork has read.
    ForkBeforeChange,
    /// At the end of one fork another one is still under way.
    CountForks,
    /// A change that is not to begin is counted no more.
    CountNoMoreWhenRefused,
    /// A change within another one begins also while a fork waits for that.
    ChangeWithinAChange,
    /// A thread that forks makes changes in the midst of that.
    ChangeWithinAFork,
    /// A fork in the midst of a change of the same thread does not wait for that.
    ForkWithinAChange,
    /// A call on a plain set waits for the end of its takeover.
    OutlastTake,
    /// A takeover claims the set, then checks whether it has members and is copied.
    ClaimThenCheck,
    /// A thread that makes a set notes its generation, then checks whether a fork is under way.
    NoteThenCheck,
    /// Of two generations in which sets are made the newer one stays noted.
    NoteTheNewest,
    /// A thread that makes a set active is counted before it checks for threads that wait in the kernel set.
    CountActivations,
}

upoll::breakable!(Rule);
