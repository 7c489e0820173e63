//! `libupoll_preload.so`: the C library's own names over upoll, loaded into programs as they are
//! (`LD_PRELOAD`, or `upoll run`).
//!
//! Calls on user-level objects are served here by [`upoll_fds`], with the C library's conventions: -1 and
//! `errno`. All others are passed on, before anything else, to the C library's own functions of the same
//! names; by `syscall(2)`, to the kernel with the same number and arguments. That holds for sets as well until their
//! first user-level member ([`upoll_fds::plain_sets`]).
//!
//! # What it cannot see
//! Inline system calls of the program, static programs, calls within the C library that are not named
//! here, and files opened by `/dev/fd` or `/proc/self/fd`. `io_uring_setup` by `syscall(2)`
//! gives `ENOSYS`, so that no ring edits a set that is served here.
//!
//! # What is handed over
//! Before others see an object the kernel has it: `fork` and its kin, `exec`, `posix_spawn`, `SCM_RIGHTS`,
//! streams, `splice`, `sendfile`, asynchronous calls (`io_submit` among them), `pidfd_getfd`, and on sockets
//! options, control messages, and flags that only the kernel knows. A request to a device that signals by
//! eventfds (KVM, vhost, VFIO and their like) demotes everything for good.
//! `docs/fds-and-fork.md` and `docs/preload.md` list the differences that a program can notice.
//!
//! # Signal handlers
//! A handler may call what POSIX lets it call, and `epoll_wait` and `epoll_ctl` besides, whatever it
//! interrupts, and may leave that by `siglongjmp`: handlers are put off until the call on an object that
//! they come in is over (module `handlers`). Those of faults (`SIGSEGV` and its like) are not, and those that
//! were set by inline system calls; they must not use what their thread is just using.
//!
//! Whatever they interrupt includes an allocation: this library has a heap of its own, without locks, and
//! takes no memory from the program's.
//!
//! # Panics
//! A panic in an `extern "C"` function ends the process: none reaches the program.
//!
//! # Safety
//! The functions need what the C library's need. Pointers that lead nowhere give `EFAULT`.

// Its model takes the one module that it needs by itself.
#![cfg(not(loom))]

mod cancel;
mod errno;
mod files;
mod handlers;
mod heap;
mod limits;
mod next;
mod polls;
mod process;
mod raw;
mod rings;
mod sets;
mod settings;
mod sockets;
mod stats;
mod streams;
mod unwinder;
mod variadic;
mod vfork;
