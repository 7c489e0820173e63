//! Slots of tasks, and the list of those for whose wakers there was no cell.
//!
//! The list is one for all threads, with a name in each slot for the scopes that have left it: the thread's, or
//! without `std` the epoch's. The thread that wakes takes the slot out, and so does the end of its future.

use core::marker::PhantomPinned;
use core::ptr;
use core::task::Waker;

use crate::sync::{AtomicBool, Mutex, Ordering, UnsafeCell, fence, statics};

statics! {
    static LEFT: Mutex<Left> = Mutex::new(Left::new());
}

/// The place of a task's waker, in its future.
pub(crate) struct TaskSlot {
    /// The task to wake. Nothing is called, and no waker dropped or cloned, with this lock held. Each holder looks at
    /// the object or wakes the task afterwards, or has found an event. So a wake that finds it held goes away, and a
    /// signal handler never waits for the thread that it has interrupted.
    waker: Mutex<Option<Waker>>,
    /// Whether there is a waker: for queries, which must not hold the lock. Written under the lock.
    has_waker: AtomicBool,
    /// Whether the slot is in the list: a wake has chosen the task, and the waker is still here. Set under the lock of
    /// the waker and that of the queue in which the wake has found the task; cleared as the last access of the thread
    /// that takes it out.
    is_left: AtomicBool,
    /// Guarded by the lock of the list.
    links: UnsafeCell<Links>,
    /// The list leads to it.
    _pinned: PhantomPinned,
}

struct Links {
    prev: *const TaskSlot,
    next: *const TaskSlot,
    /// The name of the scopes that have left it.
    by: usize,
}

// SAFETY: `links` is touched under the lock of the list alone; the rest is `Send` and `Sync`.
unsafe impl Send for TaskSlot {}
// SAFETY: as above.
unsafe impl Sync for TaskSlot {}

impl TaskSlot {
    pub(crate) fn new() -> Self {
        TaskSlot {
            waker: Mutex::new(None),
            has_waker: AtomicBool::new(false),
            is_left: AtomicBool::new(false),
            links: UnsafeCell::new(Links {
                prev: ptr::null(),
                next: ptr::null(),
                by: 0,
            }),
            _pinned: PhantomPinned,
        }
    }

    /// Sets the waker. Hook the owner of the slot afterwards, then poll the object.
    pub(crate) fn set(&self, waker: &Waker) {
        let waker = waker.clone();
        let mut place = self.waker.lock();
        let before = place.replace(waker);
        self.has_waker.store(true, Ordering::SeqCst);
        drop(place);
        drop(before);
    }

    /// Sets another waker. Poll the object afterwards.
    pub(crate) fn set_anew(&self, waker: &Waker) {
        let is_same = |place: &Waker| place.will_wake(waker);
        let is_there = self.waker.lock().as_ref().is_some_and(is_same);
        if !is_there {
            self.set(waker);
        }
        fence(Ordering::SeqCst);
    }

    /// Takes the waker, with whether the task was chosen before, by a wake that has left it in the list. Returns `None`
    /// if another wake has taken it, or the task looks at the object after this.
    pub(crate) fn take(&self) -> Option<(Waker, bool)> {
        let mut place = self.waker.try_lock()?;
        let waker = place.take()?;
        self.has_waker.store(false, Ordering::SeqCst);
        let was_left = self.is_left.load(Ordering::Relaxed);
        drop(place);
        Some((waker, was_left))
    }

    /// Whether the task waits for a wake. Another thread may change that at the same time.
    pub(crate) fn is_waiting(&self) -> bool {
        self.has_waker.load(Ordering::SeqCst) && !self.is_left.load(Ordering::Relaxed)
    }

    /// Ends the wait. Returns whether a wake has chosen the task since it has set its waker.
    pub(crate) fn end_wait(&self) -> bool {
        let mut place = self.waker.lock();
        let waker = place.take();
        self.has_waker.store(false, Ordering::SeqCst);
        let is_left = self.is_left.load(Ordering::Relaxed);
        drop(place);
        waker.is_none() || is_left
    }

    /// Leaves the slot to the scopes with the name `by`. Returns false if the task does not wait.
    ///
    /// # Safety
    /// The caller holds the lock of a queue that the owner of the slot is hooked into. These scopes take all slots
    /// out that have their name.
    pub(super) unsafe fn leave(&self, by: usize) -> bool {
        locked(|left| {
            let Some(place) = self.waker.try_lock() else {
                return false;
            };
            let waits = place.is_some() && !self.is_left.load(Ordering::Relaxed);
            if waits {
                self.is_left.store(true, Ordering::Relaxed);
                left.push(self, by);
            }
            waits
        })
    }
}

impl Drop for TaskSlot {
    /// No wake finds the task any more: its entries are out of all queues.
    fn drop(&mut self) {
        if self.is_left.load(Ordering::Acquire) {
            locked(|left| {
                if self.is_left.load(Ordering::Relaxed) {
                    // SAFETY: it is in the list.
                    unsafe { left.unlink(self) };
                }
            });
        }
        // Models check that no other thread uses it any more.
        #[cfg(upoll_loom)]
        self.links.with_mut(|_| {});
    }
}

/// Takes the oldest waker of the scopes with the name `by`.
pub(super) fn take(by: usize) -> Option<Waker> {
    locked(|left| {
        loop {
            let slot = left.find(ptr::null(), by)?;
            // SAFETY: a slot in the list is alive (its drop takes it out), and the lock is held.
            let slot = unsafe { &*slot };
            // SAFETY: it is in the list.
            unsafe { left.unlink(slot) };
            let taken = slot.take();
            // The future may end from now on.
            slot.is_left.store(false, Ordering::Release);
            if let Some((waker, _)) = taken {
                return Some(waker);
            }
        }
    })
}

/// Renames the slots with the name `from`.
#[cfg(any(not(feature = "std"), upoll_loom))]
pub(super) fn rename(from: usize, to: usize) {
    locked(|left| {
        let mut at = ptr::null();
        while let Some(slot) = left.find(at, from) {
            // SAFETY: a slot in the list is alive, and the lock is held.
            unsafe { (*slot).links.with_mut(|links| (*links).by = to) };
            at = slot;
        }
    });
}

/// Calls `run` with the list. A signal handler cannot interrupt it.
fn locked<R>(run: impl FnOnce(&mut Left) -> R) -> R {
    #[cfg(all(feature = "std", not(upoll_loom)))]
    let _held = upoll_sys::signals::Blocked::sent();
    run(&mut LEFT.lock())
}

/// Frees the list's lock in the child of a fork, where no thread holds it.
///
/// # Safety
/// The process was just forked, has a memory of its own, and has no other thread than the caller.
#[cfg(all(feature = "std", not(upoll_loom)))]
pub(crate) unsafe fn begin_in_child() {
    if LEFT.is_locked() {
        // SAFETY: it is locked, and there is one thread, so nobody frees it meanwhile. That thread does not hold it: no
        // signal handler, which might fork, interrupts `locked`.
        unsafe { LEFT.force_unlock() };
    }
}

struct Left {
    first: *const TaskSlot,
    last: *const TaskSlot,
}

// SAFETY: the pointers lead to slots that are in the list, which are alive (`TaskSlot::drop`) and may be used by any
// thread.
unsafe impl Send for Left {}

impl Left {
    const fn new() -> Self {
        Left {
            first: ptr::null(),
            last: ptr::null(),
        }
    }

    /// Returns the first slot behind `at`, or of all, with the name `by`.
    fn find(&self, at: *const TaskSlot, by: usize) -> Option<*const TaskSlot> {
        // SAFETY: slots in the list are alive, and the lock is held.
        let next = |slot: *const TaskSlot| unsafe { (*slot).links.with(|links| (*links).next) };
        let mut at = if at.is_null() { self.first } else { next(at) };
        while !at.is_null() {
            // SAFETY: as above.
            if unsafe { (*at).links.with(|links| (*links).by) } == by {
                return Some(at);
            }
            at = next(at);
        }
        None
    }

    fn push(&mut self, slot: &TaskSlot, by: usize) {
        let prev = self.last;
        slot.links.with_mut(|links| {
            // SAFETY: the lock is held.
            unsafe {
                *links = Links {
                    prev,
                    next: ptr::null(),
                    by,
                }
            }
        });
        if prev.is_null() {
            self.first = slot;
        } else {
            // SAFETY: slots in the list are alive, and the lock is held.
            unsafe { (*prev).links.with_mut(|links| (*links).next = slot) };
        }
        self.last = slot;
    }

    /// # Safety
    /// The slot is in the list.
    unsafe fn unlink(&mut self, slot: &TaskSlot) {
        // SAFETY: the lock is held.
        let (prev, next) = slot
            .links
            .with(|links| unsafe { ((*links).prev, (*links).next) });
        if prev.is_null() {
            self.first = next;
        } else {
            // SAFETY: slots in the list are alive, and the lock is held.
            unsafe { (*prev).links.with_mut(|links| (*links).next = next) };
        }
        if next.is_null() {
            self.last = prev;
        } else {
            // SAFETY: as above.
            unsafe { (*next).links.with_mut(|links| (*links).prev = prev) };
        }
    }
}
