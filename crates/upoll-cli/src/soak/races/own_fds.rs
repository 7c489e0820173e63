//! The library's own fds, while the program puts files of its own in their places.
//!
//! A program that does so by the library's hooks, as programs do under the preload, loses nothing: the own fds are
//! moved away first. The hooks count until the process ends, so these races run in a child.

use std::fs;
use std::iter;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use upoll::internal::own_fds;
use upoll::{Epoll, Errno, EventFd};

use super::super::channel::{Channel, Kind};
use super::super::footprint::Footprint;
use super::kernel::{wait, watchers};
use super::{LEVEL, Maker, Race, lock, race, write};

pub(super) const RACES: &[Maker] = &[waiting, coming_and_going];

fn set_with(idle: &Channel) -> Result<Epoll> {
    let set = Epoll::new()?;
    set.add(idle, LEVEL)?;
    Ok(set)
}

/// Puts a copy of `file` at one of the library's own fds, and returns that.
fn take_an_fd(file: RawFd, rng: &mut Rng) -> Result<Option<RawFd>> {
    let next = |first: u32| own_fds::next_own(first, u32::MAX);
    let all = iter::successors(next(0), |&fd| next(fd as u32 + 1));
    let Some(fd) = rng.choice(all.collect::<Vec<_>>()) else {
        return Ok(None);
    };
    let _held = own_fds::hold_fds(fd);
    if !own_fds::is_own(fd) {
        return Ok(None);
    }
    let taken = own_fds::replace(fd, || {
        // SAFETY: the library has moved its own fd away, so the fd is this function's.
        match unsafe { libc::dup2(file, fd) } {
            -1 => Err(Errno::BADF),
            _ => Ok(()),
        }
    });
    match taken {
        Ok(()) => Ok(Some(fd)),
        // It is just being closed.
        Err(Errno::BUSY) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn inode(fd: RawFd) -> Result<u64> {
    Ok(fs::metadata(format!("/proc/self/fd/{fd}"))?.ino())
}

/// Fds that are taken while other calls run, and what is done with them after that.
struct TakenFds {
    file: Channel,
    most_fds: Mutex<Option<usize>>,
}

impl TakenFds {
    fn new() -> Result<Self> {
        Ok(TakenFds {
            file: Channel::new(Kind::KernelPipe)?,
            most_fds: Mutex::default(),
        })
    }

    fn file(&self) -> Result<RawFd> {
        self.file.kernel_fd().context("a kernel pipe")
    }

    /// Takes one fd, and returns that, or 0.
    fn take(&self, rng: &mut Rng) -> Result<usize> {
        let taken = take_an_fd(self.file()?, rng)?;
        Ok(taken.map_or(0, |fd| fd as usize))
    }

    /// Checks that the file at an fd that was taken is as it was, and closes it.
    fn give_back(&self, taken: usize) -> Result<()> {
        if taken == 0 {
            return Ok(());
        }
        let fd = taken as RawFd;
        ensure!(
            inode(fd)? == inode(self.file()?)? && watchers(fd)? == 0,
            "what took the fd {fd} is not left alone"
        );
        // SAFETY: the fd was taken for a copy of `file`.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(())
    }

    /// Checks that no more fds are open than once, with the same objects.
    fn count(&self) -> Result<()> {
        let now = Footprint::now()?.fds;
        let most = *lock(&self.most_fds).get_or_insert(now);
        ensure!(now <= most, "{now} fds are open, once they were {most}");
        Ok(())
    }
}

/// An fd is taken while a thread sleeps in a set, and is woken.
fn waiting(_: &mut Rng) -> Result<Race> {
    let idle = Channel::new(Kind::KernelPipe)?;
    let make = move || -> Result<_> {
        let (set, counter) = (set_with(&idle)?, EventFd::new(0)?);
        set.add(&counter, LEVEL)?;
        Ok((set, counter))
    };
    let objects = (TakenFds::new()?, Mutex::new(make()?));
    Ok(race("an fd is taken beside a wake", objects)
        .call(|(_, sets), rng| {
            let counter = lock(sets).1.clone();
            write(&counter, rng)
        })
        .call(|(_, sets), _| {
            let set = lock(sets).0.clone();
            wait(&set)
        })
        .call(|(taken, _), rng| taken.take(rng))
        .settle(move |(taken, sets), found| {
            ensure!(found[1] == 1, "no event");
            taken.give_back(found[2])?;
            *lock(sets) = make()?;
            taken.count()
        }))
}

/// An fd is taken while a set is made, or closed.
fn coming_and_going(rng: &mut Rng) -> Result<Race> {
    let is_made = rng.bool();
    let idle = Channel::new(Kind::KernelPipe)?;
    // Keeps a seal in use.
    let another = set_with(&idle)?;
    let begin = move |idle: &Channel| match is_made {
        true => Ok(None),
        false => set_with(idle).map(Some),
    };
    let set = Mutex::new(begin(&idle)?);
    let name = format!("an fd is taken beside a set, which is made: {is_made}");
    Ok(race(name, (TakenFds::new()?, set, idle))
        .call(|(taken, ..), rng| taken.take(rng))
        .call(|(_, set, idle), _| {
            let closed = lock(set).take();
            if closed.is_none() {
                *lock(set) = Some(set_with(idle)?);
            }
            Ok(0)
        })
        .settle(move |(taken, set, idle), found| {
            let _open = &another;
            taken.give_back(found[0])?;
            *lock(set) = begin(idle)?;
            taken.count()
        }))
}
