//! One list for all threads.
//!
//! A scope does not know which of the open scopes are its own thread's, so its slots wait for all of them.
//! They do not wait for those that begin later, or threads that come and go would hold them up for ever.
//! For that, scopes count themselves in one of two epochs. The newer epoch becomes the older one, and
//! takes no more scopes, as soon as slots wait in it and no older scope is left.

use core::mem;
use core::task::Waker;

use super::cells::{Cells, FreeCell};
use super::{CallbackSlot, HeldTask, Job, Stack, left};
use crate::sync::{Mutex, statics};

/// The number of tasks that there is room for until the scopes end that wake them.
const CELLS: usize = if cfg!(upoll_loom) { 1 } else { 64 };

/// Tasks that were left for want of a cell are named by the epoch of the scope, and by this once it has ended.
const ENDED: usize = 2;

statics! {
    static CELL_ROOM: Cells<CELLS> = Cells::new();
}

statics! {
    static EPOCHS: Mutex<Epochs> = Mutex::new(Epochs::new());
}

struct Epochs {
    /// The epoch of scopes that begin now.
    newer: usize,
    /// The number of open scopes of each epoch.
    open: [usize; 2],
    /// The jobs that were put off by scopes of each epoch.
    slots: [Stack; 2],
    /// True if scopes of each epoch have left tasks for which there was no cell.
    has_left: [bool; 2],
}

impl Epochs {
    const fn new() -> Self {
        Epochs {
            newer: 0,
            open: [0; 2],
            slots: [Stack::new(), Stack::new()],
            has_left: [false; 2],
        }
    }

    /// Returns the epoch of a scope that begins.
    fn enter(&mut self) -> usize {
        self.open[self.newer] += 1;
        self.newer
    }

    /// Ends a scope. Returns the jobs that wait for no other: then the scope was the last one that was
    /// open when they were put off, and so the outermost one of its thread. Also returns whether tasks that
    /// were left without a cell wait for no other.
    fn leave(&mut self, epoch: usize) -> (Stack, bool) {
        self.open[epoch] -= 1;
        let (mut ended, mut has_left) = (Stack::new(), false);
        loop {
            let older = 1 - self.newer;
            if self.open[older] > 0 {
                return (ended, has_left);
            }
            ended.append(mem::take(&mut self.slots[older]));
            if mem::take(&mut self.has_left[older]) {
                left::rename(older, ENDED);
                has_left = true;
            }
            if self.slots[self.newer].is_empty() && !self.has_left[self.newer] {
                return (ended, has_left);
            }
            self.newer = older;
        }
    }
}

pub(super) struct List {
    /// None once the scope has been left.
    epoch: Option<usize>,
    /// The jobs that the scope has to do.
    ended: Stack,
    /// True if it has to wake tasks that were left without a cell.
    has_left: bool,
}

impl List {
    #[inline]
    pub(super) fn enter() -> Self {
        List {
            epoch: Some(EPOCHS.lock().enter()),
            ended: Stack::new(),
            has_left: false,
        }
    }

    /// Not known here.
    pub(super) const fn depth() -> u32 {
        0
    }

    /// Not known here.
    #[expect(clippy::unused_self, reason = "it is of use where threads have lists")]
    pub(super) const fn is_outermost(&self) -> bool {
        false
    }

    /// Leaves the scope. Returns whether it has slots to run.
    #[inline]
    pub(super) fn leave(&mut self) -> bool {
        if let Some(epoch) = self.epoch.take() {
            let (ended, has_left) = EPOCHS.lock().leave(epoch);
            self.ended.append(ended);
            self.has_left |= has_left;
        }
        !self.ended.is_empty() || self.has_left
    }

    pub(super) fn push(&mut self, job: Job) {
        match self.epoch {
            Some(epoch) => EPOCHS.lock().slots[epoch].push(job),
            None => self.ended.push(job),
        }
    }

    #[expect(clippy::unused_self, reason = "it is of use where threads have cells")]
    pub(super) fn free_cell(&self) -> Option<FreeCell> {
        // SAFETY: a job is used by the thread alone that has it, and is handed over under a lock.
        unsafe { CELL_ROOM.free() }
    }

    pub(super) fn leave_behind(&mut self, task: HeldTask<'_>, waker: Waker) {
        let Some(epoch) = self.epoch else {
            self.has_left = true;
            task.leave(waker, ENDED);
            return;
        };
        let mut epochs = EPOCHS.lock();
        epochs.has_left[epoch] = true;
        task.leave(waker, epoch);
    }

    pub(super) fn has_left(&self) -> bool {
        self.has_left
    }

    pub(super) fn take_left(&mut self) -> Option<Waker> {
        if !self.has_left {
            return None;
        }
        let waker = left::take(ENDED);
        self.has_left = waker.is_some();
        waker
    }

    pub(super) fn take(&mut self) -> Stack {
        mem::take(&mut self.ended)
    }

    /// A callback's wakeups are delivered within it: a scope around it, which may run for long,
    /// would hold up the slots of other threads.
    #[expect(clippy::unused_self, reason = "it is of use where threads have lists")]
    pub(super) fn call(&self, slot: &CallbackSlot) -> bool {
        slot.run()
    }
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;

    use super::{CallbackSlot, Epochs, Job};

    fn put_off(epochs: &mut Epochs, epoch: usize) {
        let slot = CallbackSlot::new(Box::new(|_| {})).unwrap();
        epochs.slots[epoch].push(Job::Call(slot));
    }

    fn leave(epochs: &mut Epochs, epoch: usize) -> usize {
        let (mut ended, _) = epochs.leave(epoch);
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
