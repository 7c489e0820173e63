//! Cells: wakers that were taken out of their slots, until they are called.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
// Not loom's: the cells of a thread are its own, and all others are handed over under a lock.
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use core::task::Waker;

/// Room for `N` wakers. A signal handler may use it whatever it has interrupted.
pub(super) struct Cells<const N: usize>([Room; N]);

struct Room {
    is_taken: AtomicBool,
    /// The next job in the list that the cell is in.
    next: AtomicPtr<()>,
    /// Written while there is a [`Cell`] of it.
    waker: UnsafeCell<MaybeUninit<Waker>>,
}

// SAFETY: the waker is touched by the one owner of the `FreeCell` or `Cell` alone; a waker may be used by any
// thread.
unsafe impl Sync for Room {}

/// A cell that holds a waker, and is its owner's.
pub(super) struct Cell(FreeCell);

/// A cell without a waker, which is its owner's until it is dropped. The room outlives it ([`Cells::free`]).
pub(super) struct FreeCell(NonNull<Room>);

impl<const N: usize> Cells<N> {
    pub(super) const fn new() -> Self {
        Cells(
            [const {
                Room {
                    is_taken: AtomicBool::new(false),
                    next: AtomicPtr::new(ptr::null_mut()),
                    waker: UnsafeCell::new(MaybeUninit::uninit()),
                }
            }; N],
        )
    }

    /// Returns a cell that nobody has.
    ///
    /// # Safety
    /// The room outlives the result, and the cell that is made of it.
    #[inline]
    pub(super) unsafe fn free(&self) -> Option<FreeCell> {
        let is_free = |room: &&Room| {
            !room.is_taken.load(Ordering::Relaxed) && !room.is_taken.swap(true, Ordering::Acquire)
        };
        let room = self.0.iter().find(is_free)?;
        Some(FreeCell(NonNull::from(room)))
    }
}

impl FreeCell {
    #[inline]
    pub(super) fn fill(self, waker: Waker) -> Cell {
        // SAFETY: a room has one owner at a time: `free` has found it vacant, and only its owner frees it.
        unsafe { (*self.room().waker.get()).write(waker) };
        Cell(self)
    }

    #[inline]
    fn room(&self) -> &Room {
        // SAFETY: the room outlives this (`Cells::free`'s contract).
        unsafe { self.0.as_ref() }
    }
}

impl Drop for FreeCell {
    #[inline]
    fn drop(&mut self) {
        self.room().is_taken.store(false, Ordering::Release);
    }
}

impl Cell {
    /// Takes the waker out. The cell is free then.
    #[inline]
    pub(super) fn take(self) -> Waker {
        // SAFETY: `fill` wrote it for this owner, and the cell is used up: nobody reads it once more.
        unsafe { (*self.0.room().waker.get()).assume_init_read() }
    }

    pub(super) fn next(&self) -> &AtomicPtr<()> {
        &self.0.room().next
    }

    pub(super) fn as_raw(&self) -> *mut () {
        self.0.0.as_ptr().cast()
    }

    /// # Safety
    /// `cell` is from [`as_raw`](Self::as_raw) of a cell that is forgotten, and is taken over once.
    pub(super) unsafe fn from_raw(cell: NonNull<()>) -> Self {
        Cell(FreeCell(cell.cast()))
    }
}
