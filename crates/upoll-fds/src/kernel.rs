//! System calls, passed on as they are: for numbers that are the kernel's, and for the kernel
//! objects that stand behind ours.
//!
//! They are inline: a library that exports the C library's names must not meet itself here.

use std::ffi::CStr;
use std::os::fd::RawFd;

use upoll::Errno;

/// One system call by its name in `syscalls::Sysno`; its arguments become machine words.
macro_rules! call {
    ($name:ident $(, $argument:expr)* $(,)?) => {
        $crate::kernel::check(::syscalls::syscall!(::syscalls::Sysno::$name $(, $argument)*))
    };
}

pub(crate) use call;

#[inline]
pub(crate) fn check(result: Result<usize, syscalls::Errno>) -> Result<usize, Errno> {
    result.map_err(|errno| Errno::from_raw(errno.into_raw()))
}

/// What a call gave that opens a descriptor.
pub(crate) fn number(result: Result<usize, Errno>) -> Result<RawFd, Errno> {
    result.map(|number| RawFd::try_from(number).expect("descriptor numbers are ints"))
}

/// What a call gave whose result is an int, as the C library passes it on.
#[expect(clippy::cast_possible_truncation, reason = "so does the C library")]
pub(crate) fn int(result: Result<usize, Errno>) -> Result<i32, Errno> {
    result.map(|value| value.cast_signed() as i32)
}

/// Lets other threads run; `turns` counts how often. After a while it sleeps: a thread that waits for
/// one of a lower real-time priority would not let it run otherwise.
pub(crate) fn give_way(turns: &mut usize) {
    *turns += 1;
    if *turns <= 100 {
        std::hint::spin_loop();
    } else if *turns <= 1000 {
        std::thread::yield_now();
    } else {
        nap();
    }
}

/// Sleeps for a millisecond.
pub(crate) fn nap() {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    };
    // SAFETY: the time is live. A signal may end it early, which does no harm.
    let _ = unsafe { call!(nanosleep, &raw const time, 0) };
}

/// While it lives this thread's signals wait.
pub(crate) struct HeldBack {
    before: u64,
}

impl HeldBack {
    pub(crate) fn begin() -> Self {
        HeldBack {
            before: Self::exchange(u64::MAX),
        }
    }

    fn exchange(mask: u64) -> u64 {
        let mut before = 0_u64;
        let (new, old) = (&raw const mask, &raw mut before);
        // SAFETY: both masks are live, and as long as the kernel's.
        let changed = unsafe {
            call!(
                rt_sigprocmask,
                libc::SIG_SETMASK,
                new,
                old,
                size_of::<u64>()
            )
        };
        debug_assert!(changed.is_ok(), "nothing about the call can be wrong");
        before
    }
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        Self::exchange(self.before);
    }
}

/// `close(2)`.
pub(crate) fn close(fd: RawFd) -> Result<(), Errno> {
    // SAFETY: the caller owns the number, or passes on the call of somebody who does.
    unsafe { call!(close, fd) }.map(drop)
}

/// Whether a number is open at all (`fcntl(F_GETFD)`).
pub(crate) fn check_open(fd: RawFd) -> Result<(), Errno> {
    // SAFETY: no pointers are involved.
    unsafe { call!(fcntl, fd, libc::F_GETFD) }.map(drop)
}

/// The first 4 KiB of a file; nothing if it cannot be read.
pub(crate) fn read_file(path: &CStr) -> String {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the path is a live C string.
    let file = number(unsafe { call!(openat, libc::AT_FDCWD, path.as_ptr(), flags) });
    let Ok(file) = file else {
        return String::new();
    };
    let mut bytes = vec![0; 4096];
    // SAFETY: the buffer has as much room as is claimed.
    let read = unsafe { call!(read, file, bytes.as_mut_ptr(), bytes.len()) };
    // A file of our own; nothing is lost if it cannot be closed.
    let _ = close(file);
    bytes.truncate(read.unwrap_or(0));
    String::from_utf8_lossy(&bytes).into_owned()
}
