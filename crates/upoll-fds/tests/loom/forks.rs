//! Changes of fds while the process forks.

use std::slice;

use loom::thread::{self, JoinHandle};

use crate::change::{Change, begin_fork, end_fork, end_fork_in_the_child};
use crate::fd::Fd;
use crate::harness::model;
use crate::sync::handle_signal;

/// The process forks: all of `fds` are as a child may have them.
fn fork(fds: &[Fd]) {
    begin_fork();
    assert!(Change::try_begin().is_none(), "the child is to have it");
    for fd in fds {
        fd.changes();
    }
    end_fork();
}

fn change(fd: &Fd) {
    let _change = Change::begin();
    fd.change(|| ());
}

fn change_in_a_thread(fd: &Fd) -> JoinHandle<()> {
    let fd = fd.clone();
    thread::spawn(move || change(&fd))
}

/// A thread changes an fd twice while another one forks.
fn changing_against_forking() {
    model(4, || {
        let fd = Fd::new();
        let changing = {
            let fd = fd.clone();
            thread::spawn(move || {
                change(&fd);
                change(&fd);
            })
        };
        fork(slice::from_ref(&fd));
        changing.join().unwrap();
        assert_eq!(fd.changes(), 2);
    });
}

#[test]
fn a_fork_takes_place_before_or_after_a_change() {
    changing_against_forking();
}

broken_variants! { changing_against_forking =>
    a_change_that_looks_before_it_is_counted_is_met_by_a_fork: must_fail_without CountThenCheck;
    a_fork_that_looks_before_it_says_so_meets_a_change: must_fail_without PublishThenCheck;
    a_fork_that_waits_for_nobody_meets_a_change: must_fail_without WaitForChanges;
    a_fork_that_is_not_ordered_after_changes_sees_one_half_made: must_fail_without ChangeBeforeFork;
    a_change_that_is_not_ordered_after_forks_is_seen_by_one_before: must_fail_without ForkBeforeChange;
    a_refused_change_that_stays_counted_is_waited_for_for_ever: must_hang_without CountNoMoreWhenRefused;
}

/// Two threads make fds while a third one forks and then makes changes: what comes during the fork is
/// the kernel's from the start.
fn making_two_against_forking() {
    model(3, || {
        let fds = [Fd::new(), Fd::new()];
        let making = fds.clone().map(|fd| {
            thread::spawn(move || {
                let change = Change::try_begin();
                if change.is_some() {
                    fd.change(|| ());
                }
                change.is_some()
            })
        });
        fork(&fds);
        let own = Fd::new();
        change(&own);
        assert_eq!(own.changes(), 1);
        for (making, fd) in making.into_iter().zip(&fds) {
            let is_made = making.join().unwrap();
            assert_eq!(fd.changes(), usize::from(is_made));
        }
    });
}

#[test]
fn a_fork_waits_for_changes_of_two_threads() {
    making_two_against_forking();
}

broken_variants! { making_two_against_forking =>
    of_two_changes_one_that_looks_before_it_is_counted_is_met_by_a_fork: must_fail_without CountThenCheck;
    a_fork_that_is_not_ordered_after_two_changes_sees_one_half_made: must_fail_without ChangeBeforeFork;
}

/// Two threads fork, of which one then changes an fd. (Not a third thread: loom does not come to an end
/// with two that wait for it.)
fn changing_against_two_forks() {
    model(4, || {
        let fd = Fd::new();
        let forking = {
            let fd = fd.clone();
            thread::spawn(move || fork(&[fd]))
        };
        fork(slice::from_ref(&fd));
        change(&fd);
        forking.join().unwrap();
        assert_eq!(fd.changes(), 1);
    });
}

#[test]
fn a_change_waits_for_the_end_of_both_forks() {
    changing_against_two_forks();
}

broken_variants! { changing_against_two_forks =>
    a_change_that_waits_for_one_of_two_forks_is_met_by_the_other: must_fail_without CountForks;
}

/// A thread makes a change in the midst of another one, while a second thread forks and makes one in
/// the midst of that, as signal handlers do.
fn changing_within_changes_and_forks() {
    model(4, || {
        let fds = [Fd::new(), Fd::new(), Fd::new()];
        let changing = {
            let [outer, inner, _] = fds.clone();
            thread::spawn(move || {
                let _change = Change::begin();
                outer.change(|| change(&inner));
            })
        };
        begin_fork();
        change(&fds[2]);
        for fd in &fds {
            fd.changes();
        }
        end_fork();
        changing.join().unwrap();
        assert!(fds.iter().all(|fd| fd.changes() == 1));
    });
}

#[test]
fn changes_within_changes_and_forks_wait_for_nobody() {
    changing_within_changes_and_forks();
}

broken_variants! { changing_within_changes_and_forks =>
    a_change_within_another_that_waits_for_a_fork_waits_for_ever: must_hang_without ChangeWithinAChange;
    a_change_within_a_fork_that_waits_for_that_waits_for_ever: must_hang_without ChangeWithinAFork;
}

/// A thread forks in the midst of a change, as a signal handler does, while another one makes a change.
fn forking_within_a_change() {
    model(4, || {
        let fds = [Fd::new(), Fd::new()];
        let changing = change_in_a_thread(&fds[0]);
        {
            let _change = Change::begin();
            fds[1].change(|| fork(&fds[..1]));
        }
        changing.join().unwrap();
        assert!(fds.iter().all(|fd| fd.changes() == 1));
    });
}

#[test]
fn a_fork_within_a_change_waits_for_others_only() {
    forking_within_a_change();
}

broken_variants! { forking_within_a_change =>
    a_fork_that_waits_for_a_change_of_its_own_thread_waits_for_ever: must_hang_without ForkWithinAChange;
    a_fork_within_a_change_that_waits_for_nobody_meets_the_other: must_fail_without WaitForChanges;
}

/// A signal handler forks, or makes a change, at each point of a change and of a fork that it interrupts: it waits
/// for nothing that its own thread has to end. (One thread: no other is waited for.)
#[test]
fn a_handler_waits_for_nothing_that_it_has_interrupted() {
    /// More points than a change and a fork have.
    const POINTS: usize = 6;
    for points in 0..POINTS {
        for forks in [false, true] {
            model(0, move || {
                let [fd, of_handler] = [Fd::new(), Fd::new()];
                let handled = of_handler.clone();
                handle_signal(points, move || match forks {
                    true => fork(&[handled]),
                    false => change(&handled),
                });
                change(&fd);
                fork(slice::from_ref(&fd));
                assert_eq!(fd.changes(), 1);
                change(&of_handler);
                fork(slice::from_ref(&of_handler));
            });
        }
    }
}

/// A signal handler forks in the midst of a change, or of another fork. In the child the interrupted
/// code continues. (One thread: the child has no other.)
#[test]
fn changes_and_forks_go_on_in_the_child_of_a_fork_within_them() {
    model(0, || {
        let fd = Fd::new();
        {
            let _change = Change::begin();
            fd.change(|| {
                begin_fork();
                end_fork_in_the_child();
            });
        }
        begin_fork();
        begin_fork();
        end_fork_in_the_child();
        // It is the thread's own fork that is under way.
        change(&fd);
        end_fork();
        change(&fd);
        fork(slice::from_ref(&fd));
        assert_eq!(fd.changes(), 3);
    });
}
