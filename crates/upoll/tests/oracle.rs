//! The host kernel as the oracle: the same operations on upoll and, by system calls, on the
//! kernel, and every result compared, order included.
#![cfg(not(loom))]

mod kernel;

use std::ops::Range;

use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence};
use upoll::{
    CreateFlags, Epoll, Errno, Event, EventFd, EventFdFlags, Events, Op, PIPE_BUF, PIPE_MAX_SIZE,
    PipeFlags, Shutdown, WatchLimit,
};

use kernel::calls::{Change, Form};
use kernel::streams::LONGEST;
use kernel::{Object, Twin};

/// Numbers that operations choose from. One number is one descriptor on the kernel's side.
const NUMBERS: usize = 10;
/// Below this number there are sets to begin with, from it on what they watch.
const SETS: usize = 4;
/// The ends of a pipe to begin with.
const PIPE: Range<usize> = 6..8;
/// Connected sockets to begin with.
const PAIR: Range<usize> = 8..10;

const MOST_STEPS: usize = 60;
/// Bytes of one write to a socket. Sends stay below a quarter of the send buffer, where what is
/// charged for a message cannot show: that depends on how Linux was built.
const MESSAGE: usize = 64;
const _: () = assert!(4 * 768 * MOST_STEPS < 212_992);

#[derive(Clone, Debug)]
enum Step {
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
    /// A value for a counter, or how many bytes for a stream.
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
    // WAKEUP is left out: whether the kernel keeps it depends on its configuration.
    (common, how).prop_map(|(events, how)| (events | how) - Events::WAKEUP)
}

fn any_number() -> impl Strategy<Value = usize> {
    0..NUMBERS
}

/// Rather one of these.
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
    let flags = prop_oneof![30 => Just(0), 1 => Just(1_u32)];
    let op = prop_oneof![4 => Just(Op::Add), 2 => Just(Op::Mod), 1 => Just(Op::Del)];
    prop::collection::vec((flags, op, any_number(), interests(), any::<u64>()), 0..5)
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
    let clock = prop::sample::select(vec![libc::CLOCK_REALTIME, libc::CLOCK_MONOTONIC]);
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

fn steps(with_descriptors: bool) -> impl Strategy<Value = Vec<Step>> {
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

/// Room for all that a set may have to say. What it does not reach comes first the next time, and
/// which that is, is the kernel's and upoll's own between descriptors and others.
const AMPLE: usize = 64;

/// What an event is of, in the lowest bits of its data.
const FILE: u64 = 0;
const DESCRIPTOR: u64 = 1;
const SET: u64 = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum World {
    /// All is compared.
    Objects,
    /// Each set has descriptors of the kernel in an order, and objects in one. Nobody looks at a
    /// set but who waits in it: whether that takes what is idle off the ready list depends on
    /// whether something ready stands before it.
    Descriptors,
    /// Sets are looked at from above, and no order is compared.
    DescriptorsFromAbove,
}

fn run(steps: &[Step], world: World) {
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
                    .filter_map(|(flags, op, target, events, data)| {
                        let (events, data) = interest(&twin, target, events, data)?;
                        Some((flags, op, target, events, data))
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

fn config(cases: u32) -> Config {
    Config {
        cases: std::env::var("PROPTEST_CASES")
            .ok()
            .and_then(|cases| cases.parse().ok())
            .unwrap_or(cases),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/oracle.proptest-regressions"
        )))),
        ..Config::default()
    }
}

proptest! {
    #![proptest_config(config(20_000))]

    #[test]
    fn any_sequence_of_operations_gives_what_the_kernel_gives(steps in steps(false)) {
        run(&steps, World::Objects);
    }
}

proptest! {
    #![proptest_config(config(2_000))]

    #[test]
    fn any_sequence_with_descriptors_gives_what_the_kernel_gives(steps in steps(true)) {
        run(&steps, World::Descriptors);
    }

    #[test]
    fn any_sequence_with_descriptors_below_gives_what_the_kernel_gives(steps in steps(true)) {
        run(&steps, World::DescriptorsFromAbove);
    }
}

const IN: Events = Events::IN;

#[test]
fn more_ready_items_than_room_take_turns() {
    let mut twin = Twin::new(6);
    twin.open_set(0);
    for n in 1..6 {
        twin.open_counter(n, 1, false);
        twin.add(0, n, IN, n as u64).unwrap();
    }
    let rounds: Vec<_> = (0..5).map(|_| twin.data(0, 2)).collect();
    assert_eq!(rounds, [[1, 2], [3, 4], [5, 1], [2, 3], [4, 5]]);
}

#[test]
fn an_edge_triggered_counter_reports_every_write_read_or_not() {
    let mut twin = Twin::new(2);
    twin.open_set(0);
    twin.open_counter(1, 0, false);
    twin.add(0, 1, IN | Events::ET, 0).unwrap();
    for _ in 0..3 {
        twin.write(1, 1);
        assert_eq!(twin.data(0, 4).len(), 1);
        assert_eq!(twin.data(0, 4).len(), 0);
    }
    twin.write(1, 0);
    assert_eq!(twin.data(0, 4).len(), 1);
    twin.read(1);
    assert_eq!(twin.data(0, 4).len(), 0);
}

#[test]
fn a_oneshot_interest_is_silent_until_modified() {
    let mut twin = Twin::new(2);
    twin.open_set(0);
    twin.open_counter(1, 1, false);
    twin.add(0, 1, IN | Events::ONESHOT, 1).unwrap();
    assert_eq!(twin.data(0, 4), [1]);
    twin.write(1, 1);
    assert_eq!(twin.data(0, 4), []);
    twin.modify(0, 1, IN | Events::ONESHOT, 2).unwrap();
    assert_eq!(twin.data(0, 4), [2]);
}

#[test]
fn modifying_a_ready_edge_triggered_item_reports_it_with_the_new_data() {
    let mut twin = Twin::new(2);
    twin.open_set(0);
    twin.open_counter(1, 1, false);
    twin.add(0, 1, IN | Events::ET, 1).unwrap();
    assert_eq!(twin.data(0, 4), [1]);
    assert_eq!(twin.data(0, 4), []);
    twin.modify(0, 1, IN | Events::ET, 2).unwrap();
    assert_eq!(twin.data(0, 4), [2]);
}

#[test]
fn numbers_of_one_open_file_are_items_of_their_own_and_live_as_long_as_it_does() {
    let mut twin = Twin::new(4);
    twin.open_set(0);
    twin.open_counter(1, 0, false);
    twin.dup(1, 2);
    twin.add(0, 1, IN, 1).unwrap();
    twin.add(0, 2, IN, 2).unwrap();
    twin.write(1, 1);
    assert_eq!(twin.data(0, 4).len(), 2);
    twin.close(1);
    assert_eq!(twin.data(0, 4).len(), 2);
    // The number again, for another file: not the item that is still there.
    twin.open_counter(1, 1, false);
    assert_eq!(twin.delete(0, 1), Err(Errno::NOENT));
    twin.add(0, 1, IN, 3).unwrap();
    assert_eq!(twin.data(0, 4).len(), 3);
    twin.close(2);
    assert_eq!(twin.data(0, 4), [3]);
}

#[test]
fn sets_nest_to_the_kernels_depth_whichever_end_grows() {
    for downwards in [true, false] {
        let mut twin = Twin::new(7);
        for n in 0..7 {
            twin.open_set(n);
        }
        let mut results = Vec::new();
        for link in 0..6 {
            let link = if downwards { link } else { 5 - link };
            results.push(twin.add(link, link + 1, IN, 0));
        }
        assert_eq!(results[..4], [Ok(()); 4]);
        assert_eq!(results[4], Err(Errno::LOOP));
    }
}

#[test]
fn a_set_cannot_watch_itself_directly_or_through_others() {
    let mut twin = Twin::new(3);
    for n in 0..3 {
        twin.open_set(n);
    }
    assert_eq!(twin.add(0, 0, IN, 0), Err(Errno::INVAL));
    twin.add(0, 1, IN, 0).unwrap();
    twin.add(1, 2, IN, 0).unwrap();
    assert_eq!(twin.add(2, 0, IN, 0), Err(Errno::LOOP));
    assert_eq!(twin.add(1, 0, IN, 0), Err(Errno::LOOP));
}

#[test]
fn exclusive_interests_keep_to_their_rules() {
    let mut twin = Twin::new(3);
    twin.open_set(0);
    twin.open_set(1);
    twin.open_counter(2, 0, false);
    let exclusive = IN | Events::EXCLUSIVE;
    assert_eq!(twin.add(0, 1, exclusive, 0), Err(Errno::INVAL));
    assert_eq!(twin.modify(0, 2, exclusive, 0), Err(Errno::INVAL));
    for wrong in [Events::ONESHOT, Events::RDHUP, Events::PRI, Events::RDNORM] {
        assert_eq!(twin.add(0, 2, exclusive | wrong, 0), Err(Errno::INVAL));
    }
    twin.add(0, 2, exclusive | Events::ET | Events::OUT, 0)
        .unwrap();
    assert_eq!(twin.add(0, 2, exclusive, 0), Err(Errno::EXIST));
    assert_eq!(twin.modify(0, 2, IN, 0), Err(Errno::INVAL));
    twin.delete(0, 2).unwrap();
}

#[test]
fn an_exclusive_source_that_nobody_waits_for_is_queued_in_every_set() {
    let mut twin = Twin::new(5);
    twin.open_counter(4, 0, false);
    for set in 0..4 {
        twin.open_set(set);
        twin.add(set, 4, IN | Events::EXCLUSIVE | Events::ET, 0)
            .unwrap();
    }
    twin.write(4, 1);
    for set in 0..4 {
        assert_eq!(twin.data(set, 1).len(), 1);
    }
}

#[test]
fn an_outer_edge_triggered_set_reports_each_wake_of_the_inner_one() {
    let mut twin = Twin::new(3);
    twin.open_set(0);
    twin.open_set(1);
    twin.open_counter(2, 0, false);
    twin.add(1, 2, IN, 0).unwrap();
    twin.add(0, 1, IN | Events::ET, 0).unwrap();
    for _ in 0..3 {
        twin.write(2, 1);
        assert_eq!(twin.data(0, 1).len(), 1);
        assert_eq!(twin.data(0, 1).len(), 0);
        assert_eq!(twin.data(1, 1).len(), 1);
        assert_eq!(twin.data(0, 1).len(), 0);
    }
}

#[test]
fn modifying_an_item_that_is_queued_already_is_no_wake_for_the_sets_above() {
    let mut twin = Twin::new(3);
    twin.open_set(0);
    twin.open_set(1);
    twin.open_counter(2, 0, false);
    twin.add(0, 1, IN | Events::ET, 7).unwrap();
    twin.add(1, 2, Events::OUT, 0).unwrap();
    assert_eq!(twin.data(0, 1), [7]);
    twin.modify(1, 2, Events::OUT | Events::HUP, 0).unwrap();
    assert_eq!(twin.data(0, 1), []);
}

#[test]
fn a_select_that_fails_for_one_number_has_not_looked_at_any_set() {
    let mut twin = Twin::new(4);
    twin.open_set(0);
    for n in [1, 2, 3] {
        twin.open_counter(n, 0, false);
    }
    twin.add(0, 1, Events::OUT, 1).unwrap();
    twin.add(0, 2, Events::OUT, 2).unwrap();
    // Queued, and idle: a look at the set takes it off the list.
    twin.modify(0, 1, IN, 1).unwrap();
    twin.close(3);
    let readable = [Some(vec![0, 3]), None, None];
    assert_eq!(twin.select(4, &readable, false), Err(Errno::BADF));
    twin.write(1, 1);
    assert_eq!(twin.data(0, 2), [1, 2]);
}

#[test]
fn a_wait_with_room_reports_a_descriptor_and_the_set_that_it_makes_ready() {
    for idle_waits in 0..4 {
        let mut twin = Twin::new(3);
        twin.rank = |&(_, data)| (data, 0);
        twin.open_set(0);
        twin.open_set(1);
        twin.open_descriptor(2);
        twin.add(1, 2, IN, 12).unwrap();
        twin.add(0, 1, IN, 1).unwrap();
        twin.add(0, 2, IN, 2).unwrap();
        for _ in 0..idle_waits {
            assert_eq!(twin.data(0, 8), []);
        }
        twin.kernel.write(2, 1).unwrap();
        assert_eq!(twin.data(0, 8), [1, 2]);
    }
}

#[test]
fn a_wait_in_the_middle_of_a_chain_leaves_a_descriptors_event_to_the_top() {
    let mut twin = Twin::new(4);
    for set in 0..3 {
        twin.open_set(set);
    }
    twin.open_descriptor(3);
    twin.add(2, 3, IN, 23).unwrap();
    twin.add(1, 2, IN, 12).unwrap();
    twin.add(0, 1, IN, 1).unwrap();
    for set in [0, 1, 2] {
        assert_eq!(twin.data(set, 8), []);
    }
    twin.kernel.write(3, 1).unwrap();
    assert_eq!(twin.data(1, 8), [12]);
    assert_eq!(twin.data(0, 8), [1]);
    assert_eq!(twin.data(2, 8), [23]);
}

/// One more path than Linux allows up from a file, through `links` links between sets.
fn exceed_paths(links: usize, limit: usize) {
    // A chain of `links` sets above the file, and `limit + 1` sets that watch its top.
    let tops = limit + 1;
    let mut twin = Twin::new(1 + links + tops);
    twin.open_counter(0, 0, false);
    for n in 1..1 + links + tops {
        twin.open_set(n);
    }
    for n in 0..links {
        twin.add(n + 1, n, IN, 0).unwrap();
    }
    for top in 0..limit {
        assert_eq!(twin.add(1 + links + top, links, IN, 0), Ok(()), "{top}");
    }
    assert_eq!(twin.add(links + tops, links, IN, 0), Err(Errno::INVAL));
}

#[test]
fn too_many_paths_up_from_a_file_are_refused() {
    // SAFETY: raises this process's own limit of descriptors.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
    exceed_paths(1, 500);
    exceed_paths(2, 100);
    exceed_paths(3, 50);
    exceed_paths(4, 10);
}

#[test]
fn an_account_that_is_used_up_gives_enospc_until_something_goes() {
    let account = WatchLimit::new(3);
    let first = Epoll::create_within(CreateFlags::empty(), account.clone()).unwrap();
    let second = Epoll::create_within(CreateFlags::empty(), account.clone()).unwrap();
    let counters: Vec<_> = (0..4).map(|_| EventFd::new(0).unwrap()).collect();
    let interest = Event::new(IN, 0);
    first.add(&counters[0], interest).unwrap();
    first.add(&counters[1], interest).unwrap();
    second.add(&counters[2], interest).unwrap();
    assert_eq!(second.add(&counters[3], interest), Err(Errno::NOSPC));
    first.delete(&counters[0]).unwrap();
    second.add(&counters[3], interest).unwrap();
    assert_eq!(first.add(&counters[0], interest), Err(Errno::NOSPC));
    drop(second);
    first.add(&counters[0], interest).unwrap();
    drop((first, counters));
    assert_eq!(account.used(), 0);
}

#[test]
fn flags_that_linux_does_not_know_are_invalid() {
    // SAFETY: the calls fail.
    unsafe {
        assert_eq!(libc::epoll_create1(2), -1);
        assert_eq!(libc::eventfd(0, 2), -1);
    }
    let set = Epoll::create(CreateFlags::from_bits_retain(2));
    assert_eq!(set.err(), Some(Errno::INVAL));
    let counter = EventFd::with_flags(0, EventFdFlags::from_bits_retain(2));
    assert_eq!(counter.err(), Some(Errno::INVAL));
}

#[test]
fn a_rotating_set_watches_one_source_and_any_number_of_sets() {
    let rotating = Epoll::create(CreateFlags::ROTATE | CreateFlags::CLOEXEC).unwrap();
    let (one, two) = (EventFd::new(0).unwrap(), EventFd::new(0).unwrap());
    let interest = Event::new(IN, 0);
    rotating.add(&one, interest).unwrap();
    assert_eq!(rotating.add(&one, interest), Err(Errno::EXIST));
    assert_eq!(rotating.add(&two, interest), Err(Errno::INVAL));
    rotating.add(&Epoll::new().unwrap(), interest).unwrap();
    rotating.delete(&one).unwrap();
    rotating.add(&two, interest).unwrap();
}

#[test]
fn many_changes_leave_nothing_behind() {
    let account = WatchLimit::new(10_000);
    let set = Epoll::create_within(CreateFlags::empty(), account.clone()).unwrap();
    let counters: Vec<_> = (0..10).map(|_| EventFd::new(1).unwrap()).collect();
    for round in 0..100_000 {
        let counter = &counters[round % 10];
        set.add(counter, Event::new(IN, 0)).unwrap();
        set.delete(counter).unwrap();
    }
    assert!(set.is_empty());
    assert_eq!(set.harvest(&mut [Event::default()]), Ok(0));
    drop(set);
    assert_eq!(account.used(), 0);
}
