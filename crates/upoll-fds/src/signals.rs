//! Signal handlers, and the state that they must not meet: locks of the code that they have interrupted, an
//! fd that it is changing, its entries in wait queues.
//!
//! - Signals are [blocked](Blocked) while an fd cannot be looked up.
//! - The library that calls the program's handlers (`upoll-preload`) first checks whether the thread is in
//!   the midst of a call. If it is, [`delay`] has the handler wait until the end of the call. A call that
//!   has an object in use pays nothing for that: the flag of its record that asks it to release closed
//!   objects also asks it to check for delayed handlers. Calls without a record, because they may block or
//!   change an fd, are in a [`Section`].
//!
//! So a handler never runs above frames of a call on an object. It may call anything, and leave by
//! `siglongjmp`.
//!
//! # How a handler is delayed
//! The signal is sent to the thread again, with the same information, and blocked in the context that the
//! interrupted code continues with. At the end of the call it is unblocked. So the kernel itself calls the
//! handler, with the mask, the stack and the flags that the program asked for. If the signal came in a
//! sleep for which a call like `ppoll` has changed the mask, it is unblocked by another `ppoll` with that
//! mask, which does not sleep.
//!
//! A call in which a handler was delayed does not go to sleep, or leaves its sleep ([`interruptible`]): it
//! fails with `EINTR`. Reads and writes begin again if the kernel would have restarted them.

use std::alloc::{Layout, alloc, dealloc};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, compiler_fence};

use upoll_sys::futex;
use upoll_sys::interruptible::{Place, place, set_delayed};
pub(crate) use upoll_sys::signals::Blocked;
use upoll_sys::signals::bit;

use upoll::Errno;

use crate::hazard_records;
use crate::kernel::{call, interruptible};

/// The limit of a call that does not sleep.
static AT_ONCE: libc::timespec = libc::timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Delayed handlers of a thread. Handlers may change this at any time.
struct Delayed {
    /// The number of [`Section`]s of the thread.
    sections: AtomicU32,
    /// Handlers are delayed.
    is_any: AtomicBool,
    /// Signals that are blocked only because their handlers are delayed.
    blocked: AtomicU64,
    /// Delayed signals that only the mask of an interrupted sleep had let through.
    let_through: AtomicU64,
    /// The mask of that sleep.
    sleeping: AtomicU64,
    /// Signals that a handler which is called now must find unblocked in the interrupted context.
    unblocked: AtomicU64,
    /// A sleep was ended that the kernel would have restarted.
    is_cut_short: AtomicBool,
    /// The kernel ended a sleep, and would not have restarted it.
    is_interrupted: AtomicBool,
    /// The information of queued signals for which the kernel had no room, in a list. It is changed while signals are
    /// blocked.
    kept: Cell<*mut Kept>,
}

std::thread_local! {
    static DELAYED: Delayed = const {
        Delayed {
            sections: AtomicU32::new(0),
            is_any: AtomicBool::new(false),
            blocked: AtomicU64::new(0),
            let_through: AtomicU64::new(0),
            sleeping: AtomicU64::new(u64::MAX),
            unblocked: AtomicU64::new(0),
            is_cut_short: AtomicBool::new(false),
            is_interrupted: AtomicBool::new(false),
            kept: Cell::new(ptr::null_mut()),
        }
    };
}

/// A part of a call in which no handler of the program runs, if the caller of the handlers uses
/// [`delay`].
#[derive(Debug)]
pub struct Section {
    /// It is the thread's.
    _not_send: PhantomData<*mut ()>,
}

impl Section {
    /// Begins a section. Sections nest, and may end in any order.
    pub fn begin() -> Self {
        DELAYED.with(|own| {
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

    /// Ends the section. Returns whether an `EINTR` in it means that the call is to begin again:
    /// all handlers that have run ask for a restart, or came before the call slept.
    pub(crate) fn end(self) -> bool {
        let begins_anew = DELAYED.with(|own| {
            own.is_any.load(Ordering::Relaxed) && !own.is_interrupted.load(Ordering::Relaxed)
        });
        drop(self);
        begins_anew
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        let is_any = DELAYED.with(|own| {
            let before = own.sections.load(Ordering::Relaxed);
            own.sections.store(before - 1, Ordering::Relaxed);
            // Between these two, a handler is called at once if none is delayed.
            compiler_fence(Ordering::SeqCst);
            own.is_any.load(Ordering::Relaxed)
        });
        if is_any {
            call_delayed();
        }
    }
}

/// Calls the delayed handlers, unless the thread is still in the midst of a call.
#[cold]
pub(crate) fn call_delayed() {
    DELAYED.with(|own| {
        let signals = Blocked::all();
        if !own.is_any.load(Ordering::Relaxed)
            || own.sections.load(Ordering::Relaxed) > 0
            || hazard_records::ask_this_thread()
        {
            return;
        }
        let before = signals.keep();
        own.is_any.store(false, Ordering::Relaxed);
        set_delayed(false);
        let blocked = own.blocked.swap(0, Ordering::Relaxed);
        let let_through = own.let_through.swap(0, Ordering::Relaxed);
        let sleeping = own.sleeping.swap(u64::MAX, Ordering::Relaxed) & !let_through;
        // Any of the handlers may leave by `siglongjmp`, or end the thread.
        call_handlers(before & !(blocked & !let_through));
        if let_through != 0 {
            let (limit, mask) = (&raw const AT_ONCE, &raw const sleeping);
            own.unblocked
                .store(blocked & let_through, Ordering::Relaxed);
            // SAFETY: the list is empty, limit and mask are live. The call fails with `EINTR`.
            let _ = unsafe { interruptible!(SYS_ppoll, 0, 0, limit, mask, size_of::<u64>()) };
            own.unblocked.store(0, Ordering::Relaxed);
            call_handlers(before & !blocked);
        }
    });
}

/// Sets the thread's signal mask. The handlers that run now may unwind (`pthread_exit`).
fn call_handlers(mask: u64) {
    let none = ptr::null_mut::<u64>();
    // SAFETY: the mask is live and of the size that is given. The call does not fail then.
    unsafe { set_signal_mask(libc::SIG_SETMASK, &raw const mask, none, size_of::<u64>()) };
}

/// Makes the system call `rt_sigprocmask`. A separate function with unwind information: handlers may
/// unwind through it, but not through inline assembly. Not the C library's `syscall`, a name that a
/// program may define.
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

/// Elsewhere only the C library's `syscall` has unwind information.
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

/// Returns the place of the interrupted code's signal mask in a handler's `ucontext_t`.
///
/// # Safety
/// The context is the handler's.
unsafe fn mask_in(context: *mut libc::ucontext_t) -> *mut u64 {
    // SAFETY: the caller's contract; a sigset_t begins with the kernel's 64 bits.
    unsafe { (&raw mut (*context).uc_sigmask).cast() }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod registers {
    /// Returns the place of the address at which the interrupted code continues.
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

    /// Returns the place of the result of the interrupted system call.
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

/// Delays a handler of the program if the thread is in the midst of a call. Returns whether it has. The
/// handler is then called at the end of the call.
///
/// # Safety
/// `info` and `context` are the arguments that the kernel has passed to the calling handler of
/// `signal` (`SA_SIGINFO`). The handler returns at once if this function returns true.
#[must_use]
pub unsafe fn delay(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
) -> bool {
    DELAYED.with(|own| {
        // A delayed signal is blocked in the interrupted context only. A handler near its end would run
        // other handlers in its own calls, and these signals would stay blocked.
        let waits = own.is_any.load(Ordering::Relaxed) || own.sections.load(Ordering::Relaxed) > 0;
        if hazard_records::ask_this_thread() || waits {
            // SAFETY: the caller's contract.
            return unsafe { own.add(signal, info, context) };
        }
        if own.unblocked.load(Ordering::Relaxed) != 0 {
            // SAFETY: as above.
            unsafe { own.unblock_in(context) };
        }
        // SAFETY: as above.
        signal > ONE_AT_A_TIME && unsafe { own.stands_for_nothing(signal, info.cast()) }
    })
}

/// A `siginfo_t`.
type Information = [u64; 16];

/// Sends a signal to this thread.
fn send(signal: i32, information: &Information) -> Result<usize, Errno> {
    let information = ptr::from_ref(information);
    let thread = futex::thread_id().ok_or(Errno::PERM)?;
    // SAFETY: the information is live; the others are numbers.
    unsafe {
        let process = call!(SYS_getpid)?;
        call!(SYS_rt_tgsigqueueinfo, process, thread, signal, information)
    }
}

/// Takes the next signal of a number that is pending.
fn next_pending(signal: i32) -> Option<Information> {
    let mut next: Information = [0; 16];
    let set = bit(signal);
    let (this, place, limit) = (&raw const set, &raw mut next, &raw const AT_ONCE);
    // SAFETY: all are live, and the set has this size.
    let taken = unsafe { call!(SYS_rt_sigtimedwait, this, place, limit, size_of::<u64>()) };
    taken.is_ok().then_some(next)
}

/// Returns whether information is that of a signal.
fn is_of(signal: i32, information: &Information) -> bool {
    information[0] & u64::from(u32::MAX) == u64::from(signal.cast_unsigned())
}

/// Forgets what is kept, in the child of a fork: pending signals are the parent's.
#[unsafe(link_section = "upoll_fork")]
pub(crate) fn begin_in_child() {
    DELAYED.with(|own| {
        // A page is not to be copied for what is right already.
        if !own.kept.get().is_null() {
            own.kept.set(ptr::null_mut());
        }
    });
}

/// Signals up to this one are not queued: at most one of each is pending.
const ONE_AT_A_TIME: i32 = 31;

/// The information of a signal for which the kernel's queue had no room (`RLIMIT_SIGPENDING`).
///
/// A [carrier](Delayed::carrier) is pending in its place. The next of these signals that is handled has the information
/// that was kept first. Its own is kept instead, if it was no carrier.
struct Kept {
    information: Information,
    next: Cell<*mut Kept>,
}

impl Delayed {
    /// Returns unique information for a signal that is only sent to find its place in the queue.
    fn probe(&self, signal: i32) -> Information {
        let mut probe = [0; 16];
        probe[0] = u64::from(signal.cast_unsigned());
        probe[1] = u64::from(libc::SI_QUEUE.cast_unsigned());
        probe[3] = ptr::from_ref(self).expose_provenance() as u64;
        probe
    }

    /// Returns the information of a carrier. If the queue is full, the kernel sends a signal of this code all the same,
    /// once and without the rest.
    fn carrier(&self, signal: i32) -> Information {
        let mut carrier = self.probe(signal);
        carrier[1] = u64::from(libc::SI_USER.cast_unsigned());
        carrier
    }

    /// Returns whether a signal is a carrier. One for which there was no room is any signal without information, as long
    /// as something is kept.
    fn is_carrier(&self, signal: i32, information: &Information) -> bool {
        let mut bare = [0; 16];
        bare[0] = u64::from(signal.cast_unsigned());
        // The address is tested first: it is in no other signal.
        information[3] == ptr::from_ref(self).expose_provenance() as u64
            && *information == self.carrier(signal)
            || *information == bare && self.kept(signal).next().is_some()
    }

    /// Returns the information that is kept of a signal, the oldest first.
    fn kept(&self, signal: i32) -> impl Iterator<Item = Information> {
        let mut at = self.kept.get();
        let all = std::iter::from_fn(move || {
            // SAFETY: the thread's own list, in which each element is live until `take` has removed it.
            let kept = unsafe { at.as_ref() }?;
            let information = kept.information;
            at = kept.next.get();
            Some(information)
        });
        all.filter(move |information| is_of(signal, information))
    }

    /// Keeps the information of a signal. Returns whether there was memory for it.
    fn keep(&self, information: Information) -> bool {
        // SAFETY: the size is not zero.
        let kept = unsafe { alloc(Layout::new::<Kept>()) }.cast::<Kept>();
        if kept.is_null() {
            return false;
        }
        let next = Cell::new(ptr::null_mut());
        // SAFETY: it is new memory of that size.
        unsafe { kept.write(Kept { information, next }) };
        let mut last = &self.kept;
        // SAFETY: as in `kept`.
        while let Some(kept) = unsafe { last.get().as_ref() } {
            last = &kept.next;
        }
        last.set(kept);
        true
    }

    /// Takes the information of a signal that was kept first.
    fn take(&self, signal: i32) -> Option<Information> {
        let mut place = &self.kept;
        loop {
            // SAFETY: as in `kept`.
            let kept = unsafe { place.get().as_ref() }?;
            if is_of(signal, &kept.information) {
                let (information, taken) = (kept.information, place.get());
                place.set(kept.next.get());
                // SAFETY: `keep` has allocated it so. Nothing refers to it any more.
                unsafe { dealloc(taken.cast(), Layout::new::<Kept>()) };
                return Some(information);
            }
            place = &kept.next;
        }
    }

    /// Sends what is kept of a signal again, before all others that this thread was sent. If the queue has no room for all of
    /// it, none of it is sent but a carrier: what is kept has to be older than what the queue has.
    ///
    /// Signals are blocked.
    fn send_again(&self, signal: i32) {
        let probe = self.probe(signal);
        if send(signal, &probe).is_ok() {
            // Signals that were sent to this thread before the probe come after the delayed one.
            while let Some(next) = next_pending(signal).filter(|next| *next != probe) {
                // Without memory for it, it comes out of turn.
                if !self.is_carrier(signal, &next) && !self.keep(next) {
                    let _ = send(signal, &next);
                }
            }
            let kept = self.kept(signal);
            let sent = kept
                .take_while(|information| send(signal, information).is_ok())
                .count();
            if self.kept(signal).nth(sent).is_none() {
                while self.take(signal).is_some() {}
                return;
            }
            for back in self.kept(signal).take(sent) {
                // Other threads may have sent signals meanwhile.
                while let Some(next) = next_pending(signal).filter(|next| *next != back) {
                    if !self.is_carrier(signal, &next) {
                        self.keep(next);
                    }
                }
            }
        }
        let _ = send(signal, &self.carrier(signal));
    }

    /// Replaces the information of a signal, whose handler is about to be called, by that which was kept first. Returns
    /// whether it is a carrier of nothing, for which no handler is called.
    ///
    /// # Safety
    /// `place` is the information that the kernel has passed to a handler of `signal`.
    #[inline]
    unsafe fn stands_for_nothing(&self, signal: i32, place: *mut Information) -> bool {
        // SAFETY: the caller's contract.
        let information = unsafe { &mut *place };
        (!self.kept.get().is_null() || self.is_carrier(signal, information))
            && self.exchange(signal, information)
    }

    #[cold]
    fn exchange(&self, signal: i32, information: &mut Information) -> bool {
        let _signals = Blocked::all();
        let is_carrier = self.is_carrier(signal, information);
        // Without memory for its own, the signal is handled out of turn.
        let first = match is_carrier || self.keep(*information) {
            true => self.take(signal),
            false => None,
        };
        if let Some(first) = first {
            *information = first;
            if self.kept(signal).next().is_some() {
                let _ = send(signal, &self.carrier(signal));
            }
        }
        is_carrier && first.is_none()
    }

    /// # Safety
    /// As [`delay`].
    #[cold]
    unsafe fn add(
        &self,
        signal: i32,
        info: *const libc::siginfo_t,
        context: *mut libc::ucontext_t,
    ) -> bool {
        let bit = bit(signal);
        // From here on no handler can interrupt this one, whose context is not that of the call. The
        // mask is that of the sleep, that of the action, and the signal itself unless it has
        // `SA_NODEFER`.
        let signals = Blocked::all();
        // SAFETY: the caller's contract.
        let information = unsafe { info.cast::<Information>().read() };
        if signal > ONE_AT_A_TIME
            && (self.is_carrier(signal, &information) || self.keep(information))
        {
            self.send_again(signal);
        } else if send(signal, &information).is_err() {
            // There is neither memory for it nor room in the queue.
            return false;
        }
        let now = signals.keep();
        // SAFETY: the caller's contract.
        let mask = unsafe { &mut *mask_in(context) };
        if *mask & bit == 0 {
            *mask |= bit;
            self.blocked.fetch_or(bit, Ordering::Relaxed);
        } else {
            // Handlers of signals that came in the same sleep ran above this one, and took its mask
            // for that of the call. There are no other signals: they would have ended the sleep.
            let above = self.blocked.swap(0, Ordering::Relaxed);
            self.let_through.fetch_or(bit | above, Ordering::Relaxed);
            self.sleeping.fetch_and(now, Ordering::Relaxed);
        }
        self.is_any.store(true, Ordering::Relaxed);
        set_delayed(true);
        // SAFETY: the caller's contract.
        unsafe { self.end_sleep(context) };
        true
    }

    /// # Safety
    /// As [`delay`].
    #[cold]
    unsafe fn unblock_in(&self, context: *mut libc::ucontext_t) {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        // SAFETY: the caller's contract. No other handler is between this one and the interrupted
        // sleep.
        unsafe {
            if place(*registers::address(context)) == Place::After {
                *mask_in(context) &= !self.unblocked.swap(0, Ordering::Relaxed);
            }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = context;
    }

    /// Makes the thread leave the sleep that the signal came in.
    ///
    /// # Safety
    /// As [`delay`].
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
                // Unless another handler has already ended this sleep.
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
