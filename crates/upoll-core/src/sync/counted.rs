//! The lock of a build that counts: [`lock`](super::lock)'s, and what each thread saw of such locks.

use core::cell::Cell;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use lock_api::{GuardNoSend, RawMutex};

use super::lock;

/// The library's locks that the calling thread has taken so far, and its waits for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockCounts {
    /// Locks taken.
    pub taken: u64,
    /// Of these, locks that another thread had held last: the two share it, even if they never
    /// meet there.
    pub shared: u64,
    /// Of these, locks that another thread held at that moment.
    pub contended: u64,
    /// Time from finding a lock held until it was taken.
    pub waited_nanoseconds: u64,
}

std::thread_local! {
    static COUNTS: Cell<LockCounts> = const {
        Cell::new(LockCounts {
            taken: 0,
            shared: 0,
            contended: 0,
            waited_nanoseconds: 0,
        })
    };
}

std::thread_local! {
    /// The time since which this thread waits for a lock for which it only tries.
    static TRIES_SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Notes that the calling thread found a lock held at `since`, and takes no other one before it has that.
pub(super) fn tries_since(since: Instant) {
    TRIES_SINCE.set(Some(since));
}

impl LockCounts {
    /// Returns the counts of the calling thread.
    #[must_use]
    pub fn of_this_thread() -> Self {
        COUNTS.get()
    }
}

pub struct Lock {
    lock: lock::Lock,
    /// The thread that took it last, by the address of its counts; 0: none did.
    last: AtomicUsize,
}

impl Lock {
    pub(super) fn is_this_threads(&self) -> bool {
        self.lock.is_this_threads()
    }

    /// Notes that the calling thread holds the lock, for which it has waited.
    fn taken(&self, waited: Option<Instant>) {
        COUNTS.with(|counts| {
            let me = ptr::from_ref(counts).addr();
            let last = self.last.load(Ordering::Relaxed);
            self.last.store(me, Ordering::Relaxed);
            let mut seen = counts.get();
            seen.taken += 1;
            seen.shared += u64::from(last != 0 && last != me);
            if let Some(since) = TRIES_SINCE.take().or(waited) {
                seen.contended += 1;
                let waited = since.elapsed().as_nanos();
                seen.waited_nanoseconds += u64::try_from(waited).unwrap_or(u64::MAX);
            }
            counts.set(seen);
        });
    }
}

// SAFETY: the holder of the lock within holds this one.
unsafe impl RawMutex for Lock {
    const INIT: Self = Lock {
        lock: lock::Lock::INIT,
        last: AtomicUsize::new(0),
    };

    type GuardMarker = GuardNoSend;

    fn lock(&self) {
        if self.try_lock() {
            return;
        }
        let since = Instant::now();
        self.lock.lock();
        self.taken(Some(since));
    }

    fn try_lock(&self) -> bool {
        let taken = self.lock.try_lock();
        if taken {
            self.taken(None);
        }
        taken
    }

    unsafe fn unlock(&self) {
        // SAFETY: the caller holds this one, and so the lock within.
        unsafe { self.lock.unlock() };
    }

    fn is_locked(&self) -> bool {
        self.lock.is_locked()
    }
}
