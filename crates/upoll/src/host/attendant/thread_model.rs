//! The thread of the attendant in a model, which waits for its end.

use std::sync::Mutex;

use loom::thread::JoinHandle;

use super::Attendant;
use crate::errno::Errno;

loom::lazy_static! {
    static ref STARTED: Mutex<Vec<JoinHandle<()>>> = Mutex::new(Vec::new());
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "a model always has a thread for it"
)]
pub(super) fn start(attendant: &'static Attendant) -> Result<(), Errno> {
    let started = loom::thread::spawn(|| attendant.attend());
    STARTED.lock().unwrap().push(started);
    Ok(())
}

/// Waits for the end of all attendants, once nothing is registered and time passes.
pub fn join_attendants() {
    loop {
        let Some(thread) = STARTED.lock().unwrap().pop() else {
            return;
        };
        thread.join().unwrap();
    }
}
