//! Drops that panic. Without `std` a panic cannot be caught.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use upoll::{CtlCommand, Epoll, EventFd, Events, Readiness, Source, Watch};

use super::{IN, panics};

/// More than a thread has room for.
const MANY: usize = 40;

/// A value whose drop panics, unless the thread panics already.
struct Fused;

impl Drop for Fused {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "a drop breaks");
    }
}

/// Makes a callback that ends its own watch, whose last reference then drops a [`Fused`].
fn ends_itself_and_breaks(source: &impl Source) {
    let own = Arc::new(Mutex::new(None));
    let (mine, fused) = (own.clone(), Fused);
    let (watch, _) = Watch::new(source, Events::IN, move |_| {
        let _ = &fused;
        let watch: Option<Watch> = mine.lock().unwrap().take();
        drop(watch);
    })
    .unwrap();
    *own.lock().unwrap() = Some(watch);
}

struct Told(AtomicUsize);

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Returns tasks that wait for `counter`, and how many of them were woken.
fn many_tasks(counter: &EventFd) -> (Vec<Pin<Box<Readiness>>>, Arc<Told>) {
    let told = Arc::new(Told(AtomicUsize::new(0)));
    let waker = Waker::from(told.clone());
    let mut context = Context::from_waker(&waker);
    let tasks = (0..MANY)
        .map(|_| {
            let mut ready = Box::pin(Readiness::new(counter, Events::IN).unwrap());
            assert_eq!(ready.as_mut().poll(&mut context), Poll::Pending);
            ready
        })
        .collect();
    (tasks, told)
}

#[test]
fn a_callback_whose_drop_panics_keeps_no_wake_from_tasks() {
    let counter = EventFd::new(0).unwrap();
    let (_tasks, told) = many_tasks(&counter);
    ends_itself_and_breaks(&counter);
    assert!(panics(|| counter.try_write(1).unwrap()));
    assert_eq!(told.0.load(Ordering::SeqCst), MANY);
}

#[test]
fn a_thread_wakes_tasks_after_the_drop_of_a_callback_has_panicked_amid_a_batch() {
    let set = Epoll::new().unwrap();
    let counter = EventFd::new(1).unwrap();
    ends_itself_and_breaks(&set);
    // A kernel fd ends the pass over the user-level members.
    let (reader, _writer) = std::io::pipe().unwrap();
    let mut batch = [CtlCommand::add(&counter, IN), CtlCommand::add(&reader, IN)];
    assert!(panics(|| {
        let _ = set.ctl_batch(&mut batch);
    }));
    let other = EventFd::new(0).unwrap();
    let (_tasks, told) = many_tasks(&other);
    other.try_write(1).unwrap();
    assert_eq!(told.0.load(Ordering::SeqCst), MANY);
    assert_eq!(Epoll::new().unwrap().as_file_ref().ready(), Events::empty());
}

#[test]
fn a_second_panic_whose_payload_breaks_keeps_no_wake_from_tasks() {
    let counter = EventFd::new(0).unwrap();
    let (_tasks, told) = many_tasks(&counter);
    let breaks = || {
        Watch::new(&counter, Events::IN, |_| panic_any(Fused))
            .unwrap()
            .0
    };
    let _watches = [breaks(), breaks()];
    let payload = catch_unwind(AssertUnwindSafe(|| counter.try_write(1))).unwrap_err();
    assert!(payload.is::<Fused>());
    std::mem::forget(payload);
    assert_eq!(told.0.load(Ordering::SeqCst), MANY);
}
