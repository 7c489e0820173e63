//! Sets whose own fds the program closes (`src/host/restore.rs`), while other threads use the sets. The kernel's epoll is
//! a model (`src/host/kernel_model.rs`).

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use loom::thread;
use upoll::Source as _;
use upoll::kernel_model::{Source, program};
use upoll::{CreateFlags, Epoll, Event, EventFd, Events, Op, PollFd, poll};

use super::sleeping::{FOREVER, wait};
use super::{EDGE, IN, harness, harvest};

/// Own fds begin here. The first is a set's kernel set, the next the seal, the third the kernel set
/// with a rotating set's source.
const FIRST: RawFd = 24;

/// Checks the own fds of a set, makes lost ones anew, and returns whether the set is ready.
fn is_ready(set: &Epoll) -> bool {
    poll(&mut [PollFd::new(set, Events::IN)], Some(Duration::ZERO)) == Ok(1)
}

/// Returns the data of a set's only event, if there is one. The first harvest may find that the set is lost.
fn data_of_event(set: &Epoll) -> Option<u64> {
    let events = &mut [Event::default(); 2];
    let found = (0..2).find(|_| set.try_wait(events).unwrap() > 0);
    found.map(|_| events[0].data())
}

/// Changes a set's member to `IN` with the data 1, or deletes it, while the program closes the kernel set that has the
/// member, and another thread makes that anew. Returns the set, and the member, which is readable, before another one.
fn changed_while_lost(flags: CreateFlags, op: Op) -> (Epoll, [Arc<Source>; 2]) {
    let set = Epoll::create(flags).unwrap();
    let [source, other] = [(); 2].map(|()| Arc::new(Source::new()));
    let rotates = flags.contains(CreateFlags::ROTATE);
    if !rotates {
        // A set without members asks the kernel for nothing.
        set.ctl(Op::Add, other.target(), IN).unwrap();
    }
    set.ctl(Op::Add, source.target(), IN).unwrap();
    if op == Op::Add {
        set.ctl(Op::Del, source.target(), IN).unwrap();
    }
    let (changed, member) = (set.clone(), source.clone());
    let change = Event::new(Events::IN, 1);
    let changing = thread::spawn(move || changed.ctl(op, member.target(), change));
    let lost = match rotates {
        true => FIRST + 2,
        false => FIRST,
    };
    program::close(lost).unwrap();
    is_ready(&set);
    assert_eq!(changing.join().unwrap(), Ok(()));
    source.set_readable(true);
    (set, [source, other])
}

#[test]
fn a_member_that_is_added_while_its_set_is_made_anew_is_in_the_new_one() {
    harness::model(2, || {
        let (set, _sources) = changed_while_lost(CreateFlags::empty(), Op::Add);
        assert_eq!(data_of_event(&set), Some(1));
    });
}

#[test]
fn a_member_that_is_changed_while_its_set_is_made_anew_stays_changed() {
    harness::model(2, || {
        let (set, _sources) = changed_while_lost(CreateFlags::empty(), Op::Mod);
        assert_eq!(data_of_event(&set), Some(1));
    });
}

#[test]
fn a_member_that_is_deleted_while_its_set_is_made_anew_does_not_come_back() {
    harness::model(2, || {
        let (set, _sources) = changed_while_lost(CreateFlags::empty(), Op::Del);
        assert_eq!(data_of_event(&set), None);
    });
}

#[test]
fn a_source_that_is_added_or_deleted_while_its_rotating_set_is_made_anew_is_in_the_new_one_or_not()
{
    for op in [Op::Add, Op::Del] {
        harness::model(1, move || {
            let (rotating, _sources) = changed_while_lost(CreateFlags::ROTATE, op);
            assert_eq!(is_ready(&rotating), op == Op::Add);
        });
    }
}

/// A wake goes to the kernel set that the program closes then. The thread that it is for is about to sleep in the one that
/// is made anew.
#[test]
fn a_thread_that_goes_to_sleep_in_a_set_that_was_made_anew_misses_no_wake() {
    harness::model(2, || {
        let source = Source::new();
        let set = Epoll::new().unwrap();
        set.ctl(Op::Add, source.target(), IN).unwrap();
        let counter = EventFd::new(0).unwrap();
        set.add(&counter, IN).unwrap();
        let sleeper = set.clone();
        let sleeping = thread::spawn(move || wait(&sleeper, FOREVER));
        counter.try_write(1).unwrap();
        program::close(FIRST).unwrap();
        set.ctl(Op::Mod, source.target(), IN).unwrap();
        assert_eq!(sleeping.join().unwrap(), Ok(1));
    });
}

/// The fd is made anew while a thread that has harvested an event clears it.
#[test]
fn an_event_on_a_readiness_fd_that_is_made_anew_during_a_harvest_shows() {
    harness::model(2, || {
        let set = Epoll::new().unwrap();
        let counter = EventFd::new(0).unwrap();
        set.add(&counter, EDGE).unwrap();
        let fd = set.readiness_fd().unwrap();
        counter.try_write(1).unwrap();
        let harvester = set.clone();
        let harvesting = thread::spawn(move || harvest(&harvester));
        program::close(fd.as_raw_fd()).unwrap();
        // Makes it anew.
        let _ = fd.as_raw_fd();
        counter.try_write(1).unwrap();
        harvesting.join().unwrap();
        let mut entry = libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let shows = program::poll_now(std::slice::from_mut(&mut entry)) == Ok(1);
        assert!(shows || harvest(&set) == 0, "the event was lost");
    });
}
