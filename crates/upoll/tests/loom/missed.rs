//! Wakes that do not get their queue's lock and are left to its holder.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use loom::thread::{self, ThreadId};
use upoll::{Epoll, EventFd, Events, Readiness, Rule, in_handler};

use super::rotation::workers;
use super::{IN, Waiter, harvest, model, must_fail_without};

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
    model(4, || {
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

/// A task that says, when another thread than its own wakes it, whether that has locked the set.
struct Task {
    set: Epoll,
    home: ThreadId,
    was_locked: AtomicBool,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if thread::current().id() != self.home && self.set.is_locked() {
            self.was_locked.store(true, Ordering::Relaxed);
        }
    }
}

/// A signal handler writes while another thread, the only one that uses the set, adds the counter to
/// it: that thread may have to wake the task that waits for the counter.
fn waking_a_task_against_adding() {
    model(2, || {
        let counter = EventFd::new(0).unwrap();
        let set = Epoll::new().unwrap();
        let task = Arc::new(Task {
            set: set.clone(),
            home: thread::current().id(),
            was_locked: AtomicBool::new(false),
        });
        let waker = Waker::from(task.clone());
        let mut ready = pin!(Readiness::new(counter.as_file_ref(), Events::IN).unwrap());
        let mut context = Context::from_waker(&waker);
        assert!(ready.as_mut().poll(&mut context).is_pending());
        let added = counter.clone();
        let adding = thread::spawn(move || {
            set.add(&added, IN).unwrap();
            set.delete(&added).unwrap();
        });
        in_handler(|| counter.try_write(1)).unwrap();
        adding.join().unwrap();
        assert!(!task.was_locked.load(Ordering::Relaxed));
    });
}

#[test]
fn the_task_of_a_wake_that_is_left_to_add_or_del_is_woken_with_the_set_unlocked() {
    waking_a_task_against_adding();
}

#[test]
fn a_task_that_is_woken_as_soon_as_its_queue_is_unlocked_may_find_the_set_locked() {
    must_fail_without(Rule::LeaveTasksToTheOutermost, waking_a_task_against_adding);
}
