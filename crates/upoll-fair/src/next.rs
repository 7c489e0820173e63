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

/// The C library's functions. A call fails with `ENOSYS` if there is none of the name.
pub(crate) struct CLibrary;

/// Declares functions of `CLibrary`.
macro_rules! c_library {
    ($(fn $name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {impl crate::next::CLibrary {$(
        /// # Safety
        /// That of the C library's.
        #[inline]
        pub(crate) unsafe fn $name($($argument: $kind),*) -> $result {
            use crate::next::{CLibrary, Next};

            type Function = unsafe extern "C-unwind" fn($($kind),*) -> $result;
            static NEXT: Next = match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
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
                unsafe { CLibrary::$name($($argument),*) }
            }
            let address = NEXT.known();
            let function: Function = if address.is_null() {
                after_look_up
            } else {
                // SAFETY: this is the C library's function of that name, which has this type.
                unsafe { std::mem::transmute::<*mut std::ffi::c_void, Function>(address) }
            };
            // SAFETY: the caller's contract.
            unsafe { function($($argument),*) }
        }
    )*}};
}

pub(crate) use c_library;
