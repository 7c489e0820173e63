//! The model of the kernel (`src/host/kernel_model.rs`), compared with the kernel: random system
//! calls, none of which sleeps, have the same results.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use upoll::kernel_model::program;
use upoll::{Errno, Event, Events, Op};

/// The kernel's fd is the model's fd plus this, above the fds that other tests open.
const FIRST: RawFd = 500;
const SETS: u32 = 4;
const SEQUENCES: u64 = 6000;

#[derive(Clone, Debug)]
enum Call {
    Pipe,
    Socket,
    EpollCreate,
    Dup(RawFd),
    Dup2(RawFd, RawFd),
    Close(RawFd),
    Write(RawFd),
    Read(RawFd),
    EpollCtl(RawFd, Op, RawFd, Event),
    EpollWait(RawFd, usize),
    Poll(Vec<(RawFd, i16)>),
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Fd(Result<RawFd, Errno>),
    Done(Result<(), Errno>),
    Events(Result<Vec<(u32, u64)>, Errno>),
    Revents(Vec<i16>),
}

/// An open file, as far as a test needs it to choose valid calls.
#[derive(Clone)]
enum Opened {
    /// With the write end.
    Pipe(Rc<OwnedFd>),
    Socket,
    /// Sets watch only sets that were made later, so there are no loops.
    Set(u32),
}

/// Pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        let at = usize::try_from(self.below(choices.len() as u64)).unwrap();
        choices[at].clone()
    }
}

/// Both sides, with the same fds open.
struct Both {
    opened: HashMap<RawFd, Opened>,
    sets: u32,
}

impl Drop for Both {
    fn drop(&mut self) {
        for fd in self.opened.keys() {
            // SAFETY: the fd was opened below, and nothing else uses it.
            unsafe { libc::close(FIRST + fd) };
        }
    }
}

fn check(result: libc::c_int) -> Result<libc::c_int, Errno> {
    match result {
        -1 => Err(Errno::from_raw(
            io::Error::last_os_error().raw_os_error().unwrap(),
        )),
        result => Ok(result),
    }
}

impl Both {
    /// Moves a file that was just opened to an fd on the kernel's side.
    fn put(&mut self, file: RawFd, fd: RawFd, opened: Opened) {
        // SAFETY: the caller opened `file` for this, and the other fd is this test's.
        unsafe {
            check(libc::dup3(file, FIRST + fd, libc::O_CLOEXEC)).unwrap();
            libc::close(file);
        }
        self.opened.insert(fd, opened);
    }

    /// Makes a call on both sides, and returns both outcomes: the model's and the kernel's.
    fn make(&mut self, call: &Call) -> (Outcome, Outcome) {
        match *call {
            Call::Pipe => {
                let fd = program::pipe().unwrap();
                let mut ends = [0; 2];
                // SAFETY: there is room for two fds.
                let write = unsafe {
                    check(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC)).unwrap();
                    Rc::new(OwnedFd::from_raw_fd(ends[1]))
                };
                self.put(ends[0], fd, Opened::Pipe(write));
                same(fd)
            }
            Call::Socket => {
                let fd = program::socket().unwrap();
                let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
                let (domain, protocol) = (libc::AF_NETLINK, libc::NETLINK_USERSOCK);
                // SAFETY: the call takes no pointers.
                let file = check(unsafe { libc::socket(domain, kind, protocol) }).unwrap();
                self.put(file, fd, Opened::Socket);
                same(fd)
            }
            Call::EpollCreate => {
                let fd = program::epoll_create().unwrap();
                // SAFETY: the call takes no pointers.
                let file = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).unwrap();
                self.put(file, fd, Opened::Set(self.sets));
                self.sets += 1;
                same(fd)
            }
            Call::Dup(old) => {
                let model = program::dup(old);
                // SAFETY: as above.
                let kernel =
                    check(unsafe { libc::fcntl(FIRST + old, libc::F_DUPFD_CLOEXEC, FIRST) });
                let kernel = kernel.map(|fd| fd - FIRST);
                if let Ok(fd) = kernel {
                    let opened = self.opened[&old].clone();
                    self.opened.insert(fd, opened);
                }
                (Outcome::Fd(model), Outcome::Fd(kernel))
            }
            Call::Dup2(old, new) => {
                let model = program::dup2(old, new);
                // SAFETY: both fds are this test's.
                let kernel =
                    check(unsafe { libc::dup3(FIRST + old, FIRST + new, libc::O_CLOEXEC) });
                if kernel.is_ok() {
                    let opened = self.opened[&old].clone();
                    self.opened.insert(new, opened);
                }
                (Outcome::Done(model), Outcome::Done(kernel.map(drop)))
            }
            Call::Close(fd) => {
                let model = program::close(fd);
                // SAFETY: the fd is this test's.
                let kernel = check(unsafe { libc::close(FIRST + fd) }).map(drop);
                self.opened.remove(&fd);
                (Outcome::Done(model), Outcome::Done(kernel))
            }
            Call::Write(fd) => {
                let Some(Opened::Pipe(write)) = self.opened.get(&fd) else {
                    return same(0);
                };
                let model = program::write(fd);
                // SAFETY: the buffer is as long as is claimed.
                let wrote =
                    unsafe { libc::write(write.as_raw_fd(), ptr::from_ref(&0_u8).cast(), 1) };
                assert_eq!(wrote, 1);
                (Outcome::Done(model), Outcome::Done(Ok(())))
            }
            Call::Read(fd) => {
                let Some(Opened::Pipe(_)) = self.opened.get(&fd) else {
                    return same(0);
                };
                let model = program::read_all(fd);
                let mut buffer = [0_u8; 256];
                let mut available = 0;
                // SAFETY: the buffer is as long as is claimed, and there is room for the count.
                unsafe {
                    check(libc::ioctl(FIRST + fd, libc::FIONREAD, &raw mut available)).unwrap();
                    if available > 0 {
                        libc::read(FIRST + fd, buffer.as_mut_ptr().cast(), buffer.len());
                    }
                }
                (Outcome::Done(model), Outcome::Done(Ok(())))
            }
            Call::EpollCtl(set, op, fd, interest) => {
                let model = program::epoll_ctl(set, op, fd, interest);
                let mut event = libc::epoll_event {
                    events: interest.events().bits(),
                    u64: interest.data(),
                };
                // SAFETY: the event is live.
                let kernel = check(unsafe {
                    libc::epoll_ctl(FIRST + set, op as i32, FIRST + fd, &raw mut event)
                });
                (Outcome::Done(model), Outcome::Done(kernel.map(drop)))
            }
            Call::EpollWait(set, room) => {
                let mut found = vec![Event::default(); room];
                let model = program::epoll_wait_now(set, &mut found);
                let model = model.map(|count| {
                    let found = found[..count].iter();
                    found
                        .map(|event| (event.events().bits(), event.data()))
                        .collect()
                });
                let mut found = vec![libc::epoll_event { events: 0, u64: 0 }; room];
                let room = libc::c_int::try_from(room).unwrap();
                // SAFETY: the buffer has room for as many events as are requested.
                let kernel =
                    check(unsafe { libc::epoll_wait(FIRST + set, found.as_mut_ptr(), room, 0) });
                let kernel = kernel.map(|count| {
                    let found = found[..usize::try_from(count).unwrap()].iter();
                    found.map(|event| (event.events, event.u64)).collect()
                });
                (Outcome::Events(model), Outcome::Events(kernel))
            }
            Call::Poll(ref list) => {
                let entry = |fd, events| libc::pollfd {
                    fd,
                    events,
                    revents: 0,
                };
                let mut model: Vec<_> =
                    list.iter().map(|&(fd, events)| entry(fd, events)).collect();
                let mut kernel: Vec<_> = list
                    .iter()
                    .map(|&(fd, events)| entry(FIRST + fd, events))
                    .collect();
                let found = program::poll_now(&mut model).unwrap();
                // SAFETY: the list is as long as is claimed.
                let ready = check(unsafe {
                    libc::poll(kernel.as_mut_ptr(), kernel.len().try_into().unwrap(), 0)
                });
                assert_eq!(ready, Ok(found.try_into().unwrap()));
                let revents = |list: &[libc::pollfd]| {
                    Outcome::Revents(list.iter().map(|entry| entry.revents).collect())
                };
                (revents(&model), revents(&kernel))
            }
        }
    }

    /// Chooses a call that is valid now.
    fn choose(&self, random: &mut Random) -> Call {
        let any = |random: &mut Random| RawFd::try_from(random.below(8)).unwrap();
        let of_kind = |random: &mut Random, is: fn(&Opened) -> bool| {
            let mut fds: Vec<_> = self
                .opened
                .iter()
                .filter(|(_, opened)| is(opened))
                .map(|(&fd, _)| fd)
                .collect();
            fds.sort_unstable();
            match fds.is_empty() || random.below(20) == 0 {
                true => any(random),
                false => random.of(&fds),
            }
        };
        let a_set =
            |random: &mut Random| of_kind(random, |opened| matches!(opened, Opened::Set(_)));
        let a_pipe =
            |random: &mut Random| of_kind(random, |opened| matches!(opened, Opened::Pipe(_)));
        let an_open = |random: &mut Random| of_kind(random, |_| true);
        let has_room = self.opened.len() < 9;
        match random.below(32) {
            0 | 1 if has_room => Call::Pipe,
            2 if has_room => Call::Socket,
            3 | 4 if has_room && self.sets < SETS => Call::EpollCreate,
            5 if has_room => Call::Dup(an_open(random)),
            6 => {
                let (old, new) = (an_open(random), any(random));
                match old == new {
                    true => Call::Close(new),
                    false => Call::Dup2(old, new),
                }
            }
            7 => Call::Close(any(random)),
            8..=11 => Call::Write(a_pipe(random)),
            12..=13 => Call::Read(a_pipe(random)),
            14..=21 => {
                let set = a_set(random);
                let fd = an_open(random);
                let op = random.of(&[Op::Add, Op::Add, Op::Mod, Op::Del]);
                let is_circle = match (self.opened.get(&set), self.opened.get(&fd)) {
                    (Some(Opened::Set(above)), Some(Opened::Set(below))) => above > below,
                    _ => false,
                };
                let op = if is_circle { Op::Del } else { op };
                Call::EpollCtl(set, op, fd, interest(random))
            }
            22..=28 => {
                let room = usize::try_from(1 + random.below(3)).unwrap();
                Call::EpollWait(a_set(random), room)
            }
            _ => {
                let events = [libc::POLLIN, libc::POLLOUT, libc::POLLIN | libc::POLLRDNORM];
                let count = 1 + random.below(3);
                let one = |random: &mut Random| (an_open(random), random.of(&events));
                Call::Poll((0..count).map(|_| one(random)).collect())
            }
        }
    }
}

fn interest(random: &mut Random) -> Event {
    let wanted = [
        Events::IN,
        Events::IN,
        Events::OUT,
        Events::IN | Events::OUT,
        Events::RDNORM,
        Events::empty(),
    ];
    let how = [
        Events::empty(),
        Events::empty(),
        Events::ET,
        Events::ET,
        Events::ONESHOT,
        Events::ET | Events::ONESHOT,
        Events::EXCLUSIVE,
        Events::EXCLUSIVE | Events::ET,
    ];
    Event::new(random.of(&wanted) | random.of(&how), random.below(1000))
}

fn same(fd: RawFd) -> (Outcome, Outcome) {
    (Outcome::Fd(Ok(fd)), Outcome::Fd(Ok(fd)))
}

/// Makes random calls until the outcomes differ. Returns all of the calls and their outcomes then.
fn differing(seed: u64, length: u64) -> Option<String> {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    random.below(2);
    let mut both = Both {
        opened: HashMap::new(),
        sets: 0,
    };
    let mut made = String::new();
    // These calls come before the random ones, so that most of those name an open file.
    let first = [Call::EpollCreate, Call::Pipe, Call::EpollCreate, Call::Pipe];
    for at in 0..length {
        let call = match first.get(usize::try_from(at).unwrap()) {
            Some(call) => call.clone(),
            None => both.choose(&mut random),
        };
        let (model, kernel) = both.make(&call);
        made += &format!("{call:?}: {model:?}\n");
        if model != kernel {
            return Some(format!("{made}but the kernel: {kernel:?}\n"));
        }
    }
    None
}

/// There is only one thread, so loom runs each sequence once.
#[test]
fn the_model_of_the_kernel_answers_as_the_kernel() {
    let mut shortest: Option<String> = None;
    let found = Arc::new(Mutex::new(None));
    for seed in 0..SEQUENCES {
        let length = 5 + seed % 60;
        let note = found.clone();
        super::model(0, move || *note.lock().unwrap() = differing(seed, length));
        if let Some(difference) = found.lock().unwrap().take()
            && shortest
                .as_ref()
                .is_none_or(|shortest| difference.len() < shortest.len())
        {
            shortest = Some(difference);
        }
    }
    if let Some(difference) = shortest {
        panic!("they differ:\n{difference}");
    }
}
