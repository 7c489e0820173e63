//! Counters that processes share. Threads of a model stand for processes, some of which die.

use std::sync::Arc;

use loom::thread;
use upoll::{Rule, SharedModel};

use super::{model, must_fail_without};

/// A process arms its notifier for changes of a shared counter while another one writes.
fn listening_against_writing() {
    model(4, || {
        let counter = Arc::new(SharedModel::new());
        let writers: Vec<_> = (0..2)
            .map(|_| {
                let counter = counter.clone();
                thread::spawn(move || counter.write(false))
            })
            .collect();
        let heard = counter.arm();
        for writer in writers {
            writer.join().unwrap();
        }
        assert!(heard == 2 || counter.rang(), "a change was not heard of");
    });
}

#[test]
fn a_process_with_an_armed_notifier_learns_of_each_change_of_a_shared_counter() {
    listening_against_writing();
}

#[test]
fn a_process_that_counts_the_changes_before_it_listens_misses_one() {
    must_fail_without(Rule::ArmThenCount, listening_against_writing);
}

/// A process begins to sleep for a shared counter. The process that writes it dies while it
/// notifies the sleeper, and another one may write.
fn sleeping_against_dying(others: usize) {
    model(4, move || {
        let counter = Arc::new(SharedModel::new());
        let writers: Vec<_> = (0..=others)
            .map(|which| {
                let counter = counter.clone();
                thread::spawn(move || counter.write(which == 0))
            })
            .collect();
        counter.lie_down();
        for writer in writers {
            writer.join().unwrap();
        }
        let count = counter.count();
        assert!(count as usize >= others, "a write had no effect");
        assert!(count == 0 || !counter.sleeps(), "a sleeper was forgotten");
    });
}

fn sleeping_against_one_that_dies() {
    sleeping_against_dying(0);
}

fn sleeping_against_one_that_dies_and_one_that_writes() {
    sleeping_against_dying(1);
}

#[test]
fn a_process_that_dies_in_a_write_leaves_nobody_asleep_at_a_change() {
    sleeping_against_one_that_dies();
    sleeping_against_one_that_dies_and_one_that_writes();
}

#[test]
fn a_process_that_notifies_after_the_change_leaves_a_sleeper_behind_when_it_dies() {
    must_fail_without(Rule::TellBeforeChanging, sleeping_against_one_that_dies);
}

#[test]
fn a_sleeper_without_a_mark_is_forgotten_when_its_waker_dies() {
    must_fail_without(
        Rule::MarkForTheDead,
        sleeping_against_one_that_dies_and_one_that_writes,
    );
}
