//! The attendant: a thread that sleeps in the kernel in place of callbacks and tasks.
//!
//! A kernel fd wakes only threads that sleep in the kernel, and a callback or a task has none. The attendant sleeps in
//! one kernel set of its own, for all callbacks and tasks of the process. The members of that set are, edge-triggered:
//! - for a set with members in the kernel, itself or below: the kernel set in which its threads sleep,
//! - for a kernel fd that a callback or a task waits for: a copy of it ([`AttendedFd`]).
//!
//! When one of them reports, the attendant wakes the wait queue in which the callbacks and tasks are, as any thread does
//! that changes an object. So the end of a callback, exclusive tasks and calls that come at the same time need no rules
//! of their own here.
//!
//! - Each event carries a key that is never given out again. So a late event of a registration that has ended finds
//!   nobody.
//! - The attendant holds no lock while it checks a set, and while callbacks run. The panic of a callback does not end
//!   it: the panic was reported by the panic hook, and there is no call to resume it in.
//! - It is started by the first registration, and ends once there has been none for a second.
//! - The child of a fork does not have it. Its next registration starts another one, with a kernel set of its own. The
//!   registrations of the parent are left alone.

#[cfg(not(upoll_loom))]
mod thread;
#[cfg(upoll_loom)]
#[path = "attendant/thread_model.rs"]
mod thread;

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

#[cfg(upoll_loom)]
pub use self::thread::join_attendants;
use super::own_fds::{LONGEST_SLEEP, LastCheck, OwnFd};
use super::restore::ensure_intact;
use super::{EDGE, EpollBackend, generation, kernel};
use crate::epoll::{Op, Set};
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::file::{Description, File, Held, PollTable, Pollable};
use crate::memory::{SharedBox, boxed};
use crate::sync::{AtomicPtr, AtomicU64, Mutex, Ordering, nap, statics};
use crate::wait::WaitQueue;

statics! {
    /// That of the process which has last registered something, never freed. A child that finds its parent's replaces it, and
    /// so meets no lock that a thread of the parent held.
    static ATTENDANT: AtomicPtr<Attendant> = AtomicPtr::new(ptr::null_mut());
}

struct Attendant {
    generation: u32,
    /// The kernel set in which the attendant sleeps. The data of an event is the key of a registration.
    set: SharedBox<OwnFd>,
    /// Held while a copy of an fd becomes a member of the set, is asked for its events there, is checked or is closed. A check
    /// adds the fd to the set for a moment if it is no member, and so must not meet another copy that comes to have the
    /// fd.
    copies: Mutex<()>,
    /// Innermost, but for allocations.
    state: Mutex<State>,
}

struct State {
    waiters: HashMap<u64, Waiter, FxBuildHasher>,
    /// Keys begin at 1.
    last_key: u64,
    /// The thread is there, or about to be.
    is_running: bool,
}

/// The file for whose callbacks and tasks the attendant waits.
#[derive(Clone)]
enum Waiter {
    Set(Held<Set>),
    Fd(Held<AttendedFd>),
}

/// A registration. It ends by [`leave`](Self::leave) alone.
#[derive(Clone, Copy)]
struct Place {
    attendant: &'static Attendant,
    key: u64,
}

/// The place of a set.
#[derive(Clone, Copy)]
pub(super) struct Attended {
    place: Place,
    /// The identities of two kernel sets: that of the attendant, and that of the set, which is a member there.
    linked: (u32, u32),
}

impl Attendant {
    fn of_this_process() -> Result<&'static Self, Errno> {
        generation::watch_forks()?;
        let generation = generation::current();
        loop {
            let known = ATTENDANT.load(Ordering::Acquire);
            // SAFETY: null, or published below and never freed.
            let attendant = unsafe { known.as_ref() };
            if let Some(attendant) = attendant.filter(|there| there.generation == generation) {
                return Ok(attendant);
            }
            let made = Box::into_raw(boxed(Attendant {
                generation,
                set: SharedBox::new(kernel::epoll_create()?)?,
                copies: Mutex::new(()),
                state: Mutex::new(State {
                    waiters: HashMap::default(),
                    last_key: 0,
                    is_running: false,
                }),
            })?);
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            if ATTENDANT
                .compare_exchange(known, made, success, failure)
                .is_err()
            {
                // SAFETY: made above, and nobody else knows it.
                drop(unsafe { Box::from_raw(made) });
            }
        }
    }

    fn is_of_this_process(&self) -> bool {
        self.generation == generation::current()
    }

    /// Makes the kernel set anew if the program has closed it. The attendant, which sleeps in the lost one for a second at
    /// most, registers the sets in the new one.
    fn restore(&self) -> Result<(), Errno> {
        let _one_at_a_time = self.state.lock();
        if !self.set.is_in_place() {
            self.set
                .replace_lost(kernel::epoll_create_elsewhere(&self.set)?);
        }
        Ok(())
    }

    /// Takes a place for `waiter`, and starts the thread if it does not run.
    fn enter(&'static self, waiter: Waiter) -> Result<Place, Errno> {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.waiters.try_reserve(1).map_err(|_| Errno::NOMEM)?;
        if !state.is_running {
            thread::start(self)?;
            state.is_running = true;
        }
        state.last_key += 1;
        let key = state.last_key;
        state.waiters.insert(key, waiter);
        Ok(Place {
            attendant: self,
            key,
        })
    }

    /// Waits until there has been no registration for a second.
    fn attend(&self) {
        let mut events = [Event::default(); 64];
        let last_check = LastCheck::new();
        while self.is_of_this_process() {
            let found = kernel::epoll_wait(&self.set, &mut events, Some(LONGEST_SLEEP), None);
            for event in &events[..found.unwrap_or(0)] {
                let waiter = self.state.lock().waiters.get(&event.data()).cloned();
                if let Some(waiter) = waiter {
                    let events = event.events();
                    go_on_after(move || waiter.wake(events));
                }
                if !self.is_of_this_process() {
                    // A callback has forked, and this is the child.
                    return;
                }
            }
            match found {
                Ok(0) => {
                    let mut state = self.state.lock();
                    if state.waiters.is_empty() {
                        state.is_running = false;
                        return;
                    }
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => {
                    // The kernel set was lost. Without an fd for another one this is a loop.
                    nap();
                    self.set.is_lost_after_failure();
                }
            }
            if let Some(begun) = last_check.due()
                && self.check().is_ok()
            {
                last_check.done(begun);
            }
        }
    }

    /// Checks the own fds on which wakeups depend, and makes lost ones anew.
    fn check(&self) -> Result<(), Errno> {
        self.restore()?;
        let mut waiters = Vec::new();
        {
            let state = self.state.lock();
            let there = state.waiters.iter();
            let room = waiters.try_reserve(there.len());
            room.map_err(|_| Errno::NOMEM)?;
            waiters.extend(there.map(|(&key, waiter)| (key, waiter.clone())));
        }
        let mut checked = Ok(());
        for (key, waiter) in waiters {
            if !self.is_of_this_process() {
                break;
            }
            go_on_after(|| match waiter {
                Waiter::Set(set) => {
                    let intact = ensure_intact(&set);
                    let backend = EpollBackend::of(set.object());
                    let linked = backend.map_or(Ok(()), EpollBackend::link_attendant);
                    checked = checked.and(intact).and(linked);
                }
                Waiter::Fd(file) => {
                    if file.object().is_lost() {
                        self.state.lock().waiters.remove(&key);
                        file.object().queue.wake_all(Events::HUP);
                    }
                }
            });
        }
        checked
    }
}

/// Runs foreign code. A panic of it ends here.
fn go_on_after(run: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(run)) {
        // Its drop could panic as well.
        std::mem::forget(payload);
    }
}

impl Waiter {
    /// Wakes the callbacks and tasks, after an event in the kernel.
    fn wake(&self, events: Events) {
        match self {
            // Without a look at the set: that would take away for a moment what other threads look for.
            Waiter::Set(set) => set.object().watched_by.wake_all(Events::FOR_CALLBACKS),
            Waiter::Fd(file) => file.object().queue.wake_all(events),
        };
    }
}

impl Place {
    fn register(self, op: Op, fd: RawFd, events: Events) -> Result<(), Errno> {
        let interest = Event::new(events, self.key);
        kernel::epoll_ctl(&self.attendant.set, op, fd, &interest)
    }

    fn leave(self) {
        // In a child the lock may be that of a thread which it does not have.
        if self.attendant.is_of_this_process() {
            let waiter = self.attendant.state.lock().waiters.remove(&self.key);
            drop(waiter);
        }
    }
}

impl Attended {
    fn link_to(&mut self, backend: &EpollBackend) -> Result<(), Errno> {
        let (place, shows) = (self.place, backend.sleep_set());
        place.attendant.restore()?;
        let now = (place.attendant.set.identity(), shows.fd.identity());
        // A lost kernel set is linked once it was made anew.
        if self.linked == now || !shows.fd.is_in_place() {
            return Ok(());
        }
        // A look at a copy that was closed may meet the set at its fd.
        let _copies = place.attendant.copies.lock();
        let fd = shows.fd.as_raw_fd();
        match place.register(Op::Add, fd, EDGE) {
            Err(Errno::EXIST) => place.register(Op::Mod, fd, EDGE)?,
            added => added?,
        }
        let first = &backend.first.fd;
        if backend.nesting.get().is_some() && first.is_in_place() {
            // The nesting fd shows its events.
            let _ = place.register(Op::Del, first.as_raw_fd(), EDGE);
        }
        self.linked = now;
        Ok(())
    }
}

impl EpollBackend {
    /// See [`KernelBackend::attend`](crate::epoll::backend::KernelBackend::attend). The workers of a rotating set take turns,
    /// which a thread that waits for several callbacks cannot.
    pub(super) fn begin_attendance(&self, description: &Description<Set>) -> Result<(), Errno> {
        let set = description.object();
        if set.rotates() {
            return Err(Errno::PERM);
        }
        self.ensure_intact(description)?;
        let attendant = Attendant::of_this_process()?;
        let is_attended = {
            let mut attended = self.attended.lock();
            // The place at a parent's attendant does not count.
            let there = attended.filter(|there| there.place.attendant.is_of_this_process());
            let mut now = match there {
                Some(there) => there,
                None => {
                    // SAFETY: the caller's borrow keeps it alive.
                    let held = unsafe { Held::new(NonNull::from(description)) };
                    let place = attendant.enter(Waiter::Set(held))?;
                    let linked = (0, 0);
                    Attended { place, linked }
                }
            };
            let linked = now.link_to(self);
            match (&linked, there) {
                (Err(_), None) => now.place.leave(),
                _ => *attended = Some(now),
            }
            linked
        };
        // A callback that has ended before the set had its place has found nothing to end.
        self.leave_attendant(|| !set.has_callbacks());
        is_attended
    }

    /// Links the kernel set that shows what the kernel has, if callbacks wait for the set.
    pub(super) fn link_attendant(&self) -> Result<(), Errno> {
        let mut attended = self.attended.lock();
        match &mut *attended {
            Some(attended) if attended.place.attendant.is_of_this_process() => {
                attended.link_to(self)
            }
            _ => Ok(()),
        }
    }

    /// Returns the kernel set of the attendant, if callbacks of this process wait for the set.
    pub(super) fn attendants_set(&self) -> Result<Option<&'static OwnFd>, Errno> {
        let attendant = self
            .attended
            .lock()
            .map(|attended| attended.place.attendant);
        let Some(attendant) = attendant.filter(|there| there.is_of_this_process()) else {
            return Ok(None);
        };
        attendant.restore()?;
        Ok(Some(&attendant.set))
    }

    /// Ends the set's place at the attendant, if it has one and `is_over` by then.
    pub(super) fn leave_attendant(&self, is_over: impl FnOnce() -> bool) {
        let left = {
            let mut attended = self.attended.lock();
            let Some(left) = attended.take_if(|_| is_over()) else {
                return;
            };
            if left.place.attendant.is_of_this_process() {
                let _copies = left.place.attendant.copies.lock();
                for shows in [Some(&self.first), self.nesting.get()]
                    .into_iter()
                    .flatten()
                {
                    if shows.fd.is_in_place() {
                        let _ = left.place.register(Op::Del, shows.fd.as_raw_fd(), EDGE);
                    }
                }
            }
            left
        };
        left.place.leave();
    }
}

/// A kernel fd that a callback or a task waits for, as a file. Its queue is woken by the attendant.
pub(crate) struct AttendedFd {
    /// An own fd for the file, which a close of the program's cannot make that of another one. None if the file cannot
    /// be polled, and is always ready.
    copy: Option<OwnFd>,
    wanted: Events,
    queue: WaitQueue,
    attendant: &'static Attendant,
    /// Its place there; 0 until it has one.
    key: AtomicU64,
}

impl AttendedFd {
    /// Opens the file.
    ///
    /// # Errors
    /// `EAGAIN`, `EMFILE`, `ENFILE`, `ENOMEM`, `ENOSPC`: the kernel has no thread, fd or memory for it. `EINVAL`, `ELOOP`: it
    /// is a kernel set that is nested too deep. `EBADF`: it is not open.
    pub(crate) fn open(fd: BorrowedFd<'_>, wanted: Events) -> Result<File<Self>, Errno> {
        let attendant = Attendant::of_this_process()?;
        attendant.restore()?;
        let copy = {
            let _copies = attendant.copies.lock();
            match OwnFd::awaited_in(&attendant.set, fd.as_raw_fd()) {
                Err(Errno::PERM) => None,
                copy => Some(copy?),
            }
        };
        let file = File::try_new(AttendedFd {
            copy,
            wanted,
            queue: WaitQueue::new(),
            attendant,
            key: AtomicU64::new(0),
        })?;
        if let Some(copy) = &file.copy {
            // SAFETY: the file keeps it alive.
            let held = unsafe { Held::new(NonNull::from(file.description())) };
            let place = attendant.enter(Waiter::Fd(held))?;
            file.key.store(place.key, Ordering::Relaxed);
            // The kernel looks at the file once more: what has happened until now is an event as well.
            let edges = (wanted - Events::CONTROL) | Events::ET;
            // If the program has closed the copy, another wait for the file may get its fd, and its place in the set.
            let _copies = attendant.copies.lock();
            place.register(Op::Mod, copy.as_raw_fd(), edges)?;
        }
        Ok(file)
    }

    fn is_lost(&self) -> bool {
        let Some(copy) = &self.copy else {
            return false;
        };
        // The child of a fork has no copy. The lock may be that of a thread of its parent.
        if !self.attendant.is_of_this_process() {
            return true;
        }
        let _copies = self.attendant.copies.lock();
        !copy.is_in_place()
    }

    /// The copy of a parent was closed at the fork, or is that of a child with its parent's kernel sets, which are to be left
    /// alone.
    fn close_copy(&self) {
        if let Some(copy) = &self.copy
            && self.attendant.is_of_this_process()
        {
            let _copies = self.attendant.copies.lock();
            copy.close();
        }
    }
}

impl Pollable for AttendedFd {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        match &self.copy {
            None => Events::DEFAULT,
            Some(_) if self.is_lost() => Events::HUP,
            Some(copy) => {
                let ready = copy.try_call(|fd| kernel::poll_by_fd(fd, self.wanted));
                ready.unwrap_or(Events::HUP)
            }
        }
    }

    fn release(&self) {
        let (attendant, key) = (self.attendant, self.key.load(Ordering::Relaxed));
        Place { attendant, key }.leave();
        self.close_copy();
    }
}

impl Drop for AttendedFd {
    fn drop(&mut self) {
        self.close_copy();
        let copy = self.copy.take();
        std::mem::forget(copy.filter(|_| !self.attendant.is_of_this_process()));
    }
}
