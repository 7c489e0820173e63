//! `errno(3)`: Linux's error numbers.

use core::fmt;

/// A Linux error number.
///
/// Every fallible call of this crate documents the numbers that it fails with. With the `std`
/// feature it converts into [`std::io::Error`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Errno(i32);

macro_rules! errnos {
    ($($name:ident = $value:literal, $shown:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Errno = Errno($value);)*

            /// Returns all numbers that have a name, in their order.
            #[cfg(feature = "std")]
            pub fn known() -> impl Iterator<Item = Errno> {
                [$(Errno::$name),*].into_iter()
            }

            fn describe(self) -> Option<(&'static str, &'static str)> {
                match self {
                    $(Errno::$name => Some(($shown, $text)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    PERM = 1, "EPERM", "Operation not permitted";
    NOENT = 2, "ENOENT", "No such file or directory";
    SRCH = 3, "ESRCH", "No such process";
    INTR = 4, "EINTR", "Interrupted system call";
    IO = 5, "EIO", "Input/output error";
    NXIO = 6, "ENXIO", "No such device or address";
    TOOBIG = 7, "E2BIG", "Argument list too long";
    NOEXEC = 8, "ENOEXEC", "Exec format error";
    BADF = 9, "EBADF", "Bad file descriptor";
    CHILD = 10, "ECHILD", "No child processes";
    AGAIN = 11, "EAGAIN", "Resource temporarily unavailable";
    NOMEM = 12, "ENOMEM", "Cannot allocate memory";
    ACCES = 13, "EACCES", "Permission denied";
    FAULT = 14, "EFAULT", "Bad address";
    NOTBLK = 15, "ENOTBLK", "Block device required";
    BUSY = 16, "EBUSY", "Device or resource busy";
    EXIST = 17, "EEXIST", "File exists";
    XDEV = 18, "EXDEV", "Invalid cross-device link";
    NODEV = 19, "ENODEV", "No such device";
    NOTDIR = 20, "ENOTDIR", "Not a directory";
    ISDIR = 21, "EISDIR", "Is a directory";
    INVAL = 22, "EINVAL", "Invalid argument";
    NFILE = 23, "ENFILE", "Too many open files in system";
    MFILE = 24, "EMFILE", "Too many open files";
    NOTTY = 25, "ENOTTY", "Inappropriate ioctl for device";
    TXTBSY = 26, "ETXTBSY", "Text file busy";
    FBIG = 27, "EFBIG", "File too large";
    NOSPC = 28, "ENOSPC", "No space left on device";
    SPIPE = 29, "ESPIPE", "Illegal seek";
    ROFS = 30, "EROFS", "Read-only file system";
    MLINK = 31, "EMLINK", "Too many links";
    PIPE = 32, "EPIPE", "Broken pipe";
    DOM = 33, "EDOM", "Numerical argument out of domain";
    RANGE = 34, "ERANGE", "Numerical result out of range";
    DEADLK = 35, "EDEADLK", "Resource deadlock avoided";
    NAMETOOLONG = 36, "ENAMETOOLONG", "File name too long";
    NOLCK = 37, "ENOLCK", "No locks available";
    NOSYS = 38, "ENOSYS", "Function not implemented";
    NOTEMPTY = 39, "ENOTEMPTY", "Directory not empty";
    LOOP = 40, "ELOOP", "Too many levels of symbolic links";
    NOMSG = 42, "ENOMSG", "No message of desired type";
    IDRM = 43, "EIDRM", "Identifier removed";
    CHRNG = 44, "ECHRNG", "Channel number out of range";
    L2NSYNC = 45, "EL2NSYNC", "Level 2 not synchronized";
    L3HLT = 46, "EL3HLT", "Level 3 halted";
    L3RST = 47, "EL3RST", "Level 3 reset";
    LNRNG = 48, "ELNRNG", "Link number out of range";
    UNATCH = 49, "EUNATCH", "Protocol driver not attached";
    NOCSI = 50, "ENOCSI", "No CSI structure available";
    L2HLT = 51, "EL2HLT", "Level 2 halted";
    BADE = 52, "EBADE", "Invalid exchange";
    BADR = 53, "EBADR", "Invalid request descriptor";
    XFULL = 54, "EXFULL", "Exchange full";
    NOANO = 55, "ENOANO", "No anode";
    BADRQC = 56, "EBADRQC", "Invalid request code";
    BADSLT = 57, "EBADSLT", "Invalid slot";
    BFONT = 59, "EBFONT", "Bad font file format";
    NOSTR = 60, "ENOSTR", "Device not a stream";
    NODATA = 61, "ENODATA", "No data available";
    TIME = 62, "ETIME", "Timer expired";
    NOSR = 63, "ENOSR", "Out of streams resources";
    NONET = 64, "ENONET", "Machine is not on the network";
    NOPKG = 65, "ENOPKG", "Package not installed";
    REMOTE = 66, "EREMOTE", "Object is remote";
    NOLINK = 67, "ENOLINK", "Link has been severed";
    ADV = 68, "EADV", "Advertise error";
    SRMNT = 69, "ESRMNT", "Srmount error";
    COMM = 70, "ECOMM", "Communication error on send";
    PROTO = 71, "EPROTO", "Protocol error";
    MULTIHOP = 72, "EMULTIHOP", "Multihop attempted";
    DOTDOT = 73, "EDOTDOT", "RFS specific error";
    BADMSG = 74, "EBADMSG", "Bad message";
    OVERFLOW = 75, "EOVERFLOW", "Value too large for defined data type";
    NOTUNIQ = 76, "ENOTUNIQ", "Name not unique on network";
    BADFD = 77, "EBADFD", "File descriptor in bad state";
    REMCHG = 78, "EREMCHG", "Remote address changed";
    LIBACC = 79, "ELIBACC", "Can not access a needed shared library";
    LIBBAD = 80, "ELIBBAD", "Accessing a corrupted shared library";
    LIBSCN = 81, "ELIBSCN", ".lib section in a.out corrupted";
    LIBMAX = 82, "ELIBMAX", "Attempting to link in too many shared libraries";
    LIBEXEC = 83, "ELIBEXEC", "Cannot exec a shared library directly";
    ILSEQ = 84, "EILSEQ", "Invalid or incomplete multibyte or wide character";
    RESTART = 85, "ERESTART", "Interrupted system call should be restarted";
    STRPIPE = 86, "ESTRPIPE", "Streams pipe error";
    USERS = 87, "EUSERS", "Too many users";
    NOTSOCK = 88, "ENOTSOCK", "Socket operation on non-socket";
    DESTADDRREQ = 89, "EDESTADDRREQ", "Destination address required";
    MSGSIZE = 90, "EMSGSIZE", "Message too long";
    PROTOTYPE = 91, "EPROTOTYPE", "Protocol wrong type for socket";
    NOPROTOOPT = 92, "ENOPROTOOPT", "Protocol not available";
    PROTONOSUPPORT = 93, "EPROTONOSUPPORT", "Protocol not supported";
    SOCKTNOSUPPORT = 94, "ESOCKTNOSUPPORT", "Socket type not supported";
    OPNOTSUPP = 95, "EOPNOTSUPP", "Operation not supported";
    PFNOSUPPORT = 96, "EPFNOSUPPORT", "Protocol family not supported";
    AFNOSUPPORT = 97, "EAFNOSUPPORT", "Address family not supported by protocol";
    ADDRINUSE = 98, "EADDRINUSE", "Address already in use";
    ADDRNOTAVAIL = 99, "EADDRNOTAVAIL", "Cannot assign requested address";
    NETDOWN = 100, "ENETDOWN", "Network is down";
    NETUNREACH = 101, "ENETUNREACH", "Network is unreachable";
    NETRESET = 102, "ENETRESET", "Network dropped connection on reset";
    CONNABORTED = 103, "ECONNABORTED", "Software caused connection abort";
    CONNRESET = 104, "ECONNRESET", "Connection reset by peer";
    NOBUFS = 105, "ENOBUFS", "No buffer space available";
    ISCONN = 106, "EISCONN", "Transport endpoint is already connected";
    NOTCONN = 107, "ENOTCONN", "Transport endpoint is not connected";
    SHUTDOWN = 108, "ESHUTDOWN", "Cannot send after transport endpoint shutdown";
    TOOMANYREFS = 109, "ETOOMANYREFS", "Too many references: cannot splice";
    TIMEDOUT = 110, "ETIMEDOUT", "Connection timed out";
    CONNREFUSED = 111, "ECONNREFUSED", "Connection refused";
    HOSTDOWN = 112, "EHOSTDOWN", "Host is down";
    HOSTUNREACH = 113, "EHOSTUNREACH", "No route to host";
    ALREADY = 114, "EALREADY", "Operation already in progress";
    INPROGRESS = 115, "EINPROGRESS", "Operation now in progress";
    STALE = 116, "ESTALE", "Stale file handle";
    UCLEAN = 117, "EUCLEAN", "Structure needs cleaning";
    NOTNAM = 118, "ENOTNAM", "Not a XENIX named type file";
    NAVAIL = 119, "ENAVAIL", "No XENIX semaphores available";
    ISNAM = 120, "EISNAM", "Is a named type file";
    REMOTEIO = 121, "EREMOTEIO", "Remote I/O error";
    DQUOT = 122, "EDQUOT", "Disk quota exceeded";
    NOMEDIUM = 123, "ENOMEDIUM", "No medium found";
    MEDIUMTYPE = 124, "EMEDIUMTYPE", "Wrong medium type";
    CANCELED = 125, "ECANCELED", "Operation canceled";
    NOKEY = 126, "ENOKEY", "Required key not available";
    KEYEXPIRED = 127, "EKEYEXPIRED", "Key has expired";
    KEYREVOKED = 128, "EKEYREVOKED", "Key has been revoked";
    KEYREJECTED = 129, "EKEYREJECTED", "Key was rejected by service";
    OWNERDEAD = 130, "EOWNERDEAD", "Owner died";
    NOTRECOVERABLE = 131, "ENOTRECOVERABLE", "State not recoverable";
    RFKILL = 132, "ERFKILL", "Operation not possible due to RF-kill";
    HWPOISON = 133, "EHWPOISON", "Memory page has hardware error";
}

impl Errno {
    /// The error with the number `code` in the kernel and in `errno.h`.
    #[must_use]
    pub const fn from_raw(code: i32) -> Self {
        Errno(code)
    }

    /// Returns the number, as in `errno.h`.
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

#[cfg(feature = "std")]
impl Errno {
    /// Returns the kind of the [`std::io::Error`] with this number.
    #[must_use]
    pub fn kind(self) -> std::io::ErrorKind {
        std::io::Error::from(self).kind()
    }
}

/// The number of an error of the operating system. An error that a program has made gets a number that has its
/// kind, or `EIO` if none has.
#[cfg(feature = "std")]
impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        if let Some(code) = error.raw_os_error() {
            return Errno::from_raw(code);
        }
        match error.kind() {
            // Several numbers have this kind; calls on files fail with this one.
            std::io::ErrorKind::Unsupported => Errno::OPNOTSUPP,
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
