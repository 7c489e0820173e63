//! Kernel fds as members of sets, beside user-level objects.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod churn;
mod counted;
mod host;
mod interests;
mod kinds;
mod nested;
mod pollers;
#[path = "../processor_time/mod.rs"]
mod processor_time;
mod random;
mod rotation;
mod threads;

use std::future::Future;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use upoll::{CreateFlags, Epoll, Event, EventFd, Events, Readiness};

use self::host::{Kernel, LONG, alone, data, wait};

#[test]
fn a_wait_reports_user_level_objects_and_descriptors_together() {
    let _alone = alone();
    let set = Epoll::new().unwrap();
    let counter = EventFd::new(0).unwrap();
    let (mut near, far) = UnixStream::pair().unwrap();
    set.add(&counter, Event::new(Events::IN, 1)).unwrap();
    set.add(&far, Event::new(Events::IN, 2)).unwrap();
    assert_eq!(set.len(), 2);
    assert!(wait(&set, 4, Duration::from_millis(1)).is_empty());
    counter.try_write(1).unwrap();
    assert_eq!(data(&wait(&set, 4, LONG)), [1]);
    near.write_all(b"x").unwrap();
    let mut both = data(&wait(&set, 4, LONG));
    both.sort_unstable();
    assert_eq!(both, [1, 2]);
    counter.try_read().unwrap();
    assert_eq!(data(&wait(&set, 4, LONG)), [2]);
}

#[test]
fn a_sleeping_wait_wakes_for_either_side() {
    let _alone = alone();
    let set = Epoll::new().unwrap();
    let counter = EventFd::new(0).unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    set.add(&counter, Event::new(Events::IN | Events::ET, 1))
        .unwrap();
    set.add(&far, Event::new(Events::IN | Events::ET, 2))
        .unwrap();
    for _ in 0..50 {
        let writer = thread::spawn({
            let counter = counter.clone();
            move || {
                thread::sleep(Duration::from_micros(200));
                counter.try_write(1).unwrap();
            }
        });
        assert_eq!(data(&wait(&set, 4, LONG)), [1]);
        writer.join().unwrap();
        let writer = thread::spawn({
            let mut near = near.try_clone().unwrap();
            move || {
                thread::sleep(Duration::from_micros(200));
                near.write_all(b"x").unwrap();
            }
        });
        assert_eq!(data(&wait(&set, 4, LONG)), [2]);
        writer.join().unwrap();
    }
}

#[test]
fn neither_side_starves_the_other() {
    let _alone = alone();
    let set = Epoll::new().unwrap();
    let counter = EventFd::new(1).unwrap();
    let (mut near, far) = UnixStream::pair().unwrap();
    near.write_all(b"x").unwrap();
    set.add(&counter, Event::new(Events::IN, 1)).unwrap();
    set.add(&far, Event::new(Events::IN, 2)).unwrap();
    let mut seen = [0; 3];
    for _ in 0..100 {
        for event in wait(&set, 1, LONG) {
            seen[usize::try_from(event.data()).unwrap()] += 1;
        }
    }
    assert_eq!(seen, [0, 50, 50]);
}

#[test]
fn a_thread_that_sleeps_when_the_first_descriptor_comes_is_woken_by_it() {
    let _alone = alone();
    let set = Epoll::new().unwrap();
    let waiter = thread::spawn({
        let set = set.clone();
        move || data(&wait(&set, 4, LONG))
    });
    thread::sleep(Duration::from_millis(20));
    let (mut near, far) = UnixStream::pair().unwrap();
    set.add(&far, Event::new(Events::IN, 7)).unwrap();
    thread::sleep(Duration::from_millis(20));
    near.write_all(b"x").unwrap();
    assert_eq!(waiter.join().unwrap(), [7]);
}

#[test]
fn a_set_that_watches_a_set_sees_its_descriptors_whichever_came_first() {
    let _alone = alone();
    for descriptor_first in [true, false] {
        let inner = Epoll::new().unwrap();
        let outer = Epoll::new().unwrap();
        let top = Epoll::new().unwrap();
        let (mut near, mut far) = UnixStream::pair().unwrap();
        if descriptor_first {
            inner.add(&far, Event::new(Events::IN, 3)).unwrap();
        }
        top.add(&outer, Event::new(Events::IN, 1)).unwrap();
        outer.add(&inner, Event::new(Events::IN, 2)).unwrap();
        if !descriptor_first {
            inner.add(&far, Event::new(Events::IN, 3)).unwrap();
        }
        for set in [&top, &outer, &inner] {
            assert!(wait(set, 4, Duration::from_millis(1)).is_empty());
        }
        for _ in 0..3 {
            near.write_all(b"x").unwrap();
            // A poll from above consumes no event.
            assert_eq!(data(&wait(&top, 4, LONG)), [1]);
            assert_eq!(data(&wait(&top, 4, LONG)), [1]);
            assert_eq!(data(&wait(&outer, 4, LONG)), [2]);
            assert_eq!(data(&wait(&inner, 4, LONG)), [3]);
            far.read_exact(&mut [0]).unwrap();
            for set in [&top, &outer, &inner] {
                assert!(wait(set, 4, Duration::from_millis(1)).is_empty());
            }
        }
        outer.delete(&inner).unwrap();
        near.write_all(b"x").unwrap();
        assert!(wait(&top, 4, Duration::from_millis(1)).is_empty());
    }
}

#[test]
fn errors_are_the_kernels() {
    let _alone = alone();
    let set = Epoll::new().unwrap();
    let kernel = Kernel::new();
    let regular = std::fs::File::open("/proc/self/exe").unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    let plain = Event::new(Events::IN, 0);
    let exclusive = Event::new(Events::IN | Events::EXCLUSIVE, 0);
    let wrong = Event::new(Events::IN | Events::EXCLUSIVE | Events::ONESHOT, 0);
    for rotating in [false, true] {
        let rotate = CreateFlags::ROTATE;
        let flags = if rotating {
            rotate
        } else {
            CreateFlags::empty()
        };
        let set = if rotating {
            Epoll::create(flags).unwrap()
        } else {
            set.clone()
        };
        for (op, fd, interest) in [
            (upoll::Op::Add, regular.as_fd(), plain),
            (upoll::Op::Mod, regular.as_fd(), plain),
            (upoll::Op::Del, regular.as_fd(), plain),
            (upoll::Op::Mod, near.as_fd(), plain),
            (upoll::Op::Del, near.as_fd(), plain),
            (upoll::Op::Add, near.as_fd(), wrong),
            (upoll::Op::Add, near.as_fd(), exclusive),
            (upoll::Op::Add, near.as_fd(), plain),
            (upoll::Op::Mod, near.as_fd(), plain),
            (upoll::Op::Del, near.as_fd(), plain),
            (upoll::Op::Del, near.as_fd(), plain),
            (upoll::Op::Add, near.as_fd(), plain),
            (upoll::Op::Mod, near.as_fd(), plain),
            (upoll::Op::Mod, far.as_fd(), plain),
            (upoll::Op::Del, near.as_fd(), plain),
        ] {
            let ours = set.ctl(op, upoll::Target::Kernel(fd), interest);
            let theirs = kernel.ctl(op, fd.as_raw_fd(), interest);
            assert_eq!(ours, theirs, "{op:?} {fd:?} {interest:?}");
        }
    }
}

#[test]
fn a_waker_may_add_a_set_to_a_set_when_one_comes_to_sleep_in_the_kernel() {
    let _alone = alone();
    /// A waker that nests two sets when it is woken.
    struct Nester([Epoll; 2]);
    impl Wake for Nester {
        fn wake(self: Arc<Self>) {
            self.0[0]
                .add(&self.0[1], Event::new(Events::IN, 0))
                .unwrap();
        }
    }
    let [set, outer, inner] = [(); 3].map(|()| Epoll::new().unwrap());
    let mut ready = pin!(Readiness::new(&set, Events::IN).unwrap());
    let waker = Waker::from(Arc::new(Nester([outer.clone(), inner])));
    let mut context = Context::from_waker(&waker);
    assert!(ready.as_mut().poll(&mut context).is_pending());
    let limit = std::time::Duration::from_millis(1);
    let slept = set.pwait(&mut [Event::default()], limit, &upoll::SigSet::full());
    assert_eq!(slept, Ok(0));
    assert_eq!(outer.len(), 1);
}
