//! Threads that serve one connection per request: each opens a file, adds it to a set, waits for an
//! event on it and closes it. In the kernel of 2017 all sets shared one lock.

use std::marker::PhantomData;

use anyhow::Result;
use upoll::{Epoll, EventFd, EventFdFlags, Events};

use super::kernel::Fd;
use super::set::{Counter, Set};
use super::threads::{
    self, Counted, Global, GlobalFile, Goal, KERNEL, Load, Server, Sets, Threaded, UPOLL, Way,
};

pub(super) const NAME: &str = "close";

struct Closing<S, C>(S, PhantomData<C>);

impl<S: Set<C> + Counted, C: Counter> Server for Closing<S, C> {
    type Set = S;

    fn new(_threads: usize) -> Result<Self> {
        Ok(Closing(S::open()?, PhantomData))
    }

    fn serve(&self, _thread: usize, _turn: usize) -> bool {
        let connection = C::new(0, EventFdFlags::NONBLOCK).expect("eventfd");
        self.0.add(&connection, Events::IN, 1).expect("ADD");
        connection.write();
        self.0.harvest(&mut [S::ROOM; 8]).expect("wait");
        true
    }
}

const BY_KERNEL: Way = Way {
    work: "a connection per request",
    by: KERNEL,
    sets: Sets::Own,
    round: threads::round::<Closing<Fd, Fd>>,
    counted: None,
    goal: None,
};

const BY_UPOLL: Way = Way {
    by: UPOLL,
    round: threads::round::<Closing<Epoll, EventFd>>,
    counted: Some(threads::round::<Closing<upoll_counted::Epoll, upoll_counted::EventFd>>),
    goal: Some(Goal::UNRELATED),
    ..BY_KERNEL
};

const WAYS: [Way; 5] = [
    BY_KERNEL,
    BY_UPOLL,
    Way {
        by: "upoll, one lock for all sets",
        round: threads::round::<Closing<Global, GlobalFile>>,
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
