//! Own fds of a set that the program has closed or replaced: they are found, and made anew.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::interest_list::Listed;
use super::kernel::{self, Descriptor};
use super::nested::Renew;
use super::rotation::Rotation;
use super::special::Special;
use super::{EpollBackend, exists, own_fds};
use crate::epoll::backend::KernelBackend;
use crate::epoll::interest::LockedSet;
use crate::epoll::nesting::sets_above;
use crate::epoll::{Op, Set};
use crate::errno::Errno;
use crate::events::Events;
use crate::file::{Description, Held};
use crate::sync::Ordering;

impl EpollBackend {
    /// Returns whether the fds of the kernel sets stand for them, by one system call for each.
    pub(super) fn is_in_place(&self) -> bool {
        self.first.fd.is_in_place()
            && self
                .nesting
                .get()
                .is_none_or(|nesting| nesting.fd.is_in_place())
            && self.rotation.as_ref().is_none_or(Rotation::is_in_place)
            && self
                .shown
                .get()
                .is_none_or(|shown| shown.ready.fd.is_in_place())
    }

    /// As [`is_in_place`](Self::is_in_place), with nothing left to chance.
    pub(super) fn is_intact(&self) -> bool {
        self.first.fd.is_intact()
            && self
                .nesting
                .get()
                .is_none_or(|nesting| nesting.fd.is_intact())
            && self.rotation.as_ref().is_none_or(Rotation::is_intact)
            && self
                .shown
                .get()
                .is_none_or(|shown| shown.ready.fd.is_intact())
    }

    /// Checks all fds, and makes anew what was lost.
    ///
    /// # Errors
    /// The kernel has nothing for it.
    pub(crate) fn ensure_intact(&self, description: &Description<Set>) -> Result<(), Errno> {
        if own_fds::may_be_lost() {
            self.is_in_place();
        }
        self.restore_found_lost(description)
    }

    /// As [`ensure_intact`](Self::ensure_intact), without a check of the sets below, of which one may be the caller.
    pub(super) fn ensure_own_intact(&self, description: &Description<Set>) -> Result<(), Errno> {
        match self.is_found_lost() || own_fds::may_be_lost() && !self.is_in_place() {
            true => self.restore(description),
            false => Ok(()),
        }
    }

    #[inline]
    pub(super) fn is_half_restored(&self) -> bool {
        self.is_half_restored.load(Ordering::Relaxed)
    }

    /// Makes the lost kernel sets of the sets below anew, which this one cannot notice by itself. It also links them to this one,
    /// as another thread that has made one anew may not have come to that.
    #[cold]
    pub(super) fn restore_below(&self, set: &Set) -> Result<(), Errno> {
        let below = self.sets_below(&set.lock())?;
        below.iter().try_for_each(|inner| {
            ensure_intact(inner)?;
            // Not to the others above it: the kernel may refuse one of them.
            match EpollBackend::of(inner.object()) {
                Some(backend) if !backend.is_known_above() => {
                    let inner: &Description<Set> = inner;
                    self.link(&set.lock(), inner, Renew::No)
                }
                _ => Ok(()),
            }
        })
    }

    /// See [`KernelBackend::restore_found_lost`]. If the kernel refuses something the next use of the set tries
    /// again.
    #[cold]
    pub(super) fn restore(&self, description: &Description<Set>) -> Result<(), Errno> {
        let mut restored = self.make_anew(description);
        for _ in 0..2 {
            // An own fd was closed, or made anew by another thread, in the midst of that.
            if restored == Err(Errno::BADF) {
                restored = self.make_anew(description);
            }
        }
        if restored.is_err() {
            self.is_half_restored.store(true, Ordering::Relaxed);
        }
        restored
    }

    /// Makes anew what was lost, and registers everything. Returns the sets below. `locked` is this set.
    fn register_anew(&self, locked: &LockedSet<'_>) -> Result<Vec<Held<Set>>, Errno> {
        let mut below = Vec::new();
        if !self.first.fd.is_intact() {
            self.restore_first()?;
        }
        if let Some(nesting) = self.nesting.get()
            && !nesting.fd.is_intact()
        {
            nesting
                .fd
                .replace_lost(kernel::epoll_create_elsewhere(&nesting.fd)?);
        }
        self.restore_shown()?;
        if let Some(rotation) = &self.rotation {
            rotation.restore(&self.first.fd, |anew, source| self.add_again(anew, source))?;
        }
        if let Some(nesting) = self.nesting() {
            if !self.first_is_nesting {
                let members = self.first.fd.as_raw_fd();
                let special = Special::Members;
                exists(nesting.register(&self.specials, Op::Add, members, Events::IN, special))?;
            }
            below = self.link_anew(locked, nesting)?;
            self.listen_anew(locked, nesting)?;
        }
        Ok(below)
    }

    pub(super) fn make_anew(&self, description: &Description<Set>) -> Result<(), Errno> {
        let below;
        {
            let _restoring = self.restoring.lock();
            let set = description.object();
            let locked = set.lock_from_above();
            // Another thread may have made it anew meanwhile, and not come to the sets below yet.
            below = if self.is_half_restored() || !self.is_intact() {
                // From now on a call on the set waits here until all is in place again. A set that is made anew counts as
                // lost no more, and a harvest would find nothing in it.
                self.is_half_restored.store(true, Ordering::SeqCst);
                self.register_anew(&locked)?
            } else {
                self.sets_below(&locked)?
            };
            // Sets below and above look here while they are made anew: this one is done.
            self.is_half_restored.store(false, Ordering::Relaxed);
        }
        // A wake may have gone to a lost kernel set, or been taken back in the new one, just before a thread slept there.
        self.wake_another(description.object());
        below.iter().try_for_each(ensure_intact)?;
        // Those above know the old ones, and may have been lost as well.
        for above in sets_above(description.watchers())? {
            if let Some(backend) = EpollBackend::of(above.object())
                && !backend.is_intact()
            {
                backend.restore(&above)?;
            }
        }
        let was_known = self.known_above.swap(0, Ordering::AcqRel) != 0;
        // Another thread may just have linked the readiness fd that was lost.
        let known = EpollBackend::ensure(description).and_then(|_| self.link_shown());
        description.object().wake_watchers();
        match known {
            // A set that is nested too deep was refused to the program before, and works by itself.
            Err(Errno::LOOP | Errno::INVAL) if !was_known => Ok(()),
            known => known,
        }
    }

    pub(super) fn restore_first(&self) -> Result<(), Errno> {
        let _changing = self.changing.lock();
        let adopted = self.adopted_from.load(Ordering::Relaxed);
        if adopted >= 0 {
            // SAFETY: only duplicated.
            let behind = unsafe { BorrowedFd::borrow_raw(adopted) };
            if self.first.fd.may_be_at(adopted)
                && let Ok(fd) = kernel::duplicate_set(behind)
            {
                self.first.fd.replace_lost(fd);
                return Ok(());
            }
        }
        let anew = kernel::epoll_create_elsewhere(&self.first.fd)?;
        if self.rotation.is_none() {
            self.add_listed(&anew)?;
        }
        self.first.fd.replace_lost(anew);
        Ok(())
    }

    /// Adds all members to a kernel set that is new.
    pub(super) fn add_listed(&self, anew: &Descriptor) -> Result<(), Errno> {
        let mut listed = self.listed.iter();
        listed.try_for_each(|listed| self.add_again(anew, listed))
    }

    /// Adds a member to a kernel set that is new, unless it was closed.
    pub(super) fn add_again(&self, anew: &Descriptor, member: Listed) -> Result<(), Errno> {
        let fd = member.fd;
        let inode = kernel::inode(fd);
        let is_another = inode.is_none_or(|inode| member.inode != 0 && inode != member.inode);
        if is_another || own_fds::is_set_or_seal(fd) {
            // It was closed, and may mean another file by now, also a set or a seal of the library's.
            self.listed.remove(fd);
            return Ok(());
        }
        match kernel::epoll_ctl(anew, Op::Add, fd, &member.interest) {
            // Another file with the same inode, which cannot be a member, or none by now: the one that was is closed.
            Err(Errno::PERM | Errno::BADF) if !anew.is_lost_after_failure() => {
                self.listed.remove(fd);
                Ok(())
            }
            added => exists(added),
        }
    }
}

/// See [`EpollBackend::ensure_intact`].
pub(super) fn ensure_intact(set: &Held<Set>) -> Result<(), Errno> {
    match EpollBackend::of(set.object()) {
        Some(backend) => backend.ensure_intact(set),
        None => Ok(()),
    }
}
