//! Counters of sets and queues.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use upoll::{
    Counters, CreateFlags, Epoll, Errno, Event, EventFd, Events, File, PollTable, Pollable,
    Timeout, WaitQueue,
};

const LEVEL: Event = Event::new(Events::IN, 0);
const SOON: Duration = Duration::from_micros(1);

fn counting(flags: CreateFlags) -> Epoll {
    let set = Epoll::create(flags).unwrap();
    assert_eq!(set.counters(), None);
    set.enable_counters().unwrap();
    set
}

fn counters(set: &Epoll) -> Counters {
    set.counters().unwrap()
}

fn wait_until(is_so: impl Fn() -> bool) {
    while !is_so() {
        thread::yield_now();
    }
}

#[test]
fn a_set_counts_from_the_call_on_that_enables_it() {
    let set = Epoll::new().unwrap();
    let counter = EventFd::new(1).unwrap();
    set.add(&counter, LEVEL).unwrap();
    let events = &mut [Event::default(); 4];
    assert_eq!(set.try_wait(events), Ok(1));
    set.enable_counters().unwrap();
    assert_eq!(counters(&set), Counters::default());
    assert_eq!(set.try_wait(events), Ok(1));
    assert_eq!(set.wait(events, Timeout::NEVER), Ok(1));
    // Without effect.
    set.enable_counters().unwrap();
    let now = counters(&set);
    assert_eq!((now.events, now.sleeps, now.wakes), (2, 0, 0));
}

#[test]
fn the_text_follows_the_interests() {
    let set = Epoll::new().unwrap();
    let counter = EventFd::new(1).unwrap();
    set.add(&counter, LEVEL).unwrap();
    let without = set.fdinfo().unwrap();
    set.enable_counters().unwrap();
    set.try_wait(&mut [Event::default()]).unwrap();
    let lines = "wakes:\t0\nempty_wakes:\t0\nevents:\t1\nsleeps:\t0\ncontention:\t0\n";
    assert_eq!(counters(&set).to_string(), lines);
    assert_eq!(set.fdinfo().unwrap(), without + lines);
}

/// Sleeps until its limit, then until there is an event.
fn sleep_twice(set: &Epoll, publish: impl FnOnce() + Send) {
    assert_eq!(set.wait(&mut [Event::default()], SOON), Ok(0));
    let before = counters(set);
    // A wait in the kernel may begin more than one sleep.
    assert!(before.sleeps >= 1);
    assert_eq!((before.wakes, before.events), (0, 0));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| set.wait(&mut [Event::default()], Timeout::NEVER));
        wait_until(|| counters(set).sleeps > before.sleeps);
        publish();
        assert_eq!(waiter.join().unwrap(), Ok(1));
    });
    let after = counters(set);
    assert_eq!(after.events, 1);
    assert!(after.wakes >= 1 && after.wakes < after.sleeps);
    assert_eq!(after.wakes - after.empty_wakes, 1);
}

#[test]
fn a_sleep_that_a_wakeup_ends_is_a_wake_and_one_that_its_limit_ends_is_not() {
    for flags in [CreateFlags::empty(), CreateFlags::ROTATE] {
        let set = counting(flags);
        let counter = EventFd::new(0).unwrap();
        set.add(&counter, LEVEL).unwrap();
        sleep_twice(&set, || counter.try_write(1).unwrap());
        // Of the kernel.
        let set = counting(flags);
        let (reader, writer) = std::io::pipe().unwrap();
        set.add(&reader, LEVEL).unwrap();
        sleep_twice(&set, || {
            std::io::Write::write_all(&mut &writer, b"x").unwrap();
        });
        let both = counting(CreateFlags::empty());
        both.add(&counter, LEVEL).unwrap();
        both.add(&reader, LEVEL).unwrap();
        counter.try_read().unwrap();
        std::io::Read::read_exact(&mut &reader, &mut [0]).unwrap();
        sleep_twice(&both, || counter.try_write(1).unwrap());
    }
}

#[test]
fn a_sleep_that_a_signal_ends_is_no_wake() {
    extern "C" fn handle(_: libc::c_int) {}
    // SAFETY: the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
    }
    let set = counting(CreateFlags::empty());
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let (send, thread) = std::sync::mpsc::channel();
        let (set, ended) = (&set, &ended);
        let waiter = scope.spawn(move || {
            // SAFETY: any thread may ask for its own.
            send.send(unsafe { libc::pthread_self() }).unwrap();
            let result = set.wait(&mut [Event::default()], Timeout::NEVER);
            ended.store(true, Ordering::Relaxed);
            result
        });
        let thread = thread.recv().unwrap();
        wait_until(|| counters(set).sleeps == 1);
        while !ended.load(Ordering::Relaxed) {
            // SAFETY: the thread has not been joined.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(waiter.join().unwrap(), Err(Errno::INTR));
    });
    assert_eq!((counters(&set).sleeps, counters(&set).wakes), (1, 0));
}

#[test]
fn a_wakeup_after_which_nothing_is_ready_is_an_empty_wake() {
    /// Ready for the first poll.
    #[derive(Default)]
    struct Once {
        ready: AtomicBool,
        queue: WaitQueue,
    }
    impl Pollable for Once {
        fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
            table.register(&self.queue);
            match self.ready.swap(false, Ordering::SeqCst) {
                true => Events::IN,
                false => Events::empty(),
            }
        }
    }
    let set = counting(CreateFlags::empty());
    let once = File::new(Once::default());
    set.add(&once, LEVEL).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| set.wait(&mut [Event::default()], Timeout::NEVER));
        wait_until(|| counters(&set).sleeps == 1);
        // Nothing is ready.
        once.queue.wake(Events::IN);
        wait_until(|| counters(&set).sleeps == 2);
        once.ready.store(true, Ordering::SeqCst);
        once.queue.wake(Events::IN);
        assert_eq!(waiter.join().unwrap(), Ok(1));
    });
    let counters = counters(&set);
    assert_eq!((counters.wakes, counters.empty_wakes), (2, 1));
    assert_eq!(counters.events, 1);
}

/// An object whose `poll` waits until it is told to go on, with the lock of the set that polls it held.
#[derive(Default)]
struct Slow {
    queue: WaitQueue,
    is_polled: AtomicBool,
    goes_on: AtomicBool,
    is_slow: AtomicBool,
}

impl Pollable for Slow {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        if self.is_slow.load(Ordering::SeqCst) {
            self.is_polled.store(true, Ordering::SeqCst);
            wait_until(|| self.goes_on.load(Ordering::SeqCst));
        }
        Events::empty()
    }
}

#[test]
fn a_call_that_finds_the_lock_of_a_set_held_is_contention() {
    let set = counting(CreateFlags::empty());
    let slow = File::new(Slow::default());
    set.add(&slow, LEVEL).unwrap();
    assert_eq!(counters(&set).contention, 0);
    slow.is_slow.store(true, Ordering::SeqCst);
    slow.queue.wake(Events::IN);
    thread::scope(|scope| {
        scope.spawn(|| set.try_wait(&mut [Event::default()]));
        wait_until(|| slow.is_polled.load(Ordering::SeqCst));
        let len = scope.spawn(|| set.len());
        wait_until(|| counters(&set).contention == 1);
        slow.goes_on.store(true, Ordering::SeqCst);
        assert_eq!(len.join().unwrap(), 1);
    });
}

#[test]
fn a_queue_counts_its_wakeups_and_who_took_them() {
    for (wake, taken) in [
        (WaitQueue::wake as fn(&WaitQueue, Events) -> usize, 1),
        (WaitQueue::wake_all, 1),
        (WaitQueue::wake_rotate, 1),
    ] {
        let object = File::new(Slow::default());
        let queue = &object.queue;
        assert_eq!(queue.counters(), None);
        queue.enable_counters().unwrap();
        // Nobody is there: this costs nothing and does not count.
        wake(queue, Events::IN);
        assert_eq!(queue.counters(), Some(Counters::default()));
        let set = Epoll::new().unwrap();
        set.add(&object, LEVEL).unwrap();
        assert_eq!(wake(queue, Events::IN), taken);
        assert_eq!(wake(queue, Events::OUT), 0);
        let counters = queue.counters().unwrap();
        assert_eq!((counters.wakes, counters.empty_wakes), (2, 1));
        assert_eq!((counters.events, counters.sleeps), (1, 1));
    }
}

#[test]
fn a_wakeup_that_finds_the_lock_of_a_queue_held_is_contention() {
    let object = File::new(Slow::default());
    object.queue.enable_counters().unwrap();
    let set = Epoll::new().unwrap();
    set.add(&object, LEVEL).unwrap();
    assert_eq!(object.queue.counters().unwrap().contention, 0);
    let wakes = AtomicBool::new(true);
    thread::scope(|scope| {
        // With one processor they meet only when one is interrupted with the lock held.
        for _ in 0..2 {
            scope.spawn(|| {
                while wakes.load(Ordering::Relaxed) {
                    object.queue.wake(Events::IN);
                }
            });
        }
        wait_until(|| object.queue.counters().unwrap().contention > 0);
        wakes.store(false, Ordering::Relaxed);
    });
}
