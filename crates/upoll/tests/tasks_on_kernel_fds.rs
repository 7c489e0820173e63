//! Callbacks and tasks that wait for kernel fds, and for sets that have some.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod callbacks;
mod chain;
mod open_fds;
mod threads;

use std::io::{Read, Write, pipe};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread::{self};
use std::time::{Duration, Instant};

use callbacks::{Calls, IN, LONG, alone, block_on, drain, fill, polled, watched};
use chain::chain;
use open_fds::{ALL, open_in};
use threads::in_child;
use upoll::{
    CreateFlags, Descriptor, Epoll, Errno, Event, EventFd, EventFdFlags, Events, Op, Readiness,
    Source, Watch,
};

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
    calls.until_events(Events::RDHUP | Events::HUP);
}

#[test]
fn one_future_waits_again_and_again_with_one_registration() {
    let _alone = alone();
    let (mut reader, mut writer) = pipe().unwrap();
    in_child(|| {
        let mut ready = pin!(Readiness::new(&reader, Events::IN).unwrap());
        let before: Vec<_> = open_in(ALL).collect();
        for _ in 0..500 {
            thread::scope(|scope| {
                scope.spawn(|| fill(&mut writer));
                assert_eq!(block_on(ready.as_mut()), Events::IN);
            });
            drain(&mut reader);
        }
        assert_eq!(open_in(ALL).collect::<Vec<_>>(), before);
        assert_eq!(
            Readiness::exclusive(&reader, Events::IN).err(),
            Some(Errno::PERM)
        );
    });
    let mut ready = pin!(Readiness::new(&reader, Events::IN).unwrap());
    drop(writer);
    assert_eq!(block_on(ready.as_mut()), Events::HUP);
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
    let fd = reader.as_raw_fd();
    drop(reader);
    let (another, mut its_writer) = pipe().unwrap();
    let another = if another.as_raw_fd() == fd {
        another
    } else {
        // SAFETY: the fd is free.
        assert_eq!(unsafe { libc::dup2(another.as_raw_fd(), fd) }, fd);
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
            let wakeups = task.count();
            match polled(wait.as_mut(), &task) {
                Poll::Ready(found) => break found.unwrap(),
                Poll::Pending => task.until(wakeups + 1),
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
fn members_that_a_set_adopts_wake_callbacks_that_were_there_before() {
    let _alone = alone();
    let (reader, mut writer) = pipe().unwrap();
    // SAFETY: the flags are none, and the fd is new.
    let kernel_set = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
    let mut interest = libc::epoll_event {
        events: (libc::EPOLLIN | libc::EPOLLET).cast_unsigned(),
        u64: 0,
    };
    let (set, fd) = (kernel_set.as_raw_fd(), reader.as_raw_fd());
    // SAFETY: the event is live.
    let added = unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut interest) };
    assert_eq!(added, 0);
    let adopts = Epoll::new().unwrap();
    let (_watch, _, calls) = watched(&adopts, Events::IN);
    adopts.adopt_kernel_set(kernel_set.as_fd(), 1).unwrap();
    // The call itself may have run the callback.
    let count = calls.count();
    fill(&mut writer);
    calls.until(count + 1);
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
