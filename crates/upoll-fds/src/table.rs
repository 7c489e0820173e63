//! The table: which user-level object a descriptor number stands for.
//!
//! Each of them stands *behind* a kernel object of its kind that has the same number. So the kernel
//! gives the numbers out, lowest first, keeps the flags of number and open file, and counts the
//! references that `dup` makes; the entry here holds the object that calls go to.

use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use upoll::Errno;

use crate::fork;
use crate::in_use;
use crate::kernel::{self, HeldBack};
use crate::object::Object;
use crate::slot::{Entry, Slot};

const CHUNK: usize = 1 << 10;
/// Numbers from `CHUNKS * CHUNK` on are always the kernel's. As many as `fs.nr_open` allows unless
/// it was raised.
const CHUNKS: usize = 1 << 10;

type Chunk = [Slot; CHUNK];

static TABLE: [AtomicPtr<Chunk>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];

#[inline]
fn slot(fd: RawFd) -> Option<&'static Slot> {
    let at = fd.cast_unsigned() as usize;
    let chunk = TABLE.get(at / CHUNK)?.load(Ordering::Acquire);
    // SAFETY: chunks are never freed.
    unsafe { chunk.as_ref() }.map(|chunk| &chunk[at % CHUNK])
}

/// The slot of a number that is to have one.
fn slot_or_insert(fd: RawFd) -> Option<&'static Slot> {
    if let Some(slot) = slot(fd) {
        return Some(slot);
    }
    let place = TABLE.get(fd.cast_unsigned() as usize / CHUNK)?;
    let new: Box<Chunk> = Box::new([const { Slot::empty() }; CHUNK]);
    let new = Box::into_raw(new);
    let placed = place.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
    if placed.is_err() {
        // SAFETY: it comes from `into_raw` above, and nobody has seen it.
        drop(unsafe { Box::from_raw(new) });
    }
    slot(fd)
}

/// Has `call` use the object that `fd` stands for. None if the number is the kernel's, or not open.
/// `call` must not block: a close of the number waits for it.
#[inline]
pub(crate) fn with<R>(fd: RawFd, call: impl FnOnce(&Object) -> R) -> Option<R> {
    slot(fd)?.with(call)
}

/// Has `call`, which may block, run while this thread is marked with what `mark_of` gives for the
/// object. None if it gives nothing, or the number is not one of ours.
#[inline]
pub(crate) fn while_marked<R>(
    fd: RawFd,
    mark_of: impl Fn(&Object) -> Option<in_use::Mark>,
    call: impl FnOnce() -> R,
) -> Option<R> {
    slot(fd)?.while_marked(mark_of, call)
}

/// A reference to the object that `fd` stands for, for a call that may block.
pub(crate) fn get(fd: RawFd) -> Option<Object> {
    with(fd, Object::clone)
}

/// Whether the number is one of ours.
#[inline]
pub fn is_user_level(fd: RawFd) -> bool {
    slot(fd).is_some_and(|slot| !slot.is_empty())
}

/// Whether calls on the number are served here; those on a set without members of ours are the
/// kernel's.
pub fn is_served_here(fd: RawFd) -> bool {
    let is_passive = |object: &Object| matches!(object, Object::Epoll(set) if set.is_passive());
    with(fd, |object| !is_passive(object)).unwrap_or(false)
}

/// Every user-level number there is.
pub fn user_level_numbers() -> impl Iterator<Item = RawFd> {
    numbers(0, u32::MAX)
}

/// Some number stands for one of ours, or did.
static HAS_ANY: AtomicBool = AtomicBool::new(false);

/// Whether there has ever been a user-level number.
#[inline]
pub fn has_any() -> bool {
    HAS_ANY.load(Ordering::Relaxed)
}

/// Has the number, which the kernel has just given out, stand for `object`.
///
/// # Errors
/// `EMFILE`: the number is beyond the table. It is closed then.
pub(crate) fn install(fd: RawFd, object: Object) -> Result<RawFd, Errno> {
    in_use::prepare();
    HAS_ANY.store(true, Ordering::Relaxed);
    let Some(slot) = slot_or_insert(fd).filter(|_| fork::watch().is_ok()) else {
        kernel::close(fd)?;
        return Err(Errno::MFILE);
    };
    let copy = object.clone();
    slot.install(object);
    leave_to_the_kernel(fd, &copy);
    Ok(fd)
}

/// Changes what `fd` means in the kernel by `change`, a close. If that went well it is not one of
/// ours any more.
pub(crate) fn close<R>(fd: RawFd, change: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
    match slot(fd) {
        Some(slot) => slot.change(false, || Ok((change()?, None))),
        None => change(),
    }
}

/// Has `copy` make a new number stand for what `fd` does. Gives that number, and what it stands for
/// if that is one of ours.
pub(crate) fn copy(
    fd: RawFd,
    copy: impl Fn() -> Result<RawFd, Errno>,
) -> Result<(RawFd, Option<Object>), Errno> {
    let Some(slot) = slot(fd) else {
        return Ok((copy()?, None));
    };
    loop {
        let held_back = HeldBack::begin();
        if let Some((new, object)) = slot.kept(&copy) {
            return Ok((new?, object));
        }
        drop(held_back);
        slot.settled();
    }
}

/// Waits until no change of the number is under way. A call that finds its object handed over
/// (`ESTALE`) does so: only then has the kernel the state.
pub(crate) fn settle(fd: RawFd) {
    if let Some(slot) = slot(fd) {
        slot.settled();
    }
}

/// Has `new` stand for what `fd` does; in the kernel by `copy`.
pub(crate) fn replace(
    fd: RawFd,
    new: RawFd,
    copy: impl Fn() -> Result<RawFd, Errno>,
) -> Result<RawFd, Errno> {
    if !has_any() {
        return copy();
    }
    in_use::prepare();
    let Some(slot) = slot_or_insert(new) else {
        return match is_user_level(fd) && new >= 0 {
            // As for a number beyond the limit.
            true => Err(Errno::BADF),
            false => copy(),
        };
    };
    let result = loop {
        // A change waits for no other one.
        let changed = slot.change(true, || {
            let (copied, object) = match self::slot(fd) {
                Some(from) => from.kept(&copy).ok_or(None)?,
                None => (copy(), None),
            };
            Ok((copied.map_err(Some)?, object))
        });
        match (changed, self::slot(fd)) {
            (Err(None), Some(from)) => drop(from.settled()),
            (changed, _) => break changed.map_err(|errno| errno.unwrap_or(Errno::BADF)),
        }
    };
    // Also if it is what it was, and that was handed over meanwhile.
    if let Some(object) = get(new) {
        leave_to_the_kernel(new, &object);
    }
    result
}

/// An object that has a new number was handed over to the kernel while it was being copied.
fn leave_to_the_kernel(fd: RawFd, object: &Object) {
    if object.is_retired() {
        // It is what the kernel takes it for already.
        let _ = close(fd, || Ok(()));
    }
}

/// All numbers of one object, kept from being looked up. Signals are held back: a handler would wait
/// for the code under it.
pub(crate) struct Held {
    numbers: Vec<RawFd>,
    entries: Vec<*mut Entry>,
    _held_back: HeldBack,
}

/// Keeps all numbers of `object` from being looked up, once no call uses it any more; those that
/// block on it have a reference of their own.
///
/// # Errors
/// `EBUSY`: a call of this very thread uses it, or one that waits for this.
pub(crate) fn hold(object: &Object) -> Result<Held, Errno> {
    let mut held = Held {
        numbers: Vec::new(),
        entries: Vec::new(),
        _held_back: HeldBack::begin(),
    };
    let file = object.as_file_ref(0);
    let is_meant = |found: &Object| found.as_file_ref(0).is_same_file(file);
    let mut known = None;
    // What is copied from a number shows at the latest in the pass after that which has held it.
    while known != Some(held.numbers.len()) {
        known = Some(held.numbers.len());
        for fd in numbers(0, u32::MAX) {
            if held.numbers.contains(&fd) {
                continue;
            }
            if let Some(entry) = slot(fd).and_then(|slot| slot.hold(is_meant)) {
                held.numbers.push(fd);
                held.entries.push(entry);
            }
        }
    }
    match held
        .entries
        .iter()
        .all(|&entry| in_use::wait_until_unused(entry, in_use::MORE_PATIENCE))
    {
        true => Ok(held),
        false => Err(Errno::BUSY),
    }
}

impl Held {
    pub(crate) fn numbers(&self) -> &[RawFd] {
        &self.numbers
    }

    /// The numbers are the kernel's from now on.
    pub(crate) fn release(mut self) {
        let entries = std::mem::take(&mut self.entries);
        for (&fd, entry) in self.numbers.iter().zip(entries) {
            if let Some(slot) = slot(fd) {
                slot.give_up(entry);
            }
        }
    }
}

/// Without [`release`](Held::release): the numbers are what they were.
impl Drop for Held {
    fn drop(&mut self) {
        for (&fd, &entry) in self.numbers.iter().zip(&self.entries) {
            if let Some(slot) = slot(fd) {
                slot.give_back(entry);
            }
        }
    }
}

/// Takes a number out without releasing what it stood for.
pub(crate) fn forget(fd: RawFd) {
    if let Some(slot) = slot(fd) {
        slot.forget();
    }
}

/// The user-level numbers from `first` to `last`.
pub(crate) fn numbers(first: u32, last: u32) -> impl Iterator<Item = RawFd> {
    let first = first as usize;
    let last = (last as usize).min(CHUNKS * CHUNK - 1);
    (first / CHUNK..=last / CHUNK)
        .filter(|&chunk| !TABLE[chunk].load(Ordering::Relaxed).is_null())
        .flat_map(move |chunk| (chunk * CHUNK).max(first)..=(chunk * CHUNK + CHUNK - 1).min(last))
        .filter_map(|number| RawFd::try_from(number).ok())
        .filter(|&fd| is_user_level(fd))
}
