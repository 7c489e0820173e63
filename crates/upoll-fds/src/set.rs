//! A set with an fd.
//!
//! # Passive sets
//! A set without user-level members that is only waited in, and not polled from elsewhere, is *passive*:
//! the kernel set behind it serves it. Waits and changes are passed on, and cost a look-up more than the
//! kernel's own. With the first user-level member the set becomes *active*: the user-level set adopts the
//! kernel set as the place of its kernel members. So no member moves, and the kernel can have the set back
//! when the last user-level member has been demoted.
//!
//! The preload library instead leaves sets out of the table until then, so that calls on them are passed on
//! untouched ([`plain_sets`](crate::plain_sets), [`takeover`](crate::takeover)).
//!
//! A thread that makes a set active interrupts those that wait in the kernel set ([`passivity`](crate::passivity)), by a
//! file that it adds there for that time. They then wait again.

use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use upoll::internal::own_fds::AlwaysWritable;
use upoll::{Epoll, Errno, Event, Events, Op};

use crate::figures::{Now, Place};
use crate::hazard_records;
use crate::kernel::call;
use crate::memory;
use crate::passivity::Passivity;
use upoll_sys::backoff::nap;

/// The count for a kernel set whose members were not counted: more than there can be.
const UNKNOWN: usize = usize::MAX / 2;

/// A set, and the state of the kernel set behind it.
#[derive(Debug)]
pub(crate) struct SetWithFd {
    set: Epoll,
    passivity: Passivity,
    rotates: bool,
    /// The kernel set has been adopted: a check of the set may take a system call.
    is_mixed: AtomicBool,
    /// The place where its figures are shown.
    place: Place,
}

impl SetWithFd {
    pub(crate) fn new(set: Epoll, rotates: bool) -> Self {
        SetWithFd {
            set,
            passivity: match rotates {
                // The kernel knows no rotation.
                true => Passivity::active(0),
                false => Passivity::passive(),
            },
            rotates,
            is_mixed: AtomicBool::new(false),
            place: Place::new(),
        }
    }

    /// Makes `set` the set behind `epfd` from its start. The kernel set there keeps its members, if it
    /// `has_members`. No thread waits in it.
    ///
    /// # Errors
    /// As [`adopt`](Self::adopt).
    pub(crate) fn around(set: Epoll, epfd: RawFd, has_members: bool) -> Result<Self, Errno> {
        let set = SetWithFd {
            set,
            passivity: Passivity::active(if has_members { UNKNOWN } else { 0 }),
            rotates: false,
            is_mixed: AtomicBool::new(false),
            place: Place::new(),
        };
        set.adopt_if_used(epfd)?;
        Ok(set)
    }

    /// Returns whether a check of the set may take a system call.
    #[inline]
    pub(crate) fn is_mixed(&self) -> bool {
        self.rotates || self.is_mixed.load(Ordering::Relaxed)
    }

    /// Returns the set in any state.
    pub(crate) fn as_epoll(&self) -> &Epoll {
        &self.set
    }

    #[inline]
    pub(crate) fn is_passive(&self) -> bool {
        self.passivity.is_passive()
    }

    /// See [`Passivity::stays_passive`].
    #[inline]
    pub(crate) fn stays_passive(&self) -> bool {
        self.passivity.stays_passive()
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.passivity.is_stale()
    }

    pub(crate) fn rotates(&self) -> bool {
        self.rotates
    }

    /// Shows the figures of the set, which `epfd` stands for. The calling thread has just changed it, or waited in it
    /// and got as many events.
    pub(crate) fn note_figures(&self, epfd: RawFd, events: usize) {
        if self.is_passive() || self.is_stale() {
            return;
        }
        self.place.note(events, || {
            // Without memory for counters, the other figures are shown.
            let _ = self.set.enable_counters();
            Now {
                epfd,
                members: match self.rotates {
                    true => self.set.len_at_most(),
                    false => self.set.len_in_core(),
                },
                rotates: self.rotates,
                has_adopted: !self.rotates && self.is_mixed(),
                counters: self.set.counters().unwrap_or_default(),
            }
        });
    }

    /// Makes the kernel set, which `epfd` stands for, the place of the kernel members.
    pub(crate) fn adopt(&self, epfd: RawFd) -> Result<(), Errno> {
        if self.rotates {
            return Ok(());
        }
        // SAFETY: it stands for this set: the caller is within `table::with` on it, or holds it.
        let behind = unsafe { BorrowedFd::borrow_raw(epfd) };
        let members = self.passivity.members();
        self.is_mixed.store(true, Ordering::Relaxed);
        self.set.adopt_kernel_set(behind, members)
    }

    /// Makes the set active. If that fails the set has not changed.
    pub(crate) fn activate(&self, epfd: RawFd) -> Result<(), Errno> {
        match self.is_passive() {
            true => self.make_active(epfd),
            false => Ok(()),
        }
    }

    #[cold]
    fn make_active(&self, epfd: RawFd) -> Result<(), Errno> {
        let activated = self.passivity.activate(|| {
            let interruption = Interruption::prepare(epfd, self.blocked_on())?;
            self.adopt_if_used(epfd)?;
            Ok::<_, Errno>(interruption)
        });
        match activated?.flatten() {
            Some(interruption) => interruption.carry_out(),
            None => Ok(()),
        }
    }

    fn adopt_if_used(&self, epfd: RawFd) -> Result<(), Errno> {
        match self.passivity.members() {
            0 if !is_among_the_last(epfd) => Ok(()),
            _ => self.adopt(epfd),
        }
    }

    /// Returns what threads that wait in the kernel set are blocked on.
    pub(crate) fn blocked_on(&self) -> hazard_records::BlockedOn {
        hazard_records::BlockedOn::of(self)
    }

    /// Changes a kernel member by the kernel. Returns `None` if the set is not passive, or an ADD finds another thread that is
    /// about to make it active.
    pub(crate) fn ctl_passive(
        &self,
        op: Option<Op>,
        by_the_kernel: impl FnOnce() -> Result<(), Errno>,
    ) -> Option<Result<(), Errno>> {
        if !self.is_passive() {
            return None;
        }
        if op == Some(Op::Add) {
            return self.passivity.add(by_the_kernel);
        }
        let result = by_the_kernel();
        if op == Some(Op::Del) && result.is_ok() {
            self.passivity.deleted();
        }
        Some(result)
    }

    /// Demotes the set, which `epfd` stands for. It has no user-level member.
    pub(crate) fn demote(&self, epfd: RawFd) -> Result<(), Errno> {
        let was_active = !self.is_passive();
        if was_active {
            // Threads that wait without the kernel set move to it as well.
            self.adopt(epfd)?;
            self.set.give_up_kernel_set();
        }
        self.passivity.demoted();
        self.place.free();
        Ok(())
    }
}

/// Returns whether the limit of fds leaves no room above `epfd` for those that a set needs for kernel members.
/// A set has to have them before its first user-level member then: only without such a member can the kernel
/// serve the set instead.
fn is_among_the_last(epfd: RawFd) -> bool {
    /// The one that is adopted, for a moment also below its place.
    const NEEDED: usize = 2;
    let end = epfd.cast_unsigned() as usize + 1;
    upoll::internal::check_number_of_entries(end + NEEDED).is_err()
}

/// The number of interruptions of waits in kernel sets that have begun, and of those that have ended.
static WAKES_BEGUN: AtomicU64 = AtomicU64::new(0);
static WAKES_ENDED: AtomicU64 = AtomicU64::new(0);

/// The data of the interrupting event.
fn wake_data() -> u64 {
    // Zero until it is set. Not a `OnceLock`: the child of a fork could wait there for a thread that
    // it does not have.
    static DATA: AtomicU64 = AtomicU64::new(0);
    let known = DATA.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let drawn = RandomState::new().hash_one(std::ptr::from_ref(&DATA).addr()) | 1;
    DATA.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed)
        .map_or_else(|first| first, |_| drawn)
}

/// The number of tries to wait for a thread that does not leave the kernel set. If the thread is in a signal handler,
/// its wait ends after that anyway. If a busy machine does not let the thread run, it must not be abandoned: it would
/// go on to wait for events that the kernel set does not have. So the limit is seconds.
const MOST_TRIES: usize = 3000;

/// An interruption of the threads that wait in the kernel set behind `epfd`. They then wait again.
struct Interruption {
    epfd: RawFd,
    blocked_on: hazard_records::BlockedOn,
    /// A member of the kernel set, which asks for no events of it until the interruption is carried out.
    member: AlwaysWritable,
}

impl Interruption {
    /// Returns None if no thread waits there.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`, `ENOSPC`: the kernel has no fd or memory for it.
    fn prepare(epfd: RawFd, blocked_on: hazard_records::BlockedOn) -> Result<Option<Self>, Errno> {
        if hazard_records::wait_until_none_blocked_on(blocked_on, false) {
            return Ok(None);
        }
        let member = AlwaysWritable::new()?;
        WAKES_BEGUN.fetch_add(1, Ordering::SeqCst);
        let prepared = Interruption {
            epfd,
            blocked_on,
            member,
        };
        prepared.change(Op::Add, Events::empty())?;
        Ok(Some(prepared))
    }

    fn change(&self, op: Op, events: Events) -> Result<(), Errno> {
        let member = self.member.as_fd().as_raw_fd();
        let event = Event::new(events, wake_data());
        let event = &raw const event;
        // SAFETY: the event is live and has the kernel's layout.
        unsafe { call!(SYS_epoll_ctl, self.epfd, op as i32, member, event) }.map(drop)
    }

    #[cold]
    fn carry_out(self) -> Result<(), Errno> {
        // Takes no memory.
        self.change(Op::Mod, Events::OUT)?;
        let mut tries = 0;
        // The first round waits.
        while !hazard_records::wait_until_none_blocked_on(self.blocked_on, tries == 0)
            && tries < MOST_TRIES
        {
            tries += 1;
            nap();
        }
        Ok(())
    }
}

impl Drop for Interruption {
    fn drop(&mut self) {
        // It is there, unless the ADD was refused.
        let _ = self.change(Op::Del, Events::empty());
        WAKES_ENDED.fetch_add(1, Ordering::SeqCst);
    }
}

/// A time during which waits may be interrupted.
pub(crate) struct Wakeable(u64);

impl Wakeable {
    pub(crate) fn begin() -> Self {
        Wakeable(WAKES_ENDED.load(Ordering::SeqCst))
    }

    /// Removes interrupting events. Returns the number of others.
    ///
    /// # Safety
    /// A wait has just written as many to `events`, which is a caller's buffer.
    #[inline]
    pub(crate) unsafe fn sift(&self, events: *mut Event, found: usize) -> usize {
        if WAKES_BEGUN.load(Ordering::SeqCst) == self.0 {
            return found;
        }
        // SAFETY: passed on to the caller.
        unsafe { self.take_out(events, found) }
    }

    /// # Safety
    /// As [`sift`](Self::sift).
    #[cold]
    #[inline(never)]
    unsafe fn take_out(&self, events: *mut Event, found: usize) -> usize {
        // SAFETY: the caller's contract.
        let events = unsafe { memory::writable(events, found) };
        let mut kept = 0;
        for at in 0..events.len() {
            if events[at].data() != wake_data() {
                events[kept] = events[at];
                kept += 1;
            }
        }
        kept
    }
}
