//! Sources of rotating sets, and workers that wait.
#![allow(dead_code, reason = "each test file uses a part")]

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use upoll::{CreateFlags, Epoll, Event, EventFd, EventFdFlags, Events};

use crate::threads::asleep;

/// Longer than any test takes: a wait that lasts so long has lost an event.
pub const LONG: Duration = Duration::from_secs(60);
pub const IN: Event = Event::new(Events::IN, 0);

/// The source of a rotating set. Each of its jobs is taken by one worker.
pub enum Source {
    UserLevel(EventFd),
    Kernel(PipeReader, PipeWriter),
}

impl Source {
    pub fn both() -> [Self; 2] {
        let counter = EventFd::with_flags(0, EventFdFlags::SEMAPHORE).unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        // SAFETY: the call takes no pointers.
        let flagged = unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(flagged, 0);
        [Source::UserLevel(counter), Source::Kernel(reader, writer)]
    }

    pub fn rotating(&self) -> Epoll {
        let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
        self.add_to(&rotating);
        rotating
    }

    pub fn add_to(&self, set: &Epoll) {
        match self {
            Source::UserLevel(counter) => set.add(counter, IN),
            Source::Kernel(reader, _) => set.add(reader, IN),
        }
        .unwrap();
    }

    pub fn put(&self) {
        match self {
            Source::UserLevel(counter) => counter.try_write(1).map(drop).unwrap(),
            Source::Kernel(_, writer) => (&*writer).write_all(b"x").unwrap(),
        }
    }

    pub fn take(&self) -> bool {
        match self {
            Source::UserLevel(counter) => counter.try_read().is_ok(),
            Source::Kernel(reader, _) => (&*reader).read(&mut [0]).is_ok(),
        }
    }
}

/// Returns a worker's set, or the rotating set itself for threads that wait in it directly.
pub fn workers_set(rotating: &Epoll, direct: bool) -> Epoll {
    if direct {
        return rotating.clone();
    }
    let set = Epoll::new().unwrap();
    set.add(rotating, IN).unwrap();
    set
}

pub fn wait(set: &Epoll, limit: Duration) -> usize {
    set.wait(&mut [Event::default(); 2], limit).unwrap()
}

/// Starts a thread that waits once, reports to `served` that it was woken, and lives on until `end`
/// is dropped.
pub fn serves_once(set: &Epoll, served: &mpsc::Sender<()>) -> (JoinHandle<()>, mpsc::Sender<()>) {
    let (set, served) = (set.clone(), served.clone());
    let (end, until) = mpsc::channel();
    let (thread, _) = asleep(move || {
        // Longer than the test waits: a thread rechecks when its limit ends, which would hide a
        // lost event.
        assert_eq!(wait(&set, 3 * LONG), 1);
        served.send(()).unwrap();
        let _ = until.recv();
    });
    (thread, end)
}

/// Returns the time that `set` takes to report a job `times` times, while the job stays there.
pub fn reports(set: &Epoll, times: u32) -> Duration {
    let begun = Instant::now();
    for _ in 0..times {
        assert_eq!(wait(set, LONG), 1);
    }
    begun.elapsed()
}

/// Returns the data of the events that as many waits with room for one event each report.
pub fn reported_one_by_one(set: &Epoll, waits: usize) -> Vec<u64> {
    let one = |_| {
        let mut events = [Event::default(); 1];
        assert_eq!(set.wait(&mut events, LONG), Ok(1));
        events[0].data()
    };
    (0..waits).map(one).collect()
}

/// Starts a thread that waits in `worker`, makes `change` once it sleeps, and returns the data of what it reports.
pub fn reported_after(worker: &Epoll, change: impl FnOnce()) -> Vec<u64> {
    let waiting = worker.clone();
    let (thread, _) = asleep(move || {
        let (mut events, begun) = ([Event::default(); 4], Instant::now());
        let ready = waiting.wait(&mut events, LONG).unwrap();
        assert!(begun.elapsed() < LONG / 4);
        events[..ready].iter().map(Event::data).collect()
    });
    change();
    thread.join().unwrap()
}
