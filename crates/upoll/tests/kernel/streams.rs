//! Pipes and connected sockets in both worlds.

use std::mem::ManuallyDrop;
use std::sync::LazyLock;

use upoll::{Errno, PipeFlags, Shutdown, SocketFlags, pipe2, socketpair};

use super::twin::{Fd, Pattern, kernel_pair, kernel_pipe, kernel_shutdown};
use super::{Object, Twin, same};

/// The longest write or read.
pub const LONGEST: usize = 65_536;

/// Enough bytes for the longest write from any offset in the first page.
static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| Pattern::new().bytes(LONGEST + 4_096));

impl Twin {
    /// Borrows the kernel fd at the number.
    fn descriptor(&self, number: usize) -> ManuallyDrop<Fd> {
        ManuallyDrop::new(Fd::new(self.kernel.fd(number)))
    }

    /// Moves a new fd to the number.
    fn place(&self, fresh: Fd, number: usize) {
        self.kernel.place(fresh.into_raw(), number);
    }

    /// Opens a nonblocking pipe.
    pub fn open_pipe(&mut self, reader: usize, writer: usize) {
        self.open_pipe_with(reader, writer, PipeFlags::empty());
    }

    pub fn open_pipe_with(&mut self, reader: usize, writer: usize, flags: PipeFlags) {
        assert_ne!(reader, writer);
        self.close(reader);
        self.close(writer);
        let flags = flags | PipeFlags::NONBLOCK;
        let (kernel_reader, kernel_writer) = kernel_pipe(flags).unwrap();
        self.place(kernel_reader, reader);
        self.place(kernel_writer, writer);
        let ends = pipe2(flags).unwrap();
        self.objects[reader] = Some(Object::Reader(ends.0));
        self.objects[writer] = Some(Object::Writer(ends.1));
    }

    /// Opens two connected nonblocking sockets.
    pub fn open_pair(&mut self, one: usize, other: usize) {
        assert_ne!(one, other);
        self.close(one);
        self.close(other);
        let [kernel_one, kernel_other] = kernel_pair(SocketFlags::NONBLOCK).unwrap();
        self.place(kernel_one, one);
        self.place(kernel_other, other);
        let sockets = socketpair(SocketFlags::NONBLOCK).unwrap();
        self.objects[one] = Some(Object::Socket(sockets.0));
        self.objects[other] = Some(Object::Socket(sockets.1));
    }

    /// Writes to a stream. The bytes depend on their position in it.
    pub fn send(&mut self, number: usize, count: usize) -> Option<Result<usize, Errno>> {
        let bytes = &BYTES[self.sent..][..count];
        let upoll = match self.objects[number].as_ref()? {
            Object::Writer(writer) => writer.try_write(bytes),
            Object::Socket(socket) => socket.try_write(bytes),
            _ => return None,
        };
        self.sent = (self.sent + count) % 4_096;
        let kernel = self.descriptor(number).write(bytes);
        Some(same(("send", number, count), upoll, kernel))
    }

    /// Reads from a stream, and compares the bytes.
    pub fn receive(&self, number: usize, count: usize) -> Option<Result<usize, Errno>> {
        let (mut ours, mut theirs) = (vec![0; count], vec![0; count]);
        let upoll = match self.objects[number].as_ref()? {
            Object::Reader(reader) => reader.try_read(&mut ours),
            Object::Socket(socket) => socket.try_read(&mut ours),
            _ => return None,
        };
        let kernel = self.descriptor(number).read(&mut theirs);
        let read = same(("receive", number, count), upoll, kernel);
        assert!(ours == theirs, "other bytes than the kernel's");
        Some(read)
    }

    pub fn shutdown(&self, number: usize, how: Shutdown) {
        if let Some(Object::Socket(socket)) = &self.objects[number] {
            socket.shutdown(how);
            kernel_shutdown(&self.descriptor(number), how);
        }
    }

    /// `F_SETPIPE_SZ`
    pub fn set_capacity(&self, number: usize, bytes: usize) -> Option<Result<usize, Errno>> {
        let upoll = match self.objects[number].as_ref()? {
            Object::Reader(reader) => reader.set_capacity(bytes),
            Object::Writer(writer) => writer.set_capacity(bytes),
            _ => return None,
        };
        let argument = u32::try_from(bytes).unwrap().cast_signed();
        let kernel = self.descriptor(number).fcntl(libc::F_SETPIPE_SZ, argument);
        Some(same(("F_SETPIPE_SZ", number, bytes), upoll, kernel))
    }

    /// Compares the number of unread bytes and the capacity of a pipe.
    pub fn fill_level(&self, number: usize) {
        let (available, capacity) = match &self.objects[number] {
            Some(Object::Reader(reader)) => (reader.available(), Some(reader.capacity())),
            Some(Object::Writer(writer)) => (writer.available(), Some(writer.capacity())),
            Some(Object::Socket(socket)) => (socket.available(), None),
            _ => return,
        };
        let kernel = self.descriptor(number);
        same(("FIONREAD", number), available, kernel.available());
        if let Some(capacity) = capacity {
            let theirs = kernel.fcntl(libc::F_GETPIPE_SZ, 0);
            let _ = same(("F_GETPIPE_SZ", number), Ok(capacity), theirs);
        }
    }
}
