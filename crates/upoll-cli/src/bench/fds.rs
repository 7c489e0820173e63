//! The cost of fds: calls on objects, compared with the same calls by fd through the C interface,
//! on objects in the same state.

use std::ffi::c_int;
use std::hint::black_box;
use std::io;
use std::mem;
use std::ptr;

use anyhow::{Result, ensure};
use serde::Serialize;
use upoll::{
    CtlCommand, Epoll, Event, EventFd, EventFdFlags, Events, FdSet, PollFd, Source, Timeout,
};
use upoll_fds::EpollCtlCmd;

use super::calls::{self, add_delete, idle, modify, write_read, write_wait_read};
use super::measure::{Effort, Series, Side, Spread, interleave, side};
use super::set::{Counter, Set, watching};

pub(super) const NAME: &str = "fds";

/// The most nanoseconds that a call by fd may add.
const TARGET: f64 = 5.0;

/// An operation in both ways.
#[derive(Serialize)]
pub(super) struct ByFd {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    /// The number of calls by fd in one operation.
    pub(super) calls: u32,
    /// Per operation on objects.
    pub(super) object_nanoseconds: Spread,
    /// Per operation by fd.
    pub(super) fd_nanoseconds: Spread,
    /// The nanoseconds that each call by fd adds, batch by batch. They include the noise of the
    /// batches.
    pub(super) added_nanoseconds: Spread,
    pub(super) target_nanoseconds: Option<f64>,
    pub(super) reached: Option<bool>,
    object_batches: Series,
    fd_batches: Series,
}

struct Operation {
    what: &'static str,
    calls: u32,
    has_target: bool,
    /// The side on objects, and the side by fd.
    sides: fn() -> Result<[Side; 2]>,
}

const fn operation(what: &'static str, calls: u32, sides: fn() -> Result<[Side; 2]>) -> Operation {
    Operation {
        what,
        calls,
        has_target: true,
        sides,
    }
}

const OPERATIONS: [Operation; 10] = [
    operation("eventfd write + read", 2, || {
        Ok([write_read::<EventFd>()?, write_read::<Fd>()?])
    }),
    operation("wait(0), nothing ready", 1, || waits(0)),
    operation("wait(0), 1 ready", 1, || waits(1)),
    operation("ctl MOD", 1, || {
        Ok([modify::<Epoll, EventFd>()?, modify::<Fd, Fd>()?])
    }),
    operation("poll(0) of 1 object, idle", 1, poll_one),
    operation("write + wait(0) + read", 3, || {
        Ok([
            write_wait_read::<Epoll, EventFd>()?,
            write_wait_read::<Fd, Fd>()?,
        ])
    }),
    operation("ctl ADD + DEL", 2, || {
        Ok([add_delete::<Epoll, EventFd>()?, add_delete::<Fd, Fd>()?])
    }),
    operation("select(0) of 1 object, idle", 1, select_one),
    operation("pipe write 64 B + read", 2, pipe),
    // Each change looks up an fd of its own, so the call has no target.
    Operation {
        has_target: false,
        ..operation("batch of 64 MODs", 1, batch)
    },
];

pub(super) fn measure(effort: Effort) -> Result<Vec<ByFd>> {
    let rows = OPERATIONS.into_iter().map(|operation| {
        let series = interleave(&mut (operation.sides)()?, effort);
        let [object, fd] = [&series[0], &series[1]];
        let pairs = object.nanoseconds.iter().zip(&fd.nanoseconds);
        let calls = f64::from(operation.calls);
        let added = Spread::of(pairs.map(|(object, fd)| (fd - object) / calls).collect());
        let target = operation.has_target.then_some(TARGET);
        Ok(ByFd {
            name: NAME,
            what: operation.what,
            calls: operation.calls,
            object_nanoseconds: object.spread(),
            fd_nanoseconds: fd.spread(),
            added_nanoseconds: added,
            target_nanoseconds: target,
            reached: target.map(|target| added.median <= target),
            object_batches: object.clone(),
            fd_batches: fd.clone(),
        })
    });
    rows.collect()
}

/// Hides which function the address is of, so that the compiler cannot inline it, as in a C program.
macro_rules! by_address {
    ($function:ident as $kind:ty) => {
        black_box(upoll_c::$function as $kind)
    };
}

type Write = unsafe extern "C" fn(c_int, *const u8, usize) -> isize;
type Read = unsafe extern "C" fn(c_int, *mut u8, usize) -> isize;
type Wait = unsafe extern "C" fn(c_int, *mut Event, c_int, c_int) -> c_int;
type Ctl = unsafe extern "C" fn(c_int, c_int, c_int, *const Event) -> c_int;
type Poll = unsafe extern "C" fn(*mut libc::pollfd, libc::nfds_t, c_int) -> c_int;
type Select = unsafe extern "C" fn(
    c_int,
    *mut libc::fd_set,
    *mut libc::fd_set,
    *mut libc::fd_set,
    *mut libc::timeval,
) -> c_int;
type CtlBatch = unsafe extern "C" fn(c_int, c_int, c_int, *mut EpollCtlCmd) -> c_int;

/// The fd of an object, which is closed on drop, and the functions that are called with it.
struct Fd {
    fd: c_int,
    write: Write,
    read: Read,
    wait: Wait,
    ctl: Ctl,
}

impl Fd {
    fn new(fd: c_int) -> io::Result<Self> {
        match fd {
            0.. => Ok(Fd {
                fd,
                write: by_address!(upoll_write as Write),
                read: by_address!(upoll_read as Read),
                wait: by_address!(upoll_epoll_wait as Wait),
                ctl: by_address!(upoll_epoll_ctl as Ctl),
            }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// A method, because a closure that uses the field would move it alone out of `self`, and drop
    /// the rest.
    fn raw(&self) -> c_int {
        self.fd
    }

    #[inline]
    fn change(&self, op: c_int, target: &Fd, events: Events, data: u64) -> io::Result<()> {
        let interest = Event::new(events, data);
        // SAFETY: the event is live.
        match unsafe { (self.ctl)(self.fd, op, target.fd, &raw const interest) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    #[inline]
    fn epoll_wait(&self, reports: &mut [Event], milliseconds: c_int) -> io::Result<usize> {
        let room = c_int::try_from(reports.len()).unwrap_or(c_int::MAX);
        // SAFETY: there is room for so many events.
        let found = unsafe { (self.wait)(self.fd, reports.as_mut_ptr(), room, milliseconds) };
        usize::try_from(found).map_err(|_| io::Error::last_os_error())
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        upoll_c::upoll_close(self.fd);
    }
}

impl Counter for Fd {
    fn new(initial: u32, flags: EventFdFlags) -> io::Result<Self> {
        Fd::new(upoll_c::upoll_eventfd(initial, flags.bits().cast_signed()))
    }

    #[inline]
    fn write(&self) {
        let one = black_box(1_u64);
        // SAFETY: the value is live.
        let written = unsafe { (self.write)(self.fd, (&raw const one).cast(), size_of::<u64>()) };
        assert_eq!(written, 8);
    }

    #[inline]
    fn read(&self) -> u64 {
        let mut value = 0_u64;
        // SAFETY: the value is live.
        let found = unsafe { (self.read)(self.fd, (&raw mut value).cast(), size_of::<u64>()) };
        assert_eq!(found, 8);
        value
    }

    fn try_read(&self) -> bool {
        let mut value = 0_u64;
        // SAFETY: the value is live.
        unsafe { (self.read)(self.fd, (&raw mut value).cast(), size_of::<u64>()) == 8 }
    }
}

impl Set<Fd> for Fd {
    type Report = Event;

    const ROOM: Event = <Epoll as Set<EventFd>>::ROOM;

    fn open() -> io::Result<Self> {
        Fd::new(upoll_c::upoll_epoll_create1(0))
    }

    #[inline]
    fn add(&self, counter: &Fd, events: Events, data: u64) -> io::Result<()> {
        self.change(libc::EPOLL_CTL_ADD, counter, events, data)
    }

    #[inline]
    fn modify(&self, counter: &Fd, events: Events, data: u64) -> io::Result<()> {
        self.change(libc::EPOLL_CTL_MOD, counter, events, data)
    }

    #[inline]
    fn delete(&self, counter: &Fd) -> io::Result<()> {
        self.change(libc::EPOLL_CTL_DEL, counter, Events::empty(), 0)
    }

    fn add_set(&self, inner: &Fd, events: Events, data: u64) -> io::Result<()> {
        self.add(inner, events, data)
    }

    fn delete_set(&self, inner: &Fd) -> io::Result<()> {
        self.delete(inner)
    }

    fn wait(&self, reports: &mut [Event]) -> io::Result<usize> {
        self.epoll_wait(reports, -1)
    }

    #[inline]
    fn harvest(&self, reports: &mut [Event]) -> io::Result<usize> {
        self.epoll_wait(reports, 0)
    }

    fn data(report: &Event) -> u64 {
        report.data()
    }
}

/// Waits with a limit of 0 in a set of one eventfd, which is ready or idle.
fn waits(initial: u32) -> Result<[Side; 2]> {
    Ok([
        calls::waits::<Epoll, EventFd>(1, initial, Events::IN)?,
        calls::waits::<Fd, Fd>(1, initial, Events::IN)?,
    ])
}

fn poll_one() -> Result<[Side; 2]> {
    let (object, counter) = (EventFd::new(0)?, idle::<Fd>()?);
    let poll = by_address!(upoll_poll as Poll);
    Ok([
        side(move || {
            let mut fds = [PollFd::new(&object, Events::IN)];
            let ready = upoll::poll(black_box(&mut fds), Timeout::NOW);
            assert_eq!(ready.expect("poll"), 0);
        }),
        side(move || {
            let mut fds = [libc::pollfd {
                fd: counter.raw(),
                events: libc::POLLIN,
                revents: 0,
            }];
            // SAFETY: the entry is live.
            let ready = unsafe { poll(black_box(fds.as_mut_ptr()), 1, 0) };
            assert_eq!(ready, 0);
        }),
    ])
}

fn select_one() -> Result<[Side; 2]> {
    let (object, counter) = (EventFd::new(0)?, idle::<Fd>()?);
    let select = by_address!(upoll_select as Select);
    let fits = usize::try_from(counter.fd).is_ok_and(|fd| fd < libc::FD_SETSIZE);
    ensure!(fits, "the fd does not fit an fd_set");
    Ok([
        side(move || {
            let mut readable = FdSet::new();
            readable.insert(0);
            let resolve = |_| Some(object.target());
            let mut limit = Timeout::NOW;
            let readable = Some(&mut readable);
            let ready = upoll::select(black_box(1), readable, None, None, &mut limit, resolve);
            assert_eq!(ready.expect("select"), 0);
        }),
        side(move || {
            // SAFETY: both are plain numbers, for which zero is a value.
            let (mut readable, mut limit): (libc::fd_set, libc::timeval) =
                unsafe { (mem::zeroed(), mem::zeroed()) };
            let none = ptr::null_mut();
            // SAFETY: the fd is in the set, and set and limit are live.
            let ready = unsafe {
                libc::FD_SET(counter.raw(), &raw mut readable);
                let end = black_box(counter.raw() + 1);
                select(end, &raw mut readable, none, none, &raw mut limit)
            };
            assert_eq!(ready, 0);
        }),
    ])
}

fn pipe() -> Result<[Side; 2]> {
    let (reader, writer) = upoll::pipe()?;
    let mut fds = [-1; 2];
    // SAFETY: there is room for two fds.
    let made = unsafe { upoll_c::upoll_pipe(&raw mut fds) };
    ensure!(made == 0, io::Error::last_os_error());
    let (read_end, write_end) = (Fd::new(fds[0])?, Fd::new(fds[1])?);
    let bytes = [7_u8; 64];
    Ok([
        side(move || {
            writer.write(black_box::<&[u8; 64]>(&bytes)).expect("write");
            let mut buffer = [0; 64];
            assert_eq!(reader.read(&mut buffer).expect("read"), 64);
            black_box(&buffer);
        }),
        side(move || {
            let mut buffer = [0; 64];
            // SAFETY: both buffers are live.
            unsafe {
                let from = black_box::<&[u8; 64]>(&bytes).as_ptr();
                assert_eq!((write_end.write)(write_end.raw(), from, 64), 64);
                assert_eq!((read_end.read)(read_end.raw(), buffer.as_mut_ptr(), 64), 64);
            }
            black_box(&buffer);
        }),
    ])
}

fn batch() -> Result<[Side; 2]> {
    const CHANGES: usize = 64;
    let (set, objects) = watching::<Epoll, EventFd>(CHANGES, Events::IN, idle)?;
    let (by_fd, counters) = watching::<Fd, Fd>(CHANGES, Events::IN, idle)?;
    let modified = |counter: &Fd| EpollCtlCmd {
        flags: 0,
        op: libc::EPOLL_CTL_MOD,
        fd: counter.fd,
        events: Events::IN.bits(),
        data: 1,
        result: 0,
    };
    let mut commands: Vec<_> = counters.iter().map(modified).collect();
    let ctl_batch = by_address!(upoll_epoll_ctl_batch as CtlBatch);
    Ok([
        Box::new(move |times| {
            let interest = Event::new(Events::IN, 1);
            let commands = objects.iter().map(|one| CtlCommand::modify(one, interest));
            let mut commands: Vec<_> = commands.collect();
            for _ in 0..times {
                for command in &mut commands {
                    command.interest = Event::new(black_box(Events::IN), 1);
                }
                let done = set.ctl_batch(&mut commands).expect("a batch");
                assert_eq!(done, CHANGES);
            }
        }),
        side(move || {
            let (set, list) = (by_fd.raw(), commands.as_mut_ptr());
            // SAFETY: the commands are live.
            let done = unsafe { ctl_batch(set, 0, CHANGES as c_int, list) };
            assert_eq!(done, CHANGES as c_int);
            black_box(&counters);
        }),
    ])
}
