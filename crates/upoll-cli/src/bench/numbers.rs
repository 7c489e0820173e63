//! The cost of fds: calls on objects, compared with the same calls by fd through the C interface,
//! on objects in the same state.

use std::ffi::c_int;
use std::hint::black_box;
use std::mem;
use std::ptr;

use anyhow::{Result, ensure};
use serde::Serialize;
use upoll::{CtlCommand, Epoll, Event, EventFd, Events, FdSet, PollFd, Source, Timeout};
use upoll_fds::EpollCtlCmd;

use super::measure::{Effort, Series, Side, Spread, interleave, side};

pub(super) const NAME: &str = "numbers";
pub(super) const NAMES: [&str; 1] = [NAME];

/// The most nanoseconds that a call by fd may add.
const TARGET: f64 = 5.0;

/// An operation in both ways.
#[derive(Serialize)]
pub(super) struct Numbered {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    /// The number of calls by fd in one operation.
    pub(super) calls: u32,
    /// Per operation on objects.
    pub(super) object_nanoseconds: Spread,
    /// Per operation by fd.
    pub(super) number_nanoseconds: Spread,
    /// The nanoseconds that each call by fd adds, batch by batch. They include the noise of the
    /// batches.
    pub(super) added_nanoseconds: Spread,
    pub(super) target_nanoseconds: Option<f64>,
    pub(super) reached: Option<bool>,
    object_batches: Series,
    number_batches: Series,
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
    operation("eventfd write + read", 2, write_read),
    operation("wait(0), nothing ready", 1, || waits(0)),
    operation("wait(0), 1 ready", 1, || waits(1)),
    operation("ctl MOD", 1, modify),
    operation("poll(0) of 1 object, idle", 1, poll_one),
    operation("write + wait(0) + read", 3, write_wait_read),
    operation("ctl ADD + DEL", 2, add_delete),
    operation("select(0) of 1 object, idle", 1, select_one),
    operation("pipe write 64 B + read", 2, pipe),
    // Each change looks up an fd of its own, so the call has no target.
    Operation {
        has_target: false,
        ..operation("batch of 64 MODs", 1, batch)
    },
];

pub(super) fn measure(effort: Effort) -> Result<Vec<Numbered>> {
    let rows = OPERATIONS.into_iter().map(|operation| {
        let series = interleave(&mut (operation.sides)()?, effort);
        let [object, number] = [&series[0], &series[1]];
        let pairs = object.nanoseconds.iter().zip(&number.nanoseconds);
        let calls = f64::from(operation.calls);
        let added = Spread::of(
            pairs
                .map(|(object, number)| (number - object) / calls)
                .collect(),
        );
        let target = operation.has_target.then_some(TARGET);
        Ok(Numbered {
            name: NAME,
            what: operation.what,
            calls: operation.calls,
            object_nanoseconds: object.spread(),
            number_nanoseconds: number.spread(),
            added_nanoseconds: added,
            target_nanoseconds: target,
            reached: target.map(|target| added.median <= target),
            object_batches: object.clone(),
            number_batches: number.clone(),
        })
    });
    rows.collect()
}

/// An fd that is closed on drop.
struct Number(c_int);

impl Number {
    fn new(fd: c_int) -> Result<Self> {
        ensure!(fd >= 0, std::io::Error::last_os_error());
        Ok(Number(fd))
    }

    fn eventfd(initial: u32) -> Result<Self> {
        Self::new(upoll_c::upoll_eventfd(initial, 0))
    }

    /// A method, because a closure that uses the field would move it alone out of `self`, and drop
    /// the rest.
    fn fd(&self) -> c_int {
        self.0
    }

    /// Returns a set that watches `counter`.
    fn watching(counter: &Number) -> Result<Self> {
        let set = Self::new(upoll_c::upoll_epoll_create1(0))?;
        let event = Event::new(Events::IN, 1);
        // SAFETY: the event is live.
        let done = unsafe { upoll_c::upoll_epoll_ctl(set.0, 1, counter.fd(), &raw const event) };
        ensure!(done == 0, std::io::Error::last_os_error());
        Ok(set)
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        upoll_c::upoll_close(self.0);
    }
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

/// Writes to a counter by fd.
#[inline]
fn write_one(write: Write, number: &Number) {
    let one = black_box(1_u64);
    // SAFETY: the value is live.
    let written = unsafe { write(number.fd(), (&raw const one).cast(), size_of::<u64>()) };
    assert_eq!(written, 8);
}

/// Reads a counter by fd.
#[inline]
fn read_count(read: Read, number: &Number) {
    let mut value = 0_u64;
    // SAFETY: the value is live.
    let found = unsafe { read(number.fd(), (&raw mut value).cast(), size_of::<u64>()) };
    assert_eq!(found, 8);
    black_box(value);
}

fn write_read() -> Result<[Side; 2]> {
    let (object, number) = (EventFd::new(0)?, Number::eventfd(0)?);
    let write = by_address!(upoll_write as Write);
    let read = by_address!(upoll_read as Read);
    Ok([
        side(move || {
            object.write(black_box(1)).expect("write");
            black_box(object.read().expect("read"));
        }),
        side(move || {
            write_one(write, &number);
            read_count(read, &number);
        }),
    ])
}

/// Room for reports on both sides.
const ROOM: usize = 16;

/// Returns a set that watches a counter, as objects.
fn watched(initial: u32) -> Result<(Epoll, EventFd)> {
    let (set, counter) = (Epoll::new()?, EventFd::new(initial)?);
    set.add(&counter, Event::new(Events::IN, 1))?;
    Ok((set, counter))
}

/// Waits with a zero timeout for `ready` reports.
fn waits(ready: u32) -> Result<[Side; 2]> {
    let (set, counter) = watched(ready)?;
    let by_number = Number::eventfd(ready)?;
    let number = Number::watching(&by_number)?;
    let wait = by_address!(upoll_epoll_wait as Wait);
    let mut reports = [Event::default(); ROOM];
    let mut others = [Event::default(); ROOM];
    Ok([
        side(move || {
            let found = set.wait(&mut reports, Timeout::NOW).expect("wait");
            assert_eq!(found, ready as usize);
            black_box((&reports, &counter));
        }),
        side(move || {
            // SAFETY: there is room for `ROOM` events.
            let found = unsafe { wait(number.fd(), others.as_mut_ptr(), ROOM as c_int, 0) };
            assert_eq!(found, ready.cast_signed());
            black_box((&others, &by_number));
        }),
    ])
}

fn write_wait_read() -> Result<[Side; 2]> {
    let (set, counter) = watched(0)?;
    let by_number = Number::eventfd(0)?;
    let number = Number::watching(&by_number)?;
    let write = by_address!(upoll_write as Write);
    let read = by_address!(upoll_read as Read);
    let wait = by_address!(upoll_epoll_wait as Wait);
    let mut reports = [Event::default(); ROOM];
    let mut others = [Event::default(); ROOM];
    Ok([
        side(move || {
            counter.write(black_box(1)).expect("write");
            assert_eq!(set.wait(&mut reports, Timeout::NOW).expect("wait"), 1);
            black_box(counter.read().expect("read"));
        }),
        side(move || {
            write_one(write, &by_number);
            // SAFETY: there is room for `ROOM` events.
            let found = unsafe { wait(number.fd(), others.as_mut_ptr(), ROOM as c_int, 0) };
            assert_eq!(found, 1);
            read_count(read, &by_number);
        }),
    ])
}

fn modify() -> Result<[Side; 2]> {
    let (set, counter) = watched(0)?;
    let by_number = Number::eventfd(0)?;
    let number = Number::watching(&by_number)?;
    let ctl = by_address!(upoll_epoll_ctl as Ctl);
    Ok([
        side(move || {
            let interest = Event::new(black_box(Events::IN), 1);
            set.modify(&counter, interest).expect("MOD");
        }),
        side(move || {
            let interest = Event::new(black_box(Events::IN), 1);
            // SAFETY: the event is live.
            let done = unsafe { ctl(number.fd(), 3, by_number.fd(), &raw const interest) };
            assert_eq!(done, 0);
        }),
    ])
}

fn poll_one() -> Result<[Side; 2]> {
    let (object, number) = (EventFd::new(0)?, Number::eventfd(0)?);
    let poll = by_address!(upoll_poll as Poll);
    Ok([
        side(move || {
            let mut fds = [PollFd::new(&object, Events::IN)];
            let ready = upoll::poll(black_box(&mut fds), Timeout::NOW);
            assert_eq!(ready.expect("poll"), 0);
        }),
        side(move || {
            let mut fds = [libc::pollfd {
                fd: number.fd(),
                events: libc::POLLIN,
                revents: 0,
            }];
            // SAFETY: the entry is live.
            let ready = unsafe { poll(black_box(fds.as_mut_ptr()), 1, 0) };
            assert_eq!(ready, 0);
        }),
    ])
}

fn add_delete() -> Result<[Side; 2]> {
    let (set, counter) = (Epoll::new()?, EventFd::new(0)?);
    let by_number = Number::eventfd(0)?;
    let number = Number::new(upoll_c::upoll_epoll_create1(0))?;
    let ctl = by_address!(upoll_epoll_ctl as Ctl);
    Ok([
        side(move || {
            let interest = Event::new(black_box(Events::IN), 1);
            set.add(&counter, interest).expect("ADD");
            set.delete(&counter).expect("DEL");
        }),
        side(move || {
            let interest = Event::new(black_box(Events::IN), 1);
            for op in [1, 2] {
                // SAFETY: the event is live.
                let done = unsafe { ctl(number.fd(), op, by_number.fd(), &raw const interest) };
                assert_eq!(done, 0);
            }
        }),
    ])
}

fn select_one() -> Result<[Side; 2]> {
    let (object, number) = (EventFd::new(0)?, Number::eventfd(0)?);
    let select = by_address!(upoll_select as Select);
    let fits = usize::try_from(number.fd()).is_ok_and(|fd| fd < libc::FD_SETSIZE);
    ensure!(fits, "the number does not fit an fd_set");
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
                libc::FD_SET(number.fd(), &raw mut readable);
                let end = black_box(number.fd() + 1);
                select(end, &raw mut readable, none, none, &raw mut limit)
            };
            assert_eq!(ready, 0);
        }),
    ])
}

fn pipe() -> Result<[Side; 2]> {
    let (reader, writer) = upoll::pipe()?;
    let mut numbers = [-1; 2];
    // SAFETY: there is room for two fds.
    let made = unsafe { upoll_c::upoll_pipe(&raw mut numbers) };
    ensure!(made == 0, std::io::Error::last_os_error());
    let [read_end, write_end] = numbers.map(Number);
    let write = by_address!(upoll_write as Write);
    let read = by_address!(upoll_read as Read);
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
                assert_eq!(write(write_end.fd(), from, 64), 64);
                assert_eq!(read(read_end.fd(), buffer.as_mut_ptr(), 64), 64);
            }
            black_box(&buffer);
        }),
    ])
}

fn batch() -> Result<[Side; 2]> {
    const CHANGES: usize = 64;
    let set = Epoll::new()?;
    let number = Number::new(upoll_c::upoll_epoll_create1(0))?;
    let (mut objects, mut numbers, mut commands) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..CHANGES {
        let object = EventFd::new(0)?;
        set.add(&object, Event::new(Events::IN, 1))?;
        objects.push(object);
        let counter = Number::eventfd(0)?;
        commands.push(EpollCtlCmd {
            flags: 0,
            op: 1,
            fd: counter.fd(),
            events: Events::IN.bits(),
            data: 1,
            result: 0,
        });
        numbers.push(counter);
    }
    let ctl_batch = by_address!(upoll_epoll_ctl_batch as CtlBatch);
    let mut by_number = move |op| {
        for command in &mut commands {
            command.op = op;
        }
        // SAFETY: the commands are live.
        let done = unsafe { ctl_batch(number.fd(), 0, CHANGES as c_int, commands.as_mut_ptr()) };
        assert_eq!(done, CHANGES as c_int);
    };
    by_number(1);
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
            by_number(3);
            black_box(&numbers);
        }),
    ])
}
