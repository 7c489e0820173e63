//! Sets, and changes of the things that they watch: interests, nested sets, closes and order.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::cell::UnsafeCell;
use loom::thread;
use upoll::sequenced::AtomicBool;
use upoll::{Epoll, Errno, Event, EventFd, Events, File, PollTable, Pollable, WaitQueue};

use super::{EDGE, IN, Waiter, harvest, hears_of, model, set_of, writes};

/// A MOD to an interest in input races with a write: the wakeup uses the new interest, or MOD finds
/// the written value.
#[test]
fn an_interest_that_changes_while_a_wake_comes_misses_nothing() {
    for interest in [IN, EDGE] {
        model(3, move || {
            let counter = EventFd::new(0).unwrap();
            let set = set_of(&counter, Event::new(Events::PRI, 0));
            let writing = writes(&counter, 1);
            set.modify(&counter, interest).unwrap();
            writing.join().unwrap();
            assert_eq!(harvest(&set), 1);
        });
    }
}

/// A MOD that rearms a oneshot interest races with a write.
#[test]
fn a_oneshot_interest_that_is_armed_anew_while_a_wake_comes_misses_nothing() {
    model(3, || {
        let once = Event::new(Events::IN | Events::ONESHOT, 0);
        let counter = EventFd::new(1).unwrap();
        let set = set_of(&counter, once);
        assert_eq!(harvest(&set), 1);
        counter.try_read().unwrap();
        let writing = writes(&counter, 1);
        set.modify(&counter, once).unwrap();
        writing.join().unwrap();
        assert_eq!(harvest(&set), 1);
    });
}

/// Two sets are added to each other concurrently. At most one ADD succeeds.
#[test]
fn of_two_sets_that_are_added_to_each_other_one_is_refused() {
    model(3, || {
        let sets = [(); 2].map(|()| Epoll::new().unwrap());
        let others = sets.clone();
        let adding = thread::spawn(move || others[0].add(&others[1], IN));
        let results = [sets[1].add(&sets[0], IN), adding.join().unwrap()];
        let refused = results.iter().filter(|&&result| result == Err(Errno::LOOP));
        assert_eq!(refused.count(), 1);
        assert!(results.contains(&Ok(())));
    });
}

/// A set is added to another one while its own member becomes ready.
#[test]
fn a_set_that_is_added_while_a_wake_comes_is_found_ready() {
    model(3, || {
        let counter = EventFd::new(0).unwrap();
        let [inner, outer] = [(); 2].map(|()| Epoll::new().unwrap());
        inner.add(&counter, IN).unwrap();
        let writing = writes(&counter, 1);
        outer.add(&inner, IN).unwrap();
        writing.join().unwrap();
        assert_eq!(harvest(&outer), 1);
    });
}

/// A waiter at an outer set learns of an event below it while others poll the set.
#[test]
fn a_waiter_at_an_outer_set_learns_of_a_member_below() {
    model(3, || {
        let counter = EventFd::new(0).unwrap();
        let [inner, outer] = [(); 2].map(|()| Epoll::new().unwrap());
        inner.add(&counter, IN).unwrap();
        outer.add(&inner, IN).unwrap();
        let writing = writes(&counter, 1);
        let waiter = Waiter::in_set(&outer);
        writing.join().unwrap();
        assert!(waiter.has_heard());
        assert_eq!(harvest(&outer), 1);
    });
}

/// Two exclusive interests in one file. One is deleted while a wakeup comes: the set that stays
/// gets the event.
#[test]
fn an_exclusive_wake_is_with_the_set_that_stays() {
    model(3, || {
        let exclusive = Event::new(Events::IN | Events::EXCLUSIVE, 0);
        let counter = EventFd::new(0).unwrap();
        let sets = [(); 2].map(|()| Epoll::new().unwrap());
        for set in &sets {
            set.add(&counter, exclusive).unwrap();
        }
        let [leaving, staying] = sets;
        let writing = writes(&counter, 1);
        let waiter = Waiter::in_set(&staying);
        leaving.delete(&counter).unwrap();
        writing.join().unwrap();
        assert!(waiter.has_heard());
        assert_eq!(harvest(&staying), 1);
    });
}

/// An object of an embedder, which orders its state no more than it must.
pub(super) struct Flag {
    pub(super) queue: WaitQueue,
    is_up: AtomicBool,
}

impl Flag {
    pub(super) fn new() -> File<Flag> {
        File::new(Flag {
            queue: WaitQueue::new(),
            is_up: AtomicBool::new(false),
        })
    }

    pub(super) fn set(&self, is_up: bool) {
        self.is_up.store(is_up, Ordering::Release);
        self.queue.wake(Events::IN);
    }

    /// Takes the flag down, which wakes nobody. Returns whether it was up.
    pub(super) fn take(&self) -> bool {
        self.is_up.swap(false, Ordering::SeqCst)
    }
}

impl Pollable for Flag {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        match self.is_up.load(Ordering::Acquire) {
            true => Events::IN,
            false => Events::empty(),
        }
    }
}

/// Every kind of wakeup comes after the state that it announces, however weakly an object orders
/// that state.
#[test]
fn a_waiter_at_an_embedders_object_misses_no_wake() {
    for wake in [WaitQueue::wake, WaitQueue::wake_all, WaitQueue::wake_rotate] {
        model(3, move || {
            let flag = Flag::new();
            let changed = flag.clone();
            let open = flag.erase();
            hears_of(open.as_file_ref(), Events::IN, move || {
                changed.is_up.store(true, Ordering::Release);
                wake(&changed.queue, Events::IN);
            });
        });
    }
}

/// A scan finds an item idle that was queued. Meanwhile its object becomes ready, and the wakeup finds the item queued.
#[test]
fn a_scan_of_an_embedders_object_misses_no_wake() {
    for interest in [IN, EDGE] {
        model(3, move || {
            let flag = Flag::new();
            let set = set_of(&flag, interest);
            flag.set(true);
            flag.set(false);
            let changed = flag.clone();
            let changing = thread::spawn(move || changed.set(true));
            let seen = harvest(&set);
            changing.join().unwrap();
            assert!(seen + harvest(&set) > 0);
        });
    }
}

/// The item that was queued first goes to the ready list in one scan. A thread that comes meanwhile finds it.
#[test]
fn an_item_that_a_scan_moves_to_the_ready_list_is_found_by_others() {
    model(3, || {
        let counter = EventFd::new(0).unwrap();
        let set = set_of(&counter, IN);
        counter.try_write(1).unwrap();
        let scanner = set.clone();
        let scanning = thread::spawn(move || harvest(&scanner));
        assert_eq!(harvest(&set), 1);
        assert_eq!(scanning.join().unwrap(), 1);
    });
}

/// An item is queued, and two more become ready one after the other while two threads scan. The later of the two is not
/// reported before the other.
#[test]
fn items_that_become_ready_one_after_the_other_are_reported_in_that_order() {
    model(3, || {
        let [before, first, second] = [(); 3].map(|()| EventFd::new(0).unwrap());
        let set = Epoll::new().unwrap();
        for (data, counter) in [&before, &first, &second].into_iter().enumerate() {
            let interest = Event::new(EDGE.events(), data as u64);
            set.add(counter, interest).unwrap();
        }
        before.try_write(1).unwrap();
        let scanner = set.clone();
        let scanning = thread::spawn(move || harvest(&scanner));
        let both = [first.clone(), second.clone()];
        let waking = thread::spawn(move || both.map(|counter| counter.try_write(1).unwrap()));
        harvest(&set);
        scanning.join().unwrap();
        waking.join().unwrap();
        let mut late = [Event::default(); 3];
        let count = set.try_wait(&mut late).unwrap();
        let late: Vec<_> = late[..count].iter().map(Event::data).collect();
        assert!(!late.contains(&1) || late.ends_with(&[1, 2]), "{late:?}");
    });
}

/// An object with two queues.
struct Twice([Flag; 2]);

impl Pollable for Twice {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        let [one, other] = &self.0;
        one.poll(table) | other.poll(table)
    }
}

/// Two queues of an object wake its item at the same time, while the set is scanned. The item is reported once by each scan.
#[test]
fn an_item_that_two_queues_wake_at_once_is_queued_once() {
    for (interest, at_the_end) in [(IN, 1), (EDGE, 0)] {
        model(3, move || {
            let flag = || Flag {
                queue: WaitQueue::new(),
                is_up: AtomicBool::new(false),
            };
            let file = File::new(Twice([flag(), flag()]));
            let set = set_of(&file, interest);
            let changing = [0, 1].map(|which| {
                let file = file.clone();
                thread::spawn(move || file.0[which].set(true))
            });
            let seen = harvest(&set);
            for changing in changing {
                changing.join().unwrap();
            }
            let after = harvest(&set);
            assert!(seen <= 1 && after <= 1 && seen + after > 0);
            assert_eq!(harvest(&set), at_the_end);
        });
    }
}

/// A waiter at a set registers while a member becomes ready. An exclusive one comes to the arrivals at once.
#[test]
fn a_waiter_at_a_set_misses_no_arrival() {
    for interest in [IN, Event::new(Events::IN | Events::EXCLUSIVE, 0)] {
        model(4, move || {
            let counter = EventFd::new(0).unwrap();
            let set = set_of(&counter, interest);
            let writer = counter.clone();
            hears_of(set.as_file_ref(), Events::IN, move || {
                writer.try_write(1).unwrap();
            });
        });
    }
}

/// An object whose state may be touched only through a reference.
struct Owned {
    queue: WaitQueue,
    uses: [UnsafeCell<u32>; 2],
    released: Arc<AtomicUsize>,
}

// SAFETY: loom fails if two threads use a cell concurrently.
unsafe impl Sync for Owned {}

impl Owned {
    fn all_uses(&self) -> u32 {
        // SAFETY: loom fails if another thread writes concurrently.
        let uses = |cell: &UnsafeCell<u32>| cell.with(|uses| unsafe { *uses });
        self.uses.iter().map(uses).sum()
    }
}

impl Pollable for Owned {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        Events::empty()
    }

    fn release(&self) {
        assert_eq!(self.all_uses(), 2);
        self.released.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        assert_eq!(self.all_uses(), 2);
    }
}

/// Two threads use a file and drop it. The last one sees the uses of the other.
#[test]
fn the_last_reference_comes_after_all_uses() {
    model(3, || {
        let released = Arc::new(AtomicUsize::new(0));
        let file = File::new(Owned {
            queue: WaitQueue::new(),
            uses: [(); 2].map(|()| UnsafeCell::new(0)),
            released: released.clone(),
        });
        let file_too = file.clone();
        let other = thread::spawn(move || {
            // SAFETY: as above.
            file_too.uses[1].with_mut(|uses| unsafe { *uses += 1 });
        });
        // SAFETY: as above.
        file.uses[0].with_mut(|uses| unsafe { *uses += 1 });
        drop(file);
        other.join().unwrap();
        assert_eq!(released.load(Ordering::SeqCst), 1);
    });
}

/// A set keeps the memory of a watched file alive. The last thread that drops it sees all uses.
#[test]
fn memory_goes_after_the_last_look() {
    model(3, || {
        let released = Arc::new(AtomicUsize::new(0));
        let file = File::new(Owned {
            queue: WaitQueue::new(),
            uses: [(); 2].map(|()| UnsafeCell::new(1)),
            released: released.clone(),
        });
        let set = set_of(&file, IN);
        let closing = thread::spawn(move || drop(set));
        // SAFETY: as above.
        file.uses[0].with_mut(|uses| unsafe { *uses = 1 });
        drop(file);
        closing.join().unwrap();
        assert_eq!(released.load(Ordering::SeqCst), 1);
    });
}

/// Two files become ready one after the other during a scan. They are reported in that order.
#[test]
fn two_arrivals_are_reported_in_their_order() {
    // The first one of those that are not exclusive is not among the arrivals.
    for kind in [Events::ET, Events::ET | Events::EXCLUSIVE] {
        two_arrivals_in_order(kind);
    }
}

fn two_arrivals_in_order(kind: Events) {
    model(3, move || {
        let counters = [(); 2].map(|()| EventFd::new(0).unwrap());
        let set = Epoll::new().unwrap();
        for (data, counter) in (0..).zip(&counters) {
            let edge = Event::new(Events::IN | kind, data);
            set.add(counter, edge).unwrap();
        }
        let writing = thread::spawn(move || {
            for counter in &counters {
                counter.try_write(1).unwrap();
            }
            counters
        });
        let mut reported = Vec::new();
        let mut scan = || {
            let mut events = [Event::default(); 2];
            let count = set.try_wait(&mut events).unwrap();
            reported.extend(events[..count].iter().map(|event| event.data()));
        };
        scan();
        let _open = writing.join().unwrap();
        scan();
        assert_eq!(reported, [0, 1]);
    });
}
