//! The names of the C library that this library exports.
//!
//! Each function looks up its fds in the table of `fds`. Unless one of them is a listening socket, or a set that
//! holds one, it calls the C library's function with the same arguments.

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, sockaddr, socklen_t, timespec, timeval};

use crate::fds::{self, ORDINARY, UNKNOWN};
use crate::next::{Next, next};
use crate::polls::{self, NO_TIME, Sets};
use crate::raw::{self, kernel};
use crate::sets;
use crate::shared;
use crate::wait::{self, Limit};

/// `epoll_create(2)`
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_create(size: c_int) -> c_int {
    sets::created(next!(c"epoll_create", fn(c_int) -> c_int, (size)))
}

/// `epoll_create1(2)`
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    sets::created(next!(c"epoll_create1", fn(c_int) -> c_int, (flags)))
}

/// `epoll_ctl(2)`
///
/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_ctl(
    epfd: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if is_about_listener(operation, fd) {
        // SAFETY: the caller's contract.
        return unsafe { sets::control(epfd, operation, fd, event) };
    }
    next!(
        c"epoll_ctl",
        fn(c_int, c_int, c_int, *mut epoll_event) -> c_int,
        (epfd, operation, fd, event)
    )
}

#[inline]
fn is_about_listener(operation: c_int, fd: c_int) -> bool {
    match fds::kind(fd) {
        ORDINARY => false,
        UNKNOWN => operation == libc::EPOLL_CTL_ADD && fds::is_listener(fd),
        _ => true,
    }
}

/// `epoll_wait(2)`
///
/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    capacity: c_int,
    timeout: c_int,
) -> c_int {
    if let Some(set) = sets::find(epfd) {
        let limit = Limit::of_millis(timeout);
        // SAFETY: the caller's contract.
        return unsafe { wait::wait(set, epfd, events, capacity, limit, std::ptr::null()) };
    }
    next!(
        c"epoll_wait",
        fn(c_int, *mut epoll_event, c_int, c_int) -> c_int,
        (epfd, events, capacity, timeout)
    )
}

/// `epoll_pwait(2)`
///
/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    capacity: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    if let Some(set) = sets::find(epfd) {
        let limit = Limit::of_millis(timeout);
        // SAFETY: the caller's contract.
        return unsafe { wait::wait(set, epfd, events, capacity, limit, mask) };
    }
    next!(
        c"epoll_pwait",
        fn(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int,
        (epfd, events, capacity, timeout, mask)
    )
}

/// `epoll_pwait2(2)`
///
/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    capacity: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    if let Some(set) = sets::find(epfd) {
        // SAFETY: the caller's contract.
        if let Some(limit) = unsafe { timespec_limit(timeout) } {
            // SAFETY: the caller's contract.
            return unsafe { wait::wait(set, epfd, events, capacity, limit, mask) };
        }
    }
    next!(
        c"epoll_pwait2",
        fn(c_int, *mut epoll_event, c_int, *const timespec, *const sigset_t) -> c_int,
        (epfd, events, capacity, timeout, mask)
    )
}

/// Returns the limit that a time stands for; `None` if the kernel refuses it.
///
/// # Safety
/// The time must be null or live.
unsafe fn timespec_limit(time: *const timespec) -> Option<Limit> {
    // SAFETY: the caller's contract.
    match unsafe { time.as_ref() } {
        Some(time) => Limit::of_timespec(time),
        None => Some(Limit::Never),
    }
}

fn kernels_poll(
    list: *mut pollfd,
    count: nfds_t,
) -> impl Fn(*const timespec, *const sigset_t) -> c_int {
    move |time, mask| {
        next!(
            c"ppoll",
            fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int,
            (list, count, time, mask)
        )
    }
}

/// `poll(2)`
///
/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn poll(list: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    if timeout != 0 && fds::has_listener() {
        // SAFETY: the caller's contract.
        return unsafe { poll_special(list, count, timeout) };
    }
    next!(
        c"poll",
        fn(*mut pollfd, nfds_t, c_int) -> c_int,
        (list, count, timeout)
    )
}

/// `poll(2)` in a process with a listening socket. A function of its own leaves the registers of `poll` alone.
///
/// # Safety
/// That of `poll`, with a time to wait.
#[cold]
#[inline(never)]
unsafe fn poll_special(list: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // The kernel refuses a list that it cannot read. Without this look the library would crash there.
    let ready = next!(
        c"poll",
        fn(*mut pollfd, nfds_t, c_int) -> c_int,
        (list, count, 0)
    );
    if ready != 0 {
        return ready;
    }
    // SAFETY: the caller's contract.
    if unsafe { polls::has_listener(list, count) } {
        let limit = Limit::of_millis(timeout);
        // SAFETY: no mask is given.
        let result = unsafe {
            polls::poll(
                list,
                count,
                limit,
                std::ptr::null(),
                &kernels_poll(list, count),
            )
        };
        if let Some(result) = result {
            return result;
        }
    }
    next!(
        c"poll",
        fn(*mut pollfd, nfds_t, c_int) -> c_int,
        (list, count, timeout)
    )
}

/// `ppoll(2)`
///
/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ppoll(
    list: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    if fds::has_listener()
        // SAFETY: the caller's contract; the C library reads the time, too.
        && let Some(limit) = unsafe { timespec_limit(timeout) }
        && !limit.is_zero()
    {
        let kernels = kernels_poll(list, count);
        // See `poll_special`.
        let ready = kernels(&raw const NO_TIME, std::ptr::null());
        if ready != 0 {
            return ready;
        }
        // SAFETY: the caller's contract; the kernel has just read the list.
        if unsafe { polls::has_listener(list, count) }
            // SAFETY: as above.
            && let Some(result) = unsafe { polls::poll(list, count, limit, mask, &kernels) }
        {
            return result;
        }
    }
    next!(
        c"ppoll",
        fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int,
        (list, count, timeout, mask)
    )
}

/// `poll(2)` of a program that was compiled with `_FORTIFY_SOURCE`.
///
/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __poll_chk(
    list: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    size: usize,
) -> c_int {
    if size / size_of::<pollfd>() >= count as usize {
        // SAFETY: the caller's contract.
        return unsafe { poll(list, count, timeout) };
    }
    next!(
        c"__poll_chk",
        fn(*mut pollfd, nfds_t, c_int, usize) -> c_int,
        (list, count, timeout, size)
    )
}

/// `ppoll(2)` of a program that was compiled with `_FORTIFY_SOURCE`.
///
/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    list: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    size: usize,
) -> c_int {
    if size / size_of::<pollfd>() >= count as usize {
        // SAFETY: the caller's contract.
        return unsafe { ppoll(list, count, timeout, mask) };
    }
    next!(
        c"__ppoll_chk",
        fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t, usize) -> c_int,
        (list, count, timeout, mask, size)
    )
}

fn kernels_select(sets: Sets) -> impl Fn(*const timespec, *const sigset_t) -> c_int {
    move |time, mask| {
        let [read, write, except] = sets.sets;
        next!(
            c"pselect",
            fn(
                c_int,
                *mut fd_set,
                *mut fd_set,
                *mut fd_set,
                *const timespec,
                *const sigset_t,
            ) -> c_int,
            (sets.count, read, write, except, time, mask)
        )
    }
}

/// `select(2)`
///
/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = Sets {
        count,
        sets: [read, write, except],
    };
    // SAFETY: the caller's contract.
    if fds::has_listener() && unsafe { sets.is_any_special() } {
        // SAFETY: the caller's contract.
        return unsafe { select_special(sets, timeout) };
    }
    next!(
        c"select",
        fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int,
        (count, read, write, except, timeout)
    )
}

/// `select(2)` with an fd that is not known to be an ordinary one.
///
/// # Safety
/// That of `select`.
#[cold]
#[inline(never)]
unsafe fn select_special(sets: Sets, timeout: *mut timeval) -> c_int {
    // SAFETY: the caller's contract; the C library reads the time, too.
    let limit = match unsafe { timeout.as_ref() } {
        Some(time) if !(0..1_000_000).contains(&time.tv_usec) => None,
        Some(time) => Limit::of_timespec(&timespec {
            tv_sec: time.tv_sec,
            tv_nsec: time.tv_usec * 1000,
        }),
        None => Some(Limit::Never),
    };
    if let Some(limit) = limit
        && !limit.is_zero()
        // SAFETY: the caller's contract.
        && unsafe { sets.have_listener() }
    {
        let end = limit.end(raw::now());
        // SAFETY: the caller's contract.
        let result = unsafe { sets.select(limit, std::ptr::null(), &kernels_select(sets)) };
        // SAFETY: the caller's contract.
        if let Some(timeout) = unsafe { timeout.as_mut() } {
            // Linux stores the time that is left.
            let left = end.saturating_sub(raw::now());
            timeout.tv_sec = (left / 1_000_000_000).cast_signed();
            timeout.tv_usec = (left % 1_000_000_000 / 1000).cast_signed();
        }
        if let Some(result) = result {
            return result;
        }
    }
    let [read, write, except] = sets.sets;
    next!(
        c"select",
        fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int,
        (sets.count, read, write, except, timeout)
    )
}

/// `pselect(2)`
///
/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sets = Sets {
        count,
        sets: [read, write, except],
    };
    if fds::has_listener()
        // SAFETY: the caller's contract; the C library reads the time, too.
        && let Some(limit) = unsafe { timespec_limit(timeout) }
        && !limit.is_zero()
        // SAFETY: the caller's contract.
        && unsafe { sets.have_listener() }
    {
        // SAFETY: the caller's contract.
        let result = unsafe { sets.select(limit, mask, &kernels_select(sets)) };
        if let Some(result) = result {
            return result;
        }
    }
    next!(
        c"pselect",
        fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *const timespec, *const sigset_t) -> c_int,
        (count, read, write, except, timeout, mask)
    )
}

/// `listen(2)`
///
/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    let result = next!(c"listen", fn(c_int, c_int) -> c_int, (fd, backlog));
    if result == 0 {
        see_listener(fd);
    }
    result
}

/// `accept(2)`
///
/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept(
    fd: c_int,
    address: *mut sockaddr,
    size: *mut socklen_t,
) -> c_int {
    let result = next!(
        c"accept",
        fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int,
        (fd, address, size)
    );
    accepted(fd, result);
    result
}

/// `accept4(2)`
///
/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    size: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let result = next!(
        c"accept4",
        fn(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int,
        (fd, address, size, flags)
    );
    accepted(fd, result);
    result
}

fn see_listener(fd: c_int) {
    if fds::kind(fd) <= ORDINARY {
        fds::set_listener(fd);
    }
}

/// Takes note of a connection, or of the lack of one.
fn accepted(fd: c_int, connection: c_int) {
    if connection >= 0 {
        if fds::kind(connection) > ORDINARY {
            // Something that was closed by a raw system call.
            sets::closing(connection);
        }
        fds::set_kind(connection, ORDINARY);
        see_listener(fd);
        shared::count_accept(true);
    } else if raw::errno() == libc::EAGAIN {
        see_listener(fd);
        shared::count_accept(false);
    }
    sets::answered(fd);
}

/// `close(2)`
///
/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if fds::kind(fd) > ORDINARY {
        sets::closing(fd);
    }
    next!(c"close", fn(c_int) -> c_int, (fd))
}

/// `dup2(2)`
///
/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(fd: c_int, new: c_int) -> c_int {
    if fds::kind(new) > ORDINARY {
        sets::replacing(fd, new);
    }
    next!(c"dup2", fn(c_int, c_int) -> c_int, (fd, new))
}

/// `dup3(2)`
///
/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int {
    if fds::kind(new) > ORDINARY && flags & !libc::O_CLOEXEC == 0 {
        sets::replacing(fd, new);
    }
    next!(c"dup3", fn(c_int, c_int, c_int) -> c_int, (fd, new, flags))
}

/// The C library's `__libc_single_threaded`. Null in one before 2.32.
static IS_SINGLE_THREADED: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

/// Looks up what `close_range` reads, since a signal handler may call that.
pub(crate) fn start() {
    // SAFETY: the name is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    IS_SINGLE_THREADED.store(found.cast(), Ordering::Relaxed);
}

/// Returns whether the process has one thread, as far as the C library knows.
fn has_one_thread() -> bool {
    let variable = IS_SINGLE_THREADED.load(Ordering::Relaxed);
    // SAFETY: a variable of this name is the C library's, a `char`.
    !variable.is_null() && unsafe { variable.read_volatile() } != 0
}

/// `close_range(2)`. `CLOSE_RANGE_CLOEXEC` keeps the fds open. `CLOSE_RANGE_UNSHARE` keeps them open in other threads,
/// which may sleep in them: the library then takes no note of it.
///
/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const UNSHARE: c_int = libc::CLOSE_RANGE_UNSHARE as c_int;
    let is_closing = || match flags {
        0 => true,
        UNSHARE => has_one_thread(),
        _ => false,
    };
    if fds::has_listener() && is_closing() {
        sets::closing_range(first, last);
    }
    next!(
        c"close_range",
        fn(c_uint, c_uint, c_int) -> c_int,
        (first, last, flags)
    )
}

/// `closefrom(3)`
///
/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    if fds::has_listener() {
        sets::closing_range(u32::try_from(first).unwrap_or(0), u32::MAX);
    }
    static NEXT: Next = Next::new(c"closefrom");
    let address = NEXT.address();
    if address.is_null() {
        return close_from(first.max(0));
    }
    // SAFETY: this is the C library's function of that name, which has this type.
    let closefrom =
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn(c_int)>(address) };
    // SAFETY: the caller's contract.
    unsafe { closefrom(first) };
}

/// `closefrom` of a C library before 2.34, which has none: a program that looks for it finds that of this library.
#[cold]
fn close_from(first: c_int) {
    if kernel!(SYS_close_range, first, c_uint::MAX, 0) >= 0 {
        return;
    }
    // Before Linux 5.9.
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    kernel!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0, &raw mut limit);
    for fd in first..c_int::try_from(limit.rlim_cur).unwrap_or(c_int::MAX) {
        kernel!(SYS_close, fd);
    }
}

/// Clears `IORING_FEAT_RSRC_TAGS` in the answer of `io_uring_setup`.
///
/// libuv changes its sets through a ring, which the library cannot see. It does so only with this feature, which it
/// takes for the sign of a new kernel, and otherwise calls `epoll_ctl`. For other programs the ring is as it was.
///
/// # Safety
/// `parameters` must be a live `struct io_uring_params`.
unsafe fn hide_feature(parameters: *mut u32) {
    const FEATURES: usize = 5;
    const RESOURCE_TAGS: u32 = 1 << 10;
    // SAFETY: the features are the sixth number of the structure.
    unsafe {
        let features = parameters.add(FEATURES);
        features.write_unaligned(features.read_unaligned() & !RESOURCE_TAGS);
    }
}

/// `syscall(2)`: libuv closes with it.
///
/// It is variadic in C. An argument that is not given has an arbitrary value, which the kernel does not look at.
///
/// # Safety
/// That of the system call.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    match number {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the kernel looks at 32 bits"
        )]
        libc::SYS_close if fds::kind(a as c_int) > ORDINARY => sets::closing(a as c_int),
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the kernel looks at 32 bits"
        )]
        libc::SYS_epoll_ctl if is_about_listener(b as c_int, c as c_int) => {
            let event = std::ptr::with_exposed_provenance_mut(d);
            // SAFETY: the caller's contract.
            return unsafe { sets::control(a as c_int, b as c_int, c as c_int, event) }.into();
        }
        libc::SYS_io_uring_setup => {
            let result = next!(
                c"syscall",
                fn(c_long, usize, usize) -> c_long,
                (number, a, b)
            );
            if result >= 0 {
                // SAFETY: the kernel has just written a `struct io_uring_params` there.
                unsafe { hide_feature(std::ptr::with_exposed_provenance_mut(b)) };
            }
            return result;
        }
        _ => {}
    }
    next!(
        c"syscall",
        fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long,
        (number, a, b, c, d, e, f)
    )
}
