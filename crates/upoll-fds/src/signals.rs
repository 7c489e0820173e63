//! Signal handlers, and what they must not meet: locks of the code that they have interrupted, a number
//! that it is changing, its entries in wait queues.
//!
//! - Signals are [held back](HeldBack) while a number cannot be looked up, by the thread's mask.
//! - Whoever calls the program's handlers (`upoll-preload`) asks first whether the thread is in the midst
//!   of a call, and [puts the handler off](put_off) until the end of that call if it is. No call pays for
//!   that which has an object in use: its record says so, and is asked to look for what was put off as
//!   it is asked to let go of a closed object. Calls that go on without, since they may block or change
//!   a number, are in a [`Section`].
//!
//! A handler so never runs above frames of a call on an object, and may call anything, and leave by
//! `siglongjmp`.
//!
//! # How a handler is put off
//! Its signal is sent to the thread once more, with all that came with it, and blocked in the context
//! that the interrupted code goes on with. At the end of the call it is unblocked. So the kernel calls
//! the handler after all, with the mask, the stack and the flags that the program asked for. If it came
//! in a sleep for which a call like `ppoll` has changed the mask, what unblocks it is one more `ppoll` with
//! that mask, which does not sleep.
//!
//! A call in which a handler was put off does not go to sleep, or leaves its sleep
//! ([`interruptible`]): it gives `EINTR`. Reads and writes begin anew if the kernel would have done so.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, compiler_fence};

use upoll::interruptible::{Place, place, put_off as end_sleeps};

use crate::in_use;
use crate::kernel::{call, interruptible};

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
        HELD.with(|held| {
            held.set(match held.get() {
                (0, _) => (1, hold_back()),
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

/// Has no handler run in this thread; says what its mask was.
fn hold_back() -> u64 {
    let raised = RAISED_BY_THE_CODE
        .iter()
        .fold(0, |set, signal| set | 1 << (signal - 1));
    change_mask(libc::SIG_BLOCK, !raised)
}

fn set_mask(mask: u64) {
    change_mask(libc::SIG_SETMASK, mask);
}

/// Changes the thread's signal mask, and says what it was.
fn change_mask(how: libc::c_int, mask: u64) -> u64 {
    let mut before = 0_u64;
    // SAFETY: both are live and of the size that is given. The call does not fail then.
    let _ = unsafe {
        call!(
            rt_sigprocmask,
            how,
            &raw const mask,
            &raw mut before,
            size_of::<u64>()
        )
    };
    before
}

/// Signals of a thread whose handlers wait for the end of its call. Handlers change it at any time.
struct PutOff {
    /// How many of [`Section`] the thread has.
    sections: AtomicU32,
    /// There are some.
    is_any: AtomicBool,
    /// Those that are blocked for that alone.
    blocked: AtomicU64,
    /// Those that were let through only by the mask of the sleep that they came in.
    let_through: AtomicU64,
    /// That mask.
    sleeping: AtomicU64,
    /// Signals that a handler called now is to find unblocked in what it has interrupted.
    unblocked: AtomicU64,
    /// A sleep was ended that the kernel would have begun anew.
    is_cut_short: AtomicBool,
    /// A sleep was ended by the kernel, for good.
    is_interrupted: AtomicBool,
}

std::thread_local! {
    static PUT_OFF: PutOff = const {
        PutOff {
            sections: AtomicU32::new(0),
            is_any: AtomicBool::new(false),
            blocked: AtomicU64::new(0),
            let_through: AtomicU64::new(0),
            sleeping: AtomicU64::new(u64::MAX),
            unblocked: AtomicU64::new(0),
            is_cut_short: AtomicBool::new(false),
            is_interrupted: AtomicBool::new(false),
        }
    };
}

/// A part of a call in which no handler of the program's runs, if those are called by who asks
/// [`put_off`].
#[derive(Debug)]
pub struct Section {
    /// It is the thread's.
    _not_send: PhantomData<*mut ()>,
}

impl Section {
    /// Begins one; they nest, and end in any order.
    pub fn begin() -> Self {
        PUT_OFF.with(|own| {
            let before = own.sections.load(Ordering::Relaxed);
            own.sections.store(before + 1, Ordering::Relaxed);
            if before == 0 {
                own.is_cut_short.store(false, Ordering::Relaxed);
                own.is_interrupted.store(false, Ordering::Relaxed);
            }
        });
        Section {
            _not_send: PhantomData,
        }
    }

    /// Ends it, and says whether an `EINTR` in it means that the call is to begin anew: handlers
    /// have run, all of which ask for that or came before the call slept.
    pub(crate) fn end(self) -> bool {
        let begins_anew = PUT_OFF.with(|own| {
            own.is_any.load(Ordering::Relaxed) && !own.is_interrupted.load(Ordering::Relaxed)
        });
        drop(self);
        begins_anew
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        let is_any = PUT_OFF.with(|own| {
            let before = own.sections.load(Ordering::Relaxed);
            own.sections.store(before - 1, Ordering::Relaxed);
            // A handler that comes between these two is called at once if nothing is put off.
            compiler_fence(Ordering::SeqCst);
            own.is_any.load(Ordering::Relaxed)
        });
        if is_any {
            call_what_was_put_off();
        }
    }
}

/// Has the handlers run that were put off, unless the thread is still in the midst of a call.
#[cold]
pub(crate) fn call_what_was_put_off() {
    PUT_OFF.with(|own| {
        let before = hold_back();
        if !own.is_any.load(Ordering::Relaxed)
            || own.sections.load(Ordering::Relaxed) > 0
            || in_use::ask_this_thread()
        {
            set_mask(before);
            return;
        }
        own.is_any.store(false, Ordering::Relaxed);
        end_sleeps(false);
        let blocked = own.blocked.swap(0, Ordering::Relaxed);
        let let_through = own.let_through.swap(0, Ordering::Relaxed);
        let sleeping = own.sleeping.swap(u64::MAX, Ordering::Relaxed) & !let_through;
        // Any of the handlers may leave by `siglongjmp`, or end the thread.
        call_handlers(before & !(blocked & !let_through));
        if let_through != 0 {
            let at_once = libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            let (limit, mask) = (&raw const at_once, &raw const sleeping);
            own.unblocked
                .store(blocked & let_through, Ordering::Relaxed);
            // SAFETY: the list is empty, limit and mask are live. It says that it was interrupted.
            let _ = unsafe { interruptible!(ppoll, 0, 0, limit, mask, size_of::<u64>()) };
            own.unblocked.store(0, Ordering::Relaxed);
            call_handlers(before & !blocked);
        }
    });
}

/// Sets the thread's signal mask; handlers run in this that may unwind (`pthread_exit`).
fn call_handlers(mask: u64) {
    let none = ptr::null_mut::<u64>();
    // SAFETY: the mask is live and of the size that is given. The call does not fail then.
    unsafe { set_signal_mask(libc::SIG_SETMASK, &raw const mask, none, size_of::<u64>()) };
}

/// Makes the system call `rt_sigprocmask`. A function of its own with a description of its frame, so
/// that handlers may unwind through it: they may not through inline assembly. Not the C library's
/// `syscall`, a name that a program may define.
///
/// # Safety
/// That of the system call.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C-unwind" fn set_signal_mask(
    how: libc::c_int,
    new: *const u64,
    old: *mut u64,
    size: usize,
) -> isize {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "mov r10, rcx",
        "mov eax, {number}",
        "syscall",
        "ret",
        ".cfi_endproc",
        number = const libc::SYS_rt_sigprocmask,
    )
}

/// As on x86-64.
///
/// # Safety
/// That of the system call.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C-unwind" fn set_signal_mask(
    how: libc::c_int,
    new: *const u64,
    old: *mut u64,
    size: usize,
) -> isize {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "mov x8, #{number}",
        "svc #0",
        "ret",
        ".cfi_endproc",
        number = const libc::SYS_rt_sigprocmask,
    )
}

/// Elsewhere the C library's `syscall` is the only function with such a description.
///
/// # Safety
/// That of the system call.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn set_signal_mask(
    how: libc::c_int,
    new: *const u64,
    old: *mut u64,
    size: usize,
) -> libc::c_long {
    unsafe extern "C-unwind" {
        fn syscall(number: libc::c_long, ...) -> libc::c_long;
    }
    // SAFETY: the caller's contract.
    unsafe { syscall(libc::SYS_rt_sigprocmask, how, new, old, size) }
}

/// The signal mask with which a handler's `ucontext_t` has the interrupted code go on.
///
/// # Safety
/// The context is the handler's.
unsafe fn mask_in(context: *mut libc::ucontext_t) -> *mut u64 {
    // SAFETY: the caller's contract; a sigset_t begins with the kernel's 64 bits.
    unsafe { (&raw mut (*context).uc_sigmask).cast() }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod registers {
    /// Where the interrupted code goes on.
    ///
    /// # Safety
    /// The context is the handler's.
    pub(super) unsafe fn address(context: *mut libc::ucontext_t) -> *mut usize {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's contract.
        unsafe {
            (&raw mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize]).cast()
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the caller's contract.
        unsafe {
            (&raw mut (*context).uc_mcontext.pc).cast()
        }
    }

    /// What its system call gives.
    ///
    /// # Safety
    /// The context is the handler's.
    pub(super) unsafe fn result(context: *mut libc::ucontext_t) -> *mut isize {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's contract.
        unsafe {
            (&raw mut (*context).uc_mcontext.gregs[libc::REG_RAX as usize]).cast()
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the caller's contract.
        unsafe {
            (&raw mut (*context).uc_mcontext.regs[0]).cast()
        }
    }
}

/// To be asked before a handler of the program's is called: whether it is not to be called now, since the
/// thread is in the midst of a call. It is called at the end of that.
///
/// # Safety
/// `info` and `context` are what the kernel has given to the handler of `signal` (`SA_SIGINFO`) that
/// asks, which returns at once if it is put off.
#[must_use]
pub unsafe fn put_off(
    signal: i32,
    info: *const libc::siginfo_t,
    context: *mut libc::ucontext_t,
) -> bool {
    PUT_OFF.with(|own| {
        // What is put off is blocked in the interrupted code alone. A handler just before its end would
        // have others run in its own calls, and they would stay blocked.
        let waits = own.is_any.load(Ordering::Relaxed) || own.sections.load(Ordering::Relaxed) > 0;
        if in_use::ask_this_thread() || waits {
            // SAFETY: the caller's contract.
            return unsafe { own.add(signal, info, context) };
        }
        if own.unblocked.load(Ordering::Relaxed) != 0 {
            // SAFETY: as above.
            unsafe { own.unblock_in(context) };
        }
        false
    })
}

/// A `siginfo_t`.
type Information = [u64; 16];

/// Signals up to this one are not queued: there is one of each, or none.
const ONE_AT_A_TIME: i32 = 31;

impl PutOff {
    /// What comes with a signal that is only to find a place in the queue again: no other has it.
    fn mark(&self, signal: i32) -> Information {
        let mut mark = [0; 16];
        mark[0] = u64::from(signal.cast_unsigned());
        mark[1] = u64::from(libc::SI_QUEUE.cast_unsigned());
        mark[3] = ptr::from_ref(self).expose_provenance() as u64;
        mark
    }

    /// # Safety
    /// As [`put_off`].
    #[cold]
    unsafe fn add(
        &self,
        signal: i32,
        info: *const libc::siginfo_t,
        context: *mut libc::ucontext_t,
    ) -> bool {
        let bit = 1_u64 << (signal - 1);
        // From here on no handler comes above this one, whose context is not that of the call. It is the
        // sleep's mask, that of the action, and the signal itself unless it has `SA_NODEFER`.
        let now = hold_back();
        // SAFETY: the signal is live; the kernel reads what came with it.
        unsafe {
            let (this, size) = (&raw const bit, size_of::<u64>());
            let (Ok(process), Ok(thread)) = (call!(getpid), call!(gettid)) else {
                set_mask(now);
                return false;
            };
            let send = |info: *const libc::siginfo_t| {
                call!(rt_tgsigqueueinfo, process, thread, signal, info)
            };
            let is_queued = signal > ONE_AT_A_TIME;
            let mark = self.mark(signal);
            let is_marked = is_queued && send((&raw const mark).cast()).is_ok();
            let is_sent = send(info).is_ok();
            if is_marked {
                // Those that were sent to this thread before the mark come after the one that is put
                // off.
                let at_once = libc::timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                };
                let mut next: Information = [0; 16];
                let (place, limit) = (&raw mut next, &raw const at_once);
                while call!(rt_sigtimedwait, this, place, limit, size).is_ok() && next != mark {
                    let _ = send((&raw const next).cast());
                }
            }
            if !is_sent {
                // No more fit into the queue.
                set_mask(now);
                return false;
            }
        }
        // SAFETY: the caller's contract.
        let mask = unsafe { &mut *mask_in(context) };
        if *mask & bit == 0 {
            *mask |= bit;
            self.blocked.fetch_or(bit, Ordering::Relaxed);
        } else {
            // Those that came in the same sleep have had their handlers above this one, and have found
            // its mask for that of the call. There are no others: they would have ended the sleep.
            let above = self.blocked.swap(0, Ordering::Relaxed);
            self.let_through.fetch_or(bit | above, Ordering::Relaxed);
            self.sleeping.fetch_and(now, Ordering::Relaxed);
        }
        self.is_any.store(true, Ordering::Relaxed);
        end_sleeps(true);
        // SAFETY: the caller's contract.
        unsafe { self.end_sleep(context) };
        true
    }

    /// # Safety
    /// As [`put_off`].
    #[cold]
    unsafe fn unblock_in(&self, context: *mut libc::ucontext_t) {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        // SAFETY: the caller's contract. Of several handlers this is the outermost.
        unsafe {
            if place(*registers::address(context)) == Place::After {
                *mask_in(context) &= !self.unblocked.swap(0, Ordering::Relaxed);
            }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = context;
    }

    /// Has the thread leave the sleep that the signal came in.
    ///
    /// # Safety
    /// As [`put_off`].
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    unsafe fn end_sleep(&self, context: *mut libc::ucontext_t) {
        // SAFETY: the caller's contract.
        let (address, result) = unsafe {
            (
                &mut *registers::address(context),
                &mut *registers::result(context),
            )
        };
        let interrupted = -isize::try_from(libc::EINTR).unwrap_or(0);
        match place(*address) {
            Place::Before(after) => {
                *address = after;
                *result = interrupted;
                self.is_cut_short.store(true, Ordering::Relaxed);
            }
            Place::After if *result == interrupted => {
                // Unless that is what another handler has made of it.
                if !self.is_cut_short.load(Ordering::Relaxed) {
                    self.is_interrupted.store(true, Ordering::Relaxed);
                }
            }
            Place::After | Place::Elsewhere => {}
        }
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    unsafe fn end_sleep(&self, _: *mut libc::ucontext_t) {
        self.is_interrupted.store(true, Ordering::Relaxed);
    }
}
