//! Child processes of tests, and the harness that runs each test in a process of its own.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;
use std::thread::sleep;
use std::time::Duration;

pub type Test = (&'static str, fn());

/// Names a test after its function.
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub const TESTS: &[crate::processes::Test] = &[$((stringify!($name), $name)),*];
    };
}
pub(crate) use tests;

/// The seconds after which a test counts as hung. Many times what a test takes on a busy machine.
const LIMIT: u32 = 900;

/// Runs the tests whose names contain one of the arguments, or all.
pub fn run(tests: &[Test]) {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let only: Vec<_> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    let is_chosen = |name: &str| only.is_empty() || only.iter().any(|&part| name.contains(part));
    let chosen = tests.iter().filter(|(name, _)| is_chosen(name));
    if arguments.iter().any(|argument| argument == "--list") {
        chosen.for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    let mut failed = Vec::new();
    for (name, body) in chosen {
        let test = Child::new(|_| {
            // SAFETY: the call takes no pointers.
            unsafe { libc::alarm(LIMIT) };
            body();
        });
        let passed = test.join() == Ok(0);
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        if !passed {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "failed: {failed:?}");
}

/// A child process.
pub struct Child {
    pub pid: i32,
    line: UnixStream,
}

/// The signal that killed a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Killed(pub i32);

impl Child {
    /// Forks a child that runs `body`, with a line to its parent, and exits. The child dies with
    /// its parent.
    pub fn new(body: impl FnOnce(&mut UnixStream)) -> Self {
        let (line, mut line_there) = UnixStream::pair().unwrap();
        // SAFETY: this process has one thread, so no lock is held by a thread that the child lacks.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid > 0 {
            return Child { pid, line };
        }
        drop(line);
        // SAFETY: the call takes no pointers.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let ended = catch_unwind(AssertUnwindSafe(|| body(&mut line_there)));
        // SAFETY: ends the process without running the parent's destructors.
        unsafe { libc::_exit(if ended.is_ok() { 0 } else { 101 }) }
    }

    /// Waits for the child. Returns its exit status.
    pub fn join(self) -> Result<i32, Killed> {
        let mut status = 0;
        loop {
            // SAFETY: `status` is live.
            let found = unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
            if found == self.pid {
                break;
            }
        }
        if libc::WIFEXITED(status) {
            Ok(libc::WEXITSTATUS(status))
        } else {
            Err(Killed(libc::WTERMSIG(status)))
        }
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the child was not waited for, so the pid is still its own.
        assert_eq!(unsafe { libc::kill(self.pid, signal) }, 0);
    }

    pub fn kill(self) {
        self.signal(libc::SIGKILL);
        assert_eq!(self.join(), Err(Killed(libc::SIGKILL)));
    }

    /// Receives the child's next message.
    pub fn hear(&mut self) -> String {
        hear(&mut self.line)
    }

    /// Releases the child from [`await_go`].
    pub fn go(&mut self) {
        self.line.write_all(b"g").unwrap();
    }

    /// Waits until the child has announced that it is about to sleep, and sleeps.
    pub fn until_asleep(&mut self) {
        assert_eq!(self.hear(), "sleeps");
        self.until_state_is_sleep();
    }

    pub fn until_state_is_sleep(&self) {
        while !self.is_asleep() {
            sleep(Duration::from_micros(200));
        }
    }

    pub fn is_asleep(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap();
        stat.rsplit(") ").next().unwrap().starts_with('S')
    }
}

/// A child that performs one operation, one instruction at a time.
pub struct Stepped {
    child: Child,
    /// True if the operation is complete.
    pub is_done: bool,
}

impl Stepped {
    pub fn new(body: impl FnOnce()) -> Self {
        let child = Child::new(|_| {
            // SAFETY: no memory; from here on the parent sees every stop.
            unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
            stop();
            body();
            stop();
        });
        let mut stepped = Stepped {
            child,
            is_done: false,
        };
        assert_eq!(stepped.await_stop(), libc::SIGSTOP);
        stepped
    }

    fn await_stop(&mut self) -> i32 {
        let mut status = 0;
        // SAFETY: `status` is live.
        let found = unsafe { libc::waitpid(self.child.pid, &raw mut status, 0) };
        assert!(found == self.child.pid && libc::WIFSTOPPED(status));
        libc::WSTOPSIG(status)
    }

    /// Runs one instruction, or one system call.
    pub fn step(&mut self) {
        // SAFETY: the child is ours and stopped.
        let stepped = unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, self.child.pid, 0, 0) };
        assert_eq!(stepped, 0);
        self.is_done = self.await_stop() == libc::SIGSTOP;
    }

    pub fn kill(self) {
        self.child.kill();
    }
}

/// Binds the calling thread, and the children that it forks from here on, to one CPU.
pub fn stay_on_this_cpu() {
    // SAFETY: `cpus` is live, and its size is passed.
    unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        let this = usize::try_from(libc::sched_getcpu()).unwrap();
        libc::CPU_SET(this, &mut cpus);
        assert_eq!(
            libc::sched_setaffinity(0, size_of_val(&cpus), &raw const cpus),
            0
        );
    }
}

fn stop() {
    // SAFETY: stops this process until its parent continues it.
    unsafe { libc::raise(libc::SIGSTOP) };
}

fn hear(line: &mut UnixStream) -> String {
    let mut length = [0; 4];
    line.read_exact(&mut length).unwrap();
    let mut text = vec![0; u32::from_ne_bytes(length) as usize];
    line.read_exact(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

/// Sends a message to the other end of the line.
pub fn say(line: &mut UnixStream, text: &str) {
    let length = u32::try_from(text.len()).unwrap();
    line.write_all(&length.to_ne_bytes()).unwrap();
    line.write_all(text.as_bytes()).unwrap();
}

/// Announces that the child is about to sleep: see [`Child::until_asleep`].
pub fn about_to_sleep(line: &mut UnixStream) {
    say(line, "sleeps");
}

/// Waits for [`Child::go`].
pub fn await_go(line: &mut UnixStream) {
    line.read_exact(&mut [0]).unwrap();
}

/// Returns counters that children share with their parent.
pub fn shared_numbers(count: usize) -> &'static [AtomicU64] {
    // SAFETY: maps zeroed memory, which is never unmapped.
    unsafe {
        let memory = libc::mmap(
            std::ptr::null_mut(),
            count * size_of::<AtomicU64>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(memory, libc::MAP_FAILED);
        std::slice::from_raw_parts(memory.cast(), count)
    }
}
