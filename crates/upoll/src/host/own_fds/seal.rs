//! Seals: the sockets by which the library knows its own kernel sets.

use std::os::fd::{AsRawFd, RawFd};
use std::ptr;

use super::entries::{Entry, SEAL, entry_at, recorded};
use super::{FRESH_MS, is_protected};
use crate::epoll::Op;
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::host::{generation, kernel};
use crate::memory::boxed;
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, Ordering, statics};

/// A member of kernel sets of the library's: see the module. Never freed.
#[derive(Debug)]
pub(super) struct Seal {
    pub(super) entry: &'static Entry,
    pub(super) socket: kernel::Socket,
    /// The number of sets that the seal is in, at most [`SETS_OF_A_SEAL`].
    sets: AtomicU32,
    /// The process that made it: a child makes its own.
    generation: u32,
    /// The program has closed its fd.
    is_lost: AtomicBool,
    /// The time at which its fd last stood for it, in milliseconds.
    checked: AtomicU32,
    /// The one made before.
    next: Option<&'static Seal>,
}

/// The largest number of sets that a seal is in. It is below the 10 paths of four links up that the
/// kernel allows from one file.
const SETS_OF_A_SEAL: u32 = 8;

statics! {
    /// The seals, the newest first.
    static SEALS: AtomicPtr<Seal> = AtomicPtr::new(ptr::null_mut());
}

impl Seal {
    /// The process was just forked, and has no seals of its own.
    pub(super) fn forget_all() {
        // A page is not to be copied for what is right already.
        if !SEALS.load(Ordering::Relaxed).is_null() {
            SEALS.store(ptr::null_mut(), Ordering::Release);
        }
    }

    fn newest() -> Option<&'static Self> {
        // SAFETY: null, or leaked in `make`.
        unsafe { SEALS.load(Ordering::Acquire).as_ref() }
    }

    /// Returns one for another set, which is counted. It is made if there is none.
    pub(super) fn take() -> Result<&'static Self, Errno> {
        let mut next = Self::newest();
        while let Some(seal) = next {
            if seal.join() {
                if seal.is_intact() {
                    return Ok(seal);
                }
                seal.leave();
                seal.give_up();
            }
            next = seal.next;
        }
        Self::make()
    }

    /// Makes one that is in one set.
    fn make() -> Result<&'static Self, Errno> {
        // A child closes what it inherits.
        generation::watch_forks()?;
        let fd = kernel::idle_socket()?;
        let socket = kernel::Socket::of(fd.as_raw_fd()).ok_or(Errno::NOMEM)?;
        let made = boxed(Seal {
            entry: fd.entry,
            socket,
            sets: AtomicU32::new(1),
            generation: generation::current(),
            is_lost: AtomicBool::new(false),
            checked: AtomicU32::new(kernel::coarse_milliseconds()),
            next: None,
        })?;
        let made = Box::into_raw(made);
        fd.entry.seal.store(made, Ordering::SeqCst);
        fd.entry.kind.store(SEAL, Ordering::Release);
        // It stays open.
        std::mem::forget(fd);
        let mut newest = SEALS.load(Ordering::Acquire);
        loop {
            // SAFETY: `made` is known to nobody else before it is published; `newest` is null or was
            // published here, and nothing published is freed.
            unsafe { (*made).next = newest.as_ref() };
            match SEALS.compare_exchange(newest, made, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: never freed, and not changed any more but for its atomics.
                Ok(_) => return Ok(unsafe { &*made }),
                Err(other) => newest = other,
            }
        }
    }

    /// Counts another set, if there is room and it is this process's.
    fn join(&self) -> bool {
        if self.is_lost.load(Ordering::Relaxed) || self.generation != generation::current() {
            return false;
        }
        let more = |sets| (sets < SETS_OF_A_SEAL).then(|| sets + 1);
        self.sets
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    /// A set that it was in has closed.
    pub(super) fn leave(&self) {
        self.sets.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn fd(&self) -> RawFd {
        self.entry.fd()
    }

    pub(super) fn is_intact(&self) -> bool {
        let fd = self.fd();
        fd >= 0 && (is_protected() || self.socket.is(fd))
    }

    /// As [`is_intact`](Self::is_intact), by a check that may be `FRESH_MS` old.
    #[inline]
    pub(super) fn was_intact(&self) -> bool {
        let now = kernel::coarse_milliseconds();
        if now.wrapping_sub(self.checked.load(Ordering::Relaxed)) < FRESH_MS {
            return true;
        }
        let is_intact = self.is_intact();
        if is_intact {
            self.checked.store(now, Ordering::Relaxed);
        }
        is_intact
    }

    /// Registers the seal under its new fd in the sets that it is in, and deletes the
    /// registration under `old`. That must be done while `old` is still open: a later wakeup would
    /// keep a set readable for ever.
    pub(super) fn follow_from(&'static self, old: RawFd) {
        let fd = self.fd();
        let is_in = |entry: &&Entry| {
            entry.kind() != SEAL && ptr::eq(entry.seal.load(Ordering::SeqCst), self)
        };
        for entry in recorded(0, u32::MAX).filter_map(entry_at).filter(is_in) {
            let set = entry.fd();
            let _ = kernel::epoll_ctl_by_fd(set, Op::Del, old, &Event::default());
            // A wakeup that is among it may not have been taken.
            let events = Events::from_bits_retain(entry.asked.load(Ordering::SeqCst));
            let interest = Event::new(events, entry.data.load(Ordering::SeqCst));
            // Another thread that wakes or quiets the set may have been faster.
            let _ = kernel::epoll_ctl_by_fd(set, Op::Add, fd, &interest);
            entry.under.store(fd, Ordering::SeqCst);
        }
    }

    /// No set is sealed by it any more, if it is lost.
    pub(super) fn give_up(&self) {
        if !self.is_intact() || is_protected() {
            self.is_lost.store(true, Ordering::Relaxed);
        }
    }
}
