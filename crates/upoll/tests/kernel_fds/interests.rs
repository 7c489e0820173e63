//! Interests in kernel fds: data, fds, and rotation between workers.

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use upoll::{CreateFlags, Epoll, Errno, Event, EventFd, Events, Op};

use super::host::alone;
use crate::host::{
    Both, LONG, data, edge, eventfd, eventfd_read, eventfd_write, input, pipe, ready_pipe, sorted,
    try_wait, wait,
};

#[test]
fn data_comes_back_unchanged() {
    let _alone = alone();
    let both = Both::new();
    let words = [
        0,
        1,
        u64::MAX,
        u64::MAX - 1,
        1 << 63,
        (1 << 63) - 1,
        1 << 32,
        0x9e37_79b9_7f4a_7c15,
        0x5555_5555_5555_5555,
    ];
    let pipes: Vec<_> = words.iter().map(|_| ready_pipe()).collect();
    for (word, (reader, _)) in words.iter().zip(&pipes) {
        both.add(reader, input(*word));
    }
    let mut expected: Vec<_> = words.iter().map(|&word| (word, Events::IN)).collect();
    expected.sort_unstable_by_key(|&(word, _)| word);
    assert_eq!(both.try_wait(), expected);
    // Data equal to upoll's internal words is ordinary data, with sets below and above as well.
    let (above, below) = (Epoll::new().unwrap(), Epoll::new().unwrap());
    below.add(&eventfd(), input(1)).unwrap();
    both.ours.add(&below, input(7)).unwrap();
    above.add(&both.ours, input(u64::MAX)).unwrap();
    assert_eq!(both.try_wait(), expected);
    assert_eq!(data(&wait(&above, 4, LONG)), [u64::MAX]);
}

#[test]
fn a_small_buffer_gets_all_members_in_turn() {
    let _alone = alone();
    let set = Epoll::new().unwrap();
    let pipes: Vec<_> = (0..5).map(|_| ready_pipe()).collect();
    let counters: Vec<_> = (0..5).map(|_| EventFd::new(1).unwrap()).collect();
    for (at, (reader, _)) in pipes.iter().enumerate() {
        set.add(reader, input(at as u64)).unwrap();
    }
    for (at, counter) in counters.iter().enumerate() {
        set.add(counter, input(5 + at as u64)).unwrap();
    }
    for room in [1, 2, 3] {
        let mut seen = [0; 10];
        for _ in 0..120 / room {
            let events = wait(&set, room, LONG);
            assert_eq!(events.len(), room);
            for event in data(&events) {
                seen[usize::try_from(event).unwrap()] += 1;
            }
        }
        let (least, most) = (seen.iter().min().unwrap(), seen.iter().max().unwrap());
        assert!(*least >= 10 && *most <= 14, "room {room}: {seen:?}");
    }
}

#[test]
fn an_fd_used_again_means_the_new_file() {
    let _alone = alone();
    let both = Both::new();
    let old = eventfd();
    let fd = old.as_raw_fd();
    both.add(&old, input(1));
    eventfd_write(&old);
    assert_eq!(both.try_wait(), [(1, Events::IN)]);
    // dup2 over the fd closes the old file, which leaves both sets.
    let other = eventfd();
    // SAFETY: `old` owns the fd, and goes on owning it.
    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), fd) }, fd);
    assert_eq!(both.try_wait(), []);
    eventfd_write(&other);
    assert_eq!(both.try_wait(), []);
    assert_eq!(both.ctl(Op::Mod, old.as_fd(), input(2)), Err(Errno::NOENT));
    both.add(&old, input(3));
    assert_eq!(both.try_wait(), [(3, Events::IN)]);
    assert_eq!(both.ours.len(), 1);
}

#[test]
fn a_dup_is_an_interest_of_its_own_and_outlives_the_fd() {
    let _alone = alone();
    let both = Both::new();
    let counter = eventfd();
    let dup = counter.try_clone().unwrap();
    both.add(&counter, input(1));
    both.add(&dup, edge(2));
    eventfd_write(&counter);
    assert_eq!(both.try_wait(), [(1, Events::IN), (2, Events::IN)]);
    assert_eq!(both.try_wait(), [(1, Events::IN)]);
    // The fd is closed, but the file stays open, and so does the interest.
    drop(counter);
    assert_eq!(both.try_wait(), [(1, Events::IN)]);
    eventfd_write(&dup);
    assert_eq!(both.try_wait(), [(1, Events::IN), (2, Events::IN)]);
    assert_eq!(both.ours.len(), 2);
    drop(dup);
    assert_eq!(both.try_wait(), []);
    assert!(both.ours.is_empty());
}

#[test]
fn the_interests_in_descriptors_are_those_whose_fds_stand_for_them() {
    let _alone = alone();
    for rotates in [false, true] {
        let set = Epoll::create(match rotates {
            true => CreateFlags::ROTATE,
            false => CreateFlags::empty(),
        })
        .unwrap();
        // A user-level member and the set's internal fds do not count as kernel fds.
        let above = Epoll::new().unwrap();
        above.add(&set, input(9)).unwrap();
        if !rotates {
            set.add(&EventFd::new(1).unwrap(), input(8)).unwrap();
        }
        assert_eq!(set.kernel_interests().unwrap(), []);
        let (socket, _peer) = UnixStream::pair().unwrap();
        for fd in [socket.as_fd(), eventfd().as_fd()] {
            let raw = fd.as_raw_fd();
            set.add(&fd, edge(1)).unwrap();
            let found = set.kernel_interests().unwrap();
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].0, raw);
            assert_eq!(found[0].1.data(), 1);
            let wanted = found[0].1.events();
            assert_eq!(wanted - Events::ERR - Events::HUP, Events::IN | Events::ET);
            // The file stays open, and so does the interest, but the fd means another file.
            let kept = fd.try_clone_to_owned().unwrap();
            // SAFETY: no pointers are involved; both fds are this test's.
            assert_eq!(unsafe { libc::dup2(eventfd().as_raw_fd(), raw) }, raw);
            assert_eq!(set.kernel_interests().unwrap(), []);
            // SAFETY: as above.
            assert_eq!(unsafe { libc::dup2(kept.as_raw_fd(), raw) }, raw);
            assert_eq!(set.kernel_interests().unwrap(), found);
            set.delete(&fd).unwrap();
        }
    }
}

#[test]
fn a_file_closed_while_it_is_ready_is_not_reported() {
    let _alone = alone();
    let both = Both::new();
    let keep = eventfd();
    both.add(&keep, input(1));
    for _ in 0..100 {
        let gone: OwnedFd = eventfd();
        both.add(&gone, input(2));
        eventfd_write(&gone);
        drop(gone);
        assert_eq!(both.try_wait(), []);
    }
    assert_eq!(both.ours.len(), 1);
}

/// Starts a thread that sleeps in each of `sets` sets that watch one pipe with `interest`. Returns how many
/// of them one write wakes: waits for `least`, and a moment for more.
fn woken_by_one_write(sets: usize, interest: Events, least: usize) -> usize {
    let (mut reader, mut writer) = pipe();
    let reader_fd = Arc::new(OwnedFd::from(reader.try_clone().unwrap()));
    let woken = Arc::new(AtomicUsize::new(0));
    let barrier = Arc::new(Barrier::new(sets + 1));
    let stop = EventFd::new(0).unwrap();
    let threads: Vec<_> = (0..sets)
        .map(|_| {
            let (fd, woken, barrier) = (reader_fd.clone(), woken.clone(), barrier.clone());
            let stop = stop.clone();
            thread::spawn(move || {
                let set = Epoll::new().unwrap();
                set.add(&*fd, Event::new(interest, 1)).unwrap();
                set.add(&stop, input(2)).unwrap();
                barrier.wait();
                loop {
                    let events = wait(&set, 4, 2 * LONG);
                    woken.fetch_add(
                        data(&events).iter().filter(|&&d| d == 1).count(),
                        Ordering::SeqCst,
                    );
                    if data(&events).contains(&2) {
                        return;
                    }
                    assert!(!events.is_empty());
                }
            })
        })
        .collect();
    barrier.wait();
    thread::sleep(Duration::from_millis(100));
    writer.write_all(b"x").unwrap();
    let begun = Instant::now();
    while woken.load(Ordering::SeqCst) < least && begun.elapsed() < LONG {
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(Duration::from_millis(100));
    let count = woken.load(Ordering::SeqCst);
    // Otherwise level-triggered members would be reported together with `stop`.
    reader.read_exact(&mut [0]).unwrap();
    stop.try_write(1).unwrap();
    for thread in threads {
        thread.join().unwrap();
    }
    count
}

#[test]
fn an_exclusive_interest_wakes_one_set_of_several() {
    let _alone = alone();
    let exclusive = Events::IN | Events::ET | Events::EXCLUSIVE;
    let shared = Events::IN | Events::ET;
    assert_eq!(woken_by_one_write(4, shared, 4), 4);
    // A thread that was not asleep yet may find the byte as well: on a busy machine all of them now and then.
    let mut woken = 0;
    let is_not_all = (0..20).any(|_| {
        woken = woken_by_one_write(4, exclusive, 1);
        woken < 4
    });
    assert!(is_not_all && woken >= 1, "{woken}");
}

#[test]
fn an_exclusive_interest_has_the_kernels_errors() {
    let _alone = alone();
    let both = Both::new();
    let counter = eventfd();
    let exclusive = Events::IN | Events::EXCLUSIVE;
    let ctl = |op, events| both.ctl(op, counter.as_fd(), Event::new(events, 1));
    assert_eq!(ctl(Op::Add, exclusive | Events::ONESHOT), Err(Errno::INVAL));
    assert_eq!(ctl(Op::Add, exclusive | Events::RDHUP), Err(Errno::INVAL));
    assert_eq!(ctl(Op::Add, exclusive), Ok(()));
    assert_eq!(ctl(Op::Add, exclusive), Err(Errno::EXIST));
    assert_eq!(ctl(Op::Mod, exclusive), Err(Errno::INVAL));
    assert_eq!(ctl(Op::Mod, Events::IN), Err(Errno::INVAL));
    eventfd_write(&counter);
    assert_eq!(both.try_wait(), [(1, Events::IN)]);
    eventfd_read(&counter);
    assert_eq!(ctl(Op::Del, exclusive), Ok(()));
}

#[test]
fn fdinfo_and_len_show_members_of_both_kinds_and_nothing_else() {
    let _alone = alone();
    let set = Epoll::new().unwrap();
    let below = Epoll::new().unwrap();
    let counter = EventFd::new(0).unwrap();
    let (reader, _writer) = pipe();
    let fd = eventfd();
    below.add(&fd, input(0xb)).unwrap();
    set.add(&counter, input(0xaa)).unwrap();
    set.add(&reader, edge(0xbb)).unwrap();
    set.add(&fd, input(0xcc)).unwrap();
    set.add(&below, input(0xdd)).unwrap();
    assert_eq!(set.len(), 4);
    let info = set.fdinfo().unwrap();
    assert_eq!(info.lines().count(), 4, "{info}");
    let line = |fd: i32, events: u32, data: u64| {
        format!("tfd: {fd:8} events: {events:8x} data: {data:16x} ")
    };
    // Every interest includes ERR and HUP.
    for expected in [
        line(0, 0x19, 0xaa),
        line(reader.as_raw_fd(), 0x8000_0019, 0xbb),
        line(fd.as_raw_fd(), 0x19, 0xcc),
        line(0, 0x19, 0xdd),
    ] {
        assert!(info.contains(&expected), "{expected:?} in {info}");
    }
    set.delete(&reader).unwrap();
    drop(fd);
    assert_eq!((set.len(), below.len()), (2, 0));
    set.delete(&below).unwrap();
    set.delete(&counter).unwrap();
    assert_eq!((set.fdinfo().unwrap().as_str(), set.is_empty()), ("", true));
}

#[test]
fn a_harvest_leaves_what_does_not_fit() {
    let _alone = alone();
    let set = Epoll::new().unwrap();
    let pipes: Vec<_> = (0..3).map(|_| ready_pipe()).collect();
    let counters: Vec<_> = (0..3).map(|_| EventFd::new(1).unwrap()).collect();
    for (at, (reader, _)) in pipes.iter().enumerate() {
        set.add(reader, edge(at as u64)).unwrap();
    }
    for (at, counter) in counters.iter().enumerate() {
        set.add(counter, edge(3 + at as u64)).unwrap();
    }
    let mut seen = Vec::new();
    for _ in 0..3 {
        let events = try_wait(&set, 2);
        assert_eq!(events.len(), 2);
        seen.extend(sorted(&events).iter().map(|pair| pair.0));
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3, 4, 5]);
    assert!(try_wait(&set, 2).is_empty());
}
