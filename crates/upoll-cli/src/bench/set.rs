//! Sets and eventfds as both sides of a comparison have them: of the host kernel, and of each build of upoll.

use std::hint::black_box;
use std::io;

use rustix::event::EventfdFlags;
use upoll::{EventFdFlags, Events};

use super::kernel::{self, Fd};

/// An eventfd.
pub(super) trait Counter: Sized + Send + Sync + 'static {
    fn new(initial: u32, flags: EventFdFlags) -> io::Result<Self>;

    /// Adds 1, and blocks while there is no room. Panics on an error.
    fn write(&self);

    /// Takes the count, and blocks while it is 0. Panics on an error.
    fn read(&self) -> u64;

    /// Takes the count of an eventfd with `NONBLOCK`. Returns false if it is 0, and panics on another error.
    fn try_read(&self) -> bool;
}

/// A set that watches eventfds of type `C`, and sets of its own type.
pub(super) trait Set<C: Counter>: Sized + Send + Sync + 'static {
    /// An event, and the data of its interest.
    type Report: Copy + Send + 'static;

    /// A place for a report.
    const ROOM: Self::Report;

    fn open() -> io::Result<Self>;
    fn add(&self, counter: &C, events: Events, data: u64) -> io::Result<()>;
    fn modify(&self, counter: &C, events: Events, data: u64) -> io::Result<()>;
    fn delete(&self, counter: &C) -> io::Result<()>;
    fn add_set(&self, inner: &Self, events: Events, data: u64) -> io::Result<()>;
    fn delete_set(&self, inner: &Self) -> io::Result<()>;

    /// Waits until something is ready. Returns the number of reports.
    fn wait(&self, reports: &mut [Self::Report]) -> io::Result<usize>;

    /// As [`wait`](Self::wait), with a limit of 0.
    fn harvest(&self, reports: &mut [Self::Report]) -> io::Result<usize>;

    fn data(report: &Self::Report) -> u64;
}

/// Makes `count` of something.
pub(super) fn many<T, E>(count: usize, make: impl FnMut() -> Result<T, E>) -> Result<Vec<T>, E> {
    std::iter::repeat_with(make).take(count).collect()
}

/// Makes idle eventfds.
pub(super) fn counters<C: Counter>(count: usize) -> io::Result<Vec<C>> {
    many(count, || C::new(0, EventFdFlags::empty()))
}

/// Makes a set that watches `count` eventfds, each with its index as data.
pub(super) fn watching<S: Set<C>, C: Counter>(
    count: usize,
    events: Events,
    make: impl FnMut() -> io::Result<C>,
) -> io::Result<(S, Vec<C>)> {
    let (set, counters) = (S::open()?, many(count, make)?);
    for (data, counter) in (0..).zip(&counters) {
        set.add(counter, events, data)?;
    }
    Ok((set, counters))
}

impl Counter for Fd {
    #[inline]
    fn new(initial: u32, flags: EventFdFlags) -> io::Result<Self> {
        let flags = EventfdFlags::from_bits_retain(flags.bits());
        Ok(rustix::event::eventfd(initial, flags)?.into())
    }

    #[inline]
    fn write(&self) {
        self.write_count(black_box(1)).expect("write");
    }

    #[inline]
    fn read(&self) -> u64 {
        self.read_count().expect("read")
    }

    #[inline]
    fn try_read(&self) -> bool {
        match self.read_count() {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) => panic!("read: {error}"),
        }
    }
}

impl Set<Fd> for Fd {
    type Report = kernel::Event;

    const ROOM: kernel::Event = kernel::Event { events: 0, u64: 0 };

    fn open() -> io::Result<Self> {
        let flags = rustix::event::epoll::CreateFlags::empty();
        Ok(rustix::event::epoll::create(flags)?.into())
    }

    #[inline]
    fn add(&self, counter: &Fd, events: Events, data: u64) -> io::Result<()> {
        self.ctl(libc::EPOLL_CTL_ADD, counter, events, data)
    }

    #[inline]
    fn modify(&self, counter: &Fd, events: Events, data: u64) -> io::Result<()> {
        self.ctl(libc::EPOLL_CTL_MOD, counter, events, data)
    }

    #[inline]
    fn delete(&self, counter: &Fd) -> io::Result<()> {
        self.ctl(libc::EPOLL_CTL_DEL, counter, Events::empty(), 0)
    }

    #[inline]
    fn add_set(&self, inner: &Fd, events: Events, data: u64) -> io::Result<()> {
        self.add(inner, events, data)
    }

    #[inline]
    fn delete_set(&self, inner: &Fd) -> io::Result<()> {
        self.delete(inner)
    }

    #[inline]
    fn wait(&self, reports: &mut [kernel::Event]) -> io::Result<usize> {
        self.epoll_wait(reports, -1)
    }

    #[inline]
    fn harvest(&self, reports: &mut [kernel::Event]) -> io::Result<usize> {
        self.epoll_wait(reports, 0)
    }

    #[inline]
    fn data(report: &kernel::Event) -> u64 {
        report.u64
    }
}

macro_rules! interest {
    ($library:ident, $events:expr, $data:expr) => {
        $library::Event::new($library::Events::from_bits_retain($events.bits()), $data)
    };
}

/// A build of upoll. Its calls are so short that a call of them that is not inlined would be seen.
macro_rules! build_of_upoll {
    ($library:ident) => {
        impl Counter for $library::EventFd {
            #[inline(always)]
            fn new(initial: u32, flags: EventFdFlags) -> io::Result<Self> {
                let flags = $library::EventFdFlags::from_bits_retain(flags.bits());
                Ok(Self::with_flags(initial, flags)?)
            }

            #[inline(always)]
            fn write(&self) {
                Self::write(self, black_box(1)).expect("write");
            }

            #[inline(always)]
            fn read(&self) -> u64 {
                Self::read(self).expect("read")
            }

            #[inline(always)]
            fn try_read(&self) -> bool {
                match Self::try_read(self) {
                    Ok(_) => true,
                    Err($library::Errno::AGAIN) => false,
                    Err(error) => panic!("read: {error}"),
                }
            }
        }

        impl<C: Counter + $library::Source> Set<C> for $library::Epoll {
            type Report = $library::Event;

            const ROOM: $library::Event = interest!($library, Events::empty(), 0);

            fn open() -> io::Result<Self> {
                Ok(Self::new()?)
            }

            #[inline]
            fn add(&self, counter: &C, events: Events, data: u64) -> io::Result<()> {
                Ok(Self::add(self, counter, interest!($library, events, data))?)
            }

            #[inline]
            fn modify(&self, counter: &C, events: Events, data: u64) -> io::Result<()> {
                Ok(Self::modify(
                    self,
                    counter,
                    interest!($library, events, data),
                )?)
            }

            #[inline]
            fn delete(&self, counter: &C) -> io::Result<()> {
                Ok(Self::delete(self, counter)?)
            }

            #[inline]
            fn add_set(&self, inner: &Self, events: Events, data: u64) -> io::Result<()> {
                Ok(Self::add(self, inner, interest!($library, events, data))?)
            }

            #[inline]
            fn delete_set(&self, inner: &Self) -> io::Result<()> {
                Ok(Self::delete(self, inner)?)
            }

            #[inline]
            fn wait(&self, reports: &mut [$library::Event]) -> io::Result<usize> {
                Ok(Self::wait(self, reports, $library::Timeout::NEVER)?)
            }

            #[inline]
            fn harvest(&self, reports: &mut [$library::Event]) -> io::Result<usize> {
                Ok(Self::wait(self, reports, $library::Timeout::NOW)?)
            }

            #[inline]
            fn data(report: &$library::Event) -> u64 {
                report.data()
            }
        }
    };
}

build_of_upoll!(upoll);
build_of_upoll!(upoll_counted);
