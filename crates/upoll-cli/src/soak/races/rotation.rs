//! Workers of rotating sets: they come, leave, are busy and are chosen while events come.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use fastrand::Rng;
use upoll::{CreateFlags, Epoll, Event, Events, Timeout, Watch};

use super::super::channel::{Channel, Kind};
use super::{LEVEL, Maker, Race, call, harvest};

pub(super) const RACES: &[Maker] = &[two_workers, two_workers, two_sources, busy, note];

/// A rotating set over a channel, and the sets of two workers.
fn workers(channel: &Channel) -> Result<(Epoll, [Epoll; 2])> {
    let rotating = Epoll::create(CreateFlags::ROTATE)?;
    rotating.add(channel, LEVEL)?;
    let sets = [Epoll::new()?, Epoll::new()?];
    for set in &sets {
        set.add(&rotating, LEVEL)?;
    }
    Ok((rotating, sets))
}

fn source(rng: &mut Rng) -> Result<Arc<Channel>> {
    let kinds = [
        Kind::Semaphore,
        Kind::Counter,
        Kind::Pipe,
        Kind::Mailbox,
        Kind::KernelCounter,
    ];
    Ok(Arc::new(Channel::new(kinds[rng.usize(..kinds.len())])?))
}

/// Two workers wait until they have taken two units, which may come at once.
fn two_workers(rng: &mut Rng) -> Result<Race> {
    let channel = source(rng)?;
    let (rotating, sets) = workers(&channel)?;
    let received = Arc::new(AtomicUsize::new(0));
    let name = format!("two workers wait for {channel:?}");
    let sender = channel.clone();
    let mut calls = vec![call(move |rng| {
        if rng.bool() {
            sender.disturb();
        }
        sender.send(1);
        super::pause(rng);
        sender.send(1);
        Ok(0)
    })];
    for set in sets {
        let (channel, received, rotating) = (channel.clone(), received.clone(), rotating.clone());
        calls.push(call(move |rng| {
            let _open = &rotating;
            let mut mine = 0;
            // Two of the units end the race; whoever takes the last one sends one for the other.
            loop {
                if received.load(Ordering::SeqCst) >= 2 {
                    return Ok(mine);
                }
                set.wait(&mut [Event::default(); 2], Timeout::NEVER)?;
                super::pause(rng);
                let units = channel.receive() as usize;
                mine += units;
                let before = received.fetch_add(units, Ordering::SeqCst);
                if before < 2 && before + units >= 2 {
                    channel.send(1);
                    return Ok(mine);
                }
            }
        }));
    }
    Ok(Race::new(name, calls, move |_| {
        channel.drain();
        received.store(0, Ordering::SeqCst);
        Ok(())
    }))
}

/// A set below has a member of the kernel's and one of the library's, and each of them gets a unit. Each of two workers
/// takes one, the kernel's first.
fn two_sources(rng: &mut Rng) -> Result<Race> {
    let kernel = Arc::new(Channel::new(Kind::KernelCounter)?);
    let own = Arc::new(Channel::new(Kind::Semaphore)?);
    let (rotating, below) = (Epoll::create(CreateFlags::ROTATE)?, Epoll::new()?);
    below.add(&*kernel, LEVEL)?;
    below.add(&*own, LEVEL)?;
    rotating.add(&below, LEVEL)?;
    let mut senders = [own.clone(), kernel.clone()];
    rng.shuffle(&mut senders);
    let mut calls = vec![call(move |rng| {
        let _open = &below;
        senders[0].send(1);
        super::pause(rng);
        senders[1].send(1);
        Ok(0)
    })];
    for _ in 0..2 {
        let worker = Epoll::new()?;
        worker.add(&rotating, LEVEL)?;
        let (kernel, own, open) = (kernel.clone(), own.clone(), rotating.clone());
        calls.push(call(move |_| {
            let _open = &open;
            loop {
                worker.wait(&mut [Event::default()], Timeout::NEVER)?;
                if kernel.receive() == 1 || own.receive() == 1 {
                    return Ok(1);
                }
            }
        }));
    }
    let name = "two workers wait for a kernel eventfd and an eventfd";
    Ok(Race::new(name, calls, |_| Ok(())))
}

/// A worker looks in vain for an event that is gone, and is busy then, or leaves: the next event is with the worker
/// that waits.
fn busy(rng: &mut Rng) -> Result<Race> {
    let channel = source(rng)?;
    let (rotating, [first, second]) = workers(&channel)?;
    let leaves = rng.bool();
    let name = format!("a worker of {channel:?} is busy, leaves: {leaves}");
    let begin = {
        let (first, channel) = (first.clone(), channel.clone());
        move || -> Result<()> {
            let waiting = Watch::new(&first, Events::IN, |_| {});
            // The first worker is chosen, for a unit that another thread takes.
            channel.disturb();
            drop(waiting);
            Ok(())
        }
    };
    begin()?;
    let sender = channel.clone();
    let (leaver, from) = (first.clone(), rotating.clone());
    let calls = vec![
        call(move |_| Ok(sender.send(1) as usize)),
        call(move |_| {
            let found = harvest(&leaver)?;
            if leaves {
                leaver.delete(&from)?;
            }
            Ok(found)
        }),
        call(move |_| Ok(second.wait(&mut [Event::default(); 2], Timeout::NEVER)?)),
    ];
    Ok(Race::new(name, calls, move |found| {
        ensure!(found[2] == 1, "no event for the worker that waits");
        channel.drain();
        if leaves {
            first.add(&rotating, LEVEL)?;
        }
        harvest(&first)?;
        begin()
    }))
}

/// The only worker looks for what is gone, then waits, while the next event comes.
fn note(rng: &mut Rng) -> Result<Race> {
    let channel = source(rng)?;
    let (rotating, [worker, other]) = workers(&channel)?;
    drop(other);
    let name = format!("a worker of {channel:?} comes back");
    channel.disturb();
    let (sender, waiting) = (channel.clone(), worker);
    let calls = vec![
        call(move |_| Ok(sender.send(1) as usize)),
        call(move |rng| {
            let _open = &rotating;
            if rng.bool() && harvest(&waiting)? == 1 {
                return Ok(1);
            }
            Ok(waiting.wait(&mut [Event::default(); 2], Timeout::NEVER)?)
        }),
    ];
    Ok(Race::new(name, calls, move |found| {
        ensure!(found[1] == 1, "no event");
        channel.drain();
        // The worker gets a note, and no event.
        channel.disturb();
        Ok(())
    }))
}
