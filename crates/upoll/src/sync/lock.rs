//! The lock of a `std` build: one locked instruction to take it, none to let go.
//!
//! Letting go of a lock has to leave a store that frees it before a load that asks whether somebody
//! sleeps for it, and the instruction that orders the two costs as much as the rest. Here whoever
//! goes to sleep, which is slow anyway, has the kernel make every other thread of the process pass
//! a barrier: `membarrier(2)`. So either the sleeper sees that the lock is free, or whoever lets go
//! of it sees the sleeper. Where the kernel refuses that call a sleeper looks again every
//! millisecond.
//!
//! A lock is inside the object that it guards. Letting go of it reads the lock once more after
//! others can take it: whoever frees the object must hold a reference that outlasts the call.

use core::hint;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, compiler_fence};

use lock_api::{GuardNoSend, RawMutex};
use syscalls::{Sysno, syscall};

/// A lock that sleeps when it is contended.
pub(crate) type Mutex<T> = lock_api::Mutex<Lock, T>;
/// Holds a [`Mutex`].
pub(crate) type MutexGuard<'a, T> = lock_api::MutexGuard<'a, Lock, T>;

pub(crate) struct Lock {
    /// [`FREE`] or [`HELD`]; a sleeper sleeps on it.
    state: AtomicU32,
    /// Threads that sleep for the lock, or are about to. The named pair: a sleeper adds itself, has
    /// all threads pass a barrier, then looks at `state`; the holder frees `state`, then looks here.
    sleepers: AtomicU32,
}

const FREE: u32 = 0;
const HELD: u32 = 1;

/// How often a thread looks again before it sleeps: critical sections are short.
const SPINS: u32 = 7;

// SAFETY: `state` goes from `FREE` to `HELD` for one thread at a time, with acquire order, and back
// only by `unlock`, with release order.
unsafe impl RawMutex for Lock {
    const INIT: Self = Lock {
        state: AtomicU32::new(FREE),
        sleepers: AtomicU32::new(0),
    };

    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        if !self.try_lock() {
            self.wait();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.state
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.state.store(FREE, Ordering::Release);
        // The processor may look before others see the lock free; sleepers see to that.
        compiler_fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            self.wake();
        }
    }
}

impl Lock {
    #[cold]
    fn wait(&self) {
        for round in 0..SPINS {
            for _ in 0..1 << round {
                hint::spin_loop();
            }
            if self.state.load(Ordering::Relaxed) == FREE && self.try_lock() {
                return;
            }
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let a_while = libc::timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        let limit = match barrier() {
            true => ptr::null(),
            false => &raw const a_while,
        };
        while !self.try_lock() {
            // SAFETY: `state` is a live word, and the limit null or a live timespec.
            let _ = unsafe {
                syscall!(
                    Sysno::futex,
                    self.state.as_ptr(),
                    libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                    HELD,
                    limit
                )
            };
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    #[cold]
    fn wake(&self) {
        // SAFETY: the kernel takes the address as a key and does not write to it.
        let _ = unsafe {
            syscall!(
                Sysno::futex,
                self.state.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                1
            )
        };
    }
}

/// Has every thread of the process that runs pass a full barrier; says whether the kernel did it.
fn barrier() -> bool {
    let ask = |command: libc::c_int| {
        // SAFETY: no memory is involved.
        unsafe { syscall!(Sysno::membarrier, command, 0, 0) }
    };
    // The kernel wants to be told once that the process will ask, and asks for it by failing.
    ask(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED).is_ok()
        || ask(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED).is_ok()
            && ask(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED).is_ok()
}

/// Tells the kernel, once, that this process will ask for barriers: with many threads that takes a
/// while, which is better spent when a set is made than when a thread first waits for a lock.
pub(crate) fn prepare() {
    static PREPARED: AtomicBool = AtomicBool::new(false);
    if !PREPARED.load(Ordering::Relaxed) && !PREPARED.swap(true, Ordering::Relaxed) {
        barrier();
    }
}
