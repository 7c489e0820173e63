//! `epoll_ctl(2)`: `EPOLL_CTL_ADD`, `EPOLL_CTL_MOD` and `EPOLL_CTL_DEL` for any target.
//!
//! A user-level file becomes an item of the set ([`crate::epoll`]), and a kernel fd a member of the set's kernel
//! backend (`crate::host`). [`batch`] makes many changes in one call.

mod batch;

pub use self::batch::CtlCommand;

#[cfg(any(feature = "std", upoll_loom))]
use std::os::fd::AsRawFd;

use crate::Epoll;
use crate::epoll::Op;
use crate::errno::Errno;
use crate::events::Event;
use crate::target::{Source, Target};
use crate::trace;

impl Epoll {
    /// `EPOLL_CTL_ADD`: watches `source`.
    ///
    /// If it is ready already it is queued at once. `interest`'s data comes back with each event.
    ///
    /// # Errors
    /// In this order, as Linux checks:
    /// - `EPERM`: `source` is a kernel fd that cannot be polled, such as that of a regular file.
    /// - `EINVAL`: `source` is this set; or `EXCLUSIVE` with a set as `source`, or with bits other
    ///   than `IN`, `OUT`, `ERR`, `HUP`, `WAKEUP`, `ET`.
    /// - `ELOOP`: the set would watch itself through others, or sets would nest deeper than 5.
    /// - `EEXIST`: the open file is watched under this fd already.
    /// - `EINVAL`: a second source for a rotating set.
    /// - `ENOSPC`: the account of watches is used up, or for a kernel fd that of the user. `ENOMEM`: no memory.
    /// - `EINVAL`: more paths than Linux allows from a file up through sets that watch sets.
    ///
    /// Beside these:
    /// - `EMFILE`, `ENFILE`, `ENOMEM`, `ENOSPC`: `source` is, or is a set that has, a kernel fd or a shared eventfd, and
    ///   the kernel has no fds, memory or watches for the [own fds](Epoll#kernel-fds) of this set or of one above.
    /// - `EBUSY`: `source` is, or is a set that has, a kernel fd or a shared eventfd, and a
    ///   [`Watch`](crate::Watch) or [`Readiness`](crate::Readiness) waits for this set or for a set
    ///   above, which has [`ROTATE`](crate::CreateFlags::ROTATE). It would not be woken. Linux has no such error, nor such
    ///   waiters. If the set has no `ROTATE` the ADD can fail as [`Watch::new`](crate::Watch::new) does.
    #[doc(alias = "EPOLL_CTL_ADD")]
    pub fn add(&self, source: &(impl Source + ?Sized), interest: Event) -> Result<(), Errno> {
        self.ctl(Op::Add, source.target(), interest)
    }

    /// `EPOLL_CTL_MOD`: changes what is wanted of `source`, and its data.
    ///
    /// It re-arms a oneshot interest, and a ready edge-triggered one is reported anew.
    ///
    /// # Errors
    /// - `EPERM`: `source` is a kernel fd that cannot be polled.
    /// - `EINVAL`: `interest` has `EXCLUSIVE`, or `source` is this set.
    /// - `ENOENT`: `source` is not watched.
    /// - `EINVAL`: it is watched with `EXCLUSIVE`.
    #[doc(alias = "EPOLL_CTL_MOD")]
    pub fn modify(&self, source: &(impl Source + ?Sized), interest: Event) -> Result<(), Errno> {
        self.ctl(Op::Mod, source.target(), interest)
    }

    /// `EPOLL_CTL_DEL`: stops watching `source`.
    ///
    /// After it returned no event of it is reported, and its memory is no longer touched. A thread
    /// that waits in the set keeps waiting.
    ///
    /// # Errors
    /// `EPERM`: `source` is a kernel fd that cannot be polled. `EINVAL`: `source` is this set. `ENOENT`: it is not
    /// watched.
    #[doc(alias = "EPOLL_CTL_DEL")]
    pub fn delete(&self, source: &(impl Source + ?Sized)) -> Result<(), Errno> {
        self.ctl(Op::Del, source.target(), Event::default())
    }

    /// The same as [`delete`](Self::delete), by the name that collections have for it.
    ///
    /// # Errors
    /// As [`delete`](Self::delete).
    #[inline]
    pub fn remove(&self, source: &(impl Source + ?Sized)) -> Result<(), Errno> {
        self.delete(source)
    }

    /// `epoll_ctl(2)` with the operation as a value.
    ///
    /// # Errors
    /// As [`add`](Self::add), [`modify`](Self::modify) and [`delete`](Self::delete).
    #[doc(alias = "epoll_ctl")]
    #[inline(always)]
    pub fn ctl(&self, op: Op, target: Target<'_>, interest: Event) -> Result<(), Errno> {
        let result = self.ctl_untraced(op, target, interest);
        self.trace_change(op, target, interest, result);
        result
    }

    /// Sends the event of a change that has ended.
    #[inline(always)]
    fn trace_change(&self, op: Op, target: Target<'_>, interest: Event, result: Result<(), Errno>) {
        let set = self.as_file_ref().identity();
        let (file, fd) = match target {
            Target::File(file) => (Some(file.identity()), file.fd()),
            #[cfg(any(feature = "std", upoll_loom))]
            Target::Kernel(fd) => (None, fd.as_raw_fd()),
            #[cfg(any(feature = "std", upoll_loom))]
            Target::Descriptor(descriptor) => (None, descriptor.fd().as_raw_fd()),
        };
        trace::changed(set, op, file, fd, interest.events(), result);
    }

    /// [`ctl`](Self::ctl) for a caller that may hold locks, and traces the change later.
    #[inline(always)]
    fn ctl_untraced(&self, op: Op, target: Target<'_>, interest: Event) -> Result<(), Errno> {
        match target {
            Target::File(file) => self.file.ctl_file(op, file.0, interest),
            #[cfg(any(feature = "std", upoll_loom))]
            Target::Kernel(fd) => crate::host::ctl(self, op, fd, &interest),
            #[cfg(any(feature = "std", upoll_loom))]
            Target::Descriptor(descriptor) => {
                crate::host::ctl(self, op, descriptor.fd(), &interest)
            }
        }
    }
}
