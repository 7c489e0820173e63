//! The memory of a set's items: chunks that never move, and are given back when they are empty.
//!
//! A chunk has 4, 8, 16, 32, then 64 slots. Each knows by a word of bits which of its slots are vacant,
//! and is in one of two lists: chunks with a vacant slot, and chunks whose memory was given back. So an
//! ADD, a DEL and giving back take constant time. Up to [`Slab::KEPT`] vacant slots are kept for the
//! next ADDs, so steady ADD and DEL allocate nothing.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::iter;

use super::Set;
use super::interest::Item;
use crate::file::Description;

/// No chunk.
const NONE: u32 = u32::MAX;

/// A piece of the slab.
struct Chunk {
    /// Empty while the memory is given back.
    items: Box<[Item]>,
    /// One bit for each vacant slot.
    vacant: u64,
    /// The neighbours in the list that the chunk is in, if it is in one.
    next: u32,
    prev: u32,
}

impl Chunk {
    fn has_memory(&self) -> bool {
        !self.items.is_empty()
    }
}

/// All slots of a set. Guarded by its lock.
pub(super) struct Slab {
    chunks: Vec<Chunk>,
    /// The first chunk that has memory and a vacant slot.
    with_room: u32,
    /// The first chunk whose memory is given back.
    given_back: u32,
    /// Vacant slots that have memory.
    vacant: u32,
}

impl Slab {
    const FIRST: u32 = 4;
    const LARGEST: u32 = 64;
    /// Chunks smaller than the largest, and the slots in them.
    const SMALL: u32 = (Self::LARGEST / Self::FIRST).ilog2();
    const IN_SMALL: u32 = Self::LARGEST - Self::FIRST;
    /// A chunk that becomes empty is kept while there are fewer vacant slots than this in others.
    const KEPT: u32 = 2 * Self::LARGEST;

    pub(super) const fn new() -> Self {
        Slab {
            chunks: Vec::new(),
            with_room: NONE,
            given_back: NONE,
            vacant: 0,
        }
    }

    #[inline]
    fn place(slot: u32) -> (usize, usize) {
        if slot < Self::IN_SMALL {
            let chunk = ((slot + Self::FIRST) / Self::FIRST).ilog2();
            (
                chunk as usize,
                (slot + Self::FIRST - (Self::FIRST << chunk)) as usize,
            )
        } else {
            let slot = slot - Self::IN_SMALL;
            (
                (Self::SMALL + slot / Self::LARGEST) as usize,
                (slot % Self::LARGEST) as usize,
            )
        }
    }

    /// The first slot of a chunk.
    fn base(chunk: u32) -> u32 {
        match chunk < Self::SMALL {
            true => (Self::FIRST << chunk) - Self::FIRST,
            false => Self::IN_SMALL + (chunk - Self::SMALL) * Self::LARGEST,
        }
    }

    fn size(chunk: u32) -> u32 {
        Self::FIRST << chunk.min(Self::SMALL)
    }

    /// The bits of all slots of a chunk.
    fn all(chunk: u32) -> u64 {
        u64::MAX >> (u64::BITS - Self::size(chunk))
    }

    /// The item in a slot that is taken.
    #[inline]
    pub(super) fn get(&self, slot: u32) -> &Item {
        let (chunk, place) = Self::place(slot);
        &self.chunks[chunk].items[place]
    }

    /// Returns whether a slot is taken.
    #[inline]
    pub(super) fn is_taken(&self, slot: u32) -> bool {
        let (chunk, place) = Self::place(slot);
        let chunk = self.chunks.get(chunk);
        chunk.is_some_and(|chunk| chunk.vacant & (1 << place) == 0)
    }

    /// The items in slots that are taken, in the order of their slots.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Item> {
        self.chunks.iter().zip(0..).flat_map(|(chunk, at)| {
            let mut taken = Self::all(at) & !chunk.vacant;
            iter::from_fn(move || {
                let item = chunk.items.get(taken.trailing_zeros() as usize)?;
                taken &= taken - 1;
                Some(item)
            })
        })
    }

    /// The first slot from `from` on that is taken, and its item.
    #[inline]
    pub(super) fn next_taken(&self, from: u32) -> Option<(u32, &Item)> {
        let (first, place) = Self::place(from);
        let mut places = u64::MAX << place;
        for (at, chunk) in self.chunks.iter().enumerate().skip(first) {
            let at = u32::try_from(at).ok()?;
            let taken = Self::all(at) & !chunk.vacant & places;
            if taken != 0 {
                let place = taken.trailing_zeros();
                return Some((Self::base(at) + place, &chunk.items[place as usize]));
            }
            places = u64::MAX;
        }
        None
    }

    /// Takes a vacant slot for an item of `set`; none if there is no memory.
    pub(super) fn take(&mut self, set: *const Description<Set>) -> Option<u32> {
        if self.with_room == NONE {
            self.add_chunk(set)?;
        }
        let at = self.with_room;
        let chunk = &mut self.chunks[at as usize];
        let place = chunk.vacant.trailing_zeros();
        chunk.vacant &= chunk.vacant - 1;
        let is_full = chunk.vacant == 0;
        self.vacant -= 1;
        if is_full {
            self.with_room = self.unlink(self.with_room, at);
        }
        Some(Self::base(at) + place)
    }

    /// Makes room in a chunk that had been given back, or in a new one.
    #[cold]
    fn add_chunk(&mut self, set: *const Description<Set>) -> Option<()> {
        let at = match self.given_back {
            NONE => u32::try_from(self.chunks.len()).ok()?,
            at => at,
        };
        let size = Self::size(at);
        Self::base(at).checked_add(size)?;
        let mut items = Vec::new();
        items.try_reserve_exact(size as usize).ok()?;
        if self.given_back == NONE {
            self.chunks.try_reserve(1).ok()?;
            self.chunks.push(Chunk {
                items: Box::default(),
                vacant: Self::all(at),
                next: NONE,
                prev: NONE,
            });
        } else {
            self.given_back = self.unlink(self.given_back, at);
        }
        items.extend((0..size).map(|_| Item::vacant(set)));
        self.chunks[at as usize].items = items.into_boxed_slice();
        self.vacant += size;
        self.with_room = self.link(self.with_room, at);
        Some(())
    }

    /// Takes back a slot whose item is linked nowhere any more. Its memory may go.
    pub(super) fn give(&mut self, slot: u32) {
        let (at, place) = Self::place(slot);
        let chunk = &mut self.chunks[at];
        let was_full = chunk.vacant == 0;
        chunk.vacant |= 1 << place;
        let vacant = chunk.vacant;
        self.vacant += 1;
        let Ok(at) = u32::try_from(at) else { return };
        if was_full {
            self.with_room = self.link(self.with_room, at);
        }
        if vacant == Self::all(at) {
            self.emptied(at);
        }
    }

    /// Frees the memory of the chunk `at`, which has become empty, and of the last chunks, if there
    /// is enough room without. The last chunks are freed first, so that the list of chunks becomes
    /// shorter.
    fn emptied(&mut self, at: u32) {
        while let Some(last) = self.chunks.len().checked_sub(1)
            && let Ok(last) = u32::try_from(last)
        {
            let is_spared = self.vacant < Self::size(last) + Self::KEPT && self.given_back == NONE;
            if !self.chunks[last as usize].has_memory() {
                self.given_back = self.unlink(self.given_back, last);
                self.chunks.pop();
            } else if self.chunks[last as usize].vacant == Self::all(last) && !is_spared {
                self.give_back(last);
            } else {
                break;
            }
        }
        let is_there = self.chunks.get(at as usize).is_some_and(Chunk::has_memory);
        if is_there && self.vacant >= Self::size(at) + Self::KEPT {
            self.give_back(at);
        }
        if self.chunks.capacity() > 64 && self.chunks.len() < self.chunks.capacity() / 4 {
            // Without memory for a shorter list it stays as it is.
            let mut shorter = Vec::new();
            if shorter.try_reserve_exact(2 * self.chunks.len()).is_ok() {
                shorter.append(&mut self.chunks);
                self.chunks = shorter;
            }
        }
    }

    /// Frees the memory of an empty chunk.
    fn give_back(&mut self, at: u32) {
        self.with_room = self.unlink(self.with_room, at);
        self.chunks[at as usize].items = Box::default();
        self.vacant -= Self::size(at);
        self.given_back = self.link(self.given_back, at);
    }

    /// Puts a chunk before the list that begins with `first`; returns the new first one.
    fn link(&mut self, first: u32, at: u32) -> u32 {
        if let Some(behind) = self.chunks.get_mut(first as usize) {
            behind.prev = at;
        }
        let chunk = &mut self.chunks[at as usize];
        chunk.next = first;
        chunk.prev = NONE;
        at
    }

    /// Takes a chunk out of the list that begins with `first`; returns the first one left.
    fn unlink(&mut self, first: u32, at: u32) -> u32 {
        let Chunk { next, prev, .. } = self.chunks[at as usize];
        if let Some(behind) = self.chunks.get_mut(next as usize) {
            behind.prev = prev;
        }
        match self.chunks.get_mut(prev as usize) {
            Some(before) => {
                before.next = next;
                first
            }
            None => next,
        }
    }
}
