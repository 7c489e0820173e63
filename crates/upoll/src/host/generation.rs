//! The number of this process in its line of forks.
//!
//! A child has copies of all that its parent had. The kernel keeps some of that for both, and the child must not
//! take it away from the parent. So each thing that belongs to one process knows its generation.

use std::ptr;

use super::{kernel, own_fds};
use crate::epoll::nesting;
use crate::errno::Errno;
use crate::forks;
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use crate::wait::Scope;

/// The number of forks between the first process and this one, or more.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The number of words for others in the page that a child finds wiped.
pub const WIPED_WORDS: usize = 2;

/// The contents of the memory that a child finds wiped.
pub(super) struct Wiped {
    /// [`GENERATION`] plus one.
    mark: AtomicU32,
    words: [AtomicUsize; WIPED_WORDS],
}

/// Null if the kernel has no such memory. The C library has its handlers run by `fork`, and not by a bare
/// `clone(2)`.
static WIPED: AtomicPtr<Wiped> = AtomicPtr::new(ptr::null_mut());

/// Runs in the child of a fork, where only async-signal-safe calls are allowed.
#[unsafe(link_section = "upoll_fork")]
extern "C" fn begin() {
    begin_with_fds_of_the_parent();
    own_fds::close_inherited();
    own_fds::forget_holder();
}

#[unsafe(link_section = "upoll_fork")]
fn begin_with_fds_of_the_parent() {
    // With a mark the child counts itself when it first asks: a write here would cost it two copies of pages.
    if mark().is_none() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: `fork` calls its handlers before it returns in the child, on the child's only thread. The
    // callers of `begin_in_child` promise the same.
    unsafe {
        nesting::begin_in_child();
        Scope::begin_in_child();
    };
}

/// Does what the handler of [`watch_forks`] does, in children for which the C library calls no handlers.
/// `shares_fds`: the child's fds are its parent's (`CLONE_FILES`).
///
/// # Safety
/// The caller is the only thread of a process with a memory of its own that was just forked, and has
/// called nothing else of this crate there. It frees the lock for adding sets to sets, whoever holds it.
///
/// So it cannot be called without `unsafe`:
/// ```compile_fail,E0133
/// upoll::internal::begin_in_child(false);
/// ```
pub unsafe fn begin_in_child(shares_fds: bool) {
    match shares_fds {
        true => begin_with_fds_of_the_parent(),
        false => begin(),
    }
}

fn wiped() -> Option<&'static Wiped> {
    // SAFETY: null, or set by `map_wiped` to memory that is never unmapped.
    unsafe { WIPED.load(Ordering::Acquire).as_ref() }
}

fn mark() -> Option<&'static AtomicU32> {
    wiped().map(|wiped| &wiped.mark)
}

/// Returns words that are zero at the start of each process, that of a forked child too, whatever its parent has
/// stored there. None if the kernel has no memory that is wiped on a fork.
pub fn wiped_words() -> Option<&'static [AtomicUsize; WIPED_WORDS]> {
    if wiped().is_none() {
        map_wiped();
    }
    wiped().map(|wiped| &wiped.words)
}

/// This process's, as long as somebody has asked to [`watch_forks`].
pub(crate) fn current() -> u32 {
    let Some(mark) = mark() else {
        return GENERATION.load(Ordering::Relaxed);
    };
    forks::generation(&GENERATION, mark)
}

/// Detects children that the C library does not make.
fn map_wiped() {
    let Some(place) = kernel::map_wiped(size_of::<Wiped>()) else {
        return;
    };
    let place = place.cast::<Wiped>().as_ptr();
    // SAFETY: a new page, which is zero, as all of this may be, and which nobody else knows.
    let mark = unsafe { &(*place).mark };
    mark.store(
        GENERATION.load(Ordering::Relaxed).wrapping_add(1),
        Ordering::Relaxed,
    );
    // A second page that another thread has made stays unused.
    let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
    let _ = WIPED.compare_exchange(ptr::null_mut(), place, success, failure);
}

/// Detects each later `fork` in the child. It is called where that is first needed. A program that
/// makes a shared object in a handler of `pthread_atfork` calls it before.
///
/// # Errors
/// `ENOMEM`: there is no memory for that.
#[unsafe(link_section = "upoll_fork")]
pub fn watch_forks() -> Result<(), Errno> {
    // Not a `Once`: a fork in the midst of it would leave the child waiting for its end. Two
    // handlers do no harm.
    static WATCHES: AtomicBool = AtomicBool::new(false);
    if !WATCHES.load(Ordering::Relaxed) {
        // SAFETY: the handler is async-signal-safe and, as this library, never unloaded.
        if unsafe { libc::pthread_atfork(None, None, Some(begin)) } != 0 {
            return Err(Errno::NOMEM);
        }
        if wiped().is_none() {
            map_wiped();
        }
        WATCHES.store(true, Ordering::Relaxed);
    }
    Ok(())
}
