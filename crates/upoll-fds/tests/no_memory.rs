//! Each allocation that a call by number makes fails once, in a process of its own. The call fails with `ENOMEM`
//! and has no effect, or does without the memory; it never ends the process. Objects that are handed over to the
//! kernel keep what they hold, in the sets that watch them, too.
#![cfg(not(loom))]

#[path = "../../upoll/tests/failing_allocations/mod.rs"]
mod failing_allocations;

use std::os::fd::RawFd;

use self::failing_allocations::{Fault, each_allocation_fails};
use upoll::{Errno, Event, Events};

fn two(make: impl Fn(*mut [RawFd; 2]) -> Result<(), Errno>) -> [RawFd; 2] {
    let mut fds = [-1; 2];
    make(&raw mut fds).unwrap();
    fds
}

fn pipe() -> [RawFd; 2] {
    // SAFETY: there is room for two numbers.
    two(|fds| unsafe { upoll_fds::pipe2(fds, libc::O_NONBLOCK) })
}

fn sockets() -> [RawFd; 2] {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
    // SAFETY: there is room for two numbers.
    two(|fds| unsafe { upoll_fds::socketpair(libc::AF_UNIX, kind, 0, fds) })
}

fn write(fd: RawFd, bytes: &[u8]) -> Result<usize, Errno> {
    // SAFETY: the bytes are live.
    unsafe { upoll_fds::write(fd, bytes.as_ptr(), bytes.len()) }
}

fn read(fd: RawFd) -> Vec<u8> {
    let mut bytes = vec![0; 100];
    // SAFETY: there is as much room.
    let count = unsafe { upoll_fds::read(fd, bytes.as_mut_ptr(), bytes.len()) }.unwrap();
    bytes.truncate(count);
    bytes
}

fn add(epfd: RawFd, fd: RawFd) {
    let event = Event::new(Events::IN, fd.try_into().unwrap());
    // SAFETY: the event is live.
    unsafe { upoll_fds::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &raw const event) }.unwrap();
}

/// What is ready, in ascending order.
fn ready(epfd: RawFd) -> Vec<u64> {
    let mut events = [Event::default(); 32];
    // SAFETY: there is as much room.
    let found = unsafe { upoll_fds::epoll_wait(epfd, events.as_mut_ptr(), 32, 0) }.unwrap();
    let mut data: Vec<_> = events[..found].iter().map(Event::data).collect();
    data.sort_unstable();
    data
}

fn close(fds: impl IntoIterator<Item = RawFd>) {
    for fd in fds {
        upoll_fds::close(fd).unwrap();
    }
}

/// A pipe, a pair of sockets and an eventfd, with contents, that two sets watch, and a set above these.
struct World {
    pipe: [RawFd; 2],
    sockets: [RawFd; 2],
    counter: RawFd,
    copy: RawFd,
    sets: [RawFd; 2],
    outer: RawFd,
}

impl World {
    fn new() -> Self {
        let counter = upoll_fds::eventfd(5, libc::EFD_NONBLOCK).unwrap();
        let world = World {
            pipe: pipe(),
            sockets: sockets(),
            counter,
            copy: upoll_fds::dup(counter).unwrap(),
            sets: [(); 2].map(|()| upoll_fds::epoll_create1(0).unwrap()),
            outer: upoll_fds::epoll_create1(0).unwrap(),
        };
        write(world.pipe[1], b"into a pipe").unwrap();
        write(world.sockets[0], b"to a socket").unwrap();
        for set in world.sets {
            for fd in world.watched() {
                add(set, fd);
            }
            add(world.outer, set);
        }
        world
    }

    fn watched(&self) -> [RawFd; 4] {
        [self.pipe[0], self.sockets[1], self.counter, self.copy]
    }

    /// All is there, and shows in all sets.
    fn check_and_close(self) {
        let numbers = |fds: &[RawFd]| {
            let mut numbers: Vec<_> = fds.iter().map(|&fd| fd as u64).collect();
            numbers.sort_unstable();
            numbers
        };
        for set in self.sets {
            assert_eq!(ready(set), numbers(&self.watched()));
        }
        assert_eq!(ready(self.outer), numbers(&self.sets));
        assert_eq!(read(self.pipe[0]), b"into a pipe");
        assert_eq!(read(self.sockets[1]), b"to a socket");
        assert_eq!(read(self.copy), 5_u64.to_ne_bytes());
        for set in self.sets {
            assert_eq!(ready(set), []);
        }
        close(self.pipe.into_iter().chain(self.sockets));
        close([self.counter, self.copy, self.outer]);
        close(self.sets);
    }
}

fn demotes(fault: &mut Fault) {
    let world = World::new();
    for fd in [
        world.pipe[0],
        world.sockets[1],
        world.counter,
        world.sets[1],
    ] {
        fault.during(|| upoll_fds::demote(fd));
        assert!(!upoll_fds::is_user_level(fd));
    }
    world.check_and_close();
    let world = World::new();
    fault.during(|| upoll_fds::demote(world.outer));
    world.check_and_close();
    let world = World::new();
    // What cannot be demoted stays as it is.
    fault.during(|| {
        upoll_fds::demote_all();
        Ok(())
    });
    world.check_and_close();
}

fn forks(fault: &mut Fault) {
    // An eventfd that cannot be demoted is shared with the child. The library keeps the records of its own fds.
    let shared = [(); 4].map(|()| upoll::EventFd::shared(0, upoll::EventFdFlags::empty()).unwrap());
    let world = World::new();
    drop(shared);
    let ended = fault.during(|| {
        // SAFETY: the child ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe { libc::_exit(7) };
        }
        let mut status = 0;
        // SAFETY: the status is written to a variable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        Ok(status)
    });
    assert!(
        libc::WIFEXITED(ended) && libc::WEXITSTATUS(ended) == 7,
        "{ended:x}"
    );
    world.check_and_close();
}

fn long_lists(fault: &mut Fault) {
    let counters: Vec<_> = (0..40)
        .map(|at| upoll_fds::eventfd(at % 2, libc::EFD_NONBLOCK).unwrap())
        .collect();
    let entry = |&fd: &RawFd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut entries: Vec<_> = counters.iter().map(entry).collect();
    // SAFETY: the entries are live.
    let found = fault.during(|| unsafe { upoll_fds::poll(entries.as_mut_ptr(), 40, 0) });
    assert_eq!(found, 20);
    assert!(
        entries
            .iter()
            .skip(1)
            .step_by(2)
            .all(|entry| entry.revents == libc::POLLIN)
    );
    close(counters);

    let bytes = [7_u8; 20];
    let mut room = [0_u8; 20];
    let list = |place: *mut u8| {
        let buffer = |at| libc::iovec {
            iov_base: place.wrapping_add(at).cast(),
            iov_len: 1,
        };
        (0..20).map(buffer).collect::<Vec<_>>()
    };
    let (from, to) = (list(bytes.as_ptr().cast_mut()), list(room.as_mut_ptr()));
    for [reader, writer] in [pipe(), sockets()] {
        // SAFETY: the buffers are live.
        let sent = fault.during(|| unsafe { upoll_fds::writev(writer, from.as_ptr(), 20) });
        assert_eq!(sent, 20);
        // SAFETY: as above.
        let received = fault.during(|| unsafe { upoll_fds::readv(reader, to.as_ptr(), 20) });
        assert_eq!(received, 20);
        close([reader, writer]);
    }
    assert_eq!(room, bytes);
}

fn closes(fault: &mut Fault) {
    let first = upoll_fds::eventfd(0, 0).unwrap();
    let more: Vec<_> = (0..20).map(|_| upoll_fds::dup(first).unwrap()).collect();
    let last = *more.last().unwrap();
    fault.during(|| upoll_fds::close_range(first.cast_unsigned(), last.cast_unsigned(), 0));
    for fd in more {
        assert_eq!(upoll_fds::close(fd), Err(Errno::BADF));
    }
}

// One test: others would allocate meanwhile.
#[test]
fn an_allocation_that_fails_is_an_error_and_loses_nothing() {
    each_allocation_fails("long lists", long_lists);
    each_allocation_fails("closes", closes);
    each_allocation_fails("demotes", demotes);
    each_allocation_fails("forks", forks);
}
