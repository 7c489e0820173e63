//! Tasks of tokio that wait for objects of upoll, and a channel of tokio's in a set beside a socket.
//!
//! ```sh
//! cargo run -p upoll-guide --example tasks_in_tokio
//! ```

use std::io::{Error, Read, Write};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::mpsc;
use upoll::channel::{Receiver, bounded};
use upoll::{Epoll, Event, Events, File, PollTable, Pollable, WaitQueue};

const JOBS: u64 = 1000;

// ANCHOR: work
/// Adds up jobs until there will be no more. Returns None if none comes for a second.
async fn work(jobs: Receiver<u64>) -> Option<u64> {
    let mut sum = 0;
    loop {
        tokio::select! {
            job = jobs.recv_async() => match job {
                Ok(job) => sum += job,
                Err(_) => return Some(sum),
            },
            () = tokio::time::sleep(Duration::from_secs(1)) => return None,
        }
    }
}
// ANCHOR_END: work

// ANCHOR: mailbox
/// The receiving end of a channel of tokio's, as an object that sets can watch.
struct Mailbox {
    state: Mutex<State>,
    changed: Arc<WaitQueue>,
    waker: Waker,
}

struct State {
    receiver: mpsc::Receiver<u64>,
    /// The message that the last check has taken out of the channel, or the channel's end.
    found: Option<Option<u64>>,
}

impl Mailbox {
    fn new(receiver: mpsc::Receiver<u64>) -> Self {
        let changed = Arc::new(WaitQueue::new());
        let waker = changed.waker(Events::IN);
        let found = None;
        let state = Mutex::new(State { receiver, found });
        Mailbox {
            state,
            changed,
            waker,
        }
    }

    /// Checks, and hands over the waker if there is nothing. The channel's only check takes the message.
    fn check<T>(&self, with: impl FnOnce(&mut Option<Option<u64>>) -> T) -> T {
        let mut state = self.state.lock().unwrap();
        if state.found.is_none() {
            let mut context = Context::from_waker(&self.waker);
            if let Poll::Ready(found) = state.receiver.poll_recv(&mut context) {
                state.found = Some(found);
            }
        }
        with(&mut state.found)
    }

    /// Returns a message, `Some(None)` at the end of the channel, or None if there is nothing now.
    fn take(&self) -> Option<Option<u64>> {
        self.check(|found| match found {
            Some(None) => Some(None),
            _ => found.take(),
        })
    }
}

impl Pollable for Mailbox {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.changed);
        self.check(|found| match found {
            None => Events::empty(),
            Some(Some(_)) => Events::IN,
            Some(None) => Events::IN | Events::HUP,
        })
    }
}
// ANCHOR_END: mailbox

// ANCHOR: serve
const MAIL: u64 = 0;
const SOCKET: u64 = 1;

/// Adds up messages and bytes until both the channel and the socket have ended.
async fn serve(mailbox: File<Mailbox>, mut socket: UnixStream) -> Result<u64, Error> {
    let set = Epoll::new()?;
    set.add(&mailbox, Event::new(Events::IN, MAIL))?;
    set.add(&socket, Event::new(Events::IN, SOCKET))?;
    let (mut sum, mut left, mut buffer) = (0, 2, [0; 16]);
    let mut events = pin!(set.event_stream()?);
    while left > 0 {
        match events.as_mut().next_event().await?.data() {
            MAIL => match mailbox.take() {
                Some(Some(message)) => sum += message,
                Some(None) => {
                    // The end stays ready.
                    set.delete(&mailbox)?;
                    left -= 1;
                }
                None => {}
            },
            _ => match socket.read(&mut buffer)? {
                0 => {
                    set.delete(&socket)?;
                    left -= 1;
                }
                length => sum += length as u64,
            },
        }
    }
    Ok(sum)
}
// ANCHOR_END: serve

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Error> {
    let (sender, jobs) = bounded(4)?;
    let working = tokio::spawn(work(jobs));
    // Threads that know nothing of tokio send to its tasks.
    let thread = std::thread::spawn(move || (1..=JOBS).try_for_each(|job| sender.send(job)));
    let sum = working.await?;
    thread.join().unwrap().expect("the receiver stays");
    println!("the jobs add up to {sum:?}");
    assert_eq!(sum, Some(JOBS * (JOBS + 1) / 2));

    let (sender, receiver) = mpsc::channel(8);
    let (socket, mut peer) = UnixStream::pair()?;
    let serving = tokio::spawn(serve(File::new(Mailbox::new(receiver)), socket));
    for message in 1..=JOBS {
        sender.send(message).await.expect("the receiver stays");
        if message % 100 == 0 {
            peer.write_all(b"x")?;
        }
    }
    drop((sender, peer));
    let sum = serving.await??;
    println!("the messages and bytes add up to {sum}");
    assert_eq!(sum, JOBS * (JOBS + 1) / 2 + JOBS / 100);
    Ok(())
}
