//! The calls that are counted, and the kinds of objects that some of them make.

macro_rules! calls {
    ($($name:ident = $shown:literal,)*) => {
        /// The calls that are counted.
        #[derive(Clone, Copy)]
        pub(crate) enum Call { $($name),* }

        /// Their names in the report.
        pub(crate) const NAMES: &[&str] = &[$($shown),*];
    };
}

calls! {
    // The calls that make objects, in the order of `KINDS`.
    EventFd = "eventfd",
    Pipe = "pipe",
    SocketPair = "socketpair",
    EpollCreate = "epoll_create",
    // All others.
    EpollCtl = "epoll_ctl",
    EpollWait = "epoll_wait",
    Poll = "poll",
    Select = "select",
    Read = "read",
    Write = "write",
    Close = "close",
    Dup = "dup",
    Control = "fcntl, ioctl",
}

/// The kinds of objects that can be user-level, by their names in `UPOLL_USER`. The last are sets that are user-level
/// from their start, and not only once they have a user-level member.
pub(crate) const KINDS: [&[u8]; 4] = [b"eventfd", b"pipe", b"socketpair", b"epoll"];
