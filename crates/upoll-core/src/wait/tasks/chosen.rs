//! Both kinds of lists, of which a model chooses one.

use core::cell::Cell;

use core::task::Waker;

use super::cells::FreeCell;
use super::{CallbackSlot, HeldTask, Job, Stack, here, shared};

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

    pub(super) fn is_outermost(&self) -> bool {
        match self {
            List::Here(list) => list.is_outermost(),
            List::Shared(list) => list.is_outermost(),
        }
    }

    pub(super) fn leave(&mut self) -> bool {
        match self {
            List::Here(list) => list.leave(),
            List::Shared(list) => list.leave(),
        }
    }

    pub(super) fn push(&mut self, job: Job) {
        match self {
            List::Here(list) => list.push(job),
            List::Shared(list) => list.push(job),
        }
    }

    pub(super) fn free_cell(&self) -> Option<FreeCell> {
        match self {
            List::Here(list) => list.free_cell(),
            List::Shared(list) => list.free_cell(),
        }
    }

    pub(super) fn leave_behind(&mut self, task: HeldTask<'_>, waker: Waker) {
        match self {
            List::Here(list) => list.leave_behind(task, waker),
            List::Shared(list) => list.leave_behind(task, waker),
        }
    }

    pub(super) fn has_left(&self) -> bool {
        match self {
            List::Here(list) => list.has_left(),
            List::Shared(list) => list.has_left(),
        }
    }

    pub(super) fn take_left(&mut self) -> Option<Waker> {
        match self {
            List::Here(list) => list.take_left(),
            List::Shared(list) => list.take_left(),
        }
    }

    pub(super) fn take(&mut self) -> Stack {
        match self {
            List::Here(list) => list.take(),
            List::Shared(list) => list.take(),
        }
    }

    pub(super) fn call(&self, slot: &CallbackSlot) -> bool {
        match self {
            List::Here(list) => list.call(slot),
            List::Shared(list) => list.call(slot),
        }
    }
}
