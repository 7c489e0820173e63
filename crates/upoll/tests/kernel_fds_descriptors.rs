//! The number of fds that sets with a kernel backend take, and the effect of running out of fds.
//!
//! One test: it counts the fds of the whole process, and uses up the rest.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use upoll::{CreateFlags, Epoll, Errno, Event, EventFd, EventFdFlags, Events, PollFd, SigSet};

const LONG: Duration = Duration::from_secs(60);

fn input(data: u64) -> Event {
    Event::new(Events::IN, data)
}

fn wait(set: &Epoll, limit: Duration) -> Vec<u64> {
    let events = &mut [Event::default(); 8];
    let ready = set.wait(events, limit).unwrap();
    events[..ready].iter().map(Event::data).collect()
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Makes and uses sets of all kinds, and drops them in the order that `order` selects.
fn use_and_drop(order: usize) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let fd: OwnedFd = reader.into();
    let counter = EventFd::new(0).unwrap();
    let mut sets: Vec<Epoll> = (0..4).map(|_| Epoll::new().unwrap()).collect();
    sets.push(Epoll::create(CreateFlags::ROTATE).unwrap());
    let [top, middle, bottom, worker, rotating] = &sets[..] else {
        unreachable!()
    };
    bottom.add(&fd, input(1)).unwrap();
    bottom.add(&counter, input(2)).unwrap();
    middle.add(bottom, input(3)).unwrap();
    middle.add(&fd, input(4)).unwrap();
    top.add(middle, input(5)).unwrap();
    top.add(bottom, input(6)).unwrap();
    rotating.add(&fd, input(7)).unwrap();
    worker.add(rotating, input(8)).unwrap();
    writer.write_all(b"x").unwrap();
    assert_eq!(wait(worker, LONG), [8]);
    thread::scope(|scope| {
        let worker = scope.spawn(|| assert_eq!(wait(rotating, LONG), [7]));
        // The end of a scope does not wait until the thread has closed its own fds.
        worker.join().unwrap();
    });
    top.add(worker, input(9)).unwrap();
    let mut events = wait(top, LONG);
    events.sort_unstable();
    assert_eq!(events, [5, 6, 9]);
    let mut fd = Some(fd);
    for step in 0..5 {
        let at = (order + step * (1 + order / 5)) % sets.len();
        drop(sets.remove(at));
        if step == order % 5 {
            fd = None;
        }
        for set in &sets {
            wait(set, Duration::from_micros(1));
        }
    }
    drop(fd);
}

/// Opens files until exactly `room` fds are left.
fn fill(room: usize) -> Vec<File> {
    let mut files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    assert!(files.len() > room);
    files.truncate(files.len() - room);
    files
}

/// The sets above a set need fds when it gets a kernel member, and for nothing else.
fn a_set_with_many_above_waits_with_a_mask() {
    let (set, counter) = (Epoll::new().unwrap(), EventFd::new(0).unwrap());
    set.add(&counter, input(1)).unwrap();
    let above: Vec<_> = (0..50).map(|_| Epoll::new().unwrap()).collect();
    for above in &above {
        above.add(&set, input(2)).unwrap();
    }
    let before = open_descriptors();
    let (reader, writer) = std::io::pipe().unwrap();
    let file = File::open("/proc/self/exe").unwrap();
    assert_eq!(set.delete(&reader), Err(Errno::NOENT));
    assert_eq!(set.modify(&reader, input(3)), Err(Errno::NOENT));
    assert_eq!(set.delete(&file), Err(Errno::PERM));
    let milli = Duration::from_millis(1);
    let waited = set.pwait(&mut [Event::default()], milli, &SigSet::full());
    assert_eq!(waited, Ok(0));
    drop((reader, writer, file));
    let opened = open_descriptors() - before;
    assert!(opened < 10, "{opened} fds");
    // The sets above learn of user-level members as before, and of the first one of the kernel.
    counter.try_write(1).unwrap();
    assert_eq!(wait(&above[49], LONG), [2]);
    counter.try_read().unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    set.add(&reader, input(4)).unwrap();
    let waiting = above[49].clone();
    let waiting = thread::spawn(move || wait(&waiting, LONG));
    writer.write_all(b"x").unwrap();
    assert_eq!(waiting.join().unwrap(), [2]);
}

#[test]
fn descriptors_come_back_and_their_lack_is_an_error_that_leaves_sets_usable() {
    use_and_drop(0);
    let before = open_descriptors();
    for order in 0..25 {
        use_and_drop(order);
    }
    assert_eq!(open_descriptors(), before);

    a_set_with_many_above_waits_with_a_mask();

    let limit = libc::rlimit {
        rlim_cur: 64,
        rlim_max: 64,
    };
    // SAFETY: `limit` is live.
    let limited = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(limited, 0);
    let (reader, mut writer) = std::io::pipe().unwrap();
    for rotate in [false, true] {
        // The set, the set above and the set above that each need some fds.
        for room in 0..12 {
            let flags = if rotate {
                CreateFlags::ROTATE
            } else {
                CreateFlags::empty()
            };
            let set = Epoll::create(flags).unwrap();
            let (above, top) = (Epoll::new().unwrap(), Epoll::new().unwrap());
            above.add(&set, input(1)).unwrap();
            top.add(&above, input(2)).unwrap();
            let counter = EventFd::new(1).unwrap();
            above.add(&counter, input(3)).unwrap();
            let files = fill(room);
            let added = set.add(&reader, input(4));
            if room < 4 {
                assert_eq!(added, Err(Errno::MFILE));
            }
            assert!(matches!(added, Ok(()) | Err(Errno::MFILE)), "{added:?}");
            // Calls that need no new fd still work.
            assert_eq!(wait(&above, LONG), [3]);
            assert_eq!(above.delete(&counter), Ok(()));
            assert_eq!(wait(&top, Duration::ZERO), []);
            drop(files);
            if added.is_err() {
                assert!(set.is_empty());
                set.add(&reader, input(4)).unwrap();
            }
            writer.write_all(b"x").unwrap();
            assert_eq!(wait(&top, LONG), [2]);
            assert_eq!(wait(&above, LONG), [1]);
            assert_eq!(wait(&set, Duration::ZERO), [4]);
            std::io::Read::read_exact(&mut &reader, &mut [0]).unwrap();
            assert_eq!(wait(&top, Duration::from_millis(1)), []);
        }
    }
    // ENOMEM is the only error that `poll` has for a missing fd, whatever it needs the fd for.
    let counter = EventFd::shared(0, EventFdFlags::empty()).unwrap();
    let poll = |counter: &EventFd| {
        upoll::poll(
            &mut [PollFd::new(counter, Events::IN)],
            Duration::from_millis(1),
        )
    };
    for room in 0..4 {
        let files = fill(room);
        // Each of these threads opens a wake fd of its own.
        let polled = thread::scope(|scope| scope.spawn(|| poll(&counter)).join().unwrap());
        let expected = if room < 2 { Err(Errno::NOMEM) } else { Ok(0) };
        assert_eq!(polled, expected, "room for {room}");
        drop(files);
        assert_eq!(poll(&counter), Ok(0));
    }
}
