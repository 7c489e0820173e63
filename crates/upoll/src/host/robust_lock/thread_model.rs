//! A thread in a model: its id, its pending lock, and what the kernel does when it is killed.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic as std_atomic;

use super::{OWNER_DIED, RobustLock, WAITERS};
use crate::host::kernel;
use crate::sync::{AtomicU32, Ordering};

/// It ends when a model lets time pass.
const LIMIT: libc::timespec = libc::timespec {
    tv_sec: 1_000_000_000,
    tv_nsec: 0,
};

/// The panic payload of a thread that is killed.
struct Killed;

loom::lazy_static! {
    /// Ids of threads to which the model gives none.
    static ref LAST_ID: std_atomic::AtomicU32 = std_atomic::AtomicU32::new(1000);
}

loom::thread_local! {
    static ID: Cell<u32> = Cell::new(LAST_ID.fetch_add(1, std_atomic::Ordering::Relaxed) + 1);
    static PENDING: Cell<*const AtomicU32> = Cell::new(ptr::null());
    /// The number of steps after which the thread is killed.
    static STEPS: Cell<usize> = Cell::new(usize::MAX);
}

/// Kills the thread if its time has come.
fn step() {
    let left = STEPS.with(Cell::get);
    if left == 0 {
        resume_unwind(Box::new(Killed));
    }
    STEPS.with(|steps| steps.set(left - 1));
}

fn address(word: &AtomicU32) -> usize {
    ptr::from_ref(word).addr()
}

pub(super) fn sleep(word: &AtomicU32, expected: u32) {
    step();
    let is_expected = || word.load(Ordering::SeqCst) == expected;
    kernel::futex_wait(address(word), is_expected, Some(LIMIT));
    step();
}

pub(in crate::host) fn wake_all(word: &AtomicU32) {
    step();
    kernel::futex_wake_all(address(word));
}

#[derive(Clone, Copy)]
pub(super) struct Thread {
    pub(super) id: u32,
}

/// The previous pending lock of a thread.
pub(super) struct Pending(*const AtomicU32);

impl Thread {
    pub(super) fn current() -> Self {
        Thread {
            id: ID.with(Cell::get),
        }
    }

    #[expect(clippy::unused_self, reason = "as the kernel's")]
    pub(super) fn set_pending(&self, word: &AtomicU32) -> Pending {
        step();
        let before = PENDING.with(|pending| pending.replace(word));
        step();
        Pending(before)
    }
}

impl Pending {
    pub(super) fn restore(&self) {
        step();
        PENDING.with(|pending| pending.set(self.0));
        step();
    }
}

/// Does what the kernel does for a thread that ends (`handle_futex_death`).
fn end() {
    let word = PENDING.with(|pending| pending.replace(ptr::null()));
    // SAFETY: null, or the word of the lock whose method has the thread run.
    let Some(word) = (unsafe { word.as_ref() }) else {
        return;
    };
    let mut value = word.load(Ordering::SeqCst);
    loop {
        let owner = value & !(WAITERS | OWNER_DIED);
        if owner == 0 {
            return kernel::futex_wake(address(word));
        }
        if owner != ID.with(Cell::get) {
            return;
        }
        let next = value & WAITERS | OWNER_DIED;
        match word.compare_exchange(value, next, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => break,
            Err(now) => value = now,
        }
    }
    if value & WAITERS != 0 {
        kernel::futex_wake(address(word));
    }
}

/// The lock that survives its owner's death, in a model: threads stand for processes.
pub struct LockModel(RobustLock);

impl LockModel {
    /// A free one.
    #[expect(clippy::new_without_default, reason = "for models only")]
    pub fn new() -> Self {
        LockModel(RobustLock::new())
    }

    /// Takes the lock as the thread `id`, calls `body` with whether the last owner died, and releases the lock.
    /// The thread is killed after `steps` steps, if it makes so many; one lies before `body` and one after it.
    /// Returns whether it was killed.
    pub fn hold(&self, id: u32, steps: Option<usize>, body: impl FnOnce(bool)) -> bool {
        ID.with(|cell| cell.set(id));
        STEPS.with(|cell| cell.set(steps.unwrap_or(usize::MAX)));
        let life = catch_unwind(AssertUnwindSafe(|| {
            // Its release is what a killed thread does not come to.
            let held = ManuallyDrop::new(self.0.lock());
            step();
            body(held.owner_died);
            step();
            drop(ManuallyDrop::into_inner(held));
        }));
        let Err(cause) = life else { return false };
        if !cause.is::<Killed>() {
            resume_unwind(cause);
        }
        end();
        true
    }

    /// Returns how many threads sleep for the lock.
    pub fn sleepers(&self) -> usize {
        kernel::futex_sleepers(address(&self.0.0))
    }
}
