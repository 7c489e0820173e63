//! Sets: scans, changes, closes and nesting against writes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Result, ensure};
use fastrand::Rng;
use upoll::{
    CreateFlags, Epoll, Errno, Event, EventFd, Events, File, PollTable, Pollable, Timeout,
    WaitQueue, Watch,
};

use super::super::channel::{Channel, Kind};
use super::{EDGE, LEVEL, Maker, Race, Watched, any_channel, harvest, lock, race, send};

pub(super) const RACES: &[Maker] = &[
    scan,
    scan,
    lone_edge,
    harvest_of_a_writer,
    new_interest,
    armed_anew,
    nested_add,
    each_other,
    maximum,
    exclusive,
    order,
    last_close,
    contended_lock,
    shared_writes,
];

/// Scans of a queued item that may be idle, against a write: the next scan finds it.
fn scan(rng: &mut Rng) -> Result<Race> {
    let watched = Watched::new(any_channel(rng)?, LEVEL)?;
    let name = format!("a scan beside a write to {:?}", watched.channel);
    Ok(race(name, watched)
        .call(|watched, _| send(&watched.channel))
        .calls(rng.usize(1..=2), |watched, _| watched.harvest())
        .settle(|watched, _| {
            ensure!(watched.harvest()? == 1, "a ready member is not found");
            watched.channel.drain();
            // Queued, and idle at the next scan.
            ensure!(watched.harvest()? == 0, "an idle member is found");
            watched.channel.disturb();
            Ok(())
        }))
}

/// A scan that has taken the only arrival off, and finds it idle, against a writer that looks.
fn lone_edge(rng: &mut Rng) -> Result<Race> {
    let watched = Watched::new(any_channel(rng)?, EDGE)?;
    watched.channel.disturb();
    let name = format!("two scans for one edge of {:?}", watched.channel);
    Ok(race(name, watched)
        .call(|watched, _| {
            watched.channel.send(1);
            let found = watched.harvest()?;
            watched.channel.drain();
            Ok(found)
        })
        .call(|watched, _| watched.harvest())
        .settle(|watched, found| {
            ensure!(found.iter().sum::<usize>() > 0, "no thread finds the edge");
            watched.harvest()?;
            watched.channel.disturb();
            Ok(())
        }))
}

/// A writer harvests what it wrote, while the interest is set anew.
fn harvest_of_a_writer(rng: &mut Rng) -> Result<Race> {
    let watched = Watched::new(any_channel(rng)?, LEVEL)?;
    let name = format!("MOD beside a write to {:?}", watched.channel);
    Ok(race(name, watched)
        .call(|watched, _| {
            watched.channel.send(1);
            watched.harvest()
        })
        .call(|watched, _| watched.modify(LEVEL))
        .settle(|watched, found| {
            ensure!(found[0] == 1, "a writer does not find what it wrote");
            watched.channel.drain();
            watched.harvest()?;
            Ok(())
        }))
}

/// MOD to an interest in input against a write.
fn new_interest(rng: &mut Rng) -> Result<Race> {
    const BEFORE: Event = Event::new(Events::PRI, 1);
    let watched = Watched::new(any_channel(rng)?, BEFORE)?;
    let interest = [LEVEL, EDGE][rng.usize(..2)];
    let name = format!("a new interest in {:?}", watched.channel);
    Ok(race(name, watched)
        .call(|watched, _| send(&watched.channel))
        .call(move |watched, _| watched.modify(interest))
        .settle(|watched, _| {
            ensure!(watched.harvest()? == 1, "an event is lost beside MOD");
            watched.channel.drain();
            watched.modify(BEFORE)?;
            watched.harvest()?;
            Ok(())
        }))
}

/// MOD that arms a oneshot interest anew against a write.
fn armed_anew(rng: &mut Rng) -> Result<Race> {
    let edge = [Events::empty(), Events::ET][rng.usize(..2)];
    let once = Event::new(Events::IN | Events::ONESHOT | edge, 1);
    let watched = Watched::new(any_channel(rng)?, once)?;
    watched.channel.send(1);
    watched.harvest()?;
    watched.channel.drain();
    let name = format!("{:?} is armed anew", watched.channel);
    Ok(race(name, watched)
        .call(|watched, _| send(&watched.channel))
        .call(move |watched, _| watched.modify(once))
        .settle(|watched, _| {
            ensure!(watched.harvest()? == 1, "an event is lost beside MOD");
            watched.channel.drain();
            Ok(())
        }))
}

/// A set is added to another one while a member of its own becomes ready.
fn nested_add(rng: &mut Rng) -> Result<Race> {
    let inner = Watched::new(any_channel(rng)?, LEVEL)?;
    let interest = [LEVEL, EDGE][rng.usize(..2)];
    let name = format!("a set of {:?} is added", inner.channel);
    Ok(race(name, (inner, Epoll::new()?))
        .call(|(inner, _), _| send(&inner.channel))
        .call(move |(inner, outer), _| {
            outer.add(&inner.set, interest)?;
            Ok(0)
        })
        .settle(|(inner, outer), _| {
            ensure!(harvest(outer)? == 1, "a nested set is not found ready");
            outer.delete(&inner.set)?;
            inner.channel.drain();
            inner.harvest()?;
            Ok(())
        }))
}

/// Two sets are added to each other.
fn each_other(_: &mut Rng) -> Result<Race> {
    let add = |outer: &Epoll, inner: &Epoll| match outer.add(inner, LEVEL) {
        Ok(()) => Ok(1),
        Err(Errno::LOOP) => Ok(0),
        Err(error) => Err(error.into()),
    };
    let sets = (Epoll::new()?, Epoll::new()?);
    Ok(race("two sets are added to each other", sets)
        .call(move |(one, other), _| add(one, other))
        .call(move |(one, other), _| add(other, one))
        .settle(|(one, other), added| {
            ensure!(added[0] + added[1] == 1, "one of the two must be refused");
            match added[0] {
                1 => one.delete(other)?,
                _ => other.delete(one)?,
            }
            Ok(())
        }))
}

/// A maximum is set while the counter is written to.
fn maximum(_: &mut Rng) -> Result<Race> {
    Ok(race("a maximum beside a write", EventFd::new(1)?)
        .call(|counter, _| Ok(usize::from(counter.try_write(2).is_ok())))
        .call(|counter, _| Ok(usize::from(counter.set_maximum(3).is_ok())))
        .settle(|counter, done| {
            ensure!(
                done[0] + done[1] == 1,
                "a write of 2 and a maximum of 3 for a count of 1"
            );
            counter.set_maximum(u64::MAX)?;
            let count = counter.try_read()?;
            ensure!(count == 1 + 2 * done[0] as u64, "the count is {count}");
            counter.try_write(1)?;
            Ok(())
        }))
}

/// Two sets that watch a channel exclusively, or in turn.
struct Sharing {
    channel: Channel,
    rotating: Epoll,
    rotates: bool,
    leaving: Epoll,
    staying: Epoll,
}

impl Sharing {
    fn join(&self, set: &Epoll) -> Result<()> {
        match self.rotates {
            true => set.add(&self.rotating, LEVEL)?,
            false => set.add(&self.channel, Event::new(Events::IN | Events::EXCLUSIVE, 1))?,
        }
        Ok(())
    }

    fn leave(&self) -> Result<()> {
        match self.rotates {
            true => self.leaving.delete(&self.rotating)?,
            false => self.leaving.delete(&self.channel)?,
        }
        Ok(())
    }
}

/// Of two sets that watch a channel exclusively, or in turn, one leaves while a wake comes.
fn exclusive(rng: &mut Rng) -> Result<Race> {
    let sharing = Sharing {
        channel: Channel::new(Kind::Semaphore)?,
        rotating: Epoll::create(CreateFlags::ROTATE)?,
        rotates: rng.bool(),
        leaving: Epoll::new()?,
        staying: Epoll::new()?,
    };
    sharing.rotating.add(&sharing.channel, LEVEL)?;
    sharing.join(&sharing.leaving)?;
    sharing.join(&sharing.staying)?;
    let waits_too = rng.bool();
    let name = format!("one of two sets leaves, rotating: {}", sharing.rotates);
    Ok(race(name, sharing)
        .call(|sharing, _| send(&sharing.channel))
        .call(move |sharing, _| {
            let _watch = match waits_too {
                true => Some(Watch::new(&sharing.leaving, Events::IN, |_| {})?),
                false => None,
            };
            sharing.leave()?;
            Ok(0)
        })
        .call(|sharing, _| {
            let mut events = [Event::default(); 2];
            Ok(sharing.staying.wait(&mut events, Timeout::NEVER)?)
        })
        .settle(|sharing, found| {
            ensure!(found[2] == 1, "no event for the set that stays");
            sharing.channel.drain();
            sharing.join(&sharing.leaving)
        }))
}

/// Two channels in a set, and the data of the events that were reported.
struct Reported {
    channels: [Channel; 2],
    set: Epoll,
    data: Mutex<Vec<u64>>,
}

impl Reported {
    fn take(&self) -> Result<usize> {
        let mut events = [Event::default(); 2];
        let found = self.set.try_wait(&mut events)?;
        let data = events[..found].iter().map(|event| event.data());
        lock(&self.data).extend(data);
        Ok(found)
    }
}

/// Two channels become ready one after the other while scans run: that is how they are reported.
fn order(rng: &mut Rng) -> Result<Race> {
    let reported = Reported {
        channels: [any_channel(rng)?, any_channel(rng)?],
        set: Epoll::new()?,
        data: Mutex::default(),
    };
    for (data, channel) in (0..).zip(&reported.channels) {
        let interest = Event::new(Events::IN | Events::ET, data);
        reported.set.add(channel, interest)?;
    }
    Ok(race("two arrivals", reported)
        .call(|reported, _| {
            for channel in &reported.channels {
                channel.send(1);
            }
            Ok(0)
        })
        .call(|reported, _| reported.take())
        .settle(|reported, _| {
            reported.take()?;
            let data = std::mem::take(&mut *lock(&reported.data));
            ensure!(data == [0, 1], "two events are reported as {data:?}");
            for channel in &reported.channels {
                channel.drain();
            }
            Ok(())
        }))
}

/// An object that counts how often it is released and dropped.
struct Probe {
    queue: WaitQueue,
    released: Arc<AtomicUsize>,
    dropped: Arc<AtomicUsize>,
}

impl Pollable for Probe {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        Events::IN
    }

    fn release(&self) {
        self.released.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

/// A file and its set, which threads close, perhaps after a DEL.
#[derive(Default)]
struct Closed {
    file: Mutex<Option<File<Probe>>>,
    set: Mutex<Option<Epoll>>,
    both: Mutex<Option<(File<Probe>, Epoll)>>,
    released: Arc<AtomicUsize>,
    dropped: Arc<AtomicUsize>,
}

impl Closed {
    fn prepare(&self, deletes: bool) -> Result<()> {
        let file = File::new(Probe {
            queue: WaitQueue::new(),
            released: self.released.clone(),
            dropped: self.dropped.clone(),
        });
        let set = Epoll::new()?;
        set.add(&file, LEVEL)?;
        *lock(&self.both) = deletes.then(|| (file.clone(), set.clone()));
        *lock(&self.file) = Some(file);
        *lock(&self.set) = Some(set);
        Ok(())
    }
}

/// Closes what is there, after a pause.
fn close<T>(place: &Mutex<Option<T>>, rng: &mut Rng, before: impl FnOnce(&T)) -> Result<usize> {
    let taken = lock(place).take();
    super::pause(rng);
    taken.as_ref().map(before);
    drop(taken);
    Ok(0)
}

/// A file is closed, its set is closed, and perhaps it is deleted.
fn last_close(rng: &mut Rng) -> Result<Race> {
    let deletes = rng.bool();
    let closed = Closed::default();
    closed.prepare(deletes)?;
    Ok(race("a file and its set are closed", closed)
        .call(|closed, rng| close(&closed.file, rng, |_| {}))
        .call(|closed, rng| close(&closed.set, rng, |_| {}))
        .calls(usize::from(deletes), |closed, rng| {
            close(&closed.both, rng, |(file, set)| {
                let _ = set.delete(file);
            })
        })
        .settle(move |closed, _| {
            for count in [&closed.released, &closed.dropped] {
                let times = count.swap(0, Ordering::SeqCst);
                ensure!(times == 1, "an object is released or dropped {times} times");
            }
            closed.prepare(deletes)
        }))
}

/// Three threads want the lock of a set that each of them holds for long.
fn contended_lock(_: &mut Rng) -> Result<Race> {
    let counters = (0..300)
        .map(|_| EventFd::new(1))
        .collect::<Result<Vec<_>, _>>()?;
    let set = Epoll::new()?;
    for counter in &counters {
        set.add(counter, LEVEL)?;
    }
    Ok(race("three threads scan one set", (set, counters))
        .calls(3, |(set, counters), _| {
            let mut events = [Event::default(); 300];
            for counter in &counters[..4] {
                set.try_wait(&mut events)?;
                set.modify(counter, LEVEL)?;
            }
            Ok(0)
        })
        .settle(|_, _| Ok(())))
}

/// Three threads write to an eventfd that processes share, and one of them may read.
fn shared_writes(rng: &mut Rng) -> Result<Race> {
    let reads = rng.bool();
    let name = "three threads write to a shared eventfd";
    Ok(race(name, Channel::new(Kind::Shared)?)
        .call(move |channel, _| {
            let mut received = 0;
            for _ in 0..20 {
                channel.send(1);
                if reads {
                    received += channel.receive() as usize;
                }
            }
            Ok(received)
        })
        .calls(2, |channel, _| {
            for _ in 0..20 {
                channel.send(1);
            }
            Ok(0)
        })
        .settle(|channel, received| {
            let units = received[0] + channel.drain() as usize;
            ensure!(units == 60, "{units} units of 60");
            Ok(())
        }))
}
