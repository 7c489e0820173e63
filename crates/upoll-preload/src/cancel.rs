//! Cancellation points, and `pthread_cancel(3)`.
//!
//! A call that names no user-level object is passed on to the C library, which handles cancellation as usual. The
//! C library does not see calls on user-level objects: their system calls are inline. A thread that makes such a
//! call therefore has a record, which shows whether the thread is in a call that may block. `pthread_cancel`
//! interrupts the call with the signal that the C library reserves for this. The call ends with `EINTR` and
//! leaves everything of upoll's in good order. Then the C library is asked whether to end the thread. If it
//! does, only the frame of the exported function is unwound.

use std::alloc::{self, Layout};
use std::cell::Cell;
use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::{iter, ptr};

use libc::{pid_t, pthread_t, timespec};

use upoll_sys::{futex, signals};

use crate::kernel;
use crate::next::next;
use crate::settings;

/// The state of a thread's cancellable calls.
struct Record {
    /// The id of the thread that has the record; 0 if no thread has it.
    owner: AtomicI32,
    /// Twice the number of calls so far; the lowest bit is set while a call is under way.
    calls: AtomicU32,
    /// The address at which the stack of the call under way begins.
    frame: AtomicUsize,
    /// The call under way was interrupted so that the thread checks whether it is cancelled.
    is_told: AtomicBool,
    /// The thread may have been cancelled: it asks the C library at the beginning of each call.
    may_be_cancelled: AtomicBool,
    /// The thread has disabled cancellation, as [`IS_DISABLED`] says of the calling thread.
    is_disabled: AtomicBool,
    /// The next one in the list of all records; written before the record is in the list.
    next: AtomicPtr<Record>,
}

const UNDER_WAY: u32 = 1;
const ONE_CALL: u32 = 2;

/// The list of all records. Records are never freed, but change hands: there are as many as threads
/// have made calls on objects at the same time.
static ALL: AtomicPtr<Record> = AtomicPtr::new(ptr::null_mut());

/// Returns an iterator over all records.
fn records() -> impl Iterator<Item = &'static Record> {
    let mut at = ALL.load(Ordering::SeqCst);
    iter::from_fn(move || {
        // SAFETY: null, or a record that `new_record` has put into the list: those are never freed.
        let record: &'static Record = unsafe { at.as_ref() }?;
        at = record.next.load(Ordering::Relaxed);
        Some(record)
    })
}

/// Allocates a record for the thread `owner` and puts it into the list. Returns `None` if there is no
/// memory. May be called by a signal handler: the library's heap has no locks.
fn new_record(owner: pid_t) -> Option<&'static Record> {
    let layout = Layout::new::<Record>();
    // SAFETY: a record has a size.
    let place = unsafe { alloc::alloc(layout) }.cast::<Record>();
    if place.is_null() {
        return None;
    }
    // SAFETY: the memory is new, of this size and alignment, and never freed.
    let record: &'static Record = unsafe {
        place.write(Record {
            owner: AtomicI32::new(owner),
            calls: AtomicU32::new(0),
            frame: AtomicUsize::new(0),
            is_told: AtomicBool::new(false),
            may_be_cancelled: AtomicBool::new(false),
            is_disabled: AtomicBool::new(false),
            next: AtomicPtr::new(ptr::null_mut()),
        });
        &*place
    };
    let mut head = ALL.load(Ordering::Relaxed);
    loop {
        record.next.store(head, Ordering::Relaxed);
        match ALL.compare_exchange_weak(head, place, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => return Some(record),
            Err(now) => head = now,
        }
    }
}

/// Some thread was cancelled, so that it is worth asking.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Some thread has asked to be cancelled at any instruction, so that it is worth asking.
static IS_ANY_ASYNCHRONOUS: AtomicBool = AtomicBool::new(false);

std::thread_local! {
    static MINE: Cell<Option<&'static Record>> = const { Cell::new(None) };
    static IS_DISABLED: Cell<bool> = const { Cell::new(false) };
    /// The thread has asked to be cancelled at any instruction.
    static IS_ASYNCHRONOUS: Cell<bool> = const { Cell::new(false) };
    /// The place in the stack of the call that has deferred cancellation for its time; 0 for none.
    static DEFERRED_AT: Cell<usize> = const { Cell::new(0) };
}

/// A thread's key whose destructor returns the record, and one more; 0 until there is one. Not a
/// variable with a destructor: that takes memory when it is first used, perhaps by a handler that has
/// interrupted an allocation.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Before this no call is a cancellation point.
pub(crate) fn prepare() {
    let mut key = 0;
    // SAFETY: the key is live, and the destructor never unloaded, as this library is not.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(return_record)) } == 0 {
        KEY.store(key + 1, Ordering::Relaxed);
    }
    // SAFETY: as above. Without memory for the handler no thread of a child is interrupted.
    unsafe { libc::pthread_atfork(None, None, Some(forget_other_threads)) };
}

/// Returns the thread's record to the free ones when the thread ends.
extern "C" fn return_record(_: *mut c_void) {
    if let Some(record) = MINE.take() {
        record.give_back();
    }
}

impl Record {
    fn give_back(&self) {
        // Before the owner is cleared: the cancellation of the next owner must not be forgotten.
        self.may_be_cancelled.store(false, Ordering::SeqCst);
        self.owner.store(0, Ordering::Release);
    }
}

#[inline]
fn record() -> Option<&'static Record> {
    MINE.get().or_else(take_record)
}

#[cold]
fn take_record() -> Option<&'static Record> {
    let key = KEY.load(Ordering::Relaxed).checked_sub(1)?;
    let me = thread_id();
    let is_free = |record: &&Record| {
        record.owner.load(Ordering::Relaxed) == 0
            && record
                .owner
                .compare_exchange(0, me, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
    };
    let record = records().find(is_free).or_else(|| new_record(me))?;
    record.calls.store(0, Ordering::Relaxed);
    record.is_told.store(false, Ordering::Relaxed);
    // The thread has the record, and now checks: a thread that has cancelled this one before that did not find it.
    if IS_USED.load(Ordering::SeqCst) {
        record.may_be_cancelled.store(true, Ordering::Relaxed);
    }
    record
        .is_disabled
        .store(IS_DISABLED.get(), Ordering::Relaxed);
    // SAFETY: the key is there; the value is only compared with null.
    unsafe { libc::pthread_setspecific(key, ptr::from_ref(record).cast()) };
    MINE.set(Some(record));
    Some(record)
}

fn thread_id() -> pid_t {
    futex::thread_id().map_or(0, u32::cast_signed)
}

/// In a child of `fork` there is one thread, of another number.
#[unsafe(link_section = "upoll_fork")]
pub(crate) extern "C" fn forget_other_threads() {
    let mine = MINE.get();
    for record in records() {
        let is_mine = mine.is_some_and(|mine| ptr::eq(mine, record));
        if !is_mine && record.owner.load(Ordering::Relaxed) != 0 {
            record.give_back();
        }
    }
    if let Some(mine) = mine {
        mine.owner.store(thread_id(), Ordering::Relaxed);
    }
}

/// Ends the thread if it is cancelled and has not disabled cancellation.
fn end_if_cancelled() {
    unsafe extern "C-unwind" {
        fn pthread_testcancel();
    }
    // SAFETY: it has no preconditions, and the frames that it may unwind have nothing to drop.
    unsafe { pthread_testcancel() };
}

/// Returns whether a thread may be cancelled at any instruction.
#[inline]
pub(crate) fn is_any_asynchronous() -> bool {
    IS_ANY_ASYNCHRONOUS.load(Ordering::Relaxed)
}

/// Returns whether this thread may be cancelled at any instruction. Not in a child that the thread waits for: the child
/// would change the type of its parent's thread, and act on a cancellation of that. All objects are demoted then.
#[cold]
#[inline(never)]
pub(crate) fn is_asynchronous() -> bool {
    let here = 0_u8;
    let deferred_at = DEFERRED_AT.get();
    IS_ASYNCHRONOUS.get()
        && !settings::waits_for_a_child()
        && (deferred_at == 0 || is_over(deferred_at, (&raw const here).addr()))
}

/// Runs `call`, with deferred cancellation if this thread may be cancelled at any instruction.
#[cold]
#[inline(never)]
pub(crate) fn with_deferred<T>(call: impl FnOnce() -> T) -> T {
    let (here, nowhere) = (0_u8, std::ptr::null_mut());
    let is_deferred = is_asynchronous();
    if is_deferred {
        // SAFETY: there is no place to write to.
        unsafe { set_type(PTHREAD_CANCEL_DEFERRED, nowhere) };
        DEFERRED_AT.set((&raw const here).addr());
        // A handler that came before that has set the type back. Later ones leave it alone.
        // SAFETY: as above.
        unsafe { set_type(PTHREAD_CANCEL_DEFERRED, nowhere) };
    }
    let result = call();
    if is_deferred {
        DEFERRED_AT.set(0);
        if IS_ASYNCHRONOUS.get() {
            // SAFETY: as above. The frames that it may unwind have nothing to drop.
            unsafe { set_type(PTHREAD_CANCEL_ASYNCHRONOUS, nowhere) };
        }
    }
    result
}

/// The body of an exported function: a call of a function of this library, with deferred cancellation for a thread
/// of the type `PTHREAD_CANCEL_ASYNCHRONOUS`. Otherwise it could be unwound at any instruction, and leave locks
/// held or entries linked.
///
/// The exported function must have nothing to drop: the unwinder ends the process at an instruction that is no call,
/// in a function with cleanup code. `ci/preload-unwinding` checks this. So the called function is inlined only if
/// it has nothing to drop itself.
macro_rules! deferred {
    ($body:ident($($argument:expr),* $(,)?)) => {{
        #[allow(unused_unsafe, reason = "some of them take pointers")]
        if $crate::cancel::is_any_asynchronous() {
            // SAFETY: the caller's contract.
            return $crate::cancel::with_deferred(move || unsafe { $body($($argument),*) });
        }
        #[allow(unused_unsafe, reason = "as above")]
        // SAFETY: the caller's contract.
        let result = unsafe { $body($($argument),*) };
        result
    }};
    // A call that may block and is no cancellation point: pthread_cancel(3) ends it for such a thread alone.
    (interruptible $body:ident($($argument:expr),* $(,)?)) => {{
        if $crate::cancel::is_any_asynchronous() && $crate::cancel::is_asynchronous() {
            return $crate::cancel::with_deferred(move || {
                // SAFETY: the caller's contract.
                $crate::cancel::interruptible(|| unsafe { $body($($argument),*) })
            });
        }
        // SAFETY: the caller's contract.
        unsafe { $body($($argument),*) }
    }};
}

/// Functions that are exported by their names, each with its text in the documentation. The function behind `=` serves
/// the call, as [`deferred`] has it.
macro_rules! exported {
    ($($doc:literal $name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)? = $($body:ident)+;)*) => { $(
        #[doc = $doc]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) $(-> $result)? {
            $crate::cancel::exported!(by $($body)+, ($($argument),*))
        }
    )* };
    (by interruptible $body:ident, $arguments:tt) => {
        $crate::cancel::deferred!(interruptible $body $arguments)
    };
    (by $body:ident, $arguments:tt) => { $crate::cancel::deferred!($body $arguments) };
}

pub(crate) use {deferred, exported};

const PTHREAD_CANCEL_DEFERRED: c_int = 0;
const PTHREAD_CANCEL_ASYNCHRONOUS: c_int = 1;

/// Sets the thread's type of cancellation in the C library.
///
/// # Safety
/// That of `pthread_setcanceltype`.
unsafe fn set_type(kind: c_int, old: *mut c_int) -> c_int {
    next!(
        c"pthread_setcanceltype" as fn(c_int, *mut c_int) -> c_int,
        (kind, old)
    )
}

#[doc = "`pthread_setcanceltype(3)`"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int {
    // First: the C library's function may end the thread.
    let is_asynchronous = kind == PTHREAD_CANCEL_ASYNCHRONOUS;
    if is_asynchronous {
        IS_ANY_ASYNCHRONOUS.store(true, Ordering::Relaxed);
    }
    let before = IS_ASYNCHRONOUS.replace(is_asynchronous);
    // A call that a handler has left by `siglongjmp` defers nothing any more.
    DEFERRED_AT.set(0);
    // SAFETY: the caller's contract.
    let answer = unsafe { set_type(kind, old) };
    if answer != 0 {
        IS_ASYNCHRONOUS.set(before);
    }
    answer
}

/// Runs `call` as a cancellation point. `call` returns -1 when it fails.
#[inline]
pub(crate) fn interruptible<T: From<i8> + PartialEq>(call: impl Fn() -> T) -> T {
    let Some(record) = record() else {
        return call();
    };
    // From here until the next call, an interruption may mean that the thread is cancelled.
    record.is_told.store(false, Ordering::Relaxed);
    let here = 0_u8;
    let frame = (&raw const here).addr();
    loop {
        // A handler that calls this in the midst of a call leaves that one under way.
        let mut before = record.calls.load(Ordering::Relaxed);
        if before & UNDER_WAY == 0 || is_over(record.frame.load(Ordering::Relaxed), frame) {
            before &= !UNDER_WAY;
            record.frame.store(frame, Ordering::Relaxed);
        }
        let mut has_asked = false;
        loop {
            let call = before.wrapping_add(ONE_CALL) | UNDER_WAY;
            record.calls.store(call, Ordering::SeqCst);
            // The call is under way, and the thread checks now: a thread that has cancelled this one before that does not
            // interrupt the call.
            let asked = &record.may_be_cancelled;
            if !(asked.load(Ordering::SeqCst) && asked.swap(false, Ordering::SeqCst)) {
                break;
            }
            has_asked = true;
            // A thread that ends here is not in a call, and is not interrupted while it cleans up.
            before = before.wrapping_add(ONE_CALL);
            record.calls.store(before, Ordering::SeqCst);
            end_if_cancelled();
        }
        let result = call();
        let was_told =
            result == T::from(-1) && record.is_told.load(Ordering::SeqCst) && is_interrupted();
        record
            .calls
            .store(before.wrapping_add(ONE_CALL), Ordering::SeqCst);
        if has_asked {
            // It may have been cancelled, and have forbidden that only for this call.
            record.may_be_cancelled.store(true, Ordering::SeqCst);
        }
        if !was_told {
            return result;
        }
        // A thread that cannot be cancelled goes on. Its limit begins anew only if the C library itself has
        // disabled cancellation.
        end_if_cancelled();
    }
}

/// Returns whether a call that is recorded as under way at `call` in the stack is over: a handler has left it by `siglongjmp`.
/// A call that a handler makes within another one begins deeper in the stack than that one.
#[cold]
fn is_over(call: usize, frame: usize) -> bool {
    let is_elsewhere = signals::alternate_stack().is_some_and(|stack| stack.is_in_use);
    !is_elsewhere && frame >= call
}

fn is_interrupted() -> bool {
    // SAFETY: the C library gives each thread a live errno.
    unsafe { *libc::__errno_location() == libc::EINTR }
}

/// Runs `call` after a cancellation point. The call itself is no cancellation point: it must not be
/// run twice.
#[inline]
pub(crate) fn cancellable_before<T>(call: impl FnOnce() -> T) -> T {
    if IS_USED.load(Ordering::SeqCst) {
        end_if_cancelled();
    }
    call()
}

/// `pthread_setcancelstate(3)`. A thread that has disabled cancellation is not interrupted: its call would
/// begin anew, with its whole limit.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int {
    const PTHREAD_CANCEL_DISABLE: c_int = 1;
    // First: enabling may end the thread.
    let before = IS_DISABLED.replace(state == PTHREAD_CANCEL_DISABLE);
    let answer = next!(
        c"pthread_setcancelstate" as fn(c_int, *mut c_int) -> c_int,
        (state, old)
    );
    if answer != 0 {
        IS_DISABLED.set(before);
    } else if let Some(record) = MINE.get() {
        record
            .is_disabled
            .store(IS_DISABLED.get(), Ordering::SeqCst);
    }
    answer
}

exported! {
    "`pthread_cancel(3)`" pthread_cancel(thread: pthread_t) -> c_int = cancel;
}

/// # Safety
/// As `pthread_cancel`.
unsafe fn cancel(thread: pthread_t) -> c_int {
    IS_USED.store(true, Ordering::SeqCst);
    let answer = next!(c"pthread_cancel" as fn(pthread_t) -> c_int, (thread));
    let mut clock = 0;
    // SAFETY: the caller's thread, and a live number. It need not be joined yet: it is.
    if answer == 0 && unsafe { libc::pthread_getcpuclockid(thread, &raw mut clock) } == 0 {
        // So the kernel numbers the clocks of threads.
        interrupt(!(clock >> 3));
    }
    answer
}

/// The number of times that a call is interrupted: the signal may come just before the system call.
const TRIES: usize = 100;
/// The number of sleeps of the calling thread after that, and the length of the first. Each sleep is twice as long as
/// the one before. By their end a thread that runs has left its call, or begun it anew. The calling thread does not
/// yield instead: on busy processors that takes the whole time slices of others.
const MOST_TRIES: u32 = 8;
const MOMENT: c_long = 50_000;

/// Interrupts the call in which a thread that was just cancelled may be blocked.
fn interrupt(thread: pid_t) {
    let of_thread = |record: &&Record| record.owner.load(Ordering::SeqCst) == thread;
    let Some(record) = records().find(of_thread) else {
        // It checks when it has one.
        return;
    };
    // The call is checked for after this store: one that begins later asks the C library first.
    record.may_be_cancelled.store(true, Ordering::SeqCst);
    let call = record.calls.load(Ordering::SeqCst);
    if call & UNDER_WAY == 0 || thread == thread_id() {
        return;
    }
    let Ok(process) = kernel::call!(SYS_getpid) else {
        return;
    };
    have_calls_interrupted();
    for _ in 0..TRIES {
        // Its next call after it has enabled cancellation asks the C library.
        if record.is_disabled.load(Ordering::SeqCst) {
            return;
        }
        record.is_told.store(true, Ordering::SeqCst);
        // A thread that has ended is none to interrupt.
        let _ = kernel::call!(SYS_tgkill, process, thread, SIGCANCEL);
        for time in 0..MOST_TRIES {
            let has_ended = record.owner.load(Ordering::Relaxed) != thread;
            if has_ended || record.calls.load(Ordering::SeqCst) != call {
                return;
            }
            // Not the C library's sleep, in which this thread could be cancelled.
            let moment = timespec {
                tv_sec: 0,
                tv_nsec: MOMENT << time,
            };
            let _ = kernel::call!(SYS_nanosleep, &raw const moment, 0);
        }
    }
}

/// The signal that the C library has for itself. Its handler does nothing to a thread that it does not cancel.
const SIGCANCEL: c_int = 32;

/// The C library has installed its handler so that calls start anew.
fn have_calls_interrupted() {
    let restarts = libc::SA_RESTART.cast_unsigned() as usize;
    let mut action = kernel::Action::default();
    let size = size_of::<u64>();
    let known = kernel::call!(SYS_rt_sigaction, SIGCANCEL, 0, &raw mut action, size);
    if known.is_ok() && action.flags & restarts != 0 {
        action.flags &= !restarts;
        let _ = kernel::call!(SYS_rt_sigaction, SIGCANCEL, &raw const action, 0, size);
    }
}
