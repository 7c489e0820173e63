//! A context that is kept between calls: when it registers and with what, what it keeps of files that close, and objects that
//! panic.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use upoll::{
    Descriptor, EventFd, Events, File, PollContext, PollFd, PollTable, Pollable, WaitQueue,
};

/// An object that counts its polls, registrations, closes and drops, and is ready when a test sets
/// it.
struct Probe {
    queue: WaitQueue,
    other_queue: WaitQueue,
    is_ready: AtomicBool,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    looks: AtomicUsize,
    registrations: AtomicUsize,
    released: AtomicUsize,
    dropped: AtomicUsize,
}

impl Counts {
    /// Returns the number of polls and registrations since the last call.
    fn take(&self) -> (usize, usize) {
        let take = |count: &AtomicUsize| count.swap(0, Ordering::Relaxed);
        (take(&self.looks), take(&self.registrations))
    }
}

impl Pollable for Probe {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        let registers = format!("{table:?}").contains("true");
        let count = if registers {
            &self.counts.registrations
        } else {
            &self.counts.looks
        };
        count.fetch_add(1, Ordering::Relaxed);
        table.register(&self.queue);
        table.register(&self.other_queue);
        if self.is_ready.load(Ordering::SeqCst) {
            Events::IN
        } else {
            Events::empty()
        }
    }

    fn release(&self) {
        self.counts.released.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.counts.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

impl Probe {
    fn opened(counts: &Arc<Counts>) -> File<Probe> {
        File::new(Probe {
            queue: WaitQueue::new(),
            other_queue: WaitQueue::new(),
            is_ready: AtomicBool::new(false),
            counts: counts.clone(),
        })
    }

    fn set(&self, ready: bool) {
        self.is_ready.store(ready, Ordering::SeqCst);
        if ready {
            self.other_queue.wake(Events::IN);
        }
    }
}

fn list<'a>(objects: impl IntoIterator<Item = &'a File<Probe>>) -> Vec<PollFd<'a>> {
    let entry = |object| PollFd::new(object, Events::IN);
    objects.into_iter().map(entry).collect()
}

#[test]
fn a_repeated_list_registers_nothing_and_polls_only_woken_entries() {
    let counts = Arc::default();
    let objects: Vec<_> = (0..100).map(|_| Probe::opened(&counts)).collect();
    let mut context = PollContext::new();
    let mut call = |expected: usize| {
        let mut fds = list(&objects);
        assert_eq!(context.poll(&mut fds, Duration::ZERO), Ok(expected));
        counts.take()
    };
    assert_eq!(call(0), (100, 100));
    assert_eq!(call(0), (0, 0));
    objects[7].set(true);
    objects[70].set(true);
    assert_eq!(call(2), (2, 0));
    assert_eq!(call(2), (2, 0));
    objects[7].set(false);
    assert_eq!(call(1), (2, 0));
    assert_eq!(call(1), (1, 0));
    // The object is woken, and idle again before the call.
    objects[8].set(true);
    objects[8].set(false);
    assert_eq!(call(1), (2, 0));
    assert_eq!(call(1), (1, 0));
}

#[test]
fn a_list_that_changes_registers_only_what_is_new() {
    let counts = Arc::default();
    let objects: Vec<_> = (0..20).map(|_| Probe::opened(&counts)).collect();
    let mut context = PollContext::new();
    let mut call = |fds: &mut [PollFd<'_>]| {
        assert_eq!(context.poll(fds, Duration::ZERO), Ok(0));
        counts.take()
    };
    assert_eq!(call(&mut list(&objects[..10])), (10, 10));
    assert_eq!(call(&mut list(objects[..10].iter().rev())), (0, 0));
    // One entry more in front, one fewer in the middle, and one more at the end.
    let others = objects[..10]
        .iter()
        .filter(|object| !std::ptr::eq(*object, &raw const objects[4]));
    let changed = objects[10..11].iter().chain(others).chain(&objects[11..12]);
    let mut fds = list(changed);
    assert_eq!(call(&mut fds), (2, 2));
    // A changed interest causes a poll, because the object may have had those events before.
    fds[3].set_events(Events::OUT);
    assert_eq!(call(&mut fds), (1, 0));
    // An object that is listed twice is registered twice.
    fds.push(fds[5]);
    assert_eq!(call(&mut fds), (1, 1));
    assert_eq!(call(&mut []), (0, 0));
    assert_eq!(call(&mut fds), (fds.len(), fds.len()));
}

#[test]
fn a_context_keeps_no_file_open_and_its_memory_only_until_the_next_call() {
    let counts: Arc<Counts> = Arc::default();
    let released = || counts.released.load(Ordering::Relaxed);
    let dropped = || counts.dropped.load(Ordering::Relaxed);
    for (round, let_go) in [
        (|context: &mut PollContext| assert_eq!(context.poll(&mut [], Duration::ZERO), Ok(0)))
            as fn(&mut PollContext),
        |context| context.clear(),
        |context| drop(std::mem::take(context)),
    ]
    .into_iter()
    .enumerate()
    {
        let object = Probe::opened(&counts);
        let mut context = PollContext::new();
        assert_eq!(context.poll(&mut list([&object]), Duration::ZERO), Ok(0));
        drop(object);
        assert_eq!((released(), dropped()), (round + 1, round));
        let_go(&mut context);
        assert_eq!((released(), dropped()), (round + 1, round + 1));
    }

    // The reader reports at once that the writer has closed, in both worlds.
    let mut context = PollContext::new();
    let (reader, writer) = upoll::pipe().unwrap();
    let (mut kernel_reader, kernel_writer) = std::io::pipe().unwrap();
    let kernel_writer = Descriptor::new(kernel_writer);
    let mut fds = [
        PollFd::new(&writer, Events::OUT),
        PollFd::new(&kernel_writer, Events::OUT),
    ];
    assert_eq!(context.poll(&mut fds, None), Ok(2));
    drop((writer, kernel_writer));
    assert_eq!(reader.read(&mut [0]), Ok(0));
    assert_eq!(kernel_reader.read(&mut [0]).unwrap(), 0);
}

/// An object that panics in its `poll`, or when it is dropped.
struct Fragile {
    queue: WaitQueue,
    breaks: AtomicBool,
}

impl Pollable for Fragile {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        assert!(!self.breaks.load(Ordering::Relaxed), "poll breaks");
        Events::IN
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        assert!(!self.breaks.load(Ordering::Relaxed), "drop breaks");
    }
}

#[test]
fn an_object_that_panics_leaves_the_others_as_they_are() {
    let panics = |body: &mut dyn FnMut()| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err()
    };
    let fragile = |breaks: bool| {
        File::new(Fragile {
            queue: WaitQueue::new(),
            breaks: breaks.into(),
        })
    };
    let counters: Vec<_> = (0..8).map(|_| EventFd::new(1).unwrap()).collect();
    let entry = |counter| PollFd::new(counter, Events::IN);
    let mut context = PollContext::new();
    let breaking = fragile(true);
    let mut fds: Vec<_> = counters.iter().map(entry).collect();
    fds.insert(4, PollFd::new(&breaking, Events::IN));
    assert!(panics(&mut || {
        let _ = context.poll(&mut fds, Duration::ZERO);
    }));
    assert_eq!(breaking.queue.wake(Events::IN), 0, "it is still registered");
    breaking.breaks.store(false, Ordering::Relaxed);
    assert_eq!(context.poll(&mut fds, Duration::ZERO), Ok(9));
    assert_eq!(breaking.queue.wake(Events::IN), 1);

    // The entry is removed together with others, which are not registered afterwards either.
    breaking.breaks.store(true, Ordering::Relaxed);
    drop(breaking);
    let counts = Arc::default();
    let probes: Vec<_> = (0..8).map(|_| Probe::opened(&counts)).collect();
    let breaking = fragile(false);
    let mut fds = list(&probes);
    fds.push(PollFd::new(&breaking, Events::IN));
    assert!(panics(&mut || {
        let _ = context.poll(&mut fds, Duration::ZERO);
    }));
    assert_eq!(context.poll(&mut fds, Duration::ZERO), Ok(1));
    breaking.breaks.store(true, Ordering::Relaxed);
    drop(breaking);
    assert!(panics(&mut || {
        let _ = context.poll(&mut [], Duration::ZERO);
    }));
    for probe in &probes {
        assert_eq!(probe.other_queue.wake(Events::IN), 0);
    }
    let mut fds: Vec<_> = counters.iter().map(entry).collect();
    assert_eq!(context.poll(&mut fds, None), Ok(8));
}

#[test]
fn a_call_on_another_thread_that_panics_leaves_a_descriptor_to_be_registered() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (other, _other_writer) = std::io::pipe().unwrap();
    let (reader, other) = (Descriptor::new(reader), Descriptor::new(other));
    let breaking = File::new(Fragile {
        queue: WaitQueue::new(),
        breaks: true.into(),
    });
    let mut context = PollContext::new();
    let mut fds = [PollFd::new(&other, Events::IN)];
    assert_eq!(context.poll(&mut fds, Duration::ZERO), Ok(0));
    thread::scope(|scope| {
        let call = scope.spawn(|| {
            let mut fds = [
                PollFd::new(&other, Events::IN),
                PollFd::new(&reader, Events::IN),
                PollFd::new(&breaking, Events::IN),
            ];
            context.poll(&mut fds, Duration::ZERO)
        });
        assert!(call.join().is_err());
    });
    breaking.breaks.store(false, Ordering::Relaxed);
    writer.write_all(b"x").unwrap();
    let mut fds = [
        PollFd::new(&other, Events::IN),
        PollFd::new(&reader, Events::IN),
    ];
    assert_eq!(context.poll(&mut fds, Duration::ZERO), Ok(1));
    assert_eq!(fds[1].revents(), Events::IN);
    assert_eq!(context.poll(&mut fds[..1], Duration::ZERO), Ok(0));
}
