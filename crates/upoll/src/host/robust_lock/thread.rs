//! A thread as the kernel knows it: its id and its robust list, and its sleep on the word of a lock.

use std::cell::Cell;
use std::ffi::c_long;
use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicUsize, compiler_fence};

use upoll_sys::futex::{self, Scope};
use upoll_sys::syscall;

use crate::host::generation;
use crate::sync::{AtomicU32, Ordering};

/// Sleeps while the word is `expected`, until the lock is released or its owner dies. The sleep has
/// a short limit, as the thread that was woken instead of this one may have died.
pub(super) fn sleep(word: &AtomicU32, expected: u32) {
    let limit = libc::timespec {
        tv_sec: 0,
        tv_nsec: 200_000_000,
    };
    futex::wait(word, expected, Some(limit), Scope::Shared);
}

/// Wakes all threads, of whatever process, that sleep on a word.
pub(in crate::host) fn wake_all(word: &AtomicU32) {
    futex::wake(ptr::from_ref(word).addr(), i32::MAX, Scope::Shared);
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

/// The previous pending lock of a thread.
pub(super) struct Pending {
    list: *const RobustList,
    before: usize,
}

impl RobustList {
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
    pub(super) fn restore(&self) {
        compiler_fence(Ordering::SeqCst);
        // SAFETY: the thread's own list, which lives as long as the thread.
        let list = unsafe { &*self.list };
        list.pending.store(self.before, Ordering::Relaxed);
    }
}

/// The kernel's data about this thread.
#[derive(Clone, Copy)]
pub(super) struct Thread {
    /// The process that this was read in: a child that the C library did not make has no robust
    /// list yet.
    generation: u32,
    pub(super) id: u32,
    list: *const RobustList,
}

std::thread_local! {
    static THREAD: Cell<Option<Thread>> = const { Cell::new(None) };
    /// The list of a thread whose list by the C library is not known.
    static OWN_LIST: RobustList = const {
        RobustList {
            first: AtomicUsize::new(0),
            offset: 0,
            pending: AtomicUsize::new(0),
        }
    };
}

/// The id of no thread, where the kernel refuses to tell this one's: the death of the thread is not noticed then. With 0
/// nobody would have the lock.
const NO_THREAD: u32 = libc::FUTEX_TID_MASK;

impl Thread {
    pub(super) fn current() -> Self {
        let known = THREAD.get();
        match known.filter(|thread| thread.generation == generation::current()) {
            Some(thread) => thread,
            None => Self::ask(),
        }
    }

    #[cold]
    fn ask() -> Self {
        // First: a handler may fork after it, and the child asks anew.
        let generation = generation::current();
        let thread = Thread {
            generation,
            id: futex::thread_id().unwrap_or(NO_THREAD),
            list: match registered() {
                Some(list) if !list.is_null() => list,
                Some(_) => register(),
                // It may be the C library's, which is not to be replaced.
                None => OWN_LIST.with(ptr::from_ref),
            },
        };
        THREAD.set(Some(thread));
        thread
    }

    /// Makes `word` the pending lock of the thread.
    pub(super) fn set_pending(&self, word: &AtomicU32) -> Pending {
        self.robust_list().set_pending(word)
    }

    fn robust_list(&self) -> &RobustList {
        // SAFETY: the kernel has it as the list of this thread, so it is one and lives as long as the
        // thread; or it is `OWN_LIST`. A `Thread` does not leave its thread.
        unsafe { &*self.list }
    }
}

/// Returns the list that the C library has registered for this thread; null if it has registered none. Returns None if
/// the kernel does not tell.
fn registered() -> Option<*const RobustList> {
    let mut list = ptr::null::<RobustList>();
    let mut size = 0_usize;
    // SAFETY: both places are live and of the size that the kernel writes.
    let asked = unsafe { syscall!(SYS_get_robust_list, 0, &raw mut list, &raw mut size) };
    let is_known = asked.is_ok() && (list.is_null() || size == size_of::<RobustList>());
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
        let _ = unsafe { syscall!(SYS_set_robust_list, address, size_of::<RobustList>()) };
        address
    })
}
