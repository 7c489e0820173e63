//! Items, and the references by which the rest of the set reaches them.
//!
//! | type | what it stands for |
//! |---|---|
//! | [`Item`] | a slot of the set's slab, whether or not an interest is registered there |
//! | [`Registered`] | an item that stays registered, as some lock is held that its removal takes |
//! | [`ItemRef`] | a registered item whose set's lock is held |
//!
//! Wakeups have a `Registered`, and a holder of the set's lock an `ItemRef`.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Deref;
use core::ptr::{self, NonNull};

use super::LockedSet;
use crate::epoll::Set;
use crate::epoll::ready::on_wake_item;
use crate::errno::Errno;
use crate::events::Events;
use crate::file::{Description, FileId, Held, Key, WatcherLink, Watchers};
use crate::memory::boxed;
use crate::sync::{AtomicPtr, AtomicU32, Ordering, UnsafeCell, fence_after_rmw};
use crate::wait::{OnWake, WaitEntry, WaitQueue};

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
    pub(crate) const CHOSEN: u32 = 16;
    /// It watches a shared counter: it is hooked into no queue, and the set's backend queues it.
    pub const SHARED: u32 = 32;
}

/// One interest: an open file under an fd, what is wanted of it, and its places in the lists
/// (`struct epitem`).
#[repr(C)]
pub struct Item {
    /// The place in the file's wait queue. First, so that a wake finds the item.
    pub(in crate::epoll) entry: WaitEntry,
    /// The place among the file's watchers; guarded by that list's lock.
    pub(in crate::epoll) link: WatcherLink,
    /// The set; fixed for the slot's life, which the set owns.
    set: *const Description<Set>,
    /// The file's memory; fixed while the item is registered.
    file: UnsafeCell<Option<Held>>,
    /// The next of the arrivals or of the ready list.
    pub(in crate::epoll) next: AtomicPtr<Item>,
    /// The one before on the ready list; guarded by the set's lock.
    pub(in crate::epoll) prev: UnsafeCell<*mut Item>,
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
// SAFETY: see above.
unsafe impl Sync for Item {}

impl Item {
    pub(in crate::epoll) fn vacant(set: *const Description<Set>) -> Self {
        Item {
            entry: WaitEntry::new(on_wake_item),
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

    /// Makes the item of a vacant slot that of an interest. It is linked nowhere yet.
    ///
    /// # Safety
    /// The caller has taken the slot from the slab, and no other thread knows the item yet.
    #[inline]
    pub(super) unsafe fn occupy(&self, file: Held, fd: i32, interest: Events, data: u64) {
        // SAFETY: the caller's contract leaves the cells to this thread.
        unsafe {
            self.file.with_mut(|place| *place = Some(file));
            self.fd.with_mut(|place| *place = fd);
            self.data.with_mut(|place| *place = data);
        }
        // The hook comes later, and publishes it.
        self.interest.store(interest.bits(), Ordering::Relaxed);
        self.entry.owner_word.store(0, Ordering::Relaxed);
    }

    /// Takes the file out of an item that is registered no more.
    ///
    /// # Safety
    /// The item is linked nowhere, and no [`Registered`] leads to it. The set's lock is held.
    #[inline]
    pub(super) unsafe fn vacate(&self) -> Option<Held> {
        // SAFETY: the caller's contract leaves the cell to this thread.
        unsafe { self.file.with_mut(|file| (*file).take()) }
    }

    /// For a wake this is one half of a named pair: the object was published before, and a MOD
    /// publishes the interest before it looks at the object.
    #[inline]
    pub fn interest(&self) -> Events {
        Events::from_bits_retain(self.interest.load(Ordering::SeqCst))
    }

    #[inline]
    pub fn state(&self) -> u32 {
        self.entry.owner_word.load(Ordering::SeqCst)
    }
}

/// An item that is registered in its set, and stays so for `'a`. The item, its set, its file and the queue that
/// it is hooked into are alive that long.
///
/// The function that makes one has found the item under a lock that every removal takes before the item is registered
/// no more: the lock of its set, of a queue that it is hooked into, or of its file's watcher list. `'a` ends before that
/// lock is released.
#[derive(Clone, Copy)]
pub struct Registered<'a>(&'a Item);

impl Deref for Registered<'_> {
    type Target = Item;

    #[inline]
    fn deref(&self) -> &Item {
        self.0
    }
}

impl<'a> Registered<'a> {
    /// # Safety
    /// The item is registered, and one of the locks that [`Registered`] names is held for `'a`.
    #[inline]
    pub(in crate::epoll) unsafe fn new(item: NonNull<Item>) -> Self {
        // SAFETY: a registered item is alive (the caller's contract).
        Registered(unsafe { item.as_ref() })
    }

    #[inline]
    pub(in crate::epoll) fn as_ptr(self) -> NonNull<Item> {
        NonNull::from(self.0)
    }

    /// The set.
    #[inline]
    pub fn set(self) -> &'a Set {
        // SAFETY: `set` is the description that `LockedSet::insert` was given. Its close removes all items before it gives up
        // the memory, and this one is registered for `'a`.
        unsafe { (*self.0.set).object() }
    }

    /// Keeps the item's set alive.
    pub(in crate::epoll) fn pin_set(self) -> Held<Set> {
        // SAFETY: see `set`. So the set's last reference was not given up yet.
        unsafe { Held::new(NonNull::new_unchecked(self.0.set.cast_mut())) }
    }

    /// The memory of the watched file.
    #[inline]
    pub fn file(self) -> &'a Held {
        self.0.file.with(|file| {
            // SAFETY: `Item::occupy` has stored the file before the item was registered, and `Item::vacate` takes it when the
            // item is registered no more.
            unsafe { (*file).as_ref().unwrap_unchecked() }
        })
    }

    #[inline]
    pub(in crate::epoll) fn fd(self) -> i32 {
        // SAFETY: only `Item::occupy` writes it, before the item is registered.
        self.0.fd.with(|fd| unsafe { *fd })
    }

    #[inline]
    pub(super) fn key(self) -> Key {
        (FileId::of(self.file()), self.fd())
    }

    /// The first queue that the item is hooked into.
    #[inline]
    pub(in crate::epoll) fn hooked_into(self) -> Option<&'a WaitQueue> {
        // SAFETY: `LockedSet::hook` has hooked the entry into a queue of the file's object, and the item keeps the file's memory for
        // as long as it is registered.
        self.0.entry.queue().map(|queue| unsafe { queue.as_ref() })
    }

    /// The item may have no recheck flag of the rotating set that it watches; look at the set afterwards.
    pub(in crate::epoll) fn clear_recheck(self) {
        if let Some(queue) = self.hooked_into() {
            queue.clear_recheck();
        }
    }

    /// The item that a watcher link is part of.
    ///
    /// # Safety
    /// The link is in a watcher list that is locked for `'a`.
    pub(in crate::epoll) unsafe fn of_link(link: *const WatcherLink) -> Self {
        let item = link.wrapping_byte_sub(core::mem::offset_of!(Item, link));
        // SAFETY: only `File::add_locked` links, and those links are part of items. A removal takes the lock of the list to unlink the
        // item while that is registered.
        unsafe { Registered(&*item.cast()) }
    }

    /// The items that watch a file, given its watcher list.
    pub(in crate::epoll) fn among(watchers: &'a Watchers) -> impl Iterator<Item = Self> {
        // SAFETY: `watchers` borrows the locked list.
        watchers.iter().map(|link| unsafe { Self::of_link(link) })
    }
}

/// A registered item whose set's lock is held.
///
/// It borrows the [`LockedSet`] that the item is registered in, and comes from nowhere else. So the item stays as long as
/// the reference does: the set's methods that remove items borrow the locked set mutably.
#[derive(Clone, Copy)]
pub struct ItemRef<'g> {
    item: Registered<'g>,
    locked: &'g LockedSet<'g>,
}

impl<'g> Deref for ItemRef<'g> {
    type Target = Registered<'g>;

    #[inline]
    fn deref(&self) -> &Registered<'g> {
        &self.item
    }
}

impl<'g> ItemRef<'g> {
    /// # Safety
    /// The item is registered in `locked`.
    #[inline]
    pub(in crate::epoll) unsafe fn new(item: NonNull<Item>, locked: &'g LockedSet<'_>) -> Self {
        ItemRef {
            // SAFETY: the caller's contract. `locked` has the set's lock for `'g`.
            item: unsafe { Registered::new(item) },
            locked,
        }
    }

    /// The locked set.
    #[inline]
    pub fn locked(self) -> &'g LockedSet<'g> {
        self.locked
    }

    #[inline]
    pub(in crate::epoll) fn data(self) -> u64 {
        // SAFETY: the set's lock guards it, which this thread holds for `'g`: a `LockedSet` is not `Sync`.
        self.item.0.data.with(|data| unsafe { *data })
    }

    pub(in crate::epoll) fn set_data(self, value: u64) {
        // SAFETY: see `data`. No reference to it ever leaves this module.
        self.item.0.data.with_mut(|data| unsafe { *data = value });
    }

    /// Look at the file afterwards: a wake before that may have gone by the old interest.
    #[inline]
    pub(in crate::epoll) fn set_interest(self, interest: Events) {
        let word = &self.item.0.interest;
        word.swap(interest.bits(), Ordering::SeqCst);
        fence_after_rmw();
        if self.state() & state::ROTATING != 0 {
            self.clear_recheck();
        }
    }

    /// The entries of the item in further wait queues.
    pub(in crate::epoll) fn extras(self) -> &'g [Box<ExtraEntry>] {
        self.locked.extras_at(self.slot())
    }

    /// The item's slot.
    pub(in crate::epoll) fn slot(self) -> u32 {
        self.locked.slot_of(self)
    }
}

/// An entry in a second or further wait queue of an item's file.
#[repr(C)]
pub(crate) struct ExtraEntry {
    pub(crate) entry: WaitEntry,
    pub(crate) item: NonNull<Item>,
}

// SAFETY: `item` leads to the item that owns the entry and unhooks it before it goes.
unsafe impl Send for ExtraEntry {}

impl ExtraEntry {
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    pub(crate) fn new(item: NonNull<Item>, on_wake: OnWake) -> Result<Box<Self>, Errno> {
        boxed(ExtraEntry {
            entry: WaitEntry::new(on_wake),
            item,
        })
    }
}

/// Entries of one item; boxed, because wait queues link them where they are.
pub(crate) type Extras = Vec<Box<ExtraEntry>>;
