//! The schedules of the timers that a set watches, itself or in sets below.
//!
//! A schedule that a set has once known stays for the set's life, as a backend does. It costs a wakeup that
//! finds nothing when one of its timers fires.
//!
//! # The sets that a change calls
//! A set listens to `sooner` of a schedule while threads sleep in it: each links the set's entry before it sleeps. The
//! first change that finds no thread unlinks the entry. So a change does not walk all sets that know the schedule: a sleep
//! is paid back by one call in vain at most. Both links and calls are made under the lock of `sooner`, and a thread
//! registers before it links. So a call finds the thread, or comes before its link, and then the thread reads the new
//! next time.
//!
//! # Keeping time
//! A single thread of those in a set sleeps no longer than until the next timer fires. It *keeps* the time, up to
//! the time in `Known::kept`. The others sleep as long as they like.
//!
//! - A thread registers, then keeps the time if nobody keeps an earlier one or the same.
//! - A thread that ends its sleep keeps the time no more. When it leaves the wait, it wakes another thread if the next
//!   time is not kept. That thread keeps it, or leaves in its turn.
//! - A change that brings the next time nearer wakes a thread, if that time is not kept.
//! - A harvest or poll that takes such a wake hands it on, as long as the time is not kept.
//!
//! So while threads sleep, the next time is kept or a wake is on its way. The named pair is that of
//! [`schedule`](crate::schedule), with `kept` in place of the next time between two threads of one set.

use alloc::boxed::Box;
use core::ptr::{self, NonNull};

#[cfg(any(feature = "std", upoll_loom))]
use smallvec::SmallVec;

use super::Set;
use super::nesting::sets_above;
use crate::errno::Errno;
use crate::events::Events;
use crate::file::{Description, InTime};
use crate::memory::{SharedBox, boxed};
use crate::schedule::{NEVER, Schedule};
use crate::sync::{AtomicPtr, AtomicU64, Ordering};
use crate::wait::{Deferred, Mode, Place, Reply, WaitEntry, Wake};

/// The schedules that a set knows: a list that only grows, under the lock for ADDs of sets to sets.
pub(super) struct Schedules {
    /// From [`boxed`], or null.
    first: AtomicPtr<Known>,
}

impl Drop for Schedules {
    /// One after the other, as a list may be longer than a stack is deep.
    fn drop(&mut self) {
        let mut next = self.first.load(Ordering::Acquire);
        while let Some(known) = NonNull::new(next) {
            // SAFETY: the list owns what is from `boxed`, and nobody borrows it any more.
            let known = unsafe { Box::from_raw(known.as_ptr()) };
            next = known.next.load(Ordering::Acquire);
        }
    }
}

/// A schedule that a set knows.
#[repr(C)]
struct Known {
    /// The place among those that learn of a nearer time, while threads sleep in the set. First, so that a wake finds
    /// the rest.
    entry: WaitEntry,
    set: NonNull<Set>,
    schedule: SharedBox<Schedule>,
    /// The time until which a thread sleeps that keeps the time for the set. [`NEVER`]: none does.
    kept: AtomicU64,
    /// From [`boxed`], or null.
    next: AtomicPtr<Known>,
}

// SAFETY: `set` is the set that owns this, and a set is `Sync`.
unsafe impl Send for Known {}
// SAFETY: see `Send`.
unsafe impl Sync for Known {}

impl Drop for Known {
    fn drop(&mut self) {
        self.entry.unhook();
    }
}

impl Known {
    /// Returns whether a thread sleeps no longer than until the next timer fires, or there is no such timer.
    fn is_kept(&self) -> bool {
        let kept = self.kept.load(Ordering::SeqCst);
        self.schedule.next() >= kept
    }
}

impl Schedules {
    pub(super) fn new() -> Self {
        Schedules {
            first: AtomicPtr::new(ptr::null_mut()),
        }
    }

    fn at<'a>(&'a self, place: &AtomicPtr<Known>) -> Option<&'a Known> {
        // SAFETY: null, or from `boxed` and freed by the list's drop.
        unsafe { place.load(Ordering::Acquire).as_ref() }
    }

    fn iter(&self) -> impl Iterator<Item = &Known> {
        core::iter::successors(self.at(&self.first), |known| self.at(&known.next))
    }

    fn is_empty(&self) -> bool {
        self.first.load(Ordering::Acquire).is_null()
    }

    #[inline(never)]
    fn fire_due(&self) {
        for known in self.iter() {
            known.schedule.fire();
        }
    }
}

impl InTime for Schedules {
    fn for_each_schedule(&self, visit: &mut dyn FnMut(&SharedBox<Schedule>)) {
        self.iter().for_each(|known| visit(&known.schedule));
    }
}

impl Set {
    /// The schedules of the timers below, if there are any.
    #[inline]
    pub(super) fn schedules(&self) -> Option<&Schedules> {
        (!self.schedules.is_empty()).then_some(&self.schedules)
    }

    fn knows(&self, schedule: &SharedBox<Schedule>) -> bool {
        self.schedules
            .iter()
            .any(|known| SharedBox::ptr_eq(&known.schedule, schedule))
    }

    /// Returns whether the set knows all schedules of `source`.
    pub(super) fn knows_all(&self, source: &dyn InTime) -> bool {
        let mut knows_all = true;
        source.for_each_schedule(&mut |schedule| knows_all &= self.knows(schedule));
        knows_all
    }

    /// Adds a schedule, while the lock for ADDs of sets to sets is held. Threads that sleep in the set look again.
    fn know(&self, schedule: &SharedBox<Schedule>) -> Result<(), Errno> {
        if self.knows(schedule) {
            return Ok(());
        }
        let last = self.schedules.iter().last();
        let place = last.map_or(&self.schedules.first, |known| &known.next);
        let known = Box::into_raw(boxed(Known {
            entry: WaitEntry::new(on_sooner),
            set: NonNull::from(self),
            schedule: schedule.clone(),
            kept: AtomicU64::new(NEVER),
            next: AtomicPtr::new(ptr::null_mut()),
        })?);
        // SAFETY: it is from `boxed`, and the list's drop frees it.
        let Known {
            entry, schedule, ..
        } = unsafe { &*known };
        // SAFETY: no thread links the entry before it is in the list. Its drop unhooks it, and it keeps the schedule that the
        // queue is part of.
        unsafe { entry.hook(&raw const schedule.sooner, Place::Shared) };
        // Nobody else adds to the list.
        place.store(known, Ordering::SeqCst);
        // In the list, now a thread that sleeps here keeps the time, and those that poll the set learn of the schedule.
        let mut deferred = Deferred::new();
        self.wake_one(&mut Wake {
            key: Events::IN,
            mode: Mode::Notify,
            deferred: &mut deferred,
        });
        drop(deferred);
        self.watched_by.wake_all(Events::empty());
        Ok(())
    }

    /// Returns whether the next timer of some clock fires before any thread that sleeps in the set wakes up for it. If
    /// so, a thread that sleeps there has to be woken, to keep that time.
    #[cfg(any(feature = "std", upoll_loom))]
    #[inline]
    pub fn has_unkept_time(&self) -> bool {
        self.schedules()
            .is_some_and(|schedules| !schedules.iter().all(Known::is_kept))
    }

    /// Fires the timers below that are due.
    #[inline]
    pub fn fire_due(&self) {
        if let Some(schedules) = self.schedules() {
            schedules.fire_due();
        }
    }
}

/// A timer, or a set with timers below, is about to be added to `set`: that set and those above it learn of the schedules.
/// The lock for ADDs of sets to sets is held.
///
/// # Errors
/// `ENOMEM`: there is no memory for it. The next call goes on where this one has ended.
pub(super) fn learn(set: &Description<Set>, source: &dyn InTime) -> Result<(), Errno> {
    if set.object().knows_all(source) {
        return Ok(());
    }
    for above in sets_above(set.watchers())? {
        learn(&above, source)?;
    }
    let mut learned = Ok(());
    source.for_each_schedule(&mut |schedule| {
        if learned.is_ok() {
            learned = set.object().know(schedule);
        }
    });
    learned
}

/// A schedule's next time has come nearer.
///
/// # Safety
/// As [`OnWake`](crate::wait::OnWake); the entry is a [`Known`]'s.
unsafe fn on_sooner(entry: NonNull<WaitEntry>, wake: &mut Wake<'_>) -> Reply {
    // SAFETY: `entry` is the first field of a `Known`, which is unhooked, under the lock that is held here, before
    // it or its set ends.
    let (known, set) = unsafe {
        let known = entry.cast::<Known>().as_ref();
        (known, known.set.as_ref())
    };
    if !set.has_sleepers() {
        // A thread that goes to sleep links the entry again.
        return Reply::WokenAndUnlinked;
    }
    if !known.is_kept() {
        set.wake_one(&mut wake.with_key(Events::IN));
    }
    Reply::Declined
}

/// A thread that waits in a set, and keeps the time for it while it sleeps.
#[cfg(any(feature = "std", upoll_loom))]
pub struct TimeKeeper<'a> {
    set: &'a Set,
    keeps: SmallVec<[(&'a Known, u64); 2]>,
}

#[cfg(any(feature = "std", upoll_loom))]
impl<'a> TimeKeeper<'a> {
    pub fn of(set: &'a Set) -> Self {
        TimeKeeper {
            set,
            keeps: SmallVec::new(),
        }
    }

    /// The thread has registered and goes to sleep. Calls `visit` with each schedule whose next time it has to keep, and
    /// with that time.
    pub fn begin_sleep(&mut self, mut visit: impl FnMut(&Schedule, u64)) {
        let Some(schedules) = self.set.schedules() else {
            return;
        };
        for known in schedules.iter() {
            // Linked, now look: a change before that may have called no thread of this set.
            known.entry.link(Place::Shared, || ());
            let next = known.schedule.next();
            let mut kept = known.kept.load(Ordering::SeqCst);
            while next < kept {
                visit(&known.schedule, next);
                if self.keeps.try_reserve(1).is_err() {
                    // Another thread may keep the same time.
                    break;
                }
                let keep = known.kept.compare_exchange_weak(
                    kept,
                    next,
                    Ordering::SeqCst,
                    Ordering::SeqCst,
                );
                match keep {
                    Ok(_) => {
                        self.keeps.push((known, next));
                        break;
                    }
                    Err(now) => kept = now,
                }
            }
        }
    }

    /// The sleep is over: fires what is due. Returns whether the thread has kept any time.
    pub fn end_sleep(&mut self) -> bool {
        let kept_time = !self.keeps.is_empty();
        self.keep_no_more();
        self.set.fire_due();
        kept_time
    }

    fn keep_no_more(&mut self) {
        for (known, next) in self.keeps.drain(..) {
            // If it fails, another thread keeps an earlier time.
            let _ = known
                .kept
                .compare_exchange(next, NEVER, Ordering::SeqCst, Ordering::SeqCst);
        }
    }
}

#[cfg(any(feature = "std", upoll_loom))]
impl Drop for TimeKeeper<'_> {
    fn drop(&mut self) {
        // Foreign code may panic between a sleep and its end.
        self.keep_no_more();
        // A thread that went to sleep before the end of this one's sleep saw the time kept.
        if self.set.has_unkept_time() {
            let mut deferred = Deferred::new();
            self.set.wake_one(&mut Wake {
                key: Events::IN,
                mode: Mode::Notify,
                deferred: &mut deferred,
            });
        }
    }
}
