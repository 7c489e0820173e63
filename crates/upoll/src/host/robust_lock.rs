//! A lock of one word for memory that processes share, which survives the death of its owner.
//!
//! The word holds the owner's thread id. When a thread ends, the kernel checks the *pending* lock
//! of the thread's robust list (`set_robust_list(2)`), and every lock that is linked into that
//! list. A link would be a pointer in the shared memory, where other processes can change it. So a
//! lock is never linked here. It is the pending lock from just before its owner takes it until it
//! is released, and the only pointer to it is in the owner's private memory. A thread holds one
//! such lock at a time.
//!
//! If the word holds the thread's id when the thread ends, the kernel replaces it with
//! [`OWNER_DIED`] and wakes a waiter. A waiter that is killed in turn wakes no other one, so waiters
//! check the word every now and then.
//!
//! # What a hostile process can do
//! The word is only compared, and the kernel checks that a dying thread owns what it releases. So a
//! process that writes to the word can keep others from taking the lock, or let two take it.
//!
//! # Equal thread ids
//! Two processes in different pid namespaces may have threads with the same id. The kernel would
//! take the lock away from one of them if the other one ended with the lock pending. So a waiting
//! thread has no lock pending, and does not try to take a lock whose word has its own id. Two short
//! windows remain: between the mark and the attempt, and between the release and the end of the
//! mark. If a thread is killed there, and just then another thread with its id takes the lock, the
//! kernel releases it.

#[cfg_attr(upoll_loom, path = "robust_lock/thread_model.rs")]
mod thread;

#[cfg(upoll_loom)]
pub use self::thread::LockModel;

pub(super) use self::thread::wake_all;
use self::thread::{Pending, Thread};
use crate::sync::{AtomicU32, Ordering, Rule, broken};

/// Somebody sleeps until the word changes (`FUTEX_WAITERS`).
const WAITERS: u32 = 0x8000_0000;
/// The kernel writes it when the owner has died (`FUTEX_OWNER_DIED`).
const OWNER_DIED: u32 = 0x4000_0000;

/// The lock. All zero bytes: nobody has it.
#[repr(transparent)]
pub(super) struct RobustLock(AtomicU32);

/// Holds a lock until it is dropped, on the thread that took it.
pub(super) struct Held<'a> {
    lock: &'a RobustLock,
    /// True if the last owner died while it held the lock.
    pub(super) owner_died: bool,
    pending: Pending,
}

impl RobustLock {
    #[cfg(not(upoll_loom))]
    pub(super) const fn new() -> Self {
        RobustLock(AtomicU32::new(0))
    }

    #[cfg(upoll_loom)]
    pub(super) fn new() -> Self {
        RobustLock(AtomicU32::new(0))
    }

    /// Takes the lock, and waits for it if necessary.
    pub(super) fn lock(&self) -> Held<'_> {
        let thread = Thread::current();
        // Set by each thread that has slept: others may still sleep.
        let mut waiters = 0;
        let mut word = self.0.load(Ordering::SeqCst);
        loop {
            if is_free(word) {
                let pending = thread.set_pending(&self.0);
                match self.change(word, thread.id | waiters | word & WAITERS) {
                    Ok(_) => {
                        return Held {
                            lock: self,
                            owner_died: word & OWNER_DIED != 0,
                            pending,
                        };
                    }
                    Err(now) => word = now,
                }
                pending.restore();
                continue;
            }
            if let Err(now) = self.change(word, word | WAITERS) {
                word = now;
                continue;
            }
            thread::sleep(&self.0, word | WAITERS);
            waiters = match broken(Rule::HandOnWaiters) {
                true => 0,
                false => WAITERS,
            };
            word = self.0.load(Ordering::SeqCst);
        }
    }

    fn change(&self, word: u32, next: u32) -> Result<u32, u32> {
        self.0
            .compare_exchange(word, next, Ordering::SeqCst, Ordering::SeqCst)
    }
}

fn is_free(word: u32) -> bool {
    word & !WAITERS == 0 || word & OWNER_DIED != 0
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if broken(Rule::PendingUntilWoken) {
            self.pending.restore();
        }
        if self.lock.0.swap(0, Ordering::SeqCst) & WAITERS != 0 {
            // All of them: a single one might be killed before it takes the lock, after another thread has
            // taken it that does not know of the rest.
            thread::wake_all(&self.lock.0);
        }
        // After the wake: if this thread is killed before that, the kernel wakes a waiter.
        self.pending.restore();
    }
}

#[cfg(all(test, not(upoll_loom)))]
mod tests {
    use super::*;
    use crate::host::{generation, kernel};

    /// Forks `body` into a pid namespace of its own, whose first process it is: its thread id is 1. Returns
    /// None without the right to do that.
    fn in_a_namespace(body: impl FnOnce()) -> Option<libc::pid_t> {
        // SAFETY: the child makes system calls and takes the lock, which need no memory, and ends without
        // running anything of this process.
        unsafe {
            let outer = libc::fork();
            if outer == 0 {
                if libc::unshare(libc::CLONE_NEWPID) != 0 {
                    libc::_exit(77);
                }
                let inner = libc::fork();
                if inner == 0 {
                    body();
                    libc::_exit(0);
                }
                let mut status = 0;
                libc::waitpid(inner, &raw mut status, 0);
                libc::_exit(i32::from(status != 0));
            }
            // It has no right if it ends at once.
            let mut status = 0;
            for _ in 0..100 {
                if libc::waitpid(outer, &raw mut status, libc::WNOHANG) == outer {
                    return (libc::WEXITSTATUS(status) != 77).then_some(outer);
                }
                libc::usleep(1000);
            }
            Some(outer)
        }
    }

    #[test]
    fn a_waiter_with_the_owners_id_of_another_namespace_that_is_killed_leaves_the_lock() {
        struct Shared {
            lock: RobustLock,
            waiter: AtomicU32,
        }
        generation::watch_forks().unwrap();
        let shared = kernel::map_shared(size_of::<Shared>()).unwrap();
        // SAFETY: a page of zeros, which is one, mapped until the process ends.
        let shared = unsafe { shared.cast::<Shared>().as_ref() };
        // As if it were held by a thread with the id 1.
        shared.lock.0.store(1, Ordering::SeqCst);
        let Some(outer) = in_a_namespace(|| {
            shared.waiter.store(1, Ordering::SeqCst);
            drop(shared.lock.lock());
        }) else {
            return;
        };
        while shared.lock.0.load(Ordering::SeqCst) & WAITERS == 0 {
            std::thread::yield_now();
        }
        let children = format!("/proc/{outer}/task/{outer}/children");
        let waiter: libc::pid_t = std::fs::read_to_string(children)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        // SAFETY: no pointers but to a live integer.
        unsafe {
            assert_eq!(libc::kill(waiter, libc::SIGKILL), 0);
            let mut status = 0;
            assert_eq!(libc::waitpid(outer, &raw mut status, 0), outer);
        }
        assert_eq!(shared.lock.0.load(Ordering::SeqCst), 1 | WAITERS);
        shared.lock.0.store(0, Ordering::SeqCst);
        assert!(!shared.lock.lock().owner_died);
    }

    #[test]
    fn the_lock_of_a_killed_owner_is_free_and_says_so() {
        generation::watch_forks().unwrap();
        let shared = kernel::map_shared(size_of::<RobustLock>()).unwrap();
        // SAFETY: the memory is large enough, zero, which is a free lock, and never unmapped.
        let lock = unsafe { shared.cast::<RobustLock>().as_ref() };
        // SAFETY: the child takes the lock, which needs no memory, and is killed.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                std::mem::forget(lock.lock());
                libc::kill(libc::getpid(), libc::SIGKILL);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        }
        assert!(lock.lock().owner_died);
        assert!(!lock.lock().owner_died);
    }
}
