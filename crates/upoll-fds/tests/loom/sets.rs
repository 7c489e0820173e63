//! Plain sets: kernel sets that are taken over with their first user-level member.

use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;

use crate::change::{begin_fork, end_fork};
use crate::counts;
use crate::harness::model;
use crate::plain_sets::{Generations, Record};
use crate::sync::{self, handle_signal, signal_point};

/// A thread makes a plain set while another one forks: a set that the child has is of a generation that has
/// ended.
fn making_a_set_against_forking() {
    model(4, || {
        let generations = Arc::new(Generations::new());
        let is_made = Arc::new(AtomicBool::new(false));
        let making = {
            let (generations, is_made) = (generations.clone(), is_made.clone());
            thread::spawn(move || {
                let generation = generations.begin_to_make();
                is_made.store(true, Ordering::Release);
                generation
            })
        };
        begin_fork();
        generations.end_before_fork(OTHER);
        let is_inherited = is_made.load(Ordering::Acquire);
        end_fork();
        let generation = making.join().unwrap();
        assert!(!is_inherited || generation != generations.now());
    });
}

#[test]
fn a_set_that_a_child_has_is_of_a_past_generation() {
    making_a_set_against_forking();
}

broken_variants! { making_a_set_against_forking =>
    a_set_whose_maker_looks_first_is_met_by_a_fork: must_fail_without NoteThenCheck;
}

/// Two threads make sets while a generation ends.
fn making_sets_in_two_generations() {
    model(4, || {
        let generations = Arc::new(Generations::new());
        let making = {
            let generations = generations.clone();
            thread::spawn(move || generations.begin_to_make())
        };
        generations.end(OTHER);
        let generation = generations.begin_to_make();
        making.join().unwrap();
        assert!(generation == generations.now() && generations.may_have_sets());
        begin_fork();
        generations.end_before_fork(OTHER);
        assert!(generation != generations.now());
        end_fork();
    });
}

#[test]
fn a_set_of_the_newest_generation_is_known_before_a_fork() {
    making_sets_in_two_generations();
}

broken_variants! { making_sets_in_two_generations =>
    a_set_is_forgotten_for_one_of_an_older_generation: must_fail_without NoteTheNewest;
}

/// The state of a plain set that the model's threads use: its fds, the table and the kernel set.
struct PlainSet {
    record: Record,
    /// The table has it.
    is_user_level: AtomicBool,
    /// Calls under way that use the kernel set, which no set that is user-level may be used as.
    in_kernel: AtomicUsize,
}

/// Threads are even numbers.
const ONE: usize = 2;
const OTHER: usize = 4;
const TAKER: usize = 6;

impl PlainSet {
    fn new() -> Arc<Self> {
        let record = Record::new();
        record.begin(0);
        Arc::new(PlainSet {
            record,
            is_user_level: AtomicBool::new(false),
            in_kernel: AtomicUsize::new(0),
        })
    }

    /// Returns whether a call that has looked at the record is for the kernel.
    fn is_kernels(&self) -> bool {
        !self.is_user_level.load(Ordering::Acquire)
    }

    /// A call that uses the kernel set.
    fn use_kernel_set(&self) {
        self.in_kernel.fetch_add(1, Ordering::SeqCst);
        assert!(
            self.is_kernels(),
            "a user-level set is used as the kernel's"
        );
        signal_point();
        self.in_kernel.fetch_sub(1, Ordering::SeqCst);
    }

    fn wait(&self, me: usize) {
        let begun = self.record.begin_wait_again(me);
        match begun.or_else(|| self.record.begin_wait(me)) {
            Some(before) => {
                self.use_kernel_set();
                self.record.end_wait(me, before);
            }
            None if self.is_kernels() => self.use_kernel_set(),
            None => {}
        }
    }

    /// Returns whether the set was taken over, and if so whether it may have members.
    fn take_over(&self, me: usize) -> Option<bool> {
        let has_members = self.record.take(me, || 0);
        match has_members {
            Some(_) => {
                assert_eq!(
                    self.in_kernel.load(Ordering::SeqCst),
                    0,
                    "a thread waits in it"
                );
                self.is_user_level.store(true, Ordering::Release);
                self.record.end_take();
            }
            None => self.record.forget(me),
        }
        has_members
    }
}

/// A thread waits in a set that another one takes over. Before that `earlier` has waited there.
fn waiting_after(earlier: Option<usize>) {
    model(4, move || {
        let set = PlainSet::new();
        if let Some(earlier) = earlier {
            set.wait(earlier);
        }
        let other = Arc::clone(&set);
        let waiting = thread::spawn(move || {
            other.wait(ONE);
            other.wait(ONE);
        });
        let taken = set.take_over(TAKER);
        assert!(
            taken.is_none() || earlier != Some(OTHER),
            "two threads wait in it"
        );
        waiting.join().unwrap();
    });
}

fn waiting_against_taking_over() {
    waiting_after(None);
}

#[test]
fn no_thread_waits_in_the_kernel_set_of_a_set_that_was_taken_over() {
    waiting_against_taking_over();
}

broken_variants! { waiting_against_taking_over =>
    a_wait_that_does_not_outlast_a_takeover_uses_the_kernel_set: must_fail_without OutlastTake;
}

#[test]
fn a_thread_takes_over_the_set_that_it_has_waited_in() {
    waiting_after(Some(TAKER));
}

#[test]
fn a_set_that_two_threads_have_waited_in_is_not_taken_over() {
    waiting_after(Some(OTHER));
}

/// A signal handler takes a set over, after a wait of its own in the set, at each point of a wait that it
/// interrupts. (One thread: no other is waited for.)
#[test]
fn a_handler_takes_a_set_over_before_or_after_the_wait_that_it_interrupts() {
    /// More points than a wait has.
    const POINTS: usize = 6;
    for points in 0..POINTS {
        for waits in [false, true] {
            for waits_again in [false, true] {
                model(0, move || {
                    let set = PlainSet::new();
                    if waits_again {
                        set.wait(ONE);
                    }
                    let handled = Arc::clone(&set);
                    handle_signal(points, move || {
                        if waits {
                            handled.wait(ONE);
                        }
                        handled.take_over(ONE);
                    });
                    set.wait(ONE);
                    // The handler has run by now.
                    (0..POINTS).for_each(|_| signal_point());
                    set.wait(ONE);
                });
            }
        }
    }
}

/// A thread adds a kernel member to a set that another one takes over.
fn adding_against_taking_over() {
    model(4, || {
        let set = PlainSet::new();
        let adding = {
            let set = Arc::clone(&set);
            thread::spawn(move || {
                set.record.note_member(ONE);
                set.is_kernels()
            })
        };
        let has_members = set.take_over(TAKER);
        let is_in_kernel_set = adding.join().unwrap();
        if is_in_kernel_set && has_members.is_some() {
            assert_eq!(has_members, Some(true), "the kernel set is not adopted");
        }
    });
}

#[test]
fn a_kernel_set_that_gets_a_member_is_adopted() {
    adding_against_taking_over();
}

broken_variants! { adding_against_taking_over =>
    a_member_that_does_not_outlast_a_takeover_is_lost: must_fail_without OutlastTake;
    a_takeover_that_looks_for_members_before_its_claim_loses_one: must_fail_without ClaimThenCheck;
}

/// A thread polls a set, as the kernel's if no fd may be user-level, while another one takes the set over, and a
/// third one ends its generation.
fn polling_against_taking_over() {
    model(2, || {
        let set = PlainSet::new();
        let generations = Arc::new(Generations::new());
        let generation = generations.begin_to_make();
        let taking = {
            let (set, generations) = (Arc::clone(&set), Arc::clone(&generations));
            thread::spawn(move || {
                assert!(generations.become_taker(TAKER));
                // The set's generation has the fd 1, and not that of `PlainSet::new`.
                let now = || generations.now() - generation;
                let is_taken = set.record.take(TAKER, now).is_some();
                if is_taken {
                    counts::while_adding(|| set.is_user_level.store(true, Ordering::Release));
                    set.record.end_take();
                }
                generations.end_takeover();
            })
        };
        let ending = {
            let generations = Arc::clone(&generations);
            thread::spawn(move || generations.end(OTHER))
        };
        let is_polled_there = !generations.may_name_any(|| ONE);
        taking.join().unwrap();
        ending.join().unwrap();
        assert!(
            !is_polled_there || set.is_kernels(),
            "a user-level set is polled as the kernel's"
        );
    });
}

#[test]
fn a_set_that_is_polled_as_the_kernels_stays_the_kernels() {
    polling_against_taking_over();
}

/// A thread copies the fd of a set that another one takes over.
fn copying_against_taking_over() {
    model(4, || {
        let set = PlainSet::new();
        let copying = {
            let set = Arc::clone(&set);
            thread::spawn(move || {
                if set.record.begin_copy(ONE, || true) {
                    // The kernel makes the fd, which only a takeover after this one finds.
                    set.use_kernel_set();
                    set.record.end_copy();
                } else if set.is_kernels() {
                    set.use_kernel_set();
                }
            })
        };
        set.take_over(TAKER);
        copying.join().unwrap();
    });
}

#[test]
fn a_set_whose_fd_is_being_copied_is_not_taken_over() {
    copying_against_taking_over();
}

broken_variants! { copying_against_taking_over =>
    a_copy_that_does_not_outlast_a_takeover_is_not_in_the_table: must_fail_without OutlastTake;
    a_takeover_that_looks_for_copies_before_its_claim_misses_one: must_fail_without ClaimThenCheck;
}

/// A thread copies an fd of a set that another one closes, and opens another file there: the copy may be of
/// that file, and is not taken for the set then. (The set has one more fd.)
#[test]
fn a_set_is_the_kernels_if_an_fd_is_copied_that_another_file_takes() {
    model(4, || {
        let set = PlainSet::new();
        let state = Arc::new((sync::AtomicBool::new(true), AtomicBool::new(true)));
        let copying = {
            let (set, state) = (Arc::clone(&set), Arc::clone(&state));
            thread::spawn(move || {
                let (is_recorded, is_open) = &*state;
                let is_there = || is_recorded.load(Ordering::SeqCst);
                set.record.begin_copy(ONE, is_there).then(|| {
                    let is_of_the_set = is_open.load(Ordering::Acquire);
                    set.record.end_copy();
                    is_of_the_set
                })
            })
        };
        let (is_recorded, is_open) = &*state;
        is_recorded.store(false, Ordering::SeqCst);
        set.record.lose_fd(OTHER);
        is_open.store(false, Ordering::Release);
        if copying.join().unwrap() == Some(false) {
            assert!(
                set.take_over(TAKER).is_none(),
                "another file is taken for the set"
            );
        }
    });
}
