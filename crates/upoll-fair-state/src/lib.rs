//! The agreement of `upoll` and `libupoll_fair`: the names of the policies, and the memory that the processes of one run share.
//! It holds the workers that look after sleeping ones, and the counts of each worker.
//!
//! The library maps a file of this layout. `upoll` reads the file for counts while the run goes on.

use std::fmt::{self, Display, Formatter};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The policy of a run that names none: a number of wakeups. `docs/fair.md` has the figures that it was chosen by.
pub const DEFAULT_POLICY: &str = "8";

/// The time at which a worker that has taken a wakeup goes to the end of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// After each so many wakeups.
    Every(u32),
    /// After each wakeup, if another worker is asleep.
    Adaptive,
    /// Never: the kernel's order for `EPOLLEXCLUSIVE`.
    Exclusive,
    /// Every worker is woken, as without the library, which only counts.
    Observe,
}

impl Policy {
    /// Returns the policy of a name, or of a number of wakeups above 0.
    pub fn parse(text: &str) -> Option<Policy> {
        match text {
            "every" => Some(Policy::Every(1)),
            "adaptive" => Some(Policy::Adaptive),
            "exclusive" => Some(Policy::Exclusive),
            "observe" => Some(Policy::Observe),
            _ => match text.parse() {
                Ok(wakeups @ 1..) => Some(Policy::Every(wakeups)),
                _ => None,
            },
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Policy::parse(DEFAULT_POLICY).expect("it is the name of a policy")
    }
}

const WORKERS: usize = 1024;
const GROUPS: usize = 64;
/// The number of workers of a group that nap shortly. If one of them is the worker that does not accept, the other one
/// notices.
const GUARDS: usize = 2;
/// A group is active for this long after a wakeup.
const ACTIVE: u64 = 1_000_000_000;
/// The length of one sleep of a guard of an active group. Also the shortest time that a connection waits before
/// another worker than the one that was woken looks for it.
pub const SHORT: u64 = 20_000_000;
/// The length of one sleep of a guard of an idle group.
const IDLE: u64 = 100_000_000;
/// The length of one sleep of any other worker. The worker then becomes a guard if there are too few.
const LONG: u64 = 1_000_000_000;

/// The layout of the shared file. All zeros is the initial state.
#[repr(C)]
#[derive(Debug)]
pub struct State {
    /// The process that `upoll run` became: the one that prints statistics for all and removes the file.
    pub root: AtomicU32,
    groups: [Group; GROUPS],
    workers: [Worker; WORKERS],
}

/// Workers that wait for the same listening sockets.
#[repr(C)]
#[derive(Debug)]
pub struct Group {
    /// The sum of the sockets' cookies; 0: none had the place yet.
    key: AtomicU64,
    /// The time until which a guard sleeps at the longest; 0 if there is none.
    guards: [AtomicU64; GUARDS],
    /// The time at which a worker was last woken for one of the sockets.
    last_wakeup: AtomicU64,
}

/// The counters of one thread.
#[repr(C)]
#[derive(Debug)]
pub struct Worker {
    /// The process ID above the thread ID; 0: free.
    id: AtomicU64,
    /// Wakeups for a listening socket.
    pub wakeups: AtomicU64,
    /// Wakeups after which no connection was left.
    pub empty: AtomicU64,
    /// Accepted connections.
    pub accepts: AtomicU64,
    /// The number of times that the worker went to the end of the line.
    pub rotations: AtomicU64,
    /// Connections that waited though another worker had been woken.
    pub rescues: AtomicU64,
}

impl State {
    /// Returns the group of a key. Without a free place it gets that of a group in which nobody sleeps any more; `None`
    /// if there is none either. To be asked for before each sleep.
    pub fn group(&self, key: u64, now: impl FnOnce() -> u64) -> Option<&Group> {
        let key = key.max(1);
        let found = self.groups.iter().find(|group| {
            let found = group.key.load(Ordering::Relaxed);
            found == key || found == 0 && group.take(0, key)
        });
        found.or_else(|| {
            let now = now();
            self.groups.iter().find(|group| {
                let old = group.key.load(Ordering::Relaxed);
                let is_taken = group.is_left(now) && group.take(old, key);
                if is_taken {
                    group.woken(now);
                }
                is_taken
            })
        })
    }

    /// Returns the counters of a thread: its own if it has some, as after an exec, else the first free ones. `None` if there
    /// are none.
    pub fn worker(&self, process: u32, thread: u32) -> Option<&Worker> {
        let id = u64::from(process) << 32 | u64::from(thread);
        self.workers.iter().find(|worker| {
            let found = worker.id.load(Ordering::Relaxed);
            found == id
                || found == 0
                    && worker
                        .id
                        .compare_exchange(0, id, Ordering::Relaxed, Ordering::Relaxed)
                        .is_ok()
        })
    }

    /// Returns what has been counted so far.
    pub fn counts(&self) -> impl Iterator<Item = Counts> + Clone {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.workers.iter().filter_map(move |worker| {
            Counts::of([
                load(&worker.id),
                load(&worker.wakeups),
                load(&worker.empty),
                load(&worker.accepts),
                load(&worker.rotations),
                load(&worker.rescues),
            ])
        })
    }
}

impl Group {
    /// Replaces the key `old` by `new`. Returns whether the place has the key `new` now.
    fn take(&self, old: u64, new: u64) -> bool {
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        match self.key.compare_exchange(old, new, success, failure) {
            Ok(_) => true,
            Err(other) => other == new,
        }
    }

    /// Returns whether no worker has slept in the group for a while. While workers sleep, one of them is a guard.
    fn is_left(&self, now: u64) -> bool {
        let is_past =
            |time: &AtomicU64| time.load(Ordering::Relaxed).saturating_add(2 * LONG) < now;
        self.guards.iter().all(is_past) && is_past(&self.last_wakeup)
    }

    /// Returns how long the calling worker is to sleep at a time, and as which guard.
    pub fn nap(group: Option<&Group>, now: u64) -> (u64, Option<usize>) {
        let Some(group) = group else {
            return (IDLE, None);
        };
        let since = now.saturating_sub(group.last_wakeup.load(Ordering::Relaxed));
        let nap = if since > ACTIVE { IDLE } else { SHORT };
        let place = group.guards.iter().position(|guard| {
            let until = guard.load(Ordering::Relaxed);
            let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
            is_free(until, now)
                && guard
                    .compare_exchange(until, now + nap, success, failure)
                    .is_ok()
        });
        (if place.is_some() { nap } else { LONG }, place)
    }

    /// Returns whether a worker that has last looked at the time `looked` looks for connections that were left. It does if no
    /// worker was woken for so long that one which accepts would have done so. It also does from time to time while workers
    /// are woken, which may be for another socket of the group.
    pub fn is_to_look(&self, looked: u64, now: u64) -> bool {
        let last = self.last_wakeup.load(Ordering::Relaxed);
        last.saturating_add(SHORT) <= now || looked.saturating_add(IDLE) <= now
    }

    /// Frees a guard's place.
    pub fn leave(group: Option<&Group>, place: Option<usize>) {
        if let (Some(group), Some(place)) = (group, place) {
            group.guards[place].store(0, Ordering::Relaxed);
        }
    }

    /// Returns whether a worker sleeps as a guard. The first ones that fall asleep do.
    pub fn has_sleeper(&self, now: u64) -> bool {
        let mut guards = self.guards.iter();
        guards.any(|guard| !is_free(guard.load(Ordering::Relaxed), now))
    }

    /// Records that a worker was woken.
    pub fn woken(&self, now: u64) {
        self.last_wakeup.store(now, Ordering::Relaxed);
    }
}

/// Returns whether no worker is the guard that was to sleep until then. A guard that is late by more than this was killed or
/// stopped.
fn is_free(until: u64, now: u64) -> bool {
    until.saturating_add(SHORT) < now
}

/// The counts of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// The worker's process.
    pub process: u32,
    /// The worker's thread.
    pub thread: u32,
    /// Wakeups for a listening socket.
    pub wakeups: u64,
    /// Wakeups after which no connection was left.
    pub empty: u64,
    /// Accepted connections.
    pub accepts: u64,
    /// The number of times that the worker went to the end of the line.
    pub rotations: u64,
    /// Connections that waited though another worker had been woken.
    pub rescues: u64,
}

impl Counts {
    fn of([id, wakeups, empty, accepts, rotations, rescues]: [u64; 6]) -> Option<Counts> {
        let half = |number: u64| u32::try_from(number & u64::from(u32::MAX)).unwrap_or(0);
        (id != 0).then(|| Counts {
            process: half(id >> 32),
            thread: half(id),
            wakeups,
            empty,
            accepts,
            rotations,
            rescues,
        })
    }

    /// Returns the counts in the bytes of the shared file; none if the file is too short.
    pub fn in_file(bytes: &[u8]) -> Vec<Counts> {
        let places = offset_of!(State, workers)..size_of::<State>();
        let workers = bytes.get(places).unwrap_or_default();
        let (workers, _) = workers.as_chunks::<{ size_of::<Worker>() }>();
        let counts = workers.iter().filter_map(|worker| {
            let number = |field: usize| {
                let bytes = worker[field..].first_chunk();
                u64::from_ne_bytes(*bytes.expect("a field lies within its structure"))
            };
            Counts::of([
                number(offset_of!(Worker, id)),
                number(offset_of!(Worker, wakeups)),
                number(offset_of!(Worker, empty)),
                number(offset_of!(Worker, accepts)),
                number(offset_of!(Worker, rotations)),
                number(offset_of!(Worker, rescues)),
            ])
        });
        counts.collect()
    }
}

/// Returns Jain's index: 1 if all shares are equal, 1/n if one of n has all; 1 if there is nothing to share.
#[expect(
    clippy::cast_precision_loss,
    reason = "the index is good to a few digits"
)]
pub fn fairness(shares: impl Iterator<Item = u64>) -> f64 {
    let (mut number, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for share in shares {
        number += 1.0;
        sum += share as f64;
        squares += (share as f64).powi(2);
    }
    if squares == 0.0 {
        1.0
    } else {
        sum * sum / (number * squares)
    }
}

/// A table of the workers, with Jain's index in its last line.
#[derive(Clone, Debug)]
pub struct Table<I>(pub I);

impl<I: Iterator<Item = Counts> + Clone> Display for Table<I> {
    #[expect(
        clippy::cast_precision_loss,
        reason = "a share is printed with one digit"
    )]
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let workers = || self.0.clone();
        let accepts = workers().map(|worker| worker.accepts);
        let sum = accepts.fold(0, u64::saturating_add);
        writeln!(
            f,
            "{:>10} {:>10} {:>10} {:>10} {:>10} {:>7} {:>10} {:>8}",
            "process", "thread", "wakeups", "empty", "accepts", "share", "rotations", "rescues"
        )?;
        for worker in workers() {
            writeln!(
                f,
                "{:>10} {:>10} {:>10} {:>10} {:>10} {:>6.1}% {:>10} {:>8}",
                worker.process,
                worker.thread,
                worker.wakeups,
                worker.empty,
                worker.accepts,
                100.0 * worker.accepts as f64 / (sum.max(1)) as f64,
                worker.rotations,
                worker.rescues,
            )?;
        }
        writeln!(
            f,
            "fairness {:.3} ({} workers, {sum} connections)",
            fairness(workers().map(|worker| worker.accepts)),
            workers().count(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: usize = size_of::<State>() / size_of::<u64>();

    #[test]
    fn a_policy_has_a_name_or_is_a_number_of_wakeups() {
        assert_eq!(Policy::default(), Policy::Every(8));
        assert_eq!(Policy::parse("every"), Some(Policy::Every(1)));
        assert_eq!(Policy::parse("adaptive"), Some(Policy::Adaptive));
        for text in ["", "0", "-1", "4294967296", "8 ", "Every"] {
            assert_eq!(Policy::parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_file_holds_what_the_state_returns() {
        let memory = [const { AtomicU64::new(0) }; WORDS];
        // SAFETY: a state consists of atomics in as many words; zeros are one, and it lives as long as the memory.
        let state = unsafe { &*memory.as_ptr().cast::<State>() };
        for thread in [7, 8] {
            let worker = state.worker(5, thread).expect("there is room");
            worker
                .wakeups
                .store(u64::from(thread) * 10, Ordering::Relaxed);
            worker.accepts.store(u64::from(thread), Ordering::Relaxed);
            worker.rescues.store(3, Ordering::Relaxed);
        }
        let words = memory.iter().map(|word| word.load(Ordering::Relaxed));
        let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
        assert_eq!(Counts::in_file(&bytes), state.counts().collect::<Vec<_>>());
        assert_eq!(state.counts().count(), 2);
        assert!(Counts::in_file(&bytes[..100]).is_empty());
    }

    #[test]
    fn a_group_without_sleepers_loses_its_place_if_all_are_taken() {
        let memory = [const { AtomicU64::new(0) }; WORDS];
        // SAFETY: as above.
        let state = unsafe { &*memory.as_ptr().cast::<State>() };
        let (start, later) = (10 * LONG, 20 * LONG);
        let groups = (1..).take(GROUPS).map(|key| state.group(key, || start));
        for group in groups {
            let group = group.expect("there is room");
            let (nap, place) = Group::nap(Some(group), start);
            assert!(nap == IDLE && place.is_some());
        }
        assert!(state.group(1000, || start).is_none());
        // The workers of one group go on sleeping.
        Group::nap(state.group(7, || later), later);
        for key in 1001..1000 + GROUPS as u64 {
            let group = state.group(key, || later).expect("its place is free");
            assert!(!group.has_sleeper(later));
        }
        assert!(state.group(1000, || later).is_none());
        let group = state.group(7, || later).expect("it has its place");
        assert!(group.has_sleeper(later));
    }

    #[test]
    fn a_worker_that_does_not_come_back_from_its_nap_is_no_sleeper() {
        let memory = [const { AtomicU64::new(0) }; WORDS];
        // SAFETY: as above.
        let state = unsafe { &*memory.as_ptr().cast::<State>() };
        let group = state.group(1, || LONG).expect("there is room");
        assert!(!group.has_sleeper(LONG));
        let (nap, place) = Group::nap(Some(group), LONG);
        assert!(group.has_sleeper(LONG + nap + SHORT));
        assert!(!group.has_sleeper(LONG + nap + SHORT + 1));
        Group::leave(Some(group), place);
        assert!(!group.has_sleeper(LONG));
    }

    #[test]
    fn a_thread_that_asks_again_has_its_place() {
        let memory = [const { AtomicU64::new(0) }; WORDS];
        // SAFETY: as above.
        let state = unsafe { &*memory.as_ptr().cast::<State>() };
        let place = |thread| state.worker(5, thread).map(std::ptr::from_ref);
        assert_eq!(place(5), place(5));
        assert_ne!(place(5), place(6));
    }

    #[test]
    fn a_thread_without_a_place_is_not_counted() {
        let memory = [const { AtomicU64::new(0) }; WORDS];
        // SAFETY: as above.
        let state = unsafe { &*memory.as_ptr().cast::<State>() };
        for thread in (1..).take(WORKERS) {
            assert!(state.worker(5, thread).is_some());
        }
        assert!(state.worker(6, 1).is_none());
    }

    #[test]
    fn fairness_is_one_for_equal_shares_and_a_fraction_for_one_that_has_all() {
        let near = |index: f64, expected: f64| (index - expected).abs() < 1e-9;
        assert!(near(fairness([5, 5, 5].into_iter()), 1.0));
        assert!(near(fairness([0, 9, 0].into_iter()), 1.0 / 3.0));
        assert!(near(fairness([0, 0].into_iter()), 1.0));
    }
}
