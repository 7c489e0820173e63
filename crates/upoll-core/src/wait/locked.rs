//! A queue's lock, and wakes that find it held.
//!
//! A wakeup never waits for a queue's lock. The lock may be held by the code that the wakeup's
//! signal handler has interrupted, or by a thread that itself wakes one of the queues that this
//! wakeup holds. The wakeup stores its key in `missed` and continues. The holder delivers it after
//! it has released the lock.
//!
//! # The named pair
//! A wakeup writes `missed`, makes all threads pass a barrier, then tries to take the lock once more. The holder
//! releases the lock, then reads `missed`. A holder that reads before the barrier has released the lock, and the
//! wakeup finds that. Else the holder finds the key. So a holder pays for no order, and a wakeup pays only if the
//! lock was held for long.

use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};

use super::{Inside, WaitQueue};
use crate::sync::MutexGuard;
use crate::tally::Tally;

/// A queue whose lock is held, and what the lock guards. Wakes are delivered by its methods.
pub(super) struct Held<'a> {
    pub(super) queue: &'a WaitQueue,
    pub(super) inside: MutexGuard<'a, Inside>,
}

/// Holds a queue's lock.
pub(super) struct Locked<'a>(ManuallyDrop<Held<'a>>);

impl<'a> Deref for Locked<'a> {
    type Target = Held<'a>;

    #[inline]
    fn deref(&self) -> &Held<'a> {
        &self.0
    }
}

impl<'a> DerefMut for Locked<'a> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Held<'a> {
        &mut self.0
    }
}

impl Drop for Locked<'_> {
    /// Releases the lock, and delivers the wakes that found it held.
    #[inline]
    fn drop(&mut self) {
        #[cfg(any(feature = "std", upoll_loom))]
        let queue = self.0.queue;
        // SAFETY: done once, as no other place does it, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.0) };
        #[cfg(any(feature = "std", upoll_loom))]
        queue.deliver_missed();
    }
}

impl WaitQueue {
    #[inline]
    pub(super) fn lock(&self) -> Locked<'_> {
        #[cfg(not(upoll_loom))]
        if let Some(locked) = self.try_lock() {
            return locked;
        }
        self.tally.count(Tally::contended);
        self.locked(self.inside.lock())
    }

    /// Runs `change` while no wake calls an entry of this queue.
    #[doc(hidden)]
    pub fn without_wakes<T>(&self, change: impl FnOnce() -> T) -> T {
        let _locked = self.lock();
        change()
    }

    #[inline]
    fn try_lock(&self) -> Option<Locked<'_>> {
        self.inside.try_lock().map(|inside| self.locked(inside))
    }

    #[inline]
    fn locked<'a>(&'a self, inside: MutexGuard<'a, Inside>) -> Locked<'a> {
        Locked(ManuallyDrop::new(Held {
            queue: self,
            inside,
        }))
    }
}

/// Without `std` no signal handler wakes, so that a wake may wait for the lock.
#[cfg(not(any(feature = "std", upoll_loom)))]
impl WaitQueue {
    pub(super) fn lock_to_wake(&self, _: Kind, wake: &mut super::Wake<'_>) -> Option<Locked<'_>> {
        wake.deferred.may_enter(self).then(|| self.lock())
    }
}

/// The kind of a wakeup.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    /// It calls every exclusive entry.
    All,
    /// The queue's policy chooses the entries. It gave the number, 1 to 3. Several such wakes may be delivered as one, with
    /// the bits of all their numbers.
    Policy(u32),
    /// It only asks.
    Question,
}

#[cfg(any(feature = "std", upoll_loom))]
mod missed {
    use super::super::{Deferred, WaitQueue, Wake};
    use super::{Held, Kind, Locked};
    use crate::events::Events;
    use crate::sync::{Ordering, Rule, barrier_or_nap, broken, compiler_fence, fence_after_rmw};
    use crate::tally::Tally;

    /// One wake. Above this bit is how many there were: each is for another exclusive waiter. The bits
    /// below are those of all keys, as far as they have no others; else the key is empty, which means
    /// "look for yourself".
    const MISSED: u32 = 1 << 17;
    const ALL: u32 = 1 << 16;
    /// One in the number of a [`Kind::Policy`].
    const POLICY: u32 = 1 << 14;
    const KEY: u32 = POLICY - 1;
    /// As many as the bits can count. One more makes them a wake of all, so that none is lost.
    const MOST: u32 = u32::MAX / MISSED;

    /// The number of times that a wakeup tries for the lock before it leaves its key. If another thread delivers a
    /// wakeup, the caller does not learn which waiter took it, and wakes exclusive waiters of other
    /// queues in vain. Most holders release the lock before the tries are over.
    #[cfg(not(upoll_loom))]
    const TRIES: u32 = 100;

    impl WaitQueue {
        /// Locks the queue for a wake. Returns None if the wake was left to the lock's holder, or is in this queue
        /// already.
        #[inline]
        pub(in super::super) fn lock_to_wake(
            &self,
            kind: Kind,
            wake: &mut Wake<'_>,
        ) -> Option<Locked<'_>> {
            if !wake.deferred.may_enter(self) {
                return None;
            }
            match self.try_lock() {
                Some(locked) => Some(locked),
                None => self.try_again_or_leave(kind, wake),
            }
        }

        #[cold]
        fn try_again_or_leave(&self, kind: Kind, wake: &mut Wake<'_>) -> Option<Locked<'_>> {
            self.tally.count(Tally::contended);
            #[cfg(not(upoll_loom))]
            for _ in 0..TRIES {
                core::hint::spin_loop();
                if let Some(locked) = self.try_lock() {
                    return Some(locked);
                }
            }
            let kind = match kind {
                Kind::Plain => 0,
                Kind::All => ALL,
                Kind::Policy(number) => number * POLICY,
                Kind::Question => return None,
            };
            let key = match wake.key.bits() {
                key if key != 0 && key & !KEY == 0 => key,
                // Not to be lost among others that are not empty.
                _ => KEY,
            };
            self.leave(kind | key);
            // The holder may have read `missed` before that: then the lock is free, or the next holder
            // reads it.
            if !broken(Rule::TryAgainAfterMarking)
                && let Some(locked) = self.try_lock()
            {
                drop(locked);
            }
            None
        }

        /// Leaves a wake to the holder of the lock.
        fn leave(&self, wake: u32) {
            let mut missed = self.missed.load(Ordering::Relaxed);
            loop {
                let more = if missed / MISSED < MOST {
                    (missed + MISSED) | wake
                } else {
                    missed | ALL | wake
                };
                match self.missed.compare_exchange_weak(
                    missed,
                    more,
                    Ordering::SeqCst,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => break,
                    Err(now) => missed = now,
                }
            }
            if !broken(Rule::BarrierAfterMarking) {
                barrier_or_nap();
            }
        }

        /// Delivers the wakes that found the lock held, which has just been released.
        #[inline]
        pub(super) fn deliver_missed(&self) {
            if self.has_missed() {
                self.deliver();
            }
        }

        #[inline]
        fn has_missed(&self) -> bool {
            if broken(Rule::LookAfterReleasing) {
                return false;
            }
            // The barrier of a wakeup orders this after the release.
            compiler_fence(Ordering::SeqCst);
            self.missed.load(Ordering::Relaxed) != 0
        }

        #[cold]
        fn deliver(&self) {
            let mut deferred = Deferred::new();
            // If another thread has the lock by now, it delivers.
            while let Some(inside) = self.inside.try_lock() {
                let mut held = Held {
                    queue: self,
                    inside,
                };
                let missed = self.missed.swap(0, Ordering::SeqCst);
                // The wakes that were left have published their state before their entries read it here.
                fence_after_rmw();
                let key = match missed & KEY {
                    KEY => Events::empty(),
                    key => Events::from_bits_retain(key),
                };
                // A wake of all reaches those, too, that the others are for.
                let count = if missed & ALL == 0 {
                    missed / MISSED
                } else {
                    1
                };
                for _ in 0..count {
                    let mut wake = Wake::new(key, &mut deferred);
                    if missed & ALL != 0 {
                        held.wake_all(&mut wake);
                    }
                    match missed / POLICY % (ALL / POLICY) {
                        0 => held.wake(&mut wake),
                        number => held.wake_by_policy(&mut wake, number),
                    };
                }
                drop(held);
                if !self.has_missed() {
                    return;
                }
            }
        }
    }
}

#[cfg(all(test, feature = "std", not(upoll_loom)))]
mod tests {
    use core::pin::Pin;
    use core::ptr::NonNull;
    use std::boxed::Box;
    use std::vec::Vec;

    use super::super::entry::LINKED;
    use super::super::{Place, Reply, WaitEntry, WaitQueue, Wake};
    use crate::events::Events;

    fn take(_: NonNull<WaitEntry>, _: &mut Wake<'_>) -> Reply {
        Reply::WokenAndUnlinked
    }

    /// Returns how many of as many exclusive waiters the wakes reach that find the lock held.
    fn reached(waiters: usize, wake: impl Fn(&WaitQueue)) -> usize {
        let queue = WaitQueue::new();
        let entries: Vec<Pin<Box<WaitEntry>>> = (0..waiters)
            .map(|_| Box::pin(WaitEntry::new(take)))
            .collect();
        for entry in &entries {
            // SAFETY: each is hooked once, and unhooked before it and the queue end.
            unsafe { entry.hook(&raw const queue, Place::ExclusiveHead) };
        }
        let held = queue.lock();
        for _ in 0..waiters {
            wake(&queue);
        }
        drop(held);
        let left = entries.iter().filter(|entry| entry.has_rank_bit(LINKED));
        let reached = waiters - left.count();
        for entry in &entries {
            entry.unhook();
        }
        reached
    }

    #[test]
    fn as_many_exclusive_waiters_are_woken_as_wakes_were_left() {
        // More than can be counted, too.
        for waiters in [300, 40_000] {
            let wake = |queue: &WaitQueue| {
                queue.wake(Events::IN);
            };
            assert_eq!(reached(waiters, wake), waiters);
            let wake = |queue: &WaitQueue| {
                queue.wake_rotate(Events::IN);
            };
            assert_eq!(reached(waiters, wake), waiters);
        }
    }
}
