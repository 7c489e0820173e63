//! The kernel backend of a set: members that the core cannot poll itself.
//!
//! The core knows nothing of kernel fds. The layer above adds a backend to a set with the first
//! member of that kind, or when threads have to sleep where the backend can wake them. From then
//! on the core asks the backend what is ready in the kernel, and wakes the threads that sleep
//! there through it. A backend stays for the set's life.

use alloc::boxed::Box;
use core::fmt;

use super::Set;
use super::interest::LockedSet;
use crate::errno::Errno;
use crate::events::Event;
use crate::file::{Description, InKernel};
use crate::sync::OnceBox;
use crate::wait::Deferred;

/// The core's interface to the kernel backend of a set. A call to it is virtual, and comes before a system call
/// mostly.
pub trait KernelBackend: InKernel {
    /// Returns whether a thread sleeps there, so that [`wake_one`](Self::wake_one) would wake it.
    fn is_awaited(&self) -> bool;

    /// Returns whether a thread sleeps there to which no wakeup is on its way.
    fn has_unwoken_thread(&self) -> bool;

    /// Wakes one thread that sleeps there, once all locks are free.
    fn wake_one(&self, deferred: &mut Deferred);

    /// Returns whether anything is ready there. Nothing is consumed. With `for_item` a set above asks, for its item.
    fn is_ready(&self, set: &Set, for_item: bool) -> bool;

    /// Fills `out` with what is ready there and in the core. The two take turns to come first.
    fn harvest_both(&self, set: &Set, out: &mut [Event]) -> usize;

    /// Makes the backend's kernel sets anew that the program has closed, once a call has found
    /// one lost.
    ///
    /// # Errors
    /// The kernel has no fds or memory for it.
    fn restore_found_lost(&self, description: &Description<Set>) -> Result<(), Errno>;

    /// Returns whether a call has met a file that the program has closed, and that was not made anew yet, or
    /// not completely.
    fn is_found_lost(&self) -> bool;

    /// Returns how often any call has met such a file: if that has changed, what a look has found may not be all.
    fn losses(&self) -> u32;

    /// Reports to `outer`, which watches `inner`, what becomes ready in this backend of `inner`.
    fn nest_in(&self, inner: &Description, outer: &Description<Set>) -> Result<(), Errno>;

    /// Items of this backend's set, which is `locked`, that watch `inner` came or went.
    fn nested_changed(&self, locked: &LockedSet<'_>, inner: &Description);

    /// Items of this backend's set, which is `locked`, that watch the shared counter `counter` came or went.
    ///
    /// It fails only if one came: the set is not ready for it, or the kernel is out of memory.
    fn listen(&self, locked: &LockedSet<'_>, counter: &Description) -> Result<(), Errno>;

    /// Returns whether it has members, apart from sets, whose readiness wakes only threads that sleep in
    /// the kernel. Closed members may still count.
    fn has_silent_members(&self) -> bool;

    /// Makes a thread wait for events of `set` in the kernel. The thread wakes the callbacks and tasks that wait for the set.
    ///
    /// # Errors
    /// `EPERM`: no thread can. `EAGAIN`, `EMFILE`, `ENFILE`, `ENOMEM`, `ENOSPC`: the kernel has no thread, fd or memory for
    /// it. `EINVAL`, `ELOOP`: the kernel fds in sets below are nested too deep.
    fn attend(&self, _set: &Description<Set>) -> Result<(), Errno> {
        Err(Errno::PERM)
    }

    /// Ends that, unless another callback waits for the set by now.
    fn end_attendance(&self, _set: &Set) {}

    /// The set is closed, and watched by nobody any more.
    fn close(&self);

    /// Returns whether it holds the source of a rotating set, which workers watch there by themselves.
    fn has_source(&self) -> bool;

    /// Returns whether members in the kernel are ready, by a call that waits for a scan of another thread. (A harvest, which does
    /// not wait, may find nothing beside it.)
    fn has_ready_members(&self) -> bool;

    /// Returns whether the interest in that source is level-triggered: the set is ready whenever the source is.
    fn has_level_source(&self) -> bool;

    /// The item in `slot` of this backend's set reports an event of a rotating set. It is the last in the line of that
    /// set's source, too, from the next sleep on. The set's lock is held.
    fn had_turn(&self, slot: u32);

    /// The slack of `set`, which is this backend's, was changed.
    fn apply_slack(&self, set: &Set);

    /// The item in `slot` of this backend's set has left the event for which the rotating set's source chose it to
    /// another worker. It keeps its place in the source's line. The set's lock is held.
    fn left_turn(&self, slot: u32);

    /// Returns how many members it has.
    fn count(&self) -> usize;

    /// Writes a line of fdinfo for each member.
    fn show_fdinfo(&self, out: &mut dyn fmt::Write) -> fmt::Result;
}

/// A set's kernel backend, once it has one.
pub(crate) type OptionalBackend = OnceBox<Box<dyn KernelBackend>>;

impl Set {
    /// Returns the set's kernel backend, if it has one.
    #[inline]
    pub fn backend(&self) -> Option<&dyn KernelBackend> {
        self.backend.get().map(|backend| &**backend)
    }

    /// Returns the set's kernel backend, which `make` makes if there is none yet. Then it wakes the threads that
    /// sleep without a backend, in the set or in a poll of it, so that they check again.
    #[cfg(any(feature = "std", upoll_loom))]
    pub fn backend_or_insert(
        &self,
        make: impl FnOnce() -> Result<Box<dyn KernelBackend>, Errno>,
    ) -> Result<&dyn KernelBackend, Errno> {
        if let Some(backend) = self.backend() {
            return Ok(backend);
        }
        let backend = self
            .backend
            .get_or_try_init(|| crate::memory::boxed(make()?))?;
        crate::sync::fence(crate::sync::Ordering::SeqCst);
        self.sleepers.wake_all(crate::events::Events::empty());
        self.watched_by.wake_all(crate::events::Events::empty());
        Ok(&**backend)
    }

    /// Wakes all watchers of this set, because its backend has queued something.
    #[cfg(any(feature = "std", upoll_loom))]
    pub fn wake_watchers(&self) {
        if self.rotates {
            self.watched_by.wake_rotate(crate::events::Events::IN);
        } else {
            self.watched_by.wake(crate::events::Events::IN);
        }
    }
}
