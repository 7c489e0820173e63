//! Calls that must return.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Runs `body` on a thread of its own, and fails if it does not return.
pub fn returns(body: impl FnOnce() + Send + 'static) {
    let (ended, end) = mpsc::channel();
    let running = thread::spawn(move || {
        body();
        let _ = ended.send(());
    });
    match end.recv_timeout(Duration::from_secs(120)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("a call does not return"),
        _ => running.join().unwrap(),
    }
}
