//! `eventfd(2)`: a counter that can be waited for.

use core::fmt;

use bitflags::bitflags;

use crate::errno::Errno;
use crate::events::Events;
use crate::file::{File, FileRef, PollTable, Pollable};
use crate::sync::{AtomicU64, Ordering};
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

/// A write must leave the count below this; only `signal` reaches it.
const MAXIMUM: u64 = u64::MAX;

/// The counter behind the handles (`struct eventfd_ctx`).
pub(crate) struct Counter {
    count: AtomicU64,
    /// Readers, writers and sets alike, as in Linux.
    queue: WaitQueue,
    flags: EventFdFlags,
}

impl Counter {
    fn is_semaphore(&self) -> bool {
        self.flags.contains(EventFdFlags::SEMAPHORE)
    }

    /// Whether adding `value` to `count` keeps it below the maximum.
    fn fits(count: u64, value: u64) -> bool {
        MAXIMUM - count > value
    }
}

impl Pollable for Counter {
    #[inline]
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        let count = self.count.load(Ordering::SeqCst);
        let mut events = Events::empty();
        events.set(Events::IN, count > 0);
        events.set(Events::ERR, count == MAXIMUM);
        events.set(Events::OUT, MAXIMUM - 1 > count);
        events
    }

    fn release(&self) {
        self.queue.wake(Events::HUP);
    }

    fn show_fdinfo(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        writeln!(
            out,
            "eventfd-count: {:16x}",
            self.count.load(Ordering::Relaxed)
        )?;
        writeln!(out, "eventfd-semaphore: {}", i32::from(self.is_semaphore()))
    }
}

/// A user-level eventfd: a 64-bit counter that sets, `poll` and `select` can watch.
///
/// Readiness as in Linux 6.18: `IN` iff the count is above 0, `OUT` iff it is below `u64::MAX - 1`,
/// `ERR` iff it is `u64::MAX`, where only [`signal`](Self::signal) brings it. Every
/// write wakes readers, even of 0 and even if nothing was read since the last, so an edge-triggered
/// interest reports each; every read wakes writers.
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
                count: AtomicU64::new(u64::from(initial)),
                queue: WaitQueue::new(),
                flags,
            }),
        })
    }

    /// Adds `value` without waiting.
    ///
    /// # Errors
    /// `EINVAL`: `value` is `u64::MAX`. `EAGAIN`: the sum would reach `u64::MAX`.
    #[inline]
    pub fn try_write(&self, value: u64) -> Result<(), Errno> {
        if value == u64::MAX {
            return Err(Errno::INVAL);
        }
        let counter = &*self.file;
        let mut count = counter.count.load(Ordering::Relaxed);
        loop {
            if !Counter::fits(count, value) {
                // What was read relaxed may be stale; a blocked writer decides on this.
                let now = counter.count.load(Ordering::SeqCst);
                if now == count {
                    return Err(Errno::AGAIN);
                }
                count = now;
                continue;
            }
            match counter.count.compare_exchange_weak(
                count,
                count + value,
                Ordering::SeqCst,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => count = now,
            }
        }
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
        let taken = if counter.is_semaphore() {
            let mut count = counter.count.load(Ordering::SeqCst);
            loop {
                if count == 0 {
                    return Err(Errno::AGAIN);
                }
                match counter.count.compare_exchange_weak(
                    count,
                    count - 1,
                    Ordering::SeqCst,
                    Ordering::SeqCst,
                ) {
                    Ok(_) => break 1,
                    Err(now) => count = now,
                }
            }
        } else {
            if counter.count.load(Ordering::SeqCst) == 0 {
                return Err(Errno::AGAIN);
            }
            match counter.count.swap(0, Ordering::SeqCst) {
                0 => return Err(Errno::AGAIN),
                count => count,
            }
        };
        counter.queue.wake_published(Events::OUT);
        Ok(taken)
    }

    /// Adds one without ever blocking or failing, as `eventfd_signal` does in the kernel: the count
    /// may reach `u64::MAX`, which shows as `ERR`, and stays there. Readers are woken each time.
    pub fn signal(&self) {
        let counter = &*self.file;
        let mut count = counter.count.load(Ordering::Relaxed);
        while count < MAXIMUM {
            match counter.count.compare_exchange_weak(
                count,
                count + 1,
                Ordering::SeqCst,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => count = now,
            }
        }
        counter.queue.wake(Events::IN);
    }

    /// Whether reads take one at a time.
    #[must_use]
    pub fn is_semaphore(&self) -> bool {
        self.file.is_semaphore()
    }

    #[cfg(all(feature = "std", not(loom)))]
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.file.flags.contains(EventFdFlags::NONBLOCK)
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
