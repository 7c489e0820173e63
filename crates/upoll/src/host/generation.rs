//! Which process of a line of forks this is.
//!
//! A child has copies of all that its parent had, and of what the kernel keeps for the two of them
//! it must not take away the parent's. So what belongs to one process knows the generation that it
//! was made in.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::epoll::nesting;
use crate::errno::Errno;

/// How many forks lie between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Runs in the child of a fork, where only async-signal-safe calls are allowed.
extern "C" fn begin() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    nesting::begin_in_child();
}

/// This process's, as long as somebody has asked to [`watch_forks`].
pub(crate) fn current() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Has each `fork` from now on noticed in the child. It is called where that is first needed; a program
/// that makes a shared object in a handler of `pthread_atfork` calls it before.
///
/// # Errors
/// `ENOMEM`: there is no memory for that.
pub fn watch_forks() -> Result<(), Errno> {
    // Not a `Once`: a fork in the midst of it would leave the child waiting for its end. Two
    // handlers do no harm.
    static WATCHES: AtomicBool = AtomicBool::new(false);
    if !WATCHES.load(Ordering::Relaxed) {
        // SAFETY: the handler is async-signal-safe and, as this library, never unloaded.
        if unsafe { libc::pthread_atfork(None, None, Some(begin)) } != 0 {
            return Err(Errno::NOMEM);
        }
        WATCHES.store(true, Ordering::Relaxed);
    }
    Ok(())
}
