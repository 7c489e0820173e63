//! Sets in sets: no loops, no chain of more than five, no explosion of paths.
//!
//! Linux's limits: at most [`MAX_NESTS`] links from set to set in any chain, else `ELOOP`; and from
//! any file at most [`PATH_LIMITS`]`[n]` paths that lead up through n links, else `EINVAL`.
//!
//! The one global lock of this crate is here. It is taken to add a set to a set and by nothing
//! else, so that two such ADDs cannot close a loop between them.

use alloc::vec::Vec;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::ctl::{as_set, item_of};
use super::interest::state;
use super::{Epoll, Set};
use crate::errno::Errno;
use crate::file::{Description, Held, Identity, Watchers};
use crate::sync::{Mutex, Ordering};

/// `EP_MAX_NESTS`: links from set to set in one chain.
const MAX_NESTS: usize = 4;

/// How many paths may lead up from a file, by the number of links between sets on the path. The
/// first is not enforced: any number of sets may watch a file directly.
const PATH_LIMITS: [usize; MAX_NESTS + 1] = [usize::MAX, 500, 100, 50, 10];

/// Held while a set is added to a set. Nests outside every other lock.
#[cfg(not(loom))]
static NESTED_ADD: Mutex<()> = Mutex::new(());

#[cfg(not(loom))]
pub(super) fn lock() -> crate::sync::MutexGuard<'static, ()> {
    NESTED_ADD.lock()
}

/// In the child of a fork: whoever held the lock in the parent does not hold it here. The child may
/// add sets of its own to one another.
#[cfg(all(feature = "std", not(loom)))]
pub(crate) fn begin_in_child() {
    if NESTED_ADD.is_locked() {
        // SAFETY: it is locked, and there is one thread, so nobody frees it meanwhile. Should that
        // thread be in the midst of an addition, interrupted by the handler that forked, it frees
        // the lock once more, which changes nothing.
        unsafe { NESTED_ADD.force_unlock() };
    }
}

/// loom's locks cannot be static, and its models add no sets concurrently.
#[cfg(loom)]
pub(super) fn lock() -> impl Sized {
    struct Unlocked;
    Unlocked
}

/// `ELOOP` if `target` (whose identity is given) cannot be added to `set`.
pub(super) fn check_loops(
    set: &Epoll,
    target: &Set,
    target_identity: Identity,
) -> Result<(), Errno> {
    let mut below = Below {
        adding_to: set.as_file_ref().identity(),
        depths: HashMap::with_hasher(FxBuildHasher),
    };
    let down = below.depth(target, target_identity, 0);
    if down > MAX_NESTS {
        return Err(Errno::LOOP);
    }
    let up = height(set.as_file_ref().description().watchers(), 0);
    if down + 1 + up > MAX_NESTS {
        return Err(Errno::LOOP);
    }
    Ok(())
}

/// The walk down from the set to be added.
struct Below {
    adding_to: Identity,
    /// Depth below each set that was visited, so that shared sets are walked once.
    depths: HashMap<Identity, usize, FxBuildHasher>,
}

impl Below {
    /// How many links lie below `set`; more than [`MAX_NESTS`] if too many, or a loop.
    fn depth(&mut self, set: &Set, identity: Identity, level: usize) -> usize {
        if let Some(&depth) = self.depths.get(&identity) {
            return depth;
        }
        let mut deepest = 0;
        let inner = set.inner.lock();
        if inner.nested > 0 {
            for item in inner.iter() {
                // SAFETY: registered, and its set's lock is held.
                let (item, file) = unsafe { (&*item, (*item).file()) };
                if item.state() & state::WATCHES_SET == 0 {
                    continue;
                }
                let Some(inside) = as_set(file) else {
                    continue;
                };
                let identity = Identity::of(file);
                let depth = if identity == self.adding_to || level > MAX_NESTS {
                    MAX_NESTS + 1
                } else {
                    self.depth(inside, identity, level + 1) + 1
                };
                deepest = deepest.max(depth);
                if deepest > MAX_NESTS {
                    break;
                }
            }
        }
        drop(inner);
        self.depths.insert(identity, deepest);
        deepest
    }
}

/// The sets that watch a file, one entry for each item. They are kept alive, and no lock is held.
pub(crate) fn sets_above(watchers: &Mutex<Watchers>) -> Vec<Held<Set>> {
    let watchers = watchers.lock();
    watchers
        .iter()
        // SAFETY: linked items are registered while the list is locked.
        .map(|link| unsafe { (*item_of(link)).pin_set() })
        .collect()
}

/// How many links lie above a set, given its watchers.
fn height(watchers: &Mutex<Watchers>, level: usize) -> usize {
    if level > MAX_NESTS || watchers.lock().is_empty() {
        return 0;
    }
    sets_above(watchers)
        .iter()
        .map(|above| height(above.watchers(), level + 1) + 1)
        .max()
        .unwrap_or(0)
}

/// Whether an item that was just linked makes too many paths up from `file`, or, if `file` is the
/// set `target`, from any file below it.
pub(super) fn has_too_many_paths(set: &Epoll, file: &Description, target: Option<&Set>) -> bool {
    let Some(target) = target else {
        // A file in a set that nobody watches has paths of no links, and those are not counted.
        if !set.set().was_nested.load(Ordering::Relaxed) {
            return false;
        }
        return exceeds_paths(file.watchers());
    };
    files_below_exceed(target, 0)
}

fn files_below_exceed(set: &Set, level: usize) -> bool {
    if level > MAX_NESTS {
        return false;
    }
    let inner = set.inner.lock();
    inner.iter().any(|item| {
        // SAFETY: registered, and its set's lock is held.
        let file = unsafe { (*item).file() };
        match as_set(file) {
            Some(inside) => files_below_exceed(inside, level + 1),
            None => exceeds_paths(file.watchers()),
        }
    })
}

fn exceeds_paths(watchers: &Mutex<Watchers>) -> bool {
    count_paths(watchers, 0, &mut [0; MAX_NESTS + 1]).is_err()
}

/// Counts the paths up from a file by their number of links (`reverse_path_check_proc`).
fn count_paths(
    watchers: &Mutex<Watchers>,
    links: usize,
    counts: &mut [usize; MAX_NESTS + 1],
) -> Result<(), Errno> {
    if links > MAX_NESTS {
        return Err(Errno::INVAL);
    }
    for above in sets_above(watchers) {
        if above.watchers().lock().is_empty() {
            counts[links] += 1;
            if counts[links] > PATH_LIMITS[links] {
                return Err(Errno::INVAL);
            }
        } else {
            count_paths(above.watchers(), links + 1, counts)?;
        }
    }
    Ok(())
}
