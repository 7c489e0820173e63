//! `poll` and `select` with a context that is kept between calls.

use alloc::vec::Vec;
use core::fmt;
use std::os::fd::{AsRawFd, RawFd};

use super::kernel_part::KernelPart;
use super::open_limit::{FEW, check_against_limit, check_number_of_entries};
use super::poller::{self, Call, Heard, Own, WaitTable};
use super::select::select_anew;
use super::{SigSet, Timeout};
use crate::epoll::Set;
use crate::errno::Errno;
use crate::events::Events;
use crate::file::InTime;
use crate::poll::{PollFd, Seen};
use crate::poll_context::{Front, PollFront, SelectFront};
use crate::registrations::Registrations;
use crate::select::{Bitmaps, FdSet};
use crate::target::Target;

/// The registrations of [`poll`](crate::poll()) and [`select`](crate::select()), kept from one call to
/// the next.
///
/// The idea is Andi Kleen's "cache the select/poll context over multiple system calls" (linux-kernel,
/// 2006-01-03, never merged).
///
/// A program that calls `poll` in a loop passes nearly the same list each time. A context stays
/// in the objects' wait queues between calls, and records wakeups while no thread waits. A call
/// compares its list with the last one and changes the registrations where the two differ. It then
/// polls only the objects that were ready the last time or woke since. Apart from the comparison
/// it costs as much as has changed or is ready, and it allocates only when the list grows.
///
/// The price is paid by changes of an object: it is watched all the time, so each change walks its
/// wait queue and leaves a mark. And a context for a single call costs more than none.
///
/// # The same results
/// A call finds what [`poll`](crate::poll()) would find at that moment, with the same errors. It
/// relies on an object to wake its queues when it becomes ready, as [`Pollable`](crate::Pollable)
/// demands; `poll` alone would not notice an object that does not. Entries that are not open,
/// ignored or listed twice are treated as there. Any list may be used with any context, only slower
/// if there is nothing in common with the last one; so a context for each place that polls is best.
///
/// # Files that close
/// Entries are kept by open file, never by fd. A context keeps no file open: it closes as if
/// there were no context. The memory of a closed object stays until the next call, whose list
/// cannot have it any more, [`clear`](Self::clear), or the context's drop.
///
/// # Kernel fds
/// A [`Descriptor`](crate::Descriptor) is registered in a set of the kernel's that the context
/// owns, and a call takes the ready ones from there in one system call. So a thousand idle ones cost
/// as much as one. A bare fd may mean another file by the next call without notice, so
/// such entries are passed to the kernel's `poll` with each call. So are entries that its sets refuse,
/// for instance because they are listed twice or are sets themselves. For `select`, one such
/// entry makes the whole call run without the context.
///
/// # Threads and processes
/// A context may be dropped or used on any thread. The first call on another thread than the last
/// one, or in a child of `fork`, makes a new set and registers the fds anew. The parent's set is
/// left as it is. Other threads may poll the same files meanwhile, by any means.
///
/// # Example
/// ```
/// use std::time::Duration;
/// use upoll::{EventFd, Events, PollContext, PollFd};
///
/// let counters = [EventFd::new(0)?, EventFd::new(0)?];
/// let mut context = PollContext::new();
/// let mut fds = [
///     PollFd::new(&counters[0], Events::IN),
///     PollFd::new(&counters[1], Events::IN),
/// ];
/// assert_eq!(context.poll(&mut fds, Duration::ZERO)?, 0);
/// counters[1].write(1)?;
/// assert_eq!(context.poll(&mut fds, None)?, 1);
/// assert_eq!(fds[1].revents(), Events::IN);
/// # Ok::<(), upoll::Errno>(())
/// ```
pub struct PollContext {
    registered: Registered,
    /// For `select`, the fds in the order of the list.
    fds: Vec<i32>,
}

/// The state that is kept between calls.
struct Registered {
    kept: Registrations,
    kernel: KernelPart,
    /// The list for the kernel's `poll`: the entries that are not in the set, the set, the kernel
    /// sources of files, the thread's wake fd.
    list: Vec<libc::pollfd>,
    /// The slots of the first of these.
    asked: Vec<u32>,
}

impl PollContext {
    /// A context in which nothing is registered.
    #[must_use]
    pub fn new() -> Self {
        PollContext {
            registered: Registered {
                kept: Registrations::new(),
                kernel: KernelPart::default(),
                list: Vec::new(),
                asked: Vec::new(),
            },
            fds: Vec::new(),
        }
    }

    /// Drops all registrations, and the memory of objects that have closed.
    pub fn clear(&mut self) {
        *self = Self::new();
    }

    /// [`poll`](crate::poll()), with what this context has registered already.
    ///
    /// # Errors
    /// As [`poll`](crate::poll()). `ENOMEM` also: no memory for an entry that is new in the list;
    /// the next call tries again.
    pub fn poll(
        &mut self,
        fds: &mut [PollFd<'_>],
        timeout: impl Into<Timeout>,
    ) -> Result<usize, Errno> {
        self.poll_masked(fds, timeout.into(), None)
    }

    /// `poll(2)` with a timeout of 0: [`poll`](Self::poll) that does not wait. It exists without the feature
    /// `std`, too.
    ///
    /// # Errors
    /// As [`poll`](Self::poll), except `EINTR`.
    #[cfg(not(upoll_loom))]
    pub fn poll_now(&mut self, fds: &mut [PollFd<'_>]) -> Result<usize, Errno> {
        self.poll_masked(fds, Timeout::NOW, None)
    }

    /// `select(2)` with a timeout of 0: [`select`](Self::select) that does not wait. It exists without the
    /// feature `std`, too.
    ///
    /// # Errors
    /// As [`select`](Self::select), except `EINTR`.
    #[cfg(not(upoll_loom))]
    pub fn select_now<'a>(
        &mut self,
        n: i32,
        read: Option<&mut FdSet>,
        write: Option<&mut FdSet>,
        except: Option<&mut FdSet>,
        resolve: impl Fn(i32) -> Option<Target<'a>>,
    ) -> Result<usize, Errno> {
        self.select_masked(n, [read, write, except], Timeout::NOW, None, &resolve)
    }

    /// [`ppoll`](crate::ppoll), with what this context has registered already.
    ///
    /// # Errors
    /// As [`poll`](Self::poll) and [`ppoll`](crate::ppoll).
    pub fn ppoll(
        &mut self,
        fds: &mut [PollFd<'_>],
        timeout: impl Into<Timeout>,
        mask: &SigSet,
    ) -> Result<usize, Errno> {
        self.poll_masked(fds, timeout.into(), Some(mask))
    }

    /// [`select`](crate::select()), with what this context has registered already.
    ///
    /// `resolve` is asked only when the call begins. Its result holds for the whole call.
    ///
    /// # Errors
    /// As [`select`](crate::select()). `ENOMEM` also: no memory for an fd that is new in the
    /// sets; the next call tries again.
    ///
    /// # Example
    /// ```
    /// use upoll::{EventFd, FdSet, PollContext, Source, Timeout};
    /// let counters = [EventFd::new(0)?, EventFd::new(1)?];
    /// let mut context = PollContext::new();
    /// for _ in 0..2 {
    ///     let mut readable = FdSet::from_iter([0, 1]);
    ///     let resolve = |fd| Some(counters.get(usize::try_from(fd).ok()?)?.target());
    ///     let timeout = &mut Timeout::NEVER;
    ///     assert_eq!(context.select(2, Some(&mut readable), None, None, timeout, resolve)?, 1);
    ///     assert!(readable.contains(1));
    /// }
    /// # Ok::<(), upoll::Errno>(())
    /// ```
    pub fn select<'a>(
        &mut self,
        n: i32,
        read: Option<&mut FdSet>,
        write: Option<&mut FdSet>,
        except: Option<&mut FdSet>,
        timeout: &mut Timeout,
        resolve: impl Fn(i32) -> Option<Target<'a>>,
    ) -> Result<usize, Errno> {
        let running = timeout.start();
        let ready = self.select_masked(n, [read, write, except], *timeout, None, &resolve);
        *timeout = running.rest();
        ready
    }

    /// [`pselect`](crate::pselect), with what this context has registered already.
    ///
    /// # Errors
    /// As [`select`](Self::select) and [`pselect`](crate::pselect).
    #[expect(clippy::too_many_arguments, reason = "as many as pselect has")]
    pub fn pselect<'a>(
        &mut self,
        n: i32,
        read: Option<&mut FdSet>,
        write: Option<&mut FdSet>,
        except: Option<&mut FdSet>,
        timeout: impl Into<Timeout>,
        mask: &SigSet,
        resolve: impl Fn(i32) -> Option<Target<'a>>,
    ) -> Result<usize, Errno> {
        let sets = [read, write, except];
        self.select_masked(n, sets, timeout.into(), Some(mask), &resolve)
    }

    #[inline]
    fn poll_masked(
        &mut self,
        fds: &mut [PollFd<'_>],
        timeout: Timeout,
        mask: Option<&SigSet>,
    ) -> Result<usize, Errno> {
        let count = fds.len();
        check_number_of_entries(count)?;
        self.registered.kernel.begin();
        let Registered { kept, kernel, .. } = &mut self.registered;
        let mut front = PollFront::new(fds, kept, kernel)?;
        kernel.renew_foreign(kept);
        let check = || match count <= FEW {
            true => check_against_limit(count),
            false => Ok(()),
        };
        self.registered.wait(&mut front, timeout, mask, check)
    }

    #[inline]
    fn select_masked<'a>(
        &mut self,
        n: i32,
        sets: [Option<&mut FdSet>; 3],
        timeout: Timeout,
        mask: Option<&SigSet>,
        resolve: &impl Fn(i32) -> Option<Target<'a>>,
    ) -> Result<usize, Errno> {
        self.registered.kernel.begin();
        let Registered { kept, kernel, .. } = &mut self.registered;
        let found = &mut Bitmaps::new();
        let mut front = SelectFront::new(n, sets, resolve, found, &mut self.fds, kept, kernel)?;
        kernel.renew_foreign(kept);
        if !kernel.asked().is_empty() {
            return select_anew(front.into_selection(), timeout, mask, resolve);
        }
        let ready = (self.registered).wait(&mut front, timeout, mask, || Ok(()))?;
        front.into_selection().finish();
        Ok(ready)
    }
}

impl Registered {
    /// Checks what is registered, and waits if nothing is ready. Calls `check` before it waits.
    #[inline]
    fn wait(
        &mut self,
        front: &mut impl Front,
        timeout: Timeout,
        mask: Option<&SigSet>,
        check: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<usize, Errno> {
        let seen = front.poll_all(&mut self.kept);
        if poller::is_final(seen, timeout, mask) {
            return Ok(seen.ready);
        }
        if seen.ready == 0 {
            check()?;
        }
        let mut call = ContextCall {
            registered: self,
            front,
        };
        poller::wait(&mut call, seen, timeout, mask)
    }
}

impl Default for PollContext {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for PollContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollContext")
            .field("entries", &self.registered.kept.len())
            .finish_non_exhaustive()
    }
}

struct ContextCall<'c, F> {
    registered: &'c mut Registered,
    front: &'c mut F,
}

impl<F: Front> ContextCall<'_, F> {
    /// Makes the list for the kernel's `poll`. Returns the set's index in it.
    fn make_list(&mut self, own: Option<Own>) -> Result<Option<usize>, Errno> {
        let Registered {
            kept,
            kernel,
            list,
            asked,
            ..
        } = &mut *self.registered;
        list.clear();
        asked.clear();
        let mut push = |fd: RawFd, events: Events| {
            list.try_reserve(1).map_err(|_| Errno::NOMEM)?;
            list.push(libc::pollfd {
                fd,
                events: events.bits() as libc::c_short,
                revents: 0,
            });
            Ok(list.len() - 1)
        };
        for &slot in kernel.asked() {
            if let Some(entry) = kept.kernel_entry(slot) {
                push(entry.fd, entry.wanted)?;
                asked.try_reserve(1).map_err(|_| Errno::NOMEM)?;
                asked.push(slot);
            }
        }
        let set = kernel.set_fd().map(|set| push(set, Events::IN));
        if let Some(own) = own {
            for source in kept.source_fds() {
                push(source.as_raw_fd(), Events::IN)?;
            }
            if let Some(listening_fd) = own.listening_fd {
                push(listening_fd, Events::IN)?;
            }
            push(own.wake_fd, Events::IN)?;
        }
        set.transpose()
    }
}

impl<F: Front> Call for ContextCall<'_, F> {
    fn poll_all(&mut self, viewer: &mut WaitTable<'_>) -> Seen {
        if let Some(inbox) = self.registered.kept.inbox() {
            // SAFETY: the inbox is the context's, which is borrowed for the whole call; the table is
            // dropped before the call ends.
            unsafe { viewer.attach(inbox) };
        }
        self.front.poll_all(&mut self.registered.kept)
    }

    /// Only those that somebody has to listen to are of interest.
    fn try_for_each_target(
        &self,
        visit: &mut dyn FnMut(Target<'_>, Events) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.registered.kept.try_for_each_shared(visit)
    }

    fn try_for_each_time_source(
        &self,
        visit: &mut dyn FnMut(&dyn InTime) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.registered.kept.try_for_each_time_source(visit)
    }

    fn for_each_set(&self, visit: &mut dyn FnMut(&Set)) {
        self.registered.kept.for_each_active_set(visit);
    }

    fn ask(
        &mut self,
        limit: Option<&libc::timespec>,
        mask: Option<&SigSet>,
        own: Option<Own>,
    ) -> Result<Heard, Errno> {
        const SILENT: Heard = Heard { rang: false };
        let mut limit = limit;
        loop {
            self.registered.list.clear();
            self.registered.asked.clear();
            let Registered { kept, kernel, .. } = &mut *self.registered;
            if kernel.asked().is_empty() {
                // Something is often ready already, and then this is all.
                let is_now = limit.is_some_and(|limit| (limit.tv_sec, limit.tv_nsec) == (0, 0));
                if kernel.harvest(kept)? || (is_now && mask.is_none() && own.is_none()) {
                    return Ok(SILENT);
                }
            }
            let Registered { kept, kernel, .. } = &mut *self.registered;
            kernel.replace_lost(kept);
            let set = self.make_list(own)?;
            let Registered {
                kept, kernel, list, ..
            } = &mut *self.registered;
            kernel.forget();
            if let Err(errno) = crate::host::kernel::ppoll(list, limit, mask.map(SigSet::as_libc)) {
                self.registered.asked.clear();
                return Err(errno);
            }
            let rang = own.is_some() && list.last().is_some_and(|last| last.revents != 0);
            let before = kernel.times_asked_anew();
            if set.is_some_and(|set| list[set].revents != 0) {
                kernel.harvest(kept)?;
            }
            if kernel.times_asked_anew() == before {
                return Ok(Heard { rang });
            }
            // The set does not take an entry any more, which has not been asked about, or a new set takes one that
            // has.
            limit = Some(&poller::ZERO);
        }
    }

    fn merge(&mut self) -> usize {
        let Registered {
            kept,
            kernel,
            list,
            asked,
            ..
        } = &*self.registered;
        let asked = asked.iter().zip(list);
        let asked = asked.map(|(&slot, asked)| {
            let bits = asked.revents.cast_unsigned();
            (slot, Events::from_bits_retain(bits.into()))
        });
        let front = &mut *self.front;
        asked
            .chain(kernel.heard())
            .filter(|(_, found)| !found.is_empty())
            .filter_map(|(slot, found)| Some((kept.kernel_entry(slot)?, found)))
            .map(|(entry, found)| front.report(entry.position, found))
            .sum()
    }

    fn may_end_for_nothing(&self) -> bool {
        self.registered.kernel.set_fd().is_some()
    }
}
