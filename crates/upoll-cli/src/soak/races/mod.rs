//! Races: a few calls begin at once, each on a thread of its own, again and again on the same objects.
//!
//! A lost wake needs one thread to be between two instructions of its call while the other one makes a
//! certain step. So each race is short and repeated many thousands of times, with a random offset between
//! its calls. The results of the calls are known, and a call that nothing wakes is a fault.

mod fds;
mod kernel;
mod own_fds;
mod processes;
mod queues;
mod rotation;
mod sets;
mod tasks;
mod timers;
mod wakes;

use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use fastrand::Rng;
use rustix::thread::gettid;
use upoll::internal::own_fds as library_fds;
use upoll::{Epoll, Event, EventFd, Events, File, FileRef, Source, Target};

use super::asleep::{Eagerness, comes};
use super::channel::{Channel, Kind};
use super::hang::{post, post_of};
use super::lockstep::Barrier;
use super::tally::Tally;
use super::{change_pauses, join_all, lock};

use self::processes::{Child, Mapped};

/// The time for which the calls of one race repeat.
const LENGTH: Duration = Duration::from_millis(20);

/// The number of races that a child process repeats.
const IN_CHILD: usize = 4;

/// Races of one round.
const RACES: usize = 8;

const LEVEL: Event = Event::new(Events::IN, 1);
const EDGE: Event = Event::new(Events::IN.union(Events::ET), 1);

type Call = Box<dyn Fn(&mut Rng) -> Result<usize> + Send + Sync>;

type Settle = Box<dyn Fn(&[usize]) -> Result<()> + Send + Sync>;

/// Calls that begin at once.
struct Race {
    name: String,
    /// The first one is made by the thread that leads.
    calls: Vec<Call>,
    /// The number of the calls, the last ones, that are made by processes of their own.
    processes: usize,
    /// Checks what the calls returned, and makes the objects as they were.
    settle: Settle,
}

/// A race to which calls are added, on the objects that they share.
struct Draft<W> {
    race: Race,
    objects: Arc<W>,
}

/// Begins a race on `objects`.
fn race<W: Send + Sync + 'static>(name: impl Into<String>, objects: W) -> Draft<W> {
    Draft {
        race: Race {
            name: name.into(),
            calls: Vec::new(),
            processes: 0,
            settle: Box::new(|_| Ok(())),
        },
        objects: Arc::new(objects),
    }
}

impl<W: Send + Sync + 'static> Draft<W> {
    /// Adds a call.
    fn call(
        mut self,
        call: impl Fn(&W, &mut Rng) -> Result<usize> + Send + Sync + 'static,
    ) -> Self {
        let objects = self.objects.clone();
        self.race
            .calls
            .push(Box::new(move |rng| call(&objects, rng)));
        self
    }

    /// Adds the same call for so many threads.
    fn calls(
        self,
        threads: usize,
        call: impl Fn(&W, &mut Rng) -> Result<usize> + Clone + Send + Sync + 'static,
    ) -> Self {
        (0..threads).fold(self, |draft, _| draft.call(call.clone()))
    }

    /// Moves at least one call, but not the first one, to a process of its own.
    fn in_processes(mut self, rng: &mut Rng) -> Self {
        let others = &mut self.race.calls[1..];
        rng.shuffle(others);
        let (all, processes) = (others.len(), rng.usize(1..=others.len()));
        self.race.processes = processes;
        self.race.name += &format!(", {processes} of {all} in other processes");
        self
    }

    /// Ends the race with what checks the results and makes the objects as they were.
    fn settle(
        mut self,
        settle: impl Fn(&W, &[usize]) -> Result<()> + Send + Sync + 'static,
    ) -> Race {
        let objects = self.objects;
        self.race.settle = Box::new(move |returned| settle(&objects, returned));
        self.race
    }
}

/// Writes an eventfd after a pause.
fn write(counter: &EventFd, rng: &mut Rng) -> Result<usize> {
    pause(rng);
    counter.try_write(1)?;
    Ok(0)
}

/// A channel, and a set that watches it.
struct Watched {
    channel: Channel,
    set: Epoll,
}

impl Watched {
    fn new(channel: Channel, interest: Event) -> Result<Self> {
        let set = Epoll::new()?;
        set.add(&channel, interest)?;
        Ok(Watched { channel, set })
    }

    fn harvest(&self) -> Result<usize> {
        harvest(&self.set)
    }

    fn modify(&self, interest: Event) -> Result<usize> {
        self.set.modify(&self.channel, interest)?;
        Ok(0)
    }
}

/// Sends a unit. Returns how many were accepted.
fn send(channel: &Channel) -> Result<usize> {
    Ok(channel.send(1) as usize)
}

/// Races of one subject.
type Maker = fn(&mut Rng) -> Result<Race>;

/// The place where races run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Home {
    Here,
    /// In a child process.
    Child,
    /// In a child process, in which the library's own fds are protected.
    ProtectedChild,
}

/// A subject of races.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Topic {
    Wakes,
    Queues,
    Sets,
    Rotation,
    Timers,
    Tasks,
    Kernel,
    OwnFds,
    Fds,
    Processes,
    Killed,
}

/// Races of one subject, and how they run.
struct Subject {
    topic: Topic,
    races: &'static [Maker],
    /// The number of sets of objects on which each one runs in a row.
    copies: usize,
    /// The time for which their calls repeat.
    length: Duration,
    home: Home,
}

const fn subject(topic: Topic, races: &'static [Maker], copies: usize) -> Subject {
    Subject {
        topic,
        races,
        copies,
        length: LENGTH,
        home: Home::Here,
    }
}

const SUBJECTS: [Subject; 9] = [
    subject(Topic::Wakes, wakes::RACES, 4),
    subject(Topic::Queues, queues::RACES, 4),
    subject(Topic::Sets, sets::RACES, 16),
    subject(Topic::Rotation, rotation::RACES, 4),
    subject(Topic::Timers, timers::RACES, 4),
    subject(Topic::Tasks, tasks::RACES, 1),
    // Few sets with kernel fds: fds are kept for the most that there were.
    subject(Topic::Kernel, kernel::RACES, 1),
    Subject {
        home: Home::ProtectedChild,
        ..subject(Topic::OwnFds, own_fds::RACES, 1)
    },
    Subject {
        home: Home::Child,
        // A fork demotes the objects of all.
        ..subject(Topic::Fds, fds::RACES, 1)
    },
];

/// Races of processes: to make one takes longer than to make a thread.
const PROCESSES: [Subject; 2] = [
    subject(Topic::Processes, processes::LIVING, 4),
    Subject {
        length: LENGTH.saturating_mul(3),
        ..subject(Topic::Killed, processes::DYING, 1)
    },
];

/// Runs races of random kinds.
pub(super) fn round(rng: &mut Rng, tally: &Tally, fault: &(impl Fn(&str) + Sync)) -> Result<()> {
    (0..RACES).try_for_each(|_| {
        let subject = &SUBJECTS[rng.usize(..SUBJECTS.len())];
        let (maker, subject) = match rng.bool() {
            // It has more variants than all the others.
            true => (wakes::RACES[0], &SUBJECTS[0]),
            false => (subject.races[rng.usize(..subject.races.len())], subject),
        };
        repeat(maker, subject, rng, tally, fault)
    })
}

/// Runs races of these subjects, of threads or of processes.
pub(super) fn round_of(
    subjects: &[Topic],
    rng: &mut Rng,
    tally: &Tally,
    fault: &(impl Fn(&str) + Sync),
) -> Result<()> {
    (0..RACES).try_for_each(|_| {
        let topic = &subjects[rng.usize(..subjects.len())];
        let mut all = SUBJECTS.iter().chain(&PROCESSES);
        let Some(subject) = all.find(|subject| subject.topic == *topic) else {
            bail!("{topic:?} has no races")
        };
        let maker = subject.races[rng.usize(..subject.races.len())];
        repeat(maker, subject, rng, tally, fault)
    })
}

/// Runs races between processes.
pub(super) fn round_of_processes(
    rng: &mut Rng,
    tally: &Tally,
    fault: &(impl Fn(&str) + Sync),
) -> Result<()> {
    (0..RACES).try_for_each(|_| {
        let subject = &PROCESSES[rng.usize(..PROCESSES.len())];
        let maker = subject.races[rng.usize(..subject.races.len())];
        repeat(maker, subject, rng, tally, fault)
    })
}

fn repeat(
    maker: Maker,
    subject: &Subject,
    rng: &mut Rng,
    tally: &Tally,
    fault: &(impl Fn(&str) + Sync),
) -> Result<()> {
    let repeat_here = |rng: &mut Rng| {
        // The same race each time, on objects of its own.
        let seed = rng.u64(..);
        let races = (0..subject.copies)
            .map(|_| maker(&mut Rng::with_seed(seed)))
            .collect::<Result<Vec<_>>>()?;
        run(&races, subject.length, rng, tally, fault)
    };
    if subject.home == Home::Here {
        return repeat_here(rng);
    }
    let mut rng = rng.fork();
    let child = Child::new(false, || {
        if subject.home == Home::ProtectedChild {
            library_fds::protect();
        }
        (0..IN_CHILD).try_for_each(|_| repeat_here(&mut rng))
    })?;
    let _post = post_of(child.0, "a process with races of its own");
    child.join()
}

/// Most calls of a race.
const CALLS: usize = 4;

/// Most sets of objects that a race runs on in a row.
const COPIES: usize = 16;

/// The state that the threads of a race share.
struct Shared {
    barrier: Barrier,
    is_over: AtomicBool,
    calls: usize,
    places: [Place; CALLS],
}

/// The state of one thread.
#[derive(Default)]
struct Place {
    thread: AtomicI32,
    is_busy: AtomicBool,
    /// The number of calls that it has begun since the threads met.
    begun: AtomicUsize,
    /// The result of each of them.
    returned: [AtomicUsize; COPIES],
}

/// The average number of calls of one thread after which the library pauses elsewhere.
const CALLS_BETWEEN_PLANS: usize = 16;

/// The number of times that a thread checks whether the others have come as far.
const LOOKS: usize = 500;

impl Shared {
    fn places(&self) -> &[Place] {
        &self.places[..self.calls]
    }

    /// Makes the calls of one thread.
    fn act(&self, races: &[Race], index: usize, rng: &mut Rng) -> Result<()> {
        let place = &self.places[index];
        if rng.usize(..CALLS_BETWEEN_PLANS) == 0 {
            change_pauses(rng);
        }
        for (copy, race) in races.iter().enumerate() {
            place.begun.store(copy + 1, Ordering::SeqCst);
            let is_behind = |other: &Place| other.begun.load(Ordering::SeqCst) <= copy;
            for _ in 0..LOOKS {
                if !self.places().iter().any(is_behind) {
                    break;
                }
                hint::spin_loop();
            }
            pause(rng);
            let returned = race.calls[index](rng).with_context(|| race.name.clone())?;
            place.returned[copy].store(returned, Ordering::SeqCst);
        }
        place.is_busy.store(false, Ordering::SeqCst);
        Ok(())
    }

    fn busy(&self) -> Vec<i32> {
        let busy = |place: &&Place| place.is_busy.load(Ordering::SeqCst);
        let places = self.places().iter().filter(busy);
        places
            .map(|place| place.thread.load(Ordering::SeqCst))
            .collect()
    }

    fn is_done(&self) -> bool {
        !self
            .places()
            .iter()
            .any(|place| place.is_busy.load(Ordering::SeqCst))
    }

    fn lead(&self, races: &[Race], length: Duration, rng: &mut Rng, tally: &Tally) -> Result<()> {
        let _post = post(format!("call 0 of: {}", races[0].name));
        let begun = Instant::now();
        while begun.elapsed() < length {
            tally.races.fetch_add(races.len() as u64, Ordering::Relaxed);
            for place in self.places() {
                place.begun.store(0, Ordering::SeqCst);
                place.is_busy.store(true, Ordering::SeqCst);
            }
            self.barrier.meet();
            self.act(races, 0, rng)?;
            let mut checks = 0;
            while checks < 1_000 && !self.is_done() {
                hint::spin_loop();
                checks += 1;
            }
            ensure!(
                comes(Eagerness::Spinning, || self.is_done(), || self.busy()),
                "{}: a call is not woken",
                races[0].name
            );
            for (copy, race) in races.iter().enumerate() {
                let returned = |place: &Place| place.returned[copy].load(Ordering::SeqCst);
                let returned: Vec<_> = self.places().iter().map(returned).collect();
                (race.settle)(&returned).with_context(|| format!("{}: {returned:?}", race.name))?;
            }
        }
        self.is_over.store(true, Ordering::SeqCst);
        self.barrier.meet();
        Ok(())
    }

    fn follow(&self, races: &[Race], index: usize, rng: &mut Rng) -> Result<()> {
        let thread = gettid().as_raw_pid();
        let _post = post(format!("call {index} of: {}", races[0].name));
        // The id of a process is stored by the leader, for which it may differ.
        let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
        let known = &self.places[index].thread;
        let _ = known.compare_exchange(0, thread, success, failure);
        loop {
            self.barrier.meet();
            if self.is_over.load(Ordering::SeqCst) {
                return Ok(());
            }
            self.act(races, index, rng)?;
        }
    }
}

/// Repeats the calls of a race, which `races` has some copies of.
fn run(
    races: &[Race],
    length: Duration,
    rng: &mut Rng,
    tally: &Tally,
    fault: &(impl Fn(&str) + Sync),
) -> Result<()> {
    let Race {
        calls, processes, ..
    } = &races[0];
    let (calls, threads) = (calls.len(), calls.len() - processes);
    let shared = Mapped::new(Shared {
        barrier: Barrier::new(calls),
        is_over: AtomicBool::new(false),
        calls,
        places: Default::default(),
    })?;
    let are_first = rng.bool();
    // Before there are other threads.
    let children = (threads..calls)
        .map(|index| {
            let mut rng = rng.fork();
            let child = Child::new(are_first, || shared.follow(races, index, &mut rng))?;
            let known = &shared.places[index].thread;
            known.store(child.0, Ordering::SeqCst);
            let what = format!("call {index}, a process, of: {}", races[0].name);
            Ok((post_of(child.0, what), child))
        })
        .collect::<Result<Vec<_>>>()?;
    let or_fault = |result: Result<()>| {
        if let Err(error) = result {
            fault(&format!("{error:#}"));
        }
    };
    thread::scope(|scope| {
        let shared = &*shared;
        let mut followers = Vec::new();
        for index in 1..threads {
            let mut rng = rng.fork();
            followers.push(scope.spawn(move || or_fault(shared.follow(races, index, &mut rng))));
        }
        or_fault(shared.lead(races, length, rng, tally));
        join_all(followers, fault);
    });
    children
        .into_iter()
        .try_for_each(|(_post, child)| child.join())
}

/// Spins for a random time, from nothing to the time that a thread takes to fall asleep.
fn pause(rng: &mut Rng) {
    let most = [1, 100, 1_000, 3_000, 30_000][rng.usize(..5)];
    for step in 0..rng.u32(..most) {
        hint::black_box(step);
    }
}

/// A channel that sends at least one unit.
fn any_channel(rng: &mut Rng) -> Result<Channel> {
    Channel::new(Kind::any_private(rng))
}

fn harvest(set: &Epoll) -> Result<usize> {
    Ok(set.try_wait(&mut [Event::default(); 4])?)
}

/// The file of a user-level object.
fn file(source: &impl Source) -> FileRef<'_> {
    match source.target() {
        Target::File(file) => file,
        _ => unreachable!("a kernel fd"),
    }
}

fn open(source: &impl Source) -> File {
    file(source).to_file()
}
