//! `std::io::Read` and `Write` on pipes and stream sockets, against the host kernel's.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

use std::io::{self, BufRead, BufReader, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;

use upoll::{Errno, Events, File, PipeFlags, PollTable, Pollable, SocketFlags};

/// Sends what fits no buffer at once, in pieces and from several buffers, and returns what `std` reads.
fn send_and_read(mut writer: impl Write + Send, reader: impl Read) -> (Vec<String>, Vec<u8>) {
    let long = vec![b'x'; 300_000];
    thread::scope(|scope| {
        scope.spawn(move || {
            writeln!(writer, "first {}", 1).unwrap();
            let pieces = [b"sec".as_slice(), b"ond\n"].map(IoSlice::new);
            assert_eq!(writer.write_vectored(&pieces).unwrap(), 7);
            writer.write_all(&long).unwrap();
            writer.flush().unwrap();
        });
        let mut reader = BufReader::new(reader);
        let mut lines = Vec::new();
        for _ in 0..2 {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            lines.push(line);
        }
        let (mut one, mut other) = ([0; 3], [0; 5]);
        let mut buffers = [&mut one[..], &mut other].map(IoSliceMut::new);
        let read = reader.read_vectored(&mut buffers).unwrap();
        let mut rest = [one.as_slice(), &other].concat()[..read].to_vec();
        reader.read_to_end(&mut rest).unwrap();
        (lines, rest)
    })
}

#[test]
fn a_pipe_carries_lines_and_bulk_as_the_kernels_does() {
    let (reader, writer) = io::pipe().unwrap();
    let natively = send_and_read(writer, reader);
    let (reader, writer) = upoll::pipe().unwrap();
    assert!(send_and_read(writer, &reader) == natively);
    assert_eq!(natively.1.len(), 300_000);
}

#[test]
fn a_socket_carries_lines_and_bulk_as_the_kernels_does() {
    let (one, other) = UnixStream::pair().unwrap();
    let natively = send_and_read(one, other);
    let (one, other) = upoll::socketpair(SocketFlags::empty()).unwrap();
    assert!(send_and_read(one, &other) == natively);
}

/// Returns the reports of `std` for an end that would block, one whose peer is gone, and the end of the stream.
fn report(end: &str, mut there: impl Read + Write, gone: impl FnOnce()) -> Vec<String> {
    let mut buffer = [0; 4];
    let mut said = vec![format!("{end}: {:?}", kind(there.read(&mut buffer)))];
    gone();
    said.push(format!("{end}: {:?}", kind(there.read(&mut buffer))));
    said.push(format!("{end}: {:?}", kind(there.write(b"x"))));
    said
}

fn kind(result: io::Result<usize>) -> Result<usize, (ErrorKind, Option<i32>)> {
    result.map_err(|error| (error.kind(), error.raw_os_error()))
}

#[test]
fn errors_are_those_of_the_kernel() {
    let (one, other) = UnixStream::pair().unwrap();
    one.set_nonblocking(true).unwrap();
    let natively = report("socket", one, || drop(other));
    let (one, other) = upoll::socketpair(SocketFlags::NONBLOCK).unwrap();
    assert_eq!(report("socket", &one, || drop(other)), natively);
    let (reader, writer) = upoll::pipe2(PipeFlags::NONBLOCK).unwrap();
    let errors = [Read::read(&mut &reader, &mut [0; 1]).unwrap_err(), {
        drop(reader);
        Write::write(&mut &writer, b"x").unwrap_err()
    }];
    assert_eq!(
        errors.map(|error| error.kind()),
        [ErrorKind::WouldBlock, ErrorKind::BrokenPipe]
    );
}

#[test]
fn numbers_and_errors_of_std_become_each_other() {
    for errno in [Errno::AGAIN, Errno::PIPE, Errno::NFILE, Errno::INTR] {
        let error = io::Error::from(errno);
        assert_eq!(error.kind(), errno.kind());
        assert_eq!(Errno::from(error), errno);
    }
    assert_eq!(Errno::AGAIN.kind(), ErrorKind::WouldBlock);
    let made = |kind| Errno::from(io::Error::new(kind, "made by a program"));
    assert_eq!(made(ErrorKind::Interrupted), Errno::INTR);
    assert_eq!(made(ErrorKind::InvalidData), Errno::IO);
}

#[test]
fn an_error_that_a_program_made_becomes_a_number_of_its_kind() {
    for errno in (1..=133).map(Errno::from_raw) {
        let of_the_kind = Errno::from(io::Error::from(errno.kind()));
        assert_eq!(of_the_kind.kind(), errno.kind(), "{errno:?}");
    }
    let made = |kind| Errno::from(io::Error::from(kind));
    assert_eq!(made(ErrorKind::TimedOut), Errno::TIMEDOUT);
    assert_eq!(made(ErrorKind::Unsupported), Errno::OPNOTSUPP);
    assert_eq!(made(ErrorKind::UnexpectedEof), Errno::IO);
}

#[test]
fn numbers_have_the_names_and_texts_of_the_c_library() {
    unsafe extern "C" {
        fn strerrorname_np(number: i32) -> *const std::ffi::c_char;
    }
    let mut named = 0;
    for code in 1..=140 {
        let text = io::Error::from_raw_os_error(code).to_string();
        let Some(text) = text.strip_suffix(&format!(" (os error {code})")) else {
            panic!("{text}");
        };
        // SAFETY: any number may be asked for, and the answer is null or a constant string.
        let name = unsafe {
            let name = strerrorname_np(code);
            (!name.is_null()).then(|| std::ffi::CStr::from_ptr(name).to_str().unwrap())
        };
        let errno = Errno::from_raw(code);
        match name {
            None => assert_eq!(errno.to_string(), format!("error number {code}")),
            Some(name) => {
                assert_eq!(errno.to_string(), format!("{text} ({name})"));
                assert_eq!(format!("{errno:?}"), name);
                named += 1;
            }
        }
    }
    assert!(named > 130);
}

/// An object that is written and read by shared references, as a socket of a stack is.
#[derive(Default)]
struct Bytes(std::sync::Mutex<std::collections::VecDeque<u8>>);

impl Pollable for Bytes {
    fn poll<'q>(&'q self, _: &mut PollTable<'q>) -> Events {
        Events::IN | Events::OUT
    }
}

impl Read for &Bytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.lock().unwrap().read(buffer)
    }
}

impl Write for &Bytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_file_is_read_and_written_as_its_object_is() {
    fn echo(mut link: impl Read + Write) -> io::Result<Vec<u8>> {
        link.write_all(b"words")?;
        link.flush()?;
        let mut read = Vec::new();
        link.read_to_end(&mut read)?;
        Ok(read)
    }
    assert_eq!(echo(&File::new(Bytes::default())).unwrap(), b"words");
}
