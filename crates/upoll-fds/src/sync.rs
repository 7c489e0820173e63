//! Atomics, fences and what belongs to a thread: the one place they come from, so that the protocol
//! of [`slot`](crate::slot) and [`in_use`](crate::in_use) runs under the loom model checker
//! (`--cfg loom`) as it is.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering, compiler_fence, fence};

#[cfg(not(loom))]
pub(crate) use crate::patience::Patience;
#[cfg(not(loom))]
pub(crate) use crate::signals::{HeldBack, Section};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, Ordering, fence};

/// Only signal handlers could see the difference, of which the model has none.
#[cfg(loom)]
pub(crate) fn compiler_fence(_: Ordering) {}

#[cfg(loom)]
pub(crate) struct Patience;

#[cfg(loom)]
impl Patience {
    pub(crate) fn new() -> Self {
        Patience
    }

    pub(crate) fn wait(&mut self) {
        loom::thread::yield_now();
    }
}

/// The model has no signals.
#[cfg(loom)]
pub(crate) struct HeldBack;

#[cfg(loom)]
impl HeldBack {
    pub(crate) fn begin() -> Self {
        HeldBack
    }
}

#[cfg(loom)]
impl Drop for HeldBack {
    fn drop(&mut self) {}
}

#[cfg(loom)]
pub(crate) struct Section;

#[cfg(loom)]
impl Section {
    pub(crate) fn begin() -> Self {
        Section
    }
}

#[cfg(loom)]
impl Drop for Section {
    fn drop(&mut self) {}
}

/// A static that each run of a model has anew.
macro_rules! global {
    ($(#[$doc:meta])* static $name:ident: $kind:ty = $value:expr;) => {
        $(#[$doc])*
        #[cfg(not(loom))]
        static $name: $kind = $value;
        #[cfg(loom)]
        loom::lazy_static! {
            $(#[$doc])*
            static ref $name: $kind = $value;
        }
    };
}
pub(crate) use global;

/// The rules that a test may switch off, one at a time, to see its loom model fail without it.
///
/// Outside loom builds [`broken`] is the constant `false`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Between the store to a thread's record and its second look at the slot stands a fence.
    #[cfg(loom)]
    FenceBeforeLook,
    /// A look-up that has written its record looks at the slot once more.
    LookAgain,
    /// Whoever empties a slot waits for the calls that use what it led to.
    WaitUntilUnused,
    /// A look-up that finds a number being changed waits for the end of that.
    WaitWhileChanging,
    /// A call that ends lets go of what was closed meanwhile, if nobody waited for it.
    LetGoWhenAsked,
    /// Whoever leaves an entry to the call that uses it looks once more whether it still does.
    LookAgainAfterAsking,
    /// A thread takes a record in one step.
    TakeInOneStep,
    /// The end of a change is told from the end of another one.
    OwnMark,
}

#[cfg(loom)]
std::thread_local! {
    static BROKEN: std::cell::Cell<Option<Rule>> = const { std::cell::Cell::new(None) };
}

/// Switches `rule` off for the models that this thread runs from now on.
#[cfg(loom)]
pub fn break_rule(rule: Option<Rule>) {
    BROKEN.with(|cell| cell.set(rule));
}

#[cfg(loom)]
pub(crate) fn broken(rule: Rule) -> bool {
    BROKEN.with(|cell| cell.get() == Some(rule))
}

#[cfg(not(loom))]
#[inline(always)]
pub(crate) const fn broken(_rule: Rule) -> bool {
    false
}
