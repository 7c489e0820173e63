//! Stale objects, which another owner continues: their contents are shown once, and calls on them
//! fail with `ESTALE`. `tests/c/fork_*.c` compare with the kernel that nothing is lost between two
//! owners.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

use std::thread;
use std::time::Duration;

use upoll::{
    Errno, EventFd, EventFdFlags, PIPE_BUF, PipeFlags, Shutdown, SocketFlags, pipe2, socketpair,
};

/// Long enough for another thread to fall asleep in most runs. If it does not, the test covers
/// less, but does not fail.
fn let_sleep() {
    thread::sleep(Duration::from_millis(50));
}

#[test]
fn a_pipe_shows_its_pages_with_what_was_read_of_them() {
    let (reader, writer) = pipe2(PipeFlags::empty()).unwrap();
    writer.try_write(b"abcd").unwrap();
    writer.set_flags(PipeFlags::DIRECT);
    // A shorter packet would join the page that has room, as in Linux.
    let packet = [b'p'; PIPE_BUF];
    writer.try_write(&packet).unwrap();
    reader.try_read(&mut [0; 3]).unwrap();
    let mut seen = Vec::new();
    let retired: Result<(), Errno> = reader.demote(|pages| {
        seen.extend(pages.map(|page| (page.bytes.to_vec(), page.read, page.is_packet)));
        Ok(())
    });
    assert_eq!(retired, Ok(()));
    assert_eq!(
        seen,
        [(b"abcd".to_vec(), 3, false), (packet.to_vec(), 0, true)]
    );
    assert!(reader.is_stale() && writer.is_stale());
    assert_eq!(reader.try_read(&mut [0; 3]), Err(Errno::STALE));
    assert_eq!(writer.try_write(b"x"), Err(Errno::STALE));
    assert_eq!(writer.demote(|_| Err(Errno::NOMEM)), Ok(()));
}

#[test]
fn a_pipe_that_nobody_takes_is_as_it_was() {
    let (reader, writer) = pipe2(PipeFlags::empty()).unwrap();
    writer.try_write(b"abcd").unwrap();
    assert_eq!(reader.demote(|_| Err(Errno::NOMEM)), Err(Errno::NOMEM));
    let mut buffer = [0; 8];
    assert_eq!(reader.try_read(&mut buffer), Ok(4));
    assert_eq!(writer.try_write(b"x"), Ok(1));
}

#[test]
fn blocked_calls_on_a_pipe_end_and_say_how_far_they_came() {
    let (reader, writer) = pipe2(PipeFlags::empty()).unwrap();
    let (empty, _writer) = pipe2(PipeFlags::empty()).unwrap();
    thread::scope(|scope| {
        let write = scope.spawn(|| writer.write(&[1; 100_000]));
        let read = scope.spawn(|| empty.read(&mut [0; 8]));
        let_sleep();
        let mut held = 0;
        let count = |pages: &mut dyn Iterator<Item = upoll::internal::PageView<'_>>| {
            held = pages.map(|page| page.bytes.len()).sum();
            Ok::<(), Errno>(())
        };
        reader.demote(count).unwrap();
        empty.demote(|_| Ok::<(), Errno>(())).unwrap();
        // The write fails and has written nothing if it had not begun.
        let written = write.join().unwrap().or_else(|errno| {
            assert_eq!(errno, Errno::STALE);
            Ok::<usize, Errno>(0)
        });
        assert_eq!(written, Ok(held));
        assert_eq!(read.join().unwrap(), Err(Errno::STALE));
    });
}

#[test]
fn sockets_show_bytes_messages_and_halves() {
    let (one, other) = socketpair(SocketFlags::empty()).unwrap();
    one.try_write(b"hello").unwrap();
    one.try_write(b"you").unwrap();
    other.try_read(&mut [0; 2]).unwrap();
    one.shutdown(Shutdown::Write);
    let mut seen = None;
    let retired: Result<(), Errno> = other.demote(|contents| {
        seen = Some(contents);
        Ok(())
    });
    assert_eq!(retired, Ok(()));
    let [theirs, ours] = seen.unwrap();
    assert_eq!(theirs.bytes, b"lloyou");
    let unread: Vec<usize> = theirs
        .messages
        .iter()
        .map(|message| message.unread)
        .collect();
    assert_eq!(unread, [3, 3]);
    assert_eq!(theirs.is_shut, [true, false]);
    assert_eq!(ours.is_shut, [false, true]);
    assert!(ours.bytes.is_empty() && !ours.is_reset);
    assert!(one.is_stale());
    assert_eq!(one.try_read(&mut [0; 2]), Err(Errno::STALE));
    assert_eq!(other.try_write(b"x"), Err(Errno::STALE));
}

#[test]
fn an_eventfd_becomes_shared_with_count_maximum_and_flags() {
    let counter = EventFd::with_flags(2, EventFdFlags::SEMAPHORE).unwrap();
    counter.set_maximum(4).unwrap();
    let blocked = counter.clone();
    let writer = thread::spawn(move || blocked.write(3));
    let_sleep();
    let shared = counter.to_shared().unwrap().unwrap();
    assert_eq!(writer.join().unwrap(), Err(Errno::STALE));
    assert!(shared.is_shared() && counter.is_stale());
    assert_eq!(shared.maximum(), 4);
    assert_eq!(shared.try_write(2), Err(Errno::AGAIN));
    assert_eq!(shared.try_write(1), Ok(()));
    assert_eq!(shared.try_read(), Ok(1));
    assert!(counter.to_shared().unwrap().is_none());
    assert!(shared.to_shared().unwrap().is_none());
}
