//! What the environment asks for: `UPOLL_USER`, the kinds of objects to serve here, and
//! `UPOLL_STATS`, where to say what was served.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::raw;

/// A kind of objects that can be served here.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(crate) enum Kind {
    EventFd = 1,
    Pipe = 2,
    SocketPair = 4,
    /// Sets from their start, and not only once they hold an object that is served here.
    Epoll = 8,
}

/// All of them.
const ALL: u8 = Kind::EventFd as u8 | Kind::Pipe as u8 | Kind::SocketPair as u8 | Kind::Epoll as u8;

/// The kinds, and that they have been read. Not a `Once`: calls come before any constructor ran, and
/// from signal handlers. Reading them twice does no harm.
static KINDS: AtomicU8 = AtomicU8::new(0);
const READ: u8 = 128;
/// Nothing is to be served here any more.
const NOTHING_NEW: u8 = 64;
/// Until the thread that [waits for its child](serve_nothing_new_meanwhile) is back.
const MEANWHILE: u8 = 32;

pub(crate) fn is_user_level(kind: Kind) -> bool {
    read() & kind as u8 != 0
}

/// Reads the kinds, if that is still to be done.
pub(crate) fn read() -> u8 {
    let known = KINDS.load(Ordering::Acquire);
    if known & MEANWHILE != 0 {
        return come_back(known);
    }
    if known != 0 {
        return known;
    }
    let kinds = READ | read_kinds();
    KINDS.store(kinds, Ordering::Relaxed);
    kinds
}

fn read_kinds() -> u8 {
    let Some(wanted) = variable(c"UPOLL_USER") else {
        return Kind::EventFd as u8;
    };
    let kinds = wanted.to_bytes().split(|&byte| byte == b',');
    kinds.fold(0, |kinds, kind| {
        kinds
            | match kind {
                b"eventfd" => Kind::EventFd as u8,
                b"pipe" => Kind::Pipe as u8,
                b"socketpair" => Kind::SocketPair as u8,
                b"epoll" => Kind::Epoll as u8,
                b"all" => ALL,
                _ => 0,
            }
    })
}

/// From now on nothing that is made is served here.
pub(crate) fn serve_nothing_new() {
    KINDS.store(READ | NOTHING_NEW, Ordering::Relaxed);
}

/// The kinds before, and the thread that waits.
static KINDS_BEFORE: AtomicU8 = AtomicU8::new(0);
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// The same while this thread waits for a child that has its memory (`CLONE_VFORK`).
pub(crate) fn serve_nothing_new_meanwhile() {
    let kinds = read();
    if kinds & NOTHING_NEW != 0 {
        // Two that wait at once are not told apart.
        serve_nothing_new();
        return;
    }
    KINDS_BEFORE.store(kinds, Ordering::Relaxed);
    WAITING.store(this_thread(), Ordering::Relaxed);
    let meanwhile = READ | NOTHING_NEW | MEANWHILE;
    let begun = KINDS.compare_exchange(kinds, meanwhile, Ordering::Release, Ordering::Relaxed);
    if begun.is_err() {
        serve_nothing_new();
    }
}

#[cold]
fn come_back(known: u8) -> u8 {
    if WAITING.load(Ordering::Relaxed) != this_thread() {
        return known;
    }
    let before = KINDS_BEFORE.load(Ordering::Relaxed);
    let back = KINDS.compare_exchange(known, before, Ordering::Relaxed, Ordering::Relaxed);
    back.map_or_else(|now| now, |_| before)
}

/// The kernel's number of it, which a child that shares all else has not.
fn this_thread() -> usize {
    raw::kernel!(SYS_gettid).unwrap_or(0)
}

/// Whether that is so, for sets too, of which the table knows otherwise.
pub(crate) fn is_nothing_new_served() -> bool {
    read() & NOTHING_NEW != 0
}

/// A variable of the environment.
pub(crate) fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: the name is a C string. A program that changes the environment while another thread
    // reads it does what it must not.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: as above; null is no value.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
}
