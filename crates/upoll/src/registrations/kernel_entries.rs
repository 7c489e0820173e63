//! Entries that the kernel is asked about, and what the layer above asks about all entries before it waits.

use super::Registrations;
use super::inbox::Inbox;
use super::slot::Kind;
use crate::errno::Errno;
use crate::events::Events;
use crate::file::InTime;
use crate::open_file::FileRef;
use crate::target::Target;

/// The way in which the kernel is asked about an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Registration {
    /// Anew with each call.
    Asked,
    /// It is in the kernel's set, level-triggered.
    Level,
    /// It is in the kernel's set, edge-triggered: what it shows all the time does not count.
    Edge,
    /// Not at all: it is always ready, as files are that cannot be polled.
    Always,
}

/// The part of the registrations that is with the kernel.
pub(crate) trait KernelEntries {
    /// Makes room to [ask](Self::ask) about slots below `count`.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    fn reserve(&mut self, count: usize) -> Result<(), Errno>;

    /// Takes note of an fd in `slot` that may mean another file in the next call.
    fn ask(&mut self, slot: u32) -> Registration;

    /// Registers an fd for `slot`. Called once all that is not needed any more was removed.
    fn add(&mut self, fd: i32, wanted: Events, slot: u32) -> Registration;

    /// `before`, but from now on for `wanted`.
    fn change(&mut self, fd: i32, wanted: Events, slot: u32, before: Registration) -> Registration;

    /// The fd may have been closed, and may mean another file.
    fn remove(&mut self, fd: i32, slot: u32, before: Registration);
}

/// An entry of the kernel's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelEntry {
    pub(crate) fd: i32,
    pub(crate) wanted: Events,
    pub(crate) registration: Registration,
    pub(crate) position: usize,
}

/// The queries of the layer above for the kernel's part.
impl Registrations {
    /// Calls `visit` with each shared eventfd and the events that are wanted of it.
    pub(crate) fn try_for_each_shared(
        &self,
        visit: &mut dyn FnMut(Target<'_>, Events) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        for &index in &self.active {
            let slot = &self.slots[index as usize];
            if let Kind::User(file) = &slot.kind
                && file.shared_source().is_some()
            {
                visit(Target::File(FileRef::of(file)), slot.wanted)?;
            }
        }
        Ok(())
    }

    /// Calls `visit` with what becomes ready as time passes: all that stays active.
    pub(crate) fn try_for_each_time_source(
        &self,
        visit: &mut dyn FnMut(&dyn InTime) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        for &index in &self.active {
            if let Kind::User(file) = &self.slots[index as usize].kind
                && let Some(source) = file.time_source()
            {
                visit(source)?;
            }
        }
        Ok(())
    }

    /// Returns the place where wakeups of registered entries leave their marks, if there ever was one.
    pub(crate) fn inbox(&self) -> Option<&Inbox> {
        self.inbox.as_deref()
    }

    /// The fds of kernel sources of user-level files, as of the last look.
    pub(crate) fn source_fds(&self) -> impl Iterator<Item = std::os::fd::BorrowedFd<'_>> {
        self.active
            .iter()
            .map(|&index| &self.slots[index as usize])
            .filter_map(|slot| match &slot.kind {
                Kind::User(file) => file.kernel_source()?.awaited_fd(file, slot.wanted),
                _ => None,
            })
    }

    /// Registers all of the kernel's entries anew: what they were registered with is gone.
    pub(crate) fn renew_kernel_entries(&mut self, kernel_entries: &mut impl KernelEntries) {
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            #[expect(clippy::cast_possible_truncation, reason = "see `vacate`")]
            let index = index as u32;
            let Kind::Kernel(registration) = &mut slot.kind else {
                continue;
            };
            *registration = if slot.key.identity == 0 {
                kernel_entries.ask(index)
            } else {
                kernel_entries.add(slot.key.fd, slot.wanted, index)
            };
            self.activate(index);
        }
    }

    /// The kernel's entry in `slot` is registered in another way now.
    pub(crate) fn set_registration(&mut self, slot: u32, registration: Registration) {
        if let Kind::Kernel(before) = &mut self.slots[slot as usize].kind {
            *before = registration;
        }
    }

    /// The kernel's entry in `slot`: its fd, what is wanted, how it is registered, and its
    /// position in the list.
    pub(crate) fn kernel_entry(&self, slot: u32) -> Option<KernelEntry> {
        let slot = self.slots.get(slot as usize)?;
        let Kind::Kernel(registration) = slot.kind else {
            return None;
        };
        Some(KernelEntry {
            fd: slot.key.fd,
            wanted: slot.wanted,
            registration,
            position: slot.position as usize,
        })
    }
}
