//! The system calls in which a thread sleeps, made so that a signal handler can end them.
//!
//! A library that delays a signal until a call is over, as `upoll-preload` does, must keep the call
//! from going to sleep first. The signal may come just before the system call, and after a handler
//! with `SA_RESTART` the kernel restarts the call. So all such calls are made at one place. From an
//! address there, [`place`] knows whether the thread is still before the system call, as the C
//! library does for its cancellation points. The thread checks there, with no gap before the system
//! call, whether a signal is [delayed](set_delayed) already.

use std::ffi::c_long;
use std::sync::atomic::{AtomicU32, Ordering};

std::thread_local! {
    /// Not 0: the thread's sleeps end before they begin.
    static IS_DELAYED: AtomicU32 = const { AtomicU32::new(0) };
}

/// Sets whether the thread has delayed a signal: from now on its sleeps fail with `EINTR` at once.
pub fn set_delayed(is_delayed: bool) {
    IS_DELAYED.with(|word| word.store(is_delayed.into(), Ordering::Relaxed));
}

/// Makes a system call that may sleep, unless the thread has delayed a signal.
///
/// # Errors
/// The kernel's error number; `EINTR` if the thread has delayed a signal.
///
/// # Safety
/// The arguments fulfil the contract of the call `number`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub unsafe fn call(number: c_long, arguments: [usize; 6]) -> Result<usize, i32> {
    crate::result(IS_DELAYED.with(|word| {
        // SAFETY: the caller's contract; the word lives as long as the thread.
        unsafe { enter(number, arguments.as_ptr(), word.as_ptr()) }
    }))
}

/// Makes a call unless `word` is set. Returns the address after the system call if `word` is null.
///
/// Up to that address nothing is on the stack, which is what unwinders take for granted. A handler may
/// end the thread there.
#[unsafe(naked)]
#[cfg(target_arch = "x86_64")]
unsafe extern "C-unwind" fn enter(
    number: c_long,
    arguments: *const usize,
    word: *const u32,
) -> isize {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "test rdx, rdx",
        "jz 4f",
        "mov rax, rdi",
        "mov r11, rdx",
        "mov rcx, rsi",
        "mov rdi, [rcx]",
        "mov rsi, [rcx + 8]",
        "mov rdx, [rcx + 16]",
        "mov r10, [rcx + 24]",
        "mov r8, [rcx + 32]",
        "mov r9, [rcx + 40]",
        "cmp dword ptr [r11], 0",
        "jne 3f",
        "syscall",
        "2: ret",
        "3: mov rax, {interrupted}",
        "ret",
        "4: lea rax, [rip + 2b]",
        "ret",
        ".cfi_endproc",
        interrupted = const -libc::EINTR,
    );
}

#[unsafe(naked)]
#[cfg(target_arch = "aarch64")]
unsafe extern "C-unwind" fn enter(
    number: c_long,
    arguments: *const usize,
    word: *const u32,
) -> isize {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "cbz x2, 4f",
        "mov x8, x0",
        "mov x9, x1",
        "mov x10, x2",
        "ldp x0, x1, [x9]",
        "ldp x2, x3, [x9, #16]",
        "ldp x4, x5, [x9, #32]",
        "ldr w10, [x10]",
        "cbnz w10, 3f",
        "svc 0",
        "2: ret",
        "3: mov x0, #{interrupted}",
        "ret",
        "4: adr x0, 2b",
        "ret",
        ".cfi_endproc",
        interrupted = const -libc::EINTR,
    );
}

/// Makes a system call that may sleep, unless the thread has delayed a signal. On other processors a signal
/// that comes just before the system call does not end it.
///
/// # Errors
/// The kernel's error number; `EINTR` if the thread has delayed a signal.
///
/// # Safety
/// The arguments fulfil the contract of the call `number`.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub unsafe fn call(number: c_long, arguments: [usize; 6]) -> Result<usize, i32> {
    if IS_DELAYED.with(|word| word.load(Ordering::Relaxed)) != 0 {
        return Err(libc::EINTR);
    }
    // SAFETY: the caller's contract.
    unsafe { crate::call(number, arguments) }
}

/// The place of a signal with respect to a [`call`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Before its system call, or where the kernel would begin that anew. The thread is to go on at this
    /// address, as if the call had failed with `EINTR`.
    Before(usize),
    /// Just after it.
    After,
    /// Not in one.
    Elsewhere,
}

/// Returns the place of the instruction at `address`, which a signal has interrupted.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub fn place(address: usize) -> Place {
    // SAFETY: with a null word it only returns an address.
    let after = unsafe { enter(0, std::ptr::null(), std::ptr::null()) }.cast_unsigned();
    if address == after {
        Place::After
    } else if (enter as *const () as usize..after).contains(&address) {
        Place::Before(after)
    } else {
        Place::Elsewhere
    }
}

/// Returns the place of the instruction at an address, which a signal has interrupted.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn place(_: usize) -> Place {
    Place::Elsewhere
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_has_delayed_a_signal_does_not_sleep() {
        let nothing = [0, 0, 0, 0, 0, size_of::<u64>()];
        let at_once = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let limit = &raw const at_once;
        let poll = || {
            let mut arguments = nothing;
            arguments[2] = limit.expose_provenance();
            // SAFETY: an empty list and a live limit.
            unsafe { call(libc::SYS_ppoll, arguments) }
        };
        assert_eq!(poll(), Ok(0));
        set_delayed(true);
        assert_eq!(poll(), Err(libc::EINTR));
        // SAFETY: as above; without the first look it would never end.
        assert_eq!(unsafe { call(libc::SYS_ppoll, nothing) }, Err(libc::EINTR));
        set_delayed(false);
        assert_eq!(poll(), Ok(0));
    }

    #[test]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn the_place_of_an_address_is_known() {
        let begin = enter as *const () as usize;
        let Place::Before(after) = place(begin) else {
            panic!("it begins there");
        };
        assert_eq!(place(after), Place::After);
        assert_eq!(place(after - 1), Place::Before(after));
        assert_eq!(place(after + 1), Place::Elsewhere);
        assert_eq!(place(begin - 1), Place::Elsewhere);
    }
}
