//! `poll(2)` and `ppoll(2)`.

use std::os::fd::{AsRawFd, RawFd};

use smallvec::SmallVec;

use super::open_limit::{FEW, check_against_limit, check_number_of_entries};
use super::poller::{self, Call, Heard, Own, WaitTable};
use super::{SigSet, Timeout};
use crate::errno::Errno;
use crate::events::Events;
use crate::host::{kernel, own_fds, restore_lost};
use crate::poll::{CheckOnly, PollFd, Seen, on_stack, pass};
use crate::target::Target;

/// The kernel's list stays on the stack for this many fds, including the thread's wake fd. With its
/// own two words the list takes `FRONT` bytes (`N_STACK_PPS`).
const INLINE: usize = 30;

const _: () = assert!(size_of::<SmallVec<[libc::pollfd; INLINE]>>() <= poller::FRONT);

/// `poll(2)` with a timeout in nanoseconds: waits until at least one entry is ready, and returns
/// their number.
///
/// The entries may be user-level objects and kernel fds in any mixture. As in Linux:
/// - Every entry's [`revents`](PollFd::revents) are written: those of its events that are ready, and
///   `ERR` and `HUP` whether asked for or not. An entry that is not open shows `NVAL` and counts as
///   ready; an [ignored](PollFd::ignored) one shows nothing. An object listed twice counts twice.
/// - It returns 0 when the limit has passed, never before; what is ready then is still reported.
/// - With a limit of zero it polls and does not wait. Without a limit it waits however long it takes.
///
/// Up to nine wait queues and 29 kernel fds cost no allocation, as in Linux since 2.6.17, which
/// puts small sets on the stack. The call first polls the objects without registering with them,
/// and if one of them is ready nothing else happens. If all entries are user-level objects, the
/// thread sleeps on a futex. With kernel fds among them, it sleeps in the kernel's `ppoll`, which
/// also waits for the thread's own wake fd. That fd is made when the thread first needs it, and
/// closed when the thread ends.
///
/// Each wakeup of an object wakes all threads that poll it: none is passed over, and none has to
/// take turns. An entry borrows its object, so that cannot be closed meanwhile. A kernel fd that is
/// closed while `poll` waits for it does not end the wait, and shows as `NVAL` when it ends.
///
/// # Errors
/// - `EINVAL`: there are more entries than `RLIMIT_NOFILE` allows. Up to eight entries, all user-level, are
///   checked against the limit that a call has read last if this call does not sleep.
/// - `EINTR`: a signal handler ran while the thread slept, and nothing was ready. The call is never
///   restarted, with or without `SA_RESTART`. A handler that runs between a spurious wakeup and the
///   next sleep does not end the call. A program that depends on the signal uses [`ppoll`], which
///   has no such gap.
/// - `ENOMEM`: no memory for a long list, or no fd for the thread's wake fd.
///
/// # Example
/// ```
/// use std::io::Write;
/// use std::time::Duration;
/// use upoll::{EventFd, Events, PollFd};
///
/// let counter = EventFd::new(0)?;
/// let (reader, mut writer) = std::io::pipe().unwrap();
/// let mut fds = [
///     PollFd::new(&counter, Events::IN),
///     PollFd::new(&reader, Events::IN),
/// ];
/// assert_eq!(upoll::poll(&mut fds, Duration::ZERO)?, 0);
/// counter.try_write(1)?;
/// writer.write_all(b"x").unwrap();
/// assert_eq!(upoll::poll(&mut fds, None)?, 2);
/// assert_eq!(fds[1].revents(), Events::IN);
/// # Ok::<(), upoll::Errno>(())
/// ```
pub fn poll(fds: &mut [PollFd<'_>], timeout: impl Into<Timeout>) -> Result<usize, Errno> {
    poll_masked(fds, timeout.into(), None)
}

/// `poll(2)` with a timeout of 0: [`poll`] that does not wait. It exists without the feature `std`, too.
///
/// # Errors
/// As [`poll`], except `EINTR`.
#[cfg(not(upoll_loom))]
pub fn poll_now(fds: &mut [PollFd<'_>]) -> Result<usize, Errno> {
    poll_masked(fds, Timeout::NOW, None)
}

/// `ppoll(2)`: [`poll`] while exactly the signals in `mask` are held back.
///
/// From the start of the wait until it returns, `mask` is the thread's signal mask, set and reset
/// together with the sleep. So a signal that the thread blocks otherwise and `mask` does not is
/// never missed, and ends the call. If something is ready at once, no signal is delivered.
///
/// # Errors
/// As [`poll`]. `EINTR` if and only if a handler ran of a signal that `mask` let through.
///
/// # Example
/// ```
/// use upoll::{EventFd, Events, PollFd, SigSet};
/// let counter = EventFd::new(1)?;
/// let mut fds = [PollFd::new(&counter, Events::IN)];
/// assert_eq!(upoll::ppoll(&mut fds, None, &SigSet::empty())?, 1);
/// # Ok::<(), upoll::Errno>(())
/// ```
pub fn ppoll(
    fds: &mut [PollFd<'_>],
    timeout: impl Into<Timeout>,
    mask: &SigSet,
) -> Result<usize, Errno> {
    poll_masked(fds, timeout.into(), Some(mask))
}

#[inline]
fn poll_masked(
    fds: &mut [PollFd<'_>],
    timeout: Timeout,
    mask: Option<&SigSet>,
) -> Result<usize, Errno> {
    check_number_of_entries(fds.len())?;
    let repairs = own_fds::repairs_due();
    let mut seen = pass(fds, &mut CheckOnly);
    if repairs != own_fds::repairs_due() {
        fds.iter().filter_map(PollFd::target).for_each(restore_lost);
        seen = pass(fds, &mut CheckOnly);
    }
    if poller::is_final(seen, timeout, mask) {
        return Ok(seen.ready);
    }
    // With kernel fds in the list, the kernel checks the number: `PollCall::ask` passes it as many
    // entries.
    if seen.kernel == 0 && fds.len() <= FEW {
        check_against_limit(fds.len())?;
    }
    let mut call = PollCall {
        fds,
        kernel: seen.kernel,
        any_found: false,
        asked: SmallVec::new(),
    };
    #[cfg(upoll_force_heap)]
    call.asked.reserve_exact(call.fds.len() + 1);
    poller::wait(&mut call, seen, timeout, mask)
}

struct PollCall<'c, 'a> {
    fds: &'c mut [PollFd<'a>],
    /// The number of them that are kernel fds.
    kernel: usize,
    /// There is something in the answer.
    any_found: bool,
    /// The kernel fds in the entries' order; the kernel sources of files; the thread's wake fd.
    asked: SmallVec<[libc::pollfd; on_stack(INLINE)]>,
}

impl PollCall<'_, '_> {
    fn push(&mut self, fd: RawFd, events: Events) -> Result<(), Errno> {
        self.asked.try_reserve(1).map_err(|_| Errno::NOMEM)?;
        self.asked.push(question(fd, events));
        Ok(())
    }
}

/// The fd of an entry that the kernel ignores, but counts.
const IGNORED: RawFd = -1;

/// Returns the kernel's entry for an fd.
#[inline]
fn question(fd: RawFd, events: Events) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: events.bits() as libc::c_short,
        revents: 0,
    }
}

impl Call for PollCall<'_, '_> {
    fn poll_all(&mut self, viewer: &mut WaitTable<'_>) -> Seen {
        pass(self.fds, viewer)
    }

    fn try_for_each_target(
        &self,
        visit: &mut dyn FnMut(Target<'_>, Events) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.fds.iter().try_for_each(|fd| match fd.target() {
            Some(target) => visit(target, fd.events()),
            None => Ok(()),
        })
    }

    fn ask(
        &mut self,
        limit: Option<&libc::timespec>,
        mask: Option<&SigSet>,
        own: Option<Own>,
    ) -> Result<Heard, Errno> {
        self.asked.clear();
        self.any_found = false;
        let room = self.asked.try_reserve(self.kernel);
        room.map_err(|_| Errno::NOMEM)?;
        self.asked.extend(self.fds.iter().filter_map(|fd| {
            let kernel_fd = fd.target().and_then(Target::kernel)?;
            Some(question(kernel_fd.as_raw_fd(), fd.events()))
        }));
        if let Some(own) = own {
            for at in 0..self.fds.len() {
                let wanted = self.fds[at].events();
                let target = self.fds[at].target();
                if let Some(source) = target.and_then(|target| target.source_fd(wanted)) {
                    self.push(source.as_raw_fd(), Events::IN)?;
                }
            }
            if let Some(listening_fd) = own.listening_fd {
                self.push(listening_fd, Events::IN)?;
            }
        }
        if self.fds.len() <= FEW {
            let own = usize::from(own.is_some());
            while self.asked.len() + own < self.fds.len() {
                self.push(IGNORED, Events::empty())?;
            }
        }
        if let Some(own) = own {
            self.push(own.wake_fd, Events::IN)?;
        }
        let outcome = kernel::ppoll(&mut self.asked, limit, mask.map(SigSet::as_libc));
        self.any_found = matches!(outcome, Ok(1..));
        let rang = self.any_found
            && own.is_some()
            && self.asked.last().is_some_and(|last| last.revents != 0);
        outcome.map(|_| Heard { rang })
    }

    fn merge(&mut self) -> usize {
        let mut asked = self.asked.iter();
        let mut ready = 0;
        if !self.any_found {
            return 0;
        }
        for fd in self.fds.iter_mut() {
            if fd.target().and_then(Target::kernel).is_none() {
                continue;
            }
            let found = asked
                .next()
                .map_or(0, |asked| asked.revents.cast_unsigned());
            fd.set_revents(Events::from_bits_retain(found.into()));
            ready += usize::from(found != 0);
        }
        ready
    }
}
