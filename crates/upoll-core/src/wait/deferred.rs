//! The work that a wakeup delays until its locks are free.

use core::iter;
use core::mem::MaybeUninit;
use core::ptr;
#[cfg(any(feature = "std", upoll_loom))]
use core::ptr::NonNull;

use super::{CallbackSlot, HeldTask, Pushed, Scope, WaitQueue, Wake};
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
    /// The queue that the wake is walking, and those that it came through: null, or a level of a call of
    /// [`through`](Self::through) that has not returned.
    level: *const Level,
    /// The thread yields its processor, once it has woken the last.
    #[cfg(all(feature = "std", not(upoll_loom)))]
    yields: bool,
    /// Ends after the actions are done.
    scope: Scope,
}

/// A queue on the way of a wake from an object to the sets above it.
struct Level {
    queue: *const WaitQueue,
    below: *const Level,
    depth: u32,
}

impl Level {
    /// The number of queues that a wakeup goes through. Sets nest less deep; objects that forward the queues
    /// of sets may nest as deep as they like.
    const DEEPEST: u32 = 64;
}

impl Default for Deferred {
    fn default() -> Self {
        Self::new()
    }
}

impl Deferred {
    const ROOM: usize = 4;

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

    /// Makes this thread yield its processor, after it has woken the threads and tasks.
    #[cfg(all(feature = "std", not(upoll_loom)))]
    #[inline]
    pub(super) fn yield_if(&mut self, yields: bool) {
        self.yields |= yields;
    }

    /// Returns whether the wake may go through `queue`: it has not come through it before, nor from too far below.
    /// Objects that forward the queues of sets can form a cycle that ADD does not see.
    pub(super) fn may_enter(&self, queue: &WaitQueue) -> bool {
        let Some(level) = self.level() else {
            return true;
        };
        let mut levels = iter::successors(Some(level), |level| {
            // SAFETY: the levels below one are those of calls of `through` around its own.
            unsafe { level.below.as_ref() }
        });
        levels.all(|level| !ptr::eq(level.queue, queue)) && self.depth() < Level::DEEPEST
    }

    /// Runs `call` while the wake is in `queue`.
    #[inline]
    pub(super) fn through<R>(
        wake: &mut Wake<'_>,
        queue: &WaitQueue,
        call: impl FnOnce(&mut Wake<'_>) -> R,
    ) -> R {
        /// Leaves the level, also if the call panics.
        struct Leave<'w, 'd>(&'w mut Wake<'d>, *const Level);

        impl Drop for Leave<'_, '_> {
            fn drop(&mut self) {
                self.0.deferred.level = self.1;
            }
        }

        let below = wake.deferred.level;
        let level = Level {
            queue,
            below,
            depth: wake.deferred.depth(),
        };
        wake.deferred.level = &raw const level;
        let entered = Leave(wake, below);
        call(entered.0)
    }

    #[inline]
    fn level(&self) -> Option<&Level> {
        // SAFETY: null or a level of a call of `through` that has not returned, as the call takes it away (`Leave`).
        unsafe { self.level.as_ref() }
    }

    /// The number of levels.
    #[inline]
    fn depth(&self) -> u32 {
        self.level().map_or(0, |level| level.depth + 1)
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
