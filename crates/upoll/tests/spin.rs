//! An opt-in spin before a thread sleeps in a set.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod threads;

use std::io::Write;
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use upoll::{CreateFlags, Epoll, Event, EventFd, Events};

use threads::{asleep, tid, until_asleep};

/// The longest spin that there is.
const LONGEST: Duration = Duration::from_nanos(u32::MAX as u64);
const A_WHILE: Duration = Duration::from_millis(20);

/// Returns how often this thread has slept.
fn sleeps() -> i64 {
    // SAFETY: all zeros is one, and the kernel writes it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
        usage.ru_nvcsw
    }
}

/// Waits in `set` until `cause` has caused an event, for which the thread sleeps or has time to spin. Returns how often the
/// thread slept for it.
fn sleeps_until(set: &Epoll, spins: bool, cause: impl FnOnce()) -> i64 {
    let (send, begins) = mpsc::channel();
    let set = set.clone();
    let waiter = thread::spawn(move || {
        send.send(tid()).unwrap();
        let before = sleeps();
        let mut events = [Event::default(); 4];
        assert_eq!(set.wait(&mut events, 10 * LONGEST), Ok(1));
        sleeps() - before
    });
    let tid = begins.recv().unwrap();
    match spins {
        true => thread::sleep(A_WHILE),
        false => until_asleep(tid),
    }
    cause();
    waiter.join().unwrap()
}

/// Returns whether one of a few tries succeeds. A thread that does not run for seconds, or sleeps for other memory, is
/// late.
fn happens(mut tries: impl FnMut() -> bool) -> bool {
    (0..5).any(|_| tries())
}

#[test]
fn a_thread_that_spins_does_not_sleep_for_an_event() {
    for flags in [CreateFlags::empty(), CreateFlags::ROTATE] {
        let set = Epoll::create(flags).unwrap();
        let counter = EventFd::new(0).unwrap();
        set.add(&counter, Event::new(Events::IN, 1)).unwrap();
        let cause = || counter.write(1).unwrap();
        assert_ne!(sleeps_until(&set, false, cause), 0, "without a spin");
        counter.read().unwrap();
        set.set_spin(LONGEST);
        assert!(happens(|| {
            let slept = sleeps_until(&set, true, cause);
            counter.read().unwrap();
            slept == 0
        }));
    }
}

#[test]
fn a_thread_that_spins_in_a_set_with_a_kernel_fd_finds_events_of_all_members() {
    let set = Epoll::new().unwrap();
    let counter = EventFd::new(0).unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut write = || writer.write_all(b"x").unwrap();
    set.add(&counter, Event::new(Events::IN | Events::ET, 1))
        .unwrap();
    set.add(&reader.as_fd(), Event::new(Events::IN | Events::ET, 2))
        .unwrap();
    assert_ne!(sleeps_until(&set, false, &mut write), 0, "without a spin");
    set.set_spin(LONGEST);
    assert!(happens(|| sleeps_until(&set, true, &mut write) == 0));
    assert!(happens(|| sleeps_until(&set, true, || counter
        .write(1)
        .unwrap())
        == 0));
}

#[test]
fn a_spin_ends_with_the_time_limit_of_the_wait() {
    let set = Epoll::new().unwrap();
    let (reader, _writer) = std::io::pipe().unwrap();
    set.set_spin(LONGEST);
    for has_kernel_member in [false, true] {
        if has_kernel_member {
            set.add(&reader.as_fd(), Event::new(Events::IN, 1)).unwrap();
        }
        assert!(happens(|| {
            let begun = Instant::now();
            assert_eq!(set.wait(&mut [Event::default()], A_WHILE), Ok(0));
            let took = begun.elapsed();
            assert!(took >= A_WHILE);
            took < LONGEST
        }));
    }
}

#[test]
fn a_thread_sleeps_after_the_spin_and_is_woken() {
    let set = Epoll::new().unwrap();
    let counter = EventFd::new(0).unwrap();
    set.add(&counter, Event::new(Events::IN, 1)).unwrap();
    set.set_spin(Duration::from_millis(1));
    let waiting = set.clone();
    let (waiter, tid) = asleep(move || waiting.wait(&mut [Event::default()], 10 * LONGEST));
    until_asleep(tid);
    counter.write(1).unwrap();
    assert_eq!(waiter.join().unwrap(), Ok(1));
}

#[test]
fn a_timer_that_expires_during_the_spin_ends_the_wait() {
    let set = Epoll::new().unwrap();
    let timers = upoll::Timers::on(upoll::Clock::Monotonic).unwrap();
    let timer = timers.timer().unwrap();
    set.add(&timer, Event::new(Events::IN, 1)).unwrap();
    set.set_spin(LONGEST);
    for has_kernel_member in [false, true] {
        let (reader, _writer) = std::io::pipe().unwrap();
        if has_kernel_member {
            set.add(&reader.as_fd(), Event::new(Events::IN, 2)).unwrap();
        }
        assert!(happens(|| {
            timer.arm(A_WHILE, Duration::ZERO);
            let begun = Instant::now();
            assert_eq!(set.wait(&mut [Event::default(); 2], 2 * LONGEST), Ok(1));
            timer.read().unwrap();
            begun.elapsed() < LONGEST
        }));
    }
}
