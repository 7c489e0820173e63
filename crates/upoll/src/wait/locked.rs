//! A queue's lock, and wakes that cannot wait for it.
//!
//! A signal handler may wake a queue whose lock its own thread holds, or a queue whose lock another
//! thread holds that waits for one of this thread's. So a wake that does not get the lock leaves its
//! key in `missed`, and whoever holds the lock wakes in its stead after letting go of it. That the
//! holder is the thread itself is known at once; for another one a wake waits so long that only a
//! holder that does not get on is left to do it later.
//!
//! What a wake that is made up for puts off waits until all locks are free, as with any wake: whoever
//! may hold other locks, or wakes the queue as part of another wake, lets go of the lock with the
//! [`Deferred`] of its outermost caller ([`Locked::let_go`]).
//!
//! # The named pair
//! A wake writes `missed`, has all threads pass a barrier, then tries for the lock once more. The
//! holder lets go of the lock, then reads `missed`. One of the two sees the other.

use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};

use super::{Deferred, List, WaitQueue};
use crate::sync::MutexGuard;
#[cfg(any(feature = "std", loom))]
use crate::sync::{Rule, broken};

/// Holds a queue's lock.
pub(super) struct Locked<'a> {
    #[cfg_attr(
        not(any(feature = "std", loom)),
        expect(dead_code, reason = "needs std")
    )]
    queue: &'a WaitQueue,
    list: ManuallyDrop<MutexGuard<'a, List>>,
}

impl Deref for Locked<'_> {
    type Target = List;

    #[inline]
    fn deref(&self) -> &List {
        &self.list
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut List {
        &mut self.list
    }
}

impl Locked<'_> {
    /// Lets go of the lock. What a wake that did not get it puts off goes into `deferred`.
    #[inline]
    pub(super) fn let_go(self, deferred: &mut Deferred) {
        let mut locked = ManuallyDrop::new(self);
        // SAFETY: done once, here: `locked` is not dropped.
        unsafe { ManuallyDrop::drop(&mut locked.list) };
        #[cfg(any(feature = "std", loom))]
        if broken(Rule::LeaveTasksToTheOutermost) {
            locked.queue.catch_up_alone();
        } else {
            locked.queue.catch_up(deferred);
        }
        #[cfg(not(any(feature = "std", loom)))]
        let _ = deferred;
    }
}

/// For who holds no other lock, and for panics on the way.
impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: done once, here.
        unsafe { ManuallyDrop::drop(&mut self.list) };
        #[cfg(any(feature = "std", loom))]
        self.queue.catch_up_alone();
    }
}

impl WaitQueue {
    #[inline]
    pub(super) fn lock(&self) -> Locked<'_> {
        Locked {
            queue: self,
            list: ManuallyDrop::new(self.list.lock()),
        }
    }
}

#[cfg(not(any(feature = "std", loom)))]
impl WaitQueue {
    /// The lock, for a wake; here no signal handler wakes.
    pub(super) fn lock_to_wake(&self, _: Kind, _: &mut super::Wake<'_>) -> Option<Locked<'_>> {
        Some(self.lock())
    }
}

/// What kind of wake it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    Rotating {
        notes_last: bool,
    },
    /// It only asks.
    Question,
}

#[cfg(any(feature = "std", loom))]
mod missed {
    use super::super::{Deferred, Mode, WaitQueue, Wake};
    use super::{Kind, Locked, ManuallyDrop};
    use crate::events::Events;
    use crate::sync::{Ordering, Rule, barrier, broken, compiler_fence, is_held_by_this_thread};

    /// Something was missed. The bits below are those of the key, as far as it has no others; else the
    /// key is empty, which means "look for yourself".
    const MISSED: u16 = 1 << 15;
    const ROTATING: u16 = 1 << 14;
    const NOTES_LAST: u16 = 1 << 12;
    const KEY: u16 = !(MISSED | ROTATING | NOTES_LAST);

    /// How often a wake tries for the lock at once, how often it lets others run in between, and how
    /// often it sleeps in between, before it leaves its work to whoever holds it. A holder that was
    /// only interrupted gets on long before: until it does, what the wake is about is not on any
    /// ready list.
    #[cfg(not(loom))]
    const SPINS: u32 = 100;
    #[cfg(not(loom))]
    const YIELDS: u32 = 16;
    #[cfg(not(loom))]
    const SLEEPS: u32 = 1000;
    #[cfg(not(loom))]
    const SLEEP: core::time::Duration = core::time::Duration::from_millis(1);

    #[cfg(not(loom))]
    fn pause() {
        std::thread::sleep(SLEEP);
    }
    #[cfg(loom)]
    use loom::thread::yield_now as pause;

    impl WaitQueue {
        /// The lock, for a wake. None if the wake was left to whoever holds it.
        #[inline]
        pub(in super::super) fn lock_to_wake(
            &self,
            kind: Kind,
            wake: &mut Wake<'_>,
        ) -> Option<Locked<'_>> {
            match self.try_lock() {
                Some(list) => Some(list),
                None => self.lock_or_leave(kind, wake),
            }
        }

        #[inline]
        fn try_lock(&self) -> Option<Locked<'_>> {
            self.list.try_lock().map(|list| Locked {
                queue: self,
                list: ManuallyDrop::new(list),
            })
        }

        /// The lock, once its holder has let go of it. None if it may never do so.
        #[cfg(not(loom))]
        fn lock_in_time(&self) -> Option<Locked<'_>> {
            for round in 0..SPINS + YIELDS + SLEEPS {
                if is_held_by_this_thread(&self.list) {
                    break;
                }
                if round < SPINS {
                    core::hint::spin_loop();
                } else if round < SPINS + YIELDS {
                    std::thread::yield_now();
                } else {
                    pause();
                }
                if let Some(list) = self.try_lock() {
                    return Some(list);
                }
            }
            None
        }

        /// The same: every holder gets on in a model, if it is not said to be this thread.
        #[cfg(loom)]
        fn lock_in_time(&self) -> Option<Locked<'_>> {
            (!is_held_by_this_thread(&self.list)).then(|| self.lock())
        }

        #[cold]
        fn lock_or_leave(&self, kind: Kind, wake: &mut Wake<'_>) -> Option<Locked<'_>> {
            if let Some(list) = self.lock_in_time() {
                return Some(list);
            }
            let kind = match kind {
                Kind::Plain => 0,
                Kind::Rotating { notes_last: false } => ROTATING,
                Kind::Rotating { notes_last: true } => ROTATING | NOTES_LAST,
                Kind::Question => return None,
            };
            let key = u16::try_from(wake.key.bits())
                .ok()
                .filter(|key| key & !KEY == 0);
            // An empty key is not to be lost among others that are not.
            let key = key.filter(|&key| key != 0).unwrap_or(KEY);
            self.missed.fetch_or(MISSED | kind | key, Ordering::SeqCst);
            // Whoever holds the lock and has not let go of it by now will see it.
            if !broken(Rule::BarrierAfterMarking) && !barrier() {
                // The kernel refuses. What another thread has done shows by itself before long.
                pause();
            }
            // The holder may have let go before it could see it: whoever has the lock from now on will.
            if !broken(Rule::TryAgainAfterMarking)
                && let Some(list) = self.try_lock()
            {
                list.let_go(wake.deferred);
            }
            None
        }

        /// Makes the wakes that did not get the lock; it is free now.
        #[inline]
        pub(super) fn catch_up(&self, deferred: &mut Deferred) {
            if self.has_missed() {
                self.wake_missed(deferred);
            }
        }

        /// The same for who holds no other lock.
        #[inline]
        pub(super) fn catch_up_alone(&self) {
            if self.has_missed() {
                self.wake_missed_alone();
            }
        }

        #[inline]
        fn has_missed(&self) -> bool {
            compiler_fence(Ordering::SeqCst);
            self.missed.load(Ordering::Relaxed) != 0 && !broken(Rule::LookAfterFreeing)
        }

        #[cold]
        fn wake_missed_alone(&self) {
            self.wake_missed(&mut Deferred::new());
        }

        #[cold]
        fn wake_missed(&self, deferred: &mut Deferred) {
            let missed = self.missed.swap(0, Ordering::SeqCst);
            if missed & MISSED == 0 {
                return;
            }
            let key = match missed & KEY {
                KEY => Events::empty(),
                key => Events::from_bits_retain(key.into()),
            };
            let mut wake = Wake {
                key,
                mode: Mode::Tell,
                deferred,
            };
            if missed & ROTATING == 0 {
                self.wake_within(&mut wake);
            } else {
                self.wake_in_turn(&mut wake, missed & NOTES_LAST != 0);
            }
        }
    }
}
