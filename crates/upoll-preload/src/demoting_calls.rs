//! Calls that the kernel or the C library makes on an fd: its object is demoted before.

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

use libc::{iovec, size_t, ssize_t};
use upoll::Errno;
use upoll::internal::own_fds;
use upoll_fds::internal::errno::{give, give_size, set_errno};
use upoll_fds::internal::{self, plain_sets};

use crate::cancel::deferred;
use crate::files::demote;
use crate::{kernel, streams};

/// Asynchronous reads and writes, which a thread of the C library makes.
macro_rules! asynchronous {
    ($($symbol:literal $name:ident;)*) => { $(
        #[doc = concat!("`", stringify!($name), "(3)`")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(request: *mut libc::aiocb) -> c_int {
            // SAFETY: the caller's contract.
            unsafe { demote_request(request) };
            crate::next::next!($symbol as fn(*mut libc::aiocb) -> c_int, (request))
        }
    )* };
}

asynchronous! {
    c"aio_read" aio_read;
    c"aio_read64" aio_read64;
    c"aio_write" aio_write;
    c"aio_write64" aio_write64;
}

/// # Safety
/// As [`internal::read_memory`].
unsafe fn demote_request(request: *const libc::aiocb) {
    let place = request.wrapping_byte_add(std::mem::offset_of!(libc::aiocb, aio_fildes));
    // SAFETY: the caller's contract.
    if let Ok(fd) = unsafe { internal::read_memory(place.cast::<c_int>()) } {
        demote(fd);
    }
}

/// Demotes what the requests of `io_submit(2)` name: the file, and the eventfd that is signalled.
///
/// # Safety
/// As [`internal::read_memory`], for the list and for each request.
pub(crate) unsafe fn before_submission(count: c_long, list: *const *const u8) {
    const FILE: usize = 20;
    const FLAGS: usize = 56;
    const EVENTFD: usize = 60;
    const IOCB_FLAG_RESFD: c_int = 1;
    if !plain_sets::may_name_any() {
        return;
    }
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller's contract.
        let Ok(request) = (unsafe { internal::read_memory(list.wrapping_add(at)) }) else {
            return;
        };
        // SAFETY: as above.
        let field = |at| unsafe { internal::read_memory(request.wrapping_add(at).cast::<c_int>()) };
        // The kernel fails with `EFAULT` for a request that cannot be read.
        let (Ok(file), Ok(flags), Ok(eventfd)) = (field(FILE), field(FLAGS), field(EVENTFD)) else {
            return;
        };
        demote(file);
        if flags & IOCB_FLAG_RESFD != 0 {
            demote(eventfd);
        }
    }
}

/// `io_submit(3)` of libaio, which returns the negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn io_submit(
    context: c_ulong,
    count: c_long,
    list: *const *const u8,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { before_submission(count, list) };
    match kernel::call!(SYS_io_submit, context, count, list) {
        Ok(submitted) => c_int::try_from(submitted).unwrap_or(c_int::MAX),
        Err(errno) => -errno.raw(),
    }
}

/// `pidfd_getfd(2)`. The process may be this one, and then the new fd must lead to the same object.
/// User-level objects of other processes cannot be reached.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn pidfd_getfd(pidfd: c_int, target: c_int, flags: c_uint) -> c_int {
    demote(target);
    give(kernel::call!(SYS_pidfd_getfd, pidfd, target, flags))
}

/// Lists of asynchronous reads and writes.
macro_rules! asynchronous_lists {
    ($($symbol:literal $name:ident;)*) => { $(
        #[doc = concat!("`", stringify!($name), "(3)`")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            mode: c_int,
            list: *const *mut libc::aiocb,
            count: c_int,
            event: *mut c_void,
        ) -> c_int {
            for at in 0..usize::try_from(count).unwrap_or(0) {
                // SAFETY: the caller's contract.
                unsafe {
                    if let Ok(request) = internal::read_memory(list.wrapping_add(at)) {
                        demote_request(request);
                    }
                }
            }
            crate::next::next!(
                $symbol as fn(c_int, *const *mut libc::aiocb, c_int, *mut c_void) -> c_int,
                (mode, list, count, event)
            )
        }
    )* };
}

asynchronous_lists! {
    c"lio_listio" lio_listio;
    c"lio_listio64" lio_listio64;
}

/// Calls that the kernel serves, once it has the objects.
macro_rules! by_the_kernel {
    ($($(#[$linkage:meta])? $number:ident: $name:ident(
        $($fd:ident),+; $($argument:ident: $kind:ty),*
    );)*) => { $(
        #[doc = concat!("`", stringify!($name), "(2)`: the kernel's, and the objects as well from then on.")]
        $(#[$linkage])?
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> ssize_t {
            unsafe fn body($($argument: $kind),*) -> ssize_t {
                $(if own_fds::is_own($fd) {
                    return give_size(Err(Errno::BADF));
                })+
                $(demote($fd);)+
                give_size(kernel::call!($number $(, $argument)*))
            }
            deferred!(interruptible body($($argument),*))
        }
    )* };
}

by_the_kernel! {
    SYS_splice: splice(from, to;
        from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, count: size_t, flags: c_uint);
    SYS_tee: tee(from, to; from: c_int, to: c_int, count: size_t, flags: c_uint);
    SYS_vmsplice: vmsplice(fd; fd: c_int, list: *const iovec, count: size_t, flags: c_uint);
    #[unsafe(no_mangle)]
    SYS_sendfile: sendfile(to, from; to: c_int, from: c_int, at: *mut i64, count: size_t);
    #[unsafe(no_mangle)]
    SYS_sendfile: sendfile64(to, from; to: c_int, from: c_int, at: *mut i64, count: size_t);
}

/// The offset's upper half is in the lower one on machines of 64 bits.
const NO_UPPER_HALF: usize = 0;

/// Calls with several buffers that go on at the file's own offset, as `readv` and `writev` do, if theirs is -1.
macro_rules! at_an_offset {
    ($($number:ident: $name:ident;)*) => { $(
        #[doc = concat!("`", stringify!($name), "(2)`: the kernel's, and the object as well from then on.")]
        pub(crate) unsafe fn $name(
            fd: c_int, list: *const iovec, count: c_int, offset: c_long, flags: c_int
        ) -> ssize_t {
            if own_fds::is_own(fd) {
                return give_size(Err(Errno::BADF));
            }
            demote(fd);
            give_size(kernel::call!($number, fd, list, count, offset, NO_UPPER_HALF, flags))
        }
    )* };
}

at_an_offset! {
    SYS_preadv2: preadv2;
    SYS_pwritev2: pwritev2;
}

/// Functions of the C library that go on with an fd within it.
macro_rules! within_the_c_library {
    ($(
        #[$doc:meta]
        $symbol:literal $name:ident($($argument:ident: $kind:ty),*) -> $result:ty, fails for $fd:ident $refused:block;
    )*) => { $(
        #[$doc]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> $result {
            if own_fds::is_own($fd) {
                return $refused;
            }
            demote($fd);
            crate::next::next!($symbol as fn($($kind),*) -> $result, ($($argument),*))
        }
    )* };
}

within_the_c_library! {
    #[doc = "`fdopen(3)`: streams read and write within the C library."]
    c"fdopen" fdopen(fd: c_int, mode: *const c_char) -> *mut c_void, fails for fd {
        set_errno(Errno::BADF);
        std::ptr::null_mut()
    };
    #[doc = "`vdprintf(3)`: the C library writes."]
    c"vdprintf" vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int,
        fails for fd { give(Err::<c_int, _>(Errno::BADF)) };
    #[doc = "`vdprintf(3)` of a fortified program."]
    c"__vdprintf_chk" __vdprintf_chk(
        fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void
    ) -> c_int, fails for fd { give(Err::<c_int, _>(Errno::BADF)) };
    #[doc = "`mq_close(3)`: the C library closes the fd of the queue."]
    c"mq_close" mq_close(queue: c_int) -> c_int, fails for queue { give(Err::<c_int, _>(Errno::BADF)) };
    #[doc = "`backtrace_symbols_fd(3)`: the C library writes."]
    c"backtrace_symbols_fd" backtrace_symbols_fd(frames: *const *mut c_void, count: c_int, fd: c_int) -> (),
        fails for fd {};
    #[doc = "`backtrace_symbols_fd(3)`"]
    c"__backtrace_symbols_fd" __backtrace_symbols_fd(frames: *const *mut c_void, count: c_int, fd: c_int) -> (),
        fails for fd {};
}

/// Functions that close the fd of a stream or a directory within the C library.
macro_rules! closing {
    ($($symbol:literal $name:ident($($argument:ident: $kind:ty),*; $closed:ident by $fd_of:path, $lost:expr)
        -> $result:ty;)*) => { $(
        #[doc = concat!("`", stringify!($name), "(3)`: the C library closes the fd.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind,)* $closed: *mut c_void) -> $result {
            if !$closed.is_null() {
                // SAFETY: the caller's contract: it is open, and nobody else closes it.
                unsafe { before_closing($fd_of($closed), $lost) };
            }
            crate::next::next!(
                $symbol as fn($($kind,)* *mut c_void) -> $result, ($($argument,)* $closed)
            )
        }
    )* };
}

closing! {
    c"fclose" fclose(; stream by streams::fd_of, NEVER_OPEN) -> c_int;
    c"pclose" pclose(; stream by streams::fd_of, NEVER_OPEN) -> c_int;
    c"endmntent" endmntent(; stream by streams::fd_of, NEVER_OPEN) -> c_int;
    c"freopen" freopen(path: *const c_char, mode: *const c_char; stream by streams::fd_of, lost_by_freopen(path)) -> *mut c_void;
    c"freopen64" freopen64(path: *const c_char, mode: *const c_char; stream by streams::fd_of, lost_by_freopen(path)) -> *mut c_void;
    c"closedir" closedir(; folder by fd_of_folder, NEVER_OPEN) -> c_int;
}

/// Returns the place of a directory's fd: the C library's `DIR` begins with it.
fn fd_of_folder(folder: *mut c_void) -> *mut c_int {
    folder.cast()
}

/// The number of no fd. To close it fails with `EBADF`. A stream with -1 would count as closed, and `pclose` would free it
/// without taking it off the C library's list.
const NEVER_OPEN: c_int = c_int::MAX;

/// Returns the number in place of an own fd in a stream that is about to be opened anew. The C library puts a new file at the
/// stream's fd, unless that is -1.
fn lost_by_freopen(path: *const c_char) -> c_int {
    if path.is_null() { NEVER_OPEN } else { -1 }
}

/// Demotes the object that has got the fd at `place`: the program has closed that fd by `close(2)`, and the table does not
/// see it closed once more. If it is an own fd by now, `lost` takes its place. A null place is one of a stream without an fd.
///
/// # Safety
/// The place is null, or that of a stream or directory that nobody closes meanwhile.
unsafe fn before_closing(place: *mut c_int, lost: c_int) {
    if place.is_null() {
        return;
    }
    // SAFETY: the caller's contract.
    match unsafe { place.read() } {
        // SAFETY: as above.
        own if own_fds::is_own(own) => unsafe { place.write(lost) },
        other => demote(other),
    }
}
