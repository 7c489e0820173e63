//! `fork(2)`: parent and child share open files, but not memory.
//!
//! Before the fork everything that can be is handed over to the kernel, which serves both. An eventfd
//! with a maximum, which the kernel does not know, moves to memory that both have, and from then on
//! either uses that. What else there is stays with the parent. The child must not go on with a copy that others do not see: its
//! numbers for such objects become those of a file on which nothing can be done (`O_PATH`), so calls
//! on them give `EBADF`, and it can close them or put others in their place.

use std::sync::atomic::{AtomicBool, Ordering};

use upoll::Errno;

use crate::kernel::{self, call, number};
use crate::{demote, in_use, table};

/// Has forks noticed from now on.
///
/// # Errors
/// `ENOMEM`: no memory for it.
pub(crate) fn watch() -> Result<(), Errno> {
    // Not a `Once`: a fork in the midst of it would leave the child waiting for its end. Handlers
    // that run twice do no harm.
    static IS_WATCHED: AtomicBool = AtomicBool::new(false);
    if IS_WATCHED.load(Ordering::Relaxed) {
        return Ok(());
    }
    // Its handlers have to be there before the first fork, too.
    upoll::watch_forks()?;
    // SAFETY: the handlers are never unloaded, as this library is not.
    if unsafe { libc::pthread_atfork(Some(before), None, Some(in_the_child)) } != 0 {
        return Err(Errno::NOMEM);
    }
    IS_WATCHED.store(true, Ordering::Relaxed);
    Ok(())
}

extern "C" fn before() {
    demote::demote_all();
    demote::share_all();
}

/// Nothing here takes a lock or allocates: another thread of the parent may have been doing so.
extern "C" fn in_the_child() {
    in_use::forget_other_threads();
    demote::forget_other_threads();
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    // SAFETY: the path is a live C string.
    let nothing = number(unsafe { call!(openat, libc::AT_FDCWD, c"/".as_ptr(), flags) });
    for fd in table::numbers(0, u32::MAX) {
        if table::is_shared_with_children(fd) {
            continue;
        }
        if let Ok(nothing) = nothing {
            kernel::replace(fd, nothing);
        } else {
            // It has used up its numbers; then it cannot have this one.
            let _ = kernel::close(fd);
        }
        table::forget(fd);
    }
    if let Ok(nothing) = nothing {
        // It is ours alone.
        let _ = kernel::close(nothing);
    }
}
