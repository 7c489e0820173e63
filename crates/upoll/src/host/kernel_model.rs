//! The kernel in a model: its epoll sets, the sleep of threads, time and signals.
//!
//! It has the interface of `kernel.rs` as far as models need it. A set keeps Linux's rules for
//! level- and edge-triggered members, and for `EPOLL_CTL_MOD` of a ready member. An event wakes one
//! thread in `epoll_wait`, all threads in `ppoll`, and the sets above; of the exclusive sets it
//! wakes the first in which a thread sleeps. Each set has its own lock, and so has each line of
//! sets that watch a file. As in Linux, a system call orders nothing but what it acts on.
//!
//! Locks are taken in this order: lines, that of a member before that of its set; then states, that of
//! a set before those of its members.
//!
//! A thread that nobody wakes sleeps until a model lets [time pass](pass_time) or
//! [sends a signal](interrupt); if it sleeps for ever, loom finds a deadlock.

#[path = "kernel_model/poll.rs"]
mod poll;
#[path = "kernel_model/program.rs"]
pub mod program;
#[path = "kernel_model/sleep.rs"]
mod sleep;

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex as Table};

use loom::sync::{Mutex, MutexGuard};

use crate::epoll::Op;
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::sync::Ordering;

pub(super) use self::poll::{is_readable, poll_by_fd};
pub(crate) use self::poll::{ppoll, pselect};
pub(crate) use self::sleep::{Ended, clock, futex_wait, futex_wake};
use self::sleep::{Sleep, nanoseconds, now};
pub(super) use self::sleep::{coarse_milliseconds, futex_sleepers, futex_wake_all};
pub use self::sleep::{interrupt, pass_time, set_on};
pub(crate) use super::own_fds::OwnFd as Descriptor;
use super::own_fds::{first_fds, hold_protected_fds};

pub(crate) type SignalMask<'a> = Option<&'a libc::sigset_t>;

pub(crate) const AT_ONCE: Option<libc::timespec> = Some(libc::timespec {
    tv_sec: 0,
    tv_nsec: 0,
});

loom::lazy_static! {
    /// All that were opened, also those that were closed.
    static ref FILES: Table<Vec<Arc<File>>> = Table::new(Vec::new());
    /// The table of fds: for each fd one more than its file's place in `FILES`, or 0.
    static ref ENTRIES: Vec<Arc<Entry>> = (0..MOST).map(|_| Arc::new(Entry::new(0))).collect();
    /// Fds that are in use.
    static ref TAKEN: Table<BTreeSet<RawFd>> = Table::new(BTreeSet::new());
    /// The number of sets that may be above each other.
    static ref NESTS: AtomicUsize = AtomicUsize::new(usize::MAX);
}

type Entry = loom::sync::atomic::AtomicUsize;

/// The number of fds that a process can have (`RLIMIT_NOFILE`).
const MOST: RawFd = 32;

enum Kind {
    /// A socket that nothing happens to: always writable.
    Socket,
    Set,
    /// The read end of a pipe.
    Source,
}

/// An open file: its place in [`FILES`], and its cookie and inode.
type FileId = usize;

/// The key of a member: the kernel knows it by fd and open file.
type Key = (RawFd, FileId);

/// A set that watches a file.
#[derive(Clone, Copy)]
struct Watcher {
    set: FileId,
    /// The fd by which it knows the file.
    fd: RawFd,
    is_exclusive: bool,
}

struct File {
    kind: Kind,
    /// The sets that watch it, exclusive ones last: a wait queue. Locked during a wakeup of these
    /// sets.
    line: Mutex<Vec<Watcher>>,
    state: Mutex<State>,
    /// Fds and calls that have it. The last one releases it.
    uses: AtomicUsize,
}

/// The kernel's state of a file.
#[derive(Default)]
struct State {
    is_readable: bool,
    /// Threads in `ppoll`, and what they want.
    pollers: Vec<(Arc<Sleep>, Events)>,
    /// Threads in `epoll_wait`.
    sleepers: VecDeque<Arc<Sleep>>,
    members: Vec<(Key, Event)>,
    /// Members that may be ready.
    ready: VecDeque<Key>,
}

fn file(id: FileId) -> Arc<File> {
    FILES.lock().unwrap()[id].clone()
}

/// The entry of an fd in the table of fds. It orders what comes before a change and after a look.
fn entry(fd: RawFd) -> Result<Arc<Entry>, Errno> {
    let fd = usize::try_from(fd).map_err(|_| Errno::BADF)?;
    ENTRIES.get(fd).cloned().ok_or(Errno::BADF)
}

/// A file that a system call uses.
struct Used {
    id: FileId,
    file: Arc<File>,
}

impl Used {
    fn of(fd: RawFd) -> Result<Self, Errno> {
        match entry(fd)?.load(Ordering::SeqCst) {
            0 => Err(Errno::BADF),
            place => Ok(Self::by_id(place - 1)),
        }
    }

    fn by_id(id: FileId) -> Self {
        let file = file(id);
        file.uses.fetch_add(1, Ordering::Relaxed);
        Used { id, file }
    }

    /// Like [`of`](Self::of), for an fd that must stand for a set.
    fn set(fd: RawFd) -> Result<Self, Errno> {
        let used = Self::of(fd)?;
        match used.kind {
            Kind::Set => Ok(used),
            _ => Err(Errno::INVAL),
        }
    }

    /// The file is in use once more: by an fd.
    fn kept(self) -> FileId {
        std::mem::ManuallyDrop::new(self).id
    }
}

impl std::ops::Deref for Used {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        // A model that has failed runs no more steps.
        if self.uses.fetch_sub(1, Ordering::Relaxed) == 1 && !std::thread::panicking() {
            release(self.id, &self.file);
        }
    }
}

/// Takes a file out of the sets that it is in, and its members out of it.
fn release(id: FileId, released: &File) {
    let line = std::mem::take(&mut *released.line.lock().unwrap());
    for watcher in line {
        file(watcher.set).lock().remove((watcher.fd, id));
    }
    let members = std::mem::take(&mut released.lock().members);
    for ((fd, member), _) in members {
        file(member).leave_line(id, fd);
    }
}

/// Opens the lowest free fd from `first` for a file.
fn fd_for(used: Used, first: RawFd) -> Result<RawFd, Errno> {
    let fd = {
        let mut taken = TAKEN.lock().unwrap();
        let free = (first..MOST).find(|fd| !taken.contains(fd));
        let free = free.ok_or(Errno::MFILE)?;
        taken.insert(free);
        free
    };
    // Not a store: loom knows nothing of the lock of `TAKEN`, and might take a store for older than the last
    // close of this fd.
    entry(fd)?.swap(used.kept() + 1, Ordering::SeqCst);
    Ok(fd)
}

fn open(kind: Kind) -> Used {
    let file = Arc::new(File {
        kind,
        line: Mutex::new(Vec::new()),
        state: Mutex::new(State::default()),
        uses: AtomicUsize::new(1),
    });
    let mut files = FILES.lock().unwrap();
    files.push(file.clone());
    Used {
        id: files.len() - 1,
        file,
    }
}

/// `close(2)`.
pub(super) fn close(fd: RawFd) {
    let _ = program::close(fd);
}

/// Returns the number of fds that a process can have.
pub(crate) fn most_fds() -> libc::rlim64_t {
    MOST.cast_unsigned().into()
}

/// `F_DUPFD_CLOEXEC`: a new fd for the same open file, out of the way.
pub(super) fn duplicate_high(fd: RawFd) -> Result<RawFd, Errno> {
    fd_out_of_the_way(Used::of(fd)?)
}

fn fd_out_of_the_way(used: Used) -> Result<RawFd, Errno> {
    let mut result = Err(Errno::MFILE);
    for first in first_fds() {
        let first = RawFd::try_from(first).expect("an fd");
        result = fd_for(Used::by_id(used.id), first);
        if result.is_ok() {
            break;
        }
    }
    result
}

/// Opens a file under an fd that is out of the way.
fn opened(kind: Kind) -> Result<Descriptor, Errno> {
    let _held = hold_protected_fds();
    Descriptor::brief(fd_out_of_the_way(open(kind))?)
}

/// An own fd for the open file that `fd` stands for.
pub(super) fn duplicate(fd: RawFd) -> Result<Descriptor, Errno> {
    let _held = hold_protected_fds();
    Descriptor::brief(duplicate_high(fd)?)
}

/// An eventfd: always readable once it was written, and each write is an edge.
pub(super) fn eventfd() -> Result<Descriptor, Errno> {
    opened(Kind::Source)
}

pub(super) fn eventfd_write(fd: &Descriptor) {
    if fd.is_intact() {
        let _ = fd.call(program::write);
    }
}

/// Memory that the processes of a model share: its threads.
pub(super) fn map_shared(size: usize) -> Result<NonNull<u8>, Errno> {
    let place = vec![0_u128; size.div_ceil(size_of::<u128>())].into_boxed_slice();
    Ok(NonNull::from(Box::leak(place)).cast())
}

/// # Safety
/// The place is [`map_shared`]'s with the same size, and nobody uses it any more.
pub(super) unsafe fn unmap(place: NonNull<u8>, size: usize) {
    let words = ptr::slice_from_raw_parts_mut(
        place.cast::<u128>().as_ptr(),
        size.div_ceil(size_of::<u128>()),
    );
    // SAFETY: the caller's contract.
    drop(unsafe { Box::from_raw(words) });
}

/// A socket that is always writable, and that nothing ever happens to.
pub(super) fn idle_socket() -> Result<Descriptor, Errno> {
    opened(Kind::Socket)
}

/// The identity of a socket among all open files.
#[derive(Debug)]
pub(super) struct Socket(FileId);

impl Socket {
    pub(super) fn of(fd: RawFd) -> Option<Self> {
        let used = Used::of(fd).ok()?;
        matches!(used.kind, Kind::Socket).then(|| Socket(used.id))
    }

    pub(super) fn is(&self, fd: RawFd) -> bool {
        Used::of(fd).is_ok_and(|used| used.id == self.0)
    }
}

/// Nothing in the models has a cookie.
pub(super) fn socket_cookie(_: RawFd) -> Result<u64, Errno> {
    Err(Errno::NOTSOCK)
}

/// Nothing in the models is a member that has a cookie.
pub(super) fn has_cookie(_: RawFd, _: u64) -> Option<bool> {
    None
}

pub(super) fn check_open(fd: RawFd) -> Result<(), Errno> {
    Used::of(fd).map(drop)
}

/// The inode of an open file. Sets have one together.
pub(super) fn inode(fd: RawFd) -> Option<u64> {
    let used = Used::of(fd).ok()?;
    match used.kind {
        Kind::Set => Some(0),
        _ => u64::try_from(used.id + 1).ok(),
    }
}

/// As [`inode`]; None if it is the sets'.
pub(super) fn unshared_inode(fd: RawFd) -> Option<u64> {
    inode(fd).filter(|&inode| inode != 0)
}

impl File {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn leave_line(&self, set: FileId, fd: RawFd) {
        let mut line = self.line.lock().unwrap();
        line.retain(|watcher| (watcher.set, watcher.fd) != (set, fd));
    }

    /// Returns the ready events. Takes the locks of the files below, and takes members off the ready list
    /// until one of them is ready.
    fn poll(&self) -> Events {
        match self.kind {
            Kind::Socket => Events::OUT | Events::WRNORM | Events::WRBAND,
            Kind::Source => readable(self.lock().is_readable),
            Kind::Set => {
                let mut state = self.lock();
                while let Some(&key) = state.ready.front() {
                    if !state.ready_events(key).is_empty() {
                        break;
                    }
                    state.ready.pop_front();
                }
                readable(!state.ready.is_empty())
            }
        }
    }
}

fn readable(is_readable: bool) -> Events {
    match is_readable {
        true => Events::IN | Events::RDNORM,
        false => Events::empty(),
    }
}

impl State {
    fn interest(&self, key: Key) -> Option<&Event> {
        let member = self.members.iter().find(|(member, _)| *member == key);
        member.map(|(_, interest)| interest)
    }

    /// Returns the ready events of a member that its interest asks for.
    fn ready_events(&self, key: Key) -> Events {
        let wanted = self.interest(key).map(Event::events);
        wanted.map_or(Events::empty(), |wanted| file(key.1).poll() & wanted)
    }

    fn remove(&mut self, key: Key) {
        self.members.retain(|(member, _)| *member != key);
        self.ready.retain(|&member| member != key);
    }

    fn wake_pollers(&self, key: Events) {
        for (poller, wanted) in &self.pollers {
            if wanted.intersects(key) {
                poller.wake();
            }
        }
    }

    /// A member may be ready: wakes a thread. Returns whether one has slept.
    fn queue(&mut self, key: Key) -> bool {
        if !self.ready.contains(&key) {
            self.ready.push_back(key);
        }
        let sleeper = self.sleepers.pop_front();
        if let Some(sleeper) = &sleeper {
            sleeper.wake();
        }
        self.wake_pollers(Events::IN);
        sleeper.is_some()
    }
}

/// Limits how many sets may be above each other from now on, as `EP_MAX_NESTS` does.
pub fn limit_nests(nests: usize) {
    NESTS.store(nests, Ordering::Relaxed);
}

/// Returns the number of sets in the longest chain, from a set up.
fn nests_up(id: FileId) -> usize {
    let line = file(id).line.lock().unwrap().clone();
    let above = line.iter().map(|watcher| nests_up(watcher.set));
    1 + above.max().unwrap_or(0)
}

/// Returns the number of sets in the longest chain, from a file down.
fn nests_down(id: FileId) -> usize {
    let set = file(id);
    if !matches!(set.kind, Kind::Set) {
        return 0;
    }
    let members = set.lock().members.clone();
    let below = members.iter().map(|&((_, member), _)| nests_down(member));
    1 + below.max().unwrap_or(0)
}

/// Wakes the sets above after a change of a file (`__wake_up_common`, `ep_poll_callback`).
fn tell(id: FileId, key: Events) {
    let changed = file(id);
    let line = changed.line.lock().unwrap();
    for watcher in line.iter() {
        let member = (watcher.fd, id);
        let is_woken = {
            let set = file(watcher.set);
            let mut state = set.lock();
            let interest = state.interest(member);
            if interest.is_none_or(|interest| !interest.events().intersects(key)) {
                continue;
            }
            state.queue(member)
        };
        tell(watcher.set, Events::IN);
        if watcher.is_exclusive && is_woken {
            break;
        }
    }
}

/// A user's fd: the read end of a pipe.
#[derive(Debug)]
pub struct Source(RawFd);

impl Source {
    /// Makes a source that is not readable.
    #[expect(clippy::new_without_default, reason = "for models only")]
    pub fn new() -> Self {
        Source(program::pipe().expect("few"))
    }

    /// Returns its fd.
    pub fn fd(&self) -> RawFd {
        self.0
    }

    /// Returns how many sets watch it.
    pub fn number_of_watchers(&self) -> usize {
        let source = Used::of(self.0).expect("it is open");
        source.line.lock().unwrap().len()
    }

    /// Makes it readable, or not.
    pub fn set_readable(&self, is_readable: bool) {
        match is_readable {
            true => program::write(self.0),
            false => program::read_all(self.0),
        }
        .expect("it is open");
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: models make no system call with it.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

pub(crate) fn epoll_create() -> Result<Descriptor, Errno> {
    Descriptor::sealed(opened(Kind::Set)?, false)
}

pub(super) fn epoll_create_elsewhere(lost: &Descriptor) -> Result<Descriptor, Errno> {
    let before = lost.as_raw_fd();
    let set = epoll_create()?;
    if set.as_raw_fd() != before {
        return Ok(set);
    }
    epoll_create()
}

/// No set is adopted in a model.
pub(super) fn duplicate_set(_: BorrowedFd<'_>) -> Result<Descriptor, Errno> {
    Err(Errno::BADF)
}

pub(crate) fn epoll_ctl(
    set: &Descriptor,
    op: Op,
    fd: RawFd,
    interest: &Event,
) -> Result<(), Errno> {
    set.call(|set| epoll_ctl_by_fd(set, op, fd, interest))
}

pub(super) fn is_member_of(set: RawFd, fd: RawFd) -> Option<bool> {
    let (Ok(set), Ok(member)) = (Used::set(set), Used::of(fd)) else {
        return Some(false);
    };
    let key = (fd, member.id);
    Some(set.lock().members.iter().any(|&(known, _)| known == key))
}

pub(super) fn epoll_ctl_once_more(
    set: &Descriptor,
    op: Op,
    fd: RawFd,
    interest: &Event,
) -> Result<(), Errno> {
    set.try_call(|set| epoll_ctl_by_fd(set, op, fd, interest))
}

pub(super) fn epoll_ctl_by_fd(
    set: RawFd,
    op: Op,
    fd: RawFd,
    interest: &Event,
) -> Result<(), Errno> {
    let set = Used::of(set)?;
    let member = Used::of(fd)?;
    if !matches!(set.kind, Kind::Set) || set.id == member.id {
        return Err(Errno::INVAL);
    }
    let key = (fd, member.id);
    let is_exclusive = interest.events().contains(Events::EXCLUSIVE);
    let beside_exclusive =
        Events::EXCLUSIVE | Events::IN | Events::OUT | Events::ALWAYS | Events::ET;
    if is_exclusive && op != Op::Del {
        let is_allowed = op == Op::Add
            && !matches!(member.kind, Kind::Set)
            && (interest.events() - beside_exclusive).is_empty();
        if !is_allowed {
            return Err(Errno::INVAL);
        }
    }
    let nests = NESTS.load(Ordering::Relaxed);
    if op == Op::Add && nests < usize::MAX && nests_up(set.id) + nests_down(member.id) > nests {
        return Err(Errno::LOOP);
    }
    let mut line = member.line.lock().unwrap();
    let mut state = set.lock();
    let place = state.members.iter().position(|(known, _)| *known == key);
    match (op, place) {
        (Op::Add, Some(_)) => return Err(Errno::EXIST),
        (Op::Mod | Op::Del, None) => return Err(Errno::NOENT),
        (Op::Add, None) => {
            state.members.push((key, *interest));
            // The last one is woken first, or last of all.
            let place = if is_exclusive { line.len() } else { 0 };
            let watcher = Watcher {
                set: set.id,
                fd,
                is_exclusive,
            };
            line.insert(place, watcher);
        }
        (Op::Mod, Some(place)) => {
            let known = &mut state.members[place].1;
            if known.events().contains(Events::EXCLUSIVE) {
                return Err(Errno::INVAL);
            }
            *known = *interest;
        }
        (Op::Del, Some(_)) => {
            line.retain(|watcher| (watcher.set, watcher.fd) != (set.id, fd));
            state.remove(key);
            return Ok(());
        }
    }
    drop(line);
    if state.ready_events(key).is_empty() || state.ready.contains(&key) {
        return Ok(());
    }
    state.queue(key);
    drop(state);
    tell(set.id, Events::IN);
    Ok(())
}

pub(crate) fn epoll_harvest(set: &Descriptor, events: &mut [Event]) -> Result<usize, Errno> {
    set.call(|set| Ok(harvest(&Used::set(set)?, events)))
}

fn harvest(set: &Used, events: &mut [Event]) -> usize {
    let mut state = set.lock();
    let mut found = 0;
    for _ in 0..state.ready.len() {
        if found == events.len() {
            break;
        }
        let Some(key) = state.ready.pop_front() else {
            break;
        };
        let ready = state.ready_events(key);
        let Some(&interest) = state.interest(key).filter(|_| !ready.is_empty()) else {
            continue;
        };
        events[found] = Event::new(ready, interest.data());
        found += 1;
        if interest.events().contains(Events::ONESHOT) {
            let control = interest.events() & Events::CONTROL;
            for member in state.members.iter_mut().filter(|member| member.0 == key) {
                member.1 = Event::new(control, interest.data());
            }
        } else if !interest.events().contains(Events::ET) {
            state.ready.push_back(key);
        }
    }
    if !state.ready.is_empty()
        && let Some(sleeper) = state.sleepers.pop_front()
    {
        sleeper.wake();
    }
    found
}

fn until(limit: Option<libc::timespec>) -> Option<u64> {
    limit.map(|limit| now() + nanoseconds(limit))
}

fn is_zero(limit: Option<&libc::timespec>) -> bool {
    limit.is_some_and(|&limit| nanoseconds(limit) == 0)
}

pub(crate) fn epoll_wait(
    set: &Descriptor,
    events: &mut [Event],
    limit: Option<libc::timespec>,
    _: SignalMask<'_>,
) -> Result<usize, Errno> {
    if is_zero(limit.as_ref()) {
        return epoll_harvest(set, events);
    }
    set.call(|set| wait_in(&Used::set(set)?, events, limit))
}

fn wait_in(
    set: &Used,
    events: &mut [Event],
    limit: Option<libc::timespec>,
) -> Result<usize, Errno> {
    let until = until(limit);
    let (mut timed_out, mut interrupted) = (false, false);
    loop {
        let found = harvest(set, events);
        if found > 0 || timed_out {
            return Ok(found);
        }
        if interrupted {
            return Err(Errno::INTR);
        }
        let sleep = Sleep::new(until);
        {
            let mut state = set.lock();
            if !state.ready.is_empty() {
                continue;
            }
            state.sleepers.push_back(sleep.clone());
        }
        let ended = sleep.sleep();
        let mut state = set.lock();
        let place = state
            .sleepers
            .iter()
            .position(|sleeper| Arc::ptr_eq(sleeper, &sleep));
        // A thread that was woken checks once more after its limit.
        timed_out = ended.timed_out && place.is_some();
        interrupted |= ended.interrupted;
        if let Some(place) = place {
            state.sleepers.remove(place);
        }
    }
}

/// Returns whether `fd` is a set.
pub(crate) fn is_epoll(fd: RawFd, _: &Descriptor) -> bool {
    Used::set(fd).is_ok()
}
