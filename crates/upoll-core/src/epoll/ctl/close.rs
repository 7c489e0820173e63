//! The two closes: of a watched file and of the set.
//!
//! An item is removed exactly once, by the thread that finds it in the interest list with the set's lock held.
//! That is a DEL, the close of the set, the close of the file, or an ADD that fails after it has inserted the item.
//! None of these takes a global lock, except that an ADD of a set holds one.

use core::ptr::NonNull;

use smallvec::SmallVec;

use crate::epoll::Set;
use crate::epoll::interest::{Item, Registered};
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
            let locked = self.lock();
            for item in locked.iter() {
                if emptying.claims.try_reserve(1).is_err() {
                    // The rest is unhooked as it is removed.
                    break;
                }
                if let Some(queue) = item.unhook() {
                    let file = item.file().clone();
                    emptying.claims.push((item.as_ptr(), file, queue));
                }
            }
        }
        emptying.run();
    }

    /// Removes the item of a file that closed, unless another thread has done so. The caller is in a
    /// [`Scope`].
    fn remove_closed(&self, key: Key) {
        let mut left = None;
        let removed = self.lock().delete(key, &mut left);
        if broken(Rule::RecheckUnderSetLock) {
            assert!(removed.is_ok(), "somebody else removed the item");
        }
        if let Some(left) = left {
            left.finish();
        }
    }
}

/// An item that held a claim, its file, and the queue.
type Claim = (NonNull<Item>, Held, NonNull<WaitQueue>);

/// Empties a set that closes, to the end even if foreign code panics on the way: nothing may lead
/// to the set when it is gone.
struct Emptying<'a> {
    set: &'a Set,
    /// Another file may be in the item's slot by now, if somebody calls `release` of a set that is open.
    claims: SmallVec<[Claim; 1]>,
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
            let mut locked = self.set.lock();
            let Some((slot, item)) = locked.next_mut(self.slot) else {
                if locked.count() == 0 {
                    break;
                }
                self.slot = 0;
                continue;
            };
            self.slot = slot + 1;
            // The pass over the hooks has unhooked it, unless that was cut short, or somebody calls
            // `release` of a set that is open and adds to it.
            let (place, file) = (item.get().as_ptr(), FileId::of(item.get().file()));
            let mut claims = self.claims.iter();
            let known = claims
                .find(|(claimed, of, _)| *claimed == place && FileId::of(of) == file)
                .map(|&(_, _, queue)| queue);
            let mut left = None;
            item.forget(known, &mut left);
            drop(locked);
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
            let Some(item) = Registered::among(&watchers).next() else {
                return;
            };
            (item.pin_set(), item.fd())
        };
        set.object().remove_closed((identity, fd));
        // Dropping the pin may free the set: all its locks are free.
    }
}
