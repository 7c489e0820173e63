//! A counter and a set of upoll or of the kernel.

use std::fmt::Debug;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use upoll::{Epoll, Errno, Event, EventFd, EventFdFlags, Events, FdSet, PollFd, Source, Timeout};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum World {
    Ours,
    Kernel,
}

/// Runs `body` in both worlds, asserts that the results are equal, and returns them.
pub fn both<T: PartialEq + Debug>(body: impl Fn(World) -> T) -> T {
    let ours = body(World::Ours);
    assert_eq!(ours, body(World::Kernel), "upoll left, kernel right");
    ours
}

pub enum Counter {
    Ours(EventFd),
    Kernel(OwnedFd),
}

pub enum Set {
    Ours(Epoll),
    Kernel(OwnedFd),
}

fn errno() -> Errno {
    Errno::from_raw(std::io::Error::last_os_error().raw_os_error().unwrap())
}

fn owned(fd: i32) -> OwnedFd {
    assert!(fd >= 0, "{:?}", errno());
    // SAFETY: the fd was opened just now and has no other owner.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn limit(milliseconds: i32) -> Timeout {
    match u64::try_from(milliseconds) {
        Ok(milliseconds) => Duration::from_millis(milliseconds).into(),
        Err(_) => None::<Duration>.into(),
    }
}

impl World {
    pub fn counter(self, initial: u32, flags: EventFdFlags) -> Counter {
        match self {
            World::Ours => Counter::Ours(EventFd::shared(initial, flags).unwrap()),
            // SAFETY: the call takes no pointers.
            World::Kernel => Counter::Kernel(owned(unsafe {
                libc::eventfd(initial, flags.bits().cast_signed())
            })),
        }
    }

    pub fn set(self) -> Set {
        match self {
            World::Ours => Set::Ours(Epoll::new().unwrap()),
            // SAFETY: the call takes no pointers.
            World::Kernel => Set::Kernel(owned(unsafe { libc::epoll_create1(0) })),
        }
    }
}

impl Counter {
    pub fn write(&self, value: u64) -> Result<(), Errno> {
        match self {
            Counter::Ours(counter) => counter.write(value),
            Counter::Kernel(fd) => {
                // SAFETY: eight bytes are read from `value`.
                let written = unsafe { libc::write(fd.as_raw_fd(), (&raw const value).cast(), 8) };
                if written == 8 { Ok(()) } else { Err(errno()) }
            }
        }
    }

    pub fn read(&self) -> Result<u64, Errno> {
        match self {
            Counter::Ours(counter) => counter.read(),
            Counter::Kernel(fd) => {
                let mut value = 0_u64;
                // SAFETY: eight bytes are written to `value`.
                let read = unsafe { libc::read(fd.as_raw_fd(), (&raw mut value).cast(), 8) };
                if read == 8 { Ok(value) } else { Err(errno()) }
            }
        }
    }

    /// Polls the counter. Returns the number of ready entries and the events.
    pub fn poll(&self, events: Events, milliseconds: i32) -> (Result<usize, Errno>, u32) {
        match self {
            Counter::Ours(counter) => {
                let mut fds = [PollFd::new(counter, events)];
                let ready = upoll::poll(&mut fds, limit(milliseconds));
                (ready, fds[0].revents().bits())
            }
            Counter::Kernel(fd) => {
                let mut entry = libc::pollfd {
                    fd: fd.as_raw_fd(),
                    events: events.bits() as i16,
                    revents: 0,
                };
                // SAFETY: one live entry.
                let ready = unsafe { libc::poll(&raw mut entry, 1, milliseconds) };
                let ready = usize::try_from(ready).map_err(|_| errno());
                (ready, entry.revents.cast_unsigned().into())
            }
        }
    }

    /// Calls `select` with the counter in the read set or in the write set. Returns its result.
    pub fn select(&self, readable: bool) -> Result<usize, Errno> {
        match self {
            Counter::Ours(counter) => {
                let mut numbers = FdSet::from_iter([3]);
                let (mut read, mut write) = (None, None);
                *if readable { &mut read } else { &mut write } = Some(&mut numbers);
                let mut limit = limit(-1);
                upoll::select(4, read, write, None, &mut limit, |_| Some(counter.target()))
            }
            Counter::Kernel(fd) => {
                // SAFETY: the sets are live and hold one number below their size.
                let ready = unsafe {
                    let mut numbers = std::mem::zeroed::<libc::fd_set>();
                    libc::FD_SET(fd.as_raw_fd(), &raw mut numbers);
                    let (mut read, mut write) = (std::ptr::null_mut(), std::ptr::null_mut());
                    *if readable { &mut read } else { &mut write } = &raw mut numbers;
                    let null = std::ptr::null_mut();
                    libc::select(fd.as_raw_fd() + 1, read, write, null, null.cast())
                };
                usize::try_from(ready).map_err(|_| errno())
            }
        }
    }
}

impl Set {
    /// Polls the set itself. Returns the number of ready entries.
    pub fn poll(&self, milliseconds: i32) -> Result<usize, Errno> {
        match self {
            Set::Ours(set) => upoll::poll(&mut [PollFd::new(set, Events::IN)], limit(milliseconds)),
            Set::Kernel(fd) => {
                let mut entry = libc::pollfd {
                    fd: fd.as_raw_fd(),
                    events: libc::POLLIN,
                    revents: 0,
                };
                // SAFETY: one live entry.
                let ready = unsafe { libc::poll(&raw mut entry, 1, milliseconds) };
                usize::try_from(ready).map_err(|_| errno())
            }
        }
    }

    fn ctl(&self, op: i32, target: &impl AsRawFd, events: Events) {
        let Set::Kernel(set) = self else {
            unreachable!()
        };
        let mut event = libc::epoll_event {
            events: events.bits(),
            u64: 7,
        };
        let target = target.as_raw_fd();
        // SAFETY: the event is live.
        let done = unsafe { libc::epoll_ctl(set.as_raw_fd(), op, target, &raw mut event) };
        assert_eq!(done, 0, "{:?}", errno());
    }

    pub fn add(&self, counter: &Counter, events: Events) {
        match (self, counter) {
            (Set::Ours(set), Counter::Ours(counter)) => {
                set.add(counter, Event::new(events, 7)).unwrap();
            }
            (Set::Kernel(_), Counter::Kernel(fd)) => self.ctl(libc::EPOLL_CTL_ADD, fd, events),
            _ => unreachable!(),
        }
    }

    pub fn modify(&self, counter: &Counter, events: Events) {
        match (self, counter) {
            (Set::Ours(set), Counter::Ours(counter)) => {
                set.modify(counter, Event::new(events, 7)).unwrap();
            }
            (Set::Kernel(_), Counter::Kernel(fd)) => self.ctl(libc::EPOLL_CTL_MOD, fd, events),
            _ => unreachable!(),
        }
    }

    pub fn nest(&self, inner: &Set, events: Events) {
        match (self, inner) {
            (Set::Ours(set), Set::Ours(inner)) => set.add(inner, Event::new(events, 7)).unwrap(),
            (Set::Kernel(_), Set::Kernel(fd)) => self.ctl(libc::EPOLL_CTL_ADD, fd, events),
            _ => unreachable!(),
        }
    }

    /// Waits in the set. Returns the events that it reports.
    pub fn wait(&self, milliseconds: i32) -> Result<Vec<u32>, Errno> {
        match self {
            Set::Ours(set) => {
                let mut events = [Event::default(); 4];
                let ready = set.wait(&mut events, limit(milliseconds))?;
                assert!(events[..ready].iter().all(|event| event.data() == 7));
                Ok(events[..ready].iter().map(|e| e.events().bits()).collect())
            }
            Set::Kernel(fd) => {
                let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
                let room = events.as_mut_ptr();
                // SAFETY: the buffer has room for four.
                let ready = unsafe { libc::epoll_wait(fd.as_raw_fd(), room, 4, milliseconds) };
                let ready = usize::try_from(ready).map_err(|_| errno())?;
                Ok(events[..ready].iter().map(|e| e.events).collect())
            }
        }
    }
}
