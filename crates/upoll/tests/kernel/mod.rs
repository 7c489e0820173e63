//! The host kernel as the oracle: every object has a twin in the kernel, every operation is applied
//! to both, and every result is compared.
#![allow(dead_code, reason = "each test crate uses a part of it")]

#[cfg(feature = "std")]
pub mod asleep;
#[cfg(feature = "std")]
pub mod calls;
pub mod streams;
#[path = "../twin/mod.rs"]
pub mod twin;

use std::fmt::Debug;
#[cfg(feature = "std")]
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, Once};

use upoll::{
    Epoll, Errno, Event, EventFd, EventFdFlags, Events, PipeReader, PipeWriter, StreamSocket,
    Target,
};

pub use twin::same;

#[derive(Clone)]
pub enum Object {
    Set(Epoll),
    Counter(EventFd),
    Reader(PipeReader),
    Writer(PipeWriter),
    Socket(StreamSocket),
    /// A kernel eventfd in both worlds.
    #[cfg(feature = "std")]
    Descriptor,
}

impl Object {
    /// Returns the target of upoll's calls; `fd` is the kernel fd at the same number.
    #[cfg_attr(
        not(feature = "std"),
        expect(unused_variables, reason = "no descriptors")
    )]
    pub fn target(&self, number: usize, fd: i32) -> Target<'_> {
        let file = match self {
            Object::Set(set) => set.as_file_ref(),
            Object::Counter(counter) => counter.as_file_ref(),
            Object::Reader(reader) => reader.as_file_ref(),
            Object::Writer(writer) => writer.as_file_ref(),
            Object::Socket(socket) => socket.as_file_ref(),
            // SAFETY: the fd is open as long as the object is at its number.
            #[cfg(feature = "std")]
            Object::Descriptor => return Target::Kernel(unsafe { BorrowedFd::borrow_raw(fd) }),
        };
        Target::File(file.with_fd(i32::try_from(number).unwrap()))
    }
}

/// The kernel's side. Its fds come from a range of this test's own, so that a number that is closed
/// and opened again is the same fd in the kernel too.
pub struct Kernel {
    base: i32,
}

impl Kernel {
    pub fn fd(&self, number: usize) -> i32 {
        self.base + i32::try_from(number).unwrap()
    }

    /// Moves a new fd to the number.
    pub fn place(&self, fresh: i32, number: usize) {
        assert!(fresh >= 0);
        // SAFETY: both fds are this test's own.
        unsafe {
            assert_eq!(libc::dup2(fresh, self.fd(number)), self.fd(number));
            libc::close(fresh);
        }
    }

    pub fn result(result: i64) -> Result<i64, Errno> {
        if result >= 0 {
            return Ok(result);
        }
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap();
        Err(Errno::from_raw(errno))
    }

    pub fn ctl(
        &self,
        set: usize,
        op: i32,
        target: usize,
        events: Events,
        data: u64,
    ) -> Result<(), Errno> {
        let mut event = libc::epoll_event {
            events: events.bits(),
            u64: data,
        };
        // SAFETY: the event outlives the call.
        let result = unsafe { libc::epoll_ctl(self.fd(set), op, self.fd(target), &raw mut event) };
        Self::result(result.into()).map(drop)
    }

    pub fn wait(&self, set: usize, room: usize) -> Result<Vec<(u32, u64)>, Errno> {
        Self::wait_for(self.fd(set), room, 0)
    }

    /// Calls `epoll_wait` with `timeout` in milliseconds.
    pub fn wait_for(set: i32, room: usize, timeout: i32) -> Result<Vec<(u32, u64)>, Errno> {
        let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; room];
        // SAFETY: the buffer has the room that is claimed.
        let ready = unsafe {
            libc::epoll_wait(
                set,
                events.as_mut_ptr(),
                i32::try_from(room).unwrap(),
                timeout,
            )
        };
        let ready = usize::try_from(Self::result(ready.into())?).unwrap();
        Ok(events[..ready].iter().map(|e| (e.events, e.u64)).collect())
    }

    pub fn write(&self, number: usize, value: u64) -> Result<(), Errno> {
        Self::write_to(self.fd(number), value)
    }

    pub fn write_to(counter: i32, value: u64) -> Result<(), Errno> {
        // SAFETY: eight bytes are read from `value`.
        let result = unsafe { libc::write(counter, (&raw const value).cast(), 8) };
        Self::result(result as i64).map(drop)
    }

    pub fn read(&self, number: usize) -> Result<u64, Errno> {
        Self::read_from(self.fd(number))
    }

    pub fn read_from(counter: i32) -> Result<u64, Errno> {
        let mut value = 0_u64;
        // SAFETY: eight bytes are written to `value`.
        let result = unsafe { libc::read(counter, (&raw mut value).cast(), 8) };
        Self::result(result as i64).map(|_| value)
    }

    /// Returns the events that `poll(2)` reports for the fd.
    pub fn mask(&self, number: usize) -> u32 {
        let mut entry = libc::pollfd {
            fd: self.fd(number),
            events: !0,
            revents: 0,
        };
        // SAFETY: one live pollfd.
        unsafe { libc::poll(&raw mut entry, 1, 0) };
        u32::from(entry.revents.cast_unsigned())
    }

    pub fn close(&self, number: usize) {
        // SAFETY: the fd is this test's own.
        unsafe { libc::close(self.fd(number)) };
    }
}

/// Both worlds, in lockstep.
pub struct Twin {
    /// The sort key of reported events. Their order is compared only between different keys.
    pub rank: fn(&(u32, u64)) -> (u64, u32),
    pub objects: Vec<Option<Object>>,
    pub kernel: Kernel,
    /// The position in the byte pattern for the next write.
    sent: usize,
}

impl Drop for Twin {
    fn drop(&mut self) {
        for number in 0..self.objects.len() {
            self.close(number);
        }
        let mut ranges = RANGES.lock().unwrap();
        ranges.free.push((self.kernel.base, self.objects.len()));
    }
}

/// Fds that no twin uses, and the first fd above all used ones.
struct Ranges {
    free: Vec<(i32, usize)>,
    next: i32,
}

static RANGES: Mutex<Ranges> = Mutex::new(Ranges {
    free: Vec::new(),
    next: 0,
});

impl Twin {
    /// Makes a twin with `numbers` numbers that no other test uses at the same time.
    pub fn new(numbers: usize) -> Self {
        static ROOM: Once = Once::new();
        // SAFETY: raises this process's own limit of fds.
        ROOM.call_once(|| unsafe {
            let mut limit: libc::rlimit = std::mem::zeroed();
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
            // Above the lowest free fds, and above the library's own, which begin at 256.
            let first = (limit.rlim_max / 4).min(4_000);
            RANGES.lock().unwrap().next = i32::try_from(first).unwrap();
        });
        let mut ranges = RANGES.lock().unwrap();
        let free = ranges.free.iter().position(|&(_, size)| size == numbers);
        let base = match free {
            Some(at) => ranges.free.swap_remove(at).0,
            None => {
                let base = ranges.next;
                ranges.next += i32::try_from(numbers).unwrap();
                base
            }
        };
        Twin {
            rank: |_| (0, 0),
            objects: vec![None; numbers],
            kernel: Kernel { base },
            sent: 0,
        }
    }

    pub fn close(&mut self, number: usize) {
        if self.objects[number].take().is_some() {
            self.kernel.close(number);
        }
    }

    pub fn open_set(&mut self, number: usize) {
        self.close(number);
        // SAFETY: the call takes no pointers.
        self.kernel.place(unsafe { libc::epoll_create1(0) }, number);
        self.objects[number] = Some(Object::Set(Epoll::new().unwrap()));
    }

    /// Opens a kernel eventfd in both worlds.
    #[cfg(feature = "std")]
    pub fn open_descriptor(&mut self, number: usize) {
        self.close(number);
        // SAFETY: the call takes no pointers.
        let fresh = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK) };
        self.kernel.place(fresh, number);
        self.objects[number] = Some(Object::Descriptor);
    }

    /// Opens a nonblocking counter.
    pub fn open_counter(&mut self, number: usize, initial: u32, semaphore: bool) {
        let mut flags = EventFdFlags::NONBLOCK;
        flags.set(EventFdFlags::SEMAPHORE, semaphore);
        self.open_counter_with(number, initial, flags);
    }

    pub fn open_counter_with(&mut self, number: usize, initial: u32, flags: EventFdFlags) {
        let counter = EventFd::with_flags(initial, flags).unwrap();
        self.place_counter(number, initial, flags, counter);
    }

    /// Opens a nonblocking counter that other processes could share.
    #[cfg(feature = "std")]
    pub fn open_shared_counter(&mut self, number: usize, initial: u32, semaphore: bool) {
        let mut flags = EventFdFlags::NONBLOCK;
        flags.set(EventFdFlags::SEMAPHORE, semaphore);
        let counter = EventFd::shared(initial, flags).unwrap();
        self.place_counter(number, initial, flags, counter);
    }

    fn place_counter(
        &mut self,
        number: usize,
        initial: u32,
        flags: EventFdFlags,
        counter: EventFd,
    ) {
        self.close(number);
        // SAFETY: the call takes no pointers.
        let fresh = unsafe { libc::eventfd(initial, flags.bits().cast_signed()) };
        self.kernel.place(fresh, number);
        self.objects[number] = Some(Object::Counter(counter));
    }

    pub fn dup(&mut self, from: usize, to: usize) {
        if from == to || self.objects[from].is_none() {
            return;
        }
        self.close(to);
        // SAFETY: both fds are this test's own.
        unsafe { libc::dup2(self.kernel.fd(from), self.kernel.fd(to)) };
        self.objects[to] = self.objects[from].clone();
    }

    /// Returns upoll's object at the number.
    pub fn target(&self, number: usize) -> Option<Target<'_>> {
        let fd = self.kernel.fd(number);
        Some(self.objects[number].as_ref()?.target(number, fd))
    }

    pub fn set(&self, number: usize) -> Option<&Epoll> {
        match &self.objects[number] {
            Some(Object::Set(set)) => Some(set),
            _ => None,
        }
    }

    pub fn ctl(
        &self,
        op: i32,
        set: usize,
        target: usize,
        events: Events,
        data: u64,
    ) -> Result<(), Errno> {
        let (Some(epoll), Some(file)) = (self.set(set), self.target(target)) else {
            return Ok(());
        };
        let event = Event::new(events, data);
        let result = match op {
            libc::EPOLL_CTL_ADD => epoll.add(&file, event),
            libc::EPOLL_CTL_MOD => epoll.modify(&file, event),
            _ => epoll.delete(&file),
        };
        let kernel = self.kernel.ctl(set, op, target, events, data);
        same(("ctl", op, set, target, events), result, kernel)
    }

    pub fn add(&self, set: usize, target: usize, events: Events, data: u64) -> Result<(), Errno> {
        self.ctl(libc::EPOLL_CTL_ADD, set, target, events, data)
    }

    pub fn modify(
        &self,
        set: usize,
        target: usize,
        events: Events,
        data: u64,
    ) -> Result<(), Errno> {
        self.ctl(libc::EPOLL_CTL_MOD, set, target, events, data)
    }

    pub fn delete(&self, set: usize, target: usize) -> Result<(), Errno> {
        self.ctl(libc::EPOLL_CTL_DEL, set, target, Events::empty(), 0)
    }

    pub fn wait(&self, number: usize, room: usize) -> Result<Vec<(u32, u64)>, Errno> {
        let Some(set) = self.set(number) else {
            return Ok(Vec::new());
        };
        let mut events = vec![Event::default(); room];
        let upoll = set.try_wait(&mut events).map(|ready| {
            events[..ready]
                .iter()
                .map(|event| (event.events().bits(), event.data()))
                .collect()
        });
        let kernel = self.kernel.wait(number, room);
        self.same_events(("wait", number, room), upoll, kernel)
    }

    /// Asserts that two waits returned the same events.
    pub fn same_events(
        &self,
        what: impl Debug,
        mut upoll: Result<Vec<(u32, u64)>, Errno>,
        mut kernel: Result<Vec<(u32, u64)>, Errno>,
    ) -> Result<Vec<(u32, u64)>, Errno> {
        for events in [&mut upoll, &mut kernel].into_iter().flatten() {
            events.sort_by_key(self.rank);
        }
        same(what, upoll, kernel)
    }

    pub fn data(&self, set: usize, room: usize) -> Vec<u64> {
        let events = self.wait(set, room).unwrap();
        events.into_iter().map(|(_, data)| data).collect()
    }

    pub fn counter(&self, number: usize) -> &EventFd {
        match &self.objects[number] {
            Some(Object::Counter(counter)) => counter,
            _ => panic!("{number} is no counter"),
        }
    }

    /// Compares the events that `poll(2)` reports.
    pub fn mask(&self, number: usize) -> Events {
        let Some(Target::File(file)) = self.target(number) else {
            panic!("{number} is no user-level object");
        };
        let ready = file.ready();
        let kernel = self.kernel.mask(number);
        Events::from_bits_retain(same(("mask", number), ready.bits(), kernel))
    }

    pub fn write(&self, number: usize, value: u64) {
        if let Some(Object::Counter(counter)) = &self.objects[number] {
            let upoll = counter.try_write(value);
            let _ = same(
                ("write", number, value),
                upoll,
                self.kernel.write(number, value),
            );
        }
    }

    pub fn read(&self, number: usize) {
        if let Some(Object::Counter(counter)) = &self.objects[number] {
            let _ = same(
                ("read", number),
                counter.try_read(),
                self.kernel.read(number),
            );
        }
    }

    /// Compares the lines of a set's fdinfo without the fields that name the file on one side only.
    /// Sorted, because the kernel's order is by address.
    pub fn fdinfo(&self, number: usize) {
        let Some(set) = self.set(number) else { return };
        let path = format!("/proc/self/fdinfo/{}", self.kernel.fd(number));
        let kernel = std::fs::read_to_string(path).unwrap();
        // upoll prints the numbers of this twin, except for kernel fds.
        let base = self.kernel.base;
        let own = |number: i32| if number < base { number } else { number - base };
        let lines = |text: &str| {
            let mut lines: Vec<_> = text
                .lines()
                .filter_map(|line| line.strip_prefix("tfd:"))
                .map(|line| {
                    let (number, rest) = line.split_once(" events:").unwrap();
                    assert_eq!(number.len(), 9);
                    let number: i32 = number.trim().parse().unwrap();
                    (own(number), rest.split("  pos:").next().unwrap().to_owned())
                })
                .collect();
            lines.sort();
            lines
        };
        same("fdinfo", lines(&set.fdinfo().unwrap()), lines(&kernel));
    }
}
