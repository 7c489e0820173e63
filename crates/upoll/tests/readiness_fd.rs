//! The readiness fd of a set, as kernel sets and `poll(2)` see it. Each rule that Linux has for a kernel set
//! within a kernel set is checked on the host kernel too.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod kernel;
mod open_fds;
mod threads;

use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use kernel::Twin;
use open_fds::{is_open, opened_by};
use threads::in_child;
use upoll::{CreateFlags, Epoll, Errno, Event, EventFd, Events, ReadinessFd};

const IN: Events = Events::IN;
const ET: Events = Events::ET;

/// Returns whether `poll(2)` finds `POLLIN`, and nothing else of what it may find.
fn is_readable(fd: RawFd) -> bool {
    let all = libc::POLLIN | libc::POLLOUT | libc::POLLPRI | libc::POLLRDHUP;
    let mut entry = libc::pollfd {
        fd,
        events: all,
        revents: 0,
    };
    // SAFETY: one live entry.
    let ready = unsafe { libc::poll(&raw mut entry, 1, 0) };
    assert!(entry.revents == 0 || entry.revents == libc::POLLIN);
    ready == 1
}

/// A kernel set with one member.
struct Watcher(OwnedFd);

impl Watcher {
    fn of(fd: RawFd, events: Events) -> Self {
        // SAFETY: a new fd, which is nobody else's.
        let set = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        let mut event = libc::epoll_event {
            events: events.bits(),
            u64: 7,
        };
        // SAFETY: the event is live.
        let added =
            unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        assert_eq!(added, 0);
        Watcher(set)
    }

    fn wait(&self, milliseconds: i32) -> bool {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event.
        let ready =
            unsafe { libc::epoll_wait(self.0.as_raw_fd(), &raw mut event, 1, milliseconds) };
        if ready == 1 {
            assert_eq!((event.events, event.u64), (IN.bits(), 7));
        }
        ready == 1
    }

    fn is_told(&self) -> bool {
        self.wait(0)
    }
}

/// A set at number 0 of a twin, in both worlds within a kernel set.
struct Within {
    twin: Twin,
    fd: ReadinessFd,
    watchers: [Watcher; 2],
}

impl Within {
    fn new(twin: Twin, events: Events) -> Self {
        let fd = twin.set(0).unwrap().readiness_fd().unwrap();
        let watchers = [fd.as_raw_fd(), twin.kernel.fd(0)].map(|fd| Watcher::of(fd, events));
        Within { twin, fd, watchers }
    }

    /// A set with counters at 1 and 2 as members.
    fn with_counters(watched: Events, wanted: Events) -> Self {
        let mut twin = Twin::new(3);
        twin.open_set(0);
        for number in [1, 2] {
            twin.open_counter(number, 0, false);
            twin.add(0, number, wanted, number as u64).unwrap();
        }
        Within::new(twin, watched)
    }

    /// Checks what the watcher is told, in both worlds.
    #[track_caller]
    fn told(&self, expected: bool) {
        let [ours, kernels] = self.watchers.each_ref().map(Watcher::is_told);
        assert_eq!((ours, kernels), (expected, expected));
    }

    #[track_caller]
    fn readable(&self, expected: bool) {
        let ours = is_readable(self.fd.as_raw_fd());
        let kernels = is_readable(self.twin.kernel.fd(0));
        assert_eq!((ours, kernels), (expected, expected));
    }

    /// Harvests until nothing is found, as users of edges do.
    fn drain(&self) {
        while !self.twin.wait(0, 1).unwrap().is_empty() {}
    }
}

#[test]
fn the_fd_is_readable_from_an_event_to_the_harvest() {
    let within = Within::with_counters(IN, IN | ET);
    within.readable(false);
    within.told(false);
    for _ in 0..3 {
        within.twin.write(1, 1);
        within.readable(true);
        within.told(true);
        within.told(true);
        within.twin.wait(0, 8).unwrap();
        within.readable(false);
        within.told(false);
    }
}

#[test]
fn the_fd_stays_readable_while_a_harvest_leaves_something() {
    let within = Within::with_counters(IN, IN | ET);
    within.twin.write(1, 1);
    within.twin.write(2, 1);
    within.twin.wait(0, 1).unwrap();
    within.readable(true);
    within.told(true);
    within.twin.wait(0, 1).unwrap();
    within.readable(false);
    within.told(false);
}

#[test]
fn level_triggered_members_keep_the_fd_readable() {
    let within = Within::with_counters(IN, IN);
    within.twin.write(1, 1);
    for _ in 0..3 {
        within.twin.wait(0, 8).unwrap();
        within.readable(true);
        within.told(true);
    }
    within.twin.read(1);
    // The kernel looks at the member again at each poll. This fd waits for the next harvest.
    within.drain();
    within.readable(false);
    within.told(false);
}

#[test]
fn an_fd_left_readable_by_an_object_that_was_read_is_cleared_by_a_harvest_that_finds_nothing() {
    let set = Epoll::new().unwrap();
    let counter = EventFd::new(0).unwrap();
    set.add(&counter, Event::new(IN, 0)).unwrap();
    let fd = set.readiness_fd().unwrap().as_raw_fd();
    for _ in 0..3 {
        counter.try_write(1).unwrap();
        counter.try_read().unwrap();
        assert!(is_readable(fd));
        assert_eq!(set.try_wait(&mut [Event::default(); 4]), Ok(0));
        assert!(!is_readable(fd));
    }
}

#[test]
fn an_edge_triggered_watcher_is_told_of_each_event_after_a_harvest() {
    let within = Within::with_counters(IN | ET, IN | ET);
    for _ in 0..3 {
        within.twin.write(1, 1);
        within.told(true);
        within.told(false);
        within.drain();
        within.told(false);
    }
    // The same after a harvest that leaves something.
    within.twin.write(1, 1);
    within.twin.write(2, 1);
    within.told(true);
    within.twin.wait(0, 1).unwrap();
    within.told(false);
    within.twin.write(1, 1);
    within.told(true);
    within.twin.wait(0, 1).unwrap();
    within.twin.write(2, 1);
    within.told(true);
    within.told(false);
}

#[test]
fn events_between_two_harvests_are_one_edge() {
    for room in [1, 4] {
        let set = Epoll::new().unwrap();
        let counters = [(); 3].map(|()| EventFd::new(0).unwrap());
        for counter in &counters {
            set.add(counter, Event::new(IN | ET, 0)).unwrap();
        }
        let fd = set.readiness_fd().unwrap();
        let watcher = Watcher::of(fd.as_raw_fd(), IN | ET);
        for _ in 0..3 {
            for (at, counter) in counters.iter().enumerate() {
                counter.try_write(1).unwrap();
                assert_eq!(watcher.is_told(), at == 0, "a ring for event {at}");
            }
            set.try_wait(&mut vec![Event::default(); room]).unwrap();
        }
    }
}

#[test]
fn a_member_that_is_added_or_modified_while_ready_is_an_event() {
    for events in [IN, IN | ET] {
        let mut twin = Twin::new(2);
        twin.open_set(0);
        twin.open_counter(1, 1, false);
        let within = Within::new(twin, events);
        within.told(false);
        within.twin.add(0, 1, IN | ET, 1).unwrap();
        within.told(true);
        within.drain();
        within.told(false);
        within.twin.modify(0, 1, IN | ET, 1).unwrap();
        within.told(true);
        within.drain();
        within.told(false);
    }
}

#[test]
fn a_set_that_is_ready_when_its_fd_is_made_shows_that() {
    let mut twin = Twin::new(2);
    twin.open_set(0);
    twin.open_counter(1, 1, false);
    twin.add(0, 1, IN, 1).unwrap();
    let within = Within::new(twin, IN | ET);
    within.readable(true);
    within.told(true);
}

#[test]
fn kernel_members_show_as_in_a_kernel_set() {
    for (watched, wanted) in [(IN, IN), (IN, IN | ET), (IN | ET, IN), (IN | ET, IN | ET)] {
        // Members before the fd, and after it.
        for late in [false, true] {
            let mut twin = Twin::new(3);
            twin.open_set(0);
            twin.open_descriptor(1);
            twin.open_counter(2, 0, false);
            let add = |twin: &Twin| {
                twin.add(0, 1, wanted, 1).unwrap();
                twin.add(0, 2, wanted, 2).unwrap();
            };
            if !late {
                add(&twin);
            }
            let within = Within::new(twin, watched);
            if late {
                add(&within.twin);
            }
            within.told(false);
            let write = || kernel::Kernel::write_to(within.twin.kernel.fd(1), 1).unwrap();
            let read = || kernel::Kernel::read_from(within.twin.kernel.fd(1)).unwrap();
            for _ in 0..3 {
                write();
                within.readable(true);
                within.told(true);
                if watched.contains(ET) {
                    within.told(false);
                }
                within.twin.wait(0, 8).unwrap();
                read();
                within.readable(false);
                within.told(false);
                within.twin.write(2, 1);
                within.readable(true);
                within.told(true);
                within.twin.wait(0, 8).unwrap();
                within.twin.read(2);
                within.twin.wait(0, 8).unwrap();
                within.readable(false);
                within.told(false);
            }
        }
    }
}

#[test]
fn nested_sets_show_as_in_a_kernel_set() {
    // The innermost member is a counter, a kernel fd, or a shared counter.
    for kind in 0..3 {
        for late in [false, true] {
            let mut twin = Twin::new(4);
            for set in [0, 1] {
                twin.open_set(set);
            }
            match kind {
                0 => twin.open_counter(2, 0, false),
                1 => twin.open_descriptor(2),
                _ => twin.open_shared_counter(2, 0, false),
            }
            let nest = |twin: &Twin| {
                twin.add(1, 2, IN, 2).unwrap();
                twin.add(0, 1, IN, 1).unwrap();
            };
            if !late {
                nest(&twin);
            }
            let within = Within::new(twin, IN | ET);
            if late {
                nest(&within.twin);
            }
            let write = || match kind {
                1 => kernel::Kernel::write_to(within.twin.kernel.fd(2), 1).unwrap(),
                _ => within.twin.write(2, 1),
            };
            let read = || match kind {
                1 => drop(kernel::Kernel::read_from(within.twin.kernel.fd(2)).unwrap()),
                _ => within.twin.read(2),
            };
            within.drain();
            for watcher in &within.watchers {
                watcher.is_told();
            }
            for _ in 0..3 {
                write();
                within.readable(true);
                within.told(true);
                assert_eq!(within.twin.data(0, 8), [1], "kind {kind}");
                assert_eq!(within.twin.data(1, 8), [2]);
                read();
                within.drain();
                within.readable(false);
                within.told(false);
            }
        }
    }
}

#[test]
fn a_set_that_is_nested_as_deep_as_the_kernel_lets_it_refuses_one_more_and_works_on() {
    in_child(refuse_a_sixth_in_a_row);
}

/// The child of a fork has the sets above until it ends. So no other test of this process may fork meanwhile.
fn refuse_a_sixth_in_a_row() {
    let set = Epoll::new().unwrap();
    let ready = set.readiness_fd().unwrap();
    // Three kernel sets above the readiness fd, which has the set's own: five in a row, as the kernel has it at most.
    let mut above = vec![Watcher::of(ready.as_raw_fd(), IN)];
    for _ in 0..2 {
        let top = above.last().unwrap().0.as_raw_fd();
        above.push(Watcher::of(top, IN));
    }
    let top = above.last().unwrap();

    // One more kernel set below. A set with nothing but user-level members needs none.
    let (below, plain) = (Epoll::new().unwrap(), Epoll::new().unwrap());
    let (read, mut write) = std::io::pipe().unwrap();
    below.add(&read, Event::new(IN, 1)).unwrap();
    let counter = EventFd::new(0).unwrap();
    plain.add(&counter, Event::new(IN, 2)).unwrap();
    for _ in 0..2 {
        assert_eq!(set.add(&below, Event::new(IN, 3)), Err(Errno::LOOP));
    }
    set.add(&plain, Event::new(IN, 4)).unwrap();
    // It gets one when it watches a kernel fd.
    assert_eq!(plain.add(&read, Event::new(IN, 5)), Err(Errno::LOOP));

    // All else goes on.
    assert_eq!(set.readiness_fd().unwrap().as_raw_fd(), ready.as_raw_fd());
    let mut events = [Event::default(); 4];
    for _ in 0..2 {
        assert_eq!(set.try_wait(&mut events), Ok(0));
        assert!(!top.is_told());
        counter.write(1).unwrap();
        assert!(top.is_told());
        assert_eq!(set.try_wait(&mut events), Ok(1));
        counter.read().unwrap();
    }
    assert_eq!(set.try_wait(&mut events), Ok(0));
    set.add(&read, Event::new(IN, 6)).unwrap();
    assert!(!top.is_told());
    write.write_all(b"x").unwrap();
    assert!(top.is_told());
    assert_eq!(set.try_wait(&mut events), Ok(1));
    assert_eq!(events[0].data(), 6);
    set.delete(&read).unwrap();
    assert!(!top.is_told());

    // Once the sets above are gone there is room.
    above.clear();
    set.add(&below, Event::new(IN, 7)).unwrap();
    assert_eq!(set.try_wait(&mut events), Ok(1));
    assert_eq!(events[0].data(), 7);
    assert!(is_readable(ready.as_raw_fd()));
}

#[test]
fn a_set_with_as_many_sets_above_as_the_kernel_lets_refuses_one_below_and_works_on() {
    in_child(refuse_one_path_too_many);
}

/// The child of a fork has the sets above until it ends. So no other test of this process may fork meanwhile.
fn refuse_one_path_too_many() {
    // One path more than the kernel allows from a file up through three sets.
    const ABOVE: usize = 101;
    let (read, mut write) = std::io::pipe().unwrap();
    let counter = EventFd::new(0).unwrap();
    let (below, set) = (Epoll::new().unwrap(), Epoll::new().unwrap());
    below.add(&read, Event::new(IN, 1)).unwrap();
    set.add(&counter, Event::new(IN, 2)).unwrap();
    let above = [(); ABOVE].map(|()| {
        let above = Epoll::new().unwrap();
        above.add(&set, Event::new(IN, 3)).unwrap();
        above
    });
    for _ in 0..2 {
        assert_eq!(set.add(&below, Event::new(IN, 4)), Err(Errno::INVAL));
    }
    let ready = |set: &Epoll| set.try_wait(&mut [Event::default(); 4]);
    assert_eq!(ready(&set), Ok(0));
    write.write_all(b"x").unwrap();
    set.add(&read, Event::new(IN, 5)).unwrap();
    assert!(above.iter().all(|above| ready(above) == Ok(1)));
    set.delete(&read).unwrap();
    counter.write(1).unwrap();
    assert!(above.iter().all(|above| ready(above) == Ok(1)));
    // With fewer there is room.
    let few: Vec<_> = above.into_iter().take(ABOVE / 4).collect();
    set.add(&below, Event::new(IN, 6)).unwrap();
    assert_eq!(ready(&set), Ok(2));
    assert!(few.iter().all(|above| ready(above) == Ok(1)));
}

#[test]
fn a_shared_counter_shows_as_a_kernel_eventfd() {
    let mut twin = Twin::new(2);
    twin.open_set(0);
    twin.open_shared_counter(1, 0, false);
    twin.add(0, 1, IN, 1).unwrap();
    let within = Within::new(twin, IN | ET);
    for _ in 0..3 {
        within.twin.write(1, 1);
        within.readable(true);
        within.told(true);
        assert_eq!(within.twin.data(0, 8), [1]);
        within.twin.read(1);
        within.drain();
        within.readable(false);
        within.told(false);
    }
}

#[test]
fn a_rotating_set_shows_each_event() {
    // A user-level source, and a kernel fd.
    let rotating = || Epoll::create(CreateFlags::ROTATE).unwrap();
    let counter = EventFd::new(0).unwrap();
    let pipe = std::io::pipe().unwrap();
    let (users, kernels) = (rotating(), rotating());
    users.add(&counter, Event::new(IN, 0)).unwrap();
    kernels.add(&pipe.0, Event::new(IN, 0)).unwrap();
    let above = Epoll::new().unwrap();
    above.add(&users, Event::new(IN, 0)).unwrap();
    above.add(&kernels, Event::new(IN, 0)).unwrap();
    for (set, is_kernels) in [(&users, false), (&kernels, true)] {
        for set in [set, &above] {
            let fd = set.readiness_fd().unwrap();
            let watcher = Watcher::of(fd.as_raw_fd(), IN | ET);
            let mut events = [Event::default(); 4];
            let drain = || while set.try_wait(&mut [Event::default(); 4]).unwrap() > 0 {};
            drain();
            watcher.is_told();
            for _ in 0..3 {
                match is_kernels {
                    false => counter.try_write(1).unwrap(),
                    true => std::io::Write::write_all(&mut &pipe.1, b"x").unwrap(),
                }
                assert!(watcher.is_told());
                assert!(is_readable(fd.as_raw_fd()));
                assert_eq!(set.try_wait(&mut events).unwrap(), 1);
                match is_kernels {
                    false => drop(counter.try_read().unwrap()),
                    true => std::io::Read::read_exact(&mut &pipe.0, &mut [0]).unwrap(),
                }
                drain();
                assert!(!is_readable(fd.as_raw_fd()));
                assert!(!watcher.is_told());
            }
        }
    }
}

#[test]
fn a_worker_that_sleeps_gets_an_event_before_a_worker_with_an_fd() {
    let limit = Duration::from_secs(60);
    let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
    let counter = EventFd::new(0).unwrap();
    rotating.add(&counter, Event::new(IN, 0)).unwrap();
    let [shown, slept_in] = [(); 2].map(|()| {
        let worker = Epoll::new().unwrap();
        worker.add(&rotating, Event::new(IN, 0)).unwrap();
        worker
    });
    let fd = shown.readiness_fd().unwrap().as_raw_fd();
    let (served, serving) = mpsc::channel();
    let (worker, _) = threads::asleep(move || {
        // Longer than the test waits: a thread checks again when its limit ends.
        let ready = slept_in.wait(&mut [Event::default(); 4], 3 * limit);
        served.send(ready).unwrap();
    });
    counter.try_write(1).unwrap();
    assert_eq!(serving.recv_timeout(limit), Ok(Ok(1)));
    worker.join().unwrap();
    counter.try_read().unwrap();
    // Without a sleeper the fd shows it.
    counter.try_write(1).unwrap();
    assert!(is_readable(fd));
    assert_eq!(shown.try_wait(&mut [Event::default(); 4]), Ok(1));
}

#[test]
fn the_fd_may_be_a_member_of_a_set_of_its_own_kind_but_not_of_its_own() {
    let [inner, outer] = [(); 2].map(|()| Epoll::new().unwrap());
    let counter = EventFd::new(0).unwrap();
    inner.add(&counter, Event::new(IN | ET, 0)).unwrap();
    let fd = inner.readiness_fd().unwrap();
    outer.add(&fd, Event::new(IN, 3)).unwrap();
    counter.try_write(1).unwrap();
    let mut events = [Event::default(); 4];
    assert_eq!(outer.try_wait(&mut events), Ok(1));
    assert_eq!(events[0].data(), 3);
    assert_eq!(inner.try_wait(&mut events), Ok(1));
    assert_eq!(outer.try_wait(&mut events), Ok(0));
    let own = inner.add(&fd, Event::new(IN, 0));
    assert_eq!(own, Err(upoll::Errno::LOOP));
    let circle = inner.add(&outer, Event::new(IN, 0));
    assert_eq!(circle, Err(upoll::Errno::LOOP));
}

#[test]
fn a_wait_that_reports_the_event_makes_the_fd_unreadable() {
    let set = Epoll::new().unwrap();
    let counter = EventFd::new(0).unwrap();
    set.add(&counter, Event::new(IN | ET, 0)).unwrap();
    let fd = set.readiness_fd().unwrap().as_raw_fd();
    for _ in 0..100 {
        thread::scope(|scope| {
            let waiter =
                scope.spawn(|| set.wait(&mut [Event::default(); 4], Duration::from_secs(60)));
            counter.try_write(1).unwrap();
            assert_eq!(waiter.join().unwrap(), Ok(1));
        });
        // The wakeup of the thread may still be in the set.
        let again = set.try_wait(&mut [Event::default(); 4]);
        assert_eq!(again, Ok(0));
        assert!(!is_readable(fd));
    }
}

#[test]
fn a_sleeper_in_a_kernel_set_is_woken_by_each_event_in_turn() {
    const ROUNDS: usize = 2000;
    let set = Epoll::new().unwrap();
    let [there, back] = [(); 2].map(|()| EventFd::new(0).unwrap());
    set.add(&there, Event::new(IN | ET, 0)).unwrap();
    for events in [IN, IN | ET] {
        let fd = set.readiness_fd().unwrap();
        let watcher = Watcher::of(fd.as_raw_fd(), events);
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    there.try_write(1).unwrap();
                    back.read().unwrap();
                }
            });
            for _ in 0..ROUNDS {
                loop {
                    assert!(watcher.wait(60_000), "an event was lost");
                    if there.try_read().is_ok() {
                        break;
                    }
                    while set.try_wait(&mut [Event::default()]).unwrap() > 0 {}
                    if there.try_read().is_ok() {
                        break;
                    }
                }
                while set.try_wait(&mut [Event::default()]).unwrap() > 0 {}
                back.write(1).unwrap();
            }
        });
    }
}

#[test]
fn the_fd_is_one_for_the_set_and_closes_with_it() {
    let set = Epoll::new().unwrap();
    let fd = set.readiness_fd().unwrap();
    let raw = fd.as_raw_fd();
    assert_eq!(set.clone().readiness_fd().unwrap().as_raw_fd(), raw);
    assert_eq!(fd.clone().as_fd().as_raw_fd(), raw);
    let watcher = Watcher::of(raw, IN);
    let counter = EventFd::new(0).unwrap();
    set.add(&counter, Event::new(IN, 0)).unwrap();
    drop(set);
    counter.try_write(1).unwrap();
    assert!(watcher.is_told(), "the fd keeps the set");
    assert_eq!(fd.epoll().try_wait(&mut [Event::default()]), Ok(1));
    drop(fd);
    counter.try_write(1).unwrap();
    assert!(!watcher.is_told());
}

#[test]
fn a_set_has_no_fd_until_it_is_asked_for_one() {
    // In a process of its own, as other tests open fds.
    in_child(|| {
        let (set, above) = (Epoll::new().unwrap(), Epoll::new().unwrap());
        let counter = EventFd::new(0).unwrap();
        let opened = opened_by(|| {
            set.add(&counter, Event::new(IN, 0)).unwrap();
            above.add(&set, Event::new(IN, 0)).unwrap();
            counter.try_write(1).unwrap();
            assert_eq!(above.wait(&mut [Event::default()], None), Ok(1));
        });
        assert_eq!(opened, []);
        let opened = opened_by(|| _ = set.readiness_fd().unwrap());
        assert!(!opened.is_empty());
        drop((set, above));
        // The library keeps what it shares among sets.
        let left = opened_by(|| _ = Epoll::new().unwrap().readiness_fd().unwrap());
        assert_eq!(left, []);
    });
}

#[test]
fn an_fd_that_the_program_has_closed_is_made_anew_and_the_file_there_left_alone() {
    let set = Epoll::new().unwrap();
    let counter = EventFd::new(0).unwrap();
    set.add(&counter, Event::new(IN, 0)).unwrap();
    let fd = set.readiness_fd().unwrap();
    let lost = fd.as_raw_fd();
    let (mine, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    // SAFETY: what a wild program does. The fd is the test's from now on.
    let reused = unsafe { OwnedFd::from_raw_fd(libc::dup2(mine.as_raw_fd(), lost)) };
    counter.try_write(1).unwrap();
    assert_eq!(set.try_wait(&mut [Event::default()]), Ok(1));
    let anew = fd.as_raw_fd();
    assert_ne!(anew, lost);
    assert!(is_readable(anew));
    counter.try_read().unwrap();
    assert_eq!(set.try_wait(&mut [Event::default()]), Ok(0));
    assert!(!is_readable(anew));
    counter.try_write(1).unwrap();
    assert!(is_readable(anew));
    drop((fd, set));
    theirs.set_nonblocking(true).unwrap();
    let read = std::io::Read::read(&mut &theirs, &mut [0]).unwrap_err();
    assert_eq!(read.kind(), std::io::ErrorKind::WouldBlock);
    std::io::Write::write_all(&mut &theirs, b"x").unwrap();
    let copy = std::os::unix::net::UnixStream::from(reused);
    std::io::Read::read_exact(&mut &copy, &mut [0]).unwrap();
}

#[test]
fn a_child_has_an_fd_of_its_own() {
    let set = Epoll::new().unwrap();
    let counter = EventFd::new(0).unwrap();
    set.add(&counter, Event::new(IN, 0)).unwrap();
    let fd = set.readiness_fd().unwrap();
    counter.try_write(1).unwrap();
    let raw = fd.as_raw_fd();
    in_child(|| {
        assert!(!is_open(raw), "a child closes its copy");
        let own = fd.as_raw_fd();
        assert!(is_readable(own));
        counter.try_read().unwrap();
        assert_eq!(set.try_wait(&mut [Event::default()]), Ok(0));
        assert!(!is_readable(own));
        counter.try_write(1).unwrap();
        assert!(is_readable(own));
        counter.try_read().unwrap();
    });
    assert!(is_readable(raw), "the child is another process");
    assert_eq!(set.try_wait(&mut [Event::default()]), Ok(1));
    counter.try_read().unwrap();
    assert_eq!(set.try_wait(&mut [Event::default()]), Ok(0));
    assert!(!is_readable(raw));
}
