//! `poll_now`, `select_now` and those of a context: the same with and without the feature `std`.
#![cfg(not(upoll_loom))]

use upoll::{EventFd, Events, FdSet, PollContext, PollFd, Source};

fn counters() -> [EventFd; 2] {
    [0, 1].map(|count| EventFd::new(count).unwrap())
}

#[test]
fn ready_entries_are_found_without_a_wait() {
    let counters = counters();
    let mut context = PollContext::new();
    for round in 0..3 {
        let mut fds = counters
            .each_ref()
            .map(|counter| PollFd::new(counter, Events::IN));
        assert_eq!(upoll::poll_now(&mut fds), Ok(1), "round {round}");
        assert_eq!(
            fds.map(|fd| fd.revents()),
            [Events::empty(), Events::IN],
            "round {round}"
        );
        assert_eq!(context.poll_now(&mut fds), Ok(1), "round {round}");
        assert_eq!(fds[1].revents(), Events::IN, "round {round}");
    }
}

#[test]
fn ready_members_are_left_in_the_sets_without_a_wait() {
    let counters = counters();
    let resolve = |fd: i32| Some(counters.get(usize::try_from(fd).ok()?)?.target());
    let mut context = PollContext::new();
    for _ in 0..3 {
        let mut read = FdSet::from_iter([0, 1]);
        let mut write = FdSet::from_iter([0]);
        let found = upoll::select_now(2, Some(&mut read), Some(&mut write), None, resolve);
        assert_eq!(found, Ok(2));
        assert!(read.iter().eq([1]) && write.iter().eq([0]));
        let mut read = FdSet::from_iter([0, 1]);
        let found = context.select_now(2, Some(&mut read), None, None, resolve);
        assert_eq!(found, Ok(1));
        assert!(read.iter().eq([1]));
    }
    let mut read = FdSet::from_iter([2]);
    let closed = upoll::select_now(3, Some(&mut read), None, None, resolve);
    assert_eq!(closed, Err(upoll::Errno::BADF));
}

#[cfg(feature = "std")]
#[test]
fn kernel_fds_are_found_as_the_kernel_finds_them() {
    use std::io::Write;
    use std::os::fd::AsRawFd;

    let (reader, mut writer) = std::io::pipe().unwrap();
    for is_written in [false, true] {
        if is_written {
            writer.write_all(b"x").unwrap();
        }
        let mut natively = libc::pollfd {
            fd: reader.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry.
        let expected = unsafe { libc::poll(&raw mut natively, 1, 0) };
        let mut fds = [PollFd::new(&reader, Events::IN)];
        assert_eq!(
            upoll::poll_now(&mut fds),
            Ok(usize::try_from(expected).unwrap())
        );
        assert_eq!(
            fds[0].revents().contains(Events::IN),
            natively.revents & libc::POLLIN != 0
        );
    }
}
