//! Shared counters in one process: they behave as any other. `eventfd_fork` has the tests with
//! several processes.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod counter;
mod kernel;
mod threads;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use counter::{any_step, follows_the_model, initial};
use kernel::Twin;
use proptest::prelude::*;
use threads::asleep;
use upoll::{
    CreateFlags, CtlCommand, Epoll, Errno, Event, EventFd, EventFdFlags, Events, PollFd, Watch,
};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(1);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_sequence_follows_the_model(
        initial in initial(),
        semaphore: bool,
        steps in prop::collection::vec(any_step(), 0..60),
    ) {
        let flags = if semaphore { EventFdFlags::SEMAPHORE } else { EventFdFlags::empty() };
        let counter = EventFd::shared(initial, flags).unwrap();
        follows_the_model(&counter, initial, steps)?;
    }
}

/// The numbers that operations choose from: sets first, then counters.
const NUMBERS: usize = 8;
const SETS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    OpenCounter(usize, u32, bool),
    Dup(usize, usize),
    Close(usize),
    Add(usize, usize, Events, u64),
    Modify(usize, usize, Events, u64),
    Delete(usize, usize),
    Nest(usize, usize),
    Unnest(usize, usize),
    Write(usize, u64),
    Read(usize),
    Wait(usize),
}

fn interests() -> impl Strategy<Value = Events> {
    let common = prop_oneof![
        Just(Events::IN),
        Just(Events::OUT),
        Just(Events::IN | Events::OUT),
        Just(Events::empty()),
    ];
    let how = prop_oneof![
        Just(Events::empty()),
        Just(Events::ET),
        Just(Events::ONESHOT),
        Just(Events::ONESHOT | Events::ET),
        Just(Events::EXCLUSIVE | Events::ET),
    ];
    (common, how).prop_map(|(events, how)| events | how)
}

fn steps() -> impl Strategy<Value = Step> {
    let set = 0..SETS;
    let counter = SETS..NUMBERS;
    let value = prop_oneof![4 => 0..3_u64, 1 => Just(u64::MAX - 1), 1 => Just(u64::MAX)];
    prop_oneof![
        1 => (counter.clone(), 0..2_u32, any::<bool>())
            .prop_map(|(n, v, s)| Step::OpenCounter(n, v, s)),
        2 => (counter.clone(), counter.clone()).prop_map(|(a, b)| Step::Dup(a, b)),
        1 => counter.clone().prop_map(Step::Close),
        9 => (set.clone(), counter.clone(), interests(), any::<u64>())
            .prop_map(|(s, t, e, d)| Step::Add(s, t, e, d)),
        4 => (set.clone(), counter.clone(), interests(), any::<u64>())
            .prop_map(|(s, t, e, d)| Step::Modify(s, t, e, d)),
        3 => (set.clone(), counter.clone()).prop_map(|(s, t)| Step::Delete(s, t)),
        2 => (set.clone(), set.clone()).prop_map(|(s, t)| Step::Nest(s, t)),
        1 => (set.clone(), set.clone()).prop_map(|(s, t)| Step::Unnest(s, t)),
        8 => (counter.clone(), value).prop_map(|(n, v)| Step::Write(n, v)),
        5 => counter.prop_map(Step::Read),
        8 => set.prop_map(Step::Wait),
    ]
}

/// Like [`Twin::wait`] without the order of events: a set notices a change of a shared counter when
/// it is polled.
fn wait(twin: &Twin, number: usize) {
    let mut ours = vec![Event::default(); 64];
    let set = twin.set(number).unwrap();
    let ready = set.try_wait(&mut ours).unwrap();
    let mut ours: Vec<_> = ours[..ready]
        .iter()
        .map(|event| (event.events().bits(), event.data()))
        .collect();
    let mut theirs = twin.kernel.wait(number, 64).unwrap();
    ours.sort_unstable();
    theirs.sort_unstable();
    kernel::same(("wait", number), ours, theirs);
}

fn run(steps: &[Step]) {
    let mut twin = Twin::new(NUMBERS);
    for number in 0..SETS {
        twin.open_set(number);
        twin.open_shared_counter(SETS + number, 0, false);
    }
    for step in steps {
        match *step {
            Step::OpenCounter(number, initial, semaphore) => {
                twin.open_shared_counter(number, initial, semaphore);
            }
            Step::Dup(from, to) => twin.dup(from, to),
            Step::Close(number) => twin.close(number),
            Step::Add(set, target, events, data) => drop(twin.add(set, target, events, data)),
            Step::Modify(set, target, events, data) => drop(twin.modify(set, target, events, data)),
            Step::Delete(set, target) | Step::Unnest(set, target) => {
                let _ = twin.delete(set, target);
            }
            // Edge-triggered interests in sets with a kernel backend have rules of their own.
            Step::Nest(set, target) => drop(twin.add(set, target, Events::IN, target as u64)),
            Step::Write(number, value) => twin.write(number, value),
            Step::Read(number) => twin.read(number),
            Step::Wait(number) => wait(&twin, number),
        }
    }
    for number in 0..SETS {
        wait(&twin, number);
        twin.fdinfo(number);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn sets_report_of_shared_counters_what_the_kernel_reports(
        steps in prop::collection::vec(steps(), 1..=60)
    ) {
        run(&steps);
    }
}

fn shared(initial: u32) -> EventFd {
    EventFd::shared(initial, EventFdFlags::empty()).unwrap()
}

#[test]
fn flags_that_linux_does_not_know_are_invalid() {
    let made = EventFd::shared(0, EventFdFlags::from_bits_retain(2));
    assert_eq!(made.err(), Some(Errno::INVAL));
    let flags = EventFdFlags::NONBLOCK | EventFdFlags::CLOEXEC;
    let counter = EventFd::shared(0, flags).unwrap();
    assert_eq!(counter.read(), Err(Errno::AGAIN));
    counter.set_maximum(1).unwrap();
    assert_eq!(counter.write(1), Err(Errno::AGAIN));
}

#[test]
fn each_call_that_waits_is_woken_by_another_thread() {
    fn wait_by_set(counter: &EventFd) -> Result<usize, Errno> {
        let set = Epoll::new()?;
        set.add(counter, Event::new(Events::IN, 0))?;
        set.wait(&mut [Event::default()], LONG)
    }
    fn wait_by_poll(counter: &EventFd) -> Result<usize, Errno> {
        upoll::poll(&mut [PollFd::new(counter, Events::IN)], LONG)
    }
    fn wait_by_read(counter: &EventFd) -> Result<usize, Errno> {
        counter.read().map(|_| 1)
    }
    for wait in [wait_by_set, wait_by_poll, wait_by_read] {
        let counter = shared(0);
        let (waiter, _) = asleep({
            let counter = counter.clone();
            move || wait(&counter)
        });
        counter.try_write(1).unwrap();
        assert_eq!(waiter.join().unwrap(), Ok(1));
    }
}

#[test]
fn poll_sleeps_until_its_limit_if_the_other_direction_changes() {
    let counter = shared(0);
    counter.set_maximum(1).unwrap();
    let mut fds = [PollFd::new(&counter, Events::OUT)];
    assert_eq!(upoll::poll(&mut fds, SHORT), Ok(0));
    counter.signal();
    assert_eq!(upoll::poll(&mut fds, SHORT), Ok(1));
    assert_eq!(fds[0].revents(), Events::ERR);
}

#[test]
fn a_thread_that_sleeps_in_a_set_learns_of_a_counter_that_is_added() {
    let set = Epoll::new().unwrap();
    let (waiter, _) = asleep({
        let set = set.clone();
        move || set.wait(&mut [Event::default()], LONG)
    });
    let counter = shared(0);
    set.add(&counter, Event::new(Events::IN, 0)).unwrap();
    counter.try_write(1).unwrap();
    assert_eq!(waiter.join().unwrap(), Ok(1));
}

#[test]
fn a_batch_takes_shared_counters_among_others() {
    let set = Epoll::new().unwrap();
    let (one, two, three) = (
        EventFd::new(1).unwrap(),
        shared(1),
        EventFd::new(1).unwrap(),
    );
    let interest = |data| Event::new(Events::IN, data);
    let mut commands = [
        CtlCommand::add(&one, interest(1)),
        CtlCommand::add(&two, interest(2)),
        CtlCommand::add(&three, interest(3)),
        CtlCommand::modify(&two, interest(4)),
        CtlCommand::delete(&one),
        CtlCommand::add(&two, interest(5)),
    ];
    assert_eq!(set.ctl_batch(&mut commands), Ok(5));
    assert_eq!(commands[5].result, Err(Errno::EXIST));
    let mut events = [Event::default(); 4];
    assert_eq!(set.try_wait(&mut events), Ok(2));
    let mut data = [events[0].data(), events[1].data()];
    data.sort_unstable();
    assert_eq!(data, [3, 4]);
}

#[test]
fn a_watch_learns_of_this_processs_changes() {
    let counter = shared(0);
    let heard = Arc::new(AtomicUsize::new(0));
    let (watch, ready) = Watch::new(&counter, Events::IN, {
        let heard = heard.clone();
        move |_| {
            heard.fetch_add(1, Ordering::Relaxed);
        }
    })
    .unwrap();
    assert_eq!(ready, Events::empty());
    counter.try_write(1).unwrap();
    counter.try_read().unwrap();
    counter.signal();
    drop(watch);
    counter.signal();
    assert_eq!(heard.load(Ordering::Relaxed), 2);
}

#[test]
fn a_closed_counter_leaves_its_sets() {
    let set = Epoll::new().unwrap();
    let counter = shared(1);
    set.add(&counter, Event::new(Events::IN | Events::ET, 0))
        .unwrap();
    assert_eq!(set.len(), 1);
    drop(counter);
    assert!(set.is_empty());
    assert_eq!(set.wait(&mut [Event::default()], SHORT), Ok(0));
}

#[test]
fn workers_of_a_rotating_set_share_what_a_shared_source_brings() {
    const EVENTS: u64 = 500;
    let source = EventFd::shared(0, EventFdFlags::SEMAPHORE | EventFdFlags::NONBLOCK).unwrap();
    let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
    rotating.add(&source, Event::new(Events::IN, 0)).unwrap();
    let second = rotating.add(&shared(0), Event::new(Events::IN, 0));
    assert_eq!(second, Err(Errno::INVAL));
    let taken = AtomicU64::new(0);
    thread::scope(|scope| {
        for direct in [false, false, true] {
            let (rotating, source, taken) = (&rotating, &source, &taken);
            scope.spawn(move || {
                let worker = Epoll::new().unwrap();
                if !direct {
                    worker.add(rotating, Event::new(Events::IN, 0)).unwrap();
                }
                let waits_in = if direct { rotating } else { &worker };
                while taken.load(Ordering::SeqCst) < EVENTS {
                    let ready = waits_in.wait(&mut [Event::default()], Duration::from_millis(200));
                    if ready.unwrap() > 0 && source.try_read().is_ok() {
                        taken.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
        for _ in 0..EVENTS {
            source.try_write(1).unwrap();
        }
    });
    assert_eq!(taken.load(Ordering::SeqCst), EVENTS);
}

#[test]
fn threads_that_wait_in_one_set_take_all_that_is_written() {
    const EACH: u64 = 2_000;
    for how in [Events::empty(), Events::ET, Events::EXCLUSIVE] {
        let counter = EventFd::shared(0, EventFdFlags::NONBLOCK).unwrap();
        let (set, done) = (Epoll::new().unwrap(), EventFd::new(0).unwrap());
        set.add(&counter, Event::new(Events::IN | how, 0)).unwrap();
        set.add(&done, Event::new(Events::IN, 1)).unwrap();
        let taken = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut events = [Event::default(); 2];
                    loop {
                        let ready = set.wait(&mut events, None).unwrap();
                        taken.fetch_add(counter.read().unwrap_or(0), Ordering::SeqCst);
                        if events[..ready].iter().any(|event| event.data() == 1) {
                            break;
                        }
                    }
                });
            }
            let writers: Vec<_> = (0..2)
                .map(|_| scope.spawn(|| (0..EACH).for_each(|_| counter.write(1).unwrap())))
                .collect();
            for writer in writers {
                writer.join().unwrap();
            }
            // The readers take all of it without a further event.
            while taken.load(Ordering::SeqCst) < 2 * EACH {
                thread::yield_now();
            }
            done.try_write(1).unwrap();
        });
        assert_eq!(taken.load(Ordering::SeqCst), 2 * EACH);
    }
}

#[test]
fn a_kept_context_learns_of_a_shared_counter_in_every_sleep() {
    let counter = EventFd::shared(0, EventFdFlags::empty()).unwrap();
    let mut context = upoll::PollContext::new();
    let mut fds = [upoll::PollFd::new(&counter, Events::IN)];
    for _ in 0..20 {
        assert_eq!(context.poll(&mut fds, Duration::ZERO), Ok(0));
        let begun = std::time::Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(1));
                counter.try_write(1).unwrap();
            });
            assert_eq!(context.poll(&mut fds, LONG), Ok(1));
        });
        assert!(begun.elapsed() < LONG, "the write was not heard");
        assert_eq!(counter.try_read(), Ok(1));
    }
}

/// Counts the reports of an edge-triggered interest in `below`, which watches `counter` and which
/// nobody harvests, for alternating pairs of writes and a read.
fn edges_above(below: &Epoll, counter: &EventFd) {
    below.add(counter, Event::new(Events::IN, 0)).unwrap();
    let above = Epoll::new().unwrap();
    let edge = Event::new(Events::IN | Events::ET, 0);
    above.add(below, edge).unwrap();
    for _ in 0..3 {
        // The counter stays ready from the first write to the second one.
        for _ in 0..2 {
            counter.try_write(1).unwrap();
            assert_eq!(above.wait(&mut [Event::default(); 2], LONG), Ok(1));
        }
        // A wait that finds nothing would poll the set below itself.
        assert_eq!(counter.try_read(), Ok(2));
    }
}

#[test]
fn an_edge_triggered_interest_in_a_set_that_nobody_harvests_reports_each_write() {
    edges_above(&Epoll::new().unwrap(), &shared(0));
    edges_above(&Epoll::new().unwrap(), &EventFd::new(0).unwrap());
    // The same in the kernel.
    let mut kernel = Twin::new(3);
    kernel.open_set(0);
    kernel.open_set(1);
    kernel.open_counter(2, 0, false);
    kernel.add(1, 2, Events::IN, 0).unwrap();
    kernel.add(0, 1, Events::IN | Events::ET, 0).unwrap();
    for _ in 0..3 {
        for _ in 0..2 {
            kernel.write(2, 1);
            assert_eq!(kernel.kernel.wait(0, 2).unwrap().len(), 1);
        }
        kernel.read(2);
    }
}

#[test]
fn an_edge_triggered_worker_of_a_rotating_set_reports_each_write() {
    let rotating = || Epoll::create(CreateFlags::ROTATE).unwrap();
    edges_above(&rotating(), &shared(0));
    edges_above(&rotating(), &EventFd::new(0).unwrap());
}
