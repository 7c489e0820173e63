//! The reasons why a message was not sent, or why none was received.

use core::error::Error;
use core::fmt::{self, Debug, Display, Formatter};

/// A [`try_send`](super::Sender::try_send) that failed, with its message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TrySendError<T> {
    /// There is no room.
    Full(T),
    /// All receivers are gone.
    Disconnected(T),
}

/// A send that failed because all receivers are gone, with its message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SendError<T>(pub T);

/// A send with a time limit that failed, with its message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SendTimeoutError<T> {
    /// There was no room within the time limit.
    Timeout(T),
    /// All receivers are gone.
    Disconnected(T),
}

/// A [`try_recv`](super::Receiver::try_recv) that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryRecvError {
    /// There is no message yet.
    Empty,
    /// There is no message, and all senders are gone.
    Disconnected,
}

/// A receive that failed: there is no message, and all senders are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvError;

/// A receive with a time limit that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvTimeoutError {
    /// There was no message within the time limit.
    Timeout,
    /// There is no message, and all senders are gone.
    Disconnected,
}

const FULL: &str = "the channel is full";
const EMPTY: &str = "the channel is empty";
const TIMEOUT: &str = "the time limit has passed";
const NO_RECEIVER: &str = "all receivers of the channel are gone";
const NO_SENDER: &str = "all senders of the channel are gone";

impl<T> TrySendError<T> {
    /// Returns the message.
    #[must_use]
    pub fn into_inner(self) -> T {
        match self {
            TrySendError::Full(message) | TrySendError::Disconnected(message) => message,
        }
    }

    fn variant(&self) -> (&'static str, &'static str) {
        match self {
            TrySendError::Full(_) => ("Full(..)", FULL),
            TrySendError::Disconnected(_) => ("Disconnected(..)", NO_RECEIVER),
        }
    }
}

impl<T> SendError<T> {
    /// Returns the message.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.0
    }

    #[expect(clippy::unused_self, reason = "as the other errors")]
    fn variant(&self) -> (&'static str, &'static str) {
        ("SendError(..)", NO_RECEIVER)
    }
}

impl<T> SendTimeoutError<T> {
    /// Returns the message.
    #[must_use]
    pub fn into_inner(self) -> T {
        match self {
            SendTimeoutError::Timeout(message) | SendTimeoutError::Disconnected(message) => message,
        }
    }

    fn variant(&self) -> (&'static str, &'static str) {
        match self {
            SendTimeoutError::Timeout(_) => ("Timeout(..)", TIMEOUT),
            SendTimeoutError::Disconnected(_) => ("Disconnected(..)", NO_RECEIVER),
        }
    }
}

/// Messages need not be [`Debug`] themselves.
macro_rules! with_message {
    ($($error:ident),*) => { $(
        impl<T> Debug for $error<T> {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.write_str(self.variant().0)
            }
        }

        impl<T> Display for $error<T> {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.write_str(self.variant().1)
            }
        }

        impl<T> Error for $error<T> {}
    )* };
}

with_message!(TrySendError, SendError, SendTimeoutError);

impl Display for TryRecvError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TryRecvError::Empty => EMPTY,
            TryRecvError::Disconnected => NO_SENDER,
        })
    }
}

impl Display for RecvError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(NO_SENDER)
    }
}

impl Display for RecvTimeoutError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RecvTimeoutError::Timeout => TIMEOUT,
            RecvTimeoutError::Disconnected => NO_SENDER,
        })
    }
}

impl Error for TryRecvError {}
impl Error for RecvError {}
impl Error for RecvTimeoutError {}
