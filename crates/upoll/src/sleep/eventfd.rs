//! `read(2)` and `write(2)` on an eventfd that waits.

use super::blocking::{until_done, until_done_by_any};
use crate::errno::Errno;
use crate::eventfd::{Direction, EventFd};
use crate::wait::Place;

impl EventFd {
    /// Takes the count, or one of it from a semaphore; waits while it is 0.
    ///
    /// All blocked readers and writers are woken by each change and try again; which of them gets
    /// it is not specified, as in Linux. A signal handler with `SA_RESTART` does not end the wait.
    ///
    /// # Errors
    /// `EAGAIN`: the count is 0 and the object is `NONBLOCK`. `EINTR`: a signal handler without
    /// `SA_RESTART` ran. `ESTALE`: it was [demoted](Self::demote).
    #[inline]
    pub fn read(&self) -> Result<u64, Errno> {
        self.blocking(Direction::In, Self::try_read)
    }

    /// Adds `value`; waits while the sum would reach the maximum.
    ///
    /// # Errors
    /// `EINVAL`: `value` is `u64::MAX`. `EAGAIN`: it does not fit and the object is `NONBLOCK`.
    /// `EINTR`: a signal handler without `SA_RESTART` ran. `ESTALE`: it was
    /// [demoted](Self::demote).
    #[inline]
    pub fn write(&self, value: u64) -> Result<(), Errno> {
        self.blocking(Direction::Out, |this| this.try_write(value))
    }

    #[inline]
    fn blocking<T>(
        &self,
        direction: Direction,
        attempt: impl Fn(&Self) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match attempt(self) {
            Err(Errno::AGAIN) if !self.is_nonblocking() => self.block(direction, attempt),
            done => done,
        }
    }

    #[cold]
    fn block<T>(
        &self,
        direction: Direction,
        attempt: impl Fn(&Self) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        if let Some(counter) = self.shared_counter() {
            return until_done_by_any(counter, direction, || attempt(self));
        }
        until_done(self.wait_queue(), Place::Shared, |_| match attempt(self) {
            Err(Errno::AGAIN) if self.is_stale() => Err(Errno::STALE),
            done => done,
        })
    }
}
