//! Timers: they are armed and expire while threads begin and end their waits.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Result, ensure};
use fastrand::Rng;
use upoll::{Clock, Epoll, Event, EventFd, Events, PollFd, Timeout, Timer, Timers};

use super::super::channel::{Channel, Kind};
use super::{EDGE, LEVEL, Maker, Race, call, lock};

pub(super) const RACES: &[Maker] = &[armed, learnt, handed_on, fired];

/// Later than a race ends.
const LATE: Duration = Duration::from_secs(3600);

/// A time in which a thread may or may not fall asleep.
fn soon(rng: &mut Rng) -> Duration {
    Duration::from_micros(rng.u64(1..200))
}

/// Timers by the kernel's clock: one that is armed for much later, and one that is not.
fn late_and_other() -> Result<(Timer, Timer)> {
    let timers = Timers::on(Clock::Monotonic)?;
    let (late, other) = (timers.timer()?, timers.timer()?);
    late.arm(LATE, Duration::ZERO);
    Ok((late, other))
}

/// A timer is armed while a thread begins to wait for it: in a set, in a set above, in `poll` or in a read.
fn armed(rng: &mut Rng) -> Result<Race> {
    let (late, timer) = late_and_other()?;
    let (below, above) = (Epoll::new()?, Epoll::new()?);
    below.add(&late, EDGE)?;
    below.add(&timer, EDGE)?;
    above.add(&below, EDGE)?;
    // With a kernel fd in it, a thread sleeps in the kernel.
    let kernel = Channel::new(Kind::KernelCounter)?;
    let in_kernel = rng.bool();
    if in_kernel {
        below.add(&kernel, LEVEL)?;
    }
    let way = rng.usize(..4);
    let name = format!("a timer is armed, way {way}, in the kernel: {in_kernel}");
    let sooner = timer.clone();
    let read = timer.clone();
    let calls = vec![
        call(move |_| {
            let _open = (&late, &kernel);
            let event = &mut [Event::default()];
            Ok(match way {
                0 => below.wait(event, Timeout::NEVER)?,
                1 => above.wait(event, Timeout::NEVER)?,
                2 => upoll::poll(&mut [PollFd::new(&timer, Events::IN)], Timeout::NEVER)?,
                _ => timer.read()? as usize,
            })
        }),
        call(move |rng| {
            sooner.arm(soon(rng), Duration::ZERO);
            Ok(0)
        }),
    ];
    Ok(Race::new(name, calls, move |found| {
        ensure!(found[0] == 1, "{} events of a timer", found[0]);
        let _ = read.try_read();
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
    let world = Arc::new(Mutex::new(make()?));
    let (waiting, adding) = (world.clone(), world.clone());
    let calls = vec![
        call(move |_| {
            let (_, below, above) = lock(&waiting).clone();
            let set = if is_above { above } else { below };
            Ok(set.wait(&mut [Event::default()], Timeout::NEVER)?)
        }),
        call(move |rng| {
            let (timer, below, _) = lock(&adding).clone();
            timer.arm(soon(rng), Duration::ZERO);
            below.add(&timer, LEVEL)?;
            Ok(0)
        }),
    ];
    let name = format!("a set gets its first timer, waited for above: {is_above}");
    Ok(Race::new(name, calls, move |found| {
        ensure!(found[0] == 1, "{} events of a timer", found[0]);
        *lock(&world) = make()?;
        Ok(())
    }))
}

/// Two threads sleep in a set, of which one keeps the time. Another event may take either of them away.
fn handed_on(rng: &mut Rng) -> Result<Race> {
    let (late, timer) = late_and_other()?;
    let counter = EventFd::new(0)?;
    let set = Epoll::new()?;
    set.add(&late, EDGE)?;
    set.add(&timer, EDGE)?;
    set.add(&counter, EDGE)?;
    let kernel = Channel::new(Kind::KernelCounter)?;
    let in_kernel = rng.bool();
    if in_kernel {
        set.add(&kernel, LEVEL)?;
    }
    let wait = || {
        let set = set.clone();
        call(move |_| Ok(set.wait(&mut [Event::default()], Timeout::NEVER)?))
    };
    let (sooner, written) = (timer.clone(), counter.clone());
    let calls = vec![
        call(move |rng| {
            let _open = (&late, &kernel);
            sooner.arm(soon(rng), Duration::ZERO);
            super::pause(rng);
            written.try_write(1)?;
            Ok(0)
        }),
        wait(),
        wait(),
    ];
    let name = format!("a thread that keeps the time leaves, in the kernel: {in_kernel}");
    Ok(Race::new(name, calls, move |found| {
        ensure!(found[1..] == [1, 1], "two events of edges");
        let _ = (timer.try_read(), counter.try_read());
        Ok(())
    }))
}

/// Threads advance a virtual clock, which fires a timer, and one of them reads it.
fn fired(_: &mut Rng) -> Result<Race> {
    const STEP: Duration = Duration::from_secs(1);
    let timers = Timers::new()?;
    let timer = timers.timer()?;
    timer.arm(STEP, Duration::ZERO);
    let advance = || {
        let timers = timers.clone();
        call(move |_| {
            timers.advance(timers.next_due().unwrap_or_default())?;
            Ok(0)
        })
    };
    let read = timer.clone();
    let calls = vec![
        advance(),
        advance(),
        call(move |_| Ok(read.read()? as usize)),
    ];
    Ok(Race::new(
        "a virtual timer fires and is read",
        calls,
        move |found| {
            let more = timer.try_read();
            ensure!(found[2] == 1 && more.is_err(), "then {more:?}");
            timer.arm(STEP, Duration::ZERO);
            Ok(())
        },
    ))
}
