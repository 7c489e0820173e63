//! Models of the concurrent protocols. loom checks all interleavings up to a bound on preemptions.
//! Each model has a broken variant: with one rule switched off, loom must find the fault.
#![cfg(upoll_loom)]

mod attendant;
mod channel;
mod forks;
mod harness;
mod kernel;
mod kernel_fds;
mod kernel_rotation;
mod lost_fds;
mod missed;
mod own_fds;
mod pipes;
mod poll_context;
mod readiness_fd;
mod robust_lock;
mod rotation;
mod scopes;
mod sets;
mod shared;
mod shared_in_sets;
mod sleeping;
mod tasks;
mod timers;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::sync::atomic::AtomicU32;
use loom::thread;
use upoll::{
    Epoll, Errno, Event, EventFd, Events, FdSet, File, FileRef, Lock, PIPE_BUF, PollFd, PollTable,
    Pollable, Rule, SocketFlags, Source, WaitQueue, Watch, break_rule, pipe, poll_now, select_now,
    socketpair,
};

use self::harness::must_fail_without;

const IN: Event = Event::new(Events::IN, 0);
const EDGE: Event = Event::new(Events::IN.union(Events::ET), 0);

/// Runs a model. The library's own fds are protected, as under the preload.
fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    harness::model(preemptions, move || {
        upoll::internal::own_fds::protect();
        body();
    });
}

fn set_of(source: &impl Source, interest: Event) -> Epoll {
    let set = Epoll::new().unwrap();
    set.add(source, interest).unwrap();
    set
}

/// A thread that adds `value` to `counter`.
fn writes(counter: &EventFd, value: u64) -> thread::JoinHandle<()> {
    let counter = counter.clone();
    thread::spawn(move || counter.try_write(value).unwrap())
}

fn harvest(set: &Epoll) -> usize {
    set.try_wait(&mut [Event::default(); 2]).unwrap()
}

/// Waits for `events` of a file.
struct Waiter {
    ready: Events,
    told: Arc<AtomicUsize>,
    _watch: Watch,
}

impl Waiter {
    fn at(file: FileRef<'_>, events: Events) -> Self {
        Self::at_any(&file, events)
    }

    /// Registers, then polls.
    fn at_any(source: &impl Source, events: Events) -> Self {
        let told = Arc::new(AtomicUsize::new(0));
        let note = told.clone();
        let (watch, ready) = Watch::new(source, events, move |_| {
            note.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap();
        Waiter {
            ready,
            told,
            _watch: watch,
        }
    }

    /// Waits for any event of a set.
    fn in_set(set: &Epoll) -> Self {
        Self::at(set.as_file_ref(), Events::IN)
    }

    fn times_told(&self) -> usize {
        self.told.load(Ordering::SeqCst)
    }

    fn was_told(&self) -> bool {
        self.times_told() > 0
    }

    /// Returns whether the waiter found the event when it registered, or was woken.
    fn has_heard(&self) -> bool {
        !self.ready.is_empty() || self.was_told()
    }
}

/// Registers a waiter while `change` runs on another thread, and checks that the waiter learns of
/// `events`.
fn hears_of<T: Send + 'static>(
    file: FileRef<'_>,
    events: Events,
    change: impl FnOnce() -> T + Send + 'static,
) {
    let changing = thread::spawn(change);
    let waiter = Waiter::at(file, events);
    // The result stays open: its close would be an event too.
    let _open = changing.join().unwrap();
    assert!(waiter.ready.intersects(events) || waiter.was_told());
    assert!(file.is_ready(events));
}

/// Register then poll, against publish then wake: a waiter either sees the new state or is woken.
fn registering_against_publishing() {
    model(4, || {
        let counter = EventFd::new(0).unwrap();
        let writer = counter.clone();
        hears_of(counter.as_file_ref(), Events::IN, move || {
            writer.try_write(1).unwrap();
        });
    });
}

#[test]
fn a_waiter_that_registers_and_polls_misses_no_wake() {
    registering_against_publishing();
}

#[test]
fn a_waiter_that_does_not_poll_after_registering_misses_a_wake() {
    must_fail_without(Rule::LookAfterRegistering, registering_against_publishing);
}

/// The ready list and the arrivals, level-triggered: two scanners and a writer race, and an item
/// that is ready at the end is reported.
fn scanning_against_writing() {
    model(3, || {
        let counter = EventFd::new(1).unwrap();
        let set = set_of(&counter, IN);
        // The item is queued, and idle when it is scanned.
        counter.try_read().unwrap();
        let writing = writes(&counter, 1);
        let scanner = set.clone();
        let scanning = thread::spawn(move || harvest(&scanner));
        harvest(&set);
        writing.join().unwrap();
        scanning.join().unwrap();
        assert_eq!(harvest(&set), 1);
    });
}

#[test]
fn a_ready_item_is_never_lost_between_scans_and_wakes() {
    scanning_against_writing();
}

#[test]
fn without_the_second_poll_a_scan_loses_a_wake() {
    must_fail_without(Rule::RepollAfterUnqueue, scanning_against_writing);
}

/// A thread that has written to a file finds it ready at once, even if a MOD or an ADD of another
/// thread is about to queue it for the same write.
#[test]
fn a_writer_that_polls_finds_its_event_while_others_change_the_set() {
    model(4, || {
        let counter = EventFd::new(0).unwrap();
        let set = set_of(&counter, IN);
        let (other_set, other_counter) = (set.clone(), counter.clone());
        let changing = thread::spawn(move || other_set.modify(&other_counter, IN).unwrap());
        counter.try_write(1).unwrap();
        assert_eq!(harvest(&set), 1);
        changing.join().unwrap();
    });
}

/// A thread that has added a ready file finds it ready at once, even if a wakeup is in progress.
#[test]
fn an_add_that_polls_finds_a_ready_file_while_a_wake_is_in_progress() {
    model(5, || {
        let counter = EventFd::new(0).unwrap();
        let set = Epoll::new().unwrap();
        let (adder, added) = (set.clone(), counter.clone());
        let adding = thread::spawn(move || {
            let was_ready = added.as_file_ref().is_ready(Events::IN);
            adder.add(&added, IN).unwrap();
            assert!(harvest(&adder) == 1 || !was_ready);
        });
        counter.try_write(1).unwrap();
        adding.join().unwrap();
    });
}

/// Edge-triggered: one write is reported exactly once, by one of two scanners.
#[test]
fn an_edge_is_reported_once_however_scanners_race() {
    model(4, || {
        let counter = EventFd::new(0).unwrap();
        let set = set_of(&counter, EDGE);
        let writing = writes(&counter, 1);
        let scanner = set.clone();
        let scanning = thread::spawn(move || harvest(&scanner));
        let mut reports = harvest(&set);
        writing.join().unwrap();
        reports += scanning.join().unwrap();
        reports += harvest(&set);
        assert_eq!(reports, 1);
    });
}

/// An object that counts its drops and releases.
struct Probe {
    queue: WaitQueue,
    released: Arc<AtomicUsize>,
    dropped: Arc<AtomicUsize>,
}

impl Pollable for Probe {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        Events::IN
    }

    fn release(&self) {
        self.released.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

/// Returns a set that watches a probe, and the probe's counters.
fn probed() -> (File<Probe>, Epoll, [Arc<AtomicUsize>; 2]) {
    let [released, dropped] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let file = File::new(Probe {
        queue: WaitQueue::new(),
        released: released.clone(),
        dropped: dropped.clone(),
    });
    let set = set_of(&file, IN);
    (file, set, [released, dropped])
}

fn all_once(counts: &[Arc<AtomicUsize>]) -> bool {
    counts.iter().all(|count| count.load(Ordering::SeqCst) == 1)
}

/// Close of the file, close of the set and DEL race: the item is removed once, and the object is
/// released and dropped once.
fn closes_and_del_race() {
    model(4, || {
        let (file, set, counts) = probed();
        let (other_file, other_set) = (file.clone(), set.clone());
        let deleting = thread::spawn(move || {
            let _ = other_set.delete(&other_file);
        });
        let closing_set = thread::spawn(move || drop(set));
        drop(file);
        deleting.join().unwrap();
        closing_set.join().unwrap();
        assert!(all_once(&counts));
    });
}

/// Close of the file against DEL by fd and close of the set.
fn file_close_against_set_close() {
    model(4, || {
        let (file, set, counts) = probed();
        let closing_set = thread::spawn(move || drop(set));
        drop(file);
        closing_set.join().unwrap();
        assert!(all_once(&counts));
    });
}

#[test]
fn an_item_is_removed_once_whoever_closes_first() {
    file_close_against_set_close();
    closes_and_del_race();
}

#[test]
fn a_closing_file_that_does_not_recheck_meets_a_removed_item() {
    must_fail_without(Rule::RecheckUnderSetLock, file_close_against_set_close);
}

/// The maximum is set while others write: no write is lost, none exceeds the maximum, and a writer
/// that did not fit is woken when there is room.
fn limiting_against_writing() {
    model(4, || {
        let counter = EventFd::new(1).unwrap();
        let writer = counter.clone();
        let writing = thread::spawn(move || writer.try_write(2));
        let limited = counter.set_maximum(3);
        let written = writing.join().unwrap();
        // Exactly one of the two came first, and the other one failed.
        assert_ne!(limited.is_ok(), written.is_ok());
        let maximum = if limited.is_ok() { 3 } else { u64::MAX };
        assert_eq!(counter.maximum(), maximum);
        counter.set_maximum(u64::MAX).unwrap();
        let count = if written.is_ok() { 3 } else { 1 };
        assert_eq!(counter.try_read(), Ok(count));
    });
}

#[test]
fn a_maximum_that_comes_while_others_write_loses_nothing() {
    limiting_against_writing();
}

#[test]
fn a_count_that_moves_in_two_steps_loses_a_write() {
    must_fail_without(Rule::MoveCountInOneStep, limiting_against_writing);
}

#[test]
fn a_writer_that_does_not_fit_learns_of_a_read_or_of_a_raised_maximum() {
    for raise in [false, true] {
        model(4, move || {
            let counter = EventFd::new(1).unwrap();
            counter.set_maximum(2).unwrap();
            let other = counter.clone();
            hears_of(counter.as_file_ref(), Events::OUT, move || {
                if raise {
                    other.set_maximum(u64::MAX).unwrap();
                } else {
                    other.try_read().unwrap();
                }
            });
        });
    }
}

/// The part of `poll` and `select` that works without putting a thread to sleep.
#[test]
fn poll_and_select_check_without_waiting() {
    model(1, || {
        let counters = [0, 1].map(|count| EventFd::new(count).unwrap());
        let mut fds = [
            PollFd::new(&counters[0], Events::IN),
            PollFd::new(&counters[1], Events::IN),
            PollFd::not_open(),
        ];
        assert_eq!(poll_now(&mut fds), Ok(2));
        let masks = fds.map(|fd| fd.revents());
        assert_eq!(masks, [Events::empty(), Events::IN, Events::NVAL]);
        let mut read = FdSet::from_iter([0, 1]);
        let resolve = |fd| Some(counters.get(usize::try_from(fd).ok()?)?.target());
        assert_eq!(select_now(2, Some(&mut read), None, None, resolve), Ok(1));
        assert_eq!(read, FdSet::from_iter([1]));
        let mut read = FdSet::from_iter([2]);
        let closed = select_now(3, Some(&mut read), None, None, resolve);
        assert_eq!(closed, Err(Errno::BADF));
    });
}

/// One end closes while a waiter at the other end goes to sleep.
fn closing_against_registering() {
    model(4, || {
        let (reader, writer) = pipe().unwrap();
        hears_of(reader.as_file_ref(), Events::HUP, move || drop(writer));
    });
    model(4, || {
        let (reader, writer) = pipe().unwrap();
        hears_of(writer.as_file_ref(), Events::ERR, move || drop(reader));
    });
    model(4, || {
        let (one, other) = socketpair(SocketFlags::empty()).unwrap();
        hears_of(one.as_file_ref(), Events::RDHUP, move || drop(other));
    });
}

#[test]
fn a_waiter_at_one_end_learns_of_the_close_of_the_other() {
    closing_against_registering();
}

#[test]
fn a_waiter_that_does_not_poll_after_registering_misses_a_close() {
    must_fail_without(Rule::LookAfterRegistering, closing_against_registering);
}

/// The first byte comes while a reader goes to sleep, and a read makes room while a writer goes to
/// sleep. They are the first waiters of the pipe.
fn moving_bytes_against_registering() {
    model(4, || {
        let (reader, writer) = pipe().unwrap();
        hears_of(reader.as_file_ref(), Events::IN, move || {
            writer.try_write(&[1]).unwrap();
            writer
        });
    });
    model(4, || {
        let (reader, writer) = pipe().unwrap();
        writer.set_capacity(PIPE_BUF).unwrap();
        writer.try_write(&[0; PIPE_BUF]).unwrap();
        hears_of(writer.as_file_ref(), Events::OUT, move || {
            reader.try_read(&mut [0; PIPE_BUF]).unwrap();
            reader
        });
    });
}

#[test]
fn a_waiter_that_registers_with_a_pipe_and_polls_misses_nothing() {
    moving_bytes_against_registering();
}

#[test]
fn a_waiter_that_does_not_poll_after_registering_with_a_pipe_misses_an_event() {
    must_fail_without(Rule::LookAfterRegistering, moving_bytes_against_registering);
}

/// The first byte comes while a reader of a socket goes to sleep.
#[test]
fn a_waiter_that_registers_with_a_socket_and_polls_misses_nothing() {
    model(4, || {
        let (one, other) = socketpair(SocketFlags::empty()).unwrap();
        hears_of(one.as_file_ref(), Events::IN, move || {
            other.try_write(&[1]).unwrap();
            other
        });
    });
}

/// From the first poll on, each write wakes. Before it, only a write to an empty pipe does. An
/// edge-triggered reader that reads until `EAGAIN` after each report misses nothing, even if the
/// first poll and a write race.
#[test]
fn an_edge_triggered_reader_that_drains_the_pipe_misses_no_write() {
    model(4, || {
        let (reader, writer) = pipe().unwrap();
        writer.try_write(&[1]).unwrap();
        let writing = thread::spawn(move || {
            writer.try_write(&[2]).unwrap();
            writer
        });
        let set = set_of(&reader, EDGE);
        let mut read = 0;
        let mut drain = || {
            loop {
                match reader.try_read(&mut [0]) {
                    Ok(count) => read += count,
                    Err(errno) => break assert_eq!(errno, Errno::AGAIN),
                }
            }
        };
        if harvest(&set) == 1 {
            drain();
        }
        let _writer = writing.join().unwrap();
        if harvest(&set) == 1 {
            drain();
        }
        assert_eq!(read, 2);
    });
}

/// A scan takes the only arrival off and finds it idle. Meanwhile another thread makes it ready,
/// polls it, and makes it idle again. The edge goes to one of the two threads.
fn scanning_alone_against_writing() {
    model(4, || {
        let counter = EventFd::new(0).unwrap();
        let set = set_of(&counter, EDGE);
        // The item was queued by a wakeup, and is idle when it is scanned.
        counter.try_write(1).unwrap();
        counter.try_read().unwrap();
        let scanner = set.clone();
        let scanning = thread::spawn(move || harvest(&scanner));
        counter.try_write(1).unwrap();
        let seen = harvest(&set);
        counter.try_read().unwrap();
        assert!(scanning.join().unwrap() + seen > 0);
    });
}

#[test]
fn a_lone_edge_is_seen_by_the_scan_or_by_the_thread_that_made_it() {
    scanning_alone_against_writing();
}

#[test]
fn a_lone_scan_that_others_do_not_see_hides_an_edge() {
    must_fail_without(Rule::LoneScanIsPending, scanning_alone_against_writing);
}

/// The lock of a `std` build: it has one holder at a time, who sees the writes of the last holder,
/// and a thread that sleeps for it is woken.
fn locking(threads: usize, preemptions: usize) {
    model(preemptions, move || {
        let guarded = Arc::new((Lock::new(), AtomicU32::new(0)));
        let count = |guarded: &(Lock, AtomicU32)| {
            guarded.0.acquire();
            let count = guarded.1.load(Ordering::Relaxed);
            guarded.1.store(count + 1, Ordering::Relaxed);
            guarded.0.release();
        };
        let others: Vec<_> = (1..threads)
            .map(|_| {
                let guarded = guarded.clone();
                thread::spawn(move || count(&guarded))
            })
            .collect();
        count(&guarded);
        for other in others {
            other.join().unwrap();
        }
        guarded.0.acquire();
        assert_eq!(guarded.1.load(Ordering::Relaxed) as usize, threads);
        guarded.0.release();
    });
}

fn two_threads_lock() {
    locking(2, 5);
}

#[test]
fn a_thread_that_sleeps_for_a_lock_gets_it() {
    two_threads_lock();
    locking(3, 3);
}

#[test]
fn a_sleeper_that_has_nobody_pass_a_barrier_sleeps_on_at_a_free_lock() {
    must_fail_without(Rule::BarrierBeforeSleep, two_threads_lock);
}

#[test]
fn a_thread_that_has_slept_for_a_lock_and_forgets_the_others_leaves_them_asleep() {
    must_fail_without(Rule::MarkAfterSleep, || locking(3, 3));
}
