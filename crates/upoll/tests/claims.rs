//! Claims of a rotating set: whatever becomes of the worker that was chosen, the next event reaches
//! one that looks.
#![cfg(not(loom))]

use upoll::{CreateFlags, Epoll, Event, EventFd, EventFdFlags, Events};

const IN: Event = Event::new(Events::IN, 0);

fn harvest(set: &Epoll) -> usize {
    set.harvest(&mut [Event::default(); 8]).unwrap()
}

/// A set that watches `inner`.
fn above(inner: &Epoll) -> Epoll {
    let set = Epoll::new().unwrap();
    set.add(inner, IN).unwrap();
    set
}

/// A rotating set over a semaphore.
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
    // The first is chosen, as the manager watches it; but somebody else takes the event.
    source.try_write(1).unwrap();
    source.try_read().unwrap();
    assert_eq!(harvest(&manager), 0);
    drop(manager);
    // Nobody waits for this one: it goes to the first that comes.
    source.try_write(1).unwrap();
    assert_eq!(harvest(&second), 1);
}

#[test]
fn a_chosen_worker_that_wants_the_event_no_more_hands_it_on() {
    let (source, rotating) = rotating();
    let [first, second] = [above(&rotating), above(&rotating)];
    let _managers = [above(&first), above(&second)];
    source.try_write(1).unwrap();
    first.modify(&rotating, Event::default()).unwrap();
    assert_eq!(harvest(&first), 0);
    assert_eq!(harvest(&second), 1);
}
