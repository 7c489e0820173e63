//! The C library's streams: they read and write within it, unseen.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr;

use crate::kernel;

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

/// Returns whether a stream may be open over `fd`. The fd need not be open itself: a program may close
/// the fd of a stream, and use the stream again once another file has that fd.
pub(crate) fn may_be_over(fd: c_int) -> bool {
    (0..=libc::STDERR_FILENO).contains(&fd) || may_be_listed(fd)
}

/// Searches the list of streams without the C library's lock. A thread that flushes all streams holds the
/// lock for as long as another thread reads from one of them. The lock may even stay held for ever: after a
/// `siglongjmp` or a cancellation, or in the child of a fork that the C library has not seen.
///
/// So a stream may be closed during the search. The kernel reads the memory of the stream, and fails if it is
/// gone.
fn may_be_listed(fd: c_int) -> bool {
    /// The number of streams to check. A longer list may lead back to itself.
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

/// Reads the link and the fd of a stream. Returns `None` if the kernel cannot read them.
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
    let process = kernel::call!(SYS_getpid).ok()?;
    let (local, remote) = (&raw const local, &raw const remote);
    let count = kernel::call!(SYS_process_vm_readv, process, local, 1, remote, 1, 0);
    (count == Ok(SIZE)).then_some((found.next, found.fd))
}

/// Returns the place of a stream's fd; null if it is a stream over memory, which has none.
///
/// # Safety
/// The stream is open, and nobody closes it meanwhile.
pub(crate) unsafe fn fd_of(stream: *mut c_void) -> *mut c_int {
    /// `_IO_IS_FILEBUF`
    const IS_OF_FILE: c_int = 0x2000;
    let stream = stream.cast::<Stream>();
    // SAFETY: the caller's contract.
    match unsafe { (&raw const (*stream).flags).read() } & IS_OF_FILE {
        0 => ptr::null_mut(),
        // SAFETY: as above.
        _ => unsafe { &raw mut (*stream).fd },
    }
}
