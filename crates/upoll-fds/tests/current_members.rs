//! The members of a kernel set are listed while another thread adds one.
#![cfg(not(upoll_loom))]

mod notified;

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use self::notified::{Answer, Which, answered};
use upoll::{Epoll, Event, Events};

const KCMP_OF_A_MEMBER: Which = Which {
    number: libc::SYS_kcmp,
    // The type is `KCMP_EPOLL_TFD`.
    argument: 2,
    bits: 7,
};

fn eventfd() -> OwnedFd {
    // SAFETY: the fd is new.
    unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) }
}

/// A file lives on after its fd was closed, and another one with that fd is added. The kernel has the two in the order
/// of their addresses.
#[test]
fn a_member_that_comes_meanwhile_gives_its_fd_to_no_other_one() {
    let mut kept = Vec::new();
    let mut listed = 0;
    for _ in 0..40 {
        let set = Epoll::new().unwrap();
        let fd = eventfd();
        set.add(&fd.as_fd(), Event::new(Events::IN, 1)).unwrap();
        kept.extend([fd.try_clone().unwrap(), eventfd()]);
        // SAFETY: both fds are this test's.
        let replaced = unsafe { libc::dup2(kept.last().unwrap().as_raw_fd(), fd.as_raw_fd()) };
        assert_eq!(replaced, fd.as_raw_fd());
        let mut is_added = false;
        let adds = |_: &_| {
            if !std::mem::replace(&mut is_added, true) {
                set.add(&fd.as_fd(), Event::new(Events::IN, 2)).unwrap();
            }
            Answer::Kernels
        };
        let interests = answered(KCMP_OF_A_MEMBER, adds, || set.kernel_interests().unwrap());
        let data: Vec<_> = interests
            .iter()
            .map(|(_, interest)| interest.data())
            .collect();
        assert_eq!(data, [2]);
        listed += usize::from(is_added);
    }
    assert_eq!(listed, 40);
}
