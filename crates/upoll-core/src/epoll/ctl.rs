//! `epoll_ctl(2)`: items of a set are added, changed and deleted. `close` has the closes of files and sets.

mod close;

use core::any::Any;
use core::mem;
use core::ptr::NonNull;

use self::close::on_file_close;
use super::callbacks::{attend_nested, attend_silent_member};
use super::interest::{ExtraEntry, Extras, ItemMut, ItemRef, LockedItem, LockedSet, state};
use super::{Set, nesting, ready, time};
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::file::{Description, File, FileId, FileRef, Held, Key, PollTable};
use crate::sync::{Ordering, Rule, broken};
use crate::wait::{Deferred, Mode, Place, Scope, WaitQueue, Wake};

/// An operation of `epoll_ctl(2)`, with Linux's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Op {
    /// `EPOLL_CTL_ADD`
    Add = 1,
    /// `EPOLL_CTL_DEL`
    Del = 2,
    /// `EPOLL_CTL_MOD`
    Mod = 3,
}

/// A wakeup that an exclusive item had taken before it was removed. It is forwarded once no lock is
/// held.
struct Forwarding {
    queue: NonNull<WaitQueue>,
    rotating: bool,
    /// The interest of the item, which the wakeup was for.
    interest: Events,
}

/// The rest of a removed item. It is finished once the set's lock is free, because that may run
/// foreign code.
pub(super) struct Forgotten {
    file: Held,
    forwarding: Option<Forwarding>,
}

impl Forgotten {
    /// Removes the claim that an item has on an event of a rotating set. The caller forwards the
    /// claim.
    pub(super) fn disclaim(item: ItemRef<'_>) -> Option<Self> {
        item.entry.disclaim().map(|queue| Forgotten {
            file: item.file().clone(),
            forwarding: Some(Forwarding {
                queue,
                rotating: true,
                interest: Events::IN,
            }),
        })
    }

    pub(super) fn has_claim(&self) -> bool {
        self.forwarding.is_some()
    }

    /// Forwards the claim that the item had, then releases the file's memory.
    pub(super) fn finish(self) {
        let Some(forwarding) = &self.forwarding else {
            return;
        };
        // A closed file first: its close calls this, and no foreign `poll` may end that early.
        if self.file.is_open() {
            let ready = self.file.object().poll(&mut PollTable::without_waiter());
            self.forward(forwarding, ready);
        }
    }

    /// The same for a file whose `poll` has panicked. Another panic on the way out would end the process, so the file is
    /// not polled. The next waiter polls it, and may find nothing.
    ///
    /// No foreign code runs if somebody else holds the file, so the set's lock may be held.
    fn finish_unpolled(self) {
        if let Some(forwarding) = &self.forwarding {
            self.forward(forwarding, forwarding.interest);
        }
    }

    /// Forwards the claim `forwarding`, which is this item's, if `ready` is what the item wanted.
    fn forward(&self, forwarding: &Forwarding, ready: Events) {
        let key = ready & forwarding.interest & (Events::IN | Events::OUT);
        if key.is_empty() {
            return;
        }
        // SAFETY: the item was hooked into this queue of its file's object, whose memory `self.file` keeps.
        let queue = unsafe { forwarding.queue.as_ref() };
        if forwarding.rotating {
            queue.forward_in_turn(key);
        } else {
            queue.forward_in_order(key);
        }
    }
}

/// The second half of a MOD, and what comes after it.
#[inline(never)]
fn finish_modify(item: LockedItem<'_>) {
    // Ends last, for its tasks may panic.
    let mut deferred = Deferred::new();
    let mut left = None;
    item.get().poll_changed(&mut left, &mut deferred);
    // The lock is free from here on.
    drop(item);
    if let Some(left) = left {
        left.finish();
    }
}

impl File<Set> {
    /// `epoll_ctl` for a user-level file.
    #[inline(always)]
    pub fn ctl_file(&self, op: Op, file: FileRef<'_>, event: Event) -> Result<(), Errno> {
        match op {
            Op::Add => {
                let (description, fd) = file.into_parts();
                // SAFETY: `file` is borrowed for longer than the call.
                unsafe { self.add_file(description, fd, event.events(), event.data()) }
            }
            Op::Mod => self.modify_file(file.key(), event.events(), event.data()),
            Op::Del => self.delete_file(file.key()),
        }
    }

    /// Executes MOD on a file. An item that is idle afterwards, the usual case, needs nothing more
    /// than this.
    ///
    /// All arguments are passed in registers. A [`FileRef`] and an [`Event`] would be stored and
    /// loaded in accesses of different widths, which the processor cannot forward from its store
    /// buffer.
    #[inline(never)]
    fn modify_file(&self, key: Key, events: Events, data: u64) -> Result<(), Errno> {
        self.check_modify(key.0, events)?;
        let set = self.set();
        let _scope = Scope::enter();
        let item = LockedItem::find(set.lock(), key).ok_or(Errno::NOENT)?;
        item.get().change_interest(events, data)?;
        if !item.get().is_idle_plain() {
            finish_modify(item);
        }
        Ok(())
    }

    /// Executes ADD. The arguments are passed in registers, as for
    /// [`modify_file`](Self::modify_file).
    ///
    /// # Safety
    /// Description and fd are the parts of a `FileRef` whose borrow outlasts the call.
    #[inline(never)]
    unsafe fn add_file(
        &self,
        description: NonNull<Description>,
        fd: i32,
        events: Events,
        data: u64,
    ) -> Result<(), Errno> {
        // SAFETY: the caller's contract.
        let file = unsafe { FileRef::from_parts(description, fd) };
        let event = Event::new(events, data);
        if let Some(target) = as_set(file.description()) {
            return self.add_set(file, target, event);
        }
        // Ends last, for its tasks may panic.
        let mut deferred = Deferred::new();
        if let Some(source) = file.description().time_source()
            && !self.set().knows_all(source)
        {
            let _nested_add = nesting::lock();
            time::learn(self.description(), source)?;
        }
        let shared = file.description().shared_source();
        if let Some(shared) = shared {
            shared.prepare_set(self.description())?;
        }
        let mut left = None;
        let result = {
            let mut locked = self.set().lock();
            let (left, deferred) = (&mut left, &mut deferred);
            self.ctl_locked(&mut locked, Op::Add, file, event, left, deferred)
        };
        if let Some(left) = left {
            left.finish();
        }
        if result.is_ok()
            && let Some(shared) = shared
        {
            // A thread that is not woken polls when its limit ends.
            let _ = shared.tell_threads_of(self.description());
            // Added, now check for callbacks.
            let attended = attend_silent_member(self.description());
            if attended.is_err() {
                let _ = self.delete_file(file.key());
            }
            return attended;
        }
        result
    }

    /// Executes DEL. The arguments are passed in registers, as for
    /// [`modify_file`](Self::modify_file).
    #[inline(never)]
    fn delete_file(&self, key: Key) -> Result<(), Errno> {
        self.check_self(key.0)?;
        // Ends last, for its tasks may panic.
        let _scope = Scope::enter();
        let mut left = None;
        let result = { self.set().lock().delete(key, &mut left) };
        if let Some(left) = left {
            left.finish();
        }
        result
    }

    /// Executes an ADD or a DEL under the set's lock, but no ADD of a file that is [added
    /// alone](is_added_alone). A MOD is done in two halves, [`ItemRef::change_interest`] and
    /// [`ItemRef::poll_changed`]. `locked` is this set. The caller releases the lock, then finishes what is `left` and
    /// ends `deferred`. A panic in one of these must not prevent the other.
    #[inline]
    pub(super) fn ctl_locked(
        &self,
        locked: &mut LockedSet<'_>,
        op: Op,
        file: FileRef<'_>,
        event: Event,
        left: &mut Option<Forgotten>,
        deferred: &mut Deferred,
    ) -> Result<(), Errno> {
        match op {
            Op::Add => {
                // Not a set, so not this one.
                let wanted = wanted(event.events());
                if wanted.contains(Events::EXCLUSIVE) && !Events::BESIDE_EXCLUSIVE.contains(wanted)
                {
                    return Err(Errno::INVAL);
                }
                self.add_locked(locked, file, None, event, left, deferred)
            }
            Op::Mod => unreachable!("a MOD is done in two halves"),
            Op::Del => {
                self.check_self(file.identity())?;
                locked.delete(file.key(), left)
            }
        }
    }

    /// Checks a MOD, or the ADD of a set, for the errors that do not depend on the set's members.
    #[inline]
    pub(super) fn check_modify(&self, file: FileId, events: Events) -> Result<(), Errno> {
        self.check_self(file)?;
        if events.contains(Events::EXCLUSIVE) {
            return Err(Errno::INVAL);
        }
        Ok(())
    }

    fn check_self(&self, file: FileId) -> Result<(), Errno> {
        if file == self.as_file_ref().identity() {
            return Err(Errno::INVAL);
        }
        Ok(())
    }

    fn add_set(&self, file: FileRef<'_>, target: &Set, event: Event) -> Result<(), Errno> {
        self.check_modify(file.identity(), event.events())?;
        // These outlast the locks, as they may run foreign code; the tasks come last, as they may panic.
        let mut deferred = Deferred::new();
        let mut left = None;
        let nested_add = nesting::lock();
        if !self.set().is_hidden.load(Ordering::Relaxed) {
            nesting::check_loops(self, target, file.identity())?;
        }
        target.was_nested.store(true, Ordering::Relaxed);
        if target.takes_turns() {
            nesting::mark_above_rotating(self.description())?;
        }
        if let Some(source) = file.description().time_source() {
            time::learn(self.description(), source)?;
        }
        let mut result = {
            let mut locked = self.set().lock_from_above();
            self.add_locked(
                &mut locked,
                file,
                Some(target),
                event,
                &mut left,
                &mut deferred,
            )
        };
        drop(nested_add);
        // Linked first, then this look: a backend that comes later finds the item.
        if result.is_ok()
            && let Some(there) = target.backend()
        {
            result = there
                .nest_in(file.description(), self.description())
                .and_then(|()| attend_nested(self.description(), target));
            if result.is_err() {
                // Another thread may have deleted it.
                let _ = self.set().lock().delete(file.key(), &mut left);
            }
        }
        if let Some(left) = left {
            left.finish();
        }
        result
    }

    /// `locked` is this set.
    #[inline(never)]
    fn add_locked(
        &self,
        locked: &mut LockedSet<'_>,
        file: FileRef<'_>,
        target: Option<&Set>,
        event: Event,
        left: &mut Option<Forgotten>,
        deferred: &mut Deferred,
    ) -> Result<(), Errno> {
        let set = self.set();
        let wanted = wanted(event.events());
        if locked.find(file.key()).is_some() {
            return Err(Errno::EXIST);
        }
        if set.rotates && target.is_none() {
            if locked.has_source() {
                return Err(Errno::INVAL);
            }
            // A kernel fd that was the source and was closed has left its slack.
            set.watched_by.set_slack(0);
        }
        if target.is_some_and(Set::takes_turns) {
            locked.reserve_rotating()?;
        }
        let mut item = locked.insert(self, file, wanted, event.data())?;
        {
            let mut watchers = file.description().watchers().lock();
            // SAFETY: the item is new, so its link is in no list. It stays put, and `ItemMut::forget` unlinks it before it
            // removes it.
            unsafe { watchers.link(&item.get().link, on_file_close) };
        }
        if let Err(errno) = nesting::check_paths(self, file.description(), target) {
            item.forget(None, left);
            return Err(errno);
        }
        if file.description().shared_source().is_some() {
            return item.add_shared(left, deferred);
        }
        let place = match target {
            Some(target) => {
                let mut bits = state::WATCHES_SET;
                if target.rotates {
                    bits |= state::ROTATING;
                }
                item.get().watch_set(bits);
                if target.takes_turns() {
                    item.add_rotating();
                }
                if target.rotates {
                    Place::ExclusiveTail
                } else {
                    Place::Shared
                }
            }
            None if wanted.contains(Events::EXCLUSIVE) => Place::ExclusiveTail,
            None => Place::Shared,
        };
        let (item, ready) = item.hook(place, left)?;
        item.get().queue_if_ready(ready & wanted, deferred);
        Ok(())
    }
}

/// Returns the events that an interest asks for. `ERR` and `HUP` are always reported, and `WAKEUP`
/// is dropped, as Linux does without the capability to block suspend.
fn wanted(events: Events) -> Events {
    (events - Events::WAKEUP) | Events::ALWAYS
}

impl LockedSet<'_> {
    /// Returns whether this rotating set watches anything but sets.
    fn has_source(&self) -> bool {
        self.count() > self.nested()
            || (self.set().backend()).is_some_and(|backend| backend.has_source())
    }

    fn delete(&mut self, key: Key, left: &mut Option<Forgotten>) -> Result<(), Errno> {
        let item = self.find_mut(key).ok_or(Errno::NOENT)?;
        item.forget(None, left);
        Ok(())
    }
}

impl ItemMut<'_, '_> {
    /// The end of ADD for a shared eventfd. It is not hooked: the backend reports all changes,
    /// including those of this process, so that none is reported twice.
    fn add_shared(
        self,
        left: &mut Option<Forgotten>,
        deferred: &mut Deferred,
    ) -> Result<(), Errno> {
        let item = self.get();
        item.entry
            .owner_word
            .fetch_or(state::SHARED, Ordering::Relaxed);
        let backend = item.set().backend().ok_or(Errno::NOMEM);
        let listening = backend.and_then(|backend| backend.listen(item.locked(), item.file()));
        if let Err(errno) = listening {
            self.forget(None, left);
            return Err(errno);
        }
        // It listens, now look.
        item.queue_if_ready(item.poll(), deferred);
        Ok(())
    }

    /// Hooks an item into every queue that its file registers. Returns what is ready.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it. The item has been removed.
    fn hook(self, place: Place, left: &mut Option<Forgotten>) -> Result<(Self, Events), Errno> {
        let mut is_short = false;
        let mut hooked = 0_usize;
        let mut hooking = Hooking {
            item: Some(self),
            extras: Extras::new(),
        };
        let Hooking {
            item: Some(item),
            extras,
        } = &mut hooking
        else {
            unreachable!("the item was put there")
        };
        let node = item.get();
        let mut on_register = |queue: &WaitQueue| {
            // SAFETY: `queue` is part of the file's object (its `poll` is generic over the
            // borrow), whose memory the item keeps; every entry is unhooked before that ends.
            unsafe {
                if hooked == 0 {
                    node.entry.hook(queue, place);
                } else {
                    let extra = ExtraEntry::new(node.as_ptr(), ready::on_wake_extra);
                    let (Ok(extra), Ok(())) = (extra, extras.try_reserve(1)) else {
                        is_short = true;
                        return;
                    };
                    extra.entry.hook(queue, place);
                    extras.push(extra);
                }
            }
            hooked += 1;
        };
        let events = node
            .file()
            .object()
            .poll(&mut PollTable::new(&mut on_register).for_item());
        let extras = mem::take(extras);
        let Some(mut item) = hooking.item.take() else {
            unreachable!("the item was put there")
        };
        is_short |= !extras.is_empty() && item.reserve_extras().is_err();
        if is_short {
            // A wake may have chosen it meanwhile.
            let mut claim = item.get().unhook();
            for extra in &extras {
                claim = extra.entry.unhook().or(claim);
            }
            item.forget(claim, left);
            return Err(Errno::NOMEM);
        }
        if !extras.is_empty() {
            let word = &item.get().entry.owner_word;
            word.fetch_or(state::HAS_EXTRAS, Ordering::Relaxed);
            item.keep_extras(extras);
        }
        Ok((item, events))
    }

    /// Unhooks and removes an item, and stores the rest of it in `left`. `known`: the queue whose claim the item held when it was
    /// unhooked before.
    fn forget(mut self, known: Option<NonNull<WaitQueue>>, left: &mut Option<Forgotten>) {
        let item = self.get();
        let (set, locked) = (item.set(), item.locked());
        let mut claim = item.unhook().or(known);
        let bits = item.state();
        let mut watchers = item.file().watchers().lock();
        // SAFETY: each registered item is in its file's list, from `File::add_locked` to here.
        unsafe { watchers.unlink(&item.link) };
        drop(watchers);
        if bits & state::WATCHES_SET != 0 {
            locked.set_nested(locked.nested() - 1);
            if let Some(here) = set.backend() {
                here.nested_changed(locked, item.file());
            }
            if bits & state::ROTATING != 0 {
                claim = claim.or_else(|| rotating_queue(item.file()));
            }
        }
        if bits & state::SHARED != 0
            && let Some(here) = set.backend()
        {
            // It can only fail where something came.
            let _ = here.listen(locked, item.file());
        }
        // An event of a rotating set is for the next worker, whatever that wants and this one did.
        let is_rotating = bits & state::ROTATING != 0;
        let interest = match is_rotating {
            true => Events::IN,
            false => item.interest(),
        };
        // SAFETY: it was unhooked above.
        unsafe { self.take_off() };
        if bits & state::WATCHES_SET != 0 {
            self.remove_rotating();
        }
        // The item's memory may go.
        // SAFETY: the item was unhooked, unlinked from the watcher list, and taken off all lists of the set above.
        let file = unsafe { self.remove() };
        let claim = if broken(Rule::ForwardWhenLeaving) {
            None
        } else {
            claim
        };
        let forwarding = claim.map(|queue| Forwarding {
            queue,
            rotating: is_rotating,
            interest,
        });
        *left = Some(Forgotten { file, forwarding });
    }
}

impl ItemRef<'_> {
    /// Queues an item that is ready after ADD or MOD, and wakes waiters. If it was queued already,
    /// an earlier wakeup has woken them.
    fn queue_if_ready(self, ready: Events, deferred: &mut Deferred) {
        if ready.is_empty() {
            return;
        }
        if !self.queue_locked() {
            // By a wake that may be just about to put it on the list. The caller may look for it.
            self.entry.outlast_wake();
            if self.state() & state::HAS_EXTRAS != 0 {
                for extra in self.extras() {
                    extra.entry.outlast_wake();
                }
            }
            return;
        }
        self.set().tell(&mut Wake {
            key: Events::IN,
            mode: Mode::Notify,
            deferred,
        });
    }

    /// The item's file is a set. `bits` are those of its kind.
    fn watch_set(self, bits: u32) {
        let locked = self.locked();
        locked.set_nested(locked.nested() + 1);
        self.entry.owner_word.fetch_or(bits, Ordering::Relaxed);
    }

    /// The first half of a MOD: changes the interest. The second half, a poll of the file, comes before the lock is
    /// released: a wake that still saw the old interest came before it.
    #[inline]
    pub(super) fn change_interest(self, events: Events, data: u64) -> Result<(), Errno> {
        if self.interest().contains(Events::EXCLUSIVE) {
            return Err(Errno::INVAL);
        }
        self.set_data(data);
        self.set_interest(wanted(events));
        Ok(())
    }

    /// Returns whether the second half of a MOD has nothing to do, which is the usual case.
    #[inline]
    pub(super) fn is_idle_plain(self) -> bool {
        self.state() & state::ROTATING == 0 && self.poll().is_empty()
    }

    /// The second half of a MOD.
    pub(super) fn poll_changed(self, left: &mut Option<Forgotten>, deferred: &mut Deferred) {
        let ready = self.poll();
        self.queue_if_ready(ready, deferred);
        if ready.is_empty() && self.state() & state::ROTATING != 0 {
            // It may have been chosen for what it wants no more.
            *left = Forgotten::disclaim(self);
        }
    }

    /// Takes an item out of all wait queues; no wakeup reaches it afterwards. Returns the queue
    /// whose claim it held.
    fn unhook(self) -> Option<NonNull<WaitQueue>> {
        let mut claim = self.entry.unhook();
        if self.state() & state::HAS_EXTRAS != 0 {
            for extra in self.extras() {
                claim = extra.entry.unhook().or(claim);
            }
        }
        claim
    }
}

/// Returns the queue of a rotating set. Other workers that found the source ready may have left the
/// event to this item, which was before them in line. If the source is in the set's backend, this
/// item may have been chosen before it could know. So the event is forwarded when the item is
/// removed.
fn rotating_queue(file: &Description) -> Option<NonNull<WaitQueue>> {
    as_set(file).map(|set| NonNull::from(&set.watched_by))
}

/// Returns whether ADD of `file` has work to do before it takes the set's lock.
pub(super) fn is_added_alone(file: &Description) -> bool {
    as_set(file).is_some() || file.shared_source().is_some() || file.time_source().is_some()
}

/// The set that a description is of, if it is one.
pub fn as_set(file: &Description) -> Option<&Set> {
    let object: &dyn Any = file.object();
    object.downcast_ref()
}

/// The same as a description of a set.
pub fn set_of(file: &Description) -> Option<&Description<Set>> {
    as_set(file)?;
    // SAFETY: the object in the description is a `Set`, as was just found.
    Some(unsafe { NonNull::from(file).cast().as_ref() })
}

/// Returns whether a description is of an object that may become ready without a wakeup. Kernel members of a
/// set wake only threads that wait for them. An event of a rotating set may have gone to another set. Time
/// passes by itself.
pub fn comes_unannounced(file: &Description) -> bool {
    as_set(file).is_some_and(|set| set.backend().is_some() || set.is_above_rotating())
        || file.time_source().is_some()
}

/// An item whose file is being asked for its queues. Dropped only when the file's `poll` panics:
/// then the item goes again.
struct Hooking<'g, 'a> {
    /// None once the file was asked.
    item: Option<ItemMut<'g, 'a>>,
    extras: Extras,
}

impl Drop for Hooking<'_, '_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(item) = self.item.take() {
            unhook_all(item, &self.extras);
        }
    }
}

#[cold]
fn unhook_all(item: ItemMut<'_, '_>, extras: &Extras) {
    // A wake may have chosen it meanwhile.
    let mut claim = item.get().unhook();
    for extra in extras {
        claim = extra.entry.unhook().or(claim);
    }
    let mut left = None;
    item.forget(claim, &mut left);
    if let Some(left) = left {
        // The caller of ADD holds the file, and runs the callbacks of this wakeup when the set's lock is free.
        left.finish_unpolled();
    }
}
