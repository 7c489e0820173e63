//! `poll` with more entries than `RLIMIT_NOFILE` allows. The limit belongs to the whole process, so
//! this is one test.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

use std::time::Duration;

use upoll::internal::open_limit_changed;
use upoll::{Errno, EventFd, Events, PollContext, PollFd};

fn set_limit(limit: u64) {
    let mut now = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure is live.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut now) };
    now.rlim_cur = limit;
    // SAFETY: as above.
    let changed = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const now) };
    assert_eq!((known, changed), (0, 0));
}

fn poll(counter: &EventFd, count: usize, limit: Duration) -> [Result<usize, Errno>; 2] {
    let entries = || -> Vec<_> {
        let entry = || PollFd::new(counter, Events::IN);
        (0..count).map(|_| entry()).collect()
    };
    [
        upoll::poll(&mut entries(), limit),
        PollContext::new().poll(&mut entries(), limit),
    ]
}

#[test]
fn more_entries_than_the_limit_allows_are_refused_however_few() {
    let ready = EventFd::new(1).unwrap();
    let idle = EventFd::new(0).unwrap();
    // The first call reads the limit.
    set_limit(5);
    assert_eq!(poll(&ready, 6, Duration::ZERO), [Err(Errno::INVAL); 2]);
    assert_eq!(poll(&ready, 5, Duration::ZERO), [Ok(5); 2]);
    // As long as the limit is low, each call reads it.
    set_limit(6);
    assert_eq!(poll(&ready, 6, Duration::ZERO), [Ok(6); 2]);
    set_limit(100);
    assert_eq!(poll(&ready, 8, Duration::ZERO), [Ok(8); 2]);
    // A call with more entries reads it too, and so does a call that sleeps.
    set_limit(4);
    assert_eq!(
        poll(&idle, 5, Duration::from_millis(1)),
        [Err(Errno::INVAL); 2]
    );
    assert_eq!(poll(&ready, 5, Duration::ZERO), [Err(Errno::INVAL); 2]);
    set_limit(100);
    assert_eq!(poll(&ready, 8, Duration::ZERO), [Ok(8); 2]);
    set_limit(7);
    assert_eq!(poll(&ready, 9, Duration::ZERO), [Err(Errno::INVAL); 2]);
    assert_eq!(poll(&ready, 8, Duration::ZERO), [Err(Errno::INVAL); 2]);
    // The next call uses a limit whose change was announced.
    set_limit(100);
    assert_eq!(poll(&ready, 8, Duration::ZERO), [Ok(8); 2]);
    set_limit(0);
    open_limit_changed();
    assert_eq!(poll(&ready, 1, Duration::ZERO), [Err(Errno::INVAL); 2]);
    set_limit(100);
}
