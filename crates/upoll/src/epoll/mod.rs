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
//! | `limit` | `max_user_watches` |
//! | `fdinfo` | what `/proc/PID/fdinfo` shows |

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
#[cfg(any(feature = "std", upoll_loom))]
use core::ptr::NonNull;

use bitflags::bitflags;

pub(crate) mod backend;
pub(crate) mod callbacks;
pub(crate) mod ctl;
pub(crate) mod ctl_pass;
mod fdinfo;
#[cfg(any(feature = "std", upoll_loom))]
pub(crate) mod handover;
pub(crate) mod interest;
mod limit;
#[cfg(upoll_loom)]
mod model;
pub(crate) mod nesting;
pub(crate) mod ready;
pub(crate) mod scan;
mod slab;
pub(crate) mod time;

pub use self::ctl::Op;
pub(crate) use self::ctl::comes_unannounced;
pub use self::limit::WatchLimit;

use self::backend::{KernelBackend, OptionalBackend};
#[cfg(any(feature = "std", upoll_loom))]
use self::handover::Handover;
use self::interest::{Interests, Item};
use self::limit::{Account, Allowance};
use self::time::Schedules;
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::file::{
    Description, File, FileId, FileRef, KernelSource, PollTable, Pollable, TimeSource,
};
#[cfg(any(feature = "std", upoll_loom))]
use crate::memory::SharedBox;
#[cfg(not(upoll_loom))]
use crate::memory::boxed;
use crate::memory::text_of;
#[cfg(all(feature = "std", not(upoll_loom)))]
use crate::sync::lock_held;
use crate::sync::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Mutex, MutexGuard, Ordering, fence,
};
use crate::tally::{Counters, OptionalTally, Tally};
use crate::target::is_source;
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
pub(crate) const HANG_UP: Events = Events::ALWAYS.union(Events::RDHUP);

/// Returns whether any of the events is the end of a source.
pub(crate) fn any_hangs_up(events: &[Event]) -> bool {
    let hangs_up = |event: &Event| event.events().intersects(HANG_UP);
    events.iter().any(hangs_up)
}

/// The set itself (`struct eventpoll`).
pub(crate) struct Set {
    /// First, so that it ends before all that a wakeup through it reaches.
    schedules: Schedules,
    /// The item that was queued while nothing else was; see [`ready`].
    first: AtomicPtr<Item>,
    /// The newest arrival and the tag bit; see [`ready`].
    pending: AtomicPtr<Item>,
    /// Threads that wait in this set, all of them exclusive (`ep->wq`). Its lock nests inside the
    /// locks of the queues that the items are hooked into.
    pub(crate) sleepers: WaitQueue,
    /// Sets and pollers that watch this set (`ep->poll_wait`). Its lock nests like `sleepers`'.
    pub(crate) watched_by: WaitQueue,
    /// The interest list and the ready list (`ep->mtx`). The lock of a set nests outside the locks
    /// of the sets that it watches, of its files' watcher lists, and of their wait queues.
    pub(crate) inner: Mutex<Interests>,
    rotates: bool,
    /// A rotating set is below, at any depth, or was.
    is_above_rotating: AtomicBool,
    /// A set watches this one, or has. Written before the ADD that counts the paths up from here
    /// takes `inner`'s lock, so each later ADD to this set sees it.
    was_nested: AtomicBool,
    /// The set is one that a thread waits through in a rotating set, known to nobody else: it counts as no
    /// level of nesting and no path.
    pub(crate) is_hidden: AtomicBool,
    /// The source of this rotating set was hung up at its last event: no worker can use that up.
    hung_up: AtomicBool,
    /// The source has reported a change without its events: it may have hung up.
    may_have_hung_up: AtomicBool,
    /// The number of turns by which a worker of this rotating set may be ahead while the source is a kernel fd.
    pub(crate) slack: AtomicU32,
    /// The way here for threads that may have an event of this set's, if it rotates.
    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) handover: Option<SharedBox<Handover>>,
    /// The number of callbacks and tasks that wait for the set; see [`callbacks`].
    callbacks: AtomicUsize,
    /// The number of nanoseconds that a thread spins before it sleeps.
    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) spin: AtomicU32,
    /// The part of the set that lives outside the core, once it has one.
    backend: OptionalBackend,
    pub(crate) tally: OptionalTally,
}

impl Set {
    /// All events that a set ever shows to its watchers.
    pub(crate) const SHOWN: Events = Events::IN.union(Events::RDNORM);

    /// Takes the set's lock.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Interests> {
        #[cfg(not(upoll_loom))]
        if let Some(inner) = self.inner.try_lock() {
            return inner;
        }
        self.tally.count(Tally::contended);
        // Threads that take turns come one by one: none stays away, for the others would serve its events.
        #[cfg(all(feature = "std", not(upoll_loom)))]
        if !self.takes_turns() {
            return lock_held(&self.inner);
        }
        self.inner.lock()
    }

    /// Takes the set's lock for a thread that may hold another lock: that of a set above, that for ADDs of sets to sets, or
    /// that of a backend which is made anew. Others wait for that one meanwhile, so the thread does not stay away from this one.
    #[inline]
    pub(crate) fn lock_from_above(&self) -> MutexGuard<'_, Interests> {
        #[cfg(not(upoll_loom))]
        if let Some(inner) = self.inner.try_lock() {
            return inner;
        }
        self.tally.count(Tally::contended);
        self.inner.lock()
    }

    pub(crate) fn rotates(&self) -> bool {
        self.rotates
    }

    /// Returns whether waiters take turns with others: the set rotates, or is above one that does.
    pub(crate) fn takes_turns(&self) -> bool {
        self.rotates || self.is_above_rotating()
    }

    /// Returns whether this poll is part of a call on this very set, or of too many nested calls. Objects that forward
    /// the `poll` of a set can form a cycle or a chain that ADD does not see.
    fn is_polled_from_within(&self) -> bool {
        #[cfg(any(feature = "std", upoll_loom))]
        if crate::sync::is_held_by_this_thread(&self.inner) {
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
    pub(crate) fn is_above_rotating(&self) -> bool {
        self.is_above_rotating.load(Ordering::Relaxed)
    }

    /// Records whether `events`, which the source of this rotating set has reported, are its end.
    /// Empty events mean any.
    pub(crate) fn note_hang_up(&self, events: Events) {
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
    pub(crate) fn has_hung_up(&self) -> bool {
        if self.may_have_hung_up.load(Ordering::Relaxed)
            && self.may_have_hung_up.swap(false, Ordering::Relaxed)
        {
            let _scope = Scope::enter();
            let inner = self.lock();
            let hung_up = inner.iter().any(|item| {
                // SAFETY: the item is registered, and the set's lock is held.
                unsafe { Set::poll_item(&*item).intersects(HANG_UP) }
            });
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

/// An epoll set: watches open files, reports which are ready.
///
/// It watches user-level objects, anything [`Pollable`] in a [`File`], and kernel fds. A set is itself
/// an open file and may be watched by other sets.
///
/// Cloning makes another reference to the same set, as `dup(2)` does; the last one to drop closes
/// it. All calls may be made from any number of threads at once.
///
/// # Level, edge, oneshot, exclusive
/// As in `epoll(7)` of Linux 6.18. A level-triggered item is reported as long as it is ready, and
/// ready items take turns when a wait's buffer is too small for all. `ET` reports once per wake of
/// the file. `ONESHOT` disables the item after one report, `ERR` and `HUP` included, until it is
/// modified. `EXCLUSIVE` wakes at least one of the sets that watch a file so, not all.
///
/// # Kernel fds
/// Interests in them mean exactly what they mean in a kernel set. Their events and those of
/// user-level objects come from two sides, so in these points sets differ from Linux:
/// - There is an order among kernel fds and one among objects, but none between the two. If a
///   wait's buffer is too small for all, the sides take turns to fill it first.
/// - A set that is watched by another one and has kernel fds, or a set below with kernel fds, is
///   polled more often. So an edge-triggered interest in it may report an event twice. No event is
///   lost. An interest without `IN`, such as in `RDNORM` alone, reports events that Linux does not.
///   Its place among the events of a report is open.
/// - A poll drops from the ready list, on each side, the items before the first ready one that are
///   idle again. So after a poll the order may differ from Linux's.
///
/// A set with kernel fds has own fds. If the program closes them, the next call on the set opens others. Where the kernel
/// refuses that, the call fails with `EMFILE`, `ENFILE`, `ENOMEM`, `ENOSPC`, `ELOOP` or `EINVAL`, and the next one tries
/// again.
///
/// # Fork
/// A set belongs to the process that made it. The child of a `fork` leaves it alone, and makes its own.
///
/// # Rotation
/// A set made with [`CreateFlags::ROTATE`] watches at most one source that is not itself a set.
/// Sets that watch it are woken one at a time, in turn:
/// - An event goes to the set that had the fewest turns so far, among those that a thread waits on.
///   Among equals it goes to the one that had its last turn longest ago. A set without a waiting thread
///   is passed over, and keeps its place. Differences of up to 1024 turns are remembered.
/// - If nobody waits at all, the first to come takes the event.
/// - A thread whose event chooses a worker while three other chosen ones have not come yet
///   yields its processor once (`sched_yield(2)`), and again at the eighth, the sixteenth and so on.
///   Some of them may be unable to run because it does.
/// - If the source is a kernel fd, a worker may be ahead of the others by a few turns, which saves system calls and
///   context switches. [`set_rotation_slack`](Epoll::set_rotation_slack) changes how many.
/// - If the source is still ready when a worker that is not to go on comes back to wait, the turn goes to the next
///   worker in line, not to the same one again. If that one has not come after a millisecond, the
///   worker that came back takes the event.
/// - A wait that sleeps never returns 0 while the source is ready: it looks at the source when it
///   begins and when its limit ends. A wait with a limit of zero leaves the event to a worker that
///   sleeps, if there is one. An edge-triggered interest is reported to the chosen worker alone.
///   Sleeping calls of `poll`, `select` and waits in a set further above do the same.
/// - A chosen worker that leaves forwards the event. It leaves when it closes its set, deletes the
///   rotating set from it, ends its thread, or ends a `poll` or `select` that has not reported the
///   event.
/// - Other workers wait for one that was chosen and does not come once only, not at each event.
/// - The end of a source (`HUP`, `RDHUP`) wakes every worker that waits, one after the other.
/// - Threads that wait on the rotating set itself take turns by the same rules.
/// - `poll` and `select` on the rotating set see every event, in addition.
/// - An event of a kernel fd wakes one worker of all rotating sets that have the fd as their source by the same events: use
///   one rotating set for one kernel fd. An event of a user-level object wakes one worker of each.
/// - A kernel fd that is watched for priority data, or for `RDHUP` without `IN`, wakes all workers: the kernel's exclusive
///   wakes know only `IN` and `OUT`.
///
/// The EPOLL_ROTATE patch leaves these cases open; upoll defines them as follows. A second source fails
/// with `EINVAL`. `EPOLL_ROTATE` may be combined with `EPOLL_CLOEXEC`. Edge-triggered and oneshot
/// interests in the rotating set keep their meaning for the chosen worker. `EPOLLEXCLUSIVE` on it fails
/// with `EINVAL`, as for any set.
///
/// # Example
/// ```
/// use upoll::{Epoll, Event, EventFd, Events};
///
/// let set = Epoll::new()?;
/// let counter = EventFd::new(0)?;
/// set.add(&counter, Event::new(Events::IN, 42))?;
///
/// counter.try_write(1)?;
/// let mut events = [Event::default(); 8];
/// assert_eq!(set.try_wait(&mut events)?, 1);
/// assert_eq!(events[0].data(), 42);
/// # Ok::<(), upoll::Errno>(())
/// ```
#[derive(Clone, Debug)]
#[doc(alias = "epoll_create1")]
pub struct Epoll {
    file: File<Set>,
}

impl Epoll {
    /// `epoll_create1(0)`: an empty set.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    pub fn new() -> Result<Self, Errno> {
        Self::create(CreateFlags::empty())
    }

    /// `epoll_create1(flags)`: an empty set.
    ///
    /// # Errors
    /// `EINVAL`: `flags` holds bits other than [`CreateFlags::ROTATE`] and
    /// [`CreateFlags::CLOEXEC`]. `ENOMEM`: there is no memory for it.
    pub fn create(flags: CreateFlags) -> Result<Self, Errno> {
        Self::create_on(flags, default_limit()?)
    }

    /// [`create`](Self::create) with a separate account: an ADD beyond it fails with `ENOSPC`.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_within(flags: CreateFlags, limit: Arc<WatchLimit>) -> Result<Self, Errno> {
        Self::create_on(flags, Account::Given(limit))
    }

    fn create_on(flags: CreateFlags, account: Account) -> Result<Self, Errno> {
        if !(flags - (CreateFlags::ROTATE | CreateFlags::CLOEXEC)).is_empty() {
            return Err(Errno::INVAL);
        }
        #[cfg(all(feature = "std", not(upoll_loom)))]
        crate::sync::prepare();
        let rotates = flags.contains(CreateFlags::ROTATE);
        let epoll = Epoll {
            file: File::try_new(Set {
                schedules: Schedules::new(),
                first: AtomicPtr::new(core::ptr::null_mut()),
                pending: AtomicPtr::new(core::ptr::null_mut()),
                sleepers: WaitQueue::new(),
                watched_by: WaitQueue::new(),
                inner: Mutex::new(Interests::new(Allowance::new(account))),
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
            })?,
        };
        #[cfg(any(feature = "std", upoll_loom))]
        if let Some(handover) = &epoll.file.handover {
            handover.open(NonNull::from(epoll.description()));
        }
        trace::created(epoll.as_file_ref().identity(), rotates);
        Ok(epoll)
    }

    /// Reports ready members: `epoll_wait(2)` with a timeout of 0, and the core of every wait.
    ///
    /// Fills `events` from the front and returns their number. Blocks only while other calls hold the lock of the set, or of
    /// one below. A thread that meets others there again and again leaves the set's lock to them for longer: with many
    /// threads, which all do nothing else, for about two milliseconds, or until other programs leave it the processor.
    ///
    /// # Errors
    /// `EINVAL`: `events` is empty. Others only if the program has closed [own fds](Self#kernel-fds).
    pub fn try_wait(&self, events: &mut [Event]) -> Result<usize, Errno> {
        if events.is_empty() {
            return Err(Errno::INVAL);
        }
        let result = self.harvest_unremembered(events);
        trace::waited(self.as_file_ref().identity(), result);
        let ready = result?;
        if ready > 0 {
            self.count_events(ready);
            #[cfg(all(feature = "std", not(upoll_loom)))]
            handover::remember(self.set());
        }
        Ok(ready)
    }

    /// [`try_wait`](Self::try_wait) for a thread that forwards the event by other means if it ends.
    #[inline]
    pub(crate) fn harvest_unremembered(&self, events: &mut [Event]) -> Result<usize, Errno> {
        // Models show that wakes alone bring what is there to a waiter.
        #[cfg(not(upoll_loom))]
        self.file.recheck_rotating();
        self.file.fire_due();
        match self.file.backend() {
            None => Ok(self.file.harvest(events)),
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
        let ready = backend.harvest_both(&self.file, events);
        if ready > 0 || !backend.is_found_lost() && losses == backend.losses() {
            return Ok(ready);
        }
        // The program closed it a moment ago, so the kernel was not asked. Another thread may have made it anew meanwhile.
        backend.restore_found_lost(self.description())?;
        Ok(backend.harvest_both(&self.file, events))
    }

    /// Sets by how many turns a worker of this rotating set may be ahead of the others, if the source is a kernel fd.
    ///
    /// A worker that comes back and finds the source ready goes on while it is less than `turns` ahead of every other worker, also of
    /// one that does not wait. A handover costs two context switches and some system calls, so it is paid once for several
    /// events then. The workers have about as many turns each in the long run. A worker that was just
    /// woken for an event that another one takes has had a turn as well.
    ///
    /// With 0 each event is another worker's. So it is with sources and workers whose interests are edge-triggered or oneshot,
    /// and with sources that are watched for more than `IN` and `OUT`. The default is 4. More than 512 count as 512. Workers of a source
    /// that is a user-level object take turns after each event, whatever the slack.
    ///
    /// # Errors
    /// `EINVAL`: the set does not rotate.
    ///
    /// # Example
    /// ```
    /// use upoll::{CreateFlags, Epoll};
    ///
    /// let rotating = Epoll::create(CreateFlags::ROTATE)?;
    /// rotating.set_rotation_slack(0)?;
    /// # Ok::<(), upoll::Errno>(())
    /// ```
    pub fn set_rotation_slack(&self, turns: u32) -> Result<(), Errno> {
        if !self.file.rotates {
            return Err(Errno::INVAL);
        }
        self.file.slack.store(turns, Ordering::Relaxed);
        // Stored, now look: an ADD that makes the backend publishes that, and then reads the slack.
        fence(Ordering::SeqCst);
        if let Some(backend) = self.file.backend() {
            backend.apply_slack(&self.file);
        }
        Ok(())
    }

    /// Returns whether threads that wait in the set take turns with others: it rotates, or is above a set that does.
    #[doc(hidden)]
    #[must_use]
    pub fn takes_turns(&self) -> bool {
        self.set().takes_turns()
    }

    /// Returns what `/proc/PID/fdinfo` would show: a line for each interest, in Linux's format. The lines of the
    /// [counters](Self::counters) follow if the set has them.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for the text.
    pub fn fdinfo(&self) -> Result<alloc::string::String, Errno> {
        text_of(|out| self.file.show_fdinfo(out))
    }

    /// Begins to count what happens in the set; without effect if it counts already. It counts until it is closed.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for the counters.
    pub fn enable_counters(&self) -> Result<(), Errno> {
        self.file.tally.enable()
    }

    /// Returns the counters, or `None` if the set does not [count](Self::enable_counters).
    #[must_use]
    pub fn counters(&self) -> Option<Counters> {
        self.file.tally.counters()
    }

    /// Counts the events that a wait returns.
    #[inline(always)]
    pub(crate) fn count_events(&self, ready: usize) {
        self.file.tally.count(|tally| tally.events(ready));
    }

    /// Returns the interests in one open file: the fd that each goes by, and what is wanted.
    ///
    /// A oneshot interest that has fired asks for no events any more.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for the list.
    pub fn interests_in(&self, file: FileRef<'_>) -> Result<Vec<(i32, Event)>, Errno> {
        let wanted = file.address();
        let found = self.interests_by(|address| (address == wanted).then_some(()))?;
        let mut interests = Vec::new();
        interests
            .try_reserve_exact(found.len())
            .map_err(|_| Errno::NOMEM)?;
        interests.extend(found.into_iter().map(|((), fd, interest)| (fd, interest)));
        Ok(interests)
    }

    /// Returns the interests in all open files for whose [address](FileRef::address) `find` returns
    /// something, each with that, as they are at one moment. The set is locked while `find` runs.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for the list.
    #[doc(hidden)]
    pub fn interests_by<T>(
        &self,
        find: impl Fn(usize) -> Option<T>,
    ) -> Result<Vec<(T, i32, Event)>, Errno> {
        let inner = self.file.lock();
        let mut found = Vec::new();
        for item in inner.iter() {
            // SAFETY: the item is registered and the set's lock held.
            let (address, fd, interest) = unsafe {
                let item = &*item;
                (
                    FileId::of(item.file()).addr(),
                    item.fd(),
                    Event::new(item.interest(), item.data()),
                )
            };
            if let Some(of) = find(address) {
                found.try_reserve(1).map_err(|_| Errno::NOMEM)?;
                found.push((of, fd, interest));
            }
        }
        Ok(found)
    }

    /// Returns the number of interests that the set holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.file.lock().len() + self.file.backend().map_or(0, |backend| backend.len())
    }

    /// Returns whether the set watches nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn set(&self) -> &Set {
        &self.file
    }

    pub(crate) fn description(&self) -> &Description<Set> {
        self.file.description()
    }
}

is_source!(Epoll);

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
