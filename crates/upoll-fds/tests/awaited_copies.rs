//! The program closes the copy of an fd that a callback is about to wait for.
#![cfg(not(upoll_loom))]

mod notified;

use std::io::Write;
use std::os::fd::{AsFd, RawFd};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use self::notified::{Answer, Call, Which, answered};
use upoll::{Events, Watch};

/// The second wait gets the fd that the first one had, for the same file.
#[test]
fn a_wait_that_loses_its_copy_as_it_begins_takes_no_events_of_the_next_one() {
    const CHANGES: Which = Which {
        number: libc::SYS_epoll_ctl,
        argument: 1,
        bits: libc::EPOLL_CTL_MOD.cast_unsigned(),
    };
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (idle, _writer) = std::io::pipe().unwrap();
    // With the first one come the fds that all share.
    let _first = Watch::new(&idle.as_fd(), Events::IN, |_| {}).unwrap();
    let other = reader.try_clone().unwrap();
    let (send, receive) = mpsc::channel();
    let (keep, kept) = mpsc::channel();
    let mut parts = Some((other, send, keep));
    let closes = |call: &Call| {
        let [_, op, fd, ..] = call.arguments();
        if op == u64::from(libc::EPOLL_CTL_MOD.cast_unsigned())
            && let Some((other, send, keep)) = parts.take()
        {
            // SAFETY: the fd is the library's.
            assert_eq!(unsafe { libc::close(RawFd::try_from(fd).unwrap()) }, 0);
            let begins = thread::spawn(move || {
                let called = move |_| _ = send.send(());
                keep.send(Watch::new(&other.as_fd(), Events::IN, called).unwrap())
                    .unwrap();
            });
            for _ in 0..100 {
                if begins.is_finished() {
                    break;
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
        Answer::Kernels
    };
    let watched = answered(CHANGES, closes, || {
        Watch::new(&reader.as_fd(), Events::IN, |_| {})
    });
    let _kept = kept.recv_timeout(Duration::from_secs(60)).unwrap();
    writer.write_all(b"x").unwrap();
    assert_eq!(receive.recv_timeout(Duration::from_secs(60)), Ok(()));
    drop(watched);
}
