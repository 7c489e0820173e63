//! `select(2)` and `pselect(2)`.

use alloc::vec::Vec;
#[cfg(not(upoll_loom))]
use core::cell::Cell;
use core::ffi::c_ulong;
#[cfg(not(upoll_loom))]
use core::mem::{self, ManuallyDrop};
use core::ptr;
use std::os::fd::{AsRawFd, RawFd};

use super::poller::{self, Call, Heard, Own, WaitTable};
#[cfg(not(upoll_loom))]
use super::thread_end;
use super::{SigSet, Timeout};
use crate::errno::Errno;
use crate::events::Events;
use crate::host::{kernel, own_fds, restore_lost};
use crate::poll::{CheckOnly, Seen};
use crate::select::{Bitmaps, FdSet, INLINE, REPORTED, Selection, WORD};
use crate::target::Target;

/// `select(2)` with a timeout in nanoseconds: waits until an fd in one of the sets is ready.
/// Leaves the ready ones in the sets, and the remaining time in `timeout`. Returns the number of
/// members left in the three sets.
///
/// `resolve` returns the object that an fd below `n` stands for: a user-level object, a kernel fd, or
/// nothing that is open. As in Linux:
/// - Readable counts `IN`, `RDNORM`, `RDBAND`, `HUP` and `ERR`; writable `OUT`, `WRNORM`, `WRBAND`
///   and `ERR`; exceptional `PRI`.
/// - Fds from `n` on are ignored. The sets are written in whole words of the bitmap, as
///   many as hold the fds below `n`, and only on success; also when nothing is ready.
/// - The remaining time is written also on an error, and is zero when the limit has passed.
/// - Linux quietly lowers `n` to the size of its table of fds. An embedder with such a table
///   does that before the call; here each fd below `n` counts.
///
/// The wait, its cost, and the treatment of an fd that is closed meanwhile are as in
/// [`poll`](crate::poll()). Fds below 320 cost no allocation, but for a thread's first call that
/// sleeps in the kernel. There is no limit of 1024.
///
/// # Errors
/// - `EINVAL`: `n` is negative.
/// - `EBADF`: an fd in the sets is not open. No object was polled then.
/// - `EINTR`: a signal handler ran and nothing was ready; the call is never restarted.
/// - `ENOMEM`: no memory for long sets, or no fd for the thread's wake fd.
///
/// # Example
/// ```
/// use std::time::Duration;
/// use upoll::{EventFd, FdSet, Source, Timeout};
///
/// let counters = [EventFd::new(0)?, EventFd::new(1)?];
/// let mut readable = FdSet::from_iter([0, 1]);
/// let ready = upoll::select(
///     2,
///     Some(&mut readable),
///     None,
///     None,
///     &mut Timeout::from(Duration::from_secs(1)),
///     |fd| Some(counters.get(usize::try_from(fd).ok()?)?.target()),
/// )?;
/// assert_eq!(ready, 1);
/// assert_eq!(readable.iter().collect::<Vec<_>>(), [1]);
/// # Ok::<(), upoll::Errno>(())
/// ```
pub fn select<'a>(
    n: i32,
    read: Option<&mut FdSet>,
    write: Option<&mut FdSet>,
    except: Option<&mut FdSet>,
    timeout: &mut Timeout,
    resolve: impl Fn(i32) -> Option<Target<'a>>,
) -> Result<usize, Errno> {
    let running = timeout.start();
    let ready = select_masked(n, [read, write, except], *timeout, None, &resolve);
    *timeout = running.rest();
    ready
}

/// `select(2)` with a timeout of 0: [`select`] that does not wait. It exists without the feature `std`, too.
///
/// # Errors
/// As [`select`], except `EINTR`.
#[cfg(not(upoll_loom))]
pub fn select_now<'a>(
    n: i32,
    read: Option<&mut FdSet>,
    write: Option<&mut FdSet>,
    except: Option<&mut FdSet>,
    resolve: impl Fn(i32) -> Option<Target<'a>>,
) -> Result<usize, Errno> {
    select_masked(n, [read, write, except], Timeout::NOW, None, &resolve)
}

/// `pselect(2)`: [`select`] while exactly the signals in `mask` are held back, with a limit that
/// is not written.
///
/// The mask has the same effect as in [`ppoll`](crate::ppoll).
///
/// # Errors
/// As [`select`]. `EINTR` if and only if a handler ran of a signal that `mask` let through.
pub fn pselect<'a>(
    n: i32,
    read: Option<&mut FdSet>,
    write: Option<&mut FdSet>,
    except: Option<&mut FdSet>,
    timeout: impl Into<Timeout>,
    mask: &SigSet,
    resolve: impl Fn(i32) -> Option<Target<'a>>,
) -> Result<usize, Errno> {
    let sets = [read, write, except];
    select_masked(n, sets, timeout.into(), Some(mask), &resolve)
}

#[inline(always)]
fn select_masked<'a>(
    n: i32,
    sets: [Option<&mut FdSet>; 3],
    timeout: Timeout,
    mask: Option<&SigSet>,
    resolve: &impl Fn(i32) -> Option<Target<'a>>,
) -> Result<usize, Errno> {
    let mut found = Bitmaps::new();
    select_anew(Selection::new(n, sets, &mut found)?, timeout, mask, resolve)
}

/// Without anything that was kept from an earlier call.
#[inline(always)]
pub(super) fn select_anew<'a>(
    mut selection: Selection<'_>,
    timeout: Timeout,
    mask: Option<&SigSet>,
    resolve: &impl Fn(i32) -> Option<Target<'a>>,
) -> Result<usize, Errno> {
    selection.check(resolve)?;
    let repairs = own_fds::repairs_due();
    let mut seen = selection.pass(resolve, &mut CheckOnly);
    if repairs != own_fds::repairs_due() {
        selection.try_for_each(|member| {
            resolve(member.fd()).into_iter().for_each(restore_lost);
            Ok(())
        })?;
        seen = selection.pass(resolve, &mut CheckOnly);
    }
    if poller::is_final(seen, timeout, mask) {
        selection.finish();
        return Ok(seen.ready);
    }
    let mut maps = Bitmaps::new();
    let mut call = SelectCall {
        selection,
        resolve,
        asked: Asked {
            maps: &mut maps,
            words: 0,
            end: 0,
            used: [false; 3],
            any_found: false,
        },
        was_asked: false,
    };
    let ready = poller::wait(&mut call, seen, timeout, mask)?;
    call.selection.finish();
    Ok(ready)
}

/// The three bitmaps that the kernel is given and writes its answer to, by its own fds.
struct Asked<'m> {
    /// In the caller's frame, as they are long and this struct is moved.
    maps: &'m mut Bitmaps,
    /// Words of each of them.
    words: usize,
    /// Fds from here on are in none of them.
    end: RawFd,
    /// True for each of them that has any fd. The kernel need not look at the others.
    used: [bool; 3],
    /// There is something in the answer.
    any_found: bool,
}

#[cfg(not(upoll_loom))]
std::thread_local! {
    /// Bitmaps that were too long for the stack, for the next call that needs such: wake fds have
    /// high values.
    static SPARE: Cell<ManuallyDrop<Vec<c_ulong>>> =
        const { Cell::new(ManuallyDrop::new(Vec::new())) };
}

#[cfg(not(upoll_loom))]
fn take_spare() -> Vec<c_ulong> {
    ManuallyDrop::into_inner(SPARE.replace(ManuallyDrop::new(Vec::new())))
}

/// In a model each call makes its own.
#[cfg(upoll_loom)]
const fn take_spare() -> Vec<c_ulong> {
    Vec::new()
}

/// Drops the ending thread's bitmaps.
#[cfg(not(upoll_loom))]
pub(super) fn drop_kept() {
    drop(take_spare());
}

#[cfg(not(upoll_loom))]
impl Drop for Asked<'_> {
    fn drop(&mut self) {
        // A build that measures the stack against the heap allocates in each call, as Linux does.
        if self.maps.spilled() && !cfg!(upoll_force_heap) {
            let spare = mem::take(self.maps).into_vec();
            if thread_end::may_keep() {
                let before = SPARE.replace(ManuallyDrop::new(spare));
                drop(ManuallyDrop::into_inner(before));
            }
        }
    }
}

impl Asked<'_> {
    fn clear(&mut self) {
        self.maps.fill(0);
        self.end = 0;
        self.used = [false; 3];
        self.any_found = false;
    }

    /// Makes room for `words` words in each bitmap, and for all that the stack has room for.
    fn widen(&mut self, words: usize) -> Result<(), Errno> {
        let before = self.words;
        let on_stack = self.maps.inline_size() / 3;
        if before == 0 && words <= on_stack {
            self.maps.extend_from_slice(&[0; INLINE][..3 * on_stack]);
            self.words = on_stack;
            return Ok(());
        }
        let additional = 3 * (words - before);
        if !self.maps.spilled() && 3 * words > self.maps.inline_size() {
            let mut spare = take_spare();
            spare.clear();
            if spare.capacity() >= 3 * words {
                spare.extend_from_slice(self.maps);
                *self.maps = Bitmaps::from_vec(spare);
            }
        }
        self.maps
            .try_reserve(additional)
            .map_err(|_| Errno::NOMEM)?;
        self.maps.resize(3 * words, 0);
        for which in [2, 1, 0] {
            let from = which * before;
            self.maps.copy_within(from..from + before, which * words);
            self.maps[which * words + before..(which + 1) * words].fill(0);
        }
        self.words = words;
        Ok(())
    }

    fn insert(&mut self, fd: RawFd, wanted: [bool; 3]) -> Result<(), Errno> {
        let at = usize::try_from(fd).map_err(|_| Errno::BADF)?;
        if at / WORD >= self.words {
            self.widen(at / WORD + 1)?;
        }
        self.end = self.end.max(fd + 1);
        let maps = self.maps.as_mut_slice();
        for (which, wanted) in wanted.into_iter().enumerate() {
            if wanted {
                self.used[which] = true;
                maps[which * self.words + at / WORD] |= 1 << (at % WORD);
            }
        }
        Ok(())
    }

    fn contains(&self, fd: RawFd) -> [bool; 3] {
        let at = fd.cast_unsigned() as usize;
        [0, 1, 2].map(|which| {
            at / WORD < self.words
                && self.maps[which * self.words + at / WORD] & (1 << (at % WORD)) != 0
        })
    }

    /// The bitmaps as the kernel takes them.
    fn as_fd_sets(&mut self) -> [*mut libc::fd_set; 3] {
        let maps = self.maps.as_mut_ptr();
        [0, 1, 2].map(|which| match self.used[which] {
            false => ptr::null_mut(),
            true => maps.wrapping_add(which * self.words).cast(),
        })
    }
}

struct SelectCall<'c, 's, 'm, R> {
    selection: Selection<'s>,
    resolve: &'c R,
    asked: Asked<'m>,
    was_asked: bool,
}

impl<'a, R: Fn(i32) -> Option<Target<'a>>> SelectCall<'_, '_, '_, R> {
    /// Asks about each descriptor by itself: one was closed since the call began, and must not hide
    /// the others.
    fn ask_each(&mut self) -> Result<(), Errno> {
        self.asked.clear();
        let (asked, resolve) = (&mut self.asked, self.resolve);
        let any = REPORTED.into_iter().fold(Events::empty(), Events::union);
        self.selection.try_for_each(|member| {
            let Some(fd) = resolve(member.fd()).and_then(Target::kernel) else {
                return Ok(());
            };
            let mut one = [libc::pollfd {
                fd: fd.as_raw_fd(),
                events: any.bits() as libc::c_short,
                revents: 0,
            }];
            kernel::ppoll(&mut one, kernel::AT_ONCE.as_ref(), None)?;
            let [one] = one;
            let found = Events::from_bits_retain(one.revents.cast_unsigned().into());
            let wanted = member.wanted();
            let ready = [0, 1, 2].map(|at| wanted[at] && found.intersects(REPORTED[at]));
            asked.any_found |= ready.contains(&true);
            asked.insert(one.fd, ready)
        })
    }
}

impl<'a, R: Fn(i32) -> Option<Target<'a>>> Call for SelectCall<'_, '_, '_, R> {
    fn poll_all(&mut self, viewer: &mut WaitTable<'_>) -> Seen {
        self.selection.pass(self.resolve, viewer)
    }

    fn try_for_each_target(
        &self,
        visit: &mut dyn FnMut(Target<'_>, Events) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.selection
            .try_for_each(|member| match (self.resolve)(member.fd()) {
                Some(target) => visit(target, member.filter()),
                None => Ok(()),
            })
    }

    /// With `pselect`: `ppoll` would not sleep for a descriptor that has hung up, if it is to be
    /// written to.
    fn ask(
        &mut self,
        limit: Option<&libc::timespec>,
        mask: Option<&SigSet>,
        own: Option<Own>,
    ) -> Result<Heard, Errno> {
        self.asked.clear();
        let (asked, resolve) = (&mut self.asked, self.resolve);
        if let Some(own) = own {
            asked.insert(own.wake_fd, READABLE)?;
            if let Some(listening_fd) = own.listening_fd {
                asked.insert(listening_fd, READABLE)?;
            }
        }
        self.selection.try_for_each(|member| {
            let Some(target) = resolve(member.fd()) else {
                return Ok(());
            };
            if let Some(fd) = target.kernel() {
                asked.insert(fd.as_raw_fd(), member.wanted())?;
            }
            if own.is_some()
                && let Some(source) = target.source_fd(member.filter())
            {
                asked.insert(source.as_raw_fd(), READABLE)?;
            }
            Ok(())
        })?;
        let sets = asked.as_fd_sets();
        let mask = mask.map(SigSet::as_libc);
        // SAFETY: each bitmap is null or holds all fds below the end.
        let outcome = unsafe { kernel::pselect(asked.end, sets, limit, mask) };
        match outcome {
            Ok(found) => asked.any_found = found > 0,
            Err(Errno::BADF) if self.was_asked => self.ask_each()?,
            Err(errno) => {
                // The kernel leaves the bitmaps as they were.
                self.asked.clear();
                return Err(errno);
            }
        }
        self.was_asked = true;
        let rang = own.is_some_and(|own| self.asked.contains(own.wake_fd)[0]);
        Ok(Heard { rang })
    }

    fn merge(&mut self) -> usize {
        let (asked, resolve) = (&self.asked, self.resolve);
        let mut ready = 0;
        if !asked.any_found {
            return 0;
        }
        self.selection.for_each(|selection, member| {
            if let Some(fd) = resolve(member.fd()).and_then(Target::kernel) {
                ready += selection.note(member, asked.contains(fd.as_raw_fd()));
            }
        });
        ready
    }
}

/// Only the readable set.
const READABLE: [bool; 3] = [true, false, false];
