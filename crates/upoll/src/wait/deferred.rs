//! What a wake puts off until its locks are free.

#[cfg(all(feature = "std", not(loom)))]
use alloc::boxed::Box;
use alloc::sync::Arc;
#[cfg(all(feature = "std", not(loom)))]
use alloc::task::Wake;
#[cfg(all(feature = "std", not(loom)))]
use core::any::Any;
use core::mem::MaybeUninit;
use core::ptr;
use core::task::Waker;

#[cfg(all(feature = "std", not(loom)))]
use crate::sync::is_held_by_this_thread;
use crate::sync::{AtomicBool, AtomicPtr, Mutex, Ordering, fence};

pub(crate) type Action = (fn(usize), usize);

/// A task's waker in a place where wakes find it. It is called once the locks of the wake are free:
/// an executor may run the task on the spot, or drop it.
pub(crate) struct TaskSlot {
    /// The task to wake. Nothing is called, and no waker dropped, with this lock held.
    waker: Mutex<Option<Waker>>,
    /// A wake has this in its chain and will call the waker.
    chained: AtomicBool,
    /// The next in that chain; the wake's own.
    next: AtomicPtr<TaskSlot>,
}

impl TaskSlot {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(TaskSlot {
            waker: Mutex::new(None),
            chained: AtomicBool::new(false),
            next: AtomicPtr::new(ptr::null_mut()),
        })
    }

    /// Look at the object's state afterwards.
    pub(crate) fn set(&self, waker: Waker) {
        let before = self.waker.lock().replace(waker);
        fence(Ordering::SeqCst);
        drop(before);
    }

    /// None also in a signal handler that interrupts [`set`](Self::set) or this: whoever sets a waker
    /// looks at the object afterwards, and whoever takes one wakes it.
    fn take(&self) -> Option<Waker> {
        #[cfg(all(feature = "std", not(loom)))]
        if is_held_by_this_thread(&self.waker) {
            return None;
        }
        self.waker.lock().take()
    }
}

/// A panic that was caught in the midst of a wake, as one more task of it.
#[cfg(all(feature = "std", not(loom)))]
struct Panic {
    payload: Mutex<Option<Box<dyn Any + Send>>>,
}

#[cfg(all(feature = "std", not(loom)))]
impl Wake for Panic {
    fn wake(self: Arc<Self>) {
        let payload = self.payload.lock().take();
        // Of several panics the first to go on is the one that is seen.
        if let Some(payload) = payload.filter(|_| !std::thread::panicking()) {
            std::panic::resume_unwind(payload);
        }
    }
}

/// Tasks to be woken, linked by their slots' `next`, so that a wake allocates nothing.
struct Tasks(*mut TaskSlot);

impl Tasks {
    #[inline(never)]
    fn wake(&mut self) {
        while !self.0.is_null() {
            // SAFETY: from `Arc::into_raw` in `push_task`, and taken off the chain here.
            let slot = unsafe { Arc::from_raw(self.0) };
            // Should a waker panic, the others are called as this drops.
            let mut rest = Tasks(slot.next.load(Ordering::Relaxed));
            self.0 = ptr::null_mut();
            // First: a wake from now on chains it anew.
            slot.chained.swap(false, Ordering::SeqCst);
            let waker = slot.take();
            if let Some(waker) = waker {
                waker.wake();
            }
            self.0 = core::mem::replace(&mut rest.0, ptr::null_mut());
        }
    }
}

impl Drop for Tasks {
    #[inline]
    fn drop(&mut self) {
        if !self.0.is_null() {
            self.wake();
        }
    }
}

/// Actions put off until the locks of the wake are released: the system calls that rouse threads,
/// and the wakers of tasks.
///
/// Room for a few system calls is on the stack. When it is full the oldest are done at once, under
/// the locks: slower, never wrong.
pub(crate) struct Deferred {
    actions: [MaybeUninit<Action>; Deferred::ROOM],
    len: usize,
    /// Workers that were chosen do not get to run: this thread lets them, once it has roused the
    /// last.
    #[cfg(all(feature = "std", not(loom)))]
    yields: bool,
    /// Dropped, and thereby woken, after the actions are done.
    tasks: Tasks,
}

impl Deferred {
    const ROOM: usize = 4;

    /// How many workers that do not come are more than chance.
    #[cfg(all(feature = "std", not(loom)))]
    const MANY: u32 = 4;

    #[inline]
    pub(crate) fn new() -> Self {
        Deferred {
            actions: [const { MaybeUninit::uninit() }; Deferred::ROOM],
            len: 0,
            #[cfg(all(feature = "std", not(loom)))]
            yields: false,
            tasks: Tasks(ptr::null_mut()),
        }
    }

    /// Has the task's waker called, unless another wake is about to.
    pub(crate) fn push_task(&mut self, slot: &Arc<TaskSlot>) {
        if !slot.chained.swap(true, Ordering::SeqCst) {
            slot.next.store(self.tasks.0, Ordering::Relaxed);
            self.tasks.0 = Arc::into_raw(slot.clone()).cast_mut();
        }
    }

    /// Has a panic of foreign code go on once all who stand behind it have been told.
    #[cfg(all(feature = "std", not(loom)))]
    #[cold]
    pub(crate) fn push_panic(&mut self, payload: Box<dyn Any + Send>) {
        let panic = Panic {
            payload: Mutex::new(Some(payload)),
        };
        let slot = TaskSlot::new();
        slot.set(Waker::from(Arc::new(panic)));
        self.push_task(&slot);
    }

    #[cfg_attr(
        any(not(feature = "std"), loom),
        expect(dead_code, reason = "only sleeping threads need it")
    )]
    pub(crate) fn push(&mut self, action: fn(usize), word: usize) {
        if self.len == Deferred::ROOM {
            self.run_actions();
        }
        self.actions[self.len].write((action, word));
        self.len += 1;
    }

    /// A wake in turn chose a worker, one of `chosen` that have not come yet. If they are many, some
    /// stand behind the thread that wakes them, which now gives up its processor once.
    ///
    /// It might run on for milliseconds otherwise. Events do not wait for those behind it: workers on
    /// other processors take thousands meanwhile, more than can be made up for later. From one time
    /// to the next the number doubles, as it is of no use to yield to what does not run then.
    #[cfg(all(feature = "std", not(loom)))]
    #[inline]
    pub(crate) fn let_run(&mut self, chosen: u32) {
        self.yields |= chosen >= Deferred::MANY && chosen.is_power_of_two();
    }

    /// For when all locks are free.
    pub(crate) fn run(&mut self) {
        self.run_actions();
        drop(core::mem::replace(&mut self.tasks, Tasks(ptr::null_mut())));
    }

    #[inline(never)]
    fn run_last(&mut self) {
        self.run_actions();
        #[cfg(all(feature = "std", not(loom)))]
        if self.yields {
            // Tasks before: they are not to wait for this thread's next turn.
            self.run();
            std::thread::yield_now();
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
