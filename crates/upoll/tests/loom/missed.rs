//! Wakeups that find their queue's lock held, and that the holder of the lock delivers.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};

use loom::thread::{self, ThreadId};
use upoll::{Epoll, EventFd, Events, Readiness, Rule, Watch, pipe};

use super::rotation::workers;
use super::tasks::exclusive_tasks;
use super::{IN, Waiter, harvest, model, must_fail_without, writes};

/// A counter is written while another thread registers and unregisters in its queue.
fn waking_against_holding_the_lock() {
    model(4, || {
        let counter = EventFd::new(0).unwrap();
        let waiter = Waiter::at(counter.as_file_ref(), Events::IN);
        let other = counter.clone();
        let coming = thread::spawn(move || {
            drop(Waiter::at(other.as_file_ref(), Events::IN));
        });
        counter.try_write(1).unwrap();
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
fn a_holder_that_does_not_check_for_marks_loses_a_wake() {
    must_fail_without(Rule::LookAfterReleasing, waking_against_holding_the_lock);
}

/// The writer of a pipe closes, which wakes all waiters, while another thread registers and unregisters in the queue of
/// the reader.
#[test]
fn a_wake_of_all_that_does_not_get_the_lock_reaches_all() {
    model(2, || {
        let (reader, writer) = pipe().unwrap();
        let tasks = exclusive_tasks(&reader);
        let other = reader.clone();
        let coming = thread::spawn(move || {
            drop(Waiter::at(other.as_file_ref(), Events::IN));
        });
        drop(writer);
        coming.join().unwrap();
        // A task that leaves would forward the wake to the other one.
        assert!(tasks.iter().all(|(_, note)| note.is_set()));
    });
}

/// The source of a rotating set is written while another thread registers and unregisters in the
/// queue of that set. The event reaches a worker.
fn waking_in_turn_against_holding_the_lock() {
    model(3, || {
        let source = EventFd::new(0).unwrap();
        let (rotating, [first, second]) = workers(&source);
        let _waiting = [&first, &second].map(Waiter::in_set);
        let watched = rotating.clone();
        let coming = thread::spawn(move || {
            drop(Waiter::in_set(&watched));
        });
        source.try_write(1).unwrap();
        coming.join().unwrap();
        assert_eq!(harvest(&first) + harvest(&second), 1);
    });
}

#[test]
fn a_rotating_wake_that_does_not_get_the_lock_is_made_by_its_holder() {
    waking_in_turn_against_holding_the_lock();
}

#[test]
fn a_rotating_wake_that_does_not_try_again_after_its_mark_is_lost() {
    must_fail_without(
        Rule::TryAgainAfterMarking,
        waking_in_turn_against_holding_the_lock,
    );
}

/// Two events come while another thread registers and unregisters in the source's queue. Both
/// wakeups may find the lock held. Two workers are woken.
#[test]
fn two_wakes_that_do_not_get_the_lock_are_both_made_by_its_holder() {
    model(2, || {
        let source = EventFd::new(0).unwrap();
        let (_rotating, [first, second]) = workers(&source);
        let waiting = [&first, &second].map(Waiter::in_set);
        let (holding, writing) = (source.clone(), source.clone());
        let coming = thread::spawn(move || {
            drop(Waiter::at(holding.as_file_ref(), Events::IN));
        });
        let writer = thread::spawn(move || writing.try_write(1).unwrap());
        source.try_write(1).unwrap();
        coming.join().unwrap();
        writer.join().unwrap();
        assert!(waiting.iter().all(Waiter::was_told));
    });
}

/// The earlier use of a rotating set and its two workers.
#[derive(Clone, Copy)]
enum Before {
    Nothing,
    /// Nobody waited: the recheck flags are set.
    Flags,
    /// Two events were announced and read, and the workers polled in vain.
    PolledInVain,
    /// The workers polled, and then the events were read.
    Polled,
    /// One event was announced and read. The chosen worker has not polled.
    Chosen,
}

/// Two events come while another thread registers and unregisters in the queue of the rotating set. The set
/// and its workers were in use before. Two workers are woken.
fn waking_twice_in_turn_against_holding_the_lock(before: Before) {
    model(2, move || {
        let source = EventFd::new(0).unwrap();
        let (rotating, sets) = workers::<2>(&source);
        let write = || source.try_write(1).unwrap();
        if let Before::Flags = before {
            write();
            source.try_read().unwrap();
        }
        let waiting = sets.each_ref().map(Waiter::in_set);
        match before {
            Before::Nothing | Before::Flags => {}
            Before::PolledInVain | Before::Polled => {
                write();
                write();
                if let Before::PolledInVain = before {
                    source.try_read().unwrap();
                    assert!(sets.iter().all(|set| harvest(set) == 0));
                } else {
                    assert!(sets.iter().all(|set| harvest(set) == 1));
                    source.try_read().unwrap();
                }
            }
            Before::Chosen => {
                write();
                source.try_read().unwrap();
            }
        }
        let told_before = waiting.each_ref().map(Waiter::times_told);
        let writing = writes(&source, 1);
        let watching = thread::spawn(move || {
            drop(Waiter::in_set(&rotating));
            rotating
        });
        write();
        writing.join().unwrap();
        let _open = watching.join().unwrap();
        for (waiter, told) in waiting.iter().zip(told_before) {
            assert!(waiter.times_told() > told);
        }
    });
}

#[test]
fn two_rotating_wakes_reach_two_workers_whatever_was_before() {
    let all = [
        Before::Nothing,
        Before::Flags,
        Before::PolledInVain,
        Before::Polled,
        Before::Chosen,
    ];
    for before in all {
        waking_twice_in_turn_against_holding_the_lock(before);
    }
}

/// A task that records whether the set is locked when another thread than its own wakes it.
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

/// A counter is written while another thread, the only one that uses the set, adds the counter to
/// it. That thread may have to wake the task that waits for the counter.
pub(super) fn waking_a_task_against_adding() {
    model(2, || {
        let counter = EventFd::new(0).unwrap();
        let set = Epoll::new().unwrap();
        let task = Arc::new(Task {
            set: set.clone(),
            home: thread::current().id(),
            was_locked: AtomicBool::new(false),
        });
        let waker = Waker::from(task.clone());
        let mut ready = pin!(Readiness::new(&counter, Events::IN).unwrap());
        let mut context = Context::from_waker(&waker);
        assert!(ready.as_mut().poll(&mut context).is_pending());
        let added = counter.clone();
        let adding = thread::spawn(move || {
            set.add(&added, IN).unwrap();
            set.delete(&added).unwrap();
        });
        counter.try_write(1).unwrap();
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

/// Two threads write, and a callback reads until the counter is empty. It is called after each
/// write, by one thread at a time.
pub(super) fn calling_against_waking() {
    model(3, || {
        let counter = EventFd::new(0).unwrap();
        let read = Arc::new(AtomicU64::new(0));
        let is_running = AtomicBool::new(false);
        let (reader, sum) = (counter.clone(), read.clone());
        let (watch, _) = Watch::new(&counter, Events::IN, move |_| {
            assert!(!is_running.swap(true, Ordering::SeqCst));
            if let Ok(count) = reader.try_read() {
                sum.fetch_add(count, Ordering::SeqCst);
            }
            thread::yield_now();
            is_running.store(false, Ordering::SeqCst);
        })
        .unwrap();
        let writing = writes(&counter, 1);
        counter.try_write(2).unwrap();
        writing.join().unwrap();
        assert_eq!(read.load(Ordering::SeqCst), 3);
        drop(watch);
    });
}

#[test]
fn a_callback_is_called_after_each_wake_by_one_thread_at_a_time() {
    calling_against_waking();
}

#[test]
fn a_callback_that_is_not_called_again_misses_a_wake_that_comes_while_it_runs() {
    must_fail_without(Rule::CallAgain, calling_against_waking);
}

/// A watch is dropped while another thread writes. Its callback is not running afterwards.
pub(super) fn dropping_a_watch_against_waking() {
    model(3, || {
        let counter = EventFd::new(0).unwrap();
        let is_running = Arc::new(AtomicBool::new(false));
        let runs = is_running.clone();
        let (watch, _) = Watch::new(&counter, Events::IN, move |_| {
            runs.store(true, Ordering::SeqCst);
            thread::yield_now();
            runs.store(false, Ordering::SeqCst);
        })
        .unwrap();
        let writing = writes(&counter, 1);
        drop(watch);
        for _ in 0..2 {
            assert!(!is_running.load(Ordering::SeqCst));
            thread::yield_now();
        }
        writing.join().unwrap();
    });
}

#[test]
fn no_callback_runs_once_its_watch_has_been_dropped() {
    dropping_a_watch_against_waking();
}

#[test]
fn a_watch_that_does_not_wait_for_its_callback_may_be_dropped_under_it() {
    must_fail_without(Rule::WaitForCallbacks, dropping_a_watch_against_waking);
}
