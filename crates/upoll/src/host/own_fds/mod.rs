//! The library's own fds.
//!
//! A program may close any fd, and open something else in its place. So the library must never
//! write to, read, close or sleep on an fd without knowing that it still stands for the library's
//! own file.
//!
//! # The seal
//! A socket of the process, a *seal*, is a member of every kernel set that the library makes. It is
//! always writable, and asked for only while a wakeup is under way: `EPOLL_CTL_MOD` of a ready
//! member triggers it anew. So a wakeup is one call that names both fds. It fails without any
//! effect unless the first is a kernel set and the second one of its members. The seal is
//! identified by its cookie, which no other socket ever has, and a set with the seal in it is the
//! library's. `EPOLL_CTL_ADD` fails with `EEXIST` on such a set, which makes it a check that
//! changes nothing.
//!
//! If sets nest, each set that a seal is in is the start of a path up. The kernel allows 10 to 500 of them from one
//! file. So a seal is in few sets, and in those of one process.
//!
//! # Protected fds
//! A library that sees each close (`upoll-preload`) calls [`protect`] and keeps the program from these
//! fds ([`is_own`]). Then the checks are left out. Otherwise each use of a set's fd begins with
//! one (`OwnFd::call`).

mod entries;
mod hold;
mod seal;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr;

pub(super) use self::entries::is_set_or_seal;
use self::entries::{
    Entry, KEPT, MEMBER, NONE, SET, entry_at, forget, give_back, has_member, record,
};
pub use self::entries::{is_own, may_be_own, next_own, replace};
pub(super) use self::hold::hold_protected_fds;
pub use self::hold::{FdsHeld, hold_fds, may_take};
use self::seal::Seal;
#[cfg(not(upoll_loom))]
pub(super) use self::{entries::close_inherited, hold::forget_holder};
use super::kernel;
use crate::epoll::Op;
use crate::errno::Errno;
use crate::events::Event;
use crate::memory::SharedBox;
use crate::sync::{AtomicBool, AtomicU32, Backoff, Ordering, statics};

/// The time for which a check of a seal's fd is good, in uses that neither close a file nor send a wakeup. A use of a
/// set's fd in that time meets a file of the program's only if that is a set, and has the file under the seal's fd as
/// a member.
const FRESH_MS: u32 = 10;

/// The longest time that a thread sleeps in the kernel before it checks its own fds and polls user-level objects,
/// unless the fds are protected. A sleeping thread holds the files. So it cannot notice that their fds were closed,
/// and wakeups cannot reach it any more.
pub(super) const LONGEST_SLEEP: libc::timespec = libc::timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// The number of times that a new set waits for a check of another thread, which is two system calls. A signal handler
/// waits in vain for the thread that it has interrupted.
const WAITS_FOR_A_CHECK: u32 = 150;

statics! {
    static IS_PROTECTED: AtomicBool = AtomicBool::new(false);
}

/// Declares that the program cannot reach the library's own fds from now on. They are taken from
/// the top of the limit then.
pub fn protect() {
    IS_PROTECTED.store(true, Ordering::Relaxed);
}

#[inline]
fn is_protected() -> bool {
    IS_PROTECTED.load(Ordering::Relaxed)
}

/// Returns whether the program can close the library's own fds unseen.
#[inline]
pub(crate) fn may_be_lost() -> bool {
    !is_protected()
}

/// The limit of one sleep in the kernel of a thread that wakes must reach.
#[inline]
pub(crate) fn limit_of_sleep(limit: Option<libc::timespec>) -> Option<libc::timespec> {
    let is_longer = |limit: &libc::timespec| limit.tv_sec >= LONGEST_SLEEP.tv_sec;
    match limit {
        limit if is_protected() => limit,
        Some(limit) if !is_longer(&limit) => Some(limit),
        _ => Some(LONGEST_SLEEP),
    }
}

statics! {
    /// The number of sealed sets that were made.
    static SETS_MADE: AtomicU32 = AtomicU32::new(0);
    /// The number of times that a check or a use has met a lost own fd.
    static LOSSES: AtomicU32 = AtomicU32::new(0);
    /// The number of times that a poll has met a set whose [check](LastCheck) is due. A poll may hold locks, and makes
    /// no check.
    static CHECKS_DUE: AtomicU32 = AtomicU32::new(0);
}

/// Returns how often a check or a use has met a lost own fd: if that has changed, what a look has found may
/// not be all.
#[inline]
pub(crate) fn losses() -> u32 {
    LOSSES.load(Ordering::Acquire)
}

/// Returns how often a poll has met a lost own fd, or a set that has to check those below. If that has changed, the caller of
/// the poll has its sets make lost fds anew, and polls again.
#[inline]
pub(crate) fn repairs_due() -> u32 {
    losses().wrapping_add(CHECKS_DUE.load(Ordering::Relaxed))
}

/// The time at which a set has last checked the fds of the sets below it, which it does not use itself.
pub(super) struct LastCheck {
    milliseconds: AtomicU32,
    losses: AtomicU32,
}

/// The moment at which a check has begun.
#[derive(Clone, Copy)]
pub(super) struct Begun {
    milliseconds: u32,
    losses: u32,
}

impl Begun {
    fn now() -> Self {
        Begun {
            milliseconds: kernel::coarse_milliseconds(),
            losses: losses(),
        }
    }
}

impl LastCheck {
    const PERIOD_MS: u32 = 500;

    pub(super) fn new() -> Self {
        let Begun {
            milliseconds,
            losses,
        } = Begun::now();
        LastCheck {
            milliseconds: AtomicU32::new(milliseconds),
            losses: AtomicU32::new(losses),
        }
    }

    /// Returns the beginning of another check if one is due, which the caller makes then. It is due half as long after the last
    /// one as a thread sleeps at most, or if a lost fd was met since. Another thread that asks before it is
    /// [done](Self::done) makes one, too: what the first one repairs may not be in place yet.
    pub(super) fn due(&self) -> Option<Begun> {
        if is_protected() {
            return None;
        }
        let now = Begun::now();
        let passed = now
            .milliseconds
            .wrapping_sub(self.milliseconds.load(Ordering::Relaxed));
        let is_due = passed >= Self::PERIOD_MS || now.losses != self.losses.load(Ordering::Acquire);
        is_due.then_some(now)
    }

    /// Notes for [`repairs_due`] if a check is due.
    pub(super) fn note_due(&self) {
        if self.due().is_some() {
            CHECKS_DUE.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// All was found, or repaired, by the check that has begun then. A loss that came later makes another one due.
    pub(super) fn done(&self, begun: Begun) {
        self.milliseconds
            .store(begun.milliseconds, Ordering::Relaxed);
        self.losses.store(begun.losses, Ordering::Release);
    }
}

/// The lowest fd to ask the kernel for, and lower ones to try if all above it are taken.
///
/// Without protection the fds are above those that most programs get, but low enough for a
/// `select` that a wake fd is part of to need no memory. With it they are at the top of the limit, or of
/// 1024: the kernel's table of fds grows with the highest fd, and each fork copies it.
pub(super) fn first_fds() -> impl Iterator<Item = libc::rlim_t> {
    let most = kernel::most_fds();
    let (first, others) = match is_protected() {
        true => {
            let top = most.min(1024);
            let first = top.saturating_sub(128).max(top / 4 * 3);
            (first, [top / 2, top / 4])
        }
        false => {
            let first = (most / 4 * 3).min(256);
            (first, [first / 2, first / 4])
        }
    };
    std::iter::once(first).chain(others)
}

/// An open file of the library's own, under an fd that the program may close or replace.
#[derive(Debug)]
pub(crate) struct OwnFd {
    entry: &'static Entry,
    proof: Proof,
    /// A use has failed, or a check.
    is_lost: AtomicBool,
    /// See [`identity`](Self::identity).
    identity: AtomicU32,
}

/// The evidence that the fd still stands for the file.
#[derive(Debug)]
enum Proof {
    /// It is closed by the very call that opened it.
    Brief,
    /// A kernel set that has the seal of its entry in it.
    Sealed,
    /// Another fd of a seal.
    Seal(&'static Seal),
    /// A member of this sealed set.
    MemberOf(SharedBox<OwnFd>),
}

impl AsRawFd for OwnFd {
    #[inline]
    fn as_raw_fd(&self) -> RawFd {
        self.entry.fd()
    }
}

impl AsFd for OwnFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the fd was the library's own; each user checks that it still is.
        unsafe { BorrowedFd::borrow_raw(self.as_raw_fd()) }
    }
}

impl OwnFd {
    /// Takes over an fd that was just opened.
    ///
    /// # Errors
    /// `EMFILE`: the fd is too high, or there is no memory to record it. `ENOMEM`.
    pub(super) fn brief(fd: RawFd) -> Result<Self, Errno> {
        let entry = match Entry::take() {
            Ok(entry) => entry,
            Err(errno) => {
                kernel::close(fd);
                return Err(errno);
            }
        };
        entry.begin(fd);
        if !record(fd, entry) {
            kernel::close(fd);
            return Err(Errno::MFILE);
        }
        Ok(OwnFd {
            entry,
            proof: Proof::Brief,
            is_lost: AtomicBool::new(false),
            identity: AtomicU32::new(0),
        })
    }

    /// A kernel set that was just opened, with the seal in it from now on. An adopted set may have that already.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`, `ENOSPC`: the kernel has no fd for the seal, or no memory.
    pub(super) fn sealed(set: OwnFd, is_adopted: bool) -> Result<Self, Errno> {
        let mut set = set;
        set.proof = Proof::Sealed;
        let made = SETS_MADE.fetch_add(1, Ordering::Relaxed);
        set.identity.store(made.wrapping_add(1), Ordering::Relaxed);
        set.entry.kind.store(SET, Ordering::Release);
        // A program that closes the seal again and again meets an error at last.
        let mut error = Errno::MFILE;
        for _ in 0..3 {
            match Seal::take().and_then(|seal| set.add_seal(seal, is_adopted)) {
                Ok(()) => return Ok(set),
                Err(errno) => error = errno,
            }
            if !matches!(error, Errno::BADF | Errno::PERM) {
                break;
            }
        }
        set.proof = Proof::Brief;
        Err(error)
    }

    /// Adds a seal to this kernel set, which was just opened. If that fails the seal is given up. If only memory or watches
    /// are missing, it is not: each seal that is given up stays open, and the next set needs another one.
    fn add_seal(&self, seal: &'static Seal, is_adopted: bool) -> Result<(), Errno> {
        let entry = self.entry;
        // Published, now look: a thread that moves the seal looks for sets after it has changed the fd.
        entry
            .seal
            .store(ptr::from_ref(seal).cast_mut(), Ordering::SeqCst);
        let under = seal.fd();
        entry.under.store(under, Ordering::SeqCst);
        let change =
            |op| self.try_call(|set| kernel::epoll_ctl_by_fd(set, op, under, &Event::default()));
        let mut added = change(Op::Add);
        // Another thread may check a lost set of that fd at this moment, and takes the seal out again.
        let mut backoff = Backoff::new();
        while added == Err(Errno::EXIST)
            && !is_adopted
            && !is_protected()
            && backoff.waits() < WAITS_FOR_A_CHECK
        {
            backoff.wait();
            added = change(Op::Add);
        }
        if is_protected() && seal.fd() != under {
            // The seal was moved meanwhile, and `under` may mean a file of the program's.
            let _ = change(Op::Del);
            self.change_seal(&Event::default());
            return Ok(());
        }
        match added {
            // An adopted set that was given up keeps the seal.
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => {
                entry.seal.store(ptr::null_mut(), Ordering::SeqCst);
                seal.leave();
                if !matches!(errno, Errno::NOSPC | Errno::NOMEM) {
                    seal.give_up();
                }
                Err(errno)
            }
        }
    }

    /// A file that was just opened, known from now on as a member of `set`, which asks for no events
    /// of it. A child of a fork goes on to use both.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOSPC`: from the kernel.
    pub(super) fn member_of(set: &SharedBox<OwnFd>, file: OwnFd) -> Result<Self, Errno> {
        let mut file = file;
        kernel::epoll_ctl(set, Op::Add, file.as_raw_fd(), &Event::default())?;
        file.proof = Proof::MemberOf(SharedBox::clone(set));
        file.entry.kind.store(KEPT, Ordering::Release);
        set.entry.kind.store(KEPT, Ordering::Release);
        Ok(file)
    }

    /// Another fd of the file that `fd` stands for, known from now on as a member of `set`. A child of a fork closes
    /// both, and [`close`](Self::close) takes the file out of the set.
    ///
    /// # Errors
    /// As [`member_of`](Self::member_of). `EBADF`: `fd` is not open. `EMFILE`: there is no other fd. `EPERM`: the file
    /// cannot be polled. `ELOOP`, `EINVAL`: it is a kernel set that is nested too deep.
    pub(super) fn awaited_in(set: &SharedBox<OwnFd>, fd: RawFd) -> Result<Self, Errno> {
        // An edge: without a look at the file nobody could end an error that it shows.
        let nothing = Event::new(crate::events::Events::ET, 0);
        let mut file = kernel::duplicate(fd)?;
        let under = set.as_raw_fd();
        // A member by an fd that was new is left over from an own fd that the program has closed. That one has lost its fd
        // here, so nobody takes the member out of the set.
        super::exists(kernel::epoll_ctl(set, Op::Add, file.as_raw_fd(), &nothing))?;
        file.proof = Proof::MemberOf(SharedBox::clone(set));
        file.entry.under.store(under, Ordering::SeqCst);
        let cookie = kernel::socket_cookie(file.as_raw_fd());
        file.entry.data.store(cookie.unwrap_or(0), Ordering::SeqCst);
        file.entry.kind.store(MEMBER, Ordering::Release);
        Ok(file)
    }

    /// Closes the set that the file is a member of, too.
    pub(super) fn close_with_set(&self) {
        self.close();
        if let Proof::MemberOf(set) = &self.proof {
            set.close();
        }
    }

    /// Another fd of the seal: a file that is never readable.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: there is none.
    pub(crate) fn idle() -> Result<Self, Errno> {
        for _ in 0..3 {
            let seal = Seal::take()?;
            // The fd is of no set.
            seal.leave();
            let mut fd = kernel::duplicate(seal.fd())?;
            if seal.socket.is(fd.as_raw_fd()) {
                fd.proof = Proof::Seal(seal);
                return Ok(fd);
            }
            seal.give_up();
        }
        Err(Errno::MFILE)
    }

    /// Returns whether the fd still stands for the file. Takes system calls.
    #[cold]
    pub(crate) fn is_intact(&self) -> bool {
        let is_intact = self.is_intact_with(Seal::is_intact);
        if is_intact && self.is_found_lost() {
            // A check has met the fd as the file was put in the place of the lost one.
            self.is_lost.store(false, Ordering::Release);
        }
        is_intact
    }

    /// As [`is_intact`](Self::is_intact), by one system call for a set. To be asked before each use that is
    /// not made by [`call`](Self::call).
    #[inline]
    pub(crate) fn is_in_place(&self) -> bool {
        self.is_intact_with(Seal::was_intact)
    }

    #[inline]
    fn is_intact_with(&self, is_seal_intact: impl FnOnce(&Seal) -> bool) -> bool {
        let is_intact = match &self.proof {
            Proof::Brief => true,
            _ if !self.has_fd() => false,
            _ if is_protected() => !self.is_lost.load(Ordering::Relaxed),
            // Once more: a set that has come to the fd meanwhile may have the same seal.
            Proof::Sealed => {
                self.seal().is_some_and(is_seal_intact) && self.has_seal() && self.has_fd()
            }
            Proof::Seal(seal) => seal.socket.is(self.as_raw_fd()),
            Proof::MemberOf(set) => {
                set.is_intact_with(is_seal_intact) && has_member(set.as_raw_fd(), self.as_raw_fd())
            }
        };
        if !is_intact {
            self.meet_loss();
        }
        is_intact
    }

    /// Records that the fd was found lost.
    #[cold]
    fn meet_loss(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
        LOSSES.fetch_add(1, Ordering::Release);
    }

    /// Returns whether a use failed since the fd was lost, and records that.
    #[cold]
    pub(crate) fn is_lost_after_failure(&self) -> bool {
        let is_lost = match is_protected() {
            true => !self.has_seal(),
            false => !self.is_intact(),
        };
        if is_lost {
            self.meet_loss();
        }
        is_lost
    }

    /// Returns which of all sealed sets that were made this is now, never 0 before there were 2³² of them. The
    /// successor of a lost one may have its fd, but is another set. To be read before the fd.
    #[inline]
    pub(super) fn identity(&self) -> u32 {
        self.identity.load(Ordering::Acquire)
    }

    /// Returns whether a use or a check has failed since the file was last put there. Takes no system call. If not, a use that
    /// comes next has the fd of that file.
    #[inline]
    pub(crate) fn is_found_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// Makes a system call with the fd, and once more if it fails and the own fd has moved by
    /// then.
    ///
    /// # Errors
    /// Any error of the call. `EBADF`: the fd was lost.
    #[inline]
    pub(super) fn call<R>(&self, call: impl FnMut(RawFd) -> Result<R, Errno>) -> Result<R, Errno> {
        match is_protected() || self.is_in_place() {
            true => self.try_call(call),
            false => Err(Errno::BADF),
        }
    }

    /// As [`call`](Self::call), of an fd that is known to be in place.
    #[inline]
    pub(super) fn try_call<R>(
        &self,
        mut call: impl FnMut(RawFd) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        loop {
            let fd = self.as_raw_fd();
            let result = call(fd);
            if !matches!(&result, Err(errno) if *errno != Errno::INTR) || !self.has_moved_from(fd) {
                return result;
            }
        }
    }

    /// Returns whether the own fd has moved away from `before`.
    #[cold]
    fn has_moved_from(&self, before: RawFd) -> bool {
        let fd = self.as_raw_fd();
        is_protected() && fd != before && fd != NONE
    }

    fn has_seal(&self) -> bool {
        self.seal()
            .is_some_and(|seal| has_member(self.as_raw_fd(), seal.fd()))
    }

    /// Returns whether `fd` may stand for the same kernel set: it has the seal of this one in it, or the seal is lost and
    /// shows nothing. Takes system calls.
    pub(super) fn may_be_at(&self, fd: RawFd) -> bool {
        self.seal()
            .is_none_or(|seal| !seal.is_intact() || has_member(fd, seal.fd()))
    }

    /// Returns whether the fd is still this one's. After the program has closed it, it may be that of another own fd.
    #[inline]
    fn has_fd(&self) -> bool {
        loop {
            let fd = self.as_raw_fd();
            let has_it = entry_at(fd).is_some_and(|entry| ptr::eq(entry, self.entry));
            // The fd may have been moved between the two looks.
            if has_it || self.as_raw_fd() == fd {
                return has_it;
            }
        }
    }

    fn seal(&self) -> Option<&'static Seal> {
        match &self.proof {
            Proof::Sealed => self.entry.seal(),
            _ => None,
        }
    }

    /// The fd under which the seal is a member, for callers that list members.
    pub(super) fn fd_of_seal(&self) -> Option<RawFd> {
        self.seal()
            .map(|_| self.entry.under.load(Ordering::Relaxed))
    }

    /// The events that the seal in the set is asked for.
    pub(super) fn asked(&self) -> &AtomicU32 {
        &self.entry.asked
    }

    pub(super) fn change_seal(&self, interest: &Event) -> bool {
        let entry = self.entry;
        entry.data.store(interest.data(), Ordering::SeqCst);
        while let Some(seal) = self.seal() {
            let set = self.as_raw_fd();
            let under = entry.under.load(Ordering::SeqCst);
            let fd = seal.fd();
            if !(is_protected() || self.has_fd() && seal.socket.is(fd)) {
                break;
            }
            // It was made anew since, and another set with this seal may have its old fd.
            if self.as_raw_fd() != set {
                continue;
            }
            // Only protected fds move. Under its old one the seal cannot be named any more. An fd that
            // is not protected differs while the set is made anew: `set` may be a set of the program's then.
            let op = match fd == under || !is_protected() {
                true => Op::Mod,
                false => Op::Add,
            };
            let changed = kernel::epoll_ctl_by_fd(set, op, fd, interest);
            if op == Op::Add && matches!(changed, Ok(()) | Err(Errno::EXIST)) {
                entry.under.store(fd, Ordering::SeqCst);
            }
            if changed.is_ok() {
                return true;
            }
            let now = (self.as_raw_fd(), entry.under.load(Ordering::SeqCst));
            if now == (set, under) && seal.fd() == fd {
                break;
            }
        }
        self.meet_loss();
        false
    }

    /// Takes the file out of the set that it is a member of. Returns whether the fd still stands for it: else the kernel
    /// finds no such member.
    fn leaves(&self, set: &OwnFd) -> bool {
        let fd = self.as_raw_fd();
        let left = set.call(|set| kernel::epoll_ctl_by_fd(set, Op::Del, fd, &Event::default()));
        self.has_fd() && (left.is_ok() || is_protected())
    }

    /// Closes the file, if the fd still stands for it. Uses that come later find it lost.
    pub(super) fn close(&self) {
        if self.as_raw_fd() == NONE && self.entry.seal().is_none() {
            // Closed before: that is no loss.
            return;
        }
        let is_intact = match &self.proof {
            Proof::MemberOf(set) if self.entry.kind() == MEMBER => self.leaves(set),
            _ => self.is_intact(),
        };
        if let Some(seal) = self.seal() {
            self.entry.seal.store(ptr::null_mut(), Ordering::SeqCst);
            seal.leave();
        }
        // A thread that moves the fd at this moment closes its own fd, as the state has
        // changed. A thread that replaces the file waits until the fd is forgotten.
        let fd = self.entry.take_if(|_| true);
        if is_intact && let Some(fd) = fd {
            kernel::close(fd);
        }
        if let Some(fd) = fd {
            forget(fd, self.entry);
        }
    }

    /// Puts the file of `anew` in the place of this one, which was lost. Both are sealed sets.
    pub(super) fn replace_lost(&self, anew: OwnFd) {
        let (Proof::Sealed, Proof::Sealed) = (&self.proof, &anew.proof) else {
            return;
        };
        let (old, new) = (self.entry, anew.entry);
        let lost = old.fd();
        let fd = new.fd();
        let old_seal = old.seal();
        old.seal
            .store(new.seal.load(Ordering::SeqCst), Ordering::SeqCst);
        if let Some(old_seal) = old_seal {
            old_seal.leave();
        }
        old.under
            .store(new.under.load(Ordering::SeqCst), Ordering::SeqCst);
        record(fd, old);
        let mut state = old.state.load(Ordering::SeqCst);
        while let Err(now) = old.change(state, fd) {
            state = now;
        }
        let identity = anew.identity.load(Ordering::Relaxed);
        self.identity.store(identity, Ordering::Release);
        forget(lost, old);
        self.is_lost.store(false, Ordering::Release);
        // The fd is this one's now.
        new.take_if(|_| true);
        give_back(new);
        std::mem::forget(anew);
    }
}

impl Drop for OwnFd {
    fn drop(&mut self) {
        self.close();
        give_back(self.entry);
    }
}

/// The fd of a file of an embedder's that the program cannot reach, as the library's own. It stays open
/// in children of forks.
#[derive(Clone, Copy, Debug)]
pub struct KeptFile(&'static Entry);

impl KeptFile {
    /// An fd for the file that `fd` stands for.
    ///
    /// # Errors
    /// `EBADF`: it is not open. `EMFILE`: there is no other fd.
    pub fn of(fd: RawFd) -> Result<Self, Errno> {
        let fd = kernel::duplicate(fd)?;
        fd.entry.kind.store(KEPT, Ordering::Release);
        let kept = KeptFile(fd.entry);
        // It stays open.
        std::mem::forget(fd);
        Ok(kept)
    }

    /// The fd that it has now.
    #[must_use]
    pub fn fd(self) -> RawFd {
        self.0.fd()
    }
}

/// A file that is always writable, under an own fd.
#[derive(Debug)]
pub struct AlwaysWritable(OwnFd);

impl AlwaysWritable {
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: the kernel has no fd for it.
    pub fn new() -> Result<Self, Errno> {
        OwnFd::idle().map(AlwaysWritable)
    }
}

impl AsFd for AlwaysWritable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
