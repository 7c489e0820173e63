//! `ctl_batch` against the kernel's `epoll_ctl`, called once for each command until one fails.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use upoll::{
    CreateFlags, CtlCommand, Epoll, Errno, Event, EventFd, Events, File, Op, PollTable, Pollable,
    Source, Target, WaitQueue, Watch,
};

/// The targets of commands: user-level objects with their kernel twins, and kernel objects that
/// both sides watch.
struct Subjects {
    user: Vec<EventFd>,
    nested: Epoll,
    kernel: Vec<OwnedFd>,
    twins: Vec<OwnedFd>,
    nested_twin: OwnedFd,
    regular: std::fs::File,
}

const USER: usize = 3;
const KERNEL: usize = 3;
/// User-level eventfds, kernel eventfds, a set, a regular file.
const TARGETS: usize = USER + KERNEL + 2;

fn eventfd(count: u32) -> OwnedFd {
    // SAFETY: the fd is new, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(libc::eventfd(count, libc::EFD_NONBLOCK)) }
}

fn kernel_set() -> OwnedFd {
    // SAFETY: as above.
    unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) }
}

impl Subjects {
    /// Every other counter is ready.
    fn new() -> Self {
        let count = |at| u32::try_from(at % 2).unwrap();
        Subjects {
            user: (0..USER)
                .map(|at| EventFd::new(count(at)).unwrap())
                .collect(),
            nested: Epoll::new().unwrap(),
            kernel: (0..KERNEL).map(|at| eventfd(count(at))).collect(),
            twins: (0..USER).map(|at| eventfd(count(at))).collect(),
            nested_twin: kernel_set(),
            regular: std::fs::File::open("/proc/self/exe").unwrap(),
        }
    }

    fn target(&self, which: usize) -> Target<'_> {
        match which {
            at if at < USER => self.user[at].target(),
            at if at < USER + KERNEL => Target::Kernel(self.kernel[at - USER].as_fd()),
            at if at == USER + KERNEL => self.nested.target(),
            _ => Target::Kernel(self.regular.as_fd()),
        }
    }

    fn number(&self, which: usize) -> i32 {
        match which {
            at if at < USER => self.twins[at].as_raw_fd(),
            at if at < USER + KERNEL => self.kernel[at - USER].as_raw_fd(),
            at if at == USER + KERNEL => self.nested_twin.as_raw_fd(),
            _ => self.regular.as_raw_fd(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Command {
    op: Op,
    which: usize,
    events: Events,
    data: u64,
}

fn any_command() -> impl Strategy<Value = Command> {
    let op = prop_oneof![4 => Just(Op::Add), 2 => Just(Op::Mod), 2 => Just(Op::Del)];
    let events = prop::sample::select(vec![
        Events::IN,
        Events::IN | Events::OUT,
        Events::OUT | Events::ET,
        Events::IN | Events::ONESHOT,
        Events::empty(),
        Events::IN | Events::EXCLUSIVE,
        Events::IN | Events::EXCLUSIVE | Events::ONESHOT,
    ]);
    (op, 0..TARGETS, events, any::<u64>()).prop_map(|(op, which, events, data)| Command {
        op,
        which,
        events,
        data,
    })
}

fn kernel_ctl(set: &OwnedFd, command: &Command, fd: i32) -> Result<(), Errno> {
    let mut event = libc::epoll_event {
        events: command.events.bits(),
        u64: command.data,
    };
    // SAFETY: the event outlives the call.
    match unsafe { libc::epoll_ctl(set.as_raw_fd(), command.op as i32, fd, &raw mut event) } {
        0 => Ok(()),
        _ => Err(Errno::from_raw(
            std::io::Error::last_os_error().raw_os_error().unwrap(),
        )),
    }
}

fn kernel_wait(set: &OwnedFd) -> Vec<(u32, u64)> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
    // SAFETY: the buffer holds sixteen events.
    let ready = unsafe { libc::epoll_wait(set.as_raw_fd(), events.as_mut_ptr(), 16, 0) };
    let mut ready: Vec<_> = events[..usize::try_from(ready).unwrap()]
        .iter()
        .map(|event| (event.events, event.u64))
        .collect();
    ready.sort_unstable();
    ready
}

fn wait(set: &Epoll) -> Vec<(u32, u64)> {
    let mut events = [Event::default(); 16];
    let ready = set.try_wait(&mut events).unwrap();
    let mut ready: Vec<_> = events[..ready]
        .iter()
        .map(|event| (event.events().bits(), event.data()))
        .collect();
    ready.sort_unstable();
    ready
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn a_batch_does_what_single_calls_do_until_one_fails(
        batches in prop::collection::vec(prop::collection::vec(any_command(), 1..40), 1..6),
    ) {
        let subjects = Subjects::new();
        let set = Epoll::new().unwrap();
        let kernel = kernel_set();
        for batch in batches {
            let mut commands: Vec<_> = batch
                .iter()
                .map(|command| {
                    CtlCommand::new(
                        command.op,
                        subjects.target(command.which),
                        Event::new(command.events, command.data),
                    )
                })
                .collect();
            // A marker for a result that no command has written.
            for command in &mut commands {
                command.result = Err(Errno::NOTTY);
            }
            let done = set.ctl_batch(&mut commands).unwrap();
            let mut expected = 0;
            for (at, command) in batch.iter().enumerate() {
                let result = kernel_ctl(&kernel, command, subjects.number(command.which));
                prop_assert_eq!(commands[at].result, result, "command {} of {:?}", at, batch);
                if result.is_err() {
                    break;
                }
                expected += 1;
            }
            prop_assert_eq!(done, expected);
            for command in commands.iter().skip(done + 1) {
                prop_assert_eq!(command.result, Err(Errno::NOTTY), "not executed, not written");
            }
            // Oneshot items are disabled on both sides.
            prop_assert_eq!(wait(&set), kernel_wait(&kernel));
            prop_assert_eq!(wait(&set), kernel_wait(&kernel));
        }
    }
}

#[test]
fn an_empty_batch_is_refused() {
    let set = Epoll::new().unwrap();
    assert_eq!(set.ctl_batch(&mut []), Err(Errno::INVAL));
}

#[test]
fn a_batch_of_deletions_frees_what_was_watched_last_by_it() {
    let set = Epoll::new().unwrap();
    let counters: Vec<_> = (0..100).map(|_| EventFd::new(1).unwrap()).collect();
    let interest = Event::new(Events::IN, 0);
    let mut adds: Vec<_> = counters
        .iter()
        .map(|counter| CtlCommand::add(counter, interest))
        .collect();
    assert_eq!(set.ctl_batch(&mut adds).unwrap(), 100);
    assert_eq!(set.len(), 100);
    let mut deletes: Vec<_> = counters.iter().map(CtlCommand::delete).collect();
    assert_eq!(set.ctl_batch(&mut deletes).unwrap(), 100);
    assert!(set.is_empty());
}

#[test]
fn a_rotating_set_keeps_its_rule_within_a_batch() {
    let set = Epoll::create(CreateFlags::ROTATE).unwrap();
    let (first, second) = (EventFd::new(0).unwrap(), eventfd(0));
    let interest = Event::new(Events::IN, 0);
    let mut commands = [
        CtlCommand::add(&first, interest),
        CtlCommand::delete(&first),
        CtlCommand::add(&second, interest),
        CtlCommand::add(&first, interest),
    ];
    assert_eq!(set.ctl_batch(&mut commands).unwrap(), 3);
    assert_eq!(commands[3].result, Err(Errno::INVAL));
}

#[test]
fn a_batch_wakes_a_sleeping_wait() {
    let set = Epoll::new().unwrap();
    let counter = EventFd::new(1).unwrap();
    let waiter = std::thread::spawn({
        let set = set.clone();
        move || {
            let mut events = [Event::default(); 4];
            set.wait(&mut events, std::time::Duration::from_secs(60))
        }
    });
    std::thread::sleep(std::time::Duration::from_millis(20));
    let mut commands = [CtlCommand::add(&counter, Event::new(Events::IN, 0))];
    set.ctl_batch(&mut commands).unwrap();
    assert_eq!(waiter.join().unwrap(), Ok(1));
}

/// Notes how often the other set was told by the time of its last poll.
struct Looks {
    told: Arc<[AtomicU32; 2]>,
    seen: AtomicU32,
    queue: WaitQueue,
}

impl Pollable for Looks {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        let told = self.told[1].load(Ordering::Relaxed);
        self.seen.store(told, Ordering::Relaxed);
        Events::empty()
    }
}

#[test]
fn a_turn_that_a_deletion_in_a_batch_gives_up_goes_to_another_set_before_the_next_command() {
    let told_of_others = |batch: bool| {
        let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
        let counter = EventFd::new(0).unwrap();
        rotating.add(&counter, Event::new(Events::IN, 0)).unwrap();
        let [worker, other] = [(); 2].map(|()| Epoll::new().unwrap());
        let at = |fd| Target::File(rotating.as_file_ref().with_fd(fd));
        let none = Event::new(Events::empty(), 0);
        let wanted = Event::new(Events::IN, 0);
        let commands = [
            CtlCommand::new(Op::Add, at(1), wanted),
            CtlCommand::new(Op::Add, at(2), none),
        ];
        assert_eq!(worker.ctl_batch(&mut commands.clone()), Ok(2));
        other.add(&rotating, wanted).unwrap();
        let told = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let looks = File::new(Looks {
            told: told.clone(),
            seen: AtomicU32::new(0),
            queue: WaitQueue::new(),
        });
        worker.add(&looks, none).unwrap();
        let watch = |set: &Epoll, at: usize| {
            let told = told.clone();
            let count = move |_| _ = told[at].fetch_add(1, Ordering::Relaxed);
            Watch::new(set, Events::IN, count).unwrap().0
        };
        let _watches = [watch(&worker, 0), watch(&other, 1)];
        counter.try_write(1).unwrap();
        let told = || [0, 1].map(|at: usize| told[at].load(Ordering::Relaxed));
        assert_eq!(told(), [1, 0]);
        let mut commands = [
            CtlCommand::new(Op::Del, at(1), none),
            CtlCommand::modify(&looks, wanted),
            CtlCommand::new(Op::Mod, at(2), wanted),
        ];
        for some in commands.chunks_mut(if batch { 3 } else { 1 }) {
            assert_eq!(worker.ctl_batch(some), Ok(some.len()));
        }
        (told()[1], looks.seen.load(Ordering::Relaxed))
    };
    assert_eq!([false, true].map(told_of_others), [(1, 1), (1, 1)]);
}
