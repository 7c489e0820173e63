//! Epoll sets that hold a listening socket: what the program registered, and how it stands in the kernel.
//!
//! Beside the program's own sets there are private ones, in which threads sleep in `poll` and `select`. They hold the
//! listening sockets of the call as members. The program does not know their fds.
//!
//! The program's own `EPOLL_CTL_ADD` is handed on as it is and only recorded. The first `epoll_wait` on the same
//! fd that is about to sleep registers the socket again, with `EPOLLEXCLUSIVE`. So a set that is waited
//! for by other means (another fd of the set, another set, a raw system call) keeps the kernel's behaviour.
//!
//! The kernel adds an exclusive waiter at the tail of the socket's wait queue and wakes the first one whose set
//! has a thread in `epoll_wait`. Deleting and adding the socket is therefore a rotation. `EPOLL_CTL_ADD`
//! polls the socket, so an event that arrives in between is not lost.
//!
//! Locking: changes hold the lock of `lock`, with the program's signals blocked. Fields are atomic cells, as a thread that returns
//! from `epoll_wait` compares events with members without the lock; it takes what it finds as a hint.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use crossbeam_utils::atomic::AtomicCell;
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, epoll_event, pollfd};

use crate::fds::{self, FIRST_SET, LISTENER, OPENING, UNKNOWN};
use crate::lock::{Locked, lock};
use crate::raw::{self, give, kernel};
use crate::settings::{self, Policy};
use crate::shared::{self, Group};

/// Further sets stay as the program registered them, and further threads sleep in the kernel's `poll`. A set that is left
/// alone counts until it is closed.
const SETS: usize = 240;
/// Further listening sockets of a set stay as the program registered them.
const MEMBERS: usize = 8;

const IN: u32 = libc::EPOLLIN as u32;
const HUP: u32 = libc::EPOLLHUP as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// The events that the kernel accepts beside `EPOLLEXCLUSIVE`.
const ACCEPTED: u32 = IN | HUP | EDGE | EXCLUSIVE | MORE_ACCEPTED;
const MORE_ACCEPTED: u32 = (libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLWAKEUP) as u32;
/// Events that a listening socket never reports, or only together with `EPOLLHUP`: the library adds them itself.
const DISPENSABLE: u32 = (libc::EPOLLRDHUP | libc::EPOLLPRI) as u32;

/// `kcmp(2)`: whether two fds are of one open file.
const KCMP_FILE: usize = 0;

/// How a member is registered.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// There is no member in this place.
    Free = 0,
    /// As the program asked, to be made exclusive.
    Pending,
    /// As the program asked, and to stay so.
    Plain,
    /// With `EPOLLEXCLUSIVE`, which the program does not know.
    MadeExclusive,
    /// The program asked for `EPOLLEXCLUSIVE`.
    AskedExclusive,
    /// Not at all: the member is new in a private set, or the kernel had no memory to register it again. The next wait tries
    /// once more.
    Lost,
}

/// The use of a place in the table.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// There is no set.
    Free = 0,
    /// A set of the program.
    Programs,
    /// A set of the program that stays as it is registered: the parent made it before a `fork`, or it was polled or is a member of
    /// another set.
    LeftAlone,
    /// A set in which a thread sleeps in `poll` or `select`.
    Private,
}

/// Private sets have fds from here on, if the process may have such: programs expect the lowest free fds to be theirs.
/// Beyond 63 the kernel would have to enlarge the table of fds, whose size shows in what `select` reads.
const FIRST_PRIVATE: c_int = 32;

// Others would be behind locks of crossbeam's, which a child of a fork could find held.
const _: () = assert!(AtomicCell::<u64>::is_lock_free() && AtomicCell::<State>::is_lock_free());

/// A listening socket in a set.
struct Member {
    state: AtomicCell<State>,
    fd: AtomicCell<c_int>,
    events: AtomicCell<u32>,
    data: AtomicCell<u64>,
    /// `accept` was called since the last event, so an edge-triggered one may be reported again.
    answered: AtomicCell<bool>,
}

pub(crate) struct Set {
    kind: AtomicCell<Kind>,
    pub(crate) epfd: AtomicCell<c_int>,
    members: [Member; MEMBERS],
    /// Wakeups since the last rotation.
    wakeups: AtomicCell<u32>,
    /// The sum of the cookies of exclusive members.
    key: AtomicCell<u64>,
    /// The time at which a thread last checked whether a connection waits that no worker accepts.
    looked: AtomicCell<u64>,
    /// The number of times that a set in this place was closed. As long as that stays the same, the fd is that of the set,
    /// unless a raw system call closed it.
    pub(crate) closes: AtomicCell<u32>,
}

// SAFETY: zeros are numbers, false and the first of each kind. So all places are free.
static TABLE: [Set; SETS] = unsafe { MaybeUninit::zeroed().assume_init() };

/// So many entries of the table were in use at some time.
static USED: AtomicCell<usize> = AtomicCell::new(0);
/// A member is or was edge-triggered.
static HAS_EDGES: AtomicCell<bool> = AtomicCell::new(false);

fn sets() -> impl Iterator<Item = &'static Set> {
    let sets = TABLE.iter().take(USED.load());
    sets.filter(|set| set.kind.load() != Kind::Free)
}

/// Returns the members that stand for an fd, and their sets.
fn members_of(fd: c_int) -> impl Iterator<Item = (&'static Set, &'static Member)> {
    sets().filter_map(move |set| Some((set, set.member(fd)?)))
}

/// Marks the sets of the parent, in the child, which has no other thread, and closes the private ones. `are_ours`: their fds
/// are not the program's by now, as they may be in a child by a raw `clone`, of which this process is one.
pub(crate) fn after_fork(are_ours: bool) {
    for set in sets() {
        if set.is_private() {
            if are_ours {
                kernel!(SYS_close, set.epfd.load());
            }
            forget_fd(set.epfd.load());
        } else {
            set.kind.store(Kind::LeftAlone);
        }
    }
}

fn at(epfd: c_int) -> Option<&'static Set> {
    let index = fds::kind(epfd).checked_sub(FIRST_SET)?;
    let set = TABLE.get(usize::from(index))?;
    (set.kind.load() != Kind::Free && set.epfd.load() == epfd).then_some(set)
}

/// Returns the set of an fd, if it is the program's. A call on the fd of a private set is about a file that the library
/// does not know.
fn of_program(epfd: c_int) -> Option<&'static Set> {
    at(epfd).filter(|set| !set.is_private())
}

/// Returns the set of an fd, if it is the program's and has members to look after.
pub(crate) fn find(epfd: c_int) -> Option<&'static Set> {
    of_program(epfd).filter(|set| !set.is_left_alone())
}

/// Returns the mask to register an fd exclusively in place of `events`; `None` if that would mean something else.
fn exclusive_mask(fd: c_int, events: u32) -> Option<u32> {
    let is_possible = events & IN != 0
        && events & !(ACCEPTED | DISPENSABLE) == 0
        && (events & EDGE == 0 || fds::sees_answers(fd));
    is_possible.then_some(events & ACCEPTED | EXCLUSIVE)
}

fn state_of(fd: c_int, events: u32) -> State {
    match exclusive_mask(fd, events) {
        _ if settings::is_observing() => State::Plain,
        _ if events & EXCLUSIVE != 0 => State::AskedExclusive,
        Some(_) => State::Pending,
        None => State::Plain,
    }
}

impl Member {
    fn is_exclusive(&self) -> bool {
        let state = self.state.load();
        state == State::MadeExclusive || state == State::AskedExclusive
    }

    fn is_lost(&self) -> bool {
        self.state.load() == State::Lost
    }

    fn record(&self, event: epoll_event, state: State) {
        self.events.store(event.events);
        self.data.store(event.u64);
        self.state.store(state);
    }

    fn forget(&self) {
        self.state.store(State::Free);
    }

    /// Registers the member as the program asked, for good.
    fn leave(&self, epfd: c_int) {
        if matches!(self.state.load(), State::MadeExclusive | State::Lost) {
            self.register_again(epfd, false);
        }
        self.forget();
    }

    /// Returns whether registering the member again reports nothing that the kernel would not report.
    fn can_rotate(&self) -> bool {
        self.events.load() & EDGE == 0 || self.answered.load()
    }

    fn add(&self, epfd: c_int, is_exclusive: bool) -> isize {
        let asked = self.events.load();
        let fd = self.fd.load();
        let mask = exclusive_mask(fd, asked).filter(|_| is_exclusive);
        let events = mask.unwrap_or(asked);
        let u64 = self.data.load();
        let result = register(epfd, fd, &epoll_event { events, u64 });
        self.state.store(match result {
            ..0 => State::Lost,
            _ if (events & !asked) & EXCLUSIVE != 0 => State::MadeExclusive,
            _ => state_of(fd, asked),
        });
        result
    }

    /// Registers the member again: a deleted one is not in the kernel, so that only a lack of memory makes the
    /// second call fail. Returns the error of the first call, after which the member is forgotten.
    fn register_again(&self, epfd: c_int, is_exclusive: bool) -> isize {
        if !self.is_lost() {
            let fd = self.fd.load();
            let result = kernel!(SYS_epoll_ctl, epfd, EPOLL_CTL_DEL, fd, 0);
            if result < 0 {
                // Another process, or another thread by a raw system call, closed or deleted it.
                self.forget();
                return result;
            }
        }
        self.add(epfd, is_exclusive);
        0
    }
}

impl Set {
    fn members(&self) -> impl Iterator<Item = &Member> {
        let members = self.members.iter();
        members.filter(|member| member.state.load() != State::Free)
    }

    fn member(&self, fd: c_int) -> Option<&Member> {
        self.members().find(|member| member.fd.load() == fd)
    }

    /// Frees the place, and leaves the fd marked.
    fn give_up(&self) {
        self.members.iter().for_each(Member::forget);
        self.closes.fetch_add(1);
        self.kind.store(Kind::Free);
    }

    /// Returns whether the set stays as it is registered. A wait in it needs no naps.
    pub(crate) fn is_left_alone(&self) -> bool {
        self.kind.load() == Kind::LeftAlone
    }

    /// Locks the table if the set is still that of `epfd`, as `find` has returned it. Another thread may just have closed it.
    pub(crate) fn lock_at(&self, epfd: c_int) -> Option<Locked> {
        lock().filter(|_| at(epfd).is_some_and(|set| std::ptr::eq(set, self)))
    }

    pub(crate) fn is_private(&self) -> bool {
        self.kind.load() == Kind::Private
    }

    /// Returns the group of workers that wait for the same sockets; `None` if no member is exclusive.
    pub(crate) fn group(&self) -> Option<&'static Group> {
        let key = self.key.load();
        if key == 0 { None } else { shared::group(key) }
    }

    /// Returns whether a wait has to look after members from time to time.
    pub(crate) fn needs_naps(&self) -> bool {
        let mut members = self.members();
        members.any(|member| member.is_exclusive() || member.is_lost())
    }

    /// Returns whether the kernel lacks a registration.
    pub(crate) fn has_lost(&self) -> bool {
        self.members().any(Member::is_lost)
    }

    /// Makes new members exclusive, and moves the others to the end of the line if `is_due`.
    pub(crate) fn register(&self, _: &Locked, is_due: bool) {
        let (mut changed, mut rotated) = (false, false);
        for member in self.members() {
            let is_pending = member.state.load() == State::Pending && member.can_rotate();
            let is_new = is_pending || member.is_lost();
            let is_moved = is_due && member.is_exclusive() && member.can_rotate();
            if is_new || is_moved {
                let is_gone = member.register_again(self.epfd.load(), true) < 0;
                changed |= is_new || is_gone;
                rotated |= is_moved;
            }
        }
        if rotated {
            self.wakeups.store(0);
            shared::count(|worker| &worker.rotations);
        }
        if changed {
            let exclusive = self.members().filter(|member| member.is_exclusive());
            // The kernel's unique number of a socket.
            let cookie = |member: &Member| raw::socket_option(member.fd.load(), libc::SO_COOKIE);
            let cookies = exclusive.map(|member| cookie(member).unwrap_or(1));
            self.key.store(cookies.fold(0, u64::wrapping_add));
        }
    }

    /// Returns whether a wait has to look after members before it sleeps. Waits that end before their first nap does would
    /// never look.
    pub(crate) fn has_to_look(&self, now: u64) -> bool {
        let looked = self.looked.load();
        let is_past = looked.saturating_add(shared::SHORT) <= now;
        let is_to_look = |group: &Group| group.is_to_look(looked, now);
        is_past && self.needs_naps() && self.group().is_none_or(is_to_look)
    }

    /// Registers members again whose socket is ready, as no worker accepted in time, and lost ones. Returns whether there are any,
    /// and counts a rescue then.
    pub(crate) fn rescue(&self, _: &Locked, now: u64) -> bool {
        self.looked.store(now);
        let late = self.members().filter(|member| {
            let is_checked = member.is_exclusive() && member.can_rotate();
            member.is_lost() || is_checked && raw::readiness(member.fd.load(), IN) != 0
        });
        let late = late.filter(|member| member.register_again(self.epfd.load(), true) >= 0);
        let is_found = late.count() > 0;
        if is_found {
            shared::count(|worker| &worker.rescues);
        }
        is_found
    }

    /// Takes note of the wakeups among `events`, which the kernel returned, and completes them. Returns whether all of them
    /// are of members.
    pub(crate) fn harvest(&self, events: &mut [epoll_event]) -> bool {
        let (mut woken, mut are_members) = (false, true);
        for event in events {
            let data = event.u64;
            let mut members = self.members();
            let Some(member) = members.find(|member| member.data.load() == data) else {
                are_members = false;
                continue;
            };
            woken |= event.events & IN != 0;
            member.answered.store(false);
            if event.events & HUP != 0 && member.state.load() == State::MadeExclusive {
                // The kernel was not asked for these.
                let more = member.events.load() & DISPENSABLE;
                event.events |= raw::readiness(member.fd.load(), more);
            }
        }
        if woken {
            self.wakeups.fetch_add(1);
            shared::count_wakeup();
            if let Some(group) = self.group() {
                group.woken(raw::now());
            }
        }
        are_members
    }

    /// Returns whether a worker with so many wakeups is to go to the end of the line.
    pub(crate) fn is_due(&self) -> bool {
        let wakeups = self.wakeups.load();
        match settings::policy() {
            Policy::Every(count) => wakeups >= count,
            Policy::Adaptive => {
                let has_sleeper = |group: &Group| group.has_sleeper(raw::now());
                wakeups > 0 && self.group().is_none_or(has_sleeper)
            }
            Policy::Exclusive | Policy::Observe => false,
        }
    }

    /// Records a listening socket. Returns whether there is a place for it.
    fn remember(&self, fd: c_int, event: epoll_event, state: State) -> bool {
        let mut places = self.members.iter();
        let free = || places.find(|member| member.state.load() == State::Free);
        let place = self.member(fd).or_else(free);
        if let Some(member) = place {
            member.fd.store(fd);
            member.answered.store(true);
            HAS_EDGES.fetch_or(event.events & EDGE != 0);
            member.record(event, state);
        }
        place.is_some()
    }

    /// Closes a private set.
    pub(crate) fn close(&self, _: &Locked) {
        let epfd = self.epfd.load();
        // Before the fd is free: the child of a fork in between would close what another thread has opened there.
        self.give_up();
        close_opened(epfd);
    }

    /// Registers every member of a set of the program as it asked, for good. The fd stays known, so that a close is noticed.
    fn leave_alone(&self, _: &Locked) {
        let change = self.kind.compare_exchange(Kind::Programs, Kind::LeftAlone);
        if change.is_ok() {
            self.members()
                .for_each(|member| member.leave(self.epfd.load()));
        }
    }
}

fn register(epfd: c_int, fd: c_int, event: *const epoll_event) -> isize {
    kernel!(SYS_epoll_ctl, epfd, EPOLL_CTL_ADD, fd, event)
}

/// Takes note of a new epoll fd: what was known about the fd belonged to another file.
pub(crate) fn created(epfd: c_int) {
    if fds::kind(epfd) != UNKNOWN
        && let Some(_locked) = lock()
    {
        forget_fd(epfd);
    }
}

/// Forgets what is known about an fd that has just got another file, or is about to lose it.
fn forget_fd(fd: c_int) {
    if let Some(set) = at(fd) {
        set.give_up();
    }
    fds::set_kind(fd, UNKNOWN);
}

/// Takes a free place of the table for the fd of a set; `None` if there is none, or no room for the fd in the table of kinds.
fn claim(_: &Locked, epfd: c_int, kind: Kind) -> Option<&'static Set> {
    let mut places = TABLE.iter().enumerate();
    let (index, set) = places.find(|(_, set)| set.kind.load() == Kind::Free)?;
    let mark = FIRST_SET + u8::try_from(index).ok()?;
    fds::set_kind(epfd, mark);
    USED.fetch_max(index + 1);
    set.wakeups.store(0);
    set.key.store(0);
    set.epfd.store(epfd);
    let has_room = fds::kind(epfd) == mark;
    set.kind.store(if has_room { kind } else { Kind::Free });
    has_room.then_some(set)
}

/// Takes one entry of a `poll`, or what stands for one in a `select`.
pub(crate) type Visitor<'a> = dyn FnMut(pollfd) + 'a;

/// Opens a private set for the entries that `visit` passes on. Returns `None` if it cannot stand in for `poll`.
pub(crate) fn open(locked: &Locked, visit: impl FnOnce(&mut Visitor<'_>)) -> Option<&'static Set> {
    let mut epfd = opened(locked, kernel!(SYS_epoll_create1, libc::EPOLL_CLOEXEC))?;
    if epfd < FIRST_PRIVATE {
        let high = kernel!(SYS_fcntl, epfd, libc::F_DUPFD_CLOEXEC, FIRST_PRIVATE);
        if let Some(high) = opened(locked, high) {
            close_opened(epfd);
            epfd = high;
        }
    }
    let Some(set) = claim(locked, epfd, Kind::Private) else {
        close_opened(epfd);
        return None;
    };
    let (mut are_all_added, mut index) = (true, 0);
    visit(&mut |entry| {
        // POLLNVAL is never asked for; the other bits mean the same in both.
        let events = u32::from((entry.events & !libc::POLLNVAL).cast_unsigned());
        let mut event = epoll_event { events, u64: index };
        index += 1;
        if entry.events & libc::POLLOUT == 0 && events & IN != 0 && fds::kind(entry.fd) == LISTENER
        {
            event.events = IN;
            if set.remember(entry.fd, event, State::Lost) {
                return;
            }
        }
        are_all_added &= register(epfd, entry.fd, &event) >= 0;
    });
    set.register(locked, false);
    if !are_all_added || set.key.load() == 0 || set.has_lost() {
        set.close(locked);
        return None;
    }
    Some(set)
}

/// Takes note of an fd that the kernel has just opened for the library; `None` if it returned an error.
fn opened(_: &Locked, fd: isize) -> Option<c_int> {
    let fd = c_int::try_from(fd).ok().filter(|&fd| fd >= 0)?;
    forget_fd(fd);
    fds::set_kind(fd, OPENING);
    Some(fd)
}

/// Closes an fd that is no set, or not any more. A call that finds it marked waits for the lock, and then finds it closed.
fn close_opened(fd: c_int) {
    kernel!(SYS_close, fd);
    fds::set_kind(fd, UNKNOWN);
}

/// `epoll_ctl(2)` with an `fd` that may be a listening socket, or is a set that holds one.
///
/// # Safety
/// That of `epoll_ctl`.
#[cold]
pub(crate) unsafe fn control(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let straight = || kernel!(SYS_epoll_ctl, epfd, op, fd, event);
    let Some(locked) = lock() else {
        return give(straight());
    };
    let known = of_program(epfd)
        .and_then(|set| Some((set, set.member(fd)?)))
        .or_else(|| find_alias(epfd, fd));
    let result = match (op, known) {
        (EPOLL_CTL_ADD, _) if !fds::is_listener(fd) => {
            if let Some(inner) = of_program(fd) {
                // A thread that waits in the outer set does not wait in this one, and would not end the kernel's walk.
                inner.leave_alone(&locked);
            }
            // It is no listening socket any more.
            members_of(fd).for_each(|(_, member)| member.forget());
            straight()
        }
        (EPOLL_CTL_ADD, Some((set, member)))
            if member.is_lost() && member.add(set.epfd.load(), true) >= 0 =>
        {
            -libc::EEXIST as isize
        }
        (EPOLL_CTL_ADD, _) => {
            let result = straight();
            if result >= 0 {
                known.inspect(|(_, stale)| stale.forget());
                // SAFETY: the kernel has just read it.
                record(&locked, epfd, fd, unsafe { event.read_unaligned() });
            }
            result
        }
        (EPOLL_CTL_DEL, Some((_, member))) => {
            let result = if member.is_lost() { 0 } else { straight() };
            // After an error there is nothing to look after, either.
            member.forget();
            result
        }
        // SAFETY: the kernel has read the event, unless it has returned EFAULT.
        (EPOLL_CTL_MOD, Some((set, member))) => unsafe { modify(set, member, event, straight()) },
        _ => straight(),
    };
    give(result)
}

/// `EPOLL_CTL_MOD` of a member, for which the kernel has returned `result`. It refuses the call for an exclusive one.
///
/// # Safety
/// Unless the result is `EFAULT`, the kernel must have read the event.
unsafe fn modify(set: &Set, member: &Member, event: *mut epoll_event, result: isize) -> isize {
    let state = member.state.load();
    let is_refused = match state {
        State::MadeExclusive => result == -libc::EINVAL as isize,
        State::Lost => result == -libc::ENOENT as isize,
        _ => false,
    };
    if result < 0 && !is_refused {
        return result;
    }
    // SAFETY: the caller's contract.
    let event = unsafe { event.read_unaligned() };
    if !is_refused {
        member.record(event, state_of(member.fd.load(), event.events));
        return result;
    }
    // A MOD may not ask for it in any case.
    if event.events & EXCLUSIVE != 0 {
        return result;
    }
    member.record(event, state);
    // The member is deleted by now. Without memory to add it, it stays lost until the next wait or look: a failure would leave
    // the program with what it had asked for before, or without it.
    member.register_again(set.epfd.load(), !set.is_left_alone())
}

/// Returns the member of a set that `epfd` is another fd of.
fn find_alias(epfd: c_int, fd: c_int) -> Option<(&'static Set, &'static Member)> {
    let process = shared::process();
    let is_same = |other: c_int| kernel!(SYS_kcmp, process, process, KCMP_FILE, epfd, other) == 0;
    let mut found = members_of(fd).filter(|(set, _)| set.epfd.load() != epfd && !set.is_private());
    found.find(|(set, _)| is_same(set.epfd.load()))
}

fn record(locked: &Locked, epfd: c_int, fd: c_int, event: epoll_event) {
    let set = match of_program(epfd) {
        None if fds::kind(epfd) == UNKNOWN => claim(locked, epfd, Kind::Programs),
        found => found,
    };
    if let Some(set) = set.filter(|set| !set.is_left_alone()) {
        set.remember(fd, event, state_of(fd, event.events));
    }
}

/// Takes note that `poll` or `select` waits for an fd. If it is a set, it keeps the kernel's behaviour.
pub(crate) fn polled(epfd: c_int) {
    if let Some(set) = find(epfd)
        && let Some(locked) = set.lock_at(epfd)
    {
        set.leave_alone(&locked);
    }
}

/// Takes note that an fd with something to remember is about to be closed.
#[cold]
pub(crate) fn closing(fd: c_int) {
    let Some(locked) = lock() else {
        return;
    };
    if let Some(set) = of_program(fd) {
        // The set may have other fds, and these keep the kernel's behaviour. A private one has none.
        set.leave_alone(&locked);
    } else if fds::kind(fd) == LISTENER {
        // The socket may have other fds, and then its registration outlives this one.
        for (set, member) in members_of(fd) {
            // Otherwise the set is a parent's.
            if !set.is_left_alone() {
                member.leave(set.epfd.load());
            }
            member.forget();
        }
    }
    if fds::kind(fd) != OPENING {
        forget_fd(fd);
    }
}

/// Takes note that `new`, with something to remember, is about to become a copy of `fd`.
#[cold]
pub(crate) fn replacing(fd: c_int, new: c_int) {
    // Otherwise nothing is closed.
    if fd != new && kernel!(SYS_fcntl, fd, libc::F_GETFD) >= 0 {
        closing(new);
    }
}

/// Takes note that all fds of a range are about to be closed.
#[cold]
pub(crate) fn closing_range(first: u32, last: u32) {
    for set in sets() {
        let members = set.members().map(|member| member.fd.load());
        let fds = members.chain([set.epfd.load()]);
        let closed = fds.filter(|fd| (first..=last).contains(&fd.cast_unsigned()));
        closed.for_each(closing);
    }
}

/// Takes note that the thread is about to get a table of fds of its own. A set may stay open in other threads, which may
/// sleep in it, and its fd get another file in this one: sets so far keep the kernel's behaviour.
#[cold]
pub(crate) fn unsharing() {
    if let Some(locked) = lock() {
        sets().for_each(|set| set.leave_alone(&locked));
    }
}

/// Takes note that `accept` was called on a socket.
pub(crate) fn answered(fd: c_int) {
    if HAS_EDGES.load() {
        members_of(fd).for_each(|(_, member)| member.answered.store(true));
    }
}
