//! What lets other processes or the C library's inner calls see an object: it is handed over to the
//! kernel first.
//!
//! `fork(2)` is noticed by `pthread_atfork(3)` in [`upoll_fds`].

use std::ffi::{c_char, c_int, c_void};

use libc::{pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

use crate::errno::give;
use crate::next::{Next, next};
use crate::{raw, stats};

type Strings = *const *mut c_char;

/// Hands over what a program that is executed inherits.
pub(crate) fn demote_inherited() {
    for fd in upoll_fds::user_level_numbers() {
        let flags = raw::kernel!(SYS_fcntl, fd, libc::F_GETFD);
        if flags.is_ok_and(|flags| flags & libc::FD_CLOEXEC.cast_unsigned() as usize == 0) {
            // What cannot be is lost to that program.
            let _ = upoll_fds::demote(fd);
        }
    }
}

/// `vfork(2)`, as a `fork(2)`: the child's calls must not change its parent's table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() -> pid_t {
    // SAFETY: the caller's contract, and a fork asks for less than a vfork.
    unsafe { libc::fork() }
}

#[doc = "`_exit(2)`: statistics come first."]
#[unsafe(no_mangle)]
pub extern "C" fn _exit(status: c_int) -> ! {
    stats::report();
    loop {
        let _ = raw::kernel!(SYS_exit_group, status);
    }
}

#[doc = "`_Exit(3)`"]
#[unsafe(no_mangle)]
pub extern "C" fn _Exit(status: c_int) -> ! {
    _exit(status)
}

#[doc = "`execve(2)`"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, args: Strings, variables: Strings) -> c_int {
    demote_inherited();
    give(raw::kernel!(SYS_execve, path, args, variables))
}

/// Functions of the C library that execute a program in place of this one.
macro_rules! execute {
    ($($symbol:literal $name:ident($($argument:ident: $kind:ty),*);)*) => { $(
        #[doc = concat!("`", stringify!($name), "(3)`")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            demote_inherited();
            next!($symbol as fn($($kind),*) -> c_int, ($($argument),*))
        }
    )* };
}

execute! {
    c"execv" execv(path: *const c_char, args: Strings);
    c"execvp" execvp(file: *const c_char, args: Strings);
    c"execvpe" execvpe(file: *const c_char, args: Strings, variables: Strings);
    c"fexecve" fexecve(fd: c_int, args: Strings, variables: Strings);
    c"execveat" execveat(
        folder: c_int, path: *const c_char, args: Strings, variables: Strings, flags: c_int
    );
    c"system" system(command: *const c_char);
}

#[doc = "`popen(3)`"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> *mut c_void {
    demote_inherited();
    next!(
        c"popen" as fn(*const c_char, *const c_char) -> *mut c_void,
        (command, mode)
    )
}

/// The two that start a program. Their file actions may name any number.
macro_rules! spawn {
    ($($symbol:literal $name:ident;)*) => { $(
        #[doc = concat!("`", stringify!($name), "(3)`")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            process: *mut pid_t,
            path: *const c_char,
            actions: *const posix_spawn_file_actions_t,
            attributes: *const posix_spawnattr_t,
            args: Strings,
            variables: Strings,
        ) -> c_int {
            match actions.is_null() {
                true => demote_inherited(),
                false => upoll_fds::demote_all(),
            }
            next!(
                $symbol as fn(
                    *mut pid_t,
                    *const c_char,
                    *const posix_spawn_file_actions_t,
                    *const posix_spawnattr_t,
                    Strings,
                    Strings
                ) -> c_int,
                (process, path, actions, attributes, args, variables)
            )
        }
    )* };
}

spawn! {
    c"posix_spawn" posix_spawn;
    c"posix_spawnp" posix_spawnp;
}

/// For the variadic ones, which are passed on with their arguments as they came: hands over, and
/// says where to go on.
extern "C" fn before_execl(which: usize) -> *mut c_void {
    static NEXT: [Next; 3] = [
        Next::new(c"execl"),
        Next::new(c"execlp"),
        Next::new(c"execle"),
    ];
    demote_inherited();
    NEXT[which].address()
}

/// A function that calls `before_execl` and goes on with the C library's, its arguments untouched.
macro_rules! pass_on_variadic {
    ($($name:ident = $which:literal;)*) => { $(
        #[doc = concat!("`", stringify!($name), "(3)`")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        #[cfg(target_arch = "x86_64")]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                concat!("mov edi, ", $which),
                "call {before}",
                "mov r11, rax",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                "jmp r11",
                before = sym before_execl,
            );
        }

        #[doc = concat!("`", stringify!($name), "(3)`")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        #[cfg(target_arch = "aarch64")]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
                concat!("mov x0, #", $which),
                "bl {before}",
                "mov x16, x0",
                "ldp x6, x7, [sp, #64]", "ldp x4, x5, [sp, #48]",
                "ldp x2, x3, [sp, #32]", "ldp x0, x1, [sp, #16]",
                "ldp x29, x30, [sp], #80",
                "br x16",
                before = sym before_execl,
            );
        }
    )* };
}

pass_on_variadic! {
    execl = 0;
    execlp = 1;
    execle = 2;
}
