//! Sets that watch shared eventfds, and sets above those. Threads stand for processes.

use loom::thread;
use upoll::{Epoll, EventFd, EventFdFlags, Events, PollFd, Rule, poll};

use super::sleeping::{FOREVER, wait};
use super::{EDGE, IN, harvest, model, must_fail_without, set_of};

fn shared() -> EventFd {
    EventFd::shared(0, EventFdFlags::empty()).unwrap()
}

fn written_by_a_thread(counter: &EventFd) -> thread::JoinHandle<()> {
    let counter = counter.clone();
    thread::spawn(move || counter.try_write(1).unwrap())
}

#[test]
fn a_thread_that_goes_to_sleep_in_a_set_learns_of_a_shared_counter() {
    for interest in [IN, EDGE] {
        model(2, move || {
            let counter = shared();
            let set = set_of(&counter, interest);
            let writing = written_by_a_thread(&counter);
            assert_eq!(wait(&set, FOREVER), Ok(1));
            writing.join().unwrap();
        });
    }
}

/// Returns a set that watches the counter and that nobody harvests, and a set above it.
fn set_above(counter: &EventFd) -> (Epoll, Epoll) {
    let below = set_of(counter, IN);
    let above = set_of(&below, EDGE);
    (above, below)
}

/// Each write is an edge for the set above, although the counter stays ready from the first one on.
fn writing_twice_against_waiting_above() {
    model(2, || {
        let counter = shared();
        let (above, _below) = set_above(&counter);
        // From now on the set below is ready, so a poll need not check the notifier of the counter.
        counter.try_write(1).unwrap();
        assert_eq!(harvest(&above), 1);
        for _ in 0..2 {
            let writing = written_by_a_thread(&counter);
            assert_eq!(wait(&above, FOREVER), Ok(1));
            writing.join().unwrap();
        }
    });
}

#[test]
fn a_set_above_learns_of_each_write_to_a_shared_counter() {
    writing_twice_against_waiting_above();
}

#[test]
fn a_poll_from_above_that_does_not_arm_the_notifier_misses_the_next_write() {
    must_fail_without(Rule::HearFromAbove, writing_twice_against_waiting_above);
}

/// With no thread asleep below, one write is one edge.
#[test]
fn a_write_to_a_shared_counter_is_one_edge_for_the_set_above() {
    model(2, || {
        let counter = shared();
        let (above, _below) = set_above(&counter);
        let writing = written_by_a_thread(&counter);
        let mut reports = harvest(&above);
        writing.join().unwrap();
        for _ in 0..2 {
            reports += harvest(&above);
        }
        assert_eq!(reports, 1);
    });
}

/// With a thread asleep below, there is at most one edge more than there are writes.
#[test]
fn a_thread_that_sleeps_below_adds_at_most_one_edge_for_the_set_above() {
    model(1, || {
        let counter = shared();
        let (above, below) = set_above(&counter);
        let sleeper = below.clone();
        let sleeping = thread::spawn(move || wait(&sleeper, FOREVER));
        let writing = written_by_a_thread(&counter);
        let mut reports = harvest(&above);
        writing.join().unwrap();
        assert_eq!(sleeping.join().unwrap(), Ok(1));
        for _ in 0..3 {
            reports += harvest(&above);
        }
        assert!((1..=2).contains(&reports));
    });
}

/// The poll from above takes the notification that the thread below sleeps for.
#[test]
fn a_poll_from_above_takes_no_change_from_a_thread_that_sleeps_below() {
    model(1, || {
        let counter = shared();
        let (above, below) = set_above(&counter);
        let sleeper = below.clone();
        let sleeping = thread::spawn(move || wait(&sleeper, FOREVER));
        let writing = written_by_a_thread(&counter);
        assert_eq!(wait(&above, FOREVER), Ok(1));
        writing.join().unwrap();
        assert_eq!(sleeping.join().unwrap(), Ok(1));
    });
}

#[test]
fn a_thread_in_poll_or_a_read_learns_of_a_shared_counter() {
    for by_poll in [false, true] {
        model(2, move || {
            let counter = shared();
            let writing = written_by_a_thread(&counter);
            match by_poll {
                true => {
                    let mut fds = [PollFd::new(&counter, Events::IN)];
                    assert_eq!(poll(&mut fds, FOREVER), Ok(1));
                }
                false => assert_eq!(counter.read(), Ok(1)),
            }
            writing.join().unwrap();
        });
    }
}
