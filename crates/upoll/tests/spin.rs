//! An opt-in spin before a thread sleeps in a set.
#![cfg(not(upoll_loom))]

mod threads;

use std::io::Write;
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use upoll::{CreateFlags, Epoll, Event, EventFd, Events};

use threads::{asleep, until_asleep};

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

/// Waits in `set` until `cause` has caused an event. Returns how often the thread slept for it.
fn sleeps_until(set: &Epoll, cause: impl FnOnce()) -> i64 {
    let (send, begins) = mpsc::channel();
    let set = set.clone();
    let waiter = thread::spawn(move || {
        send.send(()).unwrap();
        let before = sleeps();
        let mut events = [Event::default(); 4];
        assert_eq!(set.wait(&mut events, 10 * LONGEST), Ok(1));
        sleeps() - before
    });
    begins.recv().unwrap();
    thread::sleep(A_WHILE);
    cause();
    waiter.join().unwrap()
}

#[test]
fn a_thread_that_spins_does_not_sleep_for_an_event() {
    for flags in [CreateFlags::empty(), CreateFlags::ROTATE] {
        let set = Epoll::create(flags).unwrap();
        let counter = EventFd::new(0).unwrap();
        set.add(&counter, Event::new(Events::IN, 1)).unwrap();
        let cause = || counter.write(1).unwrap();
        assert_ne!(sleeps_until(&set, cause), 0, "without a spin");
        counter.read().unwrap();
        set.set_spin(LONGEST);
        assert_eq!(sleeps_until(&set, cause), 0);
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
    assert_ne!(sleeps_until(&set, &mut write), 0, "without a spin");
    set.set_spin(LONGEST);
    assert_eq!(sleeps_until(&set, &mut write), 0);
    assert_eq!(sleeps_until(&set, || counter.write(1).unwrap()), 0);
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
        let begun = Instant::now();
        assert_eq!(set.wait(&mut [Event::default()], A_WHILE), Ok(0));
        assert!(begun.elapsed() >= A_WHILE);
        assert!(begun.elapsed() < LONGEST);
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
        timer.arm(A_WHILE, Duration::ZERO);
        let begun = Instant::now();
        assert_eq!(set.wait(&mut [Event::default(); 2], 2 * LONGEST), Ok(1));
        assert!(begun.elapsed() < LONGEST);
        timer.read().unwrap();
    }
}
