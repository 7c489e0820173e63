//! Calls by fd, while the fd is copied, moved, closed or demoted, and while the process forks.
//!
//! The first of them registers handlers for forks, so these races run in a child.

use std::os::fd::RawFd;
use std::sync::Mutex;

use anyhow::{Result, bail, ensure};
use fastrand::Rng;
use upoll::Errno;

use super::processes::Child;
use super::{Maker, Race, lock, race};

pub(super) const RACES: &[Maker] = &[pipe, pipe, eventfd];

/// Copies get fds from here on. No fd that is closed comes back for another object while a race runs: a call that has
/// found it closed would use the kernel object behind the new one.
const COPIES: usize = 300;

/// A call on the writing end of a pipe, or on the reading one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Write,
    /// Copies the fd, and writes by that.
    Copy,
    Read,
    Close,
    Demote,
    DemoteAll,
    /// A child writes.
    Fork,
}

fn new_pipe() -> Result<[RawFd; 2]> {
    let mut fds = [-1; 2];
    // SAFETY: the fds are written to a variable.
    unsafe { upoll_fds::pipe2(&mut fds, libc::O_NONBLOCK | libc::O_CLOEXEC) }?;
    Ok(fds)
}

/// Writes one byte. Returns how many were written: none if the fd is closed.
fn write(fd: RawFd) -> Result<usize> {
    // SAFETY: the byte is readable.
    match unsafe { upoll_fds::write(fd, b"u".as_ptr(), 1) } {
        Err(Errno::BADF) => Ok(0),
        written => Ok(written?),
    }
}

/// Reads some bytes. Returns None if none has been written since.
fn read(fd: RawFd) -> Result<Option<usize>> {
    let mut bytes = [0; 64];
    // SAFETY: the bytes are writable.
    match unsafe { upoll_fds::read(fd, bytes.as_mut_ptr(), bytes.len()) } {
        Err(Errno::AGAIN) => Ok(None),
        length => Ok(Some(length?)),
    }
}

/// Returns a copy of an fd, or None if that is closed.
fn copy(fd: RawFd) -> Result<Option<RawFd>> {
    // SAFETY: the command takes an integer.
    match unsafe { upoll_fds::fcntl(fd, libc::F_DUPFD_CLOEXEC, COPIES) } {
        Err(Errno::BADF) => Ok(None),
        copy => Ok(Some(copy?)),
    }
}

impl Act {
    /// Returns the number of units that were written, less those that were read.
    fn run(self, [reader, writer]: [RawFd; 2], rng: &mut Rng) -> Result<usize> {
        let mut balance = 0_usize;
        let times = match self {
            Act::Write | Act::Copy | Act::Read => rng.usize(1..4),
            _ => 1,
        };
        for _ in 0..times {
            match self {
                Act::Write => balance += write(writer)?,
                Act::Copy => {
                    if let Some(copy) = copy(writer)? {
                        balance += write(copy)?;
                        upoll_fds::close(copy)?;
                    }
                }
                Act::Read => balance = balance.wrapping_sub(read(reader)?.unwrap_or(0)),
                Act::Close => upoll_fds::close(writer)?,
                Act::Demote => match upoll_fds::demote(writer) {
                    Ok(()) | Err(Errno::BADF) => {}
                    Err(error) => return Err(error.into()),
                },
                Act::DemoteAll => upoll_fds::demote_all(),
                Act::Fork => {
                    let child = Child::fork(|_| {
                        // SAFETY: the byte is readable. Ends the process if the fd is closed.
                        unsafe {
                            if libc::write(writer, b"u".as_ptr().cast(), 1) != 1 {
                                libc::_exit(1);
                            }
                        }
                    })?;
                    balance += usize::from(child.wait()? == 0);
                }
            }
        }
        Ok(balance)
    }
}

/// Calls on a pipe. All that was written is read, and after that comes the end.
fn pipe(rng: &mut Rng) -> Result<Race> {
    // The first thread may wait for its child: none looks whether it sleeps.
    let first = [
        Act::Fork,
        Act::Demote,
        Act::DemoteAll,
        Act::Close,
        Act::Copy,
    ];
    let others = [Act::Write, Act::Copy, Act::Read, Act::Demote];
    let mut acts = vec![first[rng.usize(..first.len())]];
    for _ in 0..rng.usize(1..=2) {
        acts.push(others[rng.usize(..others.len())]);
    }
    if acts[0] != Act::Close && rng.bool() {
        acts.push(Act::Close);
    }
    let name = format!("{acts:?} by the fd of a pipe");
    let is_closed = acts.contains(&Act::Close);
    let mut draft = race(name, Mutex::new(new_pipe()?));
    for act in acts {
        draft = draft.call(move |fds, rng| {
            let fds = *lock(fds);
            act.run(fds, rng)
        });
    }
    Ok(draft.settle(move |fds, balances| {
        let mut fds = lock(fds);
        let [reader, writer] = *fds;
        if !is_closed {
            upoll_fds::close(writer)?;
        }
        let add = |sum: usize, one: &usize| sum.wrapping_add(*one);
        let expected = balances.iter().fold(0, add);
        let mut left = 0;
        loop {
            match read(reader)? {
                None => bail!("the writing end is closed, and stays open"),
                Some(0) => break,
                Some(length) => left += length,
            }
        }
        ensure!(left == expected, "{left} bytes are left of {expected}");
        upoll_fds::close(reader)?;
        *fds = new_pipe()?;
        Ok(())
    }))
}

/// The fd of an eventfd moves while all are demoted, or is made just then. There is an fd all the time, and it keeps
/// its count. An eventfd with a maximum stays user-level.
fn eventfd(rng: &mut Rng) -> Result<Race> {
    let has_maximum = rng.bool();
    // A new one may be demoted before it gets its maximum.
    let is_made = !has_maximum && rng.bool();
    let make = move || -> Result<RawFd> {
        let fd = upoll_fds::eventfd(1, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?;
        if has_maximum {
            let maximum = 8_u64;
            let place = (&raw const maximum).addr();
            // SAFETY: the maximum is readable.
            unsafe { upoll_fds::ioctl(fd, upoll_fds::EFD_IOC_SET_MAXIMUM, place) }?;
        }
        Ok(fd)
    };
    let begin = move || if is_made { Ok(None) } else { make().map(Some) };
    let check = move |fd: RawFd| -> Result<()> {
        let is_user_level = upoll_fds::is_user_level(fd);
        ensure!(
            is_user_level || !has_maximum,
            "an eventfd with a maximum is the kernel's"
        );
        ensure!(
            upoll_fds::has_any() || !upoll_fds::is_user_level(fd),
            "no fd counts as user-level, and one is"
        );
        Ok(())
    };
    let name = format!("an eventfd moves, new: {is_made}, maximum: {has_maximum}");
    Ok(race(name, Mutex::new(begin()?))
        .call(move |place, rng| {
            let now = *lock(place);
            let mut fd = match now {
                Some(fd) => fd,
                None => make()?,
            };
            check(fd)?;
            for _ in 0..rng.usize(..6) {
                let Some(next) = copy(fd)? else {
                    bail!("an open fd is not copied")
                };
                upoll_fds::close(fd)?;
                fd = next;
                check(fd)?;
            }
            *lock(place) = Some(fd);
            Ok(0)
        })
        .calls(rng.usize(1..=2), |_, _| {
            upoll_fds::demote_all();
            Ok(0)
        })
        .settle(move |place, _| {
            let mut place = lock(place);
            if let Some(fd) = *place {
                let mut count = 0;
                // SAFETY: the count is writable.
                unsafe { upoll_fds::eventfd_read(fd, &raw mut count) }?;
                ensure!(count == 1, "an eventfd that moved has the count {count}");
                upoll_fds::close(fd)?;
            }
            *place = begin()?;
            Ok(())
        }))
}
