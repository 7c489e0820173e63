//! Steps that tests count to see how work grows. Builds without debug assertions count none.

/// Kinds of steps, each with a count of its own.
#[derive(Clone, Copy)]
pub enum Step {
    /// A step of a walk through nested sets.
    Walk,
    /// A step of a poll of a set from above.
    Poll,
    /// A call of an entry by a wakeup.
    Call,
}

/// Counts a step.
#[cfg(not(all(debug_assertions, feature = "std", not(upoll_loom))))]
#[inline(always)]
pub fn step(_: Step) {}

#[cfg(all(debug_assertions, feature = "std", not(upoll_loom)))]
pub use self::counted::{step, steps_of};

#[cfg(all(debug_assertions, feature = "std", not(upoll_loom)))]
mod counted {
    use core::cell::Cell;

    use super::Step;

    std::thread_local! {
        static COUNTS: [Cell<usize>; 3] = const { [const { Cell::new(0) }; 3] };
    }

    /// Counts a step.
    pub fn step(kind: Step) {
        COUNTS.with(|counts| counts[kind as usize].set(counts[kind as usize].get() + 1));
    }

    /// Returns how many steps of a kind this thread takes in `body`.
    pub fn steps_of(kind: Step, body: impl FnOnce()) -> usize {
        let count = || COUNTS.with(|counts| counts[kind as usize].get());
        let before = count();
        body();
        count() - before
    }
}
