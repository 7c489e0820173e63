//! Sets go on to watch an object that is demoted, or that cannot be.
#![cfg(not(upoll_loom))]

mod world;

use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use self::world::{add, close, ready, write};
use upoll::{Event, Events};

/// One test at a time: each demotes the objects of the process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn eventfd() -> RawFd {
    upoll_fds::eventfd(0, libc::EFD_NONBLOCK).unwrap()
}

fn set() -> RawFd {
    upoll_fds::epoll_create1(0).unwrap()
}

/// The kernel refuses the fd by which the outermost of five sets learns of the innermost one, if that is the kernel's
/// and the others are not.
#[test]
fn sets_above_each_other_watch_what_is_demoted() {
    let _alone = alone();
    for depth in 1..=5 {
        let counter = eventfd();
        let sets: Vec<_> = (0..depth).map(|_| set()).collect();
        add(sets[0], counter);
        for pair in sets.windows(2) {
            add(pair[1], pair[0]);
        }
        upoll_fds::demote_all();
        assert!(sets.iter().all(|&set| ready(set).is_empty()));
        write(counter, &1_u64.to_ne_bytes()).unwrap();
        for (at, &set) in sets.iter().enumerate().rev() {
            let below = if at == 0 { counter } else { sets[at - 1] };
            assert_eq!(ready(set), [below as u64], "{at} of {depth}");
        }
        close(sets);
        close([counter]);
    }
}

/// An interest whose fd was closed, while a copy keeps the object open, may go to the copy's fd. The interest under that
/// fd comes first.
#[test]
fn the_interest_of_an_open_fd_is_kept_beside_that_of_a_closed_one() {
    let _alone = alone();
    for closes_first in [true, false] {
        let (counter, epfd) = (eventfd(), set());
        let copy = upoll_fds::dup(counter).unwrap();
        add(epfd, counter);
        add(epfd, copy);
        let (closed, open) = match closes_first {
            true => (counter, copy),
            false => (copy, counter),
        };
        close([closed]);
        upoll_fds::demote_all();
        write(open, &1_u64.to_ne_bytes()).unwrap();
        assert!(ready(epfd).contains(&(open as u64)), "{closes_first}");
        close([open, epfd]);
    }
}

/// The limit of fds leaves none for the kernel set that a rotating set needs for a source of the kernel's.
#[test]
fn a_rotating_set_keeps_its_source_without_an_fd_for_another_one() {
    const ROTATE: i32 = 1;
    let _alone = alone();
    let (source, worker) = (eventfd(), set());
    let rotating = upoll_fds::epoll_create1(ROTATE).unwrap();
    add(rotating, source);
    let event = Event::new(Events::IN, 7);
    // SAFETY: the event is live.
    unsafe { upoll_fds::epoll_ctl(worker, libc::EPOLL_CTL_ADD, rotating, &raw const event) }
        .unwrap();
    let mut taken = Vec::new();
    loop {
        // SAFETY: no pointers are involved.
        match unsafe { libc::dup(0) } {
            -1 => break,
            fd => taken.push(fd),
        }
    }
    let result = upoll_fds::demote(source);
    for fd in taken {
        // SAFETY: it was opened here.
        assert_eq!(unsafe { libc::close(fd) }, 0);
    }
    assert_eq!(result, Err(upoll::Errno::MFILE));
    write(source, &1_u64.to_ne_bytes()).unwrap();
    assert_eq!(ready(worker), [7]);
    upoll_fds::demote(source).unwrap();
    assert_eq!(ready(worker), [7]);
    close([source, worker, rotating]);
}
