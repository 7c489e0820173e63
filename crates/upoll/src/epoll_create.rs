//! `epoll_create(2)`: the handle of a set, and the calls on it that neither change interests nor sleep.

use alloc::sync::Arc;
use alloc::vec::Vec;

#[cfg(all(feature = "std", not(upoll_loom)))]
use crate::epoll::handover;
use crate::epoll::{CreateFlags, Set, WatchLimit};
use crate::errno::Errno;
use crate::events::Event;
#[cfg(any(feature = "std", upoll_loom))]
use crate::file::Description;
use crate::file::{File, Pollable};
use crate::memory::text_of;
use crate::open_file::FileRef;
use crate::tally::Counters;
use crate::target::is_source;
use crate::trace;

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
    pub(crate) file: File<Set>,
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
        let file = File::<Set>::create(flags, None)?;
        Ok(Epoll { file })
    }

    /// [`create`](Self::create) with a separate account: an ADD beyond it fails with `ENOSPC`.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_within(flags: CreateFlags, limit: Arc<WatchLimit>) -> Result<Self, Errno> {
        let file = File::<Set>::create(flags, Some(limit))?;
        Ok(Epoll { file })
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
        let result = self.file.harvest_unremembered(events);
        trace::waited(self.as_file_ref().identity(), result);
        let ready = result?;
        if ready > 0 {
            self.count_events(ready);
            #[cfg(all(feature = "std", not(upoll_loom)))]
            handover::remember(self.set());
        }
        Ok(ready)
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
        self.file.set_slack(turns)
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
    pub fn count_events(&self, ready: usize) {
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
        self.file.interests_by(find)
    }

    /// Returns the number of interests that the set holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.file.count()
    }

    /// Returns whether the set watches nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn set(&self) -> &Set {
        &self.file
    }

    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) fn description(&self) -> &Description<Set> {
        self.file.description()
    }
}

is_source!(Epoll);

/// Entry points that models need besides the public ones: the core's, by the handle.
#[cfg(upoll_loom)]
impl Epoll {
    /// Returns whether a thread holds the set's lock.
    pub fn is_locked(&self) -> bool {
        self.file.is_locked()
    }

    /// Harvests as a wait that may sleep does at its start.
    pub fn harvest_in_turn(&self, events: &mut [Event]) -> usize {
        self.file.harvest_in_turn(events)
    }

    /// Makes the source of `rotating` choose this set by a line of its own.
    pub fn be_chosen(&self, rotating: &Epoll) {
        self.file.be_chosen(&rotating.file);
    }
}
