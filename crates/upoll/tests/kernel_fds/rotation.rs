//! Kernel fds as the source of a rotating set.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use upoll::{CreateFlags, Epoll, Errno, Event, EventFd, Events};

use super::host::alone;
use crate::host::{
    Kernel, LONG, SHORT, data, eventfd, eventfd_read, eventfd_write, input, pipe, try_wait, wait,
};

fn rotating() -> Epoll {
    Epoll::create(CreateFlags::ROTATE).unwrap()
}

/// Returns a worker's set, which watches `rotating`.
fn worker_of(rotating: &Epoll) -> Epoll {
    let worker = Epoll::new().unwrap();
    worker.add(rotating, input(0)).unwrap();
    worker
}

#[test]
fn a_rotating_set_takes_one_source_of_either_kind() {
    let _alone = alone();
    let set = rotating();
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
    // After the source is closed another one may be added.
    drop(far);
    set.add(&near, plain).unwrap();
    assert_eq!(set.len(), 1);
    drop(near);
    set.add(&counter, plain).unwrap();
    assert_eq!(set.len(), 1);
}

/// Worker threads that accept the connections to a listening socket.
struct Service {
    listener: Arc<TcpListener>,
    rotating: Epoll,
    served: Arc<Vec<AtomicUsize>>,
    /// The number of connections to count. A worker ends when they have all come.
    connections: usize,
    /// The workers' thread numbers.
    tasks: Arc<Mutex<Vec<libc::pid_t>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Service {
    fn new(workers: usize, connections: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Service {
            listener: Arc::new(listener),
            rotating: rotating(),
            served: Arc::new((0..workers).map(|_| AtomicUsize::new(0)).collect()),
            connections,
            tasks: Arc::new(Mutex::new(Vec::new())),
            threads: Vec::new(),
        }
    }

    fn open(&self, events: Events) {
        self.rotating
            .add(&*self.listener, Event::new(events, 0))
            .unwrap();
    }

    /// Starts a thread that accepts one connection each time `wait` returns.
    fn start(&mut self, mut wait: impl FnMut() + Send + 'static) {
        let worker = self.threads.len();
        let (listener, served) = (self.listener.clone(), self.served.clone());
        let (tasks, connections) = (self.tasks.clone(), self.connections);
        self.threads.push(thread::spawn(move || {
            // SAFETY: the call takes no pointers.
            tasks.lock().unwrap().push(unsafe { libc::gettid() });
            while total(&served) < connections {
                wait();
                if let Ok((mut stream, _)) = listener.accept() {
                    served[worker].fetch_add(1, Ordering::SeqCst);
                    stream.write_all(b"x").unwrap();
                }
            }
        }));
    }

    /// Starts a worker with a set of its own.
    fn start_worker(&mut self) {
        let worker = worker_of(&self.rotating);
        self.start(move || drop(wait(&worker, 4, LONG)));
    }

    /// Starts a thread that waits in the rotating set itself.
    fn start_direct(&mut self) {
        let rotating = self.rotating.clone();
        self.start(move || drop(wait(&rotating, 4, LONG)));
    }

    /// Waits until all workers sleep. One look may meet a short sleep on the way, for a lock.
    fn settle(&self) {
        let mut looks = 0;
        let start = Instant::now();
        let asleep = |task: &libc::pid_t| {
            let stat = std::fs::read_to_string(format!("/proc/self/task/{task}/stat"));
            stat.is_ok_and(|stat| stat.rsplit(')').next().unwrap().starts_with(" S"))
        };
        loop {
            {
                let tasks = self.tasks.lock().unwrap();
                let all_sleep = tasks.len() == self.threads.len() && tasks.iter().all(asleep);
                looks = if all_sleep { looks + 1 } else { 0 };
                if looks == 3 {
                    return;
                }
            }
            assert!(start.elapsed() < LONG);
            thread::sleep(Duration::from_micros(200));
        }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.listener.local_addr().unwrap()).unwrap()
    }

    /// Makes connections one by one, each when all workers sleep.
    fn connect_one_by_one(&self) {
        for _ in 0..self.connections {
            self.settle();
            self.connect().read_exact(&mut [0]).unwrap();
        }
    }

    /// Ends the service. Returns the number of connections that each worker served.
    fn end(self) -> Vec<usize> {
        let counts = self.served.iter().map(|count| count.load(Ordering::SeqCst));
        let counts = counts.collect();
        // Only connections wake the threads that wait in the rotating set.
        while !self.threads.iter().all(JoinHandle::is_finished) {
            drop(self.connect());
            thread::sleep(Duration::from_millis(1));
        }
        for thread in self.threads {
            thread.join().unwrap();
        }
        counts
    }
}

fn total(served: &[AtomicUsize]) -> usize {
    served
        .iter()
        .map(|count| count.load(Ordering::SeqCst))
        .sum()
}

#[test]
fn workers_take_turns_at_a_listening_socket() {
    let _alone = alone();
    let mut service = Service::new(4, 40);
    service.open(Events::IN);
    (0..4).for_each(|_| service.start_worker());
    service.connect_one_by_one();
    assert_eq!(service.end(), [10, 10, 10, 10]);
}

#[test]
fn threads_take_turns_at_a_listening_socket() {
    let _alone = alone();
    let mut service = Service::new(4, 40);
    service.open(Events::IN);
    (0..4).for_each(|_| service.start_direct());
    service.connect_one_by_one();
    assert_eq!(service.end(), [10, 10, 10, 10]);
}

#[test]
fn workers_and_threads_that_wait_before_there_is_a_source_take_turns() {
    let _alone = alone();
    let mut service = Service::new(4, 40);
    service.start_worker();
    service.start_direct();
    service.start_worker();
    service.start_direct();
    service.settle();
    service.open(Events::IN);
    service.connect_one_by_one();
    let counts = service.end();
    assert_eq!(counts.iter().sum::<usize>(), 40);
    assert!(counts.iter().all(|&count| count >= 9), "{counts:?}");
}

#[test]
fn a_burst_of_connections_is_served_to_the_last() {
    let _alone = alone();
    for events in [Events::IN, Events::IN | Events::RDHUP] {
        let mut service = Service::new(4, 300);
        service.open(events);
        for _ in 0..2 {
            service.start_worker();
            service.start_direct();
        }
        for _ in 0..6 {
            let mut clients: Vec<_> = (0..50).map(|_| service.connect()).collect();
            for client in &mut clients {
                client.set_read_timeout(Some(LONG)).unwrap();
                client.read_exact(&mut [0]).unwrap();
            }
        }
        assert_eq!(service.end().iter().sum::<usize>(), 300);
    }
}

#[test]
fn workers_that_come_and_go_lose_no_connection() {
    let _alone = alone();
    let mut service = Service::new(4, 300);
    service.open(Events::IN);
    service.start_worker();
    for leaver in 0..3 {
        let rotating = service.rotating.clone();
        let mut limit = 0;
        service.start(move || {
            limit = (limit + 37) % 400;
            let worker = worker_of(&rotating);
            wait(&worker, 1, Duration::from_micros(limit + 1));
            if leaver == 0 {
                worker.delete(&rotating).unwrap();
            }
        });
    }
    for _ in 0..300 {
        let mut client = service.connect();
        client.set_read_timeout(Some(LONG)).unwrap();
        client.read_exact(&mut [0]).unwrap();
    }
    assert_eq!(service.end().iter().sum::<usize>(), 300);
}

#[test]
fn edge_triggered_and_oneshot_sources_report_as_in_the_kernel() {
    let _alone = alone();
    for events in [
        Events::IN,
        Events::IN | Events::ET,
        Events::IN | Events::ONESHOT,
    ] {
        let counter = eventfd();
        let (ours, theirs) = (rotating(), Kernel::new());
        ours.add(&counter, Event::new(events, 7)).unwrap();
        theirs.add(&counter, Event::new(events, 7));
        let (above, kernel_above) = (worker_of(&ours), Kernel::new());
        kernel_above.add(&theirs.0, input(0));
        let compare = |what: &str| {
            let shown = data(&wait(&above, 4, Duration::from_millis(1)));
            assert_eq!(shown, data(&kernel_above.try_wait(4)), "{events:?} {what}");
            let shown = data(&try_wait(&ours, 4));
            assert_eq!(shown, data(&theirs.try_wait(4)), "{events:?} {what}");
        };
        compare("nothing");
        for _ in 0..2 {
            eventfd_write(&counter);
            compare("written");
            compare("left");
            eventfd_write(&counter);
            compare("written again");
            ours.modify(&counter, Event::new(events, 8)).unwrap();
            theirs
                .ctl(upoll::Op::Mod, counter.as_raw_fd(), Event::new(events, 8))
                .unwrap();
            compare("modified");
            eventfd_read(&counter);
            compare("read");
        }
    }
}

/// Starts a thread that waits in a worker set of `rotating` until an event comes.
fn sleeping_worker(rotating: &Epoll) -> JoinHandle<Vec<u64>> {
    let worker = worker_of(rotating);
    let thread = thread::spawn(move || data(&wait(&worker, 4, LONG)));
    thread::sleep(SHORT);
    thread
}

#[test]
fn a_source_that_is_replaced_or_modified_while_workers_sleep_wakes_one() {
    let _alone = alone();
    let (first, second) = (eventfd(), eventfd());
    let rotating = rotating();
    rotating.add(&first, input(1)).unwrap();
    let worker = sleeping_worker(&rotating);
    rotating.delete(&first).unwrap();
    rotating.add(&second, input(2)).unwrap();
    eventfd_write(&first);
    thread::sleep(SHORT);
    assert!(!worker.is_finished());
    eventfd_write(&second);
    assert_eq!(worker.join().unwrap(), [0]);
    // The interest is emptied, then restored.
    rotating.modify(&second, Event::default()).unwrap();
    let worker = sleeping_worker(&rotating);
    assert!(!worker.is_finished());
    rotating.modify(&second, input(3)).unwrap();
    assert_eq!(worker.join().unwrap(), [0]);
    assert_eq!(data(&try_wait(&rotating, 2)), [3]);
    // The source is closed, and another one is added.
    eventfd_read(&second);
    let worker = sleeping_worker(&rotating);
    drop(second);
    rotating.add(&first, input(4)).unwrap();
    assert_eq!(worker.join().unwrap(), [0]);
}

#[test]
fn an_fd_used_again_is_left_alone() {
    let _alone = alone();
    let rotating = rotating();
    let source = eventfd();
    let fd = source.as_raw_fd();
    rotating.add(&source, input(1)).unwrap();
    let worker = worker_of(&rotating);
    eventfd_write(&source);
    assert_eq!(data(&wait(&worker, 4, LONG)), [0]);
    // From now on the fd of the source belongs to a connection of the worker's.
    let (mut near, far) = UnixStream::pair().unwrap();
    // SAFETY: `source` owns the fd, and goes on owning it.
    assert_eq!(unsafe { libc::dup2(far.as_raw_fd(), fd) }, fd);
    worker.add(&source, input(9)).unwrap();
    let kept = |near: &mut UnixStream| {
        near.write_all(b"x").unwrap();
        assert_eq!(data(&wait(&worker, 4, LONG)), [9]);
        std::fs::File::from(source.try_clone().unwrap())
            .read_exact(&mut [0])
            .unwrap();
        assert!(wait(&worker, 4, Duration::from_millis(1)).is_empty());
    };
    kept(&mut near);
    assert_eq!(rotating.modify(&source, input(2)), Err(Errno::NOENT));
    assert_eq!(rotating.delete(&source), Err(Errno::NOENT));
    kept(&mut near);
    let other: OwnedFd = eventfd();
    rotating.add(&other, input(3)).unwrap();
    kept(&mut near);
    eventfd_write(&other);
    assert_eq!(data(&wait(&worker, 4, LONG)), [0]);
    eventfd_read(&other);
    kept(&mut near);
    drop(rotating);
    kept(&mut near);
    assert_eq!(worker.len(), 1);
}

#[test]
fn a_rotating_set_that_closes_leaves_sleeping_workers_to_their_other_members() {
    let _alone = alone();
    let rotating = rotating();
    let source = eventfd();
    rotating.add(&source, input(1)).unwrap();
    let worker = worker_of(&rotating);
    let other = EventFd::new(0).unwrap();
    worker.add(&other, input(2)).unwrap();
    let thread = thread::spawn({
        let worker = worker.clone();
        move || data(&wait(&worker, 4, LONG))
    });
    thread::sleep(SHORT);
    drop(rotating);
    eventfd_write(&source);
    thread::sleep(SHORT);
    assert!(!thread.is_finished());
    other.try_write(1).unwrap();
    assert_eq!(thread.join().unwrap(), [2]);
}

#[test]
fn events_that_come_together_find_as_many_workers_that_take_one_each() {
    const WORKERS: usize = 3;
    const LAST: u8 = b'q';
    let _alone = alone();
    for round in 0..40 {
        let (reader, mut writer) = pipe();
        // SAFETY: the call takes no pointers.
        let flagged = unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(flagged, 0);
        let rotating = rotating();
        rotating.add(&reader, input(0)).unwrap();
        let workers: Vec<_> = (0..WORKERS).map(|_| worker_of(&rotating)).collect();
        let (say, hear) = std::sync::mpsc::channel();
        for worker in &workers {
            let (say, worker) = (say.clone(), worker.clone());
            let mut reader = reader.try_clone().unwrap();
            thread::spawn(move || {
                let mut byte = [0];
                loop {
                    worker.wait(&mut [Event::default()], None).unwrap();
                    // Another worker may have read it first.
                    if reader.read(&mut byte).is_ok() {
                        let _ = say.send(byte[0]);
                        if byte[0] == LAST {
                            return;
                        }
                    }
                }
            });
        }
        let next = || hear.recv_timeout(LONG).expect("an event that nobody takes");
        // Some single events first put the workers in some order.
        for turn in 0..round % 7 {
            writer.write_all(&[turn]).unwrap();
            assert_eq!(next(), turn);
        }
        thread::sleep(Duration::from_millis(5));
        for _ in 0..WORKERS {
            writer.write_all(&[LAST]).unwrap();
        }
        for _ in 0..WORKERS {
            assert_eq!(next(), LAST);
        }
    }
}

#[test]
fn a_source_that_is_added_anew_wakes_a_worker_that_falls_asleep_meanwhile() {
    let _alone = alone();
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let source = reader.try_clone().unwrap();
    let rotating = rotating();
    rotating.add(&source, input(0)).unwrap();
    let received = Arc::new(AtomicUsize::new(0));
    let (worker, count) = (worker_of(&rotating), received.clone());
    const UNITS: usize = 3_000;
    let thread = thread::spawn(move || {
        while count.load(Ordering::SeqCst) < UNITS {
            if !wait(&worker, 1, LONG).is_empty() {
                let length = reader.read(&mut [0; 8]).unwrap();
                count.fetch_add(length, Ordering::SeqCst);
            }
        }
    });
    for unit in 1..=UNITS {
        // The worker is woken, reads and goes back to sleep, while its source is deleted and added.
        if unit % 2 == 0 {
            writer.write_all(b"u").unwrap();
        }
        rotating.delete(&source).unwrap();
        if unit % 2 != 0 {
            writer.write_all(b"u").unwrap();
        }
        rotating.add(&source, input(0)).unwrap();
        let start = Instant::now();
        while received.load(Ordering::SeqCst) < unit {
            assert!(
                start.elapsed() < LONG,
                "unit {unit} is there, and the worker sleeps"
            );
            thread::yield_now();
        }
    }
    thread.join().unwrap();
}

/// Two rotating sets have one source, and a thread sleeps in a set that watches both.
#[test]
fn a_worker_learns_of_the_source_that_one_of_two_rotating_sets_keeps() {
    let _alone = alone();
    let (near, mut far) = UnixStream::pair().unwrap();
    let worker = Epoll::new().unwrap();
    let sets = [0, 1].map(|data| {
        let set = rotating();
        set.add(&near, Event::new(Events::IN, 0)).unwrap();
        worker.add(&set, input(data)).unwrap();
        set
    });
    for deleted in &sets {
        let sleeper = worker.clone();
        let sleeping = thread::spawn(move || {
            let began = Instant::now();
            let limit = LONG;
            let found = sleeper.wait(&mut [Event::default(); 2], limit);
            // A wait reports an event that it finds when its limit ends, so the time is checked as
            // well.
            (found, began.elapsed() < limit)
        });
        thread::sleep(SHORT);
        deleted.delete(&near).unwrap();
        far.write_all(&[1]).unwrap();
        assert_eq!(sleeping.join().unwrap(), (Ok(1), true));
        deleted.add(&near, Event::new(Events::IN, 0)).unwrap();
        let mut byte = [0];
        (&near).read_exact(&mut byte).unwrap();
    }
}

#[test]
fn only_a_rotating_set_has_slack() {
    let _alone = alone();
    assert_eq!(
        Epoll::new().unwrap().set_rotation_slack(1),
        Err(Errno::INVAL)
    );
    assert_eq!(rotating().set_rotation_slack(u32::MAX), Ok(()));
}

/// A worker with an edge-triggered interest takes one connection at a time, from sources that are not known to be
/// level-triggered as well.
#[test]
fn a_worker_that_goes_on_finds_what_it_has_left_by_an_edge() {
    let _alone = alone();
    for events in [
        Events::IN,
        Events::IN | Events::RDHUP,
        Events::IN | Events::ET,
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let rotating = rotating();
        rotating.add(&listener, Event::new(events, 0)).unwrap();
        let worker = Epoll::new().unwrap();
        worker
            .add(&rotating, Event::new(Events::IN | Events::ET, 0))
            .unwrap();
        let address = listener.local_addr().unwrap();
        let _clients = [(); 3].map(|()| TcpStream::connect(address).unwrap());
        for _ in 0..3 {
            let began = Instant::now();
            assert_eq!(worker.wait(&mut [Event::default()], LONG), Ok(1));
            assert!(began.elapsed() < LONG);
            listener.accept().unwrap();
        }
    }
}
