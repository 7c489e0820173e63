//! Threads that wait in sets with members of both kinds: no event is lost, and time limits hold.

use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use upoll::{Clock, Epoll, Errno, Event, EventFd, Events, Op, Timeout};

use super::host::alone;
use super::processor_time::processor_time;
use crate::host::{
    Both, LONG, SHORT, data, edge, eventfd, eventfd_take, eventfd_write, input, try_wait, wait,
};

/// Data of the member that ends a test.
const STOP: u64 = u64::MAX;

/// Counters of both kinds, and the sum of the values that were read from them.
struct Counters {
    user: Vec<EventFd>,
    kernel: Vec<OwnedFd>,
    taken: AtomicUsize,
    stop: EventFd,
}

impl Counters {
    fn new(of_each: usize) -> Arc<Self> {
        Arc::new(Counters {
            user: (0..of_each).map(|_| EventFd::new(0).unwrap()).collect(),
            kernel: (0..of_each).map(|_| eventfd()).collect(),
            taken: AtomicUsize::new(0),
            stop: EventFd::new(0).unwrap(),
        })
    }

    /// Adds all counters edge-triggered, with their index as data.
    fn add_to(&self, set: &Epoll) {
        for (at, counter) in self.user.iter().enumerate() {
            set.add(counter, edge(at as u64)).unwrap();
        }
        for (at, counter) in self.kernel.iter().enumerate() {
            set.add(counter, edge((self.user.len() + at) as u64))
                .unwrap();
        }
    }

    fn write(&self, at: usize) {
        match at.checked_sub(self.user.len()) {
            None => self.user[at].try_write(1).unwrap(),
            Some(at) => eventfd_write(&self.kernel[at]),
        }
    }

    /// Reads the counters of the events. Returns whether the test goes on.
    fn take(&self, events: &[Event]) -> bool {
        let mut go_on = true;
        for event in data(events) {
            if event == STOP {
                go_on = false;
                continue;
            }
            let at = usize::try_from(event).unwrap();
            let count = match at.checked_sub(self.user.len()) {
                None => self.user[at].try_read().unwrap_or(0),
                Some(at) => eventfd_take(&self.kernel[at]),
            };
            let count = usize::try_from(count).unwrap();
            self.taken.fetch_add(count, Ordering::SeqCst);
        }
        go_on
    }

    fn expect(&self, total: usize) {
        let start = Instant::now();
        while self.taken.load(Ordering::SeqCst) < total {
            assert!(
                start.elapsed() < LONG / 2,
                "lost: {:?} of {total} taken",
                self.taken
            );
            thread::sleep(Duration::from_micros(200));
        }
        assert_eq!(self.taken.load(Ordering::SeqCst), total);
    }

    fn stop(&self, threads: Vec<JoinHandle<()>>) {
        self.stop.try_write(1).unwrap();
        for thread in threads {
            thread.join().unwrap();
        }
    }

    /// Starts a thread that waits in `set`, with room for `room` events, until `stop`.
    fn wait_in(self: &Arc<Self>, set: &Epoll, room: usize) -> JoinHandle<()> {
        let (counters, set) = (self.clone(), set.clone());
        thread::spawn(move || while counters.take(&wait(&set, room, 2 * LONG)) {})
    }

    /// Writes from two threads to all counters, `writes` times each.
    fn write_from_two_threads(self: &Arc<Self>, writes: usize) {
        let writers = [3, 5].map(|step| {
            let counters = self.clone();
            let all = counters.user.len() + counters.kernel.len();
            thread::spawn(move || {
                for write in 0..writes {
                    counters.write(write * step % all);
                    if write % 64 == 0 {
                        thread::sleep(Duration::from_micros(100));
                    }
                }
            })
        });
        for writer in writers {
            writer.join().unwrap();
        }
    }
}

#[test]
fn many_threads_in_one_mixed_set_lose_no_event() {
    let _alone = alone();
    for room in [1, 2, 8] {
        let counters = Counters::new(2);
        let set = Epoll::new().unwrap();
        counters.add_to(&set);
        set.add(&counters.stop, input(STOP)).unwrap();
        let threads = (0..3).map(|_| counters.wait_in(&set, room)).collect();
        counters.write_from_two_threads(5000);
        counters.expect(10_000);
        counters.stop(threads);
    }
}

#[test]
fn a_harvest_beside_a_sleeping_thread_takes_no_event_from_it() {
    let _alone = alone();
    for room in [1, 2, 4] {
        let counters = Counters::new(2);
        let set = Epoll::new().unwrap();
        counters.add_to(&set);
        set.add(&counters.stop, input(STOP)).unwrap();
        let sleeper = counters.wait_in(&set, 1);
        for round in 1..=1500 {
            // The thread may have been woken when the harvest takes the event. The events that the
            // harvest leaves are the thread's.
            counters.write(0);
            counters.write(2);
            counters.take(&try_wait(&set, room));
            counters.expect(2 * round);
        }
        counters.stop(vec![sleeper]);
    }
}

#[test]
fn a_file_that_stays_ready_is_reported_once_after_a_wake_without_a_waiter() {
    let _alone = alone();
    for _ in 0..100 {
        let both = Both::new();
        let (reader, mut writer) = std::io::pipe().unwrap();
        both.add(&reader, input(1));
        let (ours, theirs) = (EventFd::new(0).unwrap(), eventfd());
        both.ours.add(&ours, input(2)).unwrap();
        both.theirs.add(&theirs, input(2));
        // It has room for the first event only. No thread handles the wakeup for the second one.
        let set = both.ours.clone();
        let sleeper = thread::spawn(move || wait(&set, 1, LONG));
        thread::sleep(Duration::from_millis(2));
        writer.write_all(b"x").unwrap();
        ours.try_write(1).unwrap();
        eventfd_write(&theirs);
        sleeper.join().unwrap();
        both.ours.delete(&ours).unwrap();
        both.theirs
            .ctl(Op::Del, theirs.as_raw_fd(), Event::default())
            .unwrap();
        assert_eq!(both.try_wait(), [(1, Events::IN)]);
    }
}

#[test]
fn threads_that_sleep_when_the_first_descriptor_comes_lose_no_event() {
    let _alone = alone();
    for round in 0..60 {
        let counters = Counters::new(1);
        let set = Epoll::new().unwrap();
        set.add(&counters.user[0], edge(0)).unwrap();
        set.add(&counters.stop, input(STOP)).unwrap();
        let threads: Vec<_> = (0..3).map(|_| counters.wait_in(&set, 2)).collect();
        if round % 2 == 0 {
            thread::sleep(Duration::from_millis(2));
        }
        let writer = thread::spawn({
            let counters = counters.clone();
            move || (0..50).for_each(|_| counters.write(0))
        });
        set.add(&counters.kernel[0], edge(1)).unwrap();
        counters.write(1);
        writer.join().unwrap();
        counters.expect(51);
        counters.stop(threads);
    }
}

#[test]
fn threads_that_sleep_when_the_first_set_below_comes_lose_no_event() {
    let _alone = alone();
    for round in 0..60 {
        let counters = Counters::new(2);
        let set = Epoll::new().unwrap();
        set.add(&counters.user[0], edge(0)).unwrap();
        set.add(&counters.kernel[0], edge(2)).unwrap();
        set.add(&counters.stop, input(STOP)).unwrap();
        let threads: Vec<_> = (0..3).map(|_| counters.wait_in(&set, 2)).collect();
        if round % 2 == 0 {
            thread::sleep(Duration::from_millis(2));
        }
        let writer = thread::spawn({
            let counters = counters.clone();
            move || {
                for _ in 0..50 {
                    counters.write(0);
                    counters.write(2);
                }
            }
        });
        let below = Epoll::new().unwrap();
        below.add(&counters.kernel[1], edge(3)).unwrap();
        // The data names a counter that is never written, so reading it has no effect.
        set.add(&below, edge(1)).unwrap();
        counters.write(3);
        writer.join().unwrap();
        counters.expect(100);
        assert_eq!(data(&try_wait(&below, 2)), [3]);
        counters.stop(threads);
    }
}

#[test]
fn threads_in_a_set_and_in_the_one_above_lose_no_event() {
    let _alone = alone();
    let counters = Counters::new(2);
    let (above, below) = (Epoll::new().unwrap(), Epoll::new().unwrap());
    counters.add_to(&below);
    above.add(&below, input(0)).unwrap();
    above.add(&counters.stop, input(STOP)).unwrap();
    let only_below = EventFd::new(0).unwrap();
    below.add(&only_below, input(STOP)).unwrap();
    let mut threads: Vec<_> = (0..2)
        .map(|_| {
            let (counters, above, below) = (counters.clone(), above.clone(), below.clone());
            thread::spawn(move || {
                loop {
                    let events = data(&wait(&above, 1, 2 * LONG));
                    counters.take(&try_wait(&below, 3));
                    if events == [STOP] {
                        return;
                    }
                }
            })
        })
        .collect();
    threads.push(counters.wait_in(&below, 1));
    counters.write_from_two_threads(5000);
    counters.expect(10_000);
    only_below.try_write(1).unwrap();
    counters.stop(threads);
}

#[test]
fn a_wait_sleeps_while_what_is_ready_below_is_not_wanted() {
    let _alone = alone();
    let [top, middle, bottom] = [(); 3].map(|()| Epoll::new().unwrap());
    let counter = eventfd();
    top.add(&middle, input(1)).unwrap();
    // A set never reports OUT.
    middle.add(&bottom, Event::new(Events::OUT, 2)).unwrap();
    bottom.add(&counter, input(3)).unwrap();
    let writer = thread::spawn(move || {
        thread::sleep(SHORT);
        eventfd_write(&counter);
        thread::sleep(Duration::from_millis(500));
        counter
    });
    let before = processor_time();
    assert!(wait(&top, 1, Duration::from_millis(400)).is_empty());
    let used = processor_time() - before;
    assert!(used < Duration::from_millis(100), "{used:?}");
    drop(writer.join().unwrap());
}

/// Returns a set with members of both kinds, none of which is ready, with or without a set below.
fn quiet_set(below: bool) -> (Epoll, EventFd, OwnedFd) {
    let (user, kernel) = (EventFd::new(0).unwrap(), eventfd());
    let set = Epoll::new().unwrap();
    set.add(&user, input(1)).unwrap();
    set.add(&kernel, input(2)).unwrap();
    if below {
        let inner = Epoll::new().unwrap();
        inner.add(&kernel, input(3)).unwrap();
        set.add(&inner, input(4)).unwrap();
        set.add(&inner.as_file_ref().with_fd(1), input(5)).unwrap();
    }
    (set, user, kernel)
}

#[test]
fn limits_are_never_early() {
    let _alone = alone();
    for below in [false, true] {
        let (set, _user, _kernel) = quiet_set(below);
        for microseconds in [1, 50, 500, 1500, 10_000] {
            let limit = Duration::from_micros(microseconds);
            let events = &mut [Event::default(); 2];
            let start = Instant::now();
            assert_eq!(set.wait(events, limit), Ok(0));
            assert!(start.elapsed() >= limit);
            let start = SystemTime::now();
            let by_the_wall = Timeout::after(Clock::Realtime, limit);
            assert_eq!(set.wait(events, by_the_wall), Ok(0));
            assert!(start.elapsed().unwrap() >= limit);
        }
    }
}

#[test]
fn a_limit_counts_from_the_call_though_a_descriptor_comes_meanwhile() {
    let _alone = alone();
    let limit = Duration::from_millis(1500);
    let counts_from_the_call = || {
        let set = Epoll::new().unwrap();
        let waiter = thread::spawn({
            let set = set.clone();
            move || {
                let start = Instant::now();
                assert!(wait(&set, 1, limit).is_empty());
                assert!(start.elapsed() >= limit);
                Instant::now()
            }
        });
        thread::sleep(Duration::from_millis(1000));
        let came = Instant::now();
        let counter = eventfd();
        set.add(&counter, input(1)).unwrap();
        waiter.join().unwrap() < came + limit
    };
    // On a busy machine a thread may begin or end late. A limit that counts anew never ends by then.
    assert!((0..20).any(|_| counts_from_the_call()));
}

extern "C" fn ignore(_: libc::c_int) {}

#[test]
fn a_signal_handler_ends_a_wait() {
    let _alone = alone();
    for flags in [0, libc::SA_RESTART] {
        // SAFETY: the handler does nothing, and `action` is live.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = ignore as *const () as usize;
            action.sa_flags = flags;
            libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
        }
        for below in [false, true] {
            let (set, _user, _kernel) = quiet_set(below);
            let done = Arc::new(AtomicBool::new(false));
            let waiter = thread::spawn({
                let done = done.clone();
                move || {
                    let ended = set.wait(&mut [Event::default(); 2], LONG);
                    done.store(true, Ordering::SeqCst);
                    ended
                }
            });
            while !done.load(Ordering::SeqCst) {
                // SAFETY: the thread has not been joined.
                unsafe { libc::pthread_kill(waiter.as_pthread_t(), libc::SIGUSR1) };
                thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(waiter.join().unwrap(), Err(Errno::INTR));
        }
    }
}
