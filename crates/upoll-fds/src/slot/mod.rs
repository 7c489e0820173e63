//! The place of one fd in the table: the entry that it leads to, and how that changes.
//!
//! # Changing the object of an fd
//! The kernel's table and this one cannot change in one step. While they change, the slot holds a
//! tag, and a look-up waits. The wait lasts as long as one system call that does not block. Each
//! change has a tag of its own, so it cannot end another change. All signals are blocked
//! meanwhile: a handler that looks the fd up would wait for the code under it.
//!
//! A thread that [holds](Slot::hold) fds may wait for changes by others. A change waits for nothing.

pub(crate) mod hazard;

use std::ptr::{self, NonNull};

use upoll::Errno;

use self::hazard::{Changing, Hazard};
use crate::counts;
use crate::hazard_records::{self, BlockedOn};
use crate::object::Object;
use crate::signals::Blocked;
use crate::sync::{AtomicPtr, Backoff, Ordering, Rule, broken};

/// The object of an fd.
pub(crate) struct Entry {
    pub(crate) object: Object,
    /// The next entry that was left to the calls that use it; see [`hazard::release`].
    pub(crate) next_leaving: AtomicPtr<Entry>,
}

impl Entry {
    /// Makes an entry for `object`.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    pub(crate) fn new(object: Object) -> Result<Box<Entry>, Errno> {
        upoll::internal::boxed(Entry {
            object,
            next_leaving: AtomicPtr::new(ptr::null_mut()),
        })
    }
}

/// Null: the fd is the kernel's, or not open. Odd: the tag of a change. Otherwise a pointer to an
/// entry, with a bit that is set while the fd is [copied](Slot::kept). The table allocates its slots as
/// zero bytes.
#[repr(transparent)]
pub(crate) struct Slot(AtomicPtr<Entry>);

/// The fd is being changed: the word is a tag.
const CHANGING: usize = 1;
/// The fd is being copied. Look-ups go on, also in a handler of a signal that the copy raises.
const KEPT: usize = 2;

#[inline]
fn is_changing(word: *mut Entry) -> bool {
    word.addr() & CHANGING != 0
}

/// Returns whether the fd may be changed.
#[inline]
fn is_at_rest(word: *mut Entry) -> bool {
    word.addr() & (CHANGING | KEPT) == 0
}

fn entry_of(word: *mut Entry) -> *mut Entry {
    word.map_addr(|word| word & !KEPT)
}

/// Returns the tag of a change: the address of a variable that only this change has.
fn tag_by<T>(own: *const T) -> *mut Entry {
    match broken(Rule::OwnTag) {
        true => ptr::without_provenance_mut(1),
        false => ptr::without_provenance_mut(own.addr() | 1),
    }
}

impl Slot {
    #[cfg(upoll_loom)]
    pub(crate) fn empty() -> Self {
        Slot(AtomicPtr::new(ptr::null_mut()))
    }

    /// Returns the current word. Another thread may release the entry at any time.
    #[inline]
    pub(crate) fn word(&self) -> *mut Entry {
        self.0.load(Ordering::Acquire)
    }

    /// Returns the entry after any change that is under way.
    #[inline]
    pub(crate) fn settled(&self) -> Option<NonNull<Entry>> {
        let word = self.word();
        match is_at_rest(word) {
            true => NonNull::new(word),
            false => self.settled_later(),
        }
    }

    #[cold]
    fn settled_later(&self) -> Option<NonNull<Entry>> {
        let mut backoff = Backoff::new();
        loop {
            let word = self.word();
            if !is_changing(word) {
                return NonNull::new(entry_of(word));
            }
            if broken(Rule::WaitWhileChanging) {
                return None;
            }
            backoff.wait();
        }
    }

    /// Returns the entry, even while the fd is copied. Fails while it is changed.
    #[inline]
    pub(crate) fn at_once(&self) -> Result<Option<NonNull<Entry>>, Changing> {
        let word = self.word();
        match is_changing(word) {
            true => Err(Changing),
            false => Ok(NonNull::new(entry_of(word))),
        }
    }

    /// Waits for the end of a change that is under way.
    #[cold]
    pub(crate) fn outlast_change(&self) {
        let _ = self.settled_later();
    }

    /// Waits until the fd is neither changed nor copied.
    #[cold]
    fn outlast_change_and_copy(&self) {
        let mut backoff = Backoff::new();
        while !is_at_rest(self.word()) {
            backoff.wait();
        }
    }

    /// Returns whether the slot leads to `entry` now, even while the fd is copied.
    pub(crate) fn leads_to(&self, entry: NonNull<Entry>) -> bool {
        entry_of(self.word()) == entry.as_ptr()
    }

    /// Returns the entry unless the fd is being changed or copied.
    #[inline]
    pub(crate) fn unless_changing(&self) -> Option<NonNull<Entry>> {
        let word = self.word();
        NonNull::new(word).filter(|_| is_at_rest(word))
    }

    /// Returns whether the slot is empty and not being changed.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        // Acquire: the count of a copy that was made before the slot was emptied is seen (`counts`).
        self.0.load(Ordering::Acquire).is_null()
    }

    /// Calls `call` with the object. Returns `None` if the slot is empty. A close waits for `call`,
    /// which must not block.
    #[inline]
    pub(crate) fn with<R>(&self, call: impl FnOnce(&Object) -> R) -> Option<R> {
        let hazard = Hazard::begin(self)?;
        Some(call(&hazard.entry().object))
    }

    /// Runs `call`, which may block, while this thread's record has what `blocked_on` returns for the
    /// object. `blocked_on` is called again once the record has it. Returns `None` if it returns `None`, or
    /// something else the second time.
    #[inline]
    pub(crate) fn while_blocked_on<R>(
        &self,
        blocked_on: impl Fn(&Object) -> Option<BlockedOn>,
        call: impl FnOnce() -> R,
    ) -> Option<R> {
        let hazard = Hazard::begin(self)?;
        let first = blocked_on(&hazard.entry().object)?;
        let is_still = |entry: &Entry| blocked_on(&entry.object) == Some(first);
        hazard.while_blocked_on(first, is_still, call)
    }

    /// Runs `call`, which copies the fd, with its object. Other changes of the fd wait meanwhile. Returns
    /// `None` if the fd is being changed or copied now, or [may not be copied](counts::may_copy). Signals must be held
    /// back.
    pub(crate) fn kept<R>(&self, call: impl FnOnce(Option<&Object>) -> R) -> Option<R> {
        let own = 0_usize;
        let entry = self.word();
        let tag = match entry.is_null() {
            true => tag_by(&raw const own),
            false => entry.map_addr(|entry| entry | KEPT),
        };
        let is_kept = is_at_rest(entry)
            && (entry.is_null() || counts::may_copy())
            && self
                .0
                .compare_exchange(entry, tag, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok();
        if !is_kept {
            return None;
        }
        // SAFETY: no other thread releases the entry before `put`. Changes wait while the slot has
        // this tag, and `install` leaves the entry to `put`.
        let result = call(unsafe { entry.as_ref() }.map(|entry| &entry.object));
        if !entry.is_null() {
            // Before the fd can leave the slot.
            counts::note_copy();
        }
        hazard::release(self.put(tag, entry));
        Some(result)
    }

    /// Makes the slot lead to `entry`, for an fd that the kernel has just opened. The old entry's fd was
    /// closed behind the library's back, or is just being closed.
    pub(crate) fn install(&self, entry: Box<Entry>) {
        let old = self.0.swap(Box::into_raw(entry), Ordering::SeqCst);
        if is_at_rest(old) {
            hazard::release(old);
        }
    }

    /// Makes both slots lead to their entries, for fds of two ends that the kernel has just opened. A thread that finds
    /// one end in its slot and then [holds](Self::hold) the other slot gets the other end: the first slot has a tag
    /// until the second end is in its slot.
    pub(crate) fn install_both(slots: [&Slot; 2], [first, second]: [Box<Entry>; 2]) {
        let own = 0_usize;
        let tag = tag_by(&raw const own);
        let blocked = Blocked::all();
        let before = [
            slots[0].0.swap(tag, Ordering::SeqCst),
            slots[1].0.swap(Box::into_raw(second), Ordering::SeqCst),
        ];
        let leaving = slots[0].put(tag, Box::into_raw(first));
        drop(blocked);
        hazard::release(leaving);
        before
            .into_iter()
            .filter(|&old| is_at_rest(old))
            .for_each(hazard::release);
    }

    /// Changes the object of the fd: in the kernel by `change`, and, if that succeeds, here to the
    /// entry that it returns. The old entry is released.
    ///
    /// No slot is tagged if the slot is empty and `may_fill` is false: `change` then returns no
    /// entry.
    pub(crate) fn change<R, E>(
        &self,
        may_fill: bool,
        change: impl FnOnce() -> Result<(R, Option<Box<Entry>>), E>,
    ) -> Result<R, E> {
        let own = 0_usize;
        let tag = tag_by(&raw const own);
        let mut backoff = Backoff::new();
        let (result, leaving) = loop {
            let old = self.0.load(Ordering::Relaxed);
            if old.is_null() && !may_fill {
                return change().map(|(value, _)| value);
            }
            let blocked = Blocked::all();
            let is_tagged = is_at_rest(old)
                && self
                    .0
                    .compare_exchange(old, tag, Ordering::SeqCst, Ordering::Relaxed)
                    .is_ok();
            if !is_tagged {
                drop(blocked);
                backoff.wait();
                continue;
            }
            let (result, new) = match change() {
                Ok((value, None)) => (Ok(value), ptr::null_mut()),
                Ok((value, Some(entry))) => (Ok(value), Box::into_raw(entry)),
                Err(errno) => (Err(errno), old),
            };
            let leaving = if new == old { ptr::null_mut() } else { old };
            break (result, [leaving, self.put(tag, new)]);
        };
        leaving.into_iter().for_each(hazard::release);
        result
    }

    /// Makes the slot lead to the object of `from`, or to nothing if that is the kernel's; in the kernel by `copy`.
    pub(crate) fn replace_by_copy<R>(
        &self,
        from: Option<&Slot>,
        copy: impl Fn() -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        loop {
            let changed = self.change(true, || {
                let copied = match from {
                    Some(from) => from
                        .kept(|object| copy_with_entry(object, &copy))
                        .ok_or(None)?,
                    None => copy().map(|copied| (copied, None)),
                };
                copied.map_err(Some)
            });
            match changed {
                Ok(new) => return Ok(new),
                Err(Some(errno)) => return Err(errno),
                // A change waits for no other one, so this is over.
                Err(None) => {
                    from.into_iter().for_each(Slot::outlast_change_and_copy);
                    counts::wait_to_copy();
                }
            }
        }
    }

    /// Ends the change with this `tag`. Returns `entry` if the fd has got another object meanwhile:
    /// the kernel opened it again, and that object was installed over the tag.
    fn put(&self, tag: *mut Entry, entry: *mut Entry) -> *mut Entry {
        let put = self
            .0
            .compare_exchange(tag, entry, Ordering::SeqCst, Ordering::Relaxed);
        match put {
            Ok(_) => ptr::null_mut(),
            Err(_) => entry,
        }
    }

    /// Keeps the fd from being looked up and copied, if `is_meant` returns true for its object. The
    /// entry may still be in use. Signals must be blocked until [`give_back`](Self::give_back) or
    /// [`end_demotion`](Self::end_demotion).
    pub(crate) fn hold(&self, is_meant: impl Fn(&Object) -> bool) -> Option<*mut Entry> {
        let is_meant = |hazard: &Hazard| is_meant(&hazard.entry().object);
        let mut backoff = Backoff::new();
        while let Some(hazard) = Hazard::begin(self).filter(is_meant) {
            let entry = ptr::from_ref(hazard.entry()).cast_mut();
            let held = tag_by(entry);
            let place = &self.0;
            if place
                .compare_exchange(entry, held, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
            {
                return Some(entry);
            }
            drop(hazard);
            backoff.wait();
        }
        None
    }

    /// Like [`hold`](Self::hold), whatever the object is. Returns `None` if the slot is empty, or the fd is being
    /// changed or copied.
    fn try_to_hold(&self) -> Option<*mut Entry> {
        let entry = self.unless_changing()?.as_ptr();
        self.0
            .compare_exchange(entry, tag_by(entry), Ordering::SeqCst, Ordering::Relaxed)
            .ok()
    }

    /// Makes the slot lead to its old entry again.
    pub(crate) fn give_back(&self, held: *mut Entry) {
        hazard::release(self.put(tag_by(held), held));
    }

    /// Empties the slot.
    pub(crate) fn end_demotion(&self, held: *mut Entry) {
        self.put(tag_by(held), ptr::null_mut());
        hazard::release(held);
    }

    /// Like `end_demotion`, for an entry that no call uses any more.
    ///
    /// # Safety
    /// The caller has waited for that since it [held](Self::hold) the slot, by
    /// [`hazard_records::wait_until_all_unused`], or has found out by [`hazard_records::each_used`].
    pub(crate) unsafe fn end_demotion_of_unused(&self, held: *mut Entry) {
        self.put(tag_by(held), ptr::null_mut());
        // SAFETY: the slot has not led to it since it was held, and no call uses it by the caller's
        // contract.
        unsafe { hazard::free(held) };
    }

    /// Makes the slot lead to its old entry again, with another object. This needs no memory.
    ///
    /// # Safety
    /// As [`end_demotion_of_unused`](Self::end_demotion_of_unused).
    #[cfg(not(upoll_loom))]
    pub(crate) unsafe fn give_back_with(&self, held: *mut Entry, object: Object) {
        // SAFETY: the slot has not led to it since it was held, and no call uses it by the caller's
        // contract.
        let old = std::mem::replace(unsafe { &mut (*held).object }, object);
        self.give_back(held);
        drop(old);
    }

    /// Returns the object while no other thread can change the slot.
    #[cfg(not(upoll_loom))]
    pub(crate) fn alone(&self) -> Option<&Object> {
        // SAFETY: there is no other thread that could take it out.
        let entry = self
            .unless_changing()
            .map(|entry| unsafe { entry.as_ref() });
        entry.map(|entry| &entry.object)
    }

    /// Empties the slot without releasing the entry.
    #[cfg(not(upoll_loom))]
    pub(crate) fn forget(&self) {
        self.0.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

/// An entry that a thread holds, and the index of its slot.
pub(crate) type HeldEntry = (usize, *mut Entry);

/// Empties the slots whose objects are meant, if `take` returns true for the object. Slots that a call uses, and
/// those that are being changed or copied, are left alone. So this neither waits nor sorts, unlike
/// [`Slot::hold`] for each slot.
///
/// `held` is an empty list with room for all slots. Signals must be blocked, as for [`Slot::hold`].
pub(crate) fn empty_unused(
    slots: &[Slot],
    held: &mut Vec<HeldEntry>,
    is_meant: impl Fn(&Object) -> bool,
    take: impl Fn(usize, &Object) -> bool,
) {
    for (at, slot) in slots.iter().enumerate() {
        // Another thread's fork may copy a held slot to a child, so one whose object stays is not held even for a moment.
        let is_found = |hazard: Hazard| is_meant(&hazard.entry().object);
        if Hazard::try_begin(slot).is_some_and(is_found)
            && let Some(entry) = slot.try_to_hold()
        {
            // SAFETY: it is held, so no other thread frees it.
            match is_meant(unsafe { &(*entry).object }) {
                true => held.push((at, entry)),
                false => slot.give_back(entry),
            }
        }
    }
    if held.is_empty() {
        return;
    }
    // Few at most: while a record names an entry, its thread does not block.
    hazard_records::each_used(|used| {
        let found = held.iter().position(|&(_, entry)| entry == used);
        if let Some((at, entry)) = found.map(|found| held.swap_remove(found)) {
            slots[at].give_back(entry);
        }
    });
    for (at, entry) in held.drain(..) {
        // SAFETY: as above.
        if take(at, unsafe { &(*entry).object }) {
            // SAFETY: no record has named it since it was held.
            unsafe { slots[at].end_demotion_of_unused(entry) };
        } else {
            slots[at].give_back(entry);
        }
    }
}

/// Calls `copy`, which copies an fd that stands for `object`. Makes the entry for the copy first, because
/// the copy must not be made without it.
fn copy_with_entry<R>(
    object: Option<&Object>,
    copy: impl FnOnce() -> Result<R, Errno>,
) -> Result<(R, Option<Box<Entry>>), Errno> {
    let entry = object.cloned().map(Entry::new).transpose()?;
    Ok((copy()?, entry))
}
