//! Allocations that fail with `ENOMEM`. The functions of `alloc` end the process instead.

use alloc::alloc::{Layout, alloc};
use alloc::boxed::Box;
use alloc::string::String;
use core::fmt;
use core::ops::Deref;
use core::ptr::NonNull;

use crate::errno::Errno;
use crate::sync::{AtomicUsize, Ordering, fence};

/// Moves `value` to the heap.
///
/// # Errors
/// `ENOMEM`: there is no memory for it. The value is dropped.
#[inline]
pub fn boxed<T>(value: T) -> Result<Box<T>, Errno> {
    if size_of::<T>() == 0 {
        // This takes no memory.
        return Ok(Box::new(value));
    }
    // SAFETY: the layout has a size.
    let place = unsafe { alloc(Layout::new::<T>()) }.cast::<T>();
    if place.is_null() {
        return Err(Errno::NOMEM);
    }
    // SAFETY: the memory is new and has the layout of a `T`; it comes from the allocator that `Box` uses.
    unsafe {
        place.write(value);
        Ok(Box::from_raw(place))
    }
}

/// Returns the text that `show` writes.
///
/// # Errors
/// `ENOMEM`: there is no memory for it, or `show` had none for something else.
pub fn text_of(show: impl FnOnce(&mut dyn fmt::Write) -> fmt::Result) -> Result<String, Errno> {
    let mut text = Text(String::new());
    show(&mut text).map_err(|_| Errno::NOMEM)?;
    Ok(text.0)
}

/// A text whose growth can fail.
struct Text(String);

impl fmt::Write for Text {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        self.0.try_reserve(more.len()).map_err(|_| fmt::Error)?;
        self.0.push_str(more);
        Ok(())
    }
}

/// A value on the heap with several owners, as `Arc`, whose making can fail.
#[derive(Debug)]
pub struct SharedBox<T>(NonNull<Counted<T>>);

#[derive(Debug)]
struct Counted<T> {
    owners: AtomicUsize,
    value: T,
}

// SAFETY: owners share the value, and any of them may be the one that drops it. The count is atomic.
unsafe impl<T: Send + Sync> Send for SharedBox<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Send + Sync> Sync for SharedBox<T> {}

impl<T> SharedBox<T> {
    /// Moves `value` to the heap.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it. The value is dropped.
    pub fn new(value: T) -> Result<Self, Errno> {
        let counted = boxed(Counted {
            owners: AtomicUsize::new(1),
            value,
        })?;
        Ok(SharedBox(NonNull::from(Box::leak(counted))))
    }

    /// Returns the address of the value, which differs for any two that exist at the same time.
    #[inline]
    pub fn as_ptr(this: &Self) -> *const T {
        &raw const **this
    }

    /// Returns whether both own the same value.
    #[inline]
    pub fn ptr_eq(one: &Self, other: &Self) -> bool {
        one.0 == other.0
    }

    /// Returns the number of owners. The caller sees what former owners did to the value.
    pub fn owners(this: &Self) -> usize {
        this.counted().owners.load(Ordering::Acquire)
    }

    /// Returns the place on the heap.
    pub(crate) fn as_raw(this: &Self) -> NonNull<()> {
        this.0.cast()
    }

    /// Returns the place on the heap, with this owner's part of the count.
    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) fn into_raw(this: Self) -> NonNull<()> {
        Self::as_raw(&core::mem::ManuallyDrop::new(this))
    }

    /// Takes over the part of the count that an owner has given up.
    ///
    /// # Safety
    /// `place` is from `into_raw` of a `SharedBox<T>`, or from `as_raw` of one that is forgotten, and is taken over
    /// once.
    pub(crate) unsafe fn from_raw(place: NonNull<()>) -> Self {
        SharedBox(place.cast())
    }

    fn counted(&self) -> &Counted<T> {
        // SAFETY: this is one of the owners that are counted, so the value has not been dropped.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Deref for SharedBox<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.counted().value
    }
}

impl<T> Clone for SharedBox<T> {
    #[inline]
    fn clone(&self) -> Self {
        count_one_more(&self.counted().owners);
        SharedBox(self.0)
    }
}

impl<T> Drop for SharedBox<T> {
    #[inline]
    fn drop(&mut self) {
        if self.counted().owners.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        // The accesses of other owners to the value happen before its drop.
        fence(Ordering::Acquire);
        // SAFETY: from `Box::leak` in `new`, and this was the last owner.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// One reference more in a count.
///
/// # Panics
/// There are too many: references that are forgotten, not dropped, would let the count begin anew, and
/// what is still referred to be freed.
#[inline]
pub(crate) fn count_one_more(references: &AtomicUsize) {
    if references.fetch_add(1, Ordering::Relaxed) > usize::MAX / 2 {
        // Else each caught panic would bring the count nearer to the end.
        references.fetch_sub(1, Ordering::Relaxed);
        panic!("too many references");
    }
}

#[cfg(all(test, feature = "std", not(upoll_loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::{Ordering, SharedBox};

    #[test]
    fn an_owner_beyond_what_can_be_counted_is_refused_and_does_not_count() {
        let shared = SharedBox::new(()).unwrap();
        let owners = &shared.counted().owners;
        owners.store(usize::MAX, Ordering::Relaxed);
        for _ in 0..3 {
            let clone = AssertUnwindSafe(|| drop(shared.clone()));
            assert!(catch_unwind(clone).is_err());
        }
        assert_eq!(owners.swap(1, Ordering::Relaxed), usize::MAX);
        drop(shared.clone());
    }
}
