//! Slots of tasks, and the list of those for whose wakers there was no cell.
//!
//! The list is one for all threads, with a name in each slot for the scopes that have left it: the thread's, or
//! without `std` the epoch's. The thread that wakes takes the slot out, and so does the end of its future.

use core::marker::PhantomPinned;
use core::mem;
use core::ptr;
use core::task::Waker;

use crate::sync::{AtomicU32, Mutex, Ordering, UnsafeCell, statics};

statics! {
    static LEFT: Mutex<Left> = Mutex::new(Left::new());
}

/// The place of a task's waker, in its future: one for each queue that the future waits in.
pub struct TaskSlot {
    /// Guarded by the lock of the queue that the slot's entry is hooked into. Nothing is called, and no waker dropped or
    /// cloned, with that lock held.
    waiting: UnsafeCell<Waiting>,
    /// The list's epoch if the slot is in the list, or 0. Set under the lock of the queue, in which a wake has found
    /// the task; cleared as the last access of the thread that takes it out.
    left_in: AtomicU32,
    /// There while the slot is in the list. Guarded by the lock of the list.
    links: UnsafeCell<Option<Links>>,
    /// The list leads to it.
    _pinned: PhantomPinned,
}

struct Waiting {
    /// The waker of the task while it waits. Else it may be one that is of no more use.
    waker: Option<Waker>,
    /// The task has set its waker, and no wake has chosen it since.
    is_waiting: bool,
}

struct Links {
    prev: *const TaskSlot,
    next: *const TaskSlot,
    /// The name of the scopes that have left it.
    by: usize,
    /// The waker for these scopes.
    waker: Waker,
}

// SAFETY: `waiting` and `links` are touched under locks alone; the rest is `Send` and `Sync`.
unsafe impl Send for TaskSlot {}
// SAFETY: as above.
unsafe impl Sync for TaskSlot {}

impl Default for TaskSlot {
    fn default() -> Self {
        Self::new()
    }
}

impl TaskSlot {
    #[inline]
    pub fn new() -> Self {
        TaskSlot {
            waiting: UnsafeCell::new(Waiting {
                waker: None,
                is_waiting: false,
            }),
            left_in: AtomicU32::new(0),
            links: UnsafeCell::new(None),
            _pinned: PhantomPinned,
        }
    }

    /// Runs `with` on what the queue's lock guards.
    ///
    /// # Safety
    /// The caller holds the lock of the queue that the slot's entry is hooked into, and `with` uses no other method.
    #[inline]
    unsafe fn waiting<R>(&self, with: impl FnOnce(&mut Waiting) -> R) -> R {
        // SAFETY: the caller's contract.
        self.waiting
            .with_mut(|waiting| with(unsafe { &mut *waiting }))
    }

    /// Sets the waker. Returns the one that was there, to be dropped without the lock.
    ///
    /// # Safety
    /// As [`waiting`](Self::waiting).
    #[inline]
    pub unsafe fn set(&self, waker: Waker) -> Option<Waker> {
        let set = |waiting: &mut Waiting| {
            waiting.is_waiting = true;
            waiting.waker.replace(waker)
        };
        // SAFETY: passed on to the caller.
        unsafe { self.waiting(set) }
    }

    /// Returns whether the task waits, with a waker that wakes the same task as `waker`.
    ///
    /// # Safety
    /// As [`waiting`](Self::waiting).
    pub unsafe fn waits_with(&self, waker: &Waker) -> bool {
        let waits = |waiting: &mut Waiting| {
            waiting.is_waiting
                && waiting
                    .waker
                    .as_ref()
                    .is_some_and(|there| there.will_wake(waker))
        };
        // SAFETY: passed on to the caller.
        unsafe { self.waiting(waits) }
    }

    /// Returns whether the task waits for a wake.
    ///
    /// # Safety
    /// As [`waiting`](Self::waiting).
    pub unsafe fn is_waiting(&self) -> bool {
        // SAFETY: passed on to the caller.
        unsafe { self.waiting(|waiting| waiting.is_waiting) }
    }

    /// Ends the wait. Returns the waker, or `None` if the task does not wait: a wake has chosen it since it has set its
    /// waker.
    ///
    /// # Safety
    /// As [`waiting`](Self::waiting).
    #[inline]
    pub unsafe fn take(&self) -> Option<Waker> {
        let take = |waiting: &mut Waiting| {
            let is_waiting = mem::take(&mut waiting.is_waiting);
            waiting.waker.take_if(|_| is_waiting)
        };
        // SAFETY: passed on to the caller.
        unsafe { self.waiting(take) }
    }

    /// Ends the wait as [`take`](Self::take) does, for a wake.
    ///
    /// # Safety
    /// As [`waiting`](Self::waiting).
    #[inline]
    pub(super) unsafe fn take_to_wake(&self) -> Option<Waker> {
        // SAFETY: passed on to the caller.
        let waker = unsafe { self.take() };
        #[cfg(all(feature = "std", not(upoll_loom)))]
        if waker.is_none() && self.left_in.load(Ordering::Relaxed) != 0 {
            return self.take_lost();
        }
        waker
    }

    /// Takes the waker, in the child of a fork, that another thread was about to call: it has called it in the parent alone.
    #[cfg(all(feature = "std", not(upoll_loom)))]
    #[cold]
    fn take_lost(&self) -> Option<Waker> {
        locked(|left| {
            if self.left_in.load(Ordering::Relaxed) == left.epoch {
                return None;
            }
            self.left_in.store(0, Ordering::Relaxed);
            // SAFETY: the lock is held.
            unsafe { self.links(Option::take) }.map(|links| links.waker)
        })
    }

    /// Runs `with` on what the list's lock guards.
    ///
    /// # Safety
    /// The caller holds the lock of the list, and `with` looks at no links.
    unsafe fn links<R>(&self, with: impl FnOnce(&mut Option<Links>) -> R) -> R {
        // SAFETY: the caller's contract.
        self.links.with_mut(|links| with(unsafe { &mut *links }))
    }

    /// Runs `with` on the links of a slot that is in the list.
    ///
    /// # Safety
    /// As [`links`](Self::links).
    unsafe fn linked<R>(&self, with: impl FnOnce(&mut Links) -> R) -> Option<R> {
        // SAFETY: passed on to the caller.
        unsafe { self.links(|links| links.as_mut().map(with)) }
    }

    #[cold]
    fn leave_list(&self) {
        locked(|left| {
            if self.left_in.load(Ordering::Relaxed) == left.epoch {
                // SAFETY: it is in the list.
                unsafe { left.unlink(self) };
            }
        });
    }

    /// Leaves the slot with its waker, which was [taken](Self::take), to the scopes with the name `by`.
    ///
    /// # Safety
    /// As [`waiting`](Self::waiting). These scopes take all slots out that have their name.
    pub(super) unsafe fn leave(&self, waker: Waker, by: usize) {
        let before = locked(|left| {
            if self.left_in.load(Ordering::Relaxed) == left.epoch {
                // It is there still from the wake before, whose scopes wake the task by the newer waker.
                // SAFETY: the lock is held.
                return unsafe { self.linked(|links| mem::replace(&mut links.waker, waker)) };
            }
            self.left_in.store(left.epoch, Ordering::Relaxed);
            left.push(self, waker, by)
        });
        if before.is_some() {
            // The task has set another one since, so this one is of no more use. It is not dropped here, with locks held.
            // The place is empty, as the waker that was there is left now.
            // SAFETY: passed on to the caller.
            unsafe { self.waiting(|waiting| waiting.waker = before) };
        }
    }
}

impl Drop for TaskSlot {
    /// No wake finds the task any more: its entry is out of the queue.
    #[inline]
    fn drop(&mut self) {
        if self.left_in.load(Ordering::Acquire) != 0 {
            self.leave_list();
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
            // SAFETY: the lock is held.
            let links = unsafe { slot.links(Option::take) };
            // The future may end from now on.
            slot.left_in.store(0, Ordering::Release);
            if let Some(links) = links {
                return Some(links.waker);
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
            unsafe { (*slot).linked(|links| links.by = to) };
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

/// Frees the list's lock in the child of a fork, where no thread holds it. The slots that other threads have left are
/// taken out of the list with their wakers in them, and those with the name `own` stay. If the lock was held, the list may
/// be half changed: then all are taken out. (No other thread holds it in a process of one.)
///
/// # Safety
/// The process was just forked, has a memory of its own, and has no other thread than the caller.
#[cfg(all(feature = "std", not(upoll_loom)))]
pub(super) unsafe fn begin_in_child(own: usize) {
    let was_locked = LEFT.is_locked();
    if was_locked {
        // SAFETY: it is locked, and there is one thread, so nobody frees it meanwhile. That thread does not hold it: no
        // signal handler, which might fork, interrupts `locked`.
        unsafe { LEFT.force_unlock() };
    }
    // Without the lock, as a write would cost the child a copy of the page.
    // SAFETY: there is one thread, and it does not use the list now.
    let is_empty = unsafe { (*LEFT.data_ptr()).first.is_null() };
    if was_locked || !is_empty {
        locked(|left| {
            left.epoch = left.epoch.wrapping_add(1).max(1);
            if was_locked {
                (left.first, left.last) = (ptr::null(), ptr::null());
            }
            left.take_out_all_but(own);
        });
    }
}

struct Left {
    first: *const TaskSlot,
    last: *const TaskSlot,
    /// Another one in the child of a fork. Never 0.
    epoch: u32,
}

// SAFETY: the pointers lead to slots that are in the list, which are alive (`TaskSlot::drop`) and may be used by any
// thread.
unsafe impl Send for Left {}

impl Left {
    const fn new() -> Self {
        Left {
            first: ptr::null(),
            last: ptr::null(),
            epoch: 1,
        }
    }

    /// Returns the first slot behind `at`, or of all, with the name `by`.
    fn find(&self, at: *const TaskSlot, by: usize) -> Option<*const TaskSlot> {
        // SAFETY: slots in the list are alive, and the lock is held.
        let next = |slot: *const TaskSlot| unsafe { (*slot).linked(|links| links.next) };
        let mut at = if at.is_null() { self.first } else { next(at)? };
        while !at.is_null() {
            // SAFETY: as above.
            if unsafe { (*at).linked(|links| links.by) }? == by {
                return Some(at);
            }
            at = next(at)?;
        }
        None
    }

    /// Takes out all slots that have another name, in an epoch that has just begun.
    #[cfg(all(feature = "std", not(upoll_loom)))]
    fn take_out_all_but(&mut self, by: usize) {
        let mut at = self.first;
        while !at.is_null() {
            // SAFETY: slots in the list are alive, and the lock is held.
            let slot = unsafe { &*at };
            // SAFETY: as above.
            let Some((next, name)) = (unsafe { slot.linked(|links| (links.next, links.by)) })
            else {
                break;
            };
            if name == by {
                slot.left_in.store(self.epoch, Ordering::Relaxed);
            } else {
                // SAFETY: it is in the list.
                unsafe { self.unlink(slot) };
            }
            at = next;
        }
    }

    /// Returns the waker that a fork has left there.
    fn push(&mut self, slot: &TaskSlot, waker: Waker, by: usize) -> Option<Waker> {
        let prev = self.last;
        let links = Links {
            prev,
            next: ptr::null(),
            by,
            waker,
        };
        // SAFETY: the lock is held.
        let before = unsafe { slot.links(|there| there.replace(links)) };
        if prev.is_null() {
            self.first = slot;
        } else {
            // SAFETY: slots in the list are alive, and the lock is held.
            unsafe { (*prev).linked(|links| links.next = slot) };
        }
        self.last = slot;
        before.map(|links| links.waker)
    }

    /// # Safety
    /// The slot is in the list.
    unsafe fn unlink(&mut self, slot: &TaskSlot) {
        // SAFETY: the lock is held.
        let Some((prev, next)) = (unsafe { slot.linked(|links| (links.prev, links.next)) }) else {
            return;
        };
        if prev.is_null() {
            self.first = next;
        } else {
            // SAFETY: slots in the list are alive, and the lock is held.
            unsafe { (*prev).linked(|links| links.next = next) };
        }
        if next.is_null() {
            self.last = prev;
        } else {
            // SAFETY: as above.
            unsafe { (*next).linked(|links| links.prev = prev) };
        }
    }
}

#[cfg(all(test, feature = "std", not(upoll_loom)))]
mod tests {
    use core::pin::pin;
    use core::ptr;
    use core::task::Waker;
    use std::sync::Arc;
    use std::task::Wake;

    use super::{TaskSlot, take};

    struct Task;

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn a_task_that_is_left_twice_is_woken_once_by_its_newer_waker() {
        let slot = pin!(TaskSlot::new());
        let slot: &TaskSlot = &slot;
        let by = ptr::from_ref(slot).addr();
        let wakers = [(); 2].map(|()| Waker::from(Arc::new(Task)));
        for waker in &wakers {
            // SAFETY: the slot is in no queue, and this thread alone has it.
            unsafe {
                slot.set(waker.clone());
                let waker = slot.take().expect("it was set");
                slot.leave(waker, by);
            }
        }
        assert!(take(by).is_some_and(|waker| waker.will_wake(&wakers[1])));
        assert!(take(by).is_none());
    }
}
