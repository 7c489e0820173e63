//! Fds that are made, copied and replaced while all objects are demoted. A kernel fd that remains
//! refers to the same contents, and no byte is lost. In a process of its own, where everything may be
//! demoted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::fd::RawFd;
use std::sync::Mutex;
use std::thread;

/// How often a race is tried.
const TRIES: usize = 5_000;

/// Ends of a pipe or a pair of sockets: what is read, and what is written.
type Ends = [RawFd; 2];

fn pipe() -> Ends {
    let mut fds = [-1; 2];
    // SAFETY: there is room for two numbers.
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
    /// Allocations until this thread hands everything over; none: it does not.
    static UNTIL: Cell<usize> = const { Cell::new(0) };
}

/// Demotes everything in the midst of a call that allocates.
struct HandsOver;

// SAFETY: it is the system's.
unsafe impl GlobalAlloc for HandsOver {
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
static ALLOCATOR: HandsOver = HandsOver;

/// One test must not hand over what another one has.
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
fn new_numbers_work_while_everything_is_handed_over() {
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
