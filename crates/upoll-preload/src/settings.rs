//! What the environment asks for: `UPOLL_USER`, the kinds of objects to serve here, and
//! `UPOLL_STATS`, where to say what was served.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, Ordering};

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
/// Nothing, until [`serve_again`].
const MEANWHILE: u8 = READ | NOTHING_NEW | 32;

pub(crate) fn is_user_level(kind: Kind) -> bool {
    read() & kind as u8 != 0
}

/// Reads the kinds, if that is still to be done.
pub(crate) fn read() -> u8 {
    let known = KINDS.load(Ordering::Relaxed);
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

/// The same until [`serve_again`] is told what this gives.
pub(crate) fn serve_nothing_new_meanwhile() -> Option<u8> {
    let kinds = read();
    let begun = kinds & NOTHING_NEW == 0
        && KINDS
            .compare_exchange(kinds, MEANWHILE, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
    if !begun {
        // Two that wait at once are not told apart.
        serve_nothing_new();
    }
    begun.then_some(kinds)
}

/// Unless it is for good now.
pub(crate) fn serve_again(kinds: u8) {
    let _ = KINDS.compare_exchange(MEANWHILE, kinds, Ordering::Relaxed, Ordering::Relaxed);
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
