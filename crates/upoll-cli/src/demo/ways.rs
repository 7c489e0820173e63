//! The three ways in which workers can share a listening socket.
//!
//! Each worker has a set of its own, which watches the listening socket, the worker's connections
//! and its stop bell. The ways differ only in the kind of that set, and in the way that the
//! listening socket is a member of it. [`WorkerSet`] is the worker's view of it.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll;
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use serde::Serialize;
use upoll::{CreateFlags, Epoll, Event, EventFd, Events, Timeout};

/// The way in which workers share the listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Way {
    /// The kernel's epoll: a new connection wakes all waiting workers.
    Stock,
    /// The kernel's epoll with EPOLLEXCLUSIVE: a new connection wakes the first worker in line.
    Exclusive,
    /// upoll's rotating set: a new connection wakes one worker, and the workers take turns.
    Rotating,
}

impl Way {
    pub(super) const ALL: [Way; 3] = [Way::Stock, Way::Exclusive, Way::Rotating];

    pub(super) fn title(self) -> &'static str {
        match self {
            Way::Stock => "epoll",
            Way::Exclusive => "EPOLLEXCLUSIVE",
            Way::Rotating => "upoll, rotating",
        }
    }
}

/// The `data` of events of the listening socket. Connections have small numbers.
pub(super) const LISTENER: u64 = u64::MAX;
/// The `data` of events of the stop bell.
pub(super) const BELL: u64 = u64::MAX - 1;

/// The greatest number of events in one wait.
const BATCH: usize = 64;

/// A worker's own epoll set, of either kind.
pub(super) trait WorkerSet: Send + 'static {
    /// The buffer for the events of a wait, which stays in the worker's thread.
    type Ready;
    /// Returns an empty buffer.
    fn room() -> Self::Ready;
    /// Waits for events. Returns their number, which is 0 after the timeout or a signal.
    fn wait(&self, ready: &mut Self::Ready, timeout: Option<Duration>) -> io::Result<usize>;
    /// Returns the `data` of an event that the last wait reported.
    fn data(ready: &Self::Ready, index: usize) -> u64;
    fn add(&self, stream: &TcpStream, wanted: Events, data: u64) -> io::Result<()>;
    fn modify(&self, stream: &TcpStream, wanted: Events, data: u64) -> io::Result<()>;
    fn add_listener(&self) -> io::Result<()>;
    /// Leaves new connections to other workers until the listening socket is added again.
    fn delete_listener(&self) -> io::Result<()>;
}

/// The bell that stops one worker.
#[derive(Debug)]
pub(super) enum Bell {
    Kernel(Arc<OwnedFd>),
    User(EventFd),
}

impl Bell {
    pub(super) fn ring(&self) -> io::Result<()> {
        match self {
            Bell::Kernel(bell) => {
                rustix::io::write(bell, &1_u64.to_ne_bytes())?;
            }
            Bell::User(bell) => bell.try_write(1)?,
        }
        Ok(())
    }
}

/// The kernel's epoll, plain or with EPOLLEXCLUSIVE on the listening socket.
#[derive(Debug)]
pub(super) struct KernelSet {
    epoll: OwnedFd,
    listener: Arc<TcpListener>,
    listener_flags: epoll::EventFlags,
    /// Kept open, because the set watches it.
    _bell: Arc<OwnedFd>,
}

impl KernelSet {
    /// Makes a set that watches `listener` and a bell of its own.
    pub(super) fn new(listener: &Arc<TcpListener>, exclusive: bool) -> io::Result<(Self, Bell)> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        epoll::add(
            &epoll,
            &bell,
            epoll::EventData::new_u64(BELL),
            epoll::EventFlags::IN,
        )?;
        let mut listener_flags = epoll::EventFlags::IN;
        listener_flags.set(epoll::EventFlags::EXCLUSIVE, exclusive);
        let set = KernelSet {
            epoll,
            listener: listener.clone(),
            listener_flags,
            _bell: bell.clone(),
        };
        set.add_listener()?;
        Ok((set, Bell::Kernel(bell)))
    }
}

fn flags(events: Events) -> epoll::EventFlags {
    epoll::EventFlags::from_bits_retain(events.bits())
}

impl WorkerSet for KernelSet {
    type Ready = Vec<epoll::Event>;

    fn room() -> Self::Ready {
        Vec::with_capacity(BATCH)
    }

    fn wait(&self, ready: &mut Self::Ready, timeout: Option<Duration>) -> io::Result<usize> {
        let timeout = timeout.map(|limit| Timespec {
            tv_sec: limit.as_secs().cast_signed(),
            tv_nsec: limit.subsec_nanos().into(),
        });
        ready.clear();
        let buffer = rustix::buffer::spare_capacity(ready);
        match epoll::wait(&self.epoll, buffer, timeout.as_ref()) {
            Ok(ready) => Ok(ready),
            Err(Errno::INTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    fn data(ready: &Self::Ready, index: usize) -> u64 {
        { ready[index].data }.u64()
    }

    fn add(&self, stream: &TcpStream, wanted: Events, data: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(data);
        Ok(epoll::add(&self.epoll, stream, data, flags(wanted))?)
    }

    fn modify(&self, stream: &TcpStream, wanted: Events, data: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(data);
        Ok(epoll::modify(&self.epoll, stream, data, flags(wanted))?)
    }

    fn add_listener(&self) -> io::Result<()> {
        let data = epoll::EventData::new_u64(LISTENER);
        Ok(epoll::add(
            &self.epoll,
            &*self.listener,
            data,
            self.listener_flags,
        )?)
    }

    fn delete_listener(&self) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, &*self.listener)?)
    }
}

/// A set of upoll that watches a rotating set, which watches the listening socket.
#[derive(Debug)]
pub(super) struct TurnSet {
    set: Epoll,
    turns: Epoll,
    /// Kept open, because the set watches it.
    _bell: EventFd,
}

impl TurnSet {
    /// Makes the rotating set that the workers' sets watch.
    pub(super) fn turns(listener: &TcpListener) -> io::Result<Epoll> {
        let turns = Epoll::create(CreateFlags::ROTATE)?;
        turns.add(listener, Event::new(Events::IN, LISTENER))?;
        Ok(turns)
    }

    /// Makes a set that watches `turns` and a bell of its own.
    pub(super) fn new(turns: &Epoll) -> io::Result<(Self, Bell)> {
        let set = Epoll::new()?;
        let bell = EventFd::new(0)?;
        set.add(&bell, Event::new(Events::IN, BELL))?;
        let set = TurnSet {
            set,
            turns: turns.clone(),
            _bell: bell.clone(),
        };
        set.add_listener()?;
        Ok((set, Bell::User(bell)))
    }
}

impl WorkerSet for TurnSet {
    type Ready = [Event; BATCH];

    fn room() -> Self::Ready {
        [Event::default(); BATCH]
    }

    fn wait(&self, ready: &mut Self::Ready, timeout: Option<Duration>) -> io::Result<usize> {
        match self.set.wait(ready, Timeout::from(timeout)) {
            Ok(ready) => Ok(ready),
            Err(upoll::Errno::INTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    fn data(ready: &Self::Ready, index: usize) -> u64 {
        ready[index].data()
    }

    fn add(&self, stream: &TcpStream, wanted: Events, data: u64) -> io::Result<()> {
        Ok(self.set.add(stream, Event::new(wanted, data))?)
    }

    fn modify(&self, stream: &TcpStream, wanted: Events, data: u64) -> io::Result<()> {
        Ok(self.set.modify(stream, Event::new(wanted, data))?)
    }

    fn add_listener(&self) -> io::Result<()> {
        Ok(self
            .set
            .add(&self.turns, Event::new(Events::IN, LISTENER))?)
    }

    fn delete_listener(&self) -> io::Result<()> {
        Ok(self.set.delete(&self.turns)?)
    }
}
