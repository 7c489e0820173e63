//! `epoll_ctl_batch`: many changes in one call (seed 4).

#[cfg(all(feature = "std", not(upoll_loom)))]
use std::os::fd::{AsRawFd, RawFd};

use arrayvec::ArrayVec;
use smallvec::SmallVec;

use super::ctl::{Forgotten, is_added_alone};
use super::interest::{Interests, Item};
use super::{Epoll, Op, Set};
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::file::FileRef;
use crate::sync::MutexGuard;
use crate::target::{Source, Target};
use crate::wait::Deferred;

/// One change of a batch (`struct epoll_ctl_cmd`).
#[derive(Clone, Copy, Debug)]
#[doc(alias = "epoll_ctl_cmd")]
pub struct CtlCommand<'a> {
    /// Must be 0: there are no flags yet.
    pub flags: u32,
    /// The operation.
    pub op: Op,
    /// The file that it concerns.
    pub target: Target<'a>,
    /// The events of interest, and their data. DEL ignores it.
    pub interest: Event,
    /// How it went. Only those commands are written that were executed.
    pub result: Result<(), Errno>,
}

impl<'a> CtlCommand<'a> {
    /// `EPOLL_CTL_ADD`, see [`Epoll::add`].
    #[must_use]
    pub fn add(source: &'a (impl Source + ?Sized), interest: Event) -> Self {
        Self::new(Op::Add, source.target(), interest)
    }

    /// `EPOLL_CTL_MOD`, see [`Epoll::modify`].
    #[must_use]
    pub fn modify(source: &'a (impl Source + ?Sized), interest: Event) -> Self {
        Self::new(Op::Mod, source.target(), interest)
    }

    /// `EPOLL_CTL_DEL`, see [`Epoll::delete`].
    #[must_use]
    pub fn delete(source: &'a (impl Source + ?Sized)) -> Self {
        Self::new(Op::Del, source.target(), Event::default())
    }

    /// The kernel fd whose interest this is to change, if it is one.
    #[cfg(all(feature = "std", not(upoll_loom)))]
    #[inline]
    pub(crate) fn modified_descriptor(&self) -> Option<RawFd> {
        let is_plain = self.flags == 0 && self.op == Op::Mod;
        let descriptor = self.target.kernel().filter(|_| is_plain)?;
        Some(descriptor.as_raw_fd())
    }

    /// Any operation.
    #[must_use]
    pub const fn new(op: Op, target: Target<'a>, interest: Event) -> Self {
        CtlCommand {
            flags: 0,
            op,
            target,
            interest,
            result: Ok(()),
        }
    }
}

impl Epoll {
    /// `epoll_ctl_batch`: applies `commands` in their order, stops at the first that fails, and returns
    /// the number that succeeded.
    ///
    /// Each executed command has its own [`result`](CtlCommand::result). If the count is less than
    /// the number of commands, the result of the command at that index is the reason. The commands
    /// before it stay applied: a batch is not atomic, and other threads may see it half done.
    /// Neighbouring changes to user-level members share one pass under the set's lock.
    ///
    /// # Errors
    /// Nothing was done: `EINVAL`: `flags` is not 0, or there are no commands.
    /// A command fails as [`ctl`](Self::ctl) does, and with `EINVAL` if its own flags are not 0.
    ///
    /// # Example
    /// ```
    /// use upoll::{CtlCommand, Epoll, Errno, Event, EventFd, Events};
    /// let set = Epoll::new()?;
    /// let (a, b) = (EventFd::new(0)?, EventFd::new(0)?);
    /// let interest = Event::new(Events::IN, 0);
    /// let mut commands = [
    ///     CtlCommand::add(&a, interest),
    ///     CtlCommand::modify(&b, interest),
    ///     CtlCommand::add(&b, interest),
    /// ];
    /// assert_eq!(set.ctl_batch(0, &mut commands)?, 1);
    /// assert_eq!(commands[1].result, Err(Errno::NOENT));
    /// # Ok::<(), Errno>(())
    /// ```
    #[doc(alias = "epoll_ctl_batch")]
    pub fn ctl_batch(&self, flags: u32, commands: &mut [CtlCommand<'_>]) -> Result<usize, Errno> {
        if flags != 0 || commands.is_empty() {
            return Err(Errno::INVAL);
        }
        let (done, result) = self.modify_descriptors(commands);
        if result.is_err() || done == commands.len() {
            // Nothing of the core's, and no need to prepare for that.
            return Ok(done);
        }
        Ok(self.ctl_from(done, commands))
    }

    /// The commands at the head that [modify a descriptor](CtlCommand::modified_descriptor), until one
    /// fails: how many of them succeeded, and how the last went.
    #[inline]
    fn modify_descriptors(&self, commands: &mut [CtlCommand<'_>]) -> (usize, Result<(), Errno>) {
        #[cfg(all(feature = "std", not(upoll_loom)))]
        if commands[0].modified_descriptor().is_some()
            && let Some(backend) = self.set().backend()
        {
            return backend.modify_several(self, commands);
        }
        let _ = commands;
        (0, Ok(()))
    }

    /// The rest of a batch from the command `at` on; how many of all have succeeded.
    #[inline(never)]
    fn ctl_from(&self, mut at: usize, commands: &mut [CtlCommand<'_>]) -> usize {
        let mut pass = Pass {
            epoll: self,
            inner: None,
            changed: ArrayVec::new(),
            looked_at: 0,
            deferred: Deferred::new(),
            left: SmallVec::new(),
        };
        while let Some(command) = commands.get_mut(at) {
            if command.target.is_file() {
                let result = pass.apply(command);
                command.result = result;
                if result.is_err() {
                    break;
                }
                at += 1;
            } else {
                let (done, result) = pass.apply_outside(&mut commands[at..]);
                at += done;
                if result.is_err() {
                    break;
                }
            }
        }
        at
    }
}

/// A stretch of a batch under one hold of the set's lock. The fields end in their order: first the
/// lock, then what was put off until it is free.
struct Pass<'a> {
    epoll: &'a Epoll,
    inner: Option<MutexGuard<'a, Interests>>,
    /// Items that MODs changed, in their order: neighbours share the fence between the change and
    /// the look. All are registered, and all before `looked_at` have been looked at.
    changed: ArrayVec<*const Item, { Pass::CHANGES }>,
    looked_at: usize,
    deferred: Deferred,
    left: SmallVec<[Left; Pass::ROOM]>,
}

/// [`Forgotten`] that is finished when it ends.
struct Left(Option<Forgotten>);

impl Drop for Left {
    fn drop(&mut self) {
        if let Some(forgotten) = self.0.take() {
            forgotten.finish();
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        // Also if a foreign `poll` panics: the other items are looked at all the same.
        self.look_at_changed();
    }
}

impl Pass<'_> {
    /// How many items may be changed before they are looked at.
    const CHANGES: usize = 64;
    /// How many items may be removed before the lock is released to finish them.
    const ROOM: usize = 16;

    /// Executes the first of `commands`, which is not for the core, and the MODs of kernel fds that
    /// directly follow. Returns the same as [`modify_descriptors`](Epoll::modify_descriptors).
    fn apply_outside(&mut self, commands: &mut [CtlCommand<'_>]) -> (usize, Result<(), Errno>) {
        self.pause();
        let (done, result) = self.epoll.modify_descriptors(commands);
        if done > 0 || result.is_err() {
            return (done, result);
        }
        let result = self.apply(&commands[0]);
        commands[0].result = result;
        (usize::from(result.is_ok()), result)
    }

    #[inline(always)]
    fn apply(&mut self, command: &CtlCommand<'_>) -> Result<(), Errno> {
        if command.flags != 0 {
            return Err(Errno::INVAL);
        }
        let (op, interest) = (command.op, &command.interest);
        match command.target {
            // Two words, not a copy of both in one: a copy that is read in other pieces than it was
            // written in makes the CPU wait.
            Target::File(file) if op == Op::Mod => {
                self.modify(file, interest.events(), interest.data())
            }
            target => self.apply_otherwise(op, target, interest),
        }
    }

    #[inline(never)]
    fn apply_otherwise(
        &mut self,
        op: Op,
        target: Target<'_>,
        interest: &Event,
    ) -> Result<(), Errno> {
        match target {
            Target::File(file) if op == Op::Del || !is_added_alone(file.description()) => {
                self.look_at_changed();
                self.make_room();
                let epoll = self.epoll;
                let inner = self.inner.get_or_insert_with(|| epoll.set().inner.lock());
                let mut left = None;
                let deferred = &mut self.deferred;
                let result = epoll.ctl_locked(inner, op, file, *interest, &mut left, deferred);
                self.leave(left);
                result
            }
            target => {
                self.pause();
                self.epoll.ctl(op, target, *interest)
            }
        }
    }

    #[inline(always)]
    fn modify(&mut self, file: FileRef<'_>, events: Events, data: u64) -> Result<(), Errno> {
        let epoll = self.epoll;
        let key = (file.identity(), file.number());
        epoll.check_modify(key.0, events)?;
        if self.changed.is_full() {
            self.look_at_changed();
            self.make_room();
        }
        let set = epoll.set();
        let inner = self.inner.get_or_insert_with(|| set.inner.lock());
        let publish = Item::set_interest_unfenced;
        self.changed
            .push(set.change_interest(inner, key, events, data, publish)?);
        Ok(())
    }

    /// The second half of the MODs so far.
    fn look_at_changed(&mut self) {
        let Some(inner) = &mut self.inner else { return };
        let changed = self.changed.as_slice();
        let [.., last] = changed else { return };
        if self.looked_at == 0 {
            // SAFETY: as below.
            unsafe { (**last).fence_interest() };
        }
        while let Some(&item) = changed.get(self.looked_at) {
            self.looked_at += 1;
            // SAFETY: it was found in the table, the lock has been held since, and nothing has been
            // removed since: whatever removes items looks at the changed ones first.
            unsafe {
                if Set::is_idle_plain(&*item) {
                    continue;
                }
                let mut left = None;
                (*item).interest_was_set();
                let set = self.epoll.set();
                set.look_after_change(inner, item, &mut left, &mut self.deferred);
                if left.is_some() {
                    self.left.push(Left(left));
                }
            }
        }
        self.changed.clear();
        self.looked_at = 0;
    }

    fn leave(&mut self, left: Option<Forgotten>) {
        if left.is_some() {
            self.left.push(Left(left));
        }
    }

    /// Releases the lock if too many removed items wait for that.
    fn make_room(&mut self) {
        if self.left.len() >= Self::ROOM {
            self.pause();
        }
    }

    /// Releases the lock, and does what had to wait for that.
    #[inline]
    fn pause(&mut self) {
        if self.inner.is_some() {
            self.let_go();
        }
    }

    #[inline(never)]
    fn let_go(&mut self) {
        self.look_at_changed();
        self.inner = None;
        self.deferred.run();
        self.left.clear();
    }
}
