//! Steps that unit tests count to see how work grows. Other builds count none.

/// Kinds of steps, each with a count of its own.
#[cfg_attr(
    not(all(test, feature = "std", not(upoll_loom))),
    allow(dead_code, reason = "only tests tell them apart")
)]
#[derive(Clone, Copy)]
pub(crate) enum Step {
    /// A step of a walk through nested sets.
    Walk,
    /// A step of a poll of a set from above.
    Poll,
    /// A call of an entry by a wakeup.
    Call,
}

/// Counts a step.
#[cfg(not(all(test, feature = "std", not(upoll_loom))))]
#[inline(always)]
pub(crate) fn step(_: Step) {}

#[cfg(all(test, feature = "std", not(upoll_loom)))]
pub(crate) use self::counted::{step, steps_of};

#[cfg(all(test, feature = "std", not(upoll_loom)))]
mod counted {
    use core::cell::Cell;

    use super::Step;

    std::thread_local! {
        static COUNTS: [Cell<usize>; 3] = const { [const { Cell::new(0) }; 3] };
    }

    /// Counts a step.
    pub(crate) fn step(kind: Step) {
        COUNTS.with(|counts| counts[kind as usize].set(counts[kind as usize].get() + 1));
    }

    /// Returns how many steps of a kind this thread takes in `body`.
    pub(crate) fn steps_of(kind: Step, body: impl FnOnce()) -> usize {
        let count = || COUNTS.with(|counts| counts[kind as usize].get());
        let before = count();
        body();
        count() - before
    }
}
