//! Threads that go to sleep in every way, against what is to wake them.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use fastrand::Rng;
use upoll::{
    CreateFlags, Epoll, Event, Events, File, PipeReader, PipeWriter, PollContext, PollFd,
    Readiness, Source, Timeout, Watch, pipe, poll,
};

use super::super::channel::{Channel, Kind};
use super::super::waits;
use super::tasks::{Count, block_on};
use super::{
    EDGE, LEVEL, Maker, Race, Watched, any_channel, file, harvest, lock, open, pause, race, send,
};

pub(super) const RACES: &[Maker] = &[
    // The first one has more variants than all the others.
    sleeping,
    leaving,
    registering,
    registering,
    registering,
    new_waker,
    kept_mark,
    moving_context,
    closing,
];

/// A way in which a thread waits for a channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Way {
    Set,
    SetAbove,
    PollOfSet,
    Rotating,
    Poll,
    Select,
    Context,
    NewContext,
    Read,
    Watch,
    Readiness,
}

const WAYS: [Way; 11] = [
    Way::Set,
    Way::SetAbove,
    Way::PollOfSet,
    Way::Rotating,
    Way::Poll,
    Way::Select,
    Way::Context,
    Way::NewContext,
    Way::Read,
    Way::Watch,
    Way::Readiness,
];

impl Way {
    /// Returns any way that notices units of another process.
    pub(super) fn any_across(rng: &mut Rng) -> Self {
        loop {
            let way = WAYS[rng.usize(..WAYS.len())];
            if !matches!(way, Way::Watch | Way::Readiness) {
                return way;
            }
        }
    }
}

/// A thread that waits for a channel.
pub(super) struct Waiting {
    way: Way,
    channel: Arc<Channel>,
    /// A kernel fd that is never ready. With it threads sleep in the kernel.
    idle: Option<Arc<Channel>>,
    set: Epoll,
    /// Keeps the set between that and the channel open.
    _below: Option<Epoll>,
    context: Mutex<PollContext>,
}

impl Waiting {
    fn new(rng: &mut Rng) -> Result<Self> {
        let way = WAYS[rng.usize(..WAYS.len())];
        let kind = match way {
            Way::Read => Kind::any_blocking(rng),
            Way::Watch | Way::Readiness => Kind::any_private(rng),
            // The object whose order is the weakest.
            _ if rng.bool() => Kind::Mailbox,
            _ => Kind::any(rng),
        };
        Self::of(way, Arc::new(Channel::new(kind)?), rng)
    }

    pub(super) fn of(way: Way, channel: Arc<Channel>, rng: &mut Rng) -> Result<Self> {
        let idle = match rng.bool() && way != Way::Rotating {
            true => Some(Arc::new(Channel::new(Kind::KernelPipe)?)),
            false => None,
        };
        let rotates = way == Way::Rotating;
        let mut set = Epoll::create(match rotates {
            true => CreateFlags::ROTATE,
            false => CreateFlags::empty(),
        })?;
        let interest = if rng.bool() || rotates { LEVEL } else { EDGE };
        set.add(&*channel, interest)?;
        if let Some(idle) = &idle {
            set.add(&**idle, LEVEL)?;
        }
        let mut below = None;
        if matches!(way, Way::SetAbove | Way::Rotating) {
            let above = Epoll::new()?;
            above.add(&set, LEVEL)?;
            below = Some(std::mem::replace(&mut set, above));
        }
        Ok(Waiting {
            way,
            channel,
            idle,
            set,
            _below: below,
            context: Mutex::default(),
        })
    }

    fn sources(&self) -> Vec<&Channel> {
        let idle = self.idle.iter().map(|idle| &**idle);
        [&*self.channel].into_iter().chain(idle).collect()
    }

    /// Waits until the channel may be ready.
    fn wait(&self) -> Result<()> {
        let mut events = [Event::default(); 2];
        let never = Timeout::NEVER;
        let list = || waits::entries(self.sources());
        let found = match self.way {
            Way::Set | Way::SetAbove | Way::Rotating => self.set.wait(&mut events, never)?,
            Way::PollOfSet => poll(&mut [PollFd::new(&self.set, Events::IN)], never)?,
            Way::Poll => poll(&mut list(), never)?,
            Way::Context => {
                let mut context = lock(&self.context);
                context.poll(&mut list(), never)?
            }
            Way::NewContext => PollContext::new().poll(&mut list(), never)?,
            Way::Select => {
                let sources = self.sources();
                let sources: Vec<_> = sources.into_iter().map(|one| one as &dyn Source).collect();
                waits::select(&sources, never)?.len()
            }
            Way::Watch => {
                waits::watch(&file(&*self.channel), None)?;
                1
            }
            Way::Readiness => {
                block_on(Readiness::new(&file(&*self.channel), Events::IN)?);
                1
            }
            Way::Read => 1,
        };
        ensure!(found == 1, "{found} events of one");
        Ok(())
    }

    /// Takes units if a set reports the channel, and does not wait.
    pub(super) fn try_receive(&self) -> Result<Option<usize>> {
        let has_set = matches!(self.way, Way::Set | Way::SetAbove);
        Ok(match has_set && harvest(&self.set)? > 0 {
            true => Some(self.channel.drain() as usize).filter(|units| *units > 0),
            false => None,
        })
    }

    /// Waits for a unit and takes it.
    pub(super) fn receive(&self) -> Result<usize> {
        loop {
            if self.way == Way::Read {
                let received = self.channel.receive_blocking();
                if received > 0 {
                    return Ok(received as usize);
                }
                continue;
            }
            self.wait()?;
            if matches!(self.way, Way::SetAbove | Way::PollOfSet) {
                // An edge that this takes off the ready list is that of a unit received next.
                harvest(&self.set)?;
            }
            let received = self.channel.drain() as usize;
            if received > 0 {
                return Ok(received);
            }
        }
    }
}

/// A thread goes to sleep for a unit that another one sends. A third one may look at the set, or change it.
fn sleeping(rng: &mut Rng) -> Result<Race> {
    let waiting = Waiting::new(rng)?;
    let name = format!(
        "a thread waits by {:?} for {:?}, with a kernel fd: {}",
        waiting.way,
        waiting.channel,
        waiting.idle.is_some(),
    );
    let disturbs = rng.bool();
    let has_set = matches!(waiting.way, Way::Set | Way::SetAbove | Way::Rotating);
    let polls = has_set && rng.bool();
    Ok(race(name, waiting)
        .call(move |waiting, rng| {
            // Until the unit comes the other thread gets up and looks, again and again.
            for _ in 0..if disturbs { rng.usize(..20) } else { 0 } {
                if !waiting.channel.disturb() {
                    return Ok(1);
                }
                pause(rng);
            }
            send(&waiting.channel)
        })
        .call(|waiting, _| waiting.receive())
        .calls(usize::from(polls), |waiting, _| {
            let mut entries = [PollFd::new(&waiting.set, Events::IN)];
            Ok(poll(&mut entries, Timeout::NOW)?)
        })
        .settle(|_, returned| {
            ensure!(returned[..2] == [1, 1], "a unit was not received once");
            Ok(())
        }))
}

/// Of two threads that sleep in one set, or for one edge, one leaves as its limit ends.
fn leaving(rng: &mut Rng) -> Result<Race> {
    let channel = any_channel(rng)?;
    let rotates = rng.bool();
    let in_kernel = !rotates && rng.bool();
    let set = Epoll::create(match rotates {
        true => CreateFlags::ROTATE,
        false => CreateFlags::empty(),
    })?;
    set.add(&channel, EDGE)?;
    let idle = Channel::new(Kind::KernelPipe)?;
    if in_kernel {
        set.add(&idle, LEVEL)?;
    }
    let name = format!("a limit ends beside a wait for {channel:?}, rotating: {rotates}");
    let is_short = rng.bool();
    Ok(race(name, Watched { channel, set })
        .call(move |watched, rng| {
            if !is_short {
                thread::sleep(Duration::from_micros(rng.u64(..60)));
            }
            for _ in 0..rng.usize(..4) {
                watched.channel.disturb();
                pause(rng);
            }
            send(&watched.channel)
        })
        .call(move |watched, rng| {
            for _ in 0..if is_short { rng.usize(1..30) } else { 1 } {
                let limit = match is_short {
                    true => Duration::from_nanos(1),
                    false => Duration::from_micros(rng.u64(..60)),
                };
                let found = watched.set.wait(&mut [Event::default(); 2], limit)?;
                if found > 0 {
                    // The unit of the thread that leaves was the other one's too.
                    watched.channel.send(1);
                    return Ok(found);
                }
            }
            Ok(0)
        })
        .call(move |watched, _| {
            let _keep = &idle;
            Ok(watched
                .set
                .wait(&mut [Event::default(); 2], Timeout::NEVER)?)
        })
        .settle(|watched, returned| {
            ensure!(returned[2] == 1, "no event for the thread that stays");
            watched.channel.drain();
            Ok(())
        }))
}

/// A channel, and a callback for it or for a set that watches it.
struct Registered {
    watched: Watched,
    by_set: bool,
    watch: Mutex<Option<Watch>>,
    calls: Arc<AtomicUsize>,
}

impl Registered {
    fn file(&self) -> File {
        match self.by_set {
            true => open(&self.watched.set),
            false => open(&self.watched.channel),
        }
    }

    /// Registers the callback. Returns 1 if the file is ready.
    fn register(&self) -> Result<usize> {
        let calls = self.calls.clone();
        let (watch, ready) = Watch::new(&self.file(), Events::IN, move |_| {
            calls.fetch_add(1, Ordering::SeqCst);
        })?;
        *lock(&self.watch) = Some(watch);
        Ok(usize::from(!ready.is_empty()))
    }
}

/// A callback is registered while a unit comes: it is called, or the registration sees the unit. Another
/// thread may come and go in the same queue meanwhile.
fn registering(rng: &mut Rng) -> Result<Race> {
    let channel = match rng.bool() {
        true => Channel::new(Kind::Mailbox)?,
        false => any_channel(rng)?,
    };
    let registered = Registered {
        watched: Watched::new(channel, LEVEL)?,
        by_set: rng.bool(),
        watch: Mutex::default(),
        calls: Arc::default(),
    };
    let registers = rng.bool();
    let name = format!(
        "a callback for {:?}, in a set: {}, registered meanwhile: {registers}",
        registered.watched.channel, registered.by_set
    );
    if !registers {
        registered.register()?;
    }
    Ok(race(name, registered)
        .call(|registered, _| send(&registered.watched.channel))
        .call(move |registered, rng| {
            if registers {
                return registered.register();
            }
            let file = registered.file();
            for _ in 0..rng.usize(1..8) {
                drop(Watch::new(&file, Events::IN, |_| {})?);
            }
            Ok(0)
        })
        .settle(move |registered, returned| {
            let was_ready = registers && returned[1] > 0;
            let heard = registered.calls.load(Ordering::SeqCst);
            ensure!(was_ready || heard > 0, "a callback was not called");
            drop(lock(&registered.watch).take());
            registered.watched.channel.drain();
            registered.watched.harvest()?;
            registered.calls.store(0, Ordering::SeqCst);
            if !registers {
                registered.register()?;
            }
            Ok(())
        }))
}

/// Returns a task that waits for the channel.
fn pending(channel: &Channel) -> Result<Pin<Box<Readiness>>> {
    let mut ready = Box::pin(Readiness::new(&file(channel), Events::IN)?);
    let polled = ready.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    ensure!(polled.is_pending(), "ready at first");
    Ok(ready)
}

/// A task is polled with a new waker while a unit comes: the poll finds the unit, or the new waker is called.
fn new_waker(rng: &mut Rng) -> Result<Race> {
    let channel = any_channel(rng)?;
    let task = Mutex::new(pending(&channel)?);
    let woken = Arc::new(Count::default());
    let name = format!("a task that waits for {channel:?} gets a new waker");
    Ok(race(name, (task, channel, woken))
        .call(|(_, channel, _), _| send(channel))
        .call(|(task, _, woken), _| {
            let waker = Waker::from(woken.clone());
            let mut task = lock(task);
            let polled = task.as_mut().poll(&mut Context::from_waker(&waker));
            Ok(usize::from(polled.is_ready()))
        })
        .settle(|(task, channel, woken), found| {
            let times = woken.0.swap(0, Ordering::SeqCst);
            ensure!(found[1] + times > 0, "a task is not woken");
            channel.drain();
            *lock(task) = pending(channel)?;
            Ok(())
        }))
}

/// A poll context polls while a unit comes; the next call finds the unit.
fn kept_mark(rng: &mut Rng) -> Result<Race> {
    let channel = any_channel(rng)?;
    let name = format!("a context looks at {channel:?}");
    let poll = |context: &Mutex<PollContext>, channel: &Channel| -> Result<usize> {
        let mut list = [PollFd::new(channel, Events::IN)];
        Ok(lock(context).poll(&mut list, Timeout::NOW)?)
    };
    let is_new = rng.bool();
    Ok(race(name, (Mutex::new(PollContext::new()), channel))
        .call(|(_, channel), _| send(channel))
        .call(move |(context, channel), _| poll(context, channel))
        .settle(move |(context, channel), _| {
            ensure!(poll(context, channel)? == 1, "a unit is not found");
            channel.drain();
            let found = poll(context, channel)?;
            ensure!(found == 0, "a unit is found that was taken");
            // Marked, and idle at the next poll.
            channel.disturb();
            if is_new {
                lock(context).clear();
            }
            Ok(())
        }))
}

/// Two channels, and a context in which threads wait one after the other.
struct Moving {
    channels: [Channel; 2],
    context: Mutex<PollContext>,
}

impl Moving {
    /// Waits for a channel until it has units. The context may have looked at the other one before.
    fn receive(&self, which: usize, with_both: bool) -> Result<usize> {
        loop {
            let mut context = lock(&self.context);
            let mut list = vec![PollFd::new(&self.channels[which], Events::IN)];
            if with_both {
                list.push(PollFd::new(&self.channels[1 - which], Events::IN));
                context.poll(&mut list, Timeout::NOW)?;
                list.pop();
            }
            context.poll(&mut list, Timeout::NEVER)?;
            drop(context);
            let received = self.channels[which].drain() as usize;
            if received > 0 {
                return Ok(received);
            }
        }
    }
}

/// Two threads wait one after the other with one context, each for a channel of its own.
fn moving_context(rng: &mut Rng) -> Result<Race> {
    let moving = Moving {
        channels: [any_channel(rng)?, any_channel(rng)?],
        context: Mutex::default(),
    };
    let name = format!(
        "a context moves between threads that wait for {:?}",
        moving.channels
    );
    Ok(race(name, moving)
        .call(|moving, rng| {
            let first = rng.usize(..2);
            for which in [first, 1 - first] {
                moving.channels[which].send(1);
                pause(rng);
            }
            Ok(1)
        })
        .call(|moving, rng| moving.receive(0, rng.bool()))
        .call(|moving, rng| moving.receive(1, rng.bool()))
        .settle(|_, returned| {
            ensure!(returned == [1, 1, 1], "a unit was not received once");
            Ok(())
        }))
}

/// Waits for the reading end of a pipe. Returns the number of events, or 1 at its end.
fn wait_for_end(way: usize, reader: &PipeReader) -> Result<usize> {
    let mut list = [PollFd::new(reader, Events::IN)];
    Ok(match way {
        0 => poll(&mut list, Timeout::NEVER)?,
        1 => PollContext::new().poll(&mut list, Timeout::NEVER)?,
        2 => reader.read(&mut [0])? + 1,
        3 => {
            let set = Epoll::new()?;
            set.add(reader, EDGE)?;
            set.wait(&mut [Event::default()], Timeout::NEVER)?
        }
        _ => waits::select(&[reader], Timeout::NEVER)?.len(),
    })
}

/// The writing end of a pipe is closed while a thread goes to sleep for the reading end.
fn closing(rng: &mut Rng) -> Result<Race> {
    type Ends = Mutex<(PipeReader, Option<PipeWriter>)>;
    let ends = || pipe().map(|(reader, writer)| (reader, Some(writer)));
    let way = rng.usize(..5);
    let name = format!("a pipe is closed beside wait {way}");
    Ok(race(name, Mutex::new(ends()?))
        .call(|ends: &Ends, _| {
            let closed = lock(ends).1.take();
            drop(closed);
            Ok(0)
        })
        .call(move |ends: &Ends, _| {
            let reader = lock(ends).0.clone();
            wait_for_end(way, &reader)
        })
        .settle(move |now, returned| {
            ensure!(returned[1] == 1, "a close is not found");
            *lock(now) = ends()?;
            Ok(())
        }))
}
