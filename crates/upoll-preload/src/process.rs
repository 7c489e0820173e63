//! What lets other processes or the C library's inner calls see an object: it is handed over to the
//! kernel first.
//!
//! `fork(2)` is noticed by `pthread_atfork(3)` in [`upoll_fds`].

use std::ffi::{c_char, c_int, c_void};

use libc::{pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

use crate::errno::give;
use crate::next::next;
use crate::settings::{serve_nothing_new, serve_nothing_new_meanwhile};
use crate::{handlers, raw, stats};

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
pub unsafe extern "C-unwind" fn vfork() -> pid_t {
    fork()
}

/// `_Fork(3)`, as a `fork(2)`: what has to be done before and after is done by handlers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _Fork() -> pid_t {
    fork()
}

pub(crate) fn fork() -> pid_t {
    // SAFETY: the caller is a program that asks for a child.
    unsafe { libc::fork() }
}

/// Whoever shares this memory must not find objects in it: not a child, which has a table of its own; nor
/// a thread that the C library does not know of, by whose word a process of one thread goes without locked
/// instructions. Nor are numbers that a child shares to lead to objects in a memory that it does not share.
/// As long as both run, nothing that comes may be found either.
pub(crate) fn before_clone(flags: usize) {
    let has = |flag: c_int| flags & flag.cast_unsigned() as usize != 0;
    let shares = (has(libc::CLONE_VM), has(libc::CLONE_FILES));
    if has(libc::CLONE_VM) && !has(libc::CLONE_SIGHAND) {
        handlers::before_actions_part();
    }
    match (shares, has(libc::CLONE_VFORK)) {
        // It has all of this thread's, which waits.
        ((true, true), true) | ((false, false), _) => upoll_fds::demote_all(),
        ((true, false), true) => {
            serve_nothing_new_meanwhile();
            upoll_fds::demote_all();
        }
        // What it leaves open is its parent's, too.
        _ => {
            serve_nothing_new();
            upoll_fds::leave_all_to_the_kernel();
        }
    }
}

#[doc = "`_exit(2)`: statistics come first."]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn _exit(status: c_int) -> ! {
    stats::report();
    loop {
        let _ = raw::kernel!(SYS_exit_group, status);
    }
}

#[doc = "`_Exit(3)`"]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn _Exit(status: c_int) -> ! {
    _exit(status)
}

#[doc = "`execve(2)`"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execve(
    path: *const c_char,
    args: Strings,
    variables: Strings,
) -> c_int {
    demote_inherited();
    give(raw::kernel!(SYS_execve, path, args, variables))
}

#[doc = "`execveat(2)`"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execveat(
    folder: c_int,
    path: *const c_char,
    args: Strings,
    variables: Strings,
    flags: c_int,
) -> c_int {
    demote_inherited();
    give(raw::kernel!(
        SYS_execveat,
        folder,
        path,
        args,
        variables,
        flags
    ))
}

/// Functions of the C library that execute a program in place of this one.
macro_rules! execute {
    ($($symbol:literal $name:ident($($argument:ident: $kind:ty),*);)*) => { $(
        #[doc = concat!("`", stringify!($name), "(3)`")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> c_int {
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
    c"system" system(command: *const c_char);
}

#[doc = "`popen(3)`"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn popen(command: *const c_char, mode: *const c_char) -> *mut c_void {
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
        pub unsafe extern "C-unwind" fn $name(
            // Of a `pid_t`, or of a descriptor.
            process: *mut c_int,
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
                    *mut c_int,
                    *const c_char,
                    *const posix_spawn_file_actions_t,
                    *const posix_spawnattr_t,
                    Strings,
                    Strings
                ) -> c_int,
                (process, path, actions, attributes, args, variables),
                or libc::ENOSYS
            )
        }
    )* };
}

spawn! {
    c"posix_spawn" posix_spawn;
    c"posix_spawnp" posix_spawnp;
    c"pidfd_spawn" pidfd_spawn;
    c"pidfd_spawnp" pidfd_spawnp;
}
