//! Threads that block in pipes of the host kernel and of upoll: which thread wakes when, and that
//! no byte is lost.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod threads;
mod twin;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use upoll::{Errno, PIPE_BUF, PipeFlags, PipeReader, PipeWriter, pipe};

use threads::{asleep, until_asleep};
use twin::{Fd, kernel_pipe, signal};

/// The operations that threads use on a pipe of either world.
trait Blocking: Send + Sync {
    fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno>;
    fn write(&self, bytes: &[u8]) -> Result<usize, Errno>;
    fn set_capacity(&self, bytes: usize);
}

impl Blocking for (Fd, Fd) {
    fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        self.0.read(buffer)
    }

    fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        self.1.write(bytes)
    }

    fn set_capacity(&self, bytes: usize) {
        let bytes = i32::try_from(bytes).unwrap();
        self.0.fcntl(libc::F_SETPIPE_SZ, bytes).unwrap();
    }
}

impl Blocking for (PipeReader, PipeWriter) {
    fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        self.0.read(buffer)
    }

    fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        self.1.write(bytes)
    }

    fn set_capacity(&self, bytes: usize) {
        self.0.set_capacity(bytes).unwrap();
    }
}

/// Returns blocking pipes of one page: one of the kernel and one of upoll.
fn both_worlds() -> [Arc<dyn Blocking>; 2] {
    let pipes: [Arc<dyn Blocking>; 2] = [
        Arc::new(kernel_pipe(PipeFlags::empty()).unwrap()),
        Arc::new(pipe().unwrap()),
    ];
    for pipe in &pipes {
        pipe.set_capacity(PIPE_BUF);
    }
    pipes
}

#[test]
fn blocked_readers_are_served_one_by_one_first_come_first_served() {
    for pipe in both_worlds() {
        let order = Arc::new(AtomicUsize::new(0));
        let readers: Vec<_> = (0..4)
            .map(|_| {
                let (pipe, order) = (pipe.clone(), order.clone());
                asleep(move || {
                    assert_eq!(pipe.read(&mut [0; 2]), Ok(2));
                    order.fetch_add(1, Ordering::SeqCst)
                })
            })
            .collect();
        for (turn, (reader, _)) in readers.into_iter().enumerate() {
            assert_eq!(pipe.write(&[0; 2]), Ok(2));
            assert_eq!(reader.join().unwrap(), turn);
        }
    }
}

#[test]
fn a_reader_that_leaves_something_wakes_the_next() {
    for pipe in both_worlds() {
        let readers: Vec<_> = (0..4)
            .map(|_| {
                let pipe = pipe.clone();
                asleep(move || pipe.read(&mut [0; 3])).0
            })
            .collect();
        assert_eq!(pipe.write(&[0; 11]), Ok(11));
        let mut counts: Vec<_> = readers.into_iter().map(|r| r.join().unwrap()).collect();
        counts.sort();
        assert_eq!(counts, [Ok(2), Ok(3), Ok(3), Ok(3)]);
    }
}

#[test]
fn a_writer_that_leaves_room_wakes_the_next() {
    for pipe in both_worlds() {
        assert_eq!(pipe.write(&[0; PIPE_BUF]), Ok(PIPE_BUF));
        let writers: Vec<_> = (0..4)
            .map(|_| {
                let pipe = pipe.clone();
                asleep(move || pipe.write(&[0; 10])).0
            })
            .collect();
        pipe.set_capacity(8 * PIPE_BUF);
        for writer in writers {
            assert_eq!(writer.join().unwrap(), Ok(10));
        }
    }
}

#[test]
fn a_large_write_blocks_until_all_of_it_is_written() {
    for pipe in both_worlds() {
        let writer = pipe.clone();
        let (writer, _) = asleep(move || writer.write(&[7; 30_000]));
        let mut left = 30_000;
        while left > 0 {
            left -= pipe.read(&mut [0; 1_000]).unwrap();
        }
        assert_eq!(writer.join().unwrap(), Ok(30_000));
    }
}

#[test]
fn the_close_of_the_writing_end_ends_every_blocked_read() {
    let (kernel_reader, kernel_writer) = kernel_pipe(PipeFlags::empty()).unwrap();
    let (reader, writer) = pipe().unwrap();
    let kernel_reader = Arc::new(kernel_reader);
    let threads: Vec<_> = (0..3)
        .flat_map(|_| {
            let (reader, kernel_reader) = (reader.clone(), kernel_reader.clone());
            [
                asleep(move || reader.read(&mut [0; 4])).0,
                asleep(move || kernel_reader.read(&mut [0; 4])).0,
            ]
        })
        .collect();
    drop((writer, kernel_writer));
    for thread in threads {
        assert_eq!(thread.join().unwrap(), Ok(0));
    }
}

#[test]
fn the_close_of_the_reading_end_ends_every_blocked_write() {
    let (kernel_reader, kernel_writer) = kernel_pipe(PipeFlags::empty()).unwrap();
    let (reader, writer) = pipe().unwrap();
    let kernel_writer = Arc::new(kernel_writer);
    assert_eq!(writer.write(&[0; 65_536]), Ok(65_536));
    assert_eq!(kernel_writer.write(&[0; 65_536]), Ok(65_536));
    let threads: Vec<_> = (0..3)
        .flat_map(|_| {
            let (writer, kernel_writer) = (writer.clone(), kernel_writer.clone());
            [
                asleep(move || writer.write(&[0; 10])).0,
                asleep(move || kernel_writer.write(&[0; 10])).0,
            ]
        })
        .collect();
    drop((reader, kernel_reader));
    for thread in threads {
        assert_eq!(thread.join().unwrap(), Err(Errno::PIPE));
    }
}

#[test]
fn a_write_that_was_cut_short_by_the_close_says_how_much_went() {
    let (kernel_reader, kernel_writer) = kernel_pipe(PipeFlags::empty()).unwrap();
    let (reader, writer) = pipe().unwrap();
    let threads = [
        asleep(move || writer.write(&[0; 70_000])).0,
        asleep(move || kernel_writer.write(&[0; 70_000])).0,
    ];
    drop((reader, kernel_reader));
    for thread in threads {
        assert_eq!(thread.join().unwrap(), Ok(65_536));
    }
}

#[test]
fn a_signal_ends_a_blocked_call_unless_its_handler_restarts_it() {
    for pipe in both_worlds() {
        let reader = pipe.clone();
        let (thread, tid) = asleep(move || reader.read(&mut [0]));
        signal(tid, true);
        until_asleep(tid);
        signal(tid, false);
        assert_eq!(thread.join().unwrap(), Err(Errno::INTR));

        // Nothing is written yet: a signal acts as for a read.
        assert_eq!(pipe.write(&[0; PIPE_BUF]), Ok(PIPE_BUF));
        let writer = pipe.clone();
        let (thread, tid) = asleep(move || writer.write(&[0]));
        signal(tid, true);
        until_asleep(tid);
        signal(tid, false);
        assert_eq!(thread.join().unwrap(), Err(Errno::INTR));

        // After a partial write any handler ends the call, which returns the bytes written.
        for restart in [true, false] {
            assert_eq!(pipe.read(&mut [0; PIPE_BUF]), Ok(PIPE_BUF));
            let writer = pipe.clone();
            let (thread, tid) = asleep(move || writer.write(&[0; PIPE_BUF + 1]));
            signal(tid, restart);
            assert_eq!(thread.join().unwrap(), Ok(PIPE_BUF));
        }
    }
}

#[test]
fn writes_of_many_threads_arrive_whole_and_none_is_lost() {
    const WRITERS: usize = 4;
    const READERS: usize = 3;
    const RECORDS: usize = 3_000;
    // A page holds a whole number of records, and reads take whole records, so each read begins and
    // ends at a record.
    const RECORD: usize = 64;
    let (reader, writer) = pipe().unwrap();
    writer.set_capacity(2 * PIPE_BUF).unwrap();
    let writers: Vec<_> = (0..WRITERS)
        .map(|me| {
            let writer = writer.clone();
            thread::spawn(move || {
                for number in 0..RECORDS {
                    let mut record = [u8::try_from(me).unwrap(); RECORD];
                    record[1..9].copy_from_slice(&number.to_le_bytes());
                    assert_eq!(writer.write(&record), Ok(RECORD));
                }
            })
        })
        .collect();
    drop(writer);
    let readers: Vec<_> = (0..READERS)
        .map(|me| {
            let reader = reader.clone();
            thread::spawn(move || {
                let mut seen = Vec::new();
                let mut buffer = vec![0; RECORD * (1 + me)];
                loop {
                    let count = reader.read(&mut buffer).unwrap();
                    if count == 0 {
                        return seen;
                    }
                    assert_eq!(count % RECORD, 0);
                    for record in buffer[..count].chunks(RECORD) {
                        let from = record[0];
                        assert!(record[9..].iter().all(|&byte| byte == from), "interleaved");
                        let number = usize::from_le_bytes(record[1..9].try_into().unwrap());
                        seen.push((from, number));
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        writer.join().unwrap();
    }
    let mut all: Vec<_> = Vec::new();
    for reader in readers {
        all.extend(reader.join().unwrap());
    }
    all.sort_unstable();
    let expected: Vec<_> = (0..WRITERS)
        .flat_map(|me| (0..RECORDS).map(move |number| (u8::try_from(me).unwrap(), number)))
        .collect();
    assert!(all == expected, "records lost or doubled");
}

#[test]
fn large_writes_of_many_threads_lose_no_byte() {
    const WRITERS: usize = 3;
    const WRITES: usize = 40;
    const SIZE: usize = 50_001;
    let (reader, writer) = pipe().unwrap();
    let writers: Vec<_> = (0..WRITERS)
        .map(|me| {
            let writer = writer.clone();
            thread::spawn(move || {
                let bytes = vec![u8::try_from(me).unwrap(); SIZE];
                for _ in 0..WRITES {
                    assert_eq!(writer.write(&bytes), Ok(SIZE));
                }
            })
        })
        .collect();
    drop(writer);
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let reader = reader.clone();
            thread::spawn(move || {
                let mut counts = [0; WRITERS];
                let mut buffer = [0; 3_333];
                loop {
                    match reader.read(&mut buffer).unwrap() {
                        0 => return counts,
                        count => {
                            for &byte in &buffer[..count] {
                                counts[usize::from(byte)] += 1;
                            }
                        }
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        writer.join().unwrap();
    }
    let mut total = [0; WRITERS];
    for reader in readers {
        let counts = reader.join().unwrap();
        for (total, count) in total.iter_mut().zip(counts) {
            *total += count;
        }
    }
    assert_eq!(total, [WRITES * SIZE; WRITERS]);
}

#[test]
fn writers_of_several_pages_and_their_reader_never_all_sleep() {
    const WRITERS: usize = 8;
    const WRITES: usize = 2_000;
    const SIZE: usize = 5 * PIPE_BUF;
    let (reader, writer) = pipe().unwrap();
    writer.set_capacity(PIPE_BUF).unwrap();
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| {
            let writer = writer.clone();
            thread::spawn(move || {
                for _ in 0..WRITES {
                    assert_eq!(writer.write(&[0; SIZE]), Ok(SIZE));
                }
            })
        })
        .collect();
    let mut left = WRITERS * WRITES * SIZE;
    while left > 0 {
        left -= reader.read(&mut [0; PIPE_BUF]).unwrap();
    }
    for writer in writers {
        writer.join().unwrap();
    }
}

#[test]
fn a_blocked_read_whose_memory_is_missing_leaves_the_byte_to_the_next_reader() {
    let (reader, writer) = pipe().unwrap();
    let (first, second) = (reader.clone(), reader.clone());
    let (first, _) = asleep(move || first.read_before_fault(&mut [], 1));
    let (second, _) = asleep(move || second.read(&mut [0; 2]));
    writer.write(b"x").unwrap();
    assert_eq!(first.join().unwrap(), Err(Errno::FAULT));
    for _ in 0..60_000 {
        if second.is_finished() {
            break;
        }
        thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(second.is_finished());
    assert_eq!(second.join().unwrap(), Ok(1));
}
