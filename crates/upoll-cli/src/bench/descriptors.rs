//! Kernel fds in a set of upoll, compared with the kernel's own set. Each call on upoll's set
//! checks by a further system call that the fd of its kernel set still refers to that set.

use std::hint::black_box;

use anyhow::Result;
use upoll::{Epoll, Event, Events, Timeout};

use super::calls::{Comparison, row};
use super::kernel::{self, Fd};
use super::measure::side;

/// The check costs less than the call that follows it.
const TARGET: f64 = 0.5;

/// A set that watches a kernel eventfd.
struct Watched<S> {
    set: S,
    counter: Fd,
}

impl Watched<Fd> {
    fn of_kernel(initial: u32) -> Result<Self> {
        let (set, counter) = (Fd::epoll()?, Fd::eventfd(initial)?);
        set.add(&counter, libc::EPOLLIN, 1)?;
        Ok(Watched { set, counter })
    }

    #[inline]
    fn wait(&self) {
        let mut reports = [kernel::IDLE; 8];
        assert_eq!(self.set.wait(&mut reports, 0).expect("wait"), 1);
        black_box(reports);
    }
}

impl Watched<Epoll> {
    fn of_upoll(initial: u32) -> Result<Self> {
        let (set, counter) = (Epoll::new()?, Fd::eventfd(initial)?);
        set.add(&counter, Event::new(Events::IN, 1))?;
        Ok(Watched { set, counter })
    }

    #[inline]
    fn wait(&self) {
        let mut reports = [Event::default(); 8];
        assert_eq!(self.set.wait(&mut reports, Timeout::NOW).expect("wait"), 1);
        black_box(reports);
    }
}

impl<S> Watched<S> {
    #[inline]
    fn write(&self) {
        self.counter.write_count(black_box(1)).expect("write");
    }

    #[inline]
    fn read(&self) {
        black_box(self.counter.read_count().expect("read"));
    }
}

fn both(initial: u32) -> Result<(Watched<Fd>, Watched<Epoll>)> {
    Ok((Watched::of_kernel(initial)?, Watched::of_upoll(initial)?))
}

pub(super) const COMPARISONS: &[Comparison] = &[
    row(
        "descriptor-wait",
        "wait(0), 1 descriptor ready",
        TARGET,
        || {
            let (theirs, ours) = both(1)?;
            Ok([side(move || theirs.wait()), side(move || ours.wait())])
        },
    ),
    row("descriptor-mod", "ctl MOD of a descriptor", TARGET, || {
        let (theirs, ours) = both(0)?;
        Ok([
            side(move || {
                let events = black_box(libc::EPOLLIN);
                theirs.set.modify(&theirs.counter, events, 1).expect("MOD");
            }),
            side(move || {
                let interest = Event::new(black_box(Events::IN), 1);
                ours.set.modify(&ours.counter, interest).expect("MOD");
            }),
        ])
    }),
    row(
        "descriptor-event",
        "write + wait(0) + read of a descriptor",
        TARGET,
        || {
            let (theirs, ours) = both(0)?;
            Ok([
                side(move || {
                    theirs.write();
                    theirs.wait();
                    theirs.read();
                }),
                side(move || {
                    ours.write();
                    ours.wait();
                    ours.read();
                }),
            ])
        },
    ),
];
