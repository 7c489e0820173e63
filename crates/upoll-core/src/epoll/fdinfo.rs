//! The contents of `/proc/PID/fdinfo/N` of a set.

use alloc::vec::Vec;
use core::fmt;

use super::Set;
use crate::file::FileId;

/// A line for each item, ordered by file, then fd, as Linux walks its tree. A user-level file
/// has no inode: its identity stands for one. Without memory for the order this is an error.
pub(super) fn show(set: &Set, out: &mut dyn fmt::Write) -> fmt::Result {
    let mut rows: Vec<(FileId, i32, u32, u64)> = Vec::new();
    {
        for item in set.lock().iter() {
            let row = (
                FileId::of(item.file()),
                item.fd(),
                item.interest().bits(),
                item.data(),
            );
            rows.try_reserve(1).map_err(|_| fmt::Error)?;
            rows.push(row);
        }
    }
    rows.sort_unstable();
    for (identity, fd, events, data) in rows {
        writeln!(
            out,
            "tfd: {fd:8} events: {events:8x} data: {data:16x}  pos:0 ino:{:x} sdev:0",
            identity.addr()
        )?;
    }
    if let Some(backend) = set.backend() {
        backend.show_fdinfo(out)?;
    }
    match set.tally.counters() {
        Some(counters) => write!(out, "{counters}"),
        None => Ok(()),
    }
}
