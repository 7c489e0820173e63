//! The readiness fd of a set: a kernel set that is readable while the set has something to report.
//!
//! It is made when a program first asks for it, for event loops that watch fds of the kernel. It holds
//! the kernel set in which the set's threads sleep, level-triggered, so members that are kernel fds show
//! by themselves. Events of user-level members show by the seal. An entry in the queue of the set's watchers
//! *rings* it, and a harvest after which nothing is pending *clears* it.
//!
//! # The protocol
//! The word `state` is a copy of what the kernel knows.
//! - A wakeup queues its item, then reads the word. It makes no system call if the fd has been rung and no
//!   harvest has begun since. Otherwise it rings, which is an edge for those who watch the fd.
//! - A harvest marks the word as [`TAKEN`], then takes what is queued. So it takes what was queued before the
//!   mark, and whatever comes later rings.
//! - A harvest that leaves nothing, or has found nothing, clears, then checks for what is pending.
//!
//! Ringing and clearing are system calls, so one thread at a time makes them ([`BUSY`]). Another thread
//! leaves its wish in the word, and the first one fulfils it. No thread waits, so a signal handler may
//! interrupt any step.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;

use super::own_fds::OwnFd;
use super::{EpollBackend, exists, harvest_of, kernel};
use crate::Epoll;
use crate::epoll::{Op, Set};
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::memory::{SharedBox, boxed};
use crate::sync::{AtomicBool, AtomicU32, Ordering, Rule, broken, fence, fence_after_rmw};
use crate::wait::{Deferrable, Mode, Place, Reply, WaitEntry, Wake};

/// The kernel set shows a ring that was not taken away since.
const RUNG: u32 = 1;
/// A harvest has begun since: the next event rings again.
const TAKEN: u32 = 2;
/// A thread rings or clears.
const BUSY: u32 = 4;
/// Another thread has had to ring meanwhile.
const AGAIN: u32 = 8;
/// The set is closed.
const CLOSED: u32 = 16;
/// One fd made in place of a lost one. The bits from here on count them.
const ANEW: u32 = 32;

/// The data of all events in the kernel set, which nobody reads.
const DATA: u64 = 0;

/// A kernel set that shows whether a set has something to report.
pub(super) struct ReadyFd {
    pub(super) fd: OwnFd,
    state: AtomicU32,
}

impl ReadyFd {
    fn new() -> Result<Self, Errno> {
        Ok(ReadyFd {
            fd: kernel::epoll_create()?,
            state: AtomicU32::new(0),
        })
    }

    /// Returns whether an event that was just queued needs a ring.
    fn needs_ring(&self) -> bool {
        self.state.load(Ordering::SeqCst) % ANEW != RUNG
    }

    /// Makes the fd readable, with an edge for those who watch it.
    fn ring(&self) {
        let mut state = self.state.load(Ordering::SeqCst);
        loop {
            if state % ANEW == RUNG || state & CLOSED != 0 {
                return;
            }
            let next = match state & BUSY {
                // A harvest that has begun before now finds the event, or this ring is an edge that comes after
                // its begin.
                0 => (state & !TAKEN) | BUSY,
                _ => state | AGAIN,
            };
            match self.change(state, next) {
                Ok(()) if state & BUSY != 0 => return,
                Ok(()) => break,
                Err(now) => state = now,
            }
        }
        self.ring_from(state);
    }

    /// Rings for as long as other threads ask for it. The caller has set `BUSY`; the state was `state` before.
    fn ring_from(&self, state: u32) {
        let (mut state, fd) = (state, state / ANEW);
        loop {
            if state & RUNG != 0 && !broken(Rule::TakeAwayBeforeRingingAgain) {
                // The kernel makes no second edge of a ring that is still there.
                self.take_away();
            }
            self.fd.ring(DATA);
            match self.finish(RUNG, fd) {
                None => return,
                Some(now) => state = now | RUNG,
            }
        }
    }

    /// Makes the fd unreadable, apart from kernel members that are ready. Afterwards the caller checks whether
    /// something is pending, which it may have taken away. Returns false if there is nothing to check.
    fn clear(&self) -> bool {
        let mut state = self.state.load(Ordering::SeqCst);
        loop {
            if state & CLOSED != 0 {
                return false;
            }
            if state & BUSY != 0 {
                // The thread that is busy may just have rung. The next event rings again.
                self.state.fetch_or(TAKEN, Ordering::SeqCst);
                return true;
            }
            if state & RUNG == 0 {
                return false;
            }
            match self.change(state, state | BUSY) {
                Ok(()) => break,
                Err(now) => state = now,
            }
        }
        self.take_away();
        if let Some(now) = self.finish(0, state / ANEW) {
            self.ring_from(now & !RUNG);
        }
        true
    }

    /// The fd was made anew: the next event rings it. Afterwards the watchers of the set are woken. A thread that is busy
    /// with the lost fd rings once more, unless it is a thread of the parent.
    fn ring_anew(&self) {
        let mut state = self.state.load(Ordering::SeqCst);
        loop {
            let fd = (state / ANEW).wrapping_add(1).wrapping_mul(ANEW);
            match self.change(state, fd | TAKEN | (state & CLOSED)) {
                Ok(()) => return,
                Err(now) => state = now,
            }
        }
    }

    /// Takes away a ring.
    fn take_away(&self) {
        // Room for the seal and the set's own kernel set, or two of these while it changes.
        harvest_of(&self.fd, &mut [Event::default(); 3]);
        self.fd.asked().store(0, Ordering::SeqCst);
    }

    /// Ends a change of `fd`, one of those made: it is `rung` or not. Returns the state if the caller
    /// has to ring (again).
    fn finish(&self, rung: u32, fd: u32) -> Option<u32> {
        let mut state = self.state.load(Ordering::SeqCst);
        loop {
            if state & CLOSED != 0 {
                self.shut();
                return None;
            }
            if state / ANEW != fd {
                // This thread may have taken away a ring of the new fd.
                self.state.fetch_or(TAKEN, Ordering::SeqCst);
                self.ring();
                return None;
            }
            let rings = state & AGAIN != 0 && (rung == 0 || state & TAKEN != 0);
            let next = match rings {
                true => BUSY,
                false if rung == 0 => 0,
                false => rung | (state & TAKEN),
            };
            match self.change(state, (fd * ANEW) | next) {
                Ok(()) => return rings.then_some(state),
                Err(now) => state = now,
            }
        }
    }

    /// Closes the fd. A thread that rings or clears does that when it is done.
    fn close(&self) {
        let before = self.state.fetch_or(BUSY | CLOSED, Ordering::SeqCst);
        if before & (BUSY | CLOSED) == 0 {
            self.shut();
        }
    }

    /// A copy of the fd that the program has goes on to show kernel members, if their kernel set lives on.
    fn shut(&self) {
        self.fd.quiet(DATA);
        self.fd.close();
    }

    fn change(&self, before: u32, after: u32) -> Result<(), u32> {
        let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
        let changed = self.state.compare_exchange(before, after, success, failure);
        changed.map(drop)
    }

    /// A harvest begins. Each event that it may miss rings from now on.
    fn mark(&self) {
        if self.state.load(Ordering::SeqCst) & (RUNG | BUSY) != 0 && !broken(Rule::MarkThenHarvest)
        {
            self.state.fetch_or(TAKEN, Ordering::SeqCst);
            fence_after_rmw();
        }
    }

    /// A harvest has ended. It has reported something, or not.
    fn settle(&self, set: &Set, has_reported: bool) {
        if has_reported && set.is_pending() {
            if self.state.load(Ordering::SeqCst) & (RUNG | BUSY) == 0 {
                self.ring();
            }
        } else if self.clear() && set.is_pending() {
            self.ring();
        }
    }
}

/// The set may be gone by then. The fd lives on.
impl Deferrable for ReadyFd {
    fn run(&self) {
        self.ring();
    }
}

/// The readiness fd of a set, in the queue of the set's watchers.
#[repr(C)]
pub(super) struct Shown {
    /// First, so that a wake finds the rest.
    entry: WaitEntry,
    pub(super) ready: SharedBox<ReadyFd>,
    /// The program has it. Before that an error of the kernel is the program's alone.
    is_linked: AtomicBool,
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.entry.unhook();
    }
}

/// # Safety
/// As [`OnWake`](crate::wait::OnWake); the entry is a [`Shown`]'s.
unsafe fn on_wake_shown(entry: NonNull<WaitEntry>, wake: &mut Wake<'_>) -> Reply {
    // SAFETY: `entry` is the first field of a `Shown`, which is unhooked, under the lock that is held here,
    // before it ends.
    let shown = unsafe { entry.cast::<Shown>().as_ref() };
    let ready = &shown.ready;
    if wake.key == Events::FOR_CALLBACKS {
        return Reply::Declined;
    }
    if wake.mode != Mode::Query && shown.is_linked.load(Ordering::SeqCst) && ready.needs_ring() {
        wake.deferred.push_shared(ready);
    }
    // An event loop that watches the fd may be busy with something else: the event is for threads that sleep in line.
    Reply::Declined
}

impl EpollBackend {
    /// Returns the set's readiness fd; makes one if there is none yet.
    fn show(&self, set: &Set) -> Result<&ReadyFd, Errno> {
        let shown = self.shown.get_or_try_init(|| {
            let shown = boxed(Shown {
                entry: WaitEntry::new(on_wake_shown),
                ready: SharedBox::new(ReadyFd::new()?)?,
                is_linked: AtomicBool::new(false),
            })?;
            // SAFETY: the entry is boxed, and unhooked when the set closes, or here if another thread was faster;
            // the queue is the set's, which has this backend for as long as it exists.
            unsafe { shown.entry.hook(&set.watched_by, Place::Shared) };
            Ok::<_, Errno>(shown)
        })?;
        {
            // One thread at a time, so that none takes away the mark of another one.
            let _restoring = self.restoring.lock();
            self.link_to_sleepers(shown)?;
            // Marked as linked, now link once more: a thread that makes a nesting fd, or an fd in place of a lost
            // one, publishes that, then looks for the mark.
            let was_linked = shown.is_linked.swap(true, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            self.link_to_sleepers(shown).inspect_err(|_| {
                shown.is_linked.store(was_linked, Ordering::SeqCst);
            })?;
        }
        // Registered, now check.
        if set.is_pending() {
            shown.ready.ring();
        }
        Ok(&shown.ready)
    }

    /// Links the readiness fd, if the program has one, and the attendant, if callbacks wait for the set, to the kernel set
    /// that shows what the kernel has.
    pub(super) fn link_shown(&self) -> Result<(), Errno> {
        self.link_attendant()?;
        match self.shown_linked() {
            Some(shown) => self.link_to_sleepers(shown),
            None => Ok(()),
        }
    }

    /// Returns the readiness fd, if the program has it.
    pub(super) fn shown_fd(&self) -> Option<&OwnFd> {
        Some(&self.shown_linked()?.ready.fd)
    }

    fn shown_linked(&self) -> Option<&Shown> {
        let shown = self.shown.get()?;
        shown.is_linked.load(Ordering::SeqCst).then_some(shown)
    }

    fn link_to_sleepers(&self, shown: &Shown) -> Result<(), Errno> {
        let place = match &self.rotation {
            Some(rotation) => rotation.try_for_pollers(&self.first.fd)?,
            None => &self.sleep_set().fd,
        };
        if !place.is_in_place() {
            // It is linked once it was made anew.
            return Ok(());
        }
        let fd = &shown.ready.fd;
        let interest = Event::new(Events::IN, DATA);
        exists(kernel::epoll_ctl(fd, Op::Add, place.as_raw_fd(), &interest))?;
        if self.nesting.get().is_some() {
            let _ = kernel::epoll_ctl(fd, Op::Del, self.first.fd.as_raw_fd(), &interest);
        }
        Ok(())
    }

    /// A harvest begins, by any call.
    #[inline]
    pub(crate) fn begin_harvest(&self) {
        if let Some(shown) = self.shown_linked() {
            shown.ready.mark();
            if let Some(rotation) = &self.rotation {
                // Reports of sets below to pollers of a rotating set stay until they are taken away. The harvest polls
                // these sets next.
                rotation.quiet_pollers();
            }
        }
    }

    /// A harvest has ended. It has reported something, or not.
    #[inline]
    pub(crate) fn end_harvest(&self, set: &Set, has_reported: bool) {
        if let Some(shown) = self.shown_linked() {
            shown.ready.settle(set, has_reported);
        }
    }

    /// Makes the readiness fd anew if it was lost.
    pub(super) fn restore_shown(&self) -> Result<(), Errno> {
        if let Some(shown) = self.shown.get() {
            let ready = &shown.ready;
            if !ready.fd.is_intact() {
                ready
                    .fd
                    .replace_lost(kernel::epoll_create_elsewhere(&ready.fd)?);
                ready.ring_anew();
            }
        }
        Ok(())
    }

    /// The set is closed, and its readiness fd with it. A copy of the fd still shows the members of an adopted
    /// kernel set.
    pub(super) fn close_shown(&self) {
        if let Some(shown) = self.shown.get() {
            shown.entry.unhook();
            if self.nesting.get().is_some() && self.first.fd.is_in_place() {
                let first = self.first.fd.as_raw_fd();
                let interest = Event::new(Events::IN, DATA);
                let _ = kernel::epoll_ctl(&shown.ready.fd, Op::Add, first, &interest);
            }
            shown.ready.close();
        }
    }
}

/// A kernel fd that is readable (`POLLIN`) while a set has something to report: for `poll(2)`, kernel epoll
/// sets, and event loops and async runtimes on top of them. Made by [`Epoll::readiness_fd`].
///
/// It holds a reference to the set. All that are made for one set are the same fd, which is closed with the
/// set.
///
/// # Readability
/// - Readable is a hint to call [`try_wait`](Epoll::try_wait). The fd stays readable until a harvest leaves
///   the set empty or finds nothing, also if an object is no longer ready before that. A kernel set
///   would check its members again at each poll.
/// - Edge-triggered watchers get an edge for the first event that comes after a harvest has begun. Further events
///   before the next harvest begins are part of that edge, as they are in a kernel set that nobody asks in
///   between. So harvest until `try_wait` returns fewer events than there is room for.
/// - An event that comes while a harvest has left something is shown anew. In that moment a `poll(2)` with a
///   limit of zero may find the fd unreadable; a thread that sleeps is woken.
/// - It never shows `POLLOUT`, `POLLERR` or `POLLHUP`.
///
/// # Timers
/// A timer fires in a call that looks at the time, and a loop that sleeps makes none: the fd does not become
/// readable when the time of a [`Timer`](crate::Timer) comes. So the loop arms a timer of its own for
/// [`Timers::next_due`](crate::Timers::next_due), and calls [`Timers::fire`](crate::Timers::fire) when that rings.
/// Or a thread calls [`Timers::keep_time`](crate::Timers::keep_time).
/// A timer that has fired shows like any other member.
///
/// Nothing else is to be done with it: a program that waits in it with `epoll_wait(2)`, or changes its members,
/// takes away what its watchers wait for.
///
/// # The fd
/// It belongs to the library. If the program has closed it, or put another file under its fd, the library
/// does not touch that file. The next call on the set, or of [`as_fd`](AsFd::as_fd), makes
/// another fd, which must be registered anew.
///
/// After a `fork(2)` the child does not have it. The child's first call on the set, or of `as_fd`, makes
/// one of its own.
#[derive(Clone, Debug)]
pub struct ReadinessFd {
    epoll: Epoll,
}

impl Epoll {
    /// Returns a kernel fd that is readable while the set has something to report. It is made by the first
    /// call.
    ///
    /// The set may have members of all kinds, and rotate. The fd of a rotating set shows every event. That of a
    /// worker's set, which watches a rotating set, takes no turn: it shows an event unless a worker that waits took
    /// it.
    ///
    /// # Costs
    /// Before the first call: none. Afterwards the first event since the fd became unreadable costs the
    /// thread that causes it two system calls, and so does a harvest that makes it unreadable. Further events
    /// cost nothing until there is a harvest. The fd needs two own fds, and one more of the kernel's five levels
    /// of nesting than the set.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`, `ENOSPC`: the kernel has no fd or memory for it. `EINVAL`, `ELOOP`: the kernel
    /// fds in sets below are nested too deep.
    ///
    /// # Example
    /// ```
    /// use upoll::{Epoll, Event, EventFd, Events, PollFd, poll_now};
    ///
    /// let set = Epoll::new()?;
    /// let counter = EventFd::new(0)?;
    /// set.add(&counter, Event::new(Events::IN | Events::ET, 42))?;
    ///
    /// let fd = set.readiness_fd()?;
    /// let is_readable = || poll_now(&mut [PollFd::new(&fd, Events::IN)]) == Ok(1);
    /// assert!(!is_readable());
    /// counter.try_write(1)?;
    /// assert!(is_readable());
    /// assert_eq!(set.try_wait(&mut [Event::default(); 8])?, 1);
    /// assert!(!is_readable());
    /// # Ok::<(), upoll::Errno>(())
    /// ```
    pub fn readiness_fd(&self) -> Result<ReadinessFd, Errno> {
        let backend = EpollBackend::ensure(self.description())?;
        backend.ensure_intact(self.description())?;
        backend.show(self.set())?;
        Ok(ReadinessFd {
            epoll: self.clone(),
        })
    }
}

impl ReadinessFd {
    /// Returns the set.
    #[must_use]
    pub fn epoll(&self) -> &Epoll {
        &self.epoll
    }

    /// Returns the fd, as [`as_fd`](AsFd::as_fd) does.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: the program has closed the fd, and the kernel has no other one. `as_fd` returns the
    /// fd of the lost one then. `ELOOP`, `EINVAL`, `ENOSPC`: a kernel set of this set, of one above or of one below
    /// was lost, and the kernel does not let its successor be linked.
    pub fn try_as_fd(&self) -> Result<BorrowedFd<'_>, Errno> {
        let (fd, restored) = self.restored();
        restored.map(|()| fd.as_fd())
    }

    fn restored(&self) -> (&OwnFd, Result<(), Errno>) {
        let backend = EpollBackend::of(self.epoll.set());
        let found = backend.and_then(|backend| {
            let restored = backend.ensure_intact(self.epoll.description());
            Some((&backend.shown.get()?.ready.fd, restored))
        });
        found.expect("it was made with this")
    }
}

impl AsFd for ReadinessFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.restored().0.as_fd()
    }
}

impl AsRawFd for ReadinessFd {
    fn as_raw_fd(&self) -> RawFd {
        self.restored().0.as_raw_fd()
    }
}
