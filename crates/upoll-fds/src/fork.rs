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
//! No other thread is in the midst of changing a number meanwhile ([`change`]).
//!
//! # Cost without user-level objects
//! Each page that is written between a fork and the end of the child is copied, or costs a page fault at least,
//! in the parent as in the child. So nothing is written that has the right value already, and without a
//! user-level fd nothing is done but to count the fork, in memory that the child does not get. The handlers of the child, here and elsewhere, are in one
//! section, `upoll_fork`, as a child maps the pages of code that it runs anew.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU8, Ordering};

use upoll::Errno;

use crate::inherit::Inheritance;
use crate::kernel::{self, call, number};
use crate::patience::wait_until;
use crate::set::NumberedSet;
use crate::{change, demote, in_use, inherit, plain_sets, table};

/// Whether forks are noticed; one of the following.
static WATCH: AtomicU8 = AtomicU8::new(NOT_BEGUN);
const NOT_BEGUN: u8 = 0;
/// A thread is just seeing to it.
const BEGUN: u8 = 1;
const WATCHES: u8 = 2;

/// Has forks noticed from now on.
///
/// # Errors
/// `ENOMEM`: no memory for it.
pub(crate) fn watch() -> Result<(), Errno> {
    match WATCH.load(Ordering::Acquire) {
        WATCHES => Ok(()),
        _ => begin_to_watch(),
    }
}

/// Only one thread is to do it: handlers that ran twice would take away what the first run has made for
/// the child. Not a `Once`: the child of a fork in the midst of it would wait for ever.
#[cold]
fn begin_to_watch() -> Result<(), Errno> {
    wait_until(|| {
        let claim = WATCH.compare_exchange(NOT_BEGUN, BEGUN, Ordering::Acquire, Ordering::Acquire);
        claim != Err(BEGUN)
    });
    if WATCH.load(Ordering::Acquire) == WATCHES {
        return Ok(());
    }
    let registered = register();
    let outcome = if registered.is_ok() {
        WATCHES
    } else {
        NOT_BEGUN
    };
    WATCH.store(outcome, Ordering::Release);
    registered
}

fn register() -> Result<(), Errno> {
    // Its handlers have to be there before the first fork, too.
    upoll::watch_forks()?;
    // SAFETY: the handlers are never unloaded, as this library is not.
    match unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_the_child)) } {
        0 => Ok(()),
        _ => Err(Errno::NOMEM),
    }
}

/// What the child of a fork is to make. Where that is nothing, no memory is allocated for it: a handler that
/// forks may have interrupted who allocates.
struct Will {
    inheritance: Inheritance,
    /// That of the fork that this one is in the midst of, in a signal handler.
    outer: Option<Box<Will>>,
}

impl Will {
    /// To be made once everything has been handed over that can be.
    fn make(outer: Option<Will>) -> Self {
        Will {
            outer: outer.filter(|outer| !outer.is_empty()).map(Box::new),
            inheritance: Inheritance::write_down(),
        }
    }

    fn is_empty(&self) -> bool {
        self.inheritance.is_empty() && self.outer.is_none()
    }

    /// In the child: what its own child is to make, which the outer fork is about to bring about.
    fn remake(self) -> Self {
        Will::make(self.outer.map(|outer| outer.remake()))
    }
}

std::thread_local! {
    /// Of the innermost fork that this thread is in the midst of. A handler that forks leaves it as it
    /// has found it, so what is taken out may be put back later.
    /// It is not dropped at the thread's end: that would take memory when it is first used.
    static WILL: Cell<Option<ManuallyDrop<Will>>> = const { Cell::new(None) };
}

fn take_will() -> Option<Will> {
    WILL.take().map(ManuallyDrop::into_inner)
}

fn keep(will: Option<Will>) {
    WILL.set(will.map(ManuallyDrop::new));
}

fn outer(will: Will) -> Option<Will> {
    will.outer.map(|outer| *outer)
}

extern "C" fn before() {
    // If the thread that sees to it has not come to say so, the child would see to it once more.
    if WATCH.load(Ordering::Relaxed) != WATCHES {
        WATCH.store(WATCHES, Ordering::Release);
    }
    begin_unseen_fork();
}

extern "C" fn after() {
    end_unseen_fork();
}

/// To be called before a fork that the C library calls no handlers for (`_Fork`, `clone`), and then in the
/// parent [`end_unseen_fork`], in the child [`end_unseen_fork_in_the_child`] or
/// [`end_unseen_fork_with_numbers`].
#[doc(hidden)]
pub fn begin_unseen_fork() {
    change::begin_fork();
    plain_sets::forget_before_fork();
    let outer = take_will();
    if !table::has_any() && outer.is_none() {
        return;
    }
    demote::demote_all();
    demote::share_all();
    if table::is_none_left() && outer.is_none() {
        return;
    }
    keep(Some(Will::make(outer)));
}

#[doc(hidden)]
pub fn end_unseen_fork() {
    change::end_fork();
    if let Some(will) = take_will() {
        keep(outer(will));
    }
}

/// # Safety
/// The caller is the only thread of a child that was just made by a system call after
/// [`begin_unseen_fork`], with a memory of its own.
#[doc(hidden)]
pub unsafe fn end_unseen_fork_in_the_child() {
    // SAFETY: the caller's contract.
    unsafe { upoll::begin_in_child(false) };
    in_the_child();
}

/// The same in a child that shares its numbers with its parent (`CLONE_FILES`): what could not be handed
/// over stays open there.
///
/// # Safety
/// As [`end_unseen_fork_in_the_child`].
#[doc(hidden)]
pub unsafe fn end_unseen_fork_with_numbers() {
    // SAFETY: the caller's contract.
    unsafe { upoll::begin_in_child(true) };
    forget_other_threads();
    keep(None);
    for fd in table::numbers(0, u32::MAX) {
        table::set_alone(fd, None);
    }
}

#[unsafe(link_section = "upoll_fork")]
fn forget_other_threads() {
    change::end_fork_in_the_child();
    in_use::forget_other_threads();
    demote::forget_other_threads();
}

/// Nothing here takes a lock that another thread of the parent may have had. Memory is allocated where
/// there are sets to make: the C library's `fork` keeps its own in order.
#[unsafe(link_section = "upoll_fork")]
extern "C" fn in_the_child() {
    forget_other_threads();
    let will = take_will();
    if will.is_some() || table::has_any() {
        take_over(will);
    }
}

/// In a child with user-level fds: makes each of them stand for what the child has.
#[cold]
#[inline(never)]
fn take_over(will: Option<Will>) {
    let mut taken = inherit::reopen_shared();
    let (inheritance, outer) = will.map(|will| (will.inheritance, will.outer)).unzip();
    if let Some(inheritance) = &inheritance {
        taken.extend(inheritance.take_numbers());
    }
    taken.sort_unstable();
    let is_left = |fd: &RawFd| taken.binary_search(fd).is_err();
    leave_to_the_parent(table::numbers(0, u32::MAX).filter(is_left));
    if let Some(inheritance) = &inheritance {
        inheritance.take_interests();
    }
    if let Some(outer) = outer.flatten() {
        keep(Some(outer.remake()));
    }
}

/// Has calls on these numbers give `EBADF`.
fn leave_to_the_parent(numbers: impl Iterator<Item = RawFd>) {
    let mut numbers = numbers.peekable();
    if numbers.peek().is_none() {
        return;
    }
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
