//! Linux's readiness subsystem as a library in user space.
//!
//! [`Epoll`], [`EventFd`] and the objects you make [`Pollable`] yourself behave as `epoll(7)`,
//! `eventfd(2)` and the kernel's files do, without a system call.
#![cfg_attr(not(any(feature = "std", loom)), no_std)]

extern crate alloc;

mod epoll;
mod errno;
mod eventfd;
mod events;
mod file;
#[cfg(all(feature = "std", not(loom)))]
mod host;
#[cfg(all(feature = "std", not(loom)))]
mod sleep;
mod sync;
mod target;
mod wait;
mod watch;

pub use crate::epoll::{CreateFlags, Epoll, Op, WatchLimit};
pub use crate::errno::Errno;
pub use crate::eventfd::{EventFd, EventFdFlags};
pub use crate::events::{Event, Events};
pub use crate::file::{File, FileRef, PollTable, Pollable};
#[cfg(all(feature = "std", not(loom)))]
pub use crate::sleep::{Clock, Timeout};
#[cfg(loom)]
pub use crate::sync::{Rule, break_rule};
pub use crate::target::{Source, Target};
pub use crate::wait::WaitQueue;
pub use crate::watch::{Readiness, Watch};
