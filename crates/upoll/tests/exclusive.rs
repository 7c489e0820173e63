//! `EPOLLEXCLUSIVE`, checked on the host kernel too, and `EPOLL_ROTATE`, which no kernel has.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod kernel;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use upoll::{
    CreateFlags, Epoll, Errno, Event, EventFd, Events, File, PollTable, Pollable, WaitQueue, Watch,
};

use kernel::asleep::{Asleep, Sleeper};
use kernel::{Kernel, Twin};

const IN: Events = Events::IN;
const OUT: Events = Events::OUT;
const ET: Events = Events::ET;
const EXCLUSIVE: Events = Events::EXCLUSIVE;

type Waiter = Asleep<kernel::asleep::Events>;

/// A counter at 0, and sets that watch it in this order for these interests.
fn watchers(interests: &[Events]) -> Twin {
    let mut twin = Twin::new(1 + interests.len());
    twin.open_counter(0, 0, false);
    for (n, &wanted) in interests.iter().enumerate() {
        twin.open_set(n + 1);
        twin.add(n + 1, 0, wanted, n as u64).unwrap();
    }
    twin
}

/// Returns the indices of the sleepers that `change` wakes.
fn woken(sleepers: &[Waiter], change: impl FnOnce()) -> Vec<usize> {
    change();
    (0..sleepers.len())
        .filter(|&n| !sleepers[n].undisturbed())
        .collect()
}

#[test]
fn beside_exclusive_only_in_out_err_hup_wakeup_and_et_may_stand() {
    for bit in 0..32 {
        let mut twin = Twin::new(2);
        twin.open_set(0);
        twin.open_counter(1, 0, false);
        let beside = Events::from_bits_retain(1 << bit);
        let allowed = IN | OUT | Events::ERR | Events::HUP | Events::WAKEUP | ET | EXCLUSIVE;
        let expected = if allowed.contains(beside) {
            Ok(())
        } else {
            Err(Errno::INVAL)
        };
        assert_eq!(twin.add(0, 1, EXCLUSIVE | beside, 0), expected, "{bit}");
    }
}

#[test]
fn an_exclusive_interest_cannot_be_modified_only_deleted_and_added_anew() {
    let twin = watchers(&[IN | EXCLUSIVE]);
    for wanted in [IN, IN | EXCLUSIVE, Events::empty(), EXCLUSIVE] {
        assert_eq!(twin.modify(1, 0, wanted, 9), Err(Errno::INVAL));
    }
    twin.fdinfo(1);
    assert_eq!(twin.add(1, 0, IN, 9), Err(Errno::EXIST));
    twin.delete(1, 0).unwrap();
    assert_eq!(twin.modify(1, 0, IN | EXCLUSIVE, 9), Err(Errno::INVAL));
    assert_eq!(twin.modify(1, 0, IN, 9), Err(Errno::NOENT));
    twin.add(1, 0, IN | EXCLUSIVE, 9).unwrap();
    // A plain interest cannot be made exclusive.
    twin.delete(1, 0).unwrap();
    twin.add(1, 0, IN, 9).unwrap();
    assert_eq!(twin.modify(1, 0, IN | EXCLUSIVE, 9), Err(Errno::INVAL));
}

#[test]
fn adding_something_ready_exclusively_queues_it() {
    let mut twin = Twin::new(2);
    twin.open_counter(0, 1, false);
    twin.open_set(1);
    let sleeper = twin.sleep_in(1, 1);
    twin.add(1, 0, IN | EXCLUSIVE, 5).unwrap();
    assert_eq!(sleeper.join().unwrap(), [(IN.bits(), 5)]);
}

#[test]
fn the_first_registered_of_the_waiting_sets_takes_the_event_every_time() {
    for wanted in [IN | EXCLUSIVE, IN | EXCLUSIVE | ET] {
        let twin = watchers(&[wanted; 3]);
        let mut sleepers: Vec<_> = (1..=3).map(|set| twin.sleep_in(set, 1)).collect();
        for _ in 0..4 {
            assert_eq!(woken(&sleepers, || twin.write(0, 1)), [0]);
            assert_eq!(sleepers.remove(0).join().unwrap(), [(IN.bits(), 0)]);
            twin.read(0);
            sleepers.insert(0, twin.sleep_in(1, 1));
        }
        // The others have not been notified at all.
        drop(sleepers);
        for set in [2, 3] {
            assert_eq!(twin.data(set, 1), []);
        }
    }
}

#[test]
fn sets_without_a_waiter_are_notified_and_skipped() {
    let twin = watchers(&[IN | EXCLUSIVE | ET; 4]);
    let sleepers = [2, 4].map(|set| twin.sleep_in(set, 1));
    assert_eq!(woken(&sleepers, || twin.write(0, 1)), [0]);
    let told: Vec<_> = [1, 3].map(|set| twin.data(set, 1)).concat();
    assert_eq!(told, [0], "those before the one that took it");
}

#[test]
fn who_is_busy_with_one_event_leaves_the_next_to_the_second() {
    let twin = watchers(&[IN | EXCLUSIVE; 2]);
    let sleepers = [1, 2].map(|set| twin.sleep_in(set, 1));
    assert_eq!(woken(&sleepers, || twin.write(0, 1)), [0]);
    let [first, second] = sleepers;
    assert!(first.join().is_ok());
    twin.read(0);
    assert_eq!(woken(&[second], || twin.write(0, 1)), [0]);
}

#[test]
fn shared_watchers_all_get_the_event_and_one_exclusive_one_besides() {
    let twin = watchers(&[
        IN | EXCLUSIVE | ET,
        IN | ET,
        IN | EXCLUSIVE | ET,
        IN | ET,
        IN | EXCLUSIVE | ET,
    ]);
    let sleepers: Vec<_> = (1..=5).map(|set| twin.sleep_in(set, 1)).collect();
    assert_eq!(woken(&sleepers, || twin.write(0, 1)), [0, 1, 3]);
    assert_eq!(woken(&sleepers[2..3], || twin.write(0, 1)), [0]);
    assert_eq!(woken(&sleepers[4..], || twin.write(0, 1)), [0]);
}

#[test]
fn an_exclusive_watcher_of_the_other_direction_does_not_take_the_event() {
    let twin = watchers(&[
        OUT | EXCLUSIVE | ET,
        EXCLUSIVE | ET,
        IN | EXCLUSIVE | ET,
        IN | OUT | EXCLUSIVE | ET,
    ]);
    twin.write(0, u64::MAX - 1);
    for set in 1..=4 {
        let _ = twin.wait(set, 1);
    }
    let sleepers: Vec<_> = (1..=4).map(|set| twin.sleep_in(set, 1)).collect();
    // A read wakes waiters for OUT, a write those for IN.
    assert_eq!(woken(&sleepers, || twin.read(0)), [0]);
    assert_eq!(woken(&sleepers[1..], || twin.write(0, 1)), [1]);
    assert_eq!(woken(&sleepers[3..], || twin.write(0, 1)), [0]);
}

/// An object that wakes its waiters with any key.
#[derive(Default)]
struct Bell(WaitQueue);

impl Pollable for Bell {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.0);
        IN | OUT
    }
}

#[test]
fn a_wake_for_both_directions_satisfies_nobody_and_one_for_none_the_first() {
    // These are the rules of ep_poll_callback(). No kernel object that a test can open wakes with
    // all of these keys.
    for (key, expected) in [
        (IN | OUT, [true, true]),
        (Events::empty(), [true, false]),
        (IN, [true, false]),
        (OUT, [true, false]),
    ] {
        let bell = File::new(Bell::default());
        let sleepers = [0, 1].map(|_| {
            let set = Epoll::new().unwrap();
            let interest = Event::new(IN | OUT | EXCLUSIVE | ET, 0);
            set.add(&bell.as_file_ref(), interest).unwrap();
            assert_eq!(set.try_wait(&mut [Event::default()]), Ok(1));
            Sleeper::start(move || set.wait(&mut [Event::default()], None))
        });
        bell.0.wake(key);
        let woken = sleepers.map(|sleeper| !sleeper.undisturbed());
        assert_eq!(woken, expected, "{key:?}");
    }
}

#[test]
fn a_rotating_wake_that_finds_nobody_does_not_silence_those_that_follow() {
    // The first two wakeups are for different exclusive watchers, neither of which has a waiter.
    let bell = File::new(Bell::default());
    let sets = [IN, OUT].map(|wanted| {
        let set = Epoll::new().unwrap();
        let interest = Event::new(wanted | EXCLUSIVE | ET, 0);
        set.add(&bell.as_file_ref(), interest).unwrap();
        assert_eq!(set.try_wait(&mut [Event::default()]), Ok(1));
        set
    });
    for (n, key) in [(0, IN), (1, OUT), (0, IN), (1, OUT)] {
        bell.0.wake_rotate(key);
        let told = [0, 1].map(|n: usize| sets[n].try_wait(&mut [Event::default()]).unwrap());
        assert_eq!(told[n], 1, "{key:?}");
    }
    // The same for threads.
    for (n, key) in [(0, IN), (1, OUT)] {
        let set = sets[n].clone();
        let sleeper = Sleeper::start(move || set.wait(&mut [Event::default()], None));
        assert_eq!(bell.0.wake_rotate(key), 1, "{key:?}");
        assert_eq!(sleeper.join(), Ok(1));
    }
}

#[test]
fn being_watched_from_above_is_not_waiting() {
    // Sets 1 and 2 watch the counter exclusively. 1 is watched by 3, where a thread sleeps.
    let mut twin = Twin::new(4);
    twin.open_counter(0, 0, false);
    for set in 1..=3 {
        twin.open_set(set);
    }
    twin.add(1, 0, IN | EXCLUSIVE | ET, 1).unwrap();
    twin.add(2, 0, IN | EXCLUSIVE | ET, 2).unwrap();
    twin.add(3, 1, IN | ET, 3).unwrap();
    let sleepers = [3, 2].map(|set| twin.sleep_in(set, 1));
    assert_eq!(woken(&sleepers, || twin.write(0, 1)), [0, 1]);
}

#[test]
fn deleting_and_adding_anew_lets_exclusive_watchers_take_turns() {
    let twin = watchers(&[IN | EXCLUSIVE; 3]);
    let mut sleepers: Vec<_> = (1..=3).map(|set| twin.sleep_in(set, 1)).collect();
    let mut order = Vec::new();
    for _ in 0..6 {
        let took = woken(&sleepers, || twin.write(0, 1));
        order.extend_from_slice(&took);
        assert!(sleepers.remove(took[0]).join().is_ok());
        twin.read(0);
        let set = took[0] + 1;
        twin.delete(set, 0).unwrap();
        twin.add(set, 0, IN | EXCLUSIVE, 0).unwrap();
        sleepers.insert(took[0], twin.sleep_in(set, 1));
    }
    assert_eq!(order, [0, 1, 2, 0, 1, 2]);
}

/// A rotating set that watches a counter, and worker sets that watch it for `wanted`.
fn rotating(workers: usize, wanted: Events) -> (EventFd, Epoll, Vec<Epoll>) {
    let source = EventFd::new(0).unwrap();
    let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
    rotating.add(&source, Event::new(IN, 0)).unwrap();
    let workers = (0..workers)
        .map(|_| {
            let worker = Epoll::new().unwrap();
            worker.add(&rotating, Event::new(wanted, 0)).unwrap();
            worker
        })
        .collect();
    (source, rotating, workers)
}

#[test]
fn no_kernel_has_rotating_sets() {
    // SAFETY: the call takes no pointers.
    let kernel = Kernel::result(unsafe { libc::epoll_create1(1) }.into());
    assert_eq!(kernel, Err(Errno::INVAL));
    assert!(Epoll::create(CreateFlags::ROTATE).is_ok());
}

#[test]
fn without_rotation_an_event_wakes_every_worker() {
    // The control run of the EPOLL_ROTATE patch: the same topology with a plain set in the middle.
    let mut twin = Twin::new(5);
    twin.open_counter(0, 0, false);
    for set in 1..5 {
        twin.open_set(set);
    }
    twin.add(1, 0, IN, 0).unwrap();
    for worker in 2..5 {
        twin.add(worker, 1, IN, 0).unwrap();
    }
    let sleepers: Vec<_> = (2..5).map(|set| twin.sleep_in(set, 1)).collect();
    assert_eq!(woken(&sleepers, || twin.write(0, 1)), [0, 1, 2]);
}

#[test]
fn with_rotation_an_event_wakes_one_worker_and_the_next_event_the_next() {
    let (source, _rotating, workers) = rotating(3, IN);
    let mut sleepers: Vec<_> = workers
        .iter()
        .map(|worker| {
            let (worker, source) = (worker.clone(), source.clone());
            Sleeper::start(move || {
                assert_eq!(worker.wait(&mut [Event::default()], None), Ok(1));
                source.try_read()
            })
        })
        .collect();
    for _ in 0..3 {
        source.try_write(1).unwrap();
        let first = sleepers.remove(0);
        assert_eq!(first.join(), Ok(1));
        assert!(sleepers.iter().all(Sleeper::undisturbed));
    }
}

#[test]
fn a_rotating_set_takes_a_second_source_under_no_fd() {
    let (source, rotating, _workers) = rotating(0, IN);
    let again = source.as_file_ref().with_fd(1);
    assert_eq!(rotating.add(&again, Event::new(IN, 0)), Err(Errno::INVAL));
    assert_eq!(rotating.len(), 1);
}

#[test]
fn a_source_that_closes_makes_room_for_another() {
    let (source, rotating, _workers) = rotating(0, IN);
    drop(source);
    let other = EventFd::new(1).unwrap();
    rotating.add(&other, Event::new(IN, 7)).unwrap();
    let mut events = [Event::default()];
    assert_eq!(rotating.try_wait(&mut events), Ok(1));
    assert_eq!(events[0].data(), 7);
}

#[test]
fn a_rotating_set_cannot_be_watched_exclusively() {
    let (_source, rotating, workers) = rotating(1, IN);
    let set = Epoll::new().unwrap();
    let exclusive = Event::new(IN | EXCLUSIVE, 0);
    assert_eq!(set.add(&rotating, exclusive), Err(Errno::INVAL));
    assert_eq!(workers[0].modify(&rotating, exclusive), Err(Errno::INVAL));
}

#[test]
fn a_rotating_set_shares_its_source_with_other_watchers() {
    let (source, rotating, workers) = rotating(1, IN);
    let plain = Epoll::new().unwrap();
    plain.add(&source, Event::new(IN | ET, 0)).unwrap();
    let mut events = [Event::default()];
    for _ in 0..3 {
        source.try_write(1).unwrap();
        assert_eq!(plain.try_wait(&mut events), Ok(1));
        assert_eq!(workers[0].try_wait(&mut events), Ok(1));
        assert_eq!(rotating.try_wait(&mut events), Ok(1));
        source.try_read().unwrap();
    }
}

#[test]
fn a_thread_that_polls_a_rotating_set_learns_of_every_event() {
    let (source, rotating, _workers) = rotating(2, IN);
    let heard = Arc::new(AtomicUsize::new(0));
    let count = heard.clone();
    let (watch, ready) = Watch::new(&rotating, IN, move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    })
    .unwrap();
    assert!(ready.is_empty());
    for times in 1..=4 {
        source.try_write(1).unwrap();
        assert!(heard.load(Ordering::SeqCst) >= times);
        assert_eq!(watch.ready(), IN);
        source.try_read().unwrap();
        assert_eq!(watch.ready(), Events::empty());
    }
}

#[test]
fn a_rotating_set_shows_its_source_as_any_set_does() {
    let (source, rotating, _workers) = rotating(1, IN);
    assert!(!rotating.as_file_ref().is_ready(Events::all()));
    source.try_write(1).unwrap();
    let (_watch, ready) = Watch::new(&rotating, Events::all(), |_| ()).unwrap();
    assert_eq!(ready, IN | Events::RDNORM);
}

#[test]
fn edge_triggered_and_oneshot_workers_keep_their_meaning() {
    for wanted in [IN | ET, IN | Events::ONESHOT] {
        let (source, rotating, workers) = rotating(1, wanted);
        let mut events = [Event::default()];
        source.try_write(1).unwrap();
        assert_eq!(workers[0].try_wait(&mut events), Ok(1));
        assert_eq!(workers[0].try_wait(&mut events), Ok(0));
        if wanted.contains(Events::ONESHOT) {
            workers[0].modify(&rotating, Event::new(wanted, 0)).unwrap();
        } else {
            source.try_write(1).unwrap();
        }
        assert_eq!(workers[0].try_wait(&mut events), Ok(1));
    }
}

#[test]
fn an_event_behind_a_reported_one_is_an_edge_for_a_waiter_above() {
    // As without rotation, each wake of a set is an edge, whichever member it comes from.
    for flags in [CreateFlags::empty(), CreateFlags::ROTATE] {
        let [worker, above] = [(); 2].map(|()| Epoll::new().unwrap());
        let sources = [(); 2].map(|()| {
            let source = EventFd::new(0).unwrap();
            let set = Epoll::create(flags).unwrap();
            set.add(&source, Event::new(IN, 0)).unwrap();
            worker.add(&set, Event::new(IN, 0)).unwrap();
            (source, set)
        });
        above.add(&worker, Event::new(IN | ET, 0)).unwrap();
        // Nobody waits.
        for (source, _) in &sources {
            source.try_write(1).unwrap();
        }
        assert_eq!(above.try_wait(&mut [Event::default()]), Ok(1));
        let set = above.clone();
        let sleeper = Sleeper::start(move || set.wait(&mut [Event::default()], None));
        sources[1].0.try_write(1).unwrap();
        assert!(!sleeper.undisturbed(), "{flags:?}");
        assert_eq!(sleeper.join(), Ok(1));
    }
}

#[test]
fn with_rotation_an_event_wakes_one_of_the_threads_that_wait_above_their_workers() {
    let (source, _rotating, workers) = rotating(3, IN);
    // A thread that ends forwards the event, so no thread ends before all are counted.
    let counted = Arc::new(Mutex::new(()));
    let counting = counted.lock().unwrap();
    let sleepers: Vec<_> = workers
        .iter()
        .map(|worker| {
            let above = Epoll::new().unwrap();
            above.add(worker, Event::new(IN, 0)).unwrap();
            let counted = counted.clone();
            Sleeper::start(move || {
                let ready = above.wait(&mut [Event::default()], None);
                drop(counted.lock());
                ready
            })
        })
        .collect();
    for next in 0..3 {
        source.try_write(1).unwrap();
        let woken = sleepers.iter().filter(|sleeper| !sleeper.undisturbed());
        assert_eq!(woken.count(), next + 1);
    }
    drop(counting);
    for sleeper in sleepers {
        assert_eq!(sleeper.join(), Ok(1));
    }
}
