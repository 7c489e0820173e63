//! Objects of all kinds by fd, with contents, and sets that watch them.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::os::fd::RawFd;

use upoll::{Errno, Event, Events};

pub fn two(make: impl Fn(*mut [RawFd; 2]) -> Result<(), Errno>) -> [RawFd; 2] {
    let mut fds = [-1; 2];
    make(&raw mut fds).unwrap();
    fds
}

pub fn pipe() -> [RawFd; 2] {
    // SAFETY: there is room for two fds.
    two(|fds| unsafe { upoll_fds::pipe2(fds, libc::O_NONBLOCK) })
}

pub fn sockets() -> [RawFd; 2] {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
    // SAFETY: there is room for two fds.
    two(|fds| unsafe { upoll_fds::socketpair(libc::AF_UNIX, kind, 0, fds) })
}

pub fn write(fd: RawFd, bytes: &[u8]) -> Result<usize, Errno> {
    // SAFETY: the bytes are live.
    unsafe { upoll_fds::write(fd, bytes.as_ptr(), bytes.len()) }
}

pub fn read(fd: RawFd) -> Vec<u8> {
    let mut bytes = vec![0; 100];
    // SAFETY: there is as much room.
    let count = unsafe { upoll_fds::read(fd, bytes.as_mut_ptr(), bytes.len()) }.unwrap();
    bytes.truncate(count);
    bytes
}

pub fn add(epfd: RawFd, fd: RawFd) {
    let event = Event::new(Events::IN, fd.try_into().unwrap());
    // SAFETY: the event is live.
    unsafe { upoll_fds::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &raw const event) }.unwrap();
}

/// Returns the data of the ready events, in ascending order.
pub fn ready(epfd: RawFd) -> Vec<u64> {
    let mut events = [Event::default(); 32];
    // SAFETY: there is as much room.
    let found = unsafe { upoll_fds::epoll_wait(epfd, events.as_mut_ptr(), 32, 0) }.unwrap();
    let mut data: Vec<_> = events[..found].iter().map(Event::data).collect();
    data.sort_unstable();
    data
}

pub fn close(fds: impl IntoIterator<Item = RawFd>) {
    for fd in fds {
        upoll_fds::close(fd).unwrap();
    }
}

/// A pipe, a pair of sockets and an eventfd, with contents, that two sets watch, and a set above these.
pub struct World {
    pub pipe: [RawFd; 2],
    pub sockets: [RawFd; 2],
    pub counter: RawFd,
    pub copy: RawFd,
    pub sets: [RawFd; 2],
    pub outer: RawFd,
}

impl World {
    pub fn new() -> Self {
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

    pub fn watched(&self) -> [RawFd; 4] {
        [self.pipe[0], self.sockets[1], self.counter, self.copy]
    }

    /// All is there, and shows in all sets.
    pub fn check_and_close(self) {
        let data = |fds: &[RawFd]| {
            let mut data: Vec<_> = fds.iter().map(|&fd| fd as u64).collect();
            data.sort_unstable();
            data
        };
        for set in self.sets {
            assert_eq!(ready(set), data(&self.watched()));
        }
        assert_eq!(ready(self.outer), data(&self.sets));
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
