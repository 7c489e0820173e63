//! `epoll_ctl_batch` by fd has the same results as the kernel's for the same changes one by one.

use std::fs::File;
use std::os::fd::AsRawFd;

use proptest::prelude::*;
use upoll::{Errno, Event, Events};
use upoll_fds::EpollCtlCmd;

/// Fds of one of the two, by what they stand for.
struct World {
    set: i32,
    /// The fds that commands name; the last one is `set`.
    targets: Vec<i32>,
    wait: fn(i32, &mut [Event; 32]) -> i64,
    close: fn(i32),
}

/// The places of the fds in `targets`, by what they stand for.
const COUNTERS: usize = 4;
const PIPES: std::ops::Range<usize> = COUNTERS..COUNTERS + 4;
const SETS: usize = PIPES.end;
const TIMER: usize = SETS + 2;
const KERNELS_COUNTER: usize = TIMER + 1;
const CLOSED: usize = KERNELS_COUNTER + 1;
const PLAIN_FILE: usize = CLOSED + 1;
const NEGATIVE: usize = PLAIN_FILE + 1;
const ITSELF: usize = NEGATIVE + 1;

fn kernels_eventfd(initial: u32) -> i32 {
    // SAFETY: no pointers are involved.
    unsafe { libc::eventfd(initial, libc::EFD_NONBLOCK) }
}

fn kernels_set() -> i32 {
    // SAFETY: no pointers are involved.
    unsafe { libc::epoll_create1(0) }
}

fn kernels_close(fd: i32) {
    // SAFETY: the fd is the test's own.
    unsafe { libc::close(fd) };
}

fn kernels_ctl(set: i32, op: i32, fd: i32, mut event: Event) -> i32 {
    // SAFETY: the event is live.
    match unsafe { libc::epoll_ctl(set, op, fd, (&raw mut event).cast()) } {
        0 => 0,
        _ => -std::io::Error::last_os_error().raw_os_error().unwrap(),
    }
}

fn kernels_wait(set: i32, events: &mut [Event; 32]) -> i64 {
    // SAFETY: there is room for 32.
    unsafe { libc::epoll_wait(set, events.as_mut_ptr().cast(), 32, 0) }.into()
}

fn our_wait(set: i32, events: &mut [Event; 32]) -> i64 {
    // SAFETY: there is room for 32.
    match unsafe { upoll_fds::epoll_wait(set, events.as_mut_ptr(), 32, 0) } {
        Ok(count) => i64::try_from(count).unwrap(),
        Err(errno) => -i64::from(errno.raw()),
    }
}

fn our_eventfd(initial: u32) -> i32 {
    upoll_fds::eventfd(initial, libc::EFD_NONBLOCK).unwrap()
}

fn our_set() -> i32 {
    upoll_fds::epoll_create1(0).unwrap()
}

impl World {
    /// `set` is the set of the batches.
    fn new(is_ours: bool, set: i32, file: &File) -> Self {
        let eventfd = if is_ours {
            our_eventfd
        } else {
            kernels_eventfd
        };
        let make_set = if is_ours { our_set } else { kernels_set };
        let mut targets: Vec<i32> = (0..COUNTERS).map(|at| eventfd(at as u32 % 2)).collect();
        for _ in 0..2 {
            let mut ends = [-1; 2];
            if is_ours {
                // SAFETY: there is room for two fds.
                unsafe { upoll_fds::pipe2(&raw mut ends, 0) }.unwrap();
            } else {
                // SAFETY: there is room for two fds.
                assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
            }
            targets.extend(ends);
        }
        for below in 0..2 {
            let inner = make_set();
            let event = Event::new(Events::IN, 99);
            if is_ours {
                // SAFETY: the event is live.
                unsafe { upoll_fds::epoll_ctl(inner, 1, targets[below], &raw const event) }
                    .unwrap();
            } else {
                assert_eq!(kernels_ctl(inner, 1, targets[below], event), 0);
            }
            targets.push(inner);
        }
        // SAFETY: no pointers are involved.
        targets.push(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, 0) });
        targets.push(kernels_eventfd(1));
        // Beyond all fds that are in use.
        targets.extend([100_000, file.as_raw_fd(), -1, set]);
        World {
            set,
            targets,
            wait: if is_ours { our_wait } else { kernels_wait },
            close: match is_ours {
                true => |fd| upoll_fds::close(fd).unwrap(),
                false => kernels_close,
            },
        }
    }

    /// Returns the ready events, unordered, from two rounds: level-triggered ones are ready again.
    fn ready(&self) -> Vec<Vec<(u64, u32)>> {
        let round = |_| {
            let mut events = [Event::default(); 32];
            let count = (self.wait)(self.set, &mut events);
            let Ok(count) = usize::try_from(count) else {
                return vec![(u64::MAX, 0)];
            };
            let ready = events[..count].iter();
            let mut ready: Vec<_> = ready
                .map(|event| (event.data(), event.events().bits()))
                .collect();
            ready.sort_unstable();
            ready
        };
        (0..2).map(round).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for at in (0..CLOSED).chain([ITSELF]) {
            if at >= TIMER && at != ITSELF {
                kernels_close(self.targets[at]);
            } else {
                (self.close)(self.targets[at]);
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Change {
    flags: i32,
    op: i32,
    target: usize,
    events: u32,
}

/// A result that no command has.
const UNTOUCHED: i32 = 77;

impl Change {
    fn command(self, world: &World) -> EpollCtlCmd {
        EpollCtlCmd {
            flags: self.flags,
            op: self.op,
            fd: world.targets[self.target],
            events: self.events,
            data: self.target as u64,
            result: UNTOUCHED,
        }
    }
}

/// The contract, by the kernel's `epoll_ctl`: the count, and the results.
fn one_by_one(world: &World, changes: &[Change]) -> (Result<usize, Errno>, Vec<i32>) {
    let mut results = vec![UNTOUCHED; changes.len()];
    for (at, change) in changes.iter().enumerate() {
        let event = Event::new(
            Events::from_bits_retain(change.events),
            change.target as u64,
        );
        results[at] = match change.flags {
            0 => kernels_ctl(world.set, change.op, world.targets[change.target], event),
            _ => -libc::EINVAL,
        };
        if results[at] != 0 {
            return (Ok(at), results);
        }
    }
    (Ok(changes.len()), results)
}

fn batch(world: &World, changes: &[Change]) -> (Result<usize, Errno>, Vec<i32>) {
    let mut commands: Vec<_> = changes.iter().map(|change| change.command(world)).collect();
    let count = i32::try_from(commands.len()).unwrap();
    // SAFETY: the commands are live.
    let done = unsafe { upoll_fds::epoll_ctl_batch(world.set, 0, count, commands.as_mut_ptr()) };
    (
        done,
        commands.iter().map(|command| command.result).collect(),
    )
}

fn change(targets: impl Strategy<Value = usize> + 'static) -> BoxedStrategy<Change> {
    let flags = prop_oneof![40 => Just(0), 1 => Just(1)];
    let op = prop_oneof![6 => Just(1), 3 => Just(3), 2 => Just(2), 1 => 0..5];
    let events = prop_oneof![
        Just(Events::IN),
        Just(Events::OUT),
        Just(Events::IN | Events::OUT),
        Just(Events::IN | Events::ET),
        Just(Events::IN | Events::ONESHOT),
        Just(Events::IN | Events::EXCLUSIVE),
        Just(Events::empty()),
    ];
    (flags, op, targets, events)
        .prop_map(|(flags, op, target, events)| Change {
            flags,
            op,
            target,
            events: events.bits(),
        })
        .boxed()
}

/// All but files: those are user-level, of which most commands of a batch are to be.
fn any_target() -> BoxedStrategy<usize> {
    prop_oneof![12 => 0..SETS, 3 => SETS..CLOSED, 1 => CLOSED..=ITSELF].boxed()
}

fn batches(target: fn() -> BoxedStrategy<usize>) -> impl Strategy<Value = Vec<Vec<Change>>> {
    // Distinct ADDs first, so that long batches do not all end early.
    let many =
        Just(target()).prop_flat_map(move |_| prop::collection::vec(change(target()), 1..12));
    let adds = (0..SETS, 0..SETS).prop_map(|(first, len)| {
        let add = |at| Change {
            flags: 0,
            op: 1,
            target: (first + at) % SETS,
            events: Events::IN.bits(),
        };
        (0..=len).map(add).collect::<Vec<_>>()
    });
    let again = (0..SETS, 1..40_usize).prop_map(|(first, len)| {
        let modify = |at| Change {
            flags: 0,
            op: 3,
            target: (first + at) % SETS,
            events: (Events::IN | Events::OUT).bits(),
        };
        (0..len).map(modify).collect::<Vec<_>>()
    });
    prop::collection::vec(prop_oneof![2 => many, 1 => adds, 1 => again], 1..8)
}

fn compare(kernels: &World, ours: &World, batches: &[Vec<Change>]) -> Result<(), TestCaseError> {
    for (at, changes) in batches.iter().enumerate() {
        let expected = one_by_one(kernels, changes);
        prop_assert_eq!(expected, batch(ours, changes), "batch {} {:?}", at, changes);
        prop_assert_eq!(kernels.ready(), ours.ready(), "after batch {}", at);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_batch_gives_what_the_kernel_gives_one_by_one(batches in batches(any_target)) {
        let file = File::open("/proc/self/exe").unwrap();
        let kernels = World::new(false, kernels_set(), &file);
        let ours = World::new(true, our_set(), &file);
        compare(&kernels, &ours, &batches)?;
    }

    /// Eventfds are demoted when they are added.
    #[test]
    fn a_set_of_the_kernels_takes_batches_too(
        batches in batches(|| prop_oneof![0..COUNTERS, TIMER..=ITSELF].boxed())
    ) {
        let only_counters = |change: &Change| !PIPES.contains(&change.target);
        let batches: Vec<Vec<Change>> = batches
            .into_iter()
            .map(|batch| batch.into_iter().filter(only_counters).collect::<Vec<_>>())
            .filter(|batch: &Vec<_>| !batch.is_empty())
            .collect();
        let file = File::open("/proc/self/exe").unwrap();
        let kernels = World::new(false, kernels_set(), &file);
        let ours = World::new(true, kernels_set(), &file);
        compare(&kernels, &ours, &batches)?;
    }
}

/// Pages of commands, gone with this.
struct Pages(*mut EpollCtlCmd);

const PAGE: usize = 4096;

impl Pages {
    fn new() -> Self {
        // SAFETY: new pages, which nobody has.
        let pages = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                2 * PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(pages, libc::MAP_FAILED);
        Pages(pages.cast())
    }

    /// The second page, from now on.
    fn protect_second(&self, protection: i32) {
        // SAFETY: the pages are this one's.
        let result =
            unsafe { libc::mprotect(self.0.wrapping_byte_add(PAGE).cast(), PAGE, protection) };
        assert_eq!(result, 0);
    }

    /// The last command that is wholly on the first page.
    fn last_on_first(&self) -> *mut EpollCtlCmd {
        self.0.wrapping_add(PAGE / size_of::<EpollCtlCmd>() - 1)
    }
}

fn add(fd: i32) -> EpollCtlCmd {
    EpollCtlCmd {
        flags: 0,
        op: 1,
        fd,
        events: Events::IN.bits(),
        data: 0,
        result: UNTOUCHED,
    }
}

/// The members of a new set after a batch of two, of which the second is on another page.
fn batch_over_two_pages(protection: i32) -> (Result<usize, Errno>, Vec<i32>) {
    let pages = Pages::new();
    let (set, fds) = (our_set(), [our_eventfd(1), our_eventfd(1)]);
    let first = pages.last_on_first();
    for (at, fd) in fds.into_iter().enumerate() {
        // SAFETY: there is room on the pages.
        unsafe { first.wrapping_add(at).write(add(fd)) };
    }
    pages.protect_second(protection);
    // SAFETY: the commands are the test's.
    let done = unsafe { upoll_fds::epoll_ctl_batch(set, 0, 2, first) };
    let mut events = [Event::default(); 32];
    let ready = our_wait(set, &mut events);
    // SAFETY: the first page can be read.
    let result = unsafe { first.read() }.result;
    for fd in fds.into_iter().chain([set]) {
        upoll_fds::close(fd).unwrap();
    }
    (done, vec![result, i32::try_from(ready).unwrap()])
}

#[test]
fn commands_that_cannot_be_read_do_nothing() {
    let expected = (Err(Errno::FAULT), vec![UNTOUCHED, 0]);
    assert_eq!(batch_over_two_pages(libc::PROT_NONE), expected);
}

#[test]
fn results_that_cannot_be_written_give_efault_and_the_commands_are_executed() {
    let outcome = batch_over_two_pages(libc::PROT_READ);
    assert_eq!(outcome, (Err(Errno::FAULT), vec![0, 2]));
}

#[test]
fn arguments_that_cannot_be_are_refused() {
    let set = our_set();
    let mut command = add(0);
    for (flags, count) in [(1, 1), (0, 0), (0, -1), (0, i32::MAX), (0, 1 << 27)] {
        // SAFETY: the command is live.
        let done = unsafe { upoll_fds::epoll_ctl_batch(set, flags, count, &raw mut command) };
        assert_eq!(done, Err(Errno::INVAL), "{flags} {count}");
    }
    for (address, errno) in [
        (0, Errno::INVAL),
        (8, Errno::FAULT),
        (usize::MAX - 7, Errno::FAULT),
    ] {
        let nowhere = std::ptr::without_provenance_mut(address);
        // SAFETY: it leads nowhere.
        let done = unsafe { upoll_fds::epoll_ctl_batch(set, 0, 1, nowhere) };
        assert_eq!(done, Err(errno));
    }
    assert_eq!(command.result, UNTOUCHED);
    upoll_fds::close(set).unwrap();
}

/// Each fd of a batch is closed, opened again and demoted while batches name it. The result of each
/// command is possible in some order of the calls, and the set's members at the end are the open
/// fds.
#[test]
fn fds_may_be_closed_and_demoted_during_a_batch() {
    const ROUNDS: usize = 300;
    let set = our_set();
    let fds: Vec<i32> = (0..24).map(|_| our_eventfd(1)).collect();
    let other = our_eventfd(1);
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for share in 0..2 {
            let (fds, is_done) = (&fds, &is_done);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let fd = fds[(round * 2 + share) % fds.len()];
                    // The fd is never free for a third party: another file takes its place.
                    upoll_fds::dup2(other, fd).unwrap();
                    if round % 5 == 0 {
                        // It may be busy.
                        let _ = upoll_fds::demote(fd);
                    }
                    let fresh = our_eventfd(1);
                    upoll_fds::dup2(fresh, fd).unwrap();
                    upoll_fds::close(fresh).unwrap();
                }
                is_done.store(true, std::sync::atomic::Ordering::Relaxed);
            });
        }
        while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
            for op in [1, 3, 2] {
                let mut rest: Vec<_> = fds
                    .iter()
                    .map(|&fd| EpollCtlCmd { op, ..add(fd) })
                    .collect();
                while !rest.is_empty() {
                    let count = i32::try_from(rest.len()).unwrap();
                    // SAFETY: the commands are live.
                    let done =
                        unsafe { upoll_fds::epoll_ctl_batch(set, 0, count, rest.as_mut_ptr()) };
                    let done = done.unwrap();
                    if let Some(failed) = rest.get(done) {
                        let expected = if op == 1 { libc::EEXIST } else { libc::ENOENT };
                        assert_eq!(failed.result, -expected);
                    }
                    rest.drain(..(done + 1).min(rest.len()));
                }
            }
        }
    });
    for fd in fds.into_iter().chain([other]) {
        upoll_fds::close(fd).unwrap();
    }
    assert_eq!(our_wait(set, &mut [Event::default(); 32]), 0);
    upoll_fds::close(set).unwrap();
}
