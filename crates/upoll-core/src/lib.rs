//! The core of [upoll](https://docs.rs/upoll): wait queues, open file descriptions, interest lists and ready lists.
//!
//! The core knows no kernel fd. It is `no_std` with `alloc`, and makes no system call. With `std` the crate `upoll-sys` makes
//! a few for it. Contended locks sleep by `futex(2)` and issue barriers by `membarrier(2)`. A thread that has woken many yields.
//! Signals are blocked while one list changes, and `max_user_watches` is read once. A set reaches the kernel through its
//! [`KernelBackend`](epoll::backend::KernelBackend), which the crate `upoll` provides, and an object names the part of
//! itself that the kernel reports by [`Pollable::kernel_source`].
//!
//! Programs use the crate `upoll`, which has the handles, the objects, the calls that sleep and the kernel fds. All
//! that is public here and hidden in this documentation may change with every version.
//!
//! # Features
//!
//! | Feature | |
//! |---|---|
//! | `std` | locks that sleep when contended, and lists of wakers for each thread. Without it locks spin |
//! | `tracing` | events for the crate of that name |
#![cfg_attr(not(any(feature = "std", upoll_loom)), no_std)]

extern crate alloc;

#[doc(hidden)]
pub mod clock;
#[doc(hidden)]
pub mod epoll;
#[doc(hidden)]
pub mod errno;
#[doc(hidden)]
pub mod events;
#[doc(hidden)]
pub mod file;
#[cfg(any(feature = "std", upoll_loom))]
#[doc(hidden)]
pub mod forks;
#[doc(hidden)]
pub mod memory;
#[doc(hidden)]
pub mod schedule;
#[doc(hidden)]
pub mod steps;
#[doc(hidden)]
pub mod sync;
#[doc(hidden)]
pub mod tally;
#[doc(hidden)]
pub mod trace;
#[doc(hidden)]
pub mod wait;

pub use crate::clock::Clock;
pub use crate::epoll::{CreateFlags, Op, WatchLimit};
pub use crate::errno::Errno;
pub use crate::events::{Event, Events};
pub use crate::file::{File, FileId, FileRef, PollTable, Pollable};
pub use crate::tally::Counters;
pub use crate::wait::WaitQueue;
