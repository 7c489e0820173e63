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
use super::{Call, EDGE, LEVEL, Maker, Race, any_channel, call, harvest, lock};

pub(super) const RACES: &[Maker] = &[
    scan,
    scan,
    lone_edge,
    look_of_a_writer,
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
    let channel = Arc::new(any_channel(rng)?);
    let set = Epoll::new()?;
    set.add(&*channel, LEVEL)?;
    let sender = channel.clone();
    let mut calls = vec![call(move |_| Ok(sender.send(1) as usize))];
    for _ in 0..rng.usize(1..=2) {
        let set = set.clone();
        calls.push(call(move |_| harvest(&set)));
    }
    Ok(Race::new(
        format!("a scan beside a write to {channel:?}"),
        calls,
        move |_| {
            ensure!(harvest(&set)? == 1, "a ready member is not found");
            channel.drain();
            // Queued, and idle at the next scan.
            ensure!(harvest(&set)? == 0, "an idle member is found");
            channel.disturb();
            Ok(())
        },
    ))
}

/// A scan that has taken the only arrival off, and finds it idle, against a writer that looks.
fn lone_edge(rng: &mut Rng) -> Result<Race> {
    let channel = Arc::new(any_channel(rng)?);
    let set = Epoll::new()?;
    set.add(&*channel, EDGE)?;
    channel.disturb();
    let (sender, writers) = (channel.clone(), set.clone());
    let other = set.clone();
    let calls = vec![
        call(move |_| {
            sender.send(1);
            let found = harvest(&writers)?;
            sender.drain();
            Ok(found)
        }),
        call(move |_| harvest(&other)),
    ];
    Ok(Race::new(
        format!("two scans for one edge of {channel:?}"),
        calls,
        move |found| {
            ensure!(found.iter().sum::<usize>() > 0, "no thread finds the edge");
            harvest(&set)?;
            channel.disturb();
            Ok(())
        },
    ))
}

/// A writer looks for what it wrote, while the interest is set anew.
fn look_of_a_writer(rng: &mut Rng) -> Result<Race> {
    let channel = Arc::new(any_channel(rng)?);
    let set = Epoll::new()?;
    set.add(&*channel, LEVEL)?;
    let (sender, writers) = (channel.clone(), set.clone());
    let (changed, changing) = (channel.clone(), set.clone());
    let calls = vec![
        call(move |_| {
            sender.send(1);
            harvest(&writers)
        }),
        call(move |_| {
            changing.modify(&*changed, LEVEL)?;
            Ok(0)
        }),
    ];
    Ok(Race::new(
        format!("MOD beside a write to {channel:?}"),
        calls,
        move |found| {
            ensure!(found[0] == 1, "a writer does not find what it wrote");
            channel.drain();
            harvest(&set)?;
            Ok(())
        },
    ))
}

/// MOD to an interest in input against a write.
fn new_interest(rng: &mut Rng) -> Result<Race> {
    let channel = Arc::new(any_channel(rng)?);
    let set = Epoll::new()?;
    let before = Event::new(Events::PRI, 1);
    set.add(&*channel, before)?;
    let interest = [LEVEL, EDGE][rng.usize(..2)];
    let (sender, changed, changing) = (channel.clone(), channel.clone(), set.clone());
    let calls = vec![
        call(move |_| Ok(sender.send(1) as usize)),
        call(move |_| {
            changing.modify(&*changed, interest)?;
            Ok(0)
        }),
    ];
    Ok(Race::new(
        format!("a new interest in {channel:?}"),
        calls,
        move |_| {
            ensure!(harvest(&set)? == 1, "an event is lost beside MOD");
            channel.drain();
            set.modify(&*channel, before)?;
            harvest(&set)?;
            Ok(())
        },
    ))
}

/// MOD that arms a oneshot interest anew against a write.
fn armed_anew(rng: &mut Rng) -> Result<Race> {
    let channel = Arc::new(any_channel(rng)?);
    let set = Epoll::new()?;
    let edge = [Events::empty(), Events::ET][rng.usize(..2)];
    let once = Event::new(Events::IN | Events::ONESHOT | edge, 1);
    set.add(&*channel, once)?;
    channel.send(1);
    harvest(&set)?;
    channel.drain();
    let (sender, changed, changing) = (channel.clone(), channel.clone(), set.clone());
    let calls = vec![
        call(move |_| Ok(sender.send(1) as usize)),
        call(move |_| {
            changing.modify(&*changed, once)?;
            Ok(0)
        }),
    ];
    Ok(Race::new(
        format!("{channel:?} is armed anew"),
        calls,
        move |_| {
            ensure!(harvest(&set)? == 1, "an event is lost beside MOD");
            channel.drain();
            Ok(())
        },
    ))
}

/// A set is added to another one while a member of its own becomes ready.
fn nested_add(rng: &mut Rng) -> Result<Race> {
    let channel = Arc::new(any_channel(rng)?);
    let (inner, outer) = (Epoll::new()?, Epoll::new()?);
    inner.add(&*channel, LEVEL)?;
    let interest = [LEVEL, EDGE][rng.usize(..2)];
    let sender = channel.clone();
    let (below, above) = (inner.clone(), outer.clone());
    let calls = vec![
        call(move |_| Ok(sender.send(1) as usize)),
        call(move |_| {
            above.add(&below, interest)?;
            Ok(0)
        }),
    ];
    Ok(Race::new(
        format!("a set of {channel:?} is added"),
        calls,
        move |_| {
            ensure!(harvest(&outer)? == 1, "a nested set is not found ready");
            outer.delete(&inner)?;
            channel.drain();
            harvest(&inner)?;
            Ok(())
        },
    ))
}

/// Two sets are added to each other.
fn each_other(_: &mut Rng) -> Result<Race> {
    let (one, other) = (Epoll::new()?, Epoll::new()?);
    let add = |outer: &Epoll, inner: &Epoll| {
        let (outer, inner) = (outer.clone(), inner.clone());
        call(move |_| match outer.add(&inner, LEVEL) {
            Ok(()) => Ok(1),
            Err(Errno::LOOP) => Ok(0),
            Err(error) => Err(error.into()),
        })
    };
    let calls = vec![add(&one, &other), add(&other, &one)];
    Ok(Race::new(
        "two sets are added to each other",
        calls,
        move |added| {
            ensure!(added[0] + added[1] == 1, "one of the two must be refused");
            match added[0] {
                1 => one.delete(&other)?,
                _ => other.delete(&one)?,
            }
            Ok(())
        },
    ))
}

/// A maximum is set while the counter is written to.
fn maximum(_: &mut Rng) -> Result<Race> {
    let counter = EventFd::new(1)?;
    let (written, limited) = (counter.clone(), counter.clone());
    let calls = vec![
        call(move |_| Ok(usize::from(written.try_write(2).is_ok()))),
        call(move |_| Ok(usize::from(limited.set_maximum(3).is_ok()))),
    ];
    Ok(Race::new("a maximum beside a write", calls, move |done| {
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

/// Of two sets that watch a channel exclusively, or in turn, one leaves while a wake comes.
fn exclusive(rng: &mut Rng) -> Result<Race> {
    let channel = Arc::new(Channel::new(Kind::Semaphore)?);
    let rotating = Epoll::create(CreateFlags::ROTATE)?;
    rotating.add(&*channel, LEVEL)?;
    let rotates = rng.bool();
    let (leaving, staying) = (Epoll::new()?, Epoll::new()?);
    let join = {
        let (channel, rotating) = (channel.clone(), rotating.clone());
        move |set: &Epoll| match rotates {
            true => set.add(&rotating, LEVEL),
            false => set.add(&*channel, Event::new(Events::IN | Events::EXCLUSIVE, 1)),
        }
    };
    join(&leaving)?;
    join(&staying)?;
    let (sender, stayer, leaver) = (channel.clone(), staying, leaving.clone());
    let left = channel.clone();
    let waits_too = rng.bool();
    let calls = vec![
        call(move |_| Ok(sender.send(1) as usize)),
        call(move |_| {
            let _watch = match waits_too {
                true => Some(Watch::new(&leaver, Events::IN, |_| {})?),
                false => None,
            };
            match rotates {
                true => leaver.delete(&rotating)?,
                false => leaver.delete(&*left)?,
            }
            Ok(0)
        }),
        call(move |_| Ok(stayer.wait(&mut [Event::default(); 2], Timeout::NEVER)?)),
    ];
    Ok(Race::new(
        format!("one of two sets leaves, rotating: {rotates}"),
        calls,
        move |found| {
            ensure!(found[2] == 1, "no event for the set that stays");
            channel.drain();
            join(&leaving)?;
            Ok(())
        },
    ))
}

/// Two channels become ready one after the other while scans run: that is how they are reported.
fn order(rng: &mut Rng) -> Result<Race> {
    let channels = [any_channel(rng)?, any_channel(rng)?];
    let set = Epoll::new()?;
    for (data, channel) in (0..).zip(&channels) {
        set.add(channel, Event::new(Events::IN | Events::ET, data))?;
    }
    let channels = Arc::new(channels);
    let reported = Arc::new(Mutex::new(Vec::new()));
    let take = {
        let (set, reported) = (set, reported.clone());
        move || -> Result<usize> {
            let mut events = [Event::default(); 2];
            let found = set.try_wait(&mut events)?;
            let mut reported = lock(&reported);
            reported.extend(events[..found].iter().map(|event| event.data()));
            Ok(found)
        }
    };
    let (senders, early) = (channels.clone(), take.clone());
    let calls = vec![
        call(move |_| {
            for channel in &*senders {
                channel.send(1);
            }
            Ok(0)
        }),
        call(move |_| early()),
    ];
    Ok(Race::new("two arrivals", calls, move |_| {
        take()?;
        let mut reported = lock(&reported);
        ensure!(
            *reported == [0, 1],
            "two events are reported as {reported:?}"
        );
        reported.clear();
        for channel in &*channels {
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

/// A file is closed, its set is closed, and perhaps it is deleted.
fn last_close(rng: &mut Rng) -> Result<Race> {
    type Held = (
        Option<File<Probe>>,
        Option<Epoll>,
        Option<(File<Probe>, Epoll)>,
    );
    let deletes = rng.bool();
    let [released, dropped] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let held: Arc<Mutex<Held>> = Arc::default();
    let prepare = {
        let (held, released, dropped) = (held.clone(), released.clone(), dropped.clone());
        move || -> Result<()> {
            let file = File::new(Probe {
                queue: WaitQueue::new(),
                released: released.clone(),
                dropped: dropped.clone(),
            });
            let set = Epoll::new()?;
            set.add(&file, LEVEL)?;
            let both = deletes.then(|| (file.clone(), set.clone()));
            *lock(&held) = (Some(file), Some(set), both);
            Ok(())
        }
    };
    prepare()?;
    let take = |held: &Mutex<Held>, which: usize| -> Held {
        let mut held = lock(held);
        match which {
            0 => (held.0.take(), None, None),
            1 => (None, held.1.take(), None),
            _ => (None, None, held.2.take()),
        }
    };
    let close = |which: usize| -> Call {
        let held = held.clone();
        call(move |rng| {
            let held = take(&held, which);
            super::pause(rng);
            if let (_, _, Some((file, set))) = &held {
                let _ = set.delete(file);
            }
            drop(held);
            Ok(0)
        })
    };
    let mut calls = vec![close(0), close(1)];
    if deletes {
        calls.push(close(2));
    }
    Ok(Race::new(
        "a file and its set are closed",
        calls,
        move |_| {
            for count in [&released, &dropped] {
                let times = count.swap(0, Ordering::SeqCst);
                ensure!(times == 1, "an object is released or dropped {times} times");
            }
            prepare()
        },
    ))
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
    let counters = Arc::new(counters);
    let scan = |set: &Epoll| {
        let (set, counters) = (set.clone(), counters.clone());
        call(move |_| {
            let mut events = [Event::default(); 300];
            for round in 0..4 {
                set.try_wait(&mut events)?;
                set.modify(&counters[round], LEVEL)?;
            }
            Ok(0)
        })
    };
    let calls = vec![scan(&set), scan(&set), scan(&set)];
    Ok(Race::new("three threads scan one set", calls, |_| Ok(())))
}

/// Three threads write to an eventfd that processes share, and one of them may read.
fn shared_writes(rng: &mut Rng) -> Result<Race> {
    let channel = Arc::new(Channel::new(Kind::Shared)?);
    let received = Arc::new(AtomicUsize::new(0));
    let write = |reads: bool| {
        let (channel, received) = (channel.clone(), received.clone());
        call(move |_| {
            for _ in 0..20 {
                channel.send(1);
                if reads {
                    received.fetch_add(channel.receive() as usize, Ordering::SeqCst);
                }
            }
            Ok(0)
        })
    };
    let calls = vec![write(rng.bool()), write(false), write(false)];
    Ok(Race::new(
        "three threads write to a shared eventfd",
        calls,
        move |_| {
            let units = received.swap(0, Ordering::SeqCst) + channel.drain() as usize;
            ensure!(units == 60, "{units} units of 60");
            Ok(())
        },
    ))
}
