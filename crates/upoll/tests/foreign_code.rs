//! Code of others that runs inside this crate's calls: objects whose `poll` or destructor panics,
//! callbacks that panic, wakers that drop what they woke. None of it leaves a dangling waiter, an
//! unlocked door or a lost event behind. Worth running under Miri, with tree borrows.
#![cfg(not(loom))]

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

use upoll::{
    CreateFlags, Epoll, Event, EventFd, Events, File, PollTable, Pollable, Readiness, Source,
    WaitQueue, Watch,
};

const IN: Event = Event::new(Events::IN, 0);

fn harvest(set: &Epoll) -> usize {
    set.harvest(&mut [Event::default(); 8]).unwrap()
}

fn panics(body: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(body)).is_err()
}

/// Two queues, and a `poll` that panics on demand after it has registered both.
#[derive(Default)]
struct Fragile {
    first: WaitQueue,
    second: WaitQueue,
    breaks: AtomicBool,
}

impl Pollable for Fragile {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.first);
        table.register(&self.second);
        assert!(!self.breaks.load(Ordering::Relaxed), "poll breaks");
        Events::IN
    }
}

#[test]
fn a_poll_that_panics_in_add_leaves_no_waiter_behind() {
    let file = File::new(Fragile::default());
    let set = Epoll::new().unwrap();
    file.breaks.store(true, Ordering::Relaxed);
    assert!(panics(|| set.add(&file, IN).unwrap()));
    file.breaks.store(false, Ordering::Relaxed);
    assert_eq!(file.first.wake(Events::IN), 0);
    assert_eq!(file.second.wake(Events::IN), 0);
    assert!(set.is_empty());
    // As if it had not been tried.
    set.add(&file, IN).unwrap();
    assert_eq!(harvest(&set), 1);
    drop(file);
    assert!(set.is_empty());
}

#[test]
fn a_callback_that_panics_when_a_set_closes_leaves_no_waiter_behind() {
    let counter = EventFd::new(0).unwrap();
    let set = Epoll::new().unwrap();
    set.add(&counter, IN).unwrap();
    let (watch, _) = Watch::new(set.as_file_ref(), Events::IN, |_| {
        panic!("a callback breaks")
    });
    assert!(panics(|| drop(set)));
    drop(watch);
    counter.try_write(1).unwrap();
    drop(counter);
}

/// A worker set that holds the turn of a rotating set over `source`; the rotating set, and who waits
/// for the worker.
fn chosen_worker(source: &impl Source, queue: &WaitQueue) -> (Epoll, (Epoll, Watch)) {
    let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
    rotating.add(source, IN).unwrap();
    assert_eq!(harvest(&rotating), 1);
    let worker = Epoll::new().unwrap();
    worker.add(&rotating, IN).unwrap();
    let (awaiting, _) = Watch::new(worker.as_file_ref(), Events::IN, |_| {});
    queue.wake(Events::IN);
    // The worker is chosen, and has not looked.
    (worker, (rotating, awaiting))
}

#[test]
fn a_poll_that_panics_when_a_set_closes_leaves_no_waiter_behind() {
    let source = File::new(Fragile::default());
    let counter = EventFd::new(0).unwrap();
    let (worker, _others) = chosen_worker(&source, &source.first);
    worker.add(&counter, IN).unwrap();
    source.breaks.store(true, Ordering::Relaxed);
    // The worker hands its turn on, for which the source is asked whether it is still ready.
    assert!(panics(|| drop(worker)));
    counter.try_write(1).unwrap();
    drop(counter);
}

/// When armed, a look at it adds two counters to a set.
#[derive(Default)]
struct Meddler {
    queue: WaitQueue,
    adds: OnceLock<(Epoll, [EventFd; 2])>,
    armed: AtomicBool,
}

impl Pollable for Meddler {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        if self.armed.swap(false, Ordering::Relaxed) {
            let (set, counters) = self.adds.get().unwrap();
            for counter in counters {
                set.add(counter, IN).unwrap();
            }
        }
        Events::IN
    }
}

#[test]
fn a_release_of_an_open_set_that_is_added_to_meanwhile_leaves_no_waiter_behind() {
    let source = File::new(Meddler::default());
    let (worker, others) = chosen_worker(&source, &source.queue);
    let counters = [EventFd::new(0).unwrap(), EventFd::new(0).unwrap()];
    source.adds.set((worker.clone(), counters.clone())).unwrap();
    source.armed.store(true, Ordering::Relaxed);
    worker.as_file_ref().to_file().release();
    // Whatever is in the set still, and only that, is reported.
    for counter in &counters {
        counter.try_write(1).unwrap();
    }
    assert_eq!(harvest(&worker), worker.len());
    drop((counters, others));
    drop(source);
}

/// A task whose wakers own it: whoever drops the last one drops the future.
struct Task {
    ready: Mutex<Option<Pin<Box<Readiness>>>>,
    /// Written when the task ends.
    farewell: Option<EventFd>,
}

impl Wake for Task {
    /// An executor that has shut down: it drops the task.
    fn wake(self: Arc<Self>) {}
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(counter) = &self.farewell {
            counter.try_write(1).unwrap();
        }
    }
}

fn task(counter: &EventFd, farewell: Option<EventFd>) -> Arc<Task> {
    let ready = Readiness::new(counter.as_file_ref(), Events::IN);
    Arc::new(Task {
        ready: Mutex::new(Some(Box::pin(ready))),
        farewell,
    })
}

fn poll_for(ready: &Mutex<Option<Pin<Box<Readiness>>>>, task: &Arc<Task>) -> Poll<Events> {
    let waker = Waker::from(task.clone());
    let mut ready = ready.lock().unwrap();
    let ready = ready.as_mut().unwrap().as_mut();
    ready.poll(&mut Context::from_waker(&waker))
}

#[test]
fn a_waker_may_end_its_task_when_it_is_called() {
    let counter = EventFd::new(0).unwrap();
    // More tasks than one, as one wake calls them all.
    let tasks: Vec<_> = (0..8).map(|_| task(&counter, None)).collect();
    for task in tasks {
        assert_eq!(poll_for(&task.ready, &task), Poll::Pending);
    }
    counter.try_write(1).unwrap();
    assert_eq!(counter.try_read(), Ok(1));
}

#[test]
fn a_waker_may_write_to_the_file_when_it_is_replaced() {
    let counter = EventFd::new(0).unwrap();
    let ready = Mutex::new(Some(Box::pin(Readiness::new(
        counter.as_file_ref(),
        Events::IN,
    ))));
    let idle = EventFd::new(0).unwrap();
    let old = task(&idle, Some(counter.clone()));
    assert_eq!(poll_for(&ready, &old), Poll::Pending);
    drop(old);
    let new = task(&idle, None);
    // The old waker goes, and with it its task, which writes.
    assert_eq!(poll_for(&ready, &new), Poll::Ready(Events::IN));
}

#[test]
fn a_waker_may_close_what_the_set_watches() {
    let counter = EventFd::new(0).unwrap();
    let set = Epoll::new().unwrap();
    let doomed = EventFd::new(0).unwrap();
    set.add(&doomed, IN).unwrap();
    let mut ready = Box::pin(Readiness::new(set.as_file_ref(), Events::IN));
    let task = Arc::new(Closer(Mutex::new(Some(doomed))));
    let waker = Waker::from(task);
    let mut context = Context::from_waker(&waker);
    assert_eq!(ready.as_mut().poll(&mut context), Poll::Pending);
    counter.try_write(1).unwrap();
    set.add(&counter, IN).unwrap();
    assert_eq!(set.len(), 1);
}

/// Closes its counter when it is woken.
struct Closer(Mutex<Option<EventFd>>);

impl Wake for Closer {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
    }
}
