//! Waits in rotating sets and in workers' sets: each event reaches a waiting thread, whatever
//! happens to the worker that was chosen for it. No kernel has rotating sets, so there is no
//! oracle.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod rotating;
mod threads;

use std::cell::Cell;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use upoll::{
    CreateFlags, Epoll, Errno, Event, EventFd, Events, PollContext, PollFd, SocketFlags, Watch,
    socketpair,
};

use rotating::{
    IN, LONG, Source, reported_after, reported_one_by_one, reports, serves_once, wait, workers_set,
};
use threads::asleep;

std::thread_local! {
    /// The number of times that this thread has yielded the processor.
    static YIELDS: Cell<usize> = const { Cell::new(0) };
}

/// Replaces the C library's function, and counts.
#[unsafe(no_mangle)]
extern "C" fn sched_yield() -> libc::c_int {
    let _ = YIELDS.try_with(|yields| yields.set(yields.get() + 1));
    // SAFETY: the call takes no arguments.
    unsafe { libc::syscall(libc::SYS_sched_yield) };
    0
}

fn in_all_ways(test: impl Fn(&Source, &Epoll, bool)) {
    for direct in [false, true] {
        for source in Source::both() {
            test(&source, &source.rotating(), direct);
        }
    }
}

#[test]
fn a_wait_with_a_limit_reports_a_job_that_a_busy_worker_has_left() {
    in_all_ways(|source, rotating, direct| {
        let (served, has_served) = mpsc::channel();
        let (busy, end) = serves_once(&workers_set(rotating, direct), &served);
        source.put();
        has_served.recv_timeout(LONG).unwrap();
        // The busy worker was chosen, and does not take the job.
        let late = workers_set(rotating, direct);
        assert_eq!(wait(&late, Duration::from_millis(50)), 1);
        assert_eq!(wait(&late, Duration::ZERO), 1);
        drop(end);
        busy.join().unwrap();
    });
}

#[test]
fn a_wait_reports_a_job_that_is_there_when_its_limit_ends() {
    in_all_ways(|source, rotating, direct| {
        finds_a_job_at_the_end_of_its_limit(source, rotating, direct, wait);
    });
}

/// A worker is chosen for a job and leaves it, while another thread waits by `wait`, with a limit. Tried until the job has come
/// before the limit has ended.
fn finds_a_job_at_the_end_of_its_limit(
    source: &Source,
    rotating: &Epoll,
    direct: bool,
    wait: fn(&Epoll, Duration) -> usize,
) {
    for tries in 1.. {
        let sets = [(); 2].map(|()| workers_set(rotating, direct));
        let (served, has_served) = mpsc::channel();
        let (busy, end) = serves_once(&sets[0], &served);
        let second = sets[1].clone();
        let limit = tries * Duration::from_millis(300);
        let begun = Instant::now();
        let (waits, _) = asleep(move || wait(&second, limit));
        source.put();
        // The wait has not begun before `begun`.
        let is_in_time = begun.elapsed() < limit;
        has_served.recv_timeout(LONG).unwrap();
        let found = waits.join().unwrap();
        drop(end);
        busy.join().unwrap();
        assert!(source.take());
        if is_in_time {
            assert_eq!(found, 1, "direct {direct}");
            return;
        }
    }
}

#[test]
fn a_chosen_worker_that_does_not_run_keeps_no_event_from_a_thread_that_waits() {
    for direct in [false, true] {
        for limit in [LONG, Duration::from_millis(50), Duration::ZERO] {
            let source = &Source::both()[0];
            let rotating = source.rotating();
            let [chosen, set] = [false, direct].map(|direct| workers_set(&rotating, direct));
            let _awaiting = Watch::new(&chosen, Events::IN, |_| {});
            // The first worker is chosen because its set is awaited. It never polls the source.
            source.put();
            let begun = Instant::now();
            assert_eq!(wait(&set, limit), 1, "direct {direct}, {limit:?}");
            assert!(begun.elapsed() < LONG / 2);
        }
    }
}

#[test]
fn a_worker_whose_thread_ends_leaves_its_job_to_the_next() {
    in_all_ways(|source, rotating, direct| {
        // The sets stay open.
        let sets = [(); 3].map(|()| workers_set(rotating, direct));
        let served = sets.each_ref().map(|set| {
            let (served, has_served) = mpsc::channel();
            (serves_once(set, &served), has_served)
        });
        source.put();
        for ((thread, end), has_served) in served {
            has_served.recv_timeout(LONG).unwrap();
            // The thread ends without polling the source again.
            drop(end);
            thread.join().unwrap();
        }
        assert!(source.take());
    });
}

/// A thread that `chosen` has just woken for a job ends without taking it, while a second worker
/// sleeps without a time limit.
fn ends_without_a_look(chosen: impl Fn(&Epoll) -> usize + Clone + Send + 'static) {
    for source in Source::both() {
        let rotating = source.rotating();
        let sets = [(); 2].map(|()| workers_set(&rotating, false));
        let (first, chosen) = (sets[0].clone(), chosen.clone());
        let (ends, _) = asleep(move || chosen(&first));
        let (served, has_served) = mpsc::channel();
        let (waits, end) = serves_once(&sets[1], &served);
        source.put();
        assert_eq!(ends.join().unwrap(), 1);
        has_served.recv_timeout(LONG).unwrap();
        drop(end);
        waits.join().unwrap();
        assert!(source.take());
    }
}

fn polls(set: &Epoll) -> usize {
    upoll::poll(&mut [PollFd::new(set, Events::IN)], 3 * LONG).unwrap()
}

#[test]
fn a_thread_that_was_chosen_in_poll_and_ends_leaves_its_job_to_the_next() {
    ends_without_a_look(polls);
}

#[test]
fn a_thread_that_was_chosen_in_a_poll_context_and_ends_leaves_its_job_to_the_next() {
    ends_without_a_look(|set| {
        let mut list = [PollFd::new(set, Events::IN)];
        PollContext::new().poll(&mut list, 3 * LONG).unwrap()
    });
}

#[test]
fn a_thread_that_took_its_job_without_a_wait_and_ends_leaves_it_to_the_next() {
    ends_without_a_look(|set| polls(set).min(wait(set, Duration::ZERO)));
}

#[test]
fn a_thread_that_was_chosen_in_a_set_above_its_own_and_ends_leaves_its_job_to_the_next() {
    ends_without_a_look(|set| {
        let [middle, top] = [(); 2].map(|()| Epoll::new().unwrap());
        middle.add(set, IN).unwrap();
        top.add(&middle, IN).unwrap();
        wait(&top, 3 * LONG)
    });
}

#[test]
fn a_poll_whose_limit_ends_keeps_no_job_that_it_was_chosen_for_just_then() {
    let source = &Source::both()[0];
    let rotating = source.rotating();
    let [polled, waited] = [(); 2].map(|()| workers_set(&rotating, false));
    for round in 0..3_000_u32 {
        let (polled, rotating) = (polled.clone(), waited.clone());
        std::thread::scope(|scope| {
            let waits = scope.spawn(move || wait(&rotating, LONG));
            let limit = Duration::from_micros(50);
            let polls = scope.spawn(move || {
                upoll::poll(&mut [PollFd::new(&polled, Events::IN)], limit).unwrap()
            });
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_nanos(u64::from(50_000 + round % 200 * 1_000)) {
                std::hint::spin_loop();
            }
            source.put();
            let has_seen = polls.join().unwrap();
            if has_seen > 0 {
                // The polling thread leaves the job to the other one.
                source.put();
            }
            assert_eq!(waits.join().unwrap(), 1, "{round}");
        });
        while source.take() {}
    }
}

#[test]
fn a_poll_that_begins_reports_a_job_that_a_busy_worker_has_left() {
    for source in Source::both() {
        let rotating = source.rotating();
        let (served, has_served) = mpsc::channel();
        let (busy, end) = serves_once(&workers_set(&rotating, false), &served);
        let late = workers_set(&rotating, false);
        let above = Epoll::new().unwrap();
        above.add(&late, IN).unwrap();
        let mut context = PollContext::new();
        let mut list = [PollFd::new(&late, Events::IN)];
        assert_eq!(context.poll(&mut list, Duration::ZERO), Ok(0));
        source.put();
        has_served.recv_timeout(LONG).unwrap();
        // The context was chosen, and does not take the job.
        assert_eq!(context.poll(&mut list, LONG), Ok(1));
        assert_eq!(upoll::poll(&mut list, LONG), Ok(1));
        assert_eq!(wait(&above, LONG), 1);
        drop(end);
        busy.join().unwrap();
    }
}

#[test]
fn a_poll_reports_a_job_that_is_there_when_its_limit_ends() {
    for source in Source::both() {
        finds_a_job_at_the_end_of_its_limit(&source, &source.rotating(), false, |set, limit| {
            upoll::poll(&mut [PollFd::new(set, Events::IN)], limit).unwrap()
        });
    }
}

#[test]
fn a_chosen_worker_that_does_not_come_keeps_others_from_a_job_once_only() {
    for direct in [false, true] {
        let source = &Source::both()[0];
        let rotating = source.rotating();
        let [chosen, set] = [false, direct].map(|direct| workers_set(&rotating, direct));
        let _awaiting = Watch::new(&chosen, Events::IN, |_| {});
        source.put();
        reports(&set, 2);
        // A wait for the chosen worker would take a millisecond in each call.
        let fastest = (0..100).map(|_| reports(&set, 100)).min().unwrap();
        assert!(
            fastest < Duration::from_millis(50),
            "direct {direct}: {fastest:?}"
        );
    }
}

#[test]
fn a_source_that_hangs_up_gets_every_waiting_worker_out() {
    const WORKERS: usize = 5;
    for direct in [false, true] {
        for kernel in [false, true] {
            let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
            let (reader, writer);
            let (near, far);
            let hang_up: Box<dyn FnOnce()> = if kernel {
                (reader, writer) = std::io::pipe().unwrap();
                rotating.add(&reader, IN).unwrap();
                Box::new(move || drop(writer))
            } else {
                (near, far) = socketpair(SocketFlags::empty()).unwrap();
                rotating.add(&near, IN).unwrap();
                Box::new(move || drop(far))
            };
            let sets = [(); WORKERS].map(|()| workers_set(&rotating, direct));
            let (served, has_served) = mpsc::channel();
            // No thread ends or waits again before all have returned.
            let threads = sets.each_ref().map(|set| serves_once(set, &served));
            hang_up();
            for at in 0..WORKERS {
                has_served
                    .recv_timeout(LONG)
                    .unwrap_or_else(|_| panic!("direct {direct}, kernel {kernel}: {at} are out"));
            }
            // Later waits return as well.
            assert_eq!(wait(&sets[0], LONG), 1);
            assert_eq!(wait(&sets[1], LONG), 1);
            for (thread, end) in threads {
                drop(end);
                thread.join().unwrap();
            }
        }
    }
}

/// A source that shows the end by `ERR` alone, and one of the kernel's.
#[test]
fn a_source_that_only_sends_gets_every_waiting_worker_out_when_its_receiver_is_gone() {
    const WORKERS: usize = 3;
    const OUT: Event = Event::new(Events::OUT, 0);
    for direct in [false, true] {
        for kernel in [false, true] {
            let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
            let (reader, mut writer);
            let (sender, receiver);
            let close: Box<dyn FnOnce()> = if kernel {
                (reader, writer) = std::io::pipe().unwrap();
                // SAFETY: the call takes no pointers.
                let room = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_GETPIPE_SZ) };
                let room = usize::try_from(room).unwrap();
                writer.write_all(&vec![0; room]).unwrap();
                rotating.add(&writer, OUT).unwrap();
                Box::new(move || drop(reader))
            } else {
                (sender, receiver) = upoll::channel::bounded(1).unwrap();
                sender.try_send(()).unwrap();
                rotating.add(&sender, OUT).unwrap();
                Box::new(move || drop(receiver))
            };
            let sets = [(); WORKERS].map(|()| workers_set(&rotating, direct));
            let (served, has_served) = mpsc::channel();
            // No thread ends or waits again before all have returned.
            let threads = sets.each_ref().map(|set| serves_once(set, &served));
            close();
            for at in 0..WORKERS {
                has_served
                    .recv_timeout(LONG)
                    .unwrap_or_else(|_| panic!("direct {direct}, kernel {kernel}: {at} are out"));
            }
            for (thread, end) in threads {
                drop(end);
                thread.join().unwrap();
            }
        }
    }
}

/// A set below a rotating one has both kinds of members, and each becomes ready. Both events wake a worker, also if
/// the first one that runs sees both.
#[test]
fn two_events_of_a_set_below_wake_two_workers() {
    for direct in [false, true] {
        // The order in which threads run decides what the first worker sees.
        for _ in 0..20 {
            let [counter, pipe] = Source::both();
            let (below, rotating) = (
                Epoll::new().unwrap(),
                Epoll::create(CreateFlags::ROTATE).unwrap(),
            );
            for source in [&counter, &pipe] {
                source.add_to(&below);
            }
            rotating.add(&below, IN).unwrap();
            let (served, receive) = mpsc::channel();
            let worker = |()| serves_once(&workers_set(&rotating, direct), &served);
            let workers = [(), ()].map(worker);
            counter.put();
            pipe.put();
            for _ in &workers {
                receive.recv_timeout(LONG).expect("an event woke no worker");
            }
            for (thread, end) in workers {
                drop(end);
                thread.join().unwrap();
            }
        }
    }
}

#[test]
fn a_thread_that_comes_to_an_event_that_is_there_lets_nobody_run_first() {
    in_all_ways(|source, rotating, direct| {
        let sets = [(); 2].map(|()| workers_set(rotating, direct));
        source.put();
        let before = YIELDS.get();
        // The other worker is first in line and never polls.
        assert_eq!(wait(&sets[1], LONG), 1);
        assert_eq!(wait(&sets[1], LONG), 1);
        assert_eq!(YIELDS.get(), before);
    });
}

#[test]
fn a_thread_that_waits_in_a_rotating_set_is_no_level_of_nesting() {
    let source = &Source::both()[1];
    let rotating = source.rotating();
    // The deepest nesting that is allowed.
    let below = [(); 4].map(|()| Epoll::new().unwrap());
    for pair in below.windows(2) {
        pair[0].add(&pair[1], IN).unwrap();
    }
    rotating.add(&below[0], IN).unwrap();
    assert_eq!(wait(&rotating, Duration::from_millis(1)), 0);
    source.put();
    assert_eq!(wait(&rotating, LONG), 1);
    assert!(source.take());
    // A waiting thread is no level for a set above the rotating one either.
    let top = Epoll::new().unwrap();
    assert_eq!(top.add(&rotating, IN), Err(Errno::LOOP));
    rotating.delete(&below[0]).unwrap();
    rotating.add(&below[1], IN).unwrap();
    top.add(&rotating, IN).unwrap();
    source.put();
    assert_eq!(wait(&rotating, LONG), 1);
    // A member below wakes a waiting thread, even if it was added after the wait began.
    assert!(source.take());
    let (reader, writer) = std::io::pipe().unwrap();
    let set = rotating.clone();
    let (waits, _) = asleep(move || wait(&set, 3 * LONG));
    below[3].add(&reader, IN).unwrap();
    (&writer).write_all(b"x").unwrap();
    assert_eq!(waits.join().unwrap(), 1);
}

#[test]
fn more_threads_than_paths_are_allowed_wait_in_a_rotating_set() {
    const THREADS: usize = 520;
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure is live; the calls read or fill it.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_max.min(8192);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
    let (reader, writer) = std::io::pipe().unwrap();
    let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
    rotating.add(&reader, IN).unwrap();
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let set = rotating.clone();
            let waits = move || set.wait(&mut [Event::default()], 3 * LONG);
            let builder = std::thread::Builder::new().stack_size(256 << 10);
            builder.spawn(waits).unwrap()
        })
        .collect();
    // The threads end if all of them are there, or none.
    std::thread::sleep(Duration::from_millis(200));
    drop(writer);
    for thread in threads {
        assert_eq!(thread.join().unwrap(), Ok(1));
    }
}

#[test]
fn each_wait_reports_a_set_below_that_stays_ready_beside_an_idle_kernel_source() {
    for direct in [false, true] {
        let [_, source] = Source::both();
        let (rotating, below) = (source.rotating(), Epoll::new().unwrap());
        let counter = EventFd::new(1).unwrap();
        below.add(&counter, IN).unwrap();
        rotating.add(&below, IN).unwrap();
        assert!(reports(&workers_set(&rotating, direct), 4) < LONG / 4);
    }
}

#[test]
fn a_rotating_set_that_stays_ready_takes_turns_with_other_members() {
    let [_, source] = Source::both();
    let (rotating, below) = (source.rotating(), Epoll::new().unwrap());
    let [counter, other] = [(); 2].map(|()| EventFd::new(1).unwrap());
    below.add(&counter, IN).unwrap();
    rotating.add(&below, IN).unwrap();
    let worker = Epoll::new().unwrap();
    worker.add(&rotating, Event::new(Events::IN, 1)).unwrap();
    worker.add(&other, Event::new(Events::IN, 2)).unwrap();
    let reported: Vec<_> = (0..6)
        .map(|_| {
            let mut events = [Event::default(); 1];
            assert_eq!(worker.wait(&mut events, LONG), Ok(1));
            events[0].data()
        })
        .collect();
    assert_eq!(reported, [1, 2, 1, 2, 1, 2]);
}

#[test]
fn each_wait_reports_a_source_that_stays_ready_after_its_fd_was_closed() {
    let [_, source] = Source::both();
    let rotating = source.rotating();
    source.put();
    let Source::Kernel(reader, _writer) = source else {
        unreachable!("the second one is the kernel's")
    };
    let worker = workers_set(&rotating, false);
    assert_eq!(wait(&worker, LONG), 1);
    let _copy = reader.try_clone().unwrap();
    drop(reader);
    assert!(reports(&worker, 3) < LONG / 4);
}

#[test]
fn a_worker_with_a_used_up_interest_keeps_no_event_from_others() {
    for source in Source::both() {
        let rotating = source.rotating();
        let (worker, used_up) = (workers_set(&rotating, false), Epoll::new().unwrap());
        let once = Event::new(Events::IN | Events::ONESHOT, 0);
        used_up.add(&rotating, once).unwrap();
        let end = EventFd::new(0).unwrap();
        used_up.add(&end, Event::new(Events::IN, 1)).unwrap();
        let (served, has_served) = mpsc::channel();
        std::thread::scope(|scope| {
            let source = &source;
            let served_once = served.clone();
            let (waits, ends) = (used_up.clone(), end.clone());
            scope.spawn(move || {
                assert_eq!(wait(&waits, LONG), 1);
                assert!(source.take());
                served_once.send(()).unwrap();
                // Its other member alone ends this one.
                assert_eq!(wait(&waits, 2 * LONG), 1);
                drop(ends);
            });
            std::thread::sleep(Duration::from_millis(50));
            source.put();
            has_served.recv_timeout(LONG).unwrap();
            scope.spawn(move || {
                for _ in 0..4 {
                    assert_eq!(wait(&worker, 2 * LONG), 1);
                    assert!(source.take());
                    served.send(()).unwrap();
                }
            });
            let mut outcomes = Vec::new();
            for _ in 0..4 {
                std::thread::sleep(Duration::from_millis(50));
                source.put();
                outcomes.push(has_served.recv_timeout(LONG / 4));
            }
            end.try_write(1).unwrap();
            assert_eq!(outcomes, [Ok(()); 4]);
        });
    }
}

#[test]
fn a_worker_with_a_used_up_interest_that_leaves_forwards_its_job() {
    for source in Source::both() {
        let rotating = source.rotating();
        let [leaver, next] = [Events::ONESHOT, Events::empty()].map(|once| {
            let set = Epoll::new().unwrap();
            set.add(&rotating, Event::new(Events::IN | once, 0))
                .unwrap();
            set
        });
        let (served, has_served) = mpsc::channel();
        let (leaving, end) = serves_once(&leaver, &served);
        let (staying, end_of_next) = serves_once(&next, &served);
        source.put();
        has_served.recv_timeout(LONG).unwrap();
        leaver.delete(&rotating).unwrap();
        has_served.recv_timeout(LONG / 4).unwrap();
        drop((end, end_of_next));
        leaving.join().unwrap();
        staying.join().unwrap();
    }
}

#[test]
fn an_event_that_a_report_had_no_room_for_is_not_reported_once_it_is_gone() {
    for interest in [Events::IN, Events::IN | Events::ET] {
        let [_, pipe] = Source::both();
        let (counter, rotating, worker) = (
            EventFd::new(1).unwrap(),
            pipe.rotating(),
            Epoll::new().unwrap(),
        );
        worker.add(&counter, Event::new(Events::IN, 2)).unwrap();
        worker.add(&rotating, Event::new(interest, 1)).unwrap();
        pipe.put();
        assert_eq!(reported_one_by_one(&worker, 1), [2]);
        assert!(pipe.take());
        let mut events = [Event::default(); 2];
        let ready = worker.try_wait(&mut events).unwrap();
        assert_eq!((ready, events[0].data()), (1, 2));
    }
}

#[test]
fn a_worker_that_sleeps_is_woken_by_urgent_data() {
    for asked in [Events::PRI, Events::IN | Events::PRI] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (source, _) = listener.accept().unwrap();
        let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
        rotating.add(&source, Event::new(asked, 0)).unwrap();
        let worker = workers_set(&rotating, false);
        // SAFETY: one byte is read.
        let send = || unsafe {
            libc::send(
                peer.as_raw_fd(),
                (&raw const *b"x").cast(),
                1,
                libc::MSG_OOB,
            )
        };
        assert_eq!(reported_after(&worker, || assert_eq!(send(), 1)).len(), 1);
    }
}

#[test]
fn a_source_that_is_watched_for_its_end_is_not_reported_for_data() {
    let [_, source] = Source::both();
    let Source::Kernel(reader, writer) = source else {
        unreachable!("the second one is the kernel's")
    };
    let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
    rotating.add(&reader, Event::new(Events::HUP, 0)).unwrap();
    let worker = workers_set(&rotating, false);
    (&writer).write_all(b"x").unwrap();
    for _ in 0..2 {
        assert_eq!(wait(&worker, Duration::from_millis(20)), 0);
    }
    drop(writer);
    assert_eq!(wait(&worker, LONG), 1);
}

/// Starts a thread that waits `turns` times and reports its number after each wait. The interest in the
/// rotating set is armed anew before each.
fn reports_turns(
    set: &Epoll,
    rotating: &Epoll,
    interest: Event,
    turns: usize,
    report: impl Fn() + Send + 'static,
) -> JoinHandle<()> {
    let (set, rotating) = (set.clone(), rotating.clone());
    let waits = move || {
        for _ in 0..turns {
            set.modify(&rotating, interest).unwrap();
            assert_eq!(wait(&set, LONG), 1);
            report();
        }
    };
    asleep(waits).0
}

/// The source stays readable. The first worker in line comes back at once, while the second one sleeps. It takes an event
/// out of turn if the second one does not run for a millisecond.
#[test]
fn each_event_is_another_workers_where_no_worker_has_slack() {
    let oneshot = Event::new(Events::IN | Events::ONESHOT, 0);
    for (source, interest) in [(Events::IN | Events::RDHUP, IN), (Events::IN, oneshot)] {
        let takes_turns = || {
            let (near, mut far) = UnixStream::pair().unwrap();
            let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
            rotating.add(&near, Event::new(source, 0)).unwrap();
            let sets = [(); 2].map(|()| workers_set(&rotating, false));
            let (reports, reported) = mpsc::channel();
            let threads = [(0, 2), (1, 1)].map(|(worker, turns)| {
                let reports = reports.clone();
                let report = move || reports.send(worker).unwrap();
                reports_turns(&sets[worker], &rotating, interest, turns, report)
            });
            far.write_all(b"x").unwrap();
            let order = [(); 3].map(|()| reported.recv_timeout(LONG).unwrap());
            for thread in threads {
                thread.join().unwrap();
            }
            order[0] != order[1]
        };
        assert!((0..20).any(|_| takes_turns()), "{source:?} {interest:?}");
    }
}

/// Two workers read one byte for each wait. Returns the worker of each byte.
fn workers_of_bytes(slack: u32) -> [usize; 40] {
    let (reader, mut writer) = std::io::pipe().unwrap();
    // SAFETY: the call takes no pointers.
    let flagged = unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    assert_eq!(flagged, 0);
    let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
    rotating.set_rotation_slack(slack).unwrap();
    rotating.add(&reader, IN).unwrap();
    let (reads, has_read) = mpsc::channel();
    let threads = [0, 1].map(|worker| {
        let (set, reads) = (workers_set(&rotating, false), reads.clone());
        let mut reader = reader.try_clone().unwrap();
        let works = move || {
            loop {
                assert_eq!(wait(&set, LONG), 1);
                match reader.read(&mut [0]) {
                    Ok(0) => return,
                    Ok(_) => reads.send(worker).unwrap(),
                    // The other one was first.
                    Err(_) => {}
                }
            }
        };
        asleep(works).0
    });
    writer.write_all(&[0; 40]).unwrap();
    let workers = [(); 40].map(|()| has_read.recv_timeout(LONG).unwrap());
    drop(writer);
    for thread in threads {
        thread.join().unwrap();
    }
    workers
}

/// A worker that was woken and does not run at once is behind by more.
#[test]
fn workers_hand_over_once_for_several_events_and_stay_within_the_slack() {
    const SLACK: usize = 4;
    let mut last = [0; 40];
    let as_it_should_be = (0..50).any(|_| {
        last = workers_of_bytes(u32::try_from(SLACK).unwrap());
        let handovers = last.windows(2).filter(|pair| pair[0] != pair[1]).count();
        let is_within_the_slack = (0..=last.len()).all(|length| {
            let seconds = last[..length].iter().sum::<usize>();
            seconds.abs_diff(length - seconds) <= 2 * SLACK
        });
        is_within_the_slack && handovers < last.len() / 2
    });
    assert!(as_it_should_be, "{last:?}");
}
