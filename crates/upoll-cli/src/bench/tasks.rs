//! Two tasks wake each other alternately, on one thread or in a pool of threads, with upoll's objects and with tokio's `Notify`.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use anyhow::Result;
use tokio::runtime::Builder;
use tokio::sync::Notify;
use tokio::task::LocalSet;
use upoll::{EventFd, Events, Readiness};

use super::calls::{Compared, Row};
use super::measure::{Effort, Side, interleave};

pub(super) const NAME: &str = "tasks";

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

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Makes two tasks that wake each other so many times.
type Pair = Box<dyn Fn(u64) -> [Task; 2]>;

/// Runs two tasks until both have ended: the least that an executor does.
fn run(tasks: [Task; 2]) {
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

fn notify() -> Pair {
    let [ping, pong] = [(); 2].map(|()| Arc::new(Notify::new()));
    Box::new(move |times| {
        let [(ping, pong), (pinged, ponged)] =
            [(); 2].map(|()| (Arc::clone(&ping), Arc::clone(&pong)));
        [
            Box::pin(async move {
                for _ in 0..times {
                    ping.notify_one();
                    pong.notified().await;
                }
            }),
            Box::pin(async move {
                for _ in 0..times {
                    pinged.notified().await;
                    ponged.notify_one();
                }
            }),
        ]
    })
}

/// Two tasks that wake each other by eventfds. Each has what `$prepare` makes of the eventfd it waits for, and waits for it
/// by `$wait`, which reads the eventfd. It is a macro because no bound makes the future of an `AsyncFn` one that is `Send`.
macro_rules! eventfds {
    ($prepare:expr, $wait:expr) => {{
        let [ping, pong] = [Arc::new(EventFd::new(0)?), Arc::new(EventFd::new(0)?)];
        let pair: Pair = Box::new(move |times| {
            let [(ping, pong), (pinged, ponged)] =
                [(); 2].map(|()| (Arc::clone(&ping), Arc::clone(&pong)));
            [
                Box::pin(async move {
                    let mut kept = pin!($prepare(&pong));
                    for _ in 0..times {
                        ping.try_write(1).expect("it was read");
                        $wait(&pong, kept.as_mut()).await;
                    }
                }),
                Box::pin(async move {
                    let mut kept = pin!($prepare(&pinged));
                    for _ in 0..times {
                        $wait(&pinged, kept.as_mut()).await;
                        ponged.try_write(1).expect("it was read");
                    }
                }),
            ]
        });
        pair
    }};
}

fn nothing(_: &EventFd) {}

fn readiness(counter: &EventFd) -> Readiness {
    Readiness::new(counter, Events::IN).expect("a counter")
}

async fn new_readiness(counter: &EventFd, _: Pin<&mut ()>) {
    readiness(counter).await;
    counter.try_read().expect("nobody else reads");
}

async fn kept_readiness(counter: &EventFd, kept: Pin<&mut Readiness>) {
    kept.await;
    counter.try_read().expect("nobody else reads");
}

async fn read(counter: &EventFd, _: Pin<&mut ()>) {
    counter.read_async().await.expect("read");
}

/// The tasks on the least executor.
fn by_themselves(pair: Pair) -> Side {
    Box::new(move |times| run(pair(times)))
}

/// The tasks on tokio's runtime of one thread.
fn on_tokio(pair: Pair) -> Result<Side> {
    let runtime = Builder::new_current_thread().build()?;
    Ok(Box::new(move |times| {
        let tasks = LocalSet::new();
        for task in pair(times) {
            tasks.spawn_local(task);
        }
        runtime.block_on(tasks);
    }))
}

/// The tasks on tokio's runtime with several threads, as its users have it by default.
fn on_tokio_threads(pair: Pair) -> Result<Side> {
    const WORKERS: usize = 2;
    let runtime = Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .build()?;
    Ok(Box::new(move |times| {
        let [ping, pong] = pair(times).map(|task| runtime.spawn(task));
        let both = async { (ping.await, pong.await) };
        let (Ok(()), Ok(())) = runtime.block_on(both) else {
            panic!("a task of the benchmark panicked");
        };
    }))
}

/// Runs two tasks in one of the ways above.
type Executor = fn(Pair) -> Result<Side>;

/// Measures a round trip: two awaits and two wakes.
pub(super) fn measure(effort: Effort) -> Result<Vec<Compared>> {
    let executors: [(&str, Executor, Option<f64>); 3] = [
        (
            "round trip of two tasks",
            |pair| Ok(by_themselves(pair)),
            Some(TARGET),
        ),
        ("the same on tokio's runtime", on_tokio, Some(TARGET)),
        ("the same on tokio's two workers", on_tokio_threads, None),
    ];
    let mut rows = Vec::new();
    for (what, run_on, target) in executors {
        let sides = &mut [
            run_on(notify())?,
            run_on(eventfds!(nothing, new_readiness))?,
            run_on(eventfds!(readiness, kept_readiness))?,
            run_on(eventfds!(nothing, read))?,
        ];
        let [notify, new, kept, read] = &interleave(sides, effort)[..] else {
            unreachable!("each side has its series");
        };
        let calls = [
            ("a new Readiness each", target, new),
            ("a kept Readiness", target, kept),
            ("read_async", None, read),
        ];
        for (call, target, series) in calls {
            let row = Row {
                name: NAME,
                what: format!("{what}, {call}").into(),
                against: "tokio's Notify",
                target,
            };
            rows.push(Compared::new(row, notify, series));
        }
    }
    Ok(rows)
}
