//! The table: which user-level object a descriptor number stands for.
//!
//! Each of them stands *behind* a kernel object of its kind that has the same number. So the kernel
//! gives the numbers out, lowest first, keeps the flags of number and open file, and counts the
//! references that `dup` makes; the entry here holds the object that calls go to.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use upoll::Errno;

use crate::change;
use crate::demote;
use crate::fork;
use crate::in_use::{self, Changing};
use crate::kernel::{self, call};
use crate::object::Object;
use crate::patience::{Patience, wait_until};
use crate::signals::{HeldBack, Section};
use crate::slot::{Entry, Slot};

/// Numbers from this on are always the kernel's. As many as `fs.nr_open` allows unless it was raised.
const NUMBERS: usize = 1 << 20;

/// One word for each number, in one piece: a call's way to its object begins here. Pages of it that no
/// number has been in take address space, but no memory.
static TABLE: [Slot; NUMBERS] = [const { Slot::empty() }; NUMBERS];

/// Numbers per word of [`IS_USED`].
const PART: usize = 1 << 10;

/// Whether there has been a number in each part of the table: the others need no looking through.
static IS_USED: [AtomicBool; NUMBERS / PART] = [const { AtomicBool::new(false) }; NUMBERS / PART];

#[inline]
fn slot(fd: RawFd) -> Option<&'static Slot> {
    TABLE.get(fd.cast_unsigned() as usize)
}

/// The slot of a number that is to have an entry.
fn slot_to_fill(fd: RawFd) -> Option<&'static Slot> {
    let slot = slot(fd)?;
    let is_used = &IS_USED[fd.cast_unsigned() as usize / PART];
    if !is_used.load(Ordering::Relaxed) {
        is_used.store(true, Ordering::SeqCst);
    }
    Some(slot)
}

/// Has `call` use the object that `fd` stands for. None if the number is the kernel's, or not open.
/// `call` must not block: a close of the number waits for it.
#[inline]
pub(crate) fn with<R>(fd: RawFd, call: impl FnOnce(&Object) -> R) -> Option<R> {
    slot(fd)?.with(call)
}

/// An object, and what else a call on it needs, while this exists; the call must not block, as in [`with`].
pub(crate) struct InUse(in_use::InUse);

impl InUse {
    /// What `fd` stands for. None if the number is the kernel's, or not open.
    #[inline(always)]
    pub(crate) fn begin(fd: RawFd) -> Option<Self> {
        in_use::InUse::begin(slot(fd)?).map(InUse)
    }

    #[inline(always)]
    pub(crate) fn object(&self) -> &Object {
        &self.0.entry().object
    }

    /// What another number stands for, as well; once at most.
    #[inline(always)]
    pub(crate) fn add(&self, fd: RawFd) -> Result<Option<&Object>, Changing> {
        let entry = match slot(fd) {
            Some(slot) => self.0.add(slot)?,
            None => None,
        };
        Ok(entry.map(|entry| &entry.object))
    }
}

/// Waits for the end of the change of a number that is under way, if one is.
#[cold]
pub(crate) fn outlast_change(fd: RawFd) {
    if let Some(slot) = slot(fd) {
        slot.outlast_change();
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
    slot(fd)?.while_marked(mark_of, call)
}

/// Objects that a call uses all at once, until this goes; it must not block, as in [`with`].
pub(crate) struct Several(in_use::Several);

impl Several {
    pub(crate) const fn new() -> Self {
        Several(in_use::Several::new())
    }

    /// One more. None if the number is the kernel's, not open, or just being changed.
    #[inline]
    pub(crate) fn add(&self, fd: RawFd) -> Option<&Object> {
        self.0.add(slot(fd)?).map(|entry| &entry.object)
    }
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

/// Some number stands for one of ours, or did, unless [all was left to the
/// kernel](leave_all_to_the_kernel) since.
static HAS_ANY: AtomicBool = AtomicBool::new(false);

/// Whether there has ever been a user-level number, or since all was left to the kernel.
#[inline]
pub fn has_any() -> bool {
    HAS_ANY.load(Ordering::Relaxed)
}

/// Hands over whatever can be: nothing that is made from now on is to be served here, for good or until this
/// thread goes on. Says whether that was all. Then calls need no look at what belongs to their thread
/// any more, until there is another object: another thread may have the same (`CLONE_VM` without
/// `CLONE_SETTLS`), or a child that may be killed in the midst of a call.
pub fn leave_all_to_the_kernel() -> bool {
    demote::demote_all();
    let mut is_all = false;
    // Other threads are in the midst of changing numbers, or of making what they have begun to make.
    wait_until(|| {
        let stays = |fd| demote::demote(fd).is_err() && is_user_level(fd);
        let some_stay = user_level_numbers().filter(|&fd| stays(fd)).count() > 0;
        is_all = is_none_left();
        is_all || some_stay
    });
    is_all
}

/// Whether no number is a user-level one. If so, it is known from now on.
fn is_none_left() -> bool {
    let is_none = || user_level_numbers().next().is_none();
    if !is_none() {
        return false;
    }
    HAS_ANY.store(false, Ordering::Relaxed);
    // Either this sees what another thread has just installed, or that thread says so after this.
    fence(Ordering::SeqCst);
    let is_none = is_none();
    if !is_none {
        HAS_ANY.store(true, Ordering::Relaxed);
    }
    is_none
}

/// Makes what the first object needs of the kernel and the C library: an object that a signal handler
/// makes finds it there, and takes no memory from the program's heap for it.
///
/// # Errors
/// `ENOMEM`: there is no memory for it.
#[doc(hidden)]
pub fn prepare() -> Result<(), Errno> {
    in_use::prepare();
    upoll::prepare_thread_ends();
    fork::watch()
}

/// Has the number, which the kernel has just given out, stand for `object`.
///
/// # Errors
/// `EMFILE`: the number is beyond the table. It is closed then.
pub(crate) fn install(fd: RawFd, object: Object) -> Result<RawFd, Errno> {
    let _section = Section::begin();
    in_use::prepare();
    HAS_ANY.store(true, Ordering::Relaxed);
    let copy = object.clone();
    let fd = fill(fd, object)?;
    // Once more, for [`leave_all_to_the_kernel`] in another thread.
    fence(Ordering::SeqCst);
    HAS_ANY.store(true, Ordering::Relaxed);
    if copy.is_retired() {
        // The other end of a pipe has been handed over meanwhile, and this one with it.
        leave_if_retired(fd);
    }
    Ok(fd)
}

fn fill(fd: RawFd, object: Object) -> Result<RawFd, Errno> {
    let Some(slot) = slot_to_fill(fd).filter(|_| fork::watch().is_ok()) else {
        kernel::close(fd)?;
        return Err(Errno::MFILE);
    };
    slot.install(object);
    Ok(fd)
}

/// Changes what `fd` means in the kernel by `change`, a close. If that went well it is not one of
/// ours any more.
pub(crate) fn close<R>(fd: RawFd, change: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
    match slot(fd).filter(|slot| !slot.is_empty()) {
        Some(slot) => {
            let _section = Section::begin();
            let _change = change::Change::begin();
            slot.change(false, || Ok((change()?, None)))
        }
        None => change(),
    }
}

/// Has `copy` make a new number, which stands for what `fd` does.
///
/// Whoever hands the object over finds the new number as well: it is in the table before `fd` can be
/// held.
pub(crate) fn copy(fd: RawFd, copy: impl Fn() -> Result<RawFd, Errno>) -> Result<RawFd, Errno> {
    let Some(slot) = slot(fd).filter(|_| has_any()) else {
        return copy();
    };
    let _section = Section::begin();
    // A number of the kernel's, too, is marked, and would not be known for one in the child of a fork.
    let _change = change::Change::begin();
    let mut patience = Patience::new();
    loop {
        let held_back = HeldBack::begin();
        let copied = slot.kept(|object| match object {
            Some(object) => fill(copy()?, object.clone()),
            None => copy(),
        });
        if let Some(copied) = copied {
            return copied;
        }
        drop(held_back);
        patience.wait();
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
    let Some(slot) = slot_to_fill(new) else {
        return match is_user_level(fd) && new >= 0 {
            // As for a number beyond the limit.
            true => Err(Errno::BADF),
            false => copy(),
        };
    };
    let section = Section::begin();
    let change = change::Change::begin();
    let outgoing = match slot.is_empty() {
        true => second_number_if_it_lingers(new),
        false => None,
    };
    let mut patience = Patience::new();
    let result = loop {
        // A change waits for no other one.
        let changed = slot.change(true, || {
            let (copied, object) = match self::slot(fd) {
                Some(from) => from.kept(|object| (copy(), object.cloned())).ok_or(None)?,
                None => (copy(), None),
            };
            Ok((copied.map_err(Some)?, object))
        });
        match changed {
            Ok(new) => break Ok(new),
            Err(Some(errno)) => break Err(errno),
            Err(None) => patience.wait(),
        }
    };
    if let Some(outgoing) = outgoing {
        // That it was interrupted, or what it has lost, nobody hears of: nor would they from the kernel.
        // A child must not have it, and a handler that leaves for good not leave it open.
        let _ = kernel::close(outgoing);
    }
    // In the reverse order of their beginning, as a handler may leave for good from here on.
    drop(change);
    drop(section);
    result
}

/// Another number for a socket of the kernel's whose last close may block, to be closed when signals
/// are let in, which end that, and the other number can be looked up again.
fn second_number_if_it_lingers(fd: RawFd) -> Option<RawFd> {
    let mut linger = libc::linger {
        l_onoff: 0,
        l_linger: 0,
    };
    #[expect(clippy::cast_possible_truncation, reason = "a few bytes")]
    let mut size = size_of_val(&linger) as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_LINGER);
    // SAFETY: what the kernel writes to is live, and of the size that it is told.
    let known = unsafe {
        call!(
            getsockopt,
            fd,
            level,
            option,
            &raw mut linger,
            &raw mut size
        )
    };
    if known.is_err() || linger.l_onoff == 0 || linger.l_linger == 0 {
        return None;
    }
    // SAFETY: no pointers are involved. Where there is no number left the change waits.
    kernel::number(unsafe { call!(fcntl, fd, libc::F_DUPFD_CLOEXEC, 256) }).ok()
}

/// If what the number stands for was handed over without it, it is what the kernel takes it for. To be
/// asked before a call starts anew because its object is retired.
#[cold]
pub(crate) fn leave_if_retired(fd: RawFd) {
    let Some(slot) = slot(fd) else { return };
    let _section = Section::begin();
    let _held_back = HeldBack::begin();
    if let Some(held) = slot.hold(Object::is_retired) {
        slot.give_up(held, None);
    }
}

/// All numbers of one object, or of both ends of one, kept from being looked up. Signals are held back: a handler would wait
/// for the code under it.
pub(crate) struct Held {
    numbers: Vec<RawFd>,
    entries: Vec<*mut Entry>,
    _held_back: HeldBack,
}

/// Keeps all numbers of `object`, and of what is [tied](Object::is_tied_to) to it, from being looked
/// up, once no call uses it any more; those that block on it have a reference of their own.
///
/// # Errors
/// `EBUSY`: a call of this very thread uses it, or one of a thread that does not get on.
pub(crate) fn hold(object: &Object) -> Result<Held, Errno> {
    let mut held = Held {
        numbers: Vec::new(),
        entries: Vec::new(),
        _held_back: HeldBack::begin(),
    };
    let is_meant = |found: &Object| found.is_tied_to(object);
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
            if let Some(slot) = slot(fd) {
                slot.give_up(entry, successor.cloned());
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

/// In the child of a fork: what `fd` stands for.
pub(crate) fn alone(fd: RawFd) -> Option<&'static Object> {
    slot(fd).and_then(Slot::alone)
}

/// In the child of a fork: has a number stand for `object`, or for nothing of ours, without releasing
/// what it stood for.
pub(crate) fn set_alone(fd: RawFd, object: Option<Object>) {
    if let Some(slot) = slot(fd) {
        slot.forget();
        if let Some(object) = object {
            slot.install(object);
        }
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
