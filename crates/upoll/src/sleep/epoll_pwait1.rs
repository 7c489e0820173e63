//! `epoll_pwait1` of the patch of that name: a wait by a chosen clock, and changes and a wait in one call.

use super::{SigSet, Timeout};
use crate::Epoll;
use crate::epoll_ctl::CtlCommand;
use crate::errno::Errno;
use crate::events::Event;

/// The outcome of an [`Epoll::ctl_batch_wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchWait {
    /// The number of commands that succeeded.
    pub done: usize,
    /// The result of the wait: how many events there are. `None` if a command failed, so that there was no
    /// wait; the command's own [`result`](CtlCommand::result) is the reason.
    pub ready: Option<Result<usize, Errno>>,
}

impl Epoll {
    /// `epoll_pwait1`: [`wait`](Self::wait) or, with a signal mask, [`pwait`](Self::pwait). The limit is in
    /// nanoseconds, by the clock of [`Timeout::after`].
    ///
    /// # Errors
    /// `EINVAL`: `events` is empty. `EINTR` and others as [`wait`](Self::wait) and [`pwait`](Self::pwait).
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// use upoll::{Clock, Epoll, Event, Timeout};
    /// let set = Epoll::new()?;
    /// let timeout = Timeout::after(Clock::Realtime, Duration::from_micros(37));
    /// assert_eq!(set.pwait1(&mut [Event::default(); 4], timeout, None)?, 0);
    /// # Ok::<(), upoll::Errno>(())
    /// ```
    #[doc(alias = "epoll_pwait1")]
    pub fn pwait1(
        &self,
        events: &mut [Event],
        timeout: impl Into<Timeout>,
        sigmask: Option<&SigSet>,
    ) -> Result<usize, Errno> {
        match sigmask {
            Some(mask) => self.pwait(events, timeout, mask),
            None => self.wait(events, timeout),
        }
    }

    /// [`ctl_batch`](Self::ctl_batch) and then, if every command succeeded, [`pwait1`](Self::pwait1), in one
    /// call. Without commands it is a wait.
    ///
    /// # Errors
    /// `EINVAL`: `events` is empty; no command was executed. Commands and the wait fail in their own results.
    ///
    /// # Example
    /// ```
    /// use upoll::{CtlCommand, Epoll, Event, EventFd, Events, Timeout};
    /// let set = Epoll::new()?;
    /// let counter = EventFd::new(1)?;
    /// let mut commands = [CtlCommand::add(&counter, Event::new(Events::IN, 7))];
    /// let mut events = [Event::default(); 4];
    /// let outcome = set.ctl_batch_wait(&mut commands, &mut events, Timeout::NEVER, None)?;
    /// assert_eq!((outcome.done, outcome.ready), (1, Some(Ok(1))));
    /// # Ok::<(), upoll::Errno>(())
    /// ```
    pub fn ctl_batch_wait(
        &self,
        commands: &mut [CtlCommand<'_>],
        events: &mut [Event],
        timeout: impl Into<Timeout>,
        sigmask: Option<&SigSet>,
    ) -> Result<BatchWait, Errno> {
        if events.is_empty() {
            return Err(Errno::INVAL);
        }
        let done = match commands.is_empty() {
            true => 0,
            false => self.ctl_batch(commands)?,
        };
        let waits = done == commands.len();
        Ok(BatchWait {
            done,
            ready: waits.then(|| self.pwait1(events, timeout, sigmask)),
        })
    }
}
