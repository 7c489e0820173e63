//! Statistics at the end of a run.

use std::ffi::{CStr, c_int};
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicIsize, AtomicU64, Ordering};

use upoll_fair_state::Table;
use upoll_sys::warning;

use crate::raw::kernel;
use crate::settings;
use crate::shared;

/// Text in a buffer on the stack, written out when it is full. A signal handler that has interrupted `malloc` may end the process.
struct Output {
    file: isize,
    text: [u8; 4096],
    length: usize,
}

/// The fd of the file, kept from the start of the process: at its end the process may have given up the
/// rights that opening the file takes.
static KEPT: AtomicIsize = AtomicIsize::new(-1);
/// The identity of that file (`st_dev`, `st_ino`). The program may close the fd and open another file there.
static KEPT_IS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Out of the way of programs that expect low fds.
const HIGH: c_int = 900;

fn open(path: &CStr) -> isize {
    let flags =
        libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    kernel!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o644)
}

fn identity(file: isize) -> Option<[u64; 2]> {
    // SAFETY: all zeros is a valid value.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    let is_open = file >= 0 && kernel!(SYS_fstat, file, &raw mut found) == 0;
    is_open.then_some([found.st_dev, found.st_ino])
}

/// Opens the file for the statistics if this process is to write them. Called once, by the constructor.
pub(crate) fn prepare() {
    let Some(path) = settings::stats().filter(|path| !path.is_empty() && shared::is_root()) else {
        return;
    };
    let low = open(path);
    if let Err(error) = upoll_sys::result(low) {
        // The report of a program that another user executes would otherwise be missing without a word.
        warning::write("cannot write statistics to", path, error);
    }
    if let Some(found) = identity(low) {
        let kept = kernel!(SYS_fcntl, low, libc::F_DUPFD_CLOEXEC, HIGH);
        KEPT.store(kept, Ordering::Relaxed);
        for (known, part) in KEPT_IS.iter().zip(found) {
            known.store(part, Ordering::Relaxed);
        }
        kernel!(SYS_close, low);
    }
}

impl Output {
    fn open(path: &CStr) -> Self {
        let kept = KEPT.load(Ordering::Relaxed);
        let known = KEPT_IS.each_ref().map(|part| part.load(Ordering::Relaxed));
        let file = if path.is_empty() {
            2
        } else if identity(kept) == Some(known) {
            kept
        } else {
            open(path)
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
        let _ = write!(output, "{}", Table(shared.counts()));
        output.flush();
    }
}
