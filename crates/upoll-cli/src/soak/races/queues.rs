//! Wait queues: wakes that find one locked, and callbacks that leave it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Result, ensure};
use fastrand::Rng;
use upoll::{
    CreateFlags, Epoll, EventFd, Events, File, PollTable, Pollable, Source, WaitQueue, Watch,
};

use super::{Call, LEVEL, Maker, Race, call, lock, writes};

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
    let world = Arc::new(Mutex::new(make()?));
    let counter = |world: &Mutex<(EventFd, TwoWorkers)>| lock(world).0.clone();
    let write = || {
        let world = world.clone();
        writes(move || counter(&world))
    };
    let held = world.clone();
    let calls = vec![
        write(),
        write(),
        call(move |rng| {
            let counter = counter(&held);
            for _ in 0..rng.usize(1..4) {
                drop(Watch::new(&counter, Events::IN, |_| {})?);
            }
            Ok(0)
        }),
    ];
    Ok(Race::new("two wakes for two workers", calls, move |_| {
        let mut world = lock(&world);
        world.1.check()?;
        *world = make()?;
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

impl Pollable for Crowded {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        match self.is_ready.load(Ordering::Acquire) {
            true => Events::IN,
            false => Events::empty(),
        }
    }
}

fn crowded() -> Result<(File<Crowded>, Vec<Watch>)> {
    let object = File::new(Crowded {
        is_ready: AtomicBool::new(false),
        queue: WaitQueue::new(),
    });
    let callback = |_| Ok(Watch::new(&object, Events::PRI, |_| {})?.0);
    let crowd = (0..CROWD).map(callback).collect::<Result<_>>()?;
    Ok((object, crowd))
}

/// Wakes the object as often as it is told, while another wake holds the lock of the queue.
fn wakes_beside_a_long_one(object: &File<Crowded>, crowd: Vec<Watch>, wakes: usize) -> Vec<Call> {
    let (written, walked) = (object.clone(), object.clone());
    vec![
        call(move |rng| {
            for _ in 0..wakes {
                super::pause(rng);
                written.is_ready.store(true, Ordering::Release);
                written.queue.wake(Events::IN);
            }
            Ok(0)
        }),
        call(move |_| {
            let _keep = &crowd;
            Ok(walked.queue.wake(Events::RDBAND))
        }),
    ]
}

/// A wake finds the lock of a queue held, perhaps for its last instructions: a callback is called.
fn left_wake(_: &mut Rng) -> Result<Race> {
    let (object, crowd) = crowded()?;
    let told = Arc::new(AtomicUsize::new(0));
    let heard = told.clone();
    let count = move |_| {
        heard.fetch_add(1, Ordering::SeqCst);
    };
    let (watch, _) = Watch::new(&object, Events::IN, count)?;
    let calls = wakes_beside_a_long_one(&object, crowd, 1);
    Ok(Race::new("a wake beside a long one", calls, move |_| {
        let _open = (&watch, &object);
        let times = told.swap(0, Ordering::SeqCst);
        ensure!(times > 0, "a callback is not called");
        Ok(())
    }))
}

/// Two wakes find the lock of a queue held: two workers learn of them.
fn left_wakes(_: &mut Rng) -> Result<Race> {
    let (object, crowd) = crowded()?;
    let calls = wakes_beside_a_long_one(&object, crowd, 2);
    let workers = Mutex::new(TwoWorkers::new(&object)?);
    Ok(Race::new("two wakes beside a long one", calls, move |_| {
        let mut workers = lock(&workers);
        workers.check()?;
        object.is_ready.store(false, Ordering::Release);
        *workers = TwoWorkers::new(&object)?;
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
    let world = Arc::new(Mutex::new(make()?));
    let (written, left) = (world.clone(), world.clone());
    let calls: Vec<Call> = vec![
        writes(move || lock(&written).0.clone()),
        call(move |rng| {
            let callbacks = std::mem::take(&mut lock(&left).1);
            super::pause(rng);
            for (watch, is_dropped) in callbacks.into_iter().rev() {
                drop(watch);
                is_dropped.store(true, Ordering::SeqCst);
            }
            Ok(0)
        }),
    ];
    Ok(Race::new(
        "callbacks are dropped beside a write",
        calls,
        move |_| {
            let is_late = is_late.load(Ordering::SeqCst);
            ensure!(!is_late, "a callback is called after its watch was dropped");
            *lock(&world) = make()?;
            Ok(())
        },
    ))
}
