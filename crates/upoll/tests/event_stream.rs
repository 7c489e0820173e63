//! `Epoll::event_stream` as a `Stream`.
#![cfg(all(feature = "futures-core", not(upoll_loom)))]

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use futures_core::Stream;
use upoll::{Epoll, Event, EventFd, Events};

#[test]
fn a_stream_has_each_event_once_and_does_not_end() {
    let (set, counter) = (Epoll::new().unwrap(), EventFd::new(0).unwrap());
    set.add(&counter, Event::new(Events::IN | Events::ET, 7))
        .unwrap();
    let mut events = pin!(set.event_stream().unwrap());
    let mut context = Context::from_waker(Waker::noop());
    assert!(events.as_mut().poll_next(&mut context).is_pending());
    for _ in 0..2 {
        counter.try_write(1).unwrap();
        let next = events.as_mut().poll_next(&mut context);
        assert!(matches!(next, Poll::Ready(Some(Ok(event))) if event.data() == 7));
        assert!(events.as_mut().poll_next(&mut context).is_pending());
    }
}
