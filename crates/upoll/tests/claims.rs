//! Claims of a rotating set: the next event reaches a worker that checks for it, whatever happens
//! to the worker that was chosen.
#![cfg(not(upoll_loom))]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use upoll::{CreateFlags, Epoll, Event, EventFd, EventFdFlags, Events, Watch};

const IN: Event = Event::new(Events::IN, 0);

fn harvest(set: &Epoll) -> usize {
    set.try_wait(&mut [Event::default(); 8]).unwrap()
}

/// Returns a set that watches `inner`.
fn above(inner: &Epoll) -> Epoll {
    let set = Epoll::new().unwrap();
    set.add(inner, IN).unwrap();
    set
}

/// Makes a waiter for `set`.
fn awaited(set: &Epoll) -> Watch {
    Watch::new(set, Events::IN, |_| {}).unwrap().0
}

/// Returns a rotating set with a semaphore as its source.
fn rotating() -> (EventFd, Epoll) {
    let source = EventFd::with_flags(0, EventFdFlags::SEMAPHORE).unwrap();
    let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
    rotating.add(&source, IN).unwrap();
    (source, rotating)
}

#[test]
fn a_worker_found_idle_from_above_has_no_claim_on_the_next_event() {
    let (source, rotating) = rotating();
    let [first, second] = [above(&rotating), above(&rotating)];
    let manager = above(&first);
    let awaiting = awaited(&manager);
    // The first worker is chosen, because a set above it is awaited. The main thread takes its
    // event.
    source.try_write(1).unwrap();
    source.try_read().unwrap();
    assert_eq!(harvest(&manager), 0);
    drop((awaiting, manager));
    // Nobody waits for this event: the first worker to check gets it.
    source.try_write(1).unwrap();
    assert_eq!(harvest(&second), 1);
}

#[test]
fn a_worker_whose_watch_wants_no_such_event_is_not_chosen() {
    let (source, rotating) = rotating();
    let [first, second] = [above(&rotating), above(&rotating)];
    // A set is never writable, so nobody would take the event that this worker was chosen for.
    let (_deaf, _) = Watch::new(&first, Events::OUT, |_| {}).unwrap();
    let told = Arc::new(AtomicUsize::new(0));
    let count = told.clone();
    let (_watch, _) = Watch::new(&second, Events::IN, move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    })
    .unwrap();
    source.try_write(1).unwrap();
    assert_eq!(told.load(Ordering::SeqCst), 1);
}

#[test]
fn a_chosen_worker_without_interest_in_the_event_forwards_it() {
    let (source, rotating) = rotating();
    let [first, second] = [above(&rotating), above(&rotating)];
    let _awaiting = [awaited(&first), awaited(&second)];
    source.try_write(1).unwrap();
    first.modify(&rotating, Event::default()).unwrap();
    assert_eq!(harvest(&first), 0);
    assert_eq!(harvest(&second), 1);
}

#[test]
fn a_worker_that_used_up_its_recheck_flag_is_notified_of_the_next_event() {
    let (source, rotating) = rotating();
    let worker = above(&rotating);
    // Nobody waits: the worker's recheck flag is set.
    source.try_write(1).unwrap();
    let told = Arc::new(AtomicUsize::new(0));
    let count = told.clone();
    let (_watch, ready) = Watch::new(&worker, Events::IN, move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    })
    .unwrap();
    assert!(!ready.is_empty());
    assert_eq!(harvest(&worker), 1);
    assert_eq!(source.try_read(), Ok(1));
    // From here on the worker waits, through its callback.
    source.try_write(1).unwrap();
    assert_eq!(told.load(Ordering::Relaxed), 1);
}

#[test]
fn a_worker_that_leaves_after_its_event_forwards_the_rest() {
    let (source, rotating) = rotating();
    source.try_write(3).unwrap();
    let [first, second] = [above(&rotating), above(&rotating)];
    assert_eq!(harvest(&first), 1);
    assert_eq!(source.try_read(), Ok(1));
    // The second worker is next in line.
    assert_eq!(harvest(&second), 1);
    let awaiting_second = awaited(&second);
    assert_eq!(harvest(&first), 0);
    let told = Arc::new(AtomicUsize::new(0));
    let count = told.clone();
    let (_awaiting_first, ready) = Watch::new(&first, Events::IN, move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    })
    .unwrap();
    assert!(ready.is_empty());
    assert_eq!(harvest(&second), 1);
    assert_eq!(source.try_read(), Ok(1));
    assert_eq!(told.load(Ordering::Relaxed), 0);
    // Its claim is gone, but no other worker will poll the source again.
    drop((awaiting_second, second));
    assert_eq!(told.load(Ordering::Relaxed), 1);
    assert_eq!(harvest(&first), 1);
}
