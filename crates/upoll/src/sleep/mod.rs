//! Waits of threads: the layer above the core, with clocks and futexes.
//!
//! A thread that waits for user-level objects sleeps on a word of its own. Its entry in the wait
//! queue leads there. A wakeup sets the word, unlinks the entry, and wakes the thread once it has
//! released its locks. A thread that also waits for kernel fds sleeps in the kernel's `ppoll` or
//! `pselect`, and the wakeup makes the thread's wake fd readable.

mod blocking;
mod channel;
#[cfg(not(upoll_loom))]
mod epoll_pwait1;
mod epoll_wait;
mod eventfd;
mod futex;
mod kernel_part;
mod open_limit;
mod pipe;
mod poll;
mod poll_context;
mod poller;
mod select;
mod sigset;
mod socketpair;
mod spin;
#[cfg(not(upoll_loom))]
mod std_io;
#[cfg(not(upoll_loom))]
mod thread_end;
mod thread_wake_fd;
mod timeout;
mod timers;

#[cfg(not(upoll_loom))]
pub use self::epoll_pwait1::BatchWait;
#[cfg(upoll_loom)]
pub use self::epoll_wait::end_thread;
pub use self::open_limit::{check_number_of_entries, open_limit_allows_few, open_limit_changed};
pub use self::poll::{poll, ppoll};
pub use self::poll_context::PollContext;
pub use self::select::{pselect, select};
pub use self::sigset::SigSet;
#[cfg(not(upoll_loom))]
pub use self::thread_end::prepare as prepare_thread_ends;
pub use self::timeout::Timeout;
#[cfg(not(upoll_loom))]
pub use self::{poll::poll_now, select::select_now};

#[cfg(not(upoll_loom))]
use core::hint;
use core::ptr::NonNull;

#[cfg(upoll_loom)]
use loom::hint;

use self::futex::Scope;
use self::timeout::Deadline;
use crate::events::Events;
use crate::sync::{AtomicU32, Ordering};
use crate::wait::{Mode, Reply, WaitEntry, Wake};

/// The cause that has ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Woken,
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

/// A sleeping thread's place in a wait queue, and the word it sleeps on.
#[repr(C)]
struct Sleeper {
    /// First, so that a wake finds the sleeper.
    entry: WaitEntry,
    /// [`AWAKE`], [`ASLEEP`] or [`WOKEN`].
    word: AtomicU32,
}

/// The thread has not gone to sleep yet: no system call is needed to wake it.
const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const WOKEN: u32 = 2;

impl Sleeper {
    fn new() -> Self {
        Sleeper {
            entry: WaitEntry::new(wake_thread),
            word: AtomicU32::new(AWAKE),
        }
    }

    /// Sleeps until woken, until `deadline`, or until a signal handler has run.
    fn sleep(&self, deadline: Deadline) -> Outcome {
        let (success, failure) = (Ordering::Relaxed, Ordering::Acquire);
        let begun = (self.word).compare_exchange(AWAKE, ASLEEP, success, failure);
        if begun == Err(WOKEN) {
            return Outcome::Woken;
        }
        loop {
            match futex::wait(&self.word, ASLEEP, deadline, Scope::Private) {
                Outcome::Woken if self.word.load(Ordering::Acquire) == ASLEEP => {}
                ended => return ended,
            }
        }
    }

    /// Waits without sleeping, until woken or until `deadline`. Returns whether it was woken.
    fn spin(&self, deadline: Deadline) -> bool {
        while self.word.load(Ordering::Acquire) == AWAKE && !deadline.has_passed() {
            for _ in 0..8 {
                hint::spin_loop();
            }
        }
        self.word.load(Ordering::Acquire) == WOKEN
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // Callers unhook by themselves; this is for a panic on the way. Sleepers have claims in
        // rotating sets only.
        if let Some(queue) = self.entry.unhook() {
            // SAFETY: the caller that hooked the entry borrows the queue for longer than the
            // sleeper.
            unsafe { queue.as_ref() }.forward_in_turn(Events::IN);
        }
    }
}

/// A wake reached a sleeper.
///
/// # Safety
/// As [`OnWake`](crate::wait::OnWake); the entry is a [`Sleeper`]'s.
unsafe fn wake_thread(entry: NonNull<WaitEntry>, wake: &mut Wake<'_>) -> Reply {
    if wake.mode == Mode::Query {
        return Reply::Woken;
    }
    // SAFETY: `entry` is the first field of a `Sleeper`, which cannot end before it has taken the
    // queue's lock that is held here, or has found the entry unlinked, which comes after this.
    let word = unsafe { &entry.cast::<Sleeper>().as_ref().word };
    if word.swap(WOKEN, Ordering::Release) != ASLEEP {
        return Reply::WokenAndUnlinked;
    }
    // The word may be gone by the time this runs. The kernel only looks the address up: at worst it
    // wakes another futex for nothing, which every futex user must bear.
    wake.deferred.push(futex::wake_one, futex::address(word));
    Reply::WokenAndUnlinked
}
