//! Statistics at the end of a run.

use std::ffi::CStr;
use std::fmt::{self, Write};

use upoll_fair_state::Table;

use crate::raw::kernel;
use crate::settings;
use crate::shared;

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
        let _ = write!(output, "{}", Table(shared.counts()));
        output.flush();
    }
}
