//! One list for each thread.

use core::cell::Cell;
use core::marker::PhantomData;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering, compiler_fence};
use core::task::Waker;

use super::cells::{Cells, FreeCell};
use super::{CallbackSlot, HeldTask, Job, Stack, left};
use crate::sync::{Rule, broken};

/// The state of a thread. A signal handler that runs on the thread finds it consistent at any
/// moment: the handler leaves `depth` as it was, and the rest changes in one step.
struct Here {
    /// The number of scopes that the thread is in.
    depth: Cell<u32>,
    /// The jobs of its scopes, the newest first.
    jobs: AtomicPtr<()>,
    cells: Cells<CELLS>,
    /// True if its scopes have left tasks for which there was no cell.
    has_left: AtomicBool,
}

/// The number of tasks that a thread has room for until its outermost scope ends.
// None in models: the first one of the outermost scope needs none, and the others are left in their slots.
const CELLS: usize = if cfg!(upoll_loom) { 0 } else { 16 };

impl Here {
    const fn new() -> Self {
        Here {
            depth: Cell::new(0),
            jobs: AtomicPtr::new(ptr::null_mut()),
            cells: Cells::new(),
            has_left: AtomicBool::new(false),
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

    /// As [`left::begin_in_child`].
    ///
    /// # Safety
    /// As there.
    #[cfg(not(upoll_loom))]
    pub(super) unsafe fn begin_in_child() {
        // SAFETY: the contract of `left::begin_in_child` is this one's.
        HERE.with(|here| unsafe { left::begin_in_child(ptr::from_ref(here).addr()) });
    }

    pub(super) fn depth() -> u32 {
        HERE.with(|here| here.depth.get())
    }

    /// Returns whether the thread is in no other scope. A signal handler's scopes are never the outermost ones while this one
    /// is open.
    #[inline]
    pub(super) fn is_outermost(&self) -> bool {
        Self::depth() == 1
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
            is_outermost
                && (!here.jobs.load(Ordering::Relaxed).is_null()
                    || here.has_left.load(Ordering::Relaxed))
        })
    }

    pub(super) fn push(&self, job: Job) {
        HERE.with(|here| {
            let mut head = here.jobs.load(Ordering::Relaxed);
            loop {
                job.set_next(head);
                let swapped = here.jobs.compare_exchange(
                    head,
                    job.as_raw(),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                match swapped {
                    Ok(_) => break,
                    Err(now) => head = now,
                }
            }
        });
        // The list has it now, and may have done it.
        core::mem::forget(job);
    }

    pub(super) fn take(&self) -> Stack {
        Stack(HERE.with(|here| {
            // A swap costs more than the rest of this function.
            if here.jobs.load(Ordering::Relaxed).is_null() {
                return ptr::null_mut();
            }
            here.jobs.swap(ptr::null_mut(), Ordering::Relaxed)
        }))
    }

    pub(super) fn free_cell(&self) -> Option<FreeCell> {
        // SAFETY: the cell is filled, emptied and used by this thread alone, while it is in a scope or runs
        // what its scopes have put off.
        HERE.with(|here| unsafe { here.cells.free() })
    }

    pub(super) fn leave_behind(&self, task: HeldTask<'_>, waker: Waker) {
        HERE.with(|here| {
            here.has_left.store(true, Ordering::Relaxed);
            task.leave(waker, ptr::from_ref(here).addr());
        });
    }

    pub(super) fn has_left(&self) -> bool {
        HERE.with(|here| here.has_left.load(Ordering::Relaxed))
    }

    pub(super) fn take_left(&self) -> Option<Waker> {
        HERE.with(|here| {
            // First, for a handler that leaves one meanwhile.
            if !here.has_left.swap(false, Ordering::Relaxed) {
                return None;
            }
            let waker = left::take(ptr::from_ref(here).addr())?;
            here.has_left.store(true, Ordering::Relaxed);
            Some(waker)
        })
    }

    /// A callback's wakeups are delivered after it, and not within it. A waker may run for
    /// long, and its wakeups must not wait for its end.
    pub(super) fn call(&self, slot: &CallbackSlot) -> bool {
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
