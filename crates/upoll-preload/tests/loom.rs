//! A model of the lists of free blocks, checked by loom: each block is one thread's at a time, and what
//! its last owner has written is seen by the next.
#![cfg(upoll_loom)]

#[path = "../src/heap/free_list.rs"]
mod free_list;

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU32;
use loom::thread;

use crate::free_list::FreeList;

/// Blocks 1 to 3, with what is in them.
struct Heap {
    free: FreeList,
    links: [AtomicU32; 4],
    contents: [UnsafeCell<u32>; 4],
}

impl Heap {
    fn new() -> Self {
        let heap = Heap {
            free: FreeList::new(),
            links: std::array::from_fn(|_| AtomicU32::new(0)),
            contents: std::array::from_fn(|_| UnsafeCell::new(0)),
        };
        heap.give([3, 2, 1]);
        heap
    }

    fn take(&self) -> Option<u32> {
        let block = self.free.pop(|block| &self.links[block as usize])?;
        // SAFETY: loom finds it out if another thread has the block as well.
        self.contents[block as usize].with_mut(|content| unsafe { *content += 1 });
        Some(block)
    }

    fn give(&self, blocks: impl IntoIterator<Item = u32>) {
        self.free.push(blocks, |block| &self.links[block as usize]);
    }
}

// SAFETY: the contents are the owner's of the block; loom checks that it is one.
unsafe impl Sync for Heap {}

#[test]
fn a_block_has_one_owner_at_a_time() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let heap = Arc::new(Heap::new());
        let other = thread::spawn({
            let heap = Arc::clone(&heap);
            move || {
                let [first, second] = [heap.take(), heap.take()];
                heap.give(first);
                heap.give(second);
                heap.take()
            }
        });
        let first = heap.take();
        heap.give(first);
        let mine = heap.take();
        let theirs = other.join().unwrap();
        let mut owned: Vec<_> = [mine, theirs].into_iter().flatten().collect();
        while let Some(block) = heap.take() {
            owned.push(block);
        }
        owned.sort_unstable();
        assert_eq!(owned, [1, 2, 3]);
    });
}
