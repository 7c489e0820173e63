//! Many changes in one call, compared with as many calls of the kernel.

use std::cell::Cell;

use anyhow::{Result, ensure};
use io_uring::{IoUring, opcode, squeue, types};
use upoll::{CtlCommand, Epoll, Event, EventFd, Events};

use super::calls::{Compared, Row, idle};
use super::kernel::Fd;
use super::measure::{Effort, Side, interleave};
use super::set::{Set, counters, watching};

pub(super) const NAME: &str = "batch";

/// Changes in a batch.
const SIZES: [usize; 4] = [1, 16, 64, 256];

/// The target ratio for a batch of 64 changes of user-level members.
const TARGET: f64 = 10.0;
/// Changes of kernel fds cost the kernel's time, and at most 3 % more.
const KERNEL_TARGET: f64 = 1.0 / 1.03;

/// The members that are changed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Members {
    User,
    Kernel,
    /// Half of each.
    Mixed,
}

pub(super) fn measure(effort: Effort) -> Result<Vec<Compared>> {
    let mut rows = Vec::new();
    for (members, of) in [
        (Members::User, "user-level objects"),
        (Members::Kernel, "descriptors"),
        (Members::Mixed, "half of each"),
    ] {
        for size in SIZES {
            let row = Row {
                name: NAME,
                what: format!("{size} MODs, {of}").into(),
                against: "kernel, one by one",
                target: match (members, size) {
                    (Members::User, 64) => Some(TARGET),
                    (Members::Kernel, _) => Some(KERNEL_TARGET),
                    _ => None,
                },
            };
            let sides = &mut [one_by_one(size)?, batch(size, members)?];
            let series = interleave(sides, effort);
            rows.push(Compared::new(row, &series[0], &series[1]));
        }
    }
    for size in SIZES {
        // Without io_uring there is nothing to compare with.
        let Ok(linked) = linked(size) else { continue };
        let row = Row {
            name: NAME,
            what: format!("{size} MODs, descriptors").into(),
            against: "linked io_uring",
            target: None,
        };
        let series = interleave(&mut [linked, batch(size, Members::Kernel)?], effort);
        rows.push(Compared::new(row, &series[0], &series[1]));
    }
    Ok(rows)
}

/// The sequence of changes. No round repeats the change of the one before.
#[derive(Default)]
struct Turn(Cell<u64>);

impl Turn {
    fn next(&self) -> (Events, u64) {
        let turn = self.0.get() + 1;
        self.0.set(turn);
        let events = if turn.is_multiple_of(2) {
            Events::IN
        } else {
            Events::IN | Events::RDHUP
        };
        (events, turn)
    }
}

fn one_by_one(size: usize) -> Result<Side> {
    let (set, counters) = watching::<Fd, Fd>(size, Events::IN, idle)?;
    let turn = Turn::default();
    Ok(Box::new(move |times| {
        for _ in 0..times {
            let (events, data) = turn.next();
            for counter in &counters {
                set.modify(counter, events, data).expect("MOD");
            }
        }
    }))
}

fn batch(size: usize, members: Members) -> Result<Side> {
    let of_kernel = match members {
        Members::User => 0,
        Members::Kernel => size,
        Members::Mixed => size / 2,
    };
    let set = Epoll::new()?;
    let descriptors: Vec<Fd> = counters(of_kernel)?;
    let objects: Vec<EventFd> = counters(size - of_kernel)?;
    for descriptor in &descriptors {
        set.add(descriptor, Event::new(Events::IN, 0))?;
    }
    for object in &objects {
        set.add(object, Event::new(Events::IN, 0))?;
    }
    let turn = Turn::default();
    Ok(Box::new(move |times| {
        let interest = Event::default();
        let users = objects.iter().map(|one| CtlCommand::modify(one, interest));
        let kernels = descriptors.iter();
        let kernels = kernels.map(|one| CtlCommand::modify(one, interest));
        let mut commands: Vec<_> = users.chain(kernels).collect();
        for _ in 0..times {
            let (events, data) = turn.next();
            for command in &mut commands {
                command.interest = Event::new(events, data);
            }
            let done = set.ctl_batch(&mut commands).expect("a batch");
            assert_eq!(done, commands.len());
        }
    }))
}

/// Makes a ring with room for this number of entries.
pub(super) fn ring(entries: u32) -> Result<IoUring> {
    let ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_coop_taskrun()
        .build(entries)?;
    ensure!(
        ring.params().sq_entries() >= entries,
        "the ring is too small"
    );
    Ok(ring)
}

/// The counterpart in the kernel: a linked io_uring chain, which also ends at its first failure.
fn linked(size: usize) -> Result<Side> {
    let (set, counters) = watching::<Fd, Fd>(size, Events::IN, idle)?;
    let mut ring = ring(u32::try_from(size)?)?;
    let turn = Turn::default();
    Ok(Box::new(move |times| {
        for _ in 0..times {
            let (events, data) = turn.next();
            let event = libc::epoll_event {
                events: events.bits(),
                u64: data,
            };
            for (at, counter) in counters.iter().enumerate() {
                let change = opcode::EpollCtl::new(
                    types::Fd(set.raw()),
                    types::Fd(counter.raw()),
                    libc::EPOLL_CTL_MOD,
                    (&raw const event).cast(),
                )
                .build();
                let is_last = at + 1 == counters.len();
                let flags = if is_last {
                    squeue::Flags::empty()
                } else {
                    squeue::Flags::IO_LINK
                };
                // SAFETY: the event lives until all entries have completed, below.
                unsafe { ring.submission().push(&change.flags(flags)) }.expect("there is room");
            }
            ring.submit_and_wait(counters.len()).expect("submit");
            let mut done = 0;
            for completion in ring.completion() {
                assert_eq!(completion.result(), 0, "MOD");
                done += 1;
            }
            assert_eq!(done, counters.len());
        }
    }))
}
