//! Random sequences of calls by fd, on this crate and on the host kernel: every result is the
//! same, and what is reported comes in the same order.

use proptest::prelude::*;
use upoll::{Errno, Event, Events};

/// The number of fds at a time. Each stands for one of the kernel's and a user-level one.
const PLACES: usize = 6;

#[derive(Clone, Debug)]
enum Call {
    EventFd {
        place: usize,
        initial: u32,
        semaphore: bool,
    },
    Pipe {
        reader: usize,
        writer: usize,
    },
    Set {
        place: usize,
    },
    Read {
        place: usize,
    },
    Write {
        place: usize,
        value: u64,
    },
    Dup {
        from: usize,
        to: usize,
    },
    Dup2 {
        from: usize,
        to: usize,
    },
    Close {
        place: usize,
    },
    Ctl {
        set: usize,
        op: i32,
        place: usize,
        events: u32,
    },
    Wait {
        set: usize,
        room: i32,
    },
    Poll {
        places: Vec<usize>,
        events: i16,
    },
    Flags {
        place: usize,
    },
    Available {
        place: usize,
    },
}

fn call() -> impl Strategy<Value = Call> {
    let place = || 0..PLACES;
    let interest = prop_oneof![
        Just(Events::IN),
        Just(Events::OUT),
        Just(Events::IN | Events::OUT),
        Just(Events::IN | Events::ET),
        Just(Events::IN | Events::ONESHOT),
        Just(Events::empty()),
    ];
    prop_oneof![
        2 => (place(), 0..3_u32, any::<bool>())
            .prop_map(|(place, initial, semaphore)| Call::EventFd { place, initial, semaphore }),
        1 => (place(), place()).prop_map(|(reader, writer)| Call::Pipe { reader, writer }),
        2 => place().prop_map(|place| Call::Set { place }),
        3 => place().prop_map(|place| Call::Read { place }),
        3 => (place(), prop_oneof![0..5_u64, Just(u64::MAX), Just(u64::MAX - 1)])
            .prop_map(|(place, value)| Call::Write { place, value }),
        1 => (place(), place()).prop_map(|(from, to)| Call::Dup { from, to }),
        1 => (place(), place()).prop_map(|(from, to)| Call::Dup2 { from, to }),
        1 => place().prop_map(|place| Call::Close { place }),
        4 => (place(), 0..5_i32, place(), interest).prop_map(|(set, op, place, events)| {
            Call::Ctl { set, op, place, events: events.bits() }
        }),
        4 => (place(), 0..4_i32).prop_map(|(set, room)| Call::Wait { set, room }),
        2 => (prop::collection::vec(place(), 1..4), prop_oneof![Just(1_i16), Just(4), Just(5)])
            .prop_map(|(places, events)| Call::Poll { places, events }),
        1 => place().prop_map(|place| Call::Flags { place }),
        1 => place().prop_map(|place| Call::Available { place }),
    ]
}

/// The outcome of a call: its result, and the words that it wrote.
type Outcome = (Result<i64, i32>, Vec<u64>);

/// The calls of one of the two.
trait Door {
    fn eventfd(&self, initial: u32, flags: i32) -> Result<i64, i32>;
    fn pipe(&self, fds: &mut [i32; 2], flags: i32) -> Result<i64, i32>;
    fn set(&self) -> Result<i64, i32>;
    fn read(&self, fd: i32, buffer: &mut [u8; 8]) -> Result<i64, i32>;
    fn write(&self, fd: i32, bytes: &[u8; 8]) -> Result<i64, i32>;
    fn dup(&self, fd: i32) -> Result<i64, i32>;
    fn dup2(&self, from: i32, to: i32) -> Result<i64, i32>;
    fn close(&self, fd: i32) -> Result<i64, i32>;
    fn ctl(&self, set: i32, op: i32, fd: i32, event: Event) -> Result<i64, i32>;
    fn wait(&self, set: i32, events: &mut [Event; 4], room: i32) -> Result<i64, i32>;
    fn poll(&self, fds: &mut [libc::pollfd]) -> Result<i64, i32>;
    fn flags(&self, fd: i32) -> Result<i64, i32>;
    fn available(&self, fd: i32, count: &mut i32) -> Result<i64, i32>;
}

struct Kernel;
struct Ours;

fn checked(result: impl Into<i64>) -> Result<i64, i32> {
    match result.into() {
        -1 => Err(std::io::Error::last_os_error().raw_os_error().unwrap()),
        value => Ok(value),
    }
}

impl Door for Kernel {
    fn eventfd(&self, initial: u32, flags: i32) -> Result<i64, i32> {
        // SAFETY: no pointers are involved.
        checked(unsafe { libc::eventfd(initial, flags) })
    }
    fn pipe(&self, fds: &mut [i32; 2], flags: i32) -> Result<i64, i32> {
        // SAFETY: there is room for two fds.
        checked(unsafe { libc::pipe2(fds.as_mut_ptr(), flags) })
    }
    fn set(&self) -> Result<i64, i32> {
        // SAFETY: no pointers are involved.
        checked(unsafe { libc::epoll_create1(0) })
    }
    fn read(&self, fd: i32, buffer: &mut [u8; 8]) -> Result<i64, i32> {
        // SAFETY: there is room for eight bytes.
        checked(unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), 8) } as i64)
    }
    fn write(&self, fd: i32, bytes: &[u8; 8]) -> Result<i64, i32> {
        // SAFETY: there are eight bytes.
        checked(unsafe { libc::write(fd, bytes.as_ptr().cast(), 8) } as i64)
    }
    fn dup(&self, fd: i32) -> Result<i64, i32> {
        // SAFETY: no pointers are involved.
        checked(unsafe { libc::dup(fd) })
    }
    fn dup2(&self, from: i32, to: i32) -> Result<i64, i32> {
        // SAFETY: no pointers are involved.
        checked(unsafe { libc::dup2(from, to) })
    }
    fn close(&self, fd: i32) -> Result<i64, i32> {
        // SAFETY: the fd is this world's own, or not open.
        checked(unsafe { libc::close(fd) })
    }
    fn ctl(&self, set: i32, op: i32, fd: i32, mut event: Event) -> Result<i64, i32> {
        // SAFETY: the event is live.
        checked(unsafe { libc::epoll_ctl(set, op, fd, (&raw mut event).cast()) })
    }
    fn wait(&self, set: i32, events: &mut [Event; 4], room: i32) -> Result<i64, i32> {
        // SAFETY: no more than four events are asked for, for which there is room.
        checked(unsafe { libc::epoll_wait(set, events.as_mut_ptr().cast(), room, 0) })
    }
    fn poll(&self, fds: &mut [libc::pollfd]) -> Result<i64, i32> {
        // SAFETY: the entries are live.
        checked(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, 0) })
    }
    fn flags(&self, fd: i32) -> Result<i64, i32> {
        // SAFETY: no pointers are involved.
        checked(unsafe { libc::fcntl(fd, libc::F_GETFL) })
    }
    fn available(&self, fd: i32, count: &mut i32) -> Result<i64, i32> {
        // SAFETY: the count is live.
        checked(unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut *count) })
    }
}

fn number<T: TryInto<i64>>(result: Result<T, Errno>) -> Result<i64, i32> {
    match result {
        Ok(value) => Ok(value.try_into().unwrap_or(i64::MAX)),
        Err(errno) => Err(errno.raw()),
    }
}

impl Door for Ours {
    fn eventfd(&self, initial: u32, flags: i32) -> Result<i64, i32> {
        number(upoll_fds::eventfd(initial, flags))
    }
    fn pipe(&self, fds: &mut [i32; 2], flags: i32) -> Result<i64, i32> {
        // SAFETY: there is room for two fds.
        number(unsafe { upoll_fds::pipe2(fds, flags) }.map(|()| 0))
    }
    fn set(&self) -> Result<i64, i32> {
        number(upoll_fds::epoll_create1(0))
    }
    fn read(&self, fd: i32, buffer: &mut [u8; 8]) -> Result<i64, i32> {
        // SAFETY: there is room for eight bytes.
        number(unsafe { upoll_fds::read(fd, buffer.as_mut_ptr(), 8) })
    }
    fn write(&self, fd: i32, bytes: &[u8; 8]) -> Result<i64, i32> {
        // SAFETY: there are eight bytes.
        number(unsafe { upoll_fds::write(fd, bytes.as_ptr(), 8) })
    }
    fn dup(&self, fd: i32) -> Result<i64, i32> {
        number(upoll_fds::dup(fd))
    }
    fn dup2(&self, from: i32, to: i32) -> Result<i64, i32> {
        number(upoll_fds::dup2(from, to))
    }
    fn close(&self, fd: i32) -> Result<i64, i32> {
        number(upoll_fds::close(fd).map(|()| 0))
    }
    fn ctl(&self, set: i32, op: i32, fd: i32, event: Event) -> Result<i64, i32> {
        // SAFETY: the event is live.
        number(unsafe { upoll_fds::epoll_ctl(set, op, fd, &raw const event) }.map(|()| 0))
    }
    fn wait(&self, set: i32, events: &mut [Event; 4], room: i32) -> Result<i64, i32> {
        // SAFETY: no more than four events are asked for, for which there is room.
        number(unsafe { upoll_fds::epoll_wait(set, events.as_mut_ptr(), room, 0) })
    }
    fn poll(&self, fds: &mut [libc::pollfd]) -> Result<i64, i32> {
        // SAFETY: the entries are live.
        number(unsafe { upoll_fds::poll(fds.as_mut_ptr(), fds.len(), 0) })
    }
    fn flags(&self, fd: i32) -> Result<i64, i32> {
        // SAFETY: no pointers are involved.
        number(unsafe { upoll_fds::fcntl(fd, libc::F_GETFL, 0) })
    }
    fn available(&self, fd: i32, count: &mut i32) -> Result<i64, i32> {
        let to = (&raw mut *count).expose_provenance();
        // SAFETY: the count is live.
        number(unsafe { upoll_fds::ioctl(fd, libc::FIONREAD as u32, to) })
    }
}

/// The fds of one of the two; those of empty places were closed, or never open.
struct World<'a> {
    door: &'a dyn Door,
    fds: [i32; PLACES],
}

impl World<'_> {
    /// Makes `place` stand for a new fd, and closes the old one.
    fn put(&mut self, place: usize, made: Result<i64, i32>) -> Result<i64, i32> {
        let fd = made?;
        if self.fds[place] >= 0 {
            self.door.close(self.fds[place])?;
        }
        self.fds[place] = i32::try_from(fd).unwrap();
        Ok(0)
    }

    fn make(&mut self, call: &Call) -> Outcome {
        let door = self.door;
        let mut wrote = Vec::new();
        let result = match *call {
            Call::EventFd {
                place,
                initial,
                semaphore,
            } => {
                let flags = libc::EFD_NONBLOCK | i32::from(semaphore);
                self.put(place, door.eventfd(initial, flags))
            }
            Call::Pipe { reader, writer } if reader != writer => {
                let mut fds = [-1; 2];
                door.pipe(&mut fds, libc::O_NONBLOCK)
                    .and_then(|_| self.put(reader, Ok(fds[0].into())))
                    .and_then(|_| self.put(writer, Ok(fds[1].into())))
            }
            Call::Pipe { .. } => Ok(0),
            Call::Set { place } => self.put(place, door.set()),
            Call::Read { place } => {
                let mut buffer = [0; 8];
                let result = door.read(self.fds[place], &mut buffer);
                wrote.push(u64::from_ne_bytes(buffer));
                result
            }
            Call::Write { place, value } => door.write(self.fds[place], &value.to_ne_bytes()),
            Call::Dup { from, to } => self.put(to, door.dup(self.fds[from])),
            Call::Dup2 { from, to } if self.fds[to] >= 0 => {
                door.dup2(self.fds[from], self.fds[to]).map(|_| 0)
            }
            Call::Dup2 { .. } => Ok(0),
            Call::Close { place } => {
                let fd = std::mem::replace(&mut self.fds[place], -1);
                door.close(fd)
            }
            Call::Ctl {
                set,
                op,
                place,
                events,
            } => {
                let event = Event::new(Events::from_bits_retain(events), place as u64);
                door.ctl(self.fds[set], op, self.fds[place], event)
            }
            Call::Wait { set, room } => {
                let mut events = [Event::default(); 4];
                let result = door.wait(self.fds[set], &mut events, room);
                for event in events {
                    wrote.extend([event.data(), event.events().bits().into()]);
                }
                result
            }
            Call::Poll { ref places, events } => {
                let entry = |&place: &usize| libc::pollfd {
                    fd: self.fds[place],
                    events,
                    revents: 0,
                };
                let mut fds: Vec<_> = places.iter().map(entry).collect();
                let result = door.poll(&mut fds);
                wrote.extend(fds.iter().map(|fd| u64::from(fd.revents.cast_unsigned())));
                result
            }
            Call::Flags { place } => door.flags(self.fds[place]),
            Call::Available { place } => {
                let mut count = -1;
                let result = door.available(self.fds[place], &mut count);
                // The kernel knows the request for pipes only.
                wrote.push(u64::from(count.cast_unsigned()));
                result
            }
        };
        (result, wrote)
    }
}

impl Drop for World<'_> {
    fn drop(&mut self) {
        for fd in self.fds.into_iter().filter(|&fd| fd >= 0) {
            // It may have been closed by a failing call; all are fds of this world.
            let _ = self.door.close(fd);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_call_gives_what_the_kernel_gives(calls in prop::collection::vec(call(), 1..60)) {
        let mut kernel = World { door: &Kernel, fds: [-1; PLACES] };
        let mut ours = World { door: &Ours, fds: [-1; PLACES] };
        for (at, call) in calls.iter().enumerate() {
            prop_assert_eq!(kernel.make(call), ours.make(call), "call {}: {:?}", at, call);
        }
    }
}
