//! The rotating sets whose events a thread may have: it forwards the events when it ends.

use alloc::vec::Vec;
use core::cell::RefCell;
use core::ptr::NonNull;

use smallvec::SmallVec;

use super::Set;
use super::ctl::{Forgotten, as_set};
use super::interest::state;
use crate::errno::Errno;
use crate::events::Events;
use crate::file::{Description, Held, PollTable, Pollable};
use crate::memory::SharedBox;
use crate::sync::Mutex;
use crate::wait::Scope;

/// The way to a rotating set, for as long as that is open. It keeps nothing of the set alive.
pub(crate) struct Handover(Mutex<Option<NonNull<Description<Set>>>>);

// SAFETY: the pointer is followed only under the lock, where the set is open and therefore alive;
// `Set` is `Send` and `Sync`.
unsafe impl Send for Handover {}
// SAFETY: see `Send`.
unsafe impl Sync for Handover {}

impl Handover {
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    pub(super) fn new() -> Result<SharedBox<Self>, Errno> {
        SharedBox::new(Handover(Mutex::new(None)))
    }

    /// Leads to `set` from now on. The set calls [`close`](Self::close) before its memory goes.
    pub(super) fn open(&self, set: NonNull<Description<Set>>) {
        *self.0.lock() = Some(set);
    }

    pub(super) fn close(&self) {
        *self.0.lock() = None;
    }

    /// Returns whether the rotating set is open.
    pub(crate) fn is_open(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Offers what is ready in the rotating set to the next worker in line: the thread that was
    /// served does not come back.
    pub(crate) fn run(&self) {
        let rotating = {
            let set = self.0.lock();
            // SAFETY: a set closes its handover before its last reference goes, and waits for this
            // lock to do so. It has a reference until then.
            set.map(|set| unsafe { Held::new(set) })
        };
        let Some(rotating) = rotating else { return };
        let set = rotating.object();
        if set.poll(&mut PollTable::without_waiter()).is_empty() {
            return;
        }
        set.sleepers.forward_in_turn(Events::IN);
        set.watched_by.forward_in_turn(Events::IN);
    }
}

/// The rotating sets whose events this thread may have. Offers what is ready in them to the next worker
/// when the thread ends.
struct ServedBy(Vec<SharedBox<Handover>>);

impl Drop for ServedBy {
    fn drop(&mut self) {
        for rotating in self.0.drain(..) {
            rotating.run();
        }
    }
}

crate::sync::thread_locals! {
    static SERVED_BY: RefCell<ServedBy> = const { RefCell::new(ServedBy(Vec::new())) };
}

/// Forwards the events of an ending thread of a model.
#[cfg(upoll_loom)]
pub fn end_thread() {
    drop(SERVED_BY.with(|served_by| served_by.replace(ServedBy(Vec::new()))));
}

/// Notes that the calling thread may have an event of each rotating set at or below `set`, which has just
/// shown it that it is ready.
#[inline]
pub fn remember(set: &Set) {
    if set.takes_turns() {
        remember_all(set);
    }
}

#[inline(never)]
fn remember_all(set: &Set) {
    // A thread that is about to end has no place for it, nor has a signal handler that interrupts this.
    let _ = SERVED_BY.try_with(|served_by| {
        if let Ok(mut served_by) = served_by.try_borrow_mut() {
            served_by.add(set);
        }
    });
}

impl ServedBy {
    fn add(&mut self, set: &Set) {
        if let Some(handover) = &set.handover {
            let is_known = self
                .0
                .iter()
                .any(|known| SharedBox::ptr_eq(known, handover));
            if !is_known {
                self.0.retain(|known| known.is_open());
                // Without memory for it the event is not forwarded when the thread ends.
                if self.0.try_reserve(1).is_ok() {
                    self.0.push(SharedBox::clone(handover));
                }
            }
        }
        if set.is_above_rotating() {
            for item in set.lock().rotating() {
                if let Some(below) = as_set(item.file()) {
                    self.add(below);
                }
            }
        }
    }
}

/// Forwards the events of rotating sets at or below `set` that it was chosen for, and that the
/// calling thread, whose poll of it has just ended, has not seen.
#[inline]
pub fn forward_unseen(set: &Set) {
    if set.is_above_rotating() {
        let _scope = Scope::enter();
        let mut unseen = Unseen::new();
        loop {
            let are_all = disclaim_below(set, &mut unseen);
            unseen.drain(..).for_each(Forgotten::finish);
            if are_all {
                break;
            }
        }
    }
}

/// Claims to forward once no lock is held. There is room for one at least without more memory.
type Unseen = SmallVec<[Forgotten; 1]>;

/// Takes the claims of the items below. Returns whether it has all of them: not if there was no room for more.
fn disclaim_below(set: &Set, unseen: &mut Unseen) -> bool {
    for item in set.lock().rotating() {
        if unseen.try_reserve(1).is_err() {
            return false;
        }
        if item.state() & state::ROTATING != 0 {
            unseen.extend(Forgotten::disclaim(item));
        } else if let Some(below) = as_set(item.file())
            && !disclaim_below(below, unseen)
        {
            return false;
        }
    }
    true
}
