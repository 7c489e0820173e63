//! A pool of workers that take turns with the jobs of a channel, and that ends when all jobs are done.
//!
//! The channel holds back the producer while all workers are busy. A rotating set hands each job to the
//! worker that has waited longest, so that no worker starves. The pool ends when the last sender is gone: each
//! worker does what is left, finds the channel disconnected, and leaves. No job is lost, and there is no flag or
//! message that says stop.

use std::thread;

use upoll::channel::{Receiver, TryRecvError, bounded};
use upoll::{CreateFlags, Epoll, Errno, Event, Events};

const WORKERS: usize = 4;
const JOBS: u64 = 2_000;
const WAITING: usize = 8;

// ANCHOR: work
/// Does jobs until there will be no more. Returns how many jobs it did, and the sum of their results.
fn work(pool: &Epoll, jobs: &Receiver<u64>) -> Result<(u64, u64), Errno> {
    // A set of the worker's own. It may watch other things as well, such as a connection.
    let mine = Epoll::new()?;
    mine.add(pool, Event::new(Events::IN, 0))?;
    let (mut done, mut sum) = (0, 0);
    loop {
        mine.wait(&mut [Event::default()], None)?;
        match jobs.try_recv() {
            Ok(job) => {
                done += 1;
                sum += job;
            }
            // Another worker was faster.
            Err(TryRecvError::Empty) => {}
            // As this worker leaves, the close is handed on to the next one.
            Err(_) => return Ok((done, sum)),
        }
    }
}
// ANCHOR_END: work

fn main() -> Result<(), Errno> {
    let (sender, jobs) = bounded(WAITING)?;
    let pool = Epoll::create(CreateFlags::ROTATE)?;
    pool.add(&jobs, Event::new(Events::IN, 0))?;
    let results = thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| scope.spawn(|| work(&pool, &jobs)))
            .collect();
        for job in 1..=JOBS {
            // Waits while eight jobs wait.
            sender.send(job).expect("the workers are there");
        }
        drop(sender);
        workers
            .into_iter()
            .map(|worker| worker.join().expect("a worker does not panic"))
            .collect::<Result<Vec<_>, _>>()
    })?;
    let shares: Vec<_> = results.iter().map(|(done, _)| done).collect();
    let sum: u64 = results.iter().map(|(_, sum)| sum).sum();
    assert_eq!(shares.iter().copied().sum::<u64>(), JOBS, "no job is lost");
    assert_eq!(sum, JOBS * (JOBS + 1) / 2, "no job is done twice");
    println!("{JOBS} jobs by {WORKERS} workers: {shares:?}");
    Ok(())
}
