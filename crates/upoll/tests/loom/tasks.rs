//! Tasks that wait by a future: its end, its wakers, and exclusive waits. A thread has room for one waker in models, so
//! of two tasks that it wakes it leaves one in its slot.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use loom::thread;
use upoll::{EventFd, EventFdFlags, Events, Readiness, Rule, Source};

use super::harness::holds_without;
use super::{Waiter, model, must_fail_without, writes};

pub(super) struct Note(AtomicBool);

impl Wake for Note {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Note {
    fn new() -> Arc<Self> {
        Arc::new(Note(AtomicBool::new(false)))
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

fn polled(ready: Pin<&mut Readiness>, waker: &Waker) -> Poll<Events> {
    ready.poll(&mut Context::from_waker(waker))
}

/// A future in memory that stays when the future ends, so that a mutant is not more wrong than it should be.
struct Place {
    memory: Box<Option<Readiness>>,
}

impl Place {
    fn new(ready: Readiness) -> Self {
        Place {
            memory: Box::new(Some(ready)),
        }
    }

    fn poll(&mut self, waker: &Waker) -> Poll<Events> {
        let ready = self.memory.as_mut().as_mut().unwrap();
        // SAFETY: the future stays in its box, until `end` drops it there.
        polled(unsafe { Pin::new_unchecked(ready) }, waker)
    }

    fn end(&mut self) {
        *self.memory = None;
    }
}

/// A future ends while a wakeup is on its way to it and to another task.
pub(super) fn ending_a_future_against_waking() {
    model(3, || {
        let counter = EventFd::new(0).unwrap();
        let mut places =
            [(); 2].map(|()| Place::new(Readiness::new(&counter, Events::IN).unwrap()));
        let note = Note::new();
        let other = pin!(Readiness::new(&counter, Events::IN).unwrap());
        assert!(polled(other, &Waker::from(note.clone())).is_pending());
        for place in &mut places {
            assert!(place.poll(Waker::noop()).is_pending());
        }
        let writing = writes(&counter, 1);
        places.iter_mut().for_each(Place::end);
        writing.join().unwrap();
        assert!(note.is_set());
    });
}

#[test]
fn a_future_that_has_ended_is_used_no_more() {
    ending_a_future_against_waking();
}

/// A task replaces its waker while a wakeup for the old waker is in progress.
pub(super) fn giving_another_waker_against_waking() {
    model(2, || {
        let counter = EventFd::new(0).unwrap();
        let mut readiness = pin!(Readiness::new(&counter, Events::IN).unwrap());
        let notes = [(); 2].map(|()| Note::new());
        let wakers = notes.each_ref().map(|note| Waker::from(note.clone()));
        assert!(polled(readiness.as_mut(), &wakers[0]).is_pending());
        let writing = writes(&counter, 1);
        let other = thread::spawn(|| drop(Waiter::in_set(&upoll::Epoll::new().unwrap())));
        let found = polled(readiness.as_mut(), &wakers[1]);
        writing.join().unwrap();
        other.join().unwrap();
        assert!(found.is_ready() || notes[1].is_set());
    });
}

#[test]
fn a_task_that_gives_another_waker_misses_no_wake() {
    giving_another_waker_against_waking();
}

/// A task polls once more while another thread writes, takes what it has written, and writes again.
pub(super) fn waiting_again_against_waking() {
    model(3, || {
        let counter = EventFd::new(0).unwrap();
        let mut readiness = pin!(Readiness::new(&counter, Events::IN).unwrap());
        let notes = [(); 2].map(|()| Note::new());
        let wakers = notes.each_ref().map(|note| Waker::from(note.clone()));
        assert!(polled(readiness.as_mut(), &wakers[0]).is_pending());
        let written = counter.clone();
        let writing = thread::spawn(move || {
            written.try_write(1).unwrap();
            written.try_read().unwrap();
            written.try_write(1).unwrap();
        });
        let found = polled(readiness.as_mut(), &wakers[1]);
        writing.join().unwrap();
        assert!(found.is_ready() || notes[1].is_set());
    });
}

#[test]
fn a_task_that_waits_again_misses_no_wake() {
    waiting_again_against_waking();
}

/// A task polls for the first time while another thread writes.
fn beginning_to_wait_against_waking() {
    model(3, || {
        let counter = EventFd::new(0).unwrap();
        let writing = writes(&counter, 1);
        let note = Note::new();
        let ready = pin!(Readiness::new(&counter, Events::IN).unwrap());
        let found = polled(ready, &Waker::from(note.clone()));
        writing.join().unwrap();
        assert!(found.is_ready() || note.is_set());
    });
}

#[test]
fn a_task_that_begins_to_wait_misses_no_wake() {
    beginning_to_wait_against_waking();
}

#[test]
fn a_task_that_does_not_poll_after_registering_misses_a_wake() {
    must_fail_without(Rule::LookAfterRegistering, beginning_to_wait_against_waking);
}

/// Two tasks that wait exclusively, and their notes.
pub(super) fn exclusive_tasks(source: &impl Source) -> [(Pin<Box<Readiness>>, Arc<Note>); 2] {
    [(); 2].map(|()| {
        let note = Note::new();
        let mut ready = Box::pin(Readiness::exclusive(source, Events::IN).unwrap());
        assert!(polled(ready.as_mut(), &Waker::from(note.clone())).is_pending());
        (ready, note)
    })
}

/// The first of two tasks leaves as a wakeup chooses one of them.
fn leaving_against_being_chosen() {
    model(3, || {
        let counter = EventFd::new(0).unwrap();
        let [(first, _), (_second, note)] = exclusive_tasks(&counter);
        let writing = writes(&counter, 1);
        drop(first);
        writing.join().unwrap();
        assert!(note.is_set());
    });
}

#[test]
fn a_task_that_leaves_forwards_the_event_that_it_was_chosen_for() {
    leaving_against_being_chosen();
}

#[test]
fn a_task_that_leaves_and_forwards_nothing_takes_the_event_with_it() {
    must_fail_without(Rule::ForwardWhenATaskLeaves, leaving_against_being_chosen);
}

/// The first of two tasks polls, and goes on with one of two events, while they come.
fn choosing_twice() {
    model(3, || {
        let counter = EventFd::with_flags(0, EventFdFlags::SEMAPHORE).unwrap();
        let [(mut first, _), (_second, note)] = exclusive_tasks(&counter);
        let writer = counter.clone();
        let writing = thread::spawn(move || {
            writer.try_write(1).unwrap();
            writer.try_write(1).unwrap();
        });
        let waker = Waker::from(Note::new());
        if polled(first.as_mut(), &waker).is_ready() {
            counter.try_read().unwrap();
        }
        writing.join().unwrap();
        assert!(note.is_set());
    });
}

#[test]
fn a_task_that_is_chosen_twice_forwards_the_second_event() {
    choosing_twice();
}

/// The first of two tasks was woken for an event, and goes on with it while another one comes.
fn choosing_again() {
    model(3, || {
        let counter = EventFd::with_flags(0, EventFdFlags::SEMAPHORE).unwrap();
        let [(mut first, _), (_second, note)] = exclusive_tasks(&counter);
        counter.try_write(1).unwrap();
        let writing = writes(&counter, 1);
        assert!(polled(first.as_mut(), &Waker::from(Note::new())).is_ready());
        counter.try_read().unwrap();
        writing.join().unwrap();
        assert!(note.is_set());
    });
}

#[test]
fn a_task_that_is_chosen_while_it_is_awake_forwards_the_event() {
    choosing_again();
}

/// The first of two tasks was chosen for an event that is gone. It polls, waits on and leaves while another event
/// comes.
fn giving_up_a_claim() {
    model(3, || {
        let counter = EventFd::new(0).unwrap();
        let [(mut first, _), (_second, note)] = exclusive_tasks(&counter);
        counter.try_write(1).unwrap();
        counter.try_read().unwrap();
        let writing = writes(&counter, 1);
        let found = polled(first.as_mut(), &Waker::from(Note::new()));
        drop(first);
        writing.join().unwrap();
        assert!(found.is_ready() || note.is_set());
    });
}

#[test]
fn a_task_that_gives_up_a_claim_does_not_lose_the_next_one() {
    giving_up_a_claim();
}

/// Each wakeup leaves the tasks that it chooses in the list, and wakes them from there.
#[test]
fn tasks_that_wakeups_leave_in_the_list_lose_no_event() {
    for model in [
        giving_another_waker_against_waking,
        waiting_again_against_waking,
        beginning_to_wait_against_waking,
        leaving_against_being_chosen,
        choosing_twice,
        choosing_again,
        giving_up_a_claim,
    ] {
        holds_without(Rule::HaveCells, model);
    }
}
