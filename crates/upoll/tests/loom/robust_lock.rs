//! The one-word lock that survives its owner's death. Threads of a model stand for processes, some
//! of which are killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::cell::UnsafeCell;
use loom::thread;
use upoll::{LockModel, Rule, kernel_model};

use super::{model, must_fail_without};

/// A lock and the data that it guards.
struct Guarded {
    lock: LockModel,
    /// The number of times that it was held.
    count: UnsafeCell<usize>,
    /// The number of owners that learned of the death of the previous one.
    learned: AtomicUsize,
}

// SAFETY: `count` is touched only with the lock held, or by the last thread. The model checks this.
unsafe impl Sync for Guarded {}

impl Guarded {
    fn new() -> Arc<Self> {
        Arc::new(Guarded {
            lock: LockModel::new(),
            count: UnsafeCell::new(0),
            learned: AtomicUsize::new(0),
        })
    }

    /// Holds the lock once, as the thread `id`, which is killed after `steps` steps. Returns
    /// whether it was killed.
    fn hold(&self, id: u32, steps: Option<usize>) -> bool {
        self.lock.hold(id, steps, |owner_died| {
            // loom fails if another access is concurrent or unordered.
            // SAFETY: with the lock held.
            self.count.with_mut(|count| unsafe { *count += 1 });
            self.learned
                .fetch_add(usize::from(owner_died), Ordering::SeqCst);
        })
    }

    /// Starts a thread that holds the lock once.
    fn held_by(self: &Arc<Self>, id: u32) -> thread::JoinHandle<bool> {
        let guarded = self.clone();
        thread::spawn(move || guarded.hold(id, None))
    }

    fn learned(&self) -> usize {
        self.learned.load(Ordering::SeqCst)
    }

    fn sleep_until_asleep(&self, threads: usize) {
        while self.lock.sleepers() < threads {
            thread::yield_now();
        }
    }
}

/// Three threads hold the lock. No time passes, so no sleep ends by its limit.
fn holding_against_holding() {
    model(3, || {
        let guarded = Guarded::new();
        let others = [2, 3].map(|id| guarded.held_by(id));
        guarded.hold(1, None);
        for other in others {
            other.join().unwrap();
        }
        // SAFETY: no other thread is left.
        assert_eq!(guarded.count.with(|count| unsafe { *count }), 3);
        assert_eq!(guarded.learned(), 0);
    });
}

#[test]
fn threads_hold_the_lock_one_after_the_other_and_none_is_forgotten() {
    holding_against_holding();
}

/// The number of steps after which a thread that took the lock at its first attempt dies at the end
/// of the body, or after the release and before it wakes the sleepers.
const AFTER_BODY: usize = 3;
const BEFORE_WAKE: usize = 4;

/// More steps than a thread makes that takes the lock at its second attempt.
const STEPS: usize = 12;

/// Another thread waits for the lock while its owner is killed, after each number of steps.
fn taking_against_dying() {
    for steps in 0..STEPS {
        model(3, move || {
            let guarded = Guarded::new();
            let other = guarded.held_by(2);
            let killed = guarded.hold(1, Some(steps));
            other.join().unwrap();
            guarded.hold(3, None);
            // SAFETY: no other thread is left.
            let held = guarded.count.with(|count| unsafe { *count });
            assert!(held == 3 || killed && held == 2);
            // At most one owner learns of one death.
            assert!(guarded.learned() <= usize::from(killed));
        });
    }
}

#[test]
fn a_thread_takes_the_lock_of_one_that_is_killed_at_any_step() {
    taking_against_dying();
}

#[test]
fn an_owner_that_ends_its_mark_before_it_wakes_the_waiters_leaves_one_behind_when_it_dies() {
    must_fail_without(Rule::PendingUntilWoken, taking_against_dying);
}

/// An owner is killed while it holds the lock and two others wait. Exactly one waiter learns of the death.
#[test]
fn one_thread_alone_learns_that_the_owner_died() {
    model(3, || {
        let guarded = Guarded::new();
        let mut others = Vec::new();
        let killed = guarded.lock.hold(1, Some(AFTER_BODY), |_| {
            others.extend([2, 3].map(|id| guarded.held_by(id)));
        });
        for other in others {
            other.join().unwrap();
        }
        guarded.hold(4, None);
        assert!(killed);
        assert_eq!(guarded.learned(), 1);
    });
}

/// An owner is killed at its release, or before it, while two others sleep for the lock.
fn dying_with_two_asleep() {
    for dies_at_release in [false, true] {
        model(2, move || {
            let guarded = Guarded::new();
            let mut others = Vec::new();
            let steps = if dies_at_release {
                BEFORE_WAKE
            } else {
                AFTER_BODY
            };
            let killed = guarded.lock.hold(1, Some(steps), |_| {
                others.extend([2, 3].map(|id| guarded.held_by(id)));
                guarded.sleep_until_asleep(2);
            });
            for other in others {
                other.join().unwrap();
            }
            assert!(killed);
            assert_eq!(guarded.learned(), usize::from(!dies_at_release));
        });
    }
}

#[test]
fn both_threads_asleep_get_the_lock_of_one_that_is_killed() {
    dying_with_two_asleep();
}

#[test]
fn a_thread_that_slept_and_does_not_mark_that_others_may_sleep_leaves_one_behind() {
    must_fail_without(Rule::HandOnWaiters, dying_with_two_asleep);
}

/// A thread is killed at any step while two others use the lock, and time passes: a sleep of two
/// hundred milliseconds ends.
#[test]
fn nobody_waits_for_ever_whichever_step_a_thread_is_killed_at() {
    for steps in 0..STEPS {
        model(2, move || {
            let guarded = Guarded::new();
            let other = guarded.held_by(2);
            let dying = {
                let guarded = guarded.clone();
                thread::spawn(move || guarded.hold(3, Some(steps)))
            };
            kernel_model::pass_time();
            guarded.hold(1, None);
            other.join().unwrap();
            let killed = dying.join().unwrap();
            assert!(guarded.learned() <= usize::from(killed));
        });
    }
}

/// A thread of another pid namespace, with the owner's ID, waits and is killed. The lock stays the
/// owner's.
#[test]
fn a_waiter_with_the_owners_id_that_is_killed_leaves_the_lock() {
    for steps in 0..4 {
        model(2, move || {
            let guarded = Guarded::new();
            let mut other = None;
            guarded.lock.hold(1, None, |_| {
                let twin = {
                    let guarded = guarded.clone();
                    thread::spawn(move || guarded.hold(1, Some(steps)))
                };
                other = Some(guarded.held_by(2));
                kernel_model::pass_time();
                assert!(twin.join().unwrap());
                // SAFETY: with the lock held.
                guarded.count.with_mut(|count| unsafe { *count += 1 });
            });
            other.take().unwrap().join().unwrap();
            assert_eq!(guarded.learned(), 0);
        });
    }
}
