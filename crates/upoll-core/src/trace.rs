//! Events for the crate `tracing`, with the feature of that name. Without the feature these functions are empty.
//!
//! A subscriber is foreign code, which may use upoll itself. So calls on sets send the events, once they have
//! released their locks, and wakeups send none. Sets and files are given by their identities.

use core::fmt::Debug;

use crate::errno::Errno;
use crate::events::Events;

/// Programs know the library by this name.
#[cfg(feature = "tracing")]
const TARGET: &str = "upoll";

macro_rules! events {
    ($($(#[$attribute:meta])* $name:ident($($argument:ident: $of:ty),*) $body:block)*) => {$(
        $(#[$attribute])*
        #[cfg(feature = "tracing")]
        pub fn $name($($argument: $of),*) $body

        $(#[$attribute])*
        #[cfg(not(feature = "tracing"))]
        #[inline(always)]
        pub fn $name($(_: $of),*) {}
    )*};
}

events! {
    /// A set was made.
    created(set: impl Debug, rotates: bool) {
        tracing::debug!(target: TARGET, ?set, rotates, "set created");
    }

    /// The last reference to an open file is gone.
    closed(file: impl Debug) {
        tracing::debug!(target: TARGET, ?file, "file closed");
    }

    /// A change of a set has ended. A kernel fd is known by the fd alone.
    changed(
        set: impl Debug,
        op: impl Debug,
        file: Option<impl Debug>,
        fd: i32,
        events: Events,
        result: Result<(), Errno>
    ) {
        let file = file.map(tracing::field::debug);
        let error = result.err().map(tracing::field::display);
        tracing::debug!(target: TARGET, ?set, ?op, file, fd, ?events, error, "set changed");
    }

    /// Nothing is ready: the thread is about to sleep.
    #[cfg(any(feature = "std", upoll_loom))]
    sleeps(set: impl Debug) {
        tracing::trace!(target: TARGET, ?set, "thread sleeps");
    }

    /// A wait has ended.
    waited(set: impl Debug, result: Result<usize, Errno>) {
        let ready = result.ok();
        let error = result.err().map(tracing::field::display);
        tracing::trace!(target: TARGET, ?set, ready, error, "wait ended");
    }
}
