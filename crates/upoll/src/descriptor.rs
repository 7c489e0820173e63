//! Fds of the kernel that are known to mean one open file.

use core::fmt;
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::{AsFd, BorrowedFd};

/// An owner or borrower of a kernel fd, with an identity of its own.
///
/// An fd means one open file only until it is closed. The kernel then uses the same fd for
/// another file, so the fd alone does not identify the file. A `Descriptor` has an identity
/// that no other one ever has. So a [`PollContext`](crate::PollContext) can leave it registered
/// between calls and know that its fd still means the same file.
///
/// It gives no access that could put another descriptor in the place of its own. If its
/// [`AsFd`] has several to offer it must offer the same each time.
///
/// # Example
/// ```
/// use std::io::Write;
/// use upoll::{Descriptor, Events, PollContext, PollFd};
/// let (reader, mut writer) = std::io::pipe().unwrap();
/// let reader = Descriptor::new(reader);
/// let mut context = PollContext::new();
/// writer.write_all(b"x").unwrap();
/// let mut fds = [PollFd::new(&reader, Events::IN)];
/// assert_eq!(context.poll(&mut fds, None)?, 1);
/// let reader: std::io::PipeReader = reader.into_inner();
/// # drop(reader);
/// # Ok::<(), upoll::Errno>(())
/// ```
pub struct Descriptor<T> {
    owner: T,
    identity: u64,
}

/// A borrowed [`Descriptor`].
#[derive(Clone, Copy, Debug)]
pub struct DescriptorRef<'a> {
    fd: BorrowedFd<'a>,
    identity: u64,
}

impl<T: AsFd> Descriptor<T> {
    /// Makes a descriptor of `owner`, with a new identity.
    #[must_use]
    pub fn new(owner: T) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Descriptor {
            owner,
            identity: NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Returns the fd with the identity.
    #[must_use]
    #[inline]
    pub fn by_ref(&self) -> DescriptorRef<'_> {
        DescriptorRef {
            fd: self.owner.as_fd(),
            identity: self.identity,
        }
    }
}

impl<T> Descriptor<T> {
    /// Returns the owner, and ends the identity.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.owner
    }
}

impl<'a> DescriptorRef<'a> {
    /// Returns the fd.
    #[must_use]
    #[inline]
    pub fn fd(self) -> BorrowedFd<'a> {
        self.fd
    }

    /// Never zero, and never another descriptor's.
    #[inline]
    pub(crate) fn identity(self) -> u64 {
        self.identity
    }
}

impl<T> Deref for Descriptor<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.owner
    }
}

impl<T: fmt::Debug> fmt::Debug for Descriptor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Descriptor").field(&self.owner).finish()
    }
}
