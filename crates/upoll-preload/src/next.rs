//! The C library's own functions, for what is more than a system call.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// A function of the library that this one stands before.
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

    /// Its address; null if there is none, or nobody has looked for it.
    #[inline]
    pub(crate) fn known(&self) -> *mut c_void {
        self.found.load(Ordering::Relaxed)
    }

    /// Its address; null if there is none.
    #[inline]
    pub(crate) fn find(&self) -> *mut c_void {
        let found = self.known();
        match found.is_null() {
            true => self.look_up(),
            false => found,
        }
    }

    #[cold]
    #[inline(never)]
    fn look_up(&self) -> *mut c_void {
        if ARE_FOUND.load(Ordering::Acquire) {
            // The C library has none, or another thread has just found it.
            return self.known();
        }
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }

    /// Its address.
    pub(crate) fn address(&self) -> *mut c_void {
        let found = self.find();
        assert!(!found.is_null(), "the C library has {:?}", self.name);
        found
    }
}

// The linker makes these two, and the library does not export them.
std::arch::global_asm!(".hidden __start_upoll_next", ".hidden __stop_upoll_next");

/// [`find_all`] has ended.
static ARE_FOUND: AtomicBool = AtomicBool::new(false);

/// Looks for all functions at the start, so that no thread does so later.
///
/// A look-up takes the loader's lock, which no system call does. Another thread may hold that in a constructor of a plug-in,
/// and wait for this one. In the child of `_Fork` or of a bare `clone` its holder may not exist.
pub(crate) fn find_all() {
    unsafe extern "C" {
        #[link_name = "__start_upoll_next"]
        static BEGIN: [usize; 0];
        #[link_name = "__stop_upoll_next"]
        static END: [usize; 0];
    }
    let (begin, end) = ((&raw const BEGIN).cast::<&Next>(), (&raw const END).addr());
    let count = (end - begin.addr()) / size_of::<&Next>();
    // SAFETY: the linker puts what `listed!` has in the section one after the other, between these two.
    let all = unsafe { std::slice::from_raw_parts(begin, count) };
    for next in all {
        next.find();
    }
    ARE_FOUND.store(true, Ordering::Release);
}

/// Lists a function for [`find_all`].
macro_rules! listed {
    ($next:expr) => {
        const _: () = {
            #[used]
            #[unsafe(link_section = "upoll_next")]
            static LISTED: &$crate::next::Next = &$next;
        };
    };
}

/// Calls the C library's function of a name and type.
macro_rules! next {
    ($name:literal as fn($($kind:ty),*) -> $result:ty, ($($argument:expr),*)) => {{
        static NEXT: $crate::next::Next = $crate::next::Next::new($name);
        $crate::next::listed!(NEXT);
        type Function = unsafe extern "C-unwind" fn($($kind),*) -> $result;
        // SAFETY: it is the C library's function of that name, which has this type.
        let function = unsafe { std::mem::transmute::<*mut libc::c_void, Function>(NEXT.address()) };
        // SAFETY: the caller's contract, which is the function's own.
        unsafe { function($($argument),*) }
    }};
    // A function that older libraries do not have, and a program may ask for because it is here.
    ($name:literal as fn($($kind:ty),*) -> $result:ty, ($($argument:expr),*), or $missing:expr) => {{
        static NEXT: $crate::next::Next = $crate::next::Next::new($name);
        $crate::next::listed!(NEXT);
        type Function = unsafe extern "C-unwind" fn($($kind),*) -> $result;
        let address = NEXT.find();
        if address.is_null() {
            $missing
        } else {
            // SAFETY: as above.
            let function = unsafe { std::mem::transmute::<*mut libc::c_void, Function>(address) };
            // SAFETY: as above.
            unsafe { function($($argument),*) }
        }
    }};
}

/// Calls the C library's function of the same name as the exported one, if the C library has it. The
/// arguments name no user-level object. So this is the system call that the program would
/// make, with its own rules for cancellation, restarts and `errno`.
macro_rules! pass_on {
    ($symbol:literal, fn($($kind:ty),*) -> $result:ty, ($($argument:expr),*)) => {{
        static NEXT: $crate::next::Next =
            $crate::next::Next::new($crate::next::name_of(concat!($symbol, "\0")));
        $crate::next::listed!(NEXT);
        $crate::next::pass_on!(by NEXT, fn($($kind),*) -> $result, ($($argument),*));
    }};
    // By what the caller keeps of that function.
    (by $next:expr, fn($($kind:ty),*) -> $result:ty, ($($argument:expr),*)) => {{
        let address = $next.find();
        if !address.is_null() {
            return $crate::next::call_at!(address, fn($($kind),*) -> $result, ($($argument),*));
        }
    }};
}

/// Calls the C library's function of the name that a function here is exported by, at its address.
macro_rules! call_at {
    ($address:expr, fn($($kind:ty),*) -> $result:ty, ($($argument:expr),*)) => {{
        type Function = unsafe extern "C-unwind" fn($($kind),*) -> $result;
        let address: *mut libc::c_void = $address;
        // SAFETY: it is the C library's function of that name, which has this type.
        let function = unsafe { std::mem::transmute::<*mut libc::c_void, Function>(address) };
        // SAFETY: the caller's contract, which is the function's own.
        unsafe { function($($argument),*) }
    }};
}

/// A name with its final zero.
pub(crate) const fn name_of(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("one zero, at the end"),
    }
}

pub(crate) use {call_at, listed, next, pass_on};
