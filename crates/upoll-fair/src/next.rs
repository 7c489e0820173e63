//! The C library's own functions, which the exported ones stand before.

/// The C library's functions. A call fails with `ENOSYS` if there is none of the name.
pub(crate) struct CLibrary;

/// Exports functions under the C library's names, and makes the C library's own functions of `CLibrary`. Where the body of one
/// does not return, the C library's function is called with the same arguments. The expression after `then` takes note of the
/// result. The contract of each is that of the C library's: pointers are valid as far as the kernel or the C library reads them.
macro_rules! exports {
    ($(fn $name:ident($($argument:ident: $kind:ty),*) -> $result:ty $before:block $(then $after:expr;)?)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of the C library.")]
        ///
        /// # Safety
        /// That of the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> $result {
            $before
            // SAFETY: the caller's contract.
            let result = unsafe { CLibrary::$name($($argument),*) };
            $($after(result);)?
            result
        }

        impl CLibrary {
            /// # Safety
            /// That of the C library's.
            #[inline]
            pub(crate) unsafe fn $name($($argument: $kind),*) -> $result {
                use std::sync::atomic::{AtomicPtr, Ordering};

                type Function = unsafe extern "C-unwind" fn($($kind),*) -> $result;
                /// The function of the next library in the order of look-up, and until it is called `look_up`.
                static NEXT: AtomicPtr<c_void> = AtomicPtr::new(look_up as *mut c_void);
                // A function of its own leaves the registers of the exported function alone.
                #[cold]
                unsafe extern "C-unwind" fn look_up($($argument: $kind),*) -> $result {
                    let name = concat!(stringify!($name), "\0").as_ptr().cast();
                    // SAFETY: the name is a C string.
                    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name) };
                    if found.is_null() {
                        raw::set_errno(libc::ENOSYS);
                        return -1;
                    }
                    NEXT.store(found, Ordering::Relaxed);
                    // SAFETY: the caller's contract.
                    unsafe { CLibrary::$name($($argument),*) }
                }
                let next = NEXT.load(Ordering::Relaxed);
                // SAFETY: this is `look_up` or the C library's function of that name, which have this type.
                let function = unsafe { std::mem::transmute::<*mut c_void, Function>(next) };
                // SAFETY: the caller's contract.
                unsafe { function($($argument),*) }
            }
        }
    )*};
}

pub(crate) use exports;
