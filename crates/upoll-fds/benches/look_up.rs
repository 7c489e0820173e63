//! Measures the cost of fds: the same calls on an object and by its fd. Prints the median of many
//! rounds, in nanoseconds per call.

use std::hint::black_box;
use std::time::Instant;

use upoll::{Epoll, Event, EventFd, Events};

const ROUNDS: usize = 101;
const CALLS: u32 = 100_000;

fn measure(mut call: impl FnMut()) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..CALLS {
                call();
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

fn report(what: &str, nanoseconds: f64) {
    println!("{what:50} {nanoseconds:7.2} ns");
}

fn main() -> Result<(), upoll::Errno> {
    let counter = EventFd::new(0)?;
    let pair = || {
        counter.try_write(black_box(1)).unwrap();
        black_box(counter.try_read().unwrap());
    };
    report("object: eventfd write + read", measure(pair));

    let fd = upoll_fds::eventfd(0, libc::EFD_NONBLOCK)?;
    let mut value = 0_u64;
    let by_fd = || {
        upoll_fds::eventfd_write(black_box(fd), 1).unwrap();
        // SAFETY: `value` is a live counter.
        unsafe { upoll_fds::eventfd_read(black_box(fd), &raw mut value) }.unwrap();
        black_box(value);
    };
    report("fd: eventfd write + read", measure(by_fd));

    report(
        "fd: is it user-level?",
        measure(|| {
            black_box(upoll_fds::is_user_level(black_box(fd)));
        }),
    );
    // EINVAL before anything is done: the look-up alone, and a fault-free call around it.
    report(
        "fd: look-up alone (write of 4 bytes)",
        measure(|| {
            // SAFETY: `value` is live; nothing is read.
            let refused = unsafe { upoll_fds::write(black_box(fd), (&raw const value).cast(), 4) };
            black_box(refused).unwrap_err();
        }),
    );

    let set = Epoll::new()?;
    set.add(&counter, Event::new(Events::IN, 1))?;
    let mut events = [Event::default(); 64];
    report(
        "object: wait, nothing ready",
        measure(|| {
            black_box(set.try_wait(&mut events).unwrap());
        }),
    );
    let epfd = upoll_fds::epoll_create1(0)?;
    let interest = Event::new(Events::IN, 1);
    // SAFETY: `interest` is live.
    unsafe { upoll_fds::epoll_ctl(epfd, 1, fd, &raw const interest) }?;
    report(
        "fd: wait, nothing ready",
        measure(|| {
            // SAFETY: `events` has room for 64.
            let ready =
                unsafe { upoll_fds::epoll_wait(black_box(epfd), events.as_mut_ptr(), 64, 0) };
            black_box(ready.unwrap());
        }),
    );
    counter.try_write(1)?;
    upoll_fds::eventfd_write(fd, 1)?;
    report(
        "object: wait, one ready",
        measure(|| {
            black_box(set.try_wait(&mut events).unwrap());
        }),
    );
    report(
        "fd: wait, one ready",
        measure(|| {
            // SAFETY: `events` has room for 64.
            let ready =
                unsafe { upoll_fds::epoll_wait(black_box(epfd), events.as_mut_ptr(), 64, 0) };
            black_box(ready.unwrap());
        }),
    );
    upoll_fds::close(epfd)?;
    upoll_fds::close(fd)
}
