//! `read(2)` and `write(2)` on a stream socket that wait.

use core::ops::{Deref, DerefMut};

use super::blocking::until_done;
use super::timeout::Deadline;
use crate::errno::Errno;
use crate::pages::{Gather, Scatter, slices, slices_mut};
use crate::socketpair::{ReceiveFlags, SocketFlags, StreamSocket};
use crate::wait::Place;

impl StreamSocket {
    /// Takes what there is, up to the size of `buffer`; waits while there is nothing.
    ///
    /// Returns 0 at the end: nothing is left and receiving is shut down. With an empty buffer it always
    /// returns 0. All blocked readers are woken by each write and try again; which of them gets it is
    /// not specified, as in Linux. A signal handler with `SA_RESTART` does not end the wait.
    ///
    /// # Errors
    /// As [`try_read`](Self::try_read), `EAGAIN` only if the socket is `NONBLOCK`. `EINTR`: a
    /// signal handler without `SA_RESTART` ran.
    #[inline]
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        self.read_slices(&mut [buffer])
    }

    /// [`read`](Self::read) into several buffers, one after the other (`readv(2)`).
    ///
    /// # Errors
    /// As [`read`](Self::read). `ENOMEM`: there is no memory for a list of more than eight buffers.
    pub fn read_vectored<B: DerefMut<Target = [u8]>>(
        &self,
        buffers: &mut [B],
    ) -> Result<usize, Errno> {
        self.read_slices(&mut slices_mut(buffers)?)
    }

    fn read_slices(&self, buffers: &mut [&mut [u8]]) -> Result<usize, Errno> {
        let (pair, me) = self.shared();
        let mut into = Scatter::new(buffers);
        match pair.try_read(me, &mut into) {
            Err(Errno::AGAIN) if !self.is_nonblocking() => {
                until_done(pair.queue(me), Place::Shared, |_| {
                    pair.try_read(me, &mut into)
                })
            }
            done => done,
        }
    }

    /// Receives into several buffers, one after the other (`recvmsg(2)`).
    ///
    /// As [`read_vectored`](Self::read_vectored), but for `flags`, and that buffers without room
    /// wait for something to receive, too. With `WAITALL` a signal handler or the end of the stream
    /// leaves the buffers filled in part.
    ///
    /// # Errors
    /// As [`read_vectored`](Self::read_vectored); `EAGAIN` also if `flags` holds `DONTWAIT`.
    ///
    /// # Example
    /// ```
    /// use upoll::{ReceiveFlags, SocketFlags, socketpair};
    /// let (one, other) = socketpair(SocketFlags::empty())?;
    /// one.write(b"hello")?;
    /// let mut buffer = [0; 8];
    /// assert_eq!(other.receive(&mut [&mut buffer[..]], ReceiveFlags::PEEK)?, 5);
    /// assert_eq!(other.available(), 5);
    /// # Ok::<(), upoll::Errno>(())
    /// ```
    #[doc(alias = "recv")]
    #[doc(alias = "recvmsg")]
    pub fn receive<B: DerefMut<Target = [u8]>>(
        &self,
        buffers: &mut [B],
        flags: ReceiveFlags,
    ) -> Result<usize, Errno> {
        self.receive_into(&mut Scatter::new(&mut slices_mut(buffers)?), flags)
    }

    /// [`receive`](Self::receive) for a caller that asks for `missing` more bytes, in memory that
    /// cannot be written. The requested part of a piece that was sent is received whole or not at
    /// all, as in Linux.
    ///
    /// # Errors
    /// As [`receive`](Self::receive). `EFAULT`: no piece is received.
    #[doc(hidden)]
    pub fn receive_before_fault(
        &self,
        buffers: &mut [&mut [u8]],
        missing: usize,
        flags: ReceiveFlags,
    ) -> Result<usize, Errno> {
        self.receive_into(&mut Scatter::before(buffers, missing), flags)
    }

    fn receive_into(
        &self,
        into: &mut Scatter<'_, '_>,
        flags: ReceiveFlags,
    ) -> Result<usize, Errno> {
        let asked = into.left();
        let takes = !flags.contains(ReceiveFlags::PEEK);
        let waits_for_all = takes && flags.contains(ReceiveFlags::WAITALL);
        let (pair, me) = self.shared();
        let mut received = 0;
        let mut receive = |deadline: &mut Deadline| loop {
            let part = pair.try_receive(me, into, takes)?;
            received = asked - into.left();
            // The end of the stream returns nothing.
            if part == 0 || !waits_for_all || into.left() == 0 {
                return Ok(received);
            }
            *deadline = Deadline::Never;
        };
        let sleeps = !self.is_nonblocking() && !flags.contains(ReceiveFlags::DONTWAIT);
        let mut deadline = Deadline::NeverRestart;
        let mut ended = receive(&mut deadline);
        if ended == Err(Errno::AGAIN) && sleeps {
            ended = until_done(pair.queue(me), Place::Shared, |in_sleep| {
                let pass = receive(&mut deadline);
                *in_sleep = deadline;
                pass
            });
        }
        match ended {
            Err(_) if received > 0 => Ok(received),
            ended => ended,
        }
    }

    /// Writes all of `bytes`; waits while the send buffer is used up. A write that has begun to
    /// wait continues when at most a quarter of the buffer is used.
    ///
    /// It writes less than asked for if a signal handler ran, sending was shut down, or memory ran out after a
    /// part was written. It also does so if the socket is `NONBLOCK`, as [`try_write`](Self::try_write).
    /// A signal handler with `SA_RESTART` does not end the wait, unless a part is written.
    ///
    /// # Errors
    /// As [`try_write`](Self::try_write), `EAGAIN` only if the socket is `NONBLOCK`. `ECONNRESET`:
    /// while it waited the peer closed without having read everything. `EINTR`: a signal handler
    /// without `SA_RESTART` ran before anything was written.
    #[inline]
    pub fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        as_epipe(self.write_all(&mut Gather::new(&[bytes])))
    }

    /// [`write`](Self::write) from several buffers, as if they were one (`writev(2)`).
    ///
    /// # Errors
    /// As [`write`](Self::write), but a write of no bytes always returns 0. `ENOMEM`: there is no memory for a
    /// list of more than eight buffers.
    pub fn write_vectored<B: Deref<Target = [u8]>>(&self, buffers: &[B]) -> Result<usize, Errno> {
        let buffers = slices(buffers)?;
        if buffers.iter().all(|buffer| buffer.is_empty()) {
            return Ok(0);
        }
        as_epipe(self.write_all(&mut Gather::new(&buffers)))
    }

    /// As [`try_write_before_fault`](Self::try_write_before_fault); waits while the send buffer is used up.
    ///
    /// # Errors
    /// As there and as [`write`](Self::write). `ESHUTDOWN`: sending was shut down while it waited, for which the
    /// kernel returns `EPIPE` and raises no `SIGPIPE`.
    #[doc(hidden)]
    pub fn write_before_fault(&self, buffers: &[&[u8]], missing: usize) -> Result<usize, Errno> {
        self.write_all(&mut Gather::before(buffers, missing))
    }

    fn write_all(&self, from: &mut Gather<'_>) -> Result<usize, Errno> {
        let (pair, me) = self.shared();
        let asked = from.left();
        let mut ended = pair.fill(me, from, true);
        if ended == Err(Errno::AGAIN) && !self.is_nonblocking() {
            ended = until_done(pair.queue(me), Place::Shared, |deadline| {
                let pass = pair.fill(me, from, false);
                if from.left() < asked {
                    *deadline = Deadline::Never;
                }
                pass
            });
        }
        match asked - from.left() {
            0 => ended.map(|()| 0),
            written => Ok(written),
        }
    }

    fn is_nonblocking(&self) -> bool {
        self.flags().contains(SocketFlags::NONBLOCK)
    }
}

/// Sending was shut down, whether the call has waited before or not.
fn as_epipe<T>(written: Result<T, Errno>) -> Result<T, Errno> {
    written.map_err(|errno| match errno {
        Errno::SHUTDOWN => Errno::PIPE,
        errno => errno,
    })
}
