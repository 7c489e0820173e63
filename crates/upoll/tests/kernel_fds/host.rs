//! The kernel's own epoll, for comparison, and helpers of the tests.

use std::io::{PipeReader, PipeWriter, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use upoll::{Epoll, Errno, Event, Events, Op, Target};

/// Longer than any test takes: a wait that lasts so long has lost an event.
pub const LONG: Duration = Duration::from_secs(60);
/// Long enough for a thread to fall asleep, most of the time.
pub const SHORT: Duration = Duration::from_millis(20);

pub fn last_errno() -> Errno {
    Errno::from_raw(std::io::Error::last_os_error().raw_os_error().unwrap())
}

/// Takes ownership of an fd that a system call has just opened.
pub fn owned(fd: libc::c_int) -> OwnedFd {
    assert!(fd >= 0, "{:?}", last_errno());
    // SAFETY: the kernel has just opened the fd for the caller, which is its only owner.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

pub struct Kernel(pub OwnedFd);

impl Kernel {
    pub fn new() -> Self {
        // SAFETY: the call takes no pointers.
        Kernel(owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }))
    }

    pub fn ctl(&self, op: Op, fd: i32, interest: Event) -> Result<(), Errno> {
        let mut event = libc::epoll_event {
            events: interest.events().bits(),
            u64: interest.data(),
        };
        // SAFETY: the event outlives the call.
        match unsafe { libc::epoll_ctl(self.0.as_raw_fd(), op as i32, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(last_errno()),
        }
    }

    pub fn add(&self, fd: &impl AsRawFd, interest: Event) {
        self.ctl(Op::Add, fd.as_raw_fd(), interest).unwrap();
    }

    /// Returns the ready events without waiting.
    pub fn try_wait(&self, room: usize) -> Vec<Event> {
        self.wait(room, Duration::ZERO)
    }

    pub fn wait(&self, room: usize, limit: Duration) -> Vec<Event> {
        let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; room];
        let room = i32::try_from(room).unwrap();
        let limit = i32::try_from(limit.as_millis()).unwrap();
        // SAFETY: the buffer has `room` events.
        let ready =
            unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), room, limit) };
        events.truncate(usize::try_from(ready).unwrap());
        events
            .iter()
            .map(|event| Event::new(Events::from_bits_retain(event.events), event.u64))
            .collect()
    }
}

pub fn wait(set: &Epoll, room: usize, limit: Duration) -> Vec<Event> {
    let mut events = vec![Event::default(); room];
    let ready = set.wait(&mut events, limit).unwrap();
    events.truncate(ready);
    events
}

/// Returns the ready events without waiting.
pub fn try_wait(set: &Epoll, room: usize) -> Vec<Event> {
    wait(set, room, Duration::ZERO)
}

pub fn data(events: &[Event]) -> Vec<u64> {
    events.iter().map(Event::data).collect()
}

/// Sorts events by data, then by bits: the result does not depend on their order.
pub fn sorted(events: &[Event]) -> Vec<(u64, Events)> {
    let mut pairs: Vec<_> = events.iter().map(|e| (e.data(), e.events())).collect();
    pairs.sort_unstable_by_key(|&(data, events)| (data, events.bits()));
    pairs
}

/// A set of upoll and a kernel set with the same members.
pub struct Both {
    pub ours: Epoll,
    pub theirs: Kernel,
}

impl Both {
    pub fn new() -> Self {
        Both {
            ours: Epoll::new().unwrap(),
            theirs: Kernel::new(),
        }
    }

    /// Makes the same call on both sets, and asserts that the results are equal.
    pub fn ctl(&self, op: Op, fd: BorrowedFd<'_>, interest: Event) -> Result<(), Errno> {
        let ours = self.ours.ctl(op, Target::Kernel(fd), interest);
        let theirs = self.theirs.ctl(op, fd.as_raw_fd(), interest);
        assert_eq!(ours, theirs, "{op:?} {fd:?} {interest:?}");
        ours
    }

    pub fn add(&self, fd: &impl AsFd, interest: Event) {
        self.ctl(Op::Add, fd.as_fd(), interest).unwrap();
    }

    pub fn modify(&self, fd: &impl AsFd, interest: Event) {
        self.ctl(Op::Mod, fd.as_fd(), interest).unwrap();
    }

    pub fn delete(&self, fd: &impl AsFd) {
        self.ctl(Op::Del, fd.as_fd(), Event::default()).unwrap();
    }

    /// Asserts that the ready events of both are equal, and returns them.
    pub fn try_wait(&self) -> Vec<(u64, Events)> {
        let ours = sorted(&try_wait(&self.ours, 64));
        let theirs = sorted(&self.theirs.try_wait(64));
        assert_eq!(ours, theirs, "ours, theirs");
        ours
    }
}

pub fn pipe() -> (PipeReader, PipeWriter) {
    std::io::pipe().unwrap()
}

/// A pipe with something to read.
pub fn ready_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = pipe();
    writer.write_all(b"x").unwrap();
    (reader, writer)
}

pub fn eventfd() -> OwnedFd {
    // SAFETY: the call takes no pointers.
    owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

pub fn eventfd_write(fd: &OwnedFd) {
    // SAFETY: no memory is involved.
    assert_eq!(unsafe { libc::eventfd_write(fd.as_raw_fd(), 1) }, 0);
}

pub fn eventfd_read(fd: &OwnedFd) {
    eventfd_take(fd);
}

/// Reads an eventfd. Returns its count, or 0 if it had none.
pub fn eventfd_take(fd: &OwnedFd) -> u64 {
    let mut count = 0;
    // SAFETY: `count` is a live counter. The call leaves it at zero if the eventfd is zero.
    unsafe { libc::eventfd_read(fd.as_raw_fd(), &raw mut count) };
    count
}

/// Returns an interest in input.
pub fn input(data: u64) -> Event {
    Event::new(Events::IN, data)
}

/// Returns an edge-triggered interest in input.
pub fn edge(data: u64) -> Event {
    Event::new(Events::IN | Events::ET, data)
}

/// Runs one test at a time. Fds belong to the process: a rotating set whose source was
/// closed polls the file that has the fd now, which keeps another test's file open for that
/// moment.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
