//! The readiness fd of a set: wakeups, harvests and those who watch the fd. The kernel's epoll is a model
//! (`src/host/kernel_model.rs`).

use std::os::fd::AsRawFd;

use loom::thread;
use upoll::kernel_model::{Source, limit_nests, program};
use upoll::{Epoll, Event, EventFd, Events, Op, ReadinessFd, Rule, Source as _};

use super::sleeping::{LIMIT, time_passes_then_one_is_written, wait};
use super::{EDGE, IN, harvest, model, must_fail_without, writes};

/// Returns a set with counters as members, and its readiness fd.
fn set_with_counters<const N: usize>(interest: Event) -> (Epoll, [EventFd; N], ReadinessFd) {
    let set = Epoll::new().unwrap();
    let counters = [(); N].map(|()| EventFd::new(0).unwrap());
    for counter in &counters {
        set.add(counter, interest).unwrap();
    }
    let fd = set.readiness_fd().unwrap();
    (set, counters, fd)
}

/// Returns a kernel set of the program's that watches a readiness fd, edge-triggered.
fn watcher_of(fd: &ReadinessFd) -> i32 {
    let watcher = program::epoll_create().unwrap();
    program::epoll_ctl(watcher, Op::Add, fd.as_raw_fd(), EDGE).unwrap();
    watcher
}

fn is_readable(fd: &ReadinessFd) -> bool {
    program::poll_now(&mut [entry_of(fd)]) == Ok(1)
}

fn entry_of(fd: &ReadinessFd) -> libc::pollfd {
    libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    }
}

/// An event loop serves a set through its fd, edge-triggered, while others write. Its harvests are drained.
fn serving_against_writing<const N: usize>(interest: Event, room: usize) {
    // Two writers at once: with more preemptions the model takes minutes.
    model(if N == 1 { 3 } else { 1 }, move || {
        let (set, counters, fd) = set_with_counters::<N>(interest);
        let watcher = watcher_of(&fd);
        let writing = counters
            .clone()
            .map(|counter| thread::spawn(move || counter.try_write(1).unwrap()));
        let mut left = N;
        while left > 0 {
            assert_eq!(program::epoll_wait(watcher, &mut [Event::default()]), Ok(1));
            loop {
                let found = set.try_wait(&mut vec![Event::default(); room]).unwrap();
                left -= found;
                if found < room {
                    break;
                }
            }
        }
        for thread in writing {
            thread.join().unwrap();
        }
    });
}

#[test]
fn an_event_loop_that_serves_a_set_by_edges_misses_no_event() {
    serving_against_writing::<1>(EDGE, 1);
    serving_against_writing::<1>(EDGE, 2);
    serving_against_writing::<1>(IN, 2);
}

fn serving_two_against_writing() {
    serving_against_writing::<2>(EDGE, 2);
}

#[test]
fn an_event_loop_that_serves_two_writers_misses_no_event() {
    serving_two_against_writing();
}

/// The first of two events has rung, or is just doing so, and is harvested as the second comes. The harvest has room
/// for more, so the second must be an edge.
fn a_second_event_against_a_harvest() {
    model(3, || {
        let (set, [one, other, third], fd) = set_with_counters(EDGE);
        let watcher = watcher_of(&fd);
        let told = || program::epoll_wait_now(watcher, &mut [Event::default()]);
        one.try_write(1).unwrap();
        assert_eq!(told(), Ok(1));
        let writers = [other.clone(), third.clone()];
        let writing = thread::spawn(move || {
            for writer in &writers {
                writer.try_write(1).unwrap();
            }
        });
        let found = set.try_wait(&mut [Event::default(); 4]).unwrap();
        writing.join().unwrap();
        if found < 3 {
            assert_eq!(told(), Ok(1), "no edge for what was left");
        }
    });
}

#[test]
fn an_event_that_meets_a_harvest_is_reported_by_it_or_is_an_edge() {
    a_second_event_against_a_harvest();
    must_fail_without(Rule::MarkThenHarvest, a_second_event_against_a_harvest);
}

/// Harvests and wakeups meet each other. Later events show as they should.
fn later_events_after(harvesters: usize) {
    // Three threads: with more preemptions the model takes minutes.
    model(if harvesters == 1 { 3 } else { 1 }, move || {
        let (set, [counter], fd) = set_with_counters(EDGE);
        let watcher = watcher_of(&fd);
        let writing = writes(&counter, 1);
        let harvesting: Vec<_> = (1..harvesters)
            .map(|_| {
                let set = set.clone();
                thread::spawn(move || harvest(&set))
            })
            .collect();
        let mut taken = harvest(&set);
        writing.join().unwrap();
        for thread in harvesting {
            taken += thread.join().unwrap();
        }
        if taken == 0 {
            assert!(is_readable(&fd), "the event was lost");
        }
        taken += harvest(&set);
        assert_eq!(taken, 1);
        // Finds nothing. A loop that polls the fd comes to this at last.
        harvest(&set);
        assert!(!is_readable(&fd), "the fd would keep a loop busy for ever");
        let _ = program::epoll_wait_now(watcher, &mut [Event::default()]);
        counter.try_write(1).unwrap();
        assert!(is_readable(&fd), "the next event was lost");
        let told = program::epoll_wait_now(watcher, &mut [Event::default()]);
        assert_eq!(told, Ok(1), "the next event was no edge");
    });
}

#[test]
fn a_harvest_and_a_wakeup_leave_the_fd_as_it_should_be() {
    later_events_after(1);
}

#[test]
fn two_harvests_and_a_wakeup_leave_the_fd_as_it_should_be() {
    later_events_after(2);
}

/// One event is left when the next one comes.
fn an_event_while_something_is_left() {
    model(3, || {
        let (set, [one, other, third], fd) = set_with_counters(EDGE);
        let watcher = watcher_of(&fd);
        let told = || program::epoll_wait_now(watcher, &mut [Event::default()]);
        one.try_write(1).unwrap();
        other.try_write(1).unwrap();
        assert_eq!(told(), Ok(1));
        assert_eq!(set.try_wait(&mut [Event::default()]), Ok(1));
        let writing = thread::spawn(move || third.try_write(1).unwrap());
        // An edge of the new event.
        assert_eq!(program::epoll_wait(watcher, &mut [Event::default()]), Ok(1));
        writing.join().unwrap();
        assert!(is_readable(&fd));
    });
}

#[test]
fn an_event_that_comes_while_something_is_left_is_an_edge() {
    an_event_while_something_is_left();
    let rule = Rule::TakeAwayBeforeRingingAgain;
    must_fail_without(rule, an_event_while_something_is_left);
}

/// A wakeup is meant for a thread whose sleep has just ended by its limit.
#[test]
fn a_wakeup_that_comes_too_late_for_a_thread_leaves_the_fd_as_it_should_be() {
    model(2, || {
        let (set, [counter], fd) = set_with_counters(EDGE);
        let sleeper = set.clone();
        let sleeping = thread::spawn(move || wait(&sleeper, LIMIT).unwrap());
        time_passes_then_one_is_written(&counter).join().unwrap();
        let taken = sleeping.join().unwrap();
        assert_eq!(taken + harvest(&set), 1);
        harvest(&set);
        assert!(!is_readable(&fd), "the fd would keep a loop busy for ever");
    });
}

/// The fd is asked for while an event comes.
#[test]
fn an_event_that_comes_while_the_fd_is_made_shows() {
    model(3, || {
        let set = Epoll::new().unwrap();
        let counter = EventFd::new(0).unwrap();
        set.add(&counter, EDGE).unwrap();
        let writing = writes(&counter, 1);
        let fd = set.readiness_fd().unwrap();
        assert_eq!(program::poll(&mut [entry_of(&fd)]), Ok(1));
        writing.join().unwrap();
        assert_eq!(harvest(&set), 1);
        assert!(!is_readable(&fd));
    });
}

/// The fd is made while the set gets a nesting fd, which changes what the fd has to hold.
#[test]
fn a_set_that_gets_a_nesting_fd_while_its_fd_is_made_shows_the_sets_below() {
    model(1, || {
        let [outer, inner] = [(); 2].map(|()| Epoll::new().unwrap());
        let source = Source::new();
        inner.ctl(Op::Add, source.target(), IN).unwrap();
        let adder = outer.clone();
        let adding = thread::spawn(move || {
            adder.add(&inner, Event::new(Events::IN, 0)).unwrap();
            inner
        });
        let fd = outer.readiness_fd().unwrap();
        let _inner = adding.join().unwrap();
        while harvest(&outer) > 0 {}
        source.set_readable(true);
        assert!(is_readable(&fd));
        assert_eq!(harvest(&outer), 1);
    });
}

/// The kernel refuses to link the fd to the nesting fd that the set gets meanwhile. The program has no readiness fd, so
/// nothing else of the set fails.
#[test]
fn a_set_whose_readiness_fd_is_refused_is_as_one_without() {
    model(2, || {
        let [outer, inner] = [(); 2].map(|()| Epoll::new().unwrap());
        let sources = [(); 2].map(|()| Source::new());
        inner.ctl(Op::Add, sources[0].target(), IN).unwrap();
        limit_nests(2);
        let adder = outer.clone();
        let adding = thread::spawn(move || {
            let _ = adder.add(&inner, IN);
            inner
        });
        let fd = outer.readiness_fd();
        let _inner = adding.join().unwrap();
        if fd.is_err() {
            assert_eq!(outer.ctl(Op::Add, sources[1].target(), IN), Ok(()));
        }
    });
}
