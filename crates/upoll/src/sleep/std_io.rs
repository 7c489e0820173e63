//! `std::io::Read` and `Write` for pipes and stream sockets, for shared references to them, and for files of objects that
//! implement them.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};

use crate::file::Pollable;
use crate::open_file::File;
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
