//! Channels, compared with those of crossbeam and flume.

use std::hint::black_box;

use anyhow::Result;
use crossbeam_channel::Select;
use upoll::channel::{Receiver, Sender, bounded, unbounded};
use upoll::{Epoll, Event, Events};

use super::calls::{Compared, Row};
use super::measure::{Effort, Side, interleave, side};

pub(super) const NAME: &str = "channels";

pub(super) const CAPACITY: usize = 16;

/// Numbers of channels that are waited for, and how many times faster than crossbeam's `Select` the wait is to
/// be.
const WAITS: [(usize, f64); 2] = [(8, 2.0), (64, 5.0)];

pub(super) fn measure(effort: Effort) -> Result<Vec<Compared>> {
    let mut rows = one_message(effort, Some(CAPACITY))?;
    rows.extend(one_message(effort, None)?);
    for (count, target) in WAITS {
        let sides = &mut [made_anew(count), kept(count), set(count)?];
        let series = interleave(sides, effort);
        for (against, other) in [
            ("Select, made for each wait", &series[0]),
            ("Select, kept", &series[1]),
        ] {
            let row = Row {
                name: NAME,
                what: format!("send + wait over {count} + receive").into(),
                against,
                target: Some(target),
            };
            rows.push(Compared::new(row, other, &series[2]));
        }
    }
    Ok(rows)
}

/// A message is sent and received on one thread: by crossbeam's channel, flume's and upoll's.
pub(super) fn sides(capacity: Option<usize>) -> Result<[Side; 3]> {
    let (sender, receiver) = match capacity {
        Some(capacity) => bounded(capacity)?,
        None => unbounded()?,
    };
    let upoll = side(move || {
        sender.try_send(black_box(1_u64)).expect("room");
        black_box(receiver.try_recv().expect("a message"));
    });
    let (sender, receiver) = match capacity {
        Some(capacity) => crossbeam_channel::bounded(capacity),
        None => crossbeam_channel::unbounded(),
    };
    let crossbeam = side(move || {
        sender.try_send(black_box(1_u64)).expect("room");
        black_box(receiver.try_recv().expect("a message"));
    });
    let (sender, receiver) = match capacity {
        Some(capacity) => flume::bounded(capacity),
        None => flume::unbounded(),
    };
    let flume = side(move || {
        sender.try_send(black_box(1_u64)).expect("room");
        black_box(receiver.try_recv().expect("a message"));
    });
    Ok([crossbeam, flume, upoll])
}

fn one_message(effort: Effort, capacity: Option<usize>) -> Result<Vec<Compared>> {
    let series = interleave(&mut sides(capacity)?, effort);
    let kind = if capacity.is_some() {
        "bounded"
    } else {
        "unbounded"
    };
    let rows = [("crossbeam", &series[0]), ("flume", &series[1])];
    let rows = rows.map(|(against, other)| {
        let row = Row {
            name: NAME,
            what: format!("send + try_recv, {kind}").into(),
            against,
            target: Some(1.0),
        };
        Compared::new(row, other, &series[2])
    });
    Ok(rows.into())
}

/// Returns which of `count` sources has news next: all in turn, and no neighbours.
pub(super) fn next(at: &mut usize, count: usize) -> usize {
    // The step has no factor in common with any count that is measured.
    *at = (*at + 13) % count;
    *at
}

/// Waits in an edge-triggered set.
pub(super) fn set(count: usize) -> Result<Side> {
    let set = Epoll::new()?;
    let channels: Vec<(Sender<u64>, Receiver<u64>)> = (0..count)
        .map(|_| bounded(CAPACITY))
        .collect::<Result<_, _>>()?;
    for (at, (_, receiver)) in channels.iter().enumerate() {
        set.add(receiver, Event::new(Events::IN | Events::ET, at as u64))?;
    }
    let mut at = 0;
    Ok(side(move || {
        let (sender, _) = &channels[next(&mut at, count)];
        sender.try_send(black_box(1)).expect("room");
        let mut events = [Event::default(); 8];
        let ready = set.wait(&mut events, None).expect("wait");
        assert_eq!(ready, 1);
        let (_, receiver) = &channels[events[0].data() as usize];
        black_box(receiver.try_iter().count());
    }))
}

type Channels = Vec<(
    crossbeam_channel::Sender<u64>,
    crossbeam_channel::Receiver<u64>,
)>;

fn channels(count: usize) -> Channels {
    (0..count)
        .map(|_| crossbeam_channel::bounded(CAPACITY))
        .collect()
}

/// Waits in a `Select` that is made for each wait, as the macro `select!` does.
pub(super) fn made_anew(count: usize) -> Side {
    let channels = channels(count);
    let mut at = 0;
    side(move || {
        let (sender, _) = &channels[next(&mut at, count)];
        sender.try_send(black_box(1)).expect("room");
        let mut select = select(&channels);
        let ready = select.select();
        let (_, receiver) = &channels[ready.index()];
        black_box(ready.recv(receiver).expect("a message"));
    })
}

/// Waits in one `Select` all the time.
pub(super) fn kept(count: usize) -> Side {
    let channels = channels(count);
    let mut at = 0;
    Box::new(move |times| {
        let mut select = select(&channels);
        for _ in 0..times {
            let (sender, _) = &channels[next(&mut at, count)];
            sender.try_send(black_box(1)).expect("room");
            let ready = select.select();
            let (_, receiver) = &channels[ready.index()];
            black_box(ready.recv(receiver).expect("a message"));
        }
    })
}

fn select(channels: &Channels) -> Select<'_> {
    let mut select = Select::new();
    for (_, receiver) in channels {
        select.recv(receiver);
    }
    select
}
