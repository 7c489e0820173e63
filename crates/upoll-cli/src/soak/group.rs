//! Consumers of one topology: lanes, the sets that watch them, and how threads wait.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use fastrand::Rng;
use rustix::thread::gettid;
use upoll::{
    CreateFlags, Epoll, Event, EventFd, Events, PollContext, PollFd, Source, Target, Timeout, poll,
};

use super::channel::{Channel, Kind, is_race};
use super::tally::Tally;
use super::waits;

/// Data of a group's stop signal.
const STOP: u64 = u64::MAX;
/// Data of members that come and go; their events are nobody's.
pub(super) const PASSING: u64 = u64::MAX - 1;
/// Data of a set below the one that is waited in.
const BELOW: u64 = u64::MAX - 2;

/// The way in which the consumers of a group wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum How {
    /// All in one set.
    SharedSet,
    /// Each in a set of its own.
    OwnSets,
    /// Each in a set of its own, `EPOLLEXCLUSIVE`.
    Exclusive,
    /// Each in a set of its own that watches a rotating set.
    Rotating,
    /// All in the rotating set itself.
    RotatingDirectly,
    /// All in a set above the one that watches the lanes.
    Nested,
    /// In `poll`.
    Poll,
    /// In `select`.
    Select,
    /// In `PollContext::poll`.
    Context,
    /// A blocking read of the only lane.
    Read,
    /// By a `Watch` of the only lane that unparks the thread.
    Watch,
}

impl How {
    fn rotates(self) -> bool {
        matches!(self, How::Rotating | How::RotatingDirectly)
    }

    /// Returns whether the only lane, and no stop signal beside it, ends a wait.
    fn waits_for_lane(self) -> bool {
        matches!(self, How::Read | How::Watch | How::RotatingDirectly)
    }
}

/// A channel with the account of its units.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) channel: Channel,
    sent: AtomicU64,
    received: AtomicU64,
}

impl Lane {
    pub(super) fn new(kind: Kind) -> Result<Self> {
        Ok(Lane {
            channel: Channel::new(kind)?,
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
        })
    }

    pub(super) fn send(&self, units: u64) {
        self.count_sent(self.channel.send(units));
    }

    pub(super) fn send_blocking(&self, units: u64) {
        self.count_sent(self.channel.send_blocking(units));
    }

    pub(super) fn count_sent(&self, units: u64) {
        self.sent.fetch_add(units, Ordering::SeqCst);
    }

    /// Receives units, blocking until there are some or a signal handler runs.
    pub(super) fn receive_blocking(&self) {
        let units = self.channel.receive_blocking();
        self.received.fetch_add(units, Ordering::SeqCst);
    }

    fn receive(&self, all: bool) {
        let units = if all {
            self.channel.drain()
        } else {
            self.channel.receive()
        };
        self.received.fetch_add(units, Ordering::SeqCst);
    }

    /// Returns the number of units under way. Exact only while nothing is sent.
    pub(super) fn unread(&self) -> i64 {
        let received = self.received.load(Ordering::SeqCst);
        self.sent.load(Ordering::SeqCst).wrapping_sub(received) as i64
    }

    pub(super) fn describe(&self) -> String {
        format!(
            "{:?}: {} units sent, {} received, ready for {:?}",
            self.channel,
            self.sent(),
            self.received.load(Ordering::SeqCst),
            self.channel.ready(),
        )
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }
}

/// Lanes, and the threads that wait for them in one way.
pub(super) struct Group {
    how: How,
    /// The events that the lanes are watched for.
    interest: Events,
    /// The events that sets in sets are watched for.
    outer_interest: Events,
    pub(super) lanes: Vec<Lane>,
    /// The sets that watch the lanes.
    watching: Vec<Epoll>,
    /// The sets that threads wait in: one for all, or one each.
    waited: Vec<Epoll>,
    /// Keeps the sets between those two alive.
    _between: Vec<Epoll>,
    stop: EventFd,
    ending: AtomicBool,
    /// The threads' ids, once they run.
    pub(super) threads: Vec<AtomicI32>,
}

impl Group {
    /// Makes a random group whose consumers wait in one of the ways `hows`.
    pub(super) fn new(hows: &[How], rng: &mut Rng) -> Result<Self> {
        let how = rng.choice(hows).copied().unwrap_or(How::SharedSet);
        let single = how.rotates() || how.waits_for_lane();
        let lanes = if single { 1 } else { rng.usize(1..=6) };
        let kind = |rng: &mut Rng| match how {
            How::Read => Kind::any_blocking(rng),
            How::Watch => Kind::any_private(rng),
            _ => Kind::any(rng),
        };
        let lanes = (0..lanes)
            .map(|_| Lane::new(kind(rng)))
            .collect::<Result<Vec<_>>>()?;
        let threads = rng.usize(1..=4);
        let mut interest = Events::IN;
        let mut outer_interest = Events::IN;
        match how {
            How::Exclusive => {
                interest |= Events::EXCLUSIVE | one_of(rng, &[Events::empty(), Events::ET])
            }
            How::Rotating => outer_interest |= one_of(rng, &[Events::empty(), Events::ET]),
            How::RotatingDirectly => {}
            _ => {
                let ways = [
                    Events::empty(),
                    Events::ET,
                    Events::ONESHOT,
                    Events::ET | Events::ONESHOT,
                ];
                interest |= one_of(rng, &ways);
                outer_interest |= one_of(rng, &ways[..2]);
            }
        }
        let stop = EventFd::new(0)?;
        let Sets {
            watching,
            waited,
            between,
        } = Sets::new(how, threads, outer_interest, rng)?;
        for set in &watching {
            for (index, lane) in lanes.iter().enumerate() {
                set.add(&lane.channel, Event::new(interest, index as u64))?;
            }
        }
        if how != How::RotatingDirectly {
            for set in &waited {
                set.add(&stop, Event::new(Events::IN, STOP))?;
            }
        }
        Ok(Group {
            how,
            interest,
            outer_interest,
            lanes,
            watching,
            waited,
            _between: between,
            stop,
            ending: AtomicBool::new(false),
            threads: (0..threads).map(|_| AtomicI32::new(0)).collect(),
        })
    }

    /// Describes the group for the report of a fault.
    pub(super) fn describe(&self) -> String {
        let kinds: Vec<_> = self.lanes.iter().map(|lane| &lane.channel).collect();
        format!(
            "{} threads wait by {:?} for {kinds:?}, interest {:?}, in outer sets {:?}",
            self.threads.len(),
            self.how,
            self.interest,
            self.outer_interest,
        )
    }

    /// Runs the consumer `index` until the group ends.
    pub(super) fn consume(&self, index: usize, tally: &Tally) -> Result<()> {
        self.threads[index].store(gettid().as_raw_pid(), Ordering::SeqCst);
        let mut context = PollContext::new();
        while !self.ending.load(Ordering::SeqCst) {
            self.step(index, Timeout::NEVER, &mut context, tally)?;
        }
        Ok(())
    }

    /// Waits once, at most for `timeout`, and takes what is reported. A thread keeps `context` from one wait to the next.
    pub(super) fn step(
        &self,
        index: usize,
        timeout: Timeout,
        context: &mut PollContext,
        tally: &Tally,
    ) -> Result<()> {
        tally.waits.fetch_add(1, Ordering::Relaxed);
        match self.how {
            How::Read => {
                let lane = &self.lanes[0];
                if timeout.limit().is_none() {
                    lane.receive_blocking();
                } else {
                    lane.receive(false);
                }
            }
            How::Watch => {
                let lane = &self.lanes[0];
                let Target::File(file) = lane.channel.target() else {
                    bail!("only user-level objects have callbacks");
                };
                let limit = timeout.limit().map(|_| Duration::from_micros(50));
                waits::watch(&file, limit)?;
                lane.receive(false);
            }
            How::Poll | How::Context => {
                let mut list = waits::entries(self.lanes.iter().map(|lane| &lane.channel));
                list.push(PollFd::new(&self.stop, Events::IN));
                let found = if self.how == How::Poll {
                    poll(&mut list, timeout)
                } else {
                    context.poll(&mut list, timeout)
                };
                if found.is_ok_and(|found| found > 0) {
                    for (lane, entry) in self.lanes.iter().zip(&list) {
                        if !entry.revents().is_empty() {
                            lane.receive(false);
                        }
                    }
                }
            }
            How::Select => {
                let lanes = self.lanes.iter().map(|lane| &lane.channel as &dyn Source);
                let sources: Vec<_> = lanes.chain([&self.stop as &dyn Source]).collect();
                let found = waits::select(&sources, timeout).unwrap_or_default();
                for lane in found.iter().filter_map(|&at| self.lanes.get(at)) {
                    lane.receive(false);
                }
            }
            _ => {
                let set = &self.waited[index % self.waited.len()];
                let mut events = [Event::default(); 4];
                let room = 1 + index % events.len();
                let found = if index.is_multiple_of(2) {
                    set.wait(&mut events[..room], timeout)
                } else {
                    set.pwait1(&mut events[..room], timeout, None)
                };
                match found {
                    Ok(found) => {
                        self.take(index, &events[..found])?;
                        if self.how == How::RotatingDirectly && timeout.limit().is_some() {
                            // No other worker is told of what one leaves that does not come back.
                            self.lanes[0].receive(true);
                        }
                    }
                    Err(upoll::Errno::INTR) => {}
                    Err(error) => bail!("a wait failed with {error}"),
                }
            }
        }
        Ok(())
    }

    /// Takes the units that `events` announce.
    fn take(&self, index: usize, events: &[Event]) -> Result<()> {
        for event in events {
            match event.data() {
                STOP | PASSING => {}
                BELOW if self.how == How::Rotating => {
                    self.lanes[0].receive(self.outer_interest.contains(Events::ET))
                }
                BELOW => self.take_below()?,
                lane => {
                    let position = lane as usize;
                    ensure!(
                        position < self.lanes.len(),
                        "an event has the data {lane}, which nobody gave"
                    );
                    let lane = &self.lanes[position];
                    lane.receive(self.interest.contains(Events::ET));
                    if self.interest.contains(Events::ONESHOT) {
                        let set = &self.watching[index % self.watching.len()];
                        let rearmed = set.modify(&lane.channel, self.event(position));
                        ensure!(is_race(&rearmed), "MOD failed: {rearmed:?}");
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes everything that the set below the outer one reports.
    fn take_below(&self) -> Result<()> {
        let mut events = [Event::default(); 3];
        loop {
            let found = self.watching[0].try_wait(&mut events)?;
            if found == 0 || self.ending.load(Ordering::SeqCst) {
                return Ok(());
            }
            self.take(0, &events[..found])?;
            if events[..found].iter().all(|event| event.data() == PASSING) {
                return Ok(());
            }
        }
    }

    fn event(&self, lane: usize) -> Event {
        Event::new(self.interest, lane as u64)
    }

    /// Changes the interest in a lane and puts it back; other threads may do the same.
    pub(super) fn change(&self, rng: &mut Rng) -> Result<()> {
        let Some(set) = rng.choice(&self.watching) else {
            return Ok(());
        };
        let position = rng.usize(..self.lanes.len());
        let (channel, event) = (&self.lanes[position].channel, self.event(position));
        if rng.bool() && !self.interest.contains(Events::EXCLUSIVE) {
            let modified = set.modify(channel, event);
            ensure!(is_race(&modified), "MOD failed: {modified:?}");
        } else {
            let deleted = set.delete(channel);
            ensure!(is_race(&deleted), "DEL failed: {deleted:?}");
            let added = set.add(channel, event);
            // A rotating set has room for one source, which another thread may be changing.
            let is_other_source = self.how.rotates() && added == Err(upoll::Errno::INVAL);
            ensure!(is_race(&added) || is_other_source, "ADD failed: {added:?}");
        }
        Ok(())
    }

    pub(super) fn any_lane(&self, rng: &mut Rng) -> &Lane {
        &self.lanes[rng.usize(..self.lanes.len())]
    }

    /// A set of the group that members may be added to in passing.
    pub(super) fn any_set(&self, rng: &mut Rng) -> Option<&Epoll> {
        if self.how.rotates() {
            return None;
        }
        rng.choice(&self.watching)
    }

    /// Asks every consumer to end once all lanes are read.
    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::SeqCst);
        let _ = self.stop.try_write(1);
        if self.how.waits_for_lane() {
            self.lanes[0].send(1);
        }
    }
}

/// The sets of a group; see [`Group`].
struct Sets {
    watching: Vec<Epoll>,
    waited: Vec<Epoll>,
    between: Vec<Epoll>,
}

impl Sets {
    fn new(how: How, threads: usize, outer_interest: Events, rng: &mut Rng) -> Result<Self> {
        let several = || {
            (0..threads)
                .map(|_| Epoll::new())
                .collect::<Result<Vec<_>, _>>()
        };
        let outer = Event::new(outer_interest, BELOW);
        let mut between = Vec::new();
        let (watching, waited) = match how {
            How::SharedSet => {
                let set = Epoll::new()?;
                (vec![set.clone()], vec![set])
            }
            How::OwnSets | How::Exclusive => {
                let sets = several()?;
                (sets.clone(), sets)
            }
            How::Rotating => {
                let rotating = Epoll::create(CreateFlags::ROTATE)?;
                let workers = several()?;
                for worker in &workers {
                    worker.add(&rotating, outer)?;
                }
                (vec![rotating], workers)
            }
            How::RotatingDirectly => {
                let rotating = Epoll::create(CreateFlags::ROTATE)?;
                (vec![rotating.clone()], vec![rotating])
            }
            How::Nested => {
                let bottom = Epoll::new()?;
                let mut top = Epoll::new()?;
                top.add(&bottom, outer)?;
                if rng.bool() {
                    let above = Epoll::new()?;
                    above.add(&top, Event::new(Events::IN, BELOW))?;
                    between.push(top);
                    top = above;
                }
                (vec![bottom], vec![top])
            }
            How::Poll | How::Select | How::Context | How::Read | How::Watch => {
                (Vec::new(), Vec::new())
            }
        };
        Ok(Sets {
            watching,
            waited,
            between,
        })
    }
}

fn one_of(rng: &mut Rng, choices: &[Events]) -> Events {
    rng.choice(choices).copied().unwrap_or_default()
}
