//! Sleeping threads in both worlds.

use std::fmt::Debug;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use upoll::{Errno, Event, PollFd};

use super::{Kernel, Twin, same};

/// The result of a wait: masks and data.
pub type Events = Result<Vec<(u32, u64)>, Errno>;

/// A thread that was seen asleep.
pub struct Sleeper<T> {
    thread: thread::JoinHandle<T>,
    tid: i32,
    sleeps: u64,
}

/// Returns whether the thread sleeps, and how often it has gone to sleep so far.
fn sleeps(tid: i32) -> (bool, u64) {
    let Ok(status) = std::fs::read_to_string(format!("/proc/self/task/{tid}/status")) else {
        return (false, 0);
    };
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().trim().to_owned()
    };
    let sleeps = field("voluntary_ctxt_switches:").parse().unwrap_or(0);
    (field("State:").starts_with('S'), sleeps)
}

/// Waits until the thread sleeps and stays asleep. Returns the ordinal number of that sleep.
fn until_asleep(tid: i32) -> u64 {
    let mut last = (false, 0);
    for _ in 0..60_000 {
        let now = sleeps(tid);
        if now.0 && now == last {
            return now.1;
        }
        last = now;
        thread::sleep(Duration::from_millis(1));
    }
    panic!("thread {tid} does not sleep");
}

impl<T: Send + 'static> Sleeper<T> {
    /// Starts a thread and waits until it sleeps.
    pub fn start(body: impl FnOnce() -> T + Send + 'static) -> Self {
        let (send, receive) = mpsc::channel();
        let thread = thread::spawn(move || {
            // SAFETY: the call takes no arguments.
            send.send(unsafe { libc::gettid() }).unwrap();
            body()
        });
        let tid = receive.recv().unwrap();
        let sleeps = until_asleep(tid);
        Sleeper {
            thread,
            tid,
            sleeps,
        }
    }

    /// Returns whether the thread is still in the sleep in which it was first seen. A wakeup ends
    /// this at once, even before the thread runs again.
    pub fn undisturbed(&self) -> bool {
        sleeps(self.tid) == (true, self.sleeps)
    }

    /// Joins the thread.
    pub fn join(self) -> T {
        self.thread.join().unwrap()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: sends a signal that has a handler to a thread of this process.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), self.tid, signal) };
    }
}

/// Two threads, one in each world, that sleep in the same call.
pub struct Asleep<T> {
    upoll: Sleeper<T>,
    kernel: Sleeper<T>,
}

/// Starts a thread in each world and waits until both sleep.
pub fn asleep<T: Send + 'static>(
    upoll: impl FnOnce() -> T + Send + 'static,
    kernel: impl FnOnce() -> T + Send + 'static,
) -> Asleep<T> {
    Asleep {
        upoll: Sleeper::start(upoll),
        kernel: Sleeper::start(kernel),
    }
}

impl<T: PartialEq + Debug + Send + 'static> Asleep<T> {
    /// Returns whether both are still in the sleep in which they were first seen.
    pub fn undisturbed(&self) -> bool {
        let (upoll, kernel) = (self.upoll.undisturbed(), self.kernel.undisturbed());
        same("undisturbed", upoll, kernel)
    }

    /// Waits until both sleep again, if they were woken and went back to sleep.
    pub fn until_asleep(&mut self) {
        for sleeper in [&mut self.upoll, &mut self.kernel] {
            sleeper.sleeps = until_asleep(sleeper.tid);
            assert!(!sleeper.thread.is_finished());
        }
    }

    pub fn signal(&self, signal: i32) {
        self.upoll.signal(signal);
        self.kernel.signal(signal);
    }

    /// Joins both threads, and returns their common result.
    pub fn join(self) -> T {
        same("join", self.upoll.join(), self.kernel.join())
    }
}

/// Joins all threads and returns their results in order. For tests in which it is undefined which
/// thread returns which result.
pub fn join_in_any_order<T: Ord + Debug + Send + 'static>(all: Vec<Asleep<T>>) -> Vec<T> {
    let (upoll, kernel): (Vec<_>, Vec<_>) = all
        .into_iter()
        .map(|both| (both.upoll.join(), both.kernel.join()))
        .unzip();
    let sorted = |mut results: Vec<T>| {
        results.sort();
        results
    };
    same("join", sorted(upoll), sorted(kernel))
}

extern "C" fn on_signal(_: i32) {}

/// Installs a handler for `signal`, with `SA_RESTART` if asked.
pub fn handle(signal: i32, restart: bool) {
    // SAFETY: a zeroed sigaction is valid, and the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as extern "C" fn(i32) as usize;
        action.sa_flags = if restart { libc::SA_RESTART } else { 0 };
        let installed = libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        assert_eq!(installed, 0);
    }
}

impl Twin {
    /// Sleeps in `epoll_wait` without a time limit.
    pub fn sleep_in(&self, set: usize, room: usize) -> Asleep<Events> {
        let (epoll, fd) = (self.set(set).unwrap().clone(), self.kernel.fd(set));
        asleep(
            move || {
                let mut events = vec![Event::default(); room];
                let ready = epoll.wait(&mut events, None)?;
                let pair = |event: &Event| (event.events().bits(), event.data());
                Ok(events[..ready].iter().map(pair).collect())
            },
            move || Kernel::wait_for(fd, room, -1),
        )
    }

    /// Sleeps in a `poll` of one fd without a time limit. Returns its events.
    pub fn sleep_polling(&self, number: usize, wanted: upoll::Events) -> Asleep<u32> {
        let (object, fd) = (
            self.objects[number].clone().unwrap(),
            self.kernel.fd(number),
        );
        asleep(
            move || {
                let mut entry = [PollFd::from_target(object.target(number, fd), wanted)];
                assert_eq!(upoll::poll(&mut entry, None), Ok(1));
                entry[0].revents().bits()
            },
            move || {
                let mut entry = libc::pollfd {
                    fd,
                    events: i16::try_from(wanted.bits()).unwrap(),
                    revents: 0,
                };
                // SAFETY: one live pollfd.
                assert_eq!(unsafe { libc::poll(&raw mut entry, 1, -1) }, 1);
                u32::from(entry.revents.cast_unsigned())
            },
        )
    }

    /// Writes to the counter. Waits for room if the counter is blocking.
    pub fn put(&self, number: usize, value: u64) -> Result<(), Errno> {
        let upoll = self.counter(number).write(value);
        let kernel = self.kernel.write(number, value);
        same(("put", number, value), upoll, kernel)
    }

    /// Reads the counter. Waits for a count if the counter is blocking.
    pub fn take(&self, number: usize) -> Result<u64, Errno> {
        let upoll = self.counter(number).read();
        same(("take", number), upoll, self.kernel.read(number))
    }

    /// Sleeps in a read of a blocking counter.
    pub fn sleep_reading(&self, number: usize) -> Asleep<Result<u64, Errno>> {
        let (counter, fd) = (self.counter(number).clone(), self.kernel.fd(number));
        asleep(move || counter.read(), move || Kernel::read_from(fd))
    }

    /// Sleeps in a write to a blocking counter.
    pub fn sleep_writing(&self, number: usize, value: u64) -> Asleep<Result<(), Errno>> {
        let (counter, fd) = (self.counter(number).clone(), self.kernel.fd(number));
        asleep(
            move || counter.write(value),
            move || Kernel::write_to(fd, value),
        )
    }
}
