//! Kernel fds: of sets below, and as the source of rotating sets.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Result, ensure};
use fastrand::Rng;
use upoll::{CreateFlags, Epoll, Errno, Event, EventFd, Events, PollFd, Timeout, Watch, poll};

use super::super::channel::{Channel, Kind};
use super::{LEVEL, Maker, Race, call, harvest, lock};

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

fn kernel_channel(rng: &mut Rng) -> Result<Arc<Channel>> {
    let kinds = [Kind::KernelCounter, Kind::KernelPipe, Kind::KernelSocket];
    Ok(Arc::new(Channel::new(kinds[rng.usize(..3)])?))
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
    let sets = Arc::new(Mutex::new(make()?));
    let kinds = [Kind::KernelCounter, Kind::KernelPipe, Kind::Shared];
    let channel = Arc::new(Channel::new(kinds[rng.usize(..kinds.len())])?);
    let (waited, changed, member) = (sets.clone(), sets.clone(), channel.clone());
    let calls = vec![
        call(move |rng| {
            let bottom = lock(&changed)[0].clone();
            super::pause(rng);
            bottom.add(&*member, LEVEL)?;
            super::pause(rng);
            Ok(member.send(1) as usize)
        }),
        call(move |_| {
            let top = lock(&waited)[above].clone();
            wait(&top)
        }),
    ];
    let name = format!("{channel:?} is the first kernel fd, sets above: {above}");
    Ok(Race::new(name, calls, move |found| {
        ensure!(found[1] == 1, "no event");
        channel.drain();
        *lock(&sets) = make()?;
        Ok(())
    }))
}

/// A set and a member of any kind are closed.
fn both_close(rng: &mut Rng) -> Result<Race> {
    let kind = Kind::any(rng);
    let make = move || -> Result<_> {
        let (set, channel) = (Epoll::new()?, Channel::new(kind)?);
        set.add(&channel, LEVEL)?;
        Ok((Some(set), Some(channel)))
    };
    let both = Arc::new(Mutex::new(make()?));
    let (set, channel) = (both.clone(), both.clone());
    let calls = vec![
        call(move |_| {
            let set = lock(&set).0.take();
            drop(set);
            Ok(0)
        }),
        call(move |_| {
            let channel = lock(&channel).1.take();
            drop(channel);
            Ok(0)
        }),
    ];
    Ok(Race::new(
        format!("a set and its {kind:?} are closed"),
        calls,
        move |_| {
            *lock(&both) = make()?;
            Ok(())
        },
    ))
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
    let make = {
        let channel = channel.clone();
        move || -> Result<Arc<Nested>> {
            let sets = Nested {
                outer: Epoll::new()?,
                beat: EventFd::new(0)?,
                inner: Epoll::new()?,
                counter: EventFd::new(0)?,
            };
            sets.outer.add(&*idle[0], LEVEL)?;
            sets.outer.add(&sets.beat, LEVEL)?;
            sets.inner.add(&*idle[1], LEVEL)?;
            sets.inner.add(&*channel, LEVEL)?;
            sets.inner.add(&sets.counter, LEVEL)?;
            Ok(Arc::new(sets))
        }
    };
    let sets = Arc::new(Mutex::new(make()?));
    let (waited, changed, disturbed) = (sets.clone(), sets.clone(), sets.clone());
    let sender = channel.clone();
    let mut calls = vec![
        call(move |rng| {
            let sets = lock(&changed).clone();
            super::pause(rng);
            sets.outer
                .add(&sets.inner, Event::new(Events::IN, OF_INNER))?;
            match rng.bool() {
                true => drop(sender.send(1)),
                false => sets.counter.try_write(1)?,
            }
            Ok(0)
        }),
        call(move |_| {
            let sets = lock(&waited).clone();
            sets.wait()
        }),
    ];
    if rng.bool() {
        calls.push(call(move |rng| {
            let sets = lock(&disturbed).clone();
            for _ in 0..rng.usize(..40) {
                sets.beat.try_write(1)?;
                let _ = sets.beat.try_read();
                super::pause(rng);
            }
            Ok(0)
        }));
    }
    Ok(Race::new(
        "a set with kernel fds is added below",
        calls,
        move |found| {
            ensure!(found[1] == 1, "no event");
            channel.drain();
            *lock(&sets) = make()?;
            Ok(())
        },
    ))
}

/// A thread goes to sleep in a set with a kernel fd, and is woken, while others poll the set.
fn polled(rng: &mut Rng) -> Result<Race> {
    let idle = kernel_channel(rng)?;
    let counter = EventFd::new(0)?;
    let set = Epoll::new()?;
    set.add(&*idle, LEVEL)?;
    set.add(&counter, LEVEL)?;
    let (written, waited) = (counter.clone(), set.clone());
    let mut calls = vec![
        call(move |rng| {
            super::pause(rng);
            written.try_write(1)?;
            Ok(0)
        }),
        call(move |_| {
            let _keep = &idle;
            wait(&waited)
        }),
    ];
    for _ in 0..[1, 1, 2][rng.usize(..3)] {
        let set = set.clone();
        calls.push(call(move |rng| {
            for _ in 0..rng.usize(1..100) {
                poll(&mut [PollFd::new(&set, Events::IN)], Timeout::NOW)?;
            }
            Ok(0)
        }));
    }
    let name = format!(
        "a set in which a thread sleeps is polled by {}",
        calls.len() - 2
    );
    Ok(Race::new(name, calls, move |found| {
        ensure!(found[1] == 1, "no event");
        counter.try_read()?;
        harvest(&set)?;
        Ok(())
    }))
}

/// How many kernel sets of this process watch a number.
pub(super) fn watchers(number: RawFd) -> Result<usize> {
    let wanted = number.to_string();
    let mut found = 0;
    for entry in fs::read_dir("/proc/self/fdinfo")? {
        let text = fs::read_to_string(entry?.path()).unwrap_or_default();
        for line in text.lines().filter_map(|line| line.strip_prefix("tfd:")) {
            found += usize::from(line.split_whitespace().next() == Some(&wanted));
        }
    }
    Ok(found)
}

/// The source of a rotating set is deleted and added again while a worker waits.
fn deleted_and_added(rng: &mut Rng) -> Result<Race> {
    let channel = kernel_channel(rng)?;
    let rotating = Epoll::create(CreateFlags::ROTATE)?;
    rotating.add(&*channel, LEVEL)?;
    let worker = Epoll::new()?;
    worker.add(&rotating, LEVEL)?;
    let (source, from) = (channel.clone(), rotating.clone());
    let calls = vec![
        call(move |rng| {
            from.delete(&*source)?;
            if rng.usize(..8) == 0 {
                is_watched_no_more(&source)?;
            }
            if rng.bool() {
                source.send(1);
                from.add(&*source, LEVEL)?;
            } else {
                from.add(&*source, LEVEL)?;
                source.send(1);
            }
            Ok(0)
        }),
        call(move |_| wait(&worker)),
    ];
    Ok(Race::new(
        format!("{channel:?} is deleted and added"),
        calls,
        move |found| {
            ensure!(found[1] == 1, "no event");
            channel.drain();
            Ok(())
        },
    ))
}

/// Two threads delete one source.
fn two_deletes(rng: &mut Rng) -> Result<Race> {
    let channel = kernel_channel(rng)?;
    let rotating = Epoll::create(CreateFlags::ROTATE)?;
    rotating.add(&*channel, LEVEL)?;
    let worker = Epoll::new()?;
    worker.add(&rotating, LEVEL)?;
    let delete = || {
        let (rotating, channel) = (rotating.clone(), channel.clone());
        call(move |_| match rotating.delete(&*channel) {
            Ok(()) => Ok(1),
            Err(Errno::NOENT) => Ok(0),
            Err(error) => Err(error.into()),
        })
    };
    let calls = vec![delete(), delete()];
    Ok(Race::new(
        format!("{channel:?} is deleted twice"),
        calls,
        move |deleted| {
            ensure!(deleted[0] + deleted[1] == 1, "one DEL must fail");
            is_watched_no_more(&channel)?;
            rotating.add(&*channel, LEVEL)?;
            // The worker registers.
            channel.send(1);
            wait(&worker)?;
            channel.drain();
            harvest(&worker)?;
            Ok(())
        },
    ))
}

/// A worker watches two rotating sets with one source: one of them deletes it.
fn one_of_two(rng: &mut Rng) -> Result<Race> {
    let channel = kernel_channel(rng)?;
    let sets = [(); 2].map(|()| Epoll::create(CreateFlags::ROTATE));
    let [first, second] = sets;
    let (first, second) = (first?, second?);
    let worker = Epoll::new()?;
    for set in [&first, &second] {
        set.add(&*channel, LEVEL)?;
        worker.add(set, LEVEL)?;
    }
    let (source, from) = (channel.clone(), first.clone());
    let calls = vec![
        call(move |_| {
            from.delete(&*source)?;
            source.send(1);
            Ok(0)
        }),
        call(move |_| {
            let _open = &second;
            wait(&worker)
        }),
    ];
    Ok(Race::new(
        format!("one of two rotating sets deletes {channel:?}"),
        calls,
        move |found| {
            ensure!(found[1] > 0, "no event");
            channel.drain();
            first.add(&*channel, LEVEL)?;
            Ok(())
        },
    ))
}

/// A worker that has left an event to another one, which does not come, is woken for nothing.
fn left_to_others(rng: &mut Rng) -> Result<Race> {
    let source = EventFd::new(0)?;
    let rotating = Epoll::create(CreateFlags::ROTATE)?;
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
        worker.add(&*idle, LEVEL)?;
    }
    let (written, disturbed) = (source.clone(), counter);
    let calls = vec![
        call(move |rng| {
            thread::sleep(Duration::from_micros(rng.u64(..200)));
            disturbed.try_write(1)?;
            let _ = disturbed.try_read();
            Ok(0)
        }),
        call(move |_| {
            let _keep = &idle;
            let waits = Watch::new(&late, Events::IN, |_| {})?;
            written.try_write(1)?;
            let mut ended = wait(&worker)?;
            while written.try_read().is_err() {
                ended = wait(&worker)?;
            }
            drop(waits);
            harvest(&late)?;
            Ok(ended)
        }),
    ];
    Ok(Race::new(
        format!("an event is left to a worker that does not come, in the kernel: {in_kernel}"),
        calls,
        move |_| {
            let _open = &rotating;
            Ok(())
        },
    ))
}
