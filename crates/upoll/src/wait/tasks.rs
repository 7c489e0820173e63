//! Wakers and callbacks: foreign code that wakes call, always with no lock held.
//!
//! A wakeup finds a [`TaskSlot`] under the locks of queues, and often of sets. It passes the slot
//! to the thread's current [`Scope`], and the slot's code runs when the outermost scope of the
//! thread ends. A call that holds a lock while it may wake, or while it calls an object's `poll`,
//! enters a scope before it takes the lock. So a scope within another one (a wakeup that an
//! object's `poll` makes, a poll of a set below) leaves its slots to the outer one, as does a
//! signal handler.
//!
//! Without `std` there is no place to keep what belongs to a thread. The scopes of all threads share one
//! list then, and a slot's code runs when all scopes have ended that were open when it was put off.
//!
//! # Circles
//! Two callbacks may write to each other's counter. A callback is called by one thread at a time: a wake
//! that comes meanwhile is noted in the slot, and the calling thread calls once more. A scope does so at
//! most [`ROUNDS`] times. Callbacks that are left after that are called with the next wake; tasks are woken.

use alloc::boxed::Box;
use core::ptr::{self, NonNull};
use core::task::Waker;

use crate::errno::Errno;
use crate::events::Events;
use crate::memory::SharedBox;
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, Mutex, Ordering, Rule, broken, fence};

#[cfg(upoll_loom)]
use self::chosen as list;
#[cfg(all(feature = "std", not(upoll_loom)))]
use self::here as list;
#[cfg(not(any(feature = "std", upoll_loom)))]
use self::shared as list;

#[cfg(upoll_loom)]
pub use self::chosen::share_scopes;

/// How often a scope calls what its own callbacks wake.
const ROUNDS: u32 = 256;

/// How many scopes of a thread may be within each other. Sets that watch sets need three for each of
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

/// A task's waker or a callback, in a place where wakes find it.
pub(crate) struct TaskSlot {
    whom: Whom,
    /// [`OWNED`] and [`WANTED`].
    state: AtomicU32,
    /// The keys of the wakeups for which no call was made yet.
    key: AtomicU32,
    /// The next in the list that the slot is in; the owning scope's.
    next: AtomicPtr<()>,
}

enum Whom {
    /// The task to wake. Nothing is called, and no waker dropped, with this lock held.
    Task(Mutex<Option<Waker>>),
    Callback {
        call: Call,
        /// Held during a call, so that [`TaskSlot::cancel`] can wait for its end.
        calling: Mutex<()>,
        is_cancelled: AtomicBool,
    },
}

impl TaskSlot {
    fn new(whom: Whom) -> Result<SharedBox<Self>, Errno> {
        SharedBox::new(TaskSlot {
            whom,
            state: AtomicU32::new(0),
            key: AtomicU32::new(0),
            next: AtomicPtr::new(ptr::null_mut()),
        })
    }

    /// A place for a waker.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    pub(crate) fn for_task() -> Result<SharedBox<Self>, Errno> {
        Self::new(Whom::Task(Mutex::new(None)))
    }

    /// A place for a callback.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    pub(crate) fn for_callback(call: Call) -> Result<SharedBox<Self>, Errno> {
        Self::new(Whom::Callback {
            call,
            calling: Mutex::new(()),
            is_cancelled: AtomicBool::new(false),
        })
    }

    /// Sets the waker. Poll the object afterwards.
    pub(crate) fn set(&self, waker: Waker) {
        let Whom::Task(place) = &self.whom else {
            return;
        };
        let before = place.lock().replace(waker);
        fence(Ordering::SeqCst);
        drop(before);
    }

    /// Ends the calls of a callback that no wake finds any more: none is begun from now on. Waits for
    /// one that another thread has begun.
    pub(crate) fn cancel(&self) {
        let Whom::Callback {
            calling,
            is_cancelled,
            ..
        } = &self.whom
        else {
            return;
        };
        is_cancelled.store(true, Ordering::SeqCst);
        if broken(Rule::WaitForCallbacks) {
            return;
        }
        #[cfg(all(feature = "std", not(upoll_loom)))]
        if crate::sync::is_held_by_this_thread(calling) {
            // The callback itself ends its watch.
            return;
        }
        drop(calling.lock());
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

    /// Calls the waker or the callback. Returns whether the slot is still owned, as it was woken
    /// meanwhile. The caller owns the slot.
    fn run(&self) -> bool {
        match &self.whom {
            Whom::Task(place) => {
                // First: a wake from now on has the waker called anew. An executor may run the task here,
                // for long.
                self.state.swap(0, Ordering::SeqCst);
                if let Some(waker) = Self::take(place) {
                    waker.wake();
                }
                false
            }
            Whom::Callback {
                call,
                calling,
                is_cancelled,
            } => {
                self.state.fetch_and(!WANTED, Ordering::SeqCst);
                let key = self.key.swap(0, Ordering::SeqCst);
                let calls = calling.lock();
                let owned = Owned(self);
                if key != 0 && !is_cancelled.load(Ordering::SeqCst) {
                    let events = if key == UNKNOWN { 0 } else { key };
                    call(Events::from_bits_retain(events));
                }
                drop(calls);
                core::mem::forget(owned);
                self.state
                    .compare_exchange(OWNED, 0, Ordering::SeqCst, Ordering::SeqCst)
                    .is_err()
                    && !broken(Rule::CallAgain)
            }
        }
    }

    fn is_callback(&self) -> bool {
        matches!(self.whom, Whom::Callback { .. })
    }

    /// Leaves the slot without a call for the wakes that are noted in it: they go with the next one. The
    /// caller owns the slot.
    fn give_up(&self) {
        self.state.fetch_and(!OWNED, Ordering::SeqCst);
    }

    /// Returns None also in a signal handler that interrupts [`set`](Self::set) or this function:
    /// the caller of `set` polls the object afterwards, and the caller of this function wakes the
    /// task.
    fn take(place: &Mutex<Option<Waker>>) -> Option<Waker> {
        #[cfg(all(feature = "std", not(upoll_loom)))]
        if crate::sync::is_held_by_this_thread(place) {
            return None;
        }
        place.lock().take()
    }
}

/// Releases a slot whose callback panics.
struct Owned<'a>(&'a TaskSlot);

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

/// Slots that a scope owns, linked by their `next`: a wake allocates nothing.
struct Stack(*mut ());

// SAFETY: it owns a reference to each of its slots, and a slot is `Send` and `Sync`.
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

    /// Adds slots that are newer than those here.
    fn append(&mut self, newer: Stack) {
        let mut newer = newer.reversed();
        while let Some(slot) = newer.pop() {
            self.push(slot);
        }
    }
}

impl Stack {
    fn pop(&mut self) -> Option<SharedBox<TaskSlot>> {
        let first = NonNull::new(self.0)?;
        // SAFETY: a place that `push` of either list took over, and taken off here.
        let slot = unsafe { SharedBox::<TaskSlot>::from_raw(first) };
        self.0 = slot.next.load(Ordering::Relaxed);
        Some(slot)
    }

    fn push(&mut self, slot: SharedBox<TaskSlot>) {
        slot.next.store(self.0, Ordering::Relaxed);
        self.0 = SharedBox::into_raw(slot).as_ptr();
    }

    /// The oldest first.
    fn reversed(mut self) -> Self {
        let mut reversed = Stack(ptr::null_mut());
        while let Some(slot) = self.pop() {
            reversed.push(slot);
        }
        reversed
    }
}

impl Drop for Stack {
    /// Releases the slots that were not run; their wakeups are delivered with the next one.
    fn drop(&mut self) {
        while let Some(slot) = self.pop() {
            slot.give_up();
        }
    }
}

/// A stretch of a call during which wakers and callbacks are put off. It ends after all locks that the
/// call has taken within it are free.
pub(crate) struct Scope(list::List);

impl Scope {
    #[inline]
    pub(crate) fn enter() -> Self {
        Scope(list::List::enter())
    }

    /// Whether the thread is in more scopes than sets that watch sets need.
    pub(crate) fn is_too_deep() -> bool {
        list::List::depth() > DEEPEST
    }

    /// Queues the slot to run when the outermost scope ends, unless another scope is about to run
    /// it.
    pub(crate) fn push(&mut self, slot: &SharedBox<TaskSlot>, key: Events) {
        if slot.want(key) {
            self.0.push(SharedBox::clone(slot));
        }
    }

    /// Runs what was put off, if this is the outermost scope. No lock is held.
    pub(crate) fn run(&mut self) {
        let is_outermost = self.0.leave();
        let panicked = is_outermost.then(|| self.run_all());
        self.0 = list::List::enter();
        if let Some(panicked) = panicked {
            panicked.go_on();
        }
    }

    #[inline(never)]
    fn run_all(&mut self) -> Panicked {
        let mut panicked = Panicked::default();
        for round in 0..2 * ROUNDS {
            let mut slots = self.0.take().reversed();
            if slots.0.is_null() {
                break;
            }
            while let Some(slot) = slots.pop() {
                if round >= ROUNDS && slot.is_callback() {
                    // The circle ends here. A task is woken nevertheless: its wake may be the only one.
                    slot.give_up();
                } else if panicked.catch(|| self.0.run(&slot)) {
                    self.0.push(slot);
                }
            }
        }
        drop(self.0.take());
        panicked
    }
}

impl Drop for Scope {
    #[inline]
    fn drop(&mut self) {
        if self.0.leave() {
            self.run_all().go_on();
        }
    }
}

/// The first panic of several: it goes on when all slots have been run.
#[derive(Default)]
struct Panicked {
    #[cfg(all(feature = "std", not(upoll_loom)))]
    payload: Option<Box<dyn core::any::Any + Send>>,
}

#[cfg(all(feature = "std", not(upoll_loom)))]
impl Panicked {
    fn catch(&mut self, run: impl FnOnce() -> bool) -> bool {
        // The panic is resumed later. Foreign state that it has left inconsistent is then reported
        // by the same panic, as if it had not been caught.
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
            Ok(again) => again,
            Err(payload) => {
                self.payload.get_or_insert(payload);
                false
            }
        }
    }

    fn go_on(self) {
        if let Some(payload) = self.payload.filter(|_| !std::thread::panicking()) {
            std::panic::resume_unwind(payload);
        }
    }
}

#[cfg(any(not(feature = "std"), upoll_loom))]
impl Panicked {
    #[expect(clippy::unused_self, reason = "there is nothing to catch it with")]
    fn catch(&mut self, run: impl FnOnce() -> bool) -> bool {
        run()
    }

    #[expect(clippy::unused_self, reason = "as above")]
    fn go_on(self) {}
}

/// One list for each thread.
#[cfg(any(feature = "std", upoll_loom))]
mod here {
    use core::cell::Cell;
    use core::marker::PhantomData;
    use core::ptr;
    use core::sync::atomic::{AtomicPtr, Ordering, compiler_fence};

    use super::{Stack, TaskSlot};
    use crate::memory::SharedBox;
    use crate::sync::{Rule, broken};

    /// The state of a thread. A signal handler that runs on the thread finds it consistent at any
    /// moment: the handler leaves `depth` as it was, and `tasks` changes in one step.
    struct Here {
        /// How many scopes the thread is in.
        depth: Cell<u32>,
        /// The slots that its scopes own, the newest first.
        tasks: AtomicPtr<()>,
    }

    impl Here {
        const fn new() -> Self {
            Here {
                depth: Cell::new(0),
                tasks: AtomicPtr::new(ptr::null_mut()),
            }
        }
    }

    #[cfg(not(upoll_loom))]
    std::thread_local! {
        static HERE: Here = const { Here::new() };
    }
    #[cfg(upoll_loom)]
    loom::thread_local! {
        static HERE: Here = Here::new();
    }

    /// Not for another thread than the one that entered.
    pub(super) struct List(PhantomData<*mut ()>);

    impl List {
        #[inline]
        pub(super) fn enter() -> Self {
            HERE.with(|here| here.depth.set(here.depth.get() + 1));
            // Before any lock is taken, for a handler that interrupts this.
            compiler_fence(Ordering::SeqCst);
            List(PhantomData)
        }

        pub(super) fn depth() -> u32 {
            HERE.with(|here| here.depth.get())
        }

        /// Leaves the scope. Returns whether it was the outermost one, and has slots to run.
        #[inline]
        pub(super) fn leave(&self) -> bool {
            // After all locks are free.
            compiler_fence(Ordering::SeqCst);
            HERE.with(|here| {
                let outer = here.depth.get() - 1;
                here.depth.set(outer);
                // The depth first: a handler that interrupts this runs what it finds here.
                compiler_fence(Ordering::SeqCst);
                let is_outermost = outer == 0 || broken(Rule::LeaveTasksToTheOutermost);
                is_outermost && !here.tasks.load(Ordering::Relaxed).is_null()
            })
        }

        pub(super) fn push(&self, slot: SharedBox<TaskSlot>) {
            HERE.with(|here| {
                let place = SharedBox::as_raw(&slot).as_ptr();
                let mut head = here.tasks.load(Ordering::Relaxed);
                loop {
                    slot.next.store(head, crate::sync::Ordering::Relaxed);
                    let swapped = here.tasks.compare_exchange(
                        head,
                        place,
                        Ordering::Relaxed,
                        Ordering::Relaxed,
                    );
                    match swapped {
                        Ok(_) => break,
                        Err(now) => head = now,
                    }
                }
            });
            // The list has this reference now, and may have dropped it.
            core::mem::forget(slot);
        }

        pub(super) fn take(&self) -> Stack {
            Stack(HERE.with(|here| here.tasks.swap(ptr::null_mut(), Ordering::Relaxed)))
        }

        /// A callback's wakeups are delivered after it, and not within it. A waker may run for
        /// long, and its wakeups must not wait for its end.
        pub(super) fn run(&self, slot: &TaskSlot) -> bool {
            if !slot.is_callback() {
                return slot.run();
            }
            let within = Within(Self::enter());
            let again = slot.run();
            drop(within);
            again
        }
    }

    /// Leaves a list without running what is in it.
    struct Within(List);

    impl Drop for Within {
        fn drop(&mut self) {
            self.0.leave();
        }
    }
}

/// Both kinds of lists, of which a model chooses one.
#[cfg(upoll_loom)]
mod chosen {
    use core::cell::Cell;

    use super::{Stack, TaskSlot, here, shared};
    use crate::memory::SharedBox;

    std::thread_local! {
        static IS_SHARED: Cell<bool> = const { Cell::new(false) };
    }

    /// Sets whether the models that this thread runs from now on delay tasks as a build without
    /// `std` does.
    pub fn share_scopes(is_shared: bool) {
        IS_SHARED.with(|cell| cell.set(is_shared));
    }

    pub(super) enum List {
        Here(here::List),
        Shared(shared::List),
    }

    impl List {
        pub(super) fn enter() -> Self {
            if IS_SHARED.with(Cell::get) {
                List::Shared(shared::List::enter())
            } else {
                List::Here(here::List::enter())
            }
        }

        pub(super) fn depth() -> u32 {
            if IS_SHARED.with(Cell::get) {
                shared::List::depth()
            } else {
                here::List::depth()
            }
        }

        pub(super) fn leave(&mut self) -> bool {
            match self {
                List::Here(list) => list.leave(),
                List::Shared(list) => list.leave(),
            }
        }

        pub(super) fn push(&mut self, slot: SharedBox<TaskSlot>) {
            match self {
                List::Here(list) => list.push(slot),
                List::Shared(list) => list.push(slot),
            }
        }

        pub(super) fn take(&mut self) -> Stack {
            match self {
                List::Here(list) => list.take(),
                List::Shared(list) => list.take(),
            }
        }

        pub(super) fn run(&self, slot: &TaskSlot) -> bool {
            match self {
                List::Here(list) => list.run(slot),
                List::Shared(list) => list.run(slot),
            }
        }
    }
}

/// One list for all threads.
///
/// A scope does not know which of the open scopes are its own thread's, so its slots wait for all of them.
/// They do not wait for those that begin later, or threads that come and go would hold them up for ever.
/// For that, scopes count themselves in one of two epochs. The newer epoch becomes the older one, and
/// takes no more scopes, as soon as slots wait in it and no older scope is left.
#[cfg(any(not(feature = "std"), upoll_loom))]
mod shared {
    use core::mem;

    use super::{Stack, TaskSlot};
    use crate::memory::SharedBox;
    use crate::sync::{Mutex, statics};

    statics! {
        static EPOCHS: Mutex<Epochs> = Mutex::new(Epochs::new());
    }

    struct Epochs {
        /// The epoch of scopes that begin now.
        newer: usize,
        /// How many scopes of each epoch are open.
        open: [usize; 2],
        /// The slots that were put off by scopes of each epoch.
        slots: [Stack; 2],
    }

    impl Epochs {
        const fn new() -> Self {
            Epochs {
                newer: 0,
                open: [0; 2],
                slots: [Stack::new(), Stack::new()],
            }
        }

        /// Returns the epoch of a scope that begins.
        fn enter(&mut self) -> usize {
            self.open[self.newer] += 1;
            self.newer
        }

        /// Ends a scope. Returns the slots that wait for no other: then the scope was the last one that was
        /// open when they were put off, and so the outermost one of its thread.
        fn leave(&mut self, epoch: usize) -> Stack {
            self.open[epoch] -= 1;
            let mut ended = Stack::new();
            loop {
                let older = 1 - self.newer;
                if self.open[older] > 0 {
                    return ended;
                }
                ended.append(mem::take(&mut self.slots[older]));
                if self.slots[self.newer].is_empty() {
                    return ended;
                }
                self.newer = older;
            }
        }
    }

    pub(super) struct List {
        /// None once the scope has been left.
        epoch: Option<usize>,
        /// The slots that the scope has to run.
        ended: Stack,
    }

    impl List {
        #[inline]
        pub(super) fn enter() -> Self {
            List {
                epoch: Some(EPOCHS.lock().enter()),
                ended: Stack::new(),
            }
        }

        /// Not known here.
        pub(super) const fn depth() -> u32 {
            0
        }

        /// Leaves the scope. Returns whether it has slots to run.
        #[inline]
        pub(super) fn leave(&mut self) -> bool {
            if let Some(epoch) = self.epoch.take() {
                self.ended.append(EPOCHS.lock().leave(epoch));
            }
            !self.ended.is_empty()
        }

        pub(super) fn push(&mut self, slot: SharedBox<TaskSlot>) {
            match self.epoch {
                Some(epoch) => EPOCHS.lock().slots[epoch].push(slot),
                None => self.ended.push(slot),
            }
        }

        pub(super) fn take(&mut self) -> Stack {
            mem::take(&mut self.ended)
        }

        /// A callback's wakeups are delivered within it: a scope around it, which may run for long,
        /// would hold up the slots of other threads.
        #[expect(clippy::unused_self, reason = "it is of use where threads have lists")]
        pub(super) fn run(&self, slot: &TaskSlot) -> bool {
            slot.run()
        }
    }

    #[cfg(test)]
    mod tests {
        use alloc::boxed::Box;

        use super::{Epochs, TaskSlot};

        fn put_off(epochs: &mut Epochs, epoch: usize) {
            let slot = TaskSlot::for_callback(Box::new(|_| {})).unwrap();
            epochs.slots[epoch].push(slot);
        }

        fn leave(epochs: &mut Epochs, epoch: usize) -> usize {
            let mut ended = epochs.leave(epoch);
            core::iter::from_fn(|| ended.pop()).count()
        }

        #[test]
        fn a_slot_waits_for_the_scopes_around_its_own() {
            let mut epochs = Epochs::new();
            let outer = epochs.enter();
            for _ in 0..3 {
                // The second one and the third one begin when slots wait already.
                let inner = epochs.enter();
                put_off(&mut epochs, inner);
                assert_eq!(leave(&mut epochs, inner), 0);
            }
            assert_eq!(leave(&mut epochs, outer), 3);
            let next = epochs.enter();
            assert_eq!(leave(&mut epochs, next), 0);
        }

        #[test]
        fn a_slot_does_not_wait_for_scopes_that_begin_later() {
            let mut epochs = Epochs::new();
            let mut open = epochs.enter();
            for _ in 0..5 {
                let own = epochs.enter();
                put_off(&mut epochs, own);
                assert_eq!(leave(&mut epochs, own), 0);
                // At no time is no scope open.
                let later = epochs.enter();
                assert_eq!(leave(&mut epochs, open), 1);
                open = later;
            }
        }
    }
}
