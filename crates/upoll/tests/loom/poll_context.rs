//! What a poll context keeps registered, against writes, closes and drops.

use loom::thread;
use upoll::{Errno, EventFd, Events, FdSet, PollContext, PollFd, Rule, Source, pipe};

use super::{model, must_fail_without};

fn poll_kept(context: &mut PollContext, counter: &EventFd) -> usize {
    let mut fds = [PollFd::new(counter, Events::IN)];
    context.poll_now(&mut fds).unwrap()
}

/// What a poll context registers while a writer writes is found ready by the next call.
fn keeping_against_writing() {
    model(4, || {
        let counter = EventFd::new(0).unwrap();
        let writer = counter.clone();
        let thread = thread::spawn(move || writer.try_write(1).unwrap());
        let mut context = PollContext::new();
        poll_kept(&mut context, &counter);
        thread.join().unwrap();
        assert_eq!(poll_kept(&mut context, &counter), 1);
    });
}

#[test]
fn an_entry_that_a_context_registers_misses_no_wake() {
    keeping_against_writing();
}

#[test]
fn an_entry_that_is_not_looked_at_after_registering_misses_a_wake() {
    must_fail_without(Rule::LookAfterRegistering, keeping_against_writing);
}

/// Marks that wakes leave with a poll context while it looks: nothing that is ready at the end is
/// taken for idle, whatever was read meanwhile.
fn marking_against_looking() {
    model(4, || {
        let counter = EventFd::new(0).unwrap();
        let mut context = PollContext::new();
        assert_eq!(poll_kept(&mut context, &counter), 0);
        // Marked, and idle when it looks.
        counter.try_write(1).unwrap();
        counter.try_read().unwrap();
        let writer = counter.clone();
        let thread = thread::spawn(move || writer.try_write(1).unwrap());
        poll_kept(&mut context, &counter);
        thread.join().unwrap();
        assert_eq!(poll_kept(&mut context, &counter), 1);
    });
}

#[test]
fn a_mark_is_never_lost_between_looks_and_wakes() {
    marking_against_looking();
}

#[test]
fn marks_that_are_taken_away_after_the_look_are_lost() {
    must_fail_without(Rule::TakeMarksThenLook, marking_against_looking);
}

#[test]
fn a_context_selects() {
    model(1, || {
        let counters = [0, 1].map(|count| EventFd::new(count).unwrap());
        let mut context = PollContext::new();
        for _ in 0..2 {
            let mut read = FdSet::from_iter([0, 1]);
            let resolve = |number| Some(counters.get(usize::try_from(number).ok()?)?.target());
            let ready = context.select_now(2, Some(&mut read), None, None, resolve);
            assert_eq!((ready, read), (Ok(1), FdSet::from_iter([1])));
        }
        let mut read = FdSet::from_iter([2]);
        let resolve = |_| None;
        let ready = context.select_now(3, Some(&mut read), None, None, resolve);
        assert_eq!(ready, Err(Errno::BADF));
    });
}

/// A wake on its way through the queue while the context is dropped.
#[test]
fn a_context_may_go_while_a_wake_comes() {
    model(4, || {
        let counter = EventFd::new(0).unwrap();
        let mut context = PollContext::new();
        assert_eq!(poll_kept(&mut context, &counter), 0);
        let writer = counter.clone();
        let thread = thread::spawn(move || writer.try_write(1).unwrap());
        drop(context);
        thread.join().unwrap();
        assert!(counter.as_file_ref().is_ready(Events::IN));
    });
}

/// What a poll context registers while the other end closes is found hung up by the next call.
fn keeping_against_closing() {
    model(4, || {
        let (reader, writer) = pipe().unwrap();
        let thread = thread::spawn(move || drop(writer));
        let mut context = PollContext::new();
        let mut fds = [PollFd::new(&reader, Events::empty())];
        context.poll_now(&mut fds).unwrap();
        thread.join().unwrap();
        assert_eq!(context.poll_now(&mut fds), Ok(1));
        assert_eq!(fds[0].revents(), Events::HUP);
    });
}

#[test]
fn an_entry_that_a_context_registers_misses_no_close() {
    keeping_against_closing();
}

#[test]
fn an_entry_that_is_not_looked_at_after_registering_misses_a_close() {
    must_fail_without(Rule::LookAfterRegistering, keeping_against_closing);
}

/// The file of a kept entry closes, which wakes it, while the next call, whose list has another
/// file, lets go of it and uses its slot again.
#[test]
fn a_context_may_use_the_slot_of_a_file_again_while_it_closes() {
    model(3, || {
        let closing = EventFd::new(0).unwrap();
        let other = EventFd::new(0).unwrap();
        let mut context = PollContext::new();
        assert_eq!(poll_kept(&mut context, &closing), 0);
        let thread = thread::spawn(move || drop(closing));
        assert_eq!(poll_kept(&mut context, &other), 0);
        other.try_write(1).unwrap();
        assert_eq!(poll_kept(&mut context, &other), 1);
        thread.join().unwrap();
        assert_eq!(poll_kept(&mut context, &other), 1);
    });
}
