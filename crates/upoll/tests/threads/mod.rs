//! Waits until threads are asleep.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Returns the calling thread's ID.
pub fn tid() -> i32 {
    // SAFETY: the call takes no arguments.
    unsafe { libc::gettid() }
}

/// Waits until thread `tid` of this process sleeps.
pub fn until_asleep(tid: i32) {
    for _ in 0..20_000 {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
        if stat.rsplit(") ").next().unwrap().starts_with('S') {
            return;
        }
        thread::sleep(Duration::from_micros(100));
    }
    panic!("thread {tid} does not sleep");
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
