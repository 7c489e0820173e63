//! Slots of tasks, and the list of those for whose wakers there was no cell.
//!
//! The list is one for all threads, with a name in each slot for the scopes that have left it: the thread's, or
//! without `std` the epoch's. The thread that wakes takes the slot out, and so does the end of its future.

use core::marker::PhantomPinned;
use core::mem;
use core::ptr::NonNull;
use core::task::Waker;

use crate::sync::{AtomicU32, Mutex, Ordering, UnsafeCell, statics};

statics! {
    static LEFT: Mutex<Left> = Mutex::new(Left::new());
}

/// The place of a task's waker, in its future: one for each queue that the future waits in.
pub struct TaskSlot {
    /// Guarded by the lock of the queue that the slot's entry is hooked into: opened by [`HeldTask`]. Nothing is called, and
    /// no waker dropped or cloned, with that lock held.
    waiting: UnsafeCell<Waiting>,
    /// The list's epoch if the slot is in the list, or 0. Set under the lock of the queue, in which a wake has found
    /// the task; cleared as the last access of the thread that takes it out.
    left_in: AtomicU32,
    /// There while the slot is in the list. Guarded by the lock of the list: opened by [`Left::links`].
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
    prev: Option<Member>,
    next: Option<Member>,
    /// The name of the scopes that have left it.
    by: usize,
    /// The waker for these scopes.
    waker: Waker,
}

// SAFETY: `waiting` is opened by `HeldTask`, and `links` by `Left`, which is the content of one lock: no two threads are at
// them at once. The rest is `Sync`.
unsafe impl Sync for TaskSlot {}

/// A slot in the list. [`Left`] and [`Links`] have those alone, and a copy is used only while `Left` is borrowed. So the
/// slot is alive, as it takes itself out before it ends ([`TaskSlot::drop`]).
#[derive(Clone, Copy)]
struct Member(NonNull<TaskSlot>);

// SAFETY: it leads to a slot, which any thread may use.
unsafe impl Send for Member {}

/// A task's slot, while the lock of the queue is held that the slot's entry is hooked into.
pub struct HeldTask<'a>(&'a TaskSlot);

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

    /// Opens the part of the slot that the lock of the queue guards.
    ///
    /// # Safety
    /// The caller holds the lock of the queue that the slot's entry is hooked into while the result is used, and has no other
    /// result of this slot.
    #[inline]
    pub unsafe fn held(&self) -> HeldTask<'_> {
        HeldTask(self)
    }
}

impl HeldTask<'_> {
    #[inline]
    fn waiting<R>(&mut self, with: impl FnOnce(&mut Waiting) -> R) -> R {
        // SAFETY: the lock of the queue is held (`held`'s contract), and this is the slot's one `HeldTask`, which `with` does
        // not have.
        self.0
            .waiting
            .with_mut(|waiting| with(unsafe { &mut *waiting }))
    }

    /// Sets the waker. Returns the one that was there, to be dropped without the lock.
    #[inline]
    pub fn set(&mut self, waker: Waker) -> Option<Waker> {
        self.waiting(|waiting| {
            waiting.is_waiting = true;
            waiting.waker.replace(waker)
        })
    }

    /// Returns whether the task waits, with a waker that wakes the same task as `waker`.
    pub fn waits_with(&mut self, waker: &Waker) -> bool {
        self.waiting(|waiting| {
            waiting.is_waiting
                && waiting
                    .waker
                    .as_ref()
                    .is_some_and(|there| there.will_wake(waker))
        })
    }

    /// Returns whether the task waits for a wake.
    pub fn is_waiting(&mut self) -> bool {
        self.waiting(|waiting| waiting.is_waiting)
    }

    /// Ends the wait. Returns the waker, or `None` if the task does not wait: a wake has chosen it since it has set its
    /// waker.
    #[inline]
    pub fn take(&mut self) -> Option<Waker> {
        self.waiting(|waiting| {
            let is_waiting = mem::take(&mut waiting.is_waiting);
            waiting.waker.take_if(|_| is_waiting)
        })
    }

    /// Ends the wait as [`take`](Self::take) does, for a wake.
    #[inline]
    pub(super) fn take_to_wake(&mut self) -> Option<Waker> {
        let waker = self.take();
        #[cfg(all(feature = "std", not(upoll_loom)))]
        if waker.is_none() && self.0.left_in.load(Ordering::Relaxed) != 0 {
            return self.0.take_lost();
        }
        waker
    }

    /// Leaves the slot with its waker, which was [taken](Self::take), to the scopes with the name `by`. These take all slots
    /// out that have their name.
    pub(super) fn leave(mut self, waker: Waker, by: usize) {
        let slot = self.0;
        let before = locked(|left| {
            if let Some(member) = left.member(slot) {
                // It is there still from the wake before, whose scopes wake the task by the newer waker.
                return left.linked(member, |links| mem::replace(&mut links.waker, waker));
            }
            slot.left_in.store(left.epoch, Ordering::Relaxed);
            left.push(slot, waker, by)
        });
        if before.is_some() {
            // The task has set another one since, so this one is of no more use. It is not dropped here, with locks held.
            // The place is empty, as the waker that was there is left now.
            self.waiting(|waiting| waiting.waker = before);
        }
    }
}

impl TaskSlot {
    /// Takes the waker, in the child of a fork, that another thread was about to call: it has called it in the parent alone.
    #[cfg(all(feature = "std", not(upoll_loom)))]
    #[cold]
    fn take_lost(&self) -> Option<Waker> {
        locked(|left| {
            if left.member(self).is_some() {
                return None;
            }
            self.left_in.store(0, Ordering::Relaxed);
            left.links(self, Option::take).map(|links| links.waker)
        })
    }

    #[cold]
    fn leave_list(&self) {
        locked(|left| {
            if let Some(member) = left.member(self) {
                left.unlink(member);
            }
        });
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
            let member = left.find(None, by)?;
            left.unlink(member);
            let slot = member.slot();
            let links = left.links(slot, Option::take);
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
        let mut at = None;
        while let Some(member) = left.find(at, from) {
            left.linked(member, |links| links.by = to);
            at = Some(member);
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
    let is_empty = unsafe { (*LEFT.data_ptr()).first.is_none() };
    if was_locked || !is_empty {
        locked(|left| {
            left.epoch = left.epoch.wrapping_add(1).max(1);
            if was_locked {
                (left.first, left.last) = (None, None);
            }
            left.take_out_all_but(own);
        });
    }
}

/// The list. There is one, the content of [`LEFT`].
struct Left {
    first: Option<Member>,
    last: Option<Member>,
    /// Another one in the child of a fork. Never 0.
    epoch: u32,
}

impl Member {
    #[inline]
    fn slot(&self) -> &TaskSlot {
        // SAFETY: a slot whose `left_in` is not 0 is alive, as its drop waits for the list's lock, which the caller holds.
        unsafe { self.0.as_ref() }
    }
}

impl Left {
    const fn new() -> Self {
        Left {
            first: None,
            last: None,
            epoch: 1,
        }
    }

    /// Returns the slot as a member, if it is in the list.
    fn member(&self, slot: &TaskSlot) -> Option<Member> {
        let is_here = slot.left_in.load(Ordering::Relaxed) == self.epoch;
        is_here.then(|| Member(NonNull::from(slot)))
    }

    /// Runs `with` on the part of a slot that the list's lock guards.
    fn links<R>(&mut self, slot: &TaskSlot, with: impl FnOnce(&mut Option<Links>) -> R) -> R {
        // SAFETY: this is the one list, whose lock is held. It is borrowed alone, so `with` uses no links.
        slot.links.with_mut(|links| with(unsafe { &mut *links }))
    }

    /// Runs `with` on the links of a member.
    fn linked<R>(&mut self, at: Member, with: impl FnOnce(&mut Links) -> R) -> Option<R> {
        self.links(at.slot(), |links| links.as_mut().map(with))
    }

    /// Returns the first slot behind `at`, or of all, with the name `by`.
    fn find(&mut self, at: Option<Member>, by: usize) -> Option<Member> {
        let mut at = match at {
            None => self.first,
            Some(at) => self.linked(at, |links| links.next)?,
        };
        while let Some(member) = at {
            let (next, name) = self.linked(member, |links| (links.next, links.by))?;
            if name == by {
                return at;
            }
            at = next;
        }
        None
    }

    /// Takes out all slots that have another name, in an epoch that has just begun.
    #[cfg(all(feature = "std", not(upoll_loom)))]
    fn take_out_all_but(&mut self, by: usize) {
        let mut at = self.first;
        while let Some(member) = at {
            let Some((next, name)) = self.linked(member, |links| (links.next, links.by)) else {
                break;
            };
            if name == by {
                member.slot().left_in.store(self.epoch, Ordering::Relaxed);
            } else {
                self.unlink(member);
            }
            at = next;
        }
    }

    /// Returns the waker that a fork has left there.
    fn push(&mut self, slot: &TaskSlot, waker: Waker, by: usize) -> Option<Waker> {
        let this = Some(Member(NonNull::from(slot)));
        let links = Links {
            prev: self.last,
            next: None,
            by,
            waker,
        };
        let before = self.links(slot, |there| there.replace(links));
        match self.last {
            None => self.first = this,
            Some(prev) => {
                self.linked(prev, |links| links.next = this);
            }
        }
        self.last = this;
        before.map(|links| links.waker)
    }

    /// Takes a member out of the list. Its slot keeps its links.
    fn unlink(&mut self, at: Member) {
        let Some((prev, next)) = self.linked(at, |links| (links.prev, links.next)) else {
            return;
        };
        match prev {
            None => self.first = next,
            Some(prev) => {
                self.linked(prev, |links| links.next = next);
            }
        }
        match next {
            None => self.last = prev,
            Some(next) => {
                self.linked(next, |links| links.prev = prev);
            }
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
            let mut task = unsafe { slot.held() };
            task.set(waker.clone());
            let waker = task.take().expect("it was set");
            task.leave(waker, by);
        }
        assert!(take(by).is_some_and(|waker| waker.will_wake(&wakers[1])));
        assert!(take(by).is_none());
    }
}
