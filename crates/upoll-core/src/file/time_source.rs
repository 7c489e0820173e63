//! The schedules by which an object becomes ready without a wakeup, as time passes.
//!
//! A thread that waits for such an object sleeps no longer than until the next timer of these schedules fires, and
//! then fires it. Sets, `poll` and `select` learn of schedules by [`Pollable::time_source`] alone.
//!
//! [`Pollable::time_source`]: crate::Pollable::time_source

use core::fmt;

use super::Description;
use crate::memory::SharedBox;
use crate::schedule::Schedule;

/// The schedules behind an object. Only objects of this crate have some.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct TimeSource<'a>(pub &'a dyn InTime);

impl fmt::Debug for TimeSource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimeSource").finish_non_exhaustive()
    }
}

/// An object that changes as time passes.
pub trait InTime {
    /// Calls `visit` with each schedule that has a clock.
    fn for_each_schedule(&self, visit: &mut dyn FnMut(&SharedBox<Schedule>));
}

impl Description {
    /// Returns the schedules behind the object, if there are any.
    #[inline]
    pub fn time_source(&self) -> Option<&dyn InTime> {
        Some(self.object().time_source()?.0)
    }
}
