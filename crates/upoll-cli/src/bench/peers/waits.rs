//! Waits over many eventfds, by upoll and by the kernel's calls. In each round a write makes an eventfd ready, a wait
//! over all finds it, and a read takes the count.

use std::hint::black_box;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use io_uring::{cqueue, opcode, types};
use upoll::{Epoll, Event, EventFd, Events, PollContext, PollFd, Timeout};

use super::Way;
use crate::bench::batch;
use crate::bench::channels::next;
use crate::bench::kernel::{self, Fd};
use crate::bench::measure::{Side, side};

/// An eventfd, of upoll or of the kernel.
pub(super) trait Counter {
    fn signal(&self);
    fn consume(&self);
}

impl Counter for EventFd {
    #[inline]
    fn signal(&self) {
        self.write(black_box(1)).expect("write");
    }

    #[inline]
    fn consume(&self) {
        black_box(self.read().expect("read"));
    }
}

impl Counter for Fd {
    #[inline]
    fn signal(&self) {
        self.write_count(black_box(1)).expect("write");
    }

    #[inline]
    fn consume(&self) {
        black_box(self.read_count().expect("read"));
    }
}

/// Signals the next of the counters, and consumes the one that `wait` finds.
#[inline]
pub(super) fn round<C: Counter>(counters: &[C], at: &mut usize, wait: impl FnOnce() -> usize) {
    let signalled = next(at, counters.len());
    counters[signalled].signal();
    let found = wait();
    assert_eq!(found, signalled);
    counters[found].consume();
}

pub(super) fn descriptors(count: usize) -> Result<Vec<Fd>> {
    let fds = std::iter::repeat_with(|| Fd::eventfd(0)).take(count);
    fds.collect::<Result<_, _>>()
        .with_context(|| format!("{count} eventfds"))
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
        ("upoll set", set(count)),
        ("upoll poll context", poll_context(count)),
        ("kernel epoll_wait", epoll_wait(count)),
        ("kernel epoll_pwait2", epoll_pwait2(count)),
        ("kernel poll", poll),
        ("kernel select", select),
        ("kernel io_uring multishot poll", multishot(count)),
    ]
}

fn objects(count: usize) -> Result<Vec<EventFd>> {
    let objects = std::iter::repeat_with(|| EventFd::new(0)).take(count);
    Ok(objects.collect::<Result<_, _>>()?)
}

fn set(count: usize) -> Result<Side> {
    let (set, counters) = (Epoll::new()?, objects(count)?);
    for (at, counter) in counters.iter().enumerate() {
        set.add(counter, Event::new(Events::IN, at as u64))?;
    }
    let mut at = 0;
    Ok(side(move || {
        round(&counters, &mut at, || {
            let mut events = [Event::default(); 8];
            let ready = set.wait(&mut events, Timeout::NOW).expect("wait");
            assert_eq!(ready, 1);
            events[0].data() as usize
        });
    }))
}

fn poll_context(count: usize) -> Result<Side> {
    let (mut context, counters) = (PollContext::new(), objects(count)?);
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

/// An epoll set of the kernel, and its members.
fn watched(count: usize) -> Result<(Fd, Vec<Fd>)> {
    let (set, counters) = (Fd::epoll()?, descriptors(count)?);
    for (at, counter) in counters.iter().enumerate() {
        set.add(counter, libc::EPOLLIN, at as u64)?;
    }
    Ok((set, counters))
}

fn epoll_wait(count: usize) -> Result<Side> {
    let (set, counters) = watched(count)?;
    let mut at = 0;
    Ok(side(move || {
        round(&counters, &mut at, || {
            let mut events = [kernel::IDLE; 8];
            assert_eq!(set.wait(&mut events, 0).expect("wait"), 1);
            events[0].u64 as usize
        });
    }))
}

fn epoll_pwait2(count: usize) -> Result<Side> {
    let (set, counters) = watched(count)?;
    set.wait_for(&mut [kernel::IDLE], Duration::ZERO)
        .context("epoll_pwait2")?;
    let mut at = 0;
    Ok(side(move || {
        round(&counters, &mut at, || {
            let mut events = [kernel::IDLE; 8];
            let ready = set.wait_for(&mut events, Duration::ZERO).expect("wait");
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
