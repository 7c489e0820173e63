//! `fork(2)`: parent and child share open files, but not memory.
//!
//! Before the fork everything that can be is handed over to the kernel, which serves both. An eventfd
//! with a maximum, which the kernel does not know, moves to memory that both have, and from then on
//! either uses that. A set that the kernel cannot have stays with the parent, and the child gets one of
//! its own that watches the same ([`inherit`]). What else there is, an embedder's objects above all,
//! stays with the parent. The child must not go on with a copy that others do not see: its numbers for
//! such objects become those of a file on which nothing can be done (`O_PATH`), so calls on them give
//! `EBADF`, and it can close them or put others in their place.
//!
//! # What other threads do meanwhile
//! A number that is just being given out, closed or copied means one thing in the kernel and another
//! here. So a fork waits for changes that have begun ([`Change`]), and none begins until it is done:
//! what is made meanwhile is the kernel's from the start, other changes wait. All waits end after a
//! while, as the one may hold a lock that the other's handlers for forks want.
//!
//! The named pair: a change counts itself, then looks whether a fork is under way; a fork says so, then
//! looks at the count.

use std::cell::Cell;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use upoll::Errno;

use crate::inherit::Inheritance;
use crate::kernel::{self, call, number};
use crate::patience::Patience;
use crate::set::NumberedSet;
use crate::{demote, in_use, inherit, table};

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
    if unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_the_child)) } != 0 {
        return Err(Errno::NOMEM);
    }
    IS_WATCHED.store(true, Ordering::Relaxed);
    Ok(())
}

/// Forks that are under way.
static FORKS: AtomicUsize = AtomicUsize::new(0);
/// Threads that are changing what numbers mean.
static CHANGES: AtomicUsize = AtomicUsize::new(0);

std::thread_local! {
    /// Changes within one another that this thread is in the midst of.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// This thread forks.
    static IS_FORKING: Cell<bool> = const { Cell::new(false) };
    /// What the child is to make.
    static INHERITANCE: Cell<Option<Inheritance>> = const { Cell::new(None) };
}

/// While this exists no fork takes place, unless it is in a signal handler of this very thread.
pub(crate) struct Change;

impl Change {
    /// None while a fork is under way.
    pub(crate) fn try_begin() -> Option<Self> {
        let depth = DEPTH.get();
        if depth == 0 {
            CHANGES.fetch_add(1, Ordering::SeqCst);
            if FORKS.load(Ordering::SeqCst) != 0 && !IS_FORKING.get() {
                CHANGES.fetch_sub(1, Ordering::SeqCst);
                return None;
            }
        }
        DEPTH.set(depth + 1);
        Some(Change)
    }

    pub(crate) fn begin() -> Self {
        let mut begun = None;
        wait_until(|| {
            begun = Self::try_begin();
            begun.is_some()
        });
        begun.unwrap_or_else(|| {
            let depth = DEPTH.get();
            if depth == 0 {
                CHANGES.fetch_add(1, Ordering::SeqCst);
            }
            DEPTH.set(depth + 1);
            Change
        })
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        let depth = DEPTH.get() - 1;
        DEPTH.set(depth);
        if depth == 0 {
            CHANGES.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Waits for others, though not for ever.
fn wait_until(mut is_so: impl FnMut() -> bool) {
    const LONGEST: Duration = Duration::from_secs(1);
    let begun = Instant::now();
    let mut patience = Patience::new();
    while !is_so() && begun.elapsed() < LONGEST {
        patience.wait();
    }
}

extern "C" fn before() {
    FORKS.fetch_add(1, Ordering::SeqCst);
    IS_FORKING.set(true);
    let own = usize::from(DEPTH.get() > 0);
    wait_until(|| CHANGES.load(Ordering::SeqCst) <= own);
    demote::demote_all();
    demote::share_all();
    // A thread that is about to end has no place for it any more.
    let _ = INHERITANCE.try_with(|kept| kept.set(Some(Inheritance::write_down())));
}

extern "C" fn after() {
    IS_FORKING.set(false);
    FORKS.fetch_sub(1, Ordering::SeqCst);
    let _ = INHERITANCE.try_with(Cell::take);
}

/// Nothing here takes a lock that another thread of the parent may have had. Memory is allocated where
/// there are sets to make: the C library's `fork` keeps its own in order.
extern "C" fn in_the_child() {
    IS_FORKING.set(false);
    FORKS.store(0, Ordering::SeqCst);
    CHANGES.store(usize::from(DEPTH.get() > 0), Ordering::SeqCst);
    in_use::forget_other_threads();
    demote::forget_other_threads();
    let mut taken = inherit::reopen_shared();
    let inheritance = INHERITANCE.try_with(Cell::take).ok().flatten();
    if let Some(inheritance) = &inheritance {
        taken.extend(inheritance.take_numbers());
    }
    leave_to_the_parent(table::numbers(0, u32::MAX).filter(|fd| !taken.contains(fd)));
    if let Some(inheritance) = &inheritance {
        inheritance.take_interests();
    }
}

/// Has calls on these numbers give `EBADF`.
fn leave_to_the_parent(numbers: impl Iterator<Item = RawFd>) {
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    // SAFETY: the path is a live C string.
    let nothing = number(unsafe { call!(openat, libc::AT_FDCWD, c"/".as_ptr(), flags) });
    for fd in numbers {
        if inherit::set_alone(fd).is_some_and(NumberedSet::is_passive) {
            // All of it is in the kernel set, which both have.
        } else if let Ok(nothing) = nothing {
            kernel::replace(fd, nothing);
        } else {
            // It has used up its numbers; then it cannot have this one.
            let _ = kernel::close(fd);
        }
        table::set_alone(fd, None);
    }
    if let Ok(nothing) = nothing {
        // It is ours alone.
        let _ = kernel::close(nothing);
    }
}
