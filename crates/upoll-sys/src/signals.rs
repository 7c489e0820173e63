//! The signal mask of the calling thread: `rt_sigprocmask(2)`, with sets of the kernel's size. Bit `n - 1`
//! stands for signal `n`.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::mem;
use std::ops::Range;

use crate::syscall;

/// The signals that a fault of the thread raises, or a system call that a filter traps. If the thread blocks
/// such a signal, the kernel ends the process instead.
pub const OF_FAULTS: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGFPE)
    | bit(libc::SIGILL)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGSYS);

/// The signals that glibc has for itself and never blocks. The first ends a thread that is cancelled; the
/// second changes the user of all threads, and the thread that asks for it waits for the others.
pub const OF_THE_C_LIBRARY: u64 = bit(32) | bit(33);

/// Returns the set of one signal.
#[must_use]
pub const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// `struct sigaction` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Action {
    /// The function, `SIG_DFL` or `SIG_IGN`.
    pub handler: usize,
    /// `SA_` flags.
    pub flags: usize,
    /// The function to which the handler returns.
    pub restorer: usize,
    /// The signals that are blocked while the handler runs.
    pub mask: u64,
}

/// Changes the mask: `how` is `SIG_BLOCK`, `SIG_UNBLOCK` or `SIG_SETMASK`. Returns the previous one.
pub fn change(how: c_int, set: u64) -> u64 {
    let mut before = 0_u64;
    let (new, old, size) = (&raw const set, &raw mut before, size_of::<u64>());
    // SAFETY: the kernel reads the one and writes the other. It does not fail for such arguments.
    let _ = unsafe { syscall!(SYS_rt_sigprocmask, how, new, old, size) };
    before
}

/// The alternate signal stack of a thread: `sigaltstack(2)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlternateStack {
    /// The addresses of the stack.
    pub addresses: Range<usize>,
    /// True if the thread runs on it.
    pub is_in_use: bool,
}

/// Returns the alternate signal stack of the calling thread, if it has one. While a handler runs that was
/// installed with `SS_AUTODISARM`, it has none.
#[must_use]
pub fn alternate_stack() -> Option<AlternateStack> {
    // SAFETY: all zeros is one.
    let mut stack: libc::stack_t = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes the stack's place, which is live.
    let found = unsafe { syscall!(SYS_sigaltstack, 0, &raw mut stack) };
    if found.is_err() || stack.ss_flags & libc::SS_DISABLE != 0 {
        return None;
    }
    let first = stack.ss_sp.addr();
    Some(AlternateStack {
        addresses: first..first.wrapping_add(stack.ss_size),
        is_in_use: stack.ss_flags & libc::SS_ONSTACK != 0,
    })
}

/// Blocks signals until it is dropped, which restores the mask that was there before. The guards of one thread are dropped
/// in the reverse order of their making.
#[derive(Debug)]
pub struct Blocked {
    before: u64,
    /// The mask is the thread's.
    _not_send: PhantomData<*mut ()>,
}

impl Blocked {
    /// Blocks the signals of `set` too.
    #[must_use]
    pub fn new(set: u64) -> Self {
        Blocked {
            before: change(libc::SIG_BLOCK, set),
            _not_send: PhantomData,
        }
    }

    /// Blocks all that other threads and processes send, but [those of the C library](OF_THE_C_LIBRARY).
    #[must_use]
    pub fn sent() -> Self {
        Blocked::new(!(OF_FAULTS | OF_THE_C_LIBRARY))
    }

    /// Blocks all but those that a fault raises.
    #[must_use]
    pub fn all() -> Self {
        Blocked::new(!OF_FAULTS)
    }

    /// Returns the previous mask, and leaves the signals blocked.
    #[must_use]
    pub fn keep(self) -> u64 {
        let before = self.before;
        mem::forget(self);
        before
    }

    /// Returns the mask that will be restored.
    #[must_use]
    pub fn before(&self) -> u64 {
        self.before
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        change(libc::SIG_SETMASK, self.before);
    }
}
