//! Kernel fds: of sets below, and as the source of rotating sets.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Result, ensure};
use fastrand::Rng;
use upoll::{CreateFlags, Epoll, Errno, Event, EventFd, Events, PollFd, Timeout, Watch, poll};

use super::super::channel::{Channel, Kind};
use super::{LEVEL, Maker, Race, Watched, harvest, lock, pause, race, send, write};

pub(super) const RACES: &[Maker] = &[
    first_kernel_fd,
    both_close,
    nested,
    polled,
    deleted_and_added,
    two_deletes,
    one_of_two,
    left_to_others,
];

fn kernel_channel(rng: &mut Rng) -> Result<Channel> {
    let kinds = [Kind::KernelCounter, Kind::KernelPipe, Kind::KernelSocket];
    Channel::new(kinds[rng.usize(..3)])
}

fn rotating() -> Result<Epoll> {
    Ok(Epoll::create(CreateFlags::ROTATE)?)
}

/// Checks that no kernel set watches a source that was deleted.
fn is_watched_no_more(source: &Channel) -> Result<()> {
    let watchers = source.kernel_fd().map_or(Ok(0), watchers)?;
    ensure!(
        watchers == 0,
        "{watchers} sets watch a source that was deleted"
    );
    Ok(())
}

pub(super) fn wait(set: &Epoll) -> Result<usize> {
    Ok(set.wait(&mut [Event::default(); 2], Timeout::NEVER)?)
}

/// A thread goes to sleep in a new set, or in one above it, while the new set gets its first kernel fd.
fn first_kernel_fd(rng: &mut Rng) -> Result<Race> {
    let above = rng.usize(..3);
    let make = move || -> Result<Vec<Epoll>> {
        let mut sets = vec![Epoll::new()?];
        for below in 0..above {
            let set = Epoll::new()?;
            set.add(&sets[below], LEVEL)?;
            sets.push(set);
        }
        Ok(sets)
    };
    let kinds = [Kind::KernelCounter, Kind::KernelPipe, Kind::Shared];
    let channel = Channel::new(kinds[rng.usize(..kinds.len())])?;
    let name = format!("{channel:?} is the first kernel fd, sets above: {above}");
    Ok(race(name, (channel, Mutex::new(make()?)))
        .call(|(channel, sets), rng| {
            let bottom = lock(sets)[0].clone();
            pause(rng);
            bottom.add(channel, LEVEL)?;
            pause(rng);
            send(channel)
        })
        .call(move |(_, sets), _| {
            let top = lock(sets)[above].clone();
            wait(&top)
        })
        .settle(move |(channel, sets), found| {
            ensure!(found[1] == 1, "no event");
            channel.drain();
            *lock(sets) = make()?;
            Ok(())
        }))
}

/// A set and a member of any kind are closed.
fn both_close(rng: &mut Rng) -> Result<Race> {
    let kind = Kind::any(rng);
    let make = move || -> Result<_> {
        let Watched { channel, set } = Watched::new(Channel::new(kind)?, LEVEL)?;
        Ok((Some(set), Some(channel)))
    };
    let name = format!("a set and its {kind:?} are closed");
    Ok(race(name, Mutex::new(make()?))
        .call(|both, _| {
            let set = lock(both).0.take();
            drop(set);
            Ok(0)
        })
        .call(|both, _| {
            let channel = lock(both).1.take();
            drop(channel);
            Ok(0)
        })
        .settle(move |both, _| {
            *lock(both) = make()?;
            Ok(())
        }))
}

/// A set with a kernel fd, and one that comes below it.
struct Nested {
    outer: Epoll,
    /// Ready now and then, in `outer`.
    beat: EventFd,
    inner: Epoll,
    counter: EventFd,
}

const OF_INNER: u64 = 2;

impl Nested {
    /// Waits for the event of the inner set.
    fn wait(&self) -> Result<usize> {
        let mut events = [Event::default(); 4];
        loop {
            let found = self.outer.wait(&mut events, Timeout::NEVER)?;
            if events[..found].iter().any(|event| event.data() == OF_INNER) {
                return Ok(1);
            }
        }
    }
}

/// A thread goes to sleep in a set with a kernel fd, perhaps again and again, while another such set is added below
/// it.
fn nested(rng: &mut Rng) -> Result<Race> {
    let idle = [kernel_channel(rng)?, kernel_channel(rng)?];
    let channel = kernel_channel(rng)?;
    let make = move |channel: &Channel| -> Result<Arc<Nested>> {
        let sets = Nested {
            outer: Epoll::new()?,
            beat: EventFd::new(0)?,
            inner: Epoll::new()?,
            counter: EventFd::new(0)?,
        };
        sets.outer.add(&idle[0], LEVEL)?;
        sets.outer.add(&sets.beat, LEVEL)?;
        sets.inner.add(&idle[1], LEVEL)?;
        sets.inner.add(channel, LEVEL)?;
        sets.inner.add(&sets.counter, LEVEL)?;
        Ok(Arc::new(sets))
    };
    let sets = Mutex::new(make(&channel)?);
    Ok(
        race("a set with kernel fds is added below", (channel, sets))
            .call(|(channel, sets), rng| {
                let sets = lock(sets).clone();
                pause(rng);
                let interest = Event::new(Events::IN, OF_INNER);
                sets.outer.add(&sets.inner, interest)?;
                match rng.bool() {
                    true => drop(channel.send(1)),
                    false => sets.counter.try_write(1)?,
                }
                Ok(0)
            })
            .call(|(_, sets), _| {
                let sets = lock(sets).clone();
                sets.wait()
            })
            .calls(rng.usize(..2), |(_, sets), rng| {
                let sets = lock(sets).clone();
                for _ in 0..rng.usize(..40) {
                    sets.beat.try_write(1)?;
                    let _ = sets.beat.try_read();
                    pause(rng);
                }
                Ok(0)
            })
            .settle(move |(channel, sets), found| {
                ensure!(found[1] == 1, "no event");
                channel.drain();
                *lock(sets) = make(channel)?;
                Ok(())
            }),
    )
}

/// A thread goes to sleep in a set with a kernel fd, and is woken, while others poll the set.
fn polled(rng: &mut Rng) -> Result<Race> {
    let idle = kernel_channel(rng)?;
    let counter = EventFd::new(0)?;
    let set = Epoll::new()?;
    set.add(&idle, LEVEL)?;
    set.add(&counter, LEVEL)?;
    let others = [1, 1, 2][rng.usize(..3)];
    let name = format!("a set in which a thread sleeps is polled by {others}");
    Ok(race(name, (set, counter))
        .call(|(_, counter), rng| write(counter, rng))
        .call(move |(set, _), _| {
            let _keep = &idle;
            wait(set)
        })
        .calls(others, |(set, _), rng| {
            for _ in 0..rng.usize(1..100) {
                poll(&mut [PollFd::new(set, Events::IN)], Timeout::NOW)?;
            }
            Ok(0)
        })
        .settle(|(set, counter), found| {
            ensure!(found[1] == 1, "no event");
            counter.try_read()?;
            harvest(set)?;
            Ok(())
        }))
}

/// Returns how many kernel sets of this process watch an fd.
pub(super) fn watchers(fd: RawFd) -> Result<usize> {
    let wanted = fd.to_string();
    let mut found = 0;
    for entry in fs::read_dir("/proc/self/fdinfo")? {
        let text = fs::read_to_string(entry?.path()).unwrap_or_default();
        for line in text.lines().filter_map(|line| line.strip_prefix("tfd:")) {
            found += usize::from(line.split_whitespace().next() == Some(&wanted));
        }
    }
    Ok(found)
}

/// A rotating set over a kernel fd, and its only worker.
struct Working {
    source: Channel,
    rotating: Epoll,
    worker: Epoll,
}

impl Working {
    fn new(rng: &mut Rng) -> Result<Self> {
        let (source, rotating, worker) = (kernel_channel(rng)?, rotating()?, Epoll::new()?);
        rotating.add(&source, LEVEL)?;
        worker.add(&rotating, LEVEL)?;
        Ok(Working {
            source,
            rotating,
            worker,
        })
    }
}

/// The source of a rotating set is deleted and added again while a worker waits.
fn deleted_and_added(rng: &mut Rng) -> Result<Race> {
    let working = Working::new(rng)?;
    let name = format!("{:?} is deleted and added", working.source);
    Ok(race(name, working)
        .call(|working, rng| {
            let Working {
                source, rotating, ..
            } = working;
            rotating.delete(source)?;
            if rng.usize(..8) == 0 {
                is_watched_no_more(source)?;
            }
            if rng.bool() {
                source.send(1);
                rotating.add(source, LEVEL)?;
            } else {
                rotating.add(source, LEVEL)?;
                source.send(1);
            }
            Ok(0)
        })
        .call(|working, _| wait(&working.worker))
        .settle(|working, found| {
            ensure!(found[1] == 1, "no event");
            working.source.drain();
            Ok(())
        }))
}

/// Two threads delete one source.
fn two_deletes(rng: &mut Rng) -> Result<Race> {
    let working = Working::new(rng)?;
    let name = format!("{:?} is deleted twice", working.source);
    Ok(race(name, working)
        .calls(2, |working, _| {
            match working.rotating.delete(&working.source) {
                Ok(()) => Ok(1),
                Err(Errno::NOENT) => Ok(0),
                Err(error) => Err(error.into()),
            }
        })
        .settle(|working, deleted| {
            ensure!(deleted[0] + deleted[1] == 1, "one DEL must fail");
            is_watched_no_more(&working.source)?;
            working.rotating.add(&working.source, LEVEL)?;
            // The worker registers.
            working.source.send(1);
            wait(&working.worker)?;
            working.source.drain();
            harvest(&working.worker)?;
            Ok(())
        }))
}

/// A worker watches two rotating sets with one source: one of them deletes it.
fn one_of_two(rng: &mut Rng) -> Result<Race> {
    let (working, other) = (Working::new(rng)?, rotating()?);
    other.add(&working.source, LEVEL)?;
    working.worker.add(&other, LEVEL)?;
    let name = format!("one of two rotating sets deletes {:?}", working.source);
    Ok(race(name, working)
        .call(|working, _| {
            working.rotating.delete(&working.source)?;
            working.source.send(1);
            Ok(0)
        })
        .call(move |working, _| {
            let _open = &other;
            wait(&working.worker)
        })
        .settle(|working, found| {
            ensure!(found[1] > 0, "no event");
            working.source.drain();
            working.rotating.add(&working.source, LEVEL)?;
            Ok(())
        }))
}

/// A worker that has left an event to another one, which does not come, is woken for nothing.
fn left_to_others(rng: &mut Rng) -> Result<Race> {
    let (source, rotating) = (EventFd::new(0)?, rotating()?);
    rotating.add(&source, LEVEL)?;
    let (late, worker) = (Epoll::new()?, Epoll::new()?);
    let counter = EventFd::new(0)?;
    for set in [&late, &worker] {
        set.add(&rotating, LEVEL)?;
    }
    worker.add(&counter, LEVEL)?;
    let idle = kernel_channel(rng)?;
    let in_kernel = rng.bool();
    if in_kernel {
        worker.add(&idle, LEVEL)?;
    }
    let name =
        format!("an event is left to a worker that does not come, in the kernel: {in_kernel}");
    Ok(race(name, (source, counter))
        .call(|(_, counter), rng| {
            thread::sleep(Duration::from_micros(rng.u64(..200)));
            counter.try_write(1)?;
            let _ = counter.try_read();
            Ok(0)
        })
        .call(move |(source, _), _| {
            let _open = (&rotating, &idle);
            let waits = Watch::new(&late, Events::IN, |_| {})?;
            source.try_write(1)?;
            let mut ended = wait(&worker)?;
            while source.try_read().is_err() {
                ended = wait(&worker)?;
            }
            drop(waits);
            harvest(&late)?;
            Ok(ended)
        })
        .settle(|_, _| Ok(())))
}
