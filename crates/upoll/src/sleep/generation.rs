//! Which process this is: what the kernel holds for a parent is not its child's to use.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::errno::Errno;

/// How many forks lie between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Runs in the child of a fork, where only async-signal-safe calls are allowed.
extern "C" fn begin_generation() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// This process's.
pub(super) fn current() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// This process's, which its children will not have.
///
/// # Errors
/// `ENOMEM`.
pub(super) fn watched() -> Result<u32, Errno> {
    // Not a `Once`: a fork in the midst of it would leave the child waiting for its end. Two
    // handlers do no harm.
    static WATCHES_FORK: AtomicBool = AtomicBool::new(false);
    if !WATCHES_FORK.load(Ordering::Relaxed) {
        // SAFETY: the handler is async-signal-safe and, as this library, never unloaded.
        if unsafe { libc::pthread_atfork(None, None, Some(begin_generation)) } != 0 {
            return Err(Errno::NOMEM);
        }
        WATCHES_FORK.store(true, Ordering::Relaxed);
    }
    Ok(current())
}
