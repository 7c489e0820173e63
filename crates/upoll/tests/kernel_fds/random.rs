//! Random sequences of calls on sets that watch each other, user-level counters and kernel fds,
//! compared with kernel sets that have the same kernel fds.
//!
//! Both sides watch the same pipes and sockets. A user-level counter has a kernel eventfd as its
//! twin, and both are written and read together. Each wait has room for all events. The events are
//! compared as a multiset of (data, events), because the order between members of different kinds
//! is unspecified.
//!
//! Edges of an edge-triggered interest in a set can differ from Linux's in two cases: a set reports
//! once more when it gets its kernel set, and an event that is gone before a poll is no edge if the
//! set was ready already by a user-level member. So half of the cases have no edge-triggered
//! interests in sets. In the other half the watched sets have members of one kind, and their kernel
//! sets from the start.

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use proptest::prelude::*;
use upoll::{Epoll, Errno, Event, EventFd, Events, Op};

use crate::host::{Kernel, eventfd, eventfd_read, eventfd_write, sorted, try_wait};

const SETS: usize = 3;
const MEMBERS: usize = 4;

/// A file that a set can watch.
enum Member {
    Pair {
        near: Option<UnixStream>,
        far: UnixStream,
    },
    Kernel(OwnedFd),
    User {
        ours: EventFd,
        theirs: OwnedFd,
    },
}

impl Member {
    fn open(index: usize) -> Self {
        match index {
            0 => {
                let (near, far) = UnixStream::pair().unwrap();
                near.set_nonblocking(true).unwrap();
                far.set_nonblocking(true).unwrap();
                Member::Pair {
                    near: Some(near),
                    far,
                }
            }
            1 => Member::Kernel(eventfd()),
            _ => Member::User {
                ours: EventFd::new(0).unwrap(),
                theirs: eventfd(),
            },
        }
    }

    fn write(&mut self) {
        match self {
            Member::Pair { near, .. } => {
                if let Some(near) = near {
                    let _ = near.write(b"x");
                }
            }
            Member::Kernel(fd) => eventfd_write(fd),
            Member::User { ours, theirs } => {
                ours.try_write(1).unwrap();
                eventfd_write(theirs);
            }
        }
    }

    fn read(&mut self) {
        match self {
            Member::Pair { far, .. } => {
                let _ = far.read(&mut [0; 64]);
            }
            Member::Kernel(fd) => eventfd_read(fd),
            Member::User { ours, theirs } => {
                let _ = ours.try_read();
                eventfd_read(theirs);
            }
        }
    }

    fn hang_up(&mut self) {
        if let Member::Pair { near, .. } = self {
            *near = None;
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Write(usize),
    Read(usize),
    HangUp(usize),
    Reopen(usize),
    /// The index of the set, and that of the target: the members come first, then the sets.
    Ctl(usize, Op, usize, Events),
    ReopenSet(usize),
    Wait(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let op = prop_oneof![4 => Just(Op::Add), 2 => Just(Op::Mod), 1 => Just(Op::Del)];
    let events = prop_oneof![
        3 => Just(Events::IN),
        2 => Just(Events::IN | Events::ET),
        1 => Just(Events::IN | Events::ONESHOT),
        1 => Just(Events::IN | Events::ET | Events::ONESHOT),
        1 => Just(Events::IN | Events::OUT | Events::RDHUP),
        1 => Just(Events::OUT | Events::ET),
        1 => Just(Events::OUT),
        1 => Just(Events::empty()),
    ];
    let step = prop_oneof![
        6 => (0..MEMBERS).prop_map(Step::Write),
        4 => (0..MEMBERS).prop_map(Step::Read),
        1 => (0..MEMBERS).prop_map(Step::HangUp),
        1 => (0..MEMBERS).prop_map(Step::Reopen),
        8 => (0..SETS, op, 0..MEMBERS + SETS, events)
            .prop_map(|(set, op, of, events)| Step::Ctl(set, op, of, events)),
        1 => (0..SETS).prop_map(Step::ReopenSet),
        10 => (0..SETS).prop_map(Step::Wait),
    ];
    proptest::collection::vec(step, 1..60)
}

struct World {
    /// True if interests in sets may be edge-triggered.
    edges: bool,
    members: Vec<Member>,
    ours: Vec<Epoll>,
    theirs: Vec<Kernel>,
}

fn open_set(with_kernel_set: bool) -> Epoll {
    let set = Epoll::new().unwrap();
    if with_kernel_set {
        let below = Epoll::new().unwrap();
        below.add(&eventfd(), Event::default()).unwrap();
        set.add(&below, Event::default()).unwrap();
    }
    set
}

impl World {
    fn new(edges: bool) -> Self {
        World {
            edges,
            members: (0..MEMBERS).map(Member::open).collect(),
            ours: (0..SETS).map(|_| open_set(edges)).collect(),
            theirs: (0..SETS).map(|_| Kernel::new()).collect(),
        }
    }

    fn ctl(&self, set: usize, op: Op, of: usize, mut events: Events) -> (R, R) {
        if of >= MEMBERS && !self.edges {
            events -= Events::ET;
        }
        let of_the_core = of >= MEMBERS || matches!(self.members[of], Member::User { .. });
        if self.edges && set > 0 && of_the_core {
            return (Ok(()), Ok(()));
        }
        let interest = Event::new(events, of as u64 + 100 * u64::from(events.bits()));
        let (ours, theirs) = (&self.ours[set], &self.theirs[set]);
        if of >= MEMBERS {
            // Only sets with a lower index watch a set, so there are no loops.
            let below = of - MEMBERS;
            if below <= set {
                return (Ok(()), Ok(()));
            }
            return (
                ours.ctl(op, upoll::Source::target(&self.ours[below]), interest),
                theirs.ctl(op, self.theirs[below].0.as_raw_fd(), interest),
            );
        }
        match &self.members[of] {
            Member::Pair { far, .. } => (
                ours.ctl(op, upoll::Target::Kernel(far.as_fd()), interest),
                theirs.ctl(op, far.as_raw_fd(), interest),
            ),
            Member::Kernel(fd) => (
                ours.ctl(op, upoll::Target::Kernel(fd.as_fd()), interest),
                theirs.ctl(op, fd.as_raw_fd(), interest),
            ),
            Member::User {
                ours: counter,
                theirs: twin,
            } => (
                ours.ctl(op, upoll::Source::target(counter), interest),
                theirs.ctl(op, twin.as_raw_fd(), interest),
            ),
        }
    }

    fn apply(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Write(of) => self.members[of].write(),
            Step::Read(of) => self.members[of].read(),
            Step::HangUp(of) => self.members[of].hang_up(),
            Step::Reopen(of) => self.members[of] = Member::open(of),
            Step::ReopenSet(set) => {
                self.ours[set] = open_set(self.edges);
                self.theirs[set] = Kernel::new();
            }
            Step::Ctl(set, op, of, events) => {
                let (ours, theirs) = self.ctl(set, op, of, events);
                prop_assert_eq!(ours, theirs);
            }
            Step::Wait(set) => {
                let ours = sorted(&try_wait(&self.ours[set], 16));
                let theirs = sorted(&self.theirs[set].try_wait(16));
                prop_assert_eq!(ours, theirs, "ours, theirs");
            }
        }
        Ok(())
    }
}

type R = Result<(), Errno>;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_sequences_report_what_the_kernel_reports(edges: bool, steps in steps()) {
        let _alone = super::host::alone();
        let mut world = World::new(edges);
        for step in steps {
            world.apply(step)?;
        }
    }
}
