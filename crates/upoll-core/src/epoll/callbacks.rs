//! Callbacks and tasks that wait for a set, and members that do not wake them by themselves.
//!
//! A kernel fd or a shared eventfd wakes only threads that sleep in the kernel. So the kernel backend of a set
//! with such a member, directly or in a set below, has a thread wait for the callbacks
//! ([`attend`](super::backend::KernelBackend::attend)). That begins with the callback or with the member, whichever is
//! the later. Each side publishes first and then checks for the other: of two concurrent calls at least one sees both.
//! If no thread can wait for the callbacks, the later call fails.

use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;

use super::Set;
use super::ctl::{as_set, set_of};
use super::nesting::sets_above;
use crate::errno::Errno;
use crate::events::Events;
use crate::file::{Description, FileId};
use crate::sync::{AtomicUsize, Ordering, fence, fence_after_rmw, statics};

statics! {
    /// Callbacks on sets in the whole process: an ADD need not look for any while there are none.
    static CALLBACKS: AtomicUsize = AtomicUsize::new(0);
}

/// Sets that a walk has visited.
type Visited = HashSet<FileId, FxBuildHasher>;

/// Counts a callback or task that begins to wait for `file`, if that is a set. Returns whether it is: then the wait ends by
/// [`end`].
///
/// # Errors
/// `EPERM`: `file` is a set with a member in the kernel, and no thread can wait for its callbacks. `ENOMEM`: there
/// is no memory to walk the sets below. Further errors are those of [`attend`](super::backend::KernelBackend::attend).
#[inline]
pub fn begin(file: &Description, interest: Events) -> Result<bool, Errno> {
    match set_of(file) {
        Some(set) if interest.intersects(Set::SHOWN) => begin_at(set).map(|()| true),
        _ => Ok(false),
    }
}

fn begin_at(set: &Description<Set>) -> Result<(), Errno> {
    CALLBACKS.fetch_add(1, Ordering::SeqCst);
    set.object().callbacks.fetch_add(1, Ordering::SeqCst);
    // Counted, now check: an ADD that does not see the count has counted its member before.
    fence_after_rmw();
    let begun = match has_silent_members(set.object(), &mut Visited::default()) {
        Ok(true) => attend(set),
        silent => silent.map(drop),
    };
    if begun.is_err() {
        end_at(set.object());
    }
    begun
}

/// Ends a wait that [`begin`] has counted.
#[cold]
pub fn end(file: &Description) {
    if let Some(set) = as_set(file) {
        end_at(set);
    }
}

fn end_at(set: &Set) {
    let before = set.callbacks.fetch_sub(1, Ordering::SeqCst);
    CALLBACKS.fetch_sub(1, Ordering::SeqCst);
    // A thread that is just making the backend, and does not end the attendance, is seen here.
    fence_after_rmw();
    if before == 1
        && let Some(backend) = set.backend()
    {
        backend.end_attendance(set);
    }
}

impl Set {
    /// Returns whether a callback or a task waits for the set.
    #[cfg(any(feature = "std", upoll_loom))]
    pub fn has_callbacks(&self) -> bool {
        self.callbacks.load(Ordering::SeqCst) > 0
    }
}

/// Makes the callbacks of `set` learn of events in the kernel.
///
/// # Errors
/// As [`attend`](super::backend::KernelBackend::attend).
fn attend(set: &Description<Set>) -> Result<(), Errno> {
    // A set above one that has a backend gets one, too. The ADD that is just making it sees the callback afterwards.
    match set.object().backend() {
        Some(backend) => backend.attend(set),
        None => Ok(()),
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
    let locked = set.lock_from_above();
    if locked.nested() == 0 {
        return Ok(false);
    }
    for item in locked.iter() {
        let file = item.file();
        let Some(below) = as_set(file) else { continue };
        visited.try_reserve(1).map_err(|_| Errno::NOMEM)?;
        if visited.insert(FileId::of(file)) && has_silent_members(below, visited)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes the callbacks of `set` and of the sets above learn of events in the kernel, as `set` has a member there by now.
///
/// # Errors
/// `EBUSY`: no thread can wait for such a callback. `ENOMEM`: there is no memory to walk the sets above. Further errors are
/// those of [`attend`](super::backend::KernelBackend::attend).
pub fn attend_silent_member(set: &Description<Set>) -> Result<(), Errno> {
    if !are_any() {
        return Ok(());
    }
    match attend_callbacks(set, &mut Visited::default()) {
        Err(Errno::PERM) => Err(Errno::BUSY),
        attended => attended,
    }
}

/// The same for the members of the set `below`, if it has any, which `set` watches by now.
pub(super) fn attend_nested(set: &Description<Set>, below: &Set) -> Result<(), Errno> {
    if are_any() && has_silent_members(below, &mut Visited::default())? {
        attend_silent_member(set)?;
    }
    Ok(())
}

/// Returns whether there is a callback on any set. It has seen the backends that the caller has seen, or is counted here:
/// the thread that made one may not have passed a fence yet.
fn are_any() -> bool {
    fence(Ordering::SeqCst);
    CALLBACKS.load(Ordering::SeqCst) > 0
}

fn attend_callbacks(set: &Description<Set>, visited: &mut Visited) -> Result<(), Errno> {
    if set.object().callbacks.load(Ordering::SeqCst) > 0 {
        attend(set)?;
    }
    for above in sets_above(set.watchers())? {
        visited.try_reserve(1).map_err(|_| Errno::NOMEM)?;
        if visited.insert(FileId::of(&above)) {
            attend_callbacks(&above, visited)?;
        }
    }
    Ok(())
}
