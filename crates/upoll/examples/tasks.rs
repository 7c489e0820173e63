//! Two tasks on an executor that fits on one screen. Any executor will do: upoll calls the task's waker, and knows
//! nothing else of it.
//!
//! Run it with `cargo run --example tasks`.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use upoll::{Errno, EventFd, pipe};

// ANCHOR: run
type Future<'a> = Pin<Box<dyn std::future::Future<Output = ()> + 'a>>;

/// Marks its task as runnable, and wakes the executor's thread.
struct Runnable {
    is_set: AtomicBool,
    wake: EventFd,
}

impl Wake for Runnable {
    fn wake(self: Arc<Self>) {
        self.is_set.store(true, Ordering::SeqCst);
        // It fails only if there are more wakeups than a counter counts, and then the thread is awake.
        let _ = self.wake.try_write(1);
    }
}

/// Runs tasks on this thread until all have ended. The thread sleeps while no task can run.
fn run(tasks: Vec<Future<'_>>) -> Result<(), Errno> {
    let wake = EventFd::new(1)?;
    let mut tasks: Vec<_> = tasks
        .into_iter()
        .map(|task| {
            let runnable = Arc::new(Runnable {
                is_set: AtomicBool::new(true),
                wake: wake.clone(),
            });
            (task, runnable.clone(), Waker::from(runnable))
        })
        .collect();
    while !tasks.is_empty() {
        match wake.read() {
            // A signal handler ran.
            Err(Errno::INTR) => continue,
            read => read?,
        };
        tasks.retain_mut(|(task, runnable, waker)| {
            !runnable.is_set.swap(false, Ordering::SeqCst)
                || task
                    .as_mut()
                    .poll(&mut Context::from_waker(waker))
                    .is_pending()
        });
    }
    Ok(())
}
// ANCHOR_END: run

fn main() -> Result<(), Errno> {
    let (reader, writer) = pipe()?;
    run(vec![
        Box::pin(async move {
            for word in ["one ", "two ", "three\n"] {
                writer
                    .write_async(word.as_bytes())
                    .await
                    .expect("the reader is open");
            }
        }),
        Box::pin(async move {
            let mut buffer = [0; 4];
            while let Ok(count @ 1..) = reader.read_async(&mut buffer).await {
                print!("{}", String::from_utf8_lossy(&buffer[..count]));
            }
        }),
    ])
}
