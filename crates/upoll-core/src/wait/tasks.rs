//! Wakers and callbacks: foreign code that wakes call, always with no lock held.
//!
//! A wakeup finds a task or a callback under the locks of queues, and often of sets. It passes a job to the
//! thread's current [`Scope`], which does it when the outermost scope of the thread ends. A call that holds a lock
//! while it may wake, or while it calls an object's `poll`, enters a scope before it takes the lock. So a scope
//! within another one (a wakeup that an object's `poll` makes, a poll of a set below) leaves its jobs to the outer
//! one, as does a signal handler.
//!
//! Without `std` there is no place to keep what belongs to a thread. The scopes of all threads share one
//! list then, and a job is done when all scopes have ended that were open when it was put off.
//!
//! # Tasks
//! A [`TaskSlot`] is part of a future, which may end at any time. So a wakeup moves the waker out of the slot, to a
//! cell of the thread (`cells.rs`), and the scope needs nothing of the future. If no cell is free, the slot itself
//! waits in a list that the end of the future takes it out of (`left.rs`).
//!
//! # Callbacks
//! A [`CallbackSlot`] is counted, and a scope has a reference to it.
//!
//! Two callbacks may write to each other's counter. A callback is called by one thread at a time: a wake
//! that comes meanwhile is noted in the slot, and the calling thread calls once more. A scope does so at
//! most [`ROUNDS`] times. Callbacks that are left after that are called with the next wake; tasks are woken.

mod cells;
#[cfg(upoll_loom)]
mod chosen;
#[cfg(any(feature = "std", upoll_loom))]
mod here;
mod left;
#[cfg(any(not(feature = "std"), upoll_loom))]
mod shared;

use alloc::boxed::Box;
use core::ptr::{self, NonNull};
use core::sync::atomic::Ordering::Relaxed;
use core::task::Waker;

use self::cells::Cell;
pub use self::left::{HeldTask, TaskSlot};
use crate::errno::Errno;
use crate::events::Events;
use crate::memory::SharedBox;
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, Mutex, Ordering, Rule, broken};

#[cfg(upoll_loom)]
use self::chosen as list;
#[cfg(all(feature = "std", not(upoll_loom)))]
use self::here as list;
#[cfg(not(any(feature = "std", upoll_loom)))]
use self::shared as list;

#[cfg(upoll_loom)]
pub use self::chosen::share_scopes;

/// The number of times that a scope calls what its own callbacks wake.
const ROUNDS: u32 = 256;

/// The number of scopes of a thread that may be within each other. Sets that watch sets need three for each of
/// their five levels.
const DEEPEST: u32 = 64;

/// A scope has the slot and will run it.
const OWNED: u32 = 1;
/// A wakeup has come for which no call was made yet.
const WANTED: u32 = 2;

/// The key of a wakeup that carries no events.
const UNKNOWN: u32 = u32::MAX;

/// A callback of an embedder.
pub(crate) type Call = Box<dyn Fn(Events) + Send + Sync>;

/// A callback, in a place where wakes find it.
pub struct CallbackSlot {
    call: Call,
    /// Held during a call, so that [`CallbackSlot::cancel`] can wait for its end.
    calling: Mutex<()>,
    is_cancelled: AtomicBool,
    /// [`OWNED`] and [`WANTED`].
    state: AtomicU32,
    /// The keys of the wakeups for which no call was made yet.
    key: AtomicU32,
    /// The next in the list that the slot is in; the owning scope's.
    next: AtomicPtr<()>,
}

impl CallbackSlot {
    /// A place for a callback.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    pub fn new(call: Call) -> Result<SharedBox<Self>, Errno> {
        SharedBox::new(CallbackSlot {
            call,
            calling: Mutex::new(()),
            is_cancelled: AtomicBool::new(false),
            state: AtomicU32::new(0),
            key: AtomicU32::new(0),
            next: AtomicPtr::new(ptr::null_mut()),
        })
    }

    /// Ends the calls of a callback that no wake finds any more: none is begun from now on. Waits for
    /// one that another thread has begun.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::SeqCst);
        if broken(Rule::WaitForCallbacks) {
            return;
        }
        #[cfg(all(feature = "std", not(upoll_loom)))]
        if crate::sync::is_held_by_this_thread(&self.calling) {
            // The callback itself ends its watch.
            return;
        }
        drop(self.calling.lock());
    }

    /// Records a wakeup. Returns whether the caller owns the slot now.
    fn want(&self, key: Events) -> bool {
        let key = match key.bits() {
            0 => UNKNOWN,
            bits => bits,
        };
        // Before the mark: the thread that takes the mark away finds it.
        self.key.fetch_or(key, Ordering::SeqCst);
        self.state.fetch_or(OWNED | WANTED, Ordering::SeqCst) & OWNED == 0
    }

    /// Calls the callback. Returns whether the slot is still owned, as it was woken meanwhile. The caller owns
    /// the slot.
    fn run(&self) -> bool {
        self.state.fetch_and(!WANTED, Ordering::SeqCst);
        let key = self.key.swap(0, Ordering::SeqCst);
        let calls = self.calling.lock();
        let owned = Owned(self);
        if key != 0 && !self.is_cancelled.load(Ordering::SeqCst) {
            let events = if key == UNKNOWN { 0 } else { key };
            (self.call)(Events::from_bits_retain(events));
        }
        drop(calls);
        core::mem::forget(owned);
        self.state
            .compare_exchange(OWNED, 0, Ordering::SeqCst, Ordering::SeqCst)
            .is_err()
            && !broken(Rule::CallAgain)
    }

    /// Leaves the slot without a call for the wakes that are noted in it: they go with the next one. The
    /// caller owns the slot.
    fn give_up(&self) {
        self.state.fetch_and(!OWNED, Ordering::SeqCst);
    }

    /// Takes a slot back that was left with a wake noted in it, as the callback panicked. Returns whether the caller
    /// owns it now.
    fn take_back(&self) -> bool {
        self.state
            .compare_exchange(WANTED, OWNED | WANTED, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }
}

/// Releases a slot whose callback panics.
struct Owned<'a>(&'a CallbackSlot);

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

/// A waker or callback that a scope has put off.
enum Job {
    Wake(Cell),
    Call(SharedBox<CallbackSlot>),
}

impl Job {
    /// In the address of a job: it is a cell's.
    const IS_CELL: usize = 1;

    /// Returns the address of the job.
    fn as_raw(&self) -> *mut () {
        match self {
            Job::Wake(cell) => cell.as_raw().map_addr(|addr| addr | Self::IS_CELL),
            Job::Call(slot) => SharedBox::as_raw(slot).as_ptr(),
        }
    }

    /// # Safety
    /// `job` is from [`as_raw`](Self::as_raw) of a job that is forgotten, and is taken over once.
    unsafe fn from_raw(job: NonNull<()>) -> Self {
        if job.addr().get() & Self::IS_CELL == 0 {
            // SAFETY: without the bit it is from `SharedBox::as_raw`. The reference of the job that was forgotten is taken over
            // here, once (this function's contract).
            return Job::Call(unsafe { SharedBox::from_raw(job) });
        }
        let cell = job.as_ptr().map_addr(|addr| addr & !Self::IS_CELL);
        // SAFETY: without the bit it is the address of a cell, which is not null. The job that had it was forgotten, and is
        // taken over once (this function's contract).
        Job::Wake(unsafe { Cell::from_raw(NonNull::new_unchecked(cell)) })
    }

    /// Releases a callback without a call; its wakeups are delivered with the next one. Wakes a task.
    fn give_up(self) {
        match self {
            Job::Wake(cell) => cell.take().wake(),
            Job::Call(slot) => slot.give_up(),
        }
    }

    /// Returns the next job in the list that this one is in.
    fn next(&self) -> *mut () {
        match self {
            Job::Wake(cell) => cell.next().load(Relaxed),
            Job::Call(slot) => slot.next.load(Ordering::Relaxed),
        }
    }

    fn set_next(&self, next: *mut ()) {
        match self {
            Job::Wake(cell) => cell.next().store(next, Relaxed),
            Job::Call(slot) => slot.next.store(next, Ordering::Relaxed),
        }
    }
}

/// Jobs of a scope, linked by their `next`: a wake allocates nothing.
struct Stack(*mut ());

// SAFETY: it owns its jobs: cells with wakers, and references to slots. Both may be used from any thread.
#[cfg(any(not(feature = "std"), upoll_loom))]
unsafe impl Send for Stack {}

#[cfg(any(not(feature = "std"), upoll_loom))]
impl Default for Stack {
    fn default() -> Self {
        Stack::new()
    }
}

#[cfg(any(not(feature = "std"), upoll_loom))]
impl Stack {
    const fn new() -> Self {
        Stack(ptr::null_mut())
    }

    fn is_empty(&self) -> bool {
        self.0.is_null()
    }

    /// Adds jobs that are newer than those here.
    fn append(&mut self, newer: Stack) {
        let mut newer = newer.reversed();
        while let Some(job) = newer.pop() {
            self.push(job);
        }
    }
}

impl Stack {
    fn pop(&mut self) -> Option<Job> {
        let first = NonNull::new(self.0)?;
        // SAFETY: a job that `push` of either list took over, and taken off here.
        let job = unsafe { Job::from_raw(first) };
        self.0 = job.next();
        Some(job)
    }

    fn push(&mut self, job: Job) {
        job.set_next(self.0);
        self.0 = job.as_raw();
        // The list has it now.
        core::mem::forget(job);
    }

    /// The oldest first.
    fn reversed(mut self) -> Self {
        let mut reversed = Stack(ptr::null_mut());
        while let Some(job) = self.pop() {
            reversed.push(job);
        }
        reversed
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        while let Some(job) = self.pop() {
            job.give_up();
        }
    }
}

/// The effect of a wake on a task in the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pushed {
    /// Its waker was taken.
    Taken,
    /// Its waker is in its future still, and is taken when the scope ends.
    Left,
    /// It does not wait, or a wake before has chosen it: this one is for another.
    No,
}

/// A stretch of a call during which wakers and callbacks are put off. It ends after all locks that the
/// call has taken within it are free.
pub struct Scope {
    list: list::List,
    /// The first task that the outermost scope of a thread wakes.
    first: Option<Waker>,
}

impl Scope {
    #[inline]
    pub fn enter() -> Self {
        Scope {
            list: list::List::enter(),
            first: None,
        }
    }

    /// Frees what other threads held or had put off in the child of a fork. The scopes of the calling thread still run
    /// their own wakers and callbacks.
    ///
    /// # Safety
    /// The process was just forked, has a memory of its own, and has no other thread than the caller.
    #[cfg(all(feature = "std", not(upoll_loom)))]
    pub unsafe fn begin_in_child() {
        // SAFETY: the contract of `List::begin_in_child` is this one's.
        unsafe { list::List::begin_in_child() };
    }

    /// Returns whether the thread is in more scopes than sets that watch sets need.
    pub(crate) fn is_too_deep() -> bool {
        list::List::depth() > DEEPEST
    }

    /// Calls the callback when the outermost scope ends, unless another scope is about to call it.
    pub fn push_callback(&mut self, slot: &SharedBox<CallbackSlot>, key: Events) {
        if slot.want(key) {
            self.list.push(Job::Call(SharedBox::clone(slot)));
        }
    }

    /// Wakes the task when the outermost scope ends, if it waits.
    #[inline]
    pub fn push_task(&mut self, mut task: HeldTask<'_>) -> Pushed {
        let has_room = !broken(Rule::HaveCells);
        let Some(waker) = task.take_to_wake() else {
            return Pushed::No;
        };
        if has_room && self.first.is_none() && self.list.is_outermost() {
            self.first = Some(waker);
        } else if let Some(cell) = self.list.free_cell().filter(|_| has_room) {
            self.list.push(Job::Wake(cell.fill(waker)));
        } else {
            self.list.leave_behind(task, waker);
            return Pushed::Left;
        }
        Pushed::Taken
    }

    /// Runs what was put off, if this is the outermost scope. No lock is held.
    pub(crate) fn run(&mut self) {
        /// Enters the list again, also if foreign code panics: the scope leaves it when it ends.
        struct Again<'a>(&'a mut Scope);

        impl Drop for Again<'_> {
            fn drop(&mut self) {
                self.0.list = list::List::enter();
            }
        }

        let again = Again(self);
        let panicked = again.0.leave().then(|| again.0.run_all());
        drop(again);
        if let Some(panicked) = panicked {
            panicked.go_on();
        }
    }

    /// Leaves the list. Returns whether there is something to run now.
    #[inline]
    fn leave(&mut self) -> bool {
        let has_jobs = self.list.leave();
        debug_assert!(self.first.is_none() || list::List::depth() == 0);
        has_jobs || self.first.is_some()
    }

    /// All foreign code runs in [`Panicked::catch`], the drops of callbacks too.
    #[inline(never)]
    fn run_all(&mut self) -> Panicked {
        let mut panicked = Panicked::default();
        if let Some(waker) = self.first.take() {
            panicked.catch(|| waker.wake());
        }
        for round in 0..2 * ROUNDS {
            let mut jobs = self.list.take().reversed();
            if jobs.0.is_null() && !self.list.has_left() {
                break;
            }
            while let Some(job) = jobs.pop() {
                match job {
                    // The circle ends here.
                    Job::Call(slot) if round < ROUNDS => {
                        let again = panicked.catch(|| self.list.call(&slot));
                        if again || slot.take_back() {
                            self.list.push(Job::Call(slot));
                        } else {
                            panicked.catch(|| drop(slot));
                        }
                    }
                    job => panicked.catch(|| job.give_up()),
                }
            }
            while let Some(waker) = self.list.take_left() {
                panicked.catch(|| waker.wake());
            }
        }
        let mut rest = self.list.take();
        while let Some(job) = rest.pop() {
            panicked.catch(|| job.give_up());
        }
        panicked
    }
}

impl Drop for Scope {
    #[inline]
    fn drop(&mut self) {
        if self.list.leave() {
            self.run_all().go_on();
        } else if let Some(waker) = self.first.take() {
            debug_assert_eq!(list::List::depth(), 0, "a scope ends after its outer one");
            wake_one(waker);
        }
    }
}

/// Wakes the only task of a scope.
#[inline(never)]
fn wake_one(waker: Waker) {
    let mut panicked = Panicked::default();
    panicked.catch(|| waker.wake());
    panicked.go_on();
}

/// The first panic of several: it goes on when all slots have been run.
#[derive(Default)]
struct Panicked {
    #[cfg(all(feature = "std", not(upoll_loom)))]
    payload: Option<Box<dyn core::any::Any + Send>>,
}

#[cfg(all(feature = "std", not(upoll_loom)))]
impl Panicked {
    /// Returns what `run` returns, or the default if it panics.
    fn catch<T: Default>(&mut self, run: impl FnOnce() -> T) -> T {
        // The panic is resumed later. Foreign state that it has left inconsistent is then reported
        // by the same panic, as if it had not been caught.
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
            Ok(done) => done,
            Err(payload) => {
                match self.payload {
                    None => self.payload = Some(payload),
                    // Its drop may panic too.
                    Some(_) => core::mem::forget(payload),
                }
                T::default()
            }
        }
    }

    fn go_on(self) {
        match self.payload {
            None => {}
            // As above: a second panic would end the process.
            Some(payload) if std::thread::panicking() => core::mem::forget(payload),
            Some(payload) => std::panic::resume_unwind(payload),
        }
    }
}

#[cfg(any(not(feature = "std"), upoll_loom))]
impl Panicked {
    #[expect(clippy::unused_self, reason = "there is nothing to catch it with")]
    fn catch<T>(&mut self, run: impl FnOnce() -> T) -> T {
        run()
    }

    #[expect(clippy::unused_self, reason = "as above")]
    fn go_on(self) {}
}
