//! The C library's own functions, which the exported ones stand before.

use std::ffi::{CStr, c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, sockaddr, socklen_t, timespec, timeval};

/// A function of the next library in the order of look-up.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Next {
            name,
            found: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Returns the address of the function. Null if it was not looked up yet, or the C library is too old to have it.
    #[inline]
    pub(crate) fn known(&self) -> *mut c_void {
        self.found.load(Ordering::Relaxed)
    }

    #[cold]
    pub(crate) fn look_up(&self) -> *mut c_void {
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Declares the C library's functions of these names. A call fails with `ENOSYS` if there is none.
macro_rules! c_library {
    ($(fn $name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {$(
        /// # Safety
        /// That of the C library's.
        #[inline]
        pub(crate) unsafe fn $name($($argument: $kind),*) -> $result {
            type Function = unsafe extern "C-unwind" fn($($kind),*) -> $result;
            static NEXT: Next = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => Next::new(name),
                Err(_) => panic!("a name has no zeros"),
            };
            // A function of its own leaves the registers of the exported function alone.
            #[cold]
            #[inline(never)]
            unsafe extern "C-unwind" fn after_look_up($($argument: $kind),*) -> $result {
                if NEXT.look_up().is_null() {
                    crate::raw::set_errno(libc::ENOSYS);
                    return -1;
                }
                // SAFETY: the caller's contract.
                unsafe { $name($($argument),*) }
            }
            let address = NEXT.known();
            let function: Function = if address.is_null() {
                after_look_up
            } else {
                // SAFETY: this is the C library's function of that name, which has this type.
                unsafe { std::mem::transmute::<*mut c_void, Function>(address) }
            };
            // SAFETY: the caller's contract.
            unsafe { function($($argument),*) }
        }
    )*};
}

c_library! {
    fn epoll_create(size: c_int) -> c_int;
    fn epoll_create1(flags: c_int) -> c_int;
    fn epoll_ctl(epfd: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    fn epoll_wait(epfd: c_int, events: *mut epoll_event, capacity: c_int, timeout: c_int) -> c_int;
    fn epoll_pwait(
        epfd: c_int, events: *mut epoll_event, capacity: c_int, timeout: c_int, mask: *const sigset_t
    ) -> c_int;
    fn epoll_pwait2(
        epfd: c_int, events: *mut epoll_event, capacity: c_int, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int;
    fn poll(list: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    fn ppoll(list: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn __poll_chk(list: *mut pollfd, count: nfds_t, timeout: c_int, size: usize) -> c_int;
    fn __ppoll_chk(
        list: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, size: usize
    ) -> c_int;
    fn select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval
    ) -> c_int;
    fn pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int;
    fn listen(fd: c_int, backlog: c_int) -> c_int;
    fn accept(fd: c_int, address: *mut sockaddr, size: *mut socklen_t) -> c_int;
    fn accept4(fd: c_int, address: *mut sockaddr, size: *mut socklen_t, flags: c_int) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn dup2(fd: c_int, new: c_int) -> c_int;
    fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn syscall(
        number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize
    ) -> c_long;
}
