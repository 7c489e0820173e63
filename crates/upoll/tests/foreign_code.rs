//! Foreign code that runs inside this crate's calls: objects whose `poll` or destructor panics,
//! callbacks that panic, wakers that drop the woken task. None of it leaves a dangling waiter, a
//! locked set or a lost event behind. Worth running under Miri with tree borrows.
#![cfg(not(upoll_loom))]

#[cfg(feature = "std")]
#[path = "foreign_code/drops.rs"]
mod drops;
#[cfg(feature = "std")]
mod threads;

use std::cell::Cell;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

use upoll::{
    CreateFlags, Epoll, Errno, Event, EventFd, Events, File, PIPE_BUF, PollTable, Pollable,
    Readiness, SocketFlags, Source, WaitQueue, Watch, pipe, socketpair,
};

const IN: Event = Event::new(Events::IN, 0);

fn harvest(set: &Epoll) -> usize {
    set.try_wait(&mut [Event::default(); 8]).unwrap()
}

fn panics(body: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(body)).is_err()
}

/// Two queues, and a `poll` that panics on demand after it has registered with both.
#[derive(Default)]
struct Fragile {
    first: WaitQueue,
    second: WaitQueue,
    breaks: AtomicBool,
}

impl Pollable for Fragile {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.first);
        table.register(&self.second);
        assert!(!self.breaks.load(Ordering::Relaxed), "poll breaks");
        Events::IN
    }
}

#[test]
fn a_poll_that_panics_in_add_leaves_no_waiter_behind() {
    let file = File::new(Fragile::default());
    let set = Epoll::new().unwrap();
    file.breaks.store(true, Ordering::Relaxed);
    assert!(panics(|| set.add(&file, IN).unwrap()));
    file.breaks.store(false, Ordering::Relaxed);
    assert_eq!(file.first.wake(Events::IN), 0);
    assert_eq!(file.second.wake(Events::IN), 0);
    assert!(set.is_empty());
    // The same ADD succeeds afterwards.
    set.add(&file, IN).unwrap();
    assert_eq!(harvest(&set), 1);
    drop(file);
    assert!(set.is_empty());
}

/// An object that runs a closure in its next `poll`, once it has registered with its queues.
#[cfg(feature = "std")]
#[derive(Default)]
struct Interrupted {
    queues: [WaitQueue; 2],
    is_ready: AtomicBool,
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

#[cfg(feature = "std")]
impl Pollable for Interrupted {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        for queue in &self.queues {
            table.register(queue);
        }
        let meanwhile = self.meanwhile.lock().unwrap().take();
        if let Some(run) = meanwhile {
            run();
        }
        match self.is_ready.load(Ordering::Relaxed) {
            true => Events::IN,
            false => Events::empty(),
        }
    }
}

/// An ADD whose `poll` panics after a wakeup of one of two queues has chosen the new item. Another set waits exclusively
/// for the same event. `as_batch` makes the ADD in a batch.
#[cfg(feature = "std")]
fn an_add_that_takes_a_wakeup_and_breaks(queue: usize, as_batch: bool) {
    use upoll::CtlCommand;

    let exclusive = Event::new(Events::IN | Events::EXCLUSIVE, 0);
    let file = File::new(Interrupted::default());
    let [first, second] = [(); 2].map(|()| Epoll::new().unwrap());
    let told = Arc::new(AtomicUsize::new(0));
    let end = EventFd::new(0).unwrap();
    first.add(&end, IN).unwrap();
    // Only a set in which a thread sleeps takes an exclusive wakeup.
    let sleeping = first.clone();
    let (sleeper, _) = threads::asleep(move || {
        let limit = std::time::Duration::from_secs(60);
        sleeping.wait(&mut [Event::default()], limit).unwrap()
    });
    let counted = told.clone();
    let (_awaits, _) = Watch::new(&second, Events::IN, move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
    })
    .unwrap();
    let (set, source) = (second.clone(), file.clone());
    *file.meanwhile.lock().unwrap() = Some(Box::new(move || {
        // It stands behind the item of the first set, which the wakeup chooses.
        set.add(&source, exclusive).unwrap();
        source.is_ready.store(true, Ordering::Relaxed);
        assert_eq!(source.queues[queue].wake(Events::IN), 1);
        panic!("poll breaks");
    }));
    assert!(panics(|| match as_batch {
        true => _ = first.ctl_batch(&mut [CtlCommand::add(&file, exclusive)]),
        false => first.add(&file, exclusive).unwrap(),
    }));
    assert_eq!(first.len(), 1);
    assert_eq!(told.load(Ordering::Relaxed), 1);
    assert_eq!((harvest(&first), harvest(&second)), (0, 1));
    end.try_write(1).unwrap();
    assert_eq!(sleeper.join().unwrap(), 1);
}

/// Without `std` a panic cannot be caught.
#[cfg(feature = "std")]
#[test]
fn an_exclusive_wakeup_that_an_add_takes_before_its_poll_panics_goes_to_the_next_waiter() {
    for queue in 0..2 {
        for as_batch in [false, true] {
            an_add_that_takes_a_wakeup_and_breaks(queue, as_batch);
        }
    }
}

/// Without `std` a panic cannot be caught.
#[cfg(feature = "std")]
#[test]
fn a_poll_that_panics_in_a_batch_ends_it_there() {
    use upoll::CtlCommand;

    let set = Epoll::new().unwrap();
    let (one, other) = (File::new(Fragile::default()), File::new(Fragile::default()));
    let counter = EventFd::new(0).unwrap();
    let event = |events, data| Event::new(events, data);
    set.add(&one, event(Events::empty(), 1)).unwrap();
    set.add(&other, event(Events::empty(), 2)).unwrap();
    set.add(&counter, event(Events::empty(), 3)).unwrap();
    for fragile in [&one, &other] {
        fragile.breaks.store(true, Ordering::Relaxed);
    }
    let mut batch = [
        CtlCommand::modify(&counter, event(Events::OUT, 4)),
        CtlCommand::modify(&one, event(Events::IN, 5)),
        CtlCommand::modify(&other, event(Events::IN, 6)),
        CtlCommand::modify(&one, event(Events::IN, 7)),
    ];
    assert!(panics(|| _ = set.ctl_batch(&mut batch)));
    for fragile in [&one, &other] {
        fragile.breaks.store(false, Ordering::Relaxed);
        fragile.first.wake(Events::IN);
    }
    let mut events = [Event::default(); 8];
    let ready = set.try_wait(&mut events).unwrap();
    let data: Vec<_> = events[..ready].iter().map(Event::data).collect();
    // The changes up to the panic hold. Those behind it were not begun.
    assert_eq!(data, [4, 5]);
}

#[test]
fn a_future_that_is_polled_again_after_a_panic_waits_once() {
    struct Breaking(WaitQueue, AtomicUsize);

    impl Pollable for Breaking {
        fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
            table.register(&self.0);
            // The first poll only looks.
            let polls = self.1.fetch_add(1, Ordering::Relaxed);
            assert_ne!(polls, 1, "poll breaks");
            Events::empty()
        }
    }

    let file = File::new(Breaking(WaitQueue::new(), AtomicUsize::new(0)));
    let mut ready = pin!(Readiness::new(&file, Events::IN).unwrap());
    let mut context = Context::from_waker(Waker::noop());
    assert!(panics(|| {
        let _ = ready.as_mut().poll(&mut context);
    }));
    let mut context = Context::from_waker(Waker::noop());
    assert_eq!(ready.as_mut().poll(&mut context), Poll::Pending);
    assert_eq!(file.0.wake(Events::IN), 1);
    // It was woken and does not wait.
    assert_eq!(file.0.wake(Events::IN), 0);
}

#[test]
fn a_callback_that_panics_when_a_set_closes_leaves_no_waiter_behind() {
    let counter = EventFd::new(0).unwrap();
    let set = Epoll::new().unwrap();
    set.add(&counter, IN).unwrap();
    let (watch, _) = Watch::new(&set, Events::IN, |_| panic!("a callback breaks")).unwrap();
    assert!(panics(|| drop(set)));
    drop(watch);
    counter.try_write(1).unwrap();
    drop(counter);
}

/// Without `std` a panic cannot be caught.
#[cfg(feature = "std")]
#[test]
fn a_callback_that_panics_when_one_end_closes_is_called_after_the_other_end_was_told() {
    let (reader, writer) = upoll::pipe().unwrap();
    let told = Arc::new(AtomicUsize::new(0));
    let counted = told.clone();
    let (_counting, _) = Watch::new(&writer, Events::ERR, move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
    })
    .unwrap();
    let (_breaking, _) = Watch::new(&reader, Events::IN, |_| panic!("callback breaks")).unwrap();
    assert!(panics(|| drop(reader)));
    assert_eq!(told.load(Ordering::SeqCst), 1);
}

/// Without `std` a panic cannot be caught.
#[cfg(feature = "std")]
#[test]
fn a_wakeup_that_comes_while_a_callback_panics_is_delivered_by_one_more_call() {
    let counter = EventFd::new(0).unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let (counted, written) = (calls.clone(), counter.clone());
    let (_watch, _) = Watch::new(&counter, Events::IN, move |_| {
        if counted.fetch_add(1, Ordering::SeqCst) == 0 {
            written.try_write(1).unwrap();
            panic!("the first call breaks");
        }
    })
    .unwrap();
    assert!(panics(|| counter.try_write(1).unwrap()));
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

/// Without `std` a panic cannot be caught.
#[cfg(feature = "std")]
#[test]
fn a_callback_that_panics_keeps_no_wake_from_those_behind_it() {
    let counter = EventFd::new(0).unwrap();
    let (set, above) = (Epoll::new().unwrap(), Epoll::new().unwrap());
    let told = Arc::new(AtomicUsize::new(0));
    let count = |file| {
        let told = told.clone();
        Watch::new(&file, Events::IN, move |_| {
            told.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap()
        .0
    };
    let breaks = |file| {
        Watch::new(&file, Events::IN, |_| panic!("callback breaks"))
            .unwrap()
            .0
    };
    // The newest entry is first in the queue.
    let counts = [
        count(counter.as_file_ref()),
        count(set.as_file_ref()),
        count(above.as_file_ref()),
    ];
    above.add(&set, IN).unwrap();
    let breaking = [
        breaks(counter.as_file_ref()),
        breaks(set.as_file_ref()),
        breaks(counter.as_file_ref()),
    ];
    for exclusive in [false, true] {
        let interest = if exclusive {
            Event::new(Events::IN | Events::EXCLUSIVE, 0)
        } else {
            IN
        };
        set.add(&counter, interest).unwrap();
        told.store(0, Ordering::SeqCst);
        let payload = catch_unwind(AssertUnwindSafe(|| counter.try_write(1))).unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&"callback breaks"));
        assert_eq!(told.load(Ordering::SeqCst), 3);
        assert_eq!((harvest(&set), harvest(&above)), (1, 1));
        assert_eq!(counter.try_read(), Ok(1));
        set.delete(&counter).unwrap();
    }
    drop(breaking);
    counter.try_write(1).unwrap();
    drop(counts);
}

/// Returns a worker set that is chosen for an event of a rotating set over `source`, the rotating
/// set, and the watch that waits for the worker.
fn chosen_worker(source: &impl Source, queue: &WaitQueue) -> (Epoll, (Epoll, Watch)) {
    let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
    rotating.add(source, IN).unwrap();
    assert_eq!(harvest(&rotating), 1);
    let worker = Epoll::new().unwrap();
    worker.add(&rotating, IN).unwrap();
    let (awaiting, _) = Watch::new(&worker, Events::IN, |_| {}).unwrap();
    queue.wake(Events::IN);
    // The worker is chosen, and has not polled the source.
    (worker, (rotating, awaiting))
}

#[test]
fn a_poll_that_panics_when_a_set_closes_leaves_no_waiter_behind() {
    let source = File::new(Fragile::default());
    let counter = EventFd::new(0).unwrap();
    let (worker, _others) = chosen_worker(&source, &source.first);
    worker.add(&counter, IN).unwrap();
    source.breaks.store(true, Ordering::Relaxed);
    // The worker forwards its claim, which polls the source again.
    assert!(panics(|| drop(worker)));
    counter.try_write(1).unwrap();
    drop(counter);
}

/// Without `std` a panic cannot be caught.
#[cfg(feature = "std")]
#[test]
fn of_a_poll_and_a_callback_that_panic_in_a_batch_one_panic_goes_on() {
    use upoll::CtlCommand;

    let source = File::new(Fragile::default());
    let (worker, (rotating, _awaiting)) = chosen_worker(&source, &source.first);
    let counter = EventFd::new(1).unwrap();
    let (_watch, _) = Watch::new(&worker, Events::IN, |_| panic!("callback breaks")).unwrap();
    source.breaks.store(true, Ordering::Relaxed);
    // The worker forwards its claim, which polls the source. The callback is called after that.
    let mut batch = [CtlCommand::add(&counter, IN), CtlCommand::delete(&rotating)];
    assert!(panics(|| _ = worker.ctl_batch(&mut batch)));
    assert_eq!(harvest(&worker), 1);
}

/// Returns a set with `others`, and with a member whose `poll` has panicked in a harvest.
#[cfg(feature = "std")]
fn breaks_in_a_harvest(interest: Events, others: &[EventFd]) -> (Epoll, File<Fragile>) {
    let (set, source) = (Epoll::new().unwrap(), File::new(Fragile::default()));
    for other in others {
        set.add(other, Event::new(Events::IN, 1)).unwrap();
    }
    set.add(&source, Event::new(interest, 2)).unwrap();
    source.breaks.store(true, Ordering::Relaxed);
    assert!(panics(|| _ = harvest(&set)));
    source.breaks.store(false, Ordering::Relaxed);
    (set, source)
}

/// Without `std` a panic cannot be caught.
#[cfg(feature = "std")]
#[test]
fn a_poll_that_panics_in_a_wait_keeps_its_own_report() {
    let interests = [Events::ET, Events::ONESHOT, Events::ET | Events::ONESHOT];
    for interest in interests {
        for others in [vec![], vec![EventFd::new(1).unwrap()]] {
            let (set, _source) = breaks_in_a_harvest(Events::IN | interest, &others);
            assert_eq!(harvest(&set), others.len() + 1, "{interest:?}");
            assert_eq!(harvest(&set), others.len(), "{interest:?}");
        }
    }
}

/// Panics at its second poll, and is idle at the first.
#[cfg(feature = "std")]
#[derive(Default)]
struct FragileLater {
    queue: WaitQueue,
    polls: AtomicUsize,
}

#[cfg(feature = "std")]
impl Pollable for FragileLater {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        match self.polls.fetch_add(1, Ordering::Relaxed) {
            1 => Events::empty(),
            2 => panic!("poll breaks"),
            _ => Events::IN,
        }
    }
}

/// Without `std` a panic cannot be caught.
#[cfg(feature = "std")]
#[test]
fn a_second_poll_that_panics_in_a_wait_leaves_the_member_queued() {
    let (set, source) = (Epoll::new().unwrap(), File::new(FragileLater::default()));
    set.add(&source, IN).unwrap();
    assert!(panics(|| _ = harvest(&set)));
    assert_eq!((harvest(&set), harvest(&set)), (1, 1));
}

/// The first poll that would find it ready panics.
#[cfg(feature = "std")]
#[derive(Default)]
struct FragileOnce {
    queue: WaitQueue,
    is_ready: AtomicBool,
    broken: AtomicBool,
}

#[cfg(feature = "std")]
impl Pollable for FragileOnce {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        if !self.is_ready.load(Ordering::SeqCst) {
            return Events::empty();
        }
        let is_first = !self.broken.swap(true, Ordering::SeqCst);
        assert!(!is_first, "poll breaks");
        Events::IN
    }
}

/// Without `std` a panic cannot be caught, and no thread sleeps.
#[cfg(feature = "std")]
#[test]
fn a_poll_that_panics_in_a_wait_leaves_its_report_to_another_thread_that_sleeps() {
    for interest in [Events::ET, Events::ONESHOT] {
        let (set, source) = (Epoll::new().unwrap(), File::new(FragileOnce::default()));
        set.add(&source, Event::new(Events::IN | interest, 0))
            .unwrap();
        let waits = || {
            let set = set.clone();
            threads::asleep(move || {
                let limit = std::time::Duration::from_secs(60);
                let wait = || set.wait(&mut [Event::default()], limit);
                catch_unwind(AssertUnwindSafe(wait)).ok()
            })
        };
        let waiting = [waits(), waits()];
        source.is_ready.store(true, Ordering::SeqCst);
        source.queue.wake(Events::IN);
        let mut outcomes = waiting.map(|(thread, _)| thread.join().unwrap());
        outcomes.sort_unstable();
        assert_eq!(outcomes, [None, Some(Ok(1))], "{interest:?}");
    }
}

/// An object whose `poll`, once armed, adds two counters to a set.
#[derive(Default)]
struct Meddler {
    queue: WaitQueue,
    adds: OnceLock<(Epoll, [EventFd; 2])>,
    armed: AtomicBool,
}

impl Pollable for Meddler {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        if self.armed.swap(false, Ordering::Relaxed) {
            let (set, counters) = self.adds.get().unwrap();
            for counter in counters {
                set.add(counter, IN).unwrap();
            }
        }
        Events::IN
    }
}

#[test]
fn a_release_of_an_open_set_that_is_added_to_meanwhile_leaves_no_waiter_behind() {
    let source = File::new(Meddler::default());
    let (worker, others) = chosen_worker(&source, &source.queue);
    let counters = [EventFd::new(0).unwrap(), EventFd::new(0).unwrap()];
    source.adds.set((worker.clone(), counters.clone())).unwrap();
    source.armed.store(true, Ordering::Relaxed);
    worker.as_file_ref().to_file().release();
    // Exactly the members that are left are reported.
    for counter in &counters {
        counter.try_write(1).unwrap();
    }
    assert_eq!(harvest(&worker), worker.len());
    drop((counters, others));
    drop(source);
}

/// A task that its wakers own: dropping the last waker drops the future.
struct Task {
    ready: Mutex<Option<Pin<Box<Readiness>>>>,
    /// Written to when the task is dropped.
    farewell: Option<EventFd>,
}

impl Wake for Task {
    /// Like an executor that has shut down, drops the task.
    fn wake(self: Arc<Self>) {}
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(counter) = &self.farewell {
            counter.try_write(1).unwrap();
        }
    }
}

fn task(counter: &EventFd, farewell: Option<EventFd>) -> Arc<Task> {
    let ready = Readiness::new(counter, Events::IN).unwrap();
    Arc::new(Task {
        ready: Mutex::new(Some(Box::pin(ready))),
        farewell,
    })
}

fn poll_for(ready: &Mutex<Option<Pin<Box<Readiness>>>>, task: &Arc<Task>) -> Poll<Events> {
    let waker = Waker::from(task.clone());
    let mut ready = ready.lock().unwrap();
    let ready = ready.as_mut().unwrap().as_mut();
    ready.poll(&mut Context::from_waker(&waker))
}

#[test]
fn a_waker_may_end_its_task_when_it_is_called() {
    let counter = EventFd::new(0).unwrap();
    // Several tasks, because one wakeup calls them all.
    let tasks: Vec<_> = (0..8).map(|_| task(&counter, None)).collect();
    for task in tasks {
        assert_eq!(poll_for(&task.ready, &task), Poll::Pending);
    }
    counter.try_write(1).unwrap();
    assert_eq!(counter.try_read(), Ok(1));
}

#[test]
fn a_waker_may_write_to_the_file_when_it_is_replaced() {
    let counter = EventFd::new(0).unwrap();
    let ready = Mutex::new(Some(Box::pin(
        Readiness::new(&counter, Events::IN).unwrap(),
    )));
    let idle = EventFd::new(0).unwrap();
    let old = task(&idle, Some(counter.clone()));
    assert_eq!(poll_for(&ready, &old), Poll::Pending);
    drop(old);
    let new = task(&idle, None);
    // The old waker is dropped, and with it its task, which writes.
    assert_eq!(poll_for(&ready, &new), Poll::Ready(Events::IN));
}

#[test]
fn a_waker_may_close_what_the_set_watches() {
    let counter = EventFd::new(0).unwrap();
    let set = Epoll::new().unwrap();
    let doomed = EventFd::new(0).unwrap();
    set.add(&doomed, IN).unwrap();
    let mut ready = Box::pin(Readiness::new(&set, Events::IN).unwrap());
    let task = Arc::new(Closer(Mutex::new(Some(doomed))));
    let waker = Waker::from(task);
    let mut context = Context::from_waker(&waker);
    assert_eq!(ready.as_mut().poll(&mut context), Poll::Pending);
    counter.try_write(1).unwrap();
    set.add(&counter, IN).unwrap();
    assert_eq!(set.len(), 1);
}

/// A waker that closes its counter when it is woken.
struct Closer(Mutex<Option<EventFd>>);

impl Wake for Closer {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
    }
}

/// An object that is always ready and, once armed, runs a closure in its `poll`.
#[derive(Default)]
struct Trigger {
    queue: WaitQueue,
    armed: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Pollable for Trigger {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        let armed = self.armed.lock().unwrap().take();
        if let Some(run) = armed {
            run();
        }
        Events::IN
    }
}

#[test]
fn a_claim_on_a_set_that_closes_meanwhile_is_not_forwarded_when_an_open_set_is_released() {
    let trigger = File::new(Trigger::default());
    let (worker, _first) = chosen_worker(&trigger, &trigger.queue);
    let other = File::new(Trigger::default());
    let second = Epoll::create(CreateFlags::ROTATE).unwrap();
    second.add(&other, IN).unwrap();
    assert_eq!(harvest(&second), 1);
    worker.add(&second, IN).unwrap();
    other.queue.wake(Events::IN);
    // The worker holds claims on both sources. While the first claim is forwarded, the closure
    // deletes the second item and adds two counters, which may reuse the memory of both items.
    let counters = [(); 2].map(|()| EventFd::new(1).unwrap());
    let (set, added) = (worker.clone(), counters.clone());
    *trigger.armed.lock().unwrap() = Some(Box::new(move || {
        set.delete(&second).unwrap();
        drop(second);
        for counter in &added {
            set.add(counter, IN).unwrap();
        }
    }));
    worker.as_file_ref().to_file().release();
    assert!(worker.is_empty());
    for counter in counters {
        assert_eq!(counter.try_read(), Ok(1));
    }
}

#[test]
fn a_waker_may_add_a_set_to_a_set_when_one_is_added() {
    /// A waker that nests two sets when it is woken.
    struct Nester([Epoll; 2]);
    impl Wake for Nester {
        fn wake(self: Arc<Self>) {
            self.0[0].add(&self.0[1], IN).unwrap();
        }
    }
    let counter = EventFd::new(1).unwrap();
    let [set, inside, outer, inner] = [(); 4].map(|()| Epoll::new().unwrap());
    inside.add(&counter, IN).unwrap();
    let mut ready = Box::pin(Readiness::new(&set, Events::IN).unwrap());
    let waker = Waker::from(Arc::new(Nester([outer.clone(), inner])));
    let mut context = Context::from_waker(&waker);
    assert_eq!(ready.as_mut().poll(&mut context), Poll::Pending);
    set.add(&inside, IN).unwrap();
    assert_eq!(outer.len(), 1);
}

/// A buffer that calls a closure each time its bytes are taken.
struct Asking<F>(Vec<u8>, F);

impl<F: Fn()> Deref for Asking<F> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        (self.1)();
        &self.0
    }
}

impl<F: Fn()> DerefMut for Asking<F> {
    fn deref_mut(&mut self) -> &mut [u8] {
        (self.1)();
        &mut self.0
    }
}

/// Returns two such buffers, of a page each.
fn asking<F: Fn() + Copy>(ask: F) -> [Asking<F>; 2] {
    [(); 2].map(|()| Asking(vec![1; PIPE_BUF], ask))
}

const PAGES: Result<usize, Errno> = Ok(2 * PIPE_BUF);

#[test]
fn a_buffer_may_look_at_the_pipe_or_socket_when_it_is_asked_for_its_bytes() {
    let (reader, writer) = pipe().unwrap();
    let look = || assert!(reader.available() <= writer.capacity());
    assert_eq!(writer.try_write_vectored(&asking(look)), PAGES);
    assert_eq!(reader.try_read_vectored(&mut asking(look)), PAGES);

    let (one, other) = socketpair(SocketFlags::empty()).unwrap();
    let look = || assert!(other.available() <= one.send_buffer());
    assert_eq!(one.try_write_vectored(&asking(look)), PAGES);
    assert_eq!(other.try_read_vectored(&mut asking(look)), PAGES);
}

#[test]
fn a_buffer_that_panics_leaves_a_pipe_that_shows_what_it_holds() {
    let (reader, writer) = pipe().unwrap();
    writer.set_capacity(2 * PIPE_BUF).unwrap();
    let shows_what_it_holds = || {
        let bytes = reader.available();
        assert_eq!(reader.as_file_ref().is_ready(Events::IN), bytes > 0);
        assert_eq!(
            writer.as_file_ref().is_ready(Events::OUT),
            bytes <= PIPE_BUF
        );
    };
    let left = Cell::new(0_u32);
    let ask = || left.set(left.get().checked_sub(1).expect("a buffer breaks"));
    // The buffer panics after each number of accesses.
    for patience in 0..16 {
        left.set(patience);
        panics(|| assert_eq!(writer.try_write_vectored(&asking(ask)), PAGES));
        shows_what_it_holds();
        while writer.try_write(&[2; PIPE_BUF]).is_ok() {}
        left.set(patience);
        panics(|| assert_eq!(reader.try_read_vectored(&mut asking(ask)), PAGES));
        shows_what_it_holds();
        while reader.try_read(&mut [0; PIPE_BUF]).is_ok() {}
    }
}

#[test]
fn a_buffer_that_panics_leaves_a_socket_that_shows_what_it_holds() {
    let (one, other) = socketpair(SocketFlags::empty()).unwrap();
    let shows_what_it_holds = || {
        let is_ready = other.as_file_ref().is_ready(Events::IN);
        assert_eq!(is_ready, other.available() > 0);
    };
    let left = Cell::new(0_u32);
    let ask = || left.set(left.get().checked_sub(1).expect("a buffer breaks"));
    for patience in 0..16 {
        left.set(patience);
        panics(|| assert_eq!(one.try_write_vectored(&asking(ask)), PAGES));
        shows_what_it_holds();
        one.try_write(&[2; PIPE_BUF]).unwrap();
        left.set(patience);
        panics(|| assert_eq!(other.try_read_vectored(&mut asking(ask)), PAGES));
        shows_what_it_holds();
        while other.try_read(&mut [0; PIPE_BUF]).is_ok() {}
        shows_what_it_holds();
    }
}
