//! Streams of units: every kind of object that a set can watch, reduced to "send" and "receive".

use std::fmt;
use std::hint;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use anyhow::Result;
use fastrand::Rng;
use rustix::event::EventfdFlags;
use rustix::net::{AddressFamily, SocketFlags as KernelSocketFlags, SocketType};
use rustix::pipe::PipeFlags as KernelPipeFlags;
use upoll::{
    Descriptor, Errno, EventFd, EventFdFlags, Events, File, PipeFlags, PipeReader, PipeWriter,
    PollTable, Pollable, SocketFlags, Source, StreamSocket, Target, WaitQueue, pipe2, socketpair,
};

/// Highest count of a bounded counter, exclusive.
const MAXIMUM: u64 = 8;

/// Most units that one call sends.
pub(super) const MOST: u64 = 6;

/// The number of times that a thread checks whether one that it has woken polls a mailbox.
const LOOKS: usize = 200;

/// The kinds of channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Semaphore,
    Bounded,
    Shared,
    Pipe,
    Socket,
    Mailbox,
    KernelCounter,
    KernelPipe,
    KernelSocket,
    Descriptor,
}

impl Kind {
    const ALL: [Kind; 11] = [
        Kind::Counter,
        Kind::Semaphore,
        Kind::Bounded,
        Kind::Pipe,
        Kind::Socket,
        Kind::Shared,
        Kind::Mailbox,
        Kind::KernelCounter,
        Kind::KernelPipe,
        Kind::KernelSocket,
        Kind::Descriptor,
    ];

    pub(super) fn any(rng: &mut Rng) -> Self {
        rng.choice(Self::ALL).unwrap_or(Kind::Counter)
    }

    /// A user-level kind that one process has for itself.
    pub(super) fn any_private(rng: &mut Rng) -> Self {
        let kinds = [&Self::ALL[..5], &[Kind::Mailbox]].concat();
        rng.choice(kinds).unwrap_or(Kind::Counter)
    }

    /// A kind with a blocking read of upoll's own.
    pub(super) fn any_blocking(rng: &mut Rng) -> Self {
        rng.choice(&Self::ALL[..6])
            .copied()
            .unwrap_or(Kind::Counter)
    }
}

/// An object with a side that takes units and a side that returns each of them once.
pub(super) enum Channel {
    Counter(EventFd),
    Pipe(PipeReader, PipeWriter),
    Socket(StreamSocket, StreamSocket),
    Mailbox(File<Mailbox>),
    KernelCounter(OwnedFd),
    KernelStream(OwnedFd, OwnedFd),
    /// A kernel eventfd that a poll context keeps registered.
    Descriptor(Descriptor<OwnedFd>),
}

/// An object of this program's own, which publishes with the weakest order that is allowed, and whose poll may take
/// its time once it has looked.
pub(super) struct Mailbox {
    units: AtomicU64,
    is_filled: AtomicBool,
    arrived: WaitQueue,
    polls: AtomicU32,
}

impl Mailbox {
    fn send(&self, units: u64) {
        let before = self.units.fetch_add(units, Ordering::Relaxed);
        self.is_filled.store(true, Ordering::Release);
        match before % 3 {
            0 => self.arrived.wake(Events::IN),
            1 => self.arrived.wake_all(Events::IN),
            _ => self.arrived.wake_rotate(Events::IN),
        };
    }

    fn receive(&self) -> u64 {
        if !self.is_filled.swap(false, Ordering::SeqCst) {
            return 0;
        }
        self.units.swap(0, Ordering::SeqCst)
    }
}

impl Pollable for Mailbox {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.arrived);
        let is_filled = self.is_filled.load(Ordering::Acquire);
        let polls = self.polls.fetch_add(1, Ordering::Relaxed);
        for _ in 0..(polls % 64).saturating_sub(32) {
            hint::spin_loop();
        }
        if is_filled {
            Events::IN
        } else {
            Events::empty()
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Channel::Counter(counter) if counter.is_shared() => "shared eventfd",
            Channel::Counter(counter) if counter.is_semaphore() => "semaphore eventfd",
            Channel::Counter(counter) if counter.maximum() == MAXIMUM => "bounded eventfd",
            Channel::Counter(_) => "eventfd",
            Channel::Pipe(..) => "pipe",
            Channel::Socket(..) => "socketpair",
            Channel::Mailbox(_) => "object of the program's own",
            Channel::KernelCounter(_) => "kernel eventfd",
            Channel::KernelStream(..) => "kernel pipe or socketpair",
            Channel::Descriptor(_) => "kernel eventfd with an identity",
        })
    }
}

impl Channel {
    pub(super) fn new(kind: Kind) -> Result<Self> {
        let semaphore = EventFdFlags::SEMAPHORE;
        Ok(match kind {
            Kind::Counter => Channel::Counter(EventFd::new(0)?),
            Kind::Semaphore => Channel::Counter(EventFd::with_flags(0, semaphore)?),
            Kind::Bounded => {
                let counter = EventFd::new(0)?;
                counter.set_maximum(MAXIMUM)?;
                Channel::Counter(counter)
            }
            Kind::Shared => Channel::Counter(EventFd::shared(0, EventFdFlags::empty())?),
            Kind::Pipe => {
                let (reader, writer) = pipe2(PipeFlags::empty())?;
                Channel::Pipe(reader, writer)
            }
            Kind::Socket => {
                let (reader, writer) = socketpair(SocketFlags::empty())?;
                Channel::Socket(reader, writer)
            }
            Kind::Mailbox => Channel::Mailbox(File::new(Mailbox {
                units: AtomicU64::new(0),
                is_filled: AtomicBool::new(false),
                arrived: WaitQueue::new(),
                polls: AtomicU32::new(0),
            })),
            Kind::KernelCounter => Channel::KernelCounter(kernel_counter()?),
            Kind::Descriptor => Channel::Descriptor(Descriptor::new(kernel_counter()?)),
            Kind::KernelPipe => {
                let flags = KernelPipeFlags::NONBLOCK | KernelPipeFlags::CLOEXEC;
                let (reader, writer) = rustix::pipe::pipe_with(flags)?;
                Channel::KernelStream(reader, writer)
            }
            Kind::KernelSocket => {
                let flags = KernelSocketFlags::NONBLOCK | KernelSocketFlags::CLOEXEC;
                let (reader, writer) =
                    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
                Channel::KernelStream(reader, writer)
            }
        })
    }

    /// Sends up to [`MOST`] units without blocking and returns how many were accepted.
    pub(super) fn send(&self, units: u64) -> u64 {
        let bytes = &[b'u'; MOST as usize][..units as usize];
        match self {
            Channel::Counter(counter) => all_or_none(counter.try_write(units).is_ok(), units),
            Channel::Pipe(_, writer) => length(writer.try_write(bytes)),
            Channel::Socket(_, writer) => length(writer.try_write(bytes)),
            Channel::Mailbox(mailbox) => {
                mailbox.send(units);
                units
            }
            Channel::KernelCounter(counter) => write_to(counter.as_fd(), units),
            Channel::Descriptor(counter) => write_to(counter.as_fd(), units),
            Channel::KernelStream(_, writer) => length(rustix::io::write(writer, bytes)),
        }
    }

    /// Sends units, blocking while there is no room if the object has such a call, and returns how
    /// many were accepted.
    pub(super) fn send_blocking(&self, units: u64) -> u64 {
        match self {
            Channel::Counter(counter) => all_or_none(counter.write(units).is_ok(), units),
            _ => self.send(units),
        }
    }

    /// Receives some units without blocking; returns 0 if there are none.
    pub(super) fn receive(&self) -> u64 {
        let mut bytes = [0; 5];
        match self {
            Channel::Counter(counter) => counter.try_read().unwrap_or(0),
            Channel::Pipe(reader, _) => length(reader.try_read(&mut bytes)),
            Channel::Socket(reader, _) => length(reader.try_read(&mut bytes)),
            Channel::Mailbox(mailbox) => mailbox.receive(),
            Channel::KernelCounter(counter) => read_from(counter.as_fd()),
            Channel::Descriptor(counter) => read_from(counter.as_fd()),
            Channel::KernelStream(reader, _) => length(rustix::io::read(reader, &mut bytes)),
        }
    }

    /// Receives units, blocking until there are some. Returns 0 if a signal handler ran.
    pub(super) fn receive_blocking(&self) -> u64 {
        let mut bytes = [0; 5];
        match self {
            Channel::Counter(counter) => counter.read().unwrap_or(0),
            Channel::Pipe(reader, _) => length(reader.read(&mut bytes)),
            Channel::Socket(reader, _) => length(reader.read(&mut bytes)),
            Channel::Mailbox(_)
            | Channel::KernelCounter(_)
            | Channel::KernelStream(..)
            | Channel::Descriptor(_) => self.receive(),
        }
    }

    /// Wakes waiters, and has nothing for them. Where that can be seen, one of them is looking by then, if it has
    /// come soon. Returns false if one of them has received a unit still.
    pub(super) fn disturb(&self) -> bool {
        match self {
            Channel::Mailbox(mailbox) => {
                let polls = mailbox.polls.load(Ordering::Relaxed);
                mailbox.arrived.wake(Events::IN);
                for _ in 0..LOOKS {
                    if mailbox.polls.load(Ordering::Relaxed) != polls {
                        break;
                    }
                    hint::spin_loop();
                }
                true
            }
            _ => self.send(1) == self.drain(),
        }
    }

    /// Returns the kernel fd to read from.
    pub(super) fn kernel_fd(&self) -> Option<RawFd> {
        match self {
            Channel::KernelCounter(fd) | Channel::KernelStream(fd, _) => Some(fd.as_raw_fd()),
            _ => None,
        }
    }

    /// Returns the ready events of a user-level object.
    pub(super) fn ready(&self) -> Option<Events> {
        match self.target() {
            Target::File(file) => Some(file.ready()),
            _ => None,
        }
    }

    /// Receives all units that are there.
    pub(super) fn drain(&self) -> u64 {
        let mut received = 0;
        loop {
            match self.receive() {
                0 => return received,
                units => received += units,
            }
        }
    }
}

impl Source for Channel {
    fn target(&self) -> Target<'_> {
        match self {
            Channel::Counter(counter) => counter.target(),
            Channel::Pipe(reader, _) => reader.target(),
            Channel::Socket(reader, _) => reader.target(),
            Channel::Mailbox(mailbox) => mailbox.target(),
            Channel::KernelCounter(fd) | Channel::KernelStream(fd, _) => fd.target(),
            Channel::Descriptor(counter) => counter.target(),
        }
    }
}

fn kernel_counter() -> Result<OwnedFd> {
    let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
    Ok(rustix::event::eventfd(0, flags)?)
}

fn write_to(counter: BorrowedFd<'_>, units: u64) -> u64 {
    all_or_none(
        rustix::io::write(counter, &units.to_ne_bytes()).is_ok(),
        units,
    )
}

fn read_from(counter: BorrowedFd<'_>) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(counter, &mut count) {
        Ok(_) => u64::from_ne_bytes(count),
        Err(_) => 0,
    }
}

fn all_or_none(all: bool, units: u64) -> u64 {
    if all { units } else { 0 }
}

/// The length of a transfer; an error transferred nothing.
fn length<E>(result: Result<usize, E>) -> u64 {
    result.map_or(0, |length| length as u64)
}

/// Returns whether an ADD, MOD or DEL may end so beside other threads that change the same interest.
pub(super) fn is_race(result: &Result<(), Errno>) -> bool {
    matches!(result, Ok(()) | Err(Errno::EXIST | Errno::NOENT))
}
