//! The table: the user-level object that each fd stands for.
//!
//! Each object stands *behind* a kernel object of its kind that has the same fd. So the kernel
//! assigns fds, lowest first, keeps the flags of fd and open file, and counts the references that
//! `dup` makes. The entry here holds the object that calls go to.

use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use upoll::Errno;
use upoll::internal::own_fds;

use crate::change;
use crate::counts;
pub use crate::counts::has_any;
use crate::hazard_records::{self, BlockedOn};
use crate::kernel::{self, call};
use crate::object::Object;
use crate::plain_sets;
use crate::signals::{Blocked, Section};
use crate::slot::hazard::{self, Changing};
use crate::slot::{self, Entry, Slot};
use upoll_sys::backoff::Backoff;

/// Fds from this one on are always the kernel's. It is the default of `fs.nr_open`.
const FDS: usize = 1 << 20;

/// The number of slots that are mapped at once.
const PART: usize = 1 << 10;
type Part = [Slot; PART];

/// The slots of every [`PART`] fds; null where no fd was ever user-level. So the table takes memory,
/// which a program may lock, only for fds that are in use. Parts are never unmapped.
static PARTS: [AtomicPtr<Part>; FDS / PART] =
    [const { AtomicPtr::new(ptr::null_mut()) }; FDS / PART];

/// No part from this one on exists.
static PARTS_END: AtomicUsize = AtomicUsize::new(0);

#[inline]
fn part(index: usize) -> Option<&'static Part> {
    let part = PARTS.get(index)?.load(Ordering::Acquire);
    // SAFETY: null, or published by `make_part` and never unmapped.
    unsafe { part.as_ref() }
}

/// Returns the slot of an fd. Returns `None` if no fd near it was ever user-level.
#[inline]
pub(crate) fn slot(fd: RawFd) -> Option<&'static Slot> {
    let at = fd.cast_unsigned() as usize;
    Some(&part(at / PART)?[at % PART])
}

/// Returns the slot of an fd that may get an entry. Returns `None` if the fd is beyond the table, or
/// there is no memory.
fn slot_to_fill(fd: RawFd) -> Option<&'static Slot> {
    match slot(fd) {
        None => make_part(fd.cast_unsigned() as usize / PART).and_then(|()| slot(fd)),
        found => found,
    }
}

#[cold]
fn make_part(index: usize) -> Option<()> {
    let place = PARTS.get(index)?;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let size = size_of::<Part>();
    // By system call, as a signal handler may have interrupted `malloc`.
    // SAFETY: new memory, in nobody's way.
    let address = unsafe { call!(SYS_mmap, 0, size, access, kind, usize::MAX, 0) }.ok()?;
    let part: *mut Part = ptr::with_exposed_provenance_mut(address);
    // Before the part can be found.
    PARTS_END.fetch_max(index + 1, Ordering::SeqCst);
    // New memory is zero, which every slot of a part begins as: a null pointer.
    let made = place.compare_exchange(ptr::null_mut(), part, Ordering::SeqCst, Ordering::Relaxed);
    if made.is_err() {
        // Another thread was quicker.
        // SAFETY: mapped above, and nobody has seen it.
        let _ = unsafe { call!(SYS_munmap, address, size) };
    }
    Some(())
}

/// Calls `call` with the object that `fd` stands for. Returns `None` if the fd is the kernel's, or
/// not open. `call` must not block: a close of the fd waits for it.
#[inline]
pub(crate) fn with<R>(fd: RawFd, call: impl FnOnce(&Object) -> R) -> Option<R> {
    slot(fd)?.with(call)
}

/// Returns the object that `fd` stands for, ready to be watched. The preparation of a set and its demotion exclude each
/// other: [`with`] keeps the fd from being held.
///
/// # Errors
/// As [`Object::prepare_to_be_watched`].
pub(crate) fn get_to_watch(fd: RawFd) -> Result<Option<Object>, Errno> {
    let prepare = |object: &Object| {
        object.prepare_to_be_watched(fd)?;
        Ok(object.clone())
    };
    with(fd, prepare).transpose()
}

/// Hazard pointers to the objects that a call uses, until this is dropped. The call must not block, as in [`with`].
pub(crate) struct Hazard(hazard::Hazard);

impl Hazard {
    /// Uses the object that `fd` stands for. Returns `None` if the fd is the kernel's, or not open.
    #[inline(always)]
    pub(crate) fn begin(fd: RawFd) -> Option<Self> {
        hazard::Hazard::begin(slot(fd)?).map(Hazard)
    }

    #[inline(always)]
    pub(crate) fn object(&self) -> &Object {
        &self.0.entry().object
    }

    /// Also uses the object of a second fd. May be called once.
    #[inline(always)]
    pub(crate) fn add(&self, fd: RawFd) -> Result<Option<&Object>, Changing> {
        let entry = match slot(fd) {
            Some(slot) => self.0.add(slot)?,
            None => None,
        };
        Ok(entry.map(|entry| &entry.object))
    }
}

/// Waits for the end of a change of the fd that is under way.
#[cold]
pub(crate) fn outlast_change(fd: RawFd) {
    if let Some(slot) = slot(fd) {
        slot.outlast_change();
    }
}

/// Runs `call`, which may block, while this thread's record has what `blocked_on` returns for the object.
/// Returns `None` if that is `None`, or the fd is not user-level.
#[inline]
pub(crate) fn while_blocked_on<R>(
    fd: RawFd,
    blocked_on: impl Fn(&Object) -> Option<BlockedOn>,
    call: impl FnOnce() -> R,
) -> Option<R> {
    slot(fd)?.while_blocked_on(blocked_on, call)
}

/// Objects that a call uses at the same time, until this is dropped. The call must not block, as in
/// [`with`].
pub(crate) struct Several(hazard::Several);

impl Several {
    pub(crate) const fn new() -> Self {
        Several(hazard::Several::new())
    }

    /// Also uses the object of `fd`. Returns `None` if the fd is the kernel's, not open, or being
    /// changed.
    #[inline]
    pub(crate) fn add(&self, fd: RawFd) -> Option<&Object> {
        self.0.add(slot(fd)?).map(|entry| &entry.object)
    }
}

/// Returns a reference to the object that `fd` stands for, for a call that may block.
pub(crate) fn get(fd: RawFd) -> Option<Object> {
    with(fd, Object::clone)
}

/// Returns whether the fd is user-level.
#[inline]
pub fn is_user_level(fd: RawFd) -> bool {
    slot(fd).is_some_and(|slot| !slot.is_empty())
}

/// Returns whether the fd is user-level, or an own fd, which the program cannot use. Calls on any other fd are the
/// kernel's.
#[inline]
pub fn is_user_level_or_own(fd: RawFd) -> bool {
    is_user_level(fd) || own_fds::is_own(fd)
}

/// Returns whether [`is_user_level_or_own`] may be true of an fd. This is a few loads, without a call.
#[inline]
pub fn may_be_user_level_or_own(fd: RawFd) -> bool {
    is_user_level(fd) || own_fds::may_be_own(fd)
}

/// Returns -1 for an own fd that is [protected](own_fds) from the program, so that calls on it fail as on
/// a closed fd. Returns any other fd unchanged.
#[inline]
pub(crate) fn programs(fd: RawFd) -> RawFd {
    match own_fds::is_own(fd) {
        true => -1,
        false => fd,
    }
}

/// Returns whether the fd stands for a user-level socket.
pub fn is_socket(fd: RawFd) -> bool {
    is_user_level(fd) && with(fd, |object| matches!(object, Object::Socket(_))).unwrap_or(false)
}

/// Returns whether the fd is user-level, and stands for no passive set: calls on such a set are the kernel's.
pub fn is_active_user_level(fd: RawFd) -> bool {
    let is_passive = |object: &Object| matches!(object, Object::Epoll(set) if set.is_passive());
    with(fd, |object| !is_passive(object)).unwrap_or(false)
}

/// Returns an iterator over all user-level fds.
pub fn user_level_fds() -> impl Iterator<Item = RawFd> {
    fds(0, u32::MAX)
}

/// Returns whether no fd is user-level. If so, [`has_any`] is false from now on.
pub(crate) fn is_none_left() -> bool {
    counts::is_none_left(|| user_level_fds().next().is_some())
}

/// Returns whether the table can have an entry for an fd. The fd may be beyond the table, or there may be
/// no memory.
pub(crate) fn has_slot(fd: RawFd) -> bool {
    slot_to_fill(fd).is_some()
}

/// Makes both fds, which the kernel has just opened, stand for these objects. Without a [slot](has_slot) for
/// each they stay the kernel's.
pub(crate) fn fill_both(fds: [RawFd; 2], entries: [Box<Entry>; 2]) {
    if let [Some(one), Some(other)] = fds.map(slot_to_fill) {
        fds.into_iter().for_each(plain_sets::forget_closed);
        counts::while_adding(|| Slot::install_both([one, other], entries));
    }
}

/// Makes the fd, which the kernel has just opened, stand for the object of `entry`.
///
/// # Errors
/// `EMFILE`: there is no [slot](has_slot) for it. It is closed then.
pub(crate) fn fill(fd: RawFd, entry: Box<Entry>) -> Result<RawFd, Errno> {
    let Some(slot) = slot_to_fill(fd) else {
        kernel::close(fd)?;
        return Err(Errno::MFILE);
    };
    plain_sets::forget_closed(fd);
    counts::while_adding(|| slot.install(entry));
    Ok(fd)
}

/// Calls `change`, which closes the fd in the kernel. If that succeeds, the fd is no longer
/// user-level.
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

/// Calls `copy`, which opens a new fd for the file of `fd`.
///
/// A demotion finds the new fd as well: it is in the table before `fd` can be held.
pub(crate) fn copy(fd: RawFd, copy: impl Fn() -> Result<RawFd, Errno>) -> Result<RawFd, Errno> {
    if !has_any() {
        return copy();
    }
    let Some(slot) = slot_to_fill(fd) else {
        return copy();
    };
    let _section = Section::begin();
    // The slot of a kernel fd is tagged, too, and the child of a fork would not know it for one.
    let _change = change::Change::begin();
    let mut backoff = Backoff::new();
    loop {
        let blocked = Blocked::all();
        let copied = slot.kept(|object| match object {
            // First, because the copy must not be made without it.
            Some(object) => {
                let entry = Entry::new(object.clone())?;
                fill(copy()?, entry)
            }
            None => copy(),
        });
        if let Some(copied) = copied {
            return copied;
        }
        drop(blocked);
        counts::wait_to_copy();
        backoff.wait();
    }
}

/// Makes `new` stand for the object of `fd`; in the kernel by `copy`. Without a [slot](has_slot) for `new` it stands
/// for the kernel's file.
pub(crate) fn replace(
    fd: RawFd,
    new: RawFd,
    copy: impl Fn() -> Result<RawFd, Errno>,
) -> Result<RawFd, Errno> {
    if !has_any() {
        return copy();
    }
    hazard_records::prepare();
    let Some(slot) = slot_to_fill(new) else {
        return copy();
    };
    let section = Section::begin();
    let change = change::Change::begin();
    let outgoing = match slot.is_empty() {
        true => second_fd_if_it_lingers(new),
        false => None,
    };
    let result = counts::while_adding(|| slot.replace_by_copy(slot_to_fill(fd), copy));
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

/// Opens another fd for a kernel socket whose last close may block. The caller closes it once the fd
/// can be looked up again and signals, which end a blocked close, are no longer blocked.
fn second_fd_if_it_lingers(fd: RawFd) -> Option<RawFd> {
    let mut linger = libc::linger {
        l_onoff: 0,
        l_linger: 0,
    };
    #[expect(clippy::cast_possible_truncation, reason = "a few bytes")]
    let mut size = size_of_val(&linger) as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_LINGER);
    // SAFETY: the kernel writes to live variables, of the sizes that are passed.
    let known = unsafe {
        call!(
            SYS_getsockopt,
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
    // SAFETY: no pointers are involved. Without a free fd, the change waits for the close.
    kernel::to_fd(unsafe { call!(SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, 256) }).ok()
}

/// Makes the fd the kernel's if its object was demoted without it. To be called before a call begins
/// again because its object is stale.
#[cold]
pub(crate) fn leave_if_stale(fd: RawFd) {
    let Some(slot) = slot(fd) else { return };
    let _section = Section::begin();
    let _blocked = Blocked::all();
    if let Some(held) = slot.hold(Object::is_stale) {
        slot.end_demotion(held);
    }
}

/// Makes the fds whose objects are meant stand for nothing, if `take` returns true for the fd and its object. Fds in
/// use or in the midst of a change are left alone, and all others if there is no memory for the list.
///
/// Signals must be blocked: a handler that looks such an fd up would wait for the interrupted code.
pub(crate) fn empty_unused(
    is_meant: impl Fn(&Object) -> bool,
    take: impl Fn(RawFd, &Object) -> bool,
    _blocked: &Blocked,
) {
    let mut held = Vec::new();
    // Part by part, so that the list is small and entries are in the processor's cache when they are looked at again.
    if held.try_reserve_exact(PART).is_err() {
        return;
    }
    for index in 0..PARTS_END.load(Ordering::SeqCst) {
        if let Some(part) = part(index) {
            slot::empty_unused(part, &mut held, &is_meant, |at, object| {
                RawFd::try_from(index * PART + at).is_ok_and(|fd| take(fd, object))
            });
        }
    }
}

/// Returns the object of `fd`, in the child of a fork.
pub(crate) fn alone(fd: RawFd) -> Option<&'static Object> {
    slot(fd).and_then(Slot::alone)
}

/// In the child of a fork: has an fd stand for the object of `entry`, or for no user-level object, without
/// releasing what it stood for.
pub(crate) fn set_alone(fd: RawFd, entry: Option<Box<Entry>>) {
    if let Some(slot) = slot(fd) {
        slot.forget();
        if let Some(entry) = entry {
            counts::while_adding(|| slot.install(entry));
        }
    }
}

/// The user-level fds from `first` to `last`.
pub(crate) fn fds(first: u32, last: u32) -> impl Iterator<Item = RawFd> {
    let first = first as usize;
    let last = (last as usize).min(FDS - 1);
    let parts = PARTS_END.load(Ordering::SeqCst);
    (first / PART..parts.min(last / PART + 1))
        .filter_map(|index| Some((index * PART, part(index)?)))
        .flat_map(move |(begin, part)| {
            let from = first.saturating_sub(begin);
            let slots = &part[from..=(last - begin).min(PART - 1)];
            (begin + from..).zip(slots)
        })
        .filter(|(_, slot)| !slot.is_empty())
        .filter_map(|(fd, _)| RawFd::try_from(fd).ok())
}
