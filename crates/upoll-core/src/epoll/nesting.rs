//! Sets in sets: no loops, no chain of more than five, no explosion of paths.
//!
//! Linux's limits: at most `MAX_NESTS` links from set to set in any chain, else `ELOOP`; and from
//! any file at most `PATH_LIMITS[n]` paths that lead up through n links, else `EINVAL`.
//!
//! The one global lock of this crate is here. It is taken to add a set to a set, so that two such ADDs cannot
//! close a loop between them. It is also taken when a set learns of the clock of its first timer (`time`). Nothing else
//! takes it.

use alloc::vec::Vec;

use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;

use super::Set;
use super::ctl::as_set;
use super::interest::{Registered, state};
use crate::errno::Errno;
use crate::file::{Description, File, FileId, Held, Watchers};
use crate::steps::{Step, step};
use crate::sync::{Mutex, Ordering};

/// `EP_MAX_NESTS`: links from set to set in one chain.
const MAX_NESTS: usize = 4;

/// The number of paths that may lead up from a file, by the number of links between sets on the path. The first limit
/// is not enforced: any number of sets may watch a file directly.
const PATH_LIMITS: [usize; MAX_NESTS + 1] = [usize::MAX, 500, 100, 50, 10];

/// Held while a set is added to a set, or learns of a schedule. Nests outside every other lock.
#[cfg(not(upoll_loom))]
static NESTED_ADD: Mutex<()> = Mutex::new(());
#[cfg(upoll_loom)]
loom::lazy_static! {
    static ref NESTED_ADD: Mutex<()> = Mutex::new(());
}

pub(super) fn lock() -> crate::sync::MutexGuard<'static, ()> {
    NESTED_ADD.lock()
}

/// Frees the lock in the child of a fork, where no thread holds it. The child may add sets of its own
/// to one another.
///
/// # Safety
/// The process was just forked, has a memory of its own, and has no other thread than the caller.
#[cfg(all(feature = "std", not(upoll_loom)))]
pub unsafe fn begin_in_child() {
    if NESTED_ADD.is_locked() {
        // SAFETY: it is locked, and there is one thread, so nobody frees it meanwhile. Should that
        // thread be in the midst of an addition, interrupted by the handler that forked, it frees
        // the lock once more, which changes nothing.
        unsafe { NESTED_ADD.force_unlock() };
    }
}

/// `ELOOP` if `target` (whose identity is given) cannot be added to `set`.
pub(super) fn check_loops(
    set: &File<Set>,
    target: &Set,
    target_identity: FileId,
) -> Result<(), Errno> {
    let mut below = Below {
        adding_to: set.as_file_ref().identity(),
        depths: HashMap::with_hasher(FxBuildHasher),
    };
    let down = below.depth(target, target_identity, 0)?;
    if down > MAX_NESTS {
        return Err(Errno::LOOP);
    }
    let mut known = HashMap::with_hasher(FxBuildHasher);
    let up = height(set.as_file_ref().description().watchers(), 0, &mut known)?;
    if down + 1 + up > MAX_NESTS {
        return Err(Errno::LOOP);
    }
    Ok(())
}

/// The walk down from the set to be added.
struct Below {
    adding_to: FileId,
    /// Depth below each set that was visited, so that shared sets are walked once.
    depths: Known,
}

/// The result of a walk for each set. Without it a walk would visit a set once for each path to it,
/// and there may be exponentially many paths.
type Known = HashMap<FileId, usize, FxBuildHasher>;

fn remember(known: &mut Known, set: FileId, found: usize) -> Result<(), Errno> {
    known.try_reserve(1).map_err(|_| Errno::NOMEM)?;
    known.insert(set, found);
    Ok(())
}

impl Below {
    /// Returns the number of links in the longest chain below `set`; more than [`MAX_NESTS`] if too many, or a loop.
    fn depth(&mut self, set: &Set, identity: FileId, level: usize) -> Result<usize, Errno> {
        if let Some(&depth) = self.depths.get(&identity) {
            return Ok(depth);
        }
        let mut deepest = 0;
        let locked = set.lock_from_above();
        if locked.nested() > 0 {
            for item in locked.iter() {
                step(Step::Walk);
                if item.state() & state::WATCHES_SET == 0 {
                    continue;
                }
                let file = item.file();
                let Some(inside) = as_set(file) else {
                    continue;
                };
                let identity = FileId::of(file);
                let depth = if identity == self.adding_to || level > MAX_NESTS {
                    MAX_NESTS + 1
                } else {
                    self.depth(inside, identity, level + 1)? + 1
                };
                deepest = deepest.max(depth);
                if deepest > MAX_NESTS {
                    break;
                }
            }
        }
        drop(locked);
        remember(&mut self.depths, identity, deepest)?;
        Ok(deepest)
    }
}

/// Returns the sets that watch a file, one entry for each item. They are kept alive, and no lock is held.
///
/// # Errors
/// `ENOMEM`: there is no memory for the list.
pub fn sets_above(watchers: &Mutex<Watchers>) -> Result<Vec<Held<Set>>, Errno> {
    let mut above = Vec::new();
    let watchers = watchers.lock();
    for item in Registered::among(&watchers) {
        // If it fails the list is dropped after the lock is free, as sets that end take it.
        above.try_reserve(1).map_err(|_| Errno::NOMEM)?;
        above.push(item.pin_set());
    }
    Ok(above)
}

/// A rotating set comes below `set`: the sets above learn that they are above one, too. The lock for ADDs
/// of sets to sets is held.
///
/// # Errors
/// `ENOMEM`: there is no memory for it. The next call goes on where this one has ended.
pub(super) fn mark_above_rotating(set: &Description<Set>) -> Result<(), Errno> {
    if set.object().is_above_rotating.load(Ordering::Relaxed) {
        return Ok(());
    }
    for above in sets_above(set.watchers())? {
        mark_above_rotating(&above)?;
        let mut locked = above.object().lock_from_above();
        locked.add_all_rotating(FileId::of(set))?;
    }
    let marks = &set.object().is_above_rotating;
    marks.store(true, Ordering::Relaxed);
    Ok(())
}

/// The sets above that count: without those that threads wait through in rotating sets.
fn counted_above(watchers: &Mutex<Watchers>) -> Result<Vec<Held<Set>>, Errno> {
    let mut above = sets_above(watchers)?;
    above.retain(|set| !set.object().is_hidden.load(Ordering::Relaxed));
    Ok(above)
}

/// Returns the number of links in the longest chain above a set, given its watchers.
fn height(watchers: &Mutex<Watchers>, level: usize, known: &mut Known) -> Result<usize, Errno> {
    if level > MAX_NESTS || watchers.lock().is_empty() {
        return Ok(0);
    }
    let mut highest = 0;
    for above in counted_above(watchers)? {
        step(Step::Walk);
        let identity = FileId::of(&above);
        let height = match known.get(&identity) {
            Some(&height) => height,
            None => {
                let height = height(above.watchers(), level + 1, known)?;
                remember(known, identity, height)?;
                height
            }
        };
        highest = highest.max(height + 1);
    }
    Ok(highest)
}

/// Checks that an item that was just linked makes not too many paths up from `file`, or, if `file` is the
/// set `target`, from any file below it.
///
/// # Errors
/// `EINVAL`: it does. `ENOMEM`.
pub(super) fn check_paths(
    set: &File<Set>,
    file: &Description,
    target: Option<&Set>,
) -> Result<(), Errno> {
    if set.is_hidden.load(Ordering::Relaxed) {
        return Ok(());
    }
    let Some(target) = target else {
        // A file in a set that nobody watches has paths of no links, and those are not counted.
        if !set.was_nested.load(Ordering::Relaxed) {
            return Ok(());
        }
        return check_paths_from(file.watchers());
    };
    let mut checked = HashSet::with_hasher(FxBuildHasher);
    check_paths_below(target, 0, &mut checked)
}

/// Checks the files below a set that are not among those that were checked already.
fn check_paths_below(
    set: &Set,
    level: usize,
    checked: &mut HashSet<FileId, FxBuildHasher>,
) -> Result<(), Errno> {
    if level > MAX_NESTS {
        return Ok(());
    }
    let locked = set.lock_from_above();
    for item in locked.iter() {
        step(Step::Walk);
        let file = item.file();
        checked.try_reserve(1).map_err(|_| Errno::NOMEM)?;
        if !checked.insert(FileId::of(file)) {
            continue;
        }
        match as_set(file) {
            Some(inside) => check_paths_below(inside, level + 1, checked)?,
            None => check_paths_from(file.watchers())?,
        }
    }
    Ok(())
}

fn check_paths_from(watchers: &Mutex<Watchers>) -> Result<(), Errno> {
    count_paths(watchers, 0, &mut [0; MAX_NESTS + 1])
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
    for above in counted_above(watchers)? {
        step(Step::Walk);
        if counted_above(above.watchers())?.is_empty() {
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
