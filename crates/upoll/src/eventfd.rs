//! `eventfd(2)`: a counter that can be waited for.

use core::fmt;

use bitflags::bitflags;

use crate::errno::Errno;
use crate::events::Events;
use crate::file::{File, FileRef, PollTable, Pollable};
use crate::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, Rule, broken};
use crate::target::{Source, Target};
use crate::wait::WaitQueue;

bitflags! {
    /// What kind of counter to make: the argument of `eventfd(2)`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct EventFdFlags: u32 {
        /// `EFD_SEMAPHORE`: a read takes one, not all.
        const SEMAPHORE = 1;
        /// `EFD_NONBLOCK`: blocking calls give `EAGAIN` instead of waiting.
        const NONBLOCK = 0o4_000;
        /// `EFD_CLOEXEC`: meaningful once the object has a descriptor number; accepted here.
        const CLOEXEC = 0o2_000_000;
        const _ = !0;
    }
}

/// What the maximum is until it is set: a write must leave the count below it, and only `signal`
/// reaches it.
const NO_MAXIMUM: u64 = u64::MAX;

/// The counter behind the handles (`struct eventfd_ctx`).
///
/// Without a maximum the count is one atomic word. A maximum and the count must be read and changed
/// as one, so as long as there is one both are behind a lock and the word says so. A change under
/// way that goes by the word alone fails at its compare-and-swap and starts again.
pub(crate) struct Counter {
    /// The count, or [`LIMITED`].
    word: AtomicU64,
    /// What counts while `word` is [`LIMITED`], which only the holder of this lock writes or
    /// replaces. Nothing is locked inside it.
    limited: Mutex<Limited>,
    /// Readers, writers and sets alike, as in Linux.
    queue: WaitQueue,
    /// All that the object was made with; `NONBLOCK` may change.
    flags: AtomicU32,
}

/// In [`Counter::word`]: the count is behind the lock. A count of that value, which only `signal`
/// brings about, is kept there, too.
const LIMITED: u64 = u64::MAX;

#[derive(Clone, Copy)]
struct Limited {
    count: u64,
    maximum: u64,
}

impl Counter {
    #[inline]
    fn flags(&self) -> EventFdFlags {
        EventFdFlags::from_bits_retain(self.flags.load(Ordering::Relaxed))
    }

    fn is_semaphore(&self) -> bool {
        self.flags().contains(EventFdFlags::SEMAPHORE)
    }

    /// Makes `step` of the count and the maximum the new count; says what the old one was.
    #[inline]
    fn change(&self, step: impl Fn(Limited) -> Result<u64, Errno>) -> Result<u64, Errno> {
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
        self.change_with_care(step)
    }

    #[cold]
    #[inline(never)]
    fn change_with_care(&self, step: impl Fn(Limited) -> Result<u64, Errno>) -> Result<u64, Errno> {
        let mut count = self.word.load(Ordering::Relaxed);
        loop {
            if count == LIMITED {
                return self.change_limited(step);
            }
            let new = match step(Limited::without_maximum(count)) {
                Ok(new) => new,
                Err(errno) => {
                    // What was read relaxed may be stale; one who blocks decides on this.
                    let now = self.word.load(Ordering::SeqCst);
                    if now == count {
                        return Err(errno);
                    }
                    count = now;
                    continue;
                }
            };
            if new == LIMITED {
                drop(self.limit());
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
    fn change_limited(&self, step: impl Fn(Limited) -> Result<u64, Errno>) -> Result<u64, Errno> {
        let mut limited = self.limit();
        let result = step(*limited).map(|new| core::mem::replace(&mut limited.count, new));
        self.unlimit(&limited);
        result
    }

    /// Moves the count behind the lock, and locks it.
    fn limit(&self) -> MutexGuard<'_, Limited> {
        let mut limited = self.limited.lock();
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

    fn look(&self) -> Limited {
        loop {
            let count = self.word.load(Ordering::SeqCst);
            if count != LIMITED {
                return Limited::without_maximum(count);
            }
            let limited = self.limited.lock();
            if self.word.load(Ordering::Relaxed) == LIMITED {
                return *limited;
            }
        }
    }

    fn retire(&self) -> Option<u64> {
        let mut limited = self.limit();
        if limited.maximum != NO_MAXIMUM {
            return None;
        }
        let count = limited.count;
        *limited = RETIRED;
        drop(limited);
        self.queue.wake(Events::HUP);
        Some(count)
    }

    fn set_maximum(&self, maximum: u64) -> Result<(), Errno> {
        let mut limited = self.limit();
        let result = if limited.count >= maximum || limited.is_retired() {
            Err(Errno::INVAL)
        } else {
            limited.maximum = maximum;
            Ok(())
        };
        self.unlimit(&limited);
        drop(limited);
        if result.is_ok() {
            self.queue.wake(Events::OUT);
        }
        result
    }
}

/// No maximum is ever 0 else: nothing fits, and there is nothing to read.
const RETIRED: Limited = Limited {
    count: 0,
    maximum: 0,
};

impl Limited {
    fn is_retired(self) -> bool {
        self.maximum == RETIRED.maximum
    }

    #[inline]
    fn without_maximum(count: u64) -> Self {
        Limited {
            count,
            maximum: NO_MAXIMUM,
        }
    }

    #[inline]
    fn events(self) -> Events {
        if self.is_retired() {
            return Events::HUP;
        }
        let only_if = |is_so: bool, events: Events| {
            Events::from_bits_retain(u32::from(is_so) * events.bits())
        };
        only_if(self.count > 0, Events::IN)
            | only_if(self.count == self.maximum, Events::ERR)
            | only_if(self.maximum - 1 > self.count, Events::OUT)
    }

    /// Whether adding `value` keeps the count below the maximum.
    fn fits(self, value: u64) -> bool {
        self.maximum > self.count && self.maximum - self.count > value
    }
}

impl Pollable for Counter {
    #[inline]
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        let count = self.word.load(Ordering::SeqCst);
        if count == LIMITED {
            let now = self.look();
            return if now.is_retired() {
                Events::HUP
            } else {
                now.events()
            };
        }
        Limited::without_maximum(count).events()
    }

    fn release(&self) {
        self.queue.wake(Events::HUP);
    }

    fn show_fdinfo(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let Limited { count, maximum } = self.look();
        writeln!(out, "eventfd-count: {count:16x}")?;
        writeln!(out, "eventfd-semaphore: {}", i32::from(self.is_semaphore()))?;
        writeln!(out, "eventfd-maximum: {maximum:16x}")
    }
}

/// A user-level eventfd: a 64-bit counter that sets, `poll` and `select` can watch.
///
/// A write keeps the count below a maximum, which is `u64::MAX` unless
/// [`set_maximum`](Self::set_maximum) changes it; a write that does not fit gives `EAGAIN` or, from
/// the blocking call, waits. So writers are held back by a slow reader.
///
/// Readiness as in Linux 6.18, and with a maximum as in seed 2's series: `IN` iff the count is above
/// 0, `OUT` iff it is below the maximum less one, `ERR` iff it is the maximum, where only
/// [`signal`](Self::signal) brings it. Every write wakes readers, even of 0 and even if nothing was
/// read since the last, so an edge-triggered interest reports each; every read wakes writers, and
/// so does a new maximum.
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
    /// None today; it returns a `Result` as `eventfd` does.
    pub fn new(initial: u32) -> Result<Self, Errno> {
        Self::with_flags(initial, EventFdFlags::empty())
    }

    /// `eventfd(initial, flags)`.
    ///
    /// # Errors
    /// `EINVAL`: `flags` holds a bit that [`EventFdFlags`] does not name.
    pub fn with_flags(initial: u32, flags: EventFdFlags) -> Result<Self, Errno> {
        let known = EventFdFlags::SEMAPHORE | EventFdFlags::NONBLOCK | EventFdFlags::CLOEXEC;
        if !(flags - known).is_empty() {
            return Err(Errno::INVAL);
        }
        Ok(EventFd {
            file: File::new(Counter {
                word: AtomicU64::new(u64::from(initial)),
                limited: Mutex::new(Limited::without_maximum(0)),
                queue: WaitQueue::new(),
                flags: AtomicU32::new(flags.bits()),
            }),
        })
    }

    /// Adds `value` without waiting.
    ///
    /// # Errors
    /// `EINVAL`: `value` is `u64::MAX`. `EAGAIN`: the sum would reach the maximum.
    #[inline]
    pub fn try_write(&self, value: u64) -> Result<(), Errno> {
        if value == u64::MAX {
            return Err(Errno::INVAL);
        }
        let counter = &*self.file;
        counter.change(|now| {
            let fits = now.fits(value);
            fits.then(|| now.count + value).ok_or(Errno::AGAIN)
        })?;
        counter.queue.wake_published(Events::IN);
        Ok(())
    }

    /// Takes the count, or one of it from a semaphore, without waiting.
    ///
    /// # Errors
    /// `EAGAIN`: the count is 0.
    #[inline]
    pub fn try_read(&self) -> Result<u64, Errno> {
        let counter = &*self.file;
        let is_semaphore = counter.is_semaphore();
        let count = counter.change(|now| match now.count {
            0 => Err(Errno::AGAIN),
            count if is_semaphore => Ok(count - 1),
            _ => Ok(0),
        })?;
        counter.queue.wake_published(Events::OUT);
        Ok(if is_semaphore { 1 } else { count })
    }

    /// Adds one without ever blocking or failing, as `eventfd_signal` does in the kernel: for
    /// producers that may not wait. The count may reach the maximum, which shows as `ERR`, and
    /// stays there. Readers are woken each time.
    pub fn signal(&self) {
        let counter = &*self.file;
        let signalled = counter.change(|now| Ok(now.count.saturating_add(1).min(now.maximum)));
        debug_assert!(signalled.is_ok(), "the step never fails");
        counter.queue.wake(Events::IN);
    }

    /// `EFD_IOC_SET_MAXIMUM`: writes keep the count below `maximum` from now on.
    ///
    /// Writers that wait look again at once. The maximum belongs to the open file: all references
    /// to it share it. `u64::MAX` takes it away.
    ///
    /// # Errors
    /// `EINVAL`: the count is `maximum` already or above it, so 0 never goes.
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

    /// `EFD_IOC_GET_MAXIMUM`: what writes keep the count below; `u64::MAX` if it was never set.
    #[must_use]
    #[doc(alias = "EFD_IOC_GET_MAXIMUM")]
    pub fn maximum(&self) -> u64 {
        self.file.look().maximum
    }

    /// Takes the count for good, for whoever goes on with it elsewhere: the kernel, when a second
    /// process is to share it. None, and nothing is done, if there is a maximum or it has been
    /// retired before.
    ///
    /// From then on it gives `EAGAIN` to calls that do not wait, `ESTALE` to those that do, also if
    /// they began before, and shows `HUP`. There is no way back.
    ///
    /// # Example
    /// ```
    /// use upoll::{Errno, EventFd};
    /// let counter = EventFd::new(3)?;
    /// assert_eq!(counter.retire(), Some(3));
    /// assert_eq!(counter.try_write(1), Err(Errno::AGAIN));
    /// # Ok::<(), Errno>(())
    /// ```
    #[must_use = "the count is nowhere else any more"]
    pub fn retire(&self) -> Option<u64> {
        self.file.retire()
    }

    /// Whether it has been [retired](Self::retire).
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.file.look().is_retired()
    }

    /// Whether reads take one at a time.
    #[must_use]
    pub fn is_semaphore(&self) -> bool {
        self.file.is_semaphore()
    }

    /// What it was made with, and whether it is `NONBLOCK` now (`F_GETFL`).
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

    #[cfg(all(feature = "std", not(loom)))]
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.file.flags().contains(EventFdFlags::NONBLOCK)
    }

    #[cfg(all(feature = "std", not(loom)))]
    pub(crate) fn wait_queue(&self) -> &WaitQueue {
        &self.file.queue
    }

    /// As an open file, to be watched.
    #[must_use]
    #[inline]
    pub fn as_file_ref(&self) -> FileRef<'_> {
        self.file.by_ref()
    }

    /// What `/proc/PID/fdinfo` would show.
    #[must_use]
    pub fn fdinfo(&self) -> alloc::string::String {
        let mut out = alloc::string::String::new();
        let shown = self.file.show_fdinfo(&mut out);
        debug_assert!(shown.is_ok(), "writing to a string does not fail");
        out
    }
}

impl Source for EventFd {
    #[inline]
    fn target(&self) -> Target<'_> {
        Target::File(self.as_file_ref())
    }
}
