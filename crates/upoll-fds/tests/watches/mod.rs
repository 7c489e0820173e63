//! A limit of the kernel's watches, which a filter keeps in the place of the kernel.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::notified::{Answer, Call, Which, answered};

pub const EPOLL_CTL: Which = Which {
    number: libc::SYS_epoll_ctl,
    argument: 1,
    // Of ADD, DEL and MOD, which are 1, 2 and 3.
    bits: 3,
};

/// One test at a time: each counts the fds of the process.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls while the kernel has `watches` left.
pub struct Limit {
    pub watches: usize,
    pub ran_out: AtomicUsize,
}

impl Limit {
    /// Makes `calls` within the limit.
    pub fn during<T: Send>(&self, calls: impl FnOnce() -> T + Send) -> T {
        let mut left = self.watches;
        answered(
            EPOLL_CTL,
            |call| {
                let op = i32::try_from(call.arguments()[1]).unwrap();
                if let Err(errno) = make(call, op) {
                    return Answer::Error(errno);
                }
                match op {
                    libc::EPOLL_CTL_ADD if left == 0 => {
                        make(call, libc::EPOLL_CTL_DEL).unwrap();
                        self.ran_out.fetch_add(1, Ordering::SeqCst);
                        return Answer::Error(libc::ENOSPC);
                    }
                    libc::EPOLL_CTL_ADD => left -= 1,
                    libc::EPOLL_CTL_DEL => left += 1,
                    _ => {}
                }
                Answer::Done
            },
            calls,
        )
    }
}

/// Makes the call, or one like it, in the caller's place.
pub fn make(call: &Call, op: i32) -> Result<(), i32> {
    let [set, _, fd, event, ..] = call.arguments();
    // SAFETY: the caller's memory is this process's, and the caller waits.
    match unsafe { libc::syscall(libc::SYS_epoll_ctl, set, op, fd, event) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap()),
    }
}

pub fn open_fds() -> Vec<RawFd> {
    let is_open = |fd: &RawFd| {
        // SAFETY: no pointers are involved.
        unsafe { libc::fcntl(*fd, libc::F_GETFD) >= 0 }
    };
    (0..1024).filter(is_open).collect()
}

/// Makes the calls with no watch left, with one, and so on until they need no more. No fd is left behind.
pub fn each_watch_is_missing(calls: impl Fn(&Limit)) {
    // This call allocates the resources that the library keeps for good.
    calls(&Limit {
        watches: usize::MAX / 2,
        ran_out: AtomicUsize::new(0),
    });
    let before = open_fds().len();
    for watches in 0.. {
        let limit = Limit {
            watches,
            ran_out: AtomicUsize::new(0),
        };
        calls(&limit);
        assert_eq!(open_fds().len(), before, "with {watches} watches");
        if limit.ran_out.load(Ordering::SeqCst) == 0 {
            assert!(watches > 0, "no watch is asked for");
            return;
        }
        assert!(watches < 100);
    }
}
