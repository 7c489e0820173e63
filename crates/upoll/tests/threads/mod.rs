//! Threads that are asleep, and child processes.
#![allow(dead_code, reason = "each test file uses a part")]

use std::any::Any;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Returns the calling thread's ID.
pub fn tid() -> i32 {
    // SAFETY: the call takes no arguments.
    unsafe { libc::gettid() }
}

/// Waits until thread `tid` of this process sleeps, or has ended. One look may meet a short sleep on the way, for a lock of the
/// allocator.
pub fn until_asleep(tid: i32) {
    let begun = Instant::now();
    let mut looks = 0;
    while looks < 3 {
        let Ok(stat) = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")) else {
            return;
        };
        let is_asleep = stat.rsplit(") ").next().unwrap().starts_with('S');
        looks = if is_asleep { looks + 1 } else { 0 };
        let guard = Duration::from_secs(60);
        assert!(begun.elapsed() < guard, "thread {tid} does not sleep");
        thread::sleep(Duration::from_micros(100));
    }
}

/// Waits until each other thread of this process sleeps, or has ended.
pub fn until_others_sleep() {
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let other: i32 = task.unwrap().file_name().to_str().unwrap().parse().unwrap();
        if other != tid() {
            until_asleep(other);
        }
    }
}

/// Starts a thread that runs `body`. Returns when the thread is asleep in it.
pub fn asleep<T: Send + 'static>(
    body: impl FnOnce() -> T + Send + 'static,
) -> (thread::JoinHandle<T>, i32) {
    let (send, receive) = mpsc::channel();
    let thread = thread::spawn(move || {
        send.send(tid()).unwrap();
        body()
    });
    let tid = receive.recv().unwrap();
    until_asleep(tid);
    (thread, tid)
}

/// Writes why a child has panicked. The message itself is in the memory of the child, where the test harness keeps it.
fn report(panic: &(dyn Any + Send)) {
    let message = panic.downcast_ref::<String>().map(String::as_str);
    let message = message.or_else(|| panic.downcast_ref().copied());
    let _ = writeln!(
        std::io::stderr(),
        "in a child: {}",
        message.unwrap_or_default()
    );
}

/// The exit status of a child in which no thread can start.
const NO_THREADS: i32 = 77;

/// Returns whether a thread can start. A start and an end take a lock of `std`'s. The child of a fork has that lock as it was
/// then, so a thread of the parent that held it keeps each thread of the child from starting.
fn can_start_threads() -> bool {
    static HAS_STARTED: AtomicBool = AtomicBool::new(false);
    HAS_STARTED.store(false, Ordering::Relaxed);
    let thread = thread::spawn(|| HAS_STARTED.store(true, Ordering::Relaxed));
    let begun = Instant::now();
    while !HAS_STARTED.load(Ordering::Relaxed) {
        if begun.elapsed() > Duration::from_secs(10) {
            return false;
        }
        thread::sleep(Duration::from_micros(20));
    }
    thread.join().is_ok()
}

/// Runs `body` in a child process; it must not panic there. A child that hangs in it is killed, and ends with its parent.
pub fn in_child(body: impl FnOnce()) {
    const LIMIT: u32 = 300;
    const MOST_CHILDREN: u32 = 5;
    for _ in 0..MOST_CHILDREN {
        // SAFETY: the child runs what needs no lock but the allocator's, which the C library takes care of, and that which
        // `can_start_threads` asks for. It ends without running anything of this process.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: the calls take no pointers.
            unsafe {
                libc::alarm(LIMIT);
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong);
            }
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                if !can_start_threads() {
                    // SAFETY: as above.
                    unsafe { libc::_exit(NO_THREADS) };
                }
                body();
            }));
            if let Err(panic) = &outcome {
                report(&**panic);
            }
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(outcome.is_err())) };
        }
        let mut status = 0;
        // SAFETY: the status is live.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        if !libc::WIFEXITED(status) || libc::WEXITSTATUS(status) != NO_THREADS {
            assert_eq!(status, 0, "the child failed");
            return;
        }
        let _ = writeln!(
            std::io::stderr(),
            "in a child: no thread can start; another child is made"
        );
    }
    panic!("no thread can start in {MOST_CHILDREN} children");
}
