//! The cost of a call as the set grows, which should stay the same.

use std::hint::black_box;
use std::rc::Rc;

use anyhow::Result;
use serde::Serialize;
use upoll::{Epoll, EventFd, Events};

use super::calls::idle;
use super::kernel::{self, Fd};
use super::measure::{Effort, Series, Side, Spread, interleave, side};
use super::set::{Counter, Set, counters};

pub(super) const WAIT: &str = "growth-wait";
pub(super) const ADD_DEL: &str = "growth-add-del";
pub(super) const LOOK: &str = "growth-look";
/// The last benchmark makes all counters ready.
pub(super) const NAMES: [&str; 3] = [WAIT, ADD_DEL, LOOK];

/// The growth up to which a cost counts as the same.
const TOLERATED: f64 = 1.1;

/// The number of fds left for the rest of the process.
const SPARE_DESCRIPTORS: u64 = 64;

/// One call in sets of one size.
#[derive(Serialize)]
pub(super) struct Grown {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    /// Items in upoll's set.
    pub(super) items: usize,
    /// Items in the kernel's set: fewer if there are not enough fds.
    pub(super) kernel_items: usize,
    pub(super) kernel_nanoseconds: Spread,
    pub(super) upoll_nanoseconds: Spread,
    /// The factor by which upoll is faster.
    pub(super) ratio: Spread,
    /// The cost relative to the smallest set, batch by batch.
    pub(super) kernel_growth: Spread,
    pub(super) upoll_growth: Spread,
    pub(super) upoll_growth_tolerated: f64,
    pub(super) reached: bool,
    pub(super) trusted: bool,
    kernel_batches: Series,
    upoll_batches: Series,
}

/// Sets of several sizes, which share the counters that they watch.
struct Sets<S, C> {
    sizes: Vec<usize>,
    sets: Vec<Rc<S>>,
    counters: Vec<C>,
}

impl<S: Set<C>, C: Counter> Sets<S, C> {
    fn new(sizes: Vec<usize>) -> Result<Self> {
        let most = sizes.iter().copied().max().unwrap_or(0);
        let counters: Vec<C> = counters(most)?;
        let mut sets = Vec::new();
        for &size in &sizes {
            let set = S::open()?;
            for counter in &counters[..size] {
                set.add(counter, Events::IN, 0)?;
            }
            sets.push(Rc::new(set));
        }
        Ok(Sets {
            sizes,
            sets,
            counters,
        })
    }

    /// Makes a side of each set.
    fn each(&self, mut make: impl FnMut(Rc<S>) -> Result<Side>) -> Result<Vec<Side>> {
        self.sets.iter().map(|set| make(set.clone())).collect()
    }

    /// `wait(0)` with the counter at this place ready.
    fn waits(&self, ready: usize) -> Result<Vec<Side>> {
        self.counters[ready].write();
        self.each(|set| {
            Ok(side(move || {
                let mut reports = [S::ROOM; 8];
                assert_eq!(set.harvest(&mut reports).expect("wait"), 1);
                black_box(reports);
            }))
        })
    }

    /// ADD and DEL of one more counter.
    fn adds_and_deletes(&self) -> Result<Vec<Side>> {
        let counter = Rc::new(idle::<C>()?);
        self.each(|set| {
            let counter = counter.clone();
            Ok(side(move || {
                let events = black_box(Events::IN);
                set.add(&counter, events, 1).expect("ADD");
                set.delete(&counter).expect("DEL");
            }))
        })
    }

    /// A poll of a set in which all counters are ready, and which watches another set.
    fn polls(&self, is_ready: fn(&S) -> bool) -> Result<Vec<Side>> {
        self.counters.iter().for_each(C::write);
        self.each(|set| {
            let nested = S::open()?;
            set.add_set(&nested, Events::IN, 0)?;
            Ok(side(move || {
                let _kept = &nested;
                assert!(is_ready(black_box(&set)));
            }))
        })
    }
}

/// Measures pairs of sides, the kernel's and upoll's, one pair for each size.
fn compare(
    name: &'static str,
    what: &'static str,
    sizes: &[(usize, usize)],
    kernel: Vec<Side>,
    upoll: Vec<Side>,
    effort: Effort,
) -> Vec<Grown> {
    let pairs = kernel.into_iter().zip(upoll);
    let mut sides: Vec<_> = pairs.flat_map(|(kernel, upoll)| [kernel, upoll]).collect();
    let series = interleave(&mut sides, effort);
    let (pairs, _) = series.as_chunks::<2>();
    let row = |(&(items, kernel_items), [kernel, upoll]): (&(usize, usize), &[Series; 2])| {
        let upoll_growth = upoll.ratio_to(&pairs[0][1]);
        Grown {
            name,
            what,
            items,
            kernel_items,
            kernel_nanoseconds: kernel.spread(),
            upoll_nanoseconds: upoll.spread(),
            ratio: kernel.ratio_to(upoll),
            kernel_growth: kernel.ratio_to(&pairs[0][0]),
            upoll_growth,
            upoll_growth_tolerated: TOLERATED,
            reached: upoll_growth.median <= TOLERATED,
            trusted: upoll_growth.is_trusted(),
            kernel_batches: kernel.clone(),
            upoll_batches: upoll.clone(),
        }
    };
    sizes.iter().zip(pairs).map(row).collect()
}

fn kernel_set_is_ready(set: &Fd) -> bool {
    kernel::poll(&mut [kernel::readable(set)]).expect("poll") == 1
}

/// Measures the named benchmarks in sets of these sizes, smallest first.
pub(super) fn measure(
    names: &[&'static str],
    sizes: &[usize],
    descriptor_limit: u64,
    effort: Effort,
) -> Result<Vec<Grown>> {
    let most = usize::try_from(descriptor_limit.saturating_sub(SPARE_DESCRIPTORS))?;
    let of_kernel = sizes.iter().map(|&size| size.min(most)).collect();
    let theirs = Sets::<Fd, Fd>::new(of_kernel)?;
    let ours = Sets::<Epoll, EventFd>::new(sizes.to_vec())?;
    let sizes: Vec<_> = sizes.iter().copied().zip(theirs.sizes.clone()).collect();
    let mut rows = Vec::new();
    for &name in names {
        let (what, kernel, upoll) = match name {
            WAIT => {
                // In the middle of the smallest set.
                let ready = theirs.sizes[0] / 2;
                let what = "wait(0), 1 ready, others idle";
                (what, theirs.waits(ready)?, ours.waits(ready)?)
            }
            ADD_DEL => (
                "ADD + DEL of one more",
                theirs.adds_and_deletes()?,
                ours.adds_and_deletes()?,
            ),
            _ => (
                "poll of the set itself, all ready",
                theirs.polls(kernel_set_is_ready)?,
                ours.polls(|set| set.as_file_ref().is_ready(Events::IN))?,
            ),
        };
        rows.extend(compare(name, what, &sizes, kernel, upoll, effort));
    }
    Ok(rows)
}
