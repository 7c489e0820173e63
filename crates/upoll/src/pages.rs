//! A queue of bytes in pages: what a pipe and a stream hold between write and read
//! (`struct pipe_buffer`).
//!
//! Two pages that became free are kept, as in Linux, so that a steady flow of small writes and reads
//! allocates nothing.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::ops::{Deref, DerefMut};
use core::{mem, slice};

use arrayvec::ArrayVec;
use smallvec::SmallVec;

use crate::errno::Errno;
use crate::memory::boxed;

/// Bytes of a page, on every architecture: it is what decides how writes split and merge.
pub(crate) const PAGE: usize = 4096;

/// The number of free pages that are kept.
const SPARE: usize = 2;

/// Its length is in the page, so that the page changes hands as one word.
type Page = Box<ArrayVec<u8, PAGE>>;

/// One page in the queue.
struct Slot {
    page: Page,
    /// The number of bytes of the page that were read.
    read: usize,
    /// Read alone, and dropped with its first read.
    packet: bool,
}

/// A page of a pipe as [`PipeReader::demote`](crate::PipeReader::demote) shows it.
#[derive(Clone, Copy, Debug)]
pub struct PageView<'a> {
    /// All that was written to it.
    pub bytes: &'a [u8],
    /// The number of these bytes that have been read.
    pub read: usize,
    /// True if the page is a packet.
    pub is_packet: bool,
}

/// The queue.
#[derive(Default)]
pub(crate) struct Pages {
    slots: VecDeque<Slot>,
    spare: ArrayVec<Page, SPARE>,
}

impl Pages {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the number of pages that hold bytes.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of unread bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.unread().sum()
    }

    pub(crate) fn views(&self) -> impl Iterator<Item = PageView<'_>> {
        self.slots.iter().map(|slot| PageView {
            bytes: &slot.page,
            read: slot.read,
            is_packet: slot.packet,
        })
    }

    /// Returns the number of bytes that fit into the last page behind its contents; none fit into a packet.
    #[inline]
    pub(crate) fn room_in_last(&self) -> usize {
        match self.slots.back() {
            Some(last) if !last.packet => PAGE - last.page.len(),
            _ => 0,
        }
    }

    /// Appends `count` bytes to the last page, which has room for them.
    #[inline]
    pub(crate) fn merge(&mut self, from: &mut Gather<'_>, count: usize) {
        if let Some(last) = self.slots.back_mut() {
            from.move_to(&mut last.page, count);
        }
    }

    /// Appends a page with at most `count` bytes of what is left, as many as fit. Returns whether there
    /// was memory for it; if not, nothing is moved.
    #[inline]
    #[must_use]
    pub(crate) fn push(&mut self, from: &mut Gather<'_>, count: usize, packet: bool) -> bool {
        let Some(mut page) = self.new_page() else {
            return false;
        };
        from.move_to(&mut page, count);
        self.slots.push_back(Slot {
            page,
            read: 0,
            packet,
        });
        true
    }

    /// Returns an empty page, and makes room for it in the queue; `None` if there is no memory.
    #[inline]
    fn new_page(&mut self) -> Option<Page> {
        self.slots.try_reserve(1).ok()?;
        match self.spare.pop() {
            Some(page) => Some(page),
            None => boxed(ArrayVec::new_const()).ok(),
        }
    }

    /// Appends `count` bytes, in whatever pages. Returns how many it has appended: fewer if there is no
    /// memory for the others.
    #[inline]
    pub(crate) fn append(&mut self, from: &mut Gather<'_>, count: usize) -> usize {
        let mut appended = self.room_in_last().min(count);
        self.merge(from, appended);
        while appended < count {
            let piece = (count - appended).min(PAGE);
            if !self.push(from, piece, false) {
                break;
            }
            appended += piece;
        }
        appended
    }

    /// Takes up to `most` bytes from the front, for which `into` has room, until nothing is left or a packet
    /// ends.
    #[inline]
    pub(crate) fn take(&mut self, into: &mut Scatter<'_, '_>, mut most: usize) {
        while most > 0 {
            let Some(slot) = self.slots.front_mut() else {
                break;
            };
            let unread = &slot.page[slot.read..];
            let count = unread.len().min(most);
            into.put(&unread[..count]);
            most -= count;
            slot.read += count;
            let packet = slot.packet;
            if packet || slot.read == slot.page.len() {
                self.release_first();
            }
            if packet {
                break;
            }
        }
    }

    /// Copies up to `most` bytes from the front, for which `into` has room, and leaves them there.
    pub(crate) fn copy_to(&self, into: &mut Scatter<'_, '_>, mut most: usize) {
        for slot in &self.slots {
            let unread = &slot.page[slot.read..];
            let count = unread.len().min(most);
            into.put(&unread[..count]);
            most -= count;
        }
    }

    /// Returns the number of unread bytes in each page.
    pub(crate) fn unread(&self) -> impl Iterator<Item = usize> {
        self.slots.iter().map(|slot| slot.page.len() - slot.read)
    }

    #[inline]
    fn release_first(&mut self) {
        if let Some(slot) = self.slots.pop_front()
            && !self.spare.is_full()
        {
            let mut page = slot.page;
            page.clear();
            self.spare.push(page);
        }
    }
}

/// The number of buffers of one call that cost no allocation (`UIO_FASTIOV`).
const FEW: usize = 8;

/// The bytes of the caller's buffers. These may be of a foreign kind, so they are asked for their
/// bytes here, with no lock held, and but once.
///
/// # Errors
/// `ENOMEM`: there is no memory for the list.
pub(crate) fn slices<B: Deref<Target = [u8]>>(
    buffers: &[B],
) -> Result<SmallVec<[&[u8]; FEW]>, Errno> {
    let mut slices = SmallVec::new();
    slices
        .try_reserve(buffers.len())
        .map_err(|_| Errno::NOMEM)?;
    slices.extend(buffers.iter().map(Deref::deref));
    Ok(slices)
}

/// [`slices`] of buffers to be filled.
///
/// # Errors
/// `ENOMEM`: there is no memory for the list.
pub(crate) fn slices_mut<B: DerefMut<Target = [u8]>>(
    buffers: &mut [B],
) -> Result<SmallVec<[&mut [u8]; FEW]>, Errno> {
    let mut slices = SmallVec::new();
    slices
        .try_reserve(buffers.len())
        .map_err(|_| Errno::NOMEM)?;
    slices.extend(buffers.iter_mut().map(DerefMut::deref_mut));
    Ok(slices)
}

/// The rest of a write: what remains of several buffers (`struct iov_iter`).
pub(crate) struct Gather<'a> {
    /// The rest of the first buffer; the buffers behind it.
    first: &'a [u8],
    behind: &'a [&'a [u8]],
    left: usize,
    missing: usize,
}

impl<'a> Gather<'a> {
    #[inline]
    pub(crate) fn new(buffers: &'a [&'a [u8]]) -> Self {
        Gather::before(buffers, 0)
    }

    /// A write that asks for `missing` more bytes, from memory that cannot be read.
    #[inline]
    pub(crate) fn before(buffers: &'a [&'a [u8]], missing: usize) -> Self {
        let (first, behind) = match buffers {
            [] => (&[][..], buffers),
            [first, behind @ ..] => (*first, behind),
        };
        Gather {
            first,
            behind,
            left: buffers.iter().map(|buffer| buffer.len()).sum(),
            missing,
        }
    }

    /// Returns the number of bytes that the write still asks for.
    #[inline]
    pub(crate) fn left(&self) -> usize {
        self.left + self.missing
    }

    /// Returns whether the next `count` bytes can be read.
    #[inline]
    pub(crate) fn has(&self, count: usize) -> bool {
        count <= self.left
    }

    /// Moves up to `count` bytes, as far as there is room, to the end of `page`.
    #[inline]
    fn move_to(&mut self, page: &mut Page, count: usize) {
        let mut count = count.min(self.left).min(page.remaining_capacity());
        self.left -= count;
        loop {
            let (piece, rest) = self.first.split_at(self.first.len().min(count));
            let added = page.try_extend_from_slice(piece);
            debug_assert!(added.is_ok(), "there is room");
            self.first = rest;
            count -= piece.len();
            if count == 0 {
                break;
            }
            let [next, behind @ ..] = self.behind else {
                break;
            };
            (self.first, self.behind) = (next, behind);
        }
    }
}

/// The room that a read has left: what remains of several buffers.
pub(crate) struct Scatter<'a, 'b> {
    /// The room in the first buffer that is not full; the buffers behind it.
    first: &'a mut [u8],
    behind: slice::IterMut<'a, &'b mut [u8]>,
    left: usize,
    missing: usize,
}

impl<'a, 'b> Scatter<'a, 'b> {
    #[inline]
    pub(crate) fn new(buffers: &'a mut [&'b mut [u8]]) -> Self {
        Scatter::before(buffers, 0)
    }

    /// The room of a read that asks for `missing` more bytes, in memory that cannot be written.
    #[inline]
    pub(crate) fn before(buffers: &'a mut [&'b mut [u8]], missing: usize) -> Self {
        let left = buffers.iter().map(|buffer| buffer.len()).sum();
        let mut behind = buffers.iter_mut();
        Scatter {
            first: behind.next().map_or(&mut [], |first| &mut **first),
            behind,
            left,
            missing,
        }
    }

    /// Returns the number of bytes that there is room for.
    #[inline]
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Returns whether the read asks for nothing.
    #[inline]
    pub(crate) fn asks_for_nothing(&self) -> bool {
        self.left == 0 && self.missing == 0
    }

    /// Returns how much can be read of bytes that lie in `pieces`: what is asked for of a piece is read as a
    /// whole or not at all, as in Linux.
    ///
    /// # Errors
    /// `EFAULT`: nothing.
    #[inline]
    pub(crate) fn whole(&self, pieces: impl Iterator<Item = usize>) -> Result<usize, Errno> {
        match self.missing {
            0 => Ok(self.left),
            _ => self.whole_before_fault(pieces),
        }
    }

    #[cold]
    fn whole_before_fault(&self, pieces: impl Iterator<Item = usize>) -> Result<usize, Errno> {
        let asked = self.left.saturating_add(self.missing);
        let mut whole = 0;
        for piece in pieces {
            let next = piece.min(asked - whole);
            if next > self.left - whole {
                break;
            }
            whole += next;
        }
        match whole {
            0 => Err(Errno::FAULT),
            whole => Ok(whole),
        }
    }

    /// Puts `bytes`, for which there is room.
    #[inline]
    fn put(&mut self, mut bytes: &[u8]) {
        self.left -= bytes.len();
        loop {
            let (piece, rest) = bytes.split_at(self.first.len().min(bytes.len()));
            let (filled, room) = mem::take(&mut self.first).split_at_mut(piece.len());
            filled.copy_from_slice(piece);
            self.first = room;
            bytes = rest;
            if bytes.is_empty() {
                break;
            }
            let Some(next) = self.behind.next() else {
                break;
            };
            self.first = next;
        }
    }
}
