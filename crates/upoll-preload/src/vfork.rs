//! `vfork(2)`: the child has its parent's memory and stack, and the parent waits until it executes a program
//! or ends.
//!
//! The child returns from the function that the parent is still in, and overwrites the stack below it. So
//! nothing may be kept there. The return address is in a register during the system call, and [`end`]
//! needs nothing else.
//!
//! A handler that leaves by `siglongjmp` between [`begin`] and the system call leaves the wait counted:
//! nothing new is served from then on.

use libc::pid_t;

use crate::kernel;
use crate::process::{self, Cloning};
use upoll_fds::internal::errno::give;

/// Prepares the system call: demotes everything, and nothing new is served until [`end`]. Returns false,
/// and has begun nothing, if an object cannot be demoted: the child could take its fd from its parent.
extern "C" fn begin() -> bool {
    let cloning = Cloning::begin((libc::CLONE_VM | libc::CLONE_VFORK).cast_unsigned() as usize);
    let is_all = matches!(cloning, Cloning::Wait { is_all: true, .. });
    if !is_all {
        cloning.end();
    }
    is_all
}

/// Ends the wait in the parent. Gets the kernel's result.
extern "C" fn end(result: usize) -> pid_t {
    let waited = Cloning::Wait {
        shares_fds: false,
        is_all: true,
    };
    waited.end();
    give(kernel::result(result))
}

/// Forks instead, for a child that must not have this memory.
extern "C" fn fork() -> pid_t {
    process::fork()
}

/// The function, by its two names.
macro_rules! vfork {
    ($($(#[$what:meta])* $name:ident;)*) => { $(
        $(#[$what])*
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() -> pid_t {
            std::arch::naked_asm!(
                ".cfi_startproc",
                "sub rsp, 8",
                ".cfi_adjust_cfa_offset 8",
                "call {begin}",
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "test al, al",
                "jz {fork}",
                // The kernel preserves this register.
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                ".cfi_register rip, rdi",
                "mov eax, {number}",
                "syscall",
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                ".cfi_offset rip, -8",
                "test rax, rax",
                "jz 2f",
                "mov rdi, rax",
                "jmp {end}",
                "2:",
                "ret",
                ".cfi_endproc",
                begin = sym begin,
                fork = sym fork,
                number = const libc::SYS_vfork,
                end = sym end,
            )
        }

        $(#[$what])*
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() -> pid_t {
            std::arch::naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-16]!",
                ".cfi_adjust_cfa_offset 16",
                ".cfi_rel_offset x29, 0",
                ".cfi_rel_offset x30, 8",
                "bl {begin}",
                "ldp x29, x30, [sp], #16",
                ".cfi_adjust_cfa_offset -16",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "tbz w0, #0, 3f",
                // The return address stays in x30, which the kernel preserves. No stack is passed: the
                // child uses this one.
                "mov x0, #{flags}",
                "mov x1, #0",
                "mov x2, #0",
                "mov x3, #0",
                "mov x4, #0",
                "mov x8, #{number}",
                "svc #0",
                "cbz x0, 2f",
                "b {end}",
                "2:",
                "ret",
                "3:",
                "b {fork}",
                ".cfi_endproc",
                begin = sym begin,
                fork = sym fork,
                flags = const libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
                number = const libc::SYS_clone,
                end = sym end,
            )
        }

    )* };
}

vfork! {
    /// `vfork(2)`
    vfork;
    /// `vfork(2)`, by the C library's other name.
    __vfork;
}
