//! What a thread that was served by a rotating set keeps of it, to hand its event on when it ends.

use alloc::sync::Arc;
use core::ptr::NonNull;

use super::Set;
use crate::events::Events;
use crate::file::{Description, Held, PollTable, Pollable};
use crate::sync::Mutex;

/// The way to a rotating set, for as long as that is open. It keeps nothing of the set alive.
pub(crate) struct Handover(Mutex<Option<NonNull<Description<Set>>>>);

// SAFETY: the pointer is followed only under the lock, where the set is open and therefore alive;
// `Set` is `Send` and `Sync`.
unsafe impl Send for Handover {}
// SAFETY: see above.
unsafe impl Sync for Handover {}

impl Handover {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Handover(Mutex::new(None)))
    }

    /// Leads to `set` from now on. The set calls [`close`](Self::close) before its memory goes.
    pub(super) fn open(&self, set: NonNull<Description<Set>>) {
        *self.0.lock() = Some(set);
    }

    pub(super) fn close(&self) {
        *self.0.lock() = None;
    }

    /// Whether the rotating set is open.
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
        if set.poll(&mut PollTable::look_only()).is_empty() {
            return;
        }
        set.sleepers.pass_on(Events::IN, true);
        set.watched_by.pass_on(Events::IN, true);
    }
}
