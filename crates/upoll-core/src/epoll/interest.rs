//! The interest list: which open files a set watches, under which fds, and for what.
//!
//! Items live in a `Slab` of the set's own, at addresses that never change: wait queues, watcher
//! lists and ready lists link them in place. Look-up is a hash table of slot numbers. Both become
//! smaller as the set does.
//!
//! # Access
//! All that a set's lock guards is reached through a [`LockedSet`], and an item through an [`ItemRef`] that borrows the locked
//! set. A function that removes an item, or changes the tables, needs an `ItemMut`, which borrows the locked set mutably.

mod item;

pub(crate) use self::item::{ExtraEntry, Extras};
pub use self::item::{Item, ItemRef, Registered, state};

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::Cell;
use core::hash::BuildHasher;
use core::mem;
use core::ptr::{self, NonNull};

use hashbrown::{HashMap, HashTable};
use rustc_hash::FxBuildHasher;

use super::Set;
use super::limit::Allowance;
use super::ready::ReadyList;
use super::slab::Slab;
use crate::errno::Errno;
use crate::events::Events;
#[cfg(any(feature = "std", upoll_loom))]
use crate::file::Description;
use crate::file::{File, FileId, FileRef, Held, Key};
#[cfg(all(feature = "std", not(upoll_loom)))]
use crate::sync::lock_held;
use crate::sync::{Mutex, MutexGuard};
use crate::tally::Tally;

/// All that a set's lock guards.
struct Interests {
    slots: Slab,
    /// Slot numbers, hashed by key. The slots that the table has are those of registered items.
    table: HashTable<u32>,
    /// Entries in further wait queues, by slot number. Most files have but one queue.
    extras: HashMap<u32, Extras, FxBuildHasher>,
    /// Items known to be ready, oldest first.
    ready: ReadyList,
    /// The number of items that watch sets.
    nested: Cell<usize>,
    /// The items that watch rotating sets, or sets above these. They are registered.
    rotating: Vec<NonNull<Item>>,
    allowance: Allowance,
}

// SAFETY: the raw pointers inside lead to items of the slab, which lives as long as this does.
unsafe impl Send for Interests {}

fn hash((identity, fd): Key) -> u64 {
    FxBuildHasher.hash_one((identity.addr(), fd))
}

/// The item in a slot that the table has.
#[inline]
fn registered_in(slots: &Slab, slot: u32) -> Registered<'_> {
    // SAFETY: this module asks only for slots in the table. `slots` is part of what the set's lock guards, so the borrow
    // lasts no longer than the lock.
    unsafe { Registered::new(NonNull::from(slots.get(slot))) }
}

fn hash_of(slots: &Slab, slot: u32) -> u64 {
    hash(registered_in(slots, slot).key())
}

/// Returns whether a table with room for `capacity` entries is to become smaller when it has `len`.
fn is_too_large(capacity: usize, len: usize) -> bool {
    capacity > 256 && len < capacity / 8
}

impl Interests {
    /// Shrinks the tables that are much larger than they need to be. A table stays as it is if
    /// there is no memory for a smaller one.
    #[inline]
    fn shrink(&mut self) {
        if is_too_large(self.table.capacity(), self.table.len()) {
            self.shrink_table();
        }
        if is_too_large(self.extras.capacity(), self.extras.len()) {
            let mut smaller = HashMap::with_hasher(FxBuildHasher);
            if smaller.try_reserve(2 * self.extras.len()).is_ok() {
                smaller.extend(self.extras.drain());
                self.extras = smaller;
            }
        }
    }

    #[cold]
    fn shrink_table(&mut self) {
        let slots = &self.slots;
        let hash = |&slot: &u32| hash_of(slots, slot);
        let mut smaller = HashTable::new();
        if smaller.try_reserve(2 * self.table.len(), hash).is_ok() {
            for slot in mem::take(&mut self.table) {
                smaller.insert_unique(hash(&slot), slot, hash);
            }
            self.table = smaller;
        }
    }
}

/// A set's lock, and what it guards. Only [`Set::lock`] and [`Set::lock_from_above`] lead there.
pub(super) struct SetLock(Mutex<Interests>);

impl SetLock {
    pub(super) fn new(allowance: Allowance) -> Self {
        SetLock(Mutex::new(Interests {
            slots: Slab::new(),
            table: HashTable::new(),
            extras: HashMap::with_hasher(FxBuildHasher),
            ready: ReadyList::new(),
            nested: Cell::new(0),
            rotating: Vec::new(),
            allowance,
        }))
    }

    /// Returns whether a thread holds the lock.
    #[cfg(upoll_loom)]
    pub(super) fn is_locked(&self) -> bool {
        self.0.try_lock().is_none()
    }
}

impl Set {
    /// Takes the set's lock.
    #[inline]
    pub fn lock(&self) -> LockedSet<'_> {
        LockedSet {
            set: self,
            interests: self.lock_interests(),
        }
    }

    #[inline]
    fn lock_interests(&self) -> MutexGuard<'_, Interests> {
        #[cfg(not(upoll_loom))]
        if let Some(interests) = self.inner.0.try_lock() {
            return interests;
        }
        self.tally.count(Tally::contended);
        // Threads that take turns come one by one: none stays away, for the others would serve its events.
        #[cfg(all(feature = "std", not(upoll_loom)))]
        if !self.takes_turns() {
            return lock_held(&self.inner.0);
        }
        self.inner.0.lock()
    }

    /// Takes the set's lock for a thread that may hold another lock: that of a set above, that for ADDs of sets to sets, or
    /// that of a backend which is made anew. Others wait for that one meanwhile, so the thread does not stay away from this one.
    #[inline]
    pub fn lock_from_above(&self) -> LockedSet<'_> {
        LockedSet {
            set: self,
            interests: self.lock_interests_from_above(),
        }
    }

    #[inline]
    fn lock_interests_from_above(&self) -> MutexGuard<'_, Interests> {
        #[cfg(not(upoll_loom))]
        if let Some(interests) = self.inner.0.try_lock() {
            return interests;
        }
        self.tally.count(Tally::contended);
        self.inner.0.lock()
    }

    /// Returns whether the set's lock is held by the code that this call, in a signal handler, has interrupted. Seldom
    /// returns true for a lock that another thread holds.
    #[cfg(any(feature = "std", upoll_loom))]
    pub fn is_locked_by_this_thread(&self) -> bool {
        crate::sync::is_held_by_this_thread(&self.inner.0)
    }
}

/// A set whose lock is held: the way to all that the lock guards.
pub struct LockedSet<'a> {
    set: &'a Set,
    interests: MutexGuard<'a, Interests>,
}

impl<'a> LockedSet<'a> {
    #[inline]
    pub fn set(&self) -> &'a Set {
        self.set
    }

    /// Returns the number of items.
    pub fn count(&self) -> usize {
        self.interests.table.len()
    }

    /// Returns the number of items that watch sets.
    pub fn nested(&self) -> usize {
        self.interests.nested.get()
    }

    pub(super) fn set_nested(&self, nested: usize) {
        self.interests.nested.set(nested);
    }

    #[inline]
    pub(super) fn ready(&self) -> &ReadyList {
        &self.interests.ready
    }

    /// The item for a key.
    #[inline]
    pub(super) fn find(&self, key: Key) -> Option<ItemRef<'_>> {
        let Interests { table, slots, .. } = &*self.interests;
        // The item that the look-up looks at last is the one it finds.
        let mut found = None;
        table.find(hash(key), |&slot| {
            let item = registered_in(slots, slot);
            found = Some(item);
            item.key() == key
        })?;
        // SAFETY: it is in this set's table.
        Some(unsafe { ItemRef::new(found?.as_ptr(), self) })
    }

    /// The same, to change or remove it.
    #[inline]
    pub(super) fn find_mut(&mut self, key: Key) -> Option<ItemMut<'_, 'a>> {
        let item = self.find(key)?.as_ptr();
        Some(ItemMut { item, locked: self })
    }

    /// The item in `slot`, if one is registered there.
    #[inline]
    pub fn at(&self, slot: u32) -> Option<ItemRef<'_>> {
        let slots = &self.interests.slots;
        if !slots.is_taken(slot) {
            return None;
        }
        let item = NonNull::from(slots.get(slot));
        // SAFETY: the slots that are taken are those in the table, except within `insert` and `ItemMut::remove`, which borrow
        // the set mutably.
        Some(unsafe { ItemRef::new(item, self) })
    }

    /// This set's item of that name, if `item` is this set's.
    #[cfg(any(feature = "std", upoll_loom))]
    pub(super) fn own(&self, item: Registered<'_>) -> Option<ItemRef<'_>> {
        // SAFETY: it is registered in its set, which is this one.
        ptr::eq(item.set(), self.set).then(|| unsafe { ItemRef::new(item.as_ptr(), self) })
    }

    /// Returns the file that the item in `slot` watches, if one is registered there.
    #[cfg(any(feature = "std", upoll_loom))]
    pub fn file_at(&self, slot: u32) -> Option<&Description> {
        Some(self.at(slot)?.file())
    }

    pub(super) fn slot_of(&self, item: ItemRef<'_>) -> u32 {
        let Interests { table, slots, .. } = &*self.interests;
        let item_ptr = item.as_ptr().as_ptr();
        let slot = table.find(hash(item.key()), |&slot| ptr::eq(slots.get(slot), item_ptr));
        match slot {
            Some(&slot) => slot,
            None => unreachable!("a registered item is in its set's table"),
        }
    }

    /// The first item in slot `from` or behind it, and its slot.
    #[inline]
    pub(super) fn next_from(&self, from: u32) -> Option<(u32, ItemRef<'_>)> {
        let (slot, item) = self.interests.slots.next_taken(from)?;
        // SAFETY: the slots that are taken are those in the table, except within `insert` and `ItemMut::remove`, which borrow
        // the set mutably.
        Some((slot, unsafe { ItemRef::new(NonNull::from(item), self) }))
    }

    /// The same, to change or remove it.
    pub(super) fn next_mut(&mut self, from: u32) -> Option<(u32, ItemMut<'_, 'a>)> {
        let (slot, item) = self.next_from(from)?;
        let item = item.as_ptr();
        Some((slot, ItemMut { item, locked: self }))
    }

    /// All items, in the order of their slots. So a walk of thousands goes through memory in its order.
    pub(super) fn iter(&self) -> impl Iterator<Item = ItemRef<'_>> {
        self.interests.slots.iter().map(|item| {
            // SAFETY: the slots that are taken are those in the table, except within `insert` and `ItemMut::remove`, which borrow
            // the set mutably.
            unsafe { ItemRef::new(NonNull::from(item), self) }
        })
    }

    /// The items that watch rotating sets, or sets above these.
    pub(super) fn rotating(&self) -> impl Iterator<Item = ItemRef<'_>> {
        let rotating = self.interests.rotating.iter();
        // SAFETY: `ItemMut::add_rotating` and `add_all_rotating` put registered items of this set there. An item that is removed
        // is there no more (the contract of `ItemMut::remove`).
        rotating.map(|&item| unsafe { ItemRef::new(item, self) })
    }

    /// Returns the number of items that watch rotating sets, or sets above these.
    #[cfg(any(feature = "std", upoll_loom))]
    pub fn count_rotating(&self) -> usize {
        self.interests.rotating.len()
    }

    /// Makes room for one more among the items that watch rotating sets.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    pub(super) fn reserve_rotating(&mut self) -> Result<(), Errno> {
        let rotating = &mut self.interests.rotating;
        rotating.try_reserve(1).map_err(|_| Errno::NOMEM)
    }

    /// A rotating set came below the set `file`, which items of this set watch.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it, and nothing has changed.
    pub(super) fn add_all_rotating(&mut self, file: FileId) -> Result<(), Errno> {
        let mut watching = Vec::new();
        for item in self.iter() {
            let is_new = || !self.interests.rotating.contains(&item.as_ptr());
            if FileId::of(item.file()) == file && is_new() {
                watching.try_reserve(1).map_err(|_| Errno::NOMEM)?;
                watching.push(item.as_ptr());
            }
        }
        let rotating = &mut self.interests.rotating;
        let more = watching.len();
        rotating.try_reserve(more).map_err(|_| Errno::NOMEM)?;
        rotating.extend(watching);
        Ok(())
    }

    /// Makes an item for a key that has none. It is not linked anywhere yet.
    ///
    /// `ENOSPC`: the account is used up. `ENOMEM`: no memory.
    ///
    /// # Panics
    /// `set` is not this set.
    pub(super) fn insert(
        &mut self,
        set: &File<Set>,
        file: FileRef<'_>,
        interest: Events,
        data: u64,
    ) -> Result<ItemMut<'_, 'a>, Errno> {
        assert!(
            ptr::eq(set.set(), self.set),
            "an item is added to another set"
        );
        let Interests {
            slots,
            table,
            allowance,
            ..
        } = &mut *self.interests;
        table
            .try_reserve(1, |&slot| hash_of(slots, slot))
            .map_err(|_| Errno::NOMEM)?;
        if !allowance.take() {
            return Err(Errno::NOSPC);
        }
        // First, as it panics at too many references.
        let held = file.keep();
        let Some(slot) = slots.take(set.as_description_ptr()) else {
            allowance.give();
            return Err(Errno::NOMEM);
        };
        let item = slots.get(slot);
        // SAFETY: the slot was vacant, so no other thread knows it.
        unsafe { item.occupy(held, file.fd(), interest, data) };
        let item = NonNull::from(item);
        table.insert_unique(hash(file.key()), slot, |&slot| hash_of(slots, slot));
        Ok(ItemMut { item, locked: self })
    }

    /// The entries of the item in `slot` in further wait queues.
    fn extras_at(&self, slot: u32) -> &[Box<ExtraEntry>] {
        let extras = self.interests.extras.get(&slot);
        extras.map_or(&[], Vec::as_slice)
    }
}

/// A locked set and one of its items.
pub(super) struct LockedItem<'a> {
    item: NonNull<Item>,
    locked: LockedSet<'a>,
}

impl<'a> LockedItem<'a> {
    /// The item of a locked set for a key.
    #[inline]
    pub(super) fn find(locked: LockedSet<'a>, key: Key) -> Option<Self> {
        let item = locked.find(key)?.as_ptr();
        Some(LockedItem { item, locked })
    }

    #[inline]
    pub(super) fn get(&self) -> ItemRef<'_> {
        // SAFETY: `find` found it in the table of `locked`, which nothing has changed since: only this has the set.
        unsafe { ItemRef::new(self.item, &self.locked) }
    }
}

/// A registered item of a locked set, for what changes the set's tables or removes the item.
///
/// Nothing else changes the set as long as it exists: it borrows the [`LockedSet`] mutably, and only this module makes one.
/// [`remove`](Self::remove) uses it up.
pub(super) struct ItemMut<'g, 'a> {
    item: NonNull<Item>,
    locked: &'g mut LockedSet<'a>,
}

impl ItemMut<'_, '_> {
    #[inline]
    pub(super) fn get(&self) -> ItemRef<'_> {
        // SAFETY: the function that made this found or put the item in the table of `locked`. Only `remove` takes it out.
        unsafe { ItemRef::new(self.item, self.locked) }
    }

    /// Puts the item among those that watch rotating sets, or sets above these. There is
    /// [room](LockedSet::reserve_rotating).
    pub(super) fn add_rotating(&mut self) {
        self.locked.interests.rotating.push(self.item);
    }

    /// Takes the item from those that watch rotating sets, if it is there.
    pub(super) fn remove_rotating(&mut self) {
        let rotating = &mut self.locked.interests.rotating;
        if !rotating.is_empty() {
            rotating.retain(|&other| other != self.item);
        }
    }

    /// Makes room for the entries of one more item in further wait queues.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    pub(super) fn reserve_extras(&mut self) -> Result<(), Errno> {
        let extras = &mut self.locked.interests.extras;
        extras.try_reserve(1).map_err(|_| Errno::NOMEM)
    }

    /// Keeps the entries of the item in further wait queues. There is [room](Self::reserve_extras).
    pub(super) fn keep_extras(&mut self, entries: Extras) {
        let slot = self.get().slot();
        self.locked.interests.extras.insert(slot, entries);
    }

    /// Removes the item. The caller drops the file's memory, which
    /// may run the object's destructor, after it has released the set's lock.
    ///
    /// # Safety
    /// The item is linked nowhere any more: neither into a wait queue or a watcher list, nor among the arrivals, on the ready
    /// list, in `first` or among [`rotating`](LockedSet::rotating).
    pub(super) unsafe fn remove(self) -> Held {
        let key = self.get().key();
        let interests = &mut *self.locked.interests;
        let Interests { slots, table, .. } = interests;
        let is_here = |&slot: &u32| ptr::eq(slots.get(slot), self.item.as_ptr());
        let Ok(entry) = table.find_entry(hash(key), is_here) else {
            unreachable!("a registered item is in its set's table")
        };
        let (slot, _) = entry.remove();
        if !interests.extras.is_empty() {
            interests.extras.remove(&slot);
        }
        // SAFETY: it is registered no more, and linked nowhere (the caller's contract). This excludes each `ItemRef`.
        let file = unsafe { self.item.as_ref().vacate() };
        interests.slots.give(slot);
        interests.allowance.give();
        interests.shrink();
        match file {
            Some(file) => file,
            None => unreachable!("a registered item has its file"),
        }
    }
}
