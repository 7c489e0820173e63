//! Rotating sets: workers come, go, and are chosen, while events come.

use std::sync::Arc;

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use upoll::{CreateFlags, Epoll, EventFd, EventFdFlags, Events, Rule, Watch, pipe};

use super::{IN, harvest, model, must_fail_without};

/// The kernel chooses a worker by a line of its own while a wake here chooses the first in line, who may
/// be the same. It takes one event, and is busy then: the other one is known to who still waits.
fn choosing_against_waking() {
    model(3, || {
        let source = EventFd::with_flags(0, EventFdFlags::SEMAPHORE).unwrap();
        let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
        rotating.add(&source, IN).unwrap();
        let [first, second] = [(); 2].map(|()| Epoll::new().unwrap());
        first.add(&rotating, IN).unwrap();
        second.add(&rotating, IN).unwrap();
        let awaiting = Watch::new(first.as_file_ref(), Events::IN, |_| {}).0;
        let told = Arc::new(AtomicUsize::new(0));
        let note = told.clone();
        let _waiting = Watch::new(second.as_file_ref(), Events::IN, move |_| {
            note.fetch_add(1, Ordering::SeqCst);
        });
        let counter = source.clone();
        let coming = thread::spawn(move || {
            drop(awaiting);
            first.be_chosen(&rotating);
            let takes = harvest(&first) == 1 && counter.try_read().is_ok();
            (takes, first, rotating)
        });
        source.try_write(2).unwrap();
        let _open = coming.join().unwrap();
        assert!(told.load(Ordering::SeqCst) > 0);
        assert_eq!(harvest(&second), 1);
    });
}

#[test]
fn of_two_events_for_one_worker_the_second_is_known_to_another_one() {
    choosing_against_waking();
}

#[test]
fn a_worker_that_keeps_a_second_event_leaves_the_others_asleep() {
    must_fail_without(Rule::HandOnSecondEvent, choosing_against_waking);
}

/// A worker is woken for an event that somebody else takes, looks, in vain, while that wake is still
/// under way, and is busy then: the next event is another worker's.
fn looking_in_vain_against_waking() {
    model(3, || {
        // A read of an eventfd would wait for the wake.
        let (source, writer) = pipe().unwrap();
        let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
        rotating.add(&source, IN).unwrap();
        let [first, second] = [(); 2].map(|()| Epoll::new().unwrap());
        first.add(&rotating, IN).unwrap();
        second.add(&rotating, IN).unwrap();
        let told = Arc::new(AtomicUsize::new(0));
        let note = told.clone();
        let waiting = Watch::new(first.as_file_ref(), Events::IN, move |_| {
            note.fetch_add(1, Ordering::SeqCst);
        });
        let writing = thread::spawn(move || {
            writer.try_write(&[1]).unwrap();
            writer
        });
        let is_gone = source.try_read(&mut [0]).is_ok();
        let seen = told.load(Ordering::SeqCst);
        harvest(&first);
        drop(waiting);
        let writer = writing.join().unwrap();
        if !is_gone {
            return;
        }
        if told.load(Ordering::SeqCst) != seen {
            harvest(&first);
        }
        writer.try_write(&[1]).unwrap();
        let _waiting = Watch::new(second.as_file_ref(), Events::IN, |_| {});
        assert_eq!(harvest(&second), 1);
    });
}

#[test]
fn a_claim_that_a_wake_makes_after_the_look_keeps_nobody_from_the_next_event() {
    looking_in_vain_against_waking();
}

#[test]
fn a_claim_that_is_settled_only_when_seen_keeps_others_from_the_next_event() {
    must_fail_without(Rule::SettleUnseenClaims, looking_in_vain_against_waking);
}
