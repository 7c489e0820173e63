//! `setrlimit(2)` and `prlimit(2)`. `poll` checks the number of its entries against the last known limit of
//! fds. A change makes it read the limit again.

use std::ffi::{c_int, c_void};

use libc::pid_t;
use upoll_fds::internal;

use crate::kernel;
use crate::next::pass_on;
use upoll_fds::internal::errno::give;

/// Defines functions that pass their arguments on, then have the limit read again. If the C library has no
/// such function, they make the system call.
macro_rules! changes {
    ($($symbol:literal $name:ident($($argument:ident: $kind:ty),*) = $call:ident($($given:expr),*);)*) => { $(
        #[doc = concat!("`", $symbol, "`")]
        #[unsafe(export_name = $symbol)]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> c_int {
            let change = || {
                pass_on!($symbol, fn($($kind),*) -> c_int, ($($argument),*));
                give(kernel::call!($call, $($given),*).map(drop))
            };
            let result = change();
            internal::open_limit_changed();
            result
        }
    )* };
}

changes! {
    "setrlimit" setrlimit(resource: c_int, new: *const c_void)
        = SYS_prlimit64(0, resource, new, 0);
    "setrlimit64" setrlimit64(resource: c_int, new: *const c_void)
        = SYS_prlimit64(0, resource, new, 0);
    "prlimit" prlimit(process: pid_t, resource: c_int, new: *const c_void, old: *mut c_void)
        = SYS_prlimit64(process, resource, new, old);
    "prlimit64" prlimit64(process: pid_t, resource: c_int, new: *const c_void, old: *mut c_void)
        = SYS_prlimit64(process, resource, new, old);
}
