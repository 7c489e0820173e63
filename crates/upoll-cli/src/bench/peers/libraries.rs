//! The same work by other libraries.

use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use anyhow::{Context as _, Result};
use event_listener::listener;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use mio::unix::SourceFd;
use polling::PollMode;
use tokio::sync::{Notify, Semaphore, mpsc};

use super::waits::{descriptors, round};
use crate::bench::channels::{CAPACITY, next};
use crate::bench::measure::{Side, side};

/// Polls a future that is ready.
#[inline]
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it was signalled"),
    }
}

pub(super) fn notify() -> Side {
    let notify = Notify::new();
    side(move || {
        notify.notify_one();
        ready(notify.notified());
    })
}

pub(super) fn semaphore() -> Side {
    let semaphore = Semaphore::new(0);
    side(move || {
        semaphore.add_permits(1);
        semaphore.try_acquire().expect("a permit").forget();
    })
}

pub(super) fn mpsc() -> Side {
    let (sender, mut receiver) = mpsc::channel(CAPACITY);
    side(move || {
        sender.try_send(black_box(1_u64)).expect("room");
        black_box(receiver.try_recv().expect("a message"));
    })
}

/// A notification that nobody listens for is lost, so each round begins to listen.
pub(super) fn event_listener() -> Result<Side> {
    let event = event_listener::Event::<()>::new();
    Ok(side(move || {
        listener!(event => listener);
        event.notify(1);
        ready(listener);
    }))
}

pub(super) fn async_channel() -> Result<Side> {
    let (sender, receiver) = async_channel::bounded(CAPACITY);
    Ok(side(move || {
        sender.try_send(black_box(1_u64)).expect("room");
        black_box(receiver.try_recv().expect("a message"));
    }))
}

pub(super) fn mio(count: usize) -> Result<Side> {
    let counters = descriptors(count)?;
    let mut poll = mio::Poll::new()?;
    for (at, counter) in counters.iter().enumerate() {
        let fd = counter.raw();
        let readable = mio::Interest::READABLE;
        poll.registry()
            .register(&mut SourceFd(&fd), mio::Token(at), readable)?;
    }
    let mut events = mio::Events::with_capacity(8);
    let mut at = 0;
    Ok(side(move || {
        round(&counters, &mut at, || {
            poll.poll(&mut events, Some(Duration::ZERO)).expect("poll");
            let event = events.iter().next().expect("one is ready");
            event.token().0
        });
    }))
}

pub(super) fn polling(count: usize) -> Result<Side> {
    let counters = descriptors(count)?;
    let poller = polling::Poller::new()?;
    for (at, counter) in counters.iter().enumerate() {
        let event = polling::Event::readable(at);
        // SAFETY: the side owns the counter and the poller, so the counter is open whenever the
        // poller is used.
        unsafe { poller.add_with_mode(counter.raw(), event, PollMode::Level) }?;
    }
    let room = 8.try_into().context("no room")?;
    let mut events = polling::Events::with_capacity(room);
    let mut at = 0;
    Ok(side(move || {
        round(&counters, &mut at, || {
            events.clear();
            let ready = poller.wait(&mut events, Some(Duration::ZERO));
            assert_eq!(ready.expect("wait"), 1);
            events.iter().next().expect("one is ready").key
        });
    }))
}

async fn receive(mut receiver: mpsc::Receiver<u64>) -> (mpsc::Receiver<u64>, Option<u64>) {
    let message = receiver.recv().await;
    (receiver, message)
}

/// A future for each channel, which is made anew after each message.
pub(super) fn futures_unordered(count: usize) -> Result<Side> {
    let channels = (0..count).map(|_| mpsc::channel(CAPACITY));
    let (senders, receivers): (Vec<_>, Vec<_>) = channels.unzip();
    let mut waits: FuturesUnordered<_> = receivers.into_iter().map(receive).collect();
    let mut at = 0;
    Ok(side(move || {
        let sender = &senders[next(&mut at, count)];
        sender.try_send(black_box(1)).expect("room");
        // The stream is pending now and then with messages left, to let other tasks run.
        let receiver = loop {
            let mut context = Context::from_waker(Waker::noop());
            if let Poll::Ready(found) = waits.poll_next_unpin(&mut context) {
                let (receiver, message) = found.expect("the futures are made anew");
                black_box(message.expect("a message"));
                break receiver;
            }
        };
        waits.push(receive(receiver));
    }))
}
