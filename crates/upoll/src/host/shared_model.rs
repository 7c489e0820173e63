//! Counters that processes share, of which models that have the kernel's part in them know none.

use std::os::fd::RawFd;

use super::kernel::Descriptor;
use crate::errno::Errno;
use crate::eventfd::Direction;
use crate::events::Events;
use crate::file::Description;
use crate::target::Target;

pub(super) const DIRECTIONS: [Direction; 2] = [Direction::In, Direction::Out];

pub(crate) enum SharedCounter {}

impl SharedCounter {
    pub(crate) const fn of(_: &Description) -> Option<&Self> {
        None
    }

    pub(super) const fn bell(&self, _: Direction) -> &Descriptor {
        match *self {}
    }

    pub(super) const fn arm(&self, _: Direction) -> u64 {
        match *self {}
    }
}

pub(crate) enum Ears {}

impl Ears {
    pub(crate) const fn new() -> Result<Self, Errno> {
        Err(Errno::NOMEM)
    }

    pub(crate) const fn listen_to(&self, _: Target<'_>, _: Events) -> Result<(), Errno> {
        match *self {}
    }

    pub(crate) const fn quiet(&self) {
        match *self {}
    }

    pub(crate) const fn arm(_: Target<'_>, _: Events) {}

    pub(crate) const fn was_intact(&self) -> bool {
        match *self {}
    }

    pub(crate) const fn fd(&self) -> RawFd {
        match *self {}
    }
}
