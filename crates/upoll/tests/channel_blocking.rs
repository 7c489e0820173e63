//! Threads that block in channels of upoll, and in packet pipes of the host kernel: which thread wakes when, and
//! that no message is lost.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod threads;
mod twin;

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use upoll::channel::{
    Receiver, RecvError, RecvTimeoutError, SendError, SendTimeoutError, Sender, bounded, unbounded,
};
use upoll::{Epoll, Event, Events, PIPE_BUF, PipeFlags, Timeout, Watch};

use threads::{asleep, until_asleep};
use twin::{Fd, kernel_pipe, signal};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);

/// The operations that threads use on a channel or a pipe of packets. `None` or false: the other end is closed.
trait Blocking: Send + Sync {
    fn recv(&self) -> Option<u8>;
    fn send(&self, message: u8) -> bool;
}

struct Pipe(Fd, Fd);

impl Blocking for Pipe {
    fn recv(&self) -> Option<u8> {
        let mut message = [0];
        (self.0.read(&mut message).unwrap() == 1).then_some(message[0])
    }

    fn send(&self, message: u8) -> bool {
        self.1.write(&[message]).is_ok()
    }
}

struct Channel(Sender<u8>, Receiver<u8>);

impl Blocking for Channel {
    fn recv(&self) -> Option<u8> {
        self.1.recv().ok()
    }

    fn send(&self, message: u8) -> bool {
        self.0.send(message).is_ok()
    }
}

/// Returns a channel and a pipe that hold `capacity` messages, a power of two.
fn both_worlds(capacity: usize) -> [Arc<dyn Blocking>; 2] {
    let (reader, writer) = kernel_pipe(PipeFlags::DIRECT).unwrap();
    let bytes = i32::try_from(capacity * PIPE_BUF).unwrap();
    writer.fcntl(libc::F_SETPIPE_SZ, bytes).unwrap();
    let (sender, receiver) = bounded(capacity).unwrap();
    [
        Arc::new(Pipe(reader, writer)),
        Arc::new(Channel(sender, receiver)),
    ]
}

#[test]
fn blocked_receivers_are_served_one_by_one_first_come_first_served() {
    for world in both_worlds(4) {
        let order = Arc::new(AtomicUsize::new(0));
        let receivers: Vec<_> = (0..4)
            .map(|_| {
                let (world, order) = (world.clone(), order.clone());
                asleep(move || {
                    let message = world.recv();
                    (message, order.fetch_add(1, Ordering::SeqCst))
                })
            })
            .collect();
        for (turn, (receiver, _)) in receivers.into_iter().enumerate() {
            let message = u8::try_from(turn).unwrap();
            assert!(world.send(message));
            assert_eq!(receiver.join().unwrap(), (Some(message), turn));
        }
    }
}

#[test]
fn blocked_senders_are_served_one_by_one_first_come_first_served() {
    for world in both_worlds(1) {
        assert!(world.send(0));
        let senders: Vec<_> = (1..5)
            .map(|message| {
                let world = world.clone();
                asleep(move || world.send(message)).0
            })
            .collect();
        for (message, sender) in (0..).zip(senders) {
            assert_eq!(world.recv(), Some(message));
            assert!(sender.join().unwrap());
        }
    }
}

/// All messages come before a receiver runs, or not: each wakes the next one.
#[test]
fn each_receiver_that_sleeps_has_one_of_several_messages() {
    for world in both_worlds(4) {
        let receivers: Vec<_> = (0..4)
            .map(|_| {
                let world = world.clone();
                asleep(move || world.recv()).0
            })
            .collect();
        for message in 0..4 {
            assert!(world.send(message));
        }
        let mut taken: Vec<_> = receivers.into_iter().map(|r| r.join().unwrap()).collect();
        taken.sort_unstable();
        assert_eq!(taken, [0, 1, 2, 3].map(Some));
    }
}

#[test]
fn the_last_sender_wakes_all_receivers() {
    let (sender, receiver) = unbounded::<u8>().unwrap();
    let other = sender.clone();
    let receivers: Vec<_> = (0..3)
        .map(|_| {
            let receiver = receiver.clone();
            asleep(move || receiver.recv())
        })
        .collect();
    drop(sender);
    for (_, tid) in &receivers {
        until_asleep(*tid);
    }
    drop(other);
    for (receiver, _) in receivers {
        assert_eq!(receiver.join().unwrap(), Err(RecvError));
    }
}

#[test]
fn the_last_receiver_wakes_all_senders_which_have_their_messages_back() {
    let (sender, receiver) = bounded(1).unwrap();
    sender.send(0).unwrap();
    let senders: Vec<_> = (1..4)
        .map(|message| {
            let sender = sender.clone();
            asleep(move || sender.send(message)).0
        })
        .collect();
    drop(receiver);
    for (message, sender) in (1..).zip(senders) {
        assert_eq!(sender.join().unwrap(), Err(SendError(message)));
    }
    assert_eq!(
        sender.send_timeout(9, Timeout::NEVER),
        Err(SendTimeoutError::Disconnected(9))
    );
}

#[test]
fn a_time_limit_ends_a_wait_and_returns_the_message() {
    let (sender, receiver) = bounded(1).unwrap();
    for limit in [Duration::ZERO, Duration::from_millis(1)] {
        assert_eq!(receiver.recv_timeout(limit), Err(RecvTimeoutError::Timeout));
    }
    sender.send_timeout(1, Duration::ZERO).unwrap();
    for limit in [Duration::ZERO, Duration::from_millis(1)] {
        assert_eq!(
            sender.send_timeout(2, limit),
            Err(SendTimeoutError::Timeout(2))
        );
    }
    assert_eq!(receiver.recv_timeout(Duration::ZERO), Ok(1));
    let waiting = {
        let receiver = receiver.clone();
        asleep(move || receiver.recv_timeout(Duration::from_secs(1000))).0
    };
    sender.send(3).unwrap();
    assert_eq!(waiting.join().unwrap(), Ok(3));
    drop(sender);
    assert_eq!(
        receiver.recv_timeout(Timeout::NEVER),
        Err(RecvTimeoutError::Disconnected)
    );
}

/// With `SA_RESTART` or without, and with a time limit, which would end a system call.
#[test]
fn a_signal_handler_ends_no_wait() {
    let (sender, receiver) = bounded(1).unwrap();
    for (restart, limit) in [
        (true, Timeout::NEVER),
        (false, Timeout::NEVER),
        (false, Duration::from_secs(1000).into()),
    ] {
        let (sending, receiving) = (sender.clone(), receiver.clone());
        let (waiting, tid) = asleep(move || receiving.recv_timeout(limit));
        signal(tid, restart);
        until_asleep(tid);
        sender.send(1).unwrap();
        assert_eq!(waiting.join().unwrap(), Ok(1));
        sender.send(2).unwrap();
        let (waiting, tid) = asleep(move || sending.send_timeout(3, limit));
        signal(tid, restart);
        until_asleep(tid);
        assert_eq!(receiver.recv(), Ok(2));
        assert_eq!(waiting.join().unwrap(), Ok(()));
        assert_eq!(receiver.recv(), Ok(3));
    }
    let (waiting, tid) = asleep(move || receiver.recv_timeout(Timeout::NEVER));
    signal(tid, false);
    until_asleep(tid);
    drop(sender);
    assert_eq!(waiting.join().unwrap(), Err(RecvTimeoutError::Disconnected));
}

/// Sends and receives by several threads, some of which wait in sets. Each message is received once, and
/// those of a sender by one receiver in their order.
#[test]
fn no_message_is_lost_or_received_twice_among_many_threads() {
    const EACH: u64 = 3_000;
    for capacity in [Some(1), Some(3), None] {
        let (sender, receiver) = match capacity {
            Some(capacity) => bounded(capacity).unwrap(),
            None => unbounded().unwrap(),
        };
        let all: Vec<_> = thread::scope(|scope| {
            for thread in 0..3_u64 {
                let sender = sender.clone();
                scope.spawn(move || {
                    let set = Epoll::new().unwrap();
                    let event = Event::new(Events::OUT | Events::ET, 0);
                    set.add(&sender, event).unwrap();
                    for at in 0..EACH {
                        let mut message = (thread, at);
                        // Every third one waits in a set for room.
                        while at % 3 == 0
                            && let Err(error) = sender.try_send(message)
                        {
                            message = error.into_inner();
                            set.wait(&mut [Event::default()], None).unwrap();
                        }
                        if at % 3 != 0 {
                            sender.send(message).unwrap();
                        }
                    }
                });
            }
            drop(sender);
            let receiving: Vec<_> = (0..2)
                .map(|thread| {
                    let receiver = receiver.clone();
                    scope.spawn(move || {
                        if thread == 0 {
                            return receiver.iter().collect::<Vec<_>>();
                        }
                        let set = Epoll::new().unwrap();
                        let event = Event::new(Events::IN | Events::ET, 0);
                        set.add(&receiver, event).unwrap();
                        let mut events = [Event::default()];
                        let mut taken = Vec::new();
                        while !events[0].events().contains(Events::HUP) {
                            set.wait(&mut events, None).unwrap();
                            taken.extend(receiver.try_iter());
                        }
                        taken
                    })
                })
                .collect();
            let receiving = receiving.into_iter();
            receiving.map(|thread| thread.join().unwrap()).collect()
        });
        for of_one in &all {
            let mut last = [None; 3];
            for &(sender, at) in of_one {
                let last = &mut last[usize::try_from(sender).unwrap()];
                assert!(*last < Some(at), "out of order");
                *last = Some(at);
            }
        }
        let count = all.iter().map(Vec::len).sum::<usize>();
        let distinct: HashSet<_> = all.into_iter().flatten().collect();
        assert_eq!((count, distinct.len() as u64), (distinct.len(), 3 * EACH));
    }
}

/// Two threads wait for room, and there is room for both: the first one is woken. Its send calls a
/// callback.
#[test]
fn a_thread_whose_send_panics_wakes_the_next_one() {
    // Seldom the first thread sends before there is room for the second one, which is then woken anyway.
    for _ in 0..5 {
        let (sender, receiver) = bounded(2).unwrap();
        sender.try_send(0).unwrap();
        sender.try_send(0).unwrap();
        let (_watch, _) = Watch::new(&receiver, Events::IN, |_| panic!("callback breaks")).unwrap();
        let (ended, has_ended) = mpsc::channel();
        let threads = [(); 2].map(|()| {
            let (sender, ended) = (sender.clone(), ended.clone());
            let send = AssertUnwindSafe(move || sender.send(1));
            asleep(move || ended.send(catch_unwind(send).is_err()).unwrap()).0
        });
        assert_eq!([receiver.try_recv(), receiver.try_recv()], [Ok(0); 2]);
        // A thread that sends while the callback runs leaves the call to the other thread.
        let panics = threads
            .each_ref()
            .map(|_| has_ended.recv_timeout(LONG).unwrap());
        assert!(panics.contains(&true));
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(receiver.len(), 2);
    }
}
