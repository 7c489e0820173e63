//! What a process holds: heap and file descriptors.

use std::fs;

use anyhow::Result;

/// What this process holds at one moment.
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
