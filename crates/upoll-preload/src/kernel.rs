//! The library's own system calls.

use std::ffi::{c_int, c_long};

use upoll::Errno;

/// Makes the system call of a number.
///
/// # Safety
/// That of the call.
#[inline]
pub(crate) unsafe fn by_number(number: c_long, arguments: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: the caller's contract.
    unsafe { upoll_sys::call(number, arguments) }.map_err(Errno::from_raw)
}

/// Converts what the kernel returned.
pub(crate) fn result(returned: usize) -> Result<usize, Errno> {
    upoll_sys::result(returned.cast_signed()).map_err(Errno::from_raw)
}

/// Makes a system call that has no pointers, or whose pointers the kernel checks.
macro_rules! call {
    ($number:ident $(, $argument:expr)* $(,)?) => {{
        let arguments = ::upoll_sys::words([$($argument as usize),*]);
        // SAFETY: the kernel checks what pointers there are; what they lead to is the caller's.
        unsafe { $crate::kernel::by_number(libc::$number, arguments) }
    }};
}

pub(crate) use call;

pub(crate) use upoll_sys::signals::Action;

pub(crate) fn write_all(fd: c_int, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let written = call!(SYS_write, fd, bytes.as_ptr(), bytes.len())?;
        bytes = &bytes[written..];
    }
    Ok(())
}
