//! Reading, writing, closing and duplicating by fd.

use std::ffi::{c_int, c_long, c_uint, c_ulong};
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{iovec, size_t, ssize_t};
use upoll::Errno;
use upoll::internal::own_fds;
use upoll_fds::internal::{self, plain_sets};

use crate::cancel::{deferred, exported};
use crate::next::{Next, call_at, listed, pass_on};
use crate::settings;
use crate::stats::{self, Call, is_user_level_or_counted};
use crate::streams;
use crate::{handlers, kernel};
use upoll_fds::internal::errno::{give, give_size};

#[doc = "`close(2)`"]
pub(crate) fn close(fd: c_int) -> c_int {
    stats::count(Call::Close, fd);
    give(upoll_fds::close(fd))
}

/// `close_range(2)`. With `CLOSE_RANGE_UNSHARE`, among other threads, it is as [`unshare`] first.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    deferred!(close_range_body(first, last, flags))
}

#[inline(always)]
fn close_range_body(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const UNSHARE: c_int = libc::CLOSE_RANGE_UNSHARE.cast_signed();
    const KNOWN: c_int = UNSHARE | libc::CLOSE_RANGE_CLOEXEC.cast_signed();
    if flags & UNSHARE != 0 && flags & !KNOWN == 0 && first <= last {
        before_fds_part();
    }
    if flags & libc::CLOSE_RANGE_CLOEXEC.cast_signed() == 0 {
        plain_sets::close_between(first, last);
    }
    give(upoll_fds::close_range(first, last, flags))
}

/// Demotes all objects before a thread gets fds of its own (`CLONE_FILES`), because all threads have
/// the same table. The only thread of a process shares its fds with nobody.
fn before_fds_part() {
    if !is_only_thread() {
        settings::serve_nothing_new();
        upoll_fds::demote_all();
    }
}

/// Returns whether the process has no other thread. Returns false if that is unknown.
pub(crate) fn is_only_thread() -> bool {
    // SAFETY: all zeros is one.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    let (folder, path) = (libc::AT_FDCWD, c"/proc/self/task".as_ptr());
    let known = kernel::call!(SYS_newfstatat, folder, path, &raw mut found, 0);
    // A link for each thread, and two as every directory has.
    known.is_ok() && found.st_nlink == 3
}

#[doc = "`unshare(2)`"]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn unshare(flags: c_int) -> c_int {
    if flags & libc::CLONE_FILES != 0 {
        before_fds_part();
    }
    give(kernel::call!(SYS_unshare, flags))
}

exported! {
    "`closefrom(3)`" closefrom(first: c_int) = closefrom_body;
    "`pipe(2)`" pipe(fds: *mut [c_int; 2]) -> c_int = pipe_body;
    "`pipe2(2)`" pipe2(fds: *mut [c_int; 2], flags: c_int) -> c_int = pipe2_body;
    "`dup(2)`" dup(fd: c_int) -> c_int = dup_body;
    "`dup2(2)`" dup2(fd: c_int, new: c_int) -> c_int = dup2_body;
    "`dup2(2)`, by its other name." __dup2(fd: c_int, new: c_int) -> c_int = dup2_body;
    "`dup3(2)`" dup3(fd: c_int, new: c_int, flags: c_int) -> c_int = dup3_body;
}

#[inline(always)]
fn closefrom_body(first: c_int) {
    let first = first.max(0).cast_unsigned();
    plain_sets::close_between(first, c_uint::MAX);
    // Like the C library's function it cannot fail; the kernel has had the call since 5.9.
    let _ = upoll_fds::close_range(first, c_uint::MAX, 0);
}

#[doc = "`read(2)`"]
pub(crate) unsafe fn read(fd: c_int, buffer: *mut u8, count: size_t) -> ssize_t {
    stats::count(Call::Read, fd);
    // SAFETY: the caller's contract.
    give_size(unsafe { upoll_fds::read(fd, buffer, count) })
}

#[doc = "`read(2)` of a fortified program."]
pub(crate) unsafe fn read_chk(fd: c_int, buffer: *mut u8, count: size_t, room: size_t) -> ssize_t {
    if count > room {
        chk_fail();
    }
    // SAFETY: the caller's contract.
    unsafe { read(fd, buffer, count) }
}

/// Ends a fortified program that passes too small a buffer, as the C library does.
pub(crate) fn chk_fail() -> ! {
    unsafe extern "C" {
        fn __chk_fail() -> !;
    }
    // SAFETY: it needs nothing.
    unsafe { __chk_fail() }
}

#[doc = "`write(2)`"]
pub(crate) unsafe fn write(fd: c_int, buffer: *const u8, count: size_t) -> ssize_t {
    stats::count(Call::Write, fd);
    // SAFETY: the caller's contract.
    give_size(unsafe { upoll_fds::write(fd, buffer, count) })
}

#[doc = "`readv(2)`"]
pub(crate) unsafe fn readv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
    stats::count(Call::Read, fd);
    // SAFETY: the caller's contract.
    give_size(unsafe { upoll_fds::readv(fd, list, count) })
}

#[doc = "`writev(2)`"]
pub(crate) unsafe fn writev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
    stats::count(Call::Write, fd);
    // SAFETY: the caller's contract.
    give_size(unsafe { upoll_fds::writev(fd, list, count) })
}

/// # Safety
/// As the call.
#[inline(always)]
unsafe fn pipe_body(fds: *mut [c_int; 2]) -> c_int {
    // SAFETY: the caller's contract.
    match unsafe { make_pipe(fds, 0) } {
        Some(made) => made,
        None => {
            pass_on!("pipe", fn(*mut [c_int; 2]) -> c_int, (fds));
            give(kernel::call!(SYS_pipe2, fds, 0))
        }
    }
}

/// # Safety
/// As the call.
#[inline(always)]
unsafe fn pipe2_body(fds: *mut [c_int; 2], flags: c_int) -> c_int {
    // SAFETY: the caller's contract.
    match unsafe { make_pipe(fds, flags) } {
        Some(made) => made,
        None => {
            pass_on!("pipe2", fn(*mut [c_int; 2], c_int) -> c_int, (fds, flags));
            give(kernel::call!(SYS_pipe2, fds, flags))
        }
    }
}

/// Makes a user-level pipe. None if pipes are left to the kernel.
///
/// # Safety
/// As `pipe2`.
unsafe fn make_pipe(fds: *mut [c_int; 2], flags: c_int) -> Option<c_int> {
    let made = handlers::make_user_level(
        || settings::is_user_level(Call::Pipe),
        // SAFETY: the caller's contract.
        || unsafe { upoll_fds::pipe2(fds, flags) },
    );
    stats::count_as(Call::Pipe, matches!(made, Some(Ok(()))));
    let made = made?;
    if made.is_ok() {
        // SAFETY: the call has just written them.
        for fd in unsafe { fds.read_unaligned() } {
            leave_to_streams(fd);
            settings::recheck(fd);
        }
    }
    Some(give(made))
}

#[inline(always)]
fn dup_body(fd: c_int) -> c_int {
    let copy = plain_sets::begin_copy(fd);
    if copy.is_none() && !is_user_level_or_counted(Call::Dup, fd) {
        pass_on!("dup", fn(c_int) -> c_int, (fd));
    }
    dup_set_or_object(fd, copy)
}

/// Copies a plain set, or an fd that is not for the kernel alone.
#[inline(never)]
fn dup_set_or_object(fd: c_int, copy: Option<usize>) -> c_int {
    if copy.is_some() && !is_user_level_or_counted(Call::Dup, fd) {
        return copied(copy, || give(kernel::call!(SYS_dup, fd)));
    }
    stats::count(Call::Dup, fd);
    give(upoll_fds::dup(fd).inspect(|&new| leave_copy_to_streams(new)))
}

/// Makes a copy `by_the_kernel`, which is of a plain set if there is a `copy` that has begun.
#[inline]
pub(crate) fn copied(copy: Option<usize>, by_the_kernel: impl FnOnce() -> c_int) -> c_int {
    let new = by_the_kernel();
    if let Some(copy) = copy {
        plain_sets::end_copy(copy, new);
    }
    new
}

/// `dup2(2)` or `dup3(2)` by `syscall(2)`: `by_the_kernel` makes the same system call. Returns None if it is
/// not for the kernel alone.
pub(crate) fn duplicate_to(
    fd: c_int,
    new: c_int,
    by_the_kernel: impl FnOnce() -> c_long,
) -> Option<c_long> {
    plain_sets::forget(fd);
    plain_sets::forget(new);
    let _held = own_fds::hold_fds(new);
    (!is_either_user_level(fd, new)).then(by_the_kernel)
}

fn is_either_user_level(fd: c_int, new: c_int) -> bool {
    internal::is_user_level_or_own(new) || is_user_level_or_counted(Call::Dup, fd)
}

/// Begins a copy to the fd `new`. A plain set that has that fd is left to the kernel: it may keep it.
#[inline]
fn begin_copy_to(fd: c_int, new: c_int) -> Option<usize> {
    if fd == new {
        return None;
    }
    plain_sets::forget(new);
    plain_sets::begin_copy(fd)
}

/// Ends the copy of a plain set to the fd of a user-level object: the set is left to the kernel.
fn abandon(fd: c_int, copy: Option<usize>) {
    if let Some(copy) = copy {
        plain_sets::forget(fd);
        plain_sets::end_copy(copy, -1);
    }
}

#[inline(always)]
fn dup2_body(fd: c_int, new: c_int) -> c_int {
    static NEXT: Next = Next::new(c"dup2");
    listed!(NEXT);

    // If the library knows neither fd, there is nothing to do but this.
    let next = NEXT.known();
    let is_known = |fd| plain_sets::has_record(fd) || internal::may_be_user_level_or_own(fd);
    let is_unknown = !is_known(fd) && !is_known(new) && !own_fds::may_take(new);
    if is_unknown && !next.is_null() && !stats::is_on() {
        return call_at!(next, fn(c_int, c_int) -> c_int, (fd, new));
    }
    dup2_known(fd, new, &NEXT)
}

#[inline(never)]
fn dup2_known(fd: c_int, new: c_int, next: &Next) -> c_int {
    let copy = begin_copy_to(fd, new);
    let held = own_fds::hold_fds(new);
    if !is_either_user_level(fd, new) {
        return copied(copy, || {
            pass_on!(by next, fn(c_int, c_int) -> c_int, (fd, new));
            give(kernel::call!(SYS_dup3, fd, new, 0))
        });
    }
    drop(held);
    abandon(fd, copy);
    stats::count(Call::Dup, fd);
    before_redirection(fd, new);
    give(replace(fd, new, || upoll_fds::dup2(fd, new)))
}

#[inline(never)]
fn dup3_body(fd: c_int, new: c_int, flags: c_int) -> c_int {
    let copy = begin_copy_to(fd, new);
    let held = own_fds::hold_fds(new);
    if !is_either_user_level(fd, new) {
        return copied(copy, || {
            pass_on!("dup3", fn(c_int, c_int, c_int) -> c_int, (fd, new, flags));
            give(kernel::call!(SYS_dup3, fd, new, flags))
        });
    }
    drop(held);
    abandon(fd, copy);
    stats::count(Call::Dup, fd);
    before_redirection(fd, new);
    give(replace(fd, new, || upoll_fds::dup3(fd, new, flags)))
}

/// Begins a copy of a plain set, if the command of `fcntl(2)` makes one.
#[inline]
pub(crate) fn begin_copy_by(fd: c_int, command: c_int) -> Option<usize> {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => plain_sets::begin_copy(fd),
        _ => None,
    }
}

/// `fcntl(2)`. It is variadic in C; on every ABI of 64 bits an integer or a pointer is passed there
/// as a named one is.
pub(crate) unsafe fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    stats::count(Call::Control, fd);
    // SAFETY: the caller's contract.
    let result = unsafe { upoll_fds::fcntl(fd, command, argument) };
    if let (libc::F_DUPFD | libc::F_DUPFD_CLOEXEC, Ok(new)) = (command, result) {
        leave_copy_to_streams(new);
    }
    give(result)
}

/// Names of `fstat(2)`: fds of the library's own are not open for the program.
macro_rules! stats_of_files {
    ($($symbol:literal $name:ident($($version:ident)?);)*) => { $(
        #[doc = concat!("`", $symbol, "`: `fstat(2)`.")]
        #[unsafe(export_name = $symbol)]
        pub unsafe extern "C-unwind" fn $name(
            $($version: c_int,)?
            fd: c_int,
            found: *mut libc::stat,
        ) -> c_int {
            if own_fds::is_own(fd) {
                return give(Err::<c_int, _>(Errno::BADF));
            }
            pass_on!(
                $symbol,
                fn($(stats_of_files!(@kind $version),)? c_int, *mut libc::stat) -> c_int,
                ($($version,)? fd, found)
            );
            give(kernel::call!(SYS_fstat, fd, found))
        }
    )* };
    (@kind $version:ident) => { c_int };
}

stats_of_files! {
    "fstat" fstat();
    "fstat64" fstat64();
    "__fxstat" fxstat(version);
    "__fxstat64" fxstat64(version);
}

/// `ioctl(2)`, variadic as `fcntl`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    deferred!(interruptible ioctl_body(fd, request, argument))
}

/// # Safety
/// As the call.
#[inline(never)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the kernel looks at 32 bits"
)]
unsafe fn ioctl_body(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    if may_name_eventfds(request as u32) {
        leave_all_for_devices();
    }
    if adds_an_fd(request as u32) {
        // SAFETY: the caller's contract.
        let allowed = unsafe { before_adding(argument) };
        if allowed.is_err() {
            return give(allowed.map(|()| 0));
        }
    }
    if !is_user_level_or_counted(Call::Control, fd) {
        pass_on!(
            "ioctl",
            fn(c_int, c_ulong, usize) -> c_int,
            (fd, request, argument)
        );
    }
    stats::count(Call::Control, fd);
    // SAFETY: the caller's contract.
    give(unsafe { upoll_fds::ioctl(fd, request as u32, argument) })
}

/// Returns whether an `ioctl(2)` request may name eventfds in its argument. Devices that signal by eventfds
/// are told by the type of their requests; of the last two types only these requests do.
pub(crate) fn may_name_eventfds(request: u32) -> bool {
    let [number, kind, _, _] = request.to_le_bytes();
    match kind {
        // KVM and Nitro Enclaves, vhost, VFIO and IOMMUFD.
        0xae | 0xaf | b';' => true,
        // VDUSE, ACRN, FPGA ports, Microsoft's hypervisor, OpenCAPI.
        0x81 | 0xa2 | 0xb6 | 0xb8 | 0xca => true,
        // `DRM_IOCTL_SYNCOBJ_EVENTFD`, `IOCTL_PRIVCMD_IRQFD` and `IOCTL_PRIVCMD_IOEVENTFD` of Xen.
        b'd' => number == 0xcf,
        b'P' => matches!(number, 8 | 9),
        _ => false,
    }
}

/// Returns whether an `ioctl(2)` request is `SECCOMP_IOCTL_NOTIF_ADDFD`: a supervisor puts an fd of its own into the
/// process that it supervises. The kernel looks at its type and number alone: the structure may be larger.
pub(crate) fn adds_an_fd(request: u32) -> bool {
    request & 0xffff == 0x2103
}

/// Demotes the object that the argument of a request names which [adds an fd](adds_an_fd).
///
/// # Errors
/// `EBADF`: it names an fd of the library's own.
///
/// # Safety
/// As [`internal::read_memory`].
unsafe fn before_adding(argument: usize) -> Result<(), Errno> {
    /// `struct seccomp_notif_addfd`, up to the fd.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Added {
        id: u64,
        flags: u32,
        fd: c_int,
    }
    let place = std::ptr::with_exposed_provenance::<Added>(argument);
    // SAFETY: the caller's contract. The kernel refuses an address that cannot be read.
    if let Ok(added) = unsafe { internal::read_memory(place) } {
        if own_fds::is_own(added.fd) {
            return Err(Errno::BADF);
        }
        demote(added.fd);
    }
    Ok(())
}

/// Demotes everything, for good: the requests of such devices differ too much to find the eventfds in each.
#[cold]
fn leave_all_for_devices() {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    // Virtual processors run by such requests.
    if !IS_DONE.load(Ordering::Acquire) {
        settings::serve_nothing_new();
        upoll_fds::demote_all();
        IS_DONE.store(true, Ordering::Release);
    }
}

/// Demotes the object of `fd`. If it cannot be demoted, the kernel's call does not find its contents.
///
/// An own fd stays as it is: a call that may use one has to [check for that](own_fds::is_own).
pub(crate) fn demote(fd: c_int) {
    plain_sets::forget(fd);
    if upoll_fds::is_user_level(fd) {
        let _ = upoll_fds::demote(fd);
    }
}

/// Demotes an object at one of the first three fds. The C library has streams over them, and its
/// calls are not seen.
pub(crate) fn leave_to_streams(new: c_int) {
    if new <= libc::STDERR_FILENO {
        demote(new);
    }
}

/// Demotes the object of a copy if a stream may be open over the new fd.
fn leave_copy_to_streams(new: c_int) {
    if upoll_fds::is_user_level(new) && streams::may_be_over(new) {
        demote(new);
    }
}

/// Demotes the object of `fd` before `dup2` if a stream may be open over the new fd. Every open fd may have
/// one: the C library is not the only one that has streams.
fn before_redirection(fd: c_int, new: c_int) {
    let may_have_a_stream = || {
        let is_the_kernels = !upoll_fds::is_user_level(new);
        let is_open = || kernel::call!(SYS_fcntl, new, libc::F_GETFD).is_ok();
        is_the_kernels && is_open() || streams::may_be_over(new)
    };
    if fd != new && upoll_fds::is_user_level(fd) && may_have_a_stream() {
        demote(fd);
    }
}

/// Calls `dup`, which makes `new` refer to the file of `fd`. An own fd at `new` is moved to another fd
/// before.
fn replace(
    fd: c_int,
    new: c_int,
    dup: impl FnOnce() -> Result<c_int, Errno>,
) -> Result<c_int, Errno> {
    // A child in its parent's memory has fds of its own: the recorded ones are its parent's.
    if own_fds::is_own(fd) || fd == new || handlers::is_others() {
        return dup();
    }
    // Even if `new` is free by now: another thread could open an own fd there, and record it after `dup` has
    // replaced it.
    let _held = own_fds::hold_fds(new);
    if own_fds::is_own(new) {
        kernel::call!(SYS_fcntl, fd, libc::F_GETFD)?;
    }
    own_fds::replace(new, dup)
}
