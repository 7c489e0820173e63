//! Threads that serve one connection per request: each opens a file, adds it to a set, waits for an
//! event on it and closes it. In the kernel of 2017 all sets shared one lock.

use anyhow::Result;

use super::kernel::Fd;
use super::threads::{self, Global, Goal, KERNEL, Load, Server, Set, Sets, Threaded, UPOLL, Way};

pub(super) const NAME: &str = "close";
pub(super) const NAMES: [&str; 1] = [NAME];

struct Closing<S>(S);

impl<S: Set> Server for Closing<S> {
    type Set = S;

    fn new(_threads: usize) -> Result<Self> {
        Ok(Closing(S::open()?))
    }

    fn serve(&self, _thread: usize, _turn: usize) -> bool {
        let connection = S::file().expect("eventfd");
        self.0.add(&connection, libc::EPOLLIN, 1);
        S::write(&connection);
        self.0.wait::<8>(|_| ());
        true
    }
}

const BY_KERNEL: Way = Way {
    work: "a connection per request",
    by: KERNEL,
    sets: Sets::Own,
    round: threads::round::<Closing<Fd>>,
    counted: None,
    goal: None,
};

const BY_UPOLL: Way = Way {
    by: UPOLL,
    round: threads::round::<Closing<upoll::Epoll>>,
    counted: Some(threads::round::<Closing<upoll_counted::Epoll>>),
    goal: Some(Goal::UNRELATED),
    ..BY_KERNEL
};

const WAYS: [Way; 5] = [
    BY_KERNEL,
    BY_UPOLL,
    Way {
        by: "upoll, one lock for all sets",
        round: threads::round::<Closing<Global>>,
        ..BY_KERNEL
    },
    Way {
        sets: Sets::Shared,
        ..BY_KERNEL
    },
    Way {
        sets: Sets::Shared,
        goal: Some(Goal::NO_COLLAPSE),
        ..BY_UPOLL
    },
];

/// Measures with the threads on any of the `cpus` CPUs that the caller may use.
pub(super) fn measure(load: Load, cpus: usize) -> Result<Vec<Threaded>> {
    threads::measure(NAME, &WAYS, load, cpus)
}
