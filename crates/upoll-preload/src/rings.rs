//! `io_uring(7)`.
//!
//! The library cannot see the requests in a ring, so the kernel must serve every object that a ring may
//! name. Calls of liburing can be seen: from the first ring on, the kernel serves all objects. A
//! program that asks for a ring by `syscall(2)` gets `ENOSYS`, as on a system where rings are disabled;
//! programs that do so (libuv) work without rings. Rings that are made by inline system calls are out
//! of reach.

use std::ffi::{c_int, c_uint, c_void};

use crate::next::next;
use crate::settings;

/// Functions of liburing that make a ring.
macro_rules! rings {
    ($($symbol:literal $name:ident($($argument:ident: $kind:ty),*);)*) => { $(
        #[doc = concat!("`", stringify!($name), "(3)`")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> c_int {
            settings::serve_nothing_new();
            upoll_fds::demote_all();
            next!($symbol as fn($($kind),*) -> c_int, ($($argument),*), or -libc::ENOSYS)
        }
    )* };
}

rings! {
    c"io_uring_setup" io_uring_setup(entries: c_uint, parameters: *mut c_void);
    c"io_uring_queue_init" io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint);
    c"io_uring_queue_init_params" io_uring_queue_init_params(
        entries: c_uint, ring: *mut c_void, parameters: *mut c_void);
    c"io_uring_queue_init_mem" io_uring_queue_init_mem(
        entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void,
        size: usize);
}
