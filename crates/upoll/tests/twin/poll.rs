//! `poll` and `select` by system calls.

use std::time::Duration;

use upoll::{Errno, Events, FdSet, PollFd};

use super::result;

/// Calls `poll(2)`. Returns the result and the masks.
pub fn kernel_poll(fds: &[(i32, Events)], timeout_ms: i32) -> (Result<usize, Errno>, Vec<Events>) {
    let mut list: Vec<_> = fds
        .iter()
        .map(|&(fd, events)| libc::pollfd {
            fd,
            events: i16::from_ne_bytes(u16::try_from(events.bits()).unwrap().to_ne_bytes()),
            revents: -1,
        })
        .collect();
    // SAFETY: the list is as long as is claimed.
    let ready = unsafe { libc::poll(list.as_mut_ptr(), list.len() as libc::nfds_t, timeout_ms) };
    let masks = list
        .iter()
        .map(|fd| Events::from_bits_retain(fd.revents.cast_unsigned().into()))
        .collect();
    (result(ready as isize), masks)
}

/// Returns the masks that a poll has written.
pub fn masks(fds: &[PollFd<'_>]) -> Vec<Events> {
    fds.iter().map(PollFd::revents).collect()
}

/// Calls `select(2)` on copies of the sets. Returns the result and the sets as the call left them.
pub fn kernel_select(
    n: i32,
    sets: &[Option<FdSet>; 3],
    limit: Duration,
) -> (Result<usize, Errno>, [Option<FdSet>; 3]) {
    let mut words = sets.clone().map(|set| {
        set.map(|set| {
            let mut words = set.as_words().to_vec();
            words.resize(64, 0);
            words
        })
    });
    let pointers = words.each_mut().map(|words| {
        let words = words.as_mut().map(|words| words.as_mut_ptr());
        words.unwrap_or(std::ptr::null_mut()).cast::<libc::fd_set>()
    });
    let mut limit = libc::timeval {
        tv_sec: limit.as_secs().cast_signed(),
        tv_usec: limit.subsec_micros().into(),
    };
    // SAFETY: each set is null or longer than `n`, and the limit is the call's to write.
    let ready =
        unsafe { libc::select(n, pointers[0], pointers[1], pointers[2], &raw mut limit) } as isize;
    (
        result(ready),
        words.map(|words| words.map(|words| FdSet::from_words(&words))),
    )
}
