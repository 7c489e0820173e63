//! The work that a wakeup delays until its locks are free.

use core::mem::MaybeUninit;
use core::ptr;
#[cfg(any(feature = "std", upoll_loom))]
use core::ptr::NonNull;

use super::{CallbackSlot, HeldTask, Pushed, Scope, WaitQueue};
use crate::events::Events;
use crate::memory::SharedBox;

pub(crate) type Action = (fn(usize), usize);

/// A value that a wakeup does something with once its locks are free.
#[cfg(any(feature = "std", upoll_loom))]
pub trait Deferrable {
    /// Makes the system call of the wakeup.
    fn run(&self);
}

/// Actions delayed until the locks of the wakeup are released: the system calls that wake threads,
/// and wakers and callbacks.
///
/// Room for a few system calls is on the stack. When it is full the oldest are done at once, under
/// the locks: slower, never wrong.
pub struct Deferred {
    actions: [MaybeUninit<Action>; Deferred::ROOM],
    len: usize,
    /// The queue that the wake is walking, and those that it came through.
    pub(super) level: *const Level,
    /// Chosen workers do not get to run: this thread yields to them, once it has woken the last.
    #[cfg(all(feature = "std", not(upoll_loom)))]
    yields: bool,
    /// Ends after the actions are done.
    scope: Scope,
}

/// A queue on the way of a wake from an object to the sets above it.
pub(super) struct Level {
    queue: *const WaitQueue,
    below: *const Level,
    depth: u32,
}

impl Level {
    /// The number of queues that a wakeup goes through. Sets nest less deep; objects that forward the queues
    /// of sets may nest as deep as they like.
    const DEEPEST: u32 = 64;

    /// Returns whether a wake may go through `queue`: it has not come through it before, nor from too far below.
    ///
    /// # Safety
    /// `below` is null or leads to levels that are alive.
    pub(super) unsafe fn admits(below: *const Level, queue: &WaitQueue) -> bool {
        // SAFETY: the caller's contract.
        let depth = unsafe { Self::depth(below) };
        let mut at = below;
        // SAFETY: as above.
        while let Some(level) = unsafe { at.as_ref() } {
            if ptr::eq(level.queue, queue) {
                return false;
            }
            at = level.below;
        }
        depth < Self::DEEPEST
    }

    /// # Safety
    /// As [`admits`](Self::admits).
    #[inline]
    pub(super) unsafe fn above(below: *const Level, queue: &WaitQueue) -> Self {
        Level {
            queue,
            below,
            // SAFETY: passed on to the caller.
            depth: unsafe { Self::depth(below) },
        }
    }

    /// The number of levels.
    ///
    /// # Safety
    /// As [`admits`](Self::admits).
    #[inline]
    unsafe fn depth(below: *const Level) -> u32 {
        // SAFETY: passed on to the caller.
        unsafe { below.as_ref() }.map_or(0, |level| level.depth + 1)
    }
}

impl Default for Deferred {
    fn default() -> Self {
        Self::new()
    }
}

impl Deferred {
    const ROOM: usize = 4;

    /// The number of workers that do not come that is more than chance.
    #[cfg(all(feature = "std", not(upoll_loom)))]
    const MANY: u32 = 4;

    #[inline]
    pub fn new() -> Self {
        Deferred {
            actions: [const { MaybeUninit::uninit() }; Deferred::ROOM],
            len: 0,
            level: ptr::null(),
            #[cfg(all(feature = "std", not(upoll_loom)))]
            yields: false,
            scope: Scope::enter(),
        }
    }

    /// Calls a callback for a wakeup with this key once all locks are free.
    pub fn push_callback(&mut self, slot: &SharedBox<CallbackSlot>, key: Events) {
        self.scope.push_callback(slot, key);
    }

    /// Wakes a task once all locks are free, if it waits.
    #[inline]
    pub fn push_task(&mut self, task: HeldTask<'_>) -> Pushed {
        self.scope.push_task(task)
    }

    pub fn push(&mut self, action: fn(usize), word: usize) {
        if self.len == Deferred::ROOM {
            self.run_actions();
        }
        self.actions[self.len].write((action, word));
        self.len += 1;
    }

    /// A wakeup in turn chose a worker, one of `chosen` that have not come yet. If they are many,
    /// some of them wait for the processor of the thread that wakes them. So that thread yields it
    /// once.
    ///
    /// It might run on for milliseconds otherwise. Events do not wait for those behind it: workers on
    /// other processors take thousands meanwhile, more than can be made up for later. From one time
    /// to the next the number doubles, as it is of no use to yield to what does not run then.
    #[cfg(all(feature = "std", not(upoll_loom)))]
    #[inline]
    pub(crate) fn let_run(&mut self, chosen: u32) {
        self.yields |= chosen >= Deferred::MANY && chosen.is_power_of_two();
    }

    /// Puts off [`Deferrable::run`] until all locks are free, and keeps `shared` alive until then.
    #[cfg(any(feature = "std", upoll_loom))]
    pub fn push_shared<T: Deferrable>(&mut self, shared: &SharedBox<T>) {
        fn run<T: Deferrable>(place: usize) {
            let Some(place) = NonNull::new(ptr::with_exposed_provenance_mut(place)) else {
                return;
            };
            // SAFETY: the place is that of `into_raw` below, and an action runs once.
            unsafe { SharedBox::<T>::from_raw(place) }.run();
        }
        let place = SharedBox::into_raw(shared.clone());
        self.push(run::<T>, place.as_ptr().expose_provenance());
    }

    /// Does what was put off so far. The caller holds no lock.
    pub(crate) fn run(&mut self) {
        self.run_last();
        self.scope.run();
    }

    #[inline(never)]
    fn run_last(&mut self) {
        self.run_actions();
        #[cfg(all(feature = "std", not(upoll_loom)))]
        if core::mem::take(&mut self.yields) {
            // Tasks before: they are not to wait for this thread's next turn.
            self.scope.run();
            upoll_sys::backoff::yield_now();
        }
    }

    fn run_actions(&mut self) {
        let len = core::mem::take(&mut self.len);
        for slot in &self.actions[..len] {
            // SAFETY: the first `len` slots were written by `push`; the type is `Copy`.
            let (action, word) = unsafe { slot.assume_init() };
            action(word);
        }
    }
}

impl Drop for Deferred {
    #[inline]
    fn drop(&mut self) {
        if self.len > 0 {
            self.run_last();
        }
    }
}
