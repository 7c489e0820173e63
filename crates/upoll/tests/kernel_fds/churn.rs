//! Sets that several threads build, change and take apart while others wait in them. There is no
//! deadlock and no use after free, and the sets work at the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use upoll::{CreateFlags, Epoll, Event, EventFd};

use super::host::alone;
use crate::host::{LONG, data, edge, eventfd, eventfd_read, eventfd_write, input, try_wait, wait};

const ROUNDS: usize = 400;

/// Threads that repeat an action until the test is over.
struct Crew {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Crew {
    fn new() -> Self {
        Crew {
            over: Arc::new(AtomicBool::new(false)),
            threads: Vec::new(),
        }
    }

    /// Repeats `act` until the end.
    fn always(&mut self, mut act: impl FnMut() + Send + 'static) {
        let over = self.over.clone();
        self.threads.push(thread::spawn(move || {
            while !over.load(Ordering::SeqCst) {
                act();
            }
        }));
    }

    fn end(self) {
        self.over.store(true, Ordering::SeqCst);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

const BRIEFLY: Duration = Duration::from_micros(300);

#[test]
fn sets_change_while_threads_wait_above_and_below() {
    let _alone = alone();
    let [top, middle, bottom] = [(); 3].map(|()| Epoll::new().unwrap());
    let (low, counter) = (Arc::new(eventfd()), EventFd::new(0).unwrap());
    let mut crew = Crew::new();
    for set in [&top, &middle, &bottom] {
        let set = set.clone();
        crew.always(move || drop(wait(&set, 2, BRIEFLY)));
    }
    crew.always({
        let (low, counter) = (low.clone(), counter.clone());
        move || {
            eventfd_write(&low);
            counter.try_write(1).unwrap();
            eventfd_read(&low);
            counter.try_read().unwrap();
        }
    });
    crew.always({
        let (top, middle) = (top.clone(), middle.clone());
        move || {
            top.add(&middle, edge(1)).unwrap();
            top.modify(&middle, input(1)).unwrap();
            top.delete(&middle).unwrap();
        }
    });
    crew.always({
        let (middle, low) = (middle.clone(), low.clone());
        move || {
            // A set is nested between the others and dropped again.
            let passing = Epoll::new().unwrap();
            middle.add(&passing, input(2)).unwrap();
            passing.add(&*low, input(3)).unwrap();
            passing.add(&low.try_clone().unwrap(), input(3)).unwrap();
            try_wait(&middle, 4);
        }
    });
    for round in 0..ROUNDS {
        middle.add(&bottom, input(4)).unwrap();
        bottom.add(&*low, input(5)).unwrap();
        bottom.add(&counter, edge(6)).unwrap();
        try_wait(&middle, 1 + round % 3);
        middle.delete(&bottom).unwrap();
        bottom.delete(&*low).unwrap();
        bottom.delete(&counter).unwrap();
    }
    crew.end();
    top.add(&middle, input(1)).unwrap();
    middle.add(&bottom, input(4)).unwrap();
    bottom.add(&*low, input(5)).unwrap();
    assert!(wait(&top, 4, Duration::from_millis(1)).is_empty());
    eventfd_write(&low);
    for (set, expected) in [(&top, 1), (&middle, 4), (&bottom, 5)] {
        assert_eq!(data(&wait(set, 4, LONG)), [expected]);
    }
}

#[test]
fn rotating_sets_and_their_sources_change_while_workers_wait() {
    let _alone = alone();
    let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
    let source = Arc::new(eventfd());
    let mut crew = Crew::new();
    for direct in [false, true] {
        let rotating = rotating.clone();
        let worker = Epoll::new().unwrap();
        worker.add(&rotating, input(1)).unwrap();
        crew.always(move || {
            let set = if direct { &rotating } else { &worker };
            wait(set, 2, BRIEFLY);
        });
    }
    crew.always({
        let rotating = rotating.clone();
        move || {
            let worker = Epoll::new().unwrap();
            worker.add(&rotating, edge(2)).unwrap();
            worker
                .add(&rotating.as_file_ref().with_fd(1), input(3))
                .unwrap();
            wait(&worker, 1, BRIEFLY);
        }
    });
    crew.always({
        let source = source.clone();
        move || {
            eventfd_write(&source);
            eventfd_read(&source);
        }
    });
    crew.always({
        let rotating = rotating.clone();
        move || {
            // The worker's rotating set is added and deleted as well.
            let worker = Epoll::new().unwrap();
            worker.add(&rotating, input(4)).unwrap();
            worker.delete(&rotating).unwrap();
        }
    });
    for round in 0..ROUNDS {
        rotating.add(&*source, input(5)).unwrap();
        rotating
            .modify(
                &*source,
                if round % 2 == 0 {
                    edge(6)
                } else {
                    Event::default()
                },
            )
            .unwrap();
        rotating.delete(&*source).unwrap();
        // A source that is closed instead of deleted.
        let passing = eventfd();
        eventfd_write(&passing);
        rotating.add(&passing, input(7)).unwrap();
        drop(passing);
    }
    crew.end();
    rotating.add(&*source, input(8)).unwrap();
    let worker = Epoll::new().unwrap();
    worker.add(&rotating, input(9)).unwrap();
    assert!(wait(&worker, 1, Duration::from_millis(1)).is_empty());
    eventfd_write(&source);
    assert_eq!(data(&wait(&worker, 1, LONG)), [9]);
    assert_eq!(data(&try_wait(&rotating, 1)), [8]);
}
