//! A pool of workers that take turns with the jobs of a channel and the connections of a socket, and that ends when all
//! jobs are done.
//!
//! The channel holds back the producer while all workers are busy. A rotating set hands each job to the
//! worker that has waited longest, and another one does the same with connections, so that no worker starves. The pool
//! ends when the last sender is gone: each worker does what is left, finds the channel disconnected, and leaves. No job is
//! lost, and there is no flag or message that says stop. The sender goes after the last client.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use upoll::channel::{Receiver, TryRecvError, bounded};
use upoll::{CreateFlags, Epoll, Errno, Event, Events};

const WORKERS: usize = 4;
const JOBS: u64 = 2_000;
const CLIENTS: u64 = 200;
const WAITING: usize = 8;

// ANCHOR: work
/// What a worker has done.
#[derive(Default)]
struct Done {
    jobs: u64,
    /// The sum of the results of the jobs.
    sum: u64,
    connections: u64,
}

/// Does jobs and answers connections until there will be no more jobs. `pools` rotate, the first one with the jobs.
fn work(pools: &[Epoll; 2], jobs: &Receiver<u64>, listener: &TcpListener) -> Result<Done, Errno> {
    // A set of the worker's own.
    let mine = Epoll::new()?;
    for (data, pool) in (0..).zip(pools) {
        mine.add(pool, Event::new(Events::IN, data))?;
    }
    let mut done = Done::default();
    let mut events = [Event::default(); 2];
    loop {
        let ready = mine.wait(&mut events, None)?;
        for event in &events[..ready] {
            if event.data() == 1 {
                // It fails if another worker was faster.
                if let Ok((mut connection, _)) = listener.accept() {
                    connection.write_all(b"done")?;
                    done.connections += 1;
                }
                continue;
            }
            match jobs.try_recv() {
                Ok(job) => {
                    done.jobs += 1;
                    done.sum += job;
                }
                // Another worker was faster.
                Err(TryRecvError::Empty) => {}
                // As this worker leaves, the close is handed on to the next one.
                Err(_) => return Ok(done),
            }
        }
    }
}
// ANCHOR_END: work

fn main() -> Result<(), Errno> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let (sender, jobs) = bounded(WAITING)?;
    let pools = [
        Epoll::create(CreateFlags::ROTATE)?,
        Epoll::create(CreateFlags::ROTATE)?,
    ];
    pools[0].add(&jobs, Event::new(Events::IN, 0))?;
    pools[1].add(&listener, Event::new(Events::IN, 0))?;
    let results = thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| scope.spawn(|| work(&pools, &jobs, &listener)))
            .collect();
        let clients = scope.spawn(move || {
            for _ in 0..CLIENTS {
                let mut answer = String::new();
                TcpStream::connect(address)?.read_to_string(&mut answer)?;
                assert_eq!(answer, "done");
            }
            Ok::<_, Errno>(())
        });
        for job in 1..=JOBS {
            // Waits while eight jobs wait.
            sender.send(job).expect("the workers are there");
        }
        clients.join().expect("the clients do not panic")?;
        drop(sender);
        workers
            .into_iter()
            .map(|worker| worker.join().expect("a worker does not panic"))
            .collect::<Result<Vec<_>, _>>()
    })?;
    let total = |part: fn(&Done) -> u64| results.iter().map(part).sum::<u64>();
    assert_eq!(total(|done| done.jobs), JOBS, "no job is lost");
    assert_eq!(
        total(|done| done.sum),
        JOBS * (JOBS + 1) / 2,
        "no job is done twice"
    );
    assert_eq!(total(|done| done.connections), CLIENTS);
    for (worker, done) in results.iter().enumerate() {
        println!(
            "worker {worker}: {} jobs, {} connections",
            done.jobs, done.connections
        );
    }
    Ok(())
}
