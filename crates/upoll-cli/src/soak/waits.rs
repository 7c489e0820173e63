//! Waits for sources that the rounds and the races have in common.

use std::thread;
use std::time::Duration;

use anyhow::Result;
use upoll::{Errno, Events, FdSet, FileRef, PollFd, Source, Timeout, Watch};

/// Returns an entry for each source, to be polled for input.
pub(super) fn entries<'s, S: Source + 's>(
    sources: impl IntoIterator<Item = &'s S>,
) -> Vec<PollFd<'s>> {
    let entry = |source| PollFd::new(source, Events::IN);
    sources.into_iter().map(entry).collect()
}

/// Waits by `select` for input. Returns the places of the sources that are ready.
pub(super) fn select(sources: &[&dyn Source], mut timeout: Timeout) -> Result<Vec<usize>, Errno> {
    let count = sources.len() as i32;
    let mut readable: FdSet = (0..count).collect();
    let resolve = |fd: i32| Some(sources.get(fd as usize)?.target());
    upoll::select(
        count,
        Some(&mut readable),
        None,
        None,
        &mut timeout,
        resolve,
    )?;
    Ok(readable.iter().map(|fd| fd as usize).collect())
}

/// Sleeps until a callback wakes this thread, unless the file is ready.
pub(super) fn watch(file: &FileRef<'_>, limit: Option<Duration>) -> Result<()> {
    let waiting = thread::current();
    let (_watch, ready) = Watch::new(file, Events::IN, move |_| waiting.unpark())?;
    if ready.is_empty() {
        match limit {
            None => thread::park(),
            Some(limit) => thread::park_timeout(limit),
        }
    }
    Ok(())
}
