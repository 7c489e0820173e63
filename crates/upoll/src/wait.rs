//! Wait queues: who wants to know that an object changed (`wait_queue_head_t`).
//!
//! An object owns one [`WaitQueue`] per kind of news. Whoever wants the news links an intrusive
//! entry into it; [`WaitQueue::wake`] calls the entries in Linux's order. A wake allocates nothing
//! and runs under the queue's lock, so an entry that has been unlinked is never called again.
//!
//! # Order and exclusivity
//! Non-exclusive entries stand first, the newest of them foremost; exclusive ones follow in the
//! order they came. A wake calls every non-exclusive entry, then exclusive ones until one says
//! that it took the event. [`WaitQueue::wake_rotate`] does the same and counts a turn for the one
//! that took it: exclusive waiters stand in the order of the turns they had.
//!
//! # Claims
//! A wake that an exclusive waiter took is that waiter's *claim* until it has looked at the object
//! ([`WaitEntry::settle`]). A waiter that leaves before that hands its claim to the next one: it
//! would be lost otherwise. A rotating queue counts the claims under way, see [`WaitQueue::turn`].
//!
//! # The named pair: publish then wake, register then look
//! An object publishes its new state, then [`wake`](WaitQueue::wake) reads `linked`. A waiter
//! links itself (which writes `linked`), then reads the state. Both do so with sequentially
//! consistent order, so one of the two sees the other and no wake is lost.

use alloc::sync::Arc;
use core::marker::PhantomPinned;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use core::task::Waker;

use crate::events::Events;
use crate::sync::{
    AtomicBool, AtomicPtr, AtomicU32, Mutex, MutexGuard, Ordering, UnsafeCell, fence,
    fence_after_rmw, seqcst_pair_fence,
};

/// A list of waiters that an object wakes when it changes.
///
/// Make it a field of your object, register it in [`Pollable::poll`](crate::Pollable::poll), and
/// wake it after each change. Any thread may wake it; a wake never blocks for longer than it takes
/// to walk the list, and allocates nothing.
///
/// Waiters are called with the queue's lock held: do not hold a lock around a wake that your
/// `poll` takes while it calls into other objects' queues.
pub struct WaitQueue {
    /// How many entries are linked, or unlinked by a rotating wake and not yet settled: a wake that
    /// comes meanwhile finds nobody, and has to say so. Written under `list`'s lock, read without
    /// it by wakes.
    linked: AtomicU32,
    /// A rotating wake found nobody who waits, and all exclusive entries have the note that tells
    /// them to look before they sleep. Until one of them uses it up, no further note is needed, and
    /// nobody is in line. Set under `list`'s lock.
    noted: AtomicBool,
    /// A rotating wake found nobody to take it: whoever settles a claim next hands on one more.
    /// Guarded by `list`'s lock.
    owed: AtomicBool,
    /// The entries. This lock nests inside a file's watcher list and a set's lock, and inside the
    /// lock of the queue of anything that this queue's owner watches.
    list: Mutex<List>,
}

struct List {
    head: *mut WaitEntry,
    tail: *mut WaitEntry,
    /// Rotating wakes taken and not yet settled.
    claims: u32,
    /// Turns: who had fewer than this counts as having had this many.
    floor: u32,
}

// SAFETY: the pointers lead to entries that are linked, and an entry stays valid while it is
// linked (`WaitEntry::hook`'s contract); they are followed only under the lock.
unsafe impl Send for List {}

/// How an entry stands in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At the head, told of every wake.
    Shared,
    /// At the tail, told until one took it: first come, first served.
    ExclusiveTail,
    /// Like `ExclusiveTail` but at the head: last come, first served, as threads in `epoll_wait`.
    #[cfg_attr(
        any(not(feature = "std"), loom),
        expect(dead_code, reason = "only sleeping threads need it")
    )]
    ExclusiveHead,
}

/// What a wake asks of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Take note; say whether somebody was waiting for it.
    Tell,
    /// Take note only if somebody waits for it right now.
    Offer,
    /// Say whether somebody waits for it right now, and take no note.
    Ask,
}

/// What an entry answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Nobody waited for it.
    Passed,
    /// Somebody did.
    Took,
    /// Somebody did, and the entry is done: unlink it.
    TookAndLeft,
}

/// How a waiter without a claim asks for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Others may be on their way: they are given time.
    Patient,
    /// They have had time.
    Insistent,
    /// Something outside chose it, as the first in line by its own book: only those who wait and
    /// stand before it here come first.
    Chosen,
}

/// What [`WaitQueue::turn`] answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Look no further: it is yours.
    Mine,
    /// Somebody else has it, and will hand it on.
    Others,
    /// Nobody waits, but some who were served longer ago may be on their way.
    Later,
}

/// Which exclusive waiters are offered a wake.
#[derive(Clone, Copy)]
enum Whom {
    All,
    Except(*const WaitEntry),
    /// Those before this one that have no claim yet.
    Before(*const WaitEntry),
}

/// One wake on its way through the queues.
pub(crate) struct Wake<'a> {
    /// Which events happened; empty means unknown.
    pub(crate) key: Events,
    pub(crate) mode: Mode,
    /// What is to be done once all locks are free.
    pub(crate) deferred: &'a mut Deferred,
}

impl Wake<'_> {
    /// The same wake with another key, for the queues above.
    pub(crate) fn with_key(&mut self, key: Events) -> Wake<'_> {
        Wake {
            key,
            mode: Mode::Tell,
            deferred: self.deferred,
        }
    }
}

pub(crate) type Action = (fn(usize), usize);

/// A task's waker in a place where wakes find it. It is called once the locks of the wake are free:
/// an executor may run the task on the spot, or drop it.
pub(crate) struct TaskSlot {
    /// The task to wake. Nothing is called, and no waker dropped, with this lock held.
    waker: Mutex<Option<Waker>>,
    /// A wake has this in its chain and will call the waker.
    chained: AtomicBool,
    /// The next in that chain; the wake's own.
    next: AtomicPtr<TaskSlot>,
}

impl TaskSlot {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(TaskSlot {
            waker: Mutex::new(None),
            chained: AtomicBool::new(false),
            next: AtomicPtr::new(ptr::null_mut()),
        })
    }

    /// Look at the object's state afterwards.
    pub(crate) fn set(&self, waker: Waker) {
        let before = self.waker.lock().replace(waker);
        fence(Ordering::SeqCst);
        drop(before);
    }
}

/// Tasks to be woken, linked by their slots' `next`, so that a wake allocates nothing.
struct Tasks(*mut TaskSlot);

impl Drop for Tasks {
    fn drop(&mut self) {
        while !self.0.is_null() {
            // SAFETY: from `Arc::into_raw` in `push_task`, and taken off the chain here.
            let slot = unsafe { Arc::from_raw(self.0) };
            // Should a waker panic, the others are called as this drops.
            let mut rest = Tasks(slot.next.load(Ordering::Relaxed));
            self.0 = ptr::null_mut();
            // First: a wake from now on chains it anew.
            slot.chained.swap(false, Ordering::SeqCst);
            let waker = slot.waker.lock().take();
            if let Some(waker) = waker {
                waker.wake();
            }
            self.0 = core::mem::replace(&mut rest.0, ptr::null_mut());
        }
    }
}

/// Actions put off until the locks of the wake are released: the system calls that rouse threads,
/// and the wakers of tasks.
///
/// Room for a few system calls is on the stack. When it is full the oldest are done at once, under
/// the locks: slower, never wrong.
pub(crate) struct Deferred {
    actions: [MaybeUninit<Action>; Deferred::ROOM],
    len: usize,
    /// Dropped, and thereby woken, after the actions are done.
    tasks: Tasks,
}

impl Deferred {
    const ROOM: usize = 4;

    #[inline]
    pub(crate) fn new() -> Self {
        Deferred {
            actions: [const { MaybeUninit::uninit() }; Deferred::ROOM],
            len: 0,
            tasks: Tasks(ptr::null_mut()),
        }
    }

    /// Has the task's waker called, unless another wake is about to.
    pub(crate) fn push_task(&mut self, slot: &Arc<TaskSlot>) {
        if !slot.chained.swap(true, Ordering::SeqCst) {
            slot.next.store(self.tasks.0, Ordering::Relaxed);
            self.tasks.0 = Arc::into_raw(slot.clone()).cast_mut();
        }
    }

    #[cfg_attr(
        any(not(feature = "std"), loom),
        expect(dead_code, reason = "only sleeping threads need it")
    )]
    pub(crate) fn push(&mut self, action: fn(usize), word: usize) {
        if self.len == Deferred::ROOM {
            self.run_actions();
        }
        self.actions[self.len].write((action, word));
        self.len += 1;
    }

    /// For when all locks are free.
    pub(crate) fn run(&mut self) {
        self.run_actions();
        drop(core::mem::replace(&mut self.tasks, Tasks(ptr::null_mut())));
    }

    fn run_actions(&mut self) {
        let len = core::mem::take(&mut self.len);
        for slot in &self.actions[..len] {
            // SAFETY: the first `len` slots were written by `push`; the type is `Copy`.
            let (action, word) = unsafe { slot.assume_init() };
            action(word);
        }
    }
}

impl Drop for Deferred {
    #[inline]
    fn drop(&mut self) {
        if self.len > 0 {
            self.run_actions();
        }
    }
}

/// What a wake calls: the entry, and the wake. Runs under the queue's lock and takes only locks
/// that nest inside it.
///
/// # Safety
/// Called only with an entry that is linked into the queue being woken.
pub(crate) type OnWake = unsafe fn(NonNull<WaitEntry>, &mut Wake<'_>) -> Reply;

/// One waiter's place in a queue: intrusive, embedded in whatever waits.
#[repr(C)]
pub(crate) struct WaitEntry {
    /// Neighbours; guarded by the lock of the queue that the entry is linked into.
    node: UnsafeCell<Node>,
    /// The queue hooked into, null when none. Written by the entry's owner alone.
    queue: AtomicPtr<WaitQueue>,
    on_wake: OnWake,
    /// A word for the owner; it fills what would be padding.
    pub(crate) owner_word: AtomicU32,
    /// How the entry stands in its queue: the bits below, and above them how many rotating wakes
    /// were its own. Written under the queue's lock.
    standing: AtomicU32,
    _pinned: PhantomPinned,
}

/// A wake unlinks a sleeper that it roused.
const LINKED: u32 = 1;
const EXCLUSIVE: u32 = 2;
/// The entry took a wake and has not settled it.
const CLAIMED: u32 = 4;
/// The claim came from a rotating wake, which counted as a turn.
const RETIRED: u32 = 8;
/// Others gave up on this entry's owner: it does not come.
const ABSENT: u32 = 16;
/// One turn. Their number wraps around.
const TURN: u32 = 32;

/// By how many turns one entry may be ahead of another; what is more than that is forgotten.
const REMEMBERED: u32 = 1024 * TURN;

struct Node {
    next: *mut WaitEntry,
    prev: *mut WaitEntry,
}

// SAFETY: `node` is touched only under the lock of the queue that the entry is linked into, or by
// the owner while it is linked nowhere; the rest is atomic.
unsafe impl Send for WaitEntry {}
// SAFETY: as above.
unsafe impl Sync for WaitEntry {}

impl WaitEntry {
    pub(crate) fn new(on_wake: OnWake) -> Self {
        WaitEntry {
            node: UnsafeCell::new(Node {
                next: ptr::null_mut(),
                prev: ptr::null_mut(),
            }),
            queue: AtomicPtr::new(ptr::null_mut()),
            on_wake,
            owner_word: AtomicU32::new(0),
            standing: AtomicU32::new(0),
            _pinned: PhantomPinned,
        }
    }

    /// Links this entry into `queue`. Look at the object's state afterwards.
    ///
    /// # Safety
    /// The entry is hooked nowhere. Neither entry nor queue moves or ends before
    /// [`WaitEntry::unhook`] has returned; hook and unhook are called by one owner at a time.
    pub(crate) unsafe fn hook(&self, queue: *const WaitQueue, place: Place) {
        self.queue.store(queue.cast_mut(), Ordering::Relaxed);
        // SAFETY: the caller keeps the queue alive.
        let queue = unsafe { &*queue };
        let mut list = queue.list.lock();
        self.set_standing(EXCLUSIVE, place != Place::Shared);
        // SAFETY: the entry is unlinked and the list locked.
        unsafe {
            match place {
                Place::ExclusiveTail => list.push_last(self),
                Place::Shared | Place::ExclusiveHead => list.push_front(self),
            }
        }
        queue.linked.fetch_add(1, Ordering::SeqCst);
        queue.use_up_notes();
        drop(list);
        // The waiter's half of the named pair: an object's poll may read in any order it likes.
        fence_after_rmw();
    }

    /// Takes this entry out of its queue, if it is in one. After it returned no wake calls it.
    ///
    /// Says whether the entry held a claim: its owner must pass that on
    /// ([`WaitQueue::pass_on`]) or have looked at the object since.
    pub(crate) fn unhook(&self) -> Option<NonNull<WaitQueue>> {
        let queue = NonNull::new(self.queue.load(Ordering::Relaxed))?;
        // SAFETY: the queue outlives the hook (`hook`'s contract).
        let mut list = unsafe { queue.as_ref() }.list.lock();
        // SAFETY: as above.
        let claimed = unsafe { queue.as_ref() }.unclaim(&mut list, self);
        if self.stands(LINKED) {
            // SAFETY: the entry is linked here and the list locked.
            unsafe { list.unlink(self) };
            // SAFETY: as above.
            unsafe { queue.as_ref() }.count_unlinked();
        }
        self.queue.store(ptr::null_mut(), Ordering::Relaxed);
        claimed.then_some(queue)
    }

    /// Waits until a wake that is under way in this entry's queue is over.
    pub(crate) fn outlast_wake(&self) {
        if let Some(queue) = self.queue() {
            // SAFETY: the queue outlives the hook (`hook`'s contract).
            drop(unsafe { queue.as_ref() }.list.lock());
        }
    }

    /// Whether a wake was taken and not yet settled.
    #[inline]
    pub(crate) fn is_claimed(&self) -> bool {
        self.stands(CLAIMED)
    }

    fn stands(&self, bit: u32) -> bool {
        self.standing.load(Ordering::Relaxed) & bit != 0
    }

    fn set_standing(&self, bit: u32, on: bool) {
        let others = self.standing.load(Ordering::Relaxed) & !bit;
        self.standing
            .store(if on { others | bit } else { others }, Ordering::Relaxed);
    }

    /// The queue hooked into.
    pub(crate) fn queue(&self) -> Option<NonNull<WaitQueue>> {
        NonNull::new(self.queue.load(Ordering::Relaxed))
    }

    /// Gives up the claim that this entry may hold; says whose it was. The owner passes it on.
    pub(crate) fn disclaim(&self) -> Option<NonNull<WaitQueue>> {
        let queue = self.queue()?;
        // SAFETY: the queue outlives the hook (`hook`'s contract).
        let queue_ref = unsafe { queue.as_ref() };
        let mut list = queue_ref.list.lock();
        queue_ref.unclaim(&mut list, self).then_some(queue)
    }

    /// The owner has looked at the object: its claim is used up. If the queue owes a wake that
    /// found nobody, the next waiter is offered one now.
    ///
    /// `still_ready` runs under the queue's lock: a wake that came after the owner's look counts,
    /// or what that wake left owing would be forgotten.
    ///
    /// # Safety
    /// The entry is hooked, or was hooked and unlinked by a wake, and its queue is alive.
    pub(crate) unsafe fn settle(
        &self,
        still_ready: impl FnOnce() -> bool,
        deferred: &mut Deferred,
    ) {
        let Some(queue) = self.queue() else { return };
        // SAFETY: the caller vouches for the queue.
        let queue = unsafe { queue.as_ref() };
        let mut list = queue.list.lock();
        self.set_standing(ABSENT, false);
        let retired = self.stands(RETIRED);
        let claimed = queue.unclaim(&mut list, self);
        if !still_ready() {
            queue.owed.store(false, Ordering::Relaxed);
            if claimed && retired && self.stands(LINKED) {
                // Chosen for nothing: that was no turn, so the next one is its again.
                // SAFETY: the entry is linked here and the list locked.
                unsafe {
                    list.unlink(self);
                    let lead = list.lead(self).saturating_sub(TURN);
                    list.push_in_turn(self, lead, true);
                }
            }
        } else if queue.owed.load(Ordering::Relaxed) {
            let mut wake = Wake {
                key: Events::IN,
                mode: Mode::Offer,
                deferred,
            };
            queue.offer_in_turn(&mut list, &mut wake, Whom::Except(self));
        }
    }
}

impl List {
    /// # Safety
    /// The entry is in no list, and this list is locked.
    unsafe fn push_front(&mut self, entry: &WaitEntry) {
        let this = ptr::from_ref(entry).cast_mut();
        let head = self.head;
        entry.node.with_mut(|node| {
            // SAFETY: the lock is held.
            unsafe {
                *node = Node {
                    next: head,
                    prev: ptr::null_mut(),
                }
            }
        });
        if head.is_null() {
            self.tail = this;
        } else {
            // SAFETY: a linked entry is alive, and the lock is held.
            unsafe { (*head).node.with_mut(|node| (*node).prev = this) };
        }
        self.head = this;
        entry.set_standing(LINKED, true);
    }

    /// By how many turns the entry is ahead of those that count as having had the fewest. One that
    /// was away for long is not behind them.
    fn lead(&self, entry: &WaitEntry) -> u32 {
        let turns = entry.standing.load(Ordering::Relaxed) & !(TURN - 1);
        let lead = turns.wrapping_sub(self.floor);
        if lead > REMEMBERED { 0 } else { lead }
    }

    /// Links an exclusive entry that is ahead by `lead` behind those ahead by as much or less, or
    /// before those ahead by as much or more.
    ///
    /// # Safety
    /// The entry is in no list, and this list is locked.
    unsafe fn push_in_turn(&mut self, entry: &WaitEntry, lead: u32, before_equals: bool) {
        self.set_lead(entry, lead);
        let goes_before = |other: &WaitEntry| {
            let theirs = self.lead(other);
            other.stands(EXCLUSIVE) && (theirs > lead || before_equals && theirs == lead)
        };
        let (mut prev, mut next) = (self.tail, ptr::null_mut());
        while let Some(at) = NonNull::new(prev) {
            // SAFETY: a linked entry is alive, and the lock is held.
            let at = unsafe { at.as_ref() };
            if !goes_before(at) {
                break;
            }
            next = prev;
            // SAFETY: as above.
            prev = at.node.with(|node| unsafe { (*node).prev });
        }
        let this = ptr::from_ref(entry).cast_mut();
        // SAFETY: as above; the entry is unlinked.
        unsafe {
            entry.node.with_mut(|node| *node = Node { next, prev });
            match NonNull::new(prev) {
                None => self.head = this,
                Some(prev) => prev.as_ref().node.with_mut(|node| (*node).next = this),
            }
            match NonNull::new(next) {
                None => self.tail = this,
                Some(next) => next.as_ref().node.with_mut(|node| (*node).prev = this),
            }
        }
        entry.set_standing(LINKED, true);
    }

    /// Links an exclusive entry that is new here behind all others.
    ///
    /// # Safety
    /// As [`push_in_turn`](Self::push_in_turn).
    unsafe fn push_last(&mut self, entry: &WaitEntry) {
        // SAFETY: a linked entry is alive, and the lock is held.
        let last = NonNull::new(self.tail).map(|last| unsafe { last.as_ref() });
        let lead = last.map_or(0, |last| self.lead(last));
        // SAFETY: passed on to the caller.
        unsafe { self.push_in_turn(entry, lead, false) };
    }

    /// Links an exclusive entry that is new here before all others.
    ///
    /// # Safety
    /// As [`push_in_turn`](Self::push_in_turn).
    unsafe fn push_first(&mut self, entry: &WaitEntry) {
        // SAFETY: a linked entry is alive, and the lock is held.
        let first = self.first(true).map(|first| unsafe { first.as_ref() });
        let lead = first.map_or(0, |first| self.lead(first));
        // SAFETY: passed on to the caller.
        unsafe { self.push_in_turn(entry, lead, true) };
    }

    /// The entry has one turn more: it stands behind all that have had as many or fewer.
    ///
    /// # Safety
    /// The entry is alive, and this list is locked.
    unsafe fn count_turn(&mut self, entry: &WaitEntry) {
        let mut lead = self.lead(entry) + TURN;
        if lead > REMEMBERED {
            self.floor = self.floor.wrapping_add(TURN);
            lead -= TURN;
        }
        self.set_lead(entry, lead);
        if entry.stands(LINKED) {
            // SAFETY: the entry is linked here and the list locked.
            unsafe {
                self.unlink(entry);
                self.push_in_turn(entry, lead, false);
            }
        }
    }

    fn set_lead(&self, entry: &WaitEntry, lead: u32) {
        let bits = entry.standing.load(Ordering::Relaxed) & (TURN - 1);
        let turns = self.floor.wrapping_add(lead);
        entry.standing.store(turns | bits, Ordering::Relaxed);
    }

    /// # Safety
    /// The entry is in this list, and this list is locked.
    unsafe fn unlink(&mut self, entry: &WaitEntry) {
        // SAFETY: the lock is held.
        let (next, prev) = entry
            .node
            .with(|node| unsafe { ((*node).next, (*node).prev) });
        if prev.is_null() {
            self.head = next;
        } else {
            // SAFETY: a linked entry is alive, and the lock is held.
            unsafe { (*prev).node.with_mut(|node| (*node).next = next) };
        }
        if next.is_null() {
            self.tail = prev;
        } else {
            // SAFETY: a linked entry is alive, and the lock is held.
            unsafe { (*next).node.with_mut(|node| (*node).prev = prev) };
        }
        entry.set_standing(LINKED, false);
    }

    /// The entry after `entry`.
    ///
    /// # Safety
    /// The entry is in this list, and this list is locked.
    unsafe fn next(&self, entry: NonNull<WaitEntry>) -> Option<NonNull<WaitEntry>> {
        // SAFETY: a linked entry is alive, and the lock is held.
        NonNull::new(unsafe { entry.as_ref().node.with(|node| (*node).next) })
    }

    /// The first entry, or with `exclusive_only` the first exclusive one.
    fn first(&self, exclusive_only: bool) -> Option<NonNull<WaitEntry>> {
        let mut entry = NonNull::new(self.head);
        while let Some(at) = entry {
            // SAFETY: a linked entry is alive, and the caller holds the lock.
            if !exclusive_only || unsafe { at.as_ref() }.stands(EXCLUSIVE) {
                break;
            }
            // SAFETY: as above.
            entry = unsafe { self.next(at) };
        }
        entry
    }

    fn unclaim(&mut self, entry: &WaitEntry) -> bool {
        let claimed = entry.stands(CLAIMED);
        if claimed {
            entry.set_standing(CLAIMED | RETIRED, false);
            self.claims -= 1;
        }
        claimed
    }

    fn claim(&mut self, entry: &WaitEntry) {
        if !entry.stands(CLAIMED) {
            entry.set_standing(CLAIMED, true);
            self.claims += 1;
        }
    }
}

impl Default for WaitQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl core::fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("WaitQueue")
            .field("linked", &self.linked.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

impl WaitQueue {
    /// An empty queue.
    #[must_use]
    pub fn new() -> Self {
        WaitQueue {
            linked: AtomicU32::new(0),
            noted: AtomicBool::new(false),
            owed: AtomicBool::new(false),
            list: Mutex::new(List {
                head: ptr::null_mut(),
                tail: ptr::null_mut(),
                claims: 0,
                floor: 0,
            }),
        }
    }

    /// Tells the waiters that `key` happened (`wake_up_poll`), and says how many took it.
    ///
    /// Call it after the new state is visible. Every non-exclusive waiter is told, then exclusive
    /// ones until one took it. An empty `key` means "look for yourself".
    pub fn wake(&self, key: Events) -> usize {
        fence(Ordering::SeqCst);
        self.wake_published(key)
    }

    /// [`wake`](Self::wake) for a caller that published its state with a `SeqCst` read-modify-write
    /// and so needs no fence.
    #[inline]
    pub(crate) fn wake_published(&self, key: Events) -> usize {
        seqcst_pair_fence();
        if self.is_watched() {
            self.wake_watched(key)
        } else {
            0
        }
    }

    /// Apart from [`wake_published`](Self::wake_published), which needs no stack without it.
    #[inline(never)]
    fn wake_watched(&self, key: Events) -> usize {
        let mut deferred = Deferred::new();
        self.wake_within(&mut Wake {
            key,
            mode: Mode::Tell,
            deferred: &mut deferred,
        })
    }

    /// Like [`wake`](Self::wake), but every exclusive waiter is told too (`wake_up_all`): for news
    /// that one of them cannot use up, such as a close.
    pub fn wake_all(&self, key: Events) -> usize {
        fence(Ordering::SeqCst);
        if !self.is_watched() {
            return 0;
        }
        let mut deferred = Deferred::new();
        let mut wake = Wake {
            key,
            mode: Mode::Tell,
            deferred: &mut deferred,
        };
        let mut list = self.list.lock();
        let mut took = 0;
        let mut at = list.first(false);
        while let Some(entry) = at {
            // SAFETY: a linked entry is alive under the lock.
            at = unsafe { list.next(entry) };
            let reply = self.call(&mut list, entry, &mut wake);
            self.uncount(reply);
            took += usize::from(reply != Reply::Passed);
        }
        took
    }

    /// Like [`wake`](Self::wake), but exclusive waiters take turns: the one that took the event
    /// has had a turn, and stands behind those that had as many or fewer; one that nobody waits on
    /// is passed over.
    ///
    /// If nobody takes it every exclusive waiter is left a note, so that the first to come looks.
    pub fn wake_rotate(&self, key: Events) -> usize {
        fence(Ordering::SeqCst);
        let mut deferred = Deferred::new();
        let mut wake = Wake {
            key,
            mode: Mode::Tell,
            deferred: &mut deferred,
        };
        // Waiters here do not say when they have used up their notes.
        self.wake_in_turn(&mut wake, false)
    }

    /// An entry was unlinked; `list` is locked, so nobody else writes `linked`. In no order with
    /// anything: a wake that sees the old number looks for nothing.
    #[inline]
    fn count_unlinked(&self) {
        let linked = self.linked.load(Ordering::Relaxed);
        self.linked.store(linked - 1, Ordering::Relaxed);
    }

    /// Whether any entry is linked. Pairs with a waiter that registers, then looks.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.linked.load(Ordering::SeqCst) != 0
    }

    /// An exclusive entry of this queue has no note any more, or never had one: call this before
    /// the last look at the object. Pairs with a rotating wake that publishes, then reads `noted`.
    #[inline]
    pub(crate) fn use_up_notes(&self) {
        if self.noted.load(Ordering::Relaxed) {
            self.noted.swap(false, Ordering::SeqCst);
            fence_after_rmw();
        }
    }

    /// Whether more than one entry is linked.
    #[cfg(all(feature = "std", not(loom)))]
    pub(crate) fn has_several(&self) -> bool {
        self.linked.load(Ordering::SeqCst) > 1
    }

    /// Whether anybody, through however many sets, waits right now for a wake of this queue.
    pub(crate) fn is_awaited(&self) -> bool {
        if !self.is_watched() {
            return false;
        }
        let mut deferred = Deferred::new();
        let mut wake = Wake {
            key: Events::IN,
            mode: Mode::Ask,
            deferred: &mut deferred,
        };
        let mut list = self.list.lock();
        let mut at = list.first(false);
        while let Some(entry) = at {
            // SAFETY: a linked entry is alive under the lock.
            at = unsafe { list.next(entry) };
            if self.call(&mut list, entry, &mut wake) != Reply::Passed {
                return true;
            }
        }
        false
    }

    /// A wake that is part of another one, whose state is already published.
    pub(crate) fn wake_within(&self, wake: &mut Wake<'_>) -> usize {
        if !self.is_watched() {
            return 0;
        }
        let mut list = self.list.lock();
        self.walk(&mut list, wake, false)
    }

    /// Rotating counterpart of [`wake_within`](Self::wake_within), for the queues of rotating sets:
    /// whoever waits there uses up notes, and all wakes there have the same key.
    pub(crate) fn wake_rotate_within(&self, wake: &mut Wake<'_>) -> usize {
        self.wake_in_turn(wake, true)
    }

    /// With `notes_last` a wake that finds nobody leaves notes only if the last ones have been used
    /// up.
    fn wake_in_turn(&self, wake: &mut Wake<'_>, notes_last: bool) -> usize {
        seqcst_pair_fence();
        if !self.is_watched() {
            return 0;
        }
        let mut list = self.list.lock();
        let mut took = 0;
        let mut at = list.first(false);
        while let Some(entry) = at {
            // SAFETY: a linked entry is alive under the lock.
            if unsafe { entry.as_ref() }.stands(EXCLUSIVE) {
                break;
            }
            // SAFETY: as above, and `entry` is still linked.
            at = unsafe { list.next(entry) };
            let reply = self.call(&mut list, entry, wake);
            self.uncount(reply);
            took += usize::from(reply != Reply::Passed);
        }
        wake.mode = Mode::Offer;
        if self.offer_in_turn(&mut list, wake, Whom::All) {
            return took + 1;
        }
        self.owed.store(true, Ordering::Relaxed);
        if self.noted.load(Ordering::SeqCst) {
            return took;
        }
        // Nobody waits. Leave a note with all of them: whoever comes first will look.
        wake.mode = Mode::Tell;
        if notes_last {
            self.noted.store(true, Ordering::SeqCst);
        }
        let mut at = list.first(true);
        while let Some(entry) = at {
            // SAFETY: a linked entry is alive under the lock.
            at = unsafe { list.next(entry) };
            if self.call(&mut list, entry, wake) != Reply::Passed {
                // The rest goes without a note.
                self.use_up_notes();
                self.retire(&mut list, entry);
                return took + 1;
            }
        }
        took
    }

    /// Hands the wake that a leaving waiter took to the next exclusive one.
    pub(crate) fn pass_on(&self, key: Events, rotating: bool) {
        let mut deferred = Deferred::new();
        let mut wake = Wake {
            key,
            mode: Mode::Tell,
            deferred: &mut deferred,
        };
        let mut list = self.list.lock();
        if rotating {
            wake.mode = Mode::Offer;
            if !self.offer_in_turn(&mut list, &mut wake, Whom::All) {
                self.owed.store(true, Ordering::Relaxed);
                wake.mode = Mode::Tell;
                self.walk(&mut list, &mut wake, true);
            }
        } else {
            self.walk(&mut list, &mut wake, true);
        }
    }

    /// Asks whether `me`, an exclusive waiter without a claim that found the object still ready,
    /// may take it: the rule that makes workers take turns at a source that stays ready.
    ///
    /// While others hold claims they come first: each of them will look, and ask this in its turn.
    /// Otherwise the next waiter in line is offered it. If nobody waits, those who stand before
    /// `me` are given time to come, until `me` insists; from then on they count as absent until
    /// they have come. One that was chosen outside asks only those before it, and waits for nobody.
    /// `refused` runs under the queue's lock if it is the others': what it undoes
    /// cannot race with a wake.
    ///
    /// # Safety
    /// `me` is hooked into this queue.
    pub(crate) unsafe fn turn(
        &self,
        me: &WaitEntry,
        ask: Ask,
        refused: impl FnOnce(),
        deferred: &mut Deferred,
    ) -> Turn {
        let mut list = self.list.lock();
        me.set_standing(ABSENT, false);
        if self.unclaim(&mut list, me) {
            // A wake chose `me` just now.
            return Turn::Mine;
        }
        let chosen = ask == Ask::Chosen;
        if (list.claims > 0 && !chosen) || crate::sync::broken(crate::sync::Rule::HandOnTurn) {
            refused();
            return Turn::Others;
        }
        let mut wake = Wake {
            key: Events::IN,
            mode: Mode::Offer,
            deferred,
        };
        let whom = if chosen {
            Whom::Before(me)
        } else {
            Whom::Except(me)
        };
        if self.offer_in_turn(&mut list, &mut wake, whom) {
            refused();
            return Turn::Others;
        }
        let mut at = list.first(true);
        while let Some(entry) = at.filter(|entry| !chosen && !ptr::eq(entry.as_ptr(), me)) {
            // SAFETY: a linked entry is alive under the lock.
            let before = unsafe { entry.as_ref() };
            if ask == Ask::Insistent {
                before.set_standing(ABSENT, true);
            } else if !before.stands(ABSENT) {
                // `me` gets in line although it has its note.
                self.use_up_notes();
                return Turn::Later;
            }
            // SAFETY: as above.
            at = unsafe { list.next(entry) };
        }
        // SAFETY: `me` is borrowed, and the list is locked.
        unsafe { list.count_turn(me) };
        Turn::Mine
    }

    /// For a thread about to sleep: links `me` at the tail, unless it is its turn to look first.
    ///
    /// It is its turn if nobody holds a claim and nobody else waits. With `first`, for one that was
    /// chosen for nothing, it is linked before all others.
    ///
    /// # Safety
    /// As [`WaitEntry::hook`].
    #[cfg_attr(
        any(not(feature = "std"), loom),
        expect(dead_code, reason = "only sleeping threads need it")
    )]
    pub(crate) unsafe fn turn_or_hook(
        &self,
        me: &WaitEntry,
        first: bool,
        ready: impl FnOnce() -> bool,
        deferred: &mut Deferred,
    ) -> bool {
        let mut list = self.list.lock();
        me.queue
            .store(ptr::from_ref(self).cast_mut(), Ordering::Relaxed);
        me.set_standing(EXCLUSIVE, true);
        // SAFETY: `me` is unlinked and the list locked.
        unsafe {
            if first {
                list.push_first(me);
            } else {
                list.push_last(me);
            }
        }
        self.linked.fetch_add(1, Ordering::SeqCst);
        self.use_up_notes();
        fence_after_rmw();
        if !ready() {
            return false;
        }
        let mut wake = Wake {
            key: Events::IN,
            mode: Mode::Offer,
            deferred,
        };
        if list.claims > 0 || self.offer_in_turn(&mut list, &mut wake, Whom::Except(me)) {
            return false;
        }
        // SAFETY: `me` was linked above and the list is still locked.
        unsafe { list.unlink(me) };
        self.count_unlinked();
        me.queue.store(ptr::null_mut(), Ordering::Relaxed);
        true
    }

    /// Offers the wake to the exclusive entries in their order until one takes it; that one has
    /// a claim then, and one turn more.
    fn offer_in_turn(
        &self,
        list: &mut MutexGuard<'_, List>,
        wake: &mut Wake<'_>,
        whom: Whom,
    ) -> bool {
        if self.noted.load(Ordering::SeqCst) {
            return false;
        }
        let mut at = list.first(true);
        while let Some(entry) = at {
            // SAFETY: a linked entry is alive under the lock.
            at = unsafe { list.next(entry) };
            match whom {
                Whom::Except(one) if ptr::eq(entry.as_ptr(), one) => continue,
                Whom::Before(one) if ptr::eq(entry.as_ptr(), one) => break,
                // SAFETY: as above. One with a claim has an event of its own to look for.
                Whom::Before(_) if unsafe { entry.as_ref() }.is_claimed() => continue,
                _ => {}
            }
            if self.call(list, entry, wake) != Reply::Passed {
                self.retire(list, entry);
                return true;
            }
        }
        false
    }

    /// The entry's claim, if it has one, is over.
    fn unclaim(&self, list: &mut MutexGuard<'_, List>, entry: &WaitEntry) -> bool {
        let claimed = list.unclaim(entry);
        if claimed && !entry.stands(LINKED) {
            self.count_unlinked();
        }
        claimed
    }

    /// The entry took a rotating wake: it has a claim, and has had its turn.
    fn retire(&self, list: &mut MutexGuard<'_, List>, entry: NonNull<WaitEntry>) {
        // SAFETY: an entry that a wake reached is alive under the lock, linked or just unlinked.
        let entry = unsafe { entry.as_ref() };
        list.claim(entry);
        entry.set_standing(RETIRED, true);
        // SAFETY: as above.
        unsafe { list.count_turn(entry) };
    }

    /// Calls entries from the head, exclusive ones until one took it.
    fn walk(
        &self,
        list: &mut MutexGuard<'_, List>,
        wake: &mut Wake<'_>,
        exclusive_only: bool,
    ) -> usize {
        let mut took = 0;
        let mut at = list.first(exclusive_only);
        while let Some(entry) = at {
            // SAFETY: a linked entry is alive under the lock.
            at = unsafe { list.next(entry) };
            // SAFETY: as above.
            let exclusive = unsafe { entry.as_ref() }.stands(EXCLUSIVE);
            let reply = self.call(list, entry, wake);
            self.uncount(reply);
            if reply != Reply::Passed {
                took += 1;
                if exclusive {
                    if reply == Reply::Took {
                        // SAFETY: as above, and `Took` left it linked.
                        list.claim(unsafe { entry.as_ref() });
                    }
                    break;
                }
            }
        }
        took
    }

    /// What [`call`](Self::call) unlinked counts no more; what took a rotating wake still does.
    #[inline]
    fn uncount(&self, reply: Reply) {
        if reply == Reply::TookAndLeft {
            self.count_unlinked();
        }
    }

    #[inline]
    fn call(
        &self,
        list: &mut MutexGuard<'_, List>,
        entry: NonNull<WaitEntry>,
        wake: &mut Wake<'_>,
    ) -> Reply {
        // SAFETY: a linked entry is alive under the lock.
        let on_wake = unsafe { entry.as_ref() }.on_wake;
        // SAFETY: the entry is linked into this queue, whose lock is held.
        let reply = unsafe { on_wake(entry, wake) };
        if reply == Reply::TookAndLeft {
            // SAFETY: it was linked and the list is locked. Its owner cannot free it before it
            // has taken this lock: a sleeper that was roused still unhooks under the lock.
            unsafe { list.unlink(entry.as_ref()) };
        }
        reply
    }
}

impl Drop for WaitQueue {
    fn drop(&mut self) {
        debug_assert_eq!(
            self.linked.load(Ordering::Relaxed),
            0,
            "a wait queue outlived by its waiters"
        );
    }
}
