//! `max_user_watches`: how many interests all sets of one account may hold together.

use alloc::sync::Arc;
use core::ops::Deref;

use crate::sync::{AtomicUsize, Ordering};

/// An account of watches that sets draw on (`/proc/sys/fs/epoll/max_user_watches`).
///
/// An ADD that would exceed it fails with `ENOSPC`. Sets that are made without one share an account for
/// the whole process, with the running kernel's limit.
///
/// A set that holds many watches draws them in lots, so that unrelated sets do not contend for one
/// counter. Beyond the watches that it uses, a set has drawn at most two and an eighth of those. It
/// returns them when it closes, and at its next DEL if little is left. Watches that
/// are drawn for the first time are drawn one by one as long as a set is small.
#[derive(Debug)]
pub struct WatchLimit {
    max: usize,
    used: AtomicUsize,
}

/// The largest lot.
const LOT: usize = 64;
/// A lot is this part of what the set uses.
const LOT_PART: usize = 16;
/// With less than this left, lots are single watches and are returned at once.
const TIGHT: usize = 4096;

impl WatchLimit {
    /// An account with room for `max` watches. Without memory for it the process ends, as with `Arc::new`: a process
    /// that goes on without memory makes its accounts when it starts.
    #[must_use]
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self::with_room(max))
    }

    pub(super) fn with_room(max: usize) -> Self {
        WatchLimit {
            max,
            used: AtomicUsize::new(0),
        }
    }

    /// Returns the number of watches that the account allows.
    #[must_use]
    pub fn max(&self) -> usize {
        self.max
    }

    /// Returns the number of watches that are drawn, unused parts of lots included.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Draws `lot` watches, or one if little is left; none when the account is used up.
    fn draw(&self, lot: usize) -> usize {
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let left = self.max.saturating_sub(used);
            let lot = if left < TIGHT { left.min(1) } else { lot };
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

/// The account that a set draws on.
pub enum Account {
    Given(Arc<WatchLimit>),
    /// The one for all sets that were given none.
    #[cfg(not(upoll_loom))]
    OfTheProcess(&'static WatchLimit),
}

impl Deref for Account {
    type Target = WatchLimit;

    fn deref(&self) -> &WatchLimit {
        match self {
            Account::Given(limit) => limit,
            #[cfg(not(upoll_loom))]
            Account::OfTheProcess(limit) => limit,
        }
    }
}

/// A set's share of the account.
pub struct Allowance {
    account: Account,
    used: usize,
    /// Drawn and not used.
    spare: usize,
}

impl Allowance {
    pub fn new(account: Account) -> Self {
        Allowance {
            account,
            used: 0,
            spare: 0,
        }
    }

    fn lot(&self) -> usize {
        (1 + self.used / LOT_PART).min(LOT)
    }

    /// Takes one watch; false when there is none left.
    pub fn take(&mut self) -> bool {
        if self.spare == 0 {
            self.spare = self.account.draw(self.lot());
        }
        if self.spare == 0 {
            return false;
        }
        self.spare -= 1;
        self.used += 1;
        true
    }

    /// Returns one watch.
    pub(crate) fn give(&mut self) {
        self.used -= 1;
        self.spare += 1;
        if self.spare > 2 * self.lot() || self.account.is_tight() {
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
#[cfg(not(upoll_loom))]
pub(super) fn of_the_system() -> usize {
    #[cfg(feature = "std")]
    if let Some(max) = upoll_sys::limits::max_user_watches() {
        return max;
    }
    usize::MAX
}
