//! Tasks that wait for open files: a [`core::task::Waker`] in place of a sleeping thread.

use alloc::boxed::Box;
use core::fmt;
use core::future::Future;
use core::ops::Deref;
use core::pin::Pin;
use core::ptr::NonNull;
use core::task::{Context, Poll, Waker};

use crate::awaited::{self, Awaited};
use crate::epoll::HANG_UP;
use crate::epoll::ctl::as_set;
use crate::errno::Errno;
use crate::events::Events;
use crate::file::{Description, Held, PollTable};
use crate::memory::boxed;
use crate::open_file::FileRef;
use crate::sync::{Rule, broken};
use crate::target::{Source, Target};
use crate::wait::{
    Deferred, Mode, Place, Pushed, RecheckFlags, Reply, Scope, TaskSlot, WaitEntry, WaitQueue, Wake,
};

/// A future that is ready when an open file is.
///
/// It resolves to the events of the interest that are ready. Nothing is consumed: two futures on
/// one file both resolve. After that it may be polled again, and waits anew.
///
/// It keeps all that it needs within itself, so that waiting allocates nothing. For an object with more than two wait
/// queues, it allocates at its first poll. Each of several queues may wake the task once.
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
            let hangs_up =
                || wait.is_exclusive() && (ready.intersects(HANG_UP) || wait.has_hung_up());
            (!ready.is_empty()).then(|| (ready, hangs_up()))
        })
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readiness")
            .field("interest", &self.0.interest)
            .field("is_registered", &self.0.is_registered)
            .finish_non_exhaustive()
    }
}

/// The number of queues of an object that a wait has room for. All objects of this crate have one.
const ROOM: usize = 2;

/// A task's place in the wait queues of an object.
pub(crate) struct TaskWait<F: Deref<Target = Description> = Held> {
    interest: Events,
    place: Place,
    /// The entries are hooked. While the future is pending each has the task's waker, unless a wake has chosen it.
    is_registered: bool,
    entries: [Option<TaskEntry>; ROOM],
    /// Entries for which `entries` has no room. Boxed, because wait queues link them where they are.
    more: Option<Box<MoreEntries>>,
    /// Keeps the queues alive that the entries are hooked into.
    file: Awaited<F>,
}

#[repr(C)]
struct TaskEntry {
    /// First, so that a wake finds the rest.
    entry: WaitEntry,
    interest: Events,
    slot: TaskSlot,
}

struct MoreEntries {
    first: TaskEntry,
    rest: Option<Box<MoreEntries>>,
}

impl Drop for MoreEntries {
    /// Ends one after the other: nested drops of many would need a deep stack.
    fn drop(&mut self) {
        let mut rest = self.rest.take();
        while let Some(mut more) = rest {
            rest = more.rest.take();
        }
    }
}

impl TaskEntry {
    fn new(interest: Events) -> Self {
        TaskEntry {
            entry: WaitEntry::new(on_wake_task),
            interest,
            slot: TaskSlot::new(),
        }
    }

    /// Sets the waker, and links the entry unless it is linked. Poll the object afterwards.
    ///
    /// An entry that stays linked with its waker passes no fence: a wake that the poll does not see finds it.
    #[inline]
    fn wait(&self, waker: &Waker) {
        let waits = || {
            // SAFETY: `without_wakes` holds the lock of the entry's queue.
            unsafe { self.slot.held() }.waits_with(waker)
        };
        let place = match self.entry.is_exclusive() {
            true => Place::ExclusiveTail,
            false if !self.entry.is_done() && self.entry.without_wakes(waits) == Some(true) => {
                return;
            }
            false => Place::Shared,
        };
        let waker = waker.clone();
        // SAFETY: `link` holds the lock of the entry's queue.
        let sets = || unsafe { self.slot.held() }.set(waker);
        let before = self.entry.link(place, sets);
        drop(before);
    }

    /// Ends the wait: queries of wakeups find from now on that the task does not wait. Returns whether a wake has chosen
    /// the task since it has set its waker.
    #[inline]
    fn end_wait(&self) -> bool {
        self.entry.is_done() || self.end_wait_in_queue()
    }

    fn end_wait_in_queue(&self) -> bool {
        let take = || {
            // SAFETY: `without_wakes` and `unlink` hold the lock of the entry's queue.
            unsafe { self.slot.held() }.take()
        };
        let ended = if self.entry.is_exclusive() {
            self.entry.without_wakes(take)
        } else {
            self.entry.unlink(take)
        };
        ended.flatten().is_none()
    }
}

impl TaskWait {
    /// # Errors
    /// As [`Readiness::new`].
    #[inline]
    pub(crate) fn new(target: Target<'_>, interest: Events, place: Place) -> Result<Self, Errno> {
        let interest = interest | Events::ALWAYS;
        Ok(Self::at(Awaited::begin(target, interest)?, interest, place))
    }
}

impl<'a> TaskWait<&'a Description> {
    /// # Errors
    /// As [`Readiness::new`].
    #[inline]
    pub(crate) fn borrow(file: FileRef<'a>, interest: Events, place: Place) -> Result<Self, Errno> {
        let interest = interest | Events::ALWAYS;
        Ok(Self::at(Awaited::borrow(file, interest)?, interest, place))
    }
}

impl<F: Deref<Target = Description>> TaskWait<F> {
    #[inline]
    fn at(file: Awaited<F>, interest: Events, place: Place) -> Self {
        TaskWait {
            interest,
            place,
            is_registered: false,
            entries: [None, None],
            more: None,
            file,
        }
    }

    /// Returns the events of the interest that are ready now.
    #[inline]
    fn ready(&self) -> Events {
        if !self.file.is_open() {
            return Events::HUP;
        }
        self.file.object().poll(&mut PollTable::without_waiter()) & self.interest
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
            self.end_wait();
            return Poll::Ready(found);
        }
        // SAFETY: nothing is moved out.
        let this = unsafe { self.as_mut().get_unchecked_mut() };
        if !(this.is_registered || this.find_queues()) {
            // The task tries once more, until there is memory.
            waker.wake_by_ref();
            return Poll::Pending;
        }
        // The waker first, then the look: a wake in between finds the waker.
        this.wait(waker);
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
                let is_chosen_again = self.end_wait();
                if self.is_exclusive() {
                    self.end_exclusive_wait(is_chosen_again || hangs_up);
                }
                Poll::Ready(found)
            }
            None => Poll::Pending,
        }
    }

    #[inline]
    fn is_exclusive(&self) -> bool {
        self.place != Place::Shared
    }

    /// Hooks an entry into each queue of the object. Returns false if there is no memory for them. `self` is pinned.
    fn find_queues(&mut self) -> bool {
        if self.entries[0].is_some() {
            // Foreign code has panicked while the queues were found.
            self.leave();
        }
        let (interest, place) = (self.interest, self.place);
        let (entries, more) = (&mut self.entries, &mut self.more);
        let mut is_short = false;
        let failed = &mut is_short;
        let mut on_register = move |queue: &WaitQueue| {
            let entry = if let Some(room) = entries.iter_mut().find(|room| room.is_none()) {
                &*room.insert(TaskEntry::new(interest))
            } else if let Some(entry) = add_entry(more, interest) {
                entry
            } else {
                *failed = true;
                return;
            };
            // SAFETY: the entry is boxed or in the pinned `TaskWait`, which takes it out of the queue before it goes.
            // `file` keeps the object whose queue this is; if it only borrows that, the future is leaked before.
            unsafe { entry.entry.hook_unlinked(queue, place) };
        };
        self.file
            .object()
            .poll(&mut PollTable::new(&mut on_register));
        if is_short {
            self.leave();
        }
        self.is_registered = !is_short;
        !is_short
    }

    /// Sets the waker in all entries. Poll the object afterwards. A waker of another task that panics may leave some of
    /// them out: the next poll sets it there.
    #[inline]
    fn wait(&self, waker: &Waker) {
        self.hooked().for_each(|entry| entry.wait(waker));
    }

    /// Ends the wait in all queues. Returns whether a wake has chosen the task since it has set its waker.
    fn end_wait(&self) -> bool {
        // Not `any`, which ends at the first one.
        self.hooked()
            .fold(false, |is_chosen, entry| entry.end_wait() | is_chosen)
    }

    /// Releases the claims, whose events are gone. Returns whether there were any.
    #[inline(never)]
    fn give_claims_up(&self) -> bool {
        let mut deferred = Deferred::new();
        let mut claims = 0;
        for entry in self.hooked().filter(|entry| entry.entry.is_claimed()) {
            let entry = &entry.entry;
            entry.settle(|| false, false, RecheckFlags::AreCleared, &mut deferred);
            claims += 1;
        }
        claims > 0
    }

    /// Returns whether the object is a rotating set whose source has hung up, which its events do not show.
    #[inline(never)]
    fn has_hung_up(&self) -> bool {
        as_set(&self.file).is_some_and(|set| set.rotates() && set.has_hung_up())
    }

    /// The task, which waits exclusively, goes on with an event. Its claim, if it has one, is used up.
    ///
    /// With `forwards` the next task is woken: for an event more, as this task was awake when it was chosen, or for one
    /// that stays. So it is if the task was chosen in several queues.
    #[inline(never)]
    fn end_exclusive_wait(&self, forwards: bool) {
        let claimed = self.hooked().filter(|entry| entry.entry.is_claimed());
        let forwards = forwards || claimed.count() > 1;
        let mut deferred = Deferred::new();
        for entry in self.hooked() {
            let entry = &entry.entry;
            entry.settle(|| true, false, RecheckFlags::AreCleared, &mut deferred);
        }
        if forwards {
            for queue in self.hooked().filter_map(|entry| entry.entry.queue()) {
                // SAFETY: `file` keeps the queue.
                unsafe { queue.as_ref() }.forward(Events::empty());
            }
        }
    }

    #[inline]
    fn hooked(&self) -> impl Iterator<Item = &TaskEntry> {
        let more = core::iter::successors(self.more.as_deref(), |more| more.rest.as_deref());
        let more = more.map(|more| &more.first);
        self.entries.iter().flatten().chain(more)
    }

    /// Takes the entries out of their queues, and ends them.
    #[cold]
    fn leave(&mut self) {
        self.unhook_all();
        self.entries = [None, None];
        self.more = None;
        self.is_registered = false;
    }

    /// Takes the entries out of their queues, and forwards the events for which the task was chosen.
    #[inline(never)]
    fn unhook_all(&self) {
        // A waker that panics does so when all entries are out.
        let _scope = Scope::enter();
        for queue in self.hooked().filter_map(|entry| entry.entry.unhook()) {
            if !broken(Rule::ForwardWhenATaskLeaves) {
                // SAFETY: `file` keeps the queue.
                unsafe { queue.as_ref() }.forward(Events::empty());
            }
        }
    }
}

/// Returns a new entry, or `None` if there is no memory for it.
#[cold]
fn add_entry(more: &mut Option<Box<MoreEntries>>, interest: Events) -> Option<&TaskEntry> {
    let first = TaskEntry::new(interest);
    let rest = more.take();
    let added = boxed(MoreEntries { first, rest }).ok()?;
    Some(&more.insert(added).first)
}

impl<F: Deref<Target = Description>> Drop for TaskWait<F> {
    #[inline]
    fn drop(&mut self) {
        if !self.hooked().all(|entry| entry.entry.is_done()) {
            self.unhook_all();
        }
    }
}

/// # Safety
/// As [`OnWake`](crate::wait::OnWake); the entry is a [`TaskEntry`]'s.
unsafe fn on_wake_task(entry: NonNull<WaitEntry>, wake: &mut Wake<'_>) -> Reply {
    // SAFETY: `entry` is the first field of a `TaskEntry`. It ends after its owner has unhooked it: under the lock that is
    // held here, or when it finds it unlinked, which comes after this.
    let task = unsafe { entry.cast::<TaskEntry>().as_ref() };
    let key = awaited::key_of(wake);
    if !key.is_empty() && !key.intersects(task.interest) {
        return Reply::Declined;
    }
    // SAFETY: the lock of the entry's queue is held.
    let mut slot = unsafe { task.slot.held() };
    if wake.mode == Mode::Query {
        return match slot.is_waiting() {
            true => Reply::Woken,
            false => Reply::Declined,
        };
    }
    match wake.deferred.push_task(slot) {
        // Without its waker the entry is of no more use, and its owner needs no lock to end.
        Pushed::Taken if !task.entry.is_exclusive() => Reply::WokenAndUnlinked,
        // The task runs already: an exclusive wake is for another one.
        Pushed::No => Reply::Declined,
        Pushed::Taken | Pushed::Left => Reply::Woken,
    }
}
