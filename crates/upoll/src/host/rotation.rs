//! The source of a rotating set, if it is a kernel fd.
//!
//! Each worker's kernel set watches the source by itself, edge-triggered and exclusive, so the
//! kernel wakes one worker that sleeps, the first in line, and passes over those that do not. A
//! worker that was chosen registers anew before it sleeps again, which makes it the last in line.
//!
//! # The source's fd
//! The user may close the source's fd at any time, and the fd may stand for another file the next
//! moment. The registrations use that fd, since an own fd of the library would keep the source
//! open. They are in kernel sets that hold nothing of the user's, so they never meet a registration
//! of the user's under the same fd. A DEL that succeeds was the source's. After an ADD the fd is
//! checked: it still stands for the source if `members`, which has the source under that fd,
//! refuses it as a duplicate. Else the new registration is deleted again.
//!
//! So an event after which the worker stands last costs four system calls: DEL, ADD, the check and the sleep. Three
//! checks of own fds that are not protected come on top ([`own_fds`](super::own_fds)). The check cannot be left
//! to the next DEL, which succeeds for any file that the ADD has found under the fd. Until then the
//! worker would sleep in that file's line, and could take an exclusive wakeup from another waiter
//! there. A second kernel set cannot replace the check (ADD there first, then a DEL here that
//! succeeds for the source only). The kernel passes over an exclusive registration in a set in
//! which no thread sleeps, so the worker would have to sleep in both sets alternately.
//!
//! A source whose fd was closed counts as gone, even while its file lives on under another fd: a
//! second source may then be added.

use std::os::fd::{AsRawFd, RawFd};

use super::interest_list::{Listed, inode_to_list};
use super::kernel::Descriptor;
use super::nested::Renew;
use super::{EDGE, EpollBackend, exists, harvest_of, kernel};
use crate::Epoll;
use crate::epoll::nesting::sets_above;
use crate::epoll::{Op, Set};
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::memory::boxed;
use crate::sync::{AtomicBool, AtomicU32, Mutex, OnceBox, Ordering, is_held_by_this_thread};

/// The additional kernel backend of a rotating set.
pub(super) struct Rotation {
    /// A kernel set with the source alone, in which no thread sleeps. It keeps the interest, and is
    /// readable while the source is ready by it.
    pub(super) members: Descriptor,
    /// A kernel set with `members` and the set that workers' sets nest, once somebody polls.
    for_pollers: OnceBox<Descriptor>,
    /// Guards the registrations. Nests inside the workers' sets' locks and
    /// the lock of the rotating set.
    source: Mutex<Option<SourceFd>>,
    /// The interest in the source is level-triggered. Written under `source`'s lock.
    pub(super) is_level: AtomicBool,
    /// The events of the source that workers are woken for. Written under `source`'s lock, which is held for several system
    /// calls at a time, and read by each worker that is woken.
    woken_for: AtomicU32,
}

#[derive(Clone, Copy)]
struct SourceFd {
    /// The user's fd.
    fd: RawFd,
    wanted: Events,
    data: u64,
    /// As [`Listed::inode`].
    inode: u64,
    /// Workers are to forget it.
    leaving: bool,
}

impl Rotation {
    pub(super) fn new() -> Result<Self, Errno> {
        Ok(Rotation {
            members: kernel::epoll_create()?,
            for_pollers: OnceBox::new(),
            source: Mutex::new(None),
            is_level: AtomicBool::new(false),
            woken_for: AtomicU32::new(0),
        })
    }

    /// A kernel set that is readable when the source is, or `nested`. If the kernel has no more
    /// descriptors it is that of the source alone.
    pub(super) fn for_pollers(&self, nested: &Descriptor) -> &Descriptor {
        self.try_for_pollers(nested).unwrap_or(&self.members)
    }

    /// As [`for_pollers`](Self::for_pollers). Fails if the kernel has no more descriptors.
    pub(super) fn try_for_pollers(&self, nested: &Descriptor) -> Result<&Descriptor, Errno> {
        self.for_pollers.get_or_try_init(|| {
            let both = kernel::epoll_create()?;
            self.register_for_pollers(&both, nested)?;
            boxed(both)
        })
    }

    /// As [`EpollBackend::is_in_place`].
    pub(super) fn is_in_place(&self) -> bool {
        self.members.is_in_place() && self.for_pollers.get().is_none_or(Descriptor::is_in_place)
    }

    /// As [`EpollBackend::is_intact`].
    pub(super) fn is_intact(&self) -> bool {
        self.members.is_intact() && self.for_pollers.get().is_none_or(Descriptor::is_intact)
    }

    /// As [`is_found_lost`](crate::epoll::backend::KernelBackend::is_found_lost).
    pub(super) fn is_found_lost(&self) -> bool {
        self.members.is_found_lost()
            || self
                .for_pollers
                .get()
                .is_some_and(Descriptor::is_found_lost)
    }

    /// Makes lost kernel sets anew. `add_again` adds the source to the new one in the place of `members`.
    /// `nested` is as in [`for_pollers`](Self::for_pollers), and may be new as well.
    pub(super) fn restore(
        &self,
        nested: &Descriptor,
        add_again: impl FnOnce(&Descriptor, Listed) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        // Changes of the source in `members` hold this lock as well.
        let source = self.source.lock();
        if !self.members.is_intact() {
            let anew = kernel::epoll_create_elsewhere(&self.members)?;
            if let Some(source) = *source {
                add_again(&anew, source.listed())?;
            }
            self.members.replace_lost(anew);
        }
        let Some(both) = self.for_pollers.get() else {
            return Ok(());
        };
        if !both.is_intact() {
            both.replace_lost(kernel::epoll_create_elsewhere(both)?);
        }
        self.register_for_pollers(both, nested)
    }

    fn register_for_pollers(&self, both: &Descriptor, nested: &Descriptor) -> Result<(), Errno> {
        for (fd, events) in [(&self.members, Events::IN), (nested, EDGE)] {
            let interest = Event::new(events, 0);
            exists(kernel::epoll_ctl(both, Op::Add, fd.as_raw_fd(), &interest))?;
        }
        Ok(())
    }

    /// Takes back what the sets below have told pollers, who look at them next.
    pub(super) fn quiet_pollers(&self) {
        if let Some(both) = self.for_pollers.get() {
            harvest_of(both, &mut [Event::default(); 2]);
        }
    }

    /// Returns whether the source is ready by its interest. Consumes nothing.
    pub(super) fn is_ready(&self) -> bool {
        kernel::is_readable(&self.members)
    }

    /// Returns whether there is a source that its fd still stands for.
    pub(super) fn has_source(&self) -> bool {
        let source = self.source.lock();
        source.is_some_and(|source| self.is_current(source))
    }

    /// Returns whether the source's lock is held by the code that this call, in a signal handler, has interrupted.
    pub(super) fn is_locked_here(&self) -> bool {
        is_held_by_this_thread(&self.source)
    }

    /// The user's fd of the source.
    pub(super) fn fd(&self) -> Option<RawFd> {
        self.source.lock().map(|source| source.fd)
    }

    /// Returns whether the fd still stands for the source. `source` is locked.
    fn is_current(&self, source: SourceFd) -> bool {
        let fd = source.fd;
        match kernel::epoll_ctl(&self.members, Op::Add, fd, &Event::default()) {
            Err(Errno::EXIST) => true,
            Err(_) => {
                // The program may have closed either fd.
                self.members.is_lost_after_failure();
                false
            }
            Ok(()) => {
                let _ = kernel::epoll_ctl(&self.members, Op::Del, fd, &Event::default());
                false
            }
        }
    }

    /// Registers the source with a worker's kernel set, which may have it already for another rotating
    /// set, whose workers are woken for `more`. Returns its fd if that still stands for it. `source` is locked.
    fn register(
        &self,
        worker: &Descriptor,
        source: SourceFd,
        data: u64,
        more: Events,
        ctl: impl Fn(&Descriptor, Op, RawFd, &Event) -> Result<(), Errno>,
    ) -> Result<Option<RawFd>, Errno> {
        let fd = source.fd;
        let own = source.woken_for();
        let woken_for = match more.is_empty() {
            true => own,
            false => woken_for_both(own, more),
        };
        let interest = Event::new(woken_for, data);
        let add = || ctl(worker, Op::Add, fd, &interest);
        let mut added = add();
        if added == Err(Errno::EXIST) && self.is_current(source) {
            // That is for what the other set's workers are woken for. It is an exclusive one, so MOD does not change it.
            let _ = kernel::epoll_ctl(worker, Op::Del, fd, &Event::default());
            added = add();
        }
        let is_current = self.is_current(source);
        match added {
            Ok(()) if !is_current => {
                let _ = kernel::epoll_ctl(worker, Op::Del, fd, &Event::default());
                Ok(None)
            }
            Err(errno) if is_current && errno != Errno::EXIST => Err(errno),
            _ => Ok(is_current.then_some(fd)),
        }
    }

    /// The events of the source that workers are woken for.
    pub(super) fn woken_for(&self) -> Events {
        Events::from_bits_retain(self.woken_for.load(Ordering::Relaxed))
    }

    /// Publishes the properties of the source that other threads read without the lock, which is held.
    fn note_interest(&self, source: SourceFd) {
        self.is_level.store(source.is_level(), Ordering::Relaxed);
        let woken_for = source.woken_for().bits();
        self.woken_for.store(woken_for, Ordering::Relaxed);
    }

    /// Registers the source in the worker's kernel set `worker`, also for `more`. Returns the source's fd, if there
    /// is a source.
    pub(super) fn watch(
        &self,
        worker: &Descriptor,
        data: u64,
        more: Events,
    ) -> Result<Option<RawFd>, Errno> {
        let source = self.source.lock();
        let Some(source) = source.filter(|source| !source.leaving) else {
            return Ok(None);
        };
        self.register(worker, source, data, more, kernel::epoll_ctl)
    }

    /// Deletes the source from the worker's kernel set. The kernel has already done so if the
    /// source was closed.
    pub(super) fn unwatch(&self, worker: &Descriptor) {
        let source = self.source.lock();
        if let Some(source) = source.filter(|&source| self.is_current(source)) {
            let _ = kernel::epoll_ctl(worker, Op::Del, source.fd, &Event::default());
        }
    }

    /// Makes the worker the last in line. Returns the source's fd, if the worker
    /// still watches it. Fails with `EBADF` if that is closed, or is another file's while `sharing`: the registration is as
    /// it was then.
    ///
    /// `sharing`: the worker's kernel set has a source under the same fd for another rotating set, whose workers
    /// are woken for these events.
    pub(super) fn renew(
        &self,
        worker: &Descriptor,
        data: u64,
        sharing: Option<Events>,
    ) -> Result<Option<RawFd>, Errno> {
        let source = self.source.lock();
        let Some(source) = *source else {
            return Ok(None);
        };
        if sharing.is_some() && !self.is_current(source) {
            // Another file's registration would be deleted. That of the source lives on as long as its file does.
            return Err(Errno::BADF);
        }
        match kernel::epoll_ctl(worker, Op::Del, source.fd, &Event::default()) {
            Err(Errno::BADF) => Err(Errno::BADF),
            // The fd means something else by now.
            Err(_) => Ok(None),
            // If a registration stayed, the next ADD of the source would find it. The kernel's line
            // would then not learn what is ready at that time.
            Ok(()) if source.leaving => Ok(None),
            Ok(()) => {
                let more = sharing.unwrap_or_default();
                self.register(worker, source, data, more, kernel::epoll_ctl_once_more)
            }
        }
    }

    /// `epoll_ctl` on a rotating set.
    pub(super) fn ctl(
        &self,
        epoll: &Epoll,
        op: Op,
        fd: RawFd,
        interest: Event,
    ) -> Result<(), Errno> {
        match op {
            Op::Add => {
                self.add(epoll, fd, interest)?;
                self.tell_workers(epoll).inspect_err(|_| {
                    let _ = self.delete(epoll, fd);
                })
            }
            Op::Mod => {
                let Some(before) = self.modify(epoll, fd, interest)? else {
                    return Ok(());
                };
                self.tell_workers(epoll).inspect_err(|_| {
                    let _ = self.modify(epoll, fd, before);
                    // Workers that have forgotten it watch it again.
                    let _ = self.tell_workers(epoll);
                })
            }
            Op::Del => self.delete(epoll, fd),
        }
    }

    /// Applies the program's slack to the workers of `set`, which is this state's. Does nothing without a source.
    pub(super) fn apply_slack(&self, set: &Set) {
        let source = self.source.lock();
        if let Some(source) = source.filter(|&source| self.is_current(source)) {
            source.apply_slack_to(set);
        }
    }

    fn add(&self, epoll: &Epoll, fd: RawFd, interest: Event) -> Result<(), Errno> {
        let locked = epoll.set().lock();
        let mut source = self.source.lock();
        let added = kernel::epoll_ctl(&self.members, Op::Add, fd, &interest);
        let is_second = match (added, *source) {
            (Err(errno), _) => return Err(errno),
            (Ok(()), Some(old)) => old.fd != fd && self.is_current(old),
            (Ok(()), None) => locked.count() > locked.nested(),
        };
        if is_second {
            let _ = kernel::epoll_ctl(&self.members, Op::Del, fd, &Event::default());
            return Err(Errno::INVAL);
        }
        let new = SourceFd {
            fd,
            wanted: interest.events(),
            data: interest.data(),
            inode: inode_to_list(fd),
            leaving: false,
        };
        self.note_interest(new);
        *source = Some(new);
        new.apply_slack_to(epoll.set());
        Ok(())
    }

    /// Returns the interest that there was in the source; None if it is not registered under this fd.
    fn modify(&self, epoll: &Epoll, fd: RawFd, interest: Event) -> Result<Option<Event>, Errno> {
        let mut source = self.source.lock();
        // The kernel finds the right error for what is not registered.
        kernel::epoll_ctl(&self.members, Op::Mod, fd, &interest)?;
        let Some(changed) = source.as_mut().filter(|source| source.fd == fd) else {
            return Ok(None);
        };
        let before = Event::new(changed.wanted, changed.data);
        changed.wanted = interest.events();
        changed.data = interest.data();
        self.note_interest(*changed);
        changed.apply_slack_to(epoll.set());
        Ok(Some(before))
    }

    fn delete(&self, epoll: &Epoll, fd: RawFd) -> Result<(), Errno> {
        let mut source = self.source.lock();
        let leaving = source.filter(|source| source.fd == fd);
        let Some(leaving) = leaving.filter(|&source| self.is_current(source)) else {
            return kernel::epoll_ctl(&self.members, Op::Del, fd, &Event::default());
        };
        if leaving.leaving {
            // Another thread deletes it.
            return Err(Errno::NOENT);
        }
        *source = Some(SourceFd {
            leaving: true,
            ..leaving
        });
        drop(source);
        // The workers first, while `members` can distinguish the source from another file.
        let told = self.tell_workers(epoll);
        let mut source = self.source.lock();
        let is_leaving = |source: &&mut SourceFd| source.leaving && source.fd == fd;
        let Some(leaving) = source.as_mut().filter(is_leaving) else {
            // Closed meanwhile, and another one came.
            return Err(Errno::NOENT);
        };
        if let Err(errno) = told {
            leaving.leaving = false;
            drop(source);
            // Workers that have forgotten it watch it again.
            let _ = self.tell_workers(epoll);
            return Err(errno);
        }
        *source = None;
        epoll.set().watched_by.set_slack(0);
        match kernel::epoll_ctl(&self.members, Op::Del, fd, &Event::default()) {
            // It is made anew without the source.
            Err(_) if self.members.is_lost_after_failure() => Ok(()),
            deleted => deleted,
        }
    }

    /// Updates every worker's kernel set after the source was added or changed, or before it
    /// leaves.
    fn tell_workers(&self, epoll: &Epoll) -> Result<(), Errno> {
        let rotating = epoll.description();
        for worker in sets_above(rotating.watchers())? {
            let backend = EpollBackend::ensure_nesting(&worker)?;
            backend.ensure_intact(&worker)?;
            backend.link(&worker.object().lock(), rotating, Renew::Source)?;
        }
        Ok(())
    }
}

/// Returns the interest in a source that two rotating sets share. The kernel takes few events beside `EXCLUSIVE`, so both
/// have to be exclusive ones.
pub(super) fn woken_for_both(one: Events, other: Events) -> Events {
    ((one | other) - Events::EXCLUSIVE) | (one & other & Events::EXCLUSIVE)
}

impl SourceFd {
    fn listed(self) -> Listed {
        Listed {
            fd: self.fd,
            interest: Event::new(self.wanted, self.data),
            is_again: false,
            inode: self.inode,
        }
    }

    /// The events of the interest that the kernel accepts beside `EXCLUSIVE`, and wakes for by these.
    fn read_and_written(self) -> Events {
        let reads = Events::IN | Events::RDNORM;
        let writes = Events::OUT | Events::WRNORM;
        let mut events = Events::empty();
        events.set(Events::IN, self.wanted.intersects(reads));
        events.set(Events::OUT, self.wanted.intersects(writes));
        events
    }

    /// Returns whether the set is ready whenever the source is, by an event that workers are woken for.
    fn is_level(self) -> bool {
        let as_asked = Events::IN | Events::OUT;
        (self.wanted - as_asked - Events::ALWAYS).is_empty() && self.wanted.intersects(as_asked)
    }

    /// Applies the program's slack to the workers of `set`. A worker of a source that is not level-triggered
    /// cannot find out whether it may go on. The source's lock is held.
    fn apply_slack_to(self, set: &Set) {
        let slack = match self.is_level() {
            true => set.slack.load(Ordering::Relaxed),
            false => 0,
        };
        set.watched_by.set_slack(slack);
    }

    /// Returns the interest in the source that a worker's kernel set has.
    ///
    /// Beside `EXCLUSIVE` the kernel accepts only `IN` and `OUT`. Their finer bits come with them, and a later poll checks
    /// for these. Where that is not so the interest is not exclusive. An exclusive wake for `IN` would be lost to others
    /// that wait for `IN` at the source if a worker has nothing of it.
    fn woken_for(self) -> Events {
        let asked = self.read_and_written();
        let mut finer = Events::PRI | Events::RDBAND | Events::MSG | Events::WRBAND;
        // The end of a stream is readable.
        finer.set(Events::RDHUP, !asked.contains(Events::IN));
        let finer = self.wanted & finer;
        match finer.is_empty() {
            true => asked | Events::EXCLUSIVE | Events::ET,
            false => asked | finer | Events::ET,
        }
    }
}
