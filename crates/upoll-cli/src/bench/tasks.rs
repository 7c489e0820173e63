//! Two tasks on one thread wake each other alternately, with upoll's objects and with tokio's `Notify`.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use anyhow::Result;
use tokio::sync::Notify;
use upoll::{EventFd, Events, Readiness};

use super::calls::{Compared, Row};
use super::measure::{Effort, Side, interleave};

pub(super) const NAME: &str = "tasks";
pub(super) const NAMES: [&str; 1] = [NAME];

/// As fast as `Notify`.
const TARGET: f64 = 1.0;

/// Marks its task as runnable.
struct Runnable(AtomicBool);

impl Wake for Runnable {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Runs two tasks until both have ended: the least that an executor does.
fn run(tasks: [Pin<&mut dyn Future<Output = ()>>; 2]) {
    let mut tasks = tasks.map(|task| {
        let runnable = Arc::new(Runnable(AtomicBool::new(true)));
        (Some(task), runnable.clone(), Waker::from(runnable))
    });
    while tasks.iter().any(|(task, ..)| task.is_some()) {
        for (place, runnable, waker) in &mut tasks {
            if let Some(task) = place
                && runnable.0.swap(false, Ordering::Acquire)
                && task
                    .as_mut()
                    .poll(&mut Context::from_waker(waker))
                    .is_ready()
            {
                *place = None;
            }
        }
    }
}

fn notify() -> Side {
    let [ping, pong] = [(); 2].map(|()| Arc::new(Notify::new()));
    Box::new(move |times| {
        let first = pin!(async {
            for _ in 0..times {
                ping.notify_one();
                pong.notified().await;
            }
        });
        let second = pin!(async {
            for _ in 0..times {
                ping.notified().await;
                pong.notify_one();
            }
        });
        run([first, second]);
    })
}

fn readiness() -> Result<Side> {
    async fn wait(counter: &EventFd) {
        let ready = Readiness::new(counter, Events::IN).expect("a counter");
        ready.await;
        counter.try_read().expect("nobody else reads");
    }

    let (ping, pong) = (EventFd::new(0)?, EventFd::new(0)?);
    Ok(Box::new(move |times| {
        let first = pin!(async {
            for _ in 0..times {
                ping.try_write(1).expect("it was read");
                wait(&pong).await;
            }
        });
        let second = pin!(async {
            for _ in 0..times {
                wait(&ping).await;
                pong.try_write(1).expect("it was read");
            }
        });
        run([first, second]);
    }))
}

fn reads() -> Result<Side> {
    let (ping, pong) = (EventFd::new(0)?, EventFd::new(0)?);
    Ok(Box::new(move |times| {
        let first = pin!(async {
            for _ in 0..times {
                ping.try_write(1).expect("it was read");
                pong.read_async().await.expect("read");
            }
        });
        let second = pin!(async {
            for _ in 0..times {
                ping.read_async().await.expect("read");
                pong.try_write(1).expect("it was read");
            }
        });
        run([first, second]);
    }))
}

/// Measures a round trip: two awaits and two wakes.
pub(super) fn measure(effort: Effort) -> Result<[Compared; 2]> {
    let series = interleave(&mut [notify(), readiness()?, reads()?], effort);
    let row = |what: &'static str, target| Row {
        name: NAME,
        what: what.into(),
        against: "tokio's Notify",
        target,
    };
    Ok([
        Compared::new(
            row("round trip of two tasks, Readiness", Some(TARGET)),
            &series[0],
            &series[1],
        ),
        Compared::new(
            row("round trip of two tasks, read_async", None),
            &series[0],
            &series[2],
        ),
    ])
}
