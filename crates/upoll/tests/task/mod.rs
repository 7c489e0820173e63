//! Tasks without a runtime that count their wakeups.
#![allow(dead_code, reason = "each test file uses a part")]

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use upoll::{Errno, Readiness};

/// Counts its wakeups.
#[derive(Default)]
pub struct Task(pub AtomicUsize);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Task {
    pub fn woken(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

pub fn polled<F: Future>(future: Pin<&mut F>, task: &Arc<Task>) -> Poll<F::Output> {
    let waker = Waker::from(task.clone());
    future.poll(&mut Context::from_waker(&waker))
}

/// A future that waits, and its task.
pub type Waiting = (Pin<Box<Readiness>>, Arc<Task>);

pub fn waiting(ready: Result<Readiness, Errno>) -> Waiting {
    let (mut ready, task) = (Box::pin(ready.unwrap()), Arc::new(Task::default()));
    assert_eq!(polled(ready.as_mut(), &task), Poll::Pending);
    (ready, task)
}

pub fn woken<const N: usize>(tasks: &[Waiting; N]) -> [usize; N] {
    tasks.each_ref().map(|(_, task)| task.woken())
}

/// Unparks a thread.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Parked(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
            return done;
        }
        thread::park();
    }
}
