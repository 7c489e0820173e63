//! Callbacks and tasks that count their calls.
#![allow(dead_code, reason = "each test file uses a part")]

use std::future::Future;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use upoll::{Event, Events, Source, Watch};

pub const IN: Event = Event::new(Events::IN, 0);
pub const LONG: Duration = Duration::from_secs(60);

/// Runs one test at a time: some close fds of the library, or count fds.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts calls, and the events of all.
#[derive(Default)]
pub struct Calls {
    pub made: Mutex<(usize, u32)>,
    pub changed: Condvar,
}

impl Calls {
    pub fn call(&self, events: Events) {
        let mut made = self.made.lock().unwrap();
        made.0 += 1;
        made.1 |= events.bits();
        self.changed.notify_all();
    }

    /// Waits for `count` calls in all.
    pub fn until(&self, count: usize) {
        let made = self.made.lock().unwrap();
        let few = |made: &mut (usize, u32)| made.0 < count;
        let (made, _) = self.changed.wait_timeout_while(made, LONG, few).unwrap();
        assert!(made.0 >= count, "{} calls of {count}", made.0);
    }

    /// Waits until the calls together have had `events`.
    pub fn until_events(&self, events: Events) {
        let made = self.made.lock().unwrap();
        let few = |made: &mut (usize, u32)| made.1 & events.bits() != events.bits();
        let (made, _) = self.changed.wait_timeout_while(made, LONG, few).unwrap();
        assert!(Events::from_bits_retain(made.1).contains(events));
    }

    pub fn count(&self) -> usize {
        self.made.lock().unwrap().0
    }

    pub fn events(&self) -> Events {
        Events::from_bits_retain(self.made.lock().unwrap().1)
    }
}

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.call(Events::empty());
    }
}

pub fn watched(source: &impl Source, interest: Events) -> (Watch, Events, Arc<Calls>) {
    let calls = Arc::new(Calls::default());
    let counted = calls.clone();
    let (watch, ready) = Watch::new(source, interest, move |events| counted.call(events)).unwrap();
    (watch, ready, calls)
}

pub fn polled<F: Future>(future: Pin<&mut F>, task: &Arc<Calls>) -> Poll<F::Output> {
    let waker = Waker::from(task.clone());
    future.poll(&mut Context::from_waker(&waker))
}

/// Unparks a thread.
pub struct Parked(Thread, AtomicBool);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.1.store(true, Ordering::SeqCst);
        self.0.unpark();
    }
}

/// Polls the future when it is woken, and only then.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let parked = Arc::new(Parked(thread::current(), AtomicBool::new(true)));
    let waker = Waker::from(parked.clone());
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    let begin = Instant::now();
    loop {
        if parked.1.swap(false, Ordering::SeqCst)
            && let Poll::Ready(done) = future.as_mut().poll(&mut context)
        {
            return done;
        }
        thread::park_timeout(LONG);
        assert!(begin.elapsed() < LONG, "the task is not woken");
    }
}

pub fn drain(reader: &mut PipeReader) {
    assert_eq!(reader.read(&mut [0; 64]).unwrap(), 1);
}

pub fn fill(writer: &mut PipeWriter) {
    writer.write_all(b"x").unwrap();
}
