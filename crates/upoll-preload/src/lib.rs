//! `libupoll_preload.so`: the C library's own names over upoll, loaded into programs as they are
//! (`LD_PRELOAD`, or `upoll run`).
//!
//! Calls on user-level objects are served by [`upoll_fds`], with the C library's conventions: -1 and
//! `errno`. All others are passed on, before anything else, to the C library's own functions of the same
//! names; by `syscall(2)`, to the kernel with the same number and arguments. That holds for sets as well until their
//! first user-level member ([`upoll_fds::internal::plain_sets`]).
//!
//! # Calls that it cannot see
//! Inline system calls of the program, static programs, calls within the C library that are not named
//! here, and files opened by `/dev/fd` or `/proc/self/fd`. `io_uring_setup` by `syscall(2)` fails
//! with `ENOSYS`, so that no ring edits a user-level set.
//!
//! # Demoted objects
//! An object is demoted before others see it: by `fork` and its kin, `exec`, `posix_spawn`, `SCM_RIGHTS`,
//! streams, `splice`, `sendfile`, asynchronous calls (`io_submit` among them), and `pidfd_getfd`. A socket is
//! also demoted by options, control messages and flags that only the kernel knows. A request to a device that
//! signals by eventfds (KVM, vhost, VFIO and their like) demotes everything for good. `docs/fds-and-fork.md`
//! and `docs/preload.md` list the differences that a program can notice.
//!
//! # Signal handlers
//! A handler may call the functions that POSIX allows there, and also `epoll_wait` and `epoll_ctl`. It may
//! leave by `siglongjmp`. It may interrupt any call: a handler that comes during a call on an object is
//! delayed until the call ends (module `handlers`). Handlers of faults (`SIGSEGV` and its like) are not
//! delayed, nor are handlers that were set by inline system calls. Such a handler must not use an object that
//! its thread is using.
//!
//! A handler may also interrupt an allocation. The library therefore has a heap of its own, without locks,
//! and allocates nothing from the program's.
//!
//! # Panics
//! A panic in an `extern "C"` function ends the process: none reaches the program.
//!
//! # Safety
//! The functions have the same preconditions as the C library's. They fail with `EFAULT` for
//! invalid pointers.

// Its model takes the one module that it needs by itself.
#![cfg(not(upoll_loom))]

mod calls;
mod cancel;
mod cancellation_points;
mod demoting_calls;
mod files;
mod handlers;
mod heap;
mod kernel;
mod limits;
mod next;
mod polls;
mod process;
mod rings;
mod sets;
mod settings;
mod sockets;
mod start;
mod stats;
mod streams;
mod syscall;
mod top;
mod unwinder;
mod variadic;
mod vfork;
