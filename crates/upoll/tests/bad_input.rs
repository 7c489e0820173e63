//! Misuse of the library, single and from many threads: no memory is corrupted, no event is lost
//! and nothing leaks.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use upoll::{
    CreateFlags, Epoll, Errno, Event, EventFd, Events, File, PollTable, Pollable, WaitQueue, Watch,
    WatchLimit,
};

const IN: Events = Events::IN;
const ET: Events = Events::ET;

/// Fewer without optimisation, so that the test takes no longer.
const MANY: usize = if cfg!(debug_assertions) {
    100_000
} else {
    1_000_000
};

fn interest() -> Event {
    Event::new(IN, 0)
}

fn account() -> (Arc<WatchLimit>, impl Fn() -> Epoll) {
    let account = WatchLimit::new(usize::MAX);
    let drawn_on = account.clone();
    let set = move || Epoll::create_within(CreateFlags::empty(), drawn_on.clone()).unwrap();
    (account, set)
}

fn harvest(set: &Epoll, room: usize) -> Vec<Event> {
    let mut events = vec![Event::default(); room];
    let ready = set.try_wait(&mut events).unwrap();
    events.truncate(ready);
    events
}

/// A number from 0 to `below`, by xorshift: the same sequence in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % below
    }
}

#[test]
fn very_many_adds_and_deletes_in_any_order_leave_nothing_behind() {
    let (account, new_set) = account();
    let set = new_set();
    let counters: Vec<_> = (0..1_000).map(|n| EventFd::new(n % 2).unwrap()).collect();
    let mut watched = vec![false; counters.len()];
    let mut dice = Dice(1);
    for _ in 0..MANY {
        let n = dice.roll(counters.len());
        if watched[n] {
            set.delete(&counters[n]).unwrap();
        } else {
            set.add(&counters[n], Event::new(IN, n as u64)).unwrap();
        }
        watched[n] = !watched[n];
    }
    let members = watched.iter().filter(|&&watched| watched).count();
    assert_eq!(set.len(), members);
    let ready: BTreeSet<_> = harvest(&set, 1_000).iter().map(Event::data).collect();
    let expected = (1..1_000).step_by(2).filter(|&n| watched[n]);
    assert_eq!(ready, expected.map(|n| n as u64).collect());
    drop(counters);
    assert!(set.is_empty());
    assert!(harvest(&set, 4).is_empty());
    drop(set);
    assert_eq!(account.used(), 0);
}

#[test]
fn one_file_under_very_many_fds_closes_at_once() {
    let (account, new_set) = account();
    let set = new_set();
    let fds = i32::try_from(MANY / 5).unwrap();
    let counter = EventFd::new(0).unwrap();
    for fd in 0..fds {
        // Negative fds are as valid as others.
        let file = counter.as_file_ref().with_fd(fd - fds / 2);
        set.add(&file, Event::new(IN, fd.cast_unsigned().into()))
            .unwrap();
    }
    counter.try_write(1).unwrap();
    assert_eq!(harvest(&set, MANY).len(), MANY / 5);
    drop(counter);
    assert!(set.is_empty());
    assert!(harvest(&set, 4).is_empty());
    drop(set);
    assert_eq!(account.used(), 0);
}

#[test]
fn a_set_of_very_many_closes_at_once_and_so_do_very_many_sets_of_one_file() {
    let (account, new_set) = account();
    let counters: Vec<_> = (0..MANY / 10).map(|_| EventFd::new(1).unwrap()).collect();
    let set = new_set();
    for counter in &counters {
        set.add(counter, interest()).unwrap();
    }
    drop(set);
    assert_eq!(account.used(), 0);
    let sets: Vec<_> = (0..MANY / 50).map(|_| new_set()).collect();
    for set in &sets {
        set.add(&counters[0], interest()).unwrap();
    }
    drop(counters);
    assert!(sets.iter().all(Epoll::is_empty));
    drop(sets);
    assert_eq!(account.used(), 0);
}

#[test]
fn an_fd_that_is_used_again_at_once_never_meets_what_was_there_before() {
    // The allocator may place the next file where the last one was.
    let (account, new_set) = account();
    let sets = [new_set(), new_set()];
    thread::scope(|scope| {
        for thread in 0..3_u64 {
            let sets = &sets;
            scope.spawn(move || {
                let fd = i32::try_from(thread % 2).unwrap();
                for round in 0..MANY as u64 / 20 {
                    let counter = EventFd::new(1).unwrap();
                    let file = counter.as_file_ref().with_fd(fd);
                    for set in sets {
                        set.add(&file, Event::new(IN, round)).unwrap();
                    }
                    sets[0].delete(&file).unwrap();
                    assert_eq!(sets[0].delete(&file), Err(Errno::NOENT));
                }
            });
        }
    });
    assert!(sets.iter().all(Epoll::is_empty));
    drop(sets);
    assert_eq!(account.used(), 0);
}

#[test]
fn files_may_close_while_threads_wait_for_them() {
    let (account, new_set) = account();
    let set = new_set();
    let stop = EventFd::new(0).unwrap();
    set.add(&stop, Event::new(IN, u64::MAX)).unwrap();
    let rounds = MANY as u64 / 20;
    // Files up to this one are closed.
    let closed = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let before = closed.load(Ordering::SeqCst) as u64;
                    let mut events = [Event::default(); 2];
                    let ready = set.wait(&mut events, None).unwrap();
                    assert_ne!(ready, 0);
                    if events[..ready].iter().any(|event| event.data() == u64::MAX) {
                        break;
                    }
                    assert!(events[..ready].iter().all(|event| event.data() >= before));
                }
            });
        }
        for round in 0..rounds {
            let counter = EventFd::new(0).unwrap();
            let mode = if round % 2 == 0 { ET } else { Events::ONESHOT };
            set.add(&counter, Event::new(IN | mode, round)).unwrap();
            counter.try_write(1).unwrap();
            drop(counter);
            closed.store(usize::try_from(round).unwrap() + 1, Ordering::SeqCst);
        }
        stop.try_write(1).unwrap();
    });
    drop(stop);
    assert!(set.is_empty());
    drop(set);
    assert_eq!(account.used(), 0);
}

#[test]
fn sets_may_close_while_threads_wait_in_them_and_above_them() {
    let (account, new_set) = account();
    let outer = new_set();
    let stop = EventFd::new(0).unwrap();
    outer.add(&stop, Event::new(IN, 1)).unwrap();
    let source = EventFd::new(0).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut events = [Event::default(); 2];
            loop {
                let ready = outer.wait(&mut events, None).unwrap();
                if events[..ready].iter().any(|event| event.data() == 1) {
                    break;
                }
            }
        });
        scope.spawn(|| {
            while !stop.as_file_ref().is_ready(IN) {
                source.try_write(1).unwrap();
                thread::yield_now();
            }
        });
        for round in 0..MANY / 100 {
            let inner = new_set();
            inner.add(&source, Event::new(IN | ET, 0)).unwrap();
            outer.add(&inner, Event::new(IN | ET, 2)).unwrap();
            if round % 64 == 0 {
                // A waiting thread may hold the last reference.
                let waiting = inner.clone();
                scope.spawn(move || waiting.wait(&mut [Event::default()], None));
            }
        }
        stop.try_write(1).unwrap();
        // Ends the waits of the threads that are still blocked.
        while outer.len() > 1 {
            source.try_write(1).unwrap();
            thread::yield_now();
        }
    });
    assert_eq!(outer.len(), 1);
    drop((outer, source, stop));
    assert_eq!(account.used(), 0);
}

/// A counter that records its end.
struct Counted {
    count: AtomicUsize,
    queue: WaitQueue,
    other: WaitQueue,
    released: AtomicBool,
    alive: Arc<AtomicUsize>,
}

impl Counted {
    fn new(alive: &Arc<AtomicUsize>) -> File<Counted> {
        alive.fetch_add(1, Ordering::SeqCst);
        File::new(Counted {
            count: AtomicUsize::new(0),
            queue: WaitQueue::new(),
            other: WaitQueue::new(),
            released: AtomicBool::new(false),
            alive: alive.clone(),
        })
    }

    fn set(&self, count: usize) {
        self.count.store(count, Ordering::SeqCst);
        if count > 0 {
            self.queue.wake(IN);
        }
        self.other.wake(Events::OUT);
    }
}

impl Pollable for Counted {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        assert!(!self.released.load(Ordering::SeqCst));
        table.register(&self.queue);
        table.register(&self.other);
        if self.count.load(Ordering::SeqCst) > 0 {
            IN | Events::OUT
        } else {
            Events::OUT
        }
    }

    fn release(&self) {
        self.released.store(true, Ordering::SeqCst);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The objects shared by the threads of the test below. Each thread takes, replaces and uses the
/// objects of the others.
struct Shared {
    sets: Vec<Mutex<Epoll>>,
    files: Vec<Mutex<File<Counted>>>,
    alive: Arc<AtomicUsize>,
}

impl Shared {
    fn set(&self, dice: &mut Dice) -> Epoll {
        self.sets[dice.roll(self.sets.len())]
            .lock()
            .unwrap()
            .clone()
    }

    fn file(&self, dice: &mut Dice) -> File<Counted> {
        self.files[dice.roll(self.files.len())]
            .lock()
            .unwrap()
            .clone()
    }

    fn step(&self, dice: &mut Dice, new_set: &impl Fn() -> Epoll, watches: &mut Vec<Watch>) {
        let modes = [Events::empty(), ET, Events::ONESHOT, Events::EXCLUSIVE];
        let event = Event::new(IN | modes[dice.roll(4)], 0);
        let fd = i32::try_from(dice.roll(2)).unwrap();
        let allowed = |result: Result<(), Errno>, errnos: &[Errno]| match result {
            Ok(()) => {}
            Err(errno) => assert!(errnos.contains(&errno), "{errno:?}"),
        };
        let changed = &[Errno::EXIST, Errno::NOENT, Errno::INVAL];
        match dice.roll(20) {
            0..5 => {
                let file = self.file(dice);
                let file = file.as_file_ref().with_fd(fd);
                allowed(self.set(dice).add(&file, event), changed);
            }
            5..8 => {
                let file = self.file(dice);
                let file = file.as_file_ref().with_fd(fd);
                allowed(self.set(dice).modify(&file, event), changed);
            }
            8..10 => {
                let file = self.file(dice);
                let file = file.as_file_ref().with_fd(fd);
                allowed(self.set(dice).delete(&file), changed);
            }
            10..13 => self.file(dice).set(dice.roll(2)),
            13 => {
                // The old file closes here, unless another thread still uses it.
                let place = dice.roll(self.files.len());
                let fresh = Counted::new(&self.alive);
                let old = std::mem::replace(&mut *self.files[place].lock().unwrap(), fresh);
                drop(old);
            }
            14 => {
                let place = dice.roll(self.sets.len());
                let old = std::mem::replace(&mut *self.sets[place].lock().unwrap(), new_set());
                drop(old);
            }
            15 => {
                let (outer, inner) = (self.set(dice), self.set(dice));
                let errnos = &[Errno::LOOP, Errno::EXIST, Errno::INVAL, Errno::NOENT];
                if dice.roll(3) == 0 {
                    allowed(outer.delete(&inner), errnos);
                } else {
                    allowed(outer.add(&inner, event), errnos);
                }
            }
            16 => {
                let mut events = [Event::default(); 3];
                let limit = Duration::from_micros(200);
                let ready = self.set(dice).wait(&mut events, limit).unwrap();
                assert!(ready <= 3);
            }
            17 => {
                let file = self.file(dice);
                watches.push(Watch::new(&file, IN, |_| ()).unwrap().0);
                if watches.len() > 4 {
                    watches.swap_remove(dice.roll(4));
                }
            }
            _ => {
                let mut events = [Event::default(); 3];
                self.set(dice).try_wait(&mut events).unwrap();
            }
        }
    }

    /// Checks that every interest that is left reports the next event of its file.
    fn loses_nothing(&self) {
        for file in &self.files {
            file.lock().unwrap().set(0);
        }
        let mut expected = Vec::new();
        for set in &self.sets {
            let set = set.lock().unwrap();
            let mut members = BTreeSet::new();
            for (place, file) in self.files.iter().enumerate() {
                for fd in 0..2 {
                    let file = file.lock().unwrap();
                    let file = file.as_file_ref().with_fd(fd);
                    // An exclusive interest cannot be modified: it is added anew.
                    let id = place as u64 * 2 + u64::try_from(fd).unwrap() + 1;
                    let event = Event::new(IN | ET, id);
                    match set.modify(&file, event) {
                        Ok(()) => {}
                        Err(Errno::NOENT) => continue,
                        Err(_) => {
                            set.delete(&file).unwrap();
                            set.add(&file, event).unwrap();
                        }
                    }
                    members.insert(id);
                }
            }
            expected.push(members);
        }
        for set in &self.sets {
            // Reports of nested sets may be left; their data is 0.
            let rest = harvest(&set.lock().unwrap(), 64);
            assert!(rest.iter().all(|event| event.data() == 0));
        }
        for file in &self.files {
            file.lock().unwrap().set(1);
        }
        for (set, expected) in self.sets.iter().zip(expected) {
            let mut reported = BTreeSet::new();
            for event in harvest(&set.lock().unwrap(), 64) {
                if event.data() != 0 {
                    assert_eq!(event.events(), IN);
                    assert!(reported.insert(event.data()), "reported twice");
                }
            }
            assert_eq!(reported, expected);
        }
    }
}

#[test]
fn threads_that_do_anything_at_once_lose_no_event_and_leave_nothing_behind() {
    let (account, new_set) = account();
    let alive = Arc::new(AtomicUsize::new(0));
    for seed in 1..=4 {
        let shared = Shared {
            sets: (0..4).map(|_| Mutex::new(new_set())).collect(),
            files: (0..6).map(|_| Mutex::new(Counted::new(&alive))).collect(),
            alive: alive.clone(),
        };
        thread::scope(|scope| {
            for thread in 0..4 {
                let (shared, new_set) = (&shared, &new_set);
                scope.spawn(move || {
                    let mut dice = Dice(seed * 1_000 + thread + 1);
                    let mut watches = Vec::new();
                    for _ in 0..MANY / 2 {
                        shared.step(&mut dice, new_set, &mut watches);
                    }
                });
            }
        });
        shared.loses_nothing();
        assert_eq!(alive.load(Ordering::SeqCst), shared.files.len());
        drop(shared);
        assert_eq!(alive.load(Ordering::SeqCst), 0);
        assert_eq!(account.used(), 0);
    }
}
