//! Tasks that wait for open files: a [`core::task::Waker`] in place of a sleeping thread.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::future::Future;
use core::mem::MaybeUninit;
use core::pin::Pin;
use core::ptr::NonNull;
use core::task::{Context, Poll, Waker};

use crate::awaited::{self, Awaited};
use crate::epoll::HANG_UP;
use crate::epoll::ctl::as_set;
use crate::errno::Errno;
use crate::events::Events;
use crate::file::PollTable;
use crate::memory::boxed;
use crate::sync::{Rule, broken};
use crate::target::{Source, Target};
use crate::wait::{
    Deferred, Mode, Notes, Place, Pushed, Reply, Scope, TaskSlot, WaitEntry, WaitQueue, Wake,
};

/// A future that is ready when an open file is.
///
/// It resolves to the events of the interest that are ready. Nothing is consumed: two futures on
/// one file both resolve. After that it may be polled again, and waits anew.
///
/// It keeps all that it needs within itself, so that waiting allocates nothing. For an object with more than two wait
/// queues, it allocates at its first poll.
/// It keeps the object's memory, but does not keep the file open. A file that is closed is `HUP`.
/// An object of an embedder says so by a wakeup in [`release`](crate::Pollable::release).
///
/// The task's waker is called at the end of the call that changed the object, with no lock of this crate held. So it
/// may run the task on the spot, or drop it.
///
/// The child of a `fork` in a process with several threads must not use its parent's futures.
///
/// # Kernel fds
/// It also waits for kernel fds, and for sets that have some: see [`Watch::new`](crate::Watch::new). A thread of
/// the library calls the waker then. The registration in the kernel stays from [`new`](Self::new) to the drop. So one
/// `Readiness` that is awaited again and again costs a few system calls each time. A new one costs some twenty.
///
/// # Timers
/// A [`Timer`](crate::Timer) on a clock of the kernel's, alone or in a set, wakes no task by itself: some call has to look at
/// the clock. See [`Timers`](crate::Timers#without-a-thread-that-waits).
///
/// # Cancel safety
/// Dropping it ends the registration, at any time. The waker of a wakeup that is under way may still be called.
///
/// # Example
/// ```
/// use std::future::Future;
/// use std::pin::pin;
/// use std::task::{Context, Poll, Waker};
/// use upoll::{EventFd, Events, Readiness};
///
/// let counter = EventFd::new(0)?;
/// let mut ready = pin!(Readiness::new(&counter, Events::IN)?);
/// let mut context = Context::from_waker(Waker::noop());
/// assert_eq!(ready.as_mut().poll(&mut context), Poll::Pending);
/// counter.try_write(1)?;
/// assert_eq!(ready.as_mut().poll(&mut context), Poll::Ready(Events::IN));
/// # Ok::<(), upoll::Errno>(())
/// ```
#[must_use = "a future waits only when it is polled"]
pub struct Readiness(TaskWait);

impl Readiness {
    /// Waits until any of `interest`, `ERR` or `HUP` is ready on `source`. Each change of the object wakes all tasks
    /// that wait so.
    ///
    /// # Errors
    /// As [`Watch::new`](crate::Watch::new). For a user-level object that is no set only `ENOMEM`, of a shared eventfd.
    #[inline]
    pub fn new<S: Source + ?Sized>(source: &S, interest: Events) -> Result<Self, Errno> {
        TaskWait::new(source.target(), interest, Place::Shared).map(Readiness)
    }

    /// Waits as [`new`](Self::new) does, but each wakeup of the object wakes one of the tasks that wait so. A task that
    /// finds `ERR`, `HUP` or `RDHUP` wakes the next one, so a close reaches all.
    ///
    /// - On a set with [`ROTATE`](crate::CreateFlags::ROTATE), and on an object that calls
    ///   [`WaitQueue::wake_rotate`], the tasks take turns, also with workers.
    /// - A task that is dropped, or ends its wait, after a wakeup has chosen it forwards the event to the next task.
    /// - A task that finds the object ready when it begins to wait does not wait for a turn.
    /// - A wakeup is for one task, however much of the object it makes ready. A task that leaves something of it ready
    ///   wakes no other one. A receive wakes a task that waits for room in a channel only if the channel was full.
    /// - Poll it once more or drop it, if it was woken: the event is not forwarded before.
    /// - An event of a kernel fd in a set wakes all tasks that wait for the set.
    ///
    /// # Errors
    /// As [`new`](Self::new). `EPERM`: `source` is a kernel fd.
    #[inline]
    pub fn exclusive<S: Source + ?Sized>(source: &S, interest: Events) -> Result<Self, Errno> {
        let target = source.target();
        if !target.is_file() {
            return Err(Errno::PERM);
        }
        TaskWait::new(target, interest, Place::ExclusiveTail).map(Readiness)
    }

    /// Returns the events of the interest that are ready now.
    #[must_use]
    pub fn ready(&self) -> Events {
        self.0.ready()
    }
}

impl Future for Readiness {
    type Output = Events;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Events> {
        // SAFETY: the field is pinned as the whole is.
        let wait = unsafe { self.map_unchecked_mut(|this| &mut this.0) };
        wait.poll_until(context.waker(), |wait| {
            let ready = wait.ready();
            (!ready.is_empty()).then(|| (ready, ready.intersects(HANG_UP) || wait.has_hung_up()))
        })
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readiness")
            .field("interest", &self.0.waiting.interest)
            .field("is_registered", &self.0.is_registered)
            .finish_non_exhaustive()
    }
}

/// How many queues of an object a wait has room for. All objects of this crate have one.
const ROOM: usize = 2;

/// A task's place in the wait queues of an object.
pub(crate) struct TaskWait {
    waiting: Waiting,
    place: Place,
    is_registered: bool,
    /// How many of `entries` are written, and hooked.
    used: usize,
    entries: [MaybeUninit<TaskEntry>; ROOM],
    /// Entries for which `entries` has no room. Boxed, because wait queues link them where they are.
    #[expect(clippy::vec_box, reason = "linked in place")]
    more: Vec<Box<TaskEntry>>,
    /// Keeps the queues alive that the entries are hooked into.
    file: Awaited,
}

/// The part of a wait that wakeups use.
struct Waiting {
    interest: Events,
    is_exclusive: bool,
    slot: TaskSlot,
}

#[repr(C)]
struct TaskEntry {
    /// First, so that a wake finds the rest.
    entry: WaitEntry,
    waiting: NonNull<Waiting>,
}

// SAFETY: `waiting` leads to a `Waiting`, which is `Send` and `Sync`, in the `TaskWait` that owns the entry.
unsafe impl Send for TaskEntry {}
// SAFETY: as above.
unsafe impl Sync for TaskEntry {}

impl TaskWait {
    /// # Errors
    /// As [`Readiness::new`].
    #[inline]
    pub(crate) fn new(target: Target<'_>, interest: Events, place: Place) -> Result<Self, Errno> {
        let interest = interest | Events::ALWAYS;
        let file = Awaited::begin(target, interest)?;
        Ok(TaskWait {
            waiting: Waiting {
                interest,
                is_exclusive: place != Place::Shared,
                slot: TaskSlot::new(),
            },
            place,
            is_registered: false,
            used: 0,
            entries: [const { MaybeUninit::uninit() }; ROOM],
            more: Vec::new(),
            file,
        })
    }

    /// Returns the events of the interest that are ready now.
    fn ready(&self) -> Events {
        if !self.file.is_open() {
            return Events::HUP;
        }
        self.file.object().poll(&mut PollTable::without_waiter()) & self.waiting.interest
    }

    /// Returns what `look` finds, or has the task woken when the object changes. `look` is called once and again
    /// until it finds something. It also returns whether that is a hang-up: no task can use that up, so an exclusive
    /// wait wakes the next one.
    pub(crate) fn poll_until<T>(
        mut self: Pin<&mut Self>,
        waker: &Waker,
        mut look: impl FnMut(&Self) -> Option<(T, bool)>,
    ) -> Poll<T> {
        if !(self.is_registered && self.is_exclusive())
            && let Some((found, _)) = look(&self)
        {
            if self.waiting.slot.is_waiting() {
                self.waiting.slot.end_wait();
            }
            return Poll::Ready(found);
        }
        // SAFETY: nothing is moved out.
        let this = unsafe { self.as_mut().get_unchecked_mut() };
        // The waker first, then the look: a wake in between finds the waker.
        if this.is_registered {
            let was_there = this.waiting.slot.set_anew(waker);
            if this.is_exclusive() {
                this.use_up_notes();
            } else if !was_there {
                this.link_again();
            }
        } else {
            if this.used > 0 {
                // Foreign code has panicked while the entries were hooked.
                this.leave();
            }
            this.waiting.slot.set_first(waker);
            this.register(waker);
        }
        if broken(Rule::LookAfterRegistering) {
            return Poll::Pending;
        }
        let mut found = look(&self);
        if found.is_none() && self.is_exclusive() && self.give_claims_up() {
            // The object was to be polled for them, and one of them may have come after the look.
            found = look(&self);
        }
        match found {
            Some((found, hangs_up)) => {
                // From now on queries of wakeups find that the task does not wait.
                let is_chosen_again = self.waiting.slot.end_wait();
                if self.is_exclusive() {
                    self.end_exclusive_wait(is_chosen_again || hangs_up);
                }
                Poll::Ready(found)
            }
            None => Poll::Pending,
        }
    }

    fn is_exclusive(&self) -> bool {
        self.place != Place::Shared
    }

    /// Releases the claims, whose events are gone. Returns whether there were any.
    fn give_claims_up(&self) -> bool {
        let mut deferred = Deferred::new();
        let mut claims = 0;
        for entry in self.hooked().filter(|entry| entry.is_claimed()) {
            // SAFETY: the entry is hooked, and `file` keeps its queue.
            unsafe { entry.settle(|| false, false, Notes::AreUsedUp, &mut deferred) };
            claims += 1;
        }
        claims > 0
    }

    /// Whether the object is a rotating set whose source has hung up, which its events do not show.
    fn has_hung_up(&self) -> bool {
        as_set(&self.file).is_some_and(|set| set.rotates() && set.has_hung_up())
    }

    /// The task, which waits exclusively, looks before it waits on, whatever was left to it.
    fn use_up_notes(&self) {
        for queue in self.hooked().filter_map(WaitEntry::queue) {
            // SAFETY: `file` keeps the queue.
            unsafe { queue.as_ref() }.use_up_notes();
        }
    }

    /// The task, which waits exclusively, goes on with an event. Its claim, if it has one, is used up.
    ///
    /// With `forwards` the next task is woken: for an event more, as this task was awake when it was chosen, or for one
    /// that stays.
    fn end_exclusive_wait(&self, forwards: bool) {
        let mut deferred = Deferred::new();
        for entry in self.hooked() {
            // SAFETY: the entry is hooked, and `file` keeps its queue.
            unsafe { entry.settle(|| true, false, Notes::AreUsedUp, &mut deferred) };
        }
        if forwards {
            for queue in self.hooked().filter_map(WaitEntry::queue) {
                // SAFETY: `file` keeps the queue.
                unsafe { queue.as_ref() }.forward(Events::empty());
            }
        }
    }

    /// Hooks the entries. Poll the object afterwards. `self` is pinned.
    fn register(&mut self, waker: &Waker) {
        let waiting = NonNull::from(&self.waiting);
        let place = self.place;
        let (entries, used, more) = (&mut self.entries, &mut self.used, &mut self.more);
        let mut is_short = false;
        // Wakers of others run when the object's `poll` has released its locks.
        let scope = Scope::enter();
        let mut on_register = |queue: &WaitQueue| {
            let entry = TaskEntry {
                entry: WaitEntry::new(on_wake_task),
                waiting,
            };
            let entry = if let Some(room) = entries.get_mut(*used) {
                *used += 1;
                room.write(entry)
            } else {
                let (Ok(entry), Ok(())) = (boxed(entry), more.try_reserve(1)) else {
                    is_short = true;
                    return;
                };
                more.push(entry);
                &**more.last().expect("it was pushed")
            };
            // SAFETY: the entry is pinned, as a part of `self` or in a box of its own. `leave` unhooks it before it
            // ends, and `file` keeps the object whose queue this is.
            unsafe { entry.entry.hook(queue, place) };
        };
        self.file
            .object()
            .poll(&mut PollTable::new(&mut on_register));
        drop(scope);
        self.is_registered = !is_short;
        if is_short {
            // The task tries once more, until there is memory.
            self.leave();
            waker.wake_by_ref();
        }
    }

    /// Links the entries again that wakes have unlinked. Poll the object afterwards.
    fn link_again(&self) {
        // A waker of another task that panics does so when all entries are linked.
        let _scope = Scope::enter();
        self.hooked().for_each(WaitEntry::link_again);
    }

    fn hooked(&self) -> impl Iterator<Item = &WaitEntry> {
        let within = self.entries[..self.used]
            .iter()
            // SAFETY: the first `used` were written.
            .map(|entry| unsafe { entry.assume_init_ref() });
        within
            .chain(self.more.iter().map(|entry| &**entry))
            .map(|entry| &entry.entry)
    }

    /// Takes the entries out of their queues, and forwards the events for which the task was chosen.
    fn leave(&mut self) {
        // A waker that panics does so when all entries are out.
        let _scope = Scope::enter();
        for queue in self.hooked().filter_map(WaitEntry::unhook) {
            if !broken(Rule::ForwardWhenATaskLeaves) {
                // SAFETY: `file` keeps the queue.
                unsafe { queue.as_ref() }.forward(Events::empty());
            }
        }
        let used = core::mem::take(&mut self.used);
        for entry in &mut self.entries[..used] {
            // SAFETY: the first `used` were written, and none is hooked any more.
            unsafe { entry.assume_init_drop() };
        }
        self.more.clear();
        self.is_registered = false;
    }
}

impl Drop for TaskWait {
    fn drop(&mut self) {
        self.leave();
    }
}

/// # Safety
/// As [`OnWake`](crate::wait::OnWake); the entry is a [`TaskEntry`]'s.
unsafe fn on_wake_task(entry: NonNull<WaitEntry>, wake: &mut Wake<'_>) -> Reply {
    // SAFETY: `entry` is the first field of a `TaskEntry`. It and what it points to end after its owner has unhooked it:
    // under the lock that is held here, or when it finds it unlinked, which comes after this.
    let waiting = unsafe { entry.cast::<TaskEntry>().as_ref().waiting.as_ref() };
    let key = awaited::key_of(wake);
    if !key.is_empty() && !key.intersects(waiting.interest) {
        return Reply::Declined;
    }
    if wake.mode == Mode::Query {
        return match waiting.slot.is_waiting() {
            true => Reply::Woken,
            false => Reply::Declined,
        };
    }
    // SAFETY: the lock of the entry's queue is held.
    let pushed = unsafe { wake.deferred.push_task(&waiting.slot) };
    match pushed {
        // Without its waker the entry is of no more use, and its owner needs no lock to end.
        Pushed::Taken if !waiting.is_exclusive => Reply::WokenAndUnlinked,
        // The task runs already: an exclusive wake is for another one.
        Pushed::No => Reply::Declined,
        Pushed::Taken | Pushed::Left => Reply::Woken,
    }
}
