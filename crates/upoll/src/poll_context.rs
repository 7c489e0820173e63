//! `poll` and `select` over what was kept from the last call, without the wait.

use alloc::vec::Vec;

use crate::errno::Errno;
use crate::events::Events;
use crate::poll::{PollFd, Seen};
use crate::registrations::{KernelEntries, Registrations};
use crate::select::{Bitmaps, FdSet, Selection};
use crate::target::Target;

/// The arguments of a call, and the place of its results.
pub(crate) trait Front {
    /// Returns how much is ready whatever the objects show.
    fn ready_anyway(&self) -> usize;

    /// Reports ready events of the entry at `position`. Returns by how much the result of the call
    /// grows.
    fn report(&mut self, position: usize, found: Events) -> usize;

    /// Looks at what may be ready. Findings are not taken back: a look that has any is the last of
    /// its call.
    #[inline]
    fn poll_all(&mut self, kept: &mut Registrations) -> Seen {
        let mut seen = kept.poll_all(|position, found| self.report(position, found));
        seen.ready += self.ready_anyway();
        seen
    }
}

/// The list of a `poll`.
pub(crate) struct PollFront<'c, 'a> {
    fds: &'c mut [PollFd<'a>],
    /// Entries that are ready for not being open.
    not_open: usize,
}

impl<'c, 'a> PollFront<'c, 'a> {
    /// Compares this list with the kept one, and updates the registrations in `kept`.
    ///
    /// # Errors
    /// `ENOMEM`.
    #[inline]
    pub(crate) fn new(
        fds: &'c mut [PollFd<'a>],
        kept: &mut Registrations,
        kernel_entries: &mut impl KernelEntries,
    ) -> Result<Self, Errno> {
        let wanted = |fd: &PollFd<'_>| fd.events() | Events::ALWAYS;
        let mut not_open = 0;
        kept.begin();
        for (position, fd) in fds.iter_mut().enumerate() {
            not_open += usize::from(fd.clear_revents());
            kept.compare(position, fd.target(), wanted(fd))?;
        }
        let at = |position: usize| (fds[position].target(), wanted(&fds[position]));
        kept.settle(fds.len(), at, kernel_entries)?;
        Ok(PollFront { fds, not_open })
    }
}

impl Front for PollFront<'_, '_> {
    fn ready_anyway(&self) -> usize {
        self.not_open
    }

    fn report(&mut self, position: usize, found: Events) -> usize {
        self.fds[position].set_revents(found);
        1
    }
}

/// The sets of a `select`.
pub(crate) struct SelectFront<'c, 's> {
    selection: Selection<'s>,
    /// The members in the order of the list.
    fds: &'c [i32],
}

impl<'c, 's> SelectFront<'c, 's> {
    /// Compares these sets with the kept list, and updates the registrations in `kept`. Stores the
    /// members of the sets in `fds`.
    ///
    /// # Errors
    /// `EINVAL`: `n` is negative. `EBADF`: a member is not open. `ENOMEM`.
    #[inline]
    pub(crate) fn new<'a>(
        n: i32,
        sets: [Option<&'s mut FdSet>; 3],
        resolve: &impl Fn(i32) -> Option<Target<'a>>,
        found: &'s mut Bitmaps,
        fds: &'c mut Vec<i32>,
        kept: &mut Registrations,
        kernel_entries: &mut impl KernelEntries,
    ) -> Result<Self, Errno> {
        let selection = Selection::new(n, sets, found)?;
        fds.clear();
        kept.begin();
        selection.try_for_each(|member| {
            let target = resolve(member.fd()).ok_or(Errno::BADF)?;
            let position = fds.len();
            fds.try_reserve(1).map_err(|_| Errno::NOMEM)?;
            fds.push(member.fd());
            kept.compare(position, Some(target), member.counted())
        })?;
        let fds = &*fds;
        let at = |position: usize| {
            let member = selection.member(fds[position]);
            (resolve(member.fd()), member.counted())
        };
        kept.settle(fds.len(), at, kernel_entries)?;
        Ok(SelectFront { selection, fds })
    }

    pub(crate) fn into_selection(self) -> Selection<'s> {
        self.selection
    }
}

impl Front for SelectFront<'_, '_> {
    fn ready_anyway(&self) -> usize {
        0
    }

    fn report(&mut self, position: usize, found: Events) -> usize {
        let member = self.selection.member(self.fds[position]);
        self.selection.note_events(member, found)
    }
}

/// The registrations of `poll` and `select`, kept from one call to the next, for an embedder with a
/// scheduler of its own: the calls check and do not wait.
///
/// A call compares its list with the last one, changes what is registered where the two differ, and
/// looks only at the objects that were ready the last time or woke since. It finds what
/// [`poll_now`] would find. Entries are kept by open file, and keep no file open.
///
/// [`poll_now`]: crate::poll_now
#[cfg(all(not(feature = "std"), not(upoll_loom)))]
pub struct PollContext {
    kept: Registrations,
    fds: Vec<i32>,
}

/// A core by itself has no kernel entries.
#[cfg(all(not(feature = "std"), not(upoll_loom)))]
struct Nothing;

#[cfg(all(not(feature = "std"), not(upoll_loom)))]
impl KernelEntries for Nothing {}

#[cfg(all(not(feature = "std"), not(upoll_loom)))]
impl PollContext {
    /// A context in which nothing is registered.
    #[must_use]
    pub fn new() -> Self {
        PollContext {
            kept: Registrations::new(),
            fds: Vec::new(),
        }
    }

    /// Drops all registrations, and the memory of objects that have closed.
    pub fn clear(&mut self) {
        *self = Self::new();
    }

    /// `poll(2)` with a timeout of 0: fills in what is ready now, and returns the number of ready
    /// entries.
    ///
    /// # Errors
    /// `ENOMEM`: no memory for an entry that is new in the list; the next call tries again.
    pub fn poll_now(&mut self, fds: &mut [PollFd<'_>]) -> Result<usize, Errno> {
        let mut front = PollFront::new(fds, &mut self.kept, &mut Nothing)?;
        Ok(front.poll_all(&mut self.kept).ready)
    }

    /// `select(2)` with a timeout of 0: leaves the ready members in the sets, and returns their
    /// number.
    ///
    /// # Errors
    /// `EINVAL`: `n` is negative. `EBADF`: an fd below `n` is not open. `ENOMEM`: no memory for
    /// long sets, or for an fd that is new in them.
    pub fn select_now<'a>(
        &mut self,
        n: i32,
        read: Option<&mut FdSet>,
        write: Option<&mut FdSet>,
        except: Option<&mut FdSet>,
        resolve: impl Fn(i32) -> Option<Target<'a>>,
    ) -> Result<usize, Errno> {
        let (kept, fds) = (&mut self.kept, &mut self.fds);
        let sets = [read, write, except];
        let found = &mut Bitmaps::new();
        let mut front = SelectFront::new(n, sets, &resolve, found, fds, kept, &mut Nothing)?;
        let ready = front.poll_all(kept).ready;
        front.into_selection().finish();
        Ok(ready)
    }
}

#[cfg(all(not(feature = "std"), not(upoll_loom)))]
impl Default for PollContext {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(not(feature = "std"), not(upoll_loom)))]
impl core::fmt::Debug for PollContext {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PollContext")
            .field("entries", &self.kept.len())
            .finish_non_exhaustive()
    }
}
