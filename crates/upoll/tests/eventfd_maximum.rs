//! The maximum of an eventfd. No released kernel has it, so a small model of its rules is the
//! reference. Without a maximum the model is compared with the kernel's eventfd as well.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod counter;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::thread;
use std::time::Duration;

use counter::{Model, Step, any_step, follows_the_model, initial};
use proptest::prelude::*;
use upoll::{Epoll, Errno, Event, EventFd, EventFdFlags, Events};

const LONG: Duration = Duration::from_secs(60);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_sequence_follows_the_model(
        initial in initial(),
        semaphore: bool,
        steps in prop::collection::vec(any_step(), 0..60),
    ) {
        let flags = if semaphore { EventFdFlags::SEMAPHORE } else { EventFdFlags::empty() };
        let counter = EventFd::with_flags(initial, flags).unwrap();
        follows_the_model(&counter, initial, steps)?;
    }

    #[test]
    fn without_a_maximum_the_kernel_follows_the_model_too(
        initial in 0..6_u32,
        semaphore: bool,
        steps in prop::collection::vec(any_step(), 0..40),
    ) {
        let flags = libc::EFD_NONBLOCK | if semaphore { libc::EFD_SEMAPHORE } else { 0 };
        // SAFETY: the fd is new, and nothing else owns it.
        let kernel = unsafe { OwnedFd::from_raw_fd(libc::eventfd(initial, flags)) };
        let mut model = Model { count: initial.into(), maximum: u64::MAX, semaphore };
        for step in steps {
            match step {
                Step::Write(value) => {
                    // SAFETY: the counter is written from a live word.
                    let written = unsafe { libc::write(kernel.as_raw_fd(), (&raw const value).cast(), 8) };
                    prop_assert_eq!(errno(written).map(drop), model.write(value));
                }
                Step::Read => {
                    let mut value = 0_u64;
                    // SAFETY: the counter is read to a live word.
                    let read = unsafe { libc::read(kernel.as_raw_fd(), (&raw mut value).cast(), 8) };
                    prop_assert_eq!(errno(read).map(|_| value), model.read());
                }
                Step::Signal | Step::SetMaximum(_) => {}
            }
            let mut entry = libc::pollfd {
                fd: kernel.as_raw_fd(),
                events: libc::POLLIN | libc::POLLOUT,
                revents: 0,
            };
            // SAFETY: one live entry.
            unsafe { libc::poll(&raw mut entry, 1, 0) };
            prop_assert_eq!(i64::from(entry.revents), i64::from(model.mask().bits()));
        }
    }
}

fn errno(result: isize) -> Result<isize, Errno> {
    if result >= 0 {
        return Ok(result);
    }
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap();
    Err(Errno::from_raw(errno))
}

/// Checks that a thread that blocks in a write of `value` stays blocked until `then` runs.
fn blocked_write_ends(counter: &EventFd, value: u64, then: impl FnOnce()) {
    let writer = thread::spawn({
        let counter = counter.clone();
        move || counter.write(value)
    });
    thread::sleep(Duration::from_millis(30));
    assert!(!writer.is_finished(), "it does not fit");
    then();
    writer.join().unwrap().unwrap();
}

#[test]
fn a_blocked_writer_is_woken_by_a_read_that_makes_room() {
    let counter = EventFd::new(0).unwrap();
    counter.set_maximum(5).unwrap();
    counter.try_write(4).unwrap();
    blocked_write_ends(&counter, 3, || assert_eq!(counter.try_read(), Ok(4)));
    assert_eq!(counter.try_read(), Ok(3));
}

#[test]
fn a_blocked_writer_is_woken_by_a_raised_maximum() {
    let counter = EventFd::new(0).unwrap();
    counter.set_maximum(5).unwrap();
    counter.try_write(4).unwrap();
    blocked_write_ends(&counter, 3, || counter.set_maximum(8).unwrap());
    assert_eq!(counter.try_read(), Ok(7));
}

#[test]
fn a_new_maximum_is_an_event_for_writers() {
    let counter = EventFd::new(0).unwrap();
    counter.set_maximum(2).unwrap();
    let set = Epoll::new().unwrap();
    set.add(&counter, Event::new(Events::OUT | Events::ET, 0))
        .unwrap();
    let mut events = [Event::default(); 2];
    assert_eq!(set.wait(&mut events, LONG).unwrap(), 1);
    counter.try_write(1).unwrap();
    assert_eq!(set.try_wait(&mut events).unwrap(), 0);
    counter.set_maximum(10).unwrap();
    assert_eq!(set.try_wait(&mut events).unwrap(), 1);
    // Lowering the maximum wakes the writer too, while there still is room.
    counter.set_maximum(9).unwrap();
    assert_eq!(set.try_wait(&mut events).unwrap(), 1);
}

#[test]
fn writers_and_readers_at_a_maximum_lose_nothing() {
    const WRITERS: u64 = 4;
    const EACH: u64 = 5_000;
    for flags in [EventFdFlags::empty(), EventFdFlags::SEMAPHORE] {
        let counter = EventFd::with_flags(0, flags).unwrap();
        counter.set_maximum(10).unwrap();
        thread::scope(|scope| {
            for _ in 0..WRITERS {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        counter.write(1).unwrap();
                    }
                });
            }
            // The maximum changes while they write.
            scope.spawn(|| {
                for round in 0..2_000 {
                    let _ = counter.set_maximum([10, u64::MAX, 3, 50][round % 4]);
                }
                while counter.set_maximum(10).is_err() {
                    thread::yield_now();
                }
            });
            let mut total = 0;
            while total < WRITERS * EACH {
                total += counter.read().unwrap();
            }
            assert_eq!(total, WRITERS * EACH);
        });
        assert_eq!(counter.try_read(), Err(Errno::AGAIN));
    }
}
