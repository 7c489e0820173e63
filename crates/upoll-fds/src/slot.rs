//! The place of one number in the table: what it leads to, and how that changes.
//!
//! # Changing what a number means
//! The kernel's table and this one cannot change in one step. While they do, the slot holds a mark,
//! and whoever looks the number up meanwhile waits: it is for the length of one system call that
//! does not block. The mark is the change's own, so none ends another one. All signals are held back
//! meanwhile: a handler that looks the number up would wait for the code under it.
//!
//! Whoever [holds](Slot::hold) numbers may wait for changes of others; a change waits for nothing.

use std::ptr::{self, NonNull};

use upoll::Errno;

use crate::in_use::{self, Changing, InUse, Mark};
use crate::object::Object;
use crate::sync::{AtomicPtr, HeldBack, Ordering, Patience, Rule, broken};

/// What a number stands for.
pub(crate) struct Entry {
    pub(crate) object: Object,
    /// The next one of those that nobody waited for; see [`in_use::release`].
    pub(crate) next_leaving: AtomicPtr<Entry>,
}

impl Entry {
    /// Makes an entry for `object`.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    pub(crate) fn new(object: Object) -> Result<Box<Entry>, Errno> {
        upoll::boxed(Entry {
            object,
            next_leaving: AtomicPtr::new(ptr::null_mut()),
        })
    }

    /// Makes an entry for the object that goes on for another one. There is no way back from that, so
    /// without memory the process ends.
    fn of_successor(object: Object) -> *mut Entry {
        Box::into_raw(Box::new(Entry {
            object,
            next_leaving: AtomicPtr::new(ptr::null_mut()),
        }))
    }
}

/// Null: the number is the kernel's, or not open. Odd: the mark of a change. Else an entry, and whether
/// it is [kept](Slot::kept). The table takes its slots from memory of zero bytes.
#[repr(transparent)]
pub(crate) struct Slot(AtomicPtr<Entry>);

const MARK: usize = 1;
/// The number is being copied. Look-ups go on: also by a handler of what the copy itself raises.
const KEPT: usize = 2;

#[inline]
fn is_mark(word: *mut Entry) -> bool {
    word.addr() & MARK != 0
}

/// Whether the number may be changed.
#[inline]
fn is_at_rest(word: *mut Entry) -> bool {
    word.addr() & (MARK | KEPT) == 0
}

fn entry_of(word: *mut Entry) -> *mut Entry {
    word.map_addr(|word| word & !KEPT)
}

/// The mark of a change, by the address of something that is this change's alone while it lasts.
fn mark_by<T>(own: *const T) -> *mut Entry {
    match broken(Rule::OwnMark) {
        true => ptr::without_provenance_mut(1),
        false => ptr::without_provenance_mut(own.addr() | 1),
    }
}

impl Slot {
    #[cfg(loom)]
    pub(crate) fn empty() -> Self {
        Slot(AtomicPtr::new(ptr::null_mut()))
    }

    /// What it leads to right now; another call may let go of it at any time.
    #[inline]
    pub(crate) fn word(&self) -> *mut Entry {
        self.0.load(Ordering::Acquire)
    }

    /// The same, once the change is over that is under way.
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
        let mut patience = Patience::new();
        loop {
            let word = self.word();
            if !is_mark(word) {
                return NonNull::new(entry_of(word));
            }
            if broken(Rule::WaitWhileChanging) {
                return None;
            }
            patience.wait();
        }
    }

    /// What it leads to, be it kept or not, unless that is just being changed.
    #[inline]
    pub(crate) fn at_once(&self) -> Result<Option<NonNull<Entry>>, Changing> {
        let word = self.word();
        match is_mark(word) {
            true => Err(Changing),
            false => Ok(NonNull::new(entry_of(word))),
        }
    }

    /// Waits for the end of the change that is under way, if one is.
    #[cold]
    pub(crate) fn outlast_change(&self) {
        let _ = self.settled_later();
    }

    /// Whether it leads to `entry` right now, be it kept or not.
    pub(crate) fn leads_to(&self, entry: NonNull<Entry>) -> bool {
        entry_of(self.word()) == entry.as_ptr()
    }

    /// What it leads to, unless that is just being changed or copied.
    #[inline]
    pub(crate) fn unless_changing(&self) -> Option<NonNull<Entry>> {
        let word = self.word();
        NonNull::new(word).filter(|_| is_at_rest(word))
    }

    /// Whether it leads to nothing, and nobody is about to change that.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed).is_null()
    }

    /// Has `call` use what it leads to; None if that is nothing. A close waits for `call`, which must
    /// not block.
    #[inline]
    pub(crate) fn with<R>(&self, call: impl FnOnce(&Object) -> R) -> Option<R> {
        let in_use = InUse::begin(self)?;
        Some(call(&in_use.entry().object))
    }

    /// Has `call`, which may block, run while this thread is marked with what `mark_of` gives for
    /// the object, and still gives once the thread is marked. None if it gives nothing.
    #[inline]
    pub(crate) fn while_marked<R>(
        &self,
        mark_of: impl Fn(&Object) -> Option<Mark>,
        call: impl FnOnce() -> R,
    ) -> Option<R> {
        let in_use = InUse::begin(self)?;
        let mark = mark_of(&in_use.entry().object)?;
        let is_still = |entry: &Entry| mark_of(&entry.object) == Some(mark);
        in_use.while_marked(mark, is_still, call)
    }

    /// Has `call` copy the number, of which it is told what it leads to; whoever wants to change that has
    /// to wait. None if it is being changed or copied now. Signals are held back.
    pub(crate) fn kept<R>(&self, call: impl FnOnce(Option<&Object>) -> R) -> Option<R> {
        let own = 0_usize;
        let entry = self.word();
        let mark = match entry.is_null() {
            true => mark_by(&raw const own),
            false => entry.map_addr(|entry| entry | KEPT),
        };
        let is_kept = is_at_rest(entry)
            && self
                .0
                .compare_exchange(entry, mark, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok();
        if !is_kept {
            return None;
        }
        // SAFETY: an entry is released by who takes it out of its slot, and that is for us to do.
        let result = call(unsafe { entry.as_ref() }.map(|entry| &entry.object));
        in_use::release(self.put(mark, entry));
        Some(result)
    }

    /// Has the slot lead to `entry`: the kernel has just given out the number. What it led to was closed
    /// behind our back, or is just being closed.
    pub(crate) fn install(&self, entry: Box<Entry>) {
        let old = self.0.swap(Box::into_raw(entry), Ordering::SeqCst);
        if is_at_rest(old) {
            in_use::release(old);
        }
    }

    /// Changes what the number means: in the kernel by `change`, and then, if that went well, here,
    /// to the entry that it returns. What it stood for is released.
    ///
    /// Nothing is marked if the slot is empty and `may_fill` is not so: `change` returns no entry.
    pub(crate) fn change<R, E>(
        &self,
        may_fill: bool,
        change: impl FnOnce() -> Result<(R, Option<Box<Entry>>), E>,
    ) -> Result<R, E> {
        let own = 0_usize;
        let mark = mark_by(&raw const own);
        let mut patience = Patience::new();
        let (result, leaving) = loop {
            let old = self.0.load(Ordering::Relaxed);
            if old.is_null() && !may_fill {
                return change().map(|(value, _)| value);
            }
            let held_back = HeldBack::begin();
            let is_marked = is_at_rest(old)
                && self
                    .0
                    .compare_exchange(old, mark, Ordering::SeqCst, Ordering::Relaxed)
                    .is_ok();
            if !is_marked {
                drop(held_back);
                patience.wait();
                continue;
            }
            let (result, new) = match change() {
                Ok((value, None)) => (Ok(value), ptr::null_mut()),
                Ok((value, Some(entry))) => (Ok(value), Box::into_raw(entry)),
                Err(errno) => (Err(errno), old),
            };
            let leaving = if new == old { ptr::null_mut() } else { old };
            break (result, [leaving, self.put(mark, new)]);
        };
        leaving.into_iter().for_each(in_use::release);
        result
    }

    /// Ends the change that `mark` marks. Gives `entry` back if the number has become another
    /// object's meanwhile: the kernel gave it out again, and that object was installed over the mark.
    fn put(&self, mark: *mut Entry, entry: *mut Entry) -> *mut Entry {
        let put = self
            .0
            .compare_exchange(mark, entry, Ordering::SeqCst, Ordering::Relaxed);
        match put {
            Ok(_) => ptr::null_mut(),
            Err(_) => entry,
        }
    }

    /// Keeps the number from being looked up and copied, if it leads to what `is_meant`. What it leads
    /// to may still be in use. To be ended by [`give_back`](Self::give_back) or
    /// [`give_up`](Self::give_up), until when signals are to be held back.
    pub(crate) fn hold(&self, is_meant: impl Fn(&Object) -> bool) -> Option<*mut Entry> {
        let is_meant = |in_use: &InUse| is_meant(&in_use.entry().object);
        let mut patience = Patience::new();
        while let Some(in_use) = InUse::begin(self).filter(is_meant) {
            let entry = ptr::from_ref(in_use.entry()).cast_mut();
            let held = mark_by(entry);
            let place = &self.0;
            if place
                .compare_exchange(entry, held, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
            {
                return Some(entry);
            }
            drop(in_use);
            patience.wait();
        }
        None
    }

    /// The number is what it was.
    pub(crate) fn give_back(&self, held: *mut Entry) {
        in_use::release(self.put(mark_by(held), held));
    }

    /// The number leads to `successor` from now on, or is the kernel's.
    pub(crate) fn give_up(&self, held: *mut Entry, successor: Option<Object>) {
        let new = successor.map_or(ptr::null_mut(), Entry::of_successor);
        in_use::release(self.put(mark_by(held), new));
        in_use::release(held);
    }

    /// The same for an entry that no call uses any more.
    ///
    /// # Safety
    /// The caller has waited for that since it [held](Self::hold) the slot, by
    /// [`in_use::wait_until_all_unused`].
    #[cfg(not(loom))]
    pub(crate) unsafe fn give_up_unused(&self, held: *mut Entry, successor: Option<Object>) {
        let new = successor.map_or(ptr::null_mut(), Entry::of_successor);
        in_use::release(self.put(mark_by(held), new));
        // SAFETY: the slot has not led to it since it was held, and no call uses it by the caller's
        // contract.
        unsafe { in_use::free(held) };
    }

    /// What it leads to while no other thread could change that.
    #[cfg(not(loom))]
    pub(crate) fn alone(&self) -> Option<&Object> {
        // SAFETY: there is no other thread that could take it out.
        let entry = self
            .unless_changing()
            .map(|entry| unsafe { entry.as_ref() });
        entry.map(|entry| &entry.object)
    }

    /// Takes out what it leads to without releasing it.
    #[cfg(not(loom))]
    pub(crate) fn forget(&self) {
        self.0.store(ptr::null_mut(), Ordering::Relaxed);
    }
}
