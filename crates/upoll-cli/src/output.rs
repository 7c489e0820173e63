//! Standard output, whose reader may go away early, and the files that are written besides.

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

/// Prints `text`. A closed pipe is no error: its reader has seen what it wanted (`upoll bench | head`).
pub(crate) fn print(text: impl Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Returns whether standard output is a pipe, a socket or a terminal whose other end is closed.
pub(crate) fn is_unread() -> bool {
    let out = io::stdout();
    let mut entries = [PollFd::new(&out, PollFlags::empty())];
    let polled = poll(&mut entries, Some(&Timespec::default()));
    let closed = PollFlags::ERR | PollFlags::HUP;
    polled == Ok(1) && entries[0].revents().intersects(closed)
}

/// A file to write at the end of a run. It is opened before the run, so that one that cannot be written is
/// noticed then. Its contents stay until [`Output::write`].
pub(crate) struct Output<'a> {
    path: &'a Path,
    file: File,
}

impl<'a> Output<'a> {
    pub(crate) fn open(path: &'a Path) -> Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).open(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Output { path, file })
    }

    /// Replaces the contents of the file.
    pub(crate) fn write(mut self, contents: &[u8]) -> Result<()> {
        let replaced = self.file.metadata().and_then(|metadata| {
            // Devices and pipes have no length.
            if metadata.is_file() {
                self.file.set_len(0)?;
            }
            self.file.write_all(contents)
        });
        replaced.with_context(|| format!("cannot write {}", self.path.display()))
    }
}
