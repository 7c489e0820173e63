//! The kernel backend of a set: members that the core cannot poll itself.
//!
//! The core knows nothing of kernel fds. The layer above adds a *companion* to a set with the first
//! member of that kind, or when threads have to sleep where the companion can wake them. From then
//! on the core asks the companion what is ready in the kernel, and wakes the threads that sleep
//! there through it. A companion stays for the set's life.

#[cfg(any(feature = "std", upoll_loom))]
use alloc::boxed::Box;
use core::fmt;

#[cfg(all(feature = "std", not(upoll_loom)))]
use super::CtlCommand;
#[cfg(any(feature = "std", upoll_loom))]
use super::Epoll;
use super::Set;
use super::interest::{Interests, Item};
use crate::errno::Errno;
use crate::events::Event;
#[cfg(any(feature = "std", upoll_loom))]
use crate::events::Events;
use crate::file::Description;
use crate::sync::OnceBox;
use crate::wait::Deferred;

/// The core's interface to the kernel backend of a set.
pub(crate) trait Companion: Send + Sync {
    /// Whether a thread sleeps there, so that [`ring`](Self::ring) would wake it.
    fn is_awaited(&self) -> bool;

    /// Wakes one thread that sleeps there, once all locks are free.
    fn ring(&self, deferred: &mut Deferred);

    /// Whether anything is ready there. Nothing is consumed. `for_item`: a set above asks, for its item.
    fn is_ready(&self, set: &Set, for_item: bool) -> bool;

    /// `EPOLL_CTL_MOD` of a member by its number.
    #[cfg(any(feature = "std", upoll_loom))]
    fn modify(&self, epoll: &Epoll, number: i32, interest: &Event) -> Result<(), Errno>;

    /// The same for all commands at the head that [modify a descriptor](CtlCommand::modified_descriptor),
    /// as the first does, until one fails: how many succeeded, and how the last went.
    ///
    /// Between two calls of the kernel the way to here would take longer than the rest.
    #[cfg(all(feature = "std", not(upoll_loom)))]
    fn modify_several(
        &self,
        epoll: &Epoll,
        commands: &mut [CtlCommand<'_>],
    ) -> (usize, Result<(), Errno>);

    /// Fills `out` with what is ready there and in the core. The two take turns to come first.
    fn harvest_both(&self, set: &Set, out: &mut [Event]) -> usize;

    /// Makes the companion's kernel sets anew that the program has closed, once a call has found
    /// one lost.
    ///
    /// # Errors
    /// The kernel has nothing for it.
    fn restore_found_lost(&self, description: &Description<Set>) -> Result<(), Errno>;

    /// Returns whether a call has met a file that the program has closed, and that was not made anew yet, or
    /// not completely.
    fn is_found_lost(&self) -> bool;

    /// Reports to `outer`, which watches `inner`, what becomes ready in this companion of `inner`.
    fn nest_in(&self, inner: &Description, outer: &Description<Set>) -> Result<(), Errno>;

    /// Items of this companion's set that watch `inner` came or went. The set's lock is held.
    fn nested_changed(&self, set: &Set, interests: &Interests, inner: &Description);

    /// Items of this companion's set that watch the shared counter `counter` came or went. The set's
    /// lock is held.
    ///
    /// It fails only if one came: the set is not ready for it, or the kernel is out of memory.
    fn listen(&self, set: &Set, interests: &Interests, counter: &Description) -> Result<(), Errno>;

    /// Whether it has members, apart from sets, whose readiness wakes only threads that sleep in
    /// the kernel. Closed members may still count.
    fn has_silent_members(&self) -> bool;

    /// Whether it holds the source of a rotating set, which workers watch there by themselves.
    fn has_source(&self) -> bool;

    /// Whether the interest in that source is level-triggered: the set is ready whenever the source is.
    fn has_level_source(&self) -> bool;

    /// An item of this companion's set reports an event of a rotating set, which did not choose it by
    /// a line of its own. It is the last in that line, too, from the next sleep on. The set's lock is
    /// held.
    fn had_turn(&self, interests: &Interests, item: *const Item);

    /// How many members it has.
    fn len(&self) -> usize;

    /// A line of fdinfo for each member.
    fn show_fdinfo(&self, out: &mut dyn fmt::Write) -> fmt::Result;
}

/// A set's companion, once it has one. The crate's root defines its type, so that the calls to it, one
/// before each system call, are not virtual.
pub(crate) type Companionship = OnceBox<crate::Outside>;

/// For sets that have nothing outside the core.
#[cfg(all(not(feature = "std"), not(upoll_loom)))]
pub(crate) enum Nothing {}

#[cfg(all(not(feature = "std"), not(upoll_loom)))]
impl Companion for Nothing {
    fn is_awaited(&self) -> bool {
        match *self {}
    }

    fn ring(&self, _: &mut Deferred) {
        match *self {}
    }

    fn is_ready(&self, _: &Set, _: bool) -> bool {
        match *self {}
    }

    fn harvest_both(&self, _: &Set, _: &mut [Event]) -> usize {
        match *self {}
    }

    fn restore_found_lost(&self, _: &Description<Set>) -> Result<(), Errno> {
        match *self {}
    }

    fn is_found_lost(&self) -> bool {
        match *self {}
    }

    fn nest_in(&self, _: &Description, _: &Description<Set>) -> Result<(), Errno> {
        match *self {}
    }

    fn nested_changed(&self, _: &Set, _: &Interests, _: &Description) {
        match *self {}
    }

    fn listen(&self, _: &Set, _: &Interests, _: &Description) -> Result<(), Errno> {
        match *self {}
    }

    fn has_silent_members(&self) -> bool {
        match *self {}
    }

    fn has_source(&self) -> bool {
        match *self {}
    }

    fn has_level_source(&self) -> bool {
        match *self {}
    }

    fn had_turn(&self, _: &Interests, _: *const Item) {
        match *self {}
    }

    fn len(&self) -> usize {
        match *self {}
    }

    fn show_fdinfo(&self, _: &mut dyn fmt::Write) -> fmt::Result {
        match *self {}
    }
}

impl Set {
    /// The part of the set that lives outside the core, if it has one.
    #[inline]
    pub(crate) fn companion(&self) -> Option<&crate::Outside> {
        self.companion.get()
    }

    /// Returns the set's companion; makes one if there is none yet. Then it wakes the threads that
    /// sleep without a companion, in the set or in a poll of it, so that they check again.
    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) fn companion_or_insert(
        &self,
        make: impl FnOnce() -> Result<Box<crate::Outside>, Errno>,
    ) -> Result<&crate::Outside, Errno> {
        if let Some(companion) = self.companion() {
            return Ok(companion);
        }
        let companion = self.companion.get_or_try_init(make)?;
        crate::sync::fence(crate::sync::Ordering::SeqCst);
        self.sleepers.wake_all(Events::empty());
        self.watched_by.wake_all(Events::empty());
        Ok(companion)
    }

    /// Wakes all watchers of this set, because its companion has queued something.
    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) fn wake_watchers(&self) {
        if self.rotates {
            self.watched_by.wake_rotate(crate::events::Events::IN);
        } else {
            self.watched_by.wake(crate::events::Events::IN);
        }
    }
}
