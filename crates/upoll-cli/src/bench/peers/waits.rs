//! Waits over many eventfds, by upoll and by the kernel's calls. In each round a write makes an eventfd ready, a wait
//! over all finds it, and a read takes the count.

use std::hint::black_box;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use io_uring::{cqueue, opcode, types};
use upoll::{Epoll, EventFd, Events, PollContext, PollFd, Timeout};

use super::Way;
use crate::bench::batch;
use crate::bench::calls::idle;
use crate::bench::channels::next;
use crate::bench::kernel::{self, Fd};
use crate::bench::measure::{Side, side};
use crate::bench::set::{Counter, Set, counters, watching};

/// Signals the next of the counters, and consumes the one that `wait` finds.
#[inline]
pub(super) fn round<C: Counter>(counters: &[C], at: &mut usize, wait: impl FnOnce() -> usize) {
    let signalled = next(at, counters.len());
    counters[signalled].write();
    let found = wait();
    assert_eq!(found, signalled);
    black_box(counters[found].read());
}

pub(super) fn descriptors(count: usize) -> Result<Vec<Fd>> {
    counters(count).with_context(|| format!("{count} eventfds"))
}

pub(super) fn over_eventfds(count: usize) -> Vec<Way> {
    // These calls leave nothing registered between two of them, so both can use the same eventfds. They
    // come first, because `select` needs low fds.
    let [poll, select] = match descriptors(count).map(Rc::new) {
        Ok(polled) => [Ok(poll(polled.clone())), select(polled)],
        Err(error) => {
            let why = format!("{error:#}");
            [Err(error), Err(anyhow::Error::msg(why))]
        }
    };
    vec![
        ("upoll set", set::<Epoll, EventFd>(count)),
        ("upoll poll context", poll_context(count)),
        ("kernel epoll_wait", set::<Fd, Fd>(count)),
        ("kernel epoll_pwait2", epoll_pwait2(count)),
        ("kernel poll", poll),
        ("kernel select", select),
        ("kernel io_uring multishot poll", multishot(count)),
    ]
}

/// Waits in a set, of upoll or of the kernel.
fn set<S: Set<C>, C: Counter>(count: usize) -> Result<Side> {
    let (set, counters) = watching::<S, C>(count, Events::IN, idle)?;
    let mut at = 0;
    Ok(side(move || {
        round(&counters, &mut at, || {
            let mut reports = [S::ROOM; 8];
            assert_eq!(set.harvest(&mut reports).expect("wait"), 1);
            S::data(&reports[0]) as usize
        });
    }))
}

fn poll_context(count: usize) -> Result<Side> {
    let (mut context, counters) = (PollContext::new(), counters::<EventFd>(count)?);
    let mut at = 0;
    Ok(Box::new(move |times| {
        let fds = counters.iter().map(|one| PollFd::new(one, Events::IN));
        let mut fds: Vec<_> = fds.collect();
        for _ in 0..times {
            round(&counters, &mut at, || {
                let ready = context.poll(&mut fds, Timeout::NOW).expect("poll");
                assert_eq!(ready, 1);
                let found = fds.iter().position(|fd| !fd.revents().is_empty());
                found.expect("one is ready")
            });
        }
    }))
}

fn epoll_pwait2(count: usize) -> Result<Side> {
    let (set, counters) = watching::<Fd, Fd>(count, Events::IN, idle)?;
    set.epoll_pwait2(&mut [Fd::ROOM], Duration::ZERO)
        .context("epoll_pwait2")?;
    let mut at = 0;
    Ok(side(move || {
        round(&counters, &mut at, || {
            let mut events = [Fd::ROOM; 8];
            let ready = set.epoll_pwait2(&mut events, Duration::ZERO).expect("wait");
            assert_eq!(ready, 1);
            events[0].u64 as usize
        });
    }))
}

fn poll(counters: Rc<Vec<Fd>>) -> Side {
    let mut fds: Vec<_> = counters.iter().map(kernel::readable).collect();
    let mut at = 0;
    side(move || {
        round(&counters, &mut at, || {
            assert_eq!(kernel::poll(&mut fds).expect("poll"), 1);
            let found = fds.iter().position(|fd| fd.revents != 0);
            found.expect("one is ready")
        });
    })
}

fn select(counters: Rc<Vec<Fd>>) -> Result<Side> {
    ensure!(
        counters.iter().all(kernel::FdSet::has_room_for),
        "fds from {} on have no place in an fd_set",
        libc::FD_SETSIZE
    );
    let mut all = kernel::FdSet::new();
    counters.iter().for_each(|one| all.insert(one));
    let end = counters.iter().map(|one| one.raw() + 1).max().unwrap_or(0);
    let mut at = 0;
    Ok(side(move || {
        round(&counters, &mut at, || {
            let mut readable = all.clone();
            assert_eq!(kernel::select(end, &mut readable).expect("select"), 1);
            let found = counters.iter().position(|one| readable.contains(one));
            found.expect("one is ready")
        });
    }))
}

fn multishot(count: usize) -> Result<Side> {
    let counters = descriptors(count)?;
    let mut ring = batch::ring(u32::try_from(count)?).context("io_uring")?;
    let events = u32::from(libc::POLLIN.cast_unsigned());
    for (at, counter) in counters.iter().enumerate() {
        let poll = opcode::PollAdd::new(types::Fd(counter.raw()), events).multi(true);
        let poll = poll.build().user_data(at as u64);
        // SAFETY: the entry refers to no memory of this process, and the fd outlives the ring's use of
        // it, because the kernel holds the file of a poll that is under way.
        unsafe { ring.submission().push(&poll) }.context("no room in the ring")?;
    }
    ring.submit()?;
    // Nothing is ready yet, so a completion is a refusal.
    ensure!(
        ring.completion().next().is_none(),
        "the kernel has no multishot poll"
    );
    let mut at = 0;
    Ok(side(move || {
        round(&counters, &mut at, || {
            // The completion may be in the ring already, where it costs no call.
            let completion = loop {
                if let Some(completion) = ring.completion().next() {
                    break completion;
                }
                ring.submit_and_wait(1).expect("submit");
            };
            assert!(completion.result() > 0, "a poll that found something");
            assert!(cqueue::more(completion.flags()), "the poll goes on");
            completion.user_data() as usize
        });
    }))
}
