//! Each allocation that an operation makes fails once, in a process of its own. The operation fails with
//! `ENOMEM` and has no effect, or does without the memory; it never ends the process. Afterwards it succeeds, and
//! when all is dropped as much memory is in use as after a run without failures.
#![cfg(not(loom))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Debug;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::time::Duration;

use upoll::{
    CreateFlags, CtlCommand, Epoll, Errno, Event, EventFd, EventFdFlags, Events, FdSet,
    PollContext, PollFd, SocketFlags, Source, pipe, poll, select, socketpair,
};

/// The system's allocator, of which one allocation fails.
struct Failing;

/// How many allocations succeed before one fails; negative once it has, or if none is to fail.
static BEFORE: AtomicIsize = AtomicIsize::new(-1);
static BYTES: AtomicUsize = AtomicUsize::new(0);

fn fails_now() -> bool {
    BEFORE.load(Ordering::Relaxed) >= 0 && BEFORE.fetch_sub(1, Ordering::Relaxed) == 0
}

// SAFETY: hands every call that is not to fail to the system's allocator.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if fails_now() {
            return std::ptr::null_mut();
        }
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

/// Runs operations of which one allocation fails.
struct Fault {
    /// Allocations that succeed before it.
    before: isize,
    was_met: bool,
}

impl Fault {
    /// Runs an operation that may fail with `ENOMEM`, and again if it has.
    fn during<T: Debug>(&mut self, mut operation: impl FnMut() -> Result<T, Errno>) -> T {
        BEFORE.store(self.before, Ordering::Relaxed);
        let result = operation();
        let left = BEFORE.swap(-1, Ordering::Relaxed);
        // Negative: the failure was met, and is over.
        self.was_met |= left < 0 && self.before >= 0;
        self.before = left;
        match result {
            Err(errno) => {
                assert!(self.was_met, "{errno} without a failure");
                assert!(matches!(errno, Errno::NOMEM | Errno::NOBUFS), "{errno}");
                operation().expect("there is memory again")
            }
            Ok(value) => value,
        }
    }
}

const DONE: i32 = 0;
const MET: i32 = 2;

/// Runs `scenario` in children, with the first allocation failing, then the second, until none is left.
fn each_allocation_fails(name: &str, scenario: impl Fn(&mut Fault)) {
    for before in 0..2_000 {
        // SAFETY: the child runs the scenario and ends; no other thread of this process holds a lock that
        // the child needs, as the tests of this file run one after the other.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut none = Fault {
                before: -1,
                was_met: false,
            };
            // What is made once stays.
            scenario(&mut none);
            scenario(&mut none);
            let bytes = BYTES.load(Ordering::Relaxed);
            let mut fault = Fault {
                before,
                was_met: false,
            };
            scenario(&mut fault);
            let left = BYTES.load(Ordering::Relaxed).wrapping_sub(bytes) as isize;
            assert!(left <= 0, "{name}, {before}: {left} bytes are left");
            let status = if fault.was_met { MET } else { DONE };
            // SAFETY: ends the child.
            unsafe { libc::_exit(status) };
        }
        assert!(child > 0);
        let mut status = 0;
        // SAFETY: the status is written to a variable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(
            libc::WIFEXITED(status),
            "{name}: the allocation {before} fails, and the process ends by signal {}",
            libc::WTERMSIG(status)
        );
        match libc::WEXITSTATUS(status) {
            DONE => return,
            status => assert_eq!(status, MET, "{name}, {before}"),
        }
    }
    panic!("{name} has no end");
}

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

fn bytes(fault: &mut Fault) {
    let (reader, writer) = pipe().unwrap();
    let (one, other) = socketpair(SocketFlags::empty()).unwrap();
    let sent: Vec<u8> = (0..30_000_u32).map(|at| at as u8).collect();
    let mut received = vec![0; sent.len()];
    for written in [
        fault.during(|| writer.try_write(&sent)),
        fault.during(|| writer.write(&sent)),
    ] {
        // A part was written, or all.
        assert!(written > 0);
        assert_eq!(reader.try_read(&mut received[..written]), Ok(written));
        assert_eq!(received[..written], sent[..written]);
        assert_eq!(reader.try_read(&mut [0]), Err(Errno::AGAIN));
    }
    for written in [
        fault.during(|| one.try_write(&sent)),
        fault.during(|| one.write(&sent)),
    ] {
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
        done += fault.during(|| set.ctl_batch(0, &mut commands[done..]));
    }
    let mut changes: Vec<_> = counters
        .iter()
        .map(|counter| CtlCommand::modify(counter, watches(2)))
        .collect();
    let mut done = 0;
    while done < changes.len() {
        done += fault.during(|| set.ctl_batch(0, &mut changes[done..]));
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
    let mut context = PollContext::new();
    assert_eq!(fault.during(|| context.poll(&mut fds, MOMENT)), 0);
    assert_eq!(fault.during(|| context.poll(&mut fds[7..], MOMENT)), 0);
    counters[20].try_write(1).unwrap();
    assert_eq!(fault.during(|| context.poll(&mut fds, MOMENT)), 1);
    assert_eq!(fault.during(|| poll(&mut fds, MOMENT)), 1);
    assert_eq!(fds[20].revents(), Events::IN);
    counters[20].try_read().unwrap();
    let resolve = |number: i32| {
        let at = number as usize;
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
}

// One test: others would allocate meanwhile.
#[test]
fn an_allocation_that_fails_is_an_error_and_changes_nothing() {
    each_allocation_fails("objects", objects);
    each_allocation_fails("bytes", bytes);
    each_allocation_fails("sets", sets);
    each_allocation_fails("batches", batches);
    each_allocation_fails("nested and rotating sets", nested_and_rotating);
    each_allocation_fails("kernel members", kernel_members);
    each_allocation_fails("polls", polls);
}
