//! The kernel's limit of watches (`fs.epoll.max_user_watches`) is reached before each watch that a call asks it for.
//! The call fails with `ENOSPC` and has no effect, or does without the watch; what was watched before stays so.
//!
//! The limit of the machine stays as it is: a filter has the test make each `epoll_ctl(2)` in the caller's place
//! and count. As in the kernel all other errors come first.
#![cfg(not(upoll_loom))]

mod notified;
mod watches;
mod world;

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use self::notified::{Answer, answered};
use self::watches::{EPOLL_CTL, Limit, alone, each_watch_is_missing, make, open_fds};
use self::world::{World, close, ready, write};
use upoll::{CreateFlags, Epoll, Errno, Event, Events};

fn ctl(epfd: RawFd, op: i32, fd: RawFd) -> Result<(), Errno> {
    let event = Event::new(Events::IN, fd.try_into().unwrap());
    // SAFETY: the event is live.
    unsafe { upoll_fds::epoll_ctl(epfd, op, fd, &raw const event) }
}

fn add(epfd: RawFd, fd: RawFd) -> Result<(), Errno> {
    ctl(epfd, libc::EPOLL_CTL_ADD, fd)
}

/// An eventfd of the kernel's that is ready.
fn of_the_kernel() -> RawFd {
    // SAFETY: no pointers are involved.
    unsafe { libc::eventfd(1, libc::EFD_NONBLOCK) }
}

fn user_level() -> RawFd {
    upoll_fds::eventfd(1, libc::EFD_NONBLOCK).unwrap()
}

fn data(fd: RawFd) -> u64 {
    fd.try_into().unwrap()
}

/// Adds `fd` within the limit. If that fails the set is as it was, and the fd can be added later.
fn add_within(limit: &Limit, epfd: RawFd, fd: RawFd) {
    let before = ready(epfd);
    match limit.during(|| add(epfd, fd)) {
        Ok(()) => {}
        Err(errno) => {
            assert_eq!(errno, Errno::NOSPC);
            assert_eq!(ready(epfd), before);
            let missing = limit
                .during(|| [libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_DEL].map(|op| ctl(epfd, op, fd)));
            assert_eq!(missing, [Err(Errno::NOENT); 2]);
            add(epfd, fd).unwrap();
        }
    }
    assert_eq!(add(epfd, fd), Err(Errno::EXIST));
    let mut now = before;
    now.push(data(fd));
    now.sort_unstable();
    assert_eq!(ready(epfd), now);
}

#[test]
fn an_add_of_a_kernel_fd_fails_and_has_no_effect() {
    let _alone = alone();
    each_watch_is_missing(|limit| {
        let (set, kernels, ours) = (
            upoll_fds::epoll_create1(0).unwrap(),
            of_the_kernel(),
            user_level(),
        );
        add(set, ours).unwrap();
        add_within(limit, set, kernels);
        close([set, ours, kernels]);
    });
}

#[test]
fn an_add_to_a_set_that_the_kernel_serves_fails_and_has_no_effect() {
    let _alone = alone();
    each_watch_is_missing(|limit| {
        let [first, second, ours] = [of_the_kernel(), of_the_kernel(), user_level()];
        let set = upoll_fds::epoll_create1(0).unwrap();
        add(set, first).unwrap();
        add_within(limit, set, second);
        add_within(limit, set, ours);
        close([set, first, second, ours]);
    });
}

#[test]
fn an_add_of_a_set_fails_and_has_no_effect() {
    let _alone = alone();
    each_watch_is_missing(|limit| {
        let [outer, inner] = [0; 2].map(|flags| upoll_fds::epoll_create1(flags).unwrap());
        let [ours, kernels, other] = [user_level(), of_the_kernel(), user_level()];
        add(inner, ours).unwrap();
        add(inner, kernels).unwrap();
        add(outer, other).unwrap();
        add_within(limit, outer, inner);
        close([outer, inner, ours, kernels, other]);
    });
}

fn wait(epfd: RawFd, limit: i32) -> Result<usize, Errno> {
    let mut events = [Event::default(); 4];
    // SAFETY: there is as much room.
    unsafe { upoll_fds::epoll_wait(epfd, events.as_mut_ptr(), 4, limit) }
}

/// Sets, one above the other, whose members are ready.
struct Tower {
    outer: RawFd,
    inner: RawFd,
    kernels: RawFd,
    ours: RawFd,
    /// The library's.
    opened: Vec<RawFd>,
}

impl Tower {
    fn new() -> Self {
        let before = open_fds();
        let [outer, inner] = [0; 2].map(|flags| upoll_fds::epoll_create1(flags).unwrap());
        let [kernels, ours] = [of_the_kernel(), user_level()];
        add(inner, kernels).unwrap();
        add(inner, ours).unwrap();
        add(outer, inner).unwrap();
        let known = [outer, inner, kernels, ours];
        let mut opened = open_fds();
        opened.retain(|fd| !before.contains(fd) && !known.contains(fd));
        Tower {
            outer,
            inner,
            kernels,
            ours,
            opened,
        }
    }

    /// Waits in both, twice, when the last check of the library's own fds is old: members are found, or it fails
    /// with `ENOSPC`. Returns how often it fails.
    fn wait(&self) -> usize {
        std::thread::sleep(Duration::from_millis(20));
        let has_failed = |set| match wait(set, 0) {
            Ok(found) => {
                assert!(found > 0);
                false
            }
            Err(errno) => {
                assert_eq!(errno, Errno::NOSPC);
                true
            }
        };
        let sets = [self.outer, self.inner, self.outer, self.inner];
        sets.into_iter().filter(|&set| has_failed(set)).count()
    }

    /// Both hear of each member.
    fn check_and_close(self) {
        let empty = |fd| assert_eq!(world::read(fd), 1_u64.to_ne_bytes());
        let mut both = [data(self.kernels), data(self.ours)];
        both.sort_unstable();
        assert_eq!(ready(self.outer), [data(self.inner)]);
        assert_eq!(ready(self.inner), both);
        for fd in [self.kernels, self.ours] {
            empty(fd);
        }
        for set in [self.outer, self.inner] {
            assert_eq!(wait(set, 5), Ok(0));
        }
        for fd in [self.kernels, self.ours] {
            assert_eq!(ready(self.outer), []);
            assert_eq!(ready(self.inner), []);
            write(fd, &1_u64.to_ne_bytes()).unwrap();
            assert_eq!(ready(self.outer), [data(self.inner)]);
            assert_eq!(ready(self.inner), [data(fd)]);
            empty(fd);
        }
        close([self.outer, self.inner, self.kernels, self.ours]);
    }
}

/// The library replaces its kernel sets that the program has closed, and adds all their members again. A member
/// that the kernel refuses for now is added later.
#[test]
fn sets_whose_fds_were_closed_lack_nothing_as_soon_as_there_are_watches() {
    let _alone = alone();
    each_watch_is_missing(|limit| {
        let tower = Tower::new();
        for &fd in &tower.opened {
            // SAFETY: the library copes with that.
            unsafe { libc::close(fd) };
        }
        let failures = limit.during(|| tower.wait());
        assert!(failures == 0 || limit.ran_out.load(Ordering::SeqCst) > 0);
        tower.check_and_close();
    });
}

/// The set above has all of its fds, and cannot hear of what happens below.
#[test]
fn a_set_fails_as_long_as_one_below_lacks_watches() {
    let _alone = alone();
    each_watch_is_missing(|limit| {
        let [outer, middle, inner] = [0; 3].map(|flags| upoll_fds::epoll_create1(flags).unwrap());
        let kernels = of_the_kernel();
        world::read(kernels);
        add(inner, kernels).unwrap();
        let before = open_fds();
        add(middle, inner).unwrap();
        let mut of_the_middle = open_fds();
        of_the_middle.retain(|fd| !before.contains(fd));
        add(outer, middle).unwrap();
        assert_eq!(ready(outer), []);
        for fd in of_the_middle {
            // SAFETY: the library copes with that.
            unsafe { libc::close(fd) };
        }
        write(kernels, &1_u64.to_ne_bytes()).unwrap();
        // Longer than between two checks of sets below.
        std::thread::sleep(Duration::from_millis(600));
        for answer in limit.during(|| [(); 3].map(|()| wait(outer, 0))) {
            assert!([Ok(1), Err(Errno::NOSPC)].contains(&answer), "{answer:?}");
        }
        assert_eq!(ready(outer), [data(middle)]);
        close([outer, middle, inner, kernels]);
    });
}

/// The kernel fails with `EEXIST` where the library checks that a set is its own. Here the call
/// fails with `ENOSPC` instead.
#[test]
fn sets_that_were_taken_for_lost_work_on() {
    let _alone = alone();
    let tower = Tower::new();
    let failures = answered(
        EPOLL_CTL,
        |call| match i32::try_from(call.arguments()[1]).unwrap() {
            libc::EPOLL_CTL_ADD => Answer::Error(libc::ENOSPC),
            _ => Answer::Kernels,
        },
        || tower.wait(),
    );
    assert!(failures > 0);
    tower.check_and_close();
}

/// As the kernel's own sets.
#[test]
fn the_kernel_fails_alike() {
    let _alone = alone();
    let kernels = of_the_kernel();
    // SAFETY: no pointers are involved.
    let set = unsafe { libc::epoll_create1(0) };
    let limit = Limit {
        watches: 0,
        ran_out: AtomicUsize::new(0),
    };
    let answers = limit.during(|| {
        [
            libc::EPOLL_CTL_ADD,
            libc::EPOLL_CTL_MOD,
            libc::EPOLL_CTL_DEL,
        ]
        .map(|op| ctl(set, op, kernels))
    });
    assert_eq!(
        answers,
        [Err(Errno::NOSPC), Err(Errno::NOENT), Err(Errno::NOENT)]
    );
    close([set, kernels]);
}

/// All sets go on to watch the objects, whether these are demoted or not.
#[test]
fn a_demotion_fails_or_keeps_every_interest() {
    let _alone = alone();
    each_watch_is_missing(|limit| {
        let world = World::new();
        for fd in [
            world.pipe[0],
            world.sockets[1],
            world.counter,
            world.sets[1],
        ] {
            if let Err(errno) = limit.during(|| upoll_fds::demote(fd)) {
                assert_eq!(errno, Errno::NOSPC);
                assert!(upoll_fds::is_user_level(fd));
            }
        }
        world.check_and_close();
        let world = World::new();
        if let Err(errno) = limit.during(|| upoll_fds::demote(world.outer)) {
            assert_eq!(errno, Errno::NOSPC);
        }
        world.check_and_close();
        let world = World::new();
        limit.during(upoll_fds::demote_all);
        world.check_and_close();
    });
}

/// An object whose other end is closed gets a new file of the kernel's.
#[test]
fn a_demotion_of_a_lone_end_fails_or_keeps_every_interest() {
    let _alone = alone();
    // The watch of the old file goes with that, which is not counted here: none, or more than enough.
    for watches in [0, 8] {
        let limit = &Limit {
            watches,
            ran_out: AtomicUsize::new(0),
        };
        let [reader, writer] = world::pipe();
        let [one, other] = world::sockets();
        write(writer, b"left").unwrap();
        write(other, b"left").unwrap();
        upoll_fds::close(writer).unwrap();
        upoll_fds::close(other).unwrap();
        let set = upoll_fds::epoll_create1(0).unwrap();
        for fd in [reader, one] {
            add(set, fd).unwrap();
            if let Err(errno) = limit.during(|| upoll_fds::demote(fd)) {
                assert_eq!(errno, Errno::NOSPC);
                assert!(upoll_fds::is_user_level(fd));
            }
            let mut events = [Event::default(); 4];
            // SAFETY: there is as much room.
            let found = unsafe { upoll_fds::epoll_wait(set, events.as_mut_ptr(), 4, 0) };
            assert!(found.is_ok_and(|found| {
                events[..found].iter().any(|event| {
                    event.data() == data(fd) && event.events() == Events::IN | Events::HUP
                })
            }));
            assert_eq!(world::read(fd), b"left");
        }
        close([reader, one, set]);
        assert_eq!(limit.ran_out.load(Ordering::SeqCst) > 0, watches == 0);
    }
}

/// A thread that sleeps in the kernel for want of other ways is woken all the same.
#[test]
fn waits_do_without() {
    let _alone = alone();
    each_watch_is_missing(|limit| {
        let [empty, kernels] = [upoll_fds::eventfd(0, 0).unwrap(), of_the_kernel()];
        let mut value = 0_u64;
        // SAFETY: there is room for the value.
        unsafe { upoll_fds::read(kernels, (&raw mut value).cast(), 8) }.unwrap();
        let found = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(20));
                upoll_fds::eventfd_write(empty, 1).unwrap();
            });
            limit.during(|| {
                let mut entries = [empty, kernels].map(|fd| libc::pollfd {
                    fd,
                    events: libc::POLLIN,
                    revents: 0,
                });
                // SAFETY: the entries are live.
                let found = unsafe { upoll_fds::poll(entries.as_mut_ptr(), 2, -1) };
                (found, entries[0].revents)
            })
        });
        assert_eq!(found, (Ok(1), libc::POLLIN));
        close([empty, kernels]);
    });
}

/// A worker's set gives up its watch of the source for one of the new interest.
#[test]
fn a_change_of_a_rotating_sets_source_fails_and_has_no_effect() {
    let _alone = alone();
    let kernels = of_the_kernel();
    // SAFETY: it is open until the end of the test.
    let source = unsafe { BorrowedFd::borrow_raw(kernels) };
    let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
    let worker = Epoll::new().unwrap();
    worker.add(&rotating, Event::new(Events::IN, 0)).unwrap();
    rotating.add(&source, Event::new(Events::IN, 1)).unwrap();
    let mut is_left = false;
    let changed = answered(
        EPOLL_CTL,
        |call| match i32::try_from(call.arguments()[1]).unwrap() {
            // Another process gets the watch that was given up.
            libc::EPOLL_CTL_ADD if !is_left && make(call, libc::EPOLL_CTL_ADD).is_ok() => {
                is_left = true;
                make(call, libc::EPOLL_CTL_DEL).unwrap();
                Answer::Error(libc::ENOSPC)
            }
            _ => Answer::Kernels,
        },
        || rotating.modify(&source, Event::new(Events::OUT, 2)),
    );
    assert_eq!(changed, Err(Errno::NOSPC));
    let mut events = [Event::default(); 4];
    assert_eq!(worker.try_wait(&mut events), Ok(1));
    assert_eq!(rotating.try_wait(&mut events), Ok(1));
    assert_eq!(events[0].data(), 1);
    close([kernels]);
}
