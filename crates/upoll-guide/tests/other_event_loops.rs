//! A set in the event loops of other people, beside a kernel set in the same loop: both are reported alike.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll as kernel;
use rustix::event::{EventfdFlags, Timespec, eventfd};
use upoll::{Epoll, Event, EventFd, EventFdFlags, Events, ReadinessFd};

const MEMBERS: u64 = 3;
const NOW: Option<Duration> = Some(Duration::ZERO);

/// A set with eventfds as members, edge-triggered.
trait World {
    fn new() -> Self;
    fn fd(&self) -> BorrowedFd<'_>;
    fn write(&self, member: u64);
    /// Harvests until nothing is left.
    fn harvest(&self) -> Vec<u64>;
}

struct UserLevel {
    fd: ReadinessFd,
    counters: Vec<EventFd>,
}

impl World for UserLevel {
    fn new() -> Self {
        let set = Epoll::new().unwrap();
        let counter = |_| EventFd::with_flags(0, EventFdFlags::NONBLOCK).unwrap();
        let counters: Vec<_> = (0..MEMBERS).map(counter).collect();
        for (data, counter) in (0..).zip(&counters) {
            set.add(counter, Event::new(Events::IN | Events::ET, data))
                .unwrap();
        }
        let fd = set.readiness_fd().unwrap();
        UserLevel { fd, counters }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn write(&self, member: u64) {
        let member = usize::try_from(member).unwrap();
        self.counters[member].try_write(1).unwrap();
    }

    fn harvest(&self) -> Vec<u64> {
        let mut all = Vec::new();
        let mut events = [Event::default(); 2];
        loop {
            let found = self.fd.epoll().try_wait(&mut events).unwrap();
            all.extend(events[..found].iter().map(Event::data));
            if found < events.len() {
                return all;
            }
        }
    }
}

struct Kernels {
    set: OwnedFd,
    counters: Vec<OwnedFd>,
}

impl World for Kernels {
    fn new() -> Self {
        let set = kernel::create(kernel::CreateFlags::CLOEXEC).unwrap();
        let counter = |_| eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let counters: Vec<_> = (0..MEMBERS).map(counter).collect();
        for (data, counter) in (0..).zip(&counters) {
            let data = kernel::EventData::new_u64(data);
            let flags = kernel::EventFlags::IN | kernel::EventFlags::ET;
            kernel::add(&set, counter, data, flags).unwrap();
        }
        Kernels { set, counters }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    fn write(&self, member: u64) {
        let member = usize::try_from(member).unwrap();
        rustix::io::write(&self.counters[member], &1_u64.to_ne_bytes()).unwrap();
    }

    fn harvest(&self) -> Vec<u64> {
        let mut all = Vec::new();
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        loop {
            let mut events = Vec::with_capacity(2);
            kernel::wait(
                &self.set,
                rustix::buffer::spare_capacity(&mut events),
                Some(&now),
            )
            .unwrap();
            all.extend(events.iter().map(|event| event.data.u64()));
            if events.len() < 2 {
                return all;
            }
        }
    }
}

/// The reports of an event loop about a set. Each entry is whether the fd was reported, and the harvest.
type Log = Vec<(bool, Vec<u64>)>;

/// Makes events come and go, and asks the loop after each step.
fn log_of<W: World>(world: &W, mut is_reported: impl FnMut() -> bool) -> Log {
    let mut log = vec![(is_reported(), Vec::new())];
    for round in 0..10 {
        world.write(round % MEMBERS);
        log.push((is_reported(), world.harvest()));
        log.push((is_reported(), Vec::new()));
        for member in 0..MEMBERS {
            world.write(member);
        }
        log.push((is_reported(), world.harvest()));
        log.push((is_reported(), world.harvest()));
    }
    log
}

/// Runs the same in both worlds.
fn same_in_both(in_ours: impl FnOnce(UserLevel) -> Log, in_kernels: impl FnOnce(Kernels) -> Log) {
    let ours = in_ours(World::new());
    assert_eq!(ours, in_kernels(World::new()));
    let reported = ours.iter().filter(|(is_reported, _)| *is_reported);
    assert_eq!(reported.count(), 20);
}

#[test]
fn a_set_in_mio_is_as_a_kernel_set() {
    fn in_mio<W: World>(world: W) -> Log {
        let mut poll = mio::Poll::new().unwrap();
        let mut events = mio::Events::with_capacity(4);
        let fd = world.fd().as_raw_fd();
        let mut source = mio::unix::SourceFd(&fd);
        let token = mio::Token(5);
        poll.registry()
            .register(&mut source, token, mio::Interest::READABLE)
            .unwrap();
        log_of(&world, || {
            poll.poll(&mut events, NOW).unwrap();
            let mut found = events.iter();
            found
                .next()
                .is_some_and(|event| event.token() == token && event.is_readable())
        })
    }
    same_in_both(in_mio, in_mio);
}

#[test]
fn a_set_in_polling_is_as_a_kernel_set() {
    fn in_polling<W: World>(world: W, mode: polling::PollMode) -> Log {
        let poller = polling::Poller::new().unwrap();
        let mut events = polling::Events::new();
        let interest = polling::Event::readable(5);
        // SAFETY: the fd is deleted before it is closed.
        unsafe {
            poller
                .add_with_mode(world.fd().as_raw_fd(), interest, mode)
                .unwrap()
        };
        let log = log_of(&world, || {
            events.clear();
            poller.wait(&mut events, NOW).unwrap();
            if mode == polling::PollMode::Oneshot {
                poller.modify_with_mode(world.fd(), interest, mode).unwrap();
            }
            events.iter().any(|event| event.key == 5 && event.readable)
        });
        poller.delete(world.fd()).unwrap();
        log
    }
    for mode in [
        polling::PollMode::Oneshot,
        polling::PollMode::Level,
        polling::PollMode::Edge,
    ] {
        same_in_both(
            |ours| in_polling(ours, mode),
            |kernels| in_polling(kernels, mode),
        );
    }
}

#[test]
fn a_set_in_calloop_is_as_a_kernel_set() {
    fn in_calloop<W: World>(world: W, mode: calloop::Mode) -> Log {
        let mut event_loop = calloop::EventLoop::<bool>::try_new().unwrap();
        // The loop owns the fd that it watches.
        let fd = world.fd().try_clone_to_owned().unwrap();
        let source = calloop::generic::Generic::new(fd, calloop::Interest::READ, mode);
        event_loop
            .handle()
            .insert_source(source, |readiness, _, is_reported| {
                *is_reported |= readiness.readable;
                Ok(calloop::PostAction::Continue)
            })
            .unwrap();
        log_of(&world, || {
            let mut is_reported = false;
            event_loop.dispatch(NOW, &mut is_reported).unwrap();
            is_reported
        })
    }
    for mode in [calloop::Mode::Level, calloop::Mode::Edge] {
        same_in_both(
            |ours| in_calloop(ours, mode),
            |kernels| in_calloop(kernels, mode),
        );
    }
}

#[test]
fn a_set_in_tokio_is_as_a_kernel_set() {
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    struct Watched<W>(W);
    impl<W: World> AsRawFd for Watched<W> {
        fn as_raw_fd(&self) -> i32 {
            self.0.fd().as_raw_fd()
        }
    }

    /// Each event is harvested by a task that slept before it came.
    fn in_tokio<W: World>(world: W) -> Log {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async {
            let fd = Watched(world);
            // SAFETY: the fd stays the same and open while the world exists.
            let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.unwrap();
            let mut log = Vec::new();
            for round in 0..20 {
                let writing = async {
                    // The other future is polled, and waits, by then.
                    tokio::task::yield_now().await;
                    for member in 0..=round % MEMBERS {
                        fd.get_ref().0.write(member);
                    }
                };
                let serving = async {
                    let mut ready = fd.readable().await.unwrap();
                    let found = ready.get_inner().0.harvest();
                    ready.clear_ready();
                    found
                };
                let (found, ()) = tokio::join!(serving, writing);
                log.push((true, found));
            }
            log
        })
    }
    same_in_both(in_tokio, in_tokio);
}
