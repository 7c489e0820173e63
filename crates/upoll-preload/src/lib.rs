//! `libupoll_preload.so`: the C library's own names over upoll, loaded into programs as they are
//! (`LD_PRELOAD`, or `upoll run`).
//!
//! Calls on user-level objects are served here by [`upoll_fds`], all others go to the kernel by
//! inline system calls, with the C library's conventions: -1 and `errno`.
//!
//! # What it cannot see
//! Inline system calls of the program, static programs, calls within the C library that are not named
//! here, kernel AIO, and files opened by `/dev/fd` or `/proc/self/fd`. `io_uring_setup` by `syscall(2)`
//! gives `ENOSYS`, so that no ring edits a set that is served here. No call served here is a
//! cancellation point of its thread.
//!
//! # What is handed over
//! Before others see an object the kernel has it: `fork` and its kin, `exec`, `posix_spawn`, `SCM_RIGHTS`,
//! streams, `splice`, `sendfile`, asynchronous calls, and on sockets all calls but `read` and `write`.
//! Where a program can tell is said in `ARCHITECTURE.md`.
//!
//! # Signal handlers
//! A handler may call everything here that it may call in the C library, with one restriction of
//! upoll's: an eventfd written by a handler that interrupts a change of its own wait queue (`ADD`,
//! `DEL`, the start or end of a sleep) in the same thread waits for a lock that the thread holds.
//!
//! # Panics
//! A panic in an `extern "C"` function ends the process: none reaches the program.
//!
//! # Safety
//! The functions need what the C library's need. Pointers that lead nowhere give `EFAULT`.

mod errno;
mod files;
mod next;
mod polls;
mod process;
mod raw;
mod rings;
mod sets;
mod settings;
mod sockets;
mod stats;
mod variadic;
