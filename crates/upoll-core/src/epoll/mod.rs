//! `epoll(7)`: a set of interests in open files, and which of them are ready.
//!
//! | module | what it holds |
//! |---|---|
//! | `interest` | the interest list: items and their keys |
//! | `slab` | the memory of items |
//! | `ready` | the ready list, the arrivals, and what a wake does |
//! | `scan` | taking reports off the ready list (`epoll_wait` without the wait) |
//! | `callbacks` | which sets take callbacks, and which take members that could not call them |
//! | `backend` | the interface to the kernel backend of a set |
//! | `ctl` | `EPOLL_CTL_ADD`, `EPOLL_CTL_MOD`, `EPOLL_CTL_DEL`, and both closes |
//! | `ctl_pass` | many changes under one hold of the lock |
//! | `nesting` | sets in sets: loops, depth, number of paths |
//! | `time` | the timers below, and the thread that keeps the time |
//! | `watches` | the items of a set that watch one file |
//! | `limit` | `max_user_watches` |
//! | `fdinfo` | what `/proc/PID/fdinfo` shows |

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
#[cfg(any(feature = "std", upoll_loom))]
use core::ptr::NonNull;

use bitflags::bitflags;

pub mod backend;
pub mod callbacks;
pub mod ctl;
pub mod ctl_pass;
mod fdinfo;
#[cfg(any(feature = "std", upoll_loom))]
pub mod handover;
pub mod interest;
mod limit;
#[cfg(upoll_loom)]
mod model;
pub mod nesting;
pub(crate) mod ready;
pub mod scan;
mod slab;
pub mod time;
#[cfg(any(feature = "std", upoll_loom))]
pub mod watches;

pub use self::ctl::Op;
pub use self::ctl::comes_unannounced;
pub use self::limit::WatchLimit;

use self::backend::{KernelBackend, OptionalBackend};
#[cfg(any(feature = "std", upoll_loom))]
use self::handover::Handover;
use self::interest::{Item, SetLock};
use self::limit::{Account, Allowance};
use self::time::Schedules;
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::file::{File, FileId, KernelSource, PollTable, Pollable, TimeSource};
#[cfg(any(feature = "std", upoll_loom))]
use crate::memory::SharedBox;
#[cfg(not(upoll_loom))]
use crate::memory::boxed;
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};
use crate::tally::OptionalTally;
use crate::trace;
use crate::wait::{Deferred, Scope, WaitQueue, Wake};

bitflags! {
    /// The kind of set to make: the argument of `epoll_create1(2)`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CreateFlags: u32 {
        /// `EPOLL_ROTATE`: the sets and threads that wait on this set take turns.
        const ROTATE = 1;
        /// `EPOLL_CLOEXEC`: meaningful once the set has an fd; accepted here.
        const CLOEXEC = 0o2_000_000;
        const _ = !0;
    }
}

/// The slack of a rotating set for which none was set: measured with `upoll demo`.
const ROTATION_SLACK: u32 = 4;

/// Events at the end of a source, which no read or write uses up. `ERR` alone is that of a writer whose readers are gone.
pub const HANG_UP: Events = Events::ALWAYS.union(Events::RDHUP);

/// Returns whether any of the events is the end of a source.
pub fn any_hangs_up(events: &[Event]) -> bool {
    let hangs_up = |event: &Event| event.events().intersects(HANG_UP);
    events.iter().any(hangs_up)
}

/// The set itself (`struct eventpoll`).
pub struct Set {
    /// First, so that it ends before all that a wakeup through it reaches.
    schedules: Schedules,
    /// The item that was queued while nothing else was; see [`ready`].
    first: AtomicPtr<Item>,
    /// The newest arrival and the tag bit; see [`ready`].
    pending: AtomicPtr<Item>,
    /// Threads that wait in this set, all of them exclusive (`ep->wq`). Its lock nests inside the
    /// locks of the queues that the items are hooked into.
    pub sleepers: WaitQueue,
    /// Sets and pollers that watch this set (`ep->poll_wait`). Its lock nests like `sleepers`'.
    pub watched_by: WaitQueue,
    /// The interest list and the ready list (`ep->mtx`). The lock of a set nests outside the locks
    /// of the sets that it watches, of its files' watcher lists, and of their wait queues.
    inner: SetLock,
    rotates: bool,
    /// A rotating set is below, at any depth, or was.
    is_above_rotating: AtomicBool,
    /// A set watches this one, or has. Written before the ADD that counts the paths up from here
    /// takes `inner`'s lock, so each later ADD to this set sees it.
    was_nested: AtomicBool,
    /// The set is one that a thread waits through in a rotating set, known to nobody else: it counts as no
    /// level of nesting and no path.
    pub is_hidden: AtomicBool,
    /// The source of this rotating set was hung up at its last event: no worker can use that up.
    hung_up: AtomicBool,
    /// The source has reported a change without its events: it may have hung up.
    may_have_hung_up: AtomicBool,
    /// The number of turns by which a worker of this rotating set may be ahead while the source is a kernel fd.
    pub slack: AtomicU32,
    /// The way here for threads that may have an event of this set's, if it rotates.
    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) handover: Option<SharedBox<Handover>>,
    /// The number of callbacks and tasks that wait for the set; see [`callbacks`].
    callbacks: AtomicUsize,
    /// The number of nanoseconds that a thread spins before it sleeps.
    #[cfg(any(feature = "std", upoll_loom))]
    pub spin: AtomicU32,
    /// The part of the set that lives outside the core, once it has one.
    backend: OptionalBackend,
    pub tally: OptionalTally,
}

impl Set {
    /// All events that a set ever shows to its watchers.
    pub const SHOWN: Events = Events::IN.union(Events::RDNORM);

    pub fn rotates(&self) -> bool {
        self.rotates
    }

    /// Returns whether waiters take turns with others: the set rotates, or is above one that does.
    pub fn takes_turns(&self) -> bool {
        self.rotates || self.is_above_rotating()
    }

    /// Returns whether this poll is part of a call on this very set, or of too many nested calls. Objects that forward
    /// the `poll` of a set can form a cycle or a chain that ADD does not see.
    fn is_polled_from_within(&self) -> bool {
        #[cfg(any(feature = "std", upoll_loom))]
        if self.is_locked_by_this_thread() {
            return true;
        }
        Scope::is_too_deep()
    }

    /// Returns whether a thread sleeps in this set, or is about to.
    fn has_sleepers(&self) -> bool {
        self.sleepers.is_watched() || self.backend().is_some_and(|backend| backend.is_awaited())
    }

    /// Returns whether anybody waits right now, in this set or through one above it.
    fn is_awaited(&self, deferred: &mut Deferred) -> bool {
        self.has_sleepers() || self.watched_by.is_awaited(deferred)
    }

    /// Returns whether a thread sleeps in this set that no wakeup has chosen yet.
    fn has_unwoken_thread(&self) -> bool {
        self.sleepers.is_watched()
            || self
                .backend()
                .is_some_and(|backend| backend.has_unwoken_thread())
    }

    /// Returns whether a rotating set is below, at any depth, or was.
    pub fn is_above_rotating(&self) -> bool {
        self.is_above_rotating.load(Ordering::Relaxed)
    }

    /// Records whether `events`, which the source of this rotating set has reported, are its end.
    /// Empty events mean any.
    pub fn note_hang_up(&self, events: Events) {
        if events.is_empty() {
            self.may_have_hung_up.store(true, Ordering::Relaxed);
            return;
        }
        let hung_up = events.intersects(HANG_UP);
        if self.hung_up.load(Ordering::Relaxed) != hung_up {
            self.hung_up.store(hung_up, Ordering::Relaxed);
        }
    }

    /// Returns whether the source of this rotating set has hung up. If so, each worker that is served wakes the next
    /// one, and none waits for its turn.
    pub fn has_hung_up(&self) -> bool {
        if self.may_have_hung_up.load(Ordering::Relaxed)
            && self.may_have_hung_up.swap(false, Ordering::Relaxed)
        {
            let _scope = Scope::enter();
            let locked = self.lock();
            let hung_up = locked.iter().any(|item| item.poll().intersects(HANG_UP));
            self.hung_up.store(hung_up, Ordering::Relaxed);
        }
        self.hung_up.load(Ordering::Relaxed)
    }

    /// Wakes one sleeper and all watchers of this set, because something was queued. Returns which
    /// of the two took the wakeup.
    #[inline]
    fn tell(&self, wake: &mut Wake<'_>) -> (bool, bool) {
        let is_for_nobody = !self.sleepers.is_watched()
            && !self.watched_by.is_watched()
            && self.backend().is_none();
        match is_for_nobody {
            true => (false, false),
            false => self.tell_waiters(wake),
        }
    }

    #[inline(never)]
    fn tell_waiters(&self, wake: &mut Wake<'_>) -> (bool, bool) {
        let slept = self.wake_one(&mut wake.with_key(Events::IN));
        let mut watched = 0;
        if self.watched_by.is_watched() {
            let wake = &mut wake.with_key(Events::IN);
            watched = if self.rotates {
                self.watched_by.wake_rotate_within(wake)
            } else {
                self.watched_by.wake_within(wake)
            };
        }
        (slept, watched != 0)
    }

    /// Wakes one thread that sleeps in this set. Returns whether there was one.
    fn wake_one(&self, wake: &mut Wake<'_>) -> bool {
        if self.sleepers.is_watched() {
            let took = if self.rotates {
                self.sleepers.wake_rotate_within(wake)
            } else {
                self.sleepers.wake_within(wake)
            };
            if took != 0 {
                return true;
            }
        }
        match self.backend() {
            Some(backend) if backend.is_awaited() => {
                backend.wake_one(wake.deferred);
                true
            }
            _ => false,
        }
    }
}

impl Pollable for Set {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.watched_by);
        if self.is_polled_from_within() {
            return Events::ERR;
        }
        self.fire_due();
        let for_item = table.is_for_item();
        let is_ready_there = || {
            self.backend()
                .is_some_and(|there| there.is_ready(self, for_item))
        };
        if self.has_ready() || is_ready_there() {
            Self::SHOWN
        } else {
            Events::empty()
        }
    }

    fn release(&self) {
        self.close();
    }

    #[inline]
    fn kernel_source(&self) -> Option<KernelSource<'_>> {
        self.backend().map(|backend| KernelSource(backend))
    }

    #[inline]
    fn time_source(&self) -> Option<TimeSource<'_>> {
        self.schedules().map(|schedules| TimeSource(schedules))
    }

    fn show_fdinfo(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        fdinfo::show(self, out)
    }
}

impl File<Set> {
    #[inline]
    pub fn set(&self) -> &Set {
        self
    }

    /// Makes an empty set.
    ///
    /// # Errors
    /// `EINVAL`: `flags` holds bits without a name. `ENOMEM`: there is no memory for it.
    pub fn create(flags: CreateFlags, limit: Option<Arc<WatchLimit>>) -> Result<Self, Errno> {
        if !(flags - (CreateFlags::ROTATE | CreateFlags::CLOEXEC)).is_empty() {
            return Err(Errno::INVAL);
        }
        let account = limit.map_or_else(default_limit, |limit| Ok(Account::Given(limit)))?;
        #[cfg(all(feature = "std", not(upoll_loom)))]
        crate::sync::prepare();
        let rotates = flags.contains(CreateFlags::ROTATE);
        let file = File::try_new(Set {
            schedules: Schedules::new(),
            first: AtomicPtr::new(core::ptr::null_mut()),
            pending: AtomicPtr::new(core::ptr::null_mut()),
            sleepers: WaitQueue::new(),
            watched_by: WaitQueue::new(),
            inner: SetLock::new(Allowance::new(account)),
            rotates,
            is_above_rotating: AtomicBool::new(false),
            was_nested: AtomicBool::new(false),
            is_hidden: AtomicBool::new(false),
            hung_up: AtomicBool::new(false),
            may_have_hung_up: AtomicBool::new(false),
            slack: AtomicU32::new(ROTATION_SLACK),
            #[cfg(any(feature = "std", upoll_loom))]
            handover: rotates.then(Handover::new).transpose()?,
            callbacks: AtomicUsize::new(0),
            #[cfg(any(feature = "std", upoll_loom))]
            spin: AtomicU32::new(0),
            backend: OptionalBackend::new(),
            tally: OptionalTally::new(),
        })?;
        #[cfg(any(feature = "std", upoll_loom))]
        if let Some(handover) = &file.handover {
            handover.open(NonNull::from(file.description()));
        }
        trace::created(file.as_file_ref().identity(), rotates);
        Ok(file)
    }

    /// Fills `events` with what is ready, for a thread that forwards the event by other means if it ends.
    ///
    /// # Errors
    /// The program has closed own fds of the backend, and the kernel has no others.
    #[inline]
    pub fn harvest_unremembered(&self, events: &mut [Event]) -> Result<usize, Errno> {
        // Models show that wakes alone bring what is there to a waiter.
        #[cfg(not(upoll_loom))]
        self.recheck_rotating();
        self.fire_due();
        match self.backend() {
            None => Ok(self.harvest(events)),
            Some(backend) => self.harvest_both(backend, events),
        }
    }

    #[inline(never)]
    fn harvest_both(
        &self,
        backend: &dyn KernelBackend,
        events: &mut [Event],
    ) -> Result<usize, Errno> {
        let losses = backend.losses();
        backend.restore_found_lost(self.description())?;
        let ready = backend.harvest_both(self, events);
        if ready > 0 || !backend.is_found_lost() && losses == backend.losses() {
            return Ok(ready);
        }
        // The program closed it a moment ago, so the kernel was not asked. Another thread may have made it anew meanwhile.
        backend.restore_found_lost(self.description())?;
        Ok(backend.harvest_both(self, events))
    }
}

impl Set {
    /// Sets by how many turns a worker of this rotating set may be ahead of the others, if the source is a kernel fd.
    ///
    /// # Errors
    /// `EINVAL`: the set does not rotate.
    pub fn set_slack(&self, turns: u32) -> Result<(), Errno> {
        if !self.rotates {
            return Err(Errno::INVAL);
        }
        self.slack.store(turns, Ordering::Relaxed);
        // Stored, now look: an ADD that makes the backend publishes that, and then reads the slack.
        fence(Ordering::SeqCst);
        if let Some(backend) = self.backend() {
            backend.apply_slack(self);
        }
        Ok(())
    }

    /// Returns the interests in all open files for whose address `find` returns something, each with that, as they are
    /// at one moment. The set is locked while `find` runs.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for the list.
    pub fn interests_by<T>(
        &self,
        find: impl Fn(usize) -> Option<T>,
    ) -> Result<Vec<(T, i32, Event)>, Errno> {
        let locked = self.lock();
        let mut found = Vec::new();
        for item in locked.iter() {
            let interest = Event::new(item.interest(), item.data());
            if let Some(of) = find(FileId::of(item.file()).addr()) {
                found.try_reserve(1).map_err(|_| Errno::NOMEM)?;
                found.push((of, item.fd(), interest));
            }
        }
        Ok(found)
    }

    /// Returns the number of interests that the set holds.
    pub fn count(&self) -> usize {
        self.lock().count() + self.backend().map_or(0, |backend| backend.count())
    }
}

/// The account for sets that were given none.
#[cfg(not(upoll_loom))]
fn default_limit() -> Result<Account, Errno> {
    use once_cell::race::OnceBox;

    static LIMIT: OnceBox<WatchLimit> = OnceBox::new();
    let limit = LIMIT.get_or_try_init(|| boxed(WatchLimit::with_room(limit::of_the_system())))?;
    Ok(Account::OfTheProcess(limit))
}

/// loom's atomics do not outlive one run of a model.
#[cfg(upoll_loom)]
fn default_limit() -> Result<Account, Errno> {
    Ok(Account::Given(WatchLimit::new(usize::MAX)))
}
