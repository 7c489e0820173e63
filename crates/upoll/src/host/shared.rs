//! Eventfds that several processes share.
//!
//! The count and its maximum are on a page that a child of `fork` has in common with its parent,
//! behind a robust lock of the C library. Whoever waits outside a set sleeps on a word of that page,
//! with `futex(2)`. Sets, `poll` and `select` listen to two *bells*, kernel eventfds that a child
//! inherits: one for each direction, rung by changes and never read, so each ring is one
//! edge-triggered event for every kernel set that has it.
//!
//! # A process that dies
//! It may do so anywhere, and those who sleep must not be left with a change that nobody told them
//! of. So a change is told *before* it is made, with the lock held: who was told takes the lock to
//! look, and there finds the change, or that it was not made. The count and the maximum are a store
//! each, and a change is one of the two, so there is no half-made change to mend. Whoever hears from
//! the kernel that the lock's owner has died sets the marks again by which those who wait are found.
//!
//! Nothing on the page counts processes or threads, so none can be missed when it dies. A word says
//! by one bit that somebody sleeps on it, and the next change takes the bit away; the sleeper sets
//! it again. A bell is armed by whoever has heard it and listens on, and a ring disarms it: changes
//! that nobody listens to make no system call.

use std::any::Any;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};

use syscalls::{Sysno, syscall};

use super::kernel::{self, Descriptor};
use super::{EDGE, generation};
use crate::epoll::Op;
use crate::errno::Errno;
use crate::eventfd::{Direction, EventFd, EventFdFlags, Limited, SharedCount, Step, shared_count};
use crate::events::{Event, Events};
use crate::file::Description;
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::target::Target;
use crate::wait::WaitQueue;

pub(super) const DIRECTIONS: [Direction; 2] = [Direction::In, Direction::Out];

/// What the processes share.
#[repr(C)]
struct Page {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    /// Written with the lock held, as `maximum`.
    count: AtomicU64,
    maximum: AtomicU64,
    inward: Listeners,
    outward: Listeners,
}

/// Those who want to hear of changes in one direction.
#[repr(C)]
struct Listeners {
    /// Changes that were told.
    changes: AtomicU64,
    /// [`ASLEEP`] and, above it, a number that is another one after each change that found somebody
    /// asleep. Written with the lock held.
    word: AtomicU32,
    /// The bell is to be rung. The named pair: a change counts itself in `changes`, then looks here;
    /// a listener arms the bell, then looks at `changes` or takes the lock.
    armed: AtomicBool,
}

/// In [`Listeners::word`]: somebody sleeps on it, or is about to.
const ASLEEP: u32 = 1;

/// A process's view of a counter that it shares with others.
pub(crate) struct SharedCounter {
    page: NonNull<Page>,
    inward: Descriptor,
    outward: Descriptor,
    /// Waiters of this process that are hooked into a queue: those of embedders. Made when the first
    /// comes. One of an earlier generation is the parent's: it leads to the parent's threads, so it
    /// is left alone and never freed.
    queue: AtomicPtr<OwnQueue>,
}

struct OwnQueue {
    queue: WaitQueue,
    generation: u32,
}

// SAFETY: the page is made of atomics and a lock; `queue` is written by compare-and-swap and leads
// to something that is `Sync` and lives as long as this.
unsafe impl Send for SharedCounter {}
// SAFETY: as above.
unsafe impl Sync for SharedCounter {}

impl EventFd {
    /// An eventfd that this process shares with the children it forks from now on, and they with
    /// theirs: `eventfd(initial, flags)` whose count and maximum live in shared memory.
    ///
    /// Handles that a child inherits are handles to the same counter: reads, writes, signals and
    /// maxima of one process are seen by all, and wake whoever waits in any of them: in blocking
    /// calls, in sets, in `poll` and in `select`. For as long as one process has it open it stays,
    /// with its count; the last handle that a process drops takes nothing away from the others.
    /// All calls cost more than those of an eventfd of one process alone: each takes a lock that
    /// several processes share, and a change that somebody waits for makes system calls.
    ///
    /// - A process that dies, whatever it is doing, neither blocks the others nor leaves a count
    ///   that is not the sum of the calls that took effect. An interest with `ET` may be reported
    ///   once more than there were changes. One that is *stopped* in the midst of a call holds up the
    ///   others' calls until it goes on.
    /// - Sets made before a fork belong to the process that made them: a child leaves them alone,
    ///   and makes its own.
    /// - Interests with `EXCLUSIVE` are woken as any other. A set that watches a shared counter is
    ///   one with descriptors of the kernel in it: its threads sleep in the kernel.
    /// - [`Watch`](crate::Watch), [`Readiness`](crate::Readiness) and objects that hand its queue on
    ///   from their own `poll` hear only of changes that the same process makes.
    /// - A signal handler must not use the counter, and a child must be made by `fork`; one that
    ///   calls `exec` has it no more. Two descriptors of the kernel's belong to it: a child that
    ///   closes all it has inherited has to drop its handles before.
    /// - [`retire`](Self::retire) does nothing to it.
    ///
    /// # Errors
    /// `EINVAL`: `flags` holds a bit that [`EventFdFlags`] does not name. `ENOMEM`: no memory for the
    /// page. `EMFILE`, `ENFILE`: no descriptors for the two eventfds of the kernel's that carry
    /// readiness from one process to another.
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
        Ok(Self::with_shared_count(Box::new(counter), flags))
    }

    /// Moves count and maximum to a counter that [is shared](Self::shared) with children, for whoever
    /// goes on with that one instead: this one is [retired](Self::retire), whatever its maximum. None,
    /// and nothing is done, if it was before, or is shared itself.
    ///
    /// # Errors
    /// As [`shared`](Self::shared); nothing is done then.
    pub fn to_shared(&self) -> Result<Option<EventFd>, Errno> {
        if self.is_shared() {
            return Ok(None);
        }
        let shared = Self::shared(0, self.flags())?;
        let Some(was) = self.counter().retire(|_| true) else {
            return Ok(None);
        };
        // Nobody else has it yet.
        let moved = shared.counter().change_beyond(Direction::In, &|_| Ok(was));
        debug_assert!(moved.is_ok(), "the step never fails");
        Ok(Some(shared))
    }

    /// Whether it was made to be [shared](Self::shared).
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
        let (inward, outward) = (kernel::eventfd()?, kernel::eventfd()?);
        let page = kernel::map_shared(size_of::<Page>())?.cast::<Page>();
        let counter = SharedCounter {
            page,
            inward,
            outward,
            queue: AtomicPtr::new(ptr::null_mut()),
        };
        // SAFETY: the page is as large as that, aligned, and nobody else's; it is all zero bytes,
        // which is what a counter begins with but for these two.
        unsafe {
            (*page.as_ptr()).count = AtomicU64::new(initial);
            (*page.as_ptr()).maximum = AtomicU64::new(u64::MAX);
            init_lock((*page.as_ptr()).lock.get())?;
        }
        Ok(counter)
    }

    /// The shared counter that a description is of, if it is one.
    pub(crate) fn of(file: &Description) -> Option<&Self> {
        let count: &dyn Any = shared_count(file)?;
        count.downcast_ref()
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped as long as `self` lives; all of it may be changed by others at any time,
        // and is made of atomics and a lock.
        unsafe { self.page.as_ref() }
    }

    fn listeners(&self, direction: Direction) -> (&Listeners, &Descriptor) {
        match direction {
            Direction::In => (&self.page().inward, &self.inward),
            Direction::Out => (&self.page().outward, &self.outward),
        }
    }

    /// What a kernel set has to watch, edge-triggered, to hear of changes. It is always readable.
    pub(super) fn bell(&self, direction: Direction) -> &Descriptor {
        self.listeners(direction).1
    }

    /// Has the next change ring; says how many changes there were before. Whoever was told of one
    /// arms first, then looks at what it did.
    pub(super) fn arm(&self, direction: Direction) -> u64 {
        let (listeners, _) = self.listeners(direction);
        listeners.armed.store(true, Ordering::SeqCst);
        listeners.changes.load(Ordering::SeqCst)
    }

    fn lock(&self) -> Locked<'_> {
        let lock = self.page().lock.get();
        // SAFETY: the lock was made by `init_lock` and stays where it is.
        let outcome = unsafe { libc::pthread_mutex_lock(lock) };
        if outcome == libc::EOWNERDEAD {
            // It may have taken the marks away and not come to rouse anybody, nor to its change.
            for direction in DIRECTIONS {
                let (listeners, _) = self.listeners(direction);
                listeners.armed.store(true, Ordering::SeqCst);
                listeners.word.fetch_or(ASLEEP, Ordering::SeqCst);
            }
            // SAFETY: this thread holds the lock.
            unsafe { libc::pthread_mutex_consistent(lock) };
        } else {
            debug_assert_eq!(outcome, 0, "a robust lock is taken, or its owner is dead");
        }
        Locked(self)
    }

    /// Before a sleep on [`word`](Self::word): what it holds now, so that a change from here on is
    /// noticed. Look at the count afterwards.
    pub(crate) fn enlist(&self, direction: Direction) -> u32 {
        let _locked = self.lock();
        self.word(direction).fetch_or(ASLEEP, Ordering::SeqCst) | ASLEEP
    }

    /// What those who wait for a change in `direction` sleep on.
    pub(crate) fn word(&self, direction: Direction) -> &AtomicU32 {
        &self.listeners(direction).0.word
    }

    /// This process's queue, if it has made one.
    fn own_queue(&self) -> Option<&WaitQueue> {
        // SAFETY: null, or from `Box::into_raw` in `queue` and freed by nobody but the drop.
        let own = unsafe { self.queue.load(Ordering::SeqCst).as_ref() }?;
        (own.generation == generation::current()).then_some(&own.queue)
    }
}

impl SharedCount for SharedCounter {
    fn change(&self, direction: Direction, step: Step<'_>) -> Result<Limited, Errno> {
        let locked = self.lock();
        let before = locked.limited();
        let after = step(before)?;
        locked.tell(direction);
        if after.count != before.count {
            self.page().count.store(after.count, Ordering::SeqCst);
        }
        if after.maximum != before.maximum {
            self.page().maximum.store(after.maximum, Ordering::SeqCst);
        }
        drop(locked);
        if let Some(queue) = self.own_queue() {
            queue.wake(direction.key());
        }
        Ok(before)
    }

    fn look(&self) -> Limited {
        self.lock().limited()
    }

    fn queue(&self) -> &WaitQueue {
        let current = self.queue.load(Ordering::SeqCst);
        if let Some(queue) = self.own_queue() {
            return queue;
        }
        let made = Box::into_raw(Box::new(OwnQueue {
            queue: WaitQueue::new(),
            generation: generation::current(),
        }));
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
        unsafe { &(*there).queue }
    }

    fn release(&self) {
        if let Some(queue) = self.own_queue() {
            queue.wake(Events::HUP);
        }
    }
}

impl Drop for SharedCounter {
    fn drop(&mut self) {
        if self.own_queue().is_some() {
            // SAFETY: from `Box::into_raw`; who borrows the queue borrows `self`.
            drop(unsafe { Box::from_raw(*self.queue.get_mut()) });
        }
        // The lock ends with the last process's page: others may hold it.
        // SAFETY: mapped by `map_shared` with that size, and nobody borrows it any more.
        unsafe { kernel::unmap(self.page.cast(), size_of::<Page>()) };
    }
}

/// Holds a counter's lock.
struct Locked<'a>(&'a SharedCounter);

impl Locked<'_> {
    fn limited(&self) -> Limited {
        let page = self.0.page();
        Limited {
            count: page.count.load(Ordering::SeqCst),
            maximum: page.maximum.load(Ordering::SeqCst),
        }
    }

    /// Says that there is a change, which must be there when the lock is free.
    fn tell(&self, direction: Direction) {
        let (listeners, bell) = self.0.listeners(direction);
        listeners.changes.fetch_add(1, Ordering::SeqCst);
        let word = listeners.word.load(Ordering::SeqCst);
        if word & ASLEEP != 0 {
            let next = (word & !ASLEEP).wrapping_add(ASLEEP << 1);
            listeners.word.store(next, Ordering::SeqCst);
            wake_all(&listeners.word);
        }
        if listeners.armed.swap(false, Ordering::SeqCst) {
            kernel::eventfd_write(bell);
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread took the lock when this guard was made.
        unsafe { libc::pthread_mutex_unlock(self.0.page().lock.get()) };
    }
}

/// Makes a lock that works between processes and tells of an owner that died.
///
/// # Safety
/// `lock` is memory of zero bytes for one.
unsafe fn init_lock(lock: *mut libc::pthread_mutex_t) -> Result<(), Errno> {
    let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
    let attributes = attributes.as_mut_ptr();
    let check = |outcome| match outcome {
        0 => Ok(()),
        errno => Err(Errno::from_raw(errno)),
    };
    // SAFETY: the attributes are made before they are used; the lock is the caller's contract.
    unsafe {
        check(libc::pthread_mutexattr_init(attributes))?;
        let made = check(libc::pthread_mutexattr_setpshared(
            attributes,
            libc::PTHREAD_PROCESS_SHARED,
        ))
        .and_then(|()| {
            check(libc::pthread_mutexattr_setrobust(
                attributes,
                libc::PTHREAD_MUTEX_ROBUST,
            ))
        })
        .and_then(|()| check(libc::pthread_mutex_init(lock, attributes)));
        libc::pthread_mutexattr_destroy(attributes);
        made
    }
}

/// Rouses everybody, in whatever process, who sleeps on `word`.
fn wake_all(word: &AtomicU32) {
    // SAFETY: the kernel does not write to the word.
    let _ = unsafe { syscall!(Sysno::futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// The bells that a thread listens to which sleeps in `poll` or `select`: a kernel set of its own.
pub(crate) struct Ears {
    set: Descriptor,
}

impl Ears {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Ears {
            set: kernel::epoll_create()?,
        })
    }

    /// Listens for changes of `target` that concern `wanted`, if it is a shared counter. Once is
    /// enough.
    pub(crate) fn listen_to(&self, target: Target<'_>, wanted: Events) -> Result<(), Errno> {
        let Some(counter) = target.shared_counter() else {
            return Ok(());
        };
        for direction in wanted_directions(wanted) {
            let bell = counter.bell(direction).as_raw_fd();
            match kernel::epoll_ctl(&self.set, Op::Add, bell, Event::new(EDGE, 0)) {
                Ok(()) | Err(Errno::EXIST) => {}
                failed => return failed,
            }
        }
        Ok(())
    }

    /// Forgets what has rung so far. Arm, and then look at the counters, afterwards.
    pub(crate) fn quiet(&self) {
        let mut events = [Event::default(); 16];
        while kernel::epoll_wait(&self.set, &mut events, kernel::AT_ONCE, None)
            .is_ok_and(|found| found == events.len())
        {}
    }

    /// Has the next change of `target` that concerns `wanted` be heard.
    pub(crate) fn arm(target: Target<'_>, wanted: Events) {
        if let Some(counter) = target.shared_counter() {
            for direction in wanted_directions(wanted) {
                counter.arm(direction);
            }
        }
    }

    /// Readable when a bell has rung.
    pub(crate) fn fd(&self) -> RawFd {
        self.set.as_raw_fd()
    }
}

fn wanted_directions(wanted: Events) -> impl Iterator<Item = Direction> {
    DIRECTIONS
        .into_iter()
        .filter(move |direction| wanted.intersects(direction.key()))
}
