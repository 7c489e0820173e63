//! Channels: messages of one type from any number of senders to any number of receivers, in their order.
//!
//! Both ends are files as those of a pipe are: `Epoll`, `poll`, `select`, `PollContext`, `Watch` and
//! `Readiness` wait for them together with anything else, such as a socket.
//!
//! # Readiness
//! As that of a pipe of Linux 6.18 that holds as many messages, each of them a packet:
//!
//! | End | Events | While |
//! |---|---|---|
//! | [`Receiver`] | `IN`, `RDNORM` | a message is there |
//! | | `HUP` | all senders are gone. Messages may be left |
//! | [`Sender`] | `OUT`, `WRNORM` | there is room for a message |
//! | | `ERR` | all receivers are gone |
//!
//! Each message is an edge for the receivers, also if others are there before it. For the senders only the
//! receive is one that makes room in a full channel. A send that is refused changes nothing and is no edge.
//!
//! The child of a `fork` has a copy of a channel, which is another channel.
//!
//! # Example
//! ```
//! use upoll::channel::{TryRecvError, TrySendError, bounded};
//!
//! let (sender, receiver) = bounded(1)?;
//! assert_eq!(sender.try_send("one"), Ok(()));
//! assert_eq!(sender.try_send("two"), Err(TrySendError::Full("two")));
//! assert_eq!(receiver.try_recv(), Ok("one"));
//! assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
//! drop(sender);
//! assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
//! # Ok::<(), upoll::Errno>(())
//! ```

mod errors;

pub use self::errors::{
    RecvError, RecvTimeoutError, SendError, SendTimeoutError, TryRecvError, TrySendError,
};

use alloc::collections::VecDeque;
use core::fmt;

use crate::errno::Errno;
use crate::events::Events;
use crate::file::{File, PollTable, Pollable};
use crate::memory::SharedBox;
use crate::target::is_source;
use crate::two_ends::{Contents, End, NO_READER, NO_WRITER, NOT_EMPTY, NOT_FULL, TwoEnds};

/// The state that both ends share.
pub(crate) type Channel<T> = TwoEnds<Queue<T>>;

pub(crate) struct Queue<T> {
    messages: VecDeque<T>,
    /// Messages that the last receiver has left, until the end of its close.
    unread: VecDeque<T>,
    /// The limit of messages; `None` if only memory limits them.
    limit: Option<usize>,
    /// There was no memory for one more message. A receive makes room.
    is_out_of_memory: bool,
    /// [`NO_READER`] once the last receiver is gone, [`NO_WRITER`] once the last sender is.
    closed: u32,
}

impl<T> Queue<T> {
    #[inline]
    fn is_full(&self) -> bool {
        match self.limit {
            Some(limit) => self.messages.len() >= limit,
            None => self.is_out_of_memory,
        }
    }

    /// Makes room for one message. Returns whether there is room.
    #[inline]
    fn make_room(&mut self) -> bool {
        if self.limit.is_none() && self.messages.len() == self.messages.capacity() {
            self.is_out_of_memory = self.messages.try_reserve(1).is_err();
        }
        !self.is_full()
    }
}

impl<T> Contents for Queue<T> {
    #[inline]
    fn state(&self) -> u32 {
        let bit = |bit, on: bool| if on { bit } else { 0 };
        bit(NOT_EMPTY, !self.messages.is_empty()) | bit(NOT_FULL, !self.is_full()) | self.closed
    }
}

impl<T> Channel<T> {
    #[inline]
    pub(crate) fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        if self.is_full() {
            return Err(TrySendError::Full(message));
        }
        let mut queue = self.lock();
        if queue.closed & NO_READER != 0 {
            return Err(TrySendError::Disconnected(message));
        }
        if !queue.make_room() {
            self.publish(&queue);
            return Err(TrySendError::Full(message));
        }
        let users = self.users();
        let wakes = queue.messages.is_empty() && users.are_any();
        queue.messages.push_back(message);
        self.publish(&queue);
        drop(queue);
        // Without a change from empty to not empty nothing was published. An interest that is not linked
        // yet sees the messages, and one that has seen them receives until there are no more.
        if wakes || users.have_polled() {
            self.wake_readers();
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn try_recv(&self) -> Result<T, TryRecvError> {
        if self.is_drained() {
            return Err(TryRecvError::Empty);
        }
        let mut queue = self.lock();
        let was_full = queue.is_full();
        let Some(message) = queue.messages.pop_front() else {
            return Err(match queue.closed & NO_WRITER {
                0 => TryRecvError::Empty,
                _ => TryRecvError::Disconnected,
            });
        };
        queue.is_out_of_memory = false;
        let wakes = was_full && self.users().are_any();
        self.publish(&queue);
        drop(queue);
        if wakes {
            self.wake_writers();
        }
        Ok(message)
    }

    /// Returns whether a send would have to wait.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.state() & (NOT_FULL | NO_READER) == 0
    }
}

/// An open file description of a channel.
struct OpenEnd<T> {
    channel: SharedBox<Channel<T>>,
    end: End,
}

impl<T: Send + 'static> Pollable for OpenEnd<T> {
    #[inline]
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        self.channel.poll(self.end, table)
    }

    fn release(&self) {
        self.channel.close(|queue| match self.end {
            // Only once: what is unread stays so.
            End::Reading if queue.closed & NO_READER == 0 => {
                queue.closed |= NO_READER;
                queue.unread = core::mem::take(&mut queue.messages);
            }
            End::Reading => {}
            End::Writing => queue.closed |= NO_WRITER,
        });
    }

    /// Drops the messages that no receiver is left for. They are foreign: their drops may panic, may use the channel, and
    /// may wait for the tasks and callbacks that they wake. A callback of this close may end the last sender, so that
    /// leaves them to the receiver.
    fn end_release(&self) {
        if self.end == End::Writing {
            return;
        }
        let unread = core::mem::take(&mut self.channel.lock().unread);
        drop(unread);
    }
}

/// Makes a channel that holds up to `capacity` messages. A send to a full channel waits or fails, so that a
/// slow receiver holds the senders back. The memory for all messages is taken at once.
///
/// # Errors
/// `EINVAL`: `capacity` is 0. A channel without room could not tell senders when to send. `ENOMEM`: there is
/// no memory for it.
pub fn bounded<T: Send + 'static>(capacity: usize) -> Result<(Sender<T>, Receiver<T>), Errno> {
    if capacity == 0 {
        return Err(Errno::INVAL);
    }
    channel(Some(capacity), capacity)
}

/// Makes a channel that holds as many messages as there is memory for.
///
/// It takes memory as messages come, and keeps it until the last receiver is gone. It is full only while
/// there is no memory for one more message: then a send waits or fails as that to a full bounded channel,
/// and the next receive makes room.
///
/// # Errors
/// `ENOMEM`: there is no memory for it.
pub fn unbounded<T: Send + 'static>() -> Result<(Sender<T>, Receiver<T>), Errno> {
    /// The number of messages that there is always memory for, so that a receive can make room.
    const FIRST: usize = 4;
    channel(None, FIRST)
}

fn channel<T: Send + 'static>(
    limit: Option<usize>,
    room: usize,
) -> Result<(Sender<T>, Receiver<T>), Errno> {
    let mut messages = VecDeque::new();
    messages.try_reserve_exact(room).map_err(|_| Errno::NOMEM)?;
    let queue = Queue {
        messages,
        unread: VecDeque::new(),
        limit,
        is_out_of_memory: false,
        closed: 0,
    };
    let channel = SharedBox::new(Channel::new(queue))?;
    let open = |end| {
        let channel = channel.clone();
        Ok::<File, Errno>(File::try_new(OpenEnd { channel, end })?.erase())
    };
    let sender = Sender {
        file: open(End::Writing)?,
        channel: channel.clone(),
    };
    let file = open(End::Reading)?;
    Ok((sender, Receiver { file, channel }))
}

/// The end of a channel that messages are sent to, made by [`bounded`] or [`unbounded`].
///
/// Any thread may send. A clone is the same open file, as by `dup(2)`: the channel is closed for senders when
/// the last of them is dropped. Then the receivers are woken, which receive the rest and then
/// [`Disconnected`](TryRecvError::Disconnected).
///
/// A send is over when the message is in the channel. Messages that are there when the last receiver is
/// dropped are dropped with it.
pub struct Sender<T> {
    /// Without the type, so that a message may contain a sender of its own kind.
    file: File,
    channel: SharedBox<Channel<T>>,
}

/// The end of a channel that messages are received from, made by [`bounded`] or [`unbounded`].
///
/// Any thread may receive, and each message goes to one of them. A clone is the same open file, as by
/// `dup(2)`: the channel is closed for receivers when the last of them is dropped. Then the messages that are
/// left are dropped, and the senders are woken: all sends fail from then on.
pub struct Receiver<T> {
    file: File,
    channel: SharedBox<Channel<T>>,
}

impl<T> Sender<T> {
    /// Sends `message` if there is room, without waiting.
    ///
    /// # Errors
    /// They return the message. [`Full`](TrySendError::Full): there is no room.
    /// [`Disconnected`](TrySendError::Disconnected): all receivers are gone.
    #[inline]
    pub fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        self.channel.try_send(message)
    }
}

impl<T> Receiver<T> {
    /// Takes the oldest message, without waiting.
    ///
    /// # Errors
    /// [`Empty`](TryRecvError::Empty): there is no message yet. [`Disconnected`](TryRecvError::Disconnected):
    /// there is no message, and all senders are gone.
    #[inline]
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.channel.try_recv()
    }

    /// Returns an iterator that takes messages as [`try_recv`](Self::try_recv) does, and ends where it fails.
    pub fn try_iter(&self) -> impl Iterator<Item = T> + '_ {
        core::iter::from_fn(|| self.try_recv().ok())
    }
}

macro_rules! both_ends {
    ($($end:ident),*) => { $(
        impl<T> $end<T> {
            /// Returns the number of messages that are in the channel.
            #[must_use]
            pub fn len(&self) -> usize {
                self.channel.lock().messages.len()
            }

            /// Returns whether there is no message.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.channel.is_empty()
            }

            /// Returns how many messages the channel holds at most, `None` if it is unbounded.
            #[must_use]
            pub fn capacity(&self) -> Option<usize> {
                self.channel.lock().limit
            }

            #[cfg(any(feature = "std", upoll_loom))]
            pub(crate) fn shared(&self) -> &Channel<T> {
                &self.channel
            }
        }

        impl<T> Clone for $end<T> {
            fn clone(&self) -> Self {
                $end {
                    file: self.file.clone(),
                    channel: self.channel.clone(),
                }
            }
        }

        impl<T> fmt::Debug for $end<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($end))
                    .field("file", &self.file)
                    .finish()
            }
        }
    )* };
}

both_ends!(Sender, Receiver);
is_source!(Sender<T>, Receiver<T>);
