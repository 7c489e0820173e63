//! A context that is kept between calls, compared with calls without one and with the host kernel:
//! random sequences of lists, changes, closes and reused fds, with every result compared.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod processor_time;
mod random;

use std::fs::File as OsFile;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use processor_time::processor_time;
use proptest::prelude::*;
use random::config;
use upoll::{
    Descriptor, Epoll, Errno, Event, EventFd, Events, FdSet, PollContext, PollFd, SigSet, Source,
    Target, Timeout,
};

fn result(result: i32) -> Result<usize, Errno> {
    usize::try_from(result)
        .map_err(|_| Errno::from_raw(std::io::Error::last_os_error().raw_os_error().unwrap()))
}

fn owned(fd: i32) -> OwnedFd {
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the caller has just opened the fd; nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn kernel_eventfd() -> OwnedFd {
    // SAFETY: the call takes no pointers.
    owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

fn kernel_pipe() -> (OwnedFd, OwnedFd) {
    let mut ends = [-1; 2];
    // SAFETY: the array has room for two fds.
    let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) };
    assert_eq!(made, 0);
    (owned(ends[0]), owned(ends[1]))
}

fn kernel_set(member: &OwnedFd) -> OwnedFd {
    // SAFETY: the call takes no pointers.
    let set = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) });
    let mut event = libc::epoll_event {
        events: Events::IN.bits(),
        u64: 0,
    };
    let (set_fd, fd) = (set.as_raw_fd(), member.as_raw_fd());
    // SAFETY: both are open, and the event outlives the call.
    let added = unsafe { libc::epoll_ctl(set_fd, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    assert_eq!(added, 0);
    set
}

/// Writes eight bytes to an eventfd or a pipe. An end that is full or has hung up does not matter.
fn bump(fd: &OwnedFd) {
    // SAFETY: eight bytes are read from the fd; SIGPIPE is ignored by the Rust runtime.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const ONE).cast(), 8) };
}

fn drain(fd: &OwnedFd) {
    let mut bytes = [0_u8; 8];
    // SAFETY: eight bytes are written to the buffer.
    unsafe { libc::read(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), 8) };
}

static ONE: u64 = 1;

/// An object to poll in both worlds: the targets of the user-level calls and the fds of the
/// kernel's.
enum Object {
    /// No open object.
    Closed,
    Counter {
        ours: EventFd,
        theirs: OwnedFd,
    },
    Pipe {
        ours: (upoll::PipeReader, Option<upoll::PipeWriter>),
        theirs: (OwnedFd, Option<OwnedFd>),
    },
    /// A set that watches a counter.
    Set {
        ours: (Epoll, EventFd),
        theirs: (OwnedFd, OwnedFd),
    },
    /// A user-level set that watches a kernel fd.
    Mixed {
        ours: Epoll,
        member: OwnedFd,
        theirs: OwnedFd,
    },
    /// A kernel fd in both worlds, given as an fd.
    Fd(OwnedFd),
    /// A kernel fd in both worlds, given as a [`Descriptor`].
    Counted(Descriptor<OwnedFd>),
    Ends {
        watched: Descriptor<OwnedFd>,
        peer: Option<OwnedFd>,
    },
    /// A kernel set.
    KernelSet(Descriptor<OwnedFd>, OwnedFd),
    Regular(Descriptor<OwnedFd>),
}

const KINDS: u8 = 12;

impl Object {
    fn new(kind: u8) -> Self {
        match kind {
            0 => Object::Counter {
                ours: EventFd::new(0).unwrap(),
                theirs: kernel_eventfd(),
            },
            1 => {
                let (ours, theirs) = (upoll::pipe().unwrap(), kernel_pipe());
                Object::Pipe {
                    ours: (ours.0, Some(ours.1)),
                    theirs: (theirs.0, Some(theirs.1)),
                }
            }
            2 => {
                let (set, counter) = (Epoll::new().unwrap(), EventFd::new(0).unwrap());
                set.add(&counter, Event::new(Events::IN, 0)).unwrap();
                let theirs = kernel_eventfd();
                Object::Set {
                    ours: (set, counter),
                    theirs: (kernel_set(&theirs), theirs),
                }
            }
            3 => {
                let (set, member) = (Epoll::new().unwrap(), kernel_eventfd());
                set.add(&member, Event::new(Events::IN, 0)).unwrap();
                Object::Mixed {
                    ours: set,
                    theirs: kernel_set(&member),
                    member,
                }
            }
            4 => Object::Fd(kernel_eventfd()),
            5 | 6 => Object::Counted(Descriptor::new(kernel_eventfd())),
            7 => {
                let (reader, writer) = kernel_pipe();
                Object::Ends {
                    watched: Descriptor::new(reader),
                    peer: Some(writer),
                }
            }
            8 => {
                let (reader, writer) = kernel_pipe();
                Object::Ends {
                    watched: Descriptor::new(writer),
                    peer: Some(reader),
                }
            }
            9 => {
                let (one, other) = UnixStream::pair().unwrap();
                one.set_nonblocking(true).unwrap();
                other.set_nonblocking(true).unwrap();
                Object::Ends {
                    watched: Descriptor::new(one.into()),
                    peer: Some(other.into()),
                }
            }
            10 => {
                let member = kernel_eventfd();
                Object::KernelSet(Descriptor::new(kernel_set(&member)), member)
            }
            11 => Object::Regular(Descriptor::new(
                OsFile::open("/proc/self/exe").unwrap().into(),
            )),
            _ => Object::Closed,
        }
    }

    fn bump(&self) {
        match self {
            Object::Closed | Object::Regular(_) => {}
            Object::Counter { ours, theirs } => {
                let _ = ours.try_write(1);
                bump(theirs);
            }
            Object::Pipe { ours, theirs } => {
                if let (Some(ours), Some(theirs)) = (&ours.1, &theirs.1) {
                    let _ = ours.try_write(&[0; 8]);
                    bump(theirs);
                }
            }
            Object::Set { ours, theirs } => {
                let _ = ours.1.try_write(1);
                bump(&theirs.1);
            }
            Object::Mixed { member: fd, .. } | Object::Fd(fd) | Object::KernelSet(_, fd) => {
                bump(fd);
            }
            Object::Counted(fd) => bump(fd),
            Object::Ends { peer, .. } => {
                if let Some(peer) = peer {
                    bump(peer);
                }
            }
        }
    }

    fn drain(&self) {
        match self {
            Object::Closed | Object::Regular(_) => {}
            Object::Counter { ours, theirs } => {
                let _ = ours.try_read();
                drain(theirs);
            }
            Object::Pipe { ours, theirs } => {
                let _ = ours.0.try_read(&mut [0; 8]);
                drain(&theirs.0);
            }
            Object::Set { ours, theirs } => {
                let _ = ours.1.try_read();
                drain(&theirs.1);
            }
            Object::Mixed { member: fd, .. } | Object::Fd(fd) | Object::KernelSet(_, fd) => {
                drain(fd);
            }
            Object::Counted(fd) => drain(fd),
            Object::Ends { watched, .. } => drain(watched),
        }
    }

    /// Fills the watched end until a write fails.
    fn fill(&self) {
        if let Object::Ends { watched, .. } = self {
            // SAFETY: the buffer is as long as is claimed.
            while unsafe { libc::write(watched.as_raw_fd(), [0_u8; 4096].as_ptr().cast(), 4096) }
                > 0
            {}
        }
    }

    fn hang_up(&mut self) {
        match self {
            Object::Pipe { ours, theirs } => {
                ours.1 = None;
                theirs.1 = None;
            }
            Object::Ends { peer, .. } => *peer = None,
            _ => {}
        }
    }

    /// Returns the target for the calls of this crate.
    fn target(&self) -> Option<Target<'_>> {
        Some(match self {
            Object::Closed => return None,
            Object::Counter { ours, .. } => ours.target(),
            Object::Pipe { ours, .. } => ours.0.target(),
            Object::Set { ours, .. } => ours.0.target(),
            Object::Mixed { ours, .. } => ours.target(),
            Object::Fd(fd) => fd.target(),
            Object::Counted(fd) | Object::KernelSet(fd, _) | Object::Regular(fd) => fd.target(),
            Object::Ends { watched, .. } => watched.target(),
        })
    }

    /// Returns the fd for the kernel's calls.
    fn descriptor(&self) -> Option<&OwnedFd> {
        Some(match self {
            Object::Closed => return None,
            Object::Counter { theirs, .. } | Object::Mixed { theirs, .. } => theirs,
            Object::Pipe { theirs, .. } => &theirs.0,
            Object::Set { theirs, .. } => &theirs.0,
            Object::Fd(fd) => fd,
            Object::Counted(fd) | Object::KernelSet(fd, _) | Object::Regular(fd) => fd,
            Object::Ends { watched, .. } => watched,
        })
    }
}

/// The number of objects.
const OBJECTS: usize = 14;
/// An fd that no process has open.
const CLOSED: i32 = i32::MAX;

#[derive(Clone, Debug)]
enum Step {
    Bump(usize),
    Drain(usize),
    Fill(usize),
    HangUp(usize),
    /// Closes an object and opens another one in its place, most likely with the same fd. The
    /// first may stay open under another fd.
    Reopen(usize, u8, bool),
    /// Closes the objects that stayed open under another fd.
    CloseOthers,
    Edit(Edit),
    Poll(u64, bool),
    Select(u64, bool),
    Clear,
}

/// A change of the list.
#[derive(Clone, Debug)]
enum Edit {
    Insert(prop::sample::Index, usize, Events),
    /// Adds an entry; with the index [`OBJECTS`] an ignored one.
    Push(usize, Events),
    Remove(prop::sample::Index),
    SwapRemove(prop::sample::Index),
    Swap(prop::sample::Index, prop::sample::Index),
    Events(prop::sample::Index, Events),
    Reverse,
}

fn events() -> impl Strategy<Value = Events> {
    let bit = prop::sample::select(vec![0, 1, 2, 4, 0x40, 0x100, 0x2000]);
    prop::collection::vec(bit, 1..3)
        .prop_map(|bits| Events::from_bits_retain(bits.into_iter().fold(0, |a, b| a | b)))
}

fn edit() -> impl Strategy<Value = Edit> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        3 => (index(), 0..OBJECTS, events()).prop_map(|(at, of, events)| Edit::Insert(at, of, events)),
        5 => (0..OBJECTS + 1, events()).prop_map(|(of, events)| Edit::Push(of, events)),
        2 => index().prop_map(Edit::Remove),
        2 => index().prop_map(Edit::SwapRemove),
        2 => (index(), index()).prop_map(|(a, b)| Edit::Swap(a, b)),
        3 => (index(), events()).prop_map(|(at, events)| Edit::Events(at, events)),
        1 => Just(Edit::Reverse),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..OBJECTS).prop_map(Step::Bump),
        6 => (0..OBJECTS).prop_map(Step::Drain),
        1 => (0..OBJECTS).prop_map(Step::Fill),
        2 => (0..OBJECTS).prop_map(Step::HangUp),
        4 => (0..OBJECTS, 0..KINDS + 1, any::<bool>()).prop_map(|(at, kind, keep)| Step::Reopen(at, kind, keep)),
        1 => Just(Step::CloseOthers),
        8 => edit().prop_map(Step::Edit),
        12 => (0..2_u64, any::<bool>()).prop_map(|(limit, masked)| Step::Poll(limit, masked)),
        6 => (0..2_u64, any::<bool>()).prop_map(|(limit, masked)| Step::Select(limit, masked)),
        1 => Just(Step::Clear),
    ]
}

impl Edit {
    fn apply(&self, list: &mut Vec<(usize, Events)>) {
        if let Edit::Push(of, events) = self {
            list.push((*of, *events));
        }
        if list.is_empty() {
            return;
        }
        let len = list.len();
        match self {
            Edit::Insert(at, of, events) => list.insert(at.index(len), (*of, *events)),
            Edit::Push(..) => {}
            Edit::Remove(at) => drop(list.remove(at.index(len))),
            Edit::SwapRemove(at) => drop(list.swap_remove(at.index(len))),
            Edit::Swap(a, b) => list.swap(a.index(len), b.index(len)),
            Edit::Events(at, events) => list[at.index(len)].1 = *events,
            Edit::Reverse => list.reverse(),
        }
    }
}

struct World {
    objects: Vec<Object>,
    others: Vec<OwnedFd>,
    list: Vec<(usize, Events)>,
    polls: PollContext,
    selects: PollContext,
}

type Polled = (Result<usize, Errno>, Vec<Events>);
type Selected = (Result<usize, Errno>, [FdSet; 3]);

impl World {
    fn new(kinds: &[u8]) -> Self {
        World {
            objects: kinds.iter().map(|&kind| Object::new(kind)).collect(),
            others: Vec::new(),
            list: (0..OBJECTS).map(|at| (at, Events::IN)).collect(),
            polls: PollContext::new(),
            selects: PollContext::new(),
        }
    }

    /// Applies the step, and compares the results of all calls.
    fn apply(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Bump(at) => self.objects[at].bump(),
            Step::Drain(at) => self.objects[at].drain(),
            Step::Fill(at) => self.objects[at].fill(),
            Step::HangUp(at) => self.objects[at].hang_up(),
            Step::Reopen(at, kind, keep) => {
                if let Some(fd) = self.objects[at].descriptor().filter(|_| keep) {
                    self.others.push(fd.try_clone().unwrap());
                }
                self.objects[at] = Object::Closed;
                self.objects[at] = Object::new(kind);
            }
            Step::CloseOthers => self.others.clear(),
            Step::Edit(ref edit) => edit.apply(&mut self.list),
            Step::Poll(limit, masked) => {
                let kept = self.poll(limit, |fds, limit, context| match masked {
                    true => context.ppoll(fds, limit, &SigSet::empty()),
                    false => context.poll(fds, limit),
                });
                let anew = self.poll(limit, |fds, limit, _| match masked {
                    true => upoll::ppoll(fds, limit, &SigSet::empty()),
                    false => upoll::poll(fds, limit),
                });
                prop_assert_eq!(&kept, &anew);
                prop_assert_eq!(kept, self.kernel_poll(limit));
            }
            Step::Select(limit, masked) => {
                let kept = self.select(limit, masked, true);
                let anew = self.select(limit, masked, false);
                prop_assert_eq!(&kept, &anew);
                prop_assert_eq!(kept, self.kernel_select(limit));
            }
            Step::Clear => self.polls.clear(),
        }
        Ok(())
    }

    fn poll(
        &mut self,
        limit: u64,
        call: impl Fn(&mut [PollFd<'_>], Duration, &mut PollContext) -> Result<usize, Errno>,
    ) -> Polled {
        let entry = |&(of, events): &(usize, Events)| match self.objects.get(of) {
            None => PollFd::ignored(),
            Some(object) => object.target().map_or(PollFd::not_open(), |target| {
                PollFd::from_target(target, events)
            }),
        };
        let mut fds: Vec<_> = self.list.iter().map(entry).collect();
        let ready = call(&mut fds, Duration::from_millis(limit), &mut self.polls);
        (ready, fds.iter().map(PollFd::revents).collect())
    }

    fn kernel_poll(&self, limit: u64) -> Polled {
        let entry = |&(of, events): &(usize, Events)| libc::pollfd {
            fd: self.objects.get(of).map_or(-1, |object| {
                object.descriptor().map_or(CLOSED, |fd| fd.as_raw_fd())
            }),
            events: i16::from_ne_bytes(u16::try_from(events.bits()).unwrap().to_ne_bytes()),
            revents: -1,
        };
        let mut list: Vec<_> = self.list.iter().map(entry).collect();
        let limit = i32::try_from(limit).unwrap();
        // SAFETY: the list is as long as is claimed.
        let ready = unsafe { libc::poll(list.as_mut_ptr(), list.len() as libc::nfds_t, limit) };
        let masks = list
            .iter()
            .map(|fd| Events::from_bits_retain(fd.revents.cast_unsigned().into()))
            .collect();
        (result(ready), masks)
    }

    /// Returns the sets of the list for `select`, as kernel fds. Entries that are not open are left
    /// out.
    fn sets(&self) -> [FdSet; 3] {
        let mut sets = [(); 3].map(|()| FdSet::new());
        for &(of, events) in &self.list {
            let object = self.objects.get(of);
            let Some(fd) = object.and_then(Object::descriptor) else {
                continue;
            };
            let asks = [Events::IN, Events::OUT, Events::PRI];
            for (set, asks) in sets.iter_mut().zip(asks) {
                if events.contains(asks) {
                    set.insert(fd.as_raw_fd());
                }
            }
        }
        sets
    }

    fn end(&self) -> i32 {
        let last = |set: &FdSet| set.iter().last().map_or(0, |last| last + 1);
        self.sets().iter().map(last).max().unwrap_or(0)
    }

    fn select(&mut self, limit: u64, masked: bool, keep: bool) -> Selected {
        let (end, mut sets) = (self.end(), self.sets());
        let [read, write, except] = sets.each_mut().map(Some);
        let (objects, context) = (&self.objects, &mut self.selects);
        let resolve = |asked| {
            let is_it = |object: &&Object| {
                let fd = object.descriptor().map(AsRawFd::as_raw_fd);
                fd == Some(asked)
            };
            objects.iter().find(is_it)?.target()
        };
        let limit = Duration::from_millis(limit);
        let (mask, timeout) = (SigSet::empty(), &mut Timeout::from(limit));
        let ready = match (masked, keep) {
            (true, true) => context.pselect(end, read, write, except, limit, &mask, resolve),
            (true, false) => upoll::pselect(end, read, write, except, limit, &mask, resolve),
            (false, true) => context.select(end, read, write, except, timeout, resolve),
            (false, false) => upoll::select(end, read, write, except, timeout, resolve),
        };
        (ready, sets)
    }

    fn kernel_select(&self, limit: u64) -> Selected {
        let mut words = self.sets().map(|set| {
            let mut words = set.as_words().to_vec();
            words.resize(64, 0);
            words
        });
        let [read, write, except] = words.each_mut().map(|words| words.as_mut_ptr().cast());
        let mut limit = libc::timeval {
            tv_sec: 0,
            tv_usec: libc::suseconds_t::try_from(limit).unwrap() * 1_000,
        };
        // SAFETY: the sets are longer than the end, and the limit is the call's to write.
        let ready = unsafe { libc::select(self.end(), read, write, except, &raw mut limit) };
        (result(ready), words.map(|words| FdSet::from_words(&words)))
    }
}

#[test]
fn a_kept_context_finds_what_a_single_call_and_the_kernel_find() {
    let kinds = prop::collection::vec(0..KINDS, OBJECTS);
    let steps = prop::collection::vec(step(), 1..60);
    proptest!(config(600, "poll_context"), |(kinds in kinds, steps in steps)| {
        let mut world = World::new(&kinds);
        for step in &steps {
            world.apply(step)?;
        }
    });
}

/// Without bare fds and members that a kernel set refuses, the context's kernel set does all
/// the work.
#[test]
fn so_does_one_whose_descriptors_are_all_in_the_kernels_set() {
    let taken = || prop::sample::select(vec![0_u8, 1, 2, 5, 7, 8, 9]);
    let kinds = prop::collection::vec(taken(), OBJECTS);
    let steps = prop::collection::vec((step(), taken()), 1..60);
    proptest!(config(600, "poll_context"), |(kinds in kinds, steps in steps)| {
        let mut world = World::new(&kinds);
        for (step, kind) in steps {
            world.apply(&match step {
                Step::Reopen(at, _, keep) => Step::Reopen(at, kind, keep),
                Step::Edit(Edit::Insert(at, ..)) => Step::Edit(Edit::SwapRemove(at)),
                Step::Edit(Edit::Push(of, events)) if world.list.iter().any(|entry| entry.0 == of) => {
                    Step::Edit(Edit::Push(OBJECTS, events))
                }
                step => step,
            })?;
        }
    });
}

/// Returns the processor time of calls in each of which all entries are other objects than before.
fn time_of_changes<T: Source>(objects: &[T]) -> Duration {
    let mut context = PollContext::new();
    let (some, others) = objects.split_at(objects.len() / 2);
    let begun = processor_time();
    for _ in 0..3 {
        for objects in [some, others] {
            let entry = |object| PollFd::new(object, Events::PRI);
            let mut list: Vec<_> = objects.iter().map(entry).collect();
            assert_eq!(context.poll(&mut list, Duration::ZERO), Ok(0));
        }
    }
    processor_time() - begun
}

#[test]
fn changes_of_a_list_take_time_in_proportion_to_their_number() {
    // A quadratic call takes 256 times as long.
    const TIMES: u32 = 16;
    const AT_MOST: u32 = 5 * TIMES;
    fn check<T: Source>(what: &str, objects: &[T]) {
        // Several tries: one of them may include other costs, for instance page faults.
        let times = |objects| (0..3).map(move |_| time_of_changes(objects));
        let few = &objects[..objects.len() / TIMES as usize];
        let few = times(few).max().unwrap();
        let all = times(objects).min().unwrap();
        println!("{what}: {few:?}, {TIMES} times as many: {all:?}");
        assert!(all < few * AT_MOST, "{what}: {few:?}, {all:?}");
    }
    let counters: Vec<_> = (0..16_000).map(|_| EventFd::new(0).unwrap()).collect();
    check("user-level objects", &counters);
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure is live; the calls read or fill it.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_max.min(8192);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
    let count = if limit.rlim_cur > 5000 { 4000 } else { 800 };
    let kernels: Vec<_> = (0..count)
        .map(|_| Descriptor::new(kernel_eventfd()))
        .collect();
    check("kernel fds", &kernels);
}

/// An entry leaves whose fd was closed while its file lives on. The kernel's set is made anew in the midst of the call,
/// and takes an entry that was listed twice before, for which the call has asked the kernel by then.
#[test]
fn an_entry_that_changes_its_place_during_a_call_counts_once() {
    let readable = || {
        let fd = kernel_eventfd();
        bump(&fd);
        fd
    };
    let (twice, idle) = (
        Descriptor::new(readable()),
        Descriptor::new(kernel_eventfd()),
    );
    let (leaves, counter) = (readable(), EventFd::new(0).unwrap());
    let _lives_on = leaves.try_clone().unwrap();
    let leaves = Descriptor::new(leaves);
    let mut context = PollContext::new();
    let mut fds = [&twice, &twice, &idle, &leaves].map(|fd| PollFd::new(fd, Events::IN));
    assert_eq!(context.poll(&mut fds, Timeout::NOW), Ok(3));
    drop(leaves);
    let mut fds = [
        PollFd::new(&counter, Events::IN),
        PollFd::new(&twice, Events::IN),
        PollFd::new(&idle, Events::IN),
    ];
    assert_eq!(context.poll(&mut fds, Timeout::NOW), Ok(1));
    assert_eq!(fds[1].revents(), Events::IN);
}
