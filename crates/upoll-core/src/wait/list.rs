//! The list of a queue's entries. It knows neither queues nor their rules.
//!
//! The list is reached through the guard of the lock that it lies in. All pointers between entries are followed here, and
//! callers get a [`Linked`] entry, or a reference that borrows the list.

use core::iter;
use core::ptr::NonNull;

use super::entry::{EXCLUSIVE, LINKED, WaitEntry};
use crate::sync::{Ordering, UnsafeCell};

/// The entries of a queue: shared ones, then exclusive ones.
pub(super) struct List {
    head: Option<Member>,
    tail: Option<Member>,
}

/// An entry that is linked into the list. Lists and [`Node`]s have members of the list alone, and a copy is used only
/// while the list is borrowed and the entry linked. So it is alive: [`List::push_behind`]'s contract.
#[derive(Clone, Copy)]
struct Member(NonNull<WaitEntry>);

// SAFETY: it leads to an entry, which any thread may use.
unsafe impl Send for Member {}

/// The neighbours of an entry. Only a list that is borrowed opens it, for one of its members.
pub(super) struct Node(UnsafeCell<Neighbours>);

// SAFETY: a node is opened by the list that its entry is linked into (`List::node`, `List::change`), and a list is inside
// a lock.
unsafe impl Sync for Node {}

#[derive(Clone, Copy)]
struct Neighbours {
    next: Option<Member>,
    prev: Option<Member>,
}

/// A linked entry, with its list: nothing else changes the list meanwhile.
pub(super) struct Linked<'l> {
    list: &'l mut List,
    at: Member,
}

/// A walk through a list. It knows the next entry before the caller has the one before that, which may be unlinked.
pub(super) struct Walk<'l> {
    list: &'l mut List,
    next: Option<Member>,
}

impl Node {
    pub(super) fn new() -> Self {
        Node(UnsafeCell::new(Neighbours {
            next: None,
            prev: None,
        }))
    }

    /// In a model, a use by another thread at the same time is a fault.
    #[cfg(upoll_loom)]
    pub(super) fn assert_unused(&self) {
        self.0.with_mut(|_| {});
    }
}

impl Member {
    #[inline]
    fn entry(self, _list: &List) -> &WaitEntry {
        // SAFETY: a member of a list that is borrowed is alive.
        unsafe { self.0.as_ref() }
    }
}

impl Linked<'_> {
    #[inline]
    pub(super) fn entry(&self) -> &WaitEntry {
        self.at.entry(self.list)
    }

    /// Not a reference: an entry that is unlinked may end while a function still has it.
    #[inline]
    pub(super) fn as_ptr(&self) -> NonNull<WaitEntry> {
        self.at.0
    }

    /// Unlinks the entry. If it is not exclusive, its owner may end it at once.
    #[inline]
    pub(super) fn unlink(self) {
        self.list.remove(self.at);
    }
}

impl Walk<'_> {
    #[inline]
    pub(super) fn advance(&mut self) -> Option<Linked<'_>> {
        let at = self.next?;
        self.next = self.list.node(at).next;
        Some(Linked {
            list: self.list,
            at,
        })
    }
}

impl List {
    pub(super) fn new() -> Self {
        List {
            head: None,
            tail: None,
        }
    }

    /// Goes through all entries.
    #[inline]
    pub(super) fn walk(&mut self) -> Walk<'_> {
        let next = self.head;
        Walk { list: self, next }
    }

    /// Goes through the exclusive entries.
    #[inline]
    pub(super) fn walk_exclusive(&mut self) -> Walk<'_> {
        let next = self.exclusive_members().next();
        Walk { list: self, next }
    }

    /// Returns the exclusive entries.
    #[inline]
    pub(super) fn exclusive(&self) -> impl Iterator<Item = &WaitEntry> {
        self.exclusive_members().map(|at| at.entry(self))
    }

    /// Returns the last entry.
    #[inline]
    pub(super) fn last(&self) -> Option<&WaitEntry> {
        self.tail.map(|at| at.entry(self))
    }

    #[inline]
    fn exclusive_members(&self) -> impl Iterator<Item = Member> {
        iter::successors(self.head, |&at| self.node(at).next)
            .skip_while(|at| !at.entry(self).has_rank_bit(EXCLUSIVE))
    }

    /// Returns the entry with this list, if it is linked.
    ///
    /// # Safety
    /// The entry is linked nowhere else.
    #[inline]
    pub(super) unsafe fn linked(&mut self, entry: &WaitEntry) -> Option<Linked<'_>> {
        let at = Member(NonNull::from(entry));
        entry
            .has_rank_bit(LINKED)
            .then_some(Linked { list: self, at })
    }

    /// Links the entry before all others.
    ///
    /// # Safety
    /// As [`push_behind`](Self::push_behind).
    #[inline]
    pub(super) unsafe fn push_front(&mut self, entry: &WaitEntry) {
        self.insert(Member(NonNull::from(entry)), None, self.head);
    }

    /// Links the entry behind all others.
    ///
    /// # Safety
    /// As [`push_behind`](Self::push_behind).
    #[inline]
    pub(super) unsafe fn push_back(&mut self, entry: &WaitEntry) {
        self.insert(Member(NonNull::from(entry)), self.tail, None);
    }

    /// Links the entry behind the last one that it does not go before.
    ///
    /// # Safety
    /// The entry is linked nowhere. It stays where it is and does not end until it has been unlinked.
    pub(super) unsafe fn push_behind(
        &mut self,
        entry: &WaitEntry,
        goes_before: impl Fn(&WaitEntry) -> bool,
    ) {
        let (mut prev, mut next) = (self.tail, None);
        while let Some(at) = prev
            && goes_before(at.entry(self))
        {
            next = prev;
            prev = self.node(at).prev;
        }
        self.insert(Member(NonNull::from(entry)), prev, next);
    }

    /// Links a new member between two others.
    #[inline]
    fn insert(&mut self, this: Member, prev: Option<Member>, next: Option<Member>) {
        self.change(this, |node| *node = Neighbours { next, prev });
        match prev {
            None => self.head = Some(this),
            Some(prev) => self.change(prev, |node| node.next = Some(this)),
        }
        match next {
            None => self.tail = Some(this),
            Some(next) => self.change(next, |node| node.prev = Some(this)),
        }
        this.entry(self).set_rank_bit(LINKED, true);
    }

    #[inline]
    fn remove(&mut self, at: Member) {
        let Neighbours { next, prev } = self.node(at);
        match prev {
            None => self.head = next,
            Some(prev) => self.change(prev, |node| node.next = next),
        }
        match next {
            None => self.tail = prev,
            Some(next) => self.change(next, |node| node.prev = prev),
        }
        // The last use of the entry, which `WaitEntry::is_done` finds. No reference to the whole of it is alive.
        // SAFETY: a member is alive until it is unlinked, which this store does.
        let rank = unsafe { &(*at.0.as_ptr()).rank };
        rank.store(rank.load(Ordering::Relaxed) & !LINKED, Ordering::Release);
    }

    #[inline]
    fn node(&self, at: Member) -> Neighbours {
        let node = &at.entry(self).node.0;
        // SAFETY: a member's node is written by `change` alone, which borrows this list for itself.
        node.with(|node| unsafe { *node })
    }

    #[inline]
    fn change(&mut self, at: Member, change: impl FnOnce(&mut Neighbours)) {
        let node = &at.entry(self).node.0;
        // SAFETY: a member's node is used with this list borrowed alone, which it is here, and no `change` uses the list.
        node.with_mut(|node| change(unsafe { &mut *node }));
    }
}
