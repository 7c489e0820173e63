//! The library's own fds (`src/host/own_fds.rs`) while the program closes their numbers, or puts files of its
//! own under them. In the preload an own fd is moved away before; elsewhere it is found lost and made anew.

use std::os::fd::RawFd;
use std::sync::Arc;

use loom::thread;
use upoll::kernel_model::{Source, pass_time, program};
use upoll::{Epoll, Errno, EventFd, Op, OwnSet, own_fds};

use super::sleeping::{FOREVER, wait};
use super::{IN, model, unprotected_model};

/// No own fd has a number below this one.
const FIRST: RawFd = 24;

/// The numbers of a set and of the seal in it, which are the first that the library takes.
const SET: RawFd = FIRST;
const SEAL: RawFd = FIRST + 1;

fn own_numbers() -> Vec<RawFd> {
    let mut numbers = program::open_numbers();
    numbers.retain(|&number| number >= FIRST);
    numbers
}

/// `dup2(2)` as the preload makes it.
fn dup2(old: RawFd, new: RawFd) -> Result<(), Errno> {
    let held = own_fds::hold_numbers(new);
    if !own_fds::is_own(new) {
        return program::dup2(old, new);
    }
    drop(held);
    let _held = own_fds::hold_numbers(new);
    own_fds::replace(new, || program::dup2(old, new))
}

/// `close(2)` as the preload makes it.
fn close(number: RawFd) -> Result<(), Errno> {
    match own_fds::is_own(number) {
        true => Err(Errno::BADF),
        false => program::close(number),
    }
}

/// A file of the program's: a set that watches nothing.
struct Precious(RawFd);

impl Precious {
    fn new() -> Self {
        Precious(program::epoll_create().unwrap())
    }

    /// Demands that a number stands for it still, and that nothing was added to it.
    fn is_left_alone(&self, number: RawFd) {
        // A set cannot be a member of itself, whatever number it has there.
        let added = program::epoll_ctl(number, Op::Add, self.0, IN);
        assert_eq!(added, Err(Errno::INVAL), "the number means another file");
        assert_eq!(program::number_of_members(number), Ok(0));
    }
}

/// Runs `body` while the program puts a file under a number of the set's or the seal's, and then `after`.
fn beside_a_move<T: Send + 'static>(
    preemptions: usize,
    body: fn(&OwnSet) -> T,
    after: fn(OwnSet, T),
) {
    for taken in [SET, SEAL] {
        model(preemptions, move || {
            let set = Arc::new(OwnSet::new());
            assert_eq!(own_numbers(), [SET, SEAL]);
            let used = set.clone();
            let using = thread::spawn(move || body(&used));
            let precious = Precious::new();
            assert_eq!(dup2(precious.0, taken), Ok(()));
            let outcome = using.join().unwrap();
            let set = Arc::into_inner(set).unwrap();
            precious.is_left_alone(taken);
            assert!(!own_fds::is_own(taken));
            after(set, outcome);
            precious.is_left_alone(taken);
        });
    }
}

/// Nothing is in the set but the seal, under one number.
fn has_one_member(set: &OwnSet) {
    assert_eq!(program::number_of_members(set.number()), Ok(1));
}

/// The set is closed, and nothing of the library's is left but the one seal.
fn nothing_is_left(set: OwnSet) {
    drop(set);
    let left = own_numbers()
        .into_iter()
        .filter(|&number| own_fds::is_own(number));
    assert_eq!(left.count(), 1);
    assert_eq!(own_numbers().len(), 2);
}

#[test]
fn a_wake_is_heard_though_a_number_is_taken_meanwhile() {
    beside_a_move(
        3,
        |set| assert!(set.ring()),
        |set, ()| {
            assert!(set.hear());
            // And the next one.
            assert!(set.ring());
            assert!(set.hear());
            assert!(!set.hear());
            has_one_member(&set);
            nothing_is_left(set);
        },
    );
}

#[test]
fn a_wake_that_is_taken_back_is_gone_though_a_number_is_taken_meanwhile() {
    beside_a_move(
        3,
        |set| {
            assert!(set.ring());
            assert!(set.quiet());
        },
        |set, ()| {
            // The move may have made one of its own.
            set.hear();
            assert!(!set.hear());
            assert!(set.ring());
            assert!(set.hear());
            nothing_is_left(set);
        },
    );
}

#[test]
fn a_set_that_is_made_while_the_seal_moves_can_be_woken_in() {
    beside_a_move(
        2,
        |_| OwnSet::new(),
        |first, second| {
            for set in [&first, &second] {
                assert!(set.ring());
                assert!(set.hear());
                assert!(!set.hear());
                // The program's file was not added in place of the seal.
                let left = program::epoll_ctl(set.number(), Op::Del, SEAL, IN);
                assert!(own_fds::is_own(SEAL) || left == Err(Errno::NOENT));
            }
            drop(second);
            nothing_is_left(first);
        },
    );
}

/// A set is closed as the program takes one of the two numbers: the program's file stays, and no own fd.
#[test]
fn a_set_that_is_closed_while_its_number_is_taken_closes_its_own_file_alone() {
    for taken in [SET, SEAL] {
        model(3, move || {
            let set = OwnSet::new();
            let closing = thread::spawn(move || drop(set));
            let precious = Precious::new();
            assert_eq!(dup2(precious.0, taken), Ok(()));
            closing.join().unwrap();
            precious.is_left_alone(taken);
            let mut left = own_numbers();
            left.retain(|&number| number != taken);
            assert_eq!(left.len(), 1, "{left:?}");
            assert!(own_fds::is_own(left[0]));
        });
    }
}

/// Two threads of the program take the same number, and one closes it again.
#[test]
fn two_threads_that_take_one_number_leave_the_set_as_it_is() {
    for taken in [SET, SEAL] {
        model(2, move || {
            let set = OwnSet::new();
            let precious = Precious::new();
            let old = precious.0;
            let taking = thread::spawn(move || dup2(old, taken).unwrap());
            dup2(old, taken).unwrap();
            let closed = close(taken);
            taking.join().unwrap();
            assert_eq!(closed, Ok(()));
            assert!(set.ring());
            assert!(set.hear());
            drop(set);
            assert_eq!(
                own_numbers()
                    .iter()
                    .filter(|&&own| own_fds::is_own(own))
                    .count(),
                1
            );
        });
    }
}

/// A thread sleeps in a set with a kernel fd, another one writes, and the program takes a number.
#[test]
fn a_thread_asleep_is_woken_though_a_number_is_taken_meanwhile() {
    for taken in [SET, SEAL] {
        model(1, move || {
            let source = Source::new();
            let set = Epoll::new().unwrap();
            set.ctl_kernel(Op::Add, &source, IN).unwrap();
            let counter = EventFd::new(0).unwrap();
            set.add(&counter, IN).unwrap();
            let taking = thread::spawn(move || {
                let precious = Source::new();
                let number = program::open_numbers()
                    .into_iter()
                    .rfind(|&number| number < FIRST)
                    .unwrap();
                dup2(number, taken).unwrap();
                precious
            });
            let writer = counter.clone();
            let writing = thread::spawn(move || writer.try_write(1).unwrap());
            assert_eq!(wait(&set, FOREVER), Ok(1));
            taking.join().unwrap();
            writing.join().unwrap();
        });
    }
}

/// Closes all numbers of the library's, and puts a file of the program's under each.
fn take_all(precious: &Precious) {
    for number in own_numbers() {
        program::dup2(precious.0, number).unwrap();
    }
}

/// Without protection a wake beside that is sent, or finds the set lost.
#[test]
fn a_wake_leaves_alone_what_took_the_place_of_its_numbers() {
    unprotected_model(3, || {
        let set = Arc::new(OwnSet::new());
        let precious = Precious::new();
        let ringing = {
            let set = set.clone();
            thread::spawn(move || set.ring())
        };
        take_all(&precious);
        ringing.join().unwrap();
        assert!(!set.ring());
        assert!(!set.is_intact());
        drop(set);
        for number in [SET, SEAL] {
            precious.is_left_alone(number);
        }
    });
}

/// A set that was lost is made anew as another thread sends a wake: that one fails, or is heard.
#[test]
fn a_wake_is_heard_by_a_set_that_is_made_anew_or_fails() {
    unprotected_model(3, || {
        let set = Arc::new(OwnSet::new());
        let precious = Precious::new();
        take_all(&precious);
        let ringing = {
            let set = set.clone();
            thread::spawn(move || set.ring())
        };
        set.restore();
        let is_sent = ringing.join().unwrap();
        assert!(!is_sent || set.hear());
        assert!(set.is_intact() || !is_sent);
        set.restore();
        assert!(set.ring());
        assert!(set.hear());
        drop(set);
        for number in [SET, SEAL] {
            precious.is_left_alone(number);
        }
    });
}

/// The seal is lost, and two threads make sets.
#[test]
fn two_sets_that_are_made_after_the_seal_was_lost_can_be_woken_in() {
    unprotected_model(2, || {
        let first = OwnSet::new();
        let precious = Precious::new();
        program::dup2(precious.0, SEAL).unwrap();
        let making = thread::spawn(OwnSet::new);
        let sets = [OwnSet::new(), making.join().unwrap()];
        for set in &sets {
            assert!(set.is_intact());
            assert!(set.ring());
            assert!(set.hear());
        }
        assert!(!first.ring());
        assert_ne!(sets[0].number(), sets[1].number());
        precious.is_left_alone(SEAL);
    });
}

/// The program closes everything as a thread sleeps, or is about to, and time passes.
#[test]
fn a_thread_that_sleeps_while_its_numbers_are_closed_is_woken() {
    for by_counter in [false, true] {
        unprotected_model(1, move || {
            let source = Source::new();
            let set = Epoll::new().unwrap();
            set.ctl_kernel(Op::Add, &source, IN).unwrap();
            let counter = EventFd::new(0).unwrap();
            set.add(&counter, IN).unwrap();
            let closing = thread::spawn(move || {
                for number in own_numbers() {
                    program::close(number).unwrap();
                }
                match by_counter {
                    true => counter.try_write(1).unwrap(),
                    false => source.set_readable(true),
                }
                pass_time();
                (source, counter)
            });
            assert_eq!(wait(&set, FOREVER), Ok(1));
            drop(closing.join().unwrap());
        });
    }
}
