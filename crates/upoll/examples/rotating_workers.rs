//! Workers that share one source. Through a plain set the fastest worker takes the most events;
//! through a rotating set the workers take turns.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Instant;

use upoll::{CreateFlags, Epoll, Errno, Event, EventFd, EventFdFlags, Events};

const WORKERS: usize = 8;
const EVENTS: u64 = 4_000;
const STOP: u64 = 1;

/// Jain's fairness index: 1 if all shares are equal, 1/n if one of n got all.
fn fairness(shares: &[u64]) -> f64 {
    let shares: Vec<f64> = shares.iter().map(|&share| share as f64).collect();
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

// ANCHOR: run
fn run(flags: CreateFlags) -> Result<Vec<u64>, Errno> {
    let source = EventFd::with_flags(0, EventFdFlags::SEMAPHORE)?;
    let shared = Epoll::create(flags)?;
    shared.add(&source, Event::new(Events::IN, 0))?;
    let stop = EventFd::new(0)?;
    let all_here = Arc::new(Barrier::new(WORKERS + 1));

    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let (source, all_here) = (source.clone(), all_here.clone());
            let mine = Epoll::new()?;
            mine.add(&shared, Event::new(Events::IN, 0))?;
            mine.add(&stop, Event::new(Events::IN, STOP))?;
            Ok(thread::spawn(move || -> Result<u64, Errno> {
                let mut taken = 0;
                let mut events = [Event::default(); 2];
                all_here.wait();
                loop {
                    let ready = mine.wait(&mut events, None)?;
                    // An event that another worker has taken first is not counted.
                    taken += u64::from(source.try_read().is_ok());
                    if events[..ready].iter().any(|event| event.data() == STOP)
                        && source.try_read().map(|_| taken += 1).is_err()
                    {
                        return Ok(taken);
                    }
                }
            }))
        })
        .collect::<Result<_, Errno>>()?;

    all_here.wait();
    for _ in 0..EVENTS {
        source.write(1)?;
    }
    // The bell wakes workers out of turn, so it waits until all events are taken.
    while source.as_file_ref().is_ready(Events::IN) {
        thread::yield_now();
    }
    stop.write(1)?;
    workers
        .into_iter()
        .map(|worker| worker.join().expect("a worker does not panic"))
        .collect()
}
// ANCHOR_END: run

fn main() -> Result<(), Errno> {
    for (name, flags) in [
        ("plain", CreateFlags::empty()),
        ("rotating", CreateFlags::ROTATE),
    ] {
        let begun = Instant::now();
        let shares = run(flags)?;
        let took = begun.elapsed();
        assert_eq!(shares.iter().sum::<u64>(), EVENTS, "no event is lost");
        println!(
            "{name:>8}: {EVENTS} events in {took:.1?}, fairness {:.4}, per worker {shares:?}",
            fairness(&shares)
        );
    }
    Ok(())
}
