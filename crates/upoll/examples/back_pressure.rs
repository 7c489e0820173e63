//! Back-pressure with an eventfd: a fast producer waits for a slow consumer.
//!
//! With a maximum of 10 at most 9 jobs are waiting at any time. The producer blocks in its write,
//! instead of spinning or running ahead.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use upoll::{EventFd, EventFdFlags};

const JOBS: u64 = 200;

fn main() -> Result<(), upoll::Errno> {
    // ANCHOR: main
    let jobs = EventFd::with_flags(0, EventFdFlags::SEMAPHORE)?;
    jobs.set_maximum(10)?;
    let started = AtomicU64::new(0);
    let ahead = thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..JOBS {
                jobs.read().expect("a blocking read of a semaphore");
                started.fetch_add(1, Ordering::SeqCst);
                thread::sleep(Duration::from_micros(50));
            }
        });
        let mut ahead = 0;
        for job in 1..=JOBS {
            jobs.write(1)?;
            ahead = ahead.max(job - started.load(Ordering::SeqCst));
        }
        Ok::<_, upoll::Errno>(ahead)
    })?;
    // ANCHOR_END: main
    // 9 jobs are waiting, and one was taken but is not counted as started yet.
    assert!(ahead <= 10, "the producer was {ahead} jobs ahead");
    println!("{JOBS} jobs; the producer was never more than {ahead} ahead of the consumer");
    Ok(())
}
