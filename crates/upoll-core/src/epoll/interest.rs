//! The interest list: which open files a set watches, under which fds, and for what.
//!
//! Items live in a `Slab` of the set's own, at addresses that never change: wait queues, watcher
//! lists and ready lists link them in place. Look-up is a hash table of slot numbers. Both become
//! smaller as the set does.

use alloc::boxed::Box;
use alloc::vec::Vec;
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
use crate::file::{Description, FileId, FileRef, Held, Key, WatcherLink};
use crate::memory::boxed;
use crate::sync::{AtomicPtr, AtomicU32, Ordering, UnsafeCell, fence_after_rmw};
use crate::wait::{OnWake, WaitEntry};

/// State bits, in the wait entry's owner word. All but `QUEUED` and `CHOSEN` are fixed while the item is
/// registered.
pub mod state {
    /// The item is among the arrivals or on the ready list.
    pub(crate) const QUEUED: u32 = 1;
    /// It watches a rotating set.
    pub(crate) const ROTATING: u32 = 2;
    /// It watches a set.
    pub const WATCHES_SET: u32 = 4;
    /// Its file registered more than one wait queue: the others' entries are in `extras`.
    pub(crate) const HAS_EXTRAS: u32 = 8;
    /// The source of the rotating set that it watches chose it outside the core. Guarded by the
    /// set's lock.
    pub const CHOSEN: u32 = 16;
    /// It watches a shared counter: it is hooked into no queue, and the set's backend queues it.
    pub const SHARED: u32 = 32;
}

/// One interest: an open file under an fd, what is wanted of it, and its places in the lists
/// (`struct epitem`).
#[repr(C)]
pub struct Item {
    /// The place in the file's wait queue. First, so that a wake finds the item.
    pub entry: WaitEntry,
    /// The place among the file's watchers; guarded by that list's lock.
    pub(crate) link: WatcherLink,
    /// The set; fixed for the slot's life, which the set owns.
    pub(crate) set: *const Description<Set>,
    /// The file's memory. Guarded by the set's lock.
    file: UnsafeCell<Option<Held>>,
    /// The next of the arrivals or of the ready list.
    pub(crate) next: AtomicPtr<Item>,
    /// The one before on the ready list; guarded by the set's lock.
    pub(crate) prev: UnsafeCell<*mut Item>,
    /// Returned with each event; guarded by the set's lock.
    data: UnsafeCell<u64>,
    /// The requested events and flags. Written under the set's lock, read by wakeups.
    interest: AtomicU32,
    /// The fd half of the key; fixed while the item is registered.
    fd: UnsafeCell<i32>,
}

// SAFETY: each field names the lock that guards it; the atomics need none. `set` is dereferenced
// only while the item is registered, and a set outlives its registered items.
unsafe impl Send for Item {}
// SAFETY: as above.
unsafe impl Sync for Item {}

impl Item {
    pub(super) fn vacant(set: *const Description<Set>) -> Self {
        Item {
            entry: WaitEntry::new(super::ready::on_wake_item),
            link: WatcherLink::new(),
            set,
            file: UnsafeCell::new(None),
            next: AtomicPtr::new(ptr::null_mut()),
            prev: UnsafeCell::new(ptr::null_mut()),
            data: UnsafeCell::new(0),
            interest: AtomicU32::new(0),
            fd: UnsafeCell::new(0),
        }
    }

    /// For a wake this is one half of a named pair: the object was published before, and a MOD
    /// publishes the interest before it looks at the object.
    #[inline]
    pub fn interest(&self) -> Events {
        Events::from_bits_retain(self.interest.load(Ordering::SeqCst))
    }

    /// Look at the file afterwards: a wake before that may have gone by the old interest.
    #[inline]
    pub(crate) fn set_interest(&self, interest: Events) {
        self.interest.swap(interest.bits(), Ordering::SeqCst);
        fence_after_rmw();
        if self.state() & state::ROTATING != 0 {
            self.clear_recheck();
        }
    }

    /// The item may have no recheck flag of the rotating set that it watches; look at the set afterwards.
    pub(crate) fn clear_recheck(&self) {
        if let Some(queue) = self.entry.queue() {
            // SAFETY: the item is hooked into the queue, which therefore is alive.
            unsafe { queue.as_ref() }.clear_recheck();
        }
    }

    /// The watched file's description.
    ///
    /// # Safety
    /// The set's lock is held and the item is registered; the reference is not used after either
    /// ends.
    #[inline]
    pub unsafe fn file(&self) -> &Held {
        self.file.with(|file| {
            // SAFETY: the set's lock is held; a registered item has its file.
            unsafe { (*file).as_ref().unwrap_unchecked() }
        })
    }

    /// # Safety
    /// The set's lock is held.
    #[inline]
    pub(crate) unsafe fn data(&self) -> u64 {
        // SAFETY: guarded by the set's lock.
        self.data.with(|data| unsafe { *data })
    }

    /// # Safety
    /// The set's lock is held.
    pub(crate) unsafe fn set_data(&self, value: u64) {
        // SAFETY: guarded by the set's lock.
        self.data.with_mut(|data| unsafe { *data = value });
    }

    /// # Safety
    /// The item is registered and stays so: the set's lock or its file's watcher list is held.
    pub(crate) unsafe fn fd(&self) -> i32 {
        // SAFETY: fixed while registered.
        self.fd.with(|fd| unsafe { *fd })
    }

    /// # Safety
    /// As [`file`](Self::file).
    unsafe fn key(&self) -> Key {
        // SAFETY: the caller's contract.
        unsafe { (FileId::of(self.file()), self.fd()) }
    }

    /// Keeps the item's set alive.
    ///
    /// # Safety
    /// The item is linked into its file's watcher list, and that list is locked. The set's last
    /// reference is given up only after the set has unlinked all its items, so it has one now.
    pub(crate) unsafe fn pin_set(&self) -> Held<Set> {
        // SAFETY: the caller's contract.
        unsafe { Held::new(NonNull::new_unchecked(self.set.cast_mut())) }
    }

    #[inline]
    pub fn state(&self) -> u32 {
        self.entry.owner_word.load(Ordering::SeqCst)
    }
}

/// An entry in a second or further wait queue of an item's file.
#[repr(C)]
pub(crate) struct ExtraEntry {
    pub entry: WaitEntry,
    pub(crate) item: *const Item,
}

// SAFETY: `item` leads to the item that owns the entry and unhooks it before it goes.
unsafe impl Send for ExtraEntry {}

impl ExtraEntry {
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    pub(crate) fn new(item: *const Item, on_wake: OnWake) -> Result<Box<Self>, Errno> {
        boxed(ExtraEntry {
            entry: WaitEntry::new(on_wake),
            item,
        })
    }
}

/// Entries of one item; boxed, because wait queues link them where they are.
pub(crate) type Extras = Vec<Box<ExtraEntry>>;

/// All that a set's lock guards.
pub struct Interests {
    slots: Slab,
    /// Slot numbers, hashed by key.
    table: HashTable<u32>,
    /// Entries in further wait queues, by slot number. Most files have but one queue.
    extras: HashMap<u32, Extras, FxBuildHasher>,
    /// Items known to be ready, oldest first.
    pub(crate) ready: ReadyList,
    /// The number of items that watch sets.
    pub nested: usize,
    /// The items that watch rotating sets, or sets above these.
    pub rotating: Vec<NonNull<Item>>,
    allowance: Allowance,
}

// SAFETY: the raw pointers inside lead to items of the slab, which lives as long as this does.
unsafe impl Send for Interests {}

fn hash((identity, fd): Key) -> u64 {
    FxBuildHasher.hash_one((identity.addr(), fd))
}

fn hash_of(slots: &Slab, slot: u32) -> u64 {
    // SAFETY: only slots in the table are asked about. They are registered, and a caller that has
    // the slab holds the set's lock.
    hash(unsafe { (*slots.get(slot)).key() })
}

/// Returns whether a table with room for `capacity` entries is to become smaller when it has `len`.
fn is_too_large(capacity: usize, len: usize) -> bool {
    capacity > 256 && len < capacity / 8
}

impl Interests {
    pub fn new(allowance: Allowance) -> Self {
        Interests {
            slots: Slab::new(),
            table: HashTable::new(),
            extras: HashMap::with_hasher(FxBuildHasher),
            ready: ReadyList::new(),
            nested: 0,
            rotating: Vec::new(),
            allowance,
        }
    }

    /// Returns the number of items.
    pub fn count(&self) -> usize {
        self.table.len()
    }

    /// The item for a key.
    #[inline]
    pub(crate) fn find(&self, key: Key) -> Option<*const Item> {
        // The item that the look-up looks at last is the one it finds.
        let mut found = ptr::null();
        self.table.find(hash(key), |&slot| {
            let item = self.slots.get(slot);
            found = item;
            // SAFETY: slots in the table are registered, and `&self` borrows the locked set.
            unsafe { (*item).key() == key }
        })?;
        Some(found)
    }

    /// Makes an item for a key that has none. It is not linked anywhere yet.
    ///
    /// `ENOSPC`: the account is used up. `ENOMEM`: no memory.
    pub(crate) fn insert(
        &mut self,
        set: *const Description<Set>,
        file: FileRef<'_>,
        interest: Events,
        data: u64,
    ) -> Result<*const Item, Errno> {
        let slots = &self.slots;
        self.table
            .try_reserve(1, |&slot| hash_of(slots, slot))
            .map_err(|_| Errno::NOMEM)?;
        if !self.allowance.take() {
            return Err(Errno::NOSPC);
        }
        let Some(slot) = self.slots.take(set) else {
            self.allowance.give();
            return Err(Errno::NOMEM);
        };
        let item = self.slots.get(slot);
        // SAFETY: the slot was vacant: nobody else knows it, and `&mut self` is the set's lock.
        unsafe {
            (*item).file.with_mut(|place| *place = Some(file.keep()));
            (*item).fd.with_mut(|fd| *fd = file.fd());
            (*item).set_data(data);
            // The hook comes later, and publishes it.
            (*item).interest.store(interest.bits(), Ordering::Relaxed);
            (*item).entry.owner_word.store(0, Ordering::Relaxed);
        }
        let slots = &self.slots;
        self.table
            .insert_unique(hash(file.key()), slot, |&slot| hash_of(slots, slot));
        Ok(item)
    }

    /// Removes an item that is linked nowhere any more. The caller drops the file's memory, which
    /// may run the object's destructor, after it has released the set's lock.
    pub(crate) fn remove(&mut self, item: *const Item) -> Held {
        // SAFETY: the item is registered here and `&mut self` is the set's lock.
        let key = unsafe { (*item).key() };
        let entry = self
            .table
            .find_entry(hash(key), |&slot| ptr::eq(self.slots.get(slot), item));
        let Ok(entry) = entry else {
            unreachable!("a registered item is in its set's table")
        };
        let (slot, _) = entry.remove();
        if !self.extras.is_empty() {
            self.extras.remove(&slot);
        }
        // SAFETY: as above; from here on nobody knows the item.
        let file = unsafe { (*item).file.with_mut(|file| (*file).take()) };
        self.slots.give(slot);
        self.allowance.give();
        self.shrink();
        match file {
            Some(file) => file,
            None => unreachable!("a registered item has its file"),
        }
    }

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

    /// Makes room for the entries of one more item in further wait queues.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    pub(crate) fn reserve_extras(&mut self) -> Result<(), Errno> {
        self.extras.try_reserve(1).map_err(|_| Errno::NOMEM)
    }

    /// Keeps the entries of `item` in further wait queues. There is [room](Self::reserve_extras).
    pub(crate) fn keep_extras(&mut self, item: *const Item, entries: Extras) {
        let slot = self.slot_of(item);
        self.extras.insert(slot, entries);
    }

    /// The entries of `item` in further wait queues.
    pub(crate) fn extras(&self, item: *const Item) -> &[Box<ExtraEntry>] {
        self.extras
            .get(&self.slot_of(item))
            .map_or(&[], Vec::as_slice)
    }

    /// The item in `slot`, if one is registered there.
    #[cfg(any(feature = "std", upoll_loom))]
    pub fn at(&self, slot: u32) -> Option<*const Item> {
        self.next_from(slot)
            .filter(|&(_, next)| next == slot + 1)
            .map(|(item, _)| item)
    }

    /// Returns the file that the item in `slot` watches, if one is registered there.
    #[cfg(any(feature = "std", upoll_loom))]
    pub fn file_at(&self, slot: u32) -> Option<&Description> {
        let item = self.at(slot)?;
        // SAFETY: registered, and `&self` borrows the locked set for as long as the file.
        Some(unsafe { (*item).file() })
    }

    pub(crate) fn slot_of(&self, item: *const Item) -> u32 {
        // SAFETY: the item is registered here and `&self` borrows the locked set.
        let key = unsafe { (*item).key() };
        let slot = self
            .table
            .find(hash(key), |&slot| ptr::eq(self.slots.get(slot), item));
        match slot {
            Some(&slot) => slot,
            None => unreachable!("a registered item is in its set's table"),
        }
    }

    /// The first item in slot `from` or behind it, and the slot after that.
    pub(crate) fn next_from(&self, from: u32) -> Option<(*const Item, u32)> {
        let slot = self.slots.next_taken(from)?;
        Some((self.slots.get(slot), slot + 1))
    }

    /// All items, in the order of their slots. So a walk of thousands goes through memory in its order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = *const Item> + '_ {
        let mut from = 0;
        core::iter::from_fn(move || {
            let (item, next) = self.next_from(from)?;
            from = next;
            Some(item)
        })
    }
}
