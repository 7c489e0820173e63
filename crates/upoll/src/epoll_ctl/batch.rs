//! `epoll_ctl_batch` of the patch of that name: many changes in one call.

#[cfg(all(feature = "std", not(upoll_loom)))]
use std::os::fd::BorrowedFd;

use crate::Epoll;
use crate::epoll::Op;
use crate::epoll::ctl_pass::CtlPass;
use crate::errno::Errno;
use crate::events::Event;
use crate::target::{Source, Target};

/// One change of a batch (`struct epoll_ctl_cmd`).
#[derive(Clone, Copy, Debug)]
#[doc(alias = "epoll_ctl_cmd")]
#[non_exhaustive]
pub struct CtlCommand<'a> {
    /// The operation.
    pub op: Op,
    /// The file that it concerns.
    pub target: Target<'a>,
    /// The events of interest, and their data. DEL ignores it.
    pub interest: Event,
    /// The result of the command. Only commands that were executed are written.
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
    fn modified_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.target.kernel().filter(|_| self.op == Op::Mod)
    }

    /// A command of any operation.
    #[must_use]
    pub const fn new(op: Op, target: Target<'a>, interest: Event) -> Self {
        CtlCommand {
            op,
            target,
            interest,
            result: Ok(()),
        }
    }
}

/// The number of neighbouring MODs of kernel fds that share one check of the set's own fd. The check costs nearly as
/// much as a MOD. Shared by 64, which take about 10 µs, it adds 1.5 %.
#[cfg(all(feature = "std", not(upoll_loom)))]
const MODS_OF_A_CHECK: usize = 64;

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
    /// `EINVAL`: there are no commands. A command fails as [`ctl`](Self::ctl) does, in its own result.
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
    /// assert_eq!(set.ctl_batch(&mut commands)?, 1);
    /// assert_eq!(commands[1].result, Err(Errno::NOENT));
    /// # Ok::<(), Errno>(())
    /// ```
    #[doc(alias = "epoll_ctl_batch")]
    pub fn ctl_batch(&self, commands: &mut [CtlCommand<'_>]) -> Result<usize, Errno> {
        if commands.is_empty() {
            return Err(Errno::INVAL);
        }
        let (mut done, result) = self.modify_descriptors(commands);
        // Else there is nothing of the core's, and no need to prepare for that.
        if result.is_ok() && done < commands.len() {
            done = self.ctl_from(done, commands);
        }
        for executed in commands.iter().take(done + 1) {
            self.trace_change(
                executed.op,
                executed.target,
                executed.interest,
                executed.result,
            );
        }
        Ok(done)
    }

    /// The commands at the head that [modify a descriptor](CtlCommand::modified_descriptor), until one
    /// fails: how many of them succeeded, and how the last went.
    #[inline]
    fn modify_descriptors(&self, commands: &mut [CtlCommand<'_>]) -> (usize, Result<(), Errno>) {
        #[cfg(all(feature = "std", not(upoll_loom)))]
        if self.set().backend().is_some() {
            for (at, command) in commands.iter_mut().enumerate() {
                let Some(descriptor) = command.modified_descriptor() else {
                    return (at, Ok(()));
                };
                let interest = &command.interest;
                command.result = match at % MODS_OF_A_CHECK {
                    0 => crate::host::ctl(self, Op::Mod, descriptor, interest),
                    _ => crate::host::modify_once_more(self, descriptor, interest),
                };
                if command.result.is_err() {
                    return (at, command.result);
                }
            }
            return (commands.len(), Ok(()));
        }
        let _ = commands;
        (0, Ok(()))
    }

    /// Executes the rest of a batch from the command `at` on. Returns how many of all have succeeded.
    #[inline(never)]
    fn ctl_from(&self, mut at: usize, commands: &mut [CtlCommand<'_>]) -> usize {
        let mut pass = CtlPass::new(&self.file);
        while let Some(command) = commands.get_mut(at) {
            if command.target.is_file() {
                let result = apply(self, &mut pass, command);
                command.result = result;
                if result.is_err() {
                    break;
                }
                at += 1;
            } else {
                let (done, result) = apply_in_kernel(self, &mut pass, &mut commands[at..]);
                at += done;
                if result.is_err() {
                    break;
                }
            }
        }
        at
    }
}

/// Executes the first of `commands`, which concerns a kernel fd, and the MODs of kernel fds that
/// directly follow. Returns the same as [`modify_descriptors`](Epoll::modify_descriptors).
fn apply_in_kernel(
    epoll: &Epoll,
    pass: &mut CtlPass<'_>,
    commands: &mut [CtlCommand<'_>],
) -> (usize, Result<(), Errno>) {
    pass.pause();
    let (done, result) = epoll.modify_descriptors(commands);
    if done > 0 || result.is_err() {
        return (done, result);
    }
    let result = apply(epoll, pass, &commands[0]);
    commands[0].result = result;
    (usize::from(result.is_ok()), result)
}

#[inline(always)]
fn apply(epoll: &Epoll, pass: &mut CtlPass<'_>, command: &CtlCommand<'_>) -> Result<(), Errno> {
    let (op, interest) = (command.op, &command.interest);
    match command.target {
        // Two words, not a copy of both in one: a copy that is read in other pieces than it was
        // written in makes the CPU wait.
        Target::File(file) if op == Op::Mod => {
            pass.modify(file.0, interest.events(), interest.data())
        }
        target => apply_otherwise(epoll, pass, op, target, interest),
    }
}

#[inline(never)]
fn apply_otherwise(
    epoll: &Epoll,
    pass: &mut CtlPass<'_>,
    op: Op,
    target: Target<'_>,
    interest: &Event,
) -> Result<(), Errno> {
    match target {
        Target::File(file) if CtlPass::takes(op, file.0) => {
            pass.add_or_delete(op, file.0, interest)
        }
        target => {
            pass.pause();
            epoll.ctl_untraced(op, target, *interest)
        }
    }
}
