//! The child's part in sets that stay with the parent: new sets that watch the same.
//!
//! The kernel cannot have a set that rotates or watches an eventfd with a maximum. So unlike in Linux,
//! two processes cannot share it. The child does not need the state that the parent keeps, its threads'
//! turns. The child needs the interests, and these can be put into a new set. They are recorded before
//! the fork ([`SetSnapshots`]). In the child the fds come to stand for new sets with those interests.
//!
//! # Differences from Linux
//! - Parent and child each have their own set. The set of one does not see what the other adds, changes
//!   or deletes. Both report events, also to edge-triggered and one-shot interests.
//! - The child's set first reports files that were ready already, as after an `EPOLL_CTL_ADD`.
//! - The fd of an interest may be closed in the parent while its file stays open under another fd. The
//!   child inherits such an interest only if the file is user-level, under an fd that is open.
//! - The child's set has no members that the child does not have: an embedder's objects.

use std::collections::HashMap;
use std::collections::hash_map;
use std::os::fd::RawFd;
use std::ptr;

use upoll::internal::SharedBox;
use upoll::{CreateFlags, Epoll, Errno, Event, Op};

use crate::kernel::{self, call, to_fd};
use crate::object::Object;
use crate::set::SetWithFd;
use crate::signals::Blocked;
use crate::slot::Entry;
use crate::{epoll_ctl, table};

/// The sets to make in a child.
pub(crate) struct SetSnapshots(Vec<SetSnapshot>);

/// The snapshot of a set, from which the child makes another one.
struct SetSnapshot {
    /// The parent's set: an address that is only compared.
    of: *const SetWithFd,
    fds: Vec<RawFd>,
    rotates: bool,
    interests: Vec<Interest>,
}

struct Interest {
    /// An fd of the file.
    fd: RawFd,
    /// The fd of the interest, which may be closed while another one keeps the file open.
    key: RawFd,
    event: Event,
}

/// A member that the child has as well, with its fds.
struct Member {
    object: Object,
    fds: Vec<RawFd>,
}

impl SetSnapshots {
    /// Records the sets before the fork, after all objects that can be demoted were demoted. If there is no
    /// memory for that, the child has none of them.
    pub(crate) fn write_down() -> Self {
        SetSnapshots(Self::list().unwrap_or_default())
    }

    fn list() -> Result<Vec<SetSnapshot>, Errno> {
        let mut members: Vec<Member> = Vec::new();
        let mut places = Places::new();
        for fd in table::fds(0, u32::MAX) {
            let Some(object) = table::get(fd).filter(stays_in_the_child) else {
                continue;
            };
            places.try_reserve(1).map_err(|_| Errno::NOMEM)?;
            members.try_reserve(1).map_err(|_| Errno::NOMEM)?;
            match places.entry(object.as_file_ref(0).address()) {
                hash_map::Entry::Occupied(known) => {
                    push(&mut members[*known.get()].fds, fd)?;
                }
                hash_map::Entry::Vacant(new) => {
                    let mut fds = Vec::new();
                    push(&mut fds, fd)?;
                    new.insert(members.len());
                    members.push(Member { object, fds });
                }
            }
        }
        let mut snapshots = Vec::new();
        // Rotating sets first: a set that watches one is notified of later sources, one by one.
        for rotates in [true, false] {
            for member in &members {
                let Object::Epoll(set) = &member.object else {
                    continue;
                };
                if set.rotates() != rotates {
                    continue;
                }
                let mut fds = Vec::new();
                fds.try_reserve_exact(member.fds.len())
                    .map_err(|_| Errno::NOMEM)?;
                fds.extend_from_slice(&member.fds);
                let snapshot = SetSnapshot {
                    of: SharedBox::as_ptr(set),
                    fds,
                    rotates,
                    interests: interests(set.as_epoll(), &members, &places)?,
                };
                push(&mut snapshots, snapshot)?;
            }
        }
        Ok(snapshots)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Makes the fds stand for new sets, without their members. Called in the child. Adds these fds to
    /// `taken`.
    pub(crate) fn take_fds(&self, taken: &mut Vec<RawFd>) {
        let _blocked = Blocked::all();
        for snapshot in &self.0 {
            // The kernel set has all members of a passive set.
            let is_still = |fd: &RawFd| {
                let set = set_alone(*fd).filter(|set| !set.is_passive());
                set.is_some_and(|set| ptr::eq(set, snapshot.of))
            };
            // If there are no fds or no memory for it, the child does not get it.
            let mut fds = Vec::new();
            let room = snapshot.fds.len();
            if fds.try_reserve(room).is_err() || taken.try_reserve(room).is_err() {
                continue;
            }
            fds.extend(snapshot.fds.iter().copied().filter(is_still));
            if !fds.is_empty() && snapshot.take(&fds).is_ok() {
                taken.extend(fds);
            }
        }
    }

    /// Adds the recorded members to the new sets. Called in the child once all fds stand for the
    /// child's objects.
    pub(crate) fn take_interests(&self) {
        let _blocked = Blocked::all();
        for snapshot in &self.0 {
            let is_new =
                |fd: &&RawFd| set_alone(**fd).is_some_and(|set| !ptr::eq(set, snapshot.of));
            let Some(&epfd) = snapshot.fds.iter().find(is_new) else {
                continue;
            };
            for &Interest { fd, key, event } in &snapshot.interests {
                // The fd was closed just before the fork, or there is no memory for the member.
                let _ = match fd == key {
                    true => epoll_ctl::ctl(epfd, Op::Add as i32, fd, event.into()),
                    false => epoll_ctl::add_under(epfd, fd, key, event.into()),
                };
            }
        }
    }
}

impl SetSnapshot {
    fn take(&self, fds: &[RawFd]) -> Result<(), Errno> {
        let flags = match self.rotates {
            true => CreateFlags::ROTATE,
            false => CreateFlags::empty(),
        };
        let set = Epoll::create(flags)?;
        let set = Object::Epoll(SharedBox::new(SetWithFd::new(set, self.rotates))?);
        // SAFETY: no pointers are involved.
        let behind = to_fd(unsafe { call!(SYS_epoll_create1, libc::EPOLL_CLOEXEC) })?;
        let taken = fds.iter().try_for_each(|&fd| {
            let entry = Entry::new(set.clone())?;
            kernel::replace(fd, behind);
            // The old object is the parent's. An interrupted call may still use it.
            table::set_alone(fd, Some(entry));
            Ok(())
        });
        // Nobody else has this fd.
        let _ = kernel::close(behind);
        taken
    }
}

/// Returns the set that an fd stands for in the child.
pub(crate) fn set_alone(fd: RawFd) -> Option<&'static SetWithFd> {
    match table::alone(fd) {
        Some(Object::Epoll(set)) => Some(set),
        _ => None,
    }
}

/// Makes the fds of shared eventfds stand for open files of the child's own, with the same counts.
/// Called in the child. Returns these fds.
pub(crate) fn reopen_shared() -> Vec<RawFd> {
    let _blocked = Blocked::all();
    let mut reopened = HashMap::new();
    let mut fds = Vec::new();
    for fd in table::fds(0, u32::MAX) {
        let Some(Object::EventFd(counter)) = table::alone(fd) else {
            continue;
        };
        if reopened.try_reserve(1).is_err() || fds.try_reserve(1).is_err() {
            continue;
        }
        let new = match reopened.entry(counter.as_file_ref().address()) {
            hash_map::Entry::Occupied(known) => Object::clone(known.get()),
            hash_map::Entry::Vacant(place) => match counter.reopened() {
                Some(new) => place.insert(Object::EventFd(new)).clone(),
                None => continue,
            },
        };
        let Ok(entry) = Entry::new(new) else { continue };
        table::set_alone(fd, Some(entry));
        fds.push(fd);
    }
    fds
}

/// Returns whether a child has the object, or one like it. Objects that an interrupted call is
/// changing do not count.
fn stays_in_the_child(object: &Object) -> bool {
    match object {
        Object::Epoll(set) => !set.is_stale() && !set.as_epoll().is_locked_here(),
        Object::EventFd(counter) => counter.is_shared(),
        _ => false,
    }
}

/// The index of each member, by the address of its file.
type Places = HashMap<usize, usize>;

fn push<T>(list: &mut Vec<T>, one: T) -> Result<(), Errno> {
    list.try_reserve(1).map_err(|_| Errno::NOMEM)?;
    list.push(one);
    Ok(())
}

/// # Errors
/// `ENOMEM`: there is no memory for the list.
fn interests(set: &Epoll, members: &[Member], places: &Places) -> Result<Vec<Interest>, Errno> {
    let in_kernel = set.kernel_interests()?;
    let in_core = set.interests_by(|address| places.get(&address).copied())?;
    let mut interests = Vec::new();
    interests
        .try_reserve_exact(in_kernel.len() + in_core.len())
        .map_err(|_| Errno::NOMEM)?;
    interests.extend(
        in_kernel
            .into_iter()
            .map(|(fd, event)| Interest { fd, key: fd, event }),
    );
    for (at, key, event) in in_core {
        let fds = &members[at].fds;
        let own = fds.iter().find(|&&known| known == key);
        let fd = own.or(fds.first());
        interests.extend(fd.map(|&fd| Interest { fd, key, event }));
    }
    Ok(interests)
}
