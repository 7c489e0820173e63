//! The program closes the fds that the library has open for rotating sets, and reuses them.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod open_fds;
mod threads;

use std::io::{PipeReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::thread;
use std::time::{Duration, Instant};

use open_fds::{check_untouched, close_all_but, open_everywhere, open_in, other_set};
use threads::{in_child, tid, until_asleep};
use upoll::{CreateFlags, Epoll, Event, EventFd, Events, PollFd};

const LONG: Duration = Duration::from_secs(60);

/// A rotating set with a kernel source, and one waiter of each kind.
struct Rotating {
    set: Epoll,
    worker: Epoll,
    reader: PipeReader,
    writer: std::io::PipeWriter,
}

impl Rotating {
    fn new() -> Self {
        let (reader, writer) = std::io::pipe().unwrap();
        let set = Epoll::create(CreateFlags::ROTATE).unwrap();
        set.add(&reader.as_fd(), Event::new(Events::IN, 1)).unwrap();
        let worker = Epoll::new().unwrap();
        worker.add(&set, Event::new(Events::IN, 2)).unwrap();
        Rotating {
            set,
            worker,
            reader,
            writer,
        }
    }

    fn kept(&self) -> [RawFd; 2] {
        [self.reader.as_raw_fd(), self.writer.as_raw_fd()]
    }

    fn wait(&self) {
        let mut events = [Event::default(); 4];
        assert_eq!(self.set.wait(&mut events, LONG), Ok(1));
        assert_eq!(events[0].data(), 1);
    }

    fn wait_as_worker(&self) {
        let mut events = [Event::default(); 4];
        loop {
            assert_eq!(self.worker.wait(&mut events, LONG), Ok(1));
            assert_eq!(events[0].data(), 2);
            if self.set.wait(&mut events, Duration::ZERO) == Ok(1) {
                return;
            }
        }
    }

    fn poll(&self) {
        let mut fds = [PollFd::new(&self.set, Events::IN)];
        assert_eq!(upoll::poll(&mut fds, LONG), Ok(1));
    }

    /// Harvests until the event is found, without a limit.
    fn look(&self) {
        let end = Instant::now() + LONG;
        let mut events = [Event::default(); 4];
        while self.set.wait(&mut events, Duration::ZERO) != Ok(1) {
            assert!(Instant::now() < end);
        }
    }

    /// Polls until the event is found, without a limit.
    fn poll_now(&self) {
        let end = Instant::now() + LONG;
        let mut fds = [PollFd::new(&self.set, Events::IN)];
        while upoll::poll(&mut fds, Duration::ZERO) != Ok(1) {
            assert!(Instant::now() < end);
        }
    }

    const WAITS: [fn(&Self); 3] = [Self::wait, Self::wait_as_worker, Self::poll];
    const LOOKS: [fn(&Self); 2] = [Self::look, Self::poll_now];

    /// For each way to wait: a thread sleeps, `meanwhile` runs, and an event wakes it.
    fn check_sleepers(&self, meanwhile: impl Fn()) {
        for wait in Self::WAITS {
            thread::scope(|scope| {
                let (send, receive) = std::sync::mpsc::channel();
                let sleeper = scope.spawn(move || {
                    send.send(tid()).unwrap();
                    wait(self);
                });
                until_asleep(receive.recv().unwrap());
                meanwhile();
                (&self.writer).write_all(b"x").unwrap();
                sleeper.join().unwrap();
            });
            (&self.reader).read_exact(&mut [0]).unwrap();
        }
    }

    /// For each way to check: `before` runs, and an event is found.
    fn check_all(&self, before: impl Fn()) {
        for wait in Self::WAITS.into_iter().chain(Self::LOOKS) {
            before();
            (&self.writer).write_all(b"x").unwrap();
            wait(self);
            (&self.reader).read_exact(&mut [0]).unwrap();
        }
        self.check_sleepers(before);
    }
}

#[test]
fn a_rotating_set_goes_on_after_all_fds_were_closed() {
    in_child(|| {
        let rotating = Rotating::new();
        rotating.check_all(|| ());
        rotating.check_all(|| close_all_but(&rotating.kept()));
        rotating.check_all(|| ());
    });
}

#[test]
fn a_rotating_set_leaves_alone_what_took_the_place_of_closed_fds() {
    in_child(|| {
        let rotating = Rotating::new();
        rotating.check_all(|| ());
        close_all_but(&rotating.kept());
        let others = open_everywhere(&rotating.kept());
        rotating.check_all(|| ());
        assert_eq!(rotating.set.len(), 1);
        drop(rotating);
        check_untouched(others);
    });
}

#[test]
fn each_fd_of_a_rotating_set_that_is_replaced_alone_is_made_anew() {
    in_child(|| {
        let mut at = 0;
        loop {
            let rotating = Rotating::new();
            rotating.check_all(|| ());
            let Some(own) = open_in(256..600).nth(at) else {
                assert!(at > 3, "only {at} fds of the library's own");
                break;
            };
            let other = other_set(rotating.reader.as_raw_fd());
            // SAFETY: the fd is an own fd of the library.
            assert_eq!(unsafe { libc::dup2(other, own) }, own);
            rotating.check_all(|| ());
            (&rotating.writer).write_all(b"x").unwrap();
            drop(rotating.set);
            drop(rotating.worker);
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
            // SAFETY: there is room for two events.
            unsafe {
                assert_eq!(libc::epoll_wait(own, events.as_mut_ptr(), 2, 0), 1);
                assert_eq!({ events[0].u64 }, 7);
                assert_eq!(libc::close(own), 0);
                assert_eq!(libc::close(other), 0);
            }
            at += 1;
        }
    });
}

#[test]
fn a_rotating_set_with_a_user_level_source_goes_on_after_all_fds_were_closed() {
    in_child(|| {
        let counter = EventFd::new(0).unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
        rotating.add(&counter, Event::new(Events::IN, 1)).unwrap();
        // The worker's thread sleeps in the kernel.
        let worker = Epoll::new().unwrap();
        worker.add(&rotating, Event::new(Events::IN, 2)).unwrap();
        worker
            .add(&reader.as_fd(), Event::new(Events::IN, 3))
            .unwrap();
        for _ in 0..3 {
            thread::scope(|scope| {
                let (send, receive) = std::sync::mpsc::channel();
                let worker = &worker;
                let sleeper = scope.spawn(move || {
                    send.send(tid()).unwrap();
                    let mut events = [Event::default(); 4];
                    assert_eq!(worker.wait(&mut events, LONG), Ok(1));
                    assert_eq!(events[0].data(), 2);
                });
                until_asleep(receive.recv().unwrap());
                close_all_but(&[reader.as_raw_fd(), writer.as_raw_fd()]);
                counter.write(1).unwrap();
                sleeper.join().unwrap();
            });
            let mut events = [Event::default(); 4];
            assert_eq!(rotating.wait(&mut events, LONG), Ok(1));
            assert_eq!(counter.read(), Ok(1));
        }
    });
}
