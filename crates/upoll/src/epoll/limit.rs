//! `max_user_watches`: how many interests all sets of one account may hold together.

use alloc::sync::Arc;

use crate::sync::{AtomicUsize, Ordering};

/// An account of watches that sets draw on (`/proc/sys/fs/epoll/max_user_watches`).
///
/// An ADD that would exceed it gives `ENOSPC`. Sets that are made without one share an account for
/// the whole process, with the running kernel's limit.
///
/// The count is exact when little is left. When much is left a set draws watches in small lots, so
/// that unrelated sets do not contend for one counter; lots that lie unused are returned when
/// things get tight at the set's next DEL, or when the set closes.
#[derive(Debug)]
pub struct WatchLimit {
    max: usize,
    used: AtomicUsize,
}

/// The largest lot.
const LOT: usize = 64;
/// With less than this left, lots are single watches and are returned at once.
const TIGHT: usize = 4096;

impl WatchLimit {
    /// An account with room for `max` watches.
    #[must_use]
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(WatchLimit {
            max,
            used: AtomicUsize::new(0),
        })
    }

    /// How many watches the account allows.
    #[must_use]
    pub fn max(&self) -> usize {
        self.max
    }

    /// How many watches are drawn, unused parts of lots included.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Draws a lot: how many watches, none when the account is used up.
    fn draw(&self) -> usize {
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let left = self.max.saturating_sub(used);
            let lot = if left < TIGHT { left.min(1) } else { LOT };
            if lot == 0 {
                return 0;
            }
            match self.used.compare_exchange_weak(
                used,
                used + lot,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return lot,
                Err(now) => used = now,
            }
        }
    }

    fn put_back(&self, watches: usize) {
        self.used.fetch_sub(watches, Ordering::Relaxed);
    }

    fn is_tight(&self) -> bool {
        self.max.saturating_sub(self.used()) < TIGHT
    }
}

/// A set's share of the account.
pub(crate) struct Allowance {
    account: Arc<WatchLimit>,
    /// Drawn and not used.
    spare: usize,
}

impl Allowance {
    pub(crate) fn new(account: Arc<WatchLimit>) -> Self {
        Allowance { account, spare: 0 }
    }

    /// Takes one watch; false when there is none left.
    pub(crate) fn take(&mut self) -> bool {
        if self.spare == 0 {
            self.spare = self.account.draw();
        }
        if self.spare == 0 {
            return false;
        }
        self.spare -= 1;
        true
    }

    /// Returns one watch.
    pub(crate) fn give(&mut self) {
        self.spare += 1;
        if self.spare > 2 * LOT || self.account.is_tight() {
            self.account.put_back(core::mem::take(&mut self.spare));
        }
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        self.account.put_back(self.spare);
    }
}

/// The running kernel's `max_user_watches`; without a kernel to ask, no limit.
#[cfg(not(loom))]
pub(super) fn of_the_system() -> usize {
    #[cfg(feature = "std")]
    if let Ok(text) = std::fs::read_to_string("/proc/sys/fs/epoll/max_user_watches")
        && let Ok(max) = text.trim().parse()
    {
        return max;
    }
    usize::MAX
}
