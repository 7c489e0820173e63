//! The cost of a call as the set grows, which should stay the same.

use std::hint::black_box;
use std::rc::Rc;

use anyhow::Result;
use serde::Serialize;
use upoll::{Epoll, Event, EventFd, Events, Timeout};

use super::kernel::{self, Fd};
use super::measure::{Effort, Series, Side, Spread, interleave, side};

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
    /// How many times faster upoll is.
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
struct Sets {
    sizes: Vec<usize>,
    kernel_sizes: Vec<usize>,
    theirs: Vec<Rc<Fd>>,
    ours: Vec<Rc<Epoll>>,
    their_counters: Vec<Fd>,
    our_counters: Vec<EventFd>,
}

impl Sets {
    fn new(sizes: &[usize], descriptor_limit: u64) -> Result<Self> {
        let most = usize::try_from(descriptor_limit.saturating_sub(SPARE_DESCRIPTORS))?;
        let kernel_sizes: Vec<usize> = sizes.iter().map(|&size| size.min(most)).collect();
        let mut sets = Sets {
            sizes: sizes.to_vec(),
            theirs: Vec::new(),
            ours: Vec::new(),
            their_counters: counters(&kernel_sizes, || Ok(Fd::eventfd(0)?))?,
            our_counters: counters(sizes, || Ok(EventFd::new(0)?))?,
            kernel_sizes,
        };
        for (&size, &kernel_size) in sets.sizes.iter().zip(&sets.kernel_sizes) {
            let theirs = Fd::epoll()?;
            for counter in &sets.their_counters[..kernel_size] {
                theirs.add(counter, libc::EPOLLIN, 0)?;
            }
            sets.theirs.push(Rc::new(theirs));
            let ours = Epoll::new()?;
            for counter in &sets.our_counters[..size] {
                ours.add(counter, Event::new(Events::IN, 0))?;
            }
            sets.ours.push(Rc::new(ours));
        }
        Ok(sets)
    }

    /// Measures pairs of sides, the kernel's and upoll's, one pair for each size.
    fn measure(
        &self,
        name: &'static str,
        what: &'static str,
        mut sides: Vec<Side>,
        effort: Effort,
    ) -> Vec<Grown> {
        let series = interleave(&mut sides, effort);
        let (pairs, _) = series.as_chunks::<2>();
        let sizes = self.sizes.iter().zip(&self.kernel_sizes);
        sizes
            .zip(pairs)
            .map(|((&items, &kernel_items), [kernel, upoll])| {
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
            })
            .collect()
    }

    /// `wait(0)` with one counter ready, the middle one of the smallest set.
    fn waits(&self) -> Result<Vec<Side>> {
        let middle = self.kernel_sizes[0] / 2;
        self.their_counters[middle].write_count(1)?;
        self.our_counters[middle].write(1)?;
        let mut sides = Vec::new();
        for (theirs, ours) in self.theirs.iter().zip(&self.ours) {
            let (theirs, ours) = (theirs.clone(), ours.clone());
            sides.push(side(move || {
                let mut reports = [kernel::IDLE; 8];
                assert_eq!(theirs.wait(&mut reports, 0).expect("wait"), 1);
                black_box(reports);
            }));
            sides.push(side(move || {
                let mut reports = [Event::default(); 8];
                assert_eq!(ours.wait(&mut reports, Timeout::NOW).expect("wait"), 1);
                black_box(reports);
            }));
        }
        Ok(sides)
    }

    /// ADD and DEL of one more counter.
    fn adds_and_deletes(&self) -> Result<Vec<Side>> {
        let (their_counter, our_counter) = (Rc::new(Fd::eventfd(0)?), Rc::new(EventFd::new(0)?));
        let mut sides = Vec::new();
        for (theirs, ours) in self.theirs.iter().zip(&self.ours) {
            let (theirs, their_counter) = (theirs.clone(), their_counter.clone());
            sides.push(side(move || {
                let events = black_box(libc::EPOLLIN);
                theirs.add(&their_counter, events, 1).expect("ADD");
                theirs.delete(&their_counter).expect("DEL");
            }));
            let (ours, our_counter) = (ours.clone(), our_counter.clone());
            sides.push(side(move || {
                let interest = Event::new(black_box(Events::IN), 1);
                ours.add(&*our_counter, interest).expect("ADD");
                ours.delete(&*our_counter).expect("DEL");
            }));
        }
        Ok(sides)
    }

    /// A poll of a set in which all counters are ready, and which watches another set.
    fn looks(&self) -> Result<Vec<Side>> {
        for counter in &self.their_counters {
            counter.write_count(1)?;
        }
        for counter in &self.our_counters {
            counter.write(1)?;
        }
        let mut sides = Vec::new();
        for (theirs, ours) in self.theirs.iter().zip(&self.ours) {
            let nested = Fd::epoll()?;
            theirs.add(&nested, libc::EPOLLIN, 0)?;
            let theirs = theirs.clone();
            sides.push(side(move || {
                let _kept = &nested;
                let mut list = [kernel::readable(&theirs)];
                assert_eq!(kernel::poll(&mut list).expect("poll"), 1);
            }));
            let nested = Epoll::new()?;
            ours.add(&nested, Event::new(Events::IN, 0))?;
            let ours = ours.clone();
            sides.push(side(move || {
                let _kept = &nested;
                assert!(black_box(&ours).as_file_ref().is_ready(Events::IN));
            }));
        }
        Ok(sides)
    }
}

fn counters<T>(sizes: &[usize], make: impl FnMut() -> Result<T>) -> Result<Vec<T>> {
    let most = sizes.iter().copied().max().unwrap_or(0);
    std::iter::repeat_with(make).take(most).collect()
}

/// Measures the named benchmarks in sets of these sizes, smallest first.
pub(super) fn measure(
    names: &[&'static str],
    sizes: &[usize],
    descriptor_limit: u64,
    effort: Effort,
) -> Result<Vec<Grown>> {
    let sets = Sets::new(sizes, descriptor_limit)?;
    let mut rows = Vec::new();
    for &name in names {
        let (what, sides) = match name {
            WAIT => ("wait(0), 1 ready, others idle", sets.waits()?),
            ADD_DEL => ("ADD + DEL of one more", sets.adds_and_deletes()?),
            _ => ("poll of the set itself, all ready", sets.looks()?),
        };
        rows.extend(sets.measure(name, what, sides, effort));
    }
    Ok(rows)
}
