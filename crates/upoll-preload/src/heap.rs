//! The library's own heap: blocks in its own pages, allocated and freed without a lock.
//!
//! The C library's `malloc` is the program's: a signal handler that has interrupted it may call `dup`,
//! `close`, `pipe` or `fork`, which allocate here. A lock would have to be kept from handlers, from
//! forks and from children that share the memory. Without one, a thread that stops in the midst of an
//! allocation, or that the child of a fork does not have, leaves at most one block unused.
//!
//! Blocks have sizes of powers of two. Each size has a list of free blocks ([`FreeList`]), which
//! identifies them by the number of their first unit; units are numbered across all regions. Regions
//! are mapped when they are needed, each twice as large as the one before, and never unmapped. Larger
//! blocks are mappings of their own, which are unmapped when they are freed.

mod free_list;

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::kernel::call;

use self::free_list::FreeList;

/// The smallest block.
const UNIT: usize = 64;
/// Blocks of 64 bytes to 16 KiB.
const CLASSES: usize = 9;
const LARGEST: usize = UNIT << (CLASSES - 1);
/// The number of units that are taken from a region at once, and cut into blocks of one size.
const SPAN: u64 = 2 * (LARGEST / UNIT) as u64;
/// Units of the first region, of 256 KiB, and the number of its first unit. The highest bit of a
/// unit's number thus identifies its region, and no unit has number 0.
const FIRST: u64 = 4096;
/// The last region that numbers of 32 bits reach.
const REGIONS: usize = 20;
const PAGE: usize = 4096;

static FREE: [FreeList; CLASSES] = [const { FreeList::new() }; CLASSES];
/// The beginning of each region; null as long as it is not mapped.
static MAPPED: [AtomicPtr<u8>; REGIONS] = [const { AtomicPtr::new(ptr::null_mut()) }; REGIONS];
/// The first unit that was never part of a block.
static NEXT: AtomicU64 = AtomicU64::new(FIRST);

/// Allocates from these lists and regions.
struct Heap;

#[global_allocator]
static HEAP: Heap = Heap;

/// Returns the region that a unit is in.
fn region_of(unit: u64) -> usize {
    (unit / FIRST).ilog2() as usize
}

fn units_of(region: usize) -> u64 {
    FIRST << region
}

fn bytes_of(region: usize) -> usize {
    UNIT << (FIRST.ilog2() as usize + region)
}

/// Returns the size class of a layout, or `None` if it needs a mapping of its own.
fn class_of(layout: Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(UNIT);
    (size <= LARGEST && layout.align() <= PAGE)
        .then(|| (size.next_power_of_two() / UNIT).ilog2() as usize)
}

/// Maps pages that are all zeros; null if there is no memory.
fn map(bytes: usize) -> *mut u8 {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    match call!(SYS_mmap, 0, bytes, access, kind, -1_isize, 0) {
        Ok(address) => ptr::with_exposed_provenance_mut(address),
        Err(_) => ptr::null_mut(),
    }
}

fn unmap(place: *mut u8, bytes: usize) {
    let _ = call!(SYS_munmap, place.expose_provenance(), bytes);
}

/// Returns the beginning of a region, which it maps if necessary; null if there is no memory.
fn mapped(region: usize) -> *mut u8 {
    let Some(place) = MAPPED.get(region) else {
        return ptr::null_mut();
    };
    let known = place.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let bytes = bytes_of(region) + size_of_links(region);
    let new = map(bytes);
    if new.is_null() {
        return new;
    }
    match place.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => new,
        Err(first) => {
            unmap(new, bytes);
            first
        }
    }
}

/// Behind the blocks of a region there is a word for each of its units: the number of the next free
/// block. It is not in the block itself, because the block's next owner may write there while a slower
/// thread reads.
fn size_of_links(region: usize) -> usize {
    size_of::<AtomicU32>() << (FIRST.ilog2() as usize + region)
}

/// Returns the link of the block that begins with a unit.
fn link(unit: u32) -> &'static AtomicU32 {
    let region = region_of(unit.into());
    let base = MAPPED[region].load(Ordering::Acquire);
    let at = (u64::from(unit) - units_of(region)) as usize;
    let links = base.wrapping_add(bytes_of(region)).cast::<AtomicU32>();
    // SAFETY: a unit that has a number is in a region that is mapped for good, with a word for each unit,
    // of which there are `units_of(region)`.
    unsafe { &*links.wrapping_add(at) }
}

fn address_of(unit: u32) -> *mut u8 {
    let region = region_of(unit.into());
    let at = (u64::from(unit) - units_of(region)) as usize;
    MAPPED[region]
        .load(Ordering::Acquire)
        .wrapping_add(at * UNIT)
}

/// Returns the number of the first unit of a block.
fn unit_at(block: *mut u8) -> Option<u32> {
    MAPPED.iter().enumerate().find_map(|(region, base)| {
        let base = base.load(Ordering::Relaxed);
        let at = block.addr().wrapping_sub(base.addr());
        let is_within = !base.is_null() && at < bytes_of(region);
        is_within.then(|| (units_of(region) + (at / UNIT) as u64) as u32)
    })
}

/// Takes a span from the regions and cuts it into blocks of a size: one for the caller, the others for
/// the list.
#[cold]
fn new_blocks(class: usize) -> *mut u8 {
    let mut first = NEXT.load(Ordering::Relaxed);
    loop {
        if first + SPAN > u64::from(u32::MAX) || mapped(region_of(first)).is_null() {
            return ptr::null_mut();
        }
        let after = first + SPAN;
        match NEXT.compare_exchange(first, after, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => first = now,
        }
    }
    let (own, last) = (first as u32, (first + SPAN) as u32);
    let step = 1_usize << class;
    let blocks = (own..last).step_by(step).skip(1);
    FREE[class].push(blocks, link);
    address_of(own)
}

// SAFETY: a block is in one list, or one caller's: `FreeList` gives each number to one caller, and new ones
// are taken from `NEXT` once. Its size and alignment are the class's, which is at least the layout's; spans
// are aligned to their size within a region, which is aligned to a page. Mappings are the caller's alone.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class_of(layout) else {
            return map_aligned(layout);
        };
        match FREE[class].pop(link) {
            Some(unit) => address_of(unit),
            None => new_blocks(class),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract.
        let block = unsafe { self.alloc(layout) };
        if !block.is_null() && class_of(layout).is_some() {
            // SAFETY: the block is new, and has that size.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class_of(layout) {
            Some(class) => {
                if let Some(unit) = unit_at(block) {
                    FREE[class].push(std::iter::once(unit), link);
                }
            }
            None => unmap(block, layout.size()),
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's contract: the size does not overflow.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (class_of(layout), class_of(new)) {
            (Some(old), Some(new)) if old == new => block,
            (None, None) if layout.align() <= PAGE => {
                let address = block.expose_provenance();
                let may_move = libc::MREMAP_MAYMOVE;
                match call!(SYS_mremap, address, layout.size(), size, may_move) {
                    Ok(moved) => ptr::with_exposed_provenance_mut(moved),
                    Err(_) => ptr::null_mut(),
                }
            }
            _ => {
                // SAFETY: the caller's contract; both blocks are live, and as large as they are said to be.
                unsafe {
                    let place = self.alloc(new);
                    if !place.is_null() {
                        place.copy_from_nonoverlapping(block, layout.size().min(size));
                        self.dealloc(block, layout);
                    }
                    place
                }
            }
        }
    }
}

/// Maps memory, aligned to more than a page if necessary.
fn map_aligned(layout: Layout) -> *mut u8 {
    let (size, align) = (layout.size().next_multiple_of(PAGE), layout.align());
    if align <= PAGE {
        return map(size);
    }
    let Some(bytes) = size.checked_add(align) else {
        return ptr::null_mut();
    };
    let whole = map(bytes);
    if whole.is_null() {
        return whole;
    }
    let before = whole.align_offset(align);
    let place = whole.wrapping_add(before);
    if before > 0 {
        unmap(whole, before);
    }
    if before < align {
        unmap(place.wrapping_add(size), align - before);
    }
    place
}
