//! Rotating sets: workers come, go and are chosen while events come.

use std::sync::Arc;

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use upoll::{CreateFlags, Epoll, Event, EventFd, EventFdFlags, Events, Rule, Source, Watch};

use super::sets::Flag;
use super::{IN, Waiter, model, must_fail_without, set_of, writes};

/// Returns a rotating set over `source`, and the workers' sets that watch it.
pub(super) fn workers<const N: usize>(source: &impl Source) -> (Epoll, [Epoll; N]) {
    let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
    rotating.add(source, IN).unwrap();
    let sets = [(); N].map(|()| Epoll::new().unwrap());
    for set in &sets {
        set.add(&rotating, IN).unwrap();
    }
    (rotating, sets)
}

/// Harvests like a thread that begins to wait. An event that is there is found at once, without the
/// second poll of a thread that continues to wait.
pub(super) fn harvest(set: &Epoll) -> usize {
    set.harvest_in_turn(&mut [Event::default(); 2])
}

/// Returns a source of which each read takes one event.
fn semaphore() -> EventFd {
    EventFd::with_flags(0, EventFdFlags::SEMAPHORE).unwrap()
}

/// An exclusive waiter leaves while a wakeup picks it. The waiter that stays gets the event.
fn leaving_against_choosing() {
    model(4, || {
        let source = semaphore();
        let (rotating, [first, second]) = workers(&source);
        let _waiting = [&first, &second].map(Waiter::in_set);
        let writing = thread::spawn(move || {
            source.try_write(1).unwrap();
            source
        });
        first.delete(&rotating).unwrap();
        let _open = writing.join().unwrap();
        assert_eq!(harvest(&second), 1);
    });
}

#[test]
fn a_chosen_worker_that_leaves_forwards_the_event() {
    leaving_against_choosing();
}

#[test]
fn a_worker_that_leaves_with_its_claim_loses_the_event() {
    must_fail_without(Rule::ForwardWhenLeaving, leaving_against_choosing);
}

/// A worker polls for an event that is gone, and then leaves or is busy. Meanwhile the next event
/// comes and another worker begins to wait. That worker gets it.
fn looking_in_vain_against_coming(leaves: bool) {
    model(2, move || {
        let source = semaphore();
        let (rotating, [first, second]) = workers(&source);
        let waiting_first = Waiter::in_set(&first);
        // The first worker is chosen for an event that another thread takes.
        source.try_write(1).unwrap();
        source.try_read().unwrap();
        drop(waiting_first);
        let leaver = (first, rotating.clone());
        let leaving = thread::spawn(move || {
            let (first, rotating) = leaver;
            let taken = harvest(&first);
            if leaves {
                first.delete(&rotating).unwrap();
            }
            (taken, first)
        });
        source.try_write(1).unwrap();
        let _waiting_second = Waiter::in_set(&second);
        let mut taken = harvest(&second);
        let (taken_first, _first) = leaving.join().unwrap();
        taken += taken_first;
        if taken == 0 {
            taken = harvest(&second);
        }
        assert!(taken > 0);
    });
}

fn leaving_against_coming() {
    looking_in_vain_against_coming(true);
}

fn being_busy_against_coming() {
    looking_in_vain_against_coming(false);
}

#[test]
fn an_event_that_comes_while_a_worker_leaves_is_with_the_one_that_stays() {
    leaving_against_coming();
}

#[test]
fn an_event_that_comes_while_a_worker_polls_in_vain_reaches_the_waiting_one() {
    being_busy_against_coming();
}

#[test]
fn a_worker_that_forgets_an_event_after_its_poll_keeps_others_from_it() {
    must_fail_without(Rule::OweWhatCameAfterTheLook, being_busy_against_coming);
}

/// Workers come and poll while one wakeup announces two events. Both events are taken.
fn rotating_while_workers_look() {
    model(4, || {
        let source = semaphore();
        let (_rotating, sets) = workers::<2>(&source);
        let _waiting = sets.each_ref().map(Waiter::in_set);
        let take = |set: &Epoll, source: &EventFd| {
            usize::from(harvest(set) == 1 && source.try_read().is_ok())
        };
        let (set, counter) = (sets[0].clone(), source.clone());
        let worker = thread::spawn(move || take(&set, &counter) + take(&set, &counter));
        source.try_write(2).unwrap();
        let mut taken = worker.join().unwrap();
        // Workers that are chosen take their events; no event may be left.
        for _ in 0..3 {
            for set in &sets {
                taken += take(set, &source);
            }
        }
        assert_eq!(taken, 2);
    });
}

#[test]
fn rotation_loses_no_event_while_workers_come_and_go() {
    rotating_while_workers_look();
}

#[test]
fn a_claim_that_is_not_forwarded_loses_an_event() {
    must_fail_without(Rule::ForwardTurn, rotating_while_workers_look);
}

/// A worker whose recheck flag is set polls, finds the event gone, and waits while the next event
/// comes.
fn clearing_a_recheck_flag_against_writing() {
    model(3, || {
        let source = semaphore();
        let (_rotating, [worker]) = workers(&source);
        // Nobody waits: the worker's recheck flag is set, and no other worker comes.
        source.try_write(1).unwrap();
        source.try_read().unwrap();
        let writing = writes(&source, 1);
        let has_seen = harvest(&worker) == 1;
        let waiter = Waiter::in_set(&worker);
        writing.join().unwrap();
        assert!(has_seen || waiter.has_heard());
        assert_eq!(harvest(&worker), 1);
    });
}

#[test]
fn a_worker_that_has_cleared_its_recheck_flag_learns_of_the_next_event() {
    clearing_a_recheck_flag_against_writing();
}

#[test]
fn a_cleared_recheck_flag_that_still_counts_loses_an_event() {
    must_fail_without(Rule::ClearRecheck, clearing_a_recheck_flag_against_writing);
}

/// Two workers begin to wait while events come. A worker is woken, whatever
/// the recheck flags are.
fn two_workers_come_while_events_come() {
    model(2, || {
        let source = semaphore();
        let (_rotating, [first, second]) = workers(&source);
        source.try_write(1).unwrap();
        source.try_read().unwrap();
        let come = |worker: &Epoll| (harvest(worker) == 1, Waiter::in_set(worker));
        let other = second.clone();
        let coming = thread::spawn(move || come(&other));
        let writing = writes(&source, 1);
        let came = [come(&first), coming.join().unwrap()];
        writing.join().unwrap();
        let has_heard = |(has_seen, waiter): &(bool, Waiter)| *has_seen || waiter.has_heard();
        assert!(came.iter().any(has_heard));
    });
}

#[test]
fn two_workers_that_come_while_an_event_comes_do_not_both_miss_it() {
    two_workers_come_while_events_come();
}

#[test]
fn notes_that_count_although_they_are_used_up_lose_an_event() {
    must_fail_without(Rule::ClearRecheck, two_workers_come_while_events_come);
}

/// The recheck flags are set. A worker is added and begins to wait while the next event comes.
#[test]
fn a_worker_that_is_added_without_a_recheck_flag_learns_of_the_next_event() {
    model(3, || {
        let source = semaphore();
        let (rotating, [_busy]) = workers(&source);
        source.try_write(1).unwrap();
        source.try_read().unwrap();
        let writing = writes(&source, 1);
        let worker = set_of(&rotating, IN);
        let waiter = Waiter::in_set(&worker);
        writing.join().unwrap();
        assert!(waiter.has_heard());
    });
}

/// The only worker has no recheck flag, as it wanted no events. It wants them again, and begins to wait
/// while the next event comes.
#[test]
fn a_worker_that_changes_its_interest_learns_of_the_next_event() {
    model(3, || {
        let source = semaphore();
        let (rotating, [worker]) = workers(&source);
        worker.modify(&rotating, Event::default()).unwrap();
        source.try_write(1).unwrap();
        source.try_read().unwrap();
        let writing = writes(&source, 1);
        worker.modify(&rotating, IN).unwrap();
        let waiter = Waiter::in_set(&worker);
        writing.join().unwrap();
        assert!(waiter.has_heard());
    });
}

/// Workers begin to wait while an event comes that finds nobody, and the waiters stay. The event is
/// used up, after a worker has polled or not. The next event is not left to recheck flags.
fn beginning_to_wait_against_setting_recheck_flags<const N: usize>(polls: bool) {
    model(3, move || {
        let source = semaphore();
        let (_rotating, sets) = workers::<N>(&source);
        let writing = writes(&source, 1);
        let waiting = sets.each_ref().map(Waiter::in_set);
        writing.join().unwrap();
        if polls {
            assert!(sets.iter().any(|set| harvest(set) == 1));
        }
        source.try_read().unwrap();
        let told = || waiting.iter().map(Waiter::times_told).sum::<usize>();
        let before = told();
        source.try_write(1).unwrap();
        assert!(told() > before);
    });
}

#[test]
fn a_worker_that_begins_to_wait_as_its_recheck_flag_is_set_learns_of_the_next_event() {
    beginning_to_wait_against_setting_recheck_flags::<1>(true);
}

#[test]
fn workers_that_begin_to_wait_as_recheck_flags_are_set_learn_of_the_next_event() {
    beginning_to_wait_against_setting_recheck_flags::<2>(true);
    beginning_to_wait_against_setting_recheck_flags::<2>(false);
}

/// The kernel chooses a worker by its own line, while a wakeup chooses the first worker of upoll's
/// line. Both may choose the same one. It takes one event and is busy then; a worker that still
/// waits learns of the other event.
fn choosing_against_waking() {
    model(3, || {
        let source = semaphore();
        let (rotating, [first, second]) = workers(&source);
        let [waiting_first, waiting_second] = [&first, &second].map(Waiter::in_set);
        let counter = source.clone();
        let coming = thread::spawn(move || {
            drop(waiting_first);
            first.be_chosen(&rotating);
            let takes = harvest(&first) == 1 && counter.try_read().is_ok();
            (takes, first, rotating)
        });
        source.try_write(2).unwrap();
        let _open = coming.join().unwrap();
        assert!(waiting_second.was_told());
        assert_eq!(harvest(&second), 1);
    });
}

#[test]
fn of_two_events_for_one_worker_the_second_is_known_to_another_one() {
    choosing_against_waking();
}

#[test]
fn a_worker_that_keeps_a_second_event_leaves_the_others_asleep() {
    must_fail_without(Rule::ForwardSecondEvent, choosing_against_waking);
}

/// A worker is woken for an event that another thread takes. It polls in vain while that wakeup is
/// in progress, and is busy then. The next event goes to another worker.
fn looking_in_vain_against_waking() {
    model(3, || {
        // Not an eventfd: its read would wait for the wakeup to end.
        let source = Flag::new();
        let (_rotating, [first, second]) = workers(&source);
        let told = Arc::new(AtomicUsize::new(0));
        let note = told.clone();
        let waiting = Watch::new(&first, Events::IN, move |_| {
            note.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap();
        let writer = source.clone();
        let writing = thread::spawn(move || writer.set(true));
        let is_gone = source.take();
        // From here on the worker does not wait. It polls, because it may have been chosen without
        // being woken yet.
        drop(waiting);
        let seen = told.load(Ordering::SeqCst);
        harvest(&first);
        writing.join().unwrap();
        if !is_gone {
            return;
        }
        if told.load(Ordering::SeqCst) != seen {
            harvest(&first);
        }
        source.set(true);
        let _waiting = Waiter::in_set(&second);
        assert_eq!(harvest(&second), 1);
    });
}

#[test]
fn a_claim_that_a_wake_makes_after_the_poll_keeps_no_worker_from_the_next_event() {
    looking_in_vain_against_waking();
}

#[test]
fn a_claim_that_is_settled_only_when_seen_keeps_others_from_the_next_event() {
    must_fail_without(Rule::SettleUnseenClaims, looking_in_vain_against_waking);
}
