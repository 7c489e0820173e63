//! Closes of a watched file, of a set, and of both at once, and their effect on concurrent calls.
//! Behaviour that system calls can show is compared with the host kernel. Each test of a race names
//! the kernel bug that it would catch.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod kernel;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use upoll::{
    CreateFlags, Epoll, Errno, Event, EventFd, Events, File, PollTable, Pollable, WaitQueue,
    WatchLimit,
};

use kernel::Twin;

const IN: Events = Events::IN;
const ET: Events = Events::ET;

/// A set at 0 that watches a counter at 1, with data 1.
fn watching() -> Twin {
    let mut twin = Twin::new(5);
    twin.open_set(0);
    twin.open_counter(1, 0, false);
    twin.add(0, 1, IN, 1).unwrap();
    twin
}

#[test]
fn a_closed_file_is_gone_from_every_set_and_every_fd() {
    let mut twin = watching();
    twin.open_set(2);
    twin.dup(1, 3);
    twin.add(0, 3, IN, 3).unwrap();
    twin.add(2, 1, IN, 1).unwrap();
    twin.add(2, 3, IN, 3).unwrap();
    twin.write(1, 1);
    twin.close(1);
    assert_eq!(twin.data(0, 4).len(), 2);
    twin.close(3);
    for set in [0, 2] {
        assert_eq!(twin.data(set, 4), []);
        twin.fdinfo(set);
        assert!(twin.set(set).unwrap().is_empty());
    }
}

#[test]
fn an_fd_closed_while_another_lives_keeps_reporting_with_its_own_data() {
    let mut twin = watching();
    twin.dup(1, 2);
    twin.close(1);
    twin.write(2, 1);
    assert_eq!(twin.data(0, 4), [1]);
    assert_eq!(twin.delete(0, 2), Err(Errno::NOENT));
    twin.add(0, 2, IN, 2).unwrap();
    assert_eq!(twin.data(0, 4).len(), 2);
    twin.delete(0, 2).unwrap();
    assert_eq!(twin.data(0, 4), [1]);
}

#[test]
fn an_fd_used_again_at_once_has_nothing_to_do_with_the_old_file() {
    for dup in [true, false] {
        let mut twin = watching();
        if dup {
            twin.dup(1, 2);
        }
        for round in 0..50 {
            twin.write(1, 1);
            twin.open_counter(1, 0, false);
            assert_eq!(twin.data(0, 4).len(), usize::from(dup && round == 0));
            if dup {
                twin.read(2);
            }
            assert_eq!(twin.modify(0, 1, IN, 9), Err(Errno::NOENT));
            assert_eq!(twin.delete(0, 1), Err(Errno::NOENT));
            twin.add(0, 1, IN, 9).unwrap();
            twin.fdinfo(0);
        }
    }
}

#[test]
fn closing_a_file_that_is_queued_takes_it_off_the_ready_list() {
    let mut twin = watching();
    for n in [2, 3] {
        twin.open_counter(n, 1, false);
        twin.add(0, n, IN | ET, n as u64).unwrap();
    }
    twin.write(1, 1);
    twin.close(3);
    assert_eq!(twin.data(0, 4), [2, 1]);
}

#[test]
fn closing_a_set_leaves_its_files_and_their_other_sets_alone() {
    let mut twin = watching();
    twin.open_set(2);
    twin.add(2, 1, IN, 2).unwrap();
    twin.close(0);
    twin.write(1, 1);
    assert_eq!(twin.data(2, 4), [2]);
    twin.open_set(0);
    twin.add(0, 1, IN, 3).unwrap();
    assert_eq!(twin.data(0, 4), [3]);
}

#[test]
fn closing_a_set_that_threads_wait_in_does_not_end_their_wait() {
    let mut twin = watching();
    let sleepers = [(); 2].map(|()| twin.sleep_in(0, 1));
    twin.close(0);
    assert!(sleepers.iter().all(|sleeper| sleeper.undisturbed()));
    twin.write(1, 1);
    for sleeper in sleepers {
        assert_eq!(sleeper.join().unwrap(), [(IN.bits(), 1)]);
    }
}

#[test]
fn closing_the_middle_of_a_chain_cuts_it() {
    let mut twin = watching();
    for set in [2, 3] {
        twin.open_set(set);
    }
    twin.add(3, 2, IN, 32).unwrap();
    twin.add(2, 0, IN, 20).unwrap();
    twin.write(1, 1);
    assert_eq!(twin.data(3, 4), [32]);
    twin.close(2);
    assert_eq!(twin.data(3, 4), []);
    assert_eq!(twin.data(0, 4), [1]);
    twin.fdinfo(3);
    // No link is left that counts towards the limit.
    twin.open_set(2);
    twin.add(0, 3, IN, 0).unwrap();
}

/// An object that must not move.
struct Unmoved(std::marker::PhantomPinned);

impl Pollable for Unmoved {
    fn poll<'q>(&'q self, _: &mut PollTable<'q>) -> Events {
        Events::empty()
    }
}

#[test]
fn references_may_move_whatever_they_lead_to() {
    fn take_out<T: Unpin>(mut pinned: std::pin::Pin<&mut Option<T>>) -> Option<T> {
        pinned.take()
    }
    let file = File::new(Unmoved(std::marker::PhantomPinned));
    let erased = std::pin::pin!(Some(file.erase()));
    let moved = take_out(erased).unwrap();
    assert!(moved.as_file_ref().is_same_file(file.as_file_ref()));
    assert!(take_out(std::pin::pin!(Some(file))).is_some());
}

/// An object that panics if it is used after its release, and counts how often it is dropped.
struct Mortal {
    queue: WaitQueue,
    released: AtomicBool,
    ends: Arc<AtomicUsize>,
    /// Callbacks that run when the object is released, and when it is dropped.
    last_words: Mutex<Vec<Box<dyn FnMut() + Send>>>,
}

impl Mortal {
    fn new(ends: &Arc<AtomicUsize>) -> File<Mortal> {
        Self::with_last_words(ends, Vec::new())
    }

    fn with_last_words(
        ends: &Arc<AtomicUsize>,
        last_words: Vec<Box<dyn FnMut() + Send>>,
    ) -> File<Mortal> {
        File::new(Mortal {
            queue: WaitQueue::new(),
            released: AtomicBool::new(false),
            ends: ends.clone(),
            last_words: Mutex::new(last_words),
        })
    }

    fn say_last_words(&self) {
        for say in self.last_words.lock().unwrap().iter_mut() {
            say();
        }
    }
}

impl Pollable for Mortal {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        assert!(
            !self.released.load(Ordering::SeqCst),
            "polled after release"
        );
        table.register(&self.queue);
        IN
    }

    fn release(&self) {
        assert!(!self.released.swap(true, Ordering::SeqCst));
        self.say_last_words();
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        assert!(self.released.load(Ordering::SeqCst));
        self.say_last_words();
        self.ends.fetch_add(1, Ordering::SeqCst);
    }
}

fn interest() -> Event {
    Event::new(IN, 0)
}

fn account() -> (Arc<WatchLimit>, impl Fn() -> Epoll) {
    let account = WatchLimit::new(100_000);
    let drawn_on = account.clone();
    let set = move || Epoll::create_within(CreateFlags::empty(), drawn_on.clone()).unwrap();
    (account, set)
}

#[test]
fn an_object_that_ends_may_use_the_sets_that_watched_it() {
    // Code of the object runs without any lock of the library.
    let ends = Arc::new(AtomicUsize::new(0));
    for close_set_first in [true, false] {
        let (account, new_set) = account();
        let set = new_set();
        let other = EventFd::new(1).unwrap();
        let (watcher, bystander) = (set.clone(), other.clone());
        let mortal = Mortal::with_last_words(
            &ends,
            vec![Box::new(move || {
                let _ = watcher.add(&bystander, interest());
                assert_eq!(watcher.try_wait(&mut [Event::default(); 4]), Ok(1));
                assert_eq!(watcher.delete(&bystander), Ok(()));
                assert!(watcher.is_empty());
            })],
        );
        set.add(&mortal.as_file_ref(), interest()).unwrap();
        if close_set_first {
            drop(set);
            drop(mortal);
        } else {
            drop(mortal);
            drop(set);
        }
        assert_eq!(account.used(), 0);
    }
    assert_eq!(ends.load(Ordering::SeqCst), 2);
}

#[test]
fn a_set_that_only_its_own_member_holds_ends_with_it() {
    let ends = Arc::new(AtomicUsize::new(0));
    let (account, new_set) = account();
    let set = new_set();
    let holder = set.clone();
    let mortal = Mortal::with_last_words(&ends, vec![Box::new(move || assert!(holder.is_empty()))]);
    set.add(&mortal.as_file_ref(), interest()).unwrap();
    drop(set);
    assert_ne!(account.used(), 0);
    drop(mortal);
    assert_eq!(ends.load(Ordering::SeqCst), 1);
    assert_eq!(account.used(), 0);
}

#[test]
fn a_file_that_ends_may_end_other_files_and_their_sets() {
    let ends = Arc::new(AtomicUsize::new(0));
    let (account, new_set) = account();
    let (first, second) = (new_set(), new_set());
    let inner = Mortal::new(&ends);
    first.add(&inner.as_file_ref(), interest()).unwrap();
    let owned = Mutex::new(Some((first, inner)));
    let outer = Mortal::with_last_words(
        &ends,
        vec![Box::new(move || drop(owned.lock().unwrap().take()))],
    );
    second.add(&outer.as_file_ref(), interest()).unwrap();
    drop(outer);
    assert_eq!(ends.load(Ordering::SeqCst), 2);
    drop(second);
    assert_eq!(account.used(), 0);
}

type Step<'a> = Box<dyn FnMut(usize) + Send + 'a>;

/// A barrier. If one thread fails the others fail too, instead of waiting for it.
struct Meeting {
    members: usize,
    arrivals: AtomicUsize,
    failed: AtomicBool,
}

impl Meeting {
    fn of(members: usize) -> Self {
        Meeting {
            members,
            arrivals: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
        }
    }

    fn wait(&self) {
        let arrived = self.arrivals.fetch_add(1, Ordering::SeqCst);
        let complete = (arrived / self.members + 1) * self.members;
        while self.arrivals.load(Ordering::SeqCst) < complete {
            assert!(!self.failed.load(Ordering::SeqCst), "another thread failed");
            thread::yield_now();
        }
    }
}

/// Marks the meeting as failed if its thread panics.
struct Member<'a>(&'a Meeting);

impl Drop for Member<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.failed.store(true, Ordering::SeqCst);
        }
    }
}

/// Runs the steps of each round concurrently, each on a thread of its own.
fn race(rounds: usize, steps: Vec<Step<'_>>) {
    let start = Meeting::of(steps.len());
    thread::scope(|scope| {
        for mut step in steps {
            let start = &start;
            scope.spawn(move || {
                let _member = Member(start);
                for round in 0..rounds {
                    start.wait();
                    // Varies which thread comes first, and by how much.
                    for _ in 0..round % 64 {
                        std::hint::spin_loop();
                    }
                    step(round);
                }
            });
        }
    });
}

/// Rounds of a race: enough to meet each order of two short calls many times.
const ROUNDS: usize = 3_000;

#[test]
fn a_file_and_its_set_may_close_at_the_same_time() {
    // Kernel bugs 8c2e52ebbe88 (a set was freed while its lock was still in use) and a6dc643c6931
    // (a file's list was used after the file was freed).
    let ends = Arc::new(AtomicUsize::new(0));
    let (account, new_set) = account();
    let mut sets: Vec<_> = (0..ROUNDS).map(|_| Some(new_set())).collect();
    let mut files: Vec<_> = (0..ROUNDS).map(|_| Some(Mortal::new(&ends))).collect();
    for (set, file) in sets.iter().flatten().zip(files.iter().flatten()) {
        let file = file.as_file_ref();
        set.add(&file, interest()).unwrap();
        set.add(&file.with_fd(1), interest()).unwrap();
    }
    race(
        ROUNDS,
        vec![
            Box::new(|round| {
                drop(sets[round].take());
                // The new set reuses the memory: a late use of the old set would find it.
                drop(new_set());
            }),
            Box::new(|round| drop(files[round].take())),
        ],
    );
    assert_eq!(ends.load(Ordering::SeqCst), ROUNDS);
    assert_eq!(account.used(), 0);
}

#[test]
fn two_sets_of_one_file_may_close_while_it_closes() {
    // The same race, while the close of the file changes its list of watchers.
    let ends = Arc::new(AtomicUsize::new(0));
    let (account, new_set) = account();
    let mut files: Vec<_> = (0..ROUNDS).map(|_| Some(Mortal::new(&ends))).collect();
    let [mut firsts, mut seconds] = [(); 2].map(|()| {
        let sets = files.iter().flatten().map(|file| {
            let set = new_set();
            set.add(&file.as_file_ref(), interest()).unwrap();
            Some(set)
        });
        sets.collect::<Vec<_>>()
    });
    race(
        ROUNDS,
        vec![
            Box::new(|round| drop(firsts[round].take())),
            Box::new(|round| drop(files[round].take())),
            Box::new(|round| drop(seconds[round].take())),
        ],
    );
    assert_eq!(ends.load(Ordering::SeqCst), ROUNDS);
    assert_eq!(account.used(), 0);
}

#[test]
fn of_delete_and_close_at_the_same_time_one_removes_the_item() {
    // Kernel bug a6dc643c6931 again: DEL used a file that had been freed meanwhile. Each thread has
    // references of its own here, and the last one that is dropped closes the set and the file.
    let ends = Arc::new(AtomicUsize::new(0));
    let (account, new_set) = account();
    let made: Vec<_> = (0..ROUNDS)
        .map(|_| (new_set(), Mortal::new(&ends)))
        .collect();
    for (set, file) in &made {
        set.add(&file.as_file_ref(), interest()).unwrap();
    }
    let held = || made.iter().cloned().map(Some).collect::<Vec<_>>();
    let mut held = [held(), held(), held()];
    drop(made);
    let [one, two, three] = &mut held;
    let removed = AtomicUsize::new(0);
    let delete = |held: &mut Option<(Epoll, File<Mortal>)>| {
        let (set, file) = held.take().unwrap();
        match set.delete(&file.as_file_ref()) {
            Ok(()) => drop(removed.fetch_add(1, Ordering::SeqCst)),
            Err(errno) => assert_eq!(errno, Errno::NOENT),
        }
    };
    race(
        ROUNDS,
        vec![
            Box::new(|round| delete(&mut one[round])),
            Box::new(|round| delete(&mut two[round])),
            Box::new(|round| {
                let (set, file) = three[round].take().unwrap();
                if round % 2 == 0 {
                    drop(set);
                    drop(file);
                } else {
                    drop(file);
                    drop(set);
                }
            }),
        ],
    );
    assert_eq!(removed.load(Ordering::SeqCst), ROUNDS);
    assert_eq!(ends.load(Ordering::SeqCst), ROUNDS);
    assert_eq!(account.used(), 0);
}

#[test]
fn the_last_of_several_references_closes_whoever_drops_it() {
    let ends = Arc::new(AtomicUsize::new(0));
    let (account, new_set) = account();
    let set = new_set();
    let mut firsts: Vec<_> = (0..ROUNDS).map(|_| Some(Mortal::new(&ends))).collect();
    let mut seconds = firsts.clone();
    for file in firsts.iter().flatten() {
        set.add(&file.as_file_ref(), interest()).unwrap();
    }
    race(
        ROUNDS,
        vec![
            Box::new(|round| {
                // DEL while the other reference closes.
                let file = firsts[round].take().unwrap();
                if round % 2 == 0 {
                    set.delete(&file.as_file_ref()).unwrap();
                }
            }),
            Box::new(|round| drop(seconds[round].take())),
        ],
    );
    assert!(set.is_empty());
    assert_eq!(ends.load(Ordering::SeqCst), ROUNDS);
    drop(set);
    assert_eq!(account.used(), 0);
}

#[test]
fn a_file_is_not_polled_once_it_is_released_nor_reported_once_it_is_closed() {
    // The kernel's ep_item_poll() pins a file for this. `Mortal` panics if it is polled too late.
    let ends = Arc::new(AtomicUsize::new(0));
    let (_account, new_set) = account();
    let (set, outer) = (new_set(), new_set());
    outer.add(&set, interest()).unwrap();
    let closed = AtomicUsize::new(0);
    race(
        ROUNDS,
        vec![
            Box::new(|round| {
                let file = Mortal::new(&ends);
                set.add(&file.as_file_ref(), Event::new(IN, round as u64))
                    .unwrap();
                drop(file);
                closed.store(round + 1, Ordering::SeqCst);
            }),
            Box::new(|_| {
                let mut events = [Event::default(); 4];
                let before = closed.load(Ordering::SeqCst) as u64;
                let ready = set.try_wait(&mut events).unwrap();
                assert!(events[..ready].iter().all(|event| event.data() >= before));
                outer.try_wait(&mut events).unwrap();
            }),
        ],
    );
    assert_eq!(ends.load(Ordering::SeqCst), ROUNDS);
    assert!(set.is_empty());
}

#[test]
fn wakes_may_come_while_their_set_closes() {
    // The kernel drains the hooks of all items before it frees any.
    let (account, new_set) = account();
    let counters: Vec<_> = (0..8).map(|_| EventFd::new(0).unwrap()).collect();
    let rounds = ROUNDS / 4;
    let watching = || {
        let set = new_set();
        for counter in &counters {
            set.add(counter, Event::new(IN | ET, 0)).unwrap();
        }
        Some(set)
    };
    let mut sets: Vec<_> = (0..rounds).map(|_| watching()).collect();
    race(
        rounds,
        vec![
            Box::new(|round| drop(sets[round].take())),
            Box::new(|_| {
                for counter in &counters {
                    counter.try_write(1).unwrap();
                }
            }),
        ],
    );
    assert_eq!(account.used(), 0);
}

#[test]
fn the_graph_may_be_walked_while_sets_in_it_close() {
    // Kernel bug 07712db80857: a walk up followed an item to a set that was being freed.
    let (account, new_set) = account();
    let (inner, bottom) = (new_set(), EventFd::new(0).unwrap());
    race(
        ROUNDS,
        vec![
            Box::new(|_| {
                // Sets above it come and go.
                let (top, middle) = (new_set(), new_set());
                middle.add(&inner, interest()).unwrap();
                top.add(&middle, interest()).unwrap();
            }),
            Box::new(|_| {
                // ADD of a file counts the paths upwards; ADD of a set counts the links in both
                // directions.
                inner.add(&bottom, interest()).unwrap();
                let below = new_set();
                inner.add(&below, interest()).unwrap();
                inner.delete(&bottom).unwrap();
            }),
        ],
    );
    assert!(inner.is_empty());
    drop(inner);
    assert_eq!(account.used(), 0);
}

#[test]
fn two_threads_cannot_close_a_loop_between_them() {
    let (account, new_set) = account();
    let pairs: Vec<_> = (0..ROUNDS).map(|_| [new_set(), new_set()]).collect();
    let added = AtomicUsize::new(0);
    let link = |from: &Epoll, to: &Epoll| match from.add(to, interest()) {
        Ok(()) => drop(added.fetch_add(1, Ordering::SeqCst)),
        Err(errno) => assert_eq!(errno, Errno::LOOP),
    };
    race(
        ROUNDS,
        vec![
            Box::new(|round| link(&pairs[round][0], &pairs[round][1])),
            Box::new(|round| link(&pairs[round][1], &pairs[round][0])),
        ],
    );
    assert_eq!(added.load(Ordering::SeqCst), ROUNDS);
    let links = |pair: &[Epoll; 2]| pair[0].len() + pair[1].len();
    assert!(pairs.iter().all(|pair| links(pair) == 1));
    drop(pairs);
    assert_eq!(account.used(), 0);
}
