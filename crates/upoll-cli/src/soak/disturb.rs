//! Producers: threads that send units, and meanwhile change, close, poll, signal and fork.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use std::time::Duration;
use std::{ptr, thread};

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use rustix::io::retry_on_intr;
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::thread::gettid;
use upoll::{CtlCommand, Epoll, Errno, Event, EventFd, Events, PollContext, PollFd, Timeout, poll};

use super::channel::{Channel, Kind, MOST, is_race};
use super::group::{Group, How, Lane, PASSING};
use super::tally::{Tally, count};

/// The lane that the signal handler writes to. It is null while no signal is sent, and points into
/// a world that outlives the threads that signals are sent to.
static HANDLED: AtomicPtr<Lane> = AtomicPtr::new(ptr::null_mut());

/// Everything that the threads of one round share.
pub(super) struct World {
    pub(super) groups: Vec<Group>,
    /// Written by signal handlers and children of forks, read by a consumer of its own.
    pub(super) outside: Lane,
    /// The id of the thread that reads the outside lane, once it runs.
    outside_thread: AtomicI32,
    /// The ids of the producers, once they run.
    producers: Vec<AtomicI32>,
    pub(super) is_over: AtomicBool,
    pub(super) with_signals: bool,
    pub(super) with_forks: bool,
}

/// Sends the signal to a thread of this process. Its handler writes a unit if a world has begun signals.
pub(super) fn signal(thread: i32) {
    // SAFETY: no memory is involved.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1) };
}

extern "C" fn write_from_handler(_: libc::c_int) {
    let lane = HANDLED.load(Ordering::SeqCst);
    if !lane.is_null() {
        // SAFETY: `World::send_signals` stores a lane that lives until all threads that may be
        // signalled have ended.
        unsafe { (*lane).send(1) };
    }
}

/// Installs the handler of `SIGUSR1`.
pub(super) fn install_handler() -> Result<()> {
    // SAFETY: an all-zero sigaction is valid: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = write_from_handler as extern "C" fn(libc::c_int) as usize;
    // SAFETY: the action is valid and the handler only writes an eventfd, which is allowed there.
    let result = unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut()) };
    ensure!(result == 0, "sigaction failed");
    Ok(())
}

impl World {
    /// Makes a random world of some groups that wait in some of the ways `hows`.
    pub(super) fn new(
        hows: &[How],
        groups: usize,
        producers: usize,
        rng: &mut Rng,
    ) -> Result<Self> {
        let groups = (0..groups)
            .map(|_| Group::new(hows, rng))
            .collect::<Result<_>>()?;
        let with_forks = rng.usize(..4) == 0;
        let kind = if with_forks {
            Kind::Shared
        } else {
            Kind::Counter
        };
        Ok(World {
            groups,
            outside: Lane::new(kind)?,
            outside_thread: AtomicI32::new(0),
            producers: (0..producers).map(|_| AtomicI32::new(0)).collect(),
            is_over: AtomicBool::new(false),
            with_signals: rng.bool(),
            with_forks,
        })
    }

    /// Points signal handlers to this world's outside lane, until [`Self::end_signals`].
    pub(super) fn begin_signals(&self) {
        HANDLED.store((&raw const self.outside).cast_mut(), Ordering::SeqCst);
    }

    pub(super) fn end_signals(&self) {
        HANDLED.store(ptr::null_mut(), Ordering::SeqCst);
    }

    /// Reads the outside lane by a blocking read until the world ends.
    pub(super) fn consume_outside(&self) {
        let thread = gettid().as_raw_pid();
        self.outside_thread.store(thread, Ordering::SeqCst);
        while !self.is_over.load(Ordering::SeqCst) {
            self.outside.receive_blocking();
        }
    }

    /// Asks all consumers to end. It is called until they have ended.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.outside.send(1);
        for group in &self.groups {
            group.end();
        }
    }

    fn lanes(&self) -> impl Iterator<Item = &Lane> {
        let lanes = self.groups.iter().flat_map(|group| &group.lanes);
        lanes.chain([&self.outside])
    }

    /// Returns whether every unit that was sent was received, and no more.
    pub(super) fn is_read(&self) -> bool {
        self.lanes().all(|lane| lane.unread() == 0)
    }

    pub(super) fn sent(&self) -> u64 {
        self.lanes().map(Lane::sent).sum()
    }

    /// Describes the world for the report of a fault.
    pub(super) fn describe(&self) -> String {
        let mut text = format!("outside lane: {}\n", self.outside.describe());
        for group in &self.groups {
            text += &format!("{}\n", group.describe());
            for lane in &group.lanes {
                text += &format!("  {}\n", lane.describe());
            }
        }
        text
    }

    /// Runs one producer for `steps` steps.
    pub(super) fn produce(&self, steps: usize, rng: &mut Rng, tally: &Tally) -> Result<()> {
        let mut context = PollContext::new();
        for _ in 0..steps {
            match rng.usize(..100) {
                0..13 => self.send_and_linger(rng),
                13..95 => self.act(rng, &mut context, tally)?,
                95 if self.with_forks && rng.usize(..10) == 0 => self.fork(tally)?,
                _ => thread::sleep(Duration::from_micros(rng.u64(..300))),
            }
        }
        Ok(())
    }

    /// Does one thing that is over soon.
    pub(super) fn act(
        &self,
        rng: &mut Rng,
        context: &mut PollContext,
        tally: &Tally,
    ) -> Result<()> {
        let group = self.any_group(rng);
        match rng.usize(..80) {
            0..36 => {
                group.any_lane(rng).send(rng.u64(1..=MOST));
            }
            36..42 => group.any_lane(rng).send_blocking(rng.u64(1..=MOST)),
            42..54 => {
                count(&tally.changes);
                group.change(rng)?;
            }
            54..60 => pass_through(group, rng, tally)?,
            60..64 => watch_from_above(group, rng)?,
            64..68 => request(rng).context("a request of one thread")?,
            68..72 => poll_some(group, rng, tally)?,
            72..76 => {
                let limit = Duration::from_micros(rng.u64(..200));
                let index = rng.usize(..group.threads.len());
                group.step(index, Timeout::from(limit), context, tally)?;
            }
            _ if self.with_signals => self.signal(group, rng, tally),
            _ => {}
        }
        Ok(())
    }

    /// Sends units to one lane, and lets the consumers fall asleep.
    fn send_and_linger(&self, rng: &mut Rng) {
        let lane = self.any_group(rng).any_lane(rng);
        lane.send(rng.u64(1..=MOST));
        for _ in 0..rng.usize(..20) {
            if lane.unread() <= 0 {
                break;
            }
            thread::yield_now();
        }
    }

    pub(super) fn any_group(&self, rng: &mut Rng) -> &Group {
        &self.groups[rng.usize(..self.groups.len())]
    }

    /// The ids of the consumers that run.
    pub(super) fn consumers(&self) -> Vec<i32> {
        let groups = self.groups.iter().flat_map(|group| &group.threads);
        let all = groups.chain([&self.outside_thread]);
        all.map(|thread| thread.load(Ordering::SeqCst)).collect()
    }

    /// The ids of all threads that run or have run. One is 0 if a producer may sleep until a child
    /// has run, whose turn on a busy machine may come late.
    pub(super) fn threads(&self) -> Vec<i32> {
        if self.with_forks {
            return vec![0];
        }
        let producers = self.producers.iter();
        let producers = producers.map(|thread| thread.load(Ordering::SeqCst));
        producers.chain(self.consumers()).collect()
    }

    /// Makes the id of this thread known as that of a producer.
    pub(super) fn enter(&self, producer: usize) {
        self.producers[producer].store(gettid().as_raw_pid(), Ordering::SeqCst);
    }

    /// Sends a signal to a consumer, whose handler writes a unit.
    fn signal(&self, group: &Group, rng: &mut Rng, tally: &Tally) {
        let thread = &group.threads[rng.usize(..group.threads.len())];
        let thread = thread.load(Ordering::SeqCst);
        if thread != 0 {
            count(&tally.signals);
            // Consumers outlive producers.
            signal(thread);
        }
    }

    /// Makes a child that writes units to the outside lane and ends.
    fn fork(&self, tally: &Tally) -> Result<()> {
        count(&tally.forks);
        // SAFETY: the child makes only calls that are allowed in a handler: a write to a shared
        // eventfd and `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let sent = self.outside.channel.send(2);
            // SAFETY: ends the child.
            unsafe { libc::_exit(sent as i32) };
        }
        ensure!(child > 0, "fork failed");
        let waited = retry_on_intr(|| waitpid(Pid::from_raw(child), WaitOptions::empty()));
        let waited = waited.context("waitpid")?;
        let sent = waited.and_then(|(_, status)| status.exit_status());
        let sent = sent.with_context(|| format!("a child ended: {waited:?}"))?;
        self.outside.count_sent(sent as u64);
        Ok(())
    }
}

/// Adds a channel with units to a set of the group and closes it with or without a DEL.
fn pass_through(group: &Group, rng: &mut Rng, tally: &Tally) -> Result<()> {
    let Some(set) = group.any_set(rng) else {
        return Ok(());
    };
    count(&tally.closes);
    let channel = Channel::new(Kind::any(rng))?;
    let interest = Events::IN
        | Events::ET
        | if rng.bool() {
            Events::ONESHOT
        } else {
            Events::empty()
        };
    let sent = channel.send(rng.u64(1..=MOST));
    let mut commands = [
        CtlCommand::add(&channel, Event::new(interest, PASSING)),
        CtlCommand::modify(&channel, Event::new(Events::IN | Events::ET, PASSING)),
    ];
    let done = set.ctl_batch(&mut commands)?;
    ensure!(done == 2, "a batch of ADD and MOD ended after {done}");
    let sent = sent + channel.send(rng.u64(1..=MOST));
    if rng.bool() {
        set.delete(&channel)?;
    }
    let received = channel.drain();
    ensure!(
        received == sent,
        "{channel:?}: {sent} units sent, {received} received"
    );
    Ok(())
}

/// Watches a set of the group by a new set above it, and has a new set pass below it.
fn watch_from_above(group: &Group, rng: &mut Rng) -> Result<()> {
    let Some(set) = group.any_set(rng) else {
        return Ok(());
    };
    let passing = Epoll::new()?;
    let (outer, inner) = if rng.bool() {
        (&passing, set)
    } else {
        (set, &passing)
    };
    let ways = [Events::IN, Events::IN | Events::ET];
    let interest = ways[rng.usize(..2)];
    match outer.add(inner, Event::new(interest, PASSING)) {
        Err(Errno::LOOP) => return Ok(()),
        other => other?,
    }
    let mut events = [Event::default(); 2];
    passing.try_wait(&mut events)?;
    if rng.bool() {
        passing
            .wait(&mut events, Duration::from_micros(rng.u64(..100)))
            .map(drop)
            .or_else(ignore_interruption)?;
    }
    if rng.bool() {
        outer.delete(inner)?;
    }
    Ok(())
}

/// Serves one request as a server does: a set and a counter are made, used and closed.
fn request(rng: &mut Rng) -> Result<()> {
    let (set, channel) = (Epoll::new()?, Channel::new(Kind::any(rng))?);
    let mut events = [Event::default(); 2];
    set.add(&channel, Event::new(Events::IN, 1))?;
    ensure!(
        set.try_wait(&mut events)? == 0,
        "{channel:?}: an event before anything was sent"
    );
    let sent = channel.send(1);
    ensure!(set.try_wait(&mut events)? == 1, "{channel:?}: no event");
    let received = channel.drain();
    ensure!(
        received == sent,
        "{channel:?}: {sent} units sent, {received} received"
    );
    ensure!(
        set.try_wait(&mut events)? == 0,
        "{channel:?}: an event after all was received"
    );
    let both = [EventFd::new(0)?, EventFd::new(0)?];
    for (data, counter) in (2..).zip(&both) {
        set.add(counter, Event::new(Events::IN, data))?;
        counter.try_write(1)?;
    }
    ensure!(set.try_wait(&mut events)? == 2, "not both events of two");
    ensure!(
        events.map(|event| event.data()) == [2, 3],
        "two events in the wrong order"
    );
    drop(channel);
    let stranger = EventFd::new(0)?;
    ensure!(is_race(&set.delete(&stranger)), "DEL of a stranger");
    Ok(())
}

/// Polls lanes and a set of the group, at most briefly, and takes nothing.
fn poll_some(group: &Group, rng: &mut Rng, tally: &Tally) -> Result<()> {
    count(&tally.polls);
    let mut list: Vec<_> = group
        .lanes
        .iter()
        .map(|lane| PollFd::new(&lane.channel, Events::IN | Events::OUT))
        .collect();
    if let Some(set) = group.any_set(rng) {
        list.push(PollFd::new(set, Events::IN | Events::OUT));
    }
    let limit = Duration::from_micros(rng.u64(..100));
    poll(&mut list, limit)
        .map(drop)
        .or_else(ignore_interruption)?;
    Ok(())
}

fn ignore_interruption(error: Errno) -> Result<(), Errno> {
    if error == Errno::INTR {
        Ok(())
    } else {
        Err(error)
    }
}
