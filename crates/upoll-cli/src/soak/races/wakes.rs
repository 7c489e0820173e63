//! Threads that go to sleep in every way, against what is to wake them.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use anyhow::{Result, ensure};
use fastrand::Rng;
use upoll::{
    CreateFlags, Epoll, Event, Events, FdSet, PollContext, PollFd, Readiness, Source, Timeout,
    Watch, pipe, poll, select,
};

use super::super::channel::{Channel, Kind};
use super::{Call, EDGE, LEVEL, Maker, Race, any_channel, call, file, harvest, lock};

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

/// How a thread waits for a channel.
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

/// Wakes a task that is polled by a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
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
        let list = || -> Vec<_> {
            let sources = self.sources();
            let entry = |source| PollFd::new(source, Events::IN);
            sources.into_iter().map(entry).collect()
        };
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
                let mut readable: FdSet = (0..sources.len() as i32).collect();
                let resolve = |number: i32| Some(sources.get(number as usize)?.target());
                let limit = &mut { never };
                select(
                    sources.len() as i32,
                    Some(&mut readable),
                    None,
                    None,
                    limit,
                    resolve,
                )?
            }
            Way::Watch => {
                let thread = thread::current();
                let (watch, ready) =
                    Watch::new(&*self.channel, Events::IN, move |_| thread.unpark())?;
                if ready.is_empty() {
                    thread::park();
                }
                drop(watch);
                1
            }
            Way::Readiness => {
                let mut ready = pin!(Readiness::new(&file(&*self.channel), Events::IN)?);
                let waker = Waker::from(Arc::new(Unpark(thread::current())));
                let mut context = Context::from_waker(&waker);
                while ready.as_mut().poll(&mut context).is_pending() {
                    thread::park();
                }
                1
            }
            Way::Read => 1,
        };
        ensure!(found == 1, "{found} events of one");
        Ok(())
    }

    /// Takes units if a set reports the channel, and does not wait.
    pub(super) fn look(&self) -> Result<Option<usize>> {
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
    let waiting = Arc::new(Waiting::new(rng)?);
    let name = format!(
        "a thread waits by {:?} for {:?}, with a kernel fd: {}",
        waiting.way,
        waiting.channel,
        waiting.idle.is_some(),
    );
    let disturbs = rng.bool();
    let (channel, sleeper) = (waiting.channel.clone(), waiting.clone());
    let mut calls: Vec<Call> = vec![
        call(move |rng| {
            // Until the unit comes the other thread gets up and looks, again and again.
            for _ in 0..if disturbs { rng.usize(..20) } else { 0 } {
                if !channel.disturb() {
                    return Ok(1);
                }
                super::pause(rng);
            }
            Ok(channel.send(1) as usize)
        }),
        call(move |_| sleeper.receive()),
    ];
    let has_set = matches!(waiting.way, Way::Set | Way::SetAbove | Way::Rotating);
    if has_set && rng.bool() {
        let set = waiting.set.clone();
        calls.push(call(move |_| {
            let mut entries = [PollFd::new(&set, Events::IN)];
            Ok(poll(&mut entries, Timeout::NOW)?)
        }));
    }
    Ok(Race::new(name, calls, |returned| {
        ensure!(returned[..2] == [1, 1], "a unit was not received once");
        Ok(())
    }))
}

/// Of two threads that sleep in one set, or for one edge, one leaves as its limit ends.
fn leaving(rng: &mut Rng) -> Result<Race> {
    let channel = Arc::new(any_channel(rng)?);
    let rotates = rng.bool();
    let in_kernel = !rotates && rng.bool();
    let set = Epoll::create(match rotates {
        true => CreateFlags::ROTATE,
        false => CreateFlags::empty(),
    })?;
    set.add(&*channel, EDGE)?;
    let idle = Channel::new(Kind::KernelPipe)?;
    if in_kernel {
        set.add(&idle, LEVEL)?;
    }
    let name = format!("a limit ends beside a wait for {channel:?}, rotating: {rotates}");
    let (leaver, stayer) = (set.clone(), set);
    let (sender, again) = (channel.clone(), channel.clone());
    let is_short = rng.bool();
    let calls = vec![
        call(move |rng| {
            if !is_short {
                thread::sleep(Duration::from_micros(rng.u64(..60)));
            }
            for _ in 0..rng.usize(..4) {
                sender.disturb();
                super::pause(rng);
            }
            Ok(sender.send(1) as usize)
        }),
        call(move |rng| {
            for _ in 0..if is_short { rng.usize(1..30) } else { 1 } {
                let limit = match is_short {
                    true => Duration::from_nanos(1),
                    false => Duration::from_micros(rng.u64(..60)),
                };
                let found = leaver.wait(&mut [Event::default(); 2], limit)?;
                if found > 0 {
                    // The unit of the thread that leaves was the other one's too.
                    again.send(1);
                    return Ok(found);
                }
            }
            Ok(0)
        }),
        call(move |_| {
            let _keep = &idle;
            Ok(stayer.wait(&mut [Event::default(); 2], Timeout::NEVER)?)
        }),
    ];
    Ok(Race::new(name, calls, move |returned| {
        ensure!(returned[2] == 1, "no event for the thread that stays");
        channel.drain();
        Ok(())
    }))
}

/// A callback is registered while a unit comes: it is called, or the registration sees the unit. Another
/// thread may come and go in the same queue meanwhile.
fn registering(rng: &mut Rng) -> Result<Race> {
    let channel = Arc::new(match rng.bool() {
        true => Channel::new(Kind::Mailbox)?,
        false => any_channel(rng)?,
    });
    let set = Epoll::new()?;
    set.add(&*channel, LEVEL)?;
    let by_set = rng.bool();
    let file_of = move |channel: &Channel, set: &Epoll| match by_set {
        true => super::open(set),
        false => super::open(channel),
    };
    let registers = rng.bool();
    let name = format!(
        "a callback for {channel:?}, in a set: {by_set}, registered meanwhile: {registers}"
    );
    let calls_made = Arc::new(AtomicUsize::new(0));
    let watch = Arc::new(Mutex::new(None));
    let begin = {
        let (channel, set, calls_made, watch) = (
            channel.clone(),
            set.clone(),
            calls_made.clone(),
            watch.clone(),
        );
        move || -> Result<usize> {
            let calls_made = calls_made.clone();
            let (made, ready) = Watch::new(&file_of(&channel, &set), Events::IN, move |_| {
                calls_made.fetch_add(1, Ordering::SeqCst);
            })?;
            let mut watch = lock(&watch);
            *watch = Some(made);
            Ok(usize::from(!ready.is_empty()))
        }
    };
    let sender = channel.clone();
    let (other, other_set) = (channel.clone(), set.clone());
    if !registers {
        begin()?;
    }
    let begin_again = begin.clone();
    let calls = vec![
        call(move |_| Ok(sender.send(1) as usize)),
        match registers {
            true => call(move |_| begin()),
            false => call(move |rng| {
                let file = file_of(&other, &other_set);
                for _ in 0..rng.usize(1..8) {
                    drop(Watch::new(&file, Events::IN, |_| {})?);
                }
                Ok(0)
            }),
        },
    ];
    Ok(Race::new(name, calls, move |returned| {
        let was_ready = registers && returned[1] > 0;
        let heard = calls_made.load(Ordering::SeqCst);
        ensure!(was_ready || heard > 0, "a callback was not called");
        drop(lock(&watch).take());
        channel.drain();
        harvest(&set)?;
        calls_made.store(0, Ordering::SeqCst);
        if !registers {
            begin_again()?;
        }
        Ok(())
    }))
}

/// Counts its wakes.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A task is polled with a new waker while a unit comes: the poll finds the unit, or the new waker is called.
fn new_waker(rng: &mut Rng) -> Result<Race> {
    let channel = Arc::new(any_channel(rng)?);
    let begin = {
        let channel = channel.clone();
        move || -> Result<Pin<Box<Readiness>>> {
            let mut ready = Box::pin(Readiness::new(&file(&*channel), Events::IN)?);
            let mut context = Context::from_waker(Waker::noop());
            ensure!(
                ready.as_mut().poll(&mut context).is_pending(),
                "ready at first"
            );
            Ok(ready)
        }
    };
    let task = Arc::new(Mutex::new(begin()?));
    let woken = Arc::new(Woken::default());
    let name = format!("a task that waits for {channel:?} gets a new waker");
    let (sender, polled, waker) = (channel.clone(), task.clone(), woken.clone());
    let calls = vec![
        call(move |_| Ok(sender.send(1) as usize)),
        call(move |_| {
            let waker = Waker::from(waker.clone());
            let mut task = lock(&polled);
            let polled = task.as_mut().poll(&mut Context::from_waker(&waker));
            Ok(usize::from(polled.is_ready()))
        }),
    ];
    Ok(Race::new(name, calls, move |found| {
        let times = woken.0.swap(0, Ordering::SeqCst);
        ensure!(found[1] + times > 0, "a task is not woken");
        channel.drain();
        *lock(&task) = begin()?;
        Ok(())
    }))
}

/// A poll context looks while a unit comes; the next call finds the unit.
fn kept_mark(rng: &mut Rng) -> Result<Race> {
    let channel = Arc::new(any_channel(rng)?);
    let name = format!("a context looks at {channel:?}");
    let context = Arc::new(Mutex::new(PollContext::new()));
    let look = {
        let (channel, context) = (channel.clone(), context.clone());
        move |limit| -> Result<usize> {
            let mut context = lock(&context);
            let mut list = [PollFd::new(&*channel, Events::IN)];
            Ok(context.poll(&mut list, limit)?)
        }
    };
    let (early, sender) = (look.clone(), channel.clone());
    let calls = vec![
        call(move |_| Ok(sender.send(1) as usize)),
        call(move |_| early(Timeout::NOW)),
    ];
    let is_new = rng.bool();
    Ok(Race::new(name, calls, move |_| {
        ensure!(look(Timeout::NOW)? == 1, "a unit is not found");
        channel.drain();
        ensure!(look(Timeout::NOW)? == 0, "a unit is found that was taken");
        // Marked, and idle at the next look.
        channel.disturb();
        if is_new {
            lock(&context).clear();
        }
        Ok(())
    }))
}

/// Two threads wait one after the other with one context, each for a channel of its own.
fn moving_context(rng: &mut Rng) -> Result<Race> {
    let channels = [(); 2].map(|()| any_channel(rng));
    let [one, other] = channels;
    let channels = Arc::new([one?, other?]);
    let name = format!("a context moves between threads that wait for {channels:?}");
    let context = Arc::new(Mutex::new(PollContext::new()));
    let wait = {
        let (channels, context) = (channels.clone(), context.clone());
        move |which: usize, with_both: bool| -> Result<usize> {
            loop {
                let mut context = lock(&context);
                let mut list = vec![PollFd::new(&channels[which], Events::IN)];
                if with_both {
                    list.push(PollFd::new(&channels[1 - which], Events::IN));
                    context.poll(&mut list, Timeout::NOW)?;
                    list.pop();
                }
                context.poll(&mut list, Timeout::NEVER)?;
                drop(context);
                let received = channels[which].drain() as usize;
                if received > 0 {
                    return Ok(received);
                }
            }
        }
    };
    let (second, senders) = (wait.clone(), channels);
    let calls = vec![
        call(move |rng| {
            let first = rng.usize(..2);
            for which in [first, 1 - first] {
                senders[which].send(1);
                super::pause(rng);
            }
            Ok(1)
        }),
        call(move |rng| wait(0, rng.bool())),
        call(move |rng| second(1, rng.bool())),
    ];
    Ok(Race::new(name, calls, |returned| {
        ensure!(returned == [1, 1, 1], "a unit was not received once");
        Ok(())
    }))
}

/// The writing end of a pipe is closed while a thread goes to sleep for the reading end.
fn closing(rng: &mut Rng) -> Result<Race> {
    let (reader, writer) = pipe()?;
    let ends = Arc::new(Mutex::new((Some(reader), Some(writer))));
    let way = rng.usize(..5);
    let (closing, reading) = (ends.clone(), ends.clone());
    let take = |ends: &Mutex<(Option<_>, Option<_>)>| lock(ends).1.take();
    let calls = vec![
        call(move |_| {
            drop(take(&closing));
            Ok(0)
        }),
        call(move |_| {
            let reader = {
                let ends = lock(&reading);
                ends.0.clone()
            };
            let Some(reader) = reader else { return Ok(0) };
            let mut list = [PollFd::new(&reader, Events::IN)];
            Ok(match way {
                0 => poll(&mut list, Timeout::NEVER)?,
                1 => PollContext::new().poll(&mut list, Timeout::NEVER)?,
                2 => reader.read(&mut [0])? + 1,
                3 => {
                    let set = Epoll::new()?;
                    set.add(&reader, EDGE)?;
                    set.wait(&mut [Event::default()], Timeout::NEVER)?
                }
                _ => {
                    let mut readable: FdSet = [0].into_iter().collect();
                    let limit = &mut { Timeout::NEVER };
                    let resolve = |_| Some(reader.target());
                    select(1, Some(&mut readable), None, None, limit, resolve)?
                }
            })
        }),
    ];
    Ok(Race::new(
        format!("a pipe is closed beside wait {way}"),
        calls,
        move |returned| {
            ensure!(returned[1] == 1, "a close is not found");
            let (reader, writer) = pipe()?;
            *lock(&ends) = (Some(reader), Some(writer));
            Ok(())
        },
    ))
}
