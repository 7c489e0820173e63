//! Calls on user-level objects that are over at once make no system call.
#![cfg(not(upoll_loom))]

mod notified;
mod world;

use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use self::notified::reported;
use self::world::{add, close, ready};

fn poll_now(fd: i32) -> usize {
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the entry is live.
    unsafe { upoll_fds::poll(&raw mut entry, 1, 0) }.unwrap()
}

fn select_now(fd: i32) -> usize {
    let mut read = [1_u64 << fd, 0];
    let mut no_time = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let sets = [read.as_mut_ptr().cast(), ptr::null_mut(), ptr::null_mut()];
    // SAFETY: the set has room for the fds below `fd`, and both are live.
    unsafe { upoll_fds::select(fd + 1, sets, &raw mut no_time) }.unwrap()
}

#[test]
fn calls_that_are_over_at_once_make_no_system_call() {
    let counter = upoll_fds::eventfd(0, libc::EFD_NONBLOCK).unwrap();
    let set = upoll_fds::epoll_create1(0).unwrap();
    add(set, counter);
    let counts = AtomicBool::new(false);
    let made = Mutex::new(Vec::new());
    reported(
        |call| {
            if counts.load(Ordering::SeqCst) {
                made.lock().unwrap().push(call.number());
            }
        },
        |_| {},
        || {
            // The first round finds out which memory can be read and written.
            for round in 0..3 {
                counts.store(round > 0, Ordering::SeqCst);
                for is_ready in [false, true] {
                    let expected = usize::from(is_ready);
                    assert_eq!(ready(set).len(), expected);
                    assert_eq!(poll_now(counter), expected);
                    assert_eq!(select_now(counter), expected);
                    if is_ready {
                        let mut count = 0;
                        // SAFETY: the count has a place.
                        unsafe { upoll_fds::eventfd_read(counter, &raw mut count) }.unwrap();
                    } else {
                        upoll_fds::eventfd_write(counter, 1).unwrap();
                    }
                }
            }
            counts.store(false, Ordering::SeqCst);
        },
    );
    assert_eq!(*made.lock().unwrap(), []);
    close([set, counter]);
}
