//! `std::io::Read` and `Write` for pipes and stream sockets, for shared references to them, and for files of objects that
//! implement them.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};

use crate::errno::Errno;
use crate::file::{File, Pollable};
use crate::pipe::{PipeReader, PipeWriter};
use crate::socketpair::StreamSocket;

macro_rules! reads {
    ($($object:ident: $reader:ty,)*) => {$(
        impl Read for $reader {
            #[inline]
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                Ok($object::read(self, buffer)?)
            }

            fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                Ok($object::read_vectored(self, buffers)?)
            }
        }
    )*};
}

macro_rules! writes {
    ($($object:ident: $writer:ty,)*) => {$(
        impl Write for $writer {
            #[inline]
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                Ok($object::write(self, bytes)?)
            }

            fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
                Ok($object::write_vectored(self, buffers)?)
            }

            /// Does nothing: bytes that were written are with the reader.
            #[inline]
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
    )*};
}

reads! {
    PipeReader: PipeReader,
    PipeReader: &PipeReader,
    StreamSocket: StreamSocket,
    StreamSocket: &StreamSocket,
}

writes! {
    PipeWriter: PipeWriter,
    PipeWriter: &PipeWriter,
    StreamSocket: StreamSocket,
    StreamSocket: &StreamSocket,
}

/// Reads from the object, if shared references to it read.
impl<T: Pollable> Read for &File<T>
where
    for<'a> &'a T: Read,
{
    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&mut &***self).read(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&mut &***self).read_vectored(buffers)
    }
}

/// Writes to the object, if shared references to it write.
impl<T: Pollable> Write for &File<T>
where
    for<'a> &'a T: Write,
{
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&mut &***self).write(bytes)
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        (&mut &***self).write_vectored(buffers)
    }

    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        (&mut &***self).flush()
    }
}

impl Errno {
    /// Returns the kind of the [`std::io::Error`] with this number.
    #[must_use]
    pub fn kind(self) -> io::ErrorKind {
        io::Error::from(self).kind()
    }
}

/// The number of an error of the operating system. An error that a program has made gets a number that has its
/// kind, or `EIO` if none has.
impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        if let Some(code) = error.raw_os_error() {
            return Errno::from_raw(code);
        }
        match error.kind() {
            // Several numbers have this kind; calls on files fail with this one.
            io::ErrorKind::Unsupported => Errno::OPNOTSUPP,
            // The kind of numbers that have none.
            kind if kind == Errno::IO.kind() => Errno::IO,
            kind => {
                let mut known = Errno::known();
                known
                    .find(|errno| errno.kind() == kind)
                    .unwrap_or(Errno::IO)
            }
        }
    }
}
