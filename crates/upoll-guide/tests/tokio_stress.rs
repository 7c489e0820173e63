//! A set of a thousand user-level objects and ten sockets, served by a task of tokio while threads write.
//!
//! Each writer makes a burst of events, then waits until all of it was served. So no later event hides a lost
//! one: the test would not end. `UPOLL_TOKIO_EVENTS` sets the number of events.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use upoll::{Epoll, Event, EventFd, Events};

const WRITERS: usize = 4;
const OBJECTS: usize = 1000;
const SOCKETS: usize = 10;
/// The longest burst.
const BURST: u64 = 32;

/// Pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// The counts that a writer and the task share.
struct Shared {
    /// The number of events that the writer has made, or is just making.
    made: AtomicU64,
    /// Wakes the writer once these were served.
    served: EventFd,
}

/// Makes an event on one of the writer's objects or sockets. Each writer has its own.
fn write(random: &mut Random, objects: &[EventFd], sockets: &[UnixStream]) {
    let at = random.below((objects.len() + sockets.len()) as u64);
    let at = usize::try_from(at).unwrap();
    match objects.get(at) {
        Some(object) => object.try_write(1).unwrap(),
        None => (&sockets[at - objects.len()]).write_all(b"x").unwrap(),
    }
}

fn events() -> u64 {
    let number = std::env::var("UPOLL_TOKIO_EVENTS");
    number.map_or(100_000, |number| number.parse().expect("a number"))
}

#[test]
fn a_set_of_a_thousand_objects_in_tokio_loses_no_event() {
    let set = Epoll::new().unwrap();
    let objects: Vec<_> = (0..OBJECTS).map(|_| EventFd::new(0).unwrap()).collect();
    let (near, far): (Vec<_>, Vec<_>) = (0..SOCKETS).map(|_| UnixStream::pair().unwrap()).unzip();
    for (at, object) in objects.iter().enumerate() {
        // Level- and edge-triggered ones.
        let events = [Events::IN, Events::IN | Events::ET][at % 2];
        set.add(object, Event::new(events, at as u64)).unwrap();
    }
    for (at, socket) in near.iter().enumerate() {
        socket.set_nonblocking(true).unwrap();
        let events = [Events::IN, Events::IN | Events::ET][at % 2];
        set.add(socket, Event::new(events, (OBJECTS + at) as u64))
            .unwrap();
    }
    let shared: [_; WRITERS] = std::array::from_fn(|_| Shared {
        made: AtomicU64::new(0),
        served: EventFd::new(0).unwrap(),
    });
    let share = events() / WRITERS as u64;
    let begun = Instant::now();
    thread::scope(|scope| {
        for (writer, shared) in shared.iter().enumerate() {
            let objects: Vec<_> = objects
                .iter()
                .skip(writer)
                .step_by(WRITERS)
                .cloned()
                .collect();
            let sockets = far.iter().skip(writer).step_by(WRITERS);
            let sockets: Vec<_> = sockets.map(|socket| socket.try_clone().unwrap()).collect();
            scope.spawn(move || {
                let mut random = Random(0x9e37_79b9_7f4a_7c15 + writer as u64);
                let mut left = share;
                while left > 0 {
                    let burst = (1 + random.below(BURST)).min(left);
                    shared.made.fetch_add(burst, Ordering::SeqCst);
                    for _ in 0..burst {
                        write(&mut random, &objects, &sockets);
                    }
                    shared.served.read().unwrap();
                    left -= burst;
                }
            });
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(serve(
            &set,
            &objects,
            &near,
            &shared,
            share * WRITERS as u64,
        ));
    });
    let (events, took) = (share * WRITERS as u64, begun.elapsed());
    println!(
        "{events} events in {took:.1?}: {:.0} ns each",
        took.as_nanos() as f64 / events as f64
    );
}

async fn serve(
    set: &Epoll,
    objects: &[EventFd],
    sockets: &[UnixStream],
    shared: &[Shared],
    all: u64,
) {
    let fd = set.readiness_fd().unwrap();
    // SAFETY: the fd stays the same and open while `fd` exists, as nothing here closes fds of others.
    let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.unwrap();
    let mut events = [Event::default(); 64];
    let mut served = [0; WRITERS];
    while served.iter().sum::<u64>() < all {
        let mut ready = fd.readable().await.unwrap();
        let found = set.try_wait(&mut events).unwrap();
        if found < events.len() {
            ready.clear_ready();
        }
        for event in &events[..found] {
            let at = usize::try_from(event.data()).unwrap();
            let (writer, taken) = match objects.get(at) {
                Some(object) => (at % WRITERS, object.try_read().unwrap_or(0)),
                None => ((at - OBJECTS) % WRITERS, read_all(&sockets[at - OBJECTS])),
            };
            served[writer] += taken;
            let is_done = served[writer] == shared[writer].made.load(Ordering::SeqCst);
            if taken > 0 && is_done {
                shared[writer].served.try_write(1).unwrap();
            }
        }
    }
}

/// Returns how many bytes there were.
fn read_all(mut socket: &UnixStream) -> u64 {
    let mut all = 0;
    loop {
        match socket.read(&mut [0; 64]) {
            Ok(0) => panic!("the writer is there"),
            Ok(read) => all += read as u64,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return all,
            Err(error) => panic!("{error}"),
        }
    }
}
