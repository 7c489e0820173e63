//! Tasks: futures wait on objects while wakes choose them, and end.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use anyhow::{Result, ensure};
use fastrand::Rng;
use upoll::{CreateFlags, Epoll, EventFd, EventFdFlags, Events, Readiness};

use super::{EDGE, LEVEL, Maker, Race, lock, pause, race, write};

pub(super) const RACES: &[Maker] = &[two_tasks, many_tasks, dropped_tasks];

/// Wakes the thread that runs the task.
struct Unpark {
    thread: Thread,
    is_woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// Runs a future to its end on the calling thread.
pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    let unpark = Arc::new(Unpark {
        thread: thread::current(),
        is_woken: AtomicBool::new(false),
    });
    let waker = Waker::from(unpark.clone());
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        while !unpark.is_woken.swap(false, Ordering::SeqCst) {
            thread::park();
        }
    }
}

/// Two tasks take a unit each, which may come at once. They wait for the object, or take turns at a rotating set.
fn two_tasks(rng: &mut Rng) -> Result<Race> {
    let semaphore = EventFd::with_flags(0, EventFdFlags::SEMAPHORE)?;
    let rotating = Epoll::create(CreateFlags::ROTATE)?;
    rotating.add(&semaphore, LEVEL)?;
    let takes_turns = rng.bool();
    let name = format!("two tasks take a unit each, in turn: {takes_turns}");
    Ok(race(name, (semaphore, rotating))
        .call(|(semaphore, _), rng| {
            semaphore.try_write(1)?;
            write(semaphore, rng)
        })
        .calls(2, move |(semaphore, rotating), _| {
            let ready = match takes_turns {
                true => Readiness::exclusive(rotating, Events::IN)?,
                false => Readiness::exclusive(semaphore, Events::IN)?,
            };
            let mut ready = pin!(ready);
            block_on(async {
                loop {
                    ready.as_mut().await;
                    if semaphore.try_read().is_ok() {
                        return;
                    }
                }
            });
            Ok(1)
        })
        .settle(|(semaphore, _), _| {
            ensure!(semaphore.try_read().is_err(), "a unit more");
            Ok(())
        }))
}

/// Counts its calls.
#[derive(Default)]
pub(super) struct Count(pub(super) AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A task that waits, and how often it was woken.
type Task = (Pin<Box<Readiness>>, Arc<Count>);

fn waiting(readiness: Readiness) -> Task {
    let (mut readiness, woken) = (Box::pin(readiness), Arc::new(Count::default()));
    let waker = Waker::from(woken.clone());
    let _ = readiness.as_mut().poll(&mut Context::from_waker(&waker));
    (readiness, woken)
}

/// More sets than one write wakes the tasks of at a time.
const SETS: usize = 40;

/// Two events come into many sets, on each of which two tasks wait: both are woken.
fn many_tasks(_: &mut Rng) -> Result<Race> {
    type World = ([EventFd; 2], Vec<(Epoll, [Task; 2])>);
    let make = || -> Result<World> {
        let counters = [EventFd::new(0)?, EventFd::new(0)?];
        let set = |_| -> Result<_> {
            let set = Epoll::new()?;
            for counter in &counters {
                set.add(counter, EDGE)?;
            }
            let task = || Ok::<_, upoll::Errno>(waiting(Readiness::exclusive(&set, Events::IN)?));
            let tasks = [task()?, task()?];
            Ok((set, tasks))
        };
        let sets = (0..SETS).map(set).collect::<Result<_>>()?;
        Ok((counters, sets))
    };
    let write = |objects: &Mutex<World>, which: usize, rng: &mut Rng| {
        let counter = lock(objects).0[which].clone();
        write(&counter, rng)
    };
    let name = "two events for two tasks of many sets";
    Ok(race(name, Mutex::new(make()?))
        .call(move |objects, rng| write(objects, 0, rng))
        .call(move |objects, rng| write(objects, 1, rng))
        .settle(move |objects, _| {
            let mut objects = lock(objects);
            let tasks = objects.1.iter().flat_map(|(_, tasks)| tasks);
            let woken = |(_, woken): &&Task| woken.0.load(Ordering::SeqCst) > 0;
            let count = tasks.filter(woken).count();
            ensure!(count == 2 * SETS, "{count} of {} tasks woken", 2 * SETS);
            *objects = make()?;
            Ok(())
        }))
}

/// Tasks end while a write wakes them. Each may be woken or not, and none is used after its end.
fn dropped_tasks(_: &mut Rng) -> Result<Race> {
    let make = || -> Result<(EventFd, Vec<Task>)> {
        let counter = EventFd::new(0)?;
        let task = |_| Ok(waiting(Readiness::new(&counter, Events::IN)?));
        let tasks = (0..SETS).map(task).collect::<Result<_>>()?;
        Ok((counter, tasks))
    };
    Ok(race("tasks end beside a write", Mutex::new(make()?))
        .call(|objects, rng| {
            let counter = lock(objects).0.clone();
            write(&counter, rng)
        })
        .call(|objects, rng| {
            let tasks = std::mem::take(&mut lock(objects).1);
            pause(rng);
            drop(tasks);
            Ok(0)
        })
        .settle(move |objects, _| {
            *lock(objects) = make()?;
            Ok(())
        }))
}
