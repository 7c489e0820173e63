//! Fds that are made, copied, replaced and moved while objects are demoted. A kernel fd that remains
//! refers to the same contents, and neither bytes nor interests are lost. In a process of its own, where everything may
//! be demoted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;

use upoll::{Errno, Event, Events, Op};

/// The number of times that a race is tried.
const TRIES: usize = 5_000;

/// The number of times that an fd that moves is tried.
const MOVES: usize = 2_000;

/// Ends of a pipe or a pair of sockets: what is read, and what is written.
type Ends = [RawFd; 2];

fn pipe() -> Ends {
    let mut fds = [-1; 2];
    // SAFETY: there is room for two fds.
    unsafe { upoll_fds::pipe2(fds.as_mut_ptr().cast(), 0) }.unwrap();
    fds
}

fn sockets() -> Ends {
    let mut fds = [-1; 2];
    // SAFETY: as above.
    unsafe { upoll_fds::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, &raw mut fds) }.unwrap();
    fds
}

/// A byte that is written at one end arrives at the other. The fds may be copies.
fn pass_on(read: RawFd, write: RawFd, is_socket: bool, byte: u8) {
    let (sent, mut there) = ([byte], [0]);
    // SAFETY: the bytes are live.
    unsafe {
        if is_socket {
            assert_eq!(upoll_fds::send(write, sent.as_ptr(), 1, 0), Ok(1));
            assert_eq!(upoll_fds::recv(read, there.as_mut_ptr(), 1, 0), Ok(1));
        } else {
            assert_eq!(upoll_fds::write(write, sent.as_ptr(), 1), Ok(1));
            assert_eq!(upoll_fds::read(read, there.as_mut_ptr(), 1), Ok(1));
        }
    }
    assert_eq!(there, sent);
}

std::thread_local! {
    /// The number of allocations until this thread demotes everything; 0 if it does not.
    static UNTIL: Cell<usize> = const { Cell::new(0) };
}

/// Demotes everything in the midst of a call that allocates.
struct Demotes;

// SAFETY: it is the system's.
unsafe impl GlobalAlloc for Demotes {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let until = UNTIL.get();
        if until > 0 {
            UNTIL.set(until - 1);
            if until == 1 {
                upoll_fds::demote_all();
            }
        }
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Demotes = Demotes;

/// One test must not demote what another one has.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn both_ends_change_hands_wherever_in_their_making_it_happens() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    for (make, is_socket) in [(pipe as fn() -> Ends, false), (sockets, true)] {
        let mut met = 0;
        loop {
            UNTIL.set(met + 1);
            let [read, write] = make();
            let is_over = UNTIL.replace(0) > 0;
            let are_ours = [read, write].map(upoll_fds::is_user_level);
            assert_eq!(are_ours[0], are_ours[1], "at allocation {met}");
            assert!(are_ours[0]);
            pass_on(read, write, is_socket, 7);
            for fd in [read, write] {
                upoll_fds::close(fd).unwrap();
            }
            if is_over {
                break;
            }
            met += 1;
        }
        // All memory is taken before the table has the ends.
        assert!(met > 0);
    }
}

#[test]
fn new_fds_work_while_everything_is_demoted() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    let working = thread::spawn(|| {
        let place = pipe()[0];
        let mut were_ours = 0;
        for round in 0..TRIES {
            let is_socket = round % 2 == 0;
            let [read, write] = if is_socket { sockets() } else { pipe() };
            let byte = u8::try_from(round % 251).unwrap();
            pass_on(read, write, is_socket, byte);
            let copy = upoll_fds::dup(read).unwrap();
            upoll_fds::dup2(write, place).unwrap();
            pass_on(copy, place, is_socket, byte);
            were_ours += usize::from(upoll_fds::is_user_level(copy));
            for fd in [read, write, copy] {
                upoll_fds::close(fd).unwrap();
            }
        }
        were_ours
    });
    while !working.is_finished() {
        upoll_fds::demote_all();
    }
    let were_ours = working.join().unwrap();
    assert!(were_ours > 0, "nothing was ours for long enough");
}

/// An fd that its thread moves from one place to the other and back, by `dup2` and `close`.
struct Moving {
    places: [RawFd; 2],
    at: usize,
}

impl Moving {
    /// Moves `fd` to the first place.
    fn begin(fd: RawFd) -> Self {
        let places = [600, 900];
        upoll_fds::dup2(fd, places[0]).unwrap();
        upoll_fds::close(fd).unwrap();
        Moving { places, at: 0 }
    }

    fn now(&self) -> RawFd {
        self.places[self.at]
    }

    fn goes_on(&mut self) {
        let old = self.now();
        self.at = 1 - self.at;
        upoll_fds::dup2(old, self.now()).unwrap();
        upoll_fds::close(old).unwrap();
    }
}

/// In each round `make` makes objects, and returns the fd that is to move and the fd to demote. That is demoted while
/// the first one moves, and `check` is called then with the place where it is.
fn demoted_while_moving(make: impl Fn() -> [RawFd; 2], check: impl Fn(RawFd, RawFd)) {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    let both = Barrier::new(2);
    let demoted = AtomicI32::new(-1);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let demoting = scope.spawn(|| {
            let mut refused = Vec::new();
            for _ in 0..MOVES {
                both.wait();
                refused.extend(upoll_fds::demote(demoted.load(Ordering::Relaxed)).err());
                is_over.store(true, Ordering::Relaxed);
                both.wait();
            }
            refused
        });
        let mut wrong = Vec::new();
        for round in 0..MOVES {
            let [moves, stays] = make();
            let mut moving = Moving::begin(moves);
            demoted.store(stays, Ordering::Relaxed);
            both.wait();
            while !is_over.swap(false, Ordering::Relaxed) {
                moving.goes_on();
            }
            both.wait();
            // The other thread goes on as well if a check fails.
            let checked = catch_unwind(AssertUnwindSafe(|| check(moving.now(), stays)));
            wrong.extend(checked.err().map(|_| round));
            for fd in [moving.now(), stays] {
                upoll_fds::close(fd).unwrap();
            }
        }
        assert_eq!(wrong, [0; 0], "rounds that were wrong");
        assert_eq!(demoting.join().unwrap(), [], "the object can be demoted");
    });
}

fn write_is_read(write: RawFd, read: RawFd) {
    let (sent, mut there) = ([2], [0; 3]);
    // SAFETY: the bytes are live.
    let (written, read) = unsafe {
        let written = upoll_fds::write(write, sent.as_ptr(), 1);
        (
            written,
            upoll_fds::read(read, there.as_mut_ptr(), there.len()),
        )
    };
    assert_eq!((written, read, there), (Ok(1), Ok(2), [1, 2, 0]));
}

/// Both ends, of which the one that is written moves. A byte is between them: without contents the kernel objects behind
/// them stay.
fn holding_a_byte([read, write]: Ends) -> Ends {
    // SAFETY: the byte is live.
    assert_eq!(unsafe { upoll_fds::write(write, [1].as_ptr(), 1) }, Ok(1));
    [write, read]
}

#[test]
fn a_pipe_whose_writer_moves_is_demoted_with_both_ends() {
    demoted_while_moving(|| holding_a_byte(pipe()), write_is_read);
}

#[test]
fn a_pair_of_sockets_of_which_one_moves_is_demoted_as_a_whole() {
    demoted_while_moving(|| holding_a_byte(sockets()), write_is_read);
}

/// A set, and an eventfd in it.
fn set_with_member() -> [RawFd; 2] {
    let counter = upoll_fds::eventfd(0, libc::EFD_NONBLOCK).unwrap();
    let set = upoll_fds::epoll_create1(0).unwrap();
    let event = Event::new(Events::IN, 7);
    // SAFETY: the event is live.
    unsafe { upoll_fds::epoll_ctl(set, Op::Add as i32, counter, &raw const event) }.unwrap();
    [set, counter]
}

fn set_reports(set: RawFd, counter: RawFd) {
    let ready = || {
        let mut events = [Event::default(); 2];
        // SAFETY: there is room for as many events.
        unsafe { upoll_fds::epoll_wait(set, events.as_mut_ptr(), 2, 0) }
    };
    let before = ready();
    let one = 1_u64.to_ne_bytes();
    // SAFETY: the bytes are live.
    let written = unsafe { upoll_fds::write(counter, one.as_ptr(), one.len()) };
    assert_eq!((before, written, ready()), (Ok(0), Ok(8), Ok(1)));
    // Also if the set becomes the kernel's later: the kernel set behind its fd has the interest.
    assert_eq!((upoll_fds::demote(set), ready()), (Ok(()), Ok(1)));
}

#[test]
fn a_set_that_moves_keeps_its_interest_in_an_eventfd_that_is_demoted() {
    demoted_while_moving(set_with_member, set_reports);
}

#[test]
fn a_set_is_demoted_with_a_member_that_moves() {
    let make = || {
        let [set, counter] = set_with_member();
        [counter, set]
    };
    demoted_while_moving(make, |counter, set| set_reports(set, counter));
}

/// The socket that closes is the kernel's before its unread bytes are dropped.
#[test]
fn a_socket_that_is_demoted_while_its_peer_closes_is_reset_if_that_has_unread_bytes() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    let receive = |fd| {
        let mut there = [0; 3];
        // SAFETY: the bytes are live.
        unsafe { upoll_fds::read(fd, there.as_mut_ptr(), there.len()) }
    };
    let working = thread::spawn(move || {
        let mut wrong = Vec::new();
        for round in 0..4 * TRIES {
            let [one, other] = sockets();
            for (fd, count) in [(one, 1), (other, 2)] {
                // SAFETY: the bytes are live.
                let sent = unsafe { upoll_fds::write(fd, [7; 2].as_ptr(), count) };
                assert_eq!(sent, Ok(count));
            }
            upoll_fds::close(other).unwrap();
            let received = [receive(one), receive(one), receive(one)];
            if received != [Ok(2), Err(Errno::from_raw(libc::ECONNRESET)), Ok(0)] {
                wrong.push((round, received));
            }
            upoll_fds::close(one).unwrap();
        }
        wrong
    });
    while !working.is_finished() {
        upoll_fds::demote_all();
    }
    assert_eq!(working.join().unwrap(), []);
}
