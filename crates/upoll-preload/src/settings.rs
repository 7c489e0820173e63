//! Settings from the environment: `UPOLL_USER`, the kinds of objects that are user-level, `UPOLL_STATS`, the place for
//! the statistics, and `UPOLL_TOP`, the file for the figures of sets.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

use upoll_sys::backoff::wait_until;

use crate::calls::{self, Call};

/// All kinds of objects. Each has the bit of its place in [`KINDS`](calls::KINDS).
const ALL: u32 = (1 << calls::KINDS.len()) - 1;
const _: () = assert!(ALL < NOTHING_NEW);

/// The kinds, and a bit that is set once they have been read. Not a `Once`: calls come before any
/// constructor has run, and from signal handlers. Reading the kinds twice does no harm.
static KINDS: AtomicU32 = AtomicU32::new(0);
const READ: u32 = 128;
/// No new object is made in user space any more.
const NOTHING_NEW: u32 = 64;
/// A child in this memory that a thread waits for. No new object is served while there are any.
const WAIT: u32 = 256;

std::thread_local! {
    /// The part of this thread: its signal handlers may wait for a child, too, and such a child for
    /// its own.
    static WAITS: Cell<u32> = const { Cell::new(0) };
}

/// The number of threads that are making user-level objects.
static MAKING: AtomicUsize = AtomicUsize::new(0);

fn is_any_served(kinds: u32) -> bool {
    kinds & ALL != 0 && kinds & NOTHING_NEW == 0 && kinds < WAIT
}

/// Returns whether objects that `call` makes are user-level.
pub(crate) fn is_user_level(call: Call) -> bool {
    let kinds = read();
    kinds & (1 << call as u32) != 0 && is_any_served(kinds)
}

/// Returns whether the settings name any kind of objects.
pub(crate) fn is_any_kind_served() -> bool {
    read() & ALL != 0
}

/// Returns the kinds. Reads them if that has not been done.
#[unsafe(link_section = "upoll_fork")]
pub(crate) fn read() -> u32 {
    let known = KINDS.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let kinds = READ | read_kinds();
    let read = KINDS.compare_exchange(0, kinds, Ordering::Relaxed, Ordering::Relaxed);
    // Another thread may have been quicker, and have changed the word since.
    read.map_or_else(|known| known, |_| kinds)
}

fn read_kinds() -> u32 {
    let wanted = variable(c"UPOLL_USER").unwrap_or(c"eventfd");
    let kinds = wanted.to_bytes().split(|&byte| byte == b',');
    kinds.fold(0, |kinds, kind| {
        let place = calls::KINDS.iter().position(|&known| known == kind);
        kinds
            | match place {
                Some(place) => 1 << place,
                None if kind == b"all" => ALL,
                None => 0,
            }
    })
}

/// Calls `make`, which makes a user-level object. Returns `None` if `is_wanted` returns false.
///
/// Named pair: a thread that makes an object increments `MAKING`, then checks whether new objects are served.
/// A thread that ends the service publishes that, then checks `MAKING`, and waits until it is 0
/// ([`outlast_making`]).
pub(crate) fn while_making<R>(is_wanted: impl Fn() -> bool, make: impl FnOnce() -> R) -> Option<R> {
    MAKING.fetch_add(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    let made = is_wanted().then(make);
    // After a fork in a handler of a fault, the child has reset the count.
    let less = |making: usize| making.checked_sub(1);
    let _ = MAKING.fetch_update(Ordering::Release, Ordering::Relaxed, less);
    made
}

/// Waits until no thread is making an object, after the end of the service was published. It waits
/// for a second at most: a thread that makes an object may wait for a fork that needs a lock which
/// this thread holds.
fn outlast_making() {
    fence(Ordering::SeqCst);
    wait_until(|| MAKING.load(Ordering::Acquire) == 0);
}

/// Ends the service of new objects. The caller demotes existing ones after this.
pub(crate) fn serve_nothing_new() {
    read();
    KINDS.fetch_or(NOTHING_NEW, Ordering::Relaxed);
    outlast_making();
}

/// Suspends the service of new objects until this thread calls [`serve_again`], and all others that wait for
/// a child have.
///
/// A child leaves the counts as they were, unless it is killed while it waits for a child of its own. That
/// one goes on in this memory, and the service has ended for good.
pub(crate) fn serve_nothing_new_meanwhile() {
    read();
    // First: a handler that forks in between leaves the child with too high a count at most.
    WAITS.set(WAITS.get() + 1);
    KINDS.fetch_add(WAIT, Ordering::Relaxed);
    outlast_making();
}

/// Returns whether this thread waits for a child, or this is that child.
pub(crate) fn waits_for_a_child() -> bool {
    WAITS.get() > 0
}

pub(crate) fn serve_again() {
    KINDS.fetch_sub(WAIT, Ordering::Relaxed);
    WAITS.set(WAITS.get() - 1);
}

/// Resets the counts in the child of a fork, which has no other thread that waits for a child or
/// makes an object.
#[unsafe(link_section = "upoll_fork")]
pub(crate) extern "C" fn forget_other_threads() {
    // A page is not to be copied for what is right already.
    if MAKING.load(Ordering::Relaxed) != 0 {
        MAKING.store(0, Ordering::Relaxed);
    }
    let own = WAIT * WAITS.get();
    let _ = KINDS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |kinds| {
        let known = kinds % WAIT + own;
        (known != kinds).then_some(known)
    });
}

/// Returns whether no new object is made in user space. Checks the settings for sets, too, which the table
/// may serve otherwise.
pub(crate) fn is_nothing_new_served() -> bool {
    !is_any_served(read())
}

/// Demotes the object that the caller has just made, if new objects are no longer served: the thread that
/// ended the service may have stopped waiting for the caller. That thread checks the table after it has
/// published the end, and this one checks after the object is in the table. So one of them finds it.
pub(crate) fn recheck(fd: c_int) {
    fence(Ordering::SeqCst);
    if is_nothing_new_served() {
        // An object that cannot be demoted is lost to other processes.
        let _ = upoll_fds::demote(fd);
    }
}

/// Returns a variable of the environment. Returns `None` in a program with more rights than its
/// caller (set-user-ID), because the caller must not control it.
pub(crate) fn variable(name: &CStr) -> Option<&'static CStr> {
    unsafe extern "C" {
        fn secure_getenv(name: *const c_char) -> *mut c_char;
    }
    // SAFETY: the name is a C string. A program that changes the environment while another thread
    // reads it does what it must not.
    let value = unsafe { secure_getenv(name.as_ptr()) };
    // SAFETY: as above; null is no value.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
}
