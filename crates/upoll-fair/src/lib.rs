//! `libupoll_fair`: stands before the C library (`LD_PRELOAD`) and lets workers that share a listening socket
//! take turns.
//!
//! A set or a `poll` that holds a listening socket waits for it with `EPOLLEXCLUSIVE`: a connection wakes one
//! worker. After a wakeup the socket is registered again: the next connection wakes another worker. Every
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
mod sleeping;
mod stats;
mod wait;

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicU64, Ordering};

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// The constructor. glibc passes it the arguments of `main`.
extern "C" fn start(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    lock::start();
    hooks::start();
    // SAFETY: this is the environment of the process.
    unsafe { settings::read(environment) };
    shared::map(settings::shared());
    stats::prepare();
    // SAFETY: the handlers are functions of a library that is never unloaded. Without memory for them a fork
    // in the middle of a change could leave the child's table locked.
    unsafe {
        libc::pthread_atfork(
            Some(before_fork),
            Some(after_fork),
            Some(after_fork_in_child),
        )
    };
}

/// The destructor, which runs at `exit`.
extern "C" fn end() {
    if shared::is_root() {
        stats::report();
        shared::unlink(settings::shared());
    }
}

/// The signal mask of the forking thread, which holds the lock of the tables.
static SIGNALS: AtomicU64 = AtomicU64::new(0);

extern "C" fn before_fork() {
    let signals = match lock::is_owner() {
        true => lock::lock().keep(),
        // The child of a raw `clone`: a thread of its parent may have held the lock.
        false => raw::block_signals(),
    };
    SIGNALS.store(signals, Ordering::Relaxed);
}

extern "C" fn after_fork() {
    let signals = SIGNALS.load(Ordering::Relaxed);
    match lock::is_owner() {
        true => lock::unlock(signals),
        false => raw::restore_signals(signals),
    }
}

extern "C" fn after_fork_in_child() {
    lock::start();
    sets::after_fork();
    sleeping::after_fork();
    shared::after_fork();
    after_fork();
}
