//! Calls return even if objects and sets refer to each other in circles, or the results of an
//! object's `poll` are inconsistent.
#![cfg(all(feature = "std", not(upoll_loom)))]

mod returns;

use std::future::Future;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use upoll::{
    CreateFlags, Epoll, Errno, Event, EventFd, Events, File, PollContext, PollFd, PollTable,
    Pollable, Readiness, WaitQueue,
};

use returns::returns;

const IN: Event = Event::new(Events::IN, 0);

fn harvest(set: &Epoll) -> usize {
    set.try_wait(&mut [Event::default(); 8]).unwrap()
}

/// An object whose `poll` returns another result in each call.
#[derive(Default)]
struct Alternating {
    queue: WaitQueue,
    asked: AtomicUsize,
}

impl Pollable for Alternating {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        match self.asked.fetch_add(1, Ordering::Relaxed) % 2 {
            0 => Events::IN,
            _ => Events::empty(),
        }
    }
}

#[test]
fn calls_return_though_an_objects_answer_alternates() {
    for interest in [
        Events::IN,
        Events::IN | Events::ET,
        Events::IN | Events::EXCLUSIVE,
    ] {
        for first in 0..2 {
            returns(move || {
                let file = File::new(Alternating::default());
                let [outer, set] = [(); 2].map(|()| Epoll::new().unwrap());
                let watched = set.as_file_ref();
                outer.add(&watched, IN).unwrap();
                set.add(&file, Event::new(interest, 0)).unwrap();
                for round in 0..8 {
                    file.queue.wake(Events::IN);
                    file.asked.store(first + round, Ordering::Relaxed);
                    let limit = Duration::from_millis(1);
                    match round % 4 {
                        0 => assert!(harvest(&set) <= 1),
                        1 => assert!(harvest(&outer) <= 1),
                        2 => assert!(set.wait(&mut [Event::default(); 2], limit).unwrap() <= 1),
                        _ => {
                            let mut fds = [PollFd::new(&set, Events::IN)];
                            assert!(upoll::poll(&mut fds, limit).unwrap() <= 1);
                            let mut context = PollContext::new();
                            assert!(context.poll(&mut fds, limit).unwrap() <= 1);
                        }
                    }
                }
                assert!(!set.is_empty());
            });
        }
    }
}

/// An object that returns the readiness of a set. It polls that set with the caller's table or with
/// a table of its own.
struct Forwarding {
    set: OnceLock<File>,
    with_table: bool,
}

impl Forwarding {
    fn new(with_table: bool) -> File<Self> {
        File::new(Forwarding {
            set: OnceLock::new(),
            with_table,
        })
    }

    fn forwards_to(&self, set: &Epoll) {
        assert!(self.set.set(set.as_file_ref().to_file()).is_ok());
    }
}

impl Pollable for Forwarding {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        let Some(set) = self.set.get() else {
            return Events::empty();
        };
        if self.with_table {
            set.poll(table)
        } else {
            set.as_file_ref().ready()
        }
    }
}

/// Checks that every operation on a set that leads to itself returns, whichever way the circle
/// goes.
fn use_all(sets: &[Epoll], counter: &EventFd) {
    for _ in 0..3 {
        counter.try_write(1).unwrap();
        for set in sets {
            harvest(set);
            let limit = Duration::from_millis(1);
            set.wait(&mut [Event::default(); 2], limit).unwrap();
            let mut fds = [PollFd::new(set, Events::IN)];
            upoll::poll(&mut fds, limit).unwrap();
            let _ = set.modify(counter, IN);
        }
        counter.try_read().unwrap();
        for set in sets {
            harvest(set);
        }
    }
}

#[test]
fn an_object_that_answers_as_the_set_does_that_watches_it_crashes_nothing() {
    for with_table in [false, true] {
        for flags in [CreateFlags::empty(), CreateFlags::ROTATE] {
            returns(move || {
                let counter = EventFd::new(0).unwrap();
                let set = Epoll::create(flags).unwrap();
                let object = Forwarding::new(with_table);
                object.forwards_to(&set);
                let added = set.add(&object, IN);
                assert!(matches!(added, Ok(()) | Err(Errno::LOOP)), "{added:?}");
                if flags.is_empty() {
                    set.add(&counter, IN).unwrap();
                }
                use_all(&[set], &counter);
            });
        }
    }
}

#[test]
fn objects_that_close_a_circle_of_sets_crash_nothing() {
    for with_table in [false, true] {
        for late in [false, true] {
            returns(move || {
                let counter = EventFd::new(0).unwrap();
                let sets = [(); 4].map(|()| Epoll::new().unwrap());
                let objects = [(); 4].map(|()| Forwarding::new(with_table));
                for at in 0..4 {
                    if !late {
                        objects[at].forwards_to(&sets[(at + 1) % 4]);
                    }
                    let added = sets[at].add(&objects[at], IN);
                    assert!(matches!(added, Ok(()) | Err(Errno::LOOP)), "{added:?}");
                }
                sets[0].add(&counter, IN).unwrap();
                if late {
                    for at in 0..4 {
                        objects[at].forwards_to(&sets[(at + 1) % 4]);
                        let _ = sets[at].modify(&objects[at], IN);
                    }
                }
                use_all(&sets, &counter);
            });
        }
    }
}

#[test]
fn a_chain_of_sets_and_objects_however_long_crashes_nothing() {
    const LONG: usize = 5000;

    for with_table in [false, true] {
        returns(move || {
            let counter = EventFd::new(0).unwrap();
            let sets: Vec<_> = (0..LONG).map(|_| Epoll::new().unwrap()).collect();
            sets[0].add(&counter, IN).unwrap();
            let objects = sets.windows(2).map(|sets| {
                let object = Forwarding::new(with_table);
                object.forwards_to(&sets[0]);
                sets[1].add(&object, IN).unwrap();
                object
            });
            let objects: Vec<_> = objects.collect();
            use_all(
                &[
                    sets[0].clone(),
                    sets[LONG / 2].clone(),
                    sets[LONG - 1].clone(),
                ],
                &counter,
            );
            drop((objects, sets));
        });
    }
}

/// Without a circle a set may be wrapped in an object.
#[test]
fn an_object_that_answers_as_another_set_does_is_ready_when_that_is() {
    returns(|| {
        let counter = EventFd::new(0).unwrap();
        let [outer, set] = [(); 2].map(|()| Epoll::new().unwrap());
        set.add(&counter, IN).unwrap();
        let object = Forwarding::new(true);
        object.forwards_to(&set);
        outer.add(&object, IN).unwrap();
        for _ in 0..3 {
            assert_eq!(harvest(&outer), 0);
            counter.try_write(1).unwrap();
            assert_eq!(harvest(&outer), 1);
            counter.try_read().unwrap();
        }
    });
}

/// The wake of a task that leaves is handed on to an item of the set that it comes from.
#[test]
fn a_wake_that_is_handed_on_in_a_circle_ends() {
    returns(|| {
        let counter = EventFd::new(0).unwrap();
        let set = Epoll::new().unwrap();
        set.add(&counter, IN).unwrap();
        let object = Forwarding::new(true);
        object.forwards_to(&set);
        let mut task = Box::pin(Readiness::exclusive(&object, Events::IN).unwrap());
        let mut context = Context::from_waker(Waker::noop());
        assert!(task.as_mut().poll(&mut context).is_pending());
        set.add(&object, Event::new(Events::IN | Events::EXCLUSIVE, 0))
            .unwrap();
        counter.try_write(1).unwrap();
        drop(task);
        assert!(harvest(&set) >= 1);
    });
}
