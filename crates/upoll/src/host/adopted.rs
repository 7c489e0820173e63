//! A set of the program's in the kernel as the kernel backend of a set: so that the set's fd can be
//! the kernel's before and after.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use super::kernel;
use super::{EpollBackend, SleepSet};
use crate::Epoll;
use crate::epoll::callbacks::attend_silent_member;
use crate::errno::Errno;
use crate::memory::boxed;
use crate::sync::Ordering;

impl Epoll {
    /// Uses an epoll set of the kernel as the place of this set's members that are kernel fds. It
    /// has `members` of them already, or more.
    ///
    /// `kernel_set` may be closed afterwards. If this set has a place for such members already,
    /// that place stays. `members` that the last such call did not count are counted.
    ///
    /// From then on [`len`](Self::len), [`is_empty`](Self::is_empty) and [`fdinfo`](Self::fdinfo) read
    /// `/proc`, which alone shows these members. Without it, or without a free fd to read it, `len` counts
    /// members on that were closed, and `fdinfo` leaves out those that the kernel set had before.
    ///
    /// # Errors
    /// `EINVAL`: a rotating set, which keeps no members in one place. `EMFILE`, `ENFILE`, `ENOMEM`:
    /// the kernel has no fds or memory for it. `EAGAIN`, `EBUSY`, `ELOOP`:
    /// callbacks wait for the set or for one above it, and no thread can wait for them; the set has adopted the members, and a
    /// further call tries again. `EBADF`, `EINVAL`: `kernel_set` is not a set.
    #[doc(hidden)]
    pub fn adopt_kernel_set(
        &self,
        kernel_set: BorrowedFd<'_>,
        members: usize,
    ) -> Result<(), Errno> {
        if self.set().rotates() {
            return Err(Errno::INVAL);
        }
        let make = |specials: &_| SleepSet::around(kernel::duplicate_set(kernel_set)?, specials);
        let adopted = self.set().backend_or_insert(|| {
            let backend = EpollBackend::around(self.set(), make)?;
            backend.members.store(members, Ordering::Relaxed);
            backend
                .adopted_from
                .store(kernel_set.as_raw_fd(), Ordering::Relaxed);
            backend.adopted.store(members, Ordering::Relaxed);
            Ok(boxed(backend)?)
        });
        adopted?;
        // Sets that watch this one already must see events of the members.
        EpollBackend::ensure(self.description())?.count_adopted(members);
        attend_silent_member(self.description())
    }

    /// Makes room for an interest in the kernel fd `fd`, in a set that has a place for such members: its ADD
    /// does not fail for want of memory of this process.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    #[doc(hidden)]
    pub fn prepare_kernel_member(&self, fd: RawFd) -> Result<(), Errno> {
        let backend = EpollBackend::of(self.set());
        backend.map_or(Ok(()), |backend| backend.listed.prepare(fd))
    }

    /// Leaves the kernel set that was [adopted](Self::adopt_kernel_set) with nothing in it but the
    /// members: from now on the kernel may serve the set instead.
    ///
    /// Threads that wait in this set, by any call, continue to see events of those members. There
    /// must be no others, and none must be added.
    #[doc(hidden)]
    pub fn give_up_kernel_set(&self) {
        let Some(backend) = EpollBackend::of(self.set()) else {
            return;
        };
        // Members come and go without this set now.
        backend.members.fetch_add(1, Ordering::Relaxed);
        backend.first.fd.forget_wakes();
    }

    /// Returns whether the set has a place for members that are kernel fds.
    #[doc(hidden)]
    #[must_use]
    pub fn has_kernel_set(&self) -> bool {
        EpollBackend::of(self.set()).is_some()
    }

    /// Returns the number of interests that the set holds in files that are not the kernel's.
    #[doc(hidden)]
    #[must_use]
    pub fn len_in_core(&self) -> usize {
        self.set().lock().count()
    }

    /// Returns the number of interests that the set holds, or a larger one: closed kernel fds still count. Unlike
    /// [`len`](Self::len) it reads no file.
    #[doc(hidden)]
    #[must_use]
    pub fn len_at_most(&self) -> usize {
        let backend = EpollBackend::of(self.set());
        self.len_in_core() + backend.map_or(0, |backend| backend.members.load(Ordering::Relaxed))
    }
}

impl EpollBackend {
    /// Counts those that came after the kernel set was adopted, and not by this set.
    fn count_adopted(&self, members: usize) {
        if members > self.adopted.load(Ordering::Relaxed) {
            let before = self.adopted.fetch_max(members, Ordering::Relaxed);
            let came = members.saturating_sub(before);
            // Counted, then callbacks are looked for.
            self.members.fetch_add(came, Ordering::SeqCst);
        }
    }
}
