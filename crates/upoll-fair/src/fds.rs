//! One byte for each fd: what the library knows about it.
//!
//! With datagram sockets (`settings::with_datagrams`) these count as listening ones here and in `polls` and `sets`.
//!
//! The table is a hint. An fd that is wrongly taken for an ordinary one keeps the kernel's behaviour;
//! an fd that is wrongly taken for a listening socket is checked before anything is done with it.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use crate::raw;
use crate::settings;

/// Nothing is known yet.
pub(crate) const UNKNOWN: u8 = 0;
/// Calls on this fd are handed straight on.
pub(crate) const ORDINARY: u8 = 1;
/// The fd was a listening socket when the library last looked.
pub(crate) const LISTENER: u8 = 2;
/// The library has just opened the fd, and closes it or makes a set of it.
pub(crate) const OPENING: u8 = 3;
/// The fd is the epoll set with the index `kind - FIRST_SET`.
pub(crate) const FIRST_SET: u8 = 16;

const SIZE: usize = 1 << 16;
static KINDS: [AtomicU8; SIZE] = [const { AtomicU8::new(UNKNOWN) }; SIZE];

/// Bits in a word of an `fd_set`.
pub(crate) const WORD: usize = u64::BITS as usize;
/// The fds of which something is remembered, as an `fd_set`: `select` looks at these alone. It follows `KINDS`.
static REMEMBERED: [AtomicU64; libc::FD_SETSIZE / WORD] =
    [const { AtomicU64::new(0) }; libc::FD_SETSIZE / WORD];
/// An fd beyond the first word is or was remembered.
static IS_BEYOND_FIRST: AtomicBool = AtomicBool::new(false);

/// The process has, or had, a listening socket that the library knows.
static HAS_LISTENER: AtomicBool = AtomicBool::new(false);

/// Returns whether the library has seen a listening socket in this process. Until then `poll` and `select` are
/// the C library's. A socket that came by `exec` or in a message is seen at the first `epoll_ctl` or `accept`.
#[inline]
pub(crate) fn has_listener() -> bool {
    HAS_LISTENER.load(Ordering::Relaxed)
}

/// Makes `poll` and `select` check for datagram sockets from the start, as the process may bind none and never listen.
pub(crate) fn start() {
    HAS_LISTENER.store(settings::with_datagrams(), Ordering::Relaxed);
}

/// Takes note of a listening socket.
pub(crate) fn set_listener(fd: c_int) {
    set_kind(fd, LISTENER);
    HAS_LISTENER.store(true, Ordering::Relaxed);
}

#[inline]
fn entry(fd: c_int) -> Option<&'static AtomicU8> {
    KINDS.get(usize::try_from(fd).ok()?)
}

/// Returns what is known about an fd. Negative fds and those beyond the table are ordinary.
#[inline]
pub(crate) fn kind(fd: c_int) -> u8 {
    entry(fd).map_or(ORDINARY, |kind| kind.load(Ordering::Relaxed))
}

#[inline]
pub(crate) fn set_kind(fd: c_int, kind: u8) {
    if let Some(entry) = entry(fd)
        && entry.load(Ordering::Relaxed) != kind
    {
        entry.store(kind, Ordering::Relaxed);
        let place = fd as usize;
        if let Some(word) = REMEMBERED.get(place / WORD) {
            let bit = 1 << (place % WORD);
            // Two threads may set kinds at the same time. The thread that clears the bit after the other has set it sees the
            // kind that the other has stored.
            let is_remembered = kind > ORDINARY || {
                word.fetch_and(!bit, Ordering::Acquire);
                entry.load(Ordering::Relaxed) > ORDINARY
            };
            if is_remembered {
                word.fetch_or(bit, Ordering::Release);
                if place >= WORD {
                    IS_BEYOND_FIRST.store(true, Ordering::Relaxed);
                }
            }
        }
    }
}

/// Returns the fds of a word of an `fd_set` of which something is remembered.
#[inline]
pub(crate) fn remembered(word: usize) -> u64 {
    REMEMBERED[word].load(Ordering::Relaxed)
}

/// Returns whether all fds of which something is remembered are in the first word, as they nearly always are.
#[inline]
pub(crate) fn are_in_first_word() -> bool {
    !IS_BEYOND_FIRST.load(Ordering::Relaxed)
}

/// Returns whether an fd is a listening socket, and asks the kernel about it unless it is known to be another
/// file.
#[inline]
pub(crate) fn is_listener(fd: c_int) -> bool {
    matches!(kind(fd), UNKNOWN | LISTENER) && check(fd)
}

#[cold]
fn check(fd: c_int) -> bool {
    let is_shared = match raw::socket_option(fd, libc::SO_ACCEPTCONN) {
        Ok(0) if settings::with_datagrams() => {
            raw::socket_option(fd, libc::SO_TYPE).map(|kind: c_int| kind == libc::SOCK_DGRAM)
        }
        listens => listens.map(|listens: c_int| listens == 1),
    };
    match is_shared {
        Ok(true) => set_listener(fd),
        Ok(false) | Err(libc::ENOTSOCK) => set_kind(fd, ORDINARY),
        Err(_) => {}
    }
    is_shared == Ok(true)
}

/// Returns whether an edge-triggered interest in a socket, which is known as a listening one, can be exclusive. The library
/// sees which worker has accepted, and not which one has received.
pub(crate) fn sees_answers(fd: c_int) -> bool {
    !settings::with_datagrams() || raw::socket_option(fd, libc::SO_ACCEPTCONN) == Ok(1)
}
