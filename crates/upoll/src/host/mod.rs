//! The kernel side of a set: its members that are descriptors of the kernel.
//!
//! The layer between the core and sleeping threads. It gives a set a [`Companion`]: a kernel epoll
//! set in which the descriptors are registered with the user's own data, and in which threads of
//! such a set sleep. So level, edge, oneshot and exclusive interests in descriptors mean exactly
//! what the kernel means by them. A bell ([`bell`]) rouses a thread there when something in the
//! core becomes ready, and a set that watches another one with a kernel side has that one's kernel
//! set in its own ([`nested`]). The source of a rotating set is watched by each worker's kernel set
//! separately ([`rotation`]).
//!
//! # Numbers
//! The kernel knows an interest by open file and number. A number that the user closes may mean
//! something else the next moment; no call here acts on such a number unless the user has just
//! passed it, or the kernel has confirmed that it still means the same.

mod bell;
pub(crate) mod kernel;
mod nested;
mod rotation;
mod special;

pub(crate) use self::kernel::SignalMask;

use std::any::Any;
use std::fmt;
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use smallvec::SmallVec;

use self::bell::Bell;
use self::nested::{Links, Renew};
use self::rotation::Rotation;
use self::special::{Special, Specials};
use crate::epoll::companion::Companion;
use crate::epoll::interest::Interests;
use crate::epoll::nesting::sets_above;
use crate::epoll::{Epoll, Op, Set};
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::file::Description;
use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering};
use crate::wait::Deferred;

/// The part of a set that the kernel keeps.
pub(crate) struct KernelSide {
    /// The kernel set that threads sleep in. A set's members are in it, except a rotating set's.
    set: OwnedFd,
    bell: Arc<Bell>,
    specials: Specials,
    /// Threads that sleep in `set`, or are about to. Pairs with the core's `pending`: a thread
    /// counts itself, then looks at `pending`; a wake queues an item, then looks here.
    asleep: AtomicUsize,
    /// At least as many as there are members: those that left by being closed are not missed.
    members: AtomicUsize,
    /// Whose turn it is to fill a report first, so that neither side starves the other.
    core_first: AtomicBool,
    /// Kernel sides below. The lock nests inside the set's lock.
    links: Mutex<Links>,
    /// All that watch this set know of `set`.
    known_above: AtomicBool,
    /// Held while `is_ready` has the specials masked. Nests inside all other locks.
    masking: Mutex<()>,
    /// What only a rotating set has.
    rotation: Option<Rotation>,
    /// Slots of items whose rotating set's source has chosen this set since it last slept.
    chosen: Mutex<SmallVec<[u32; 2]>>,
    has_chosen: AtomicBool,
}

const EDGE: Events = Events::IN.union(Events::ET);

impl KernelSide {
    fn new(set: &Set) -> Result<Self, Errno> {
        let side = KernelSide {
            set: kernel::epoll_create()?,
            bell: Bell::new()?,
            specials: Specials::new(),
            asleep: AtomicUsize::new(0),
            members: AtomicUsize::new(0),
            core_first: AtomicBool::new(false),
            links: Mutex::new(Links::new()),
            known_above: AtomicBool::new(false),
            masking: Mutex::new(()),
            rotation: match set.rotates() {
                true => Some(Rotation::new()?),
                false => None,
            },
            chosen: Mutex::new(SmallVec::new()),
            has_chosen: AtomicBool::new(false),
        };
        side.register(Op::Add, side.bell.fd.as_raw_fd(), EDGE, Special::Bell)?;
        Ok(side)
    }

    /// The kernel side of `set`, if it has one.
    pub(crate) fn of(set: &Set) -> Option<&Self> {
        let companion: &dyn Any = set.companion()?;
        companion.downcast_ref()
    }

    /// The kernel side of a set, which has one from now on.
    ///
    /// `EMFILE`, `ENFILE`, `ENOMEM`: the kernel gives no descriptors for it.
    pub(crate) fn ensure(description: &Description<Set>) -> Result<&Self, Errno> {
        let set = description.object();
        set.companion_or_insert(|| Ok(Box::new(KernelSide::new(set)?)))?;
        let Some(side) = Self::of(set) else {
            unreachable!("a set has no other companion")
        };
        if !side.known_above.load(Ordering::Acquire) {
            // Whoever is linked above but not found here finds the companion itself.
            for above in sets_above(description.watchers()) {
                side.nest_in(description, &above)?;
            }
            side.known_above.store(true, Ordering::Release);
        }
        Ok(side)
    }

    /// The kernel set that holds the members, which are the source for a rotating set.
    fn members(&self) -> &OwnedFd {
        match &self.rotation {
            Some(rotation) => &rotation.members,
            None => &self.set,
        }
    }

    /// Registers one of our own descriptors.
    fn register(&self, op: Op, fd: i32, events: Events, special: Special) -> Result<(), Errno> {
        let interest = Event::new(events, self.specials.encode(special));
        kernel::epoll_ctl(&self.set, op, fd, interest)
    }

    /// Fills `out` with members that are ready, and tells the core of what is ready below.
    pub(crate) fn take(&self, set: &Set, out: &mut [Event]) -> usize {
        if self.rotation.is_some() {
            if !self.links.lock().is_empty() {
                self.take_from_set(set, &mut [Event::default(); 8]);
            }
            return kernel::epoll_wait(self.members(), out, kernel::AT_ONCE, None).unwrap_or(0);
        }
        if self.members.load(Ordering::Relaxed) == 0 && self.links.lock().is_empty() {
            return 0;
        }
        self.take_from_set(set, out)
    }

    fn take_from_set(&self, set: &Set, out: &mut [Event]) -> usize {
        loop {
            // `out` is memory of ours and the limit is zero, so there is nothing to fail.
            let found = kernel::epoll_wait(&self.set, out, kernel::AT_ONCE, None).unwrap_or(0);
            let kept = self.sift(set, &mut out[..found]);
            if kept > 0 || found == 0 {
                return kept;
            }
        }
    }

    /// Sleeps in the kernel set until something happens; what of it is the user's is in `out`
    /// afterwards, and what is the core's has been queued there.
    ///
    /// `EINTR`: a signal handler ran.
    pub(crate) fn sleep(
        &self,
        set: &Set,
        out: &mut [Event],
        limit: Option<libc::timespec>,
        mask: SignalMask<'_>,
    ) -> Result<Slept, Errno> {
        self.asleep.fetch_add(1, Ordering::SeqCst);
        // Counted, now look: whoever queued something before that did not ring.
        let limit = if set.is_pending() {
            kernel::AT_ONCE
        } else {
            limit
        };
        let found = kernel::epoll_wait(&self.set, out, limit, mask);
        self.asleep.fetch_sub(1, Ordering::SeqCst);
        let found = found?;
        Ok(Slept {
            woken: found > 0,
            kept: self.sift(set, &mut out[..found]),
        })
    }

    /// Keeps the user's events, in their order, and acts on the others.
    fn sift(&self, set: &Set, events: &mut [Event]) -> usize {
        let mut kept = 0;
        let mut below = SmallVec::<[Special; 4]>::new();
        for at in 0..events.len() {
            let event = events[at];
            match self.specials.decode(event.data()) {
                None => {
                    events[kept] = event;
                    kept += 1;
                }
                Some(Special::Bell) => self.bell.rung.store(false, Ordering::SeqCst),
                Some(special) => below.push(special),
            }
        }
        if !below.is_empty() {
            self.kick(set, &below);
        }
        kept
    }

    /// As [`Companion::harvest_both`], with `core` to fill in what is ready in the core.
    pub(crate) fn harvest_with(
        &self,
        set: &Set,
        out: &mut [Event],
        core: impl Fn(&mut [Event]) -> usize,
    ) -> usize {
        if self.core_first.fetch_xor(true, Ordering::Relaxed) {
            let filled = core(out);
            let filled = filled + self.take_rest(set, &mut out[filled..]);
            if filled == 0 && set.is_pending() {
                return core(out);
            }
            return filled;
        }
        let filled = self.take(set, out);
        if filled == out.len() || !set.is_pending() {
            return filled;
        }
        filled + core(&mut out[filled..])
    }

    fn take_rest(&self, set: &Set, out: &mut [Event]) -> usize {
        if out.is_empty() {
            return 0;
        }
        self.take(set, out)
    }

    /// Whether the kernel set has anything but specials to report. Nothing is consumed: the
    /// specials are masked for a moment, which takes them off the kernel's ready list.
    fn has_ready_members(&self, set: &Set) -> bool {
        let links = self.links.lock();
        let _masking = self.masking.lock();
        let mask = |events| {
            // These are registered, so MOD does not fail.
            let _ = self.register(Op::Mod, self.bell.fd.as_raw_fd(), events, Special::Bell);
            links.reregister(self, events);
        };
        mask(Events::empty());
        let ready = kernel::is_readable(&self.set);
        kernel::eventfd_drain(&self.bell.fd);
        self.bell.rung.store(false, Ordering::SeqCst);
        mask(EDGE);
        if set.is_pending() && self.is_awaited() {
            // What was masked may have been on its way to a thread.
            self.bell.ring();
        }
        ready
    }

    /// What `/proc` says of a kernel set, less the specials: a line for each member.
    fn member_lines(&self, mut line: impl FnMut(&str) -> fmt::Result) -> fmt::Result {
        let path = format!("/proc/self/fdinfo/{}", self.members().as_raw_fd());
        // Without /proc nothing is known of the kernel's members.
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines()
            .filter(|text| text.starts_with("tfd:"))
            .filter(|text| {
                let mut data = text.split_whitespace().skip_while(|&word| word != "data:");
                let data = data.nth(1);
                let data = data.and_then(|data| u64::from_str_radix(data, 16).ok());
                data.is_none_or(|data| {
                    self.rotation.is_some() || self.specials.decode(data).is_none()
                })
            })
            .try_for_each(&mut line)
    }
}

/// What a sleep brought.
pub(crate) struct Slept {
    /// Events of the user's.
    pub(crate) kept: usize,
    /// It did not end for its time limit.
    pub(crate) woken: bool,
}

impl Companion for KernelSide {
    #[inline]
    fn is_awaited(&self) -> bool {
        self.asleep.load(Ordering::SeqCst) != 0
    }

    fn ring(&self, deferred: &mut Deferred) {
        self.bell.ring_later(deferred);
    }

    fn is_ready(&self, set: &Set) -> bool {
        if self.rotation.is_some() && kernel::is_readable(self.members()) {
            return true;
        }
        if !kernel::is_readable(&self.set) {
            return false;
        }
        if !self.links.lock().is_empty() {
            self.kick_all(set);
            if set.has_ready() {
                return true;
            }
        } else if !self.bell.rung.load(Ordering::SeqCst) {
            return true;
        }
        self.rotation.is_none() && self.has_ready_members(set)
    }

    fn harvest_both(&self, set: &Set, out: &mut [Event]) -> usize {
        self.harvest_with(set, out, |out| set.harvest(out))
    }

    fn nest_in(&self, inner: &Description, outer: &Description<Set>) -> Result<(), Errno> {
        let above = KernelSide::ensure(outer)?;
        let interests = outer.object().inner.lock();
        above.link(outer.object(), &interests, inner, Renew::No)
    }

    fn nested_changed(&self, set: &Set, interests: &Interests, inner: &Description) {
        // It can only fail where it adds something, and something has gone.
        let _ = self.link(set, interests, inner, Renew::No);
    }

    fn has_source(&self) -> bool {
        self.rotation.as_ref().is_some_and(Rotation::has_source)
    }

    fn len(&self) -> usize {
        let mut count = 0;
        let counted = self.member_lines(|_| {
            count += 1;
            Ok(())
        });
        debug_assert!(counted.is_ok(), "counting does not fail");
        count
    }

    fn show_fdinfo(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let alias_of = self.rotation.as_ref().and_then(Rotation::number);
        self.member_lines(|line| match alias_of {
            // The kernel knows the source by the alias; the user's number has the same width.
            Some(number) => writeln!(out, "tfd: {number:8}{}", line.get(13..).unwrap_or("")),
            None => writeln!(out, "{line}"),
        })
    }
}

/// `epoll_ctl(2)` for a descriptor of the kernel. The errors are the kernel's.
pub(crate) fn ctl(epoll: &Epoll, op: Op, fd: BorrowedFd<'_>, interest: Event) -> Result<(), Errno> {
    let side = KernelSide::ensure(epoll.description())?;
    let number = fd.as_raw_fd();
    if let Some(rotation) = &side.rotation {
        rotation.ctl(epoll, op, number, interest)?;
    } else {
        kernel::epoll_ctl(&side.set, op, number, interest)?;
    }
    match op {
        Op::Add => {
            side.members.fetch_add(1, Ordering::Relaxed);
        }
        Op::Del => {
            side.members.fetch_sub(1, Ordering::Relaxed);
        }
        Op::Mod => {}
    }
    Ok(())
}
