//! Registration of all that the library needs from the C library and the kernel, when it is loaded.

use upoll::internal::own_fds;
use upoll_fds::internal;

use crate::{cancel, handlers, next, process, settings, stats, top};

/// In the section of the fork handlers: each page of code that a process runs at its start is one that it maps.
#[unsafe(link_section = "upoll_fork")]
extern "C" fn at_start() {
    next::find_all();
    // Without kinds to serve, nothing has to be registered.
    if settings::is_any_kind_served() {
        own_fds::protect();
        // If memory is short, making an object fails later.
        let _ = internal::prepare();
        cancel::prepare();
        handlers::prepare();
        process::prepare();
        top::prepare();
    }
    stats::prepare();
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;
