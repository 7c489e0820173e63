//! The end of a thread, for what it keeps from one call to the next.
//!
//! Not by thread-locals with destructors: the first use of one takes memory from the C library's heap,
//! perhaps in a signal handler that has interrupted an allocation. A key of the C library's takes none,
//! as one of the first 32 of a process.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{select, thread_wake_fd};

/// The key with the destructor, and one more; 0 until there is one.
static KEY: AtomicU32 = AtomicU32::new(0);

std::thread_local! {
    /// The key has a value in this thread.
    static IS_NOTED: Cell<bool> = const { Cell::new(false) };
}

/// Makes the key, unless there is one. Not a `Once`: the child of a fork would wait for a thread that it
/// does not have.
pub fn prepare() -> Option<libc::pthread_key_t> {
    let known = KEY.load(Ordering::Acquire);
    if known != 0 {
        return Some(known - 1);
    }
    let mut key = 0;
    // SAFETY: the key is live, and the destructor never unloaded, as this library is not.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(drop_kept)) } != 0 {
        return None;
    }
    match KEY.compare_exchange(0, key + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(key),
        Err(first) => {
            // SAFETY: nobody has seen the key.
            unsafe { libc::pthread_key_delete(key) };
            Some(first - 1)
        }
    }
}

/// Returns whether the thread may keep something: it is dropped when the thread ends.
pub(super) fn may_keep() -> bool {
    if IS_NOTED.get() {
        return true;
    }
    let value = ptr::from_ref(&KEY).cast();
    // SAFETY: the key is never deleted; its value is only compared with null.
    let is_noted =
        prepare().is_some_and(|key| unsafe { libc::pthread_setspecific(key, value) } == 0);
    IS_NOTED.set(is_noted);
    is_noted
}

/// Drops what the ending thread has kept. A destructor that runs later may have it keep something again,
/// and then this one runs once more.
unsafe extern "C" fn drop_kept(_: *mut c_void) {
    IS_NOTED.set(false);
    thread_wake_fd::drop_kept();
    select::drop_kept();
}
