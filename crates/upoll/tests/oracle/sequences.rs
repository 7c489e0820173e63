//! Random sequences of operations, on upoll and on the kernel.

use std::ops::Range;

use proptest::prelude::*;
use upoll::{Clock, Events, Op, PIPE_BUF, PIPE_MAX_SIZE, PipeFlags, Shutdown};

use crate::kernel::calls::{Change, Form};
use crate::kernel::streams::LONGEST;
use crate::kernel::{Object, Twin};

/// The numbers that operations choose from. One number is one fd on the kernel's side.
const NUMBERS: usize = 10;
/// The numbers below this one start as sets, the others as files.
const SETS: usize = 4;
/// The numbers that start as the ends of a pipe.
const PIPE: Range<usize> = 6..8;
/// The numbers that start as connected sockets.
const PAIR: Range<usize> = 8..10;

const MOST_STEPS: usize = 60;
/// The size of a write to a socket. Sends stay below a quarter of the send buffer: near the limit
/// the result depends on how Linux charges a message, which depends on its configuration.
const MESSAGE: usize = 64;
const _: () = assert!(4 * 768 * MOST_STEPS < 212_992);

#[derive(Clone, Debug)]
pub(crate) enum Step {
    OpenSet(usize),
    OpenDescriptor(usize),
    OpenCounter(usize, u32, bool),
    OpenPipe(usize, usize, bool),
    OpenPair(usize, usize),
    Dup(usize, usize),
    Close(usize),
    Add(usize, usize, Events, u64),
    Modify(usize, usize, Events, u64),
    Delete(usize, usize),
    Batch(usize, Vec<Change>, Option<usize>),
    /// The value for a counter, and the number of bytes for a stream.
    Write(usize, u64, usize),
    Read(usize, usize),
    Shutdown(usize, Shutdown),
    SetCapacity(usize, usize),
    FillLevel(usize),
    Wait(Form, usize, usize),
    Poll(Vec<(Option<usize>, Events)>, bool),
    Select(i32, [Option<Vec<usize>>; 3], bool),
    Fdinfo(usize),
}

fn interests() -> impl Strategy<Value = Events> {
    let common = prop_oneof![
        Just(Events::IN),
        Just(Events::OUT),
        Just(Events::IN | Events::OUT),
        Just(Events::empty()),
        Just(Events::IN | Events::RDNORM | Events::RDHUP | Events::PRI),
        any::<u32>().prop_map(|bits| Events::from_bits_retain(bits & 0x0fff_ffff)),
    ];
    let how = prop_oneof![
        4 => Just(Events::empty()),
        4 => Just(Events::ET),
        2 => Just(Events::ONESHOT),
        1 => Just(Events::ONESHOT | Events::ET),
        2 => Just(Events::EXCLUSIVE),
        1 => Just(Events::EXCLUSIVE | Events::ET),
    ];
    // WAKEUP is left out: the kernel ignores it unless it is configured for it.
    (common, how).prop_map(|(events, how)| (events | how) - Events::WAKEUP)
}

fn any_number() -> impl Strategy<Value = usize> {
    0..NUMBERS
}

/// Prefers these numbers.
fn rather(these: Range<usize>) -> impl Strategy<Value = usize> {
    prop_oneof![4 => these, 1 => any_number()]
}

fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![
        1 => Just(0_usize),
        8 => 1..MESSAGE,
        4 => prop::sample::select(vec![PIPE_BUF - 1, PIPE_BUF, PIPE_BUF + 1]),
        2 => 1..20_000_usize,
        2 => Just(LONGEST),
    ]
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let op = prop_oneof![4 => Just(Op::Add), 2 => Just(Op::Mod), 1 => Just(Op::Del)];
    prop::collection::vec((op, any_number(), interests(), any::<u64>()), 0..5)
}

fn poll_list() -> impl Strategy<Value = Vec<(Option<usize>, Events)>> {
    let events = prop_oneof![
        Just(Events::IN),
        Just(Events::OUT),
        (0..0x1_0000_u32).prop_map(Events::from_bits_retain),
    ];
    prop::collection::vec((prop::option::weighted(0.9, any_number()), events), 0..6)
}

fn fd_sets() -> impl Strategy<Value = [Option<Vec<usize>>; 3]> {
    let set = || prop::option::weighted(0.8, prop::collection::vec(any_number(), 0..4));
    [set(), set(), set()]
}

fn forms() -> impl Strategy<Value = Form> {
    let clock = prop::sample::select(vec![Clock::Realtime, Clock::Monotonic]);
    prop_oneof![
        3 => Just(Form::Harvest),
        1 => Just(Form::Wait),
        1 => Just(Form::Pwait),
        1 => (clock, any::<bool>()).prop_map(|(clock, masked)| Form::Pwait1(clock, masked)),
    ]
}

fn opens(with_descriptors: bool) -> impl Strategy<Value = Step> {
    let n = any_number;
    prop_oneof![
        u32::from(with_descriptors) => n().prop_map(Step::OpenDescriptor),
        1 => n().prop_map(Step::OpenSet),
        1 => (n(), 0..3_u32, any::<bool>()).prop_map(|(n, v, s)| Step::OpenCounter(n, v, s)),
        1 => (n(), n(), any::<bool>()).prop_map(|(r, w, packets)| Step::OpenPipe(r, w, packets)),
        1 => (n(), n()).prop_map(|(a, b)| Step::OpenPair(a, b)),
    ]
}

pub(crate) fn steps(with_descriptors: bool) -> impl Strategy<Value = Vec<Step>> {
    let n = any_number;
    let value = prop_oneof![
        6 => 0..4_u64,
        1 => Just(u64::MAX - 1),
        1 => Just(u64::MAX),
        1 => Just(u64::MAX - 3),
    ];
    let how = prop::sample::select(vec![Shutdown::Read, Shutdown::Write, Shutdown::Both]);
    let capacity =
        prop_oneof![3 => 0..40_000_usize, 1 => Just(PIPE_MAX_SIZE), 1 => Just((1 << 31) + 1)];
    let room = || 0..6_usize;
    let step = prop_oneof![
        3 => opens(with_descriptors),
        2 => (n(), n()).prop_map(|(a, b)| Step::Dup(a, b)),
        2 => n().prop_map(Step::Close),
        12 => (rather(0..SETS), n(), interests(), any::<u64>())
            .prop_map(|(s, t, e, d)| Step::Add(s, t, e, d)),
        5 => (rather(0..SETS), n(), interests(), any::<u64>())
            .prop_map(|(s, t, e, d)| Step::Modify(s, t, e, d)),
        3 => (rather(0..SETS), n()).prop_map(|(s, t)| Step::Delete(s, t)),
        2 => (rather(0..SETS), changes(), prop::option::of(room()))
            .prop_map(|(s, changes, room)| Step::Batch(s, changes, room)),
        12 => (rather(SETS..NUMBERS), value, sizes()).prop_map(|(n, v, size)| Step::Write(n, v, size)),
        8 => (rather(SETS..NUMBERS), sizes()).prop_map(|(n, size)| Step::Read(n, size)),
        1 => (rather(PAIR), how).prop_map(|(n, how)| Step::Shutdown(n, how)),
        3 => (rather(PIPE), capacity).prop_map(|(n, bytes)| Step::SetCapacity(n, bytes)),
        1 => rather(SETS..NUMBERS).prop_map(Step::FillLevel),
        12 => (forms(), rather(0..SETS), room()).prop_map(|(f, n, room)| Step::Wait(f, n, room)),
        3 => (poll_list(), any::<bool>()).prop_map(|(list, masked)| Step::Poll(list, masked)),
        3 => (-1..=NUMBERS as i32, fd_sets(), any::<bool>())
            .prop_map(|(n, sets, masked)| Step::Select(n, sets, masked)),
        1 => n().prop_map(Step::Fdinfo),
    ];
    prop::collection::vec(step, 1..=MOST_STEPS)
}

/// Room for all events of a set. With less room the next call would start with the rest, and its
/// order between kernel fds and user-level objects differs between upoll and the kernel.
const AMPLE: usize = 64;

/// The kind of target that an event is for, in the lowest bits of its data.
const FILE: u64 = 0;
const DESCRIPTOR: u64 = 1;
const SET: u64 = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum World {
    /// All results are compared.
    Objects,
    /// Each set has an order of kernel fds and an order of user-level objects. A set is polled only
    /// by waits in it: whether a poll from above takes an idle item off the ready list depends on
    /// whether a ready one comes before it.
    Descriptors,
    /// Sets are polled from above, and no order is compared.
    DescriptorsFromAbove,
}

pub(crate) fn run(steps: &[Step], world: World) {
    let mut twin = Twin::new(NUMBERS);
    twin.rank = match world {
        World::Objects => |_| (0, 0),
        World::Descriptors => |&(_, data)| (data & 3, 0),
        World::DescriptorsFromAbove => |&(events, data)| (data, events),
    };
    for set in 0..SETS {
        twin.open_set(set);
    }
    twin.open_counter(4, 0, false);
    twin.open_counter(5, 0, false);
    twin.open_pipe(PIPE.start, PIPE.start + 1);
    twin.open_pair(PAIR.start, PAIR.start + 1);
    if world != World::Objects {
        twin.open_descriptor(5);
        twin.open_descriptor(6);
    }
    let interest = |twin: &Twin, target: usize, events: Events, data: u64| {
        let (events, kind) = match twin.objects[target] {
            _ if world == World::Objects => return Some((events, data)),
            Some(Object::Set(_)) if world == World::Descriptors => return None,
            Some(Object::Set(_)) => ((events | Events::IN) - Events::ET, SET),
            Some(Object::Descriptor) => (events, DESCRIPTOR),
            _ => (events, FILE),
        };
        Some((events, data << 2 | kind))
    };
    let room = |room| {
        if world == World::Objects || room == 0 {
            room
        } else {
            AMPLE
        }
    };
    for step in steps {
        match step.clone() {
            Step::OpenSet(number) => twin.open_set(number),
            Step::OpenDescriptor(number) => twin.open_descriptor(number),
            Step::OpenCounter(number, initial, semaphore) => {
                twin.open_counter(number, initial, semaphore);
            }
            Step::OpenPipe(reader, writer, _) | Step::OpenPair(reader, writer)
                if reader == writer => {}
            Step::OpenPipe(reader, writer, packets) => {
                let flags = if packets {
                    PipeFlags::DIRECT
                } else {
                    PipeFlags::empty()
                };
                twin.open_pipe_with(reader, writer, flags);
            }
            Step::OpenPair(one, other) => twin.open_pair(one, other),
            Step::Dup(from, to) => twin.dup(from, to),
            Step::Close(number) => twin.close(number),
            Step::Add(set, target, events, data) => {
                if let Some((events, data)) = interest(&twin, target, events, data) {
                    let _ = twin.add(set, target, events, data);
                }
            }
            Step::Modify(set, target, events, data) => {
                if let Some((events, data)) = interest(&twin, target, events, data) {
                    let _ = twin.modify(set, target, events, data);
                }
            }
            Step::Delete(set, target) => drop(twin.delete(set, target)),
            Step::Batch(set, changes, wait) => {
                let changes: Vec<_> = changes
                    .into_iter()
                    .filter_map(|(op, target, events, data)| {
                        let (events, data) = interest(&twin, target, events, data)?;
                        Some((op, target, events, data))
                    })
                    .collect();
                twin.batch(set, &changes, wait.map(room));
            }
            Step::Write(number, value, size) => match twin.objects[number] {
                Some(Object::Counter(_)) => twin.write(number, value),
                Some(Object::Descriptor) => drop(twin.kernel.write(number, value)),
                Some(Object::Socket(_)) => drop(twin.send(number, size % (MESSAGE + 1))),
                _ => drop(twin.send(number, size)),
            },
            Step::Read(number, _) if matches!(twin.objects[number], Some(Object::Descriptor)) => {
                let _ = twin.kernel.read(number);
            }
            Step::Read(number, size) => {
                twin.read(number);
                twin.receive(number, size);
            }
            Step::Shutdown(number, how) => twin.shutdown(number, how),
            Step::SetCapacity(number, bytes) => drop(twin.set_capacity(number, bytes)),
            Step::FillLevel(number) => twin.fill_level(number),
            Step::Wait(form, number, at_most) => twin.wait_by(form, number, room(at_most)),
            Step::Poll(..) | Step::Select(..) if world == World::Descriptors => {}
            Step::Poll(list, masked) => twin.poll(&list, masked),
            Step::Select(n, sets, masked) => drop(twin.select(n, &sets, masked)),
            Step::Fdinfo(number) => twin.fdinfo(number),
        }
    }
    for number in 0..NUMBERS {
        let _ = twin.wait(number, AMPLE);
        twin.fdinfo(number);
        twin.fill_level(number);
    }
    let all = Events::from_bits_retain(0x7fff);
    let list: Vec<_> = (0..NUMBERS).map(|number| (Some(number), all)).collect();
    twin.poll(&list, false);
}
