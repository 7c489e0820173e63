//! Statistics at the end of a run.

use std::ffi::CStr;
use std::fmt::{self, Write};
use std::sync::atomic::Ordering;

use crate::raw::kernel;
use crate::settings;
use crate::shared::{self, Shared, Worker};

/// Text in a buffer on the stack, written out when it is full.
struct Output {
    file: isize,
    text: [u8; 4096],
    length: usize,
}

impl Output {
    fn open(path: &CStr) -> Self {
        let flags =
            libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        let file = if path.is_empty() {
            2
        } else {
            kernel!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o644)
        };
        Output {
            file,
            text: [0; 4096],
            length: 0,
        }
    }

    fn flush(&mut self) {
        kernel!(SYS_write, self.file, self.text.as_ptr(), self.length);
        self.length = 0;
    }
}

impl Write for Output {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for &byte in text.as_bytes() {
            if self.length == self.text.len() {
                self.flush();
            }
            self.text[self.length] = byte;
            self.length += 1;
        }
        Ok(())
    }
}

/// Prints the statistics of the run, if they are asked for.
pub(crate) fn report() {
    if let (Some(path), Some(shared)) = (settings::stats(), shared::get()) {
        let mut output = Output::open(path);
        // Writing to the buffer does not fail.
        let _ = print(&mut output, shared);
        output.flush();
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a ratio is printed with three digits"
)]
fn print(output: &mut Output, shared: &Shared) -> fmt::Result {
    let workers = || {
        shared
            .workers
            .iter()
            .filter(|worker| worker.id.load(Ordering::Relaxed) != 0)
    };
    let accepts = |worker: &Worker| worker.accepts.load(Ordering::Relaxed);
    let (mut number, mut sum, mut squares) = (0_u64, 0_u64, 0.0);
    for worker in workers() {
        number += 1;
        sum += accepts(worker);
        squares += (accepts(worker) as f64).powi(2);
    }
    writeln!(
        output,
        "{:>10} {:>10} {:>10} {:>10} {:>10} {:>7} {:>10} {:>8}",
        "process", "thread", "wakeups", "empty", "accepts", "share", "rotations", "rescues"
    )?;
    for worker in workers() {
        let id = worker.id.load(Ordering::Relaxed);
        writeln!(
            output,
            "{:>10} {:>10} {:>10} {:>10} {:>10} {:>6.1}% {:>10} {:>8}",
            id >> 32,
            id & u64::from(u32::MAX),
            worker.wakeups.load(Ordering::Relaxed),
            worker.empty.load(Ordering::Relaxed),
            accepts(worker),
            100.0 * accepts(worker) as f64 / (sum.max(1)) as f64,
            worker.rotations.load(Ordering::Relaxed),
            worker.rescues.load(Ordering::Relaxed),
        )?;
    }
    // Jain's index: 1 if all workers accepted as much, 1/number if one accepted all.
    let fairness = if sum == 0 {
        1.0
    } else {
        (sum as f64).powi(2) / (number as f64 * squares)
    };
    writeln!(
        output,
        "fairness {fairness:.3} ({number} workers, {sum} connections)"
    )
}
