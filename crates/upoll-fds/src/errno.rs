//! Results of calls in the C library's convention: -1 and `errno`.

use std::ffi::{c_int, c_long};

use libc::ssize_t;
use upoll::Errno;

/// The size of the kernel's signal set.
pub const MASK_SIZE: usize = size_of::<u64>();

/// Sets the thread's `errno`.
pub fn set_errno(errno: Errno) {
    // SAFETY: the C library gives each thread a live errno.
    unsafe { *libc::__errno_location() = errno.raw() };
}

/// A result as C functions return it.
pub trait Value {
    /// Converts the result.
    fn value(self) -> c_int;
}

impl Value for () {
    fn value(self) -> c_int {
        0
    }
}

impl Value for c_int {
    fn value(self) -> c_int {
        self
    }
}

impl Value for usize {
    fn value(self) -> c_int {
        c_int::try_from(self).unwrap_or(c_int::MAX)
    }
}

/// Returns the value of a result. If it is an error, sets `errno` and returns -1.
#[inline]
pub fn give<T: Value>(result: Result<T, Errno>) -> c_int {
    match result {
        Ok(value) => value.value(),
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// The same for a number of bytes.
#[inline]
pub fn give_size(result: Result<usize, Errno>) -> ssize_t {
    match result {
        Ok(count) => count.cast_signed(),
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// The same for what the kernel returned.
#[inline]
pub fn give_word(result: Result<usize, Errno>) -> c_long {
    give_size(result) as c_long
}
