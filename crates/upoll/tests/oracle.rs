//! The host kernel as the oracle: the same operations on upoll and, by system calls, on the
//! kernel, and every result compared, order included.
#![cfg(not(loom))]

use std::fmt::Debug;
use std::sync::Mutex;

use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence};
use upoll::{CreateFlags, Epoll, Errno, Event, EventFd, EventFdFlags, Events, FileRef, WatchLimit};

/// Numbers that operations choose from. One number is one descriptor on the kernel's side.
const NUMBERS: usize = 8;

#[derive(Clone)]
enum Object {
    Set(Epoll),
    Counter(EventFd),
}

impl Object {
    fn file(&self, number: usize) -> FileRef<'_> {
        let file = match self {
            Object::Set(set) => set.as_file_ref(),
            Object::Counter(counter) => counter.as_file_ref(),
        };
        file.numbered(i32::try_from(number).unwrap())
    }
}

/// Descriptors are taken from a range of this test's own, so that a number that is closed and
/// opened again is the same for the kernel too.
struct Kernel {
    base: i32,
}

impl Kernel {
    fn fd(&self, number: usize) -> i32 {
        self.base + i32::try_from(number).unwrap()
    }

    /// Moves a fresh descriptor to the number.
    fn place(&self, fresh: i32, number: usize) {
        assert!(fresh >= 0);
        // SAFETY: both are this test's own descriptors.
        unsafe {
            assert_eq!(libc::dup2(fresh, self.fd(number)), self.fd(number));
            libc::close(fresh);
        }
    }

    fn result(result: i64) -> Result<i64, Errno> {
        if result >= 0 {
            return Ok(result);
        }
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap();
        Err(Errno::from_raw(errno))
    }

    fn ctl(
        &self,
        set: usize,
        op: i32,
        target: usize,
        events: Events,
        data: u64,
    ) -> Result<(), Errno> {
        let mut event = libc::epoll_event {
            events: events.bits(),
            u64: data,
        };
        // SAFETY: the event outlives the call.
        let result = unsafe { libc::epoll_ctl(self.fd(set), op, self.fd(target), &raw mut event) };
        Self::result(result.into()).map(drop)
    }

    fn wait(&self, set: usize, room: usize) -> Result<Vec<(u32, u64)>, Errno> {
        let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; room];
        // SAFETY: the buffer has the room that is claimed.
        let ready = unsafe {
            libc::epoll_wait(
                self.fd(set),
                events.as_mut_ptr(),
                i32::try_from(room).unwrap(),
                0,
            )
        };
        let ready = usize::try_from(Self::result(ready.into())?).unwrap();
        Ok(events[..ready].iter().map(|e| (e.events, e.u64)).collect())
    }

    fn write(&self, number: usize, value: u64) -> Result<(), Errno> {
        // SAFETY: eight bytes are read from `value`.
        let result = unsafe { libc::write(self.fd(number), (&raw const value).cast(), 8) };
        Self::result(result as i64).map(drop)
    }

    fn read(&self, number: usize) -> Result<u64, Errno> {
        let mut value = 0_u64;
        // SAFETY: eight bytes are written to `value`.
        let result = unsafe { libc::read(self.fd(number), (&raw mut value).cast(), 8) };
        Self::result(result as i64).map(|_| value)
    }

    fn close(&self, number: usize) {
        // SAFETY: a descriptor of this test's own.
        unsafe { libc::close(self.fd(number)) };
    }
}

/// Both worlds, in step.
struct Twin {
    objects: Vec<Option<Object>>,
    kernel: Kernel,
}

impl Drop for Twin {
    fn drop(&mut self) {
        for number in 0..self.objects.len() {
            if self.objects[number].is_some() {
                self.kernel.close(number);
            }
        }
        let mut ranges = RANGES.lock().unwrap();
        ranges.free.push((self.kernel.base, self.objects.len()));
    }
}

/// Descriptor numbers that no twin uses, and from which on none has been used.
struct Ranges {
    free: Vec<(i32, usize)>,
    next: i32,
}

static RANGES: Mutex<Ranges> = Mutex::new(Ranges {
    free: Vec::new(),
    next: 200,
});

fn same<T: PartialEq + Debug>(what: impl Debug, upoll: T, kernel: T) -> T {
    assert_eq!(upoll, kernel, "{what:?}: upoll left, kernel right");
    upoll
}

impl Twin {
    /// `numbers` numbers that no other test uses at the same time.
    fn new(numbers: usize) -> Self {
        let mut ranges = RANGES.lock().unwrap();
        let free = ranges.free.iter().position(|&(_, size)| size == numbers);
        let base = match free {
            Some(at) => ranges.free.swap_remove(at).0,
            None => {
                let base = ranges.next;
                ranges.next += i32::try_from(numbers).unwrap();
                base
            }
        };
        Twin {
            objects: vec![None; numbers],
            kernel: Kernel { base },
        }
    }

    fn close(&mut self, number: usize) {
        if self.objects[number].take().is_some() {
            self.kernel.close(number);
        }
    }

    fn open_set(&mut self, number: usize) {
        self.close(number);
        // SAFETY: makes a descriptor.
        self.kernel.place(unsafe { libc::epoll_create1(0) }, number);
        self.objects[number] = Some(Object::Set(Epoll::new().unwrap()));
    }

    fn open_counter(&mut self, number: usize, initial: u32, semaphore: bool) {
        self.close(number);
        let mut flags = EventFdFlags::NONBLOCK;
        flags.set(EventFdFlags::SEMAPHORE, semaphore);
        // SAFETY: makes a descriptor.
        let fresh = unsafe { libc::eventfd(initial, flags.bits().cast_signed()) };
        self.kernel.place(fresh, number);
        let counter = EventFd::with_flags(initial, flags).unwrap();
        self.objects[number] = Some(Object::Counter(counter));
    }

    fn dup(&mut self, from: usize, to: usize) {
        if from == to || self.objects[from].is_none() {
            return;
        }
        self.close(to);
        // SAFETY: descriptors of this test's own.
        unsafe { libc::dup2(self.kernel.fd(from), self.kernel.fd(to)) };
        self.objects[to] = self.objects[from].clone();
    }

    fn set(&self, number: usize) -> Option<&Epoll> {
        match &self.objects[number] {
            Some(Object::Set(set)) => Some(set),
            _ => None,
        }
    }

    fn ctl(
        &self,
        op: i32,
        set: usize,
        target: usize,
        events: Events,
        data: u64,
    ) -> Result<(), Errno> {
        let (Some(epoll), Some(object)) = (self.set(set), &self.objects[target]) else {
            return Ok(());
        };
        let file = object.file(target);
        let event = Event::new(events, data);
        let result = match op {
            libc::EPOLL_CTL_ADD => epoll.add(&file, event),
            libc::EPOLL_CTL_MOD => epoll.modify(&file, event),
            _ => epoll.delete(&file),
        };
        let kernel = self.kernel.ctl(set, op, target, events, data);
        same(("ctl", op, set, target, events), result, kernel)
    }

    fn add(&self, set: usize, target: usize, events: Events, data: u64) -> Result<(), Errno> {
        self.ctl(libc::EPOLL_CTL_ADD, set, target, events, data)
    }

    fn modify(&self, set: usize, target: usize, events: Events, data: u64) -> Result<(), Errno> {
        self.ctl(libc::EPOLL_CTL_MOD, set, target, events, data)
    }

    fn delete(&self, set: usize, target: usize) -> Result<(), Errno> {
        self.ctl(libc::EPOLL_CTL_DEL, set, target, Events::empty(), 0)
    }

    fn wait(&self, number: usize, room: usize) -> Result<Vec<(u32, u64)>, Errno> {
        let Some(set) = self.set(number) else {
            return Ok(Vec::new());
        };
        let mut events = vec![Event::default(); room];
        let upoll = set.harvest(&mut events).map(|ready| {
            events[..ready]
                .iter()
                .map(|event| (event.events().bits(), event.data()))
                .collect()
        });
        let kernel = self.kernel.wait(number, room);
        same(("wait", number, room), upoll, kernel)
    }

    fn data(&self, set: usize, room: usize) -> Vec<u64> {
        let events = self.wait(set, room).unwrap();
        events.into_iter().map(|(_, data)| data).collect()
    }

    fn write(&self, number: usize, value: u64) {
        if let Some(Object::Counter(counter)) = &self.objects[number] {
            let upoll = counter.try_write(value);
            let _ = same(
                ("write", number, value),
                upoll,
                self.kernel.write(number, value),
            );
        }
    }

    fn read(&self, number: usize) {
        if let Some(Object::Counter(counter)) = &self.objects[number] {
            let _ = same(
                ("read", number),
                counter.try_read(),
                self.kernel.read(number),
            );
        }
    }

    /// The lines of a set's fdinfo without what names the file on one side only, sorted, as the
    /// order is by address.
    fn fdinfo(&self, number: usize) {
        let Some(set) = self.set(number) else { return };
        let path = format!("/proc/self/fdinfo/{}", self.kernel.fd(number));
        let kernel = std::fs::read_to_string(path).unwrap();
        let lines = |text: &str, base: i32| {
            let mut lines: Vec<_> = text
                .lines()
                .filter_map(|line| line.strip_prefix("tfd:"))
                .map(|line| {
                    let (number, rest) = line.split_once(" events:").unwrap();
                    assert_eq!(number.len(), 9);
                    let number: i32 = number.trim().parse().unwrap();
                    (
                        number - base,
                        rest.split("  pos:").next().unwrap().to_owned(),
                    )
                })
                .collect();
            lines.sort();
            lines
        };
        same(
            "fdinfo",
            lines(&set.fdinfo(), 0),
            lines(&kernel, self.kernel.base),
        );
    }
}

#[derive(Clone, Debug)]
enum Step {
    OpenSet(usize),
    OpenCounter(usize, u32, bool),
    Dup(usize, usize),
    Close(usize),
    Add(usize, usize, Events, u64),
    Modify(usize, usize, Events, u64),
    Delete(usize, usize),
    Write(usize, u64),
    Read(usize),
    Wait(usize, usize),
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

fn steps() -> impl Strategy<Value = Step> {
    let n = 0..NUMBERS;
    let value = prop_oneof![
        6 => 0..4_u64,
        1 => Just(u64::MAX - 1),
        1 => Just(u64::MAX),
        1 => Just(u64::MAX - 3),
    ];
    prop_oneof![
        2 => n.clone().prop_map(Step::OpenSet),
        2 => (n.clone(), 0..3_u32, any::<bool>()).prop_map(|(n, v, s)| Step::OpenCounter(n, v, s)),
        2 => (n.clone(), n.clone()).prop_map(|(a, b)| Step::Dup(a, b)),
        1 => n.clone().prop_map(Step::Close),
        12 => (n.clone(), n.clone(), interests(), any::<u64>())
            .prop_map(|(s, t, e, d)| Step::Add(s, t, e, d)),
        5 => (n.clone(), n.clone(), interests(), any::<u64>())
            .prop_map(|(s, t, e, d)| Step::Modify(s, t, e, d)),
        3 => (n.clone(), n.clone()).prop_map(|(s, t)| Step::Delete(s, t)),
        8 => (n.clone(), value).prop_map(|(n, v)| Step::Write(n, v)),
        5 => n.clone().prop_map(Step::Read),
        10 => (n.clone(), 0..6_usize).prop_map(|(n, room)| Step::Wait(n, room)),
        1 => n.prop_map(Step::Fdinfo),
    ]
}

fn run(steps: &[Step]) {
    let mut twin = Twin::new(NUMBERS);
    // Something to begin with: sets below, counters above.
    for number in 0..NUMBERS / 2 {
        twin.open_set(number);
        twin.open_counter(number + NUMBERS / 2, 0, false);
    }
    for step in steps {
        match *step {
            Step::OpenSet(number) => twin.open_set(number),
            Step::OpenCounter(number, initial, semaphore) => {
                twin.open_counter(number, initial, semaphore);
            }
            Step::Dup(from, to) => twin.dup(from, to),
            Step::Close(number) => twin.close(number),
            Step::Add(set, target, events, data) => drop(twin.add(set, target, events, data)),
            Step::Modify(set, target, events, data) => drop(twin.modify(set, target, events, data)),
            Step::Delete(set, target) => drop(twin.delete(set, target)),
            Step::Write(number, value) => twin.write(number, value),
            Step::Read(number) => twin.read(number),
            Step::Wait(number, room) => drop(twin.wait(number, room)),
            Step::Fdinfo(number) => twin.fdinfo(number),
        }
    }
    for number in 0..NUMBERS {
        let _ = twin.wait(number, 64);
        twin.fdinfo(number);
    }
}

proptest! {
    #![proptest_config(Config {
        cases: std::env::var("PROPTEST_CASES")
            .ok()
            .and_then(|cases| cases.parse().ok())
            .unwrap_or(4_000),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/oracle.proptest-regressions"
        )))),
        ..Config::default()
    })]

    #[test]
    fn any_sequence_of_operations_gives_what_the_kernel_gives(
        steps in proptest::collection::vec(steps(), 1..=60)
    ) {
        run(&steps);
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
