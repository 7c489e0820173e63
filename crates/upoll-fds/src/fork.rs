//! `fork(2)`: parent and child share open files, but not memory.
//!
//! Before the fork every object that can be demoted is demoted, and the kernel serves both processes. An
//! eventfd with a maximum, which the kernel does not support, moves to memory that both processes share. A set
//! that the kernel cannot have stays with the parent, and the child gets one of its own that watches the same
//! ([`inherit`]). All other objects, above all an embedder's, stay with the parent. The child must not go on
//! with a private copy. Its fds for such objects are replaced with fds of a file that supports no operation
//! (`O_PATH`). So calls on them fail with `EBADF`, and the child can close or replace them.
//!
//! No other thread is in the midst of changing an fd meanwhile ([`change`]).
//!
//! # Cost without user-level objects
//! A page that is written between a fork and the end of the child is copied, or costs a page fault at least, in
//! the parent and in the child. So a word is not written if it has the right value already. Without a
//! user-level fd the fork is counted and nothing else is done. The count is in memory that the child does not
//! get. The fork handlers of the child, here and elsewhere, are in one section, `upoll_fork`, because a child
//! maps anew the pages of code that it runs.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU8, Ordering};

use upoll::Errno;
use upoll::internal::boxed;

use crate::fork_snapshot::SetSnapshots;
use crate::kernel::{self, call, to_fd};
use crate::set::SetWithFd;
use crate::slot::hazard;
use crate::{change, counts, demote, figures, fork_snapshot, plain_sets, select, signals, table};
use upoll_sys::backoff::wait_until;

/// The state of the registration of fork handlers; one of the following.
static WATCH: AtomicU8 = AtomicU8::new(NOT_BEGUN);
const NOT_BEGUN: u8 = 0;
/// A thread is registering them.
const BEGUN: u8 = 1;
const WATCHES: u8 = 2;

/// Registers the fork handlers, if that has not been done.
///
/// # Errors
/// `ENOMEM`: there is no memory for them.
pub(crate) fn watch() -> Result<(), Errno> {
    match WATCH.load(Ordering::Acquire) {
        WATCHES => Ok(()),
        _ => begin_to_watch(),
    }
}

/// Only one thread may register the handlers: handlers that ran twice would remove what the first run
/// has made for the child. Not a `Once`: the child of a fork in the midst of it would wait for ever.
#[cold]
#[unsafe(link_section = "upoll_fork")]
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
    // Every child reads this word. Its page is mapped there only if the parent has read it.
    std::hint::black_box(figures::are_shown());
    // The core's handlers must be there before the first fork, too.
    upoll::internal::watch_forks()?;
    // SAFETY: the handlers are never unloaded, as this library is not.
    match unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_the_child)) } {
        0 => Ok(()),
        _ => Err(Errno::NOMEM),
    }
}

/// The plan for the child of a fork. An empty plan allocates no memory: a handler that forks may have
/// interrupted an allocation.
struct ForkSnapshot {
    sets: SetSnapshots,
    /// The plan of the fork that this one has interrupted, in a signal handler.
    outer: Option<Box<ForkSnapshot>>,
}

impl ForkSnapshot {
    /// Makes the plan, after all objects that can be demoted were demoted.
    fn make(outer: Option<ForkSnapshot>) -> Self {
        ForkSnapshot {
            // Without memory for it, the child does not get what it lists.
            outer: outer
                .filter(|outer| !outer.is_empty())
                .and_then(|outer| boxed(outer).ok()),
            sets: SetSnapshots::write_down(),
        }
    }

    fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.outer.is_none()
    }

    /// Makes the plan again in the child: the outer fork, which it has interrupted, will make a
    /// child of this one.
    fn remake(self) -> Self {
        ForkSnapshot::make(self.outer.map(|outer| outer.remake()))
    }
}

std::thread_local! {
    /// The plan of the innermost fork of this thread. A handler that forks restores it, so it may be
    /// taken out and put back later. It is not dropped at the thread's end: that would take memory
    /// when it is first used.
    static SNAPSHOT: Cell<Option<ManuallyDrop<ForkSnapshot>>> = const { Cell::new(None) };
}

fn take_snapshot() -> Option<ForkSnapshot> {
    SNAPSHOT.take().map(ManuallyDrop::into_inner)
}

fn keep(snapshot: Option<ForkSnapshot>) {
    SNAPSHOT.set(snapshot.map(ManuallyDrop::new));
}

fn outer(snapshot: ForkSnapshot) -> Option<ForkSnapshot> {
    snapshot.outer.map(|outer| *outer)
}

extern "C" fn before() {
    // The thread that registers the handlers may not have published that yet. The child would
    // register them again.
    if WATCH.load(Ordering::Relaxed) != WATCHES {
        WATCH.store(WATCHES, Ordering::Release);
    }
    begin_unseen_fork();
}

extern "C" fn after() {
    end_unseen_fork();
}

/// Prepares a fork for which the C library calls no handlers (`_Fork`, `clone`). After it the parent calls
/// [`end_unseen_fork`]. The child calls [`end_unseen_fork_in_the_child`] or
/// [`end_unseen_fork_with_fds`].
pub fn begin_unseen_fork() {
    change::begin_fork();
    plain_sets::forget_before_fork();
    let outer = take_snapshot();
    if !table::has_any() && outer.is_none() {
        return;
    }
    demote::demote_all();
    if !table::has_any() && outer.is_none() {
        return;
    }
    demote::share_all();
    if table::is_none_left() && outer.is_none() {
        return;
    }
    keep(Some(ForkSnapshot::make(outer)));
}

/// Ends, in the parent, what [`begin_unseen_fork`] has begun.
pub fn end_unseen_fork() {
    change::end_fork();
    if let Some(snapshot) = take_snapshot() {
        keep(outer(snapshot));
    }
}

/// Makes, in the child, each user-level fd stand for an object of the child's. Objects that [`begin_unseen_fork`]
/// could not demote stay with the parent, but for the sets of its snapshot and shared eventfds.
///
/// # Safety
/// The caller is the only thread of a child that was just made by a system call after
/// [`begin_unseen_fork`], with a memory of its own.
pub unsafe fn end_unseen_fork_in_the_child() {
    // SAFETY: the caller's contract.
    unsafe { upoll::internal::begin_in_child(false) };
    in_the_child();
}

/// Like [`end_unseen_fork_in_the_child`], for a child that shares its fds with its parent
/// (`CLONE_FILES`). Fds of objects that could not be demoted stay open there.
///
/// # Safety
/// As [`end_unseen_fork_in_the_child`].
pub unsafe fn end_unseen_fork_with_fds() {
    // SAFETY: the caller's contract.
    unsafe { upoll::internal::begin_in_child(true) };
    forget_other_threads();
    keep(None);
    for fd in table::fds(0, u32::MAX) {
        table::set_alone(fd, None);
    }
}

#[unsafe(link_section = "upoll_fork")]
fn forget_other_threads() {
    change::end_fork_in_the_child();
    hazard::forget_other_threads();
    counts::forget_other_threads();
    demote::forget_other_threads();
    figures::begin_in_child();
    select::forget_the_kernels_table();
    signals::begin_in_child();
}

/// Takes no lock that another thread of the parent may hold. Memory is allocated if there are sets to
/// make: the C library's `fork` keeps its allocator in order.
#[unsafe(link_section = "upoll_fork")]
extern "C" fn in_the_child() {
    forget_other_threads();
    let snapshot = take_snapshot();
    if snapshot.is_some() || table::has_any() {
        take_over(snapshot);
    }
}

/// Makes each user-level fd stand for the child's object.
#[cold]
#[inline(never)]
fn take_over(snapshot: Option<ForkSnapshot>) {
    let mut taken = fork_snapshot::reopen_shared();
    let (sets, outer) = snapshot
        .map(|snapshot| (snapshot.sets, snapshot.outer))
        .unzip();
    if let Some(sets) = &sets {
        sets.take_fds(&mut taken);
    }
    taken.sort_unstable();
    let is_left = |fd: &RawFd| taken.binary_search(fd).is_err();
    leave_to_the_parent(table::fds(0, u32::MAX).filter(is_left));
    if let Some(sets) = &sets {
        sets.take_interests();
    }
    if let Some(outer) = outer.flatten() {
        keep(Some(outer.remake()));
    }
}

/// Replaces these fds with ones on which calls fail with `EBADF`.
fn leave_to_the_parent(fds: impl Iterator<Item = RawFd>) {
    let mut fds = fds.peekable();
    if fds.peek().is_none() {
        return;
    }
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    // SAFETY: the path is a live C string.
    let nothing = to_fd(unsafe { call!(SYS_openat, libc::AT_FDCWD, c"/".as_ptr(), flags) });
    for fd in fds {
        if fork_snapshot::set_alone(fd).is_some_and(SetWithFd::is_passive) {
            // All members are in the kernel set, which both processes have.
        } else if let Ok(nothing) = nothing {
            kernel::replace(fd, nothing);
        } else {
            // The child has used up its fds, so it cannot keep this one.
            let _ = kernel::close(fd);
        }
        table::set_alone(fd, None);
    }
    if let Ok(nothing) = nothing {
        // Nobody else knows it.
        let _ = kernel::close(nothing);
    }
}
