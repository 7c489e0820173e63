//! A callback or task that waits for a set with members in the kernel. At a rotating set the second of the two calls
//! fails.
#![cfg(all(feature = "std", not(upoll_loom)))]

mod chain;
mod returns;

use std::future::Future;
use std::io::pipe;
use std::pin::pin;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use upoll::{
    CreateFlags, Epoll, Errno, Event, EventFd, EventFdFlags, Events, Op, Readiness, SigSet, Source,
    Watch,
};

use chain::chain;
use returns::returns;

const IN: Event = Event::new(Events::IN, 0);

fn watch(set: &Epoll, interest: Events) -> Result<Watch, Errno> {
    Watch::new(set, interest, |_| ()).map(|(watch, _)| watch)
}

#[test]
fn a_callback_on_a_rotating_set_with_members_in_the_kernel_is_refused() {
    let (reader, _writer) = pipe().unwrap();
    let shared = EventFd::shared(0, EventFdFlags::empty()).unwrap();
    for member in [reader.target(), shared.target()] {
        for flags in [CreateFlags::empty(), CreateFlags::ROTATE] {
            let sets = chain(flags);
            sets[2].ctl(Op::Add, member, IN).unwrap();
            for (at, set) in sets.iter().enumerate() {
                let refused = (at == 2 && !flags.is_empty()).then_some(Errno::PERM);
                assert_eq!(watch(set, Events::IN).err(), refused);
                let ready = Readiness::new(set, Events::RDNORM);
                assert_eq!(ready.err(), refused);
                // An event that a set never reports needs no wakeup.
                assert!(watch(set, Events::OUT).is_ok());
            }
            sets[2].ctl(Op::Del, member, IN).unwrap();
            for set in &sets {
                assert!(watch(set, Events::IN).is_ok());
            }
        }
    }
}

#[test]
fn a_rotating_set_with_a_callback_takes_no_members_in_the_kernel() {
    let (reader, _writer) = pipe().unwrap();
    let shared = EventFd::shared(0, EventFdFlags::empty()).unwrap();
    for member in [reader.target(), shared.target()] {
        let sets = chain(CreateFlags::ROTATE);
        let watched = &sets[2];
        let watch = watch(watched, Events::IN).unwrap();
        assert_eq!(watched.ctl(Op::Add, member, IN), Err(Errno::BUSY));
        assert!(watched.is_empty());
        // A set with kernel members cannot be added either.
        let other = Epoll::new().unwrap();
        other.ctl(Op::Add, member, IN).unwrap();
        assert_eq!(watched.add(&other, IN), Err(Errno::BUSY));
        assert!(watched.is_empty());
        drop(watch);
        watched.add(&other, IN).unwrap();
        watched.delete(&other).unwrap();
        watched.ctl(Op::Add, member, IN).unwrap();
    }
}

#[test]
fn a_set_in_which_threads_sleep_in_the_kernel_takes_callbacks() {
    let sets = chain(CreateFlags::empty());
    let counter = EventFd::new(0).unwrap();
    for set in &sets {
        let limit = Duration::from_millis(1);
        let slept = set.pwait(&mut [Event::default()], limit, &SigSet::full());
        assert_eq!(slept, Ok(0));
    }
    let mut ready = pin!(Readiness::new(&sets[0], Events::IN).unwrap());
    let mut context = Context::from_waker(Waker::noop());
    assert_eq!(ready.as_mut().poll(&mut context), Poll::Pending);
    sets[2].add(&counter, IN).unwrap();
    counter.write(1).unwrap();
    assert_eq!(ready.as_mut().poll(&mut context), Poll::Ready(Events::IN));
}

#[test]
fn of_a_callback_and_a_member_that_come_at_once_at_a_rotating_set_one_is_refused() {
    let (reader, _writer) = pipe().unwrap();
    for _ in 0..500 {
        let set = Epoll::create(CreateFlags::ROTATE).unwrap();
        let begin = Barrier::new(2);
        std::thread::scope(|scope| {
            let watching = scope.spawn(|| {
                begin.wait();
                watch(&set, Events::IN)
            });
            begin.wait();
            let added = set.add(&reader, IN);
            let watching = watching.join().unwrap();
            assert!(added.is_err() || watching.is_err());
        });
    }
}

/// A thread of the outermost set is notified of the set in the middle while that set's lock is
/// held.
#[test]
fn a_callback_on_a_set_in_the_middle_may_use_the_outermost_set_in_which_a_thread_sleeps() {
    returns(|| {
        let sets = chain(CreateFlags::empty());
        // From here on the threads of all three sets sleep in the kernel, and the nesting fds of
        // the outer two watch the set below.
        let (reader, _writer) = pipe().unwrap();
        sets[2].add(&reader, IN).unwrap();
        sets[2].delete(&reader).unwrap();
        let edge = Event::new(Events::IN | Events::ET, 0);
        sets[1].modify(&sets[2], edge).unwrap();
        let counter = EventFd::new(0).unwrap();
        sets[2].add(&counter, IN).unwrap();
        let used = [sets[0].clone(), sets[1].clone()];
        let (_watch, _) = Watch::new(&sets[1], Events::IN, move |_| {
            for set in &used {
                assert_eq!(
                    set.try_wait(&mut [Event::default()]).map(|_| set.len()),
                    Ok(1)
                );
            }
        })
        .unwrap();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for set in [&sets[0], &sets[2], &sets[2]] {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        let limit = Duration::from_millis(1);
                        let _ = set.wait(&mut [Event::default()], limit).unwrap();
                        let _ = counter.try_read();
                    }
                });
            }
            for _ in 0..10_000 {
                counter.try_write(1).unwrap();
                thread::sleep(Duration::from_micros(50));
            }
            is_over.store(true, Ordering::Relaxed);
        });
    });
}
