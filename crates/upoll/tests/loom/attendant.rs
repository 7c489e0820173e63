//! The attendant: the thread that sleeps in the kernel in place of callbacks and tasks. Its start and end, registrations,
//! and events that come meanwhile. The kernel's epoll is a model (`src/host/kernel_model.rs`).
//!
//! Each model ends with [`all_leave`]: an attendant with a registration that nobody ends would not end either.

use std::os::fd::{AsFd, BorrowedFd};

use loom::thread;
use upoll::kernel_model::{Source, pass_time};
use upoll::{Epoll, Events, join_attendants};

use super::{IN, Waiter, harvest, model, set_of};

/// Returns a set with a kernel member, and that member.
fn set_with_source() -> (Epoll, Source) {
    let source = Source::new();
    (set_of(&source.as_fd(), IN), source)
}

/// A thread that adds a kernel member.
fn adds(set: &Epoll, source: &Source) -> thread::JoinHandle<()> {
    let (set, fd) = (set.clone(), source.fd());
    thread::spawn(move || {
        // SAFETY: a model has no system calls, and its source lives until this has ended.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        set.add(&fd, IN).unwrap();
    })
}

/// Lets time pass until the attendants have ended.
fn all_leave() {
    pass_time();
    join_attendants();
}

impl Waiter {
    /// Waits for a kernel fd.
    fn at_source(source: &Source) -> Self {
        Self::at_any(&source.as_fd(), Events::IN)
    }

    fn hears(&self) {
        while !self.has_heard() {
            thread::yield_now();
        }
    }
}

fn an_event_of_a_member() {
    model(3, || {
        let (set, source) = set_with_source();
        let waiter = Waiter::in_set(&set);
        source.set_readable(true);
        waiter.hears();
        drop(waiter);
        all_leave();
    });
}

#[test]
fn a_callback_learns_of_an_event_of_a_kernel_member() {
    an_event_of_a_member();
}

/// The second event comes after a harvest, as the attendant may still be busy with the first.
fn two_events_of_a_member() {
    model(3, || {
        let (set, source) = set_with_source();
        let waiter = Waiter::in_set(&set);
        source.set_readable(true);
        waiter.hears();
        source.set_readable(false);
        harvest(&set);
        let again = Waiter::in_set(&set);
        assert!(again.ready.is_empty());
        source.set_readable(true);
        again.hears();
        drop((waiter, again));
        all_leave();
    });
}

#[test]
fn a_callback_learns_of_an_event_after_a_harvest() {
    two_events_of_a_member();
}

fn an_event_of_a_member_of_a_set_below() {
    model(2, || {
        let (below, source) = set_with_source();
        let set = set_of(&below, IN);
        let waiter = Waiter::in_set(&set);
        source.set_readable(true);
        waiter.hears();
        drop(waiter);
        all_leave();
    });
}

#[test]
fn a_callback_learns_of_an_event_of_a_kernel_member_in_a_set_below() {
    an_event_of_a_member_of_a_set_below();
}

/// Each side publishes, then checks for the other.
fn registering_against_the_first_kernel_member() {
    model(2, || {
        let (set, source) = (Epoll::new().unwrap(), Source::new());
        let adding = adds(&set, &source);
        let waiter = Waiter::in_set(&set);
        adding.join().unwrap();
        source.set_readable(true);
        waiter.hears();
        drop(waiter);
        all_leave();
    });
}

#[test]
fn a_callback_that_begins_as_the_first_kernel_member_is_added_learns_of_its_events() {
    registering_against_the_first_kernel_member();
}

/// If the registration begins after the end of its callback, the thread that begins it ends it.
fn an_end_against_the_first_kernel_member() {
    model(2, || {
        let (set, source) = (Epoll::new().unwrap(), Source::new());
        let waiter = Waiter::in_set(&set);
        let adding = adds(&set, &source);
        drop(waiter);
        adding.join().unwrap();
        // The close of the set would end it, too.
        all_leave();
        drop((set, source));
    });
}

#[test]
fn a_callback_that_ends_as_the_first_kernel_member_is_added_leaves_no_registration() {
    an_end_against_the_first_kernel_member();
}

/// The first callback ends as a second one begins.
fn registering_against_the_end_of_the_last() {
    model(2, || {
        let (set, source) = set_with_source();
        let first = Waiter::in_set(&set);
        let ending = thread::spawn(move || drop(first));
        let second = Waiter::in_set(&set);
        ending.join().unwrap();
        source.set_readable(true);
        second.hears();
        drop(second);
        all_leave();
    });
}

#[test]
fn a_callback_that_begins_as_another_ends_learns_of_events() {
    registering_against_the_end_of_the_last();
}

/// Two callbacks begin and end at a time. The one that is the last ends the registration.
fn two_callbacks_that_come_and_go() {
    model(2, || {
        let (set, source) = set_with_source();
        let other = set.clone();
        let there = thread::spawn(move || drop(Waiter::in_set(&other)));
        drop(Waiter::in_set(&set));
        there.join().unwrap();
        all_leave();
        drop((set, source));
    });
}

#[test]
fn the_last_of_two_callbacks_ends_the_registration() {
    two_callbacks_that_come_and_go();
}

/// The attendant finds that nothing has been registered for a second, as something is.
fn registering_against_the_end_of_the_attendant() {
    model(2, || {
        let source = Source::new();
        drop(Waiter::at_source(&source));
        let passing = thread::spawn(pass_time);
        let waiter = Waiter::at_source(&source);
        passing.join().unwrap();
        source.set_readable(true);
        waiter.hears();
        drop(waiter);
        all_leave();
    });
}

#[test]
fn a_callback_that_begins_as_the_attendant_ends_learns_of_events() {
    registering_against_the_end_of_the_attendant();
}

fn an_event_of_a_kernel_fd() {
    model(3, || {
        let source = Source::new();
        let waiter = Waiter::at_source(&source);
        source.set_readable(true);
        waiter.hears();
        drop(waiter);
        assert_eq!(source.number_of_watchers(), 0);
        all_leave();
    });
}

#[test]
fn a_callback_learns_of_an_event_of_a_kernel_fd() {
    an_event_of_a_kernel_fd();
}

/// An event comes as the callback ends.
fn an_event_against_the_end_of_its_callback() {
    model(3, || {
        let (set, source) = set_with_source();
        let waiters = (Waiter::in_set(&set), Waiter::at_source(&source));
        let ending = thread::spawn(move || drop(waiters));
        source.set_readable(true);
        ending.join().unwrap();
        assert_eq!(harvest(&set), 1);
        all_leave();
    });
}

#[test]
fn an_event_that_comes_as_its_callback_ends_finds_nobody() {
    an_event_against_the_end_of_its_callback();
}
