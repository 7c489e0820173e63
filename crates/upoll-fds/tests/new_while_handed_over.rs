//! Numbers that are made, copied and replaced while whatever there is goes over to the kernel: a number
//! that its object has left behind leads to what the kernel has, and no byte is lost. In a process of
//! its own, where everything may be handed over.

use std::os::fd::RawFd;
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

/// What is written at one end arrives at the other, whether they are copies or not.
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

#[test]
fn new_numbers_work_while_everything_is_handed_over() {
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
