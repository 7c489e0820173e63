//! What the environment asks for: `UPOLL_USER`, the kinds of objects to serve here, and
//! `UPOLL_STATS`, where to say what was served.

use std::cell::Cell;
use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicU32, Ordering, fence};

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

fn is_any_served(kinds: u32) -> bool {
    kinds & NOTHING_NEW == 0 && kinds < WAIT
}

pub(crate) fn is_user_level(kind: Kind) -> bool {
    let kinds = read();
    kinds & kind as u32 != 0 && is_any_served(kinds)
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

/// From now on nothing that is made is served here. What has been made is to be handed over after this:
/// see [`look_again`].
pub(crate) fn serve_nothing_new() {
    read();
    KINDS.fetch_or(NOTHING_NEW, Ordering::Relaxed);
    fence(Ordering::SeqCst);
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
    fence(Ordering::SeqCst);
}

pub(crate) fn serve_again() {
    KINDS.fetch_sub(WAIT, Ordering::Relaxed);
    WAITS.set(WAITS.get() - 1);
}

/// In the child of a fork: it has no other thread that would wait for anything.
pub(crate) extern "C" fn forget_other_waits() {
    let own = WAIT * WAITS.get();
    let _ = KINDS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |kinds| {
        Some(kinds % WAIT + own)
    });
}

/// Whether nothing is to be served here, for sets too, of which the table knows otherwise.
pub(crate) fn is_nothing_new_served() -> bool {
    !is_any_served(read())
}

/// Hands over what the caller has just made to be served here if nothing is to be any more: another thread
/// has said so since the caller asked, and perhaps has already handed over all that it found.
///
/// The named pair: who makes an object puts it into the table, then looks whether anything is served; who
/// ends that says so, then looks into the table ([`serve_nothing_new`] and its kin). With a fence between
/// the two on both sides, at least one of them finds what the other did.
pub(crate) fn look_again(fd: c_int) {
    fence(Ordering::SeqCst);
    if is_nothing_new_served() {
        // What cannot be handed over is lost to others.
        let _ = upoll_fds::demote(fd);
    }
}

/// A variable of the environment.
pub(crate) fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: the name is a C string. A program that changes the environment while another thread
    // reads it does what it must not.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: as above; null is no value.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
}
