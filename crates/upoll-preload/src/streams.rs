//! The C library's streams: they read and write within it, unseen.

use std::ffi::c_int;
use std::mem::offset_of;

use crate::raw;

/// The beginning of the C library's `FILE`, which is part of its ABI.
#[repr(C)]
struct Stream {
    flags: c_int,
    buffers: [usize; 11],
    markers: usize,
    next: *const Stream,
    fd: c_int,
}

unsafe extern "C" {
    /// The stream that was opened last.
    #[link_name = "_IO_list_all"]
    static NEWEST: *const Stream;
}

/// Returns whether a stream may be open over an fd, whether or not the fd itself is: a program may close
/// the fd of a stream and go on with the stream once another file has that number.
pub(crate) fn may_be_over(fd: c_int) -> bool {
    (0..=libc::STDERR_FILENO).contains(&fd) || may_be_listed(fd)
}

/// Looks through the list of streams without the C library's lock. A thread that flushes all streams holds that
/// one for as long as another thread reads from one of them, a handler may leave by `siglongjmp` or the thread be
/// cancelled meanwhile, and in a child of a fork that the C library has not seen nobody gives it back.
///
/// So a stream may be closed just now, and the kernel reads it, which fails for memory that is gone.
fn may_be_listed(fd: c_int) -> bool {
    /// Of a list that is longer, or that leads back to itself, nothing is known.
    const MOST: usize = 1 << 16;
    // SAFETY: a variable of the C library, which has the size of a pointer; one access reads it whole.
    let mut at = unsafe { (&raw const NEWEST).read_volatile() };
    for _ in 0..MOST {
        if at.is_null() {
            return false;
        }
        match read(at) {
            Some((_, found)) if found == fd => return true,
            Some((next, _)) => at = next,
            None => return true,
        }
    }
    true
}

/// Reads what is needed of a stream. None if the kernel cannot.
fn read(stream: *const Stream) -> Option<(*const Stream, c_int)> {
    const FROM: usize = offset_of!(Stream, next);
    const SIZE: usize = offset_of!(Stream, fd) + size_of::<c_int>() - FROM;
    let mut found = Stream {
        flags: 0,
        buffers: [0; 11],
        markers: 0,
        next: std::ptr::null(),
        fd: -1,
    };
    let local = libc::iovec {
        iov_base: (&raw mut found).wrapping_byte_add(FROM).cast(),
        iov_len: SIZE,
    };
    let remote = libc::iovec {
        iov_base: stream.wrapping_byte_add(FROM).cast_mut().cast(),
        iov_len: SIZE,
    };
    let process = raw::kernel!(SYS_getpid).ok()?;
    let (local, remote) = (&raw const local, &raw const remote);
    let count = raw::kernel!(SYS_process_vm_readv, process, local, 1, remote, 1, 0);
    (count == Ok(SIZE)).then_some((found.next, found.fd))
}
