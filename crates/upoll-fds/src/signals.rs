//! Signals are held back while a number cannot be looked up: a handler in the thread that changes it
//! would wait for that change for ever.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::kernel::call;

/// Those that a fault raises, or a system call that a filter traps, are not held back: the kernel would
/// end the process.
const RAISED_BY_THE_CODE: [libc::c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
];

std::thread_local! {
    /// How many of [`HeldBack`] the thread has, and its mask before the first.
    static HELD: Cell<(u32, u64)> = const { Cell::new((0, 0)) };
}

/// No handler runs in this thread while one of these exists.
pub(crate) struct HeldBack {
    /// It is the thread's.
    _not_send: PhantomData<*mut ()>,
}

impl HeldBack {
    pub(crate) fn begin() -> Self {
        let raised = RAISED_BY_THE_CODE
            .iter()
            .fold(0, |set, signal| set | 1 << (signal - 1));
        HELD.with(|held| {
            held.set(match held.get() {
                (0, _) => (1, set_mask(!raised)),
                (depth, before) => (depth + 1, before),
            });
        });
        HeldBack {
            _not_send: PhantomData,
        }
    }
}

/// They may end in any order.
impl Drop for HeldBack {
    fn drop(&mut self) {
        HELD.with(|held| {
            let (depth, before) = held.get();
            held.set((depth - 1, before));
            if depth == 1 {
                set_mask(before);
            }
        });
    }
}

/// Sets the thread's signal mask, and says what it was.
fn set_mask(mask: u64) -> u64 {
    let mut before = 0_u64;
    // SAFETY: both are live and of the size that is given. The call does not fail then.
    let _ = unsafe {
        call!(
            rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            &raw mut before,
            size_of::<u64>()
        )
    };
    before
}
