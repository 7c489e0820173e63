//! The kernel fds that a set watches, as the library knows them.
//!
//! The kernel set has the same list, but shows it through `/proc` alone, and is gone when the
//! program closes its fd. This list is exact but for interests whose file was closed. The kernel
//! drops those without notice, so readers check each entry.

use std::os::fd::RawFd;

use once_cell::race::OnceBox;

use super::{kernel, own_fds};
use crate::epoll::Op;
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::memory::boxed;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The interest in one fd.
struct Slot {
    /// 0, [`ONCE`] or [`AGAIN`].
    is_watched: AtomicU32,
    events: AtomicU32,
    data: AtomicU64,
    inode: AtomicU64,
}

impl Slot {
    fn new() -> Self {
        Slot {
            is_watched: AtomicU32::new(0),
            events: AtomicU32::new(0),
            data: AtomicU64::new(0),
            inode: AtomicU64::new(0),
        }
    }
}

/// Slots for fds in buckets that double in size, so that a change is two loads and a few stores.
pub(super) struct InterestList {
    buckets: [OnceBox<Box<[Slot]>>; BUCKETS],
}

const ONCE: u32 = 1;
const AGAIN: u32 = 2;

/// loom has room for few atomics.
const FIRST_BITS: u32 = if cfg!(upoll_loom) { 1 } else { 6 };
const BUCKETS: usize = (i32::BITS - FIRST_BITS) as usize;

/// One interest.
#[derive(Clone, Copy)]
pub(super) struct Listed {
    pub(super) fd: RawFd,
    pub(super) interest: Event,
    /// There was an interest in the fd before that had not left by itself.
    pub(super) is_again: bool,
    /// The inode of the file when the interest was added; 0 if it is not known.
    pub(super) inode: u64,
}

/// Returns the inode of a member that was just added, for readers that find another file under its fd. It is 0, as
/// not known, where the library's own fds are out of the program's reach.
pub(super) fn inode_to_list(fd: RawFd) -> u64 {
    match own_fds::may_be_lost() {
        true => kernel::inode(fd).unwrap_or(0),
        false => 0,
    }
}

/// The bucket of an fd, and its place there. Bucket `n` has `64 << n` slots.
fn place(fd: RawFd) -> Option<(usize, usize)> {
    let fd = u32::try_from(fd).ok()?;
    let shifted = fd.checked_add(1 << FIRST_BITS)?;
    let bucket = shifted.ilog2() - FIRST_BITS;
    Some((
        bucket as usize,
        (shifted - (1 << (bucket + FIRST_BITS))) as usize,
    ))
}

impl InterestList {
    pub(super) fn new() -> Self {
        InterestList {
            buckets: [const { OnceBox::new() }; BUCKETS],
        }
    }

    fn slot(&self, fd: RawFd) -> Option<&Slot> {
        let (bucket, at) = place(fd)?;
        self.buckets.get(bucket)?.get().map(|slots| &slots[at])
    }

    /// Returns whether there is room for an interest in `fd`.
    #[inline]
    pub(super) fn has_room(&self, fd: RawFd) -> bool {
        self.slot(fd).is_some()
    }

    /// Makes room for an interest in `fd`.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    pub(super) fn prepare(&self, fd: RawFd) -> Result<(), Errno> {
        let Some((bucket, _)) = place(fd) else {
            return Ok(());
        };
        self.buckets[bucket].get_or_try_init(|| {
            let count = 1_usize << (bucket as u32 + FIRST_BITS);
            let mut slots = Vec::new();
            slots.try_reserve_exact(count).map_err(|_| Errno::NOMEM)?;
            slots.extend((0..count).map(|_| Slot::new()));
            boxed(slots.into_boxed_slice())
        })?;
        Ok(())
    }

    /// Records an interest, for which room has been [made](Self::prepare).
    fn add(&self, fd: RawFd, interest: &Event, inode: u64) {
        let Some(slot) = self.slot(fd) else {
            return;
        };
        slot.inode.store(inode, Ordering::Relaxed);
        slot.data.store(interest.data(), Ordering::Relaxed);
        slot.events
            .store(interest.events().bits(), Ordering::Relaxed);
        let before = slot.is_watched.load(Ordering::Relaxed);
        let now = if before == 0 { ONCE } else { AGAIN };
        slot.is_watched.store(now, Ordering::Release);
    }

    /// A change was made in the kernel set.
    #[inline]
    pub(super) fn change(&self, op: Op, fd: RawFd, interest: &Event) {
        match op {
            Op::Add => self.add(fd, interest, inode_to_list(fd)),
            Op::Mod => self.modify(fd, interest),
            Op::Del => self.remove(fd),
        }
    }

    /// An interest was changed.
    #[inline]
    fn modify(&self, fd: RawFd, interest: &Event) {
        if let Some(slot) = self.slot(fd) {
            slot.data.store(interest.data(), Ordering::Relaxed);
            slot.events
                .store(interest.events().bits(), Ordering::Relaxed);
        }
    }

    /// An interest left.
    pub(super) fn remove(&self, fd: RawFd) {
        if let Some(slot) = self.slot(fd) {
            slot.is_watched.store(0, Ordering::Relaxed);
        }
    }

    /// All that came and did not leave, by fd.
    pub(super) fn iter(&self) -> impl Iterator<Item = Listed> {
        let buckets = self.buckets.iter().enumerate();
        buckets.flat_map(|(bucket, slots)| {
            let first = (1_i64 << (bucket as u32 + FIRST_BITS)) - (1 << FIRST_BITS);
            let slots = slots.get().map_or(&[][..], |slots| &slots[..]);
            slots.iter().enumerate().filter_map(move |(at, slot)| {
                let is_watched = slot.is_watched.load(Ordering::Acquire) != 0;
                let fd = RawFd::try_from(first + at as i64).ok()?;
                is_watched.then(|| Listed {
                    fd,
                    is_again: slot.is_watched.load(Ordering::Relaxed) == AGAIN,
                    interest: Event::new(
                        Events::from_bits_retain(slot.events.load(Ordering::Relaxed)),
                        slot.data.load(Ordering::Relaxed),
                    ),
                    inode: slot.inode.load(Ordering::Relaxed),
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fd_has_a_place_of_its_own_and_is_listed_in_order() {
        let list = InterestList::new();
        let fds = [0, 1, 63, 64, 65, 191, 192, 1000, 70_000];
        for fd in fds {
            list.prepare(fd).unwrap();
            list.add(fd, &Event::new(Events::IN, fd as u64), 1);
        }
        list.modify(64, &Event::new(Events::OUT, 7));
        list.remove(1000);
        let found: Vec<_> = list
            .iter()
            .map(|listed| (listed.fd, listed.interest.data()))
            .collect();
        let expected = [
            (0, 0),
            (1, 1),
            (63, 63),
            (64, 7),
            (65, 65),
            (191, 191),
            (192, 192),
            (70_000, 70_000),
        ];
        assert_eq!(found, expected);
        assert!(place(-1).is_none() && place(i32::MAX).is_some());
    }
}
