//! `poll` and `select` compared with the host kernel: the same call on user-level objects and on
//! the kernel's, with every result and every mask compared.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod random;
mod twin;

use std::fs::File as OsFile;
use std::io::{PipeReader, PipeWriter, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use random::config;
use upoll::{
    Clock, Epoll, Errno, Event, EventFd, Events, FdSet, File, PollFd, PollTable, Pollable, SigSet,
    Source, Target, Timeout, WaitQueue,
};

use twin::poll::{kernel_poll, kernel_select, masks};

const LONG: Duration = Duration::from_secs(60);

/// A user-level object that reports the events of a kernel fd.
struct Mirror {
    fd: OwnedFd,
    queue: WaitQueue,
}

impl Pollable for Mirror {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        let all = Events::from_bits_retain(0xffff);
        kernel_poll(&[(self.fd.as_raw_fd(), all)], 0).1[0]
    }
}

/// An object in both worlds.
enum Object {
    Counter(EventFd),
    Set(Epoll),
    Mirror(File<Mirror>),
    /// A kernel fd in both worlds.
    Kernel,
}

struct Twin {
    ours: Object,
    kernel: OwnedFd,
}

impl Twin {
    fn counter(value: u64) -> Self {
        let ours = EventFd::new(0).unwrap();
        // SAFETY: the fd is new, and nothing else owns it.
        let kernel = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
        ours.write(value).unwrap();
        OsFile::from(kernel.try_clone().unwrap())
            .write_all(&value.to_ne_bytes())
            .unwrap();
        Twin {
            ours: Object::Counter(ours),
            kernel,
        }
    }

    /// Returns a set that watches `inner` for `events`.
    fn set(inner: &Twin, events: Events) -> Self {
        let ours = Epoll::new().unwrap();
        // SAFETY: the fd is new, and nothing else owns it.
        let kernel = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        ours.add(&inner.target(), Event::new(events, 0)).unwrap();
        let mut event = libc::epoll_event {
            events: events.bits(),
            u64: 0,
        };
        // SAFETY: both fds are this test's own, and the event outlives the call.
        let added = unsafe {
            libc::epoll_ctl(
                kernel.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                inner.fd(),
                &raw mut event,
            )
        };
        assert_eq!(added, 0);
        Twin {
            ours: Object::Set(ours),
            kernel,
        }
    }

    fn kernel(fd: impl Into<OwnedFd>) -> Self {
        Twin {
            ours: Object::Kernel,
            kernel: fd.into(),
        }
    }

    fn mirror(fd: &impl AsFd) -> Self {
        let kernel = fd.as_fd().try_clone_to_owned().unwrap();
        Twin {
            ours: Object::Mirror(File::new(Mirror {
                fd: kernel.try_clone().unwrap(),
                queue: WaitQueue::new(),
            })),
            kernel,
        }
    }

    fn fd(&self) -> i32 {
        self.kernel.as_raw_fd()
    }

    fn target(&self) -> Target<'_> {
        match &self.ours {
            Object::Counter(counter) => counter.target(),
            Object::Set(set) => set.target(),
            Object::Mirror(mirror) => mirror.target(),
            Object::Kernel => self.kernel.target(),
        }
    }
}

fn pipe() -> (PipeReader, PipeWriter) {
    std::io::pipe().unwrap()
}

fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// Returns kernel fds in many states. The second list only keeps their peers open.
fn kernel_states() -> (Vec<OwnedFd>, Vec<OwnedFd>) {
    let (mut states, mut peers): (Vec<OwnedFd>, Vec<OwnedFd>) = (Vec::new(), Vec::new());
    // Pipes: empty; with data; without a writer; without a reader.
    let (reader, writer) = pipe();
    states.extend([reader.into(), writer.into()]);
    let (reader, mut writer) = pipe();
    writer.write_all(b"x").unwrap();
    states.extend([reader.into(), writer.into()]);
    states.extend([pipe().0.into(), pipe().1.into()]);
    // Connections: idle; with data; with urgent data; half closed; closed.
    let (one, other) = tcp();
    states.push(one.into());
    peers.push(other.into());
    let (one, mut other) = tcp();
    other.write_all(b"x").unwrap();
    states.push(one.into());
    peers.push(other.into());
    let (one, other) = tcp();
    // SAFETY: one byte is read.
    let sent = unsafe { libc::send(other.as_raw_fd(), c"!".as_ptr().cast(), 1, libc::MSG_OOB) };
    assert_eq!(sent, 1);
    states.push(one.into());
    peers.push(other.into());
    let (one, other) = tcp();
    other.shutdown(std::net::Shutdown::Write).unwrap();
    states.push(one.into());
    peers.push(other.into());
    states.push(UnixStream::pair().unwrap().0.into());
    // A socket that was never connected, and a file, which is always ready.
    // SAFETY: the fd is new, and nothing else owns it.
    states.push(unsafe {
        OwnedFd::from_raw_fd(libc::socket(
            libc::AF_INET,
            libc::SOCK_STREAM | libc::SOCK_CLOEXEC,
            0,
        ))
    });
    states.push(OsFile::open("/dev/null").unwrap().into());
    // The loopback device delivers asynchronously.
    let all = Events::from_bits_retain(0x7fff);
    for _ in 0..600_000 {
        let wanted = [Events::IN, Events::PRI, Events::RDHUP];
        let arrived = (7..10).zip(wanted).all(|(at, wanted)| {
            let fd: &OwnedFd = &states[at];
            kernel_poll(&[(fd.as_raw_fd(), all)], 0).1[0].contains(wanted)
        });
        if arrived {
            return (states, peers);
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    panic!("the loopback does not deliver");
}

/// Objects of every kind in many states.
struct World {
    twins: Vec<Twin>,
    _peers: Vec<OwnedFd>,
}

impl World {
    fn new() -> Self {
        let (states, peers) = kernel_states();
        let mut twins: Vec<_> = [0, 1, u64::MAX - 1].map(Twin::counter).into();
        let sets: Vec<_> = [Events::IN, Events::OUT, Events::IN | Events::ET]
            .into_iter()
            .flat_map(|events| twins.iter().map(move |twin| Twin::set(twin, events)))
            .collect();
        let above: Vec<_> = sets.iter().map(|set| Twin::set(set, Events::IN)).collect();
        twins.extend(sets);
        twins.extend(above);
        twins.extend(states.iter().map(Twin::mirror));
        twins.extend(states.into_iter().map(Twin::kernel));
        World {
            twins,
            _peers: peers,
        }
    }
}

#[derive(Clone, Debug)]
enum Entry {
    Ignored,
    Closed,
    Open(prop::sample::Index),
}

/// An fd that no process has open.
const CLOSED: i32 = i32::MAX;

fn entry() -> impl Strategy<Value = Entry> {
    prop_oneof![
        1 => Just(Entry::Ignored),
        1 => Just(Entry::Closed),
        18 => any::<prop::sample::Index>().prop_map(Entry::Open),
    ]
}

fn events() -> impl Strategy<Value = Events> {
    let bit = prop::sample::select(vec![0, 1, 2, 4, 0x40, 0x80, 0x100, 0x200, 0x2000, 8, 0x10]);
    prop_oneof![
        4 => prop::collection::vec(bit, 1..3).prop_map(|bits| bits.into_iter().fold(0, |a, b| a | b)),
        1 => 0..0x1_0000_u32,
    ]
    .prop_map(Events::from_bits_retain)
}

#[test]
fn poll_agrees_with_the_kernel_on_any_list_in_any_state() {
    let world = World::new();
    let list = prop::collection::vec((entry(), events()), 0..45);
    proptest!(config(2_000, "poll"), |(list in list, limit in 0..2_i32, masked: bool)| {
        let mut fds = Vec::new();
        let mut kernel = Vec::new();
        for (entry, events) in &list {
            let (fd, raw) = match entry {
                Entry::Ignored => (PollFd::ignored(), -1),
                Entry::Closed => (PollFd::not_open(), CLOSED),
                Entry::Open(at) => {
                    let twin = at.get(&world.twins);
                    (PollFd::from_target(twin.target(), *events), twin.fd())
                }
            };
            fds.push(fd);
            kernel.push((raw, *events));
        }
        let timeout = Duration::from_millis(limit.unsigned_abs().into());
        let ready = if masked {
            upoll::ppoll(&mut fds, timeout, &SigSet::empty())
        } else {
            upoll::poll(&mut fds, timeout)
        };
        prop_assert_eq!((ready, masks(&fds)), kernel_poll(&kernel, limit));
    });
}

/// Fds below `BASE` are left to other code that opens fds. From there on they are placed by
/// [`World::at_fds`].
const BASE: i32 = 600;

impl World {
    /// Returns the same world with its fds from [`BASE`] on.
    fn at_fds() -> Self {
        let mut world = World::new();
        for (fd, twin) in (BASE..).zip(&mut world.twins) {
            // SAFETY: the fd is free, and owned by the twin from then on.
            twin.kernel = unsafe {
                assert_eq!(libc::dup2(twin.fd(), fd), fd);
                OwnedFd::from_raw_fd(fd)
            };
        }
        world
    }

    fn resolve(&self, fd: i32) -> Option<Target<'_>> {
        let at = usize::try_from(fd - BASE).ok()?;
        Some(self.twins.get(at)?.target())
    }
}

#[test]
fn select_agrees_with_the_kernel_on_any_sets_in_any_state() {
    let world = World::at_fds();
    let count = i32::try_from(world.twins.len()).unwrap();
    let end = BASE + count;
    let set = prop::option::weighted(
        0.8,
        prop::collection::vec(0..count, 0..8).prop_map(move |fds| {
            let fds = fds.into_iter().map(|fd| BASE + fd);
            fds.collect::<FdSet>()
        }),
    );
    // The kernel's fd table extends beyond `end`, so the kernel checks these fds, which are not
    // open.
    let sets = [set.clone(), set.clone(), set];
    let closed = prop::option::weighted(0.1, (0..3_usize, end..end + 4));
    let n = prop_oneof![4 => Just(end + 8), 3 => BASE..end + 4, 1 => -2..2_i32];
    proptest!(config(4_000, "poll"), |(sets in sets, n in n, closed in closed, micros in 0..2_u64)| {
        let mut sets = sets;
        if let Some((which, fd)) = closed
            && let Some(set) = &mut sets[which]
        {
            set.insert(fd);
        }
        let limit = Duration::from_micros(micros);
        let mut ours = sets.clone();
        let ready = {
            let [read, write, except] = ours.each_mut().map(Option::as_mut);
            let resolve = |fd| world.resolve(fd);
            upoll::select(n, read, write, except, &mut limit.into(), resolve)
        };
        prop_assert_eq!((ready, ours), kernel_select(n, &sets, limit));
    });
}

/// Compares `poll` of the kernel fds with `poll` of the user-level objects.
fn same_poll(list: &[(&Twin, Events)]) -> (Result<usize, Errno>, Vec<Events>) {
    let mut fds: Vec<_> = list
        .iter()
        .map(|(twin, events)| PollFd::from_target(twin.target(), *events))
        .collect();
    let entries: Vec<_> = list.iter().map(|(twin, at)| (twin.fd(), *at)).collect();
    let ready = upoll::poll(&mut fds, Duration::ZERO);
    let ours = (ready, masks(&fds));
    assert_eq!(ours, kernel_poll(&entries, 0));
    ours
}

#[test]
fn err_and_hup_are_reported_without_being_asked_for() {
    let ends = [pipe().0.into(), OwnedFd::from(pipe().1)];
    for (end, shown) in ends.iter().zip([Events::HUP, Events::ERR]) {
        let (ready, masks) = same_poll(&[(&Twin::mirror(end), Events::empty())]);
        assert_eq!((ready, masks), (Ok(1), vec![shown]));
    }
}

#[test]
fn an_object_listed_twice_counts_twice() {
    let twin = Twin::counter(1);
    let (ready, masks) = same_poll(&[(&twin, Events::IN), (&twin, Events::OUT)]);
    assert_eq!((ready, masks), (Ok(2), vec![Events::IN, Events::OUT]));
}

#[test]
fn what_is_not_open_is_ready_at_once_with_nval_and_what_is_ignored_never() {
    let counter = EventFd::new(0).unwrap();
    let mut fds = [
        PollFd::new(&counter, Events::IN),
        PollFd::not_open(),
        PollFd::ignored(),
    ];
    let ready = upoll::poll(&mut fds, None);
    let idle = Twin::counter(0);
    let kernel = kernel_poll(
        &[
            (idle.fd(), Events::IN),
            (CLOSED, Events::IN),
            (-1, Events::IN),
        ],
        -1,
    );
    assert_eq!((ready, masks(&fds)), kernel);
    assert_eq!(kernel.0, Ok(1));
}

#[test]
fn every_revents_is_written_whatever_the_last_call_left() {
    let counter = EventFd::new(1).unwrap();
    let mut fds = [PollFd::new(&counter, Events::IN)];
    assert_eq!(upoll::poll(&mut fds, None), Ok(1));
    counter.read().unwrap();
    assert_eq!(upoll::poll(&mut fds, Duration::from_millis(1)), Ok(0));
    assert_eq!(masks(&fds), [Events::empty()]);
    let (_, kernel) = kernel_poll(&[(Twin::counter(0).fd(), Events::IN)], 1);
    assert_eq!(masks(&fds), kernel);
}

/// An object that records whether each `poll` registered. It is ready from its `after`th `poll` on.
struct Logging {
    name: char,
    log: Arc<Mutex<Vec<(char, bool)>>>,
    looks: std::sync::atomic::AtomicUsize,
    after: usize,
    queue: WaitQueue,
}

impl Pollable for Logging {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        let registers = format!("{table:?}").contains("true");
        table.register(&self.queue);
        self.log.lock().unwrap().push((self.name, registers));
        let look = self
            .looks
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if look >= self.after {
            Events::IN
        } else {
            Events::empty()
        }
    }
}

#[test]
fn nothing_is_registered_without_a_wait_nor_after_the_first_that_is_ready() {
    let looks = |afters: [usize; 3], limit: Duration| {
        let log = Arc::new(Mutex::new(Vec::new()));
        let objects: Vec<_> = ['a', 'b', 'c']
            .into_iter()
            .zip(afters)
            .map(|(name, after)| {
                File::new(Logging {
                    name,
                    log: log.clone(),
                    looks: 0.into(),
                    after,
                    queue: WaitQueue::new(),
                })
            })
            .collect();
        let mut fds: Vec<_> = objects
            .iter()
            .map(|object| PollFd::new(object, Events::IN))
            .collect();
        let ready = upoll::poll(&mut fds, limit).unwrap();
        (ready, std::mem::take(&mut *log.lock().unwrap()))
    };
    let (idle, at_once, late) = (usize::MAX, 0, 1);
    let look = vec![('a', false), ('b', false), ('c', false)];
    assert_eq!(looks([idle; 3], Duration::ZERO), (0, look.clone()));
    assert_eq!(looks([idle, at_once, idle], LONG), (1, look.clone()));
    let then = [('a', true), ('b', true), ('c', false)];
    assert_eq!(
        looks([idle, late, idle], LONG),
        (1, [look, then.to_vec()].concat())
    );
}

#[test]
fn a_limit_is_never_early_and_what_is_left_is_written() {
    let counter = EventFd::new(0).unwrap();
    let (reader, _writer) = pipe();
    let mixed = |fd: i32| match fd {
        0 => Some(counter.target()),
        _ => Some(reader.target()),
    };
    for (clock, members) in [Clock::Monotonic, Clock::Realtime]
        .into_iter()
        .flat_map(|clock| [0..0, 0..1, 1..2, 0..2].map(|members| (clock, members)))
    {
        for micros in [1, 50, 1_000, 20_000] {
            let limit = Duration::from_micros(micros);
            let mut set = FdSet::from_iter(members.clone());
            let mut timeout = Timeout::after(clock, limit);
            let begun = Instant::now();
            let ready = upoll::select(2, Some(&mut set), None, None, &mut timeout, mixed);
            assert!(begun.elapsed() >= limit);
            assert_eq!(ready, Ok(0));
            assert_eq!(timeout, Timeout::after(clock, Duration::ZERO));
            assert_eq!(set, FdSet::new());
        }
    }
    // If an entry is ready at once, nearly all of the limit is left, as in Linux. Without a limit
    // none is written.
    counter.write(1).unwrap();
    let mut left = libc::timeval {
        tv_sec: LONG.as_secs().cast_signed(),
        tv_usec: 0,
    };
    let mut timeout = Timeout::from(LONG);
    let mut set = FdSet::from_iter([0]);
    let ready = upoll::select(1, Some(&mut set), None, None, &mut timeout, mixed);
    assert_eq!(ready, Ok(1));
    let null = std::ptr::null_mut();
    let mut words = [0_u64; 16];
    let twin = Twin::counter(1);
    let fd = usize::try_from(twin.fd()).unwrap();
    words[fd / 64] |= 1 << (fd % 64);
    // SAFETY: the set holds 1024 fds, and the limit is the call's to write.
    let ready = unsafe {
        libc::select(
            twin.fd() + 1,
            words.as_mut_ptr().cast(),
            null,
            null,
            &raw mut left,
        )
    };
    assert_eq!(ready, 1);
    let limit = timeout.limit().unwrap();
    for left in [
        limit.as_micros(),
        (left.tv_sec * 1_000_000 + left.tv_usec)
            .cast_unsigned()
            .into(),
    ] {
        assert!((LONG.as_micros() / 2..LONG.as_micros()).contains(&left));
    }
    for unchanged in [Timeout::NEVER, Timeout::NOW] {
        let mut timeout = unchanged;
        let ready = upoll::select(1, Some(&mut set), None, None, &mut timeout, mixed);
        assert_eq!((ready, timeout), (Ok(1), unchanged));
    }
}

#[test]
fn fds_that_come_to_stand_for_another_descriptor_during_a_select_do_no_harm() {
    let (near, _writer) = pipe();
    // SAFETY: no other code in this process uses or owns the fd.
    let far = unsafe {
        assert_eq!(libc::dup2(near.as_raw_fd(), BASE + 400), BASE + 400);
        OwnedFd::from_raw_fd(BASE + 400)
    };
    let counter = EventFd::new(0).unwrap();
    for far_first in [false, true] {
        let turn = std::cell::Cell::new(far_first);
        let mut set = FdSet::from_iter([0, 1]);
        let mut limit = Timeout::from(Duration::from_millis(1));
        let ready = upoll::select(2, Some(&mut set), None, None, &mut limit, |fd| {
            Some(match fd {
                0 => counter.target(),
                _ if turn.replace(!turn.get()) => far.target(),
                _ => near.target(),
            })
        });
        assert_eq!((ready, set), (Ok(0), FdSet::new()));
    }
}
