//! `errno(3)`: the error numbers that the calls of this crate give.

use core::fmt;

/// A Linux error number.
///
/// Every fallible call of this crate documents the numbers that it fails with. With the `std`
/// feature it converts into [`std::io::Error`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Errno(i32);

macro_rules! errnos {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Errno = Errno($value);)*

            fn describe(self) -> Option<(&'static str, &'static str)> {
                match self {
                    $(Errno::$name => Some((concat!("E", stringify!($name)), $text)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    PERM = 1, "Operation not permitted";
    NOENT = 2, "No such file or directory";
    INTR = 4, "Interrupted system call";
    IO = 5, "Input/output error";
    BADF = 9, "Bad file descriptor";
    AGAIN = 11, "Resource temporarily unavailable";
    NOMEM = 12, "Cannot allocate memory";
    FAULT = 14, "Bad address";
    BUSY = 16, "Device or resource busy";
    EXIST = 17, "File exists";
    INVAL = 22, "Invalid argument";
    NFILE = 23, "Too many open files in system";
    MFILE = 24, "Too many open files";
    NOTTY = 25, "Inappropriate ioctl for device";
    NOSPC = 28, "No space left on device";
    SPIPE = 29, "Illegal seek";
    PIPE = 32, "Broken pipe";
    NOSYS = 38, "Function not implemented";
    LOOP = 40, "Too many levels of symbolic links";
    NOTSOCK = 88, "Socket operation on non-socket";
    MSGSIZE = 90, "Message too long";
    OPNOTSUPP = 95, "Operation not supported";
    CONNRESET = 104, "Connection reset by peer";
    NOBUFS = 105, "No buffer space available";
    ISCONN = 106, "Transport endpoint is already connected";
    STALE = 116, "Stale file handle";
}

impl Errno {
    /// The error number `code`, as the kernel and `errno.h` count them.
    #[must_use]
    pub const fn from_raw(code: i32) -> Self {
        Errno(code)
    }

    /// The number as `errno.h` has it.
    #[must_use]
    pub const fn raw(self) -> i32 {
        self.0
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.describe() {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "Errno({})", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.describe() {
            Some((name, text)) => write!(f, "{text} ({name})"),
            None => write!(f, "error number {}", self.0),
        }
    }
}

impl core::error::Error for Errno {}

#[cfg(feature = "std")]
impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> Self {
        std::io::Error::from_raw_os_error(errno.0)
    }
}
