//! Single calls on one thread, alternately of the kernel and of upoll.

use std::borrow::Cow;
use std::hint::black_box;
use std::io;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use upoll::{
    Clock, Epoll, Event, EventFd, EventFdFlags, Events, FdSet, PollFd, Source, Timeout, Timer,
    Timers,
};

use super::kernel::{self, Fd};
use super::measure::{Effort, Series, Side, Spread, interleave, side};
use super::set::{Counter, Set, counters, many, watching};

/// A comparison of one operation.
#[derive(Clone, Serialize)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) what: Cow<'static, str>,
    /// The other side of the comparison.
    pub(super) against: &'static str,
    /// The target: how many times faster upoll must be. `None` if the row is for information only.
    pub(super) target: Option<f64>,
}

/// A comparison to make.
pub(super) struct Comparison {
    pub(super) row: Row,
    /// The other side, and upoll.
    sides: fn() -> Result<[Side; 2]>,
}

/// A comparison made.
#[derive(Serialize)]
pub(super) struct Compared {
    #[serde(flatten)]
    pub(super) row: Row,
    pub(super) other_nanoseconds: Spread,
    pub(super) upoll_nanoseconds: Spread,
    /// The factor by which upoll is faster.
    pub(super) ratio: Spread,
    pub(super) reached: Option<bool>,
    /// True if the spread of the ratio is small enough to go by its median.
    pub(super) trusted: bool,
    other_batches: Series,
    upoll_batches: Series,
}

impl Comparison {
    pub(super) fn measure(&self, effort: Effort) -> Result<Compared> {
        let series = interleave(&mut (self.sides)()?, effort);
        Ok(Compared::new(self.row.clone(), &series[0], &series[1]))
    }
}

impl Compared {
    /// Returns the other side's nanoseconds per operation, one figure per batch.
    pub(super) fn other_batches(&self) -> &[f64] {
        &self.other_batches.nanoseconds
    }

    /// Returns upoll's nanoseconds per operation, one figure per batch.
    pub(super) fn upoll_batches(&self) -> &[f64] {
        &self.upoll_batches.nanoseconds
    }

    pub(super) fn new(row: Row, other: &Series, upoll: &Series) -> Self {
        let ratio = other.ratio_to(upoll);
        Compared {
            reached: row.target.map(|target| ratio.median >= target),
            row,
            other_nanoseconds: other.spread(),
            upoll_nanoseconds: upoll.spread(),
            ratio,
            trusted: ratio.is_trusted(),
            other_batches: other.clone(),
            upoll_batches: upoll.clone(),
        }
    }
}

pub(super) const fn row(
    name: &'static str,
    what: &'static str,
    target: f64,
    sides: fn() -> Result<[Side; 2]>,
) -> Comparison {
    Comparison {
        row: Row {
            name,
            what: Cow::Borrowed(what),
            against: "kernel",
            target: Some(target),
        },
        sides,
    }
}

/// As [`row`], for information only.
const fn untargeted(
    name: &'static str,
    what: &'static str,
    sides: fn() -> Result<[Side; 2]>,
) -> Comparison {
    let mut comparison = row(name, what, 0.0, sides);
    comparison.row.target = None;
    comparison
}

/// A timer that does not fire in a benchmark, and one that fires at once.
const FAR: Duration = Duration::from_secs(30);
const NEAR: Duration = Duration::from_nanos(1);

/// A set and a timer in it, of each side.
fn timers() -> Result<((Fd, Fd), (Epoll, Timer))> {
    let theirs = (Fd::open()?, Fd::timer()?);
    theirs.0.add(&theirs.1, Events::IN, 0)?;
    let ours = (Epoll::new()?, Timers::on(Clock::Monotonic)?.timer()?);
    ours.0.add(&ours.1, Event::new(Events::IN, 0))?;
    Ok((theirs, ours))
}

/// The number of other sets that watch timers of the same clock.
const SETS: usize = 10_000;

/// Sets that watch a timer of the same clock, in which no thread waits.
fn other_sets(timers: &Timers) -> Result<Vec<Epoll>> {
    let idle = timers.timer()?;
    let set = |_| {
        let set = Epoll::new()?;
        set.add(&idle, Event::new(Events::IN, 0))?;
        Ok(set)
    };
    (0..SETS).map(set).collect()
}

/// All comparisons, with their target ratios.
pub(super) const COMPARISONS: &[Comparison] = &[
    row(
        "eventfd-calls",
        "eventfd write + read, unwatched",
        15.0,
        eventfd_calls,
    ),
    row("wait-idle", "wait(0), nothing ready", 10.0, || {
        Ok([
            waits::<Fd, Fd>(1, 0, Events::IN)?,
            waits::<Epoll, EventFd>(1, 0, Events::IN)?,
        ])
    }),
    row(
        "wait-ready",
        "wait(0), 1 ready, level-triggered",
        6.0,
        || {
            Ok([
                waits::<Fd, Fd>(1, 1, Events::IN)?,
                waits::<Epoll, EventFd>(1, 1, Events::IN)?,
            ])
        },
    ),
    row("wait-128", "wait(0), 128 ready", 6.0, || {
        Ok([
            waits::<Fd, Fd>(ROOM, 1, Events::IN)?,
            waits::<Epoll, EventFd>(ROOM, 1, Events::IN)?,
        ])
    }),
    row("write-wait-read", "write + wait(0) + read", 8.0, || {
        Ok([
            write_wait_read::<Fd, Fd>()?,
            write_wait_read::<Epoll, EventFd>()?,
        ])
    }),
    row("write-wait-edge", "write + wait(0), EPOLLET", 8.0, || {
        Ok([write_wait::<Fd, Fd>()?, write_wait::<Epoll, EventFd>()?])
    }),
    row("mod", "ctl MOD", 7.0, || {
        Ok([modify::<Fd, Fd>()?, modify::<Epoll, EventFd>()?])
    }),
    row("add-del", "ctl ADD + DEL", 7.0, || {
        Ok([add_delete::<Fd, Fd>()?, add_delete::<Epoll, EventFd>()?])
    }),
    // Without a target: the walk takes most of the time, and the system call little of it.
    untargeted(
        "add-nested",
        "ADD + DEL of a set above 40 sets that each watch the same 40 sets",
        || Ok([nested::<Fd, Fd>()?, nested::<Epoll, EventFd>()?]),
    ),
    row("create", "create eventfd + ADD + close", 6.0, || {
        Ok([create::<Fd, Fd>()?, create::<Epoll, EventFd>()?])
    }),
    row("poll-1", "poll(0) of 1 object, idle", 12.0, || polls(1)),
    row("poll-8", "poll(0) of 8 objects, idle", 8.0, || polls(8)),
    row("select-1", "select(0) of 1 object, idle", 10.0, || {
        let (theirs, ours) = (idle::<Fd>()?, EventFd::new(0)?);
        Ok([
            side(move || {
                let mut readable = kernel::FdSet::new();
                readable.insert(&theirs);
                let ready = kernel::select(black_box(theirs.raw() + 1), &mut readable);
                assert_eq!(ready.expect("select"), 0);
            }),
            side(move || {
                let mut readable = FdSet::new();
                readable.insert(0);
                let resolve = |_| Some(ours.target());
                let mut limit = Timeout::NOW;
                let readable = Some(&mut readable);
                let ready = upoll::select(black_box(1), readable, None, None, &mut limit, resolve);
                assert_eq!(ready.expect("select"), 0);
            }),
        ])
    }),
    untargeted("timer-arm", "timer in a set: arm for 30 s + disarm", || {
        let (theirs, ours) = timers()?;
        Ok([
            side(move || {
                theirs.1.arm(black_box(FAR)).expect("arm");
                theirs.1.arm(Duration::ZERO).expect("disarm");
            }),
            side(move || {
                ours.1.arm(black_box(FAR), Duration::ZERO);
                ours.1.disarm();
            }),
        ])
    }),
    untargeted(
        "timer-arm-sets",
        "the same, with 10 000 sets of the same clock",
        || {
            // The kernel's timers know no sets.
            let theirs = Fd::timer()?;
            let timers = Timers::on(Clock::Monotonic)?;
            let (sets, ours) = (other_sets(&timers)?, timers.timer()?);
            Ok([
                side(move || {
                    theirs.arm(black_box(FAR)).expect("arm");
                    theirs.arm(Duration::ZERO).expect("disarm");
                }),
                side(move || {
                    let _ = &sets;
                    ours.arm(black_box(FAR), Duration::ZERO);
                    ours.disarm();
                }),
            ])
        },
    ),
    untargeted("timer-fire", "timer: arm for 1 ns + wait + read", || {
        let (theirs, ours) = timers()?;
        Ok([
            side(move || {
                theirs.1.arm(black_box(NEAR)).expect("arm");
                let ready = theirs.0.wait(&mut [Fd::ROOM]);
                assert_eq!(ready.expect("wait"), 1);
                black_box(theirs.1.read_count().expect("read"));
            }),
            side(move || {
                ours.1.arm(black_box(NEAR), Duration::ZERO);
                let ready = ours.0.wait(&mut [Event::default()], None);
                assert_eq!(ready.expect("wait"), 1);
                black_box(ours.1.try_read().expect("read"));
            }),
        ])
    }),
    row("pipe", "pipe write 64 B + read", 8.0, || {
        let [their_end, their_other] = Fd::pipe()?;
        let (our_end, our_other) = upoll::pipe()?;
        let bytes = [7_u8; 64];
        Ok([
            side(move || {
                their_other
                    .write(black_box::<&[u8; 64]>(&bytes))
                    .expect("write");
                let mut buffer = [0; 64];
                assert_eq!(their_end.read(&mut buffer).expect("read"), 64);
                black_box(&buffer);
            }),
            side(move || {
                our_other
                    .write(black_box::<&[u8; 64]>(&bytes))
                    .expect("write");
                let mut buffer = [0; 64];
                assert_eq!(our_end.read(&mut buffer).expect("read"), 64);
                black_box(&buffer);
            }),
        ])
    }),
];

/// An eventfd that is written to and read, by the kernel and by upoll.
pub(super) fn eventfd_calls() -> Result<[Side; 2]> {
    Ok([write_read::<Fd>()?, write_read::<EventFd>()?])
}

pub(super) fn idle<C: Counter>() -> io::Result<C> {
    C::new(0, EventFdFlags::empty())
}

pub(super) fn write_read<C: Counter>() -> Result<Side> {
    let counter = idle::<C>()?;
    Ok(side(move || {
        counter.write();
        black_box(counter.read());
    }))
}

fn polls(count: usize) -> Result<[Side; 2]> {
    let theirs: Vec<Fd> = counters(count)?;
    let ours: Vec<EventFd> = counters(count)?;
    Ok([
        Box::new(move |times| {
            let mut fds: Vec<_> = theirs.iter().map(kernel::readable).collect();
            for _ in 0..times {
                assert_eq!(kernel::poll(black_box(&mut fds)).expect("poll"), 0);
            }
        }),
        Box::new(move |times| {
            let mut fds: Vec<_> = ours
                .iter()
                .map(|one| PollFd::new(one, Events::IN))
                .collect();
            for _ in 0..times {
                let ready = upoll::poll(black_box(&mut fds), Timeout::NOW);
                assert_eq!(ready.expect("poll"), 0);
            }
        }),
    ])
}

/// Room for reports on both sides.
const ROOM: usize = 128;

/// A set that watches eventfds.
struct Watched<S: Set<C>, C: Counter> {
    set: S,
    /// A watched eventfd.
    one: C,
    /// The others.
    _rest: Vec<C>,
    reports: Box<[S::Report; ROOM]>,
}

impl<S: Set<C>, C: Counter> Watched<S, C> {
    /// Makes a set that watches `count` eventfds, which begin with `initial`.
    fn new(count: usize, initial: u32, events: Events) -> Result<Self> {
        let make = || C::new(initial, EventFdFlags::empty());
        let (set, mut rest) = watching::<S, C>(count, events, make)?;
        Ok(Watched {
            set,
            one: rest.pop().context("no eventfd")?,
            _rest: rest,
            reports: Box::new([S::ROOM; ROOM]),
        })
    }

    /// Waits with a limit of 0 for `ready` reports.
    #[inline]
    fn harvest(&mut self, ready: usize) {
        let found = self.set.harvest(&mut self.reports[..]).expect("wait");
        assert_eq!(found, ready, "as many as are ready");
        black_box(&self.reports);
    }
}

/// Waits in a set of eventfds which are all ready, or idle.
pub(super) fn waits<S: Set<C>, C: Counter>(
    count: usize,
    initial: u32,
    events: Events,
) -> Result<Side> {
    let mut watched = Watched::<S, C>::new(count, initial, events)?;
    let ready = count * initial as usize;
    Ok(side(move || watched.harvest(ready)))
}

pub(super) fn write_wait_read<S: Set<C>, C: Counter>() -> Result<Side> {
    let mut watched = Watched::<S, C>::new(1, 0, Events::IN)?;
    Ok(side(move || {
        watched.one.write();
        watched.harvest(1);
        black_box(watched.one.read());
    }))
}

fn write_wait<S: Set<C>, C: Counter>() -> Result<Side> {
    let mut watched = Watched::<S, C>::new(1, 0, Events::IN | Events::ET)?;
    Ok(side(move || {
        watched.one.write();
        watched.harvest(1);
    }))
}

pub(super) fn modify<S: Set<C>, C: Counter>() -> Result<Side> {
    let watched = Watched::<S, C>::new(1, 0, Events::IN)?;
    Ok(side(move || {
        let events = black_box(Events::IN);
        watched.set.modify(&watched.one, events, 1).expect("MOD");
    }))
}

pub(super) fn add_delete<S: Set<C>, C: Counter>() -> Result<Side> {
    let (set, counter) = (S::open()?, idle::<C>()?);
    Ok(side(move || {
        let events = black_box(Events::IN);
        set.add(&counter, events, 1).expect("ADD");
        set.delete(&counter).expect("DEL");
    }))
}

fn create<S: Set<C>, C: Counter>() -> Result<Side> {
    let set = S::open()?;
    Ok(side(move || {
        let counter = C::new(black_box(0), EventFdFlags::empty()).expect("eventfd");
        set.add(&counter, Events::IN, 1).expect("ADD");
    }))
}

/// ADD and DEL of a set above many sets: both sides search for loops below it.
fn nested<S: Set<C>, C: Counter>() -> Result<Side> {
    const WIDTH: usize = 40;
    let (outermost, top) = (S::open()?, S::open()?);
    let [upper, lower] = [many(WIDTH, S::open)?, many(WIDTH, S::open)?];
    for outer in &upper {
        for inner in &lower {
            outer.add_set(inner, Events::IN, 0)?;
        }
        top.add_set(outer, Events::IN, 0)?;
    }
    Ok(side(move || {
        let _kept = (&upper, &lower);
        outermost.add_set(&top, Events::IN, 0).expect("ADD");
        outermost.delete_set(&top).expect("DEL");
    }))
}
