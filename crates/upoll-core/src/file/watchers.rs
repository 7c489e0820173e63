//! The items that watch an open file, in an intrusive list.

use core::ptr;

use super::FileId;
use crate::sync::{Mutex, UnsafeCell};

/// The list of items that watch a description, and the function that its close calls.
pub struct Watchers {
    head: *const WatcherLink,
    /// Takes every watcher out. Set by the first watcher, the same for all: only sets watch.
    on_close: Option<OnClose>,
}

/// Takes every watcher out of the list of a file that closes.
pub(crate) type OnClose = fn(FileId, &Mutex<Watchers>);

// SAFETY: the pointers lead to links that are linked, and a link outlives its being linked
// (`Watchers::link`'s contract).
unsafe impl Send for Watchers {}

/// An item's place among the watchers of its file; guarded by that file's `watchers` lock.
pub struct WatcherLink(UnsafeCell<Neighbours>);

struct Neighbours {
    next: *const WatcherLink,
    prev: *const WatcherLink,
}

// SAFETY: touched only under the lock of the watcher list that it is linked into, or by its owner
// while it is linked nowhere.
unsafe impl Send for WatcherLink {}
// SAFETY: as above.
unsafe impl Sync for WatcherLink {}

impl WatcherLink {
    pub(crate) fn new() -> Self {
        WatcherLink(UnsafeCell::new(Neighbours {
            next: ptr::null(),
            prev: ptr::null(),
        }))
    }
}

impl Watchers {
    pub(super) const fn new() -> Self {
        Watchers {
            head: ptr::null(),
            on_close: None,
        }
    }

    /// Returns the function that takes every watcher out, if there ever was one.
    pub(super) fn on_close(&self) -> Option<OnClose> {
        self.on_close
    }

    /// # Safety
    /// The link is in no list, stays put, and outlives its being linked.
    pub unsafe fn link(&mut self, link: &WatcherLink, on_close: OnClose) {
        self.on_close = Some(on_close);
        let next = self.head;
        link.0.with_mut(|node| {
            // SAFETY: the caller's `&mut self` is the list's lock.
            unsafe {
                *node = Neighbours {
                    next,
                    prev: ptr::null(),
                }
            }
        });
        if !next.is_null() {
            // SAFETY: linked links are alive; the lock is held.
            unsafe { (*next).0.with_mut(|node| (*node).prev = link) };
        }
        self.head = link;
    }

    /// # Safety
    /// The link is in this list.
    pub unsafe fn unlink(&mut self, link: &WatcherLink) {
        // SAFETY: the caller's `&mut self` is the list's lock.
        let (next, prev) = link.0.with(|node| unsafe { ((*node).next, (*node).prev) });
        if prev.is_null() {
            self.head = next;
        } else {
            // SAFETY: linked links are alive; the lock is held.
            unsafe { (*prev).0.with_mut(|node| (*node).next = next) };
        }
        if !next.is_null() {
            // SAFETY: as above.
            unsafe { (*next).0.with_mut(|node| (*node).prev = prev) };
        }
    }

    /// The links from the newest to the oldest.
    pub(crate) fn iter(&self) -> impl Iterator<Item = *const WatcherLink> + '_ {
        self.iter_from(self.head)
    }

    /// The links that are older than `link`.
    ///
    /// # Safety
    /// The link is in this list.
    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) unsafe fn iter_behind(
        &self,
        link: &WatcherLink,
    ) -> impl Iterator<Item = *const WatcherLink> + '_ {
        // SAFETY: `&self` borrows the locked list, which the link is in.
        self.iter_from(link.0.with(|node| unsafe { (*node).next }))
    }

    /// The links from `at` on, which is null or in this list.
    fn iter_from(
        &self,
        mut at: *const WatcherLink,
    ) -> impl Iterator<Item = *const WatcherLink> + use<'_> {
        core::iter::from_fn(move || {
            let link = at;
            if link.is_null() {
                return None;
            }
            // SAFETY: linked links are alive; `&self` borrows the locked list.
            at = unsafe { (*link).0.with(|node| (*node).next) };
            Some(link)
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head.is_null()
    }
}
