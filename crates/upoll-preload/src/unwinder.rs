//! The functions of `libgcc_s` by which a cancelled thread unwinds its stack, found at their first use.
//!
//! The standard library names them, so the loader would load `libgcc_s` into every program beside this
//! library: half of what that costs a program at its start. Most programs never unwind. The C library too
//! loads `libgcc_s` only when a thread is cancelled or ends by `pthread_exit`.
//!
//! The names are hidden: programs that unwind have the functions of their own.
//!
//! A thread of the type `PTHREAD_CANCEL_ASYNCHRONOUS` is unwound from any instruction of an exported function. So
//! all code has unwind tables, the assembly below as well. A linker may leave them out for the entries of its
//! procedure linkage table (LLD does), so no exported function calls through an entry.

use std::arch::global_asm;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Returns the address of the function whose name has this index.
extern "C" fn find(index: usize) -> *mut c_void {
    let found = FOUND[index].load(Ordering::Acquire);
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
    FOUND[index].store(found, Ordering::Release);
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
                ".cfi_startproc",
                "sub rsp, 56",
                ".cfi_adjust_cfa_offset 56",
                "mov [rsp], rdi", "mov [rsp + 8], rsi", "mov [rsp + 16], rdx",
                "mov [rsp + 24], rcx", "mov [rsp + 32], r8", "mov [rsp + 40], r9",
                "mov [rsp + 48], rax",
                concat!("mov edi, ", $index),
                "call {find}",
                "mov r11, rax",
                "mov rdi, [rsp]", "mov rsi, [rsp + 8]", "mov rdx, [rsp + 16]",
                "mov rcx, [rsp + 24]", "mov r8, [rsp + 32]", "mov r9, [rsp + 40]",
                "mov rax, [rsp + 48]",
                "add rsp, 56",
                ".cfi_adjust_cfa_offset -56",
                "jmp r11",
                ".cfi_endproc",
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
                ".cfi_startproc",
                "stp x29, x30, [sp, #-80]!",
                ".cfi_adjust_cfa_offset 80",
                ".cfi_rel_offset x29, 0",
                ".cfi_rel_offset x30, 8",
                "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
                concat!("mov x0, #", $index),
                "bl {find}",
                "mov x16, x0",
                "ldp x6, x7, [sp, #64]", "ldp x4, x5, [sp, #48]",
                "ldp x2, x3, [sp, #32]", "ldp x0, x1, [sp, #16]",
                "ldp x29, x30, [sp], #80",
                ".cfi_adjust_cfa_offset -80",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "br x16",
                ".cfi_endproc",
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

// The function by which thread-local variables are found, in place of the entry of the procedure linkage table:
// an exported function reads such a variable before it defers cancellation. Only calls refer to
// this name, and it is local to the library; the other name is the C library's function. It is among the
// handlers of forks, which call it: a child of a fork maps the pages of code that it runs anew.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection upoll_fork, \"ax\", @progbits",
    ".symver upoll_tls_get_addr, __tls_get_addr@GLIBC_2.3",
    ".globl __tls_get_addr",
    ".hidden __tls_get_addr",
    ".type __tls_get_addr, @function",
    "__tls_get_addr:",
    ".cfi_startproc",
    "jmp qword ptr [rip + upoll_tls_get_addr@GOTPCREL]",
    ".cfi_endproc",
    ".size __tls_get_addr, . - __tls_get_addr",
    ".popsection",
);
