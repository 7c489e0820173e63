//! Calls after which other processes, or inner calls of the C library, can use an object. The
//! object is demoted before the call.
//!
//! `fork(2)` is noticed by `pthread_atfork(3)` in [`upoll_fds`].

use std::ffi::{c_char, c_int, c_void};

use libc::{pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};
use upoll::Errno;
use upoll_fds::internal::{self, figures, plain_sets};

use crate::cancel::deferred;
use crate::next::{Next, listed, next};
use crate::settings::{serve_again, serve_nothing_new, serve_nothing_new_meanwhile};
use crate::{cancel, files, handlers, kernel, settings, stats, top};
use upoll_fds::internal::errno::give;

type Strings = *const *mut c_char;

/// Demotes the objects that an executed program inherits. A thread may be cancelled at any instruction before and after
/// that.
pub(crate) fn demote_inherited() {
    deferred!(inherited_body())
}

#[inline(never)]
fn inherited_body() {
    plain_sets::forget_all();
    for fd in internal::user_level_fds() {
        let flags = kernel::call!(SYS_fcntl, fd, libc::F_GETFD);
        if flags.is_ok_and(|flags| flags & libc::FD_CLOEXEC.cast_unsigned() as usize == 0) {
            // An object that cannot be demoted is lost to that program.
            let _ = upoll_fds::demote(fd);
        }
    }
}

/// Demotes all objects that can be demoted, as [`demote_inherited`] does.
fn demote_all() {
    deferred!(all_body())
}

#[inline(never)]
fn all_body() {
    upoll_fds::demote_all();
}

static FORK: Next = Next::new(c"_Fork");
listed!(FORK);

/// Registers the handler of forks.
pub(crate) fn prepare() {
    // SAFETY: the handler is never unloaded, as this library is not. If there is no memory for it, the
    // child of a fork serves nothing new if another thread was waiting for a child in this memory.
    unsafe { libc::pthread_atfork(None, None, Some(settings::forget_other_threads)) };
}

/// `_Fork(3)`: it does not run the program's fork handlers, and a signal handler may call it. The child is
/// then limited to calls that are safe in signal handlers. Making a user-level object takes memory, so the
/// child makes none.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _Fork() -> pid_t {
    type Function = unsafe extern "C-unwind" fn() -> pid_t;
    let address = FORK.find();
    if address.is_null() {
        return fork();
    }
    // SAFETY: it is the C library's function of that name, which has this type.
    let function = unsafe { std::mem::transmute::<*mut c_void, Function>(address) };
    internal::begin_unseen_fork();
    // SAFETY: `_Fork` has no preconditions.
    let child = unsafe { function() };
    match child {
        0 => begin_in_the_child(false, false),
        _ => internal::end_unseen_fork(),
    }
    child
}

/// Prepares a child that has a memory of its own, where the C library does not run fork handlers.
fn begin_in_the_child(shares_fds: bool, serves_new: bool) {
    // SAFETY: called only where `_Fork` or `clone` has just returned 0, in a child with a memory of its
    // own, after `begin_unseen_fork`.
    unsafe {
        match shares_fds {
            true => internal::end_unseen_fork_with_fds(),
            false => internal::end_unseen_fork_in_the_child(),
        }
    }
    settings::forget_other_threads();
    if !serves_new {
        serve_nothing_new();
    }
    cancel::forget_other_threads();
    handlers::own_again();
    stats::begin_anew();
}

/// Calls the C library's `fork(3)`. The program's own `fork`, if it defines one, may end up here.
pub(crate) fn fork() -> pid_t {
    next!(c"fork" as fn() -> pid_t, ())
}

/// State from before a `clone(2)` until its child has been made.
pub(crate) enum Cloning {
    /// The child gets a memory of its own.
    Fork {
        shares_fds: bool,
        serves_new: bool,
    },
    /// The thread waits for the child. The child has fds of its own unless it `shares_fds`.
    Wait {
        shares_fds: bool,
        /// The kernel serves every object.
        is_all: bool,
    },
    Thread,
    /// The child gets a memory of its own, in which the library has no state.
    Untouched,
}

impl Cloning {
    /// Demotes objects before a `clone` whose child could misuse them:
    ///
    /// - A child with this memory and fds of its own would find objects behind the wrong fds.
    /// - A thread that the C library does not know may use the thread-local records of the thread that
    ///   made it.
    /// - A child with these fds and another memory would find fds without their objects.
    ///
    /// As long as both run, no new object may be made either.
    pub(crate) fn begin(flags: usize) -> Self {
        let has = |flag: c_int| flags & flag.cast_unsigned() as usize != 0;
        let [memory, fds] = [has(libc::CLONE_VM), has(libc::CLONE_FILES)];
        if !memory && !settings::is_any_kind_served() && !stats::is_on() {
            return Cloning::Untouched;
        }
        if !memory {
            if fds {
                // A new fd of the child would be open in its parent, too.
                serve_nothing_new();
            }
            internal::begin_unseen_fork();
            // Another thread may be in the midst of an allocation, which never ends in the child. Before the
            // first object is made, no thread can be.
            let serves_new = !fds && (!handlers::has_begun() || files::is_only_thread());
            return Cloning::Fork {
                shares_fds: fds,
                serves_new,
            };
        }
        let waits = has(libc::CLONE_VFORK);
        match waits {
            false => serve_nothing_new(),
            true if !fds => serve_nothing_new_meanwhile(),
            true => {}
        }
        match has(libc::CLONE_SIGHAND) {
            true => {}
            false if waits && fds => handlers::before_actions_part(),
            false => handlers::before_actions_part_there(stats::is_on()),
        }
        if !waits {
            internal::leave_all_to_the_kernel();
            return Cloning::Thread;
        }
        Cloning::Wait {
            shares_fds: fds,
            is_all: internal::leave_all_to_the_kernel(),
        }
    }

    /// Ends the preparations, in the parent.
    pub(crate) fn end(self) {
        match self {
            Cloning::Fork { .. } => internal::end_unseen_fork(),
            Cloning::Wait {
                shares_fds: false, ..
            } => serve_again(),
            Cloning::Wait { .. } | Cloning::Thread | Cloning::Untouched => {}
        }
    }

    /// Ends the preparations, in the child.
    fn begin_in_the_child(&self) {
        if let Cloning::Fork {
            shares_fds,
            serves_new,
        } = *self
        {
            begin_in_the_child(shares_fds, serves_new);
        }
    }
}

type Function = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;

/// Calls `function` on the stack that ends at `stack`. Ends the thread with the result.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn enter(stack: *mut c_void, function: Function, argument: *mut c_void) -> ! {
    std::arch::naked_asm!(
        ".cfi_startproc",
        // End of unwinding.
        ".cfi_undefined rip",
        "and rdi, -16",
        "mov rsp, rdi",
        "xor ebp, ebp",
        "mov rdi, rdx",
        "call rsi",
        "mov edi, eax",
        "mov eax, {exit}",
        "syscall",
        "ud2",
        ".cfi_endproc",
        exit = const libc::SYS_exit,
    )
}

/// Calls `function` on the stack that ends at `stack`. Ends the thread with the result.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn enter(stack: *mut c_void, function: Function, argument: *mut c_void) -> ! {
    std::arch::naked_asm!(
        ".cfi_startproc",
        // End of unwinding.
        ".cfi_undefined x30",
        "and x0, x0, #-16",
        "mov sp, x0",
        "mov x29, #0",
        "mov x0, x2",
        "blr x1",
        "mov x8, #{exit}",
        "svc #0",
        "brk #0",
        ".cfi_endproc",
        exit = const libc::SYS_exit,
    )
}

/// `clone(2)` with a copy of the memory and a new stack for the child. The child nevertheless returns from
/// here on its copy of the current stack.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn clone_here(
    flags: usize,
    stack: usize,
    parent: usize,
    fourth: usize,
    fifth: usize,
) -> usize {
    std::arch::naked_asm!(
        "mov r10, rcx",
        // The kernel preserves this register.
        "mov r9, rsp",
        "mov eax, {number}",
        "syscall",
        "mov rsp, r9",
        "ret",
        number = const libc::SYS_clone,
    )
}

/// `clone(2)` with a copy of the memory and a new stack for the child. The child nevertheless returns from
/// here on its copy of the current stack.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn clone_here(
    flags: usize,
    stack: usize,
    parent: usize,
    fourth: usize,
    fifth: usize,
) -> usize {
    std::arch::naked_asm!(
        // The kernel preserves this register.
        "mov x9, sp",
        "mov x8, #{number}",
        "svc #0",
        "mov sp, x9",
        "ret",
        number = const libc::SYS_clone,
    )
}

/// The arguments of `clone(2)`, as the C library's function takes them.
struct Arguments {
    function: Option<Function>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_place: *mut pid_t,
    storage: *mut c_void,
    child_place: *mut pid_t,
}

impl Arguments {
    /// Makes a child that has a copy of the memory. The child prepares itself on its copy of this stack,
    /// because the new stack may be too small.
    unsafe fn clone_memory(self, cloning: &Cloning) -> Result<usize, Errno> {
        // The C library refuses these.
        let Some(function) = self.function.filter(|_| !self.stack.is_null()) else {
            return Err(Errno::INVAL);
        };
        // As in the C library: with room for the two arguments that the child takes from its stack.
        let stack = (self.stack.addr() & !15) - 16;
        let flags = self.flags.cast_unsigned() as usize;
        let [parent, child] = [self.parent_place.addr(), self.child_place.addr()];
        let storage = self.storage.addr();
        let rest = match cfg!(target_arch = "x86_64") {
            true => [child, storage],
            false => [storage, child],
        };
        // SAFETY: the contract of the caller.
        let made = kernel::result(unsafe { clone_here(flags, stack, parent, rest[0], rest[1]) });
        if made == Ok(0) {
            cloning.begin_in_the_child();
            // SAFETY: as above.
            unsafe { enter(self.stack, function, self.argument) };
        }
        made
    }

    /// Makes a child that shares the memory, by the C library's function.
    unsafe fn clone_beside(self) -> c_int {
        static CLONE: Next = Next::new(c"clone");
        listed!(CLONE);
        type Clone = unsafe extern "C-unwind" fn(
            Option<Function>,
            *mut c_void,
            c_int,
            *mut c_void,
            *mut pid_t,
            *mut c_void,
            *mut pid_t,
        ) -> c_int;
        // SAFETY: it is the C library's function of that name, which has this type.
        let clone = unsafe { std::mem::transmute::<*mut c_void, Clone>(CLONE.address()) };
        let [parent, child] = [self.parent_place, self.child_place];
        // SAFETY: the caller's contract.
        unsafe {
            clone(
                self.function,
                self.stack,
                self.flags,
                self.argument,
                parent,
                self.storage,
                child,
            )
        }
    }
}

/// Names of `clone(2)`. It is variadic in C; an argument that was not passed has an arbitrary value. Without
/// the flag for it, it is not used.
macro_rules! clones {
    ($($name:ident;)*) => { $(
        #[doc = "`clone(2)`"]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            function: Option<Function>,
            stack: *mut c_void,
            flags: c_int,
            argument: *mut c_void,
            parent_place: *mut pid_t,
            storage: *mut c_void,
            child_place: *mut pid_t,
        ) -> c_int {
            let arguments = Arguments {
                function,
                stack,
                flags,
                argument,
                parent_place,
                storage,
                child_place,
            };
            let cloning = Cloning::begin(flags.cast_unsigned() as usize);
            let child = match cloning {
                // SAFETY: the caller's contract.
                Cloning::Fork { .. } => give(unsafe { arguments.clone_memory(&cloning) }),
                // SAFETY: as above.
                _ => unsafe { arguments.clone_beside() },
            };
            cloning.end();
            child
        }
    )* };
}

clones! {
    clone;
    __clone;
}

/// `clone(2)` as a system call. A child with a stack of its own does not return from here.
///
/// # Safety
/// That of the call.
pub(crate) unsafe fn raw_clone(
    flags: usize,
    call: impl FnOnce() -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let cloning = Cloning::begin(flags);
    let child = call();
    match child {
        Ok(0) => cloning.begin_in_the_child(),
        _ => cloning.end(),
    }
    child
}

#[doc = "`_exit(2)`: statistics come first."]
#[unsafe(no_mangle)]
#[unsafe(link_section = "upoll_fork")]
pub extern "C-unwind" fn _exit(status: c_int) -> ! {
    if stats::is_on() {
        stats::report();
    }
    if figures::are_shown() {
        top::end();
    }
    loop {
        let _ = kernel::call!(SYS_exit_group, status);
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
    give(kernel::call!(SYS_execve, path, args, variables))
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
    give(kernel::call!(
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
    c"wordexp" wordexp(words: *const c_char, result: *mut c_void, flags: c_int);
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

/// Functions that start a program. Their file actions may name any fd.
macro_rules! spawn {
    ($($symbol:literal $name:ident;)*) => { $(
        #[doc = concat!("`", stringify!($name), "(3)`")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            // A `pid_t`, or an fd.
            process: *mut c_int,
            path: *const c_char,
            actions: *const posix_spawn_file_actions_t,
            attributes: *const posix_spawnattr_t,
            args: Strings,
            variables: Strings,
        ) -> c_int {
            match actions.is_null() {
                true => demote_inherited(),
                false => demote_all(),
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
