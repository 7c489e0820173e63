//! The lock of a `std` build: one locked instruction to take it, none to release it.
//!
//! To release a lock, a thread stores that it is free, then checks for sleepers. The instruction
//! that orders this store before this load costs as much as the rest. Here the slow path pays for
//! it: before a thread goes to sleep, it makes every other thread of the process pass a barrier,
//! with `membarrier(2)`. So either the sleeper sees that the lock is free, or the releasing thread
//! sees the sleeper. Where the kernel refuses that call a sleeper checks again every millisecond.
//!
//! A release wakes one thread at most, and the next one is for that thread to arrange once it has the
//! lock. So the releases until it runs make no system call.
//!
//! A lock is inside the object that it guards. A release reads the lock once more after others can
//! take it: a thread that frees the object must hold a reference that outlasts the call.

#[cfg(not(upoll_loom))]
use core::hint;
#[cfg(not(upoll_loom))]
use core::sync::atomic::AtomicBool;

#[cfg(not(upoll_loom))]
use lock_api::{GuardNoSend, RawMutex};

use self::kernel::Futex;
pub use self::kernel::{barrier, barrier_or_nap};
use super::{AtomicU32, Ordering, Rule, broken, compiler_fence};

#[cfg(all(upoll_count_locks, not(upoll_loom)))]
use super::counted::Lock as Raw;
#[cfg(all(not(upoll_count_locks), not(upoll_loom)))]
use Lock as Raw;

/// A lock that sleeps when it is contended.
#[cfg(not(upoll_loom))]
pub type Mutex<T> = lock_api::Mutex<Raw, T>;
/// Holds a [`Mutex`].
#[cfg(not(upoll_loom))]
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, Raw, T>;

/// The lock without what it guards.
pub struct Lock {
    /// [`FREE`], or the [`this_thread`].
    state: AtomicU32,
    /// [`ASLEEP`] if a thread sleeps on this word for the lock, or is about to, and each thread that was woken
    /// holds the lock by now, or held it. The named pair: a sleeper stores the mark, makes all threads pass a
    /// barrier, then checks `state`; the holder frees `state`, then checks for the mark. It takes the mark
    /// away and wakes one thread, which stores it anew for the others.
    asleep: Futex,
}

const FREE: u32 = 0;
const ASLEEP: u32 = 1;

/// Stands for this thread: never `FREE`. Two threads may have the same, if they are far apart.
#[cfg(not(upoll_loom))]
#[inline]
pub fn this_thread() -> u32 {
    let thread: usize;
    // The address at which the C library keeps the state of a thread. Thread-local variables are dearer in
    // a shared library.
    // SAFETY: every thread has one, and nothing but its address is looked at.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) thread, options(nostack, readonly, preserves_flags));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) thread, options(nostack, nomem, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        std::thread_local! {
            static HERE: u32 = const { 0 };
        }
        thread = HERE.with(|here| core::ptr::from_ref(here).addr()) << 12;
    }
    // No two threads have their variable in the same page, as each has a stack between. So the id
    // is unique among threads whose variables are within 8 TiB.
    #[expect(clippy::cast_possible_truncation, reason = "enough to tell them apart")]
    let id = (thread >> 12 << 1) as u32;
    id | 1
}

#[cfg(upoll_loom)]
pub fn this_thread() -> u32 {
    1
}

/// The pauses before each check of a thread that finds a lock held. Critical sections are short.
#[cfg(not(upoll_loom))]
const PAUSES: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

// SAFETY: `state` leaves `FREE` for one thread at a time, with acquire order, and back
// only by `unlock`, with release order.
#[cfg(not(upoll_loom))]
unsafe impl RawMutex for Lock {
    const INIT: Self = Lock {
        state: AtomicU32::new(FREE),
        asleep: Futex::new(0),
    };

    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        self.acquire();
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.try_acquire()
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.release();
    }

    /// Writes nothing, unlike the provided method: the child of a fork asks.
    #[inline]
    fn is_locked(&self) -> bool {
        self.state.load(Ordering::Relaxed) != FREE
    }
}

impl Lock {
    /// A free lock, for the model.
    #[cfg(upoll_loom)]
    #[expect(
        clippy::new_without_default,
        reason = "only the model makes one by itself"
    )]
    pub fn new() -> Self {
        Lock {
            state: AtomicU32::new(FREE),
            asleep: Futex::new(0),
        }
    }

    #[cfg(not(upoll_loom))]
    pub(super) fn is_this_threads(&self) -> bool {
        self.state.load(Ordering::Relaxed) == this_thread()
    }

    #[inline]
    fn try_acquire(&self) -> bool {
        self.state
            .compare_exchange(FREE, this_thread(), Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Takes the lock; waits while another thread holds it.
    #[inline]
    pub fn acquire(&self) {
        if !self.try_acquire() {
            self.wait();
        }
    }

    /// Releases the lock, which this thread holds.
    #[inline]
    pub fn release(&self) {
        self.state.store(FREE, Ordering::Release);
        // The processor may load before others see the lock free; the barrier of a sleeper covers
        // that.
        compiler_fence(Ordering::SeqCst);
        if self.asleep.word.load(Ordering::Relaxed) == ASLEEP {
            self.wake();
        }
    }

    /// Checks the lock again for a short time. Returns whether this thread has taken it.
    #[cfg(not(upoll_loom))]
    fn spin(&self) -> bool {
        PAUSES.iter().any(|&pauses| {
            for _ in 0..pauses {
                hint::spin_loop();
            }
            self.state.load(Ordering::Relaxed) == FREE && self.try_acquire()
        })
    }

    #[cfg(upoll_loom)]
    fn spin(&self) -> bool {
        self.try_acquire()
    }

    #[cold]
    fn wait(&self) {
        if self.spin() {
            return;
        }
        loop {
            self.asleep.word.swap(ASLEEP, Ordering::SeqCst);
            let is_ordered = broken(Rule::BarrierBeforeSleep) || barrier();
            if self.try_acquire() {
                return;
            }
            self.asleep.wait(ASLEEP, is_ordered);
            // A thread that was woken is the only one, so it does not pause first.
            if self.try_acquire() || self.spin() {
                // The mark that the wakeup has taken away was for all that sleep.
                if !broken(Rule::MarkAfterSleep) {
                    self.asleep.word.swap(ASLEEP, Ordering::Relaxed);
                }
                return;
            }
        }
    }

    #[cold]
    fn wake(&self) {
        if self.asleep.word.swap(0, Ordering::SeqCst) != 0 {
            self.asleep.wake_one();
        }
    }
}

/// Returns whether a lock is held by the code that this call, in a signal handler, has interrupted. Seldom
/// returns true for a lock that another thread holds.
#[cfg(not(upoll_loom))]
pub fn is_held_by_this_thread<T>(mutex: &Mutex<T>) -> bool {
    // SAFETY: the lock is only looked at.
    unsafe { mutex.raw() }.is_this_threads()
}

/// Registers this process for `membarrier(2)`, once. With many threads that takes a while, which is
/// better spent when a set is made than when a thread first waits for a lock.
#[cfg(not(upoll_loom))]
pub fn prepare() {
    static PREPARED: AtomicBool = AtomicBool::new(false);
    if !PREPARED.load(Ordering::Relaxed) && !PREPARED.swap(true, Ordering::Relaxed) {
        barrier();
    }
}

#[cfg(not(upoll_loom))]
mod kernel {
    use core::ptr;

    use super::AtomicU32;

    use upoll_sys::futex::{self, Scope};
    pub use upoll_sys::membarrier::barrier;

    /// Makes every other thread of the process pass a barrier, or sleeps for so long that no processor delays a store
    /// for longer.
    pub fn barrier_or_nap() {
        if !barrier() {
            upoll_sys::backoff::nap_whatever_signals_come();
        }
    }

    /// A word to sleep on.
    pub(super) struct Futex {
        pub(super) word: AtomicU32,
    }

    impl Futex {
        pub(super) const fn new(value: u32) -> Self {
            Futex {
                word: AtomicU32::new(value),
            }
        }

        /// Sleeps if the word is `expected`. If `is_ordered` is not so, a change of the word may
        /// go unnoticed, and the sleep is short.
        pub(super) fn wait(&self, expected: u32, is_ordered: bool) {
            let limit = (!is_ordered).then_some(libc::timespec {
                tv_sec: 0,
                tv_nsec: 1_000_000,
            });
            futex::wait(&self.word, expected, limit, Scope::Private);
        }

        #[cold]
        pub(super) fn wake_one(&self) {
            futex::wake(ptr::from_ref(&self.word).addr(), 1, Scope::Private);
        }
    }
}

/// The kernel's part of the lock, for its model.
#[cfg(upoll_loom)]
mod kernel {
    use loom::sync::{Condvar, Mutex};

    use super::super::{AtomicU32, Ordering, sequenced};

    pub(super) struct Futex {
        pub(super) word: AtomicU32,
        /// The kernel's lock for looking at the word and going to sleep in one step.
        bucket: Mutex<()>,
        queue: Condvar,
    }

    impl Futex {
        pub(super) fn new(value: u32) -> Self {
            Futex {
                word: AtomicU32::new(value),
                bucket: Mutex::new(()),
                queue: Condvar::new(),
            }
        }

        pub(super) fn wait(&self, expected: u32, _is_ordered: bool) {
            let bucket = self.bucket.lock().unwrap();
            if self.word.load(Ordering::Relaxed) == expected {
                drop(self.queue.wait(bucket).unwrap());
            }
        }

        pub(super) fn wake_one(&self) {
            let _bucket = self.bucket.lock().unwrap();
            self.queue.notify_one();
        }
    }

    pub fn barrier() -> bool {
        sequenced::barrier();
        true
    }

    pub fn barrier_or_nap() {
        barrier();
    }
}
