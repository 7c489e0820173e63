//! Sets go on to watch an object that is demoted, or that cannot be.
#![cfg(not(upoll_loom))]

mod world;

use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use self::world::{add, close, ready, write};
use upoll::{Event, Events};

/// One test at a time: each demotes the objects of the process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn eventfd() -> RawFd {
    upoll_fds::eventfd(0, libc::EFD_NONBLOCK).unwrap()
}

fn set() -> RawFd {
    upoll_fds::epoll_create1(0).unwrap()
}

/// The kernel refuses the fd by which the outermost of five sets learns of the innermost one, if that is the kernel's
/// and the others are not.
#[test]
fn sets_above_each_other_watch_what_is_demoted() {
    let _alone = alone();
    for depth in 1..=5 {
        let counter = eventfd();
        let sets: Vec<_> = (0..depth).map(|_| set()).collect();
        add(sets[0], counter);
        for pair in sets.windows(2) {
            add(pair[1], pair[0]);
        }
        upoll_fds::demote_all();
        assert!(sets.iter().all(|&set| ready(set).is_empty()));
        write(counter, &1_u64.to_ne_bytes()).unwrap();
        for (at, &set) in sets.iter().enumerate().rev() {
            let below = if at == 0 { counter } else { sets[at - 1] };
            assert_eq!(ready(set), [below as u64], "{at} of {depth}");
        }
        close(sets);
        close([counter]);
    }
}

/// The calls that a test makes, of the library or of Linux.
struct Calls {
    eventfd: fn(u32, i32) -> RawFd,
    pipe: fn() -> [RawFd; 2],
    set: fn() -> RawFd,
    dup: fn(RawFd) -> RawFd,
    add: fn(RawFd, RawFd, Event),
    ready: fn(RawFd) -> Vec<u64>,
    write: fn(RawFd, &[u8]),
    close: fn(RawFd),
}

const UPOLLS: Calls = Calls {
    eventfd: |count, flags| upoll_fds::eventfd(count, flags).unwrap(),
    pipe: world::pipe,
    set,
    dup: |fd| upoll_fds::dup(fd).unwrap(),
    add: |epfd, fd, event| {
        // SAFETY: the event is live.
        unsafe { upoll_fds::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &raw const event) }.unwrap();
    },
    ready,
    write: |fd, bytes| assert_eq!(write(fd, bytes), Ok(bytes.len())),
    close: |fd| upoll_fds::close(fd).unwrap(),
};

const LINUXS: Calls = Calls {
    // SAFETY: no pointers are involved.
    eventfd: |count, flags| opened(unsafe { libc::eventfd(count, flags) }),
    pipe: || {
        let mut ends = [-1; 2];
        // SAFETY: there is room for two fds.
        opened(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK) });
        ends
    },
    // SAFETY: no pointers are involved.
    set: || opened(unsafe { libc::epoll_create1(0) }),
    // SAFETY: no pointers are involved.
    dup: |fd| opened(unsafe { libc::dup(fd) }),
    add: |epfd, fd, event| {
        let mut event = libc::epoll_event {
            events: event.events().bits(),
            u64: event.data(),
        };
        // SAFETY: the event is live.
        opened(unsafe { libc::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &raw mut event) });
    },
    ready: |epfd| {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
        // SAFETY: there is as much room.
        let found = opened(unsafe { libc::epoll_wait(epfd, events.as_mut_ptr(), 32, 0) });
        let found = usize::try_from(found).unwrap();
        let mut data: Vec<_> = events[..found].iter().map(|event| event.u64).collect();
        data.sort_unstable();
        data
    },
    write: |fd, bytes| {
        // SAFETY: the bytes are live.
        let written = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        assert_eq!(usize::try_from(written), Ok(bytes.len()));
    },
    // SAFETY: it was opened by the test.
    close: |fd| assert_eq!(opened(unsafe { libc::close(fd) }), 0),
};

fn opened(result: i32) -> i32 {
    assert!(result >= 0, "{}", std::io::Error::last_os_error());
    result
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Eventfd,
    /// The reader of a pipe with bytes, whose writer is closed: it gets a new pipe in the kernel.
    Pipe,
    Set,
}

/// Returns the interests that a set reports in an object which it watches under an fd and under two copies, for the events
/// of each. Only the fd `open` is still open. `demote` is called before the object becomes ready.
fn of_closed_fds(
    calls: &Calls,
    kind: Kind,
    events: [Events; 3],
    open: usize,
    demote: impl FnOnce(RawFd),
) -> Vec<u64> {
    let epfd = (calls.set)();
    let counter = (calls.eventfd)(0, libc::EFD_NONBLOCK);
    let object = match kind {
        Kind::Eventfd => (calls.dup)(counter),
        Kind::Pipe => {
            let [reader, writer] = (calls.pipe)();
            (calls.write)(writer, b"x");
            (calls.close)(writer);
            reader
        }
        Kind::Set => {
            let inner = (calls.set)();
            (calls.add)(inner, counter, Event::new(Events::IN, 9));
            inner
        }
    };
    let fds = [object, (calls.dup)(object), (calls.dup)(object)];
    for ((data, fd), events) in (0..).zip(fds).zip(events) {
        (calls.add)(epfd, fd, Event::new(events, data));
    }
    for (at, &fd) in fds.iter().enumerate() {
        if at != open {
            (calls.close)(fd);
        }
    }
    demote(fds[open]);
    (calls.write)(counter, &1_u64.to_ne_bytes());
    let found = (calls.ready)(epfd);
    for fd in [fds[open], counter, epfd] {
        (calls.close)(fd);
    }
    found
}

/// An interest whose fd was closed, while a copy keeps the object open, stays. The kernel's set watches the object under
/// each fd once, and the open one has an interest of its own.
#[test]
fn interests_of_closed_fds_are_kept_beside_that_of_the_open_one() {
    let _alone = alone();
    let plain = [Events::IN; 3];
    let exclusive = [Events::IN, Events::IN | Events::EXCLUSIVE, Events::IN];
    let other = [Events::OUT, Events::IN | Events::ET, Events::empty()];
    for (kind, all) in [
        (Kind::Eventfd, &[plain, exclusive, other][..]),
        (Kind::Pipe, &[plain, exclusive, other]),
        (Kind::Set, &[plain, other]),
    ] {
        for &events in all {
            for open in 0..3 {
                let expected = of_closed_fds(&LINUXS, kind, events, open, |_| {});
                let ways: [fn(RawFd); 2] = [
                    |fd| upoll_fds::demote(fd).unwrap(),
                    |_| upoll_fds::demote_all(),
                ];
                for demote in ways {
                    let found = of_closed_fds(&UPOLLS, kind, events, open, |fd| {
                        demote(fd);
                        assert!(!upoll_fds::is_user_level(fd));
                    });
                    assert_eq!(found, expected, "{kind:?} {events:?} {open}");
                }
            }
        }
    }
}

/// The interest of a closed fd does not keep a copy from being added.
#[test]
fn a_copy_can_be_added_beside_the_interest_of_a_closed_fd() {
    let _alone = alone();
    let with_copy = |calls: &Calls, demote: &dyn Fn(RawFd)| {
        let (counter, epfd) = ((calls.eventfd)(1, libc::EFD_NONBLOCK), (calls.set)());
        (calls.add)(epfd, counter, Event::new(Events::IN, 1));
        let copy = (calls.dup)(counter);
        (calls.close)(counter);
        demote(copy);
        (calls.add)(epfd, copy, Event::new(Events::IN, 2));
        let found = (calls.ready)(epfd);
        (calls.close)(copy);
        let left = (calls.ready)(epfd);
        (calls.close)(epfd);
        (found, left)
    };
    let expected = with_copy(&LINUXS, &|_| {});
    let found = with_copy(&UPOLLS, &|fd| upoll_fds::demote(fd).unwrap());
    assert_eq!(found, expected);
}

/// Takes all fds but `left`. Returns those taken.
fn take_fds(left: usize) -> Vec<RawFd> {
    let mut taken = Vec::new();
    loop {
        // SAFETY: no pointers are involved.
        match unsafe { libc::dup(0) } {
            -1 => break,
            fd => taken.push(fd),
        }
    }
    give_fds_back(taken.drain(taken.len() - left..));
    taken
}

fn give_fds_back(taken: impl IntoIterator<Item = RawFd>) {
    for fd in taken {
        // SAFETY: it was opened here.
        assert_eq!(unsafe { libc::close(fd) }, 0);
    }
}

/// The interest of the closed fd takes an fd for a moment. Without one the object stays as it is.
#[test]
fn an_object_with_the_interest_of_a_closed_fd_takes_a_free_fd_to_be_demoted() {
    let _alone = alone();
    for left in 0..4 {
        let mut result = Ok(());
        let found = of_closed_fds(&UPOLLS, Kind::Eventfd, [Events::IN; 3], 1, |fd| {
            let taken = take_fds(left);
            result = upoll_fds::demote(fd);
            give_fds_back(taken);
            assert_eq!(upoll_fds::is_user_level(fd), result.is_err());
        });
        assert_eq!(found, [0, 1, 2], "{left}");
        assert!(
            matches!(result, Ok(()) | Err(upoll::Errno::MFILE)),
            "{result:?}"
        );
        assert!(left > 0 || result.is_err());
    }
}

/// A set of eventfds that gets its first kernel member without a free fd is left to the kernel. The interest of the closed fd
/// takes the fd that has none.
#[test]
fn a_set_that_is_demoted_without_a_free_fd_keeps_the_interests_of_open_fds_under_these() {
    let _alone = alone();
    let with_a_kernel_member = |calls: &Calls, without: [usize; 2]| {
        let counter = (calls.eventfd)(1, libc::EFD_NONBLOCK);
        let fds = [counter, (calls.dup)(counter), (calls.dup)(counter)];
        let (epfd, member) = ((calls.set)(), (LINUXS.eventfd)(1, libc::EFD_NONBLOCK));
        for (at, data) in [(0, 0), (1, 1), (2, 2)] {
            if at != without[0] {
                (calls.add)(epfd, fds[at], Event::new(Events::IN, data));
            }
        }
        let taken = take_fds(0);
        (calls.close)(fds[without[1]]);
        // SAFETY: no pointers are involved.
        let last = opened(unsafe { libc::dup(0) });
        (calls.add)(epfd, member, Event::new(Events::IN, 3));
        give_fds_back(taken);
        give_fds_back([last]);
        let found = (calls.ready)(epfd);
        for at in (0..3).filter(|&at| at != without[1]) {
            (calls.close)(fds[at]);
        }
        let left = (calls.ready)(epfd);
        give_fds_back([member]);
        (calls.close)(epfd);
        (found, left)
    };
    for without in [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]] {
        let expected = with_a_kernel_member(&LINUXS, without);
        let found = with_a_kernel_member(&UPOLLS, without);
        assert_eq!(found, expected, "{without:?}");
    }
}

/// A set that watches an eventfd with a maximum is made anew in the child of a fork.
#[test]
fn a_child_has_the_interests_of_closed_fds_beside_that_of_the_open_one() {
    let _alone = alone();
    for open in 0..3 {
        let (counter, epfd) = (eventfd(), set());
        let maximum = 5_u64;
        let place = (&raw const maximum).expose_provenance();
        // SAFETY: the maximum is live.
        unsafe { upoll_fds::ioctl(counter, upoll_fds::EFD_IOC_SET_MAXIMUM, place) }.unwrap();
        let fds = [counter, (UPOLLS.dup)(counter), (UPOLLS.dup)(counter)];
        for (data, fd) in (0..).zip(fds) {
            (UPOLLS.add)(epfd, fd, Event::new(Events::IN, data));
        }
        for (at, &fd) in fds.iter().enumerate() {
            if at != open {
                close([fd]);
            }
        }
        // SAFETY: the child makes calls of the library alone, and ends.
        let child = opened(unsafe { libc::fork() });
        if child == 0 {
            write(fds[open], &1_u64.to_ne_bytes()).unwrap();
            let found = ready(epfd);
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(found != [0, 1, 2])) };
        }
        let mut status = -1;
        // SAFETY: the status has a place.
        let ended = opened(unsafe { libc::waitpid(child, &raw mut status, 0) });
        assert_eq!((ended, status), (child, 0), "{open}");
        assert_eq!(ready(epfd), [0, 1, 2]);
        close([fds[open], epfd]);
    }
}

/// A set keeps an interest that it could not give up: the interest is not added anew, which would report it once more.
#[test]
fn interests_in_an_object_that_lacks_fds_to_be_demoted_stay_as_they_are() {
    let _alone = alone();
    let (counter, epfd) = (eventfd(), set());
    // A set with no other members than eventfds is demoted with them, which takes no fd.
    let [reader, writer] = world::pipe();
    add(epfd, reader);
    let event = Event::new(Events::IN | Events::ET, 7);
    // SAFETY: the event is live.
    unsafe { upoll_fds::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, counter, &raw const event) }.unwrap();
    write(counter, &1_u64.to_ne_bytes()).unwrap();
    assert_eq!(ready(epfd), [7]);
    let taken = take_fds(0);
    let result = upoll_fds::demote(counter);
    upoll_fds::demote_all();
    give_fds_back(taken);
    assert_eq!(result, Err(upoll::Errno::MFILE));
    assert!(upoll_fds::is_user_level(counter));
    assert_eq!(ready(epfd), []);
    write(counter, &1_u64.to_ne_bytes()).unwrap();
    assert_eq!(ready(epfd), [7]);
    close([counter, epfd, reader, writer]);
}

/// The limit of fds leaves none for the kernel set that a rotating set needs for a source of the kernel's.
#[test]
fn a_rotating_set_keeps_its_source_without_an_fd_for_another_one() {
    const ROTATE: i32 = 1;
    let _alone = alone();
    let (source, worker) = (eventfd(), set());
    let rotating = upoll_fds::epoll_create1(ROTATE).unwrap();
    add(rotating, source);
    let event = Event::new(Events::IN, 7);
    // SAFETY: the event is live.
    unsafe { upoll_fds::epoll_ctl(worker, libc::EPOLL_CTL_ADD, rotating, &raw const event) }
        .unwrap();
    let taken = take_fds(0);
    let result = upoll_fds::demote(source);
    give_fds_back(taken);
    assert_eq!(result, Err(upoll::Errno::MFILE));
    write(source, &1_u64.to_ne_bytes()).unwrap();
    assert_eq!(ready(worker), [7]);
    upoll_fds::demote(source).unwrap();
    assert_eq!(ready(worker), [7]);
    close([source, worker, rotating]);
}
