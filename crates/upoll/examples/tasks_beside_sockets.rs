//! An executor that sleeps in a set: its tasks wait for objects of upoll, timers and sockets of the kernel.
//!
//! Run it with `cargo run --example tasks_beside_sockets`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use upoll::channel::bounded;
use upoll::{Clock, Epoll, Errno, Event, EventFd, Events, Readiness, Source, Timer, Timers};

type Task<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Marks its task as runnable, and ends the executor's wait.
struct Runnable {
    is_set: AtomicBool,
    bell: EventFd,
}

impl Wake for Runnable {
    fn wake(self: Arc<Self>) {
        self.is_set.store(true, Ordering::SeqCst);
        // It fails only if there are more wakeups than a counter counts, and then the thread is awake.
        let _ = self.bell.try_write(1);
    }
}

// ANCHOR: executor
/// The place where the executor sleeps.
struct Reactor {
    set: Epoll,
    /// The wakers of tasks that wait for kernel fds, by the data of their events.
    waiting: RefCell<HashMap<u64, Waker>>,
}

const BELL: u64 = u64::MAX;
const TIME: u64 = u64::MAX - 1;

impl Reactor {
    fn new(bell: &EventFd, any_timer: &Timer) -> Result<Self, Errno> {
        let set = Epoll::new()?;
        set.add(bell, Event::new(Events::IN | Events::ET, BELL))?;
        // The set goes by the clock of this timer from now on: its waits fire all timers of that clock.
        set.add(any_timer, Event::new(Events::empty(), TIME))?;
        Ok(Reactor {
            set,
            waiting: RefCell::default(),
        })
    }

    /// Waits until `fd` is ready. `id` is for this fd alone.
    async fn ready(&self, fd: &impl Source, id: u64, events: Events) -> Result<(), Errno> {
        let interest = Event::new(events | Events::ONESHOT, id);
        self.set.add(fd, interest)?;
        let mut is_registered = false;
        std::future::poll_fn(|context| {
            let mut waiting = self.waiting.borrow_mut();
            if is_registered && !waiting.contains_key(&id) {
                return Poll::Ready(());
            }
            is_registered = true;
            waiting.insert(id, context.waker().clone());
            Poll::Pending
        })
        .await;
        self.set.delete(fd)
    }

    /// Sleeps until something happens.
    fn turn(&self) -> Result<(), Errno> {
        let mut events = [Event::default(); 16];
        let ready = match self.set.wait(&mut events, None) {
            // A signal handler ran.
            Err(Errno::INTR) => 0,
            ready => ready?,
        };
        for event in &events[..ready] {
            let waker = self.waiting.borrow_mut().remove(&event.data());
            if let Some(waker) = waker {
                waker.wake();
            }
        }
        Ok(())
    }
}
// ANCHOR_END: executor

fn run(reactor: &Reactor, bell: &EventFd, tasks: Vec<Task<'_>>) -> Result<(), Errno> {
    let mut tasks: Vec<_> = tasks
        .into_iter()
        .map(|task| {
            let runnable = Arc::new(Runnable {
                is_set: AtomicBool::new(true),
                bell: bell.clone(),
            });
            (task, runnable.clone(), Waker::from(runnable))
        })
        .collect();
    bell.try_write(1)?;
    while !tasks.is_empty() {
        reactor.turn()?;
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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let timers = Timers::on(Clock::Monotonic)?;
    let bell = EventFd::new(0)?;
    let any_timer = timers.timer()?;
    let reactor = Reactor::new(&bell, &any_timer)?;
    let (sender, jobs) = bounded(1)?;
    let (mut socket, mut peer) = UnixStream::pair()?;
    socket.set_nonblocking(true)?;
    peer.set_nonblocking(true)?;
    run(
        &reactor,
        &bell,
        vec![
            Box::pin(async {
                let pause = timers.timer().expect("there is memory");
                for job in 0..3_u8 {
                    pause.arm(Duration::from_millis(2), Duration::ZERO);
                    let mut rings = pin!(Readiness::new(&pause, Events::IN).expect("no kernel fd"));
                    rings.as_mut().await;
                    sender.send_async(job).await.expect("there is a receiver");
                }
                drop(sender);
            }),
            Box::pin(async move {
                while let Ok(job) = jobs.recv_async().await {
                    peer.write_all(&[job]).expect("there is room");
                }
            }),
            Box::pin(async {
                let mut buffer = [0; 8];
                loop {
                    match socket.read(&mut buffer) {
                        Ok(0) => break,
                        Ok(read) => println!("the socket has {:?}", &buffer[..read]),
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                            let readable = reactor.ready(&socket, 0, Events::IN).await;
                            readable.expect("it is in the set once");
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            }),
        ],
    )?;
    Ok(())
}
