//! Random calls on sets, while the program closes or replaces fds that it did not open, compared with a model.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod open_fds;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use open_fds::{ALL, is_open, open_in};
use upoll::{
    CtlCommand, Descriptor, Epoll, Errno, Event, EventFd, EventFdFlags, Events, PollContext,
    PollFd, ReadinessFd, Watch, poll,
};

const SETS: usize = 3;
/// The first objects. An eventfd and a shared one follow.
const PIPES: usize = 2;
const OBJECTS: usize = PIPES + 2;
/// The library's own fds are not below, where those of the test are.
const LOWEST_OWN: RawFd = 256;
/// The library checks the own fds of sets below twice a second.
const LONG: Duration = Duration::from_secs(60);

/// Sets, of which each may watch objects and the sets before it.
struct World {
    sets: Vec<Epoll>,
    pipes: Vec<(PipeReader, PipeWriter)>,
    counters: [EventFd; 2],
    /// The data of each member of each set. Numbers from `OBJECTS` on are sets.
    members: Vec<BTreeMap<usize, u64>>,
    ready: [bool; OBJECTS],
    watches: BTreeMap<usize, Watch>,
    shown: BTreeMap<usize, ReadinessFd>,
    context: PollContext,
    /// Files of the program's at numbers that were the library's.
    foreign: BTreeSet<RawFd>,
    seed: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        World {
            sets: (0..SETS).map(|_| Epoll::new().unwrap()).collect(),
            pipes: (0..PIPES).map(|_| pipe().unwrap()).collect(),
            counters: [
                EventFd::new(0).unwrap(),
                EventFd::shared(0, EventFdFlags::empty()).unwrap(),
            ],
            members: vec![BTreeMap::new(); SETS],
            ready: [false; OBJECTS],
            watches: BTreeMap::new(),
            shown: BTreeMap::new(),
            context: PollContext::new(),
            foreign: BTreeSet::new(),
            seed,
        }
    }

    fn random(&mut self, below: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 20) as usize % below
    }

    fn is_ready(&self, target: usize) -> bool {
        match target {
            object if object < OBJECTS => self.ready[object],
            set => !self.expected(set - OBJECTS).is_empty(),
        }
    }

    /// The data that a wait reports, in order.
    fn expected(&self, set: usize) -> Vec<u64> {
        let members = self.members[set].iter();
        let mut data: Vec<_> = members
            .filter(|(target, _)| self.is_ready(**target))
            .map(|(_, &data)| data)
            .collect();
        data.sort_unstable();
        data
    }

    fn command(&self, op: usize, target: usize, data: u64) -> CtlCommand<'_> {
        let interest = Event::new(Events::IN, data);
        macro_rules! command {
            ($target:expr) => {
                match op {
                    0 => CtlCommand::add($target, interest),
                    1 => CtlCommand::modify($target, interest),
                    _ => CtlCommand::delete($target),
                }
            };
        }
        match target {
            at if at < PIPES => command!(&self.pipes[at].0),
            at if at < OBJECTS => command!(&self.counters[at - PIPES]),
            at => command!(&self.sets[at - OBJECTS]),
        }
    }

    fn change(&mut self) -> String {
        let set = self.random(SETS);
        let target = self.random(OBJECTS + set);
        let op = self.random(3);
        let data = self.seed % 100_000;
        let is_member = self.members[set].contains_key(&target);
        let expected = match (op, is_member) {
            (0, true) => Err(Errno::EXIST),
            (1 | 2, false) => Err(Errno::NOENT),
            _ => Ok(()),
        };
        let mut commands = [self.command(op, target, data)];
        let done = self.sets[set].ctl_batch(&mut commands).unwrap();
        assert_eq!(
            (done, commands[0].result),
            (usize::from(expected.is_ok()), expected),
            "{op} of {target} in {set}"
        );
        if expected.is_ok() {
            match op {
                2 => drop(self.members[set].remove(&target)),
                _ => drop(self.members[set].insert(target, data)),
            }
        }
        format!("change {op} of {target} in {set}: {expected:?}")
    }

    fn wait(&mut self) -> String {
        let set = self.random(SETS);
        let limit = if self.random(2) == 0 {
            Duration::ZERO
        } else {
            Duration::from_millis(1)
        };
        let expected = self.expected(set);
        let begin = Instant::now();
        loop {
            let mut events = [Event::default(); 16];
            let found = self.sets[set].wait(&mut events, limit).unwrap();
            let mut found: Vec<_> = events[..found].iter().map(Event::data).collect();
            found.sort_unstable();
            if found == expected {
                return format!("wait in {set}: {found:?}");
            }
            assert!(
                begin.elapsed() < LONG,
                "{found:?} for {expected:?} in {set}"
            );
        }
    }

    /// Polls sets and objects, by a call of its own or by a context.
    fn poll(&mut self) -> String {
        let expected: Vec<_> = (0..SETS)
            .map(|set| OBJECTS + set)
            .chain(0..OBJECTS)
            .map(|target| self.is_ready(target))
            .collect();
        let begin = Instant::now();
        let by_context = self.random(2) == 0;
        let World {
            sets,
            pipes,
            counters,
            context,
            ..
        } = self;
        let readers: Vec<_> = pipes
            .iter()
            .map(|(reader, _)| Descriptor::new(reader))
            .collect();
        let mut fds: Vec<_> = sets
            .iter()
            .map(|set| PollFd::new(set, Events::IN))
            .collect();
        fds.extend(readers.iter().map(|reader| PollFd::new(reader, Events::IN)));
        fds.extend(
            counters
                .iter()
                .map(|counter| PollFd::new(counter, Events::IN)),
        );
        loop {
            let limit = Duration::ZERO;
            match by_context {
                true => context.poll(&mut fds, limit).unwrap(),
                false => poll(&mut fds, limit).unwrap(),
            };
            let found: Vec<_> = fds.iter().map(|fd| fd.revents() == Events::IN).collect();
            if found == expected {
                return format!("poll {by_context}: {found:?}");
            }
            assert!(
                begin.elapsed() < LONG,
                "{by_context}: {found:?} for {expected:?}"
            );
        }
    }

    fn signal(&mut self) -> String {
        let object = self.random(OBJECTS);
        let now = !self.ready[object];
        match object {
            at if at < PIPES => {
                let (reader, writer) = &mut self.pipes[at];
                match now {
                    true => writer.write_all(b"x").unwrap(),
                    false => reader.read_exact(&mut [0]).unwrap(),
                }
            }
            at => match now {
                true => self.counters[at - PIPES].try_write(1).unwrap(),
                false => assert_eq!(self.counters[at - PIPES].try_read(), Ok(1)),
            },
        }
        self.ready[object] = now;
        format!("{object} is ready: {now}")
    }

    /// Closes an own fd, or puts another file in its place.
    fn lose(&mut self) -> String {
        let own: Vec<_> = open_in(ALL)
            .filter(|fd| *fd >= LOWEST_OWN && !self.foreign.contains(fd))
            .collect();
        if own.is_empty() {
            return String::new();
        }
        let fd = own[self.random(own.len())];
        let how = self.random(4);
        let file = std::fs::read_link(format!("/proc/self/fd/{fd}"));
        // SAFETY: an fd of the library's.
        unsafe {
            match how {
                0 | 1 => drop(libc::close(fd)),
                2 => {
                    libc::dup2(self.pipes[0].0.as_raw_fd(), fd);
                    self.foreign.insert(fd);
                }
                _ => {
                    let set = libc::epoll_create1(0);
                    libc::dup2(set, fd);
                    libc::close(set);
                    self.foreign.insert(fd);
                }
            }
        }
        format!("lost {fd} {file:?} by {how}")
    }

    /// Begins or ends the use of a set by callbacks or an event loop, or closes it.
    fn look(&mut self) -> String {
        let set = self.random(SETS);
        match self.random(4) {
            0 => {
                let watch = Watch::new(&self.sets[set], Events::IN, |_| ()).unwrap().0;
                self.watches.insert(set, watch);
                format!("watch {set}")
            }
            1 => {
                self.watches.remove(&set);
                format!("unwatch {set}")
            }
            2 => {
                let shown = self.sets[set].readiness_fd().unwrap();
                self.shown.insert(set, shown);
                format!("show {set}")
            }
            _ => {
                self.shown.remove(&set);
                self.members
                    .iter_mut()
                    .for_each(|members| _ = members.remove(&(OBJECTS + set)));
                self.members[set].clear();
                self.watches.remove(&set);
                self.sets[set] = Epoll::new().unwrap();
                format!("new {set}")
            }
        }
    }

    fn step(&mut self) -> String {
        match self.random(13) {
            0..4 => self.change(),
            4..7 => self.wait(),
            7..9 => self.signal(),
            9 => self.look(),
            10 => self.lose(),
            11 => self.poll(),
            _ => [(); 4].map(|()| self.lose()).join("; "),
        }
    }
}

/// `SEED` is the first case, and `CASES` their number.
#[test]
fn sets_do_what_they_did_though_own_fds_are_lost() {
    let given = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let first = given("SEED").unwrap_or(1);
    for seed in first..first + given("CASES").unwrap_or(20) {
        let mut world = World::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut log = Vec::new();
        for _ in 0..120 {
            match catch_unwind(AssertUnwindSafe(|| world.step())) {
                Ok(step) => log.push(step),
                Err(panic) => {
                    println!("SEED={seed}\n{}", log.join("\n"));
                    resume_unwind(panic);
                }
            }
        }
        let foreign = std::mem::take(&mut world.foreign);
        drop(world);
        for fd in foreign {
            assert!(is_open(fd), "{fd} was closed");
            // SAFETY: it is this test's.
            unsafe { libc::close(fd) };
        }
    }
}
