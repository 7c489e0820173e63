//! Wait queues: wakes that find one locked, and callbacks that leave it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Result, ensure};
use fastrand::Rng;
use upoll::{
    CreateFlags, Epoll, EventFd, Events, File, PollTable, Pollable, Source, WaitQueue, Watch,
};

use super::{Draft, LEVEL, Maker, Race, lock, pause, race, write};

pub(super) const RACES: &[Maker] = &[two_wakes, left_wake, left_wakes, dropped_callbacks];

/// A rotating set over a source, and its two workers, each with a callback that counts.
struct TwoWorkers {
    told: [Arc<AtomicUsize>; 2],
    _watches: [Watch; 2],
    _sets: [Epoll; 3],
}

impl TwoWorkers {
    fn new(source: &impl Source) -> Result<Self> {
        let rotating = Epoll::create(CreateFlags::ROTATE)?;
        rotating.add(source, LEVEL)?;
        let told = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let worker = |told: &Arc<AtomicUsize>| -> Result<(Epoll, Watch)> {
            let set = Epoll::new()?;
            set.add(&rotating, LEVEL)?;
            let told = told.clone();
            let count = move |_| {
                told.fetch_add(1, Ordering::SeqCst);
            };
            let (watch, _) = Watch::new(&set, Events::IN, count)?;
            Ok((set, watch))
        };
        let ((first, one), (second, other)) = (worker(&told[0])?, worker(&told[1])?);
        Ok(TwoWorkers {
            told,
            _watches: [one, other],
            _sets: [rotating, first, second],
        })
    }

    /// Checks that both have learnt of an event.
    fn check(&self) -> Result<()> {
        let times = self.told.each_ref();
        let times = times.map(|told| told.load(Ordering::SeqCst));
        ensure!(
            times[0] > 0 && times[1] > 0,
            "two events are told {times:?} times"
        );
        Ok(())
    }
}

/// Two wakes while another thread comes and goes in the same queue: two workers of a rotating set learn of them.
fn two_wakes(_: &mut Rng) -> Result<Race> {
    let make = || -> Result<_> {
        let counter = EventFd::new(0)?;
        let workers = TwoWorkers::new(&counter)?;
        Ok((counter, workers))
    };
    Ok(race("two wakes for two workers", Mutex::new(make()?))
        .calls(2, |objects, rng| {
            let counter = lock(objects).0.clone();
            write(&counter, rng)
        })
        .call(|objects, rng| {
            let counter = lock(objects).0.clone();
            for _ in 0..rng.usize(1..4) {
                drop(Watch::new(&counter, Events::IN, |_| {})?);
            }
            Ok(0)
        })
        .settle(move |objects, _| {
            let mut objects = lock(objects);
            objects.1.check()?;
            *objects = make()?;
            Ok(())
        }))
}

/// An object with so many callbacks that a wake holds the lock of the queue for long. They want other events than
/// the workers.
struct Crowded {
    is_ready: AtomicBool,
    queue: WaitQueue,
}

const CROWD: usize = 2_000;

/// A crowded object, its callbacks, and what else a race has.
type Crowd<T> = (File<Crowded>, Vec<Watch>, T);

impl Pollable for Crowded {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        match self.is_ready.load(Ordering::Acquire) {
            true => Events::IN,
            false => Events::empty(),
        }
    }
}

/// Begins a race in which the object is woken that often, while another wake holds the lock of the queue. `watch` makes
/// what else the race has.
fn wakes_beside_a_long_one<T: Send + Sync + 'static>(
    name: &str,
    wakes: usize,
    watch: impl FnOnce(&File<Crowded>) -> Result<T>,
) -> Result<Draft<Crowd<T>>> {
    let object = File::new(Crowded {
        is_ready: AtomicBool::new(false),
        queue: WaitQueue::new(),
    });
    let callback = |_| Ok(Watch::new(&object, Events::PRI, |_| {})?.0);
    let crowd = (0..CROWD).map(callback).collect::<Result<_>>()?;
    let watching = watch(&object)?;
    Ok(race(name, (object, crowd, watching))
        .call(move |(object, ..), rng| {
            for _ in 0..wakes {
                pause(rng);
                object.is_ready.store(true, Ordering::Release);
                object.queue.wake(Events::IN);
            }
            Ok(0)
        })
        .call(|(object, ..), _| Ok(object.queue.wake(Events::RDBAND))))
}

/// A wake finds the lock of a queue held, perhaps for its last instructions: a callback is called.
fn left_wake(_: &mut Rng) -> Result<Race> {
    let told = Arc::new(AtomicUsize::new(0));
    let heard = told.clone();
    let count = move |_| {
        heard.fetch_add(1, Ordering::SeqCst);
    };
    let watch = |object: &File<Crowded>| Ok(Watch::new(object, Events::IN, count)?.0);
    let draft = wakes_beside_a_long_one("a wake beside a long one", 1, watch)?;
    Ok(draft.settle(move |_, _| {
        let times = told.swap(0, Ordering::SeqCst);
        ensure!(times > 0, "a callback is not called");
        Ok(())
    }))
}

/// Two wakes find the lock of a queue held: two workers learn of them.
fn left_wakes(_: &mut Rng) -> Result<Race> {
    let workers = |object: &File<Crowded>| Ok(Mutex::new(TwoWorkers::new(object)?));
    let draft = wakes_beside_a_long_one("two wakes beside a long one", 2, workers)?;
    Ok(draft.settle(|(object, _, workers), _| {
        let mut workers = lock(workers);
        workers.check()?;
        object.is_ready.store(false, Ordering::Release);
        *workers = TwoWorkers::new(object)?;
        Ok(())
    }))
}

/// A callback, and whether it was dropped.
type Callback = (Watch, Arc<AtomicBool>);

/// Callbacks are dropped while a write calls them: none is called after its drop.
fn dropped_callbacks(_: &mut Rng) -> Result<Race> {
    const CALLBACKS: usize = 32;
    let is_late = Arc::new(AtomicBool::new(false));
    let made_late = is_late.clone();
    let make = move || -> Result<(EventFd, Vec<Callback>)> {
        let counter = EventFd::new(0)?;
        let callback = |_| -> Result<Callback> {
            let is_dropped = Arc::new(AtomicBool::new(false));
            let (seen, is_late) = (is_dropped.clone(), made_late.clone());
            let check = move |_| {
                if seen.load(Ordering::SeqCst) {
                    is_late.store(true, Ordering::SeqCst);
                }
            };
            let (watch, _) = Watch::new(&counter, Events::IN, check)?;
            Ok((watch, is_dropped))
        };
        let callbacks = (0..CALLBACKS).map(callback).collect::<Result<_>>()?;
        Ok((counter, callbacks))
    };
    let name = "callbacks are dropped beside a write";
    Ok(race(name, Mutex::new(make()?))
        .call(|objects, rng| {
            let counter = lock(objects).0.clone();
            write(&counter, rng)
        })
        .call(|objects, rng| {
            let callbacks = std::mem::take(&mut lock(objects).1);
            pause(rng);
            for (watch, is_dropped) in callbacks.into_iter().rev() {
                drop(watch);
                is_dropped.store(true, Ordering::SeqCst);
            }
            Ok(0)
        })
        .settle(move |objects, _| {
            let is_late = is_late.load(Ordering::SeqCst);
            ensure!(!is_late, "a callback is called after its watch was dropped");
            *lock(objects) = make()?;
            Ok(())
        }))
}
