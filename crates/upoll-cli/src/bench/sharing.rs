//! Threads that share one set, whose files stay in it: pools that take oneshot events, and producers
//! of edge-triggered ones.

use anyhow::Result;

use super::kernel::Fd;
use super::threads::{self, Goal, KERNEL, Load, Server, Set, Sets, Threaded, UPOLL, Way};

pub(super) const NAME: &str = "shared";
pub(super) const NAMES: [&str; 1] = [NAME];

/// The number of oneshot files.
const ONESHOT_FILES: usize = 64;

/// The number of edge-triggered files that each thread writes.
const EDGE_FILES: usize = 8;

/// Opens a set and `count` files in it, each with its index as data.
fn filled<S: Set>(count: usize, events: i32) -> Result<(S, Vec<S::File>)> {
    let set = S::open()?;
    let files = (0..count).map(|_| S::file()).collect::<Result<Vec<_>>>()?;
    for (index, file) in files.iter().enumerate() {
        set.add(file, events, index as u64);
    }
    Ok((set, files))
}

/// A pool of threads: each takes one event, serves it, and makes the next one of the same file.
struct Oneshot<S: Set> {
    set: S,
    files: Vec<S::File>,
}

impl<S: Set> Oneshot<S> {
    const EVENTS: i32 = libc::EPOLLIN | libc::EPOLLONESHOT;
}

impl<S: Set> Server for Oneshot<S> {
    type Set = S;

    fn new(_threads: usize) -> Result<Self> {
        let (set, files) = filled::<S>(ONESHOT_FILES, Self::EVENTS)?;
        files.iter().for_each(S::write);
        Ok(Oneshot { set, files })
    }

    fn serve(&self, _thread: usize, _turn: usize) -> bool {
        let mut data = 0;
        // Nothing is reported while other threads have taken all events.
        if self.set.wait::<1>(|reported| data = reported) == 0 {
            return false;
        }
        let file = &self.files[data as usize];
        assert!(S::read(file), "the event was reported to two threads");
        self.set.modify(file, Self::EVENTS, data);
        S::write(file);
        true
    }
}

/// Producers: each writes its own files by turns, and serves all events that are reported to it.
struct Edge<S: Set> {
    set: S,
    files: Vec<S::File>,
}

impl<S: Set> Server for Edge<S> {
    type Set = S;

    fn new(threads: usize) -> Result<Self> {
        let events = libc::EPOLLIN | libc::EPOLLET;
        let (set, files) = filled::<S>(threads * EDGE_FILES, events)?;
        Ok(Edge { set, files })
    }

    fn serve(&self, thread: usize, turn: usize) -> bool {
        S::write(&self.files[thread * EDGE_FILES + turn % EDGE_FILES]);
        self.set.wait::<8>(|data| {
            // Another thread may have read it already.
            S::read(&self.files[data as usize]);
        });
        true
    }
}

const BY_KERNEL: Way = Way {
    work: "oneshot",
    by: KERNEL,
    sets: Sets::Shared,
    round: threads::round::<Oneshot<Fd>>,
    counted: None,
    goal: None,
};

const BY_UPOLL: Way = Way {
    by: UPOLL,
    round: threads::round::<Oneshot<upoll::Epoll>>,
    counted: Some(threads::round::<Oneshot<upoll_counted::Epoll>>),
    goal: Some(Goal::NEVER_BELOW_THE_KERNEL),
    ..BY_KERNEL
};

const WAYS: [Way; 4] = [
    BY_KERNEL,
    BY_UPOLL,
    Way {
        work: "edge",
        round: threads::round::<Edge<Fd>>,
        ..BY_KERNEL
    },
    Way {
        work: "edge",
        round: threads::round::<Edge<upoll::Epoll>>,
        counted: Some(threads::round::<Edge<upoll_counted::Epoll>>),
        ..BY_UPOLL
    },
];

/// Measures with the threads on any of the `cpus` CPUs that the caller may use.
pub(super) fn measure(load: Load, cpus: usize) -> Result<Vec<Threaded>> {
    threads::measure(NAME, &WAYS, load, cpus)
}
