//! `epoll_ctl(2)` of kernel fds, which are members of a set's kernel set.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use super::kernel::{self, Descriptor};
use super::{EpollBackend, own_fds};
use crate::Epoll;
use crate::epoll::Op;
use crate::epoll::backend::KernelBackend;
use crate::epoll::callbacks::attend_silent_member;
use crate::errno::Errno;
use crate::events::Event;
use crate::sync::Ordering;

/// [`kernel::epoll_ctl`], or the same without a check of the kernel set.
type KernelCtl = fn(&Descriptor, Op, RawFd, &Event) -> Result<(), Errno>;

/// `epoll_ctl(2)` for a kernel fd. The errors are the kernel's.
#[inline]
pub(crate) fn ctl(
    epoll: &Epoll,
    op: Op,
    fd: BorrowedFd<'_>,
    interest: &Event,
) -> Result<(), Errno> {
    ctl_by(epoll, op, fd, interest, kernel::epoll_ctl)
}

/// MOD for a kernel fd, in the call that has just changed another member of the set. The fd of the kernel set is not
/// checked again, unless the MOD fails.
#[cfg(not(upoll_loom))]
#[inline]
pub(crate) fn modify_once_more(
    epoll: &Epoll,
    fd: BorrowedFd<'_>,
    interest: &Event,
) -> Result<(), Errno> {
    ctl_by(epoll, Op::Mod, fd, interest, kernel::epoll_ctl_once_more)
}

#[inline]
fn ctl_by(
    epoll: &Epoll,
    op: Op,
    fd: BorrowedFd<'_>,
    interest: &Event,
    change: KernelCtl,
) -> Result<(), Errno> {
    let place = || {
        let members = EpollBackend::of(epoll.set())?.members();
        Some((members.identity(), members.as_raw_fd()))
    };
    let before = place();
    // The sets above the set were informed when the member was added.
    let changed = match EpollBackend::of(epoll.set()) {
        Some(backend) if op == Op::Mod && !backend.is_found_lost() => {
            backend.ctl_listed(epoll, op, fd.as_raw_fd(), interest, change)
        }
        _ => ctl_as_member(epoll, op, fd, interest),
    };
    match changed {
        // It may be the kernel set that is closed, not `fd`. Another thread may have made it anew meanwhile.
        Err(Errno::BADF | Errno::INVAL | Errno::NOENT | Errno::PERM)
            if EpollBackend::of(epoll.set()).is_some_and(|backend| !backend.is_intact())
                || place() != before =>
        {
            ctl_as_member(epoll, op, fd, interest)
        }
        changed => changed,
    }
}

/// Returns the error of a DEL or MOD in a set without kernel members.
#[cold]
fn refusal(op: Op, fd: BorrowedFd<'_>, interest: &Event) -> Errno {
    let asked = kernel::epoll_create()
        .and_then(|empty| kernel::epoll_ctl(&empty, op, fd.as_raw_fd(), interest));
    match asked {
        Err(errno @ (Errno::BADF | Errno::PERM | Errno::INVAL)) => errno,
        // Also where the kernel could not be asked.
        _ => Errno::NOENT,
    }
}

#[inline(never)]
fn ctl_as_member(epoll: &Epoll, op: Op, fd: BorrowedFd<'_>, interest: &Event) -> Result<(), Errno> {
    let description = epoll.description();
    let backend = match EpollBackend::of(description.object()) {
        // Only what is added has to be known above.
        Some(backend) if op != Op::Add || backend.is_known_above() => backend,
        None if op != Op::Add => return Err(refusal(op, fd, interest)),
        _ => EpollBackend::ensure(description)?,
    };
    backend.restore_found_lost(description)?;
    let fd = fd.as_raw_fd();
    if op == Op::Add {
        // Counted first: as soon as it is there another thread may look for it, or delete it.
        backend.members.fetch_add(1, Ordering::SeqCst);
    }
    let attended = match op {
        Op::Add => attend_silent_member(description),
        Op::Del | Op::Mod => Ok(()),
    };
    let changed =
        attended.and_then(|()| backend.ctl_listed(epoll, op, fd, interest, kernel::epoll_ctl));
    let left = match op {
        Op::Add => changed.is_err(),
        Op::Del => changed.is_ok(),
        Op::Mod => false,
    };
    if left {
        backend.members.fetch_sub(1, Ordering::Relaxed);
    }
    changed
}

impl EpollBackend {
    /// `epoll_ctl(2)` of a member, by `change`.
    #[inline]
    fn ctl_listed(
        &self,
        epoll: &Epoll,
        op: Op,
        fd: RawFd,
        interest: &Event,
        change: KernelCtl,
    ) -> Result<(), Errno> {
        if op == Op::Add && !self.listed.has_room(fd) {
            // The room grows with the fd, and one that is closed may be any number.
            kernel::check_open(fd)?;
            self.listed.prepare(fd)?;
        }
        if let Some(rotation) = &self.rotation {
            rotation.ctl(epoll, op, fd, *interest)?;
            self.listed.change(op, fd, interest);
            return Ok(());
        }
        let _changing = own_fds::may_be_lost().then(|| self.changing.lock());
        change(&self.first.fd, op, fd, interest)?;
        self.listed.change(op, fd, interest);
        Ok(())
    }
}
