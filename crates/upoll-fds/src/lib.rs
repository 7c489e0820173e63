//! File descriptors for upoll's objects: `epoll(7)`, `eventfd(2)` and their like by fd, with the
//! semantics of the C library's functions of the same names.
//!
//! [`upoll`] knows objects; C programs know fds. This crate keeps the table between them. An fd in the
//! table stands for a user-level object; calls on any other fd go to the kernel. Behind every
//! user-level object is a kernel object of its kind, which occupies the fd.
//!
//! The functions have the arguments of the C functions, pointers included, and return the result or the
//! errno. None of them sets `errno`. None calls a C library function that a library in its place would
//! export.
//!
//! ```
//! use upoll::{Event, Events, Op};
//!
//! let counter = upoll_fds::eventfd(0, 0)?;
//! let set = upoll_fds::epoll_create1(0)?;
//! let interest = Event::new(Events::IN, 7);
//! let mut found = [Event::default()];
//! // SAFETY: the pointers lead to live memory that nobody else uses.
//! let count = unsafe {
//!     upoll_fds::epoll_ctl(set, Op::Add as i32, counter, &raw const interest)?;
//!     upoll_fds::eventfd_write(counter, 1)?;
//!     upoll_fds::epoll_wait(set, found.as_mut_ptr(), 1, -1)?
//! };
//! assert_eq!((count, found[0].data()), (1, 7));
//!
//! // From here on the kernel serves the fd, with the same count.
//! upoll_fds::demote(counter)?;
//! assert!(!upoll_fds::is_user_level(counter));
//!
//! upoll_fds::close(set)?;
//! upoll_fds::close(counter)?;
//! # Ok::<(), upoll::Errno>(())
//! ```
//!
//! # Pointers
//! A pointer may be invalid: the functions then fail with `EFAULT`, as the kernel does. The functions
//! are `unsafe` because valid memory must belong to the caller. See [the costs](#costs).
//!
//! # Costs
//! Looking an fd up writes only memory of the thread's own. The first use of a page of user memory costs
//! a system call, later ones, by any thread, a comparison. A page that the program has unmapped since then raises
//! `SIGSEGV`.
//!
//! # Fork
//! A fork demotes the objects that can be demoted (see [`demote()`]). Eventfds with a maximum move to
//! memory that the child shares. Sets that the kernel cannot have, because they rotate or watch such an
//! eventfd, are made anew in the child with the same interests. Calls on other fds fail with `EBADF` in
//! the child. `vfork`, `posix_spawn`, `clone` and raw system calls are not noticed.
//!
//! # Close
//! As in Linux, a close does not end calls that are under way. Calls that block hold a reference to the
//! open file. A close waits for the others, or leaves it to them to release the open file at their end.
//!
//! # Races that a program can notice
//! A call that has found an fd to be the kernel's goes to the kernel. Another thread may make the fd
//! stand for a user-level object at that very moment (`dup2`). The call then uses the kernel object
//! behind it, which is empty.

// For its models loom takes the modules that it needs by themselves.
#![cfg(not(upoll_loom))]

mod blocking;
mod change;
mod counts;
mod ctl_batch;
mod demote;
mod embedder_object;
mod epoll;
mod epoll_ctl;
mod errno;
mod eventfd;
mod fd_ops;
mod figures;
mod fork;
mod fork_snapshot;
mod hazard_records;
mod held;
mod install;
mod interest;
mod io;
mod kernel;
mod memory;
mod object;
mod passivity;
mod pipe;
mod plain_sets;
mod poll;
mod select;
mod set;
mod signals;
mod slot;
mod socket;
mod sync;
mod table;
mod takeover;
mod transfer;
mod wait_args;
mod wall_clock;

pub use crate::ctl_batch::{EpollCtlCmd, epoll_ctl_batch};
pub use crate::demote::{demote, demote_all};
pub use crate::embedder_object::{open, with_own};
pub use crate::epoll::{
    EpollWaitParams, epoll_create, epoll_create1, epoll_fd, epoll_pwait, epoll_pwait1,
    epoll_pwait2, epoll_wait,
};
pub use crate::epoll_ctl::epoll_ctl;
pub use crate::eventfd::{
    EFD_IOC_GET_MAXIMUM, EFD_IOC_SET_MAXIMUM, eventfd, eventfd_read, eventfd_write,
};
pub use crate::fd_ops::{close, close_range, dup, dup2, dup3, fcntl, ioctl};
pub use crate::io::{read, readv, write, writev};
pub use crate::pipe::{pipe, pipe2, shutdown, socketpair};
pub use crate::poll::{poll, ppoll, prlimit};
pub use crate::select::{UserSets, pselect, select};
pub use crate::socket::{
    getsockopt, recv, recvfrom, recvmmsg, recvmsg, send, sendmmsg, sendmsg, sendto, setsockopt,
};
pub use crate::table::{has_any, is_user_level};

/// Items that the other crates of upoll need and no program does. It may change with every version.
#[doc(hidden)]
pub mod internal {
    pub use crate::demote::leave_all_to_the_kernel;
    pub use crate::epoll::{activate, note_figures};
    pub use crate::fork::{
        begin_unseen_fork, end_unseen_fork, end_unseen_fork_in_the_child, end_unseen_fork_with_fds,
    };
    pub use crate::install::prepare;
    pub use crate::memory::{
        count_readable, is_known_readable, read as read_memory, write as write_memory,
        write_if_possible as write_memory_if_possible,
    };
    pub use crate::poll::number_of_entries;
    pub use crate::select::{number_of_selected, raw_select};
    pub use crate::signals::{Section, delay};
    pub use crate::table::{
        is_active_user_level, is_socket, is_user_level_or_own, may_be_user_level_or_own,
        user_level_fds,
    };
    pub use upoll::internal::open_limit_changed;

    pub mod errno {
        pub use crate::errno::*;
    }
    pub mod figures {
        pub use crate::figures::*;
    }
    pub mod plain_sets {
        pub use crate::plain_sets::*;
    }
    pub mod takeover {
        pub use crate::takeover::*;
    }
}
