//! `epoll_pwait1`: a wait with its clock (seed 4), and changes and a wait in one call.

use std::time::Duration;

use super::{Clock, SigSet, Timeout};
use crate::epoll::Epoll;
use crate::epoll_ctl::CtlCommand;
use crate::errno::Errno;
use crate::events::Event;

/// How an [`Epoll::pwait1`] waits (`struct epoll_wait_params`).
#[derive(Clone, Copy, Debug)]
#[doc(alias = "epoll_wait_params")]
pub struct WaitParams<'a> {
    /// Which version of this structure the caller knows: 0 for the first, or its size.
    pub size: u32,
    /// `CLOCK_REALTIME` (0) or `CLOCK_MONOTONIC` (1).
    pub clockid: i32,
    /// How long to wait at least; None waits however long it takes.
    pub timeout: Option<Timespec>,
    /// The thread's signal mask while it sleeps; None leaves it as it is.
    pub sigmask: Option<&'a SigSet>,
}

/// `struct timespec`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timespec {
    /// Seconds; not negative in a valid one.
    pub tv_sec: i64,
    /// Nanoseconds, from 0 to 999 999 999 in a valid one.
    pub tv_nsec: i64,
}

impl From<Duration> for Timespec {
    fn from(limit: Duration) -> Self {
        Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        }
    }
}

impl Timespec {
    fn limit(self) -> Result<Duration, Errno> {
        let seconds = u64::try_from(self.tv_sec).map_err(|_| Errno::INVAL)?;
        let nanoseconds = u32::try_from(self.tv_nsec).map_err(|_| Errno::INVAL)?;
        if nanoseconds >= 1_000_000_000 {
            return Err(Errno::INVAL);
        }
        Ok(Duration::new(seconds, nanoseconds))
    }
}

/// Waits however long it takes, by `CLOCK_MONOTONIC`.
impl Default for WaitParams<'_> {
    fn default() -> Self {
        WaitParams {
            size: 0,
            clockid: libc::CLOCK_MONOTONIC,
            timeout: None,
            sigmask: None,
        }
    }
}

impl WaitParams<'_> {
    fn check(&self) -> Result<Timeout, Errno> {
        if self.size != 0 && self.size as usize != size_of::<WaitParams<'_>>() {
            return Err(Errno::INVAL);
        }
        let clock = match self.clockid {
            libc::CLOCK_REALTIME => Clock::Realtime,
            libc::CLOCK_MONOTONIC => Clock::Monotonic,
            _ => return Err(Errno::INVAL),
        };
        let limit = self.timeout.map(Timespec::limit).transpose()?;
        Ok(limit.map_or(Timeout::NEVER, |limit| Timeout::after(clock, limit)))
    }
}

impl Epoll {
    /// `epoll_pwait1`: [`wait`](Self::wait) or, with a signal mask, [`pwait`](Self::pwait), by the
    /// clock in `params`.
    ///
    /// # Errors
    /// `EINVAL`: `flags` is not 0; `events` is empty; `params` has a size, a clock or a time that
    /// does not exist. `EINTR` and others as [`wait`](Self::wait) and [`pwait`](Self::pwait).
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// use upoll::{Epoll, Event, WaitParams};
    /// let set = Epoll::new()?;
    /// let params = WaitParams {
    ///     timeout: Some(Duration::from_micros(37).into()),
    ///     ..WaitParams::default()
    /// };
    /// assert_eq!(set.pwait1(0, &mut [Event::default(); 4], &params)?, 0);
    /// # Ok::<(), upoll::Errno>(())
    /// ```
    #[doc(alias = "epoll_pwait1")]
    pub fn pwait1(
        &self,
        flags: u32,
        events: &mut [Event],
        params: &WaitParams<'_>,
    ) -> Result<usize, Errno> {
        if flags != 0 {
            return Err(Errno::INVAL);
        }
        let timeout = params.check()?;
        match params.sigmask {
            Some(mask) => self.pwait(events, timeout, mask),
            None => self.wait(events, timeout),
        }
    }

    /// [`ctl_batch`](Self::ctl_batch) and then, if every command succeeded, [`pwait1`](Self::pwait1)
    /// without flags, in one call.
    ///
    /// Returns the number of commands that succeeded, and the result of the wait if there was one. Errors
    /// in the parameters of the wait are found before anything is changed.
    ///
    /// # Errors
    /// Nothing was done: `EINVAL`: `events` is empty, or `params` is not valid.
    ///
    /// # Example
    /// ```
    /// use upoll::{CtlCommand, Epoll, Event, EventFd, Events, WaitParams};
    /// let set = Epoll::new()?;
    /// let counter = EventFd::new(1)?;
    /// let mut commands = [CtlCommand::add(&counter, Event::new(Events::IN, 7))];
    /// let mut events = [Event::default(); 4];
    /// let (done, ready) = set.ctl_batch_wait(&mut commands, &mut events, &WaitParams::default())?;
    /// assert_eq!((done, ready), (1, Some(Ok(1))));
    /// # Ok::<(), upoll::Errno>(())
    /// ```
    pub fn ctl_batch_wait(
        &self,
        commands: &mut [CtlCommand<'_>],
        events: &mut [Event],
        params: &WaitParams<'_>,
    ) -> Result<(usize, Option<Result<usize, Errno>>), Errno> {
        params.check()?;
        if events.is_empty() {
            return Err(Errno::INVAL);
        }
        if commands.is_empty() {
            return Ok((0, Some(self.pwait1(0, events, params))));
        }
        let done = self.ctl_batch(0, commands)?;
        if done < commands.len() {
            return Ok((done, None));
        }
        Ok((done, Some(self.pwait1(0, events, params))))
    }
}
