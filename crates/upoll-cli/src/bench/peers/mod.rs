//! upoll, other libraries and the kernel's other calls at the same work: one object that is signalled and
//! consumed, and one of many that a wait over all of them finds.

mod libraries;
mod waits;

use anyhow::{Context, Result};
use serde::Serialize;

use super::calls;
use super::channels;
use super::measure::{Effort, Series, Side, Spread, interleave};
use crate::interrupt;

pub(super) const NAME: &str = "peers";

/// The operations with a wait over many sources.
pub(super) const SIGNAL_WAIT: &str = "signal + wait + consume";
pub(super) const SEND_WAIT: &str = "send + wait + receive";

/// Numbers of sources that one wait is for.
const SOURCES: [usize; 4] = [1, 8, 64, 1000];

/// upoll ahead: no peer takes less time.
const TARGET: f64 = 1.0;

/// One way to do an operation.
#[derive(Serialize)]
pub(super) struct Peer {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) sources: usize,
    pub(super) by: &'static str,
    /// The way of upoll that this one is compared with. `None` for that way itself.
    pub(super) against: Option<&'static str>,
    /// `None` if this way was skipped.
    pub(super) figures: Option<Figures>,
    /// The reason why this way was not measured.
    pub(super) skipped: Option<String>,
    /// The target: how many times faster upoll must be. `None` for upoll's own ways.
    pub(super) target: Option<f64>,
    pub(super) reached: Option<bool>,
}

#[derive(Serialize)]
pub(super) struct Figures {
    pub(super) nanoseconds: Spread,
    /// The factor by which the way of upoll that this one is compared with is faster.
    pub(super) ratio: Option<Spread>,
    /// True if no other way to do the operation has a lower median.
    pub(super) fastest: bool,
    /// True if the spread of the ratio is small enough to go by its median.
    pub(super) trusted: bool,
    batches: Series,
}

/// A way to do an operation, or the reason why it cannot be measured here.
type Way = (&'static str, Result<Side>);

/// Returns whether a way is upoll's, by its name.
fn is_upoll(by: &str) -> bool {
    by.starts_with("upoll")
}

/// Measures all ways to do an operation. The first one is upoll's, with which the others are compared.
fn compare(
    what: &'static str,
    sources: usize,
    ways: Vec<Way>,
    effort: Effort,
) -> Result<Vec<Peer>> {
    let mut sides = Vec::new();
    let mut peers = Vec::new();
    for (by, side) in ways {
        let skipped = match side {
            Ok(side) => {
                sides.push(side);
                None
            }
            Err(error) if is_upoll(by) => return Err(error).context(by),
            Err(error) => Some(format!("{error:#}")),
        };
        let reference = peers.first().map(|first: &Peer| first.by);
        peers.push(Peer {
            name: NAME,
            what,
            sources,
            by,
            against: reference,
            figures: None,
            skipped,
            target: (!is_upoll(by)).then_some(TARGET),
            reached: None,
        });
    }
    let series = interleave(&mut sides, effort);
    let reference = series.first().context("no way of upoll")?;
    let medians = series.iter().map(|one| one.spread().median);
    let lowest = medians.fold(f64::INFINITY, f64::min);
    let measured = peers.iter_mut().filter(|peer| peer.skipped.is_none());
    for (peer, batches) in measured.zip(&series) {
        let ratio = peer.against.map(|_| batches.ratio_to(reference));
        let nanoseconds = batches.spread();
        peer.reached = peer
            .target
            .zip(ratio)
            .map(|(target, ratio)| ratio.median >= target);
        peer.figures = Some(Figures {
            nanoseconds,
            ratio,
            fastest: nanoseconds.median <= lowest,
            trusted: ratio.is_none_or(|ratio| ratio.is_trusted()),
            batches: batches.clone(),
        });
    }
    Ok(peers)
}

pub(super) fn measure(effort: Effort) -> Result<Vec<Peer>> {
    let [kernel, upoll] = calls::eventfd_calls()?;
    let ways = vec![
        ("upoll eventfd", Ok(upoll)),
        ("tokio Notify", Ok(libraries::notify())),
        ("tokio Semaphore", Ok(libraries::semaphore())),
        ("event-listener", libraries::event_listener()),
        ("kernel eventfd", Ok(kernel)),
    ];
    let mut peers = compare("signal + consume", 1, ways, effort)?;

    let [crossbeam, flume, upoll] = channels::sides(Some(channels::CAPACITY))?;
    let ways = vec![
        ("upoll channel", Ok(upoll)),
        ("tokio mpsc", Ok(libraries::mpsc())),
        ("flume", Ok(flume)),
        ("crossbeam", Ok(crossbeam)),
        ("async-channel", libraries::async_channel()),
    ];
    peers.extend(compare("send + receive", 1, ways, effort)?);

    for count in SOURCES {
        let mut ways = waits::over_eventfds(count);
        ways.push(("mio", libraries::mio(count)));
        ways.push(("polling", libraries::polling(count)));
        peers.extend(compare(SIGNAL_WAIT, count, ways, effort)?);
        if interrupt::is_pending() {
            break;
        }
    }
    for count in SOURCES {
        let ways = vec![
            ("upoll set", channels::set(count)),
            ("crossbeam Select, kept", Ok(channels::kept(count))),
            (
                "crossbeam Select, made per wait",
                Ok(channels::made_anew(count)),
            ),
            (
                "FuturesUnordered of tokio mpsc",
                libraries::futures_unordered(count),
            ),
        ];
        peers.extend(compare(SEND_WAIT, count, ways, effort)?);
        if interrupt::is_pending() {
            break;
        }
    }
    Ok(peers)
}
