//! The C library's own functions, which the exported ones stand before.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

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

    /// Returns the address of the function, or null if the C library is too old to have it.
    #[inline]
    pub(crate) fn address(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            self.look_up()
        } else {
            found
        }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Calls the C library's function of a name and type; fails with `ENOSYS` if there is none.
macro_rules! next {
    ($name:literal, fn($($kind:ty),* $(,)?) -> $result:ty, ($($argument:expr),* $(,)?)) => {{
        static NEXT: $crate::next::Next = $crate::next::Next::new($name);
        let address = NEXT.address();
        if address.is_null() {
            $crate::raw::set_errno(libc::ENOSYS);
            -1
        } else {
            type Function = unsafe extern "C-unwind" fn($($kind),*) -> $result;
            // SAFETY: this is the C library's function of that name, which has this type.
            let function = unsafe { std::mem::transmute::<*mut libc::c_void, Function>(address) };
            // SAFETY: the contract of the exported function is that of the C library's.
            unsafe { function($($argument),*) }
        }
    }};
}

pub(crate) use next;
