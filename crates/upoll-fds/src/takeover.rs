//! Plain sets ([`plain_sets`]) come and go: a set that the kernel has made is recorded, and becomes user-level with its
//! first user-level member.

use std::os::fd::RawFd;

use upoll::internal::SharedBox;
use upoll::{CreateFlags, Epoll, Errno};

use crate::object::Object;
use crate::set::SetWithFd;
use crate::slot::Entry;
use crate::{fork, install, plain_sets, table};

/// Records a plain set that the kernel has just made, for which [`plain_sets::begin_to_make`] returned `generation`.
///
/// Without memory to watch forks the set stays the kernel's.
pub fn note(epfd: RawFd, generation: usize) {
    let is_watched = generation != plain_sets::NO_GENERATION && fork::watch().is_ok();
    let generation = match is_watched {
        true => generation,
        false => plain_sets::NO_GENERATION,
    };
    plain_sets::note(epfd, generation);
}

/// Makes a plain set user-level, if that is possible. Otherwise it is the kernel's from now on.
pub fn take_over(epfd: RawFd) {
    plain_sets::take_over(epfd, |fds, has_members| {
        for (fd, entry) in entries(epfd, fds, has_members).into_iter().flatten() {
            // There is room for it.
            let _ = install::install(fd, entry);
            // The set may have been demoted by an fd that was installed before.
            table::leave_if_stale(fd);
        }
    });
}

/// Makes the entries of all fds of a set that is being taken over.
fn entries(
    epfd: RawFd,
    fds: &mut dyn Iterator<Item = RawFd>,
    has_members: bool,
) -> Result<Vec<(RawFd, Box<Entry>)>, Errno> {
    let set = Epoll::create(CreateFlags::empty())?;
    let set = SharedBox::new(SetWithFd::around(set, epfd, has_members)?)?;
    let mut entries = Vec::new();
    for fd in fds {
        if !install::has_room(fd) || entries.try_reserve(1).is_err() {
            return Err(Errno::NOMEM);
        }
        entries.push((fd, Entry::new(Object::Epoll(set.clone()))?));
    }
    Ok(entries)
}
