//! Each allocation of an operation fails once, in a process of its own. The operation fails with
//! `ENOMEM` and has no effect, or succeeds without the memory. It never ends the process. It
//! succeeds when it is repeated, and when all is dropped as much memory is in use as after a run
//! without failures.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod failing_allocations;

use std::future::Future;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use self::failing_allocations::{Fault, each_allocation_fails, each_allocation_fails_with_leaks};
use upoll::channel::{TrySendError, bounded, unbounded};
use upoll::{
    CreateFlags, CtlCommand, Epoll, Errno, Event, EventFd, EventFdFlags, Events, FdSet, File,
    PipeWriter, PollContext, PollFd, PollTable, Pollable, Readiness, SocketFlags, Source,
    StreamSocket, WaitQueue, Watch, pipe, poll, select, socketpair,
};

const MOMENT: Duration = Duration::from_micros(100);

fn watches(data: u64) -> Event {
    Event::new(Events::IN, data)
}

fn first_event(set: &Epoll) -> Option<u64> {
    let mut events = [Event::default(); 8];
    let found = set.wait(&mut events, Duration::ZERO).unwrap();
    events[..found].first().map(Event::data)
}

fn objects(fault: &mut Fault) {
    let counter = fault.during(|| EventFd::new(3));
    assert_eq!(counter.try_read(), Ok(3));
    fault.during(|| counter.set_maximum(5));
    assert_eq!(counter.try_write(5), Err(Errno::AGAIN));
    let shared = fault.during(|| EventFd::shared(1, EventFdFlags::empty()));
    fault.during(|| shared.try_write(1));
    assert_eq!(fault.during(|| shared.try_read()), 2);
    let (reader, writer) = fault.during(pipe);
    assert_eq!(reader.try_read(&mut [0]), Err(Errno::AGAIN));
    drop(writer);
    assert_eq!(reader.try_read(&mut [0]), Ok(0));
    let (one, other) = fault.during(|| socketpair(SocketFlags::empty()));
    drop(one);
    assert_eq!(other.try_read(&mut [0]), Ok(0));
}

fn channels(fault: &mut Fault) {
    let (sender, receiver) = fault.during(|| bounded(2));
    sender.try_send(1).unwrap();
    sender.try_send(2).unwrap();
    assert_eq!(sender.try_send(3), Err(TrySendError::Full(3)));
    assert!(receiver.try_iter().eq([1, 2]));
    let (sender, receiver) = fault.during(unbounded);
    let set = Epoll::new().unwrap();
    set.add(&sender, Event::new(Events::OUT | Events::ET, 1))
        .unwrap();
    assert_eq!(first_event(&set), Some(1));
    let mut received = Vec::with_capacity(100);
    for message in 0..100 {
        // Without memory the channel is full until the next receive.
        fault.during(|| match sender.try_send(message) {
            Err(TrySendError::Full(refused)) => {
                assert_eq!((refused, first_event(&set)), (message, None));
                assert!(!sender.as_file_ref().is_ready(Events::OUT));
                received.extend(receiver.try_recv());
                assert_eq!(first_event(&set), Some(1));
                Err(Errno::NOMEM)
            }
            Err(error) => panic!("{error}"),
            Ok(()) => Ok(()),
        });
    }
    received.extend(receiver.try_iter());
    assert!(received.into_iter().eq(0..100));
}

fn bytes(fault: &mut Fault) {
    let (reader, writer) = pipe().unwrap();
    let (one, other) = socketpair(SocketFlags::empty()).unwrap();
    let sent: Vec<u8> = (0..30_000_u32).map(|at| at as u8).collect();
    let mut received = vec![0; sent.len()];
    for write in [PipeWriter::try_write, PipeWriter::write] {
        let written = fault.during(|| write(&writer, &sent));
        // The write was partial or complete.
        assert!(written > 0);
        assert_eq!(reader.try_read(&mut received[..written]), Ok(written));
        assert_eq!(received[..written], sent[..written]);
        assert_eq!(reader.try_read(&mut [0]), Err(Errno::AGAIN));
    }
    for write in [StreamSocket::try_write, StreamSocket::write] {
        let written = fault.during(|| write(&one, &sent));
        assert!(written > 0);
        assert_eq!(other.available(), written);
        assert_eq!(other.try_read(&mut received[..written]), Ok(written));
        assert_eq!(received[..written], sent[..written]);
    }
}

fn sets(fault: &mut Fault) {
    let set = fault.during(Epoll::new);
    let counters: Vec<_> = (0..100).map(|_| EventFd::new(0).unwrap()).collect();
    for (number, counter) in counters.iter().enumerate() {
        fault.during(|| set.add(counter, watches(number as u64)));
        assert_eq!(set.add(counter, watches(0)), Err(Errno::EXIST));
    }
    assert_eq!(set.len(), 100);
    counters[70].try_write(1).unwrap();
    assert_eq!(fault.during(|| Ok(first_event(&set))), Some(70));
    fault.during(|| set.modify(&counters[70], Event::new(Events::OUT, 71)));
    assert_eq!(first_event(&set), Some(71));
    for counter in &counters[..90] {
        fault.during(|| set.delete(counter));
        assert_eq!(set.delete(counter), Err(Errno::NOENT));
    }
    assert_eq!(set.len(), 10);
}

fn batches(fault: &mut Fault) {
    let set = Epoll::new().unwrap();
    let counters: Vec<_> = (0..40).map(|_| EventFd::new(1).unwrap()).collect();
    let mut commands: Vec<_> = counters
        .iter()
        .map(|counter| CtlCommand::add(counter, watches(1)))
        .collect();
    let mut done = 0;
    // A batch ends at the first command that fails.
    while done < commands.len() {
        let before = set.len();
        assert_eq!(before, done);
        done += fault.during(|| set.ctl_batch(&mut commands[done..]));
    }
    let mut changes: Vec<_> = counters
        .iter()
        .map(|counter| CtlCommand::modify(counter, watches(2)))
        .collect();
    let mut done = 0;
    while done < changes.len() {
        done += fault.during(|| set.ctl_batch(&mut changes[done..]));
    }
    assert_eq!(first_event(&set), Some(2));
}

fn nested_and_rotating(fault: &mut Fault) {
    let bottom = Epoll::new().unwrap();
    let counter = EventFd::new(0).unwrap();
    bottom.add(&counter, watches(1)).unwrap();
    let outers: Vec<_> = (0..20).map(|_| Epoll::new().unwrap()).collect();
    for outer in &outers {
        fault.during(|| outer.add(&bottom, watches(2)));
        assert_eq!(outer.add(&bottom, watches(2)), Err(Errno::EXIST));
    }
    let rotating = fault.during(|| Epoll::create(CreateFlags::ROTATE));
    fault.during(|| rotating.add(&counter, watches(3)));
    for outer in &outers {
        fault.during(|| outer.add(&rotating, watches(4)));
    }
    fault.during(|| counter.try_write(1));
    for outer in &outers {
        assert!(fault.during(|| Ok(first_event(outer))).is_some());
    }
}

fn kernel_members(fault: &mut Fault) {
    let (reader, writer) = std::io::pipe().unwrap();
    let counter = EventFd::new(0).unwrap();
    let set = Epoll::new().unwrap();
    let outer = Epoll::new().unwrap();
    set.add(&counter, watches(1)).unwrap();
    outer.add(&set, watches(3)).unwrap();
    fault.during(|| set.add(&reader, watches(2)));
    assert_eq!(set.add(&reader, watches(2)), Err(Errno::EXIST));
    let mut events = [Event::default(); 4];
    assert_eq!(fault.during(|| set.wait(&mut events, MOMENT)), 0);
    assert_eq!(fault.during(|| outer.wait(&mut events, MOMENT)), 0);
    send_byte(&writer);
    assert_eq!(fault.during(|| set.wait(&mut events, MOMENT)), 1);
    assert_eq!(fault.during(|| outer.wait(&mut events, MOMENT)), 1);
    fault.during(|| set.delete(&reader));
    assert_eq!(set.delete(&reader), Err(Errno::NOENT));
    assert_eq!(set.len(), 1);
}

/// The program has closed the kernel sets of nested sets.
fn lost_sets(fault: &mut Fault) {
    let (reader, writer) = std::io::pipe().unwrap();
    let (below, above) = (Epoll::new().unwrap(), Epoll::new().unwrap());
    above.add(&below, watches(1)).unwrap();
    below.add(&reader, watches(2)).unwrap();
    let mut events = [Event::default(); 4];
    assert_eq!(above.wait(&mut events, MOMENT), Ok(0));
    for own in 256..1024 {
        // SAFETY: the fds are the library's own.
        unsafe { libc::close(own) };
    }
    // The time after which the library looks for its fds again.
    std::thread::sleep(20 * Duration::from_millis(1));
    assert_eq!(fault.during(|| above.wait(&mut events, MOMENT)), 0);
    send_byte(&writer);
    assert_eq!(fault.during(|| above.wait(&mut events, MOMENT)), 1);
    assert_eq!(fault.during(|| below.wait(&mut events, MOMENT)), 1);
}

fn send_byte(mut writer: &std::io::PipeWriter) {
    std::io::Write::write_all(&mut writer, b"x").unwrap();
}

fn polls(fault: &mut Fault) {
    let counters: Vec<_> = (0..40).map(|_| EventFd::new(0).unwrap()).collect();
    let pipes: Vec<_> = (0..40).map(|_| std::io::pipe().unwrap()).collect();
    let mut fds: Vec<_> = counters
        .iter()
        .map(|counter| PollFd::new(counter, Events::IN))
        .chain(pipes.iter().map(|pipe| PollFd::new(&pipe.0, Events::IN)))
        .collect();
    assert_eq!(fault.during(|| poll(&mut fds, MOMENT)), 0);
    assert_eq!(fault.during(|| poll(&mut fds[..40], MOMENT)), 0);
    assert_eq!(fault.during(|| poll(&mut fds[40..], MOMENT)), 0);
    let mut context = fault.during(|| Ok(PollContext::new()));
    assert_eq!(fault.during(|| context.poll(&mut fds, MOMENT)), 0);
    assert_eq!(fault.during(|| context.poll(&mut fds[7..], MOMENT)), 0);
    counters[20].try_write(1).unwrap();
    assert_eq!(fault.during(|| context.poll(&mut fds, MOMENT)), 1);
    assert_eq!(fault.during(|| poll(&mut fds, MOMENT)), 1);
    assert_eq!(fds[20].revents(), Events::IN);
    counters[20].try_read().unwrap();
    let resolve = |fd: i32| {
        let at = fd as usize;
        Some(match at {
            0..400 => counters[at % 40].target(),
            _ => pipes[at % 40].0.target(),
        })
    };
    let found = fault.during(|| {
        let mut wanted = FdSet::from_iter([0, 399, 700]);
        select(
            800,
            Some(&mut wanted),
            None,
            None,
            &mut MOMENT.into(),
            resolve,
        )
    });
    assert_eq!(found, 0);
    // Beyond the fds that a set has room for without memory.
    let mut wanted = FdSet::new();
    fault.during(|| wanted.try_insert(5000));
    let copy = fault.during(|| FdSet::try_from_words(wanted.as_words()));
    assert_eq!(copy.iter().collect::<Vec<_>>(), [5000]);
}

/// An object with three wait queues.
#[derive(Default)]
struct Queues([WaitQueue; 3]);

impl Pollable for Queues {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        for queue in &self.0 {
            table.register(queue);
        }
        Events::empty()
    }
}

fn several_queues(fault: &mut Fault) {
    let set = Epoll::new().unwrap();
    let files: Vec<_> = (0..20)
        .map(|_| fault.during(|| File::try_new(Queues::default())))
        .collect();
    for (at, file) in files.iter().enumerate() {
        let event = match at % 2 {
            0 => watches(1),
            _ => Event::new(Events::IN | Events::EXCLUSIVE, 1),
        };
        fault.during(|| set.add(file, event));
        assert_eq!(set.add(file, event), Err(Errno::EXIST));
        file.0[2].wake(Events::IN);
    }
    assert_eq!(first_event(&set), None);
    let mut context = PollContext::new();
    let mut fds: Vec<_> = files
        .iter()
        .map(|file| PollFd::new(file, Events::IN))
        .collect();
    assert_eq!(fault.during(|| context.poll(&mut fds, MOMENT)), 0);
    assert_eq!(fault.during(|| poll(&mut fds, MOMENT)), 0);
}

fn callbacks(fault: &mut Fault) {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let called = || CALLS.swap(0, Ordering::Relaxed);
    let counter = EventFd::new(0).unwrap();
    let inner = Epoll::new().unwrap();
    let outer = Epoll::new().unwrap();
    inner.add(&counter, watches(1)).unwrap();
    outer.add(&inner, watches(2)).unwrap();
    let file = File::new(Queues::default());
    let few = [
        counter.as_file_ref(),
        outer.as_file_ref(),
        file.as_file_ref(),
    ];
    let data = [7; 100];
    for file in few {
        let (watch, ready) = fault.during(|| {
            Watch::new(&file, Events::IN, move |_| {
                CALLS.fetch_add(data[3], Ordering::Relaxed);
            })
        });
        assert!(ready.is_empty() && watch.ready().is_empty());
        let without_data = |_| {
            CALLS.fetch_add(1, Ordering::Relaxed);
        };
        let (other, _) = fault.during(|| Watch::new(&file, Events::IN, without_data));
        fault.during(|| counter.try_write(1));
        let expected = called();
        drop((watch, other));
        fault.during(|| counter.try_write(1));
        assert_eq!(called(), 0);
        counter.try_read().unwrap();
        assert!(matches!(expected, 8 | 0), "{expected}");
        let mut readiness = Box::pin(fault.during(|| Readiness::new(&file, Events::IN)));
        let mut context = Context::from_waker(Waker::noop());
        assert!(readiness.as_mut().poll(&mut context).is_pending());
    }
    drop(fault.during(|| Readiness::new(&outer, Events::IN)));
}

/// Callbacks and tasks whose wakeups come from the kernel.
fn kernel_callbacks(fault: &mut Fault) {
    let (reader, _writer) = std::io::pipe().unwrap();
    let (inner, outer) = (Epoll::new().unwrap(), Epoll::new().unwrap());
    outer.add(&inner, watches(1)).unwrap();
    drop(fault.during(|| Readiness::new(&reader, Events::IN)));
    let waiting = fault.during(|| Readiness::new(&outer, Events::IN));
    fault.during(|| inner.add(&reader, watches(1)));
    drop(waiting);
    drop(fault.during(|| Watch::new(&outer, Events::IN, |_| ())));
}

fn listings(fault: &mut Fault) {
    let set = Epoll::new().unwrap();
    let counters: Vec<_> = (0..20).map(|_| EventFd::new(0).unwrap()).collect();
    for counter in &counters {
        set.add(counter, watches(1)).unwrap();
    }
    let (reader, _writer) = std::io::pipe().unwrap();
    set.add(&reader, watches(2)).unwrap();
    assert_eq!(fault.during(|| set.fdinfo()).lines().count(), 21);
    assert!(
        fault
            .during(|| counters[0].fdinfo())
            .starts_with("eventfd-count:")
    );
    let file = counters[3].as_file_ref();
    let interest = Event::new(Events::IN | Events::ERR | Events::HUP, 1);
    assert_eq!(fault.during(|| set.interests_in(file)), [(0, interest)]);
    assert_eq!(fault.during(|| set.kernel_interests()).len(), 1);
    assert_eq!(fault.during(|| Ok(set.len())), 21);
}

fn shared_counters(fault: &mut Fault) {
    let shared = EventFd::shared(0, EventFdFlags::empty()).unwrap();
    let set = Epoll::new().unwrap();
    fault.during(|| set.add(&shared, watches(1)));
    let mut fds = [PollFd::new(&shared, Events::IN)];
    assert_eq!(fault.during(|| poll(&mut fds, MOMENT)), 0);
    fault.during(|| shared.try_write(1));
    assert_eq!(fault.during(|| Ok(first_event(&set))), Some(1));
    assert_eq!(fault.during(|| poll(&mut fds, MOMENT)), 1);
    assert_eq!(fault.during(|| shared.read()), 1);
}

/// Counters that this process shares with its parent, and has not used yet.
fn inherited_counters(fault: &mut Fault, [one, two, three, four]: [EventFd; 4]) {
    let (watch, _) = fault.during(|| Watch::new(&one, Events::IN, |_| {}));
    let mut readiness = Box::pin(fault.during(|| Readiness::new(&two, Events::IN)));
    let mut context = Context::from_waker(Waker::noop());
    assert!(readiness.as_mut().poll(&mut context).is_pending());
    let set = Epoll::new().unwrap();
    fault.during(|| set.add(&three, watches(1)));
    let mut context = PollContext::new();
    let mut fds = [PollFd::new(&four, Events::IN)];
    assert_eq!(fault.during(|| context.poll(&mut fds, MOMENT)), 0);
    for counter in [&one, &two, &three, &four] {
        fault.during(|| counter.try_write(1));
    }
    assert_eq!(watch.ready(), Events::IN);
    assert_eq!(first_event(&set), Some(1));
    assert_eq!(fault.during(|| context.poll(&mut fds, MOMENT)), 1);
    // The next process shares them, too.
    for counter in [&one, &two, &three, &four] {
        assert_eq!(counter.try_read(), Ok(1));
    }
}

fn rotating_waits(fault: &mut Fault) {
    let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    fault.during(|| rotating.add(&reader, watches(1)));
    let mut events = [Event::default(); 2];
    assert_eq!(fault.during(|| rotating.wait(&mut events, MOMENT)), 0);
    let worker = Epoll::new().unwrap();
    fault.during(|| worker.add(&rotating, watches(2)));
    assert_eq!(fault.during(|| worker.wait(&mut events, MOMENT)), 0);
    send_byte(&writer);
    assert_eq!(fault.during(|| worker.wait(&mut events, MOMENT)), 1);
    let mut fds = [PollFd::new(&rotating, Events::IN)];
    assert_eq!(fault.during(|| poll(&mut fds, MOMENT)), 1);
}

/// More interests, sets and events at a time than their lists have room for without memory.
fn many_at_once(fault: &mut Fault) {
    const MANY: usize = 20;
    let shared = [(); 3].map(|()| EventFd::shared(0, EventFdFlags::empty()).unwrap());
    let set = Epoll::new().unwrap();
    for counter in &shared {
        for fd in 0..6 {
            fault.during(|| set.add(&counter.as_file_ref().with_fd(fd), watches(1)));
        }
        fault.during(|| set.delete(&counter.as_file_ref().with_fd(5)));
    }
    let mut events = [Event::default(); MANY];
    assert_eq!(fault.during(|| set.wait(&mut events, MOMENT)), 0);
    for counter in &shared {
        fault.during(|| counter.try_write(1));
    }
    assert_eq!(fault.during(|| set.wait(&mut events, MOMENT)), 15);

    let pipes: Vec<_> = (0..MANY).map(|_| std::io::pipe().unwrap()).collect();
    let outer = Epoll::new().unwrap();
    let mut sets = Vec::new();
    for (reader, _) in &pipes {
        let below = Epoll::new().unwrap();
        below.add(reader, watches(1)).unwrap();
        fault.during(|| outer.add(&below, watches(2)));
        sets.push(below);
    }
    assert_eq!(fault.during(|| outer.wait(&mut events, MOMENT)), 0);
    for (_, writer) in &pipes {
        send_byte(writer);
    }
    assert_eq!(fault.during(|| outer.wait(&mut events, MOMENT)), MANY);
}

/// Several rotating sets of one source, each under several fds.
fn many_that_rotate(fault: &mut Fault) {
    let (reader, writer) = std::io::pipe().unwrap();
    let rotating = [(); 4].map(|()| Epoll::create(CreateFlags::ROTATE).unwrap());
    let worker = Epoll::new().unwrap();
    for below in &rotating {
        fault.during(|| below.add(&reader, watches(1)));
        for fd in 0..6 {
            fault.during(|| worker.add(&below.as_file_ref().with_fd(fd), watches(2)));
        }
    }
    let mut events = [Event::default(); 24];
    assert_eq!(fault.during(|| worker.wait(&mut events, MOMENT)), 0);
    for _ in 0..2 {
        send_byte(&writer);
        let found = fault.during(|| worker.wait(&mut events, MOMENT));
        assert!(found > 0);
    }
}

/// A batch of changes to more interests in rotating sets than are finished at a time, each of which was chosen.
fn batches_of_chosen(fault: &mut Fault) {
    let counters: Vec<_> = (0..40).map(|_| EventFd::new(0).unwrap()).collect();
    let worker = Epoll::new().unwrap();
    let mut sets = Vec::new();
    for counter in &counters {
        let below = Epoll::create(CreateFlags::ROTATE).unwrap();
        below.add(counter, watches(1)).unwrap();
        worker.add(&below, watches(2)).unwrap();
        sets.push(below);
    }
    // Only a set that is waited for is chosen.
    let (_watch, _) = Watch::new(&worker, Events::IN, |_| {}).unwrap();
    for counter in &counters {
        fault.during(|| counter.try_write(1));
    }
    let mut changes: Vec<_> = sets
        .iter()
        .map(|below| CtlCommand::modify(below, Event::new(Events::OUT, 3)))
        .collect();
    let mut done = 0;
    while done < changes.len() {
        done += fault.during(|| worker.ctl_batch(&mut changes[done..]));
    }
    assert_eq!(first_event(&worker), None);
}

// One test: others would allocate concurrently.
#[test]
fn an_allocation_that_fails_is_an_error_and_changes_nothing() {
    each_allocation_fails("objects", objects);
    each_allocation_fails("bytes", bytes);
    each_allocation_fails("channels", channels);
    each_allocation_fails("sets", sets);
    each_allocation_fails("batches", batches);
    each_allocation_fails("nested and rotating sets", nested_and_rotating);
    each_allocation_fails("kernel members", kernel_members);
    // The socket that identifies kernel sets is not freed once it is lost.
    each_allocation_fails_with_leaks("lost sets", 96, lost_sets);
    each_allocation_fails("polls", polls);
    each_allocation_fails("several queues", several_queues);
    each_allocation_fails("callbacks", callbacks);
    each_allocation_fails("callbacks and kernel fds", kernel_callbacks);
    each_allocation_fails("listings", listings);
    each_allocation_fails("shared counters", shared_counters);
    each_allocation_fails("rotating waits", rotating_waits);
    each_allocation_fails("many at once", many_at_once);
    each_allocation_fails("many that rotate", many_that_rotate);
    each_allocation_fails("batches of chosen", batches_of_chosen);
    // A scenario runs three times in each child, which has these from its parent.
    let shared = |()| EventFd::shared(0, EventFdFlags::empty()).unwrap();
    let inherited = Mutex::new([(); 3].map(|()| Some([(); 4].map(shared))));
    each_allocation_fails("inherited counters", |fault| {
        let counters = inherited.lock().unwrap().iter_mut().find_map(Option::take);
        inherited_counters(fault, counters.unwrap());
    });
}
