//! The table: which user-level object a descriptor number stands for.
//!
//! Each of them stands *behind* a kernel object of its kind that has the same number. So the kernel
//! gives the numbers out, lowest first, keeps the flags of number and open file, and counts the
//! references that `dup` makes; the entry here holds the object that calls go to.
//!
//! # Changing what a number means
//! The kernel's table and this one cannot change in one step. While they do, the slot holds
//! [`CHANGING`], and whoever looks the number up meanwhile waits: it is for the length of one
//! system call that does not block.

use std::os::fd::RawFd;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use upoll::Errno;

use crate::fork;
use crate::in_use;
use crate::kernel;
use crate::object::Object;
use crate::patience::Patience;
use crate::signals::HeldBack;

/// What a number stands for.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) object: Object,
}

/// Numbers from this on are always the kernel's. As many as `fs.nr_open` allows unless it was raised.
const NUMBERS: usize = 1 << 20;

/// One word for each number, in one piece: a call's way to its object begins here. Pages of it that no
/// number has been in take address space, but no memory.
static TABLE: [AtomicPtr<Entry>; NUMBERS] = [const { AtomicPtr::new(ptr::null_mut()) }; NUMBERS];

/// Numbers per word of [`IS_USED`].
const PART: usize = 1 << 10;

/// Whether there has been a number in each part of the table: the others need no looking through.
static IS_USED: [AtomicBool; NUMBERS / PART] = [const { AtomicBool::new(false) }; NUMBERS / PART];

/// The kernel's table and this one are being changed.
const CHANGING: *mut Entry = ptr::without_provenance_mut(1);

/// Entries that were still in use when their number was closed.
static LEAVING: Mutex<Vec<Leaving>> = Mutex::new(Vec::new());

struct Leaving(*mut Entry);

// SAFETY: an entry is `Send`, and `LEAVING` owns it.
unsafe impl Send for Leaving {}

#[inline]
fn slot(fd: RawFd) -> Option<&'static AtomicPtr<Entry>> {
    TABLE.get(fd.cast_unsigned() as usize)
}

/// The slot of a number that is to have an entry.
fn slot_to_fill(fd: RawFd) -> Option<&'static AtomicPtr<Entry>> {
    let slot = slot(fd)?;
    let is_used = &IS_USED[fd.cast_unsigned() as usize / PART];
    if !is_used.load(Ordering::Relaxed) {
        is_used.store(true, Ordering::SeqCst);
    }
    Some(slot)
}

/// Whether a slot's word leads to an entry.
#[inline]
fn is_entry(word: *mut Entry) -> bool {
    word.addr() > CHANGING.addr()
}

/// Has `call` use the object that `fd` stands for. None if the number is the kernel's, or not open.
/// `call` must not block: a close of the number waits for it.
#[inline]
pub(crate) fn with<R>(fd: RawFd, call: impl FnOnce(&Object) -> R) -> Option<R> {
    let slot = slot(fd)?;
    let mut call = Some(call);
    loop {
        if slot.load(Ordering::Relaxed) == CHANGING {
            wait_until_changed(slot);
        }
        let done = in_use::with(slot, is_entry, |entry| {
            call.take().map(|call| call(&entry.object))
        });
        match done {
            Some(result) => return result,
            None if slot.load(Ordering::Relaxed).is_null() => return None,
            // It began to change once more.
            None => {}
        }
    }
}

/// Has `call`, which may block, run while this thread is marked with what `mark_of` gives for the
/// object. None if it gives nothing, or the number is not one of ours.
#[inline]
pub(crate) fn while_marked<R>(
    fd: RawFd,
    mark_of: impl Fn(&Object) -> Option<in_use::Mark>,
    call: impl FnOnce() -> R,
) -> Option<R> {
    let slot = slot(fd)?;
    if slot.load(Ordering::Relaxed) == CHANGING {
        wait_until_changed(slot);
    }
    in_use::while_marked(slot, is_entry, |entry| mark_of(&entry.object), call)
}

/// Objects that a call uses all at once, until this goes; it must not block, as in [`with`].
pub(crate) struct Several(in_use::Several);

impl Several {
    pub(crate) const fn new() -> Self {
        Several(in_use::Several::new())
    }

    /// One more. None as [`with`] has it.
    pub(crate) fn add(&self, fd: RawFd) -> Option<&Object> {
        let slot = slot(fd)?;
        if slot.load(Ordering::Relaxed) == CHANGING {
            // Whoever changes it may wait for those that are in use already.
            return None;
        }
        self.0.add(slot, is_entry).map(|entry| &entry.object)
    }
}

/// A reference to the object that `fd` stands for, for a call that may block.
pub(crate) fn get(fd: RawFd) -> Option<Object> {
    with(fd, Object::clone)
}

/// Whether the number is one of ours.
#[inline]
pub fn is_user_level(fd: RawFd) -> bool {
    slot(fd).is_some_and(|slot| !slot.load(Ordering::Relaxed).is_null())
}

/// Whether the number stands for a user-level socket.
pub fn is_socket(fd: RawFd) -> bool {
    is_user_level(fd) && with(fd, |object| matches!(object, Object::Socket(_))).unwrap_or(false)
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

#[cold]
fn wait_until_changed(slot: &AtomicPtr<Entry>) {
    let mut patience = Patience::new();
    while slot.load(Ordering::Relaxed) == CHANGING {
        patience.wait();
    }
}

/// Has the number, which the kernel has just given out, stand for `object`.
///
/// # Errors
/// `EMFILE`: the number is beyond the table. It is closed then.
pub(crate) fn install(fd: RawFd, object: Object) -> Result<RawFd, Errno> {
    in_use::prepare();
    HAS_ANY.store(true, Ordering::Relaxed);
    let Some(slot) = slot_to_fill(fd).filter(|_| fork::watch().is_ok()) else {
        kernel::close(fd)?;
        return Err(Errno::MFILE);
    };
    let copy = object.clone();
    let entry = Box::into_raw(Box::new(Entry { object }));
    // An entry that is there was closed behind our back, or is just being closed.
    release(slot.swap(entry, Ordering::SeqCst));
    leave_to_the_kernel(fd, Some(&copy))?;
    Ok(fd)
}

/// Changes what `fd` means in the kernel by `change` and then, if that went well, here: to
/// `object`. What it stood for is released.
pub(crate) fn change<R>(
    fd: RawFd,
    object: Option<Object>,
    change: impl FnOnce() -> Result<R, Errno>,
) -> Result<R, Errno> {
    let slot = match &object {
        Some(_) => slot_to_fill(fd),
        None => slot(fd),
    };
    let Some(slot) = slot else {
        return change();
    };
    in_use::prepare();
    let mut held_back = None;
    let mut old = slot.load(Ordering::Relaxed);
    if old.is_null() && object.is_none() {
        return change();
    }
    let _change = fork::Change::begin();
    loop {
        if old == CHANGING {
            wait_until_changed(slot);
            old = slot.load(Ordering::Relaxed);
            continue;
        }
        if old.is_null() && object.is_none() {
            return change();
        }
        held_back.get_or_insert_with(HeldBack::begin);
        match slot.compare_exchange_weak(old, CHANGING, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => old = now,
        }
    }
    let result = change();
    let copy = object.clone();
    let new = match (&result, object) {
        (Err(_), _) => old,
        (Ok(_), None) => ptr::null_mut(),
        (Ok(_), Some(object)) => Box::into_raw(Box::new(Entry { object })),
    };
    // The number may be another object's already: the kernel gave it out again, and that object
    // was installed over the mark.
    if new == old {
        put(fd, old);
    } else {
        put(fd, new);
        drop(held_back);
        release(old);
        leave_to_the_kernel(fd, copy.as_ref())?;
    }
    result
}

/// An object that has a new number was handed over to the kernel while it was being copied.
fn leave_to_the_kernel(fd: RawFd, object: Option<&Object>) -> Result<(), Errno> {
    match object {
        Some(object) if object.is_retired() => change(fd, None, || Ok(())),
        _ => Ok(()),
    }
}

/// Lets go of an entry that no slot leads to, once no call uses it. That is at once, unless a
/// signal handler closes what the code under it was just using.
fn release(entry: *mut Entry) {
    if !is_entry(entry) {
        return;
    }
    let mut leaving = vec![Leaving(entry)];
    if let Ok(mut others) = LEAVING.try_lock() {
        leaving.append(&mut others);
    }
    leaving.retain(|&Leaving(entry)| {
        let is_used = !in_use::wait_until_unused(entry);
        if !is_used {
            // SAFETY: from `Box::into_raw`; no slot leads to it, and no call uses it.
            drop(unsafe { Box::from_raw(entry) });
        }
        is_used
    });
    if !leaving.is_empty() {
        let mut others = LEAVING
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        others.append(&mut leaving);
    }
}

/// All numbers of one object, or of both ends of one, kept from being looked up.
pub(crate) struct Held {
    numbers: Vec<RawFd>,
    entries: Vec<*mut Entry>,
    /// Until the numbers can be looked up again.
    _held_back: HeldBack,
}

/// Keeps all numbers of `object`, and of what is [tied](Object::is_tied_to) to it, from being looked up, once no call uses it any more; those that
/// block on it have a reference of their own.
///
/// # Errors
/// `EBUSY`: a call of this very thread uses it, or one of a thread that does not get on.
pub(crate) fn hold(object: &Object) -> Result<Held, Errno> {
    let mut held = Held {
        numbers: Vec::new(),
        entries: Vec::new(),
        _held_back: HeldBack::begin(),
    };
    for fd in numbers(0, u32::MAX) {
        let Some(slot) = slot(fd) else { continue };
        let found = in_use::with(slot, is_entry, |entry| {
            let is_wanted = entry.object.is_tied_to(object);
            is_wanted.then(|| ptr::from_ref(entry).cast_mut())
        });
        let Some(Some(entry)) = found else { continue };
        let taken = slot.compare_exchange(entry, CHANGING, Ordering::SeqCst, Ordering::Relaxed);
        if taken.is_ok() {
            held.numbers.push(fd);
            held.entries.push(entry);
        }
    }
    match held
        .entries
        .iter()
        .all(|&entry| in_use::wait_patiently_until_unused(entry))
    {
        true => Ok(held),
        false => Err(Errno::BUSY),
    }
}

impl Held {
    pub(crate) fn numbers(&self) -> &[RawFd] {
        &self.numbers
    }

    /// The numbers and what each stands for.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (RawFd, &Object)> {
        self.numbers.iter().zip(&self.entries).map(|(&fd, &entry)| {
            // SAFETY: the entry is this one's until it is released or put back.
            (fd, unsafe { &(*entry).object })
        })
    }

    /// The numbers stand for `successor` from now on, or are the kernel's.
    pub(crate) fn release(mut self, successor: Option<&Object>) {
        let entries = std::mem::take(&mut self.entries);
        for (&fd, entry) in self.numbers.iter().zip(entries) {
            let new = successor.map_or(ptr::null_mut(), |object| {
                let object = object.clone();
                Box::into_raw(Box::new(Entry { object }))
            });
            put(fd, new);
            release(entry);
        }
    }
}

/// Without [`release`](Held::release): the numbers are what they were.
impl Drop for Held {
    fn drop(&mut self) {
        for (&fd, &entry) in self.numbers.iter().zip(&self.entries) {
            put(fd, entry);
        }
    }
}

/// Ends the change of a number, unless it has become another object's meanwhile.
fn put(fd: RawFd, entry: *mut Entry) {
    let put = slot(fd)
        .map(|slot| slot.compare_exchange(CHANGING, entry, Ordering::SeqCst, Ordering::Relaxed));
    if put.is_none_or(|put| put.is_err()) {
        release(entry);
    }
}

/// In the child of a fork: whether what `fd` stood for is the child's, too.
pub(crate) fn is_shared_with_children(fd: RawFd) -> bool {
    let entry = slot(fd).map_or(ptr::null_mut(), |slot| slot.load(Ordering::Relaxed));
    // SAFETY: there is no other thread that could take it out.
    is_entry(entry)
        && matches!(unsafe { &(*entry).object }, Object::EventFd(counter) if counter.is_shared())
}

/// Takes a number out without releasing what it stood for.
pub(crate) fn forget(fd: RawFd) {
    if let Some(slot) = slot(fd) {
        slot.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

/// The user-level numbers from `first` to `last`.
pub(crate) fn numbers(first: u32, last: u32) -> impl Iterator<Item = RawFd> {
    let first = first as usize;
    let last = (last as usize).min(NUMBERS - 1);
    (first / PART..=last / PART)
        .filter(|&part| IS_USED[part].load(Ordering::Relaxed))
        .flat_map(move |part| (part * PART).max(first)..=(part * PART + PART - 1).min(last))
        .filter_map(|number| RawFd::try_from(number).ok())
        .filter(|&fd| is_user_level(fd))
}
