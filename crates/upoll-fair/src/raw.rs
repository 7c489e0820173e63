//! System calls without the C library: they are no cancellation points, leave `errno` alone, and cannot
//! reach a function that the program defines under the same name.

use std::ffi::{c_int, c_short};

use libc::timespec;
use upoll_sys::signals;

/// The size of the kernel's signal set.
const MASK_SIZE: usize = size_of::<u64>();

/// Makes a system call whose pointers the kernel checks, or which has none. Returns the result, or the negative
/// error number.
macro_rules! kernel {
    ($number:ident $(, $argument:expr)* $(,)?) => {{
        let arguments = ::upoll_sys::words([$($argument as usize),*]);
        // SAFETY: the kernel checks each pointer; each one is live, or the program's own.
        unsafe { ::upoll_sys::raw(libc::$number, arguments) }
    }};
}

pub(crate) use kernel;

/// Sets `errno` and returns -1 if `result` is an error; otherwise returns the result.
#[expect(clippy::cast_possible_truncation, reason = "these calls return an int")]
pub(crate) fn give(result: isize) -> c_int {
    if result < 0 {
        set_errno(-result as c_int);
        return -1;
    }
    result as c_int
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the C library gives each thread a live errno.
    unsafe { *libc::__errno_location() = errno };
}

pub(crate) fn errno() -> c_int {
    // SAFETY: the C library gives each thread a live errno.
    unsafe { *libc::__errno_location() }
}

/// The program's signals.
pub(crate) const PROGRAMS: u64 = !signals::OF_THE_C_LIBRARY;

/// The signals that do nothing unless the program asks for more.
const IGNORED_BY_DEFAULT: [c_int; 4] = [libc::SIGCHLD, libc::SIGURG, libc::SIGWINCH, libc::SIGCONT];

/// Unblocks, of the program's signals, those that `before` does not hold and that the program ignores by default or by
/// `SIG_IGN`. The kernel keeps a blocked signal also if it is ignored, and such a one ends the wait that unblocks it.
pub(crate) fn let_ignored_signals_pass(before: u64) {
    let ignored = IGNORED_BY_DEFAULT
        .iter()
        .filter(|signal| is_ignored(**signal));
    let blocked = ignored.fold(PROGRAMS, |mask, signal| mask & !signals::bit(*signal));
    set_mask(blocked | before);
}

/// Returns whether the program ignores a signal that is ignored by default.
fn is_ignored(signal: c_int) -> bool {
    let mut action = signals::Action::default();
    kernel!(SYS_rt_sigaction, signal, 0, &raw mut action, MASK_SIZE);
    matches!(action.handler, libc::SIG_DFL | libc::SIG_IGN)
}

/// Sets the thread's signal mask and returns the one before.
pub(crate) fn set_mask(mask: u64) -> u64 {
    signals::change(libc::SIG_SETMASK, mask)
}

/// In nanoseconds.
pub(crate) const SECOND: u64 = 1_000_000_000;

pub(crate) fn to_timespec(nanos: u64) -> timespec {
    timespec {
        tv_sec: (nanos / SECOND).cast_signed(),
        tv_nsec: (nanos % SECOND).cast_signed(),
    }
}

/// Returns the time of `CLOCK_MONOTONIC` in nanoseconds.
pub(crate) fn now() -> u64 {
    let mut time = to_timespec(0);
    kernel!(SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut time);
    time.tv_sec.cast_unsigned() * SECOND + time.tv_nsec.cast_unsigned()
}

const PAGE: usize = 4096;

/// Returns an address in the page of the stack that the thread uses. On known processors it takes no variable: a function
/// without a frame calls the C library by a jump. After a system call the processor does not know where a frame returns to.
#[inline]
fn place_in_stack() -> usize {
    let place: usize;
    // SAFETY: the instruction copies a register.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("mov {}, rsp", out(reg) place, options(nomem, nostack, preserves_flags));
    };
    // SAFETY: the instruction copies a register.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("mov {}, sp", out(reg) place, options(nomem, nostack, preserves_flags));
    };
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let local = 0_u8;
        place = (&raw const local).addr();
    }
    place
}

/// Returns whether at least eight bytes lie in the page of the stack that the thread uses, which can be read.
#[inline]
pub(crate) fn is_known_readable(start: usize, size: usize) -> bool {
    start / PAGE == place_in_stack() / PAGE && start % PAGE + size <= PAGE
}

/// Returns whether at least eight bytes can be read. The kernel reads a signal mask from each page, and then refuses the
/// call.
pub(crate) fn is_readable(start: usize, size: usize) -> bool {
    const NO_CHANGE: c_int = -1;
    let last = start.saturating_add(size - 1) / PAGE;
    let mut pages = start / PAGE..=last;
    is_known_readable(start, size)
        || pages.all(|page| {
            let place = start.max(page * PAGE);
            let result = kernel!(SYS_rt_sigprocmask, NO_CHANGE, place, 0, MASK_SIZE);
            result != -libc::EFAULT as isize
        })
}

/// Returns a socket option that has the type `T`, or the error number.
pub(crate) fn socket_option<T: Default>(fd: c_int, option: c_int) -> Result<T, c_int> {
    let mut value = T::default();
    let mut size = size_of::<T>();
    let (place, size) = (&raw mut value, &raw mut size);
    let result = kernel!(SYS_getsockopt, fd, libc::SOL_SOCKET, option, place, size);
    upoll_sys::result(result).map(|_| value)
}

/// Returns which of `events` an fd is ready for.
pub(crate) fn readiness(fd: c_int, events: u32) -> u32 {
    let mut entry = libc::pollfd {
        fd,
        events: c_short::try_from(events).unwrap_or(0),
        revents: 0,
    };
    let (list, no_time) = (&raw mut entry, to_timespec(0));
    kernel!(SYS_ppoll, list, 1, &raw const no_time, 0, MASK_SIZE);
    u32::from(entry.revents.cast_unsigned()) & events
}
