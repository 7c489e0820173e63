//! A shared counter in a model: threads in the place of processes, which may die in a write.

use core::sync::atomic::Ordering::SeqCst;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::listeners::{Shared, Wakers};
use super::{Direction, Limited};
use crate::sync::{AtomicBool, AtomicU32, Mutex};

/// A counter that processes share, as far as loom can tell.
pub struct SharedModel {
    shared: Shared,
    /// The robust lock: whether its last holder died.
    lock: Mutex<bool>,
    /// The kernel's queue of sleepers on the word of readers: whether the reader is in it.
    sleeps: Mutex<bool>,
    rang: AtomicBool,
}

/// A writer's, that may die as soon as it is to reach anybody.
struct Writer<'a> {
    model: &'a SharedModel,
    dies: bool,
}

impl Wakers for Writer<'_> {
    fn wake(&self, _word: &AtomicU32) {
        self.live_or_die();
        *self.model.sleeps.lock() = false;
    }

    fn ring(&self, _direction: Direction) {
        self.live_or_die();
        self.model.rang.store(true, SeqCst);
    }
}

impl Writer<'_> {
    fn live_or_die(&self) {
        if self.dies {
            resume_unwind(Box::new("killed"));
        }
    }
}

impl SharedModel {
    /// One whose count is zero.
    #[expect(clippy::new_without_default, reason = "for models only")]
    pub fn new() -> Self {
        SharedModel {
            shared: Shared::new(0),
            lock: Mutex::new(false),
            sleeps: Mutex::new(false),
            rang: AtomicBool::new(false),
        }
    }

    fn locked<T>(&self, body: impl FnOnce(&Shared) -> T) -> Option<T> {
        let mut died = self.lock.lock();
        if core::mem::replace(&mut *died, false) {
            self.shared.holder_died();
        }
        let result = catch_unwind(AssertUnwindSafe(|| body(&self.shared)));
        *died = result.is_err();
        result.ok()
    }

    /// Adds one, unless it `dies` on the way.
    pub fn write(&self, dies: bool) {
        let writer = Writer { model: self, dies };
        let step = |now: Limited| {
            let count = now.count + 1;
            Ok(Limited { count, ..now })
        };
        let _ = self.locked(|shared| shared.change(Direction::In, &step, &writer));
    }

    /// Returns the count.
    pub fn count(&self) -> u64 {
        self.locked(|shared| shared.check().count).unwrap_or(0)
    }

    /// Begins to sleep until the count is not zero.
    pub fn lie_down(&self) {
        let expected = self.locked(|shared| shared.enlist(Direction::In));
        if self.count() == 0 {
            let mut sleeps = self.sleeps.lock();
            *sleeps = Some(self.shared.word(Direction::In).load(SeqCst)) == expected;
        }
    }

    /// Returns whether the sleep that [`lie_down`](Self::lie_down) has begun still goes on.
    pub fn sleeps(&self) -> bool {
        *self.sleeps.lock()
    }

    /// Arms the notifier for the next write. Returns how many writes there were before.
    pub fn arm(&self) -> u64 {
        self.shared.arm(Direction::In)
    }

    /// Returns whether the notifier was triggered.
    pub fn rang(&self) -> bool {
        self.rang.load(SeqCst)
    }
}
