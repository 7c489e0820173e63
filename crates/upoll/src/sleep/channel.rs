//! Sends and receives that wait.

use super::blocking::until_done_or;
use super::timeout::{Deadline, Timeout};
use crate::channel::{
    Receiver, RecvError, RecvTimeoutError, SendError, SendTimeoutError, Sender, TryRecvError,
    TrySendError,
};
use crate::errno::Errno;
use crate::wait::Place;

impl<T> Sender<T> {
    /// Sends `message`; waits while there is no room.
    ///
    /// Blocked senders are woken one at a time, in the order in which they came, and each wakes the next if
    /// it leaves room. A thread that calls meanwhile may take the room first. The woken thread then waits again,
    /// at the end of the line. A signal handler does not end the wait.
    ///
    /// # Errors
    /// [`SendError`] returns the message: all receivers are gone.
    #[inline]
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        match self.try_send(message) {
            Ok(()) => Ok(()),
            Err(TrySendError::Disconnected(message)) => Err(SendError(message)),
            Err(TrySendError::Full(message)) => self
                .send_asleep(message, Deadline::NeverRestart)
                .map_err(|error| SendError(error.into_inner())),
        }
    }

    /// Sends `message`; waits up to the time limit while there is no room. Waits as [`send`](Self::send).
    ///
    /// # Errors
    /// They return the message. [`Timeout`](SendTimeoutError::Timeout): there was no room within the time
    /// limit. [`Disconnected`](SendTimeoutError::Disconnected): all receivers are gone.
    pub fn send_timeout(
        &self,
        message: T,
        timeout: impl Into<Timeout>,
    ) -> Result<(), SendTimeoutError<T>> {
        match self.try_send(message) {
            Ok(()) => Ok(()),
            Err(TrySendError::Disconnected(message)) => {
                Err(SendTimeoutError::Disconnected(message))
            }
            Err(TrySendError::Full(message)) => {
                self.send_asleep(message, timeout.into().deadline())
            }
        }
    }

    #[cold]
    fn send_asleep(&self, message: T, deadline: Deadline) -> Result<(), SendTimeoutError<T>> {
        let channel = self.shared();
        let mut unsent = Some(message);
        loop {
            let ended = until_done_or(channel.writers(), Place::ExclusiveTail, deadline, |_| {
                let Some(message) = unsent.take() else {
                    return Ok(());
                };
                match channel.try_send(message) {
                    Ok(()) => Ok(()),
                    Err(TrySendError::Full(message)) => {
                        unsent = Some(message);
                        Err(Errno::AGAIN)
                    }
                    Err(TrySendError::Disconnected(message)) => {
                        unsent = Some(message);
                        Ok(())
                    }
                }
            });
            match (ended, unsent.take()) {
                (_, None) => break,
                (Ok(()), Some(message)) => return Err(SendTimeoutError::Disconnected(message)),
                // A signal handler ran.
                (Err(Errno::INTR), message) => unsent = message,
                (Err(_), Some(message)) => return Err(SendTimeoutError::Timeout(message)),
            }
        }
        if !channel.is_full() {
            channel.wake_writers();
        }
        Ok(())
    }
}

impl<T> Receiver<T> {
    /// Takes the oldest message; waits while there is none.
    ///
    /// Blocked receivers are woken one at a time, in the order in which they came, and each wakes the next
    /// if it leaves messages. A thread that calls meanwhile may take the message first. The woken thread then
    /// waits again, at the end of the line. A signal handler does not end the wait.
    ///
    /// # Errors
    /// [`RecvError`]: there is no message, and all senders are gone.
    #[inline]
    pub fn recv(&self) -> Result<T, RecvError> {
        match self.try_recv() {
            Ok(message) => Ok(message),
            Err(TryRecvError::Disconnected) => Err(RecvError),
            Err(TryRecvError::Empty) => self
                .recv_asleep(Deadline::NeverRestart)
                .map_err(|_| RecvError),
        }
    }

    /// Takes the oldest message; waits up to the time limit while there is none. Waits as
    /// [`recv`](Self::recv).
    ///
    /// # Errors
    /// [`Timeout`](RecvTimeoutError::Timeout): there was no message within the time limit.
    /// [`Disconnected`](RecvTimeoutError::Disconnected): there is no message, and all senders are gone.
    pub fn recv_timeout(&self, timeout: impl Into<Timeout>) -> Result<T, RecvTimeoutError> {
        match self.try_recv() {
            Ok(message) => Ok(message),
            Err(TryRecvError::Disconnected) => Err(RecvTimeoutError::Disconnected),
            Err(TryRecvError::Empty) => self.recv_asleep(timeout.into().deadline()),
        }
    }

    /// Returns an iterator that takes messages as [`recv`](Self::recv) does. It ends when there is no message
    /// and all senders are gone.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        core::iter::from_fn(|| self.recv().ok())
    }

    #[cold]
    fn recv_asleep(&self, deadline: Deadline) -> Result<T, RecvTimeoutError> {
        let channel = self.shared();
        let message =
            loop {
                let ended =
                    until_done_or(channel.readers(), Place::ExclusiveTail, deadline, |_| {
                        match channel.try_recv() {
                            Ok(message) => Ok(Some(message)),
                            Err(TryRecvError::Empty) => Err(Errno::AGAIN),
                            Err(TryRecvError::Disconnected) => Ok(None),
                        }
                    });
                match ended {
                    Ok(Some(message)) => break message,
                    Ok(None) => return Err(RecvTimeoutError::Disconnected),
                    // A signal handler ran.
                    Err(Errno::INTR) => {}
                    Err(_) => return Err(RecvTimeoutError::Timeout),
                }
            };
        if !channel.is_empty() {
            channel.wake_readers();
        }
        Ok(message)
    }
}
