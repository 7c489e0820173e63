//! Single calls on one thread, alternately of the kernel and of upoll.

use std::borrow::Cow;
use std::hint::black_box;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use upoll::{Clock, Epoll, Event, EventFd, Events, FdSet, PollFd, Source, Timeout, Timer, Timers};

use super::kernel::{self, Fd};
use super::measure::{Effort, Series, Side, Spread, interleave, side};

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
    /// How many times faster upoll is.
    pub(super) ratio: Spread,
    pub(super) reached: Option<bool>,
    /// Whether the spread of the ratio is small enough to go by its median.
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
    let theirs = (Fd::epoll()?, Fd::timer()?);
    theirs.0.add(&theirs.1, libc::EPOLLIN, 0)?;
    let ours = (Epoll::new()?, Timers::on(Clock::Monotonic)?.timer()?);
    ours.0.add(&ours.1, Event::new(Events::IN, 0))?;
    Ok((theirs, ours))
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
        Ok(Watched::new(1, 0, Events::IN)?.waits(0))
    }),
    row(
        "wait-ready",
        "wait(0), 1 ready, level-triggered",
        6.0,
        || Ok(Watched::new(1, 1, Events::IN)?.waits(1)),
    ),
    row("wait-128", "wait(0), 128 ready", 6.0, || {
        Ok(Watched::new(ROOM, 1, Events::IN)?.waits(ROOM))
    }),
    row("write-wait-read", "write + wait(0) + read", 8.0, || {
        let (mut theirs, mut ours) = Watched::new(1, 0, Events::IN)?.split();
        Ok([
            side(move || {
                theirs.one.write_count(black_box(1)).expect("write");
                theirs.wait(1);
                black_box(theirs.one.read_count().expect("read"));
            }),
            side(move || {
                ours.one.write(black_box(1)).expect("write");
                ours.wait(1);
                black_box(ours.one.read().expect("read"));
            }),
        ])
    }),
    row("write-wait-edge", "write + wait(0), EPOLLET", 8.0, || {
        let (mut theirs, mut ours) = Watched::new(1, 0, Events::IN | Events::ET)?.split();
        Ok([
            side(move || {
                theirs.one.write_count(black_box(1)).expect("write");
                theirs.wait(1);
            }),
            side(move || {
                ours.one.write(black_box(1)).expect("write");
                ours.wait(1);
            }),
        ])
    }),
    row("mod", "ctl MOD", 7.0, || {
        let (theirs, ours) = Watched::new(1, 0, Events::IN)?.split();
        Ok([
            side(move || {
                let events = black_box(libc::EPOLLIN);
                theirs.set.modify(&theirs.one, events, 1).expect("MOD");
            }),
            side(move || {
                let interest = Event::new(black_box(Events::IN), 1);
                ours.set.modify(&ours.one, interest).expect("MOD");
            }),
        ])
    }),
    row("add-del", "ctl ADD + DEL", 7.0, || {
        let (theirs, ours) = (
            (Fd::epoll()?, Fd::eventfd(0)?),
            (Epoll::new()?, EventFd::new(0)?),
        );
        Ok([
            side(move || {
                let (set, counter) = &theirs;
                set.add(counter, black_box(libc::EPOLLIN), 1).expect("ADD");
                set.delete(counter).expect("DEL");
            }),
            side(move || {
                let (set, counter) = &ours;
                let interest = Event::new(black_box(Events::IN), 1);
                set.add(counter, interest).expect("ADD");
                set.delete(counter).expect("DEL");
            }),
        ])
    }),
    // Without a target: the walk takes most of the time, and the system call little of it.
    untargeted(
        "add-nested",
        "ADD + DEL of a set above 40 sets that each watch the same 40 sets",
        nested,
    ),
    row("create", "create eventfd + ADD + close", 6.0, || {
        let (theirs, ours) = (Fd::epoll()?, Epoll::new()?);
        Ok([
            side(move || {
                let counter = Fd::eventfd(black_box(0)).expect("eventfd");
                theirs.add(&counter, libc::EPOLLIN, 1).expect("ADD");
            }),
            side(move || {
                let counter = EventFd::new(black_box(0)).expect("eventfd");
                ours.add(&counter, Event::new(Events::IN, 1)).expect("ADD");
            }),
        ])
    }),
    row("poll-1", "poll(0) of 1 object, idle", 12.0, || polls(1)),
    row("poll-8", "poll(0) of 8 objects, idle", 8.0, || polls(8)),
    row("select-1", "select(0) of 1 object, idle", 10.0, || {
        let (theirs, ours) = (Fd::eventfd(0)?, EventFd::new(0)?);
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
    untargeted("timer-fire", "timer: arm for 1 ns + wait + read", || {
        let (theirs, ours) = timers()?;
        Ok([
            side(move || {
                theirs.1.arm(black_box(NEAR)).expect("arm");
                let ready = theirs.0.wait(&mut [kernel::IDLE], -1);
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

/// An eventfd that is written to and read.
pub(super) fn eventfd_calls() -> Result<[Side; 2]> {
    let (theirs, ours) = (Fd::eventfd(0)?, EventFd::new(0)?);
    Ok([
        side(move || {
            theirs.write_count(black_box(1)).expect("write");
            black_box(theirs.read_count().expect("read"));
        }),
        side(move || {
            ours.write(black_box(1)).expect("write");
            black_box(ours.read().expect("read"));
        }),
    ])
}

fn polls(count: usize) -> Result<[Side; 2]> {
    let theirs: Vec<_> = (0..count)
        .map(|_| Fd::eventfd(0))
        .collect::<Result<_, _>>()?;
    let ours: Vec<_> = (0..count)
        .map(|_| EventFd::new(0))
        .collect::<Result<_, _>>()?;
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

/// The same counters in the same kind of set, of the kernel and of upoll.
struct Watched {
    theirs: Theirs,
    ours: Ours,
}

struct Theirs {
    set: Fd,
    /// A watched counter.
    one: Fd,
    /// The other watched counters.
    _rest: Vec<Fd>,
    reports: Box<[kernel::Event; ROOM]>,
}

struct Ours {
    set: Epoll,
    one: EventFd,
    _rest: Vec<EventFd>,
    reports: Box<[Event; ROOM]>,
}

impl Theirs {
    #[inline]
    fn wait(&mut self, ready: usize) {
        let found = self.set.wait(&mut self.reports[..], 0).expect("wait");
        assert_eq!(found, ready, "as many as are ready");
        black_box(&self.reports);
    }
}

impl Ours {
    #[inline]
    fn wait(&mut self, ready: usize) {
        let found = self
            .set
            .wait(&mut self.reports[..], Timeout::NOW)
            .expect("wait");
        assert_eq!(found, ready, "as many as are ready");
        black_box(&self.reports);
    }
}

/// ADD and DEL of a set above many sets: both sides search for loops below it.
fn nested() -> Result<[Side; 2]> {
    const WIDTH: usize = 40;
    let (outermost, top) = (Fd::epoll()?, Fd::epoll()?);
    let [upper, lower] = [many(WIDTH, Fd::epoll)?, many(WIDTH, Fd::epoll)?];
    for outer in &upper {
        for inner in &lower {
            outer.add(inner, libc::EPOLLIN, 0)?;
        }
        top.add(outer, libc::EPOLLIN, 0)?;
    }
    let theirs = side(move || {
        let _kept = (&upper, &lower);
        outermost.add(&top, libc::EPOLLIN, 0).expect("ADD");
        outermost.delete(&top).expect("DEL");
    });
    let interest = Event::new(Events::IN, 0);
    let (outermost, top) = (Epoll::new()?, Epoll::new()?);
    let [upper, lower] = [many(WIDTH, Epoll::new)?, many(WIDTH, Epoll::new)?];
    for outer in &upper {
        for inner in &lower {
            outer.add(inner, interest)?;
        }
        top.add(outer, interest)?;
    }
    let ours = side(move || {
        let _kept = (&upper, &lower);
        outermost.add(&top, interest).expect("ADD");
        outermost.delete(&top).expect("DEL");
    });
    Ok([theirs, ours])
}

fn many<T, E>(count: usize, make: impl FnMut() -> Result<T, E>) -> Result<Vec<T>, E> {
    std::iter::repeat_with(make).take(count).collect()
}

impl Watched {
    /// Sets that watch `count` counters, which begin with `initial`.
    fn new(count: usize, initial: u32, interest: Events) -> Result<Self> {
        let (their_set, our_set) = (Fd::epoll()?, Epoll::new()?);
        let (mut their_counters, mut our_counters) = (Vec::new(), Vec::new());
        for data in 0..count as u64 {
            let theirs = Fd::eventfd(initial)?;
            their_set.add(&theirs, interest.bits().cast_signed(), data)?;
            their_counters.push(theirs);
            let ours = EventFd::new(initial)?;
            our_set.add(&ours, Event::new(interest, data))?;
            our_counters.push(ours);
        }
        Ok(Watched {
            theirs: Theirs {
                set: their_set,
                one: their_counters.pop().context("no counter")?,
                _rest: their_counters,
                reports: Box::new([kernel::IDLE; ROOM]),
            },
            ours: Ours {
                set: our_set,
                one: our_counters.pop().context("no counter")?,
                _rest: our_counters,
                reports: Box::new([Event::default(); ROOM]),
            },
        })
    }

    fn split(self) -> (Theirs, Ours) {
        (self.theirs, self.ours)
    }

    /// Waits with a zero timeout for `ready` reports.
    fn waits(self, ready: usize) -> [Side; 2] {
        let (mut theirs, mut ours) = self.split();
        [
            side(move || theirs.wait(ready)),
            side(move || ours.wait(ready)),
        ]
    }
}
