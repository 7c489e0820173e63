//! Callbacks and tasks that wait for kernel fds, and for sets that have some.
#![cfg(not(upoll_loom))]

mod chain;
mod open_fds;
mod threads;

use std::future::Future;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::pin::{Pin, pin};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use chain::chain;
use open_fds::{ALL, close_all, open_in, opened_by};
use threads::in_child;
use upoll::{
    CreateFlags, Descriptor, Epoll, Errno, Event, EventFd, EventFdFlags, Events, Op, Readiness,
    Source, Watch,
};

const IN: Event = Event::new(Events::IN, 0);
const LONG: Duration = Duration::from_secs(20);

/// Runs one test at a time: some close fds of the library, or count fds.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts calls, and the events of all.
#[derive(Default)]
struct Calls {
    made: Mutex<(usize, u32)>,
    changed: Condvar,
}

impl Calls {
    fn call(&self, events: Events) {
        let mut made = self.made.lock().unwrap();
        made.0 += 1;
        made.1 |= events.bits();
        self.changed.notify_all();
    }

    /// Waits for `count` calls in all.
    fn until(&self, count: usize) {
        let made = self.made.lock().unwrap();
        let few = |made: &mut (usize, u32)| made.0 < count;
        let (made, _) = self.changed.wait_timeout_while(made, LONG, few).unwrap();
        assert!(made.0 >= count, "{} calls of {count}", made.0);
    }

    fn count(&self) -> usize {
        self.made.lock().unwrap().0
    }

    fn events(&self) -> Events {
        Events::from_bits_retain(self.made.lock().unwrap().1)
    }
}

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.call(Events::empty());
    }
}

fn watched(source: &impl Source, interest: Events) -> (Watch, Events, Arc<Calls>) {
    let calls = Arc::new(Calls::default());
    let counted = calls.clone();
    let (watch, ready) = Watch::new(source, interest, move |events| counted.call(events)).unwrap();
    (watch, ready, calls)
}

fn polled<F: Future>(future: Pin<&mut F>, task: &Arc<Calls>) -> Poll<F::Output> {
    let waker = Waker::from(task.clone());
    future.poll(&mut Context::from_waker(&waker))
}

/// Unparks a thread.
struct Parked(Thread, AtomicBool);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.1.store(true, Ordering::SeqCst);
        self.0.unpark();
    }
}

/// Polls the future when it is woken, and only then.
fn block_on<F: Future>(future: F) -> F::Output {
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

fn drain(reader: &mut PipeReader) {
    assert_eq!(reader.read(&mut [0; 64]).unwrap(), 1);
}

fn fill(writer: &mut PipeWriter) {
    writer.write_all(b"x").unwrap();
}

#[test]
fn a_callback_on_a_kernel_fd_is_called_after_each_edge_and_not_after_its_drop() {
    let _alone = alone();
    let (mut reader, mut writer) = pipe().unwrap();
    let (watch, ready, calls) = watched(&reader, Events::IN);
    assert!(ready.is_empty() && watch.ready().is_empty());
    for round in 1..=20 {
        fill(&mut writer);
        calls.until(round);
        assert_eq!(watch.ready(), Events::IN);
        drain(&mut reader);
        assert!(watch.ready().is_empty());
    }
    drop(writer);
    calls.until(21);
    assert_eq!(watch.ready(), Events::HUP);
    assert_eq!(calls.events(), Events::IN | Events::HUP);
    drop(watch);

    let (reader, mut writer) = pipe().unwrap();
    let reader = Descriptor::new(reader);
    fill(&mut writer);
    let (watch, ready, calls) = watched(&reader, Events::IN);
    assert_eq!(ready, Events::IN);
    drop(watch);
    let count = calls.count();
    fill(&mut writer);
    thread::sleep(Duration::from_millis(50));
    assert_eq!(calls.count(), count);
}

#[test]
fn a_callback_on_a_socket_learns_of_room_and_of_the_peers_end() {
    let _alone = alone();
    let (mut one, mut other) = UnixStream::pair().unwrap();
    let (room, ready, _) = watched(&one, Events::OUT);
    assert_eq!(ready, Events::OUT);
    one.set_nonblocking(true).unwrap();
    while one.write(&[0; 4096]).is_ok() {}
    assert!(room.ready().is_empty());
    let (_watch, ready, calls) = watched(&one, Events::OUT | Events::RDHUP);
    assert!(ready.is_empty());
    let mut left = vec![0; 1 << 20];
    while !room.ready().intersects(Events::OUT) {
        assert!(other.read(&mut left).unwrap() > 0);
    }
    calls.until(1);
    assert_eq!(calls.events(), Events::OUT);
    drop(other);
    while !calls.events().contains(Events::RDHUP | Events::HUP) {
        calls.until(calls.count() + 1);
    }
}

#[test]
fn one_future_waits_again_and_again_with_one_registration() {
    let _alone = alone();
    let (mut reader, mut writer) = pipe().unwrap();
    let mut ready = pin!(Readiness::new(&reader, Events::IN).unwrap());
    let before: Vec<_> = open_in(ALL).collect();
    for _ in 0..500 {
        thread::scope(|scope| {
            scope.spawn(|| fill(&mut writer));
            assert_eq!(block_on(ready.as_mut()), Events::IN);
        });
        drain(&mut reader);
    }
    assert!(open_in(ALL).eq(before));
    drop(writer);
    assert_eq!(block_on(ready.as_mut()), Events::HUP);
    assert_eq!(
        Readiness::exclusive(&reader, Events::IN).err(),
        Some(Errno::PERM)
    );
}

#[test]
fn an_event_that_comes_while_a_future_is_made_is_not_lost() {
    let _alone = alone();
    let (mut reader, mut writer) = pipe().unwrap();
    let set = Epoll::new().unwrap();
    for round in 0..1000 {
        let is_set = round % 2 == 0;
        thread::scope(|scope| {
            scope.spawn(|| fill(&mut writer));
            if is_set {
                set.add(&reader, IN).unwrap();
                assert_eq!(block_on(set.wait_async(&mut [IN])), Ok(1));
                set.delete(&reader).unwrap();
            } else {
                let ready = Readiness::new(&reader, Events::IN).unwrap();
                assert_eq!(block_on(ready), Events::IN);
            }
        });
        drain(&mut reader);
    }
}

#[test]
fn a_file_that_cannot_be_polled_is_always_ready_as_in_poll() {
    let _alone = alone();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let (watch, ready, calls) = watched(&file, Events::IN | Events::OUT);
    assert_eq!(ready, Events::IN | Events::OUT);
    assert_eq!(watch.ready(), ready);
    assert_eq!(calls.count(), 0);
    assert_eq!(
        block_on(Readiness::new(&file, Events::OUT).unwrap()),
        Events::OUT
    );
}

#[test]
fn a_close_of_the_programs_fd_ends_no_wait_and_meets_no_other_file() {
    let _alone = alone();
    let (reader, mut writer) = pipe().unwrap();
    let (first, _, calls) = watched(&reader, Events::IN);
    let number = reader.as_raw_fd();
    drop(reader);
    let (another, mut its_writer) = pipe().unwrap();
    let another = if another.as_raw_fd() == number {
        another
    } else {
        // SAFETY: the number is free.
        assert_eq!(unsafe { libc::dup2(another.as_raw_fd(), number) }, number);
        another
    };
    let (second, _, its_calls) = watched(&another, Events::IN);
    fill(&mut writer);
    calls.until(1);
    assert_eq!(its_calls.count(), 0);
    drop(first);
    fill(&mut its_writer);
    its_calls.until(1);
    assert_eq!(calls.count(), 1);
    drop(second);
    // It kept the pipe open.
    assert!(writer.write_all(b"x").is_err());
}

/// Members of both kinds in two equal sets. A thread waits in one, a task in the other.
#[test]
fn a_task_is_woken_when_a_thread_that_waits_is() {
    let _alone = alone();
    let kinds = [
        Events::IN,
        Events::IN | Events::ET,
        Events::IN | Events::ONESHOT,
    ];
    let mut pipes: Vec<_> = kinds.iter().map(|_| pipe().unwrap()).collect();
    let counters: Vec<_> = kinds.iter().map(|_| EventFd::new(0).unwrap()).collect();
    let sets = [Epoll::new().unwrap(), Epoll::new().unwrap()];
    for set in &sets {
        for (data, &kind) in (0..).zip(&kinds) {
            let at = usize::try_from(data).unwrap();
            set.add(&pipes[at].0, Event::new(kind, data)).unwrap();
            set.add(&counters[at], Event::new(kind, 10 + data)).unwrap();
        }
    }
    let of_task = &sets[0];
    let events_of = |found: usize, events: &[Event]| {
        let mut found: Vec<_> = events[..found].iter().map(Event::data).collect();
        found.sort_unstable();
        found
    };
    let mut random = 1_u32;
    for _ in 0..600 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (kind, is_counter) = ((random >> 8) as usize % 3, random >> 20 & 1 == 0);
        let mut in_task = [Event::default(); 8];
        let mut wait = Box::pin(of_task.wait_async(&mut in_task));
        let task = Arc::new(Calls::default());
        assert!(polled(wait.as_mut(), &task).is_pending());
        match is_counter {
            true => counters[kind].try_write(1).unwrap(),
            false => fill(&mut pipes[kind].1),
        }
        task.until(1);
        let found = loop {
            // The first wakeup may be of a wait before.
            match polled(wait.as_mut(), &task) {
                Poll::Ready(found) => break found.unwrap(),
                Poll::Pending => task.until(task.count() + 1),
            }
        };
        drop(wait);
        let mut in_thread = [Event::default(); 8];
        let expected = sets[1].wait(&mut in_thread, LONG).unwrap();
        assert_eq!(
            events_of(found, &in_task),
            events_of(expected, &in_thread),
            "{kind} {is_counter}"
        );
        match is_counter {
            true => assert_eq!(counters[kind].try_read(), Ok(1)),
            false => drain(&mut pipes[kind].0),
        }
        for set in &sets {
            // It arms the one-shot interest again.
            let data = kind as u64 + if is_counter { 10 } else { 0 };
            let member = match is_counter {
                true => counters[kind].target(),
                false => pipes[kind].0.target(),
            };
            let interest = Event::new(kinds[kind], data);
            set.ctl(Op::Mod, member, interest).unwrap();
            assert_eq!(set.try_wait(&mut [IN]), Ok(0));
        }
    }
}

#[test]
fn level_triggered_members_that_stay_ready_are_reported_to_tasks_again() {
    let _alone = alone();
    let (mut reader, mut writer) = pipe().unwrap();
    let set = Epoll::new().unwrap();
    set.add(&reader, Event::new(Events::IN, 7)).unwrap();
    fill(&mut writer);
    let mut stream = pin!(set.event_stream().unwrap());
    for _ in 0..5 {
        let event = block_on(stream.as_mut().next_event()).unwrap();
        assert_eq!(event.data(), 7);
    }
    drain(&mut reader);
    let task = Arc::new(Calls::default());
    assert!(polled(pin!(stream.as_mut().next_event()), &task).is_pending());
    fill(&mut writer);
    task.until(1);
    assert!(block_on(stream.as_mut().next_event()).is_ok());
}

#[test]
fn callbacks_on_sets_above_are_called_whatever_was_there_first() {
    let _alone = alone();
    for begins_with_member in [true, false] {
        let sets = chain(CreateFlags::empty());
        let (mut reader, mut writer) = pipe().unwrap();
        if begins_with_member {
            sets[2].add(&reader, IN).unwrap();
        }
        let watches = sets.each_ref().map(|set| watched(set, Events::IN));
        if !begins_with_member {
            sets[2].add(&reader, IN).unwrap();
        }
        for round in 1..=10 {
            fill(&mut writer);
            for (watch, _, calls) in &watches {
                calls.until(round);
                assert_eq!(watch.ready(), Events::IN);
            }
            drain(&mut reader);
            for (set, (watch, ..)) in sets.iter().zip(&watches) {
                assert_eq!(set.try_wait(&mut [IN]), Ok(0));
                assert!(watch.ready().is_empty());
            }
        }
        // Another set with kernel members comes below: the outer sets sleep elsewhere from now on.
        let (other, mut its_writer) = pipe().unwrap();
        let below = Epoll::new().unwrap();
        below.add(&other, IN).unwrap();
        sets[2].add(&below, IN).unwrap();
        let counts = watches.each_ref().map(|(_, _, calls)| calls.count());
        fill(&mut its_writer);
        for ((_, _, calls), count) in watches.iter().zip(counts) {
            calls.until(count + 1);
        }
        let counts = watches.each_ref().map(|(_, _, calls)| calls.count());
        // The first set's own members still count.
        drain(&mut { other });
        for set in &sets {
            let _ = set.try_wait(&mut [IN]);
        }
        fill(&mut writer);
        for ((_, _, calls), count) in watches.iter().zip(counts) {
            calls.until(count + 1);
        }
    }
}

/// The attendant is one level of nesting more.
#[test]
fn a_set_that_is_nested_as_deep_as_the_kernel_lets_it_takes_no_callback_and_works_on() {
    let _alone = alone();
    let (mut reader, mut writer) = pipe().unwrap();
    let nested = |sets: &[Epoll]| {
        for pair in sets.windows(2) {
            pair[0].add(&pair[1], IN).unwrap();
        }
    };
    let sets = [(); 5].map(|()| Epoll::new().unwrap());
    nested(&sets);
    let (_deep, ..) = watched(&sets[0], Events::IN);
    let refused = sets[4].add(&reader, IN).unwrap_err();
    assert!(matches!(refused, Errno::LOOP | Errno::INVAL), "{refused}");
    assert!(sets[4].is_empty());
    // At one level less it works, and goes on after the refusal of another set with kernel fds.
    let sets = [(); 4].map(|()| Epoll::new().unwrap());
    nested(&sets);
    let (watch, _, calls) = watched(&sets[0], Events::IN);
    sets[3].add(&reader, IN).unwrap();
    let below = Epoll::new().unwrap();
    below.add(&reader, IN).unwrap();
    assert!(sets[3].add(&below, IN).is_err());
    for _ in 0..2 {
        let count = calls.count();
        fill(&mut writer);
        calls.until(count + 1);
        assert_eq!(watch.ready(), Events::IN);
        drain(&mut reader);
        assert!(sets[0].try_wait(&mut [IN]).is_ok());
    }
    drop(watch);
    sets[3].add(&below, IN).unwrap();
    assert!(Watch::new(&sets[0], Events::IN, |_| ()).is_err());
    fill(&mut writer);
    assert_eq!(sets[0].wait(&mut [IN], LONG), Ok(1));
}

#[test]
fn a_callback_and_a_member_that_come_at_once_find_each_other() {
    let _alone = alone();
    for _ in 0..300 {
        let sets = chain(CreateFlags::empty());
        let (reader, mut writer) = pipe().unwrap();
        let (_watch, calls) = thread::scope(|scope| {
            let watching = scope.spawn(|| watched(&sets[0], Events::IN));
            sets[2].add(&reader, IN).unwrap();
            let (watch, _, calls) = watching.join().unwrap();
            (watch, calls)
        });
        let count = calls.count();
        fill(&mut writer);
        calls.until(count + 1);
    }
}

#[test]
fn a_task_waits_in_a_worker_of_a_rotating_set_with_a_kernel_fd() {
    let _alone = alone();
    let (mut reader, mut writer) = pipe().unwrap();
    let sets = chain(CreateFlags::ROTATE);
    sets[2].add(&reader, IN).unwrap();
    assert_eq!(
        Readiness::new(&sets[2], Events::IN).err(),
        Some(Errno::PERM)
    );
    for set in &sets[..2] {
        for _ in 0..20 {
            thread::scope(|scope| {
                scope.spawn(|| fill(&mut writer));
                assert_eq!(block_on(set.wait_async(&mut [IN])), Ok(1));
            });
            drain(&mut reader);
        }
    }
}

#[test]
fn an_event_of_a_kernel_fd_wakes_all_tasks_that_wait_exclusively_in_a_set() {
    let _alone = alone();
    let (reader, mut writer) = pipe().unwrap();
    let set = Epoll::new().unwrap();
    set.add(&reader, IN).unwrap();
    let mut tasks = [(); 3].map(|()| {
        let ready = Box::pin(Readiness::exclusive(&set, Events::IN).unwrap());
        (ready, Arc::new(Calls::default()))
    });
    for (ready, task) in &mut tasks {
        assert!(polled(ready.as_mut(), task).is_pending());
    }
    fill(&mut writer);
    for (ready, task) in &mut tasks {
        task.until(1);
        assert_eq!(polled(ready.as_mut(), task), Poll::Ready(Events::IN));
    }
}

#[test]
fn a_callback_on_a_set_learns_what_another_process_does_to_a_shared_counter() {
    let _alone = alone();
    let shared = EventFd::shared(0, EventFdFlags::empty()).unwrap();
    let set = Epoll::new().unwrap();
    let (watch, ready, calls) = watched(&set, Events::IN);
    set.add(&shared, IN).unwrap();
    assert!(ready.is_empty());
    for _ in 0..3 {
        let count = calls.count();
        in_child(|| shared.try_write(1).unwrap());
        calls.until(count + 1);
        assert_eq!(watch.ready(), Events::IN);
        assert_eq!(shared.try_read(), Ok(1));
        assert!(watch.ready().is_empty());
    }
}

#[test]
fn a_set_serves_threads_and_tasks_at_once() {
    let _alone = alone();
    serve(false);
    serve(true);
}

/// Threads and tasks take what arrives in pipes, in a set or in one above.
fn serve(is_nested: bool) {
    const EACH: usize = 400;
    let (set, outer) = (Epoll::new().unwrap(), Epoll::new().unwrap());
    outer.add(&set, IN).unwrap();
    let place = if is_nested { &outer } else { &set };
    let mut pipes: Vec<_> = (0..4).map(|_| pipe().unwrap()).collect();
    let once = |data| Event::new(Events::IN | Events::ONESHOT, data);
    for (data, (reader, _)) in (0..).zip(&pipes) {
        set.add(reader, once(data)).unwrap();
    }
    let (readers, writers): (Vec<_>, Vec<_>) = pipes.drain(..).unzip();
    let readers: Vec<_> = readers.into_iter().map(Mutex::new).collect();
    let is_over = EventFd::new(0).unwrap();
    set.add(&is_over, Event::new(Events::IN, u64::MAX)).unwrap();
    let (taken, total) = (AtomicUsize::new(0), writers.len() * EACH);
    // Returns false at the end.
    let serve = |found: &Event| {
        let mut event = *found;
        if is_nested && set.try_wait(std::slice::from_mut(&mut event)) == Ok(0) {
            return true;
        }
        if event.data() == u64::MAX {
            return false;
        }
        let mut reader = readers[usize::try_from(event.data()).unwrap()]
            .lock()
            .unwrap();
        let read = reader.read(&mut [0; 64]).unwrap();
        taken.fetch_add(read, Ordering::SeqCst);
        set.modify(&*reader, once(event.data())).unwrap();
        true
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut events = [Event::default()];
                while place.wait(&mut events, None).is_ok() && serve(&events[0]) {}
            });
            scope.spawn(|| {
                let mut events = [Event::default()];
                while block_on(place.wait_async(&mut events)).is_ok() && serve(&events[0]) {}
            });
        }
        for mut writer in writers {
            scope.spawn(move || {
                for _ in 0..EACH {
                    fill(&mut writer);
                    thread::yield_now();
                }
                // The end of a pipe would be an event as well.
                std::mem::forget(writer);
            });
        }
        let begin = Instant::now();
        while taken.load(Ordering::SeqCst) < total {
            assert!(begin.elapsed() < LONG, "{taken:?} of {total}");
            thread::sleep(Duration::from_millis(1));
        }
        is_over.try_write(1).unwrap();
    });
}

/// Callbacks and futures come and go while their fds have events.
#[test]
fn no_callback_runs_after_its_drop() {
    let _alone = alone();
    let until = Instant::now() + Duration::from_secs(3);
    let (one, other) = UnixStream::pair().unwrap();
    let set = Epoll::new().unwrap();
    set.add(&one, IN).unwrap();
    let outer = Epoll::new().unwrap();
    outer.add(&set, IN).unwrap();
    for stream in [&one, &other] {
        stream.set_nonblocking(true).unwrap();
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            while Instant::now() < until {
                let _ = (&other).write(b"x");
                let _ = (&one).read(&mut [0; 8]);
            }
        });
        for at in 0..3 {
            let (one, set, outer) = (&one, &set, &outer);
            scope.spawn(move || {
                let sources = [one.target(), set.target(), outer.target()];
                while Instant::now() < until {
                    let is_dropped = Arc::new(AtomicBool::new(false));
                    let dropped = is_dropped.clone();
                    let callback = move |_| assert!(!dropped.load(Ordering::SeqCst));
                    let (watch, _) = Watch::new(&sources[at], Events::IN, callback).unwrap();
                    let mut ready = Box::pin(Readiness::new(&sources[at], Events::IN).unwrap());
                    let _ = polled(ready.as_mut(), &Arc::default());
                    thread::yield_now();
                    drop(ready);
                    drop(watch);
                    is_dropped.store(true, Ordering::SeqCst);
                }
            });
        }
    });
}

#[test]
fn a_callback_may_drop_its_own_watch_and_one_that_panics_stops_no_other() {
    let _alone = alone();
    let (reader, mut writer) = pipe().unwrap();
    let place: Arc<Mutex<Option<Watch>>> = Arc::default();
    let calls = Arc::new(Calls::default());
    let (own, counted) = (place.clone(), calls.clone());
    let mut slot = place.lock().unwrap();
    let (watch, _) = Watch::new(&reader, Events::IN, move |events| {
        drop(own.lock().unwrap().take());
        counted.call(events);
        panic!("a callback that panics; this message is expected");
    })
    .unwrap();
    *slot = Some(watch);
    drop(slot);
    fill(&mut writer);
    calls.until(1);
    let (_watch, _, others) = watched(&reader, Events::IN);
    fill(&mut writer);
    others.until(1);
    assert_eq!(calls.count(), 1);
}

#[test]
fn a_set_whose_own_fds_were_closed_is_registered_anew() {
    let _alone = alone();
    let (reader, mut writer) = pipe().unwrap();
    let (other, mut its_writer) = pipe().unwrap();
    let [outer, inner] = [(); 2].map(|()| Epoll::new().unwrap());
    let edge = Event::new(Events::IN | Events::ET, 0);
    let mut watches = None;
    // After the fds of an attendant that has just ended, and of its successor.
    let own = opened_by(|| {
        inner.add(&reader, edge).unwrap();
        outer.add(&inner, IN).unwrap();
        outer.add(&other, edge).unwrap();
        watches = Some([watched(&inner, Events::IN), watched(&outer, Events::IN)]);
        outer.readiness_fd().unwrap();
    });
    assert!(own.len() >= 3, "{own:?}");
    let watches = watches.unwrap();
    close_all(&own);
    // Other files get their numbers.
    let _others = pipe().unwrap();
    let counts = watches.each_ref().map(|(_, _, calls)| calls.count());
    fill(&mut writer);
    watches[0].2.until(counts[0] + 1);
    watches[1].2.until(counts[1] + 1);
    assert_eq!(inner.try_wait(&mut [IN]), Ok(1));
    assert!(outer.try_wait(&mut [IN; 4]).is_ok());
    let count = watches[1].2.count();
    fill(&mut its_writer);
    watches[1].2.until(count + 1);
    assert!(outer.try_wait(&mut [IN; 4]).unwrap() >= 1);
}

/// The kernel set of the attendant, and copies of fds.
#[test]
fn a_wait_whose_copy_of_the_fd_was_closed_ends_and_sets_go_on() {
    let _alone = alone();
    // So that the attendant is there, with the fds that it needs.
    let (idle, _writer) = pipe().unwrap();
    let _keeps = watched(&idle, Events::IN);
    let (reader, mut writer) = pipe().unwrap();
    let set = Epoll::new().unwrap();
    set.add(&reader, Event::new(Events::IN | Events::ET, 0))
        .unwrap();
    let in_set = watched(&set, Events::IN);
    let mut bare = None;
    let copy = opened_by(|| bare = Some(watched(&reader, Events::IN)));
    assert_eq!(copy.len(), 1);
    let (watch, _, calls) = bare.unwrap();
    let mut ready = Box::pin(Readiness::new(&reader, Events::IN).unwrap());
    assert!(polled(ready.as_mut(), &Arc::default()).is_pending());
    close_all(&copy);
    calls.until(1);
    assert_eq!(calls.events(), Events::HUP);
    assert_eq!(watch.ready(), Events::HUP);
    // Nothing of the program's is closed in its place.
    // SAFETY: the number is free.
    assert_eq!(unsafe { libc::dup2(idle.as_raw_fd(), copy[0]) }, copy[0]);
    drop(watch);
    close_all(&copy);
    // All sets of the library: the attendant loses its own.
    let sets: Vec<_> = open_in(ALL).filter(|&fd| is_set(fd)).collect();
    assert!(sets.len() >= 2);
    close_all(&sets);
    assert_eq!(block_on(ready), Events::HUP);
    let count = in_set.2.count();
    fill(&mut writer);
    in_set.2.until(count + 1);
    let again = Readiness::new(&reader, Events::IN).unwrap();
    assert_eq!(block_on(again), Events::IN);
}

#[test]
fn a_kernel_fd_whose_copy_was_closed_is_waited_for_again() {
    let _alone = alone();
    let (idle, _writer) = pipe().unwrap();
    let _keeps = watched(&idle, Events::IN);
    let (reader, mut writer) = pipe().unwrap();
    let mut first = Vec::new();
    let copies = opened_by(|| first.extend((0..30).map(|_| watched(&reader, Events::IN))));
    close_all(&copies);
    for (_, _, calls) in &first {
        calls.until(1);
    }
    first.truncate(15);
    // The kernel has the same numbers for the copies, under which their file is still registered.
    let mut second = Vec::new();
    let others = opened_by(|| second.extend((0..30).map(|_| watched(&reader, Events::IN))));
    assert_eq!(others, copies);
    // The ends of the first waits end none of the second ones.
    drop(first);
    fill(&mut writer);
    for (_, _, calls) in &second {
        calls.until(1);
    }
}

#[test]
fn members_that_a_set_adopts_wake_callbacks_that_were_there_before() {
    let _alone = alone();
    let (reader, mut writer) = pipe().unwrap();
    // SAFETY: the flags are none, and the number is new.
    let kernel_set = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
    let mut interest = libc::epoll_event {
        events: (libc::EPOLLIN | libc::EPOLLET).cast_unsigned(),
        u64: 0,
    };
    let (set, number) = (kernel_set.as_raw_fd(), reader.as_raw_fd());
    // SAFETY: the event is live.
    let added = unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, number, &raw mut interest) };
    assert_eq!(added, 0);
    let adopts = Epoll::new().unwrap();
    let (_watch, _, calls) = watched(&adopts, Events::IN);
    adopts.adopt_kernel_set(kernel_set.as_fd(), 1).unwrap();
    // The call itself may have run the callback.
    let count = calls.count();
    fill(&mut writer);
    calls.until(count + 1);
}

fn is_set(fd: RawFd) -> bool {
    let file = std::fs::read_link(format!("/proc/self/fd/{fd}"));
    file.is_ok_and(|file| file.to_string_lossy().contains("[eventpoll]"))
}

#[test]
fn the_child_of_a_fork_has_an_attendant_of_its_own() {
    let _alone = alone();
    let limit = libc::rlimit {
        rlim_cur: 4000,
        rlim_max: 4000,
    };
    let (reader, mut writer) = pipe().unwrap();
    let set = Epoll::new().unwrap();
    set.add(&reader, IN).unwrap();
    let kept = [watched(&reader, Events::IN), watched(&set, Events::IN)];
    let mut inherited = Some([watched(&reader, Events::IN), watched(&set, Events::IN)]);
    for _ in 0..5 {
        in_child(|| {
            // SAFETY: a hanging child is ended; it may not fork without end.
            unsafe {
                libc::alarm(60);
                libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit);
            }
            // The attendant sleeps. This neither waits for it, nor takes the parent's registration away.
            drop(inherited.take());
            let (mut reader, mut writer) = pipe().unwrap();
            let set = Epoll::new().unwrap();
            set.add(&reader, IN).unwrap();
            let ready = Readiness::new(&reader, Events::IN).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| fill(&mut writer));
                assert_eq!(block_on(ready), Events::IN);
            });
            assert_eq!(block_on(set.wait_async(&mut [IN])), Ok(1));
            drain(&mut reader);
            let task = Arc::new(Calls::default());
            let mut wait = Box::pin(Readiness::new(&set, Events::IN).unwrap());
            assert!(polled(wait.as_mut(), &task).is_pending());
            fill(&mut writer);
            task.until(1);
        });
    }
    fill(&mut writer);
    for (_, _, calls) in kept.iter().chain(inherited.iter().flatten()) {
        calls.until(1);
    }
}

/// A child does not keep the file of its parent's program open.
#[test]
fn the_child_of_a_fork_closes_the_copies_of_fds() {
    let _alone = alone();
    let (reader, mut writer) = pipe().unwrap();
    let (idle, _writer) = pipe().unwrap();
    let _keeps = watched(&idle, Events::IN);
    let mut bare = None;
    let copy = opened_by(|| bare = Some(watched(&reader, Events::IN)));
    assert_eq!(copy.len(), 1);
    in_child(|| {
        // SAFETY: the call takes no pointers.
        assert_eq!(unsafe { libc::fcntl(copy[0], libc::F_GETFD) }, -1);
        drop(bare.take());
        drop(reader.try_clone().unwrap());
    });
    fill(&mut writer);
    bare.unwrap().2.until(1);
}

/// A child that looks whether a copy is its parent's may meet a wait that begins at the same number.
#[test]
fn no_wait_that_begins_beside_a_fork_is_lost() {
    let _alone = alone();
    let (reader, mut writer) = pipe().unwrap();
    let (idle, _writer) = pipe().unwrap();
    let _keeps: Vec<_> = (0..50).map(|_| watched(&idle, Events::IN)).collect();
    for _ in 0..500 {
        let before: Vec<_> = (0..50).map(|_| watched(&reader, Events::IN)).collect();
        // SAFETY: the child, which closes its copies before the call returns, ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        drop(before);
        let after: Vec<_> = (0..50).map(|_| watched(&reader, Events::IN)).collect();
        // SAFETY: it is this process's child; no status is asked for.
        assert_eq!(unsafe { libc::waitpid(child, ptr::null_mut(), 0) }, child);
        fill(&mut writer);
        for (_, _, calls) in &after {
            calls.until(1);
        }
        let mut reader = &reader;
        assert_eq!(reader.read(&mut [0; 64]).unwrap(), 1);
    }
}

/// The program has closed the copy of one wait, and that of the next one gets its number while the first is looked at.
#[test]
fn a_look_at_a_wait_whose_copy_was_closed_meets_no_wait_that_begins_at_its_number() {
    let _alone = alone();
    let (idle, _writer) = pipe().unwrap();
    let _keeps = watched(&idle, Events::IN);
    let mut first = None;
    let copy = opened_by(|| first = Some(watched(&idle, Events::IN)));
    drop(first);
    let (reader, mut writer) = pipe().unwrap();
    let looked_at = RwLock::new(None);
    let is_over = AtomicBool::new(false);
    let begins = || {
        let (lost, _writer) = pipe().unwrap();
        *looked_at.write().unwrap() = Some(watched(&lost, Events::IN).0);
        close_all(&copy);
        let calls = Arc::new(Calls::default());
        let counted = calls.clone();
        let second = Watch::new(&reader, Events::IN, move |events| counted.call(events))?;
        *looked_at.write().unwrap() = None;
        fill(&mut writer);
        calls.until(1);
        let mut reader = &reader;
        assert_eq!(reader.read(&mut [0; 64]).unwrap(), 1);
        drop(second);
        Ok::<(), Errno>(())
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                match &*looked_at.read().unwrap() {
                    Some(watch) => drop::<Events>(Watch::ready(watch)),
                    None => thread::yield_now(),
                }
            }
        });
        let end = Instant::now() + Duration::from_secs(10);
        let rounds = std::iter::repeat_with(begins).enumerate();
        let begun = rounds
            .take_while(|(round, _)| *round < 2000 || *round < 30_000 && Instant::now() < end)
            .try_for_each(|(_, begun)| begun);
        is_over.store(true, Ordering::Relaxed);
        begun.unwrap();
    });
}

/// Sets the limit of open files, and returns the one before.
fn limit_of_files(limit: Option<libc::rlim_t>) -> libc::rlimit {
    let mut before = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structures are live.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before);
        let now = libc::rlimit {
            rlim_cur: limit.unwrap_or(before.rlim_max).min(before.rlim_max),
            ..before
        };
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const now), 0);
    }
    before
}

#[test]
fn a_thousand_registrations_all_wake_and_leave_nothing() {
    let _alone = alone();
    limit_of_files(None);
    let (idle, _writer) = pipe().unwrap();
    let _keeps = watched(&idle, Events::IN);
    let before = open_in(ALL).count();
    let (reader, mut writer) = pipe().unwrap();
    let mut sets = Vec::new();
    let mut waits = Vec::new();
    for at in 0..1000 {
        if at % 4 == 0 {
            let set = Epoll::new().unwrap();
            set.add(&reader, IN).unwrap();
            waits.push(Box::pin(Readiness::new(&set, Events::IN).unwrap()));
            sets.push(set);
        } else {
            waits.push(Box::pin(Readiness::new(&reader, Events::IN).unwrap()));
        }
    }
    let tasks: Vec<Arc<Calls>> = waits.iter().map(|_| Arc::default()).collect();
    for (wait, task) in waits.iter_mut().zip(&tasks) {
        assert!(polled(wait.as_mut(), task).is_pending());
    }
    fill(&mut writer);
    for task in &tasks {
        task.until(1);
    }
    for (wait, task) in waits.iter_mut().zip(&tasks) {
        assert_eq!(polled(wait.as_mut(), task), Poll::Ready(Events::IN));
    }
    drop((waits, sets, reader, writer));
    // Seals of the sets stay.
    let left = open_in(ALL).count() - before;
    assert!(left <= 1000 / 4 / 8 + 2, "{left} fds are left");
}

#[test]
fn without_an_fd_a_registration_fails_and_leaves_nothing() {
    let _alone = alone();
    let (reader, mut writer) = pipe().unwrap();
    let set = Epoll::new().unwrap();
    let (idle, _writer) = pipe().unwrap();
    let _keeps = watched(&idle, Events::IN);
    let before: Vec<_> = open_in(ALL).collect();
    in_child(|| {
        limit_of_files(Some(3));
        for refused in [
            Watch::new(&reader, Events::IN, |_| ()).err(),
            Readiness::new(&reader, Events::IN).err(),
            set.add(&reader, IN).err(),
        ] {
            assert_eq!(refused, Some(Errno::MFILE));
        }
    });
    let all = limit_of_files(Some(3));
    let refused = Watch::new(&reader, Events::IN, |_| ()).err();
    limit_of_files(Some(all.rlim_cur));
    assert_eq!(refused, Some(Errno::MFILE));
    assert!(open_in(ALL).eq(before));
    let (_watch, _, calls) = watched(&reader, Events::IN);
    fill(&mut writer);
    calls.until(1);
}

/// The next ADD uses all that a refused one has made for a set, and it goes with the set.
#[test]
fn refused_adds_leave_no_more_than_one_does() {
    let _alone = alone();
    let (idle, _writer) = pipe().unwrap();
    let _keeps = watched(&idle, Events::IN);
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let before: Vec<_> = open_in(ALL).collect();
    let [set, above] = [(); 2].map(|()| Epoll::new().unwrap());
    above.add(&set, IN).unwrap();
    let watches = [watched(&set, Events::IN), watched(&above, Events::IN)];
    let shown = set.readiness_fd().unwrap();
    let refuse = || assert_eq!(set.add(&file, IN), Err(Errno::PERM));
    refuse();
    let after_one: Vec<_> = open_in(ALL).collect();
    (0..100).for_each(|_| refuse());
    assert_eq!(open_in(ALL).collect::<Vec<_>>(), after_one);
    drop((watches, set, above, shown));
    // A seal may stay.
    let left = open_in(ALL).count() - before.len();
    assert!(left <= 1, "{left} fds are left");
}

/// Without room for another thread.
#[test]
fn without_a_thread_a_registration_fails_and_the_next_one_works() {
    let _alone = alone();
    let (reader, mut writer) = pipe().unwrap();
    in_child(|| {
        // As root has no such limit, the child becomes another user.
        let limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 4000,
        };
        // SAFETY: the structure is live.
        unsafe {
            libc::alarm(60);
            libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit);
            if libc::getuid() == 0 && libc::setuid(65_534) != 0 {
                return;
            }
        }
        let refused = Watch::new(&reader, Events::IN, |_| ()).err();
        assert_eq!(refused, Some(Errno::AGAIN));
        // SAFETY: as above.
        unsafe {
            let limit = libc::rlimit {
                rlim_cur: 4000,
                ..limit
            };
            libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit);
        }
        let (_watch, _, calls) = watched(&reader, Events::IN);
        fill(&mut writer);
        calls.until(1);
    });
}

/// Returns the signals that the attendant blocks, if it is there.
fn blocked_by_the_attendant() -> Option<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks.flatten().find_map(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let line = |name| status.lines().find_map(|line| line.strip_prefix(name));
        let is_attendant = line("Name:")?.trim() == "upoll-attendant";
        let blocked = line("SigBlk:")?.trim();
        is_attendant.then(|| u64::from_str_radix(blocked, 16).unwrap())
    })
}

#[test]
fn the_attendant_blocks_signals_but_those_of_faults_and_ends_when_it_is_of_no_use() {
    let _alone = alone();
    let (reader, mut writer) = pipe().unwrap();
    for _ in 0..2 {
        let (watch, _, calls) = watched(&reader, Events::IN);
        fill(&mut writer);
        calls.until(1);
        let blocked = blocked_by_the_attendant().unwrap();
        let is_blocked = |signal: i32| blocked >> (signal - 1) & 1 == 1;
        for open in [
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGILL,
            libc::SIGFPE,
            libc::SIGTRAP,
            libc::SIGABRT,
        ] {
            assert!(!is_blocked(open), "{open}");
        }
        for closed in [libc::SIGINT, libc::SIGTERM, libc::SIGALRM, libc::SIGUSR1] {
            assert!(is_blocked(closed), "{closed}");
        }
        drop(watch);
        let begin = Instant::now();
        while blocked_by_the_attendant().is_some() {
            assert!(begin.elapsed() < LONG);
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn the_end_of_a_set_calls_its_callbacks_and_ends_its_registration() {
    let _alone = alone();
    let (reader, mut writer) = pipe().unwrap();
    let set = Epoll::new().unwrap();
    set.add(&reader, IN).unwrap();
    let (watch, _, calls) = watched(&set, Events::IN);
    drop(set);
    calls.until(1);
    assert_eq!(watch.ready(), Events::HUP);
    fill(&mut writer);
    thread::sleep(Duration::from_millis(50));
    assert_eq!(calls.count(), 1);
}

#[test]
fn a_kernel_set_of_the_program_is_awaited_as_any_fd() {
    let _alone = alone();
    // SAFETY: the call takes no pointers.
    let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    // SAFETY: it was just opened, and nobody else owns it.
    let set = unsafe { OwnedFd::from_raw_fd(set) };
    let (one, other) = UnixStream::pair().unwrap();
    let mut interest = libc::epoll_event { events: 1, u64: 0 };
    // SAFETY: the event is live.
    let added = unsafe {
        libc::epoll_ctl(
            set.as_raw_fd(),
            libc::EPOLL_CTL_ADD,
            one.as_raw_fd(),
            &raw mut interest,
        )
    };
    assert_eq!(added, 0);
    let ready = Readiness::new(&set.as_fd(), Events::IN).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| (&other).write_all(b"x").unwrap());
        assert_eq!(block_on(ready), Events::IN);
    });
}
