//! Tasks that wait by futures, without a runtime.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod task;

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use task::{Task, Waiting, block_on, polled, waiting, woken};
use upoll::{
    CreateFlags, Epoll, Errno, Event, EventFd, EventFdFlags, EventStream, Events, File, PIPE_BUF,
    PollTable, Pollable, Readiness, SocketFlags, WaitQueue, pipe, socketpair,
};

const IN: Event = Event::new(Events::IN, 0);

fn exclusive(counter: &EventFd) -> Waiting {
    waiting(Readiness::exclusive(counter, Events::IN))
}

/// A flag that is published before its wake.
#[derive(Default)]
struct Flag {
    queue: WaitQueue,
    is_set: AtomicBool,
}

impl Pollable for Flag {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        match self.is_set.load(Ordering::SeqCst) {
            true => Events::IN,
            false => Events::empty(),
        }
    }
}

#[test]
fn a_wake_does_not_count_a_task_that_waits_no_more() {
    let flag = File::new(Flag::default());
    let (mut ready, task) = waiting(Readiness::new(&flag, Events::IN));
    flag.is_set.store(true, Ordering::SeqCst);
    // It looks before the wake comes.
    assert_eq!(polled(ready.as_mut(), &task), Poll::Ready(Events::IN));
    assert_eq!(flag.queue.wake(Events::IN), 0);
    assert_eq!(task.woken(), 0);
}

#[test]
fn one_wakeup_wakes_any_number_of_tasks() {
    let counter = EventFd::new(0).unwrap();
    let tasks: Vec<_> = (0..1000)
        .map(|_| waiting(Readiness::new(&counter, Events::IN)))
        .collect();
    counter.try_write(1).unwrap();
    assert!(tasks.iter().all(|(_, task)| task.woken() == 1));
}

#[test]
fn futures_end_on_other_threads_while_a_wakeup_wakes_many() {
    for _ in 0..200 {
        let counter = EventFd::new(0).unwrap();
        let mut tasks: Vec<_> = (0..60)
            .map(|_| waiting(Readiness::new(&counter, Events::IN)))
            .collect();
        let stay = tasks.split_off(40);
        let others = tasks.split_off(20);
        thread::scope(|scope| {
            scope.spawn(|| drop(tasks));
            scope.spawn(|| drop(others));
            counter.try_write(1).unwrap();
        });
        assert!(stay.iter().all(|(_, task)| task.woken() == 1));
    }
}

/// Drops other futures when it is woken.
struct Ender(std::sync::Mutex<Vec<Waiting>>);

impl Wake for Ender {
    fn wake(self: Arc<Self>) {
        let ended = std::mem::take(&mut *self.0.lock().unwrap());
        drop(ended);
    }
}

#[test]
fn a_waker_may_end_the_futures_that_the_same_wakeup_is_to_wake_next() {
    let counter = EventFd::new(0).unwrap();
    let tasks = (0..60).map(|_| waiting(Readiness::new(&counter, Events::IN)));
    let ender = Arc::new(Ender(std::sync::Mutex::new(tasks.collect())));
    // The last to come is the first to be woken.
    let mut first = pin!(Readiness::new(&counter, Events::IN).unwrap());
    let waker = Waker::from(ender.clone());
    assert!(
        first
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    counter.try_write(1).unwrap();
    assert!(ender.0.lock().unwrap().is_empty());
}

/// An object with more queues than a future has room for.
#[derive(Default)]
struct Queues([WaitQueue; 7]);

impl Pollable for Queues {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        for queue in &self.0 {
            table.register(queue);
        }
        Events::empty()
    }
}

#[test]
fn a_task_waits_in_each_queue_of_an_object() {
    let file = File::new(Queues::default());
    for queue in &file.0 {
        let (ready, task) = waiting(Readiness::new(&file, Events::IN));
        queue.wake(Events::IN);
        assert_eq!(task.woken(), 1);
        drop(ready);
        assert_eq!(queue.wake(Events::IN), 0);
    }
}

#[test]
fn a_wakeup_wakes_one_of_the_tasks_that_wait_exclusively_and_all_others() {
    let counter = EventFd::new(0).unwrap();
    let tasks = [
        exclusive(&counter),
        exclusive(&counter),
        exclusive(&counter),
    ];
    let shared = waiting(Readiness::new(&counter, Events::IN));
    counter.try_write(1).unwrap();
    assert_eq!(woken(&tasks), [1, 0, 0]);
    assert_eq!(shared.1.woken(), 1);
    // A task that was woken and has not come is not chosen again.
    counter.try_write(1).unwrap();
    assert_eq!(woken(&tasks), [1, 1, 0]);
}

#[test]
fn an_exclusive_task_that_ends_after_it_was_chosen_forwards_the_event() {
    let counter = EventFd::new(0).unwrap();
    let [first, second, third] = [(); 3].map(|()| exclusive(&counter));
    counter.try_write(1).unwrap();
    drop(first);
    assert_eq!(second.1.woken(), 1);
    // It has come for the event.
    let (mut ready, task) = second;
    assert_eq!(polled(ready.as_mut(), &task), Poll::Ready(Events::IN));
    drop(ready);
    assert_eq!(third.1.woken(), 0);
}

#[test]
fn an_exclusive_task_that_was_chosen_for_nothing_waits_on() {
    let counter = EventFd::new(0).unwrap();
    let (mut ready, task) = exclusive(&counter);
    for times in 1..4 {
        counter.try_write(1).unwrap();
        counter.try_read().unwrap();
        assert_eq!(task.woken(), times);
        assert_eq!(polled(ready.as_mut(), &task), Poll::Pending);
    }
}

#[test]
fn exclusive_tasks_at_a_rotating_set_take_turns() {
    let source = EventFd::new(0).unwrap();
    let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
    let edge = Event::new(Events::IN | Events::ET, 0);
    rotating.add(&source, edge).unwrap();
    let mut tasks = [(); 3].map(|()| waiting(Readiness::exclusive(&rotating, Events::IN)));
    for round in 1..5 {
        for turn in 0..3 {
            source.try_write(1).unwrap();
            let mut expected = [round - 1; 3];
            expected[..=turn].fill(round);
            assert_eq!(woken(&tasks), expected);
            let (ready, task) = &mut tasks[turn];
            assert_eq!(polled(ready.as_mut(), task), Poll::Ready(Events::IN));
            assert_eq!(rotating.try_wait(&mut [IN]), Ok(1));
            source.try_read().unwrap();
            assert_eq!(polled(ready.as_mut(), task), Poll::Pending);
        }
    }
}

#[test]
fn a_task_at_a_rotating_set_that_leaves_forwards_its_event() {
    let source = EventFd::new(0).unwrap();
    let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
    rotating.add(&source, IN).unwrap();
    let [first, second] = [(); 2].map(|()| waiting(Readiness::exclusive(&rotating, Events::IN)));
    source.try_write(1).unwrap();
    assert_eq!([first.1.woken(), second.1.woken()], [1, 0]);
    drop(first);
    assert_eq!(second.1.woken(), 1);
}

/// Nobody waits when the event comes. The recheck flags say so to those that come next.
#[test]
fn a_task_at_a_rotating_set_is_woken_after_events_that_found_nobody() {
    let source = EventFd::new(0).unwrap();
    let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
    let edge = Event::new(Events::IN | Events::ET, 0);
    rotating.add(&source, edge).unwrap();
    let (mut ready, task) = waiting(Readiness::exclusive(&rotating, Events::IN));
    for _ in 0..3 {
        source.try_write(1).unwrap();
    }
    assert_eq!(task.woken(), 1);
    assert_eq!(rotating.try_wait(&mut [IN]), Ok(1));
    source.try_read().unwrap();
    assert_eq!(polled(ready.as_mut(), &task), Poll::Pending);
    source.try_write(1).unwrap();
    assert_eq!(task.woken(), 2);
}

#[test]
fn a_waker_of_a_queue_wakes_what_waits_there() {
    struct Door(Arc<WaitQueue>);
    impl Pollable for Door {
        fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
            table.register(&self.0);
            Events::empty()
        }
    }
    let queue = Arc::new(WaitQueue::new());
    let waker = queue.waker(Events::IN);
    let door = File::new(Door(queue));
    let (_ready, task) = waiting(Readiness::new(&door, Events::IN));
    let (_other, idle) = waiting(Readiness::new(&door, Events::OUT));
    waker.wake_by_ref();
    assert_eq!([task.woken(), idle.woken()], [1, 0]);
    drop(door);
    // It keeps the queue.
    let clone = waker.clone();
    drop(waker);
    clone.wake();
}

#[test]
fn reads_and_writes_of_tasks_wait_for_each_other() {
    const ROUNDS: u64 = 200;
    let counter = EventFd::with_flags(0, EventFdFlags::SEMAPHORE).unwrap();
    counter.set_maximum(3).unwrap();
    let (reader, writer) = pipe().unwrap();
    writer.set_capacity(PIPE_BUF).unwrap();
    let (one, other) = socketpair(SocketFlags::NONBLOCK).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            block_on(async {
                for round in 0..ROUNDS {
                    counter.write_async(2).await.unwrap();
                    let mut bytes = &[7_u8; 3 * PIPE_BUF][..];
                    while !bytes.is_empty() {
                        bytes = &bytes[writer.write_async(bytes).await.unwrap()..];
                    }
                    let sent = round.to_ne_bytes();
                    assert_eq!(one.write_async(&sent).await, Ok(8));
                }
            });
        });
        block_on(async {
            for round in 0..ROUNDS {
                for _ in 0..2 {
                    assert_eq!(counter.read_async().await, Ok(1));
                }
                let (mut buffer, mut read) = ([0; 1000], 0);
                while read < 3 * PIPE_BUF {
                    let room = buffer.len().min(3 * PIPE_BUF - read);
                    read += reader.read_async(&mut buffer[..room]).await.unwrap();
                }
                let mut received = [0; 8];
                assert_eq!(other.read_async(&mut received).await, Ok(8));
                assert_eq!(u64::from_ne_bytes(received), round);
            }
        });
    });
    drop((writer, one));
    assert_eq!(block_on(reader.read_async(&mut [0])), Ok(0));
    assert_eq!(block_on(other.read_async(&mut [0])), Ok(0));
}

#[test]
fn a_read_that_ends_early_has_read_nothing() {
    let (reader, writer) = pipe().unwrap();
    let task = Arc::default();
    let mut buffer = [0; 2];
    let mut read = Box::pin(reader.read_async(&mut buffer));
    assert!(polled(read.as_mut(), &task).is_pending());
    writer.try_write(b"ab").unwrap();
    assert_eq!(task.woken(), 1);
    drop(read);
    assert_eq!(block_on(reader.read_async(&mut buffer)), Ok(2));
}

/// The futures of reads borrow their object. A leaked future stays in the queue until the object ends.
#[test]
fn the_object_of_a_read_that_was_leaked_may_end() {
    let set = Epoll::new().unwrap();
    for _ in 0..2 {
        let counter = EventFd::new(0).unwrap();
        set.add(&counter, IN).unwrap();
        let task = Arc::default();
        for _ in 0..2 {
            let mut read = Box::pin(counter.read_async());
            assert!(polled(read.as_mut(), &task).is_pending());
            std::mem::forget(read);
        }
        let mut other = Box::pin(counter.read_async());
        assert!(polled(other.as_mut(), &task).is_pending());
        drop(other);
        set.delete(&counter).unwrap();
        drop(counter);
    }
}

/// A future that waits in so many queues ends without a deep stack.
#[test]
fn a_task_may_wait_in_a_hundred_thousand_queues() {
    struct Many(Vec<WaitQueue>);

    impl Pollable for Many {
        fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
            self.0.iter().for_each(|queue| table.register(queue));
            Events::empty()
        }
    }

    let file = File::new(Many((0..100_000).map(|_| WaitQueue::new()).collect()));
    let (ready, task) = waiting(Readiness::new(&file, Events::IN));
    file.0[99_999].wake(Events::IN);
    assert_eq!(task.woken(), 1);
    drop(ready);
}

#[test]
fn a_call_that_waits_for_a_retired_object_fails() {
    let counter = EventFd::new(0).unwrap();
    let task = Arc::default();
    let mut read = pin!(counter.read_async());
    assert!(polled(read.as_mut(), &task).is_pending());
    counter.demote().unwrap();
    assert_eq!(task.woken(), 1);
    assert_eq!(polled(read.as_mut(), &task), Poll::Ready(Err(Errno::STALE)));
}

#[test]
fn a_task_waits_in_a_set_and_gets_each_event_of_a_stream_once() {
    let set = Epoll::new().unwrap();
    let counters: Vec<_> = (0..40).map(|_| EventFd::new(0).unwrap()).collect();
    let edge = |data| Event::new(Events::IN | Events::ET, data);
    for (data, counter) in (0..).zip(&counters) {
        set.add(counter, edge(data)).unwrap();
    }
    let task = Arc::default();
    let mut events = [Event::default(); 2];
    assert_eq!(block_on(set.wait_async(&mut [])), Err(Errno::INVAL));
    let mut wait = Box::pin(set.wait_async(&mut events));
    assert!(polled(wait.as_mut(), &task).is_pending());
    counters[5].try_write(1).unwrap();
    assert_eq!(task.woken(), 1);
    assert_eq!(polled(wait.as_mut(), &task), Poll::Ready(Ok(1)));
    drop(wait);
    assert_eq!(events[0].data(), 5);

    let mut stream = pin!(set.event_stream().unwrap());
    let mut next = Box::pin(stream.as_mut().next_event());
    assert!(polled(next.as_mut(), &task).is_pending());
    for counter in &counters {
        counter.try_write(1).unwrap();
    }
    drop(next);
    for data in 0..40 {
        let event = block_on(stream.as_mut().next_event()).unwrap();
        assert_eq!(event.data(), data);
    }
    let next = pin!(stream.as_mut().next_event());
    assert!(polled(next, &task).is_pending());
}

/// Panics when it is woken.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics");
    }
}

/// An object with two queues that is never ready.
#[derive(Default)]
struct TwoQueues([WaitQueue; 2]);

impl Pollable for TwoQueues {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        for queue in &self.0 {
            table.register(queue);
        }
        Events::empty()
    }
}

#[test]
fn a_waker_that_panics_while_a_future_ends_leaves_none_of_its_entries_behind() {
    let object = File::new(TwoQueues::default());
    let (chosen, _) = waiting(Readiness::exclusive(&object, Events::IN));
    let mut next = Box::pin(Readiness::exclusive(&object, Events::IN).unwrap());
    let waker = Waker::from(Arc::new(Panics));
    let is_pending = next
        .as_mut()
        .poll(&mut Context::from_waker(&waker))
        .is_pending();
    assert!(is_pending);
    object.0[0].wake(Events::IN);
    // Its event goes to the next task.
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(chosen)));
    assert!(ended.is_err());
    let (stays, task) = waiting(Readiness::exclusive(&object, Events::IN));
    // The one that panics is woken again: it waits in both queues.
    let wake = || object.0[1].wake_all(Events::IN);
    let woken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(wake));
    assert!(woken.is_err());
    assert_eq!(task.woken(), 1);
    drop((stays, next));
}

/// Polls those that were woken, until none is. Returns how many have ended.
fn poll_woken(tasks: &mut [Waiting]) -> usize {
    let mut ended = vec![false; tasks.len()];
    let mut seen = vec![0; tasks.len()];
    loop {
        let next = (0..tasks.len()).find(|&at| !ended[at] && tasks[at].1.woken() > seen[at]);
        let Some(at) = next else { break };
        let (ready, task) = &mut tasks[at];
        seen[at] = task.woken();
        ended[at] = polled(ready.as_mut(), task).is_ready();
    }
    ended.into_iter().filter(|ended| *ended).count()
}

#[test]
fn a_close_reaches_all_tasks_that_wait_exclusively() {
    let counter = EventFd::new(0).unwrap();
    let mut tasks = [(); 3].map(|()| exclusive(&counter));
    drop(counter);
    assert_eq!(poll_woken(&mut tasks), 3);
}

#[test]
fn a_hang_up_reaches_all_tasks_at_a_rotating_set() {
    let (reader, writer) = pipe().unwrap();
    let set = Epoll::create(CreateFlags::ROTATE).unwrap();
    set.add(&reader, IN).unwrap();
    let mut buffers = [[Event::default(); 1]; 3];
    let task = || Arc::new(Task::default());
    let mut waits: Vec<_> = buffers
        .iter_mut()
        .map(|buffer| (Box::pin(set.wait_async(buffer)), task()))
        .collect();
    for (wait, task) in &mut waits {
        assert_eq!(polled(wait.as_mut(), task), Poll::Pending);
    }
    drop(writer);
    let mut ended = 0;
    while let Some(at) = waits.iter().position(|(_, task)| task.woken() > 0) {
        let (mut wait, task) = waits.swap_remove(at);
        assert_eq!(polled(wait.as_mut(), &task), Poll::Ready(Ok(1)));
        ended += 1;
    }
    assert_eq!(ended, 3);
}

#[test]
fn a_hang_up_reaches_all_tasks_that_wait_for_a_rotating_set_itself() {
    let (reader, writer) = pipe().unwrap();
    let set = Epoll::create(CreateFlags::ROTATE).unwrap();
    set.add(&reader, IN).unwrap();
    let mut tasks = [(); 3].map(|()| waiting(Readiness::exclusive(&set, Events::IN)));
    drop(writer);
    assert_eq!(poll_woken(&mut tasks), 3);
}

/// A stream, its task, and how many events it has had.
type Streaming = (Pin<Box<EventStream>>, Arc<Task>, usize);

#[test]
fn tasks_that_stay_at_a_rotating_set_take_turns_after_an_event_that_found_them_awake() {
    let counter = EventFd::new(0).unwrap();
    let set = Epoll::create(CreateFlags::ROTATE).unwrap();
    set.add(&counter, IN).unwrap();
    let mut streams = [(); 2].map(|()| {
        let stream = Box::pin(set.event_stream().unwrap());
        (stream, Arc::new(Task::default()), 0)
    });
    // Runs those that were woken until none is. Returns how many events each has had.
    let run = |streams: &mut [Streaming; 2]| {
        while let Some((stream, task, events)) = streams
            .iter_mut()
            .find(|(_, task, _)| task.0.swap(0, Ordering::SeqCst) > 0)
        {
            let waker = Waker::from(task.clone());
            let mut context = Context::from_waker(&waker);
            while let Poll::Ready(event) = stream.as_mut().poll_event(&mut context) {
                assert_eq!(event.unwrap(), IN);
                counter.try_read().unwrap();
                *events += 1;
            }
        }
        streams.each_ref().map(|(_, _, events)| *events)
    };
    let start = |streams: &[Streaming; 2]| {
        for (_, task, _) in streams {
            task.0.store(1, Ordering::SeqCst);
        }
    };
    start(&streams);
    assert_eq!(run(&mut streams), [0, 0]);
    // An event that finds both awake.
    start(&streams);
    counter.try_write(1).unwrap();
    let before = run(&mut streams);
    assert_eq!(before.iter().sum::<usize>(), 1);
    for _ in 0..4 {
        counter.try_write(1).unwrap();
        run(&mut streams);
    }
    let after = run(&mut streams);
    let shares = [after[0] - before[0], after[1] - before[1]];
    assert_eq!(shares, [2, 2]);
}

/// Writes to a counter when it is woken.
struct Writes(EventFd);

impl Wake for Writes {
    fn wake(self: Arc<Self>) {
        self.0.try_write(1).unwrap();
    }
}

#[test]
fn a_second_event_is_for_a_second_task_though_the_first_was_not_woken_yet() {
    let counter = EventFd::with_flags(0, EventFdFlags::SEMAPHORE).unwrap();
    let mut exclusively = [(); 2].map(|()| exclusive(&counter));
    // They take all places that a thread has for wakers. The first to be woken writes.
    let mut shared = Vec::new();
    for at in 0..16 {
        let mut ready = Box::pin(Readiness::new(&counter, Events::IN).unwrap());
        let waker = match at {
            15 => Waker::from(Arc::new(Writes(counter.clone()))),
            _ => Waker::from(Arc::new(Task::default())),
        };
        let is_pending = ready
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending();
        assert!(is_pending);
        shared.push(ready);
    }
    counter.try_write(1).unwrap();
    let mut taken = 0;
    loop {
        let woken = exclusively
            .iter_mut()
            .find(|(_, task)| task.0.swap(0, Ordering::SeqCst) > 0);
        let Some((ready, task)) = woken else { break };
        if polled(ready.as_mut(), task).is_ready() {
            counter.try_read().unwrap();
            taken += 1;
        }
    }
    assert_eq!(taken, 2, "an event was left with a task that sleeps");
}

/// Forks when it is woken. Its process waits for the child.
struct Forking {
    /// 1 if this process is the child, else 0.
    is_child: AtomicUsize,
}

impl Wake for Forking {
    fn wake(self: Arc<Self>) {
        // SAFETY: the child calls what its own thread has begun, and then `_exit`.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: the process was just forked, and has one thread and a memory of its own.
            unsafe { upoll::internal::begin_in_child(false) };
            self.is_child.store(1, Ordering::SeqCst);
            return;
        }
        let mut status = -1;
        // SAFETY: the status is live.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0));
    }
}

#[test]
fn a_task_that_forks_when_it_is_woken_keeps_the_wake_from_no_other_task_of_the_child() {
    let counter = EventFd::new(0).unwrap();
    // More than a thread has cells for. The newest is woken first.
    let tasks = [(); 40].map(|()| waiting(Readiness::new(&counter, Events::IN)));
    let forking = Arc::new(Forking {
        is_child: AtomicUsize::new(0),
    });
    let mut first = pin!(Readiness::new(&counter, Events::IN).unwrap());
    let waker = Waker::from(forking.clone());
    assert_eq!(
        first.as_mut().poll(&mut Context::from_waker(&waker)),
        Poll::Pending
    );
    counter.try_write(1).unwrap();
    let all = woken(&tasks).iter().all(|&wakes| wakes == 1);
    if forking.is_child.load(Ordering::SeqCst) == 1 {
        // SAFETY: it ends the child.
        unsafe { libc::_exit(i32::from(!all)) };
    }
    assert!(all);
}

/// Reports when it is woken, and keeps the thread that wakes it until it is let go.
struct Keeping(Barrier);

impl Wake for Keeping {
    fn wake(self: Arc<Self>) {
        self.0.wait();
        self.0.wait();
    }
}

#[test]
fn a_task_that_another_thread_was_about_to_wake_at_a_fork_is_woken_in_the_child() {
    const CELLS: usize = 16;
    let counter = EventFd::new(0).unwrap();
    let wait = || waiting(Readiness::new(&counter, Events::IN));
    let left = [(); 40].map(|()| wait());
    let keeping = Arc::new(Keeping(Barrier::new(2)));
    let mut first = pin!(Readiness::new(&counter, Events::IN).unwrap());
    let waker = Waker::from(keeping.clone());
    let polled = first.as_mut().poll(&mut Context::from_waker(&waker));
    assert_eq!(polled, Poll::Pending);
    thread::scope(|scope| {
        // It has cells for the newest, and leaves the others.
        scope.spawn(|| counter.try_write(1).unwrap());
        keeping.0.wait();
        counter.try_read().unwrap();
        // Those take all cells of this thread.
        let newer = [(); CELLS].map(|()| wait());
        // SAFETY: the child calls what needs no other thread, and then `_exit`.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: the process was just forked, and has one thread and a memory of its own.
            unsafe { upoll::internal::begin_in_child(false) };
            counter.try_write(1).unwrap();
            let all = woken(&newer) == [1; CELLS];
            // The first one's waker is with the scope.
            let all = all && woken(&left)[..left.len() - CELLS] == [1; 24];
            // SAFETY: it ends the child.
            unsafe { libc::_exit(i32::from(!all)) };
        }
        let mut status = -1;
        // SAFETY: the status is live.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        keeping.0.wait();
        assert_eq!((waited, status), (child, 0));
    });
    assert_eq!(woken(&left), [1; 40]);
}
