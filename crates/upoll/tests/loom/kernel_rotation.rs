//! Workers of a rotating set whose source is a kernel fd. The kernel is a model
//! (`src/host/kernel_model.rs`). A lost wakeup is a deadlock.

use std::sync::Arc;

use loom::thread::{self, JoinHandle};
use upoll::Source as _;
use upoll::kernel_model::{Source, interrupt, pass_time, program};
use upoll::{CreateFlags, Epoll, Errno, Event, EventFd, EventFdFlags, Op, SigSet, end_thread};

use super::rotation::workers as workers_of;
use super::sleeping::{FOREVER, LIMIT, wait};
use super::{EDGE, IN, Waiter, model, set_of, writes};

/// Returns a rotating set with a kernel source, which is not readable, and the workers' sets that
/// watch it. Each event is another worker's.
fn workers<const N: usize>() -> (Epoll, Arc<Source>, [Epoll; N]) {
    workers_with_slack(0)
}

/// As [`workers`], where a worker may be ahead of others by `slack` turns.
fn workers_with_slack<const N: usize>(slack: u32) -> (Epoll, Arc<Source>, [Epoll; N]) {
    let source = Arc::new(Source::new());
    let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
    rotating.set_rotation_slack(slack).unwrap();
    rotating.ctl(Op::Add, source.target(), IN).unwrap();
    let sets = [(); N].map(|()| Epoll::new().unwrap());
    for set in &sets {
        set.add(&rotating, IN).unwrap();
    }
    (rotating, source, sets)
}

/// Waits for an event, in a thread that ends afterwards.
fn wait_and_end(set: &Epoll) {
    assert_eq!(wait(set, FOREVER), Ok(1));
    end_thread();
}

/// Starts a thread that waits for an event and ends. It returns the set, which stays open so long.
fn waits_and_ends(set: Epoll) -> JoinHandle<Epoll> {
    thread::spawn(move || {
        wait_and_end(&set);
        set
    })
}

/// Starts a thread that makes the source readable.
fn becomes_readable(source: &Arc<Source>) -> JoinHandle<()> {
    let source = source.clone();
    thread::spawn(move || source.set_readable(true))
}

/// The source stays readable.
fn waits_twice(slack: u32) {
    model(2, move || {
        let (_rotating, source, [worker]) = workers_with_slack(slack);
        let writing = becomes_readable(&source);
        assert_eq!(wait(&worker, FOREVER), Ok(1));
        assert_eq!(wait(&worker, FOREVER), Ok(1));
        writing.join().unwrap();
        end_thread();
    });
}

/// The worker is last in the kernel's line before its second wait.
#[test]
fn a_worker_misses_no_event_and_comes_back_for_what_it_has_left() {
    waits_twice(0);
}

/// The source stays readable. The worker looks at it, and keeps its place in the kernel's line.
#[test]
fn a_worker_that_goes_on_has_what_it_has_left() {
    waits_twice(4);
}

/// An event comes as the worker, which has had one, looks at the source and goes to sleep.
fn goes_to_sleep_after_an_event(slack: u32) {
    model(2, move || {
        let (_rotating, source, [worker]) = workers_with_slack(slack);
        source.set_readable(true);
        assert_eq!(wait(&worker, FOREVER), Ok(1));
        source.set_readable(false);
        let writing = becomes_readable(&source);
        wait_and_end(&worker);
        writing.join().unwrap();
    });
}

/// It finds the source idle, and is last in line again.
#[test]
fn a_worker_that_goes_on_misses_no_event() {
    goes_to_sleep_after_an_event(4);
}

/// It is last in line, and sleeps without a poll of its own.
#[test]
fn a_worker_that_comes_back_misses_no_event() {
    goes_to_sleep_after_an_event(0);
}

/// A worker goes on while another one, which has an event, ends and offers it to the first. Then it has used up its lead.
#[test]
fn a_worker_that_goes_on_beside_one_that_ends_has_the_event() {
    for slack in [1, 4] {
        model(2, move || {
            let (_rotating, source, [first, second]) = workers_with_slack(slack);
            source.set_readable(true);
            assert_eq!(wait(&first, FOREVER), Ok(1));
            let ending = waits_and_ends(second);
            assert_eq!(wait(&first, FOREVER), Ok(1));
            let _open = ending.join().unwrap();
            end_thread();
        });
    }
}

/// A worker sleeps, is chosen, and ends. The other worker goes on meanwhile, or has used up its lead.
#[test]
fn an_event_that_is_offered_to_a_worker_that_goes_on_is_not_lost() {
    for slack in [1, 4] {
        model(1, move || {
            let (_rotating, source, [first, second]) = workers_with_slack(slack);
            source.set_readable(true);
            assert_eq!(wait(&first, FOREVER), Ok(1));
            source.set_readable(false);
            let ending = waits_and_ends(second);
            let writing = thread::spawn(move || source.set_readable(true));
            assert_eq!(wait(&first, FOREVER), Ok(1));
            // The first worker may be chosen before the second one, and leave that the event.
            end_thread();
            writing.join().unwrap();
            let _open = ending.join().unwrap();
        });
    }
}

/// A worker comes back while another one, which has an event, ends and offers it to the first.
#[test]
fn a_worker_that_comes_back_beside_one_that_ends_has_the_event() {
    model(2, || {
        let (rotating, source, [first, second]) = workers();
        first.modify(&rotating, EDGE).unwrap();
        source.set_readable(true);
        assert_eq!(wait(&first, FOREVER), Ok(1));
        let ending = waits_and_ends(second);
        assert_eq!(wait(&first, FOREVER), Ok(1));
        let _open = ending.join().unwrap();
        end_thread();
    });
}

/// The second worker sleeps, is chosen, and ends, while the first one comes back.
#[test]
fn an_event_that_is_offered_to_a_worker_that_comes_back_is_not_lost() {
    model(2, || {
        let (_rotating, source, [first, second]) = workers();
        source.set_readable(true);
        assert_eq!(wait(&first, FOREVER), Ok(1));
        source.set_readable(false);
        let ending = waits_and_ends(second);
        let writing = thread::spawn(move || source.set_readable(true));
        assert_eq!(wait(&first, FOREVER), Ok(1));
        writing.join().unwrap();
        let _open = ending.join().unwrap();
        end_thread();
    });
}

/// Two jobs are there before a wait begins whose limit is over. Another worker takes one of them, and ends.
#[test]
fn a_wait_whose_limit_ends_does_not_miss_a_job_that_is_just_offered_to_it() {
    model(4, || {
        let source = EventFd::with_flags(0, EventFdFlags::SEMAPHORE).unwrap();
        let (_rotating, [first, second]) = workers_of::<2>(&source);
        let jobs = source.clone();
        let working = thread::spawn(move || {
            assert_eq!(wait(&first, FOREVER), Ok(1));
            jobs.try_read().unwrap();
            end_thread();
            first
        });
        pass_time();
        source.try_write(2).unwrap();
        assert_eq!(wait(&second, LIMIT), Ok(1));
        end_thread();
        let _open = working.join().unwrap();
    });
}

/// A signal that only the mask lets through ends the wait of a worker, and its thread, as the worker is chosen.
#[test]
fn a_worker_whose_wait_a_signal_ends_keeps_no_event_from_the_next() {
    model(2, || {
        let source = EventFd::new(0).unwrap();
        let (_rotating, [first, second]) = workers_of::<2>(&source);
        let ending = thread::spawn(move || {
            let ended = first.pwait(&mut [Event::default(); 2], FOREVER, &SigSet::empty());
            assert!(matches!(ended, Ok(1) | Err(Errno::INTR)));
            end_thread();
            first
        });
        let staying = thread::spawn(move || {
            while wait(&second, FOREVER) == Err(Errno::INTR) {}
            end_thread();
        });
        interrupt();
        source.try_write(1).unwrap();
        let _open = ending.join().unwrap();
        staying.join().unwrap();
    });
}

/// Two threads sleep in the kernel, and each gets an event. The second event comes while the first
/// one is read.
#[test]
fn each_of_two_workers_that_sleep_has_an_event() {
    model(1, || {
        let (_rotating, source, [first, second]) = workers();
        let other = source.clone();
        let working = thread::spawn(move || {
            assert_eq!(wait(&first, FOREVER), Ok(1));
            other.set_readable(false);
            other.set_readable(true);
            end_thread();
        });
        source.set_readable(true);
        assert_eq!(wait(&second, FOREVER), Ok(1));
        source.set_readable(false);
        source.set_readable(true);
        end_thread();
        working.join().unwrap();
    });
}

/// The first worker in line is chosen while it leaves the set without a poll, or while its limit
/// ends.
#[test]
fn an_event_is_not_lost_with_a_worker_that_leaves() {
    for deletes in [false, true] {
        model(if deletes { 2 } else { 1 }, move || {
            let (rotating, source, [leaver, stayer]) = workers();
            if !deletes {
                pass_time();
            }
            let leaving = thread::spawn(move || {
                match deletes {
                    true => leaver.delete(&rotating).unwrap(),
                    false => drop(wait(&leaver, LIMIT).unwrap()),
                }
                end_thread();
                (rotating, leaver)
            });
            let staying = thread::spawn(move || wait_and_end(&stayer));
            source.set_readable(true);
            let _open = leaving.join().unwrap();
            staying.join().unwrap();
        });
    }
}

/// The source is deleted while a worker goes to sleep, and added again.
#[test]
fn a_worker_that_sleeps_learns_of_a_source_that_is_deleted_and_added_again() {
    model(2, || {
        let (rotating, source, [worker]) = workers();
        let working = waits_and_ends(worker);
        rotating.ctl(Op::Del, source.target(), IN).unwrap();
        assert_eq!(source.number_of_watchers(), 0);
        source.set_readable(true);
        rotating.ctl(Op::Add, source.target(), IN).unwrap();
        drop(working.join().unwrap());
    });
}

/// A worker watches two rotating sets with one source, and one of the sets deletes the source.
#[test]
fn a_worker_still_learns_of_a_source_that_one_of_two_rotating_sets_has_deleted() {
    model(1, || {
        let (first, source, [worker]) = workers();
        let second = Epoll::create(CreateFlags::ROTATE).unwrap();
        second.ctl(Op::Add, source.target(), IN).unwrap();
        worker.add(&second, IN).unwrap();
        let working = waits_and_ends(worker);
        first.ctl(Op::Del, source.target(), IN).unwrap();
        source.set_readable(true);
        drop(working.join().unwrap());
    });
}

/// The source is deleted while a worker that was chosen is last in line.
#[test]
fn no_worker_watches_a_source_that_was_deleted() {
    model(2, || {
        let (rotating, source, [worker]) = workers();
        source.set_readable(true);
        assert_eq!(wait(&worker, FOREVER), Ok(1));
        source.set_readable(false);
        pass_time();
        let working = thread::spawn(move || {
            assert_eq!(wait(&worker, LIMIT), Ok(0));
            end_thread();
            worker
        });
        rotating.ctl(Op::Del, source.target(), IN).unwrap();
        assert_eq!(source.number_of_watchers(), 0);
        drop(working.join().unwrap());
        assert_eq!(source.number_of_watchers(), 0);
    });
}

/// The kernel fails the second DEL of a member with `ENOENT`. When a DEL returns, no worker watches
/// the source.
#[test]
fn a_source_is_deleted_once() {
    model(2, || {
        let (rotating, source, [_worker]) = workers();
        let (set, same) = (rotating.clone(), source.clone());
        let deleting = thread::spawn(move || {
            let deleted = set.ctl(Op::Del, same.target(), IN);
            (deleted, same.number_of_watchers())
        });
        let deleted = rotating.ctl(Op::Del, source.target(), IN);
        let outcomes = [
            (deleted, source.number_of_watchers()),
            deleting.join().unwrap(),
        ];
        let deleted = outcomes.iter().filter(|(deleted, _)| deleted.is_ok());
        // When the successful DEL returns, the source is deleted.
        assert_eq!(
            deleted.map(|&(_, watchers)| watchers).collect::<Vec<_>>(),
            [0]
        );
        assert!(
            outcomes
                .iter()
                .any(|(deleted, _)| *deleted == Err(Errno::NOENT))
        );
        assert_eq!(source.number_of_watchers(), 0);
    });
}

/// The fd of the source becomes another file's while a worker is last in line. No set of the
/// library watches that file.
#[test]
fn no_worker_watches_what_took_the_place_of_the_source() {
    model(2, || {
        let (_rotating, source, [worker]) = workers();
        source.set_readable(true);
        assert_eq!(wait(&worker, FOREVER), Ok(1));
        source.set_readable(false);
        let other = Source::new();
        let (from, onto) = (other.fd(), source.fd());
        let replacing = thread::spawn(move || program::dup2(from, onto).unwrap());
        pass_time();
        assert_eq!(wait(&worker, LIMIT), Ok(0));
        replacing.join().unwrap();
        assert_eq!(other.number_of_watchers(), 0);
        end_thread();
    });
}

/// A worker has left an event to another one, which does not come. The first worker is woken
/// spuriously before it checks for the event again.
#[test]
fn a_worker_takes_what_it_has_left_to_one_that_does_not_come() {
    for in_kernel in [false, true] {
        model(2, move || {
            let source = EventFd::new(0).unwrap();
            let (_rotating, [late, worker]) = workers_of::<2>(&source);
            let member = Source::new();
            if in_kernel {
                worker.ctl(Op::Add, member.target(), IN).unwrap();
            }
            let counter = EventFd::new(0).unwrap();
            worker.add(&counter, IN).unwrap();
            let _late = Waiter::in_set(&late);
            source.try_write(1).unwrap();
            let working = waits_and_ends(worker);
            counter.try_write(1).unwrap();
            let _ = counter.try_read();
            pass_time();
            drop(working.join().unwrap());
        });
    }
}

/// A thread waits in the rotating set itself. It may find the source ready before the writer wakes it.
#[test]
fn a_thread_that_waits_in_the_rotating_set_itself_misses_no_event() {
    model(3, || {
        let (rotating, source, []) = workers();
        let writing = becomes_readable(&source);
        wait_and_end(&rotating);
        writing.join().unwrap();
    });
}

/// The thread has had an event before, which it has read or left.
#[test]
fn a_thread_that_comes_back_to_the_rotating_set_itself_misses_no_event() {
    for reads in [true, false] {
        model(2, move || {
            let (rotating, source, []) = workers();
            source.set_readable(true);
            assert_eq!(wait(&rotating, FOREVER), Ok(1));
            let writer = source.clone();
            let writing = thread::spawn(move || {
                if reads {
                    writer.set_readable(false);
                }
                writer.set_readable(true);
            });
            wait_and_end(&rotating);
            writing.join().unwrap();
        });
    }
}

/// Two threads wait in the rotating set itself, and each gets an event.
#[test]
fn each_of_two_threads_that_wait_in_the_rotating_set_itself_has_an_event() {
    model(1, || {
        let (rotating, source, []) = workers();
        let work = |rotating: &Epoll, source: &Source| {
            assert_eq!(wait(rotating, FOREVER), Ok(1));
            source.set_readable(false);
            source.set_readable(true);
            end_thread();
        };
        let (set, other) = (rotating.clone(), source.clone());
        let working = thread::spawn(move || work(&set, &other));
        source.set_readable(true);
        work(&rotating, &source);
        working.join().unwrap();
    });
}

/// A set below has a counter and a kernel source. Of two workers that sleep, the one that the counter has woken takes
/// what comes to the source, and is busy. The other one is woken by the source, finds it idle, and takes the rest.
#[test]
fn a_worker_is_woken_though_what_woke_it_is_gone_if_something_else_stays() {
    model(1, || {
        let (below, source, counter) = (
            Epoll::new().unwrap(),
            Arc::new(Source::new()),
            EventFd::new(0).unwrap(),
        );
        below.ctl(Op::Add, source.target(), IN).unwrap();
        below.add(&counter, IN).unwrap();
        let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
        rotating.add(&below, IN).unwrap();
        // A thread that ends would leave its event to the other one.
        let ends = EventFd::with_flags(0, EventFdFlags::SEMAPHORE).unwrap();
        let [first, second] = [(); 2].map(|()| set_of(&rotating, IN));
        let (other, busy) = (source.clone(), ends.clone());
        let working = thread::spawn(move || {
            assert_eq!(wait(&first, FOREVER), Ok(1));
            other.set_readable(true);
            other.set_readable(false);
            busy.read().unwrap();
            end_thread();
            first
        });
        let writing = writes(&counter, 1);
        assert_eq!(wait(&second, FOREVER), Ok(1));
        source.set_readable(true);
        source.set_readable(false);
        ends.write(1).unwrap();
        writing.join().unwrap();
        drop(working.join().unwrap());
        end_thread();
    });
}

/// The report of a worker has room for one event, and another member stays ready.
#[test]
fn an_event_that_a_report_had_no_room_for_is_in_a_later_one() {
    const OTHER: u64 = 1;
    model(2, || {
        let (_rotating, source, [worker]) = workers();
        let other = EventFd::new(1).unwrap();
        worker.add(&other, Event::new(IN.events(), OTHER)).unwrap();
        let writing = becomes_readable(&source);
        let reported = || {
            let mut events = [Event::default()];
            assert_eq!(worker.wait(&mut events, FOREVER), Ok(1));
            events[0].data()
        };
        reported();
        writing.join().unwrap();
        let later = [(); 4].map(|()| reported());
        assert!(later.contains(&IN.data()), "{later:?}");
        end_thread();
    });
}

/// Two threads wait in a worker's set, and the limit of one of them ends. The source stays readable.
#[test]
fn a_thread_beside_another_one_in_an_edge_triggered_set_has_what_it_has_left() {
    const OTHER: u64 = 1;
    model(2, || {
        let (rotating, source, [worker]) = workers();
        worker.modify(&rotating, EDGE).unwrap();
        let other = EventFd::new(0).unwrap();
        worker.add(&other, Event::new(IN.events(), OTHER)).unwrap();
        pass_time();
        let (set, ends) = (worker.clone(), other.clone());
        let limited = thread::spawn(move || {
            // The other thread does not get the event that this one takes.
            if wait(&set, LIMIT).unwrap() > 0 {
                ends.try_write(1).unwrap();
            }
            end_thread();
        });
        source.set_readable(true);
        for _ in 0..2 {
            let mut events = [Event::default()];
            assert_eq!(worker.wait(&mut events, FOREVER), Ok(1));
        }
        limited.join().unwrap();
        end_thread();
    });
}
