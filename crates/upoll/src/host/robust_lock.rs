//! A lock of one word for memory that processes share, which survives the death of its owner.
//!
//! The word holds the owner's thread id. When a thread ends, the kernel looks at the *pending* lock of
//! the thread's robust list (`set_robust_list(2)`), and at every lock that is linked into that list. A
//! link would be a pointer in the shared memory, where other processes can change it. So a lock is never
//! linked here: it is the pending one for as long as its owner holds it, and the only pointer to it is
//! in memory of the owner's alone. A thread holds one such lock at a time.
//!
//! If the word holds the thread's id when the thread ends, the kernel replaces it with
//! [`OWNER_DIED`]; then, or if the word is 0, it wakes a waiter.
//!
//! # What a hostile process can do
//! The word is only compared, and the kernel checks that a dying thread owns what it releases. So a
//! process that writes to the word can keep others from taking the lock, or let two take it.
//!
//! Two processes in different pid namespaces may have threads with the same id. If one is killed while
//! it waits for the lock and the other one holds it, the kernel takes the lock away from its owner. The
//! same holds for the robust mutexes of the C library.

use std::cell::Cell;
use std::ffi::c_long;
use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicUsize, compiler_fence};

use syscalls::{Sysno, syscall};

use super::generation;
use crate::sync::AtomicU32;
use crate::sync::Ordering;

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
    /// Whether the last owner died while it held the lock.
    pub(super) owner_died: bool,
    pending: Pending,
}

impl RobustLock {
    pub(super) const fn new() -> Self {
        RobustLock(AtomicU32::new(0))
    }

    /// Takes the lock, and waits for it if necessary.
    pub(super) fn lock(&self) -> Held<'_> {
        let thread = Thread::current();
        let pending = thread.robust_list().set_pending(&self.0);
        let owner_died = self.take(thread.id);
        Held {
            lock: self,
            owner_died,
            pending,
        }
    }

    /// Returns whether the last owner died.
    fn take(&self, own: u32) -> bool {
        // Set by each thread that has slept: others may still sleep.
        let mut waiters = 0;
        let mut word = 0;
        loop {
            let is_free = word == 0 || word & OWNER_DIED != 0;
            let next = match is_free {
                true => own | waiters | word & WAITERS,
                false => word | WAITERS,
            };
            let changed = self
                .0
                .compare_exchange(word, next, Ordering::SeqCst, Ordering::SeqCst);
            match changed {
                Ok(_) if is_free => return word & OWNER_DIED != 0,
                Ok(_) => {
                    self.sleep(next);
                    waiters = WAITERS;
                    word = 0;
                }
                Err(now) => word = now,
            }
        }
    }

    /// Sleeps while the word is `expected`, at most until the lock is released or its owner dies.
    fn sleep(&self, expected: u32) {
        let operation = libc::FUTEX_WAIT;
        // SAFETY: the kernel only reads the word; there is no time limit.
        let _ = unsafe { syscall!(Sysno::futex, self.0.as_ptr(), operation, expected, 0) };
    }

    fn release(&self) {
        if self.0.swap(0, Ordering::SeqCst) & WAITERS != 0 {
            // All of them: a single one might be killed before it takes the lock, after another thread
            // has taken it that does not know of the rest.
            let operation = libc::FUTEX_WAKE;
            // SAFETY: the kernel does not write to the word.
            let _ = unsafe { syscall!(Sysno::futex, self.0.as_ptr(), operation, i32::MAX) };
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.lock.release();
        self.pending.restore();
    }
}

/// `struct robust_list_head`, which the kernel reads when the thread ends.
#[repr(C)]
struct RobustList {
    /// The first link, or the address of this structure.
    first: AtomicUsize,
    /// From a link to its lock's word.
    offset: c_long,
    /// The link of a lock that is being taken, held or released.
    pending: AtomicUsize,
}

/// What the pending lock of a thread was before.
struct Pending {
    list: *const RobustList,
    before: usize,
}

impl RobustList {
    /// Makes `word` the pending lock of the thread.
    fn set_pending(&self, word: &AtomicU32) -> Pending {
        let link = word
            .as_ptr()
            .expose_provenance()
            .wrapping_add_signed(-self.offset as isize);
        let before = self.pending.load(Ordering::Relaxed);
        self.pending.store(link, Ordering::Relaxed);
        // The kernel reads it on this very thread.
        compiler_fence(Ordering::SeqCst);
        Pending { list: self, before }
    }
}

impl Pending {
    /// The C library may be in the midst of taking a mutex, if this is a signal handler.
    fn restore(&self) {
        compiler_fence(Ordering::SeqCst);
        // SAFETY: the thread's own list, which lives as long as the thread.
        let list = unsafe { &*self.list };
        list.pending.store(self.before, Ordering::Relaxed);
    }
}

/// What the kernel knows of this thread.
#[derive(Clone, Copy)]
struct Thread {
    /// Which process this was asked in: a child that the C library did not make has no robust list yet.
    generation: u32,
    id: u32,
    list: *const RobustList,
}

std::thread_local! {
    static THREAD: Cell<Option<Thread>> = const { Cell::new(None) };
    /// The list of a thread for which the C library has registered none.
    static OWN_LIST: RobustList = const {
        RobustList {
            first: AtomicUsize::new(0),
            offset: 0,
            pending: AtomicUsize::new(0),
        }
    };
}

impl Thread {
    fn current() -> Self {
        let known = THREAD.get();
        match known.filter(|thread| thread.generation == generation::current()) {
            Some(thread) => thread,
            None => Self::ask(),
        }
    }

    #[cold]
    fn ask() -> Self {
        // SAFETY: no pointers are involved.
        let id = unsafe { syscall!(Sysno::gettid) }.unwrap_or(0);
        let thread = Thread {
            generation: generation::current(),
            id: u32::try_from(id).unwrap_or(0),
            list: registered().unwrap_or_else(register),
        };
        THREAD.set(Some(thread));
        thread
    }

    fn robust_list(&self) -> &RobustList {
        // SAFETY: the kernel has it as the list of this thread, so it is one and lives as long as the
        // thread; or it is `OWN_LIST`. A `Thread` does not leave its thread.
        unsafe { &*self.list }
    }
}

/// Returns the list that the C library has registered for this thread.
fn registered() -> Option<*const RobustList> {
    let mut list = ptr::null::<RobustList>();
    let mut size = 0_usize;
    // SAFETY: both places are live and of the size that the kernel writes.
    let asked = unsafe { syscall!(Sysno::get_robust_list, 0, &raw mut list, &raw mut size) };
    let is_known = asked.is_ok() && !list.is_null() && size == size_of::<RobustList>();
    is_known.then(|| ptr::with_exposed_provenance(list.addr()))
}

/// Registers a list of this thread's own, for a thread that the C library has not made. If the kernel
/// refuses, the death of the thread is not noticed.
fn register() -> *const RobustList {
    OWN_LIST.with(|list| {
        let address = ptr::from_ref(list);
        list.first.store(
            address.expose_provenance() + offset_of!(RobustList, first),
            Ordering::Relaxed,
        );
        // SAFETY: the list is complete, and lives as long as the thread.
        let _ = unsafe { syscall!(Sysno::set_robust_list, address, size_of::<RobustList>()) };
        address
    })
}
