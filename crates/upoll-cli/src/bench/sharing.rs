//! Threads that share one set, whose files stay in it: pools that take oneshot events, and producers
//! of edge-triggered ones.

use std::io;

use anyhow::Result;
use upoll::{Epoll, EventFd, EventFdFlags, Events};

use super::kernel::Fd;
use super::set::{Counter, Set, watching};
use super::threads::{self, Counted, Goal, KERNEL, Load, Server, Sets, Threaded, UPOLL, Way};

pub(super) const NAME: &str = "shared";

/// The number of oneshot files.
const ONESHOT_FILES: usize = 64;

/// The number of edge-triggered files that each thread writes.
const EDGE_FILES: usize = 8;

/// Returns an eventfd whose calls do not block.
fn file<C: Counter>() -> io::Result<C> {
    C::new(0, EventFdFlags::NONBLOCK)
}

/// A pool of threads: each takes one event, serves it, and makes the next one of the same file.
struct Oneshot<S, C> {
    set: S,
    files: Vec<C>,
}

const ONESHOT: Events = Events::IN.union(Events::ONESHOT);

impl<S: Set<C> + Counted, C: Counter> Server for Oneshot<S, C> {
    type Set = S;

    fn new(_threads: usize) -> Result<Self> {
        let (set, files) = watching(ONESHOT_FILES, ONESHOT, file)?;
        files.iter().for_each(C::write);
        Ok(Oneshot { set, files })
    }

    fn serve(&self, _thread: usize, _turn: usize) -> bool {
        let mut reports = [S::ROOM];
        // Nothing is reported while other threads have taken all events.
        if self.set.harvest(&mut reports).expect("wait") == 0 {
            return false;
        }
        let data = S::data(&reports[0]);
        let file = &self.files[data as usize];
        assert!(file.try_read(), "the event was reported to two threads");
        self.set.modify(file, ONESHOT, data).expect("MOD");
        file.write();
        true
    }
}

/// Producers: each writes its own files by turns, and serves all events that are reported to it.
struct Edge<S, C> {
    set: S,
    files: Vec<C>,
}

impl<S: Set<C> + Counted, C: Counter> Server for Edge<S, C> {
    type Set = S;

    fn new(threads: usize) -> Result<Self> {
        let events = Events::IN | Events::ET;
        let (set, files) = watching(threads * EDGE_FILES, events, file)?;
        Ok(Edge { set, files })
    }

    fn serve(&self, thread: usize, turn: usize) -> bool {
        self.files[thread * EDGE_FILES + turn % EDGE_FILES].write();
        let mut reports = [S::ROOM; 8];
        let found = self.set.harvest(&mut reports).expect("wait");
        for report in &reports[..found] {
            // Another thread may have read it already.
            self.files[S::data(report) as usize].try_read();
        }
        true
    }
}

const BY_KERNEL: Way = Way {
    work: "oneshot",
    by: KERNEL,
    sets: Sets::Shared,
    round: threads::round::<Oneshot<Fd, Fd>>,
    counted: None,
    goal: None,
};

const BY_UPOLL: Way = Way {
    by: UPOLL,
    round: threads::round::<Oneshot<Epoll, EventFd>>,
    counted: Some(threads::round::<Oneshot<upoll_counted::Epoll, upoll_counted::EventFd>>),
    goal: Some(Goal::NEVER_BELOW_THE_KERNEL),
    ..BY_KERNEL
};

const WAYS: [Way; 4] = [
    BY_KERNEL,
    BY_UPOLL,
    Way {
        work: "edge",
        round: threads::round::<Edge<Fd, Fd>>,
        ..BY_KERNEL
    },
    Way {
        work: "edge",
        round: threads::round::<Edge<Epoll, EventFd>>,
        counted: Some(threads::round::<Edge<upoll_counted::Epoll, upoll_counted::EventFd>>),
        ..BY_UPOLL
    },
];

/// Measures with the threads on any of the `cpus` CPUs that the caller may use.
pub(super) fn measure(load: Load, cpus: usize) -> Result<Vec<Threaded>> {
    threads::measure(NAME, &WAYS, load, cpus)
}
