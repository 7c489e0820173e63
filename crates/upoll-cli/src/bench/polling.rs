//! `poll` and `select` of growing numbers of files: with their memory on the stack, with it on the
//! heap, with a context that is kept between calls, and the kernel's calls.
//!
//! `upoll_heap` is upoll's source, compiled again with the constant for the amount of stack set to
//! zero. Both run alternately in one process. The version on the heap makes one allocation of the
//! size that the call needs for the kernel. Entries of wait queues are allocated in chunks of 64,
//! which is the page that Linux took before it had them on the stack.

use std::hint::black_box;
use std::rc::Rc;

use anyhow::{Context, Result};
use serde::Serialize;

use super::kernel::{self, Fd};
use super::measure::{Effort, Series, Side, Spread, interleave};
use super::set::counters;

pub(super) const NAME: &str = "poll";

const SIZES: [usize; 5] = [1, 8, 30, 100, 1000];
/// Up to this number of files the stack must save `TARGET`.
const TARGET_SIZE: usize = 30;
/// 13 % less than on the heap.
const TARGET: f64 = 1.13;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Poll,
    Select,
}

/// The polled files, and how far the call gets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Idle eventfds of upoll, with a limit of zero.
    Objects,
    /// The same without a limit. An event comes for the last file after its first poll, so the call
    /// registers with each file and does not sleep.
    Registering,
    /// Idle kernel eventfds, with a limit of zero.
    Descriptors,
}

/// The state that is kept between calls.
#[derive(Clone, Copy)]
enum Keeps {
    Nothing,
    /// The registrations, so that the next call need not repeat them.
    Context,
}

impl Call {
    fn name(self) -> &'static str {
        match self {
            Call::Poll => "poll",
            Call::Select => "select",
        }
    }
}

impl Work {
    fn what(self) -> &'static str {
        match self {
            Work::Objects => "objects, limit 0",
            Work::Registering => "objects, registers with each",
            Work::Descriptors => "descriptors, limit 0",
        }
    }

    /// Returns whether the call needs memory on the stack or on the heap.
    fn keeps(self, call: Call) -> bool {
        !(self == Work::Objects && call == Call::Poll)
    }
}

/// One call for a given number of files.
#[derive(Serialize)]
pub(super) struct Polled {
    pub(super) name: &'static str,
    pub(super) call: &'static str,
    pub(super) what: &'static str,
    pub(super) files: usize,
    pub(super) upoll_nanoseconds: Spread,
    pub(super) heap_nanoseconds: Spread,
    /// With a context that is kept. `None` if each call has to register again.
    pub(super) context_nanoseconds: Option<Spread>,
    /// `None` if the kernel has no such case.
    pub(super) kernel_nanoseconds: Option<Spread>,
    /// The time with the heap, relative to the stack.
    pub(super) gain: Spread,
    /// `None` if the call needs no memory, or more than the stack has room for.
    pub(super) gain_target: Option<f64>,
    pub(super) reached: Option<bool>,
    /// The factor by which upoll is faster than the kernel.
    pub(super) ratio: Option<Spread>,
    /// The factor by which upoll is faster with a context than without one.
    pub(super) context_gain: Option<Spread>,
    pub(super) trusted: bool,
    upoll_batches: Series,
    heap_batches: Series,
    context_batches: Option<Series>,
    kernel_batches: Option<Series>,
}

/// The sides of one build of upoll.
macro_rules! sides_of {
    ($build:ident, $library:ident) => {
        mod $build {
            use std::hint::black_box;
            use std::os::fd::AsFd;
            use std::sync::atomic::{AtomicBool, Ordering};

            use anyhow::Result;
            use $library::{
                Descriptor, EventFd, Events, FdSet, File, PollContext, PollFd, PollTable, Pollable,
                Source, Timeout, WaitQueue,
            };

            use super::{Call, Fd, Keeps, Side, Work};

            /// An object that becomes ready at every second poll.
            #[derive(Default)]
            struct LateNews {
                arrived: AtomicBool,
                queue: WaitQueue,
            }

            impl Pollable for LateNews {
                fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
                    table.register(&self.queue);
                    // Only one thread polls, so nothing changes in between.
                    let arrived = self.arrived.load(Ordering::Relaxed);
                    self.arrived.store(!arrived, Ordering::Relaxed);
                    if arrived { Events::IN } else { Events::empty() }
                }
            }

            pub(super) fn side(
                call: Call,
                work: Work,
                keeps: Keeps,
                descriptors: &[Fd],
            ) -> Result<Side> {
                let count = descriptors.len();
                let mut sources: Vec<Box<dyn Source>> = Vec::with_capacity(count);
                for at in 0..count {
                    sources.push(match work {
                        Work::Registering if at + 1 == count => {
                            Box::new(File::new(LateNews::default()))
                        }
                        Work::Objects | Work::Registering => Box::new(EventFd::new(0)?),
                        Work::Descriptors => {
                            let fd = descriptors[at].as_fd().try_clone_to_owned()?;
                            match keeps {
                                Keeps::Nothing => Box::new(fd),
                                Keeps::Context => Box::new(Descriptor::new(fd)),
                            }
                        }
                    });
                }
                let (limit, found) = match work {
                    Work::Registering => (Timeout::NEVER, 1),
                    Work::Objects | Work::Descriptors => (Timeout::NOW, 0),
                };
                let mut context = match keeps {
                    Keeps::Nothing => None,
                    Keeps::Context => Some(PollContext::new()),
                };
                Ok(Box::new(move |times| {
                    let targets: Vec<_> = sources.iter().map(|one| one.target()).collect();
                    match call {
                        Call::Poll => {
                            let fds = targets.iter();
                            let mut fds: Vec<_> = fds
                                .map(|&one| PollFd::from_target(one, Events::IN))
                                .collect();
                            for _ in 0..times {
                                let fds = black_box(&mut fds[..]);
                                let ready = match &mut context {
                                    None => $library::poll(fds, limit),
                                    Some(context) => context.poll(fds, limit),
                                };
                                assert_eq!(ready.expect("poll"), found);
                            }
                        }
                        Call::Select => {
                            let end = i32::try_from(count).expect("few");
                            let all: FdSet = (0..end).collect();
                            let resolve = |fd: i32| targets.get(usize::try_from(fd).ok()?).copied();
                            for _ in 0..times {
                                let mut readable = FdSet::from_words(all.as_words());
                                let mut limit = limit;
                                let (end, readable) = (black_box(end), Some(&mut readable));
                                let limit = &mut limit;
                                let ready = match &mut context {
                                    None => {
                                        $library::select(end, readable, None, None, limit, resolve)
                                    }
                                    Some(context) => {
                                        context.select(end, readable, None, None, limit, resolve)
                                    }
                                };
                                assert_eq!(ready.expect("select"), found);
                            }
                        }
                    }
                }))
            }
        }
    };
}

sides_of!(stack, upoll);
sides_of!(heap, upoll_heap);

/// Returns the kernel's call with files of its own; `None` if `select` has no room for their fds.
fn kernel_side(call: Call, descriptors: &Rc<Vec<Fd>>) -> Option<Side> {
    let descriptors = descriptors.clone();
    match call {
        Call::Poll => Some(Box::new(move |times| {
            let mut fds: Vec<_> = descriptors.iter().map(kernel::readable).collect();
            for _ in 0..times {
                assert_eq!(kernel::poll(black_box(&mut fds)).expect("poll"), 0);
            }
        })),
        Call::Select if descriptors.iter().all(kernel::FdSet::has_room_for) => {
            Some(Box::new(move |times| {
                let mut all = kernel::FdSet::new();
                descriptors.iter().for_each(|one| all.insert(one));
                let end = descriptors
                    .iter()
                    .map(Fd::raw)
                    .max()
                    .map_or(0, |last| last + 1);
                for _ in 0..times {
                    let ready = kernel::select(black_box(end), &mut all.clone());
                    assert_eq!(ready.expect("select"), 0);
                }
            }))
        }
        Call::Select => None,
    }
}

fn measure_one(
    call: Call,
    work: Work,
    descriptors: &Rc<Vec<Fd>>,
    effort: Effort,
) -> Result<Polled> {
    let mut sides = vec![
        stack::side(call, work, Keeps::Nothing, descriptors)?,
        heap::side(call, work, Keeps::Nothing, descriptors)?,
    ];
    if work != Work::Registering {
        sides.push(stack::side(call, work, Keeps::Context, descriptors)?);
        sides.extend(kernel_side(call, descriptors));
    }
    let mut series = interleave(&mut sides, effort).into_iter();
    let upoll = series.next().context("upoll was measured")?;
    let heap = series.next().context("the heap was measured")?;
    let context = series.next();
    let kernel = series.next();
    let files = descriptors.len();
    let gain = heap.ratio_to(&upoll);
    let gain_target = (files <= TARGET_SIZE && work.keeps(call)).then_some(TARGET);
    let ratio = kernel.as_ref().map(|kernel| kernel.ratio_to(&upoll));
    Ok(Polled {
        name: NAME,
        call: call.name(),
        what: work.what(),
        files,
        upoll_nanoseconds: upoll.spread(),
        heap_nanoseconds: heap.spread(),
        context_nanoseconds: context.as_ref().map(Series::spread),
        kernel_nanoseconds: kernel.as_ref().map(Series::spread),
        gain,
        gain_target,
        reached: gain_target.map(|target| gain.median >= target),
        trusted: gain.is_trusted() && ratio.is_none_or(|ratio| ratio.is_trusted()),
        ratio,
        context_gain: context.as_ref().map(|context| upoll.ratio_to(context)),
        upoll_batches: upoll,
        heap_batches: heap,
        context_batches: context,
        kernel_batches: kernel,
    })
}

pub(super) fn measure(effort: Effort) -> Result<Vec<Polled>> {
    let mut rows = Vec::new();
    for work in [Work::Objects, Work::Registering, Work::Descriptors] {
        for call in [Call::Poll, Call::Select] {
            for size in SIZES {
                let descriptors = Rc::new(counters(size)?);
                rows.push(measure_one(call, work, &descriptors, effort)?);
            }
        }
    }
    Ok(rows)
}
