//! Eventfds that several processes share.
//!
//! The count and its maximum are on a page that a child of `fork` has in common with its parent,
//! behind a [`RobustLock`]. A thread that waits outside a set sleeps on a word of that page, with
//! `futex(2)`. Sets, `poll` and `select` listen to two *notifiers*, kernel eventfds that a child
//! inherits. There is one for each direction. Changes write to it and nobody reads it, so each
//! write is one edge-triggered event for every kernel set that has it.
//!
//! # A process that dies
//! A process may die at any point. [`listeners`](crate::eventfd::listeners) defines the order in
//! which a change is announced and made. A thread that takes the lock after its owner's death sets
//! the marks again by which waiters are found.
//!
//! # A hostile process
//! The page holds numbers and no pointers, every bit pattern of it is valid, and a count and a maximum
//! that do not go together are corrected as they are read. So a process that overwrites the page makes
//! calls of others block, return a wrong count, or be woken for nothing.
//!
//! Nothing on the page counts processes or threads, so the death of one leaves no count wrong. One
//! bit of a word records that a thread sleeps on it. The next change clears the bit; the sleeper
//! sets it again. A listener arms a notifier again after each event that it has taken, and a change
//! disarms it. So a change that nobody listens to makes no system call.

use std::alloc::{Layout, handle_alloc_error};
use std::any::Any;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};

use super::kernel::{self, Descriptor};
use super::robust_lock::{Held, RobustLock, wake_all};
use super::{EDGE, EpollBackend, generation};
use crate::epoll::Op;
use crate::epoll::ctl::set_of;
use crate::errno::Errno;
use crate::eventfd::listeners::{Shared, Wakers};
use crate::eventfd::{Direction, EventFd, EventFdFlags, Limited, SharedCount, Step};
use crate::events::{Event, Events};
use crate::file::{Description, InKernel};
use crate::memory::{SharedBox, boxed};
use crate::sync::{AtomicPtr, AtomicU32, Ordering};
use crate::target::Target;
use crate::wait::WaitQueue;

pub(super) const DIRECTIONS: [Direction; 2] = [Direction::In, Direction::Out];

/// The memory that the processes share.
#[repr(C)]
struct Page {
    lock: RobustLock,
    shared: Shared,
}

/// A process's part of a counter that it shares with others.
struct Share {
    page: NonNull<Page>,
    inward: Descriptor,
    outward: Descriptor,
}

// SAFETY: the page is made of atomics.
unsafe impl Send for Share {}
// SAFETY: as above.
unsafe impl Sync for Share {}

impl Drop for Share {
    fn drop(&mut self) {
        // The lock ends with the last process's page: others may hold it. In a model all processes are this one.
        #[cfg(upoll_loom)]
        // SAFETY: written by `SharedCounter::new`, and nobody borrows it any more.
        unsafe {
            self.page.drop_in_place();
        }
        // SAFETY: mapped by `map_shared` with that size, and nobody borrows it any more.
        unsafe { kernel::unmap(self.page.cast(), size_of::<Page>()) };
    }
}

/// A process's view of a counter that it shares with others.
pub(crate) struct SharedCounter {
    share: SharedBox<Share>,
    /// Waiters that are hooked into a queue, those of embedders, in the process that made this.
    first_queue: OwnQueue,
    /// The same in a child, made when the first comes. A queue of an earlier generation is the parent's: it
    /// leads to the parent's threads, so it is left alone and never freed.
    queue: AtomicPtr<OwnQueue>,
    /// Made by [`EventFd::reopened`]: the counter that it was made of keeps the share, too, and is never
    /// dropped in this process.
    is_reopened: bool,
}

struct OwnQueue {
    /// Not dropped: what waits in it may be the parent's.
    queue: ManuallyDrop<WaitQueue>,
    generation: u32,
}

impl OwnQueue {
    fn new() -> Self {
        OwnQueue {
            queue: ManuallyDrop::new(WaitQueue::new()),
            generation: generation::current(),
        }
    }

    /// The queue, if it is this process's.
    fn current(&self) -> Option<&WaitQueue> {
        (self.generation == generation::current()).then_some(&*self.queue)
    }
}

impl EventFd {
    /// An eventfd that this process shares with the children it forks from now on, and they with
    /// theirs: `eventfd(initial, flags)` whose count and maximum live in shared memory.
    ///
    /// Handles that a child inherits are handles to the same counter. Reads, writes, signals and
    /// maxima of one process are seen by all, and wake the waiters in every process: in blocking
    /// calls, in sets, in `poll` and in `select`. The counter stays, with its count, as long as one
    /// process has it open; the last handle that a process drops takes nothing away from the
    /// others. All calls cost more than those of an eventfd of one process: each takes a lock that
    /// several processes share, and a change with a waiter makes system calls.
    ///
    /// - A process that dies, at any point, neither blocks the others nor leaves a count that is
    ///   not the sum of the calls that took effect. An interest with `ET` may be reported once more
    ///   than there were changes. A process that is *stopped* during a call holds up the others'
    ///   calls until it continues.
    /// - A process that overwrites the shared memory makes the count wrong, or keeps the others' calls on
    ///   it from returning. It reaches no other memory of theirs.
    /// - Sets made before a fork belong to the process that made them: a child leaves them alone,
    ///   and makes its own.
    /// - Interests with `EXCLUSIVE` are woken as any other. A set that watches a shared counter
    ///   counts as a set with kernel fds: its threads sleep in the kernel.
    /// - [`Watch`](crate::Watch), [`Readiness`](crate::Readiness) and objects that pass its queue
    ///   on from their own `poll` see only changes that the same process makes. On a set that has the
    ///   counter as a member, a `Watch` or `Readiness` sees all.
    /// - A signal handler must not use the counter. A child must be made by `fork`; a child that
    ///   calls `exec` no longer has the counter. Two kernel fds belong to it: a child that closes
    ///   all fds that it has inherited has to drop its handles before.
    /// - [`demote`](Self::demote) does nothing to it.
    ///
    /// # Errors
    /// `EINVAL`: `flags` holds a bit that [`EventFdFlags`] does not name. `EMFILE`, `ENFILE`, `ENOMEM`,
    /// `ENOSPC`: the kernel has no memory for the page, or no fds or watches for the two eventfds of its own
    /// that carry readiness from one process to another.
    ///
    /// # Example
    /// ```
    /// use upoll::{Errno, EventFd, EventFdFlags};
    ///
    /// let tokens = EventFd::shared(0, EventFdFlags::SEMAPHORE)?;
    /// tokens.set_maximum(4)?;
    /// // A child of `fork` has `tokens`, too.
    /// tokens.try_write(3)?;
    /// assert_eq!(tokens.try_write(1), Err(Errno::AGAIN));
    /// assert_eq!(tokens.read(), Ok(1));
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn shared(initial: u32, flags: EventFdFlags) -> Result<Self, Errno> {
        flags.check()?;
        generation::watch_forks()?;
        let counter = SharedCounter::new(u64::from(initial))?;
        Self::with_shared_count(boxed(counter)?, flags)
    }

    /// Moves count and maximum to a new counter that [is shared](Self::shared) with children and
    /// continues this one. This counter is [demoted](Self::demote), whatever its maximum. Returns
    /// None, and does nothing, if it was demoted before, or is shared itself.
    ///
    /// # Errors
    /// As [`shared`](Self::shared); nothing is done then.
    pub fn to_shared(&self) -> Result<Option<EventFd>, Errno> {
        match self.shared_copy()? {
            Some(shared) => Ok(self.move_to_shared(&shared)?.then_some(shared)),
            None => Ok(None),
        }
    }

    /// Returns a new shared counter with the present count and maximum, which sets may watch before the count
    /// [is moved](Self::move_to_shared) to it. `None` if this one is shared or was demoted.
    ///
    /// # Errors
    /// As [`shared`](Self::shared).
    #[doc(hidden)]
    pub fn shared_copy(&self) -> Result<Option<EventFd>, Errno> {
        if self.is_shared() || self.is_stale() {
            return Ok(None);
        }
        let now = self.counter().check();
        let shared = Self::shared(0, self.flags())?;
        let copied = shared.counter().change_beyond(Direction::In, &|_| Ok(now));
        debug_assert!(copied.is_ok(), "the step never fails");
        Ok(Some(shared))
    }

    /// As [`to_shared`](Self::to_shared), to a [copy](Self::shared_copy) that nobody has changed. Returns whether the count
    /// was moved.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it; nothing is done then.
    #[doc(hidden)]
    pub fn move_to_shared(&self, shared: &EventFd) -> Result<bool, Errno> {
        if self.is_shared() {
            return Ok(false);
        }
        let Some(was) = self.counter().demote(|_| true)? else {
            return Ok(false);
        };
        let copied = shared.counter().check();
        if (copied.count, copied.maximum) != (was.count, was.maximum) {
            // A call has changed it since the copy was made, so readers or writers may go on.
            for direction in [Direction::In, Direction::Out] {
                let moved = shared.counter().change_beyond(direction, &|_| Ok(was));
                debug_assert!(moved.is_ok(), "the step never fails");
            }
        }
        Ok(true)
    }

    /// Another open file with the same count, maximum and flags, if it is [shared](Self::shared) and there is
    /// memory for it.
    ///
    /// It is for the child of a fork. Other threads of the parent may have been changing the data
    /// that this file has about its waiters, and have left that data locked. No lock of this file
    /// is taken. The child must then neither use nor drop this file.
    #[must_use]
    pub fn reopened(&self) -> Option<EventFd> {
        let counter = self.shared_counter()?;
        let mut counter = SharedCounter::of_share(SharedBox::clone(&counter.share));
        counter.is_reopened = true;
        Self::with_shared_count(boxed(counter).ok()?, self.flags()).ok()
    }

    /// Returns whether it was made to be [shared](Self::shared).
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared_counter().is_some()
    }

    /// The counter behind this handle, if it is shared.
    pub(crate) fn shared_counter(&self) -> Option<&SharedCounter> {
        SharedCounter::of(self.as_file_ref().description())
    }
}

impl SharedCounter {
    fn new(initial: u64) -> Result<Self, Errno> {
        // The notifiers are members of a kernel set that asks for nothing. This distinguishes them
        // from files that the program may have opened under their fds.
        let set = SharedBox::new(kernel::epoll_create()?)?;
        let inward = Descriptor::member_of(&set, kernel::eventfd()?)?;
        let outward = Descriptor::member_of(&set, kernel::eventfd()?)?;
        let page = kernel::map_shared(size_of::<Page>())?.cast::<Page>();
        // Without memory for it, it is dropped, and the page is unmapped.
        let counter = Self::of_share(SharedBox::new(Share {
            page,
            inward,
            outward,
        })?);
        let contents = Page {
            lock: RobustLock::new(),
            shared: Shared::new(initial),
        };
        // SAFETY: the page is as large as that, aligned, and nobody else's.
        unsafe { page.write(contents) };
        Ok(counter)
    }

    fn of_share(share: SharedBox<Share>) -> Self {
        SharedCounter {
            share,
            first_queue: OwnQueue::new(),
            queue: AtomicPtr::new(ptr::null_mut()),
            is_reopened: false,
        }
    }

    /// The shared counter that a description is of, if it is one.
    pub(crate) fn of(file: &Description) -> Option<&Self> {
        let source: &dyn Any = file.kernel_source()?;
        source.downcast_ref()
    }

    /// Returns the shared counter that `target` is, if it is one.
    fn of_target(target: Target<'_>) -> Option<&Self> {
        match target {
            Target::File(file) => Self::of(file.description()),
            Target::Kernel(_) | Target::Descriptor(_) => None,
        }
    }

    fn shared(&self) -> &Shared {
        &self.page().shared
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped as long as `self` lives. Others may write any bytes there at any time: all of it
        // is atomics, for which any bytes are valid.
        unsafe { self.share.page.as_ref() }
    }

    /// Returns the notifier that a kernel set has to watch, edge-triggered, to see changes. It is
    /// always readable.
    pub(super) fn notifier(&self, direction: Direction) -> &Descriptor {
        match direction {
            Direction::In => &self.share.inward,
            Direction::Out => &self.share.outward,
        }
    }

    /// Arms the notifier for the next change. Returns how many changes there were before. A
    /// listener that has seen a change arms first, then checks what the change did.
    pub(super) fn arm(&self, direction: Direction) -> u64 {
        self.shared().arm(direction)
    }

    fn lock(&self) -> Held<'_> {
        let held = self.page().lock.lock();
        if held.owner_died {
            self.shared().holder_died();
        }
        held
    }

    /// Before a sleep on [`word`](Self::word): what it holds now, so that a change from here on is
    /// noticed. Look at the count afterwards.
    pub(crate) fn enlist(&self, direction: Direction) -> u32 {
        let _locked = self.lock();
        self.shared().enlist(direction)
    }

    /// Returns the word that waiters for a change in `direction` sleep on.
    pub(crate) fn word(&self, direction: Direction) -> &AtomicU32 {
        self.shared().word(direction)
    }

    /// This process's queue. A child of the process that made the counter makes its own.
    fn queue_or_make(&self) -> Result<&WaitQueue, Errno> {
        let current = self.queue.load(Ordering::SeqCst);
        if let Some(queue) = self.own_queue() {
            return Ok(queue);
        }
        let made = Box::into_raw(boxed(OwnQueue::new())?);
        let set = self
            .queue
            .compare_exchange(current, made, Ordering::SeqCst, Ordering::SeqCst);
        let there = match set {
            Ok(_) => made,
            Err(there) => {
                // SAFETY: made above, and nobody else knows it.
                drop(unsafe { Box::from_raw(made) });
                there
            }
        };
        // SAFETY: as in `own_queue`; another thread of this process made it, if not this one.
        Ok(unsafe { &(*there).queue })
    }

    /// This process's queue, if it has one.
    fn own_queue(&self) -> Option<&WaitQueue> {
        self.first_queue.current().or_else(|| {
            // SAFETY: null, or from `Box::into_raw` in `queue_or_make` and freed by nobody but the drop.
            unsafe { self.queue.load(Ordering::SeqCst).as_ref() }?.current()
        })
    }
}

impl InKernel for SharedCounter {
    fn is_shared(&self) -> bool {
        true
    }

    fn prepare_queue(&self) -> Result<(), Errno> {
        self.queue_or_make().map(drop)
    }

    fn prepare_set(&self, set: &Description) -> Result<(), Errno> {
        set_of(set).map_or(Ok(()), |set| EpollBackend::ensure_nesting(set).map(drop))
    }

    fn tell_threads_of(&self, set: &Description) -> Result<(), Errno> {
        set_of(set).map_or(Ok(()), EpollBackend::tell_hidden)
    }
}

impl SharedCount for SharedCounter {
    fn change(&self, direction: Direction, step: Step<'_>) -> Result<Limited, Errno> {
        let locked = self.lock();
        let before = self.shared().change(direction, step, self)?;
        drop(locked);
        if let Some(queue) = self.own_queue() {
            queue.wake(direction.key());
        }
        Ok(before)
    }

    fn check(&self) -> Limited {
        let _locked = self.lock();
        self.shared().check()
    }

    fn queue(&self) -> &WaitQueue {
        // An embedder's object around this one has not made the queue: the process ends without memory.
        self.queue_or_make()
            .unwrap_or_else(|_| handle_alloc_error(Layout::new::<OwnQueue>()))
    }

    fn release(&self) {
        if let Some(queue) = self.own_queue() {
            queue.wake_all(Events::HUP);
        }
    }
}

impl Drop for SharedCounter {
    fn drop(&mut self) {
        let made = self.queue.load(Ordering::SeqCst);
        // SAFETY: null, or from `Box::into_raw` in `queue_or_make` and freed by nobody but this drop.
        if unsafe { made.as_ref() }.is_some_and(|made| made.current().is_some()) {
            // SAFETY: as above; who borrows the queue borrows `self`.
            drop(unsafe { Box::from_raw(made) });
        }
        if self.is_reopened {
            self.share.inward.close();
            self.share.outward.close_with_set();
        }
    }
}

impl Wakers for SharedCounter {
    fn wake(&self, word: &AtomicU32) {
        wake_all(word);
    }

    fn ring(&self, direction: Direction) {
        kernel::eventfd_write(self.notifier(direction));
    }
}

/// The notifiers that a thread in `poll` or `select` listens to: a kernel set of its own.
pub(crate) struct ListeningFd {
    set: Descriptor,
}

impl ListeningFd {
    /// `ENOMEM`: there is no memory or no descriptor for it.
    pub(crate) fn new() -> Result<Self, Errno> {
        let set = kernel::epoll_create().map_err(|_| Errno::NOMEM)?;
        Ok(ListeningFd { set })
    }

    /// Listens for changes of `target` that concern `wanted`, if it is a shared counter. Once is
    /// enough.
    ///
    /// `ENOMEM`: the kernel has no memory for that.
    pub(crate) fn listen_to(&self, target: Target<'_>, wanted: Events) -> Result<(), Errno> {
        let Some(counter) = SharedCounter::of_target(target) else {
            return Ok(());
        };
        for direction in wanted_directions(wanted) {
            let notifier = counter.notifier(direction);
            if !notifier.is_in_place() {
                // Lost: the thread looks at the counter after each sleep.
                continue;
            }
            let interest = Event::new(EDGE, 0);
            match kernel::epoll_ctl(&self.set, Op::Add, notifier.as_raw_fd(), &interest) {
                Ok(()) | Err(Errno::EXIST) => {}
                // Also ENOSPC, the limit on interests, which `poll` has no error for.
                Err(_) => return Err(Errno::NOMEM),
            }
        }
        Ok(())
    }

    /// Drains the events so far. Arm, then check the counters, afterwards.
    pub(crate) fn quiet(&self) {
        let mut events = [Event::default(); 16];
        while kernel::epoll_harvest(&self.set, &mut events).is_ok_and(|found| found == events.len())
        {
        }
    }

    /// Arms the notifiers for the next change of `target` that concerns `wanted`.
    pub(crate) fn arm(target: Target<'_>, wanted: Events) {
        if let Some(counter) = SharedCounter::of_target(target) {
            for direction in wanted_directions(wanted) {
                counter.arm(direction);
            }
        }
    }

    /// Returns whether the fd still stands for the kernel set. To be called before each sleep.
    pub(crate) fn is_in_place(&self) -> bool {
        self.set.is_in_place()
    }

    /// Returns the fd that is readable when a notifier was triggered.
    pub(crate) fn fd(&self) -> RawFd {
        self.set.as_raw_fd()
    }
}

fn wanted_directions(wanted: Events) -> impl Iterator<Item = Direction> {
    DIRECTIONS
        .into_iter()
        .filter(move |direction| wanted.intersects(direction.key()))
}
