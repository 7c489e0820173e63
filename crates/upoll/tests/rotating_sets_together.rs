//! Several rotating sets: at one source, of one worker, or one below the other.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod rotating;
mod threads;

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use upoll::{CreateFlags, Epoll, Event, EventFd, Events};

use rotating::{
    IN, LONG, Source, reported_after, reported_one_by_one, reports, serves_once, wait, workers_set,
};
use threads::asleep;

#[test]
fn a_wait_looks_at_all_rotating_sets_though_it_was_chosen_for_one() {
    let [counter, pipe] = Source::both();
    let (first, second) = (pipe.rotating(), counter.rotating());
    let (worker, other) = (Epoll::new().unwrap(), workers_set(&second, false));
    worker.add(&first, Event::new(Events::IN, 1)).unwrap();
    worker.add(&second, Event::new(Events::IN, 2)).unwrap();
    pipe.put();
    assert_eq!(wait(&worker, LONG), 1);
    assert!(pipe.take());
    let (served, has_served) = mpsc::channel();
    let (busy, end) = serves_once(&other, &served);
    counter.put();
    has_served.recv_timeout(LONG).unwrap();
    assert!(reports(&worker, 1) < LONG / 4);
    drop(end);
    busy.join().unwrap();
}

#[test]
fn two_rotating_sets_with_one_source_report_what_each_waits_for() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    for end in [&ours, &theirs] {
        end.set_nonblocking(true).unwrap();
    }
    let fill = || while (&ours).write(&[0; 1024]).is_ok() {};
    let drain = |mut end: &UnixStream| while end.read(&mut [0; 4096]).is_ok() {};
    let worker = Epoll::new().unwrap();
    let rotating = [(Events::IN, 1), (Events::OUT, 2)].map(|(events, data)| {
        let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
        rotating.add(&ours, Event::new(events, 0)).unwrap();
        worker.add(&rotating, Event::new(Events::IN, data)).unwrap();
        rotating
    });
    // The worker sleeps before `change` makes the socket ready.
    let reported = |change: &dyn Fn()| {
        let worker = worker.clone();
        let (waits, _) = asleep(move || {
            let (mut events, begun) = ([Event::default(); 4], Instant::now());
            let ready = worker.wait(&mut events, LONG).unwrap();
            assert!(begun.elapsed() < LONG / 4);
            events[..ready].iter().map(Event::data).collect::<Vec<_>>()
        });
        change();
        waits.join().unwrap()
    };
    for _ in 0..3 {
        fill();
        assert_eq!(reported(&|| drain(&theirs)), [2]);
        fill();
        assert_eq!(reported(&|| (&theirs).write_all(b"x").unwrap()), [1]);
        drain(&ours);
    }
    drop(rotating);
}

#[test]
fn a_source_that_stays_ready_takes_turns_with_other_members() {
    let [_, source] = Source::both();
    source.put();
    let counter = EventFd::new(1).unwrap();
    let [_, other] = Source::both();
    other.put();
    // The kernel is asked about the source only by a wait that begins with the kernel's members.
    let alternates = |reported: &[u64]| {
        let mut windows = reported.windows(3);
        windows.all(|three| [1, 2].iter().all(|data| three.contains(data)))
    };

    let [with_own, with_kernels] = [(); 2].map(|()| Epoll::new().unwrap());
    with_own.add(&counter, Event::new(Events::IN, 2)).unwrap();
    let Source::Kernel(reader, _) = &other else {
        unreachable!("the second one is the kernel's")
    };
    with_kernels.add(reader, Event::new(Events::IN, 2)).unwrap();
    for worker in [with_own, with_kernels] {
        let rotating = source.rotating();
        worker.add(&rotating, Event::new(Events::IN, 1)).unwrap();
        let reported = reported_one_by_one(&worker, 12);
        assert!(alternates(&reported), "{reported:?}");
    }
}

#[test]
fn two_rotating_sets_whose_sources_stay_ready_take_turns() {
    let sources = [(); 2].map(|()| {
        let [_, source] = Source::both();
        source.put();
        source
    });
    let worker = Epoll::new().unwrap();
    let rotating = sources.each_ref().map(Source::rotating);
    for (data, rotating) in (1..).zip(&rotating) {
        worker.add(rotating, Event::new(Events::IN, data)).unwrap();
    }
    let reported = reported_one_by_one(&worker, 8);
    for data in [1, 2] {
        let times = reported.iter().filter(|&&one| one == data).count();
        assert!(times >= 3, "{reported:?}");
    }
}

#[test]
fn a_wait_looks_at_a_rotating_set_below_a_set_that_something_else_has_queued() {
    let counter = EventFd::new(0).unwrap();
    let other = EventFd::new(0).unwrap();
    let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
    rotating.add(&counter, IN).unwrap();
    let chosen = workers_set(&rotating, false);
    let (middle, above) = (Epoll::new().unwrap(), Epoll::new().unwrap());
    let (served, has_served) = mpsc::channel();
    let (worker, end) = serves_once(&chosen, &served);
    middle.add(&rotating, IN).unwrap();
    middle.add(&other, Event::new(Events::IN, 1)).unwrap();
    above.add(&middle, IN).unwrap();
    // The worker that is chosen leaves its job.
    counter.try_write(1).unwrap();
    has_served.recv().unwrap();
    other.try_write(1).unwrap();
    other.try_read().unwrap();
    let begun = Instant::now();
    assert_eq!(wait(&above, LONG), 1);
    assert!(begun.elapsed() < LONG / 4);
    drop(end);
    worker.join().unwrap();
}

#[test]
fn a_wait_looks_at_a_rotating_set_below_a_rotating_set() {
    for direct in [false, true] {
        let counter = EventFd::new(0).unwrap();
        let below = Epoll::create(CreateFlags::ROTATE).unwrap();
        below.add(&counter, IN).unwrap();
        let chosen = workers_set(&below, false);
        let (served, has_served) = mpsc::channel();
        let (worker, end) = serves_once(&chosen, &served);
        let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
        rotating.add(&below, IN).unwrap();
        let other = workers_set(&rotating, direct);
        counter.try_write(1).unwrap();
        has_served.recv().unwrap();
        for limit in [LONG, Duration::from_millis(20)] {
            let begun = Instant::now();
            assert_eq!(wait(&other, limit), 1, "direct: {direct}, {limit:?}");
            assert!(begun.elapsed() < LONG / 4);
        }
        drop(end);
        worker.join().unwrap();
    }
}

#[test]
fn a_worker_that_comes_back_looks_at_a_rotating_set_below_its_own() {
    for direct in [false, true] {
        let (counter, [_, pipe]) = (EventFd::new(0).unwrap(), Source::both());
        let (below, rotating) = (Epoll::create(CreateFlags::ROTATE).unwrap(), pipe.rotating());
        below.add(&counter, IN).unwrap();
        let chosen = workers_set(&below, false);
        rotating.add(&below, IN).unwrap();
        let worker = workers_set(&rotating, direct);
        pipe.put();
        assert_eq!(wait(&worker, LONG), 1);
        assert!(pipe.take());
        let (served, has_served) = mpsc::channel();
        let (busy, end) = serves_once(&chosen, &served);
        counter.try_write(1).unwrap();
        has_served.recv().unwrap();
        let begun = Instant::now();
        assert_eq!(wait(&worker, LONG), 1, "direct: {direct}");
        assert!(begun.elapsed() < LONG / 4, "direct: {direct}");
        drop(end);
        busy.join().unwrap();
    }
}

#[test]
fn a_worker_of_another_set_for_the_same_source_is_woken_for_what_that_set_waits_for() {
    for asked in [
        Events::OUT | Events::ET,
        Events::OUT | Events::ERR,
        Events::OUT | Events::RDHUP,
        Events::PRI,
        Events::HUP,
    ] {
        let (source, peer) = UnixStream::pair().unwrap();
        source.set_nonblocking(true).unwrap();
        while (&source).write(&[0; 1 << 16]).is_ok() {}
        let sets = [asked, Events::IN].map(|asked| {
            let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
            rotating.add(&source, Event::new(asked, 0)).unwrap();
            let worker = workers_set(&rotating, false);
            (rotating, worker)
        });
        let waiting = |worker: &Epoll| {
            let worker = worker.clone();
            let begun = Instant::now();
            asleep(move || (wait(&worker, LONG), begun.elapsed())).0
        };
        let [first, second] = sets.each_ref().map(|(_, worker)| waiting(worker));
        (&peer).write_all(b"x").unwrap();
        let (found, after) = second.join().unwrap();
        assert!(found == 1 && after < LONG / 4, "{asked:?}: {after:?}");
        // The first one has nothing to report before the peer hangs up.
        drop(peer);
        let (found, after) = first.join().unwrap();
        assert!(found == 1 && after < LONG / 4, "{asked:?}: {after:?}");
    }
}

#[test]
fn two_rotating_sets_whose_source_lives_on_under_another_fd_report_both() {
    for is_replaced in [false, true] {
        two_sets_at_a_source_that_lives_on(is_replaced);
    }
}

/// The number of the sources is closed, and may be another file's then.
fn two_sets_at_a_source_that_lives_on(is_replaced: bool) {
    let (source, peer) = UnixStream::pair().unwrap();
    for end in [&source, &peer] {
        end.set_nonblocking(true).unwrap();
    }
    let fill = || while (&source).write(&[0; 1 << 16]).is_ok() {};
    let drain = || while matches!((&peer).read(&mut [0; 1 << 16]), Ok(1..)) {};
    let copy = source.try_clone().unwrap();
    let (reads, writes) = (
        Epoll::create(CreateFlags::ROTATE).unwrap(),
        Epoll::create(CreateFlags::ROTATE).unwrap(),
    );
    let worker = Epoll::new().unwrap();
    fill();
    for (data, rotating, events) in [(1, &reads, Events::IN), (2, &writes, Events::OUT)] {
        rotating.add(&copy, Event::new(events, 0)).unwrap();
        worker.add(rotating, Event::new(Events::IN, data)).unwrap();
    }
    let (fd, [_, another]) = (copy.as_raw_fd(), Source::both());
    let Source::Kernel(another, _) = &another else {
        unreachable!("the second one is the kernel's")
    };
    let mut copy = Some(copy);
    if is_replaced {
        // SAFETY: the fd is closed once, by `copy`.
        assert_eq!(unsafe { libc::dup2(another.as_raw_fd(), fd) }, fd);
    } else {
        copy = None;
    }
    for _ in 0..3 {
        fill();
        assert_eq!(reported_after(&worker, drain), [2]);
        fill();
        assert_eq!(
            reported_after(&worker, || (&peer).write_all(b"x").unwrap()),
            [1]
        );
        assert_eq!((&source).read(&mut [0]).unwrap(), 1);
    }
    drop(copy);
}

#[test]
fn a_source_that_gets_the_fd_of_another_one_reports_all_its_events() {
    let (first, second) = (Source::both(), Source::both());
    let [_, Source::Kernel(first, put_first)] = first else {
        unreachable!("the second one is the kernel's")
    };
    let [_, Source::Kernel(second, put_second)] = second else {
        unreachable!("the second one is the kernel's")
    };
    let copy = first.try_clone().unwrap();
    let rotating = [(); 2].map(|()| Epoll::create(CreateFlags::ROTATE).unwrap());
    let worker = Epoll::new().unwrap();
    for (data, rotating) in (1..).zip(&rotating) {
        worker.add(rotating, Event::new(Events::IN, data)).unwrap();
    }
    rotating[0].add(&first, IN).unwrap();
    // SAFETY: `first` stands for the second pipe from here on, and is closed once.
    assert!(unsafe { libc::dup2(second.as_raw_fd(), first.as_raw_fd()) } >= 0);
    rotating[1].add(&first, IN).unwrap();
    for _ in 0..2 {
        let put = || (&put_first).write_all(b"x").unwrap();
        assert_eq!(reported_after(&worker, put), [1]);
        assert_eq!((&copy).read(&mut [0]).unwrap(), 1);
    }
    let put = || (&put_second).write_all(b"x").unwrap();
    assert_eq!(reported_after(&worker, put), [2]);
}

#[test]
fn rotating_sets_that_share_a_source_and_a_worker_all_learn_of_its_end() {
    for finer in [Events::RDHUP, Events::PRI | Events::RDHUP] {
        let (source, peer) = UnixStream::pair().unwrap();
        let worker = Epoll::new().unwrap();
        let asked = [Events::IN, Events::IN, finer];
        let rotating: Vec<_> = (0..)
            .zip(asked)
            .map(|(data, asked)| {
                let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
                rotating.add(&source, Event::new(asked, 0)).unwrap();
                let edge = Event::new(Events::IN | Events::ET, data);
                worker.add(&rotating, edge).unwrap();
                rotating
            })
            .collect();
        // Each is renewed once.
        (&peer).write_all(b"x").unwrap();
        let reported = reported_after(&worker, || ());
        assert_eq!(reported, [0, 1]);
        assert_eq!((&source).read(&mut [0]).unwrap(), 1);
        let end = || peer.shutdown(std::net::Shutdown::Write).unwrap();
        let mut reported = reported_after(&worker, end);
        reported.sort_unstable();
        assert_eq!(reported, [0, 1, 2], "{finer:?}");
        drop(rotating);
    }
}
