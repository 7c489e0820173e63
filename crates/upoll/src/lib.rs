//! Linux's readiness subsystem as a library in user space.
//!
//! [`Epoll`], [`EventFd`], [`pipe()`], [`socketpair()`] and the objects you make [`Pollable`]
//! yourself behave as `epoll(7)`, `eventfd(2)`, `pipe(7)`, `unix(7)` and the kernel's files do,
//! without a system call. `poll(2)` and `select(2)`, as a set, wait for them and for kernel fds in
//! one call.
//!
//! Make your own object pollable, and it stands in sets beside sockets: with level- and edge-triggered, oneshot and
//! exclusive interests, in nested sets, from any number of threads.
//!
//! ```rust
//! use std::os::unix::net::UnixStream;
//! use std::sync::Mutex;
//! use upoll::{Epoll, Event, Events, File, PollTable, Pollable, WaitQueue};
//!
//! #[derive(Default)]
//! struct Mailbox { letters: Mutex<Vec<String>>, arrived: WaitQueue }
//!
//! impl Mailbox {
//!     fn put(&self, letter: &str) {
//!         self.letters.lock().unwrap().push(letter.into());
//!         self.arrived.wake(Events::IN);
//!     }
//! }
//!
//! impl Pollable for Mailbox {
//!     fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
//!         table.register(&self.arrived);
//!         if self.letters.lock().unwrap().is_empty() { Events::empty() } else { Events::IN }
//!     }
//! }
//!
//! fn main() -> Result<(), std::io::Error> {
//!     let mailbox = File::new(Mailbox::default());
//!     let (socket, _peer) = UnixStream::pair()?;
//!     let set = Epoll::new()?;
//!     set.add(&mailbox, Event::new(Events::IN, 1))?;
//!     set.add(&socket, Event::new(Events::IN, 2))?;
//!
//!     let sender = mailbox.clone();
//!     std::thread::spawn(move || sender.put("hello"));
//!     let mut events = [Event::default(); 8];
//!     let ready = set.wait(&mut events, None)?;
//!     assert_eq!((ready, events[0].data()), (1, 1));
//!     Ok(())
//! }
//! ```
//!
//! The chapters of the guide, in `docs/guide` of the repository, describe how to use all this.
//!
//! # What is there
//!
//! | | |
//! |---|---|
//! | `Epoll` | `epoll(7)` as Linux 6.18 has it, and `EPOLL_ROTATE`: sets or threads that share a source are woken one at a time, in turn; kernel fds as members beside user-level objects |
//! | `Epoll::wait`, `pwait`, `pwait1` | nanosecond time limits on `CLOCK_MONOTONIC` or `CLOCK_REALTIME`, never early; signal masks; `EINTR` as Linux |
//! | `Epoll::ctl_batch`, `ctl_batch_wait` | many changes in one call, and a wait after them |
//! | `poll`, `ppoll`, `select`, `pselect` | over user-level objects and kernel fds in any mixture |
//! | `PollContext` | the same calls, with registrations kept from one call to the next: a call costs as much as has changed or is ready |
//! | `EventFd` | `eventfd(2)`, blocking and not, semaphore or counter, of one process or shared over `fork`; with a maximum that holds writers back |
//! | `pipe`, `pipe2`, `socketpair` | pipes with Linux's pages, packets and capacity; connected streams; blocking and not |
//! | `upoll::channel` | typed channels, bounded and unbounded: one wait for a job or a socket |
//! | `Timers` | timerfds in user space, by the kernel's clocks or a virtual one; arming makes no system call |
//! | `Pollable`, `WaitQueue`, `File` | to make objects of your own |
//! | `Watch`, `Readiness`, `read_async`, `wait_async` | a callback, or a future that allocates nothing, in place of a sleeping thread; on kernel fds too |
//! | `Epoll::readiness_fd` | a kernel fd that is readable while a set has something: for tokio, mio, glib or a kernel set |
//! | `Epoll::counters` | wakes, empty wakes, events, sleeps and contention of a set |
//!
//! # Threads
//! Everything may be used from any thread.
//!
//! # Counters
//! A set counts its wakes, events and sleeps from [`Epoll::enable_counters`] on, and a queue from
//! [`WaitQueue::enable_counters`] on. [`Epoll::counters`] returns them, and [`Epoll::fdinfo`] shows them.
//!
//! # Features
//!
//! | Feature | |
//! |---|---|
//! | `std` (default) | sleeping waits, clocks, signal masks, kernel fds and shared eventfds. Without it the crate is `no_std` with `alloc`, and makes no system call |
//! | `futures-core` | `EventStream` is a `Stream` of that crate |
//! | `tracing` | events for the crate of that name, with the target `upoll`. Calls that make, change and close sets send them at the level `DEBUG`, and waits in sets at `TRACE`. No lock is held meanwhile, so a subscriber may use upoll. A signal handler that uses sets then runs the subscriber, too |
#![cfg_attr(not(any(feature = "std", upoll_loom)), no_std)]

extern crate alloc;

// The layers below: `crate::wait` is the core's, as it is for the core itself.
#[cfg(any(feature = "std", upoll_loom))]
use upoll_core::clock;
#[cfg(all(feature = "std", not(upoll_loom)))]
use upoll_core::forks;
use upoll_core::{epoll, errno, events, file, memory, schedule, sync, tally, trace, wait};

mod async_io;
mod awaited;
pub mod channel;
#[cfg(any(feature = "std", upoll_loom))]
mod descriptor;
mod epoll_create;
mod epoll_ctl;
mod eventfd;
#[cfg(any(feature = "std", upoll_loom))]
#[cfg_attr(upoll_loom, allow(dead_code, reason = "models leave parts out"))]
mod host;
mod open_file;
mod pages;
mod pipe;
mod poll;
mod poll_context;
mod readiness;
mod registrations;
mod select;
#[cfg(any(feature = "std", upoll_loom))]
#[cfg_attr(upoll_loom, allow(dead_code, reason = "models leave parts out"))]
mod sleep;
mod socketpair;
mod target;
mod timers;
mod two_ends;
mod watch;

pub use crate::async_io::EventStream;
#[cfg(any(feature = "std", upoll_loom))]
pub use crate::descriptor::{Descriptor, DescriptorRef};
pub use crate::epoll_create::Epoll;
pub use crate::epoll_ctl::CtlCommand;
#[cfg(upoll_loom)]
pub use crate::eventfd::SharedModel;
pub use crate::eventfd::{EventFd, EventFdFlags};
#[cfg(any(feature = "std", upoll_loom))]
pub use crate::host::ReadinessFd;
#[cfg(upoll_loom)]
pub use crate::host::{LockModel, OwnSet, join_attendants, kernel as kernel_model};
pub use crate::open_file::{File, FileRef};
pub use crate::pipe::{PIPE_BUF, PIPE_MAX_SIZE, PipeFlags, PipeReader, PipeWriter, pipe, pipe2};
pub use crate::poll::PollFd;
#[cfg(all(not(feature = "std"), not(upoll_loom)))]
pub use crate::poll_context::PollContext;
pub use crate::readiness::Readiness;
pub use crate::select::FdSet;
#[cfg(all(feature = "std", not(upoll_loom)))]
pub use crate::sleep::{
    BatchWait, PollContext, SigSet, Timeout, poll, poll_now, ppoll, pselect, select, select_now,
};
#[cfg(upoll_loom)]
pub use crate::sleep::{PollContext, SigSet, Timeout, end_thread, poll, ppoll, pselect, select};
pub use crate::socketpair::{ReceiveFlags, Shutdown, SocketFlags, StreamSocket, socketpair};
pub use crate::target::{Source, Target};
pub use crate::timers::{Timer, TimerSetting, Timers};
pub use crate::watch::Watch;
#[cfg(any(not(feature = "std"), upoll_loom))]
pub use crate::{poll::poll_now, select::select_now};
#[cfg(any(feature = "std", upoll_loom))]
pub use upoll_core::Clock;
#[cfg(upoll_loom)]
pub use upoll_core::forks::generation;
#[cfg(all(upoll_count_locks, not(upoll_loom)))]
pub use upoll_core::sync::LockCounts;
#[cfg(upoll_loom)]
pub use upoll_core::sync::{Lock, Rule, break_rule, sequenced};
#[cfg(upoll_loom)]
pub use upoll_core::wait::share_scopes;
#[doc(inline)]
pub use upoll_core::{
    Counters, CreateFlags, Errno, Event, Events, FileId, Op, PollTable, Pollable, WaitQueue,
    WatchLimit,
};

#[doc(hidden)]
pub use upoll_core::breakable;

/// Items that the other crates of upoll need and no program does. It may change with every version.
#[doc(hidden)]
pub mod internal {
    #[cfg(any(feature = "std", upoll_loom))]
    pub use crate::host::own_fds;
    #[cfg(all(feature = "std", not(upoll_loom)))]
    pub use crate::host::{
        WIPED_WORDS, begin_in_child, kernel::check_open, watch_forks, wiped_words,
    };
    pub use crate::pages::PageView;
    #[cfg(all(feature = "std", not(upoll_loom)))]
    pub use crate::sleep::prepare_thread_ends;
    #[cfg(any(feature = "std", upoll_loom))]
    pub use crate::sleep::{check_number_of_entries, open_limit_allows_few, open_limit_changed};
    pub use crate::socketpair::{SocketContents, SocketMessage};
    pub use upoll_core::memory::{SharedBox, boxed};
    #[cfg(all(debug_assertions, feature = "std", not(upoll_loom)))]
    pub use upoll_core::steps::{Step, steps_of};
    #[cfg(all(upoll_jitter, feature = "std", not(upoll_loom)))]
    pub use upoll_sys::jitter;
}
