//! Atomics, cells and locks: the one place they come from, so that the same source runs under
//! the loom model checker (`--cfg upoll_loom`).
//!
//! Three builds differ here and nowhere else. With `std` a lock sleeps when contended (`lock`),
//! and without it a lock spins (`spin`). Under loom the locks are loom's, and `lock` is the
//! subject of a model of its own.
mod breakable;
#[cfg(all(upoll_count_locks, not(upoll_loom)))]
mod counted;
#[cfg(any(feature = "std", upoll_loom))]
mod lock;
#[cfg(upoll_loom)]
pub mod sequenced;
#[cfg(all(feature = "std", not(upoll_loom)))]
mod stretches;
#[cfg(upoll_loom)]
use self::sequenced as atomics;
#[cfg(all(not(upoll_loom), not(all(upoll_jitter, feature = "std"))))]
use core::sync::atomic as atomics;
#[cfg(all(not(upoll_loom), upoll_jitter, feature = "std"))]
use upoll_sys::jitter as atomics;

#[cfg(all(feature = "std", not(upoll_loom)))]
pub use self::atomics::AtomicI32;
#[cfg(not(upoll_loom))]
pub use self::atomics::compiler_fence;
#[cfg(upoll_loom)]
pub use self::sequenced::{AtomicI32, Ordering, compiler_fence};
#[cfg(not(upoll_loom))]
pub use core::sync::atomic::Ordering;

pub use self::atomics::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence};

#[cfg(all(upoll_count_locks, not(upoll_loom)))]
pub use self::counted::LockCounts;
#[cfg(all(feature = "std", not(upoll_loom)))]
pub use self::lock::{
    Mutex, MutexGuard, barrier, barrier_or_nap, is_held_by_this_thread, prepare, this_thread,
};
#[cfg(all(feature = "std", not(upoll_loom)))]
pub use self::stretches::lock_held;
#[cfg(all(not(feature = "std"), not(upoll_loom)))]
pub use spin::{Mutex, MutexGuard};
#[cfg(all(feature = "std", not(upoll_loom)))]
pub use upoll_sys::backoff::{Backoff, nap};

#[cfg(upoll_loom)]
pub use self::lock::Lock;
#[cfg(upoll_loom)]
pub use self::lock::{barrier_or_nap, this_thread};
#[cfg(upoll_loom)]
pub use self::model::{Backoff, Mutex, OnceBox, is_held_by_this_thread, nap};
#[cfg(upoll_loom)]
pub use loom::sync::MutexGuard;
#[cfg(not(upoll_loom))]
pub use once_cell::race::OnceBox;

#[cfg(upoll_loom)]
pub use loom::cell::UnsafeCell;

#[cfg(not(upoll_loom))]
pub use self::plain::UnsafeCell;

#[cfg(not(upoll_loom))]
mod plain {
    /// `core`'s cell behind loom's interface.
    #[derive(Debug)]
    #[repr(transparent)]
    pub struct UnsafeCell<T: ?Sized>(core::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub const fn new(value: T) -> Self {
            UnsafeCell(core::cell::UnsafeCell::new(value))
        }

        #[inline(always)]
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        #[inline(always)]
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

/// Thread-local variables, with a constant for the first value.
#[cfg(any(feature = "std", upoll_loom))]
#[doc(hidden)]
#[macro_export]
macro_rules! thread_locals {
    ($($(#[$attribute:meta])* static $name:ident: $of:ty = const { $first:expr };)+) => {
        #[cfg(not(upoll_loom))]
        std::thread_local! {
            $($(#[$attribute])* static $name: $of = const { $first };)+
        }
        #[cfg(upoll_loom)]
        loom::thread_local! {
            $($(#[$attribute])* static $name: $of = $first;)+
        }
    };
}
#[cfg(any(feature = "std", upoll_loom))]
pub use crate::thread_locals;

/// Statics, which each run of a model has anew.
#[doc(hidden)]
#[macro_export]
macro_rules! statics {
    ($($(#[$attribute:meta])* static $name:ident: $of:ty = $first:expr;)+) => {
        $(
            #[cfg(not(upoll_loom))]
            $(#[$attribute])*
            static $name: $of = $first;
        )+
        #[cfg(upoll_loom)]
        loom::lazy_static! {
            $($(#[$attribute])* static ref $name: $of = $first;)+
        }
    };
}
pub use crate::statics;

#[cfg(upoll_loom)]
mod model {
    use core::ptr;

    use super::{AtomicPtr, Ordering};

    /// Counts waits, each of which lets other threads go on.
    #[derive(Default)]
    pub struct Backoff(u32);

    /// A sleep of a moment.
    pub fn nap() {
        loom::thread::yield_now();
    }

    impl Backoff {
        pub fn new() -> Self {
            Backoff(0)
        }

        pub fn waits(&self) -> u32 {
            self.0
        }

        pub fn wait(&mut self) {
            self.0 += 1;
            loom::thread::yield_now();
        }
    }

    /// `once_cell`'s cell, with its orderings.
    #[derive(Debug)]
    pub struct OnceBox<T>(AtomicPtr<T>);

    impl<T> Default for OnceBox<T> {
        fn default() -> Self {
            Self::new()
        }
    }

    impl<T> OnceBox<T> {
        pub fn new() -> Self {
            OnceBox(AtomicPtr::new(ptr::null_mut()))
        }

        pub fn get(&self) -> Option<&T> {
            // SAFETY: null, or from `Box::into_raw` below and freed by the drop.
            unsafe { self.0.load(Ordering::Acquire).as_ref() }
        }

        pub fn get_or_try_init<E>(
            &self,
            make: impl FnOnce() -> Result<Box<T>, E>,
        ) -> Result<&T, E> {
            if let Some(there) = self.get() {
                return Ok(there);
            }
            let made = Box::into_raw(make()?);
            let set = self.0.compare_exchange(
                ptr::null_mut(),
                made,
                Ordering::Release,
                Ordering::Acquire,
            );
            let there = match set {
                Ok(_) => made,
                Err(there) => {
                    // SAFETY: made above, and nobody else knows it.
                    drop(unsafe { Box::from_raw(made) });
                    there
                }
            };
            // SAFETY: as in `get`.
            Ok(unsafe { &*there })
        }
    }

    impl<T> Drop for OnceBox<T> {
        fn drop(&mut self) {
            let there = self.0.load(Ordering::Acquire);
            if !there.is_null() {
                // SAFETY: from `Box::into_raw`, and nobody borrows it any more.
                drop(unsafe { Box::from_raw(there) });
            }
        }
    }

    /// Models have no signal handlers.
    pub fn is_held_by_this_thread<T>(_: &Mutex<T>) -> bool {
        false
    }

    /// loom's lock behind `parking_lot`'s interface: no poison.
    #[derive(Debug)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }

        pub fn try_lock(&self) -> Option<loom::sync::MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }
}

/// A full fence after a `SeqCst` read-modify-write. Earlier writes are visible to threads that read
/// later, and later reads are not done before it, whatever the reads' own ordering.
#[inline(always)]
pub fn fence_after_rmw() {
    // On x86-64 a locked instruction is a full fence by itself; only the compiler needs one.
    #[cfg(all(target_arch = "x86_64", not(upoll_loom)))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(any(not(target_arch = "x86_64"), upoll_loom))]
    fence(Ordering::SeqCst);
}

/// The rules of this crate's protocols: see [`breakable`](crate::breakable).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A waiter that has registered polls once more before it sleeps.
    LookAfterRegistering,
    /// A scan that finds an item idle polls once more after taking it off the ready list.
    RepollAfterUnqueue,
    /// A waiter that leaves forwards a wakeup that it took and did not use.
    ForwardWhenLeaving,
    /// The close of a file holds on to a set while it takes the file's item out of it.
    RecheckUnderSetLock,
    /// A worker that comes back to a source still ready forwards the turn.
    ForwardTurn,
    /// A thread that sleeps for a lock makes the other threads pass a barrier first.
    #[cfg(any(feature = "std", upoll_loom))]
    BarrierBeforeSleep,
    /// A thread that takes a lock after it has slept for it marks that others may sleep.
    #[cfg(any(feature = "std", upoll_loom))]
    MarkAfterSleep,
    /// A worker that finds nothing settles a claim that it does not see, too: a wake under way makes it.
    SettleUnseenClaims,
    /// A wakeup that stays pending after a worker's last poll is not dropped.
    OweWhatCameAfterTheLook,
    /// A worker that was meant for two events forwards the second one.
    ForwardSecondEvent,
    /// A wake that has left its mark at a lock that is held tries for the lock once more.
    #[cfg(any(feature = "std", upoll_loom))]
    TryAgainAfterMarking,
    /// A wake that has left its mark at a lock that is held makes the other threads pass a barrier first.
    #[cfg(any(feature = "std", upoll_loom))]
    BarrierAfterMarking,
    /// The holder of a queue's lock that has released it checks for marks.
    #[cfg(any(feature = "std", upoll_loom))]
    LookAfterReleasing,
    /// A worker that takes its item off the ready list clears its recheck flag.
    ClearRecheck,
    /// A poll of a poll context takes the marks of wakeups away before it polls the objects.
    TakeMarksThenLook,
    /// An eventfd's count moves behind the lock in one step, so that a write under way notices.
    MoveCountInOneStep,
    /// A change of a shared eventfd is announced before it is made.
    #[cfg(any(feature = "std", upoll_loom))]
    TellBeforeChanging,
    /// A thread that finds a shared eventfd's lock left by a dead owner marks that threads may
    /// wait.
    #[cfg(any(feature = "std", upoll_loom))]
    MarkForTheDead,
    /// A thread that has slept for a shared counter's lock takes it with the mark that others may sleep.
    #[cfg(any(feature = "std", upoll_loom))]
    HandOnWaiters,
    /// The owner of a shared counter's lock has it pending until it has woken the waiters.
    #[cfg(any(feature = "std", upoll_loom))]
    PendingUntilWoken,
    /// A listener of a shared eventfd arms the notifier, then reads the number of changes.
    #[cfg(any(feature = "std", upoll_loom))]
    ArmThenCount,
    /// A poll from above arms the notifiers whose events a set below has taken.
    #[cfg(any(feature = "std", upoll_loom))]
    HearFromAbove,
    /// A process that notices that it is a new one is counted, then marks that it has noticed.
    #[cfg(any(feature = "std", upoll_loom))]
    CountThenMark,
    /// Tasks of a wake within another call wait until the locks of that call are free.
    #[cfg(any(feature = "std", upoll_loom))]
    LeaveTasksToTheOutermost,
    /// A callback that is woken while it runs is called once more.
    CallAgain,
    /// The drop of a watch waits for a call of its callback that is under way.
    WaitForCallbacks,
    /// A thread has places for the wakers of tasks. Without them each task is left in the list, and no model may fail.
    HaveCells,
    /// A task that leaves forwards a wakeup that chose it.
    ForwardWhenATaskLeaves,
    /// While a scan looks at the one item that was ready, others do not find the set idle.
    LoneScanIsPending,
    /// A timer whose time comes before all others wakes a thread that sleeps for longer.
    TellSooner,
    /// A harvest marks the readiness fd before it begins, so that an event which it misses rings.
    #[cfg(any(feature = "std", upoll_loom))]
    MarkThenHarvest,
    /// An event after a harvest takes the last ring of the readiness fd away, so that the next is an edge.
    #[cfg(any(feature = "std", upoll_loom))]
    TakeAwayBeforeRingingAgain,
}

crate::breakable!(Rule);
