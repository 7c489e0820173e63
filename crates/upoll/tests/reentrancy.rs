//! Wakers and callbacks run with no lock held, on every path of a wakeup. Calls return even if
//! callbacks refer to each other in circles. All but one of the tests also run without `std`.
#![cfg(not(upoll_loom))]

mod returns;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use upoll::{
    Epoll, Event, EventFd, Events, File, PollTable, Pollable, Readiness, WaitQueue, Watch, pipe,
};

use returns::returns;

const IN: Event = Event::new(Events::IN, 0);

fn harvest(set: &Epoll) -> usize {
    set.try_wait(&mut [Event::default(); 8]).unwrap()
}

/// A waker that runs a closure.
struct Waking<F>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for Waking<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

fn waker(run: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(Waking(run)))
}

fn polled(ready: std::pin::Pin<&mut Readiness>, waker: &Waker) -> Poll<Events> {
    ready.poll(&mut Context::from_waker(waker))
}

#[test]
fn a_waker_on_a_set_in_the_middle_may_use_the_outermost_set() {
    returns(|| {
        let (reader, writer) = pipe().unwrap();
        let [outer, mid, bottom] = [(); 3].map(|()| Epoll::new().unwrap());
        bottom.add(&reader, IN).unwrap();
        mid.add(&bottom, IN).unwrap();
        outer.add(&mid, IN).unwrap();
        let woken = Arc::new(AtomicUsize::new(0));
        let (count, above) = (woken.clone(), outer.clone());
        let waker = waker(move || {
            count.fetch_add(harvest(&above), Ordering::Relaxed);
        });
        let mut ready = pin!(Readiness::new(&mid, Events::IN).unwrap());
        assert!(polled(ready.as_mut(), &waker).is_pending());
        writer.try_write(b"x").unwrap();
        assert_eq!(woken.load(Ordering::Relaxed), 1);
        assert!(polled(ready.as_mut(), &waker).is_ready());
    });
}

/// An object whose `poll` wakes the queue of another object, or runs another closure.
struct Active<F> {
    queue: WaitQueue,
    is_on: AtomicBool,
    on_poll: F,
}

impl<F: Fn() + Send + Sync + 'static> Active<F> {
    fn new(on_poll: F) -> File<Self> {
        File::new(Active {
            queue: WaitQueue::new(),
            is_on: AtomicBool::new(false),
            on_poll,
        })
    }
}

impl<F: Fn() + Send + Sync + 'static> Pollable for Active<F> {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        if self.is_on.load(Ordering::Relaxed) {
            (self.on_poll)();
        }
        Events::IN
    }
}

#[test]
fn a_waker_that_runs_during_a_poll_may_use_the_polling_set() {
    returns(|| {
        let counter = EventFd::new(0).unwrap();
        let set = Epoll::new().unwrap();
        let write = counter.clone();
        let object = Active::new(move || {
            write.try_write(1).unwrap();
        });
        set.add(&object, IN).unwrap();
        set.add(&EventFd::new(0).unwrap(), IN).unwrap();
        let woken = Arc::new(AtomicUsize::new(0));
        let (count, used) = (woken.clone(), set.clone());
        let waker = waker(move || {
            assert!(!used.is_empty());
            harvest(&used);
            count.fetch_add(1, Ordering::Relaxed);
        });
        let modified = Event::new(Events::IN | Events::ET, 0);
        type Call<'a> = &'a dyn Fn();
        let calls: [Call<'_>; 5] = [
            &|| assert_eq!(harvest(&set), 1),
            &|| set.modify(&object, IN).unwrap(),
            &|| {
                set.delete(&object).unwrap();
                set.add(&object, IN).unwrap();
            },
            &|| {
                let mut commands = [upoll::CtlCommand::modify(&object, modified)];
                assert_eq!(set.ctl_batch(&mut commands), Ok(1));
            },
            // The only arrival, whose report uses it up.
            &|| assert_eq!(harvest(&set), 1),
        ];
        for (at, call) in calls.into_iter().enumerate() {
            let mut ready = pin!(Readiness::new(&counter, Events::IN).unwrap());
            assert!(polled(ready.as_mut(), &waker).is_pending());
            object.is_on.store(true, Ordering::Relaxed);
            call();
            object.is_on.store(false, Ordering::Relaxed);
            assert_eq!(woken.swap(0, Ordering::Relaxed), 1, "call {at}");
            let _ = counter.try_read();
            set.modify(&object, if at == 3 { modified } else { IN })
                .unwrap();
        }
    });
}

#[test]
fn a_callback_may_use_what_it_watches_and_what_watches_that() {
    returns(|| {
        let counter = EventFd::new(0).unwrap();
        let [outer, set] = [(); 2].map(|()| Epoll::new().unwrap());
        set.add(&counter, IN).unwrap();
        outer.add(&set, IN).unwrap();
        let found = Arc::new(AtomicUsize::new(0));
        let (count, read) = (found.clone(), counter.clone());
        let sets = [outer.clone(), set.clone()];
        let (watch, _) = Watch::new(&counter, Events::IN, move |_| {
            for set in &sets {
                count.fetch_add(harvest(set), Ordering::Relaxed);
            }
            assert_eq!(read.try_read(), Ok(1));
            sets[1].delete(&read).unwrap();
            sets[1].add(&read, IN).unwrap();
        })
        .unwrap();
        for round in 1..=3 {
            counter.try_write(1).unwrap();
            assert_eq!(found.load(Ordering::Relaxed), 2 * round);
        }
        drop(watch);
    });
}

/// Without `std` this is not allowed: the callback would wait for its own end.
#[cfg(feature = "std")]
#[test]
fn a_callback_may_drop_its_own_watch() {
    returns(|| {
        let counter = EventFd::new(0).unwrap();
        let place = Arc::new(std::sync::Mutex::new(None));
        let (mine, calls) = (place.clone(), Arc::new(AtomicUsize::new(0)));
        let count = calls.clone();
        let (watch, _) = Watch::new(&counter, Events::IN, move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            drop(mine.lock().unwrap().take());
        })
        .unwrap();
        *place.lock().unwrap() = Some(watch);
        counter.try_write(1).unwrap();
        counter.try_write(1).unwrap();
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    });
}

/// Returns two counters, each with a callback that writes to the other one.
fn crossed() -> ([EventFd; 2], [Arc<AtomicUsize>; 2], [Watch; 2]) {
    let counters = [(); 2].map(|()| EventFd::new(0).unwrap());
    let calls = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let watches = [0, 1].map(|at| {
        let (other, count) = (counters[1 - at].clone(), calls[at].clone());
        let interest = Events::IN;
        Watch::new(&counters[at], interest, move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            other.try_write(1).unwrap();
        })
        .unwrap()
        .0
    });
    (counters, calls, watches)
}

#[test]
fn a_write_returns_though_two_callbacks_write_to_each_others_counters() {
    returns(|| {
        let (counters, calls, watches) = crossed();
        for counter in &counters {
            counter.try_write(1).unwrap();
        }
        assert!(calls.iter().all(|calls| calls.load(Ordering::Relaxed) > 1));
        drop(watches);
    });
}

/// Any of the calls may wake the task, also the last one.
#[test]
fn a_task_is_woken_even_at_the_end_of_such_a_circle() {
    returns(|| {
        let mut at = 0;
        loop {
            let counter = EventFd::new(0).unwrap();
            let is_woken = Arc::new(AtomicBool::new(false));
            let woken = is_woken.clone();
            let mut ready = pin!(Readiness::new(&counter, Events::IN).unwrap());
            let waker = waker(move || woken.store(true, Ordering::SeqCst));
            assert_eq!(polled(ready.as_mut(), &waker), Poll::Pending);

            let circle = EventFd::new(0).unwrap();
            let calls = Arc::new(AtomicUsize::new(0));
            let (again, written, count) = (circle.clone(), counter.clone(), calls.clone());
            let (_watch, _) = Watch::new(&circle, Events::IN, move |_| {
                if count.fetch_add(1, Ordering::SeqCst) == at {
                    written.try_write(1).unwrap();
                }
                again.try_write(1).unwrap();
            })
            .unwrap();
            circle.try_write(1).unwrap();
            if calls.load(Ordering::SeqCst) <= at {
                break;
            }
            assert!(is_woken.load(Ordering::SeqCst), "woken by call {at}");
            at += 1;
        }
        assert!(at > 1);
    });
}

#[test]
fn writes_of_two_threads_return_though_callbacks_write_to_each_others_counters() {
    returns(|| {
        let (counters, _, watches) = crossed();
        thread::scope(|scope| {
            for counter in &counters {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        counter.try_write(1).unwrap();
                    }
                });
            }
        });
        drop(watches);
    });
}

/// A finite exchange between callbacks runs to its end.
#[test]
fn callbacks_that_write_to_each_others_counters_for_a_while_miss_no_wake() {
    returns(|| {
        let counters = [(); 2].map(|()| EventFd::new(0).unwrap());
        let left = Arc::new(AtomicUsize::new(20));
        let _watches = [0, 1].map(|at| {
            let (mine, other) = (counters[at].clone(), counters[1 - at].clone());
            let left = left.clone();
            Watch::new(&counters[at], Events::IN, move |_| {
                let _ = mine.try_read();
                let less = |left: usize| left.checked_sub(1);
                if left
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
                    .is_ok()
                {
                    other.try_write(1).unwrap();
                }
            })
            .unwrap()
            .0
        });
        counters[0].try_write(1).unwrap();
        assert_eq!(left.load(Ordering::SeqCst), 0);
        assert!(counters.iter().all(|counter| counter.try_read().is_err()));
    });
}

/// After a watch has been dropped its callback is neither called nor running.
#[test]
fn no_callback_runs_once_its_watch_has_been_dropped() {
    returns(|| {
        let counter = EventFd::new(0).unwrap();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    counter.try_write(1).unwrap();
                }
            });
            for _ in 0..2000 {
                let is_dropped = Arc::new(AtomicBool::new(false));
                let dropped = is_dropped.clone();
                let (watch, _) = Watch::new(&counter, Events::IN, move |_| {
                    for _ in 0..20 {
                        assert!(!dropped.load(Ordering::SeqCst));
                        std::hint::spin_loop();
                    }
                })
                .unwrap();
                drop(watch);
                is_dropped.store(true, Ordering::SeqCst);
            }
            is_over.store(true, Ordering::Relaxed);
        });
    });
}
