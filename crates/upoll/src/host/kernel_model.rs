//! The kernel in a model: its epoll sets, the sleep of threads, time and signals.
//!
//! It has the interface of `kernel.rs` as far as models need it. A set keeps Linux's rules for level-
//! and edge-triggered members, for `EPOLL_CTL_MOD` of a ready member, and for who is woken: one thread
//! in `epoll_wait`, all in `ppoll`, and the sets above. Each set has a lock of its own, as in Linux,
//! so that a system call orders nothing but what it acts on.
//!
//! A thread that nobody wakes sleeps until a model lets [time pass](pass_time) or
//! [sends a signal](interrupt); if it sleeps for ever, loom finds a deadlock.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex as Table};

use loom::sync::atomic::AtomicU64;
use loom::sync::{Condvar, Mutex, MutexGuard};

use crate::epoll::Op;
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::sync::Ordering;

pub(crate) use super::own_fds::OwnFd as Descriptor;

pub(crate) type SignalMask<'a> = Option<&'a libc::sigset_t>;

pub(crate) const AT_ONCE: Option<libc::timespec> = Some(libc::timespec {
    tv_sec: 0,
    tv_nsec: 0,
});

loom::lazy_static! {
    /// Nanoseconds of the only clock. Also written by whatever begins or ends sleeps, so that loom tries
    /// both orders; in no order with anything else.
    static ref NOW: AtomicU64 = AtomicU64::new(1_000_000_000);
    static ref SLEEPS: Table<Vec<Arc<Sleep>>> = Table::new(Vec::new());
    static ref WORDS: Table<HashMap<usize, Arc<Bucket>>> = Table::new(HashMap::new());
    /// By their fds.
    static ref FILES: Table<Vec<Arc<File>>> = Table::new(vec![Arc::new(File::new(Kind::Seal))]);
}

/// A bit of [`NOW`]: every limit ends as soon as a thread sleeps by it.
const FLOWS: u64 = 1 << 63;

/// The seal's number.
const SEAL: RawFd = 0;

fn now() -> u64 {
    // Always the newest.
    NOW.fetch_add(0, Ordering::Relaxed) & !FLOWS
}

fn nanoseconds(time: libc::timespec) -> u64 {
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// What any clock shows.
pub(crate) fn clock() -> libc::timespec {
    let now = now().cast_signed();
    libc::timespec {
        tv_sec: now / 1_000_000_000,
        tv_nsec: now % 1_000_000_000,
    }
}

/// Lets time pass, from now on: all sleeps with a limit end, also those that begin later.
pub fn pass_time() {
    NOW.fetch_or(FLOWS, Ordering::Relaxed);
    for sleep in sleeps() {
        sleep.time_out();
    }
}

/// Runs a signal handler on every thread that sleeps just now.
pub fn interrupt() {
    now();
    for sleep in sleeps() {
        sleep.end(|ended| ended.interrupted = true);
    }
}

fn sleeps() -> Vec<Arc<Sleep>> {
    SLEEPS.lock().unwrap().clone()
}

/// How a sleep ended.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ended {
    pub(crate) woken: bool,
    pub(crate) timed_out: bool,
    pub(crate) interrupted: bool,
}

/// A thread that sleeps, or is about to.
struct Sleep {
    until: Option<u64>,
    ended: Mutex<Ended>,
    changed: Condvar,
}

impl Sleep {
    fn new(until: Option<u64>) -> Arc<Self> {
        Arc::new(Sleep {
            until,
            ended: Mutex::new(Ended::default()),
            changed: Condvar::new(),
        })
    }

    fn end(&self, how: impl FnOnce(&mut Ended)) {
        how(&mut self.ended.lock().unwrap());
        self.changed.notify_one();
    }

    /// Lets time pass until the limit.
    fn time_out(&self) {
        if let Some(until) = self.until {
            NOW.fetch_max(until | FLOWS, Ordering::Relaxed);
            self.end(|ended| ended.timed_out = true);
        }
    }

    fn wake(&self) {
        self.end(|ended| ended.woken = true);
    }

    /// Sleeps until it is ended.
    fn sleep(self: &Arc<Self>) -> Ended {
        SLEEPS.lock().unwrap().push(self.clone());
        let now = NOW.fetch_add(0, Ordering::Relaxed);
        if now & FLOWS != 0 {
            self.time_out();
        } else if self.until.is_some_and(|until| until <= now) {
            self.end(|ended| ended.timed_out = true);
        }
        let mut ended = self.ended.lock().unwrap();
        while !(ended.woken || ended.timed_out || ended.interrupted) {
            ended = self.changed.wait(ended).unwrap();
        }
        let how = *ended;
        drop(ended);
        SLEEPS
            .lock()
            .unwrap()
            .retain(|sleep| !Arc::ptr_eq(sleep, self));
        how
    }
}

/// The threads that sleep on a word.
type Bucket = Mutex<Vec<Arc<Sleep>>>;

fn bucket(address: usize) -> Arc<Bucket> {
    let mut words = WORDS.lock().unwrap();
    words
        .entry(address)
        .or_insert_with(|| Arc::new(Mutex::new(Vec::new())))
        .clone()
}

/// `FUTEX_WAIT`: sleeps if `is_expected`, and until a wake of the same address.
pub(crate) fn futex_wait(
    address: usize,
    is_expected: impl FnOnce() -> bool,
    limit: Option<libc::timespec>,
) -> Ended {
    let bucket = bucket(address);
    let sleep = Sleep::new(limit.map(nanoseconds));
    {
        let mut sleepers = bucket.lock().unwrap();
        if !is_expected() {
            return Ended {
                woken: true,
                ..Ended::default()
            };
        }
        sleepers.push(sleep.clone());
    }
    let mut ended = sleep.sleep();
    let mut sleepers = bucket.lock().unwrap();
    // A wake counts also if the limit or a signal came as well.
    let place = sleepers
        .iter()
        .position(|sleeper| Arc::ptr_eq(sleeper, &sleep));
    match place {
        Some(place) => drop(sleepers.remove(place)),
        None => ended.woken = true,
    }
    ended
}

/// `FUTEX_WAKE` of one thread.
pub(crate) fn futex_wake(address: usize) {
    let bucket = bucket(address);
    let mut sleepers = bucket.lock().unwrap();
    if !sleepers.is_empty() {
        sleepers.remove(0).wake();
    }
}

enum Kind {
    /// Always writable.
    Seal,
    Set,
    /// A user's.
    Source,
}

struct File {
    kind: Kind,
    state: Mutex<State>,
}

/// What the kernel has of a file.
#[derive(Default)]
struct State {
    is_readable: bool,
    /// Sets that watch it.
    above: Vec<RawFd>,
    /// Threads in `ppoll`.
    pollers: Vec<Arc<Sleep>>,
    /// Threads in `epoll_wait`.
    sleepers: VecDeque<Arc<Sleep>>,
    members: Vec<(RawFd, Event)>,
    /// Members that may be ready.
    ready: VecDeque<RawFd>,
}

fn file(number: RawFd) -> Arc<File> {
    let number = usize::try_from(number).expect("an fd");
    FILES.lock().unwrap()[number].clone()
}

fn open(kind: Kind) -> RawFd {
    let mut files = FILES.lock().unwrap();
    files.push(Arc::new(File::new(kind)));
    RawFd::try_from(files.len() - 1).expect("few")
}

impl File {
    fn new(kind: Kind) -> Self {
        File {
            kind,
            state: Mutex::new(State::default()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// What is ready. Takes the locks of what it has below.
    fn poll(&self) -> Events {
        match self.kind {
            Kind::Seal => Events::OUT,
            Kind::Source => readable(self.lock().is_readable),
            Kind::Set => {
                let state = self.lock();
                readable(
                    state
                        .ready
                        .iter()
                        .any(|&number| !state.ready_events(number).is_empty()),
                )
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
    fn interest(&self, number: RawFd) -> Option<&Event> {
        let member = self.members.iter().find(|(member, _)| *member == number);
        member.map(|(_, interest)| interest)
    }

    /// What is ready of what is wanted of a member.
    fn ready_events(&self, number: RawFd) -> Events {
        let wanted = self
            .interest(number)
            .map_or(Events::empty(), |interest| interest.events());
        match (wanted - Events::CONTROL).is_empty() {
            true => Events::empty(),
            false => file(number).poll() & wanted,
        }
    }

    fn wake_pollers(&self) {
        for poller in &self.pollers {
            poller.wake();
        }
    }

    /// A member may be ready: wakes a thread, unless that was known. Returns the sets to tell of it.
    fn queue(&mut self, number: RawFd) -> Vec<RawFd> {
        if self.ready.contains(&number) {
            return Vec::new();
        }
        self.ready.push_back(number);
        if let Some(sleeper) = self.sleepers.pop_front() {
            sleeper.wake();
        }
        self.wake_pollers();
        self.above.clone()
    }
}

/// A file became ready: tells the sets above.
fn tell(number: RawFd, above: &[RawFd]) {
    for &set in above {
        let further = {
            let file = file(set);
            let mut state = file.lock();
            let interest = state.interest(number).map(|interest| interest.events());
            if interest.is_none_or(|events| (events - Events::CONTROL).is_empty()) {
                continue;
            }
            state.queue(number)
        };
        tell(set, &further);
    }
}

/// A user's fd.
#[derive(Debug)]
pub struct Source(RawFd);

impl Source {
    /// One that is not readable.
    #[expect(clippy::new_without_default, reason = "for models only")]
    pub fn new() -> Self {
        Source(open(Kind::Source))
    }

    /// Makes it readable, or not.
    pub fn set_readable(&self, is_readable: bool) {
        let above = {
            let file = file(self.0);
            let mut state = file.lock();
            state.is_readable = is_readable;
            if !is_readable {
                return;
            }
            state.wake_pollers();
            state.above.clone()
        };
        tell(self.0, &above);
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: models make no system call with it.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

pub(crate) fn epoll_create() -> Result<Descriptor, Errno> {
    let set = Descriptor::new(open(Kind::Set));
    epoll_ctl(&set, Op::Add, SEAL, &Event::default())?;
    Ok(set)
}

pub(super) fn epoll_create_elsewhere(_: &Descriptor) -> Result<Descriptor, Errno> {
    epoll_create()
}

/// No set is adopted in a model.
pub(super) fn duplicate_set(_: BorrowedFd<'_>) -> Result<Descriptor, Errno> {
    Err(Errno::BADF)
}

pub(super) fn inode(_: RawFd) -> Option<u64> {
    None
}

/// Takes a set out of the sets that it is in, and its members out of it.
pub(super) fn close(number: RawFd) {
    let (above, members) = {
        let file = file(number);
        let mut state = file.lock();
        (
            std::mem::take(&mut state.above),
            std::mem::take(&mut state.members),
        )
    };
    for set in above {
        let file = file(set);
        let mut state = file.lock();
        state.members.retain(|(member, _)| *member != number);
        state.ready.retain(|&member| member != number);
    }
    for (member, _) in members {
        file(member).lock().above.retain(|&set| set != number);
    }
}

pub(crate) fn epoll_ctl(
    set: &Descriptor,
    op: Op,
    fd: RawFd,
    interest: &Event,
) -> Result<(), Errno> {
    epoll_ctl_by_number(set.as_raw_fd(), op, fd, interest)
}

fn epoll_ctl_by_number(set: RawFd, op: Op, fd: RawFd, interest: &Event) -> Result<(), Errno> {
    let file_of_set = file(set);
    let mut state = file_of_set.lock();
    let place = state.members.iter().position(|(member, _)| *member == fd);
    match (op, place) {
        (Op::Add, Some(_)) => return Err(Errno::EXIST),
        (Op::Mod | Op::Del, None) => return Err(Errno::NOENT),
        (Op::Add, None) => {
            state.members.push((fd, *interest));
            if fd != SEAL {
                file(fd).lock().above.push(set);
            }
        }
        (Op::Mod, Some(place)) => state.members[place].1 = *interest,
        (Op::Del, Some(place)) => {
            state.members.remove(place);
            state.ready.retain(|&member| member != fd);
            drop(state);
            file(fd).lock().above.retain(|&above| above != set);
            return Ok(());
        }
    }
    if state.ready_events(fd).is_empty() {
        return Ok(());
    }
    let above = state.queue(fd);
    drop(state);
    tell(set, &above);
    Ok(())
}

/// `EPOLL_CTL_MOD` of the seal.
pub(super) fn change_seal(set: RawFd, interest: &Event) -> bool {
    epoll_ctl_by_number(set, Op::Mod, SEAL, interest).is_ok()
}

pub(crate) fn epoll_harvest(set: &Descriptor, events: &mut [Event]) -> Result<usize, Errno> {
    let file = file(set.as_raw_fd());
    let mut state = file.lock();
    let mut found = 0;
    for _ in 0..state.ready.len() {
        if found == events.len() {
            break;
        }
        let Some(number) = state.ready.pop_front() else {
            break;
        };
        let ready = state.ready_events(number);
        let Some(&interest) = state.interest(number).filter(|_| !ready.is_empty()) else {
            continue;
        };
        events[found] = Event::new(ready, interest.data());
        found += 1;
        if interest.events().contains(Events::ONESHOT) {
            let control = interest.events() & Events::CONTROL;
            for member in state.members.iter_mut().filter(|member| member.0 == number) {
                member.1 = Event::new(control, interest.data());
            }
        } else if !interest.events().contains(Events::ET) {
            state.ready.push_back(number);
        }
    }
    if !state.ready.is_empty()
        && let Some(sleeper) = state.sleepers.pop_front()
    {
        sleeper.wake();
    }
    Ok(found)
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
    let until = until(limit);
    let file = file(set.as_raw_fd());
    let (mut timed_out, mut interrupted) = (false, false);
    loop {
        let found = epoll_harvest(set, events)?;
        if found > 0 || timed_out {
            return Ok(found);
        }
        if interrupted {
            return Err(Errno::INTR);
        }
        let sleep = Sleep::new(until);
        {
            let mut state = file.lock();
            if !state.ready.is_empty() {
                continue;
            }
            state.sleepers.push_back(sleep.clone());
        }
        let ended = sleep.sleep();
        let mut state = file.lock();
        let place = state
            .sleepers
            .iter()
            .position(|sleeper| Arc::ptr_eq(sleeper, &sleep));
        // One that was woken looks once more than its limit allows.
        timed_out = ended.timed_out && place.is_some();
        interrupted |= ended.interrupted;
        if let Some(place) = place {
            state.sleepers.remove(place);
        }
    }
}

/// Whether `fd` is a set.
pub(crate) fn is_epoll(fd: RawFd, _: &Descriptor) -> bool {
    matches!(file(fd).kind, Kind::Set)
}

pub(super) fn is_readable(fd: &Descriptor) -> bool {
    file(fd.as_raw_fd()).poll().contains(Events::IN)
}

pub(crate) fn ppoll(
    list: &mut [libc::pollfd],
    limit: Option<&libc::timespec>,
    _: SignalMask<'_>,
) -> Result<usize, Errno> {
    let until = match is_zero(limit) {
        true => None,
        false => until(limit.copied()),
    };
    let mut ended = Ended::default();
    loop {
        let mut found = 0;
        let sleep = Sleep::new(until);
        for entry in list.iter_mut() {
            let file = file(entry.fd);
            // Registered, then looked at.
            file.lock().pollers.push(sleep.clone());
            let wanted = Events::from_bits_retain(entry.events.cast_unsigned().into());
            let ready = (file.poll() & wanted).bits();
            entry.revents = i16::try_from(ready).expect("the low ones");
            found += usize::from(ready != 0);
        }
        let is_over = found > 0 || is_zero(limit) || ended.timed_out || ended.interrupted;
        let how = match is_over {
            true => Ended::default(),
            false => sleep.sleep(),
        };
        for entry in list.iter() {
            let file = file(entry.fd);
            file.lock()
                .pollers
                .retain(|poller| !Arc::ptr_eq(poller, &sleep));
        }
        if is_over {
            return match ended.interrupted && found == 0 {
                true => Err(Errno::INTR),
                false => Ok(found),
            };
        }
        ended = how;
    }
}

/// `pselect`, by `ppoll`.
///
/// # Safety
/// Each bitmap is null or holds all numbers below `end`.
pub(crate) unsafe fn pselect(
    end: RawFd,
    sets: [*mut libc::fd_set; 3],
    limit: Option<&libc::timespec>,
    mask: SignalMask<'_>,
) -> Result<usize, Errno> {
    use crate::select::REPORTED;
    // SAFETY: the caller's contract.
    let is_in = |set: *mut libc::fd_set, fd| !set.is_null() && unsafe { libc::FD_ISSET(fd, set) };
    let mut list: Vec<_> = (0..end)
        .filter(|&fd| sets.iter().any(|&set| is_in(set, fd)))
        .map(|fd| {
            let wanted = sets.iter().zip(REPORTED);
            let wanted = wanted.filter(|&(&set, _)| is_in(set, fd));
            let wanted = wanted.fold(Events::empty(), |all, (_, reported)| all | reported);
            libc::pollfd {
                fd,
                events: i16::try_from(wanted.bits()).expect("the low ones"),
                revents: 0,
            }
        })
        .collect();
    ppoll(&mut list, limit, mask)?;
    let mut found = 0;
    for entry in &list {
        let ready = Events::from_bits_retain(entry.revents.cast_unsigned().into());
        for (&set, reported) in sets.iter().zip(REPORTED) {
            if !is_in(set, entry.fd) {
                continue;
            }
            match ready.intersects(reported) {
                true => found += 1,
                // SAFETY: as above.
                false => unsafe { libc::FD_CLR(entry.fd, set) },
            }
        }
    }
    Ok(found)
}
