//! Time limits of waits, many threads in one set, and the order of a rotating set's workers.
//! Behaviour that Linux has is checked on the host kernel in the same test.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod one_processor;
mod threads;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use upoll::{
    Clock, CreateFlags, Epoll, Errno, Event, EventFd, EventFdFlags, Events, File, PollContext,
    PollFd, PollTable, Pollable, Source, Timeout, WaitQueue,
};

use one_processor::run_on_one_processor;
use threads::{asleep, until_asleep};

const LONG: Duration = Duration::from_secs(60);

fn interest(events: Events) -> Event {
    Event::new(events, 0)
}

fn set_with(source: &impl Source, events: Events) -> Epoll {
    let set = Epoll::new().unwrap();
    set.add(source, interest(events)).unwrap();
    set
}

fn rotating_with(source: &impl Source) -> Epoll {
    let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
    rotating.add(source, interest(Events::IN)).unwrap();
    rotating
}

fn kernel_set() -> OwnedFd {
    // SAFETY: the fd is new, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) }
}

fn kernel_wait(set: &OwnedFd, timeout_ms: i32) -> Result<usize, Errno> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
    // SAFETY: the buffer holds four events.
    let ready = unsafe { libc::epoll_wait(set.as_raw_fd(), events.as_mut_ptr(), 4, timeout_ms) };
    usize::try_from(ready)
        .map_err(|_| Errno::from_raw(std::io::Error::last_os_error().raw_os_error().unwrap()))
}

#[test]
fn a_wait_ends_at_its_limit_and_never_before() {
    let set = Epoll::new().unwrap();
    let kernel = kernel_set();
    for clock in [Clock::Monotonic, Clock::Realtime] {
        for micros in [1, 10, 50, 1_000, 20_000] {
            let limit = Duration::from_micros(micros);
            let begun = Instant::now();
            let ready = set.wait(&mut [Event::default()], Timeout::after(clock, limit));
            assert!(begun.elapsed() >= limit);
            assert_eq!(ready, Ok(0));
        }
    }
    assert_eq!(kernel_wait(&kernel, 1), Ok(0));
}

#[test]
fn a_wait_without_room_for_events_is_invalid() {
    let set = Epoll::new().unwrap();
    assert_eq!(set.wait(&mut [], LONG), Err(Errno::INVAL));
    let kernel = kernel_set();
    // SAFETY: the room is zero, so the call writes no event.
    let ready = unsafe { libc::epoll_wait(kernel.as_raw_fd(), std::ptr::null_mut(), 0, 0) };
    assert_eq!(ready, -1);
    assert_eq!(
        std::io::Error::last_os_error().raw_os_error(),
        Some(libc::EINVAL)
    );
}

#[test]
fn threads_never_see_a_ready_level_triggered_item_as_idle() {
    let source = EventFd::new(1).unwrap();
    let set = set_with(&source, Events::IN);
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    let ready = set.wait(&mut [Event::default()], Timeout::NOW);
                    assert_eq!(ready, Ok(1));
                }
            });
        }
    });
}

/// Starts `workers` threads that take `events` events from a rotating set, through a set of each thread or
/// all from the rotating set. Returns the number that each took.
fn rotate(workers: usize, events: usize, through_own_sets: bool) -> Vec<usize> {
    let source = EventFd::with_flags(0, EventFdFlags::SEMAPHORE).unwrap();
    let rotating = rotating_with(&source);
    let total = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..workers)
        .map(|_| {
            let set = if through_own_sets {
                set_with(&rotating, Events::IN)
            } else {
                rotating.clone()
            };
            let (source, total) = (source.clone(), total.clone());
            asleep(move || {
                let mut taken = 0;
                while total.load(Ordering::SeqCst) < events {
                    let limit = Duration::from_millis(200);
                    if set.wait(&mut [Event::default()], limit) == Ok(1)
                        && source.try_read().is_ok()
                    {
                        taken += 1;
                        total.fetch_add(1, Ordering::SeqCst);
                    }
                }
                taken
            })
            .0
        })
        .collect();
    for _ in 0..events {
        source.write(1).unwrap();
    }
    threads.into_iter().map(|t| t.join().unwrap()).collect()
}

#[test]
fn a_burst_through_a_rotating_set_loses_no_event() {
    for through_own_sets in [true, false] {
        let shares = rotate(10, 5_000, through_own_sets);
        assert_eq!(shares.iter().sum::<usize>(), 5_000, "no event is lost");
    }
}

#[test]
fn workers_of_a_rotating_set_take_turns() {
    for through_own_sets in [true, false] {
        let source = EventFd::with_flags(0, EventFdFlags::SEMAPHORE).unwrap();
        let rotating = rotating_with(&source);
        let (send, took) = mpsc::channel();
        let mut workers: Vec<_> = (0..4)
            .map(|worker| {
                let set = if through_own_sets {
                    set_with(&rotating, Events::IN)
                } else {
                    rotating.clone()
                };
                let (source, send) = (source.clone(), send.clone());
                let (thread, id) = asleep(move || {
                    for _ in 0..5 {
                        assert_eq!(set.wait(&mut [Event::default()], LONG), Ok(1));
                        assert_eq!(source.try_read(), Ok(1));
                        send.send(worker).unwrap();
                    }
                });
                (Some(thread), id)
            })
            .collect();
        let mut order = Vec::new();
        for _ in 0..20 {
            source.write(1).unwrap();
            let worker: usize = took.recv_timeout(LONG).unwrap();
            if order.len() < 16 {
                until_asleep(workers[worker].1);
            } else {
                // A thread that ends wakes another one if the source is ready by then.
                workers[worker].0.take().unwrap().join().unwrap();
            }
            order.push(worker);
        }
        let expected: Vec<_> = (0..20).map(|turn| turn % 4).collect();
        assert_eq!(order, expected);
    }
}

#[test]
fn a_worker_that_does_not_wait_is_passed_over() {
    let source = EventFd::with_flags(0, EventFdFlags::SEMAPHORE).unwrap();
    let rotating = rotating_with(&source);
    let busy = set_with(&rotating, Events::IN);
    let idle = set_with(&rotating, Events::IN);
    for _ in 0..5 {
        let waiter = idle.clone();
        let (thread, _) = asleep(move || waiter.wait(&mut [Event::default()], LONG));
        source.write(1).unwrap();
        assert_eq!(thread.join().unwrap(), Ok(1));
        source.read().unwrap();
    }
    assert_eq!(busy.try_wait(&mut [Event::default()]), Ok(0));
}

#[test]
fn a_worker_that_only_an_idle_set_watches_is_passed_over() {
    let source = EventFd::with_flags(0, EventFdFlags::SEMAPHORE).unwrap();
    let rotating = rotating_with(&source);
    let watched = set_with(&rotating, Events::IN);
    let manager = set_with(&watched, Events::IN);
    let awaited = set_with(&rotating, Events::IN);
    let mut events = [Event::default()];
    for _ in 0..5 {
        let waiter = awaited.clone();
        let (thread, _) = asleep(move || waiter.wait(&mut [Event::default()], LONG));
        source.write(1).unwrap();
        assert_eq!(thread.join().unwrap(), Ok(1));
        source.read().unwrap();
    }
    assert_eq!(manager.try_wait(&mut events), Ok(0));
    // With a waiter above it, the manager's set is next in line.
    let (thread, _) = asleep(move || manager.wait(&mut [Event::default()], LONG));
    source.write(1).unwrap();
    assert_eq!(thread.join().unwrap(), Ok(1));
}

#[test]
fn a_worker_that_only_an_idle_poll_context_watches_is_passed_over() {
    let source = EventFd::with_flags(0, EventFdFlags::SEMAPHORE).unwrap();
    let rotating = rotating_with(&source);
    let [polled, awaited] = [(); 2].map(|()| Epoll::new().unwrap());
    for set in [&polled, &awaited] {
        set.add(&rotating, interest(Events::IN)).unwrap();
    }
    let mut context = PollContext::new();
    let mut list = [PollFd::new(&polled, Events::IN)];
    for _ in 0..5 {
        // The context stays registered after the call.
        assert_eq!(context.poll(&mut list, Duration::ZERO), Ok(0));
        let waiter = awaited.clone();
        let (thread, _) = asleep(move || waiter.wait(&mut [Event::default()], LONG));
        let begun = Instant::now();
        source.write(1).unwrap();
        assert_eq!(thread.join().unwrap(), Ok(1));
        assert!(begun.elapsed() < LONG / 2, "it slept until its limit");
        source.read().unwrap();
    }
}

#[test]
fn an_event_that_nobody_waited_for_goes_to_the_first_that_comes() {
    let source = EventFd::new(0).unwrap();
    let rotating = rotating_with(&source);
    let workers: Vec<_> = (0..3).map(|_| set_with(&rotating, Events::IN)).collect();
    source.write(1).unwrap();
    assert_eq!(workers[1].wait(&mut [Event::default()], LONG), Ok(1));
}

#[test]
fn a_chosen_worker_that_closes_its_set_forwards_the_event() {
    let source = EventFd::new(0).unwrap();
    let rotating = rotating_with(&source);
    // Each worker set is awaited through a set above it, so that the choice of the worker and its
    // poll are two steps.
    let worker = || {
        let set = set_with(&rotating, Events::IN);
        let above = set_with(&set, Events::IN);
        (set, above)
    };
    let (first, _first_above) = worker();
    let (second, _second_above) = worker();
    source.write(1).unwrap();
    drop(first);
    assert_eq!(second.try_wait(&mut [Event::default()]), Ok(1));
}

#[test]
fn a_thread_that_comes_while_another_is_on_its_way_has_the_next_event() {
    for _ in 0..200 {
        let source = EventFd::with_flags(0, EventFdFlags::SEMAPHORE).unwrap();
        let rotating = rotating_with(&source);
        let (set, counter) = (rotating.clone(), source.clone());
        let take = move || {
            let ready = set.wait(&mut [Event::default()], LONG);
            (ready, counter.try_read())
        };
        // Neither thread waits again after its event.
        let (first, _) = asleep(take.clone());
        let (begin, begun) = mpsc::channel();
        let second = thread::spawn(move || {
            while begun.try_recv().is_err() {
                std::hint::spin_loop();
            }
            take()
        });
        source.try_write(1).unwrap();
        source.try_write(1).unwrap();
        begin.send(()).unwrap();
        assert_eq!(first.join().unwrap(), (Ok(1), Ok(1)));
        assert_eq!(second.join().unwrap(), (Ok(1), Ok(1)));
    }
}

#[test]
fn a_worker_that_was_served_out_of_turn_waits_until_the_others_had_as_many() {
    let source = EventFd::with_flags(0, EventFdFlags::SEMAPHORE).unwrap();
    let rotating = rotating_with(&source);
    let sets: Vec<_> = (0..3).map(|_| set_with(&rotating, Events::IN)).collect();
    let take = |set: &Epoll| {
        let (set, source) = (set.clone(), source.clone());
        asleep(move || {
            assert_eq!(set.wait(&mut [Event::default()], LONG), Ok(1));
            source.try_read()
        })
    };
    // The last set is the only awaited one, for three events.
    for _ in 0..3 {
        let (thread, _) = take(&sets[2]);
        source.write(1).unwrap();
        assert_eq!(thread.join().unwrap(), Ok(1));
    }
    // From here on all sets are awaited, all the time.
    let mut threads: Vec<_> = sets.iter().map(|set| Some(take(set).0)).collect();
    let mut order = Vec::new();
    for _ in 0..9 {
        source.write(1).unwrap();
        let served = loop {
            let done = |thread: &Option<thread::JoinHandle<_>>| {
                thread.as_ref().is_some_and(thread::JoinHandle::is_finished)
            };
            match threads.iter().position(done) {
                Some(worker) => break worker,
                None => thread::yield_now(),
            }
        };
        assert_eq!(threads[served].take().unwrap().join().unwrap(), Ok(1));
        threads[served] = Some(take(&sets[served]).0);
        order.push(served);
    }
    assert_eq!(order, [0, 1, 0, 1, 0, 1, 2, 0, 1]);
    for _ in 0..3 {
        source.write(1).unwrap();
    }
    for thread in threads.into_iter().flatten() {
        assert_eq!(thread.join().unwrap(), Ok(1));
    }
}

#[test]
fn workers_behind_the_thread_that_wakes_them_get_to_run() {
    let writer = thread::spawn(|| {
        run_on_one_processor();
        let source = EventFd::with_flags(0, EventFdFlags::SEMAPHORE).unwrap();
        let rotating = rotating_with(&source);
        let taken = Arc::new(AtomicUsize::new(0));
        let stop = EventFd::new(0).unwrap();
        let workers: Vec<_> = (0..8)
            .map(|_| {
                let set = set_with(&rotating, Events::IN);
                set.add(&stop, Event::new(Events::IN, 1)).unwrap();
                let (source, taken) = (source.clone(), taken.clone());
                asleep(move || {
                    let mut reports = [Event::default(); 2];
                    loop {
                        let ready = set.wait(&mut reports, LONG).unwrap();
                        if reports[..ready].iter().any(|report| report.data() == 1) {
                            return;
                        }
                        if source.try_read().is_ok() {
                            taken.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                })
            })
            .collect();
        // Other processes may have the processor in place of the workers. Where the writer lets nobody run, workers come in one
        // of hundreds of rounds.
        let (mut rounds, mut came) = (0, 0);
        while came <= 10 && rounds < 400 {
            rounds += 1;
            let before = taken.load(Ordering::SeqCst);
            for _ in 0..4 {
                source.write(1).unwrap();
            }
            came += usize::from(taken.load(Ordering::SeqCst) > before);
            while taken.load(Ordering::SeqCst) < before + 4 {
                thread::sleep(Duration::from_micros(100));
            }
            for (_, tid) in &workers {
                until_asleep(*tid);
            }
        }
        stop.write(1).unwrap();
        for (worker, _) in workers {
            worker.join().unwrap();
        }
        (came, rounds)
    });
    let (came, rounds) = writer.join().unwrap();
    assert!(came > 10, "somebody ran in {came} of {rounds} times");
}

/// Two threads wait to write, each through a set of its own. The thread that a read wakes loses its
/// interest before it polls, while the counter becomes readable again. The other thread is woken.
#[test]
fn an_exclusive_writer_that_leaves_forwards_its_wake_to_another_writer() {
    let writable = Events::OUT | Events::EXCLUSIVE;
    for _ in 0..5 {
        let source = EventFd::new(0).unwrap();
        source.try_write(u64::MAX - 1).unwrap();
        let first = set_with(&source, writable);
        let second = set_with(&source, writable);
        let (stays, _) = asleep(move || second.wait(&mut [Event::default()], LONG));
        let leaver = first.clone();
        let limit = Duration::from_millis(200);
        let (leaves, _) = asleep(move || leaver.wait(&mut [Event::default()], limit));
        source.try_read().unwrap();
        source.try_write(1).unwrap();
        first.delete(&source).unwrap();
        if leaves.join().unwrap() == Ok(1) {
            // The thread came first and has the event. The next one is for the other thread.
            source.try_read().unwrap();
        }
        assert_eq!(stays.join().unwrap(), Ok(1));
    }
}

/// An object that is ready after a wakeup; the first poll then panics.
#[derive(Default)]
struct Fragile {
    looks_since_ready: AtomicUsize,
    is_ready: AtomicBool,
    queue: WaitQueue,
}

impl Pollable for Fragile {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        if !self.is_ready.load(Ordering::SeqCst) {
            return Events::empty();
        }
        let before = self.looks_since_ready.fetch_add(1, Ordering::SeqCst);
        assert!(before > 0, "the first look breaks");
        Events::IN
    }
}

#[test]
fn a_thread_that_panics_with_a_claim_forwards_it() {
    let file = File::new(Fragile::default());
    let rotating = rotating_with(&file);
    let threads = [(); 2].map(|()| {
        let rotating = rotating.clone();
        asleep(move || rotating.wait(&mut [Event::default()], LONG)).0
    });
    file.is_ready.store(true, Ordering::SeqCst);
    file.queue.wake(Events::IN);
    let [first, second] = threads.map(thread::JoinHandle::join);
    assert!(first.is_err());
    assert_eq!(second.unwrap(), Ok(1));
}
