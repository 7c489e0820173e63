//! A wait without an event sleeps, whatever is ready below the sets that it is given. The test
//! measures the processor time of the wait.
#![cfg(all(feature = "std", not(upoll_loom)))]

mod processor_time;

use std::io::{PipeReader, PipeWriter, Write, pipe};
use std::time::Duration;

use processor_time::processor_time;
use upoll::{
    CreateFlags, Epoll, Event, EventFd, Events, FdSet, PollContext, PollFd, SigSet, Source,
    Timeout, poll, ppoll, pselect, select,
};

/// The time limit of a wait. A spinning wait uses most of it as processor time, a sleeping one
/// almost none.
const LIMIT: Duration = Duration::from_millis(400);
const NEXT_TO_NOTHING: Duration = Duration::from_millis(40);

/// Checks that a wait times out and sleeps until then.
fn sleeps(what: &str, wait: impl FnOnce() -> usize) {
    let before = processor_time();
    assert_eq!(wait(), 0, "{what}");
    let took = processor_time() - before;
    assert!(took < NEXT_TO_NOTHING, "{what} took {took:?}");
}

fn readable() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = pipe().unwrap();
    writer.write_all(b"x").unwrap();
    (reader, writer)
}

/// Checks all calls, for events that no set ever reports.
fn all_sleep(set: &Epoll) {
    let idle = EventFd::new(0).unwrap();
    for events in [Events::OUT, Events::empty(), Events::PRI | Events::RDHUP] {
        let list = || [PollFd::new(set, events), PollFd::new(&idle, Events::IN)];
        sleeps("poll", || poll(&mut list(), LIMIT).unwrap());
        sleeps("ppoll", || {
            ppoll(&mut list(), LIMIT, &SigSet::empty()).unwrap()
        });
        let mut context = PollContext::new();
        sleeps("a context", || context.poll(&mut list(), LIMIT).unwrap());
        sleeps("a context again", || {
            context.poll(&mut list(), LIMIT).unwrap()
        });
    }
    let resolve = |fd: i32| Some(if fd == 0 { set.target() } else { idle.target() });
    let sets = || {
        (
            FdSet::from_iter([1]),
            FdSet::from_iter([0]),
            FdSet::from_iter([0]),
        )
    };
    sleeps("select", || {
        let (mut read, mut write, mut except) = sets();
        let limit = &mut Timeout::from(LIMIT);
        let sets = (Some(&mut read), Some(&mut write), Some(&mut except));
        select(2, sets.0, sets.1, sets.2, limit, resolve).unwrap()
    });
    sleeps("pselect", || {
        let (_, mut write, _) = sets();
        let mask = SigSet::empty();
        pselect(2, None, Some(&mut write), None, LIMIT, &mask, resolve).unwrap()
    });
    sleeps("select of a context", || {
        let (mut read, mut write, _) = sets();
        let limit = &mut Timeout::from(LIMIT);
        let mut context = PollContext::new();
        let sets = (Some(&mut read), Some(&mut write));
        context
            .select(2, sets.0, sets.1, None, limit, resolve)
            .unwrap()
    });
    // Events that are there are still found.
    let mut list = [PollFd::new(set, Events::IN)];
    assert_eq!(poll(&mut list, LIMIT), Ok(1));
    assert_eq!(PollContext::new().poll(&mut list, LIMIT), Ok(1));
}

#[test]
fn a_set_whose_kernel_member_is_readable_is_waited_for_asleep() {
    let set = Epoll::new().unwrap();
    let (reader, _writer) = readable();
    set.add(&reader, Event::new(Events::IN, 0)).unwrap();
    all_sleep(&set);
}

#[test]
fn so_is_a_set_that_watches_such_a_set() {
    let [inner, outer] = [(); 2].map(|()| Epoll::new().unwrap());
    let (reader, _writer) = readable();
    inner.add(&reader, Event::new(Events::IN, 0)).unwrap();
    outer.add(&inner, Event::new(Events::IN, 0)).unwrap();
    all_sleep(&outer);
}

#[test]
fn so_is_a_rotating_set_whose_source_is_readable() {
    let set = Epoll::create(CreateFlags::ROTATE).unwrap();
    let (reader, _writer) = readable();
    set.add(&reader, Event::new(Events::IN, 0)).unwrap();
    all_sleep(&set);
}

#[test]
fn so_is_a_set_with_a_shared_counter_that_is_readable() {
    let set = Epoll::new().unwrap();
    let counter = EventFd::shared(1, upoll::EventFdFlags::empty()).unwrap();
    set.add(&counter, Event::new(Events::IN, 0)).unwrap();
    all_sleep(&set);
}

#[test]
fn a_set_that_waits_for_what_a_set_below_never_shows_sleeps() {
    for flags in [CreateFlags::empty(), CreateFlags::ROTATE] {
        let (inner, outer) = (Epoll::create(flags).unwrap(), Epoll::new().unwrap());
        let (reader, _writer) = readable();
        inner.add(&reader, Event::new(Events::IN, 0)).unwrap();
        outer.add(&inner, Event::new(Events::OUT, 0)).unwrap();
        let mut events = [Event::default(); 2];
        sleeps("a wait", || outer.wait(&mut events, LIMIT).unwrap());
        sleeps("a poll", || {
            poll(&mut [PollFd::new(&outer, Events::IN)], LIMIT).unwrap()
        });
    }
}

/// Checks that waits in a set above `inner`, and polls of it, sleep once the interest in `inner` is
/// used up.
fn sleeps_with_interest_used_up(inner: &Epoll, events: Events) {
    let outer = Epoll::new().unwrap();
    outer.add(inner, Event::new(events, 0)).unwrap();
    let mut found = [Event::default(); 2];
    assert_eq!(outer.wait(&mut found, LIMIT), Ok(1));
    sleeps("a wait", || outer.wait(&mut found, LIMIT).unwrap());
    let list = || [PollFd::new(&outer, Events::IN)];
    sleeps("poll", || poll(&mut list(), LIMIT).unwrap());
    let mut context = PollContext::new();
    for _ in 0..2 {
        sleeps("a context", || context.poll(&mut list(), LIMIT).unwrap());
    }
}

/// Returns sets, each of which watches the one before. The first one watches a readable kernel fd.
fn chain(reader: &PipeReader, flags: [CreateFlags; 4]) -> [Epoll; 4] {
    let sets = flags.map(|flags| Epoll::create(flags).unwrap());
    sets[0].add(reader, Event::new(Events::IN, 0)).unwrap();
    for pair in sets.windows(2) {
        pair[1].add(&pair[0], Event::new(Events::IN, 0)).unwrap();
    }
    sets
}

const PLAIN: CreateFlags = CreateFlags::empty();
const ROTATE: CreateFlags = CreateFlags::ROTATE;

#[test]
fn so_is_a_set_far_above_rotating_ones() {
    let (reader, _writer) = readable();
    all_sleep(&chain(&reader, [ROTATE, ROTATE, PLAIN, PLAIN])[3]);
}

#[test]
fn an_interest_that_is_used_up_is_waited_for_asleep() {
    let (reader, _writer) = readable();
    for (bottom, middle) in [(PLAIN, PLAIN), (PLAIN, ROTATE), (ROTATE, PLAIN)] {
        let sets = chain(&reader, [bottom, middle, PLAIN, PLAIN]);
        sleeps_with_interest_used_up(&sets[3], Events::IN | Events::ET);
        sleeps_with_interest_used_up(&sets[3], Events::IN | Events::ONESHOT);
    }
}
