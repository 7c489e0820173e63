//! Descriptors of the kernel as members of sets, beside user-level objects.
#![cfg(not(loom))]

mod host;
mod interests;
mod kinds;
mod random;
mod threads;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use upoll::{CreateFlags, Epoll, Errno, Event, EventFd, Events};

use self::host::{Kernel, LONG, data, wait};

#[test]
fn a_wait_reports_user_level_objects_and_descriptors_together() {
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
            // Nothing is consumed by looking from above.
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
fn a_rotating_set_takes_one_source_of_either_kind() {
    let set = Epoll::create(CreateFlags::ROTATE).unwrap();
    let plain = Event::new(Events::IN, 0);
    let counter = EventFd::new(0).unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    set.add(&near, plain).unwrap();
    assert_eq!(set.add(&near, plain), Err(Errno::EXIST));
    assert_eq!(set.add(&far, plain), Err(Errno::INVAL));
    assert_eq!(set.add(&counter, plain), Err(Errno::INVAL));
    set.delete(&near).unwrap();
    set.add(&counter, plain).unwrap();
    assert_eq!(set.add(&far, plain), Err(Errno::INVAL));
    set.delete(&counter).unwrap();
    set.add(&far, plain).unwrap();
    assert_eq!(set.len(), 1);
    // Closing the source makes room for another.
    drop(far);
    set.add(&near, plain).unwrap();
    assert_eq!(set.len(), 1);
}

/// `workers` threads serve connections that come one by one; says how many each served.
fn serve(
    workers: usize,
    connections: usize,
    accept: impl Fn(&TcpListener) -> Option<TcpStream> + Copy + Send + 'static,
    wait: impl Fn(&Epoll) -> Box<dyn FnMut() -> bool + Send>,
) -> Vec<usize> {
    let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
    listener.set_nonblocking(true).unwrap();
    let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
    rotating.add(&*listener, Event::new(Events::IN, 0)).unwrap();
    let served: Arc<Vec<AtomicUsize>> =
        Arc::new((0..workers).map(|_| AtomicUsize::new(0)).collect());
    let total = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..workers)
        .map(|worker| {
            let mut wait = wait(&rotating);
            let (listener, served, total) = (listener.clone(), served.clone(), total.clone());
            thread::spawn(move || {
                while total.load(Ordering::SeqCst) < connections {
                    if wait()
                        && let Some(mut stream) = accept(&listener)
                    {
                        served[worker].fetch_add(1, Ordering::SeqCst);
                        total.fetch_add(1, Ordering::SeqCst);
                        stream.write_all(b"x").unwrap();
                    }
                }
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(50));
    let address = listener.local_addr().unwrap();
    for _ in 0..connections {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.read_exact(&mut [0]).unwrap();
        // Let the worker come back.
        thread::sleep(Duration::from_millis(1));
    }
    for thread in threads {
        thread.join().unwrap();
    }
    served
        .iter()
        .map(|count| count.load(Ordering::SeqCst))
        .collect()
}

#[test]
fn workers_take_turns_at_a_listening_socket() {
    let counts = serve(
        4,
        40,
        |listener| listener.accept().ok().map(|(stream, _)| stream),
        |rotating| {
            let worker = Epoll::new().unwrap();
            worker.add(rotating, Event::new(Events::IN, 0)).unwrap();
            Box::new(move || !wait(&worker, 4, Duration::from_millis(200)).is_empty())
        },
    );
    assert_eq!(counts, [10, 10, 10, 10]);
}

#[test]
fn threads_take_turns_at_a_listening_socket() {
    let counts = serve(
        4,
        40,
        |listener| listener.accept().ok().map(|(stream, _)| stream),
        |rotating| {
            let rotating = rotating.clone();
            Box::new(move || !wait(&rotating, 4, Duration::from_millis(200)).is_empty())
        },
    );
    assert_eq!(counts, [10, 10, 10, 10]);
}
