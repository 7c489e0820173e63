//! Each allocation that a call by number makes fails once, in a process of its own. The call fails with `ENOMEM`
//! and has no effect, or does without the memory; it never ends the process. Objects that are handed over to the
//! kernel keep what they hold, in the sets that watch them, too.
#![cfg(not(loom))]

#[path = "../../upoll/tests/failing_allocations/mod.rs"]
mod failing_allocations;
mod world;

use std::os::fd::RawFd;

use self::failing_allocations::{Fault, each_allocation_fails};
use self::world::{World, close, pipe, sockets};
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

fn forks(fault: &mut Fault) {
    // An eventfd that cannot be demoted is shared with the child. The library keeps the records of its own fds.
    let shared = [(); 4].map(|()| upoll::EventFd::shared(0, upoll::EventFdFlags::empty()).unwrap());
    let world = World::new();
    drop(shared);
    let ended = fault.during(|| {
        // SAFETY: the child ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe { libc::_exit(7) };
        }
        let mut status = 0;
        // SAFETY: the status is written to a variable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        Ok(status)
    });
    assert!(
        libc::WIFEXITED(ended) && libc::WEXITSTATUS(ended) == 7,
        "{ended:x}"
    );
    world.check_and_close();
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

fn closes(fault: &mut Fault) {
    let first = upoll_fds::eventfd(0, 0).unwrap();
    let more: Vec<_> = (0..20).map(|_| upoll_fds::dup(first).unwrap()).collect();
    let last = *more.last().unwrap();
    fault.during(|| upoll_fds::close_range(first.cast_unsigned(), last.cast_unsigned(), 0));
    for fd in more {
        assert_eq!(upoll_fds::close(fd), Err(Errno::BADF));
    }
}

// One test: others would allocate meanwhile.
#[test]
fn an_allocation_that_fails_is_an_error_and_loses_nothing() {
    each_allocation_fails("long lists", long_lists);
    each_allocation_fails("closes", closes);
    each_allocation_fails("demotes", demotes);
    each_allocation_fails("forks", forks);
}
