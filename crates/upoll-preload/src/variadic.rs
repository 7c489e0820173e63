//! Variadic functions of the C library. Their arguments are passed on unchanged, after the objects
//! concerned were demoted.

use std::ffi::{c_int, c_void};

use upoll::Errno;
use upoll::internal::own_fds;

use crate::files::demote;
use crate::next::{Next, listed};
use crate::process::demote_inherited;
use upoll_fds::internal::errno::set_errno;

static NEXT: [Next; 5] = [
    Next::new(c"execl"),
    Next::new(c"execlp"),
    Next::new(c"execle"),
    Next::new(c"dprintf"),
    Next::new(c"__dprintf_chk"),
];
listed!(NEXT[0]);
listed!(NEXT[1]);
listed!(NEXT[2]);
listed!(NEXT[3]);
listed!(NEXT[4]);

// The functions below run before the C library's. They get the index of the function and its first
// argument, and return the address at which to go on.

extern "C" fn before_exec(which: usize, _: usize) -> *mut c_void {
    demote_inherited();
    NEXT[which].address()
}

#[expect(clippy::cast_possible_truncation, reason = "the function takes an int")]
extern "C" fn before_printing(which: usize, fd: usize) -> *mut c_void {
    let fd = fd as c_int;
    if own_fds::is_own(fd) {
        return refuse as extern "C" fn() -> c_int as *mut c_void;
    }
    demote(fd);
    NEXT[which].address()
}

/// Prints nothing: for the program the fd is not open.
extern "C" fn refuse() -> c_int {
    set_errno(Errno::BADF);
    -1
}

/// Defines functions that call `before` and continue in the C library's, with their arguments
/// unchanged.
macro_rules! pass_on {
    ($($name:ident = $which:literal after $before:ident;)*) => { $(
        #[doc = concat!("`", stringify!($name), "`")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        #[cfg(target_arch = "x86_64")]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                ".cfi_startproc",
                "sub rsp, 184",
                ".cfi_adjust_cfa_offset 184",
                "mov [rsp + 128], rdi", "mov [rsp + 136], rsi", "mov [rsp + 144], rdx",
                "mov [rsp + 152], rcx", "mov [rsp + 160], r8", "mov [rsp + 168], r9",
                "mov [rsp + 176], rax",
                "movups [rsp], xmm0", "movups [rsp + 16], xmm1",
                "movups [rsp + 32], xmm2", "movups [rsp + 48], xmm3",
                "movups [rsp + 64], xmm4", "movups [rsp + 80], xmm5",
                "movups [rsp + 96], xmm6", "movups [rsp + 112], xmm7",
                "mov rsi, rdi",
                concat!("mov edi, ", $which),
                "call {before}",
                "mov r11, rax",
                "movups xmm0, [rsp]", "movups xmm1, [rsp + 16]",
                "movups xmm2, [rsp + 32]", "movups xmm3, [rsp + 48]",
                "movups xmm4, [rsp + 64]", "movups xmm5, [rsp + 80]",
                "movups xmm6, [rsp + 96]", "movups xmm7, [rsp + 112]",
                "mov rdi, [rsp + 128]", "mov rsi, [rsp + 136]", "mov rdx, [rsp + 144]",
                "mov rcx, [rsp + 152]", "mov r8, [rsp + 160]", "mov r9, [rsp + 168]",
                "mov rax, [rsp + 176]",
                "add rsp, 184",
                ".cfi_adjust_cfa_offset -184",
                "jmp r11",
                ".cfi_endproc",
                before = sym $before,
            );
        }

        #[doc = concat!("`", stringify!($name), "`")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        #[cfg(target_arch = "aarch64")]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-208]!",
                ".cfi_adjust_cfa_offset 208",
                ".cfi_rel_offset x29, 0",
                ".cfi_rel_offset x30, 8",
                "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
                "stp q0, q1, [sp, #80]", "stp q2, q3, [sp, #112]",
                "stp q4, q5, [sp, #144]", "stp q6, q7, [sp, #176]",
                "mov x1, x0",
                concat!("mov x0, #", $which),
                "bl {before}",
                "mov x16, x0",
                "ldp q6, q7, [sp, #176]", "ldp q4, q5, [sp, #144]",
                "ldp q2, q3, [sp, #112]", "ldp q0, q1, [sp, #80]",
                "ldp x6, x7, [sp, #64]", "ldp x4, x5, [sp, #48]",
                "ldp x2, x3, [sp, #32]", "ldp x0, x1, [sp, #16]",
                "ldp x29, x30, [sp], #208",
                ".cfi_adjust_cfa_offset -208",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "br x16",
                ".cfi_endproc",
                before = sym $before,
            );
        }
    )* };
}

pass_on! {
    execl = 0 after before_exec;
    execlp = 1 after before_exec;
    execle = 2 after before_exec;
    dprintf = 3 after before_printing;
    __dprintf_chk = 4 after before_printing;
}
