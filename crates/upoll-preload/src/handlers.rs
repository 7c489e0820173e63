//! The program's signal handlers: called by one of this library's, which delays them while their
//! thread is in the midst of a call on an object (see `upoll_fds`' module `signals`).
//!
//! Locks that detect recursion would not help: the state under such a lock is half changed when the
//! handler comes. A signal mask around each call would, but costs two system calls.
//!
//! The program sees its own handlers, masks and flags when it queries an action. The kernel itself calls
//! the handlers of signals that a fault raises, because the thread cannot go on without them, and the
//! handler of `SIGABRT`.

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};

use libc::{SIG_DFL, SIG_ERR, SIG_IGN, sighandler_t, siginfo_t};
use upoll::Errno;
use upoll_fds::internal;
use upoll_sys::backoff::Backoff;
use upoll_sys::futex;
use upoll_sys::signals::{self, Blocked};

use crate::cancel::exported;
use crate::next::next;
use crate::{kernel, settings};
use upoll_fds::internal::errno::{MASK_SIZE, give, set_errno};

/// The program's handler of each signal, with the three bits below, which no address has. A handler is in
/// force while the kernel's action for the signal is [`call_handler`].
static HANDLERS: [AtomicUsize; SIGNALS + 1] = [const { AtomicUsize::new(0) }; SIGNALS + 1];
const SIGNALS: usize = 64;
/// `SA_SIGINFO`. The kernel always gets this flag, so that it passes the signal's information.
const TAKES_INFO: usize = 1 << 62;
/// `SA_RESETHAND`, which the kernel does not get: it would remove `call_handler`, which a delayed
/// handler is called by later.
const IS_CALLED_ONCE: usize = 1 << 63;
/// A handler with `SA_RESETHAND` has been called.
const WAS_CALLED: usize = 1 << 61;
const BITS: usize = TAKES_INFO | IS_CALLED_ONCE | WAS_CALLED;

/// The process whose handlers these are; 0 as long as no other process shares this memory.
static OWNER: AtomicUsize = AtomicUsize::new(0);

/// Prepares for a child that shares the memory but has actions of its own (`CLONE_VM` without `CLONE_SIGHAND`),
/// where nothing new is served. The actions that the child sets are then only the kernel's: no handler of the
/// child can interrupt a call on a user-level object.
///
/// If the process `reports` statistics, the child must be known as one as well: the owner of the memory reports.
///
/// Named pair: this thread has published that nothing new is served, then checks whether handlers are delayed.
/// A thread that begins to delay handlers publishes that, then checks whether anything is served.
pub(crate) fn before_actions_part_there(reports: bool) {
    fence(Ordering::SeqCst);
    if has_begun() || reports {
        before_actions_part();
    }
}

/// Prepares for such a child where more may be served.
pub(crate) fn before_actions_part() {
    if let Ok(process) = kernel::call!(SYS_getpid) {
        // A child's own child keeps the first owner.
        let _ = OWNER.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The state of the handlers. Once they are wrapped, this library's handler calls the program's: from just
/// before the first user-level object.
static STATE: AtomicU8 = AtomicU8::new(NOT_BEGUN);
const NOT_BEGUN: u8 = 0;
/// A thread is replacing the handlers that were set before.
const BEGUN: u8 = 1;
const WRAPS: u8 = 2;

/// Signals that the C library uses itself.
const OF_THE_C_LIBRARY: [c_int; 2] = [32, 33];

/// Delays handlers from now on, including those that the program has set already. Called before the first
/// object is made: until then no handler can interrupt a call on one.
#[inline]
pub(crate) fn begin_to_wrap() {
    if STATE.load(Ordering::Acquire) != WRAPS {
        wrap_all();
    }
}

/// Calls `make`, which makes a user-level object. Returns `None` if `is_wanted` returns false.
///
/// Handlers are delayed meanwhile: a handler that waited for the end of all such calls could wait for its own
/// thread.
pub(crate) fn make_user_level<R>(
    is_wanted: impl Fn() -> bool,
    make: impl FnOnce() -> R,
) -> Option<R> {
    // First, because a child in its parent's memory might be killed between the two changes of the
    // count.
    if !is_wanted() {
        return None;
    }
    begin_to_wrap();
    let _section = internal::Section::begin();
    settings::while_making(is_wanted, make)
}

/// Returns whether a thread has ever begun to make an object in user space.
pub(crate) fn has_begun() -> bool {
    STATE.load(Ordering::SeqCst) != NOT_BEGUN
}

#[cold]
fn wrap_all() {
    wrap_from(NOT_BEGUN, 1..=SIGNALS.cast_signed() as c_int);
}

/// Replaces the handlers of `signals` if the state is `before`, after any other thread has finished
/// doing so.
fn wrap_from(before: u8, signals: RangeInclusive<c_int>) {
    // A handler that interrupted this could wait for the thread that it has interrupted.
    let _blocked = Blocked::new(u64::MAX);
    let mut backoff = Backoff::new();
    let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
    let begun = loop {
        match STATE.compare_exchange(before, BEGUN, success, failure) {
            Err(BEGUN) => backoff.wait(),
            begun => break begun.is_ok(),
        }
    };
    if begun {
        fence(Ordering::SeqCst);
        if settings::is_nothing_new_served() {
            before_actions_part();
        }
        for signal in signals {
            if !CALLED_BY_THE_KERNEL.contains(&signal) && !OF_THE_C_LIBRARY.contains(&signal) {
                wrap(signal);
            }
        }
        STATE.store(WRAPS, Ordering::Release);
    }
}

/// Sets a handler by `call`, a function of the C library or a system call, while handlers are not
/// delayed yet.
#[inline]
fn passed_on<T>(signal: c_int, call: impl FnOnce() -> T) -> T {
    let result = call();
    // Named pair: the handler is set, then the state is checked. A thread that begins to delay handlers
    // publishes the state, then reads the handlers.
    fence(Ordering::SeqCst);
    // Actions that a child with actions of its own sets are not replaced.
    if STATE.load(Ordering::SeqCst) != NOT_BEGUN && wraps() && !is_others() {
        wrap_from(WRAPS, signal..=signal);
    }
    result
}

/// Replaces the program's handler of a signal, if there is one, with this library's, which calls
/// it.
fn wrap(signal: c_int) {
    let mut action = kernel::Action::default();
    let known = kernel::call!(SYS_rt_sigaction, signal, 0, &raw mut action, MASK_SIZE);
    let is_one = ![SIG_DFL, SIG_IGN, own()].contains(&action.handler);
    if known.is_err() || !is_one {
        return;
    }
    let word = word_for(action.handler, action.flags);
    HANDLERS[signal.unsigned_abs() as usize].store(word, Ordering::Release);
    (action.handler, action.flags) = (own(), passed(action.flags));
    let _ = kernel::call!(SYS_rt_sigaction, signal, &raw const action, 0, MASK_SIZE);
}

/// Returns whether handlers are delayed. Waits while another thread replaces the handlers.
fn wraps() -> bool {
    let mut backoff = Backoff::new();
    while STATE.load(Ordering::Acquire) == BEGUN {
        backoff.wait();
    }
    STATE.load(Ordering::Acquire) == WRAPS
}

/// The word in [`HANDLERS`] for a handler with these flags.
fn word_for(handler: sighandler_t, flags: usize) -> usize {
    let mut word = handler;
    if flags & TAKES_INFO_FLAG != 0 {
        word |= TAKES_INFO;
    }
    if flags & CALLED_ONCE_FLAG != 0 {
        word |= IS_CALLED_ONCE;
    }
    word
}

/// Returns the flags that the kernel gets for a handler.
fn passed(flags: usize) -> usize {
    (flags | TAKES_INFO_FLAG) & !CALLED_ONCE_FLAG
}

pub(crate) fn prepare() {
    // SAFETY: the handler is never unloaded, as this library is not. Without memory for it handlers that
    // the child of a fork sets are not delayed, if its parent has had such a child.
    unsafe { libc::pthread_atfork(None, None, Some(own_again)) };
}

/// Resets the state in the child of a fork, which has a memory of its own.
#[unsafe(link_section = "upoll_fork")]
pub(crate) extern "C" fn own_again() {
    // A page is not to be copied for what is right already.
    if OWNER.load(Ordering::Relaxed) != 0 {
        OWNER.store(0, Ordering::Relaxed);
    }
    // The thread that was replacing handlers does not exist here. It may have replaced some of
    // them.
    if STATE.load(Ordering::Relaxed) == BEGUN {
        STATE.store(NOT_BEGUN, Ordering::Relaxed);
    }
}

/// Returns whether the calling process shares the memory of its parent, but not the actions.
pub(crate) fn is_others() -> bool {
    let owner = OWNER.load(Ordering::Relaxed);
    owner != 0 && kernel::call!(SYS_getpid) != Ok(owner)
}

const CALLED_BY_THE_KERNEL: [c_int; 7] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGABRT,
];

/// Calls the program's handler, or delays it.
unsafe extern "C-unwind" fn call_handler(
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
) {
    // SAFETY: the arguments come from the kernel. If the call is delayed, this function returns at
    // once.
    if unsafe { internal::delay(signal, info, context.cast()) } {
        return;
    }
    let handler = &HANDLERS[signal.unsigned_abs() as usize % (SIGNALS + 1)];
    let mut word = handler.load(Ordering::Acquire);
    if word & IS_CALLED_ONCE != 0 {
        if is_others() {
            word &= !WAS_CALLED;
            reset(signal, word);
        } else if word & WAS_CALLED == 0 {
            let called = word | WAS_CALLED;
            let taken = handler.compare_exchange(word, called, Ordering::AcqRel, Ordering::Acquire);
            match taken {
                Ok(_) => reset(signal, word),
                Err(now) => word = now,
            }
        }
    }
    if word & WAS_CALLED != 0 || word == SIG_DFL {
        // Another thread was quicker. The signal is sent again; the kernel's default action
        // follows.
        if let (Ok(process), Some(thread)) = (kernel::call!(SYS_getpid), futex::thread_id()) {
            let _ = kernel::call!(SYS_rt_tgsigqueueinfo, process, thread, signal, info);
        }
        return;
    }
    type Handler = unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);
    // SAFETY: the program has installed this address as its handler. A handler without `SA_SIGINFO`
    // ignores the other arguments.
    let handler = unsafe { transmute::<usize, Handler>(word & !BITS) };
    // SAFETY: as above.
    unsafe { handler(signal, info, context) }
}

fn own() -> usize {
    call_handler as *const () as usize
}

/// Sets the kernel's action of a handler with `SA_RESETHAND` back to the default.
#[cold]
fn reset(signal: c_int, word: usize) {
    let mut action = kernel::Action::default();
    let known = kernel::call!(SYS_rt_sigaction, signal, 0, &raw mut action, MASK_SIZE);
    if known.is_ok() && action.handler == own() {
        action.handler = SIG_DFL;
        action.flags = seen(action.flags, word);
        let _ = kernel::call!(SYS_rt_sigaction, signal, &raw const action, 0, MASK_SIZE);
    }
}

/// Flags of an action, as the kernel stores them.
const TAKES_INFO_FLAG: usize = libc::SA_SIGINFO.cast_unsigned() as usize;
const CALLED_ONCE_FLAG: usize = libc::SA_RESETHAND.cast_unsigned() as usize & 0xffff_ffff;

/// Returns the flags that the program has passed, from those that the kernel stores.
fn seen(flags: usize, word: usize) -> usize {
    let mut flags = flags & !(TAKES_INFO_FLAG | CALLED_ONCE_FLAG);
    if word & TAKES_INFO != 0 {
        flags |= TAKES_INFO_FLAG;
    }
    if word & IS_CALLED_ONCE != 0 {
        flags |= CALLED_ONCE_FLAG;
    }
    flags
}

/// A handler and its flags.
type Called = (sighandler_t, usize);

/// Sets an action by `change`, which passes a handler and flags to the kernel. Returns the handler and
/// flags that the program had set before.
fn exchange<E>(
    signal: c_int,
    wanted: Option<Called>,
    change: impl FnOnce(Option<Called>) -> Result<Called, E>,
) -> Result<Called, E> {
    let handler = usize::try_from(signal)
        .ok()
        .and_then(|signal| HANDLERS.get(signal));
    let Some(place) = handler.filter(|_| !CALLED_BY_THE_KERNEL.contains(&signal)) else {
        return change(wanted);
    };
    let is_one = |&(handler, _): &Called| handler != SIG_DFL && handler != SIG_IGN;
    let Some((handler, flags)) = wanted.filter(is_one).filter(|_| !is_others()) else {
        let (before, flags) = change(wanted)?;
        return Ok(as_seen(before, flags, place.load(Ordering::Acquire)));
    };
    let word = word_for(handler, flags);
    // A signal that comes before `change` is handled as if it came just after.
    let known = place.swap(word, Ordering::AcqRel);
    match change(Some((own(), passed(flags)))) {
        Ok((before, flags)) => Ok(as_seen(before, flags, known)),
        Err(error) => {
            let _ = place.compare_exchange(word, known, Ordering::AcqRel, Ordering::Relaxed);
            Err(error)
        }
    }
}

fn as_seen(handler: sighandler_t, flags: usize, word: usize) -> Called {
    match handler == own() {
        true => (word & !BITS, seen(flags, word)),
        false => (handler, flags),
    }
}

/// An action's flags are an int in C.
fn word_of(flags: c_int) -> usize {
    flags.cast_unsigned() as usize
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the kernel gives no others"
)]
fn int_of(flags: usize) -> c_int {
    (flags as u32).cast_signed()
}

exported! {
    "`sigaction(2)`" sigaction(
        signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction
    ) -> c_int = sigaction_body;
    "`siginterrupt(3)`" siginterrupt(signal: c_int, interrupts: c_int) -> c_int = siginterrupt_body;
    "`signal(2)`" signal(signal: c_int, handler: sighandler_t) -> sighandler_t = signal_body;
    "`signal(2)` of System V" __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t = __sysv_signal_body;
    "`sigset(3)`" sigset(signal: c_int, handler: sighandler_t) -> sighandler_t = sigset_body;
    "`bsd_signal(3)`" bsd_signal(signal: c_int, handler: sighandler_t) -> sighandler_t = signal_body;
    "`ssignal(3)`" ssignal(signal: c_int, handler: sighandler_t) -> sighandler_t = signal_body;
    "`sysv_signal(3)`" sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t = __sysv_signal_body;
}

/// # Safety
/// As the call.
#[inline(always)]
unsafe fn sigaction_body(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if !wraps() {
        return passed_on(signal, || {
            next!(
                c"sigaction" as fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int,
                (signal, new, old)
            )
        });
    }
    // SAFETY: the caller's contract.
    let wanted = (!new.is_null()).then(|| unsafe { *new });
    // SAFETY: all zeros is one.
    let mut found: libc::sigaction = unsafe { std::mem::zeroed() };
    let called = wanted.map(|wanted| (wanted.sa_sigaction, word_of(wanted.sa_flags)));
    let before = exchange(signal, called, |called| {
        let mut action = wanted;
        if let (Some(action), Some((handler, flags))) = (&mut action, called) {
            action.sa_sigaction = handler;
            action.sa_flags = int_of(flags);
        }
        let new = action.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let done = next!(
            c"sigaction" as fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int,
            (signal, new, &raw mut found)
        );
        match done {
            0 => Ok((found.sa_sigaction, word_of(found.sa_flags))),
            failed => Err(failed),
        }
    });
    match before {
        Ok((handler, flags)) => {
            if !old.is_null() {
                found.sa_sigaction = handler;
                found.sa_flags = int_of(flags);
                // SAFETY: the caller's contract.
                unsafe { old.write(found) };
            }
            0
        }
        Err(failed) => failed,
    }
}

#[doc = "`sigaction(2)`, by its other name."]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { sigaction(signal, new, old) }
}

/// `rt_sigaction(2)` as the system call is.
///
/// # Safety
/// That of the call.
pub(crate) unsafe fn raw_sigaction(
    signal: c_int,
    new: *const kernel::Action,
    old: *mut kernel::Action,
    size: usize,
) -> c_int {
    if !wraps() {
        return passed_on(signal, || {
            give(kernel::call!(SYS_rt_sigaction, signal, new, old, size).map(drop))
        });
    }
    let wanted = match new.is_null() {
        true => Ok(None),
        // SAFETY: the caller's contract.
        false => unsafe { internal::read_memory(new) }.map(Some),
    };
    let done = wanted.and_then(|wanted| {
        let mut found = kernel::Action::default();
        let called = wanted.map(|wanted| (wanted.handler, wanted.flags));
        let (handler, flags) = exchange(signal, called, |called| {
            let mut action = wanted;
            if let (Some(action), Some((handler, flags))) = (&mut action, called) {
                action.handler = handler;
                action.flags = flags;
            }
            let new = action.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            kernel::call!(SYS_rt_sigaction, signal, new, &raw mut found, size)?;
            Ok::<_, Errno>((found.handler, found.flags))
        })?;
        found.handler = handler;
        found.flags = flags;
        match old.is_null() {
            true => Ok(()),
            // SAFETY: the caller's contract.
            false => unsafe { internal::write_memory(old, found) },
        }
    });
    give(done)
}

/// Signals whose handlers interrupt calls, by `siginterrupt(3)`.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

/// # Safety
/// As the call.
#[inline(always)]
unsafe fn siginterrupt_body(signal: c_int, interrupts: c_int) -> c_int {
    let done = next!(
        c"siginterrupt" as fn(c_int, c_int) -> c_int,
        (signal, interrupts)
    );
    if done == 0 {
        match interrupts {
            0 => INTERRUPTING.fetch_and(!bit(signal), Ordering::Relaxed),
            _ => INTERRUPTING.fetch_or(bit(signal), Ordering::Relaxed),
        };
    }
    done
}

fn bit(signal: c_int) -> u64 {
    let at = signal.checked_sub(1).and_then(|at| u32::try_from(at).ok());
    at.and_then(|at| 1_u64.checked_shl(at)).unwrap_or(0)
}

/// Sets a handler with these flags. If `blocks_itself`, its mask contains the signal. Returns the
/// previous handler.
fn set(signal: c_int, handler: sighandler_t, flags: c_int, blocks_itself: bool) -> sighandler_t {
    // SAFETY: all zeros is an action.
    let (mut new, mut old): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    new.sa_sigaction = handler;
    new.sa_flags = flags;
    if blocks_itself {
        // SAFETY: the set is live.
        unsafe { libc::sigaddset(&raw mut new.sa_mask, signal) };
    }
    // SAFETY: both are live; the handler is the caller's.
    match unsafe { sigaction(signal, &raw const new, &raw mut old) } {
        0 => old.sa_sigaction,
        _ => SIG_ERR,
    }
}

/// # Safety
/// As the call.
#[inline(always)]
unsafe fn signal_body(signal: c_int, handler: sighandler_t) -> sighandler_t {
    if !wraps() {
        return passed_on(signal, || {
            next!(
                c"signal" as fn(c_int, sighandler_t) -> sighandler_t,
                (signal, handler)
            )
        });
    }
    if handler == SIG_ERR || bit(signal) == 0 {
        set_errno(Errno::INVAL);
        return SIG_ERR;
    }
    let flags = match INTERRUPTING.load(Ordering::Relaxed) & bit(signal) {
        0 => libc::SA_RESTART,
        _ => 0,
    };
    set(signal, handler, flags, true)
}

/// # Safety
/// As the call.
#[inline(always)]
unsafe fn __sysv_signal_body(signal: c_int, handler: sighandler_t) -> sighandler_t {
    if !wraps() {
        return passed_on(signal, || {
            next!(
                c"__sysv_signal" as fn(c_int, sighandler_t) -> sighandler_t,
                (signal, handler)
            )
        });
    }
    const INTERRUPTS: c_int = 0x2000_0000;
    if handler == SIG_ERR || bit(signal) == 0 {
        set_errno(Errno::INVAL);
        return SIG_ERR;
    }
    let flags = libc::SA_RESETHAND | libc::SA_NODEFER | INTERRUPTS;
    set(signal, handler, flags, false)
}

/// # Safety
/// As the call.
#[inline(always)]
unsafe fn sigset_body(signal: c_int, handler: sighandler_t) -> sighandler_t {
    if !wraps() {
        return passed_on(signal, || {
            next!(
                c"sigset" as fn(c_int, sighandler_t) -> sighandler_t,
                (signal, handler)
            )
        });
    }
    const HOLD: sighandler_t = 2;
    if handler == HOLD {
        let before = next!(
            c"sigset" as fn(c_int, sighandler_t) -> sighandler_t,
            (signal, HOLD)
        );
        let known = HANDLERS
            .get(usize::try_from(signal).unwrap_or(0))
            .map_or(0, |known| known.load(Ordering::Acquire));
        return as_seen(before, 0, known).0;
    }
    let old = set(signal, handler, 0, false);
    if old == SIG_ERR {
        return SIG_ERR;
    }
    let before = signals::change(libc::SIG_UNBLOCK, bit(signal));
    match before & bit(signal) {
        0 => old,
        _ => HOLD,
    }
}
