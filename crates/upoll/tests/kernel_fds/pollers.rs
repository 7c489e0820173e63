//! `poll` and `select` of sets that hold kernel fds.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use upoll::{CreateFlags, Epoll, Event, EventFd, Events, FdSet, PollFd, Source};

use super::host::{LONG, alone, wait};
use super::processor_time::processor_time;

const IN: Event = Event::new(Events::IN, 1);

/// Polls until the set is ready, which must happen long before the limit, and checks that it is
/// idle after `drain`.
fn polled(set: &Epoll, by_select: bool) -> usize {
    let begun = Instant::now();
    let ready = if by_select {
        let mut read = FdSet::from_iter([0]);
        upoll::select(1, Some(&mut read), None, None, &mut LONG.into(), |_| {
            Some(set.target())
        })
    } else {
        upoll::poll(&mut [PollFd::new(set, Events::IN)], LONG)
    };
    assert!(begun.elapsed() < LONG, "a wake was lost");
    ready.unwrap()
}

fn is_idle(set: &Epoll) -> bool {
    upoll::poll(&mut [PollFd::new(set, Events::IN)], Duration::ZERO).unwrap() == 0
}

#[test]
fn a_sleeping_poll_of_a_set_wakes_for_its_descriptors_and_its_objects() {
    let _alone = alone();
    for flags in [CreateFlags::empty(), CreateFlags::ROTATE] {
        for by_select in [false, true] {
            let set = Epoll::create(flags).unwrap();
            let (mut near, mut far) = UnixStream::pair().unwrap();
            set.add(&far, IN).unwrap();
            let counter = EventFd::new(0).unwrap();
            if flags.is_empty() {
                set.add(&counter, IN).unwrap();
            }
            for round in 0..20 {
                assert!(is_idle(&set));
                let by_object = flags.is_empty() && round % 2 == 0;
                thread::scope(|scope| {
                    scope.spawn(|| {
                        thread::sleep(Duration::from_millis(1));
                        if by_object {
                            counter.try_write(1).unwrap();
                        } else {
                            near.write_all(b"x").unwrap();
                        }
                    });
                    assert_eq!(polled(&set, by_select), 1);
                });
                if by_object {
                    counter.try_read().unwrap();
                } else {
                    far.read_exact(&mut [0]).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_poll_that_sleeps_when_the_first_descriptor_comes_is_woken_by_it() {
    let _alone = alone();
    for late in ["descriptor", "set below"] {
        let set = Epoll::new().unwrap();
        let below = Epoll::new().unwrap();
        let (mut near, far) = UnixStream::pair().unwrap();
        let (_idle, other) = UnixStream::pair().unwrap();
        if late == "set below" {
            set.add(&other, IN).unwrap();
            below.add(&far, IN).unwrap();
        }
        thread::scope(|scope| {
            let poller = scope.spawn(|| polled(&set, false));
            thread::sleep(Duration::from_millis(20));
            if late == "descriptor" {
                set.add(&far, IN).unwrap();
            } else {
                set.add(&below, IN).unwrap();
            }
            thread::sleep(Duration::from_millis(20));
            assert!(!poller.is_finished());
            near.write_all(b"x").unwrap();
            assert_eq!(poller.join().unwrap(), 1);
        });
    }
}

#[test]
fn a_poll_of_a_rotating_set_sees_its_source_and_the_sets_below() {
    let _alone = alone();
    let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
    let below = Epoll::new().unwrap();
    let (mut source_near, mut source_far) = UnixStream::pair().unwrap();
    let (mut below_near, mut below_far) = UnixStream::pair().unwrap();
    rotating.add(&source_far, IN).unwrap();
    rotating.add(&below, IN).unwrap();
    below.add(&below_far, IN).unwrap();
    let worker = Epoll::new().unwrap();
    worker.add(&rotating, IN).unwrap();
    for _ in 0..5 {
        for (near, far) in [
            (&mut source_near, &mut source_far),
            (&mut below_near, &mut below_far),
        ] {
            assert!(is_idle(&rotating));
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(1));
                    near.write_all(b"x").unwrap();
                });
                assert_eq!(polled(&rotating, false), 1);
            });
            assert_eq!(wait(&worker, 4, LONG).len(), 1);
            far.read_exact(&mut [0]).unwrap();
            assert!(wait(&worker, 4, Duration::from_millis(1)).is_empty());
        }
    }
}

#[test]
fn a_poll_does_not_spin_on_a_wake_fd_that_was_written_for_another_thread() {
    let _alone = alone();
    let set = Epoll::new().unwrap();
    let (_near, far) = UnixStream::pair().unwrap();
    set.add(&far, IN).unwrap();
    let counter = EventFd::new(0).unwrap();
    set.add(&counter, Event::new(Events::IN | Events::ET, 2))
        .unwrap();
    // A thread sleeps in the set, is woken through the set's wake fd, and takes the edge.
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| wait(&set, 4, LONG).len());
        thread::sleep(Duration::from_millis(20));
        counter.try_write(1).unwrap();
        assert_eq!(sleeper.join().unwrap(), 1);
    });
    let before = processor_time();
    let idle = upoll::poll(
        &mut [PollFd::new(&set, Events::IN)],
        Duration::from_millis(300),
    );
    assert_eq!(idle, Ok(0));
    assert!(
        processor_time() - before < Duration::from_millis(150),
        "it slept"
    );
}
