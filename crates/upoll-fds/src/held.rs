//! User-level fds that are kept from being looked up, so that their objects can be demoted: nobody uses these meanwhile.

use std::ops::ControlFlow;
use std::os::fd::RawFd;
use std::ptr;

use upoll::Errno;

use crate::counts;
use crate::hazard_records;
use crate::object::Object;
use crate::signals::Blocked;
use crate::slot::Entry;
use crate::sync::{Rule, broken};
use crate::table::{fds, slot};

/// A user-level fd that is kept from being looked up.
struct HeldFd {
    fd: RawFd,
    /// Null once the fd was released.
    entry: *mut Entry,
    /// The lowest fd of those that are [tied](Object::tie) to this one.
    first: RawFd,
    /// A call still uses an entry of the group.
    is_used: bool,
}

/// User-level fds that are kept from being looked up. Fds that were not released get their entries back
/// when this is dropped.
pub(crate) struct Held {
    /// Fds of one group are next to each other.
    fds: Vec<HeldFd>,
    /// All of them in ascending order.
    sorted: Vec<RawFd>,
}

/// All fds of one object, or of both ends of one, that are kept from being looked up.
pub(crate) struct Group<'a>(&'a mut [HeldFd]);

/// Keeps all fds whose objects are meant from being looked up, once no call uses them any more. Calls that
/// block on one have a reference of their own. If an object is meant, objects [tied](Object::tie) to it
/// must be meant, too.
///
/// Signals must be blocked: a handler that looks such an fd up would wait for the interrupted code.
///
/// # Errors
/// `ENOMEM`: there is no memory for the list. Nothing is held then.
pub(crate) fn hold(is_meant: impl Fn(&Object) -> bool, _blocked: &Blocked) -> Result<Held, Errno> {
    let mut held = Held {
        fds: Vec::new(),
        sorted: Vec::new(),
    };
    // A copy of an fd is found at the latest in the pass after the one that has held the fd.
    counts::repeat_passes(|| held.hold_more(&is_meant))?;
    held.group()?;
    held.find_used()?;
    // A call that was under way may have added a member to a set that had none.
    if !broken(Rule::AskAgain) {
        held.give_back_where(|object| object.is_set() && !is_meant(object));
    }
    Ok(held)
}

impl Held {
    /// Holds fds that are not held yet. Returns whether there were any.
    fn hold_more(&mut self, is_meant: impl Fn(&Object) -> bool) -> Result<bool, Errno> {
        let known = self.fds.len();
        let mut at = 0;
        for fd in fds(0, u32::MAX) {
            while at < known && self.fds[at].fd < fd {
                at += 1;
            }
            if at < known && self.fds[at].fd == fd {
                continue;
            }
            self.fds.try_reserve(1).map_err(|_| Errno::NOMEM)?;
            let is_meant = |object: &Object| is_meant(object) || self.has_fd_of_set(object);
            if let Some(entry) = slot(fd).and_then(|slot| slot.hold(is_meant)) {
                self.fds.push(HeldFd {
                    fd,
                    entry,
                    first: fd,
                    is_used: false,
                });
            }
        }
        self.fds.sort_unstable_by_key(|held| held.fd);
        Ok(self.fds.len() > known)
    }

    /// Returns whether another fd of the set `object` is held. Then this one is held as well, though a call under way may
    /// have added a member, and [`give_back_where`](Self::give_back_where) decides about both.
    fn has_fd_of_set(&self, object: &Object) -> bool {
        let is_same = |held: &HeldFd| held.object().tie() == object.tie();
        // Each fd is an owner. Most sets have one fd, and the search takes time.
        object.owners() > Some(1) && self.fds.iter().any(is_same) && !broken(Rule::HoldAllOfASet)
    }

    /// Puts the fds of each group next to each other, and the groups in the order of their lowest fds.
    fn group(&mut self) -> Result<(), Errno> {
        let count = self.fds.len();
        self.sorted.try_reserve(count).map_err(|_| Errno::NOMEM)?;
        self.sorted.extend(self.fds.iter().map(|held| held.fd));
        let mut ties = Vec::new();
        ties.try_reserve(count).map_err(|_| Errno::NOMEM)?;
        let tied = |(at, held): (usize, &HeldFd)| (held.object().tie(), at);
        ties.extend(self.fds.iter().enumerate().map(tied));
        // Objects lie in memory much as they were made, and their fds were given out: this is sorted, mostly.
        ties.sort_unstable();
        for group in ties.chunk_by(|(one, _), (next, _)| one == next) {
            let first = self.fds[group[0].1].fd;
            group.iter().for_each(|&(_, at)| self.fds[at].first = first);
        }
        self.fds.sort_unstable_by_key(|held| (held.first, held.fd));
        Ok(())
    }

    fn find_used(&mut self) -> Result<(), Errno> {
        let (mut entries, mut used) = (Vec::new(), Vec::new());
        for list in [&mut entries, &mut used] {
            list.try_reserve(self.fds.len()).map_err(|_| Errno::NOMEM)?;
        }
        entries.extend(self.fds.iter().map(|held| held.entry));
        entries.sort_unstable();
        hazard_records::wait_until_all_unused(&entries, hazard_records::MORE_TRIES, |entry| {
            used.push(entry);
            ControlFlow::Continue(())
        });
        if used.is_empty() {
            return Ok(());
        }
        for group in self.fds.chunk_by_mut(is_one_group) {
            let is_used = group.iter().any(|held| used.contains(&held.entry));
            group.iter_mut().for_each(|held| held.is_used = is_used);
        }
        Ok(())
    }

    /// Makes the fds of unused objects for which `is_left` returns true available to look-ups again. It is asked once
    /// for each group: another thread may change the answer meanwhile, and a group stays together.
    fn give_back_where(&mut self, is_left: impl Fn(&Object) -> bool) {
        let mut group = None;
        self.fds.retain(|held| {
            let is_left = match group {
                Some((first, is_left)) if first == held.first && !broken(Rule::AskOnce) => is_left,
                _ => !held.is_used && is_left(held.object()),
            };
            group = Some((held.first, is_left));
            if is_left && let Some(slot) = slot(held.fd) {
                slot.give_back(held.entry);
            }
            !is_left
        });
        if self.fds.len() < self.sorted.len() {
            // There is room for them.
            self.sorted.clear();
            self.sorted.extend(self.fds.iter().map(|held| held.fd));
            self.sorted.sort_unstable();
        }
    }

    /// Returns the user-level fds that are not held.
    pub(crate) fn others(&self) -> impl Iterator<Item = RawFd> {
        let is_held = |fd: &RawFd| self.sorted.binary_search(fd).is_ok();
        fds(0, u32::MAX).filter(move |fd| !is_held(fd))
    }

    /// Returns the objects that no call uses any more, each with the [first fd](Group::first) of its group.
    pub(crate) fn unused(&self) -> impl Iterator<Item = (&Object, RawFd)> {
        let unused = self.fds.iter().filter(|held| !held.is_used);
        unused.map(|held| (held.object(), held.first))
    }

    /// Returns each group. To be called once: a group that was released is gone.
    pub(crate) fn groups(&mut self) -> impl Iterator<Item = Group<'_>> {
        self.fds.chunk_by_mut(is_one_group).map(Group)
    }
}

fn is_one_group(one: &HeldFd, next: &HeldFd) -> bool {
    one.first == next.first
}

impl HeldFd {
    fn object(&self) -> &Object {
        // SAFETY: the slot was held by `hold`, so the entry stays until the fd is released; that consumes the
        // group, and `Held` gives out groups once.
        unsafe { &(*self.entry).object }
    }
}

impl Group<'_> {
    /// Returns the lowest fd, which identifies the group.
    pub(crate) fn first(&self) -> RawFd {
        self.0.first().map_or(-1, |held| held.first)
    }

    /// Returns whether a call still uses one of the objects: a call of this very thread that a
    /// signal handler has interrupted, or a call of a thread that makes no progress.
    pub(crate) fn is_used(&self) -> bool {
        self.0.first().is_some_and(|held| held.is_used)
    }

    /// Returns whether only the fds, and one owner more, own a set. All others are calls that wait in it or poll it: each
    /// has become an owner while it used an fd.
    pub(crate) fn is_owned_by_one_more(&self) -> bool {
        let is_owned = |held: &HeldFd| {
            let owners = held.object().owners();
            owners == Some(self.0.len() + 1) || broken(Rule::CountOwners)
        };
        !self.is_used() && self.0.first().is_some_and(is_owned)
    }

    /// Returns the fds with the object of each.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (RawFd, &Object)> {
        self.0.iter().map(|held| (held.fd, held.object()))
    }

    /// Makes the fds stand for nothing.
    pub(crate) fn release(self) {
        let is_used = self.is_used();
        for held in self.0 {
            let Some(slot) = slot(held.fd) else { continue };
            let entry = std::mem::replace(&mut held.entry, ptr::null_mut());
            if is_used {
                slot.end_demotion(entry);
            } else {
                // SAFETY: `hold` has waited until no call uses it.
                unsafe { slot.end_demotion_of_unused(entry) };
            }
        }
    }

    /// Makes the fds stand for `successor`, unless a [call uses](Self::is_used) an object of the group.
    #[cfg(not(upoll_loom))]
    pub(crate) fn release_to(self, successor: &Object) {
        if self.is_used() {
            return;
        }
        for held in self.0 {
            let Some(slot) = slot(held.fd) else { continue };
            let entry = std::mem::replace(&mut held.entry, ptr::null_mut());
            // SAFETY: `hold` has waited until no call uses it.
            unsafe { slot.give_back_with(entry, successor.clone()) };
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for held in self.fds.iter().filter(|held| !held.entry.is_null()) {
            if let Some(slot) = slot(held.fd) {
                slot.give_back(held.entry);
            }
        }
    }
}

#[cfg(all(test, not(upoll_loom)))]
mod tests {
    use std::cell::Cell;

    use super::hold;
    use crate::object::Object;
    use crate::signals::Blocked;

    /// Another thread removes the last member of a set between two checks of it: `is_meant` returns true and false by turns.
    #[test]
    fn all_fds_of_a_set_are_given_back_or_none() {
        let set = crate::epoll_create1(0).expect("a set");
        let copy = crate::dup(set).expect("a copy");
        let asked = Cell::new(0);
        let is_meant = |object: &Object| {
            // Other tests have other objects.
            let Object::Epoll(_) = object else {
                return false;
            };
            asked.set(asked.get() + 1);
            // The first two checks hold both fds.
            asked.get() <= 2 || asked.get() % 2 == 0
        };
        let blocked = Blocked::all();
        let mut held = hold(is_meant, &blocked).expect("memory");
        let groups = held.groups().map(|group| group.objects().count());
        assert_eq!(groups.filter(|&count| count == 1).count(), 0);
        drop(held);
        drop(blocked);
        for fd in [set, copy] {
            crate::close(fd).expect("an fd");
        }
    }
}
