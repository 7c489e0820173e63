//! Ctrl-C, which ends a benchmark between batches, and a soak between rounds. A benchmark also ends when nobody reads
//! its output any more.
//!
//! The signal is blocked, and the run asks for it: a handler would interrupt calls that are measured, and a
//! thread that waits for the signal would make those of the kernel slower.

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};

use crate::output;

/// The exit status after Ctrl-C, as shells have it.
pub(crate) const STATUS: u8 = 128 + libc::SIGINT as u8;

/// Returns the set of SIGINT alone.
fn signals() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call initializes the set, and SIGINT is a signal.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
        set.assume_init()
    }
}

/// Keeps Ctrl-C from ending this process, and the threads and programs that it starts later. Does nothing if the
/// signal is ignored: while it is blocked the kernel would keep it, and the run would end.
pub(crate) fn hold() -> io::Result<()> {
    // SAFETY: all zeros is a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: no action is set, and the present one is written to a live place.
    let asked = unsafe { libc::sigaction(libc::SIGINT, std::ptr::null(), &raw mut action) };
    if asked == 0 && action.sa_sigaction == libc::SIG_IGN {
        return Ok(());
    }
    // SAFETY: the set is initialized, and the former mask is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &signals(), std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// True if the run is of use to the reader of standard output alone.
static IS_FOR_THE_READER: AtomicBool = AtomicBool::new(false);

/// Ends the run also when standard output has lost its reader.
pub(crate) fn end_with_the_reader() {
    IS_FOR_THE_READER.store(true, Ordering::Relaxed);
}

/// Returns whether the run is to end: Ctrl-C was pressed, or [the reader](end_with_the_reader) is gone.
pub(crate) fn is_pending() -> bool {
    is_pressed() || IS_FOR_THE_READER.load(Ordering::Relaxed) && output::is_unread()
}

/// Returns whether Ctrl-C was pressed.
pub(crate) fn is_pressed() -> bool {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the call initializes the set if it succeeds, and SIGINT is a signal.
    unsafe {
        libc::sigpending(set.as_mut_ptr()) == 0
            && libc::sigismember(&set.assume_init(), libc::SIGINT) == 1
    }
}

/// Fails if the run is to end.
pub(crate) fn check() -> Result<()> {
    if is_pending() {
        bail!("interrupted");
    }
    Ok(())
}
