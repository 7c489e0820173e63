//! `epoll_wait(2)`: which events are delivered, in which order, and which waiters wake. Each rule
//! is checked on the host kernel too.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod kernel;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use upoll::{Epoll, Errno, Event, EventFd, EventFdFlags, Events, Timeout};

use kernel::asleep::{asleep, handle, join_in_any_order};
use kernel::{Kernel, Twin, same};

const IN: Events = Events::IN;
const OUT: Events = Events::OUT;
const ET: Events = Events::ET;
const ONESHOT: Events = Events::ONESHOT;
/// The events of a set with at least one ready member.
const READY: Events = Events::IN.union(Events::RDNORM);

/// A set at 0 that watches idle counters for `wanted`. The data of each is its number.
fn watching(counters: usize, wanted: Events) -> Twin {
    let mut twin = Twin::new(counters + 3);
    twin.open_set(0);
    for n in 1..=counters {
        twin.open_counter(n, 0, false);
        twin.add(0, n, wanted, n as u64).unwrap();
    }
    twin
}

#[test]
fn events_come_in_the_order_in_which_they_became_ready() {
    let twin = watching(4, IN);
    for n in [3, 1, 4, 2] {
        twin.write(n, 1);
    }
    assert_eq!(twin.data(0, 8), [3, 1, 4, 2]);
}

#[test]
fn what_is_ready_already_keeps_its_place_when_it_becomes_ready_again() {
    for wanted in [IN, IN | ET] {
        let twin = watching(3, wanted);
        for n in [1, 2, 3, 1, 2] {
            twin.write(n, 1);
        }
        assert_eq!(twin.data(0, 8), [1, 2, 3]);
    }
}

#[test]
fn adding_something_ready_puts_it_last() {
    let mut twin = watching(2, IN);
    twin.write(2, 1);
    twin.open_counter(3, 1, false);
    twin.add(0, 3, IN, 3).unwrap();
    twin.write(1, 1);
    assert_eq!(twin.data(0, 8), [2, 3, 1]);
}

#[test]
fn modifying_to_something_ready_puts_it_last_unless_it_is_queued() {
    let twin = watching(3, IN);
    twin.modify(0, 1, Events::empty(), 1).unwrap();
    for n in 1..=3 {
        twin.write(n, 1);
    }
    twin.modify(0, 1, IN, 10).unwrap();
    twin.modify(0, 2, IN, 20).unwrap();
    assert_eq!(twin.data(0, 8), [20, 3, 10]);
}

#[test]
fn room_for_more_than_is_ready_gives_each_item_once() {
    let twin = watching(3, IN);
    twin.write(2, 1);
    twin.write(3, 1);
    for _ in 0..3 {
        assert_eq!(twin.data(0, 16).len(), 2);
    }
}

#[test]
fn what_was_not_reached_comes_before_what_arrived_and_that_before_what_was_delivered() {
    let twin = watching(5, IN);
    for n in [1, 2, 3] {
        twin.write(n, 1);
    }
    assert_eq!(twin.data(0, 1), [1]);
    twin.write(4, 1);
    assert_eq!(twin.data(0, 1), [2]);
    twin.write(5, 1);
    assert_eq!(twin.data(0, 8), [3, 1, 4, 2, 5]);
}

#[test]
fn items_that_are_idle_again_are_dropped_silently_and_take_no_room() {
    let twin = watching(3, IN);
    for n in 1..=3 {
        twin.write(n, 1);
    }
    twin.read(1);
    twin.read(2);
    assert_eq!(twin.data(0, 1), [3]);
    twin.write(1, 1);
    assert_eq!(twin.data(0, 8), [3, 1]);
}

#[test]
fn a_level_triggered_item_is_reported_as_long_as_it_is_ready() {
    let twin = watching(1, IN);
    twin.write(1, 5);
    for _ in 0..3 {
        assert_eq!(twin.data(0, 4), [1]);
    }
    twin.read(1);
    assert_eq!(twin.data(0, 4), []);
}

#[test]
fn an_edge_that_was_drained_before_the_wait_is_not_reported() {
    let twin = watching(1, IN | ET);
    twin.write(1, 1);
    twin.read(1);
    assert_eq!(twin.data(0, 4), []);
}

#[test]
fn edges_between_two_waits_are_one_event() {
    let twin = watching(1, IN | ET);
    for _ in 0..3 {
        twin.write(1, 1);
    }
    assert_eq!(twin.data(0, 4), [1]);
    assert_eq!(twin.data(0, 4), []);
}

#[test]
fn an_edge_that_found_no_room_is_reported_by_the_next_wait() {
    for wanted in [IN | ET, IN | ONESHOT, IN | ET | ONESHOT] {
        let twin = watching(3, wanted);
        for n in 1..=3 {
            twin.write(n, 1);
        }
        assert_eq!(twin.data(0, 2), [1, 2]);
        assert_eq!(twin.data(0, 2), [3]);
        assert_eq!(twin.data(0, 2), []);
    }
}

#[test]
fn an_edge_in_a_direction_that_is_not_wanted_is_ignored() {
    let twin = watching(1, OUT | ET);
    assert_eq!(twin.data(0, 4), [1]);
    // A write wakes only readers.
    twin.write(1, 1);
    assert_eq!(twin.data(0, 4), []);
    // A read wakes writers.
    twin.read(1);
    assert_eq!(twin.data(0, 4), [1]);
}

#[test]
fn an_edge_in_one_direction_reports_all_that_is_ready() {
    let twin = watching(1, IN | OUT | ET);
    assert_eq!(twin.wait(0, 4).unwrap(), [(OUT.bits(), 1)]);
    twin.write(1, 1);
    assert_eq!(twin.wait(0, 4).unwrap(), [((IN | OUT).bits(), 1)]);
    twin.read(1);
    assert_eq!(twin.wait(0, 4).unwrap(), [(OUT.bits(), 1)]);
}

#[test]
fn an_edge_that_does_not_say_what_happened_queues_every_interest() {
    let mut twin = watching(0, IN);
    twin.open_pipe(1, 2);
    twin.send(2, 1);
    twin.add(0, 1, IN | ET, 1).unwrap();
    assert_eq!(twin.wait(0, 4).unwrap(), [(IN.bits(), 1)]);
    twin.modify(0, 1, Events::RDNORM | ET, 2).unwrap();
    assert_eq!(twin.wait(0, 4).unwrap(), [(Events::RDNORM.bits(), 2)]);
    twin.close(2);
    let both = Events::RDNORM | Events::HUP;
    assert_eq!(twin.wait(0, 4).unwrap(), [(both.bits(), 2)]);
    assert_eq!(twin.wait(0, 4).unwrap(), []);
}

#[test]
fn a_oneshot_interest_that_fired_reports_not_even_hup_until_modified() {
    let mut twin = watching(0, IN);
    twin.open_pipe(1, 2);
    twin.add(0, 1, IN | ONESHOT, 1).unwrap();
    twin.send(2, 1);
    assert_eq!(twin.data(0, 4), [1]);
    twin.send(2, 1);
    twin.close(2);
    assert_eq!(twin.data(0, 4), []);
    twin.modify(0, 1, Events::empty(), 2).unwrap();
    assert_eq!(twin.wait(0, 4).unwrap(), [(Events::HUP.bits(), 2)]);
}

#[test]
fn a_oneshot_interest_that_found_nothing_stays_armed() {
    let twin = watching(1, IN | ONESHOT);
    twin.write(1, 1);
    twin.read(1);
    assert_eq!(twin.data(0, 4), []);
    twin.write(1, 1);
    assert_eq!(twin.data(0, 4), [1]);
}

#[test]
fn a_wait_that_may_not_wait_ignores_signals() {
    let set = Epoll::new().unwrap();
    // SAFETY: the call takes no pointers.
    let kernel = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    handle(libc::SIGALRM, false);
    let (done, until_done) = mpsc::channel::<()>();
    // SAFETY: the call takes no arguments.
    let tid = unsafe { libc::gettid() };
    let signals = thread::spawn(move || {
        while until_done.try_recv() == Err(mpsc::TryRecvError::Empty) {
            // SAFETY: sends a signal that has a handler to a thread of this process.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, libc::SIGALRM) };
        }
    });
    for _ in 0..2_000 {
        let ready = set.wait(&mut [Event::default()], Timeout::NOW);
        assert_eq!(ready, Ok(0));
        assert_eq!(Kernel::wait_for(kernel, 1, 0), Ok(vec![]));
    }
    drop(done);
    signals.join().unwrap();
    // SAFETY: the fd is this test's own.
    unsafe { libc::close(kernel) };
}

#[test]
fn a_signal_ends_a_wait_and_takes_no_event_with_it() {
    handle(libc::SIGUSR1, true);
    let twin = watching(1, IN | ET);
    let sleeper = twin.sleep_in(0, 4);
    sleeper.signal(libc::SIGUSR1);
    assert_eq!(sleeper.join(), Err(Errno::INTR));
    twin.write(1, 1);
    assert_eq!(twin.data(0, 4), [1]);
}

#[test]
fn a_time_limit_ends_a_wait_after_it_and_not_before() {
    let twin = watching(1, IN);
    for millis in [1, 20] {
        let limit = Duration::from_millis(millis);
        let begun = Instant::now();
        let upoll = twin
            .set(0)
            .unwrap()
            .wait(&mut [Event::default()], limit)
            .map(|ready| (ready, begun.elapsed() >= limit));
        let begun = Instant::now();
        let kernel = Kernel::wait_for(twin.kernel.fd(0), 1, i32::try_from(millis).unwrap())
            .map(|events| (events.len(), begun.elapsed() >= limit));
        assert_eq!(same(("limit", limit), upoll, kernel), Ok((0, true)));
    }
}

#[test]
fn a_sleeping_wait_returns_all_that_became_ready_with_its_wake() {
    let twin = watching(2, IN);
    let sleeper = twin.sleep_in(0, 4);
    twin.write(2, 3);
    assert_eq!(sleeper.join().unwrap(), [(IN.bits(), 2)]);
}

#[test]
fn adding_something_ready_ends_a_sleeping_wait_and_adding_something_idle_does_not() {
    let mut twin = watching(0, IN);
    twin.open_counter(1, 0, false);
    twin.open_counter(2, 1, false);
    let sleeper = twin.sleep_in(0, 4);
    twin.add(0, 1, IN, 1).unwrap();
    assert!(sleeper.undisturbed());
    twin.add(0, 2, IN, 2).unwrap();
    assert_eq!(sleeper.join().unwrap(), [(IN.bits(), 2)]);
}

#[test]
fn modifying_to_something_ready_ends_a_sleeping_wait_and_to_something_idle_does_not() {
    let twin = watching(1, IN);
    let sleeper = twin.sleep_in(0, 4);
    twin.modify(0, 1, Events::PRI, 2).unwrap();
    assert!(sleeper.undisturbed());
    twin.modify(0, 1, OUT, 3).unwrap();
    assert_eq!(sleeper.join().unwrap(), [(OUT.bits(), 3)]);
}

#[test]
fn adding_or_modifying_to_something_ready_ends_a_sleeping_poll_of_the_set() {
    for add in [true, false] {
        let mut twin = watching(0, IN);
        twin.open_counter(1, 1, false);
        if !add {
            twin.add(0, 1, Events::empty(), 0).unwrap();
        }
        let poller = twin.sleep_polling(0, READY);
        if add {
            twin.add(0, 1, IN, 0).unwrap();
        } else {
            twin.modify(0, 1, IN, 0).unwrap();
        }
        assert_eq!(poller.join(), READY.bits());
    }
}

#[test]
fn a_poller_of_a_set_is_woken_beside_the_thread_that_waits_in_it() {
    let twin = watching(1, IN | ET);
    let waiter = twin.sleep_in(0, 4);
    let pollers = [(); 2].map(|()| twin.sleep_polling(0, IN));
    twin.write(1, 1);
    assert_eq!(waiter.join().unwrap(), [(IN.bits(), 1)]);
    // The order in which they check is undefined: if the waiter takes the edge first, the pollers
    // find nothing ready. They were woken in any case.
    assert!(pollers.iter().all(|poller| !poller.undisturbed()));
    twin.delete(0, 1).unwrap();
    twin.add(0, 1, IN, 2).unwrap();
    for poller in pollers {
        assert_eq!(poller.join(), IN.bits());
    }
}

#[test]
fn a_wake_that_comes_to_nothing_does_not_end_a_wait() {
    let twin = watching(1, IN);
    let mut sleeper = twin.sleep_in(0, 4);
    // A write of zero to an empty counter wakes its readers spuriously.
    twin.write(1, 0);
    sleeper.until_asleep();
    twin.write(1, 1);
    assert_eq!(sleeper.join().unwrap(), [(IN.bits(), 1)]);
}

#[test]
fn a_disabled_interest_wakes_nobody() {
    let twin = watching(1, IN | ONESHOT);
    twin.write(1, 1);
    assert_eq!(twin.data(0, 1), [1]);
    let sleeper = twin.sleep_in(0, 4);
    twin.write(1, 1);
    assert!(sleeper.undisturbed());
    twin.modify(0, 1, IN, 2).unwrap();
    assert_eq!(sleeper.join().unwrap(), [(IN.bits(), 2)]);
}

#[test]
fn deleting_or_closing_the_last_member_leaves_a_sleeping_wait_alone() {
    for delete in [true, false] {
        let mut twin = watching(1, IN);
        let sleeper = twin.sleep_in(0, 4);
        if delete {
            twin.delete(0, 1).unwrap();
        } else {
            twin.close(1);
        }
        assert!(sleeper.undisturbed());
        twin.open_counter(2, 1, false);
        twin.add(0, 2, IN, 2).unwrap();
        assert_eq!(sleeper.join().unwrap(), [(IN.bits(), 2)]);
    }
}

#[test]
fn one_edge_wakes_one_thread_of_a_set_the_last_that_came() {
    for wanted in [IN | ET, IN | ONESHOT] {
        let twin = watching(1, wanted);
        let mut sleepers: Vec<_> = (0..3).map(|_| twin.sleep_in(0, 4)).collect();
        while let Some(last) = sleepers.pop() {
            if wanted.contains(ONESHOT) {
                twin.modify(0, 1, wanted, 1).unwrap();
            }
            if !wanted.contains(ONESHOT) || sleepers.len() == 2 {
                twin.write(1, 1);
            }
            assert_eq!(last.join().unwrap(), [(IN.bits(), 1)]);
            assert!(sleepers.iter().all(|sleeper| sleeper.undisturbed()));
        }
    }
}

#[test]
fn the_thread_that_comes_back_last_takes_every_edge() {
    let twin = watching(1, IN | ET);
    let first = twin.sleep_in(0, 4);
    for _ in 0..4 {
        let last = twin.sleep_in(0, 4);
        twin.write(1, 1);
        assert_eq!(last.join().unwrap(), [(IN.bits(), 1)]);
        assert!(first.undisturbed());
    }
    twin.write(1, 1);
    assert_eq!(first.join().unwrap(), [(IN.bits(), 1)]);
}

#[test]
fn a_level_triggered_event_reaches_every_thread_of_a_set() {
    let twin = watching(1, IN);
    let sleepers: Vec<_> = (0..4).map(|_| twin.sleep_in(0, 4)).collect();
    twin.write(1, 1);
    for sleeper in sleepers {
        assert_eq!(sleeper.join().unwrap(), [(IN.bits(), 1)]);
    }
}

#[test]
fn two_edges_reach_two_threads_of_a_set() {
    let twin = watching(2, IN | ET);
    let sleepers = vec![twin.sleep_in(0, 1), twin.sleep_in(0, 1)];
    twin.write(1, 1);
    twin.write(2, 1);
    let events = join_in_any_order(sleepers);
    assert_eq!(events, [1, 2].map(|n| Ok(vec![(IN.bits(), n)])));
}

#[test]
fn a_limit_beyond_all_clocks_is_no_limit() {
    let twin = watching(1, IN);
    let (set, fd) = (twin.set(0).unwrap().clone(), twin.kernel.fd(0));
    let sleeper = asleep(
        move || set.wait(&mut [Event::default()], Duration::MAX),
        move || {
            let limit = libc::timespec {
                tv_sec: libc::time_t::MAX,
                tv_nsec: 999_999_999,
            };
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: room for one event, a live limit and no signal mask.
            let ready = unsafe {
                libc::syscall(
                    libc::SYS_epoll_pwait2,
                    fd,
                    &raw mut event,
                    1,
                    &raw const limit,
                    std::ptr::null::<u64>(),
                    size_of::<u64>(),
                )
            };
            Kernel::result(ready).map(|ready| usize::try_from(ready).unwrap())
        },
    );
    twin.write(1, 1);
    assert_eq!(sleeper.join(), Ok(1));
}

#[test]
fn an_event_reaches_a_thread_of_every_set_that_watches() {
    let mut twin = watching(1, IN | ET);
    twin.open_set(2);
    twin.open_set(3);
    twin.add(2, 1, IN | ET, 2).unwrap();
    twin.add(3, 1, IN, 3).unwrap();
    let sleepers = [0, 2, 3].map(|set| twin.sleep_in(set, 4));
    twin.write(1, 1);
    let data = sleepers.map(|sleeper| sleeper.join().unwrap()[0].1);
    assert_eq!(data, [1, 2, 3]);
}

/// Three threads read a counter through one set. Each event is written after the previous one was
/// taken. The readers and the writer sleep without a time limit, so a lost event hangs the test.
fn hand_over(wanted: Events, events: usize) {
    let set = Epoll::new().unwrap();
    let source = EventFd::with_flags(0, EventFdFlags::NONBLOCK).unwrap();
    set.add(&source, Event::new(wanted, 0)).unwrap();
    let taken = EventFd::new(0).unwrap();
    let stop = EventFd::new(0).unwrap();
    set.add(&stop, Event::new(IN, 1)).unwrap();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut event = [Event::default()];
                loop {
                    assert_eq!(set.wait(&mut event, None), Ok(1));
                    if event[0].data() == 1 {
                        break;
                    }
                    if source.try_read().is_ok() {
                        taken.write(1).unwrap();
                    }
                    if wanted.contains(ONESHOT) {
                        set.modify(&source, Event::new(wanted, 0)).unwrap();
                    }
                }
            });
        }
        for _ in 0..events {
            source.write(1).unwrap();
            assert_eq!(taken.read(), Ok(1));
        }
        stop.write(1).unwrap();
    });
}

#[test]
fn no_event_is_lost_between_threads_of_one_set_whatever_the_mode() {
    for wanted in [IN, IN | ET, IN | ONESHOT] {
        hand_over(wanted, 3_000);
    }
}

#[test]
fn edges_that_come_faster_than_they_are_taken_are_all_taken_in_the_end() {
    let set = Epoll::new().unwrap();
    let counter = EventFd::new(0).unwrap();
    set.add(&counter, Event::new(IN | ET, 0)).unwrap();
    let total = AtomicUsize::new(0);
    let all = 4_000;
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while total.load(Ordering::SeqCst) < all {
                    let limit = Duration::from_millis(50);
                    if set.wait(&mut [Event::default()], limit) == Ok(1)
                        && let Ok(count) = counter.try_read()
                    {
                        let count = usize::try_from(count).unwrap();
                        total.fetch_add(count, Ordering::SeqCst);
                    }
                }
            });
        }
        for _ in 0..all {
            counter.try_write(1).unwrap();
        }
    });
    assert_eq!(total.load(Ordering::SeqCst), all);
}
