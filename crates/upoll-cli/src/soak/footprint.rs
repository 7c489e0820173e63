//! The heap and the file descriptors that a process holds.

use std::fs;

use anyhow::Result;

/// The memory and fds of this process at one moment.
#[derive(Clone, Copy)]
pub(super) struct Footprint {
    pub(super) heap: usize,
    pub(super) fds: usize,
}

impl Footprint {
    pub(super) fn now() -> Result<Self> {
        // SAFETY: no memory is passed.
        let heap = unsafe { libc::mallinfo2() };
        Ok(Footprint {
            heap: heap.uordblks + heap.hblkhd,
            fds: fs::read_dir("/proc/self/fd")?.count(),
        })
    }
}
