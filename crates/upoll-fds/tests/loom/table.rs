//! A table of two fds, for models of what is held.

use std::os::fd::RawFd;

use crate::slot::Slot;

loom::lazy_static! {
    static ref SLOTS: [Slot; 2] = [Slot::empty(), Slot::empty()];
}

pub(crate) fn slot(fd: RawFd) -> Option<&'static Slot> {
    SLOTS.get(usize::try_from(fd).ok()?)
}

/// Returns the fds that are user-level.
pub(crate) fn fds(_: u32, _: u32) -> impl Iterator<Item = RawFd> {
    let is_user_level = |&fd: &RawFd| slot(fd).is_some_and(|slot| !slot.is_empty());
    (0..2).filter(is_user_level)
}
