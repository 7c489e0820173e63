//! Sets, `poll` and `select` of one process report the changes that another process makes.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use upoll::{Errno, EventFd, EventFdFlags, Events, PollFd};

use crate::processes::{Child, about_to_sleep, await_go, say, tests};
use crate::worlds::{Counter, Set, World, both};

tests![
    a_sleeper_of_any_kind_is_woken_by_another_process,
    a_sleeper_for_room_is_woken_by_another_process,
    a_raised_maximum_wakes_threads_that_poll_for_room,
    each_write_is_one_edge_in_every_process,
    poll_passes_over_changes_that_do_not_concern_it,
    any_sequence_in_two_processes_gives_what_the_kernel_gives,
    no_wake_is_lost_between_two_processes,
    a_poll_waits_for_whatever_comes_first,
];

const NONE: EventFdFlags = EventFdFlags::empty();

/// A way in which a process waits for a counter.
type Wait = fn(World, &Counter, Events) -> String;

fn by_set_with(world: World, counter: &Counter, events: Events) -> String {
    let set = world.set();
    set.add(counter, events);
    let first = set.wait(-1);
    format!("{first:?} {:?}", set.wait(0))
}

fn by_level(world: World, counter: &Counter, events: Events) -> String {
    by_set_with(world, counter, events)
}

fn by_edge(world: World, counter: &Counter, events: Events) -> String {
    by_set_with(world, counter, events | Events::ET)
}

fn by_oneshot(world: World, counter: &Counter, events: Events) -> String {
    by_set_with(world, counter, events | Events::ONESHOT)
}

fn by_nested_set(world: World, counter: &Counter, events: Events) -> String {
    let (outer, inner) = (world.set(), world.set());
    outer.nest(&inner, Events::IN);
    inner.add(counter, events);
    let first = outer.wait(-1);
    format!("{first:?} {:?} {:?}", inner.wait(0), outer.wait(0))
}

fn by_poll_of_a_set(world: World, counter: &Counter, events: Events) -> String {
    let set = world.set();
    set.add(counter, events);
    format!("{:?} {:?} {:?}", set.poll(-1), set.wait(0), set.poll(0))
}

fn by_poll(_: World, counter: &Counter, events: Events) -> String {
    format!("{:?}", counter.poll(events, -1))
}

fn by_select(_: World, counter: &Counter, events: Events) -> String {
    format!("{:?}", counter.select(events == Events::IN))
}

const WAYS: [Wait; 7] = [
    by_level,
    by_edge,
    by_oneshot,
    by_nested_set,
    by_poll_of_a_set,
    by_poll,
    by_select,
];

/// Waits for `counter` in each way in a child process until `change` has happened, and compares the
/// reports with the kernel's.
fn each_way(before: u64, events: Events, change: impl Fn(&Counter)) {
    for wait in WAYS {
        both(|world| {
            let counter = world.counter(0, NONE);
            if before > 0 {
                counter.write(before).unwrap();
            }
            let mut child = Child::new(|line| {
                about_to_sleep(line);
                let found = wait(world, &counter, events);
                say(line, &found);
            });
            child.until_asleep();
            change(&counter);
            let found = child.hear();
            assert_eq!(child.join(), Ok(0));
            found
        });
    }
}

fn a_sleeper_of_any_kind_is_woken_by_another_process() {
    each_way(0, Events::IN, |counter| counter.write(1).unwrap());
    // Through yet another process.
    each_way(0, Events::IN, |counter| {
        let writer = Child::new(|_| counter.write(1).unwrap());
        assert_eq!(writer.join(), Ok(0));
    });
}

fn a_sleeper_for_room_is_woken_by_another_process() {
    each_way(u64::MAX - 1, Events::OUT, |counter| {
        counter.read().unwrap();
    });
}

fn a_raised_maximum_wakes_threads_that_poll_for_room() {
    let counter = EventFd::shared(0, NONE).unwrap();
    counter.set_maximum(2).unwrap();
    counter.try_write(1).unwrap();
    let mut child = Child::new(|line| {
        let mut fds = [PollFd::new(&counter, Events::OUT)];
        about_to_sleep(line);
        assert_eq!(upoll::poll(&mut fds, None), Ok(1));
        let set = upoll::Epoll::new().unwrap();
        let interest = upoll::Event::new(Events::OUT | Events::ET, 0);
        set.add(&counter, interest).unwrap();
        let mut events = [interest; 2];
        assert_eq!(set.try_wait(&mut events), Ok(1));
        about_to_sleep(line);
        assert_eq!(set.wait(&mut events, None), Ok(1));
        assert_eq!(counter.maximum(), 9);
    });
    child.until_asleep();
    counter.set_maximum(8).unwrap();
    child.until_asleep();
    // Does not make the counter writable.
    counter.signal();
    counter.set_maximum(9).unwrap();
    assert_eq!(child.join(), Ok(0));
}

fn each_write_is_one_edge_in_every_process() {
    both(|world| {
        let counter = world.counter(0, NONE);
        let watch = |line: &mut _| {
            let set = world.set();
            set.add(&counter, Events::IN | Events::ET);
            say(line, "ready");
            for _ in 0..5 {
                await_go(line);
                say(line, &format!("{:?} {:?}", set.wait(1_000), set.wait(0)));
            }
        };
        let mut children = [Child::new(watch), Child::new(watch)];
        let mut heard = Vec::new();
        for child in &mut children {
            child.hear();
        }
        for value in [1, 1, 0, 3, 0] {
            counter.write(value).unwrap();
            if value == 3 {
                counter.read().unwrap();
                counter.write(1).unwrap();
            }
            for child in &mut children {
                child.go();
                heard.push(child.hear());
            }
        }
        for child in children {
            assert_eq!(child.join(), Ok(0));
        }
        heard
    });
}

fn poll_passes_over_changes_that_do_not_concern_it() {
    both(|world| {
        let counter = world.counter(0, NONE);
        counter.write(u64::MAX - 1).unwrap();
        let mut child = Child::new(|line| {
            about_to_sleep(line);
            say(line, &format!("{:?}", counter.poll(Events::OUT, -1)));
        });
        child.until_asleep();
        counter.write(0).unwrap();
        child.until_state_is_sleep();
        counter.read().unwrap();
        let found = child.hear();
        assert_eq!(child.join(), Ok(0));
        found
    });
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Write(u64),
    Read,
    Wait,
    WaitAbove,
    Modify(Events),
    Poll(Events),
}

/// The process that acts (true: the parent), and its action.
type Step = (bool, Act);

fn step() -> impl Strategy<Value = Step> {
    let how = prop_oneof![
        Just(Events::empty()),
        Just(Events::ET),
        Just(Events::ONESHOT)
    ];
    let what = prop_oneof![
        Just(Events::IN),
        Just(Events::OUT),
        Just(Events::IN | Events::OUT)
    ];
    let act = prop_oneof![
        4 => prop_oneof![0..3_u64, Just(u64::MAX - 1)].prop_map(Act::Write),
        3 => Just(Act::Read),
        5 => Just(Act::Wait),
        2 => Just(Act::WaitAbove),
        2 => (what.clone(), how).prop_map(|(what, how)| Act::Modify(what | how)),
        1 => what.prop_map(Act::Poll),
    ];
    (any::<bool>(), act)
}

/// The objects of one process: the counter, a set of its own that watches it, and a set above that.
struct View<'a> {
    counter: &'a Counter,
    set: Set,
    above: Set,
}

impl<'a> View<'a> {
    fn new(world: World, counter: &'a Counter) -> Self {
        let (set, above) = (world.set(), world.set());
        above.nest(&set, Events::IN);
        set.add(counter, Events::IN | Events::ET);
        View {
            counter,
            set,
            above,
        }
    }

    fn act(&self, act: Act) -> String {
        match act {
            Act::Write(value) => format!("{:?}", self.counter.write(value)),
            Act::Read => format!("{:?}", self.counter.read()),
            Act::Wait => format!("{:?}", self.set.wait(0)),
            Act::WaitAbove => format!("{:?}", self.above.wait(0)),
            Act::Modify(events) => {
                self.set.modify(self.counter, events);
                String::new()
            }
            Act::Poll(events) => format!("{:?}", self.counter.poll(events, 0)),
        }
    }
}

/// Runs the steps in two processes, in turn. Returns their results.
fn in_turn(world: World, flags: EventFdFlags, steps: &[Step]) -> Vec<String> {
    let counter = world.counter(0, flags);
    let mut child = Child::new(|line| {
        let view = View::new(world, &counter);
        say(line, "ready");
        for &(_, act) in steps.iter().filter(|(here, _)| !here) {
            await_go(line);
            say(line, &view.act(act));
        }
    });
    child.hear();
    let view = View::new(world, &counter);
    let seen = steps.iter().map(|&(here, act)| {
        if here {
            view.act(act)
        } else {
            child.go();
            child.hear()
        }
    });
    let seen = seen.collect();
    assert_eq!(child.join(), Ok(0));
    seen
}

fn any_sequence_in_two_processes_gives_what_the_kernel_gives() {
    let mut runner = TestRunner::new(Config {
        cases: 400,
        failure_persistence: None,
        ..Config::default()
    });
    let sequences = (any::<bool>(), prop::collection::vec(step(), 1..50));
    let result = runner.run(&sequences, |(semaphore, steps)| {
        let mut flags = EventFdFlags::NONBLOCK;
        flags.set(EventFdFlags::SEMAPHORE, semaphore);
        let ours = in_turn(World::Ours, flags, &steps);
        let kernel = in_turn(World::Kernel, flags, &steps);
        prop_assert_eq!(ours, kernel);
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
    // Not every sequence consists of failing calls.
    let step = |act| (true, act);
    let seen = in_turn(
        World::Ours,
        EventFdFlags::NONBLOCK,
        &[step(Act::Write(2)), (false, Act::Read), step(Act::Read)],
    );
    assert_eq!(
        seen[1..],
        [
            "Ok(2)".to_owned(),
            format!("{:?}", Err::<u64, _>(Errno::AGAIN))
        ]
    );
}

/// Two processes wake each other alternately. Each wakeup is the only event that the other process
/// waits for.
fn no_wake_is_lost_between_two_processes() {
    const ROUNDS: usize = 2_000;
    type Await<'a> = Box<dyn FnMut() + 'a>;
    let ways: [for<'a> fn(&'a EventFd) -> Await<'a>; 6] = [
        |counter| {
            Box::new(|| {
                counter.read().unwrap();
            })
        },
        |counter| {
            let set = upoll::Epoll::new().unwrap();
            let interest = upoll::Event::new(Events::IN, 0);
            set.add(counter, interest).unwrap();
            Box::new(move || {
                while set.wait(&mut [interest], None) != Ok(1) || counter.try_read().is_err() {}
            })
        },
        |counter| {
            let set = upoll::Epoll::new().unwrap();
            let interest = upoll::Event::new(Events::IN | Events::ET, 0);
            set.add(counter, interest).unwrap();
            Box::new(move || {
                assert_eq!(set.wait(&mut [interest], None), Ok(1));
                counter.try_read().unwrap();
            })
        },
        |counter| {
            let set = upoll::Epoll::new().unwrap();
            let interest = upoll::Event::new(Events::IN | Events::ONESHOT, 0);
            set.add(counter, interest).unwrap();
            Box::new(move || {
                assert_eq!(set.wait(&mut [interest], None), Ok(1));
                counter.try_read().unwrap();
                set.modify(counter, interest).unwrap();
            })
        },
        |counter| {
            let (outer, inner) = (upoll::Epoll::new().unwrap(), upoll::Epoll::new().unwrap());
            let interest = upoll::Event::new(Events::IN, 0);
            inner.add(counter, interest).unwrap();
            outer.add(&inner, interest).unwrap();
            Box::new(move || {
                let _stays_open = &inner;
                while outer.wait(&mut [interest], None) != Ok(1) || counter.try_read().is_err() {}
            })
        },
        |counter| {
            Box::new(|| {
                let mut fds = [PollFd::new(counter, Events::IN)];
                assert_eq!(upoll::poll(&mut fds, None), Ok(1));
                counter.try_read().unwrap();
            })
        },
    ];
    for way in ways {
        let (there, back) = (
            EventFd::shared(0, NONE).unwrap(),
            EventFd::shared(0, NONE).unwrap(),
        );
        let child = Child::new(|_| {
            let mut wait = way(&there);
            for _ in 0..ROUNDS {
                wait();
                back.try_write(1).unwrap();
            }
        });
        let mut wait = way(&back);
        for _ in 0..ROUNDS {
            there.try_write(1).unwrap();
            wait();
        }
        assert_eq!(child.join(), Ok(0));
    }
}

fn a_poll_waits_for_whatever_comes_first() {
    use std::io::Write;
    let (pipe, mut feed) = std::io::pipe().unwrap();
    let (shared, own) = (EventFd::shared(0, NONE).unwrap(), EventFd::new(0).unwrap());
    let wait = || {
        let mut fds = [
            PollFd::new(&pipe, Events::IN),
            PollFd::new(&shared, Events::IN),
            PollFd::new(&own, Events::IN),
            PollFd::new(&shared, Events::IN),
        ];
        let ready = upoll::poll(&mut fds, None);
        (ready, fds.map(|fd| fd.revents()))
    };
    let (yes, no) = (Events::IN, Events::empty());
    let mut child = Child::new(|line| {
        about_to_sleep(line);
        assert_eq!(wait(), (Ok(2), [no, yes, no, yes]));
        shared.try_read().unwrap();
        about_to_sleep(line);
        assert_eq!(wait(), (Ok(1), [yes, no, no, no]));
    });
    child.until_asleep();
    shared.try_write(1).unwrap();
    child.until_asleep();
    feed.write_all(b"x").unwrap();
    assert_eq!(child.join(), Ok(0));
}
