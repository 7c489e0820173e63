//! The attendant: the thread that sleeps in the kernel in place of callbacks and tasks. Its start and end, registrations,
//! and events that come meanwhile. The kernel's epoll is a model (`src/host/kernel_model.rs`).
//!
//! Each model ends with [`all_leave`]: an attendant with a registration that nobody ends would not end either.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

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

/// Waits for the end of the attendants, as time passes.
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

/// An event comes, of which the waiter hears before it ends.
fn hears_and_ends(waiter: Waiter, source: &Source) {
    source.set_readable(true);
    waiter.hears();
    drop(waiter);
    all_leave();
}

#[test]
fn a_callback_learns_of_an_event_of_a_kernel_member() {
    model(3, || {
        let (set, source) = set_with_source();
        let waiter = Waiter::in_set(&set);
        hears_and_ends(waiter, &source);
    });
}

/// The second event comes after a harvest, as the attendant may still be busy with the first.
#[test]
fn a_callback_learns_of_an_event_after_a_harvest() {
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
fn a_callback_learns_of_an_event_of_a_kernel_member_in_a_set_below() {
    model(2, || {
        let (below, source) = set_with_source();
        let set = set_of(&below, IN);
        let waiter = Waiter::in_set(&set);
        hears_and_ends(waiter, &source);
    });
}

/// Each side publishes, then checks for the other.
#[test]
fn a_callback_that_begins_as_the_first_kernel_member_is_added_learns_of_its_events() {
    model(2, || {
        let (set, source) = (Epoll::new().unwrap(), Source::new());
        let adding = adds(&set, &source);
        let waiter = Waiter::in_set(&set);
        adding.join().unwrap();
        hears_and_ends(waiter, &source);
    });
}

/// The set with the first kernel member becomes a member of the set for which the callback waits.
#[test]
fn a_callback_learns_of_events_in_a_set_that_is_added_as_its_first_kernel_member_is() {
    model(2, || {
        let (below, set, source) = (Epoll::new().unwrap(), Epoll::new().unwrap(), Source::new());
        let waiter = Waiter::in_set(&set);
        let adding = adds(&below, &source);
        set.add(&below, IN).unwrap();
        adding.join().unwrap();
        hears_and_ends(waiter, &source);
    });
}

/// If the registration begins after the end of its callback, the thread that begins it ends it.
#[test]
fn a_callback_that_ends_as_the_first_kernel_member_is_added_leaves_no_registration() {
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

/// The first callback ends as a second one begins.
#[test]
fn a_callback_that_begins_as_another_ends_learns_of_events() {
    model(2, || {
        let (set, source) = set_with_source();
        let first = Waiter::in_set(&set);
        let ending = thread::spawn(move || drop(first));
        let second = Waiter::in_set(&set);
        ending.join().unwrap();
        hears_and_ends(second, &source);
    });
}

/// Two callbacks begin and end at a time. The one that is the last ends the registration.
#[test]
fn the_last_of_two_callbacks_ends_the_registration() {
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

/// The attendant finds that nothing has been registered for a second, as something is.
#[test]
fn a_callback_that_begins_as_the_attendant_ends_learns_of_events() {
    model(2, || {
        let source = Source::new();
        drop(Waiter::at_source(&source));
        let passing = thread::spawn(pass_time);
        let waiter = Waiter::at_source(&source);
        passing.join().unwrap();
        hears_and_ends(waiter, &source);
    });
}

#[test]
fn a_callback_learns_of_an_event_of_a_kernel_fd() {
    model(3, || {
        let source = Source::new();
        let waiter = Waiter::at_source(&source);
        hears_and_ends(waiter, &source);
        assert_eq!(source.number_of_watchers(), 0);
    });
}

/// An event comes as the callback ends.
#[test]
fn an_event_that_comes_as_its_callback_ends_finds_nobody() {
    model(3, || {
        let (set, source) = set_with_source();
        let waiters = [Waiter::in_set(&set), Waiter::at_source(&source)];
        let calls = waiters.each_ref().map(|waiter| waiter.told.clone());
        let calls_so_far = move || calls.each_ref().map(|calls| calls.load(Ordering::SeqCst));
        let count = calls_so_far.clone();
        let ending = thread::spawn(move || {
            drop(waiters);
            count()
        });
        source.set_readable(true);
        let at_the_end = ending.join().unwrap();
        assert_eq!(harvest(&set), 1);
        all_leave();
        assert_eq!(calls_so_far(), at_the_end);
    });
}
