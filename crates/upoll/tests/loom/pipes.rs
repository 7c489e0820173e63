//! Reads and writes of pipes and socket pairs that sleep. A lost wakeup is a deadlock.

use loom::thread;
use upoll::kernel_model::interrupt;
use upoll::{Errno, PIPE_BUF, PipeReader, PipeWriter, SocketFlags, StreamSocket, pipe, socketpair};

use super::model;

fn read_one(reader: &PipeReader) -> Result<usize, Errno> {
    reader.read(&mut [0])
}

fn read_one_on_thread(reader: &PipeReader) -> thread::JoinHandle<Result<usize, Errno>> {
    let reader = reader.clone();
    thread::spawn(move || read_one(&reader))
}

fn write_on_thread(
    writer: &PipeWriter,
    bytes: &'static [u8],
) -> thread::JoinHandle<Result<usize, Errno>> {
    let writer = writer.clone();
    thread::spawn(move || writer.write(bytes))
}

/// Returns a pipe of `pages` pages, all of them used.
fn full_pipe(pages: usize) -> (PipeReader, PipeWriter) {
    let (reader, writer) = pipe().unwrap();
    writer.set_capacity(pages * PIPE_BUF).unwrap();
    for _ in 0..pages {
        assert_eq!(writer.try_write(&[0; PIPE_BUF]), Ok(PIPE_BUF));
    }
    (reader, writer)
}

/// Reads `pages` pages.
fn take(reader: &PipeReader, pages: usize) {
    for _ in 0..pages {
        assert_eq!(reader.read(&mut [0; PIPE_BUF]), Ok(PIPE_BUF));
    }
}

#[test]
fn a_reader_that_goes_to_sleep_misses_no_write() {
    model(4, || {
        let (reader, writer) = pipe().unwrap();
        let writing = write_on_thread(&writer, &[1]);
        assert_eq!(read_one(&reader), Ok(1));
        assert_eq!(writing.join().unwrap(), Ok(1));
    });
}

/// A write wakes one reader, which wakes the next if it leaves bytes.
#[test]
fn each_of_two_readers_asleep_has_a_byte_of_one_write() {
    model(3, || {
        let (reader, writer) = pipe().unwrap();
        let reading = [(); 2].map(|()| read_one_on_thread(&reader));
        assert_eq!(writer.write(&[1; 2]), Ok(2));
        for reading in reading {
            assert_eq!(reading.join().unwrap(), Ok(1));
        }
    });
}

/// Readers are interrupted by a signal while bytes come.
#[test]
fn a_byte_is_not_lost_with_a_reader_that_a_signal_wakes() {
    model(3, || {
        let (reader, writer) = pipe().unwrap();
        let reading = [(); 2].map(|()| read_one_on_thread(&reader));
        interrupt();
        for _ in 0..2 {
            assert_eq!(writer.write(&[1]), Ok(1));
        }
        let ended = reading.map(|reading| reading.join().unwrap());
        let read = ended.iter().filter(|&&ended| ended == Ok(1)).count();
        assert!(
            ended
                .iter()
                .all(|ended| matches!(ended, Ok(1) | Err(Errno::INTR)))
        );
        assert_eq!(reader.available(), 2 - read);
    });
}

#[test]
fn a_writer_that_goes_to_sleep_at_a_full_pipe_misses_no_read() {
    model(4, || {
        let (reader, writer) = full_pipe(1);
        let writing = write_on_thread(&writer, &[1]);
        take(&reader, 1);
        assert_eq!(writing.join().unwrap(), Ok(1));
    });
}

/// A write that fills a pipe and sleeps wakes the reader that makes room.
#[test]
fn a_writer_and_a_reader_go_to_sleep_in_turn() {
    model(2, || {
        let (reader, writer) = pipe().unwrap();
        writer.set_capacity(PIPE_BUF).unwrap();
        let writing = write_on_thread(&writer, &[1; PIPE_BUF + 1]);
        take(&reader, 1);
        assert_eq!(read_one(&reader), Ok(1));
        assert_eq!(writing.join().unwrap(), Ok(PIPE_BUF + 1));
    });
}

/// A read wakes one writer, which wakes the next if it leaves room.
#[test]
fn each_of_two_writers_asleep_has_the_room_of_one_read() {
    model(3, || {
        let (reader, writer) = full_pipe(2);
        let writing = [(); 2].map(|()| write_on_thread(&writer, &[1]));
        assert_eq!(reader.read(&mut [0; 2 * PIPE_BUF]), Ok(2 * PIPE_BUF));
        for writing in writing {
            assert_eq!(writing.join().unwrap(), Ok(1));
        }
    });
}

/// A read wakes a writer that is awake, and has its room already.
#[test]
fn each_of_two_writers_has_room_though_a_read_wakes_one_that_has_written() {
    model(3, || {
        let (reader, writer) = full_pipe(1);
        let reading = thread::spawn(move || {
            take(&reader, 2);
            reader
        });
        let writing = write_on_thread(&writer, &[1; PIPE_BUF]);
        assert_eq!(writer.write(&[1; PIPE_BUF]), Ok(PIPE_BUF));
        assert_eq!(writing.join().unwrap(), Ok(PIPE_BUF));
        drop(reading.join().unwrap());
    });
}

#[test]
fn the_close_of_the_writing_end_wakes_all_readers() {
    model(3, || {
        let (reader, writer) = pipe().unwrap();
        let reading = [(); 2].map(|()| read_one_on_thread(&reader));
        drop(writer);
        for reading in reading {
            assert_eq!(reading.join().unwrap(), Ok(0));
        }
    });
}

#[test]
fn the_close_of_the_reading_end_wakes_all_writers() {
    model(3, || {
        let (reader, writer) = full_pipe(1);
        let writing = [(); 2].map(|()| write_on_thread(&writer, &[1]));
        drop(reader);
        for writing in writing {
            assert_eq!(writing.join().unwrap(), Err(Errno::PIPE));
        }
    });
}

/// Two writers each write [`PIPE_BUF`] bytes or fewer, with less room in the last page, while a reader
/// makes room.
#[test]
fn writes_of_up_to_a_page_stay_whole() {
    const SHORT: usize = PIPE_BUF - 2;
    model(2, || {
        let (reader, writer) = pipe().unwrap();
        writer.set_capacity(PIPE_BUF).unwrap();
        assert_eq!(writer.write(&[0; SHORT]), Ok(SHORT));
        let writing = [
            write_on_thread(&writer, &[1; 4]),
            write_on_thread(&writer, &[2; PIPE_BUF]),
        ];
        let mut all = Vec::new();
        while all.len() < SHORT + 4 + PIPE_BUF {
            let mut buffer = [0; PIPE_BUF];
            let read = reader.read(&mut buffer).unwrap();
            all.extend_from_slice(&buffer[..read]);
        }
        assert_eq!(
            writing.map(|writing| writing.join().unwrap()),
            [Ok(4), Ok(PIPE_BUF)]
        );
        // The bytes of each write are contiguous.
        assert_eq!(all.chunk_by(|one, next| one == next).count(), 3);
    });
}

#[test]
fn a_socket_that_goes_to_sleep_misses_no_write() {
    model(4, || {
        let (one, other) = socketpair(SocketFlags::empty()).unwrap();
        let writing = thread::spawn(move || {
            assert_eq!(other.write(&[1]), Ok(1));
            other
        });
        assert_eq!(one.read(&mut [0]), Ok(1));
        let _open = writing.join().unwrap();
    });
}

#[test]
fn a_socket_that_goes_to_sleep_misses_no_close() {
    model(4, || {
        let (one, other) = socketpair(SocketFlags::empty()).unwrap();
        let closing = thread::spawn(move || drop(other));
        assert_eq!(one.read(&mut [0]), Ok(0));
        closing.join().unwrap();
    });
}

/// Returns a pair. The first socket can read; the send buffer of the second one is full.
fn full_socket() -> (StreamSocket, StreamSocket) {
    let (reader, writer) = socketpair(SocketFlags::empty()).unwrap();
    // The smallest send buffer.
    writer.set_send_buffer(0);
    while writer.try_write(&[0; PIPE_BUF]).is_ok() {}
    (reader, writer)
}

fn read_all(reader: &StreamSocket) {
    let all = reader.available();
    assert_eq!(reader.try_read(&mut [0; 4 * PIPE_BUF]), Ok(all));
}

/// Writes a byte on a thread. The thread returns the socket, so that it stays open.
fn send_on_thread(
    writer: StreamSocket,
) -> thread::JoinHandle<(Result<usize, Errno>, StreamSocket)> {
    thread::spawn(move || (writer.write(&[1]), writer))
}

#[test]
fn a_socket_writer_that_goes_to_sleep_misses_no_read() {
    model(4, || {
        let (reader, writer) = full_socket();
        let writing = send_on_thread(writer);
        read_all(&reader);
        let (ended, _writer) = writing.join().unwrap();
        assert_eq!((ended, reader.available()), (Ok(1), 1));
    });
}

/// The close may come before the writer's first check, which finds the pipe broken, or after it.
#[test]
fn a_socket_writer_that_goes_to_sleep_misses_no_close() {
    model(4, || {
        let (reader, writer) = full_socket();
        let writing = send_on_thread(writer);
        drop(reader);
        let (ended, _writer) = writing.join().unwrap();
        assert!(matches!(ended, Err(Errno::PIPE | Errno::CONNRESET)));
    });
}

/// A signal comes at any moment while room comes.
#[test]
fn a_socket_writer_that_a_signal_wakes_has_written_or_not() {
    model(3, || {
        let (reader, writer) = full_socket();
        let writing = send_on_thread(writer);
        interrupt();
        read_all(&reader);
        let (ended, _writer) = writing.join().unwrap();
        let written = match ended {
            Ok(written) => written,
            Err(errno) => {
                assert_eq!(errno, Errno::INTR);
                0
            }
        };
        assert_eq!(reader.available(), written);
    });
}
