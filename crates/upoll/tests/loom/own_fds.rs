//! The library's own fds (`src/host/own_fds`), while the program closes them or opens
//! files of its own there. Under the preload an own fd is moved away first. Elsewhere the library
//! finds it lost, and makes a new one.

use std::os::fd::RawFd;
use std::sync::Arc;

use loom::thread;
use upoll::Source as _;
use upoll::internal::own_fds;
use upoll::kernel_model::{Source, pass_time, program};
use upoll::{Epoll, Errno, EventFd, Op, OwnSet};

use super::sleeping::{FOREVER, wait};
use super::{IN, harness, model, writes};

/// Own fds begin here.
const FIRST: RawFd = 24;

/// The fds of a set and of its seal, which are the first that the library opens.
const SET: RawFd = FIRST;
const SEAL: RawFd = FIRST + 1;

fn open_own_fds() -> Vec<RawFd> {
    let mut fds = program::open_fds();
    fds.retain(|&fd| fd >= FIRST);
    fds
}

/// Calls `dup2(2)` like the preload.
fn dup2(old: RawFd, new: RawFd) -> Result<(), Errno> {
    let held = own_fds::hold_fds(new);
    if !own_fds::is_own(new) {
        return program::dup2(old, new);
    }
    drop(held);
    let _held = own_fds::hold_fds(new);
    own_fds::replace(new, || program::dup2(old, new))
}

/// Calls `close(2)` like the preload.
fn close(fd: RawFd) -> Result<(), Errno> {
    match own_fds::is_own(fd) {
        true => Err(Errno::BADF),
        false => program::close(fd),
    }
}

/// A file of the program: a set that watches nothing.
struct Precious(RawFd);

impl Precious {
    fn new() -> Self {
        Precious(program::epoll_create().unwrap())
    }

    /// Checks that the fd still stands for the file, and that nothing was added to it.
    fn is_left_alone(&self, fd: RawFd) {
        // Adding a set to itself fails with `EINVAL`, whatever its fd is.
        let added = program::epoll_ctl(fd, Op::Add, self.0, IN);
        assert_eq!(added, Err(Errno::INVAL), "the fd stands for another file");
        assert_eq!(program::number_of_members(fd), Ok(0));
    }
}

/// Runs `body` while the program puts a file at the fd of the set or of the seal, and then
/// `after`.
fn beside_a_move<T: Send + 'static>(
    preemptions: usize,
    body: fn(&OwnSet) -> T,
    after: fn(OwnSet, T),
) {
    for taken in [SET, SEAL] {
        model(preemptions, move || {
            let set = Arc::new(OwnSet::new());
            assert_eq!(open_own_fds(), [SET, SEAL]);
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

/// Checks that the set has one member: the seal, under one fd.
fn has_one_member(set: &OwnSet) {
    assert_eq!(program::number_of_members(set.fd()), Ok(1));
}

/// Closes the set, and checks that the seal is the only own fd that is left.
fn nothing_is_left(set: OwnSet) {
    drop(set);
    let left = open_own_fds().into_iter().filter(|&fd| own_fds::is_own(fd));
    assert_eq!(left.count(), 1);
    assert_eq!(open_own_fds().len(), 2);
}

#[test]
fn a_wake_arrives_though_an_fd_is_taken_meanwhile() {
    beside_a_move(
        3,
        |set| assert!(set.ring()),
        |set, ()| {
            assert!(set.hear());
            // The next wakeup arrives too.
            assert!(set.ring());
            assert!(set.hear());
            assert!(!set.hear());
            has_one_member(&set);
            nothing_is_left(set);
        },
    );
}

#[test]
fn a_wake_that_is_taken_back_is_gone_though_an_fd_is_taken_meanwhile() {
    beside_a_move(
        3,
        |set| {
            assert!(set.ring());
            assert!(set.quiet());
        },
        |set, ()| {
            // The move may have caused a wakeup.
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
                // The program's file was not added in the place of the seal.
                let left = program::epoll_ctl(set.fd(), Op::Del, SEAL, IN);
                assert!(own_fds::is_own(SEAL) || left == Err(Errno::NOENT));
            }
            drop(second);
            nothing_is_left(first);
        },
    );
}

/// The program puts a file at a free fd, where the library just opens an own fd. The file stays, and the library's
/// fd is elsewhere.
#[test]
fn an_fd_that_is_taken_while_an_own_fd_is_opened_there_is_the_programs() {
    const FREE: RawFd = SEAL + 1;
    model(3, || {
        let first = OwnSet::new();
        assert_eq!(open_own_fds(), [SET, SEAL]);
        let making = thread::spawn(OwnSet::new);
        let precious = Precious::new();
        assert_eq!(dup2(precious.0, FREE), Ok(()));
        let second = making.join().unwrap();
        assert!(!own_fds::is_own(FREE));
        precious.is_left_alone(FREE);
        assert!(second.ring() && second.hear());
        drop([first, second]);
        precious.is_left_alone(FREE);
    });
}

/// A set is closed while the program takes one of the two fds. The program's file stays open,
/// and no own fd is left.
#[test]
fn a_set_that_is_closed_while_its_fd_is_taken_closes_its_own_file_alone() {
    for taken in [SET, SEAL] {
        model(3, move || {
            let set = OwnSet::new();
            let closing = thread::spawn(move || drop(set));
            let precious = Precious::new();
            assert_eq!(dup2(precious.0, taken), Ok(()));
            closing.join().unwrap();
            precious.is_left_alone(taken);
            let mut left = open_own_fds();
            left.retain(|&fd| fd != taken);
            assert_eq!(left.len(), 1, "{left:?}");
            assert!(own_fds::is_own(left[0]));
        });
    }
}

/// Two threads of the program put a file at the same fd, and one of them closes it again.
#[test]
fn two_threads_that_take_one_fd_leave_the_set_as_it_is() {
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
                open_own_fds()
                    .iter()
                    .filter(|&&own| own_fds::is_own(own))
                    .count(),
                1
            );
        });
    }
}

/// A thread sleeps in a set with a kernel fd, another one writes, and the program takes an fd.
#[test]
fn a_thread_asleep_is_woken_though_an_fd_is_taken_meanwhile() {
    for taken in [SET, SEAL] {
        model(1, move || {
            let source = Source::new();
            let set = Epoll::new().unwrap();
            set.ctl(Op::Add, source.target(), IN).unwrap();
            let counter = EventFd::new(0).unwrap();
            set.add(&counter, IN).unwrap();
            let taking = thread::spawn(move || {
                let precious = Source::new();
                let fd = program::open_fds()
                    .into_iter()
                    .rfind(|&fd| fd < FIRST)
                    .unwrap();
                dup2(fd, taken).unwrap();
                precious
            });
            let writing = writes(&counter, 1);
            assert_eq!(wait(&set, FOREVER), Ok(1));
            taking.join().unwrap();
            writing.join().unwrap();
        });
    }
}

/// Closes all own fds of the library, and puts a file of the program at each fd.
fn take_all(precious: &Precious) {
    for fd in open_own_fds() {
        program::dup2(precious.0, fd).unwrap();
    }
}

/// Without protection a concurrent wakeup is sent, or finds the set lost.
#[test]
fn a_wake_leaves_alone_what_took_the_place_of_its_fds() {
    harness::model(3, || {
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
        for fd in [SET, SEAL] {
            precious.is_left_alone(fd);
        }
    });
}

/// A lost set is replaced while another thread sends a wakeup. The wakeup fails, or is received.
#[test]
fn a_wake_reaches_a_set_that_is_replaced_or_fails() {
    harness::model(3, || {
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
        for fd in [SET, SEAL] {
            precious.is_left_alone(fd);
        }
    });
}

/// The seal is lost while two threads make sets.
#[test]
fn two_sets_that_are_made_after_the_seal_was_lost_can_be_woken_in() {
    harness::model(2, || {
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
        assert_ne!(sets[0].fd(), sets[1].fd());
        precious.is_left_alone(SEAL);
    });
}

/// The program closes everything while a thread sleeps or is about to, and time passes.
#[test]
fn a_thread_that_sleeps_while_its_fds_are_closed_is_woken() {
    for by_counter in [false, true] {
        harness::model(1, move || {
            let source = Source::new();
            let set = Epoll::new().unwrap();
            set.ctl(Op::Add, source.target(), IN).unwrap();
            let counter = EventFd::new(0).unwrap();
            set.add(&counter, IN).unwrap();
            let closing = thread::spawn(move || {
                for fd in open_own_fds() {
                    program::close(fd).unwrap();
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
