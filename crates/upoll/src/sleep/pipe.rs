//! `read(2)` and `write(2)` on a pipe that wait.

use core::ops::{Deref, DerefMut};

use super::blocking::until_done;
use super::timeout::Deadline;
use crate::errno::Errno;
use crate::pages::{Gather, Scatter, slices, slices_mut};
use crate::pipe::{Pass, PipeFlags, PipeReader, PipeWriter};
use crate::wait::Place;

impl PipeReader {
    /// Takes what there is, up to the size of `buffer`; waits while there is nothing.
    ///
    /// Returns 0 at the end: nothing is left and the writing end is closed. With an empty buffer it always
    /// returns 0. Blocked readers are woken one at a time, in the order in which they came, and each wakes the
    /// next if it leaves something; the close of the writing end wakes all. A signal handler with
    /// `SA_RESTART` does not end the wait.
    ///
    /// # Errors
    /// `EAGAIN`: there is nothing to read and the end is `NONBLOCK`. `EINTR`: a signal handler
    /// without `SA_RESTART` ran. `ESTALE`: it was [demoted](Self::demote).
    #[inline]
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        self.read_into(&mut Scatter::new(&mut [buffer]))
    }

    /// [`read`](Self::read) into several buffers, one after the other (`readv(2)`).
    ///
    /// # Errors
    /// As [`read`](Self::read). `ENOMEM`: there is no memory for a list of more than eight buffers.
    pub fn read_vectored<B: DerefMut<Target = [u8]>>(
        &self,
        buffers: &mut [B],
    ) -> Result<usize, Errno> {
        self.read_into(&mut Scatter::new(&mut slices_mut(buffers)?))
    }

    /// As [`try_read_before_fault`](Self::try_read_before_fault); waits while there is nothing.
    ///
    /// # Errors
    /// As there and as [`read`](Self::read).
    #[doc(hidden)]
    pub fn read_before_fault(
        &self,
        buffers: &mut [&mut [u8]],
        missing: usize,
    ) -> Result<usize, Errno> {
        self.read_into(&mut Scatter::before(buffers, missing))
    }

    #[inline]
    fn read_into(&self, into: &mut Scatter<'_, '_>) -> Result<usize, Errno> {
        match self.shared().try_read(into) {
            Err(Errno::AGAIN) if !self.flags().contains(PipeFlags::NONBLOCK) => {
                self.read_asleep(into)
            }
            done => done,
        }
    }

    #[cold]
    fn read_asleep(&self, into: &mut Scatter<'_, '_>) -> Result<usize, Errno> {
        let pipe = self.shared();
        let read = until_done(pipe.readers(), Place::ExclusiveTail, |_| {
            pipe.try_read(into)
        });
        // Also if it failed: a wake was for this reader, and may have been for what is left.
        if !pipe.is_empty() {
            pipe.wake_readers();
        }
        read
    }
}

impl PipeWriter {
    /// Writes all of `bytes`; waits while there is no room.
    ///
    /// Up to [`PIPE_BUF`](crate::PIPE_BUF) bytes are written in one piece. More may be written in
    /// several, with bytes of other writers between them. Blocked writers are woken one at a time,
    /// in the order of their arrival, and each wakes the next if it leaves room. The close of the
    /// reading end wakes all. A signal handler with `SA_RESTART` does not end the wait, unless a
    /// part is written.
    ///
    /// It writes less than asked for if a signal handler ran, the reading end was closed, or memory ran out
    /// after a part was written. It also does so if the end is `NONBLOCK`, as
    /// [`try_write`](Self::try_write). An empty write always returns 0.
    ///
    /// # Errors
    /// `EPIPE`: the reading end is closed. `EAGAIN`: no byte fits and the end is `NONBLOCK`.
    /// `ENOMEM`: there is no memory for the first byte. `EINTR`: a signal handler without `SA_RESTART` ran
    /// before anything was written. `ESTALE`: it was [demoted](Self::demote) before that.
    #[inline]
    pub fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        self.write_from(&mut Gather::new(&[bytes]))
    }

    /// [`write`](Self::write) from several buffers, as if they were one (`writev(2)`).
    ///
    /// # Errors
    /// As [`write`](Self::write). `ENOMEM` also: there is no memory for a list of more than eight buffers.
    pub fn write_vectored<B: Deref<Target = [u8]>>(&self, buffers: &[B]) -> Result<usize, Errno> {
        self.write_from(&mut Gather::new(&slices(buffers)?))
    }

    /// As [`try_write_before_fault`](Self::try_write_before_fault); waits while there is no room.
    ///
    /// # Errors
    /// As there and as [`write`](Self::write).
    #[doc(hidden)]
    pub fn write_before_fault(&self, buffers: &[&[u8]], missing: usize) -> Result<usize, Errno> {
        self.write_from(&mut Gather::before(buffers, missing))
    }

    #[inline]
    fn write_from(&self, from: &mut Gather<'_>) -> Result<usize, Errno> {
        let flags = self.flags();
        let is_packet = flags.contains(PipeFlags::DIRECT);
        let pipe = self.shared();
        let asked = from.left();
        if asked == 0 {
            return Ok(0);
        }
        let pass = pipe.fill(from, true, is_packet);
        if from.left() == 0
            || pass.is_broken
            || pass.error.is_some()
            || flags.contains(PipeFlags::NONBLOCK)
        {
            pipe.wake_readers_after(&pass);
            return pass.outcome(asked - from.left());
        }
        self.write_asleep(from, asked, pass)
    }

    /// Goes on with a write of `asked` bytes whose first pass did not write all.
    #[cold]
    fn write_asleep(
        &self,
        from: &mut Gather<'_>,
        asked: usize,
        mut pass: Pass,
    ) -> Result<usize, Errno> {
        let is_packet = self.flags().contains(PipeFlags::DIRECT);
        let pipe = self.shared();
        pipe.wake_readers_before_sleep(&pass);
        let ended = until_done(pipe.writers(), Place::ExclusiveTail, |deadline| {
            pass = pipe.fill(from, false, is_packet);
            if pass.is_stale {
                return Err(Errno::STALE);
            }
            if from.left() == 0 || pass.is_broken || pass.error.is_some() {
                return Ok(());
            }
            pipe.wake_readers_before_sleep(&pass);
            if from.left() < asked {
                *deadline = Deadline::Never;
            }
            Err(Errno::AGAIN)
        });
        pipe.wake_readers_after(&pass);
        // Not as of the last pass: a read since then may have woken this writer, which was still in line.
        if !pipe.is_full() {
            pipe.wake_writers();
        }
        match (asked - from.left(), ended) {
            (0, Err(ended)) => Err(ended),
            (written, _) => pass.outcome(written),
        }
    }
}
