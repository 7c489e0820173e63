//! Kernel fds: of sets below, and as the source of rotating sets.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Result, ensure};
use fastrand::Rng;
use upoll::{CreateFlags, Epoll, Errno, Event, EventFd, Events, Timeout, Watch};

use super::super::channel::{Channel, Kind};
use super::{LEVEL, Maker, Race, call, harvest};

pub(super) const RACES: &[Maker] = &[
    first_kernel_fd,
    both_close,
    nested,
    deleted_and_added,
    two_deletes,
    one_of_two,
    left_to_others,
];

fn kernel_channel(rng: &mut Rng) -> Result<Arc<Channel>> {
    let kinds = [Kind::KernelCounter, Kind::KernelPipe, Kind::KernelSocket];
    Ok(Arc::new(Channel::new(kinds[rng.usize(..3)])?))
}

fn wait(set: &Epoll) -> Result<usize> {
    Ok(set.wait(&mut [Event::default(); 2], Timeout::NEVER)?)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

/// A thread goes to sleep in a set with a kernel fd, while another such set is added below it.
fn nested(rng: &mut Rng) -> Result<Race> {
    let idle = [kernel_channel(rng)?, kernel_channel(rng)?];
    let channel = kernel_channel(rng)?;
    let counter = Arc::new(EventFd::new(0)?);
    let make = {
        let (idle, channel, counter) = (idle.clone(), channel.clone(), counter.clone());
        move || -> Result<[Epoll; 2]> {
            let (outer, inner) = (Epoll::new()?, Epoll::new()?);
            outer.add(&*idle[0], LEVEL)?;
            inner.add(&*idle[1], LEVEL)?;
            inner.add(&*channel, LEVEL)?;
            inner.add(&*counter, LEVEL)?;
            Ok([outer, inner])
        }
    };
    let sets = Arc::new(Mutex::new(make()?));
    let current = |sets: &Mutex<[Epoll; 2]>| lock(sets).clone();
    let (waited, changed) = (sets.clone(), sets.clone());
    let (sender, written) = (channel.clone(), counter.clone());
    let calls = vec![
        call(move |rng| {
            let [outer, inner] = current(&changed);
            outer.add(&inner, LEVEL)?;
            match rng.bool() {
                true => drop(sender.send(1)),
                false => written.try_write(1)?,
            }
            Ok(0)
        }),
        call(move |_| wait(&current(&waited)[0])),
    ];
    Ok(Race::new(
        "a set with kernel fds is added below",
        calls,
        move |found| {
            ensure!(found[1] == 1, "no event");
            channel.drain();
            let _ = counter.try_read();
            *lock(&sets) = make()?;
            Ok(())
        },
    ))
}

/// How many kernel sets of this process watch the number of `channel`.
fn watchers(channel: &Channel) -> Result<usize> {
    let Some(fd) = channel.kernel_fd() else {
        return Ok(0);
    };
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
                let watchers = watchers(&source)?;
                ensure!(
                    watchers == 0,
                    "{watchers} sets watch a source that was deleted"
                );
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
            let watchers = watchers(&channel)?;
            ensure!(
                watchers == 0,
                "{watchers} sets watch a source that was deleted"
            );
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
            let waits = Watch::new(late.as_file_ref(), Events::IN, |_| {})?;
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
