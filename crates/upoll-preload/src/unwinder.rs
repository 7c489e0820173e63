//! The functions of `libgcc_s` by which a cancelled thread unwinds its stack, found at their first use.
//!
//! The standard library names them, so the loader would load `libgcc_s` into every program beside this
//! library: half of what that costs a program at its start. Most programs never unwind. The C library too
//! loads `libgcc_s` only when a thread is cancelled or ends by `pthread_exit`.
//!
//! The names are hidden: programs that unwind have the functions of their own.

use std::arch::global_asm;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Returns the address of the function whose name has this index.
extern "C" fn find(index: usize) -> *mut c_void {
    let found = FOUND[index].load(Ordering::Relaxed);
    if !found.is_null() {
        return found;
    }
    let (library, name) = (c"libgcc_s.so.1".as_ptr(), NAMES[index].as_ptr());
    // SAFETY: both are C strings. A null handle stands for the libraries of the program.
    let found = unsafe { libc::dlsym(libc::dlopen(library, libc::RTLD_NOW), name) };
    if found.is_null() {
        // So does the C library without it.
        // SAFETY: it needs nothing.
        unsafe { libc::abort() };
    }
    FOUND[index].store(found, Ordering::Relaxed);
    found
}

/// Defines functions that go on in those of `libgcc_s`, with their arguments and their caller's frame.
macro_rules! forward {
    ($($name:literal = $index:literal;)*) => {
        const NAMES: &[&CStr] = &[$(
            match CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            }
        ),*];

        static FOUND: [AtomicPtr<c_void>; NAMES.len()] =
            [const { AtomicPtr::new(std::ptr::null_mut()) }; NAMES.len()];

        $(
            #[cfg(target_arch = "x86_64")]
            global_asm!(
                ".pushsection .text",
                concat!(".globl ", $name),
                concat!(".hidden ", $name),
                concat!(".type ", $name, ", @function"),
                concat!($name, ":"),
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                concat!("mov edi, ", $index),
                "call {find}",
                "mov r11, rax",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                "jmp r11",
                concat!(".size ", $name, ", . - ", $name),
                ".popsection",
                find = sym find,
            );

            #[cfg(target_arch = "aarch64")]
            global_asm!(
                ".pushsection .text",
                concat!(".globl ", $name),
                concat!(".hidden ", $name),
                concat!(".type ", $name, ", @function"),
                concat!($name, ":"),
                "stp x29, x30, [sp, #-80]!",
                "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
                concat!("mov x0, #", $index),
                "bl {find}",
                "mov x16, x0",
                "ldp x6, x7, [sp, #64]", "ldp x4, x5, [sp, #48]",
                "ldp x2, x3, [sp, #32]", "ldp x0, x1, [sp, #16]",
                "ldp x29, x30, [sp], #80",
                "br x16",
                concat!(".size ", $name, ", . - ", $name),
                ".popsection",
                find = sym find,
            );
        )*
    };
}

forward! {
    "_Unwind_Backtrace" = 0;
    "_Unwind_GetDataRelBase" = 1;
    "_Unwind_GetIP" = 2;
    "_Unwind_GetIPInfo" = 3;
    "_Unwind_GetLanguageSpecificData" = 4;
    "_Unwind_GetRegionStart" = 5;
    "_Unwind_GetTextRelBase" = 6;
    "_Unwind_RaiseException" = 7;
    "_Unwind_Resume" = 8;
    "_Unwind_SetGR" = 9;
    "_Unwind_SetIP" = 10;
    "_Unwind_GetCFA" = 11;
    "_Unwind_DeleteException" = 12;
    "_Unwind_FindEnclosingFunction" = 13;
}
