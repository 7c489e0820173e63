//! `pipe(7)`: bytes in at one end, out at the other.

use core::ops::{Deref, DerefMut};

use bitflags::bitflags;

use crate::errno::Errno;
use crate::events::Events;
use crate::file::{File, PollTable, Pollable};
use crate::memory::SharedBox;
use crate::pages::{Gather, PAGE, PageView, Pages, Scatter, slices, slices_mut};
use crate::sync::{AtomicU32, Ordering};
use crate::target::is_source;
use crate::two_ends::{Contents, End, NO_READER, NO_WRITER, NOT_EMPTY, NOT_FULL, TwoEnds};

bitflags! {
    /// The kind of pipe to make: the argument of `pipe2(2)`; and the status flags of an end.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PipeFlags: u32 {
        /// `O_NONBLOCK`: blocking calls fail with `EAGAIN` instead of waiting.
        const NONBLOCK = 0o4_000;
        /// `O_DIRECT`: each write makes packets of up to [`PIPE_BUF`] bytes, and a read takes one,
        /// all of it or what there is room for; the rest of it is gone. Only the writer's counts.
        const DIRECT = 0o40_000;
        /// `O_CLOEXEC`: meaningful once the end has an fd; accepted here.
        const CLOEXEC = 0o2_000_000;
        const _ = !0;
    }
}

impl PipeFlags {
    /// The flags that `F_SETFL` changes.
    const STATUS: PipeFlags = PipeFlags::NONBLOCK.union(PipeFlags::DIRECT);
}

/// Writes of up to this many bytes are not interleaved with others (`limits.h`).
pub const PIPE_BUF: usize = PAGE;

/// The largest capacity of a pipe: the usual value of `/proc/sys/fs/pipe-max-size`, whatever
/// capabilities the process has.
pub const PIPE_MAX_SIZE: usize = 1 << 20;

/// The number of pages that a new pipe holds.
const DEFAULT_PAGES: usize = 16;

/// The state that both ends share (`struct pipe_inode_info`).
pub(crate) type Pipe = TwoEnds<Ring>;

/// `state`: the bytes are elsewhere, and so are the ends.
const STALE: u32 = 16;

pub(crate) struct Ring {
    pages: Pages,
    /// The number of pages that may be in use (`max_usage`).
    limit: usize,
    has_reader: bool,
    has_writer: bool,
    /// Then it has no ends either.
    is_stale: bool,
}

impl Ring {
    #[inline]
    fn is_full(&self) -> bool {
        self.pages.count() >= self.limit
    }
}

impl Contents for Ring {
    #[inline]
    fn state(&self) -> u32 {
        let bit = |bit, on: bool| if on { bit } else { 0 };
        bit(NOT_EMPTY, !self.pages.is_empty())
            | bit(NOT_FULL, !self.is_full())
            | bit(NO_READER, !self.has_reader)
            | bit(NO_WRITER, !self.has_writer)
            | bit(STALE, self.is_stale)
    }
}

/// The result of one pass of a write.
pub(crate) struct Pass {
    /// Nobody can read any more.
    pub(crate) is_broken: bool,
    /// The pipe is elsewhere now.
    pub(crate) is_stale: bool,
    /// There was no memory for a page, or the caller's cannot be read.
    pub(crate) error: Option<Errno>,
    /// There was nothing to read before.
    #[cfg(any(feature = "std", upoll_loom))]
    was_empty: bool,
    /// It is news for readers.
    is_news: bool,
}

impl Pass {
    /// Returns the result of a write whose last pass this was.
    #[inline]
    pub(crate) fn outcome(&self, written: usize) -> Result<usize, Errno> {
        match written {
            0 if self.is_stale => Err(Errno::STALE),
            0 if self.is_broken => Err(Errno::PIPE),
            0 => Err(self.error.unwrap_or(Errno::AGAIN)),
            written => Ok(written),
        }
    }
}

impl Pipe {
    /// Writes what fits. Only the first pass of a write merges into the last page.
    #[inline]
    pub(crate) fn fill(&self, from: &mut Gather<'_>, is_first: bool, is_packet: bool) -> Pass {
        let mut ring = self.lock();
        let users = self.users();
        let was_empty = ring.pages.is_empty();
        let mut error = None;
        if ring.has_reader {
            let odd = from.left() % PAGE;
            if is_first && odd > 0 && odd <= ring.pages.room_in_last() {
                match from.has(odd) {
                    true => ring.pages.merge(from, odd),
                    false => error = Some(Errno::FAULT),
                }
            }
            while from.left() > 0 && !ring.is_full() && error.is_none() {
                if !from.has(from.left().min(PAGE)) {
                    error = Some(Errno::FAULT);
                } else if !ring.pages.push(from, PAGE, is_packet) {
                    error = Some(Errno::NOMEM);
                }
            }
            self.publish(&ring);
        }
        Pass {
            is_broken: !ring.has_reader,
            is_stale: ring.is_stale,
            error,
            #[cfg(any(feature = "std", upoll_loom))]
            was_empty,
            is_news: was_empty && users.are_any() || users.have_polled(),
        }
    }

    /// The wake at the end of a write, whether it wrote or not.
    #[inline]
    pub(crate) fn wake_readers_after(&self, pass: &Pass) {
        // Without a change from empty to not empty nothing was published. An interest that is not
        // linked yet sees the bytes, and one that has seen them reads until there are no more.
        if pass.is_news {
            self.wake_readers();
        }
    }

    /// The wake of a writer that has filled the pipe and is about to wait for room.
    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) fn wake_readers_before_sleep(&self, pass: &Pass) {
        if pass.was_empty {
            self.wake_readers();
        }
    }

    #[inline]
    fn try_write(&self, from: &mut Gather<'_>, is_packet: bool) -> Result<usize, Errno> {
        let asked = from.left();
        if asked == 0 {
            return Ok(0);
        }
        let pass = self.fill(from, true, is_packet);
        self.wake_readers_after(&pass);
        pass.outcome(asked - from.left())
    }

    #[inline]
    pub(crate) fn try_read(&self, into: &mut Scatter<'_, '_>) -> Result<usize, Errno> {
        if into.asks_for_nothing() {
            return Ok(0);
        }
        if self.is_drained() {
            return Err(Errno::AGAIN);
        }
        let mut ring = self.lock();
        if ring.pages.is_empty() {
            return if ring.has_writer {
                Err(Errno::AGAIN)
            } else if ring.is_stale {
                Err(Errno::STALE)
            } else {
                Ok(0)
            };
        }
        let was_full = ring.is_full();
        let room = into.left();
        let most = into.whole(ring.pages.unread())?;
        ring.pages.take(into, most);
        let wakes = was_full && !ring.is_full() && self.users().are_any();
        self.publish(&ring);
        drop(ring);
        if wakes {
            self.wake_writers();
        }
        Ok(room - into.left())
    }

    /// Returns whether a write would find no room.
    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) fn is_full(&self) -> bool {
        self.state() & NOT_FULL == 0
    }

    fn set_capacity(&self, bytes: usize) -> Result<usize, Errno> {
        if bytes > 1 << 31 {
            return Err(Errno::INVAL);
        }
        let pages = bytes.max(PAGE).next_power_of_two() / PAGE;
        let mut ring = self.lock();
        if pages > ring.limit && pages * PAGE > PIPE_MAX_SIZE {
            return Err(Errno::PERM);
        }
        if pages < ring.pages.count() {
            return Err(Errno::BUSY);
        }
        ring.limit = pages;
        self.publish(&ring);
        drop(ring);
        self.wake_any_writer();
        Ok(pages * PAGE)
    }

    fn demote<E>(
        &self,
        transfer: impl FnOnce(&mut dyn Iterator<Item = PageView<'_>>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut ring = self.lock();
        if ring.is_stale {
            return Ok(());
        }
        transfer(&mut ring.pages.views())?;
        let pages = core::mem::take(&mut ring.pages);
        ring.is_stale = true;
        ring.has_reader = false;
        ring.has_writer = false;
        self.publish(&ring);
        drop(ring);
        drop(pages);
        self.wake_all(Events::HUP);
        Ok(())
    }
}

/// An open file description of a pipe.
struct OpenEnd {
    pipe: SharedBox<Pipe>,
    end: End,
    /// [`PipeFlags::STATUS`].
    flags: AtomicU32,
}

impl OpenEnd {
    #[inline]
    fn flags(&self) -> PipeFlags {
        PipeFlags::from_bits_retain(self.flags.load(Ordering::Relaxed))
    }

    fn set_flags(&self, flags: PipeFlags) {
        let flags = flags & PipeFlags::STATUS;
        self.flags.store(flags.bits(), Ordering::Relaxed);
    }
}

impl Pollable for OpenEnd {
    #[inline]
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        self.pipe.poll(self.end, table)
    }

    fn release(&self) {
        self.pipe.close(|ring| match self.end {
            End::Reading => ring.has_reader = false,
            End::Writing => ring.has_writer = false,
        });
    }
}

/// `pipe(2)`: a pipe, as [`pipe2`] without flags.
///
/// # Errors
/// `ENOMEM`: there is no memory for it.
///
/// # Example
/// ```
/// use upoll::{Errno, pipe};
///
/// let (reader, writer) = pipe()?;
/// assert_eq!(writer.try_write(b"hello"), Ok(5));
/// let mut buffer = [0; 8];
/// assert_eq!(reader.try_read(&mut buffer), Ok(5));
/// assert_eq!(reader.try_read(&mut buffer), Err(Errno::AGAIN));
/// drop(writer);
/// assert_eq!(reader.try_read(&mut buffer), Ok(0));
/// # Ok::<(), Errno>(())
/// ```
pub fn pipe() -> Result<(PipeReader, PipeWriter), Errno> {
    pipe2(PipeFlags::empty())
}

/// `pipe2(2)`: a pipe of sixteen pages (64 KiB). Memory is taken as bytes come.
///
/// # Errors
/// `EINVAL`: `flags` holds a bit that [`PipeFlags`] does not name (notification pipes,
/// `O_NOTIFICATION_PIPE`, are not there). `ENOMEM`: there is no memory for it.
pub fn pipe2(flags: PipeFlags) -> Result<(PipeReader, PipeWriter), Errno> {
    if !(flags - (PipeFlags::STATUS | PipeFlags::CLOEXEC)).is_empty() {
        return Err(Errno::INVAL);
    }
    let ring = Ring {
        pages: Pages::default(),
        limit: DEFAULT_PAGES,
        has_reader: true,
        has_writer: true,
        is_stale: false,
    };
    let pipe = SharedBox::new(Pipe::new(ring))?;
    let open = |end, flags: PipeFlags| {
        File::try_new(OpenEnd {
            pipe: pipe.clone(),
            end,
            flags: AtomicU32::new((flags & PipeFlags::STATUS).bits()),
        })
    };
    let reader = PipeReader {
        file: open(End::Reading, flags - PipeFlags::DIRECT)?,
    };
    let writer = PipeWriter {
        file: open(End::Writing, flags)?,
    };
    Ok((reader, writer))
}

/// The end of a pipe that is read.
///
/// Made by [`pipe()`]. A clone is the same open file (`dup(2)`); the last to go closes the end.
///
/// Readiness as in Linux 6.18 (`pipe_poll`): `IN` and `RDNORM` iff there is something to read,
/// `HUP` iff the writing end is closed. A write wakes readers if the pipe was empty; once somebody
/// has polled either end it does so always, so that an edge-triggered interest reports each write.
///
/// Closing it wakes writers, which fail with `EPIPE`.
#[derive(Clone, Debug)]
#[doc(alias = "pipe")]
pub struct PipeReader {
    file: File<OpenEnd>,
}

/// The end of a pipe that is written.
///
/// Made by [`pipe()`]. A clone is the same open file (`dup(2)`); the last to go closes the end.
///
/// Readiness as in Linux 6.18 (`pipe_poll`): `OUT` and `WRNORM` iff a page is free, `ERR` iff the
/// reading end is closed. A read wakes writers if the pipe was full and a page came free.
///
/// Closing it wakes readers, which read the rest and then the end.
///
/// # Room
/// A pipe counts pages, not bytes. A write whose size modulo a page fits into the last page begins
/// there; the rest takes a new page for each 4096 bytes or less. So a pipe may be full with far
/// fewer bytes than its capacity, and writes of up to [`PIPE_BUF`] bytes are done whole or not.
///
/// # Signals
/// A write to a pipe without readers fails with `EPIPE` and raises no `SIGPIPE`: a caller that wants the
/// signal raises it.
#[derive(Clone, Debug)]
#[doc(alias = "pipe")]
pub struct PipeWriter {
    file: File<OpenEnd>,
}

impl PipeReader {
    /// Returns an address that both ends of a pipe have in common.
    #[doc(hidden)]
    #[must_use]
    pub fn connection(&self) -> usize {
        SharedBox::as_ptr(&self.file.pipe).addr()
    }

    /// Takes what there is, up to the size of `buffer`, without waiting.
    ///
    /// Returns 0 at the end: nothing is left and the writing end is closed. With an empty buffer it
    /// always returns 0.
    ///
    /// # Errors
    /// `EAGAIN`: there is nothing to read yet. `ESTALE`: the pipe was [demoted](Self::demote).
    #[inline]
    pub fn try_read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        self.file.pipe.try_read(&mut Scatter::new(&mut [buffer]))
    }

    /// [`try_read`](Self::try_read) into several buffers, one after the other (`readv(2)`).
    ///
    /// # Errors
    /// As [`try_read`](Self::try_read). `ENOMEM`: there is no memory for a list of more than eight buffers.
    #[inline]
    pub fn try_read_vectored<B: DerefMut<Target = [u8]>>(
        &self,
        buffers: &mut [B],
    ) -> Result<usize, Errno> {
        let pipe = &self.file.pipe;
        pipe.try_read(&mut Scatter::new(&mut slices_mut(buffers)?))
    }

    /// [`try_read_vectored`](Self::try_read_vectored) for a caller that asks for `missing` more bytes, in
    /// memory that cannot be written. A page is read as far as it is asked for or not at all, as in Linux.
    ///
    /// # Errors
    /// As [`try_read`](Self::try_read). `EFAULT`: no page is read.
    #[doc(hidden)]
    pub fn try_read_before_fault(
        &self,
        buffers: &mut [&mut [u8]],
        missing: usize,
    ) -> Result<usize, Errno> {
        let pipe = &self.file.pipe;
        pipe.try_read(&mut Scatter::before(buffers, missing))
    }
}

impl PipeWriter {
    /// Returns an address that both ends of a pipe have in common.
    #[doc(hidden)]
    #[must_use]
    pub fn connection(&self) -> usize {
        SharedBox::as_ptr(&self.file.pipe).addr()
    }

    /// Writes as many of `bytes` as fit without waiting, and returns their number.
    ///
    /// Up to [`PIPE_BUF`] bytes are written whole or not at all. An empty write always returns 0.
    ///
    /// # Errors
    /// `EPIPE`: the reading end is closed. `EAGAIN`: no byte fits, see [`PipeWriter`]. `ENOMEM`: there is no
    /// memory for the first byte. `ESTALE`: the pipe was [demoted](Self::demote).
    #[inline]
    pub fn try_write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        self.try_write_from(&mut Gather::new(&[bytes]))
    }

    /// [`try_write`](Self::try_write) from several buffers, as if they were one (`writev(2)`).
    ///
    /// # Errors
    /// As [`try_write`](Self::try_write). `ENOMEM` also: there is no memory for a list of more than eight buffers.
    #[inline]
    pub fn try_write_vectored<B: Deref<Target = [u8]>>(
        &self,
        buffers: &[B],
    ) -> Result<usize, Errno> {
        self.try_write_from(&mut Gather::new(&slices(buffers)?))
    }

    /// [`try_write_vectored`](Self::try_write_vectored) for a caller that asks for `missing` more bytes, from
    /// memory that cannot be read. A page is filled as far as it is asked for or not at all, as in Linux.
    ///
    /// # Errors
    /// As [`try_write`](Self::try_write). `EFAULT`: no page is filled.
    #[doc(hidden)]
    pub fn try_write_before_fault(
        &self,
        buffers: &[&[u8]],
        missing: usize,
    ) -> Result<usize, Errno> {
        self.try_write_from(&mut Gather::before(buffers, missing))
    }

    #[inline]
    fn try_write_from(&self, from: &mut Gather<'_>) -> Result<usize, Errno> {
        let is_packet = self.flags().contains(PipeFlags::DIRECT);
        self.file.pipe.try_write(from, is_packet)
    }
}

macro_rules! both_ends {
    ($($end:ident),*) => { $(
        impl $end {
            /// Returns the number of unread bytes (`FIONREAD`). It is the same at either end.
            #[must_use]
            pub fn available(&self) -> usize {
                self.file.pipe.lock().pages.bytes()
            }

            /// Returns the number of bytes that the pipe holds at most, in whole pages (`F_GETPIPE_SZ`).
            #[must_use]
            pub fn capacity(&self) -> usize {
                self.file.pipe.lock().limit * PAGE
            }

            /// Changes the capacity of the pipe (`F_SETPIPE_SZ`), and returns the new one: `bytes`
            /// rounded up to a power of two, at least a page. Wakes a writer in any case.
            ///
            /// # Errors
            /// `EINVAL`: more than 2 GiB. `EPERM`: more than now and than [`PIPE_MAX_SIZE`].
            /// `EBUSY`: more pages than that hold bytes.
            pub fn set_capacity(&self, bytes: usize) -> Result<usize, Errno> {
                self.file.pipe.set_capacity(bytes)
            }

            /// Returns the status flags (`F_GETFL`).
            #[must_use]
            pub fn flags(&self) -> PipeFlags {
                self.file.flags()
            }

            /// Changes the status flags `NONBLOCK` and `DIRECT` (`F_SETFL`); others are ignored.
            pub fn set_flags(&self, flags: PipeFlags) {
                self.file.set_flags(flags);
            }

            /// Passes the contents of the pipe to `transfer`, which moves them elsewhere: to the
            /// kernel, when a second process is to share it. If that succeeds, the pipe is empty
            /// and without ends for good; else nothing has happened. Other calls on the pipe wait
            /// meanwhile. `transfer` is not called if it has been demoted before.
            ///
            /// From then on reads and writes fail with `ESTALE`, also if they began before and wait. A
            /// write that has written a part returns its length. Polls show `HUP` at the reading end, and
            /// `ERR` at the writing end.
            ///
            /// # Errors
            /// Those of `transfer`.
            pub fn demote<E>(
                &self,
                transfer: impl FnOnce(&mut dyn Iterator<Item = PageView<'_>>) -> Result<(), E>,
            ) -> Result<(), E> {
                self.file.pipe.demote(transfer)
            }

            /// Returns whether it has been [demoted](Self::demote).
            #[must_use]
            pub fn is_stale(&self) -> bool {
                self.file.pipe.state() & STALE != 0
            }

            #[cfg(any(feature = "std", upoll_loom))]
            pub(crate) fn shared(&self) -> &Pipe {
                &self.file.pipe
            }
        }
    )* };
}

both_ends!(PipeReader, PipeWriter);
is_source!(PipeReader, PipeWriter);
