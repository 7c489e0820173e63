//! A set that becomes active while the process has no free fd. In a process of its own, whose limit of fds is changed.

use std::os::fd::RawFd;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use upoll::{Errno, Event, Events, Op};

/// Sets the limit of open files, and returns the one before.
fn limit_of_files(limit: libc::rlim_t) -> libc::rlim_t {
    let mut now = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure is live.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut now), 0);
        let before = std::mem::replace(&mut now.rlim_cur, limit);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const now), 0);
        before
    }
}

fn polled(epfd: RawFd) -> Result<usize, Errno> {
    let mut entry = libc::pollfd {
        fd: epfd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the entry is live.
    unsafe { upoll_fds::poll(&raw mut entry, 1, 1) }
}

#[test]
fn a_thread_that_waits_in_a_set_learns_of_a_change_that_had_no_fd_for_its_wakeup_at_first() {
    let epfd = upoll_fds::epoll_create1(0).unwrap();
    let counter = upoll_fds::eventfd(0, 0).unwrap();
    let (send, receive) = mpsc::channel();
    let waiter = thread::spawn(move || {
        let mut events = [Event::default(); 4];
        // SAFETY: the events are live.
        let found = unsafe { upoll_fds::epoll_wait(epfd, events.as_mut_ptr(), 4, 20_000) };
        send.send(found).unwrap();
    });
    // Until it sleeps in the kernel.
    thread::sleep(Duration::from_millis(200));
    // SAFETY: the call takes no pointers.
    let open = || unsafe { libc::fcntl(0, libc::F_DUPFD_CLOEXEC, 0) };
    let before = limit_of_files(64);
    let taken: Vec<RawFd> = std::iter::repeat_with(open)
        .take_while(|&fd| fd >= 0)
        .collect();
    let refused = polled(epfd);
    for fd in taken {
        // SAFETY: it was opened above.
        assert_eq!(unsafe { libc::close(fd) }, 0);
    }
    limit_of_files(before);
    assert_eq!(refused, Err(Errno::MFILE));

    let interest = Event::new(Events::IN, 7);
    // SAFETY: the interest is live.
    unsafe { upoll_fds::epoll_ctl(epfd, Op::Add as i32, counter, &raw const interest) }.unwrap();
    let one = 1_u64.to_ne_bytes();
    // SAFETY: the bytes are live.
    assert_eq!(unsafe { upoll_fds::write(counter, one.as_ptr(), 8) }, Ok(8));
    assert_eq!(receive.recv_timeout(Duration::from_secs(10)), Ok(Ok(1)));
    waiter.join().unwrap();
}
