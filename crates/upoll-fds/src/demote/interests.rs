//! The interests that sets have in objects that are being demoted: the kernel sets behind take them over.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::os::fd::{BorrowedFd, RawFd};

use upoll::internal::SharedBox;
use upoll::{Errno, Event, Events, Op, Target};

use crate::counts;
use crate::held::{Group, Held};
use crate::kernel;
use crate::object::Object;
use crate::set::SetWithFd;
use crate::table;
use crate::transfer::Own;

/// An interest of a set in an object that is being demoted.
pub(super) struct Interest {
    /// The group of the object, by its first fd.
    group: RawFd,
    /// The number of interests that were found before this one.
    at: usize,
    pub(super) object: Object,
    pub(super) set: SharedBox<SetWithFd>,
    fd: RawFd,
    event: Event,
    /// An error if the set cannot hold kernel members, and has an fd left by which anybody could wait in it.
    pub(super) prepared: Result<(), Errno>,
    /// True if the interest has been deleted from the set.
    pub(super) is_taken: Cell<bool>,
    /// The fd under which the kernel set watches the object, for no events so far.
    reserved: Cell<Option<RawFd>>,
    /// An fd for that alone, if the interest's own one is closed. The kernel set keeps the interest when it is closed.
    spare: RefCell<Option<Own>>,
}

/// Splits the interests in the next group's objects off `rest`. The caller must pass groups in their
/// order.
pub(super) fn own_interests<'a>(rest: &mut &'a [Interest], group: &Group<'_>) -> &'a [Interest] {
    let is_of_another = |interest: &Interest| interest.group != group.first();
    let end = rest.iter().position(is_of_another).unwrap_or(rest.len());
    let (own, others) = rest.split_at(end);
    *rest = others;
    own
}

/// Returns the interests of all sets in the held objects that are no longer in use, in the order of the objects' groups.
///
/// # Errors
/// `ENOMEM`: there is no memory for the lists.
pub(super) fn interests_in(held: &Held) -> Result<Vec<Interest>, Errno> {
    let sets = sets_beside(held)?;
    let mut files = HashMap::new();
    if !sets.is_empty() {
        for (object, first) in held.unused() {
            files.try_reserve(1).map_err(|_| Errno::NOMEM)?;
            files.insert(object.as_file_ref(0).address(), (object, first));
        }
    }
    let (mut all, mut known) = (Vec::new(), HashSet::new());
    for (epfd, set) in &sets {
        // A set with several fds is listed once for each.
        known.try_reserve(1).map_err(|_| Errno::NOMEM)?;
        if !known.insert(SharedBox::as_ptr(set)) {
            continue;
        }
        let interests = set
            .as_epoll()
            .interests_by(|address| files.get(&address).copied())?;
        all.try_reserve(interests.len()).map_err(|_| Errno::NOMEM)?;
        for ((object, group), fd, event) in interests {
            all.push(Interest {
                group,
                at: all.len(),
                object: object.clone(),
                set: SharedBox::clone(set),
                fd,
                event,
                prepared: prepare(set, *epfd, held),
                is_taken: Cell::new(false),
                reserved: Cell::new(None),
                spare: RefCell::new(None),
            });
        }
    }
    // Interests of one group stay in the order in which they were found. A stable sort would take
    // memory.
    all.sort_unstable_by_key(|interest| (interest.group, interest.at));
    Ok(all)
}

/// Returns all sets with user-level members, except those that are held and cannot be looked up now. A set
/// that is made later does not watch a held object.
///
/// # Errors
/// `ENOMEM`: there is no memory for the list.
pub(super) fn sets_beside(held: &Held) -> Result<Vec<(RawFd, SharedBox<SetWithFd>)>, Errno> {
    let set = |object: &Object| match object {
        Object::Epoll(set) if !set.is_passive() => Some(SharedBox::clone(set)),
        _ => None,
    };
    let mut sets = Vec::new();
    counts::repeat_passes(|| {
        sets.clear();
        for fd in held.others() {
            sets.try_reserve(1).map_err(|_| Errno::NOMEM)?;
            sets.extend(table::with(fd, set).flatten().map(|set| (fd, set)));
        }
        Ok::<_, Errno>(false)
    })?;
    Ok(sets)
}

/// Makes a set able to hold kernel members, unless it rotates, or has no fd left by which anybody could wait in it.
/// Fails if there are no fds or no memory for that. Other threads may close `epfd` and copy it meanwhile, so all of `held` must still
/// be held: its fds are not looked at.
fn prepare(set: &SharedBox<SetWithFd>, epfd: RawFd, held: &Held) -> Result<(), Errno> {
    let adopt_under = |epfd| {
        let adopted = table::with(epfd, |object| match object {
            Object::Epoll(found) if SharedBox::ptr_eq(found, set) => Some(set.adopt(epfd)),
            _ => None,
        });
        // Another thread may be just closing the fd.
        adopted
            .flatten()
            .filter(|adopted| *adopted != Err(Errno::BADF))
    };
    if let Some(adopted) = adopt_under(epfd) {
        return adopted;
    }
    // The fd is closed, but there may be a copy of it. The pass that finds it is the last.
    let found = counts::repeat_passes(|| {
        let adopted = held.others().find_map(adopt_under);
        adopted.map_or(Ok(false), Err)
    });
    found.err().unwrap_or(Ok(()))
}

/// Restores the interests of objects that stay user-level.
pub(super) fn give_back(interests: &[Interest]) {
    for interest in interests.iter().filter(|interest| interest.is_taken.get()) {
        // Without memory for it, the interest is lost. A set keeps that of a few interests, but an interest in another set
        // takes more.
        let _ = interest.add(&interest.object);
    }
}

impl Interest {
    /// Deletes the interest from the set, so that no wait returns an event of it and one of the kernel's together.
    pub(super) fn take(&self) {
        let target = Target::File(self.object.as_file_ref(self.fd));
        let deleted = self.set.as_epoll().ctl(Op::Del, target, Event::default());
        self.is_taken.set(deleted.is_ok());
    }

    /// Makes the set watch `object` under the interest's fd.
    pub(super) fn add(&self, object: &Object) -> Result<(), Errno> {
        let target = Target::File(object.as_file_ref(self.fd));
        self.set.as_epoll().ctl(Op::Add, target, self.event)
    }

    /// Returns whether the interest's fd still stands for the object.
    pub(super) fn has_own_fd(&self, group: &Group<'_>) -> bool {
        self.open_in(group).any(|fd| fd == self.fd)
    }

    /// Returns the fds by which the kernel set may watch the object, its own fd first. If that was closed while another keeps
    /// the file open, the spare fd comes first. The others serve as well.
    pub(super) fn fds_in(&self, group: &Group<'_>) -> impl Iterator<Item = RawFd> {
        let own = self.open_in(group).filter(|&fd| fd == self.fd);
        let spare = self.spare.borrow().as_ref().map(Own::fd);
        own.chain(spare).chain(self.open_in(group))
    }

    /// Returns the fds of the object.
    fn open_in(&self, group: &Group<'_>) -> impl Iterator<Item = RawFd> {
        let objects = group.objects();
        let same = objects.filter(|(_, object)| object.is_same_file(&self.object));
        same.map(|(fd, _)| fd)
    }

    /// Changes an interest of the kernel set under one of [`fds_in`](Self::fds_in).
    fn ctl_kernel(&self, op: Op, fd: RawFd, event: Event) -> Result<(), Errno> {
        // SAFETY: it is held open by the table.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        self.set.as_epoll().ctl(op, Target::Kernel(fd), event)
    }

    /// Adds the object to the kernel set, under an fd that the kernel set does not watch yet.
    fn add_to_the_kernel(&self, group: &Group<'_>, event: Event) -> Result<Option<RawFd>, Errno> {
        for fd in self.fds_in(group) {
            match self.ctl_kernel(Op::Add, fd, event) {
                Ok(()) => return Ok(Some(fd)),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(None)
    }

    /// Adds the kernel object behind to the kernel set, which then cannot refuse to watch the object after it is
    /// demoted. It is added for no events yet, if the interest can be modified later and its events could come too early.
    pub(super) fn reserve(&self, group: &Group<'_>) -> Result<(), Errno> {
        let event = match self.can_be_modified() && !self.waits_for_a_count() {
            true => Event::new(Events::empty(), self.event.data()),
            false => self.event,
        };
        let mut lacks = None;
        // A rotating set's source needs an open fd.
        if !self.set.rotates()
            && !self.has_own_fd(group)
            && let Some(open) = self.open_in(group).next()
        {
            match Own::copy(open) {
                Ok(spare) => drop(self.spare.replace(Some(spare))),
                // An open fd has to do, unless the set watches each.
                Err(errno) => lacks = Some(errno),
            }
        }
        let fd = self.add_to_the_kernel(group, event)?;
        if fd.is_none()
            && let Some(errno) = lacks
        {
            return Err(errno);
        }
        self.reserved.set(fd);
        Ok(())
    }

    /// Returns whether the kernel set's interest can be modified without a step that may fail. An exclusive one cannot be
    /// modified, and for that of a rotating set each worker registers the source again.
    fn can_be_modified(&self) -> bool {
        !self.set.rotates() && !self.event.events().contains(Events::EXCLUSIVE)
    }

    /// Returns whether the kernel object has none of the events before the object is transferred: a kernel eventfd counts 0
    /// until then, and is only writable. So there may be thousands of these interests, and each takes one system call.
    fn waits_for_a_count(&self) -> bool {
        let is_eventfd = matches!(self.object, Object::EventFd(_));
        is_eventfd && !self.event.events().contains(Events::OUT)
    }

    /// Undoes [`reserve`](Self::reserve), before anything was transferred.
    pub(super) fn discard(&self) {
        if let Some(fd) = self.reserved.take() {
            let deleted = self.ctl_kernel(Op::Del, fd, Event::default());
            debug_assert!(deleted.is_ok(), "the fd stands for the same file");
        }
        self.spare.take();
    }

    pub(super) fn give_to_the_kernel(&self, group: &Group<'_>) {
        if let Some(spare) = &*self.spare.borrow()
            && let Some(open) = self.open_in(group).next()
        {
            // The transfer may have put a new file under the open fds.
            kernel::replace(spare.fd(), open);
        }
        // An interest that cannot be modified is there, unless the fd stands for a new file: then the watch is gone with the
        // old one.
        let op = match self.can_be_modified() {
            true => Op::Mod,
            false => Op::Add,
        };
        let is_there = self.reserved.take().is_some_and(|fd| {
            if op == Op::Mod && self.waits_for_a_count() {
                // It has its events, and an eventfd keeps its file.
                return true;
            }
            let changed = self.ctl_kernel(op, fd, self.event);
            changed.is_ok() || changed == Err(Errno::EXIST)
        });
        if !is_there {
            // If the kernel has no memory for it, the interest is lost.
            let _ = self.add_to_the_kernel(group, self.event);
        }
        self.spare.take();
    }
}
