//! System calls of Linux, made inline.
//!
//! A call of the C library may be a cancellation point, changes `errno`, and can reach a function that the
//! program defines under the same name: upoll's own, where it stands behind libc's names. The calls here
//! do none of that. They return the kernel's result, or its error number.

use std::ffi::c_long;

pub mod backoff;
pub mod futex;
pub mod interruptible;
#[cfg(upoll_jitter)]
pub mod jitter;
pub mod limits;
pub mod membarrier;
pub mod shared_file;
pub mod signals;
pub mod text;
pub mod warning;

#[doc(hidden)]
pub use libc;

/// Makes the system call of a number, which need not be known to this crate. Returns what the kernel
/// returns: an error is its number, negated.
///
/// On processors other than x86-64 and aarch64 the C library makes the call, and changes `errno`.
///
/// # Safety
/// The arguments fulfil the contract of the call `number`.
#[inline]
pub unsafe fn raw(number: c_long, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: this is the kernel's calling convention; the rest is the caller's contract.
    unsafe {
        let returned;
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => returned,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
        returned
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: this is the kernel's calling convention; the rest is the caller's contract.
    unsafe {
        let returned;
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a => returned,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
        returned
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    // SAFETY: the caller's contract; each thread has a live errno.
    unsafe {
        match libc::syscall(number, a, b, c, d, e, f) {
            -1 => -(*libc::__errno_location() as isize),
            returned => returned as isize,
        }
    }
}

/// Makes the system call of a number, as [`raw`] does.
///
/// # Errors
/// The kernel's error number.
///
/// # Safety
/// The arguments fulfil the contract of the call `number`.
#[inline]
pub unsafe fn call(number: c_long, arguments: [usize; 6]) -> Result<usize, i32> {
    // SAFETY: the caller's contract.
    result(unsafe { raw(number, arguments) })
}

/// Converts what the kernel returned: -4095 to -1 are error numbers.
///
/// # Errors
/// The kernel's error number.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "error numbers are below 4096"
)]
pub fn result(returned: isize) -> Result<usize, i32> {
    match returned {
        -4095..=-1 => Err(-(returned as i32)),
        _ => Ok(returned.cast_unsigned()),
    }
}

/// Fills the machine words of a call with the arguments that it has.
#[doc(hidden)]
#[inline]
#[must_use]
pub fn words<const N: usize>(given: [usize; N]) -> [usize; 6] {
    let mut words = [0; 6];
    words[..N].copy_from_slice(&given);
    words
}

/// Makes a system call by the name of its number in `libc`: integers and pointers become machine words.
///
/// Returns a `Result<usize, i32>`, and is as unsafe as the call.
#[macro_export]
macro_rules! syscall {
    ($number:ident $(, $argument:expr)* $(,)?) => {
        $crate::call($crate::libc::$number, $crate::words([$($argument as usize),*]))
    };
}

/// The same for a call that may sleep: see [`interruptible::call`].
#[macro_export]
macro_rules! interruptible {
    ($number:ident $(, $argument:expr)* $(,)?) => {
        $crate::interruptible::call($crate::libc::$number, $crate::words([$($argument as usize),*]))
    };
}
