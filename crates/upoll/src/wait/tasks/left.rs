//! Slots of tasks, and the list of those for whose wakers there was no cell.
//!
//! The list is one for all threads, with a name in each slot for the scopes that have left it: the thread's, or
//! without `std` the epoch's. The thread that wakes takes the slot out, and so does the end of its future.

use core::marker::PhantomPinned;
use core::ptr;
use core::task::Waker;

use crate::sync::{AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering, UnsafeCell, fence, statics};

statics! {
    static LEFT: Mutex<Left> = Mutex::new(Left::new());
}

/// The place of a task's waker, in its future.
pub(crate) struct TaskSlot {
    /// The task to wake. Nothing is called, and no waker dropped or cloned, with this lock held. Each holder looks at
    /// the object or wakes the task afterwards, or has found an event. So a wake that finds it held goes away, and a
    /// signal handler never waits for the thread that it has interrupted.
    waiting: Mutex<Option<Waiting>>,
    /// Whether there is a waker that no wake has chosen: for queries, which must not hold the lock. Written under the
    /// lock. In no order by itself. A task that begins to wait passes a fence before it polls the object. A query that
    /// finds a wait which has just ended is followed by a wakeup that does not find the waker.
    is_waiting: AtomicBool,
    /// The list's epoch if the slot is in the list, or 0. Set under the lock of a queue, too, in which a wake has found
    /// the task; cleared as the last access of the thread that takes it out.
    left_in: AtomicU32,
    /// Guarded by the lock of the list.
    links: UnsafeCell<Links>,
    /// The list leads to it.
    _pinned: PhantomPinned,
}

/// A task that has set its waker.
struct Waiting {
    waker: Waker,
    /// A wake has chosen the task and left its slot in the list.
    is_chosen: bool,
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
            waiting: Mutex::new(None),
            is_waiting: AtomicBool::new(false),
            left_in: AtomicU32::new(0),
            links: UnsafeCell::new(Links {
                prev: ptr::null(),
                next: ptr::null(),
                by: 0,
            }),
            _pinned: PhantomPinned,
        }
    }

    /// Sets the waker of a slot whose owner is hooked nowhere. Hook it afterwards, then poll the object.
    pub(crate) fn set_first(&mut self, waker: &Waker) {
        if self.left_in.load(Ordering::Acquire) != 0 {
            // A scope that has left it in the list may be about to take the waker.
            self.set(waker);
            return;
        }
        *self.waiting.get_mut() = Some(Waiting {
            waker: waker.clone(),
            is_chosen: false,
        });
        self.is_waiting.store(true, Ordering::Relaxed);
    }

    /// Sets the waker. Returns as [`set_anew`](Self::set_anew).
    fn set(&self, waker: &Waker) -> bool {
        let anew = Waiting {
            waker: waker.clone(),
            is_chosen: false,
        };
        let mut waiting = self.waiting.lock();
        let before = waiting.replace(anew);
        self.is_waiting.store(true, Ordering::Relaxed);
        drop(waiting);
        before.is_some()
    }

    /// Sets another waker. Poll the object afterwards. Returns false if a wake has taken the waker that was there.
    pub(crate) fn set_anew(&self, waker: &Waker) -> bool {
        let mut waiting = self.waiting.lock();
        let is_there = match &mut *waiting {
            Some(there) if there.waker.will_wake(waker) => {
                there.is_chosen = false;
                self.is_waiting.store(true, Ordering::Relaxed);
                true
            }
            _ => false,
        };
        drop(waiting);
        let was_there = is_there || self.set(waker);
        fence(Ordering::SeqCst);
        was_there
    }

    /// Takes the waker, with whether a wake before has chosen the task. Returns `None` if another wake has taken it, or
    /// the task looks at the object after this.
    pub(crate) fn take(&self) -> Option<(Waker, bool)> {
        let mut waiting = self.try_lock()?;
        let taken = waiting.take()?;
        self.is_waiting.store(false, Ordering::Relaxed);
        drop(waiting);
        Some((taken.waker, taken.is_chosen))
    }

    /// Whether the task waits for a wake. Another thread may change that at the same time.
    pub(crate) fn is_waiting(&self) -> bool {
        self.is_waiting.load(Ordering::Relaxed)
    }

    /// Ends the wait. Returns whether a wake has chosen the task since it has set its waker.
    pub(crate) fn end_wait(&self) -> bool {
        let mut waiting = self.waiting.lock();
        let ended = waiting.take();
        self.is_waiting.store(false, Ordering::Relaxed);
        drop(waiting);
        ended.is_none_or(|ended| ended.is_chosen)
    }

    /// Leaves the slot to the scopes with the name `by`. Returns false if the task does not wait.
    ///
    /// # Safety
    /// The caller holds the lock of a queue that the owner of the slot is hooked into. These scopes take all slots
    /// out that have their name.
    pub(super) unsafe fn leave(&self, by: usize) -> bool {
        locked(|left| {
            let Some(mut waiting) = self.try_lock() else {
                return false;
            };
            let is_in_list = self.left_in.load(Ordering::Relaxed) == left.epoch;
            // In the child of a fork, a task that another thread has left is chosen and not in the list: nobody has
            // woken it.
            let Some(there) = waiting
                .as_mut()
                .filter(|there| !(there.is_chosen && is_in_list))
            else {
                return false;
            };
            there.is_chosen = true;
            self.is_waiting.store(false, Ordering::Relaxed);
            // It may be there still from the wake before, and is woken as well by the scopes that have left it.
            if !is_in_list {
                self.left_in.store(left.epoch, Ordering::Relaxed);
                left.push(self, by);
            }
            true
        })
    }

    /// Returns `None` if another thread, or the one that this handler has interrupted, holds the lock.
    fn try_lock(&self) -> Option<MutexGuard<'_, Option<Waiting>>> {
        self.waiting.try_lock().or_else(|| {
            // The state that this wake announces is published before the lock is found held once more. So a holder
            // that passes its fence after that sees the state.
            fence(Ordering::SeqCst);
            self.waiting.try_lock()
        })
    }
}

impl Drop for TaskSlot {
    /// No wake finds the task any more: its entries are out of all queues.
    fn drop(&mut self) {
        if self.left_in.load(Ordering::Acquire) != 0 {
            locked(|left| {
                if self.left_in.load(Ordering::Relaxed) == left.epoch {
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
            slot.left_in.store(0, Ordering::Release);
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

/// Frees the list's lock in the child of a fork, where no thread holds it. The slots that other threads have left are
/// taken out of the list, and those with the name `own` stay. If the lock was held, the list may be half changed: then
/// all are taken out. (No other thread holds it in a process of one.)
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
    if was_locked {
        locked(|left| {
            *left = Left {
                epoch: left.epoch.wrapping_add(1).max(1),
                ..Left::new()
            };
        });
    } else if !is_empty {
        locked(|left| left.take_out_all_but(own));
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

    /// Takes out all slots that have another name.
    #[cfg(all(feature = "std", not(upoll_loom)))]
    fn take_out_all_but(&mut self, by: usize) {
        let mut at = self.first;
        while !at.is_null() {
            // SAFETY: slots in the list are alive, and the lock is held.
            let slot = unsafe { &*at };
            // SAFETY: as above.
            let (next, name) = slot
                .links
                .with(|links| unsafe { ((*links).next, (*links).by) });
            if name != by {
                // SAFETY: it is in the list.
                unsafe { self.unlink(slot) };
                slot.left_in.store(0, Ordering::Relaxed);
            }
            at = next;
        }
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
