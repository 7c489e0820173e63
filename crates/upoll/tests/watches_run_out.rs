//! The kernel's limit of watches (`fs.epoll.max_user_watches`) is reached before each watch that a call asks it for. The
//! call fails with `ENOSPC` and has no effect, or does without the watch; what was watched before stays so. Rotating sets,
//! sets with a readiness fd, shared eventfds, and waits of callbacks and tasks.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

#[path = "../../upoll-fds/tests/notified/mod.rs"]
mod notified;
mod threads;
#[path = "../../upoll-fds/tests/watches/mod.rs"]
mod watches;

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use upoll::{CreateFlags, Epoll, Errno, Event, EventFd, EventFdFlags, Events, Source, Watch};

use self::watches::{Limit, alone, each_watch_is_missing};

const LONG: Duration = Duration::from_secs(60);

fn event(data: u64) -> Event {
    Event::new(Events::IN, data)
}

/// Returns the data of the ready events, in ascending order.
fn ready(set: &Epoll) -> Vec<u64> {
    let mut events = [Event::default(); 8];
    let found = set.try_wait(&mut events).unwrap();
    let mut data: Vec<_> = events[..found].iter().map(Event::data).collect();
    data.sort_unstable();
    data
}

/// A socket of the kernel's that is readable.
fn of_the_kernel() -> [UnixStream; 2] {
    let (one, other) = UnixStream::pair().unwrap();
    (&other).write_all(b"x").unwrap();
    [one, other]
}

fn empty(mut socket: &UnixStream) {
    socket.read_exact(&mut [0]).unwrap();
}

fn fill(mut socket: &UnixStream) {
    socket.write_all(b"x").unwrap();
}

fn shared(count: u32) -> EventFd {
    EventFd::shared(count, EventFdFlags::empty()).unwrap()
}

/// Adds a source that is ready within the limit. If that fails the set is as it was, and the source can be added later.
fn add_within(limit: &Limit, set: &Epoll, source: &(impl Source + Sync), data: u64) {
    let (before, members) = (ready(set), set.len());
    if let Err(errno) = limit.during(|| set.add(source, event(data))) {
        assert_eq!(errno, Errno::NOSPC);
        assert!(limit.ran_out.load(Ordering::SeqCst) > 0);
        assert_eq!((ready(set), set.len()), (before.clone(), members));
        let missing = limit.during(|| (set.modify(source, event(data)), set.delete(source)));
        assert_eq!(missing, (Err(Errno::NOENT), Err(Errno::NOENT)));
        set.add(source, event(data)).unwrap();
    }
    assert_eq!(set.add(source, event(data)), Err(Errno::EXIST));
    let mut now = before;
    now.push(data);
    now.sort_unstable();
    assert_eq!(ready(set), now);
    assert_eq!(set.len(), members + 1);
}

/// A thread that sleeps in the set is woken by the next event of the source.
fn wakes_a_thread(set: &Epoll, source: &[UnixStream; 2]) {
    empty(&source[0]);
    assert_eq!(ready(set), []);
    let sleeping = set.clone();
    let (thread, _) = threads::asleep(move || sleeping.wait(&mut [Event::default(); 4], LONG));
    fill(&source[1]);
    assert_eq!(thread.join().unwrap(), Ok(1));
}

#[test]
fn an_add_of_the_source_of_a_rotating_set_fails_and_has_no_effect() {
    let _alone = alone();
    each_watch_is_missing(|limit| {
        let source = of_the_kernel();
        let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
        let workers = [(); 2].map(|()| Epoll::new().unwrap());
        for worker in &workers {
            worker.add(&rotating, event(1)).unwrap();
        }
        add_within(limit, &rotating, &source[0], 2);
        for worker in &workers {
            assert_eq!(ready(worker), [1]);
            wakes_a_thread(worker, &source);
        }
        // Another source is refused, and takes the place of the first one when that is gone.
        let other = of_the_kernel();
        assert_eq!(rotating.add(&other[0], event(3)), Err(Errno::INVAL));
        rotating.delete(&source[0]).unwrap();
        add_within(limit, &rotating, &other[0], 3);
        for worker in &workers {
            wakes_a_thread(worker, &other);
        }
    });
}

#[test]
fn an_add_of_a_rotating_set_fails_and_has_no_effect() {
    let _alone = alone();
    each_watch_is_missing(|limit| {
        let (source, own) = (of_the_kernel(), of_the_kernel());
        let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
        rotating.add(&source[0], event(2)).unwrap();
        // One worker has kernel members of its own.
        let workers = [(); 3].map(|()| Epoll::new().unwrap());
        empty(&own[0]);
        workers[1].add(&own[0], event(4)).unwrap();
        for worker in &workers {
            add_within(limit, worker, &rotating, 1);
        }
        for worker in &workers {
            wakes_a_thread(worker, &source);
        }
        fill(&own[1]);
        empty(&source[0]);
        assert_eq!(workers.each_ref().map(ready), [vec![], vec![4], vec![]]);
    });
}

#[test]
fn an_add_of_a_set_with_kernel_members_to_a_rotating_set_fails_and_has_no_effect() {
    let _alone = alone();
    each_watch_is_missing(|limit| {
        let source = of_the_kernel();
        let [inner, worker] = [(); 2].map(|()| Epoll::new().unwrap());
        let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
        inner.add(&source[0], event(3)).unwrap();
        worker.add(&rotating, event(1)).unwrap();
        add_within(limit, &rotating, &inner, 2);
        assert_eq!(ready(&worker), [1]);
        wakes_a_thread(&worker, &source);
    });
}

/// A thread in the rotating set itself needs watches of its own.
#[test]
fn a_wait_in_a_rotating_set_fails_or_does_without() {
    let _alone = alone();
    each_watch_is_missing(|limit| {
        let source = of_the_kernel();
        let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
        rotating.add(&source[0], event(1)).unwrap();
        let mut events = [Event::default(); 4];
        let found = limit.during(|| rotating.wait(&mut events, Duration::from_millis(5)));
        assert!([Ok(1), Err(Errno::NOSPC)].contains(&found), "{found:?}");
        assert_eq!(ready(&rotating), [1]);
        empty(&source[0]);
        let limited = Duration::from_millis(5);
        let found = limit.during(|| rotating.wait(&mut events, limited));
        assert!([Ok(0), Err(Errno::NOSPC)].contains(&found), "{found:?}");
        fill(&source[1]);
        wakes_a_thread(&rotating, &source);
    });
}

/// Returns whether poll(2) finds the fd readable.
fn is_readable(fd: RawFd) -> bool {
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one live entry.
    unsafe { libc::poll(&raw mut entry, 1, 0) == 1 }
}

/// The kind of a member of such a set.
#[derive(Clone, Copy, Debug)]
enum Member {
    None,
    UserLevel,
    Kernel,
    Shared,
    Set,
}

#[test]
fn a_readiness_fd_is_not_made_and_the_set_works_on() {
    let _alone = alone();
    for member in [
        Member::None,
        Member::UserLevel,
        Member::Kernel,
        Member::Shared,
        Member::Set,
    ] {
        each_watch_is_missing(|limit| {
            let (set, inner) = (Epoll::new().unwrap(), Epoll::new().unwrap());
            let (kernels, counter, shared) = (of_the_kernel(), EventFd::new(1).unwrap(), shared(1));
            inner.add(&kernels[0], event(5)).unwrap();
            match member {
                Member::None => Ok(()),
                Member::UserLevel => set.add(&counter, event(1)),
                Member::Kernel => set.add(&kernels[0], event(1)),
                Member::Shared => set.add(&shared, event(1)),
                Member::Set => set.add(&inner, event(1)),
            }
            .unwrap();
            let before = ready(&set);
            let made = limit.during(|| set.readiness_fd());
            if let Err(errno) = &made {
                assert_eq!(*errno, Errno::NOSPC);
                assert_eq!(ready(&set), before, "{member:?}");
            }
            let fd = made.unwrap_or_else(|_| set.readiness_fd().unwrap());
            assert_eq!(ready(&set), before, "{member:?}");
            assert_eq!(
                is_readable(fd.as_raw_fd()),
                !before.is_empty(),
                "{member:?}"
            );
            // Each kind of member is added to a set with such an fd.
            let other = of_the_kernel();
            add_within(limit, &set, &other[0], 2);
            let second = self::shared(1);
            add_within(limit, &set, &second, 3);
            let nested = Epoll::new().unwrap();
            nested.add(&other[0], event(6)).unwrap();
            add_within(limit, &set, &nested, 4);
            assert!(is_readable(fd.as_raw_fd()));
            set.delete(&second).unwrap();
            empty(&other[0]);
            assert_eq!(ready(&set), before, "{member:?}");
            assert_eq!(
                is_readable(fd.as_raw_fd()),
                !before.is_empty(),
                "{member:?}"
            );
            fill(&other[1]);
            assert!(is_readable(fd.as_raw_fd()));
        });
    }
}

#[test]
fn an_add_of_a_shared_eventfd_fails_and_has_no_effect() {
    let _alone = alone();
    each_watch_is_missing(|limit| {
        let counters = [shared(1), shared(1)];
        let (kernels, ours) = (of_the_kernel(), EventFd::new(1).unwrap());
        let sets = [(); 4].map(|()| Epoll::new().unwrap());
        let [plain, mixed, below, outer] = &sets;
        plain.add(&ours, event(9)).unwrap();
        mixed.add(&kernels[0], event(9)).unwrap();
        outer.add(below, event(8)).unwrap();
        for set in [plain, mixed, below] {
            for (counter, data) in counters.iter().zip(1..) {
                add_within(limit, set, counter, data);
            }
        }
        assert_eq!(ready(outer), [8]);
        for counter in &counters {
            assert_eq!(counter.try_read(), Ok(1));
        }
        assert_eq!(
            sets.each_ref().map(ready),
            [vec![9], vec![9], vec![], vec![]]
        );
        for (counter, data) in counters.iter().zip(1..) {
            counter.try_write(1).unwrap();
            assert_eq!(ready(below), [data]);
            assert_eq!(ready(outer), [8]);
            assert_eq!(counter.try_read(), Ok(1));
        }
        let sleeping = outer.clone();
        let (thread, _) = threads::asleep(move || sleeping.wait(&mut [Event::default(); 4], LONG));
        counters[0].try_write(1).unwrap();
        assert_eq!(thread.join().unwrap(), Ok(1));
    });
}

#[test]
fn an_add_of_a_set_with_shared_eventfds_fails_and_has_no_effect() {
    let _alone = alone();
    each_watch_is_missing(|limit| {
        let counter = shared(1);
        let [inner, outer] = [(); 2].map(|()| Epoll::new().unwrap());
        inner.add(&counter, event(1)).unwrap();
        add_within(limit, &outer, &inner, 2);
        counter.try_read().unwrap();
        assert_eq!(ready(&outer), []);
        let sleeping = outer.clone();
        let (thread, _) = threads::asleep(move || sleeping.wait(&mut [Event::default(); 4], LONG));
        counter.try_write(1).unwrap();
        assert_eq!(thread.join().unwrap(), Ok(1));
    });
}

/// A read that sleeps for a shared eventfd needs no watch, and neither does a poll.
#[test]
fn waits_for_a_shared_eventfd_do_without() {
    let _alone = alone();
    let limit = Limit {
        watches: 0,
        ran_out: AtomicUsize::new(0),
    };
    let counter = shared(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            counter.try_write(3).unwrap();
        });
        assert_eq!(limit.during(|| counter.read()), Ok(3));
    });
}

/// The attendant watches in their place.
#[test]
fn a_callback_on_a_kernel_fd_or_a_set_fails_and_leaves_nothing() {
    let _alone = alone();
    // The attendant is there before, and so has no filter.
    let first = of_the_kernel();
    let (_keeps_it, _) = Watch::new(&first[0], Events::IN, |_| {}).unwrap();
    each_watch_is_missing(|limit| {
        let source = of_the_kernel();
        empty(&source[0]);
        let set = Epoll::new().unwrap();
        set.add(&source[0], event(1)).unwrap();
        let told = Arc::new(AtomicUsize::new(0));
        for of_the_set in [false, true] {
            let watch = || {
                let told = told.clone();
                let told = move |_| _ = told.fetch_add(1, Ordering::SeqCst);
                match of_the_set {
                    true => Watch::new(&set, Events::IN, told),
                    false => Watch::new(&source[0], Events::IN, told),
                }
            };
            let made = limit.during(watch);
            if let Err(errno) = &made {
                assert_eq!(*errno, Errno::NOSPC);
            }
            let before = told.load(Ordering::SeqCst);
            let _watch = made.unwrap_or_else(|_| watch().unwrap());
            fill(&source[1]);
            let begun = Instant::now();
            while told.load(Ordering::SeqCst) == before {
                assert!(begun.elapsed() < LONG, "no call");
                std::thread::sleep(Duration::from_micros(100));
            }
            assert_eq!(ready(&set), [1]);
            empty(&source[0]);
        }
    });
}
