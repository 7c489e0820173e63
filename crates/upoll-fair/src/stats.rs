//! Statistics at the end of a run.

use std::ffi::{CStr, c_int};
use std::fmt::{self, Write};
use std::sync::OnceLock;

use upoll_fair_state::Table;
use upoll_sys::shared_file::Identity;
use upoll_sys::text::Text;
use upoll_sys::warning;

use crate::raw::kernel;
use crate::settings;
use crate::shared;

const ROOM: usize = 4096;

/// Text in a buffer on the stack, written out when it is full. A signal handler that has interrupted `malloc` may end the process.
struct Output {
    file: usize,
    text: Text<ROOM>,
}

/// The fd of the file, kept from the start of the process: at its end the process may have given up the
/// rights that opening the file takes. The program may close the fd and open another file there, so the identity
/// of the file is kept, too.
static KEPT: OnceLock<(usize, Identity)> = OnceLock::new();

/// Out of the way of programs that expect low fds.
const HIGH: c_int = 900;

fn open(path: &CStr) -> Result<usize, i32> {
    let flags =
        libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    let file = kernel!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o644);
    upoll_sys::result(file)
}

/// Opens the file for the statistics if this process is to write them. Called once, by the constructor.
pub(crate) fn prepare() {
    let Some(path) = settings::stats().filter(|path| !path.is_empty() && shared::is_root()) else {
        return;
    };
    match open(path) {
        Ok(low) => {
            let high = kernel!(SYS_fcntl, low, libc::F_DUPFD_CLOEXEC, HIGH);
            if let (Ok(kept), Ok(file)) = (upoll_sys::result(high), Identity::of_fd(low)) {
                let _ = KEPT.set((kept, file));
            }
            kernel!(SYS_close, low);
        }
        // The report of a program that another user executes would otherwise be missing without a word.
        Err(error) => warning::write("cannot write statistics to", path, error),
    }
}

impl Output {
    fn flush(&mut self) {
        let bytes = self.text.as_bytes();
        kernel!(SYS_write, self.file, bytes.as_ptr(), bytes.len());
        self.text = Text::new();
    }
}

impl Write for Output {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // A cell of the table is shorter than the room.
        if self.text.as_bytes().len() + text.len() > ROOM {
            self.flush();
        }
        self.text.write_str(text)
    }
}

/// Prints the statistics of the run, if they are asked for.
pub(crate) fn report() {
    let (Some(path), Some(shared)) = (settings::stats(), shared::get()) else {
        return;
    };
    let file = match KEPT.get() {
        _ if path.is_empty() => Ok(2),
        Some((fd, file)) if Identity::of_fd(*fd) == Ok(*file) => Ok(*fd),
        _ => open(path),
    };
    if let Ok(file) = file {
        let text = Text::new();
        let mut output = Output { file, text };
        // Writing to the buffer does not fail.
        let _ = write!(output, "{}", Table(shared.counts()));
        output.flush();
    }
}
