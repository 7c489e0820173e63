//! Looking an fd up: how a call uses the entry that a slot leads to, and how an entry that no slot leads to goes.
//!
//! A call that finds an object by its fd stores the entry in a record of its thread, then checks
//! that the fd still leads to the entry. It clears the record when it is done. A thread that takes
//! an entry out of the table waits until no record names it ([`hazard_records`](crate::hazard_records)). A close thus takes effect
//! after the calls that were under way, as in Linux, where each call holds the open file. Looking an fd up
//! writes nothing that other threads write. A call that is about to block takes a reference of its
//! own instead, so nobody waits for long.
//!
//! # The named pair
//! A close leaves the entry to the call that uses it if it has waited for too long, or if the call is
//! one that its own signal handler has interrupted. The close pushes the entry to [`LEAVING`], sets
//! the record's `is_asked`, then checks once more whether the record is cleared. The call clears its
//! record, then checks `is_asked`.

use std::cell::Cell;
use std::ptr::{self, NonNull};

use super::{Entry, Slot};
#[cfg(not(upoll_loom))]
use crate::hazard_records;
use crate::hazard_records::{
    BlockedOn, MOST_TRIES, Mine, Record, before_check, is_used, next_record, note, records,
    see_others, wait_until_unused, wipe,
};
use crate::signals::Section;
use crate::sync::{AtomicPtr, Ordering, Rule, broken, global};

global! {
    /// Entries that no slot leads to. A call was still using each when the close of its fd stopped
    /// waiting. A thread that takes an entry out owns it.
    static LEAVING: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());
}

/// The slot of an fd is being changed.
#[derive(Debug)]
pub(crate) struct Changing;

/// A hazard pointer: keeps an entry alive. Values of one thread are dropped in the reverse order of their creation.
pub(crate) struct Hazard {
    entry: NonNull<Entry>,
    record: &'static Record,
    /// The thread's own, looked up once.
    mine: *const Mine,
}

impl Drop for Hazard {
    #[inline]
    fn drop(&mut self) {
        // A model that has failed is over.
        #[cfg(upoll_loom)]
        if std::thread::panicking() {
            return;
        }
        wipe(self.record);
        // SAFETY: the thread's own, and this does not leave the thread; the model's ends after its
        // last call, the others have no destructor.
        unsafe { &*self.mine }.current.set(self.record);
        // After the record is the next call's: letting go of an object may make calls.
        if self.record.is_asked.load(Ordering::Relaxed) && !broken(Rule::LetGoWhenAsked) {
            let_go_as_asked(self.record);
        }
    }
}

#[inline(always)]
fn still_leads_to(slot: &Slot, entry: NonNull<Entry>) -> bool {
    slot.word() == entry.as_ptr() || broken(Rule::Recheck)
}

impl Hazard {
    /// Uses the entry of `slot`. Returns `None` if it is empty.
    #[inline(always)]
    pub(crate) fn begin(slot: &Slot) -> Option<Hazard> {
        let entry = slot.settled()?;
        let (record, mine) = next_record();
        note(&record.entry, entry);
        // The result stays in registers unless the call begins again.
        let entry = match still_leads_to(slot, entry) {
            true => entry,
            false => Hazard::begin_again(slot, record, mine)?,
        };
        Some(Hazard {
            entry,
            record,
            mine,
        })
    }

    /// Like `begin`, but also returns `None` if the slot is being changed.
    #[inline]
    pub(crate) fn try_begin(slot: &Slot) -> Option<Hazard> {
        let entry = slot.unless_changing()?;
        let (record, mine) = next_record();
        let hazard = Hazard {
            entry,
            record,
            mine,
        };
        note(&record.entry, entry);
        still_leads_to(slot, entry).then_some(hazard)
    }

    /// Begins again after the slot has changed. Returns the entry that the record names in the end.
    #[cold]
    #[inline(never)]
    fn begin_again(
        slot: &Slot,
        record: &'static Record,
        mine: *const Mine,
    ) -> Option<NonNull<Entry>> {
        let hazard = Hazard {
            entry: NonNull::dangling(),
            record,
            mine,
        };
        loop {
            // A thread that changes the slot may be waiting for this record.
            wipe(record);
            let entry = slot.settled()?;
            note(&record.entry, entry);
            if slot.leads_to(entry) || broken(Rule::Recheck) {
                std::mem::forget(hazard);
                return Some(entry);
            }
        }
    }

    /// Also uses the entry of `slot`, until this value is dropped. Returns `None` if the slot is
    /// empty. Possible for one slot only: a record has room for two.
    ///
    /// It does not wait for a change: the changing thread may be waiting for the entries that are
    /// in use already.
    #[inline(always)]
    pub(crate) fn add(&self, slot: &Slot) -> Result<Option<&Entry>, Changing> {
        let Some(entry) = slot.at_once()? else {
            return Ok(None);
        };
        let another = &self.record.another;
        note(another, entry);
        if !still_leads_to(slot, entry) && !slot.leads_to(entry) {
            another.store(ptr::null_mut(), Ordering::Release);
            return Err(Changing);
        }
        // SAFETY: the record names it, and was written before the slot was seen to lead to it.
        Ok(Some(unsafe { entry.as_ref() }))
    }

    #[inline]
    pub(crate) fn entry(&self) -> &Entry {
        // SAFETY: the record names it, and was written before the slot was seen to lead to it.
        unsafe { self.entry.as_ref() }
    }

    /// Runs `call`, which may block, while the record has `blocked_on` in place of the entry. Returns
    /// `None` if `is_still` returns false once the record has it.
    #[inline]
    pub(crate) fn while_blocked_on<R>(
        self,
        blocked_on: BlockedOn,
        is_still: impl FnOnce(&Entry) -> bool,
        call: impl FnOnce() -> R,
    ) -> Option<R> {
        let record = self.record;
        record.blocked_on.store(blocked_on.0, Ordering::Relaxed);
        before_check();
        let is_still = is_still(self.entry());
        wipe(record);
        if record.is_asked.load(Ordering::Relaxed) {
            let_go_as_asked(record);
        }
        let result = is_still.then(call);
        record.blocked_on.store(ptr::null_mut(), Ordering::Release);
        // Delayed signal handlers run when `self` is dropped, at the end.
        result
    }
}

/// Entries that a call uses at the same time, until this value is dropped.
///
/// It does not wait for a change: the changing thread may be waiting for the entries that are in
/// use already.
pub(crate) struct Several {
    /// The record of the first; the others' follow it.
    first: Cell<Option<&'static Record>>,
    /// The thread's own: so this stays with the thread.
    mine: Cell<*const Mine>,
}

impl Several {
    pub(crate) const fn new() -> Self {
        Several {
            first: Cell::new(None),
            mine: Cell::new(ptr::null()),
        }
    }

    /// Also uses the entry of `slot`. Returns `None` if the slot is empty or being changed.
    #[inline]
    pub(crate) fn add(&self, slot: &Slot) -> Option<&Entry> {
        let hazard = Hazard::try_begin(slot)?;
        if self.first.get().is_none() {
            self.first.set(Some(hazard.record));
            self.mine.set(hazard.mine);
        }
        let entry = hazard.entry;
        std::mem::forget(hazard);
        // SAFETY: as in `Hazard::entry`; the record names it until this goes.
        Some(unsafe { entry.as_ref() })
    }
}

impl Drop for Several {
    #[inline]
    fn drop(&mut self) {
        #[cfg(upoll_loom)]
        if std::thread::panicking() {
            return;
        }
        let Some(first) = self.first.get() else {
            return;
        };
        // SAFETY: as in `Hazard`.
        let mine = unsafe { &*self.mine.get() };
        // Calls inside this one have ended, so the records before the current one belong to this
        // value.
        let end = mine.current.get();
        let each = |call: fn(&Record)| {
            let mut at = ptr::from_ref(first);
            while at != end {
                // SAFETY: records are never freed.
                let record = unsafe { &*at };
                call(record);
                at = record.deeper.load(Ordering::Relaxed);
            }
        };
        each(wipe);
        mine.current.set(first);
        each(|record| {
            if record.is_asked.load(Ordering::Relaxed) && !broken(Rule::LetGoWhenAsked) {
                let_go_as_asked(record);
            }
        });
    }
}

/// Forgets the other threads, in the child of a fork. The entries that they used are not freed: the
/// threads may have been in the midst of changing them.
#[cfg(not(upoll_loom))]
pub(crate) fn forget_other_threads() {
    // The check avoids a write to a page that the parent shares.
    if !LEAVING.load(Ordering::Relaxed).is_null() {
        LEAVING.store(ptr::null_mut(), Ordering::Relaxed);
    }
    hazard_records::forget_other_threads();
}

/// Releases an entry once no call uses it; null is ignored. No slot leads to the entry.
///
/// The entry is freed at once unless a signal handler closes an fd that the interrupted code is
/// using, or a call makes no progress. In these cases the entry is freed at the end of the call.
pub(crate) fn release(entry: *mut Entry) {
    if entry.is_null() {
        return;
    }
    if wait_until_unused(entry, MOST_TRIES) {
        // SAFETY: no slot leads to it, and no call uses it.
        unsafe { free(entry) };
    } else if !leave(entry) {
        let_go_of_unused();
    }
}

/// Frees an entry.
///
/// # Safety
/// The entry is the caller's alone: no slot leads to it, and no call uses it.
pub(crate) unsafe fn free(entry: *mut Entry) {
    #[cfg(not(upoll_loom))]
    // SAFETY: the caller's contract; it comes from `Box::into_raw`.
    drop(unsafe { Box::from_raw(entry) });
    // The model keeps the memory, so that a failure that it finds is one of its own.
    #[cfg(upoll_loom)]
    // SAFETY: the caller's contract.
    unsafe { &*entry }.object.close();
}

/// Leaves an entry to a call that uses it. Returns false if no call uses it any more.
fn leave(entry: *mut Entry) -> bool {
    // SAFETY: it is the caller's to free, and so nobody has freed it.
    let next = unsafe { &(*entry).next_leaving };
    let mut head = LEAVING.load(Ordering::Relaxed);
    loop {
        next.store(head, Ordering::Relaxed);
        match LEAVING.compare_exchange_weak(head, entry, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => head = now,
        }
    }
    // From here on another thread may free it; it is only compared.
    while let Some(record) = records().find(|record| record.names(entry)) {
        record.is_asked.store(true, Ordering::SeqCst);
        see_others();
        // A call that is seen to use the entry now finds `is_asked` set at its end.
        if broken(Rule::RecheckAfterAsking) || record.names(entry) {
            return true;
        }
    }
    false
}

#[cold]
fn let_go_as_asked(record: &Record) {
    // A handler must not interrupt the release while it holds locks. At the end of the section
    // delayed handlers run.
    let _section = Section::begin();
    record.is_asked.store(false, Ordering::SeqCst);
    let_go_of_unused();
}

/// Frees the entries in [`LEAVING`] that no call uses any more.
fn let_go_of_unused() {
    let mut is_over = false;
    while !is_over {
        is_over = true;
        let mut entry = LEAVING.swap(ptr::null_mut(), Ordering::SeqCst);
        while !entry.is_null() {
            // SAFETY: it was in the list, so it is this thread's now.
            let next = unsafe { &(*entry).next_leaving }.load(Ordering::Relaxed);
            if is_used(entry) {
                is_over &= leave(entry);
            } else {
                // SAFETY: as above, and no call uses it.
                unsafe { free(entry) };
            }
            entry = next;
        }
    }
}
