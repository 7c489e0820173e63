//! Eventfds that processes share: threads of this process and of children, and processes that are killed.

use std::fs::File;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{io, thread};

use anyhow::{Context, Result, bail, ensure};
use fastrand::Rng;
use rustix::io::retry_on_intr;
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use upoll::{Errno, EventFd, EventFdFlags, Events, PollFd, Timeout, poll};

use super::super::channel::Channel;
use super::super::hang::hold;
use super::super::lockstep::{self, Barrier};
use super::super::set_pauses;
use super::wakes::{Waiting, Way};
use super::{Call, Maker, Race, call, file, pause};

/// Races of processes that live.
pub(super) const LIVING: &[Maker] = &[waiting, waiting, contended, room];

/// Races beside a process that is killed.
pub(super) const DYING: &[Maker] = &[killed_beside_sleepers, killed_beside_calls];

/// The highest count of a counter with little room, exclusive.
const MAXIMUM: u64 = 3;

/// A value that child processes share.
pub(super) struct Mapped<T>(NonNull<T>);

// SAFETY: as a reference to the value.
unsafe impl<T: Sync> Send for Mapped<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Mapped<T> {}

impl<T: Sync> Mapped<T> {
    pub(super) fn new(value: T) -> Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: maps new memory.
        let place =
            unsafe { libc::mmap(ptr::null_mut(), size_of::<T>(), protection, flags, -1, 0) };
        ensure!(
            place != libc::MAP_FAILED,
            "mmap: {}",
            io::Error::last_os_error()
        );
        let place = NonNull::new(place.cast::<T>());
        let Some(place) = place else {
            bail!("memory at 0")
        };
        // SAFETY: new memory of that size, at the beginning of a page.
        unsafe { place.write(value) };
        Ok(Mapped(place))
    }
}

impl<T> Deref for Mapped<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: written by `new`, and mapped as long as this lives.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with that size, and nobody borrows it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<T>()) };
    }
}

/// A child process.
pub(super) struct Child(pub(super) libc::pid_t);

impl Child {
    /// Forks a child that runs `body`. All other threads of this process must be in no call of upoll's.
    /// `is_first`: in a pid namespace of its own, if this process has the right to make one. All such children have
    /// the same thread id, by which they take a lock.
    pub(super) fn new(is_first: bool, body: impl FnOnce() -> Result<()>) -> Result<Self> {
        let namespace = File::open("/proc/self/ns/pid")?;
        // SAFETY: no memory is involved.
        let is_first = is_first && unsafe { libc::unshare(libc::CLONE_NEWPID) } == 0;
        let child = Self::fork(|parent| {
            let outcome = catch_unwind(AssertUnwindSafe(body));
            match outcome {
                Ok(Ok(())) => return,
                Ok(Err(error)) => eprintln!("FAULT: in a child process: {error:#}"),
                Err(_) => eprintln!("FAULT: a child process panicked"),
            }
            // SAFETY: no memory is involved. The parent would wait for this process.
            unsafe { libc::kill(parent, libc::SIGTERM) };
        });
        if is_first {
            // Later children and threads are in the namespace of this process again.
            // SAFETY: no memory is involved.
            let result = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWPID) };
            ensure!(result == 0, "setns: {}", io::Error::last_os_error());
        }
        child
    }

    /// Forks a child that runs `body`, which may only make calls that are allowed in a signal handler, unless
    /// there is no other thread.
    pub(super) fn fork(body: impl FnOnce(libc::pid_t)) -> Result<Self> {
        // SAFETY: no memory is involved.
        let parent = unsafe { libc::getpid() };
        let held = hold();
        // SAFETY: the callers' `body` makes no calls that are not allowed.
        let child = unsafe { libc::fork() };
        drop(held);
        ensure!(child >= 0, "fork: {}", io::Error::last_os_error());
        if child > 0 {
            return Ok(Child(child));
        }
        // SAFETY: no memory is involved. This process is to end with its parent.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // It is 0 for a parent in another namespace.
            if ![0, parent].contains(&libc::getppid()) {
                libc::_exit(1);
            }
        }
        body(parent);
        // SAFETY: ends the process. It drops nothing of the parent's.
        unsafe { libc::_exit(0) }
    }

    /// Waits until the child stops or has ended, and returns its status.
    pub(super) fn wait(&self) -> Result<libc::c_int> {
        let waited = retry_on_intr(|| waitpid(Pid::from_raw(self.0), WaitOptions::empty()));
        let waited = waited.context("waitpid")?;
        let (_, status) = waited.context("no child")?;
        Ok(status.as_raw())
    }

    pub(super) fn join(self) -> Result<()> {
        let status = self.wait()?;
        ensure!(status == 0, "a child process ended with status {status}");
        Ok(())
    }

    /// Makes a child that calls `call`, which changes `counter`, and kills that child after a random number of
    /// instructions. `most` is the number of instructions after which an earlier one had ended.
    fn kill(counter: &EventFd, call: impl Fn(), most: &AtomicUsize, rng: &mut Rng) -> Result<()> {
        // A step on this thread's processor takes a fraction of the time of one on another.
        let processors = sched_getaffinity(None)?;
        let mut this = CpuSet::new();
        this.set(sched_getcpu());
        sched_setaffinity(None, &this)?;
        let killed = Self::kill_here(counter, call, most, rng);
        sched_setaffinity(None, &processors)?;
        killed
    }

    fn kill_here(
        counter: &EventFd,
        call: impl Fn(),
        most: &AtomicUsize,
        rng: &mut Rng,
    ) -> Result<()> {
        let child = Self::fork(|_| {
            // The first call of a process has many more instructions than the later ones.
            let _ = counter.maximum();
            // No step is to be in a pause.
            set_pauses(0);
            // SAFETY: no memory is involved. From here on the parent sees each stop.
            let is_seen = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) } == 0;
            if is_seen {
                // SAFETY: no memory is involved.
                unsafe { libc::raise(libc::SIGSTOP) };
                call();
            }
        })?;
        let most_now = most.load(Ordering::SeqCst).max(1);
        let (steps, rest) = (rng.usize(..most_now), rng.usize(..most_now));
        let mut step = 0;
        loop {
            let status = child.wait()?;
            if !libc::WIFSTOPPED(status) {
                ensure!(
                    [0, libc::SIGKILL].contains(&status),
                    "a process that is stepped ended with status {status}"
                );
                break;
            }
            let signal = libc::WSTOPSIG(status);
            ensure!(
                [libc::SIGSTOP, libc::SIGTRAP].contains(&signal),
                "a process that is stepped got signal {signal}"
            );
            if step == rest {
                // The others fall asleep.
                thread::sleep(Duration::from_micros(100));
            }
            // SAFETY: no memory is involved. The child was not waited for since it ended, so it has this number.
            unsafe {
                match step < steps {
                    true => libc::ptrace(libc::PTRACE_SINGLESTEP, child.0, 0, 0),
                    false => libc::kill(child.0, libc::SIGKILL).into(),
                };
            }
            step += 1;
        }
        if step <= steps {
            most.store(step, Ordering::SeqCst);
        }
        Ok(())
    }
}

/// A counter that processes share, as a channel and as itself.
fn shared(rng: &mut Rng) -> Result<(Arc<Channel>, EventFd)> {
    let flags = [EventFdFlags::empty(), EventFdFlags::SEMAPHORE][rng.usize(..2)];
    let counter = EventFd::shared(0, flags)?;
    Ok((Arc::new(Channel::Counter(counter.clone())), counter))
}

/// A counter with little room that is full.
fn full() -> Result<EventFd> {
    let counter = EventFd::shared(MAXIMUM as u32 - 1, EventFdFlags::empty())?;
    counter.set_maximum(MAXIMUM)?;
    Ok(counter)
}

/// A race in which at least one of the calls but the first is that of a process.
fn race(
    name: String,
    first: Call,
    mut others: Vec<Call>,
    rng: &mut Rng,
    settle: impl Fn(&[usize]) -> Result<()> + Send + Sync + 'static,
) -> Race {
    rng.shuffle(&mut others);
    let processes = rng.usize(1..=others.len());
    let name = format!("{name}, {processes} of {} in other processes", others.len());
    others.insert(0, first);
    Race {
        processes,
        ..Race::new(name, others, settle)
    }
}

/// Receives units until `received`, which another process may add to, is `expected`. Then a last unit is sent, for
/// one that still waits.
fn receiver(
    channel: Arc<Channel>,
    received: Arc<Mapped<AtomicUsize>>,
    expected: usize,
    rng: &mut Rng,
) -> Call {
    // A blocking read sleeps on a word of the counter, all others on its notifiers.
    let way = match rng.bool() {
        true => Way::Read,
        false => Way::any_across(rng),
    };
    let (seed, is_new) = (rng.u64(..), rng.usize(..4) == 0);
    let looks = [0, 500][rng.usize(..2)];
    // Made where the call is made: a process does not use the sets of its parent.
    let kept = Mutex::new(None);
    call(move |_| {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if is_new {
            *kept = None;
        }
        let waiting = match &*kept {
            Some(waiting) => waiting,
            None => kept.insert(Waiting::of(
                way,
                channel.clone(),
                &mut Rng::with_seed(seed),
            )?),
        };
        while received.load(Ordering::SeqCst) < expected {
            let looked = || waiting.look().transpose();
            let found = (0..looks).find_map(|_| looked());
            let units = found.unwrap_or_else(|| waiting.receive())?;
            let before = received.fetch_add(units, Ordering::SeqCst);
            if before < expected && before + units >= expected {
                channel.send(1);
            }
        }
        Ok(0)
    })
}

/// One or two threads wait for units that one or two others send.
fn waiting(rng: &mut Rng) -> Result<Race> {
    let (channel, _) = shared(rng)?;
    let received = Arc::new(Mapped::new(AtomicUsize::new(0))?);
    let (units, senders, receivers) = (rng.usize(1..=4), rng.usize(1..=2), rng.usize(1..=2));
    let pauses = rng.bool();
    let send = |channel: Arc<Channel>| {
        call(move |rng| {
            for _ in 0..units {
                channel.send(1);
                match pauses {
                    true => pause(rng),
                    false => lockstep::pause(rng),
                }
            }
            Ok(0)
        })
    };
    let name = format!("{receivers} wait for {units} units of each of {senders}");
    let mut others = Vec::new();
    for _ in 0..receivers {
        others.push(receiver(
            channel.clone(),
            received.clone(),
            units * senders,
            rng,
        ));
    }
    for _ in 1..senders {
        others.push(send(channel.clone()));
    }
    Ok(race(name, send(channel.clone()), others, rng, move |_| {
        received.store(0, Ordering::SeqCst);
        channel.drain();
        Ok(())
    }))
}

/// All change one counter, and no change is lost.
fn contended(rng: &mut Rng) -> Result<Race> {
    let (channel, counter) = shared(rng)?;
    let most = [2, 8, 40][rng.usize(..3)];
    let change = || {
        let (channel, counter) = (channel.clone(), counter.clone());
        call(move |rng| {
            let mut balance = 0_usize;
            for _ in 0..rng.usize(1..most) {
                match rng.usize(..6) {
                    0 => balance = balance.wrapping_sub(channel.receive() as usize),
                    1 => counter.set_maximum(rng.u64(1_000_000..2_000_000))?,
                    _ => balance = balance.wrapping_add(channel.send(1) as usize),
                }
            }
            Ok(balance)
        })
    };
    let others = (0..rng.usize(1..=2)).map(|_| change()).collect();
    let name = "changes of one counter".to_owned();
    let first = change();
    Ok(race(name, first, others, rng, move |balances| {
        let expected = balances
            .iter()
            .fold(0_usize, |sum, one| sum.wrapping_add(*one));
        let left = channel.drain() as usize;
        ensure!(left == expected, "{left} units are left of {expected}");
        Ok(())
    }))
}

/// Writes a unit when there is room.
fn writer(counter: EventFd, rng: &mut Rng) -> Call {
    let by_poll = rng.bool();
    call(move |_| {
        if !by_poll {
            return Ok(counter.write(1).map(|()| 0)?);
        }
        loop {
            poll(&mut [PollFd::new(&counter, Events::OUT)], Timeout::NEVER)?;
            match counter.try_write(1) {
                Err(Errno::AGAIN) => {}
                other => return Ok(other.map(|()| 0)?),
            }
        }
    })
}

/// Makes a counter full again.
fn fill(counter: &EventFd) -> Result<()> {
    let _ = counter.try_read();
    counter.set_maximum(MAXIMUM)?;
    Ok(counter.try_write(MAXIMUM - 1)?)
}

/// One or two wait for room, which a read or a higher maximum makes.
fn room(rng: &mut Rng) -> Result<Race> {
    let counter = full()?;
    let (raises, writers) = (rng.bool(), rng.usize(1..=2));
    let others = (0..writers).map(|_| writer(counter.clone(), rng)).collect();
    let name = format!("{writers} wait for room, by a maximum: {raises}");
    let opener = counter.clone();
    let first = call(move |_| {
        match raises {
            true => opener.set_maximum(2 * MAXIMUM)?,
            false => drop(opener.try_read()?),
        }
        Ok(0)
    });
    Ok(race(name, first, others, rng, move |_| fill(&counter)))
}

/// A process is killed in the middle of a write or a read that others wait for. If it has not changed the counter,
/// the leader does that.
fn killed_beside_sleepers(rng: &mut Rng) -> Result<Race> {
    let reads = rng.usize(..3) == 0;
    let (channel, counter) = match reads {
        true => {
            let counter = full()?;
            (Arc::new(Channel::Counter(counter.clone())), counter)
        }
        false => shared(rng)?,
    };
    let received = Arc::new(Mapped::new(AtomicUsize::new(0))?);
    let count = rng.usize(1..=2);
    let mut others = Vec::new();
    for _ in 0..count {
        others.push(match reads {
            true => writer(counter.clone(), rng),
            false => receiver(channel.clone(), received.clone(), 1, rng),
        });
    }
    let name = format!("{count} wait for a process that is killed, for room: {reads}");
    let (victim, most) = (counter.clone(), AtomicUsize::new(500));
    let first = call(move |rng| {
        let step = || match reads {
            true => drop(victim.try_read()),
            false => drop(victim.try_write(1)),
        };
        Child::kill(&victim, step, &most, rng)?;
        let (is_ready, key) = (file(&victim), if reads { Events::OUT } else { Events::IN });
        if !is_ready.is_ready(key) {
            step();
        }
        Ok(0)
    });
    Ok(race(name, first, others, rng, move |_| {
        received.store(0, Ordering::SeqCst);
        match reads {
            true => fill(&counter)?,
            false => drop(channel.drain()),
        }
        Ok(())
    }))
}

/// A process is killed in the middle of a call while others make calls, or just before that. No change of theirs is
/// lost.
fn killed_beside_calls(rng: &mut Rng) -> Result<Race> {
    /// Each of the others adds so many at once. The process adds 1, or nothing.
    const UNITS: u64 = 10;
    let counter = EventFd::shared(0, EventFdFlags::empty())?;
    let is_killed = Arc::new(Mapped::new(AtomicBool::new(false))?);
    let start = Arc::new(Mapped::new(Barrier::new(2))?);
    let (changes, is_late) = (rng.bool(), rng.bool());
    let add = || {
        let (counter, is_killed, start) = (counter.clone(), is_killed.clone(), start.clone());
        call(move |rng| {
            let mut added = 0;
            if is_late {
                while !is_killed.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_micros(50));
                }
                start.meet();
                lockstep::pause(rng);
            }
            loop {
                counter.try_write(UNITS)?;
                added += 1;
                if is_killed.load(Ordering::SeqCst) {
                    return Ok(added);
                }
                // The process that is stepped gets to run.
                thread::sleep(Duration::from_micros(rng.u64(..50)));
            }
        })
    };
    let others = vec![add(), add()];
    let name = format!("calls beside a process that is killed, late: {is_late}");
    let (victim, flag, most) = (counter.clone(), is_killed.clone(), AtomicUsize::new(500));
    let first = call(move |rng| {
        let step = || match changes {
            true => drop(victim.try_write(1)),
            false => drop(victim.maximum()),
        };
        Child::kill(&victim, step, &most, rng)?;
        flag.store(true, Ordering::SeqCst);
        // The others have the processors for themselves.
        thread::sleep(Duration::from_micros(200));
        Ok(0)
    });
    Ok(race(name, first, others, rng, move |added| {
        let count = counter.try_read().unwrap_or(0);
        let expected = added.iter().sum::<usize>() as u64 * UNITS;
        ensure!(
            count == expected || count == expected + 1,
            "{count} units are left of {expected}"
        );
        is_killed.store(false, Ordering::SeqCst);
        Ok(())
    }))
}
