//! The kernel backend of a set: its members that are kernel fds.
//!
//! The layer between the core and sleeping threads. It adds a [`KernelBackend`] to a set: a kernel
//! epoll set in which the kernel fds are registered with the user's own data, and in which threads
//! of such a set sleep. So level, edge, oneshot and exclusive interests in kernel fds mean exactly
//! what the kernel means by them. When something in the core becomes ready, the seal of the kernel
//! set ([`own_fds`]) wakes a thread there. A set that watches others with a kernel backend learns
//! through a nesting fd of its own what happens in theirs ([`nested`]). Each worker watches the
//! source of a rotating set separately, in its own kernel set ([`rotation`]). Shared eventfds
//! ([`shared`]) report changes in other processes to sets by kernel fds of their own
//! ([`listening`]).
//!
//! # Fds
//! The kernel knows an interest by open file and fd. An fd that the user closes may stand for
//! another file the next moment. So no call here acts on such an fd unless the user has just passed
//! it, or the kernel has confirmed that it still stands for the same file.
//!
//! # Fork
//! A child shares no kernel sets with its parent: it closes its copies ([`own_fds`]) and leaves its
//! parent's sets alone until it calls `exec` or `_exit`. A child that was made by a bare `clone(2)`
//! has the copies open: the parent misses what the child waits for, changes or drops there. A child
//! may use and drop shared eventfds as it likes: the parent's sets still see their changes
//! ([`generation`]).

#[cfg(not(upoll_loom))]
mod adopted;
mod attendant;
pub(crate) use attendant::AttendedFd;
#[cfg(upoll_loom)]
pub use attendant::join_attendants;
#[cfg(not(upoll_loom))]
pub(crate) mod generation;
#[cfg(not(upoll_loom))]
pub use generation::{WIPED_WORDS, begin_in_child, watch_forks, wiped_words};
mod ctl;
mod harvest;
mod interest_list;
#[cfg(not(upoll_loom))]
pub(crate) mod kernel;
#[cfg(upoll_loom)]
#[path = "kernel_model.rs"]
pub mod kernel;
mod listening;
#[cfg(not(upoll_loom))]
mod members;
mod nested;
pub mod own_fds;
#[cfg(upoll_loom)]
mod own_fds_model;
mod readiness;
mod restore;
mod ring;
mod robust_lock;
mod rotation;
mod shared;
mod sleep_set;
mod special;

/// Models have one process.
#[cfg(upoll_loom)]
pub(crate) mod generation {
    use crate::errno::Errno;

    pub(crate) const fn current() -> u32 {
        0
    }

    pub(crate) const fn watch_forks() -> Result<(), Errno> {
        Ok(())
    }
}

pub(crate) use self::ctl::ctl;
#[cfg(not(upoll_loom))]
pub(crate) use self::ctl::modify_once_more;
pub(crate) use self::kernel::SignalMask;
#[cfg(upoll_loom)]
pub use self::own_fds_model::OwnSet;
pub use self::readiness::ReadinessFd;
#[cfg(upoll_loom)]
pub use self::robust_lock::LockModel;
pub(crate) use self::shared::{ListeningFd, SharedCounter};

use std::any::Any;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;

use smallvec::SmallVec;

use self::interest_list::InterestList;
use self::kernel::Descriptor;
use self::listening::Listening;
use self::nested::{ChosenSlot, Links, Renew};
use self::own_fds::LastCheck;
use self::readiness::Shown;
use self::restore::ensure_intact;
use self::rotation::Rotation;
use self::sleep_set::SleepSet;
use self::special::{Special, Specials};
use crate::epoll::backend::KernelBackend;
use crate::epoll::ctl::set_of;
use crate::epoll::interest::LockedSet;
use crate::epoll::nesting::sets_above;
use crate::epoll::{Op, Set};
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::file::{Description, InKernel};
use crate::memory::boxed;
use crate::sync::{
    AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Mutex, OnceBox, Ordering, Rule, broken, fence,
};
use crate::target::Target;
use crate::wait::Deferred;

/// The part of a set that the kernel keeps.
pub(crate) struct EpollBackend {
    /// A set's members are in it, except a rotating set's; threads sleep in it while there is no
    /// nesting fd.
    first: SleepSet,
    /// Made when a set with a kernel backend comes below: see [`nested`]. For a rotating set, in
    /// whose kernel set no thread sleeps, `first` has that part.
    nesting: OnceBox<SleepSet>,
    specials: Specials,
    /// At least as many as there are members: those that left by being closed are not missed.
    members: AtomicUsize,
    /// The members, except those that an adopted kernel set had before.
    listed: InterestList,
    /// Held while kernel sets are made anew whose fds the program has closed, and while the readiness fd is linked.
    /// Outside all locks.
    restoring: Mutex<()>,
    /// Held while a member is changed in `first` and in `listed`, and while `first` is made anew from `listed`. Nests
    /// inside all other locks. Own fds that are out of the program's reach are not lost, so there changes do without.
    changing: Mutex<()>,
    /// Some kernel sets that were made anew lack members, because the kernel has refused them.
    is_half_restored: AtomicBool,
    /// The time at which the sets below were last checked.
    last_check: LastCheck,
    /// The program's fd of an adopted kernel set; -1 if there is none.
    adopted_from: AtomicI32,
    /// The number of members that an adopted kernel set had; see [`Epoll::adopt_kernel_set`].
    adopted: AtomicUsize,
    /// True if the core fills the next report first. Core and kernel take turns, so that neither starves the other.
    core_first: AtomicBool,
    /// Kernel backends below. The lock nests inside the set's lock.
    links: Mutex<Links>,
    /// The kernel set that all watchers of this set know, by its [identity](own_fds::OwnFd::identity); 0 if none.
    known_above: AtomicU32,
    /// Held while a wakeup of `first` is taken back to see whether members are ready. Nests inside
    /// all other locks.
    taking_back: Mutex<()>,
    /// No member is registered in `first`, which has the part of the nesting fd: the set rotates, or a thread
    /// waits through it in a rotating set.
    first_is_nesting: bool,
    /// The state that only a rotating set has.
    rotation: Option<Rotation>,
    /// The number of wakeups sent to threads that sleep here since a thread last took one out of the kernel set. A
    /// thread takes all of them. The number only decides which set takes an exclusive event.
    wakes_sent: AtomicUsize,
    /// Slots of items whose rotating set's source has chosen this set since it last slept. The lock
    /// nests inside the set's lock.
    chosen: Mutex<SmallVec<[ChosenSlot; 2]>>,
    has_chosen: AtomicBool,
    /// Shared counters that members watch. The lock nests inside the set's lock.
    listening: Mutex<Listening>,
    /// The set's readiness fd, once a program has asked for it.
    shown: OnceBox<Shown>,
    /// The set's place at the attendant, while callbacks wait for the set.
    attended: Mutex<Option<attendant::Attended>>,
    /// The generation of the process that made the backend.
    generation: u32,
}

const EDGE: Events = Events::IN.union(Events::ET);

/// The meaning of the library's own events of a kernel set, without those of the user's members.
#[derive(Clone, Copy, Default)]
struct Heard {
    /// The core has something to check, and another thread might have been woken for it instead.
    core: bool,
    /// It is new to the core.
    queued: bool,
    /// Members are ready.
    members: bool,
}

impl Heard {
    fn add(&mut self, other: Heard) {
        self.core |= other.core;
        self.queued |= other.queued;
        self.members |= other.members;
    }
}

impl EpollBackend {
    fn new(set: &Set) -> Result<Self, Errno> {
        // A worker must look at a rotating set after each edge there, though what caused it may be gone.
        match set.rotates() {
            true => Self::around(set, SleepSet::readable),
            false => Self::around(set, SleepSet::new),
        }
    }

    /// One with a kernel set of the caller's making.
    fn around(
        set: &Set,
        first: impl FnOnce(&Specials) -> Result<SleepSet, Errno>,
    ) -> Result<Self, Errno> {
        let specials = Specials::new();
        Ok(EpollBackend {
            first: first(&specials)?,
            nesting: OnceBox::new(),
            specials,
            members: AtomicUsize::new(0),
            listed: InterestList::new(),
            restoring: Mutex::new(()),
            changing: Mutex::new(()),
            is_half_restored: AtomicBool::new(false),
            last_check: LastCheck::new(),
            adopted_from: AtomicI32::new(-1),
            adopted: AtomicUsize::new(0),
            core_first: AtomicBool::new(false),
            links: Mutex::new(Links::new()),
            known_above: AtomicU32::new(0),
            taking_back: Mutex::new(()),
            first_is_nesting: set.rotates() || set.is_hidden.load(Ordering::Relaxed),
            rotation: match set.rotates() {
                true => Some(Rotation::new()?),
                false => None,
            },
            wakes_sent: AtomicUsize::new(0),
            chosen: Mutex::new(SmallVec::new()),
            has_chosen: AtomicBool::new(false),
            listening: Mutex::new(Listening::new()),
            shown: OnceBox::new(),
            attended: Mutex::new(None),
            generation: generation::current(),
        })
    }

    /// Returns the kernel backend of a set, if it has one.
    #[inline]
    pub(crate) fn of(set: &Set) -> Option<&Self> {
        Self::among(set.backend()?)
    }

    /// Returns `backend` if it is one of this kind.
    #[inline]
    fn among(backend: &dyn KernelBackend) -> Option<&Self> {
        let backend: &dyn Any = backend;
        backend.downcast_ref()
    }

    /// Returns the kernel backend of a set; makes one if there is none yet.
    ///
    /// `EMFILE`, `ENFILE`, `ENOMEM`: the kernel has no fds or memory for it.
    pub(crate) fn ensure(description: &Description<Set>) -> Result<&Self, Errno> {
        let backend = Self::ensure_own(description.object())?;
        if !backend.is_known_above() {
            let current = backend.sleep_set().fd.identity();
            // A watcher that was linked above after this search finds the backend itself.
            for above in sets_above(description.watchers())? {
                backend.nest_in(description, &above)?;
            }
            backend.link_shown()?;
            backend.known_above.store(current, Ordering::Release);
        }
        Ok(backend)
    }

    /// As [`ensure`](Self::ensure), for a thread that sleeps in it. The sets above need not know of a kernel set without
    /// members.
    pub(crate) fn ensure_own(set: &Set) -> Result<&Self, Errno> {
        let backend = set.backend_or_insert(|| Ok(boxed(EpollBackend::new(set)?)?))?;
        Self::among(backend).ok_or(Errno::INVAL)
    }

    /// Returns whether all watchers of the set know its kernel set.
    #[inline]
    fn is_known_above(&self) -> bool {
        self.known_above.load(Ordering::Acquire) == self.sleep_set().fd.identity()
    }

    /// As [`ensure`](Self::ensure), and it has a nesting fd from now on.
    fn ensure_nesting(description: &Description<Set>) -> Result<&Self, Errno> {
        let backend = Self::ensure(description)?;
        if backend.nesting().is_some() {
            return Ok(backend);
        }
        backend.ensure_intact(description)?;
        backend.nesting.get_or_try_init(|| {
            let nesting = SleepSet::new(&backend.specials)?;
            let members = backend.first.fd.as_raw_fd();
            nesting.register(
                &backend.specials,
                Op::Add,
                members,
                Events::IN,
                Special::Members,
            )?;
            backend.try_above(description, &nesting)?;
            boxed(nesting)
        })?;
        // The nesting fd is published, now check: a thread that counts itself in `first` later finds the
        // nesting fd.
        fence(Ordering::SeqCst);
        backend.vacate();
        // The pollers of the set still wait for its first kernel set.
        description.object().watched_by.wake_all(Events::empty());
        Self::ensure(description)
    }

    /// Checks that the kernel lets a new nesting fd be a member of those that watch the set now, of all at once. The kernel
    /// refuses sets that are nested too deep or on too many paths, and a nesting fd that is published stays.
    fn try_above(&self, description: &Description<Set>, nesting: &SleepSet) -> Result<(), Errno> {
        let above = sets_above(description.watchers())?;
        above.iter().try_for_each(ensure_intact)?;
        let attendants = self.attendants_set()?;
        let fds = || {
            let nesting_sets = above
                .iter()
                .filter_map(|above| EpollBackend::of(above.object())?.nesting());
            nesting_sets
                .map(|nesting| &**nesting.fd)
                .chain(self.shown_fd())
                .chain(attendants)
        };
        let nothing = Event::new(Events::empty(), 0);
        let nesting = nesting.fd.as_raw_fd();
        // A set may watch this one under several fds.
        let tried =
            fds().try_for_each(|fd| exists(kernel::epoll_ctl(fd, Op::Add, nesting, &nothing)));
        for fd in fds() {
            let _ = kernel::epoll_ctl(fd, Op::Del, nesting, &nothing);
        }
        tried
    }

    /// The kernel set that has whatever is not the user's, once it is one of its own.
    fn nesting(&self) -> Option<&SleepSet> {
        match self.first_is_nesting {
            true => Some(&self.first),
            false => self.nesting.get(),
        }
    }

    /// Returns the kernel set in which threads sleep.
    fn sleep_set(&self) -> &SleepSet {
        self.nesting().unwrap_or(&self.first)
    }

    /// Wakes one of the threads that still sleep where they no longer should; it wakes the next.
    fn vacate(&self) {
        if !ptr::eq(self.sleep_set(), &self.first) && self.first.is_awaited() {
            self.first.fd.wake();
        }
    }

    /// Wakes a thread, because a wakeup was taken here that may have been meant for it: something is pending in
    /// the core and is left, or no thread keeps the time of the next timer.
    fn wake_another(&self, set: &Set) {
        if (set.is_pending() || set.has_unkept_time()) && self.is_awaited() {
            self.wakes_sent.fetch_add(1, Ordering::Relaxed);
            self.sleep_set().fd.wake();
        }
    }

    /// The kernel set that holds the members, which are the source for a rotating set.
    fn members(&self) -> &Descriptor {
        match &self.rotation {
            Some(rotation) => &rotation.members,
            None => &self.first.fd,
        }
    }

    /// Fills `out` with members that are ready.
    fn take_members(&self, set: &Set, out: &mut [Event]) -> (usize, Heard) {
        if out.is_empty() || self.members.load(Ordering::Relaxed) == 0 {
            return (0, Heard::default());
        }
        self.empty_members(set, out)
    }

    /// Like [`take_members`](Self::take_members), whether it has any or not: a wakeup that no
    /// thread has taken goes with them. It would keep a nesting fd awake.
    fn empty_members(&self, set: &Set, out: &mut [Event]) -> (usize, Heard) {
        let mut heard = Heard::default();
        loop {
            let found = harvest_of(self.members(), out);
            if self.rotation.is_some() {
                return (found, heard);
            }
            let (kept, also) = self.sift(set, &mut out[..found]);
            if also.core {
                self.vacate();
            }
            heard.add(also);
            if kept > 0 || found == 0 {
                return (kept, heard);
            }
        }
    }

    /// Forwards all events of the nesting fd, if there is one.
    #[inline]
    fn empty_nesting(&self, set: &Set) -> Heard {
        match self.nesting() {
            Some(nesting) if self.rotation.is_none() || self.has_sets_below() => {
                self.empty(nesting, set)
            }
            _ => Heard::default(),
        }
    }

    /// Updates the links of the hidden sets of threads that wait in a rotating set, after a set
    /// with a kernel backend was added below it.
    fn tell_hidden(rotating: &Description<Set>) -> Result<(), Errno> {
        if !rotating.object().rotates() {
            return Ok(());
        }
        for hidden in sets_above(rotating.watchers())? {
            let set = hidden.object();
            if set.is_hidden.load(Ordering::Relaxed)
                && let Some(backend) = EpollBackend::of(set)
            {
                backend.link(&set.lock(), rotating, Renew::No)?;
            }
        }
        Ok(())
    }

    /// Drains the nesting fd for a set above, which was woken by it and polls this set next.
    ///
    /// The poll may end before it comes to the nesting fd. A notifier whose event was not taken is not
    /// armed, so its counter would report no further change.
    fn hear_from_above(&self, set: &Set) {
        // Else there are only wakes of threads that sleep here.
        if broken(Rule::HearFromAbove) || !self.has_sets_below() {
            return;
        }
        let heard = self.empty_nesting(set);
        if heard.core {
            self.wake_another(set);
        }
        if heard.queued && set.watched_by.has_several() {
            set.wake_watchers();
        }
    }

    /// Returns whether the nesting fd may have events other than wakeups of threads that sleep there.
    fn has_sets_below(&self) -> bool {
        !self.links.lock().is_empty() || !self.listening.lock().is_empty()
    }

    fn empty(&self, nesting: &SleepSet, set: &Set) -> Heard {
        let mut heard = Heard::default();
        let mut events = [Event::default(); NESTING_ROOM];
        loop {
            let found = harvest_of(&nesting.fd, &mut events);
            let (_, also) = self.sift(set, &mut events[..found]);
            heard.add(also);
            if found < events.len() {
                return heard;
            }
        }
    }
}

/// Returns how many events of a kernel set were found. The limit is zero and the memory the library's, so
/// the kernel's call fails only if the program has closed the set: that is noted.
#[inline]
fn harvest_of(set: &Descriptor, events: &mut [Event]) -> usize {
    kernel::epoll_harvest(set, events).unwrap_or_else(|_| {
        set.is_lost_after_failure();
        0
    })
}

/// That something is registered already is as good.
fn exists(added: Result<(), Errno>) -> Result<(), Errno> {
    match added {
        Err(Errno::EXIST) => Ok(()),
        other => other,
    }
}

/// The number of events of a nesting fd that are taken together.
const NESTING_ROOM: usize = 8;

impl InKernel for EpollBackend {
    /// Returns the kernel set. It stays readable while a member is ready, so a poller that does not want what a
    /// set shows has to do without it: it would never sleep.
    fn awaited_fd(&self, file: &Description, wanted: Events) -> Option<BorrowedFd<'_>> {
        if !wanted.intersects(Set::SHOWN) {
            return None;
        }
        // If that fails a poller awaits what there is, for as long as a thread sleeps at most.
        let _ = self.ensure_intact(set_of(file)?);
        let fd = match &self.rotation {
            Some(rotation) => rotation.for_pollers(&self.first.fd),
            None => &self.sleep_set().fd,
        };
        Some(fd.as_fd())
    }
}

impl KernelBackend for EpollBackend {
    #[inline]
    fn is_awaited(&self) -> bool {
        self.first.is_awaited() || self.nesting.get().is_some_and(SleepSet::is_awaited)
    }

    fn has_unwoken_thread(&self) -> bool {
        let asleep = self.sleep_set().asleep.load(Ordering::SeqCst);
        asleep > self.wakes_sent.load(Ordering::Relaxed)
    }

    fn wake_one(&self, deferred: &mut Deferred) {
        self.wakes_sent.fetch_add(1, Ordering::Relaxed);
        deferred.push_shared(&self.sleep_set().fd);
    }

    fn is_ready(&self, set: &Set, for_item: bool) -> bool {
        if self.nesting().is_some() {
            self.last_check.note_due();
        }
        if let Some(rotation) = &self.rotation {
            if rotation.is_ready() {
                return true;
            }
            rotation.quiet_pollers();
        }
        // That of a rotating set is always readable.
        if let Some(nesting) = self.nesting()
            && (self.rotation.is_some() || kernel::is_readable(&nesting.fd))
        {
            let heard = self.empty_nesting(set);
            let is_ready = heard.core && set.has_ready();
            if heard.core {
                self.wake_another(set);
            }
            if is_ready {
                if heard.queued && (!for_item || set.watched_by.has_several()) {
                    // The sets above may check too late for the kernel to wake them. An item that
                    // polls needs no wakeup.
                    set.wake_watchers();
                }
                return true;
            }
        }
        self.rotation.is_none() && self.has_ready_members(set)
    }

    fn harvest_both(&self, set: &Set, out: &mut [Event]) -> usize {
        self.harvest_with(set, out, |out| set.harvest(out))
    }

    #[inline]
    fn restore_found_lost(&self, description: &Description<Set>) -> Result<(), Errno> {
        if self.is_found_lost() {
            self.restore(description)?;
        }
        if self.nesting().is_some()
            && let Some(begun) = self.last_check.due()
        {
            let set = description.object();
            self.restore_below(set)?;
            // A process that has lost a notifier of a shared eventfd cannot trigger it.
            if self.hear_all(set) {
                set.wake_watchers();
            }
            self.last_check.done(begun);
        }
        Ok(())
    }

    #[inline]
    fn is_found_lost(&self) -> bool {
        self.is_half_restored()
            || self.first.fd.is_found_lost()
            || self
                .nesting
                .get()
                .is_some_and(|nesting| nesting.fd.is_found_lost())
            || self.rotation.as_ref().is_some_and(Rotation::is_found_lost)
            || self
                .shown
                .get()
                .is_some_and(|shown| shown.ready.fd.is_found_lost())
    }

    #[inline]
    fn losses(&self) -> u32 {
        own_fds::losses()
    }

    fn nest_in(&self, inner: &Description, outer: &Description<Set>) -> Result<(), Errno> {
        let above = EpollBackend::ensure_nesting(outer)?;
        above.ensure_own_intact(outer)?;
        above.link(&outer.object().lock(), inner, Renew::No)?;
        EpollBackend::tell_hidden(outer)
    }

    fn nested_changed(&self, locked: &LockedSet<'_>, inner: &Description) {
        // It can only fail where it adds something, and something has gone.
        let _ = self.link(locked, inner, Renew::No);
    }

    fn listen(&self, locked: &LockedSet<'_>, counter: &Description) -> Result<(), Errno> {
        self.listen_to(locked, counter)
    }

    fn has_silent_members(&self) -> bool {
        self.members.load(Ordering::SeqCst) > 0 || !self.listening.lock().is_empty()
    }

    fn attend(&self, set: &Description<Set>) -> Result<(), Errno> {
        self.begin_attendance(set)
    }

    fn end_attendance(&self, set: &Set) {
        self.leave_attendant(|| !set.has_callbacks());
    }

    fn close(&self) {
        self.leave_attendant(|| true);
        self.close_shown();
    }

    fn has_source(&self) -> bool {
        self.rotation.as_ref().is_some_and(Rotation::has_source)
    }

    fn had_turn(&self, slot: u32) {
        self.choose(slot, true);
    }

    fn apply_slack(&self, set: &Set) {
        if let Some(rotation) = &self.rotation {
            rotation.apply_slack(set);
        }
    }

    fn left_turn(&self, slot: u32) {
        self.left(slot);
    }

    fn has_ready_members(&self) -> bool {
        self.members.load(Ordering::Relaxed) > 0 && kernel::is_readable(&self.first.fd)
    }

    fn has_level_source(&self) -> bool {
        let is_level = |rotation: &Rotation| rotation.is_level.load(Ordering::Relaxed);
        self.rotation.as_ref().is_some_and(is_level)
    }

    fn count(&self) -> usize {
        #[cfg(not(upoll_loom))]
        return self.count_members();
        #[cfg(upoll_loom)]
        self.members.load(Ordering::Relaxed)
    }

    #[cfg(upoll_loom)]
    fn show_fdinfo(&self, _: &mut dyn fmt::Write) -> fmt::Result {
        Ok(())
    }

    #[cfg(not(upoll_loom))]
    fn show_fdinfo(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.show_members(out)
    }
}

/// Makes the lost kernel sets of a set anew. If that fails the next call on the set tries again.
pub(crate) fn restore_lost(target: Target<'_>) {
    if let Target::File(file) = target
        && let Some(set) = set_of(file.description())
        && let Some(backend) = EpollBackend::of(set.object())
    {
        let _ = backend.ensure_intact(set);
    }
}

#[cfg(all(test, not(upoll_loom)))]
mod tests {
    use super::EpollBackend;
    use crate::epoll::backend::KernelBackend;
    use crate::sync::Ordering;
    use crate::wait::Deferred;
    use crate::{Epoll, Event, Events};

    #[test]
    fn as_many_threads_count_as_woken_as_wakeups_are_on_their_way() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let set = Epoll::new().unwrap();
        set.add(&reader, Event::new(Events::IN, 0)).unwrap();
        let backend = EpollBackend::of(set.set()).unwrap();
        backend.first.asleep.store(2, Ordering::SeqCst);
        let mut deferred = Deferred::new();
        backend.wake_one(&mut deferred);
        assert!(backend.has_unwoken_thread());
        backend.wake_one(&mut deferred);
        assert!(!backend.has_unwoken_thread());
        drop(deferred);
        // One thread takes both, and the other sleeps on.
        backend.first.asleep.store(1, Ordering::SeqCst);
        assert_eq!(set.try_wait(&mut [Event::default(); 4]), Ok(0));
        assert!(backend.has_unwoken_thread());
        backend.first.asleep.store(0, Ordering::SeqCst);
    }
}
