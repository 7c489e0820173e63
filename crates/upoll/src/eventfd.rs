//! `eventfd(2)`: a counter that can be waited for.

#[cfg(any(feature = "std", upoll_loom))]
pub(crate) mod listeners;
#[cfg(upoll_loom)]
mod model;

#[cfg(upoll_loom)]
pub use self::model::SharedModel;

use alloc::boxed::Box;
use core::fmt;

use bitflags::bitflags;
use once_cell::race::OnceBox;

use crate::errno::Errno;
use crate::events::Events;
use crate::file::{File, InKernel, KernelSource, PollTable, Pollable};
use crate::memory::{boxed, text_of};
use crate::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, Rule, broken};
use crate::target::is_source;
use crate::wait::WaitQueue;

bitflags! {
    /// The kind of counter to make: the argument of `eventfd(2)`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct EventFdFlags: u32 {
        /// `EFD_SEMAPHORE`: a read takes one, not all.
        const SEMAPHORE = 1;
        /// `EFD_NONBLOCK`: blocking calls fail with `EAGAIN` instead of waiting.
        const NONBLOCK = 0o4_000;
        /// `EFD_CLOEXEC`: meaningful once the object has an fd; accepted here.
        const CLOEXEC = 0o2_000_000;
        const _ = !0;
    }
}

impl EventFdFlags {
    /// `EINVAL`: there is a bit among them that has no name.
    pub(crate) fn check(self) -> Result<(), Errno> {
        let known = Self::SEMAPHORE | Self::NONBLOCK | Self::CLOEXEC;
        if (self - known).is_empty() {
            Ok(())
        } else {
            Err(Errno::INVAL)
        }
    }
}

/// The maximum until one is set: a write must leave the count below it, and only `signal` reaches
/// it.
const NO_MAXIMUM: u64 = u64::MAX;

/// The counter behind the handles (`struct eventfd_ctx`).
///
/// Without a maximum the count is one atomic word. A maximum and the count must be read and changed
/// as one. So as long as there is a maximum, both are behind a lock, and the word is [`LIMITED`]. A
/// change under way that relies on the word alone fails at its compare-and-swap and starts again.
/// The count of a shared counter is never in the word.
pub(crate) struct Counter {
    /// The count, or [`LIMITED`].
    word: AtomicU64,
    /// The count while `word` is [`LIMITED`]; made when it is first needed.
    beyond: OnceBox<Beyond>,
    /// Readers, writers and sets alike, as in Linux. Not used by a shared counter.
    queue: WaitQueue,
    /// All that the object was made with; `NONBLOCK` may change.
    flags: AtomicU32,
}

/// In [`Counter::word`]: the count is elsewhere. A count of that value, which only `signal` brings
/// about, is kept there, too.
const LIMITED: u64 = u64::MAX;

#[derive(Clone, Copy)]
pub(crate) struct Limited {
    pub(crate) count: u64,
    pub(crate) maximum: u64,
}

/// The place of a count that is not in the word.
enum Beyond {
    /// Behind a lock, which is held to write or replace what it guards. Nothing is locked inside it.
    Local(Mutex<Limited>),
    /// In memory that other processes have, too.
    #[cfg_attr(
        all(not(feature = "std"), not(upoll_loom)),
        expect(dead_code, reason = "needs std")
    )]
    Shared(Box<dyn SharedCount>),
}

/// The waiters that a change concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Readers.
    In,
    /// Writers.
    Out,
}

#[cfg(any(feature = "std", upoll_loom))]
impl Direction {
    /// Returns the events of a wakeup for such a change.
    pub(crate) fn key(self) -> Events {
        match self {
            Direction::In => Events::IN,
            Direction::Out => Events::OUT,
        }
    }
}

/// Computes the next count and maximum from the present ones.
pub(crate) type Step<'a> = &'a dyn Fn(Limited) -> Result<Limited, Errno>;

/// A count and its maximum in memory that several processes share.
pub(crate) trait SharedCount: InKernel {
    /// Applies `step`, and wakes the waiters in this and other processes. Returns the state before.
    fn change(&self, direction: Direction, step: Step<'_>) -> Result<Limited, Errno>;

    fn check(&self) -> Limited;

    /// Woken by changes that this process makes, and by no others.
    fn queue(&self) -> &WaitQueue;

    /// The last reference in this process is gone.
    fn release(&self);
}

impl Counter {
    #[inline]
    fn flags(&self) -> EventFdFlags {
        EventFdFlags::from_bits_retain(self.flags.load(Ordering::Relaxed))
    }

    fn is_semaphore(&self) -> bool {
        self.flags().contains(EventFdFlags::SEMAPHORE)
    }

    /// Replaces the count by the result of `step` on the count and the maximum. Returns the old
    /// count. The caller then wakes `queue`.
    #[inline]
    fn change(
        &self,
        direction: Direction,
        step: impl Fn(Limited) -> Result<u64, Errno>,
    ) -> Result<u64, Errno> {
        // The usual case by itself, so that it needs no stack.
        let count = self.word.load(Ordering::Relaxed);
        if count != LIMITED
            && let Ok(new) = step(Limited::without_maximum(count))
            && new != LIMITED
            && self
                .word
                .compare_exchange(count, new, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
        {
            return Ok(count);
        }
        self.change_with_care(direction, step)
    }

    #[cold]
    #[inline(never)]
    fn change_with_care(
        &self,
        direction: Direction,
        step: impl Fn(Limited) -> Result<u64, Errno>,
    ) -> Result<u64, Errno> {
        let mut count = self.word.load(Ordering::Relaxed);
        loop {
            if count == LIMITED {
                let before = self.change_beyond(direction, &|now| {
                    step(now).map(|count| Limited { count, ..now })
                })?;
                return Ok(before.count);
            }
            let new = match step(Limited::without_maximum(count)) {
                Ok(new) => new,
                Err(errno) => {
                    // The relaxed load may have been stale, and a thread that blocks relies on this
                    // result.
                    let now = self.word.load(Ordering::SeqCst);
                    if now == count {
                        return Err(errno);
                    }
                    count = now;
                    continue;
                }
            };
            if new == LIMITED {
                count = LIMITED;
                continue;
            }
            match self
                .word
                .compare_exchange_weak(count, new, Ordering::SeqCst, Ordering::Relaxed)
            {
                Ok(_) => return Ok(count),
                Err(now) => count = now,
            }
        }
    }

    #[cold]
    pub(crate) fn change_beyond(
        &self,
        direction: Direction,
        step: Step<'_>,
    ) -> Result<Limited, Errno> {
        match self.beyond()? {
            Beyond::Shared(shared) => shared.change(direction, step),
            Beyond::Local(limited) => {
                let mut limited = self.limit(limited);
                let result = step(*limited).map(|new| core::mem::replace(&mut *limited, new));
                self.unlimit(&limited);
                result
            }
        }
    }

    /// Returns what is beyond the word, making it if need be.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    fn beyond(&self) -> Result<&Beyond, Errno> {
        let limited = || Beyond::Local(Mutex::new(Limited::without_maximum(0)));
        self.beyond.get_or_try_init(|| boxed(limited()))
    }

    #[inline]
    fn shared(&self) -> Option<&dyn SharedCount> {
        match self.beyond.get()? {
            Beyond::Shared(shared) => Some(&**shared),
            Beyond::Local(_) => None,
        }
    }

    /// Apart from `poll`, which needs no stack without it.
    #[inline(never)]
    fn register<'q>(&'q self, table: &mut PollTable<'q>) {
        table.register(self.shared().map_or(&self.queue, SharedCount::queue));
    }

    /// Moves the count behind the lock, and locks it.
    fn limit<'a>(&self, limited: &'a Mutex<Limited>) -> MutexGuard<'a, Limited> {
        let mut limited = limited.lock();
        if self.word.load(Ordering::Relaxed) != LIMITED {
            let count = if broken(Rule::MoveCountInOneStep) {
                let count = self.word.load(Ordering::SeqCst);
                self.word.store(LIMITED, Ordering::SeqCst);
                count
            } else {
                self.word.swap(LIMITED, Ordering::SeqCst)
            };
            *limited = Limited::without_maximum(count);
        }
        limited
    }

    /// Moves the count back into the word if there is no need for the lock.
    fn unlimit(&self, limited: &Limited) {
        if limited.maximum == NO_MAXIMUM && limited.count != LIMITED {
            self.word.store(limited.count, Ordering::SeqCst);
        }
    }

    #[inline]
    pub(crate) fn check(&self) -> Limited {
        match self.word.load(Ordering::SeqCst) {
            LIMITED => self.check_beyond(),
            count => Limited::without_maximum(count),
        }
    }

    #[cold]
    #[inline(never)]
    fn check_beyond(&self) -> Limited {
        let limited = match self.beyond.get() {
            // The word is `LIMITED` only while there is something beyond it.
            None => return Limited::without_maximum(LIMITED),
            Some(Beyond::Shared(shared)) => return shared.check(),
            Some(Beyond::Local(limited)) => limited,
        };
        let limited = limited.lock();
        match self.word.load(Ordering::SeqCst) {
            LIMITED => *limited,
            // It was moved back, under this lock, so this is no older than the first read.
            count => Limited::without_maximum(count),
        }
    }

    /// Takes count and maximum, if `may_go` with that maximum.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    pub(crate) fn demote(&self, may_go: impl Fn(u64) -> bool) -> Result<Option<Limited>, Errno> {
        let Beyond::Local(limited) = self.beyond()? else {
            return Ok(None);
        };
        let mut limited = self.limit(limited);
        if limited.is_stale() || !may_go(limited.maximum) {
            self.unlimit(&limited);
            return Ok(None);
        }
        let was = core::mem::replace(&mut *limited, STALE);
        drop(limited);
        self.queue.wake_all(Events::HUP);
        Ok(Some(was))
    }

    fn set_maximum(&self, maximum: u64) -> Result<(), Errno> {
        self.change_beyond(Direction::Out, &|now| {
            if now.count >= maximum || now.is_stale() {
                Err(Errno::INVAL)
            } else {
                Ok(Limited { maximum, ..now })
            }
        })?;
        self.queue.wake(Events::OUT);
        Ok(())
    }
}

/// No maximum is ever 0 else: nothing fits, and there is nothing to read.
const STALE: Limited = Limited {
    count: 0,
    maximum: 0,
};

impl Limited {
    fn is_stale(self) -> bool {
        self.maximum == STALE.maximum
    }

    #[inline]
    pub(crate) fn without_maximum(count: u64) -> Self {
        Limited {
            count,
            maximum: NO_MAXIMUM,
        }
    }

    #[inline]
    fn events(self) -> Events {
        if self.is_stale() {
            return Events::HUP;
        }
        let only_if = |is_so: bool, events: Events| {
            Events::from_bits_retain(u32::from(is_so) * events.bits())
        };
        only_if(self.count > 0, Events::IN)
            | only_if(self.count == self.maximum, Events::ERR)
            | only_if(self.maximum - 1 > self.count, Events::OUT)
    }

    /// Returns whether adding `value` keeps the count below the maximum.
    fn fits(self, value: u64) -> bool {
        self.maximum > self.count && self.maximum - self.count > value
    }
}

impl Pollable for Counter {
    #[inline]
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        if table.registers() {
            self.register(table);
        }
        let count = self.word.load(Ordering::SeqCst);
        if count == LIMITED {
            return self.check_beyond().events();
        }
        Limited::without_maximum(count).events()
    }

    fn release(&self) {
        self.queue.wake(Events::HUP);
        if let Some(shared) = self.shared() {
            shared.release();
        }
    }

    #[inline]
    fn kernel_source(&self) -> Option<KernelSource<'_>> {
        self.shared().map(|shared| KernelSource(shared))
    }

    fn show_fdinfo(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let Limited { count, maximum } = self.check();
        writeln!(out, "eventfd-count: {count:16x}")?;
        writeln!(out, "eventfd-semaphore: {}", i32::from(self.is_semaphore()))?;
        writeln!(out, "eventfd-maximum: {maximum:16x}")
    }
}

/// A user-level eventfd: a 64-bit counter that sets, `poll` and `select` can watch.
///
/// A write keeps the count below a maximum, which is `u64::MAX` unless
/// [`set_maximum`](Self::set_maximum) changes it. A write that does not fit fails with `EAGAIN`;
/// the blocking call waits. So writers are held back by a slow reader.
///
/// Readiness is as in Linux 6.18, and with a maximum as in the eventfd-maximum patch. `IN` iff the
/// count is above 0, `OUT` iff it is below the maximum less one, `ERR` iff it is the maximum, which
/// only [`signal`](Self::signal) can reach. Every write wakes readers, even of 0 and even if
/// nothing was read since the last, so an edge-triggered interest reports each. Every read wakes
/// writers, and so does a new maximum.
///
/// With `std` there is `EventFd::shared`, too: a counter that a process shares with the children it
/// forks.
///
/// # Example
/// ```
/// use upoll::{Errno, EventFd};
///
/// let counter = EventFd::new(0)?;
/// counter.try_write(2)?;
/// counter.try_write(3)?;
/// assert_eq!(counter.try_read(), Ok(5));
/// assert_eq!(counter.try_read(), Err(Errno::AGAIN));
/// # Ok::<(), Errno>(())
/// ```
#[derive(Clone, Debug)]
#[doc(alias = "eventfd")]
pub struct EventFd {
    file: File<Counter>,
}

impl EventFd {
    /// `eventfd(initial, 0)`.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    pub fn new(initial: u32) -> Result<Self, Errno> {
        Self::with_flags(initial, EventFdFlags::empty())
    }

    /// `eventfd(initial, flags)`.
    ///
    /// # Errors
    /// `EINVAL`: `flags` holds a bit that [`EventFdFlags`] does not name. `ENOMEM`: there is no memory
    /// for it.
    pub fn with_flags(initial: u32, flags: EventFdFlags) -> Result<Self, Errno> {
        flags.check()?;
        Self::with_counter(u64::from(initial), OnceBox::new(), flags)
    }

    fn with_counter(
        word: u64,
        beyond: OnceBox<Beyond>,
        flags: EventFdFlags,
    ) -> Result<Self, Errno> {
        let file = File::try_new(Counter {
            word: AtomicU64::new(word),
            beyond,
            queue: WaitQueue::new(),
            flags: AtomicU32::new(flags.bits()),
        })?;
        Ok(EventFd { file })
    }

    /// A counter whose count is where other processes have it, too.
    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) fn with_shared_count(
        count: Box<dyn SharedCount>,
        flags: EventFdFlags,
    ) -> Result<Self, Errno> {
        let beyond = OnceBox::with_value(boxed(Beyond::Shared(count))?);
        Self::with_counter(LIMITED, beyond, flags)
    }

    /// Adds `value` without waiting.
    ///
    /// # Errors
    /// `EINVAL`: `value` is `u64::MAX`. `EAGAIN`: the sum would reach the maximum, or the counter was
    /// [demoted](Self::demote).
    #[inline]
    pub fn try_write(&self, value: u64) -> Result<(), Errno> {
        if value == u64::MAX {
            return Err(Errno::INVAL);
        }
        let counter = &*self.file;
        counter.change(Direction::In, |now| {
            let fits = now.fits(value);
            fits.then(|| now.count + value).ok_or(Errno::AGAIN)
        })?;
        counter.queue.wake_published(Events::IN);
        Ok(())
    }

    /// Takes the count, or one of it from a semaphore, without waiting.
    ///
    /// # Errors
    /// `EAGAIN`: the count is 0, as it is once the counter was [demoted](Self::demote).
    #[inline]
    pub fn try_read(&self) -> Result<u64, Errno> {
        let counter = &*self.file;
        let is_semaphore = counter.is_semaphore();
        let count = counter.change(Direction::Out, |now| match now.count {
            0 => Err(Errno::AGAIN),
            count if is_semaphore => Ok(count - 1),
            _ => Ok(0),
        })?;
        counter.queue.wake_published(Events::OUT);
        Ok(if is_semaphore { 1 } else { count })
    }

    /// Adds one without failing or waiting for room, as `eventfd_signal` does in the kernel: for
    /// producers that may not wait. The count may reach the maximum, which shows as `ERR`, and
    /// stays there. Readers are woken each time. A [demoted](Self::demote) counter stays at 0.
    pub fn signal(&self) {
        let counter = &*self.file;
        let signalled = counter.change(Direction::In, |now| {
            Ok(now.count.saturating_add(1).min(now.maximum))
        });
        debug_assert!(signalled.is_ok(), "the step never fails");
        counter.queue.wake(Events::IN);
    }

    /// `EFD_IOC_SET_MAXIMUM`: writes keep the count below `maximum` from now on.
    ///
    /// Wakes the waiting writers, which check again. The maximum belongs to the open file: all
    /// references to it share it. `u64::MAX` takes it away.
    ///
    /// # Errors
    /// `EINVAL`: the count is `maximum` already or above it, as is always so for 0; or the counter was
    /// [demoted](Self::demote). `ENOMEM`: there is no memory for it.
    ///
    /// # Example
    /// ```
    /// use upoll::{Errno, EventFd};
    /// let counter = EventFd::new(0)?;
    /// counter.set_maximum(3)?;
    /// counter.try_write(2)?;
    /// assert_eq!(counter.try_write(1), Err(Errno::AGAIN));
    /// assert_eq!(counter.set_maximum(2), Err(Errno::INVAL));
    /// # Ok::<(), Errno>(())
    /// ```
    #[doc(alias = "EFD_IOC_SET_MAXIMUM")]
    pub fn set_maximum(&self, maximum: u64) -> Result<(), Errno> {
        self.file.set_maximum(maximum)
    }

    /// `EFD_IOC_GET_MAXIMUM`: returns the maximum; `u64::MAX` if none was set, and 0 once the counter was
    /// [demoted](Self::demote).
    #[must_use]
    #[doc(alias = "EFD_IOC_GET_MAXIMUM")]
    pub fn maximum(&self) -> u64 {
        self.file.check().maximum
    }

    /// Takes the count for good, to continue it elsewhere: in the kernel, when a second process is
    /// to share it. Returns None, and does nothing, if there is a maximum, if it has been demoted
    /// before, or if it is shared.
    ///
    /// From then on calls that do not wait fail with `EAGAIN`, and calls that wait with `ESTALE`, also if
    /// they began before. Polls show `HUP`. There is no way back.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it; nothing is done then.
    ///
    /// # Example
    /// ```
    /// use upoll::{Errno, EventFd};
    /// let counter = EventFd::new(3)?;
    /// assert_eq!(counter.demote(), Ok(Some(3)));
    /// assert_eq!(counter.try_write(1), Err(Errno::AGAIN));
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn demote(&self) -> Result<Option<u64>, Errno> {
        let demoted = self.file.demote(|maximum| maximum == NO_MAXIMUM)?;
        Ok(demoted.map(|was| was.count))
    }

    /// Takes the memory that [`demote`](Self::demote) needs, which cannot fail after that.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    #[doc(hidden)]
    pub fn prepare_to_demote(&self) -> Result<(), Errno> {
        self.file.beyond().map(drop)
    }

    /// Returns the count, if this is the only reference, no set watches it, and there is no maximum: for a caller
    /// that goes on with it elsewhere, as after [`demote`](Self::demote), and drops this reference next.
    #[doc(hidden)]
    #[must_use]
    pub fn count_before_drop(&self) -> Option<u64> {
        if !self.file.is_alone() {
            return None;
        }
        let count = self.file.word.load(Ordering::Relaxed);
        (count != LIMITED).then_some(count)
    }

    /// Returns whether it has been [demoted](Self::demote).
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.file.check().is_stale()
    }

    /// Returns whether reads take one at a time.
    #[must_use]
    pub fn is_semaphore(&self) -> bool {
        self.file.is_semaphore()
    }

    /// Returns the flags it was made with, and whether it is `NONBLOCK` now (`F_GETFL`).
    #[must_use]
    pub fn flags(&self) -> EventFdFlags {
        self.file.flags()
    }

    /// Changes the status flag `NONBLOCK` of the open file (`F_SETFL`); others are ignored. Calls
    /// that block already go on blocking.
    pub fn set_flags(&self, flags: EventFdFlags) {
        let nonblock = EventFdFlags::NONBLOCK.bits();
        if flags.contains(EventFdFlags::NONBLOCK) {
            self.file.flags.fetch_or(nonblock, Ordering::Relaxed);
        } else {
            self.file.flags.fetch_and(!nonblock, Ordering::Relaxed);
        }
    }

    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.file.flags().contains(EventFdFlags::NONBLOCK)
    }

    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) fn counter(&self) -> &Counter {
        &self.file
    }

    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) fn wait_queue(&self) -> &WaitQueue {
        &self.file.queue
    }

    /// Returns what `/proc/PID/fdinfo` would show.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for the text.
    pub fn fdinfo(&self) -> Result<alloc::string::String, Errno> {
        text_of(|out| self.file.show_fdinfo(out))
    }
}

is_source!(EventFd);
