//! Wakes that do not get their queue's lock and are left to its holder.

use loom::thread;
use upoll::{EventFd, Events, Rule, in_handler};

use super::rotation::workers;
use super::{Waiter, harvest, model, must_fail_without};

/// A signal handler writes while another thread comes and goes in the queue of the same counter.
fn waking_against_holding_the_lock() {
    model(4, || {
        let counter = EventFd::new(0).unwrap();
        let waiter = Waiter::at(counter.as_file_ref(), Events::IN);
        let other = counter.clone();
        let coming = thread::spawn(move || {
            drop(Waiter::at(other.as_file_ref(), Events::IN));
        });
        in_handler(|| counter.try_write(1)).unwrap();
        coming.join().unwrap();
        assert!(waiter.was_told());
    });
}

#[test]
fn a_wake_that_does_not_get_the_lock_is_made_by_its_holder() {
    waking_against_holding_the_lock();
}

#[test]
fn a_wake_that_does_not_try_again_after_its_mark_is_lost() {
    must_fail_without(Rule::TryAgainAfterMarking, waking_against_holding_the_lock);
}

#[test]
fn a_mark_that_the_holder_of_the_lock_does_not_see_in_time_is_lost() {
    must_fail_without(Rule::BarrierAfterMarking, waking_against_holding_the_lock);
}

#[test]
fn a_holder_that_does_not_look_for_marks_loses_a_wake() {
    must_fail_without(Rule::LookAfterFreeing, waking_against_holding_the_lock);
}

/// A signal handler writes to the source of a rotating set while the worker that is first in line
/// leaves: the one that stays has the event.
fn waking_in_turn_against_leaving() {
    model(3, || {
        let source = EventFd::new(0).unwrap();
        let (rotating, [first, second]) = workers(&source);
        let _waiting = [&first, &second].map(Waiter::in_set);
        let leaving = thread::spawn(move || {
            first.delete(&rotating).unwrap();
            rotating
        });
        in_handler(|| source.try_write(1)).unwrap();
        let _open = leaving.join().unwrap();
        assert_eq!(harvest(&second), 1);
    });
}

#[test]
fn a_rotating_wake_that_is_left_to_a_worker_that_leaves_is_with_the_one_that_stays() {
    waking_in_turn_against_leaving();
}

#[test]
fn a_rotating_wake_that_does_not_try_again_after_its_mark_is_lost() {
    must_fail_without(Rule::TryAgainAfterMarking, waking_in_turn_against_leaving);
}
