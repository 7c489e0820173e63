//! Objects that are demoted while other threads read, write and wait. As with one kernel object
//! throughout, no byte is lost or duplicated, the order is kept, and all waiters are woken.

mod returns;

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use returns::returns;
use upoll::{Errno, Event, Events};

/// The number of times that a race is tried.
const TRIES: usize = 40;

/// The owner of the object, at first and at last.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Whose {
    TheKernels,
    UserLevel,
    Demoted,
}

const ALL: [Whose; 3] = [Whose::TheKernels, Whose::UserLevel, Whose::Demoted];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Pipe,
    Sockets,
}

/// Every kind, whoever it belongs to.
fn kinds() -> impl Iterator<Item = (Kind, Whose)> {
    let all = |kind| ALL.map(|whose| (kind, whose));
    [Kind::Pipe, Kind::Sockets].into_iter().flat_map(all)
}

/// The same, often enough for a race.
fn rounds() -> impl Iterator<Item = (Kind, Whose)> {
    (0..TRIES).flat_map(|_| kinds())
}

/// A pair of ends, one read and one written.
struct Stream {
    whose: Whose,
    fds: [RawFd; 2],
    is_closed: [AtomicBool; 2],
}

impl Stream {
    fn new(kind: Kind, whose: Whose, flags: i32) -> Self {
        let mut fds = [-1; 2];
        let pair = libc::SOCK_STREAM | flags;
        // SAFETY: there is room for two fds.
        unsafe {
            match (kind, whose) {
                (Kind::Pipe, Whose::TheKernels) => {
                    assert_eq!(libc::pipe2(fds.as_mut_ptr(), flags), 0);
                }
                (Kind::Sockets, Whose::TheKernels) => {
                    assert_eq!(
                        libc::socketpair(libc::AF_UNIX, pair, 0, fds.as_mut_ptr()),
                        0
                    );
                }
                (Kind::Pipe, _) => upoll_fds::pipe2(fds.as_mut_ptr().cast(), flags).unwrap(),
                (Kind::Sockets, _) => {
                    upoll_fds::socketpair(libc::AF_UNIX, pair, 0, &raw mut fds).unwrap();
                }
            }
        }
        Stream {
            whose,
            fds,
            is_closed: [const { AtomicBool::new(false) }; 2],
        }
    }

    fn demote(&self, end: usize) {
        if self.whose == Whose::Demoted {
            upoll_fds::demote(self.fds[end]).unwrap();
            assert!(self.fds.iter().all(|&fd| !upoll_fds::is_user_level(fd)));
        }
    }

    fn close(&self, end: usize) {
        if !self.is_closed[end].swap(true, Ordering::Relaxed) {
            upoll_fds::close(self.fds[end]).unwrap();
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.close(0);
        self.close(1);
    }
}

fn list(base: *mut u8, len: usize) -> [libc::iovec; 2] {
    let (first, rest) = (len / 3, len - len / 3);
    [(base, first), (base.wrapping_add(first), rest)].map(|(base, len)| libc::iovec {
        iov_base: base.cast(),
        iov_len: len,
    })
}

fn message(list: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: all zeros is a valid message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = list.as_mut_ptr();
    message.msg_iovlen = list.len();
    message
}

/// A way to move bytes.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// `read` and `write`
    Plain,
    /// `readv` and `writev`
    Vectored,
    /// `recv` and `send`
    Socket,
    /// `recvmsg` and `sendmsg`
    Message,
}

impl Way {
    fn of(kind: Kind) -> &'static [Way] {
        match kind {
            Kind::Pipe => &[Way::Plain, Way::Vectored],
            Kind::Sockets => &[Way::Plain, Way::Vectored, Way::Socket, Way::Message],
        }
    }

    fn write(self, fd: RawFd, bytes: &[u8]) -> Result<usize, Errno> {
        let (base, len) = (bytes.as_ptr().cast_mut(), bytes.len());
        let mut list = list(base, len);
        // SAFETY: the bytes are live, and only read.
        unsafe {
            match self {
                Way::Plain => upoll_fds::write(fd, base, len),
                Way::Vectored => upoll_fds::writev(fd, list.as_ptr(), 2),
                Way::Socket => upoll_fds::send(fd, base, len, 0),
                Way::Message => upoll_fds::sendmsg(fd, &message(&mut list), 0),
            }
        }
    }

    fn read(self, fd: RawFd, buffer: &mut [u8], flags: i32) -> Result<usize, Errno> {
        let (base, len) = (buffer.as_mut_ptr(), buffer.len());
        let mut list = list(base, len);
        // SAFETY: the buffer is this call's alone.
        unsafe {
            match self {
                Way::Plain => upoll_fds::read(fd, base, len),
                Way::Vectored => upoll_fds::readv(fd, list.as_ptr(), 2),
                Way::Socket => upoll_fds::recv(fd, base, len, flags),
                Way::Message => upoll_fds::recvmsg(fd, &mut message(&mut list), flags),
            }
        }
    }
}

const FIONREAD: u32 = 0x541b;

/// Returns the number of bytes to read.
fn available(fd: RawFd) -> usize {
    let mut count = 0_i32;
    // SAFETY: there is room for the fd.
    unsafe { upoll_fds::ioctl(fd, FIONREAD, (&raw mut count).addr()) }.unwrap();
    usize::try_from(count).unwrap()
}

fn wait_until(is_so: impl Fn() -> bool) {
    while !is_so() {
        thread::yield_now();
    }
}

/// Bytes that tell where in the stream they are.
fn bytes(from: usize, len: usize) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at / 251 + at) % 251).unwrap();
    (from..from + len).map(byte).collect()
}

/// A write that waits for room, or for a reader, returns the whole count.
#[test]
fn a_write_that_waits_writes_all_although_the_kernel_gets_the_object_meanwhile() {
    returns(|| {
        const LONG: usize = 1 << 20;
        for (kind, whose) in kinds() {
            for &way in Way::of(kind) {
                let stream = Stream::new(kind, whose, 0);
                thread::scope(|scope| {
                    let writing = scope.spawn(|| way.write(stream.fds[1], &bytes(0, LONG)));
                    wait_until(|| available(stream.fds[0]) > 0);
                    stream.demote(0);
                    let mut there = vec![0; LONG];
                    let mut read = 0;
                    while read < LONG && !(writing.is_finished() && available(stream.fds[0]) == 0) {
                        read += way.read(stream.fds[0], &mut there[read..], 0).unwrap();
                    }
                    assert_eq!(
                        writing.join().unwrap(),
                        Ok(LONG),
                        "{kind:?} {whose:?} {way:?}"
                    );
                    assert!(there == bytes(0, LONG), "{kind:?} {whose:?} {way:?}");
                });
            }
        }
    });
}

#[test]
fn a_read_that_waits_for_all_has_all_although_the_kernel_gets_the_sockets_meanwhile() {
    returns(|| {
        for whose in ALL {
            for way in [Way::Socket, Way::Message] {
                let stream = Stream::new(Kind::Sockets, whose, 0);
                let [reader, writer] = stream.fds;
                thread::scope(|scope| {
                    let reading = scope.spawn(|| {
                        let mut there = [0; 100];
                        let read = way.read(reader, &mut there, libc::MSG_WAITALL);
                        (read, there)
                    });
                    assert_eq!(way.write(writer, &bytes(0, 40)), Ok(40));
                    wait_until(|| available(reader) == 0);
                    stream.demote(1);
                    assert_eq!(way.write(writer, &bytes(40, 60)), Ok(60));
                    // The read ends even if it did not wait for all.
                    stream.close(1);
                    let (read, there) = reading.join().unwrap();
                    assert_eq!(read, Ok(100), "{whose:?} {way:?}");
                    assert_eq!(there[..], bytes(0, 100), "{whose:?} {way:?}");
                });
            }
        }
    });
}

/// The size of the records that several threads write and read at a time, in one piece.
const RECORD: usize = 64;

fn record(writer: u32, number: u32) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    for part in record.chunks_mut(8) {
        part[..4].copy_from_slice(&writer.to_ne_bytes());
        part[4..].copy_from_slice(&number.to_ne_bytes());
    }
    record
}

/// Returns the writer of a record and the record's number.
fn parse(bytes: &[u8; RECORD]) -> (u32, u32) {
    let number = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    let (writer, which) = (number(0), number(4));
    assert_eq!(*bytes, record(writer, which), "a record in pieces");
    (writer, which)
}

#[test]
fn records_of_many_writers_reach_many_readers_once_and_in_order() {
    returns(|| {
        const WRITERS: u32 = 3;
        const RECORDS: u32 = 500;
        for (round, (kind, whose)) in rounds().enumerate() {
            let stream = Stream::new(kind, whose, 0);
            let ways = Way::of(kind);
            let written = AtomicU32::new(0);
            let (stream, written) = (&stream, &written);
            let mut found = vec![0_u32; (WRITERS * RECORDS) as usize];
            thread::scope(|scope| {
                let writing: Vec<_> = (0..WRITERS)
                    .map(|writer| {
                        scope.spawn(move || {
                            for number in 0..RECORDS {
                                let way = ways[(writer + number) as usize % ways.len()];
                                let done = way.write(stream.fds[1], &record(writer, number));
                                assert_eq!(done, Ok(RECORD));
                                written.fetch_add(1, Ordering::Relaxed);
                            }
                        })
                    })
                    .collect();
                let reading: Vec<_> = (0..3_usize)
                    .map(|reader| {
                        scope.spawn(move || {
                            let mut read = Vec::new();
                            let mut bytes = [0; RECORD];
                            loop {
                                let way = ways[(reader + read.len()) % ways.len()];
                                match way.read(stream.fds[0], &mut bytes, 0) {
                                    Ok(0) => break read,
                                    done => assert_eq!(done, Ok(RECORD)),
                                }
                                read.push(parse(&bytes));
                            }
                        })
                    })
                    .collect();
                let some = u32::try_from(round).unwrap() * 97 % (WRITERS * RECORDS);
                wait_until(|| written.load(Ordering::Relaxed) >= some);
                stream.demote(round % 2);
                for writing in writing {
                    writing.join().unwrap();
                }
                stream.close(1);
                for reading in reading {
                    let mut next = [0; WRITERS as usize];
                    for (writer, number) in reading.join().unwrap() {
                        let next = &mut next[writer as usize];
                        assert!(*next <= number, "{kind:?} {whose:?}: out of order");
                        *next = number + 1;
                        found[(writer * RECORDS + number) as usize] += 1;
                    }
                }
            });
            let all_once = found.iter().all(|&times| times == 1);
            assert!(all_once, "{kind:?} {whose:?}: lost or twice");
        }
    });
}

/// A way in which a thread waits for something to read.
#[derive(Clone, Copy, Debug)]
enum Wait {
    Read,
    Poll,
    Select,
    /// In a user-level set that watches it by its level.
    Level,
    /// The same, by its edges.
    Edge,
}

impl Wait {
    /// Waits for one byte and takes it; `set` is one that this thread alone waits in. There may be
    /// others that take it.
    fn take(self, fd: RawFd, set: RawFd) -> Result<usize, Errno> {
        let mut byte = [0];
        loop {
            // SAFETY: what the pointers lead to is live.
            unsafe {
                match self {
                    Wait::Read => {}
                    Wait::Poll => {
                        let mut one = libc::pollfd {
                            fd,
                            events: libc::POLLIN,
                            revents: 0,
                        };
                        assert_eq!(upoll_fds::poll(&raw mut one, 1, -1), Ok(1));
                    }
                    Wait::Select => {
                        let mut read: libc::fd_set = std::mem::zeroed();
                        libc::FD_SET(fd, &raw mut read);
                        let (no, never) = (std::ptr::null_mut(), std::ptr::null_mut());
                        let found = upoll_fds::select(fd + 1, [&raw mut read, no, no], never);
                        assert_eq!(found, Ok(1));
                    }
                    Wait::Level | Wait::Edge => {
                        let mut event = Event::default();
                        let found = upoll_fds::epoll_wait(set, &raw mut event, 1, -1);
                        assert_eq!(found, Ok(1));
                    }
                }
            }
            match Way::Plain.read(fd, &mut byte, 0) {
                Err(Errno::AGAIN) => {}
                done => return done,
            }
        }
    }
}

/// Bytes come one at a time to threads that wait in every way there is: each is taken by one.
#[test]
fn whoever_waits_is_woken_by_what_comes_after_the_object_has_changed_hands() {
    returns(|| {
        let ways = [
            Wait::Read,
            Wait::Poll,
            Wait::Select,
            Wait::Level,
            Wait::Edge,
        ];
        for (round, (kind, whose)) in rounds().enumerate() {
            let way = ways[round % ways.len()];
            let flags = match way {
                Wait::Read => 0,
                _ => libc::O_NONBLOCK,
            };
            let stream = Stream::new(kind, whose, flags);
            let [reader, writer] = stream.fds;
            let set = upoll_fds::epoll_create1(0).unwrap();
            let edge = match way {
                Wait::Edge => Events::ET,
                _ => Events::empty(),
            };
            let event = Event::new(Events::IN | edge, 7);
            // SAFETY: the event is live.
            unsafe { upoll_fds::epoll_ctl(set, libc::EPOLL_CTL_ADD, reader, &raw const event) }
                .unwrap();
            let taken = AtomicU32::new(0);
            thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..200 {
                        assert_eq!(way.take(reader, set), Ok(1), "{kind:?} {whose:?} {way:?}");
                        taken.fetch_add(1, Ordering::SeqCst);
                    }
                });
                for number in 0..200 {
                    if number == u32::try_from(round).unwrap() % 200 {
                        stream.demote(round % 2);
                    }
                    assert_eq!(Way::Plain.write(writer, &[1]), Ok(1));
                    wait_until(|| taken.load(Ordering::SeqCst) > number);
                }
            });
            upoll_fds::close(set).unwrap();
        }
    });
}

/// Units of a semaphore: each is taken by one of those who wait.
#[test]
fn every_unit_of_a_semaphore_is_taken_once() {
    returns(|| {
        const UNITS: u64 = 3000;
        for round in 0..TRIES {
            let fd = upoll_fds::eventfd(0, libc::EFD_SEMAPHORE).unwrap();
            let written = AtomicU32::new(0);
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        for _ in 0..UNITS / 3 {
                            let mut unit = [0; 8];
                            assert_eq!(Way::Plain.read(fd, &mut unit, 0), Ok(8));
                            assert_eq!(u64::from_ne_bytes(unit), 1);
                        }
                    });
                }
                for units in [1, 2] {
                    let written = &written;
                    scope.spawn(move || {
                        for _ in 0..UNITS / 2 / units {
                            let done = Way::Plain.write(fd, &units.to_ne_bytes());
                            assert_eq!(done, Ok(8));
                            written.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
                let some = u32::try_from(round).unwrap() * 50;
                wait_until(|| written.load(Ordering::Relaxed) >= some);
                upoll_fds::demote(fd).unwrap();
            });
            // Nothing is left.
            let mut none = libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: the list is live.
            assert_eq!(unsafe { upoll_fds::poll(&raw mut none, 1, 0) }, Ok(0));
            upoll_fds::close(fd).unwrap();
        }
    });
}

fn watch(stream: &Stream, events: Events) -> RawFd {
    let set = upoll_fds::epoll_create1(0).unwrap();
    let event = Event::new(events, 7);
    // SAFETY: the event is live.
    unsafe { upoll_fds::epoll_ctl(set, libc::EPOLL_CTL_ADD, stream.fds[0], &raw const event) }
        .unwrap();
    set
}

fn look(set: RawFd) -> Vec<Events> {
    let mut events = [Event::default(); 4];
    // SAFETY: there is room for as many.
    let found = unsafe { upoll_fds::epoll_wait(set, events.as_mut_ptr(), 4, 0) }.unwrap();
    events[..found].iter().map(|event| event.events()).collect()
}

/// An interest that has fired is disabled. (For the end of the stream as well, but not in an object
/// that has changed hands: the kernel adds no interest without that.)
#[test]
fn an_interest_that_has_fired_stays_disabled() {
    for (kind, whose) in kinds() {
        let stream = Stream::new(kind, whose, 0);
        let set = watch(&stream, Events::IN | Events::ONESHOT);
        assert_eq!(Way::Plain.write(stream.fds[1], &[1]), Ok(1));
        assert_eq!(look(set), [Events::IN]);
        stream.demote(1);
        assert_eq!(look(set), [], "{kind:?} {whose:?}");
        assert_eq!(Way::Plain.write(stream.fds[1], &[1]), Ok(1));
        assert_eq!(look(set), [], "{kind:?} {whose:?}");
        stream.close(1);
        if whose != Whose::Demoted {
            assert_eq!(look(set), [], "{kind:?} {whose:?}");
        }
        upoll_fds::close(set).unwrap();
    }
}

/// A closed end leaves its bytes, then the end of file.
#[test]
fn what_a_closed_end_has_left_is_read_to_the_end() {
    for (kind, whose) in kinds() {
        for &way in Way::of(kind) {
            let stream = Stream::new(kind, whose, 0);
            let set = watch(&stream, Events::IN);
            assert_eq!(way.write(stream.fds[1], &bytes(0, 5000)), Ok(5000));
            let mut first = [0; 100];
            assert_eq!(way.read(stream.fds[0], &mut first, 0), Ok(100));
            stream.close(1);
            if whose == Whose::Demoted {
                upoll_fds::demote(stream.fds[0]).unwrap();
            }
            assert!(
                look(set)[0].contains(Events::IN | Events::HUP),
                "{kind:?} {whose:?}"
            );
            let mut rest = [0; 5000];
            let mut read = 0;
            while read < 4900 {
                let part = way.read(stream.fds[0], &mut rest[read..], 0).unwrap();
                assert!(part > 0, "{kind:?} {whose:?} {way:?}");
                read += part;
            }
            assert_eq!([&first, &rest[..read]].concat(), bytes(0, 5000));
            assert_eq!(way.read(stream.fds[0], &mut rest, 0), Ok(0));
            upoll_fds::close(set).unwrap();
        }
    }
}
