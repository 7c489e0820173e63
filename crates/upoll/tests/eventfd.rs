//! `eventfd(2)`: values, readiness, edges and blocking calls. Each rule is checked on the host
//! kernel too.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod kernel;

use std::sync::{Arc, Mutex};

use upoll::{Epoll, Errno, Event, EventFd, EventFdFlags, Events, Watch};

use kernel::asleep::handle;
use kernel::{Kernel, Twin, same};

const IN: Events = Events::IN;
const OUT: Events = Events::OUT;
const ET: Events = Events::ET;
/// The largest value that a write can produce.
const FULL: u64 = u64::MAX - 1;

/// A counter at 0 and an empty set at 1.
fn counter(initial: u32, flags: EventFdFlags) -> Twin {
    let mut twin = Twin::new(2);
    twin.open_counter_with(0, initial, flags);
    twin.open_set(1);
    twin
}

fn nonblocking(initial: u32) -> Twin {
    counter(initial, EventFdFlags::NONBLOCK)
}

fn semaphore(initial: u32) -> Twin {
    counter(initial, EventFdFlags::NONBLOCK | EventFdFlags::SEMAPHORE)
}

#[test]
fn of_the_flags_linux_knows_semaphore_nonblock_and_cloexec() {
    for bit in 0..32 {
        let flag = 1_u32 << bit;
        let upoll = EventFd::with_flags(0, EventFdFlags::from_bits_retain(flag)).map(drop);
        // SAFETY: the call takes no pointers.
        let fd = unsafe { libc::eventfd(0, flag.cast_signed()) };
        let kernel = Kernel::result(fd.into()).map(drop);
        let known = same(("flag", flag), upoll, kernel).is_ok();
        assert_eq!(known, [1, 0o4_000, 0o2_000_000].contains(&flag));
        if fd >= 0 {
            // SAFETY: the fd is this test's own.
            unsafe { libc::close(fd) };
        }
    }
}

#[test]
fn the_initial_count_is_any_of_32_bits() {
    for initial in [0, 1, u32::MAX] {
        let twin = nonblocking(initial);
        let expected = match initial {
            0 => Err(Errno::AGAIN),
            count => Ok(u64::from(count)),
        };
        assert_eq!(twin.take(0), expected);
    }
}

#[test]
fn writes_add_up_and_a_read_takes_all() {
    let twin = nonblocking(2);
    twin.put(0, 3).unwrap();
    twin.put(0, 0).unwrap();
    assert_eq!(twin.take(0), Ok(5));
    assert_eq!(twin.take(0), Err(Errno::AGAIN));
}

#[test]
fn a_semaphore_read_takes_one() {
    let twin = semaphore(2);
    twin.put(0, 1).unwrap();
    for _ in 0..3 {
        assert_eq!(twin.take(0), Ok(1));
    }
    assert_eq!(twin.take(0), Err(Errno::AGAIN));
}

#[test]
fn a_write_fits_if_the_sum_stays_below_the_largest_number() {
    for (count, value, expected) in [
        (0, FULL, Ok(())),
        (0, u64::MAX, Err(Errno::INVAL)),
        (1, FULL, Err(Errno::AGAIN)),
        (1, FULL - 1, Ok(())),
        (FULL - 1, 1, Ok(())),
        (FULL - 1, 2, Err(Errno::AGAIN)),
        (FULL, 0, Ok(())),
        (FULL, 1, Err(Errno::AGAIN)),
        (FULL, FULL, Err(Errno::AGAIN)),
        // Invalid, whatever the count is.
        (FULL, u64::MAX, Err(Errno::INVAL)),
    ] {
        for twin in [nonblocking(0), semaphore(0)] {
            twin.put(0, count).unwrap();
            assert_eq!(twin.put(0, value), expected, "{count} + {value}");
        }
    }
}

#[test]
fn a_refused_write_changes_nothing() {
    let twin = nonblocking(0);
    twin.put(0, FULL - 3).unwrap();
    assert_eq!(twin.put(0, 4), Err(Errno::AGAIN));
    assert_eq!(twin.put(0, u64::MAX), Err(Errno::INVAL));
    assert_eq!(twin.take(0), Ok(FULL - 3));
}

#[test]
fn a_number_that_is_no_value_is_refused_at_once_even_where_a_write_would_block() {
    let twin = counter(0, EventFdFlags::empty());
    twin.put(0, FULL).unwrap();
    assert_eq!(twin.put(0, u64::MAX), Err(Errno::INVAL));
}

#[test]
fn readiness_follows_the_count() {
    for (count, ready) in [(0, OUT), (1, IN | OUT), (FULL - 1, IN | OUT), (FULL, IN)] {
        for twin in [
            nonblocking(0),
            semaphore(0),
            counter(0, EventFdFlags::empty()),
        ] {
            twin.put(0, count).unwrap();
            assert_eq!(twin.mask(0), ready);
        }
    }
}

#[test]
fn every_write_is_an_edge_for_readers_even_of_nothing_and_a_read_is_none() {
    let twin = nonblocking(0);
    twin.add(1, 0, IN | ET, 7).unwrap();
    // A write of zero to an empty counter wakes readers, but there is nothing to read.
    twin.put(0, 0).unwrap();
    assert_eq!(twin.data(1, 1), []);
    for value in [1, 1, 0] {
        twin.put(0, value).unwrap();
        assert_eq!(twin.data(1, 1), [7]);
        assert_eq!(twin.data(1, 1), []);
    }
    twin.take(0).unwrap();
    assert_eq!(twin.data(1, 1), []);
    let _ = twin.take(0);
    assert_eq!(twin.data(1, 1), []);
}

#[test]
fn every_read_is_an_edge_for_writers_and_a_write_is_none() {
    let twin = semaphore(4);
    twin.add(1, 0, OUT | ET, 7).unwrap();
    assert_eq!(twin.data(1, 1), [7]);
    for _ in 0..3 {
        twin.take(0).unwrap();
        assert_eq!(twin.data(1, 1), [7]);
        assert_eq!(twin.data(1, 1), []);
        twin.put(0, 1).unwrap();
        assert_eq!(twin.data(1, 1), []);
    }
}

#[test]
fn a_refused_read_or_write_is_no_edge() {
    let twin = nonblocking(0);
    twin.add(1, 0, IN | OUT | ET, 7).unwrap();
    assert_eq!(twin.data(1, 1), [7]);
    assert_eq!(twin.take(0), Err(Errno::AGAIN));
    assert_eq!(twin.put(0, u64::MAX), Err(Errno::INVAL));
    assert_eq!(twin.data(1, 1), []);
    twin.put(0, FULL).unwrap();
    assert_eq!(twin.wait(1, 1).unwrap(), [(IN.bits(), 7)]);
    assert_eq!(twin.put(0, 1), Err(Errno::AGAIN));
    assert_eq!(twin.data(1, 1), []);
}

#[test]
fn wakes_say_which_direction_and_a_close_says_hup() {
    // Linux wakes with these keys; through system calls only their effects are visible.
    let source = EventFd::with_flags(0, EventFdFlags::NONBLOCK).unwrap();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let keys = heard.clone();
    let (watch, _) = Watch::new(&source, Events::all(), move |key| {
        keys.lock().unwrap().push(key);
    })
    .unwrap();
    source.try_write(0).unwrap();
    source.try_write(1).unwrap();
    source.try_read().unwrap();
    source.try_read().unwrap_err();
    source.signal();
    drop(source);
    let keys = heard.lock().unwrap().clone();
    assert_eq!(keys, [IN, IN, OUT, IN, Events::HUP]);
    drop(watch);
}

#[test]
fn a_signal_brings_the_count_to_the_top_where_it_shows_an_error() {
    // User programs cannot call the kernel's eventfd_signal().
    let source = EventFd::new(0).unwrap();
    source.try_write(FULL).unwrap();
    let set = Epoll::new().unwrap();
    set.add(&source, Event::new(OUT | ET, 7)).unwrap();
    let mut events = [Event::default()];
    assert_eq!(set.try_wait(&mut events), Ok(0));
    source.signal();
    let (_watch, ready) = Watch::new(&source, Events::all(), |_| ()).unwrap();
    assert_eq!(ready, IN | Events::ERR);
    assert_eq!(source.try_write(0), Err(Errno::AGAIN));
    // The count stays, and each signal still wakes readers.
    set.modify(&source, Event::new(IN | ET, 8)).unwrap();
    assert_eq!(set.try_wait(&mut events), Ok(1));
    assert_eq!(set.try_wait(&mut events), Ok(0));
    source.signal();
    assert_eq!(set.try_wait(&mut events), Ok(1));
    assert_eq!(events[0], Event::new(IN | Events::ERR, 8));
    assert_eq!(source.try_read(), Ok(u64::MAX));
}

#[test]
fn fdinfo_shows_the_count_and_whether_it_is_a_semaphore() {
    for (count, twin) in [
        (0, nonblocking(0)),
        (0x1f, semaphore(0)),
        (FULL, nonblocking(0)),
    ] {
        twin.put(0, count).unwrap();
        let path = format!("/proc/self/fdinfo/{}", twin.kernel.fd(0));
        let kernel = std::fs::read_to_string(path).unwrap();
        // The kernel's fdinfo has an ID, upoll's does not. upoll's has a maximum, as future kernels
        // may have.
        let lines = |text: &str| -> Vec<_> {
            let known = ["eventfd-count:", "eventfd-semaphore:"];
            text.lines()
                .filter(|line| known.iter().any(|name| line.starts_with(name)))
                .map(str::to_owned)
                .collect()
        };
        let ours = twin.counter(0).fdinfo().unwrap();
        let shown = same("fdinfo", lines(&ours), lines(&kernel));
        assert_eq!(shown.len(), 2);
    }
}

#[test]
fn fds_of_one_counter_share_its_count() {
    let mut twin = nonblocking(0);
    twin.dup(0, 1);
    twin.put(0, 3).unwrap();
    twin.close(0);
    assert_eq!(twin.take(1), Ok(3));
}

#[test]
fn a_read_of_an_empty_counter_sleeps_until_something_is_written() {
    let twin = counter(0, EventFdFlags::empty());
    let mut reader = twin.sleep_reading(0);
    // Nothing wakes the reader, because there is nothing for it to read.
    twin.put(0, 0).unwrap();
    reader.until_asleep();
    twin.put(0, 4).unwrap();
    assert_eq!(reader.join(), Ok(4));
}

#[test]
fn a_write_that_does_not_fit_sleeps_until_it_does() {
    let twin = counter(0, EventFdFlags::SEMAPHORE);
    twin.put(0, FULL).unwrap();
    let mut writer = twin.sleep_writing(0, 2);
    twin.take(0).unwrap();
    writer.until_asleep();
    twin.take(0).unwrap();
    assert_eq!(writer.join(), Ok(()));
    assert_eq!(twin.mask(0), IN);
}

#[test]
fn every_blocked_writer_whose_value_fits_goes_on_after_a_drain() {
    let twin = counter(0, EventFdFlags::empty());
    twin.put(0, FULL).unwrap();
    let writers = [1, 2, 3].map(|value| twin.sleep_writing(0, value));
    assert_eq!(twin.take(0), Ok(FULL));
    for writer in writers {
        assert_eq!(writer.join(), Ok(()));
    }
    assert_eq!(twin.take(0), Ok(6));
}

#[test]
fn of_several_blocked_readers_each_that_finds_something_goes_on() {
    let twin = counter(0, EventFdFlags::SEMAPHORE);
    let readers = [(); 3].map(|()| twin.sleep_reading(0));
    twin.put(0, 3).unwrap();
    for reader in readers {
        assert_eq!(reader.join(), Ok(1));
    }
    assert_eq!(twin.mask(0), OUT);
}

#[test]
fn a_blocked_reader_takes_what_one_write_brought_and_the_others_sleep_on() {
    let twin = counter(0, EventFdFlags::empty());
    let readers = [(); 3].map(|()| twin.sleep_reading(0));
    for _ in 0..3 {
        twin.put(0, 1).unwrap();
        // Any reader may take it. The next write must find the counter empty.
        while twin.counter(0).as_file_ref().is_ready(IN) || twin.kernel.mask(0) & IN.bits() != 0 {
            std::thread::yield_now();
        }
    }
    let counts = readers.map(|reader| reader.join());
    assert_eq!(counts, [Ok(1); 3]);
}

#[test]
fn a_blocked_read_or_write_is_no_longer_counted_once_a_signal_ended_it() {
    handle(libc::SIGURG, false);
    let twin = counter(0, EventFdFlags::empty());
    let reader = twin.sleep_reading(0);
    reader.signal(libc::SIGURG);
    assert_eq!(reader.join(), Err(Errno::INTR));
    twin.put(0, FULL).unwrap();
    let writer = twin.sleep_writing(0, 5);
    writer.signal(libc::SIGURG);
    assert_eq!(writer.join(), Err(Errno::INTR));
    assert_eq!(twin.take(0), Ok(FULL));
}

#[test]
fn a_handler_that_asks_for_restarts_lets_a_blocked_read_or_write_go_on() {
    handle(libc::SIGWINCH, true);
    let twin = counter(0, EventFdFlags::empty());
    let mut reader = twin.sleep_reading(0);
    reader.signal(libc::SIGWINCH);
    reader.until_asleep();
    twin.put(0, 3).unwrap();
    assert_eq!(reader.join(), Ok(3));
    twin.put(0, FULL).unwrap();
    let mut writer = twin.sleep_writing(0, 5);
    writer.signal(libc::SIGWINCH);
    writer.until_asleep();
    assert_eq!(twin.take(0), Ok(FULL));
    assert_eq!(writer.join(), Ok(()));
    assert_eq!(twin.take(0), Ok(5));
}
