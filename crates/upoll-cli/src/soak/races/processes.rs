//! Eventfds that processes share: threads of this process and of children, and processes that are killed.

use std::fs::File;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
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
use super::{Maker, Race, file, lock, pause, race, send};

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
struct Counter {
    channel: Arc<Channel>,
    counter: EventFd,
    /// Units that were received.
    received: Mapped<AtomicUsize>,
}

impl Counter {
    fn new(counter: EventFd) -> Result<Self> {
        Ok(Counter {
            channel: Arc::new(Channel::Counter(counter.clone())),
            counter,
            received: Mapped::new(AtomicUsize::new(0))?,
        })
    }

    /// A counter of either kind.
    fn any(rng: &mut Rng) -> Result<Self> {
        let flags = [EventFdFlags::empty(), EventFdFlags::SEMAPHORE][rng.usize(..2)];
        Self::new(EventFd::shared(0, flags)?)
    }

    /// A counter with little room that is full.
    fn full() -> Result<Self> {
        let counter = EventFd::shared(MAXIMUM as u32 - 1, EventFdFlags::empty())?;
        counter.set_maximum(MAXIMUM)?;
        Self::new(counter)
    }

    /// Makes the counter full again.
    fn fill(&self) -> Result<()> {
        let _ = self.counter.try_read();
        self.counter.set_maximum(MAXIMUM)?;
        Ok(self.counter.try_write(MAXIMUM - 1)?)
    }

    /// Writes a unit when there is room.
    fn write(&self, by_poll: bool) -> Result<usize> {
        let counter = &self.counter;
        if !by_poll {
            return Ok(counter.write(1).map(|()| 0)?);
        }
        loop {
            poll(&mut [PollFd::new(counter, Events::OUT)], Timeout::NEVER)?;
            match counter.try_write(1) {
                Err(Errno::AGAIN) => {}
                other => return Ok(other.map(|()| 0)?),
            }
        }
    }
}

/// The way in which a thread receives units.
struct Receiver {
    way: Way,
    seed: u64,
    /// True if it waits on objects of its own each time.
    is_new: bool,
    tries: usize,
    /// Made where the call is made: a process does not use the sets of its parent.
    kept: Mutex<Option<Waiting>>,
}

impl Receiver {
    fn any(rng: &mut Rng) -> Self {
        Receiver {
            // A blocking read sleeps on a word of the counter, all others on its notifiers.
            way: match rng.bool() {
                true => Way::Read,
                false => Way::any_across(rng),
            },
            seed: rng.u64(..),
            is_new: rng.usize(..4) == 0,
            tries: [0, 500][rng.usize(..2)],
            kept: Mutex::default(),
        }
    }

    /// Receives units until all that were received, also by other processes, are `expected`. Then a last unit is sent,
    /// for one that still waits.
    fn receive(&self, from: &Counter, expected: usize) -> Result<usize> {
        let mut kept = lock(&self.kept);
        if self.is_new {
            *kept = None;
        }
        let waiting = match &*kept {
            Some(waiting) => waiting,
            None => {
                let mut rng = Rng::with_seed(self.seed);
                kept.insert(Waiting::of(self.way, from.channel.clone(), &mut rng)?)
            }
        };
        while from.received.load(Ordering::SeqCst) < expected {
            let received = || waiting.try_receive().transpose();
            let found = (0..self.tries).find_map(|_| received());
            let units = found.unwrap_or_else(|| waiting.receive())?;
            let before = from.received.fetch_add(units, Ordering::SeqCst);
            if before < expected && before + units >= expected {
                from.channel.send(1);
            }
        }
        Ok(0)
    }
}

/// One or two threads wait for units that one or two others send.
fn waiting(rng: &mut Rng) -> Result<Race> {
    let (units, senders, receivers) = (rng.usize(1..=4), rng.usize(1..=2), rng.usize(1..=2));
    let pauses = rng.bool();
    let name = format!("{receivers} wait for {units} units of each of {senders}");
    let mut draft = race(name, Counter::any(rng)?).calls(senders, move |shared, rng| {
        for _ in 0..units {
            shared.channel.send(1);
            match pauses {
                true => pause(rng),
                false => lockstep::pause(rng),
            }
        }
        Ok(0)
    });
    for _ in 0..receivers {
        let receiver = Receiver::any(rng);
        draft = draft.call(move |shared, _| receiver.receive(shared, units * senders));
    }
    Ok(draft.in_processes(rng).settle(|shared, _| {
        shared.received.store(0, Ordering::SeqCst);
        shared.channel.drain();
        Ok(())
    }))
}

/// All change one counter, and no change is lost.
fn contended(rng: &mut Rng) -> Result<Race> {
    let most = [2, 8, 40][rng.usize(..3)];
    Ok(race("changes of one counter", Counter::any(rng)?)
        .calls(1 + rng.usize(1..=2), move |shared, rng| {
            let mut balance = 0_usize;
            for _ in 0..rng.usize(1..most) {
                match rng.usize(..6) {
                    0 => balance = balance.wrapping_sub(shared.channel.receive() as usize),
                    1 => shared.counter.set_maximum(rng.u64(1_000_000..2_000_000))?,
                    _ => balance = balance.wrapping_add(send(&shared.channel)?),
                }
            }
            Ok(balance)
        })
        .in_processes(rng)
        .settle(|shared, balances| {
            let expected = balances
                .iter()
                .fold(0_usize, |sum, one| sum.wrapping_add(*one));
            let left = shared.channel.drain() as usize;
            ensure!(left == expected, "{left} units are left of {expected}");
            Ok(())
        }))
}

/// One or two wait for room, which a read or a higher maximum makes.
fn room(rng: &mut Rng) -> Result<Race> {
    let (raises, writers) = (rng.bool(), rng.usize(1..=2));
    let name = format!("{writers} wait for room, by a maximum: {raises}");
    let mut draft = race(name, Counter::full()?).call(move |shared, _| {
        match raises {
            true => shared.counter.set_maximum(2 * MAXIMUM)?,
            false => drop(shared.counter.try_read()?),
        }
        Ok(0)
    });
    for _ in 0..writers {
        let by_poll = rng.bool();
        draft = draft.call(move |shared, _| shared.write(by_poll));
    }
    Ok(draft.in_processes(rng).settle(|shared, _| shared.fill()))
}

/// A process is killed in the middle of a write or a read that others wait for. If it has not changed the counter,
/// the leader does that.
fn killed_beside_sleepers(rng: &mut Rng) -> Result<Race> {
    let reads = rng.usize(..3) == 0;
    let shared = match reads {
        true => Counter::full()?,
        false => Counter::any(rng)?,
    };
    let count = rng.usize(1..=2);
    let name = format!("{count} wait for a process that is killed, for room: {reads}");
    let most = AtomicUsize::new(500);
    let mut draft = race(name, shared).call(move |shared, rng| {
        let counter = &shared.counter;
        let step = || match reads {
            true => drop(counter.try_read()),
            false => drop(counter.try_write(1)),
        };
        Child::kill(counter, step, &most, rng)?;
        let key = if reads { Events::OUT } else { Events::IN };
        if !file(counter).is_ready(key) {
            step();
        }
        Ok(0)
    });
    for _ in 0..count {
        let (by_poll, receiver) = (rng.bool(), Receiver::any(rng));
        draft = draft.call(move |shared, _| match reads {
            true => shared.write(by_poll),
            false => receiver.receive(shared, 1),
        });
    }
    Ok(draft.in_processes(rng).settle(move |shared, _| {
        shared.received.store(0, Ordering::SeqCst);
        match reads {
            true => shared.fill()?,
            false => drop(shared.channel.drain()),
        }
        Ok(())
    }))
}

/// A process is killed in the middle of a call while others make calls, or just before that. No change of theirs is
/// lost.
fn killed_beside_calls(rng: &mut Rng) -> Result<Race> {
    /// Each of the others adds so many at once. The process adds 1, or nothing.
    const UNITS: u64 = 10;
    struct Killed {
        counter: EventFd,
        is_killed: Mapped<AtomicBool>,
        start: Mapped<Barrier>,
    }
    let killed = Killed {
        counter: EventFd::shared(0, EventFdFlags::empty())?,
        is_killed: Mapped::new(AtomicBool::new(false))?,
        start: Mapped::new(Barrier::new(2))?,
    };
    let (changes, is_late) = (rng.bool(), rng.bool());
    let name = format!("calls beside a process that is killed, late: {is_late}");
    let most = AtomicUsize::new(500);
    Ok(race(name, killed)
        .call(move |killed, rng| {
            let step = || match changes {
                true => drop(killed.counter.try_write(1)),
                false => drop(killed.counter.maximum()),
            };
            Child::kill(&killed.counter, step, &most, rng)?;
            killed.is_killed.store(true, Ordering::SeqCst);
            // The others have the processors for themselves.
            thread::sleep(Duration::from_micros(200));
            Ok(0)
        })
        .calls(2, move |killed, rng| {
            let mut added = 0;
            if is_late {
                while !killed.is_killed.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_micros(50));
                }
                killed.start.meet();
                lockstep::pause(rng);
            }
            loop {
                killed.counter.try_write(UNITS)?;
                added += 1;
                if killed.is_killed.load(Ordering::SeqCst) {
                    return Ok(added);
                }
                // The process that is stepped gets to run.
                thread::sleep(Duration::from_micros(rng.u64(..50)));
            }
        })
        .in_processes(rng)
        .settle(|killed, added| {
            let count = killed.counter.try_read().unwrap_or(0);
            let expected = added.iter().sum::<usize>() as u64 * UNITS;
            ensure!(
                count == expected || count == expected + 1,
                "{count} units are left of {expected}"
            );
            killed.is_killed.store(false, Ordering::SeqCst);
            Ok(())
        }))
}
