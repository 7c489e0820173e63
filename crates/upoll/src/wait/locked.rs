//! A queue's lock, and wakes that cannot wait for it.
//!
//! A signal handler may wake a queue whose lock its own thread holds, or a queue whose lock another
//! thread holds that waits for one of this thread's. So a wake that does not get the lock leaves its
//! key in `missed`, and whoever holds the lock wakes in its stead after letting go of it. That the
//! holder is the thread itself is known at once; for another one a wake waits so long that only a
//! holder that does not get on is left to do it later.
//!
//! # The named pair
//! A wake writes `missed`, has all threads pass a barrier, then tries for the lock once more. The
//! holder lets go of the lock, then reads `missed`. One of the two sees the other.

use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};

use super::{List, WaitQueue};
use crate::sync::MutexGuard;

/// Holds a queue's lock.
pub(super) struct Locked<'a> {
    #[cfg_attr(
        any(not(feature = "std"), loom),
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

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: done once, here.
        unsafe { ManuallyDrop::drop(&mut self.list) };
        #[cfg(all(feature = "std", not(loom)))]
        self.queue.catch_up();
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

#[cfg(any(not(feature = "std"), loom))]
impl WaitQueue {
    /// The lock, for a wake; here no signal handler wakes.
    pub(super) fn lock_to_wake(&self, _: Kind, _: &super::Wake<'_>) -> Option<Locked<'_>> {
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

#[cfg(all(feature = "std", not(loom)))]
mod missed {
    use core::sync::atomic::{Ordering, compiler_fence};
    use core::time::Duration;

    use super::super::{Deferred, Mode, WaitQueue, Wake};
    use super::{Kind, Locked, ManuallyDrop};
    use crate::events::Events;
    use crate::sync::{barrier, is_held_by_this_thread};

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
    const SPINS: u32 = 100;
    const YIELDS: u32 = 1000;
    const SLEEPS: u32 = 1000;
    const SLEEP: Duration = Duration::from_millis(1);

    impl WaitQueue {
        /// The lock, for a wake. None if the wake was left to whoever holds it.
        #[inline]
        pub(in super::super) fn lock_to_wake(
            &self,
            kind: Kind,
            wake: &Wake<'_>,
        ) -> Option<Locked<'_>> {
            let list = match self.list.try_lock() {
                Some(list) => list,
                None => return self.lock_or_leave(kind, wake),
            };
            Some(Locked {
                queue: self,
                list: ManuallyDrop::new(list),
            })
        }

        #[cold]
        fn lock_or_leave(&self, kind: Kind, wake: &Wake<'_>) -> Option<Locked<'_>> {
            let try_lock = || {
                self.list.try_lock().map(|list| Locked {
                    queue: self,
                    list: ManuallyDrop::new(list),
                })
            };
            for round in 0..SPINS + YIELDS + SLEEPS {
                if is_held_by_this_thread(&self.list) {
                    break;
                }
                if round < SPINS {
                    core::hint::spin_loop();
                } else if round < SPINS + YIELDS {
                    std::thread::yield_now();
                } else {
                    std::thread::sleep(SLEEP);
                }
                if let Some(list) = try_lock() {
                    return Some(list);
                }
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
            barrier();
            // The holder may have let go before it could see it: whoever has the lock from now on will.
            drop(try_lock());
            None
        }

        /// Makes the wakes that did not get the lock; it is free now.
        #[inline]
        pub(super) fn catch_up(&self) {
            compiler_fence(Ordering::SeqCst);
            if self.missed.load(Ordering::Relaxed) != 0 {
                self.wake_missed();
            }
        }

        #[cold]
        fn wake_missed(&self) {
            let missed = self.missed.swap(0, Ordering::SeqCst);
            if missed & MISSED == 0 {
                return;
            }
            let key = match missed & KEY {
                KEY => Events::empty(),
                key => Events::from_bits_retain(key.into()),
            };
            let mut deferred = Deferred::new();
            let mut wake = Wake {
                key,
                mode: Mode::Tell,
                deferred: &mut deferred,
            };
            if missed & ROTATING == 0 {
                self.wake_within(&mut wake);
            } else {
                self.wake_in_turn(&mut wake, missed & NOTES_LAST != 0);
            }
        }
    }
}
