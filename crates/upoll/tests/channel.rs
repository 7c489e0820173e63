//! Channels of upoll and packet pipes of the host kernel that hold as many messages, with every result
//! compared, and what becomes of the messages.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod random;
mod twin;

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use random::config;
use upoll::channel::{Receiver, Sender, TryRecvError, TrySendError, bounded, unbounded};
use upoll::{
    CreateFlags, Epoll, Errno, Event, Events, FdSet, FileRef, PIPE_BUF, PipeFlags, PollContext,
    PollFd, Source, Watch, poll_now, select_now,
};

use twin::changes::{self, ops};
use twin::{Fd, Sets, events, kernel_pipe, same};

const IN: Events = Events::IN;
const OUT: Events = Events::OUT;
const ET: Events = Events::ET;
const HUP: Events = Events::HUP;
const ERR: Events = Events::ERR;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Receiving,
    Sending,
}
use End::{Receiving, Sending};

/// A channel, and a packet pipe of as many pages: a packet takes a page, however short it is.
struct Twin {
    senders: Vec<(Sender<u32>, Fd)>,
    receivers: Vec<(Receiver<u32>, Fd)>,
    next: u32,
}

fn duplicate(fd: &Fd) -> Fd {
    Fd::new(i32::try_from(fd.fcntl(libc::F_DUPFD, 0).unwrap()).unwrap())
}

impl Twin {
    /// `capacity` is a power of two.
    fn new(capacity: usize) -> Self {
        let (sender, receiver) = bounded(capacity).unwrap();
        assert_eq!(sender.capacity(), Some(capacity));
        let (reader, writer) = kernel_pipe(PipeFlags::NONBLOCK | PipeFlags::DIRECT).unwrap();
        let bytes = i32::try_from(capacity * PIPE_BUF).unwrap();
        writer.fcntl(libc::F_SETPIPE_SZ, bytes).unwrap();
        Twin {
            senders: vec![(sender, writer)],
            receivers: vec![(receiver, reader)],
            next: 0,
        }
    }

    /// Sends the next number. A refused send is no event for a channel. In Linux a write that finds no room
    /// still wakes readers, so the pipe is only polled then.
    #[track_caller]
    fn send(&mut self) -> Option<Result<(), TrySendError<u32>>> {
        let (sender, writer) = self.senders.first()?;
        self.next += 1;
        let sent = sender.try_send(self.next);
        match sent {
            Err(TrySendError::Full(message)) => {
                assert_eq!(message, self.next);
                assert!(!writer.events().intersects(OUT), "the pipe is not full");
            }
            Err(TrySendError::Disconnected(message)) => {
                assert_eq!(message, self.next);
                assert_eq!(writer.write(&message.to_le_bytes()), Err(Errno::PIPE));
            }
            _ => assert_eq!(writer.write(&self.next.to_le_bytes()), Ok(4)),
        }
        Some(sent)
    }

    #[track_caller]
    fn recv(&mut self) -> Option<Result<u32, TryRecvError>> {
        let (receiver, reader) = self.receivers.first()?;
        let mut bytes = [0; 4];
        let kernel = match reader.read(&mut bytes) {
            Ok(0) => Err(TryRecvError::Disconnected),
            Ok(_) => Ok(u32::from_le_bytes(bytes)),
            Err(errno) => {
                assert_eq!(errno, Errno::AGAIN);
                Err(TryRecvError::Empty)
            }
        };
        Some(same("recv", receiver.try_recv(), kernel))
    }

    fn end(&self, end: End) -> Option<(FileRef<'_>, &Fd)> {
        match end {
            Receiving => {
                let (receiver, reader) = self.receivers.first()?;
                Some((receiver.as_file_ref(), reader))
            }
            Sending => {
                let (sender, writer) = self.senders.first()?;
                Some((sender.as_file_ref(), writer))
            }
        }
    }

    #[track_caller]
    fn events(&self, end: End) -> Option<Events> {
        let (upoll, kernel) = self.end(end)?;
        Some(same(("poll", end), events(upoll), kernel.events()))
    }

    /// Compares the numbers of messages.
    #[track_caller]
    fn look(&self) {
        if let Some((sender, writer)) = self.senders.first() {
            let bytes = same("length", sender.len() * 4, writer.available());
            assert_eq!(sender.is_empty(), bytes == 0);
        }
        if let Some((receiver, reader)) = self.receivers.first() {
            let bytes = same("length", receiver.len() * 4, reader.available());
            assert_eq!(receiver.is_empty(), bytes == 0);
        }
    }

    fn duplicate(&mut self, end: End) {
        match end {
            Receiving => {
                let another = self.receivers.first();
                let another = another.map(|(upoll, kernel)| (upoll.clone(), duplicate(kernel)));
                self.receivers.extend(another);
            }
            Sending => {
                let another = self.senders.first();
                let another = another.map(|(upoll, kernel)| (upoll.clone(), duplicate(kernel)));
                self.senders.extend(another);
            }
        }
    }

    /// Closes the newest reference. The first one is what sets know of, as Linux keys interests by fd.
    fn close(&mut self, end: End) {
        match end {
            Receiving => {
                // The last receiver takes the messages along. A pipe keeps them.
                if let [(_, reader)] = &self.receivers[..] {
                    while matches!(reader.read(&mut [0; 4]), Ok(1..)) {}
                }
                self.receivers.pop();
            }
            Sending => drop(self.senders.pop()),
        }
    }

    fn ctl(&self, op: i32, sets: &Sets, end: End, events: Events) -> Option<Result<(), Errno>> {
        let (upoll, kernel) = self.end(end)?;
        Some(sets.ctl(op, upoll, kernel, events, end as u64))
    }

    fn watch(&self, end: End, events: Events) -> Sets {
        let sets = Sets::new();
        self.ctl(libc::EPOLL_CTL_ADD, &sets, end, events)
            .unwrap()
            .unwrap();
        sets
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send,
    Recv,
    Look,
    Poll(End),
    Ctl(i32, bool, End, Events),
    Wait(bool),
    Duplicate(End),
    Close(End),
}

fn interests() -> impl Strategy<Value = Events> {
    let wanted = [
        IN,
        OUT,
        IN | OUT,
        Events::empty(),
        Events::RDNORM,
        Events::WRNORM | Events::RDHUP,
    ];
    changes::interests(&wanted, &[Events::EXCLUSIVE, Events::EXCLUSIVE | ET])
}

fn steps() -> impl Strategy<Value = Step> {
    let end = || prop_oneof![Just(Receiving), Just(Sending)];
    prop_oneof![
        24 => Just(Step::Send),
        20 => Just(Step::Recv),
        4 => Just(Step::Look),
        8 => end().prop_map(Step::Poll),
        10 => (ops(), any::<bool>(), end(), interests())
            .prop_map(|(op, set, end, events)| Step::Ctl(op, set, end, events)),
        16 => any::<bool>().prop_map(Step::Wait),
        1 => end().prop_map(Step::Duplicate),
        2 => end().prop_map(Step::Close),
    ]
}

fn run(capacity: usize, steps: &[Step]) {
    let mut twin = Twin::new(capacity);
    // The first set exists from the beginning and is edge-triggered. The steps make and use the other one.
    let sets = [twin.watch(Receiving, IN | ET), Sets::new()];
    twin.ctl(libc::EPOLL_CTL_ADD, &sets[0], Sending, OUT | ET);
    for step in steps {
        match *step {
            Step::Send => drop(twin.send()),
            Step::Recv => drop(twin.recv()),
            Step::Look => twin.look(),
            Step::Poll(end) => drop(twin.events(end)),
            Step::Ctl(op, set, end, events) => {
                let _ = twin.ctl(op, &sets[usize::from(set)], end, events);
            }
            Step::Wait(set) => drop(sets[usize::from(set)].wait()),
            Step::Duplicate(end) => twin.duplicate(end),
            Step::Close(end) => twin.close(end),
        }
    }
    for end in [Receiving, Sending] {
        twin.events(end);
    }
    twin.look();
    for set in &sets {
        set.wait();
    }
    twin.senders.clear();
    while matches!(twin.recv(), Some(Ok(_))) {}
}

proptest! {
    #![proptest_config(config(600, "channel"))]

    #[test]
    fn any_sequence_of_operations_gives_what_a_packet_pipe_gives(
        pages in 0..4_u32,
        steps in proptest::collection::vec(steps(), 1..=80),
    ) {
        run(1 << pages, &steps);
    }

    #[test]
    fn any_sequence_of_operations_keeps_order_and_drops_each_message_once(
        capacity in proptest::option::of(1..5_usize),
        steps in proptest::collection::vec(0..16_u8, 1..=120),
    ) {
        run_on_a_model(capacity, &steps);
    }
}

/// A message that counts its drops.
struct Counted {
    value: usize,
    dropped: Arc<AtomicUsize>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// Compares a channel with a `VecDeque`.
fn run_on_a_model(capacity: Option<usize>, steps: &[u8]) {
    let (sender, receiver) = match capacity {
        Some(capacity) => bounded(capacity).unwrap(),
        None => unbounded().unwrap(),
    };
    let (mut senders, mut receivers) = (vec![sender], vec![receiver]);
    let dropped = Arc::new(AtomicUsize::new(0));
    let (mut model, mut made, mut gone) = (VecDeque::new(), 0, 0);
    for step in steps {
        match step {
            0..=6 => {
                let Some(sender) = senders.last() else {
                    continue;
                };
                let message = Counted {
                    value: made,
                    dropped: dropped.clone(),
                };
                made += 1;
                match sender.try_send(message) {
                    Ok(()) => model.push_back(made - 1),
                    Err(TrySendError::Full(message)) => {
                        assert_eq!((Some(model.len()), message.value), (capacity, made - 1));
                        gone += 1;
                    }
                    Err(error) => {
                        assert!(receivers.is_empty());
                        assert_eq!(error.into_inner().value, made - 1);
                        gone += 1;
                    }
                }
            }
            7..=12 => {
                let Some(receiver) = receivers.last() else {
                    continue;
                };
                let expected = model.pop_front();
                gone += usize::from(expected.is_some());
                let received = receiver.try_recv().map(|message| message.value);
                assert_eq!(
                    received,
                    expected.ok_or(if senders.is_empty() {
                        TryRecvError::Disconnected
                    } else {
                        TryRecvError::Empty
                    })
                );
            }
            13 => {
                senders.extend(senders.last().cloned());
                receivers.extend(receivers.last().cloned());
            }
            14 => drop(senders.pop()),
            _ => {
                receivers.pop();
                if receivers.is_empty() {
                    gone += model.drain(..).count();
                }
            }
        }
        assert_eq!(dropped.load(Ordering::Relaxed), gone);
        if let Some(receiver) = receivers.last() {
            assert_eq!(receiver.len(), model.len());
        }
    }
    drop((senders, receivers));
    assert_eq!(dropped.load(Ordering::Relaxed), made);
}

#[test]
fn messages_come_in_order_and_a_full_channel_returns_the_message() {
    let mut twin = Twin::new(2);
    assert_eq!(twin.events(Sending), Some(OUT | Events::WRNORM));
    assert_eq!(twin.events(Receiving), Some(Events::empty()));
    assert_eq!(twin.recv(), Some(Err(TryRecvError::Empty)));
    assert_eq!(twin.send(), Some(Ok(())));
    assert_eq!(twin.send(), Some(Ok(())));
    assert_eq!(twin.send(), Some(Err(TrySendError::Full(3))));
    assert_eq!(twin.events(Sending), Some(Events::empty()));
    assert_eq!(twin.recv(), Some(Ok(1)));
    assert_eq!(twin.events(Sending), Some(OUT | Events::WRNORM));
    assert_eq!(twin.send(), Some(Ok(())));
    assert_eq!(twin.recv(), Some(Ok(2)));
    assert_eq!(twin.recv(), Some(Ok(4)));
}

#[test]
fn an_edge_triggered_receiver_learns_of_every_message_and_of_no_receive() {
    let mut twin = Twin::new(4);
    let sets = twin.watch(Receiving, IN | ET);
    for _ in 0..3 {
        twin.send();
        assert_eq!(sets.data(), [Receiving as u64]);
        assert_eq!(sets.data(), []);
    }
    twin.recv();
    assert_eq!(sets.data(), []);
}

#[test]
fn an_edge_triggered_sender_learns_only_of_the_receive_that_makes_room() {
    let mut twin = Twin::new(2);
    let sets = twin.watch(Sending, OUT | ET);
    assert_eq!(sets.data(), [Sending as u64]);
    twin.send();
    twin.recv();
    assert_eq!(sets.data(), []);
    twin.send();
    twin.send();
    assert_eq!(sets.data(), []);
    twin.recv();
    assert_eq!(sets.data(), [Sending as u64]);
    twin.recv();
    assert_eq!(sets.data(), []);
}

#[test]
fn without_senders_a_receiver_hangs_up_and_has_the_rest() {
    let mut twin = Twin::new(4);
    let sets = twin.watch(Receiving, Events::empty());
    twin.send();
    twin.duplicate(Sending);
    twin.close(Sending);
    assert_eq!(sets.data(), []);
    twin.close(Sending);
    assert_eq!(sets.wait(), [(HUP, Receiving as u64)]);
    assert_eq!(twin.events(Receiving), Some(IN | Events::RDNORM | HUP));
    assert_eq!(twin.recv(), Some(Ok(1)));
    assert_eq!(twin.events(Receiving), Some(HUP));
    assert_eq!(twin.recv(), Some(Err(TryRecvError::Disconnected)));
}

#[test]
fn without_receivers_a_sender_has_an_error_and_the_message_back() {
    let mut twin = Twin::new(2);
    twin.send();
    twin.send();
    twin.duplicate(Receiving);
    let sets = twin.watch(Sending, Events::empty());
    twin.close(Receiving);
    assert_eq!(sets.data(), []);
    twin.close(Receiving);
    assert_eq!(sets.wait(), [(ERR, Sending as u64)]);
    assert_eq!(twin.events(Sending), Some(OUT | Events::WRNORM | ERR));
    assert_eq!(twin.send(), Some(Err(TrySendError::Disconnected(3))));
}

#[test]
fn a_refused_send_is_no_event() {
    let (sender, receiver) = bounded(1).unwrap();
    let set = Epoll::new().unwrap();
    set.add(&receiver, Event::new(IN | ET, 0)).unwrap();
    sender.try_send(1).unwrap();
    let mut events = [Event::default()];
    assert_eq!(set.try_wait(&mut events), Ok(1));
    assert_eq!(sender.try_send(2), Err(TrySendError::Full(2)));
    assert_eq!(set.try_wait(&mut events), Ok(0));
}

#[test]
fn an_unbounded_channel_has_room_for_a_sender_at_any_time() {
    let (sender, receiver) = unbounded().unwrap();
    assert_eq!(sender.capacity(), None);
    for message in 0..10_000 {
        assert!(sender.as_file_ref().is_ready(OUT));
        sender.try_send(message).unwrap();
    }
    assert_eq!(receiver.len(), 10_000);
    assert!(receiver.try_iter().eq(0..10_000));
}

#[test]
fn a_channel_without_room_is_invalid() {
    assert_eq!(bounded::<u32>(0).map(drop), Err(Errno::INVAL));
    assert_eq!(bounded::<u32>(usize::MAX).map(drop), Err(Errno::NOMEM));
}

#[test]
fn messages_of_no_size_are_counted() {
    let (sender, receiver) = bounded(2).unwrap();
    assert_eq!(sender.try_send(()), Ok(()));
    assert_eq!(sender.try_send(()), Ok(()));
    assert_eq!(sender.try_send(()), Err(TrySendError::Full(())));
    assert_eq!(receiver.len(), 2);
    let (sender, receiver) = unbounded().unwrap();
    for _ in 0..100 {
        assert_eq!(sender.try_send(()), Ok(()));
    }
    assert_eq!(receiver.try_iter().count(), 100);
}

/// Each kind of wait finds a message, and then that the sender is gone.
#[test]
fn poll_select_contexts_and_watches_wait_for_an_end() {
    let (sender, receiver) = bounded(1).unwrap();
    let heard = Arc::new(AtomicUsize::new(0));
    let note = heard.clone();
    let (_watch, ready) = Watch::new(&receiver, IN, move |_| {
        note.fetch_add(1, Ordering::Relaxed);
    })
    .unwrap();
    assert!(ready.is_empty());
    let mut context = PollContext::new();
    let mut look = |expected: Events| {
        let mut fds = [PollFd::new(&receiver, IN), PollFd::new(&sender, OUT)];
        let found = poll_now(&mut fds);
        let seen = [fds[0].revents(), fds[1].revents()];
        let mut again = [PollFd::new(&receiver, IN), PollFd::new(&sender, OUT)];
        let kept = context.poll(&mut again, std::time::Duration::ZERO);
        assert_eq!(kept, found);
        assert_eq!([again[0].revents(), again[1].revents()], seen);
        let mut read = FdSet::new();
        read.insert(0);
        let selected = select_now(1, Some(&mut read), None, None, |_| Some(receiver.target()));
        assert_eq!(selected, Ok(usize::from(!expected.is_empty())));
        assert_eq!(seen[0], expected);
        assert_eq!(seen[1].is_empty(), expected.contains(IN));
    };
    look(Events::empty());
    sender.try_send(1).unwrap();
    look(IN);
    assert_eq!(receiver.try_recv(), Ok(1));
    look(Events::empty());
    assert_eq!(heard.load(Ordering::Relaxed), 1);
    drop(sender);
    assert_eq!(heard.load(Ordering::Relaxed), 2);
    assert!(receiver.as_file_ref().is_ready(HUP));
}

/// Workers in the sets of a rotating set have the messages in turn.
#[test]
fn workers_of_a_rotating_set_take_turns_with_the_messages() {
    let (sender, receiver) = unbounded().unwrap();
    let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
    rotating.add(&receiver, Event::new(IN, 0)).unwrap();
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let set = Epoll::new().unwrap();
            set.add(&rotating, Event::new(IN, 0)).unwrap();
            let turns = Arc::new(AtomicUsize::new(0));
            let note = turns.clone();
            let (watch, _) = Watch::new(&set, IN, move |_| {
                note.fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
            (set, turns, watch)
        })
        .collect();
    for message in 0..12 {
        sender.try_send(message).unwrap();
        let (set, ..) = &workers[message % 3];
        assert_eq!(set.try_wait(&mut [Event::default()]), Ok(1));
        assert_eq!(receiver.try_recv(), Ok(message));
        let turns = workers.iter();
        let turns: Vec<_> = turns
            .map(|(_, turns, _)| turns.load(Ordering::Relaxed))
            .collect();
        let expected = |worker| (message + 3 - worker) / 3;
        assert_eq!(turns, [expected(0), expected(1), expected(2)]);
    }
}

/// Panics when it is dropped, if it is told to.
struct Fragile {
    panics: bool,
    dropped: Arc<AtomicUsize>,
}

impl Drop for Fragile {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        assert!(!self.panics, "a message that panics");
    }
}

#[test]
fn a_message_that_panics_as_it_is_dropped_keeps_no_other_and_no_waiter() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let (sender, receiver) = unbounded().unwrap();
    for message in 0..5 {
        let message = Fragile {
            panics: message == 2,
            dropped: dropped.clone(),
        };
        assert!(sender.try_send(message).is_ok());
    }
    let set = Epoll::new().unwrap();
    set.add(&sender, Event::new(Events::empty(), 0)).unwrap();
    let closed = catch_unwind(AssertUnwindSafe(|| drop(receiver)));
    assert!(closed.is_err());
    assert_eq!(dropped.load(Ordering::Relaxed), 5);
    assert_eq!(set.try_wait(&mut [Event::default()]), Ok(1));
    let late = Fragile {
        panics: false,
        dropped: dropped.clone(),
    };
    assert!(matches!(
        sender.try_send(late),
        Err(TrySendError::Disconnected(_))
    ));
    drop(sender);
    assert_eq!(dropped.load(Ordering::Relaxed), 6);
}

/// Uses its own channel when it is dropped.
struct Talkative(Sender<Option<Talkative>>, Arc<AtomicUsize>);

impl Drop for Talkative {
    fn drop(&mut self) {
        assert_eq!(self.0.len(), 0);
        assert!(matches!(
            self.0.try_send(None),
            Err(TrySendError::Disconnected(None))
        ));
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_message_may_use_its_channel_as_it_is_dropped() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let (sender, receiver) = bounded(3).unwrap();
    for _ in 0..3 {
        let message = Talkative(sender.clone(), dropped.clone());
        assert!(sender.try_send(Some(message)).is_ok());
    }
    drop(receiver);
    assert_eq!(dropped.load(Ordering::Relaxed), 3);
}

#[test]
fn errors_and_ends_show_themselves_whatever_the_messages_are() {
    struct Opaque(#[expect(dead_code, reason = "keeps it from being `Send` by accident")] Rc<()>);
    // SAFETY: no thread but this one ever has it.
    unsafe impl Send for Opaque {}
    let opaque = || Opaque(Rc::new(()));
    let (sender, receiver) = bounded(1).unwrap();
    assert!(sender.try_send(opaque()).is_ok());
    let full = sender.try_send(opaque()).unwrap_err();
    assert_eq!(format!("{full:?}: {full}"), "Full(..): the channel is full");
    drop(receiver);
    let error = sender.try_send(opaque()).unwrap_err();
    assert_eq!(
        format!("{error:?}: {error}"),
        "Disconnected(..): all receivers of the channel are gone"
    );
    assert!(format!("{sender:?}").starts_with("Sender"));
    assert_eq!(TryRecvError::Empty.to_string(), "the channel is empty");
}

/// Nothing is required of messages but that they may change threads.
#[test]
fn messages_need_not_be_shared_between_threads() {
    let (sender, receiver) = bounded(1).unwrap();
    sender.try_send(Cell::new(7)).unwrap();
    let taken = std::thread::spawn(move || receiver.try_recv().unwrap().get());
    assert_eq!(taken.join().unwrap(), 7);
}
