//! The state between two calls of `poll` or `select`: the entries' places in the objects' wait
//! queues, and which of them woke.
//!
//! A call first compares its list with the kept one ([`Registrations::compare`]), and changes the
//! registrations where the two differ ([`Registrations::settle`]). Then it polls the *active* entries
//! ([`Registrations::poll_all`]): those that were ready at the last poll, and those that a wakeup has marked
//! since. The others are as idle as they were.
//!
//! # Marks
//! A wakeup marks its entry in the [`Inbox`], under the inbox's lock, the innermost of all. A call
//! takes the marks away, under the same lock, *before* it polls the objects. So the poll sees the
//! change of a wakeup whose mark was taken away, and a later wakeup leaves a new mark for the next
//! call. An entry that is found ready stays active without a mark.
//!
//! # Keys
//! Entries are identified by open file. An entry keeps its object's memory, but does not keep the
//! file open. So a file that has closed cannot come back under the same address while its entry is
//! kept. The next call, whose list cannot have the file, removes its entry.

mod inbox;
#[cfg(any(feature = "std", upoll_loom))]
mod kernel_entries;
mod slot;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr::NonNull;

use hashbrown::HashTable;
use hashbrown::hash_table::Drain;
use smallvec::SmallVec;

pub(crate) use self::inbox::Inbox;
#[cfg(any(feature = "std", upoll_loom))]
pub(crate) use self::inbox::Sleeper;
#[cfg(any(feature = "std", upoll_loom))]
pub(crate) use self::kernel_entries::{KernelEntries, Registration};
#[cfg(any(feature = "std", upoll_loom))]
use self::slot::USER;
use self::slot::{Hook, Key, Kind, Listed, NOT_LISTED, NOTHING, NOWHERE, Slot, on_wake_kept};

use crate::epoll::comes_unannounced;
use crate::errno::Errno;
use crate::events::Events;
use crate::file::PollTable;
use crate::memory::boxed;
use crate::open_file::FileRef;
use crate::poll::Seen;
use crate::sync::{Ordering, Rule, broken, fence_after_rmw};
use crate::target::Target;
use crate::wait::{Place, Scope, WaitEntry, WaitQueue};

/// The registrations behind the list of the last call.
pub(crate) struct Registrations {
    /// Boxed, because hooks lead to it. It exists from the first slot on.
    inbox: Option<Box<Inbox>>,
    listed: Vec<Listed>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Entries that the next look looks at, each once.
    active: Vec<u32>,
    /// The number of entries that are user-level objects.
    users: usize,
    /// The number of kernel entries that the kernel must be asked about.
    #[cfg(any(feature = "std", upoll_loom))]
    kernels: usize,
    /// Positions at which the call's list differs from the kept one.
    changed: Vec<u32>,
    /// Slots that are not where they were.
    loose: HashTable<u32>,
}

/// A core by itself has no kernel entries.
#[cfg(all(not(feature = "std"), not(upoll_loom)))]
pub(crate) trait KernelEntries {}

impl Registrations {
    pub(crate) fn new() -> Self {
        Registrations {
            inbox: None,
            listed: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            active: Vec::new(),
            users: 0,
            #[cfg(any(feature = "std", upoll_loom))]
            kernels: 0,
            changed: Vec::new(),
            loose: HashTable::new(),
        }
    }

    /// Returns the number of entries in the last list.
    pub(crate) fn len(&self) -> usize {
        self.listed.len()
    }

    /// A call begins to compare its list with the kept one.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.changed.clear();
    }

    /// The call's list has `target` at `position`, looked at for `wanted`.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory to remember that it had another one before.
    #[inline]
    pub(crate) fn compare(
        &mut self,
        position: usize,
        target: Option<Target<'_>>,
        wanted: Events,
    ) -> Result<(), Errno> {
        let key = Key::of(target);
        match self.listed.get(position) {
            Some(listed) if listed.key == key && listed.wanted == wanted => Ok(()),
            _ => self.note_change(position),
        }
    }

    #[inline(never)]
    fn note_change(&mut self, position: usize) -> Result<(), Errno> {
        let position = u32::try_from(position).map_err(|_| Errno::NOMEM)?;
        self.changed.try_reserve(1).map_err(|_| Errno::NOMEM)?;
        self.changed.push(position);
        Ok(())
    }

    /// Changes the registrations where the call's list differs from the kept one. The list has
    /// `len` entries, and `at` returns the target and the events of each. After an error the next
    /// call does the rest.
    ///
    /// # Errors
    /// `ENOMEM`.
    #[inline]
    pub(crate) fn settle<'a>(
        &mut self,
        len: usize,
        at: impl Fn(usize) -> (Option<Target<'a>>, Events),
        kernel_entries: &mut impl KernelEntries,
    ) -> Result<(), Errno> {
        if self.changed.is_empty() && self.listed.len() == len {
            return Ok(());
        }
        let mut changed = core::mem::take(&mut self.changed);
        let settled = self.settle_changed(len, &mut changed, at, kernel_entries);
        self.changed = changed;
        settled
    }

    #[inline(never)]
    fn settle_changed<'a>(
        &mut self,
        len: usize,
        changed: &mut Vec<u32>,
        at: impl Fn(usize) -> (Option<Target<'a>>, Events),
        kernel_entries: &mut impl KernelEntries,
    ) -> Result<(), Errno> {
        let more = len.saturating_sub(self.listed.len());
        self.listed.try_reserve(more).map_err(|_| Errno::NOMEM)?;
        let went = self.listed.len().saturating_sub(len);
        let (slots, room) = (&self.slots, changed.len() + went);
        self.loose
            .try_reserve(room, |&slot| slots[slot as usize].key.hash())
            .map_err(|_| Errno::NOMEM)?;

        // An entry with only another interest stays where it is.
        changed.retain(|&position| {
            let Some(&listed) = self.listed.get(position as usize) else {
                return true;
            };
            let (target, wanted) = at(position as usize);
            if Key::of(target) == listed.key {
                self.list_as(position, listed.key, wanted, listed.slot, kernel_entries);
                return false;
            }
            self.loosen(position);
            true
        });
        for position in len..self.listed.len() {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "positions fit, see `compare`"
            )]
            self.loosen(position as u32);
        }
        self.listed.resize(len, NOT_LISTED);

        // An entry that has only moved is found by its key.
        changed.retain(|&position| {
            let (target, wanted) = at(position as usize);
            let key = Key::of(target);
            if key == NOTHING {
                self.list_as(position, key, wanted, NOWHERE, kernel_entries);
                return false;
            }
            let found = self
                .loose
                .find_entry(key.hash(), |&slot| self.slots[slot as usize].key == key);
            let Ok(found) = found else { return true };
            let (slot, _) = found.remove();
            self.list_as(position, key, wanted, slot, kernel_entries);
            false
        });

        // The rest goes before anything new comes: both may have the same fd.
        let mut loose = core::mem::take(&mut self.loose);
        Releasing {
            kept: self,
            slots: loose.drain(),
            kernel_entries,
        }
        .run();
        self.loose = loose;
        for &position in &*changed {
            let (target, wanted) = at(position as usize);
            if let Some(target) = target {
                self.register(position, target, wanted, kernel_entries)?;
            }
        }
        Ok(())
    }

    /// The entry at `position` is none of the list any more; its slot, if it has one, may be
    /// wanted elsewhere in it.
    fn loosen(&mut self, position: u32) {
        let listed = core::mem::replace(&mut self.listed[position as usize], NOT_LISTED);
        if listed.key == NOTHING {
            return;
        }
        self.slots[listed.slot as usize].position = NOWHERE;
        let slots = &self.slots;
        self.loose
            .insert_unique(listed.key.hash(), listed.slot, |&slot| {
                slots[slot as usize].key.hash()
            });
    }

    /// Puts the entry of `slot` at `position`, polled for `wanted`.
    fn list_as(
        &mut self,
        position: u32,
        key: Key,
        wanted: Events,
        slot: u32,
        kernel_entries: &mut impl KernelEntries,
    ) {
        self.listed[position as usize] = Listed { key, wanted, slot };
        let Some(entry) = self.slots.get_mut(slot as usize) else {
            return;
        };
        entry.position = position;
        if entry.wanted != wanted {
            entry.wanted = wanted;
            self.change(slot, kernel_entries);
        }
    }

    /// An entry's interest is another one.
    fn change(&mut self, index: u32, kernel_entries: &mut impl KernelEntries) {
        let slot = &mut self.slots[index as usize];
        match &mut slot.kind {
            Kind::Free => {}
            Kind::User(_) => {
                // Publish the interest, then look: a wake that still saw the old one came before
                // the look.
                for hook in &slot.hooks[..slot.hooked] {
                    let word = &hook.entry.owner_word;
                    word.swap(slot.wanted.bits(), Ordering::SeqCst);
                }
                fence_after_rmw();
            }
            #[cfg(any(feature = "std", upoll_loom))]
            Kind::Kernel(registration) => {
                *registration =
                    kernel_entries.change(slot.key.fd, slot.wanted, index, *registration);
            }
        }
        let _ = kernel_entries;
        if !broken(Rule::LookAfterRegistering) {
            self.activate(index);
        }
    }

    /// The next look looks at the entry. There is room for as many as there are slots.
    fn activate(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if !slot.is_active {
            slot.is_active = true;
            self.active.push(index);
        }
    }

    /// A slot for another entry.
    fn vacate(&mut self) -> Result<u32, Errno> {
        if let Some(slot) = self.free.pop() {
            return Ok(slot);
        }
        let count = self.slots.len() + 1;
        let slot = u32::try_from(self.slots.len()).map_err(|_| Errno::NOMEM)?;
        let more = count - self.active.len();
        self.active.try_reserve(more).map_err(|_| Errno::NOMEM)?;
        self.free.try_reserve(count).map_err(|_| Errno::NOMEM)?;
        self.slots.try_reserve(1).map_err(|_| Errno::NOMEM)?;
        let inbox = match self.inbox.take() {
            Some(inbox) => inbox,
            None => boxed(Inbox::new())?,
        };
        self.inbox.insert(inbox).reserve(count)?;
        self.slots.push(Slot {
            key: NOTHING,
            kind: Kind::Free,
            wanted: Events::empty(),
            position: NOWHERE,
            is_active: false,
            hooked: 0,
            hooks: SmallVec::new(),
        });
        Ok(slot)
    }

    /// Registers what is new in the list.
    fn register(
        &mut self,
        position: u32,
        target: Target<'_>,
        wanted: Events,
        kernel_entries: &mut impl KernelEntries,
    ) -> Result<(), Errno> {
        let key = Key::of(Some(target));
        let index = self.vacate()?;
        #[cfg(any(feature = "std", upoll_loom))]
        if !matches!(target, Target::File(_))
            && let Err(errno) = kernel_entries.reserve(self.slots.len())
        {
            self.free.push(index);
            return Err(errno);
        }
        let slot = &mut self.slots[index as usize];
        slot.key = key;
        slot.wanted = wanted;
        match target {
            Target::File(file) => {
                slot.kind = Kind::User(file.keep());
                self.users += 1;
                self.hook_up(index, file, kernel_entries)?;
            }
            #[cfg(any(feature = "std", upoll_loom))]
            Target::Kernel(_) => slot.kind = Kind::Kernel(kernel_entries.ask(index)),
            #[cfg(any(feature = "std", upoll_loom))]
            Target::Descriptor(_) => {
                slot.kind = Kind::Kernel(kernel_entries.add(key.fd, wanted, index));
            }
        }
        #[cfg(any(feature = "std", upoll_loom))]
        {
            self.kernels += usize::from(key.fd != USER);
        }
        self.slots[index as usize].position = position;
        self.listed[position as usize] = Listed {
            key,
            wanted,
            slot: index,
        };
        if !broken(Rule::LookAfterRegistering) {
            self.activate(index);
        }
        Ok(())
    }

    /// Hooks an entry into every queue that its object registers.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it. The entry is released.
    fn hook_up(
        &mut self,
        index: u32,
        file: FileRef<'_>,
        kernel_entries: &mut impl KernelEntries,
    ) -> Result<(), Errno> {
        let registering = Registering {
            kept: self,
            index,
            kernel_entries,
        };
        if let Some(source) = file.description().kernel_source() {
            source.prepare_queue()?;
        }
        let kept = &mut *registering.kept;
        let inbox = kept.inbox.as_deref().ok_or(Errno::NOMEM)?;
        let inbox = NonNull::from(inbox);
        let slot = &mut kept.slots[index as usize];
        let mut is_short = false;
        let mut on_register = |queue: &WaitQueue| {
            if slot.hooked == slot.hooks.len() {
                let hook = boxed(Hook {
                    entry: WaitEntry::new(on_wake_kept),
                    slot: index,
                    inbox,
                });
                let (Ok(hook), Ok(())) = (hook, slot.hooks.try_reserve(1)) else {
                    is_short = true;
                    return;
                };
                slot.hooks.push(hook);
            }
            let entry = &slot.hooks[slot.hooked].entry;
            slot.hooked += 1;
            entry
                .owner_word
                .store(slot.wanted.bits(), Ordering::Relaxed);
            // SAFETY: hooks are boxed and unhooked in `release`, before the object goes whose queue
            // this is and whose memory the slot keeps; `inbox` is boxed and goes after them.
            unsafe { entry.hook(queue, Place::Shared) };
        };
        {
            // Wakers of others run when the object's `poll` has released its locks.
            let _scope = Scope::enter();
            let mut table = PollTable::new(&mut on_register);
            file.description().object().poll(&mut table);
        }
        if is_short {
            // The registrations made so far are released as after a panic.
            return Err(Errno::NOMEM);
        }
        core::mem::forget(registering);
        Ok(())
    }

    /// Takes an entry out of everything it is registered with.
    fn release(&mut self, index: u32, kernel_entries: &mut impl KernelEntries) {
        // A waker that panics does so when all is done.
        let _scope = Scope::enter();
        let slot = &mut self.slots[index as usize];
        for hook in &slot.hooks[..slot.hooked] {
            hook.entry.unhook();
        }
        slot.hooked = 0;
        slot.position = NOWHERE;
        let kind = core::mem::replace(&mut slot.kind, Kind::Free);
        match &kind {
            Kind::Free => return,
            Kind::User(_) => self.users -= 1,
            #[cfg(any(feature = "std", upoll_loom))]
            Kind::Kernel(registration) => {
                self.kernels -= 1;
                kernel_entries.remove(slot.key.fd, index, *registration);
            }
        }
        let _ = kernel_entries;
        slot.key = NOTHING;
        self.free.push(index);
        // Last, for it may run foreign code.
        drop(kind);
    }

    /// Takes all marks away: the entries are active from now on.
    fn take_marks(&mut self) {
        let Some(inbox) = &self.inbox else { return };
        let (slots, active) = (&mut self.slots, &mut self.active);
        let mut activate = |index: u32| {
            let slot = &mut slots[index as usize];
            if !slot.is_active {
                slot.is_active = true;
                active.push(index);
            }
        };
        if inbox.is_marked.load(Ordering::Relaxed) {
            let mut arrivals = inbox.arrivals.lock();
            arrivals.slots.iter().copied().for_each(&mut activate);
            if !broken(Rule::TakeMarksThenLook) {
                inbox.forget_marks(&mut arrivals);
            }
        }
        // Once the lock is free, no wake misses it.
        if inbox.take_missed() {
            self.activate_all();
        }
    }

    /// Makes all entries of user-level files active.
    #[cold]
    fn activate_all(&mut self) {
        for (index, slot) in (0..).zip(&mut self.slots) {
            if let (Kind::User(_), false) = (&slot.kind, slot.is_active) {
                slot.is_active = true;
                self.active.push(index);
            }
        }
    }

    /// Polls all active entries, and passes the ready ones to `report`, with their positions.
    /// `report` returns how much that adds to the result.
    pub(crate) fn poll_all(&mut self, mut report: impl FnMut(usize, Events) -> usize) -> Seen {
        self.take_marks();
        let mut seen = Seen {
            ready: 0,
            objects: self.users,
            #[cfg(any(feature = "std", upoll_loom))]
            kernel: self.kernels,
            #[cfg(any(feature = "std", upoll_loom))]
            sources: 0,
            #[cfg(any(feature = "std", upoll_loom))]
            shared: 0,
        };
        let mut at = 0;
        while let Some(&index) = self.active.get(at) {
            let slot = &self.slots[index as usize];
            let mut stays = false;
            let found = match &slot.kind {
                Kind::User(file) => {
                    stays = comes_unannounced(file);
                    #[cfg(any(feature = "std", upoll_loom))]
                    {
                        stays |= seen.count_source(file, slot.wanted);
                    }
                    file.object().poll(&mut PollTable::without_waiter())
                }
                #[cfg(any(feature = "std", upoll_loom))]
                Kind::Kernel(Registration::Always) => Events::DEFAULT,
                #[cfg(any(feature = "std", upoll_loom))]
                Kind::Kernel(_) => Events::empty(),
                Kind::Free => Events::empty(),
            };
            let found = found & slot.wanted;
            if !found.is_empty() && slot.position != NOWHERE {
                seen.ready += report(slot.position as usize, found);
            }
            if found.is_empty() && !stays {
                self.active.swap_remove(at);
                self.slots[index as usize].is_active = false;
            } else {
                at += 1;
            }
        }
        if broken(Rule::TakeMarksThenLook)
            && let Some(inbox) = &self.inbox
        {
            inbox.forget_marks(&mut inbox.arrivals.lock());
        }
        seen
    }

    /// Calls `visit` with each set that the next look looks at: with all that may become ready without a
    /// wake, for those stay active.
    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) fn for_each_active_set(&self, visit: &mut dyn FnMut(&crate::epoll::Set)) {
        for &index in &self.active {
            if let Kind::User(file) = &self.slots[index as usize].kind
                && let Some(set) = crate::epoll::ctl::as_set(file)
            {
                visit(set);
            }
        }
    }
}

impl Drop for Registrations {
    fn drop(&mut self) {
        // A waker that panics does so when all entries are out.
        let _scope = Scope::enter();
        for slot in &self.slots {
            for hook in &slot.hooks[..slot.hooked] {
                hook.entry.unhook();
            }
        }
    }
}

/// An entry whose object is being asked for its queues. Dropped only when the object's `poll`
/// panics: then the entry goes again.
struct Registering<'k, O: KernelEntries> {
    kept: &'k mut Registrations,
    index: u32,
    kernel_entries: &'k mut O,
}

impl<O: KernelEntries> Drop for Registering<'_, O> {
    fn drop(&mut self) {
        self.kept.release(self.index, self.kernel_entries);
    }
}

/// Entries that are none of the list any more: they go, to the last one, even if an object's end
/// panics on the way.
struct Releasing<'k, O: KernelEntries> {
    kept: &'k mut Registrations,
    slots: Drain<'k, u32>,
    kernel_entries: &'k mut O,
}

impl<O: KernelEntries> Releasing<'_, O> {
    fn run(&mut self) {
        for slot in self.slots.by_ref() {
            self.kept.release(slot, self.kernel_entries);
        }
    }
}

impl<O: KernelEntries> Drop for Releasing<'_, O> {
    fn drop(&mut self) {
        self.run();
    }
}
