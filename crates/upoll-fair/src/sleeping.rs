//! The private sets in which threads sleep in `poll` and `select`.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use crate::fds::{self, UNKNOWN};
use crate::lock::Locked;
use crate::raw::kernel;

/// A place that no thread has.
pub(crate) const NONE: c_int = -1;
/// A place whose set the program closed. The thread that has it still sleeps.
const CLOSED: c_int = -2;

/// The fds of the sets. Only the thread that took a place frees it, or the child of a `fork`. Further threads sleep in the kernel's call. Changes hold
/// the lock.
static PLACES: [AtomicI32; 256] = [const { AtomicI32::new(NONE) }; 256];
/// So many places were in use at some time.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Closes the sets of the parent's threads, in the child. `are_ours`: their fds are not the program's by now, as they may be in a
/// child by a raw `clone`, of which this process is one.
pub(crate) fn after_fork(are_ours: bool) {
    for place in &PLACES {
        let epfd = place.swap(NONE, Ordering::Relaxed);
        if epfd >= 0 {
            if are_ours {
                kernel!(SYS_close, epfd);
            }
            fds::set_kind(epfd, UNKNOWN);
        }
    }
}

/// Returns the index of a place that no thread has; `None` if there is none.
pub(crate) fn find_free() -> Option<usize> {
    PLACES
        .iter()
        .position(|place| place.load(Ordering::Relaxed) == NONE)
}

/// Takes the free place `index` for a set. The calling thread stores `NONE` there when it closes the set.
pub(crate) fn take(_: &Locked, index: usize, epfd: c_int) -> &'static AtomicI32 {
    USED.fetch_max(index + 1, Ordering::Relaxed);
    PLACES[index].store(epfd, Ordering::Relaxed);
    &PLACES[index]
}

fn places() -> impl Iterator<Item = &'static AtomicI32> {
    PLACES.iter().take(USED.load(Ordering::Relaxed))
}

/// Returns the fds of the sets, and negative numbers.
pub(crate) fn numbers() -> impl Iterator<Item = c_int> {
    places().map(|place| place.load(Ordering::Relaxed))
}

/// Takes note that the fd of a set, if it is one, was or is about to be closed by the program.
pub(crate) fn closing(_: &Locked, fd: c_int) {
    for place in places().filter(|place| place.load(Ordering::Relaxed) == fd) {
        place.store(CLOSED, Ordering::Relaxed);
    }
}
