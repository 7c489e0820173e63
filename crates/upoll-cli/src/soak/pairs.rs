//! Two calls at once on objects of their own, where what comes of them is known.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Result, bail, ensure};
use fastrand::Rng;
use upoll::{Epoll, Errno, Event, EventFd, Events, Timeout};

use super::asleep::{Eagerness, comes};
use super::channel::{Channel, Kind};
use super::lockstep::{Barrier, pause};
use super::tally::{Tally, count};

/// Pairs that exist at once: as few sets as in the other rounds, since fds are kept for the most that there were.
const PAIRS: usize = 6;

/// How often in one round.
const TIMES: usize = 20;

const LEVEL: Event = Event::new(Events::IN, 1);
const EDGE: Event = Event::new(Events::IN.union(Events::ET), 1);

/// Objects that two threads use at once.
enum Pair {
    /// Each set is added to the other one.
    EachOther(Epoll, Epoll),
    /// A writer looks for what it wrote, while the interest is set anew.
    WriteAndModify(Epoll, Channel),
    /// Two threads look for an edge that one of them makes.
    LookForEdge(Epoll, Channel),
    /// A set and its member are closed.
    Close(Mutex<Option<Epoll>>, Mutex<Option<Channel>>),
    /// A maximum is set, and the counter written to.
    Maximum(EventFd),
    /// A thread waits in a set, while one below it gets its first kernel fd, which is ready later.
    FirstKernelFd {
        waited: Epoll,
        between: Vec<Epoll>,
        member: Channel,
        waiter: AtomicI32,
        is_woken: AtomicBool,
    },
}

impl Pair {
    fn new(rng: &mut Rng) -> Result<Self> {
        let channel = |rng: &mut Rng| Channel::new(Kind::any_private(rng));
        let set = Epoll::new()?;
        Ok(match rng.usize(..6) {
            0 => Pair::EachOther(set, Epoll::new()?),
            1 => {
                let channel = channel(rng)?;
                set.add(&channel, LEVEL)?;
                Pair::WriteAndModify(set, channel)
            }
            2 => {
                let channel = channel(rng)?;
                set.add(&channel, EDGE)?;
                // The event of one that is idle again.
                channel.send(1);
                channel.drain();
                Pair::LookForEdge(set, channel)
            }
            3 => {
                let channel = Channel::new(Kind::any(rng))?;
                set.add(&channel, LEVEL)?;
                Pair::Close(Mutex::new(Some(set)), Mutex::new(Some(channel)))
            }
            4 => Pair::Maximum(EventFd::new(1)?),
            _ => {
                let mut between = vec![Epoll::new()?];
                for _ in 0..rng.usize(..3) {
                    let above = Epoll::new()?;
                    above.add(&between[between.len() - 1], LEVEL)?;
                    between.push(above);
                }
                let kinds = [Kind::KernelCounter, Kind::KernelPipe, Kind::Shared];
                Pair::FirstKernelFd {
                    waited: between[between.len() - 1].clone(),
                    between,
                    member: Channel::new(kinds[rng.usize(..kinds.len())])?,
                    waiter: AtomicI32::new(0),
                    is_woken: AtomicBool::new(false),
                }
            }
        })
    }

    /// Makes the first of the two calls.
    fn first(&self) -> Result<usize> {
        let mut events = [Event::default(); 2];
        Ok(match self {
            Pair::EachOther(one, other) => add(one, other)?,
            Pair::WriteAndModify(set, channel) => {
                channel.send(1);
                set.harvest(&mut events)?
            }
            Pair::LookForEdge(set, channel) => {
                channel.send(1);
                set.harvest(&mut events)?
            }
            Pair::Close(set, _) => {
                set.lock().unwrap_or_else(PoisonError::into_inner).take();
                0
            }
            Pair::Maximum(counter) => usize::from(counter.try_write(2).is_ok()),
            Pair::FirstKernelFd {
                waited,
                waiter,
                is_woken,
                ..
            } => {
                // SAFETY: no memory is involved.
                waiter.store(unsafe { libc::gettid() }, Ordering::SeqCst);
                let found = waited.wait(&mut events, Timeout::NEVER);
                is_woken.store(true, Ordering::SeqCst);
                found?
            }
        })
    }

    /// Makes the second one.
    fn second(&self, rng: &mut Rng) -> Result<usize> {
        let mut events = [Event::default(); 2];
        Ok(match self {
            Pair::EachOther(one, other) => add(other, one)?,
            Pair::WriteAndModify(set, channel) => {
                set.modify(channel, LEVEL)?;
                0
            }
            Pair::LookForEdge(set, _) => set.harvest(&mut events)?,
            Pair::Close(_, channel) => {
                channel
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take();
                0
            }
            Pair::Maximum(counter) => usize::from(counter.set_maximum(3).is_ok()),
            Pair::FirstKernelFd {
                between,
                member,
                waiter,
                is_woken,
                ..
            } => {
                between[0].add(member, LEVEL)?;
                pause(rng);
                member.send(1);
                ensure!(
                    comes(
                        Eagerness::Spinning,
                        || is_woken.load(Ordering::SeqCst),
                        || vec![waiter.load(Ordering::SeqCst)]
                    ),
                    "a thread sleeps while a set below has an event of its first kernel fd"
                );
                0
            }
        })
    }

    /// Looks at what the two calls returned.
    fn check(&self, first: usize, second: usize) -> Result<()> {
        match self {
            Pair::EachOther(..) => ensure!(
                first + second == 1,
                "two sets were added to each other: {first}, {second}"
            ),
            Pair::WriteAndModify(_, channel) => ensure!(
                first == 1,
                "{channel:?}: a writer does not find what it wrote"
            ),
            Pair::LookForEdge(_, channel) => ensure!(
                first + second > 0,
                "{channel:?}: neither thread finds an edge"
            ),
            Pair::Close(..) => {}
            Pair::Maximum(counter) => {
                ensure!(
                    first + second == 1,
                    "a write of 2 and a maximum of 3 for a count of 1: {first}, {second}"
                );
                counter.set_maximum(u64::MAX)?;
                let count = counter.try_read()?;
                ensure!(
                    count == 1 + 2 * first as u64,
                    "a write beside a new maximum: {first}, count {count}"
                );
            }
            Pair::FirstKernelFd { .. } => ensure!(first == 1, "{first} events for one"),
        }
        Ok(())
    }
}

fn add(outer: &Epoll, inner: &Epoll) -> Result<usize> {
    match outer.add(inner, LEVEL) {
        Ok(()) => Ok(1),
        Err(Errno::LOOP) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// Makes pairs of calls, each on two threads at once.
pub(super) fn round(rng: &mut Rng, tally: &Tally, fault: &(impl Fn(&str) + Sync)) -> Result<()> {
    (0..TIMES).try_for_each(|_| some(rng, tally, fault))
}

fn some(rng: &mut Rng, tally: &Tally, fault: &(impl Fn(&str) + Sync)) -> Result<()> {
    let pairs = (0..PAIRS)
        .map(|_| Pair::new(rng))
        .collect::<Result<Vec<_>>>()?;
    let barrier = Barrier::new(2);
    let mut other = rng.fork();
    let or_fault = |result: Result<usize>| {
        result.unwrap_or_else(|error| {
            fault(&format!("{error:#}"));
            0
        })
    };
    thread::scope(|scope| {
        let seconds = scope.spawn(|| {
            let second = |pair: &Pair| {
                barrier.meet();
                pause(&mut other);
                or_fault(pair.second(&mut other))
            };
            pairs.iter().map(second).collect::<Vec<_>>()
        });
        let first = |pair: &Pair| {
            barrier.meet();
            pause(rng);
            or_fault(pair.first())
        };
        let firsts: Vec<_> = pairs.iter().map(first).collect();
        let Ok(seconds) = seconds.join() else {
            bail!("a thread panicked");
        };
        for ((pair, first), second) in pairs.iter().zip(firsts).zip(seconds) {
            count(&tally.pairs);
            pair.check(first, second)?;
        }
        Ok(())
    })
}
