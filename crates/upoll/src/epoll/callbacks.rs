//! Callbacks and tasks that wait for a set, and members that could not wake them.
//!
//! A kernel fd or a shared eventfd wakes only threads that sleep in the kernel. While no thread
//! waits for it, nothing runs in this process when it becomes ready. So a set that has such a
//! member, directly or in a set below, accepts no callback. A set that has a callback, or is below
//! one that has, accepts no such member. Each side publishes first and then checks for the other:
//! of two concurrent calls at least one is refused.

use core::sync::atomic::AtomicUsize as StaticCount;

use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;

use super::Set;
use super::ctl::as_set;
use super::nesting::sets_above;
use crate::errno::Errno;
use crate::events::Events;
use crate::file::{Description, FileId, FileRef, Held};
use crate::sync::Ordering;

/// Callbacks on sets in the whole process: an ADD need not look for any while there are none.
#[cfg(not(upoll_loom))]
static CALLBACKS: StaticCount = StaticCount::new(0);

#[cfg(upoll_loom)]
loom::lazy_static! {
    /// Each run of a model has its own: those of other models come and go meanwhile.
    static ref CALLBACKS: StaticCount = StaticCount::new(0);
}

/// Sets that a walk has visited.
type Visited = HashSet<FileId, FxBuildHasher>;

/// A callback or task that waits for a file. Counts as one of the set's if it is a set.
pub(crate) struct SetCallback(Option<Held>);

impl SetCallback {
    /// # Errors
    /// `EPERM`: `file` is a set with a member that cannot wake it for `interest`. `ENOMEM`: there is no memory
    /// to walk the sets below.
    pub(crate) fn begin(file: FileRef<'_>, interest: Events) -> Result<Self, Errno> {
        let set = as_set(file.description()).filter(|_| interest.intersects(Set::SHOWN));
        let Some(set) = set else {
            return Ok(SetCallback(None));
        };
        CALLBACKS.fetch_add(1, Ordering::SeqCst);
        set.callbacks.fetch_add(1, Ordering::SeqCst);
        let callback = SetCallback(Some(file.keep()));
        // Counted, now check: an ADD that does not see the count has counted its member before.
        match has_silent_members(set, &mut Visited::default())? {
            true => Err(Errno::PERM),
            false => Ok(callback),
        }
    }
}

impl Drop for SetCallback {
    fn drop(&mut self) {
        if let Some(set) = self.0.as_ref().and_then(|file| as_set(file)) {
            set.callbacks.fetch_sub(1, Ordering::SeqCst);
            CALLBACKS.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Returns whether a set has members, itself or in sets below, that wake nobody but threads in the kernel.
///
/// # Errors
/// `ENOMEM`: there is no memory to walk the sets below.
fn has_silent_members(set: &Set, visited: &mut Visited) -> Result<bool, Errno> {
    // A set above one that has a backend has one, too.
    let Some(backend) = set.backend() else {
        return Ok(false);
    };
    if backend.has_silent_members() {
        return Ok(true);
    }
    let inner = set.lock();
    if inner.nested == 0 {
        return Ok(false);
    }
    for item in inner.iter() {
        // SAFETY: registered, and its set's lock is held.
        let file = unsafe { (*item).file() };
        let Some(below) = as_set(file) else { continue };
        visited.try_reserve(1).map_err(|_| Errno::NOMEM)?;
        if visited.insert(FileId::of(file)) && has_silent_members(below, visited)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Checks that no callback waits for `set`, or for a set above, which now has a member that could not wake
/// it. The member is counted already.
///
/// # Errors
/// `EBUSY`: one does. `ENOMEM`: there is no memory to walk the sets above.
pub(crate) fn check_silent_member(set: &Description<Set>) -> Result<(), Errno> {
    if CALLBACKS.load(Ordering::SeqCst) > 0 && has_callback(set, &mut Visited::default())? {
        return Err(Errno::BUSY);
    }
    Ok(())
}

/// The same for the set `below`, if it has such members, which `set` watches by now.
pub(super) fn check_nested(set: &Description<Set>, below: &Set) -> Result<(), Errno> {
    if CALLBACKS.load(Ordering::SeqCst) > 0
        && has_silent_members(below, &mut Visited::default())?
        && has_callback(set, &mut Visited::default())?
    {
        return Err(Errno::BUSY);
    }
    Ok(())
}

/// Returns whether a callback waits for `set` or for a set above.
///
/// # Errors
/// `ENOMEM`: there is no memory to walk the sets above.
fn has_callback(set: &Description<Set>, visited: &mut Visited) -> Result<bool, Errno> {
    if set.object().callbacks.load(Ordering::SeqCst) > 0 {
        return Ok(true);
    }
    for above in sets_above(set.watchers())? {
        visited.try_reserve(1).map_err(|_| Errno::NOMEM)?;
        if visited.insert(FileId::of(&above)) && has_callback(&above, visited)? {
            return Ok(true);
        }
    }
    Ok(false)
}
