//! The two closes: of a watched file and of the set.
//!
//! An item is removed exactly once, by the thread that finds it in the interest list with the set's lock held.
//! That is a DEL, the close of the set, the close of the file, or an ADD that fails after it has inserted the item.
//! None of these takes a global lock, except that an ADD of a set holds one.

use core::ptr::NonNull;

use smallvec::SmallVec;

use super::item_of;
use crate::epoll::Set;
use crate::epoll::interest::Item;
use crate::events::Events;
use crate::file::{FileId, Held, Key, Watchers};
use crate::sync::{Mutex, Rule, broken};
use crate::wait::{Scope, WaitQueue};

impl Set {
    /// The last reference to the set is gone.
    pub(in crate::epoll) fn close(&self) {
        #[cfg(any(feature = "std", upoll_loom))]
        if let Some(handover) = &self.handover {
            handover.close();
        }
        let mut emptying = Emptying {
            set: self,
            claims: SmallVec::new(),
            slot: 0,
        };
        if let Some(backend) = self.backend() {
            backend.close();
        }
        self.watched_by.wake(Events::IN);
        {
            // First all hooks, so that no wake meets a half-taken set.
            let _scope = Scope::enter();
            let inner = self.lock();
            for item in inner.iter() {
                if emptying.claims.try_reserve(1).is_err() {
                    // The rest is unhooked as it is removed.
                    break;
                }
                if let Some(queue) = Self::unhook(&inner, item) {
                    // SAFETY: the item is registered, and the lock held.
                    let file = unsafe { (*item).file() }.clone();
                    emptying.claims.push((item, file, queue));
                }
            }
        }
        emptying.run();
    }

    /// Removes the item of a file that closed, unless another thread has done so. The caller is in a
    /// [`Scope`].
    fn remove_closed(&self, key: Key) {
        let mut left = None;
        let mut inner = self.lock();
        let removed = self.delete(&mut inner, key, &mut left);
        drop(inner);
        if broken(Rule::RecheckUnderSetLock) {
            assert!(removed.is_ok(), "somebody else removed the item");
        }
        if let Some(left) = left {
            left.finish();
        }
    }
}

/// Empties a set that closes, to the end even if foreign code panics on the way: nothing may lead
/// to the set when it is gone.
struct Emptying<'a> {
    set: &'a Set,
    /// Items that held a claim, on which queue of which file. Another file may be in the item's slot
    /// by now, if somebody calls `release` of a set that is open.
    claims: SmallVec<[(*const Item, Held, NonNull<WaitQueue>); 1]>,
    /// All slots before this one have been emptied.
    slot: u32,
}

impl Emptying<'_> {
    /// Nobody adds to a closed set, so one pass over the slots meets every item. Files that close
    /// meanwhile may take out theirs. Only if somebody calls `release` of a set that is open, and adds to
    /// it, are there more passes.
    fn run(&mut self) {
        let _scope = Scope::enter();
        loop {
            let mut inner = self.set.lock();
            let Some((item, next)) = inner.next_from(self.slot) else {
                if inner.count() == 0 {
                    break;
                }
                self.slot = 0;
                continue;
            };
            self.slot = next;
            // Unhooked already, unless the pass over the hooks was cut short, or somebody calls
            // `release` of a set that is open and adds to it.
            let claim = Set::unhook(&inner, item).or_else(|| {
                // SAFETY: the item is registered, and the lock held.
                let file = unsafe { (*item).file() };
                self.claims
                    .iter()
                    .find(|(claimed, of, _)| {
                        core::ptr::eq(*claimed, item) && FileId::of(of) == FileId::of(file)
                    })
                    .map(|&(_, _, queue)| queue)
            });
            let mut left = None;
            self.set.forget(&mut inner, item, claim, &mut left);
            drop(inner);
            if let Some(left) = left {
                left.finish();
            }
        }
    }
}

impl Drop for Emptying<'_> {
    fn drop(&mut self) {
        self.run();
    }
}

/// The last reference to a watched file is gone (`eventpoll_release_file`).
pub(super) fn on_file_close(identity: FileId, watchers: &Mutex<Watchers>) {
    // Its tasks may panic: not before all items have gone.
    let _scope = Scope::enter();
    loop {
        let (set, fd) = {
            let watchers = watchers.lock();
            let Some(link) = watchers.iter().next() else {
                return;
            };
            let item = item_of(link);
            // SAFETY: the item is linked and the watcher list locked: it is registered, so its
            // set has not finished closing and can be pinned.
            unsafe { ((*item).pin_set(), (*item).fd()) }
        };
        set.object().remove_closed((identity, fd));
        // Dropping the pin may free the set: all its locks are free.
    }
}
