//! Each allocation that a call by fd makes fails once, in a process of its own. The call fails with `ENOMEM`
//! and has no effect, or does without the memory; it never ends the process. Objects that are demoted to the
//! kernel keep what they hold, in the sets that watch them, too.
#![cfg(not(upoll_loom))]

#[path = "../../upoll/tests/failing_allocations/mod.rs"]
mod failing_allocations;
mod world;

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use self::failing_allocations::{Fault, all_allocations_fail_from_each_on, each_allocation_fails};
use self::world::{World, add, close, pipe, ready, sockets};
use upoll::Errno;

fn demotes(fault: &mut Fault) {
    let world = World::new();
    for fd in [
        world.pipe[0],
        world.sockets[1],
        world.counter,
        world.sets[1],
    ] {
        fault.during(|| upoll_fds::demote(fd));
        assert!(!upoll_fds::is_user_level(fd));
    }
    world.check_and_close();
    let world = World::new();
    fault.during(|| upoll_fds::demote(world.outer));
    world.check_and_close();
    let world = World::new();
    // An object that cannot be demoted stays as it is.
    fault.during(|| {
        upoll_fds::demote_all();
        Ok(())
    });
    world.check_and_close();
}

/// An object gets its interests back without memory, in sets that another one watches, too.
fn demotes_pipes_and_eventfds(fault: &mut Fault) {
    let world = World::new();
    for fd in [world.pipe[0], world.counter] {
        fault.during(|| upoll_fds::demote(fd));
        assert!(!upoll_fds::is_user_level(fd));
    }
    world.check_and_close();
}

fn forks(fault: &mut Fault) {
    // An eventfd that cannot be demoted is shared with the child. The library keeps the records of its own fds.
    let shared = [(); 4].map(|()| upoll::EventFd::shared(0, upoll::EventFdFlags::empty()).unwrap());
    let world = World::new();
    drop(shared);
    assert_eq!(fault.during(fork_and_wait), 0);
    world.check_and_close();
}

/// An eventfd with a maximum, under two fds, moves to memory that the child of a fork shares.
fn forks_beside_maximum(fault: &mut Fault) {
    let counter = upoll_fds::eventfd(3, libc::EFD_NONBLOCK).unwrap();
    let maximum = 5_u64;
    let place = (&raw const maximum).expose_provenance();
    // SAFETY: the maximum is live.
    unsafe { upoll_fds::ioctl(counter, upoll_fds::EFD_IOC_SET_MAXIMUM, place) }.unwrap();
    let copy = upoll_fds::dup(counter).unwrap();
    assert_eq!(fault.during(fork_and_wait), 0);
    // It has moved, or is the parent's alone.
    assert_eq!(upoll_fds::eventfd_write(copy, 2), Err(Errno::AGAIN));
    upoll_fds::eventfd_write(counter, 1).unwrap();
    let mut count = 0;
    // SAFETY: the count has a place.
    unsafe { upoll_fds::eventfd_read(copy, &raw mut count) }.unwrap();
    assert_eq!(count, 4);
    close([counter, copy]);
}

/// A fork within a fork, beside sets that rotate and eventfds with a maximum. The child of each gets those for which there
/// is memory.
fn forks_within_forks(fault: &mut Fault) {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    static FORKS: AtomicBool = AtomicBool::new(false);
    extern "C" fn before_fork() {
        if FORKS.swap(false, Ordering::Relaxed) {
            assert_eq!(fork_and_wait(), Ok(0));
        }
    }
    if !IS_REGISTERED.swap(true, Ordering::Relaxed) {
        // Registered before the library's handlers, and thus called after them.
        // SAFETY: the handler is never unloaded.
        let registered = unsafe { libc::pthread_atfork(Some(before_fork), None, None) };
        assert_eq!(registered, 0);
    }
    let counters: Vec<_> = (0..5)
        .map(|_| upoll_fds::eventfd(3, libc::EFD_NONBLOCK).unwrap())
        .collect();
    let sets: Vec<_> = (0..5)
        .map(|_| upoll_fds::epoll_create1(1).unwrap())
        .collect();
    let maximum = 5_u64;
    for (&counter, &set) in counters.iter().zip(&sets) {
        let place = (&raw const maximum).expose_provenance();
        // SAFETY: the maximum is live.
        unsafe { upoll_fds::ioctl(counter, upoll_fds::EFD_IOC_SET_MAXIMUM, place) }.unwrap();
        add(set, counter);
    }
    // A set under two fds.
    let copy = upoll_fds::dup(sets[0]).unwrap();
    let forked = fault.during(|| {
        FORKS.store(true, Ordering::Relaxed);
        fork_and_wait()
    });
    assert_eq!(forked, 0);
    // The parent has all of them.
    for (&counter, &set) in counters.iter().zip(&sets) {
        assert_eq!(ready(set), [counter as u64]);
    }
    close(counters);
    close(sets);
    close([copy]);
}

/// Returns the status of a child that ends at once.
fn fork_and_wait() -> Result<i32, Errno> {
    // SAFETY: the child ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the status is written to a variable.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    // An allocation of the child may fail only if the parent makes as many.
    for _ in 0..MOST_IN_A_CHILD {
        let mut one = Vec::<u8>::new();
        let _ = one.try_reserve(1);
        std::hint::black_box(&one);
    }
    Ok(status)
}

/// More allocations than the child of a fork makes.
const MOST_IN_A_CHILD: usize = 60;

/// Fds from 1024 on, which the sets of a call have no room for without memory.
fn high_fds(fault: &mut Fault) {
    const HIGH: usize = 1100;
    let most = libc::rlimit {
        rlim_cur: 2048,
        rlim_max: 2048,
    };
    // SAFETY: the limit is live.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const most) };
    assert_eq!(set, 0);
    let low = upoll_fds::eventfd(1, 0).unwrap();
    // SAFETY: the argument is a number.
    let high = unsafe { upoll_fds::fcntl(low, libc::F_DUPFD, HIGH) }.unwrap();
    let found = fault.during(|| {
        let mut bits = [0_u64; HIGH / 64 + 1];
        bits[HIGH / 64] |= 1 << (HIGH % 64);
        let none = std::ptr::null_mut();
        let mut limit = libc::timeval {
            tv_sec: 0,
            tv_usec: 0,
        };
        // SAFETY: all is live.
        let found = unsafe {
            upoll_fds::select(
                high + 1,
                [bits.as_mut_ptr().cast(), none, none],
                &raw mut limit,
            )
        };
        found.map(|found| (found, bits[HIGH / 64] != 0))
    });
    assert_eq!(found, (1, true));
    close([low, high]);
}

fn long_lists(fault: &mut Fault) {
    let counters: Vec<_> = (0..40)
        .map(|at| upoll_fds::eventfd(at % 2, libc::EFD_NONBLOCK).unwrap())
        .collect();
    let entry = |&fd: &RawFd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut entries: Vec<_> = counters.iter().map(entry).collect();
    // SAFETY: the entries are live.
    let found = fault.during(|| unsafe { upoll_fds::poll(entries.as_mut_ptr(), 40, 0) });
    assert_eq!(found, 20);
    assert!(
        entries
            .iter()
            .skip(1)
            .step_by(2)
            .all(|entry| entry.revents == libc::POLLIN)
    );
    close(counters);

    let bytes = [7_u8; 20];
    let mut room = [0_u8; 20];
    let list = |place: *mut u8| {
        let buffer = |at| libc::iovec {
            iov_base: place.wrapping_add(at).cast(),
            iov_len: 1,
        };
        (0..20).map(buffer).collect::<Vec<_>>()
    };
    let (from, to) = (list(bytes.as_ptr().cast_mut()), list(room.as_mut_ptr()));
    for [reader, writer] in [pipe(), sockets()] {
        // SAFETY: the buffers are live.
        let sent = fault.during(|| unsafe { upoll_fds::writev(writer, from.as_ptr(), 20) });
        assert_eq!(sent, 20);
        // SAFETY: as above.
        let received = fault.during(|| unsafe { upoll_fds::readv(reader, to.as_ptr(), 20) });
        assert_eq!(received, 20);
        close([reader, writer]);
    }
    assert_eq!(room, bytes);
}

/// A list of more buffers than lie on the stack, written while the object is demoted.
fn long_lists_of_what_is_demoted(fault: &mut Fault) {
    const BUFFERS: usize = 20;
    const SIZE: usize = 12_000;
    let bytes = vec![7_u8; SIZE];
    let buffer = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: SIZE,
    };
    let list = [buffer; BUFFERS];
    let by_writev = |writer| {
        // SAFETY: the buffers are live, and only read.
        unsafe { upoll_fds::writev(writer, list.as_ptr(), 20) }
    };
    let by_sendmsg = |writer| {
        // SAFETY: all of its fields are numbers or pointers.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = list.as_ptr().cast_mut();
        message.msg_iovlen = BUFFERS;
        // SAFETY: the buffers are live, and only read.
        unsafe { upoll_fds::sendmsg(writer, &raw const message, 0) }
    };
    type Write<'a> = &'a dyn Fn(RawFd) -> Result<usize, Errno>;
    let ways: [([RawFd; 2], Write<'_>); 3] = [
        (pipe(), &by_writev),
        (sockets(), &by_writev),
        (sockets(), &by_sendmsg),
    ];
    for ([reader, writer], write) in ways {
        set_blocking(reader);
        set_blocking(writer);
        thread::scope(|scope| {
            let other = scope.spawn(|| demote_and_read(reader, writer));
            // Less is written if there was no memory for a page.
            let sent = fault.during(|| write(writer));
            close([writer]);
            assert_eq!(other.join().unwrap(), sent);
        });
        close([reader]);
    }
}

fn set_blocking(fd: RawFd) {
    // SAFETY: the argument is a number.
    unsafe { upoll_fds::fcntl(fd, libc::F_SETFL, 0) }.unwrap();
}

/// Demotes the object once a part of what is written is in it, and reads to the end.
fn demote_and_read(reader: RawFd, writer: RawFd) -> usize {
    let mut available = 0_i32;
    while available == 0 {
        thread::yield_now();
        let place = (&raw mut available).expose_provenance();
        let request = u32::try_from(libc::FIONREAD).unwrap();
        // SAFETY: the fd has a place.
        unsafe { upoll_fds::ioctl(reader, request, place) }.unwrap();
    }
    // It fails without memory, or when the writer is closed.
    while upoll_fds::demote(writer) == Err(Errno::NOMEM) {}
    let mut room = [0_u8; 4096];
    let mut count = 0;
    loop {
        // SAFETY: there is room.
        match unsafe { upoll_fds::read(reader, room.as_mut_ptr(), room.len()) } {
            Ok(0) => return count,
            Ok(more) => count += more,
            Err(errno) => panic!("{errno} after {count}"),
        }
    }
}

fn closes(fault: &mut Fault) {
    let first = upoll_fds::eventfd(0, 0).unwrap();
    let more: Vec<_> = (0..20).map(|_| upoll_fds::dup(first).unwrap()).collect();
    let last = *more.last().unwrap();
    fault.during(|| upoll_fds::close_range(first.cast_unsigned(), last.cast_unsigned(), 0));
    for fd in more {
        assert_eq!(upoll_fds::close(fd), Err(Errno::BADF));
    }
}

/// As by `epoll_ctl`, an object for whose interest there is no memory is demoted, and added then.
fn adds_in_a_batch(fault: &mut Fault) {
    let set = upoll_fds::epoll_create1(0).unwrap();
    let [first, counters @ ..] =
        [(); 21].map(|()| upoll_fds::eventfd(1, libc::EFD_NONBLOCK).unwrap());
    // The library keeps the records of its own fds, which the first demotion in a set makes.
    add(set, first);
    upoll_fds::demote(first).unwrap();
    close([first]);
    let mut commands = counters.map(|fd| upoll_fds::EpollCtlCmd {
        flags: 0,
        op: libc::EPOLL_CTL_ADD,
        fd,
        events: libc::EPOLLIN.cast_unsigned(),
        data: fd as u64,
        result: 1,
    });
    // SAFETY: the commands are live.
    let added =
        fault.during(|| unsafe { upoll_fds::epoll_ctl_batch(set, 0, 20, commands.as_mut_ptr()) });
    assert_eq!(added, 20);
    assert_eq!(commands.map(|command| command.result), [0; 20]);
    assert_eq!(ready(set), counters.map(|fd| fd as u64));
    close(counters);
    close([set]);
}

// One test: others would allocate meanwhile.
#[test]
fn an_allocation_that_fails_is_an_error_and_loses_nothing() {
    each_allocation_fails("high fds", high_fds);
    each_allocation_fails("a fork beside a maximum", forks_beside_maximum);
    each_allocation_fails("forks within forks", forks_within_forks);
    each_allocation_fails("long lists", long_lists);
    each_allocation_fails(
        "long lists of what is demoted",
        long_lists_of_what_is_demoted,
    );
    each_allocation_fails("closes", closes);
    each_allocation_fails("adds in a batch", adds_in_a_batch);
    each_allocation_fails("demotes", demotes);
    all_allocations_fail_from_each_on("lasting", demotes_pipes_and_eventfds);
    each_allocation_fails("forks", forks);
}
