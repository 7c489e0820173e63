//! `libupoll_fair`: stands before the C library (`LD_PRELOAD`) and lets workers that share a listening socket
//! take turns.
//!
//! A set or a `poll` that holds a listening socket waits for it with `EPOLLEXCLUSIVE`: a connection wakes one
//! worker. After some wakeups the socket is registered again: the next connection wakes another worker. Every
//! other call is handed straight on to the C library.

mod fds;
mod hooks;
mod lock;
mod next;
mod polls;
mod raw;
mod sets;
mod settings;
mod shared;
mod stats;
mod wait;

use std::cell::Cell;

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// The constructor.
extern "C" fn start() {
    lock::start();
    shared::map(settings::shared());
    stats::prepare();
    fds::start();
    // SAFETY: the handlers are functions of a library that is never unloaded. Without memory for them a fork
    // in the middle of a change could leave the child's table locked.
    unsafe { libc::pthread_atfork(Some(before_fork), None, Some(after_fork_in_child)) };
}

/// The destructor, which runs at `exit`.
extern "C" fn end() {
    if shared::is_root() {
        stats::report();
        shared::unlink(settings::shared());
    }
}

std::thread_local! {
    /// The thread's last fork was of the process that the table is about, and not of a child by a raw `clone`. The child cannot
    /// ask: its parent may have ended, and then the process that adopts it may be that of the table.
    static IS_FORK_OF_OWNER: Cell<bool> = const { Cell::new(false) };
}

/// Holds no lock during the fork: the C library takes some of its own then, and a signal handler that has interrupted one that
/// holds them may need ours.
extern "C" fn before_fork() {
    IS_FORK_OF_OWNER.set(lock::is_owner());
}

extern "C" fn after_fork_in_child() {
    // In the midst of what change a thread of the parent was does not matter: no set of the parent's is changed here.
    lock::start();
    sets::after_fork(IS_FORK_OF_OWNER.get());
    shared::after_fork();
}
