//! What the environment asks for: `UPOLL_USER`, the kinds of objects to serve here, and
//! `UPOLL_STATS`, where to say what was served.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};
use std::time::{Duration, Instant};

use crate::{handlers, raw};

/// A kind of objects that can be served here.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum Kind {
    EventFd = 1,
    Pipe = 2,
    SocketPair = 4,
    /// Sets from their start, and not only once they hold an object that is served here.
    Epoll = 8,
}

/// All of them.
const ALL: u32 =
    Kind::EventFd as u32 | Kind::Pipe as u32 | Kind::SocketPair as u32 | Kind::Epoll as u32;

/// The kinds, and that they have been read. Not a `Once`: calls come before any constructor ran, and
/// from signal handlers. Reading them twice does no harm.
static KINDS: AtomicU32 = AtomicU32::new(0);
const READ: u32 = 128;
/// Nothing is to be served here any more.
const NOTHING_NEW: u32 = 64;
/// One of the children in this memory that threads wait for. As long as there are any, nothing is.
const WAIT: u32 = 256;

std::thread_local! {
    /// Those of this thread: a handler may have one more, and so may such a child.
    static WAITS: Cell<u32> = const { Cell::new(0) };
}

/// Threads that are making something to be served here.
static MAKING: AtomicUsize = AtomicUsize::new(0);

fn is_any_served(kinds: u32) -> bool {
    kinds & ALL != 0 && kinds & NOTHING_NEW == 0 && kinds < WAIT
}

pub(crate) fn is_user_level(kind: Kind) -> bool {
    let kinds = read();
    kinds & kind as u32 != 0 && is_any_served(kinds)
}

/// Whether any objects are served here at all.
pub(crate) fn is_any_kind_served() -> bool {
    read() & ALL != 0
}

/// Reads the kinds, if that is still to be done.
pub(crate) fn read() -> u32 {
    let known = KINDS.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let kinds = READ | read_kinds();
    let read = KINDS.compare_exchange(0, kinds, Ordering::Relaxed, Ordering::Relaxed);
    // Another thread was quicker, and may have gone on.
    read.map_or_else(|known| known, |_| kinds)
}

fn read_kinds() -> u32 {
    let Some(wanted) = variable(c"UPOLL_USER") else {
        return Kind::EventFd as u32;
    };
    let kinds = wanted.to_bytes().split(|&byte| byte == b',');
    kinds.fold(0, |kinds, kind| {
        kinds
            | match kind {
                b"eventfd" => Kind::EventFd as u32,
                b"pipe" => Kind::Pipe as u32,
                b"socketpair" => Kind::SocketPair as u32,
                b"epoll" => Kind::Epoll as u32,
                b"all" => ALL,
                _ => 0,
            }
    })
}

/// Has `make` make an object that is served here. None if `is_wanted` says that none is to be.
///
/// The named pair: who makes one counts itself, then looks whether any are served; who ends that says so, then
/// looks at the count, and waits until nobody is making any ([`outlast_making`]). Handlers are put off
/// meanwhile: one could wait so for its own thread.
pub(crate) fn make_here<R>(is_wanted: impl Fn() -> bool, make: impl FnOnce() -> R) -> Option<R> {
    // A child in its parent's memory, which might be killed in the midst of this, goes no further.
    if !is_wanted() {
        return None;
    }
    handlers::begin_to_wrap();
    let _section = upoll_fds::Section::begin();
    MAKING.fetch_add(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    let made = is_wanted().then(make);
    // A fork in a handler of a fault has forgotten it in the child.
    let less = |making: usize| making.checked_sub(1);
    let _ = MAKING.fetch_update(Ordering::Release, Ordering::Relaxed, less);
    made
}

/// After it was said that nothing is served: all that is made here has been. Not for ever: who makes
/// something may wait for a fork that wants a lock which this thread holds.
fn outlast_making() {
    const LONGEST: Duration = Duration::from_secs(1);
    fence(Ordering::SeqCst);
    if MAKING.load(Ordering::Acquire) == 0 {
        return;
    }
    let begun = Instant::now();
    while MAKING.load(Ordering::Acquire) != 0 && begun.elapsed() < LONGEST {
        // Not a mere yield: a thread of a lower real-time priority would get no processor. Not the C
        // library's, where the thread might be cancelled.
        let time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 50_000,
        };
        let _ = raw::kernel!(SYS_nanosleep, &raw const time, 0);
    }
}

/// From now on nothing that is made is served here. What has been made is to be handed over after this.
pub(crate) fn serve_nothing_new() {
    read();
    KINDS.fetch_or(NOTHING_NEW, Ordering::Relaxed);
    outlast_making();
}

/// The same until this thread's [`serve_again`], and that of all others that wait for a child.
///
/// What is counted here a child leaves as it was, unless it is killed while it waits for one of its own. That
/// one goes on in this memory, and then nothing is served for good.
pub(crate) fn serve_nothing_new_meanwhile() {
    read();
    // First: a handler that forks has at most too many of them counted in the child.
    WAITS.set(WAITS.get() + 1);
    KINDS.fetch_add(WAIT, Ordering::Relaxed);
    outlast_making();
}

pub(crate) fn serve_again() {
    KINDS.fetch_sub(WAIT, Ordering::Relaxed);
    WAITS.set(WAITS.get() - 1);
}

/// In the child of a fork: it has no other thread that would wait for a child, or make anything.
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

/// Whether nothing is to be served here, for sets too, of which the table knows otherwise.
pub(crate) fn is_nothing_new_served() -> bool {
    !is_any_served(read())
}

/// Hands over what the caller has just made to be served here if nothing is to be any more: who said so may
/// have waited too long for the caller. Whichever of the two looks last finds it, in the table or here.
pub(crate) fn look_again(fd: c_int) {
    fence(Ordering::SeqCst);
    if is_nothing_new_served() {
        // What cannot be handed over is lost to others.
        let _ = upoll_fds::demote(fd);
    }
}

/// Returns a variable of the environment; none in a program with more rights than its caller has
/// (set-user-ID), who is not to say what it does.
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
