//! A list of free blocks that are known by their numbers, last in, first out, without a lock.
//!
//! The head is one word: the number of the first block, and a count of the changes. A thread may be held up
//! after it has read the head and its link, while other threads take that block and another one, and free
//! the first. The thread then finds another count, and tries again. (It would find the same one only if it
//! were held up for exactly as many changes as 32 bits count.)

#[cfg(not(upoll_loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[cfg(upoll_loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// See the module. The caller knows where the link of a block is; the link can be read at any time.
pub(crate) struct FreeList {
    /// A count of changes above, the first block below; 0 if there is none.
    head: AtomicU64,
}

const COUNT_ONE: u64 = 1 << 32;

fn first_of(head: u64) -> u32 {
    (head & u64::from(u32::MAX)) as u32
}

fn next_head(head: u64, first: u32) -> u64 {
    (head & !u64::from(u32::MAX)).wrapping_add(COUNT_ONE) | u64::from(first)
}

impl FreeList {
    #[cfg(not(upoll_loom))]
    pub(crate) const fn new() -> Self {
        FreeList {
            head: AtomicU64::new(0),
        }
    }

    #[cfg(upoll_loom)]
    pub(crate) fn new() -> Self {
        FreeList {
            head: AtomicU64::new(0),
        }
    }

    /// Takes a block out.
    pub(crate) fn pop<'a>(&self, link: impl Fn(u32) -> &'a AtomicU32) -> Option<u32> {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let first = first_of(head);
            if first == 0 {
                return None;
            }
            // Out of date if the block is not the first any more; then the exchange fails.
            let next = link(first).load(Ordering::Relaxed);
            let taken = self.head.compare_exchange_weak(
                head,
                next_head(head, next),
                Ordering::Acquire,
                Ordering::Acquire,
            );
            match taken {
                Ok(_) => return Some(first),
                Err(now) => head = now,
            }
        }
    }

    /// Puts in blocks that are the caller's, in one step.
    pub(crate) fn push<'a>(
        &self,
        blocks: impl IntoIterator<Item = u32>,
        link: impl Fn(u32) -> &'a AtomicU32,
    ) {
        let mut blocks = blocks.into_iter();
        let Some(first) = blocks.next() else {
            return;
        };
        let last = blocks.fold(first, |before, block| {
            link(before).store(block, Ordering::Relaxed);
            block
        });
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            link(last).store(first_of(head), Ordering::Relaxed);
            let put = self.head.compare_exchange_weak(
                head,
                next_head(head, first),
                Ordering::Release,
                Ordering::Relaxed,
            );
            match put {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}
