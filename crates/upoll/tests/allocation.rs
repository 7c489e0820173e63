//! Steady state allocates nothing, and the memory that stays in use is small. A counting allocator
//! measures both.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::Future;
use std::io::{Read, Write};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use upoll::channel::bounded;
use upoll::{
    Descriptor, Epoll, Event, EventFd, Events, FdSet, File, PollContext, PollFd, PollTable,
    Pollable, Readiness, SocketFlags, Source, WaitQueue, pipe, socketpair,
};

/// An object with several wait queues, which counts its polls and is never ready.
#[derive(Default)]
struct Queues {
    queues: [WaitQueue; 7],
    polls: AtomicUsize,
}

impl Pollable for Queues {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        self.polls.fetch_add(1, Ordering::Relaxed);
        for queue in &self.queues {
            table.register(queue);
        }
        Events::empty()
    }
}

struct Counting;

static CALLS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

std::thread_local! {
    /// True if this thread is one of the test's. The harness has another one, which allocates when it comes to run.
    static IS_COUNTED: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: forwards every call to the system's allocator, and counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if IS_COUNTED.get() {
            CALLS.fetch_add(1, Ordering::Relaxed);
            BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: the caller's contract is that of `System.alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if IS_COUNTED.get() {
            BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: the caller's contract is that of `System.dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the number of allocations that `body` makes, and how many more bytes are in use after
/// it.
fn cost(body: impl FnOnce()) -> (usize, usize) {
    let before = (CALLS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed));
    body();
    (
        CALLS.load(Ordering::Relaxed) - before.0,
        BYTES.load(Ordering::Relaxed).wrapping_sub(before.1),
    )
}

// One test: tests of one file run in parallel and would count each other's allocations.
#[test]
fn steady_state_allocates_nothing_and_idle_objects_are_small() {
    IS_COUNTED.set(true);
    let set = Epoll::new().unwrap();
    let counters: Vec<_> = (0..64).map(|_| EventFd::new(0).unwrap()).collect();
    let mut events = [Event::default(); 64];
    let mut round = || {
        for (n, counter) in counters.iter().enumerate() {
            set.add(counter, Event::new(Events::IN, n as u64)).unwrap();
            counter.write(1).unwrap();
        }
        assert_eq!(set.wait(&mut events, None), Ok(64));
        for counter in &counters {
            let edge = Event::new(Events::IN | Events::ET, 0);
            set.modify(counter, edge).unwrap();
            counter.read().unwrap();
        }
        for counter in &counters {
            set.delete(counter).unwrap();
        }
    };
    round();
    let (calls, _) = cost(|| (0..100).for_each(|_| round()));
    assert_eq!(calls, 0);

    let mut kept = None;
    let (_, bytes) = cost(|| kept = Some(EventFd::new(0).unwrap()));
    println!("an eventfd: {bytes} bytes");
    assert!(bytes <= 128);
    let mut kept = None;
    let (_, bytes) = cost(|| kept = Some(Epoll::new().unwrap()));
    println!("an empty set: {bytes} bytes");
    assert!(bytes <= 512);

    // Bytes that go through a pipe or a pair in small pieces use the same pages over and over.
    let mut kept = None;
    let (_, bytes) = cost(|| kept = Some(pipe().unwrap()));
    println!("an idle pipe: {bytes} bytes");
    assert!(bytes <= 512);
    let (reader, writer) = kept.unwrap();
    let mut kept = None;
    let (_, bytes) = cost(|| kept = Some(socketpair(SocketFlags::empty()).unwrap()));
    println!("an idle pair of sockets: {bytes} bytes");
    assert!(bytes <= 768);
    let (one, other) = kept.unwrap();
    let mut buffer = [0; 1_000];
    let mut round = || {
        for _ in 0..5 {
            writer.write(&buffer).unwrap();
            one.write(&buffer).unwrap();
        }
        for _ in 0..5 {
            reader.read(&mut buffer).unwrap();
            other.read(&mut buffer).unwrap();
        }
    };
    round();
    let (calls, _) = cost(|| (0..100).for_each(|_| round()));
    assert_eq!(calls, 0);

    for items in [1_000, 100_000, 1_000_000] {
        let counters: Vec<_> = (0..items).map(|_| EventFd::new(0).unwrap()).collect();
        let set = Epoll::new().unwrap();
        let (_, bytes) = cost(|| {
            for counter in &counters {
                set.add(counter, Event::new(Events::IN, 0)).unwrap();
            }
        });
        println!("an idle item, of {items}: {} bytes", bytes / items);
        assert!(bytes / items <= 128);
    }

    a_set_gives_back_the_memory_of_items_that_left();
    small_polls_and_selects_allocate_nothing();
    a_kept_context_allocates_nothing_however_its_list_changes();
    tasks_that_wait_allocate_nothing();
}

/// From the making of a future to its end, however many tasks one wakeup wakes.
fn tasks_that_wait_allocate_nothing() {
    let counter = EventFd::new(0).unwrap();
    let (reader, writer) = pipe().unwrap();
    let (one, other) = socketpair(SocketFlags::empty()).unwrap();
    let (sender, receiver) = bounded(1).unwrap();
    let set = Epoll::new().unwrap();
    set.add(&counter, Event::new(Events::IN, 0)).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let mut round = || {
        let mut waiting = [(); 50].map(|()| Readiness::new(&counter, Events::IN).unwrap());
        let mut exclusive = [(); 2].map(|()| Readiness::exclusive(&counter, Events::IN).unwrap());
        let (mut bytes, mut message, mut events) = ([0], [0], [Event::default()]);
        let mut read = pin!(reader.read_async(&mut bytes));
        let mut receive = pin!(one.read_async(&mut message));
        let mut wait = pin!(set.wait_async(&mut events));
        let mut take = pin!(receiver.recv_async());
        assert!(take.as_mut().poll(&mut context).is_pending());
        sender.try_send(1).unwrap();
        let mut send = pin!(sender.send_async(2));
        assert!(send.as_mut().poll(&mut context).is_pending());
        for ready in waiting.iter_mut().chain(&mut exclusive) {
            // SAFETY: the arrays are dropped where they are.
            let ready = unsafe { Pin::new_unchecked(ready) };
            assert!(ready.poll(&mut context).is_pending());
        }
        assert!(read.as_mut().poll(&mut context).is_pending());
        assert!(receive.as_mut().poll(&mut context).is_pending());
        assert!(wait.as_mut().poll(&mut context).is_pending());
        counter.try_write(1).unwrap();
        writer.try_write(&[1]).unwrap();
        other.try_write(&[1]).unwrap();
        for ready in waiting.iter_mut().chain(&mut exclusive) {
            // SAFETY: as above.
            let ready = unsafe { Pin::new_unchecked(ready) };
            assert!(ready.poll(&mut context).is_ready());
        }
        assert!(read.poll(&mut context).is_ready());
        assert!(receive.poll(&mut context).is_ready());
        assert!(wait.poll(&mut context).is_ready());
        assert_eq!(take.poll(&mut context), Poll::Ready(Ok(1)));
        assert_eq!(send.poll(&mut context), Poll::Ready(Ok(())));
        assert_eq!(receiver.try_recv(), Ok(2));
        assert!(pin!(counter.read_async()).poll(&mut context).is_ready());
    };
    // The pipe and the pair get their pages.
    round();
    let (calls, bytes) = cost(|| (0..100).for_each(|_| round()));
    assert_eq!((calls, bytes), (0, 0));

    // So do those that wait for what a kernel fd shows, if they are kept or the fd is in a set.
    let (kernel_reader, kernel_writer) = std::io::pipe().unwrap();
    set.add(&kernel_reader, Event::new(Events::IN, 0)).unwrap();
    let mut ready = pin!(Readiness::new(&kernel_reader, Events::IN).unwrap());
    let mut events = [Event::default()];
    let mut round = || {
        let mut wait = pin!(set.wait_async(&mut events));
        assert!(wait.as_mut().poll(&mut context).is_pending());
        assert!(ready.as_mut().poll(&mut context).is_pending());
        (&kernel_writer).write_all(&[1]).unwrap();
        assert!(wait.poll(&mut context).is_ready());
        while ready.as_mut().poll(&mut context).is_pending() {
            std::thread::yield_now();
        }
        (&kernel_reader).read_exact(&mut [0]).unwrap();
    };
    round();
    let (calls, _) = cost(|| (0..100).for_each(|_| round()));
    assert_eq!(calls, 0);

    // A future that waits again keeps its places in more queues than it has room for, and polls no more than it must.
    let file = File::new(Queues::default());
    let mut ready = pin!(Readiness::new(&file, Events::IN).unwrap());
    assert!(ready.as_mut().poll(&mut context).is_pending());
    file.polls.store(0, Ordering::Relaxed);
    let (calls, bytes) = cost(|| {
        for queue in &file.queues {
            assert_eq!(queue.wake(Events::IN), 1);
            assert!(ready.as_mut().poll(&mut context).is_pending());
        }
    });
    assert_eq!((calls, bytes), (0, 0));
    assert_eq!(file.polls.load(Ordering::Relaxed), 2 * file.queues.len());
    println!("a future: {} bytes", size_of::<Readiness>());
    assert!(size_of::<Readiness>() <= 384);
}

/// Items leave in any order, and some stay.
fn a_set_gives_back_the_memory_of_items_that_left() {
    const ITEMS: usize = 100_000;
    let counters: Vec<_> = (0..ITEMS).map(|_| EventFd::new(0).unwrap()).collect();
    // Step sizes that reach every item once.
    for step in [1, ITEMS - 1, 7_919] {
        for stay in [0, 1_000] {
            let set = Epoll::new().unwrap();
            let leave = |at: usize| set.delete(&counters[at * step % ITEMS]).unwrap();
            let (_, bytes) = cost(|| {
                for counter in &counters {
                    set.add(counter, Event::new(Events::IN, 0)).unwrap();
                }
                (stay..ITEMS).for_each(leave);
            });
            println!("{stay} of {ITEMS} items stay: {bytes} bytes");
            // In the worst case each item that stays keeps a chunk of 64 alive.
            assert!(bytes <= 64 * 1024 + stay * 64 * 128, "{step}");
            (0..stay).for_each(leave);
            let (calls, bytes) = cost(|| drop(set));
            let bytes = bytes.wrapping_neg();
            println!("  then none: {bytes} bytes, {calls}");
            assert!(bytes <= 64 * 1024, "{step}");
        }
    }
}

/// Once the context has grown it takes lists of any length, with other objects in each call.
fn a_kept_context_allocates_nothing_however_its_list_changes() {
    const MOMENT: Duration = Duration::from_micros(50);
    let counters: Vec<_> = (0..200).map(|_| EventFd::new(0).unwrap()).collect();
    let known: Vec<_> = (0..40)
        .map(|_| std::io::pipe().unwrap())
        .map(|(reader, writer)| (Descriptor::new(reader), writer))
        .collect();
    let pipe = std::io::pipe().unwrap();
    let mut context = PollContext::new();
    let mut fds = [PollFd::ignored(); 160];
    let mut round = |from: usize| {
        for (fd, counter) in fds.iter_mut().zip(&counters[from..from + 100]) {
            *fd = PollFd::new(counter, Events::IN);
        }
        for (fd, (reader, _)) in fds[100..].iter_mut().zip(&known[from..from + 20]) {
            *fd = PollFd::new(reader, Events::IN);
        }
        fds[120 + from] = PollFd::new(&pipe.0, Events::IN);
        counters[from].write(1).unwrap();
        assert_eq!(context.poll(&mut fds, None), Ok(1));
        counters[from].read().unwrap();
        assert_eq!(context.poll(&mut fds, MOMENT), Ok(0));
        assert_eq!(context.poll(&mut fds[..100], MOMENT), Ok(0));
        fds[120 + from] = PollFd::ignored();
    };
    (0..20).for_each(&mut round);
    let (calls, _) = cost(|| (0..20).rev().for_each(&mut round));
    assert_eq!(calls, 0);

    let mut context = PollContext::new();
    let mut set = FdSet::new();
    let mut select = |limit: Duration| {
        (0..120).for_each(|fd| set.insert(fd));
        let resolve = |fd: i32| {
            let at = usize::try_from(fd).ok()?;
            Some(match at {
                0..100 => counters[at].target(),
                _ => known[at - 100].0.target(),
            })
        };
        let ready = context.select(120, Some(&mut set), None, None, &mut limit.into(), resolve);
        assert_eq!(ready, Ok(0));
    };
    select(MOMENT);
    let (calls, _) = cost(|| (0..20).for_each(|_| select(MOMENT)));
    assert_eq!(calls, 0);

    let mut kept = None;
    let list: Vec<_> = counters
        .iter()
        .map(|at| PollFd::new(at, Events::IN))
        .collect();
    let (_, bytes) = cost(|| {
        let mut context = PollContext::new();
        assert_eq!(context.poll(&mut list.clone(), Duration::ZERO), Ok(0));
        kept = Some(context);
    });
    println!(
        "a kept entry, of {}: {} bytes",
        list.len(),
        bytes / list.len()
    );
    assert!(bytes / list.len() <= 256);
}

/// Nine wait queues and 29 kernel fds fit on the stack. For `select` that holds for fds below 320.
fn small_polls_and_selects_allocate_nothing() {
    const MOMENT: Duration = Duration::from_micros(50);
    let counters: Vec<_> = (0..10).map(|_| EventFd::new(0).unwrap()).collect();
    let pipe = std::io::pipe().unwrap();
    let poll = |users: usize, kernels: usize, limit: Duration| {
        let mut fds = [PollFd::ignored(); 64];
        for (fd, counter) in fds.iter_mut().zip(&counters[..users]) {
            *fd = PollFd::new(counter, Events::IN);
        }
        for fd in &mut fds[users..users + kernels] {
            *fd = PollFd::new(&pipe.0, Events::IN);
        }
        upoll::poll(&mut fds[..users + kernels], limit).unwrap()
    };
    let mut sets = [(); 2].map(|()| FdSet::from_iter([0, 310]));
    let mut select = |fill: &[i32], limit: Duration| {
        for set in &mut sets {
            set.clear();
            fill.iter().for_each(|&fd| set.insert(fd));
        }
        let [read, except] = &mut sets;
        let sets = (Some(read), Some(except));
        let ready = upoll::select(320, sets.0, None, sets.1, &mut limit.into(), |fd| {
            Some(match fd {
                310 => pipe.0.target(),
                _ => counters[0].target(),
            })
        });
        ready.unwrap()
    };

    // The first calls create the thread's wake fd, and bitmaps that it fits into.
    assert_eq!(poll(9, 29, MOMENT), 0);
    assert_eq!(select(&[0, 310], MOMENT), 0);
    let (calls, _) = cost(|| {
        for (users, kernels) in [(1, 0), (9, 0), (0, 30), (9, 29)] {
            assert_eq!(poll(users, kernels, Duration::ZERO), 0);
            assert_eq!(poll(users, kernels, MOMENT), 0);
        }
        for fill in [&[0][..], &[310], &[0, 310]] {
            assert_eq!(select(fill, Duration::ZERO), 0);
            assert_eq!(select(fill, MOMENT), 0);
        }
    });
    assert_eq!(calls, 0);

    // Another thread ends both kinds of sleep.
    let [go, stop] = [(); 2].map(|()| EventFd::new(0).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            IS_COUNTED.set(true);
            loop {
                go.read().unwrap();
                if stop.try_read().is_ok() {
                    break;
                }
                std::thread::sleep(MOMENT);
                counters[0].write(1).unwrap();
            }
        });
        let woken = |kernels| {
            go.write(1).unwrap();
            assert_eq!(poll(9, kernels, Duration::from_secs(60)), 1);
            counters[0].read().unwrap();
        };
        woken(0);
        woken(1);
        let (calls, _) = cost(|| (0..50).for_each(|round| woken(round % 2)));
        assert_eq!(calls, 0);
        stop.write(1).unwrap();
        go.write(1).unwrap();
    });

    // One entry more of either kind does not fit.
    let (calls, _) = cost(|| assert_eq!(poll(10, 0, MOMENT), 0));
    assert!(calls > 0);
    let (calls, _) = cost(|| assert_eq!(poll(1, 30, MOMENT), 0));
    assert!(calls > 0);
}
