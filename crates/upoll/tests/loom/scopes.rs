//! Wakers and callbacks of a build without `std`, where the scopes of all threads share one list.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use loom::thread;
use upoll::{Epoll, EventFd, Events, Rule, Watch, share_scopes};

use super::missed::{
    calling_against_waking, dropping_a_watch_against_waking, waking_a_task_against_adding,
};
use super::tasks::{ending_a_future_against_waking, giving_another_waker_against_waking};
use super::{IN, Waiter, model, must_fail_without, registering_against_publishing};

struct Sharing;

impl Drop for Sharing {
    fn drop(&mut self) {
        share_scopes(false);
    }
}

/// Makes the models of this thread share scopes, until the result is dropped.
fn share() -> Sharing {
    share_scopes(true);
    Sharing
}

#[test]
fn a_task_is_woken_with_the_set_of_another_threads_scope_unlocked() {
    let _sharing = share();
    waking_a_task_against_adding();
}

/// Each of two wakeups may be left to the scope of the other thread, or to that of a third one.
#[test]
fn a_wake_that_is_left_to_the_scopes_of_other_threads_is_made() {
    let _sharing = share();
    model(2, || {
        let counters = [(); 2].map(|()| EventFd::new(0).unwrap());
        let waiters = counters
            .each_ref()
            .map(|counter| Waiter::at(counter.as_file_ref(), Events::IN));
        let writing = counters.map(|counter| {
            thread::spawn(move || {
                counter.try_write(1).unwrap();
                counter
            })
        });
        drop(Waiter::in_set(&Epoll::new().unwrap()));
        let _open = writing.map(|writing| writing.join().unwrap());
        assert!(waiters.iter().all(Waiter::was_told));
    });
}

#[test]
fn a_waiter_that_registers_beside_other_scopes_misses_no_wake() {
    let _sharing = share();
    registering_against_publishing();
}

#[test]
fn a_callback_is_called_after_each_wake_beside_other_scopes() {
    let _sharing = share();
    calling_against_waking();
}

#[test]
fn a_callback_that_is_not_called_again_misses_a_wake_beside_other_scopes() {
    let _sharing = share();
    must_fail_without(Rule::CallAgain, calling_against_waking);
}

#[test]
fn a_watch_that_does_not_wait_may_be_dropped_under_a_callback_of_another_scope() {
    let _sharing = share();
    must_fail_without(Rule::WaitForCallbacks, dropping_a_watch_against_waking);
}

/// Data of a callback. It is dropped with the callback, and not while the callback runs.
struct Used {
    is_running: AtomicBool,
}

impl Drop for Used {
    fn drop(&mut self) {
        assert!(!self.is_running.load(Ordering::SeqCst));
    }
}

/// A watch is dropped after its wakeup may have been left to the scope of a third thread.
#[test]
fn a_callback_that_was_left_to_another_scope_is_not_called_once_its_watch_is_dropped() {
    let _sharing = share();
    dropping_a_watch_against_waking();
    model(2, || {
        let (counter, set) = (EventFd::new(0).unwrap(), Epoll::new().unwrap());
        let is_dropped = Arc::new(AtomicBool::new(false));
        let used = Used {
            is_running: AtomicBool::new(false),
        };
        let dropped = is_dropped.clone();
        let (watch, _) = Watch::new(&counter, Events::IN, move |_| {
            assert!(!dropped.load(Ordering::SeqCst));
            used.is_running.store(true, Ordering::SeqCst);
            thread::yield_now();
            assert!(!dropped.load(Ordering::SeqCst));
            used.is_running.store(false, Ordering::SeqCst);
        })
        .unwrap();
        let (written, added) = (counter.clone(), counter.clone());
        let writing = thread::spawn(move || written.try_write(1).unwrap());
        let adding = thread::spawn(move || set.add(&added, IN).unwrap());
        drop(watch);
        is_dropped.store(true, Ordering::SeqCst);
        writing.join().unwrap();
        adding.join().unwrap();
    });
}

#[test]
fn a_task_that_gives_another_waker_beside_other_scopes_misses_no_wake() {
    let _sharing = share();
    giving_another_waker_against_waking();
}

#[test]
fn a_future_that_ends_beside_other_scopes_is_used_no_more() {
    let _sharing = share();
    ending_a_future_against_waking();
}
