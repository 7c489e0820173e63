//! Workers of rotating sets: they come, leave, are busy and are chosen while events come.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use fastrand::Rng;
use upoll::{CreateFlags, Epoll, Event, Events, Timeout, Watch};

use super::super::channel::{Channel, Kind};
use super::{LEVEL, Maker, Race, harvest, race, send};

pub(super) const RACES: &[Maker] = &[two_workers, two_workers, two_sources, busy, flagged];

/// A rotating set over a channel, and the sets of its workers.
struct Workers {
    channel: Channel,
    rotating: Epoll,
    sets: Vec<Epoll>,
    /// Units that the workers have received.
    received: AtomicUsize,
}

impl Workers {
    fn new(workers: usize, rng: &mut Rng) -> Result<Self> {
        let kinds = [
            Kind::Semaphore,
            Kind::Counter,
            Kind::Pipe,
            Kind::Mailbox,
            Kind::KernelCounter,
        ];
        let channel = Channel::new(kinds[rng.usize(..kinds.len())])?;
        let rotating = Epoll::create(CreateFlags::ROTATE)?;
        rotating.add(&channel, LEVEL)?;
        let mut sets = Vec::new();
        for _ in 0..workers {
            let set = Epoll::new()?;
            set.add(&rotating, LEVEL)?;
            sets.push(set);
        }
        Ok(Workers {
            channel,
            rotating,
            sets,
            received: AtomicUsize::new(0),
        })
    }

    fn wait(&self, worker: usize) -> Result<usize> {
        Ok(self.sets[worker].wait(&mut [Event::default(); 2], Timeout::NEVER)?)
    }

    /// Receives units until both workers have received two.
    fn work(&self, worker: usize, rng: &mut Rng) -> Result<usize> {
        let mut mine = 0;
        // Two of the units end the race; whoever takes the last one sends one for the other.
        loop {
            if self.received.load(Ordering::SeqCst) >= 2 {
                return Ok(mine);
            }
            self.wait(worker)?;
            super::pause(rng);
            let units = self.channel.receive() as usize;
            mine += units;
            let before = self.received.fetch_add(units, Ordering::SeqCst);
            if before < 2 && before + units >= 2 {
                self.channel.send(1);
                return Ok(mine);
            }
        }
    }
}

/// Two workers wait until they have taken two units, which may come at once.
fn two_workers(rng: &mut Rng) -> Result<Race> {
    let workers = Workers::new(2, rng)?;
    let name = format!("two workers wait for {:?}", workers.channel);
    Ok(race(name, workers)
        .call(|workers, rng| {
            if rng.bool() {
                workers.channel.disturb();
            }
            workers.channel.send(1);
            super::pause(rng);
            workers.channel.send(1);
            Ok(0)
        })
        .call(|workers, rng| workers.work(0, rng))
        .call(|workers, rng| workers.work(1, rng))
        .settle(|workers, _| {
            workers.channel.drain();
            workers.received.store(0, Ordering::SeqCst);
            Ok(())
        }))
}

/// A set below has a member of the kernel's and one of the library's, and each of them gets a unit. Each of two workers
/// takes one, the kernel's first.
fn two_sources(rng: &mut Rng) -> Result<Race> {
    let kernel = Channel::new(Kind::KernelCounter)?;
    let own = Channel::new(Kind::Semaphore)?;
    let (rotating, below) = (Epoll::create(CreateFlags::ROTATE)?, Epoll::new()?);
    below.add(&kernel, LEVEL)?;
    below.add(&own, LEVEL)?;
    rotating.add(&below, LEVEL)?;
    let workers = [Epoll::new()?, Epoll::new()?];
    for worker in &workers {
        worker.add(&rotating, LEVEL)?;
    }
    let work = |worker: &Epoll, [own, kernel]: &[Channel; 2]| {
        loop {
            worker.wait(&mut [Event::default()], Timeout::NEVER)?;
            if kernel.receive() == 1 || own.receive() == 1 {
                return Ok(1);
            }
        }
    };
    let first = rng.usize(..2);
    let name = "two workers wait for a kernel eventfd and an eventfd";
    Ok(race(name, ([own, kernel], workers))
        .call(move |(channels, _), rng| {
            channels[first].send(1);
            super::pause(rng);
            channels[1 - first].send(1);
            Ok(0)
        })
        .call(move |(channels, workers), _| work(&workers[0], channels))
        .call(move |(channels, workers), _| work(&workers[1], channels))
        .settle(move |_, _| {
            let _open = (&below, &rotating);
            Ok(())
        }))
}

/// A worker looks in vain for an event that is gone, and is busy then, or leaves: the next event is with the worker
/// that waits.
fn busy(rng: &mut Rng) -> Result<Race> {
    let workers = Workers::new(2, rng)?;
    let leaves = rng.bool();
    let name = format!(
        "a worker of {:?} is busy, leaves: {leaves}",
        workers.channel
    );
    let begin = |workers: &Workers| {
        let waiting = Watch::new(&workers.sets[0], Events::IN, |_| {});
        // The first worker is chosen, for a unit that another thread takes.
        workers.channel.disturb();
        drop(waiting);
    };
    begin(&workers);
    Ok(race(name, workers)
        .call(|workers, _| send(&workers.channel))
        .call(move |workers, _| {
            let found = harvest(&workers.sets[0])?;
            if leaves {
                workers.sets[0].delete(&workers.rotating)?;
            }
            Ok(found)
        })
        .call(|workers, _| workers.wait(1))
        .settle(move |workers, found| {
            ensure!(found[2] == 1, "no event for the worker that waits");
            workers.channel.drain();
            if leaves {
                workers.sets[0].add(&workers.rotating, LEVEL)?;
            }
            harvest(&workers.sets[0])?;
            begin(workers);
            Ok(())
        }))
}

/// The only worker looks for what is gone, then waits, while the next event comes.
fn flagged(rng: &mut Rng) -> Result<Race> {
    let workers = Workers::new(1, rng)?;
    let name = format!("a worker of {:?} comes back", workers.channel);
    workers.channel.disturb();
    Ok(race(name, workers)
        .call(|workers, _| send(&workers.channel))
        .call(|workers, rng| {
            if rng.bool() && harvest(&workers.sets[0])? == 1 {
                return Ok(1);
            }
            workers.wait(0)
        })
        .settle(|workers, found| {
            ensure!(found[1] == 1, "no event");
            workers.channel.drain();
            // The worker gets a recheck flag, and no event.
            workers.channel.disturb();
            Ok(())
        }))
}
