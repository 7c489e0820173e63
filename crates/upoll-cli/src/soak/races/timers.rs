//! Timers: they are armed and expire while threads begin and end their waits.

use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Result, ensure};
use fastrand::Rng;
use upoll::{Clock, Epoll, Event, EventFd, Events, PollFd, Timeout, Timer, Timers};

use super::super::channel::{Channel, Kind};
use super::{EDGE, LEVEL, Maker, Race, lock, race, write};

pub(super) const RACES: &[Maker] = &[armed, learnt, handed_on, fired];

/// Later than a race ends.
const LATE: Duration = Duration::from_secs(3600);

/// A time in which a thread may or may not fall asleep.
fn soon(rng: &mut Rng) -> Duration {
    Duration::from_micros(rng.u64(1..200))
}

/// A set with a timer that is armed for much later, and another one. Both go by the kernel's clock.
struct Timed {
    set: Epoll,
    timer: Timer,
    _late: Timer,
    /// With a kernel fd in the set, a thread sleeps in the kernel.
    _kernel: Option<Channel>,
}

impl Timed {
    fn new(in_kernel: bool) -> Result<Self> {
        let timers = Timers::on(Clock::Monotonic)?;
        let (late, timer) = (timers.timer()?, timers.timer()?);
        late.arm(LATE, Duration::ZERO);
        let set = Epoll::new()?;
        set.add(&late, EDGE)?;
        set.add(&timer, EDGE)?;
        let kernel = match in_kernel {
            true => Some(Channel::new(Kind::KernelCounter)?),
            false => None,
        };
        if let Some(kernel) = &kernel {
            set.add(kernel, LEVEL)?;
        }
        Ok(Timed {
            set,
            timer,
            _late: late,
            _kernel: kernel,
        })
    }
}

/// A timer is armed while a thread begins to wait for it: in a set, in a set above, in `poll` or in a read.
fn armed(rng: &mut Rng) -> Result<Race> {
    let in_kernel = rng.bool();
    let (below, above) = (Timed::new(in_kernel)?, Epoll::new()?);
    above.add(&below.set, EDGE)?;
    let way = rng.usize(..4);
    let name = format!("a timer is armed, way {way}, in the kernel: {in_kernel}");
    Ok(race(name, (below, above))
        .call(move |(below, above), _| {
            let event = &mut [Event::default()];
            Ok(match way {
                0 => below.set.wait(event, Timeout::NEVER)?,
                1 => above.wait(event, Timeout::NEVER)?,
                2 => upoll::poll(&mut [PollFd::new(&below.timer, Events::IN)], Timeout::NEVER)?,
                _ => below.timer.read()? as usize,
            })
        })
        .call(|(below, _), rng| {
            below.timer.arm(soon(rng), Duration::ZERO);
            Ok(0)
        })
        .settle(|(below, _), found| {
            ensure!(found[0] == 1, "{} events of a timer", found[0]);
            let _ = below.timer.try_read();
            Ok(())
        }))
}

/// The first timer comes into a set while a thread begins to wait in it, or in a set above.
fn learnt(rng: &mut Rng) -> Result<Race> {
    let is_above = rng.bool();
    let make = move || -> Result<(Timer, Epoll, Epoll)> {
        let (below, above) = (Epoll::new()?, Epoll::new()?);
        above.add(&below, LEVEL)?;
        Ok((Timers::on(Clock::Monotonic)?.timer()?, below, above))
    };
    let name = format!("a set gets its first timer, waited for above: {is_above}");
    Ok(race(name, Mutex::new(make()?))
        .call(move |objects, _| {
            let (_, below, above) = lock(objects).clone();
            let set = if is_above { above } else { below };
            Ok(set.wait(&mut [Event::default()], Timeout::NEVER)?)
        })
        .call(|objects, rng| {
            let (timer, below, _) = lock(objects).clone();
            timer.arm(soon(rng), Duration::ZERO);
            below.add(&timer, LEVEL)?;
            Ok(0)
        })
        .settle(move |objects, found| {
            ensure!(found[0] == 1, "{} events of a timer", found[0]);
            *lock(objects) = make()?;
            Ok(())
        }))
}

/// Two threads sleep in a set, of which one keeps the time. Another event may take either of them away.
fn handed_on(rng: &mut Rng) -> Result<Race> {
    let in_kernel = rng.bool();
    let (timed, counter) = (Timed::new(in_kernel)?, EventFd::new(0)?);
    timed.set.add(&counter, EDGE)?;
    let name = format!("a thread that keeps the time leaves, in the kernel: {in_kernel}");
    Ok(race(name, (timed, counter))
        .call(|(timed, counter), rng| {
            timed.timer.arm(soon(rng), Duration::ZERO);
            write(counter, rng)
        })
        .calls(2, |(timed, _), _| {
            let event = &mut [Event::default()];
            Ok(timed.set.wait(event, Timeout::NEVER)?)
        })
        .settle(|(timed, counter), found| {
            ensure!(found[1..] == [1, 1], "two events of edges");
            let _ = (timed.timer.try_read(), counter.try_read());
            Ok(())
        }))
}

/// Threads advance a virtual clock, which fires a timer, and one of them reads it.
fn fired(_: &mut Rng) -> Result<Race> {
    const STEP: Duration = Duration::from_secs(1);
    let timers = Timers::new()?;
    let timer = timers.timer()?;
    timer.arm(STEP, Duration::ZERO);
    Ok(race("a virtual timer fires and is read", (timers, timer))
        .calls(2, |(timers, _), _| {
            timers.advance(timers.next_due().unwrap_or_default())?;
            Ok(0)
        })
        .call(|(_, timer), _| Ok(timer.read()? as usize))
        .settle(|(_, timer), found| {
            let more = timer.try_read();
            ensure!(found[2] == 1 && more.is_err(), "then {more:?}");
            timer.arm(STEP, Duration::ZERO);
            Ok(())
        }))
}
